"""From stored logits to rows: fit on validation, judge on test. Never stored as truth, always made anew."""

import math
import os
import pickle
import signal
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from statistics import mean, stdev
from typing import Any

import torch

from calibrant import calibrators, metrics, registry
from calibrant._text import to_one_line
from calibrant.backend.bins import Events
from calibrant.backend.threads import thread_limit
from calibrant.lab.study.config import Run, Study
from calibrant.lab.study.external_models import Model
from calibrant.lab.study.methods import Methods, is_corruption
from calibrant.lab.study.store import Store
from calibrant.lab.study.tables import LEARNED_PREFIX
from calibrant.predictions import Predictions
from calibrant.registry import Method
from calibrant.types import InputError

MIN_PARALLEL_SECONDS = 10.0  # seconds of work from which it pays to start processes
MACHINE_FAILURES = (MemoryError, OSError)  # stop a study; other errors cost the cells of one method
ResultRow = dict[str, Any]


@dataclass(frozen=True, eq=False)
class RunMeasurement:
    """What the stored logits of one run gave.

    Columns of the rows: run, dataset, network, loss, seed, diverged (the epoch at which the network did, 0 if it did
    not), calibrator, temperature (nan where there is none), shift (of the test set, "" for none), metric, value, reason
    (why the value is nan: the calibrator or the metric does not suit these data); learned_NAME for every other number
    that a calibrator reports. On a corrupted test set the study's metrics are measured; how well it is told from the
    test set proper is measured for every shift, by each of the study's scores for detection.
    """

    run: Run | Model
    rows: list[ResultRow]
    events_before: Events  # on the test set, as the network predicts
    events_after: Mapping[
        str, Events
    ]  # and after each calibrator that could be fitted, but for `Identity`, by its text


def primary_calibrator(study: Study) -> Method:
    """Return the calibrator that is drawn first, and in ROC curves: a temperature, or the last one."""
    return next((c for c in study.calibrators if c.name == "Temperature"), study.calibrators[-1])


def measure_runs(study: Study, store: Store, jobs: int = 1) -> Iterator[RunMeasurement]:
    """Measure every model and every finished run of a study.

    Models that were trained elsewhere come first. With several jobs a long work is shared among as many processes: the
    same rows in the same order.
    """
    for model in study.models:
        val, test = model.predictions()
        yield _measure_predictions(study, model, val.double(), test.double(), {})
    runs, start_time = [run for run in study.runs() if store.state(run) == "done"], time.monotonic()
    for num_measured, run in enumerate(runs, 1):
        yield _measure_run(study, store, run)
        if (
            jobs > 1
            and (time.monotonic() - start_time) / num_measured * (len(runs) - num_measured) > MIN_PARALLEL_SECONDS
        ):
            yield from _measure_in_processes(study, store, runs[num_measured:], jobs)
            return


def study_rows(study: Study, store: Store, jobs: int = 1) -> Iterator[ResultRow]:
    """Yield a row per finished run, shift, calibrator and metric of a study."""
    for measurement in measure_runs(study, store, jobs):
        yield from measurement.rows
    for run in diverged_runs(study, store):
        yield from diverged_rows(study, store, run)


def diverged_runs(study: Study, store: Store) -> list[Run]:
    """Return the runs of a study whose networks diverged: they are done, and there is nothing to measure."""
    return [run for run in study.runs() if store.state(run) == "diverged"]


def diverged_rows(study: Study, store: Store, run: Run) -> Iterator[ResultRow]:
    """Yield the rows of a network that diverged: their values are nan."""
    run_columns = _run_columns(study, run) | {"diverged": store.record(run)["facts"]["diverged"]}
    for calibrator in study.calibrators:
        calibrator_columns = {"calibrator": calibrator.text, "temperature": math.nan, "reason": ""}
        for shift in (None, *run.shifts):
            columns = run_columns | calibrator_columns | {"shift": "" if shift is None else study.label(shift)}
            metric_methods = study.metrics if shift is None or is_corruption(shift) else ()
            yield from (columns | {"metric": metric.text, "value": math.nan} for metric in metric_methods)


def _run_columns(study: Study, run: Run | Model) -> ResultRow:
    dataset, network, loss = study.names(run)
    return {"run": run.id, "dataset": dataset, "network": network, "loss": loss, "seed": run.seed, "diverged": 0}


def _measure_in_processes(study: Study, store: Store, runs: Sequence[Run], jobs: int) -> Iterator[RunMeasurement]:
    start = get_context("spawn"), _init_worker, (list(registry.INCLUDED_SOURCES),)
    payloads = [pickle.dumps((study, store, run)) for run in runs]  # for whoever has included one's own methods
    with _child_environment(), ProcessPoolExecutor(min(jobs, len(runs)), *start) as pool:
        futures = [pool.submit(_measure_pickled, payload) for payload in payloads]

        def cancel_after_failure(done: Future[bytes]) -> None:
            failure = None if done.cancelled() else done.exception()
            if failure is not None and not isinstance(failure, BrokenProcessPool):  # which ends all of them itself
                _cancel_futures(futures)

        for future in futures:
            future.add_done_callback(cancel_after_failure)
        futures.reverse()
        try:
            while futures:
                yield pickle.loads(futures.pop().result())  # popped: results that were consumed take no memory
        except BrokenProcessPool:
            raise InputError(
                "a process that measures was killed, perhaps for its memory; use fewer --jobs", code="process_killed"
            ) from None
        except BaseException:
            _cancel_futures(futures)
            raise


def _cancel_futures(futures: Sequence[Future[bytes]]) -> None:
    for future in list(futures):
        future.cancel()


def _init_worker(sources: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process
    registry.include(sources)


def _measure_pickled(payload: bytes) -> bytes:
    return pickle.dumps(_measure_run(*pickle.loads(payload)))


@contextmanager
def _child_environment() -> Generator[None]:
    """Let processes that start meanwhile use one thread each, and import nothing from the current folder."""
    changes = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    previous_values = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in previous_values.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _measure_run(study: Study, store: Store, run: Run) -> RunMeasurement:
    val, test = store.get(run, "val").double(), store.get(run, "test").double()
    shifts = {shift: store.get(run, f"shift{i}").double() for i, shift in enumerate(run.shifts)}
    return _measure_predictions(study, run, val, test, shifts)


def _measure_predictions(
    study: Study, run: Run | Model, val: Predictions, test: Predictions, shifts: Mapping[Method, Predictions]
) -> RunMeasurement:
    measured_rows: list[ResultRow] = []
    events_after: dict[str, Events] = {}
    with thread_limit(max(val.logits.numel(), test.logits.numel())):
        for calibrator in study.calibrators:
            columns: ResultRow = _run_columns(study, run) | {"calibrator": calibrator.text, "temperature": math.nan}
            try:
                fitted: Any = calibrators.fit(calibrator, val)
                sets = {"": test.apply(fitted)} | {study.label(shift): p.apply(fitted) for shift, p in shifts.items()}
            except MACHINE_FAILURES:
                raise
            except Exception as error:  # it may suit other data
                measured_rows += _failed_rows(
                    study, run, columns | {"reason": f"{calibrator}: {_failure_reason(error)}"}
                )
                continue
            numbers = reported_numbers(fitted)
            columns |= {"temperature": numbers.pop("temperature", math.nan)}
            columns |= {f"{LEARNED_PREFIX}{name}": value for name, value in numbers.items()}
            values_by_shift = {"": _metric_values(sets[""], study.metrics)}
            for shift in shifts:
                name = study.label(shift)
                values_by_shift[name] = _shift_values(study, shift, sets[""], sets[name])
            for shift, values in values_by_shift.items():
                shift_columns = columns | {"shift": shift}
                measured_rows += [shift_columns | {"metric": name} | value for name, value in values.items()]
            if calibrator.name != "Identity":
                events_after[calibrator.text] = _copy_events(sets[""].events)
        events_before = _copy_events(test.events)
    return RunMeasurement(run, measured_rows, events_before, events_after)


def _failed_rows(study: Study, run: Run | Model, columns: ResultRow) -> Iterator[ResultRow]:
    """Yield the rows of a calibrator that cannot be fitted to these data."""
    for shift in (None, *(run.shifts if isinstance(run, Run) else ())):
        shift_columns = columns | {"shift": "" if shift is None else study.label(shift), "value": math.nan}
        metric_methods = study.metrics if shift is None or is_corruption(shift) else ()
        yield from (shift_columns | {"metric": metric.text} for metric in metric_methods)


def _failure_reason(error: Exception) -> str:
    """Say in one line why one's own calibrator or metric failed, or why a method does not suit the data."""
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return kind + to_one_line(error)


def _metric_values(p: Predictions, metric_methods: Methods) -> dict[str, ResultRow]:
    """Measure predictions, which pass through softmax once for all metrics."""
    p.compute_outcomes()
    values: dict[str, ResultRow] = {}
    for metric in metric_methods:
        try:
            values[metric.text] = {"value": float(metric(p)), "reason": ""}
        except MACHINE_FAILURES:
            raise
        except Exception as error:  # it may suit other data
            values[metric.text] = {"value": math.nan, "reason": f"{metric}: {_failure_reason(error)}"}
    return values


def _shift_values(study: Study, shift: Method, inside: Predictions, outside: Predictions) -> dict[str, ResultRow]:
    values = _metric_values(outside, study.metrics) if is_corruption(shift) else {}
    for score in study.detection:
        detection = metrics.ood.detection(inside, outside, score=score)
        values |= {f"ood_{name}({score})": {"value": value, "reason": ""} for name, value in asdict(detection).items()}
    return values


def reported_numbers(fitted: object) -> dict[str, float]:
    """Return the numbers that a fitted calibrator says in tables: those that its class names in `reported`.

    Without such a list, the temperature of a map that is called one; elsewhere such a field is a unit, not the map.
    """
    default_names = ("temperature",) if type(fitted).__name__.endswith("Temperature") else ()
    numbers: dict[str, float] = {}
    for name in getattr(type(fitted), "table_fields", default_names):
        with suppress(TypeError, ValueError, RuntimeError):  # one's own may be several
            numbers[name] = float(getattr(fitted, name, math.nan))
    return numbers


def ece_over_seeds_text(errors: Sequence[float]) -> str:
    """Say the ECE of the diagrams of several seeds: its mean and deviation over them, and that they are pooled.

    >>> ece_over_seeds_text([0.02]), ece_over_seeds_text([0.02, 0.03])
    ('ECE 2.00 %', 'ECE 2.50 ± 0.71 % over 2 seeds, whose examples are pooled')
    """
    if len(errors) == 1:
        return f"ECE {100 * errors[0]:.2f} %"
    spread = f"{100 * mean(errors):.2f} ± {100 * stdev(errors):.2f}"
    return f"ECE {spread} % over {len(errors)} seeds, whose examples are pooled"


@dataclass(frozen=True, eq=False)
class Diagram:
    """The events of one loss over all seeds, before or after a calibrator."""

    calibrator: str  # "" before any
    events: Events
    ece: str  # in words, as the mean over seeds: that of the pooled events would be another number

    @property
    def stage(self) -> str:
        """Say whether the events are before or after a calibrator."""
        return f"after {self.calibrator}" if self.calibrator else "before"


def pooled_diagrams(runs: Sequence[RunMeasurement], bins: int) -> Iterator[Diagram]:
    """Yield a diagram of the runs of one loss before any calibrator, and after each."""
    calibrator_texts = dict.fromkeys(text for measurement in runs for text in measurement.events_after)
    for calibrator in ("", *calibrator_texts):
        parts = [
            measurement.events_after.get(calibrator) if calibrator else measurement.events_before
            for measurement in runs
        ]
        fitted_parts = [part for part in parts if part is not None]
        yield Diagram(
            calibrator,
            pool_events(fitted_parts),
            ece_over_seeds_text([_binned_ece(part, bins) for part in fitted_parts]),
        )


def _binned_ece(events: Events, bins: int) -> float:
    binned = events.equal_width(bins)
    return float((binned.weight * binned.gap.abs()).nansum())


def pool_events(parts: Sequence[Events]) -> Events:
    """Return the events of several runs together."""
    return Events(*(torch.cat([getattr(part, name) for part in parts]) for name in ("confidence", "outcome")))


def _copy_events(events: Events) -> Events:
    """Return the events in memory of their own, without what was computed from them."""
    return Events(events.confidence.clone(), events.outcome.clone(), events.weights, events.clusters)
