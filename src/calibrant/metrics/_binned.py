"""Binned calibration errors: a norm of accuracy minus confidence over bins."""

import math
from typing import Literal

import torch
from torch import Tensor

from calibrant._bins import Bins, Events, equal_width_edges, equal_width_index, mukhoti_edges, softmax_chunks
from calibrant._types import Labels, Logits, PerExample, Scalar
from calibrant.metrics._moments import Moments, bin_table, noise, norm_of
from calibrant.metrics._results import Interval

__all__ = ["adaptive_ece", "classwise_ece", "debiased_l2", "ece", "mce", "noise_floor", "sweep_ece"]

Edges = Literal["equal_width", "equal_mass"]


def ece(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    norm: float = 1.0,
    edges: Edges = "equal_width",
    index: int | None = None,
    weights: PerExample | None = None,
) -> Scalar:
    r"""Expected calibration error, $(\sum_b w_b |acc_b - conf_b|^p)^{1/p}$, p = 1 (Guo et al. 2017, eq. 3).

    Bins are (lo, hi] with float64 edges; confidence 0 belongs to the first. Of the predicted class, or of class
    `index` against the rest. Biased upward: a perfectly calibrated model shows about 0.9 % on 5,000 examples with 15
    bins, which `noise_floor` tells for the model at hand.

    >>> ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    events = Events.top(logits, labels, weights) if index is None else Events.one(logits, labels, index, weights)
    table = bin_table(events, bins, edges)
    return norm_of(table.weight, table.gap, norm)


def adaptive_ece(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    edges: Literal["equal_mass", "mukhoti"] = "equal_mass",
    weights: PerExample | None = None,
) -> Scalar:
    """ECE over bins that hold equal numbers of examples (Nguyen & O'Connor 2015; Mukhoti et al. 2020, eq. 3).

    "equal_mass" averages correctness over ties first, so that the value does not depend on the row order. "mukhoti"
    takes the authors' interpolated edges, which leave out the least confident example and reproduce their tables.

    >>> adaptive_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), bins=2)
    tensor(0.2500, dtype=torch.float64)
    """
    events = Events.top(logits, labels, weights)
    if edges == "mukhoti":
        c = events.confidence
        return _mean_gap(Bins.between(mukhoti_edges(c, bins), c, events.correct, weights))
    return _mean_gap(Bins.equal_mass_of(bins, events.ties))


def mce(logits: Logits, labels: Labels, *, bins: int = 15, weights: PerExample | None = None) -> Scalar:
    r"""Maximum calibration error, $\max_b |acc_b - conf_b|$ over non-empty bins (Guo et al. 2017, eq. 5).

    Often decided by a bin that holds a single example: `metrics.tables.bins(...)` has its count, at `.worst`.

    >>> mce(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    return ece(logits, labels, bins=bins, norm=math.inf, weights=weights)


def classwise_ece(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    reduction: Literal["mean", "sum"] = "mean",
    weights: PerExample | None = None,
) -> Scalar:
    """Mean over classes j of the ECE of p_j as a forecast of y = j (Kull et al. 2019, eq. 3).

    The mean is what Mukhoti et al. (2020) print; Kull et al. print the sum. A class without examples counts.

    >>> classwise_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    per_class = class_cells(logits, labels, bins, weights)[:, :, 1:].diff(dim=2).abs().sum((1, 2))
    return per_class.mean() if reduction == "mean" else per_class.sum()


def debiased_l2(
    logits: Logits, labels: Labels, *, bins: int = 15, squared: bool = False, weights: PerExample | None = None
) -> Scalar:
    r"""Calibration error of norm 2 without the bias of ECE: the signed root of an unbiased estimate of its square.

    The square is $\sum_b w_b \,\mathrm{mean}_{i \ne j} u_i u_j$ over pairs in a bin of equal width, u = confidence -
    correct (Broecker 2012; Lee et al. 2023). Its mean is 0 for a calibrated model, so it can be negative; then its
    root is printed with that sign. `squared` gives the square itself. `metrics.intervals.debiased_l2` adds the
    interval. A bin with a single example says nothing.

    >>> debiased_l2(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))  # pairs: 3 of 1/4, 3 of -1/4
    tensor(0., dtype=torch.float64)
    """
    value = Moments.of(Events.top(logits, labels, weights), bins).squared(0.9).value
    value = value if squared else math.copysign(math.sqrt(abs(value)), value)
    return torch.tensor(value, dtype=torch.float64, device=logits.device)


def noise_floor(
    logits: Logits, labels: Labels, *, bins: int = 15, edges: Edges = "equal_width", weights: PerExample | None = None
) -> Scalar:
    r"""The ECE that a perfectly calibrated model with these confidences shows on average, by formula.

    $\sqrt{2/\pi} \sum_b \sqrt{\sum_{i \in b} c_i (1 - c_i)} / n$: the gap of a bin is nearly normal. An ECE below the
    95 % quantile, which `metrics.intervals.noise_floor` gives, is no sign of miscalibration.

    >>> noise_floor(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64))  # sqrt(2 / pi) sqrt(100 / 4) / 100
    tensor(0.0399, dtype=torch.float64)
    """
    floor = floor_of(Events.top(logits, labels, weights), bins, edges, 0.9)
    return torch.tensor(floor.value, dtype=torch.float64, device=logits.device)


def sweep_ece(logits: Logits, labels: Labels, *, norm: float = 1.0, weights: PerExample | None = None) -> Scalar:
    r"""ECE over as many equal-mass bins as leave their accuracies increasing (ECE-sweep, Roelofs et al. 2022).

    Bins are added one by one, up to the number of distinct confidences, until an accuracy falls below that of the
    bin before it.

    >>> sweep_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    ties = Events.top(logits, labels, weights).ties
    table = Bins.equal_mass_of(1, ties)
    for bins in range(2, len(ties.value) + 1):
        finer = Bins.equal_mass_of(bins, ties)
        if bool((finer.accuracy.diff() < -1e-12).any()):
            break
        table = finer
    return norm_of(table.weight, table.gap, norm)


def floor_of(events: Events, bins: int, edges: Edges, level: float) -> Interval:
    """Noise floor of bins of equal width or mass."""
    if edges == "equal_width":
        return Moments.of(events, bins).floor(level)
    return mass_floor(events, bins, level)


def mass_floor(events: Events, bins: int, level: float) -> Interval:
    """Noise floor of bins of equal mass."""
    return noise(Bins.spread_of(bins, events.ties).sqrt() / events.ties.mass.sum(), level)


def class_cells(logits: Logits, labels: Labels, bins: int, weights: PerExample | None) -> Tensor:
    """Per class and bin of equal width of its probability: shares of the mass, of the forecasts, of the outcomes.

    Most probabilities lie in the first bin: what lies above it is picked out, the first bin is the rest.
    """
    n, k = logits.shape
    edges = equal_width_edges(bins).to(logits.device)
    w = torch.ones(n, dtype=torch.float64, device=logits.device) if weights is None else weights.double()
    cells = torch.zeros(3, k * bins, dtype=torch.float64, device=logits.device)
    first = torch.zeros(3, k, dtype=torch.float64, device=logits.device)
    first[0] = w.sum()
    first[2].index_add_(0, labels, w)
    for rows, p in softmax_chunks(logits):
        w_rows = w[rows]
        first[1] += w_rows @ p
        row, column = (p > edges[1]).nonzero(as_tuple=True)
        high, weight = p[row, column], w_rows[row]
        index = column * bins + equal_width_index(bins, high)
        hit = weight * (labels[rows][row] == column)
        for total, values in zip(cells, (weight, weight * high, hit)):
            total += torch.bincount(index, values, minlength=k * bins)
    table = cells.view(3, k, bins)
    table[:, :, 0] += first - table.sum(2)
    return (table / w.sum()).permute(1, 2, 0)


def _mean_gap(bins: Bins) -> Scalar:
    return norm_of(bins.weight, bins.gap, 1.0)
