"""Bin-free errors: running sums over the examples sorted by confidence, kernels, and their tests."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.backend.bins import ClusterSums, EventStatistics, GroupedScores
from calibrant.metrics._clusters import signed_p_value
from calibrant.metrics._intervals import Evidence
from calibrant.metrics._metric import metric
from calibrant.types import Count, Scalar, Width

__all__ = ["ks", "kuiper", "mmce", "skce"]


def _kuiper_test(events: EventStatistics) -> Evidence:
    return _path_test(events.ties, _path_range, range_sf)


@metric(
    "Kuiper error",
    unit="share",
    meaning="largest cumulative gap over any range of confidences, without bins; tested with a p-value",
    term="Kuiper",
    lay_phrase="largest difference that accumulates over any range of predictions",
    is_calibration_error=True,
    takes="statistics",
    test=_kuiper_test,
)
def kuiper(events: EventStatistics) -> Scalar:
    r"""Return Kuiper's calibration error, $\max_k C_k - \min_k C_k$ (Arrieta-Ibarra et al. 2022, ECCE-R).

    $C_k = \frac1n \sum_{i \le k} (a_i - c_i)$ of correctness a and confidence c runs over examples sorted by
    confidence, from C_0 = 0, and is read only at the end of a tie. It is the largest gap of any interval of
    confidences, times the share of examples there: the cutoff calibration error (Rossellini et al. 2025).

    The test compares with the range of a Brownian motion, the limit for a calibrated model with many examples: no bins
    and no simulation. It is conservative for few examples and for ties. If examples depend on each other in clusters,
    the signs of the clusters' paths are drawn at random (a wild bootstrap, read at 512 places).

    >>> kuiper(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    >>> print(kuiper.test(torch.zeros(100, 2), torch.tensor([0] * 60 + [1] * 40)))
    0.1000 (p = 0.181)
    """
    return _path_range(cumulative_gaps(events.ties))


def _ks_test(events: EventStatistics) -> Evidence:
    return _path_test(events.ties, _path_supremum, sup_sf)


@metric(
    "Kolmogorov-Smirnov error",
    unit="share",
    meaning="largest cumulative gap over confidences up to any value, without bins",
    term="Kolmogorov-Smirnov",
    lay_phrase="largest difference that accumulates from the lowest prediction on",
    is_calibration_error=True,
    takes="statistics",
    test=_ks_test,
)
def ks(events: EventStatistics) -> Scalar:
    r"""Return the Kolmogorov-Smirnov calibration error, $\max_k |C_k|$ (Gupta et al. 2021; ECCE-MAD). See `kuiper`.

    The test compares with the supremum of the absolute value of a Brownian motion.

    >>> ks(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    >>> print(ks.test(torch.zeros(100, 2), torch.tensor([0] * 60 + [1] * 40)))
    0.1000 (p = 0.091)
    """
    return _path_supremum(cumulative_gaps(events.ties))


def _skce_test(events: EventStatistics, *, width: Width = 0.4, draws: Count = 999, seed: int = 0) -> Evidence:
    """Test the SKCE by drawing outcomes from the confidences, or the signs of clusters; see `skce`."""
    ties, clusters = events.ties, events.ties.clusters
    statistic = float(skce_of(ties, width))
    if clusters is not None:
        return Evidence(statistic, signed_p_value(clusters, lambda gaps: kernel_sum(clusters, gaps, width)))

    def sum_over_pairs(ties: GroupedScores) -> Tensor:
        """Return the sum of the kernel over the pairs i != j."""
        return kernel_sum(ties, ties.gap, width) - self_pairs(ties)

    generator = torch.Generator(device=ties.value.device).manual_seed(seed)
    observed = sum_over_pairs(ties)
    exceeded = sum(bool(sum_over_pairs(draw_outcomes(ties, generator)) >= observed) for _ in range(draws))
    return Evidence(statistic, (exceeded + 1) / (draws + 1))


@metric(
    "SKCE",
    meaning="unbiased squared kernel calibration error",
    is_calibration_error=True,
    takes="statistics",
    test=_skce_test,
)
def skce(events: EventStatistics, *, width: Width = 0.4) -> Scalar:
    r"""Return the squared kernel calibration error of the event, without bias (Widmann et al. 2019).

    $\mathrm{mean}_{i \ne j}\, u_i u_j e^{-|c_i - c_j| / w}$ with u = correct - confidence: their estimator with the
    Laplacian kernel and width w of Kumar et al. (2018), in O(n log n). Its mean is 0 for a calibrated model, so it can
    be negative; it is 0 for a single example, which has no pair.

    The test draws outcomes from the confidences, `draws` times with `seed`: the p-value is exact for any number of
    examples, in steps of 1 / (draws + 1). Of examples in clusters, only pairs of different clusters count, at 512
    places, and the test draws the signs of clusters.

    >>> skce(torch.zeros(2, 2), torch.tensor([0, 1]))  # u = 1/2 and -1/2, kernel 1
    tensor(-0.2500, dtype=torch.float64)
    >>> skce.test(torch.zeros(100, 2), torch.tensor([0] * 80 + [1] * 20)).p_value
    0.001
    """
    return skce_of(events.ties, width)


@metric(
    "MMCE",
    meaning="maximum mean calibration error with a kernel; biased upward",
    is_calibration_error=True,
    takes="statistics",
)
def mmce(events: EventStatistics, *, width: Width = 0.4) -> Scalar:
    r"""Return the maximum mean calibration error of Kumar et al. (2018).

    $\sqrt{\frac1{n^2} \sum_{ij} u_i u_j e^{-|c_i - c_j| / w}}$ with u = correct - confidence. Biased upward, as the
    pairs i = j count; `skce` leaves them out.

    >>> mmce(torch.zeros(2, 2), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    """
    ties = events.ties
    return kernel_sum(ties, ties.gap, width).clamp_min(0).sqrt() / ties.total_weight.sum()


def draw_outcomes(ties: GroupedScores, generator: torch.Generator) -> GroupedScores:
    """Draw the outcomes of every group from its confidence."""
    count = ties.total_weight.ceil()
    hits = torch.binomial(count, ties.value, generator=generator) * ties.total_weight / count
    return GroupedScores(ties.value, ties.total_weight, hits)


def _path_test(ties: GroupedScores, size: Callable[[Tensor], Tensor], sf: Callable[[float], float]) -> Evidence:
    """Test the size of the path; dependent examples get no smaller a p-value than independent ones."""
    statistic = float(size(cumulative_gaps(ties)))
    sigma = math.sqrt(float(ties.variance.sum())) / float(ties.total_weight.sum())
    # with sigma 0 every confidence is 0 or 1, and a single error contradicts them
    p = sf(statistic / sigma) if sigma else float(statistic == 0)
    if ties.clusters is not None and p > 0:
        p = max(p, signed_p_value(ties.clusters, lambda gaps: size(_running_sums(gaps))))
    return Evidence(statistic, p)


def cumulative_gaps(ties: GroupedScores) -> Tensor:
    """Return C_0 .. C_g, the running sums of outcome minus confidence per unit of weight."""
    return _running_sums(ties.gap) / ties.total_weight.sum()


def _running_sums(steps: Tensor) -> Tensor:
    """Return the running sums from 0, of one row or of several."""
    return torch.nn.functional.pad(steps.cumsum(-1), (1, 0))


def _path_range(path: Tensor) -> Tensor:
    return path.amax(-1) - path.amin(-1)


def _path_supremum(path: Tensor) -> Tensor:
    return path.abs().amax(-1)


def kernel_sum(ties: GroupedScores | ClusterSums, steps: Tensor, width: float) -> Tensor:
    r"""Return $\sum_{gh} s_g s_h e^{-|v_g - v_h| / w}$ over groups, by one running sum.

    `steps` may hold several rows. Groups far apart are summed in blocks, so that no exponential overflows.
    """
    block = ((ties.value - ties.value[0]) / (500 * width)).long()
    sizes = block.unique_consecutive(return_counts=True)[1].tolist()
    total, reached, last = steps.square().sum(-1), steps.new_zeros(*steps.shape[:-1], 1), ties.value[0]
    for v, s in zip(ties.value.split(sizes), steps.split(sizes, -1), strict=True):
        growth = ((v - v[0]) / width).exp()
        reached = reached * ((last - v[0]) / width).exp()  # the sum of the blocks before, at the start of this one
        sums = (s * growth).cumsum(-1) + reached
        total = total + 2 * (s / growth * (sums - s * growth)).sum(-1)
        reached, last = sums[..., -1:] / growth[-1], v[-1]
    return total


def self_pairs(ties: GroupedScores) -> Tensor:
    """Return the sum over the pairs i = j, that of u^2."""
    miss = ties.total_weight - ties.correct
    return (ties.correct * (1 - ties.value).square() + miss * ties.value.square()).sum()


def skce_of(ties: GroupedScores, width: float) -> Scalar:
    """Return the unbiased estimator from sorted examples."""
    n = ties.total_weight.sum()
    if (sums := ties.clusters) is not None:
        pairs = n.square() - sums.total_weight.sum(1).square().sum()
        across = kernel_sum(sums, sums.gap.sum(0), width) - kernel_sum(sums, sums.gap, width).sum()
        return across / pairs if float(pairs) > 1e-9 * float(n) ** 2 else n.new_zeros(())
    if float(n) <= 1:
        return n.new_zeros(())
    return (kernel_sum(ties, ties.gap, width) - self_pairs(ties)) / (n * (n - 1))


def range_sf(r: float) -> float:
    r"""Return P(range of Brownian motion on [0, 1] > r), $8 \sum_k (-1)^{k-1} k (1 - \Phi(k r))$ (Feller 1951).

    >>> round(range_sf(2.497672161), 9)
    0.05
    """
    if r < 0.4:
        return 1.0
    k = torch.arange(1, 101, dtype=torch.float64)
    terms = k * torch.special.erfc(k * r / math.sqrt(2)) / 2
    return min(1.0, max(0.0, 8 * float(terms[::2].sum() - terms[1::2].sum())))


def sup_sf(x: float) -> float:
    r"""Return P(sup |Brownian motion on [0, 1]| > x) (Feller 1951).

    $1 - \frac4\pi \sum_k \frac{(-1)^k}{2k+1} e^{-(2k+1)^2 \pi^2 / 8x^2}$, or the reflected series in the tail.

    >>> round(sup_sf(2.241402727), 9)
    0.05
    """
    if x < 0.15:
        return 1.0
    if x > 2:  # the reflected series: no cancellation in the tail
        k = torch.arange(0, 50, dtype=torch.float64)
        tail = torch.special.erfc((2 * k + 1) * x / math.sqrt(2))
        return min(1.0, 2 * float(tail[::2].sum() - tail[1::2].sum()))
    k = torch.arange(0, 50, dtype=torch.float64)
    odd = 2 * k + 1
    terms = (-(odd**2) * math.pi**2 / (8 * x**2)).exp() / odd
    return min(1.0, max(0.0, 1 - 4 / math.pi * float(terms[::2].sum() - terms[1::2].sum())))
