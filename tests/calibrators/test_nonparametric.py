"""Binning, isotonic, Venn-Abers and spline calibrators against independent implementations and known truths."""

import math
import runpy
from itertools import pairwise

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.optimize import isotonic_regression
from scipy.special import betaln
from sklearn.isotonic import IsotonicRegression

from calibrant import Predictions, metrics
from calibrant._core.tensors import logit_tensor
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
    g = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(n, k, dtype=torch.float64, generator=g)
    return Predictions(scale * z, torch.multinomial(z.softmax(-1), 1, generator=g).squeeze(1))


def confidence(logits):
    return logits.double().softmax(-1).amax(-1)


@pytest.mark.parametrize("calibrator", TOP)
def test_other_classes_keep_their_proportions(calibrator):
    data = simulated(2000, 4)
    fitted = calibrator.fit(data)
    p = (fitted.scaler(logit_tensor(data)) if calibrator is ScalingBinning else logit_tensor(data)).softmax(-1)
    after = fitted(logit_tensor(data)).exp()
    top = logit_tensor(data).argmax(-1, keepdim=True)
    confidence = after.gather(-1, top).squeeze(1)
    unsure = (confidence < 1) & (after.scatter(-1, top, 0.0).amax(-1) < (1 - 2 * MIN_TOP_LEAD) * confidence)
    assert unsure.float().mean() > 0.7  # no other class was capped
    rest, new_rest = p.scatter(-1, top, 0.0)[unsure], after.scatter(-1, top, 0.0)[unsure]
    torch.testing.assert_close(new_rest / new_rest.sum(-1, keepdim=True), rest / rest.sum(-1, keepdim=True))


# Binning


def repeats_accuracy(fitted, data):
    """Assert that every new confidence is the accuracy of the examples that have it, in sample."""
    stated = torch.from_numpy(confidence_of_top(fitted, logit_tensor(data)))
    value, index = stated.round(decimals=9).unique(return_inverse=True)
    right = (logit_tensor(data).argmax(-1) == data.labels).double()
    torch.testing.assert_close(torch.bincount(index, right) / torch.bincount(index), value, rtol=0, atol=1e-8)


def test_histogram_binning_returns_the_accuracy_of_its_bins():
    data = simulated(500, 3)
    for scheme in "equal_width", "equal_mass":
        repeats_accuracy(HistogramBinning.fit(data, bins=7, scheme=scheme), data)
    edges = np.linspace(0, 1, 8)
    c = confidence(logit_tensor(data)).numpy()
    right = (logit_tensor(data).argmax(-1) == data.labels).numpy()
    expected = [right[(lo < c) & (c <= hi)].mean() for lo, hi in pairwise(edges[2:])]
    result = HistogramBinning.fit(data, bins=7).accuracy
    np.testing.assert_allclose(result[2:], expected, rtol=1e-12)


def test_example_stays_in_its_bin():
    """Edges lie at data points, so that the confidence must be the same to the last bit."""
    data = simulated(997, 3, seed=3)
    repeats_accuracy(HistogramBinning.fit(data, bins=200, scheme="equal_mass"), data)


def test_scaling_binning_returns_the_mean_scaled_confidence():
    data = simulated(1500, 3)
    c = confidence(Temperature.fit(data)(logit_tensor(data))).numpy()
    after = confidence_of_top(ScalingBinning.fit(data, bins=10), logit_tensor(data))
    for part in np.array_split(np.argsort(c), 10):
        np.testing.assert_allclose(after[part], c[part].mean(), rtol=1e-12)


def test_bayesian_binning_averages_its_binnings():
    """Compute it example by example, with scipy's beta function."""
    data = simulated(60, 3)
    n = len(data)
    order = confidence(logit_tensor(data)).argsort()
    c = confidence(logit_tensor(data))[order].numpy()
    right = (logit_tensor(data).argmax(-1) == data.labels)[order].numpy()
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
    np.testing.assert_allclose(
        confidence_of_top(BayesianBinning.fit(data), logit_tensor(data))[order], expected, rtol=1e-6
    )


def confidence_of_top(fitted, logits):
    return fitted(logits).exp().gather(-1, logits.argmax(-1, keepdim=True)).squeeze(1).numpy()


def test_top_label_binning_leaves_out_the_examples_at_edges():
    """Of 11 examples in 2 bins the sixth is the edge, and 5 are left on each side."""
    z = torch.zeros(11, 2, dtype=torch.float64)
    z[:, 0] = torch.arange(1, 12) / 10
    y = torch.tensor([1, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0])
    fitted = TopLabelBinning.fit(z, y, points=5)
    assert fitted.count.tolist()[1] == [5, 5]
    np.testing.assert_allclose(confidence_of_top(fitted, z), [0.4] * 6 + [0.8] * 5)
    assert fitted.guarantee(0.1) == pytest.approx(math.sqrt(math.log(2 * 2 / 0.1) / (2 * 5)))


@pytest.mark.slow
def test_guarantee_of_top_label_binning_holds():
    """The true accuracy given predicted class and bin is the mean true confidence of many examples."""
    k, reps, broken, widest = 3, 60, 0, 0.0
    g = torch.Generator().manual_seed(5)
    z = 1.5 * torch.randn(60_000, k, dtype=torch.float64, generator=g)
    truth = z.softmax(-1).gather(-1, z.argmax(-1, keepdim=True)).squeeze(1)
    for seed in range(reps):
        fitted = TopLabelBinning.fit(simulated(600, k, seed=100 + seed), points=60)
        stated = torch.from_numpy(confidence_of_top(fitted, 2 * z))
        value, index = (stated + 10 * z.argmax(-1)).unique(return_inverse=True)
        true = torch.bincount(index, truth) / torch.bincount(index)
        error = float((true - value % 10).abs().max())
        bound = fitted.guarantee(0.5)
        broken += error > bound
        widest = max(widest, error / bound)
    assert broken / reps <= 0.5
    assert widest > 0.3  # the bound is not vacuous


def test_guarantee_holds_jointly_for_classes_that_share_bins():
    """Two rare classes with the same scores, one always right and one never, have an accuracy of 1/2 together."""
    y = torch.tensor([1] * 45 + [0] * 45)
    z = torch.zeros(90, 3, dtype=torch.float64)
    z[:45, 1] = z[45:, 2] = torch.linspace(1, 2, 45).double()
    fitted = TopLabelBinning.fit(z, y)
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
    after = fitted(logit_tensor(p)[[0, -1]])
    np.testing.assert_allclose(after.exp()[:, event], expected, atol=0.01 if fit == ScalingBinning.fit else 0.001)
    assert metrics.nll(p.apply(fitted)) < 0.15
    export(fitted, tmp_path / "map.py")
    exported = runpy.run_path(str(tmp_path / "map.py"))["probabilities"](logit_tensor(p)[[0, -1]].numpy())
    np.testing.assert_allclose(exported, after.exp(), rtol=1e-9)


def test_equal_scores_of_top_label_binning_share_their_outcomes():
    """Whatever the order of the rows, equal scores are in one bin, which leaves out one example as an edge."""
    z = torch.zeros(120, 2, dtype=torch.float64)
    z[60:, 0] = 1.0
    y = torch.tensor([0] * 20 + [1] * 40 + [0] * 45 + [1] * 15)
    for order in (torch.arange(120), torch.arange(120).flip(0)):
        fitted = TopLabelBinning.fit(z[order], y[order], points=20)
        np.testing.assert_allclose(confidence_of_top(fitted, z[[0, -1]]), [1 / 3, 0.75])
        assert sorted(fitted.count.flatten().tolist())[-2:] == [59, 59]


# Isotonic


def test_isotonic_agrees_with_scikit_learn():
    data, fresh = simulated(700, 4), simulated(900, 4, seed=1)
    p, q = logit_tensor(data).softmax(-1).numpy(), logit_tensor(fresh).softmax(-1).numpy()
    expected = np.stack(
        [IsotonicRegression(out_of_bounds="clip").fit(p[:, j], data.labels == j).predict(q[:, j]) for j in range(4)],
        axis=1,
    )
    expected /= expected.sum(1, keepdims=True)
    result = Isotonic.fit(data, floor=0.0)(logit_tensor(fresh)).exp().numpy()
    np.testing.assert_allclose(
        result, expected, atol=2e-7
    )  # scikit-learn stores its thresholds in float32 steps of eps


def test_isotonic_averages_ties():
    p = torch.tensor([[0.3, 0.7]] * 4 + [[0.6, 0.4]] * 2, dtype=torch.float64)
    after = Isotonic.fit(p.log(), torch.tensor([0, 1, 1, 1, 0, 0]), floor=0.0)(p.log()).exp()
    np.testing.assert_allclose(after[:, 0], [0.25] * 4 + [1.0] * 2)


def test_floor_keeps_the_nll_finite():
    data, fresh = simulated(100, 4), simulated(2000, 4, seed=1)
    assert metrics.nll(Isotonic.fit(data, floor=0.0)(logit_tensor(fresh)), fresh.labels) == math.inf
    assert metrics.nll(Isotonic.fit(data)(logit_tensor(fresh)), fresh.labels) < 10


def test_shared_isotonic_is_one_curve_and_preserves_the_argmax():
    data, fresh = simulated(300, 4), simulated(5000, 4, seed=1)
    fitted = SharedIsotonic.fit(data)
    p, q = logit_tensor(data).softmax(-1).numpy(), logit_tensor(fresh).softmax(-1).numpy()
    curve = IsotonicRegression(out_of_bounds="clip").fit(p.ravel(), np.eye(4)[data.labels].ravel())
    expected = curve.predict(q.ravel()).reshape(q.shape) + 1e-9 * q
    after = fitted(logit_tensor(fresh))
    np.testing.assert_allclose(after.exp(), expected / expected.sum(1, keepdims=True), atol=2e-7)
    assert np.array_equal(after.argmax(-1), logit_tensor(fresh).argmax(-1))
    with refused("setting_range"):
        SharedIsotonic.fit(data, epsilon=0.0)


def test_venn_abers_is_two_isotonic_fits_for_every_example():
    data = simulated(80, 3)
    added_probs = torch.tensor([[0.0, 1e-9, 1 - 1e-9], [0.2, 0.35, 0.45], [0.999, 0.0005, 0.0005]], dtype=torch.float64)
    new = torch.cat([logit_tensor(data), added_probs.log()])  # at fitted points, between them and beyond
    fitted = VennAbers.fit(new[:80], data.labels)
    train, q = new[:80].softmax(-1).numpy(), new.softmax(-1).numpy()
    q[:80] = train  # softmax of another number of rows may differ in the last bit, and a tie is a tie
    low, high = map(torch.cat, zip(fitted.interval(new[:80]), fitted.interval(new[80:]), strict=True))
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
    low, high = fitted.interval(logit_tensor(data))
    assert (low < high).all()
    torch.testing.assert_close(low[:, 0], 1 - high[:, 1])  # the two classes see the same data mirrored
    merged = high / (1 - low + high)
    torch.testing.assert_close(fitted(logit_tensor(data)).exp(), merged / merged.sum(-1, keepdim=True))
    assert fitted(logit_tensor(data)).isfinite().all()


# Spline


def test_spline_is_the_slope_of_the_least_squares_natural_spline():
    """Minimize over the values at the knots, with scipy's interpolating natural spline."""
    from scipy.interpolate import CubicSpline

    data = simulated(400, 3)
    n = len(data)
    order = confidence(logit_tensor(data)).argsort()
    right = (logit_tensor(data).argmax(-1) == data.labels)[order].double().numpy()
    t = np.linspace(0, 1, 6)
    rank = np.arange(n + 1) / n
    columns = np.stack([CubicSpline(t, e, bc_type="natural")(rank) for e in np.eye(6)], axis=1)
    knots = np.linalg.lstsq(columns, np.append(0, right.cumsum() / n), rcond=None)[0]
    expected = CubicSpline(t, knots, bc_type="natural")(rank[1:], 1).clip(1 / (n + 2), 1 - 1 / (n + 2))
    np.testing.assert_allclose(confidence_of_top(Spline.fit(data), logit_tensor(data))[order], expected, atol=1e-9)


def test_spline_finds_the_truth():
    data = simulated(60_000, 2)  # with two classes the truth is a function of the confidence
    truth = confidence(logit_tensor(data) / 2)
    for knots, bound in (6, 0.03), (20, 0.01):
        stated = torch.from_numpy(confidence_of_top(Spline.fit(data, knots=knots), logit_tensor(data)))
        assert (stated - truth).abs().mean() < bound  # raw: 0.12
    with refused("setting_range"):
        Spline.fit(data, knots=1)


# A new confidence, and the other classes


def replace_confidence(logits, confidence):
    return maps.replace_confidence(logits, confidence, "top").to(logits.dtype)


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
    g = torch.Generator().manual_seed(k)
    logits = torch.randn(200, k, dtype=torch.float64, generator=g) * torch.rand(200, 1, generator=g) * 3
    confidence = 1.001 / k + torch.rand(200, dtype=torch.float64, generator=g) * (1 - 1.001 / k) ** 2
    for z in logits, logits.float():
        after = replace_confidence(z, confidence)
        assert np.array_equal(after.argmax(-1), z.argmax(-1))
    after = replace_confidence(logits, confidence).exp()
    expected = [distribute(p, q) for p, q in zip(logits.softmax(-1).numpy(), confidence.tolist(), strict=True)]
    assert np.allclose(after, np.array(expected), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("excess", [-1e-7, 0.0, 1e-9, 1e-7, 1e-5, 1e-2])
def test_class_that_would_nearly_tie_is_capped(dtype, excess):
    logits = torch.randn(500, 5, generator=torch.Generator().manual_seed(0)).mul_(2).to(dtype)
    p = logits.double().softmax(-1)
    top = p.amax(-1)
    runner_up = p.topk(2).values[:, 1] / (1 - top)  # of what the predicted class leaves
    confidence = (runner_up / (1 + runner_up) * (1 + excess)).clamp_min(0.21)
    assert np.array_equal(replace_confidence(logits, confidence).argmax(-1), logits.argmax(-1))


def test_tiny_probabilities_keep_their_share():
    after = replace_confidence(torch.tensor([[2.0, 1.9, -500.0, 0.0]]).double(), torch.tensor([0.4]).double())
    assert after.argmax() == 0
    assert -510 < after[0, 2] < -490
    after = replace_confidence(torch.tensor([[2.0, 1.9, -1000.0, 0.0]]).double(), torch.tensor([0.2]).double())
    assert after.isfinite().all()


def test_confidence_without_room_changes_the_argmax():
    """Below 1/k, or with too few possible classes, another class must exceed the predicted one."""
    after = replace_confidence(torch.tensor([[1.0, 0.0, 0.0]]).log_softmax(-1), torch.tensor([0.2]).double())
    assert np.allclose(after.exp(), torch.tensor([[0.2, 0.4, 0.4]]))
    after = replace_confidence(torch.tensor([[1.0, 0.0, -torch.inf]]), torch.tensor([0.4]).double())
    assert np.allclose(after.exp(), torch.tensor([[0.4, 0.6, 0.0]]))


def test_histogram_binning_keeps_the_accuracy_if_most_predictions_are_wrong():
    g = torch.Generator().manual_seed(0)
    truth = 0.7 * torch.randn(40000, 10, dtype=torch.float64, generator=g)
    labels = torch.multinomial(truth.softmax(-1), 1, generator=g).squeeze(1)
    data = Predictions(4 * truth, labels)
    fitted = HistogramBinning.fit(data[:20000])
    after = Predictions(fitted(logit_tensor(data[20000:])), data[20000:].labels)
    assert metrics.accuracy(data) < 0.4
    assert metrics.accuracy(after) == metrics.accuracy(data[20000:])
    assert metrics.ece(after) < 0.02 < metrics.ece(data[20000:]) - 0.3
