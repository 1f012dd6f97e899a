"""Logs that lm-evaluation-harness and Inspect wrote, against the values that they held in memory.

`make test-logs` builds the environments of both packages and writes the logs; without them these tests are skipped.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from calibrant import EvaluationLog, InputError, metrics
from calibrant.language_models import Outcome

ENVIRONMENTS = Path(__file__).parents[2] / ".venv-logs"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["new", "old"])
def logs(request):
    folder = ENVIRONMENTS / request.param / "logs"
    if not (folder / "values.json").is_file():
        pytest.skip("make test-logs writes these logs")
    return folder


@pytest.fixture(scope="module")
def values(logs):
    return json.loads((logs / "values.json").read_text())


def harness_file(logs, task):
    (path,) = (logs / "harness").glob(f"*/samples_{task}_*.jsonl")
    return path


def is_mispaired(logs, task):
    """Whether the harness paired log-likelihoods with wrong choices, as 0.4.8 does with mutual information."""
    return task == "tiny_mutual" and logs.parent.name == "old"


@pytest.mark.parametrize("task", ["tiny_choice", "tiny_mutual"])
def test_choice_log_likelihoods_equal_memory(logs, values, task):
    log = EvaluationLog.read(harness_file(logs, task))
    samples = values["harness"]["samples"][task]
    assert [row.question for row in log.rows] == [str(sample["doc_id"]) for sample in samples]
    for row, sample in zip(log.rows, samples, strict=True):
        pairs = sample["filtered_resps"][: len(row.logits)]
        assert row.logits == tuple(float(value) for value, _ in pairs)
        assert row.label == int(sample["target"])
        assert row.correct == sample["acc"] or is_mispaired(logs, task)


@pytest.mark.parametrize("score", ["acc", "acc_norm", "acc_bytes", "acc_mutual_info"])
def test_normalized_accuracy_equals_harness(logs, values, score):
    task = "tiny_choice" if is_mispaired(logs, "tiny_mutual") else "tiny_mutual"
    if score not in values["harness"]["samples"][task][0]:
        pytest.skip("this version does not compute this score, or not from the log-likelihoods of the choices")
    log = EvaluationLog.read(harness_file(logs, task), score=score)
    samples = values["harness"]["samples"][task]
    assert [row.correct for row in log.rows] == [sample[score] for sample in samples]
    result = values["harness"]["results"][task][f"{score},none"]
    assert log.accuracy() == pytest.approx(result, abs=1e-15)
    assert float(metrics.accuracy(log.predictions)) == pytest.approx(result, abs=1e-12)


def test_normalizations_equal_formula(logs, values):
    questions = [json.loads(line) for line in (logs / "questions.json").read_text().splitlines()]
    samples = values["harness"]["samples"]["tiny_mutual"]
    for score, length in (("acc_norm", len), ("acc_bytes", lambda text: len(text.encode()))):
        log = EvaluationLog.read(harness_file(logs, "tiny_mutual"), score=score)
        for row, question, sample in zip(log.rows, questions, samples, strict=True):
            pairs = zip(question["choices"], sample["filtered_resps"], strict=False)
            assert row.logits == tuple(float(pair[0]) / length(choice) for choice, pair in pairs)


def test_mispaired_scores_are_computed_anew(logs, values):
    if not is_mispaired(logs, "tiny_mutual"):
        pytest.skip("this version pairs log-likelihoods with the right choices")
    log = EvaluationLog.read(harness_file(logs, "tiny_mutual"))
    samples = {task: values["harness"]["samples"][task] for task in ("tiny_choice", "tiny_mutual")}
    assert [row.correct for row in log.rows] == [sample["acc"] for sample in samples["tiny_choice"]]
    assert [row.correct for row in log.rows] != [sample["acc"] for sample in samples["tiny_mutual"]]
    assert any("anew" in note for note in log.notes)


def test_questions_with_fewer_choices_are_padded(logs):
    p = EvaluationLog.read(harness_file(logs, "tiny_choice")).predictions
    assert p.k == 5
    assert np.isneginf(p.logits).sum() == sum(5 - k for k in (3, 4, 2, 4, 5, 3, 2, 4, 5, 3, 3, 2))
    assert math.isfinite(float(metrics.brier(p)))


def test_generation_needs_a_filter(logs, values):
    path = harness_file(logs, "tiny_generation")
    with pytest.raises(InputError) as error:
        EvaluationLog.read(path)
    assert error.value.code == "several_filters"
    for name in "strict", "flexible":
        log = EvaluationLog.read(path, filter=name)
        samples = [s for s in values["harness"]["samples"]["tiny_generation"] if s["filter"] == name]
        assert [row.correct for row in log.rows] == [sample["exact_match"] for sample in samples]
        invalid = [sample["filtered_resps"] == ["[invalid]"] for sample in samples]
        assert [row.reason == "invalid response" for row in log.rows] == invalid
        assert log.accuracy() == values["harness"]["results"]["tiny_generation"][f"exact_match,{name}"]


@pytest.mark.parametrize("log_format", ["eval", "json"])
@pytest.mark.parametrize("scorer", ["choice", "includes"])
def test_inspect_scores_and_tokens_equal_memory(logs, values, log_format, scorer):
    memory = values["inspect"][f"choice_{log_format}"]
    log = EvaluationLog.read(logs / "inspect" / memory["file"], score=scorer, confidence="tokens")
    rows = {(row["id"], row["epoch"]): row for row in memory["rows"]}
    assert len(log) == len(rows) == 36
    assert log.num_questions == 12
    for row in log.rows:
        sample = rows[row.question, row.epoch]
        assert row.correct == sample["numbers"][scorer]
        if row.outcome is Outcome.WITH_CONFIDENCE:
            assert row.confidence == pytest.approx(math.exp(math.fsum(sample["logprobs"])), rel=1e-12)
        if sample["reasons"][scorer]:
            assert row.reason == sample["reasons"][scorer]
    accuracy = {name: numbers["accuracy"] for name, _, numbers in memory["metrics"]}
    assert log.accuracy() == pytest.approx(accuracy[scorer], abs=1e-12)


@pytest.mark.parametrize("log_format", ["eval", "json"])
def test_inspect_stated_confidences_equal_memory(logs, values, log_format):
    memory = values["inspect"][f"stated_{log_format}"]
    log = EvaluationLog.read(logs / "inspect" / memory["file"])
    rows = {(row["id"], row["epoch"]): row["scores"]["stated"] for row in memory["rows"]}
    grades = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
    for row in log.rows:
        value = rows[row.question, row.epoch]
        if not isinstance(value, dict):
            assert (row.outcome, row.correct) == (Outcome.NOT_ANSWERED, None)
            continue
        assert row.correct == grades[value["score"]]
        if value["score"] == "N":
            assert row.outcome is Outcome.NOT_ANSWERED
        elif value["confidence"] == "":
            assert row.outcome is Outcome.WITHOUT_CONFIDENCE
        else:
            assert row.confidence == pytest.approx(float(value["confidence"].rstrip("%")) / 100, abs=1e-15)
    ((_, _, numbers), _) = memory["metrics"]
    graded = [row.correct for row in log.rows if row.correct is not None]
    assert np.mean(graded) == pytest.approx(numbers["accuracy"], abs=1e-12)
    credit = log.predictions.events.merged.outcome
    assert credit.tolist() == [row.correct for row in log.rows if row.outcome is Outcome.WITH_CONFIDENCE]


def test_folder_is_a_benchmark(logs):
    log = EvaluationLog.read(logs / "harness", filter="flexible", score=("acc_norm", "exact_match"))
    assert set(log.tasks) == {"tiny_choice", "tiny_mutual", "tiny_generation"}
    assert len(log) == 36
    assert len(log.predictions) == 24
    assert log.predictions.group_names == ("tiny_choice", "tiny_mutual")
