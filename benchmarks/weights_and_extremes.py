"""Intervals of 90 %, and Kuiper's test at 5 %, where rows are not alike: weights that are not counts, few extreme rows.

Weighted: calibrated probabilities, uniform on [0, 1], of n examples with weights of importance: lognormal ones, also
larger for high probabilities, and integers from 1 to 10. Extreme: a share of the confidences is close to 1 and wrong
more often than it says, and the others are right as often as they say. With n examples of a share s, (1 - s)^n of the
samples have no such row, and no interval can tell.
"""

import math
import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks._harness import Row, Size, markdown
from calibrant import Predictions, metrics
from calibrant.metrics._intervals import Extremes, mean_limits
from calibrant.metrics._scores import _event_brier_range, _nll_range, _signed_gap_range

TITLE = "Weights and extreme confidences"
LEVEL, ALPHA = 0.90, 0.05
WEIGHTED_DRAWS, EXTREME_DRAWS = 1_000, 4_000
TEST_SHARE = 4  # of the weighted draws, a quarter is tested: Kuiper's test simulates clusters, which takes a second
WEIGHTED_SIZES, EXTREME_SIZES = (100, 200, 500, 2000), (100, 200, 400, 1000, 5000)
WEIGHTS = "lognormal(0.5)", "lognormal(1)", "lognormal(1) times exp(p)", "integers 1 to 10"
EXTREMES = {  # share of extreme rows, the probability of an error that they state, its true one, others' confidence
    "10 % at 1 - 1e-12, 2 % wrong": (0.1, 1e-12, 0.02, 0.7),
    "10 % at 1 - 1e-12, 10 % wrong": (0.1, 1e-12, 0.1, 0.7),
    "30 % at 1 - 1e-12, 0.5 % wrong": (0.3, 1e-12, 0.005, 0.7),
    "5 % at 1 - 1e-4, 2 % wrong": (0.05, 1e-4, 0.02, 0.7),
    "5 % at 1 - 1e-4, 20 % wrong": (0.05, 1e-4, 0.2, 0.7),
    "1 % at 1 - 1e-6, 2 % wrong": (0.01, 1e-6, 0.02, 0.7),
    "1 % at 1 - 1e-6, 30 % wrong": (0.01, 1e-6, 0.3, 0.7),
    "10 % at 0.99, 5 % wrong, others 1e-6": (0.1, 0.01, 0.05, 1e-6),
    "10 % at 0.99, 2 % wrong, others 0.5": (0.1, 0.01, 0.02, 0.5),
}
RANGES = {"nll": _nll_range, "event_brier": _event_brier_range, "signed_gap": _signed_gap_range}
MEANS = "accuracy", "nll", "event_brier", "signed_gap", "debiased_l2"


def draw_weights(kind: str, p: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw a weight for every probability, with a mean of about 1 unless they are integers."""
    if kind.startswith("integers"):
        return rng.integers(1, 11, p.shape).astype(float)
    spread = 0.5 if "0.5" in kind else 1.0
    w = rng.lognormal(-(spread**2) / 2, spread, p.shape)
    return w * np.exp(p) / (math.e - 1) if "exp(p)" in kind else w


def weighted_truth(kind: str) -> dict[str, float]:
    """Return the weighted means over the population, from 100,000 midpoints of [0, 1]."""
    p = (np.arange(100_000) + 0.5) / 100_000
    w = np.exp(p) if "exp(p)" in kind else np.ones_like(p)
    scores = {
        "accuracy": np.maximum(p, 1 - p),
        "nll": -p * np.log(p) - (1 - p) * np.log(1 - p),
        "event_brier": p * (1 - p),
    }
    return {name: float(np.average(x, weights=w)) for name, x in scores.items()} | {"signed_gap": 0, "debiased_l2": 0}


def weighted_rows(kind: str, n: int, draws: int) -> Iterator[Row]:
    """Yield the coverage and mean width of every metric, and the share of draws that Kuiper's test rejects."""
    rng, truth = np.random.default_rng(zlib.crc32(f"{kind} {n}".encode())), weighted_truth(kind)
    ends, rejected = {name: list[tuple[float, float]]() for name in MEANS}, 0
    word = "importance" if kind.startswith("integers") else None  # fractions need none
    tests = max(1, draws // TEST_SHARE)
    for i in range(draws):
        probs = rng.random(n)
        labels = torch.from_numpy((rng.random(n) < probs).astype(int))
        p = Predictions.from_probs(probs, labels, draw_weights(kind, probs, rng), weights_are=word)
        rejected += i < tests and metrics.kuiper.test(p).p_value <= ALPHA
        for name in MEANS:
            interval = getattr(metrics, name).interval(p, level=LEVEL)
            ends[name].append((interval.low, interval.high))
    cell = {"kind": "weights", "design": kind, "n": n, "draws": draws}
    for name in MEANS:
        low, high = np.array(ends[name]).T
        holds = (low <= truth[name] + 1e-9) & (truth[name] <= high + 1e-9)
        yield cell | {"metric": name, "coverage": holds.mean(), "width": (high - low).mean()}
    yield cell | {"draws": tests, "metric": "kuiper", "coverage": 1 - rejected / tests, "width": math.nan}


def scores(p: Any, error: Any, outcome: Any, k: int) -> dict[str, Any]:
    """Return the scores of predictions with the probability p of the event, and `error` = 1 - p without rounding."""
    nll = np.where(outcome, -np.log(p), -np.log(error) + math.log(k - 1))
    return {"nll": nll, "event_brier": np.where(outcome, error, p) ** 2, "signed_gap": p - outcome}


def extreme_rows(design: str, k: int, n: int, draws: int) -> Iterator[Row]:
    """Yield the coverage and mean width of the means over n examples, some of which are extreme."""
    rng = np.random.default_rng(zlib.crc32(f"{design} {k} {n}".encode()))
    share, tiny, wrong, ordinary = EXTREMES[design]
    shares = np.array([share, 1 - share])  # extreme rows, and the others
    p, error, frequency = np.array([[1 - tiny, ordinary], [tiny, 1 - ordinary], [1 - wrong, ordinary]])
    kind = (rng.random((draws, n)) >= share).astype(int)
    drawn = scores(p[kind], error[kind], rng.random((draws, n)) < frequency[kind], k)
    means = [scores(p, error, np.full(2, outcome), k) for outcome in (True, False)]
    surprisals = -np.log(np.minimum(p, error)[kind].min(1)), drawn["nll"].max(1)
    extremes = Extremes(p[kind].min(1), p[kind].max(1), *surprisals, k)
    for name, values in drawn.items():
        truth = float(shares @ (frequency * means[0][name] + (1 - frequency) * means[1][name]))
        low, high = mean_limits(n, values.mean(1), values.var(1), RANGES[name](extremes), LEVEL)
        holds = (low <= truth + 1e-9) & (truth <= high + 1e-9)
        cell = {"kind": "extreme", "design": f"{design}; k = {k}", "n": n, "draws": draws}
        yield cell | {"metric": name, "coverage": holds.mean(), "width": (high - low).mean()}


def run(size: Size) -> Iterator[Row]:
    """Yield the rows of every cell."""
    for design, k, n in product(EXTREMES, (2, 10), EXTREME_SIZES):
        if k == 2 or EXTREMES[design][3] >= 0.5:  # of several classes, the event is that the predicted one is right
            yield from extreme_rows(design, k, n, max(20, EXTREME_DRAWS // size.shrink))
    for kind, n in product(WEIGHTS, WEIGHTED_SIZES if size.shrink == 1 else WEIGHTED_SIZES[:1]):
        yield from weighted_rows(kind, n, max(2, WEIGHTED_DRAWS // size.shrink**2))


def page(rows: list[Row]) -> str:
    """Return the coverage of every design and metric by n; of Kuiper's test, the share of draws that it rejects."""
    parts: list[str] = []
    for kind, sizes in (("weights", WEIGHTED_SIZES), ("extreme", EXTREME_SIZES)):
        cells = {(row["design"], row["metric"], int(row["n"])): row["coverage"] for row in rows if row["kind"] == kind}
        table: list[list[Any]] = []
        for design, name in dict.fromkeys(key[:2] for key in cells):
            coverage = [cells.get((design, name, n), math.nan) for n in sizes]
            is_test = name == "kuiper"
            table.append(
                [design, "kuiper, rejected" if is_test else name, *(1 - x if is_test else x for x in coverage)]
            )
        parts.append(markdown([kind, "metric", *(f"n = {n:,}" for n in sizes)], table))
    return "\n\n".join(parts)
