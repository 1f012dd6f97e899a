"""Reliability diagrams as pictures, with texts on hover and for screen readers."""

import math
import textwrap
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from calibrant._core.kernels.bins import Bins, GroupedScores
from calibrant._core.lazy import LazyModule
from calibrant._core.numbers import format_level, format_percent, format_percent_range
from calibrant.metrics import Curve
from calibrant.metrics.curves import corp_of, frequency_limits
from calibrant.predictions import Predictions
from calibrant.predictions.events import TOP_CLASS, EventKind
from calibrant.reports.document import HoverPoint, Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant.reports import plots
else:
    plots = LazyModule("calibrant.reports.plots")  # imports matplotlib, which only figures need

NUM_BAND_DRAWS = 300
MAX_LABEL_CHARACTERS = 44  # per line of an axis label
INFINITE_MEAN_EXPLANATION = "a true class has probability 0, which makes the mean infinite"


def diagram_explanations(event: EventKind = TOP_CLASS) -> tuple[str, str]:
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
    return curve, bars


CURVE_EXPLANATION, BAR_EXPLANATION = diagram_explanations()


def curve_diagram(
    title: str, by_score: GroupedScores, bins: Bins, detail: str = "", width: float = 4.0, event: EventKind = TOP_CLASS
) -> Picture:
    """Return a CORP reliability curve (isotonic regression, without bins) with its 90 % band, above a histogram.

    Args:
        title: What the predictions are, for the caption.
        by_score: Examples sorted by probability, for the curve.
        bins: Bins of the same examples, for the histogram.
        detail: Small text below the title.
        width: Width in inches.
        event: The event, whose words label the axes.
    """
    curve = corp_of(by_score, level=0.90, draws=NUM_BAND_DRAWS, seed=0)
    is_rare = plots.has_rare_scores(curve)  # bins of equal width would hold all examples in the first one

    def draw(drawing: "Figure") -> None:
        """Draw the curve above the histogram, with one axis of probabilities."""
        upper, lower = drawing.subplots(2, 1, height_ratios=[5, 1], sharex=True)
        plots.reliability_curve(curve, ax=upper)
        if is_rare:
            plots.rare_histogram(curve, ax=lower)
        else:
            plots.confidence_histogram(bins, ax=lower)
        upper.set(xlabel="", ylabel=_wrap_label(event.frequency))
        lower.set(xlabel=_wrap_label(event.probability), ylabel=event.units)

    return Picture(
        draw,
        _alt_text(f"Reliability curve, {title}", bins, event),
        caption=title,
        detail=detail,
        size=(width, 1.25 * width),
        hover_points=[
            *_curve_points(curve, float(by_score.total_weight.sum()), event),
            *([] if is_rare else _histogram_points(bins, event)),
        ],
    )


def bar_diagram(
    title: str,
    bins: Bins,
    detail: str = "",
    width: float = 4.0,
    event: EventKind = TOP_CLASS,
    level: float | None = 0.90,
) -> Picture:
    """Return a reliability diagram of bars.

    Args:
        title: What the predictions are, for the caption.
        bins: The bins to draw.
        detail: Small text below the title.
        width: Width and height in inches.
        event: The event, whose words label the axes.
        level: Simultaneous level of the intervals in the hover texts, which assume independent rows. None omits them.
    """

    def draw(drawing: "Figure") -> None:
        ax = plots.reliability(bins, ax=drawing.add_subplot())
        ax.set(xlabel=_wrap_label(event.probability), ylabel=_wrap_label(event.frequency))

    return Picture(
        draw,
        _alt_text(f"Reliability diagram, {title}", bins, event),
        caption=title,
        detail=detail,
        size=(width, width),
        hover_points=_bar_points(bins, event, level),
    )


def reliability_figure(p: Predictions, alt_text: str, caption: str) -> Picture:
    """Return a plain reliability diagram of the event of predictions."""
    return Picture(lambda drawing: plots.reliability(p, ax=drawing.subplots()), alt_text, caption)


def _wrap_label(text: str) -> str:
    """Break the label of an axis into at most two lines."""
    return textwrap.fill(text, MAX_LABEL_CHARACTERS, max_lines=2, placeholder="…")


def _curve_points(curve: Curve, total_weight: float, event: EventKind) -> list[HoverPoint]:
    """Return a hover point for each step of an isotonic curve.

    Its text has the range of probabilities in the step, the frequency of the event, the number of examples, and the
    mean limits of the band in which the curve of a calibrated model lies. `total_weight` is the weight of all examples,
    from which the number of examples in a step is computed by its share.
    """
    assert curve.low is not None  # reliability curves have all three
    assert curve.high is not None
    assert curve.weight is not None
    step_starts = (np.flatnonzero(np.diff(curve.y) > 0) + 1).tolist()  # of the second and later steps
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
            text += f", simultaneous {format_level(level)} interval {interval}"
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
            span = format_percent_range(low, high, 0)
            nonempty.append(_NonemptyBin(i, (low + high) / 2, span, weight, accuracy, confidence, count))
    return nonempty


def _format_range(low: float, high: float) -> str:
    """Return two shares as a range in percent, or as one value if they round to the same."""
    high_text = format_percent(high, 1)
    return high_text if format_percent(low, 1) == high_text else format_percent_range(low, high, 1)


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
