"""Training all that is missing of a study: which runs, how far it is, how long it takes."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import compress
from statistics import mean

from calibrant import losses
from calibrant._text import shorten_repr
from calibrant.lab.study.config import Run, Study
from calibrant.lab.study.engine import DatasetCache, Engine, RunEvent, build_network, execute, run_locally
from calibrant.lab.study.store import Store
from calibrant.registry import Method
from calibrant.types import InputError

MIN_TRIAL_BATCH_EXAMPLES = 2  # examples of a batch: of a single one some networks cannot learn
TRIALS_PER_BATCH_SIZE = 2  # that each is tried
MAX_TRIAL_BATCH_SECONDS = 0.5  # seconds of a batch after which no larger one is tried


def duration_text(seconds: float) -> str:
    """Say how long something takes, as one does.

    >>> duration_text(40.0), duration_text(600.0), duration_text(18000.0), duration_text(1e6)
    ('less than a minute', 'about 10 minutes', 'about 5.0 hours', 'about 12 days')
    """
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    if minutes <= 90:
        return f"about {minutes:.0f} minutes"
    return f"about {minutes / 60:.1f} hours" if minutes < 100 * 60 else f"about {minutes / 1440:,.0f} days"


def select_runs(study: Study, only: str | None = None) -> list[Run]:
    """Return the runs of a study, or those whose data set, network, loss (as the study says it) or seed hold a text.

    Raises `InputError` if none does.
    """
    runs = [run for run in study.runs() if only is None or any(only in part for part in _searchable_texts(study, run))]
    if not runs and (only is not None or not study.models):
        raise InputError(
            f"no run of study {study.name!r} has {shorten_repr(only)} in its data set, network, loss or seed",
            code="no_matching_run",
        )
    return runs


def _searchable_texts(study: Study, run: Run) -> tuple[str, ...]:
    return *study.names(run), f"seed={run.seed}"


class EpochTimes:
    """How long epochs take, from those that are known: of the same network and data set, else of all."""

    def __init__(self) -> None:
        self.seconds_by_network: dict[tuple[Method, Method], list[float]] = {}

    def add(self, run: Run, seconds: float) -> None:
        """Say how long an epoch of a run took."""
        self.seconds_by_network.setdefault((run.dataset, run.network), []).append(seconds)

    def estimate(self, epochs: Mapping[Run, int]) -> float:
        """Return the seconds that so many epochs of these runs take, one after another; nan if nothing is known."""
        all_seconds = [second for seconds in self.seconds_by_network.values() for second in seconds] or [math.nan]
        run_seconds = (
            n * mean(self.seconds_by_network.get((run.dataset, run.network), all_seconds)) for run, n in epochs.items()
        )
        return sum(run_seconds, 0.0)


# Before anything is trained


@dataclass(frozen=True)
class Trial:
    """What a run is about to work on, and how fast this machine is at it."""

    examples: int  # to train on
    parameters: int
    seconds: float  # of an epoch, as a batch says


def run_trial(run: Run, data: DatasetCache) -> Trial:
    """Train on batches that grow to the recipe's own or until one takes a while. Nothing is kept.

    Each size is tried twice, since the first time much is spent on choosing how to compute it, and the smallest tells
    nothing unless there is no other.
    """
    from calibrant.lab.study.train import train as training

    splits = data.splits(run.divided_dataset)
    network = build_network(splits, run.network)
    recipe = replace(run.recipe, epochs=1, warmup=0, compile=False, drop_last=False)
    max_batch, n = min(run.recipe.batch_size, len(splits.train)), MIN_TRIAL_BATCH_EXAMPLES
    while True:
        n = min(n, max_batch)
        val = splits.val[: -(-n * len(splits.val) // len(splits.train))]
        sample = replace(splits, train=splits.train[:n], val=val)
        seconds = min(
            next(training(network, sample, losses.cross_entropy, recipe)).seconds for _ in range(TRIALS_PER_BATCH_SIZE)
        )
        if (seconds > MAX_TRIAL_BATCH_SECONDS and n > MIN_TRIAL_BATCH_EXAMPLES) or n == max_batch:
            parameters = sum(p.numel() for p in network.parameters())
            return Trial(len(splits.train), parameters, seconds * len(splits.train) / n)
        n *= 4


def runs_without_timing(runs: list[Run], store: Store) -> list[Run]:
    """Return a run of every network and data set of which no run is finished."""
    kinds = {(run.dataset, run.network): run for run in reversed(runs)}
    timed_kinds = {(run.dataset, run.network) for run in runs if run in store}
    return [run for kind, run in reversed(kinds.items()) if kind not in timed_kinds]


def seconds_left(runs: list[Run], store: Store, trials: Mapping[Run, Trial]) -> float:
    """Return how long the rest takes if it takes what the finished runs took per epoch; nan if nothing is known.

    What no finished run tells, trials may.
    """
    clock = EpochTimes()
    for run in runs:
        if run in store:
            facts = store.record(run)["facts"]
            if "network of" in facts:  # trained elsewhere
                continue
            clock.add(run, facts["seconds"] / facts.get("diverged", run.recipe.epochs))
    for run, trial in trials.items():
        clock.add(run, trial.seconds)
    return clock.estimate({run: run.recipe.epochs for run in runs if run not in store})


# While it is trained


@dataclass(frozen=True)
class Progress:
    """What is being done, and how far it is."""

    text: str
    done: int = 0  # epochs, those of finished runs included
    total: int = 0
    details: str = ""  # how many runs, how fast, how long it still takes
    event: RunEvent | None = None  # what has just happened
    note: bool = False  # whether it is to be remembered

    def __str__(self) -> str:
        return f"{self.text}, {self.details}" if self.details else self.text


OnEvent = Callable[[RunEvent], object]


def train_all(
    study: Study,
    runs: list[Run],
    store: Store,
    data: DatasetCache,
    engine: Engine = run_locally,
    on_event: OnEvent | None = None,
) -> Iterator[Progress]:
    """Train those of the runs that the store lacks, and tell of every event; `watch` is told before.

    The error of a failed run is in the store, partial/ID/error.txt.
    """
    epochs_left = {run: run.recipe.epochs for run in runs}
    total = sum(epochs_left.values())
    clock, speeds = EpochTimes(), dict[Run, float]()  # images a second of the runs that are trained now
    labels = _run_labels(study, runs)
    for event in engine(partial(execute, store=store, data=data), runs, store):
        run, facts = event.run, event.facts
        if event.kind == "said":
            yield Progress(_event_text(labels[run], event), total - sum(epochs_left.values()), total, event=event)
            continue
        if on_event is not None:
            on_event(event)
        if event.kind == "epoch":
            epochs_left[run] = run.recipe.epochs - facts["epoch"]
            speeds[run] = facts["images"] / facts["seconds"]
            clock.add(run, facts["seconds"])
        else:
            epochs_left.pop(run)
            speeds.pop(run, None)
        if event.kind == "failed" and run not in store:  # a network that diverged is kept
            (store.partial(run) / "error.txt").write_text(facts["error"])
        details = ", ".join(_progress_details(len(runs), epochs_left, speeds, clock))
        yield Progress(_event_text(labels[run], event), total - sum(epochs_left.values()), total, details, event)


def _run_labels(study: Study, runs: Sequence[Run]) -> dict[Run, str]:
    """Name every run by its loss and seed, and by its data set and network where there are several."""
    names = {run: study.names(run) for run in runs}
    has_several = [len(set(parts)) > 1 for parts in list(zip(*names.values(), strict=True))[:2]]
    return {
        run: ", ".join([*compress(parts, [*has_several, True]), f"seed {run.seed}"]) for run, parts in names.items()
    }


def _event_text(label: str, event: RunEvent) -> str:
    if event.kind == "epoch":
        return f"{label}, epoch {event.facts['epoch']} of {event.run.recipe.epochs}"
    if event.kind == "done":
        return f"done {label}, {event.facts['seconds']:.0f} s"
    if event.kind == "said":
        return f"{label}: {event.facts['text']}"
    return f"{event.kind} {label}" + (f": {first_line(event.facts['error'])}" if event.kind == "failed" else "")


def first_line(error: str) -> str:
    """Return the first line of an error, which says why."""
    return error.strip().partition("\n")[0] or "it does not say why"


def _progress_details(
    runs: int, epochs_left: Mapping[Run, int], speeds: Mapping[Run, float], clock: EpochTimes
) -> Iterable[str]:
    yield f"{runs - len(epochs_left)} of {runs} runs"
    if speeds:
        yield f"{sum(speeds.values()):,.0f} images/s"
        yield f"{timedelta(seconds=round(clock.estimate(epochs_left) / len(speeds)))} left"
