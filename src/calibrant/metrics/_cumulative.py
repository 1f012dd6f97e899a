"""Bin-free errors: the largest excursions of a running sum over sorted examples, kernel errors, and their tests."""

import math
from collections.abc import Callable

import numpy as np

from calibrant._core.kernels.bins import MAX_CLUSTER_SLOTS, EventStatistics, GroupedScores
from calibrant._core.lazy import special
from calibrant._core.types import Count, Sums, Width
from calibrant.metrics._intervals import SUM_ROUNDING, Evidence
from calibrant.metrics._metric import metric
from calibrant.metrics._null import MIN_EVENT_VARIANCE, NUM_NULL_DRAWS, NullResiduals

__all__ = ["ks", "kuiper", "mmce", "skce"]

MAX_REFINED_P_VALUE = 0.01  # simulated p-value below which too few draws exceed the statistic


@metric(
    "Kuiper error",
    unit="share",
    meaning="largest cumulative gap over any range of confidences, without bins; tested with a p-value",
    term="Kuiper",
    is_calibration_error=True,
    test=lambda events: _path_test(events.by_score, _path_range, range_tail, reflections=4),
)
def kuiper(events: EventStatistics) -> float:
    r"""Return Kuiper's calibration error, $\max_k C_k - \min_k C_k$ (Arrieta-Ibarra et al. 2022, ECCE-R).

    $C_k = \frac1n \sum_{i \le k} (a_i - c_i)$ of correctness a and confidence c runs over examples sorted by
    confidence, from C_0 = 0, and is read only at the end of a tie. It is the largest difference of accuracy and mean
    confidence in any interval of confidences, times the share of examples there: the cutoff calibration error
    (Rossellini et al. 2025).

    The test compares with the range of a Brownian motion, the limit for a calibrated model with many distinct
    confidences. With at most 512 of them, with clusters, or if the variance of the number of events is below 20, it
    compares with 999 simulated calibrated models. They are too few for p-values below 0.01: for independent examples,
    the smaller of both p-values then counts. If events or non-events are rare, a limit with jumps, a Poisson process,
    takes the place of the Brownian motion for such p-values.

    >>> kuiper(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.25
    >>> print(kuiper.test(np.zeros((100, 2)), np.array([0] * 60 + [1] * 40)))
    0.1000 (p = 0.068)
    """
    return float(_path_range(cumulative_residuals(events.by_score)))


@metric(
    "Kolmogorov-Smirnov error",
    unit="share",
    meaning="largest cumulative gap over confidences up to any value, without bins",
    term="Kolmogorov-Smirnov",
    is_calibration_error=True,
    test=lambda events: _path_test(events.by_score, _path_supremum, supremum_tail, reflections=2),
)
def ks(events: EventStatistics) -> float:
    r"""Return the Kolmogorov-Smirnov calibration error, $\max_k |C_k|$ (Gupta et al. 2021; ECCE-MAD). See `kuiper`.

    The test is as for `kuiper`, with the supremum of the absolute value of a Brownian motion.

    >>> ks(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.25
    >>> print(ks.test(np.zeros((100, 2)), np.array([0] * 60 + [1] * 40)))
    0.1000 (p = 0.068)
    """
    return float(_path_supremum(cumulative_residuals(events.by_score)))


def _skce_test(
    events: EventStatistics, *, width: Width = 0.4, draws: Count = NUM_NULL_DRAWS, seed: int = 0
) -> Evidence:
    """Test the SKCE by simulating calibrated models, as described at `skce`."""
    null = NullResiduals.draw(events.by_score, draws, seed)

    def sum_over_pairs(gaps: np.ndarray) -> np.ndarray:
        """Return the sum of u_i u_j times the kernel over all pairs i != j, also those within a cluster.

        The gaps (r g) are the sums of u = correct - confidence of r samples in g groups of equal confidence v.
        """
        # undo the scaling of `NullResiduals` for fractional outcomes, to get the weight of the events
        hits = gaps / math.sqrt(null.dispersion) + null.total_weight * null.value
        # the sum of u^2: (1 - v)^2 for each hit, and v^2 for each miss
        self_pairs = (hits * (1 - 2 * null.value) + null.total_weight * np.square(null.value)).sum(-1)
        return kernel_sum(null.value, gaps, width) - null.dispersion * self_pairs

    return Evidence(float(skce_estimate(events.by_score, width)), null.p_value(sum_over_pairs))


@metric(
    "SKCE",
    meaning="unbiased squared kernel calibration error",
    is_calibration_error=True,
    test=_skce_test,
)
def skce(events: EventStatistics, *, width: Width = 0.4) -> float:
    r"""Return the squared kernel calibration error of the event, without bias (Widmann et al. 2019).

    $\mathrm{mean}_{i \ne j}\, u_i u_j e^{-|c_i - c_j| / w}$ with u = correct - confidence: their estimator with the
    Laplacian kernel and width w of Kumar et al. (2018), in O(n log n). Its mean is 0 for a calibrated model, so it can
    be negative; it is 0 for a single example, which has no pair.

    The test simulates calibrated models, `draws` times with `seed`: the p-value is exact for any number of examples, in
    steps of 1 / (draws + 1). It merges more than 512 distinct confidences into 512. In clusters, only pairs of examples
    of different clusters count in the value.

    >>> skce(np.zeros((2, 2)), np.array([0, 1]))  # u = 1/2 and -1/2, kernel 1
    -0.25
    >>> skce.test(np.zeros((100, 2)), np.array([0] * 80 + [1] * 20)).p_value
    0.001
    """
    return skce_estimate(events.by_score, width)


@metric(
    "MMCE",
    meaning="maximum mean calibration error with a kernel; biased upward",
    is_calibration_error=True,
)
def mmce(events: EventStatistics, *, width: Width = 0.4) -> float:
    r"""Return the maximum mean calibration error of Kumar et al. (2018).

    $\sqrt{\frac1{n^2} \sum_{ij} u_i u_j e^{-|c_i - c_j| / w}}$ with u = correct - confidence. Biased upward, as the
    pairs i = j count; `skce` leaves them out.

    >>> mmce(np.zeros((2, 2)), np.array([0, 0]))
    0.5
    """
    by_score = events.by_score
    return np.sqrt(np.maximum(kernel_sum(by_score.value, by_score.residual, width), 0)) / by_score.total_weight.sum()


def _path_test(
    by_score: GroupedScores, size: Callable[[np.ndarray], np.ndarray], tail: Callable[[float], float], reflections: int
) -> Evidence:
    """Test the size of the path C_0 .. C_g of a calibrated model, which nears a Brownian motion times sigma.

    The p-value is, by case:

    - every confidence is 0 or 1: 1 without an error, and 0 otherwise, since a single error contradicts them;
    - clusters: simulated;
    - at most 512 distinct confidences, or a variance of the number of events below 20: simulated, or that of
      `_process_tail` if it is smaller and the simulated one below 0.01;
    - otherwise that of `_process_tail`.

    Args:
        by_score: Sorted examples.
        size: Function of paths (..., g + 1) that returns their range or supremum.
        tail: Probability that a Brownian motion on [0, 1] has a larger range or supremum.
        reflections: Limit, for large values, of `tail` divided by the two-sided tail of the path's end.
    """
    statistic = float(size(cumulative_residuals(by_score)))
    weight, _, _, variance = by_score.cumulative_sums[:, -1].tolist()  # of all examples; variance of the event count
    if not variance:  # every confidence is 0 or 1
        return Evidence(statistic, float(statistic == 0))
    is_clustered = by_score.clusters is not None
    is_rich = len(by_score.value) > MAX_CLUSTER_SLOTS and variance >= MIN_EVENT_VARIANCE
    if is_rich and not is_clustered:
        return Evidence(statistic, _process_tail(by_score, statistic * weight, tail, reflections))
    simulated = NullResiduals.shared(by_score).p_value(lambda residuals: size(_running_sums(residuals)))
    if is_clustered or simulated >= MAX_REFINED_P_VALUE:
        return Evidence(statistic, simulated)
    # fewer than 10 of the 999 draws would decide
    return Evidence(statistic, min(simulated, _process_tail(by_score, statistic * weight, tail, reflections)))


def _process_tail(by_score: GroupedScores, x: float, tail: Callable[[float], float], reflections: int) -> float:
    r"""Return the probability that the path of event counts exceeds x: by a Brownian motion, or a process of jumps.

    If events or non-events are rare, few of them make a large path, and the Brownian motion has too small a tail. A
    p-value below 0.01 is therefore raised to `reflections` times the two-sided tail of the path's end (the reflection
    principle), of which the heavier side is that of a compensated Poisson process with the variance V of the count.
    Its jumps have the size a at which it has the skewness or the excess kurtosis of the count, whichever is larger:
    $a = \max(|\kappa_3| / V, \sqrt{\kappa_4 / V})$, which is 1 for rare events.
    """
    variance = float(by_score.cumulative_sums[3, -1])
    brownian = tail(x / math.sqrt(variance))
    if brownian >= MAX_REFINED_P_VALUE:
        return brownian
    from scipy.special import gammainc, gammaincc  # slow to import

    v = by_score.value * (1 - by_score.value)  # of one outcome; its cumulants are v (1 - 2 c) and v (1 - 6 v)
    share = by_score.variance / variance
    skewness, kurtosis = float(share @ (1 - 2 * by_score.value)), float(share @ (1 - 6 * v))
    jump = max(abs(skewness), math.sqrt(max(kurtosis, 0.0)))
    if jump * x < SUM_ROUNDING * variance:  # symmetric outcomes
        return brownian
    mean, distance = variance / jump**2, x / jump  # of the Poisson process, in jumps
    heavy = float(gammainc(mean + distance, mean))  # P(N >= mean + distance)
    light = float(gammaincc(mean - distance + 1, mean)) if distance <= mean else 0.0  # P(N <= mean - distance)
    asymmetry = abs(skewness) / jump  # 0 if both sides are equally heavy
    return max(brownian, min(reflections * (2 * heavy - asymmetry * (heavy - light)), MAX_REFINED_P_VALUE))


def cumulative_residuals(by_score: GroupedScores) -> np.ndarray:
    """Return C_0 .. C_g, the running sums of outcome minus confidence per unit of weight."""
    weight, confidence, outcome, _ = by_score.cumulative_sums
    return (outcome - confidence) / weight[-1]


def _running_sums(steps: np.ndarray) -> np.ndarray:
    """Return the running sums along the last dimension, starting at 0."""
    return np.concatenate([np.zeros((*steps.shape[:-1], 1)), steps.cumsum(-1)], axis=-1)


def _path_range(path: np.ndarray) -> np.ndarray:
    return np.asarray(path.max(-1) - path.min(-1))


def _path_supremum(path: np.ndarray) -> np.ndarray:
    return np.asarray(abs(path).max(-1))


def kernel_sum(value: np.ndarray, steps: np.ndarray, width: float) -> Sums:
    r"""Return $\sum_{gh} s_g s_h e^{-|v_g - v_h| / w}$ over pairs of groups of equal confidence, by one running sum.

    With v sorted, the terms h < g are $s_g e^{-v_g/w} \sum_{h < g} s_h e^{v_h/w}$. Exponentials are relative to the
    start of a block that spans 500 widths, so that none overflows.

    Args:
        value: Confidence v of each group, (g), increasing.
        steps: Factors s, (g) or several rows (r g).
        width: Width w of the kernel.

    Returns:
        A number, or one per row.
    """
    block = ((value - value[0]) / (500 * width)).astype(np.int64)  # e^500 is far below the largest float64, e^709
    ends = np.flatnonzero(np.diff(block)) + 1
    total, carried = np.square(steps).sum(-1), np.zeros((*steps.shape[:-1], 1))  # the terms g = h; running sum
    last = value[0]
    for v, s in zip(np.split(value, ends), np.split(steps, ends, axis=-1), strict=True):
        growth = np.exp((v - v[0]) / width)
        carried = carried * np.exp((last - v[0]) / width)  # running sum of earlier blocks, relative to this start
        sums = (s * growth).cumsum(-1) + carried
        total = total + 2 * (s / growth * (sums - s * growth)).sum(-1)  # the terms h < g, and as many h > g
        carried, last = sums[..., -1:] / growth[-1], v[-1]
    return total


def skce_estimate(by_score: GroupedScores, width: float) -> float:
    """Return the unbiased estimate of the squared kernel calibration error, the mean of u_i u_j times the kernel.

    The mean is over pairs of examples, with u = correct - confidence (see `skce`). Pairs of an example with itself are
    left out, and so are all pairs within a cluster. 0 without a pair.
    """
    n = by_score.total_weight.sum()
    if (sums := by_score.clusters) is not None:
        pairs = np.square(n) - np.square(sums.total_weight.sum(1)).sum()  # of examples of two clusters
        within = kernel_sum(sums.value, sums.residual, width).sum()  # sums of each cluster, added
        across = kernel_sum(sums.value, sums.residual.sum(0), width) - within
        return across / pairs if float(pairs) > SUM_ROUNDING * float(n) ** 2 else 0.0
    if float(n) <= 1:
        return 0.0
    # the pairs of an example with itself have the kernel 1 and sum to `residual_square`
    return (kernel_sum(by_score.value, by_score.residual, width) - by_score.residual_square) / (n * (n - 1))


def range_tail(r: float) -> float:
    r"""Return P(range of Brownian motion on [0, 1] > r), $8 \sum_k (-1)^{k-1} k (1 - \Phi(k r))$ (Feller 1951).

    >>> round(range_tail(2.497672161), 9)
    0.05
    """
    if r < 0.4:  # where the probability is 1 up to 3e-12, and the series converges slowly
        return 1.0
    k = np.arange(1, 101, dtype=float)
    terms = k * special.erfc(k * r / math.sqrt(2)) / 2  # 1 - Phi(x) is erfc(x / sqrt 2) / 2
    return min(1.0, max(0.0, 8 * _alternating_sum(terms)))


def supremum_tail(x: float) -> float:
    r"""Return P(sup |Brownian motion on [0, 1]| > x) (Feller 1951).

    $1 - \frac4\pi \sum_k \frac{(-1)^k}{2k+1} e^{-(2k+1)^2 \pi^2 / 8x^2}$, or the reflected series in the tail.

    >>> round(supremum_tail(2.241402727), 9)
    0.05
    """
    if x < 0.15:  # where the probability is 1 in float64
        return 1.0
    odd = 2 * np.arange(0, 50, dtype=float) + 1  # 2 k + 1
    if x > 2:  # the reflected series: no cancellation in the tail
        return min(1.0, 2 * _alternating_sum(special.erfc(odd * x / math.sqrt(2))))
    terms = np.exp(-(odd**2) * math.pi**2 / (8 * x**2)) / odd
    return min(1.0, max(0.0, 1 - 4 / math.pi * _alternating_sum(terms)))


def _alternating_sum(terms: np.ndarray) -> float:
    """Return the first term minus the second plus the third, and so on."""
    return float(terms[::2].sum() - terms[1::2].sum())
