"""Figures for a page: ink as inline SVG in the page's own colors, and marks that say what lies under the pointer."""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from calibrant._text import TEXT_LENGTH, abbreviate
from calibrant.html._page import data, render, typeset
from calibrant.plots import BAR, GAP, LINE, PAPER

INK = "#123457"
COLORS = {  # drawn in these, shown in the page's own colors, light or dark
    INK: "currentColor",
    BAR: "var(--blue)",
    GAP: "var(--red)",
    LINE: "var(--soft)",
    PAPER: "var(--paper)",
}
POINTS = 60  # of a line that say what they are
_SETTINGS: Any = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    "svg.fonttype": "none",
    "text.parse_math": False,  # titles are what people wrote
    "svg.hashsalt": "calibrant",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "hatch.linewidth": 0.5,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.03,
}


@dataclass(frozen=True)
class Mark:
    """A point of a figure, in the numbers of its axes, and what it says."""

    x: float
    y: float
    words: str
    axes: int = 0


def figure(
    draw: Callable[[Figure], Any],
    alternative: str,
    *,
    caption: str = "",
    size: tuple[float, float] = (3.0, 3.0),
    marks: Sequence[Mark] = (),
) -> Markup:
    """Return a figure as inline SVG with a caption; `alternative` says in words what it shows.

    `marks` are told under the pointer; without any, the points of the lines that have a name are.
    """
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font that shows the text is the reader's
        drawing = Figure(figsize=size, layout="compressed")
        draw(drawing)
        for i, ax in enumerate(drawing.axes):
            ax.patch.set_gid(f"axes{i}")
        file = io.StringIO()
        drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    told = _placed(drawing, svg, marks or list(_points(drawing)))
    opening, _, rest = _in_page(svg).partition(">")
    return render(
        '<figure>{}{} role="img" aria-label="{}">{}{}</figure>',
        render("<figcaption>{}</figcaption>", typeset(caption)) if caption else Markup(),
        Markup(opening),  # matplotlib escapes the texts that it draws
        abbreviate(alternative, TEXT_LENGTH),
        Markup(rest),
        data(told) if told else Markup(),
    )


def _in_page(svg: str) -> str:
    """Leave out what a page does not need, and take its fonts and colors."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<g) id="[^"]*"|<metadata>.*?</metadata>\s*|<title>.*?</title>\s*', r"\1", svg, flags=re.DOTALL)
    svg = re.sub(r" xmlns(:xlink)?=\"[^\"]*\"", "", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: ([^\"';]*?px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    for drawn, shown in COLORS.items():
        svg = svg.replace(drawn, shown)
    return svg


def _placed(drawing: Figure, svg: str, marks: Sequence[Mark]) -> list[list[Any]]:
    """The marks with their places in the drawing: [x, y, words] from left to right."""
    boxes = [_box(svg, i) for i in range(len(drawing.axes))]
    placed: list[list[Any]] = []
    for mark in marks:
        ax, (left, bottom, right, top) = drawing.axes[mark.axes], boxes[mark.axes]
        x, y = (ax.transScale + ax.transLimits).transform((mark.x, mark.y))
        if 0 <= x <= 1.001 and np.isfinite(y):
            y = min(max(y, 0.0), 1.0)
            placed.append([round(left + x * (right - left), 1), round(bottom + y * (top - bottom), 1), mark.words])
    return placed


def _box(svg: str, axes: int) -> tuple[float, float, float, float]:
    """Left, bottom, right and top of an axes' background."""
    path = svg.partition(f'<g id="axes{axes}">')[2].partition('d="')[2].partition('"')[0]
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", path)]
    x, y = numbers[0::2], numbers[1::2]
    return min(x), max(y), max(x), min(y)


def _points(drawing: Figure) -> Iterator[Mark]:
    """The points of all lines that have a name, or of the only one."""
    for i, ax in enumerate(drawing.axes):
        lines = ax.get_lines()
        named = [line for line in lines if not str(line.get_label()).startswith("_")]
        for line in named:
            name = f"{line.get_label()}: " if len(named) > 1 else ""
            x, y = (np.asarray(values, dtype=float).tolist() for values in (line.get_xdata(), line.get_ydata()))
            known = [(a, b) for a, b in zip(x, y, strict=True) if math.isfinite(a) and math.isfinite(b)]
            for a, b in known[:: max(1, math.ceil(len(known) / POINTS))]:
                yield Mark(a, b, f"{name}{_said(ax.xaxis, a)}, {_said(ax.yaxis, b)}", i)


def _said(axis: Axis, value: float) -> str:
    """Name the axis in as few words as it begins with, and the value in its unit."""
    name = axis.get_label_text().partition(":")[0]
    formatter = axis.get_major_formatter()
    text = f"{100 * value / formatter.xmax:.4g} %" if isinstance(formatter, PercentFormatter) else f"{value:.4g}"
    return f"{name} {text}".strip()
