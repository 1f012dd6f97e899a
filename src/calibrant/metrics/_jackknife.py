"""Events without one group of them, group after group: sums are made once, and what is left is a difference."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant._bins import (
    CELLS,
    Bins,
    Events,
    Judged,
    Moments,
    Ties,
    distinct_values,
    equal_width_edges,
    equal_width_index,
    odds_cell,
)

MOST = CELLS  # distinct confidences up to which each keeps its own place


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

    def without(self, i: int) -> "Without":
        """What is left without group i."""
        return Without(self, i)

    def sums(self, place: Tensor, places: int, *values: Tensor) -> Tensor:
        """Sums over the places of every group, and in the last row over all (values, groups + 1, places)."""
        w, index = self.events.weights, self.group * places + place
        each = (value if w is None else w * value for value in values)
        table = torch.stack([torch.bincount(index, v, minlength=self.groups * places) for v in each])
        table = table.view(len(values), self.groups, places)
        return torch.cat([table, table.sum(1, keepdim=True)], 1)

    @cached_property
    def cells(self) -> Tensor:
        """By place, in increasing order of confidence: mass, what happened, what was said."""
        c, a = self.events.confidence, self.events.happened
        value, place = distinct_values(c)
        places = len(value)
        if places > MOST:
            place, places = CELLS - 1 - odds_cell(c), CELLS
        return self.sums(place, places, torch.ones_like(c), a, c)

    def binned(self, bins: int) -> Tensor:
        """By bin of equal width: mass, what happened, and sums of u, u^2 and c (1 - c)."""
        known: dict[int, Tensor] = self.__dict__.setdefault("_binned", {})
        if bins not in known:
            c, a = self.events.confidence, self.events.happened
            u = c - a
            values = torch.ones_like(c), a, u, u.square(), c * (1 - c)
            known[bins] = self.sums(equal_width_index(bins, c), bins, *values)
        return known[bins]


@dataclass(frozen=True, eq=False)
class Without(Judged):
    """What is judged when one group is left out."""

    all: Jackknife
    left_out: int

    def _rest(self, table: Tensor) -> Tensor:
        rest = table[:, -1] - table[:, self.left_out]
        return rest * (rest[0] > 1e-9 * table[0, -1])  # a difference of rounded sums is no mass

    @cached_property
    def ties(self) -> Ties:
        """Sorted and grouped by confidence."""
        rest = self._rest(self.all.cells)
        mass, happened, said = rest[:, rest[0] > 0]
        return Ties((said / mass).clamp_max_(1), mass, happened)

    def moments(self, bins: int) -> Moments:
        """Sums over bins of equal width."""
        mass, happened, gap, gap_square, variance = self._rest(self.all.binned(bins))
        return Moments(mass, happened + gap, gap, gap_square, variance)

    def equal_width(self, bins: int) -> Bins:
        """Bins of equal width."""
        mass, happened, gap, *_ = self._rest(self.all.binned(bins))
        return Bins.of_sums(equal_width_edges(bins).to(mass.device), mass, happened, gap)
