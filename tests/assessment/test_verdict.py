"""Verdicts: titles, answers, notes and JSON agree, and answers name metrics that get significant_loss."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from rendered import assert_rendered

from calibrant import Predictions, assess, measure, metrics
from calibrant.assessment import _sentences as sentences
from calibrant.assessment._tables import group_headings


def confidences(confidence: float, right: int, n: int) -> Predictions:
    return Predictions.from_confidence([confidence] * n, [1] * right + [0] * (n - right))


def scores(n: int, scale: float, seed: int, shift: float = 0.0) -> Predictions:
    """Return binary predictions whose logits are `scale` times the true ones plus a shift."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, generator=g, dtype=torch.float64)
    y = (torch.rand(n, generator=g) < torch.sigmoid(z)).long()
    return Predictions.from_binary_logits(scale * z + shift, y)


SETS = {
    "all correct": confidences(0.9, 50, 50),
    "as stated": confidences(0.9, 45, 50),
    "often wrong": confidences(0.9, 100, 200),
    "overconfident": scores(2000, 3.0, 0),
    "calibrated": scores(2000, 1.0, 1),
    "biased": scores(300, 1.0, 2, shift=0.3),
    "few": scores(30, 1.5, 3),
}
STATUS = {
    "as stated": "too_little_data",
    "calibrated": "no_evidence",
    "often wrong": "miscalibrated",
    "overconfident": "miscalibrated",
}


@pytest.mark.parametrize("name", SETS)
def test_notes_and_answers_agree_with_the_verdict(name):
    table = measure(SETS[name])
    verdict, gap = table.verdict, table["signed_gap"]
    assert verdict.status == STATUS.get(name, verdict.status)
    assert (verdict.status == "miscalibrated") == (table["omnibus"].p_value < 0.05)
    if verdict.status != "miscalibrated":
        assert verdict.direction is None
        assert gap.note == ""
    texts = (
        verdict.status,
        gap.note,
        sentences.headline(table),
        sentences.calibration_answer(table),
        *(answer.text for answer in table.document().answers),
    )
    assert_rendered(f"verdict_{name.replace(' ', '_')}", "\n".join(texts))


def test_json_holds_the_verdict():
    result = measure(SETS["overconfident"])
    assert json.loads(result.json())["verdict"] == pytest.approx(asdict(result.verdict))
    result = assess(SETS["overconfident"], SETS["calibrated"], ["Identity", "Temperature"])
    texts = json.loads(result.json())["verdict"]
    assert texts["before"]["status"] == result.uncalibrated.verdict.status
    assert texts["after"]["status"] == result.calibrated.verdict.status


def test_remedy_names_worse_metrics_and_a_reversed_direction():
    """Fit on overconfident data, evaluate on calibrated data with a shift."""
    result = assess(
        scores(1000, 3.0, 0, shift=2.0), scores(1000, 1.0, 1, shift=0.4), ["Temperature", "Platt"], choose="Platt"
    )
    assert result.calibrated["ece"].value > result.uncalibrated["ece"].value
    assert (result.uncalibrated.verdict.direction, result.calibrated.verdict.direction) == ("over", "under")
    ece, brier = sentences.worsened_metric_sentences(result)
    assert result.uncalibrated["ece"].text in ece
    assert result.calibrated["ece"].text in ece
    assert f"{result.calibrated['event_brier'].value:.4f}" in brier
    (turn,) = sentences.direction_change_sentences(result)
    assert sentences.gap_points(result.uncalibrated) in turn
    assert sentences.gap_points(result.calibrated) in turn
    assert turn.index("overestimates") < turn.index("underestimates")
    assert all(sentence in sentences.remedy_answer(result) for sentence in (ece, brier, turn))
    assert_rendered("remedy_setbacks", sentences.remedy_answer(result))
    assert "worse" in result.document().answers[2].text


def test_remedy_of_an_improvement_names_no_worse_metric():
    result = assess(scores(2000, 3.0, 0), scores(2000, 3.0, 1), ["Temperature"])
    assert sentences.worsened_metric_sentences(result) == []
    assert "worse" not in sentences.remedy_answer(result)


def test_remedy_names_a_loss_of_accuracy():
    result = assess(scores(500, 3.0, 0), scores(500, 3.0, 1), ["Temperature"])
    rows = {row.name: row for row in result.changes or ()}
    rows["accuracy"] = replace(rows["accuracy"], difference=-0.02, low=-0.03, high=-0.01)
    assert result.changes is not None
    significant_loss = replace(result, changes=replace(result.changes, rows=tuple(rows.values())))
    rows["accuracy"] = replace(rows["accuracy"], high=0.01)
    insignificant_loss = replace(result, changes=replace(result.changes, rows=tuple(rows.values())))
    assert_rendered(
        "remedy_less_accurate", "\n".join(map(sentences.remedy_answer, (significant_loss, insignificant_loss)))
    )


@pytest.mark.parametrize(("n", "flip", "remarks"), [(200, True, 1), (200, False, 0), (10, True, 0)])
def test_swapped_columns_are_reported(n, flip, remarks):
    y = torch.arange(n) % 2
    z = torch.where(y == 1, 2.0, -2.0) + 0.1 * torch.arange(n) / n
    p = Predictions.from_binary_logits(-z if flip else z, y)
    table = measure(p)
    assert len(table.remarks) == len(json.loads(table.json())["notes"]) == remarks
    for text in (str(table).replace("\n", " "), table.html(), table._repr_html_()):
        assert ("columns swapped" in text) == bool(remarks)


def test_event_brier_equals_scikit_learn():
    from sklearn.metrics import brier_score_loss

    p = scores(500, 2.0, 0)
    table = measure(p)
    expected = brier_score_loss(p.labels, torch.as_tensor(p.logits).softmax(1)[:, 1].numpy())
    assert table["event_brier"].value == pytest.approx(expected)
    assert table["brier"].value == pytest.approx(2 * expected)
    assert "sum over classes" in table["brier"].title
    assert "sum over classes" not in table["event_brier"].title
    assert metrics.metric_info("event_brier").heading() != metrics.metric_info("brier").heading()


def test_multilabel_rows_are_label_decisions():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(100, 3, generator=g)
    table = measure(Predictions.multilabel(z, (torch.rand(100, 3, generator=g) < z.sigmoid()).long()))
    assert table.population.startswith("label decisions")
    assert group_headings(table.event)[:2] == ["label", "label decisions"]


def test_reasons_follow_the_numbers_of_the_table():
    """The selected calibrator is called the best only where its held-out NLL is the lowest of its column."""
    result = assess(scores(500, 3.0, 0), scores(500, 3.0, 1), ["Identity", "Temperature", "Vector"], choose="Vector")
    texts: list[str] = []
    for chosen_name, nll, lowest in (
        ("Vector", {"Identity": 0.5, "Temperature": 0.4, "Vector": 0.3}, True),
        ("Vector", {"Identity": 0.5, "Temperature": 0.3, "Vector": 0.4}, False),
        ("Identity", {"Identity": 0.3, "Temperature": 0.4, "Vector": float("nan")}, True),
        ("Identity", {"Identity": 0.4, "Temperature": 0.3, "Vector": 0.5}, False),
    ):
        changed = replace(result, chosen_name=chosen_name, selection="held_out", held_out_nll=nll)
        assert changed.has_lowest_held_out_nll is lowest
        texts.append(changed.document().answers[2].text)
    assert_rendered("remedy_reasons", "\n".join(texts))


def test_a_loss_that_another_map_removes_is_not_ascribed_to_the_model():
    """A vector that changes classes lowers NLL; a temperature after it would lower it further."""
    val, test = scores(400, 3.0, 0, shift=2.0), scores(4000, 3.0, 1, shift=2.0)
    texts: list[str] = []
    for name in "Temperature", "Vector":
        result = assess(val, test, ["Temperature", "Vector"], choose=name)
        texts.append(sentences.score_change_sentence(result))
    remaining = [result.measurements[name]["nll"].value for name in ("Temperature", "Vector")]
    assert remaining[0] > remaining[1] + 0.01
    assert_rendered("score_changes", "\n".join(texts))


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_one_group_is_described_in_the_singular(scale):
    p = scores(2000, scale, 1, shift=2 * (scale - 1))
    table = measure(Predictions(p.logits, p.labels, groups=["all"] * len(p)))
    answer = table.document().answers[-1]
    assert_rendered(f"one_group_{scale}", "\n".join([sentences.headline(table), answer.text]))


def test_a_single_example_may_change_classes_only_if_the_calibrator_may():
    val, test = scores(200, 3.0, 0), scores(1, 3.0, 1)
    texts = [
        sentences.remedy_answer(assess(val, test, [name], choose=name)) for name in ("Temperature", "HistogramBinning")
    ]
    assert_rendered("remedy_of_one_example", "\n".join(texts))
