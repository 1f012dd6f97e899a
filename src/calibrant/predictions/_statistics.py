"""Statistics of every sample, cached beside the frozen predictions."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from calibrant.backend.bins import Events
from calibrant.backend.softmax import Outcomes


@dataclass
class StatisticsCache:
    """Statistics of predictions that were computed so far."""

    outcomes: Outcomes | None = None
    events: Events | None = None
    bin_totals: dict[int, Tensor] = field(default_factory=dict[int, Tensor])  # of `LazyEvents`, by number of bins

    def __getitem__(self, rows: Any) -> "StatisticsCache":
        """Select rows."""
        outcomes, events = (None if part is None else part[rows] for part in (self.outcomes, self.events))
        return StatisticsCache(outcomes, events)  # pyright: ignore[reportArgumentType]
