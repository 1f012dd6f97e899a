"""Two classes: logistic regressions on functions of the one score s = z_1 - z_0."""

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from calibrant._solve import Certificate, Minimum, decrement, newton
from calibrant.calibrators._affine import FLOOR, RIDGE
from calibrant.calibrators._apply import its_classes
from calibrant.calibrators._fit import Solution, fits, mean_of, median_of
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.types import InputError, Logits, Number, Points, PositiveNumber

__all__ = ["Beta", "Platt", "Quadratic"]

C = TypeVar("C")
LARGEST = 1e300  # scores beyond are infinite
UNLIMITED = torch.tensor(LARGEST, dtype=torch.float64)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Platt:
    r"""Platt scaling, $\sigma(a s + b)$ of the score $s = z_1 - z_0$ (Platt 1999).

    Fitted to Platt's smoothed targets, $(n_1 + 1) / (n_1 + 2)$ for class 1 and $1 / (n_0 + 2)$ for class 0, as
    scikit-learn's sigmoid method is: finite even where a threshold separates the classes, at a cost of at most 2/n
    nats there. a >= 0 unless `monotone=False`. A probability of exactly 0 or 1 counts as the most extreme one that
    is not. Raises `InputError` for other than 2 classes, as do all maps of this family.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Platt(number(2.0), number(1.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-3.5000,  3.5000]])
    """

    reported: ClassVar[tuple[str, ...]] = ("slope", "bias")  # in the brackets of a table

    slope: Number  # float64
    bias: Number  # float64
    limit: PositiveNumber = UNLIMITED  # float64, what an infinite score counts as, and the most any score does
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Platt":
        """Find a and b."""
        return platt(p, monotone=monotone).certified(p)

    @its_classes(lambda _: 2)
    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        return _pair(self.slope * _score(logits, "Platt", self.limit) + self.bias, logits)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Beta:
    r"""Beta calibration, $\sigma(a \log p - b \log(1-p) + c)$ (Kull et al. 2017, eq. 4).

    $p = \sigma(s)$ of the score $s = z_1 - z_0$. a, b >= 0 unless `monotone=False`. Platt scaling where a = b. log p
    below -87 counts as -87, and a probability of exactly 0 or 1 as the most extreme one that is not.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Beta(number(1.0), number(1.0), number(0.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-1.5000,  1.5000]])
    """

    reported: ClassVar[tuple[str, ...]] = ("a", "b", "c")  # in the brackets of a table

    a: Number  # float64
    b: Number  # float64
    c: Number  # float64
    limit: PositiveNumber = UNLIMITED  # float64, as in `Platt`
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Beta":
        """Find a, b and c of least NLL."""
        return beta(p, monotone=monotone).certified(p)

    @its_classes(lambda _: 2)
    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        log_p, minus_log_q = _log_odds_parts(_score(logits, "Beta", self.limit)).unbind(1)
        return _pair(self.a * log_p + self.b * minus_log_q + self.c, logits)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Quadratic:
    r"""Quadratic scaling, $\sigma(a + b s + c s^2)$ of the score $s = z_1 - z_0$ (probmetrics; Berta et al. 2025).

    Held by its slopes at the two ends of the calibration data, between which the slope of a parabola is linear:
    nonnegative slopes at the ends make it increasing, which is asked for unless `monotone=False`. Beyond the data it
    goes on straight, where the parabola itself would turn around.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Quadratic(number([0.0, 2.0]), number([0.0, 2.0]), number(0.0))(torch.tensor([[0.0, 2.0], [0.0, 3.0]]))
    tensor([[-1.,  1.],
            [-2.,  2.]])
    """

    ends: Points  # (2) float64, least and greatest s
    slopes: Points  # (2) float64, there
    bias: Number  # float64, the value at the lower end
    limit: PositiveNumber = UNLIMITED  # float64, as in `Platt`
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Quadratic":
        """Find the parabola of least NLL."""
        return quadratic(p, monotone=monotone).certified(p)

    @its_classes(lambda _: 2)
    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        return _pair(_parabola(_score(logits, "Quadratic", self.limit), self.ends) @ self.slopes + self.bias, logits)


def platt(p: Predictions, start: Tensor | None = None, *, monotone: bool = True) -> Solution[Platt]:
    """Find a and b, from a solution to begin with."""
    limit = _limit(_score(p.logits, "Platt"))
    s = _score(p.logits, "Platt", limit)
    unit = _unit(s, p)
    problem = _Logistic.of(s[:, None], _platt_targets(p), p, torch.stack([1 / unit, 0 * unit]))
    found = problem.solve(monotone, start)
    a, b = found.x
    return _solution(Platt(a, b, limit), found, monotone, slack=2 / p.mass)


def beta(p: Predictions, start: Tensor | None = None, *, monotone: bool = True) -> Solution[Beta]:
    """Find a, b and c of least NLL, from a solution to begin with."""
    limit = _limit(_score(p.logits, "Beta"))
    s = _score(p.logits, "Beta", limit)
    unit = _unit(s, p)
    problem = _Logistic.of(_log_odds_parts(s), p.labels.double(), p, torch.stack([1 / unit, 1 / unit, 0 * unit]))
    found = problem.solve(monotone, start)
    a, b, c = found.x
    return _solution(Beta(a, b, c, limit), found, monotone)


def quadratic(p: Predictions, start: Tensor | None = None, *, monotone: bool = True) -> Solution[Quadratic]:
    """Find the parabola of least NLL, from a solution to begin with."""
    limit = _limit(_score(p.logits, "Quadratic"))
    s = _score(p.logits, "Quadratic", limit)
    unit = _unit(s, p)
    ends = torch.stack([s.min(), s.max()])
    reference = torch.stack([1 / unit, 1 / unit, ends[0] / unit])
    found = _Logistic.of(_parabola(s, ends), p.labels.double(), p, reference).solve(monotone, start)
    return _solution(Quadratic(ends, found.x[:2], found.x[2], limit), found, monotone)


def _score(logits: Tensor, name: str, limit: Tensor = UNLIMITED) -> Tensor:
    if logits.shape[1] != 2:
        raise InputError(
            f"{name} is for 2 classes, got {logits.shape[1]}; StructuredMatrix is for more", code="num_classes"
        )
    z = logits.double()
    return (z[:, 1] - z[:, 0]).clamp(-limit, limit)


def _limit(s: Tensor) -> Tensor:
    """Return the largest finite score where some are infinite, 1 if none is finite, and else no limit.

    A probability of exactly 0 or 1 is taken for the most extreme one that is not: a forest's 0 means that none of its
    trees said so, and one wrong label at infinity would undo any slope.
    """
    usual = s[s.abs() < LARGEST].abs()
    if len(usual) == len(s):
        return UNLIMITED.to(s)
    return usual.max() if bool((usual > 0).any()) else torch.ones_like(UNLIMITED).to(s)


def _unit(s: Tensor, p: Predictions) -> Tensor:
    """Return the median of the positive absolute scores, or 1; a few outliers cannot own it."""
    size = s.abs()
    return median_of(size[size > 0], None if p.weights is None else p.weights[size > 0])


def _pair(s: Tensor, like: Tensor) -> Tensor:
    return torch.stack([-s / 2, s / 2], -1).to(like.dtype)


def _log_odds_parts(s: Tensor) -> Tensor:
    log_p = torch.nn.functional.logsigmoid(s).clamp_min(FLOOR)
    log_q = torch.nn.functional.logsigmoid(-s).clamp_min(FLOOR)
    return torch.stack([log_p, -log_q], 1)


def _parabola(s: Tensor, ends: Tensor) -> Tensor:
    """Return what the slopes at the ends multiply, straight outside them."""
    low, high = ends
    length = (high - low).where(high > low, 1e-300)
    inside = (s.clamp(low, high) - low) / length
    rising = length * inside.square() / 2
    return torch.stack([length * inside - rising - (low - s).relu(), rising + (s - high).relu()], 1)


def _platt_targets(p: Predictions) -> Tensor:
    ones = mean_of(p.labels.double(), p) * p.mass
    return torch.where(p.labels == 1, (ones + 1) / (ones + 2), 1 / (p.mass - ones + 2))


@dataclass(frozen=True, eq=False)
class _Logistic:
    r"""The cross-entropy of sigmoid(features @ w + c), in coordinates that suit it, with a ridge.

    The ridge is 1e-6 of the mean square log-odds where the reference is uncertain: it does not depend on coordinates,
    and outliers, of which the reference is certain, have no part in it.
    """

    x: Tensor  # (m+1 n) features less their center, over their scale, and 1
    targets: Tensor
    each: Tensor  # (n) weights that sum to 1
    ridge: Tensor  # (m+1 m+1)
    to_raw: Tensor  # (m+1 m+1), makes (w, c) of the coordinates
    reference: Tensor  # (m+1) in the coordinates

    @classmethod
    def of(cls, features: Tensor, targets: Tensor, p: Predictions, reference: Tensor) -> "_Logistic":
        """Center and scale the features by the curvature at a reference (w, c) that is not saturated."""
        n, m = features.shape
        each = features.new_full((n,), 1 / p.mass) if p.weights is None else p.weights / p.mass
        q = (features @ reference[:m] + reference[m]).sigmoid()
        curvature = each * 4 * q * (1 - q)
        total = curvature.sum().clamp_min(1e-300)
        center = (curvature @ features) / total
        spread = ((curvature @ (features - center).square()) / total).sqrt()
        varies = spread > 1e-12 * center.abs()
        spread = spread.where(varies, 1.0)
        x = torch.cat([((features - center) / spread).where(varies, 0.0), features.new_ones(n, 1)], 1).mT.contiguous()
        to_raw = torch.eye(m + 1, dtype=torch.float64)
        to_raw[:m, :m] = (1 / spread).diag().cpu()
        to_raw[m, :m] = (-center / spread).cpu()
        inside = torch.linalg.solve(to_raw, reference.cpu())
        return cls(x, targets, each, (2 * RIDGE * (x * curvature) @ x.mT).cpu(), to_raw, inside)

    def __call__(self, t: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the penalized loss, its gradient and its Hessian."""
        s = t.to(self.x.device) @ self.x
        loss = torch.nn.functional.softplus(s, threshold=40.0) - self.targets * s
        q = s.sigmoid()
        gradient, hessian = self.x @ (self.each * (q - self.targets)), (self.x * (self.each * q * (1 - q))) @ self.x.mT
        pull = self.ridge @ t
        return float(self.each @ loss) + float(t @ pull) / 2, gradient.cpu() + pull, hessian.cpu() + self.ridge

    def solve(self, monotone: bool, start: Tensor | None) -> Minimum:
        """Find (w, c); with `monotone` all of w is nonnegative."""
        m = len(self.ridge) - 1
        begin = self.reference if start is None else torch.linalg.solve(self.to_raw, start)
        lower = torch.full((m + 1,), 0.0 if monotone else -torch.inf, dtype=torch.float64)
        lower[m] = -torch.inf
        found = newton(self, begin, lower=lower)
        return replace(found, x=self.to_raw @ found.x, gap=found.gap + self._ridge_cost(found, lower))

    def _ridge_cost(self, found: Minimum, lower: Tensor) -> float:
        """Estimate by how much the ridge keeps the loss above its least value; at most the loss itself."""
        gradient, hessian = found.derivatives
        slope = gradient - self.ridge @ found.x
        free = (found.x > lower) | (slope < 0)
        cost = decrement(slope[free], (hessian - self.ridge)[free][:, free])
        return max(0.0, min(cost, found.value))


def _solution(fitted: C, found: Minimum, monotone: bool, slack: float = 0.0) -> Solution[C]:
    status = "at bound" if monotone and bool((found.x[:-1] <= 0).any()) else "converged"
    facts = found.gradient, found.evaluations
    return Solution(fitted, status, *facts, slack=slack, clips=True, search=found.x, gap=found.gap)
