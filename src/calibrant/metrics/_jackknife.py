"""Events without one group at a time: sums are computed once, and each remainder is a difference of sums."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant.backend.bins import (
    MAX_CLUSTER_SLOTS,
    NUM_ODDS_CELLS,
    ClusterSums,
    Events,
    EventStatistics,
    GroupedScores,
    Moments,
    equal_width_index,
    odds_cell,
)
from calibrant.backend.sorting import distinct_values
from calibrant.predictions import Predictions

MAX_DISTINCT_CONFIDENCES = NUM_ODDS_CELLS  # distinct confidences up to which each keeps a place of its own


@dataclass(frozen=True, eq=False)
class Jackknife:
    """Predictions in groups, and the statistics of their event without one group at a time.

    Up to 61,440 distinct confidences, the statistics are exactly those of the other groups' events. Beyond that, places
    are uniform in the log odds to 1/1024, as in a `Summary`: a standard error changes by far less than its own error.
    """

    predictions: Predictions
    group: Tensor  # (n) int64
    groups: int

    def __iter__(self) -> Iterator["LeaveOneGroupOut"]:
        return (LeaveOneGroupOut(self, i) for i in range(self.groups))

    @property
    def events(self) -> Events:
        """The event of all examples."""
        return self.predictions.events

    def sums(self, place: Tensor, places: int, *values: Tensor) -> Tensor:
        """Return weighted sums of values by group and place, (values, groups + 1, places); the last group is all rows.

        Args:
            place: Place of each row, such as its bin or its distinct confidence, (n) int64 below `places`.
            places: Number of places.
            values: Arrays of one number per row, (n).
        """
        w, index = self.events.weights, self.group * places + place
        weighted = (value if w is None else w * value for value in values)
        table = torch.stack([torch.bincount(index, v, minlength=self.groups * places) for v in weighted])
        table = table.view(len(values), self.groups, places)
        return torch.cat([table, table.sum(1, keepdim=True)], 1)

    @cached_property
    def cells(self) -> Tensor:
        """Weight, confidence and outcome by place, in increasing order of confidence."""
        c, a = self.events.confidence, self.events.outcome
        value, place = distinct_values(c)
        places = len(value)
        if places > MAX_DISTINCT_CONFIDENCES:
            place, places = NUM_ODDS_CELLS - 1 - odds_cell(c), NUM_ODDS_CELLS
        return self.sums(place, places, torch.ones_like(c), c, a)

    def moments(self, bins: int) -> Tensor:
        """Return the terms of `Moments` by bin of equal width."""
        cache: dict[int, Tensor] = self.__dict__.setdefault("_moments", {})
        if bins not in cache:
            c, a = self.events.confidence, self.events.outcome
            cache[bins] = self.sums(equal_width_index(bins, c), bins, *Moments.terms(c, a))
        return cache[bins]

    def cluster_sums(self, bins: int) -> ClusterSums | None:
        """Return the sums of sets of clusters by bin of equal width; set s holds clusters of group s % `groups`."""
        cache: dict[int, ClusterSums] = self.__dict__.setdefault("_cluster_sums", {})
        clusters = self.events.clusters
        if clusters is not None and bins not in cache:
            c, a, w = self.events.confidence.double(), self.events.outcome.double(), self.events.weights
            sets = self.group + self.groups * (clusters % (MAX_CLUSTER_SLOTS // self.groups))
            weights = torch.ones_like(c) if w is None else w.double()
            cache[bins] = ClusterSums.from_events(sets, equal_width_index(bins, c), bins, weights, c, a)
        return cache.get(bins)


@dataclass(frozen=True, eq=False)
class LeaveOneGroupOut(EventStatistics):
    """Statistics of the event without one group."""

    jackknife: Jackknife
    left_out: int

    def _remainder(self, table: Tensor) -> Tensor:
        remaining = table[:, -1] - table[:, self.left_out]
        return remaining * (remaining[0] > 1e-9 * table[0, -1])  # a smaller weight is rounding

    @cached_property
    def by_score(self) -> GroupedScores:
        """Confidences, sorted and grouped."""
        cells = self._remainder(self.jackknife.cells)
        weight, confidence, outcome = cells[:, cells[0] > 0]
        return GroupedScores((confidence / weight).clamp_max_(1), weight, outcome)

    def moments(self, bins: int) -> Moments:
        """Return sums over bins of equal width."""
        sums = self.jackknife.cluster_sums(bins)
        if sums is not None:
            remaining = torch.arange(len(sums.gap), device=sums.gap.device) % self.jackknife.groups != self.left_out
            occupied = sums.total_weight[remaining].sum(0) > 0
            weight, gap = (x[remaining][:, occupied] for x in (sums.total_weight, sums.gap))
            sums = ClusterSums(sums.value[occupied], weight, gap)
        return Moments(*self._remainder(self.jackknife.moments(bins)), clusters=sums)
