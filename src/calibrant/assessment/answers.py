"""The questions that a result answers, each with an answer for experts and one for other readers."""

from collections.abc import Sequence
from typing import NamedTuple

from calibrant.assessment import expert_text, lay_text
from calibrant.assessment._results import AssessmentData, MeasurementData


class Answer(NamedTuple):
    """A question with its answers."""

    question: str
    text: str
    lay_text: str


def measurement_answers(measurement: MeasurementData) -> Sequence[Answer]:
    """Return the questions and answers about predictions as they are."""
    event = measurement.event
    return [
        _calibration_answer("Is it calibrated?", measurement),
        Answer(
            f"Are the {event.scores} too high or too low?",
            expert_text.direction_answer(measurement),
            lay_text.direction_answer(measurement),
        ),
        *_group_answers(f"Which {event.groups} deviate?", measurement),
    ]


def assessment_answers(assessment: AssessmentData) -> Sequence[Answer]:
    """Return the questions and answers about predictions before and after calibration."""
    after = assessment.calibrated
    answers = [
        *measurement_answers(assessment.uncalibrated),
        Answer("Which calibrator helps?", expert_text.remedy_answer(assessment), lay_text.remedy_answer(assessment)),
    ]
    if assessment.is_identity:  # there is no change to describe
        return answers
    return [
        *answers,
        Answer(
            "Is the change significant?",
            expert_text.significance_answer(assessment),
            lay_text.significance_answer(assessment),
        ),
        _calibration_answer("Is it calibrated afterwards?", after),
        *_group_answers(f"Which {after.event.groups} deviate afterwards?", after),
    ]


def _group_answers(question: str, measurement: MeasurementData) -> list[Answer]:
    """Return the answer about the groups, if there are any."""
    if measurement.groups is None:
        return []
    return [Answer(question, expert_text.group_answer(measurement), lay_text.group_answer(measurement))]


def _calibration_answer(question: str, measurement: MeasurementData) -> Answer:
    """Answer whether predictions are calibrated."""
    return Answer(question, expert_text.calibration_answer(measurement), lay_text.calibration_answer(measurement))
