"""`measure`: rows, values, notes, formats and summaries."""

import json
import math

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused
from rendered import assert_rendered
from scipy.special import expit, softmax

import calibrant
from calibrant import Predictions, calibrators, measure, metrics, registry
from calibrant.assessment import load_checked_calibrator, summarize
from calibrant.calibrators import Temperature
from calibrant.metrics import Summary

ORDER = [
    *("accuracy", "nll", "refinement", "calibration_loss", "brier", "signed_gap", "ece", "noise_floor"),
    *("adaptive_ece", "adaptive_noise_floor", "debiased_l2", "kuiper", "omnibus", "smooth_ece", "classwise_ece"),
    *("confident_share", "confident_accuracy", "aurc"),
]


def draw(n: int, k: int, seed: int = 0, sharpened: float = 1.0) -> Predictions:
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(n, k))
    return Predictions(logits * sharpened, drawn_labels(logits, rng))


def shifted(n: int, seed: int = 0, by: float = 0.7) -> Predictions:
    """Return binary predictions whose logits are too large by a constant, so that class 1 is overestimated."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=n)
    return Predictions(np.c_[0 * q, q + by], rng.binomial(1, expit(q)))


def test_rows_have_a_fixed_order():
    assert [row.name for row in measure(draw(500, 10), fit="Temperature")] == ORDER
    binary_top = [row.name for row in measure(draw(500, 2), of="top")]
    assert binary_top == [n for n in ORDER if n not in ("refinement", "calibration_loss", "classwise_ece")]
    binary_class = [row.name for row in measure(draw(500, 2))]
    rows = [*binary_top[: binary_top.index("confident_share")], "auroc"]
    rows.insert(rows.index("brier"), "event_brier")
    assert binary_class == rows


@pytest.mark.parametrize(("k", "of", "weighted"), [(2, "top", False), (2, 1, True), (10, "top", True), (10, 3, False)])
def test_rows_equal_the_metrics(k, of, weighted):
    p = draw(800, k)
    w = np.random.default_rng(1).random(800) if weighted else None
    p = Predictions(p.logits, p.labels, w, of=of)
    for row in measure(p, of=of):
        metric = registry.METRICS[row.name]
        assert row.value == pytest.approx(float(metric(p)), rel=1e-9, abs=1e-12), row.name
        assert metric.has_interval == (not math.isnan(row.low)), row.name
        if metric.has_interval:
            expected = metric.interval(p)
            assert (row.low, row.high) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)
    assert measure(p, of=of)["kuiper"].p_value == pytest.approx(metrics.kuiper.test(p).p_value)


def test_refinement_and_calibration_equal_decompose_score():
    p = draw(400, 3, sharpened=2)
    table, parts = measure(p, fit=Temperature.fit), metrics.decompose_score(p, fit=Temperature.fit)
    assert (table["refinement"].value, table["refinement"].low) == (parts.refinement.value, parts.refinement.low)
    assert table["calibration_loss"].value == parts.calibration.value
    assert table["nll"].value == pytest.approx(parts.refinement.value + parts.calibration.value)


def test_integer_weights_equal_copies_in_every_row():
    p = draw(300, 4, sharpened=2)
    w = np.random.default_rng(0).integers(0, 4, 300)
    copies = Predictions(p.logits.repeat(w, 0), p.labels.repeat(w))
    for of in ("top", 2):
        table, expected = (
            measure(q, of=of, metrics=["mce", "skce"]) for q in (Predictions(p.logits, p.labels, w), copies)
        )
        assert [row.name for row in table] == [row.name for row in expected]
        for row in table:
            for key in ("value", "low", "high", "p_value"):
                number = getattr(expected[row.name], key)
                assert getattr(row, key) == pytest.approx(number, rel=1e-9, abs=1e-12, nan_ok=True), (row.name, key)
        for actual, expected_column in zip(vars(table.classes).values(), vars(expected.classes).values(), strict=True):
            np.testing.assert_allclose(actual, expected_column, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("k", [2, 5])
def test_single_example_can_be_measured(k):
    table = measure(Predictions(np.random.default_rng(0).normal(size=(1, k)), [1]))
    assert table.n == 1
    assert all(not math.isnan(row.value) for row in table if row.name != "auroc")
    assert "1 example" in str(table)


def test_texts_of_measurements(torch):
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(300, 3, generator=g)
    p = Predictions(3 * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1))
    assert_rendered("measured_overconfident", str(measure(p)))
    q = torch.randn(4000, generator=g.manual_seed(0), dtype=torch.float64)
    p = Predictions(torch.stack([0 * q, q + 0.7], 1), torch.bernoulli(q.sigmoid(), generator=g).long())
    assert_rendered("measured_class_1", str(measure(p)))


def test_measurement_is_indexed_by_metric():
    table = measure(draw(300, 3, sharpened=3.0))
    assert "ece" in table
    assert "none" not in table
    with pytest.raises(KeyError, match="there are accuracy"):
        table["none"]
    assert table["ece"].title == "ECE (%)"
    under = measure(draw(3000, 3, sharpened=0.3))
    assert under["signed_gap"].note == "underconfident"
    calibrated = measure(draw(3000, 3))
    assert calibrated["signed_gap"].note == ""
    assert f"{100 * calibrated['noise_floor'].high:.2f} %" in calibrated["ece"].note
    assert "worst class" in calibrated["classwise_ece"].note


def test_measurement_is_saved_in_every_format(tmp_path):
    table = measure(draw(300, 3, sharpened=3.0), metrics=["mce"])
    content = json.loads(table.json())
    assert {r["metric"]: r["value"] for r in content["results"]} == {row.name: row.value for row in table}
    assert content["results"][0]["p_value"] is None
    for name in "t.json", "t.csv", "t.html":
        table.save(tmp_path / name)
    saved, now = json.loads((tmp_path / "t.json").read_text()), json.loads(table.json())
    assert saved.pop("provenance")["data"] == now.pop("provenance")["data"]
    assert saved == now
    assert (tmp_path / "t.csv").read_text() == table.to_polars().write_csv()
    assert "<svg" in (tmp_path / "t.html").read_text()
    assert "MCE (%)" in table._repr_html_()
    with refused("suffix", ".xls"):
        table.save(tmp_path / "t.xls")


# Events


def test_binary_event_is_class_1_by_default():
    """The signed gap of class 1 is almost twice that of the top class."""
    p = shifted(4000)
    table, top = measure(p), measure(p, of="top")
    mean_probability, frequency = softmax(p.logits, 1)[:, 1].mean(), p.labels.mean()
    assert table["signed_gap"].value == pytest.approx(mean_probability - frequency)
    assert (table.mean_confidence, table.observed_frequency.value) == pytest.approx((mean_probability, frequency))
    text = str(table)
    assert all(f"{100 * share:.1f} " in text for share in (mean_probability, frequency, mean_probability - frequency))
    assert "confiden" not in text
    ratio = top["signed_gap"].value / table["signed_gap"].value
    assert ratio == pytest.approx(0.527, abs=0.06)  # in the limit, and three standard errors
    assert (top.verdict.direction, measure(p, of=0).verdict.direction) == ("over", "under")
    assert str(measure(p.with_event(1))) == text


def test_multiclass_event_is_the_top_class_unless_predictions_name_another():
    p = draw(2000, 5, sharpened=2)
    assert measure(p).event.selector == "top"
    assert measure(p.with_event(3)).event.selector == 3
    assert measure(p.with_event(3), of="top").event.selector == "top"
    assert measure(p, of=3)["signed_gap"].value == pytest.approx(
        softmax(p.logits, 1)[:, 3].mean() - (p.labels == 3).mean()
    )
    with refused("several_events"):
        measure(p, of="classes")
    with refused("unknown_event"):
        measure(p, of=5)


# Custom metrics


@pytest.fixture(params=["numpy", "torch"])
def custom_metric(request):
    """Register a custom metric without weights, for which higher is better."""
    name = "near_hit"

    library = pytest.importorskip(request.param)

    def near_hit(logits, labels, *, among=2):
        likeliest = library.topk(logits, among).indices if request.param == "torch" else np.argsort(-logits)[:, :among]
        return (likeliest == labels[:, None]).any(1).sum() / len(labels)

    metrics.metric("hits among the first", unit="share", higher_is_better=True, meaning="of two")(near_hit)
    yield name
    del registry.METRICS._methods[name]


def test_custom_metric_is_a_row_with_its_title_and_unit(custom_metric):
    p = draw(200, 4)
    table = measure(p, metrics=[custom_metric, f"{custom_metric}(among=3)", "ece"])
    assert [row.name for row in table][-2:] == [custom_metric, f"{custom_metric}(among=3)"]
    expected = (np.argsort(-p.logits)[:, :2] == p.labels[:, None]).any(1).mean()
    assert (table[custom_metric].value, table[custom_metric].text) == (pytest.approx(expected), f"{100 * expected:.2f}")
    assert table[custom_metric].title == "hits among the first (%)"
    assert table[f"{custom_metric}(among=3)"].title == f"{custom_metric}(among=3) (%)"
    assert "hits among the first (%)" in str(table)
    with refused("weights_refused", "near_hit"):
        measure(Predictions(p.logits, p.labels, np.ones(200)), metrics=[custom_metric])
    with refused("unknown_method", "'near_hit'"):
        measure(p, metrics="near_hits")


def test_annotations_of_metrics_may_be_qualified_texts():
    def own_ece(events: "calibrant._core.kernels.bins.EventStatistics"):
        return metrics.ece.function(events)

    try:
        assert metrics.metric("own error")(own_ece).takes == "statistics"
        p = draw(200, 4)
        assert measure(p, metrics=["own_ece"])["own_ece"].value == pytest.approx(float(metrics.ece(p)))
    finally:
        del registry.METRICS._methods["own_ece"]


# Summaries


@pytest.mark.parametrize(("k", "of"), [(2, 1), (4, "top")])
def test_summary_gives_the_same_rows(k, of):
    p = draw(3000, k, sharpened=2)
    in_memory, table = measure(p), measure(summarize([p[:1000], p[1000:]]))
    assert table.event == in_memory.event
    np.testing.assert_allclose(table.classes.ece, in_memory.classes.ece, rtol=1e-7, atol=1e-7)
    assert [row.name for row in table] == [row.name for row in in_memory if row.name != "auroc"]
    for row in table:
        for key in ("value", "low", "high", "p_value"):
            expected = getattr(in_memory[row.name], key)
            assert getattr(row, key) == pytest.approx(expected, abs=2e-3, nan_ok=True), (row.name, key)
    assert (table.mean_confidence, table.observed_frequency.low) == pytest.approx(
        (in_memory.mean_confidence, in_memory.observed_frequency.low), abs=1e-6
    )


def test_summary_refuses_metrics_that_need_all_predictions():
    summary = Summary.empty().add(draw(50, 3))
    with refused("summary_only", "classwise_ece"):
        measure(summary, metrics=["classwise_ece"])
    with refused("summary_only", "ece(bins=10)"):
        measure(summary, metrics=["ece(bins=10)"])
    with refused("summary_event"):
        measure(summary, of=1)
    with refused("num_bins"):
        measure(summary, bins=10)
    with refused("fit_on_summary"):
        measure(summary, fit="Temperature")
    with refused("no_predictions"):
        summarize([])


def test_loaded_calibrator_refuses_its_fitting_data(tmp_path):
    p, path = draw(300, 3, sharpened=2), tmp_path / "t.safetensors"
    calibrators.save(Temperature.fit(p[:150]), path)
    calibrate = load_checked_calibrator(path)
    measurement = measure(calibrate(p[150:]))
    assert measurement["nll"].value == pytest.approx(float(metrics.nll(p[150:].apply(Temperature.fit(p[:150])))))
    with refused("fitted_on_same"):
        calibrate(p[:150])


def test_level_and_bins_are_used():
    assert measure(draw(200, 3), level=0.5)["nll"].high < measure(draw(200, 3))["nll"].high
    assert "50 % interval" in str(measure(draw(200, 3), level=0.5))
    assert measure(draw(200, 3), bins=5)["ece"].value == pytest.approx(float(metrics.ece(draw(200, 3), bins=5)))


def test_package_exports_measure_and_assess():
    assert calibrant.measure is measure
    assert {"measure", "assess", "Predictions"} <= set(dir(calibrant))
    with pytest.raises(AttributeError, match="no attribute 'mesure'"):
        calibrant.mesure  # noqa: B018


@pytest.mark.parametrize("k", [2, 5])
@pytest.mark.parametrize("of", ["top", 1])
def test_classes_equal_metrics_tables(k, of):
    rng = np.random.default_rng(k)
    p = Predictions(2 * rng.normal(size=(300, k)), rng.integers(0, k, 300), of=of)
    table = measure(p, metrics=["classwise_ece"], of=of)
    assert table["classwise_ece"].value == pytest.approx(float(metrics.classwise_ece(p)), rel=1e-9)
    np.testing.assert_allclose(table.classes.ece, metrics.tables.classes(p).ece, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(table.classes.recall, metrics.tables.classes(p).recall, rtol=1e-7, atol=1e-7)
