"""Measuring in one and in several processes."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import polars
import pytest
import torch
from passes import report_passes
from polars.testing import assert_frame_equal
from refusals import refused
from stored_rows import study_rows

from calibrant import InputError, Predictions, metrics, registry
from calibrant.lab.study import Store, Study
from calibrant.lab.study import measurements as module
from calibrant.lab.study.grids import Grid

DIES = """
import multiprocessing, os, signal
from calibrant import calibrators

@calibrators.register
class Dies:
    @classmethod
    def fit(cls, logits, labels):
        if multiprocessing.parent_process() is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        return cls()

    def __call__(self, logits):
        return logits
"""


@pytest.fixture
def filled(tmp_path):
    """Return a study and a store of different runs, one of which is missing."""
    losses, names = ("cross_entropy", "focal", "brier"), ("Temperature", "HistogramBinning", "StructuredMatrix")
    study = Study("x", (Grid(("digits",), ("resnet8",), losses, seeds=(0, 1, 2)),), names, ("nll", "ece"))
    store, g = Store(tmp_path), torch.Generator().manual_seed(0)
    for i, run in enumerate(study.runs()):
        logits = 2 * torch.randn(2, 1000, 3, generator=g)
        val, test = (Predictions(2 * z, z.softmax(-1).multinomial(1, generator=g).squeeze(1)) for z in logits)
        if i != 4:
            store.save(run, {"val": val, "test": test}, {})
    return study, store


@pytest.mark.slow
def test_many_processes_give_the_same_rows_in_the_same_order(filled, monkeypatch):
    single = polars.DataFrame(list(study_rows(*filled)))
    monkeypatch.setattr(module, "MIN_PARALLEL_SECONDS", 0.0)
    threads = os.environ.get("OMP_NUM_THREADS")
    assert_frame_equal(polars.DataFrame(list(study_rows(*filled, jobs=2))), single, check_exact=True)
    assert len(single) == 8 * 3 * 2
    assert os.environ.get("OMP_NUM_THREADS") == threads


def test_every_row_passes_once_through_softmax_for_each_calibrator(tmp_path, calibrated_predictions, monkeypatch):
    names, metric_names = ("Identity", "Temperature"), ("error", "nll", "brier", "ece", "adaptive_ece", "kuiper")
    study = Study("x", (Grid(("digits",), ("resnet8",), ("focal",)),), names, metric_names)
    store, run, test, passed = Store(tmp_path), next(study.runs()), calibrated_predictions[:1001], []
    store.save(run, {"val": calibrated_predictions, "test": test}, {})
    report_passes(monkeypatch, passed.append)
    values = {(row["calibrator"], row["metric"]): row["value"] for row in study_rows(study, store)}
    assert passed.count(1001) == len(names) + 1  # and once without a calibrator
    for metric in metric_names:
        assert values["Identity", metric] == pytest.approx(float(getattr(metrics, metric)(test)), rel=1e-12), metric


def test_failure_cancels_remaining_measurements(filled, monkeypatch):
    begun, all_are_queued = list[bytes](), threading.Event()

    def work(packed: bytes) -> bytes:
        begun.append(packed)
        if len(begun) == 2:
            all_are_queued.wait()
            raise InputError("cannot be measured", code="unmeasured")
        return packed

    pool = ThreadPoolExecutor(1)
    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda *_, **options: pool)
    monkeypatch.setattr(module, "_measure_pickled", work)
    study, store = filled
    results = module._measure_in_processes(study, store, list(study.runs()), 2)
    next(results)
    all_are_queued.set()
    pool.shutdown()  # waits for all that are queued
    assert len(begun) == 2
    with refused("unmeasured"):
        next(results)


@pytest.mark.slow
def test_a_killed_process_is_reported(filled, tmp_path, monkeypatch, forgotten):
    monkeypatch.setattr(module, "MIN_PARALLEL_SECONDS", 0.0)
    (tmp_path / "dies.py").write_text(DIES)
    registry.include([str(tmp_path / "dies.py")])
    study, store = filled
    values = study_rows(replace(study, calibrators=("Dies",)), store, jobs=2)
    assert next(values)["calibrator"] == "Dies"  # the first run is measured here
    with refused("process_killed"):
        list(values)
