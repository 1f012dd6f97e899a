"""The answers of `expert_text` for readers outside the field: no tests, intervals or abbreviations."""

import math

from calibrant._core.registry import CALIBRATORS
from calibrant._core.text import display_name
from calibrant.assessment._results import AssessmentData, MeasurementData
from calibrant.assessment.expert_text import DIRECTION_OPENINGS, capitalize, list_miscalibrated_groups, score_changes
from calibrant.calibrators import preserves_argmax
from calibrant.predictions.events import quote

MAX_STATED_GAIN_NATS = math.log(100)  # a probability that changes by a larger factor says nothing to lay readers


def calibrator_label(calibrator: str) -> str:
    """Return the name of a calibrator in words with its code, such as "Temperature scaling (Temperature)"."""
    title = CALIBRATORS.title(calibrator)
    return f"{title} ({calibrator})" if title else display_name(calibrator)


def calibration_answer(measurement: MeasurementData) -> str:
    """Answer "Is it calibrated?" by the verdict: no, no sign of a problem, or too little data to tell."""
    verdict, rows = measurement.verdict, measurement.event.count(measurement.n)
    if verdict.is_miscalibrated:
        return (
            f"No. In {rows}, predicted and actual frequencies typically differ by "
            f"{_format_points(measurement['ece'].value)} points, in a pattern that chance does not explain. If the "
            f"{measurement.event.scores} were right, the difference would be about "
            f"{_format_points(measurement['noise_floor'].value)} points."
        )
    bound, acceptable = _format_points(verdict.bound), f"{100 * verdict.tolerance:g} are acceptable"
    if verdict.status == "no_evidence":
        return (
            f"No sign of a problem. With {rows}, a typical difference of more than {bound} points is unlikely; "
            f"{acceptable}."
        )
    return (
        f"Too little data to tell. With {rows}, a typical difference of up to {bound} points could go unnoticed; "
        f"{acceptable}."
    )


def direction_answer(measurement: MeasurementData) -> str:
    """Compare how often the event is expected and how often it happens."""
    event = measurement.event
    expected, observed = measurement.mean_confidence, measurement.observed_frequency.value
    return (
        f"{DIRECTION_OPENINGS[measurement.verdict.direction]} Of 100 {event.units}, the model expects "
        f"{_format_points(expected)} to be {event.outcome}, and {_format_points(observed)} are."
    )


def group_answer(measurement: MeasurementData) -> str:
    """Name the groups that deviate by more than chance explains."""
    groups, event = measurement.groups, measurement.event
    assert groups is not None  # called only for measurements with groups

    def describe_group(i: int) -> str:
        """Return the name of a group, the size of its gap, and whether its probabilities are too high."""
        gap = float(groups.gap[i])
        return f"{quote(groups.names[i])} ({_format_points(abs(gap))} points too {'high' if gap > 0 else 'low'})"

    num_miscalibrated, group_list = list_miscalibrated_groups(groups, describe_group)
    if len(groups.names) == 1:
        return f"{capitalize(group_list)}." if group_list else f"The only {event.group} does not deviate clearly."
    if not num_miscalibrated:
        return f"None of the {len(groups.names)} {event.groups} deviates by more than chance explains."
    return f"{num_miscalibrated} of {len(groups.names)}: {group_list}."


def remedy_answer(assessment: AssessmentData) -> str:
    """Describe the selected calibrator and its effects, or say that none does better, or not clearly."""
    units = assessment.calibrated.event.units
    if assessment.is_identity and assessment.selection != "held_out":
        return f"{calibrator_label('Identity')} {_selection_reason(assessment)}; probabilities stay the same."
    if assessment.is_identity:
        if not assessment.held_out.deficits:  # enough labels: the differences are not tested
            clearly = "" if assessment.has_lowest_held_out_nll else "clearly "
            return f"None. No calibrator did {clearly}better on {units} that were held out from its fit."
        sentences = ["None. No calibrator does clearly better.", few_labels_sentence(assessment)]
        return " ".join([*sentences, gain_sentence(assessment)])
    before, after = assessment.uncalibrated, assessment.calibrated
    sentences = [
        f"{calibrator_label(assessment.chosen_name)} {_selection_reason(assessment)}.",
        few_labels_sentence(assessment),
        f"The typical difference is then {_format_points(after['ece'].value)} points, instead of "
        f"{_format_points(before['ece'].value)}.",
        "That is worse." if after["ece"].value > before["ece"].value else "",
        gain_sentence(assessment),
        _reversal_sentence(assessment),
        _accuracy_sentence(assessment),
    ]
    return " ".join(filter(None, sentences))


def _selection_reason(assessment: AssessmentData) -> str:
    """Return why the calibrator was selected, as a verb phrase."""
    if assessment.selection == "requested":
        return "was requested"
    if assessment.selection == "first":
        return "is the first of the list, as there are no data to choose by"
    if len(assessment.held_out.indistinguishable) > 1:
        return "is the simplest method of correction that may be the best"
    verb = "did best" if assessment.has_lowest_held_out_nll else "was selected"
    return f"{verb} on {assessment.calibrated.event.units} that were held out from its fit"


def few_labels_sentence(assessment: AssessmentData) -> str:
    """Say how many methods few labels cannot tell apart, or return an empty text if labels tell them apart."""
    held_out, rows = assessment.held_out, assessment.uncalibrated.event.count(len(assessment.fitting_data))
    num_undecided = len(held_out.indistinguishable)
    if num_undecided < 2:
        return ""
    return f"{rows} to learn from are too few to choose between {num_undecided} of {len(held_out.deficits)} methods."


def gain_sentence(assessment: AssessmentData) -> str:
    """Say how much the typical probability of the true outcome changes. Return "" without a gain interval."""
    if assessment.reported_gain is None:
        return ""
    name, gain = assessment.reported_gain
    if -gain.low > MAX_STATED_GAIN_NATS:
        return f"There are too few data to say how much {display_name(name)} would change the probabilities."
    # exp(gain) is the ratio of the geometric means of p_y, after calibration to before
    change, event = 100 * abs(math.expm1(gain.low)), "the typical probability of what really happens"
    if gain.low > 0:
        return f"On other data, {display_name(name)} raises {event} by at least {change:.1f} %."
    return f"On other data, {display_name(name)} may raise {event}, or lower it by up to {change:.1f} %."


def _reversal_sentence(assessment: AssessmentData) -> str:
    """Say that probabilities were too high and are now too low, or the reverse, else return ""."""
    before, after = assessment.uncalibrated, assessment.calibrated
    scores = before.event.scores.capitalize()
    match before.verdict.direction, after.verdict.direction:
        case "over", "under":
            return f"{scores} were too high and are then too low."
        case "under", "over":
            return f"{scores} were too low and are then too high."
        case _:
            return ""


def _accuracy_sentence(assessment: AssessmentData) -> str:
    """Say how many more or fewer of 10,000 predictions are correct, or return an empty text if it is unknown."""
    change = assessment.changes_by_metric.get("accuracy")
    if change is None:
        return ""
    if change.low == change.high == 0:
        same = preserves_argmax(assessment.best)
        return "The predicted classes stay the same." if same else "As many predictions are correct as before."
    extra_correct = round(10_000 * change.difference)
    if not extra_correct:
        return "It changes some predicted classes; about as many are correct."
    more_or_fewer = "more" if extra_correct > 0 else "fewer"
    return f"It changes some predicted classes: of 10,000, {abs(extra_correct):,} {more_or_fewer} are correct."


def significance_answer(assessment: AssessmentData) -> str:
    """Answer "Is the change significant?" by NLL, or by the Brier score if NLL is infinite."""
    units, changes = assessment.calibrated.event.units, score_changes(assessment)
    if not changes:
        return f"These {units} cannot show it."
    change = changes[0]  # that of NLL, if it is finite
    if change.high < 0:
        return f"Yes. The improvement on the same {units} is larger than chance explains."
    return "Yes, but it is a change for the worse." if change.low > 0 else "No. It may be chance."


def _format_points(share: float) -> str:
    """Return a share in percentage points with one decimal."""
    return f"{100 * share:.1f}"
