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
    questions = [
        Answer(
            "Is it calibrated?", expert_text.calibration_answer(measurement), lay_text.calibration_answer(measurement)
        ),
        Answer(
            f"Are the {event.scores} too high or too low?",
            expert_text.direction_answer(measurement),
            lay_text.direction_answer(measurement),
        ),
    ]
    return questions + _group_answers(f"Which {event.groups} deviate?", measurement)


def assessment_answers(assessment: AssessmentData) -> Sequence[Answer]:
    """Return the questions and answers about predictions before and after calibration."""
    before, after = assessment.uncalibrated, assessment.calibrated
    remedy = Answer(
        "Which calibrator helps?", expert_text.remedy_answer(assessment), lay_text.remedy_answer(assessment)
    )
    if assessment.is_identity:
        return [*measurement_answers(before), remedy]
    return [
        *measurement_answers(before),
        remedy,
        Answer(
            "Is the change significant?",
            expert_text.significance_answer(assessment),
            lay_text.significance_answer(assessment),
        ),
        Answer(
            "Is it calibrated afterwards?",
            expert_text.calibration_answer(after),
            lay_text.calibration_answer(after),
        ),
        *_group_answers(f"Which {after.event.groups} deviate afterwards?", after),
    ]


def _group_answers(question: str, measurement: MeasurementData) -> list[Answer]:
    """Return the question about groups with its answers, or nothing without groups."""
    if measurement.groups is None:
        return []
    return [Answer(question, expert_text.group_answer(measurement), lay_text.group_answer(measurement))]
