"""Solvers in float64 (Halley's and Newton's methods, EM and grid search), and the certificate of a fit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant._core.kernels.dispatch import chunk_elements
from calibrant._core.kernels.lbfgs import Minimum
from calibrant._core.kernels.threads import map_chunks
from calibrant._core.types import AnyFloat, Range

GridPoint = TypeVar("GridPoint")
MAX_OPTIMUM_GAP_NATS = 1e-6  # above which a certificate mentions the gap to the optimum
MAX_NEWTON_STEPS = 100
MAX_EM_STEPS = 5000
MAX_EM_GAP = 1e-7  # nats per example at which EM ends
Status = Literal["converged", "at bound", "separable", "not converged", "grid", "closed form"]
STATUS_SEVERITY: dict[Status, int] = {
    "closed form": 0, "grid": 0, "converged": 0, "separable": 1, "at bound": 2, "not converged": 3
}  # fmt: skip


@dataclass(frozen=True)
class Certificate:
    """How a fit ended, what it changed, and on which data. Prints as one line.

    >>> print(Certificate("nll", 0.5, 0.4, "converged", 1e-9, 6, 0.5, 0.4, 0.9, 0.9))
    converged: nll 0.5000 -> 0.4000, accuracy 90.00 % kept, gradient 1e-09, 6 passes
    """

    criterion: str  # what was minimized
    before: AnyFloat  # its value with the identity map
    after: AnyFloat  # its value with the fitted map
    status: Status
    gradient: float = math.nan  # norm of the criterion's gradient at the solution, nan without one
    iterations: int = 0  # passes over the data
    nll_before: float = math.nan
    nll_after: float = math.nan
    accuracy_before: float = math.nan
    accuracy_after: float = math.nan
    standard_error: float = math.nan  # of the main parameter, nan without one
    data: str = ""  # digest of the predictions it was fitted on
    clipped: int = 0  # examples with a probability of 0, replaced by a tiny one because the map needs finite logits
    classes: Annotated[int, Range(ge=0, le=10**7)] = 0  # of the predictions it was fitted on, 0 if unknown
    gap: AnyFloat = 0.0  # estimated distance from the optimum of the family in the criterion, by search and ridge
    absent: Annotated[int, Range(ge=0, le=10**7)] = 0  # classes without a label in the predictions it was fitted on

    @property
    def is_optimal(self) -> bool:
        """Whether the fitted map is the best of its family for these data, up to 1e-6 in its criterion."""
        return STATUS_SEVERITY[self.status] == 0 and self.gap <= MAX_OPTIMUM_GAP_NATS

    @property
    def accuracy_changed(self) -> bool:
        """Whether the map changed the accuracy."""
        return self.accuracy_before != self.accuracy_after

    @property
    def at_bound(self) -> bool:
        """Whether the solution lies on a bound of its range, which may have no optimum inside."""
        return self.status == "at bound"

    @property
    def separable(self) -> bool:
        """Whether every example is right already, so that the likelihood has no finite optimum."""
        return self.status == "separable"

    def __str__(self) -> str:
        parts = [f"{self.status}: {self.criterion} {self.before:.4f} -> {self.after:.4f}"]
        if self.criterion != "nll":
            parts.append(f"nll {self.nll_before:.4f} -> {self.nll_after:.4f}")
        before, after = f"{self.accuracy_before:.2%}", f"{self.accuracy_after:.2%}"  # of the accuracy
        accuracy = f"{before} -> {after}" if self.accuracy_changed else f"{before} kept"
        parts.append(f"accuracy {accuracy}".replace("%", " %"))
        if not math.isnan(self.gradient):
            parts.append(f"gradient {self.gradient:.0e}")
        if not math.isnan(self.standard_error):
            parts.append(f"standard error {self.standard_error:.2g}")
        if self.gap > MAX_OPTIMUM_GAP_NATS:
            parts.append(f"about {self.gap:.1g} above the optimum")
        if self.clipped:
            parts.append(f"probability 0 clipped in {self.clipped} examples")
        if self.absent:
            is_single = self.absent == self.classes - 1
            parts.append(
                "all labels of one class" if is_single else f"no label of {self.absent} of {self.classes} classes"
            )
        return ", ".join([*parts, f"{self.iterations} passes"])


def worst_status(*statuses: Status) -> Status:
    """Return the most severe status, the first of equals."""
    return max(statuses, key=lambda status: STATUS_SEVERITY[status])


@dataclass(frozen=True)
class PointEvaluation:
    """Value and derivatives of a function at one point, for a search for its root."""

    value: float
    slope: float
    second_derivative: float


Point = TypeVar("Point", bound=PointEvaluation)


@dataclass(frozen=True)
class Root(Generic[Point]):
    """Root of an increasing function."""

    x: float
    step: float  # the last step, from the last evaluation to x
    evaluation: Point  # the last
    iterations: int
    is_interior: bool  # False if the function does not change its sign: x is then the nearer bound


def increasing_root(
    f: Callable[[float], Point], start: float, low: float, high: float, tolerance: float = 1e-4
) -> Root[Point]:
    """Find the root of an increasing function by Halley's method inside a shrinking bracket.

    Steps are at most 2 long, because a flat start would give a huge one. A step below the tolerance is the last,
    without another evaluation: cubic convergence leaves an error of about its cube. Convergence is tested before the
    bracket falls back to bisection. Without a sign change the result is a bound, with `is_interior=False`.
    """
    x, lower, upper = start, low, high  # the root is between `lower` and `upper`, which move inside the bounds
    evaluation = f(x)
    for iteration in range(1, 101):
        step = _halley_step(evaluation)
        if abs(step) <= tolerance:
            return Root(x + step, step, evaluation, iteration, is_interior=True)
        is_below_root = evaluation.value < 0  # because the function increases
        if x == (high if is_below_root else low):  # even the bound on the side of the root does not reach it
            return Root(x, 0.0, evaluation, iteration, is_interior=False)
        lower, upper = (x, upper) if is_below_root else (lower, x)
        x = x + max(-2.0, min(2.0, step))
        if not lower < x < upper:
            if x <= lower == low:  # the bound itself was not tried yet
                x = low
            elif x >= upper == high:
                x = high
            else:  # bisection
                x = (lower + upper) / 2
        evaluation = f(x)
    return Root(x, 0.0, evaluation, 100, is_interior=lower > low and upper < high)


def _halley_step(point: PointEvaluation) -> float:
    """Return the step from a point to the estimated root of an increasing function f, by Halley's method.

    It is n / (1 + n f'' / (2 f')) for Newton's step n = -f / f', limited to half or twice Newton's step. Where f does
    not rise, so that Newton's step is undefined, it is 2 toward the root.
    """
    if point.value == 0:
        return 0.0
    if not point.slope > 0:
        return math.copysign(2.0, -point.value)
    newton_step = -point.value / point.slope
    divisor = 1 + newton_step * point.second_derivative / (2 * point.slope)
    return newton_step / max(0.5, min(2.0, divisor))


def map_row_chunks(f: Callable[..., Tensor], *arrays: Tensor, elements: int = 1 << 17) -> list[Tensor]:
    """Apply `f` to chunks of rows and return the results in order, using several threads for many chunks.

    `f` takes the same rows of all arrays. A chunk has about `elements` elements of the first array, so that it stays in
    cache; on a GPU chunks are larger.
    """
    elements = chunk_elements(arrays[0], elements)
    rows_per_chunk = max(1, elements // arrays[0][0].numel())
    chunks = list(zip(*(array.split(rows_per_chunk) for array in arrays), strict=True))
    return map_chunks(function=lambda chunk: f(*chunk), chunks=chunks, elements_per_chunk=elements)


def sum_row_chunks(f: Callable[..., Tensor], *arrays: Tensor, elements: int = 1 << 17) -> Tensor:
    """Return the sum of f over all chunks of rows, added in order, so that the number of threads changes no bit.

    The arguments are those of `map_row_chunks`.
    """
    parts = map_row_chunks(f, *arrays, elements=elements)
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def first_minimum(f: Callable[[GridPoint], float], grid: Sequence[GridPoint]) -> tuple[GridPoint, float]:
    """Return the first grid point with the smallest value, and this value, ignoring nan.

    Return the first point and infinity if no value is finite.
    """
    best, lowest = grid[0], math.inf
    for x in grid:
        value = f(x)
        if value < lowest:
            best, lowest = x, value
    return best, lowest


def newton(
    f: Callable[[Tensor], tuple[float, Tensor, Tensor]],
    start: Tensor,
    *,
    lower: Tensor,
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
    x = start.double().maximum(lower)
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
            candidate = (x + length * step).maximum(lower)
            evaluation, evaluations = f(candidate), evaluations + 1
            # Armijo's condition, up to rounding: the value falls by 1e-4 of what the slope promises
            if evaluation[0] <= value + 1e-4 * length * slope + 1e-15 * abs(value):
                break
            length /= 2
        else:
            break  # f falls nowhere along the step
        x, (value, gradient, hessian) = candidate, evaluation
    projected_gradient = torch.where(x <= lower, gradient.clamp_max(0), gradient)  # at a bound, x can only rise
    return Minimum(
        x=x,
        value=value,
        gradient=float(projected_gradient.abs().max()),
        evaluations=evaluations,
        derivatives=(gradient, hessian),
        optimality_gap=max(predicted_gain, 0.0),
    )


def newton_step(gradient: Tensor, hessian: Tensor, min_step: Tensor | None = None) -> Tensor:
    """Return the step (d) to the minimum of the quadratic model with this gradient (d) and Hessian (d d).

    The entries of the step are at least `min_step` (d). The equations are solved in coordinates in which the diagonal
    of the Hessian is 1, so that scales do not matter.
    """
    curvature = hessian.diagonal()
    # The floors, 1e-24 of the largest curvature and 1e-150 if all are 0, keep steps along flat coordinates finite
    scale = curvature.clamp_min(max(1e-24 * float(curvature.max()), 1e-150)).rsqrt()
    root = cholesky_with_jitter(scale[:, None] * hessian * scale)
    scaled_gradient = scale * gradient
    step = -scale * torch.cholesky_solve(scaled_gradient[:, None], root).squeeze(1)
    if min_step is None or bool((step >= min_step).all()):
        return step
    return scale * _bounded_step(root, scaled_gradient, min_step / scale)


def newton_decrement(gradient: Tensor, hessian: Tensor) -> float:
    """Return half of g' H^-1 g, the quadratic model's estimate of how far a convex function is above its minimum.

    g is the gradient and H the Hessian. Return infinity if H is not positive definite, which a failed search can leave.
    """
    try:
        return -float(gradient @ newton_step(gradient, hessian)) / 2
    except RuntimeError:  # from the factorization
        return math.inf


def cholesky_with_jitter(hessian: Tensor) -> Tensor:
    """Return the lower Cholesky factor of a Hessian, whose diagonal is raised until the factor exists.

    It is raised by 1e-12 to 1e-4 of its largest element: rounding can make a positive Hessian indefinite. Raise torch's
    `LinAlgError`, a `RuntimeError`, if that is not enough.
    """
    jitter = 1e-12 * float(hessian.diagonal().max()) + 1e-300  # above 0 also if the Hessian is 0
    eye = torch.eye(len(hessian), dtype=torch.float64)
    for power in range(5):  # 1e-12, 1e-10, ... 1e-4
        root, error_code = torch.linalg.cholesky_ex(hessian + 100**power * jitter * eye)
        if not int(error_code):
            return root
    return torch.linalg.cholesky(hessian)  # raises the error


def _bounded_step(root: Tensor, gradient: Tensor, min_step: Tensor) -> Tensor:
    r"""Minimize $g^T s + \frac12 s^T L L^T s$ over steps $s$ with entries of at least `min_step`, (d).

    L is the Cholesky root of the Hessian, g the gradient. Up to a constant, the quadratic is $\frac12 \lVert L^T s +
    L^{-1} g \rVert^2$, which bounded-variable least squares (BVLS) minimizes.
    """
    from scipy.optimize import lsq_linear  # slow to import, needed by few fits

    # -L^-1 g, which L^T s should equal
    target = -torch.linalg.solve_triangular(root, gradient[:, None], upper=False).squeeze(1)
    lower_bound = np.minimum(min_step.numpy(), -1e-300)  # strictly below 0, so that a step of 0 is inside the bounds
    return torch.from_numpy(lsq_linear(root.mT.numpy(), target.numpy(), (lower_bound, np.inf), method="bvls").x)


@dataclass(frozen=True)
class Mixture:
    """Maximum likelihood shares of the members of a mixture."""

    shares: Tensor  # (m), on the simplex
    optimality_gap: float  # upper bound on the gain in nats per example that is left
    steps: int

    @property
    def status(self) -> Status:
        """Whether the optimality gap is negligible."""
        return "converged" if self.optimality_gap <= MAX_OPTIMUM_GAP_NATS else "not converged"


def fit_mixture(likelihoods: Tensor, weights: Tensor | None = None) -> Mixture:
    r"""Maximize $\sum_i \log \sum_m w_m a_{im}$ over the simplex, a concave problem.

    EM, $w_m \leftarrow w_m g_m$ with $g_m = \frac1n \sum_i a_{im} / \sum_l w_l a_{il}$, accelerated by steps $g_m^r$
    with an exponent r that grows while the likelihood rises and returns to 1 when it does not. The optimality
    gap is $\max_m g_m - 1$, by concavity. Rows of zeros are left out.

    Args:
        likelihoods: a, (n, m).
        weights: Weights of the rows, (n).

    >>> fit_mixture(torch.tensor([[0.9, 0.1], [0.2, 0.1]])).shares.round(decimals=4).tolist()
    [1.0, 0.0]
    """
    a = likelihoods.double()
    top = a.amax(1, keepdim=True)
    is_informative = top[:, 0] > 0  # a row of zeros says nothing about the shares
    a = (a / top)[is_informative]  # a factor for each row does not move the maximum, and prevents underflow
    w = a.new_full((a.shape[1],), 1 / a.shape[1])
    if not len(a):
        return Mixture(w.cpu(), 0.0, 0)
    row_weights = a.new_ones(len(a)) if weights is None else weights[is_informative]
    total_weight = float(row_weights.sum())
    gap, exponent, density = math.inf, 1.0, a @ w  # density: the mixture's likelihood of each row
    for step in range(1, MAX_EM_STEPS + 1):
        g = a.mT @ (row_weights / density) / total_weight
        gap = float(g.max()) - 1
        if gap <= MAX_EM_GAP:
            return Mixture(w.cpu(), max(gap, 0.0), step)
        candidate = w * g**exponent
        candidate /= candidate.sum()
        candidate_density = a @ candidate
        # Take an accelerated step only if it raises the log-likelihood; a NaN does not
        if exponent > 1 and not float(row_weights @ (candidate_density / density).log()) > 0:
            exponent = 1.0  # plain EM from the old weights, which never lowers the likelihood
            continue
        w, density, exponent = candidate, candidate_density, min(1.6 * exponent, 1e4)
    return Mixture(w.cpu(), gap, MAX_EM_STEPS)
