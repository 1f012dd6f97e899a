"""Figures of the theory of focal loss, as in the papers: SVG, PNG and the data as CSV."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from calibrant import losses, theory
from calibrant._core.types import Loss, Seed, check_arguments
from calibrant.lab.data import blobs
from calibrant.reports import plots

__all__ = ["draw_focal_theory", "figure_files", "new_figure", "save_figure", "train_on_blobs"]

Curves = Mapping[str, tuple[Any, Any]]  # x and y by the name of the curve; names that start with "_" are guides
TRUE_PROBS = (0.55, 0.3, 0.15)  # Komisarenko & Kull (2024), figure 4
MAP_GAMMAS = (0.5, 3.0)
TRUE_CLASS, MAPPED = "probability of the true class", "mapped probability"  # labels of axes


def draw_focal_theory(folder: Path) -> list[Path]:
    """Draw the figures on focal loss and return the files.

    These are figure 4(a) of Mukhoti et al. (2020), figure 6(a) of Wang et al. (2021), figures 1 to 7 of Komisarenko &
    Kull (2024), and the focal map of a network trained on data with known probabilities. Takes about a minute on one
    core.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draw_functions = _gradient_ratio, _inverse_focal, _proper_part, _binary_temperature, _temperature_bounds
    draw_functions += _conditional_risks, _map_arrows, _three_classes, _map_difference, _blobs_network
    return [path for draw in draw_functions for path in draw(folder)]


@dataclass(frozen=True)
class _Panel:
    """Curves with the labels and limits of their axes."""

    curves: Curves
    xlabel: str
    ylabel: str
    title: str = ""
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])  # keywords of matplotlib's Axes.set


def _draw_panels(folder: Path, name: str, panels: Mapping[str, _Panel], *, width: float, height: float) -> list[Path]:
    """Draw named panels side by side, save the figure and its data, and return the files.

    The data have the panel, the curve, x and y of every point. `width` and `height` are in inches.
    """
    figure = new_figure(width, height)
    for ax, panel in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels.values(), strict=True):
        plots.curve_family(panel.curves, ax=ax, xlabel=panel.xlabel, ylabel=panel.ylabel, title=panel.title)
        ax.set(**panel.limits)
    data = pl.concat(
        # a name that begins with "_" marks a guide, which has no legend entry
        pl.DataFrame({"panel": key, "curve": curve.lstrip("_"), "x": np.asarray(x), "y": np.asarray(y)})
        for key, panel in panels.items()
        for curve, (x, y) in panel.curves.items()
    )
    return save_figure(folder, name, figure, data)


def _gradient_ratio(folder: Path) -> list[Path]:
    """Draw g(p, γ), the gradient of focal loss over that of cross-entropy (Mukhoti et al. 2020, figure 4a)."""
    p = torch.linspace(0, 1, 501, dtype=torch.float64)
    curves = {"_cross-entropy": (p, torch.ones_like(p))}
    curves |= {f"γ = {gamma:g}": (p, theory.gradient_ratio(p, gamma)) for gamma in (1.0, 2.0, 3.0, 5.0, 7.0)}
    panel = _Panel(curves, f"{TRUE_CLASS}, $p$", "gradient ratio $g(p, γ)$", limits={"xlim": (0, 1), "ylim": (0, None)})
    return _draw_panels(folder, "mukhoti_4a_gradient_ratio", {"": panel}, width=4.6, height=3.2)


def _inverse_focal(folder: Path) -> list[Path]:
    """Draw focal loss, cross-entropy and inverse focal loss against the probability of the true class.

    This is figure 6(a) of Wang et al. (2021).
    """
    p, z, y = _binary_grid()
    curves = {f"focal, γ = {gamma:g}": (p, losses.focal(z, y, gamma=gamma)) for gamma in (3.0, 2.0, 1.0)}
    curves["cross-entropy"] = p, losses.cross_entropy(z, y)
    curves |= {
        f"inverse focal, γ = {gamma:g}": (p, losses.inverse_focal(z, y, gamma=gamma)) for gamma in (1.0, 2.0, 3.0)
    }
    panel = _Panel(curves, f"{TRUE_CLASS}, $p$", "loss, nats", limits={"xlim": (0, 1), "ylim": (0, 5)})
    return _draw_panels(folder, "wang_6a_losses", {"": panel}, width=4.6, height=3.2)


def _proper_part(folder: Path) -> list[Path]:
    """Draw focal loss beside its proper part, and the focal map of two classes (Komisarenko & Kull 2024, figure 1).

    The focal loss of a prediction q equals the proper part, which is a proper loss, of the mapped prediction
    focal_map(q).
    """
    p, z, y = _binary_grid()  # probabilities of the true class, with their logits and labels
    curves = {"cross-entropy": (p, losses.cross_entropy(z, y))}
    for gamma in MAP_GAMMAS:
        curves[f"focal, γ = {gamma:g}"] = p, losses.focal(z, y, gamma=gamma)
        curves[f"its proper part, γ = {gamma:g}"] = p, theory.proper_part(z, y, gamma=gamma)
    gammas = (-0.5, 0.5, 1.0, 3.0, 5.0)
    maps = {"_identity": (p, p)}
    maps |= {f"γ = {gamma:g}": (p, theory.focal_map(z, gamma=gamma).exp()[:, 0]) for gamma in gammas}
    square = {"xlim": (0, 1), "ylim": (0, 1), "aspect": "equal"}
    panels = {
        "loss": _Panel(curves, TRUE_CLASS, "loss, nats", "Losses", {"xlim": (0, 1), "ylim": (0, 3)}),
        "map": _Panel(maps, "predicted probability $q$", MAPPED, "Focal map, two classes", square),
    }
    return _draw_panels(folder, "komisarenko_1_proper_part_and_map", panels, width=8.0, height=3.4)


def _binary_temperature(folder: Path) -> list[Path]:
    """Draw the nearest temperature of two classes beside a published line, and two focal maps with these temperatures.

    The line 1 / T = 0.95 γ + 0.85 is from Komisarenko & Kull (2024, figure 2). The temperature T nearest to a focal map
    minimizes the largest difference of their probabilities.
    """
    lines, _ = _nearest_temperature_lines(classes=2, slope=0.95, intercept=0.85)
    s = torch.linspace(-5, 5, 401, dtype=torch.float64)
    sparse_s = torch.linspace(-5, 5, 26, dtype=torch.float64)  # so that the curve of the focal map stays visible
    maps: dict[str, tuple[Any, Any]] = {}
    for gamma in MAP_GAMMAS:
        t = theory.nearest_temperature(gamma).temperature
        maps[f"focal map, γ = {gamma:g}"] = s, theory.focal_map(_binary_logits(s.sigmoid()), gamma=gamma).exp()[:, 0]
        maps[f"temperature {t:.3f}"] = sparse_s, (sparse_s / t).sigmoid()
    panels = {
        "line": _Panel(lines, "γ", "1 / T", "Nearest temperature, two classes"),
        "maps": _Panel(maps, "logit $s$", MAPPED, "The two maps coincide"),
    }
    return _draw_panels(folder, "komisarenko_2_nearest_temperature", panels, width=8.0, height=3.2)


def _temperature_bounds(folder: Path) -> list[Path]:
    """Draw bounds of the temperature that equals the focal map of two classes (Komisarenko & Kull 2024, figure 3).

    The focal map changes the logit s of two classes to m(s), as the temperature T(s) = s / m(s) does. T approaches
    its infimum 1 / (γ + 1) as s grows; the left panel divides by it. The figure compares the exact bounds of T with the
    published upper bound, and with its value at s = 20.
    """
    gammas = np.linspace(0.05, 10, 200)
    # for every gamma: the lower and upper bound, the temperature at logit 0 (not drawn), the published upper bound
    infimum, maximum, _, published = np.array([theory.temperature_bounds(float(gamma)) for gamma in gammas]).T
    z = torch.tensor([[20.0, 0.0]], dtype=torch.float64)  # two classes with s = 20
    mapped = torch.cat([theory.focal_map(z, gamma=float(gamma)) for gamma in gammas])
    temperature_at_20 = 20 / (mapped[:, 0] - mapped[:, 1]).numpy()
    ratios = {
        "published upper bound": (gammas, published / infimum),
        "largest T, exact": (gammas, maximum / infimum),
        "smallest T up to |s| = 20": (gammas, temperature_at_20 / infimum),
        "lower bound, exact": (gammas, infimum / infimum),
    }
    widths = {
        "published bounds": (gammas, published - infimum),
        "exact bounds": (gammas, maximum - infimum),
        "exact, up to |s| = 20": (gammas, maximum - temperature_at_20),
    }
    panels = {
        "bounds": _Panel(ratios, "γ", "$T$ (γ + 1)", "Temperatures that bound the focal map", {"ylim": (None, 1.32)}),
        "width": _Panel(widths, "γ", "difference of temperatures", "Width of the bounds", {"ylim": (0, None)}),
    }
    return _draw_panels(folder, "komisarenko_3_bounds", panels, width=8.0, height=3.2)


def _conditional_risks(folder: Path) -> list[Path]:
    """Draw the expected losses of three-class predictions under one truth, `TRUE_PROBS`.

    A proper loss has its minimum at the truth (Komisarenko & Kull 2024, figure 4).
    """
    points = _simplex_grid(120, margin=1e-3)  # without the edges, where logarithms are infinite
    truth = torch.tensor([TRUE_PROBS], dtype=torch.float64).log().expand_as(points)
    loss_panels: dict[str, Loss] = {
        "Brier score": losses.brier,
        "cross-entropy": losses.cross_entropy,
        "proper part of focal, γ = 1": lambda z, y: theory.proper_part(z, y, gamma=1.0),
        "proper part of focal, γ = 3": lambda z, y: theory.proper_part(z, y, gamma=3.0),
    }
    figure = new_figure(7.0, 6.2)
    tables: list[pl.DataFrame] = []
    for ax, (name, loss) in zip(figure.subplots(2, 2).flat, loss_panels.items(), strict=True):
        risk = theory.conditional_risk(points.log(), truth, loss=loss).numpy()
        levels = np.quantile(risk, (0.03, 0.12, 0.2)).tolist()  # contours around the minimum
        plots.simplex_contours(points, risk, ax=ax, levels=levels, mark=TRUE_PROBS, title=name)
        tables.append(_simplex_table(points, panel=name, risk=risk))
    return save_figure(folder, "komisarenko_4_conditional_risk", figure, pl.concat(tables))


def _map_arrows(folder: Path) -> list[Path]:
    """Draw where the focal map and its nearest temperature move three-class predictions, in a column for each gamma.

    This is figure 5 of Komisarenko & Kull (2024). The nearest temperature is explained in `_binary_temperature`.
    """
    start = _simplex_grid(14, margin=0.02)
    figure = new_figure(7.0, 6.4)
    tables: list[pl.DataFrame] = []
    for column, gamma in zip(figure.subplots(2, 2).T, (1.0, 3.0), strict=True):
        t = theory.nearest_temperature(gamma, 3).temperature
        ends = {
            f"focal map, γ = {gamma:g}": theory.focal_map(start.log(), gamma=gamma).exp(),
            f"nearest temperature, {t:.3f}": (start.log() / t).softmax(-1),
        }
        for ax, (name, end) in zip(column, ends.items(), strict=True):
            plots.simplex_arrows(start, end, ax=ax, title=name)
            tables.append(_simplex_table(start, panel=name, **{f"to{i + 1}": end[:, i].numpy() for i in range(3)}))
    return save_figure(folder, "komisarenko_5_arrows", figure, pl.concat(tables))


def _three_classes(folder: Path) -> list[Path]:
    """Draw the nearest temperature of three classes beside a published line, and its deviation from the focal map.

    The line 1 / T = 0.64 γ + 0.91 is from Komisarenko & Kull (2024, figure 6). The deviation is the largest
    difference of two probabilities, which the nearest temperature T minimizes.
    """
    lines, deviations = _nearest_temperature_lines(classes=3, slope=0.64, intercept=0.91)
    panels = {
        "line": _Panel(lines, "γ", "1 / T", "Nearest temperature, three classes"),
        "deviation": _Panel(deviations, "γ", "largest difference of probabilities", "Deviation", {"ylim": (0, None)}),
    }
    return _draw_panels(folder, "komisarenko_6_three_classes", panels, width=8.0, height=3.2)


def _map_difference(folder: Path) -> list[Path]:
    """Draw the confidence after the focal map minus the confidence after its nearest temperature.

    This is figure 7 of Komisarenko & Kull (2024). The nearest temperature is explained in `_binary_temperature`.
    """
    points = _simplex_grid(150, margin=1e-3)
    figure = new_figure(7.6, 3.4)
    axes = figure.subplots(1, 2)
    tables: list[pl.DataFrame] = []
    shades: Any = None
    for ax, gamma in zip(axes, (0.5, 2.0), strict=True):
        t = theory.nearest_temperature(gamma, 3).temperature
        focal_confidence = theory.focal_map(points.log(), gamma=gamma).exp().amax(-1)
        scaled_confidence = (points.log() / t).softmax(-1).amax(-1)  # of the same class, as both maps keep the order
        difference = (focal_confidence - scaled_confidence).numpy()
        name = f"γ = {gamma:g} and T = {t:.3f}"
        shades = plots.simplex_heat(points, difference, ax=ax, limit=0.05, title=name)
        tables.append(_simplex_table(points, panel=name, difference=difference))
    figure.colorbar(shades, ax=axes, shrink=0.8, label="confidence: focal map minus temperature")
    return save_figure(folder, "komisarenko_7_difference", figure, pl.concat(tables))


def _blobs_network(folder: Path) -> list[Path]:
    """Draw predicted against true probabilities of a network trained with focal loss, before and after the focal map.

    The focal map turns the minimizer of the expected focal loss into the true probabilities.
    """
    truth, output, mapped = train_on_blobs(gamma=3.0)
    figure = new_figure(7.4, 3.6)
    panels = {"trained with focal loss, γ = 3": output, "then mapped by focal_map(gamma=3)": mapped}
    tables: list[pl.DataFrame] = []
    for ax, (name, log_q) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        p, likeliest = truth.exp().max(-1)  # true probability of the likeliest class
        q = log_q.exp()[torch.arange(len(p)), likeliest]
        distance = (truth.exp() - log_q.exp()).abs().sum(-1).mean().item() / 2  # mean total variation
        xlabel, ylabel = "largest true probability", "predicted probability of that class"
        # the diagonal; a name that begins with "_" is not in the legend
        plots.curve_family({"_truth": ([1 / 3, 1], [1 / 3, 1])}, ax=ax, xlabel=xlabel, ylabel=ylabel, title=name)
        ax.scatter(p, q, s=3, color="#31688e", alpha=0.35, linewidths=0, rasterized=True)
        ax.annotate(f"mean total variation {distance:.3f}", (0.04, 0.93), xycoords="axes fraction", fontsize=8)
        ax.set(aspect="equal", xlim=(0.3, 1), ylim=(0.3, 1))  # the largest of three probabilities is at least 1/3
        tables.append(pl.DataFrame({"panel": [name] * len(p), "true": p.numpy(), "predicted": q.numpy()}))
    return save_figure(folder, "focal_map_on_blobs", figure, pl.concat(tables))


@check_arguments
def train_on_blobs(*, gamma: float, steps: int = 150, seed: Seed = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Train a small network with focal loss on `data.blobs`, whose true probabilities are known. Takes seconds.

    Args:
        gamma: Gamma of the focal loss.
        steps: Iterations of L-BFGS on the full batch.
        seed: Seed of the data and the weights.

    Returns:
        Log-probabilities of 2,000 test points: the truth, the output of the network, and that output after `focal_map`.
    """
    data = blobs(train=10_000, val=1, test=2000, seed=seed)  # validation is not used
    with torch.random.fork_rng(devices=[]):  # the caller's random state stays as it is
        torch.manual_seed(seed)
        network = torch.nn.Sequential(
            torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3)
        )
    optimizer = torch.optim.LBFGS(network.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def risk() -> Tensor:
        """Return the mean loss, and set its gradients, as L-BFGS asks for."""
        optimizer.zero_grad()
        value = losses.focal(network(data.train.inputs), data.train.labels, gamma=gamma).mean()
        value.backward()
        return value

    optimizer.step(risk)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        logits = network(data.test.inputs).double()
    assert data.posterior is not None  # the true probabilities of synthetic data are known
    return data.posterior(data.test.inputs), logits.log_softmax(-1), theory.focal_map(logits, gamma=gamma)


def _nearest_temperature_lines(classes: int, slope: float, intercept: float) -> tuple[Curves, Curves]:
    """Return two sets of curves over gamma, for predictions of this number of classes.

    The first has 1 / T of the temperature T nearest to the focal map, beside the published line slope * gamma +
    intercept. The second has the deviation: the largest difference of probabilities between the two maps.
    """
    gammas = np.arange(0, 10.01, 0.5)
    temperatures, deviations = np.array([theory.nearest_temperature(float(gamma), classes) for gamma in gammas]).T
    x = np.linspace(gammas[0], gammas[-1], 101)
    inverse = {
        "nearest": (gammas, 1 / temperatures),
        f"published line {slope:g} γ + {intercept:g}": (x, slope * x + intercept),
    }
    return inverse, {"deviation": (gammas, deviations)}


def _binary_grid() -> tuple[Tensor, Tensor, Tensor]:
    """Return probabilities of the true class (n), the logits of two classes (n, 2), and the labels, all 0 (n)."""
    p = torch.linspace(0.005, 0.995, 397, dtype=torch.float64)
    return p, _binary_logits(p), torch.zeros(len(p), dtype=torch.int64)


def _binary_logits(p: Tensor) -> Tensor:
    """Return log p and log(1 - p), the logits of two classes (n, 2)."""
    return torch.stack([p, 1 - p], dim=-1).log()


def _simplex_grid(steps: int, margin: float) -> Tensor:
    """Return a uniform grid of three probabilities (points, 3), each at least `margin`.

    A side of the triangle has steps + 1 points.
    """
    i, j = np.nonzero(np.add.outer(np.arange(steps + 1), np.arange(steps + 1)) <= steps)  # all i + j <= steps
    p = torch.from_numpy(np.stack([i, j, steps - i - j], axis=-1) / steps)
    return margin + (1 - 3 * margin) * p


def _simplex_table(points: Tensor, *, panel: str, **values: Any) -> pl.DataFrame:
    """Return a table of three probabilities p1, p2, p3 of each point and further columns."""
    columns = {f"p{i + 1}": points[:, i].numpy() for i in range(3)}
    return pl.DataFrame({"panel": [panel] * len(points), **columns, **values})


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure, with its size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def figure_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a figure: SVG, PNG and CSV."""
    return [folder / f"{name}.{kind}" for kind in ("svg", "png", "csv")]


def save_figure(folder: Path, name: str, figure: Figure, data: pl.DataFrame) -> list[Path]:
    """Write a figure as SVG and PNG and its data as CSV to reproducible files NAME.svg, ..., and return these."""
    svg, png, csv = files = figure_files(folder, name)
    with rc_context({"svg.hashsalt": name}):  # no random ids and no date, so that equal figures are equal files
        figure.savefig(svg, metadata={"Date": None})
    figure.savefig(png, dpi=200)
    data.write_csv(csv, float_precision=10)
    return files
