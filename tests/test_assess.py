"""Choosing and judging: by whom, on which data, and that the judged data has no say in the choice."""

import math
from dataclasses import astuple, replace

import pytest
import torch

from calibrant import InputError, Predictions, calibrators, losses, metrics
from calibrant.assess import CALIBRATORS, assess, cross_assess, learned, mistakes, stream_assess

FAST = ("Identity", "Temperature", "HistogramBinning")


def sharp(n: int, seed: int, by: float = 2.0, k: int = 4) -> Predictions:
    """Predictions whose logits are `by` times too large: temperature `by` makes them true."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return Predictions(by * logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))


@pytest.fixture(scope="module")
def found():
    return assess(sharp(1500, 0), sharp(2000, 1), FAST)


def test_the_default_calibrators_exist():
    assert set(CALIBRATORS) <= set(calibrators.__all__)


def test_finds_the_temperature_and_its_effect(found):
    assert found.chosen == "Temperature"
    assert float(found.fitted["Temperature"].temperature) == pytest.approx(2, rel=0.08)
    assert found.before["signed_gap"].low > 0
    assert found.before["kuiper"].p_value < 1e-4
    assert found.after["kuiper"].p_value > 0.01


def test_every_number_is_the_metric_s(found):
    test = sharp(2000, 1)
    for name, values in found.values.items():
        logits = found.fitted[name](test.logits)
        for metric, value in values.items():
            assert value == pytest.approx(float(getattr(metrics, metric)(logits, test.labels)), abs=1e-12), metric
    for row in metrics.assess(test):
        assert found.before[row.name] == row


def test_rows_have_stable_keys_and_one_row_per_number(found):
    rows = found.rows()
    assert {frozenset(row) for row in rows} == {
        frozenset(("calibrator", "metric", "value", "low", "high", "p_value")),
    }
    pairs = [(row["calibrator"], row["metric"]) for row in rows]
    assert len(set(pairs)) == len(pairs)
    assert {name for name, _ in pairs} == set(FAST)
    kuiper = next(row for row in rows if (row["calibrator"], row["metric"]) == ("Identity", "kuiper"))
    assert 0 <= kuiper["p_value"] < 1e-4


def test_changes_are_paired(found):
    test = sharp(2000, 1)
    after = found.fitted["Temperature"](test.logits)
    difference = losses.cross_entropy(after, test.labels) - losses.cross_entropy(test.logits, test.labels)
    nll = found.changes["nll"]
    assert nll.difference == pytest.approx(float(difference.mean()))
    half = 1.6448536 * float(difference.std()) / math.sqrt(len(test))
    assert (nll.low, nll.high) == pytest.approx((nll.difference - half, nll.difference + half))
    assert nll.high < 0
    assert found.changes["accuracy"].low == found.changes["accuracy"].high == 0


def test_the_judged_data_has_no_say_in_the_choice():
    """Judge on data where the choice is the worst: it stays."""
    val = sharp(1500, 0, by=2)
    found = assess(val, sharp(1500, 2, by=0.5), FAST)
    assert found.chosen == "Temperature"
    assert found.values["Temperature"]["nll"] > found.values["Identity"]["nll"]
    assert found.held_out == assess(val, sharp(100, 3), FAST).held_out


def test_what_is_asked_for_is_chosen_and_fitted():
    found = assess(sharp(300, 0), sharp(300, 1), ("Identity",), choose="Temperature( criterion = 'ece' )")
    assert found.chosen == "Temperature(criterion='ece')"
    assert found.held_out == {}
    assert list(found.fitted) == ["Identity", found.chosen]


def test_an_honest_model_is_left_nearly_alone():
    found = assess(sharp(1500, 0, by=1), sharp(1500, 1, by=1), FAST)
    assert found.before["kuiper"].p_value > 0.05
    assert abs(found.changes["nll"].difference) < 0.005


def test_auto_is_scored_by_its_own_held_out_folds():
    val = sharp(400, 0)
    found = assess(val, sharp(200, 1), ("Identity", "Auto"))
    assert found.held_out["Auto"] == min(found.fitted["Auto"].held_out)
    honest = metrics.nll(*calibrators.cross_fit("Auto", val))
    assert found.held_out["Auto"] == pytest.approx(float(honest), abs=0.01)


def test_cross_assess_judges_every_example_out_of_fold():
    predictions = sharp(600, 0)
    found = cross_assess(predictions, 4, FAST)
    assert found.chosen == "Temperature"
    assert found.held_out["Temperature"] == pytest.approx(found.values["Temperature"]["nll"])
    in_sample = metrics.nll(found.fitted["Temperature"](predictions.logits), predictions.labels)
    assert found.values["Temperature"]["nll"] > float(in_sample)
    binned = metrics.nll(found.fitted["HistogramBinning"](predictions.logits), predictions.labels)
    assert found.values["HistogramBinning"]["nll"] > float(binned)


def test_mistakes_are_the_wrong_predictions_of_the_highest_confidence():
    before = sharp(500, 5)
    shown = mistakes(before, before.logits / 2, 7)
    confidence, predicted = before.logits.softmax(-1).max(1)
    wrong = {i: float(confidence[i]) for i in range(500) if predicted[i] != before.labels[i]}
    assert [m.row for m in shown] == sorted(wrong, key=wrong.__getitem__, reverse=True)[:7]
    for m in shown:
        assert (m.label, m.predicted) == (int(before.labels[m.row]), int(predicted[m.row]))
        assert m.before == pytest.approx(wrong[m.row])
        assert m.after == pytest.approx(float((before.logits[m.row] / 2).softmax(-1)[m.predicted]))


def test_mistakes_of_certain_predictions_are_ordered_by_their_loss():
    before = Predictions(torch.tensor([[100.0, 0, 0], [200.0, 0, 0], [0, 3.0, 0]]), [1, 1, 1])
    assert [m.row for m in mistakes(before, before.logits)] == [1, 0]


def test_weights_are_heard():
    val, test = sharp(400, 0), sharp(400, 1)
    w = torch.rand(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weighted = Predictions(test.logits, test.labels, w)
    found = assess(val, weighted, FAST)
    assert found.values["Identity"]["nll"] == pytest.approx(float(metrics.nll(*test, weights=w)))
    assert found.values["Identity"]["nll"] != pytest.approx(float(metrics.nll(*test)))


def test_same_data_other_classes_and_too_many_folds_are_refused():
    val = sharp(50, 0)
    with pytest.raises(InputError, match="same data is refused"):
        assess(val, replace_logits(val))
    with pytest.raises(InputError, match="the same classes, got 4 and 3"):
        assess(val, sharp(50, 0, k=3))
    with pytest.raises(InputError, match=r"folds must lie in 2 \.\. 50, the number of examples, got 51"):
        cross_assess(val, 51)


def replace_logits(p: Predictions) -> Predictions:
    return Predictions(p.logits.clone(), p.labels.clone())


def test_learned_numbers_are_plain(found):
    plain = learned(replace(found.fitted["Temperature"], temperature=torch.tensor(1.5)))
    assert plain["temperature"] == 1.5
    assert [row["calibrator"] for row in found.parameters()] == list(FAST)


@pytest.mark.parametrize(("n", "k"), [(1, 2), (2, 2), (3, 2), (3, 5)])
def test_few_examples_are_enough(n, k):
    found = assess(sharp(n, 0, k=k), sharp(n, 1, k=k))
    assert found.chosen in found.fitted
    assert found.before.n == n


def test_progress_is_told():
    told: list[str] = []
    assess(sharp(50, 0), sharp(50, 1), FAST, progress=told.append)
    assert any("Temperature" in text for text in told)
    assert told[-1] == "judging"


def test_pieces_tell_the_same_as_the_whole():
    val, test = sharp(800, 0), sharp(3000, 1)
    whole = assess(val, test, FAST)
    parts = stream_assess(val, (test[i : i + 700] for i in range(0, 3000, 700)), FAST)
    assert (parts.chosen, parts.held_out) == (whole.chosen, whole.held_out)
    for one, other in zip(parts.mistakes, whole.mistakes, strict=True):
        assert astuple(one) == pytest.approx(astuple(other), abs=1e-9)
    for name in ("accuracy", "nll", "brier", "signed_gap"):
        one, other = parts.changes[name], whole.changes[name]
        for a, b in zip(vars(one).values(), vars(other).values(), strict=True):
            assert a == (pytest.approx(b, abs=1e-7) if isinstance(b, float) else b)
    for row in whole.after:
        if row.name != "classwise_ece":
            assert parts.after[row.name].value == pytest.approx(row.value, abs=2e-3), row.name
            assert parts.after[row.name].low == pytest.approx(row.low, abs=2e-3, nan_ok=True), row.name
    assert "classwise_ece" not in parts.values["Identity"]


def test_weighted_pieces_tell_the_same_change():
    val, test = sharp(300, 0), sharp(600, 1)
    w = torch.rand(600, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    test = Predictions(test.logits, test.labels, w)
    whole, parts = assess(val, test, FAST), stream_assess(val, [test[:250], test[250:]], FAST)
    one, other = parts.changes["nll"], whole.changes["nll"]
    assert (one.difference, one.low, one.p_value) == pytest.approx((other.difference, other.low, other.p_value))


def test_a_piece_that_was_fitted_on_is_refused():
    val = sharp(50, 0)
    with pytest.raises(InputError, match="same data is refused"):
        stream_assess(val, [sharp(50, 1), replace_logits(val)], FAST)
