"""Before and during the training: check the data and methods, time trials, and report progress and remaining time."""

import copy
import math
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import compress
from statistics import fmean

import torch

from calibrant import __version__, calibrators, losses
from calibrant._grouping import group_pairs
from calibrant._text import shorten_repr
from calibrant.lab.study.config import Study
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import Engine, RunEvent, build_network, execute, run_locally
from calibrant.lab.study.grids import Run, error_text
from calibrant.lab.study.store import Store
from calibrant.lab.study.stored_files import minor_version
from calibrant.lab.study.train import per_example_losses, train
from calibrant.predictions import Predictions
from calibrant.registry import Method
from calibrant.types import InputError

EXAMPLES_PER_CLASS = 20  # of the random predictions that the user's methods are tried on
MIN_TRIAL_BATCH_EXAMPLES = 2  # batch normalization needs two
TRIALS_PER_BATCH_SIZE = 2  # the first batch of a size also pays for choosing algorithms
MAX_TRIAL_BATCH_SECONDS = 0.5  # no larger batch is tried after a batch this slow


def duration_text(seconds: float) -> str:
    """Return a rounded duration.

    >>> duration_text(40.0), duration_text(600.0), duration_text(18000.0), duration_text(1e6)
    ('less than a minute', 'about 10 minutes', 'about 5.0 hours', 'about 12 days')
    """
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    if minutes <= 90:
        return f"about {minutes:.0f} minutes"
    return f"about {minutes / 60:.1f} hours" if minutes < 100 * 60 else f"about {minutes / 1440:,.0f} days"


def select_runs(study: Study, text: str | None = None) -> list[Run]:
    """Return the runs whose data set, network, loss (as the study spells them) or "seed=N" contain a text.

    Raises:
        InputError: If there is none.
    """
    runs = [
        run
        for run in study.runs()
        if text is None or any(text in part for part in (*study.names(run), f"seed={run.seed}"))
    ]
    if not runs and (text is not None or not study.models):
        raise InputError(
            f"No run of study {study.name!r} has {shorten_repr(text)} in its data set, network, loss or seed.",
            code="no_matching_run",
        )
    return runs


Timing = tuple[Run, float]  # seconds of an epoch of a run


def estimate_seconds(timings: Iterable[Timing], epochs: Mapping[Run, int]) -> float:
    """Return the seconds for these numbers of epochs; unknown networks take the mean of all, nan without any."""
    seconds_by_network = group_pairs(((run.dataset, run.network), seconds) for run, seconds in timings)
    all_seconds = [second for seconds in seconds_by_network.values() for second in seconds] or [math.nan]
    return sum((n * fmean(seconds_by_network.get((r.dataset, r.network), all_seconds)) for r, n in epochs.items()), 0.0)


# Checks before the training


@dataclass(frozen=True)
class Preflight:
    """The runs that can be trained or are finished, why the others cannot, and the digests of the data at hand."""

    runs: Sequence[Run]
    runs_without_data: Mapping[Run, str]
    digests: Mapping[Method, str]


def check_data(runs: Sequence[Run], store: Store, data: DatasetCache) -> Preflight:
    """Load every data set that unfinished runs need, and report those that are missing.

    If a data folder is set, the data sets of finished runs are loaded, too, as they may have changed.

    Raises:
        InputError: If a network does not accept its data.
    """
    digests, reasons = dict[Method, str](), dict[Method, str]()
    for method, networks in _datasets_to_check(runs, store, data).items():
        try:
            digests[method] = data.digest(method).full_digest
        except Exception as error:  # a user's data set may raise anything
            reasons[method] = error_text(error)
            continue
        for network in networks:
            build_network(data.splits(method), network)
    store = store.with_data(digests)
    runs_without_data = {
        run: reasons[missing[0]]
        for run in runs
        if run not in store and (missing := [method for method in run.required_datasets if method in reasons])
    }
    return Preflight([run for run in runs if run not in runs_without_data], runs_without_data, digests)


def _datasets_to_check(runs: Iterable[Run], store: Store, data: DatasetCache) -> dict[Method, list[Method]]:
    """Return the data sets to load, and the networks to train on each."""
    has_data_folder = data.root is not None or bool(os.environ.get("CALIBRANT_DATA"))
    networks_by_dataset: dict[Method, list[Method]] = {}
    for run in runs:
        missing = run not in store
        for method in run.required_datasets:
            if missing or has_data_folder or not method.target.__module__.startswith("calibrant."):
                networks_by_dataset.setdefault(method, [])
        if missing and run.network not in networks_by_dataset[run.divided_dataset]:
            networks_by_dataset[run.divided_dataset].append(run.network)
    return networks_by_dataset


def check_versions(runs: Iterable[Run], store: Store) -> None:
    """Raise `InputError` if runs are missing beside runs that another minor version of calibrant trained."""
    runs = list(runs)
    finished_runs = [run for run in runs if run in store]
    versions = [training_version(run, store) for run in finished_runs]
    other_versions = [v for v in versions if v and minor_version(v) != minor_version(__version__)]
    if other_versions and len(finished_runs) < len(runs):
        raise InputError(
            f"Expected finished runs of calibrant {__version__}, got {len(other_versions)} of "
            f"{', '.join(sorted(set(other_versions)))}. Try --mix-versions to train the rest with this version, or "
            "--out to train all in another folder.",
            code="mixed_versions",
        )


def training_version(run: Run, store: Store) -> str:
    """Return the version of calibrant that trained a finished run, or "" if it is unknown."""
    return store.record(run)["facts"].get("versions", {}).get("calibrant", "")


# The user's own methods


def user_methods(study: Study, runs: Iterable[Run]) -> set[Method]:
    """Return the losses, calibrators and metrics that are defined outside this package."""
    methods = {*(run.loss for run in runs), *study.calibrators, *study.metrics}
    return {method for method in methods if not method.target.__module__.startswith("calibrant.")}


def check_user_methods(study: Study, runs: Sequence[Run], k: int) -> None:
    """Call the user's losses, calibrators and metrics on random predictions of `k` classes.

    Raises:
        InputError: If one of them fails.
    """
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(EXAMPLES_PER_CLASS * k, k, generator=g)
    p = Predictions(logits, logits.softmax(-1).multinomial(1, generator=g).squeeze(1))
    checked = user_methods(study, runs)
    for loss, epochs in {run.loss: run.recipe.epochs for run in runs if run.loss in checked}.items():
        with _explain_failure(loss, k):
            epoch_loss = losses.for_epochs(copy.deepcopy(loss.bound_function), epochs)
            counted_loss = losses.for_counts(epoch_loss, p.labels.bincount(minlength=k))
            per_example_losses(counted_loss, p.logits.clone().requires_grad_(), p.labels).sum().backward()
    p = p.double()
    for calibrator in filter(checked.__contains__, study.calibrators):
        with _explain_failure(calibrator, k):
            p.apply(calibrators.fit(calibrator, p))
    for metric in filter(checked.__contains__, study.metrics):
        with _explain_failure(metric, k):
            float(metric(p))


@contextmanager
def _explain_failure(method: Method, k: int) -> Generator[None]:
    try:
        yield
    except Exception as error:
        code = error.code if isinstance(error, InputError) else "method_failed"
        raise InputError(
            f"{method} fails on random predictions of {k} classes: {error_text(error)}", code=code
        ) from error


# Trials before the training


@dataclass(frozen=True)
class Trial:
    """The size of a training, and the speed of this machine."""

    examples: int  # to train on
    parameters: int
    seconds: float  # of an epoch, extrapolated from a batch


def run_trial(run: Run, data: DatasetCache) -> Trial:
    """Time batches of growing size, up to the recipe's or until a batch is slow. Nothing is stored."""
    splits = data.splits(run.divided_dataset)
    network = build_network(splits, run.network)
    recipe = replace(run.recipe, epochs=1, warmup=0, compile=False, drop_last=False)
    max_batch, n = min(run.recipe.batch_size, len(splits.train)), MIN_TRIAL_BATCH_EXAMPLES
    while True:
        n = min(n, max_batch)
        val = splits.val[: -(-n * len(splits.val) // len(splits.train))]
        sample = replace(splits, train=splits.train[:n], val=val)
        seconds = min(
            next(train(network, sample, losses.cross_entropy, recipe)).seconds for _ in range(TRIALS_PER_BATCH_SIZE)
        )
        if (seconds > MAX_TRIAL_BATCH_SECONDS and n > MIN_TRIAL_BATCH_EXAMPLES) or n == max_batch:
            parameters = sum(p.numel() for p in network.parameters())
            return Trial(len(splits.train), parameters, seconds * len(splits.train) / n)
        n *= 4


def runs_without_timing(runs: list[Run], store: Store) -> list[Run]:
    """Return the first run of every network and data set without a finished run."""
    kinds = {(run.dataset, run.network): run for run in reversed(runs)}
    timed_kinds = {(run.dataset, run.network) for run in runs if run in store}
    return [run for kind, run in reversed(kinds.items()) if kind not in timed_kinds]


def seconds_left(runs: list[Run], store: Store, trials: Mapping[Run, Trial]) -> float:
    """Return the estimated seconds of the missing runs, from finished runs and trials; nan if nothing is known."""
    facts_by_run = {run: store.record(run)["facts"] for run in runs if run in store}
    timings = [
        (run, facts["seconds"] / facts.get("diverged", run.recipe.epochs))
        for run, facts in facts_by_run.items()
        if "network of" not in facts  # such a run was not trained, but predicted with the network of another one
    ]
    timings += [(run, trial.seconds) for run, trial in trials.items()]
    return estimate_seconds(timings, {run: run.recipe.epochs for run in runs if run not in facts_by_run})


# During the training


@dataclass(frozen=True)
class Progress:
    """A step of the work, and how far it is."""

    text: str
    completed: int = 0  # epochs, including those of finished runs
    total: int = 0  # epochs
    details: str = ""  # finished runs, speed and remaining time
    event: RunEvent | None = None
    note: bool = False  # whether the text should stay visible

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
    """Train the runs that the store lacks, and yield the progress after every event.

    `on_event` is called with each event first. The error of a failed run is written to partial/ID/error.txt.
    """
    epochs_left = {run: run.recipe.epochs for run in runs}
    total = sum(epochs_left.values())
    timings, speeds = list[Timing](), dict[Run, float]()  # images per second of the runs in training
    labels = _run_labels(study, runs)
    for event in engine(partial(execute, store=store, data=data), runs, store):
        run, facts, details = event.run, event.facts, ""
        if event.kind != "note":
            if on_event is not None:
                on_event(event)
            if event.kind == "epoch":
                epochs_left[run] = run.recipe.epochs - facts["epoch"]
                speeds[run] = facts["images"] / facts["seconds"]
                timings.append((run, facts["seconds"]))
            else:
                epochs_left.pop(run)
                speeds.pop(run, None)
            if event.kind == "failed" and run not in store:  # diverged networks are in the store
                (store.partial(run) / "error.txt").write_text(facts["error"])
            details = ", ".join(_progress_details(len(runs), epochs_left, speeds, timings))
        yield Progress(_event_text(labels[run], event), total - sum(epochs_left.values()), total, details, event)


def _run_labels(study: Study, runs: Sequence[Run]) -> dict[Run, str]:
    """Name every run by its loss and seed, and by its data set and network if there are several."""
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
    if event.kind == "note":
        return f"{label}: {event.facts['text']}"
    return f"{event.kind} {label}" + (f": {first_line(event.facts['error'])}" if event.kind == "failed" else "")


def first_line(error: str) -> str:
    """Return the first line of an error, which holds the reason."""
    return error.strip().partition("\n")[0] or "unknown reason"


def _progress_details(
    runs: int, epochs_left: Mapping[Run, int], speeds: Mapping[Run, float], timings: Iterable[Timing]
) -> Iterable[str]:
    yield f"{runs - len(epochs_left)} of {runs} runs"
    if speeds:
        yield f"{sum(speeds.values()):,.0f} images/s"
        yield f"{timedelta(seconds=round(estimate_seconds(timings, epochs_left) / len(speeds)))} left"
