"""The command line: each command is a thin call of a function that Python users have too."""

import inspect
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Rich

from calibrant import __version__, calibrators, catalog, data, losses, metrics, networks
from calibrant._files import writable, written
from calibrant._types import InputError
from calibrant.assess import CALIBRATORS, FOLDS, METRICS, Assessment, assess, cross_assess, stream_assess
from calibrant.predictions import Predictions, load_logits

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    help="Train, repair, measure and explain classifiers whose probabilities are true.",
)
study_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train and compare networks over a grid.")
app.add_typer(study_app, name="study")
out = Console(highlight=False, width=None if sys.stdout.isatty() else 400)  # whole lines when piped
_PLAIN: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}


def main() -> None:
    """Run the command line; bad input is one line and exit status 2."""
    try:
        app()
    except InputError as error:
        print(f"calibrant: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(f"calibrant: cannot read or write{where}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # so typer ends at Ctrl-C
            print("calibrant: stopped; what was finished is kept, start again to go on", file=sys.stderr)
        raise


def _version(show: bool | None) -> None:
    if show:
        print(f"calibrant {__version__}")
        raise typer.Exit


@app.callback()
def _root(  # pyright: ignore[reportUnusedFunction]
    version: Annotated[bool | None, typer.Option("--version", callback=_version, help="Print the version.")] = None,
) -> None:
    pass


@app.command("assess")
def assess_(
    file: Annotated[list[Path], typer.Argument(metavar="VAL [TEST]", help="Predictions to fit on, and to judge on.")],
    calibrator: Annotated[list[str], typer.Option("--calibrator", "-c", help="May be given again.")] = list(
        CALIBRATORS
    ),
    metric: Annotated[list[str], typer.Option("--metric", "-m", help="May be given again.")] = list(METRICS),
    cv: Annotated[int | None, typer.Option(help="Cross-fit one file in so many folds.")] = None,
    choose: Annotated[
        str | None, typer.Option(help="Which calibrator to save; default: lowest cross-fitted NLL.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report here.")] = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Write all numbers and fitted parameters here.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the chosen calibrator here (.safetensors).")] = None,
    stream: Annotated[
        bool | None,
        typer.Option("--stream/--whole", help="Read TEST in pieces; default: when it is too large for memory."),
    ] = None,
) -> None:
    """Fit calibrators on VAL, judge them on TEST.

    Files: .npz, .safetensors, .pt with keys logits or probs, and labels; NAME_logits.npy with NAME_labels.npy; .csv
    or .parquet with columns label and logit_0, logit_1, ... or prob_0, ...
    """
    for path in html, json_, save:
        if path is not None:
            writable(path)
    if save is not None and save.suffix != ".safetensors":
        raise InputError(f"a calibrator is saved as .safetensors, got {save}")
    if len(file) > 2 or (len(file) == 2 and cv is not None):
        raise InputError(f"expected two files, or one with --cv, got {len(file)} files{' and --cv' if cv else ''}")
    if len(file) == 1 and cv is None:
        raise InputError(
            "fitting and judging on the same data is refused, since it flatters every calibrator; give a second file "
            "to judge on, or cross-fit this one with --cv 5"
        )
    pieces = _in_pieces(file[-1], stream) if len(file) == 2 else None
    read = [Predictions.load(path) for path in (file[:1] if pieces else file)]
    with _status() as progress:
        if pieces is not None:
            found = stream_assess(read[0], pieces, calibrator, metric, choose, progress=progress)
        elif len(read) == 2:
            found = assess(read[0], read[1], calibrator, metric, choose, progress=progress)
        else:
            found = cross_assess(read[0], cv or FOLDS, calibrator, metric, choose, progress=progress)
    _show(found)
    if html is not None:
        from calibrant.report import assessment_report

        roles = ("fitted on", "judged on") if len(file) == 2 else ("cross-fitted on",)
        facts = {role: f"{path}: {p!r}, digest {p.digest}" for role, path, p in zip(roles, file, read)}
        facts |= {"judged on": f"{file[1]}: {found.before.n:,} examples, read in pieces"} if pieces else {}
        _write(html, assessment_report(found, _command(), facts, save))
    if json_ is not None:
        content = {"chosen": found.chosen, "results": found.rows(), "parameters": found.parameters()}
        content |= {"held_out_nll": found.held_out, "changes": [asdict(row) for row in found.changes or ()]}
        _write(json_, json.dumps(_strict(content), indent=1, allow_nan=False) + "\n")
    if save is not None:
        with written(save) as draft:
            calibrators.save(found.fitted[found.chosen], draft, fitted_on=read[0])
        out.print(f"wrote {save} ({found.chosen})", soft_wrap=True)


@app.command()
def apply(
    calibrator: Annotated[Path, typer.Argument(help="A calibrator that assess saved.")],
    file: Annotated[Path, typer.Argument(help="Predictions; labels are not needed.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write calibrated logits and probs (.npz).")],
) -> None:
    """Calibrate predictions with a saved calibrator."""
    import numpy as np

    if output.suffix != ".npz":
        raise InputError(f"calibrated predictions are written as .npz, got {output}")
    writable(output)
    fitted = calibrators.load(calibrator)
    logits, labels = load_logits(file)
    try:
        calibrated = fitted(logits.double())
    except (RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{calibrator} does not fit the {logits.shape[1]} classes of {file} ({reason})") from None
    arrays = {"logits": calibrated.numpy()} | ({} if labels is None else {"labels": labels.numpy()})
    with written(output) as draft:
        np.savez_compressed(draft, **arrays)  # pyright: ignore[reportArgumentType]
    out.print(f"wrote {output}: calibrated logits of {len(logits):,} examples", soft_wrap=True)


@app.command("list")
def list_(
    kind: Annotated[
        str | None, typer.Argument(help="losses, metrics, calibrators, data or networks; all if left out.")
    ] = None,
) -> None:
    """List every loss, metric, calibrator, data set and network, with parameters and source."""
    homes: dict[str, ModuleType] = {
        home.__name__.rpartition(".")[2]: home for home in (losses, metrics, calibrators, data, networks)
    }
    if kind is not None and kind not in homes:
        raise InputError(f"no {kind!r} to list; there are {', '.join(homes)}")
    for name, home in homes.items():
        if kind in (None, name):
            table = Rich(title=name, title_justify="left", title_style="bold", box=None, pad_edge=False)
            table.add_column("name", no_wrap=True)
            table.add_column("what it is, and its source")
            for method, text in entries(home):
                table.add_row(escape(method), escape(text))
            out.print(table, "")


@app.command()
def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where networks and the report are kept.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Train, calibrate and compare small networks on handwritten digits; about two minutes."""
    _study(_bundled("quickstart"), folder)


_STUDY = Annotated[str, typer.Argument(help="A study file (.toml), or the name of a bundled one.")]
_OUT = Annotated[Path | None, typer.Option("--out", help="Where runs and the report are kept; default runs/NAME.")]
_MIRROR = Annotated[str | None, typer.Option(help="A URL (s3://, gs://, file://, ...) to share finished runs by.")]
_SCALE = Annotated[str | None, typer.Option(help="A scale that the study file names, such as small.")]
_ONLY = Annotated[str | None, typer.Option(help="Only runs whose data set, network, loss or seed contains this text.")]


@app.command()
def figures(
    what: Annotated[str, typer.Argument(help="focal: the theory of focal loss; or a study: how its networks learned.")],
    folder: Annotated[Path, typer.Option("--output", "-o", help="Where to write SVG, PNG and CSV.")] = Path("figures"),
    out_: _OUT = None,
    scale: _SCALE = None,
) -> None:
    """Draw the figures of the papers, each with the numbers behind it: of their theory, or of a study that ran."""
    from calibrant import figures as drawn

    draw = drawn.focal
    if what != "focal":
        study, _, store = _opened(_found(what), out_, None, scale)
        draw = partial(drawn.study, study, store)
    writable(folder / "figure.svg")
    with _status() as progress:
        progress("drawing")
        paths = draw(folder)
    if not paths:
        raise InputError(f"nothing to draw: no run of study {what!r} is done in {out_ or 'runs'}")
    out.print(f"wrote {len(paths)} files to {folder}: {', '.join(p.name for p in paths if p.suffix == '.svg')}")


@study_app.command("run")
def study_run(
    study: _STUDY,
    folder: _OUT = None,
    root: Annotated[
        Path | None, typer.Option("--data", help="Folder of local data sets.", envvar="CALIBRANT_DATA")
    ] = None,
    mirror: _MIRROR = None,
    scale: _SCALE = None,
    only: _ONLY = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be trained.")] = False,
    engine: Annotated[str, typer.Option(help="Where networks are trained: local (in this process) or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster; default: one of this machine.", envvar="RAY_ADDRESS")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0, help="GPUs per network on Ray; with 0.25, four networks share one.")
    ] = None,
    track: Annotated[str | None, typer.Option(help="Follow every epoch in tensorboard, mlflow or wandb.")] = None,
) -> None:
    """Train what is missing of a study, then calibrate, measure and report. Stop and start it as you like."""
    if dry_run:
        _standing(_found(study), folder, mirror, scale, only, root, try_out=True)
    else:
        _study(_found(study), folder, root, mirror, scale, only, _engine(engine, address, gpus), track)


@study_app.command("status")
def study_status(
    study: _STUDY, folder: _OUT = None, mirror: _MIRROR = None, scale: _SCALE = None, only: _ONLY = None
) -> None:
    """List the runs of a study: done, begun, failed or still to train, and the time they take."""
    _standing(_found(study), folder, mirror, scale, only)


@study_app.command("measure")
def study_measure(
    study: _STUDY,
    folder: _OUT = None,
    mirror: _MIRROR = None,
    scale: _SCALE = None,
    calibrator: Annotated[list[str], typer.Option("--calibrator", "-c", help="Instead of the study's own.")] = [],
    metric: Annotated[list[str], typer.Option("--metric", "-m", help="Instead of the study's own.")] = [],
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes to share the work; default: one per core.")] = None,
) -> None:
    """Calibrate and measure what is stored again, with other calibrators or metrics; nothing is trained."""
    changes: dict[str, Any] = {"calibrators": tuple(calibrator)} if calibrator else {}
    changes |= {"metrics": tuple(metric)} if metric else {}
    loaded, place, store = _opened(_found(study), folder, mirror, scale)
    _measured(replace(loaded, **changes), place, store, jobs)


def _found(study: str) -> Path:
    return Path(study) if study.endswith(".toml") or Path(study).exists() else _bundled(study)


def _bundled(name: str) -> Path:
    folder = Path(str(files("calibrant") / "studies"))
    if not (folder / f"{name}.toml").is_file():
        there = ", ".join(sorted(path.stem for path in folder.glob("*.toml")))
        raise InputError(f"no study {name!r}; give a .toml file, or one of the bundled studies: {there}")
    return folder / f"{name}.toml"


def _opened(path: Path, folder: Path | None, mirror: str | None, scale: str | None) -> tuple[Any, Path, Any]:
    """Load a study, and open the store in its folder, with the finished runs that others share."""
    from calibrant.study import Store, Study

    study = Study.load(path, scale)
    folder = folder or Path("runs") / study.name
    store = Store(folder, mirror)
    store.share(study.runs())
    return study, folder, store


def _engine(name: str, address: str | None, gpus: float | None) -> Any:
    from calibrant.study import engine

    engines = {"local": engine.local, "ray": engine.Ray(address, gpus)}
    if name not in engines:
        raise InputError(f"no engine {name!r}; there are {', '.join(engines)}")
    return engines[name]


def _study(
    path: Path,
    folder: Path | None,
    root: Path | None = None,
    mirror: str | None = None,
    scale: str | None = None,
    only: str | None = None,
    engine: Any = None,
    track: str | None = None,
) -> None:
    from calibrant.study.engine import local
    from calibrant.study.run import chosen, train_all
    from calibrant.study.track import tracking

    study, place, store = _opened(path, folder, mirror, scale)
    with tracking(track, study, place) as watch:
        failed = train_all(study, chosen(study, only), store, root, out, engine or local, watch)
    _measured(study, place, store)
    for run, reason in failed.items():
        out.print(f"failed: {run.loss} seed {run.seed}: {reason.splitlines()[-1]}", style="red", markup=False)
    if failed:
        sys.exit(1)


def _measured(study: Any, folder: Path, store: Any, jobs: int | None = None) -> None:
    """Show a study's tables, and write them and its report."""
    import polars
    import torch

    from calibrant.report import study_report
    from calibrant.study.measure import measure
    from calibrant.study.published import study_tables

    report = writable(folder / "report.html")
    store.share(study.runs())  # others may have finished some meanwhile
    with _status() as progress:
        progress("calibrating and measuring")
        rows = list(measure(study, store, jobs or torch.get_num_threads()))
        page = study_report(study, rows, store, _command())
        made = study_tables(study, rows)
    _show_study(study, made)
    with written(folder / "rows.csv") as draft:
        polars.DataFrame(rows).write_csv(draft)
    with written(folder / "tables.csv") as draft:
        polars.DataFrame([r for t in made for r in t.records()], infer_schema_length=None).write_csv(draft)
    for name, texts in ("tables.md", [t.markdown() for t in made]), ("tables.tex", [t.latex() for t in made]):
        with written(folder / name) as draft:
            draft.write_text("\n".join(texts))
    _write(report, page)


def _standing(
    path: Path,
    folder: Path | None,
    mirror: str | None,
    scale: str | None,
    only: str | None,
    root: Path | None = None,
    *,
    try_out: bool = False,
) -> None:
    from calibrant.study.run import Trial, chosen, remaining, tried, untimed

    study, _, store = _opened(path, folder, mirror, scale)
    table = Rich(**_PLAIN)
    for column in "", "data set", "network", "loss", "seed", "epochs", "seconds":
        table.add_column(column, justify="right" if column in ("seed", "epochs", "seconds") else "left")
    runs = chosen(study, only)
    for run in runs:
        seconds = f"{store.record(run)['facts']['seconds']:.0f}" if run in store else ""
        table.add_row(store.state(run), *map(escape, study.names(run)), str(run.seed), str(run.recipe.epochs), seconds)
    out.print(table)
    trials = dict[Any, Trial]()
    for run in untimed(runs, store) if try_out else ():
        where, what, _ = study.names(run)
        with _status() as progress:
            progress(f"timing {what} on {where}")
            try:
                found = trials[run] = tried(run, root)
            except InputError as error:  # data that are not at hand, such as of a study for another machine
                out.print(f"no estimate for {what} on {where}: {error}", markup=False)
                continue
        size = f"{found.examples:,} examples, {found.parameters:,} parameters"
        out.print(f"{what} on {where}: {size}, about {found.seconds:.3g} s an epoch", markup=False)
    out.print(remaining(runs, store, trials))


def _in_pieces(path: Path, stream: bool | None) -> Iterable[Predictions] | None:
    """Return the pieces of a file that is read so: when asked for, or larger than a fourth of the memory."""
    from calibrant import _stream

    large = path.is_file() and path.suffix in _stream.SUFFIXES and path.stat().st_size > _memory() / 4
    return _stream.stream(path) if stream or (stream is None and large) else None


def _memory() -> float:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return math.inf


def _show(found: Assessment) -> None:
    from calibrant.report.words import answers, headline, interval, p_text, title
    from calibrant.study.tables import number

    before, after = found.before, found.after
    pair = {"before": before} | ({"after": after} if found.chosen != "Identity" else {})
    table = Rich(**_PLAIN, padding=(0, 1, 0, 0))
    table.add_column(f"{before.n:,} examples, {before.k} classes", no_wrap=True)
    for name in pair:
        table.add_column(name, justify="right", no_wrap=True)
        table.add_column("90 % interval", style="dim", no_wrap=True)
    for row in before:
        cells: list[str] = []
        for measured in pair.values():
            if row.name in measured:
                r = measured[row.name]
                cells += [number(r.name, r.value), interval(r) if math.isnan(r.p_value) else p_text(r.p_value)]
        table.add_row(title(row), *map(escape, cells))
    out.print(table, "")
    if len(found.values) > 1:
        _show_calibrators(found)
    out.print(f"[bold]{headline(found)}[/bold]")
    for question, answer in answers(found):
        out.print(f"[bold]{question}[/bold] {escape(answer)}")
    out.print(f"[dim]{escape(found.how)}[/dim]")


def _show_calibrators(found: Assessment) -> None:
    from calibrant.study.tables import heading, number

    table = Rich(**_PLAIN)
    table.add_column("calibrator", no_wrap=True)
    for name in found.shown:
        table.add_column(heading(name).replace("_", "_\n"), justify="right")
    for calibrator, values in found.values.items():
        cells = (number(m, values[m]) for m in found.shown)
        table.add_row(escape(calibrator), *cells, style="bold" if calibrator == found.chosen else None)
    out.print(table, "")


@contextmanager
def _status() -> Generator[Callable[[str], object], None, None]:
    """Say what is being done while it is being done, on a terminal."""
    if not out.is_terminal:
        yield str
        return
    with out.status("reading") as status:
        yield status.update


def _show_study(study: Any, made: Sequence[Any]) -> None:
    from calibrant.report.sections import finding

    wide = out.width >= 112
    for t in made:
        table = Rich(title=t.heading, title_justify="left", title_style="bold", **_PLAIN)
        table.add_column("trained with", no_wrap=True)
        for column in t.columns:
            table.add_column(column.replace("(", "\n("), justify="right", no_wrap=True)
        for row in t.rows:
            cells = [t.cells[row, column] for column in t.columns]
            texts = [(c.text(t.metric, deviation=wide), c.best) for c in cells]
            table.add_row(t.name(row), *(f"[bold]{text}[/bold]" if best else text for text, best in texts))
            if printed := t.printed(row, deviation=wide):
                table.add_row("  paper", *printed, style="dim italic")
        out.print(table, *([f"[dim]{escape(t.beside)}[/dim]"] if t.beside else []), "", sep="\n")
    seeds = max(len(grid.seeds) for grid in study.grids)
    spread = f"mean{' ± standard deviation' if wide else ''} over {seeds} seeds, "
    out.print(f"[dim]{spread if seeds > 1 else ''}temperature in brackets, best in bold[/dim]")
    out.print(*(f"[dim]{note}[/dim]" for note in dict.fromkeys(t.tested for t in made if t.tested)), "", sep="\n")
    out.print(finding(made))


def _plain(docstring: str) -> str:
    """Return the first paragraph of a docstring without its formulas."""
    text = " ".join(docstring.partition("\n\n")[0].split())
    return re.sub(r",?\s*\$[^$]*\$", "", text)


def entries(home: ModuleType) -> Iterable[tuple[str, str]]:
    """Return (name with its parameters, first sentence of the docstring with the source) of a registry's methods."""
    for name in sorted(home.__all__):
        method = getattr(home, name)
        if inspect.isfunction(method) or isinstance(method, type):
            text = inspect.getdoc(method) or ""
            yield (
                catalog.spell(name, catalog.hyperparameters(getattr(method, "fit", method))),
                _plain(text),
            )


def _write(path: Path, text: str) -> None:
    with written(path) as draft:
        draft.write_text(text)
    out.print(f"wrote {path}", soft_wrap=True)


def _strict(value: Any) -> Any:
    """Return the same for JSON, which has no nan and no infinity: null, "inf" and "-inf" stand for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {key: _strict(item) for key, item in value.items()}
    return [_strict(item) for item in value] if isinstance(value, list) else value


def _command() -> str:
    return shlex.join(["calibrant", *sys.argv[1:]])
