"""Rows of evaluation logs: what was asked, how it was graded, and with which confidence it was answered."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from calibrant._core.text import shorten_list, shorten_repr
from calibrant._core.types import InputError
from calibrant.io.contents import Contents
from calibrant.io.logs.confidences import (
    ProbabilityTable,
    is_missing,
    parse_confidence,
    parse_plain_number,
    probability_table,
    stated_form,
)
from calibrant.io.logs.tokens import TokenConfidence

Record = Mapping[str, Any]  # a JSON object of a log
MAX_SHOWN_FORMS = 8  # of confidences that cannot be read
SUBJECT_KEYS = ("subject", "category")  # of a question, which name its subject unless another key is given


class Outcome(StrEnum):
    """Outcome of a question."""

    WITH_CONFIDENCE = "answered with a confidence"
    WITHOUT_CONFIDENCE = "answered without a confidence"
    NOT_ANSWERED = "not answered or not gradable"


@dataclass(frozen=True, slots=True)
class LogRow:
    """One answer to one question."""

    task: str
    question: str  # id within the task
    epoch: int  # repeat of the question, counted from 1
    subject: str | None
    outcome: Outcome
    correct: float | None  # score in [0, 1], or None if the answer was not graded
    confidence: float | None  # probability that the answer is right
    logits: tuple[float, ...] | None = None  # one per choice
    label: int | None = None  # index of the right choice
    reason: str = ""  # why there is no answer, or no confidence


@dataclass(frozen=True)
class LogOptions:
    """Options for reading an evaluation log."""

    task: tuple[str, ...] = ()  # tasks to keep; all if empty
    filter: tuple[str, ...] = ()  # alternative scoring of lm-evaluation-harness; the first that a log has
    score: tuple[str, ...] = ()  # score that grades answers, or normalizes log-likelihoods; the first that a log has
    confidence: str | None = None  # a field, or one of CONFIDENCE_SOURCES
    subject: str | None = None  # key of a question's data that names its subject
    percent: bool | None = None  # plain numbers are percentages
    words: str | Mapping[str, float] = "survey"  # probabilities of words
    encoding: str | None = None  # of text; detected if None


def select_name(candidates: Sequence[str], names: Sequence[str], title: str) -> str | None:
    """Return the first candidate among names, or None without candidates.

    Args:
        candidates: Names that the caller chose, in order of preference.
        names: Names that occur in the log.
        title: Noun for the names in errors, such as "score".

    Raises:
        InputError: If no candidate is among the names, with the code `unknown_TITLE`.
    """
    if not candidates:
        return None
    selected = next((candidate for candidate in candidates if candidate in names), None)
    if selected is None:
        raise InputError(
            f"Expected a {title} among {shorten_list(names) or 'none'}, got {shorten_list(candidates)}.",
            code=f"unknown_{title}",
        )
    return selected


def select_single_name(candidates: Sequence[str], names: Sequence[str], title: str, option: str) -> str:
    """Return the first candidate among names, or the only name. Errors suggest the `option` of the command line.

    Raises:
        InputError: If there are several names, or none, and no candidates.
    """
    selected = select_name(candidates, names, title)
    if selected is None and len(names) != 1:
        hint = f" Try {title}={names[0]!r} ({option} {names[0]})." if names else ""
        raise InputError(
            f"Expected one {title}, got {shorten_list(names) or 'none'}.{hint}",
            code=f"several_{title}s" if names else f"no_{title}",
        )
    return selected or names[0]  # the only name


def single_model(models: Iterable[str | None]) -> str | None:
    """Return the only model name, or None if there is none, or raise `InputError` for several."""
    names = list(dict.fromkeys(filter(None, models)))
    if len(names) > 1:
        raise InputError(
            f"Expected logs of one model, got {shorten_list(names)}. Try the file or folder of one of them.",
            code="several_models",
        )
    return names[0] if names else None


@dataclass(frozen=True)
class LogAnswer:
    """An answer as a format states it, before its outcome is known."""

    task: str
    question: str
    correct: float | None
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the question, which may name its subject
    reason: str = ""  # why there is no answer; empty if there is one
    stated: Any = None  # confidence as it was stated
    confidence: float | None = None  # probability that was computed from log-likelihoods
    missing: str = "no confidence"  # the reason if there is neither
    outside: float | None = None  # probability outside the choices
    logits: tuple[float, ...] | None = None
    label: int | None = None
    subject: str | None = None


@dataclass(frozen=True)
class LogContent:
    """The answers of one file or run folder, before their outcomes are known."""

    format: str
    answers: Sequence[LogAnswer]
    model: str | None = None
    notes: tuple[str, ...] = ()
    has_task_name: bool = True  # else the task is the name of a file


def resolve_rows(logs: Sequence[LogContent], options: LogOptions) -> tuple[tuple[LogRow, ...], tuple[str, ...]]:
    """Return the rows of logs, and notes on their subjects and on stated confidences that are doubtful.

    Raises:
        InputError: If no answer has the chosen subject, or if numbers above 1 may be percentages.
    """
    answers = [answer for log in logs for answer in log.answers]
    table = probability_table(options.words)
    _check_percent(answers, options.percent)
    subjects, notes = _find_subjects(answers, options.subject)
    epochs: Counter[tuple[str, str]] = Counter()
    rows: list[LogRow] = []
    for answer, subject in zip(answers, subjects, strict=True):
        epochs[answer.task, answer.question] += 1  # a question that occurs again is repeated
        outcome, confidence, reason = _resolve_outcome(answer, table, percent=bool(options.percent))
        rows.append(
            LogRow(
                task=answer.task,
                question=answer.question,
                epoch=epochs[answer.task, answer.question],
                subject=subject,
                outcome=outcome,
                correct=answer.correct,
                confidence=confidence,
                logits=answer.logits,
                label=answer.label,
                reason=reason,
            )
        )
    notes += _describe_unread([answer.stated for answer, row in zip(answers, rows) if row.reason == UNREAD_REASON])
    if outside := [answer.outside for answer in answers if answer.outside is not None]:
        notes.append(
            f"Confidences are shares of the choices. On average, {100 * np.mean(outside):.3g} % of the probability is "
            f"outside the choices among the most likely tokens, and at most {100 * max(outside):.3g} %."
        )
    # Such as 0.9, which may have been meant as 90 %
    are_fractions = (0 < (parse_plain_number(answer.stated) or 0) < 1 for answer in answers)
    if options.percent and (num_fractions := sum(are_fractions)):
        notes.append(f"{num_fractions:,} stated confidences between 0 and 1 were read as less than 1 %.")
    return tuple(rows), tuple(notes)


def from_tokens(confidence: TokenConfidence) -> dict[str, Any]:
    """Return the fields of an answer whose confidence is from tokens."""
    reason = {"missing": confidence.reason} if confidence.reason else {}
    return {"confidence": confidence.value, "outside": confidence.outside, **reason}


def _describe_unread(stated: Sequence[Any]) -> list[str]:
    """Return a note on confidences that could not be read, by form, the most frequent first, or none without any."""
    if not stated:
        return []
    examples = {stated_form(value): str(value) for value in reversed(stated)}  # the first of each form
    counts = Counter(map(stated_form, stated)).most_common()
    forms = [f"{shorten_repr(examples[form], 40)} ({count:,})" for form, count in counts[:MAX_SHOWN_FORMS]]
    rest = f", and {len(counts) - len(forms):,} other forms" if len(counts) > len(forms) else ""
    return [f"{len(stated):,} stated confidences could not be read, by form: {', '.join(forms)}{rest}."]


NO_SUBJECT = "no subject"
UNREAD_REASON, UNGRADED_REASON = "unreadable confidence", "not graded"


def _resolve_outcome(answer: LogAnswer, table: ProbabilityTable, *, percent: bool) -> tuple[Outcome, float | None, str]:
    """Return the outcome of an answer, its confidence, and the reason why a grade or confidence is missing, or "".

    An answer that only lacks a grade keeps its confidence, from which `few_labels` estimates the accuracy.
    """
    if answer.correct is None and answer.reason in ("", UNGRADED_REASON):
        _, confidence, _ = _read_confidence(answer, table, percent=percent)
        return Outcome.NOT_ANSWERED, confidence, UNGRADED_REASON
    if answer.reason:
        return Outcome.NOT_ANSWERED, None, answer.reason
    return _read_confidence(answer, table, percent=percent)


def _read_confidence(answer: LogAnswer, table: ProbabilityTable, *, percent: bool) -> tuple[Outcome, float | None, str]:
    """Return the outcome of an answer that can be graded, its confidence, and the reason if that is missing."""
    if answer.confidence is not None:
        return Outcome.WITH_CONFIDENCE, answer.confidence, ""
    if is_missing(answer.stated):
        return Outcome.WITHOUT_CONFIDENCE, None, answer.missing
    confidence = parse_confidence(answer.stated, percent=percent, words=table)
    if confidence is None:
        return Outcome.WITHOUT_CONFIDENCE, None, UNREAD_REASON
    return Outcome.WITH_CONFIDENCE, confidence, ""


def _check_percent(answers: Iterable[LogAnswer], percent: bool | None) -> None:
    """Raise `InputError` if plain numbers above 1 may be percentages, and the caller did not say."""
    if percent is not None:
        return
    for answer in answers:
        number = parse_plain_number(answer.stated)
        if number is not None and 1 < number <= 100:
            raise InputError(
                f"Expected stated confidences in [0, 1], got {shorten_repr(answer.stated)}. Try percent=True "
                "(--percent) if plain numbers are percentages, or percent=False to leave out numbers above 1.",
                code="percent",
            )


def _find_subjects(answers: Sequence[LogAnswer], key: str | None) -> tuple[list[str | None], list[str]]:
    """Return the subject of each answer, None if it has none, and a note on where it is from.

    The first of these that exist are the subjects: the values of `key`, the subjects that the format states, the tasks
    if there are several, and the values of one of `SUBJECT_KEYS`. These must have at least two different values, and
    on average at least two questions for each.

    Raises:
        InputError: If no answer has the `key`.
    """
    if key is not None:
        if not any(key in answer.data for answer in answers):
            names = sorted({name for answer in answers for name in answer.data})
            raise InputError(
                f"Expected a subject among the fields {shorten_list(names)}, got {key!r}.", code="unknown_subject"
            )
        return [_to_text(answer.data.get(key)) for answer in answers], [f"Subjects are from {key!r}."]
    if any(answer.subject is not None for answer in answers):
        return [answer.subject for answer in answers], []
    tasks = {answer.task for answer in answers}
    if len(tasks) > 1:
        return [answer.task for answer in answers], [f"The {len(tasks)} tasks are the subjects."]
    for name in SUBJECT_KEYS:
        values = [_to_text(answer.data.get(name)) for answer in answers]
        # With fewer than two questions per value, the field describes questions rather than subjects
        if 1 < len({*values}) <= len({answer.question for answer in answers}) / 2:
            return values, [f"Subjects are from {name!r}."]
    return [None] * len(answers), []


def _to_text(value: Any) -> str | None:
    """Return a value as a text, None if it is missing."""
    return None if value is None else str(value)


def rows_to_contents(rows: Sequence[LogRow], notes: tuple[str, ...]) -> Contents:
    """Return the contents of logs: answers with a confidence, questions as clusters, subjects as groups.

    If every such answer has logits and one right choice, these are logits and labels; questions with fewer
    choices have -inf at the end. Otherwise they are confidences and scores in [0, 1].

    Raises:
        InputError: If no answer has a confidence.
    """
    used = [row for row in rows if row.outcome is Outcome.WITH_CONFIDENCE]
    if not used:
        reasons = Counter(row.reason for row in rows)
        raise InputError(
            f"Expected answers with a confidence, got none of {len(rows):,} ({_count_reasons(reasons)}). Try "
            "confidence='NAME' (--confidence NAME) for a field, 'stated' for confidences in the text of responses, or "
            "'tokens' for token probabilities.",
            code="no_confidence",
        )
    index = {key: i for i, key in enumerate(sorted({(row.task, row.question) for row in used}))}
    clusters = np.array([index[row.task, row.question] for row in used], dtype=np.int64)
    subjects, name = {row.subject for row in used}, NO_SUBJECT
    while name in subjects:  # a subject of this name is another group
        name = f"({name})"
    groups = None if subjects == {None} else [name if row.subject is None else row.subject for row in used]
    if all(row.logits is not None and row.label is not None for row in used):
        kind, scores = "logits", pad_logits([row.logits or () for row in used])
        labels = np.array([row.label for row in used], dtype=np.int64)
    else:
        kind, scores = "confidence", np.array([row.confidence for row in used], dtype=np.float64)
        labels = np.array([row.correct for row in used], dtype=np.float64)
    return Contents(kind, scores, labels, clusters=clusters, groups=groups, notes=notes)


def pad_logits(logits: Sequence[Sequence[float]]) -> np.ndarray:
    """Return logits as one array, with -inf after the last choice of each question.

    >>> pad_logits([(0.0, 1.0, 2.0), (3.0, 4.0)])
    array([[  0.,   1.,   2.],
           [  3.,   4., -inf]])
    """
    padded = np.full((len(logits), max(map(len, logits))), -np.inf)
    for row, values in zip(padded, logits, strict=True):
        row[: len(values)] = values  # writes to `padded`
    return padded


def describe_rows(rows: Sequence[LogRow]) -> str:
    """Return a sentence on how many answers have a confidence, and why the others are left out."""
    counts = Counter(row.outcome for row in rows)
    text = f"{counts[Outcome.WITH_CONFIDENCE]:,} of {len(rows):,} answers have a confidence"
    for outcome in (Outcome.WITHOUT_CONFIDENCE, Outcome.NOT_ANSWERED):
        if counts[outcome]:
            reasons = Counter(row.reason for row in rows if row.outcome is outcome)
            text += f"; left out: {counts[outcome]:,} {outcome.value} ({_count_reasons(reasons)})"
    return f"{text}."


def _count_reasons(reasons: Counter[str]) -> str:
    """Return the five most frequent reasons with their counts, such as "no confidence: 12, not graded: 3"."""
    return ", ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common(5))


def top_probability(logits: Sequence[float]) -> float:
    """Return the largest softmax probability.

    >>> round(top_probability([0.0, 0.0]), 6)
    0.5
    """
    top = max(logits)
    # Divided by exp(top), which avoids overflow, the largest term is 1
    return 1.0 / math.fsum(math.exp(value - top) for value in logits)
