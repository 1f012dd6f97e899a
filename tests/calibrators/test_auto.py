"""Chains, cross-fitting, pooling, the guard against in-sample evaluation, and `Auto`."""

import gc
import types

import numpy as np
import pytest
from refusals import refused
from scipy import optimize
from scipy.special import expit, log_softmax, softmax

from calibrant import Predictions, metrics
from calibrant._core.kernels.solvers import fit_mixture
from calibrant.calibrators import (
    Auto,
    Chain,
    Monotone,
    SmoothedTemperature,
    StructuredMatrix,
    StructuredVector,
    Temperature,
    Vector,
    _families,
    calibrate,
    cross_fit,
    fitting_digests,
    pool,
)
from calibrant.calibrators._auto import PRIOR_EXAMPLES, _fit_weights, _out_of_fold_scores, _prior_weights
from calibrant.calibrators._families import FAMILIES
from calibrant.calibrators._fitting import fit_function
from calibrant.predictions.folds import assign_folds, map_out_of_fold


def distorted(n, k, seed, scale=1.0, shift=0.0, bend=1.0):
    """Draw labels from known probabilities, and distort their logarithms."""
    rng = np.random.default_rng(seed)
    p = np.clip(rng.dirichlet([0.2] * k, n), 1e-12, 1)
    p /= p.sum(1, keepdims=True)
    y = np.minimum((p.cumsum(1) < rng.random((n, 1))).sum(1), k - 1)
    return Predictions(2 * (-((-np.log(p)) ** bend)) * scale + shift, y)


def nll(fitted, predictions) -> float:
    return float(metrics.nll(fitted(predictions.logits), predictions.labels))


# Composition


def test_chain_applies_both_maps():
    data = distorted(400, 4, 0, shift=np.array([0.5, 0, 0, -0.5]))
    chain = Chain.fit(data, first="Temperature", second="Vector")
    second = Vector.fit(Temperature.fit(data)(data.logits), data.labels)
    assert np.allclose(chain(data.logits), second(chain.first(data.logits)))
    assert chain.certificate.data == data.digest
    assert fitting_digests(Chain(chain.first, second)) >= {data.digest}


def test_folds_are_drawn_by_the_seed_and_independent_of_labels_and_row_order():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((103, 4), dtype=np.float32), np.arange(103) % 4
    data = Predictions(logits, labels)
    fold = assign_folds(data, 5)
    sizes = np.bincount(fold)
    assert sizes.max() - sizes.min() <= 1
    assert np.array_equal(fold, assign_folds(data, 5))
    assert np.array_equal(fold, assign_folds(Predictions(logits, (labels + labels // 2) % 4), 5))
    assert not np.array_equal(fold, assign_folds(data, 5, seed=1))
    order = rng.permutation(103)
    for scale in (1.0, 30.0, 1e6):
        data = Predictions(scale * logits, labels)
        assert np.array_equal(assign_folds(data, 5)[order], assign_folds(data[order], 5))
    impossible = np.where(logits == logits.min(1, keepdims=True), -np.inf, logits)
    data = Predictions(impossible, labels)
    assert np.array_equal(assign_folds(data, 5)[order], assign_folds(data[order], 5))


def test_cross_fit_never_calibrates_a_row_by_a_map_that_saw_it():
    data = distorted(50, 3, 0)
    fold_sizes = []

    def fit(logits, labels):
        training_rows = {tuple(row) for row in logits.tolist()}

        def apply(validation):
            assert not training_rows & {tuple(row) for row in validation.tolist()}
            fold_sizes.append(len(validation))
            return validation * 2

        return apply

    after = cross_fit(fit, data, folds=4)
    assert sum(fold_sizes) == 50
    assert len(fold_sizes) == 4
    assert np.array_equal(after.logits, data.logits * 2)
    assert np.array_equal(after.labels, data.labels)


def test_cross_fit_estimates_new_data_where_in_sample_nll_is_too_low():
    data, fresh = distorted(150, 8, 0), distorted(20000, 8, 1)
    fitted = Vector.fit(data)
    out_of_fold_nll = float(metrics.nll(cross_fit("Vector", data)))
    assert nll(fitted, data) < nll(fitted, fresh) - 0.05
    assert abs(out_of_fold_nll - nll(fitted, fresh)) < abs(nll(fitted, data) - nll(fitted, fresh))
    with refused("folds_range", "150"):
        cross_fit(Temperature, data, folds=151)


def test_pool_averages_probabilities():
    a, b = distorted(30, 3, 0), distorted(30, 3, 1)
    b = Predictions(b.logits, a.labels)
    mean = (softmax(a.logits, 1) + softmax(b.logits, 1)) / 2
    assert np.allclose(np.exp(pool(a, b).logits), mean)
    assert np.allclose(np.exp(pool(a).logits), softmax(a.logits, 1))
    with refused("different_examples"):
        pool(a, b[::-1])
    with refused("different_examples", "(30, 3) and (20, 3)"):
        pool(a, b[:20])


def test_the_average_of_calibrated_members_is_underconfident_and_is_repaired_after_pooling():
    """Two members that each see half of the evidence: each is calibrated, their average is not."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=20000)
    x = rng.standard_normal((2, 20000)) + 2 * y - 1
    members = [Predictions(np.stack([-score, score], 1), y) for score in x]
    pooled = pool(*members)
    for member in members:
        assert metrics.ece(member) < 0.015
    assert metrics.ece(pooled) > 0.04
    fitted = Temperature.fit(pooled[:10000])
    assert fitted.temperature < 0.8
    assert metrics.ece(calibrate(fitted, pooled[10000:])) < 0.03


def test_nested_calibrators_refuse_their_fitting_data_in_any_dtype():
    data, fresh = distorted(200, 3, 0), distorted(200, 3, 1)
    single = Predictions(data.logits.astype(np.float32), data.labels)
    fitted = Temperature.fit(single)
    for calibrator in (fitted, Chain(Temperature(1.0), fitted), Auto.fit(single, folds=2)):
        for predictions in (single, single.double()):
            with refused("fitted_on_same"):
                calibrate(calibrator, predictions)
        assert len(calibrate(calibrator, fresh)) == 200
    assert np.array_equal(calibrate(fitted, single, in_sample=True).logits, fitted(single.logits))


# The weights


def test_mixture_weights_are_those_of_a_general_solver():
    rng = np.random.default_rng(0)
    a = np.exp(-rng.exponential(1, (300, 1)) + rng.normal(0, 0.4, (300, 4)) + np.array([0, 0.05, -0.5, 0.02]))
    mixed = fit_mixture(a)
    w, gap, steps = mixed.shares, mixed.optimality_gap, mixed.steps
    result = optimize.minimize(
        lambda v: -np.log(a @ v).mean(),
        np.full(4, 0.25),
        method="SLSQP",
        bounds=[(0, 1)] * 4,
        constraints={"type": "eq", "fun": lambda v: v.sum() - 1},
        options={"ftol": 1e-13},
    )
    assert np.allclose(w, result.x, atol=2e-3)
    assert -np.log(a @ w).mean() <= result.fun + 1e-7
    assert gap <= 1e-7
    assert steps < 1000


def test_mixture_recovers_the_shares_it_was_drawn_with():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(20000) + np.where(rng.random(20000) < 0.3, 0, 4)
    densities = np.stack([np.exp(-(x**2) / 2), np.exp(-((x - 4) ** 2) / 2)], 1)
    assert fit_mixture(densities).shares[0] == pytest.approx(0.3, abs=0.01)


# Auto


def test_auto_weights_the_true_family():
    """A monotone map if the truth is bent, matrices if it differs by class."""
    rng = np.random.default_rng(0)
    bent, fresh = distorted(3000, 6, 0, bend=1.6), distorted(5000, 6, 1, bend=1.6)
    stack = Auto.fit(bent)
    weight = {member.name: member.weight for member in stack.candidates}
    assert sum(share for name, share in weight.items() if "Monotone" in name or "IntraOrder" in name) > 0.6
    assert nll(stack, fresh) < nll(SmoothedTemperature.fit(bent), fresh) - 0.005
    scale = np.exp(rng.normal(0, 0.3, 6))
    stack = Auto.fit(distorted(1500, 6, 2, scale, rng.normal(0, 0.6, 6)))
    weight = {member.name: member.weight for member in stack.candidates}
    order_preserving = ("as it is", "SmoothedTemperature", "Monotone", "IntraOrderPreserving")
    assert sum(weight[name] for name in order_preserving) < 0.2


@pytest.mark.parametrize("kind", ["temperature", "class-wise", "bent"])
def test_auto_is_never_much_worse_than_its_best_member(kind):
    rng = np.random.default_rng(3)
    how = {
        "temperature": {},
        "class-wise": {"scale": np.exp(rng.normal(0, 0.2, 5)), "shift": rng.normal(0, 0.5, 5)},
        "bent": {"bend": 1.4},
    }[kind]
    data, fresh = distorted(800, 5, 0, **how), distorted(10000, 5, 1, **how)
    members = (SmoothedTemperature, StructuredVector, StructuredMatrix, Vector, Monotone, Chain)
    best = min(nll(member.fit(data), fresh) for member in members)
    assert nll(Auto.fit(data), fresh) < best + 0.005


def test_weights_of_a_mixture_agree_with_a_general_solver():
    rng = np.random.default_rng(0)
    scores = rng.normal(0.5, 1.5, (200, 4)) - 3
    p = Predictions(np.zeros((200, 3)), rng.integers(0, 3, 200), weights=rng.integers(1, 4, 200).astype(float))
    prior, often = _prior_weights(scores, [0.0] * 4, p), p.weights

    def objective(w):
        return -often @ np.log(np.exp(scores) @ w) - PRIOR_EXAMPLES * prior @ np.log(w)

    weights, gap = _fit_weights(scores, [0.0] * 4, p)
    expected = optimize.minimize(
        objective,
        np.full(4, 0.25),
        bounds=[(1e-9, None)] * 4,
        constraints=[{"type": "eq", "fun": lambda w: w.sum() - 1}],
        options={"ftol": 1e-14},
    )
    assert np.allclose(weights, expected.x, atol=2e-3)
    assert objective(weights.clip(1e-9)) <= expected.fun + 1e-4
    assert gap < 1e-5


def test_prior_weights_fall_with_standard_errors_behind_the_best_and_with_handicaps():
    """Families that are behind by 0, 0.5 and 5 standard errors, and one as good as the best with a handicap."""
    noise = np.random.default_rng(0).standard_normal(400)
    noise = 20 * (noise - noise.mean()) / noise.std(ddof=1)  # whose mean has a standard error of 1
    log_p = np.stack([0 * noise, noise - 0.5, noise - 5, noise], 1)
    weights = _prior_weights(log_p, [0.0, 0.0, 0.0, 3.0], Predictions(np.zeros((400, 3)), [0] * 400))
    assert weights.sum() == pytest.approx(1)
    ratios = weights / weights[0]
    assert ratios.tolist() == pytest.approx([1, np.exp(-0.5), np.exp(-5), np.exp(-3)], rel=1e-4)


def test_prior_weights_count_clusters_and_not_rows():
    """Ten copies of every row in one cluster are no evidence beyond the row."""
    log_p, labels = np.random.default_rng(0).standard_normal((60, 2)), [0] * 60
    once = _prior_weights(log_p, [0.0, 0.0], Predictions(np.zeros((60, 3)), labels))
    copies = Predictions(np.zeros((600, 3)), labels * 10, clusters=np.arange(60).repeat(10))
    assert np.allclose(_prior_weights(log_p.repeat(10, 0), [0.0, 0.0], copies), once, atol=0.01, rtol=0)


def test_standard_error_of_a_gain_is_at_least_that_of_one_unseen_example():
    """Without variance, 0.02 nats in 50 examples are one standard error."""
    log_p = np.tile([0.0, -0.02], (50, 1))
    weights = _prior_weights(log_p, [0.0, 0.0], Predictions(np.zeros((50, 3)), [0] * 50))
    assert float(weights[1] / weights[0]) == pytest.approx(np.exp(-1), rel=1e-6)


def test_cross_fitting_leaves_out_gains_and_changes_nothing():
    data = distorted(100, 3, 0)
    fits = []
    expected = map_out_of_fold(lambda p: fits.append(Auto.fit(p)) or fits[-1], data.double(), folds=3)
    assert all(np.isfinite(fit.gain) for fit in fits)
    assert np.array_equal(cross_fit("Auto", data.double(), folds=3).logits, expected.logits)
    quick = Auto.fit(data, estimate_gain=False)
    assert np.isnan(quick.gain)
    assert np.array_equal(quick.weights, Auto.fit(data).weights)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 5])
def test_stated_gain_holds_for_calibrated_predictions(k):
    """There is nothing to gain: the lower limit is below the true gain and below 0 in at least 10 of 12 draws."""
    is_low = 0
    for seed in range(12):
        data, fresh = distorted(150, k, 2 * seed, scale=0.5), distorted(4000, k, 2 * seed + 1, scale=0.5)
        stack = Auto.fit(data)
        is_low += stack.gain_low < min(float(metrics.nll(fresh)) - nll(stack, fresh), 0) + 1e-3
        assert stack.out_of_fold == pytest.approx(float(metrics.nll(data)) - stack.gain)
    assert is_low >= 10


def test_stated_gain_needs_a_fold_for_maps_weights_and_evaluation_each():
    data = distorted(300, 4, 0, shift=np.linspace(1, -1, 4))
    stack = Auto.fit(data, folds=3)
    assert 0 < stack.gain_low < stack.gain < 1
    assert np.isnan([Auto.fit(data, folds=2).gain, Auto.fit(data, folds=2).gain_low]).all()


def test_stated_confidences_prefer_isotonic_maps():
    """A dozen distinct confidences leave VennAbers few parameters."""
    rng = np.random.default_rng(0)
    stated = rng.integers(11, size=400) / 10
    right = (rng.random(400) < np.where(stated >= 0.9, 0.5, 0.2)).astype(int)  # nearly all confidences are too high
    p = Predictions.from_confidence(stated, right)
    distinct = Predictions.from_confidence(np.minimum(stated + 1e-6 * rng.random(400), 1), right)
    weight = [{c.name: c.weight for c in Auto.fit(q).candidates}["VennAbers"] for q in (p, distinct)]
    assert weight[0] > max(weight[1], 0.3)


def test_slope_beyond_the_fitted_log_odds_is_at_most_one():
    """The labels follow twice the log-odds inside the range of the data."""
    rng = np.random.default_rng(0)
    s = 2 * rng.standard_normal(400).clip(-1, 1)
    labels = (rng.random(400) < expit(2 * s)).astype(int)
    stack = Auto.fit(Predictions(np.stack([-s / 2, s / 2], 1), labels))
    at = np.linspace(-5, 5, 101)
    slopes = np.diff(np.diff(stack(np.stack([-at / 2, at / 2], 1)))[:, 0]) / np.diff(at)
    inside = (at[:-1] > -1.95) & (at[1:] < 1.95)
    assert stack.ends == pytest.approx((-2, 2))
    assert float(slopes[inside].mean()) > 1.5
    assert float(slopes[at[:-1] >= 2].max()) <= 1 + 1e-9
    assert float(slopes[at[1:] <= -2].max()) <= 1 + 1e-9
    assert float(slopes.min()) >= 0


@pytest.mark.parametrize("k", [2, 4])
def test_auto_is_the_mixture_of_its_members(k):
    data = distorted(300, k, 0, shift=np.linspace(0.5, -0.5, k))
    stack = Auto.fit(data)
    logs = [log_softmax(member(data.logits), 1) for member in stack.members]
    if k == 2:
        odds = sum(w * (member[:, 1] - member[:, 0]) for w, member in zip(stack.weights, logs, strict=True))
        np.testing.assert_allclose(softmax(stack(data.logits), 1)[:, 1], expit(odds), rtol=1e-7, atol=1e-7)
    else:
        mean = sum(w * np.exp(member) for w, member in zip(stack.weights, logs, strict=True))
        np.testing.assert_allclose(stack(data.logits), np.log(mean), rtol=1e-7, atol=1e-7)
        assert stack.weights.sum() == pytest.approx(1)
    assert (stack.weights > 0).all()
    assert len(stack.members) == len(stack.weights) == len(stack.names)


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 5])
def test_auto_hardly_harms_calibrated_predictions(k):
    """On six small sets the mean cost is less than half that of the member with the least penalty."""
    bold = "Beta" if k == 2 else "Matrix(ridge=0.1)"
    costs = {Auto.fit: [], fit_function(bold): []}
    for seed in range(6):
        data, fresh = distorted(80, k, 2 * seed, scale=0.5), distorted(4000, k, 2 * seed + 1, scale=0.5)
        for fit, fit_costs in costs.items():
            fit_costs.append(nll(fit(data), fresh) - float(metrics.nll(fresh)))
    ours, theirs = map(np.mean, costs.values())
    assert ours < theirs / 2
    assert ours < 0.02


def test_one_impossible_example_hardly_changes_auto():
    data, fresh = distorted(80, 3, 0, scale=0.5), distorted(4000, 3, 1, scale=0.5)
    impossible = 40.0 * (np.arange(3) == (data.labels[0] + 1) % 3)
    spoiled = Predictions(np.vstack([data.logits, impossible]), np.append(data.labels, data.labels[0]))
    cost = {fit: nll(fit(spoiled), fresh) - float(metrics.nll(fresh)) for fit in (Temperature.fit, Auto.fit, robust)}
    assert cost[Temperature.fit] > 0.05
    assert cost[Auto.fit] < cost[Temperature.fit] / 2
    assert cost[robust] < cost[Temperature.fit] / 2


def robust(p):
    return SmoothedTemperature.fit(p, robust=True)


def test_robust_temperature_is_the_posterior_mode():
    data = distorted(60, 3, 5, scale=1.5)
    weighted = Predictions(data.logits, data.labels, weights=np.arange(60) % 3 + 1)
    for p in (data, weighted):
        fitted = robust(p)
        t = float(fitted.temperature)
        cost = {
            at: float(metrics.nll(p.apply(SmoothedTemperature(at, fitted.count)))) * p.total_weight
            + np.log(at) ** 2 / (2 * 0.5**2)
            for at in (0.98 * t, t, 1.02 * t)
        }
        assert min(cost, key=cost.__getitem__) == t
    copies = data[np.arange(60).repeat(np.arange(60) % 3 + 1)]
    assert t == pytest.approx(float(robust(copies).temperature), rel=1e-6)


def arrays_in(result):
    """Return all arrays that an object keeps alive, with those that own the memory of others."""
    visited, stack, arrays = set(), [result], []
    while stack:
        item = stack.pop()
        if id(item) in visited or isinstance(item, type | types.ModuleType | types.FunctionType):
            continue
        visited.add(id(item))
        arrays += [item] if isinstance(item, np.ndarray) else []
        stack += [*gc.get_referents(item), getattr(item, "base", None)]
    return arrays


@pytest.mark.parametrize("k", [2, 3])
def test_warm_starts_keep_no_data(k):
    data = distorted(400, k, 0, shift=0.2)
    families = [family for family in FAMILIES if family.supports(k)]
    scores, warm_starts = _out_of_fold_scores(families, data.double(), assign_folds(data.double(), 5))
    arrays = arrays_in(warm_starts)
    assert scores.shape[0] == 400
    assert arrays
    assert max(x.size for x in arrays) < 320  # rows of a fold, the smallest array of the data


def test_auto_leaves_out_families_without_enough_data():
    stack = Auto.fit(distorted(60, 80, 0))
    names = ("as it is", "SmoothedTemperature", "Monotone", "IntraOrderPreserving")
    assert tuple(member.name for member in stack.candidates) == names
    assert stack.left_out == (
        "IntraOrderPreserving then StructuredMatrix: 60 examples of 80 classes, needs 128",
        "Vector(ridge=0.1): 60 examples of 80 classes, needs 80",
        "Vector: 60 examples of 80 classes, needs 80",
        "Matrix(ridge=0.1): 60 examples of 80 classes, needs 128",
    )
    assert "left out: Vector" in str(stack)
    tiny = Auto.fit(distorted(3, 4, 0))
    assert tiny.names == ("as it is", "SmoothedTemperature")
    assert len(tiny.left_out) == 6


def test_matrix_follows_monotone_where_ranks_take_too_long(monkeypatch):
    """A fit by ranks counts as a matrix of 250 classes: 400 * 4 * 250 > 1e5 > 400 * 4 * 4."""
    data, matrix = distorted(400, 4, 0, shift=np.linspace(1, -1, 4)), "{} then StructuredMatrix"
    usual_names = {candidate.name for candidate in Auto.fit(data).candidates}
    monkeypatch.setattr(_families, "MAX_MATRIX_WORK", 1e5)
    stack = Auto.fit(data)
    large_names = {candidate.name for candidate in stack.candidates}
    assert usual_names - large_names == {"IntraOrderPreserving", matrix.format("IntraOrderPreserving")}
    assert large_names - usual_names == {matrix.format("Monotone")}
    assert sum("take too long" in reason for reason in stack.left_out) == 2


def test_accuracy_preserving_auto_preserves_the_argmax():
    data = distorted(500, 5, 0, shift=np.array([3.0, 0, 0, 0, -3.0]))
    preserving, free = Auto.fit(data, accuracy_preserving=True), Auto.fit(data)
    assert {member.name for member in preserving.candidates} == {
        "as it is",
        "SmoothedTemperature",
        "Monotone",
        "IntraOrderPreserving",
    }
    assert np.array_equal(preserving(data.logits).argsort(-1), data.logits.argsort(-1))
    assert not preserving.certificate.accuracy_changed
    assert free.certificate.accuracy_after > preserving.certificate.accuracy_after


@pytest.mark.shared
@pytest.mark.slow
def test_auto_beats_every_member_on_real_predictions(shared):
    val = Predictions.load(shared / "logits/kull_cifar10_resnet110_ce.val.npz")
    test = Predictions.load(shared / "logits/kull_cifar10_resnet110_ce.test.npz")
    members = (SmoothedTemperature, StructuredVector, StructuredMatrix, Vector, Monotone, Chain)
    assert nll(Auto.fit(val), test) < min(nll(member.fit(val), test) for member in members)
