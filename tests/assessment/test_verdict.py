"""Verdicts: titles, answers, notes and JSON agree, and answers name metrics that get significant_loss."""

import json
from dataclasses import asdict, replace
from types import ModuleType

import numpy as np
import pytest
from rendered import assert_rendered
from scipy.special import expit, softmax

from calibrant import Predictions, assess, measure, metrics
from calibrant.assessment import _sentences as sentences
from calibrant.assessment._tables import group_headings


def confidences(confidence: float, right: int, n: int) -> Predictions:
    return Predictions.from_confidence([confidence] * n, [1] * right + [0] * (n - right))


def scores(n: int, scale: float, seed: int, shift: float = 0.0, torch: ModuleType | None = None) -> Predictions:
    """Return binary predictions of `scale` times the true logits plus a shift; torch draws those of stored texts."""
    if torch is None:
        rng = np.random.default_rng(seed)
        z, uniform = rng.normal(size=n), rng.random(n)
    else:
        g = torch.Generator().manual_seed(seed)
        z, uniform = torch.randn(n, generator=g, dtype=torch.float64).numpy(), torch.rand(n, generator=g).numpy()
    return Predictions.from_binary_logits(scale * z + shift, (uniform < expit(z)).astype(int))


CONSTANT = {"all correct": (0.9, 50, 50), "as stated": (0.9, 45, 50), "often wrong": (0.9, 100, 200)}
DRAWN = {
    "overconfident": (2000, 3.0, 0),
    "calibrated": (2000, 1.0, 1),
    "biased": (300, 1.0, 2, 0.3),
    "few": (30, 1.5, 3),
}
STATUS = {
    "as stated": "too_little_data",
    "calibrated": "no_evidence",
    "often wrong": "miscalibrated",
    "overconfident": "miscalibrated",
}


@pytest.mark.parametrize("name", [*CONSTANT, *DRAWN])
def test_notes_and_answers_agree_with_the_verdict(name):
    is_drawn = name in DRAWN
    table = measure(
        scores(*DRAWN[name], torch=pytest.importorskip("torch")) if is_drawn else confidences(*CONSTANT[name])
    )
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
    val, test = scores(2000, 3.0, 0), scores(2000, 1.0, 1)
    result = measure(val)
    assert json.loads(result.json())["verdict"] == pytest.approx(asdict(result.verdict))
    result = assess(val, test, ["Identity", "Temperature"])
    texts = json.loads(result.json())["verdict"]
    assert texts["before"]["status"] == result.uncalibrated.verdict.status
    assert texts["after"]["status"] == result.calibrated.verdict.status


def test_remedy_names_worse_metrics_and_a_reversed_direction(torch):
    """Fit on overconfident data, evaluate on calibrated data with a shift."""
    val, test = scores(1000, 3.0, 0, 2.0, torch), scores(1000, 1.0, 1, 0.4, torch)
    result = assess(val, test, ["Temperature", "Platt"], choose="Platt")
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


def test_remedy_names_a_loss_of_accuracy(torch):
    result = assess(scores(500, 3.0, 0, torch=torch), scores(500, 3.0, 1, torch=torch), ["Temperature"])
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
    y = np.arange(n) % 2
    z = np.where(y == 1, 2.0, -2.0) + 0.1 * np.arange(n) / n
    p = Predictions.from_binary_logits(-z if flip else z, y)
    table = measure(p)
    assert len(table.remarks) == len(json.loads(table.json())["notes"]) == remarks
    for text in (str(table).replace("\n", " "), table.html(), table._repr_html_()):
        assert ("columns swapped" in text) == bool(remarks)


def test_event_brier_equals_scikit_learn():
    from sklearn.metrics import brier_score_loss

    p = scores(500, 2.0, 0)
    table = measure(p)
    expected = brier_score_loss(p.labels, softmax(p.logits, 1)[:, 1])
    assert table["event_brier"].value == pytest.approx(expected)
    assert table["brier"].value == pytest.approx(2 * expected)
    assert "sum over classes" in table["brier"].title
    assert "sum over classes" not in table["event_brier"].title
    assert metrics.metric_info("event_brier").heading() != metrics.metric_info("brier").heading()


def test_multilabel_rows_are_label_decisions():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(100, 3))
    table = measure(Predictions.multilabel(z, rng.binomial(1, expit(z))))
    assert table.population.startswith("label decisions")
    assert group_headings(table.event)[:2] == ["label", "label decisions"]


def test_reasons_follow_the_numbers_of_the_table(torch):
    """The selected calibrator is called the best only where its held-out NLL is the lowest of its column."""
    val, test = (scores(500, 3.0, seed, torch=torch) for seed in (0, 1))
    result = assess(val, test, ["Identity", "Temperature", "Vector"], choose="Vector")
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


def test_a_loss_that_another_map_removes_is_not_ascribed_to_the_model(torch):
    """A vector that changes classes lowers NLL; a temperature after it would lower it further."""
    val, test = scores(400, 3.0, 0, 2.0, torch), scores(4000, 3.0, 1, 2.0, torch)
    texts: list[str] = []
    for name in "Temperature", "Vector":
        result = assess(val, test, ["Temperature", "Vector"], choose=name)
        texts.append(sentences.score_change_sentence(result))
    remaining = [result.measurements[name]["nll"].value for name in ("Temperature", "Vector")]
    assert remaining[0] > remaining[1] + 0.01
    assert_rendered("score_changes", "\n".join(texts))


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_one_group_is_described_in_the_singular(torch, scale):
    p = scores(2000, scale, 1, 2 * (scale - 1), torch)
    table = measure(Predictions(p.logits, p.labels, groups=["all"] * len(p)))
    answer = table.document().answers[-1]
    assert_rendered(f"one_group_{scale}", "\n".join([sentences.headline(table), answer.text]))


def test_a_single_example_may_change_classes_only_if_the_calibrator_may(torch):
    val, test = scores(200, 3.0, 0, torch=torch), scores(1, 3.0, 1, torch=torch)
    texts = [
        sentences.remedy_answer(assess(val, test, [name], choose=name)) for name in ("Temperature", "HistogramBinning")
    ]
    assert_rendered("remedy_of_one_example", "\n".join(texts))
