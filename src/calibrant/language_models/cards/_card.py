"""The card of one or more models, as numbers, text, JSON and a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from calibrant import metrics
from calibrant._core.files import null_nonfinite
from calibrant._core.numbers import format_points
from calibrant._core.text import display_name
from calibrant._core.types import InputError, OpenFraction, check_arguments
from calibrant.language_models import (
    CONVENTIONS,
    Answers,
    Bounds,
    EvaluationLog,
    Outcome,
    PublishedValue,
    conventions,
    missing_confidence_bounds,
)
from calibrant.language_models.cards._numbers import (
    CoverageRow,
    PolicyRow,
    Ranking,
    SubjectRow,
    UngradedAnswers,
    answer_share,
    coverage_rows,
    policy_rows,
    question_means,
    rank_models,
    stated_predictions,
    subject_rows,
    subjects_note,
    ungraded_answers,
)
from calibrant.metrics import MISCALIBRATION_P_VALUE, Interval
from calibrant.predictions import Predictions
from calibrant.reports import Document, Reportable

CARD_LEVEL = 0.90
RANK_LEVEL = 0.95
_UNNAMED = "model"


@dataclass(frozen=True, eq=False)
class ModelCard:
    """All numbers of one model."""

    name: str
    answers: int
    questions: int
    outcomes: dict[str, int]  # number of answers with each outcome
    accuracy: Interval  # of graded answers; missing answers count as the log grades them
    with_confidence: Interval  # share of answers that have a confidence; ungraded answers with one do not count
    not_answered: Interval  # share of answers that are missing or not gradable, among the same answers
    numbers: dict[str, Interval]  # metrics of the answers with a confidence, by name
    noise_floor: Interval  # ECE of a calibrated model with the same confidences
    p_value: float  # of the omnibus test of calibration
    conventions: dict[str, PublishedValue]  # empty if scores are fractional
    bounds: dict[str, Bounds]  # over all values of missing confidences; empty if scores are fractional
    coverage: tuple[CoverageRow, ...]
    policies: tuple[PolicyRow, ...]
    subjects: tuple[SubjectRow, ...]
    notes: tuple[str, ...]
    predictions: Predictions  # stated confidences, in which every question counts once

    @classmethod
    @check_arguments
    def from_log(cls, name: str, log: EvaluationLog, level: OpenFraction = CARD_LEVEL) -> "ModelCard":
        """Compute the card of one log.

        Raises:
            InputError: If no answer has a confidence.
        """
        answers, p = Answers.from_rows(log.rows), stated_predictions(log.predictions)
        # Complete: without the answers that have a confidence but no grade, for which there are estimates
        graded, complete = answers[answers.is_graded], answers[~answers.lacks_only_grade]
        outcomes = {outcome.value: count for outcome, count in log.outcomes.items()}
        if num_incomplete := len(answers) - len(complete):  # logs count them as not answered
            outcomes[Outcome.NOT_ANSWERED.value] -= num_incomplete
            outcomes["with a confidence but no grade"] = num_incomplete
        numbers = {
            "signed_gap": metrics.signed_gap.interval(p, level=level),
            "debiased_l2": metrics.debiased_l2.interval(p, level=level),
            "ece": Interval(float(metrics.ece(p)), math.nan, math.nan, level),  # it has no interval
            "event_brier": metrics.event_brier.interval(p, level=level),
            "auroc": metrics.auroc.interval(p, level=level),
        }
        return cls(
            name=name,
            answers=len(answers),
            questions=log.num_questions,
            outcomes=outcomes,
            accuracy=answer_share(graded.correct, graded, level),
            with_confidence=answer_share(complete.has_confidence, complete, level),
            not_answered=answer_share(~complete.is_answered, complete, level),
            numbers=numbers,
            noise_floor=metrics.noise_floor.interval(p, level=level),
            p_value=metrics.omnibus.test(p).p_value,
            conventions=conventions(log) if graded.is_binary else {},
            bounds=missing_confidence_bounds(log) if graded.is_binary else {},
            coverage=coverage_rows(p, level),
            policies=policy_rows(p, level),
            subjects=subject_rows(p, log.predictions, level),
            notes=(*log.notes, *subjects_note(log.predictions)),
            predictions=p,
        )

    @property
    def is_miscalibrated(self) -> bool:
        """Whether the omnibus test rejects calibration."""
        return self.p_value < MISCALIBRATION_P_VALUE

    @property
    def headline(self) -> str:
        """The verdict: no evidence of miscalibration, over- or underconfident, or miscalibrated without a direction."""
        signed_gap = self.numbers["signed_gap"]
        if not self.is_miscalibrated:
            return "no evidence of miscalibration"
        if signed_gap.low > 0:
            return f"overconfident by {format_points(signed_gap.value)} points"
        if signed_gap.high < 0:
            return f"underconfident by {format_points(-signed_gap.value)} points"
        return "miscalibrated, but right on average"


@dataclass(frozen=True, eq=False)
class Card(Reportable):
    """The calibration of one or more language models. Print it, or save it as .html or .json."""

    models: tuple[ModelCard, ...]  # with graded answers
    rankings: tuple[Ranking, ...]  # of two models or more
    level: float
    ungraded: tuple[UngradedAnswers, ...] = ()  # of models with answers that only lack a grade

    @cached_property
    def title(self) -> str:
        """The main result: no answer is graded, the verdict on a single model, or the number of miscalibrated ones."""
        if not self.models:
            name = display_name(self.ungraded[0].name) if len(self.ungraded) == 1 else "All models"
            return f"{name}: no answer is graded"
        if len(self.models) == 1:
            return f"{display_name(self.models[0].name)}: {self.models[0].headline}"
        num_miscalibrated = sum(model.is_miscalibrated for model in self.models)
        return f"{num_miscalibrated} of {len(self.models)} models are miscalibrated"

    def document(self) -> Document:
        """Return the tables of all models, their reliability diagrams, and how the logs were read."""
        from calibrant.language_models.cards._document import card_document

        return card_document(self)

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as builtin types."""
        return {
            "level": self.level,
            "models": [_model_content(model) for model in self.models],
            "rankings": [
                {"score": r.title, "questions": r.questions, "level": r.level, "rows": [vars(row) for row in r.rows]}
                for r in self.rankings
            ],
            "ungraded": [_ungraded_content(estimate) for estimate in self.ungraded],
        }


@check_arguments
def card(
    logs: EvaluationLog | Sequence[EvaluationLog] | Mapping[str, EvaluationLog], *, level: OpenFraction = CARD_LEVEL
) -> Card:
    """Compute the calibration card of one or more models.

    No number of ours depends on the order of rows or of equal confidences, and repeating all answers changes none:
    every question counts once and is a cluster. Published conventions follow the order of the file, as published, and
    are left out if scores are fractional.

    Args:
        logs: One log per model, or logs by name. Default names are those in the logs.
        level: Level of the intervals. Ranks have simultaneous intervals at level .95.

    Raises:
        InputError: If there is no log, or a log has no answer with a confidence or answers to one question only.

    >>> from calibrant.io.logs import LogRow, Outcome
    >>> rows = [LogRow("quiz", str(i), 1, None, Outcome.WITH_CONFIDENCE, float(i % 2), 0.9) for i in range(40)]
    >>> card(EvaluationLog(tuple(rows), model="tiny")).title
    'tiny: overconfident by 40.0 points'
    """
    logs = [logs] if isinstance(logs, EvaluationLog) else logs
    named = dict(logs) if isinstance(logs, Mapping) else _name_logs(logs)
    if not named:
        raise InputError("Expected at least one log, got none.", code="no_log")
    ungraded = ungraded_answers(named, level)
    without_grades = {estimate.name for estimate in ungraded if not estimate.graded}
    graded = {name: log for name, log in named.items() if name not in without_grades}
    models = tuple(ModelCard.from_log(name, log, level) for name, log in graded.items())
    return Card(models, _rankings(graded) if len(graded) > 1 else (), level, ungraded)


def _name_logs(logs: Sequence[EvaluationLog]) -> dict[str, EvaluationLog]:
    """Return the logs by model name, "model" if a log has no name. Repeated names become "NAME (2)", "NAME (3)", ..."""
    named: dict[str, EvaluationLog] = {}
    for log in logs:
        model = log.model or _UNNAMED
        candidates = [model, *(f"{model} ({copy})" for copy in range(2, len(named) + 2))]
        named[next(name for name in candidates if name not in named)] = log
    return named


def _rankings(logs: Mapping[str, EvaluationLog]) -> tuple[Ranking, ...]:
    """Return the rankings by accuracy, and by the Brier score of answers with a confidence.

    A ranking is left out if the models share fewer than two questions.
    """
    # A task without a name is named after its file. If each log has one task, and one of them has no name, the names
    # are left out, so that the questions of different files are paired
    is_single = all(len(log.tasks) == 1 for log in logs.values())
    ignores_tasks = is_single and not all(log.has_task_names for log in logs.values())
    accuracy: dict[str, dict[tuple[str, str], float]] = {}  # by model and by (task, question)
    brier: dict[str, dict[tuple[str, str], float]] = {}
    for name, log in logs.items():
        answers = Answers.from_rows(log.rows)
        keys = [("" if ignores_tasks else task, question) for task, question in answers.question_names]
        questions = [keys[i] for i in answers.question]  # of each answer
        accuracy[name] = question_means(questions, answers.correct)
        confidence = np.where(answers.has_confidence, answers.confidence, np.nan)  # `question_means` skips NaN
        brier[name] = question_means(questions, np.square(confidence - answers.correct))
    rankings = (
        rank_models("accuracy", accuracy, higher_is_better=True, level=RANK_LEVEL),
        rank_models("Brier score of stated confidences", brier, higher_is_better=False, level=RANK_LEVEL),
    )
    return tuple(ranking for ranking in rankings if ranking is not None)


def _interval_content(interval: Interval | PublishedValue) -> dict[str, float | None]:
    """Return a value and its limits for JSON."""
    return null_nonfinite({name: getattr(interval, name) for name in ("value", "low", "high")})


def _model_content(model: ModelCard) -> dict[str, Any]:
    """Return the numbers of a model for JSON."""
    return {
        "name": model.name,
        "headline": model.headline,
        "answers": model.answers,
        "questions": model.questions,
        "outcomes": model.outcomes,
        "accuracy": _interval_content(model.accuracy),
        "with_confidence": _interval_content(model.with_confidence),
        "not_answered": _interval_content(model.not_answered),
        **{name: _interval_content(interval) for name, interval in model.numbers.items()},
        "noise_floor": _interval_content(model.noise_floor),
        "p_value": model.p_value,
        "conventions": {name: _published_content(value) for name, value in model.conventions.items()},
        "missing_confidence_bounds": {name: null_nonfinite(vars(b)) for name, b in model.bounds.items()},
        "accuracy_at_coverage": [_fields(row) for row in model.coverage],
        "policies": [_fields(row) for row in model.policies],
        "subjects": [_fields(row) for row in model.subjects],
        "notes": list(model.notes),
    }


def _fields(row: CoverageRow | PolicyRow | SubjectRow | UngradedAnswers) -> dict[str, Any]:
    """Return the fields of a row for JSON."""
    return {name: _interval_content(x) if isinstance(x, Interval) else x for name, x in vars(row).items()}


def _ungraded_content(estimate: UngradedAnswers) -> dict[str, Any]:
    """Return the numbers of answers without a grade for JSON."""
    names = [{"task": task, "question": question} for task, question in estimate.grade_next]
    return _fields(estimate) | {"grade_next": names}


def _published_content(value: PublishedValue) -> dict[str, Any]:
    """Return a published convention of a model for JSON."""
    content, convention = _interval_content(value), CONVENTIONS[value.name]
    return content | {"n": value.n, "filled": value.filled, "title": convention.title, "source": convention.source}
