"""Diagrams of decisions: net benefit, and coverage and size of prediction sets."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from calibrant._core.text import display_name
from calibrant.reports.plots._predictions import LINE_COLOR, SERIES_COLORS, add_legend, intervals, tidy


def net_benefit(curves: Mapping[str, Any], *, ax: Axes, title: str = "") -> Axes:
    """Draw net benefit against the threshold, one line and band per name, beside the benefit of acting on all or none.

    The limits hold at each threshold by itself. Values far below 0 are cut off.

    Args:
        curves: `decisions.NetBenefit` by name.
        ax: Axes to draw on.
        title: Title of the axes.
    """
    first = next(iter(curves.values()))  # its values for acting on all, which do not depend on the model
    for (name, curve), color in zip(curves.items(), cycle(SERIES_COLORS)):
        ax.fill_between(curve.threshold, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
        ax.plot(curve.threshold, curve.model, color=color, linewidth=1.6, label=display_name(name))
    ax.plot(first.threshold, first.treat_all, color=LINE_COLOR, linewidth=1, linestyle=(0, (4, 3)), label="act on all")
    ax.axhline(0.0, color=LINE_COLOR, linewidth=1, label="act on none")
    top = max(float(curve.high.max()) for curve in curves.values())  # limits the axis: acting on all may be far below 0
    last = float(first.threshold.max())  # thresholds of a rare event end early
    ax.set(xlim=(0, 1 if last > 0.5 else last), ylim=(-0.25 * top, 1.05 * top), xlabel="threshold")
    ax.set_ylabel("standardized net benefit" if first.is_standardized else "net benefit")
    add_legend(tidy(ax, title), [*curves, "act on all", "act on none"])
    ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0 if last > 0.5 else None))
    return ax


def prediction_sets(table: Any, *, ax: Axes) -> Axes:
    """Draw the coverage of prediction sets with its intervals, and their mean size, from a `decisions.SetTable`.

    There is one row for all examples and for each class or group. The line is the promised coverage.
    """
    rows = {f"{row.name} ({row.mean_size:.2f} classes)": row.coverage for row in table.rows}
    intervals(rows, ax=ax, reference=1 - table.alpha, xlabel="coverage (mean size of the sets in brackets)")
    return tidy(ax, "", percent="x")
