"""What follows from sums per bin: a norm of the gaps, an unbiased square of norm 2, and the floor that noise sets."""

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from calibrant.backend.bins import Bins, EventStatistics, Moments
from calibrant.metrics._clusters import clustered_squared_error
from calibrant.metrics._intervals import PSEUDO_EXAMPLES, ExpectedScore, Interval, square_interval, student_quantile

Edges = Literal["equal_width", "equal_mass"]
NUM_INTERVAL_BINS = 15  # of the sums that intervals of means need
MIN_MISS_PROBABILITY = 2.0**-53  # least probability of a miss that float64 tells from 0


def squared_error(moments: Moments, level: float) -> Interval:
    r"""Unbiased estimate of the squared error of norm 2, and its interval within [0, 1].

    In a bin, mu^2 is estimated by the mean of u_i u_j over pairs i != j. Hoeffding's decomposition of this
    U-statistic gives its variance for any truth $\theta$, as in `square_interval`; pseudo-examples of the variance that
    true probabilities have join every bin, so that equal values are no certainty. The interval holds 0 where a
    calibrated model shows as large an estimate by chance. Of examples in clusters, only pairs of different clusters
    count.
    """
    if moments.clusters is not None:
        return clustered_squared_error(moments.clusters, level)
    n = moments.total_weight
    has_pairs = n > 1 + 1e-9  # at least two examples
    if not bool(has_pairs.any()):
        return Interval(0.0, 0.0, 1.0, level)
    n, gap, gap_square, variance = (x[has_pairs] for x in (n, moments.gap, moments.gap_square, moments.variance))
    total = float(moments.total_weight.sum())
    share, pairs = n / total, n * (n - 1)
    second_moment = (gap_square + PSEUDO_EXAMPLES * variance / n) / (n + PSEUDO_EXAMPLES)
    product = (gap.square() - gap_square) / pairs
    mu = product.clamp_min(0)
    noise = (second_moment - mu).clamp_min(0)
    weight = share * ((gap / n).square() + 1e-12)
    between = ((share * mu.square()).sum() - (share * mu).sum().square()).clamp_min(0) / total
    value, t = float((share * product).sum()), student_quantile(level, total - 1)
    spread = float((2 * (share * noise).square() / pairs).sum() + between)
    interval = square_interval(value, float((weight * noise).sum() / weight.sum()) / total, spread, t, level)
    by_chance = (2 * (share * torch.maximum(second_moment, variance / n)).square() / pairs).sum().sqrt()
    return replace(interval, low=0.0) if value <= t * float(by_chance) else interval


def expected_score(name: str, moments: Moments, k: int = 2) -> ExpectedScore:
    r"""Range of the mean of a score, and its mean and variance if the probabilities c of an event are true.

    `name` is "signed_gap", "event_brier", or "brier" or "nll" of k classes, whose remaining probability is taken to be
    that of one other class; no example has a lower score than `low` says. From sums over bins: a function of c is
    that of the bin's mean, which makes the variances no smaller.
    """
    n = moments.total_weight.sum()
    nonempty = moments.total_weight > 0
    mass, c = moments.total_weight[nonempty], (moments.confidence_sum / moments.total_weight)[nonempty].clamp(0, 1)
    v, b = (moments.variance[nonempty] / mass).clamp(0, 0.25), torch.maximum(c, 1 - c)

    def over(values: Tensor) -> float:
        return float((mass * values).sum() / n)

    if name == "signed_gap":
        return ExpectedScore(over(c) - 1, over(c), 0.0, over(v))
    if name == "nll":
        b, v = b.clamp_max(1 - MIN_MISS_PROBABILITY), v.clamp_min(MIN_MISS_PROBABILITY)
        log, log_miss = b.log(), (1 - b).log()
        entropy, variance = -b * log - (1 - b) * log_miss, v * (log - log_miss).square()
        return ExpectedScore(-over(log), math.inf, over(entropy), over(variance))
    variance = over(v * (1 - 4 * v))
    if name == "event_brier":
        return ExpectedScore(over(1 - b - v), over(b - v), over(v), variance)
    assert name == "brier"
    high = 2 * over((b if k == 2 else 1) - v)
    return ExpectedScore(k / (k - 1) * over(1 - b - v), high, 2 * over(v), 4 * variance)


def gap_norm(weight: Tensor, gap: Tensor, norm: float) -> Tensor:
    r"""Norm $(\sum_b w_b |g_b|^p)^{1/p}$ over bins; the maximum over bins that are not empty for p = inf."""
    if math.isinf(norm):
        return gap.abs()[weight > 0].max()
    return (weight * gap.abs() ** norm).sum() ** (1 / norm)


def noise_interval(sigma: Tensor, level: float) -> Interval:
    r"""Distribution of $\sum_b |N(0, \sigma_b^2)|$: mean $\sqrt{2/\pi} \sum_b \sigma_b$ and two quantiles.

    The quantiles come from the product of the Fourier transforms of the half-normal laws on a grid.

    >>> print(noise_interval(torch.ones(1, dtype=torch.float64), 0.90))  # normal quantiles of 0.525 and 0.975
    0.7979 [0.0627, 1.9600]
    """
    mean = math.sqrt(2 / math.pi) * float(sigma.sum())
    sigma = sigma[sigma > 0].cpu()
    if len(sigma) == 0:
        return Interval(mean, mean, mean, level)
    cells = 1 << 11  # quantiles to 3e-5 of their size; the finer the grid, the longer a table of many groups takes
    width = (mean + 8 * float(sigma.square().sum().sqrt())) / cells
    ends = torch.arange(cells + 1, dtype=torch.float64) * width
    mass = torch.erf(ends / sigma[:, None] / math.sqrt(2)).diff(dim=1)
    law = torch.fft.irfft(torch.fft.rfft(mass, 2 * cells).prod(0), 2 * cells)[:cells].clamp_min(0)
    shift = mean - float((law * ends[:-1]).sum() / law.sum())  # the place of the mass inside the cells
    cumulative = law.cumsum(0) / law.sum()

    def at(q: float) -> float:
        i = min(int(torch.searchsorted(cumulative, q)), cells - 1)
        previous = float(cumulative[i - 1]) if i else 0.0
        part = (q - previous) / max(float(cumulative[i]) - previous, 1e-300) - 0.5
        return max((i + part) * width + shift, 0.0)

    return Interval(mean, at((1 - level) / 2), at((1 + level) / 2), level)


def bin_table(events: EventStatistics, bins: int, edges: Edges) -> Bins:
    """Bins of equal width or of equal mass."""
    return Bins.equal_mass(bins, events.ties) if edges == "equal_mass" else events.equal_width(bins)
