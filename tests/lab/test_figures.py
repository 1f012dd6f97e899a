"""Figures of the theory of focal loss."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from matplotlib.figure import Figure

from calibrant import theory
from calibrant.lab import figures
from calibrant.reports import plots


def total_variation(log_p, log_q):
    return (log_p.exp() - log_q.exp()).abs().sum(-1).mean().item() / 2


def test_focal_map_recovers_the_truth_after_focal_training():
    """Komisarenko & Kull (2024), prop. 4: a network trained with focal loss estimates the inverse map of the truth."""
    truth, raw, mapped = figures.train_on_blobs(gamma=3.0, steps=60)
    assert total_variation(truth, raw) > 0.15
    assert total_variation(truth, mapped) < 0.04
    assert total_variation(theory.focal_map_inverse(truth, gamma=3.0), raw) < 0.04
    same_class = truth.argmax(-1) == raw.argmax(-1)
    assert (raw.amax(-1) < truth.amax(-1))[same_class].double().mean() > 0.95  # underconfident, as in the paper


def test_figures_are_reproducible_files_with_their_numbers(tmp_path):
    for name in "a", "b":
        (tmp_path / name).mkdir()
    first, second = (figures._gradient_ratio(tmp_path / name) for name in ("a", "b"))
    assert [path.suffix for path in first] == [".svg", ".png", ".csv"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    numbers = pl.read_csv(first[2]).filter(pl.col("curve") == "γ = 3")
    expected = theory.gradient_ratio(torch.from_numpy(numbers["x"].to_numpy().copy()), 3.0)
    assert numbers["y"].to_numpy() == pytest.approx(expected.numpy(), abs=1e-9)


def test_bounds_are_drawn_as_computed(tmp_path):
    numbers = pl.read_csv(figures._temperature_bounds(tmp_path)[2]).filter(pl.col("panel") == "width")
    last = numbers.filter(pl.col("x") == 10.0)
    sharpest, mildest, _, paper = theory.temperature_bounds(10.0)
    assert last["y"].to_numpy()[:2] == pytest.approx([paper - sharpest, mildest - sharpest], abs=1e-9)
    assert (numbers.filter(pl.col("curve") == "published bounds")["y"] > 0).all()


@pytest.mark.slow
def test_all_figures_are_drawn(tmp_path):
    paths = figures.draw_focal_theory(tmp_path / "focal")
    names = {path.stem for path in paths}
    assert {f"komisarenko_{i}" for i in range(1, 8)} <= {"_".join(name.split("_")[:2]) for name in names}
    assert sorted(path.name for path in paths) == sorted(f"{n}.{kind}" for n in names for kind in ("svg", "png", "csv"))
    assert all(path.stat().st_size > 500 for path in paths)
    arrows = pl.read_csv(tmp_path / "focal" / "komisarenko_5_arrows.csv")
    mapped = arrows.filter(pl.col("panel") == "focal map, γ = 3")
    start, end = mapped.select("p1", "p2", "p3").to_numpy(), mapped.select("to1", "to2", "to3").to_numpy()
    assert np.abs(end.sum(1) - 1).max() < 1e-9
    assert (end.max(1) >= start.max(1) - 1e-9).all()  # with three classes, confidence never decreases


def test_theory_plots_draw_the_given_numbers():
    ax = Figure().subplots()
    plots.curve_family(
        {"_guide": ([0, 1], [0, 1]), "a": ([0, 1], [0, 2]), "b": (range(40), range(40))}, ax=ax, xlabel="x", ylabel="y"
    )
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert [line.get_linestyle() for line in ax.lines][1] == "None"  # two points are drawn as dots
    points = figures._simplex_grid(6, margin=0.01)
    for draw in (
        lambda ax: plots.simplex_arrows(points, points.flip(-1), ax=ax, title="t"),
        lambda ax: plots.simplex_heat(points, points[:, 0].numpy(), ax=ax, limit=1.0, title="t"),
        lambda ax: plots.simplex_contours(points, points[:, 0].numpy(), ax=ax, levels=[0.2, 0.5], mark=(0.2, 0.3, 0.5)),
    ):
        ax = Figure().subplots()
        draw(ax)
        assert ax.collections
        assert [text.get_text() for text in ax.texts] == ["class 1", "class 2", "class 3"]


def test_importing_calibrant_does_not_import_matplotlib():
    code = "import sys, calibrant; sys.exit('matplotlib' in sys.modules or 'calibrant.lab.figures' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(figures.__file__).parents[2])}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
