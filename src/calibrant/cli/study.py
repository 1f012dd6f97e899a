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

from calibrant._text import escape_invisible, escape_markup

if TYPE_CHECKING:
    from calibrant.lab.study import Progress, Result, Status

study_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Train and compare networks over a grid.")
console = Console(highlight=False, width=None if sys.stdout.isatty() else 400)  # whole lines when piped
BARE_TABLE_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}

StudyArgument = Annotated[str, typer.Argument(help="A study file (.toml), or the name of a bundled one.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="Where runs and the report are kept; default runs/NAME.")]
MirrorOption = Annotated[str | None, typer.Option(help="A URL (s3://, gs://, file://, ...) to share finished runs by.")]
ScaleOption = Annotated[str | None, typer.Option(help="A scale that the study file names, such as small.")]
OnlyOption = Annotated[
    str | None, typer.Option(help="Only runs whose data set, network, loss or seed contains this text.")
]
DATA_HELP = "Folder of local data sets."
WithOption = Annotated[
    list[str] | None, typer.Option("--with", help="A Python file or package of your own methods; it is run.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of studies to an application."""
    app.add_typer(study_app, name="study")
    app.command()(demo)
    app.command()(figures)


@study_app.command("run")
def study_run(
    study: StudyArgument,
    folder: OutOption = None,
    root: Annotated[Path | None, typer.Option("--data", help=DATA_HELP, envvar="CALIBRANT_DATA")] = None,
    mirror: MirrorOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be trained.")] = False,
    engine: Annotated[str, typer.Option(help="Where networks are trained: local (in this process) or ray.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="The Ray cluster; default: RAY_ADDRESS, else one of this machine.")
    ] = None,
    gpus: Annotated[
        float | None, typer.Option(min=0, help="GPUs per network on Ray; with 0.25, four networks share one.")
    ] = None,
    track: Annotated[str | None, typer.Option(help="Follow every epoch in tensorboard, mlflow or wandb.")] = None,
    mix_versions: Annotated[
        bool, typer.Option("--mix-versions", help="Train beside what another version of calibrant has trained.")
    ] = False,
    with_: WithOption = None,
) -> None:
    """Train what is missing of a study, then calibrate, measure and report. Stop and start it as you like."""
    if engine == "ray":  # hide its notices of dead workers: lost runs are reported by the engine itself
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    from calibrant.lab.study import run, status

    locations: dict[str, Any] = {"out": folder, "data": root, "mirror": mirror, "scale": scale, "only": only}
    with _show_progress() as progress:
        if dry_run:
            result = status(study, **locations, with_=with_ or (), estimate=True, progress=progress)
        else:
            address = address or (os.environ.get("RAY_ADDRESS") if engine == "ray" else None)
            engine_options: dict[str, Any] = {"engine": engine, "address": address, "gpus": gpus}
            run_options: dict[str, Any] = {
                "track": track,
                "mix_versions": mix_versions,
                "with_": with_ or (),
                "command": _command_line(),
            }
            result = run(study, **locations, **engine_options, **run_options, progress=progress)
    _print_result(result)


@study_app.command("status")
def study_status(
    study: StudyArgument,
    folder: OutOption = None,
    mirror: MirrorOption = None,
    scale: ScaleOption = None,
    only: OnlyOption = None,
    with_: WithOption = None,
) -> None:
    """List the runs of a study: done, begun, failed or still to train, and the time they take."""
    from calibrant.lab.study import status

    _print_result(status(study, out=folder, mirror=mirror, scale=scale, only=only, with_=with_ or ()))


@study_app.command("measure")
def study_measure(
    study: StudyArgument,
    folder: OutOption = None,
    root: Annotated[Path | None, typer.Option("--data", help=DATA_HELP + " Measure runs on these only.")] = None,
    mirror: MirrorOption = None,
    scale: ScaleOption = None,
    calibrator: Annotated[list[str] | None, typer.Option("--calibrator", "-c", help="Instead of the study's.")] = None,
    metric: Annotated[list[str] | None, typer.Option("--metric", "-m", help="Instead of the study's own.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes to share the work; default: one per core.")] = None,
    with_: WithOption = None,
) -> None:
    """Calibrate and measure what is stored again, with other calibrators or metrics; nothing is trained."""
    from calibrant.lab.study import measure

    locations: dict[str, Any] = {"out": folder, "data": root, "mirror": mirror, "scale": scale, "with_": with_ or ()}
    with _show_progress() as progress:
        result = measure(
            study,
            **locations,
            calibrators=calibrator or (),
            metrics=metric or (),
            jobs=jobs,
            progress=progress,
            command=_command_line(),
        )
    _print_result(result)


def demo(
    folder: Annotated[Path, typer.Option("--out", help="Where networks and the report are kept.")] = Path(
        "runs/quickstart"
    ),
) -> None:
    """Train, calibrate and compare small networks on handwritten digits; about two minutes."""
    from calibrant.lab.study import run

    with _show_progress() as progress:
        result = run("quickstart", out=folder, progress=progress, command=_command_line())
    _print_result(result)


def figures(
    what: Annotated[str, typer.Argument(help="focal: the theory of focal loss; or a study: how its networks learned.")],
    folder: Annotated[Path, typer.Option("--output", "-o", help="Where to write SVG, PNG and CSV.")] = Path("figures"),
    out_: OutOption = None,
    scale: ScaleOption = None,
    with_: WithOption = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Only list the paper's tables and figures, and what makes each.")
    ] = False,
) -> None:
    """Draw the figures of the papers, each with the numbers behind it: of their theory, or of a study that ran."""
    from calibrant.io import ensure_writable
    from calibrant.lab.study import draw
    from calibrant.types import InputError

    if list_:
        _print_exhibits(what)
        return

    with console.status("drawing"):
        if what == "focal":
            from calibrant.lab.figures import draw_focal_theory

            ensure_writable(folder / "figure.svg")
            paths = draw_focal_theory(folder)
        else:
            paths = draw(what, folder, out=out_, scale=scale, with_=with_ or ())
    if not paths:
        raise InputError(
            f"nothing to draw: no run of study {what!r} is done in {out_ or 'runs'}", code="no_finished_run"
        )
    names = ", ".join(p.name for p in paths if p.suffix == ".svg")
    console.print(escape_invisible(f"wrote {len(paths)} files to {folder}: {names}"), markup=False)


def _print_exhibits(study: str) -> None:
    from calibrant.lab.study import Study
    from calibrant.types import InputError

    exhibits = Study.load(study).drawn
    if not exhibits:
        raise InputError(f"study {study!r} does not say what its figures are of", code="no_figures")
    table = Rich(**BARE_TABLE_STYLE)
    for column in "of the paper", "command", "tables by metric, or files":
        table.add_column(column)
    for exhibit in exhibits:
        table.add_row(*map(escape_markup, (exhibit.place, exhibit.command, ", ".join(exhibit.names))))
    console.print(table)


@contextmanager
def _show_progress() -> Generator[Callable[["Progress"], object]]:
    """Show how far it is: on a terminal a bar, elsewhere a line for every run that ends."""
    columns = TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[more]}")
    with Bar(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("starting", total=None, more="")

        def show_step(step: "Progress") -> None:
            kind = "" if step.event is None else step.event.kind
            if step.note or kind in ("said", "failed"):
                bar.console.print(escape_invisible(step.text), markup=False, soft_wrap=True)
                return
            total = step.total or None
            bar.update(
                task,
                description=escape_markup(step.text),
                completed=step.done,
                total=total,
                more=escape_markup(step.details),
            )
            if not console.is_terminal and kind == "done":
                print(escape_invisible(step.text), flush=True)

        yield show_step


def _print_result(result: "Result | Status") -> None:
    from calibrant.lab.study import Result

    if not isinstance(result, Result):
        _print_status(result)
        return
    _print_tables(result)
    if result.report is not None:
        console.print(f"wrote {escape_invisible(str(result.report))}", soft_wrap=True, markup=False)
    for line in result.failure_lines:
        console.print(escape_invisible(line), style="red", markup=False, soft_wrap=True)
    if result.failed:
        raise typer.Exit(1)


def _print_tables(result: "Result") -> None:
    is_wide = console.width >= 112
    for t in result.tables:
        table = Rich(title=escape_markup(t.heading), title_justify="left", title_style="bold", **BARE_TABLE_STYLE)
        table.add_column(t.row_header, no_wrap=True)
        for column in t.columns:
            table.add_column(escape_markup(column).replace("(", "\n("), justify="right", no_wrap=True)
        for row in t.rows:
            cells = [t.cells[row, column] for column in t.columns]
            texts = [(c.text(t.about, deviation=is_wide), c.best) for c in cells]
            table.add_row(
                escape_markup(t.name(row)), *(f"[bold]{text}[/bold]" if best else text for text, best in texts)
            )
            if printed := t.paper_texts(row, deviation=is_wide):
                table.add_row("  paper", *printed, style="dim italic")
        console.print(table, *(f"[dim]{escape_markup(note)}[/dim]" for note in t.table_notes), "", sep="\n")
    if result.tables:
        spread = result.cell_description if is_wide else result.cell_description.replace(" ± standard deviation", "")
        console.print(f"[dim]{spread}, temperature in brackets, best in bold[/dim]")
        notes = dict.fromkeys(t.significance_note for t in result.tables if t.significance_note)
        console.print(*(f"[dim]{note}[/dim]" for note in notes), "", sep="\n")
        console.print(escape_invisible(result.finding, allowed="\n"), markup=False)


def _print_status(status: "Status") -> None:
    table = Rich(**BARE_TABLE_STYLE)
    for column in "", "data set", "network", "loss", "seed", "epochs", "seconds", "why":
        table.add_column(column, justify="right" if column in ("seed", "epochs", "seconds") else "left")
    for run_status in status.runs:
        run, seconds = run_status.run, "" if math.isnan(run_status.seconds) else f"{run_status.seconds:.0f}"
        names, why = (
            map(escape_markup, status.study.names(run)),
            "" if run in status.runs_without_data else escape_markup(run_status.reason),
        )
        table.add_row(run_status.state, *names, str(run.seed), str(run.recipe.epochs), seconds, why)
    console.print(table)
    for line in (*status.trial_lines, status.summary):
        console.print(escape_invisible(line), markup=False, soft_wrap=True)
    if status.runs_without_data:
        raise typer.Exit(1)


def _command_line() -> str:
    return shlex.join(["calibrant", *sys.argv[1:]])
