"""Figures about predictions."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from calibrant._bins import Bins

__all__ = ["confidence_histogram", "reliability"]

BAR, GAP, LINE = "#4269d0", "#ff725c", "#6b7280"


def reliability(bins: Bins, *, ax: Axes, title: str = "") -> Axes:
    """Draw a reliability diagram: accuracy per bin against the diagonal, the gap to the mean confidence in red.

    Empty bins stay empty; a bar's shade says how many examples it holds (Wang et al. 2021, Figure 2).
    """
    numbers = _numpy(bins)
    left, width = numbers["edges"][:-1], np.diff(numbers["edges"])
    full = numbers["count"] > 0
    shade = 0.25 + 0.75 * np.sqrt(numbers["weight"] / numbers["weight"].max())
    for x, w, accuracy, confidence, alpha in zip(
        left[full], width[full], numbers["accuracy"][full], numbers["confidence"][full], shade[full], strict=True
    ):
        ax.bar(x, accuracy, w, align="edge", color=BAR, alpha=alpha, edgecolor="white", linewidth=0.6)
        low, high = sorted((accuracy, confidence))
        ax.bar(x, high - low, w, low, align="edge", color=GAP, alpha=0.35, hatch="////", edgecolor=GAP, linewidth=0.4)
    ax.plot([0, 1], [0, 1], color=LINE, linewidth=1, linestyle=(0, (4, 3)))
    ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", aspect="equal")
    ax.set_title(title, fontsize=10)
    return _tidy(ax)


def confidence_histogram(bins: Bins, *, ax: Axes, title: str = "") -> Axes:
    """Draw the share of examples in every bin of the confidence (Mukhoti et al. 2020, Figure 2, bottom row)."""
    numbers = _numpy(bins)
    ax.bar(
        numbers["edges"][:-1], numbers["weight"], np.diff(numbers["edges"]), align="edge", color=BAR, edgecolor="white"
    )
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="share of examples")
    ax.set_title(title, fontsize=10)
    ax.yaxis.set_major_formatter(PercentFormatter(1))
    return _tidy(ax)


def _numpy(bins: Bins) -> dict[str, Any]:
    return {name: getattr(bins, name).cpu().numpy() for name in ("edges", "weight", "confidence", "accuracy", "count")}


def _tidy(ax: Axes) -> Axes:
    ax.spines[["top", "right"]].set_visible(False)
    return ax
