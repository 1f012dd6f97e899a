"""Pictures as inline SVG in the colors of a page, with texts on hover."""

import io
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from calibrant._core.text import MAX_TEXT_CHARACTERS, abbreviate
from calibrant.reports.document import HoverPoint, Picture
from calibrant.reports.html import breakable, json_script, render, typeset
from calibrant.reports.plots import BACKGROUND_COLOR, BAR_COLOR, GAP_COLOR, LINE_COLOR

TEXT_COLOR = "#123457"
CSS_COLORS = {  # drawing colors and the light or dark page colors that replace them
    TEXT_COLOR: "currentColor",
    BAR_COLOR: "var(--blue)",
    GAP_COLOR: "var(--red)",
    LINE_COLOR: "var(--soft)",
    BACKGROUND_COLOR: "var(--paper)",
}
MAX_LINE_POINTS = 60  # per line
_RC_PARAMS: Any = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT_COLOR),
    "svg.fonttype": "none",  # texts stay texts
    "svg.hashsalt": "calibrant",  # the same figure has the same ids
    "text.parse_math": False,  # titles may contain dollar signs
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "hatch.linewidth": 0.5,
    "savefig.bbox": "tight",
    "savefig.pad_inches": 0.03,
}


def figure(picture: Picture) -> Markup:
    """Return a picture as inline SVG."""
    import matplotlib as mpl

    with mpl.rc_context(_RC_PARAMS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the browser's font draws the text
        drawing = Figure(figsize=picture.size, layout="compressed")
        picture.draw(drawing)
        for i, ax in enumerate(drawing.axes):
            ax.patch.set_gid(f"axes{i}")  # `_axes_box` finds the background of the axes by this id
        file = io.StringIO()
        drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    positions = _svg_positions(drawing, svg, picture.hover_points or list(_line_points(drawing)))
    opening_tag, _, svg_body = _strip_svg(svg).partition(">")  # attributes are added to the tag <svg ...
    return render(
        '<figure>{}{} role="img" aria-label="{}">{}{}</figure>',
        render("<figcaption>{}</figcaption>", _caption(picture)) if picture.caption else Markup(),
        Markup(opening_tag),  # matplotlib escapes its texts
        abbreviate(picture.alt_text, MAX_TEXT_CHARACTERS),
        Markup(svg_body),
        json_script(positions) if positions else Markup(),
    )


def _strip_svg(svg: str) -> str:
    """Remove XML header, metadata and ids, and use the fonts and colors of the page."""
    svg = svg[svg.index("<svg") :]
    # Drop the ids of groups, which repeat in every figure of a page, but not of paths and clips, to which the figure
    # refers. \1 is empty for the other tags
    svg = re.sub(r'(<g) id="[^"]*"|<metadata>.*?</metadata>\s*|<title>.*?</title>\s*', r"\1", svg, flags=re.DOTALL)
    svg = re.sub(r" xmlns(:xlink)?=\"[^\"]*\"", "", svg).replace("xlink:href", "href")
    svg = re.sub(r"font: ([^\"';]*?px) [^;\"]*", r"font: \1 system-ui, sans-serif", svg)
    for drawn_color, css_color in CSS_COLORS.items():
        svg = svg.replace(drawn_color, css_color)
    return svg


def _svg_positions(drawing: Figure, svg: str, hover_points: Sequence[HoverPoint]) -> list[list[Any]]:
    """Return [x, y, text] for each hover point that is visible, in SVG coordinates.

    Points left or right of the axes, or without a finite height, are left out. Points above or below the axes are moved
    to their edge.
    """
    boxes = [_axes_box(svg, i) for i in range(len(drawing.axes))]
    positions: list[list[Any]] = []
    for point in hover_points:
        ax, (left, bottom, right, top) = drawing.axes[point.axes], boxes[point.axes]
        # Shares of the width and height of the axes, 0 to 1 inside
        x, y = (ax.transScale + ax.transLimits).transform((point.x, point.y))
        if 0 <= x <= 1.001 and math.isfinite(y):  # with room for rounding
            svg_x, svg_y = left + x * (right - left), bottom + min(max(y, 0.0), 1.0) * (top - bottom)
            positions.append([round(svg_x, 1), round(svg_y, 1), point.text])
    return positions


def _axes_box(svg: str, axes: int) -> tuple[float, float, float, float]:
    """Return left, bottom, right and top of the axes in SVG coordinates, from the outline of their background."""
    _, _, background = svg.partition(f'<g id="axes{axes}">')
    outline = background.partition('d="')[2].partition('"')[0]  # "M x y L x y ... z"
    coordinates = [float(number) for number in re.findall(r"-?[\d.]+", outline)]
    x, y = coordinates[0::2], coordinates[1::2]
    return min(x), max(y), max(x), min(y)  # y grows downward


def _line_points(drawing: Figure) -> Iterator[HoverPoint]:
    """Yield up to MAX_LINE_POINTS evenly spaced points of each labeled line."""
    for i, ax in enumerate(drawing.axes):
        # matplotlib labels lines without a label "_child0"
        labeled_lines = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
        for line in labeled_lines:
            name = f"{line.get_label()}: " if len(labeled_lines) > 1 else ""
            points = np.asarray(line.get_xydata(), dtype=float)  # (n, 2)
            points = points[np.isfinite(points).all(1)]
            step = max(1, math.ceil(len(points) / MAX_LINE_POINTS))
            for x, y in points[::step].tolist():
                text = f"{name}{_axis_value_text(ax.xaxis, x)}, {_axis_value_text(ax.yaxis, y)}"
                yield HoverPoint(x, y, text, axes=i)


def _axis_value_text(axis: Axis, value: float) -> str:
    """Return the axis label up to its first colon, and the value, in percent if the axis is labeled in percent."""
    name = axis.get_label_text().partition(":")[0]
    formatter = axis.get_major_formatter()
    text = f"{100 * value / formatter.xmax:.4g} %" if isinstance(formatter, PercentFormatter) else f"{value:.4g}"
    return f"{name} {text}".strip()


def _caption(picture: Picture) -> Markup:
    """Return the caption of a picture, with its detail in small letters if there is one."""
    heading = breakable(picture.caption)
    return heading + render("<small>{}</small>", typeset(picture.detail)) if picture.detail else heading
