"""Fit affine maps of logits or log-probabilities by (penalized) maximum likelihood: convex, with one optimum."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from calibrant.backend.lbfgs import Memory, minimize
from calibrant.backend.softmax import LOG2_E
from calibrant.backend.solvers import (
    MAX_OPTIMUM_GAP_NATS,
    Status,
    cholesky_with_jitter,
    newton_decrement,
    newton_step,
    sum_row_chunks,
)
from calibrant.calibrators._fitting import Fitted, Solution, example_mean
from calibrant.predictions import Predictions, row_blocks

MIN_CURVATURE = 1e-3  # flatter coordinates are stretched no further, or the first step would be too long
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
    preconditioner: "Preconditioner | None" = None  # of the search
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
    correlated, and this saves three quarters of the steps. If the Hessian differs at the end, the search continues in
    new coordinates. Computes in float64, except that coarse fits of large matrices pass over the rows in float32. At
    most 1000 steps, 300 for large data. Rows stay on their device, the search runs on the CPU.

    Args:
        p: Predictions whose logits are x.
        identity: w_0, whose shape is that of w.
        ridge: r, a number or of the shape of w.
        ridge_bias: r_c.
        start: A fit to similar data, whose preconditioner and L-BFGS memory are reused.
        tolerance: Largest entry of the scaled gradient at the end.
        min_ridge: An additional ridge on w that keeps the optimum finite, relative to the variance of the column if
            that is below 1. Without a `ridge_bias` it also applies to c, for centered columns.
    """
    problem = _Problem.from_predictions(p, identity, ridge, ridge_bias, tolerance, min_ridge)
    is_coarse = tolerance >= COARSE_GRADIENT_TOLERANCE
    packed = problem.pack(torch.zeros_like(identity), torch.zeros_like(problem.center))
    frame, memory = None, ()
    if start is not None:
        change = start.weight - identity
        packed = problem.pack(change, start.bias + _transform_center(change, problem.center))
        frame, memory = start.preconditioner, start.memory
    remaining_steps, passes = 1000 if p.logits.numel() < 1_000_000 else 300, 0
    while True:
        frame = problem.build_preconditioner(packed) if frame is None else frame
        steps = remaining_steps
        if problem.uses_hessian and not is_coarse:
            steps = min(steps, MAX_STEPS_PER_ROUND)
        minimum = minimize(
            problem.objective(frame), frame.to_coordinates(packed), steps=steps, tolerance=tolerance, memory=memory
        )
        packed, memory = frame.to_parameters(minimum.x), minimum.memory
        passes, remaining_steps = passes + minimum.evaluations, remaining_steps - steps
        polishes, remaining_gap, ridge_cost = not is_coarse or packed.numel() <= MAX_POLISHED_PARAMETERS, 0.0, 0.0
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
        frame, memory = None, ()


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

    def objective(self, frame: "Preconditioner") -> Callable[[Tensor], tuple[float, Tensor]]:
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

    def build_preconditioner(self, packed: Tensor) -> "Preconditioner":
        """Return coordinates for a search from these parameters, by the exact Hessian if there are few of them."""
        build = _exact_preconditioner if self.uses_hessian else _approximate_preconditioner
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
        hessian = _hessian(self.logits, self.centered_map(packed), self.ridge, self.ridge_bias, self.row_weights)
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


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Coordinates t of the packed parameters d (changes of w, and c), in which the Hessian is nearly the unit matrix.

    d = (t @ root^-1) * scale, in one block for all parameters or one for each class. By the chain rule,
    dL/dt = (dL/dd * scale) @ root^-T.
    """

    scale: Tensor  # (blocks d)
    root: Tensor  # (d d) or (blocks d d), a Cholesky factor of the Hessian

    @cached_property
    def inverse(self) -> Tensor:
        """Inverse of the root."""
        return torch.linalg.inv(self.root)

    def to_parameters(self, t: Tensor) -> Tensor:
        """Return the packed parameters d, (blocks d), of coordinates t."""
        return (t.view(len(self.scale), 1, -1) @ self.inverse).squeeze(1) * self.scale

    def to_coordinates(self, changes: Tensor) -> Tensor:
        """Return the coordinates t, flat, of packed parameters d."""
        return ((changes.reshape(self.scale.shape) / self.scale).unsqueeze(1) @ self.root).flatten()

    def gradient_to_coordinates(self, gradient: Tensor) -> Tensor:
        """Return the gradient in t, flat, from the gradient in d."""
        return ((gradient.reshape(self.scale.shape) * self.scale).unsqueeze(1) @ self.inverse.mT).flatten()

    def gradient_to_parameters(self, slope: Tensor) -> Tensor:
        """Return the gradient in d, (blocks d), from the gradient in t."""
        return (slope.view(len(self.scale), 1, -1) @ self.root.mT).squeeze(1) / self.scale


def _exact_preconditioner(
    x: Tensor, fit: AffineFit, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None
) -> Preconditioner:
    """Return coordinates, in one block, in which the penalized Hessian at a fit is the unit matrix.

    Nearly flat directions, as where every probability is 0 or 1, are stretched to `MIN_CURVATURE` only.
    """
    hessian = _hessian(x, fit, ridge, ridge_bias, row_weights)
    square = x.square().mean(0).cpu() if ridge.ndim else x.square().mean().cpu()[None]
    square = (square.expand(len(ridge), -1) if ridge.ndim == 2 else square[:, None]).clamp_max(1.0)
    unit = torch.ones_like(square[:, :1]) if ridge.ndim else torch.ones(x.shape[1], 1, dtype=square.dtype)
    natural = torch.cat([square, unit], 1 if ridge.ndim else 0).flatten()
    hessian.diagonal().copy_(hessian.diagonal().maximum(MIN_CURVATURE * natural + 1e-300))
    return Preconditioner(torch.ones(1, len(hessian), dtype=torch.float64), cholesky_with_jitter(hessian))


def _hessian(x: Tensor, fit: AffineFit, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None) -> Tensor:
    """Return the Hessian of the penalized mean NLL in packed parameters, (d d).

    They are, class by class, the m = k + 1 or m = 2 parameters of a class: its row of a matrix w, or its element of a
    diagonal w, and its intercept. If w is a number, they are w and all intercepts. The dimensions of `ridge` are
    those of w.
    """
    n, k = x.shape

    def chunk_hessian(x: Tensor, *row_weights: Tensor) -> Tensor:
        """Return the sum over rows of the Hessians of the NLL."""
        p = fit(x).mT.contiguous().softmax(0)  # (k rows)
        if not ridge.ndim:
            return _scalar_hessian(x, p.mT, p.mT * row_weights[0] if row_weights else p.mT)
        x = x.mT.contiguous()
        unit = torch.ones_like(x)
        # derivatives of a class's logit in the class's parameters, (1 m rows) or (k m rows)
        features = torch.cat([x, unit[:1]])[None] if ridge.ndim == 2 else torch.stack([x, unit], 1)
        moment = p[:, None] * features  # (k m rows)
        weighted_moment = moment * row_weights[0].mT if row_weights else moment
        # each row adds diag(p) - p p', with the features of its classes on either side
        class_blocks = weighted_moment @ features.mT
        return torch.block_diag(*class_blocks) - weighted_moment.flatten(0, 1) @ moment.flatten(0, 1).mT

    bias = torch.full((k, 1), ridge_bias, dtype=torch.float64)
    penalty = torch.cat([ridge.reshape(k, -1), bias], 1) if ridge.ndim else torch.cat([ridge.view(1, 1), bias])
    total = sum_row_chunks(chunk_hessian, x, *([] if row_weights is None else [row_weights]))
    return total.cpu() / n + (2 * penalty.flatten()).diag()


def _scalar_hessian(x: Tensor, p: Tensor, counted: Tensor) -> Tensor:
    """Return the sum of the Hessians of rows in a number w and all intercepts."""
    centered = x - (p * x).sum(-1, keepdim=True)
    cross = (counted * centered).sum(0)
    curve = (counted * centered.square()).sum().view(1)
    intercepts = counted.sum(0).diag() - counted.mT @ p
    return torch.cat([torch.cat([curve, cross])[None], torch.cat([cross[:, None], intercepts], 1)])


def _approximate_preconditioner(
    x: Tensor, fit: AffineFit, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None
) -> Preconditioner:
    """Return coordinates, in a block per class, in which the penalized Hessian at a fit is nearly the unit matrix.

    The scale is exact for each parameter. The root is a Cholesky factor of the correlations of the parameters of a
    class: exact for a diagonal w, an average over classes for a matrix.
    """
    n, k = x.shape
    row_shares = x.new_full((n, 1), 1 / n, dtype=torch.float64) if row_weights is None else row_weights / n
    parts = [_block_curvature(rows, shares, fit, ridge.ndim) for rows, shares in row_blocks(x, row_shares)]
    hessian, curve = (torch.stack(part).sum(0).cpu() for part in zip(*parts, strict=True))
    if ridge.ndim == 0:
        scale = torch.cat([curve + 2 * ridge, hessian + 2 * ridge_bias])[:, None]
        return Preconditioner(scale.clamp_min(1e-12).rsqrt(), torch.ones(1, 1, dtype=torch.float64))
    penalty = torch.cat([ridge.reshape(k, -1), torch.full((k, 1), ridge_bias, dtype=torch.float64)], 1)
    scale = (curve + 2 * penalty).clamp_min(MIN_CURVATURE).rsqrt()
    share = curve.sqrt() * scale  # share of the curvature that comes from the data
    common = share.mT @ share / k if ridge.ndim == 2 else share[:, :, None] * share[:, None, :]
    length = hessian.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    correlation = common * hessian * length[..., :, None] * length[..., None, :]
    # An average over classes may be nearly singular, although no class is
    correlation.diagonal(dim1=-2, dim2=-1).fill_(1.1 if ridge.ndim == 2 else 1 + 1e-9)
    return Preconditioner(scale, torch.linalg.cholesky(correlation))


def _block_curvature(x: Tensor, row_shares: Tensor, fit: AffineFit, weight_ndim: int) -> tuple[Tensor, Tensor]:
    """Return the Hessian of the NLL of some rows within each class, and its diagonal, without terms between classes.

    The shapes depend on w. Diagonal: (k 2 2) and (k 2), for the class's element of w and its intercept. Matrix: the
    sum of the Hessians of all classes (k+1 k+1), and the diagonal of each class (k k+1). Number: second derivatives in
    the intercepts (k), and the one in w (1).

    Args:
        x: Rows of logits, (rows k).
        row_shares: Share of each row in the total weight, (rows 1).
        fit: Where the Hessian is computed.
        weight_ndim: Dimensions of w: 0 for a number, 1 for a diagonal, 2 for a matrix.
    """
    p = fit(x).softmax(-1)
    if weight_ndim == 0:
        variance = (p * x.square()).sum(-1) - (p * x).sum(-1).square()  # of a row's logits under p
        return (p * (1 - p) * row_shares).sum(0), row_shares.mT @ variance
    noise = p.mul_(1 - p).mul_(row_shares)  # second derivatives in the calibrated logits, (rows k)
    if weight_ndim == 1:
        moment = noise * x
        cross = moment.sum(0)
        hessian = torch.stack([(moment.mul_(x)).sum(0), cross, cross, noise.sum(0)], -1).view(-1, 2, 2)
        return hessian, hessian.diagonal(dim1=1, dim2=2)
    features = torch.cat([x, x.new_ones(len(x), 1)], 1)
    pooled_hessian = (features * noise.sum(1, keepdim=True)).mT @ features  # of all classes together
    return pooled_hessian, noise.mT @ features.square()
