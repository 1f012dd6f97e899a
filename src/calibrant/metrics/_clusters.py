"""Examples that depend on each other in clusters: what chance does then, known from how the sums of clusters vary.

Everything here takes clusters as independent, and lets the examples of one depend in any way.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from calibrant._bins import ClusterSums
from calibrant.metrics._results import Interval, cluster_error, square_interval, student

DRAWS = 999  # of signs, for a p-value
MANY = 4096  # of normal numbers, for quantiles


def cluster_noise(sums: ClusterSums, variance: Tensor, level: float) -> Interval:
    r"""Distribution of $\sum_b |g_b|$ of a calibrated model, where the gaps g of clusters vary as they do here.

    The gap of a cluster in a bin is taken against that of the other clusters there (a jackknife), so that
    miscalibration, which they share, is no noise; the gap of a cluster that is alone in its bin counts as a whole. A
    bin varies no less than with independent events, of given `variance`. The quantiles are those of a multivariate t
    with a degree of freedom less than there are clusters, drawn by a fixed seed.
    """
    n, total = sums.mass.sum(0), float(sums.mass.sum())
    share = sums.mass / n
    alone = share > 1 - 1e-9
    own = (sums.gap - sums.mass * (sums.gap.sum(0) / n)) / (1 - share).where(~alone, 1.0)
    many = (sums.mass > 0).sum(0)
    spread = sums.gap.where(alone, own * ((many - 1).clamp_min(1) / many).sqrt()) / total
    rest = (variance / total**2 - spread.square().sum(0)).clamp_min(0)
    mean = math.sqrt(2 / math.pi) * float((spread.square().sum(0) + rest).sqrt().sum())
    degrees = int((sums.mass.sum(1) > 0).sum()) - 1
    if degrees < 1:
        return Interval(mean, 0.0, 1.0, level)
    generator = torch.Generator().manual_seed(0)
    parts = (torch.randn(MANY, size, generator=generator, dtype=torch.float64) for size in spread.shape)
    by_cluster, by_bin = (part.to(spread.device) for part in parts)
    scale = torch.randn(MANY, min(degrees, 200), generator=generator, dtype=torch.float64).square().mean(1).sqrt()
    drawn = (by_cluster @ spread + by_bin * rest.sqrt()).abs().sum(1) / scale.to(spread.device)
    tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64, device=drawn.device)
    low, high = drawn.quantile(tail).tolist()
    return Interval(mean, low, min(high, 1.0), level)


def signed_p_value(sums: ClusterSums, statistic: Callable[[Tensor], Tensor]) -> float:
    """How often clusters whose gaps had random signs would show a statistic as large (a wild cluster bootstrap).

    `statistic` takes rows of gaps by place. Signs are drawn by a fixed seed; the p-value is one of 1/1000, 2/1000, ...
    """
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, (DRAWS, len(sums.gap)), generator=generator).to(sums.gap) * 2 - 1
    observed = float(statistic(sums.gap.sum(0, keepdim=True)))
    drawn = statistic(signs @ sums.gap)
    return (1 + int((drawn >= observed - 1e-9 * abs(observed)).sum())) / (1 + DRAWS)


def squared_error_of_clusters(sums: ClusterSums, level: float) -> Interval:
    r"""Unbiased estimate of the squared error of norm 2 from pairs of examples of different clusters.

    In a bin, mu^2 is estimated by the mean of u_i u_j over such pairs; a bin with a single cluster says nothing. The
    interval is `square_interval` with the spread $2\, \mathrm{tr}\, C^2 + v$: C is the covariance of the bins' weighted
    gaps between clusters, lambda the variance along them, v what the bins' shares add.
    """
    some = sums.mass.sum(1) > 0
    mass, gap = sums.mass[some], sums.gap[some]
    m, n, total = len(mass), mass.sum(0), mass.sum()
    share = n / total
    pairs = n.square() - mass.square().sum(0)
    product = (gap.sum(0).square() - gap.square().sum(0)) / pairs
    product = product.where(pairs > 1e-9 * n.square(), 0.0)
    value = float((share * product).sum())
    if m < 3:
        return Interval(value, 0.0, 1.0, level)
    mean = gap.sum(0) / n
    each = (gap - mass * mean) / n * share.sqrt() * math.sqrt(m / (m - 1))
    at = mean * share.sqrt()
    along = float((each @ at).square().sum() / at.square().sum().clamp_min(1e-300))
    square = product.clamp_min(0)
    t = student(level, m - 1)
    spread = 2 * float((each.mT @ each).square().sum()) + cluster_error(mass.sum(1), mass @ square)[1] ** 2
    return square_interval(value, along, spread, t, level)
