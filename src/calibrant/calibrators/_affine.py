"""Affine maps of logits or log-probabilities, fitted by (penalized) maximum likelihood: convex, one optimum."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from calibrant._folds import split_folds, units
from calibrant._softmax import LOG2_E
from calibrant._solve import Certificate, Memory, Status, minimize, positive_root, summed
from calibrant.calibrators._apply import its_classes
from calibrant.calibrators._fit import Solution, fits
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

    @property
    def status(self) -> Status:
        """Whether the search came to its end: separable data with many classes have an optimum too far away."""
        return "converged" if self.gradient <= CONVERGED else "not converged"

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
) -> Affine:
    r"""Minimize mean NLL of softmax(w x + c) $+ \sum r (w - w_0)^2 + r_c \lVert c \rVert^2$, with w_0 the identity.

    x are the logits of the predictions. L-BFGS in coordinates in which the Hessian at the start is the unit matrix, or
    nearly so: log-probabilities pull together, and a quarter of the steps and less are enough. A fit to begin from
    lends its coordinates and what it knows of the curvature. float64, but for the rows of a large matrix that is needed
    nearly only; at most 1000 steps, 300 where a pass is long. A pass is made where the logits are, the search on the
    processor.
    """
    n, k = p.logits.shape
    often = None if p.weights is None else p.weights[:, None] * (n / p.mass)  # how often a row counts, 1 on average
    shape = identity.shape
    ridge = torch.as_tensor(ridge, dtype=torch.float64).expand(shape)
    frame, memory = _frame(p.logits, identity, ridge, ridge_bias, often, start)
    single = tolerance >= NEARLY and identity.ndim == 2 and identity.numel() > SMALL
    x, index = p.logits.to(torch.float32 if single else torch.float64), p.labels[:, None]

    def unpack(t: Tensor) -> tuple[Tensor, Tensor]:
        by_class = frame.outside(t).view(k if identity.ndim else k + 1, -1)
        change, c = (by_class[:, :-1], by_class[:, -1]) if identity.ndim else (by_class[0], by_class[1:, 0])
        return change.reshape(shape), c

    def packed(w: Tensor, c: Tensor) -> Tensor:
        return torch.cat([w.view(k, -1), c[:, None]], 1) if identity.ndim else torch.cat([w.view(1), c])[:, None]

    def total(rows: Tensor) -> Tensor:
        return rows.sum(dtype=torch.float64) if often is None else (often * rows).sum()

    space = torch.empty_like(x)

    def f(t: Tensor) -> tuple[float, Tensor]:
        change, c = unpack(t)
        w, b = (identity + change).to(x), c.to(x)
        s = torch.addmm(b, x, w.mT, out=space) if w.ndim == 2 else torch.addcmul(b, x, w, out=space)
        top = s.amax(-1, keepdim=True)
        s_y = total(s.gather(1, index))
        e = s.sub_(top).mul_(LOG2_E).exp2_()
        norm = e.sum(-1, keepdim=True)
        mean = (total(norm.log()) + total(top) - s_y) / n
        value = mean + (ridge * change.square()).sum() + ridge_bias * c.square().sum()
        each = torch.full_like(norm, 1 / n) if often is None else (often / n).to(x.dtype)
        r = e.div_(norm.mul_(n) if often is None else norm / each)
        r.scatter_add_(1, index, -each)
        by_c = r.sum(0)
        by_w = r.mT @ x if w.ndim == 2 else r.mul_(x).sum(0) if w.ndim else r.mul_(x).sum()
        return float(value), frame.slope(packed(by_w.cpu() + 2 * ridge * change, by_c.cpu() + 2 * ridge_bias * c))

    at = torch.zeros(frame.scale.numel(), dtype=torch.float64)
    if start is not None:
        at = frame.inside(packed(start.weight - identity, start.bias))
    steps = 1000 if n * k < 1_000_000 else 300
    found = minimize(f, at, steps=steps, tolerance=tolerance, memory=memory)
    change, c = unpack(found.x)
    return Affine(identity + change, c.clone(), found.gradient, found.evaluations, frame, found.memory)


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


def _frame(
    x: Tensor, identity: Tensor, ridge: Tensor, ridge_bias: float, often: Tensor | None, start: Affine | None
) -> tuple[Frame, Memory | None]:
    """Coordinates for a search, and what is known of the curvature in them.

    Where it is small, the Hessian at the start is the best frame, and serves for all fits nearby.
    """
    if start is not None and start.frame is not None:
        return start.frame, start.memory
    if identity.ndim and identity.numel() + len(identity) <= SMALL:
        at = Affine(identity, torch.zeros(len(identity), dtype=torch.float64)) if start is None else start
        scale, root = _exact_coordinates(x, at, ridge, ridge_bias, often)
    else:
        scale, root = _coordinates(x, ridge, ridge_bias, often)
    return Frame(scale, root, torch.linalg.inv(root)), None


def _exact_coordinates(
    x: Tensor, at: Affine, ridge: Tensor, ridge_bias: float, often: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Coordinates in which the penalized Hessian at a fit is the unit matrix, all classes in one block.

    Where it is all but flat, as where every probability is 0 or 1, they are stretched no further.
    """
    n, k = x.shape

    def part(x: Tensor, *often: Tensor) -> Tensor:
        p, one = at(x).softmax(-1), torch.ones_like(x)
        features = torch.cat([x, one[:, :1]], 1)[:, None] if ridge.ndim == 2 else torch.stack([x, one], 2)
        moment = p[:, :, None] * features  # (rows k m)
        counted = moment * often[0][:, :, None] if often else moment
        flat = counted.flatten(1).mT
        if ridge.ndim == 2:
            own = (flat @ features[:, 0]).view(k, k + 1, k + 1)
        else:
            own = (counted[:, :, :, None] * features[:, :, None]).sum(0)
        return torch.block_diag(*own) - flat @ moment.flatten(1)

    penalty = torch.cat([ridge.reshape(k, -1), torch.full((k, 1), ridge_bias, dtype=torch.float64)], 1)
    hessian = summed(part, x, *([] if often is None else [often])).cpu() / n + (2 * penalty.flatten()).diag()
    hessian.diagonal().clamp_(min=FLATTEST)
    return torch.ones(1, penalty.numel(), dtype=torch.float64), positive_root(hessian)


def _coordinates(x: Tensor, ridge: Tensor, ridge_bias: float, often: Tensor | None) -> tuple[Tensor, Tensor]:
    """Coordinates t of the change of w and of c in which the penalized Hessian at the identity is nearly the unit.

    Every class has a row, its weights and then its intercept: (t @ root^-1) * scale. The scale is exact for each of
    them. The root is a Cholesky factor of how they are correlated, the intercept belonging to a feature that is 1:
    exact for the two of a diagonal w, an average over classes for a matrix. A number w has a row to itself.
    """
    n, k = x.shape
    each = x.new_full((n, 1), 1 / n, dtype=torch.float64) if often is None else often / n
    size = max(1, BLOCK // k)
    parts = [_curved(*rows, ridge.ndim) for rows in zip(x.split(size), each.split(size), strict=True)]
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


def _curved(x: Tensor, each: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """What rows x, each of a weight, add to the Hessian of every class and to its diagonal."""
    p = x.softmax(-1)
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
        raise InputError(f"{name} learns {k} x {k} numbers, at most {WIDEST} classes; use StructuredVector for more")


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
        found = fit_affine(of_possible(p).mapped(lambda z: _unit(z, unit)), one, RIDGE, RIDGE)
        status = found.status if found.weight > 0 else "at bound"
        fitted = cls(unit / found.weight.clamp_min(1e-6), found.bias)
        return Solution(fitted, status, found.gradient, found.iterations).certified(p)

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
    A ridge of 1e-6 on v - 1 and c makes the optimum unique and finite. With many classes it overfits: `ridge` adds
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
    strength = ridge * p.k / p.mass + RIDGE
    ones = torch.ones(p.k, dtype=torch.float64)
    found = fit_affine(p.mapped(lambda z: _unit(z, unit, floor)), ones, strength, strength, start, tolerance)
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
    return Solution(fitted, found.status, found.gradient, found.iterations, clips=True, search=found)


def _odir(x: Predictions, penalty: float | None, start: Affine | None = None) -> tuple[Affine, float]:
    """Fit a matrix with off-diagonal and intercept regularization (Kull et al. 2019, section 3)."""
    k = x.logits.shape[1]
    eye = torch.eye(k, dtype=torch.float64)

    def fit(x: Predictions, strength: float, start: Affine | None, tolerance: float) -> Affine:
        ridge = (strength / (k * (k - 1))) * (1 - eye) + RIDGE * 1e-3 * eye
        return fit_affine(x, eye, ridge, strength / k, start, tolerance)

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
