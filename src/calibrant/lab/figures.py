"""The theory of focal loss as the papers draw it: each figure as SVG and PNG, with the numbers behind it as CSV."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from calibrant import losses, plots, theory
from calibrant.lab.data import blobs
from calibrant.types import Loss

__all__ = ["draw_focal_theory", "figure_files", "new_figure", "save_figure", "train_on_blobs"]

Curves = Mapping[str, tuple[Any, Any]]
TRUE_PROBS = (0.55, 0.3, 0.15)  # Komisarenko & Kull (2024), figure 4
MAP_GAMMAS = (0.5, 3.0)


def draw_focal_theory(folder: Path) -> list[Path]:
    """Draw the theory of focal loss; returns the files written.

    Figure 4(a) of Mukhoti et al. (2020), figure 6(a) of Wang et al. (2021) and figures 1 to 7 of Komisarenko & Kull
    (2024), and what the focal map does to a network trained with focal loss where the truth is known. About a minute on
    one core.
    """
    folder.mkdir(parents=True, exist_ok=True)
    draw_functions = (
        _gradient_ratio,
        _inverse_focal,
        _proper_part,
        _binary_temperature,
        _temperature_bounds,
        _conditional_risks,
        _map_arrows,
        _three_classes,
        _map_difference,
        _blobs_network,
    )
    return [path for draw in draw_functions for path in draw(folder)]


def _gradient_ratio(folder: Path) -> list[Path]:
    p = torch.linspace(0, 1, 501, dtype=torch.float64)
    curves = {f"γ = {gamma:g}": (p, theory.gradient_ratio(p, gamma)) for gamma in (1.0, 2.0, 3.0, 5.0, 7.0)}
    curves = {"_cross-entropy": (p, torch.ones_like(p)), **curves}
    figure = new_figure(4.6, 3.2)
    ax = figure.subplots()
    plots.family(curves, ax=ax, xlabel="probability of the true class, $p$", ylabel="gradient ratio $g(p, γ)$")
    ax.set(xlim=(0, 1), ylim=(0, None))
    return save_figure(folder, "mukhoti_4a_gradient_ratio", figure, _long_table({"": curves}))


def _inverse_focal(folder: Path) -> list[Path]:
    p = torch.linspace(0.005, 0.995, 397, dtype=torch.float64)
    z, y = _binary_logits(p), torch.zeros(len(p), dtype=torch.int64)
    curves = {f"focal, γ = {gamma:g}": (p, losses.focal(z, y, gamma=gamma)) for gamma in (3.0, 2.0, 1.0)}
    curves["cross-entropy"] = p, losses.cross_entropy(z, y)
    curves |= {
        f"inverse focal, γ = {gamma:g}": (p, losses.inverse_focal(z, y, gamma=gamma)) for gamma in (1.0, 2.0, 3.0)
    }
    figure = new_figure(4.6, 3.2)
    ax = figure.subplots()
    plots.family(curves, ax=ax, xlabel="probability of the true class, $p$", ylabel="loss, nats")
    ax.set(xlim=(0, 1), ylim=(0, 5))
    return save_figure(folder, "wang_6a_losses", figure, _long_table({"": curves}))


def _proper_part(folder: Path) -> list[Path]:
    p = torch.linspace(0.005, 0.995, 397, dtype=torch.float64)
    z, y = _binary_logits(p), torch.zeros(len(p), dtype=torch.int64)
    left = {"cross-entropy": (p, losses.cross_entropy(z, y))}
    for gamma in MAP_GAMMAS:
        left[f"focal, γ = {gamma:g}"] = p, losses.focal(z, y, gamma=gamma)
        left[f"its proper part, γ = {gamma:g}"] = p, theory.proper_part(z, y, gamma=gamma)
    right = {
        f"γ = {gamma:g}": (p, theory.focal_map(z, gamma=gamma).exp()[:, 0]) for gamma in (-0.5, 0.5, 1.0, 3.0, 5.0)
    }
    right = {"_identity": (p, p), **right}
    figure = new_figure(8.0, 3.4)
    left_axes, right_axes = figure.subplots(1, 2)
    plots.family(left, ax=left_axes, xlabel="probability of the true class", ylabel="loss, nats", title="Losses")
    left_axes.set(xlim=(0, 1), ylim=(0, 3))
    plots.family(
        right,
        ax=right_axes,
        xlabel="predicted probability $q$",
        ylabel="mapped probability",
        title="Focal map, two classes",
    )
    right_axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return save_figure(folder, "komisarenko_1_proper_part_and_map", figure, _long_table({"loss": left, "map": right}))


def _binary_temperature(folder: Path) -> list[Path]:
    gammas = np.arange(0, 10.01, 0.5)
    left = _nearest_temperature_lines(gammas, classes=2, line=(0.95, 0.85))[0]
    s, sparse = (torch.linspace(-5, 5, points, dtype=torch.float64) for points in (401, 26))
    right: dict[str, tuple[Any, Any]] = {}
    for gamma in MAP_GAMMAS:
        t = theory.nearest_temperature(gamma).temperature
        right[f"focal map, γ = {gamma:g}"] = s, theory.focal_map(_binary_logits(s.sigmoid()), gamma=gamma).exp()[:, 0]
        right[f"temperature {t:.3f}"] = sparse, (sparse / t).sigmoid()
    figure = new_figure(8.0, 3.2)
    left_axes, right_axes = figure.subplots(1, 2)
    plots.family(left, ax=left_axes, xlabel="γ", ylabel="1 / T", title="Nearest temperature, two classes")
    plots.family(right, ax=right_axes, xlabel="logit $s$", ylabel="mapped probability", title="The two maps coincide")
    return save_figure(folder, "komisarenko_2_nearest_temperature", figure, _long_table({"line": left, "maps": right}))


def _temperature_bounds(folder: Path) -> list[Path]:
    gammas = np.linspace(0.05, 10, 200)
    bounds = [theory.temperature_bounds(float(gamma)) for gamma in gammas]
    z = torch.tensor([[20.0, 0.0]], dtype=torch.float64)
    mapped = torch.cat([theory.focal_map(z, gamma=float(gamma)) for gamma in gammas])
    temperature_at_20 = 20 / (mapped[:, 0] - mapped[:, 1]).numpy()
    sharpest, mildest, paper = (np.array([getattr(b, n) for b in bounds]) for n in ("sharpest", "mildest", "paper"))
    left = {
        "published upper bound": (gammas, paper / sharpest),
        "largest T, exact": (gammas, mildest / sharpest),
        "smallest T up to |s| = 20": (gammas, temperature_at_20 / sharpest),
        "lower bound, exact": (gammas, sharpest / sharpest),
    }
    right = {
        "published bounds": (gammas, paper - sharpest),
        "exact bounds": (gammas, mildest - sharpest),
        "exact, up to |s| = 20": (gammas, mildest - temperature_at_20),
    }
    figure = new_figure(8.0, 3.2)
    left_axes, right_axes = figure.subplots(1, 2)
    plots.family(left, ax=left_axes, xlabel="γ", ylabel="$T$ (γ + 1)", title="Temperatures that bound the focal map")
    left_axes.set_ylim(top=1.32)
    plots.family(right, ax=right_axes, xlabel="γ", ylabel="difference of temperatures", title="Width of the bounds")
    right_axes.set_ylim(bottom=0)
    return save_figure(folder, "komisarenko_3_bounds", figure, _long_table({"bounds": left, "width": right}))


def _conditional_risks(folder: Path) -> list[Path]:
    points = _simplex_grid(120, margin=1e-3)
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
        levels = np.quantile(risk, (0.03, 0.12, 0.2)).tolist()
        plots.simplex_contours(points, risk, ax=ax, levels=levels, mark=TRUE_PROBS, title=name)
        tables.append(_simplex_table(points, panel=name, risk=risk))
    return save_figure(folder, "komisarenko_4_conditional_risk", figure, pl.concat(tables))


def _map_arrows(folder: Path) -> list[Path]:
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
    left, right = _nearest_temperature_lines(np.arange(0, 10.01, 0.5), classes=3, line=(0.64, 0.91))
    figure = new_figure(8.0, 3.2)
    left_axes, right_axes = figure.subplots(1, 2)
    plots.family(left, ax=left_axes, xlabel="γ", ylabel="1 / T", title="Nearest temperature, three classes")
    plots.family(right, ax=right_axes, xlabel="γ", ylabel="largest difference of probabilities", title="What it misses")
    right_axes.set_ylim(bottom=0)
    return save_figure(folder, "komisarenko_6_three_classes", figure, _long_table({"line": left, "deviation": right}))


def _map_difference(folder: Path) -> list[Path]:
    points = _simplex_grid(150, margin=1e-3)
    figure = new_figure(7.6, 3.4)
    axes = figure.subplots(1, 2)
    tables: list[pl.DataFrame] = []
    shades: Any = None
    for ax, gamma in zip(axes, (0.5, 2.0), strict=True):
        t = theory.nearest_temperature(gamma, 3).temperature
        top = points.argmax(-1, keepdim=True)
        gap = theory.focal_map(points.log(), gamma=gamma).exp() - (points.log() / t).softmax(-1)
        gap = gap.gather(-1, top).squeeze(-1).numpy()
        name = f"γ = {gamma:g} and T = {t:.3f}"
        shades = plots.simplex_heat(points, gap, ax=ax, limit=0.05, title=name)
        tables.append(_simplex_table(points, panel=name, difference=gap))
    figure.colorbar(shades, ax=axes, shrink=0.8, label="confidence: focal map minus temperature")
    return save_figure(folder, "komisarenko_7_difference", figure, pl.concat(tables))


def _blobs_network(folder: Path) -> list[Path]:
    truth, raw, mapped = train_on_blobs(gamma=3.0)
    figure = new_figure(7.4, 3.6)
    panels = {"trained with focal loss, γ = 3": raw, "then mapped by focal_map(gamma=3)": mapped}
    tables: list[pl.DataFrame] = []
    for ax, (name, log_q) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        p, q = truth.exp().amax(-1), log_q.exp().gather(-1, truth.argmax(-1, keepdim=True)).squeeze(-1)
        distance = (truth.exp() - log_q.exp()).abs().sum(-1).mean().item() / 2
        guide = {"_truth": ([1 / 3, 1], [1 / 3, 1])}
        ylabel = "predicted probability of that class"
        plots.family(guide, ax=ax, xlabel="largest true probability", ylabel=ylabel, title=name)
        ax.scatter(p, q, s=3, color="#31688e", alpha=0.35, linewidths=0, rasterized=True)
        ax.annotate(f"mean total variation {distance:.3f}", (0.04, 0.93), xycoords="axes fraction", fontsize=8)
        ax.set(aspect="equal", xlim=(0.3, 1), ylim=(0.3, 1))
        tables.append(pl.DataFrame({"panel": [name] * len(p), "true": p.numpy(), "predicted": q.numpy()}))
    return save_figure(folder, "focal_map_on_blobs", figure, pl.concat(tables))


def train_on_blobs(*, gamma: float, steps: int = 150, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Train a small network with focal loss where the truth is known.

    Returns, for 2,000 test points of `data.blobs`, the log of the true posterior, of the network's output, and of
    that output after `focal_map` of the same gamma. Full batches, L-BFGS; some seconds.
    """
    data = blobs(train=10_000, val=1, test=2000, seed=seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(
            torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3)
        )
    search = torch.optim.LBFGS(network.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def risk() -> Tensor:
        search.zero_grad()
        value = losses.focal(network(data.train.inputs), data.train.labels, gamma=gamma).mean()
        value.backward()
        return value

    search.step(risk)  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        logits = network(data.test.inputs).double()
    assert data.posterior is not None
    return data.posterior(data.test.inputs), logits.log_softmax(-1), theory.focal_map(logits, gamma=gamma)


def _nearest_temperature_lines(gammas: Any, classes: int, line: tuple[float, float]) -> tuple[Curves, Curves]:
    """Return 1 / T of the nearest temperatures with a published line, and their deviations."""
    nearest = [theory.nearest_temperature(float(gamma), classes) for gamma in gammas]
    fine = np.linspace(gammas[0], gammas[-1], 101)
    slope, intercept = line
    inverse = {
        "nearest": (gammas, np.array([1 / t for t, _ in nearest])),
        f"published line {slope:g} γ + {intercept:g}": (fine, slope * fine + intercept),
    }
    return inverse, {"deviation": (gammas, np.array([deviation for _, deviation in nearest]))}


def _binary_logits(p: Tensor) -> Tensor:
    return torch.stack([p, 1 - p], dim=-1).log()


def _simplex_grid(steps: int, margin: float) -> Tensor:
    """Return a uniform grid of the triangle of three probabilities, kept off its edges by `inside`."""
    i, j = np.nonzero(np.add.outer(np.arange(steps + 1), np.arange(steps + 1)) <= steps)
    p = torch.from_numpy(np.stack([i, j, steps - i - j], axis=-1) / steps)
    return margin + (1 - 3 * margin) * p


def _simplex_table(points: Tensor, *, panel: str, **values: Any) -> pl.DataFrame:
    columns = {f"p{i + 1}": points[:, i].numpy() for i in range(3)}
    return pl.DataFrame({"panel": [panel] * len(points), **columns, **values})


def _long_table(panels: Mapping[str, Curves]) -> pl.DataFrame:
    return pl.concat(
        pl.DataFrame({"panel": panel, "curve": name.lstrip("_"), "x": np.asarray(x), "y": np.asarray(y)})
        for panel, curves in panels.items()
        for name, (x, y) in curves.items()
    )


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of so many inches."""
    return Figure(figsize=(width, height), layout="constrained")


def figure_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a figure: two pictures and its numbers."""
    return [folder / f"{name}.{kind}" for kind in ("svg", "png", "csv")]


def save_figure(folder: Path, name: str, figure: Figure, numbers: pl.DataFrame) -> list[Path]:
    """Write a figure twice, the same bytes every time, and its numbers."""
    paths = figure_files(folder, name)
    with rc_context({"svg.hashsalt": name}):
        figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=200)
    numbers.write_csv(paths[2], float_precision=math.ceil(-math.log10(1e-10)))
    return paths
