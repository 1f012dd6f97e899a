"""Results from sums over bins: norms of the gaps, the unbiased square of norm 2, and the distribution of noise."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.bins import Bins, EventStatistics, Moments
from calibrant.metrics._clusters import clustered_squared_error
from calibrant.metrics._intervals import PSEUDO_EXAMPLES, Interval, square_interval, student_quantile

Edges = Literal["equal_width", "equal_mass"]
NUM_NOISE_CELLS = 1 << 11  # grid of a noise distribution; gives quantiles to a relative 3e-5


def squared_error(moments: Moments, level: float) -> Interval:
    r"""Return an unbiased estimate of the squared error of norm 2, and its interval within [0, 1].

    In a bin, $\mu^2$ is estimated by the mean of u_i u_j over pairs i != j. Hoeffding's decomposition of this
    U-statistic gives its variance for any truth $\theta$, as in `square_interval`. Pseudo-examples with the variance
    that true probabilities have join every bin, so that equal values are no certainty. The interval holds 0 if a
    calibrated model shows as large an estimate by chance. Of examples in clusters, only pairs of different clusters
    count.
    """
    if moments.clusters is not None:
        return clustered_squared_error(moments.clusters, level)
    has_pairs = moments.total_weight > 1 + 1e-9  # at least two examples
    if not bool(has_pairs.any()):
        return Interval(0.0, 0.0, 1.0, level)
    parts = (moments.total_weight, moments.gap, moments.gap_square, moments.variance)
    n, gap, gap_square, variance = (x[has_pairs] for x in parts)
    total = float(moments.total_weight.sum())
    share, pairs = n / total, n * (n - 1)
    second_moment = (gap_square + PSEUDO_EXAMPLES * variance / n) / (n + PSEUDO_EXAMPLES)
    product = (gap.square() - gap_square) / pairs
    mu = product.clamp_min(0)  # mu^2 of every bin, at least 0
    noise = (second_moment - mu).clamp_min(0)  # variance of u
    weight = share * ((gap / n).square() + 1e-12)
    between = ((share * mu.square()).sum() - (share * mu).sum().square()).clamp_min(0) / total
    value, t = float((share * product).sum()), student_quantile(level, total - 1)
    spread = float((2 * (share * noise).square() / pairs).sum() + between)
    interval = square_interval(value, float((weight * noise).sum() / weight.sum()) / total, spread, t, level)
    by_chance = (2 * (share * torch.maximum(second_moment, variance / n)).square() / pairs).sum().sqrt()
    return replace(interval, low=0.0) if value <= t * float(by_chance) else interval


def gap_norm(bins: Bins, norm: float = 1.0) -> Tensor:
    r"""Return the norm $(\sum_b w_b |g_b|^p)^{1/p}$ of the gaps; for p = inf their maximum over bins with examples."""
    if math.isinf(norm):
        return bins.gap.abs()[bins.weight > 0].max()
    return (bins.weight * bins.gap.abs() ** norm).sum() ** (1 / norm)


def noise_interval(sigma: Tensor, level: float) -> Interval:
    r"""Return the distribution of $\sum_b |N(0, \sigma_b^2)|$: its mean $\sqrt{2/\pi} \sum_b \sigma_b$ and quantiles.

    The quantiles come from the product of the Fourier transforms of the half-normal distributions on a grid.

    >>> print(noise_interval(torch.ones(1, dtype=torch.float64), 0.90))  # normal quantiles of 0.525 and 0.975
    0.7979 [0.0627, 1.9600]
    """
    mean = math.sqrt(2 / math.pi) * float(sigma.sum())
    sigma = sigma[sigma > 0].cpu()
    if len(sigma) == 0:
        return Interval(mean, mean, mean, level)
    cells = NUM_NOISE_CELLS
    width = (mean + 8 * float(sigma.square().sum().sqrt())) / cells
    ends = torch.arange(cells + 1, dtype=torch.float64) * width
    probability = torch.erf(ends / sigma[:, None] / math.sqrt(2)).diff(dim=1)
    density = torch.fft.irfft(torch.fft.rfft(probability, 2 * cells).prod(0), 2 * cells)[:cells].clamp_min(0)
    density /= density.sum()
    shift = mean - float((density * ends[:-1]).sum())  # makes the mean of the grid exact
    cumulative = torch.nn.functional.pad(density.cumsum(0), (1, 0))
    points = ends - width / 2 + shift
    low, high = np.interp([(1 - level) / 2, (1 + level) / 2], cumulative.numpy(), points.numpy())
    return Interval(mean, max(float(low), 0.0), max(float(high), 0.0), level)


def bin_table(events: EventStatistics, bins: int, edges: Edges) -> Bins:
    """Return the bins of equal width or of equal mass."""
    return Bins.equal_mass(bins, events.ties) if edges == "equal_mass" else events.equal_width(bins)
