"""A figure with its numbers and its words, before it is ink."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

__all__ = ["Drawing", "slug"]


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that can be drawn on any axes, and the numbers behind it."""

    name: str
    title: str
    words: str  # what it shows, for who cannot see it
    draw: Callable[[Axes], object]
    numbers: Sequence[Mapping[str, Any]]
    main: bool = True  # whether it is for every reader


def slug(text: str) -> str:
    """Return a text as part of the name of a file."""
    return "".join(c if c.isalnum() else "_" for c in text).strip("_")
