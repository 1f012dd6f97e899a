"""Data of interactive controls, without a browser."""

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from calibrant.registry import CALIBRATORS, LOSSES, METRICS
from drawn import drawn_labels
from rendered import assert_rendered

from calibrant import Predictions, assess, calibrators, measure, metrics
from calibrant._core.numbers import format_percent
from calibrant.assessment import _controls
from calibrant.assessment import _sentences as sentences
from calibrant.assessment._assess import ACCURACY_PRESERVING_AUTO
from calibrant.assessment._controls import slider_temperatures
from calibrant.assessment._mistakes import mistakes_by_class
from calibrant.metrics import Metric, Summary
from calibrant.reports.diagrams import INFINITE_MEAN_EXPLANATION
from calibrant.reports.document import Control
from calibrant.reports.page import explain_terms


def draw(n: int, seed: int, k: int = 3, by: float = 2.0, shift: float = 0.0, **options: Any) -> Predictions:
    """Return predictions whose logits are `by` times too large, and labels shifted toward class 0."""
    rng = np.random.default_rng(seed)
    z = 1.5 * rng.normal(size=(n, k))
    return Predictions(by * z, drawn_labels(z + shift * np.eye(k)[0], rng), **options)


def control_content(controls: Control | list[Control]) -> Any:
    """Return the data of the only control, as a page holds them."""
    (control,) = controls if isinstance(controls, list) else [controls]
    return json.loads(json.dumps(control.content))


@pytest.mark.parametrize(("of", "weighted"), [("top", False), (1, True)])
def test_temperature_steps_equal_the_metrics(of, weighted):
    w = np.arange(200) % 3 if weighted else None
    p = draw(200, 0, weights=w)
    content = control_content(_controls.measurement_temperature_control(measure(p, of=of)))
    assert len(content["steps"]) == 49
    assert content["steps"][content["one"]]["name"] == "T = 1.00"
    for i in (0, 20, 24, 37, 48):
        t = 2 ** ((i - 24) / 12)
        calibrated, step = (
            p.apply(calibrators.Temperature(t)).with_event(of),
            content["steps"][i],
        )
        (ece, chance), (nll, _), (confidence, _), (frequency, _) = step["tiles"]
        floor, bins = metrics.noise_floor.interval(calibrated), metrics.tables.bins(calibrated)
        assert ece == format_percent(float(metrics.ece(calibrated)))
        assert chance == f"noise floor {format_percent(floor.value)}, up to {format_percent(floor.high)}"
        assert nll == f"{float(metrics.nll(calibrated)):.4f}"
        full = bins.count > 0
        assert [cell[0] for cell in step["cells"]] == np.flatnonzero(full).tolist()
        assert [cell[1] for cell in step["cells"]] == bins.count[full].tolist()
        assert [cell[3] / 1e6 for cell in step["cells"]] == pytest.approx(bins.accuracy[full].tolist(), abs=6e-7)
        assert float(confidence.split()[0]) - float(frequency.split()[0]) == pytest.approx(
            100 * float(metrics.signed_gap(calibrated)), abs=0.11
        )


def test_number_of_temperatures_depends_on_the_logits():
    assert [len(slider_temperatures(n, 10**6)) for n in (1_000, 30_000, 60_000, 100_000)] == [49, 25, 13, 0]
    assert all(1.0 in slider_temperatures(n, 10**6) for n in (1_000, 30_000, 60_000))


def test_chunks_have_a_menu_and_no_slider():
    p = draw(300, 0)
    assert _controls.measurement_temperature_control(measure(Summary.from_predictions(p))) == []
    result = assess(p[:150], [p[150:200], p[200:]], ("Identity", "Temperature"))
    content = control_content(_controls.assessment_temperature_control(result))
    assert content["steps"] == []
    assert [unit["name"] for unit in content["maps"]] == ["uncalibrated", "Temperature"]
    assert "read in chunks" in content["note"]
    assert "Do not pick a temperature" not in content["note"]


def test_control_data_does_not_grow_with_rows():
    def size(n: int) -> int:
        measured = measure(draw(n, 1))
        controls = [
            _controls.measurement_temperature_control(measured),
            _controls.threshold_control({"": measured}),
            _controls.class_control({"": measured}, [measured.classes]),
        ]
        return sum(len(json.dumps(control_content(control))) for control in controls)

    assert size(4_000) < 1.2 * size(1_000)


def test_thresholds_have_intervals():
    p = draw(500, 2)
    confidence, right = p.events.confidence, p.events.outcome
    result = metrics.tables.thresholds(p, at=[0.0, 0.7, 0.999999], level=0.8)
    for i, c in enumerate((0.0, 0.7)):
        above = right[confidence >= c]
        interval = metrics.share_interval(above, None, 0.8)
        assert (float(result.low[i]), float(result.high[i])) == pytest.approx((interval.low, interval.high))
    assert (float(result.low[2]), float(result.high[2])) == (0.0, 1.0)
    clusters = np.arange(500) // 5
    in_memory = metrics.tables.thresholds(draw(500, 2, clusters=clusters), at=[0.0])
    interval = metrics.share_interval(right, None, 0.90, clusters)
    assert (float(in_memory.low[0]), float(in_memory.high[0])) == pytest.approx((interval.low, interval.high), abs=1e-3)
    assert float(in_memory.high[0] - in_memory.low[0]) != pytest.approx(float(result.high[0] - result.low[0]), abs=1e-6)


def test_class_cells_equal_the_bins_of_the_class():
    p = draw(400, 3)
    result = metrics.tables.classes(p, bins=10)
    for j in range(3):
        bins = metrics.tables.bins(p.with_event(j), bins=10)
        np.testing.assert_allclose(result.cells[j, :, 0], bins.weight, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(
            result.cells[j, :, 2], np.nan_to_num(bins.weight * bins.accuracy), rtol=1e-7, atol=1e-7
        )
        assert np.abs(np.diff(result.cells[j, :, 1:])).sum() == pytest.approx(result.ece[j])


def test_mistakes_by_class_are_the_most_confident():
    p = draw(300, 4)
    mistakes = mistakes_by_class(p, [2], 4)[2]
    wrong = (p.predicted != p.labels) & ((p.labels == 2) | (p.predicted == 2))
    confidence = np.where(wrong, p.outcomes.confidence, 0)
    first = np.argsort(-confidence)[:4]
    assert [m.row for m in mistakes] == first.tolist()
    assert [m.probability for m in mistakes] == confidence[first].tolist()


def test_significant_loss_of_accuracy_by_auto_shows_an_alternative():
    val, test = draw(2000, 5, shift=1.5), draw(2000, 6)
    result = assess(val, test, ("Identity", "Temperature", "Auto"), choose="Auto")
    assert result.changes["accuracy"].high < 0
    assert result.accuracy_preserving == ACCURACY_PRESERVING_AUTO
    assert result.measurements[ACCURACY_PRESERVING_AUTO]["accuracy"].value == result.uncalibrated["accuracy"].value
    expected_fit = calibrators.Auto.fit(val, accuracy_preserving=True)
    expected = float(metrics.nll(test.double().apply(expected_fit)))
    assert result.measurements[ACCURACY_PRESERVING_AUTO]["nll"].value == pytest.approx(expected)
    assert f"{expected:.4f}" in sentences.remedy_answer(result).partition(ACCURACY_PRESERVING_AUTO)[2]
    assert json.loads(result.json())["accuracy_preserving"] == ACCURACY_PRESERVING_AUTO
    same = assess(draw(1000, 7), test, ("Identity", "Auto"), choose="Auto")
    assert same.accuracy_preserving is None
    assert ACCURACY_PRESERVING_AUTO not in same.measurements
    assert ACCURACY_PRESERVING_AUTO not in sentences.remedy_answer(same)


def test_terms_are_explained_at_their_first_mention():
    calibrated = explain_terms("its ECE <b> and NLL, then ECE")
    assert calibrated.count("<abbr") == 2
    assert calibrated.endswith("then ECE")
    assert "&lt;b&gt;" in calibrated
    assert f'title="ECE: {metrics.metric_info("ece").meaning}' in calibrated
    content = [m for name in ("ece", "nll", "kuiper", "brier", "accuracy") if isinstance(m := METRICS[name], Metric)]
    assert all(m.about.meaning for m in content)


def test_infinite_nll_is_explained():
    p = Predictions([[0.0, -np.inf], [0.0, 1.0], [1.0, 0.0]] * 10, [1, 1, 0] * 10)
    result = assess(p, p[[0, 1, 2, 3]], ("Identity", "Temperature"))
    assert math.isinf(result.uncalibrated["nll"].value)
    page = result.html()
    assert result.uncalibrated["nll"].note in page
    assert f"inf: {INFINITE_MEAN_EXPLANATION}." in page
    assert f'<abbr title="{INFINITE_MEAN_EXPLANATION}">inf</abbr>' in page


def test_titles_of_calibrators_come_from_docstrings():
    assert CALIBRATORS.title("Temperature(criterion='ece')") == "Temperature scaling"
    assert CALIBRATORS.title("Identity") == "No calibration"
    assert CALIBRATORS.title("a.safetensors") == ""
    assert all(map(CALIBRATORS.title, CALIBRATORS))


@pytest.mark.usefixtures("torch")
def test_titles_of_losses_come_from_docstrings():
    assert LOSSES.title("focal(gamma=3)") == "Focal loss"
    assert LOSSES.title("mine.loss") == ""
    assert all(map(LOSSES.title, LOSSES))


@pytest.mark.parametrize(("name", "value", "text"), [("nll", 1e296, "1e296"), ("ece", 0.1234, "12.34")])
def test_numbers_fit_their_columns(name, value, text):
    assert metrics.metric_info(name).text(value) == text
    assert metrics.metric_info(name).text(-1.5e300) in ("-1.5e300", "-1.5e302")
    assert (
        max(len(metrics.metric_info(name).text(sign * 10.0**e)) for e in range(-12, 300, 7) for sign in (-1, 1)) <= 13
    )


def test_huge_metric_value_fits_the_terminal():
    measured = measure(Predictions([[0.0, -1e300], [0.0, 1.0], [1.0, 0.0]] * 10, [1, 1, 0] * 10), of="top")
    assert max(map(len, str(measured).splitlines())) <= 120
    assert "e299" in str(measured)


def test_class_control_of_chunks_has_curves_and_no_mistakes():
    p = draw(400, 10, k=4)
    in_memory = measure(p)
    pieces = measure(Summary.empty(of="top", by_class=True).add(p[:150]).add(p[150:]))
    from_chunks, mistakes = (
        control_content(_controls.class_control({"value": table}, [table.classes])) for table in (pieces, in_memory)
    )
    assert [row["layers"] for row in from_chunks["rows"]] == [row["layers"] for row in mistakes["rows"]]
    assert all(row["mistakes"] is None for row in from_chunks["rows"])
    assert any(row["mistakes"] for row in mistakes["rows"])


def test_controls_and_answers_use_the_unit_of_the_event():
    rng = np.random.default_rng(11)
    confidence = rng.random(400)
    answers_, labels = (
        Predictions.from_confidence(confidence, rng.binomial(1, confidence**2)),
        Predictions.multilabel(rng.normal(size=(200, 3)), rng.integers(0, 2, (200, 3))),
    )
    for p, unit, tile in (
        (answers_, "answer", "error rate among them"),
        (labels, "label decision", "false positives among them"),
    ):
        table = measure(p)
        content = control_content(_controls.threshold_control({"value": table}))
        assert content["words"]["each"] == f"per {unit}"
        assert content["words"]["tiles"][1] == tile
        assert control_content(_controls.measurement_temperature_control(table))["words"]["units"] == f"{unit}s"
        answer_texts = " ".join(answer.text for answer in table.document().answers)
        assert f"{unit}s" in answer_texts
        assert not re.search("examples|groups", answer_texts)


def test_brier_is_tested_if_nll_is_infinite(torch):
    arrays = []
    for seed in (12, 13):  # by torch, as the stored text
        g = torch.Generator().manual_seed(seed)
        z = 1.5 * torch.randn(1000, 3, generator=g, dtype=torch.float64)
        arrays += [2 * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)]
    logits, labels, *val = arrays
    logits[0], labels[0] = torch.tensor([0.0, -torch.inf, 0.0]), 1
    test = Predictions(logits, labels)
    result = assess(Predictions(*val), test, ("Identity", "Temperature"), choose="Temperature")
    assert math.isinf(result.uncalibrated["nll"].value)
    assert_rendered("difference_by_brier", sentences.significance_answer(result))
