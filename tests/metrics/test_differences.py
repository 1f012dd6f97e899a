"""Differences of two models: unseen errors, batches, clusters, and the biases of binned errors."""

import numpy as np
import pytest
from calibrant.registry import METRICS

from calibrant import Predictions, metrics
from calibrant.metrics import ModelDifferences, PairedScores, compare, merge_sums


def stated(confidence, outcome, **options):
    return Predictions.from_confidence(confidence, outcome, **options)


def test_unseen_example_may_be_as_bad_as_the_worst():
    """A tenth of the rows is nearly certain; one error per thousand rows makes both models equal."""
    common, extreme = np.full(900, 0.7), np.ones(100)
    outcome = np.concatenate([np.arange(900) % 10 < 7, extreme])
    first, second = (stated(np.concatenate([common, c * extreme]), outcome) for c in (0.9, 1 - 1e-6))
    row = compare(first, second, names=["nll"], level=0.95)["nll"]
    assert row.low <= row.difference < 0 < row.high < 0.1
    assert row.p_value > 0.05


def test_errors_need_not_be_of_the_runner_up():
    """With a hundred classes, errors on unlikely classes cost a sharper model more than the runner-up does."""
    z = np.random.default_rng(0).standard_normal((80, 100))
    z[:, 0] = 9
    p = Predictions(z, np.zeros(80, dtype=int))
    runner_up_cost = 0.5 * (9 - z[:, 1:].max(1)).max()  # of logits scaled by 1.5, nearly
    row = compare(p, Predictions(1.5 * z, p.labels), names=["nll"])["nll"]
    assert row.high > 1.1 * runner_up_cost * (1 - 0.05 ** (1 / 80))


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_batches_are_those_of_all_rows(clustered, weighted):
    rng = np.random.default_rng(0)
    outcome, options = rng.random(60) < 0.8, {}
    if clustered:
        options["clusters"] = np.arange(60) // 3
    if weighted:
        options["weights"] = rng.integers(1, 5, 60)
    first, second = (stated(rng.uniform(0.3, 0.99, 60), outcome, **options) for _ in range(2))
    parts = [PairedScores(first[rows], second[rows]) for rows in (slice(0, 30), slice(30, 60))]
    for metric in (metrics.nll, metrics.event_brier, metrics.accuracy):
        expected = PairedScores(first, second).sums(metric)
        np.testing.assert_allclose(merge_sums(*(part.sums(metric) for part in parts)), expected, rtol=1e-7, atol=1e-7)


def test_copies_within_clusters_change_nothing():
    rng = np.random.default_rng(1)
    outcome, copies = rng.random(50) < 0.9, np.repeat(np.arange(50), 4)
    confidences = rng.uniform(0.6, 0.99, (2, 50))
    names = ["nll", "event_brier", "accuracy"]
    single = compare(*(stated(c, outcome) for c in confidences), names=names)
    copied = compare(*(stated(c[copies], outcome[copies], clusters=copies) for c in confidences), names=names)
    for name in names:
        for field in ("low", "high", "p_value"):
            assert getattr(copied[name], field) == pytest.approx(getattr(single[name], field), abs=1e-9)


def false_alarms(draw, n, draws, seed=0):
    """Return how often the ECEs of two models of equal true ECE differ at the level 5 %."""
    rng, method, alarms = np.random.default_rng(seed), METRICS.method("ece"), 0
    for _ in range(draws):
        first, second, truth = draw(rng.random(n))
        outcome = (rng.random(n) < truth).astype(int)
        alarms += ModelDifferences(stated(first, outcome), stated(second, outcome)).estimate(method).p_value <= 0.05
    return alarms


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [
        lambda u: (0.988 + 0.01 * u, 0.982 + 0.01 * u, 0.985 + 0.01 * u),  # over- and underconfident, 1 % errors
        lambda u: (0.75 + 0 * u, 0.5 + 0.5 * u, 0.5 + 0.5 * u),  # both calibrated, one with a single confidence
    ],
)
def test_equal_calibration_errors_rarely_differ(draw):
    assert false_alarms(draw, 300, 60) <= 8  # a binomial with 0.05 exceeds it with probability 0.004


def test_equal_models_have_equal_calibration_errors():
    rng = np.random.default_rng(2)
    c, outcome = rng.uniform(0.5, 1, 200), rng.random(200) < 0.7
    row = compare(stated(c, outcome), stated(c.copy(), outcome), names=["ece"])["ece"]
    assert (row.low, row.difference, row.high, row.p_value) == (0, 0, 0, 1)
