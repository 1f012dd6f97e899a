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
from typing import Any

import torch

from calibrant import calibrators, catalog, metrics
from calibrant._bins import Events
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
Row = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Measured:
    """What the stored logits of one run gave.

    Columns of the rows: run, dataset, network, loss, seed, diverged (the epoch at which the network did, 0 if it did
    not), calibrator, temperature (nan where there is none), shift (of the test set, "" for none), metric, value;
    learned_NAME for every other number that a calibrator reports. On a
    corrupted test set the study's metrics are measured; how well it is told from the test set proper is measured for
    every shift, by each of the study's scores for detection.
    """

    run: Run | Model
    rows: list[Row]
    before: Events  # on the test set, as the network said it
    after: Events  # and as `shown(study)` makes of it


def shown(study: Study) -> Method:
    """Return the calibrator whose effect is drawn: a temperature, or the last one."""
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
        which = {"calibrator": calibrator.text, "temperature": math.nan}
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
    with _one_thread_each(), ProcessPoolExecutor(min(jobs, len(runs)), *start) as pool:
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
def _one_thread_each() -> Generator[None]:
    """Keep the libraries of processes that start meanwhile from competing for the cores."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
        os.environ.update({} if before is None else {"OMP_NUM_THREADS": before})


def _measured(study: Study, store: Store, run: Run) -> Measured:
    val, test = store.get(run, "val").double(), store.get(run, "test").double()
    shifts = {shift: store.get(run, f"shift{i}").double() for i, shift in enumerate(run.shifts)}
    return _judged(study, run, val, test, shifts)


def _judged(
    study: Study, run: Run | Model, val: Predictions, test: Predictions, shifts: Mapping[Method, Predictions]
) -> Measured:
    dataset, network, loss = study.names(run)
    where = _where(study, run)
    made: list[Row] = []
    after: Events | None = None
    with threads_for(max(val.logits.numel(), test.logits.numel())):
        for calibrator in study.calibrators:
            with _said_of(f"{calibrator} on {dataset}, {network}, {loss}, seed {run.seed}"):
                fitted: Any = calibrators.fit(calibrator, val)
                there = test.mapped(fitted)
                found = {"": _values(there, study.metrics)}
                for shift, p in shifts.items():
                    found[study.label(shift)] = _shifted(study, shift, there, p.mapped(fitted))
            told = reported(fitted)
            which = {"calibrator": calibrator.text, "temperature": told.pop("temperature", math.nan)}
            which |= {f"{LEARNED}{name}": value for name, value in told.items()}
            for shift, values in found.items():
                more = where | which | {"shift": shift}
                made += [more | {"metric": name, "value": value} for name, value in values.items()]
            if calibrator == shown(study):
                after = _plain(there.events)
        before = _plain(test.events)
    return Measured(run, made, before, after or before)


@contextmanager
def _said_of(what: str) -> Generator[None]:
    """Say in one line where one's own calibrator or metric failed."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{what}: {error}") from None
    except Exception as error:
        raise InputError(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error


def _values(p: Predictions, wanted: Methods) -> dict[str, float]:
    """Measure predictions, which pass through softmax once for all metrics."""
    p.survey()
    return {metric.text: float(metric(p)) for metric in wanted}


def _shifted(study: Study, shift: Method, inside: Predictions, outside: Predictions) -> dict[str, float]:
    found = _values(outside, study.metrics) if corrupts(shift) else {}
    for score in study.detection:
        detection = metrics.ood.detection(inside, outside, score=score)
        found |= {f"ood_{name}({score})": value for name, value in asdict(detection).items()}
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


def pooled(parts: Sequence[Events]) -> Events:
    """Return the events of several runs together."""
    return Events(*(torch.cat([getattr(part, name) for part in parts]) for name in ("confidence", "happened")))


def _plain(events: Events) -> Events:
    """Return the events in memory of their own, without what was computed from them."""
    return Events(events.confidence.clone(), events.happened.clone(), events.weights, events.clusters)
