"""Plots of predictions."""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from itertools import cycle
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from calibrant._core.kernels.bins import Bins
from calibrant._core.text import display_name
from calibrant.metrics import Curve, Interval
from calibrant.metrics.curves import FlexibleCurve
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS

BAR_COLOR, GAP_COLOR, LINE_COLOR, BACKGROUND_COLOR = "#4269d0", "#ff725c", "#6b7280", "#ffffff"
SERIES_COLORS = (BAR_COLOR, GAP_COLOR, "#3ca951", "#efb118", "#a463f2", "#6cc5b0", "#ff8ab7", "#9c6b4e")
DASH_PATTERNS = (0, (4, 1.5)), (0, (1, 1)), (0, (6, 1.5, 1, 1.5))
LINE_STYLES = "-", *DASH_PATTERNS  # the style changes whenever the colors start over
_BAR_STYLE: dict[str, Any] = {"color": BAR_COLOR, "edgecolor": BACKGROUND_COLOR, "linewidth": 0.6}
MAX_RARE_SCORE, SMALLEST_SCORE = 0.02, 1e-7
MAX_CURVE_COLUMNS = 400  # curves are thinned to about two points per column


def reliability(bins: Bins | Predictions, *, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw a reliability diagram: accuracy per bin, with the gap to the mean confidence in red.

    Fainter bars hold fewer examples (Wang et al. 2021, Fig. 2).

    Args:
        bins: Bins, or predictions, which are drawn in 15 bins of their event.
        ax: Axes to draw on. Default: the current axes of pyplot.
        title: Title of the axes.
    """
    class_name = None
    if isinstance(bins, Predictions):
        class_name = _evaluated_class(bins)
        bins = bins.events.equal_width(15)
    ax = current_axes() if ax is None else ax
    columns = (bins.edges[:-1], np.diff(bins.edges), bins.accuracy, bins.confidence, bins.weight)
    rows = np.stack(columns, 1)
    max_weight = float(bins.weight.max())
    gap_style: dict[str, Any] = {"color": GAP_COLOR, "edgecolor": GAP_COLOR, "linewidth": 0.4, "hatch": "////"}
    for x, width, accuracy, confidence, weight in rows[bins.count > 0]:
        opacity = 0.25 + 0.75 * np.sqrt(weight / max_weight)  # never too faint to see
        ax.bar(x, accuracy, width, align="edge", alpha=opacity, **_BAR_STYLE)
        low, gap = min(accuracy, confidence), abs(accuracy - confidence)
        ax.bar(x, gap, width, bottom=low, align="edge", alpha=0.35, **gap_style)
    _draw_unit_square(ax, title)
    if class_name is not None:  # else the axes say confidence and accuracy
        ax.set_xlabel(f"probability of {class_name}", parse_math=False)
        ax.set_ylabel(f"frequency of {class_name}", parse_math=False)
    return ax


def _evaluated_class(p: Predictions) -> str | None:
    """Return the name of the class whose probability is evaluated, or None for the top class and for confidences.

    `p.of` is the index of the class, or "top". Confidences are predictions of two classes with fixed names, such as
    wrong and correct.
    """
    if not isinstance(p.of, int) or p.class_names in BINARY_EVENTS:
        return None
    return f"class {p.of}" if p.class_names is None else display_name(p.class_names[p.of])


def current_axes() -> Axes:
    """Return the current axes of pyplot."""
    from matplotlib import pyplot

    return pyplot.gca()


def reliability_curve(curve: Curve, *, ax: Axes, title: str = "") -> Axes:
    """Draw a reliability curve such as `metrics.curves.corp` (Dimitriadis et al. 2021).

    The gray band contains the whole curve of a calibrated model with the probability that `curve` was computed with, by
    default 90 %. Areas between curve and band are red. If the mean probability is below 2 %, the axes are logits and
    show only the range of the curve.
    """
    is_rare = has_rare_scores(curve)
    if is_rare:
        x, y = curve.x, curve.y
        inner = y[(y > 0) & (y < 1)]  # frequencies of 0 and 1 are drawn at the edge
        ends = _smallest_score(curve), float(min(2 * max([x.max(), *inner]), (1 + x.max()) / 2))
        low, high = (None if v is None else v.clip(*ends) for v in (curve.low, curve.high))
        x, y = x.clip(*ends), y.clip(*ends)
    else:
        x, y, low, high = _thin_points(curve.x, curve.y, curve.low, curve.high)
    if low is not None and high is not None:
        ax.fill_between(x, low, high, color=LINE_COLOR, alpha=0.22, linewidth=0)
        for limit, is_outside in (low, y < low), (high, y > high):
            ax.fill_between(x, limit, y, where=is_outside.tolist(), color=GAP_COLOR, alpha=0.35, linewidth=0)
    # Without clipping, dots on the edge of the axes are whole
    ax.plot(x, y, color=BAR_COLOR, linewidth=1.8, clip_on=False, **_dots(x, size=4.0))
    return _draw_logit_square(ax, title, x, y) if is_rare else _draw_unit_square(ax, title)


def flexible_curve(curve: FlexibleCurve, *, ax: Axes, title: str = "") -> Axes:
    """Draw a flexible calibration curve on logit axes, with its pointwise (dark) and simultaneous (light) band."""
    x, y = (v.clip(SMALLEST_SCORE, 1 - SMALLEST_SCORE) for v in (curve.x, curve.y))
    for low, high, alpha in ((curve.simultaneous_low, curve.simultaneous_high, 0.15), (curve.low, curve.high, 0.25)):
        if low is not None and high is not None:
            lower, upper = (v.clip(SMALLEST_SCORE, 1 - SMALLEST_SCORE) for v in (low, high))
            ax.fill_between(x, lower, upper, color=BAR_COLOR, alpha=alpha, linewidth=0)
    ax.plot(x, y, color=BAR_COLOR, linewidth=1.8)
    _draw_logit_square(ax, title, x, np.quantile(y, [0.1, 0.9]))  # the ends of a curve may lie far outside
    ax.set(xlabel="predicted probability", ylabel="observed frequency")
    return ax


def has_rare_scores(curve: Curve) -> bool:
    """Whether the probabilities of a curve are so small, on average, that logits show them better."""
    mean = curve.x.mean() if curve.weight is None else curve.x @ curve.weight / curve.weight.sum()
    return bool((curve.x > 0).any()) and float(mean) < MAX_RARE_SCORE


def _smallest_score(curve: Curve) -> float:
    """Return the lower end of the logit axes of a curve."""
    return max(float(curve.x[curve.x > 0].min()) / 2, SMALLEST_SCORE)


def _draw_logit_square(ax: Axes, title: str, x: Any, y: Any) -> Axes:
    """Draw the diagonal on logit axes over the range of a curve."""
    limits = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    ax.plot(limits, limits, color=LINE_COLOR, linewidth=1, linestyle=(0, (4, 3)))
    ax.set(xscale="logit", yscale="logit", xlim=limits, ylim=limits, xlabel="confidence", ylabel="accuracy")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: _logit_tick(value)))
        axis.set_minor_formatter(NullFormatter())
    return tidy(ax, title)


def _logit_tick(value: float) -> str:
    """Return the label of a tick of logit axes, such as 0.01% or 99.9%."""
    if not 0.5 < value < 1:
        return f"{100 * value:.2g}%"
    return f"{100 * value:.{max(0, round(-math.log10(1 - value)) - 2)}f}%"


def rare_histogram(curve: Curve, *, ax: Axes, bins: int = 20) -> Axes:
    """Draw the share of examples by probability on a logit axis, for a curve with rare scores."""
    assert curve.weight is not None  # reliability curves have it
    smallest = _smallest_score(curve)
    x = curve.x.clip(smallest, 1 - smallest)
    ax.hist(
        x,
        np.geomspace(x.min() * 0.999, x.max() * 1.001, bins + 1).tolist(),
        weights=curve.weight,
        **_BAR_STYLE,
    )
    ax.set(xlabel="confidence", ylabel="share of examples")
    return tidy(ax, "", percent="y")


def confidence_histogram(bins: Bins, *, ax: Axes, title: str = "") -> Axes:
    """Draw the share of examples per confidence bin (Mukhoti et al. 2020, Fig. 2, bottom row)."""
    edges = bins.edges
    ax.bar(edges[:-1], bins.weight, np.diff(edges), align="edge", **_BAR_STYLE)
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of examples")
    return tidy(ax, title, percent="xy")


def curves(
    lines: Mapping[str, Any],
    *,
    ax: Axes,
    x: Sequence[Any] | None = None,
    xlabel: str = "epoch",
    ylabel: str = "",
    title: str = "",
) -> Axes:
    """Draw one line per name: the mean over runs with the range from minimum to maximum.

    Args:
        lines: Arrays (epochs,) or (runs, epochs) by name. NaN leaves a gap.
        ax: Axes to draw on.
        x: Positions of the columns. Default: epochs from 1.
        xlabel: Label of the horizontal axis.
        ylabel: Label of the vertical axis.
        title: Title of the axes.
    """
    for i, (name, values) in enumerate(lines.items()):
        runs = np.atleast_2d(np.asarray(values, dtype=float))  # (runs, epochs)
        positions = range(1, runs.shape[1] + 1) if x is None else x
        round_of_colors, color_index = divmod(i, len(SERIES_COLORS))
        color, style = SERIES_COLORS[color_index], LINE_STYLES[round_of_colors % len(LINE_STYLES)]
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=RuntimeWarning)  # of epochs without any value, which become NaN
            mean, low, high = np.nanmean(runs, axis=0), np.nanmin(runs, axis=0), np.nanmax(runs, axis=0)
        line_style: dict[str, Any] = {"color": color, "linewidth": 1.6, "linestyle": style, **_dots(mean, size=3.5)}
        ax.plot(positions, mean, label=display_name(name), **line_style)
        if len(runs) > 1:
            ax.fill_between(positions, low, high, color=color, alpha=0.2, linewidth=0)
    if x is None:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return add_legend(tidy(ax, title), lines)


def histograms(
    groups: Mapping[str, Any], *, ax: Axes, bins: int = 40, xlabel: str = "maximum logit", title: str = ""
) -> Axes:
    """Draw one normalized histogram per group over common bins.

    Papers draw maximum logits by learned epoch (Wang et al. 2021, Fig. 5) and gradient norms (Mukhoti et al. 2020,
    Fig. 4).

    Args:
        groups: Values of each group by name, of any shape.
        ax: Axes to draw on.
        bins: Number of bins from the smallest to the largest value.
        xlabel: Label of the horizontal axis.
        title: Title of the axes.
    """
    arrays = {name: np.asarray(values, dtype=float).ravel() for name, values in groups.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(arrays.values())), bins).tolist()
    for (name, values), color in zip(arrays.items(), cycle(SERIES_COLORS)):
        share = np.full(len(values), 1 / max(len(values), 1))  # bars of a group sum to 1; an empty group has none
        ax.hist(values, edges, weights=share, color=color, alpha=0.35, histtype="stepfilled")
        ax.hist(values, edges, weights=share, color=color, linewidth=1.2, histtype="step", label=display_name(name))
    ax.set(xlabel=xlabel, ylabel="share of group")
    return add_legend(tidy(ax, title, percent="y"), arrays)


def risk_coverage(lines: Mapping[str, Curve], *, ax: Axes, title: str = "") -> Axes:
    """Draw the error rate of the most confident predictions against their share (coverage), one line and band per name.

    `lines` has curves such as those of `metrics.curves.risk_coverage`.
    """
    for (name, curve), color in zip(lines.items(), cycle(SERIES_COLORS)):
        x, y, low, high = _thin_points(curve.x, curve.y, curve.low, curve.high)
        if low is not None and high is not None:
            ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        ax.plot(x, y, color=color, linewidth=1.6, label=display_name(name), **_dots(x, size=4.0))
    ax.set(xlim=(0, 1), xlabel="coverage: share of predictions kept", ylabel="error rate")
    ax.set_ylim(bottom=0)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    return add_legend(tidy(ax, title, percent="x"), lines)


def intervals(rows: Mapping[str, Interval], *, ax: Axes, reference: float = 0.0, xlabel: str = "") -> Axes:
    """Draw estimates with intervals, one per row from the top, and a vertical line at `reference`.

    Intervals that contain the reference are gray.
    """
    for i, row in enumerate(rows.values()):
        color = BAR_COLOR if (row.low > reference or row.high < reference) else LINE_COLOR
        ax.plot([row.low, row.high], [i, i], color=color, linewidth=2, solid_capstyle="round")
        ax.plot(row.value, i, "o", color=color, markersize=6)
    ax.axvline(reference, color=LINE_COLOR, linewidth=1, linestyle=(0, (4, 3)))
    ax.set_yticks(range(len(rows)), list(map(display_name, rows)))
    for label in ax.get_yticklabels():
        label.set_parse_math(False)
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlabel=xlabel)  # the first row is on top
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    return tidy(ax, "")


def _thin_points(x: Any, *arrays: Any) -> list[Any]:
    """Return the points of a curve as numpy arrays, thinned to what a figure can show. None stays None.

    Only the first and last point in each of `MAX_CURVE_COLUMNS` columns of equal width are kept.

    Args:
        x: Sorted positions in [0, 1], (n).
        *arrays: Values at these positions, (n), or None.
    """
    column = np.floor(x * MAX_CURVE_COLUMNS)
    starts_column = np.diff(column, prepend=-1) != 0  # -1, which is no column, makes the first point a start
    ends_column = np.append(starts_column[1:], True)
    is_kept = starts_column | ends_column
    return [None if array is None else array[is_kept] for array in (x, *arrays)]


def _dots(points: Any, *, size: float) -> dict[str, Any]:
    """Return matplotlib's style of the markers of a line: dots if it has fewer than 12 points, else none."""
    return {"marker": "o" if len(points) < 12 else "", "markersize": size}


def _draw_unit_square(ax: Axes, title: str) -> Axes:
    """Draw the diagonal of perfect calibration, and set limits and labels of a reliability diagram."""
    ax.plot([0, 1], [0, 1], color=LINE_COLOR, linewidth=1, linestyle=(0, (4, 3)))
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
    return tidy(ax, title, percent="xy")


def add_legend(ax: Axes, names: Collection[str]) -> Axes:
    """Add a legend if there is more than one name, and return the axes."""
    if len(names) > 1:
        for text in ax.legend(frameon=False, fontsize="small").get_texts():
            text.set_parse_math(False)  # names may contain dollar signs
    return ax


def tidy(ax: Axes, title: str, *, percent: Literal["", "x", "y", "xy"] = "") -> Axes:
    """Remove the frame at the top and right, set the title, write some axes in percent, and return the axes."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(title, fontsize=10)
    for name in percent:
        getattr(ax, f"{name}axis").set_major_formatter(PercentFormatter(1, decimals=0))
    return ax
