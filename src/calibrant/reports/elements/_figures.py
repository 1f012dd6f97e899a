"""Figures for a page, such as reliability diagrams: inline SVG in the colors of the page, with texts on hover."""

import io
import math
import platform
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from calibrant._core.kernels.bins import Bins, GroupedScores
from calibrant._core.text import MAX_TEXT_CHARACTERS, abbreviate, format_percent
from calibrant._core.version import __version__
from calibrant.metrics import Curve
from calibrant.metrics.curves import corp_of, frequency_limits
from calibrant.predictions import Predictions
from calibrant.predictions.events import TOP_CLASS, EventKind
from calibrant.reports.elements._elements import breakable, json_script, note, render, typeset
from calibrant.reports.plots import (
    BACKGROUND_COLOR,
    BAR_COLOR,
    GAP_COLOR,
    LINE_COLOR,
    confidence_histogram,
    reliability,
    reliability_curve,
)

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
NUM_BAND_DRAWS = 300
MAX_LABEL_CHARACTERS = 44  # per line of an axis label
INFINITE_MEAN_EXPLANATION = "a true class has probability 0, which makes the mean infinite"


@dataclass(frozen=True)
class HoverPoint:
    """A point in the coordinates of the axes, with its text."""

    x: float
    y: float
    text: str
    axes: int = 0  # index of the axes of the figure


def figure(
    draw: Callable[[Figure], Any],
    alt_text: str,
    *,
    caption: str = "",
    size: tuple[float, float] = (3.0, 3.0),
    hover_points: Sequence[HoverPoint] = (),
) -> Markup:
    """Return a figure as inline SVG.

    Args:
        draw: Function that draws on a matplotlib figure.
        alt_text: Text alternative for screen readers.
        caption: Caption.
        size: Width and height in inches.
        hover_points: Points with texts for the pointer. Default: the points of labeled lines.
    """
    import matplotlib as mpl

    with mpl.rc_context(_RC_PARAMS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the browser's font draws the text
        drawing = Figure(figsize=size, layout="compressed")
        draw(drawing)
        for i, ax in enumerate(drawing.axes):
            ax.patch.set_gid(f"axes{i}")  # `_axes_box` finds the background of the axes by this id
        file = io.StringIO()
        drawing.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    svg = file.getvalue()
    positions = _svg_positions(drawing, svg, hover_points or list(_line_points(drawing)))
    opening_tag, _, svg_body = _strip_svg(svg).partition(">")  # attributes are added to the tag <svg ...
    return render(
        '<figure>{}{} role="img" aria-label="{}">{}{}</figure>',
        render("<figcaption>{}</figcaption>", typeset(caption)) if caption else Markup(),
        Markup(opening_tag),  # matplotlib escapes its texts
        abbreviate(alt_text, MAX_TEXT_CHARACTERS),
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


# Reliability diagrams


def diagram_explanations(event: EventKind = TOP_CLASS) -> tuple[Markup, Markup]:
    """Return how to read a reliability curve, and how to read a reliability diagram of bars."""
    probability, units, outcome = event.probability, event.units, event.outcome
    curve = (
        f"For {units} with a given {probability}, the curve shows the share that are {outcome} (isotonic regression, "
        "without bins). A calibrated model lies on the dashed diagonal, apart from chance: its whole curve is inside "
        "the gray band with probability 90 %. Areas outside the band are red. The histogram shows how many "
        f"{units} have each {probability}."
    )
    bars = (
        f"Each bar shows the share of {units} in a bin that are {outcome}; the red part is the gap to the mean "
        f"{probability} of the bin. Fainter bars hold fewer {units}. Intervals hold simultaneously for all bins."
    )
    return note(curve), note(bars)


CURVE_EXPLANATION, BAR_EXPLANATION = diagram_explanations()


def curve_diagram(
    title: str, by_score: GroupedScores, bins: Bins, note: str = "", width: float = 4.0, event: EventKind = TOP_CLASS
) -> Markup:
    """Return a CORP reliability curve (isotonic regression, without bins) with its 90 % band, above a histogram.

    Args:
        title: What the predictions are, for the caption.
        by_score: Examples sorted by probability, for the curve.
        bins: Bins of the same examples, for the histogram.
        note: Small text below the title.
        width: Width in inches.
        event: The event, whose words label the axes.
    """
    curve = corp_of(by_score, level=0.90, draws=NUM_BAND_DRAWS, seed=0)

    def draw(drawing: Figure) -> None:
        """Draw the curve above the histogram, with one axis of probabilities."""
        upper, lower = drawing.subplots(2, 1, height_ratios=[5, 1], sharex=True)
        reliability_curve(curve, ax=upper)
        confidence_histogram(bins, ax=lower)
        upper.set(xlabel="", ylabel=_wrap_label(event.frequency))
        lower.set(xlabel=_wrap_label(event.probability), ylabel=event.units)

    return figure(
        draw,
        _alt_text(f"Reliability curve, {title}", bins, event),
        caption=_caption(title, note),
        size=(width, 1.25 * width),
        hover_points=[
            *_curve_points(curve, float(by_score.total_weight.sum()), event),
            *_histogram_points(bins, event),
        ],
    )


def bar_diagram(
    title: str, bins: Bins, note: str = "", width: float = 4.0, event: EventKind = TOP_CLASS, level: float | None = 0.90
) -> Markup:
    """Return a reliability diagram of bars.

    Args:
        title: What the predictions are, for the caption.
        bins: The bins to draw.
        note: Small text below the title.
        width: Width and height in inches.
        event: The event, whose words label the axes.
        level: Simultaneous level of the intervals in the hover texts, which assume independent rows. None omits them.
    """

    def draw(drawing: Figure) -> None:
        ax = reliability(bins, ax=drawing.add_subplot())
        ax.set(xlabel=_wrap_label(event.probability), ylabel=_wrap_label(event.frequency))

    return figure(
        draw,
        _alt_text(f"Reliability diagram, {title}", bins, event),
        caption=_caption(title, note),
        size=(width, width),
        hover_points=_bar_points(bins, event, level),
    )


def reliability_figure(p: Predictions, alt_text: str, caption: str) -> Markup:
    """Return a plain reliability diagram of the event of predictions."""
    return figure(lambda drawing: reliability(p, ax=drawing.subplots()), alt_text, caption=caption)


def version_facts(command: str) -> dict[str, str]:
    """Return command, versions and time of the report."""
    return {
        "command": command,
        "versions": f"calibrant {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "created": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _wrap_label(text: str) -> str:
    """Break the label of an axis into at most two lines."""
    return textwrap.fill(text, MAX_LABEL_CHARACTERS, max_lines=2, placeholder="…")


def _caption(title: str, note: str) -> Markup:
    """Return the title of a figure, with a note in small letters if there is one."""
    heading = breakable(title)
    return heading + render("<small>{}</small>", typeset(note)) if note else heading


def _curve_points(curve: Curve, total_weight: float, event: EventKind) -> list[HoverPoint]:
    """Return a hover point for each step of an isotonic curve.

    Its text has the range of probabilities in the step, the frequency of the event, the number of examples, and the
    mean limits of the band in which the curve of a calibrated model lies. `total_weight` is the weight of all examples,
    from which the number of examples in a step is computed by its share.
    """
    assert curve.low is not None  # reliability curves have all three
    assert curve.high is not None
    assert curve.weight is not None
    step_starts = ((curve.y.diff() > 0).nonzero().squeeze(1) + 1).tolist()  # of the second and later steps
    hover_points: list[HoverPoint] = []
    for start, end in pairwise([0, *step_starts, len(curve.y)]):
        weight = curve.weight[start:end]  # shares of all examples
        low, high = (float((limit[start:end] * weight).sum() / weight.sum()) for limit in (curve.low, curve.high))
        first_x, last_x, y = float(curve.x[start]), float(curve.x[end - 1]), float(curve.y[start])
        text = (
            f"{event.probability} {_format_range(first_x, last_x)}: {event.frequency} {format_percent(y, 1)} of "
            f"{total_weight * float(weight.sum()):,.0f} {event.units}; calibrated model: {_format_range(low, high)}"
        )
        hover_points.append(HoverPoint((first_x + last_x) / 2, y, text))
    return hover_points


def _histogram_points(bins: Bins, event: EventKind) -> list[HoverPoint]:
    """Return a hover point for each nonempty bin of a histogram: range of probabilities, number of rows, and share."""
    return [
        HoverPoint(
            b.center,
            b.weight,
            f"{event.probability} {b.span}: {b.count:,} {event.units}, {format_percent(b.weight, 1)} of all",
            axes=1,  # the histogram is below the curve
        )
        for b in _nonempty_bins(bins)
    ]


def _bar_points(bins: Bins, event: EventKind, level: float | None) -> list[HoverPoint]:
    """Return a hover point for each nonempty bin of a reliability diagram.

    Its text has the range of probabilities, the frequency of the event, its interval if there is a `level`, the mean
    probability and the number of rows.
    """
    lows, highs = frequency_limits(bins, level or 0.90)  # not shown without a level, so that any level does
    hover_points: list[HoverPoint] = []
    for b in _nonempty_bins(bins):
        text = f"{event.probability} {b.span}: {event.frequency} {format_percent(b.accuracy, 1)}"
        if level is not None:
            interval = _format_range(float(lows[b.index]), float(highs[b.index]))
            text += f", simultaneous {100 * level:g} % interval {interval}"
        text += f"; mean {event.probability} {format_percent(b.confidence, 1)}; {b.count:,} {event.units}"
        hover_points.append(HoverPoint(b.center, b.accuracy, text))
    return hover_points


@dataclass(frozen=True)
class _NonemptyBin:
    """A bin with examples."""

    index: int
    center: float
    span: str  # range of the probability, as text
    weight: float  # share of all examples
    accuracy: float
    confidence: float
    count: int


def _nonempty_bins(bins: Bins) -> list[_NonemptyBin]:
    """Return the bins that have examples."""
    columns = [values.tolist() for values in (bins.weight, bins.accuracy, bins.confidence, bins.count)]
    nonempty: list[_NonemptyBin] = []
    for i, (low, high) in enumerate(pairwise(bins.edges.tolist())):
        weight, accuracy, confidence, count = (values[i] for values in columns)
        if count:
            span = f"{100 * low:.0f} to {100 * high:.0f} %"
            nonempty.append(_NonemptyBin(i, (low + high) / 2, span, weight, accuracy, confidence, count))
    return nonempty


def _format_range(low: float, high: float) -> str:
    """Return two shares as a range in percent, or as one value if they round to the same."""
    low_text, high_text = f"{100 * low:.1f}", f"{100 * high:.1f}"
    return f"{high_text} %" if low_text == high_text else f"{low_text} to {high_text} %"


def _alt_text(subject: str, bins: Bins, event: EventKind) -> str:
    """Return the text of a reliability diagram for screen readers: ECE, direction of the gap, and every bin.

    `subject` names the diagram.
    """
    probability, frequency, rows = event.probability, event.frequency, _nonempty_bins(bins)
    weighted_gaps = [b.weight * (b.accuracy - b.confidence) for b in rows]
    ece = math.fsum(map(abs, weighted_gaps))
    side = "below" if math.fsum(weighted_gaps) < 0 else "above"
    parts = [
        f"{b.span}: {frequency} {format_percent(b.accuracy, 1)}, mean {probability} "
        f"{format_percent(b.confidence, 1)}, {b.count:,} {event.units}"
        for b in rows
    ]
    return (
        f"{subject}: ECE {format_percent(ece)}; the {frequency} is {side} the mean {probability}. "
        f"By {probability}: {'; '.join(parts)}."
    )
