"""Noise floors against exact distributions: sums of binomial numbers, enumerated."""

from itertools import product

import numpy as np
import pytest
from scipy.stats import binom

from calibrant import Predictions, metrics
from calibrant.metrics import Summary

FLOORS = metrics.noise_floor, metrics.adaptive_noise_floor


def predictions(values, counts) -> Predictions:
    """Return predictions with `counts` rows of each probability, of which the first ones are events."""
    p = np.repeat(values, counts)
    return Predictions.from_probs(p, (np.arange(len(p)) % 2).astype(int))


def quantiles(errors, probability, levels=(0.05, 0.95)):
    """Return the mean and quantiles of a discrete distribution."""
    order = np.argsort(errors)
    return errors @ probability, *np.interp(levels, probability[order].cumsum(), errors[order])


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize(("n", "c"), [(30, 0.3), (100, 0.3), (100, 0.002), (500, 0.999), (5000, 0.95), (40_000, 0.1)])
def test_floor_of_a_constant_is_that_of_a_binomial_number(floor, n, c):
    hits = np.arange(n + 1)
    errors = np.abs(hits / n - c)
    probability = binom.pmf(hits, n, c)
    interval = floor.interval(predictions([c], [n]))
    assert interval.value == pytest.approx(errors @ probability, rel=0.005)
    order = np.argsort(errors)
    cumulative = probability[order].cumsum()
    for end, level in ((interval.low, 0.05), (interval.high, 0.95)):
        below, above = np.searchsorted(errors[order], [end - 0.6 / n, end + 0.6 / n])  # half the distance of counts
        assert (cumulative[below - 1] if below else 0) <= level + 0.002
        assert cumulative[above - 1] >= level - 0.002


def test_floor_of_the_constant_whose_bins_share_one_tie():
    p = Predictions.from_probs(np.full(100, 0.3), [1] * 42 + [0] * 58)
    assert float(metrics.adaptive_noise_floor(p)) == pytest.approx(0.036449223, rel=1e-6)
    assert metrics.adaptive_noise_floor.interval(p).high == pytest.approx(0.09, rel=1e-3)


@pytest.mark.parametrize(
    ("values", "counts"), [((0.3, 0.8), (25, 15)), ((0.002, 0.4), (300, 21)), ((0.5, 0.97), (9, 41))]
)
@pytest.mark.parametrize("bins", [2, 3, 15])
def test_bins_that_share_a_tie_vary_together(values, counts, bins):
    """Enumerate the hits of two tied groups, and read the adaptive ECE off its definition."""
    n = sum(counts)
    hits = list(product(*(range(count + 1) for count in counts)))
    probability = np.prod([binom.pmf(column, *law) for column, law in zip(zip(*hits), zip(counts, values))], axis=0)
    gaps = (np.array(hits) / counts - values).repeat(counts, axis=1)  # of every row, ties averaged
    errors = sum(np.abs(part.sum(1)) for part in np.array_split(gaps, bins, axis=1)) / n
    mean, low, high = quantiles(errors, probability)
    interval = metrics.adaptive_noise_floor.interval(predictions(values, counts), bins=bins)
    assert interval.value == pytest.approx(mean, rel=0.005)
    assert interval.high == pytest.approx(high, rel=0.02)
    assert interval.low == pytest.approx(low, rel=0.03, abs=0.0005)


@pytest.mark.parametrize("bins", [1, 2, 15])
def test_floors_of_few_examples_with_distinct_confidences(bins):
    """Enumerate the outcomes of twelve rows."""
    c = np.array([0.0005, 0.003, 0.02, 0.06, 0.11, 0.3, 0.33, 0.5, 0.61, 0.9, 0.97, 0.995])
    outcomes = np.array(list(product((0, 1), repeat=len(c))))
    probability = np.where(outcomes == 1, c, 1 - c).prod(1)
    p = Predictions.from_probs(c, c.round().astype(int))
    index = np.searchsorted(np.arange(1, bins) / bins, c)
    errors = np.abs((outcomes - c) @ (index[:, None] == np.arange(bins))).sum(1) / len(c)
    assert float(metrics.noise_floor(p, bins=bins)) == pytest.approx(errors @ probability, rel=0.02)
    errors = sum(np.abs(part.sum(1)) for part in np.array_split(outcomes - c, bins, axis=1)) / len(c)
    assert float(metrics.adaptive_noise_floor(p, bins=bins)) == pytest.approx(errors @ probability, rel=0.02)


def test_weights_count_copies():
    values, counts = np.array([0.02, 0.3, 0.7, 0.71]), np.array([40, 25, 9, 30])
    copies = predictions(values, counts)
    weighted = Predictions.from_probs(values, [0, 1, 0, 1], weights=counts)
    for floor in FLOORS:
        assert floor.interval(weighted).high == pytest.approx(floor.interval(copies).high, rel=1e-9)
        assert float(floor(weighted)) == pytest.approx(float(floor(copies)), rel=1e-9)


def test_certain_predictions_have_no_noise():
    for floor in FLOORS:
        interval = floor.interval(Predictions.from_probs([0.0] * 20 + [1.0] * 30, [0] * 20 + [1] * 30))
        assert (interval.value, interval.low, interval.high) == (0, 0, 0)


def test_summary_has_the_floor_of_its_own_adaptive_error():
    """Its bins stand for distinct confidences, which bins of equal mass divide."""
    p = predictions([0.3], [100])
    summary = Summary.from_predictions(p)
    assert float(metrics.adaptive_noise_floor(summary)) == pytest.approx(0.036449223, rel=1e-6)


def test_clusters_without_dependence_have_the_floor_of_independent_rows():
    """Single rows are such clusters whatever their outcomes; of larger ones, the outcomes show it up to chance."""
    rng = np.random.default_rng(3)
    c = rng.random(300).round(1)
    labels = [(rng.random(300) < c).astype(int) for _ in range(20)]
    for floor in FLOORS:
        independent = floor.interval(Predictions.from_probs(c, labels[0]))
        single = floor.interval(Predictions.from_probs(c, labels[0], clusters=np.arange(300)))
        assert (single.low, single.high) == (independent.low, independent.high)
        of_five = [floor.interval(Predictions.from_probs(c, y, clusters=np.arange(300) // 5)) for y in labels]
        assert np.mean([x.value for x in of_five]) == pytest.approx(independent.value, rel=0.04)
        assert np.mean([x.high for x in of_five]) == pytest.approx(independent.high, rel=0.05)
