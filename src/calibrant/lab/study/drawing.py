"""Figures of a study before they are rendered: a title, a description, their data, and a function that draws them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibrant._core.kernels.bins import Bins
from calibrant.reports import plots

MAX_INSIDE_LEGEND_LINES = 4  # longer legends stand below the axes
MAX_TWO_COLUMN_CHARACTERS = 30  # longer names take a line of the legend each
LEGEND_FONT_POINTS = 6.5
LEGEND_LINE_INCHES = 1.35 * LEGEND_FONT_POINTS / 72  # with line spacing; 72 points are an inch
LEGEND_OFFSET_POINTS = 32  # distance of a legend below the axes, which leaves room for tick labels and axis name


@dataclass(frozen=True, eq=False)
class Drawing:
    """The title, the data and the plot of a figure, which files and the report draw in their sizes."""

    name: str
    title: str
    description: str  # alternative text
    plot: Callable[..., object]  # takes `ax`
    data: Sequence[Mapping[str, Any]]  # rows of the CSV file
    is_main: bool = True  # whether it is shown without unfolding
    legend_title: str | None = None

    def draw(self, figure: Figure) -> None:
        """Plot on new axes of a matplotlib figure, with a legend for several lines."""
        ax = figure.add_subplot()
        self.plot(ax=ax)
        add_legend(ax, self.legend_title)


def numbered_name(name: str, number: int) -> str:
    """Return the name of a figure for the setup with this number (`Study.setup_numbers`), which is omitted if it is 1.

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
    """Return the drawing of a reliability diagram, or of another `plot` that takes bins.

    The `description` is the alternative text. The data of the CSV file have a row per bin.
    """
    columns = {"from": bins.edges[:-1], "to": bins.edges[1:], "count": bins.count}
    columns |= {"confidence": bins.confidence, "accuracy": bins.accuracy}
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    data: list[dict[str, Any]] = [dict(zip(columns, row, strict=True)) for row in rows]
    return Drawing(name, title, description, partial(plot, bins), data)


def add_legend(ax: Axes, title: str | None = None) -> None:
    """Add a legend if there are several lines.

    A large legend is placed below the axes, and the figure becomes higher to make room for it.
    """
    handles, names = ax.get_legend_handles_labels()
    if len(names) < 2:
        return
    options: dict[str, Any] = {"fontsize": LEGEND_FONT_POINTS, "title_fontsize": LEGEND_FONT_POINTS}
    options |= {"handlelength": 2, "labelspacing": 0.25, "alignment": "left", "frameon": False}
    has_long_names = max(map(len, names)) > MAX_TWO_COLUMN_CHARACTERS
    if has_long_names or len(names) > MAX_INSIDE_LEGEND_LINES:
        columns = 1 if has_long_names else 2
        options |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "ncols": columns}
        options["borderaxespad"] = LEGEND_OFFSET_POINTS / LEGEND_FONT_POINTS  # matplotlib wants multiples of the font
        figure = ax.get_figure(root=True)
        assert figure is not None  # axes that are drawn on belong to a figure
        lines = math.ceil(len(names) / columns) + bool(title)  # a title takes a line, too
        figure.set_figheight(figure.get_figheight() + LEGEND_LINE_INCHES * lines)
    ax.legend(handles, names, title=title, **options)
