"""Calibration cards: invariances, ranks, files and the command."""

import json
import math
import re

import numpy as np
import pytest
from commands import run
from evaluation_logs import write_lines
from refusals import code_of
from rendered import assert_rendered

from calibrant import EvaluationLog, metrics
from calibrant.io.logs import LogRow, Outcome
from calibrant.language_models.cards import card

CONFIDENCES = np.array([0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0])


def make_log(seed, n=300, skill=0.0, model="m", missing=0.1, repeats=1):
    """Return a log whose confidences are partly missing, and whose scores depend on the question and the model."""
    difficulty = np.random.default_rng(7).random(n)
    rng = np.random.default_rng(seed)
    rows = []
    for i in range(n):
        for epoch in range(1, repeats + 1):
            correct = float(rng.random() < np.clip(0.8 - 0.6 * difficulty[i] + skill, 0, 1))
            confidence = float(rng.choice(CONFIDENCES))
            outcome = Outcome.WITH_CONFIDENCE
            if rng.random() < missing:
                outcome, confidence = Outcome.WITHOUT_CONFIDENCE, None
            if rng.random() < 0.05:
                outcome, confidence, correct = Outcome.NOT_ANSWERED, None, 0.0
            rows.append(LogRow("quiz", str(i), epoch, ("maths", "art")[i % 2], outcome, correct, confidence))
    return EvaluationLog(tuple(rows), model=model)


def numbers(content):
    """Return all numbers of a card by their place, without those that follow the order of the file."""
    flat = {}

    def visit(value, place):
        if isinstance(value, dict):
            for key, item in value.items():
                if key not in ("conventions", "provenance", "answers", "outcomes", "missing_confidence_bounds"):
                    visit(item, (*place, key))
        elif isinstance(value, list):
            for i, item in enumerate(value):
                visit(item, (*place, i))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[place] = value

    visit(content, ())
    return flat


def content_of(log):
    return numbers(json.loads(card(log).json())["models"])


@pytest.mark.parametrize("repeats", [1, 3])
def test_order_of_rows_changes_no_number_of_ours(repeats):
    log = make_log(0, repeats=repeats)
    order = np.random.default_rng(1).permutation(len(log))
    shuffled = EvaluationLog(tuple(log.rows[i] for i in order), model="m")
    assert content_of(shuffled) == pytest.approx(content_of(log), abs=1e-9)


def test_repeating_all_answers_changes_no_number():
    log = make_log(2)
    copies = [LogRow(r.task, r.question, 2, r.subject, r.outcome, r.correct, r.confidence) for r in log.rows]
    assert content_of(EvaluationLog(log.rows + tuple(copies), model="m")) == pytest.approx(content_of(log), abs=1e-9)


def test_numbers_are_those_of_the_metrics():
    log = make_log(3)
    model = card(log).models[0]
    p = log.predictions
    assert model.numbers["ece"].value == pytest.approx(float(metrics.ece(p)))
    assert model.numbers["event_brier"].value == pytest.approx(float(metrics.event_brier(p)))
    assert model.numbers["auroc"].value == pytest.approx(float(metrics.auroc(p)))
    assert model.accuracy.value == pytest.approx(log.accuracy())
    assert sum(model.outcomes.values()) == model.answers == 300
    last = model.coverage[-1]
    assert (last.coverage, last.accuracy) == (1.0, pytest.approx(float(p.events.outcome.mean())))
    assert all(row.low <= row.accuracy <= row.high for row in model.coverage)
    c, a = p.events.confidence, p.events.outcome
    for row in model.policies:
        score = (c >= row.target - 1e-9) * (a - (1 - a) * row.target / (1 - row.target))
        assert row.score.value == pytest.approx(float(score.mean()))
    assert {subject.name for subject in model.subjects} == {"maths", "art"}


def test_missing_confidences_lie_within_the_bounds():
    complete = make_log(4, missing=0.0)
    rows = [
        LogRow(r.task, r.question, 1, r.subject, Outcome.WITHOUT_CONFIDENCE, r.correct, None)
        if i % 9 == 0 and r.outcome is Outcome.WITH_CONFIDENCE
        else r
        for i, r in enumerate(complete.rows)
    ]
    model, full = card(EvaluationLog(tuple(rows), model="m")).models[0], card(complete).models[0]
    assert full.numbers["signed_gap"].value in model.bounds["signed_gap"]
    assert full.numbers["event_brier"].value in model.bounds["brier"]


@pytest.mark.slow
def test_ranks_hold_the_true_order():
    """Of 40 draws of four models, two of them equal, the rank intervals hold all true ranks in nearly all."""
    skills = {"best": 0.15, "twin a": 0.0, "twin b": 0.0, "worst": -0.15}
    possible = {"best": {1}, "twin a": {2, 3}, "twin b": {2, 3}, "worst": {4}}
    covering, separated = 0, 0
    for seed in range(40):
        logs = [make_log(100 * seed + i, skill=s, model=name) for i, (name, s) in enumerate(skills.items())]
        rows = {row.model: row for row in card(logs).rankings[0].rows}
        covering += all(
            rows[name].best <= min(ranks) and max(ranks) <= rows[name].worst for name, ranks in possible.items()
        )
        separated += rows["best"].worst < rows["worst"].best
    assert covering >= 35
    assert separated >= 30


def test_identical_models_share_all_ranks():
    log = make_log(5)
    ranking = card({"a": log, "b": log}).rankings[0]
    assert [(row.best, row.worst) for row in ranking.rows] == [(1, 2), (1, 2)]


def test_models_without_shared_questions_have_no_ranks():
    rows = make_log(6).rows
    renamed = tuple(LogRow(r.task, "x" + r.question, 1, None, r.outcome, r.correct, r.confidence) for r in rows)
    assert card({"a": EvaluationLog(rows), "b": EvaluationLog(renamed)}).rankings == ()


def test_equal_ids_of_different_tasks_are_different_questions(tmp_path):
    rows = [{"id": i, "correct": i % 2, "confidence": 0.5 + i / 50} for i in range(20)]
    named = {task: write_lines(tmp_path / f"{task}.jsonl", [r | {"task": task} for r in rows]) for task in ("a", "b")}
    assert card({name: EvaluationLog.read(path) for name, path in named.items()}).rankings == ()
    unnamed = {name: write_lines(tmp_path / f"file_{name}.jsonl", rows) for name in ("a", "b")}
    rankings = card({name: EvaluationLog.read(path) for name, path in unnamed.items()}).rankings
    assert [ranking.questions for ranking in rankings] == [20, 20]


def test_subjects_with_the_most_answers_are_listed():
    subjects = [f"s{i // 2:03d}" for i in range(402)] + ["z"] * 5
    rows = [
        LogRow("quiz", str(i), 1, name, Outcome.WITH_CONFIDENCE, float(i % 2), 0.9) for i, name in enumerate(subjects)
    ]
    model = card(EvaluationLog(tuple(rows))).models[0]
    assert len(model.subjects) == 200
    assert "z" in {row.name for row in model.subjects}
    assert len(model.notes) == 1


def test_repeated_model_names_are_numbered():
    assert [model.name for model in card([make_log(1), make_log(2)]).models] == ["m", "m (2)"]


def test_impossible_cards_are_refused():
    assert code_of(card, make_log(0, n=1, missing=0.0, repeats=3)) == "one_question"
    assert code_of(card, []) == "no_log"
    row = LogRow("quiz", "1", 1, None, Outcome.WITHOUT_CONFIDENCE, 1.0, None)
    assert code_of(card, EvaluationLog((row,))) == "no_confidence"
    assert code_of(card(make_log(0)).save, "card.txt") == "suffix"


@pytest.mark.parametrize("n", [1, 2, 5])
def test_card_of_few_answers_is_complete(n):
    rows = tuple(LogRow("q", str(i), 1, None, Outcome.WITH_CONFIDENCE, float(i % 2), 0.9) for i in range(n))
    content = json.loads(card(EvaluationLog(rows)).json())
    assert content["models"][0]["answers"] == n
    assert card(EvaluationLog(rows)).html()
    assert str(card(EvaluationLog(rows)))


def test_fractional_scores_leave_out_the_published_conventions():
    rows = tuple(LogRow("q", str(i), 1, None, Outcome.WITH_CONFIDENCE, (i % 3) / 2, 0.02 * i) for i in range(40))
    (model,) = card(EvaluationLog(rows)).models
    assert (model.conventions, model.bounds) == ({}, {})


@pytest.fixture
def folder(tmp_path):
    """Write the logs of two models as JSON lines."""
    for i, name in enumerate(("small", "large")):
        log = make_log(i, skill=0.2 * i, model=name)
        records = [
            {"question_id": r.question, "subject": r.subject, "confidence": r.confidence, "correct": r.correct}
            for r in log.rows
        ]
        write_lines(tmp_path / f"{name}.jsonl", records)
    return tmp_path


def test_command_prints_and_writes_the_card(folder):
    finished = run("card", "small.jsonl", "large.jsonl", "--html", "card.html", "--json", "card.json", folder=folder)
    assert (finished.returncode, finished.stderr) == (0, "")
    # The errors of HLE, unlike their ranges, depend on the processor's order of equal confidences
    assert_rendered("card", re.sub(r"0\.\d{4} (?=\(0\.\d{4} to)", "0.____ ", finished.stdout))
    assert max(map(len, finished.stdout.splitlines())) <= 80
    content = json.loads((folder / "card.json").read_text())
    assert [model["name"] for model in content["models"]] == ["small", "large"]
    assert [ranking["score"] for ranking in content["rankings"]] == ["accuracy", "Brier score of stated confidences"]
    page = (folder / "card.html").read_text()
    assert "small" in page
    assert page.count("<svg") >= 2


def test_level_widens_the_intervals_of_the_card(folder):
    contents = [
        json.loads(run("card", "small.jsonl", "--level", x, "--json", "-", folder=folder).stdout) for x in (0.5, 0.99)
    ]
    assert [content["level"] for content in contents] == [0.5, 0.99]
    inner, outer = (content["models"][0]["accuracy"] for content in contents)
    assert outer["low"] < inner["low"] < inner["high"] < outer["high"]


def test_names_are_escaped_on_the_page(folder):
    finished = run("card", "small.jsonl", "--name", "<script>alert(1)</script>", "--html", "c.html", folder=folder)
    assert finished.returncode == 0
    assert "<script>alert" not in (folder / "c.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("small.jsonl", "small.jsonl"), "repeated_names"),
        (("small.jsonl", "--name", "a", "--name", "b"), "num_names"),
        (("small.jsonl", "--html", "card.txt"), "suffix"),
        (("small.jsonl", "--json", "small.jsonl"), "output_is_input"),
        (("small.jsonl", "--task", "other"), "unknown_task"),
    ],
)
def test_command_refuses_in_one_line(folder, arguments, code):
    finished = run("card", *arguments, folder=folder)
    assert (finished.returncode, finished.code, len(finished.stderr.splitlines())) == (2, code, 1)


def test_floor_and_p_value_are_finite():
    model = card(make_log(8)).models[0]
    assert math.isfinite(model.noise_floor.high)
    assert 0 <= model.p_value <= 1


def ungraded_log(seed, graded, n=400):
    """Return a log of which only the first answers are graded."""
    rng, rows = np.random.default_rng(seed), []
    for i in range(n):
        confidence = float(rng.choice(CONFIDENCES[1:]))
        correct, outcome = float(rng.random() < 0.2 + 0.5 * confidence), Outcome.WITH_CONFIDENCE
        if i >= graded:
            correct, outcome = None, Outcome.NOT_ANSWERED
        rows.append(LogRow("quiz", str(i), 1, ("maths", "art")[i % 2], outcome, correct, confidence))
    return EvaluationLog(tuple(rows), model="m")


def test_a_card_without_grades_has_no_accuracy():
    result = card(ungraded_log(0, graded=0))
    content = json.loads(result.json())
    assert content["models"] == []
    assert content["ungraded"][0]["accuracy"] == {"value": None, "low": 0.0, "high": 1.0}
    assert (content["ungraded"][0]["graded"], content["ungraded"][0]["ungraded"]) == (0, 400)
    assert "nothing reveals the accuracy" in result.ungraded[0].sentence
    assert result.ungraded[0].sentence in " ".join(str(result).split())
    assert result.ungraded[0].sentence in result.html().replace("\N{NO-BREAK SPACE}", " ")
    names = [answer["question"] for answer in content["ungraded"][0]["grade_next"]]
    assert len(set(names)) == 200  # of 400 questions, in a random order
    assert not set(names[:100]) <= set(map(str, range(200)))
    assert f"{names[0]}, {names[1]}, {names[2]}" in result.html()
    assert f"{names[0]}, {names[1]}, {names[2]}" in " ".join(str(result).split())


def test_answers_to_grade_are_ungraded_and_spread_over_the_confidences():
    log = ungraded_log(4, graded=100)
    planned = [int(question) for _, question in card(log).ungraded[0].grade_next]
    assert min(planned) >= 100
    confidences = np.array([row.confidence for row in log.rows])
    shares = [(confidences[rows] >= 0.8).mean() for rows in (planned, range(100, 400))]
    assert shares[0] == pytest.approx(shares[1], abs=0.01)  # the standard error of a random sample is .02


def test_few_grades_and_the_rest_give_the_accuracy_of_all():
    log = ungraded_log(1, graded=60)
    result = card(log)
    estimate, model = result.ungraded[0], result.models[0]
    assert (estimate.graded, estimate.ungraded, estimate.prior_models) == (60, 340, 0)
    assert estimate.accuracy.high - estimate.accuracy.low < model.accuracy.high - model.accuracy.low
    assert estimate.gap.value == pytest.approx(estimate.confidence - estimate.accuracy.value)
    assert model.outcomes["with a confidence but no grade"] == 340
    assert (model.not_answered.value, model.with_confidence.value) == (0.0, 1.0)


def test_complete_models_of_a_card_inform_those_without_grades():
    complete = {f"model {i}": ungraded_log(10 + i, graded=400) for i in range(3)}
    result = card({"new": ungraded_log(2, graded=30), "ungraded": ungraded_log(3, graded=0), **complete})
    assert [estimate.prior_models for estimate in result.ungraded] == [3, 3]
    assert [model.name for model in result.models] == ["new", *complete]
    assert card(complete).ungraded == ()


def test_the_command_reads_answers_without_grades(tmp_path):
    records = [{"question_id": i, "confidence": 0.5 + 0.05 * (i % 10), "correct": None} for i in range(50)]
    path = write_lines(tmp_path / "answers.jsonl", records)
    assert run("card", path, "--json", tmp_path / "card.json", "--html", tmp_path / "card.html").returncode == 0
    assert json.loads((tmp_path / "card.json").read_text())["ungraded"][0]["ungraded"] == 50
