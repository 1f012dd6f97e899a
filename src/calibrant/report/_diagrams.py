"""Reliability diagrams for a page, with captions, alternative texts and hover texts, and facts about the software."""

import math
import platform
import textwrap
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant._text import format_percent
from calibrant._version import __version__
from calibrant.backend.bins import Bins, GroupedScores
from calibrant.events import TOP_CLASS, EventKind
from calibrant.metrics import Curve
from calibrant.metrics.curves import corp_of, frequency_limits
from calibrant.plots import confidence_histogram, reliability, reliability_curve
from calibrant.predictions import Predictions
from calibrant.report._elements import breakable, note, render, typeset
from calibrant.report._svg_figure import HoverPoint, figure

NUM_BAND_DRAWS = 300
MAX_LABEL_CHARACTERS = 44  # per line of an axis label
INFINITE_MEAN_EXPLANATION = "a true class has probability 0, which makes the mean infinite"


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
    """Return a CORP reliability curve with its 90 % band, above the histogram of the predictions.

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
    """Return a point per step of an isotonic curve: probabilities, frequency, examples, and mean band if calibrated."""
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
    """Return a point per nonempty bin: range of probabilities, number of rows, and their share."""
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
    """Return a point per nonempty bin: range, frequency, interval if there is a level, mean probability and rows."""
    lows, highs = frequency_limits(bins, level or 0.90)  # not shown without a level
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
    """Return a text that says for screen readers what a reliability diagram shows: ECE, direction and every bin."""
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
