"""Sweeps show the numbers of the rows."""

import math

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from rendered import assert_rendered

from calibrant import Predictions, metrics
from calibrant.lab.study import Grid, Store, Study
from calibrant.lab.study.figures import draw, roc_drawings
from calibrant.lab.study.sweeps import sweep_drawings

SMOOTHED = ("cross_entropy", "cross_entropy(smoothing=0.05)", "cross_entropy(smoothing=0.1)")
FOCAL = ("focal(gamma=2)", "focal(gamma=1)", "inverse_focal(gamma=1)", "inverse_focal(gamma=3)")


def study(*grids, calibrators=("Identity", "Temperature")):
    return Study("x", grids, calibrators, ("ece", "accuracy"))


def rows_of(study, value):
    for run in study.runs():
        dataset, network, loss = study.names(run)
        for calibrator in study.calibrators:
            for metric in study.metrics:
                yield {
                    **{"run": run.id, "dataset": dataset, "network": network, "loss": loss, "seed": run.seed},
                    **{"calibrator": calibrator.text, "shift": "", "metric": metric.text},
                    "temperature": math.nan if calibrator.name == "Identity" else 2.0 + run.seed,
                    "value": value(run, calibrator, metric),
                }


def drawn(drawing):
    figure = Figure()
    drawing.draw(figure)
    (ax,) = figure.axes
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}


def test_sweep_over_a_loss_parameter():
    sweep_study = study(Grid(("digits", "cifar10"), ("resnet8",), SMOOTHED, (0, 1)))
    drawings = {
        d.name: d
        for d in sweep_drawings(
            sweep_study, rows_of(sweep_study, lambda run, *_: run.loss.settings.get("smoothing", 0.0) + run.seed)
        )
    }
    name, scaled = "sweep_ece_cross_entropy_smoothing_Identity", "sweep_temperature_cross_entropy_smoothing_Temperature"
    both_names = [
        f"sweep_{m}_cross_entropy_smoothing_{c}" for m in ("ece", "accuracy") for c in ("Identity", "Temperature")
    ]
    assert set(drawings) == {scaled, *both_names}
    lines = drawn(drawings[name])
    assert set(lines) == {"resnet8 on digits", "resnet8 on cifar10"}
    x, y = lines["resnet8 on digits"]
    assert x == [0, 0.05, 0.1]
    assert y == pytest.approx([50, 55, 60])
    assert len(drawings[name].data) == 2 * 3 * 2
    assert_rendered("study_sweeps", f"{drawings[name].description}\n{drawings[scaled].description}")
    assert drawn(drawings[scaled])["resnet8 on digits"][1] == [2.5] * 3


@pytest.mark.parametrize("setting", ["", "detach_weight=True"])
def test_inverse_focal_loss_has_negative_gamma(setting):
    losses = [loss.replace(")", f", {setting})") if setting else loss for loss in FOCAL]
    sweep_study = study(Grid(("digits",), ("resnet8",), ("cross_entropy", *losses)), calibrators=("Identity",))
    name = f"sweep_ece_focal{'_detach_weight_True' if setting else ''}_gamma_Identity"
    drawings = {
        d.name: d
        for d in sweep_drawings(sweep_study, rows_of(sweep_study, lambda run, *_: run.loss.settings.get("gamma", 0.0)))
    }
    x, y = drawn(drawings[name])["resnet8 on digits"]
    assert x == [-3, -1, 0, 1, 2]
    assert y == [300, 100, 0, 100, 200]
    figure = Figure()
    drawings[name].draw(figure)
    (ax,) = figure.axes
    assert ax.xaxis_inverted()  # focal loss on the left, as in the paper
    assert "inverse focal loss" in ax.get_xlabel()


def test_sweep_over_data_size_and_best_parameter():
    sets = tuple(f"cifar10(train={n})" for n in (100, 200, 400))
    sweep_study = study(Grid(sets, ("resnet8",), SMOOTHED, (0, 1)), calibrators=("Identity",))
    best = {"100": 0.1, "200": 0.05, "400": 0.0}

    def value(run, calibrator, metric):
        away = abs(run.loss.settings.get("smoothing", 0.0) - best[str(run.dataset.settings["train"])])
        return away if metric.name == "ece" else 1 - away

    drawings = {d.name: d for d in sweep_drawings(sweep_study, rows_of(sweep_study, value))}
    x, y = drawn(drawings["sweep_ece_cifar10_train_resnet8_Identity"])["cross_entropy"]
    assert (x, y) == ([100, 200, 400], pytest.approx([10, 5, 0]))
    for metric in "ece", "accuracy":
        name = f"sweep_best_smoothing_of_cross_entropy_by_{metric}_cifar10_train_resnet8_Identity"
        assert drawn(drawings[name])["cross_entropy"] == ([100, 200, 400], [0.1, 0.05, 0])


def test_sweep_over_a_calibrator_parameter():
    scaled = tuple(f"FocalTemperature(gamma={g})" for g in (-0.5, 0.5, 5))
    sweep_study = study(Grid(("digits",), ("resnet8",), ("focal", "brier")), calibrators=scaled)
    drawings = {
        d.name: d
        for d in sweep_drawings(
            sweep_study, rows_of(sweep_study, lambda run, calibrator, _: calibrator.settings["gamma"])
        )
    }
    lines = drawn(drawings["sweep_temperature_FocalTemperature_gamma_digits_resnet8"])
    assert lines == {"focal": ([-0.5, 0.5, 5], [2, 2, 2]), "brier": ([-0.5, 0.5, 5], [2, 2, 2])}
    assert drawn(drawings["sweep_ece_FocalTemperature_gamma_digits_resnet8"])["focal"][1] == [-50, 50, 500]


def test_metrics_without_finite_values_are_not_drawn():
    sweep_study = study(Grid(("digits",), ("resnet8",), SMOOTHED), calibrators=("Identity",))
    rows = rows_of(sweep_study, lambda run, _, metric: math.nan if metric.name == "accuracy" else 0.5)
    assert [d.name for d in sweep_drawings(sweep_study, rows)] == ["sweep_ece_cross_entropy_smoothing_Identity"]


def test_sweeps_need_three_points():
    sweep_study = study(Grid(("digits",), ("resnet8",), SMOOTHED[:2]))
    assert not list(sweep_drawings(sweep_study, rows_of(sweep_study, lambda *_: 1.0)))


@pytest.mark.slow
@pytest.mark.parametrize("calibrated_predictions", [10], indirect=True)
def test_roc_curves_have_the_measured_areas(tmp_path, calibrated_predictions):
    sweep_study = Study(
        "x", (Grid(("digits",), ("resnet8",), SMOOTHED, shifts=("gaussian_noise",)),), detection=("max_logit",)
    )
    store = Store(tmp_path / "store")
    outside = Predictions(calibrated_predictions.logits * 0.3, calibrated_predictions.labels)
    for run in sweep_study.runs():
        store.save(
            run,
            {"val": calibrated_predictions, "test": calibrated_predictions, "shift0": outside},
            {"seconds": 1.0},
            [{"epoch": 1}],
        )
    drawing, _ = sorted(roc_drawings(sweep_study, store), key=lambda d: d.name)  # before and after scaling
    lines = {name.partition(" ")[2]: line for name, line in drawn(drawing).items()}  # labels begin with the area
    x, y = (np.array(part) for part in lines["cross_entropy"])
    area = metrics.ood.detection(calibrated_predictions, outside, score=metrics.ood.max_logit).auroc
    assert np.trapezoid(y, x) == pytest.approx(area, abs=0.01)
    assert f"cross_entropy {np.trapezoid(y, x):.3f}" in drawing.description
    names = {path.name for path in draw(sweep_study, store, tmp_path / "figures")}
    assert any(name.startswith("roc_") and name.endswith(".svg") for name in names)
    assert any(name.startswith("sweep_ece_") and name.endswith(".csv") for name in names)


def test_roc_curve_matches_scikit_learn():
    from sklearn.metrics import roc_curve

    g = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(50, 3, generator=g).mul(2).round(), torch.randn(70, 3, generator=g).round()
    curve = metrics.ood.roc(inside, outside, score=metrics.ood.max_logit)
    score = torch.cat([inside, outside]).amax(1)
    x, y, _ = roc_curve([1] * 50 + [0] * 70, score, drop_intermediate=False)
    np.testing.assert_allclose(curve.x, x)
    np.testing.assert_allclose(curve.y, y)


def test_metrics_of_the_study_are_main_drawings():
    sweep_study = Study("x", (Grid(("digits",), ("resnet8",), SMOOTHED),), ("Temperature",), ("nll", "adaptive_ece"))
    main = {d.name: d.is_main for d in sweep_drawings(sweep_study, rows_of(sweep_study, lambda *_: 0.5))}
    assert sorted(main.values()) == [False, True, True]
    assert not main["sweep_nll_cross_entropy_smoothing_Temperature"]
