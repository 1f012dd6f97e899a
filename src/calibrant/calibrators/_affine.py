"""Affine maps of logits or log-probabilities, fitted by (penalized) maximum likelihood: convex, one optimum."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from calibrant._folds import split_folds, units
from calibrant._softmax import LOG2_E
from calibrant._solve import (
    LARGEST_GAP,
    Certificate,
    Memory,
    Status,
    decrement,
    minimize,
    newton_step,
    positive_root,
    summed,
)
from calibrant.calibrators._apply import its_classes
from calibrant.calibrators._fit import Solution, fits, mean_of
from calibrant.calibrators._scaling import Found, nll_temperature, of_possible
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import BLOCK, Predictions
from calibrant.types import ByClass, InputError, Logits, NonNegative, PerClass, Positive, PositiveNumber

__all__ = ["BiasCorrectedTemperature", "Dirichlet", "Matrix", "Vector"]

C = TypeVar("C")
FLOOR = -87.0  # log of the smallest float32: lower log-probabilities are taken for this one
RIDGE = 1e-6  # keeps the optimum of an unpenalized map unique and finite, at no visible cost
PATH = tuple(10.0**power for power in range(5, -8, -1))  # penalties that cross-validation tries, until two are worse
WIDEST = 1000  # classes up to which a full matrix is fitted
FLATTEST = 1e-3  # curvature below which a coordinate is stretched no further: the first step would lead too far
SMALL = 256  # numbers up to which their Hessian itself is worth having
CONVERGED = 1e-5  # largest entry of the scaled gradient at an optimum: about 1e-10 nats are left to gain
EXACT = 1e-6  # at which a search ends
SETTLED = 1e-8  # nats left to gain at which a search ends, and one Newton step remains where the Hessian is known
POLISHED = 16  # numbers up to which the last step is taken by fits that are only compared, too
ROUND = 60  # steps of a search in one set of coordinates, where the Hessian can give new ones
NEARLY = 1e-4  # at which one ends that is only compared: about 1e-6 nats are left; single precision is enough


@dataclass(frozen=True)
class Affine:
    """A fitted map x -> w x + c, with w a number, a diagonal or a matrix."""

    weight: Tensor  # () or (k) or (k, k)
    bias: Tensor  # (k)
    gradient: float = math.nan
    iterations: int = 0
    frame: "Frame | None" = None  # the coordinates of the search
    memory: Memory | None = None  # of the curvature, in these
    left: float = 0.0  # estimate of what is left to the penalized optimum
    ridge_cost: float = 0.0  # estimate of what `RIDGE` keeps it above the optimum without

    @property
    def status(self) -> Status:
        """Whether the search came to its end: separable data with many classes have an optimum too far away."""
        return "converged" if self.gradient <= CONVERGED and self.left <= LARGEST_GAP else "not converged"

    @property
    def gap(self) -> float:
        """Estimate of how far the fit lies above the optimum of its family."""
        return self.left + self.ridge_cost

    def __call__(self, x: Tensor) -> Tensor:
        """Return w x + c for rows x."""
        return affine(x, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return w x + c for rows x; w may be a number, a diagonal or a matrix."""
    weight, bias = weight.to(x.device), bias.to(x.device)
    return (x @ weight.mT if weight.ndim == 2 else x * weight) + bias


def fit_affine(
    p: Predictions,
    identity: Tensor,
    ridge: Tensor | float,
    ridge_bias: float,
    start: Affine | None = None,
    tolerance: float = EXACT,
    *,
    slight: float = 0.0,
) -> Affine:
    r"""Minimize mean NLL of softmax(w x + c) $+ \sum r (w - w_0)^2 + r_c \lVert c \rVert^2$, with w_0 the identity.

    x are the logits of the predictions. L-BFGS in coordinates in which the Hessian at the start is the unit matrix, or
    nearly so: log-probabilities pull together, and a quarter of the steps and less are enough. A fit to begin from
    lends its coordinates and what it knows of the curvature. Where the Hessian at the end is another, the search goes
    on in its coordinates. float64, but for the rows of a large matrix that is needed nearly only; at most 1000 steps,
    300 where a pass is long. A pass is made where the logits are, the search on the processor.

    `slight` is a ridge on the diagonal of w, relative to the variance of its column where that is below 1, that keeps
    the optimum finite; `ridge_cost` says at what cost. Without a `ridge_bias` it is on c too, of centered columns.
    """
    problem = _Problem.of(p, identity, ridge, ridge_bias, tolerance, slight)
    at = problem.packed(torch.zeros_like(identity), torch.zeros_like(problem.center))
    if start is not None:
        at = problem.packed(start.weight - identity, start.bias + _at(start.weight - identity, problem.center))
    if start is None or start.frame is None:
        frame, memory = problem.frame(at), None
    else:
        frame, memory = start.frame, start.memory
    left, passes = 1000 if p.logits.numel() < 1_000_000 else 300, 0
    while True:
        steps = min(left, ROUND) if problem.small and tolerance < NEARLY else left
        found = minimize(problem.along(frame), frame.inside(at), steps=steps, tolerance=tolerance, memory=memory)
        at, passes, left, memory = frame.outside(found.x), passes + found.evaluations, left - steps, found.memory
        if tolerance >= NEARLY and at.numel() > POLISHED:
            return problem.solution(at, found.gradient, passes, frame, memory)
        end = problem.end(at, found.value, frame.gradient(found.derivatives[0]))
        if end.left <= SETTLED or left <= 0 or tolerance >= NEARLY:
            return problem.solution(end.at, found.gradient, passes + 1, frame, memory, end.left, end.ridge_cost)
        frame, memory = problem.frame(at), None


@dataclass(frozen=True, eq=False)
class _End:
    """Where a search ended, and an estimate of what is left to gain from there."""

    at: Tensor
    left: float
    ridge_cost: float  # estimate of what the slight ridge keeps it above the optimum without


@dataclass(frozen=True, eq=False)
class _Problem:
    """The penalized NLL of an affine map, as a function of the packed changes of its weights and of its intercepts."""

    logits: Tensor  # (n k) less the center, float64
    x: Tensor  # (n k) the same in the precision of the passes
    index: Tensor  # (n 1) labels
    often: Tensor | None  # (n 1) how often a row counts, 1 on average
    identity: Tensor
    ridge: Tensor  # of the shape of the identity, with the slight one
    ridge_bias: float
    center: Tensor  # (k) of the columns, or 0
    slight: Tensor  # of the shape of the identity, the part of the ridge that only keeps the optimum finite
    slight_bias: float

    @classmethod
    def of(
        cls,
        p: Predictions,
        identity: Tensor,
        ridge: Tensor | float,
        ridge_bias: float,
        tolerance: float,
        slight: float,
    ) -> "_Problem":
        """Look at the columns, to which the slight ridge is relative."""
        often = None if p.weights is None else p.weights[:, None] * (len(p) / p.mass)
        single = tolerance >= NEARLY and identity.ndim == 2 and identity.numel() > SMALL
        logits, center = p.logits.double(), torch.zeros(p.k, dtype=torch.float64)
        small, slight_bias = torch.zeros_like(identity), 0.0
        if slight:
            mean = mean_of(logits, p)
            variance = mean_of((logits - mean).square(), p).cpu()
            size = torch.where(variance > 0, variance, 1.0).clamp_max(1.0)
            small = slight * (size.diag() if identity.ndim == 2 else size if identity.ndim else size.mean())
            if ridge_bias == 0:
                logits, center, slight_bias = logits - mean, mean.cpu(), slight
        x = logits.to(torch.float32 if single else torch.float64)
        ridge = torch.as_tensor(ridge, dtype=torch.float64).expand(identity.shape) + small
        bias = ridge_bias + slight_bias
        return cls(logits, x, p.labels[:, None], often, identity, ridge, bias, center, small, slight_bias)

    def unpacked(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """The change of w, and c, of packed numbers."""
        k = len(self.center)
        by_class = at.reshape(k if self.identity.ndim else k + 1, -1)
        change, c = (by_class[:, :-1], by_class[:, -1]) if self.identity.ndim else (by_class[0], by_class[1:, 0])
        return change.reshape(self.identity.shape), c

    def packed(self, change: Tensor, c: Tensor) -> Tensor:
        """A row for every class, of its weights and then its intercept; a number w has a row to itself."""
        k = len(self.center)
        if self.identity.ndim:
            return torch.cat([change.reshape(k, -1), c[:, None]], 1)
        return torch.cat([change.view(1), c])[:, None]

    def total(self, rows: Tensor) -> Tensor:
        """The sum over rows, each counted as often as its weight says."""
        return rows.sum(dtype=torch.float64) if self.often is None else (self.often * rows).sum()

    def along(self, frame: "Frame") -> Callable[[Tensor], tuple[float, Tensor]]:
        """The value and the gradient in the coordinates of a frame."""
        space = torch.empty_like(self.x)

        def f(t: Tensor) -> tuple[float, Tensor]:
            value, gradient = self.at(frame.outside(t), space)
            return value, frame.slope(gradient)

        return f

    def at(self, packed: Tensor, space: Tensor | None = None) -> tuple[float, Tensor]:
        """The value and the gradient at packed numbers."""
        x, n = self.x, len(self.x)
        change, c = self.unpacked(packed)
        w, b = (self.identity + change).to(x), (c + _at(self.identity, self.center)).to(x)
        s = torch.addmm(b, x, w.mT, out=space) if w.ndim == 2 else torch.addcmul(b, x, w, out=space)
        top = s.amax(-1, keepdim=True)
        s_y = self.total(s.gather(1, self.index))
        e = s.sub_(top).mul_(LOG2_E).exp2_()
        norm = e.sum(-1, keepdim=True)
        mean = (self.total(norm.log()) + self.total(top) - s_y) / n
        value = mean + (self.ridge * change.square()).sum() + self.ridge_bias * c.square().sum()
        each = torch.full_like(norm, 1 / n) if self.often is None else (self.often / n).to(x.dtype)
        r = e.div_(norm.mul_(n) if self.often is None else norm / each)
        r.scatter_add_(1, self.index, -each)
        by_c = r.sum(0).cpu()
        by_w = (r.mT @ x if w.ndim == 2 else r.mul_(x).sum(0) if w.ndim else r.mul_(x).sum()).cpu()
        return float(value), self.packed(by_w + 2 * self.ridge * change, by_c + 2 * self.ridge_bias * c)

    @property
    def small(self) -> bool:
        """Whether the Hessian itself is worth having."""
        return self.identity.numel() + len(self.center) <= SMALL

    def map(self, at: Tensor) -> Affine:
        """The map of packed numbers, for centered columns."""
        change, c = self.unpacked(at)
        return Affine(self.identity + change, c + _at(self.identity, self.center))

    def frame(self, at: Tensor) -> "Frame":
        """Coordinates for a search from here: by the Hessian where it is small."""
        coordinates = _exact_coordinates if self.small else _coordinates
        scale, root = coordinates(self.logits, self.map(at), self.ridge, self.ridge_bias, self.often)
        return Frame(scale, root, torch.linalg.inv(root))

    def end(self, at: Tensor, value: float, gradient: Tensor) -> _End:
        """Take the last step by the Hessian where it is small, and estimate what is left and what the ridge costs."""
        change, c = self.unpacked(at)
        pull = self.packed(2 * self.slight * change, 2 * self.slight_bias * c)
        if not self.small:
            frame = self.frame(at)
            left, cost = (float(frame.slope(each).square().sum()) / 2 for each in (gradient, pull))
            return _End(at, left, min(cost, value))
        hessian = _hessian(self.logits, self.map(at), self.ridge, self.ridge_bias, self.often)
        step = newton_step(gradient.flatten(), hessian)
        left = max(0.0, -float(gradient.flatten() @ step) / 2)
        slight = self.packed(self.slight, torch.full_like(c, self.slight_bias))
        cost = decrement(pull.flatten(), hessian - (2 * slight.flatten()).diag()) if bool(pull.any()) else 0.0
        then = at + step.view(at.shape)
        better = left <= SETTLED and self.at(then)[0] <= value + 1e-14 * (1 + abs(value))
        return _End(then if better else at, left, min(cost, value))

    def solution(
        self,
        at: Tensor,
        gradient: float,
        passes: int,
        frame: "Frame",
        memory: Memory | None,
        left: float = 0.0,
        ridge_cost: float = 0.0,
    ) -> Affine:
        """The map for columns as they came."""
        change, c = self.unpacked(at)
        weight = self.identity + change
        return Affine(weight, c - _at(change, self.center), gradient, passes, frame, memory, left, ridge_cost)


def _at(weight: Tensor, center: Tensor) -> Tensor:
    """Return w times the center."""
    return weight @ center if weight.ndim == 2 else weight * center


@dataclass(frozen=True, eq=False)
class Frame:
    """Coordinates t of the changes of w and c: (t @ root^-1) * scale, in one or more blocks, each with its row."""

    scale: Tensor  # (blocks d)
    root: Tensor  # (d d) or (blocks d d)
    inverse: Tensor  # of the root

    def outside(self, t: Tensor) -> Tensor:
        """The changes at t."""
        return (t.view(len(self.scale), 1, -1) @ self.inverse).squeeze(1) * self.scale

    def inside(self, changes: Tensor) -> Tensor:
        """The t of changes."""
        return ((changes.reshape(self.scale.shape) / self.scale).unsqueeze(1) @ self.root).flatten()

    def slope(self, gradient: Tensor) -> Tensor:
        """The gradient in t, from that in the changes."""
        return ((gradient.reshape(self.scale.shape) * self.scale).unsqueeze(1) @ self.inverse.mT).flatten()

    def gradient(self, slope: Tensor) -> Tensor:
        """The gradient in the changes, from that in t."""
        return (slope.view(len(self.scale), 1, -1) @ self.root.mT).squeeze(1) / self.scale


def _exact_coordinates(
    x: Tensor, at: Affine, ridge: Tensor, ridge_bias: float, often: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Coordinates in which the penalized Hessian at a fit is the unit matrix, all classes in one block.

    Where it is all but flat, as where every probability is 0 or 1, they are stretched no further.
    """
    hessian = _hessian(x, at, ridge, ridge_bias, often)
    square = x.square().mean(0).cpu() if ridge.ndim else x.square().mean().cpu()[None]
    square = (square.expand(len(ridge), -1) if ridge.ndim == 2 else square[:, None]).clamp_max(1.0)
    one = torch.ones_like(square[:, :1]) if ridge.ndim else torch.ones(x.shape[1], 1, dtype=square.dtype)
    natural = torch.cat([square, one], 1 if ridge.ndim else 0).flatten()
    hessian.diagonal().copy_(hessian.diagonal().maximum(FLATTEST * natural + 1e-300))
    return torch.ones(1, len(hessian), dtype=torch.float64), positive_root(hessian)


def _hessian(x: Tensor, at: Affine, ridge: Tensor, ridge_bias: float, often: Tensor | None) -> Tensor:
    """Return the penalized Hessian, in the weights and intercept of every class, or a number w and all intercepts."""
    n, k = x.shape

    def part(x: Tensor, *often: Tensor) -> Tensor:
        p = at(x).mT.contiguous().softmax(0)
        if not ridge.ndim:
            return _hessian_of_number(x, p.mT, p.mT * often[0] if often else p.mT)
        x = x.mT.contiguous()
        one = torch.ones_like(x)
        features = torch.cat([x, one[:1]])[None] if ridge.ndim == 2 else torch.stack([x, one], 1)
        moment = p[:, None] * features  # (k m rows)
        counted = moment * often[0].mT if often else moment
        own = counted @ features.mT
        return torch.block_diag(*own) - counted.flatten(0, 1) @ moment.flatten(0, 1).mT

    bias = torch.full((k, 1), ridge_bias, dtype=torch.float64)
    penalty = torch.cat([ridge.reshape(k, -1), bias], 1) if ridge.ndim else torch.cat([ridge.view(1, 1), bias])
    return summed(part, x, *([] if often is None else [often])).cpu() / n + (2 * penalty.flatten()).diag()


def _hessian_of_number(x: Tensor, p: Tensor, counted: Tensor) -> Tensor:
    """Return the sum of the Hessians of rows in a number w and all intercepts."""
    centered = x - (p * x).sum(-1, keepdim=True)
    cross = (counted * centered).sum(0)
    curve = (counted * centered.square()).sum().view(1)
    intercepts = counted.sum(0).diag() - counted.mT @ p
    return torch.cat([torch.cat([curve, cross])[None], torch.cat([cross[:, None], intercepts], 1)])


def _coordinates(
    x: Tensor, at: Affine, ridge: Tensor, ridge_bias: float, often: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Coordinates t of the change of w and of c in which the penalized Hessian at a fit is nearly the unit.

    Every class has a row, its weights and then its intercept: (t @ root^-1) * scale. The scale is exact for each of
    them. The root is a Cholesky factor of how they are correlated, the intercept belonging to a feature that is 1:
    exact for the two of a diagonal w, an average over classes for a matrix. A number w has a row to itself.
    """
    n, k = x.shape
    each = x.new_full((n, 1), 1 / n, dtype=torch.float64) if often is None else often / n
    size = max(1, BLOCK // k)
    parts = [_curved(*rows, at, ridge.ndim) for rows in zip(x.split(size), each.split(size), strict=True)]
    hessian, curve = (torch.stack(part).sum(0).cpu() for part in zip(*parts, strict=True))
    if ridge.ndim == 0:
        scale = torch.cat([curve + 2 * ridge, hessian + 2 * ridge_bias])[:, None]
        return scale.clamp_min(1e-12).rsqrt(), torch.ones(1, 1, dtype=torch.float64)
    penalty = torch.cat([ridge.reshape(k, -1), torch.full((k, 1), ridge_bias, dtype=torch.float64)], 1)
    scale = (curve + 2 * penalty).clamp_min(FLATTEST).rsqrt()
    share = curve.sqrt() * scale  # of the curvature, what the data bring
    common = share.mT @ share / k if ridge.ndim == 2 else share[:, :, None] * share[:, None, :]
    length = hessian.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    correlation = common * hessian * length[..., :, None] * length[..., None, :]
    # an average is not to be trusted where it says that nothing varies
    correlation.diagonal(dim1=-2, dim2=-1).fill_(1.1 if ridge.ndim == 2 else 1 + 1e-9)
    return scale, torch.linalg.cholesky(correlation)


def _curved(x: Tensor, each: Tensor, at: Affine, kind: int) -> tuple[Tensor, Tensor]:
    """What rows x, each of a weight, add to the Hessian of every class and to its diagonal."""
    p = at(x).softmax(-1)
    if kind == 0:
        bend = (p * x.square()).sum(-1) - (p * x).sum(-1).square()
        return (p * (1 - p) * each).sum(0), each.mT @ bend
    noise = p.mul_(1 - p).mul_(each)
    if kind == 1:
        moment = noise * x
        cross = moment.sum(0)
        hessian = torch.stack([(moment.mul_(x)).sum(0), cross, cross, noise.sum(0)], -1).view(-1, 2, 2)
        return hessian, hessian.diagonal(dim1=1, dim2=2)
    features = torch.cat([x, x.new_ones(len(x), 1)], 1)
    of_all = (features * noise.sum(1, keepdim=True)).mT @ features  # of all classes together
    return of_all, noise.mT @ features.square()


def shrinkage(n: float, k: int, strength: float = 1.0) -> tuple[Tensor, float]:
    r"""Return the penalties of a (k, k) matrix and of its intercepts (Berta et al. 2025, SMS), times a strength.

    k/n for the diagonal and the intercepts, k(k-1)/n elsewhere: they fade as the examples grow.
    """
    eye = torch.eye(k, dtype=torch.float64)
    return (strength * k / n) * (eye + (k - 1) * (1 - eye)), strength * k / n


def _unit(logits: Tensor, temperature: Tensor, floor: float = FLOOR) -> Tensor:
    """Return z / T; what lies below the floor under the top of its row, -inf included, is lifted to there."""
    x = logits.double() / temperature
    return torch.maximum(x, x.amax(-1, keepdim=True) + floor)


def _centered(logits: Tensor, temperature: Tensor, floor: float = FLOOR) -> Tensor:
    x = _unit(logits, temperature, floor)
    return x - x.mean(-1, keepdim=True)


def _log_p(logits: Tensor, floor: float = FLOOR) -> Tensor:
    return logits.double().log_softmax(-1).clamp_min(floor)


def _floor(below: Tensor) -> float:
    """Return the lowest finite number where some are -inf, and else -87.

    A probability of exactly 0 is taken for the smallest one that is not, if that is more than exp(-87): a forest's 0
    means that none of its trees said so, and one such label at -87 would undo the map for all the others.
    """
    if not bool(below.isneginf().any()):
        return FLOOR
    usual = below[below.isfinite() & (below < 0)]
    return max(FLOOR, float(usual.min())) if len(usual) else -1.0


def _floor_under_top(p: Predictions, unit: Tensor) -> float:
    x = p.logits.double() / unit
    return _floor(x - x.amax(-1, keepdim=True))


def narrow_enough(k: int, name: str) -> None:
    """Refuse to learn a matrix of more classes than can be fitted."""
    if k > WIDEST:
        raise InputError(
            f"{name} learns {k} x {k} numbers, at most {WIDEST} classes; use StructuredVector for more",
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

    temperature: PositiveNumber  # float64
    bias: PerClass  # float64
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(cls, p: Predictions) -> "BiasCorrectedTemperature":
        """Find T and c of least NLL."""
        unit = nll_temperature(p).unit
        one = torch.ones((), dtype=torch.float64)
        found = fit_affine(of_possible(p).mapped(lambda z: _unit(z, unit)), one, 0.0, 0.0, slight=RIDGE)
        status = found.status if found.weight > 0 else "at bound"
        fitted = cls(unit / found.weight.clamp_min(1e-6), found.bias)
        return Solution(fitted, status, found.gradient, found.iterations, gap=found.gap).certified(p)

    @its_classes(lambda self: len(self.bias))
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

    temperature: PositiveNumber  # float64
    scale: PerClass  # float64
    bias: PerClass  # float64
    floor: float = FLOOR  # under the top of the row, in units of T: where what lies lower is lifted to
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(cls, p: Predictions, *, warm_start: "Vector | None" = None, ridge: NonNegative = 0.0) -> "Vector":
        """Find v and c of least NLL; `warm_start` is a fit to begin from."""
        guess = None if warm_start is None else Affine(warm_start.scale, warm_start.bias)
        return vector(p, nll_temperature(p), guess, ridge=ridge).certified(p)

    @its_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return v x + c."""
        return affine(_unit(logits, self.temperature, self.floor), self.scale, self.bias).to(logits.dtype)


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

    temperature: PositiveNumber  # float64
    weight: ByClass  # float64
    bias: PerClass  # float64
    penalty: NonNegative = 0.0  # the one it was fitted with, or the ridge
    floor: float = FLOOR  # as in `Vector`
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "Matrix | None" = None,
        penalty: Positive | None = None,
        ridge: Positive | None = None,
    ) -> "Matrix":
        """Find W and c of least penalized NLL; `warm_start` is a fit to begin from.

        The cross-validation keeps rows of one group in one fold; copies of a row count as one row of that weight where
        they share a group. Raises `InputError` above 1000 classes, and for a penalty and a ridge at once.
        """
        narrow_enough(p.logits.shape[1], cls.__name__)
        if penalty is not None and ridge is not None:
            raise InputError(
                f"Matrix takes a penalty or a ridge, got {penalty:g} and {ridge:g}; leave one out",
                code="conflicting_settings",
            )
        guess = None if warm_start is None else Affine(warm_start.weight, warm_start.bias)
        return matrix(p, nll_temperature(p), guess, penalty=penalty, ridge=ridge).certified(p)

    @its_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return W x + c."""
        return affine(_centered(logits, self.temperature, self.floor), self.weight, self.bias).to(logits.dtype)


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

    weight: ByClass  # float64
    bias: PerClass  # float64
    penalty: NonNegative = 0.0  # the one it was fitted with
    floor: float = FLOOR  # lower log p count as this
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(cls, p: Predictions, *, penalty: Positive | None = None) -> "Dirichlet":
        """Find W and c of least penalized NLL; folds as in `Matrix`. Raises `InputError` above 1000 classes."""
        narrow_enough(p.logits.shape[1], cls.__name__)
        floor = _floor(p.logits.double().log_softmax(-1))
        found, penalty = _odir(p.mapped(lambda z: _log_p(z, floor)), penalty)
        return _solution(cls(found.weight, found.bias, penalty, floor), found).certified(p)

    @its_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return W log p + c."""
        return affine(_log_p(logits, self.floor), self.weight, self.bias).to(logits.dtype)


def vector(
    p: Predictions, at: Found, start: Affine | None = None, *, ridge: float = 0.0, tolerance: float = EXACT
) -> Solution[Vector]:
    """Find a `Vector`, given the temperature of least NLL."""
    unit, floor = at.unit, _floor_under_top(p, at.unit)
    strength = ridge * p.k / p.mass
    ones = torch.ones(p.k, dtype=torch.float64)
    x = p.mapped(lambda z: _unit(z, unit, floor))
    found = fit_affine(x, ones, strength, strength, start, tolerance, slight=RIDGE)
    return _solution(Vector(unit, found.weight, found.bias, floor), found)


def matrix(
    p: Predictions,
    at: Found,
    start: Affine | None = None,
    *,
    penalty: float | None = None,
    ridge: float | None = None,
    tolerance: float = EXACT,
) -> Solution[Matrix]:
    """Find a `Matrix`, given the temperature of least NLL."""
    unit, floor = at.unit, _floor_under_top(p, at.unit)
    x = p.mapped(lambda z: _centered(z, unit, floor))
    if ridge is None:
        found, strength = _odir(x, penalty, start)
    else:
        eye, strength = torch.eye(p.k, dtype=torch.float64), ridge
        found = fit_affine(x, eye, *shrinkage(p.mass, p.k, ridge), start, tolerance)
    return _solution(Matrix(unit, found.weight, found.bias, strength, floor), found)


def _solution(fitted: C, found: Affine) -> Solution[C]:
    return Solution(fitted, found.status, found.gradient, found.iterations, clips=True, search=found, gap=found.gap)


def _odir(x: Predictions, penalty: float | None, start: Affine | None = None) -> tuple[Affine, float]:
    """Fit a matrix with off-diagonal and intercept regularization (Kull et al. 2019, section 3)."""
    k = x.logits.shape[1]
    eye = torch.eye(k, dtype=torch.float64)

    def fit(x: Predictions, strength: float, start: Affine | None, tolerance: float) -> Affine:
        ridge = (strength / (k * (k - 1))) * (1 - eye)
        return fit_affine(x, eye, ridge, strength / k, start, tolerance, slight=RIDGE * 1e-3)

    if penalty is None:
        penalty, known = _strength(x, fit)
        start = start or known
    return fit(x, penalty, start, EXACT), penalty


def _strength(
    x: Predictions, fit: Callable[[Predictions, float, Affine | None, float], Affine]
) -> tuple[float, Affine | None]:
    """Choose the penalty by cross-validated NLL, from the strongest down; and a fit with it, to begin from."""
    folds = min(3, units(x))
    if folds < 2:
        return PATH[0], None
    parts = [(rest, x[inside]) for rest, inside in split_folds(x, folds)]
    best, known, least, worse, one = PATH[0], None, math.inf, 0, None
    for strength in PATH:
        loss, one = 0.0, None if one is None else Affine(one.weight, one.bias)  # the curvature is another
        for rest, held in parts:  # each starts from the one before it, of the stronger penalty or of another fold
            one = fit(rest, strength, one, NEARLY)
            loss -= float(_total(held.mapped(one).log_likelihood, held.weights))
        best, known, least, worse = (strength, one, loss, 0) if loss < least else (best, known, least, worse + 1)
        if worse == 2:  # weaker ones only overfit more, at ever more steps
            break
    return best, known


def _total(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.sum() if weights is None else (values * weights).sum()
