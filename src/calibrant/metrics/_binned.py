"""Binned calibration errors: a norm of accuracy minus confidence over bins."""

import math
from dataclasses import replace
from typing import Literal

import numpy as np

from calibrant._core.kernels.bins import Bins, EventStatistics, mukhoti_edges
from calibrant._core.kernels.softmax import visit_probabilities
from calibrant._core.types import Count, Norm
from calibrant.metrics._class_sums import ClassBinSums, class_errors
from calibrant.metrics._intervals import Interval
from calibrant.metrics._metric import ErrorBins, metric
from calibrant.metrics._moments import Edges, bin_table, cluster_noise_interval, gap_norm, squared_error
from calibrant.metrics._noise import equal_mass_sums, equal_width_sums, noise_interval
from calibrant.metrics._scores import signed_gap
from calibrant.predictions import Predictions

__all__ = ["adaptive_ece", "adaptive_noise_floor", "classwise_ece", "debiased_l2", "ece", "mce", "noise_floor"]
__all__ += ["sweep_ece"]


def _ece_bins(bins: int = 15, norm: float = 1.0, edges: Edges = "equal_width") -> ErrorBins | None:
    return ErrorBins(bins, edges == "equal_mass") if norm == 1 else None


def _adaptive_ece_bins(bins: int = 15, edges: str = "equal_mass") -> ErrorBins:
    return ErrorBins(bins, is_equal_mass=True)


@metric(
    "ECE",
    unit="share",
    meaning="mean gap in bins of equal width; biased upward, so compare it with its noise floor",
    is_calibration_error=True,
    noise_floor="noise_floor",
    error_bins=_ece_bins,
)
def ece(events: EventStatistics, *, bins: Count = 15, norm: Norm = 1.0, edges: Edges = "equal_width") -> float:
    r"""Return the expected calibration error, $(\sum_b w_b |acc_b - conf_b|^p)^{1/p}$ (Guo et al. 2017, eq. 3).

    The event is that the predicted class is right, or the one that the predictions name. Biased upward: a perfectly
    calibrated model shows about 0.9 % on 5,000 examples with 15 bins; `noise_floor` computes this for any predictions.

    Args:
        events: Predictions, or logits and labels.
        bins: Number of bins (lo, hi], with float64 edges; confidence 0 belongs to the first.
        norm: The power p; 1 is the paper's, math.inf gives the largest gap.
        edges: "equal_width", the paper's, or "equal_mass".

    >>> ece(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.25
    """
    return gap_norm(bin_table(events, bins, edges), norm)


@metric(
    "adaptive ECE",
    unit="share",
    meaning="mean gap in bins with equal numbers of examples",
    is_calibration_error=True,
    noise_floor="adaptive_noise_floor",
    error_bins=_adaptive_ece_bins,
)
def adaptive_ece(
    events: EventStatistics, *, bins: Count = 15, edges: Literal["equal_mass", "mukhoti"] = "equal_mass"
) -> float:
    """Return the ECE over equal-mass bins (Nguyen & O'Connor 2015; Mukhoti et al. 2020, eq. 3).

    Args:
        events: Predictions, or logits and labels.
        bins: Number of bins.
        edges: "equal_mass" averages correctness over ties first, so that the value does not depend on the row order.
            "mukhoti" takes the authors' interpolated edges, which leave out the least confident example and reproduce
            their tables.

    >>> adaptive_ece(np.zeros((4, 2)), np.array([0, 0, 0, 1]), bins=2)
    0.25
    """
    by_score = events.by_score
    if edges == "equal_mass":
        return gap_norm(Bins.equal_mass(bins, by_score))
    # each group of equal confidences counts as one example of its total weight
    cuts = mukhoti_edges(by_score.value, bins, by_score.total_weight)
    return gap_norm(Bins.from_edges(cuts, by_score.value, by_score.accuracy, by_score.total_weight))


@metric(
    "MCE",
    unit="share",
    meaning="largest gap of any bin, often decided by few examples",
    is_calibration_error=True,
)
def mce(events: EventStatistics, *, bins: Count = 15) -> float:
    r"""Return the maximum calibration error, $\max_b |acc_b - conf_b|$ over non-empty bins (Guo et al. 2017, eq. 5).

    Often decided by a bin with a single example: `metrics.tables.bins(...)` has its count, at `.worst_bin`.

    >>> mce(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.25
    """
    return gap_norm(events.equal_width(bins), math.inf)


@metric(
    "class-wise ECE",
    unit="share",
    meaning="ECE of each class's probability, averaged over the classes",
    is_calibration_error=True,
    by_class=True,
)
def classwise_ece(p: Predictions, *, bins: Count = 15, reduction: Literal["mean", "sum"] = "mean") -> float:
    """Return the mean ECE over all classes j, with p_j as the forecast of y = j (Kull et al. 2019, eq. 3).

    Args:
        p: Predictions, or logits and labels. A class without examples counts.
        bins: Number of bins of equal width.
        reduction: "mean", which Mukhoti et al. (2020) print, or "sum", which Kull et al. print.

    >>> classwise_ece(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.25
    """
    cells = ClassBinSums(p, bins)
    visit_probabilities(p.logits, cells.visitor)  # adds all probabilities to the sums, in chunks
    errors = class_errors(cells.sums)
    return errors.mean() if reduction == "mean" else errors.sum()


def _squared_interval(events: EventStatistics, *, level: float, bins: Count = 15) -> Interval:
    """Return the debiased L2 error and its interval, as described at `debiased_l2`."""
    square = squared_error(events.moments(bins), level)  # estimate and interval of the squared error
    value = math.sqrt(max(square.value, 0.0))  # an unbiased estimate of a square may be negative
    bias = signed_gap.interval(events, level=level)  # the error is at least the absolute mean of confidence - accuracy
    high = max(math.sqrt(square.high), value, -bias.low, bias.high)
    # the interval holds the estimate, and no difference of probabilities is above 1
    return Interval(value, min(value, math.sqrt(square.low)), min(high, 1.0), level)


@metric(
    "debiased L2 error",
    unit="share",
    meaning="calibration error without the bias of ECE; 0 if chance explains the gaps",
    term="L2 error",
    is_calibration_error=True,
    interval=_squared_interval,
)
def debiased_l2(events: EventStatistics, *, bins: Count = 15, squared: bool = False) -> float:
    r"""Return the L2 calibration error without ECE's bias, the root of an unbiased estimate of its square.

    The square is $\sum_b w_b \,\mathrm{mean}_{i \ne j} u_i u_j$ over pairs in a bin of equal width, u = confidence -
    correct (Broecker 2012; Lee et al. 2023). Its mean is 0 for a calibrated model, so it can be negative; its root is
    then 0, as in the library of Kumar, Liang & Ma (2019). A bin with a single example adds nothing.

    The interval is valid at 0 and away from it: it holds the roots of the squares that the estimate does not reject, by
    `square_limits`, and the largest absolute value in the interval of `signed_gap`. In clusters, only pairs of examples
    of different clusters count, and the variance is estimated from the variation between clusters.

    Args:
        events: Predictions, or logits and labels.
        bins: Number of bins of equal width.
        squared: Return the unbiased square itself, with its sign.

    >>> debiased_l2(np.zeros((4, 2)), np.array([0, 0, 0, 1]))  # pairs: 3 of 1/4, 3 of -1/4
    0.0
    >>> print(debiased_l2.interval(np.zeros((4, 2)), np.array([0, 0, 0, 1])))
    0.0000 [0.0000, 0.7422]
    """
    square = squared_error(events.moments(bins), level=0.9).value  # any level: only the estimate is used
    return square if squared else math.sqrt(max(square, 0.0))


def _noise_floor_interval(events: EventStatistics, *, level: float, bins: Count = 15) -> Interval:
    """Return the mean ECE of a calibrated model with these confidences, and its central interval."""
    moments = events.moments(bins)
    independent = noise_interval(equal_width_sums(moments), None, level)
    if moments.clusters is None:
        return independent
    # the sums of clusters leave out the empty bins, as the mask does here
    occupied, weight = moments.total_weight > 0, moments.clusters.total_weight
    variance = moments.noise[occupied]
    unanimous = weight * np.sqrt(variance / moments.total_weight[occupied])
    return cluster_noise_interval(moments.clusters, np.diag(np.sqrt(variance)), unanimous, independent)


def _adaptive_noise_floor_interval(events: EventStatistics, *, level: float, bins: Count = 15) -> Interval:
    """Return the mean adaptive ECE of a calibrated model with these confidences, and its central interval."""
    by_score = events.by_score
    sums, shares = equal_mass_sums(bins, by_score)
    independent = noise_interval(sums, shares, level)
    if by_score.clusters is None:
        return independent
    clusters = by_score.clusters
    deviation = np.sqrt(np.maximum(clusters.value * (1 - clusters.value) * by_score.dispersion, 0))
    unanimous = replace(clusters, residual=clusters.total_weight * deviation).equal_mass(bins).residual
    # of every independent sum in every bin, without the bins that are empty
    deviations = np.sqrt(sums.variance * by_score.dispersion)[:, None] * shares[shares.any(1)].T
    return cluster_noise_interval(clusters.equal_mass(bins), deviations, unanimous, independent)


@metric(
    "noise floor of ECE",
    unit="share",
    higher_is_better=None,
    meaning="ECE of a calibrated model with these confidences: mean, central 90 %",
    interval=_noise_floor_interval,
    revision=2,
)
def noise_floor(events: EventStatistics, *, bins: Count = 15) -> float:
    r"""Return the mean ECE of a perfectly calibrated model with these confidences, computed without simulation.

    In every bin of this model the number of events is the sum of independent outcomes, whose distribution is known up
    to its shape: binomial if the bin has equal confidences, and nearly $\mathcal N(\sum c_i, \sum c_i (1 - c_i))$ if it
    has many examples. For large n the mean is thus $\sqrt{2/\pi} \sum_b \sqrt{\sum_{i \in b} c_i (1 - c_i)} / n$. The
    interval is the central interval of this ECE: at level 0.90 `high` is the 95 % quantile, below which an ECE is no
    evidence of miscalibration. If examples depend on each other in clusters, the bins vary as the clusters do.

    >>> round(noise_floor(np.zeros((100, 2)), np.zeros(100, dtype=int)), 4)  # E |B - 50| / 100 for B ~ Bin(100, 1/2)
    0.0398
    >>> print(noise_floor.interval(np.zeros((100, 2)), np.zeros(100, dtype=int)))
    0.0398 [0.0000, 0.1000]
    """
    return _noise_floor_interval(events, level=0.9, bins=bins).value


@metric(
    "noise floor of adaptive ECE",
    unit="share",
    higher_is_better=None,
    meaning="adaptive ECE of a calibrated model with these confidences: mean, central 90 %",
    interval=_adaptive_noise_floor_interval,
    revision=2,
)
def adaptive_noise_floor(events: EventStatistics, *, bins: Count = 15) -> float:
    """Return the mean adaptive ECE of a perfectly calibrated model with these confidences. See `noise_floor`.

    Examples of equal confidence share their mean outcome, so that bins which divide them vary together. The mean and
    the interval of such bins are drawn, with a fixed seed.

    >>> round(adaptive_noise_floor(np.zeros((100, 2)), np.zeros(100, dtype=np.int64), bins=1), 4)
    0.0398
    """
    return _adaptive_noise_floor_interval(events, level=0.9, bins=bins).value


@metric(
    "ECE-sweep",
    unit="share",
    meaning="largest number of equal-mass bins whose accuracies increase",
    is_calibration_error=True,
)
def sweep_ece(events: EventStatistics, *, norm: Norm = 1.0) -> float:
    r"""Return the ECE over the largest number of equal-mass bins with increasing accuracies (Roelofs et al. 2022).

    The number of bins grows one by one, up to the number of distinct confidences. It stops before the accuracy of a bin
    would be below the accuracy of the bin before it. `norm` is the power p of `ece`.

    >>> sweep_ece(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.25
    """
    by_score = events.by_score
    table = Bins.equal_mass(1, by_score)
    for bins in range(2, len(by_score.value) + 1):
        finer = Bins.equal_mass(bins, by_score)
        if bool((np.diff(finer.accuracy) < -1e-12).any()):  # less is rounding
            break
        table = finer
    return gap_norm(table, norm)
