"""Logs of several servers: tokens, sentinels, choices, keys of questions, and damaged archives."""

import json
import math
import random
from math import log

import numpy as np
import pytest
from evaluation_logs import inspect_log, inspect_sample, write_inspect
from refusals import code_of
from typer.testing import CliRunner

from calibrant import EvaluationLog, InputError
from calibrant.cli import app
from calibrant.language_models import choice_probabilities

TOP = [{"token": " B", "logprob": log(0.1)}, {"token": "A", "logprob": log(0.1)}, {"token": "So", "logprob": -9999.0}]
ENTRY = {"token": "B", "logprob": log(0.7), "top_logprobs": TOP}
GEMINI_TOP = [{"token": entry["token"], "logProbability": entry["logprob"]} for entry in TOP]
MESSAGE = {"type": "message", "content": [{"type": "output_text", "text": "B", "logprobs": [ENTRY]}]}
RESPONSES = {
    "chat": {"choices": [{"message": {"content": "B"}, "logprobs": {"content": [ENTRY]}}]},
    "completions": {
        "choices": [{
            "text": "B",
            "logprobs": {
                "tokens": ["", "B"],
                "token_logprobs": [None, log(0.7)],
                "top_logprobs": [None, {entry["token"]: entry["logprob"] for entry in TOP}],
            },
        }],
        "prompt_logprobs": [None, {"12": {"logprob": -1.0}}],
    },
    "responses": {"output": [{"type": "reasoning", "summary": []}, MESSAGE]},
    "ollama": {"model": "m", "response": "B", "done": True, "logprobs": [ENTRY]},
    "ollama chat": {"model": "m", "message": {"role": "assistant", "content": "B"}, "logprobs": [ENTRY]},
    "gemini": {
        "candidates": [{
            "content": {"parts": [{"text": "Hm", "thought": True}, {"text": "B"}]},
            "avgLogprobs": log(0.7),
            "logprobsResult": {
                "chosenCandidates": [{"token": "B", "logProbability": log(0.7)}],
                "topCandidates": [{"candidates": GEMINI_TOP}],
            },
        }],
    },
}  # fmt: skip


def read(tmp_path, records, **options):
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return EvaluationLog.read(path, **options)


@pytest.mark.parametrize("name", RESPONSES)
def test_tokens_of_every_server(tmp_path, name):
    for record in (RESPONSES[name] | {"id": 1, "correct": 1}, {"id": 1, "correct": 1, "response": RESPONSES[name]}):
        for source, expected in ((None, 0.7), ("tokens", 0.7), ("mean_token", 0.7), ("choices", 0.8 / 0.9)):
            (row,) = read(tmp_path, [record], confidence=source).rows
            assert row.confidence == pytest.approx(expected, abs=1e-12), source


@pytest.mark.parametrize("name", RESPONSES)
def test_texts_of_every_server(tmp_path, name):
    text = json.dumps(RESPONSES[name]).replace('"B"', '"B. Confidence: 85%"')
    (row,) = read(tmp_path, [{"id": 1, "correct": 1, "response": json.loads(text)}], confidence="stated").rows
    assert row.confidence == 0.85


def test_the_mean_of_gemini_without_tokens(tmp_path):
    record = {"id": 1, "correct": 1, "candidates": [{"content": {"parts": [{"text": "B"}]}, "avgLogprobs": log(0.6)}]}
    assert read(tmp_path, [record], confidence="mean_token").rows[0].confidence == pytest.approx(0.6)
    assert read(tmp_path, [record], confidence="tokens").rows[0].confidence is None


SENTINELS = [-9999.0, -math.inf, -100.0, None]


@pytest.mark.parametrize("source", ["tokens", "mean_token"])
def test_sentinels_are_missing_and_counted(tmp_path, source):
    values = [*SENTINELS, -0.1, -30.0]
    records = [
        {"id": i, "correct": 1, "logprobs": {"content": [{"token": "a", "logprob": v}, {"token": "b", "logprob": 0.0}]}}
        for i, v in enumerate(values)
    ]
    log = read(tmp_path, records, confidence=source)
    assert [row.confidence is None for row in log.rows] == [True] * 4 + [False] * 2
    assert {row.reason for row in log.rows[:4]} == {"unknown token probability"}
    assert "(unknown token probability: 4)" in log.notes[-1]


def test_only_the_first_token_may_be_null(tmp_path):
    for values, expected in (([None, log(0.5)], 0.5), ([log(0.5), None, log(0.5)], None), ([log(0.5), None], None)):
        record = {"id": 1, "correct": 1, "logprobs": {"token_logprobs": values}}
        assert read(tmp_path, [record]).rows[0].confidence == (None if expected is None else pytest.approx(expected))


BAD_LOG_PROBS = [
    {"content": [{"token": "a", "prob": 0.9}]},
    {"content": [1]},
    {"content": 5},
    {"content": {"a": 1}},
    {"content": [{"token": 1, "logprob": -1}]},
    {"content": [{"token": "a", "logprob": "x"}]},
    {"content": [{"token": "a", "logprob": -1, "top_logprobs": 3}]},
    {"token_logprobs": 5},
    {"token_logprobs": ["x"]},
    {"token_logprobs": [-1], "tokens": 3},
    [{"logprob": []}],
    [1],
    5,
]


@pytest.mark.parametrize("log_probs", BAD_LOG_PROBS, ids=str)
def test_log_probabilities_of_other_types_give_one_line(tmp_path, log_probs):
    path = tmp_path / "first.jsonl"
    path.write_text(json.dumps({"id": 1, "correct": 1, "logprobs": log_probs}) + "\n")
    result = CliRunner().invoke(app, ["measure", str(path)])
    assert isinstance(result.exception, InputError | SystemExit), result.exception


def test_the_mass_outside_the_choices():
    top = {"A": log(0.5), " A": log(0.25), "B.": log(0.05), "The": log(0.1), "C": -9999.0}
    shares, outside = choice_probabilities(top, "ABC")
    assert shares == pytest.approx({"A": 0.75 / 0.8, "B": 0.05 / 0.8})
    assert outside == pytest.approx(0.2)
    assert choice_probabilities({"The": 0.0}, "AB") == ({}, 1.0)


def test_the_word_i_is_no_choice(tmp_path):
    words = [{"token": "I", "logprob": -0.1, "top_logprobs": [{"token": "A", "logprob": -3.0}]}, ENTRY]
    record = {"id": 1, "correct": 1, "logprobs": {"content": words}}
    assert read(tmp_path, [record], confidence="choices").rows[0].confidence == pytest.approx(0.8 / 0.9)


# Keys


def test_questions_are_keys_of_a_task_and_an_id(tmp_path):
    keys = [("a", "b/c"), ("a/b", "c"), ("a", "d"), ("a", "d")]
    records = [{"task": task, "id": name, "confidence": 0.5, "correct": 1} for task, name in keys]
    log = read(tmp_path, records)
    assert log.num_questions == 3
    assert np.unique(log.predictions.clusters).size == 3


def test_a_subject_named_like_a_missing_one_is_another_group(tmp_path):
    names = ["no subject", None, "x", "x", "no subject", None]
    records = [{"id": i, "confidence": 0.5, "correct": 1, "topic": name} for i, name in enumerate(names)]
    p = read(tmp_path, records, subject="topic").predictions
    assert len(p.group_names) == 3
    assert np.bincount(p.groups).tolist() == [2, 2, 2]


# Damage


def test_a_flipped_bit_in_an_archive_changes_nothing_silently(tmp_path):
    samples = [
        inspect_sample(i, 1, {"judge": {"value": "CI"[i % 2]}}, metadata={"confidence": i / 8}) for i in range(5)
    ]
    path, damaged = tmp_path / "a.eval", tmp_path / "b.eval"
    content = write_inspect(path, inspect_log(samples)).read_bytes()
    rows = EvaluationLog.read(path).rows
    directory = content.index(b"PK\x01\x02")
    generator = random.Random(1)
    positions = [*generator.sample(range(directory), 10), *generator.sample(range(directory, len(content)), 30)]
    refused = 0
    for position in positions:
        flipped = bytearray(content)
        flipped[position] ^= 1 << generator.randrange(8)
        damaged.write_bytes(flipped)
        try:
            assert EvaluationLog.read(damaged).rows == rows, position
        except InputError:
            refused += 1
    assert refused > len(positions) / 3


def test_a_damaged_name_or_count_is_refused(tmp_path):
    samples = [inspect_sample(i, 1, {"judge": {"value": "C"}}) for i in range(3)]
    content = write_inspect(tmp_path / "a.eval", inspect_log(samples)).read_bytes()
    directory = content.index(b"PK\x01\x02")
    name = content.index(b"samples/1_", directory)
    for position, value in ((name, ord("r")), (name + 8, ord("2")), (len(content) - 12, 9)):
        damaged = bytearray(content)
        damaged[position] = value
        (tmp_path / "b.eval").write_bytes(damaged)
        assert code_of(EvaluationLog.read, tmp_path / "b.eval") == "unreadable"


def test_unreadable_confidences_are_listed_by_form(tmp_path):
    stated = ["80-90%", "quite sure", "70-80%", "85%", ">90%", "60 - 70%", "10-20%"]
    log = read(tmp_path, [{"id": i, "confidence": text, "correct": 1} for i, text in enumerate(stated)])
    note = next(note for note in log.notes if "by form" in note)
    assert note.index("'80-90%' (3)") < note.index("'quite sure' (1)") < note.index("'>90%' (1)")
