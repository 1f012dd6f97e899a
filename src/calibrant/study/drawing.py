"""A figure with its numbers and its words, before it is ink."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from calibrant.study.config import Study

__all__ = ["Drawing", "legend", "numbered", "places", "slug"]

INSIDE = 4  # lines that are named inside a picture; more are named below it
LONG = 30  # letters of a name that has a line of its own, below the picture
LETTERS = 6.5  # points
BELOW = 32  # points from an axis to what stands below its numbers and its name


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that can be drawn on any axes, and the numbers behind it."""

    name: str
    title: str
    words: str  # what it shows, for who cannot see it
    draw: Callable[[Axes], object]
    numbers: Sequence[Mapping[str, Any]]
    main: bool = True  # whether it is for every reader


def places(study: Study) -> dict[tuple[str, str], int]:
    """Number the data sets and networks of a study from 1, whether anything of them is done or not."""
    found = dict.fromkeys(study.names(one)[:2] for one in (*study.models, *study.runs()))
    return {place: number for number, place in enumerate(found, 1)}


def numbered(name: str, number: int) -> str:
    """Return the name of a figure of one of a study's places.

    >>> numbered("diagram", 1), numbered("diagram", 2)
    ('diagram', 'diagram-2')
    """
    return name if number == 1 else f"{name}-{number}"


def slug(text: str) -> str:
    """Return a text as part of the name of a file.

    >>> slug("focal(gamma=3)"), slug("FocalTemperature(gamma=-0.5)")
    ('focal_gamma_3', 'FocalTemperature_gamma_minus_0_5')
    """
    return re.sub(r"[\W_]+", "_", text.replace("=-", "=minus ")).strip("_")


def legend(ax: Axes, title: str | None = None) -> None:
    """Name the lines in small letters; below the picture, which grows by as much, where they are many or long."""
    handles, names = ax.get_legend_handles_labels()
    if len(names) < 2:
        return
    where: dict[str, Any] = {}
    if (long := max(map(len, names)) > LONG) or len(names) > INSIDE:
        columns = 1 if long else 2
        where = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": BELOW / LETTERS, "ncols": columns}
        figure = ax.get_figure(root=True)
        assert figure is not None
        lines = math.ceil(len(names) / columns) + bool(title)
        figure.set_figheight(figure.get_figheight() + 1.35 * LETTERS / 72 * lines)
    small: dict[str, Any] = {"fontsize": LETTERS, "title_fontsize": LETTERS, "handlelength": 2, "labelspacing": 0.25}
    ax.legend(handles, names, title=title, alignment="left", frameon=False, **small, **where)
