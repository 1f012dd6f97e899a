"""Tables behind the numbers: the bins of an error, and what is known of every class and every group."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.backend.bins import Bins, Events, GroupedScores
from calibrant.metrics import _binned
from calibrant.metrics._class_sums import Classes, ClassSums, collect_class_bins
from calibrant.metrics._intervals import Interval, cluster_share_interval, wilson
from calibrant.metrics._moments import Edges, bin_table
from calibrant.metrics._scores import signed_gap, weighted_mean
from calibrant.metrics._summary import Summary
from calibrant.metrics._sums import GroupBinSums
from calibrant.predictions import Predictions, as_predictions

__all__ = [
    "ClassSums",
    "Classes",
    "Groups",
    "Thresholds",
    "bins",
    "classes",
    "collect_class_bins",
    "groups",
    "thresholds",
]
__all__ += ["thresholds_of"]


@dataclass(frozen=True, eq=False)
class Groups:
    """One row per group, as tensors of length g, of what is judged."""

    names: tuple[str, ...]
    level: float  # with which the intervals of all gaps hold together
    count: Tensor  # examples, each counted as often as its weight says
    said: Tensor  # mean of what is said
    happened: Tensor  # how often it happened
    low: Tensor  # simultaneous interval of the gap
    high: Tensor
    ece: Tensor
    floor: Tensor  # ECE of a calibrated model with these confidences: its mean,
    floor_high: Tensor  # and the upper end of its central interval
    nll: Tensor

    @property
    def gap(self) -> Tensor:
        """What is said minus what happens: above 0 where too much is said."""
        return self.said - self.happened

    @property
    def significant_gap(self) -> Tensor:
        """How far the interval of the gap lies from 0: 0 where chance explains the gap."""
        return torch.maximum(self.low, -self.high).clamp_min(0)

    @property
    def worst_first(self) -> list[int]:
        """Groups by how far their gap is beyond chance, then by its size."""
        keys = zip(self.significant_gap.tolist(), self.gap.abs().tolist(), strict=True)
        return [i for i, _ in sorted(enumerate(keys), key=lambda pair: pair[1], reverse=True)]

    def records(self) -> list[dict[str, Any]]:
        """Return a row per group, worst first."""
        columns = ("count", "said", "happened", "gap", "low", "high", "ece", "floor", "floor_high", "nll")
        lists = {name: getattr(self, name).tolist() for name in columns}
        return [
            {"group": self.names[i]} | {name: values[i] for name, values in lists.items()} for i in self.worst_first
        ]

    def macro(self, name: str) -> float:
        """Mean over the groups, each counted once, of a column such as "ece"."""
        return float(getattr(self, name).mean())


def groups(
    p: Predictions | Summary, *, bins: int = 15, level: float = 0.90, by: Literal["groups", "row_groups"] = "groups"
) -> Groups | None:
    """Return a row for every group; None where there are no groups, and groups without examples are left out.

    The intervals of the gaps hold all together with probability `level` (Bonferroni), cluster by cluster where there
    are clusters. `by` "row_groups" takes the second grouping, that of the rows, of several labels per example.

    >>> p = Predictions([[0.0, 0.0]] * 8, [0, 0, 0, 1] * 2, of=1, groups=["a"] * 4 + ["b"] * 4)
    >>> table = groups(p)
    >>> table.gap, table.ece
    (tensor([0.2500, 0.2500], dtype=torch.float64), tensor([0.2500, 0.2500], dtype=torch.float64))
    """
    if isinstance(p, Summary):
        sums = p.groups if by == "groups" else p.row_groups
        present = [] if sums is None else [(name, group) for name, group in sums if group.total_weight > 0]
        return _build_groups([(name, partial(_group_row_from_sums, group)) for name, group in present], bins, level)
    group, names = (p.groups, p.group_names) if by == "groups" else (p.row_groups, p.row_group_names)
    if group is None or names is None:
        return None
    with as_predictions(p):
        events, loss = p.events, 0.0 - p.log_likelihood
        order = group.argsort(stable=True)
        parts = order.split(torch.bincount(group, minlength=len(names)).tolist())
        present = [(name, rows) for name, rows in zip(names, parts, strict=True) if _total_weight(p, rows) > 0]
        return _build_groups(
            [(name, partial(_group_row, events[rows], loss[rows])) for name, rows in present], bins, level
        )


def _build_groups(
    groups: list[tuple[str, Callable[[int, float, float], list[float]]]], bins: int, level: float
) -> Groups | None:
    """Make a row of every group; their gaps' intervals hold together."""
    if not groups:
        return None
    gap_level = 1 - (1 - level) / len(groups)
    columns = torch.tensor([row(bins, level, gap_level) for _, row in groups], dtype=torch.float64).T
    return Groups(tuple(name for name, _ in groups), level, *columns)


def _total_weight(p: Predictions, rows: Tensor) -> float:
    return float(len(rows) if p.weights is None else p.weights[rows].sum())


def _group_row(events: Events, loss: Tensor, bins: int, level: float, gap_level: float) -> list[float]:
    gap, mean_confidence = (
        signed_gap.interval_from_view(events, level=gap_level),
        float(weighted_mean(events.confidence, events.weights)),
    )
    mass = float(len(events) if events.weights is None else events.weights.sum())
    floor = _binned.noise_floor.interval_from_view(events, level=level, bins=bins)
    ece, nll = float(_binned.ece.function(events, bins=bins)), float(weighted_mean(loss, events.weights))
    return [mass, mean_confidence, mean_confidence - gap.value, gap.low, gap.high, ece, floor.value, floor.high, nll]


def _group_row_from_sums(group: GroupBinSums, bins: int, level: float, gap_level: float) -> list[float]:
    gap, frequency = group.interval("signed_gap", gap_level), group.mean("happened")
    floor = _binned.noise_floor.interval_from_view(group, level=level, bins=bins)
    ece, nll = float(_binned.ece.function(group, bins=bins)), group.mean("nll")
    return [group.total_weight, frequency + gap.value, frequency, gap.low, gap.high, ece, floor.value, floor.high, nll]


def bins(
    predictions: Any, labels: Any = None, weights: Any = None, *, bins: int = 15, edges: Edges = "equal_width"
) -> Bins:
    """The bins behind `ece`, `adaptive_ece` (edges "equal_mass") and `mce` (at `.worst`).

    >>> bins(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), bins=2).count
    tensor([4, 0])
    """
    with as_predictions(predictions, labels, weights) as p:
        return bin_table(p.events, bins, edges)


def classes(predictions: Any, labels: Any = None, weights: Any = None, *, bins: int = 15) -> Classes:
    """What is known of every class, by label and by prediction.

    >>> classes(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])).ece
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    with as_predictions(predictions, labels, weights) as p:
        return ClassSums.from_predictions(p, collect_class_bins(p, bins)()).table


@dataclass(frozen=True, eq=False)
class Thresholds:
    """What acting on probabilities from a threshold on amounts to, as tensors with one entry per threshold."""

    threshold: Tensor
    share: Tensor  # of the examples whose probability is at least the threshold
    precision: Tensor  # how often the event happened among them; nan of none
    recall: Tensor  # share of the events that are among them; nan where none happened
    specificity: Tensor  # share of the others that are below; nan where all happened
    said: Tensor  # how often it should have happened among them, by what was said; nan of none
    low: Tensor  # interval of the precision
    high: Tensor


def thresholds(
    predictions: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    at: Sequence[float] = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9),
    level: float = 0.90,
) -> Thresholds:
    """Return what becomes of the judged event where one acts on probabilities of at least a threshold.

    The intervals, Wilson's, hold the precision with probability `level`, each by itself; of examples in clusters those
    of `metrics.share_interval`.

    >>> found = thresholds(Predictions.from_confidence([0.9, 0.6, 0.2], [1, 0, 0]), at=[0.5])
    >>> [round(float(x), 2) for x in (found.share, found.precision, found.recall, found.specificity)]
    [0.67, 0.5, 1.0, 0.5]
    """
    with as_predictions(predictions, labels, weights) as p:
        return thresholds_of(p.events.ties, at, level)


def thresholds_of(ties: GroupedScores, cuts: Sequence[float], level: float = 0.90) -> Thresholds:
    """The same from sorted events."""
    cut = torch.tensor(list(cuts), dtype=torch.float64, device=ties.value.device)
    first = torch.searchsorted(ties.value, cut)

    def above(values: Tensor) -> Tensor:
        return torch.cat([values.flip(0).cumsum(0).flip(0), values.new_zeros(1)])[first]

    mass, hits, expected_hits = above(ties.total_weight), above(ties.correct), above(ties.total_weight * ties.value)
    total, positive = ties.total_weight.sum(), ties.correct.sum()
    intervals = [
        _precision_interval(ties, *row, level) for row in zip(cut.tolist(), hits.tolist(), mass.tolist(), strict=True)
    ]
    return Thresholds(
        threshold=cut,
        share=mass / total,
        precision=hits / mass,
        recall=hits / positive,
        specificity=1 - (mass - hits) / (total - positive),
        said=expected_hits / mass,
        low=cut.new_tensor([room.low for room in intervals]),
        high=cut.new_tensor([room.high for room in intervals]),
    )


def _precision_interval(ties: GroupedScores, cut: float, hits: float, mass: float, level: float) -> Interval:
    """Interval of how often the event happens at and above a threshold."""
    if not mass:
        return Interval(math.nan, 0.0, 1.0, level)
    if ties.clusters is None:
        return wilson(hits / mass, mass, level)
    sums = ties.clusters
    is_above = sums.value >= cut
    cluster_mass = sums.total_weight[:, is_above]
    return cluster_share_interval(
        cluster_mass.sum(1), (cluster_mass * sums.value[is_above] + sums.gap[:, is_above]).sum(1), level
    )
