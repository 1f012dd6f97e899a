"""Figures of a study before they are rendered: a title, a description, numbers, and a function that draws them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from matplotlib.axes import Axes

from calibrant import plots
from calibrant._grouping import group_pairs
from calibrant.backend.bins import Bins
from calibrant.lab.study.config import Study
from calibrant.lab.study.grids import Model, Run

Value = TypeVar("Value")
MAX_INSIDE_LEGEND_LINES = 4  # longer legends stand below the axes
MAX_TWO_COLUMN_CHARACTERS = 30  # longer names take a line of the legend each
LEGEND_FONT_POINTS = 6.5
LEGEND_OFFSET_POINTS = 32  # distance of a legend below the axes, which leaves room for tick labels and axis name


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure that can be drawn on any axes, and its numbers."""

    name: str
    title: str
    description: str  # alternative text
    plot: Callable[..., object]  # takes `ax`
    numbers: Sequence[Mapping[str, Any]]
    is_main: bool = True  # whether it is shown without unfolding
    legend_title: str | None = None

    def draw(self, ax: Axes) -> None:
        """Plot on axes, with a legend for several lines."""
        self.plot(ax=ax)
        add_legend(ax, self.legend_title)


def group_by_place(
    study: Study, items: Iterable[tuple[Run | Model, Value]]
) -> dict[tuple[str, str], dict[str, list[Value]]]:
    """Group values of runs by (data set, network), and by loss."""
    named = ((study.names(run), value) for run, value in items)
    places = group_pairs(((dataset, network), (loss, value)) for (dataset, network, loss), value in named)
    return {place: group_pairs(pairs) for place, pairs in places.items()}


def number_places(study: Study) -> dict[tuple[str, str], int]:
    """Return the number of each pair of data set and network, from 1, including those without finished runs."""
    pairs = dict.fromkeys(study.names(run)[:2] for run in (*study.models, *study.runs()))
    return {place: number for number, place in enumerate(pairs, 1)}


def numbered_name(name: str, number: int) -> str:
    """Return the name of a figure of the place with this number.

    >>> numbered_name("diagram", 1), numbered_name("diagram", 2)
    ('diagram', 'diagram-2')
    """
    return name if number == 1 else f"{name}-{number}"


def slug(text: str) -> str:
    """Return a text as part of a file name.

    >>> slug("focal(gamma=3)"), slug("FocalTemperature(gamma=-0.5)")
    ('focal_gamma_3', 'FocalTemperature_gamma_minus_0_5')
    """
    return re.sub(r"[\W_]+", "_", text.replace("=-", "=minus ")).strip("_")


def reliability_drawing(
    name: str, title: str, description: str, bins: Bins, plot: Callable[..., object] = plots.reliability
) -> Drawing:
    """Return a reliability diagram of bins, or another plot of them."""
    columns = [
        column.tolist() for column in (bins.edges[:-1], bins.edges[1:], bins.count, bins.confidence, bins.accuracy)
    ]
    numbers: list[dict[str, Any]] = [
        dict(zip(("from", "to", "count", "confidence", "accuracy"), row)) for row in zip(*columns)
    ]
    return Drawing(name, title, description, partial(plot, bins), numbers)


def add_legend(ax: Axes, title: str | None = None) -> None:
    """Add a legend; if it is large, put it below the axes and make the figure higher."""
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
    fonts = {"fontsize": LEGEND_FONT_POINTS, "title_fontsize": LEGEND_FONT_POINTS}
    style: dict[str, Any] = {"handlelength": 2, "labelspacing": 0.25, "alignment": "left", "frameon": False}
    ax.legend(handles, names, title=title, **fonts, **style, **placement)
