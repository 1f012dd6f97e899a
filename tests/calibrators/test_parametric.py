"""Temperature, affine, structured and monotone maps: identities, independent optima, known truths."""

import math
from itertools import pairwise

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused
from scipy import optimize, special
from scipy.special import log_softmax, softmax

from calibrant import Predictions, metrics
from calibrant._core.kernels.solvers import newton
from calibrant.calibrators import (
    Beta,
    BiasCorrectedTemperature,
    Dirichlet,
    EnsembleTemperature,
    Matrix,
    Monotone,
    Platt,
    Quadratic,
    SmoothedTemperature,
    StructuredMatrix,
    StructuredVector,
    Temperature,
    Vector,
    _affine_solver,
)
from calibrant.calibrators._affine_solver import fit_affine, minimize
from calibrant.calibrators._preconditioner import RowChunk, approximate_preconditioner, pack
from calibrant.calibrators._temperature import fit_nll_temperature


def dirichlet(n, k, seed=0, alpha=0.3, slope=1.0, scale=1.0, shift=0.0):
    """Draw p ~ Dirichlet and y ~ p; return distorted log p and the NLL of p."""
    rng = np.random.default_rng(seed)
    p = np.clip(rng.dirichlet([alpha] * k, n), 1e-12, 1)
    p /= p.sum(1, keepdims=True)
    y = np.minimum((p.cumsum(1) < rng.random((n, 1))).sum(1), k - 1)
    return Predictions(slope * (np.log(p) * scale + shift), y), float(-np.log(p[np.arange(n), y]).mean())


def nll(fitted, predictions) -> float:
    return float(metrics.nll(fitted(predictions.logits), predictions.labels))


@pytest.mark.parametrize(
    "fit",
    [
        Temperature,
        EnsembleTemperature,
        SmoothedTemperature,
        StructuredVector,
        StructuredMatrix,
        Vector,
        Matrix,
        Monotone,
    ],
)
def test_gradients_pass_through_fitted_maps(torch, fit):
    data, _ = dirichlet(200, 4, slope=1.7)
    fitted, z = fit.fit(data), torch.tensor(data.logits[:5], requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: fitted(z).log_softmax(-1), z)


# Temperature


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_data_are_solved_exactly(dtype):
    data, _ = dirichlet(16000, 100, slope=0.6)
    logits = data.logits.astype(dtype)
    result = fit_nll_temperature(Predictions(logits, data.labels))
    z = logits.astype(float)

    def loss(u):
        return float(metrics.nll(z * math.exp(-math.log(result.temperature) + u), data.labels))

    assert result.nll == pytest.approx(loss(0.0), abs=1e-12)
    assert (loss(1e-4) - loss(-1e-4)) / 2e-4 == pytest.approx(0, abs=1e-8)


def test_temperature_finds_the_truth_within_its_standard_error():
    for seed, slope in enumerate([0.6, 1.0, 2.5]):
        data, _ = dirichlet(4000, 10, seed, slope=slope)
        fitted = Temperature.fit(data)
        assert abs(fitted.temperature - slope) < 3.5 * fitted.certificate.standard_error


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1.0, 1e30])
@pytest.mark.parametrize("n", [50, 40000])
def test_separable_data_are_recognized_at_any_scale(scale, n):
    z = scale * np.random.default_rng(0).standard_normal((n, 10))
    result = Temperature.fit(z, z.argmax(-1)).certificate
    assert result.separable
    assert 0 <= result.after < 1e-9


@pytest.mark.parametrize("scale", [1e-100, 1e-10, 1e100])
def test_temperature_scales_with_the_logits(scale):
    data, _ = dirichlet(500, 4, slope=1.5)
    once, scaled = Temperature.fit(data), Temperature.fit(scale * data.logits, data.labels)
    assert scaled.temperature == pytest.approx(scale * once.temperature, rel=1e-9)


@pytest.mark.parametrize("k", [3, 300])
def test_certificate_of_a_temperature_counts_ties_as_the_metrics_do(k):
    rows = np.arange(500)
    z = (3 * np.sin(np.arange(500 * k))).round().reshape(500, k)  # many equal logits
    p = Predictions(z, np.where(rows % 3 > 0, z.argmax(1), rows % k), rows % 4 + 0.5)
    certificate = Temperature.fit(p).certificate
    assert certificate.accuracy_before == pytest.approx(float(metrics.accuracy(p)), rel=1e-12)
    assert certificate.nll_before == pytest.approx(float(metrics.nll(p)), rel=1e-12)


def test_impossible_labels_are_left_out_of_the_temperature():
    data, _ = dirichlet(300, 4, slope=2.0)
    logits = data.logits.copy()
    logits[range(5), data.labels[:5]] = -np.inf
    fitted = Temperature.fit(logits, data.labels)
    assert fitted.temperature == pytest.approx(Temperature.fit(data[5:]).temperature, rel=1e-9)
    assert fitted.certificate.after == math.inf
    with refused("all_impossible"):
        Temperature.fit(logits[:5], data.labels[:5])


EQUIVARIANT = [
    Temperature,
    SmoothedTemperature,
    BiasCorrectedTemperature,
    Vector,
    StructuredVector,
    StructuredMatrix,
    Monotone,
]


@pytest.mark.parametrize("c", [1e-2, 0.1, 10.0, 100.0])
@pytest.mark.parametrize("cls", EQUIVARIANT)
def test_scaled_logits_give_the_same_probabilities(cls, c):
    data, _ = dirichlet(400, 4, slope=1.5, shift=np.array([0.3, 0, -0.2, 0]))
    once, scaled = cls.fit(data), cls.fit(c * data.logits, data.labels)
    if cls is Temperature:
        assert scaled.temperature == pytest.approx(c * once.temperature, rel=1e-9)
    gap = softmax(once(data.logits), 1) - softmax(scaled(c * data.logits), 1)
    assert abs(gap).max() < 2e-5


@pytest.mark.parametrize("c", [1e-2, 0.1, 10.0, 100.0])
@pytest.mark.parametrize("cls", [Platt, Quadratic])
def test_scaled_scores_give_the_same_probabilities(cls, c):
    data, _ = dirichlet(400, 2, slope=1.5, shift=np.array([0.3, 0]))
    gap = cls.fit(data)(data.logits) - cls.fit(c * data.logits, data.labels)(c * data.logits)
    assert abs(gap).max() < 1e-3


# Affine maps


def test_vector_scaling_is_the_maximum_likelihood():
    data, _ = dirichlet(400, 3, slope=2.0, scale=np.array([0.7, 1.0, 1.4]), shift=np.array([0.5, 0, -0.5]))
    z, y = data.logits, data.labels

    def loss(t):
        s = z * t[:3] + t[3:]
        return (np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1) - s[np.arange(400), y]).mean()

    best = optimize.minimize(loss, np.r_[np.ones(3), np.zeros(3)], method="BFGS").fun
    assert nll(Vector.fit(data), data) == pytest.approx(best, abs=2e-5)


@pytest.mark.parametrize("ridge", [0.1, 1.0, 10.0])
def test_ridges_are_those_of_structured_scaling_on_logits_of_unit_scale(ridge):
    data, _ = dirichlet(200, 3, slope=2.0, scale=np.array([0.7, 1.0, 1.4]), shift=np.array([0.5, 0, -0.5]))
    t = Temperature.fit(data).temperature
    x, y = data.logits / t, data.labels

    def nll_of(s):
        return (np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1) - s[np.arange(200), y]).mean()

    def vector(p):
        return nll_of(x * p[:3] + p[3:]) + ridge * 3 / 200 * (((p[:3] - 1) ** 2).sum() + (p[3:] ** 2).sum())

    def matrix(p):
        change = p[:9].reshape(3, 3) - np.eye(3)
        squares = (change**2).sum() + ((change - np.diag(np.diag(change))) ** 2).sum()  # k - 1 = 2 off the diagonal
        s = (x - x.mean(1, keepdims=True)) @ p[:9].reshape(3, 3).T + p[9:]
        return nll_of(s) + ridge * 3 / 200 * (squares + (p[9:] ** 2).sum())

    best = optimize.minimize(vector, np.r_[np.ones(3), np.zeros(3)], method="BFGS", options={"gtol": 1e-8})
    result = Vector.fit(data, ridge=ridge)
    assert np.allclose(np.r_[result.scale, result.bias], best.x, atol=2e-4)
    best = optimize.minimize(matrix, np.r_[np.eye(3).reshape(-1), np.zeros(3)], method="BFGS", options={"gtol": 1e-8})
    result = Matrix.fit(data, ridge=ridge)
    assert np.allclose(np.r_[result.weight.reshape(-1), result.bias], best.x, atol=2e-4)
    assert np.allclose(Matrix.fit(data, warm_start=result, ridge=ridge).weight, result.weight, atol=1e-4)


def test_invalid_ridge_is_refused():
    data, _ = dirichlet(50, 3, slope=2.0)
    with refused("setting_range"):
        Vector.fit(data, ridge=-1.0)
    with refused("setting_range"):
        Matrix.fit(data, ridge=0.0)
    with refused("conflicting_settings"):
        Matrix.fit(data, ridge=1.0, penalty=1.0)


def test_bias_corrected_temperature_finds_the_truth():
    shift = np.array([1.0, 0.0, -1.0])
    data, _ = dirichlet(20000, 3, slope=2.0, shift=shift)
    fitted = BiasCorrectedTemperature.fit(data)
    assert fitted.temperature == pytest.approx(2.0, abs=0.06)
    assert np.allclose(fitted.bias - fitted.bias.mean(), -shift, atol=0.06)


@pytest.mark.parametrize("cls", [Matrix, Dirichlet])
def test_heavy_penalty_leaves_only_the_diagonal_and_zero_is_refused(cls):
    data, _ = dirichlet(500, 3, slope=2.0, shift=np.array([0.5, 0, -0.5]))
    heavy, light = cls.fit(data, penalty=1e6), cls.fit(data, penalty=1e-3)
    off = ~np.eye(3, dtype=bool)
    assert np.abs(heavy.weight[off]).max() < 1e-4
    assert np.abs(heavy.bias).max() < 1e-4
    assert nll(light, data) < nll(heavy, data) - 1e-3
    assert light.certificate.gradient < 1e-5
    assert 1e-7 <= cls.fit(data).penalty <= 1e5
    with refused("setting_range"):
        cls.fit(data, penalty=0.0)
    with refused("many_classes"):
        cls.fit(np.zeros((2, 1001)), [0, 0])


@pytest.mark.parametrize("cls", [Matrix, Dirichlet])
def test_selected_penalty_prevents_overfitting_with_many_classes(cls):
    """1,000 examples and 900 entries, and a temperature is the truth: a penalty of 1 is too weak."""
    (data, _), (fresh, _) = dirichlet(1000, 30, slope=2.0), dirichlet(4000, 30, slope=2.0, seed=1)
    selected, weak = cls.fit(data), cls.fit(data, penalty=1.0)
    assert selected.penalty > 1
    assert nll(selected, fresh) < nll(weak, fresh) - 0.02
    assert nll(selected, fresh) < nll(Temperature.fit(data), fresh) + 0.03


@pytest.mark.parametrize("penalty", [0.1, 0.01])
def test_matrix_is_fitted_although_the_objective_is_flat_at_the_identity(penalty):
    """Very overconfident predictions with rare classes have a small curvature at the identity."""
    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal((1000, 10)) - np.linspace(0, 8, 10)
    labels = drawn_labels(z, rng)
    result = Dirichlet.fit(6 * z, labels, penalty=penalty).certificate
    assert result.before > 2
    assert result.after < metrics.nll(z, labels) - 0.03  # 110 parameters gain about 110 / 2000 in sample


@pytest.mark.parametrize("penalty", [1e-2, 1e-4])
def test_matrix_is_fitted_with_impossible_classes(penalty):
    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal((1000, 10))
    labels = np.maximum(drawn_labels(z / 2, rng), 2)
    z[:, :2] = -np.inf
    fitted = Matrix.fit(z, labels, penalty=penalty)
    assert fitted.certificate.status == "converged"
    assert fitted.certificate.after < fitted.certificate.before


def test_dirichlet_of_two_classes_is_beta_calibration():
    """Kull et al. (2019), section 2.2: Dirichlet calibration generalizes beta calibration."""
    data, _ = dirichlet(800, 2, slope=2.0, alpha=1.0, shift=np.array([0.5, 0]))
    maps = Dirichlet.fit(data, penalty=1e-7), Beta.fit(data, monotone=False)
    np.testing.assert_allclose(*(softmax(fitted(data.logits), 1) for fitted in maps), rtol=0, atol=2e-3)


@pytest.mark.parametrize("shape", [(), (5,), (5, 5)])
def test_affine_fit_agrees_with_another_solver(shape):
    """Compare with BFGS on gradients of the definition; log-probabilities are highly correlated."""
    data, _ = dirichlet(2000, 5, slope=1.5, scale=np.array([0.7, 1, 1, 1, 1.4]), shift=np.array([1, 0, 0, 0, -1.0]))
    x, one_hot = log_softmax(data.logits, 1), np.eye(5)[data.labels]
    identity = np.eye(5) if len(shape) == 2 else np.ones(shape)
    ridge = 1e-3 * (1 + np.random.default_rng(0).random(shape))

    def loss(t):
        w, c = t[:-5].reshape(shape), t[-5:]
        s = (x @ w.T if w.ndim == 2 else x * w) + c
        value = -(log_softmax(s, 1) * one_hot).sum(1).mean() + (ridge * (w - identity) ** 2).sum() + 1e-3 * (c**2).sum()
        change = (softmax(s, 1) - one_hot) / len(x)  # derivatives of the NLL in s
        slope = change.T @ x if w.ndim == 2 else (change * x).sum(None if w.ndim == 0 else 0)
        return value, np.r_[(slope + 2 * ridge * (w - identity)).ravel(), change.sum(0) + 2e-3 * c]

    result = fit_affine(Predictions(x, data.labels), identity, ridge, 1e-3)
    at = np.r_[result.weight.reshape(-1), result.bias]
    best = optimize.minimize(
        loss, np.r_[identity.ravel(), np.zeros(5)], jac=True, method="BFGS", options={"gtol": 1e-8}
    )
    value, slope = loss(at)
    assert value == pytest.approx(best.fun, abs=1e-9)
    assert np.allclose(at, best.x, atol=5e-4)
    assert np.abs(slope).max() < 1e-5  # the search ends at 1e-6 in its own coordinates
    assert result.iterations <= (160 if len(shape) == 2 else 45)
    again = fit_affine(Predictions(x, data.labels), identity, ridge, 1e-3, result)
    assert again.iterations <= 3
    assert np.allclose(np.r_[again.weight.reshape(-1), again.bias], best.x, atol=5e-4)


def test_affine_iterations_count_the_newton_step_of_every_round(monkeypatch):
    evaluations, rounds = [], []

    def counting_minimize(*arguments, **options):
        minimum = minimize(*arguments, **options)
        evaluations.append(minimum.evaluations)
        return minimum

    def counting_finish(*arguments):
        rounds.append(arguments)
        return finish(*arguments)

    finish = _affine_solver._Problem.finish
    monkeypatch.setattr(_affine_solver, "MAX_STEPS_PER_ROUND", 2)
    monkeypatch.setattr(_affine_solver, "minimize", counting_minimize)
    monkeypatch.setattr(_affine_solver._Problem, "finish", counting_finish)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, 3))
    fit = fit_affine(Predictions(x, drawn_labels(3 * x, rng)), np.eye(3), 0.0, 0.0, min_ridge=1e-9)
    assert len(rounds) > 1
    assert fit.iterations == sum(evaluations) + len(rounds)


# Structured scaling


def by_definition(z, y, full: bool):
    """Solve the definition of Berta et al. (2025) by BFGS with finite differences."""
    n, k = z.shape
    t = Temperature.fit(z, y).temperature
    p = np.exp(z / t - (z / t).max(1, keepdims=True))
    u = np.log((n * p / p.sum(1, keepdims=True) + 1 / k) / (n + 1))

    def loss(theta):
        c, v = theta[:k], theta[k : 2 * k]
        m = np.diag(v)
        off = 0.0
        if full:
            m[~np.eye(k, dtype=bool)] = theta[2 * k :]
            off = (theta[2 * k :] ** 2).sum()
        s = u + u @ m.T + c
        mean = (np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1) - s[np.arange(n), y]).mean()
        return mean + k / n * (c @ c + v @ v) + k * (k - 1) / n * off

    result = optimize.minimize(loss, np.zeros(k * (k + 1) if full else 2 * k), method="BFGS", options={"gtol": 1e-7})
    return result.x[:k], result.x[k : 2 * k]


@pytest.mark.parametrize("cls", [StructuredVector, StructuredMatrix])
def test_structured_scaling_has_the_optimum_of_its_definition(cls):
    data, _ = dirichlet(250, 3, slope=2.0, scale=np.array([0.7, 1.0, 1.4]), shift=np.array([0.5, 0, -0.5]))
    fitted = cls.fit(data)
    bias, diagonal = by_definition(data.logits, data.labels, cls is StructuredMatrix)
    ours = fitted.scale if cls is StructuredVector else fitted.weight.diagonal()
    assert np.allclose(fitted.bias, bias, atol=1e-5)
    assert np.allclose(ours, diagonal, atol=1e-5)


def test_structured_scaling_nears_the_bayes_risk():
    rng = np.random.default_rng(1)
    distortion = {"slope": 2.0, "scale": np.exp(rng.normal(0, 0.15, 10)), "shift": rng.normal(0, 0.3, 10)}
    data, _ = dirichlet(5000, 10, 1, 0.1, **distortion)
    fresh, bayes = dirichlet(20000, 10, 2, 0.1, **distortion)
    excess = nll(Temperature.fit(data), fresh) - bayes
    assert excess > 0.005
    assert nll(StructuredVector.fit(data), fresh) - bayes < 0.5 * excess


def test_refitted_temperature_repairs_underconfidence():
    """Shrinking toward a misspecified temperature leaves the confidence too low."""
    rng = np.random.default_rng(0)
    k, n = 20, 1000
    scale, shift, mix = np.exp(rng.normal(0, 0.15, k)), rng.normal(0, 0.3, k), rng.normal(0, 0.015, (k, k))

    def draw(m):
        p = np.clip(rng.dirichlet([0.07] * k, m), 1e-12, 1)
        y = np.minimum(((p / p.sum(1, keepdims=True)).cumsum(1) < rng.random((m, 1))).sum(1), k - 1)
        z = np.log(p) - np.log(p).mean(1, keepdims=True)
        return Predictions(2 * (z * scale + z @ mix.T + shift), y)

    data, fresh = draw(n), draw(10000)
    structured, repaired = StructuredMatrix.fit(data), StructuredMatrix.fit(data, refit_temperature=True)
    assert repaired.final < 0.9
    assert metrics.ece(fresh.apply(repaired)) < 0.5 * metrics.ece(fresh.apply(structured))
    assert nll(repaired, fresh) < nll(structured, fresh) - 0.005


def test_smoothed_temperature_is_the_rule_of_succession_if_every_example_is_right():
    logits = np.tile(3 * np.eye(4), (5, 1))
    fitted = SmoothedTemperature.fit(logits, logits.argmax(1))
    assert np.exp(fitted(logits)).max() == pytest.approx((20 + 1 / 4) / 21, rel=1e-6)


@pytest.mark.shared
def test_published_values_on_real_predictions(shared):
    """CalArena's table (arXiv 2605.30188): temperature .2093, SVS .2066, SMS .2031 NLL on this network."""
    val = Predictions.load(shared / "logits/kull_cifar10_resnet110_ce.val.npz")
    test = Predictions.load(shared / "logits/kull_cifar10_resnet110_ce.test.npz")
    assert nll(Temperature.fit(val), test) == pytest.approx(0.2093, abs=1e-4)
    assert nll(StructuredVector.fit(val), test) == pytest.approx(0.2066, abs=1e-4)
    assert nll(StructuredMatrix.fit(val), test) == pytest.approx(0.2031, abs=1e-4)


# Monotone


def test_one_piece_is_temperature_scaling():
    data, _ = dirichlet(500, 5, slope=2.0)
    fitted = Monotone.fit(data, pieces=1)
    assert fitted.slopes.item() == pytest.approx(1.0, abs=1e-5)
    after = [softmax(map_(data.logits), 1) for map_ in (fitted, Temperature.fit(data))]
    assert np.allclose(*after, atol=1e-5)


def test_monotone_map_has_the_optimum_of_its_definition():
    data, _ = dirichlet(300, 3, slope=1.5)
    bent = Predictions(-((-log_softmax(data.logits, 1)) ** 1.4), data.labels)
    fitted = Monotone.fit(bent, pieces=3)
    v = -log_softmax(bent.logits / fitted.temperature, 1)
    ends = [*fitted.knots.tolist(), np.inf]
    lengths = np.stack([np.clip(np.minimum(v, b) - a, 0, None) for a, b in pairwise(ends)])
    y = bent.labels

    def loss(theta):
        s = -np.tensordot(theta, lengths, 1)
        mean = (np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1) - s[np.arange(300), y]).mean()
        return mean + (np.diff(theta) ** 2).sum() / 300

    result = optimize.minimize(loss, np.ones(3), method="SLSQP", bounds=[(1e-3, None)] * 3, options={"ftol": 1e-14})
    assert loss(fitted.slopes) <= result.fun + 1e-9
    assert np.allclose(fitted.slopes, result.x, atol=1e-3)


def test_newton_finds_the_minimum_within_bounds():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((40, 4)), rng.standard_normal(4)

    def f(x):  # softplus of lines, and a square
        s = special.expit(a @ x)
        value = np.logaddexp(0, a @ x).sum() + ((x - b) ** 2).sum()
        return float(value), a.T @ s + 2 * (x - b), (a.T * (s * (1 - s))) @ a + 2 * np.eye(4)

    for low in (-10.0, 0.0):
        lower = np.full(4, low)
        result = newton(f, np.full(4, 30.0), lower=lower)
        best = optimize.minimize(lambda x: f(x)[0], np.ones(4), bounds=[(low, None)] * 4)
        assert result.value <= best.fun + 1e-12
        assert result.gradient**2 < 2e-14 * np.linalg.norm(f(result.x)[2], 2)  # ends at a predicted gain of 1e-14
        assert result.evaluations < 20
        assert (result.x >= lower).all()


@pytest.mark.slow
def test_monotone_map_takes_few_passes_over_many_classes():
    rng = np.random.default_rng(1)
    z = 2 * rng.standard_normal((200, 10_000), dtype=np.float32)
    certificate = Monotone.fit(1.5 * z, drawn_labels(z, rng)).certificate
    assert certificate.status == "converged"
    assert certificate.iterations < 12


def test_monotone_map_costs_little_where_temperature_is_the_truth_and_gains_where_it_is_not():
    data, _ = dirichlet(1000, 10, 0, 0.1, slope=2.0)
    fresh, bayes = dirichlet(20000, 10, 1, 0.1, slope=2.0)
    assert nll(Monotone.fit(data), fresh) - bayes < 0.003
    bend = [Predictions(-((-log_softmax(p.logits, 1)) ** 1.5), p.labels) for p in (data, fresh)]
    assert nll(Monotone.fit(bend[0]), bend[1]) < nll(Temperature.fit(bend[0]), bend[1]) - 0.005


# Two classes


def test_platt_scaling_agrees_with_scikit_learn():
    from sklearn.calibration import _SigmoidCalibration

    data, _ = dirichlet(500, 2, slope=2.0, shift=np.array([0.4, 0]))
    s = data.logits[:, 1] - data.logits[:, 0]
    theirs = _SigmoidCalibration().fit(s, data.labels).predict(s)
    ours = softmax(Platt.fit(data)(data.logits), 1)[:, 1]
    assert np.abs(ours - theirs).max() < 2e-4


def test_beta_calibration_is_logistic_regression_on_its_features():
    from sklearn.linear_model import LogisticRegression

    data, _ = dirichlet(800, 2, alpha=1.0, slope=2.0, shift=np.array([0.4, 0]))
    p = softmax(data.logits, 1)[:, 1]
    x = np.stack([np.log(p), -np.log1p(-p)], 1)
    theirs = LogisticRegression(C=1e6, tol=1e-8, max_iter=1000).fit(x, data.labels).predict_proba(x)[:, 1]
    ours = softmax(Beta.fit(data, monotone=False)(data.logits), 1)[:, 1]
    assert np.abs(ours - theirs).max() < 1e-3


def test_binary_maps_find_the_truth():
    data, bayes = dirichlet(20000, 2, alpha=1.0, slope=2.0, shift=np.array([0.4, 0]))
    platt, beta, quadratic = Platt.fit(data), Beta.fit(data), Quadratic.fit(data)
    assert platt.slope == pytest.approx(0.5, abs=0.02)
    assert platt.bias == pytest.approx(0.4, abs=0.05)
    assert beta.a == pytest.approx(0.5, abs=0.05)
    assert beta.b == pytest.approx(0.5, abs=0.05)
    for fitted in (platt, beta, quadratic):
        assert nll(fitted, data) == pytest.approx(bayes, abs=5e-4)


@pytest.mark.parametrize("cls", [Platt, Beta, Quadratic])
def test_binary_maps_are_monotone_by_default(cls):
    """The true curve is not monotone."""
    rng = np.random.default_rng(0)
    s = 3 * rng.standard_normal(2000)
    y = (rng.random(2000) < special.expit(0.4 * s**2 - s - 1)).astype(int)
    logits, fresh = np.outer(s, [0, 1]), np.outer(np.linspace(-30, 30, 400), [0, 1])
    free, bound = cls.fit(logits, y, monotone=False), cls.fit(logits, y)
    assert (np.diff(bound(fresh)[:, 1]) >= -1e-9).all()
    assert nll(free, Predictions(logits, y)) <= nll(bound, Predictions(logits, y)) + 2e-3
    if cls is Quadratic:
        assert (np.diff(free(fresh)[:, 1]) < -1e-3).any()
        assert bound.certificate.at_bound
    with refused("num_classes"):
        cls.fit(2 * np.eye(3), np.arange(3))


# Ensemble temperature


def test_ensemble_temperature_approaches_a_true_temperature():
    data, _ = dirichlet(4000, 5, alpha=0.5, slope=0.5)
    fitted = EnsembleTemperature.fit(data)
    assert fitted.weights[0] > 0.93
    assert fitted.certificate.after <= Temperature.fit(data).certificate.after + 1e-9


@pytest.mark.parametrize("criterion", ["nll", "brier"])
def test_ensemble_weights_are_optimal_on_the_simplex(criterion):
    data, _ = dirichlet(400, 4, alpha=0.5, slope=2.0)
    noisy = Predictions(data.logits, np.where(np.arange(400) % 10 == 0, 3 - data.labels, data.labels))
    fitted = EnsembleTemperature.fit(noisy, criterion=criterion)
    metric = metrics.nll if criterion == "nll" else metrics.brier
    best = metric(fitted(noisy.logits), noisy.labels)
    for i in range(21):
        for j in range(21 - i):
            w = np.array([i, j, 20 - i - j]) / 20
            second = EnsembleTemperature(fitted.temperature, w)
            assert best <= metric(second(noisy.logits), noisy.labels) + 1e-7


def test_ensemble_temperature_by_brier_is_no_worse_in_brier_than_by_nll():
    data, _ = dirichlet(500, 4, alpha=0.5, slope=3.0, shift=np.array([1, 0, 0, -1]))
    by_brier, by_nll = (EnsembleTemperature.fit(data, criterion=c).certificate for c in ("brier", "nll"))
    assert by_brier.after <= float(metrics.brier(EnsembleTemperature.fit(data)(data.logits), data.labels)) + 1e-9
    assert by_nll.nll_after <= by_brier.nll_after + 1e-9


@pytest.mark.parametrize("shape", [(), (3,), (3, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_curvature_is_summed_over_chunks_of_rows(shape, weighted):
    g = np.random.default_rng(0)
    x, labels = g.normal(size=(3, 50)), np.zeros(50, dtype=int)
    shares = (1 + g.random(50) if weighted else np.ones(50)) / 50
    chunks = [RowChunk(x[:, rows], labels[rows], shares[rows]) for rows in (slice(10), slice(10, 50))]
    ridge = pack(np.full(shape, 0.1), np.full(3, 0.2))
    weight = np.eye(3) if len(shape) == 2 else np.ones(shape)
    expected = approximate_preconditioner([RowChunk(x, labels, shares)], weight, np.zeros(3), ridge)
    result = approximate_preconditioner(chunks, weight, np.zeros(3), ridge)
    np.testing.assert_allclose(result.scale, expected.scale, rtol=1e-12)
    np.testing.assert_allclose(result.root, expected.root, rtol=1e-12, atol=1e-15)


def test_impossible_class_hardly_changes_a_robust_temperature():
    p, _ = dirichlet(500, 4, scale=2.0)
    masked = p.logits.copy()
    masked[0, (p.labels[0] + 1) % 4] = -np.inf
    without, robust = (
        SmoothedTemperature.fit(p, robust=True),
        SmoothedTemperature.fit(p.with_logits(masked), robust=True),
    )
    assert float(robust.temperature) == pytest.approx(float(without.temperature), rel=0.05)
