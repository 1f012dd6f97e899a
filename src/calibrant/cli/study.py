"""Studies on the command line: run, status, measure, and the demo and figures that are made of them."""

import math
import os
import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table as Rich

from calibrant._text import markup, visible

if TYPE_CHECKING:
    from calibrant.study import Progress, Result, Status

study_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train and compare networks over a grid.")
out = Console(highlight=False, width=None if sys.stdout.isatty() else 400)  # whole lines when piped
PLAIN: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}

STUDY = Annotated[str, typer.Argument(help="A study file (.toml), or the name of a bundled one.")]
OUT = Annotated[Path | None, typer.Option("--out", help="Where runs and the report are kept; default runs/NAME.")]
MIRROR = Annotated[str | None, typer.Option(help="A URL (s3://, gs://, file://, ...) to share finished runs by.")]
SCALE = Annotated[str | None, typer.Option(help="A scale that the study file names, such as small.")]
ONLY = Annotated[str | None, typer.Option(help="Only runs whose data set, network, loss or seed contains this text.")]
DATA = "Folder of local data sets."
WITH = Annotated[
    list[str] | None, typer.Option("--with", help="A Python file or package of your own methods; it is run.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of studies to an application."""
    app.add_typer(study_app, name="study")
    app.command()(demo)
    app.command()(figures)


@study_app.command("run")
def study_run(
    study: STUDY,
    folder: OUT = None,
    root: Annotated[Path | None, typer.Option("--data", help=DATA, envvar="CALIBRANT_DATA")] = None,
    mirror: MIRROR = None,
    scale: SCALE = None,
    only: ONLY = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be trained.")] = False,
    engine: Annotated[str, typer.Option(help="Where networks are trained: local (in this process) or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster; default: RAY_ADDRESS, else one of this machine.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0, help="GPUs per network on Ray; with 0.25, four networks share one.")
    ] = None,
    track: Annotated[str | None, typer.Option(help="Follow every epoch in tensorboard, mlflow or wandb.")] = None,
    mix: Annotated[
        bool, typer.Option("--mix-versions", help="Train beside what another version of calibrant has trained.")
    ] = False,
    with_: WITH = None,
) -> None:
    """Train what is missing of a study, then calibrate, measure and report. Stop and start it as you like."""
    if engine == "ray":  # hide its notices of dead workers: lost runs are reported by the engine itself
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    from calibrant.study import run, status

    where: dict[str, Any] = {"out": folder, "data": root, "mirror": mirror, "scale": scale, "only": only}
    with _told() as progress:
        if dry_run:
            found = status(study, **where, with_=with_ or (), estimate=True, progress=progress)
        else:
            address = address or (os.environ.get("RAY_ADDRESS") if engine == "ray" else None)
            how: dict[str, Any] = {"engine": engine, "address": address, "gpus": gpus}
            more: dict[str, Any] = {"track": track, "mix_versions": mix, "with_": with_ or (), "command": _command()}
            found = run(study, **where, **how, **more, progress=progress)
    _show(found)


@study_app.command("status")
def study_status(
    study: STUDY, folder: OUT = None, mirror: MIRROR = None, scale: SCALE = None, only: ONLY = None, with_: WITH = None
) -> None:
    """List the runs of a study: done, begun, failed or still to train, and the time they take."""
    from calibrant.study import status

    _show(status(study, out=folder, mirror=mirror, scale=scale, only=only, with_=with_ or ()))


@study_app.command("measure")
def study_measure(
    study: STUDY,
    folder: OUT = None,
    root: Annotated[Path | None, typer.Option("--data", help=DATA + " Measure runs on these only.")] = None,
    mirror: MIRROR = None,
    scale: SCALE = None,
    calibrator: Annotated[list[str] | None, typer.Option("--calibrator", "-c", help="Instead of the study's.")] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", "-m", help="Instead of the study's own.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes to share the work; default: one per core.")] = None,
    with_: WITH = None,
) -> None:
    """Calibrate and measure what is stored again, with other calibrators or metrics; nothing is trained."""
    from calibrant.study import measure

    where: dict[str, Any] = {"out": folder, "data": root, "mirror": mirror, "scale": scale, "with_": with_ or ()}
    with _told() as progress:
        found = measure(
            study,
            **where,
            calibrators=calibrator or (),
            metrics=metric or (),
            jobs=jobs,
            progress=progress,
            command=_command(),
        )
    _show(found)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where networks and the report are kept.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Train, calibrate and compare small networks on handwritten digits; about two minutes."""
    from calibrant.study import run

    with _told() as progress:
        found = run("quickstart", out=folder, progress=progress, command=_command())
    _show(found)


def figures(
    what: Annotated[str, typer.Argument(help="focal: the theory of focal loss; or a study: how its networks learned.")],
    folder: Annotated[Path, typer.Option("--output", "-o", help="Where to write SVG, PNG and CSV.")] = Path("figures"),
    out_: OUT = None,
    scale: SCALE = None,
    with_: WITH = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only list the paper's tables and figures, and what makes each.")
    ] = False,
) -> None:
    """Draw the figures of the papers, each with the numbers behind it: of their theory, or of a study that ran."""
    from calibrant.io import writable
    from calibrant.study import draw
    from calibrant.types import InputError

    if list_:
        _list_exhibits(what)
        return

    with out.status("drawing"):
        if what == "focal":
            from calibrant.figures import focal

            writable(folder / "figure.svg")
            paths = focal(folder)
        else:
            paths = draw(what, folder, out=out_, scale=scale, with_=with_ or ())
    if not paths:
        raise InputError(
            f"nothing to draw: no run of study {what!r} is done in {out_ or 'runs'}", code="no_finished_run"
        )
    names = ", ".join(p.name for p in paths if p.suffix == ".svg")
    out.print(visible(f"wrote {len(paths)} files to {folder}: {names}"), markup=False)


def _list_exhibits(study: str) -> None:
    from calibrant.study import Study
    from calibrant.types import InputError

    exhibits = Study.load(study).drawn
    if not exhibits:
        raise InputError(f"study {study!r} does not say what its figures are of", code="no_figures")
    table = Rich(**PLAIN)
    for column in "of the paper", "command", "tables by metric, or files":
        table.add_column(column)
    for one in exhibits:
        table.add_row(*map(markup, (one.place, one.command, ", ".join(one.names))))
    out.print(table)


@contextmanager
def _told() -> Generator[Callable[["Progress"], object]]:
    """Show how far it is: on a terminal a bar, elsewhere a line for every run that ends."""
    columns = TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[more]}")
    with Bar(*columns, console=out, disable=not out.is_terminal, transient=True) as bar:
        task = bar.add_task("starting", total=None, more="")

        def show(step: "Progress") -> None:
            kind = "" if step.event is None else step.event.kind
            if step.note or kind in ("said", "failed"):
                bar.console.print(visible(step.text), markup=False, soft_wrap=True)
                return
            total = step.total or None
            bar.update(task, description=markup(step.text), completed=step.done, total=total, more=markup(step.more))
            if not out.is_terminal and kind == "done":
                print(visible(step.text), flush=True)

        yield show


def _show(found: "Result | Status") -> None:
    from calibrant.study import Result

    if not isinstance(found, Result):
        _show_status(found)
        return
    _show_tables(found)
    if found.report is not None:
        out.print(f"wrote {visible(str(found.report))}", soft_wrap=True, markup=False)
    for line in found.reasons:
        out.print(visible(line), style="red", markup=False, soft_wrap=True)
    if found.failed:
        raise typer.Exit(1)


def _show_tables(found: "Result") -> None:
    wide = out.width >= 112
    for t in found.tables:
        table = Rich(title=markup(t.heading), title_justify="left", title_style="bold", **PLAIN)
        table.add_column(t.side, no_wrap=True)
        for column in t.columns:
            table.add_column(markup(column).replace("(", "\n("), justify="right", no_wrap=True)
        for row in t.rows:
            cells = [t.cells[row, column] for column in t.columns]
            texts = [(c.text(t.about, deviation=wide), c.best) for c in cells]
            table.add_row(markup(t.name(row)), *(f"[bold]{text}[/bold]" if best else text for text, best in texts))
            if printed := t.printed(row, deviation=wide):
                table.add_row("  paper", *printed, style="dim italic")
        out.print(table, *(f"[dim]{markup(note)}[/dim]" for note in t.own_notes), "", sep="\n")
    if found.tables:
        spread = found.spread if wide else found.spread.replace(" ± standard deviation", "")
        out.print(f"[dim]{spread}, temperature in brackets, best in bold[/dim]")
        notes = dict.fromkeys(t.tested for t in found.tables if t.tested)
        out.print(*(f"[dim]{note}[/dim]" for note in notes), "", sep="\n")
        out.print(visible(found.finding, but="\n"), markup=False)


def _show_status(found: "Status") -> None:
    table = Rich(**PLAIN)
    for column in "", "data set", "network", "loss", "seed", "epochs", "seconds", "why":
        table.add_column(column, justify="right" if column in ("seed", "epochs", "seconds") else "left")
    for one in found.runs:
        run, seconds = one.run, "" if math.isnan(one.seconds) else f"{one.seconds:.0f}"
        names, why = map(markup, found.study.names(run)), "" if run in found.absent else markup(one.why)
        table.add_row(one.state, *names, str(run.seed), str(run.recipe.epochs), seconds, why)
    out.print(table)
    for line in (*found.tried, found.rest):
        out.print(visible(line), markup=False, soft_wrap=True)
    if found.absent:
        raise typer.Exit(1)


def _command() -> str:
    return shlex.join(["calibrant", *sys.argv[1:]])
