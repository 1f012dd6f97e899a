"""Binning, isotonic, Venn-Abers and spline calibrators against independent implementations and known truths."""

import math
import runpy
from itertools import pairwise

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused
from scipy.optimize import isotonic_regression
from scipy.special import betaln, softmax
from sklearn.isotonic import IsotonicRegression

from calibrant import Predictions, metrics
from calibrant._core.arrays import namespace, to_numpy
from calibrant.calibrators import (
    BayesianBinning,
    HistogramBinning,
    Isotonic,
    ScalingBinning,
    SharedIsotonic,
    Spline,
    Temperature,
    TopLabelBinning,
    VennAbers,
    maps,
)
from calibrant.calibrators._isotonic import _venn_abers_pass
from calibrant.calibrators.maps import MIN_TOP_LEAD
from calibrant.deployment import export

TOP = [BayesianBinning, HistogramBinning, ScalingBinning, Spline, TopLabelBinning]


def simulated(n, k, scale=2.0, seed=0) -> Predictions:
    """Draw logits that are `scale` times too large, and labels from the unscaled ones."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.standard_normal((n, k))
    return Predictions(scale * z, drawn_labels(z, rng))


def confidence(logits):
    return softmax(logits, 1).max(1)


def is_right(p):
    return p.predicted == p.labels


@pytest.mark.parametrize("calibrator", TOP)
def test_other_classes_keep_their_proportions(calibrator):
    data = simulated(2000, 4)
    fitted = calibrator.fit(data)
    p = softmax(fitted.scaler(data.logits) if calibrator is ScalingBinning else data.logits, 1)
    after = np.exp(fitted(data.logits))
    is_top = np.arange(4) == data.logits.argmax(1)[:, None]
    rest, new_rest = p[~is_top].reshape(-1, 3), after[~is_top].reshape(-1, 3)
    unsure = (after[is_top] < 1) & (new_rest.max(1) < (1 - 2 * MIN_TOP_LEAD) * after[is_top])
    assert unsure.mean() > 0.7  # no other class was capped
    shares = [(x / x.sum(1, keepdims=True))[unsure] for x in (new_rest, rest)]
    np.testing.assert_allclose(*shares, rtol=1e-7, atol=1e-7)


# Binning


def repeats_accuracy(fitted, data):
    """Assert that every new confidence is the accuracy of the examples that have it, in sample."""
    value, index = np.unique(confidence_of_top(fitted, data.logits).round(9), return_inverse=True)
    np.testing.assert_allclose(np.bincount(index, is_right(data)) / np.bincount(index), value, rtol=0, atol=1e-8)


def test_histogram_binning_returns_the_accuracy_of_its_bins():
    data = simulated(500, 3)
    for scheme in "equal_width", "equal_mass":
        repeats_accuracy(HistogramBinning.fit(data, bins=7, scheme=scheme), data)
    edges = np.linspace(0, 1, 8)
    c, right = confidence(data.logits), is_right(data)
    expected = [right[(lo < c) & (c <= hi)].mean() for lo, hi in pairwise(edges[2:])]
    result = HistogramBinning.fit(data, bins=7).accuracy
    np.testing.assert_allclose(result[2:], expected, rtol=1e-12)


def test_example_stays_in_its_bin():
    """Edges lie at data points, so that the confidence must be the same to the last bit."""
    data = simulated(997, 3, seed=3)
    repeats_accuracy(HistogramBinning.fit(data, bins=200, scheme="equal_mass"), data)


def test_scaling_binning_returns_the_mean_scaled_confidence():
    data = simulated(1500, 3)
    c = confidence(Temperature.fit(data)(data.logits))
    after = confidence_of_top(ScalingBinning.fit(data, bins=10), data.logits)
    for part in np.array_split(np.argsort(c), 10):
        np.testing.assert_allclose(after[part], c[part].mean(), rtol=1e-12)


def test_bayesian_binning_averages_its_binnings():
    """Compute it example by example, with scipy's beta function."""
    data = simulated(60, 3)
    n = len(data)
    order = confidence(data.logits).argsort()
    c, right = confidence(data.logits)[order], is_right(data)[order]
    total, weights = np.zeros(n), []
    models = range(max(1, int(n ** (1 / 3) / 10)), int(10 * n ** (1 / 3)) + 1)
    for b in models:
        parts = np.array_split(np.arange(n), b)
        ends = [part[-1] for part in parts[:-1]]
        cuts = [0.0, *[(c[i] + c[i + 1]) / 2 for i in ends], 1.0]
        weight, value = 0.0, np.zeros(n)
        for part, low, high in zip(parts, cuts[:-1], cuts[1:], strict=True):
            alpha, beta = 2 / b * (low + high) / 2, 2 / b * (1 - (low + high) / 2)
            m, r = right[part].sum(), (~right[part]).sum()
            weight += betaln(m + alpha, r + beta) - betaln(alpha, beta)
            value[part] = (m + alpha) / (len(part) + 2 / b)
        weights.append(weight)
        total = np.vstack([total, value])
    share = np.exp(np.array(weights) - max(weights))
    expected = share / share.sum() @ total[1:]
    result = confidence_of_top(BayesianBinning.fit(data), data.logits)[order]
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def confidence_of_top(fitted, logits):
    return np.exp(fitted(logits))[np.arange(len(logits)), logits.argmax(1)]


def test_top_label_binning_leaves_out_the_examples_at_edges():
    """Of 11 examples in 2 bins the sixth is the edge, and 5 are left on each side."""
    z = np.outer(np.arange(1, 12) / 10, [1.0, 0.0])
    fitted = TopLabelBinning.fit(z, [1, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0], points=5)
    assert fitted.count.tolist()[1] == [5, 5]
    np.testing.assert_allclose(confidence_of_top(fitted, z), [0.4] * 6 + [0.8] * 5)
    assert fitted.guarantee(0.1) == pytest.approx(math.sqrt(math.log(2 * 2 / 0.1) / (2 * 5)))


@pytest.mark.slow
def test_guarantee_of_top_label_binning_holds():
    """The true accuracy given predicted class and bin is the mean true confidence of many examples."""
    k, reps, broken, widest = 3, 60, 0, 0.0
    z = 1.5 * np.random.default_rng(5).standard_normal((60_000, k))
    truth = confidence(z)
    for seed in range(reps):
        fitted = TopLabelBinning.fit(simulated(600, k, seed=100 + seed), points=60)
        value, index = np.unique(confidence_of_top(fitted, 2 * z) + 10 * z.argmax(1), return_inverse=True)
        error = abs(np.bincount(index, truth) / np.bincount(index) - value % 10).max()
        bound = fitted.guarantee(0.5)
        broken += error > bound
        widest = max(widest, error / bound)
    assert broken / reps <= 0.5
    assert widest > 0.3  # the bound is not vacuous


def test_guarantee_holds_jointly_for_classes_that_share_bins():
    """Two rare classes with the same scores, one always right and one never, have an accuracy of 1/2 together."""
    z = np.zeros((90, 3))
    z[:45, 1] = z[45:, 2] = np.linspace(1, 2, 45)
    fitted = TopLabelBinning.fit(z, [1] * 45 + [0] * 45)
    np.testing.assert_allclose(confidence_of_top(fitted, z), 0.5)
    assert fitted.guarantee(0.1) < 0.5


def test_top_label_binning_needs_two_points_per_bin():
    with refused("setting_range"):
        TopLabelBinning.fit(simulated(3000, 4), points=1)


@pytest.mark.parametrize(
    "fit",
    [
        HistogramBinning.fit,
        lambda p: HistogramBinning.fit(p, scheme="equal_mass"),
        BayesianBinning.fit,
        ScalingBinning.fit,
        TopLabelBinning.fit,
    ],
    ids=["equal_width", "equal_mass", "BayesianBinning", "ScalingBinning", "TopLabelBinning"],
)
@pytest.mark.parametrize("event", [0, 1])
@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 0.5), (-0.0, 0.5), (1e-300, 0.5), (0.5, 1.0), (0.5, 1 - 1e-16), (0.0, 1.0)]
)
def test_tied_probabilities_of_0_and_1_keep_their_frequencies(tmp_path, fit, event, low, high):
    """A tree says two probabilities: 900 rows have a rare outcome 15 times, and 100 rows 60 times."""
    often = 0 if low < 0.5 else 1  # the value of the 900 rows
    x = np.repeat([low, high], [900, 100] if often == 0 else [100, 900])
    y = (
        np.r_[np.arange(900) < 15, np.arange(100) < 60]
        if often == 0
        else np.r_[np.arange(100) < 60, np.arange(900) < 885]
    )
    expected = [1 / 60, 0.6] if often == 0 else [0.6, 59 / 60]
    columns = [x, 1 - x] if event == 0 else [1 - x, x]
    p = Predictions.from_probs(np.column_stack(columns), np.where(y, event, 1 - event)).with_event(event)
    fitted = fit(p)
    after = np.exp(fitted(p.logits[[0, -1]]))
    np.testing.assert_allclose(after[:, event], expected, atol=0.01 if fit == ScalingBinning.fit else 0.001)
    assert metrics.nll(p.apply(fitted)) < 0.15
    export(fitted, tmp_path / "map.py")
    exported = runpy.run_path(str(tmp_path / "map.py"))["probabilities"](p.logits[[0, -1]])
    np.testing.assert_allclose(exported, after, rtol=1e-9)


def test_equal_scores_of_top_label_binning_share_their_outcomes():
    """Whatever the order of the rows, equal scores are in one bin, which leaves out one example as an edge."""
    z = np.repeat([[0.0, 0.0], [1.0, 0.0]], 60, axis=0)
    y = np.repeat([0, 1, 0, 1], [20, 40, 45, 15])
    for step in (1, -1):
        fitted = TopLabelBinning.fit(z[::step], y[::step], points=20)
        np.testing.assert_allclose(confidence_of_top(fitted, z[[0, -1]]), [1 / 3, 0.75])
        assert sorted(fitted.count.flatten().tolist())[-2:] == [59, 59]


# Isotonic


def test_isotonic_agrees_with_scikit_learn():
    data, fresh = simulated(700, 4), simulated(900, 4, seed=1)
    p, q = softmax(data.logits, 1), softmax(fresh.logits, 1)
    expected = np.stack(
        [IsotonicRegression(out_of_bounds="clip").fit(p[:, j], data.labels == j).predict(q[:, j]) for j in range(4)],
        axis=1,
    )
    expected /= expected.sum(1, keepdims=True)
    result = np.exp(Isotonic.fit(data, floor=0.0)(fresh.logits))
    np.testing.assert_allclose(result, expected, atol=2e-7)  # scikit-learn's thresholds have float32 steps of eps


def test_isotonic_averages_ties():
    z = np.log([[0.3, 0.7]] * 4 + [[0.6, 0.4]] * 2)
    after = Isotonic.fit(z, [0, 1, 1, 1, 0, 0], floor=0.0)(z)
    np.testing.assert_allclose(np.exp(after[:, 0]), [0.25] * 4 + [1.0] * 2)


def test_floor_keeps_the_nll_finite():
    data, fresh = simulated(100, 4), simulated(2000, 4, seed=1)
    assert metrics.nll(Isotonic.fit(data, floor=0.0)(fresh.logits), fresh.labels) == math.inf
    assert metrics.nll(Isotonic.fit(data)(fresh.logits), fresh.labels) < 10


def test_isotonic_maps_many_rows_of_a_class_at_once(monkeypatch):
    data, sizes, interpolate = simulated(2500, 200), list[int](), maps.interpolate
    fitted = Isotonic.fit(data)
    monkeypatch.setattr(maps, "interpolate", lambda x, value, p: sizes.append(len(p)) or interpolate(x, value, p))
    fitted(data.logits)
    assert sum(sizes) == 2500 * 200
    assert len(sizes) <= 3 * 200


def test_shared_isotonic_is_one_curve_and_preserves_the_argmax():
    data, fresh = simulated(300, 4), simulated(5000, 4, seed=1)
    fitted = SharedIsotonic.fit(data)
    p, q = softmax(data.logits, 1), softmax(fresh.logits, 1)
    curve = IsotonicRegression(out_of_bounds="clip").fit(p.ravel(), np.eye(4)[data.labels].ravel())
    expected = curve.predict(q.ravel()).reshape(q.shape) + 1e-9 * q
    after = fitted(fresh.logits)
    np.testing.assert_allclose(np.exp(after), expected / expected.sum(1, keepdims=True), atol=2e-7)
    assert np.array_equal(after.argmax(-1), fresh.logits.argmax(-1))
    with refused("setting_range"):
        SharedIsotonic.fit(data, epsilon=0.0)


def test_venn_abers_is_two_isotonic_fits_for_every_example():
    data = simulated(80, 3)
    added_logits = [[-np.inf, np.log(1e-9), 0], np.log([0.2, 0.35, 0.45]), np.log([0.999, 0.0005, 0.0005])]
    new = np.vstack([data.logits, added_logits])  # at fitted points, between them and beyond
    fitted = VennAbers.fit(new[:80], data.labels)
    train, q = softmax(new[:80], 1), softmax(new, 1)
    q[:80] = train  # softmax of another number of rows may differ in the last bit, and a tie is a tie
    low, high = map(np.concatenate, zip(fitted.interval(new[:80]), fitted.interval(new[80:]), strict=True))
    for j in range(3):
        y = (data.labels == j).astype(float)
        for i, s in enumerate(q[:, j]):
            for extra, result in (0.0, low), (1.0, high):
                x = np.append(train[:, j], s)
                fit = IsotonicRegression().fit(x, np.append(y, extra)).predict([s])[0]
                assert float(result[i, j]) == pytest.approx(fit, abs=1e-6), (i, j, extra)


def test_pass_of_venn_abers_is_exact_with_ties():
    """Compare with a new isotonic fit for every position."""
    rng = np.random.default_rng(0)
    for n in 1, 2, 7, 40:
        weight = rng.integers(1, 6, n).astype(float)
        mean = rng.binomial(weight.astype(int), np.linspace(0.1, 0.9, n)) / weight
        result = _venn_abers_pass(mean, weight)
        for i in range(n):
            modified, heavier = mean.copy(), weight + (np.arange(n) == i)
            modified[i] = (mean[i] * weight[i] + 1) / heavier[i]
            assert result[i] == pytest.approx(isotonic_regression(modified, weights=heavier).x[i], abs=1e-12)


def test_venn_abers_encloses_and_merges():
    data = simulated(200, 2)
    fitted = VennAbers.fit(data)
    low, high = fitted.interval(data.logits)
    assert (low < high).all()
    tolerance = {"rtol": 1e-7, "atol": 1e-7}
    np.testing.assert_allclose(low[:, 0], 1 - high[:, 1], **tolerance)  # the two classes see the same data mirrored
    merged = high / (1 - low + high)
    after = fitted(data.logits)
    np.testing.assert_allclose(np.exp(after), merged / merged.sum(1, keepdims=True), **tolerance)
    assert np.isfinite(after).all()


# Spline


def test_spline_is_the_slope_of_the_least_squares_natural_spline():
    """Minimize over the values at the knots, with scipy's interpolating natural spline."""
    from scipy.interpolate import CubicSpline

    data = simulated(400, 3)
    n = len(data)
    order = confidence(data.logits).argsort()
    right = is_right(data)[order]
    t = np.linspace(0, 1, 6)
    rank = np.arange(n + 1) / n
    columns = np.stack([CubicSpline(t, e, bc_type="natural")(rank) for e in np.eye(6)], axis=1)
    knots = np.linalg.lstsq(columns, np.append(0, right.cumsum() / n), rcond=None)[0]
    expected = CubicSpline(t, knots, bc_type="natural")(rank[1:], 1).clip(1 / (n + 2), 1 - 1 / (n + 2))
    np.testing.assert_allclose(confidence_of_top(Spline.fit(data), data.logits)[order], expected, atol=1e-9)


def test_spline_finds_the_truth():
    data = simulated(60_000, 2)  # with two classes the truth is a function of the confidence
    truth = confidence(data.logits / 2)
    for knots, bound in (6, 0.03), (20, 0.01):
        stated = confidence_of_top(Spline.fit(data, knots=knots), data.logits)
        assert abs(stated - truth).mean() < bound  # raw: 0.12
    with refused("setting_range"):
        Spline.fit(data, knots=1)


# A new confidence, and the other classes


def replace_confidence(logits, confidence):
    with np.errstate(divide="ignore", invalid="ignore"):
        return namespace(logits).astype(maps.replace_confidence(logits, confidence, "top"), logits.dtype)


def distribute(p, q):
    """Cap other classes at the predicted class and distribute the surplus, one row at a time."""
    top = int(np.argmax(p))
    limit = q * (1 - MIN_TOP_LEAD)
    capped = np.zeros(len(p), dtype=bool)
    for _ in p:
        free = ~capped
        free[top] = False
        out = np.where(capped, limit, p * (1 - q - limit * capped.sum()) / p[free].sum())
        out[top] = q
        if not (out[free] > limit).any():
            return out
        capped |= free & (out > limit)
    raise AssertionError


@pytest.mark.parametrize("k", [3, 4, 10, 100])
def test_low_confidence_preserves_the_argmax(k):
    rng = np.random.default_rng(k)
    logits = 3 * rng.standard_normal((200, k)) * rng.random((200, 1))
    confidence = 1.001 / k + rng.random(200) * (1 - 1.001 / k) ** 2
    for z in logits, logits.astype(np.float32):
        after = replace_confidence(z, confidence)
        assert np.array_equal(after.argmax(1), z.argmax(1))
    after = np.exp(replace_confidence(logits, confidence))
    expected = [distribute(p, q) for p, q in zip(softmax(logits, 1), confidence, strict=True)]
    assert np.allclose(after, np.array(expected), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("excess", [-1e-7, 0.0, 1e-9, 1e-7, 1e-5, 1e-2])
def test_class_that_would_nearly_tie_is_capped(library, dtype, excess):
    xp = pytest.importorskip(library)
    if not hasattr(xp, dtype):
        pytest.skip("numpy lacks bfloat16")
    logits = xp.asarray(2 * np.random.default_rng(0).standard_normal((500, 5)), dtype=getattr(xp, dtype))
    second, top = np.sort(softmax(to_numpy(logits).astype(float), 1))[:, -2:].T
    runner_up = second / (1 - top)  # of what the predicted class leaves
    confidence = np.maximum(runner_up / (1 + runner_up) * (1 + excess), 0.21)
    after = replace_confidence(logits, xp.asarray(confidence))
    assert np.array_equal(to_numpy(after).argmax(1), to_numpy(logits).argmax(1))


def test_tiny_probabilities_keep_their_share():
    after = replace_confidence(np.array([[2.0, 1.9, -500.0, 0.0]]), np.array([0.4]))
    assert after.argmax() == 0
    assert -510 < after[0, 2] < -490
    after = replace_confidence(np.array([[2.0, 1.9, -1000.0, 0.0]]), np.array([0.2]))
    assert np.isfinite(after).all()


def test_confidence_without_room_changes_the_argmax():
    """Below 1/k, or with too few possible classes, another class must exceed the predicted one."""
    after = replace_confidence(np.array([[1.0, 0.0, 0.0]]), np.array([0.2]))
    assert np.allclose(np.exp(after), [[0.2, 0.4, 0.4]])
    after = replace_confidence(np.array([[1.0, 0.0, -np.inf]]), np.array([0.4]))
    assert np.allclose(np.exp(after), [[0.4, 0.6, 0.0]])


def test_histogram_binning_keeps_the_accuracy_if_most_predictions_are_wrong():
    rng = np.random.default_rng(0)
    truth = 0.7 * rng.standard_normal((40000, 10))
    data = Predictions(4 * truth, drawn_labels(truth, rng))
    after = data[20000:].apply(HistogramBinning.fit(data[:20000], bins=8))  # many rows in the lowest bin, .125 to .25
    assert metrics.accuracy(data) < 0.4
    assert metrics.accuracy(after) == metrics.accuracy(data[20000:])
    assert metrics.ece(after) < 0.02 < metrics.ece(data[20000:]) - 0.3
