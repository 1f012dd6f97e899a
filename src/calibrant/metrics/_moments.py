"""Results from sums over bins: norms of the gaps, the unbiased square of norm 2, and the distribution of noise."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.bins import Bins, EventStatistics, Moments
from calibrant.metrics._clusters import clustered_square
from calibrant.metrics._intervals import Interval, SquareEstimate, square_limits, student_quantile

Edges = Literal["equal_width", "equal_mass"]
NUM_NOISE_CELLS = 1 << 11  # grid of a noise distribution; gives quantiles to a relative 3e-5


def squared_error(moments: Moments, level: float) -> Interval:
    r"""Return an unbiased estimate of the squared error of norm 2, and its interval within [0, 1] by `square_limits`.

    Of examples in clusters, only pairs of different clusters count.
    """
    total = float(moments.total_weight.sum())
    if moments.clusters is not None:
        estimate, degrees = clustered_square(moments.clusters, moments.dispersion)
    else:
        estimate, degrees = square_estimate(moments), total - 1
    if degrees <= 0:
        return Interval(0.0, 0.0, 1.0, level)
    value, mean, variance, root_variance = map(float, estimate)
    low, high = square_limits(value, mean, variance, root_variance, student_quantile(level, degrees))
    return Interval(value, float(low), float(high), level)


def square_estimate(moments: Moments) -> SquareEstimate:
    r"""Estimate the squared error from independent examples, whose sums over bins may have leading dimensions.

    In a bin, $\mu^2$ is estimated by the mean of u_i u_j over pairs i != j. The variance of u in a bin is at least that
    of a calibrated model: few examples may have equal u by chance.
    """
    n, total = moments.total_weight, moments.total_weight.sum(-1, keepdim=True)
    has_pairs = n > 1 + 1e-9  # at least two examples
    count = n.where(has_pairs, 2.0)
    share, pairs = (n / total).where(has_pairs, 0.0), count * (count - 1)
    product = (moments.gap.square() - moments.gap_square) / pairs
    square = product.clamp_min(0)
    noise = torch.maximum(moments.gap_square / count - square, moments.noise / count)
    spread = share * noise / pairs.sqrt()
    weight = share * ((moments.gap / count).square() + 1e-12)
    value = (share * product).sum(-1)
    between = ((share * square.square()).sum(-1) - (share * square).sum(-1).square()).clamp_min(0)
    root_variance = (weight * noise).sum(-1) / weight.sum(-1) + between / (
        4 * torch.maximum(value, spread.sum(-1))
    ).clamp_min(1e-300)
    return SquareEstimate(value, spread.sum(-1), 2 * spread.square().sum(-1), root_variance / total.squeeze(-1))


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
    return Bins.equal_mass(bins, events.by_score) if edges == "equal_mass" else events.equal_width(bins)
