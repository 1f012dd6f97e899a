"""`assess`: fits, evaluation and selection, in memory and in chunks."""

import itertools
import json
import math
import os
import subprocess
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest
import scipy.special
from drawn import drawn_labels
from passes import report_passes
from refusals import refused
from scipy.special import expit, log_softmax, softmax

from calibrant import Predictions, assess, calibrators, measure, metrics, registry
from calibrant.assessment import DEFAULT_CALIBRATORS
from calibrant.assessment._calibrated_predictions import CalibratedPredictions
from calibrant.assessment._candidates import default_calibrators
from calibrant.assessment._mistakes import describe_mistakes, most_confident_errors
from calibrant.assessment._serialize import serialize_fitted
from calibrant.predictions.events import describe_event
from calibrant.reports.document import Table

FAST = ("Identity", "Temperature", "HistogramBinning")


def sharp(n: int, seed: int, by: float = 2.0, k: int = 4) -> Predictions:
    """Return predictions whose logits are `by` times too large, so that temperature `by` calibrates them."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.normal(size=(n, k))
    return Predictions(by * logits, drawn_labels(logits, rng))


def shifted(n: int, seed: int) -> Predictions:
    """Return binary predictions whose logits are too large by 0.7: mean probability 62 %, frequency 51 %."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=n)
    return Predictions(np.c_[0 * q, q + 0.7], rng.binomial(1, expit(q)))


def weighted(p: Predictions, seed: int = 0) -> tuple[Predictions, Predictions]:
    """Return predictions with integer weights, and with as many copies of each row."""
    w = np.random.default_rng(seed).integers(0, 4, len(p))
    return Predictions(p.logits, p.labels, w), Predictions(p.logits.repeat(w, 0), p.labels.repeat(w))


@pytest.fixture(scope="module")
def result():
    return assess(sharp(1500, 0), sharp(2000, 1), FAST)


def test_the_default_calibrators_and_metrics_exist():
    assert set(DEFAULT_CALIBRATORS) <= set(registry.CALIBRATORS)
    assert set(describe_event("top", 10).compared_metrics) <= set(registry.METRICS)


def test_temperature_is_selected_and_calibrates(result):
    assert result.chosen_name == "Temperature"
    assert result.best is result.calibrators["Temperature"]
    assert float(result.best.temperature) == pytest.approx(2, rel=0.08)
    assert result.uncalibrated["signed_gap"].low > 0
    assert result.uncalibrated["kuiper"].p_value < 1e-4
    assert result.calibrated["kuiper"].p_value > 0.01


def test_values_equal_the_metrics(result):
    test = sharp(2000, 1)
    for name, values in result.values.items():
        calibrated = test.apply(result.calibrators[name])
        for metric, value in values.items():
            assert value == pytest.approx(float(getattr(metrics, metric)(calibrated)), abs=1e-12), metric
        for row in measure(calibrated):
            assert result.measurements[name][row.name] == row
    for row in measure(test):
        assert result.uncalibrated[row.name] == row


def test_records_have_stable_keys_and_one_row_per_number(result):
    rows = result.records()
    assert {frozenset(row) for row in rows} == {
        frozenset(("calibrator", "metric", "value", "low", "high", "p_value")),
    }
    pairs = [(row["calibrator"], row["metric"]) for row in rows]
    assert len(set(pairs)) == len(pairs)
    assert {name for name, _ in pairs} == set(FAST)
    kuiper = next(row for row in rows if (row["calibrator"], row["metric"]) == ("Identity", "kuiper"))
    assert 0 <= kuiper["p_value"] < 1e-4
    assert result.to_polars().height == len(rows)


def test_json_holds_numbers_and_metric_descriptions(result):
    content = json.loads(result.json())
    assert content["chosen"] == "Temperature"
    assert content["judged"] == "the predicted class is correct"
    assert content["metrics"]["accuracy"]["higher_is_better"] is True
    assert content["metrics"]["ece"]["unit"] == "share"
    assert {name: float(nll) for name, nll in content["held_out_nll"].items()} == result.held_out_nll
    assert {r["metric"] for r in content["results"]} == set(content["metrics"])
    binned = next(r for r in content["results"] if (r["calibrator"], r["metric"]) == ("HistogramBinning", "nll"))
    assert binned["value"] in ("inf", result.measurements["HistogramBinning"]["nll"].value)
    assert [row["name"] for row in content["changes"]] == [row.name for row in result.changes]


def test_changes_are_paired_differences(result):
    test = sharp(2000, 1)
    decrease = log_softmax(test.logits, 1) - log_softmax(result.best(test.logits), 1)
    difference = decrease[np.arange(len(test)), test.labels]
    nll = result.changes["nll"]
    assert nll.difference == pytest.approx(difference.mean())
    half = 1.6456164 * difference.std(ddof=1) / math.sqrt(len(test))
    low, high = nll.difference - half, nll.difference + half  # an unseen example may widen it
    assert low - 0.1 * half - 0.005 <= nll.low <= low + 0.01 * half
    assert high - 0.01 * half <= nll.high <= high + 0.1 * half + 0.005
    assert nll.high < 0
    assert result.changes["accuracy"].low == result.changes["accuracy"].high == 0


def test_selection_ignores_evaluation_data():
    """The selected calibrator is the worst on these evaluation data, and stays selected."""
    val = sharp(1500, 0, by=2)
    result = assess(val, sharp(1500, 2, by=0.5), FAST)
    assert result.chosen_name == "Temperature"
    assert result.values["Temperature"]["nll"] > result.values["Identity"]["nll"]
    assert result.held_out_nll == assess(val, sharp(100, 3), FAST).held_out_nll


def test_requested_calibrator_is_selected_and_fitted():
    result = assess(sharp(300, 0), sharp(300, 1), ("Identity",), choose="Temperature( criterion = 'ece' )")
    assert result.chosen_name == "Temperature(criterion='ece')"
    assert (result.selection, result.held_out_nll) == ("requested", {})
    assert list(result.calibrators) == ["Identity", result.chosen_name]


def test_requested_calibrator_stays_in_the_order_of_the_list():
    result = assess(sharp(300, 0), sharp(300, 1), ("Identity", "Temperature"), choose="Identity")
    assert list(result.measurements) == ["Identity", "Temperature"]


def test_calibrated_model_hardly_changes():
    result = assess(sharp(1500, 0, by=1), sharp(1500, 1, by=1), FAST)
    assert result.uncalibrated["kuiper"].p_value > 0.05
    assert abs(result.changes["nll"].difference) < 0.005


def test_auto_is_scored_by_its_out_of_fold_nll():
    val = sharp(400, 0)
    result = assess(val, sharp(200, 1), ("Identity", "Auto"))
    assert (
        result.held_out_nll["Auto"]
        == result.calibrators["Auto"].out_of_fold
        < min(result.calibrators["Auto"].held_out) + 0.02
    )
    out_of_fold = metrics.nll(calibrators.cross_fit("Auto", val))
    assert result.held_out_nll["Auto"] == pytest.approx(float(out_of_fold), abs=0.02)


def test_single_data_set_is_evaluated_out_of_fold():
    predictions = sharp(600, 0)
    result = assess(predictions, calibrators=FAST, folds=4)
    assert result.chosen_name == "Temperature"
    assert "Cross-fitted in 4 folds" in result.protocol
    assert result.is_cross_fitted
    assert "not used for the selection" not in result.html()
    assert result.held_out_nll["Temperature"] == pytest.approx(result.values["Temperature"]["nll"])
    for name in "Temperature", "HistogramBinning":
        in_sample = metrics.nll(predictions.apply(result.calibrators[name]))
        assert result.values[name]["nll"] > float(in_sample)


def test_mistakes_are_the_most_confident_errors():
    before = sharp(500, 5)
    mistakes = describe_mistakes(before, before.apply(lambda z: z / 2), most_confident_errors(before, 7))
    confidence, predicted = softmax(before.logits, 1).max(1), before.logits.argmax(1)
    wrong = {i: confidence[i] for i in range(500) if predicted[i] != before.labels[i]}
    assert [m.row for m in mistakes] == sorted(wrong, key=wrong.__getitem__, reverse=True)[:7]
    for m in mistakes:
        assert (m.label, m.predicted) == (int(before.labels[m.row]), int(predicted[m.row]))
        assert m.probability == pytest.approx(wrong[m.row])
        assert m.calibrated_probability == pytest.approx(softmax(before.logits[m.row] / 2)[m.predicted])


def test_calibrated_probability_of_a_corrected_mistake():
    before = Predictions([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]], [1, 1])
    after = before.apply(lambda z: np.array([[0.0, 3.0, -math.inf], [0.0, 1.0, 0.0]]))
    (mistake,) = describe_mistakes(before, after, most_confident_errors(before))
    assert mistake.calibrated_probability == pytest.approx(1 / (1 + math.exp(3)))


def test_mistakes_with_equal_confidence_are_ordered_by_loss():
    before = Predictions([[100.0, 0, 0], [200.0, 0, 0], [0, 3.0, 0]], [1, 1, 1])
    assert most_confident_errors(before).tolist() == [1, 0]


# Two classes


def test_binary_shift_is_detected_before_and_after_calibration():
    """Temperature scaling leaves an error that mistake the probability of class 1 shows."""
    val, test = shifted(1200, 0), shifted(1200, 1)
    result = assess(val, test, ("Identity", "Temperature"), choose="Temperature")
    assert result.calibrated["kuiper"].p_value < 1e-4
    assert result.uncalibrated.verdict.direction == "over"
    assert "class 1" in str(result)
    top = assess(val, test, ("Identity", "Temperature"), of="top", choose="Temperature")
    assert top.calibrated.verdict.status != "miscalibrated"
    assert "class 1" not in str(top)
    assert top.measurements["Temperature"]["classwise_ece"].value > 0.05


def test_criterion_uses_the_evaluated_event():
    val, test = shifted(200, 0), shifted(200, 1)
    name = "Temperature(criterion='ece')"
    class_1, top = (float(assess(val, test, [name], of=of).best.temperature) for of in (None, "top"))
    assert class_1 == float(calibrators.fit(name, val.with_event(1)).temperature)
    assert top == float(calibrators.fit(name, val).temperature)
    assert class_1 != top


# Weights


@pytest.mark.parametrize("k", [2, 4])
def test_integer_weights_equal_copies(k):
    """Fits, tables and the comparison of means treat an integer weight as copies."""
    (val, vals), (test, tests) = weighted(sharp(300, 0, k=k)), weighted(sharp(400, 1, k=k), 1)
    result, expected_result = (
        assess(*p, ("Identity", "Temperature"), choose="Temperature") for p in ((val, test), (vals, tests))
    )
    assert float(result.best.temperature) == pytest.approx(float(expected_result.best.temperature), rel=1e-9)
    for name, table in expected_result.measurements.items():
        for row in table:
            for key in ("value", "low", "high", "p_value"):
                expected = pytest.approx(getattr(row, key), rel=1e-7, abs=1e-9, nan_ok=True)
                assert getattr(result.measurements[name][row.name], key) == expected, (name, row.name, key)
    for name in "accuracy", "nll", "brier", "signed_gap":
        for key in "difference", "low", "high", "p_value":
            expected = pytest.approx(getattr(expected_result.changes[name], key), rel=1e-6, abs=1e-9)
            assert getattr(result.changes[name], key) == expected, (name, key)
    assert result.values["Identity"]["nll"] != pytest.approx(float(metrics.nll(test.logits, test.labels)))


def test_held_out_nll_uses_weights():
    p = sharp(300, 0)
    w = np.where(p.labels == 0, 5.0, 0.2)
    val = Predictions(p.logits, p.labels, w)
    result = assess(val, sharp(100, 1), ("Identity", "Temperature"))
    assert result.held_out_nll["Identity"] == pytest.approx(float(metrics.nll(val)))
    assert result.held_out_nll["Identity"] != pytest.approx(float(metrics.nll(p)), rel=1e-3)
    out_of_fold = calibrators.cross_fit("Temperature", val)
    assert result.held_out_nll["Temperature"] == pytest.approx(float(metrics.nll(out_of_fold)))


# One pass


@pytest.fixture
def passes(monkeypatch):
    """Count rows that pass softmax outside of calibrators, and rows that are validated."""
    from calibrant.assessment import _calibrated_predictions
    from calibrant.calibrators import maps
    from calibrant.predictions import _predictions
    from calibrant.predictions import validation as _validation

    counts, inside = {"softmax": 0, "validated": 0}, [0]
    check = _validation.check_rows

    def counting(rows):
        counts["softmax"] += 0 if inside[0] else rows

    def checking(logits, labels, weights):
        counts["validated"] += len(logits)
        return check(logits, labels, weights)

    def uncounted(function):
        def wrapped(*args, **kwargs):
            inside[0] += 1
            try:
                return function(*args, **kwargs)
            finally:
                inside[0] -= 1

        return wrapped

    def counted(function):
        def wrapped(z, *args, **kwargs):
            counting(len(z))
            return function(z, *args, **kwargs)

        return wrapped

    report_passes(monkeypatch, counting)
    monkeypatch.setattr(_validation, "check_rows", checking)
    for module in _predictions, _calibrated_predictions:
        monkeypatch.setattr(module, "calibrate_logits", uncounted(module.calibrate_logits))
    monkeypatch.setattr(calibrators, "fit", uncounted(calibrators.fit))
    monkeypatch.setattr(calibrators, "cross_fit", uncounted(calibrators.cross_fit))
    for module, name in itertools.product((maps, scipy.special), ("softmax", "log_softmax")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return counts


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("mode", ["in memory", "chunks", "cross-fitted"])
def test_every_row_passes_softmax_once_and_once_per_calibrator(passes, tmp_path, k, mode):
    val, test = sharp(200, 0, k=k), sharp(1000, 1, k=k)
    names = ("Temperature", "HistogramBinning", "Beta" if k == 2 else "Vector")
    test.save(tmp_path / "test.safetensors")
    passes |= {"softmax": 0, "validated": 0}
    if mode == "cross-fitted":
        assess(test, calibrators=names)
        assert 1000 * 3 <= passes["softmax"] <= 1000 * (1 + 3) + 200  # statistics of the fit are cached
        assert passes["validated"] == 0
    elif mode == "in memory":
        assess(val, test, names, choose="Temperature")
        # rows of the highest confidence pass again, for the surprisal of an error
        assert 1000 * 3 <= passes["softmax"] <= 1000 * (1 + 3) + 200
        assert passes["validated"] == 0
    else:
        assess(val, tmp_path / "test.safetensors", names, choose="Temperature")
        assert passes["validated"] == 1000
        # a row of val checks the metrics first; rows whose label HistogramBinning excludes pass again with another
        assert 1000 * (1 + 3) + 1 <= passes["softmax"] <= 1000 * (1 + 3) + 200


def test_cross_fitted_change_of_accuracy_has_an_interval():
    rng = np.random.default_rng(0)
    z = 2 * rng.normal(size=(600, 4))
    p = Predictions(z, drawn_labels(z / 3 + [1.0, -1.0, 0.0, 0.5], rng))
    result = assess(p, calibrators=["Temperature", "StructuredMatrix"])
    change = result.changes["accuracy"]
    assert result.chosen_name == "StructuredMatrix"
    assert 0 < change.low < change.difference < change.high
    unchanged = assess(p, calibrators=["Temperature"]).changes["accuracy"]
    assert unchanged.low == unchanged.difference == unchanged.high == 0


def test_calibrated_predictions_do_not_store_logits(monkeypatch):
    p, q = sharp(300, 0), sharp(200, 1)
    fitted = calibrators.StructuredMatrix.fit(p)
    in_memory = q.double().apply(fitted)
    monkeypatch.setattr("calibrant.assessment._calibrated_predictions.BLOCK_ELEMENTS", 40)
    lazy = CalibratedPredictions(q, fitted)
    assert "logits" not in vars(lazy)
    for name in "logits", "predicted", "correct", "log_likelihood":
        np.testing.assert_allclose(getattr(lazy, name), getattr(in_memory, name), rtol=1e-7, atol=1e-7)
    assert "logits" not in vars(lazy)
    assert lazy[3:5].logits.shape == (2, 4)
    result, expected = (
        measure(lazy, metrics=["classwise_ece", "auroc"]),
        measure(in_memory, metrics=["classwise_ece", "auroc"]),
    )
    for row in expected.rows:
        assert result[row.name].value == pytest.approx(row.value, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(result.classes.ece, expected.classes.ece, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(
        measure(lazy, of=2).by_score.value, measure(in_memory, of=2).by_score.value, rtol=1e-7, atol=1e-7
    )
    assert lazy.with_event(1).events.confidence.tolist() == pytest.approx(
        in_memory.with_event(1).events.confidence.tolist()
    )


def test_outcomes_of_calibrated_predictions_never_join_all_logits(monkeypatch):
    p, double = sharp(300, 0), lambda z: 2 * z
    expected = p.double().apply(double)
    monkeypatch.setattr("calibrant.assessment._calibrated_predictions.BLOCK_ELEMENTS", 40)
    monkeypatch.setattr(CalibratedPredictions, "logits", property(lambda self: pytest.fail("all logits in memory")))
    lazy = CalibratedPredictions(p, double)
    assert np.array_equal(lazy.outcomes.brier, expected.outcomes.brier)
    assert measure(lazy)["classwise_ece"].value == pytest.approx(measure(expected)["classwise_ece"].value)


def test_measuring_calibrated_predictions_maps_each_row_once():
    p, rows = sharp(2000, 1), []
    double = lambda z: rows.append(len(z)) or 2 * z  # noqa: E731
    table = measure(CalibratedPredictions(p, double))
    assert np.array_equal(table.classes.predicted, np.bincount(p.predicted, minlength=p.k))
    assert 2000 <= sum(rows) <= 2010  # the most confident rows again, for the surprisal of an error


def test_binary_map_is_called_once_per_row():
    p, rows = Predictions.from_binary_logits(np.linspace(-3, 3, 500), np.arange(500) % 3 // 2), []
    halve = lambda z: rows.append(len(z)) or z / 2  # noqa: E731
    result = assess(p[:150], p[150:], [lambda logits, labels: halve])
    assert result.measurements["<lambda>"]["auroc"].value == pytest.approx(float(metrics.auroc(p[150:])))
    assert sum(rows) == 150 + 350  # folds and evaluation


def test_default_calibrators_support_more_than_1000_classes():
    rng = np.random.default_rng(0)
    p = Predictions(2 * rng.normal(size=(40, 1001)), rng.integers(0, 1001, 40))
    result = assess(p[:20], p[20:])
    assert list(result.measurements) == ["Identity", "Temperature", "StructuredVector", "HistogramBinning", "Auto"]
    with refused("many_classes"):
        assess(p[:20], p[20:], ["StructuredMatrix"])


def test_the_event_of_one_of_two_classes_is_also_recalibrated_as_a_risk():
    assert default_calibrators(2, 1)[-3:] == ("Intercept", "Logistic", "Auto")
    assert default_calibrators(2, "top") == default_calibrators(3, 1) == DEFAULT_CALIBRATORS


def test_identity_needs_no_extra_pass(passes):
    val, test = sharp(200, 0), sharp(1000, 1)
    passes |= {"softmax": 0, "validated": 0}
    assess(val, test, ("Identity", "Temperature"), choose="Temperature")
    assert passes["softmax"] == 2 * 1000
    passes["softmax"] = 0
    measure(test)
    assert passes["softmax"] == 1000


# Refusals


def test_invalid_data_and_folds_are_refused():
    val = sharp(50, 0)
    same = Predictions(val.logits.copy(), val.labels.copy())
    with refused("same_data"):
        assess(val, same, ("Temperature",))
    with refused("num_classes"):
        assess(val, sharp(50, 0, k=3))
    with refused("folds_range", "51"):
        assess(val, calibrators=("Temperature",), folds=51)
    with refused("same_data"):
        assess(val, [sharp(50, 1), same], ("Temperature",))
    with refused("no_predictions"):
        assess(val, [], ("Temperature",))
    with refused("no_calibrators"):
        assess(val, sharp(50, 1), [])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_parameters_are_builtin_types(result, library):
    builtin = serialize_fitted(replace(result.best, temperature=pytest.importorskip(library).asarray(1.5)))
    assert builtin["temperature"] == 1.5
    assert [row["calibrator"] for row in result.parameters()] == list(FAST)


@pytest.mark.parametrize(("n", "k"), [(1, 2), (2, 2), (3, 2), (3, 5)])
def test_few_examples_can_be_assessed(n, k):
    result = assess(sharp(n, 0, k=k), sharp(n, 1, k=k))
    assert result.chosen_name in result.calibrators
    assert result.uncalibrated.n == n
    assert str(result)
    assert result.selection == ("first" if n == 1 else "held_out")


def test_progress_reports_fits_and_evaluation():
    messages: list[str] = []
    assess(sharp(50, 0), sharp(50, 1), FAST, progress=messages.append)
    assert any("Temperature" in text for text in messages)
    assert "evaluating" in messages


# Chunks


def test_chunks_give_the_same_result_as_memory():
    val, test = sharp(800, 0), sharp(3000, 1)
    in_memory = assess(val, test, FAST)
    in_chunks = assess(val, (test[i : i + 700] for i in range(0, 3000, 700)), FAST)
    assert (in_chunks.chosen_name, in_chunks.held_out_nll) == (in_memory.chosen_name, in_memory.held_out_nll)
    for actual, expected in zip(in_chunks.mistakes, in_memory.mistakes, strict=True):
        assert astuple(actual) == pytest.approx(astuple(expected), abs=1e-9)
    for name in ("accuracy", "nll", "brier", "signed_gap"):
        actual, expected = in_chunks.changes[name], in_memory.changes[name]
        for a, b in zip(vars(actual).values(), vars(expected).values(), strict=True):
            # in memory, the other labels of an unseen example are those before calibration
            assert a == (pytest.approx(b, abs=1e-4) if isinstance(b, float) else b)
    for row in in_memory.calibrated:
        assert in_chunks.calibrated[row.name].value == pytest.approx(row.value, abs=2e-3), row.name
        assert in_chunks.calibrated[row.name].low == pytest.approx(row.low, abs=2e-3, nan_ok=True), row.name
    assert in_chunks.values["Identity"]["classwise_ece"] == pytest.approx(in_memory.values["Identity"]["classwise_ece"])
    for name, column in vars(in_memory.calibrated.classes).items():
        np.testing.assert_allclose(getattr(in_chunks.calibrated.classes, name), column, rtol=1e-12, atol=1e-12)


def test_weighted_chunks_give_the_same_change():
    val, test = sharp(300, 0), sharp(600, 1)
    test = Predictions(test.logits, test.labels, np.random.default_rng(3).random(600))
    in_memory, in_chunks = assess(val, test, FAST), assess(val, [test[:250], test[250:]], FAST)
    actual, expected = in_chunks.changes["nll"], in_memory.changes["nll"]
    assert (actual.difference, actual.low, actual.p_value) == pytest.approx(
        (expected.difference, expected.low, expected.p_value)
    )


def test_metrics_that_need_every_prediction_are_refused_before_chunks_are_read():
    def pieces():
        raise AssertionError("was read")
        yield

    with refused("summary_only", "entropy"):
        assess(sharp(50, 0), pieces(), FAST, ["entropy"])


# Custom calibrators and metrics


class Half:
    """A calibrator without dataclass, certificate or weights."""

    def __init__(self, by):
        self.by = by

    @classmethod
    def fit(cls, logits, labels):
        return cls(2.0)

    def __call__(self, logits):
        return logits / self.by


def test_plain_class_is_a_calibrator():
    result = assess(sharp(300, 0), sharp(300, 1), ["Identity", Half])
    assert result.chosen_name == "Half"
    assert result.parameters()[1] == {"calibrator": "Half", "by": 2.0}
    assert result.values["Half"]["nll"] == pytest.approx(float(metrics.nll(sharp(300, 1).apply(lambda z: z / 2))))
    assert json.loads(result.json())["parameters"][1]["by"] == 2.0
    p = sharp(50, 0)
    with refused("weights_refused", "Half"):
        assess(Predictions(p.logits, p.labels, np.ones(50)), sharp(50, 1), [Half])


def test_fitted_and_saved_calibrators_are_not_refitted(tmp_path):
    val, test, other_val = sharp(300, 0), sharp(300, 1), sharp(300, 2)
    first = assess(other_val, test, ["Temperature"])
    first.save(tmp_path / "t.safetensors")
    path = str(tmp_path / "t.safetensors")
    result = assess(val, test, ["Identity", "Temperature", path, Half(3.0)])
    assert list(result.calibrators) == ["Identity", "Temperature", path, "Half"]
    assert result.values[path] == first.values["Temperature"]
    assert result.held_out_nll[path] == pytest.approx(float(metrics.nll(val.apply(first.best))))
    assert result.held_out_nll["Half"] == pytest.approx(float(metrics.nll(val.apply(Half(3.0)))))
    with refused("fitted_on_same"):
        assess(val, other_val, [path])
    with refused("fitted_on_same"):
        assess(other_val, calibrators=[path])
    flattered = assess(other_val, test, [path, "Identity"])
    assert math.isnan(flattered.held_out_nll[path])
    assert (flattered.chosen_name, flattered.selection) == ("Identity", "held_out")
    single = assess(other_val, test, [path])
    assert (single.chosen_name, single.selection) == (path, "first")


def test_custom_metric_ranks_by_its_declared_direction(tmp_path):
    @metrics.metric("coverage of two", unit="share", higher_is_better=True, meaning="the label is among two")
    def two_best(logits, labels):
        return (np.argsort(-logits)[:, :2] == labels[:, None]).any(1).mean()

    try:
        result = assess(sharp(300, 0), sharp(300, 1), ["Temperature", "ScalingBinning"], ["nll", "two_best"])
        assert json.loads(result.json())["metrics"]["two_best"] == {
            "title": "coverage of two",
            "unit": "share",
            "higher_is_better": True,
            "meaning": "the label is among two",
            "short": "",
        }
        best = max(values["two_best"] for values in result.values.values())
        assert "coverage of two (%)" in str(result)
        for name in "r.html", "r.json":
            result.save(tmp_path / name)
        report = (tmp_path / "r.html").read_text()
        for text in f"<strong>{100 * best:.2f}</strong>", "coverage of two (%)", "the label is among two":
            assert text in report
        assert json.loads((tmp_path / "r.json").read_text())["chosen"] == result.chosen_name
    finally:
        del registry.METRICS._methods["two_best"]


def test_label_shift_is_reported():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(6000, 3))
    p = Predictions(z, drawn_labels(z, rng), class_names=("cat", "dog", "eel"))
    fewer = p[2000:][(p.labels[2000:] != 1) | (rng.random(4000) < 0.2)]
    for test in (fewer, [fewer[:1000], fewer[1000:]]):
        protocol = assess(p[:2000], test, ["Identity", "Temperature"]).protocol
        assert "class 'dog': 3" in protocol
        assert "PriorShift" in protocol
    assert "PriorShift" not in assess(p[:2000], p[2000:], ["Identity", "Temperature"]).protocol
    correct = Predictions.from_confidence(rng.random(900), np.arange(900) < 300)
    assert "PriorShift" not in assess(correct[:400], correct[400:], ["Identity", "Platt"]).protocol


PEAK_MEMORY_SCRIPT = """
import numpy as np
from calibrant import Predictions, assess

def peak_mib():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

n, k, rng = 500, 20_000, np.random.default_rng(0)
val, test = (Predictions(rng.standard_normal((n, k), np.float32), rng.integers(0, k, n)) for _ in "ab")
assess(val[:20], test[:20], ["Auto"])  # imports
before = peak_mib()
assess(val, test, ["Auto"])
print((peak_mib() - before) / (n * k * 8 / 2**20))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_many_classes_need_few_copies_of_the_logits():
    """Six copies in float64; one more copy per fold would make it ten."""
    environment = {"MALLOC_MMAP_THRESHOLD_": "262144", "OMP_NUM_THREADS": "1"}  # freed memory is returned at once
    process = subprocess.run(
        [sys.executable, "-c", PEAK_MEMORY_SCRIPT],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )
    assert float(process.stdout) < 7.5


def test_rows_of_the_metrics_have_a_cell_for_every_heading_if_nothing_helps():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(3), 500)
    p = Predictions.from_probs(probs, (rng.random((500, 1)) > probs.cumsum(1)).sum(1))
    result = assess(p, calibrators=FAST)
    assert result.chosen_name == "Identity"
    assert result.changes_by_metric  # all of them 0
    tables = [part for section in result.document().sections for part in section.parts if isinstance(part, Table)]
    assert tables[0].caption == "metrics"
    for table in tables:
        assert {len(row) for row in table.rows} == {len(table.head)}


def test_calibrator_that_introduces_zero_probabilities_is_not_selected():
    """All confidences of 40 % happen to be wrong, so a bin predicts 0; its NLL stays finite until a row is correct."""
    rng = np.random.default_rng(0)

    def draw(n, least):
        level = rng.integers(0, 3, n)
        labels = rng.binomial(1, np.array([least, 0.95, 0.5])[level])
        return Predictions.from_confidence(np.array([0.4, 0.6, 0.9])[level], labels)

    val = draw(600, 0.0)
    assert math.isfinite(metrics.nll(calibrators.cross_fit("HistogramBinning", val)))  # and lowest
    result = assess(val, draw(2000, 0.01), ["Identity", "StructuredMatrix", "HistogramBinning"])
    assert result.held_out_nll["HistogramBinning"] == math.inf
    assert result.chosen_name == "StructuredMatrix"
    assert math.isfinite(result.values["StructuredMatrix"]["nll"])
