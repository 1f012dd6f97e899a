"""What is more than one number: an interval, the evidence of a test, a curve."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that holds the truth with the stated probability."""

    value: float
    low: float
    high: float
    level: float = 0.90

    def __contains__(self, truth: float) -> bool:
        return self.low <= truth <= self.high

    def __str__(self) -> str:
        return f"{self.value:.4f} [{self.low:.4f}, {self.high:.4f}]"


@dataclass(frozen=True)
class Evidence:
    """A test statistic, and how often a perfectly calibrated model would show one as large."""

    statistic: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.statistic:.4f} (p = {self.p_value:.3g})"


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of a curve, with a band where it has one."""

    x: Tensor  # (g) float64
    y: Tensor  # (g) float64
    low: Tensor | None = None
    high: Tensor | None = None
    weight: Tensor | None = None  # (g) share of the examples that each point stands for


def quantile(level: float) -> float:
    """Standard normal quantile of a two-sided interval: 1.645 for 0.90."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))


def mean_interval(values: Tensor, weights: Tensor | None, level: float) -> Interval:
    """Normal interval of a mean over independent examples, each counted as often as its weight says.

    Unbounded for a single example.
    """
    v = values.double()
    w = torch.ones_like(v) if weights is None else weights.to(v)
    n = float(w.sum())
    mean = float((w * v).sum()) / n
    if n <= 1 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, level)
    half = quantile(level) * math.sqrt(float((w * (v - mean).square()).sum()) / (n * (n - 1)))
    return Interval(mean, mean - half, mean + half, level)


def wilson(p: float, n: float, level: float) -> Interval:
    """Wilson's score interval of a share p of n (1927), which holds near 0 and 1 too."""
    z = quantile(level)
    center, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, (center - half) / (1 + z * z / n)), min(1.0, (center + half) / (1 + z * z / n)), level)


def share_interval(hits: Tensor, weights: Tensor | None, level: float) -> Interval:
    """Return a share with Wilson's interval."""
    hits = hits.double()
    w = torch.ones_like(hits) if weights is None else weights.to(hits)
    n = float(w.sum())
    return wilson(float((w * hits).sum()) / n, n, level) if n else Interval(math.nan, 0.0, 1.0, level)


def signed_root(x: float) -> float:
    """Return the root of |x|, with the sign of x."""
    return math.copysign(math.sqrt(abs(x)), x)
