"""Statistics of every sample, cached beside the frozen predictions."""

from dataclasses import dataclass
from typing import Any

from calibrant.backend.bins import Events
from calibrant.backend.softmax import Outcomes


@dataclass
class StatisticsCache:
    """Statistics of predictions that were computed so far."""

    outcomes: Outcomes | None = None
    events: Events | None = None

    def __getitem__(self, rows: Any) -> "StatisticsCache":
        """Select rows."""
        outcomes, events = (None if part is None else part[rows] for part in (self.outcomes, self.events))
        return StatisticsCache(outcomes, events)  # pyright: ignore[reportArgumentType]
