"""Before and during the training: check the data and methods, time trials, and report progress and remaining time.

`run in store` says whether a run is finished, on data whose digests the store knows. The record of a finished run has
facts about its training, such as its seconds.
"""

import copy
import math
import os
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain
from statistics import fmean

import torch

from calibrant import calibrators, losses
from calibrant._core.grouping import group_pairs
from calibrant._core.registry import Method
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError
from calibrant._core.version import __version__
from calibrant.lab.study.config import Study
from calibrant.lab.study.datasets import DatasetCache
from calibrant.lab.study.engine import Engine, RunEvent, build_network, execute, run_locally
from calibrant.lab.study.grids import Run, error_text, is_user_method
from calibrant.lab.study.store import Store
from calibrant.lab.study.stored_files import minor_version
from calibrant.lab.study.train import per_example_losses, train
from calibrant.predictions import Predictions

EXAMPLES_PER_CLASS = 20  # of the random predictions on which user methods are tried
MIN_TRIAL_BATCH_EXAMPLES = 2  # batch normalization needs two
TRIALS_PER_BATCH_SIZE = 2  # the first batch of a size is slower, as torch chooses algorithms for it
MAX_TRIAL_BATCH_SECONDS = 0.5  # no larger batch is tried after a batch this slow
SEED_CONDITION = re.compile(r"(?:(?P<names>.+), *)?seed[ =](?P<seed>\d+)")


def duration_text(seconds: float) -> str:
    """Return a rounded duration.

    >>> duration_text(80.0), duration_text(600.0), duration_text(18000.0), duration_text(1e6)
    ('about a minute', 'about 10 minutes', 'about 5.0 hours', 'about 12 days')
    """
    minutes = seconds / 60
    if minutes < 1:
        return "less than a minute"
    if minutes < 1.5:
        return "about a minute"
    if minutes <= 90:
        return f"about {minutes:.0f} minutes"
    return f"about {minutes / 60:.1f} hours" if minutes < 100 * 60 else f"about {minutes / 1440:,.0f} days"


def select_runs(study: Study, conditions: str | Sequence[str] | None = ()) -> list[Run]:
    """Return the runs that satisfy all conditions, or all runs without a condition.

    A condition is a text that the data set, the network or the loss contains, as the study spells them; "seed N" or
    "seed=N"; or both, such as "cross_entropy, seed 1", whose names are then whole: as lists of runs print them.

    Raises:
        InputError: If no run satisfies the conditions, or a study without models trained elsewhere has no runs.
    """
    texts = [conditions] if isinstance(conditions, str) else list(conditions or ())
    runs = [run for run in study.runs() if all(_satisfies(study, run, text) for text in texts)]
    if not runs and (texts or not study.models):
        wanted = " and ".join(map(shorten_repr, texts))
        raise InputError(
            f"No run of study {study.name!r} has {wanted} in its data set, network, loss or seed. Try `calibrant study "
            "status` for a list.",
            code="no_matching_run",
        )
    return runs


def _satisfies(study: Study, run: Run, text: str) -> bool:
    """Return whether a run satisfies a condition of `select_runs`."""
    names = study.names(run)
    if (match := SEED_CONDITION.fullmatch(text.strip())) is None:
        return any(text in name for name in names)
    if int(match["seed"]) != run.seed:
        return False
    # Lists print the last names of a run, such as its network and loss
    return match["names"] is None or f", {', '.join(names)}".endswith(f", {match['names']}")


Timing = tuple[Run, float]  # a run, and the seconds of an epoch


def estimate_seconds(timings: Iterable[Timing], epochs: Mapping[Run, int]) -> float:
    """Return the estimated seconds of all runs for their numbers of `epochs`, or nan if runs are left but no timings.

    An epoch takes the mean of the timings with the same data set and network, or else of all timings.
    """
    seconds_by_setup = group_pairs(((run.dataset, run.network), seconds) for run, seconds in timings)
    all_seconds = [*chain.from_iterable(seconds_by_setup.values())] or [math.nan]
    mean_seconds = {run: fmean(seconds_by_setup.get((run.dataset, run.network), all_seconds)) for run in epochs}
    return sum((num_epochs * mean_seconds[run] for run, num_epochs in epochs.items()), 0.0)


# Checks before the training


def check_data(runs: Sequence[Run], store: Store, data: DatasetCache) -> tuple[Store, dict[Run, str]]:
    """Load every data set that unfinished runs need.

    The data sets of finished runs are loaded, too, if they may have changed: in a data folder, or made by a user's
    function.

    Returns:
        The store, which now knows the digests of the loaded data.
        The unfinished runs whose data cannot be loaded, with the reason.

    Raises:
        InputError: If a network does not accept its data.
    """
    has_data_folder = data.root is not None or bool(os.environ.get("CALIBRANT_DATA"))
    missing_runs = dict.fromkeys(run for run in runs if run not in store)
    checked_datasets = dict.fromkeys(
        dataset
        for run in runs
        for dataset in run.required_datasets
        if run in missing_runs or has_data_folder or is_user_method(dataset)
    )
    digests: dict[Method, str] = {}
    reasons: dict[Method, str] = {}  # why data sets cannot be loaded
    for dataset in checked_datasets:
        try:
            digests[dataset] = data.digest(dataset).full_digest
        except Exception as error:  # a user's data set may raise anything
            reasons[dataset] = error_text(error)
            continue
        for network in dict.fromkeys(run.network for run in missing_runs if run.divided_dataset == dataset):
            build_network(data.splits(dataset), network)  # raises if the network does not accept the data
    store = store.with_data(digests)
    runs_without_data = {
        run: next(reasons[dataset] for dataset in run.required_datasets if dataset in reasons)
        for run in runs
        if not reasons.keys().isdisjoint(run.required_datasets) and run not in store
    }
    return store, runs_without_data


def check_versions(runs: Sequence[Run], store: Store) -> None:
    """Raise `InputError` if runs are missing beside runs that another minor version of calibrant trained."""
    finished_runs = [run for run in runs if run in store]
    versions = [training_version(run, store) for run in finished_runs]
    other_versions = [v for v in versions if v and minor_version(v) != minor_version(__version__)]
    if other_versions and len(finished_runs) < len(runs):  # else there is nothing to train
        raise InputError(
            f"Expected finished runs of calibrant {__version__}, got {len(other_versions)} of "
            f"{', '.join(sorted(set(other_versions)))}. Try --mix-versions to train the rest with this version, or "
            "--out to train all in another folder.",
            code="mixed_versions",
        )


def training_version(run: Run, store: Store) -> str:
    """Return the version of calibrant that trained a finished run, or "" if it is unknown."""
    return store.record(run)["facts"].get("versions", {}).get("calibrant", "")


# User methods: losses, calibrators and metrics in files and packages given by --with


def check_user_methods(study: Study, runs: Sequence[Run], data: DatasetCache) -> None:
    """Call user losses, calibrators and metrics on random predictions, as a study does.

    The predictions have as many classes as the data set of the first run.

    Raises:
        InputError: If one of them fails.
    """
    if not any(map(is_user_method, (*(run.loss for run in runs), *study.calibrators, *study.metrics))):
        return  # before any data set is loaded
    k = len(data.splits(runs[0].divided_dataset).classes)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(EXAMPLES_PER_CLASS * k, k, generator=generator)
    labels = logits.softmax(-1).multinomial(1, generator=generator).squeeze(1)
    for loss, epochs in {run.loss: run.recipe.epochs for run in runs if is_user_method(run.loss)}.items():
        with _explain_failure(loss, k):
            loss_copy = copy.deepcopy(loss.bound_function)  # the state of a loss must not reach the training
            # as `train` does: a loss may need the number of epochs and the class counts
            prepared_loss = losses.for_counts(losses.for_epochs(loss_copy, epochs), labels.bincount(minlength=k))
            trained_logits = logits.clone().requires_grad_()  # float32, as in the training
            per_example_losses(prepared_loss, trained_logits, labels).sum().backward()
    p = Predictions(logits.double(), labels)  # float64, as `measure_runs` passes to calibrators and metrics
    for calibrator in filter(is_user_method, study.calibrators):
        with _explain_failure(calibrator, k):
            p.apply(calibrators.fit(calibrator, p))
    for metric in filter(is_user_method, study.metrics):
        with _explain_failure(metric, k):
            float(metric(p))


@contextmanager
def _explain_failure(method: Method, k: int) -> Generator[None]:
    """Turn any error of a user's method, called on random predictions of k classes, into an `InputError`."""
    try:
        yield
    except Exception as error:
        code = error.code if isinstance(error, InputError) else "method_failed"
        raise InputError(
            f"{method} fails on random predictions of {k} classes: {error_text(error)}", code=code
        ) from error


# Precision


def has_fast_bfloat16() -> bool:
    """Return whether the device of the training has bfloat16 units: a GPU that supports it, or AVX-512 or AMX."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.backends.mps.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def plan_lines(runs: Sequence[Run], missing_runs: Sequence[Run]) -> Iterator[str]:
    """Yield what a study is about to train, and whether another precision would be faster."""
    precisions = "/".join(dict.fromkeys(run.recipe.precision for run in missing_runs))
    epochs = sum(run.recipe.epochs for run in missing_runs)
    yield (
        f"to train: {len(missing_runs)} of {len(runs)} runs, {epochs:,} epochs in all, precision {precisions}, "
        f"{torch.get_num_threads()} threads"
    )
    if "bf16" in precisions and not has_fast_bfloat16():
        yield "This processor has no bfloat16 units: float32 is several times faster. Try --precision 32-true."


# Trials before the training


@dataclass(frozen=True)
class Trial:
    """The size of a training, and the speed of this machine."""

    examples: int  # to train on
    parameters: int
    seconds: float  # of an epoch, extrapolated from a batch


def run_trial(run: Run, data: DatasetCache) -> Trial:
    """Time batches of growing size, up to the recipe's batch size or until a batch is slow. Nothing is stored."""
    splits = data.splits(run.divided_dataset)
    network = build_network(splits, run.network)
    # warm-up must be shorter than the one epoch, and the time of compiling must not count
    recipe = replace(run.recipe, epochs=1, warmup=0, compile=False, drop_last=False)
    num_examples = len(splits.train)
    max_batch_size = min(run.recipe.batch_size, num_examples)
    batch_size = min(MIN_TRIAL_BATCH_EXAMPLES, max_batch_size)
    while True:
        # an epoch ends with validation, so the sample has validation examples in the same proportion
        num_val = math.ceil(batch_size * len(splits.val) / num_examples)
        sample = replace(splits, train=splits.train[:batch_size], val=splits.val[:num_val])
        trials = (next(train(network, sample, losses.cross_entropy, recipe)) for _ in range(TRIALS_PER_BATCH_SIZE))
        seconds = min(epoch.seconds for epoch in trials)  # the first is slower
        # a slow first batch alone does not end the trial
        is_slow = seconds > MAX_TRIAL_BATCH_SECONDS and batch_size > MIN_TRIAL_BATCH_EXAMPLES
        if is_slow or batch_size == max_batch_size:
            num_parameters = sum(p.numel() for p in network.parameters())
            return Trial(num_examples, num_parameters, seconds * num_examples / batch_size)
        batch_size = min(4 * batch_size, max_batch_size)


def runs_without_timing(runs: list[Run], store: Store) -> list[Run]:
    """Return the first run of every network and data set without a finished run, whose speed is therefore unknown."""
    runs_by_setup = group_pairs(((run.dataset, run.network), run) for run in runs)
    return [setup_runs[0] for setup_runs in runs_by_setup.values() if not any(run in store for run in setup_runs)]


def seconds_left(runs: list[Run], store: Store, trials: Mapping[Run, Trial]) -> float:
    """Return the estimated seconds of the missing runs, from finished runs and trials, or nan if unknown."""
    epoch_seconds = [(run, trial.seconds) for run, trial in trials.items()]
    epochs_left: dict[Run, int] = {}
    for run in runs:
        if run not in store:
            epochs_left[run] = run.recipe.epochs
        # a run with "network of" did not train: it predicted with the network of another run
        elif "network of" not in (facts := store.record(run)["facts"]):
            num_epochs = facts.get("diverged", run.recipe.epochs)  # the epoch in which it diverged, if it did
            epoch_seconds.append((run, facts["seconds"] / num_epochs))
    return estimate_seconds(epoch_seconds, epochs_left)


# During the training


@dataclass(frozen=True)
class Progress:
    """A step of the work, and how far the work is."""

    text: str
    completed: int = 0  # epochs, including the epochs of finished runs
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
    """Train the runs that the store lacks, and yield the progress after every event, such as the end of an epoch.

    The engine trains the runs, in this process or on a cluster. `on_event` is called with each event other than notes,
    before its progress is yielded. The error of a failed run is written to partial/ID/error.txt.
    """
    epochs_left = {run: run.recipe.epochs for run in runs}  # without runs that have ended
    total_epochs = sum(epochs_left.values())
    timings: list[Timing] = []
    speeds: dict[Run, float] = {}  # images per second, of the runs that are in training
    run_names = {run: study.names(run) for run in runs}
    labels = {run: f"{names.short_text(run_names.values())}, seed {run.seed}" for run, names in run_names.items()}
    for event in engine(partial(execute, store=store, data=data), runs, store):
        run, content, details = event.run, event.content, ""
        if event.kind != "note":
            if on_event is not None:
                on_event(event)
            if event.kind == "epoch":
                epochs_left[run] = run.recipe.epochs - content["epoch"]
                speeds[run] = content["images"] / content["seconds"]
                timings.append((run, content["seconds"]))
            else:  # the run has ended
                epochs_left.pop(run, None)
                speeds.pop(run, None)
            if event.kind == "done":  # meanwhile other processes may have finished others
                epochs_left = {key: n for key, n in epochs_left.items() if key not in store}
            if event.kind == "failed" and run not in store:  # diverged networks are in the store
                (store.partial(run) / "error.txt").write_text(content["error"])
            details = _progress_details(len(runs), epochs_left, speeds, timings)
        completed = total_epochs - sum(epochs_left.values())
        yield Progress(_event_text(labels[run], event), completed, total_epochs, details, event)


def _event_text(label: str, event: RunEvent) -> str:
    """Return an event in one line that names the run by `label`."""
    if event.kind == "epoch":
        return f"{label}, epoch {event.content['epoch']} of {event.run.recipe.epochs}"
    if event.kind == "done":
        return f"done {label}, {event.content['seconds']:.0f} s"
    if event.kind == "note":
        return f"{label}: {event.content['text']}"
    return f"failed {label}: {first_line(event.content['error'])}" if event.kind == "failed" else f"found {label}"


def first_line(error: str) -> str:
    """Return the first line of an error, which holds the reason."""
    return error.strip().partition("\n")[0] or "unknown reason"


def _progress_details(
    num_runs: int, epochs_left: Mapping[Run, int], speeds: Mapping[Run, float], timings: Sequence[Timing]
) -> str:
    """Return the number of runs that have ended, the speed of those that train, and the remaining time.

    `epochs_left` has the runs that have not ended, `speeds` the images per second of those that train, and `timings`
    the seconds of epochs.
    """
    text = f"{num_runs - len(epochs_left)} of {num_runs} runs"
    if not epochs_left or not timings:
        return text
    speed = f", {sum(speeds.values()):,.0f} images/s" if speeds else ""
    seconds = estimate_seconds(timings, epochs_left) / max(1, len(speeds))  # these runs train at the same time
    return f"{text}{speed}, {timedelta(seconds=round(seconds))} left"
