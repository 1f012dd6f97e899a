"""The same answers for people who are not in the field: no test, no interval, no abbreviation."""

from calibrant._text import display_name
from calibrant.assessment._events import quote
from calibrant.assessment._results import AssessmentData, MeasurementData
from calibrant.assessment.expert_text import list_miscalibrated_groups, score_changes, undetected_error_bound
from calibrant.registry import CALIBRATORS


def measurement_answers(measurement: MeasurementData) -> list[str]:
    """Answer, in the order of `words.first_answers`."""
    answer_texts = [_calibration_answer(measurement), _direction_answer(measurement)]
    return answer_texts if measurement.groups is None else [*answer_texts, _group_answer(measurement)]


def assessment_answers(assessment: AssessmentData) -> list[str]:
    """Answer, in the order of `words.answers`."""
    answer_texts = [*measurement_answers(assessment.uncalibrated), _remedy_answer(assessment)]
    if assessment.chosen_name == "Identity":
        return answer_texts
    answer_texts += [_significance_answer(assessment), _calibration_answer(assessment.calibrated)]
    return (
        answer_texts if assessment.calibrated.groups is None else [*answer_texts, _group_answer(assessment.calibrated)]
    )


def calibrator_label(calibrator: str) -> str:
    """Name a calibrator in words, with its code; the code alone of what has none."""
    title = CALIBRATORS.title(calibrator)
    return f"{title[0].lower()}{title[1:]} ({calibrator})" if title else display_name(calibrator)


def _calibration_answer(measurement: MeasurementData) -> str:
    gap, chance_gap = _format_points(measurement["ece"].value), _format_points(measurement["noise_floor"].high)
    count_phrase = f"{measurement.n:,} {measurement.event.unit}{'s' * (measurement.n != 1)}"
    if measurement.verdict.is_miscalibrated:
        return (
            f"No. What it says and what happens are typically {gap} points apart, and that is no accident of these "
            f"{count_phrase}. (Luck alone could make it look up to {chance_gap} apart.)"
        )
    if measurement.verdict.status == "unclear":
        return (
            f"It is unclear: one measure shows more than luck explains, another does not. What it says and what "
            f"happens are typically {gap} points apart; luck alone explains up to {chance_gap}."
        )
    undetected_error_sentence = (
        f"An error of up to {_format_points(undetected_error_bound(measurement))} points could still hide."
    )
    return f"As far as {count_phrase} can tell, yes: what differs can be luck. {undetected_error_sentence}"


def _direction_answer(measurement: MeasurementData) -> str:
    outcome = measurement.event.outcome_phrase
    expected_count, observed_count = (
        f"{100 * measurement.mean_confidence:.1f}",
        f"{100 * measurement.observed_frequency.value:.1f}",
    )
    facts = f"out of 100 it expects {expected_count} to be {outcome}, and {observed_count} are"
    if measurement.verdict.direction:
        return (
            f"It {'promises' if measurement.verdict.is_miscalibrated else 'may promise'} "
            f"{_direction_phrase(measurement)}: {facts}."
        )
    return f"Neither clearly too much nor too little: {facts}."


def _direction_phrase(measurement: MeasurementData) -> str:
    return "too much" if measurement.verdict.direction == "over" else "too little"


def _group_answer(measurement: MeasurementData) -> str:
    groups = measurement.groups
    assert groups is not None
    count_phrase = f"{len(groups.names)} {measurement.event.group}s"

    def describe_group(i: int) -> str:
        gap = float(groups.gap[i])
        return (
            f"{quote(groups.names[i])} (it promises {_format_points(abs(gap))} points too "
            f"{'much' if gap > 0 else 'little'})"
        )

    num_miscalibrated, group_list = list_miscalibrated_groups(groups, describe_group)
    if not num_miscalibrated:
        return f"In none of {count_phrase} is it off by more than luck explains."
    return f"In {num_miscalibrated} of {count_phrase} it is off by more than luck: {group_list}."


def _remedy_answer(assessment: AssessmentData) -> str:
    if assessment.chosen_name == "Identity":
        return f"Nothing that was tried does better on {assessment.calibrated.event.unit}s it had not seen."
    uncalibrated_gap, calibrated_gap = (
        _format_points(table["ece"].value) for table in (assessment.uncalibrated, assessment.calibrated)
    )
    unseen_units = f"{assessment.calibrated.event.unit}s it has not seen"
    reason = f": of all that was tried, it is surprised least by {unseen_units}" if assessment.held_out_nll else ""
    label = calibrator_label(assessment.chosen_name)
    gap_sentence = (
        f"What it says and what happens are then {calibrated_gap} points apart, instead of {uncalibrated_gap}."
    )
    worsening_sentence = (
        f" That is worse{_reversal_phrase(assessment)}."
        if assessment.calibrated["ece"].value > assessment.uncalibrated["ece"].value
        else ""
    )
    return f"{label[0].upper()}{label[1:]}{reason}. {gap_sentence}{worsening_sentence}{_accuracy_sentence(assessment)}"


def _reversal_phrase(assessment: AssessmentData) -> str:
    """Return a phrase if calibration turned overconfidence into underconfidence, or the reverse."""
    uncalibrated, calibrated = assessment.uncalibrated, assessment.calibrated
    if not (uncalibrated.verdict.direction and calibrated.verdict.direction):
        return ""
    is_reversed = uncalibrated.verdict.direction != calibrated.verdict.direction
    return (
        f": it promised {_direction_phrase(uncalibrated)}, then it promises {_direction_phrase(calibrated)}"
        if is_reversed
        else ""
    )


def _accuracy_sentence(assessment: AssessmentData) -> str:
    """Say what becomes of the predictions themselves."""
    change = next((row for row in assessment.changes or () if row.name == "accuracy"), None)
    if change is None:
        return ""
    if change.low == change.high == 0:
        return " The predictions themselves stay as they are."
    extra_correct = round(10_000 * change.difference)
    change_phrase = (
        f"{abs(extra_correct)} {'more' if extra_correct > 0 else 'fewer'} are right"
        if extra_correct
        else "about as many are right"
    )
    return f" It also changes some predictions: of 10,000, {change_phrase}."


def _significance_answer(assessment: AssessmentData) -> str:
    unit, changes = assessment.calibrated.event.unit, score_changes(assessment)
    if not changes:
        return f"That cannot be told from these {unit}s."
    if changes[0].high < 0:
        return f"Yes: so clear an improvement, on the very same {unit}s, is not luck."
    return "Yes, but for the worse." if changes[0].low > 0 else "It may be luck."


def _format_points(share: float) -> str:
    return f"{100 * share:.1f}"
