"""Results that are more than one number, and the one way to compute an interval of a mean: `Sample`."""

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from calibrant._core.kernels.bins import Moments, merge_examples
from calibrant._core.types import AnyFloat, OpenFraction, check_arguments

BOUND_WEIGHT = 2.0  # kappa of `mean_limits` is 1/2 + 2 / sqrt(n): conservative bounds up to n = 16
MAX_ROUNDING_VARIANCE = 1e-11  # variance of equal values that rounding may leave in a `Summary`
NUM_BISECTIONS = 52  # of an interval of length 1, down to the last bit
MIN_DIVISOR = 1e-300  # replaces a divisor of 0, so that 0 / 0 becomes 0 instead of nan
SUM_ROUNDING = 1e-9  # relative difference up to which two sums are equal
_USES_STRICT_LIMITS: ContextVar[bool] = ContextVar("uses_strict_limits", default=False)


@contextmanager
def strict_limits() -> Generator[None]:
    """Compute conservative intervals of bounded means inside the block, with kappa = 1 in `mean_limits`.

    The truth then lies beyond a limit with at most the nominal probability, and otherwise with about this probability.
    A share has the limits of Clopper & Pearson (1934) instead of mid-p limits.
    """
    token = _USES_STRICT_LIMITS.set(True)
    try:
        yield
    finally:
        _USES_STRICT_LIMITS.reset(token)


@dataclass(frozen=True)
class Interval:
    """An estimate and the interval that holds the truth with probability `level`."""

    value: AnyFloat
    low: AnyFloat
    high: AnyFloat
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

    x: np.ndarray  # (g) float64
    y: np.ndarray  # (g) float64
    low: np.ndarray | None = None
    high: np.ndarray | None = None
    weight: np.ndarray | None = None  # (g) share of the examples that each point stands for


def student_quantile(level: float, degrees: float | int) -> float:
    """Return the two-sided quantile of Student's t (1.677 for 0.90 and 49 degrees), or inf without degrees."""
    if degrees <= 0:
        return math.inf
    from scipy.special import stdtrit  # slow to import

    return float(stdtrit(degrees, (1 + level) / 2))


class ScoreRange(NamedTuple):
    """Range of the score of an example that was not drawn, over its predictions and outcomes, or one per sample."""

    low: Any
    high: Any


class Extremes(NamedTuple):
    """The most extreme predictions of a sample, which bound the scores of examples that were not drawn.

    They are numbers, or arrays with one number per sample. Surprisals are -log p, in nats.
    """

    low: Any  # lowest and highest probability of the event, each the mean of a bin of equal width
    high: Any
    error_surprisal: Any  # largest surprisal of an error of the predicted class
    label_surprisal: Any  # largest surprisal of a true class
    k: int  # number of classes

    @classmethod
    def from_moments(cls, moments: Moments, surprisals: Any, k: int) -> "Extremes":
        """Take the extremes of sums over bins, which may have leading dimensions, and two surprisals."""
        weight = moments.total_weight
        c = np.clip(moments.confidence_sum / np.maximum(weight, MIN_DIVISOR), 0, 1)
        low, high = np.where(weight > 0, c, 1.0).min(-1), np.where(weight > 0, c, 0.0).max(-1)
        error_surprisal, label_surprisal = surprisals
        return cls(low, high, error_surprisal, label_surprisal, k)


SHARE = ScoreRange(0.0, 1.0)  # of scores 0 or 1


@dataclass(frozen=True)
class Sample:
    """The mean of some values, and the precision of that mean."""

    n: float  # total weight
    mean: float
    variance: float  # mean squared distance to the mean
    error: float  # standard error of the mean
    degrees: float  # of freedom: one less than there are independent examples, or clusters of equal weight

    @classmethod
    def from_values(
        cls,
        values: np.ndarray,
        weights: np.ndarray | None = None,
        clusters: np.ndarray | None = None,
        examples: np.ndarray | None = None,
    ) -> "Sample":
        """Compute the mean and its precision from one value per row.

        Args:
            values: One number per row, (n).
            weights: Weights, (n); 1 by default.
            clusters: Index of the cluster of each row, (n), if examples of a cluster may depend on each other.
            examples: Index of the example of each row, (n), if an example has several rows, which then count as one
                value, their mean.
        """
        if examples is not None:
            values, weights, clusters = merge_examples(values, weights, clusters, examples)
        v = values.astype(float)
        w = np.ones(len(v)) if weights is None else weights
        n = float(w.sum())
        with np.errstate(invalid="ignore", over="ignore"):  # of a huge loss, whose mean has no finite error
            total = v if weights is None else w * v
            mean = float(total.sum()) / n if n else math.nan
            parts = None if clusters is None else (np.bincount(clusters, w), np.bincount(clusters, total))
            return cls.from_sums(n, mean, float((w * np.square(v - mean)).sum()), parts)

    @classmethod
    def from_sums(
        cls, n: float, mean: float, square: float, clusters: tuple[np.ndarray, np.ndarray] | None = None
    ) -> "Sample":
        """Compute from the total weight n, the mean, and the weighted sum of squared distances to it.

        `clusters` holds the weight and the weighted sum of values of each cluster, if examples depend on each other.
        """
        variance = max(square, 0.0) / n if n else 0.0
        if clusters is not None and n:
            return cls(n, mean, variance, *cluster_mean_error(*clusters))
        # a single example does not show how values vary: its mean has an infinite error
        return cls(n, mean, variance, math.sqrt(variance / (n - 1)) if n > 1 else math.inf, n - 1)

    @property
    def equivalent_sample(self) -> tuple[float, float]:
        """Number and variance of independent values whose mean is as precise, for `mean_limits`.

        The effective number of examples is the number of independent examples of this variance whose mean has this
        standard error. The returned number is the geometric mean of it and the number of clusters of equal weight, and
        the variance is adjusted to keep the standard error. If all values are equal, they do not show how alike the
        examples of a cluster are, and the number is that of clusters.
        """
        clusters = self.degrees + 1
        if self.variance < MAX_ROUNDING_VARIANCE or clusters <= 1:
            return clusters, self.variance
        examples = min(max(self.n, clusters), 1 + self.variance / max(self.error**2, MIN_DIVISOR))
        count = math.sqrt(examples * clusters)
        # keeps the squared standard error: new variance / (count - 1) is variance / (examples - 1)
        return count, self.variance * (count - 1) / (examples - 1)

    def normal_interval(self, level: float) -> Interval:
        """Return the interval of a mean of unbounded values by Student's t. It is infinite for a single example."""
        half = student_quantile(level, self.degrees) * self.error
        ends = (self.mean - half, self.mean + half) if math.isfinite(self.mean + half) else (-math.inf, math.inf)
        return Interval(self.mean, *ends, level)

    def normal_p_value(self) -> float:
        """Return the p-value of the mean 0 by Student's t, or 1 for a single example."""
        if self.error == 0 or math.isnan(self.error):  # equal values, which exclude every mean but their own, or NaN
            return float(self.mean == 0)
        from scipy.special import stdtr  # slow to import

        return 1.0 if math.isinf(self.error) else 2 * float(stdtr(self.degrees, -abs(self.mean) / self.error))

    def bounded_p_value(self, score_range: ScoreRange) -> float:
        """Return the two-sided p-value of the mean 0: twice the tail probability that `mean_limits` compares.

        `bounded_interval` excludes 0 if its level is below 1 minus the p-value.
        """
        if self.degrees <= 0:  # a single example or cluster rejects nothing
            return 1.0
        low, high = score_range
        if not low < high:  # the range is one number, which is then the mean
            return float(self.mean == 0)
        count, variance = self.equivalent_sample
        zero = min(max(-low / (high - low), 0.0), 1.0)  # where 0 is if the range is scaled to [0, 1]
        tails = _mean_tails(count, *_unit_moments(self.mean, variance, score_range))
        # probabilities that `mean_limits` compares with the level, if 0 were the lower and if it were the upper limit
        lower_tail, upper_cdf = tails(np.full(2, zero))
        tail = float(lower_tail if self.mean > 0 else 1 - upper_cdf)
        return min(1.0, 2 * tail)

    def bounded_interval(self, score_range: ScoreRange, level: float, effective_share: float = 1.0) -> Interval:
        """Return the interval of a mean of values in a known range, by `mean_limits`.

        With an `effective_share` below 1, the sample counts as this share of its size, but keeps its standard error.
        """
        if any(
            map(math.isinf, (self.mean, self.variance, *score_range))
        ):  # such as the NLL, if an error has the probability 0
            return Interval(self.mean, -math.inf, math.inf, level)
        if self.degrees <= 0 or math.isnan(self.mean):  # only the range is known
            return Interval(self.mean, *score_range, level)
        count, variance = self.equivalent_sample
        size = effective_share * count
        variance *= max(size - 1, 0.0) / (count - 1)  # keeps the squared standard error, variance / (count - 1)
        low, high = map(float, mean_limits(size, self.mean, variance, score_range, level))
        return Interval(self.mean, min(low, self.mean), max(high, self.mean), level)  # holds the mean despite rounding


def mean_limits(n: Any, mean: Any, variance: Any, score_range: ScoreRange, level: Any) -> tuple[Any, Any]:
    r"""Return limits of the mean of n values in a known range that neither collapse to a point nor leave the range.

    One unseen example joins the sample, at the low or the high end of the range: it is as bad as the worst score that
    the predictions of the sample allow, because the few extreme predictions may all be right by chance. If the n + 1
    weights have the flat Dirichlet distribution, the weighted mean has a distribution (Rubin 1981): $F_0$ if the unseen
    example is at the low end, $F_1$ if it is at the high end. With the level $1 - 2 \alpha$, the upper limit solves
    $\kappa F_1 + (1 - \kappa) F_0 = 1 - \alpha$, the lower limit $\kappa F_0 + (1 - \kappa) F_1 = \alpha$. For
    $\kappa = 1$ these are the bounds of Gaffke (2005; Learned-Miller & Thomas 2019), and those of Clopper & Pearson
    (1934) for a share; for $\kappa = 1/2$ the mid-p limits of a share (Lancaster 1961).
    $\kappa = \min(1, 1/2 + 2 / \sqrt n)$ goes from one to the other, and is 1 within `strict_limits`. Both
    distributions are replaced by the beta distributions with the same range, mean and variance, which they are for a
    share. All arguments may be arrays.
    """
    low, width = np.asarray(score_range.low), np.asarray(score_range.high) - score_range.low
    share, variance, n, level = np.broadcast_arrays(*_unit_moments(mean, variance, score_range), np.float64(n), level)
    tails, tail = _mean_tails(n, share, variance), (1 - level) / 2

    def inside(limits: Any) -> Any:
        """Return whether a lower and an upper limit lie in the interval."""
        lower_tail, upper_cdf = tails(limits)
        return np.array([lower_tail >= tail, upper_cdf < 1 - tail])

    lower, upper = interval_end(inside, np.stack([share, share]), np.stack([np.zeros_like(share), np.ones_like(share)]))
    return low + width * lower, low + width * upper


def _unit_moments(mean: Any, variance: Any, score_range: ScoreRange) -> tuple[Any, Any]:
    """Return the mean and variance of scores after scaling their range to [0, 1], or to 0 if it is one number."""
    width = np.asarray(score_range.high) - score_range.low
    safe_width = np.where(width > 0, width, 1.0)
    return np.clip((mean - score_range.low) / safe_width, 0.0, 1.0), variance / safe_width**2


def _mean_tails(n: Any, share: Any, variance: Any) -> Callable[[Any], Any]:
    r"""Return the function of a lower and an upper limit that `mean_limits` compares with $\alpha$ and $1 - \alpha$.

    It returns $\kappa F_0 + (1 - \kappa) F_1$ at the lower and $\kappa F_1 + (1 - \kappa) F_0$ at the upper limit.
    F_0 and F_1 are beta distributions with the mean and variance of a mean over n values and an unseen one of 0 or 1.
    The variance of a Dirichlet mean is the variance of the n + 1 values by n + 2; a beta's is m (1 - m) / (size + 1).

    Args:
        n: Number of values, of any shape.
        share: Their mean, after scaling the range to [0, 1], of the same shape.
        variance: Their variance in this scale.
    """
    from scipy.special import betainc  # slow to import

    end = np.array([0.0, 1.0]).reshape(2, *[1] * np.ndim(share))  # the unseen value in F_0 and in F_1
    center = (n * share + end) / (n + 1)  # mean of the n + 1 values, and their variance
    spread = (n * variance + n / (n + 1) * (share - end) ** 2) / (n + 1)
    size = (n + 2) * center * (1 - center) / np.maximum(spread, MIN_DIVISOR) - 1
    size = np.maximum(np.where(spread > MAX_ROUNDING_VARIANCE, size, n + 1), 1.0)  # at an end, values may all be equal
    # (2, 1, ...): the new axis is for the two limits; betainc needs parameters above 0
    hits, misses = (np.maximum(size * x, MIN_DIVISOR)[:, None] for x in (center, 1 - center))
    kappa = 1.0 if _USES_STRICT_LIMITS.get() else np.minimum(1.0, 0.5 + BOUND_WEIGHT / np.sqrt(n))

    def tails(limits: Any) -> Any:
        # betainc is the distribution function: F_0 at both limits, then F_1
        (lower_0, upper_0), (lower_1, upper_1) = betainc(hits, misses, limits)
        return np.array([kappa * lower_0 + (1 - kappa) * lower_1, kappa * upper_1 + (1 - kappa) * upper_0])

    return tails


def interval_end(inside: Callable[[Any], Any], start: Any, outer: Any) -> Any:
    """Find the last point from `start` to `outer` at which `inside` holds, by bisection, elementwise for arrays.

    Args:
        inside: Function of points that returns whether each is in the interval.
        start: Points in the interval.
        outer: Points at most 1 away, of the same shape, beyond the end of the interval or at the end.
    """
    for _ in range(NUM_BISECTIONS):
        middle = (start + outer) / 2
        is_inside = inside(middle)
        start, outer = np.where(is_inside, middle, start), np.where(is_inside, outer, middle)
    return outer


def square_limits(value: Any, mean: Any, variance: Any, root_variance: Any, t: Any) -> tuple[Any, Any]:
    r"""Return limits of a square $\theta$ in [0, 1] from an unbiased estimate, valid at 0 and away from it.

    Under $\theta$ the estimate plus `mean` is a weighted sum of noncentral chi-squares: positive, with the mean
    $\theta$ + `mean` and the variance $4 \lambda \theta$ + `variance`, $\lambda$ the `root_variance`. The limits hold
    every $\theta$ that the gamma distribution with these moments does not reject (Patnaik 1949), each at the error rate
    $\Phi(-t)$.

    Args:
        value: The estimate. All arguments may be arrays.
        mean: Mean of the estimate before its bias was subtracted, if $\theta$ is 0.
        variance: Variance of the estimate if $\theta$ is 0.
        root_variance: Variance of the root of the estimate.
        t: Quantile of the level, from `student_quantile`.
    """
    from scipy.special import gammainc, ndtr  # slow to import

    observed, tail, zero = np.maximum(value + mean, 0.0), ndtr(-t), np.zeros(np.shape(value))

    def probability(theta: Any) -> Any:
        """Return the probability of an estimate up to the observed one, by the gamma distribution."""
        spread = np.maximum(variance + 4 * root_variance * theta, MIN_DIVISOR)
        return gammainc((theta + mean) ** 2 / spread, observed * (theta + mean) / spread)

    def inside(theta: Any) -> Any:
        """Return whether a lower and an upper limit are not rejected."""
        low, high = probability(theta)
        return np.array([low <= 1 - tail, high >= tail])

    low, high = interval_end(inside, np.stack([np.maximum(value, 0.0), zero]), np.stack([zero, np.ones_like(zero)]))
    return low, high


@check_arguments
def share_interval(
    hits: np.ndarray,
    weights: np.ndarray | None,
    level: OpenFraction,
    clusters: np.ndarray | None = None,
    examples: np.ndarray | None = None,
) -> Interval:
    """Return the interval of a share of hits, in [0, 1], over independent examples or clusters, by `mean_limits`.

    Args:
        hits: 1 for a hit, else 0, or a mean of such numbers, for each row (n).
        weights: Weights (n), or None.
        level: Probability that the interval holds the true share.
        clusters: Cluster of each row (n), if examples may depend on each other.
        examples: Example of each row (n), if an example has several rows.
    """
    return Sample.from_values(hits, weights, clusters, examples).bounded_interval(SHARE, level)


@check_arguments
def share_limits(share: np.ndarray, n: np.ndarray, level: OpenFraction) -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and upper limits of shares, by `mean_limits`, or 0 and 1 without examples.

    Args:
        share: Shares, of any shape.
        n: Number of independent examples behind each share.
        level: Probability that the limits of a share hold its true value.
    """
    has_examples = n > 0
    # without examples any share and size will do, as the limits are replaced below
    p, size = (x.astype(float) for x in (np.where(has_examples, share, 0.5), np.where(has_examples, n, 1.0)))
    low, high = mean_limits(size, p, p * (1 - p), SHARE, level)
    return np.where(has_examples, np.minimum(low, share), 0.0), np.where(has_examples, np.maximum(high, share), 1.0)


def cluster_share_interval(weight: np.ndarray, total: np.ndarray, level: float) -> Interval:
    """Return the interval of a share of hits in [0, 1] over independent clusters, by `mean_limits`.

    Args:
        weight: Weight of each cluster, (m).
        total: Weight of the hits in each cluster, (m).
        level: Probability that the interval holds the true share.
    """
    n = float(weight.sum())
    p = float(total.sum()) / n if n else math.nan
    # squared distances of scores 0 and 1 to their mean p add up to n p (1 - p)
    return Sample.from_sums(n, p, n * p * (1 - p), (weight, total)).bounded_interval(SHARE, level)


def cluster_mean_error(weight: np.ndarray, total: np.ndarray) -> tuple[float, float]:
    r"""Return the standard error of the mean by the jackknife over clusters, and the degrees of freedom.

    Without cluster g of weight n_g and sum s_g the mean moves by $(s_g - \bar x n_g) / (n - n_g)$. The degrees are one
    less than the $n^2 / \sum n_g^2$ clusters of equal weight that would be as precise (Kish 1965). A single cluster
    has an infinite error and no degree of freedom.

    Args:
        weight: Weight n_g of each cluster.
        total: Sum s_g of the values of each cluster.
    """
    weight, total = weight[weight > 0], total[weight > 0]
    n, clusters = weight.sum(), len(weight)
    if clusters < 2:
        return math.inf, 0.0
    moved = (total - total.sum() / n * weight) / (n - weight)
    error = math.sqrt(float(np.square(moved).sum()) * (clusters - 1) / clusters)
    return error, float(n**2 / np.square(weight).sum()) - 1
