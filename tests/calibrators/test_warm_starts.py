"""Warm starts, coordinates and L-BFGS memory change the speed of fits, not their results."""

from functools import partial

import numpy as np
import pytest
from drawn import drawn_labels
from scipy import optimize
from scipy.special import log_softmax

from calibrant import Predictions, metrics
from calibrant._core.kernels.lbfgs import Minimum, descent_direction, minimize
from calibrant.calibrators import (
    Auto,
    Beta,
    Chain,
    IntraOrderPreserving,
    Matrix,
    Monotone,
    Platt,
    Quadratic,
    SmoothedTemperature,
    StructuredMatrix,
    StructuredVector,
    Vector,
    VennAbers,
    _monotone,
)
from calibrant.calibrators._affine_solver import COARSE_GRADIENT_TOLERANCE, fit_affine
from calibrant.calibrators._preconditioner import RowChunk, exact_preconditioner, pack
from calibrant.predictions.folds import map_out_of_fold


def draw(n: int, k: int, seed: int = 0, *, weighted: bool = False) -> Predictions:
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, k))
    y, weights = drawn_labels(z, rng), rng.integers(1, 4, n)
    return Predictions(1.6 * z + np.linspace(-0.5, 0.5, k), y, weights if weighted else None)


def fit_chain(p: Predictions) -> Chain:
    first = IntraOrderPreserving.fit(p)
    return Chain(first, StructuredMatrix.fit(p.apply(first), robust=True))


SINGLE_FITS = {
    "SmoothedTemperature": partial(SmoothedTemperature.fit, robust=True),
    "StructuredVector": partial(StructuredVector.fit, robust=True),
    "StructuredMatrix": partial(StructuredMatrix.fit, robust=True),
    "Platt": Platt.fit,
    "Beta": Beta.fit,
    "Quadratic": Quadratic.fit,
    "VennAbers": VennAbers.fit,
    "Monotone": Monotone.fit,
    "IntraOrderPreserving": IntraOrderPreserving.fit,
    "IntraOrderPreserving then StructuredMatrix": fit_chain,
    "Vector(ridge=0.1)": partial(Vector.fit, ridge=0.1),
    "Vector": Vector.fit,
    "Matrix(ridge=0.1)": partial(Matrix.fit, ridge=0.1),
}


@pytest.mark.parametrize(("k", "weighted"), [(2, False), (4, True)])
def test_members_of_auto_agree_with_single_fits(k, weighted):
    p, fresh = draw(120, k, weighted=weighted), draw(50, k, 1).logits
    stack = Auto.fit(p, folds=2)
    assert len(stack.candidates) == (10 if k == 2 else 8)
    for candidate in stack.candidates[1:]:
        single_nll = float(metrics.nll(map_out_of_fold(SINGLE_FITS[candidate.name], p, folds=2)))
        assert candidate.held_out == pytest.approx(single_nll, abs=1e-4)
        if candidate.fitted is not None:
            after = [log_softmax(fitted(fresh), 1) for fitted in (candidate.fitted, SINGLE_FITS[candidate.name](p))]
            np.testing.assert_allclose(*after, rtol=0, atol=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_objective_of_monotone_is_the_formula(torch, monkeypatch, weighted):
    """The NLL of -sum_j theta_j [min(v, e_j+1) - e_j]_+, its gradient and Hessian, away from the optimum."""
    p, objectives = draw(300, 5, weighted=weighted), []

    def search(f, start, **_):
        objectives.append(f)
        return Minimum(start, 0.0, 0.0, 1)

    monkeypatch.setattr(_monotone, "newton", search)
    fitted = Monotone.fit(p)
    v, knots = -torch.from_numpy(p.logits / fitted.temperature).log_softmax(-1), torch.from_numpy(fitted.knots)
    ends = torch.cat([knots[1:], torch.tensor([torch.inf], dtype=torch.float64)])
    lengths = v[:, :, None].clamp(knots, ends) - knots
    labels = torch.from_numpy(p.labels)
    often = torch.from_numpy(np.ones(300) if p.weights is None else p.weights)

    def direct_loss(theta):
        log_p = -(lengths @ theta)
        loss = often @ torch.nn.functional.cross_entropy(log_p, labels, reduction="none")
        return (loss + theta.diff().square().sum()) / p.total_weight

    theta = torch.linspace(0.3, 2.0, len(knots), dtype=torch.float64).requires_grad_()
    value, slope, bend = objectives[0](theta.detach().numpy())
    expected = direct_loss(theta)
    assert value == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(slope, torch.autograd.grad(expected, theta)[0], rtol=1e-9, atol=1e-11)
    expected_bend = torch.autograd.functional.hessian(direct_loss, theta.detach())
    np.testing.assert_allclose(bend, expected_bend, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_hessian_is_the_unit_matrix_in_exact_coordinates(torch, full, weighted):
    k, n, ridge, ridge_bias = 4, 150, 0.02, 0.03
    p = draw(n, k, weighted=weighted)
    shares = (np.ones(n) if p.weights is None else p.weights) / p.total_weight
    shape, rng = (k, k) if full else (k,), np.random.default_rng(3)
    w, c = 0.3 * rng.standard_normal(shape), 0.3 * rng.standard_normal(k)
    ridges = pack(np.full(shape, ridge), np.full(k, ridge_bias))
    chunks = [RowChunk(p.logits[rows].T, p.labels[rows], shares[rows]) for rows in (slice(100), slice(100, n))]
    preconditioner = exact_preconditioner(chunks, w, c, ridges)
    columns = (p.logits, p.labels, shares, preconditioner.scale, preconditioner.inverse)
    x, labels, shares, scale, inverse = map(torch.from_numpy, columns)

    def loss(t):
        change = (t @ inverse * scale).view(k, -1)
        v, b = change[:, :-1].reshape(shape), change[:, -1]
        losses = torch.nn.functional.cross_entropy((x @ v.mT if full else x * v) + b, labels, reduction="none")
        return shares @ losses + ridge * v.square().sum() + ridge_bias * b.square().sum()

    t = preconditioner.to_coordinates(pack(w, c))
    result = torch.autograd.functional.hessian(loss, torch.from_numpy(t))
    np.testing.assert_allclose(result, np.eye(len(t)), rtol=0, atol=1e-8)


def stretched(x):
    """Return a convex function and its gradient; its curvature differs a hundredfold between axes."""
    stretch = np.logspace(0, 2, len(x))
    s = stretch * (x - 1)
    value = (np.minimum(np.exp(s) - s, 1e300) + stretch * x**2).sum()
    return float(value), stretch * (np.exp(s) - 1) + 2 * stretch * x


def test_lbfgs_agrees_with_scipy_and_warm_starts_save_evaluations():
    start = np.linspace(-1, 1, 6)
    result = minimize(stretched, start, tolerance=1e-9)
    best = optimize.minimize(lambda x: stretched(x)[0], start, method="BFGS", options={"gtol": 1e-6})
    assert result.gradient <= 1e-9
    assert result.value <= best.fun + 1e-9
    assert np.allclose(result.x, best.x, atol=1e-4)
    again = minimize(stretched, result.x + 0.01, tolerance=1e-9, curvature_pairs=result.curvature_pairs)
    assert np.allclose(again.x, result.x, atol=1e-8)
    assert again.evaluations < result.evaluations


def test_lbfgs_pairs_hold_the_hessian_of_a_quadratic():
    """After as many conjugate steps as there are parameters, the inverse Hessian is exact."""
    g = np.random.default_rng(0)
    root = g.normal(size=(5, 5))
    bend = root @ root.T + np.eye(5)
    directions = np.linalg.eigh(bend)[1].T  # conjugate to each other
    pairs = tuple(
        (step / np.sqrt(step @ bend @ step), bend @ step / np.sqrt(step @ bend @ step)) for step in directions
    )
    gradient = g.normal(size=5)
    assert np.allclose(descent_direction(pairs, gradient), -np.linalg.solve(bend, gradient))


@pytest.mark.parametrize(("k", "weighted"), [(4, False), (20, False), (20, True)])
def test_coarse_fit_is_nearly_optimal_in_fewer_passes(k: int, weighted: bool):
    """It ends early, in single precision for many parameters, about 1e-6 nats above the optimum."""
    p, eye = draw(400, k), np.eye(k)
    weights = np.random.default_rng(0).random(len(p)) + 0.1
    p = Predictions(p.logits, p.labels, weights=weights if weighted else None)
    exact, nearly = fit_affine(p, eye, 0.01, 0.01), fit_affine(p, eye, 0.01, 0.01, tolerance=COARSE_GRADIENT_TOLERANCE)
    assert nearly.weight.dtype == nearly.bias.dtype == np.float64
    assert exact.gradient < nearly.gradient < COARSE_GRADIENT_TOLERANCE
    assert nearly.iterations < exact.iterations
    value = [
        float(metrics.nll(p.apply(candidate)))
        + 0.01 * float(((candidate.weight - eye) ** 2).sum() + (candidate.bias**2).sum())
        for candidate in (exact, nearly)
    ]
    assert value[1] == pytest.approx(value[0], abs=1e-5)


def test_warm_start_leads_to_the_same_optimum():
    """Coordinates and memory from other data lead to the same optimum."""
    for k in (4, 20):  # with the Hessian, and with its approximation
        p, eye = draw(400, k), np.eye(k)
        other_fit = fit_affine(p[:300], eye, 0.01, 0.01)
        warm, cold = fit_affine(p, eye, 0.01, 0.01, other_fit), fit_affine(p, eye, 0.01, 0.01)
        log_p = [log_softmax(fit(p.logits), 1) for fit in (warm, cold)]
        np.testing.assert_allclose(*log_p, rtol=0, atol=1e-3)
        value = [
            float(metrics.nll(p.apply(candidate)))
            + 0.01 * float(((candidate.weight - eye) ** 2).sum() + (candidate.bias**2).sum())
            for candidate in (warm, cold)
        ]
        assert value[0] == pytest.approx(value[1], abs=1e-8)
        assert warm.status == "converged"
