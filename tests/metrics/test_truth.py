"""Simulated predictions with a known calibration error, and known distributions."""

import math

import numpy as np
import pytest
from scipy.special import expit, log_softmax
from scipy.stats import binom

from calibrant import Predictions, metrics
from calibrant._core.kernels.bins import Bins, Events, GroupedScores, assign_bins, equal_width_edges
from calibrant.assessment import measure
from calibrant.calibrators import Temperature
from calibrant.metrics import _cumulative
from calibrant.metrics._moments import squared_error
from calibrant.metrics._noise import IndependentSums, noise_interval


def logit_normal(n: int, mean: float, sd: float, temperature: float, seed: int = 0) -> Predictions:
    """Draw s ~ N(mean, sd^2) with true probabilities sigma(s) and predicted ones sigma(s / T)."""
    rng = np.random.default_rng(seed)
    s = mean + sd * rng.standard_normal(n)
    return Predictions(np.stack([np.zeros_like(s), s / temperature], 1), (rng.random(n) < expit(s)).astype(int))


CLOSED = [  # mean, sd, T, mean |gap|, mean gap^2, by quadrature
    (0, 2, 0.5, 0.093230, 1.082398e-2),
    (0, 2, 2.0, 0.103133, 1.258480e-2),
    (1, 3, 0.4, 0.088508, 1.237765e-2),
    (2, 1, 1.5, 0.073665, 5.777358e-3),
]


@pytest.mark.parametrize(("mean", "sd", "temperature", "l1", "l2"), CLOSED)
def test_errors_of_the_logit_normal_model_have_their_closed_form(mean, sd, temperature, l1, l2):
    p = logit_normal(400_000, mean, sd, temperature)
    assert float(metrics.ece(p.with_event(1), bins=100)) == pytest.approx(l1, abs=1.5e-3)
    assert float(metrics.ece(p.with_event(1), bins=100, edges="equal_mass")) == pytest.approx(l1, abs=1.5e-3)
    squared = squared_error(p.with_event(1).events.moments(1000), 0.99)
    assert squared.value == pytest.approx(l2, rel=0.03)
    assert l2 in squared


def test_all_errors_of_an_overconfident_model_are_the_mean_gap():
    p = logit_normal(400_000, 0, 2, 0.5)  # overconfident everywhere: all agree with the mean gap
    for name in ("ece", "adaptive_ece", "kuiper", "ks", "signed_gap"):
        assert float(getattr(metrics, name)(p)) == pytest.approx(0.093230, abs=1.5e-3)
    assert 0.085 < float(metrics.smooth_ece(p)) <= 0.0945
    assert float(metrics.signed_gap(logit_normal(400_000, 0, 2, 2.0))) == pytest.approx(-0.103133, abs=1.5e-3)


@pytest.mark.parametrize(("confidence", "right"), [(0.7, 0.7), (0.7, 0.55), (0.9, 1.0)])
def test_errors_of_constant_predictions(confidence, right):
    n = 1000
    logits = np.tile([math.log(confidence / (1 - confidence)), 0.0], (n, 1))
    labels = (np.arange(n) >= round(right * n)).astype(int)
    for name in ("ece", "adaptive_ece", "mce", "sweep_ece", "kuiper", "ks", "smooth_ece"):
        assert float(getattr(metrics, name)(logits, labels)) == pytest.approx(abs(right - confidence), abs=2e-9)
    assert float(metrics.signed_gap(logits, labels)) == pytest.approx(confidence - right)
    assert float(metrics.auroc(logits, labels)) == 0.5 if 0 < right < 1 else True
    assert float(metrics.discrimination(logits, labels)) == pytest.approx(0, abs=1e-12)
    assert float(metrics.miscalibration(logits, labels)) == pytest.approx((right - confidence) ** 2)


def test_repeated_examples_keep_errors_and_halve_the_noise_floor():
    p = logit_normal(510, 1, 2, 0.7)  # a multiple of 15 bins
    twice = Predictions(np.tile(p.logits, (4, 1)), np.tile(p.labels, 4))
    for name in ("ece", "adaptive_ece", "smooth_ece", "nll", "kuiper", "aurc", "auroc", "classwise_ece", "mmce"):
        ours, theirs = (float(getattr(metrics, name)(x)) for x in (p, twice))
        assert theirs == pytest.approx(ours, abs=2e-3 if name == "aurc" else 1e-9)
    assert float(metrics.noise_floor(twice)) == pytest.approx(
        float(metrics.noise_floor(p)) / 2, rel=0.03
    )  # not quite normal


def test_calibrated_predictions_have_their_expected_values(calibrated_predictions):
    table = measure(calibrated_predictions)
    assert 0.0 in metrics.signed_gap.interval(calibrated_predictions, level=0.999)
    assert table["ece"].value < metrics.noise_floor.interval(calibrated_predictions, level=0.998).high
    assert table["kuiper"].p_value > 0.001
    assert metrics.ks.test(calibrated_predictions).p_value > 0.001
    assert metrics.skce.test(calibrated_predictions, draws=199).p_value > 0.005
    log_p = log_softmax(calibrated_predictions.logits, 1)
    p = np.exp(log_p)
    assert metrics.nll(calibrated_predictions) == pytest.approx(-(p * log_p).sum(1).mean(), abs=0.04)
    assert metrics.brier(calibrated_predictions) == pytest.approx((1 - np.square(p).sum(1)).mean(), abs=0.03)
    assert metrics.accuracy(calibrated_predictions) == pytest.approx(p.max(1).mean(), abs=0.03)


def draw_outcomes(probs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return (rng.random(len(probs)) < probs).astype(float)


def draw(n: int, sharpened: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return confidences, outcomes, and the true probabilities."""
    s = abs(2 + 1.5 * rng.standard_normal(n))
    truth = expit(s)
    return expit(s * sharpened), draw_outcomes(truth, rng), truth


@pytest.mark.slow
@pytest.mark.parametrize(("sharpened", "error"), [(1.0, 0.0), (1.1, 0.015), (1.3, 0.039), (2.0, 0.088)])
def test_debiased_error_interval_covers_the_truth(sharpened, error):
    rng = np.random.default_rng(11)
    c, _, q = draw(2_000_000, sharpened, rng)
    index = assign_bins(equal_width_edges(15), c).clip(0, 14)
    count = np.bincount(index, minlength=15)
    gap = np.bincount(index, c - q, minlength=15) / np.maximum(count, 1)
    truth = math.sqrt((count / len(c) * np.square(gap)).sum())
    assert truth == pytest.approx(error, abs=6e-4)
    covered = 0
    for _ in range(1000):
        c, a, _ = draw(2000, sharpened, rng)
        squared = squared_error(Events(c, a).moments(15), 0.90)
        covered += math.sqrt(squared.low) <= truth <= math.sqrt(squared.high)
    assert 880 <= covered <= 999


@pytest.mark.slow
def test_debiased_square_is_unbiased_and_the_plug_in_is_not():
    rng = np.random.default_rng(0)
    values, plug_in = [], []
    for _ in range(600):
        c, a, _ = draw(1000, 1.0, rng)
        events = Events(c, a)
        values.append(squared_error(events.moments(15), 0.9).value)
        plug_in.append(metrics.ece(events, norm=2.0) ** 2)
    assert abs(np.mean(values)) < 3.5 * np.std(values, ddof=1) / math.sqrt(600)
    assert sum(plug_in) / 600 > 1e-3


@pytest.mark.slow
def test_kuiper_and_ks_tests_have_their_nominal_size():
    rng = np.random.default_rng(4)
    rejected = [0, 0]
    for _ in range(2000):
        c, a, _ = draw(2000, 1.0, rng)
        events = Events(c, a)
        rejected[0] += metrics.kuiper.test(events).p_value < 0.05
        rejected[1] += metrics.ks.test(events).p_value < 0.05
    assert 0.04 <= rejected[0] / 2000 <= 0.06
    assert 0.04 <= rejected[1] / 2000 <= 0.06


def test_kuiper_test_detects_overconfidence():
    assert metrics.kuiper.test(logit_normal(5000, 0, 2, 0.7)).p_value < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(("n", "bins"), [(1000, 15), (5000, 15), (10_000, 100)])
def test_noise_floor_agrees_with_simulation(n, bins):
    rng = np.random.default_rng(2)
    c = expit(abs(3 + 2.2 * rng.standard_normal(n)))
    floor = metrics.noise_floor.interval(Events(c, np.zeros(n)), level=0.90, bins=bins)
    index = assign_bins(equal_width_edges(bins), c).clip(0, bins - 1)
    draws = []
    for _ in range(4000):
        u = c - draw_outcomes(c, rng)
        draws.append(abs(np.bincount(index, u, minlength=bins)).sum() / n)
    assert floor.value == pytest.approx(np.mean(draws), rel=0.01)
    assert floor.high == pytest.approx(np.quantile(draws, 0.95), rel=0.02)
    assert floor.low == pytest.approx(np.quantile(draws, 0.05), rel=0.03)


@pytest.mark.slow
def test_adaptive_noise_floor_agrees_with_simulation():
    rng = np.random.default_rng(3)
    c = expit(abs(2 * rng.standard_normal(3000)))
    floor = metrics.adaptive_noise_floor.interval(Events(c, c.round()), level=0.90)
    draws = []
    for _ in range(1500):
        table = Bins.equal_mass(15, GroupedScores.from_scores(c, draw_outcomes(c, rng)))
        draws.append((table.weight * abs(table.gap)).sum())
    assert floor.value == pytest.approx(sum(draws) / 1500, rel=0.02)


def test_noise_interval_agrees_with_simulation():
    sigma = np.array([100.0, 50.0, 21.0])  # sums large enough to be normal
    draws = abs(np.random.default_rng(0).standard_normal((400_000, 3)) * sigma).sum(1)
    variance = sigma**2
    floor = noise_interval(IndependentSums(4 * variance, 2 * variance, variance), None, 0.90)
    total = 4 * variance.sum()
    assert floor.low * total == pytest.approx(np.quantile(draws, 0.05), rel=0.01)
    assert floor.high * total == pytest.approx(np.quantile(draws, 0.95), rel=0.01)


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_share_limits_cover(p):
    """The 90 % limits of a share hold it, for every n from 2 on: the distribution is summed, not drawn."""
    for n in (2, 5, 20, 50, 100, 1000):
        hits = np.arange(n + 1)
        low, high = metrics.share_limits(hits / n, np.full(n + 1, n, dtype=float), 0.90)
        assert binom.pmf(hits, n, p)[(low <= p) & (p <= high)].sum() > 0.88


@pytest.mark.slow
def test_mean_intervals_cover():
    covered = {"nll": 0, "signed_gap": 0}
    truth = {"nll": float(metrics.nll(logit_normal(2_000_000, 0, 2, 0.5, seed=999))), "signed_gap": 0.093230}
    for seed in range(300):
        p = logit_normal(600, 0, 2, 0.5, seed=seed)
        for name in covered:
            covered[name] += truth[name] in getattr(metrics, name).interval(p)
    assert all(0.84 <= x / 300 <= 0.95 for x in covered.values())


@pytest.mark.slow
def test_skce_is_unbiased_and_its_test_has_its_nominal_size():
    rng, values, rejected = np.random.default_rng(0), [], 0
    for i in range(200):
        c, a, _ = draw(200, 1.0, rng)
        values.append(_cumulative.skce_estimate(Events(c, a).by_score, 0.4))
        z = np.stack([np.zeros_like(c), np.log(c / (1 - c))], 1)
        rejected += metrics.skce.test(z, a.astype(int), draws=99, seed=i).p_value <= 0.1
    assert abs(np.mean(values)) < 3.5 * np.std(values, ddof=1) / math.sqrt(200)
    assert 8 <= rejected <= 34


def test_decompose_score_finds_the_gain_of_recalibration():
    p = logit_normal(20_000, 0, 2, 0.5)
    parts = metrics.decompose_score(p, fit=Temperature.fit)
    calibrated = Predictions(p.logits * 0.5, p.labels)  # T = 1/2 undone
    assert parts.refinement.value == pytest.approx(float(metrics.nll(calibrated)), abs=2e-4)
    assert parts.refinement.value + parts.calibration.value == pytest.approx(parts.score.value)
    assert parts.calibration.low > 0
    none_left = metrics.decompose_score(calibrated, fit=Temperature.fit)
    assert abs(none_left.calibration.value) < 3e-4
    brier = metrics.decompose_score(p, fit=Temperature.fit, score="brier")
    assert brier.score.value == pytest.approx(float(metrics.brier(p)))


def test_corp_band_holds_a_calibrated_curve():
    p = logit_normal(3000, 0, 2, 1.0)
    curve = metrics.curves.corp(p)
    inside = (curve.low <= curve.y) & (curve.y <= curve.high)
    assert (inside * curve.weight).sum() > 0.75
    assert (np.diff(curve.y) >= 0).all()
    overconfident = metrics.curves.corp(logit_normal(3000, 0, 2, 0.5))
    outside = (overconfident.y < overconfident.low) | (overconfident.y > overconfident.high)
    assert (outside * overconfident.weight).sum() > 0.5
    merged = metrics.curves.corp(logit_normal(50_000, 0, 2, 1.0), draws=3)
    assert len(merged.x) <= 4097
    assert merged.weight.sum() == pytest.approx(1)
