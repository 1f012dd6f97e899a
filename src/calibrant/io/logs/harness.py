"""Logs of lm-evaluation-harness: `samples_TASK_DATE.jsonl`, one line per document and filter.

Log-likelihoods are strings. `acc_norm` divides them by the characters of a choice, `acc_bytes` by its UTF-8 bytes, both
without the delimiter before it; `acc_mutual_info` subtracts log-likelihoods with an empty prompt, their second half.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.foreign import check_shape
from calibrant._core.types import InputError
from calibrant.io.logs.confidences import as_object, find_stated_confidence, parse_grade, read_grade
from calibrant.io.logs.rows import (
    LogAnswer,
    LogContent,
    LogOptions,
    Record,
    select_name,
    select_single_name,
    top_probability,
)

HARNESS = "lm-evaluation-harness"
NORMALIZATIONS = {  # of the log-likelihoods of choices, with the words for a note
    "acc": "",
    "acc_norm": " per character",
    "acc_bytes": " per byte",
    "acc_mutual_info": " less those with an empty prompt",
}
INVALID_RESPONSE = "[invalid]"  # of a filter whose pattern found nothing
NO_FILTER = "none"
DELIMITER = " "  # before each choice
_SCALAR = (str, int, float)
RECORD_SHAPE = {"doc_id": _SCALAR, "filter": str, "metrics": [str], "arguments": (dict, list), "filtered_resps": list}
_FILE_NAME = re.compile(r"samples_(.+)_\d{4}-\d\d-\d\dT[\d.:-]+")


def is_record(record: Record) -> bool:
    """Whether a JSON object is a line of a log of the evaluation harness."""
    return {"doc_id", "doc", "filtered_resps"} <= {*record}


def task_name(path: Path) -> str | None:
    """Return the task that the name of a file tells, or None if the harness did not name it."""
    match = _FILE_NAME.fullmatch(path.name.split(".jsonl")[0])
    return match[1] if match else None


def read_records(records: Sequence[Record], path: Path, options: LogOptions) -> LogContent:
    """Return the answers of a file of one task, which is multiple choice if all records score choices.

    Raises:
        InputError: If the confidence is to be read from elsewhere than responses, or a filter or score is ambiguous.
    """
    if options.confidence not in (None, "stated"):
        raise InputError(
            f"Expected 'stated', or no confidence, for a log of {HARNESS}, got {options.confidence!r}.",
            code="unknown_confidence",
        )
    check_shape(records, [RECORD_SHAPE], "lines")
    name = task_name(path)
    task = name or path.name.split(".")[0].removeprefix("samples_")
    records, notes = _select_filter(records, options.filter)
    choices = [scores for record in records if (scores := _choice_scores(record)) is not None]
    if len(choices) == len(records):
        answers, more_notes = _read_choices(records, choices, task, options)
    else:
        score = _select_score(records, options.score)
        answers = [_generation_answer(record, task, score, options.confidence) for record in records]
        more_notes = [f"Answers are graded by {score!r}."]
    model = path.parent.name if name else None  # the harness writes to a folder per model
    return LogContent(HARNESS, answers, model, (*notes, *more_notes), has_task_name=name is not None)


def _select_filter(records: Sequence[Record], candidates: Sequence[str]) -> tuple[list[Record], list[str]]:
    """Return the records of one filter, and a note on it unless it is the harness's "none".

    A filter extracts the answer from a response. The log has a record for each question and filter.

    Args:
        records: All records of a log.
        candidates: Filters that the caller chose, of which the first in the log counts. Without any, the log must have
            one filter only.
    """
    names = list(dict.fromkeys(str(record.get("filter", NO_FILTER)) for record in records))
    # A task without filters has no use for a candidate
    name = select_single_name([] if names == [NO_FILTER] else candidates, names, "filter", "--filter")
    selected = [record for record in records if str(record.get("filter", NO_FILTER)) == name]
    return selected, [] if name == NO_FILTER else [f"The filter is {name!r}."]


# Multiple choice


@dataclass(frozen=True)
class ChoiceScores:
    """Log-likelihoods of the choices of one question."""

    log_likelihoods: np.ndarray
    unconditional: np.ndarray | None  # with an empty prompt, if the log has them
    choices: tuple[str, ...] | None  # texts, or None if the choices are in the prompts

    def normalized(self, name: str) -> np.ndarray:
        """Return the log-likelihoods as the score `name` compares them.

        "acc" leaves them as they are, "acc_mutual_info" subtracts the ones with an empty prompt, and "acc_norm" and
        "acc_bytes" divide them by the number of characters or UTF-8 bytes of the choice.

        Raises:
            InputError: If the log lacks what the score needs.
        """
        if name == "acc":
            return self.log_likelihoods
        if name == "acc_mutual_info":
            if self.unconditional is None:
                raise InputError(
                    "Expected log-likelihoods of the choices alone for acc_mutual_info, got none. Try another score.",
                    code="unknown_score",
                )
            return self.log_likelihoods - self.unconditional
        if self.choices is None:
            raise InputError(
                f"Expected the text of choices for {name}, got prompts with one continuation. Try score='acc'.",
                code="unknown_score",
            )
        lengths = [len(choice if name == "acc_norm" else choice.encode()) for choice in self.choices]
        with np.errstate(divide="ignore", invalid="ignore"):  # the result for an empty choice is refused later
            return self.log_likelihoods / np.array(lengths, dtype=float)


def _choice_scores(record: Record) -> ChoiceScores | None:
    """Return the log-likelihoods of a multiple-choice question, or None for another kind of task.

    Multiple choice has several responses, each a pair of a log-likelihood and whether greedy decoding gives the choice.
    """
    pairs = record["filtered_resps"]
    if not (isinstance(pairs, list) and len(pairs) > 1 and all(isinstance(p, list) and len(p) == 2 for p in pairs)):
        return None
    try:
        values = np.array([float(log_likelihood) for log_likelihood, _ in pairs])
    except (TypeError, ValueError):
        return None
    unconditional = None
    # Then all choices after the prompt are followed by all choices after an empty prompt
    if "acc_mutual_info" in record.get("metrics", ()) and len(values) % 2 == 0:
        values, unconditional = np.split(values, 2)
    # Requests are pairs of a prompt and its continuation, or dictionaries of these
    arguments = list(record["arguments"].values()) if isinstance(record["arguments"], dict) else record["arguments"]
    requests = [list(pair.values()) if isinstance(pair, dict) else list(pair) for pair in arguments[: len(values)]]
    if len({str(prompt) for prompt, *_ in requests}) > 1:  # the choices are in the prompts
        return ChoiceScores(values, unconditional, None)
    choices = tuple(str(continuation).removeprefix(DELIMITER) for _, continuation, *_ in requests)
    return ChoiceScores(values, unconditional, choices)


def _read_choices(
    records: Sequence[Record], scores: Sequence[ChoiceScores], task: str, options: LogOptions
) -> tuple[list[LogAnswer], list[str]]:
    """Return the answers of a multiple-choice task, and notes on how they were read.

    Answers are graded by the labels, the right choices that the log states, if the labels reproduce the scores in the
    log, or if these scores are wrong by a known error of the harness (`_is_mispaired`). Otherwise the scores in the log
    are the grades, and answers have no label.

    Raises:
        InputError: If the right choices reproduce the scores "acc" of the log, but not the scores of the chosen name.
    """
    name = select_name(options.score, list(NORMALIZATIONS), "score") or "acc"
    labels: list[int | None] = [_find_label(record["target"], score) for record, score in zip(records, scores)]
    # "acc", which every such log has, tells whether the labels are right, whatever score was chosen
    most_likely = [int(np.argmax(score.log_likelihoods)) for score in scores]
    labels_give_scores = None not in labels and _agree(records, "acc", most_likely, labels)
    logits = [score.normalized(name) for score in scores]
    predicted = [int(np.argmax(values)) for values in logits]
    if labels_give_scores and not _agree(records, name, predicted, labels):
        raise InputError(
            f"Expected log-likelihoods that give the {name} of the log, got other values, so the text of choices "
            "differs from that in the log. Try score='acc'.",
            code="score_mismatch",
        )
    is_mispaired = not labels_give_scores and None not in labels and _is_mispaired(records, scores, labels)
    if not labels_give_scores and not is_mispaired:
        labels = [None] * len(records)  # the log does not tell the right choices reliably
    answers = [
        _choice_answer(record, task, name, logits=values, label=label, predicted=choice)
        for record, values, label, choice in zip(records, logits, labels, predicted, strict=True)
    ]
    notes = [f"Logits are the log-likelihoods of the choices{NORMALIZATIONS[name]}."]
    if is_mispaired:
        notes.append("The scores in the log pair log-likelihoods with wrong choices, so answers are graded anew.")
    if None in labels:
        notes.append(f"The right choice is not in the log, so answers are graded by its {name}.")
    return answers, notes


def _choice_answer(
    record: Record, task: str, name: str, *, logits: np.ndarray, label: int | None, predicted: int
) -> LogAnswer:
    """Return the answer to one question: its logits, the top probability, and whether it is correct.

    Without a label, the score `name` in the log tells whether it is. Logits may be -inf, but not all of them.

    Args:
        record: The record of the question.
        task: Name of the task.
        name: Name of the score, such as "acc".
        logits: Log-likelihoods of the choices (k), as this score compares them.
        label: Index of the right choice, or None if the log does not tell.
        predicted: Index of the choice with the largest logit.
    """
    correct = read_grade(record.get(name)) if label is None else float(predicted == label)
    is_valid = not np.isnan(logits).any() and np.isfinite(logits).any() and not np.isposinf(logits).any()
    values = tuple(map(float, logits)) if is_valid else None
    return LogAnswer(
        task,
        str(record["doc_id"]),
        correct,
        data=as_object(record["doc"]),
        reason="" if is_valid else "log-likelihoods are not finite",
        confidence=None if values is None else top_probability(values),
        logits=values,
        label=label,
    )


def _find_label(target: Any, score: ChoiceScores) -> int | None:
    """Return the index of the right choice, which the target states as an index, alone or in a list, or as a text.

    It is None if the index is out of range, or if no choice, or more than one, is that text.
    """
    k = len(score.log_likelihoods)
    try:
        value = ast.literal_eval(str(target))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = None
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, int) and not isinstance(value, bool):  # True is the text of a choice, not the index 1
        return value if 0 <= value < k else None
    matches = [i for i, choice in enumerate(score.choices or ()) if choice == str(target)]
    return matches[0] if len(matches) == 1 else None


def _agree(records: Sequence[Record], name: str, predicted: Sequence[int], labels: Sequence[int | None]) -> bool:
    """Whether predictions and labels give the logged score of every question that has one."""
    rows = zip(records, predicted, labels, strict=True)
    return all(read_grade(record.get(name)) in (None, float(choice == label)) for record, choice, label in rows)


def _is_mispaired(records: Sequence[Record], scores: Sequence[ChoiceScores], labels: Sequence[int | None]) -> bool:
    """Whether the harness graded every other log-likelihood instead of the first half, as it did until 0.4.8.

    It did so in tasks with acc_mutual_info, whose requests are all choices after the prompt, and then all choices after
    an empty prompt. A log shows it if these wrong log-likelihoods and the labels reproduce its scores.
    """
    if any(score.unconditional is None for score in scores):
        return False
    # Entries 0, 2, 4, ... of all requests, which the harness took for the choices
    graded = [np.concatenate([score.log_likelihoods, score.unconditional])[::2] for score in scores]  # pyright: ignore
    return _agree(records, "acc", [int(np.argmax(values)) for values in graded], labels)


# Generation


def _select_score(records: Sequence[Record], candidates: Sequence[str]) -> str:
    """Return the metric that grades answers: the first candidate in the log, or else its only metric in [0, 1]."""
    names = dict.fromkeys(metric for record in records for metric in record.get("metrics", ()))
    scores = [name for name in names if any(parse_grade(record.get(name)) is not None for record in records)]
    return select_single_name(candidates, scores, "score", "--correct")


def _generation_answer(record: Record, task: str, name: str, confidence: str | None) -> LogAnswer:
    """Return the answer to one question of a generation task, graded by the score `name` in its record.

    If `confidence` is "stated", the confidence that the response states is kept, as text.
    """
    response = _first_text(record["filtered_resps"])
    reason = "" if response.strip() else "empty response"
    if response == INVALID_RESPONSE:
        reason = "invalid response"
    # From the full response: a filter may keep the answer alone
    stated = find_stated_confidence(_first_text(record.get("resps"))) if confidence == "stated" else None
    return LogAnswer(
        task,
        str(record["doc_id"]),
        read_grade(record.get(name)),
        data=as_object(record["doc"]),
        reason=reason,
        stated=stated,
    )


def _first_text(responses: Any) -> str:
    """Return the first text of nested lists, or ""."""
    while isinstance(responses, list):
        responses = responses[0] if responses else ""
    return str(responses)
