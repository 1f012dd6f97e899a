"""Plots of monitored calibration."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from calibrant.reports.plots._predictions import BAR_COLOR, GAP_COLOR, LINE_COLOR, current_axes, tidy


def gap_timeline(
    gap: Sequence[float],
    margin: Sequence[float],
    *,
    since: float | None = None,
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Draw the gap of each period, with the range of a calibrated model.

    Args:
        gap: Mean confidence minus mean outcome of each period.
        margin: Half of the width of the range of a calibrated model.
        since: Number, counted from 1, of the period in which the deviation of an alarm starts; marked in red.
        ax: Axes to draw on. Default: the current axes of pyplot.
        title: Title of the axes.
    """
    ax = current_axes() if ax is None else ax
    periods = range(1, len(gap) + 1)
    half_width = np.asarray(margin, dtype=float)
    ax.fill_between(periods, -half_width, half_width, color=LINE_COLOR, alpha=0.25, linewidth=0, step="mid")
    ax.axhline(0, color=LINE_COLOR, linewidth=1)
    ax.plot(periods, gap, color=BAR_COLOR, marker="o", markersize=3.5, linewidth=1.2)
    _mark_start(ax, since)
    ax.set(xlabel="period", ylabel="confidence minus outcome")
    return tidy(ax, title, percent="y")


def evidence_timeline(
    share: Sequence[float], *, since: float | None = None, ax: Axes | None = None, title: str = ""
) -> Axes:
    """Draw each period's evidence as a share of the alarm threshold.

    The evidence is the log wealth of a gambler who bets against calibration and cannot gain on average if the model is
    calibrated.

    Args:
        share: Largest log wealth in each period, divided by the log wealth that raises an alarm.
        since: As for `gap_timeline`.
        ax: Axes to draw on. Default: the current axes of pyplot.
        title: Title of the axes.
    """
    ax = current_axes() if ax is None else ax
    heights = np.minimum(np.asarray(share, dtype=float), 2.0)  # strong evidence must not hide the alarm threshold
    colors = [GAP_COLOR if height >= 1 else BAR_COLOR for height in heights]
    ax.bar(range(1, len(share) + 1), heights, color=colors, width=0.8)
    ax.axhline(1, color=GAP_COLOR, linewidth=1, linestyle=(0, (4, 3)))
    _mark_start(ax, since)
    top = max(1.15, 1.05 * float(heights.max(initial=0)))  # above the alarm threshold and the bars
    ax.set(xlabel="period", ylabel="evidence / alarm", ylim=(0, top))
    return tidy(ax, title)


def _mark_start(ax: Axes, since: float | None) -> None:
    """Draw a vertical line before period number `since`, in which a deviation starts, unless it is None."""
    if since is not None:
        ax.axvline(since - 0.5, color=GAP_COLOR, linewidth=1, linestyle=(0, (1, 2)))
