"""What is more than one number: an interval, the evidence of a test, a curve."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

PSEUDO_EXAMPLES = 2  # examples, as true probabilities would give them, that join those of an interval
MAX_ROUNDING_VARIANCE = 1e-11  # variance that rounding may leave of equal values in a `Summary`


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


def normal_quantile(level: float) -> float:
    """Standard normal quantile of a two-sided interval: 1.645 for 0.90."""
    return float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))


def student_quantile(level: float, degrees: float | int) -> float:
    """Quantile of Student's t of a two-sided interval: 1.677 for 0.90 and 49 degrees of freedom; inf without any."""
    if degrees <= 0:
        return math.inf
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, (1 + level) / 2))


def wilson(p: float, n: float, level: float) -> Interval:
    """Wilson's score interval of a share p of n (1927), which scripts of pages compute too."""
    z = normal_quantile(level)
    center, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, (center - half) / (1 + z * z / n)), min(1.0, (center + half) / (1 + z * z / n)), level)


class ExpectedScore(NamedTuple):
    """Range of the mean of a score, and the mean and variance of the score if the probabilities are true."""

    low: float
    high: float
    mean: float
    variance: float


EXPECTED_SHARE = ExpectedScore(0.0, 1.0, 0.5, 0.25)  # of a score of 0 or 1, for which any mean gives the same interval


@dataclass(frozen=True)
class Sample:
    """Mean of some values, and how surely it is known."""

    n: float  # examples, each counted as often as its weight says
    mean: float
    variance: float  # mean squared distance to the mean
    error: float  # standard error of the mean
    degrees: float  # of freedom: one less than there are independent examples, or clusters of equal mass

    @classmethod
    def from_values(cls, values: Tensor, weights: Tensor | None = None, clusters: Tensor | None = None) -> "Sample":
        """Sample of independent examples, or of clusters whose examples may depend on each other."""
        v = values.double()
        if weights is None and clusters is None and len(v):
            mean = v.mean()
            deviations = v - mean
            return cls.from_sums(float(len(v)), float(mean), float(deviations @ deviations))
        w = torch.ones_like(v) if weights is None else weights.to(v)
        n = float(w.sum())
        mean = float((w * v).sum()) / n if n else math.nan
        parts = None if clusters is None else (cluster_totals(w, clusters), cluster_totals(w * v, clusters))
        return cls.from_sums(n, mean, float((w * (v - mean).square()).sum()), parts)

    @classmethod
    def from_sums(cls, n: float, mean: float, square: float, parts: tuple[Tensor, Tensor] | None = None) -> "Sample":
        """Sample from the sum of squared distances to the mean; `parts` are the masses and sums of clusters."""
        variance = max(square, 0.0) / n if n else 0.0
        if parts is not None and n:
            _, error, degrees = cluster_mean_error(*parts)
            return cls(n, mean, variance, error, degrees)
        return cls(n, mean, variance, math.sqrt(variance / (n - 1)) if n > 1 else math.inf, n - 1)

    @property
    def size(self) -> float:
        """Number of independent examples of this variance that tell the mean as surely.

        Equal values do not say how alike the examples of a cluster are: then clusters count.
        """
        if self.variance < MAX_ROUNDING_VARIANCE or self.degrees <= 0:
            return self.degrees + 1
        return min(self.n, 1 + self.variance / max(self.error**2, 1e-300))

    def normal_interval(self, level: float) -> Interval:
        """Interval of the mean of values without known bounds, by Student's t."""
        if self.degrees <= 0 or not math.isfinite(self.mean):
            return Interval(self.mean, -math.inf, math.inf, level)
        half = student_quantile(level, self.degrees) * self.error
        return Interval(self.mean, self.mean - half, self.mean + half, level)

    def bounded_interval(self, expected: ExpectedScore, level: float) -> Interval:
        """Interval of the mean of values with known bounds, by `mean_limits`."""
        if math.isinf(self.mean) or math.isinf(self.variance):
            return Interval(self.mean, -math.inf, math.inf, level)
        if self.degrees <= 0 or math.isnan(self.mean):
            return Interval(self.mean, expected.low, expected.high, level)
        limits = mean_limits(self.size, self.mean, self.variance, expected, student_quantile(level, self.degrees))
        low, high = (float(end) for end in limits)
        return Interval(self.mean, min(low, self.mean), max(high, self.mean), level)


def mean_limits(n: Any, mean: Any, variance: Any, expected: ExpectedScore, t: Any) -> tuple[Any, Any]:
    r"""Limits of the mean of n values in a known range, which neither collapse nor leave the range; numbers or arrays.

    A share s has the variance $s (1 - s) / n$. A mean at the share $s = (m - low) / (high - low)$ of its range with
    the variance $v / n$, on the same scale, is as surely known as a share s of $n r$ examples, where
    $r = s (1 - s) / v$. Its limits are those of this share by the mid-p rule (Lancaster 1961), at the normal tail of
    Student's quantile t. For r alone two pseudo-examples with the mean and the variance that true probabilities have
    join the sample, as two of each kind join a share's in Agresti & Coull (1998): equal values are no certainty.

    As the upper bound grows, the limits become those of a gamma distribution (Fay & Feuer 1997). An infinite bound is
    replaced by a finite one that is large enough for that.
    """
    from scipy.special import ndtr  # slow to import

    mixed = n + PSEUDO_EXAMPLES
    center = (n * mean + PSEUDO_EXAMPLES * expected.mean) / mixed
    spread = (
        n * variance + PSEUDO_EXAMPLES * expected.variance + n * PSEUDO_EXAMPLES / mixed * (mean - expected.mean) ** 2
    ) / mixed
    low, width = expected.low, expected.high - expected.low
    excess = np.maximum(center - low, 2.0**-53)  # less is rounding
    width = np.where(np.isinf(width), 1e3 * (excess + spread / excess), width)
    safe_width = np.where(width > 0, width, 1.0)  # a width of 0 leaves nothing to be known
    s, center_share = (np.clip((x - low) / safe_width, 0.0, 1.0) for x in (mean, center))
    v = spread / safe_width**2
    r = np.where(v > 0, center_share * (1 - center_share) / np.where(v > 0, v, 1.0), 1.0)
    lower, upper = share_limits(s, n * r, ndtr(-t))
    return low + width * lower, low + width * upper


def share_limits(share: Any, n: Any, tail: Any) -> tuple[Any, Any]:
    """Mid-p limits of a share of n, neither a whole number: the probabilities p at which half of what is seen and all
    beyond it have the probability `tail`, by halving; numbers or arrays.
    """
    from scipy.special import betainc  # slow to import

    least = 1e-300  # in place of 0, where the function is not defined
    hits, misses = np.maximum(n * share, least), np.maximum(n * (1 - share), least)
    low, high = np.array([0.0 * hits, share + 0.0 * hits]), np.array([share + 0.0 * hits, 0.0 * hits + 1])
    aim = 2 * np.array([tail + 0.0 * hits, 1 - tail + 0.0 * hits])
    for _ in range(60):
        p = (low + high) / 2
        under = betainc(hits, misses + 1, p) + betainc(hits + 1, misses, p) < aim
        low, high = np.where(under, p, low), np.where(under, high, p)
    return low[0], high[1]


def square_interval(value: float, root_variance: float, spread: float, t: float, level: float) -> Interval:
    r"""Interval of a square $\theta$ in [0, 1] from an unbiased estimate: valid at 0 and away from it.

    It holds those with $(\hat\theta - \theta)^2 \le t^2 (4 \lambda \theta + v)$: lambda is the variance `along` the
    root, v the `spread` that remains at 0.
    """
    center = value + 2 * t**2 * root_variance
    half = t * math.sqrt(max(4 * root_variance * value + 4 * t**2 * root_variance**2 + spread, 0.0))
    return Interval(value, max(center - half, 0.0), min(max(center + half, 0.0), 1.0), level)


def mean_interval(values: Tensor, weights: Tensor | None, level: float, clusters: Tensor | None = None) -> Interval:
    """Interval of a mean over independent examples, or clusters, by Student's t; unbounded for a single one."""
    return Sample.from_values(values, weights, clusters).normal_interval(level)


def share_interval(hits: Tensor, weights: Tensor | None, level: float, clusters: Tensor | None = None) -> Interval:
    """Interval of the share of hits, 0 or 1, over independent examples, or clusters, by `mean_limits`."""
    return Sample.from_values(hits, weights, clusters).bounded_interval(EXPECTED_SHARE, level)


def cluster_share_interval(mass: Tensor, total: Tensor, level: float) -> Interval:
    """Interval of a share from the clusters' masses and hits."""
    n = float(mass.sum())
    p = float(total.sum()) / n if n else math.nan
    return Sample.from_sums(n, p, n * p * (1 - p), (mass, total)).bounded_interval(EXPECTED_SHARE, level)


# Clusters, by their totals


def cluster_totals(values: Tensor, clusters: Tensor) -> Tensor:
    """Sum of the values over every cluster; 0 for a number that is none."""
    return torch.bincount(clusters, values.double())


def cluster_mean_error(mass: Tensor, total: Tensor) -> tuple[float, float, float]:
    r"""Mean, its standard error by the jackknife over clusters, and the degrees of freedom.

    Without cluster g of mass n_g and sum s_g the mean moves by $(s_g - \bar x n_g) / (n - n_g)$. There is one degree
    less than the $n^2 / \sum n_g^2$ clusters of equal mass that would tell as much (Kish 1965).
    """
    mass, total = mass[mass > 0], total[mass > 0]
    n, clusters = mass.sum(), len(mass)
    mean = total.sum() / n
    if clusters < 2:
        return float(mean), math.inf, 0.0
    moved = (total - mean * mass) / (n - mass)
    error = math.sqrt(float(moved.square().sum()) * (clusters - 1) / clusters)
    return float(mean), error, float(n**2 / mass.square().sum()) - 1
