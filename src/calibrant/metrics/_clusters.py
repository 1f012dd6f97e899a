"""Chance for examples that depend on each other in clusters, from how the sums of clusters vary.

Clusters are taken as independent; the examples of a cluster may depend on each other in any way.
"""

import math

import torch
from torch import Tensor

from calibrant.backend.bins import ClusterSums
from calibrant.metrics._intervals import Interval, SquareEstimate, cluster_mean_error

NUM_NORMAL_DRAWS = 4096  # draws of normal numbers for quantiles
MAX_CHI_SQUARE_DRAWS = 200  # degrees of freedom above which a multivariate t is drawn as if it had so many


def cluster_noise_interval(sums: ClusterSums, variance: Tensor, level: float) -> Interval:
    r"""Return mean and quantiles of $\sum_b |g_b|$ for a calibrated model whose gaps vary between clusters as these do.

    $g_b$ is the gap of bin b, divided by the total weight. Its variance is the sum of the squared `_noise_gaps`, and at
    least that of independent events. The quantiles are those of a multivariate t with one degree of freedom less than
    there are clusters, drawn with a fixed seed.

    Args:
        sums: Sums of m clusters in b bins.
        variance: Variance of the sum of the outcomes in each bin if events are independent, (b).
        level: Share of the distribution between the quantiles.
    """
    total = float(sums.total_weight.sum())
    noise = _noise_gaps(sums) / total
    cluster_variance = noise.square().sum(0)  # (b)
    remaining_variance = (variance / total**2 - cluster_variance).clamp_min(0)  # up to that of independent events
    mean = math.sqrt(2 / math.pi) * float((cluster_variance + remaining_variance).sqrt().sum())
    degrees = int((sums.total_weight.sum(1) > 0).sum()) - 1
    if degrees < 1:
        return Interval(mean, 0.0, 1.0, level)
    generator = torch.Generator().manual_seed(0)

    def normal(size: int) -> Tensor:
        return torch.randn(NUM_NORMAL_DRAWS, size, generator=generator, dtype=torch.float64)

    by_cluster, by_bin = (normal(size).to(noise.device) for size in noise.shape)
    root_chi_square = normal(min(degrees, MAX_CHI_SQUARE_DRAWS)).square().mean(1).sqrt().to(noise.device)
    drawn = (by_cluster @ noise + by_bin * remaining_variance.sqrt()).abs().sum(1) / root_chi_square
    tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device=drawn.device)
    low, high = drawn.quantile(tail).tolist()
    return Interval(mean, low, min(high, 1.0), level)


def _noise_gaps(sums: ClusterSums) -> Tensor:
    """Return the part of every cluster's gap that is noise, (m b), by a jackknife.

    Each gap is compared with the mean gap of the other clusters in the bin, which removes the miscalibration that they
    share. A cluster that is alone in its bin has no such comparison, and its whole gap counts as noise.
    """
    n = sums.total_weight.sum(0)
    share = sums.total_weight / n  # of each cluster in the bin
    is_alone = share > 1 - 1e-9
    difference = (sums.gap - sums.total_weight * (sums.gap.sum(0) / n)) / (1 - share).where(~is_alone, 1.0)
    num_clusters = (sums.total_weight > 0).sum(0)  # (b)
    scale = ((num_clusters - 1).clamp_min(1) / num_clusters).sqrt()
    return sums.gap.where(is_alone, difference * scale)


def draw_signs(num_draws: int, num_clusters: int, generator: torch.Generator, like: Tensor) -> Tensor:
    """Draw rows of signs, -1 or 1, one per cluster."""
    signs = torch.randint(0, 2, (num_draws, num_clusters), generator=generator, device=generator.device)
    return signs.to(like) * 2 - 1


def clustered_square(sums: ClusterSums, dispersion: float = 1.0) -> tuple[SquareEstimate, int]:
    r"""Estimate the squared error of norm 2 from pairs of examples of different clusters; also return the degrees.

    In a bin, $\mu^2$ is estimated by the mean of u_i u_j over such pairs; a bin with a single cluster adds nothing. The
    noise has the mean tr C and the variance $2\, \mathrm{tr}\, C^2$ of the covariance C of the bins' weighted gaps
    between clusters, but no less than of independent, calibrated examples, or clusters where all outcomes are equal.
    `dispersion` is the variance of fractional outcomes as a share of that of events.
    """
    nonempty = sums.total_weight.sum(1) > 0
    weight, gap = sums.total_weight[nonempty], sums.gap[nonempty]
    m, n, total = len(weight), weight.sum(0), weight.sum()
    share = n / total
    pairs = n.square() - weight.square().sum(0)
    product = (gap.sum(0).square() - gap.square().sum(0)) / pairs
    product = product.where(pairs > 1e-9 * n.square(), 0.0)
    value, mean = (share * product).sum(), gap.sum(0) / n
    scaled_gaps = (gap - weight * mean) / n * share.sqrt() * math.sqrt(m / max(m - 1, 1))
    direction = mean * share.sqrt()
    root_variance = (scaled_gaps @ direction).square().sum() / direction.square().sum().clamp_min(1e-300)
    share_error = cluster_mean_error(weight.sum(1), weight @ product.clamp_min(0))[1] if m > 1 else 0.0
    outcome = sums.value + mean
    varies = (outcome > 1e-9) & (outcome < 1 - 1e-9)  # or else outcomes do not show how alike those of a cluster are
    independent = (
        dispersion * sums.value * (1 - sums.value) / total * torch.where(varies, 1.0, weight.square().sum(0) / n)
    )
    trace = torch.maximum(scaled_gaps.square().sum(), independent.sum())
    variance = 2 * torch.maximum((scaled_gaps.mT @ scaled_gaps).square().sum(), independent.square().sum())
    root_variance = root_variance + share_error**2 / (4 * torch.maximum(value, trace)).clamp_min(1e-300)
    return SquareEstimate(value, trace, variance, root_variance), m - 1
