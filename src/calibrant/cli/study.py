"""The commands `study`, `demo` and `figures`: train and compare networks, and draw figures."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from typer import Argument, Exit, Option, Typer

from calibrant._core.errors import InputError
from calibrant._core.text import escape_invisible, escape_markup
from calibrant.cli._common import (
    WITH_OPTION,
    bare_table,
    command_line,
    console,
    print_line,
    print_text,
)

if TYPE_CHECKING:
    from calibrant.lab.study import Progress, Result, Status

study_app = Typer(no_args_is_help=True, rich_markup_mode=None, help="Train and compare networks over a grid.")

STUDY_ARGUMENT = Argument(..., metavar="STUDY", help="Study file (.toml), or name of a bundled study.")
OUT_OPTION = Option(None, "--out", metavar="FOLDER", help="Folder of runs and the report. Default: runs/STUDY.")
SCALE_OPTION = Option(
    None, metavar="NAME", help="Scale of the study file, such as small, or gpu. Default: the whole study."
)
PRECISION_OPTION = Option(
    None, metavar="NAME", help="Precision of the training, such as bf16-mixed. Default: that of the study."
)
ONLY_OPTION = Option(
    None,
    "--only",
    metavar="TEXT",
    help="Only runs with this text in the data set, network, loss or seed, or a run as listed. Repeatable: all must "
    "hold. Default: all runs.",
)


@study_app.command("run")
def study_run(
    study: str = STUDY_ARGUMENT,
    folder: Path | None = OUT_OPTION,
    root: Path | None = Option(
        None, "--data", metavar="FOLDER", help="Folder of local data sets. Default: none.", envvar="CALIBRANT_DATA"
    ),
    scale: str | None = SCALE_OPTION,
    precision: str | None = PRECISION_OPTION,
    select: list[str] | None = ONLY_OPTION,
    dry_run: bool = Option(False, "--dry-run", help="Only list what would be trained."),
    engine: str = Option("local", metavar="NAME", help="Where to train: local (in this process) or ray."),
    address: str | None = Option(
        None,
        metavar="HOST:PORT",
        help="Address of the Ray cluster. Default: RAY_ADDRESS, or a new cluster on this machine.",
    ),
    gpus: float | None = Option(
        None, min=0, metavar="N", help="GPUs per network on Ray; four networks share one with 0.25. Default: 1 if any."
    ),
    track: str | None = Option(
        None, metavar="NAME", help="Log every epoch to tensorboard, mlflow or wandb. Default: none."
    ),
    mix_versions: bool = Option(False, "--mix-versions", help="Add runs to those of another version of calibrant."),
    with_: list[str] | None = WITH_OPTION,
) -> None:
    """Train the missing runs of a study, then calibrate, measure and report.

    You can stop it at any time, and start it again to continue.
    """
    if engine == "ray":  # hide its notices of dead workers: the engine reports lost runs itself
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".*")
    from calibrant.lab.study import run, status

    selection: dict[str, Any] = {"out": folder, "data": root, "scale": scale, "precision": precision}
    selection |= {"select": select or (), "with_": with_ or ()}
    with _show_progress() as progress:
        if dry_run:
            result = status(study, **selection, estimate=True, progress=progress)
        else:
            result = run(
                study,
                **selection,
                engine=engine,
                address=address or (os.environ.get("RAY_ADDRESS") if engine == "ray" else None),
                gpus=gpus,
                track=track,
                mix_versions=mix_versions,
                command=command_line(),
                progress=progress,
            )
    _print_result(result)


@study_app.command("status")
def study_status(
    study: str = STUDY_ARGUMENT,
    folder: Path | None = OUT_OPTION,
    scale: str | None = SCALE_OPTION,
    precision: str | None = PRECISION_OPTION,
    select: list[str] | None = ONLY_OPTION,
    with_: list[str] | None = WITH_OPTION,
) -> None:
    """List the runs of a study: finished, started, failed or missing, and the time they take."""
    from calibrant.lab.study import status

    selection: dict[str, Any] = {"out": folder, "scale": scale, "precision": precision}
    _print_result(status(study, **selection, select=select or (), with_=with_ or ()))


@study_app.command("table")
def study_table(
    study: str = STUDY_ARGUMENT,
    source: str = Argument(..., metavar="TABLE", help='Table of the paper, such as "Table 2".'),
    folder: Path | None = OUT_OPTION,
    scale: str | None = SCALE_OPTION,
    precision: str | None = PRECISION_OPTION,
    with_: list[str] | None = WITH_OPTION,
) -> None:
    """Print one table of a study's paper, with the values of the finished runs beside the printed ones."""
    from calibrant.lab.study import table

    result = table(study, source, out=folder, scale=scale, precision=precision, with_=with_ or ())
    console.print(result)


@study_app.command("measure")
def study_measure(
    study: str = STUDY_ARGUMENT,
    folder: Path | None = OUT_OPTION,
    root: Path | None = Option(
        None, "--data", metavar="FOLDER", help="Measure on the data sets in this folder only. Default: all."
    ),
    scale: str | None = SCALE_OPTION,
    precision: str | None = PRECISION_OPTION,
    calibrator: list[str] | None = Option(
        None, "--calibrator", "-c", metavar="NAME", help="Calibrator. Repeatable. Default: those of the study."
    ),
    metric: list[str] | None = Option(
        None, "--metric", "-m", metavar="NAME", help="Metric. Repeatable. Default: those of the study."
    ),
    jobs: int | None = Option(None, min=1, metavar="N", help="Number of processes. Default: one per core."),
    with_: list[str] | None = WITH_OPTION,
) -> None:
    """Calibrate and measure the finished runs again, without training."""
    from calibrant.lab.study import measure

    selection: dict[str, Any] = {"out": folder, "data": root, "scale": scale, "precision": precision}
    with _show_progress() as progress:
        result = measure(
            study,
            **selection,
            calibrators=calibrator or (),
            metrics=metric or (),
            jobs=jobs,
            with_=with_ or (),
            progress=progress,
            command=command_line(),
        )
    _print_result(result)


def demo(
    folder: Path = Option(
        Path("runs/quickstart"), "--out", metavar="FOLDER", help="Folder of networks and the report."
    ),
) -> None:
    """Train and compare small networks on handwritten digits, in about two minutes."""
    from calibrant.lab.study import run

    with _show_progress() as progress:
        result = run("quickstart", out=folder, progress=progress, command=command_line())
    _print_result(result, with_tables=False)


def figures(
    topic: str = Argument(
        ..., metavar="TOPIC", help='"focal" for the theory of focal loss, or a study for its networks.'
    ),
    folder: Path = Option(
        Path("figures"), "--output", "-o", metavar="FOLDER", help="Folder to write SVG, PNG and CSV files to."
    ),
    out_: Path | None = OUT_OPTION,
    scale: str | None = SCALE_OPTION,
    precision: str | None = PRECISION_OPTION,
    with_: list[str] | None = WITH_OPTION,
    list_: bool = Option(
        False, "--list", help="Only list the tables and figures of the paper, and the commands for them."
    ),
) -> None:
    """Draw the figures of a paper, each with its numbers as CSV."""
    from calibrant._core.files import ensure_writable
    from calibrant.lab.study import draw

    if topic == "focal" and (scale or precision):
        raise InputError("Expected a study with --scale or --precision, got focal, which trains none.", code="scale")
    if list_:
        _print_exhibits(topic, scale)
        return
    with console.status("drawing"):
        if topic == "focal":
            from calibrant.lab.figures import draw_focal_theory

            ensure_writable(folder / "figure.svg")
            paths = draw_focal_theory(folder)
        else:
            paths = draw(topic, folder, out=out_, scale=scale, precision=precision, with_=with_ or ())
    if not paths:
        raise InputError(
            f"Expected a finished run of study {topic!r} in {out_ or 'runs'}, got none. Try `calibrant study run` "
            "first.",
            code="no_finished_run",
        )
    names = ", ".join(p.name for p in paths if p.suffix == ".svg")
    print_line(f"wrote {len(paths)} files to {folder}: {names}")


def _print_exhibits(study: str, scale: str | None) -> None:
    """Print the tables and figures of the paper that a study repeats, and the commands for them."""
    from calibrant.lab.study import Study

    exhibits = Study.load(study, scale).drawn
    if not exhibits:
        at_scale = f" at scale {scale!r}" if scale else ""
        raise InputError(f"Expected a study with a list of figures, got {study!r}{at_scale}.", code="no_figures")
    rows = [(exhibit.title, exhibit.command, ", ".join(exhibit.names)) for exhibit in exhibits]
    console.print(bare_table(("in the paper", "command", "tables by metric, or files"), rows, num_text_columns=3))


@contextmanager
def _show_progress() -> Generator[Callable[["Progress"], object]]:
    """Yield a function that shows a step: in a bar on a terminal, with lines for notes and failures, or as lines."""
    if not console.is_terminal:
        from calibrant.lab.study.progress_lines import ProgressLines

        yield ProgressLines(partial(print, flush=True))
        return
    columns = TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[details]}")
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None, details="")

        def show_step(step: "Progress") -> None:
            """Print a note or failure as a line; show any other step in the bar."""
            if step.note or (step.event is not None and step.event.kind in ("note", "failed")):
                bar.console.print(escape_invisible(step.text), markup=False, soft_wrap=True)
                return
            bar.update(
                task,
                description=escape_markup(step.text),
                completed=step.completed,
                total=step.total or None,  # None: unknown, a bar that only moves
                details=escape_markup(step.details),
            )

        yield show_step


def _print_result(result: "Result | Status", *, with_tables: bool = True) -> None:
    """Print a status, or the answers, the tables, the path of the report and the failures of a result.

    Exit with status 1 if a run of the status lacks data, or a run of the result failed.
    """
    from calibrant.lab.study import Result
    from calibrant.reports.text import render_text

    if not isinstance(result, Result):
        print_text(str(result))
        if result.runs_without_data:
            raise Exit(1)
        return
    if with_tables:
        console.print(result)
    else:
        print_text(render_text(replace(result.document(), sections=())))
    if result.report is not None:
        print_line(f"wrote {result.report}")
    if result.failed:
        raise Exit(1)
