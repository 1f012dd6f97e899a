"""Tables behind the numbers: the bins of an error, and one row per class, group or threshold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from calibrant._core.kernels.bins import Bins, EventStatistics, GroupedScores, allow_rounding
from calibrant._core.types import Count, InputError, OpenFraction, check_arguments
from calibrant.metrics import _binned
from calibrant.metrics._class_sums import Classes, ClassSums
from calibrant.metrics._intervals import Interval, share_limits
from calibrant.metrics._moments import Edges, bin_table
from calibrant.metrics._null import NullResiduals
from calibrant.metrics._ranking import sums_from
from calibrant.metrics._scores import signed_gap, weighted_mean
from calibrant.metrics._summary import Summary
from calibrant.metrics.curves import cluster_precision_limits
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.validation.arrays import to_column

__all__ = ["ClassSums", "Classes", "Groups", "Thresholds", "bins", "classes", "groups", "thresholds", "thresholds_of"]

MAX_SIMULATED_LEVEL = 0.99 + 1e-9  # at higher levels, fewer than ten of the 999 simulations would decide
NEXT_TO_ZERO = 1e-9  # end of the interval of a gap that is not 0
GROUP_RECORD_FIELDS = {  # keys of records, and the attributes of `Groups` that they hold
    "count": "count",
    "said": "mean_confidence",
    "happened": "frequency",
    **{name: name for name in ("gap", "low", "high", "ece", "floor", "floor_high", "nll")},
}


@dataclass(frozen=True, eq=False)
class Groups:
    """One row per group, as tensors of length g."""

    names: tuple[str, ...]
    level: float  # probability that all intervals of `gap` hold
    count: np.ndarray  # total weight
    mean_confidence: np.ndarray
    frequency: np.ndarray  # of the event
    low: np.ndarray  # simultaneous interval of `gap`
    high: np.ndarray
    ece: np.ndarray
    floor: np.ndarray  # mean ECE of a calibrated model with these confidences,
    floor_high: np.ndarray  # and the upper end of its central interval
    nll: np.ndarray

    @property
    def gap(self) -> np.ndarray:
        """Mean confidence minus frequency: positive if overconfident."""
        return self.mean_confidence - self.frequency

    @property
    def significant_gap(self) -> np.ndarray:
        """Distance of the interval of `gap` from 0, which is 0 if chance explains the difference."""
        return np.maximum(np.maximum(self.low, -self.high), 0)

    @property
    def worst_first(self) -> list[int]:
        """Group indices by decreasing significant gap, then by decreasing absolute gap."""
        keys = zip(self.significant_gap.tolist(), abs(self.gap).tolist(), strict=True)
        return [i for i, _ in sorted(enumerate(keys), key=lambda pair: pair[1], reverse=True)]

    def records(self) -> list[dict[str, Any]]:
        """Return a row per group, worst first."""
        lists = {key: getattr(self, name).tolist() for key, name in GROUP_RECORD_FIELDS.items()}
        return [{"group": self.names[i]} | {key: values[i] for key, values in lists.items()} for i in self.worst_first]

    def macro(self, key: str) -> float:
        """Return the unweighted mean over the groups of a column such as "ece"."""
        return float(getattr(self, GROUP_RECORD_FIELDS[key]).mean())


@check_arguments
def groups(
    p: Predictions | Summary,
    *,
    bins: Count = 15,
    level: OpenFraction = 0.90,
    by: Literal["groups", "row_groups"] = "groups",
) -> Groups | None:
    """Return the table of gaps, ECE and NLL with a row for every group with examples, or None without groups.

    Args:
        p: Predictions with groups, or a summary of them.
        bins: Number of bins of ECE and its floor.
        level: Probability that the intervals of confidence minus frequency hold for all groups (Bonferroni). They are
            computed from clusters if there are any. An interval of clusters that fails with a probability of 1 % or
            more excludes 0 if and only if 999 simulated calibrated models do not explain the gap.
        by: "row_groups" takes the second grouping, by row, which predictions with several labels per example have.

    Raises:
        InputError: If the level is not in (0, 1), or the number of bins is below 1.

    >>> p = Predictions([[0.0, 0.0]] * 8, [0, 0, 0, 1] * 2, of=1, groups=["a"] * 4 + ["b"] * 4)
    >>> table = groups(p)
    >>> table.gap, table.ece
    (array([0.25, 0.25]), array([0.25, 0.25]))
    """
    if isinstance(p, Summary):
        sums = p.groups if by == "groups" else p.row_groups
        rows = [(name, group, group.mean("nll")) for name, group in sums or () if group.total_weight > 0]
        return _build_groups(rows, bins, level)
    group, names = (p.groups, p.group_names) if by == "groups" else (p.row_groups, p.row_group_names)
    if group is None or names is None:
        return None
    with as_predictions(p):
        events, loss = p.events, 0.0 - p.log_likelihood
        rows = []
        ends = np.bincount(group, minlength=len(names)).cumsum()[:-1]
        for name, index in zip(names, np.split(group.argsort(kind="stable"), ends), strict=True):  # rows of the group
            w = None if p.weights is None else p.weights[index]
            if len(index) and (w is None or float(w.sum()) > 0):  # a group without weight has no means
                rows.append((name, events[index], float(weighted_mean(loss[index], w))))
        return _build_groups(rows, bins, level)


def _build_groups(rows: Sequence[tuple[str, EventStatistics, float]], bins: int, level: float) -> Groups | None:
    """Build the table of `groups` from the name, event and NLL of every group, or return None without groups."""
    if not rows:
        return None
    gap_level = 1 - (1 - level) / len(rows)  # Bonferroni: the intervals of all groups hold together
    columns = [_group_row(events, nll, bins, level, gap_level) for _, events, nll in rows]
    return Groups(tuple(name for name, *_ in rows), level, *np.array(columns).T)


def _group_row(events: EventStatistics, nll: float, bins: int, level: float, gap_level: float) -> list[float]:
    """Return the columns of `Groups` for one group, in the order of its fields after `level`.

    `level` is that of the interval of the noise floor, `gap_level` that of the interval of the gap.
    """
    moments, gap = events.moments(bins), signed_gap.interval(events, level=gap_level)
    if moments.clusters is not None and gap_level <= MAX_SIMULATED_LEVEL:  # enough simulations decide
        gap = _decide_zero(gap, events.by_score)
    n, c, a = (float(x.sum()) for x in (moments.total_weight, moments.confidence_sum, moments.outcome_sum))
    ece, floor = float(_binned.ece(events, bins=bins)), _binned.noise_floor.interval(events, level=level, bins=bins)
    return [n, c / n, a / n, gap.low, gap.high, ece, floor.value, floor.high, nll]


def _decide_zero(gap: Interval, by_score: GroupedScores) -> Interval:
    """Move the ends of a gap's interval so that it holds 0 if and only if a calibrated model explains the gap.

    The given interval holds for any true gap, and must allow for rare errors that the clusters do not show. Whether the
    gap is 0 can be tested with more power by simulations, because the confidences tell how rare the errors of a
    calibrated model are.
    """
    # the statistic is the absolute value of the gap times n, of each row of simulated outcomes minus confidences
    p_value = NullResiduals.draw(by_score).p_value(lambda residuals: abs(residuals.sum(1)))
    if p_value > 1 - gap.level:  # chance explains the gap
        return replace(gap, low=min(gap.low, 0.0), high=max(gap.high, 0.0))
    if gap.value > 0:
        return replace(gap, low=max(gap.low, NEXT_TO_ZERO))
    return replace(gap, high=min(gap.high, -NEXT_TO_ZERO))


@check_arguments
def bins(
    predictions: Any, labels: Any = None, weights: Any = None, *, bins: Count = 15, edges: Edges = "equal_width"
) -> Bins:
    """Return the bins behind `ece`, `mce` (at `.worst_bin`) and `adaptive_ece` (edges "equal_mass").

    Raises:
        InputError: For a number of bins below 1.

    >>> bins(np.zeros((4, 2)), np.array([0, 0, 0, 1]), bins=2).count
    array([4, 0])
    """
    with as_predictions(predictions, labels, weights) as p:
        return bin_table(p.events, bins, edges)


@check_arguments
def classes(predictions: Any, labels: Any = None, weights: Any = None, *, bins: Count = 15) -> Classes:
    """Return a row for every class: its recall, precision, calibration error and more.

    Raises:
        InputError: For a number of bins below 1.

    >>> classes(np.zeros((4, 2)), np.array([0, 0, 0, 1])).ece
    array([0.25, 0.25])
    """
    with as_predictions(predictions, labels, weights) as p:
        return ClassSums.from_predictions(p, bins).table


@dataclass(frozen=True, eq=False)
class Thresholds:
    """One row per threshold: the result of acting on every example whose probability is at least the threshold."""

    threshold: np.ndarray
    share: np.ndarray  # of the examples whose probability is at least the threshold
    precision: np.ndarray  # frequency of the event among them; nan if there are none
    recall: np.ndarray  # share of the events that are among them; nan without events
    specificity: np.ndarray  # share of the other examples that are below; nan without others
    mean_confidence: np.ndarray  # mean probability among them; nan if there are none
    low: np.ndarray  # interval of the precision
    high: np.ndarray


@check_arguments
def thresholds(
    predictions: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    at: Any = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9),
    level: OpenFraction = 0.90,
) -> Thresholds:
    """Return precision, recall and specificity of acting on probabilities of at least a threshold.

    Args:
        predictions: Predictions, or logits.
        labels: Labels, if logits are given.
        weights: Weights, if logits are given.
        at: Thresholds in [0, 1], (t), or one.
        level: Probability that each interval holds the true precision, as for `metrics.share_interval`.

    Raises:
        InputError: If a threshold is outside [0, 1], or the level outside (0, 1).

    >>> table = thresholds(Predictions.from_confidence([0.9, 0.6, 0.2], [1, 0, 0]), at=[0.5])
    >>> [round(float(x[0]), 2) for x in (table.share, table.precision, table.recall, table.specificity)]
    [0.67, 0.5, 1.0, 0.5]
    """
    with as_predictions(predictions, labels, weights) as p:
        return thresholds_of(p.events.by_score, at, level)


@check_arguments
def thresholds_of(by_score: GroupedScores, at: Any, level: OpenFraction = 0.90) -> Thresholds:
    """Return the table of thresholds of sorted events, with the arguments of `thresholds`."""
    cuts = to_column(at, "thresholds").astype(float)
    if cuts.ndim != 1 or not len(cuts) or not bool(((cuts >= 0) & (cuts <= 1)).all()):
        raise InputError("Expected thresholds in [0, 1]. Try [0.1, 0.5, 0.9].", code="threshold_range")
    first = np.searchsorted(by_score.value, allow_rounding(cuts))  # index of the first confidence to reach each
    columns = by_score.total_weight, by_score.correct, by_score.total_weight * by_score.value
    # sums over the examples at or above each threshold
    n, hits, expected_hits = (sums_from(column)[first] for column in columns)
    total, positive = by_score.total_weight.sum(), by_score.correct.sum()
    with np.errstate(invalid="ignore"):  # NaN without examples, events or others
        precision, recall, mean_confidence = hits / n, hits / positive, expected_hits / n
        specificity = 1 - (n - hits) / (total - positive)  # 1 - false positives / negatives
    if by_score.clusters is None:
        low, high = share_limits(precision, n, level)
    else:
        low, high = cluster_precision_limits(by_score.clusters, cuts, level)
    return Thresholds(cuts, n / total, precision, recall, specificity, mean_confidence, low, high)
