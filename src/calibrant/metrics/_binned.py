"""Binned calibration errors: a norm of accuracy minus confidence over bins."""

import math
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor

from calibrant.backend.bins import Bins, EventStatistics, equal_width_edges, equal_width_index, mukhoti_edges
from calibrant.backend.dispatch import kernels
from calibrant.backend.softmax import RowCallback, visit_probabilities
from calibrant.metrics._clusters import cluster_noise_interval
from calibrant.metrics._intervals import Interval
from calibrant.metrics._metric import metric
from calibrant.metrics._moments import Edges, bin_table, gap_norm, noise_interval, squared_error
from calibrant.predictions import Predictions
from calibrant.types import Count, Norm, Scalar

__all__ = ["adaptive_ece", "adaptive_noise_floor", "classwise_ece", "debiased_l2", "ece", "mce", "noise_floor"]
__all__ += ["sweep_ece"]


@metric(
    "ECE",
    unit="share",
    meaning="bins of equal width; biased upward, so read it against its floor",
    plain="typical gap between what is said and what happens",
    takes="events",
)
def ece(events: EventStatistics, *, bins: Count = 15, norm: Norm = 1.0, edges: Edges = "equal_width") -> Scalar:
    r"""Expected calibration error, $(\sum_b w_b |acc_b - conf_b|^p)^{1/p}$, p = 1 (Guo et al. 2017, eq. 3).

    Bins are (lo, hi] with float64 edges; confidence 0 belongs to the first. Of the predicted class, or of the event
    that the predictions name. Biased upward: a perfectly calibrated model shows about 0.9 % on 5,000 examples with 15
    bins, which `noise_floor` tells for the model at hand.

    >>> ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    table = bin_table(events, bins, edges)
    return gap_norm(table.weight, table.gap, norm)


@metric(
    "adaptive ECE",
    unit="share",
    meaning="bins of equal numbers of examples, ties averaged",
    plain="the same gap, over portions of equally many examples",
    takes="events",
)
def adaptive_ece(
    events: EventStatistics, *, bins: Count = 15, edges: Literal["equal_mass", "mukhoti"] = "equal_mass"
) -> Scalar:
    """ECE over bins that hold equal numbers of examples (Nguyen & O'Connor 2015; Mukhoti et al. 2020, eq. 3).

    "equal_mass" averages correctness over ties first, so that the value does not depend on the row order. "mukhoti"
    takes the authors' interpolated edges, which leave out the least confident example and reproduce their tables.

    >>> adaptive_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), bins=2)
    tensor(0.2500, dtype=torch.float64)
    """
    ties = events.ties
    if edges == "equal_mass":
        return _mean_gap(Bins.equal_mass(bins, ties))
    cuts = mukhoti_edges(ties.value, bins, ties.total_weight)
    return _mean_gap(Bins.from_edges(cuts, ties.value, ties.accuracy, ties.total_weight))


@metric(
    "MCE",
    unit="share",
    meaning="the largest gap of any bin, often decided by few examples",
    takes="events",
    plain="largest gap of any portion of the examples",
)
def mce(events: EventStatistics, *, bins: Count = 15) -> Scalar:
    r"""Maximum calibration error, $\max_b |acc_b - conf_b|$ over non-empty bins (Guo et al. 2017, eq. 5).

    Often decided by a bin that holds a single example: `metrics.tables.bins(...)` has its count, at `.worst`.

    >>> mce(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    table = events.equal_width(bins)
    return gap_norm(table.weight, table.gap, math.inf)


@metric(
    "class-wise ECE",
    unit="share",
    meaning="every class's probability against its frequency, mean over classes",
    plain="typical gap of every class's own probability",
    takes="predictions",
)
def classwise_ece(p: Predictions, *, bins: Count = 15, reduction: Literal["mean", "sum"] = "mean") -> Scalar:
    """Mean over classes j of the ECE of p_j as a forecast of y = j (Kull et al. 2019, eq. 3).

    The mean is what Mukhoti et al. (2020) print; Kull et al. print the sum. A class without examples counts.

    >>> classwise_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    cells = ClassBinSums(p, bins)
    visit_probabilities(p.logits, cells)
    per_class = cells.ece
    return per_class.mean() if reduction == "mean" else per_class.sum()


def _squared_interval(events: EventStatistics, *, level: float, bins: Count = 15) -> Interval:
    square = squared_error(events.moments(bins), level)
    value = math.sqrt(max(square.value, 0.0))
    return Interval(value, min(value, math.sqrt(square.low)), math.sqrt(square.high), level)


@metric(
    "debiased L2 error",
    unit="share",
    meaning="without the bias of ECE: 0 where chance explains all",
    plain="typical gap without what chance adds to it, large ones counting more",
    takes="events",
    interval=_squared_interval,
)
def debiased_l2(events: EventStatistics, *, bins: Count = 15, squared: bool = False) -> Scalar:
    r"""Calibration error of norm 2 without the bias of ECE: the root of an unbiased estimate of its square.

    The square is $\sum_b w_b \,\mathrm{mean}_{i \ne j} u_i u_j$ over pairs in a bin of equal width, u = confidence -
    correct (Broecker 2012; Lee et al. 2023). Its mean is 0 for a calibrated model, so it can be negative; then 0 is
    returned for its root, as in the library of Kumar, Liang & Ma (2019). `squared` gives the square itself, without
    bias and with its sign. A bin with a single example says nothing.

    The interval is valid at 0 and away from it: it holds the squares that the U-statistic does not refute, with
    Hoeffding's variance in each bin for that square plus that of the bins' shares, in roots. Of examples in clusters
    only pairs of different ones count, and the variance is the clusters'.

    >>> debiased_l2(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))  # pairs: 3 of 1/4, 3 of -1/4
    tensor(0., dtype=torch.float64)
    >>> print(debiased_l2.interval(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])))
    0.0000 [0.0000, 1.0000]
    """
    moments = events.moments(bins)
    value = squared_error(moments, 0.9).value
    return moments.total_weight.new_tensor(value if squared else math.sqrt(max(value, 0.0)))


def _noise_floor_interval(events: EventStatistics, *, level: float, bins: Count = 15) -> Interval:
    moments = events.moments(bins)
    if moments.clusters is not None:
        return cluster_noise_interval(moments.clusters, moments.variance[moments.total_weight > 0], level)
    return noise_interval(moments.variance.sqrt() / moments.total_weight.sum(), level)


def _adaptive_noise_floor_interval(events: EventStatistics, *, level: float, bins: Count = 15) -> Interval:
    ties = events.ties
    if ties.clusters is not None:
        sums = ties.clusters.equal_mass(bins)
        return cluster_noise_interval(sums, (sums.total_weight * sums.value * (1 - sums.value)).sum(0), level)
    return noise_interval(Bins.equal_mass_variance(bins, ties).sqrt() / ties.total_weight.sum(), level)


@metric(
    "noise floor of ECE",
    unit="share",
    higher_is_better=None,
    meaning="ECE of a calibrated model with these confidences: mean, central 90 %",
    plain="gap that even true probabilities show by chance",
    takes="events",
    interval=_noise_floor_interval,
)
def noise_floor(events: EventStatistics, *, bins: Count = 15) -> Scalar:
    r"""The ECE that a perfectly calibrated model with these confidences shows on average, by formula.

    $\sqrt{2/\pi} \sum_b \sqrt{\sum_{i \in b} c_i (1 - c_i)} / n$: the gap of a bin is nearly normal. Its interval is
    the central one of that ECE: at level 0.90 `high` is the 95 % quantile, below which an ECE is no sign of
    miscalibration. Where examples depend on each other within clusters, the gaps vary as those of the clusters do.

    >>> noise_floor(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64))  # sqrt(2 / pi) sqrt(100 / 4) / 100
    tensor(0.0399, dtype=torch.float64)
    >>> print(noise_floor.interval(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64)))
    0.0399 [0.0031, 0.0980]
    """
    return torch.tensor(_noise_floor_interval(events, level=0.9, bins=bins).value, dtype=torch.float64)


@metric(
    "noise floor of adaptive ECE",
    unit="share",
    higher_is_better=None,
    meaning="the same for adaptive ECE",
    plain="what of that other gap is chance",
    takes="events",
    interval=_adaptive_noise_floor_interval,
)
def adaptive_noise_floor(events: EventStatistics, *, bins: Count = 15) -> Scalar:
    """The adaptive ECE that a perfectly calibrated model with these confidences shows on average. See `noise_floor`.

    >>> adaptive_noise_floor(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64), bins=1)
    tensor(0.0399, dtype=torch.float64)
    """
    return torch.tensor(_adaptive_noise_floor_interval(events, level=0.9, bins=bins).value, dtype=torch.float64)


@metric(
    "ECE-sweep",
    unit="share",
    meaning="as many bins of equal mass as leave their accuracies increasing",
    plain="typical gap, over as many portions as the data bear",
    takes="events",
)
def sweep_ece(events: EventStatistics, *, norm: Norm = 1.0) -> Scalar:
    r"""ECE over as many equal-mass bins as leave their accuracies increasing (ECE-sweep, Roelofs et al. 2022).

    Bins are added one by one, up to the number of distinct confidences, until an accuracy falls below that of the
    bin before it.

    >>> sweep_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    ties = events.ties
    table = Bins.equal_mass(1, ties)
    for bins in range(2, len(ties.value) + 1):
        finer = Bins.equal_mass(bins, ties)
        if bool((finer.accuracy.diff() < -1e-12).any()):
            break
        table = finer
    return gap_norm(table.weight, table.gap, norm)


class ClassBinSums:
    """Per class and bin of equal width of its probability: the mass, and what was said and what happened there.

    Shown all rows piece by piece. Most probabilities lie in the first bin: what lies above it is picked out, the first
    bin is the rest.
    """

    def __init__(self, p: Predictions, bins: int = 15) -> None:
        self.bins, self.labels, self.weights = bins, p.labels, p.weights
        self.min_rows = 128 * bins  # of so many the probabilities take much more room than the sums
        self._k, self._edges = p.k, equal_width_edges(bins).numpy()
        self._parts: list[tuple[Tensor, Tensor]] = []  # what was said (k), and the sums above the first bin (3 k*b)

    def begin_chunk(self) -> RowCallback:
        """Who takes in the probabilities (rows, k) of some rows, in sums of its own."""
        zeros = partial(torch.zeros, dtype=torch.float64, device=self.labels.device)
        sums = zeros(self._k), zeros(3, self._k * self.bins)
        self._parts.append(sums)
        return partial(self._add, *sums)

    def _add(self, prob_sums: Tensor, bin_sums: Tensor, rows: slice, probs: Tensor) -> None:
        y = self.labels[rows]
        w = torch.ones_like(y, dtype=torch.float64) if self.weights is None else self.weights[rows]
        # not by BLAS, whose last bit may differ from thread to thread
        prob_sums += (probs if self.weights is None else probs * w[:, None]).sum(0)
        if fast := kernels(probs):
            fast.add_class_bins(probs.T.contiguous().numpy(), y.numpy(), w.numpy(), self._edges, bin_sums.numpy())
            return
        row, column = (probs > float(self._edges[1])).nonzero(as_tuple=True)
        values_above, weight = probs[row, column], w[row]
        index = column * self.bins + equal_width_index(self.bins, values_above)
        hit = weight * (y[row] == column)
        for total, values in zip(bin_sums, (weight, weight * values_above, hit)):
            total += torch.bincount(index, values, minlength=len(total))

    @cached_property
    def sums(self) -> Tensor:
        """Sums over the examples (k, b, 3): how many, what was said, what happened."""
        (prob_sums, bin_sums), *other_parts = self._parts
        for more_said, more_above in other_parts:
            prob_sums += more_said
            bin_sums += more_above
        del self._parts[1:]
        table = bin_sums.view(3, -1, self.bins).clone()
        table[:, :, 0] += torch.stack(
            [self._label_weights.sum().expand(self._k), prob_sums, self._label_weights]
        ) - table.sum(2)
        return table.permute(1, 2, 0)

    @cached_property
    def _label_weights(self) -> Tensor:
        return torch.bincount(self.labels, self.weights, minlength=self._k).double()

    @property
    def ece(self) -> Tensor:
        """Calibration error of every class (k)."""
        return self.sums[:, :, 1:].diff(dim=2).abs().sum((1, 2)) / self._label_weights.sum()


def _mean_gap(bins: Bins) -> Scalar:
    return gap_norm(bins.weight, bins.gap, 1.0)
