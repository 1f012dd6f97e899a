"""Fit affine maps of logits or log-probabilities by (penalized) maximum likelihood: convex, with one optimum."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant.backend.lbfgs import Memory, minimize
from calibrant.backend.softmax import LOG2_E
from calibrant.backend.solvers import (
    MAX_OPTIMUM_GAP_NATS,
    Status,
    newton_decrement,
    newton_step,
)
from calibrant.calibrators._fitting import Fitted, Solution, example_mean
from calibrant.calibrators._preconditioner import (
    Preconditioner,
    affine_hessian,
    approximate_preconditioner,
    exact_preconditioner,
)
from calibrant.predictions import Predictions

MAX_HESSIAN_PARAMETERS = 256  # with more parameters the Hessian is only approximated
MAX_POLISHED_PARAMETERS = 16  # up to which coarse fits end with a Newton step, too
MAX_CONVERGED_GRADIENT = 1e-5  # largest entry of the scaled gradient at an optimum: about 1e-10 nats remain
GRADIENT_TOLERANCE = 1e-6  # at which a search ends
COARSE_GRADIENT_TOLERANCE = 1e-4  # of fits that are only compared: about 1e-6 nats remain
MAX_REMAINING_NATS = 1e-8  # estimated gain below which a single Newton step finishes the search
MAX_STEPS_PER_ROUND = 60  # before new coordinates are computed from the Hessian


@dataclass(frozen=True)
class AffineFit:
    """A fitted map x -> w x + c, with w a number, a diagonal or a matrix."""

    weight: Tensor  # () or (k) or (k, k)
    bias: Tensor  # (k)
    gradient: float = math.nan
    iterations: int = 0
    preconditioner: Preconditioner | None = None  # of the search
    memory: Memory = ()  # of the search, in these coordinates
    remaining_gap: float = 0.0  # estimated distance from the penalized optimum
    ridge_cost: float = 0.0  # estimated distance between the optima with and without the minimal ridge

    @property
    def status(self) -> Status:
        """Whether the search converged: for separable data of many classes the optimum may be too far away."""
        has_converged = self.gradient <= MAX_CONVERGED_GRADIENT and self.remaining_gap <= MAX_OPTIMUM_GAP_NATS
        return "converged" if has_converged else "not converged"

    def solution(self, fitted: Fitted) -> Solution[Fitted]:
        """Return the `Solution` with the calibrator `fitted`, which was built from this fit, and the end of the search.

        Affine maps need finite logits, so that probabilities of 0 are replaced (`clips_zeros`).
        """
        gap = self.remaining_gap + self.ridge_cost
        return Solution(fitted, self.status, self.gradient, self.iterations, clips_zeros=True, warm_start=self, gap=gap)

    def __call__(self, x: Tensor) -> Tensor:
        """Return w x + c for rows x."""
        return apply_affine(x, self.weight, self.bias)


def apply_affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return w x + c for rows x; w is a number, a diagonal or a matrix."""
    weight, bias = weight.to(x.device), bias.to(x.device)
    return (x @ weight.mT if weight.ndim == 2 else x * weight) + bias


def fit_affine(
    p: Predictions,
    identity: Tensor,
    ridge: Tensor | float,
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
        identity: w_0, whose shape is that of w.
        ridge: r, a number or of the shape of w.
        ridge_bias: r_c.
        start: A fit to similar data, whose preconditioner and L-BFGS memory are reused.
        tolerance: Largest entry of the scaled gradient at the end. Fits at `COARSE_GRADIENT_TOLERANCE` are never
            continued, and take the Newton step only with few parameters.
        min_ridge: An additional ridge on w that keeps the optimum finite, relative to the variance of the column if
            that is below 1. Without a `ridge_bias` it also applies to c, for centered columns.
    """
    problem = _Problem.from_predictions(p, identity, ridge, ridge_bias, tolerance, min_ridge)
    is_coarse = tolerance >= COARSE_GRADIENT_TOLERANCE
    start = start or AffineFit(identity, torch.zeros_like(problem.center))
    change = start.weight - identity
    packed = problem.pack(change, start.bias + _transform_center(change, problem.center))
    frame, memory = start.preconditioner or problem.build_preconditioner(packed), start.memory
    remaining_steps = 1000 if p.logits.numel() < 1_000_000 else 300
    passes = 0
    while True:
        is_one_round = is_coarse or not problem.uses_hessian
        steps = remaining_steps if is_one_round else min(remaining_steps, MAX_STEPS_PER_ROUND)
        minimum = minimize(
            problem.objective(frame), frame.to_coordinates(packed), steps=steps, tolerance=tolerance, memory=memory
        )
        packed, memory = frame.to_parameters(minimum.x), minimum.memory
        passes, remaining_steps = passes + minimum.evaluations, remaining_steps - steps
        remaining_gap = ridge_cost = 0.0
        polishes = not is_coarse or packed.numel() <= MAX_POLISHED_PARAMETERS
        if polishes:
            gradient = frame.gradient_to_parameters(minimum.derivatives[0])
            packed, remaining_gap, ridge_cost = problem.polish(packed, minimum.value, gradient)
        if is_coarse or remaining_gap <= MAX_REMAINING_NATS or remaining_steps <= 0:
            return replace(
                problem.affine_map(packed),
                gradient=minimum.gradient,
                iterations=passes + polishes,
                preconditioner=frame,
                memory=memory,
                remaining_gap=remaining_gap,
                ridge_cost=ridge_cost,
            )
        frame, memory = problem.build_preconditioner(packed), ()


@dataclass(frozen=True, eq=False)
class _Problem:
    """The penalized NLL of an affine map, as a function of the packed changes of w and of c.

    Packed parameters have a row for every class, of its weights and then its intercept; a number w has its own row.
    """

    logits: Tensor  # (n k) less the center, float64
    x: Tensor  # (n k) the same in the precision of the passes
    index: Tensor  # (n 1) labels
    row_weights: Tensor | None  # (n 1), 1 on average
    identity: Tensor
    ridge: Tensor  # of the shape of the identity, including the minimal ridge
    ridge_bias: float
    center: Tensor  # (k) of the columns, or 0
    min_ridge: Tensor  # of the shape of the identity, the part of the ridge that only keeps the optimum finite
    min_ridge_bias: float

    @classmethod
    def from_predictions(
        cls,
        p: Predictions,
        identity: Tensor,
        ridge: Tensor | float,
        ridge_bias: float,
        tolerance: float,
        min_ridge: float,
    ) -> "_Problem":
        """Build the problem of `fit_affine`, whose parameters these are: center the columns, scale the minimal ridge.

        Coarse fits of large matrices compute in float32.
        """
        row_weights = None if p.weights is None else p.weights[:, None] * (len(p) / p.total_weight)
        is_large_matrix = identity.ndim == 2 and identity.numel() > MAX_HESSIAN_PARAMETERS
        dtype = torch.float32 if tolerance >= COARSE_GRADIENT_TOLERANCE and is_large_matrix else torch.float64
        logits, center = p.logits.double(), torch.zeros(p.k, dtype=torch.float64)
        min_ridges, min_ridge_bias = torch.zeros_like(identity), 0.0
        if min_ridge:
            mean = example_mean(logits, p)
            variance = example_mean((logits - mean).square(), p).cpu()
            column_scale = torch.where(variance > 0, variance, 1.0).clamp_max(1.0)
            if identity.ndim == 2:
                column_scale = column_scale.diag()
            min_ridges = min_ridge * (column_scale if identity.ndim else column_scale.mean())
            if ridge_bias == 0:
                logits, center, min_ridge_bias = logits - mean, mean.cpu(), min_ridge
        ridges = torch.as_tensor(ridge, dtype=torch.float64).expand(identity.shape) + min_ridges
        return cls(
            logits,
            logits.to(dtype),
            p.labels[:, None],
            row_weights,
            identity,
            ridges,
            ridge_bias + min_ridge_bias,
            center,
            min_ridges,
            min_ridge_bias,
        )

    def unpack(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the change of w from the identity, in the shape of w, and the intercepts c (k) of centered columns."""
        k = len(self.center)
        by_class = packed.reshape(k if self.identity.ndim else k + 1, -1)
        change, c = (by_class[:, :-1], by_class[:, -1]) if self.identity.ndim else (by_class[0], by_class[1:, 0])
        return change.reshape(self.identity.shape), c

    def pack(self, change: Tensor, c: Tensor) -> Tensor:
        """Return the change of w and the intercepts c as packed parameters."""
        if self.identity.ndim:
            return torch.cat([change.reshape(len(self.center), -1), c[:, None]], 1)
        return torch.cat([change.view(1), c])[:, None]

    def weighted_sum(self, rows: Tensor) -> Tensor:
        """Return the weighted sum of one number per row, (n 1), in float64 if there are no weights."""
        return rows.sum(dtype=torch.float64) if self.row_weights is None else (self.row_weights * rows).sum()

    def objective(self, frame: Preconditioner) -> Callable[[Tensor], tuple[float, Tensor]]:
        """Return the function of a frame's coordinates that gives the penalized mean NLL and its gradient."""
        buffer = torch.empty_like(self.x)

        def f(t: Tensor) -> tuple[float, Tensor]:
            value, gradient = self.value_and_gradient(frame.to_parameters(t), buffer)
            return value, frame.gradient_to_coordinates(gradient)

        return f

    def value_and_gradient(self, packed: Tensor, buffer: Tensor | None = None) -> tuple[float, Tensor]:
        """Return the penalized mean NLL and its gradient at packed parameters.

        The scores w x + c are written to the buffer, (n k), and overwritten step by step: by exp(score - top), and by
        the residuals p - 1[y = j], times the weight of the row over n.
        """
        x, n = self.x, len(self.x)
        change, c = self.unpack(packed)
        w, b = (self.identity + change).to(x), (c + _transform_center(self.identity, self.center)).to(x)
        scores = torch.addmm(b, x, w.mT, out=buffer) if w.ndim == 2 else torch.addcmul(b, x, w, out=buffer)
        top = scores.amax(-1, keepdim=True)
        label_score_sum = self.weighted_sum(scores.gather(1, self.index))
        exp_scores = scores.sub_(top).mul_(LOG2_E).exp2_()
        norm = exp_scores.sum(-1, keepdim=True)
        mean_nll = (self.weighted_sum(norm.log()) + self.weighted_sum(top) - label_score_sum) / n
        value = mean_nll + (self.ridge * change.square()).sum() + self.ridge_bias * c.square().sum()
        row_shares = torch.full_like(norm, 1 / n) if self.row_weights is None else (self.row_weights / n).to(x.dtype)
        residuals = exp_scores.div_(norm.mul_(n) if self.row_weights is None else norm / row_shares)
        residuals.scatter_add_(1, self.index, -row_shares)
        gradient_c = residuals.sum(0).cpu()
        match w.ndim:
            case 2:
                gradient_w = residuals.mT @ x
            case 1:
                gradient_w = residuals.mul_(x).sum(0)
            case _:
                gradient_w = residuals.mul_(x).sum()
        gradient = self.pack(gradient_w.cpu() + 2 * self.ridge * change, gradient_c + 2 * self.ridge_bias * c)
        return float(value), gradient

    @property
    def uses_hessian(self) -> bool:
        """Whether there are so few parameters that the Hessian is computed."""
        return self.identity.numel() + len(self.center) <= MAX_HESSIAN_PARAMETERS

    def centered_map(self, packed: Tensor) -> AffineFit:
        """Return the map that gives the scores from `logits`, whose columns are centered."""
        change, c = self.unpack(packed)
        return AffineFit(self.identity + change, c + _transform_center(self.identity, self.center))

    def build_preconditioner(self, packed: Tensor) -> Preconditioner:
        """Return coordinates for a search from these parameters, by the exact Hessian if there are few of them."""
        build = exact_preconditioner if self.uses_hessian else approximate_preconditioner
        return build(self.logits, self.centered_map(packed), self.ridge, self.ridge_bias, self.row_weights)

    def polish(self, packed: Tensor, value: float, gradient: Tensor) -> tuple[Tensor, float, float]:
        """Take a last Newton step, if there are few parameters and the step does not raise the objective.

        Args:
            packed: Parameters at the end of the search.
            value: The objective there.
            gradient: Its gradient there, in packed parameters.

        Returns:
            The packed parameters; the estimated distance of the objective from its minimum; and the estimated
            distance between the minima with and without the minimal ridge, in nats.
        """
        change, c = self.unpack(packed)
        ridge_gradient = self.pack(2 * self.min_ridge * change, 2 * self.min_ridge_bias * c)
        if not self.uses_hessian:
            frame = self.build_preconditioner(packed)
            remaining_gap, ridge_cost = (
                float(frame.gradient_to_coordinates(part).square().sum()) / 2 for part in (gradient, ridge_gradient)
            )
            return packed, remaining_gap, min(ridge_cost, value)
        hessian = affine_hessian(self.logits, self.centered_map(packed), self.ridge, self.ridge_bias, self.row_weights)
        step = newton_step(gradient.flatten(), hessian)
        remaining_gap = max(0.0, -float(gradient.flatten() @ step) / 2)
        ridge_cost = 0.0
        if bool(ridge_gradient.any()):
            min_ridges = self.pack(self.min_ridge, torch.full_like(c, self.min_ridge_bias))
            ridge_cost = newton_decrement(ridge_gradient.flatten(), hessian - (2 * min_ridges.flatten()).diag())
        stepped, rounding = packed + step.view(packed.shape), 1e-14 * (1 + abs(value))
        improves = remaining_gap <= MAX_REMAINING_NATS and self.value_and_gradient(stepped)[0] <= value + rounding
        return stepped if improves else packed, remaining_gap, min(ridge_cost, value)

    def affine_map(self, packed: Tensor) -> AffineFit:
        """Return packed parameters as a map of the given columns, which are not centered."""
        change, c = self.unpack(packed)
        return AffineFit(self.identity + change, c - _transform_center(change, self.center))


def _transform_center(weight: Tensor, center: Tensor) -> Tensor:
    """Return w times the center of the columns, which moves between the intercepts of centered and given columns."""
    return weight @ center if weight.ndim == 2 else weight * center
