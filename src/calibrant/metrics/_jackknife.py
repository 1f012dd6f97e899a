"""The jackknife: statistics without one group at a time, as differences of sums that are computed once."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from calibrant._core.kernels.bins import (
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
from calibrant._core.kernels.sorting import distinct_values
from calibrant.metrics._intervals import SUM_ROUNDING
from calibrant.predictions import Predictions

MAX_DISTINCT_CONFIDENCES = NUM_ODDS_CELLS  # distinct confidences up to which each has a cell of its own


@dataclass(frozen=True, eq=False)
class Jackknife:
    """Predictions in groups, and the statistics of their event without one group at a time.

    Confidences are summed in cells: one for each distinct confidence up to 61,440 of them, which is exact. Beyond that,
    cells are uniform in the log odds to 1/1024, as in a `Summary`: standard errors change by far less than their error.
    """

    predictions: Predictions
    group: np.ndarray  # (n) int64
    groups: int

    def __iter__(self) -> Iterator["LeaveOneGroupOut"]:
        return (LeaveOneGroupOut(self, i) for i in range(self.groups))

    @property
    def events(self) -> Events:
        """The event of all examples."""
        return self.predictions.events

    def sums(self, cell: np.ndarray, num_cells: int, *values: np.ndarray) -> np.ndarray:
        """Return weighted sums of values by group and cell, (values, groups + 1, cells). The last group is all rows.

        Args:
            cell: Cell of each row, such as its bin or its distinct confidence, (n) int64 below `num_cells`.
            num_cells: Number of cells.
            values: Arrays of one number per row, (n).
        """
        w, index = self.events.weights, self.group * num_cells + cell
        weighted = (value if w is None else w * value for value in values)
        table = np.stack([np.bincount(index, v, minlength=self.groups * num_cells) for v in weighted])
        table = table.reshape(len(values), self.groups, num_cells)
        return np.concatenate([table, table.sum(1, keepdims=True)], axis=1)

    @cached_property
    def cells(self) -> np.ndarray:
        """Sums of weight, confidence and outcome by group and cell, as `sums` returns them, (3, groups + 1, cells).

        Cells are in increasing order of confidence.
        """
        c, a = self.events.confidence, self.events.outcome
        value, cell = distinct_values(c)
        num_cells = len(value)
        if num_cells > MAX_DISTINCT_CONFIDENCES:  # cells in the log odds instead
            cell, num_cells = NUM_ODDS_CELLS - 1 - odds_cell(c), NUM_ODDS_CELLS  # `odds_cell` starts at the highest
        return self.sums(cell, num_cells, np.ones_like(c), c, a)

    def moments(self, bins: int) -> np.ndarray:
        """Return the six sums of `Moments` by group and bin of equal width, (6, groups + 1, bins)."""
        cache: dict[int, np.ndarray] = self.__dict__.setdefault("_moments", {})  # by number of bins
        if bins not in cache:
            c, a = self.events.confidence, self.events.outcome
            cache[bins] = self.sums(equal_width_index(bins, c), bins, *Moments.terms(c, a))
        return cache[bins]

    def cluster_sums(self, bins: int) -> ClusterSums | None:
        """Return the sums of sets of clusters in equal-width bins, or None without clusters.

        Clusters are joined into at most 512 sets, to bound the memory. Set s holds clusters of group s % `groups`.
        """
        cache: dict[int, ClusterSums] = self.__dict__.setdefault("_cluster_sums", {})
        clusters = self.events.clusters
        if clusters is not None and bins not in cache:
            c, a, w = self.events.confidence.astype(float), self.events.outcome.astype(float), self.events.weights
            # no set holds clusters of two groups, so that a group can be left out
            sets = self.group + self.groups * (clusters % (MAX_CLUSTER_SLOTS // self.groups))
            weights = np.ones_like(c) if w is None else w.astype(float)
            cache[bins] = ClusterSums.from_events(sets, equal_width_index(bins, c), bins, weights, c, a)
        return cache.get(bins)


@dataclass(frozen=True, eq=False)
class LeaveOneGroupOut(EventStatistics):
    """Statistics of the event without one group."""

    jackknife: Jackknife
    left_out: int

    def _remainder(self, table: np.ndarray) -> np.ndarray:
        """Return the sums over all other groups, (values, cells).

        `table` is a result of `Jackknife.sums` whose first value is the weight.
        """
        remaining = table[:, -1] - table[:, self.left_out]  # the last row holds the sums of all groups
        return remaining * (remaining[0] > SUM_ROUNDING * table[0, -1])  # a smaller weight is rounding

    @cached_property
    def by_score(self) -> GroupedScores:
        """Confidences of all other groups, sorted and grouped by cell."""
        cells = self._remainder(self.jackknife.cells)
        weight, confidence, outcome = cells[:, cells[0] > 0]
        return GroupedScores(np.minimum(confidence / weight, 1), weight, outcome)  # a mean of ones may round up

    def moments(self, bins: int) -> Moments:
        """Return sums over bins of equal width, of all other groups."""
        sums = self.jackknife.cluster_sums(bins)
        if sums is not None:
            # the group of each set of clusters, as `Jackknife.cluster_sums` numbers them
            group = np.arange(len(sums.residual)) % self.jackknife.groups
            remaining = group != self.left_out
            occupied = sums.total_weight[remaining].sum(0) > 0  # `ClusterSums` leaves out empty bins
            weight, residual = (x[remaining][:, occupied] for x in (sums.total_weight, sums.residual))
            sums = ClusterSums(sums.value[occupied], weight, residual)
        return Moments(*self._remainder(self.jackknife.moments(bins)), clusters=sums)
