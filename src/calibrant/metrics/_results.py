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


def student(level: float, degrees: int) -> float:
    """Quantile of Student's t of a two-sided interval: 1.677 for 0.90 and 49 degrees of freedom."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, (1 + level) / 2))


def mean_interval(values: Tensor, weights: Tensor | None, level: float, clusters: Tensor | None = None) -> Interval:
    """Normal interval of a mean over independent examples, each counted as often as its weight says.

    With `clusters` only these are independent: see `mean_of_clusters`. Unbounded for a single example, or cluster.
    """
    v = values.double()
    w = torch.ones_like(v) if weights is None else weights.to(v)
    if clusters is not None:
        return mean_of_clusters(totals(w, clusters), totals(w * v, clusters), level)
    n = float(w.sum())
    mean = float((w * v).sum()) / n
    if n <= 1 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, level)
    half = quantile(level) * math.sqrt(float((w * (v - mean).square()).sum()) / (n * (n - 1)))
    return Interval(mean, mean - half, mean + half, level)


def wilson(p: float, n: float, level: float) -> Interval:
    """Wilson's score interval of a share p of n (1927), which holds near 0 and 1 too."""
    return _score_interval(p, n, level, quantile(level))


def _score_interval(p: float, n: float, level: float, z: float) -> Interval:
    center, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, (center - half) / (1 + z * z / n)), min(1.0, (center + half) / (1 + z * z / n)), level)


def share_interval(hits: Tensor, weights: Tensor | None, level: float, clusters: Tensor | None = None) -> Interval:
    """Return a share with Wilson's interval, of dependent examples that of `share_of_clusters`."""
    hits = hits.double()
    w = torch.ones_like(hits) if weights is None else weights.to(hits)
    n = float(w.sum())
    if clusters is not None and n:
        return share_of_clusters(totals(w, clusters), totals(w * hits, clusters), level)
    return wilson(float((w * hits).sum()) / n, n, level) if n else Interval(math.nan, 0.0, 1.0, level)


# Clusters, by their totals


def totals(values: Tensor, clusters: Tensor) -> Tensor:
    """Sum of the values over every cluster; 0 for a number that is none."""
    return torch.bincount(clusters, values.double())


def mean_of_clusters(mass: Tensor, total: Tensor, level: float) -> Interval:
    r"""Interval of a mean over examples that depend on each other within clusters, from the clusters' totals.

    The variance is $\frac{m}{m-1} \sum_g (s_g - \bar x n_g)^2 / n^2$ over m clusters (Liang & Zeger 1986), the quantile
    Student's with m - 1 degrees of freedom. Unbounded for a single cluster.
    """
    mean, error, clusters = _mean_error(mass, total)
    if clusters < 2 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, level)
    half = student(level, clusters - 1) * error
    return Interval(mean, mean - half, mean + half, level)


def share_of_clusters(mass: Tensor, total: Tensor, level: float) -> Interval:
    """Wilson's interval for as many examples as would tell the share that surely, were they independent.

    That is what there are, divided by the design effect, with Student's t for the normal quantile (Korn & Graubard
    1998). A share of 0 or 1, which does not say how alike the examples of a cluster are, counts clusters.
    """
    p, error, clusters = _mean_error(mass, total)
    n = float(mass.sum())
    if clusters < 2:
        return Interval(p, 0.0, 1.0, level)
    if 0 < p < 1:
        n = min(n, p * (1 - p) / max(error**2, 1e-300))
    else:
        n = n**2 / float(mass.square().sum())
    return _score_interval(p, n, level, student(level, clusters - 1))


def _mean_error(mass: Tensor, total: Tensor) -> tuple[float, float, int]:
    """Mean, its standard error, and the number of clusters."""
    mass, total = mass[mass > 0], total[mass > 0]
    n, clusters = mass.sum(), len(mass)
    mean = total.sum() / n
    square = (total - mean * mass).square().sum() / n**2
    return float(mean), math.sqrt(float(square) * clusters / max(clusters - 1, 1)), clusters


def signed_root(x: float) -> float:
    """Return the root of |x|, with the sign of x."""
    return math.copysign(math.sqrt(abs(x)), x)
