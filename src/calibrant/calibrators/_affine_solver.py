"""Fit affine maps of logits or log-probabilities by (penalized) maximum likelihood: convex, with one optimum."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.lbfgs import CurvaturePairs, minimize
from calibrant._core.kernels.roots import MAX_OPTIMUM_GAP_NATS, Status
from calibrant._core.kernels.softmax import class_columns, exp_in_place
from calibrant._core.kernels.solvers import newton_decrement, newton_step
from calibrant._core.kernels.threads import map_row_chunks
from calibrant.calibrators._fitting import Fitted, Solution, example_mean, example_weights
from calibrant.calibrators._preconditioner import (
    Preconditioner,
    RowChunk,
    Weight,
    affine_hessian,
    affine_scores,
    approximate_preconditioner,
    exact_preconditioner,
    pack,
    sum_chunks,
)
from calibrant.predictions import Predictions

MAX_HESSIAN_PARAMETERS = 256  # with more parameters the Hessian is only approximated
MAX_COARSE_NEWTON_PARAMETERS = 16  # up to which coarse fits, too, end with a Newton step
MAX_CONVERGED_GRADIENT = 1e-5  # largest entry of the scaled gradient at an optimum: about 1e-10 nats remain
GRADIENT_TOLERANCE = 1e-6  # at which a search ends
COARSE_GRADIENT_TOLERANCE = 1e-4  # of fits that are only compared: about 1e-6 nats remain
MAX_REMAINING_NATS = 1e-8  # estimated gain below which a single Newton step finishes the search
MAX_STEPS_PER_ROUND = 60  # before new coordinates are computed from the Hessian
# Pseudo-examples of the ridge on data that lack a class: it keeps a mean probability of about 1 / n for that class
ABSENT_CLASS_EXAMPLES = 0.1
VALUE_ROUNDING = 1e-14  # relative increase of the objective that is rounding
FIT_CHUNK_ELEMENTS = 1 << 17  # logits of a chunk of rows, which stays in cache


@dataclass(frozen=True)
class AffineFit:
    """The fitted function x -> w x + c, with w a number, a diagonal or a matrix, and the state of the search."""

    weight: Weight  # () or (k) or (k, k)
    bias: np.ndarray  # (k)
    gradient: float = math.nan
    iterations: int = 0
    preconditioner: Preconditioner | None = None  # of the search
    curvature_pairs: CurvaturePairs = ()  # of the search, in the preconditioner's coordinates
    remaining_gap: float = 0.0  # estimated distance from the penalized optimum
    ridge_cost: float = 0.0  # estimated distance between the optima with and without the minimal ridge

    @property
    def status(self) -> Status:
        """Whether the search converged. For separable data of many classes it may not, as the optimum is far away."""
        has_converged = self.gradient <= MAX_CONVERGED_GRADIENT and self.remaining_gap <= MAX_OPTIMUM_GAP_NATS
        return "converged" if has_converged else "not converged"

    def solution(self, fitted: Fitted) -> Solution[Fitted]:
        """Return the `Solution` with the calibrator `fitted`, which was built from this fit, and the end of the search.

        Affine maps need finite logits, so that probabilities of 0 are replaced (`clips_zeros`).
        """
        gap = self.remaining_gap + self.ridge_cost
        return Solution(fitted, self.status, self.gradient, self.iterations, clips_zeros=True, warm_start=self, gap=gap)

    def __call__(self, x: Any) -> Any:
        """Return w x + c for rows x."""
        return affine_scores(x.T, self.weight, self.bias).T


def fit_affine(
    p: Predictions,
    identity: np.ndarray,
    ridge: np.ndarray | float,
    ridge_bias: float,
    start: AffineFit | None = None,
    tolerance: float = GRADIENT_TOLERANCE,
    *,
    min_ridge: float = 0.0,
) -> AffineFit:
    r"""Minimize mean NLL of softmax(w x + c) $+ \sum r (w - w_0)^2 + r_c \lVert c \rVert^2$.

    L-BFGS in coordinates in which the Hessian at the start is nearly the unit matrix: log-probabilities are highly
    correlated, and this saves three quarters of the steps. A Newton step ends the search. If its estimated gain is too
    large, the search continues in coordinates of the Hessian there. Computes in float64, except that coarse fits of
    large matrices pass over the rows in float32. At most 1000 steps, 300 for large data. Rows stay on their device, the
    search runs on the CPU.

    Args:
        p: Predictions whose logits are x.
        identity: w_0, with the shape of w.
        ridge: r, a number or of the shape of w.
        ridge_bias: r_c.
        start: A fit to similar data, whose preconditioner and curvature pairs are reused.
        tolerance: Largest entry of the scaled gradient at the end. Fits at `COARSE_GRADIENT_TOLERANCE` are never
            continued, and take the Newton step only with few parameters.
        min_ridge: An additional ridge on w that keeps the optimum finite, relative to the variance of the column if
            that is below 1. Without a `ridge_bias` it also applies to c, for centered columns. Without labels of some
            class, whose probability would become 0, all ridges are at least 0.1 / n.
    """
    is_coarse = tolerance >= COARSE_GRADIENT_TOLERANCE
    problem = _Problem.from_predictions(p, identity, ridge, ridge_bias, is_coarse=is_coarse, min_ridge=min_ridge)
    start = start or AffineFit(identity, np.zeros(p.k))
    change = start.weight - identity
    # The parameters of the search are the changes of w, and the intercepts for centered columns
    packed = pack(change, start.bias + _transform_center(change, problem.center))
    preconditioner = start.preconditioner or problem.build_preconditioner(packed)
    curvature_pairs, passes = start.curvature_pairs, 0
    remaining_steps = 1000 if math.prod(p.logits.shape) < 1_000_000 else 300
    takes_newton_step = not is_coarse or len(packed) <= MAX_COARSE_NEWTON_PARAMETERS
    # New coordinates help only if they come from the exact Hessian; otherwise the first round takes all steps
    steps_per_round = MAX_STEPS_PER_ROUND if problem.uses_hessian and not is_coarse else remaining_steps
    while True:
        steps = min(remaining_steps, steps_per_round)
        minimum = minimize(
            problem.objective(preconditioner),
            preconditioner.to_coordinates(packed),
            steps=steps,
            tolerance=tolerance,
            curvature_pairs=curvature_pairs,
        )
        packed, curvature_pairs = preconditioner.to_parameters(minimum.x), minimum.curvature_pairs
        passes += minimum.evaluations + takes_newton_step  # the Hessian of that step takes one pass
        remaining_steps -= steps
        remaining_gap = ridge_cost = 0.0
        if takes_newton_step:
            gradient = preconditioner.gradient_to_parameters(minimum.derivatives[0])
            packed, remaining_gap, ridge_cost = problem.finish(packed, minimum.value, gradient)
        if is_coarse or remaining_gap <= MAX_REMAINING_NATS or remaining_steps <= 0:
            return replace(
                problem.affine_map(packed),
                gradient=minimum.gradient,
                iterations=passes,
                preconditioner=preconditioner,
                curvature_pairs=curvature_pairs,
                remaining_gap=remaining_gap,
                ridge_cost=ridge_cost,
            )
        preconditioner, curvature_pairs = problem.build_preconditioner(packed), ()  # the pairs are in old coordinates


@dataclass(frozen=True, eq=False)
class _Problem:
    """The penalized NLL of an affine map in packed parameters: the changes of w, and c (`pack`)."""

    chunks: list[RowChunk]  # all rows, with logits in float64, less the center
    passes: list[RowChunk]  # the same in the precision of the passes
    identity: np.ndarray  # w_0, with the shape of w
    center: np.ndarray  # (k) mean that was subtracted from the columns, or 0
    ridge: np.ndarray  # (d) of each packed parameter, including the minimal ridge
    min_ridge: np.ndarray  # (d) the part of the ridge that only keeps the optimum finite

    @classmethod
    def from_predictions(
        cls,
        p: Predictions,
        identity: np.ndarray,
        ridge: np.ndarray | float,
        ridge_bias: float,
        *,
        is_coarse: bool,
        min_ridge: float,
    ) -> "_Problem":
        """Build the problem of `fit_affine`, whose parameters these are: center the columns, scale the minimal ridge.

        Coarse fits of large matrices compute in float32.
        """
        center, min_ridge_weight, min_ridge_bias = np.zeros(p.k), np.zeros_like(identity), 0.0
        if min_ridge:
            mean, variance = _column_moments(p)
            column_scale = np.minimum(np.where(variance > 0, variance, 1.0), 1.0)
            # For w with 0, 1 or 2 dimensions; the off-diagonal entries of a matrix have a ridge of their own
            scale_number, scale_diagonal, scale_matrix = column_scale.mean(), column_scale, np.diag(column_scale)
            min_ridge_weight = min_ridge * (scale_number, scale_diagonal, scale_matrix)[identity.ndim]
            if ridge_bias == 0:  # columns may be centered: a shift changes nothing but a penalty of c
                center, min_ridge_bias = mean, min_ridge
        min_ridges = pack(min_ridge_weight, np.full(p.k, min_ridge_bias))
        own_ridges = pack(np.broadcast_to(ridge, identity.shape), np.full(p.k, ridge_bias))
        if min_ridge and p.absent_classes:
            min_ridges = np.maximum(min_ridges, ABSENT_CLASS_EXAMPLES / p.total_weight - own_ridges)
        chunks = passes = _row_chunks(p, center, is_matrix=identity.ndim == 2)
        if is_coarse and identity.ndim == 2 and identity.size > MAX_HESSIAN_PARAMETERS:
            xp = namespace(p.logits)
            passes = [chunk._replace(x=xp.astype(chunk.x, xp.float32)) for chunk in chunks]
        return cls(chunks, passes, identity, center, own_ridges + min_ridges, min_ridges)

    def unpack(self, packed: np.ndarray) -> tuple[Weight, np.ndarray]:
        """Return the change of w from the identity, shaped like w, and the intercepts c (k) for centered columns.

        Packed are a number w and then all intercepts, or, class by class, the elements of w and the intercept.
        """
        if self.identity.ndim == 0:
            return packed[0], packed[1:]
        by_class = packed.reshape(len(self.center), -1)
        return by_class[:, :-1].reshape(self.identity.shape), by_class[:, -1]

    def objective(self, preconditioner: Preconditioner) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """Return the function of the preconditioner's coordinates that `minimize` takes: value and gradient."""

        def f(t: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = self.value_and_gradient(preconditioner.to_parameters(t))
            return value, preconditioner.gradient_to_coordinates(gradient)

        return f

    def value_and_gradient(self, packed: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the penalized mean NLL and its gradient at packed parameters."""
        w, b = self.centered_map(packed)
        sums = sum_chunks(lambda chunk: _nll_and_gradient(chunk, w, b), self.passes)
        ridge_gradient = 2 * self.ridge * packed
        return float(sums[0]) + float(ridge_gradient @ packed) / 2, sums[1:] + ridge_gradient

    @property
    def uses_hessian(self) -> bool:
        """Whether there are so few parameters that the Hessian is computed."""
        return len(self.ridge) <= MAX_HESSIAN_PARAMETERS

    def centered_map(self, packed: np.ndarray) -> tuple[Weight, np.ndarray]:
        """Return w and the intercepts (k) of the map w x + c, where x has centered columns as in `logits`.

        The packed c lacks the part of the intercepts that comes from the identity, so that it is 0 if nothing changes.
        """
        change, c = self.unpack(packed)
        return self.identity + change, c + _transform_center(self.identity, self.center)

    def build_preconditioner(self, packed: np.ndarray) -> Preconditioner:
        """Return coordinates for a search from these parameters, by the exact Hessian if there are few of them."""
        build = exact_preconditioner if self.uses_hessian else approximate_preconditioner
        return build(self.chunks, *self.centered_map(packed), self.ridge)

    def finish(self, packed: np.ndarray, value: float, gradient: np.ndarray) -> tuple[np.ndarray, float, float]:
        """Take a last Newton step, and estimate how far the objective is above its minimum.

        The step is not taken if there are too many parameters for the Hessian, if the estimate is above 1e-8, or if the
        step would raise the objective.

        Args:
            packed: Parameters at the end of the search.
            value: The objective there.
            gradient: Its gradient there, in packed parameters.

        Returns:
            The packed parameters; the estimated distance of the objective from its minimum; and the estimated
            distance between the minima with and without the minimal ridge, in nats.
        """
        min_ridge_gradient = 2 * self.min_ridge * packed
        if not self.uses_hessian:
            preconditioner = self.build_preconditioner(packed)
            coordinates = map(preconditioner.gradient_to_coordinates, (gradient, min_ridge_gradient))
            # The Newton decrement g' H^-1 g / 2 in coordinates in which the Hessian H is nearly the unit matrix
            remaining_gap, ridge_cost = (float(g @ g) / 2 for g in coordinates)
            return packed, remaining_gap, min(ridge_cost, value)
        hessian = affine_hessian(self.chunks, *self.centered_map(packed)) + np.diag(2 * self.ridge)
        step = newton_step(gradient, hessian)
        remaining_gap = max(0.0, -float(gradient @ step) / 2)
        ridge_cost = 0.0
        if min_ridge_gradient.any():  # without the minimal ridge, this gradient would remain at the minimum
            ridge_cost = newton_decrement(min_ridge_gradient, hessian - np.diag(2 * self.min_ridge))
        if remaining_gap <= MAX_REMAINING_NATS:
            new_value, _ = self.value_and_gradient(packed + step)
            if new_value <= value + VALUE_ROUNDING * (1 + abs(value)):
                packed = packed + step
        return packed, remaining_gap, min(ridge_cost, value)

    def affine_map(self, packed: np.ndarray) -> AffineFit:
        """Return the fit with intercepts for the columns given to `fit_affine`, which are not centered."""
        change, c = self.unpack(packed)
        return AffineFit(self.identity + change, c - _transform_center(change, self.center))


def _transform_center(weight: Weight, center: np.ndarray) -> np.ndarray:
    """Return w times the columns' center, by which intercepts for centered columns exceed the original ones."""
    return weight @ center if weight.ndim == 2 else weight * center


def _column_moments(p: Predictions) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted mean and variance of each column of logits, both (k)."""
    xp = namespace(p.logits)
    logits = xp.astype(p.logits, xp.float64, copy=False)
    mean = example_mean(logits, p)
    return mean, example_mean((logits - like(mean, logits)) ** 2, p)


def _row_chunks(p: Predictions, center: np.ndarray, *, is_matrix: bool) -> list[RowChunk]:
    """Return the rows, less the center of the columns, in chunks that stay in cache."""

    def chunk(z: Any, labels: Any, shares: Any) -> RowChunk:
        x = class_columns(z, np.float64)
        x -= like(center, x)[:, None]
        return RowChunk(x, labels, shares)

    # Enough rows for the vectors of a processor, and more than the k^2 sums of a matrix have columns
    min_rows = 4 * p.k if is_matrix else 64
    columns = (like(column, p.logits) for column in (p.labels, example_weights(p) / p.total_weight))
    return map_row_chunks(chunk, p.logits, *columns, elements=max(FIT_CHUNK_ELEMENTS, min_rows * p.k))


def _nll_and_gradient(chunk: RowChunk, weight: Weight, bias: np.ndarray) -> np.ndarray:
    """Return the sum over rows of the NLL of w x + c, and then its gradient in packed parameters, (1 + d).

    The scores are overwritten step by step: by exp(score - top), and by the residuals p - 1[y = j], times the share of
    the row.
    """
    (x, labels, shares), xp = chunk, namespace(chunk.x)
    scores = affine_scores(x, weight, bias)
    top, at_label = xp.max(scores, axis=0), (labels, xp.arange(len(labels), device=x.device))
    label_scores = scores[at_label]  # a copy, before the scores are overwritten
    scores -= top
    residuals = exp_in_place(scores)
    norm = xp.sum(residuals, axis=0)
    nll = shares @ (xp.astype(xp.log(norm), xp.float64) + top - label_scores)
    shares = xp.astype(shares, x.dtype, copy=False)
    residuals *= shares / norm  # p times the share of the row
    residuals[at_label] -= shares
    gradient_c = xp.sum(residuals, axis=1)
    gradient_w = residuals @ x.T if weight.ndim == 2 else xp.vecdot(residuals, x)
    gradient_w = to_numpy(gradient_w if weight.ndim else xp.sum(gradient_w))
    return np.append(to_numpy(nll), pack(gradient_w, to_numpy(gradient_c)))
