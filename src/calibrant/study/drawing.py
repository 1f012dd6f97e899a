"""A figure with its numbers and its words, before it is ink."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

__all__ = ["Drawing", "legend", "slug"]

INSIDE = 4  # lines that are named inside a picture; more are named below it


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
    """Return a text as part of the name of a file.

    >>> slug("focal(gamma=3)"), slug("FocalTemperature(gamma=-0.5)")
    ('focal_gamma_3', 'FocalTemperature_gamma_minus_0_5')
    """
    return re.sub(r"[\W_]+", "_", text.replace("=-", "=minus ")).strip("_")


def legend(ax: Axes) -> None:
    """Name the lines in small letters, below the picture where they are many."""
    handles, names = ax.get_legend_handles_labels()
    if len(names) < 2:
        return
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.2), "ncols": 1 if max(map(len, names)) > 30 else 2}
    where: dict[str, Any] = below if len(names) > INSIDE else {}
    ax.legend(handles, names, frameon=False, fontsize=6.5, handlelength=2, labelspacing=0.25, **where)
