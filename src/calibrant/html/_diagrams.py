"""Diagrams for a page: numbers in, pictures with their words out, and what made them."""

import platform
import textwrap
from datetime import UTC, datetime
from itertools import pairwise

import torch
from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant._bins import Bins, Ties
from calibrant._version import __version__
from calibrant.html._figure import Mark, figure
from calibrant.html._page import breakable, note, percent, render, typeset
from calibrant.metrics import Curve, wilson
from calibrant.metrics.curves import corp_of
from calibrant.plots import confidence_histogram, reliability, reliability_curve

DRAWS = 200
LABEL = 44  # characters in a line of an axis label
INFINITE = "what came true was given the probability 0, and a single such example makes the mean infinite"
Words = tuple[str, str, str]  # names of the probability, of how often the event happens, and of the rows
TOP: Words = ("confidence", "accuracy", "examples")


def readings(words: Words = TOP) -> tuple[Markup, Markup]:
    """Say how a reliability curve, and how a diagram of bars, is read."""
    probability, frequency, rows = words
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


CURVE_READING, BAR_READING = readings()


def curve_diagram(title: str, ties: Ties, bins: Bins, note: str = "", width: float = 4.0, words: Words = TOP) -> Markup:
    """Return a CORP reliability curve with its band, above the histogram of what was said."""
    curve = corp_of(ties, 0.90, DRAWS, 0)

    def draw(drawing: Figure) -> None:
        upper, lower = drawing.subplots(2, 1, height_ratios=[5, 1], sharex=True)
        reliability_curve(curve, ax=upper)
        confidence_histogram(bins, ax=lower)
        upper.set(xlabel="", ylabel=_label(words[1]))
        lower.set(xlabel=_label(words[0]), ylabel=words[2])

    return figure(
        draw,
        _in_words(f"Reliability curve of {title}", bins, words),
        caption=_caption(title, note),
        size=(width, 1.25 * width),
        marks=[*_steps(curve, float(ties.mass.sum()), words), *_bars(bins, words)],
    )


def bar_diagram(
    title: str,
    bins: Bins,
    note: str = "",
    width: float = 4.0,
    words: Words = TOP,
    level: float | None = 0.90,
) -> Markup:
    """Return a classical reliability diagram of bars; their intervals are of independent examples, or left out."""
    told = _in_words(f"Reliability diagram of {title}", bins, words)

    def draw(drawing: Figure) -> None:
        reliability(bins, ax=drawing.add_subplot()).set(xlabel=_label(words[0]), ylabel=_label(words[1]))

    return figure(draw, told, caption=_caption(title, note), size=(width, width), marks=_bins(bins, words, level))


def _label(text: str) -> str:
    """Break the label of an axis into at most two lines."""
    return textwrap.fill(text, LABEL, max_lines=2, placeholder="…")


def _steps(curve: Curve, mass: float, words: Words) -> list[Mark]:
    """A mark for every step of a curve: from where to where, how high, of how many, and where chance would lie."""
    assert curve.low is not None
    assert curve.high is not None
    assert curve.weight is not None
    ends = [0, *((curve.y.diff() > 0).nonzero().squeeze(1) + 1).tolist(), len(curve.y)]
    marks: list[Mark] = []
    for first, end in pairwise(ends):
        weight = curve.weight[first:end]
        low, high = (float((edge[first:end] * weight).sum() / weight.sum()) for edge in (curve.low, curve.high))
        x0, x1, y = float(curve.x[first]), float(curve.x[end - 1]), float(curve.y[first])
        text = (
            f"{words[0]} {_span(x0, x1)}: {words[1]} {percent(y, 1)} of {mass * float(weight.sum()):,.0f} {words[2]}; "
            f"by chance {_span(low, high)}"
        )
        marks.append(Mark((x0 + x1) / 2, y, text))
    return marks


def _bars(bins: Bins, words: Words) -> list[Mark]:
    """A mark for every bar of a histogram, below the curve."""
    return [
        Mark(x, y, f"{words[0]} {span}: {count:,} {words[2]}, {percent(y, 1)} of all", 1)
        for x, span, y, count in zip(*_centers(bins), bins.weight.tolist(), bins.count.tolist(), strict=True)
        if count
    ]


def _bins(bins: Bins, words: Words, level: float | None) -> list[Mark]:
    """A mark for every bar of a reliability diagram, with its interval."""
    columns = bins.accuracy.tolist(), bins.confidence.tolist(), bins.count.tolist()
    marks: list[Mark] = []
    for x, span, accuracy, said, count in zip(*_centers(bins), *columns, strict=True):
        if count:
            text = f"{words[0]} {span}: {words[1]} {percent(accuracy, 1)}"
            if level is not None:
                found = wilson(accuracy, float(count), level)
                text += f", {100 * level:g} % interval {_span(found.low, found.high)}"
            marks.append(Mark(x, accuracy, f"{text}; mean {words[0]} {percent(said, 1)}; {count:,} {words[2]}"))
    return marks


def _centers(bins: Bins) -> tuple[list[float], list[str]]:
    """The middle of every bin, and from where to where it goes."""
    edges = bins.edges.tolist()
    return [(a + b) / 2 for a, b in pairwise(edges)], [f"{100 * a:.0f} to {100 * b:.0f} %" for a, b in pairwise(edges)]


def _span(low: float, high: float) -> str:
    first, last = f"{100 * low:.1f}", f"{100 * high:.1f}"
    return f"{last} %" if first == last else f"{first} to {last} %"


def facts(command: str) -> dict[str, str]:
    """Say what made the report."""
    return {
        "command": command,
        "versions": f"calibrant {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _in_words(what: str, bins: Bins, words: Words) -> str:
    said, happened, many = words
    full = bins.count > 0
    parts = [
        f"{100 * float(low):.0f} to {100 * float(high):.0f} %: {happened} {percent(float(accuracy), 1)}, "
        f"mean {said} {percent(float(confidence), 1)}, {int(count):,} {many}"
        for low, high, accuracy, confidence, count in zip(
            bins.edges[:-1][full],
            bins.edges[1:][full],
            bins.accuracy[full],
            bins.confidence[full],
            bins.count[full],
            strict=True,
        )
    ]
    error, signed = float((bins.weight * bins.gap.abs()).sum()), float((bins.weight[full] * bins.gap[full]).sum())
    way = "below" if signed < 0 else "above"
    return f"{what}: ECE {percent(error)}, {happened} on average {way} {said}. By {said}: {'; '.join(parts)}."


def _caption(title: str, note: str) -> Markup:
    words = breakable(title)
    return words + render("<small>{}</small>", typeset(note)) if note else words
