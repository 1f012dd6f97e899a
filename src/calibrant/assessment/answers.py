"""The questions that a result answers, each with an answer for experts and one for other readers."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from calibrant.assessment import expert_text, lay_text
from calibrant.assessment._results import AssessmentData, MeasurementData

R = TypeVar("R")


class Answer(NamedTuple):
    """A question with its answers."""

    question: str
    text: str
    lay_text: str


def measurement_answers(measurement: MeasurementData) -> Sequence[Answer]:
    """Return the questions and answers about predictions as they are."""
    event = measurement.event
    return [
        _answer("Is it calibrated?", expert_text.calibration_answer, lay_text.calibration_answer, measurement),
        _answer(
            f"Are the {event.scores} too high or too low?",
            expert_text.direction_answer,
            lay_text.direction_answer,
            measurement,
        ),
        *_group_answers(f"Which {event.groups} deviate?", measurement),
    ]


def assessment_answers(assessment: AssessmentData) -> Sequence[Answer]:
    """Return the questions and answers about predictions before and after calibration."""
    after = assessment.calibrated
    answers = [
        *measurement_answers(assessment.uncalibrated),
        _answer("Which calibrator helps?", expert_text.remedy_answer, lay_text.remedy_answer, assessment),
    ]
    if assessment.is_identity:
        return answers
    return [
        *answers,
        _answer(
            "Is the change significant?", expert_text.significance_answer, lay_text.significance_answer, assessment
        ),
        _answer("Is it calibrated afterwards?", expert_text.calibration_answer, lay_text.calibration_answer, after),
        *_group_answers(f"Which {after.event.groups} deviate afterwards?", after),
    ]


def _group_answers(question: str, measurement: MeasurementData) -> list[Answer]:
    """Return the answer about the groups, if there are any."""
    if measurement.groups is None:
        return []
    return [_answer(question, expert_text.group_answer, lay_text.group_answer, measurement)]


def _answer(question: str, expert: Callable[[R], str], lay: Callable[[R], str], result: R) -> Answer:
    """Answer a question for readers who know the field and for lay readers."""
    return Answer(question, expert(result), lay(result))
