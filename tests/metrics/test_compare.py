"""Comparison of two models, out-of-distribution detection, and results that are more than a number."""

import math

import numpy as np
import pytest
from calibrant.registry import METRICS
from drawn import drawn_labels
from refusals import refused
from scipy.special import log_softmax, softmax

from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature
from calibrant.metrics import compare, ood
from calibrant.metrics._flexible import CURVE_ERRORS
from calibrant.metrics._jackknife import Jackknife


def draw(n: int, k: int, seed: int = 0, sharpened: float = 1.0) -> Predictions:
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((n, k), dtype=np.float32)
    return Predictions(logits * sharpened, drawn_labels(logits, rng))


def test_difference_of_means_has_the_paired_interval():
    p, q = draw(2000, 5), draw(2000, 5, sharpened=1.5)
    result = compare(p, q, names=["nll", "accuracy", "brier", "signed_gap"])
    losses = [-log_softmax(x.logits.astype(float), 1)[np.arange(2000), x.labels] for x in (p, q)]
    d = losses[1] - losses[0]
    half = 1.6456164 * d.std(ddof=1) / math.sqrt(2000)  # by Student's t, which covers here
    assert result["nll"].difference == pytest.approx(d.mean())
    assert result["nll"].low == pytest.approx(d.mean() - half, rel=0.02)
    assert result["accuracy"].difference == 0
    assert result["accuracy"].p_value == 1
    assert result["nll"].p_value < 1e-6
    assert "nll" in str(result)
    assert [row.name for row in result] == ["nll", "accuracy", "brier", "signed_gap"]


def test_compare_with_itself_finds_no_difference():
    p = draw(500, 4)
    for row in compare(p, p):
        assert row.difference == 0
        assert row.low == 0 == row.high
        assert row.p_value == 1


def test_compare_is_antisymmetric_for_any_metric():
    p, q = draw(1500, 4), draw(1500, 4, sharpened=2.0)
    names = ("ece", "ece(bins=10)", "kuiper", "ks", "classwise_ece", "debiased_l2", "adaptive_ece", "nll", "brier")
    forward, backward = compare(p, q, names=names), compare(q, p, names=names)
    for name in names:
        assert forward[name].difference == pytest.approx(-backward[name].difference, abs=1e-12)
        assert forward[name].low == pytest.approx(-backward[name].high, abs=1e-12)
        assert forward[name].p_value == pytest.approx(backward[name].p_value)
    for name in ("ece", "kuiper", "ks", "debiased_l2", "adaptive_ece"):
        assert forward[name].second == pytest.approx(float(getattr(metrics, name)(q)), rel=1e-9)
    assert forward["ece(bins=10)"].second == pytest.approx(float(metrics.ece(q, bins=10)))
    assert forward["ece"].p_value < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["nll", "brier"])
def test_interval_between_calibrators_covers_with_few_examples(metric):
    """Of 20 examples with confidences near .98, most samples lack the errors that the difference consists of."""
    rng, truth, covered, covered_by_t = np.random.default_rng(0), [0.98, 0.02], 0, 0
    z = np.stack([3 + 0.2 * rng.standard_normal(4000), np.zeros(4000)], 1)
    scores = [np.square(softmax(q, 1) - np.eye(2)[:, None]).sum(-1) for q in (z, z / 1.5)]
    if metric == "nll":
        scores = [-log_softmax(q, 1).T for q in (z, z / 1.5)]
    difference = scores[1] - scores[0]  # by label and example
    expected = truth @ difference.mean(1)
    for i in range(200):
        rows = np.arange(20 * i, 20 * i + 20)
        labels = (rng.random(20) < truth[1]).astype(int)
        row = compare(Predictions(z[rows], labels), Predictions(z[rows] / 1.5, labels), names=[metric])[metric]
        covered += row.low <= expected <= row.high
        d = difference[labels, rows]
        covered_by_t += abs(d.mean() - expected) <= 1.729 * d.std(ddof=1) / math.sqrt(20)
    assert covered >= 176
    assert covered_by_t < 120


@pytest.mark.parametrize("n", [20, 60, 200])
@pytest.mark.parametrize("metric", ["nll", "brier", "accuracy", "signed_gap"])
def test_p_value_is_the_level_at_which_the_interval_reaches_0(metric, n):
    p = draw(n, 3)
    q = Predictions(p.logits + 0.7 * draw(n, 3, seed=2).logits, p.labels)
    p_value = compare(p, q, names=[metric])[metric].p_value
    assert 0 < p_value < 1
    wider, narrower = (compare(p, q, names=[metric], level=1 - x * p_value)[metric] for x in (0.98, 1.02))
    assert wider.low < 0 < wider.high
    assert narrower.low > 0 or narrower.high < 0


def test_interval_of_accuracies_is_not_empty_if_no_prediction_differs():
    """Twenty examples do not show that two models always predict the same class."""
    row = compare(draw(20, 3), draw(20, 3, sharpened=2.0), names=["accuracy"])["accuracy"]
    assert row.difference == 0
    assert -0.3 < row.low < 0 < row.high < 0.3


def test_label_that_a_model_excludes_does_not_widen_the_interval():
    z = draw(50, 3).logits
    excluded = np.where(z == z.min(1, keepdims=True), -np.inf, z)
    labels = z.argmax(1)
    row = compare(Predictions(z, labels), Predictions(excluded, labels), names=["nll"])["nll"]
    assert math.isfinite(row.low)
    assert row.low <= row.difference <= row.high


def test_ece_of_a_model_that_is_certain_and_always_wrong_differs_significantly():
    p = draw(50, 2)
    row = compare(p, Predictions.from_probs(np.eye(2)[1 - p.labels], p.labels), names=["ece"])["ece"]
    assert row.second == 1
    assert 0 < row.low < row.difference < row.high


@pytest.mark.slow
def test_intervals_of_differences_cover_the_truth():
    """Compare logits scaled by 1.3 and by 1.6 with the difference in a population sample."""
    population = [draw(400_000, 2, seed=9, sharpened=s) for s in (1.3, 1.6)]
    names = ("ece", "debiased_l2", "kuiper", "smooth_ece")
    truth = {n: float(getattr(metrics, n)(population[1])) - float(getattr(metrics, n)(population[0])) for n in names}
    covered = dict.fromkeys(names, 0)
    for seed in range(60):
        pair = [draw(2000, 2, seed=100 + seed, sharpened=s) for s in (1.3, 1.6)]
        result = compare(*pair, names=names, groups=20)
        for name in names:
            covered[name] += result[name].low <= truth[name] <= result[name].high
    assert all(45 <= c <= 60 for c in covered.values()), covered  # nominal 54


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n.removesuffix("_noise_floor") in CURVE_ERRORS))
        for n in METRICS
        if METRICS[n].takes == "statistics"
    ],
)
def test_jackknife_remainder_gives_the_value_of_its_rows(name, weighted):
    p = draw(300, 3, sharpened=1.5)
    weights = np.random.default_rng(1).random(300) + 0.5 if weighted else None
    options = {"weights_are": "counts"} if weighted else {}
    rounded = Predictions((p.logits * 4).round() / 4, p.labels, weights, **options)  # with ties
    group = np.arange(300) % 7
    for i, remainder in enumerate(Jackknife(rounded, group, 7)):
        expected = float(METRICS[name](rounded.events[group != i]))
        assert float(METRICS[name](remainder)) == pytest.approx(expected, rel=1e-7, abs=1e-9)


def test_jackknife_of_odds_cells_gives_the_standard_errors_of_rows(monkeypatch):
    p, q = draw(4000, 5), draw(4000, 5, sharpened=1.5)
    names = ("ece", "adaptive_ece", "kuiper", "smooth_ece", "aurc")
    exact = compare(p, q, names=names, groups=10)
    monkeypatch.setattr("calibrant.metrics._jackknife.MAX_DISTINCT_CONFIDENCES", 0)
    for expected, approximate in zip(
        exact, compare(draw(4000, 5), draw(4000, 5, sharpened=1.5), names=names, groups=10)
    ):
        assert approximate.difference == expected.difference
        assert approximate.high == pytest.approx(expected.high, abs=0.05 * (expected.high - expected.low))


def test_auroc_interval_is_little_wider_than_delongs():
    p = draw(400, 2, sharpened=0.7)
    score, positive = np.diff(p.logits.astype(float))[:, 0], p.labels == 1
    score = (3 * score).round()  # with ties
    order = (score[positive][:, None] > score[~positive]) + (score[positive][:, None] == score[~positive]) / 2
    above, expected = order.mean(1), order.mean(0)
    error = math.sqrt(above.var(ddof=1) / len(above) + expected.var(ddof=1) / len(expected))
    tied = Predictions(np.stack([np.zeros_like(score), score], 1), p.labels)
    result = metrics.auroc.interval(tied)
    assert result.value == pytest.approx(order.mean()) == pytest.approx(metrics.auroc(tied))
    assert 1 < (result.high - result.low) / (2 * 1.6448536 * error) < 1.15
    doubled = Predictions(np.tile(tied.logits, (2, 1)), np.tile(tied.labels, 2))
    weighted = Predictions(tied.logits, tied.labels, np.full(400, 2.0))
    assert metrics.auroc.interval(weighted).high == pytest.approx(metrics.auroc.interval(doubled).high)


@pytest.mark.slow
def test_auroc_interval_covers_the_truth():
    truth, covered = float(metrics.auroc(draw(400_000, 2, seed=7))), 0
    for seed in range(200):
        result = metrics.auroc.interval(draw(300, 2, seed=1000 + seed))
        covered += result.low <= truth <= result.high
    assert 166 <= covered <= 194, covered  # nominal 180


def test_compare_refuses_a_function_that_is_not_declared_as_a_metric(monkeypatch):
    monkeypatch.setitem(METRICS._methods, "bare", lambda logits, labels: 0.5)
    p = Predictions(np.eye(2), [0, 1])
    with refused("undeclared_metric"):
        compare(p, p, names=["bare"])


def test_compare_refuses_different_examples():
    p = draw(50, 3)
    with refused("different_examples"):
        compare(p, p[:40])
    with refused("different_examples"):
        compare(p, Predictions(p.logits, (p.labels + 1) % 3))
    with refused("different_weights"):
        compare(p, Predictions(p.logits, p.labels, np.linspace(0.1, 1, 50)))


def test_thresholds_are_probabilities():
    p = draw(50, 2)
    assert (
        metrics.tables.thresholds(p, at=0.5).precision.tolist()
        == metrics.tables.thresholds(p, at=[0.5]).precision.tolist()
    )
    for at, code in (
        ("a", "not_numbers"),
        ([], "threshold_range"),
        ([math.nan], "threshold_range"),
        ([2], "threshold_range"),
    ):
        with refused(code):
            metrics.tables.thresholds(p, at=at)


def test_decompose_score_refuses_more_folds_than_examples():
    with refused("folds_range", "2 .. 3"):
        metrics.decompose_score(draw(3, 2), fit=Temperature.fit, folds=4)


def test_two_sample_is_students_or_welchs_test():
    assert metrics.two_sample([1.0, 1.1, 0.9], [2.0, 2.1, 1.9]).p_value < 0.01
    welch = metrics.two_sample([1.0, 2.0, 3.0], [1.0, 1.1, 1.2], equal_variance=False)
    assert welch.statistic == pytest.approx(-0.9 / math.sqrt(1 / 3 + 0.01 / 3))
    with refused("few_values"):
        metrics.two_sample([1.0], [2.0, 3.0])


def test_detection_takes_predictions_and_compares_scores():
    inside, outside = draw(300, 5), draw(300, 5, seed=1, sharpened=0.2)
    values = []
    for score in (ood.max_probability, ood.entropy, ood.max_logit, ood.energy):
        result = ood.detection(inside, outside, score=score)
        assert result.auroc > 0.9
        values.append(result.fpr95)
        assert ood.detection(outside, inside, score=score).auroc == pytest.approx(1 - result.auroc)
    assert min(values) < 0.5 < max(values)
    sharp = Predictions(inside.logits * 2, inside.labels)
    assert ood.detection(sharp, Predictions(outside.logits * 2, outside.labels)).auroc > 0.9
    with refused("one_sided"):
        ood.detection(inside.logits[:0], outside.logits)


def test_energy_at_low_temperature_is_the_largest_logit():
    z = np.array([[1.0, 3.0, 2.0]])
    assert ood.energy(z, temperature=1e-3) == pytest.approx(ood.max_logit(z))
