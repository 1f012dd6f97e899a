"""What is more than one number: an interval, the evidence of a test, a curve."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._bins import Events


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


def student(level: float, degrees: float | int) -> float:
    """Quantile of Student's t of a two-sided interval: 1.677 for 0.90 and 49 degrees of freedom."""
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, (1 + level) / 2))


def mean_interval(values: Tensor, weights: Tensor | None, level: float, clusters: Tensor | None = None) -> Interval:
    """Normal interval of a mean over independent examples, each counted as often as its weight says.

    With `clusters` only these are independent: see `mean_of_clusters`. Unbounded for a single example, or cluster.
    """
    v = values.double()
    if weights is None and clusters is None:
        n, mean, square = float(len(v)), float(v.mean()), float(v.var(correction=0)) * len(v)
        return _normal_interval(n, mean, square, level)
    w = torch.ones_like(v) if weights is None else weights.to(v)
    if clusters is not None:
        return mean_of_clusters(totals(w, clusters), totals(w * v, clusters), level)
    n = float(w.sum())
    mean = float((w * v).sum()) / n
    return _normal_interval(n, mean, float((w * (v - mean).square()).sum()), level)


def _normal_interval(n: float, mean: float, square: float, level: float) -> Interval:
    """From the sum of squared distances to the mean."""
    if n <= 1 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, level)
    half = quantile(level) * math.sqrt(square / (n * (n - 1)))
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
    if weights is None and clusters is None and len(hits):
        return wilson(float(hits.mean()), float(len(hits)), level)
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
    """Interval of a mean over examples that depend on each other within clusters, from the clusters' totals.

    See `cluster_error`. Unbounded for a single cluster.
    """
    mean, error, degrees = cluster_error(mass, total)
    if degrees <= 0 or not math.isfinite(mean):
        return Interval(mean, -math.inf, math.inf, level)
    half = student(level, degrees) * error
    return Interval(mean, mean - half, mean + half, level)


def share_of_clusters(mass: Tensor, total: Tensor, level: float) -> Interval:
    """Wilson's interval for as many examples as would tell the share that surely, were they independent.

    That is what there are, divided by the design effect, with Student's t for the normal quantile (Korn & Graubard
    1998). A share of 0 or 1, which does not say how alike the examples of a cluster are, counts clusters.
    """
    p, error, degrees = cluster_error(mass, total)
    if degrees <= 0:
        return Interval(p, 0.0, 1.0, level)
    n = degrees + 1
    if 0 < p < 1:
        n = min(float(mass.sum()), p * (1 - p) / max(error**2, 1e-300))
    return _score_interval(p, n, level, student(level, degrees))


def cluster_error(mass: Tensor, total: Tensor) -> tuple[float, float, float]:
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


def gap_interval(events: Events, level: float) -> Interval:
    """Mean of what is said minus how often it happened, with an interval that holds near 0 and 1 and for few examples.

    Wilson's for how often it happened, of as many examples as would tell a share as surely as the gap is told: by its
    variance between examples, or clusters, and no less than that of true confidences.
    """
    c, u = events.confidence.double(), events.confidence - events.happened
    w = torch.ones_like(c) if events.weights is None else events.weights.to(c)
    each = (w, w * c, w * u, w * u.square(), w * c * (1 - c))
    n, said, gap, square, variance = (float(part.sum()) for part in each)
    by_cluster = None if events.clusters is None else [totals(part, events.clusters) for part in (w, w * u)]
    return gap_interval_of(n, said / n, gap, square, variance, level, by_cluster)


def gap_interval_of(
    n: float,
    said: float,
    gap: float,
    square: float,
    variance: float,
    level: float,
    by_cluster: Sequence[Tensor] | None = None,
) -> Interval:
    """The same from the mean of what is said and sums over n examples: of gaps, their squares, and what is expected
    of these; `by_cluster` are the masses and gaps of clusters.
    """
    if by_cluster is None:
        mean, least, z = gap / n, n, quantile(level)
        error = max(square - gap * gap / n, 0.0) / (n * max(n - 1, 1.0))
    else:
        mean, deviation, degrees = cluster_error(*by_cluster)
        if degrees <= 0:
            return Interval(mean, said - 1, said, level)
        error, least, z = deviation**2, degrees + 1, student(level, degrees)
    p = min(max(said - mean, 0.0), 1.0)
    error = max(error, variance / n**2, 1e-300)
    happened = _score_interval(p, p * (1 - p) / error if 1e-12 < p < 1 - 1e-12 else least, level, z)
    return Interval(mean, said - happened.high, said - happened.low, level)
