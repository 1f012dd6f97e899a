"""Plots of planned evaluations."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from calibrant.reports.plots._predictions import BAR_COLOR, GAP_COLOR, LINE_COLOR, current_axes, tidy


def power_curve(
    n: Sequence[int],
    power: Sequence[float],
    error: Sequence[float],
    *,
    line: tuple[Any, Any],
    selected: int,
    target: float,
    units: str = "examples",
    ax: Axes | None = None,
    title: str = "",
) -> Axes:
    """Draw the power of a planned evaluation against its size: simulations, a fitted curve, the selected n in red.

    Args:
        n: Numbers of units.
        power: Simulated power of each.
        error: Standard error of each power.
        line: Points (n, power) of the fitted curve.
        selected: The selected number of units.
        target: The power that it was selected for.
        units: Name of the units, for the label of the axis.
        ax: Axes to draw on. Default: the current axes of pyplot.
        title: Title of the axes.
    """
    ax = current_axes() if ax is None else ax
    ax.plot(*line, color=BAR_COLOR, linewidth=1.6)
    ax.errorbar(n, power, error, color=BAR_COLOR, linestyle="", marker="o", markersize=4, linewidth=1)
    guide: dict[str, Any] = {"linewidth": 1, "linestyle": (0, (4, 3)), "zorder": 1}
    ax.axhline(target, color=LINE_COLOR, **guide)
    ax.axvline(selected, color=GAP_COLOR, **guide)
    ax.annotate(
        f"{selected:,}",
        (selected, 0.0),
        xytext=(4, 3),  # right of the line and above the axis
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        color=GAP_COLOR,
        fontsize="small",
    )
    ax.set(xlabel=units, ylabel="power")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    return tidy(ax, title, percent="y")
