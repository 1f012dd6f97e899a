import gzip
import json
import math
import random
import zipfile

import numpy as np
import pytest
from commands import run
from evaluation_logs import (
    choice_record,
    compress_zstandard,
    generation_record,
    inspect_log,
    inspect_sample,
    write_harness,
    write_helm,
    write_inspect,
    write_lines,
)
from refusals import refused

from calibrant import EvaluationLog, InputError, Predictions, measure
from calibrant.language_models import Outcome

CHOICES = ("red", "blue and green", "Käse", "a")


def code_of(function, *arguments, **options):
    with pytest.raises(InputError) as error:
        function(*arguments, **options)
    return error.value.code


def random_records(n=60, seed=0, **options):
    generator = random.Random(seed)
    records = []
    for i in range(n):
        choices = CHOICES[: generator.randint(2, 4)]
        values = [-generator.expovariate(0.5) * len(choice) for choice in choices]
        subject = generator.choice(["colors", "food"])
        records.append(choice_record(i, values, choices, generator.randrange(len(choices)), subject=subject, **options))
    return records


# lm-evaluation-harness, multiple choice


def test_log_likelihoods_are_logits_with_padding(tmp_path):
    path = write_harness(
        tmp_path, "colors", [choice_record(0, [-3, -1, -2], CHOICES[:3], 1), choice_record(1, [-5, -4], CHOICES[:2], 0)]
    )
    log = EvaluationLog.read(path)
    assert (log.tasks, log.model) == (("colors",), "my-model")
    p = log.predictions
    assert np.array_equal(p.logits, [[-3, -1, -2], [-5, -4, -math.inf]])
    assert p.labels.tolist() == [1, 0]
    assert [row.correct for row in log.rows] == [1.0, 0.0]
    assert log.rows[1].confidence == pytest.approx(1 / (1 + math.exp(-1)), abs=1e-15)
    assert log.accuracy() == 0.5


@pytest.mark.parametrize("score", ["acc_norm", "acc_bytes"])
def test_score_divides_by_length(tmp_path, score):
    path = write_harness(tmp_path, "colors", [choice_record(0, [-6.0, -7.0, -8.0], CHOICES[:3], 1)])
    lengths = [3, 14, 4] if score == "acc_norm" else [3, 14, 5]
    row = EvaluationLog.read(path, score=score).rows[0]
    assert row.logits == tuple(value / length for value, length in zip((-6.0, -7.0, -8.0), lengths, strict=True))
    assert row.correct == 1.0


def test_mutual_information_subtracts_unconditional_half(tmp_path):
    record = choice_record(0, [-6.0, -7.0, -1.0, -5.0], [*CHOICES[:2], *CHOICES[:2]], 1, metrics=["acc_mutual_info"])
    del record["acc"], record["acc_norm"]
    path = write_harness(tmp_path, "colors", [record | {"acc_mutual_info": 1.0}])
    assert EvaluationLog.read(path, score="acc_mutual_info").rows[0].logits == (-5.0, -2.0)
    assert EvaluationLog.read(path).rows[0].logits == (-6.0, -7.0)


def test_mutual_information_needs_its_half(tmp_path):
    path = write_harness(tmp_path, "colors", [choice_record(0, [-6.0, -7.0], CHOICES[:2], 1)])
    assert code_of(EvaluationLog.read, path, score="acc_mutual_info") == "unknown_score"


def test_disagreement_with_logged_score_is_refused(tmp_path):
    record = choice_record(0, [-6.0, -7.0], CHOICES[:2], 0, acc_norm=1.0)  # 7/14 is better than 6/3
    path = write_harness(tmp_path, "colors", [record])
    assert code_of(EvaluationLog.read, path, score="acc_norm") == "score_mismatch"
    assert EvaluationLog.read(path).rows[0].label == 0


def test_unknown_right_choice_gives_confidences(tmp_path):
    records = [choice_record(i, [-1.0, -2.0], CHOICES[:2], 0, target="a text", acc=float(i == 0)) for i in range(2)]
    log = EvaluationLog.read(write_harness(tmp_path, "colors", records))
    assert [(row.label, row.correct) for row in log.rows] == [(None, 1.0), (None, 0.0)]
    p = log.predictions
    assert (p.class_names, p.labels.tolist()) == (("wrong", "correct"), [1, 0])


def test_mispaired_scores_of_the_log_are_computed_anew(tmp_path):
    values = [(-6.0, -1.0, -2.0, -5.0), (-1.0, -6.0, -5.0, -2.0), (-2.0, -1.0, -5.0, -6.0)]  # then without a prompt
    records = [
        choice_record(i, row, [*CHOICES[:2]] * 2, 0, metrics=["acc", "acc_mutual_info"], acc=float(row[0] > row[2]))
        for i, row in enumerate(values)
    ]
    log = EvaluationLog.read(write_harness(tmp_path, "colors", records))
    assert [row.logits for row in log.rows] == [(-6.0, -1.0), (-1.0, -6.0), (-2.0, -1.0)]
    assert [row.correct for row in log.rows] == [0.0, 1.0, 0.0]


def test_choice_text_as_target(tmp_path):
    record = choice_record(0, [-1.0, -2.0], CHOICES[:2], 1, target="blue and green")
    assert EvaluationLog.read(write_harness(tmp_path, "colors", [record])).rows[0].label == 1


def test_nan_log_likelihood_is_not_gradable(tmp_path):
    records = [choice_record(0, [-1.0, -2.0], CHOICES[:2], 0), choice_record(1, [math.nan, -2.0], CHOICES[:2], 0)]
    log = EvaluationLog.read(write_harness(tmp_path, "colors", records))
    assert log.outcomes == {
        Outcome.WITH_CONFIDENCE: 1, Outcome.WITHOUT_CONFIDENCE: 0, Outcome.NOT_ANSWERED: 1,
    }  # fmt: skip
    assert len(log.predictions) == 1


# lm-evaluation-harness, generation


def test_filters_are_alternative_scorings(tmp_path):
    records = [
        generation_record(i, response, score, filter=name)
        for name, answers in {"strict": [("[invalid]", 0.0), ("4", 1.0)], "loose": [("4", 1.0), ("4", 1.0)]}.items()
        for i, (response, score) in enumerate(answers)
    ]
    path = write_harness(tmp_path, "sums", records)
    assert code_of(EvaluationLog.read, path) == "several_filters"
    assert code_of(EvaluationLog.read, path, filter="other") == "unknown_filter"
    strict, loose = (EvaluationLog.read(path, filter=name) for name in ("strict", "loose"))
    assert [len(log) for log in (strict, loose)] == [2, 2]
    assert [row.outcome for row in strict.rows] == [Outcome.NOT_ANSWERED, Outcome.WITHOUT_CONFIDENCE]
    assert (strict.accuracy(), loose.accuracy()) == (0.5, 1.0)
    assert code_of(lambda: strict.predictions) == "no_confidence"


def test_stated_confidences_are_read_from_responses(tmp_path):
    responses = ["Answer: 4\n**Confidence:** 80%", "4", "Confidence: rather high"]
    records = [generation_record(i, "4", 1.0, resps=text) for i, text in enumerate(responses)]
    log = EvaluationLog.read(write_harness(tmp_path, "sums", records), confidence="stated")
    assert [row.confidence for row in log.rows] == [0.8, None, None]
    assert [row.reason for row in log.rows] == ["", "no confidence", "unreadable confidence"]


def test_fractional_scores_are_partial_credit(tmp_path):
    records = [generation_record(0, "4", 0.25, metric="f1", resps="Confidence: 80%")]
    log = EvaluationLog.read(write_harness(tmp_path, "sums", records), confidence="stated")
    assert log.rows[0].correct == 0.25
    assert log.predictions.num_examples == 1
    assert log.predictions.events.merged.outcome.tolist() == [0.25]


def test_several_scores_are_refused(tmp_path):
    record = generation_record(0, "4", 1.0) | {"metrics": ["exact_match", "f1"], "f1": 0.5}
    path = write_harness(tmp_path, "sums", [record])
    assert code_of(EvaluationLog.read, path) == "several_scores"
    assert EvaluationLog.read(path, score="f1").rows[0].correct == 0.5


# Folders


def test_folder_of_tasks_has_micro_and_macro_averages(tmp_path):
    write_harness(tmp_path, "colors", [choice_record(i, [-1, -2], CHOICES[:2], 0) for i in range(3)])
    write_harness(tmp_path, "shapes", [choice_record(0, [-1, -2], CHOICES[:2], 1)])
    log = EvaluationLog.read(tmp_path)
    assert (log.accuracy(), log.accuracy("macro")) == (0.75, 0.5)
    assert log.predictions.group_names == ("colors", "shapes")
    assert EvaluationLog.read(tmp_path, task="shapes").accuracy() == 0.0
    assert code_of(EvaluationLog.read, tmp_path, task="numbers") == "unknown_task"


@pytest.mark.parametrize(("text", "code"), [("", "empty_file"), ('{"doc_id": 0, "do', "unreadable")])
def test_unreadable_log_in_a_folder_is_not_left_out(tmp_path, text, code):
    write_harness(tmp_path, "colors", random_records(3))
    write_harness(tmp_path, "shapes", []).write_text(text)
    assert code_of(EvaluationLog.read, tmp_path) == code


def test_folder_of_several_models_is_refused(tmp_path):
    for model in "one", "two":
        write_harness(tmp_path, "colors", random_records(3), model=model)
    assert code_of(EvaluationLog.read, tmp_path) == "several_models"
    assert EvaluationLog.read(tmp_path / "two").model == "two"


def test_several_runs_of_a_task_are_repeats_only_if_listed(tmp_path):
    dates = ("2026-01-02T03-04-05.000006", "2026-01-03T03-04-05.000006")
    paths = [write_harness(tmp_path, "colors", random_records(5), date=date) for date in dates]
    assert code_of(EvaluationLog.read, tmp_path) == "several_runs"
    log = EvaluationLog.read(paths)
    assert (len(log), log.num_questions) == (10, 5)
    assert {row.epoch for row in log.rows} == {1, 2}


def test_folder_of_inspect_logs(tmp_path):
    samples = [inspect_sample(1, 1, {"judge": {"value": "C", "answer": "A"}})]
    for task, suffix in (("first", "eval"), ("second", "json")):
        path = tmp_path / f"2026-01-02T03-04-05-00-00_{task}_{task}Id.{suffix}"
        write_inspect(path, inspect_log(samples, task=task))
    (tmp_path / "logs.json").write_text("{}")
    assert EvaluationLog.read(tmp_path).tasks == ("first", "second")


def test_folder_of_tables_is_no_log(tmp_path):
    write_lines(tmp_path / "samples_1.jsonl", [{"confidence": 0.5, "correct": 1}, {"confidence": 0.25, "correct": 0}])
    write_inspect(tmp_path / "old.eval", inspect_log([inspect_sample(1, 1, {"a": {"value": "C"}})]))
    assert len(Predictions.load(tmp_path)) == 2


def test_pattern_of_logs(tmp_path):
    for task in "colors", "shapes":
        write_harness(tmp_path, task, random_records(5))
    pattern = tmp_path / "my-model" / "samples_*.jsonl"
    assert len(Predictions.load(pattern)) == len(EvaluationLog.read(pattern)) == 10


def test_empty_folder_is_refused(tmp_path):
    assert code_of(EvaluationLog.read, tmp_path) == "no_log"


# What does not change estimates


def statistics(p, names=("accuracy", "nll", "brier", "ece", "kuiper")):
    rows = {row.name: row for row in measure(p, metrics=["kuiper"]).rows}
    return {name: (rows[name].value, rows[name].low, rows[name].high) for name in names}


def assert_same_statistics(first, second):
    for name, numbers in statistics(first).items():
        assert statistics(second)[name] == pytest.approx(numbers, abs=1e-12, nan_ok=True), name


def test_order_of_rows_does_not_matter(tmp_path):
    records = random_records()
    shuffled = random.Random(1).sample(records, len(records))
    paths = [write_lines(tmp_path / f"{i}.jsonl", lines) for i, lines in enumerate((records, shuffled))]
    first, second = (EvaluationLog.read(path).predictions for path in paths)
    assert first.labels.tolist() != second.labels.tolist()
    assert_same_statistics(first, second)


def test_repeated_epochs_do_not_narrow_intervals(tmp_path):
    records = random_records()
    single = EvaluationLog.read(write_lines(tmp_path / "single.jsonl", records)).predictions
    repeated = EvaluationLog.read(write_lines(tmp_path / "repeated.jsonl", records * 3)).predictions
    assert (len(repeated), len(np.unique(repeated.clusters))) == (180, 60)
    first, second = statistics(single), statistics(repeated)
    for name in "accuracy", "nll", "brier", "ece", "kuiper":
        assert second[name] == pytest.approx(first[name], abs=1e-9, nan_ok=True), name


def test_order_of_ties_does_not_matter(tmp_path):
    answers = [{"id": i, "confidence": 0.8 if i % 3 else 0.9, "correct": i % 4 == 0} for i in range(60)]
    tied = random.Random(2).sample(answers, len(answers))
    tied.sort(key=lambda answer: answer["confidence"])
    paths = [write_lines(tmp_path / f"{i}.jsonl", lines) for i, lines in enumerate((answers, tied))]
    first, second = (EvaluationLog.read(path).predictions for path in paths)
    names = ("nll", "event_brier", "ece", "kuiper")
    for name in names:
        assert statistics(second, names)[name] == pytest.approx(statistics(first, names)[name], abs=1e-12, nan_ok=True)


# Inspect


SCORES = [
    ({"value": "C", "answer": "A"}, 1.0, Outcome.WITHOUT_CONFIDENCE),
    ({"value": "I", "answer": "", "reason": "invalid_response_format"}, 0.0, Outcome.NOT_ANSWERED),
    ({"value": "I", "answer": ""}, 0.0, Outcome.NOT_ANSWERED),
    ({"value": "P", "answer": "A"}, 0.5, Outcome.WITHOUT_CONFIDENCE),
    ({"value": "N", "answer": "A"}, 0.0, Outcome.NOT_ANSWERED),
    ({"value": math.nan}, None, Outcome.NOT_ANSWERED),
    ({"value": None}, None, Outcome.NOT_ANSWERED),
    ({"value": 0.0, "reason": "grader_failed"}, None, Outcome.NOT_ANSWERED),
    ({"value": 0.7, "answer": "A"}, 0.7, Outcome.WITHOUT_CONFIDENCE),
    ({"value": True, "answer": "A"}, 1.0, Outcome.WITHOUT_CONFIDENCE),
]


@pytest.mark.parametrize("suffix", [".eval", ".json"])
def test_inspect_grades_and_outcomes(tmp_path, suffix):
    samples = [inspect_sample(f"q{i}", 1, {"judge": score}) for i, (score, _, _) in enumerate(SCORES)]
    samples.append(inspect_sample("q99", 1, {}, error={"message": "timeout"}))
    log = EvaluationLog.read(write_inspect(tmp_path / f"log{suffix}", inspect_log(samples)))
    rows = [(row.correct, row.outcome) for row in log.rows]
    assert rows == [*((correct, outcome) for _, correct, outcome in SCORES), (None, Outcome.NOT_ANSWERED)]
    assert log.rows[-1].reason == "sample error"
    assert (log.tasks, log.model) == (("quiz",), "hf/tiny")


@pytest.mark.parametrize("suffix", [".eval", ".json"])
def test_inspect_epochs_are_clusters(tmp_path, suffix):
    samples = [
        inspect_sample(
            i, epoch, {"judge": {"value": "C" if (i + epoch) % 2 else "I", "answer": "A"}}, log_probs=[-0.1, -i]
        )
        for i in range(4)
        for epoch in (1, 2)
    ]
    log = EvaluationLog.read(write_inspect(tmp_path / f"log{suffix}", inspect_log(samples)), confidence="tokens")
    assert (len(log), log.num_questions) == (8, 4)
    assert [row.epoch for row in log.rows] == [1, 2] * 4
    assert log.rows[-1].confidence == pytest.approx(math.exp(-3.1), rel=1e-12)
    p = log.predictions
    assert p.clusters.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    mean_token = EvaluationLog.read(tmp_path / f"log{suffix}", confidence="mean_token")
    assert mean_token.rows[-1].confidence == pytest.approx(math.exp(-1.55), rel=1e-12)


def test_inspect_values_with_confidence(tmp_path):
    values = [{"score": "C", "confidence": 85}, {"score": "I", "confidence": ""}, {"score": "I", "confidence": 683}]
    samples = [inspect_sample(i, 1, {"judge": {"value": value, "answer": "A"}}) for i, value in enumerate(values)]
    path = write_inspect(tmp_path / "log.json", inspect_log(samples))
    assert code_of(EvaluationLog.read, path) == "percent"
    log = EvaluationLog.read(path, percent=True)
    assert [row.confidence for row in log.rows] == [0.85, None, None]
    assert [row.reason for row in log.rows] == ["", "no confidence", "unreadable confidence"]
    assert any("'683'" in note for note in log.notes)
    assert len(log.predictions) == 1


def test_inspect_scorer_must_be_chosen(tmp_path):
    scores = {"first": {"value": "C", "answer": "A"}, "second": {"value": {"x": 1, "y": 0}, "answer": "A"}}
    path = write_inspect(tmp_path / "log.json", inspect_log([inspect_sample(1, 1, scores)]))
    assert code_of(EvaluationLog.read, path) == "several_scores"
    assert code_of(EvaluationLog.read, path, score="second") == "several_scores"
    assert EvaluationLog.read(path, score="second/y").rows[0].correct == 0.0


def test_json_of_another_kind_is_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"a": 1}')
    assert code_of(EvaluationLog.read, tmp_path / "other.json") == "unknown_log"
    assert code_of(Predictions.load, tmp_path / "other.json") == "unknown_log"


# HELM


def test_helm_run_folder(tmp_path):
    answers = [("id1", " A", -0.1, 1), ("id1", "B", -0.7, 0, "typos"), ("id2", "M", -2.0, 0), ("id3", "", 0.0, 0)]
    log = EvaluationLog.read(write_helm(tmp_path / "run", answers))
    assert [row.outcome for row in log.rows] == [Outcome.WITH_CONFIDENCE] * 2 + [Outcome.NOT_ANSWERED] * 2
    assert [row.reason for row in log.rows[2:]] == ["response is no choice", "empty response"]
    assert log.rows[0].confidence == pytest.approx(math.exp(-0.1), rel=1e-12)
    p = log.predictions
    assert (p.clusters.tolist(), p.group_names, log.tasks, log.model) == ([0, 0], ("anatomy",), ("mmlu",), "me/tiny")


def test_helm_without_log_probabilities_has_no_confidence(tmp_path):
    log = EvaluationLog.read(write_helm(tmp_path / "run", [("id1", "A", 0.0, 1), ("id2", "B", 0.0, 0)]))
    assert log.outcomes[Outcome.WITHOUT_CONFIDENCE] == 2


def test_helm_folder_of_subjects(tmp_path):
    for subject in "anatomy", "law":
        write_helm(tmp_path / subject, [("id1", "A", -0.1, 1), ("id2", "B", -0.3, 0)], subject=subject)
    log = EvaluationLog.read(tmp_path)
    assert len(log) == 4
    assert log.predictions.group_names == ("anatomy", "law")


# JSON lines


def openai_record(log_probs, **fields):
    content = [{"token": "a", "logprob": value, "top_logprobs": []} for value in log_probs]
    choice = {"index": 0, "message": {"role": "assistant", "content": "a"}, "logprobs": {"content": content}}
    return fields | {"response": {"status_code": 200, "body": {"model": "m", "choices": [choice]}}}


def test_token_log_probabilities(tmp_path):
    records = [
        openai_record([-0.5, -0.25], custom_id="a", correct=True),
        openai_record([-2.0], custom_id="b", correct=False),
    ]
    log = EvaluationLog.read(write_lines(tmp_path / "batch.jsonl", records))
    assert [row.confidence for row in log.rows] == pytest.approx([math.exp(-0.75), math.exp(-2)], rel=1e-12)
    assert [row.question for row in log.rows] == ["a", "b"]
    assert len(Predictions.load(tmp_path / "batch.jsonl")) == 2


def test_json_lines_with_missing_confidences(tmp_path):
    records = [
        {"question_id": 1, "confidence": "85%", "correct": "C"},
        {"question_id": 1, "confidence": "highly likely", "correct": "incorrect"},
        {"question_id": 2, "confidence": None, "correct": True},
        {"question_id": 3, "confidence": "8/10", "correct": "not attempted"},
        {"question_id": 4, "confidence": "80-90%", "correct": 1},
        {"question_id": 5, "confidence": 0.5, "correct": None},
    ]
    log = EvaluationLog.read(write_lines(tmp_path / "mine.jsonl", records))
    assert [row.confidence for row in log.rows] == [0.85, 0.9, None, None, None, 0.5]  # lacks only a grade
    assert [row.correct for row in log.rows] == [1, 0, 1, 0, 1, None]
    assert list(log.outcomes.values()) == [2, 2, 2]
    assert log.predictions.clusters.tolist() == [0, 0]
    assert log.to_frame().shape == (6, 9)


def test_json_lines_need_a_grade(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", [{"confidence": 0.5}])
    assert code_of(EvaluationLog.read, path) == "no_score"
    path = write_lines(tmp_path / "mine.jsonl", [{"confidence": 0.5, "correct": 7}])
    assert code_of(EvaluationLog.read, path) == "grade"


def test_compressed_lines(tmp_path):
    path = write_harness(tmp_path, "colors", random_records(4))
    packed = path.with_name(f"{path.name}.GZ")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    assert EvaluationLog.read(tmp_path).tasks == ("colors",)
    assert len(Predictions.load(packed)) == 4


# Commands


def test_commands_read_logs(tmp_path):
    path = write_harness(tmp_path, "colors", random_records(80))
    result = run("measure", path, "--json", "-")
    assert result.returncode == 0, result.stderr
    measured = json.loads(result.stdout)
    assert (measured["n"], measured["k"]) == (80, 4)
    assert run("assess", path, "-c", "Temperature", "--save", tmp_path / "t.safetensors").returncode == 0
    output = tmp_path / "calibrated.npz"
    assert run("apply", tmp_path / "t.safetensors", path, "--output", output).returncode == 0
    assert len(Predictions.load(output)) == 80
    assert "no columns" in run("measure", path, "--columns").stdout


def test_commands_choose_filters_tasks_and_scores(tmp_path):
    records = [
        generation_record(i, "4", float(i % 2), filter=name, resps="Confidence: 60%")
        for name in ("strict", "loose")
        for i in range(20)
    ]
    write_harness(tmp_path, "sums", records)
    write_harness(tmp_path, "colors", random_records(20))
    assert run("measure", tmp_path, "--task", "sums").code == "several_filters"
    options = ("--filter", "loose", "--task", "sums", "--confidence", "stated", "--correct", "exact_match")
    assert run("measure", tmp_path, *options).returncode == 0
    assert run("measure", tmp_path, "--label", "target").code == "no_columns"


def test_output_is_not_among_logs(tmp_path):
    path = write_inspect(
        tmp_path / "log.json", inspect_log([inspect_sample(1, 1, {"a": {"value": "C"}}, log_probs=[-1])])
    )
    result = run("measure", path, "--confidence", "tokens", "--json", path)
    assert result.code == "output_is_input"


def test_padding_scores_are_finite(tmp_path):
    p = EvaluationLog.read(write_harness(tmp_path, "colors", random_records())).predictions
    assert np.isfinite(statistics(p)["brier"][0])


# What cannot be read


def test_scores_outside_0_to_1_are_refused(tmp_path):
    for i, scores in enumerate([(0.0, 100.0), (1.0, 2.0)]):
        records = [generation_record(0, "4", scores[0]), generation_record(1, "4", scores[1])]
        assert code_of(EvaluationLog.read, write_harness(tmp_path / str(i), "sums", records)) == "grade"


def test_nan_and_null_scores_of_choices_are_not_graded(tmp_path):
    records = [
        choice_record(i, [-1, -2], CHOICES[:2], 0, target="a", acc=s) for i, s in enumerate([1.0, None, math.nan])
    ]
    log = EvaluationLog.read(write_harness(tmp_path, "colors", records))
    assert [row.correct for row in log.rows] == [1.0, None, None]
    assert log.accuracy() == 1.0


@pytest.mark.parametrize("grade", [1 / 3, str(1 / 3), "0,3333333333333333"])
def test_grades_have_any_number_of_digits(tmp_path, grade):
    lines = write_lines(tmp_path / "own.jsonl", [{"id": 0, "confidence": 0.5, "correct": grade}])
    sample = inspect_sample("a", 1, {"judge": {"value": grade, "metadata": {"confidence": 0.5}}})
    for path in (lines, write_inspect(tmp_path / "log.json", inspect_log([sample]))):
        assert EvaluationLog.read(path).rows[0].correct == pytest.approx(1 / 3, abs=1e-12)


def test_unknown_confidences_are_refused(tmp_path):
    sample = inspect_sample("a", 1, {"judge": {"value": "C", "metadata": {"confidence": 0.5}}})
    paths = [
        write_harness(tmp_path, "sums", [generation_record(0, "4", 1.0)]),
        write_inspect(tmp_path / "log.json", inspect_log([sample])),
        write_helm(tmp_path / "helm", [("1", "A", -0.1, 1.0)]),
        write_lines(tmp_path / "own.jsonl", [{"id": 0, "confidence": 0.5, "correct": 1}]),
    ]
    for path in paths:
        assert code_of(EvaluationLog.read, path, confidence="stated_confidence") == "unknown_confidence"


def test_models_in_one_file_are_refused(tmp_path):
    records = [{"id": 0, "model": name, "confidence": 0.5, "correct": 1} for name in ("a", "b")]
    assert code_of(EvaluationLog.read, write_lines(tmp_path / "own.jsonl", records)) == "several_models"


def test_helm_probabilities_are_valid(tmp_path):
    answers = [(str(i), "A", value, 1.0) for i, value in enumerate([-0.1, math.nan, 0.5, 1e-9])]
    log = EvaluationLog.read(write_helm(tmp_path, answers))
    assert [row.confidence for row in log.rows] == [pytest.approx(math.exp(-0.1), abs=1e-12), None, None, 1.0]


def test_inspect_scores_and_metadata_of_any_type(tmp_path):
    samples = [inspect_sample("a", 1, {"judge": {"value": "C"}}), inspect_sample("b", 1, {"judge": None})]
    samples[0]["metadata"] = [1]
    log = EvaluationLog.read(write_inspect(tmp_path / "log.json", inspect_log(samples)))
    assert [row.correct for row in log.rows] == [1.0, None]


def test_unfinished_evaluations_are_noted(tmp_path):
    sample = inspect_sample("a", 1, {"judge": {"value": {"score": "C", "confidence": 0.5}}})
    notes = [
        EvaluationLog.read(write_inspect(tmp_path / f"{status}.json", inspect_log([sample]) | {"status": status})).notes
        for status in ("success", "cancelled")
    ]
    assert not any("cancelled" in note for note in notes[0])
    assert any("cancelled" in note for note in notes[1])
    assert any("'judge/score'" in note for note in notes[1])


def test_fractions_read_as_percentages_are_noted(tmp_path):
    records = [{"id": i, "confidence": value, "correct": 1} for i, value in enumerate([85, 0.85])]
    log = EvaluationLog.read(write_lines(tmp_path / "own.jsonl", records), percent=True)
    assert [row.confidence for row in log.rows] == [0.85, 0.0085]
    assert any(note.startswith("1 stated") for note in log.notes)


def test_damaged_lines_are_refused(tmp_path):
    path = write_lines(tmp_path / "own.jsonl", [{"id": i, "confidence": 0.5, "correct": 1} for i in range(3)])
    path.write_text(path.read_text()[:-10])
    with refused("unreadable", "line 3"):
        EvaluationLog.read(path)
    write_lines(path, [generation_record(0, "4", 1.0), {"id": 0, "confidence": 0.5, "correct": 1}])
    assert code_of(EvaluationLog.read, path) == "mixed_lines"


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}' * 999)[:-20], "unreadable"),
        ("b.jsonl", b"[" * 10**5, "too_deep"),
        ("c.jsonl.gz", gzip.compress(b"0" * 10**8), "expansion"),
        ("d.jsonl.zst", compress_zstandard(b"0" * 10**8), "expansion"),
    ],
    ids=["cut", "deep", "gzip_bomb", "zstandard_bomb"],
)
def test_unreadable_lines_are_refused_by_every_command(tmp_path, name, content, code):
    (tmp_path / name).write_bytes(content)
    for command in ("measure", "card"):
        finished = run(command, tmp_path / name)
        assert (finished.returncode, finished.code) == (2, code)


def test_repeated_keys_are_refused_in_every_format(tmp_path):
    records = [{"id": i, "confidence": 0.5, "correct": 1} for i in range(3)]
    lines = write_lines(tmp_path / "own.jsonl", records)
    lines.write_text(lines.read_text().replace('{"id": 1', '{"correct": 0, "id": 1'))
    values = tmp_path / "own.json"
    values.write_text(json.dumps(records).replace('{"id": 1', '{"correct": 0, "id": 1'))
    run_folder = write_helm(tmp_path / "run", [("id0", "A", -0.5, 1.0)])
    state = run_folder / "scenario_state.json"
    state.write_text(state.read_text().replace('"logprob": -0.5,', '"logprob": -0.1, "logprob": -0.5,'))
    archive = tmp_path / "a.eval"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("header.json", json.dumps(inspect_log([])))
        file.writestr("samples/1.json", '{"id": 1, "id": 2, "scores": {}}')
    places = {lines: "line 2", values: "'correct'", run_folder: state.name, archive: "samples/1.json"}
    for path, place in places.items():
        with refused("repeated_key", place):
            EvaluationLog.read(path)


def test_list_of_logs_has_each_file_once(tmp_path):
    write_lines(tmp_path / "a.jsonl", [{"id": i, "correct": 1, "confidence": 0.5} for i in range(3)])
    assert (
        code_of(EvaluationLog.read, [tmp_path / "a.jsonl", tmp_path / ".." / tmp_path.name / "a.jsonl"])
        == "repeated_log"
    )
    assert code_of(EvaluationLog.read, []) == "no_log"


def test_whole_ids_are_the_same_question_in_any_form(tmp_path):
    ids = (7, 7.0, "7", 7.5)
    write_lines(tmp_path / "a.jsonl", [{"id": id_, "correct": 1, "confidence": 0.5} for id_ in ids])
    assert [row.question for row in EvaluationLog.read(tmp_path / "a.jsonl").rows] == ["7", "7", "7", "7.5"]


def test_missing_ids_are_no_repeats_of_other_questions(tmp_path):
    ids = ({"id": 1}, {}, {"id": None}, {"id": ""})
    write_lines(tmp_path / "a.jsonl", [id_ | {"correct": 1, "confidence": 0.5} for id_ in ids])
    assert EvaluationLog.read(tmp_path / "a.jsonl").num_questions == 4
