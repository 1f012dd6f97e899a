"""Solvers in float64: Newton's method, and EM for the shares of a mixture."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant._core.arrays import namespace, to_numpy
from calibrant._core.kernels.lbfgs import Minimum
from calibrant._core.kernels.roots import MAX_OPTIMUM_GAP_NATS, Status
from calibrant._core.kernels.threads import map_row_chunks

LOG2_E = 1 / math.log(2)  # e^x = 2^(x log2 e)
MAX_NEWTON_STEPS = 100
MAX_EM_STEPS = 5000
MAX_EM_GAP = 1e-7  # nats per example at which EM ends


def sum_row_chunks(f: Callable[..., Any], *arrays: Any, elements: int = 1 << 17) -> np.ndarray:
    """Return the sum of f over all chunks of rows, added in order, so that the number of threads changes no bit.

    The arguments are those of `map_row_chunks`, arrays or tensors; f returns one of these. The sum is an array, and may
    be infinite.
    """

    def sum_rows(*rows: Any) -> Any:
        with np.errstate(over="ignore"):  # of this thread
            return f(*rows)

    parts = map_row_chunks(sum_rows, *arrays, elements=elements)
    return to_numpy(parts[0] if len(parts) == 1 else namespace(parts[0]).stack(parts).sum(0))


def newton(
    f: Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]],
    start: np.ndarray,
    *,
    lower: np.ndarray,
    tolerance: float = 1e-14,
) -> Minimum:
    """Minimize a smooth convex function of few variables above lower bounds by Newton's method.

    Each step goes to the minimum of the quadratic model within the bounds and is halved until f falls. The scale of
    the coordinates does not matter.

    Args:
        f: Returns value, gradient and Hessian.
        start: Float64 vector.
        lower: Lower bounds, may be -inf.
        tolerance: Gain by the quadratic model below which the search ends.
    """
    x = np.maximum(start, lower)
    value, gradient, hessian = f(x)
    predicted_gain, evaluations = math.inf, 1
    for _ in range(MAX_NEWTON_STEPS):
        step = newton_step(gradient, hessian, lower - x)
        slope = float(gradient @ step)
        predicted_gain = -slope / 2  # by the quadratic model
        if not predicted_gain > tolerance:  # also if NaN
            break
        length = 1.0
        while length > 1e-9:
            candidate = np.maximum(x + length * step, lower)
            evaluation, evaluations = f(candidate), evaluations + 1
            # Armijo's condition, up to rounding: the value falls by 1e-4 of what the slope promises
            if evaluation[0] <= value + 1e-4 * length * slope + 1e-15 * abs(value):
                break
            length /= 2
        else:
            break  # f falls nowhere along the step
        x, (value, gradient, hessian) = candidate, evaluation
    projected_gradient = np.where(x <= lower, np.minimum(gradient, 0), gradient)  # at a bound, x can only rise
    return Minimum(
        x=x,
        value=value,
        gradient=float(np.abs(projected_gradient).max()),
        evaluations=evaluations,
        derivatives=(gradient, hessian),
        optimality_gap=max(predicted_gain, 0.0),
    )


def newton_step(gradient: np.ndarray, hessian: np.ndarray, min_step: np.ndarray | None = None) -> np.ndarray:
    """Return the step (d) to the minimum of the quadratic model with this gradient (d) and Hessian (d d).

    The entries of the step are at least `min_step` (d). The equations are solved in coordinates in which the diagonal
    of the Hessian is 1, so that scales do not matter.
    """
    from scipy.linalg import cho_solve  # slow to import

    curvature = hessian.diagonal()
    # The floors, 1e-24 of the largest curvature and 1e-150 if all are 0, keep steps along flat coordinates finite
    scale = np.maximum(curvature, max(1e-24 * float(curvature.max()), 1e-150)) ** -0.5
    root = cholesky_with_jitter(scale[:, None] * hessian * scale)
    scaled_gradient = scale * gradient
    step = -scale * cho_solve((root, True), scaled_gradient, check_finite=False)
    if min_step is None or bool((step >= min_step).all()):
        return step
    return scale * _bounded_step(root, scaled_gradient, min_step / scale)


def newton_decrement(gradient: np.ndarray, hessian: np.ndarray) -> float:
    """Return half of g' H^-1 g, the quadratic model's estimate of how far a convex function is above its minimum.

    g is the gradient and H the Hessian. Return infinity if H is not positive definite, which a failed search can leave.
    """
    try:
        return -float(gradient @ newton_step(gradient, hessian)) / 2
    except np.linalg.LinAlgError:  # from the factorization
        return math.inf


def cholesky_with_jitter(hessian: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of a Hessian, whose diagonal is raised until the factor exists.

    It is raised by 1e-12 to 1e-4 of its largest element: rounding can make a positive Hessian indefinite. Raise numpy's
    `LinAlgError` if that is not enough.
    """
    jitter = 1e-12 * float(hessian.diagonal().max()) + 1e-300  # above 0 also if the Hessian is 0
    raised = hessian.copy()
    for power in range(5):  # 1e-12, 1e-10, ... 1e-4
        np.fill_diagonal(raised, hessian.diagonal() + 100**power * jitter)
        with suppress(np.linalg.LinAlgError):
            return np.linalg.cholesky(raised)
    return np.linalg.cholesky(hessian)  # raises the error


def _bounded_step(root: np.ndarray, gradient: np.ndarray, min_step: np.ndarray) -> np.ndarray:
    r"""Minimize $g^T s + \frac12 s^T L L^T s$ over steps $s$ with entries of at least `min_step`, (d).

    L is the Cholesky root of the Hessian, g the gradient. Up to a constant, the quadratic is $\frac12 \lVert L^T s +
    L^{-1} g \rVert^2$, which bounded-variable least squares (BVLS) minimizes.
    """
    from scipy.linalg import solve_triangular  # slow to import
    from scipy.optimize import lsq_linear

    # -L^-1 g, which L^T s should equal
    target = -solve_triangular(root, gradient, lower=True, check_finite=False)
    lower_bound = np.minimum(min_step, -1e-300)  # strictly below 0, so that a step of 0 is inside the bounds
    return lsq_linear(root.T, target, (lower_bound, np.inf), method="bvls").x


@dataclass(frozen=True)
class Mixture:
    """Maximum likelihood shares of the members of a mixture."""

    shares: np.ndarray  # (m), on the simplex
    optimality_gap: float  # upper bound on the gain in nats per example that is left
    steps: int

    @property
    def status(self) -> Status:
        """Whether the optimality gap is negligible."""
        return "converged" if self.optimality_gap <= MAX_OPTIMUM_GAP_NATS else "not converged"


def fit_mixture(likelihoods: np.ndarray, weights: np.ndarray | None = None) -> Mixture:
    r"""Maximize $\sum_i \log \sum_m w_m a_{im}$ over the simplex, a concave problem.

    EM, $w_m \leftarrow w_m g_m$ with $g_m = \frac1n \sum_i a_{im} / \sum_l w_l a_{il}$, accelerated by steps $g_m^r$
    with an exponent r that grows while the likelihood rises and returns to 1 when it does not. The optimality
    gap is $\max_m g_m - 1$, by concavity. Rows of zeros are left out.

    Args:
        likelihoods: a, (n, m).
        weights: Weights of the rows, (n).

    >>> fit_mixture(np.array([[0.9, 0.1], [0.2, 0.1]])).shares.round(4).tolist()
    [1.0, 0.0]
    """
    top = likelihoods.max(1)
    is_informative = top > 0  # a row of zeros says nothing about the shares
    # A factor for each row does not move the maximum, and prevents underflow
    a = likelihoods[is_informative] / top[is_informative, None]
    w = np.full(a.shape[1], 1 / a.shape[1])
    if not len(a):
        return Mixture(w, 0.0, 0)
    row_weights = np.ones(len(a)) if weights is None else weights[is_informative]
    total_weight = float(row_weights.sum())
    gap, exponent, density = math.inf, 1.0, a @ w  # density: the mixture's likelihood of each row
    for step in range(1, MAX_EM_STEPS + 1):
        g = a.T @ (row_weights / density) / total_weight
        gap = float(g.max()) - 1
        if gap <= MAX_EM_GAP:
            return Mixture(w, max(gap, 0.0), step)
        candidate = w * g**exponent
        candidate /= candidate.sum()
        candidate_density = a @ candidate
        # Take an accelerated step only if it raises the log-likelihood; a NaN does not
        if exponent > 1 and not row_weights @ np.log(candidate_density / density) > 0:
            exponent = 1.0  # plain EM from the old weights, which never lowers the likelihood
            continue
        w, density, exponent = candidate, candidate_density, min(1.6 * exponent, 1e4)
    return Mixture(w, gap, MAX_EM_STEPS)
