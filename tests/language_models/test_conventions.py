"""Published conventions and bounds, against their definitions and against enumeration."""

import itertools
import math

import numpy as np
import pytest
from evaluation_logs import write_lines
from refusals import code_of

from calibrant import EvaluationLog
from calibrant.language_models import (
    CONVENTIONS,
    browsecomp_error,
    conventions,
    hle_error,
    missing_confidence_bounds,
    simpleqa_f,
)
from calibrant.language_models._block_bounds import block_error_bounds
from calibrant.language_models._conventions import block_ends
from calibrant.language_models._missing import (
    brier_bounds,
    browsecomp_bounds,
    gap_bounds,
    hle_bounds,
)


def write_log(path, confidences, corrects, **columns):
    """Write a log; a missing confidence is None, and a missing answer has the grade "not attempted"."""
    names = columns.pop("question_id", range(len(corrects)))
    records = [
        {"question_id": str(i), "confidence": c, "correct": a} | {key: values[j] for key, values in columns.items()}
        for j, (i, c, a) in enumerate(zip(names, confidences, corrects, strict=True))
    ]
    return EvaluationLog.read(write_lines(path, records))


def hle_by_definition(confidence, correct, *, size=100, with_last_block=False):
    """Compute the error of the sorted answers, block by block."""
    pairs = sorted(zip(confidence, correct, strict=True))
    starts = [size * i for i in range(len(pairs) // size)]
    blocks = [pairs[start:end] for start, end in itertools.pairwise([*starts, len(pairs)])]
    used = blocks if with_last_block else blocks[:-1]
    squares = [len(b) * (sum(c for c, _ in b) / len(b) - sum(a for _, a in b) / len(b)) ** 2 for b in used]
    return math.sqrt(math.fsum(squares) / len(pairs))


def browsecomp_by_definition(confidence, correct, *, keeps_zero=True):
    total = 0.0
    for i in range(10):
        rows = [
            (c, a)
            for c, a in zip(confidence, correct, strict=True)
            if i < 10 * c <= i + 1 or (keeps_zero and i == 0 and c == 0)
        ]
        total += abs(sum(c - a for c, a in rows))
    return total / len(confidence)


@pytest.mark.parametrize("with_last_block", [False, True])
def test_hle_error_equals_definition(with_last_block):
    rng = np.random.default_rng(0)
    for n in (100, 199, 200, 734):
        c, a = rng.random(n), rng.integers(0, 2, n)
        value = hle_error(c, a, with_last_block=with_last_block)
        assert value == pytest.approx(hle_by_definition(c, a, with_last_block=with_last_block), abs=1e-12)
    assert math.isnan(hle_error(c[:99], a[:99], with_last_block=with_last_block))  # the published code fails


@pytest.mark.parametrize("keeps_zero", [False, True])
def test_browsecomp_error_equals_definition(keeps_zero):
    rng = np.random.default_rng(0)
    c, a = rng.integers(0, 65, 300) / 64, rng.integers(0, 2, 300)
    value = browsecomp_error(c, a, keeps_zero=keeps_zero)
    assert value == pytest.approx(browsecomp_by_definition(c, a, keeps_zero=keeps_zero), abs=1e-12)
    assert browsecomp_error(np.array([0.0]), np.array([1])) == 1.0
    assert browsecomp_error(np.array([0.0]), np.array([1]), keeps_zero=False) == 0.0


def test_simpleqa_is_a_harmonic_mean():
    correct, answered = np.array([1, 1, 0, 0, 0]), np.array([True, True, True, False, False])
    assert simpleqa_f(correct, answered) == pytest.approx(2 / (5 / 2 + 3 / 2), abs=1e-15)
    assert simpleqa_f(0 * correct, answered) == 0.0
    assert simpleqa_f(0 * correct, answered & False) == 0.0


@pytest.mark.parametrize("with_last_block", [False, True])
def test_range_over_orders_equals_enumeration(with_last_block):
    rng = np.random.default_rng(1)
    for _ in range(5):
        n, size = int(rng.integers(5, 9)), int(rng.integers(2, 4))
        c, a = rng.choice([0.2, 0.5, 0.9], n), rng.integers(0, 2, n)
        errors = set()
        for order in itertools.permutations(range(n)):
            order = np.array(order)
            rows = order[np.argsort(c[order], kind="stable")]
            if (c[rows].argsort(kind="stable") == np.arange(n)).all():
                ends = [size * (i + 1) for i in range(n // size - 1)] + [n]
                parts = itertools.pairwise([0, *ends])
                squares = [(c[rows[i:j]] - a[rows[i:j]]).sum() ** 2 / (j - i) / n for i, j in parts]
                errors.add(math.sqrt(sum(squares if with_last_block else squares[:-1])))
        low, high = block_error_bounds(c, a, block_ends(n, size), with_last_block=with_last_block)
        assert (low, high) == (pytest.approx(min(errors), abs=1e-12), pytest.approx(max(errors), abs=1e-12))


def test_range_over_orders_of_a_tie_over_many_blocks():
    c, a = np.full(1000, 0.7), (np.arange(1000) < 700).astype(int)
    low, high = block_error_bounds(c, a, block_ends(1000, 100), with_last_block=True)
    assert low == pytest.approx(0.0, abs=1e-12)
    assert high == pytest.approx(math.sqrt(0.7 * 0.3**2 + 0.3 * 0.7**2), abs=1e-12)  # seven blocks right, three wrong


def test_conventions_fill_in_full_confidence(tmp_path):
    confidences = [0.5] * 60 + [None] * 60
    corrects = [True, False] * 60
    corrects[0] = "not attempted"
    log = write_log(tmp_path / "a.jsonl", confidences, corrects)
    values = conventions(log)
    assert list(values) == list(CONVENTIONS)
    assert (values["browsecomp"].n, values["browsecomp"].filled) == (120, 61)
    filled, right = np.array([1.0] + [0.5] * 59 + [1.0] * 60), np.array([0] + [0, 1] * 29 + [0] + [1, 0] * 30)
    assert values["browsecomp"].value == pytest.approx(browsecomp_by_definition(filled, right), abs=1e-12)
    assert values["hle"].value == 0.0  # a single block, which is left out
    assert values["simpleqa_f"].value == pytest.approx(2 * 59 / (120 + 119), abs=1e-12)
    assert values["simpleqa_f"].filled == 0


def test_conventions_of_few_answers(tmp_path):
    values = conventions(write_log(tmp_path / "a.jsonl", [0.25, 0.999], [True, False]))
    assert math.isnan(values["hle"].value)
    assert values["inspect_hle"].value == pytest.approx(abs(0.25 + 0.99 - 1) / 2, abs=1e-12)  # whole percents


def test_published_values_do_not_depend_on_order_beyond_their_range(tmp_path):
    rng = np.random.default_rng(3)
    c, a = rng.choice([0.6, 0.8, 0.9, 1.0], 450), rng.integers(0, 2, 450)
    first = conventions(write_log(tmp_path / "a.jsonl", c.tolist(), a.tolist()))
    order = rng.permutation(450)
    second = conventions(write_log(tmp_path / "b.jsonl", c[order].tolist(), a[order].tolist()))
    for name, value in first.items():
        shuffled = second[name]
        assert (value.low, value.high) == (pytest.approx(shuffled.low), pytest.approx(shuffled.high))
        assert value.low - 1e-12 <= shuffled.value <= value.high + 1e-12
    assert first["hle"].high - first["hle"].low > 0.05
    assert first["browsecomp"].low == first["browsecomp"].high


def test_fractional_scores_are_refused(tmp_path):
    log = write_log(tmp_path / "a.jsonl", [0.5, 0.7], [0.5, 1])
    assert code_of(conventions, log) == "fractional_correct"
    assert code_of(missing_confidence_bounds, log) == "fractional_correct"


# Bounds over missing confidences

GRID = [0.0, *(x for i in range(1, 11) for x in (i / 10 - 0.1 + 1e-9, i / 10 - 0.05, i / 10))]


def random_problem(rng, n, missing):
    c, a = np.round(rng.random(n), 2), rng.integers(0, 2, n)
    c[rng.choice(n, missing, replace=False)] = np.nan
    return c, a


def fillings(c, values):
    rows = np.flatnonzero(np.isnan(c))
    for fill in itertools.product(values, repeat=len(rows)):
        filled = c.copy()
        filled[rows] = fill
        yield filled


def test_gap_and_brier_bounds_equal_enumeration():
    rng = np.random.default_rng(0)
    c, a = random_problem(rng, 8, 4)
    w = rng.random(8)
    for function, bounds in (
        (lambda x: np.average(x - a, weights=w), gap_bounds(c, a, w)),
        (lambda x: np.average((x - a) ** 2, weights=w), brier_bounds(c, a, w)),
    ):
        values = [function(x) for x in fillings(c, (0.0, 0.5, 1.0))]
        assert (bounds.low, bounds.high) == (pytest.approx(min(values)), pytest.approx(max(values)))
        assert bounds.is_exact


def test_browsecomp_bounds_equal_enumeration():
    """The least sum is piecewise linear in the confidences: the ends of bins and the zero of the last sum reach it."""
    rng = np.random.default_rng(2)
    for _ in range(5):
        c, a = random_problem(rng, 6, 2)
        values = [browsecomp_error(x, a) for x in fillings(c, np.unique([*GRID, *np.arange(101) / 100]))]
        bounds = browsecomp_bounds(c, a)
        assert bounds.is_exact
        assert bounds.low == pytest.approx(min(values), abs=1e-8)
        assert bounds.high == pytest.approx(max(values), abs=1e-8)


@pytest.mark.parametrize("with_last_block", [False, True])
@pytest.mark.parametrize("outcome", [0, 1])
def test_hle_bounds_of_equal_outcomes_are_reached_at_0_or_1(with_last_block, outcome):
    rng = np.random.default_rng(4)
    for n in (12, 30, 31):
        c, a = random_problem(rng, n, 5)
        a[:] = outcome
        bounds = hle_bounds(c, a, size=5, with_last_block=with_last_block)
        ends = [
            hle_by_definition(np.nan_to_num(c, nan=fill), a, size=5, with_last_block=with_last_block)
            for fill in (0.0, 1.0)
        ]
        assert (bounds.low, bounds.high) == (pytest.approx(min(ends), abs=1e-12), pytest.approx(max(ends), abs=1e-12))


def test_hle_bounds_of_one_block_are_those_of_its_gap():
    rng = np.random.default_rng(5)
    for n in (5, 7, 9):
        c, a = random_problem(rng, n, 3)
        bounds, gap = hle_bounds(c, a, size=5, with_last_block=True), gap_bounds(c, a)
        assert bounds.low == pytest.approx(max(0, gap.low, -gap.high), abs=1e-12)
        assert bounds.high == pytest.approx(max(-gap.low, gap.high), abs=1e-12)


@pytest.mark.parametrize("with_last_block", [False, True])
def test_hle_bounds_hold_every_filling(with_last_block, monkeypatch):
    rng = np.random.default_rng(4)
    for i in range(12):
        c, a = random_problem(rng, 40, 8)
        if i % 3 == 1:
            c = np.round(4 * c) / 4
        monkeypatch.setattr("calibrant.language_models._block_bounds.MAX_STEPS", 0 if i < 6 else 10**9)
        bounds = hle_bounds(c, a, size=5, with_last_block=with_last_block)
        assert not bounds.is_exact
        for filled in (np.where(np.isnan(c), rng.random(40) ** rng.choice([0.1, 1, 10]), c) for _ in range(100)):
            assert hle_error(filled, a, size=5, with_last_block=with_last_block) in bounds


def test_hle_bounds_of_a_large_log():
    rng = np.random.default_rng(5)
    c = rng.choice([0.7, 0.9, 1.0], 3_000)
    a = (rng.random(3_000) < c).astype(int)
    bounds = hle_bounds(np.where(rng.random(3_000) < 0.1, np.nan, c), a, with_last_block=True)
    low, high = block_error_bounds(c, a, block_ends(3_000, 100), with_last_block=True)
    assert low in bounds
    assert high in bounds


@pytest.mark.slow
def test_bounds_hold_full_numbers(tmp_path):
    rng = np.random.default_rng(5)
    for i in range(6):
        n = int(rng.integers(200, 500))
        c = np.round(rng.beta(3, 1, n), 1 + i % 2)
        a = (rng.random(n) < c * rng.random()).astype(int)
        full = write_log(tmp_path / "full.jsonl", c.tolist(), a.tolist())
        lost = rng.random(n) < rng.random()
        log = write_log(tmp_path / "lost.jsonl", [None if gone else x for x, gone in zip(c.tolist(), lost)], a.tolist())
        bounds = missing_confidence_bounds(log)
        published = conventions(full)
        assert published["hle"].value in bounds["hle"]
        assert published["hle_all_blocks"].low in bounds["hle_all_blocks"]
        assert published["hle_all_blocks"].high in bounds["hle_all_blocks"]
        assert published["browsecomp"].value in bounds["browsecomp"]
        assert float(np.mean(c - a)) in bounds["signed_gap"]
        assert float(np.mean((c - a) ** 2)) in bounds["brier"]


def test_bounds_without_missing_confidences_are_the_number(tmp_path):
    rng = np.random.default_rng(6)
    c, a = rng.random(350), rng.integers(0, 2, 350)
    log = write_log(tmp_path / "a.jsonl", c.tolist(), a.tolist())
    bounds, published = missing_confidence_bounds(log), conventions(log)
    for name in ("browsecomp", "hle", "hle_all_blocks"):
        assert (bounds[name].low, bounds[name].high) == (pytest.approx(published[name].value, abs=1e-12),) * 2
    assert bounds["signed_gap"].low == pytest.approx(bounds["signed_gap"].high, abs=1e-15)
