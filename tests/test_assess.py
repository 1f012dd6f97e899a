"""Choosing and judging: by whom, on which data, and that the judged data has no say in the choice."""

import json
import math
import os
import subprocess
import sys
from dataclasses import astuple, replace

import pytest
import torch
from passes import report_passes
from refusals import refused

from calibrant import Predictions, assess, calibrators, losses, measure, metrics, registry
from calibrant.assessment import DEFAULT_CALIBRATORS
from calibrant.assessment._calibrated_predictions import CalibratedPredictions
from calibrant.assessment._evaluation import describe_mistakes, most_confident_errors
from calibrant.assessment._events import describe_event
from calibrant.assessment._serialize import serialize_fitted

FAST = ("Identity", "Temperature", "HistogramBinning")


def sharp(n: int, seed: int, by: float = 2.0, k: int = 4) -> Predictions:
    """Predictions whose logits are `by` times too large: temperature `by` makes them true."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return Predictions(by * logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))


def shifted(n: int, seed: int) -> Predictions:
    """Two classes of which class 1 is said .7 too likely, in logits: 62 % said, 51 % true."""
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(n, generator=g, dtype=torch.float64)
    return Predictions(torch.stack([0 * q, q + 0.7], 1), torch.bernoulli(q.sigmoid(), generator=g).long())


def weighted(p: Predictions, seed: int = 0) -> tuple[Predictions, Predictions]:
    """The same with whole weights, and with as many copies."""
    w = torch.randint(0, 4, (len(p),), generator=torch.Generator().manual_seed(seed))
    copies = Predictions(p.logits.repeat_interleave(w, 0), p.labels.repeat_interleave(w))
    return Predictions(p.logits, p.labels, w), copies


@pytest.fixture(scope="module")
def found():
    return assess(sharp(1500, 0), sharp(2000, 1), FAST)


def test_the_default_calibrators_and_metrics_exist():
    assert set(DEFAULT_CALIBRATORS) <= set(registry.CALIBRATORS)
    assert set(describe_event("top", 10).compared_metrics) <= set(registry.METRICS)


def test_finds_the_temperature_and_its_effect(found):
    assert found.chosen_name == "Temperature"
    assert found.best is found.calibrators["Temperature"]
    assert float(found.best.temperature) == pytest.approx(2, rel=0.08)
    assert found.uncalibrated["signed_gap"].low > 0
    assert found.uncalibrated["kuiper"].p_value < 1e-4
    assert found.calibrated["kuiper"].p_value > 0.01


def test_every_number_is_the_metric_s(found):
    test = sharp(2000, 1)
    for name, values in found.values.items():
        made = test.apply(found.calibrators[name])
        for metric, value in values.items():
            assert value == pytest.approx(float(getattr(metrics, metric)(made)), abs=1e-12), metric
        for row in measure(made):
            assert found.tables[name][row.name] == row
    for row in measure(test):
        assert found.uncalibrated[row.name] == row


def test_records_have_stable_keys_and_one_row_per_number(found):
    rows = found.records()
    assert {frozenset(row) for row in rows} == {
        frozenset(("calibrator", "metric", "value", "low", "high", "p_value")),
    }
    pairs = [(row["calibrator"], row["metric"]) for row in rows]
    assert len(set(pairs)) == len(pairs)
    assert {name for name, _ in pairs} == set(FAST)
    kuiper = next(row for row in rows if (row["calibrator"], row["metric"]) == ("Identity", "kuiper"))
    assert 0 <= kuiper["p_value"] < 1e-4
    assert found.to_polars().height == len(rows)


def test_json_holds_all_numbers_and_what_they_are(found):
    content = json.loads(found.json())
    assert content["chosen"] == "Temperature"
    assert content["judged"] == "that the predicted class is right"
    assert content["metrics"]["accuracy"]["higher_is_better"] is True
    assert content["metrics"]["ece"]["unit"] == "share"
    assert content["held_out_nll"] == found.held_out_nll
    assert {r["metric"] for r in content["results"]} == set(content["metrics"])
    binned = next(r for r in content["results"] if (r["calibrator"], r["metric"]) == ("HistogramBinning", "nll"))
    assert binned["value"] in ("inf", found.tables["HistogramBinning"]["nll"].value)
    assert [row["name"] for row in content["changes"]] == [row.name for row in found.changes]


def test_changes_are_paired(found):
    test = sharp(2000, 1)
    after = found.best(test.logits)
    difference = losses.cross_entropy(after, test.labels) - losses.cross_entropy(test.logits, test.labels)
    nll = found.changes["nll"]
    assert nll.difference == pytest.approx(float(difference.mean()))
    half = 1.6456164 * float(difference.std()) / math.sqrt(len(test))
    assert (nll.low, nll.high) == pytest.approx((nll.difference - half, nll.difference + half))
    assert nll.high < 0
    assert found.changes["accuracy"].low == found.changes["accuracy"].high == 0


def test_the_judged_data_has_no_say_in_the_choice():
    """Judge on data where the choice is the worst: it stays."""
    val = sharp(1500, 0, by=2)
    found = assess(val, sharp(1500, 2, by=0.5), FAST)
    assert found.chosen_name == "Temperature"
    assert found.values["Temperature"]["nll"] > found.values["Identity"]["nll"]
    assert found.held_out_nll == assess(val, sharp(100, 3), FAST).held_out_nll


def test_what_is_asked_for_is_chosen_and_fitted():
    found = assess(sharp(300, 0), sharp(300, 1), ("Identity",), choose="Temperature( criterion = 'ece' )")
    assert found.chosen_name == "Temperature(criterion='ece')"
    assert found.held_out_nll == {}
    assert list(found.calibrators) == ["Identity", found.chosen_name]


def test_an_honest_model_is_left_nearly_alone():
    found = assess(sharp(1500, 0, by=1), sharp(1500, 1, by=1), FAST)
    assert found.uncalibrated["kuiper"].p_value > 0.05
    assert abs(found.changes["nll"].difference) < 0.005


def test_auto_is_scored_by_its_own_held_out_folds():
    val = sharp(400, 0)
    found = assess(val, sharp(200, 1), ("Identity", "Auto"))
    assert (
        found.held_out_nll["Auto"]
        == found.calibrators["Auto"].out_of_fold
        < min(found.calibrators["Auto"].held_out) + 0.01
    )
    honest = metrics.nll(calibrators.cross_fit("Auto", val))
    assert found.held_out_nll["Auto"] == pytest.approx(float(honest), abs=0.01)


def test_without_other_data_every_example_is_judged_out_of_fold():
    predictions = sharp(600, 0)
    found = assess(predictions, calibrators=FAST, folds=4)
    assert found.chosen_name == "Temperature"
    assert "Cross-fitted in 4 folds" in found.protocol
    assert found.held_out_nll["Temperature"] == pytest.approx(found.values["Temperature"]["nll"])
    for name in "Temperature", "HistogramBinning":
        in_sample = metrics.nll(predictions.apply(found.calibrators[name]))
        assert found.values[name]["nll"] > float(in_sample)


def test_mistakes_are_the_wrong_predictions_of_the_highest_confidence():
    before = sharp(500, 5)
    shown = describe_mistakes(before, before.apply(lambda z: z / 2), most_confident_errors(before, 7))
    confidence, predicted = before.logits.softmax(-1).max(1)
    wrong = {i: float(confidence[i]) for i in range(500) if predicted[i] != before.labels[i]}
    assert [m.row for m in shown] == sorted(wrong, key=wrong.__getitem__, reverse=True)[:7]
    for m in shown:
        assert (m.label, m.predicted) == (int(before.labels[m.row]), int(predicted[m.row]))
        assert m.probability == pytest.approx(wrong[m.row])
        assert m.calibrated_probability == pytest.approx(float((before.logits[m.row] / 2).softmax(-1)[m.predicted]))


def test_mistakes_that_a_map_no_longer_makes_are_said_their_new_probability():
    before = Predictions([[2.0, 1.0, 0.0], [0.0, 1.0, 0.0]], [1, 1])
    after = before.apply(lambda z: torch.tensor([[0.0, 3.0, -math.inf], [0.0, 1.0, 0.0]]))
    (only,) = describe_mistakes(before, after, most_confident_errors(before))
    assert only.calibrated_probability == pytest.approx(1 / (1 + math.exp(3)))


def test_mistakes_of_certain_predictions_are_ordered_by_their_loss():
    before = Predictions(torch.tensor([[100.0, 0, 0], [200.0, 0, 0], [0, 3.0, 0]]), [1, 1, 1])
    assert most_confident_errors(before).tolist() == [1, 0]


# Two classes


def test_a_shift_of_two_classes_is_seen_before_and_after():
    """Temperature scaling leaves an error that only the probabilities of class 1 show."""
    val, test = shifted(1200, 0), shifted(1200, 1)
    found = assess(val, test, ("Identity", "Temperature"), choose="Temperature")
    assert found.calibrated["kuiper"].p_value < 1e-4
    assert found.uncalibrated.verdict.direction == "over"
    assert "class 1" in str(found)
    old = assess(val, test, ("Identity", "Temperature"), of="top", choose="Temperature")
    assert old.calibrated.verdict.status == "no_evidence"
    assert "class 1" not in str(old)
    assert old.tables["Temperature"]["classwise_ece"].value > 0.05


def test_a_calibrator_by_a_criterion_is_fitted_to_what_is_judged():
    val, test = shifted(500, 0), shifted(500, 1)
    name = "Temperature(criterion='ece')"
    one, top = (float(assess(val, test, [name], of=of).best.temperature) for of in (None, "top"))
    assert one == float(calibrators.fit(name, val.with_event(1)).temperature)
    assert top == float(calibrators.fit(name, val).temperature)
    assert one != top


# Weights


def test_whole_weights_are_copies_everywhere():
    """The fit, the choice where nothing is folded, the tables, the comparison of means."""
    (val, vals), (test, tests) = weighted(sharp(300, 0)), weighted(sharp(400, 1), 1)
    found, copied = (
        assess(*p, ("Identity", "Temperature"), choose="Temperature") for p in ((val, test), (vals, tests))
    )
    assert float(found.best.temperature) == pytest.approx(float(copied.best.temperature), rel=1e-9)
    for name, table in copied.tables.items():
        for row in table:
            for key in ("value", "low", "high", "p_value"):
                expected = pytest.approx(getattr(row, key), rel=1e-7, abs=1e-9, nan_ok=True)
                assert getattr(found.tables[name][row.name], key) == expected, (name, row.name, key)
    for name in "accuracy", "nll", "brier", "signed_gap":
        for key in "difference", "low", "high", "p_value":
            number = getattr(copied.changes[name], key)
            assert getattr(found.changes[name], key) == pytest.approx(number, rel=1e-6, abs=1e-9), (name, key)
    assert found.values["Identity"]["nll"] != pytest.approx(float(metrics.nll(test.logits, test.labels)))


def test_held_out_likelihoods_count_the_weights():
    p = sharp(300, 0)
    w = torch.where(p.labels == 0, 5.0, 0.2)
    val = Predictions(p.logits, p.labels, w)
    found = assess(val, sharp(100, 1), ("Identity", "Temperature"))
    assert found.held_out_nll["Identity"] == pytest.approx(float(metrics.nll(val)))
    assert found.held_out_nll["Identity"] != pytest.approx(float(metrics.nll(p)), rel=1e-3)
    honest = calibrators.cross_fit("Temperature", val)
    assert found.held_out_nll["Temperature"] == pytest.approx(float(metrics.nll(honest)))


# One pass


@pytest.fixture
def passes(monkeypatch):
    """Rows sent through softmax, outside of what calibrators do themselves, and through the check at the door."""
    from calibrant import _validation
    from calibrant.assessment import _calibrated_predictions
    from calibrant.predictions import _predictions

    counts, inside = {"softmax": 0, "door": 0}, [0]
    check = _validation.check_rows

    def counting(rows):
        counts["softmax"] += 0 if inside[0] else rows

    def checking(logits, labels, weights):
        counts["door"] += len(logits)
        return check(logits, labels, weights)

    def quiet(function):
        def called(*args, **kwargs):
            inside[0] += 1
            try:
                return function(*args, **kwargs)
            finally:
                inside[0] -= 1

        return called

    def by_torch(name):
        function = getattr(torch.Tensor, name)

        def called(self, *args, **kwargs):
            counts["softmax"] += 0 if inside[0] else len(self)
            return function(self, *args, **kwargs)

        return called

    report_passes(monkeypatch, counting)
    monkeypatch.setattr(_validation, "check_rows", checking)
    for module in _predictions, _calibrated_predictions:
        monkeypatch.setattr(module, "map_logits", quiet(module.map_logits))
    monkeypatch.setattr(calibrators, "fit", quiet(calibrators.fit))
    monkeypatch.setattr(calibrators, "cross_fit", quiet(calibrators.cross_fit))
    for name in "softmax", "log_softmax", "logsumexp":
        monkeypatch.setattr(torch.Tensor, name, by_torch(name))
    return counts


@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("how", ["whole", "pieces", "cross-fitted"])
def test_every_row_passes_softmax_once_and_once_per_calibrator(passes, tmp_path, k, how):
    val, test = sharp(200, 0, k=k), sharp(1000, 1, k=k)
    names = ("Temperature", "HistogramBinning", "Beta" if k == 2 else "Vector")
    test.save(tmp_path / "test.safetensors")
    passes |= {"softmax": 0, "door": 0}
    if how == "cross-fitted":
        assess(test, calibrators=names)
        assert 1000 * 3 <= passes["softmax"] <= 1000 * (1 + 3)  # what the fit looked at already is known
        assert passes["door"] == 0
    elif how == "whole":
        assess(val, test, names, choose="Temperature")
        assert 1000 * 3 <= passes["softmax"] <= 1000 * (1 + 3)  # what the fit looked at already is known
        assert passes["door"] == 0
    else:
        assess(val, tmp_path / "test.safetensors", names, choose="Temperature")
        assert passes == {"softmax": 1000 * (1 + 3) + 1, "door": 1000}  # one row of val, to try the metrics on


def test_what_a_map_makes_is_made_anew_and_never_kept(monkeypatch):
    p, q = sharp(300, 0), sharp(200, 1)
    fitted = calibrators.StructuredMatrix.fit(p)
    whole = q.double().apply(fitted)
    monkeypatch.setattr("calibrant.assessment._calibrated_predictions.BLOCK_ELEMENTS", 40)
    later = CalibratedPredictions(q, fitted)
    assert "logits" not in vars(later)
    for name in "logits", "predicted", "correct", "log_likelihood":
        torch.testing.assert_close(getattr(later, name), getattr(whole, name))
    assert "logits" not in vars(later)
    assert later[3:5].logits.shape == (2, 4)
    found, expected = (
        measure(later, metrics=["classwise_ece", "auroc"]),
        measure(whole, metrics=["classwise_ece", "auroc"]),
    )
    for row in expected.rows:
        assert found[row.name].value == pytest.approx(row.value, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(found.classes.ece, expected.classes.ece)
    torch.testing.assert_close(measure(later, of=2).ties.value, measure(whole, of=2).ties.value)
    assert later.with_event(1).events.confidence.tolist() == pytest.approx(
        whole.with_event(1).events.confidence.tolist()
    )


def test_tables_of_what_a_map_makes_map_every_row_once():
    p, rows = sharp(2000, 1), []
    double = lambda z: rows.append(len(z)) or 2 * z  # noqa: E731
    table = measure(CalibratedPredictions(p, double))
    assert torch.equal(table.classes.predicted, p.predicted.bincount(minlength=p.k))
    assert sum(rows) == 2000


def test_of_two_classes_a_map_is_asked_once_for_every_row_whatever_is_measured():
    p, rows = Predictions.from_binary_logits(torch.linspace(-3, 3, 500), torch.arange(500) % 3 // 2), []
    halve = lambda z: rows.append(len(z)) or z / 2  # noqa: E731
    found = assess(p[:100], p[100:], [lambda logits, labels: halve])
    assert found.tables["<lambda>"]["auroc"].value == pytest.approx(float(metrics.auroc(p[100:])))
    assert sum(rows) == 100 + 400 + 20  # held out by folds, judged, and the worst mistakes that are shown


def test_default_calibrators_take_more_than_1000_classes():
    g = torch.Generator().manual_seed(0)
    p = Predictions(2 * torch.randn(80, 1001, generator=g), torch.randint(1001, (80,), generator=g))
    found = assess(p[:40], p[40:])
    assert list(found.tables) == ["Identity", "Temperature", "StructuredVector", "HistogramBinning", "Auto"]
    with refused("many_classes"):
        assess(p[:40], p[40:], ["StructuredMatrix"])


def test_identity_costs_no_pass_of_its_own(passes):
    val, test = sharp(200, 0), sharp(1000, 1)
    passes |= {"softmax": 0, "door": 0}
    assess(val, test, ("Identity", "Temperature"), choose="Temperature")
    assert passes["softmax"] == 2 * 1000
    passes["softmax"] = 0
    measure(test)
    assert passes["softmax"] == 1000


# Refusals


def test_same_data_other_classes_and_too_many_folds_are_refused():
    val = sharp(50, 0)
    same = Predictions(val.logits.clone(), val.labels.clone())
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


def test_learned_numbers_are_plain(found):
    plain = serialize_fitted(replace(found.best, temperature=torch.tensor(1.5)))
    assert plain["temperature"] == 1.5
    assert [row["calibrator"] for row in found.parameters()] == list(FAST)


@pytest.mark.parametrize(("n", "k"), [(1, 2), (2, 2), (3, 2), (3, 5)])
def test_few_examples_are_enough(n, k):
    found = assess(sharp(n, 0, k=k), sharp(n, 1, k=k))
    assert found.chosen_name in found.calibrators
    assert found.uncalibrated.n == n
    assert str(found)


def test_progress_is_told():
    told: list[str] = []
    assess(sharp(50, 0), sharp(50, 1), FAST, progress=told.append)
    assert any("Temperature" in text for text in told)
    assert told[-1] == "judging"


# Pieces


def test_pieces_tell_the_same_as_the_whole():
    val, test = sharp(800, 0), sharp(3000, 1)
    whole = assess(val, test, FAST)
    parts = assess(val, (test[i : i + 700] for i in range(0, 3000, 700)), FAST)
    assert (parts.chosen_name, parts.held_out_nll) == (whole.chosen_name, whole.held_out_nll)
    for one, other in zip(parts.mistakes, whole.mistakes, strict=True):
        assert astuple(one) == pytest.approx(astuple(other), abs=1e-9)
    for name in ("accuracy", "nll", "brier", "signed_gap"):
        one, other = parts.changes[name], whole.changes[name]
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True):
            assert a == (pytest.approx(b, abs=1e-7) if isinstance(b, float) else b)
    for row in whole.calibrated:
        assert parts.calibrated[row.name].value == pytest.approx(row.value, abs=2e-3), row.name
        assert parts.calibrated[row.name].low == pytest.approx(row.low, abs=2e-3, nan_ok=True), row.name
    assert parts.values["Identity"]["classwise_ece"] == pytest.approx(whole.values["Identity"]["classwise_ece"])
    for name, column in vars(whole.calibrated.classes).items():
        torch.testing.assert_close(getattr(parts.calibrated.classes, name), column, rtol=1e-12, atol=1e-12)


def test_weighted_pieces_tell_the_same_change():
    val, test = sharp(300, 0), sharp(600, 1)
    w = torch.rand(600, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    test = Predictions(test.logits, test.labels, w)
    whole, parts = assess(val, test, FAST), assess(val, [test[:250], test[250:]], FAST)
    one, other = parts.changes["nll"], whole.changes["nll"]
    assert (one.difference, one.low, one.p_value) == pytest.approx((other.difference, other.low, other.p_value))


def test_metrics_that_need_every_prediction_are_refused_before_chunks_are_read():
    def pieces():
        raise AssertionError("was read")
        yield

    with refused("summary_only", "entropy"):
        assess(sharp(50, 0), pieces(), FAST, ["entropy"])


# One's own


class Half:
    """A plain class: no dataclass, no certificate, no weights."""

    def __init__(self, by):
        self.by = by

    @classmethod
    def fit(cls, logits, labels):
        return cls(2.0)

    def __call__(self, logits):
        return logits / self.by


def test_a_plain_class_is_a_calibrator():
    found = assess(sharp(300, 0), sharp(300, 1), ["Identity", Half])
    assert found.chosen_name == "Half"
    assert found.parameters()[1] == {"calibrator": "Half", "by": 2.0}
    assert found.values["Half"]["nll"] == pytest.approx(float(metrics.nll(sharp(300, 1).apply(lambda z: z / 2))))
    assert json.loads(found.json())["parameters"][1]["by"] == 2.0
    p = sharp(50, 0)
    with refused("weights_refused", "Half"):
        assess(Predictions(p.logits, p.labels, torch.ones(50)), sharp(50, 1), [Half])


def test_fitted_and_saved_calibrators_are_not_refitted(tmp_path):
    val, test, other = sharp(300, 0), sharp(300, 1), sharp(300, 2)
    first = assess(other, test, ["Temperature"])
    first.save(tmp_path / "t.safetensors")
    path = str(tmp_path / "t.safetensors")
    found = assess(val, test, ["Identity", "Temperature", path, Half(3.0)])
    assert list(found.calibrators) == ["Identity", "Temperature", path, "Half"]
    assert found.values[path] == first.values["Temperature"]
    assert found.held_out_nll[path] == pytest.approx(float(metrics.nll(val.apply(first.best))))
    assert found.held_out_nll["Half"] == pytest.approx(float(metrics.nll(val.apply(Half(3.0)))))
    with refused("fitted_on_same"):
        assess(val, other, [path])
    with refused("fitted_on_same"):
        assess(other, calibrators=[path])
    flattered = assess(other, test, [path, "Identity"])
    assert math.isnan(flattered.held_out_nll[path])
    assert flattered.chosen_name == "Identity"


def test_a_plain_class_is_saved_and_read_back(tmp_path):
    registry.CALIBRATORS.register(Half)
    try:
        found = assess(sharp(300, 0), sharp(300, 1), ["Half"])
        found.save(tmp_path / "h.safetensors")
        assert calibrators.load(tmp_path / "h.safetensors").by == 2.0
        with refused("fitted_on_same"):
            assess(sharp(300, 5), sharp(300, 0), [str(tmp_path / "h.safetensors")])
    finally:
        del registry.CALIBRATORS._methods["Half"]


def test_ones_own_metric_ranks_as_it_was_declared(tmp_path):
    @metrics.metric("coverage of two", unit="share", higher_is_better=True, meaning="the label is among two")
    def two_best(logits, labels):
        return (logits.topk(2).indices == labels[:, None]).any(1).double().mean()

    try:
        found = assess(sharp(300, 0), sharp(300, 1), ["Temperature", "ScalingBinning"], ["nll", "two_best"])
        assert json.loads(found.json())["metrics"]["two_best"] == {
            "title": "coverage of two",
            "unit": "share",
            "higher_is_better": True,
            "meaning": "the label is among two",
            "short": "",
            "plain": "",
        }
        best = max(values["two_best"] for values in found.values.values())
        assert "coverage of two (%)" in str(found)
        for name in "r.html", "r.json":
            found.save(tmp_path / name)
        report = (tmp_path / "r.html").read_text()
        for text in f"<strong>{100 * best:.2f}</strong>", "coverage of two (%)", "the label is among two":
            assert text in report
        assert json.loads((tmp_path / "r.json").read_text())["chosen"] == found.chosen_name
    finally:
        del registry.METRICS._methods["two_best"]


def test_other_class_shares_are_told():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(6000, 3, generator=g)
    y = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    p = Predictions(z, y, class_names=("cat", "dog", "eel"))
    fewer = p[2000:][(y[2000:] != 1) | (torch.rand(4000, generator=g) < 0.2)]
    for test in (fewer, [fewer[:1000], fewer[1000:]]):
        how = assess(p[:2000], test, ["Identity", "Temperature"]).protocol
        assert "(class 'dog': 3" in how
        assert "PriorShift" in how
    assert "PriorShift" not in assess(p[:2000], p[2000:], ["Identity", "Temperature"]).protocol
    correct = Predictions.from_confidence(torch.rand(900, generator=g), torch.arange(900) < 300)
    assert "PriorShift" not in assess(correct[:400], correct[400:], ["Identity", "Platt"]).protocol


WIDE = """
import torch
from calibrant import Predictions, assess

def most():
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

n, k, g = 500, 20_000, torch.Generator().manual_seed(0)
val, test = (Predictions(torch.randn(n, k, generator=g), torch.randint(0, k, (n,), generator=g)) for _ in "ab")
assess(val[:20], test[:20], ["Auto"])  # imports
before = most()
assess(val, test, ["Auto"])
print((most() - before) / (n * k * 8 / 2**20))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="what a process took at most is read from Linux's /proc")
def test_many_classes_take_the_memory_of_a_few_copies_of_the_logits():
    """Six in float64, of which some are blocks; a copy more of every fold would make it ten."""
    plain = {"MALLOC_MMAP_THRESHOLD_": "262144", "OMP_NUM_THREADS": "1"}  # what is freed goes back at once
    done = subprocess.run(
        [sys.executable, "-c", WIDE], check=True, capture_output=True, text=True, env=os.environ | plain
    )
    assert float(done.stdout) < 7.5


def test_who_says_0_is_not_chosen_by_luck():
    """Of stated confidences, all of 40 % happened to be wrong: a bin says 0, and NLL is finite until one is right."""
    g = torch.Generator().manual_seed(0)

    def draw(n, least):
        said = torch.tensor([0.4, 0.6, 0.9])[torch.randint(0, 3, (n,), generator=g)]
        true = torch.where(said == 0.4, least, torch.where(said == 0.6, 0.95, 0.5))
        return Predictions.from_confidence(said, (torch.rand(n, generator=g) < true).long())

    val = draw(600, 0.0)
    assert math.isfinite(metrics.nll(calibrators.cross_fit("HistogramBinning", val)))  # and less than that of any other
    found = assess(val, draw(2000, 0.01), ["Identity", "StructuredMatrix", "HistogramBinning"])
    assert found.held_out_nll["HistogramBinning"] == math.inf
    assert found.chosen_name == "StructuredMatrix"
    assert math.isfinite(found.values["StructuredMatrix"]["nll"])
