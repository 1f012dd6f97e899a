"""Events without one group of them, group after group: sums are made once, and what is left is a difference."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant.backend.bins import (
    NUM_ODDS_CELLS,
    Bins,
    Events,
    EventStatistics,
    GroupedScores,
    Moments,
    distinct_values,
    equal_width_edges,
    equal_width_index,
    odds_cell,
)

MAX_DISTINCT_CONFIDENCES = NUM_ODDS_CELLS  # distinct confidences up to which each keeps its own place


@dataclass(frozen=True, eq=False)
class Jackknife:
    """Events in groups, to be judged without one of them at a time (`without`).

    One pass makes the sums of every group over bins and over places of confidence. Up to 61,440 distinct confidences
    each has its own place, and what is left is exactly what the other groups' events give; beyond, they share places
    uniform in the logarithm of the odds to 1/1024, as in a `Summary`: a standard error moves by far less than its own.
    """

    events: Events
    group: Tensor  # (n) int64
    groups: int

    def leave_out(self, i: int) -> "LeaveOneGroupOut":
        """What is left without group i."""
        return LeaveOneGroupOut(self, i)

    def sums(self, place: Tensor, places: int, *values: Tensor) -> Tensor:
        """Sums over the places of every group, and in the last row over all (values, groups + 1, places)."""
        w, index = self.events.weights, self.group * places + place
        weighted = (value if w is None else w * value for value in values)
        table = torch.stack([torch.bincount(index, v, minlength=self.groups * places) for v in weighted])
        table = table.view(len(values), self.groups, places)
        return torch.cat([table, table.sum(1, keepdim=True)], 1)

    @cached_property
    def cells(self) -> Tensor:
        """By place, in increasing order of confidence: mass, what happened, what was said."""
        c, a = self.events.confidence, self.events.outcome
        value, place = distinct_values(c)
        places = len(value)
        if places > MAX_DISTINCT_CONFIDENCES:
            place, places = NUM_ODDS_CELLS - 1 - odds_cell(c), NUM_ODDS_CELLS
        return self.sums(place, places, torch.ones_like(c), a, c)

    def bin_sums(self, bins: int) -> Tensor:
        """By bin of equal width: mass, what happened, and sums of u, u^2 and c (1 - c)."""
        cache: dict[int, Tensor] = self.__dict__.setdefault("_binned", {})
        if bins not in cache:
            c, a = self.events.confidence, self.events.outcome
            u = c - a
            values = torch.ones_like(c), a, u, u.square(), c * (1 - c)
            cache[bins] = self.sums(equal_width_index(bins, c), bins, *values)
        return cache[bins]


@dataclass(frozen=True, eq=False)
class LeaveOneGroupOut(EventStatistics):
    """What is judged when one group is left out."""

    jackknife: Jackknife
    left_out: int

    def _remaining_sums(self, table: Tensor) -> Tensor:
        remaining = table[:, -1] - table[:, self.left_out]
        return remaining * (remaining[0] > 1e-9 * table[0, -1])  # a difference of rounded sums is no mass

    @cached_property
    def ties(self) -> GroupedScores:
        """Sorted and grouped by confidence."""
        cells = self._remaining_sums(self.jackknife.cells)
        mass, outcome, confidence = cells[:, cells[0] > 0]
        return GroupedScores((confidence / mass).clamp_max_(1), mass, outcome)

    def moments(self, bins: int) -> Moments:
        """Sums over bins of equal width."""
        mass, outcome, gap, gap_square, variance = self._remaining_sums(self.jackknife.bin_sums(bins))
        return Moments(mass, outcome + gap, gap, gap_square, variance)

    def equal_width(self, bins: int) -> Bins:
        """Bins of equal width."""
        mass, outcome, gap, *_ = self._remaining_sums(self.jackknife.bin_sums(bins))
        return Bins.from_sums(equal_width_edges(bins).to(mass.device), mass, outcome, gap)
