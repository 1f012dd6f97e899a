"""Two classes: logistic regressions on functions of the one score s = z_1 - z_0."""

import math
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from calibrant._solve import Certificate, Minimum, newton
from calibrant.calibrators._affine import FLOOR, RIDGE
from calibrant.calibrators._apply import its_classes
from calibrant.calibrators._fit import Solution, fits, mean_of
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
    found = _logistic((s / unit)[:, None], _platt_targets(p), p, monotone, start)
    a, b = found.x
    return _solution(Platt(a / unit, b, limit), found, monotone, slack=2 / p.mass)


def beta(p: Predictions, start: Tensor | None = None, *, monotone: bool = True) -> Solution[Beta]:
    """Find a, b and c of least NLL, from a solution to begin with."""
    limit = _limit(_score(p.logits, "Beta"))
    features = _log_odds_parts(_score(p.logits, "Beta", limit))
    found = _logistic(features, p.labels.double(), p, monotone, start)
    a, b, c = found.x
    return _solution(Beta(a, b, c, limit), found, monotone)


def quadratic(p: Predictions, start: Tensor | None = None, *, monotone: bool = True) -> Solution[Quadratic]:
    """Find the parabola of least NLL, from a solution to begin with."""
    limit = _limit(_score(p.logits, "Quadratic"))
    s = _score(p.logits, "Quadratic", limit)
    unit = _unit(s, p)
    ends = torch.stack([s.min(), s.max()])
    features = _parabola(s, ends) / unit
    center = mean_of(features, p)
    found = _logistic(features - center, p.labels.double(), p, monotone, start)
    slopes, c = found.x[:2], found.x[2]
    return _solution(Quadratic(ends, slopes / unit.cpu(), c - slopes @ center.cpu(), limit), found, monotone)


def _score(logits: Tensor, name: str, limit: Tensor = UNLIMITED) -> Tensor:
    if logits.shape[1] != 2:
        raise InputError(f"{name} is for 2 classes, got {logits.shape[1]}; StructuredMatrix is for more")
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
    """Return the root mean square score, or 1."""
    unit = mean_of(s.square(), p).sqrt()
    return unit if 0 < float(unit) < math.inf else torch.ones_like(unit)


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


def _logistic(
    features: Tensor, targets: Tensor, p: Predictions, monotone: bool, start: Tensor | None = None
) -> Minimum:
    """Minimize the cross-entropy of sigmoid(features @ w + c); with `monotone` all of w is nonnegative."""
    n, m = features.shape
    x = torch.cat([features, features.new_ones(n, 1)], 1)
    ridge = 2 * RIDGE * torch.eye(m + 1, dtype=torch.float64)
    each = features.new_full((n,), 1 / p.mass) if p.weights is None else p.weights / p.mass

    def f(w: Tensor) -> tuple[float, Tensor, Tensor]:
        s = x @ w.to(x.device)
        loss = torch.nn.functional.softplus(s, threshold=40.0) - targets * s
        q = s.sigmoid()
        gradient, hessian = (each * (q - targets)) @ x, (x.mT * (each * q * (1 - q))) @ x
        return float(each @ loss) + RIDGE * float(w @ w), gradient.cpu() + ridge @ w, hessian.cpu() + ridge

    if start is None:
        start = torch.ones(m + 1, dtype=torch.float64)
        start[m] = 0
    lower = torch.full((m + 1,), 0.0 if monotone else -torch.inf, dtype=torch.float64)
    lower[m] = -torch.inf
    return newton(f, start, lower=lower, tolerance=1e-8)


def _solution(fitted: C, found: Minimum, monotone: bool, slack: float = 0.0) -> Solution[C]:
    status = "at bound" if monotone and bool((found.x[:-1] <= 0).any()) else "converged"
    return Solution(fitted, status, found.gradient, found.evaluations, slack=slack, clips=True, search=found.x)
