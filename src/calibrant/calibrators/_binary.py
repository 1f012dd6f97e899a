"""Two classes: logistic regressions on functions of the one score s = z_1 - z_0."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._solve import Certificate, Status, minimize
from calibrant._types import InputError, Labels, Logits
from calibrant.calibrators._certify import certify
from calibrant.predictions import Predictions

__all__ = ["Beta", "Platt", "Quadratic"]

FLOOR = -87.0  # log of the smallest float32: lower log-probabilities count as this one
RIDGE = 1e-6  # on slopes at unit scale: keeps separable data finite, at no visible cost


@dataclass(frozen=True, eq=False)
class Platt:
    r"""Platt scaling, $\sigma(a s + b)$ of the score $s = z_1 - z_0$ (Platt 1999).

    Fitted to Platt's smoothed targets, $(n_1 + 1) / (n_1 + 2)$ for class 1 and $1 / (n_0 + 2)$ for class 0, as
    scikit-learn's sigmoid method is: finite even where a threshold separates the classes. a >= 0 unless
    `monotone=False`. Raises `InputError` for other than 2 classes, as do all maps of this family.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Platt(number(2.0), number(1.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-3.5000,  3.5000]])
    """

    slope: Tensor  # () float64
    bias: Tensor  # () float64
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels, *, monotone: bool = True) -> "Platt":
        """Find a and b."""
        logits, labels = Predictions(logits, labels)
        s = _score(logits, "Platt")
        unit = _unit(s)
        (a, b), gradient, evaluations, bound = _logistic((s / unit)[:, None], _platt_targets(labels), monotone)
        return certify(cls(a / unit, b), logits, labels, bound, gradient=gradient, iterations=evaluations)

    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        return _pair(self.slope * _score(logits, "Platt") + self.bias, logits)


@dataclass(frozen=True, eq=False)
class Beta:
    r"""Beta calibration, $\sigma(a \log p - b \log(1-p) + c)$ (Kull et al. 2017, eq. 4).

    $p = \sigma(s)$ of the score $s = z_1 - z_0$. a, b >= 0 unless `monotone=False`. Platt scaling where a = b. log p
    below -87 counts as -87.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Beta(number(1.0), number(1.0), number(0.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-1.5000,  1.5000]])
    """

    a: Tensor  # () float64
    b: Tensor  # () float64
    c: Tensor  # () float64
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels, *, monotone: bool = True) -> "Beta":
        """Find a, b and c of least NLL."""
        logits, labels = Predictions(logits, labels)
        features = _log_odds_parts(_score(logits, "Beta"))
        (a, b, c), gradient, evaluations, bound = _logistic(features, labels.double(), monotone)
        return certify(cls(a, b, c), logits, labels, bound, gradient=gradient, iterations=evaluations)

    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        log_p, minus_log_q = _log_odds_parts(_score(logits, "Beta")).unbind(1)
        return _pair(self.a * log_p + self.b * minus_log_q + self.c, logits)


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

    ends: Tensor  # (2) float64, least and greatest s
    slopes: Tensor  # (2) float64, there
    bias: Tensor  # () float64, the value at the lower end
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels, *, monotone: bool = True) -> "Quadratic":
        """Find the parabola of least NLL."""
        logits, labels = Predictions(logits, labels)
        s = _score(logits, "Quadratic")
        unit = _unit(s)
        ends = torch.stack([s.min(), s.max()])
        features = _parabola(s, ends) / unit
        center = features.mean(0)
        (d0, d1, c), gradient, evaluations, bound = _logistic(features - center, labels.double(), monotone)
        slopes = torch.stack([d0, d1])
        fitted = cls(ends, slopes / unit, c - slopes @ center)
        return certify(fitted, logits, labels, bound, gradient=gradient, iterations=evaluations)

    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        return _pair(_parabola(_score(logits, "Quadratic"), self.ends) @ self.slopes + self.bias, logits)


def _score(logits: Tensor, name: str) -> Tensor:
    if logits.shape[1] != 2:
        raise InputError(f"{name} is for 2 classes, got {logits.shape[1]}; StructuredMatrix is for more")
    z = logits.double()
    s = z[:, 1] - z[:, 0]
    largest = 1e300
    return s.clamp(-largest, largest)


def _unit(s: Tensor) -> Tensor:
    """Return the root mean square score among those a finite logit can have, or 1."""
    usual = s[s.abs() < 1e299]
    unit = usual.square().mean().sqrt() if len(usual) else s.new_zeros(())
    return unit if bool(unit > 0) else torch.ones_like(unit)


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


def _platt_targets(labels: Tensor) -> Tensor:
    ones = labels.sum().double()
    zeros = len(labels) - ones
    return torch.where(labels == 1, (ones + 1) / (ones + 2), 1 / (zeros + 2))


def _logistic(features: Tensor, targets: Tensor, monotone: bool) -> tuple[Tensor, float, int, Status]:
    """Minimize the cross-entropy of sigmoid(features @ w + c); with `monotone` all of w is nonnegative."""
    n, m = features.shape
    x = torch.cat([features.clamp(-1e6, 1e6), torch.ones(n, 1, dtype=torch.float64)], 1)
    ridge = torch.full((m + 1,), RIDGE, dtype=torch.float64)

    def f(w: Tensor) -> tuple[float, Tensor]:
        s = x @ w
        loss = torch.nn.functional.softplus(s) - targets * s
        gradient = x.mT @ (s.sigmoid() - targets) / n
        return float(loss.mean() + (ridge * w.square()).sum()), gradient + 2 * ridge * w

    start = torch.ones(m + 1, dtype=torch.float64)
    start[m] = 0
    lower = torch.full((m + 1,), 0.0 if monotone else -torch.inf, dtype=torch.float64)
    lower[m] = -torch.inf
    w, _, gradient, evaluations = minimize(f, start, lower=lower, tolerance=1e-8)
    at_bound = monotone and bool((w[:m] <= 0).any())
    return w, gradient, evaluations, "at bound" if at_bound else "converged"
