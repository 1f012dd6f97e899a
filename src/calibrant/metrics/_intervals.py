"""Results that are more than one number, and the one way to compute an interval of a mean: `Sample`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

PSEUDO_EXAMPLES = 2  # pseudo-examples, as true probabilities would give them, that join those of an interval
MAX_ROUNDING_VARIANCE = 1e-11  # variance of equal values that rounding may leave in a `Summary`
NUM_BISECTIONS = 60


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that holds the truth with probability `level`."""

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
    """A test statistic, and the probability that a perfectly calibrated model shows one as large."""

    statistic: float
    p_value: float

    def __str__(self) -> str:
        return f"{self.statistic:.4f} (p = {self.p_value:.3g})"


@dataclass(frozen=True, eq=False)
class Curve:
    """Points of a curve, and a band if it has one."""

    x: Tensor  # (g) float64
    y: Tensor  # (g) float64
    low: Tensor | None = None
    high: Tensor | None = None
    weight: Tensor | None = None  # (g) share of the examples that each point stands for


def student_quantile(level: float, degrees: float | int) -> float:
    """Return the two-sided quantile of Student's t: 1.677 for 0.90 and 49 degrees of freedom; inf without any."""
    if degrees <= 0:
        return math.inf
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, (1 + level) / 2))


def wilson(p: float, n: float, level: float) -> Interval:
    """Return Wilson's score interval of a share p of n (Wilson 1927), which the scripts of reports compute too."""
    z = float(torch.special.ndtri(torch.tensor((1 + level) / 2, dtype=torch.float64)))
    center, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, (center - half) / (1 + z * z / n)), min(1.0, (center + half) / (1 + z * z / n)), level)


class ExpectedScore(NamedTuple):
    """Range of the mean of a score, and its mean and variance per example if the probabilities are true."""

    low: float
    high: float
    mean: float
    variance: float


EXPECTED_SHARE = ExpectedScore(0.0, 1.0, 0.5, 0.25)  # of scores 0 or 1, whose interval is the same for any mean


@dataclass(frozen=True)
class Sample:
    """The mean of some values, and the precision of that mean."""

    n: float  # total weight
    mean: float
    variance: float  # mean squared distance to the mean
    error: float  # standard error of the mean
    degrees: float  # of freedom: one less than there are independent examples, or clusters of equal weight

    @classmethod
    def from_values(cls, values: Tensor, weights: Tensor | None = None, clusters: Tensor | None = None) -> "Sample":
        """Compute from one value per example; examples of a cluster may depend on each other."""
        v = values.double()
        w = torch.ones_like(v) if weights is None else weights.to(v)
        n = float(w.sum())
        mean = float((w * v).sum()) / n if n else math.nan
        parts = None if clusters is None else (torch.bincount(clusters, w), torch.bincount(clusters, w * v))
        return cls.from_sums(n, mean, float((w * (v - mean).square()).sum()), parts)

    @classmethod
    def from_sums(cls, n: float, mean: float, square: float, clusters: tuple[Tensor, Tensor] | None = None) -> "Sample":
        """Compute from the sum of squared distances to the mean; `clusters` are their weights and sums of values."""
        variance = max(square, 0.0) / n if n else 0.0
        if clusters is not None and n:
            _, error, degrees = cluster_mean_error(*clusters)
            return cls(n, mean, variance, error, degrees)
        return cls(n, mean, variance, math.sqrt(variance / (n - 1)) if n > 1 else math.inf, n - 1)

    @property
    def size(self) -> float:
        """Number of independent examples of the same variance whose mean is as precise.

        Equal values do not show how alike the examples of a cluster are: then clusters count.
        """
        if self.variance < MAX_ROUNDING_VARIANCE or self.degrees <= 0:
            return self.degrees + 1
        return min(self.n, 1 + self.variance / max(self.error**2, 1e-300))

    def normal_interval(self, level: float) -> Interval:
        """Return the interval of a mean of unbounded values by Student's t; unbounded for a single example."""
        half = student_quantile(level, self.degrees) * self.error
        ends = (self.mean - half, self.mean + half) if math.isfinite(self.mean + half) else (-math.inf, math.inf)
        return Interval(self.mean, *ends, level)

    def bounded_interval(self, expected: ExpectedScore, level: float) -> Interval:
        """Return the interval of a mean of values in a known range, by `mean_limits`."""
        if math.isinf(self.mean) or math.isinf(self.variance):
            return Interval(self.mean, -math.inf, math.inf, level)
        if self.degrees <= 0 or math.isnan(self.mean):
            return Interval(self.mean, expected.low, expected.high, level)
        limits = mean_limits(self.size, self.mean, self.variance, expected, student_quantile(level, self.degrees))
        low, high = (float(end) for end in limits)
        return Interval(self.mean, min(low, self.mean), max(high, self.mean), level)


def mean_limits(n: Any, mean: Any, variance: Any, expected: ExpectedScore, t: Any) -> tuple[Any, Any]:
    r"""Return limits of the mean of n values in a known range that neither collapse nor leave the range.

    A share s has the variance $s (1 - s) / n$. A mean at the share $s = (m - low) / (high - low)$ of its range with
    the variance $v / n$, on the same scale, is as precise as a share s of $n r$ examples, $r = s (1 - s) / v$. Its
    limits are those of this share by the mid-p rule (Lancaster 1961), at the normal tail of Student's quantile t. For r
    alone two pseudo-examples with the mean and variance that true probabilities have join the sample, as two of each
    kind join a share in Agresti & Coull (1998): equal values are no certainty.

    As the upper bound grows, the limits become those of a gamma distribution (Fay & Feuer 1997). An infinite bound is
    replaced by a finite one that is large enough for that. All arguments but `expected` may be arrays.
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
    safe_width = np.where(width > 0, width, 1.0)  # a width of 0 gives an interval of width 0
    s, center_share = (np.clip((x - low) / safe_width, 0.0, 1.0) for x in (mean, center))
    v = spread / safe_width**2
    r = np.where(v > 0, center_share * (1 - center_share) / np.where(v > 0, v, 1.0), 1.0)
    lower, upper = share_limits(s, n * r, ndtr(-t))
    return low + width * lower, low + width * upper


def share_limits(share: Any, n: Any, tail: Any) -> tuple[Any, Any]:
    """Return the mid-p limits of a share of n, which need not be a whole number (Lancaster 1961).

    At a limit, half the probability of the observed count plus that of all more extreme counts equals `tail`.
    """
    from scipy.special import betainc  # slow to import

    least = 1e-300  # in place of 0, for which the function is not defined
    hits, misses = np.maximum(n * share, least), np.maximum(n * (1 - share), least)
    unit = np.ones_like(hits)

    def inside(p: np.ndarray) -> np.ndarray:
        low, high = betainc(hits, misses + 1, p) + betainc(hits + 1, misses, p)  # twice the mid-p probabilities
        return np.array([low >= 2 * tail, high < 2 * (1 - tail)])

    low, high = interval_end(inside, np.array([share * unit] * 2), np.array([0 * unit, unit]))
    return low, high


def interval_end(inside: Callable[[Any], Any], start: Any, outer: Any) -> Any:
    """Bisect for the point between `start` and `outer` up to which `inside` holds; of arrays, for each element."""
    for _ in range(NUM_BISECTIONS):
        middle = (start + outer) / 2
        is_inside = inside(middle)
        start, outer = np.where(is_inside, middle, start), np.where(is_inside, outer, middle)
    return outer


def square_interval(value: float, root_variance: float, spread: float, t: float, level: float) -> Interval:
    r"""Return the interval of a square $\theta$ in [0, 1] from an unbiased estimate, valid at 0 and away from it.

    It holds every $\theta$ with $(\hat\theta - \theta)^2 \le t^2 (4 \lambda \theta + v)$: $\lambda$ is `root_variance`,
    the variance of the root, and v the `spread` that remains at 0.
    """
    center = value + 2 * t**2 * root_variance
    half = t * math.sqrt(max(4 * root_variance * value + 4 * t**2 * root_variance**2 + spread, 0.0))
    return Interval(value, max(center - half, 0.0), min(max(center + half, 0.0), 1.0), level)


def share_interval(hits: Tensor, weights: Tensor | None, level: float, clusters: Tensor | None = None) -> Interval:
    """Return the interval of a share of hits, 0 or 1, over independent examples or clusters, by `mean_limits`."""
    return Sample.from_values(hits, weights, clusters).bounded_interval(EXPECTED_SHARE, level)


def cluster_share_interval(weight: Tensor, total: Tensor, level: float) -> Interval:
    """Return the interval of a share from the weights of clusters and of the hits among them."""
    n = float(weight.sum())
    p = float(total.sum()) / n if n else math.nan
    return Sample.from_sums(n, p, n * p * (1 - p), (weight, total)).bounded_interval(EXPECTED_SHARE, level)


def cluster_mean_error(weight: Tensor, total: Tensor) -> tuple[float, float, float]:
    r"""Return the mean, its standard error by the jackknife over clusters, and the degrees of freedom.

    Without cluster g of weight n_g and sum s_g the mean moves by $(s_g - \bar x n_g) / (n - n_g)$. The degrees are one
    less than the $n^2 / \sum n_g^2$ clusters of equal weight that would be as precise (Kish 1965).
    """
    weight, total = weight[weight > 0], total[weight > 0]
    n, clusters = weight.sum(), len(weight)
    mean = total.sum() / n
    if clusters < 2:
        return float(mean), math.inf, 0.0
    moved = (total - mean * weight) / (n - weight)
    error = math.sqrt(float(moved.square().sum()) * (clusters - 1) / clusters)
    return float(mean), error, float(n**2 / weight.square().sum()) - 1
