"""Train all that is missing of a study, and show how it goes."""

from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from calibrant.study.config import Run, Study
from calibrant.study.engine import Engine, execute, local
from calibrant.study.store import Store


def train_all(
    study: Study, store: Store, root: Path | None, console: Console, engine: Engine = local
) -> dict[Run, str]:
    """Train every run that the store lacks, with one progress bar for the whole grid; returns the failed ones.

    On a terminal the bar says what runs and how long is left; elsewhere a line is printed per run.
    """
    runs = list(study.runs())
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
            progress.update(task, completed=finished)
            if not console.is_terminal and event.kind != "found":
                print(f"{event.kind} {what}" + (f", {event.facts['seconds']:.0f} s" if event.kind == "done" else ""))
    return failed
