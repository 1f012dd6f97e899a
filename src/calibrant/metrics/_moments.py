"""Results from sums over bins: error norms, the unbiased square of the L2 norm, and the noise distribution.

If examples are in clusters, chance comes from the variation between clusters. Clusters are taken as independent; the
examples of a cluster may depend on each other in any way.
"""

import math
from typing import Literal

import numpy as np

from calibrant._core.kernels.bins import Bins, ClusterSums, EventStatistics, Moments
from calibrant._core.types import Sums
from calibrant.metrics._intervals import (
    MIN_DIVISOR,
    SUM_ROUNDING,
    Interval,
    cluster_mean_error,
    square_limits,
    student_quantile,
)

Edges = Literal["equal_width", "equal_mass"]
NUM_NORMAL_DRAWS = 4096  # draws of normal numbers for quantiles
MAX_CHI_SQUARE_DRAWS = 200  # degrees of freedom above which a multivariate t is drawn as if it had so many
MAX_SIZE_RATIO = 1e6  # of a needed to the present number of examples
NUM_SIZE_RATIOS = 400  # that are tried, 3.5 % apart
MIN_SQUARED_GAP = 1e-12  # added to the squared gaps that weight bins, so that the weights are not all 0


def squared_error(moments: Moments, level: float) -> Interval:
    r"""Return an unbiased estimate of $\theta = \sum_b w_b \mu_b^2$, the squared L2 error, and its interval in [0, 1].

    $w_b$ is the share of the examples in bin b, and $\mu_b$ the mean of confidence - outcome there. If examples are in
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


def square_estimate(moments: Moments) -> tuple[Sums, Sums, Sums, Sums]:
    r"""Estimate $\theta = \sum_b w_b \mu_b^2$ from independent examples. Sums may have leading dimensions.

    In bin b with the share $w_b$ of n examples and the mean $\mu_b$ of u = confidence - outcome:

    - $\mu_b^2$ is estimated by the mean product $u_i u_j$ over the m (m - 1) pairs $i \ne j$ of its m examples.
    - $\sigma_b^2$, the variance of u, is at least as large as for a calibrated model: few u may be equal by chance.
    - If $\mu_b$ is 0, this estimate of $\mu_b^2$ has the variance $2 \sigma_b^4 / (m (m - 1))$.
    - The root of $\theta$ has the variance $(\sum_b w_b \mu_b^2 \sigma_b^2 / \theta + V / 4 \theta) / n$, with V the
      variance of $\mu_b^2$ over the examples, and $\theta$ at least the mean of the noise.

    Returns:
        The estimate; the mean of its noise if $\theta$ is 0, which was subtracted to make the estimate unbiased; the
        variance of this noise; and the variance of the root of the estimate.
    """
    m, n = moments.total_weight, moments.total_weight.sum(-1, keepdims=True)
    has_pairs = m > 1 + SUM_ROUNDING  # at least two examples
    m = np.where(has_pairs, m, 2.0)  # any number: bins without pairs get the share 0
    share, pairs = np.where(has_pairs, m / n, 0.0), m * (m - 1)
    mean_product = (np.square(moments.u_sum) - moments.u_square_sum) / pairs
    mu_square = np.maximum(mean_product, 0)
    sigma_square = np.maximum(moments.u_square_sum / m - mu_square, moments.noise / m)
    spread = share * sigma_square / np.sqrt(pairs)  # mean of the noise of each bin; its variance is 2 spread^2
    value, mean = (share * mean_product).sum(-1), spread.sum(-1)
    # the two terms of the variance of the root: sum w mu^2 sigma^2 / theta, and V
    weight = share * (np.square(moments.u_sum / m) + MIN_SQUARED_GAP)
    within = (weight * sigma_square).sum(-1) / weight.sum(-1)
    between = np.maximum((share * np.square(mu_square)).sum(-1) - np.square((share * mu_square).sum(-1)), 0)
    root_variance = (within + between / np.maximum(4 * np.maximum(value, mean), MIN_DIVISOR)) / n[..., 0]
    return value, mean, 2 * np.square(spread).sum(-1), root_variance


def ratio_for_bound(moments: Moments, gap_width: float, limit: float, level: float, power: float) -> float:
    r"""Return by how much the number of examples, or clusters, must grow so that the L2 error is below a limit.

    A calibrated model then has an upper bound below the limit with probability `power`. The moments of the noise of the
    square fall like 1 / n, its variance like 1 / n^2, and the half width of the gap's interval, `gap_width`, like
    $1 / \sqrt n$. The noise of the estimate has a gamma distribution, as in `square_limits`.

    Returns:
        The ratio, at least 1, or inf above a million.
    """
    from scipy.special import gammaincinv, ndtri  # slow to import

    if moments.clusters is not None:
        estimate, degrees = clustered_square(moments.clusters, moments.dispersion)
    else:
        estimate, degrees = square_estimate(moments), float(moments.total_weight.sum()) - 1
    _, mean, variance, root_variance = map(float, estimate)
    if degrees <= 0 or variance <= 0:
        return math.inf
    ratio = np.geomspace(1, MAX_SIZE_RATIO, NUM_SIZE_RATIOS)
    noise = gammaincinv(mean**2 / variance, power) * variance / mean - mean
    t, z = student_quantile(level, degrees), student_quantile(level, math.inf)
    _, square = square_limits(noise / ratio, mean / ratio, variance / ratio**2, root_variance / ratio, t)
    gap = gap_width / np.sqrt(ratio) * (1 + ndtri(power) / z)
    is_below = np.maximum(np.sqrt(square), gap) < limit
    return float(ratio[is_below.argmax()]) if is_below.any() else math.inf


def gap_norm(bins: Bins, norm: float = 1.0) -> float:
    r"""Return the norm $(\sum_b w_b |g_b|^p)^{1/p}$ of the differences g_b of accuracy and confidence.

    w_b is the share of the examples in bin b, and `norm` is p. For p = inf it is the largest difference of a bin with
    examples.
    """
    if math.isinf(norm):
        return abs(bins.gap)[bins.weight > 0].max()
    return (bins.weight * abs(bins.gap) ** norm).sum() ** (1 / norm)


def bin_table(events: EventStatistics, bins: int, edges: Edges) -> Bins:
    """Return the table of accuracy and confidence in bins of equal width or of equal mass."""
    return Bins.equal_mass(bins, events.by_score) if edges == "equal_mass" else events.equal_width(bins)


# Examples in clusters


def cluster_noise_interval(
    sums: ClusterSums, deviations: np.ndarray, unanimous: np.ndarray, independent: Interval
) -> Interval:
    r"""Return mean and quantiles of the ECE $\sum_b |g_b|$ of a calibrated model whose clusters vary as these do.

    $g_b$ is the sum of outcomes minus confidences in bin b, divided by the total weight. Its variance is
    $(1 - \rho) V_b + \rho U_b$: $V_b$ if events are independent, $U_b$ if the outcomes of a cluster deviate together,
    and $\rho$ their correlation (Kish 1965). $\rho$, one number for all bins, is fitted to the squared
    `_noise_residuals`. The quantiles are drawn with a fixed seed: independent noise, plus a multivariate t with the
    covariance of the residuals and one degree of freedom less than there are clusters.

    Args:
        sums: Sums of m clusters in b bins.
        deviations: Standard deviations of s independent sums in each bin if events are independent, (s b).
        unanimous: Standard deviation of the sum of each cluster if its outcomes deviate together, (m b).
        independent: Mean and quantiles if events are independent; those of no correlation.
    """
    total = float(sums.total_weight.sum())
    noise, deviations = _noise_residuals(sums) / total, deviations / total  # (m b), (s b)
    cluster_variance, variance = np.square(noise).sum(0), np.square(deviations).sum(0)  # (b)
    together = np.square(unanimous).sum(0) / total**2
    excess = together - variance
    products = (excess * (cluster_variance - variance)).sum()
    correlation = np.clip(products / np.maximum(np.square(excess).sum(), MIN_DIVISOR), 0, 1)
    between, within = correlation * together, (1 - correlation) * variance
    # As far as the numbers of independent events are not normal, neither are these
    normal_mean = math.sqrt(2 / math.pi) * float(np.sqrt(variance).sum())
    scale = independent.value / normal_mean if normal_mean else 1.0
    mean = scale * math.sqrt(2 / math.pi) * float(np.sqrt(between + within).sum())
    degrees, level = int((sums.total_weight.sum(1) > 0).sum()) - 1, independent.level
    if degrees < 1:  # a single cluster does not show how clusters vary
        return Interval(mean, 0.0, 1.0, level)
    if correlation == 0 or bool((abs(excess) <= SUM_ROUNDING * variance).all()):  # no cluster has two examples in a bin
        return independent
    generator = np.random.default_rng(0)

    def normal(size: int) -> np.ndarray:
        return generator.standard_normal((NUM_NORMAL_DRAWS, size))

    cluster_normals, normals = normal(len(noise)), normal(len(deviations))
    # sqrt(chi-square / degrees): normal numbers divided by this have a t distribution
    t_divisor = np.sqrt(np.square(normal(min(degrees, MAX_CHI_SQUARE_DRAWS))).mean(1, keepdims=True))
    noise = noise * np.sqrt(between / np.maximum(cluster_variance, MIN_DIVISOR))
    from_sums = np.sqrt(1 - correlation) * (normals @ deviations)
    drawn = scale * abs(cluster_normals @ noise / t_divisor + from_sums).sum(1)
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]).tolist()
    return Interval(mean, low, min(high, 1.0), level)


def _noise_residuals(sums: ClusterSums) -> np.ndarray:
    """Return the part of every cluster's residual that is noise, (m b), by a jackknife.

    A residual is a sum of outcomes minus confidences of a cluster in a bin. It is compared with the mean residual of
    the other clusters in the bin, which removes the miscalibration that they share. Without other clusters in the bin,
    the whole residual counts as noise.
    """
    n = sums.total_weight.sum(0)
    share = sums.total_weight / n  # of each cluster in the bin
    is_alone = share > 1 - SUM_ROUNDING
    # r - w (R - r) / (n - w) = (r - w R / n) / (1 - w / n), for the sums r and w of a cluster, R and n of the bin
    deviation = sums.residual - sums.total_weight * (sums.residual.sum(0) / n)  # from the mean over all clusters
    difference = deviation / np.where(~is_alone, 1 - share, 1.0)  # from the mean over the other clusters
    num_clusters = (sums.total_weight > 0).sum(0).astype(float)  # (b)
    scale = np.sqrt(np.maximum(num_clusters - 1, 1) / num_clusters)  # the squares then sum to the jackknife's variance
    return np.where(is_alone, sums.residual, difference * scale)


def draw_signs(num_draws: int, num_clusters: int, generator: np.random.Generator) -> np.ndarray:
    """Draw signs, -1 or 1, (num_draws, num_clusters)."""
    return generator.integers(0, 2, (num_draws, num_clusters), dtype=np.int8) * 2.0 - 1


def clustered_square(sums: ClusterSums, dispersion: float = 1.0) -> tuple[tuple[Sums, Sums, Sums, Sums], int]:
    r"""Estimate $\theta = \sum_b w_b \mu_b^2$ from pairs of examples of different clusters, as `square_estimate` does.

    $w_b$ is the share of the examples in bin b and $\mu_b$ the mean of u = outcome - confidence there. $\mu_b^2$ is
    estimated by the mean product $u_i u_j$ over these pairs; a bin with a single cluster adds nothing.

    C is the covariance of the $\sqrt{w_b} \mu_b$, estimated from the variation between clusters. The noise of the
    estimate has the mean tr C and the variance $2\, \mathrm{tr}\, C^2$. Both are at least as large as for calibrated
    examples that are independent. In a bin whose outcomes are all equal, which does not show how alike the outcomes of
    a cluster are, they are at least as large as for unanimous clusters.

    Args:
        sums: Sums of m clusters in b bins.
        dispersion: Variance of fractional outcomes relative to outcomes of 0 or 1.

    Returns:
        The estimate as `square_estimate` returns it, and the degrees of freedom, one less than there are clusters.
    """
    nonempty = sums.total_weight.sum(1) > 0
    weight, residual = sums.total_weight[nonempty], sums.residual[nonempty]
    m, n, total = len(weight), weight.sum(0), weight.sum()
    share, mean = n / total, residual.sum(0) / n
    pairs = np.square(n) - np.square(weight).sum(0)
    has_pairs = pairs > SUM_ROUNDING * np.square(n)
    product = np.square(residual.sum(0)) - np.square(residual).sum(0)
    product = np.where(has_pairs, product, 0.0) / np.where(has_pairs, pairs, 1.0)
    value = (share * product).sum()
    # (m b): C is the sum over clusters of the outer products of these rows
    deviations = (residual - weight * mean) / n * np.sqrt(share) * math.sqrt(m / max(m - 1, 1))
    direction = mean * np.sqrt(share)  # the root of theta is the norm of this vector, and varies along it
    root_variance = np.square(deviations @ direction).sum() / np.maximum(np.square(direction).sum(), MIN_DIVISOR)
    # standard error of theta as a mean of mu_b^2 over the examples: clusters differ in the bins that they fall into
    share_error = cluster_mean_error(weight.sum(1), weight @ np.maximum(product, 0))[0] if m > 1 else 0.0
    frequency = sums.value + mean  # of the event in each bin: confidence + (outcome - confidence)
    varies = (frequency > SUM_ROUNDING) & (frequency < 1 - SUM_ROUNDING)
    examples_per_cluster = np.where(varies, 1.0, np.square(weight).sum(0) / n)
    # variance of sqrt(w_b) mu_b of a calibrated model, times the cluster size where clusters may be unanimous
    independent = dispersion * sums.value * (1 - sums.value) / total * examples_per_cluster
    trace = np.maximum(np.square(deviations).sum(), independent.sum())
    variance = 2 * np.maximum(np.square(deviations.mT @ deviations).sum(), np.square(independent).sum())
    # the shares of the bins vary too, which moves theta by share_error and its root by share_error / (2 sqrt(theta))
    root_variance = root_variance + share_error**2 / np.maximum(4 * np.maximum(value, trace), MIN_DIVISOR)
    return (value, trace, variance, root_variance), m - 1
