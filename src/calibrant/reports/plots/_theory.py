"""Plots of curve families, and of functions on the simplex of three class probabilities."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.tri import Triangulation

from calibrant.reports.plots._predictions import tidy

CURVE_COLOR, GUIDE_COLOR = "#1f2937", "#9ca3af"
CURVE_DASHES = ("-", (0, (6, 2)), (0, (1, 1.3)), (0, (6, 2, 1, 2)), (0, (3, 2)), (0, (6, 2, 1, 2, 1, 2)))


def curve_family(curves: Mapping[str, tuple[Any, Any]], *, ax: Axes, xlabel: str, ylabel: str, title: str = "") -> Axes:
    """Draw curves (x, y) by name, from dark to light, with distinct dashes.

    Curves of at most 30 points are drawn as dots. A name that begins with "_" becomes a thin gray guide without a
    legend entry.
    """
    names = [name for name in curves if not name.startswith("_")]
    shades = colormaps["viridis"](np.linspace(0.0, 0.82, len(names)))  # without yellow, which is pale on white
    for name, (x, y) in curves.items():
        if name.startswith("_"):
            ax.plot(x, y, color=GUIDE_COLOR, linewidth=0.9, zorder=1)
            continue
        i = names.index(name)  # without the guides
        if len(x) <= 30:
            style: dict[str, Any] = {"marker": "os^D"[i % 4], "markersize": 4, "linestyle": ""}
        else:
            style = {"linestyle": CURVE_DASHES[i % len(CURVE_DASHES)]}
        ax.plot(x, y, color=shades[i], label=name, **style)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if len(names) > 1:
        ax.legend(frameon=False, fontsize=8, handlelength=2.6)
    return tidy(ax, title)


def simplex_arrows(start: Any, end: Any, *, ax: Axes, title: str = "") -> Axes:
    """Draw an arrow from each row of `start` to the same row of `end`: probabilities (p1, p2, p3) of three classes."""
    (x, y), (end_x, end_y) = _to_plane(start), _to_plane(end)
    style: dict[str, Any] = {"color": CURVE_COLOR, "width": 0.0032, "headwidth": 4.5, "headlength": 5}
    scale: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1}  # arrows end at (end_x, end_y)
    ax.quiver(x, y, end_x - x, end_y - y, **scale, **style)
    return _draw_triangle(ax, title)


def simplex_heat(points: Any, values: Any, *, ax: Axes, limit: float, title: str = "") -> Any:
    """Shade the simplex by signed values in [-limit, limit], and return the matplotlib artist for a color bar.

    Contours are dashed for negative values, so that signs are visible in gray.

    Args:
        points: Rows (p1, p2, p3) of probabilities.
        values: A value for each row.
        ax: Axes to draw on.
        limit: Value of the darkest shades.
        title: Title of the axes.
    """
    mesh = Triangulation(*_to_plane(points))
    shades = ax.tripcolor(mesh, values, cmap="RdBu_r", vmin=-limit, vmax=limit, shading="gouraud")
    shades.set_rasterized(True)  # thousands of triangles would make a large vector file
    levels = limit * np.array([-0.8, -0.6, -0.4, -0.2, 0.2, 0.4, 0.6, 0.8])
    styles = ["--" if level < 0 else "-" for level in levels]
    ax.tricontour(mesh, values, levels=levels, colors=CURVE_COLOR, linewidths=0.5, linestyles=styles)
    _draw_triangle(ax, title)
    return shades


def simplex_contours(
    points: Any, values: Any, *, ax: Axes, levels: Sequence[float], mark: Sequence[float], title: str = ""
) -> Axes:
    """Draw contours of a function on the simplex, and a cross at the probabilities `mark`.

    Args:
        points: Rows (p1, p2, p3) of probabilities.
        values: Value of the function for each row.
        ax: Axes to draw on.
        levels: Increasing values of the contours.
        mark: Probabilities (p1, p2, p3).
        title: Title of the axes.
    """
    shades = colormaps["viridis"](np.linspace(0.0, 0.75, len(levels)))  # without yellow, which is pale on white
    ax.tricontour(Triangulation(*_to_plane(points)), values, levels=levels, colors=shades, linewidths=1.6)
    x, y = _to_plane([mark])
    ax.plot(x, y, marker="+", color=CURVE_COLOR, markersize=9, markeredgewidth=1.6)
    return _draw_triangle(ax, title)


def _to_plane(p: Any) -> tuple[Any, Any]:
    """Map rows (p1, p2, p3) to a triangle of side 1: class 1 left, class 2 right, class 3 on top."""
    p = np.asarray(p, dtype=float)
    return p[:, 1] + p[:, 2] / 2, p[:, 2] * np.sqrt(3) / 2


def _draw_triangle(ax: Axes, title: str) -> Axes:
    """Draw the outline of the simplex with the names of its corners, and hide the axes."""
    corners = np.eye(3)  # each class has probability 1 in its corner
    ax.plot(*_to_plane(corners[[0, 1, 2, 0]]), color=CURVE_COLOR, linewidth=1, zorder=3)
    style: dict[str, Any] = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
    for i, corner in enumerate(np.transpose(_to_plane(corners))):
        offset, alignment = (4, "bottom") if i == 2 else (-4, "top")  # the corner of class 3 is on top
        ax.annotate(f"class {i + 1}", corner, (0, offset), va=alignment, **style)
    ax.set(aspect="equal", xlim=(-0.06, 1.06), ylim=(-0.1, 0.97))  # with room for the names of the corners
    ax.axis("off")
    return tidy(ax, title)
