r"""The calibration error of a calibrated model with independent examples: the noise floor of binned errors.

The error is $\sum_b |S_b| / n$, in which $S_b$ is the sum of outcomes minus confidences in bin b. Bins of equal mass
divide examples of equal confidence, which then share their mean outcome: the sums of neighboring bins contain shares of
one random number. So each $S_b$ is a mixture of independent sums, whose distributions are known.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from calibrant._core.kernels.bins import GroupedScores, Moments
from calibrant.metrics._intervals import Interval

Array = np.ndarray
MAX_BINOMIAL_VARIANCE = 400.0  # above it, a sum of outcomes is taken as normal
BINOMIAL_RANGE = 8.5  # standard deviations around the mean that are tabulated
NUM_NORMAL_POINTS = 1 << 11  # equally probable points that stand for a normal distribution
DRAWN_ELEMENTS = 1 << 16  # numbers drawn for the sums that bins share
MIN_DRAWS, MAX_DRAWS = 1 << 9, 1 << 16
GRID_ELEMENTS = 1 << 15  # points of the grids of all distributions that are convolved
MIN_GRID, MAX_GRID = 1 << 11, 1 << 14
CUT_ROUNDING = 1e-9  # share of tied examples below which a cut does not divide them
COUNT_ROUNDING = 1e-6  # rounding error of a number of examples that was computed from sums


@dataclass(frozen=True, eq=False)
class IndependentSums:
    """Sums of outcomes minus confidences, of separate examples whose confidences are true."""

    weight: Array  # (s) > 0, total weight of the examples
    confidence_sum: Array  # (s)
    variance: Array  # (s) sum of c (1 - c)
    dispersion: float = 1.0  # variance of outcomes divided by that of outcomes of 0 or 1; below 1 if they are fractions

    def __getitem__(self, index: Array) -> "IndependentSums":
        """Select sums."""
        return IndependentSums(self.weight[index], self.confidence_sum[index], self.variance[index], self.dispersion)

    @property
    def is_normal(self) -> Array:
        """Whether each sum is taken as normal: large sums, and sums of fractional outcomes."""
        return (self.variance > MAX_BINOMIAL_VARIANCE) | (self.dispersion < 1)

    def points(self) -> tuple[Array, Array]:
        """Return points and probabilities of the sums, (s m) each, all normal or none."""
        if not self.is_normal.any():
            return _binomials(self.weight, self.confidence_sum, self.variance)
        values = np.sqrt(self.variance * self.dispersion)[:, None] * _normal_quantiles(NUM_NORMAL_POINTS)
        return values, np.broadcast_to(1 / NUM_NORMAL_POINTS, values.shape)

    def draw(self, draws: int) -> Array:
        """Draw a Latin hypercube sample (McKay, Beckman & Conover 1979), (s draws).

        It has the quantiles of every sum in the middle of equal intervals, each in a random order of its own.
        """
        values, is_normal = np.empty((len(self.weight), draws)), self.is_normal
        if is_normal.any():
            sigma = np.sqrt(self.variance * self.dispersion)[is_normal]
            values[is_normal] = sigma[:, None] * _normal_quantiles(draws)
        if not is_normal.all():
            points, probability = self[~is_normal].points()
            ends = np.floor(probability.cumsum(1) * draws + 0.5).astype(np.int64).clip(0, draws)
            ends[:, -1] = draws
            counts = np.diff(ends, prepend=0)  # how many of the quantiles are at each point
            values[~is_normal] = points.ravel().repeat(counts.ravel()).reshape(-1, draws)
        return np.take_along_axis(values, _orders(*values.shape), axis=1)


def equal_width_sums(moments: Moments) -> IndependentSums:
    """Return the sums of the bins of equal width that are not empty."""
    occupied = moments.total_weight > 0
    columns = moments.total_weight, moments.confidence_sum, moments.variance
    weight, confidence_sum, variance = (column[occupied] for column in columns)
    return IndependentSums(weight, confidence_sum, variance, moments.dispersion)


def equal_mass_sums(bins: int, by_score: GroupedScores) -> tuple[IndependentSums, Array]:
    """Return the independent sums behind b bins of equal mass, and the share of each in every bin, (b s).

    They are the examples that lie in one bin only, and every group of equal confidences that a cut divides.
    """
    running = by_score.cumulative_sums[[0, 1, 3]]  # weight, confidence, variance (3, g + 1)
    running[2] /= by_score.dispersion
    cuts = by_score.equal_mass_cuts(bins)
    right = np.searchsorted(running[0], cuts).clip(1, running.shape[1] - 1)  # a cut lies in the group right - 1
    position = (cuts - running[0, right - 1]) / (running[0, right] - running[0, right - 1])
    is_above, is_beyond = position > CUT_ROUNDING, position > 1 - CUT_ROUNDING  # the start, and the end of the group
    start, end = (right - ~is_above)[:-1], (right - ~is_beyond)[1:]  # groups start, ..., end - 1 lie in one bin
    undivided = running[:, np.maximum(start, end)] - running[:, start]
    divided = np.unique(right[is_above & ~is_beyond])  # index of the ends of the groups
    low, high = running[0, divided - 1], running[0, divided]
    overlap = np.minimum(cuts[1:, None], high) - np.maximum(cuts[:-1, None], low)
    shares = np.hstack([np.eye(bins), overlap.clip(0) / (high - low)])
    sums = np.hstack([undivided, running[:, divided] - running[:, divided - 1]]).clip(0)
    weight, confidence_sum, variance = sums[:, occupied := sums[0] > 0]
    return IndependentSums(weight, confidence_sum, variance, by_score.dispersion), shares[:, occupied]


def noise_interval(sums: IndependentSums, shares: Array | None, level: float) -> Interval:
    r"""Return the mean and quantiles of $\sum_b |S_b| / n$, with $S_b = \sum_s shares_{bs} D_s$ of independent sums.

    Bins that share sums are drawn together. The distribution of the total is a convolution, with exact ones of the bins
    that share none.

    Args:
        sums: Independent sums D_s.
        shares: Share of each of them in every bin, (b s); one bin for each by default.
        level: Share of the distribution between the quantiles.

    >>> one = IndependentSums(np.array([1e4]), np.array([5e3]), np.array([2.5e3]))
    >>> print(noise_interval(one, None, 0.90))  # 50 / 10000 times normal quantiles of 0.525 and 0.975, and their mean
    0.0040 [0.0003, 0.0098]
    """
    shares = np.eye(len(sums.weight)) if shares is None else shares
    is_mixed = (shares > 0).sum(1) > 1
    factor = shares[~is_mixed].sum(0)  # bins with nothing but a part of the same sum add up
    is_shared = np.asarray((shares[is_mixed] > 0).any(0))
    tables = list[tuple[Array, Array]]()
    if is_shared.any():
        draws = min(max(DRAWN_ELEMENTS // int(is_shared.sum()), MIN_DRAWS), MAX_DRAWS)
        drawn = sums[is_shared].draw(draws)
        errors = factor[is_shared] @ np.abs(drawn) + np.abs(shares[np.ix_(is_mixed, is_shared)] @ drawn).sum(0)
        tables.append((errors[None], np.full((1, draws), 1 / draws)))
    for is_normal in (False, True):
        is_alone = np.asarray(~is_shared & (factor > 0) & (sums.is_normal if is_normal else ~sums.is_normal))
        if is_alone.any():
            points, probability = sums[is_alone].points()
            tables.append((factor[is_alone, None] * np.abs(points), probability))
    total = float(sums.weight.sum())
    mean, low, high = _sum_of_positive(tables, [(1 - level) / 2, (1 + level) / 2])
    return Interval(mean / total, low / total, high / total, level)


def _sum_of_positive(tables: list[tuple[Array, Array]], levels: list[float]) -> list[float]:
    """Return the mean and quantiles of the sum of independent numbers that are not negative.

    The distributions are convolved on a grid, as the product of their Fourier transforms.

    Args:
        tables: Points and probabilities of one or more numbers, both (r m).
        levels: Levels of the quantiles.
    """
    means = np.concatenate([(points * probability).sum(1) for points, probability in tables])
    squares = np.concatenate([(points**2 * probability).sum(1) for points, probability in tables])
    mean, deviation = float(means.sum()), math.sqrt(max((squares - means**2).sum(), 0))
    if mean == 0:
        return [0.0] * (1 + len(levels))
    size = min(max(1 << (GRID_ELEMENTS // len(means)).bit_length() - 1, MIN_GRID), MAX_GRID)
    width = (mean + 8 * deviation) / (size - 2)  # 8 deviations above the mean, almost nothing is left
    transform = np.ones(size + 1, dtype=np.complex128)
    for points, probability in tables:  # a point gives its probability to its neighbors on the grid, which keeps means
        cell, above = np.divmod(points / width, 1)
        index = np.minimum(cell, size - 2).astype(np.int64) + size * np.arange(len(points))[:, None]
        grid_mass = np.bincount(index.ravel(), (probability * (1 - above)).ravel(), size * len(points))
        grid_mass[1:] += np.bincount(index.ravel(), (probability * above).ravel(), size * len(points))[:-1]
        transform *= np.fft.rfft(grid_mass.reshape(-1, size), 2 * size).prod(
            0
        )  # twice as long, so that nothing wraps around
    cumulative = np.fft.irfft(transform)[:size].clip(0).cumsum()
    ends = (np.arange(size) + 0.5) * width  # a grid point stands for the numbers around it
    return [mean, *(float(x) for x in np.interp(levels, cumulative / cumulative[-1], ends))]


def _binomials(weight: Array, confidence_sum: Array, variance: Array) -> tuple[Array, Array]:
    """Return points and probabilities of the sums of outcomes minus confidences in bins, both (s m).

    The outcomes of n examples sum to a Poisson binomial number. It is taken as the sum of two binomial numbers with the
    same mean and variance: half of the examples have a lower confidence than the other half. That is exact for equal
    confidences and for pairs. If the variance is too small for this, as when most confidences are 0 and some are not,
    only so many examples can have an event as are needed. The rarer outcome is counted.

    Args:
        weight: Number of examples, (s); fractional numbers are rounded up, with smaller weights.
        confidence_sum: Sum of the confidences, (s).
        variance: Sum of c (1 - c), (s).
    """
    n = np.ceil(weight - COUNT_ROUNDING).clip(1)
    sign = np.where(2 * confidence_sum > weight, -1.0, 1.0)
    mean = (np.minimum(confidence_sum, weight - confidence_sum) * n / weight).clip(0)
    square = (mean - variance * n / weight).clip(mean**2 / n)  # sum of squared probabilities of the rarer outcome
    n = np.where(square * n > 2 * mean**2, np.ceil(mean**2 / square.clip(1e-300) - COUNT_ROUNDING).clip(1), n)
    lower, upper = np.ceil(n / 2), np.floor(n / 2)
    spread = np.sqrt((square / n - (mean / n) ** 2).clip(0))
    p = mean / n + np.stack([-np.sqrt(upper / lower), np.sqrt(lower / upper.clip(1))]) * spread  # (2 s)
    size = np.stack([lower, upper])
    p = p.clip(0, 1) * (size > 0)
    margin = BINOMIAL_RANGE * np.sqrt(size * p * (1 - p)) + 5
    first = np.floor(size * p - margin).clip(0)
    num_points = int(2 * margin.max()) + 2
    count_mass = _binomial_probabilities(size, p, first[..., None] + np.arange(num_points))  # (2 s m)
    length = 2 * num_points
    probability = np.fft.irfft(np.fft.rfft(count_mass, length).prod(0), length).clip(0)
    points = first.sum(0)[:, None] + np.arange(length) - (size * p).sum(0)[:, None]
    # a sum keeps its variance if its weight was rounded up
    scale = sign * np.sqrt(weight / np.ceil(weight - COUNT_ROUNDING).clip(1))
    return points * scale[:, None], probability / probability.sum(1, keepdims=True)


def _binomial_probabilities(size: Array, p: Array, count: Array) -> Array:
    """Return the probabilities of consecutive counts (..., m), normalized, from the ratios of neighboring ones."""
    with np.errstate(divide="ignore"):
        log_odds = np.log(p) - np.log1p(-p.clip(0, 1 - 1e-15))
        ratios = np.log((size[..., None] - count[..., :-1]).clip(0)) - np.log(count[..., 1:]) + log_odds[..., None]
    log_mass = np.pad(ratios.cumsum(-1), [(0, 0)] * (ratios.ndim - 1) + [(1, 0)])
    unscaled = np.exp(log_mass - log_mass.max(-1, keepdims=True))
    return unscaled / unscaled.sum(-1, keepdims=True)


@lru_cache(maxsize=8)
def _normal_quantiles(draws: int) -> Array:
    """Return the quantiles of the standard normal distribution in the middle of equal intervals, (draws)."""
    from scipy.special import ndtri  # slow to import

    return ndtri((np.arange(draws) + 0.5) / draws)


@lru_cache(maxsize=8)
def _orders(num_sums: int, draws: int) -> Array:
    """Return a random order of the draws for each of the independent sums, (s draws)."""
    in_order = np.broadcast_to(np.arange(draws), (num_sums, draws))
    return np.random.default_rng(0).permuted(in_order, axis=1)
