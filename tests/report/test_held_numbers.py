"""What a page holds for its script, and its words for who is not in the field, without any browser."""

import json
import math
import re
from typing import Any

import pytest
import torch
from rendered import assert_rendered

from calibrant import Predictions, assess, calibrators, measure, metrics
from calibrant.assessment import _controls, expert_text, lay_text
from calibrant.assessment._assess import ACCURACY_PRESERVING_AUTO
from calibrant.assessment._table_cells import explain_terms
from calibrant.assessment._temperature_grid import slider_temperatures
from calibrant.metrics import Metric, Summary
from calibrant.registry import CALIBRATORS, LOSSES, METRICS
from calibrant.report import INFINITE_MEAN_EXPLANATION


def drawn(n: int, seed: int, k: int = 3, by: float = 2.0, shift: float = 0.0, **more: Any) -> Predictions:
    """Predictions `by` times too sure; `shift` makes class 0 likelier than the logits say."""
    g = torch.Generator().manual_seed(seed)
    z = 1.5 * torch.randn(n, k, generator=g, dtype=torch.float64)
    true = z + shift * torch.nn.functional.one_hot(torch.tensor(0), k)
    return Predictions(by * z, torch.multinomial(true.softmax(-1), 1, generator=g).squeeze(1), **more)


def held(html: str) -> Any:
    """The numbers of the one control that a text holds."""
    (text,) = re.findall(r'<script type="application/json">(.*?)</script>', html)
    return json.loads(text)


@pytest.mark.parametrize(("of", "weighted"), [("top", False), (1, True)])
def test_every_step_of_the_temperature_is_the_metric_there(of, weighted):
    w = torch.arange(200) % 3 if weighted else None
    p = drawn(200, 0, weights=w)
    shown = held(_controls.measurement_temperature_control(measure(p, of=of)))
    assert len(shown["steps"]) == 49
    assert shown["steps"][shown["one"]]["name"] == "T = 1.00"
    for i in (0, 20, 24, 37, 48):
        t = 2 ** ((i - 24) / 12)
        made, step = (
            p.apply(calibrators.Temperature(torch.tensor(t, dtype=torch.float64))).with_event(of),
            shown["steps"][i],
        )
        (ece, chance), (nll, _), (said, _), (happened, _) = step["tiles"]
        floor, bins = metrics.noise_floor.interval(made), metrics.tables.bins(made)
        assert ece == f"{100 * float(metrics.ece(made)):.2f} %"
        assert chance == f"by chance {100 * floor.value:.2f} %, up to {100 * floor.high:.2f} %"
        assert nll == f"{float(metrics.nll(made)):.4f}"
        full = bins.count > 0
        assert [cell[0] for cell in step["cells"]] == full.nonzero().squeeze(1).tolist()
        assert [cell[1] for cell in step["cells"]] == bins.count[full].tolist()
        assert [cell[3] / 1e6 for cell in step["cells"]] == pytest.approx(bins.accuracy[full].tolist(), abs=6e-7)
        assert float(said.split()[0]) - float(happened.split()[0]) == pytest.approx(
            100 * float(metrics.signed_gap(made)), abs=0.11
        )


def test_fewer_temperatures_of_more_logits_and_none_of_too_many():
    assert [len(slider_temperatures(n, 10**6)) for n in (1_000, 30_000, 60_000, 100_000)] == [49, 25, 13, 0]
    assert all(1.0 in slider_temperatures(n, 10**6) for n in (1_000, 30_000, 60_000))


def test_of_predictions_in_pieces_there_is_a_switch_and_no_slider():
    p = drawn(300, 0)
    assert _controls.measurement_temperature_control(measure(Summary.from_predictions(p))) == ""
    found = assess(p[:150], [p[150:200], p[200:]], ("Identity", "Temperature"))
    shown = held(_controls.assessment_temperature_control(found))
    assert shown["steps"] == []
    assert [one["name"] for one in shown["maps"]] == ["as they came", "Temperature"]
    assert "read in pieces" in shown["note"]


def test_the_page_holds_as_much_of_any_number_of_rows():
    def size(n: int) -> int:
        measured = measure(drawn(n, 1))
        parts = _controls.measurement_temperature_control(measured), _controls.threshold_control({"": measured})
        return sum(map(len, parts)) + len(_controls.class_control({"": measured}, [measured.classes]))

    assert size(4_000) < 1.2 * size(1_000)


def test_thresholds_have_the_intervals_of_shares():
    p = drawn(500, 2)
    said, right = p.events.confidence, p.events.outcome
    found = metrics.tables.thresholds(p, at=[0.0, 0.7, 0.999999], level=0.8)
    for i, c in enumerate((0.0, 0.7)):
        there = right[said >= c]
        room = metrics.wilson(float(there.mean()), float(len(there)), 0.8)
        assert (float(found.low[i]), float(found.high[i])) == pytest.approx((room.low, room.high))
    assert (float(found.low[2]), float(found.high[2])) == (0.0, 1.0)
    clusters = torch.arange(500) // 5
    whole = metrics.tables.thresholds(drawn(500, 2, clusters=clusters), at=[0.0])
    room = metrics.share_interval(right, None, 0.90, clusters)
    assert (float(whole.low[0]), float(whole.high[0])) == pytest.approx((room.low, room.high), abs=1e-3)
    assert float(whole.high[0] - whole.low[0]) != pytest.approx(float(found.high[0] - found.low[0]), abs=1e-6)


def test_cells_of_classes_are_the_bins_of_their_probabilities():
    p = drawn(400, 3)
    found = metrics.tables.classes(p, bins=10)
    for j in range(3):
        bins = metrics.tables.bins(p.with_event(j), bins=10)
        torch.testing.assert_close(found.cells[j, :, 0], bins.weight)
        torch.testing.assert_close(found.cells[j, :, 2], (bins.weight * bins.accuracy).nan_to_num(0.0))
        assert float(found.cells[j, :, 1:].diff(dim=1).abs().sum()) == pytest.approx(float(found.ece[j]))


def test_a_class_is_told_its_most_confident_mistakes():
    p = drawn(300, 4)
    told = measure(p).mistakes_by_class([2], 4)[2]
    wrong = (p.predicted != p.labels) & ((p.labels == 2) | (p.predicted == 2))
    said = p.outcomes.confidence.masked_fill(~wrong, 0)
    assert [m.row for m in told] == said.argsort(descending=True)[:4].tolist()
    assert [m.probability for m in told] == said.sort(descending=True).values[:4].tolist()


def test_significant_loss_of_accuracy_by_auto_shows_an_alternative():
    val, test = drawn(2000, 5, shift=1.5), drawn(2000, 6)
    found = assess(val, test, ("Identity", "Temperature", "Auto"), choose="Auto")
    assert found.changes["accuracy"].high < 0
    assert found.accuracy_preserving == ACCURACY_PRESERVING_AUTO
    assert found.tables[ACCURACY_PRESERVING_AUTO]["accuracy"].value == found.uncalibrated["accuracy"].value
    own = calibrators.Auto.fit(val, accuracy_preserving=True)
    expected = float(metrics.nll(test.double().apply(own)))
    assert found.tables[ACCURACY_PRESERVING_AUTO]["nll"].value == pytest.approx(expected)
    assert f"{expected:.4f}" in expert_text.remedy_answer(found).partition(ACCURACY_PRESERVING_AUTO)[2]
    assert json.loads(found.json())["accuracy_preserving"] == ACCURACY_PRESERVING_AUTO
    same = assess(drawn(1000, 7), test, ("Identity", "Auto"), choose="Auto")
    assert same.accuracy_preserving is None
    assert ACCURACY_PRESERVING_AUTO not in same.tables
    assert ACCURACY_PRESERVING_AUTO not in expert_text.remedy_answer(same)


@pytest.mark.parametrize(("by", "chosen"), [(2.0, None), (1.0, "Temperature"), (1.0, "Identity")])
def test_plain_answers_match_the_exact_ones_without_jargon(by, chosen):
    groups = [["a", "b"][i % 2] for i in range(1000)]
    found = assess(
        drawn(1000, 8, by=by), drawn(1000, 9, by=by, groups=groups), ("Identity", "Temperature"), choose=chosen
    )
    exact, plain = expert_text.assessment_answers(found), lay_text.assessment_answers(found)
    assert len(exact) == len(plain)
    assert all(text and text[0].isupper() and text[-1] in ".)" for text in plain)
    assert not re.search(r"ECE|NLL|Kuiper|interval|quantile|p [=<]|nan|likelihood", " ".join(plain))
    gap = f"{100 * found.uncalibrated['ece'].value:.1f} points"
    assert (gap in plain[0]) == (found.uncalibrated.verdict.status == "miscalibrated")
    assert f"{100 * found.uncalibrated.observed_frequency.value:.1f} are" in plain[1]


def test_terms_are_explained_at_their_first_mention():
    made = explain_terms("its ECE <b> and NLL, then ECE")
    assert made.count("<abbr") == 2
    assert made.endswith("then ECE")
    assert "&lt;b&gt;" in made
    assert f'title="ECE: {metrics.metric_info("ece").plain}' in made
    shown = [m for name in ("ece", "nll", "kuiper", "brier", "accuracy") if isinstance(m := METRICS[name], Metric)]
    assert all(m.about.plain for m in shown)


def test_infinity_is_explained():
    p = Predictions([[0.0, -torch.inf], [0.0, 1.0], [1.0, 0.0]] * 10, [1, 1, 0] * 10)
    found = assess(p, p[[0, 1, 2, 3]], ("Identity", "Temperature"))
    assert math.isinf(found.uncalibrated["nll"].value)
    page = found.html()
    assert found.uncalibrated["nll"].note in page
    assert f"inf: {INFINITE_MEAN_EXPLANATION}." in page
    assert f'<abbr title="{INFINITE_MEAN_EXPLANATION}">inf</abbr>' in page


def test_methods_are_called_by_their_docstrings():
    assert CALIBRATORS.title("Temperature(criterion='ece')") == "Temperature scaling"
    assert CALIBRATORS.title("Identity") == "No calibration"
    assert LOSSES.title("focal(gamma=3)") == "Focal loss"
    assert LOSSES.title("mine.loss") == CALIBRATORS.title("a.safetensors") == ""
    assert all(registry.title(name) for registry in (CALIBRATORS, LOSSES) for name in registry)


@pytest.mark.parametrize(("name", "value", "text"), [("nll", 1e296, "1e296"), ("ece", 0.1234, "12.34")])
def test_no_number_is_longer_than_its_column(name, value, text):
    assert metrics.metric_info(name).text(value) == text
    assert metrics.metric_info(name).text(-1.5e300) in ("-1.5e300", "-1.5e302")
    assert (
        max(len(metrics.metric_info(name).text(sign * 10.0**e)) for e in range(-12, 300, 7) for sign in (-1, 1)) <= 13
    )


def test_a_metric_of_ones_own_that_explodes_keeps_its_column():
    z = torch.tensor([[0.0, -1e300], [0.0, 1.0], [1.0, 0.0]] * 10, dtype=torch.float64)
    measured = measure(Predictions(z, [1, 1, 0] * 10), of="top")
    assert max(map(len, str(measured).splitlines())) <= 120
    assert "e299" in str(measured)


def test_the_classes_of_pieces_open_their_curves_and_say_nothing_of_mistakes():
    p = drawn(400, 10, k=4)
    whole = measure(p)
    pieces = measure(Summary.empty(of="top", by_class=True).add(p[:150]).add(p[150:]))
    alone, told = (held(_controls.class_control({"value": table}, [table.classes])) for table in (pieces, whole))
    assert [row["layers"] for row in alone["rows"]] == [row["layers"] for row in told["rows"]]
    assert all(row["mistakes"] is None for row in alone["rows"])
    assert any(row["mistakes"] for row in told["rows"])


def test_the_controls_and_plain_answers_speak_of_answers_and_labels_as_what_they_are():
    g = torch.Generator().manual_seed(11)
    said = torch.rand(400, generator=g, dtype=torch.float64)
    right = (torch.rand(400, generator=g, dtype=torch.float64) < said**2).long()
    answers_, labels = (
        Predictions.from_confidence(said, right),
        Predictions.multilabel(torch.randn(200, 3, generator=g), torch.randint(0, 2, (200, 3), generator=g)),
    )
    for p, one, tile in (
        (answers_, "answer", "error among them"),
        (labels, "label decision", "false alarms among them"),
    ):
        table = measure(p)
        shown = held(_controls.threshold_control({"value": table}))
        assert shown["words"]["each"] == f"per {one}"
        assert shown["words"]["tiles"][1] == tile
        assert held(_controls.measurement_temperature_control(table))["words"]["many"] == f"{one}s"
        assert f"{one}s" in lay_text.measurement_answers(table)[0]
        assert not re.search("examples|groups", " ".join(lay_text.measurement_answers(table)))


def test_plain_answers_test_brier_where_nll_is_infinite():
    z = drawn(1000, 12).logits.clone()
    z[0] = torch.tensor([0.0, -torch.inf, 0.0])
    labels = drawn(1000, 12).labels.clone()
    labels[0] = 1
    found = assess(drawn(1000, 13), Predictions(z, labels), ("Identity", "Temperature"), choose="Temperature")
    assert math.isinf(found.uncalibrated["nll"].value)
    assert_rendered(
        "difference_by_brier",
        "\n".join([expert_text.significance_answer(found), lay_text.assessment_answers(found)[3]]),
    )
