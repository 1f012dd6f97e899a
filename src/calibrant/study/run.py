"""Train all that is missing of a study, and show how it goes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from calibrant import catalog, losses, networks
from calibrant._types import InputError
from calibrant.study.config import Run, Study
from calibrant.study.engine import Engine, Event, execute, load, local, sizes
from calibrant.study.store import Store

PATIENCE = 2.0  # seconds of a batch after which no second one is waited for


def chosen(study: Study, only: str | None = None) -> list[Run]:
    """Return the runs of a study, or those whose data set, network, loss (as the study says it) or seed hold a text.

    Raises `InputError` if none does.
    """
    runs = [run for run in study.runs() if only is None or any(only in part for part in _words(study, run))]
    if not runs:
        raise InputError(f"no run of study {study.name!r} has {only!r} in its data set, network, loss or seed")
    return runs


class Clock:
    """How long epochs take, from those that are known: of the same network and data set, else of all."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], list[float]] = {}

    def tell(self, run: Run, seconds: float) -> None:
        """Say how long an epoch of a run took."""
        self.known.setdefault((run.dataset, run.network), []).append(seconds)

    def needs(self, epochs: Mapping[Run, int]) -> float:
        """Return the seconds that so many epochs of these runs take, one after another; nan if nothing is known."""
        every = [second for seconds in self.known.values() for second in seconds] or [math.nan]
        return sum(n * mean(self.known.get((run.dataset, run.network), every)) for run, n in epochs.items())


@dataclass(frozen=True)
class Trial:
    """What a run is about to work on, and how fast this machine is at it."""

    examples: int  # to train on
    parameters: int
    seconds: float  # of an epoch, as a batch says


def tried(run: Run, root: Path | None) -> Trial:
    """Train on one batch, twice where the first is quick: it also warms up. Nothing is kept."""
    from calibrant.study.train import train as training

    splits = load(run.dataset, root)
    share = min(1.0, run.recipe.batch_size / len(splits.train))
    train, val = (part[: math.ceil(share * len(part))] for part in (splits.train, splits.val))
    network = catalog.resolve(run.network, networks)(*sizes(splits))
    recipe = replace(run.recipe, epochs=2, warmup=0, compile=False, drop_last=False)
    epochs = training(network, replace(splits, train=train, val=val), losses.cross_entropy, recipe)
    seconds = next(epochs).seconds
    seconds = seconds if seconds > PATIENCE else next(epochs).seconds
    return Trial(len(splits.train), sum(p.numel() for p in network.parameters()), seconds / share)


def remaining(runs: list[Run], store: Store, trials: Mapping[Run, Trial] | None = None) -> str:
    """Say how many runs are left, and how long they take if they take what the finished ones took per epoch.

    What no finished run tells, trials may.
    """
    clock, left = Clock(), {run: run.recipe.epochs for run in runs if run not in store}
    if not left:
        return f"all {len(runs)} runs are done"
    for run in runs:
        if run in store:
            clock.tell(run, store.record(run)["facts"]["seconds"] / run.recipe.epochs)
    for run, trial in (trials or {}).items():
        clock.tell(run, trial.seconds)
    minutes = clock.needs(left) / 60 if clock.known else 0.0
    words = f"about {minutes / 60:.1f} hours" if minutes > 90 else f"about {minutes:.0f} minutes"
    wait = f", {words if minutes >= 1 else 'less than a minute'}" if clock.known else ""
    return f"{len(left)} of {len(runs)} runs to train{wait}{', estimated from single batches' if trials else ''}"


def untimed(runs: list[Run], store: Store) -> list[Run]:
    """Return a run of every network and data set of which no run is finished."""
    kinds = {(run.dataset, run.network): run for run in reversed(runs)}
    known = {(run.dataset, run.network) for run in runs if run in store}
    return [run for kind, run in reversed(kinds.items()) if kind not in known]


def _words(study: Study, run: Run) -> tuple[str, ...]:
    return *study.names(run), f"seed={run.seed}"


def train_all(
    study: Study,
    runs: list[Run],
    store: Store,
    root: Path | None,
    console: Console,
    engine: Engine = local,
    watch: Callable[[Event], object] = id,
) -> dict[Run, str]:
    """Train those of the runs that the store lacks, with one progress bar for all; returns the failed ones.

    On a terminal the bar says what runs and how long is left; elsewhere a line is printed per run. `watch` is told of
    every event.
    """
    failed: dict[Run, str] = {}
    left = {run: run.recipe.epochs for run in runs}
    speeds, clock = dict[Run, float](), Clock()  # images a second of the runs that are trained now
    columns = TextColumn("[bold]{task.description}"), BarColumn(), TextColumn("{task.fields[more]}")
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task("starting", total=sum(left.values()), more="")
        for event in engine(partial(execute, store=store, root=root and root.absolute()), runs, store):
            watch(event)
            run, facts = event.run, event.facts
            what = f"{study.label('losses', run.loss)}, seed {run.seed}"
            if event.kind == "epoch":
                left[run] = run.recipe.epochs - facts["epoch"]
                speeds[run] = facts["images"] / facts["seconds"]
                clock.tell(run, facts["seconds"])
            else:
                left.pop(run)
                speeds.pop(run, None)
                if not console.is_terminal and event.kind != "found":
                    took = f", {facts['seconds']:.0f} s" if event.kind == "done" else ""
                    print(f"{event.kind} {what}{took}", flush=True)
            if event.kind == "failed":
                failed[run] = facts["error"]
                (store.partial(run) / "error.txt").write_text(facts["error"])
            more = [f"{len(runs) - len(left)} of {len(runs)} runs"]
            if speeds:
                wait = timedelta(seconds=round(clock.needs(left) / len(speeds)))
                more += [f"{sum(speeds.values()):,.0f} images/s", f"{wait} left"]
            done = sum(run.recipe.epochs for run in runs) - sum(left.values())
            name = f"{what}, epoch {run.recipe.epochs - left.get(run, 0)} of {run.recipe.epochs}"
            progress.update(task, description=name, completed=done, more=", ".join(more))
    return failed
