"""Results from sums over bins: error norms, the unbiased square of the L2 norm, and the noise distribution."""

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.bins import Bins, EventStatistics, Moments
from calibrant.metrics._clusters import clustered_square
from calibrant.metrics._intervals import MIN_DIVISOR, SUM_ROUNDING, Interval, square_limits, student_quantile

Edges = Literal["equal_width", "equal_mass"]
NUM_NOISE_CELLS = 1 << 11  # grid of a noise distribution; gives quantiles to a relative 3e-5
MIN_SQUARED_GAP = 1e-12  # added to the squared gaps that weight bins, so that the weights are not all 0


def squared_error(moments: Moments, level: float) -> Interval:
    r"""Return an unbiased estimate of $\theta = \sum_b w_b \mu_b^2$, the squared L2 error, and its interval in [0, 1].

    $w_b$ is the share of the examples in bin b, and $\mu_b$ the mean of confidence - outcome there. Of examples in
    clusters, only pairs of different clusters count.
    """
    if moments.clusters is not None:
        estimate, degrees = clustered_square(moments.clusters, moments.dispersion)
    else:
        estimate, degrees = square_estimate(moments), float(moments.total_weight.sum()) - 1
    if degrees <= 0:  # one example or cluster says nothing
        return Interval(0.0, 0.0, 1.0, level)
    value, noise_mean, noise_variance, root_variance = map(float, estimate)
    low, high = square_limits(value, noise_mean, noise_variance, root_variance, student_quantile(level, degrees))
    return Interval(value, float(low), float(high), level)


def square_estimate(moments: Moments) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Estimate $\theta = \sum_b w_b \mu_b^2$ from independent examples. Sums may have leading dimensions.

    In bin b with the share $w_b$ of n examples and the mean $\mu_b$ of u = confidence - outcome:

    - $\mu_b^2$ is estimated by the mean product $u_i u_j$ over the m (m - 1) pairs $i \ne j$ of its m examples.
    - $\sigma_b^2$, the variance of u, is at least as large as for a calibrated model: few u may be equal by chance.
    - If $\mu_b$ is 0, this estimate of $\mu_b^2$ has the variance $2 \sigma_b^4 / (m (m - 1))$.
    - The root of $\theta$ has the variance $(\sum_b w_b \mu_b^2 \sigma_b^2 / \theta + V / 4 \theta) / n$, with V the
      variance of $\mu_b^2$ over the examples, and $\theta$ at least the mean of the noise.

    Returns:
        The estimate; mean and variance of its noise if $\theta$ is 0; and the variance of its root.
    """
    m, n = moments.total_weight, moments.total_weight.sum(-1, keepdim=True)
    has_pairs = m > 1 + SUM_ROUNDING  # at least two examples
    m = m.where(has_pairs, 2.0)  # any number: bins without pairs get the share 0
    share, pairs = (m / n).where(has_pairs, 0.0), m * (m - 1)
    mean_product = (moments.u_sum.square() - moments.u_square_sum) / pairs
    mu_square = mean_product.clamp_min(0)
    sigma_square = torch.maximum(moments.u_square_sum / m - mu_square, moments.noise / m)
    spread = share * sigma_square / pairs.sqrt()
    value, mean = (share * mean_product).sum(-1), spread.sum(-1)
    weight = share * ((moments.u_sum / m).square() + MIN_SQUARED_GAP)
    between = ((share * mu_square.square()).sum(-1) - (share * mu_square).sum(-1).square()).clamp_min(0)
    within = (weight * sigma_square).sum(-1) / weight.sum(-1)
    root_variance = (within + between / (4 * torch.maximum(value, mean)).clamp_min(MIN_DIVISOR)) / n.squeeze(-1)
    return value, mean, 2 * spread.square().sum(-1), root_variance


def gap_norm(bins: Bins, norm: float = 1.0) -> Tensor:
    r"""Return the norm $(\sum_b w_b |g_b|^p)^{1/p}$ of the differences g_b of accuracy and confidence.

    For p = inf it is the largest difference of a bin with examples.
    """
    if math.isinf(norm):
        return bins.gap.abs()[bins.weight > 0].max()
    return (bins.weight * bins.gap.abs() ** norm).sum() ** (1 / norm)


def noise_interval(sigma: Tensor, level: float) -> Interval:
    r"""Return the distribution of $\sum_b |N(0, \sigma_b^2)|$: its mean $\sqrt{2/\pi} \sum_b \sigma_b$ and quantiles.

    The distribution of the sum is the convolution of half-normal distributions: on a grid, the product of their Fourier
    transforms.

    >>> print(noise_interval(torch.ones(1, dtype=torch.float64), 0.90))  # normal quantiles of 0.525 and 0.975
    0.7979 [0.0627, 1.9600]
    """
    mean = math.sqrt(2 / math.pi) * float(sigma.sum())
    sigma = sigma[sigma > 0].cpu()
    if len(sigma) == 0:
        return Interval(mean, mean, mean, level)
    cells = NUM_NOISE_CELLS
    width = (mean + 8 * float(sigma.square().sum().sqrt())) / cells  # a mass of about 1e-15 lies beyond
    ends = torch.arange(cells + 1, dtype=torch.float64) * width
    probability = torch.erf(ends / sigma[:, None] / math.sqrt(2)).diff(dim=1)
    # padded to twice the length, so that the cyclic convolution does not wrap around
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
