import math
from statistics import mean

import numpy as np
import pytest
import torch
from rendered import assert_rendered
from stored_rows import study_rows

from calibrant import Predictions, calibrators, metrics
from calibrant.lab.study import Grid, Store, Study, report
from calibrant.lab.study.grids import RunNames
from calibrant.lab.study.tables import build_tables


def row(loss, seed, calibrator, value, temperature=math.nan, metric="ece"):
    where = {"run": f"{loss}{seed}", "dataset": "digits", "network": "resnet8", "loss": loss, "seed": seed}
    options = {"calibrator": calibrator, "temperature": temperature, "shift": "", "metric": metric, "value": value}
    return where | options


ROWS = [
    row("cross_entropy", 0, "Identity", 0.04),
    row("cross_entropy", 1, "Identity", 0.06),
    row("cross_entropy", 0, "Temperature", 0.01, 2.0),
    row("cross_entropy", 1, "Temperature", 0.02, 3.0),
    row("focal", 0, "Identity", 0.03),
    row("focal", 1, "Identity", 0.03),
    row("focal", 0, "Temperature", 0.02, 1.0),
    row("focal", 1, "Temperature", 0.04, 1.0),
    row("focal", 0, "Identity", math.inf, metric="nll"),
    row("focal", 1, "Identity", 0.5, metric="nll"),
    row("focal", 0, "Identity", 0.9, metric="accuracy"),
    row("brier", 0, "Identity", 0.8, metric="accuracy"),
]


def test_cells_show_mean_deviation_and_temperature():
    ece, nll, accuracy = build_tables(ROWS)
    where = "digits", "resnet8", "cross_entropy"
    assert ece.heading == "ece (%)"
    assert ece.cells[where, "Identity"].text(ece.metric_info) == "5.00 ± 1.41"
    assert ece.cells[where, "Temperature"].text(ece.metric_info) == "1.50 ± 0.71 (2.50)"
    assert ece.cells[where, "Temperature"].text(ece.metric_info, deviation=False) == "1.50 (2.50)"
    assert nll.heading == "nll"
    assert accuracy.cells[("digits", "resnet8", "focal"), "Identity"].text(accuracy.metric_info) == "90.00"


def test_best_cell_follows_the_direction_of_the_metric():
    ece, nll, accuracy = build_tables(ROWS)
    assert [key for key, cell in ece.cells.items() if cell.best] == [
        (("digits", "resnet8", "cross_entropy"), "Temperature")
    ]
    assert [key[0][2] for key, cell in accuracy.cells.items() if cell.best] == ["focal"]
    assert nll.cells[("digits", "resnet8", "focal"), "Identity"].text(nll.metric_info) == "inf"


def test_rows_are_grouped_by_data_set_and_network():
    places = [("digits", "focal"), ("svhn", "focal"), ("digits", "brier"), ("svhn", "brier")]
    (table,) = build_tables([row(loss, 0, "Identity", 0.1) | {"dataset": dataset} for dataset, loss in places])
    assert [(dataset, loss) for dataset, _, loss in table.rows] == [places[0], places[2], places[1], places[3]]


def test_metrics_without_direction_have_no_best_cell():
    (gap,) = build_tables([row(loss, 0, "Identity", v, metric="signed_gap") for loss, v in (("a", -0.2), ("b", 0.1))])
    assert gap.heading == "signed_gap (%)"
    assert not any(cell.best for cell in gap.cells.values())


def test_own_metrics_are_rendered_in_every_form(forgotten):
    @metrics.metric("top-2 accuracy", unit="share", higher_is_better=True)
    def top2(logits, labels):
        return (logits.topk(2).indices == labels[:, None]).any(1).double().mean()

    (table,) = build_tables([row(loss, 0, "Identity", v, metric="top2") for loss, v in (("a", 0.25), ("b", 0.75))])
    forms = (table.markdown(), table.latex(), str(table), str(table.as_table()), *report.findings([table]).values())
    assert_rendered("study_table_of_own_metric", "\n\n".join(forms))


def test_cells_are_tested_against_the_first_row_over_seeds():
    values = {"cross_entropy": (0.010, 0.011, 0.012), "a": (0.030, 0.031, 0.032), "b": (0.011, 0.013, 0.012)}
    values |= {"c": (0.001, 0.002, 0.001), "d": (0.009, 0.010, 0.012), "e": (0.011, 0.011, 0.011), "one": (0.5,)}
    built_rows = [row(loss, seed, "Identity", v) for loss, vs in values.items() for seed, v in enumerate(vs)]
    (table,) = build_tables(built_rows)
    marks = {where[2]: cell.mark for (where, _), cell in table.cells.items()}
    assert marks == {"cross_entropy": "", "a": "▲", "b": "△", "c": "▼", "d": "▽", "e": "", "one": ""}
    assert_rendered("study_table_with_tests", f"{table.markdown()}\n\n{table.latex()}")
    assert build_tables([r for r in built_rows if r["seed"] == 0])[0].notes == ()  # one seed: nothing to test
    record = next(table.records())
    assert (record["loss"], record["seeds"], record["mean"]) == ("cross_entropy", 3, pytest.approx(0.011))


def test_equal_values_of_all_seeds_do_not_disturb_the_tests():
    built_rows = [row(loss, seed, "Identity", v) for loss, v in (("a", 0.1), ("b", 0.2)) for seed in (0, 1, 2)]
    (table,) = build_tables(built_rows)
    assert {cell.mark for cell in table.cells.values()} <= {"", "▲", "△"}


def test_row_names_hold_the_differing_parts():
    assert [build_tables(ROWS)[0].name(r) for r in build_tables(ROWS)[0].rows] == ["cross_entropy", "focal"]
    other_rows = [dict(r, network="resnet20") for r in ROWS]
    assert build_tables(ROWS + other_rows)[0].name(RunNames("digits", "resnet8", "focal")) == "resnet8, focal"


def test_tables_with_temperatures_are_rendered_in_every_form():
    table = build_tables(ROWS)[0]
    assert_rendered("study_table_with_temperatures", "\n\n".join([table.markdown(), table.latex(), str(table)]))


def test_only_temperatures_are_shown_as_temperature(tmp_path, calibrated_predictions):
    names = ("Temperature", "EnsembleTemperature", "Monotone", "StructuredVector", "Identity")
    study = Study("x", (Grid(("digits",), ("resnet8",), ("focal",)),), names, ("nll",))
    store, run = Store(tmp_path), next(study.runs())
    store.save(run, {"val": calibrated_predictions, "test": calibrated_predictions}, {})
    has_temperature = {r["calibrator"]: not math.isnan(r["temperature"]) for r in study_rows(study, store)}
    assert [name for name in names if has_temperature[name]] == ["Temperature", "EnsembleTemperature"]


@pytest.mark.slow
def test_learned_parameters_stand_in_brackets(tmp_path, calibrated_predictions):
    names = ("FocalTemperature(grid='code')", "FocalMap(gamma=2)", "Temperature", "Identity")
    study = Study("x", (Grid(("digits",), ("resnet8",), ("focal",), (0, 1)),), names, ("nll",))
    store = Store(tmp_path)
    fitted = []
    for run, scale in zip(study.runs(), (0.7, 3.0), strict=True):
        p = Predictions(scale * calibrated_predictions.logits, calibrated_predictions.labels)
        store.save(run, {"val": p, "test": p}, {})
        fitted.append(calibrators.fit("FocalTemperature(grid='code')", p.double()))
    (table,) = build_tables(study_rows(study, store))
    texts = [
        table.cells[("digits", "resnet8", "focal"), name].text(table.metric_info, deviation=False) for name in names
    ]
    t, gamma = (mean(float(getattr(fitted_map, name)) for fitted_map in fitted) for name in ("temperature", "gamma"))
    assert texts[0].endswith(f" ({t:.2f}, gamma {gamma:z.2f})")
    assert texts[1].endswith(" (gamma 2.00)")
    assert texts[2].count(",") == 0
    assert "(" not in texts[3]
    learned = {record["calibrator"]: record["learned"] for record in table.records()}
    assert learned == {names[0]: f"gamma {gamma}", names[1]: "gamma 2.0", "Temperature": "", "Identity": ""}


def test_a_parameter_may_be_missing_in_some_seeds():
    first, second = ROWS[:2]
    (table,) = build_tables([first | {"learned_a": 1.0}, second])
    (cell,) = table.cells.values()
    assert cell.fitted_parameters == {"a": 1.0}


def test_shifts_are_measured_and_have_tables_of_their_own(tmp_path, calibrated_predictions):
    shifts = "gaussian_noise(severity=3)", "digits"
    grid = Grid(("digits",), ("resnet8",), ("focal",), shifts=shifts)
    study = Study("x", (grid,), ("Identity", "Temperature"), ("ece", "nll"), detection=("max_logit", "energy"))
    store, run = Store(tmp_path), next(study.runs())
    corrupted = Predictions(calibrated_predictions.logits / 2, calibrated_predictions.labels)
    outside = Predictions(calibrated_predictions.logits / 9, np.zeros_like(calibrated_predictions.labels))
    store.save(
        run, {"val": calibrated_predictions, "test": calibrated_predictions, "shift0": corrupted, "shift1": outside}, {}
    )
    tables_by_key = {(t.shift, t.metric): t for t in build_tables(study_rows(study, store))}
    detections = {
        f"ood_{name}({score})" for name in ("auroc", "aupr_in", "aupr_out", "fpr95") for score in study.detection
    }
    assert {shift: {m for s, m in tables_by_key if s == shift} for shift, _ in tables_by_key} == {
        "": {"ece", "nll"},
        shifts[0]: {"ece", "nll"} | detections,  # labels stay valid
        shifts[1]: detections,
    }
    row = "digits", "resnet8", "focal"
    noisy, foreign = tables_by_key[shifts[0], "nll"], tables_by_key[shifts[1], "ood_auroc(max_logit)"]
    assert noisy.cells[row, "Identity"].mean == pytest.approx(float(metrics.nll(corrupted)))
    expected = metrics.ood.detection(calibrated_predictions, outside, score=metrics.ood.max_logit).auroc
    assert foreign.cells[row, "Identity"].mean == pytest.approx(expected)
    assert foreign.heading == "ood_auroc(max_logit) (%) on digits"
    assert [r["shift"] for r in foreign.records()] == ["digits"] * 2


def test_calibrator_that_fits_some_data_sets_only_has_empty_cells_for_the_others(tmp_path):
    grid = Grid(("digits", "blobs(classes=2)"), ("resnet8",), ("focal",), shifts=("svhn",))
    study, store = Study("x", (grid,), ("Identity", "Platt"), ("nll",)), Store(tmp_path)
    for run, k in zip(study.runs(), (3, 2), strict=True):
        p = Predictions(torch.randn(40, k, generator=torch.Generator().manual_seed(0)), torch.arange(40) % k)
        store.save(run, dict.fromkeys(("val", "test", "shift0"), p), {})
    for table in build_tables(study_rows(study, store)):
        assert [cell.text(table.metric_info) == "n/a" for cell in table.cells.values()] == [False, True, False, False]


def test_cells_that_lack_a_finite_value_are_not_tested():
    """The seed that is infinite, nan, diverged or not measured would be left out of a test: the cell has none."""
    values = {"plain": (0.10, 0.11, 0.12), "low": (0.01, 0.02, 0.03), "high": (0.50, 0.51, 0.52)}
    complete = [row("a", seed, name, v, metric="nll") for name, vs in values.items() for seed, v in enumerate(vs)]
    bad_seeds = {
        "infinite": {"value": math.inf},
        "nan": {"value": math.nan},
        "diverged": {"value": math.nan, "diverged": 3},
        "not measured": {"value": math.nan, "reason": "too few"},
    }
    for name, bad in bad_seeds.items():
        complete += [row("a", 0, name, 0.90, metric="nll"), row("a", 1, name, 0.91, metric="nll")]
        complete.append(row("a", 2, name, 0.0, metric="nll") | bad)
    complete += [row("b", seed, name, 0.4 + 0.01 * seed, metric="nll") for name in values for seed in range(3)]
    complete += [row("b", seed, name, 0.4 + 0.01 * seed, metric="nll") for name in bad_seeds for seed in range(3)]
    (table,) = build_tables(complete)
    cells = {column: table.cells[("digits", "resnet8", "a"), column] for column in table.columns}
    assert {name: bool(cell.letters) for name, cell in cells.items()} == {name: name in values for name in cells}
    assert {name: (cell.excluded, cell.num_seeds) for name, cell in cells.items() if cell.excluded} == dict.fromkeys(
        bad_seeds, (1, 3)
    )
    marks = {name: table.cells[("digits", "resnet8", "b"), name].mark for name in table.columns}
    assert {name for name, mark in marks.items() if mark} == set(values)  # their reference is in row a
    assert_rendered("study_table_with_untested_cells", str(table))


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("ece", lambda p: metrics.noise_floor(p)),
        ("ece(bins=10)", lambda p: metrics.noise_floor(p, bins=10)),
        ("ece(edges='equal_mass')", lambda p: metrics.adaptive_noise_floor(p)),
        ("adaptive_ece(bins=5,edges='mukhoti')", lambda p: metrics.adaptive_noise_floor(p, bins=5)),
        ("ece(norm=2)", None),
        ("nll", None),
    ],
)
def test_calibration_errors_have_a_noise_floor(metric, expected, tmp_path, calibrated_predictions):
    study = Study("x", (Grid(("digits",), ("resnet8",), ("focal",), (0, 1)),), ("Identity", "Temperature"), (metric,))
    store = Store(tmp_path)
    for run, scale in zip(study.runs(), (0.7, 3.0), strict=True):
        p = Predictions(scale * calibrated_predictions.logits, calibrated_predictions.labels)
        store.save(run, {"val": p, "test": p}, {})
    (table,) = build_tables(study_rows(study, store))
    cell = table.cells[("digits", "resnet8", "focal"), "Identity"]
    if expected is None:
        assert math.isnan(cell.floor)
        assert "[" not in cell.text(table.metric_info)
        return
    floors = [
        float(expected(Predictions(scale * calibrated_predictions.logits, calibrated_predictions.labels)))
        for scale in (0.7, 3.0)
    ]
    assert cell.floor == pytest.approx(mean(floors))
    for rendered in (table.markdown(), table.latex(), str(table)):
        assert table.metric_info.text(cell.floor) in rendered
    assert table.metric_info.text(cell.floor) in str(table.as_table())
    assert next(table.records())["floor"] == cell.floor


def test_the_best_mean_is_crowned_only_if_it_is_significant_and_above_its_noise_floor():
    cases = {
        "significant": ((0.030, 0.031, 0.032), 0.01),
        "within the floor": ((0.030, 0.031, 0.032), 0.05),
        "not significant": ((0.030, 0.090, 0.032), 0.01),
        "one infinite seed": ((0.030, 0.031, math.inf), 0.01),
        "one diverged seed": ((0.030, 0.031), 0.01),
        "no floor": ((0.030, 0.031, 0.032), math.nan),
    }
    texts: list[str] = []
    for name, (values, floor) in cases.items():
        built_rows = [
            row(loss, seed, "Identity", value) | {"floor": floor}
            for loss, values_by_seed in (("a", (0.061, 0.062, 0.064)), ("b", values), ("c", (0.071, 0.072, 0.072)))
            for seed, value in enumerate(values_by_seed)
        ]
        if len(values) == 2:
            built_rows.append(row("b", 2, "Identity", math.nan) | {"diverged": 1})
        texts += [name, *report.findings(build_tables(built_rows)).values(), ""]
    assert_rendered("study_findings_on_the_best", "\n".join(texts))
    crowned = [name for name, text in zip(texts[::3], texts[1::3], strict=True) if "b has the lowest" in text]
    assert crowned == ["significant", "no floor"]
