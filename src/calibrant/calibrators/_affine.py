"""Affine maps of logits or log-probabilities, fitted by (penalized) maximum likelihood: convex, one optimum."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._bins import LOG2_E
from calibrant._folds import folds_of
from calibrant._solve import Certificate, Status, few_threads, minimize
from calibrant._types import InputError, Labels, Logits
from calibrant.calibrators._certify import certify
from calibrant.calibrators._scaling import nll_temperature
from calibrant.predictions import Predictions

__all__ = ["BiasCorrectedTemperature", "Dirichlet", "Matrix", "Vector"]

FLOOR = -87.0  # log of the smallest float32: lower log-probabilities are taken for this one
RIDGE = 1e-6  # keeps the optimum of an unpenalized map unique and finite, at no visible cost
PATH = tuple(10.0**power for power in range(5, -8, -1))  # penalties that cross-validation tries, until two are worse
WIDEST = 1000  # classes up to which a full matrix is fitted
FLATTEST = 1e-3  # curvature below which a coordinate is stretched no further: the first step would lead too far
CONVERGED = 1e-5  # largest entry of the scaled gradient at an optimum: about 1e-10 nats are left to gain


@dataclass(frozen=True)
class Affine:
    """A fitted map x -> w x + c, with w a number, a diagonal or a matrix."""

    weight: Tensor  # () or (k) or (k, k)
    bias: Tensor  # (k)
    gradient: float
    iterations: int

    @property
    def status(self) -> Status:
        """Whether the search came to its end: separable data with many classes have an optimum too far away."""
        return "converged" if self.gradient <= CONVERGED else "not converged"

    def __call__(self, x: Tensor) -> Tensor:
        """Return w x + c for rows x."""
        return affine(x, self.weight, self.bias)


def affine(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return w x + c for rows x; w may be a number, a diagonal or a matrix."""
    return (x @ weight.mT if weight.ndim == 2 else x * weight) + bias


def fit_affine(
    x: Tensor,
    labels: Tensor,
    identity: Tensor,
    ridge: Tensor | float,
    ridge_bias: float,
    start: Affine | None = None,
    tolerance: float = 1e-6,
) -> Affine:
    r"""Minimize mean NLL of softmax(w x + c) $+ \sum r (w - w_0)^2 + r_c \lVert c \rVert^2$, with w_0 the identity.

    L-BFGS in coordinates in which the Hessian at the identity is nearly the unit matrix: log-probabilities pull
    together, and a half to a quarter of the steps are enough. float64; at most 1000 steps, 300 where a pass is long.
    """
    n, k = x.shape
    shape, index = identity.shape, labels[:, None]
    ridge = torch.as_tensor(ridge, dtype=torch.float64).expand(shape)
    scale, root = _coordinates(x, ridge, ridge_bias)
    inverse = torch.linalg.inv(root)

    def unpack(t: Tensor) -> tuple[Tensor, Tensor]:
        by_class = (t.view(len(scale), 1, -1) @ inverse).squeeze(1) * scale
        change, c = (by_class[:, :-1], by_class[:, -1]) if identity.ndim else (by_class[0], by_class[1:, 0])
        return change.reshape(shape), c

    def packed(w: Tensor, c: Tensor) -> Tensor:
        return torch.cat([w.view(k, -1), c[:, None]], 1) if identity.ndim else torch.cat([w.view(1), c])[:, None]

    space = torch.empty(n, k, dtype=torch.float64)

    def f(t: Tensor) -> tuple[float, Tensor]:
        change, c = unpack(t)
        w = identity + change
        s = torch.addmm(c, x, w.mT, out=space) if w.ndim == 2 else torch.addcmul(c, x, w, out=space)
        top = s.amax(-1, keepdim=True)
        s_y = s.gather(1, index).sum()
        e = s.sub_(top).mul_(LOG2_E).exp2_()
        norm = e.sum(-1, keepdim=True)
        value = (
            (norm.log().sum() + top.sum() - s_y) / n + (ridge * change.square()).sum() + ridge_bias * c.square().sum()
        )
        r = e.div_(norm.mul_(n))
        r.scatter_add_(1, index, torch.full_like(norm, -1 / n))
        by_w = r.mT @ x if w.ndim == 2 else (r * x).sum(0) if w.ndim else (r * x).sum()
        by = packed(by_w + 2 * ridge * change, r.sum(0) + 2 * ridge_bias * c)
        return float(value), ((by * scale).unsqueeze(1) @ inverse.mT).flatten()

    at = torch.zeros(scale.numel(), dtype=torch.float64)
    if start is not None:
        at = ((packed(start.weight - identity, start.bias) / scale).unsqueeze(1) @ root).flatten()
    with few_threads(n * k):
        t, _, gradient, iterations = minimize(f, at, steps=1000 if n * k < 1_000_000 else 300, tolerance=tolerance)
    change, c = unpack(t)
    return Affine(identity + change, c.clone(), gradient, iterations)


def _coordinates(x: Tensor, ridge: Tensor, ridge_bias: float) -> tuple[Tensor, Tensor]:
    """Coordinates t of the change of w and of c in which the penalized Hessian at the identity is nearly the unit.

    Every class has a row, its weights and then its intercept: (t @ root^-1) * scale. The scale is exact for each of
    them. The root is a Cholesky factor of how they are correlated, the intercept belonging to a feature that is 1:
    exact for the two of a diagonal w, an average over classes for a matrix. A number w has a row to itself.
    """
    n, k = x.shape
    p = x.softmax(-1)
    noise = p * (1 - p) / n
    if ridge.ndim == 0:
        curve = ((p * x.square()).sum(-1) - (p * x).sum(-1).square()).mean()
        scale = torch.cat([curve.view(1) + 2 * ridge, noise.sum(0) + 2 * ridge_bias])[:, None]
        return scale.clamp_min(1e-12).rsqrt(), torch.ones(1, 1, dtype=torch.float64)
    if ridge.ndim == 1:
        moment = noise * x
        cross = moment.sum(0)
        hessian = torch.stack([(moment * x).sum(0), cross, cross, noise.sum(0)], -1).view(k, 2, 2)
        curve = hessian.diagonal(dim1=1, dim2=2)
    else:
        features = torch.cat([x, torch.ones(n, 1, dtype=torch.float64)], 1)
        hessian = (features * noise.sum(1, keepdim=True)).mT @ features  # of all classes together
        curve = noise.mT @ features.square()
    penalty = torch.cat([ridge.reshape(k, -1), torch.full((k, 1), ridge_bias, dtype=torch.float64)], 1)
    scale = (curve + 2 * penalty).clamp_min(FLATTEST).rsqrt()
    share = curve.sqrt() * scale  # of the curvature, what the data bring
    common = share.mT @ share / k if ridge.ndim == 2 else share[:, :, None] * share[:, None, :]
    length = hessian.diagonal(dim1=-2, dim2=-1).clamp_min(1e-300).rsqrt()
    correlation = common * hessian * length[..., :, None] * length[..., None, :]
    # an average is not to be trusted where it says that nothing varies
    correlation.diagonal(dim1=-2, dim2=-1).fill_(1.1 if ridge.ndim == 2 else 1 + 1e-9)
    return scale, torch.linalg.cholesky(correlation)


def shrinkage(n: int, k: int, strength: float = 1.0) -> tuple[Tensor, float]:
    r"""Return the penalties of a (k, k) matrix and of its intercepts (Berta et al. 2025, SMS), times a strength.

    k/n for the diagonal and the intercepts, k(k-1)/n elsewhere: they fade as the examples grow.
    """
    eye = torch.eye(k, dtype=torch.float64)
    return (strength * k / n) * (eye + (k - 1) * (1 - eye)), strength * k / n


def _unit(logits: Tensor, temperature: Tensor) -> Tensor:
    """Return z / T; what lies more than 87 below the top of its row, -inf included, is lifted to there."""
    x = logits.double() / temperature
    return torch.maximum(x, x.amax(-1, keepdim=True) + FLOOR)


def _centered(logits: Tensor, temperature: Tensor) -> Tensor:
    x = _unit(logits, temperature)
    return x - x.mean(-1, keepdim=True)


def _log_p(logits: Tensor) -> Tensor:
    return logits.double().log_softmax(-1).clamp_min(FLOOR)


def _narrow_enough(k: int, name: str) -> None:
    if k > WIDEST:
        raise InputError(f"{name} learns {k} x {k} numbers, at most {WIDEST} classes; use StructuredVector for more")


@dataclass(frozen=True, eq=False)
class BiasCorrectedTemperature:
    r"""Bias-corrected temperature scaling, $z / T + c$ (Alexandari et al. 2020, section 3).

    What label-shift estimates such as EM need. Convex in (1/T, c); T > 0 wherever the data say so. A ridge of 1e-6
    on c and on 1/T makes the optimum unique (only differences of c matter) and finite.

    >>> BiasCorrectedTemperature(torch.tensor(2.0), torch.tensor([0.0, 1.0]))(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 1.]])
    """

    temperature: Tensor  # () float64
    bias: Tensor  # (k) float64
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels) -> "BiasCorrectedTemperature":
        """Find T and c of least NLL."""
        logits, labels = Predictions(logits, labels)
        unit = torch.tensor(nll_temperature(logits, labels).scale, dtype=torch.float64)
        one = torch.ones((), dtype=torch.float64)
        found = fit_affine(_unit(logits, unit), labels, one, RIDGE, RIDGE)
        slope = found.weight.clamp_min(1e-6)
        status = found.status if found.weight > 0 else "at bound"
        fitted = cls(unit / slope, found.bias)
        return certify(fitted, logits, labels, status, gradient=found.gradient, iterations=found.iterations)

    def __call__(self, logits: Logits) -> Logits:
        """Return z / T + c."""
        return (logits / self.temperature + self.bias).to(logits.dtype)


@dataclass(frozen=True, eq=False)
class Vector:
    r"""Vector scaling, $v \circ z + c$ (Guo et al. 2017, section 4.2).

    The logits are first brought to unit scale, x = z / T with the T of least NLL (and x no lower than 87 below the
    top of its row, so that probability 0 stays computable): the same family, fitted the same whatever the scale of z.
    A ridge of 1e-6 on v - 1 and c makes the optimum unique and finite. With many classes it overfits: `ridge` adds
    $r \frac{k}{n} (\lVert v - 1 \rVert^2 + \lVert c \rVert^2)$, with r = 1 the penalty of `StructuredVector`.

    >>> one = torch.ones((), dtype=torch.float64)
    >>> Vector(one, torch.tensor([2.0, 1.0]), torch.tensor([0.0, 1.0]))(torch.tensor([[4.0, 0.0]]))
    tensor([[8., 1.]])
    """

    temperature: Tensor  # () float64
    scale: Tensor  # (k) float64
    bias: Tensor  # (k) float64
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels, start: "Vector | None" = None, *, ridge: float = 0.0) -> "Vector":
        """Find v and c of least NLL; `start` is a fit to begin from. Raises `InputError` for a ridge below 0."""
        logits, labels = Predictions(logits, labels)
        n, k = logits.shape
        if not ridge >= 0:
            raise InputError(f"ridge must be 0 or more, got {ridge}")
        unit = torch.tensor(nll_temperature(logits, labels).scale, dtype=torch.float64)
        guess = None if start is None else Affine(start.scale, start.bias, 0.0, 0)
        strength = ridge * k / n + RIDGE
        found = fit_affine(_unit(logits, unit), labels, torch.ones(k).double(), strength, strength, guess)
        fitted = cls(unit, found.weight, found.bias)
        return certify(fitted, logits, labels, found.status, gradient=found.gradient, iterations=found.iterations)

    def __call__(self, logits: Logits) -> Logits:
        """Return v x + c."""
        return affine(_unit(logits, self.temperature), self.scale, self.bias).to(logits.dtype)


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

    temperature: Tensor  # () float64
    weight: Tensor  # (k, k) float64
    bias: Tensor  # (k) float64
    penalty: float = 0.0  # the one it was fitted with, or the ridge
    certificate: Certificate | None = None

    @classmethod
    def fit(
        cls,
        logits: Logits,
        labels: Labels,
        start: "Matrix | None" = None,
        *,
        penalty: float | None = None,
        ridge: float | None = None,
    ) -> "Matrix":
        """Find W and c of least penalized NLL; `start` is a fit to begin from.

        Raises `InputError` above 1000 classes, for a penalty or ridge that is not above 0, and for both at once.
        """
        logits, labels = Predictions(logits, labels)
        _narrow_enough(logits.shape[1], "Matrix")
        unit = torch.tensor(nll_temperature(logits, labels).scale, dtype=torch.float64)
        x, guess = _centered(logits, unit), None if start is None else Affine(start.weight, start.bias, 0.0, 0)
        if ridge is None:
            found, strength = _odir(x, labels, penalty, "Matrix", guess)
        elif penalty is None and ridge > 0:
            found, strength = _ridged(x, labels, ridge, guess), ridge
        else:
            raise InputError(f"Matrix takes a penalty or a ridge, above 0, got {penalty} and {ridge}; leave one out")
        fitted = cls(unit, found.weight, found.bias, strength)
        return certify(fitted, logits, labels, found.status, gradient=found.gradient, iterations=found.iterations)

    def __call__(self, logits: Logits) -> Logits:
        """Return W x + c."""
        return affine(_centered(logits, self.temperature), self.weight, self.bias).to(logits.dtype)


@dataclass(frozen=True, eq=False)
class Dirichlet:
    r"""Dirichlet calibration, $W \log p + c$ (Kull et al. 2019, section 3), with ODIR.

    Mean NLL $+ \lambda / (k(k-1)) \sum_{i \ne j} w_{ij}^2 + \mu / k \lVert c \rVert^2$ with lambda = mu, chosen among
    1e5 .. 1e-7 by cross-validated NLL unless given. log p below -87 counts as -87.

    >>> Dirichlet(torch.eye(2, dtype=torch.float64), torch.tensor([0.0, 1.0]))(torch.zeros(1, 2))
    tensor([[-0.6931,  0.3069]])
    """

    weight: Tensor  # (k, k) float64
    bias: Tensor  # (k) float64
    penalty: float = 0.0  # the one it was fitted with
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels, *, penalty: float | None = None) -> "Dirichlet":
        """Find W and c of least penalized NLL. Raises `InputError` above 1000 classes or without a penalty."""
        logits, labels = Predictions(logits, labels)
        _narrow_enough(logits.shape[1], "Dirichlet")
        found, penalty = _odir(_log_p(logits), labels, penalty, "Dirichlet")
        fitted = cls(found.weight, found.bias, penalty)
        return certify(fitted, logits, labels, found.status, gradient=found.gradient, iterations=found.iterations)

    def __call__(self, logits: Logits) -> Logits:
        """Return W log p + c."""
        return affine(_log_p(logits), self.weight, self.bias).to(logits.dtype)


def _ridged(x: Tensor, labels: Tensor, strength: float, start: Affine | None) -> Affine:
    n, k = x.shape
    return fit_affine(x, labels, torch.eye(k, dtype=torch.float64), *shrinkage(n, k, strength), start)


def _odir(
    x: Tensor, labels: Tensor, penalty: float | None, name: str, start: Affine | None = None
) -> tuple[Affine, float]:
    """Fit a matrix with off-diagonal and intercept regularization (Kull et al. 2019, section 3)."""
    n, k = x.shape
    if penalty is not None and penalty <= 0:
        raise InputError(f"{name} is never fitted without its penalty, got {penalty}; give one above 0, or None")
    eye = torch.eye(k, dtype=torch.float64)

    def fit(rows: Tensor, strength: float, start: Affine | None, tolerance: float) -> Affine:
        ridge = (strength / (k * (k - 1))) * (1 - eye) + RIDGE * 1e-3 * eye
        return fit_affine(x[rows], labels[rows], eye, ridge, strength / k, start, tolerance)

    everything = torch.arange(n)
    if penalty is None:
        fold = folds_of(x, labels, min(3, n))
        found: list[Affine | None] = [None] * (int(fold.max()) + 1 if n > 1 else 0)
        penalty, least, worse = PATH[0], math.inf, 0
        for strength in PATH:
            loss = 0.0
            for i, before in enumerate(found):  # each starts from the stronger one before it
                one = found[i] = fit((fold != i).nonzero()[:, 0], strength, before, 1e-5)
                held = fold == i
                s = one(x[held]).log_softmax(-1)
                loss -= float(s.gather(1, labels[held, None]).sum())
            penalty, least, worse = (strength, loss, 0) if loss < least else (penalty, least, worse + 1)
            if worse == 2:  # weaker ones only overfit more, at ever more steps
                break
    return fit(everything, penalty, start, 1e-6), penalty
