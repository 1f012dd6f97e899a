"""From stored logits to rows: fit on validation, judge on test. Never stored as truth, always made anew."""

import math
import os
import signal
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from multiprocessing import get_context
from typing import Any

from torch import Tensor

from calibrant import catalog, metrics
from calibrant._solve import few_threads
from calibrant._types import InputError
from calibrant.assess import fit, judge
from calibrant.study.config import Run, Study, corrupts
from calibrant.study.store import Store

WORTH = 10.0  # seconds of work from which it pays to start processes


def measure(study: Study, store: Store, jobs: int = 1) -> Iterator[dict[str, Any]]:
    """Yield a row per finished run, calibrator and metric of a study.

    Columns: run, dataset, network, loss, seed, calibrator, temperature (nan where there is none), shift (of the test
    set, "" for none), metric, value. On a corrupted test set the study's metrics are measured; how well it is told from
    the test set proper is measured for every shift, by each of the study's scores for detection.
    With several jobs a long work is shared among as many processes: the same rows in the same order.
    """
    runs, began = [run for run in study.runs() if run in store], time.monotonic()
    for done, run in enumerate(runs, 1):
        yield from _measured(study, store, run)
        if jobs > 1 and (time.monotonic() - began) / done * (len(runs) - done) > WORTH:
            yield from _in_processes(study, store, runs[done:], jobs)
            return


def _in_processes(study: Study, store: Store, runs: Sequence[Run], jobs: int) -> Iterator[dict[str, Any]]:
    start = get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process
    with _one_thread_each(), ProcessPoolExecutor(min(jobs, len(runs)), *start) as pool:
        try:
            for rows in pool.map(partial(_measured, study, store), runs):
                yield from rows
        except BrokenProcessPool:
            raise InputError("a process that measures was killed, perhaps for its memory; use fewer --jobs") from None


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


def _measured(study: Study, store: Store, run: Run) -> list[dict[str, Any]]:
    val, test = store.get(run, "val").double(), store.get(run, "test").double()
    shifts = {text: store.get(run, f"shift{i}").double() for i, text in enumerate(run.shifts)}
    dataset, network, loss = study.names(run)
    where = {"run": run.id, "dataset": dataset, "network": network, "loss": loss, "seed": run.seed}
    rows: list[dict[str, Any]] = []
    with few_threads(max(val.logits.numel(), test.logits.numel())):
        for calibrator in study.calibrators:
            fitted = fit(calibrator, val)
            scaled = type(fitted).__name__.endswith("Temperature")  # elsewhere such a field is a unit, not the map
            temperature = float(getattr(fitted, "temperature", math.nan)) if scaled else math.nan
            logits = fitted(test.logits)
            found = {"": judge(logits, test, study.metrics)}
            for text, p in shifts.items():
                there = fitted(p.logits)
                known = judge(there, p, study.metrics) if corrupts(text) else {}
                found[study.label("shifts", text)] = known | _detections(logits, there, study.detection)
            for shift, values in found.items():
                for name, value in values.items():
                    more = {"calibrator": calibrator, "temperature": temperature, "shift": shift}
                    rows.append(where | more | {"metric": name, "value": value})
    return rows


def _detections(inside: Tensor, outside: Tensor, scores: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for text in scores:
        detection = metrics.ood.detection(inside, outside, score=catalog.resolve(text, metrics.ood))
        found |= {f"ood_{name}({text})": value for name, value in asdict(detection).items()}
    return found
