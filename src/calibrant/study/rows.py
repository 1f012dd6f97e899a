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

from calibrant import calibrators, catalog, metrics
from calibrant._bins import Events
from calibrant._text import one_line
from calibrant._threads import threads_for
from calibrant.catalog import Method
from calibrant.predictions import Predictions
from calibrant.study.config import Run, Study
from calibrant.study.methods import Methods, corrupts
from calibrant.study.models import Model
from calibrant.study.store import Store
from calibrant.study.tables import LEARNED
from calibrant.types import InputError

WORTH = 10.0  # seconds of work from which it pays to start processes
MACHINE_FAILURES = (MemoryError, OSError)  # stop a study; other errors cost the cells of one method
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Measured:
    """What the stored logits of one run gave.

    Columns of the rows: run, dataset, network, loss, seed, diverged (the epoch at which the network did, 0 if it did
    not), calibrator, temperature (nan where there is none), shift (of the test set, "" for none), metric, value, reason
    (why the value is nan: the calibrator or the metric does not suit these data); learned_NAME for every other number
    that a calibrator reports. On a corrupted test set the study's metrics are measured; how well it is told from the
    test set proper is measured for every shift, by each of the study's scores for detection.
    """

    run: Run | Model
    rows: list[Row]
    before: Events  # on the test set, as the network predicts
    after: Mapping[str, Events]  # and after each calibrator that could be fitted, but for `Identity`, by its text


def shown(study: Study) -> Method:
    """Return the calibrator that is drawn first, and in ROC curves: a temperature, or the last one."""
    return next((c for c in study.calibrators if c.name == "Temperature"), study.calibrators[-1])


def measured(study: Study, store: Store, jobs: int = 1) -> Iterator[Measured]:
    """Measure every model and every finished run of a study.

    Models that were trained elsewhere come first. With several jobs a long work is shared among as many processes: the
    same rows in the same order.
    """
    for model in study.models:
        val, test = model.predictions()
        yield _judged(study, model, val.double(), test.double(), {})
    runs, began = [run for run in study.runs() if store.state(run) == "done"], time.monotonic()
    for done, run in enumerate(runs, 1):
        yield _measured(study, store, run)
        if jobs > 1 and (time.monotonic() - began) / done * (len(runs) - done) > WORTH:
            yield from _in_processes(study, store, runs[done:], jobs)
            return


def rows(study: Study, store: Store, jobs: int = 1) -> Iterator[Row]:
    """Yield a row per finished run, shift, calibrator and metric of a study."""
    for found in measured(study, store, jobs):
        yield from found.rows
    for run in diverged(study, store):
        yield from lost(study, store, run)


def diverged(study: Study, store: Store) -> list[Run]:
    """Return the runs of a study whose networks diverged: they are done, and there is nothing to measure."""
    return [run for run in study.runs() if store.state(run) == "diverged"]


def lost(study: Study, store: Store, run: Run) -> Iterator[Row]:
    """Yield the rows of a network that diverged: their values are nan."""
    where = _where(study, run) | {"diverged": store.record(run)["facts"]["diverged"]}
    for calibrator in study.calibrators:
        which = {"calibrator": calibrator.text, "temperature": math.nan, "reason": ""}
        for shift in (None, *run.shifts):
            more = where | which | {"shift": "" if shift is None else study.label(shift)}
            wanted = study.metrics if shift is None or corrupts(shift) else ()
            yield from (more | {"metric": metric.text, "value": math.nan} for metric in wanted)


def _where(study: Study, run: Run | Model) -> Row:
    dataset, network, loss = study.names(run)
    return {"run": run.id, "dataset": dataset, "network": network, "loss": loss, "seed": run.seed, "diverged": 0}


def _in_processes(study: Study, store: Store, runs: Sequence[Run], jobs: int) -> Iterator[Measured]:
    start = get_context("spawn"), _begin, (list(catalog.INCLUDED),)
    packed = [pickle.dumps((study, store, run)) for run in runs]  # for whoever has included one's own methods
    with _child_environment(), ProcessPoolExecutor(min(jobs, len(runs)), *start) as pool:
        futures = [pool.submit(_elsewhere, each) for each in packed]

        def cancel_after_failure(done: Future[bytes]) -> None:
            failure = None if done.cancelled() else done.exception()
            if failure is not None and not isinstance(failure, BrokenProcessPool):  # which ends all of them itself
                _cancel(futures)

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
            _cancel(futures)
            raise


def _cancel(futures: Sequence[Future[bytes]]) -> None:
    for future in list(futures):
        future.cancel()


def _begin(sources: list[str]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process
    catalog.include(sources)


def _elsewhere(packed: bytes) -> bytes:
    return pickle.dumps(_measured(*pickle.loads(packed)))


@contextmanager
def _child_environment() -> Generator[None]:
    """Let processes that start meanwhile use one thread each, and import nothing from the current folder."""
    changes = {"OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _measured(study: Study, store: Store, run: Run) -> Measured:
    val, test = store.get(run, "val").double(), store.get(run, "test").double()
    shifts = {shift: store.get(run, f"shift{i}").double() for i, shift in enumerate(run.shifts)}
    return _judged(study, run, val, test, shifts)


def _judged(
    study: Study, run: Run | Model, val: Predictions, test: Predictions, shifts: Mapping[Method, Predictions]
) -> Measured:
    made: list[Row] = []
    after: dict[str, Events] = {}
    with threads_for(max(val.logits.numel(), test.logits.numel())):
        for calibrator in study.calibrators:
            which: Row = _where(study, run) | {"calibrator": calibrator.text, "temperature": math.nan}
            try:
                fitted: Any = calibrators.fit(calibrator, val)
                sets = {"": test.mapped(fitted)} | {study.label(shift): p.mapped(fitted) for shift, p in shifts.items()}
            except MACHINE_FAILURES:
                raise
            except Exception as error:  # it may suit other data
                made += _unsuited(study, run, which | {"reason": f"{calibrator}: {_reason(error)}"})
                continue
            told = reported(fitted)
            which |= {"temperature": told.pop("temperature", math.nan)}
            which |= {f"{LEARNED}{name}": value for name, value in told.items()}
            found = {"": _values(sets[""], study.metrics)}
            for shift in shifts:
                name = study.label(shift)
                found[name] = _shifted(study, shift, sets[""], sets[name])
            for shift, values in found.items():
                more = which | {"shift": shift}
                made += [more | {"metric": name} | value for name, value in values.items()]
            if calibrator.name != "Identity":
                after[calibrator.text] = _plain(sets[""].events)
        before = _plain(test.events)
    return Measured(run, made, before, after)


def _unsuited(study: Study, run: Run | Model, which: Row) -> Iterator[Row]:
    """Yield the rows of a calibrator that cannot be fitted to these data."""
    for shift in (None, *(run.shifts if isinstance(run, Run) else ())):
        more = which | {"shift": "" if shift is None else study.label(shift), "value": math.nan}
        wanted = study.metrics if shift is None or corrupts(shift) else ()
        yield from (more | {"metric": metric.text} for metric in wanted)


def _reason(error: Exception) -> str:
    """Say in one line why one's own calibrator or metric failed, or why a method does not suit the data."""
    kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return kind + one_line(error)


def _values(p: Predictions, wanted: Methods) -> dict[str, Row]:
    """Measure predictions, which pass through softmax once for all metrics."""
    p.survey()
    found: dict[str, Row] = {}
    for metric in wanted:
        try:
            found[metric.text] = {"value": float(metric(p)), "reason": ""}
        except MACHINE_FAILURES:
            raise
        except Exception as error:  # it may suit other data
            found[metric.text] = {"value": math.nan, "reason": f"{metric}: {_reason(error)}"}
    return found


def _shifted(study: Study, shift: Method, inside: Predictions, outside: Predictions) -> dict[str, Row]:
    found = _values(outside, study.metrics) if corrupts(shift) else {}
    for score in study.detection:
        detection = metrics.ood.detection(inside, outside, score=score)
        found |= {f"ood_{name}({score})": {"value": value, "reason": ""} for name, value in asdict(detection).items()}
    return found


def reported(fitted: object) -> dict[str, float]:
    """Return the numbers that a fitted calibrator says in tables: those that its class names in `reported`.

    Without such a list, the temperature of a map that is called one; elsewhere such a field is a unit, not the map.
    """
    usual = ("temperature",) if type(fitted).__name__.endswith("Temperature") else ()
    found: dict[str, float] = {}
    for name in getattr(type(fitted), "reported", usual):
        with suppress(TypeError, ValueError, RuntimeError):  # one's own may be several
            found[name] = float(getattr(fitted, name, math.nan))
    return found


def over_seeds(errors: Sequence[float]) -> str:
    """Say the ECE of the diagrams of several seeds: its mean and deviation over them, and that they are pooled.

    >>> over_seeds([0.02]), over_seeds([0.02, 0.03])
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
    def when(self) -> str:
        """Say whether the events are before or after a calibrator."""
        return f"after {self.calibrator}" if self.calibrator else "before"


def diagrams_of(runs: Sequence[Measured], bins: int) -> Iterator[Diagram]:
    """Yield a diagram of the runs of one loss before any calibrator, and after each."""
    after = dict.fromkeys(text for one in runs for text in one.after)
    for calibrator in ("", *after):
        parts = [one.after.get(calibrator) if calibrator else one.before for one in runs]
        known = [part for part in parts if part is not None]
        yield Diagram(calibrator, pooled(known), over_seeds([_binned_error(part, bins) for part in known]))


def _binned_error(events: Events, bins: int) -> float:
    found = events.equal_width(bins)
    return float((found.weight * found.gap.abs()).nansum())


def pooled(parts: Sequence[Events]) -> Events:
    """Return the events of several runs together."""
    return Events(*(torch.cat([getattr(part, name) for part in parts]) for name in ("confidence", "happened")))


def _plain(events: Events) -> Events:
    """Return the events in memory of their own, without what was computed from them."""
    return Events(events.confidence.clone(), events.happened.clone(), events.weights, events.clusters)
