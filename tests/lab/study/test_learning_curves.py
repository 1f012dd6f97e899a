"""Learning curves show the numbers of the histories."""

import math

import numpy as np
import pytest
from matplotlib.figure import Figure

from calibrant.lab.study import Grid, Store, Study
from calibrant.lab.study.drawing import add_legend
from calibrant.lab.study.figures import draw
from calibrant.lab.study.learning_curves import (
    _curve_drawing,
    _drawings_by_loss_family,
    _learned_epoch_drawings,
    learning_drawings,
)
from calibrant.reports import plots

STUDY = Study("x", (Grid(("digits",), ("resnet8",), ("cross_entropy", "AdaFocal"), seeds=(0, 1)),))


RELIABILITY_NAMES = [
    f"{diagram}_2_{loss}_{split}"
    for diagram in ("reliability", "confidences")
    for loss in ("cross_entropy", "AdaFocal")
    for split in ("train", "val")
]


@pytest.fixture
def store(tmp_path, calibrated_predictions):
    """Return a store of four finished runs of two epochs with different numbers."""
    store = Store(tmp_path / "store")
    for i, run in enumerate(STUDY.runs()):
        adaptive = run.loss.name == "AdaFocal"
        rows = [
            {
                "epoch": epoch,
                "train_loss": 1.0,
                "learning_rate": 0.1,
                "seconds": 1.0,
                "val_error": 0.1 * i + epoch,
                "val_nll_wrong": math.nan if epoch == 1 else 2.0,
                "val_ece(bins=5)": 0.3,
                "val_label_probability_wrong": 0.2,
                "val_bin_gaps": [0.1 * i, 0.2, 0.3],
                **({"gammas": [float(epoch), 5.0, 6.0]} if adaptive else {}),
                **{
                    f"{split}_reliability_{name}": values if epoch == 2 else None
                    for split in ("train", "val")
                    for name, values in (
                        ("count", [0, 1 + i]),
                        ("confidence", [math.nan, 0.75]),
                        ("accuracy", [math.nan, 0.5 * (i % 2)]),
                    )
                },
                "gradient_norms": [3, 1] if epoch == 2 else None,
                "gradient_edges": [0.0, 1.0, 2.0] if epoch == 2 else None,
                "learned_counts": [[2, 0], [0, 1], [1, 0]] if epoch == 2 else None,
                "learned_edges": [0.0, 1.0, 2.0] if epoch == 2 else None,
                "learned_spans": [1.0, 2.0] if epoch == 2 else None,
            }
            for epoch in (1, 2)
        ]
        store.save(run, {"val": calibrated_predictions, "test": calibrated_predictions}, {"seconds": 1.0}, rows)
    return store


def test_every_recorded_column_is_drawn(store):
    drawings = {drawing.name: drawing for drawing in learning_drawings(STUDY, store)}
    assert set(drawings) == {
        *("train_loss", "val_error", "val_ece_bins_5", "val_label_probability_wrong"),
        *("val_nll_wrong", "val_bin_gaps_1", "val_bin_gaps_2", "val_bin_gaps_3", "gammas_AdaFocal"),
        *("gradient_norms_2", "learned_cross_entropy", "learned_AdaFocal"),
        *RELIABILITY_NAMES,
    }
    assert {name for name, drawing in drawings.items() if not drawing.is_main} == {
        *("train_loss", "val_label_probability_wrong"),
        *("val_nll_wrong", "val_bin_gaps_1", "val_bin_gaps_2", "val_bin_gaps_3"),
        *RELIABILITY_NAMES,
    }


def test_a_curve_is_the_mean_over_seeds(store):
    error = next(drawing for drawing in learning_drawings(STUDY, store) if drawing.name == "val_error")
    figure = Figure()
    error.draw(figure)
    (ax,) = figure.axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata()) for line in ax.lines}
    np.testing.assert_allclose(lines["cross_entropy"], [1.05, 2.05])
    np.testing.assert_allclose(lines["AdaFocal"], [1.25, 2.25])
    assert "at the end: cross_entropy 2.05; AdaFocal 2.25" in error.description
    assert [row["value"] for row in error.data[:4]] == pytest.approx([1, 2, 1.1, 2.1])


def test_a_curve_may_end_without_a_value():
    lines = {"focal": np.array([[1.0, math.nan]]), "brier": np.array([[1.0, 0.5], [math.nan, math.nan]])}
    drawing, ended = _curve_drawing("x", "NLL", lines), _curve_drawing("x", "NLL", {"focal": lines["focal"]})
    assert drawing.description.endswith("brier 0.5.")
    assert "focal" not in drawing.description + ended.description


def test_histograms_hold_the_examples_of_all_seeds(store):
    drawings = {drawing.name: drawing for drawing in learning_drawings(STUDY, store)}
    gradients = drawings["gradient_norms_2"]
    assert sum(row["count"] for row in gradients.data) == 4 * 4
    assert "cross_entropy 0.625 of 8" in gradients.description  # the median of .25 .5 .75 1.5, twice
    groups = {row["group"]: 0 for row in drawings["learned_AdaFocal"].data}
    for row in drawings["learned_AdaFocal"].data:
        groups[row["group"]] += row["count"]
    assert groups == {"epoch 1": 4, "epoch 2": 2, "never": 2}


def test_spans_without_an_epoch_are_left_out():
    *spans, _ = np.linspace(1, 4, 6).tolist()  # five spans of three epochs
    counts = [[1], [2], [0], [3], [0], [1]]
    row = {"epoch": 3, "learned_counts": counts, "learned_edges": [0.0, 1.0], "learned_spans": spans}
    (drawing,) = _learned_epoch_drawings({"focal": [[row]]})
    assert [(r["group"], r["count"]) for r in drawing.data] == [
        ("epoch 1", 1),
        ("epoch 2", 2),
        ("epoch 3", 3),
        ("never", 1),
    ]


def test_a_reliability_diagram_holds_the_examples_of_all_seeds(store):
    drawings = {drawing.name: drawing for drawing in learning_drawings(STUDY, store)}
    empty, full = drawings["reliability_2_AdaFocal_train"].data
    assert (full["count"], full["confidence"]) == (3 + 4, 0.75)
    assert full["accuracy"] == pytest.approx((3 * 0 + 4 * 0.5) / 7)
    assert empty["count"] == 0
    assert math.isnan(empty["accuracy"])
    assert "ECE 50.00 ± 35.36 %" in drawings["reliability_2_AdaFocal_train"].description
    assert str(drawings["confidences_2_AdaFocal_train"].data) == str(drawings["reliability_2_AdaFocal_train"].data)
    assert "75.00 % on average" in drawings["confidences_2_AdaFocal_train"].description


@pytest.mark.slow
@pytest.mark.parametrize("calibrated_predictions", [10], indirect=True)
def test_figures_are_written_with_their_numbers(store, tmp_path):
    paths = draw(STUDY, store, tmp_path / "figures")
    assert len(paths) == 3 * (20 + 4)  # and diagrams of both losses before and after a temperature
    assert all(path.stat().st_size for path in paths)


def test_many_losses_are_divided_by_family():
    smoothed = [f"cross_entropy(smoothing={i / 100})" for i in range(1, 6)]
    lines = {
        name: np.ones((1, 3))
        for name in ("cross_entropy", *smoothed, *(f"focal(gamma={i})" for i in range(5)), "brier")
    }
    drawings = {d.name: {row["line"] for row in d.data} for d in _drawings_by_loss_family("val_ece", "ECE", lines)}
    assert drawings == {
        "val_ece_cross_entropy": {"cross_entropy", *smoothed},
        "val_ece_focal": {"cross_entropy", *(f"focal(gamma={i})" for i in range(5))},
        "val_ece_the_rest": {"cross_entropy", "brier"},
    }
    few_lines = dict(list(lines.items())[:10])
    assert [d.name for d in _drawings_by_loss_family("val_ece", "ECE", few_lines)] == ["val_ece"]


def test_large_legends_are_below_the_axes():
    """Figures grow with their legends, which neither cover nor shrink the axes."""
    for n, name in (2, "short "), (2, "a long name of a line " * 2), (5, "short "), (25, "a long name of a line " * 2):
        figure = Figure(figsize=(4.2, 2.9), layout="compressed")
        ax = figure.subplots()
        plots.curves({f"{name}{i}": [1.0, 2.0, 3.0] for i in range(n)}, ax=ax)
        add_legend(ax)
        figure.draw_without_rendering()
        legend = ax.get_legend()
        assert legend is not None
        names, axis = legend.get_window_extent(), ax.xaxis.get_tightbbox()
        assert axis is not None
        assert (names.y1 <= axis.y0) == (n > 2 or len(name) > 30)
        assert ax.get_window_extent().height / figure.dpi > 1.9
