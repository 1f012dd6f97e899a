"""A figure with its numbers and its words, before it is ink."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from calibrant.lab.study.config import Study

__all__ = ["Drawing", "add_legend", "number_places", "numbered_name", "slug"]

MAX_INSIDE_LEGEND_LINES = 4  # lines that are named inside a picture; more are named below it
MAX_TWO_COLUMN_CHARACTERS = 30  # letters of a name that has a line of its own, below the picture
LEGEND_FONT_POINTS = 6.5  # points
LEGEND_OFFSET_POINTS = 32  # points from an axis to what stands below its numbers and its name


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that can be drawn on any axes, and the numbers behind it."""

    name: str
    title: str
    description: str  # what it shows, for who cannot see it
    draw: Callable[[Axes], object]
    numbers: Sequence[Mapping[str, Any]]
    is_main: bool = True  # whether it is for every reader


def number_places(study: Study) -> dict[tuple[str, str], int]:
    """Number the data sets and networks of a study from 1, whether anything of them is done or not."""
    pairs = dict.fromkeys(study.names(run)[:2] for run in (*study.models, *study.runs()))
    return {place: number for number, place in enumerate(pairs, 1)}


def numbered_name(name: str, number: int) -> str:
    """Return the name of a figure of one of a study's places.

    >>> numbered_name("diagram", 1), numbered_name("diagram", 2)
    ('diagram', 'diagram-2')
    """
    return name if number == 1 else f"{name}-{number}"


def slug(text: str) -> str:
    """Return a text as part of the name of a file.

    >>> slug("focal(gamma=3)"), slug("FocalTemperature(gamma=-0.5)")
    ('focal_gamma_3', 'FocalTemperature_gamma_minus_0_5')
    """
    return re.sub(r"[\W_]+", "_", text.replace("=-", "=minus ")).strip("_")


def add_legend(ax: Axes, title: str | None = None) -> None:
    """Name the lines in small letters; below the picture, which grows by as much, where they are many or long."""
    handles, names = ax.get_legend_handles_labels()
    if len(names) < 2:
        return
    placement: dict[str, Any] = {}
    if (is_long := max(map(len, names)) > MAX_TWO_COLUMN_CHARACTERS) or len(names) > MAX_INSIDE_LEGEND_LINES:
        columns = 1 if is_long else 2
        placement = {
            "loc": "upper center",
            "bbox_to_anchor": (0.5, 0),
            "borderaxespad": LEGEND_OFFSET_POINTS / LEGEND_FONT_POINTS,
            "ncols": columns,
        }
        figure = ax.get_figure(root=True)
        assert figure is not None
        lines = math.ceil(len(names) / columns) + bool(title)
        figure.set_figheight(figure.get_figheight() + 1.35 * LEGEND_FONT_POINTS / 72 * lines)
    style: dict[str, Any] = {
        "fontsize": LEGEND_FONT_POINTS,
        "title_fontsize": LEGEND_FONT_POINTS,
        "handlelength": 2,
        "labelspacing": 0.25,
    }
    ax.legend(handles, names, title=title, alignment="left", frameon=False, **style, **placement)
