"""Public calls set the number of threads once, and `map_chunks` shares large work."""

import math
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
from drawn import drawn_labels

from calibrant import Predictions, assess, cli, measure, metrics
from calibrant._core.kernels import threads
from calibrant._core.kernels.softmax import entropies, outcomes
from calibrant._core.kernels.threads import (
    MIN_PARALLEL_ELEMENTS,
    PARALLEL_CHUNK_ELEMENTS,
    available_threads,
    map_chunks,
    thread_limit,
)
from calibrant.calibrators import (
    Auto,
    FocalTemperature,
    HistogramBinning,
    Isotonic,
    Spline,
    StructuredMatrix,
    Temperature,
    fit,
)


@pytest.fixture
def thread_settings(torch, monkeypatch):
    """Record the thread counts that torch is set to, in a process of two threads."""
    settings, current = list[int](), [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: current[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: settings.append(n) or current.__setitem__(0, n))
    return settings


@pytest.fixture(params=["numpy", "torch"])
def two_threads(request, monkeypatch):
    """Set two threads, in torch or without it, and check that they are still two at the end."""
    if request.param == "torch":
        torch = pytest.importorskip("torch")
        before = torch.get_num_threads()
        torch.set_num_threads(2)
    else:
        monkeypatch.setattr(threads, "_loaded_torch", lambda: None)
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
    yield request.param
    assert available_threads() == 2
    if request.param == "torch":
        torch.set_num_threads(before)


of_torch = pytest.mark.parametrize("two_threads", ["torch"], indirect=True)


def draw(n: int) -> Predictions:
    rng = np.random.default_rng(0)
    z = rng.standard_normal((n, 3), dtype=np.float32)
    return Predictions(2 * z, drawn_labels(z, rng))


def test_thread_limit_is_one_below_the_threshold(thread_settings):
    with thread_limit(MIN_PARALLEL_ELEMENTS):
        assert available_threads() == 2
    with thread_limit(MIN_PARALLEL_ELEMENTS - 1), thread_limit(10):
        assert available_threads() == 1
    assert thread_settings == [1, 2]


@of_torch
def test_chunks_use_threads_while_torch_itself_is_limited_to_one(two_threads, torch):
    def threads_used(elements: int, *, in_chunks: bool, workers: int) -> tuple[int, int]:
        meeting, identities = threading.Barrier(workers, timeout=60), set[int]()

        def work(i: int) -> None:
            if i < workers:
                meeting.wait()  # every expected worker takes one of the first chunks
            assert torch.get_num_threads() == 1
            identities.add(threading.get_ident())

        with thread_limit(elements, in_chunks=in_chunks):
            map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)
            return torch.get_num_threads(), len(identities)

    assert threads_used(MIN_PARALLEL_ELEMENTS, in_chunks=True, workers=2) == (1, 2)
    assert threads_used(MIN_PARALLEL_ELEMENTS, in_chunks=False, workers=2) == (2, 2)
    assert threads_used(MIN_PARALLEL_ELEMENTS - 1, in_chunks=True, workers=1) == (1, 1)
    with thread_limit(10):  # the outer limit holds
        assert threads_used(MIN_PARALLEL_ELEMENTS, in_chunks=True, workers=1) == (1, 1)
    with thread_limit(MIN_PARALLEL_ELEMENTS, in_chunks=True):  # a fit inside a measurement
        assert threads_used(MIN_PARALLEL_ELEMENTS, in_chunks=False, workers=2) == (2, 2)
        assert threads_used(MIN_PARALLEL_ELEMENTS - 1, in_chunks=False, workers=1) == (1, 1)
        assert torch.get_num_threads() == 1


def test_map_chunks_preserves_order(two_threads):
    meeting = threading.Barrier(2, timeout=60)

    def work(i: int) -> int:
        if i < 2:
            meeting.wait()
        assert available_threads() == (1 if two_threads == "torch" else 2)
        return i * i

    assert map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS) == [i * i for i in range(100)]


@pytest.mark.parametrize(("chunks", "elements"), [(100, MIN_PARALLEL_ELEMENTS // 200), (3, MIN_PARALLEL_ELEMENTS)])
def test_small_work_stays_in_the_thread_of_the_caller(two_threads, chunks, elements):
    identities = map_chunks(lambda _: threading.get_ident(), range(chunks), elements)
    assert identities == [threading.get_ident()] * chunks


@pytest.fixture
def cancelled(two_threads, monkeypatch):
    """Set this event when `map_chunks` has cancelled the chunks that have not started."""
    event = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait=True, **options):
            super().shutdown(wait=False, **options)
            event.set()
            super().shutdown(wait)

    monkeypatch.setattr(threads, "ThreadPoolExecutor", Pool)
    return event


@pytest.mark.parametrize("error", [ZeroDivisionError, IndexError, SystemExit])
@pytest.mark.parametrize("failing", [0, 1])
def test_worker_exception_cancels_remaining_chunks(cancelled, error, failing):
    started = set[int]()

    def work(i: int) -> None:
        started.add(i)
        if i == failing:
            raise error
        assert cancelled.wait(60)

    with pytest.raises(error):
        map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)
    assert started <= {0, 1, 2}


def test_interrupt_of_the_caller_cancels_remaining_chunks(cancelled, monkeypatch):
    started = set[int]()

    def work(i: int) -> None:
        started.add(i)
        assert cancelled.wait(60)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(threads, "wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)
    assert started <= {0, 1}


def test_exception_of_the_earliest_chunk_is_raised(cancelled):
    second_failed = threading.Event()

    def work(i: int) -> None:
        if i == 0:
            assert second_failed.wait(60)
            raise ZeroDivisionError
        second_failed.set()
        raise IndexError

    with pytest.raises(ZeroDivisionError):
        map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)


@pytest.mark.parametrize(("n", "k"), [(500_000, 9), (30_000, 150)])
def test_two_threads_give_the_same_bits_as_one(two_threads, n, k):
    rng = np.random.default_rng(0)
    z, y = rng.standard_normal((n, k), dtype=np.float32), rng.integers(k, size=n)

    def results() -> list[Any]:
        rows = outcomes(z, y)
        columns = (rows.confidence, rows.correct, rows.log_likelihood, rows.brier, entropies(z))
        numbers = metrics.sweep_ece(z, y), metrics.classwise_ece(z, y), Temperature.fit(z, y).temperature
        cells = [x for row in measure(Predictions(z, y)).rows for x in (row.value, row.low, row.high, row.p_value)]
        table = np.nan_to_num([math.nan if x is None else x for x in cells], nan=-1.0)
        return [*columns, *numbers, table, *([metrics.auroc(z, y)] if k < 100 else [])]

    with thread_limit(0):
        expected = results()
    assert all(np.array_equal(a, b) for a, b in zip(expected, results(), strict=True))


@of_torch
@pytest.mark.parametrize("mode", ["inference_mode", "no_grad"])
def test_threads_work_in_inference_mode(two_threads, torch, mode):
    p = draw(MIN_PARALLEL_ELEMENTS // 2)
    expected = [metrics.nll(p), metrics.classwise_ece(p)]
    with getattr(torch, mode)():
        copy = Predictions(p.logits, p.labels)
        assert [metrics.nll(copy), metrics.classwise_ece(copy)] == expected
        assert [metrics.nll(p), metrics.classwise_ece(p)] == expected


CALLS = [
    *(metrics.ece, metrics.nll.interval, metrics.kuiper.test, metrics.sweep_ece, measure),
    *(metrics.tables.bins, metrics.tables.classes, metrics.tables.thresholds),
    *(metrics.curves.corp, metrics.curves.risk_coverage, metrics.Summary.from_predictions),
    partial(metrics.decompose_score, fit=Temperature.fit),
    lambda p: metrics.compare(p, p),
    lambda p: p.apply(lambda z: 2 * z),
    lambda p: Predictions(p.logits, p.labels),
    lambda p: Predictions.from_probs(np.full((200, 2), 0.5), p.labels % 2),
    lambda p: Predictions.from_confidence(np.linspace(0, 1, 200), p.labels % 2),
    lambda p: Predictions.from_binary_logits(p.logits[:, 0], p.labels % 2),
    lambda p: Predictions.multilabel(p.logits, p.logits > 0),
    lambda p: metrics.ece(p.logits, p.labels),
    lambda p: metrics.tables.groups(p._replace(groups=p.labels, group_names=("a", "b", "c"))),
    lambda p: Temperature.fit(p.logits, p.labels),
    lambda p: fit("Temperature", p.logits, p.labels),
    *(calibrator.fit for calibrator in (Temperature, HistogramBinning, Isotonic, Spline, StructuredMatrix, Auto)),
    partial(FocalTemperature.fit, grid=([0.0, 1.0], [0.5, 1.0, 2.0])),
]


@pytest.mark.parametrize("call", [metrics.ece, measure, metrics.tables.classes, metrics.nll.interval])
def test_measurements_leave_large_work_to_map_chunks(thread_settings, call):
    p = draw(MIN_PARALLEL_ELEMENTS // 3 + 1)
    thread_settings.clear()
    call(p)
    assert thread_settings == [1, 2]


@pytest.mark.parametrize("call", CALLS)
def test_public_call_sets_the_threads_once(thread_settings, call):
    p = draw(200)
    thread_settings.clear()
    call(p)
    assert thread_settings == [1, 2]


def test_assessment_restores_the_threads(thread_settings):
    p = draw(200)
    thread_settings.clear()
    assess(p[:100], p[100:], ["Identity", "Temperature"])
    assert thread_settings[0] == 1
    assert thread_settings[-1] == 2
    assert set(thread_settings[:-1]) == {1}


def test_command_sets_threads_by_the_size_of_its_files(tmp_path, monkeypatch):
    small_file, large_file = tmp_path / "small.npz", tmp_path / "large.npz"
    small_file.write_bytes(b"0")
    with large_file.open("wb") as file:
        file.truncate(int(cli.MIN_PARALLEL_BYTES))  # sparse, so that it takes no space
    for arguments, before, after in (
        (["assess", str(small_file), str(small_file), "--metric", "nll"], None, "1"),
        (["assess", str(small_file), str(large_file)], None, None),
        (["measure", str(tmp_path)], None, None),
        (["assess", str(small_file)], "3", "3"),
        (["study", "run", str(small_file)], None, None),
        (["--help"], None, None),
    ):
        monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if before is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", before)
        cli._set_thread_defaults(arguments)
        assert os.environ.get("OMP_NUM_THREADS") == after, arguments
        assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
