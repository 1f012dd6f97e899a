"""Affine maps of logits or log-probabilities, fitted by (penalized) maximum likelihood: convex, one optimum."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from calibrant.backend.softmax import LOG2_E
from calibrant.backend.solvers import (
    MAX_OPTIMUM_GAP_NATS,
    Certificate,
    LBFGSMemory,
    Status,
    cholesky_with_jitter,
    minimize,
    newton_decrement,
    newton_step,
    sum_row_chunks,
)
from calibrant.calibrators._apply import check_num_classes
from calibrant.calibrators._fitting import Solution, example_mean, fit_method
from calibrant.calibrators._temperature import TemperatureFit, drop_impossible, fit_nll_temperature
from calibrant.predictions import BLOCK_ELEMENTS, Predictions
from calibrant.predictions.folds import num_units, split_folds
from calibrant.registry import CALIBRATORS
from calibrant.types import InputError, Logits, NonNegativeFloat, PerClass, PerClassPair, PositiveFloat, PositiveScalar

__all__ = ["BiasCorrectedTemperature", "Dirichlet", "Matrix", "Vector"]

C = TypeVar("C")
LOG_PROB_FLOOR = -87.0  # log of the smallest float32: lower log-probabilities are taken for this one
MIN_RIDGE = 1e-6  # keeps the optimum of an unpenalized map unique and finite, at no visible cost
PENALTY_GRID = tuple(
    10.0**power for power in range(5, -8, -1)
)  # penalties that cross-validation tries, until two are worse
MAX_MATRIX_CLASSES = 1000  # classes up to which a full matrix is fitted
MIN_CURVATURE = 1e-3  # curvature below which a coordinate is stretched no further: the first step would lead too far
MAX_HESSIAN_PARAMETERS = 256  # numbers up to which their Hessian itself is worth having
MAX_CONVERGED_GRADIENT = 1e-5  # largest entry of the scaled gradient at an optimum: about 1e-10 nats are left to gain
GRADIENT_TOLERANCE = 1e-6  # at which a search ends
MAX_REMAINING_NATS = (
    1e-8  # nats left to gain at which a search ends, and one Newton step remains where the Hessian is known
)
MAX_POLISHED_PARAMETERS = 16  # numbers up to which the last step is taken by fits that are only compared, too
MAX_STEPS_PER_ROUND = 60  # steps of a search in one set of coordinates, where the Hessian can give new ones
COARSE_GRADIENT_TOLERANCE = (
    1e-4  # at which one ends that is only compared: about 1e-6 nats are left; single precision is enough
)


@dataclass(frozen=True)
class AffineFit:
    """A fitted map x -> w x + c, with w a number, a diagonal or a matrix."""

    weight: Tensor  # () or (k) or (k, k)
    bias: Tensor  # (k)
    gradient: float = math.nan
    iterations: int = 0
    preconditioner: "Preconditioner | None" = None  # the coordinates of the search
    memory: LBFGSMemory | None = None  # of the curvature, in these
    remaining_gap: float = 0.0  # estimate of what is left to the penalized optimum
    ridge_cost: float = 0.0  # estimate of what `RIDGE` keeps it above the optimum without

    @property
    def status(self) -> Status:
        """Whether the search came to its end: separable data with many classes have an optimum too far away."""
        return (
            "converged"
            if self.gradient <= MAX_CONVERGED_GRADIENT and self.remaining_gap <= MAX_OPTIMUM_GAP_NATS
            else "not converged"
        )

    @property
    def gap(self) -> float:
        """Estimate of how far the fit lies above the optimum of its family."""
        return self.remaining_gap + self.ridge_cost

    def __call__(self, x: Tensor) -> Tensor:
        """Return w x + c for rows x."""
        return apply_affine(x, self.weight, self.bias)


def apply_affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return w x + c for rows x; w may be a number, a diagonal or a matrix."""
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
    r"""Minimize mean NLL of softmax(w x + c) $+ \sum r (w - w_0)^2 + r_c \lVert c \rVert^2$, with w_0 the identity.

    x are the logits of the predictions. L-BFGS in coordinates in which the Hessian at the start is the unit matrix, or
    nearly so: log-probabilities pull together, and a quarter of the steps and less are enough. A fit to begin from
    lends its coordinates and what it knows of the curvature. Where the Hessian at the end is another, the search goes
    on in its coordinates. float64, but for the rows of a large matrix that is needed nearly only; at most 1000 steps,
    300 where a pass is long. A pass is made where the logits are, the search on the processor.

    `slight` is a ridge on the diagonal of w, relative to the variance of its column where that is below 1, that keeps
    the optimum finite; `ridge_cost` says at what cost. Without a `ridge_bias` it is on c too, of centered columns.
    """
    problem = _Problem.from_predictions(p, identity, ridge, ridge_bias, tolerance, min_ridge)
    packed = problem.pack(torch.zeros_like(identity), torch.zeros_like(problem.center))
    if start is not None:
        packed = problem.pack(
            start.weight - identity, start.bias + _transform_center(start.weight - identity, problem.center)
        )
    if start is None or start.preconditioner is None:
        frame, memory = problem.build_preconditioner(packed), None
    else:
        frame, memory = start.preconditioner, start.memory
    remaining_steps, passes = 1000 if p.logits.numel() < 1_000_000 else 300, 0
    while True:
        steps = (
            min(remaining_steps, MAX_STEPS_PER_ROUND)
            if problem.uses_hessian and tolerance < COARSE_GRADIENT_TOLERANCE
            else remaining_steps
        )
        minimum = minimize(
            problem.objective(frame), frame.to_coordinates(packed), steps=steps, tolerance=tolerance, memory=memory
        )
        packed, passes, remaining_steps, memory = (
            frame.to_parameters(minimum.x),
            passes + minimum.evaluations,
            remaining_steps - steps,
            minimum.memory,
        )
        if tolerance >= COARSE_GRADIENT_TOLERANCE and packed.numel() > MAX_POLISHED_PARAMETERS:
            return problem.solution(packed, minimum.gradient, passes, frame, memory)
        end = problem.finish_search(packed, minimum.value, frame.gradient_to_parameters(minimum.derivatives[0]))
        if end.remaining_gap <= MAX_REMAINING_NATS or remaining_steps <= 0 or tolerance >= COARSE_GRADIENT_TOLERANCE:
            return problem.solution(
                end.packed, minimum.gradient, passes + 1, frame, memory, end.remaining_gap, end.ridge_cost
            )
        frame, memory = problem.build_preconditioner(packed), None


@dataclass(frozen=True, eq=False)
class _SearchEnd:
    """Where a search ended, and an estimate of what is left to gain from there."""

    packed: Tensor
    remaining_gap: float
    ridge_cost: float  # estimate of what the slight ridge keeps it above the optimum without


@dataclass(frozen=True, eq=False)
class _Problem:
    """The penalized NLL of an affine map, as a function of the packed changes of its weights and of its intercepts."""

    logits: Tensor  # (n k) less the center, float64
    x: Tensor  # (n k) the same in the precision of the passes
    index: Tensor  # (n 1) labels
    row_weights: Tensor | None  # (n 1) how often a row counts, 1 on average
    identity: Tensor
    ridge: Tensor  # of the shape of the identity, with the slight one
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
        """Look at the columns, to which the slight ridge is relative."""
        row_weights = None if p.weights is None else p.weights[:, None] * (len(p) / p.total_weight)
        single = (
            tolerance >= COARSE_GRADIENT_TOLERANCE and identity.ndim == 2 and identity.numel() > MAX_HESSIAN_PARAMETERS
        )
        logits, center = p.logits.double(), torch.zeros(p.k, dtype=torch.float64)
        min_ridges, min_ridge_bias = torch.zeros_like(identity), 0.0
        if min_ridge:
            mean = example_mean(logits, p)
            variance = example_mean((logits - mean).square(), p).cpu()
            size = torch.where(variance > 0, variance, 1.0).clamp_max(1.0)
            min_ridges = min_ridge * (size.diag() if identity.ndim == 2 else size if identity.ndim else size.mean())
            if ridge_bias == 0:
                logits, center, min_ridge_bias = logits - mean, mean.cpu(), min_ridge
        x = logits.to(torch.float32 if single else torch.float64)
        ridge = torch.as_tensor(ridge, dtype=torch.float64).expand(identity.shape) + min_ridges
        bias = ridge_bias + min_ridge_bias
        return cls(logits, x, p.labels[:, None], row_weights, identity, ridge, bias, center, min_ridges, min_ridge_bias)

    def unpack(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """The change of w, and c, of packed numbers."""
        k = len(self.center)
        by_class = packed.reshape(k if self.identity.ndim else k + 1, -1)
        change, c = (by_class[:, :-1], by_class[:, -1]) if self.identity.ndim else (by_class[0], by_class[1:, 0])
        return change.reshape(self.identity.shape), c

    def pack(self, change: Tensor, c: Tensor) -> Tensor:
        """A row for every class, of its weights and then its intercept; a number w has a row to itself."""
        k = len(self.center)
        if self.identity.ndim:
            return torch.cat([change.reshape(k, -1), c[:, None]], 1)
        return torch.cat([change.view(1), c])[:, None]

    def weighted_sum(self, rows: Tensor) -> Tensor:
        """The sum over rows, each counted as often as its weight says."""
        return rows.sum(dtype=torch.float64) if self.row_weights is None else (self.row_weights * rows).sum()

    def objective(self, frame: "Preconditioner") -> Callable[[Tensor], tuple[float, Tensor]]:
        """The value and the gradient in the coordinates of a frame."""
        buffer = torch.empty_like(self.x)

        def f(t: Tensor) -> tuple[float, Tensor]:
            value, gradient = self.value_and_gradient(frame.to_parameters(t), buffer)
            return value, frame.gradient_to_coordinates(gradient)

        return f

    def value_and_gradient(self, packed: Tensor, buffer: Tensor | None = None) -> tuple[float, Tensor]:
        """The value and the gradient at packed numbers."""
        x, n = self.x, len(self.x)
        change, c = self.unpack(packed)
        w, b = (self.identity + change).to(x), (c + _transform_center(self.identity, self.center)).to(x)
        s = torch.addmm(b, x, w.mT, out=buffer) if w.ndim == 2 else torch.addcmul(b, x, w, out=buffer)
        top = s.amax(-1, keepdim=True)
        s_y = self.weighted_sum(s.gather(1, self.index))
        e = s.sub_(top).mul_(LOG2_E).exp2_()
        norm = e.sum(-1, keepdim=True)
        mean = (self.weighted_sum(norm.log()) + self.weighted_sum(top) - s_y) / n
        value = mean + (self.ridge * change.square()).sum() + self.ridge_bias * c.square().sum()
        row_shares = torch.full_like(norm, 1 / n) if self.row_weights is None else (self.row_weights / n).to(x.dtype)
        r = e.div_(norm.mul_(n) if self.row_weights is None else norm / row_shares)
        r.scatter_add_(1, self.index, -row_shares)
        by_c = r.sum(0).cpu()
        by_w = (r.mT @ x if w.ndim == 2 else r.mul_(x).sum(0) if w.ndim else r.mul_(x).sum()).cpu()
        return float(value), self.pack(by_w + 2 * self.ridge * change, by_c + 2 * self.ridge_bias * c)

    @property
    def uses_hessian(self) -> bool:
        """Whether the Hessian itself is worth having."""
        return self.identity.numel() + len(self.center) <= MAX_HESSIAN_PARAMETERS

    def map(self, packed: Tensor) -> AffineFit:
        """The map of packed numbers, for centered columns."""
        change, c = self.unpack(packed)
        return AffineFit(self.identity + change, c + _transform_center(self.identity, self.center))

    def build_preconditioner(self, packed: Tensor) -> "Preconditioner":
        """Coordinates for a search from here: by the Hessian where it is small."""
        coordinates = _exact_preconditioner if self.uses_hessian else _approximate_preconditioner
        scale, root = coordinates(self.logits, self.map(packed), self.ridge, self.ridge_bias, self.row_weights)
        return Preconditioner(scale, root, torch.linalg.inv(root))

    def finish_search(self, packed: Tensor, value: float, gradient: Tensor) -> _SearchEnd:
        """Take the last step by the Hessian where it is small, and estimate what is left and what the ridge costs."""
        change, c = self.unpack(packed)
        ridge_gradient = self.pack(2 * self.min_ridge * change, 2 * self.min_ridge_bias * c)
        if not self.uses_hessian:
            frame = self.build_preconditioner(packed)
            remaining_gap, cost = (
                float(frame.gradient_to_coordinates(part).square().sum()) / 2 for part in (gradient, ridge_gradient)
            )
            return _SearchEnd(packed, remaining_gap, min(cost, value))
        hessian = _hessian(self.logits, self.map(packed), self.ridge, self.ridge_bias, self.row_weights)
        step = newton_step(gradient.flatten(), hessian)
        remaining_gap = max(0.0, -float(gradient.flatten() @ step) / 2)
        min_ridges = self.pack(self.min_ridge, torch.full_like(c, self.min_ridge_bias))
        cost = (
            newton_decrement(ridge_gradient.flatten(), hessian - (2 * min_ridges.flatten()).diag())
            if bool(ridge_gradient.any())
            else 0.0
        )
        stepped = packed + step.view(packed.shape)
        improves = remaining_gap <= MAX_REMAINING_NATS and self.value_and_gradient(stepped)[0] <= value + 1e-14 * (
            1 + abs(value)
        )
        return _SearchEnd(stepped if improves else packed, remaining_gap, min(cost, value))

    def solution(
        self,
        packed: Tensor,
        gradient: float,
        passes: int,
        frame: "Preconditioner",
        memory: LBFGSMemory | None,
        remaining_gap: float = 0.0,
        ridge_cost: float = 0.0,
    ) -> AffineFit:
        """The map for columns as they came."""
        change, c = self.unpack(packed)
        weight = self.identity + change
        return AffineFit(
            weight,
            c - _transform_center(change, self.center),
            gradient,
            passes,
            frame,
            memory,
            remaining_gap,
            ridge_cost,
        )


def _transform_center(weight: Tensor, center: Tensor) -> Tensor:
    """Return w times the center."""
    return weight @ center if weight.ndim == 2 else weight * center


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Coordinates t of the changes of w and c: (t @ root^-1) * scale, in one or more blocks, each with its row."""

    scale: Tensor  # (blocks d)
    root: Tensor  # (d d) or (blocks d d)
    inverse: Tensor  # of the root

    def to_parameters(self, t: Tensor) -> Tensor:
        """The changes at t."""
        return (t.view(len(self.scale), 1, -1) @ self.inverse).squeeze(1) * self.scale

    def to_coordinates(self, changes: Tensor) -> Tensor:
        """The t of changes."""
        return ((changes.reshape(self.scale.shape) / self.scale).unsqueeze(1) @ self.root).flatten()

    def gradient_to_coordinates(self, gradient: Tensor) -> Tensor:
        """The gradient in t, from that in the changes."""
        return ((gradient.reshape(self.scale.shape) * self.scale).unsqueeze(1) @ self.inverse.mT).flatten()

    def gradient_to_parameters(self, slope: Tensor) -> Tensor:
        """The gradient in the changes, from that in t."""
        return (slope.view(len(self.scale), 1, -1) @ self.root.mT).squeeze(1) / self.scale


def _exact_preconditioner(
    x: Tensor, fit: AffineFit, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Coordinates in which the penalized Hessian at a fit is the unit matrix, all classes in one block.

    Where it is all but flat, as where every probability is 0 or 1, they are stretched no further.
    """
    hessian = _hessian(x, fit, ridge, ridge_bias, row_weights)
    square = x.square().mean(0).cpu() if ridge.ndim else x.square().mean().cpu()[None]
    square = (square.expand(len(ridge), -1) if ridge.ndim == 2 else square[:, None]).clamp_max(1.0)
    ones = torch.ones_like(square[:, :1]) if ridge.ndim else torch.ones(x.shape[1], 1, dtype=square.dtype)
    natural = torch.cat([square, ones], 1 if ridge.ndim else 0).flatten()
    hessian.diagonal().copy_(hessian.diagonal().maximum(MIN_CURVATURE * natural + 1e-300))
    return torch.ones(1, len(hessian), dtype=torch.float64), cholesky_with_jitter(hessian)


def _hessian(x: Tensor, fit: AffineFit, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None) -> Tensor:
    """Return the penalized Hessian, in the weights and intercept of every class, or a number w and all intercepts."""
    n, k = x.shape

    def part(x: Tensor, *row_weights: Tensor) -> Tensor:
        p = fit(x).mT.contiguous().softmax(0)
        if not ridge.ndim:
            return _scalar_hessian(x, p.mT, p.mT * row_weights[0] if row_weights else p.mT)
        x = x.mT.contiguous()
        ones = torch.ones_like(x)
        features = torch.cat([x, ones[:1]])[None] if ridge.ndim == 2 else torch.stack([x, ones], 1)
        moment = p[:, None] * features  # (k m rows)
        counted = moment * row_weights[0].mT if row_weights else moment
        class_blocks = counted @ features.mT
        return torch.block_diag(*class_blocks) - counted.flatten(0, 1) @ moment.flatten(0, 1).mT

    bias = torch.full((k, 1), ridge_bias, dtype=torch.float64)
    penalty = torch.cat([ridge.reshape(k, -1), bias], 1) if ridge.ndim else torch.cat([ridge.view(1, 1), bias])
    return (
        sum_row_chunks(part, x, *([] if row_weights is None else [row_weights])).cpu() / n
        + (2 * penalty.flatten()).diag()
    )


def _scalar_hessian(x: Tensor, p: Tensor, counted: Tensor) -> Tensor:
    """Return the sum of the Hessians of rows in a number w and all intercepts."""
    centered = x - (p * x).sum(-1, keepdim=True)
    cross = (counted * centered).sum(0)
    curve = (counted * centered.square()).sum().view(1)
    intercepts = counted.sum(0).diag() - counted.mT @ p
    return torch.cat([torch.cat([curve, cross])[None], torch.cat([cross[:, None], intercepts], 1)])


def _approximate_preconditioner(
    x: Tensor, fit: AffineFit, ridge: Tensor, ridge_bias: float, row_weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Coordinates t of the change of w and of c in which the penalized Hessian at a fit is nearly the unit.

    Every class has a row, its weights and then its intercept: (t @ root^-1) * scale. The scale is exact for each of
    them. The root is a Cholesky factor of how they are correlated, the intercept belonging to a feature that is 1:
    exact for the two of a diagonal w, an average over classes for a matrix. A number w has a row to itself.
    """
    n, k = x.shape
    row_shares = x.new_full((n, 1), 1 / n, dtype=torch.float64) if row_weights is None else row_weights / n
    size = max(1, BLOCK_ELEMENTS // k)
    parts = [
        _block_curvature(*rows, fit, ridge.ndim) for rows in zip(x.split(size), row_shares.split(size), strict=True)
    ]
    hessian, curve = (torch.stack(part).sum(0).cpu() for part in zip(*parts, strict=True))
    if ridge.ndim == 0:
        scale = torch.cat([curve + 2 * ridge, hessian + 2 * ridge_bias])[:, None]
        return scale.clamp_min(1e-12).rsqrt(), torch.ones(1, 1, dtype=torch.float64)
    penalty = torch.cat([ridge.reshape(k, -1), torch.full((k, 1), ridge_bias, dtype=torch.float64)], 1)
    scale = (curve + 2 * penalty).clamp_min(MIN_CURVATURE).rsqrt()
    share = curve.sqrt() * scale  # of the curvature, what the data bring
    common = share.mT @ share / k if ridge.ndim == 2 else share[:, :, None] * share[:, None, :]
    length = hessian.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    correlation = common * hessian * length[..., :, None] * length[..., None, :]
    # an average is not to be trusted where it says that nothing varies
    correlation.diagonal(dim1=-2, dim2=-1).fill_(1.1 if ridge.ndim == 2 else 1 + 1e-9)
    return scale, torch.linalg.cholesky(correlation)


def _block_curvature(x: Tensor, row_shares: Tensor, fit: AffineFit, weight_ndim: int) -> tuple[Tensor, Tensor]:
    """What rows x, each of a weight, add to the Hessian of every class and to its diagonal."""
    p = fit(x).softmax(-1)
    if weight_ndim == 0:
        curvature = (p * x.square()).sum(-1) - (p * x).sum(-1).square()
        return (p * (1 - p) * row_shares).sum(0), row_shares.mT @ curvature
    noise = p.mul_(1 - p).mul_(row_shares)
    if weight_ndim == 1:
        moment = noise * x
        cross = moment.sum(0)
        hessian = torch.stack([(moment.mul_(x)).sum(0), cross, cross, noise.sum(0)], -1).view(-1, 2, 2)
        return hessian, hessian.diagonal(dim1=1, dim2=2)
    features = torch.cat([x, x.new_ones(len(x), 1)], 1)
    pooled_hessian = (features * noise.sum(1, keepdim=True)).mT @ features  # of all classes together
    return pooled_hessian, noise.mT @ features.square()


def shrinkage(n: float, k: int, strength: float = 1.0) -> tuple[Tensor, float]:
    r"""Return the penalties of a (k, k) matrix and of its intercepts (Berta et al. 2025, SMS), times a strength.

    k/n for the diagonal and the intercepts, k(k-1)/n elsewhere: they fade as the examples grow.
    """
    eye = torch.eye(k, dtype=torch.float64)
    return (strength * k / n) * (eye + (k - 1) * (1 - eye)), strength * k / n


def _scaled_logits(logits: Tensor, temperature: Tensor, floor: float = LOG_PROB_FLOOR) -> Tensor:
    """Return z / T; what lies below the floor under the top of its row, -inf included, is lifted to there."""
    x = logits.double() / temperature
    return torch.maximum(x, x.amax(-1, keepdim=True) + floor)


def _centered_logits(logits: Tensor, temperature: Tensor, floor: float = LOG_PROB_FLOOR) -> Tensor:
    x = _scaled_logits(logits, temperature, floor)
    return x - x.mean(-1, keepdim=True)


def _log_p(logits: Tensor, floor: float = LOG_PROB_FLOOR) -> Tensor:
    return logits.double().log_softmax(-1).clamp_min(floor)


def _log_prob_floor(values: Tensor) -> float:
    """Return the lowest finite number where some are -inf, and else -87.

    A probability of exactly 0 is taken for the smallest one that is not, if that is more than exp(-87): a forest's 0
    means that none of its trees said so, and one such label at -87 would undo the map for all the others.
    """
    if not bool(values.isneginf().any()):
        return LOG_PROB_FLOOR
    finite_values = values[values.isfinite() & (values < 0)]
    return max(LOG_PROB_FLOOR, float(finite_values.min())) if len(finite_values) else -1.0


def _floor_under_top(p: Predictions, unit: Tensor) -> float:
    x = p.logits.double() / unit
    return _log_prob_floor(x - x.amax(-1, keepdim=True))


def check_matrix_classes(k: int, name: str) -> None:
    """Refuse to learn a matrix of more classes than can be fitted."""
    if k > MAX_MATRIX_CLASSES:
        raise InputError(
            f"{name} learns {k} x {k} numbers, at most {MAX_MATRIX_CLASSES} classes; use StructuredVector for more",
            code="many_classes",
        )


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class BiasCorrectedTemperature:
    r"""Bias-corrected temperature scaling, $z / T + c$ (Alexandari et al. 2020, section 3).

    What label-shift estimates such as EM need. Convex in (1/T, c); T > 0 wherever the data say so. A ridge of 1e-6
    on c and on 1/T makes the optimum unique (only differences of c matter) and finite. Examples whose true class has
    probability 0 say nothing about T or c and are left out.

    >>> BiasCorrectedTemperature(torch.tensor(2.0), torch.tensor([0.0, 1.0]))(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 1.]])
    """

    temperature: PositiveScalar  # float64
    bias: PerClass  # float64
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions) -> "BiasCorrectedTemperature":
        """Find T and c of least NLL."""
        unit = fit_nll_temperature(p).unit
        one = torch.ones((), dtype=torch.float64)
        affine_fit = fit_affine(
            drop_impossible(p).apply(lambda z: _scaled_logits(z, unit)), one, 0.0, 0.0, min_ridge=MIN_RIDGE
        )
        status = affine_fit.status if affine_fit.weight > 0 else "at bound"
        fitted = cls(unit / affine_fit.weight.clamp_min(1e-6), affine_fit.bias)
        return Solution(
            fitted, status, affine_fit.gradient, affine_fit.iterations, gap=affine_fit.gap
        ).with_certificate(p)

    @check_num_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return z / T + c."""
        return (logits / self.temperature + self.bias).to(logits.dtype)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Vector:
    r"""Vector scaling, $v \circ z + c$ (Guo et al. 2017, section 4.2).

    The logits are first brought to unit scale, x = z / T with the T of least NLL: the same family, fitted the same
    whatever the scale of z. x is no lower than 87 below the top of its row, and where there are probabilities of
    exactly 0, no lower than the lowest that are not, which is what they count as.
    A ridge of 1e-6, on columns that are centered and have a variance of at most 1, makes the optimum unique and finite;
    the certificate says how far it stays above the optimum without. With many classes it overfits: `ridge` adds
    $r \frac{k}{n} (\lVert v - 1 \rVert^2 + \lVert c \rVert^2)$, with r = 1 the penalty of `StructuredVector`.

    >>> one = torch.ones((), dtype=torch.float64)
    >>> Vector(one, torch.tensor([2.0, 1.0]), torch.tensor([0.0, 1.0]))(torch.tensor([[4.0, 0.0]]))
    tensor([[8., 1.]])
    """

    temperature: PositiveScalar  # float64
    scale: PerClass  # float64
    bias: PerClass  # float64
    floor: float = LOG_PROB_FLOOR  # under the top of the row, in units of T: where what lies lower is lifted to
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, warm_start: "Vector | None" = None, ridge: NonNegativeFloat = 0.0) -> "Vector":
        """Find v and c of least NLL; `warm_start` is a fit to begin from."""
        guess = None if warm_start is None else AffineFit(warm_start.scale, warm_start.bias)
        return fit_vector(p, fit_nll_temperature(p), guess, ridge=ridge).with_certificate(p)

    @check_num_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return v x + c."""
        return apply_affine(_scaled_logits(logits, self.temperature, self.floor), self.scale, self.bias).to(
            logits.dtype
        )


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Matrix:
    r"""Matrix scaling, $W x + c$ with the penalty it needs (Guo et al. 2017; Kull et al. 2019, section 3).

    x is z / T, centered per row. Off-diagonal entries and intercepts are penalized by $\lambda / (k(k-1)) \sum_{i \ne
    j} w_{ij}^2 + \mu / k \lVert c \rVert^2$ (ODIR), with lambda = mu. Without a penalty a matrix overfits ruinously,
    so there is no such option; `penalty=None` chooses it among 1e5 .. 1e-7 by cross-validated NLL. `ridge` takes, in
    place of ODIR, the penalties of Berta et al. (2025) times this number; with 1, those of `StructuredMatrix`.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> one = torch.ones((), dtype=torch.float64)
    >>> Matrix(one, eye, torch.tensor([0.0, 1.0]))(torch.tensor([[1.0, -1.0]]))
    tensor([[1., 0.]])
    """

    temperature: PositiveScalar  # float64
    weight: PerClassPair  # float64
    bias: PerClass  # float64
    penalty: NonNegativeFloat = 0.0  # the one it was fitted with, or the ridge
    floor: float = LOG_PROB_FLOOR  # as in `Vector`
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "Matrix | None" = None,
        penalty: PositiveFloat | None = None,
        ridge: PositiveFloat | None = None,
    ) -> "Matrix":
        """Find W and c of least penalized NLL; `warm_start` is a fit to begin from.

        The cross-validation keeps rows of one group in one fold; copies of a row count as one row of that weight where
        they share a group. Raises `InputError` above 1000 classes, and for a penalty and a ridge at once.
        """
        check_matrix_classes(p.logits.shape[1], cls.__name__)
        if penalty is not None and ridge is not None:
            raise InputError(
                f"Matrix takes a penalty or a ridge, got {penalty:g} and {ridge:g}; leave one out",
                code="conflicting_settings",
            )
        guess = None if warm_start is None else AffineFit(warm_start.weight, warm_start.bias)
        return fit_matrix(p, fit_nll_temperature(p), guess, penalty=penalty, ridge=ridge).with_certificate(p)

    @check_num_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return W x + c."""
        return apply_affine(_centered_logits(logits, self.temperature, self.floor), self.weight, self.bias).to(
            logits.dtype
        )


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Dirichlet:
    r"""Dirichlet calibration, $W \log p + c$ (Kull et al. 2019, section 3), with ODIR.

    Mean NLL $+ \lambda / (k(k-1)) \sum_{i \ne j} w_{ij}^2 + \mu / k \lVert c \rVert^2$ with lambda = mu, chosen among
    1e5 .. 1e-7 by cross-validated NLL unless given. log p below -87 counts as -87,
    and a probability of exactly 0 as the smallest that is not.

    >>> Dirichlet(torch.eye(2, dtype=torch.float64), torch.tensor([0.0, 1.0]))(torch.zeros(1, 2))
    tensor([[-0.6931,  0.3069]])
    """

    weight: PerClassPair  # float64
    bias: PerClass  # float64
    penalty: NonNegativeFloat = 0.0  # the one it was fitted with
    floor: float = LOG_PROB_FLOOR  # lower log p count as this
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, penalty: PositiveFloat | None = None) -> "Dirichlet":
        """Find W and c of least penalized NLL; folds as in `Matrix`. Raises `InputError` above 1000 classes."""
        check_matrix_classes(p.logits.shape[1], cls.__name__)
        floor = _log_prob_floor(p.logits.double().log_softmax(-1))
        affine_fit, penalty = _fit_odir(p.apply(lambda z: _log_p(z, floor)), penalty)
        return _solution(cls(affine_fit.weight, affine_fit.bias, penalty, floor), affine_fit).with_certificate(p)

    @check_num_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return W log p + c."""
        return apply_affine(_log_p(logits, self.floor), self.weight, self.bias).to(logits.dtype)


def fit_vector(
    p: Predictions,
    temperature_fit: TemperatureFit,
    start: AffineFit | None = None,
    *,
    ridge: float = 0.0,
    tolerance: float = GRADIENT_TOLERANCE,
) -> Solution[Vector]:
    """Find a `Vector`, given the temperature of least NLL."""
    unit, floor = temperature_fit.unit, _floor_under_top(p, temperature_fit.unit)
    strength = ridge * p.k / p.total_weight
    ones = torch.ones(p.k, dtype=torch.float64)
    x = p.apply(lambda z: _scaled_logits(z, unit, floor))
    affine_fit = fit_affine(x, ones, strength, strength, start, tolerance, min_ridge=MIN_RIDGE)
    return _solution(Vector(unit, affine_fit.weight, affine_fit.bias, floor), affine_fit)


def fit_matrix(
    p: Predictions,
    temperature_fit: TemperatureFit,
    start: AffineFit | None = None,
    *,
    penalty: float | None = None,
    ridge: float | None = None,
    tolerance: float = GRADIENT_TOLERANCE,
) -> Solution[Matrix]:
    """Find a `Matrix`, given the temperature of least NLL."""
    unit, floor = temperature_fit.unit, _floor_under_top(p, temperature_fit.unit)
    x = p.apply(lambda z: _centered_logits(z, unit, floor))
    if ridge is None:
        affine_fit, strength = _fit_odir(x, penalty, start)
    else:
        eye, strength = torch.eye(p.k, dtype=torch.float64), ridge
        affine_fit = fit_affine(x, eye, *shrinkage(p.total_weight, p.k, ridge), start, tolerance)
    return _solution(Matrix(unit, affine_fit.weight, affine_fit.bias, strength, floor), affine_fit)


def _solution(fitted: C, affine_fit: AffineFit) -> Solution[C]:
    return Solution(
        fitted,
        affine_fit.status,
        affine_fit.gradient,
        affine_fit.iterations,
        clips_zeros=True,
        warm_start=affine_fit,
        gap=affine_fit.gap,
    )


def _fit_odir(x: Predictions, penalty: float | None, start: AffineFit | None = None) -> tuple[AffineFit, float]:
    """Fit a matrix with off-diagonal and intercept regularization (Kull et al. 2019, section 3)."""
    k = x.logits.shape[1]
    eye = torch.eye(k, dtype=torch.float64)

    def fit(x: Predictions, strength: float, start: AffineFit | None, tolerance: float) -> AffineFit:
        ridge = (strength / (k * (k - 1))) * (1 - eye)
        return fit_affine(x, eye, ridge, strength / k, start, tolerance, min_ridge=MIN_RIDGE * 1e-3)

    if penalty is None:
        penalty, best_fit = _choose_penalty(x, fit)
        start = start or best_fit
    return fit(x, penalty, start, GRADIENT_TOLERANCE), penalty


def _choose_penalty(
    x: Predictions, fit: Callable[[Predictions, float, AffineFit | None, float], AffineFit]
) -> tuple[float, AffineFit | None]:
    """Choose the penalty by cross-validated NLL, from the strongest down; and a fit with it, to begin from."""
    folds = min(3, num_units(x))
    if folds < 2:
        return PENALTY_GRID[0], None
    parts = [(training, x[in_fold]) for training, in_fold in split_folds(x, folds)]
    best_penalty, best_fit, lowest_loss, num_worse, last_fit = PENALTY_GRID[0], None, math.inf, 0, None
    for strength in PENALTY_GRID:
        loss, last_fit = (
            0.0,
            None if last_fit is None else AffineFit(last_fit.weight, last_fit.bias),
        )  # the curvature is another
        for (
            training,
            validation,
        ) in parts:  # each starts from the one before it, of the stronger penalty or of another fold
            last_fit = fit(training, strength, last_fit, COARSE_GRADIENT_TOLERANCE)
            loss -= float(_weighted_sum(validation.apply(last_fit).log_likelihood, validation.weights))
        best_penalty, best_fit, lowest_loss, num_worse = (
            (strength, last_fit, loss, 0)
            if loss < lowest_loss
            else (best_penalty, best_fit, lowest_loss, num_worse + 1)
        )
        if num_worse == 2:  # weaker ones only overfit more, at ever more steps
            break
    return best_penalty, best_fit


def _weighted_sum(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.sum() if weights is None else (values * weights).sum()
