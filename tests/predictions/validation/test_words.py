"""One vocabulary of right and wrong, in tables and logs, and the class that an error suggests as positive."""

import json

import numpy as np
import polars
import pytest
from refusals import refused

from calibrant import EvaluationLog, Predictions
from calibrant.io.cells import to_numbers
from calibrant.predictions.validation.words import NO_WORDS, YES_WORDS, outcome_scores


def read_both(tmp_path, words):
    """Return the scores that a table and a log read from the words for outcomes."""
    records = [{"id": i, "confidence": 0.5, "correct": word} for i, word in enumerate(words)]
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    log = EvaluationLog.read(path)
    return to_numbers(polars.Series(words), accept_truth_words=True).to_list(), [row.correct for row in log.rows], log


@pytest.mark.parametrize(
    "words",
    [
        ["y", "n"],
        ["Yes", "No"],
        ["C", "I", "P"],
        ["right", "WRONG"],
        ["ja", "nein"],
        ["vrai", "faux"],
        ["pass", "fail"],
    ],
)
def test_tables_and_logs_read_the_same_words(tmp_path, words):
    from_table, from_log, log = read_both(tmp_path, words)
    assert from_table == from_log == [1, 0, 0.5][: len(words)]
    assert log.predictions.num_examples == len(words)


def test_n_is_no_beside_y_and_no_answer_beside_c(tmp_path):
    _, scores, log = read_both(tmp_path, ["n" if i % 3 == 0 else "y" for i in range(99)])
    assert np.mean(scores) == pytest.approx(2 / 3)
    assert len(log.predictions) == 99
    assert outcome_scores(["C", "I"])["n"] is None
    with refused("not_numbers", "'N'"):  # the table says how to leave the row out
        to_numbers(polars.Series(["C", "N"]), accept_truth_words=True)


def test_p_alone_has_no_score():
    with refused("not_numbers"):
        to_numbers(polars.Series(["p", "f"]), accept_truth_words=True)


def test_no_word_means_both():
    assert not {*YES_WORDS} & {*NO_WORDS}


@pytest.mark.parametrize("labels", [("ja", "nein"), ("oui", "non"), ("sí", "falso")])
def test_the_suggested_positive_class_is_not_the_word_for_no(tmp_path, labels):
    path = tmp_path / "t.csv"
    path.write_text("score,label\n" + "".join(f"0.{i + 1},{labels[i % 2]}\n" for i in range(8)))
    if labels[0] == "ja":  # the others are read in the same way
        with refused("ambiguous_positive", f'positive="{labels[0]}"') as caught:
            Predictions.load(path, positive=None)
        assert f'positive="{labels[1]}"' not in str(caught.value)
    p = Predictions.load(path, positive=labels[0])
    assert p.labels.tolist() == [1, 0] * 4
