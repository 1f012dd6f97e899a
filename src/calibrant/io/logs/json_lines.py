"""Logs in JSON lines of one's own, with token log-probabilities in the shape of OpenAI's API or stated confidences."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibrant._core.text import shorten_list
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.column_roles import ROLE_COLUMN_NAMES, normalize_column_name
from calibrant.io.logs.confidences import find_stated_confidence, is_missing, read_grade
from calibrant.io.logs.rows import (
    LogAnswer,
    LogContent,
    LogOptions,
    Record,
    from_tokens,
    select_single_name,
    single_model,
)
from calibrant.io.logs.tokens import TOKEN_SOURCES, find_response_text, has_tokens, token_confidence
from calibrant.predictions.validation.words import normalize_word, outcome_scores

LOG_FIELD_NAMES = {
    "question": ("question_id", "custom_id", "doc_id", "prompt_id", "problem_id", "task_id", *ROLE_COLUMN_NAMES["id"]),
    "correct": (*ROLE_COLUMN_NAMES["correct"], "score"),
    "confidence": ROLE_COLUMN_NAMES["confidence"],
    "task": ("task", "benchmark", "dataset"),
    "model": ("model", "model_name"),
    "response": ("response", "completion", "output", "answer", "text"),
}


def read_records(records: Sequence[Record], path: Path, options: LogOptions) -> LogContent:
    """Return the answers of one file, whose fields are found by name, as columns of tables are.

    Without a field of confidences, the probabilities of tokens are the confidences if there are any.

    Raises:
        InputError: If there is no score, a chosen field is missing, or answers are of several models.
    """
    names = list(dict.fromkeys(name for record in records for name in record))
    fields = _find_fields(names)
    if options.score:
        fields["correct"] = select_single_name(options.score, names, "score", "--correct")
    if "correct" not in fields:
        raise InputError(
            f"Expected a field that tells whether the answer was correct, got {shorten_list(names)}. Try "
            "score='NAME' (--correct NAME).",
            code="no_score",
        )
    source = options.confidence
    if source is not None and source not in (*TOKEN_SOURCES, "stated"):  # the name of a field
        fields["confidence"] = select_single_name([source], names, "confidence", "--confidence")
    if source is None and "confidence" not in fields and any(map(has_tokens, records)):
        source = "tokens"
    scores = outcome_scores(record.get(fields["correct"]) for record in records)
    answers: list[LogAnswer] = []
    for i, record in enumerate(records):
        with prefix_errors(f"answer {i + 1:,}"):
            answers.append(_read_record(record, i, path, fields, source, scores))
    roles = ", ".join(f"{role} from {name!r}" for role, name in fields.items() if role != "response")
    notes = [f"Fields: {roles}."]
    if source in TOKEN_SOURCES:
        notes.append(
            "Confidences are probabilities of tokens as the server returned them; some servers return them after "
            "temperature and penalties."
        )
    # Records without a model agree with any: `single_model` skips ""
    models = (str(record.get(fields.get("model", "")) or "") for record in records)
    has_task_name = any(record.get(fields.get("task", "")) for record in records)
    return LogContent("JSON lines", answers, single_model(models), tuple(notes), has_task_name)


def _find_fields(names: Sequence[str]) -> dict[str, str]:
    """Return the field of each role in `LOG_FIELD_NAMES`, for the roles that have one among the `names` of a log.

    If the first matching field has an earlier role already, the role has no field.
    """
    by_key = {normalize_column_name(name): name for name in reversed(names)}  # the first of several with one key
    fields: dict[str, str] = {}
    for role, candidates in LOG_FIELD_NAMES.items():
        matches = [by_key[key] for key in map(normalize_column_name, candidates) if key in by_key]
        if matches and matches[0] not in fields.values():
            fields[role] = matches[0]
    return fields


def _read_record(
    record: Record,
    index: int,
    path: Path,
    fields: Mapping[str, str],
    source: str | None,
    scores: Mapping[str, float | None],
) -> LogAnswer:
    """Return the answer in a record.

    Args:
        record: The JSON object of a line.
        index: Number of the record in its file, from 0, which names the question if the log has no ids.
        path: The file, whose name is the task if no field tells it.
        fields: Name of the field of each role.
        source: "stated", one of `TOKEN_SOURCES`, or another value for the field of confidences.
        scores: Scores of words for outcomes.
    """
    values = {role: record.get(name) for role, name in fields.items()}
    correct, no_grade_reason = _read_grade(values["correct"], scores)
    question = values.get("question", index)
    if is_missing(question):
        question = f"answer {index + 1} without an id"  # the index may be the id of another
    if isinstance(question, float) and question.is_integer():  # 7.0 is 7 in logs of other programs
        question = int(question)
    response = find_response_text(record)
    text = values.get("response") if response is None else response
    # Either a confidence as the log or the answer states it, which is parsed later, or one from the tokens
    confidence: dict[str, Any] = {}
    if source == "stated":
        confidence["stated"] = find_stated_confidence(str(text or ""))
    elif source in TOKEN_SOURCES:
        confidence = from_tokens(token_confidence(record, source))
    else:
        confidence["stated"] = values.get("confidence")
    return LogAnswer(
        str(values.get("task") or path.name.split(".")[0]),
        str(question),
        correct,
        data=record,
        reason=no_grade_reason or ("empty response" if text == "" else ""),  # None: no response field
        **confidence,
    )


def _read_grade(grade: Any, scores: Mapping[str, float | None]) -> tuple[float | None, str]:
    """Return a grade as a number or None, and the reason why there is no answer, or "".

    An answer that was not graded has no number; an unanswered question counts as wrong, 0.

    Raises:
        InputError: If the grade is neither a known word nor a number in [0, 1].
    """
    if scores.get(normalize_word(grade), 0.0) is None:
        return 0.0, "no answer"
    number = read_grade(grade, scores)
    return number, "not graded" if number is None else ""
