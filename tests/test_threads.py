"""How many threads work is decided once, at the door."""

import math
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from calibrant import Predictions, assess, cli, measure, metrics
from calibrant.backend import threads
from calibrant.backend.softmax import entropies, outcomes
from calibrant.backend.threads import MIN_PARALLEL_ELEMENTS, PARALLEL_CHUNK_ELEMENTS, map_chunks, thread_limit
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
def asked(monkeypatch):
    """What torch was told, in a process of two threads."""
    told, now = list[int](), [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda n: told.append(n) or now.__setitem__(0, n))
    return told


def draw(n: int) -> Predictions:
    g = torch.Generator().manual_seed(0)
    z = torch.randn(n, 3, generator=g)
    return Predictions(2 * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1))


def test_few_numbers_are_worked_on_in_one_thread_and_many_in_all(asked):
    with thread_limit(MIN_PARALLEL_ELEMENTS):
        assert torch.get_num_threads() == 2
    with thread_limit(MIN_PARALLEL_ELEMENTS - 1), thread_limit(10):
        assert torch.get_num_threads() == 1
    assert asked == [1, 2]


def test_pieces_are_shared_where_torch_itself_is_told_to_work_in_one_thread():
    def found(elements: int, *, in_pieces: bool, workers: int) -> tuple[int, int]:
        meeting, identities = threading.Barrier(workers, timeout=60), set[int]()

        def work(i: int) -> None:
            if i < workers:
                meeting.wait()  # every expected worker takes one of the first chunks
            assert torch.get_num_threads() == 1
            identities.add(threading.get_ident())

        with thread_limit(elements, in_chunks=in_pieces):
            map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)
            return torch.get_num_threads(), len(identities)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert found(MIN_PARALLEL_ELEMENTS, in_pieces=True, workers=2) == (1, 2)
        assert found(MIN_PARALLEL_ELEMENTS, in_pieces=False, workers=2) == (2, 2)
        assert found(MIN_PARALLEL_ELEMENTS - 1, in_pieces=True, workers=1) == (1, 1)
        with thread_limit(10):
            assert found(MIN_PARALLEL_ELEMENTS, in_pieces=True, workers=1) == (1, 1)  # decided further out
        with thread_limit(MIN_PARALLEL_ELEMENTS, in_chunks=True):
            assert found(MIN_PARALLEL_ELEMENTS, in_pieces=False, workers=2) == (
                2,
                2,
            )  # a fit, or a map, of what is measured
            assert found(MIN_PARALLEL_ELEMENTS - 1, in_pieces=False, workers=1) == (1, 1)
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_many_pieces_are_shared_and_come_in_order():
    workers = set[int]()
    meeting = threading.Barrier(2, timeout=60)

    def work(i: int) -> int:
        if i < 2:
            meeting.wait()  # for another thread
        assert torch.get_num_threads() == 1
        workers.add(threading.get_ident())
        return i * i

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS) == [i * i for i in range(100)]
        assert len(workers) == 2
        assert torch.get_num_threads() == 2
        assert (
            map_chunks(lambda _: threading.get_ident(), range(100), MIN_PARALLEL_ELEMENTS // 200)
            == [threading.get_ident()] * 100
        )
        assert (
            map_chunks(lambda _: threading.get_ident(), range(3), MIN_PARALLEL_ELEMENTS) == [threading.get_ident()] * 3
        )
    finally:
        torch.set_num_threads(before)


@pytest.fixture
def other_thread(monkeypatch):
    """The futures of the second of two threads, which begins chunk 0 before the caller begins chunk 1."""
    futures, begun, leaving = list[Future](), threading.Event(), threading.Event()

    class Pool(ThreadPoolExecutor):
        def submit(self, work):
            futures.append(super().submit(work))
            assert begun.wait(60)
            return futures[-1]

        def shutdown(self, wait=True, **options):
            leaving.set()
            super().shutdown(wait, **options)

    monkeypatch.setattr(threads, "ThreadPoolExecutor", Pool)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield SimpleNamespace(futures=futures, begun=begun, leaving=leaving)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


@pytest.mark.parametrize("error", [ZeroDivisionError, IndexError, SystemExit])
def test_worker_exception_cancels_remaining_chunks(other_thread, error):
    chunks, caller = list[int](), threading.get_ident()

    def work(i: int) -> None:
        chunks.append(i)
        if threading.get_ident() == caller:
            assert wait(other_thread.futures, timeout=60).done
        else:
            other_thread.in_progress.set()
            raise error

    with pytest.raises(error):
        map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)
    assert 0 in chunks
    assert len(chunks) <= 2


@pytest.mark.parametrize("error", [ZeroDivisionError, IndexError, KeyboardInterrupt])
def test_exception_of_the_caller_cancels_remaining_chunks(other_thread, error):
    chunks = list[int]()

    def work(i: int) -> None:
        chunks.append(i)
        if i == 1:
            raise error
        other_thread.in_progress.set()
        assert other_thread.leaving.wait(60)

    with pytest.raises(error):
        map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)
    assert chunks == [0, 1]


def test_first_failure_in_the_order_of_chunks_is_raised(other_thread):
    def work(i: int) -> None:
        if i == 0:
            other_thread.in_progress.set()
            assert second_failed.wait(60)
            raise ZeroDivisionError
        second_failed.set()
        raise IndexError

    second_failed = threading.Event()
    with pytest.raises(ZeroDivisionError):
        map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)


def test_interrupt_comes_before_any_failure(other_thread):
    def work(i: int) -> None:
        if i == 0:
            other_thread.in_progress.set()
            assert second_begun.wait(60)
            raise ZeroDivisionError
        second_begun.set()
        assert wait(other_thread.futures, timeout=60).done
        raise KeyboardInterrupt

    second_begun = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        map_chunks(work, range(100), PARALLEL_CHUNK_ELEMENTS)


@pytest.mark.parametrize(("n", "k"), [(500_000, 9), (30_000, 150)])
def test_two_threads_find_what_one_does_to_the_last_bit(n, k):
    g = torch.Generator().manual_seed(0)
    z = torch.randn(n, k, generator=g)
    y = torch.randint(k, (n,), generator=g)

    def found() -> list[Tensor]:
        rows = outcomes(z, y)
        each = (rows.confidence, rows.correct, rows.log_likelihood, rows.brier, entropies(z))
        events = metrics.sweep_ece(z, y), metrics.classwise_ece(z, y), Temperature.fit(z, y).temperature
        said = [x for row in measure(Predictions(z, y)).rows for x in (row.value, row.low, row.high, row.p_value)]
        table = torch.tensor([math.nan if x is None else x for x in said], dtype=torch.float64).nan_to_num(-1.0)
        return [*each, *events, table, *([metrics.auroc(z, y)] if k < 100 else [])]

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = found()
        torch.set_num_threads(2)
        assert all(torch.equal(a, b) for a, b in zip(alone, found(), strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_many_rows_enter_and_are_measured_in_inference_mode(mode):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        p = draw(MIN_PARALLEL_ELEMENTS // 2)
        expected = [float(metrics.nll(p)), float(metrics.classwise_ece(p))]
        with mode():
            again = Predictions(p.logits, p.labels)
            assert [float(metrics.nll(again)), float(metrics.classwise_ece(again))] == expected
            assert [float(metrics.nll(p)), float(metrics.classwise_ece(p))] == expected
    finally:
        torch.set_num_threads(before)


CALLS = [
    *(metrics.ece, metrics.nll.interval, metrics.kuiper.test, metrics.sweep_ece, measure),
    *(metrics.tables.bins, metrics.tables.classes, metrics.tables.thresholds),
    *(metrics.curves.corp, metrics.curves.risk_coverage, metrics.Summary.from_predictions),
    partial(metrics.decompose_score, fit=Temperature.fit),
    lambda p: metrics.compare(p, p),
    lambda p: p.apply(lambda z: 2 * z),
    lambda p: Predictions(p.logits, p.labels),
    lambda p: Predictions.from_probs(torch.ones(200, 2) / 2, p.labels % 2),
    lambda p: Predictions.from_confidence(torch.linspace(0, 1, 200), p.labels % 2),
    lambda p: Predictions.from_binary_logits(p.logits[:, 0], p.labels % 2),
    lambda p: Predictions.multilabel(p.logits, p.logits > 0),
    lambda p: metrics.ece(p.logits, p.labels),
    lambda p: metrics.tables.groups(p._with(groups=p.labels, group_names=("a", "b", "c"))),
    lambda p: Temperature.fit(p.logits, p.labels),
    lambda p: fit("Temperature", p.logits, p.labels),
    *(calibrator.fit for calibrator in (Temperature, HistogramBinning, Isotonic, Spline, StructuredMatrix, Auto)),
    partial(FocalTemperature.fit, grid=([0.0, 1.0], [0.5, 1.0, 2.0])),
]


@pytest.mark.parametrize("call", [metrics.ece, measure, metrics.tables.classes, metrics.nll.interval])
def test_what_is_measured_leaves_many_numbers_to_shared_pieces(asked, call):
    p = draw(MIN_PARALLEL_ELEMENTS // 3 + 1)
    asked.clear()
    call(p)
    assert asked == [1, 2]


@pytest.mark.parametrize("call", CALLS)
def test_a_public_call_decides_once(asked, call):
    p = draw(200)
    asked.clear()
    call(p)
    assert asked == [1, 2]


def test_an_assessment_leaves_the_threads_as_they_were(asked):
    p = draw(200)
    asked.clear()
    assess(p[:100], p[100:], ["Identity", "Temperature"])
    assert asked[0] == 1
    assert asked[-1] == 2
    assert set(asked[:-1]) == {1}


def test_a_command_decides_by_its_files_where_the_user_has_not(tmp_path, monkeypatch):
    small, large = tmp_path / "small.npz", tmp_path / "large.npz"
    small.write_bytes(b"0")
    with large.open("wb") as file:
        file.truncate(int(cli.MIN_PARALLEL_BYTES))  # a hole, which takes no room
    for arguments, before, after in (
        (["assess", str(small), str(small), "--metric", "nll"], None, "1"),
        (["assess", str(small), str(large)], None, None),
        (["measure", str(tmp_path)], None, None),
        (["assess", str(small)], "3", "3"),
        (["study", "run", str(small)], None, None),
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
