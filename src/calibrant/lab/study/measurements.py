"""Fit calibrators on stored validation predictions, and measure them on test predictions.

A method's `text` is its spelling in the study, such as "ece(bins=10)"; `label` and `names` of a study return names for
tables. The events of predictions are, by default, whether the most probable class is correct, with their confidences.
"""

import math
import os
import pickle
import signal
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from statistics import mean, stdev
from typing import Any

import numpy as np

from calibrant import calibrators, metrics
from calibrant._core import registry
from calibrant._core.grouping import group_pairs
from calibrant._core.kernels.bins import Bins, Events
from calibrant._core.kernels.threads import thread_limit
from calibrant._core.registry import Method
from calibrant._core.types import InputError
from calibrant.lab.study.config import Study
from calibrant.lab.study.grids import Methods, Model, Run, RunNames, error_text, is_corruption
from calibrant.lab.study.store import Store
from calibrant.lab.study.tables import PARAMETER_PREFIX
from calibrant.metrics.ood import Detection
from calibrant.predictions import Predictions

MIN_PARALLEL_SECONDS = 10.0  # less remaining work is not worth starting processes
MACHINE_FAILURES = (MemoryError, OSError)  # abort a study; after other errors only one method has no values
FIGURE_BINS = 15  # of reliability diagrams
ResultRow = dict[str, Any]


@dataclass(frozen=True, eq=False)
class RunMeasurement:
    """Measurements of one run or model: a row for each calibrator, shift and metric.

    Columns of the rows: run, dataset, network, loss, seed, diverged (epoch of the divergence, 0 if there was none),
    calibrator, temperature (nan without one), shift (of the test set, "" for none), metric, value, reason (why the
    value is nan: the calibrator or metric does not apply to these data), floor (the noise floor of a calibration error:
    its mean for a calibrated model with the same confidences; nan for other metrics), and learned_NAME for each fitted
    parameter of the calibrator other than the temperature. Corrupted test sets are measured by the study's metrics.
    Every shift is also measured by how well each of the study's detection scores tells it from the test set.
    """

    run: Run | Model
    rows: list[ResultRow]
    events: Mapping[str, Events]  # on the test set, by calibrator: "" for none; without `Identity` and failed ones


def primary_calibrator(study: Study) -> Method:
    """Return the calibrator of the main figures: the first temperature, else the last calibrator."""
    return next((c for c in study.calibrators if c.name == "Temperature"), study.calibrators[-1])


def measure_runs(study: Study, store: Store, jobs: int = 1) -> Iterator[RunMeasurement]:
    """Measure the external models of a study, then its finished runs.

    If more than `MIN_PARALLEL_SECONDS` of work remain after a run, `jobs` processes measure the other runs, with the
    same rows in the same order.
    """
    for model in study.models:
        val, test = model.predictions()
        yield _measure_predictions(study, model, val=val.double(), test=test.double(), shifts={})
    runs = [run for run in study.runs() if store.state(run) == "done"]
    start_time = time.monotonic()
    for num_measured, run in enumerate(runs, 1):
        yield _measure_run(study, store, run)
        seconds_per_run = (time.monotonic() - start_time) / num_measured  # the caller's work between runs counts, too
        if jobs > 1 and seconds_per_run * (len(runs) - num_measured) > MIN_PARALLEL_SECONDS:
            yield from _measure_in_processes(study, store, runs[num_measured:], jobs)
            return


def diverged_rows(study: Study, store: Store, run: Run) -> Iterator[ResultRow]:
    """Yield the rows of a network that diverged, with values of nan."""
    columns = _run_columns(study, run) | {"diverged": store.record(run)["facts"]["diverged"]}
    for calibrator in study.calibrators:
        yield from _empty_rows(
            study, run, columns | {"calibrator": calibrator.text, "temperature": math.nan, "reason": ""}
        )


def _empty_rows(study: Study, run: Run | Model, columns: ResultRow) -> Iterator[ResultRow]:
    """Yield a row with the value nan for every shift and metric of a run, to which the given `columns` are added."""
    detection_names = [_detection_name(field.name, score) for score in study.detection for field in fields(Detection)]
    metric_names = [metric.text for metric in study.metrics]
    names_by_shift = {"": metric_names}
    for shift in run.shifts if isinstance(run, Run) else ():
        # the labels of other data sets have no meaning for this network: they are only to be detected
        names_by_shift[study.label(shift)] = (metric_names if is_corruption(shift) else []) + detection_names
    for label, names in names_by_shift.items():
        yield from (columns | {"shift": label, "metric": name, "value": math.nan, "floor": math.nan} for name in names)


def _detection_name(statistic: str, score: Method) -> str:
    """Return the name in tables of a statistic of `Detection` for a score."""
    return f"ood_{statistic}({score})"


def _run_columns(study: Study, run: Run | Model) -> ResultRow:
    """Return the columns that all rows of a run share, for a network that did not diverge."""
    return {"run": run.id, **study.names(run)._asdict(), "seed": run.seed, "diverged": 0}


# Processes


def _measure_in_processes(study: Study, store: Store, runs: Sequence[Run], jobs: int) -> Iterator[RunMeasurement]:
    """Measure runs in up to `jobs` new processes, and yield the results in order. A failure cancels the rest.

    Raises `InputError` if a process was killed.
    """
    # pickled here, because a worker can unpickle a study only after `_init_worker` has imported its methods
    pickled_arguments = [pickle.dumps((study, store, run)) for run in runs]
    pool = ProcessPoolExecutor(
        min(jobs, len(runs)),
        mp_context=get_context("spawn"),  # a forked copy of a process with torch's threads may hang
        initializer=_init_worker,
        initargs=(list(registry.INCLUDED_SOURCES),),
    )
    with _child_environment(), pool:

        def cancel_after_failure(ended: Future[bytes]) -> None:
            """Cancel the runs that have not started if this one failed."""
            failure = None if ended.cancelled() else ended.exception()
            # a broken pool, whose process was killed, ends all futures by itself
            if failure is not None and not isinstance(failure, BrokenProcessPool):
                pool.shutdown(wait=False, cancel_futures=True)

        futures = [pool.submit(_measure_pickled, pickled) for pickled in pickled_arguments]
        for future in futures:
            future.add_done_callback(cancel_after_failure)
        try:
            while futures:
                yield pickle.loads(futures.pop(0).result())  # popping frees the memory of consumed results
        except BrokenProcessPool:
            raise InputError(
                "A measuring process was killed, perhaps for lack of memory. Try fewer --jobs.", code="process_killed"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _init_worker(sources: list[str]) -> None:
    """Import the files and packages given by --with, whose methods a process needs to unpickle a study."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the main process handles Ctrl-C
    registry.include(sources)


def _measure_pickled(pickled: bytes) -> bytes:
    """Measure a pickled study, store and run, and return the pickled measurement."""
    return pickle.dumps(_measure_run(*pickle.loads(pickled)))


@contextmanager
def _child_environment() -> Generator[None]:
    """Let new processes use one thread and import nothing from the current folder, by environment variables.

    The previous values return at the end of the block.
    """
    changes = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    previous = {name: os.environ[name] for name in changes if name in os.environ}
    os.environ |= changes
    try:
        yield
    finally:
        for name in changes:
            del os.environ[name]
        os.environ |= previous


# One run


def _measure_run(study: Study, store: Store, run: Run) -> RunMeasurement:
    """Measure the stored predictions of a finished run in double precision."""
    val, test = store.get(run, "val").double(), store.get(run, "test").double()
    shifts = {shift: store.get(run, f"shift{i}").double() for i, shift in enumerate(run.shifts)}
    return _measure_predictions(study, run, val=val, test=test, shifts=shifts)


def _measure_predictions(
    study: Study, run: Run | Model, *, val: Predictions, test: Predictions, shifts: Mapping[Method, Predictions]
) -> RunMeasurement:
    """Fit each calibrator of a study to `val`, and measure calibrated `test` and shifts by the study's metrics.

    A calibrator that does not apply to these data has rows with values of nan, and the reason.
    """
    rows: list[ResultRow] = []
    run_columns = _run_columns(study, run)
    with thread_limit(max(val.logits.size, test.logits.size)):
        events = {"": _copy_events(test.events)}
        for calibrator in study.calibrators:
            columns = run_columns | {"calibrator": calibrator.text, "temperature": math.nan}
            try:
                fitted: Any = calibrators.fit(calibrator, val)
                calibrated_test = test.apply(fitted)
                calibrated_shifts = {shift: p.apply(fitted) for shift, p in shifts.items()}
            except MACHINE_FAILURES:
                raise
            except Exception as error:  # the calibrator does not apply to these data, or fails
                rows += _empty_rows(study, run, columns | {"reason": f"{calibrator}: {error_text(error)}"})
                continue
            parameters = fitted_parameters(fitted)
            columns["temperature"] = parameters.pop("temperature", math.nan)
            columns |= {f"{PARAMETER_PREFIX}{name}": value for name, value in parameters.items()}
            rows += [columns | {"shift": ""} | row for row in _metric_rows(calibrated_test, study.metrics)]
            for shift, p in calibrated_shifts.items():
                shift_rows = _shift_rows(study, shift, calibrated_test, p)
                rows += [columns | {"shift": study.label(shift)} | row for row in shift_rows]
            if calibrator.name != "Identity":
                events[calibrator.text] = _copy_events(calibrated_test.events)
    return RunMeasurement(run, rows, events)


def _metric_rows(p: Predictions, metric_methods: Methods) -> Iterator[ResultRow]:
    """Yield a row with the columns "metric", "value" and "reason" for every metric.

    If a metric does not apply to these predictions, the value is nan, and the reason is its error; else it is "".
    """
    p.compute_outcomes()  # cached for all metrics, with one pass through softmax
    for metric in metric_methods:
        try:
            value, reason = float(metric(p)), ""
        except MACHINE_FAILURES:
            raise
        except Exception as error:  # the metric does not apply to these data
            value, reason = math.nan, f"{metric}: {error_text(error)}"
        floor = noise_floor(metric, p) if math.isfinite(value) else math.nan
        yield {"metric": metric.text, "value": value, "reason": reason, "floor": floor}


def noise_floor(metric: Method, p: Any) -> float:
    """Return the mean of a calibration error of a calibrated model with the confidences of `p`, or nan if unknown.

    The edges "mukhoti" leave out the least confident example, which changes the floor of adaptive ECE by less than 1/n.
    """
    name = getattr(metric.target, "noise_floor", "")
    if not name or metric.settings.get("norm", 1) != 1:  # the floors are those of mean absolute differences
        return math.nan
    floor = registry.METRICS.method("adaptive_noise_floor" if metric.settings.get("edges") == "equal_mass" else name)
    shared_settings = {key: value for key, value in metric.settings.items() if key == "bins"}
    return float(floor.with_settings(**shared_settings)(p))


def _shift_rows(study: Study, shift: Method, test: Predictions, shifted: Predictions) -> Iterator[ResultRow]:
    """Yield rows as `_metric_rows` does for a shifted test set.

    The study's metrics are measured if the labels stay valid, as for corruptions. Statistics such as the AUROC tell
    how well each detection score separates the test set from the shifted one.
    """
    if is_corruption(shift):
        yield from _metric_rows(shifted, study.metrics)
    for score in study.detection:
        for name, value in asdict(metrics.ood.detection(test, shifted, score=score)).items():
            yield {"metric": _detection_name(name, score), "value": value, "reason": "", "floor": math.nan}


def fitted_parameters(fitted: object) -> dict[str, float]:
    """Return the parameters of a fitted calibrator that tables show: `table_fields` of its class, if it has any.

    Without that attribute, a class whose name ends with "Temperature" has a parameter of this name.
    """
    default_names = ("temperature",) if type(fitted).__name__.endswith("Temperature") else ()
    parameters: dict[str, float] = {}
    for name in getattr(type(fitted), "table_fields", default_names):
        with suppress(TypeError, ValueError, RuntimeError):  # the field of a user's class may be no single number
            parameters[name] = float(getattr(fitted, name, math.nan))
    return parameters


# Reliability diagrams


def ece_over_seeds_text(ece_by_seed: Sequence[float], floor: float | None = None) -> str:
    """Return the ECE of one seed, or the mean and deviation over several, and its noise floor, as text for a diagram.

    Training histories keep sums of bins only, from which no floor is known.

    >>> ece_over_seeds_text([0.02], 0.01)
    'ECE 2.00 % (noise floor 1.00 %)'
    >>> ece_over_seeds_text([0.02, 0.03], 0.01)
    'ECE 2.50 ± 0.71 % (noise floor 1.00 %) over 2 seeds; the diagram holds the examples of all'
    """
    floor_text = "" if floor is None else f" (noise floor {100 * floor:.2f} %)"
    if len(ece_by_seed) == 1:
        return f"ECE {100 * ece_by_seed[0]:.2f} %{floor_text}"
    ece = f"ECE {100 * mean(ece_by_seed):.2f} ± {100 * stdev(ece_by_seed):.2f} %{floor_text}"
    return f"{ece} over {len(ece_by_seed)} seeds; the diagram holds the examples of all"


@dataclass(frozen=True, eq=False)
class Diagram:
    """Reliability of one loss before or after a calibrator, with the examples of all seeds."""

    names: RunNames
    calibrator: str  # "" before calibration
    title: str  # the loss, the setup if there are several, and the calibrator
    events: Events
    ece: str  # in words, as the mean over seeds, which differs from the ECE of all events

    @property
    def bins(self) -> Bins:
        """The bins of the diagram, of equal width."""
        return self.events.equal_width(FIGURE_BINS)


def diagrams_over_seeds(study: Study, measurements: Iterable[RunMeasurement]) -> Iterator[Diagram]:
    """Yield a diagram for every data set, network and loss before calibration, and one after each calibrator.

    A diagram pools the examples of all seeds. Its ECE is the mean of the seeds' own, which is another number.
    """
    events_by_diagram = group_pairs(
        ((study.names(measurement.run), calibrator), events)
        for measurement in measurements
        for calibrator, events in measurement.events.items()
    )
    for (names, calibrator), seed_events in events_by_diagram.items():
        weights = [np.ones_like(e.confidence) if e.weights is None else e.weights for e in seed_events]
        all_events = Events(
            np.concatenate([events.confidence for events in seed_events]),
            np.concatenate([events.outcome for events in seed_events]),
            # without weights, if no seed has any
            None if all(events.weights is None for events in seed_events) else np.concatenate(weights),
        )
        bins_by_seed = [events.equal_width(FIGURE_BINS) for events in seed_events]
        # per seed, as networks with opposite errors would hide each other's if their examples were pooled
        ece_by_seed = [float((bins.weight * abs(bins.gap)).sum()) for bins in bins_by_seed]
        floor = mean(float(metrics.noise_floor(events, bins=FIGURE_BINS)) for events in seed_events)
        stage = f"after {calibrator}" if calibrator else "before"
        title = f"{names.loss}{study.setup_suffix(names.setup)}, {stage}"
        yield Diagram(names, calibrator, title, all_events, ece_over_seeds_text(ece_by_seed, floor))


def _copy_events(events: Events) -> Events:
    """Copy events without their cached statistics, whose large arrays can then be freed."""
    merged = events.merged  # one row per example
    return replace(merged, confidence=merged.confidence.copy(), outcome=merged.outcome.copy())
