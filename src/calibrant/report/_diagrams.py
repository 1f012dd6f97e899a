"""Diagrams for a page: numbers in, pictures with their words out, and what made them."""

import platform
import textwrap
from datetime import UTC, datetime
from itertools import pairwise

import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant._version import __version__
from calibrant.backend.bins import Bins, GroupedScores
from calibrant.metrics import Curve, wilson
from calibrant.metrics.curves import corp_of
from calibrant.plots import confidence_histogram, reliability, reliability_curve
from calibrant.report._elements import breakable, format_percent, note, render, typeset
from calibrant.report._svg_figure import Mark, figure

NUM_BAND_DRAWS = 200
MAX_LABEL_CHARACTERS = 44  # characters in a line of an axis label
INFINITE_MEAN_EXPLANATION = (
    "what came true was given the probability 0, and a single such example makes the mean infinite"
)
AxisLabels = tuple[str, str, str]  # names of the probability, of how often the event happens, and of the rows
TOP_CLASS_LABELS: AxisLabels = ("confidence", "accuracy", "examples")


def diagram_explanations(labels: AxisLabels = TOP_CLASS_LABELS) -> tuple[Markup, Markup]:
    """Say how a reliability curve, and how a diagram of bars, is read."""
    probability, frequency, rows = labels
    curve = (
        f"The line shows the {frequency} at each {probability} (isotonic regression, so that no bins are chosen); a "
        "calibrated model lies on the dashed diagonal. The gray band is where the line of a calibrated model lies "
        "90 % of the time: only where the line leaves it, in red, is evidence. The histogram below shows how the "
        f"{rows} are spread."
    )
    bars = (
        f"The height of a bar is the {frequency} in its bin. The red part is the gap to the mean {probability} of the "
        f"bin; fainter bars hold fewer {rows}."
    )
    return note(curve), note(bars)


CURVE_EXPLANATION, BAR_EXPLANATION = diagram_explanations()


def curve_diagram(
    title: str,
    ties: GroupedScores,
    bins: Bins,
    note: str = "",
    width: float = 4.0,
    labels: AxisLabels = TOP_CLASS_LABELS,
) -> Markup:
    """Return a CORP reliability curve with its band, above the histogram of what was said."""
    curve = corp_of(ties, 0.90, NUM_BAND_DRAWS, 0)

    def draw(drawing: Figure) -> None:
        upper, lower = drawing.subplots(2, 1, height_ratios=[5, 1], sharex=True)
        reliability_curve(curve, ax=upper)
        confidence_histogram(bins, ax=lower)
        upper.set(xlabel="", ylabel=_wrap_label(labels[1]))
        lower.set(xlabel=_wrap_label(labels[0]), ylabel=labels[2])

    return figure(
        draw,
        _alt_text(f"Reliability curve of {title}", bins, labels),
        caption=_caption(title, note),
        size=(width, 1.25 * width),
        marks=[*_curve_marks(curve, float(ties.total_weight.sum()), labels), *_histogram_marks(bins, labels)],
    )


def bar_diagram(
    title: str,
    bins: Bins,
    note: str = "",
    width: float = 4.0,
    labels: AxisLabels = TOP_CLASS_LABELS,
    level: float | None = 0.90,
) -> Markup:
    """Return a classical reliability diagram of bars; their intervals are of independent examples, or left out."""
    alt_text = _alt_text(f"Reliability diagram of {title}", bins, labels)

    def draw(drawing: Figure) -> None:
        reliability(bins, ax=drawing.add_subplot()).set(xlabel=_wrap_label(labels[0]), ylabel=_wrap_label(labels[1]))

    return figure(
        draw, alt_text, caption=_caption(title, note), size=(width, width), marks=_bar_marks(bins, labels, level)
    )


def _wrap_label(text: str) -> str:
    """Break the label of an axis into at most two lines."""
    return textwrap.fill(text, MAX_LABEL_CHARACTERS, max_lines=2, placeholder="…")


def _curve_marks(curve: Curve, total_weight: float, labels: AxisLabels) -> list[Mark]:
    """A mark for every step of a curve: from where to where, how high, of how many, and where chance would lie."""
    assert curve.low is not None
    assert curve.high is not None
    assert curve.weight is not None
    ends = [0, *((curve.y.diff() > 0).nonzero().squeeze(1) + 1).tolist(), len(curve.y)]
    marks: list[Mark] = []
    for start, end in pairwise(ends):
        weight = curve.weight[start:end]
        low, high = (float((edge[start:end] * weight).sum() / weight.sum()) for edge in (curve.low, curve.high))
        x0, x1, y = float(curve.x[start]), float(curve.x[end - 1]), float(curve.y[start])
        text = (
            f"{labels[0]} {_format_range(x0, x1)}: {labels[1]} {format_percent(y, 1)} of "
            f"{total_weight * float(weight.sum()):,.0f} {labels[2]}; "
            f"by chance {_format_range(low, high)}"
        )
        marks.append(Mark((x0 + x1) / 2, y, text))
    return marks


def _histogram_marks(bins: Bins, labels: AxisLabels) -> list[Mark]:
    """A mark for every bar of a histogram, below the curve."""
    return [
        Mark(x, y, f"{labels[0]} {span}: {count:,} {labels[2]}, {format_percent(y, 1)} of all", 1)
        for x, span, y, count in zip(*_bin_centers(bins), bins.weight.tolist(), bins.count.tolist(), strict=True)
        if count
    ]


def _bar_marks(bins: Bins, labels: AxisLabels, level: float | None) -> list[Mark]:
    """A mark for every bar of a reliability diagram, with its interval."""
    columns = bins.accuracy.tolist(), bins.confidence.tolist(), bins.count.tolist()
    marks: list[Mark] = []
    for x, span, accuracy, confidence, count in zip(*_bin_centers(bins), *columns, strict=True):
        if count:
            text = f"{labels[0]} {span}: {labels[1]} {format_percent(accuracy, 1)}"
            if level is not None:
                interval = wilson(accuracy, float(count), level)
                text += f", {100 * level:g} % interval {_format_range(interval.low, interval.high)}"
            marks.append(
                Mark(x, accuracy, f"{text}; mean {labels[0]} {format_percent(confidence, 1)}; {count:,} {labels[2]}")
            )
    return marks


def _bin_centers(bins: Bins) -> tuple[list[float], list[str]]:
    """The middle of every bin, and from where to where it goes."""
    edges = bins.edges.tolist()
    return [(a + b) / 2 for a, b in pairwise(edges)], [f"{100 * a:.0f} to {100 * b:.0f} %" for a, b in pairwise(edges)]


def _format_range(low: float, high: float) -> str:
    low_text, high_text = f"{100 * low:.1f}", f"{100 * high:.1f}"
    return f"{high_text} %" if low_text == high_text else f"{low_text} to {high_text} %"


def version_facts(command: str) -> dict[str, str]:
    """Say what made the report."""
    return {
        "command": command,
        "versions": f"calibrant {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _alt_text(subject: str, bins: Bins, labels: AxisLabels) -> str:
    probability_label, frequency_label, units = labels
    nonempty = bins.count > 0
    parts = [
        f"{100 * float(low):.0f} to {100 * float(high):.0f} %: {frequency_label} {format_percent(float(accuracy), 1)}, "
        f"mean {probability_label} {format_percent(float(confidence), 1)}, {int(count):,} {units}"
        for low, high, accuracy, confidence, count in zip(
            bins.edges[:-1][nonempty],
            bins.edges[1:][nonempty],
            bins.accuracy[nonempty],
            bins.confidence[nonempty],
            bins.count[nonempty],
            strict=True,
        )
    ]
    error, signed = (
        float((bins.weight * bins.gap.abs()).sum()),
        float((bins.weight[nonempty] * bins.gap[nonempty]).sum()),
    )
    side = "below" if signed < 0 else "above"
    return (
        f"{subject}: ECE {format_percent(error)}, {frequency_label} on average {side} {probability_label}. By "
        f"{probability_label}: {'; '.join(parts)}."
    )


def _caption(title: str, note: str) -> Markup:
    heading = breakable(title)
    return heading + render("<small>{}</small>", typeset(note)) if note else heading
