"""How many threads work is decided once, at the door."""

import math
import os
import threading
import time
from functools import partial

import pytest
import torch
from torch import Tensor

from calibrant import Predictions, assess, measure, metrics
from calibrant._softmax import entropies, outcomes
from calibrant._threads import ENOUGH, PIECE, shared, threads_for
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
from calibrant.cli import LARGE, _threads


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
    with threads_for(ENOUGH):
        assert torch.get_num_threads() == 2
    with threads_for(ENOUGH - 1), threads_for(10):
        assert torch.get_num_threads() == 1
    assert asked == [1, 2]


def test_pieces_are_shared_where_torch_itself_is_told_to_work_in_one_thread():
    workers = list[set[int]]()

    def work(_: int) -> None:
        assert torch.get_num_threads() == 1
        workers[-1].add(threading.get_ident())
        time.sleep(0.001)

    def found(elements: int, *, in_pieces: bool) -> tuple[int, int]:
        workers.append(set())
        with threads_for(elements, in_pieces=in_pieces):
            shared(work, range(100), PIECE)
            return torch.get_num_threads(), len(workers[-1])

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert found(ENOUGH, in_pieces=True) == (1, 2)
        assert found(ENOUGH, in_pieces=False) == (2, 2)
        assert found(ENOUGH - 1, in_pieces=True) == (1, 1)
        with threads_for(10):
            assert found(ENOUGH, in_pieces=True) == (1, 1)  # decided further out
        with threads_for(ENOUGH, in_pieces=True):
            assert found(ENOUGH, in_pieces=False) == (2, 2)  # a fit, or a map, of what is measured
            assert found(ENOUGH - 1, in_pieces=False) == (1, 1)
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_many_pieces_are_shared_and_come_in_order():
    workers = set[int]()
    meeting = threading.Barrier(2, timeout=30)

    def work(i: int) -> int:
        if i < 2:
            meeting.wait()  # for another thread
        assert torch.get_num_threads() == 1
        workers.add(threading.get_ident())
        return i * i

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert shared(work, range(100), PIECE) == [i * i for i in range(100)]
        assert len(workers) == 2
        assert torch.get_num_threads() == 2
        assert shared(lambda _: threading.get_ident(), range(100), ENOUGH // 200) == [threading.get_ident()] * 100
        assert shared(lambda _: threading.get_ident(), range(3), ENOUGH) == [threading.get_ident()] * 3
    finally:
        torch.set_num_threads(before)


def test_what_fails_in_a_thread_fails_for_all_and_no_more_is_begun():
    begun = list[int]()
    mine = threading.get_ident()
    other = threading.Event()

    def work(i: int) -> None:
        begun.append(i)
        if threading.get_ident() != mine:
            other.set()
            raise IndexError("of my own")
        assert other.wait(30)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(IndexError, match="of my own"):
            shared(work, range(100), PIECE)
        assert torch.get_num_threads() == 2
        begun.clear()
        with pytest.raises(ZeroDivisionError):
            shared(lambda i: begun.append(i) or time.sleep(0.01) or 1 // (i - 1), range(10_000), PIECE)
        assert len(begun) < 10_000
    finally:
        torch.set_num_threads(before)


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
        p = draw(ENOUGH // 2)
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
    partial(metrics.split, fit=Temperature.fit),
    lambda p: metrics.compare(p, p),
    lambda p: p.mapped(lambda z: 2 * z),
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
    p = draw(ENOUGH // 3 + 1)
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
        file.truncate(int(LARGE))  # a hole, which takes no room
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
        _threads(arguments)
        assert os.environ.get("OMP_NUM_THREADS") == after, arguments
        assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
