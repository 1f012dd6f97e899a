"""Train all that is missing of a study, and show how it goes."""

from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant._types import InputError
from calibrant.study.config import Run, Study
from calibrant.study.engine import Engine, execute, local
from calibrant.study.store import Store


def chosen(study: Study, only: str | None = None) -> list[Run]:
    """Return the runs of a study, or those whose data set, network, loss (as the study says it) or seed hold a text.

    Raises `InputError` if none does.
    """
    runs = [run for run in study.runs() if only is None or any(only in part for part in _words(study, run))]
    if not runs:
        raise InputError(f"no run of study {study.name!r} has {only!r} in its data set, network, loss or seed")
    return runs


def remaining(runs: list[Run], store: Store) -> str:
    """Say how many runs are left, and how long they take if they take what the finished ones took per epoch."""
    done = [run for run in runs if run in store]
    left = [run for run in runs if run not in store]
    if not left:
        return f"all {len(runs)} runs are done"
    seconds = sum(store.record(run)["facts"]["seconds"] for run in done)
    epochs = sum(run.recipe.epochs for run in done)
    wait = f", about {seconds / epochs * sum(run.recipe.epochs for run in left) / 60:.0f} minutes" if done else ""
    return f"{len(left)} of {len(runs)} runs to train{wait}"


def _words(study: Study, run: Run) -> tuple[str, ...]:
    loss = study.label("losses", run.loss)
    return study.label("datasets", run.dataset), study.label("networks", run.network), loss, f"seed={run.seed}"


def train_all(
    study: Study, runs: list[Run], store: Store, root: Path | None, console: Console, engine: Engine = local
) -> dict[Run, str]:
    """Train those of the runs that the store lacks, with one progress bar for all; returns the failed ones.

    On a terminal the bar says what runs and how long is left; elsewhere a line is printed per run.
    """
    failed: dict[Run, str] = {}
    with Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs,"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
        console=console,
        disable=not console.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task("starting", total=sum(run.recipe.epochs for run in runs))
        finished = 0.0
        for event in engine(partial(execute, store=store, root=root), runs, store):
            what = f"{study.label('losses', event.run.loss)}, seed {event.run.seed}"
            if event.kind == "epoch":
                progress.update(task, description=what, completed=finished + event.facts["epoch"])
                continue
            finished += event.run.recipe.epochs
            if event.kind == "found":  # done before: no epochs to estimate the time from
                finished -= event.run.recipe.epochs
                progress.update(task, total=(progress.tasks[task].total or 0) - event.run.recipe.epochs)
            elif event.kind == "failed":
                failed[event.run] = event.facts["error"]
                (store.partial(event.run) / "error.txt").write_text(event.facts["error"])
            progress.update(task, completed=finished)
            if not console.is_terminal and event.kind != "found":
                print(f"{event.kind} {what}" + (f", {event.facts['seconds']:.0f} s" if event.kind == "done" else ""))
    return failed
