"""Sentences of measurements and assessments, with their statistical evidence.

Every sentence is one template; words that depend on the evaluated event come from `calibrant.predictions.events`.
"""

import math
from collections.abc import Callable
from typing import Any

from calibrant._core.kernels.roots import Certificate
from calibrant._core.lazy import LazyModule
from calibrant._core.numbers import (
    format_level,
    format_number,
    format_p_value,
    format_percent,
    format_percent_range,
    format_points,
)
from calibrant._core.text import display_name, join_names
from calibrant.assessment._label_remarks import class_label
from calibrant.assessment._results import Assessment, Measurement
from calibrant.metrics import Difference, observed_expected
from calibrant.metrics.tables import Groups
from calibrant.predictions import Predictions
from calibrant.predictions.events import quote
from calibrant.predictions.validation.weights import FRACTIONS_NOTE, IMPORTANCE

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

MAX_NAMED_GROUPS = 3
HEADLINES = {
    "miscalibrated": "miscalibrated, no clear direction",
    "no_evidence": "no evidence of miscalibration",
    "too_little_data": "too little data to tell whether the {scores} are calibrated",
}
VERDICT_OPENINGS = {
    "miscalibrated": "No.",
    "no_evidence": "No evidence of miscalibration.",
    "too_little_data": "Too little data to tell.",
}
MAX_BIN_SHARE = 0.95  # of the examples in one bin, beyond which the bin says no more than the mean
HELD_OUT_FOLDS = "held-out folds of the fitting data"
DIRECTION_OPENINGS = {"over": "Too high.", "under": "Too low.", None: "No clear direction."}


def headline(measurement: Measurement) -> str:
    """Return the verdict in a few words: the direction and size of the error, or the status and deviating groups.

    If the evaluated class always or never occurs, because all labels are of one class, say so instead.
    """
    event, verdict, groups = measurement.event, measurement.verdict, measurement.groups
    if measurement.only_class is not None and event.kind == "class":  # which always or never occurs
        return f"Every label is {class_label(measurement.only_class, measurement.names)}"
    if verdict.direction:
        return capitalize(f"{event.headline(verdict.direction)} by {gap_size(measurement)}")
    text = capitalize(HEADLINES[verdict.status].format(scores=event.scores))
    num_deviating = 0 if groups is None else int((groups.significant_gap > 0).sum())
    if groups is None or not num_deviating:
        return text
    verb = "deviates" if num_deviating == 1 else "deviate"
    if len(groups.names) == 1:
        return f"{text}, but the only {event.group} {verb}"
    return f"{text} overall, but {num_deviating} of {len(groups.names)} {event.groups} {verb}"


def calibration_answer(measurement: Measurement) -> str:
    """Answer "Is it calibrated?" by the omnibus test, the upper bound of the error, and ECE with its noise floor."""
    event, verdict, ece, floor = measurement.event, measurement.verdict, measurement["ece"], measurement["noise_floor"]
    verb, chance = "rejects", ""
    upper_quantile = (1 + measurement.level) / 2  # at which the central interval of the noise floor ends
    if not verdict.is_miscalibrated:
        verb = "does not reject"
        if ece.value > floor.high:
            chance = f" It is larger, as for {format_percent(1 - upper_quantile, 0)} of calibrated models."
    return (
        f"{VERDICT_OPENINGS[verdict.status]} The omnibus test {verb} calibration ({format_p_value(verdict.p_value)}). "
        f"With {event.count(measurement.n)}, an L2 error of up to {format_percent(verdict.bound, 1)} cannot be ruled "
        f"out{_rate_clause(measurement, verdict.bound)}; {_tolerance_clause(measurement)}. "
        f"ECE is {ece.text} %{_rate_clause(measurement, ece.value)}; a calibrated model has {floor.text} % on average, "
        f"with a {100 * upper_quantile:g} % quantile of {format_percent(floor.high)}.{chance}"
    )


def _tolerance_clause(measurement: Measurement) -> str:
    """Return the tolerance as the end of a sentence."""
    tolerance = measurement.verdict.tolerance
    if not tolerance and measurement.base_rate in (0, 1):
        return "without examples of both kinds, there is no base rate to compare it with"
    return f"the tolerance is {100 * tolerance:.3g} %{_rate_clause(measurement, tolerance)}"


def gap_points(measurement: Measurement) -> str:
    """Return the absolute difference between mean probability and frequency, in points."""
    return format_points(abs(measurement["signed_gap"].value))


def gap_size(measurement: Measurement) -> str:
    """Return `gap_points` with their unit and, for a rare class, relative to the base rate."""
    relative = measurement.relative_to_rate(measurement["signed_gap"].value)
    return f"{gap_points(measurement)} points" + (f" ({relative})" if relative else "")


def _rate_clause(measurement: Measurement, error: float) -> str:
    """Return an error of a rare class relative to the base rate as the continuation of a sentence, else ""."""
    relative = measurement.relative_to_rate(error)
    return f", {relative}" if relative else ""


def direction_answer(measurement: Measurement) -> str:
    """Compare mean probability and frequency.

    If calibration is rejected, name the bin that contributes most to ECE. If not, explain an interval of the difference
    that excludes 0.
    """
    event, signed_gap, verdict = measurement.event, measurement["signed_gap"], measurement.verdict
    opening, level = DIRECTION_OPENINGS[verdict.direction], format_level(measurement.level)
    text = (
        f"{opening} The mean {event.probability} is {format_percent(measurement.mean_confidence, 1)} and the "
        f"{event.frequency} is {format_percent(measurement.observed_frequency.value, 1)}, a difference of "
        f"{format_points(signed_gap.value, sign='+')} points ({level} interval {format_points(signed_gap.low)} to "
        f"{format_points(signed_gap.high)}){_rate_clause(measurement, signed_gap.value)}.{_count_sentence(measurement)}"
    )
    if verdict.is_miscalibrated:
        return f"{text} {_worst_bin_sentence(measurement)}".strip()
    if signed_gap.low <= 0 <= signed_gap.high:
        return text
    return (
        f"{text} The interval of the difference excludes 0, as for {format_percent(1 - measurement.level, 0)} of "
        "calibrated models; the omnibus test does not reject calibration."
    )


def _count_sentence(measurement: Measurement) -> str:
    """Return observed and expected events and their ratio for a rare class, else ""."""
    mean, rate, n = measurement.mean_confidence, measurement.rare_rate, measurement.source.total_weight
    if rate is None or mean <= 0:
        return ""
    ratio = observed_expected.interval(measurement.source, level=measurement.level)
    expected, value, low, high = map(_three_digits, (n * mean, ratio.value, ratio.low, ratio.high))
    observed = f"{n * rate:,.0f}" if abs(n * rate % 1 - 0.5) > 0.499 else _three_digits(n * rate)  # a sum of weights
    return (
        f" The probabilities add up to {expected} events, and {observed} were observed: observed/expected is "
        f"{value} ({format_level(ratio.level)} interval {low} to {high})."
    )


def _three_digits(value: float) -> str:
    """Return a count or ratio with three digits, or all digits before the decimal point."""
    return f"{value:,.0f}" if value >= 100 else format_number(value, 1 if value >= 10 else 2)


def base_rate_sentence(measurement: Measurement) -> str:
    """Compare scores of a rare class with those of a model that gives every example the base rate, else return ""."""
    rate, nll = measurement.base_rate, measurement["nll"].value
    if rate is None or not measurement.is_rare or not 0 < rate < 1:
        return ""
    constant = "a model that gives every example the base rate"
    opening, texts = f"Against {constant}", list[str]()
    if measurement.k == 2:
        opening = f"{capitalize(constant)} has an accuracy of {format_percent(max(rate, 1 - rate))}. Against it"
        if math.isfinite(nll):
            entropy = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
            texts.append(f"the NLL is {_ratio_text(nll / entropy)}")
    brier = _ratio_text(measurement["event_brier"].value / (rate * (1 - rate)))
    return f"{opening}, {join_names([*texts, f'the Brier score of the event is {brier}'])}."


def _ratio_text(ratio: float) -> str:
    """Return the ratio of two scores in words, such as "3.0 % lower" or "16.2 times as high"."""
    if ratio >= 2:
        return f"{_three_digits(ratio)} times as high"
    return f"{format_percent(abs(1 - ratio), 1)} {'lower' if ratio <= 1 else 'higher'}"


def _worst_bin_sentence(measurement: Measurement) -> str:
    """Name the bin that contributes most to ECE, and its contribution, unless one bin holds nearly all."""
    event, bins = measurement.event, measurement.reliability_bins
    if float(bins.weight.max()) > MAX_BIN_SHARE:
        return ""
    contributions = bins.weight * abs(bins.gap)  # ECE is their sum
    worst = int(contributions.argmax())
    low, high = (float(edge) for edge in bins.edges[worst : worst + 2])
    part, total = (format_points(float(x)) for x in (contributions[worst], contributions.sum()))
    return (
        f"{capitalize(event.scores)} of {format_percent_range(low, high, 0)} "
        f"({format_percent(float(bins.weight[worst]), 0)} of the {event.units}) contribute "
        f"{part} of the {total} points of ECE."
    )


def group_answer(measurement: Measurement) -> str:
    """Name the groups whose mean probability differs significantly from their frequency."""
    event, groups = measurement.event, measurement.groups
    assert groups is not None  # called only for measurements with groups

    def describe_group(i: int) -> str:
        """Return the name of a group, the direction of its gap, and its size."""
        direction = "over" if float(groups.low[i]) > 0 else "under"
        gap = format_points(abs(float(groups.gap[i])))
        predicted, observed = (format_percent(float(x[i]), 1) for x in (groups.mean_confidence, groups.frequency))
        means = f": {predicted} predicted, {observed} observed" if measurement.is_rare else ""
        return f"{quote(groups.names[i])} ({event.headline(direction)} by {gap} points{means})"

    num_miscalibrated, group_list = list_miscalibrated_groups(groups, describe_group)
    if len(groups.names) == 1:
        return f"{capitalize(group_list)}." if group_list else f"The only {event.group} has no significant gap."
    intervals = f"The {format_level(groups.level)} intervals hold for all {event.groups} simultaneously."
    if not num_miscalibrated:
        return f"None of the {len(groups.names)} {event.groups} has a significant gap. {intervals}"
    return f"{num_miscalibrated} of {len(groups.names)}: {group_list}. {intervals}"


def list_miscalibrated_groups(groups: Groups, describe_group: Callable[[int], str]) -> tuple[int, str]:
    """Return the number of groups with a significant gap, and a list of the worst as text.

    Each group is named by `describe_group(index)`.
    """
    miscalibrated = [i for i in groups.worst_first if float(groups.significant_gap[i]) > 0]
    num_unnamed = len(miscalibrated) - MAX_NAMED_GROUPS
    names = [describe_group(i) for i in miscalibrated[:MAX_NAMED_GROUPS]]
    if num_unnamed > 0:
        names.append(f"{num_unnamed} more")
    return len(miscalibrated), join_names(names) if names else ""


def event_sentence(measurement: Measurement) -> str:
    """Return which event is evaluated, and that dependence within clusters is allowed for if there are any."""
    event = measurement.event
    sentences = [f"Evaluated event: {event.title}.", "" if measurement.is_rare else event.hint]
    if measurement.clusters:
        sentences.append(f"Intervals and tests allow for dependence between {event.units} of the same {event.cluster}.")
    source = measurement.source
    if isinstance(source, Predictions) and source.weights_are == IMPORTANCE:
        stated = f"Weights are importance: each {event.unit} counts once in intervals and tests, whatever its weight."
        sentences.append(FRACTIONS_NOTE if FRACTIONS_NOTE in source.notes else stated)
    return " ".join(filter(None, sentences))


def remedy_answer(assessment: Assessment) -> str:
    """Describe the selected calibrator, the reason for it and its effects, or say that none helps."""
    few_labels, gain = few_labels_sentence(assessment), gain_sentence(assessment)
    if assessment.is_identity and assessment.selection != "held_out":
        identity = f"Identity {selection_reason(assessment)}; it leaves predictions unchanged."
        return " ".join(filter(None, [identity, few_labels, gain]))
    if assessment.is_identity:
        fitted = [display_name(name) for name in assessment.measurements if name != "Identity"]
        if not fitted:
            return "No calibrator was fitted."
        lower = "lower" if assessment.has_lowest_held_out_nll and not few_labels else "significantly lower"
        reason = f"None. No fitted calibrator ({join_names(fitted)}) has a {lower} NLL on {HELD_OUT_FOLDS}."
        return " ".join(filter(None, [reason, few_labels, gain]))
    before, after = assessment.uncalibrated, assessment.calibrated
    sentences = [
        f"{assessment.chosen_label} {selection_reason(assessment)}.",
        few_labels,
        f"It changes NLL from {before['nll'].text} to {after['nll'].text} and ECE from {before['ece'].text} % to "
        f"{after['ece'].text} %.",
        gain,
        _accuracy_sentence(assessment),
        _accuracy_preserving_sentence(assessment),
        *direction_change_sentences(assessment),
        *worsened_metric_sentences(assessment),
    ]
    return " ".join(filter(None, sentences))


def selection_reason(assessment: Assessment) -> str:
    """Return why the calibrator was selected, as a verb phrase."""
    if assessment.selection == "requested":
        return "was requested"
    if assessment.selection == "first":
        return "is the first of the list, as the fitting data has no held-out folds to compare it on"
    indistinguishable = assessment.held_out.indistinguishable  # empty unless labels are few
    if len(indistinguishable) > 1:
        exception = ", but for Identity, whose NLL is higher" if "Identity" in indistinguishable else ""
        return f"is the simplest choice that cannot be told apart from the best{exception}"
    lowest = "has the lowest NLL" if assessment.has_lowest_held_out_nll else "was selected by its NLL"
    return f"{lowest} on {HELD_OUT_FOLDS}"


def few_labels_sentence(assessment: Assessment) -> str:
    """Describe which calibrators few labels can tell apart, or return an empty text if labels are not few.

    The sentence stands after one that names the selected calibrator.
    """
    held_out, examples = assessment.held_out, assessment.uncalibrated.event.count(len(assessment.fitting_data))
    if not held_out.indistinguishable:  # the comparison was made for few labels only
        return ""
    names = [display_name(name) for name in held_out.indistinguishable]
    if len(names) < 2:
        return f"With {examples} to fit on, it can be told apart from all others on held-out folds."
    return (
        f"With {examples} to fit on, {len(names)} of {len(held_out.deficits)} calibrators cannot be told apart on "
        f"held-out folds: {join_names(names)}."
    )


def gain_sentence(assessment: Assessment) -> str:
    """State the held-out gain of the selected calibrator, or else of Auto. Return "" if it has none."""
    if assessment.reported_gain is None:
        return ""
    name, gain = assessment.reported_gain
    return (
        f"On held-out examples, {display_name(name)} has a gain of "
        f"{gain.value:z.4f} nats, at least {gain.low:z.4f} ({format_level((1 + gain.level) / 2)} limit)."
    )


def _accuracy_sentence(assessment: Assessment) -> str:
    """Say how the accuracy changes, and whether a loss is significant. Return "" if it is not compared."""
    if assessment.changes is None:
        return "" if calibrators.preserves_argmax(assessment.best) else "It may change predicted classes."
    change = assessment.changes_by_metric.get("accuracy")
    if change is None:
        return ""
    if change.low == change.high == 0:
        return "Accuracy does not change."
    text = f"Accuracy changes by {format_points(change.difference, 2, '+')} points"
    if not (math.isfinite(change.low) and math.isfinite(change.high)):
        return f"{text}."
    level = format_level(assessment.changes.level)
    low, high = (format_points(limit, 2, "+") for limit in (change.low, change.high))
    loss = f", a loss that {_significance(change)}" if change.difference < 0 else ""
    return f"{text} ({level} interval {low} to {high}){loss}."


def _accuracy_preserving_sentence(assessment: Assessment) -> str:
    """Name an alternative that keeps all predicted classes, if the selected calibrator loses accuracy."""
    if assessment.accuracy_preserving is None:
        return ""
    name = assessment.accuracy_preserving
    nll, ece = (assessment.measurements[name][metric].text for metric in ("nll", "ece"))
    return f"{display_name(name)} keeps all predicted classes, with an NLL of {nll} and an ECE of {ece} %."


def direction_change_sentences(assessment: Assessment) -> list[str]:
    """Compare the directions before and after calibration, or say nothing if neither is significant."""
    before, after = assessment.uncalibrated, assessment.calibrated
    predicate_before, predicate_after = (m.event.predicate(m.verdict.direction) for m in (before, after))  # or ""
    if not (predicate_before or predicate_after):
        return []
    first = second = "there is no clear direction"
    if predicate_before:
        first = f"it {predicate_before} by {gap_size(before)}"
    if predicate_after == predicate_before:
        second = f"by {gap_size(after)}"
    elif predicate_after:
        second = f"it {predicate_after} by {gap_size(after)}"
    return [f"Before calibration, {first}; afterwards, {second}."]


def worsened_metric_sentences(assessment: Assessment) -> list[str]:
    """Return a sentence for each of ECE and the Brier score that gets worse in the digits shown."""
    sentences: list[str] = []
    brier = "event_brier" if "event_brier" in assessment.uncalibrated else "brier"
    for name, title in (("ece", "ECE"), (brier, "The Brier score")):
        before, after = assessment.uncalibrated[name], assessment.calibrated[name]
        if after.value > before.value and after.text != before.text:
            unit = " %" if before.info.percent else ""
            significance = _significance(assessment.changes_by_metric.get(name))
            clause = f", which {significance}" if significance else ""
            sentences.append(f"{title} gets worse, from {before.text}{unit} to {after.text}{unit}{clause}.")
    return sentences


def _significance(change: Difference | None) -> str:
    """Return whether a change is significant as a verb phrase, or an empty text without a finite interval."""
    if change is None or not (math.isfinite(change.low) and math.isfinite(change.high)):
        return ""
    return "is significant" if change.low > 0 or change.high < 0 else "may be chance"


def fit_warnings(assessment: Assessment) -> list[str]:
    """Return a sentence for each fit whose certificate does not prove that it is optimal."""
    return [
        _fit_warning(display_name(name), certificate)
        for name, certificate in assessment.certificates.items()
        if not certificate.is_optimal
    ]


def _fit_warning(name: str, certificate: Certificate) -> str:
    """Say why the certificate of a calibrator's fit does not prove that it is optimal."""
    match certificate.status:
        case "at bound":
            return f"The fit of {name} stopped at a bound of its range."
        case "separable":
            return f"The fit of {name} has no finite optimum: it classifies every fitting example correctly."
        case "not converged":
            return f"The fit of {name} did not converge."
        case _:
            unit = " nats" if certificate.criterion == "nll" else ""
            return f"The fit of {name} is about {certificate.gap:.1g}{unit} above the optimum of its family."


def significance_answer(assessment: Assessment) -> str:
    """Test the change of NLL on the same rows, or of the Brier score if NLL is infinite."""
    units, changes = assessment.calibrated.event.units, score_changes(assessment)
    if not changes or assessment.changes is None:
        return f"These {units} do not allow a test."
    change, level = changes[0], format_level(assessment.changes.level)  # that of NLL comes first, if it is finite
    info = assessment.uncalibrated[change.name].info
    nll_rows = assessment.uncalibrated["nll"], assessment.calibrated["nll"]
    infinite_nll = next((row for row in nll_rows if math.isinf(row.value)), None)
    name = "NLL" if infinite_nll is None else f"the {info.title}"
    verb = "falls" if change.difference < 0 else "rises"
    clause = f"On the same {units}, {name} {verb} by {info.text(abs(change.difference))}"
    if change.low > 0 or change.high < 0:
        low, high = sorted((abs(change.low), abs(change.high)))
        opening = "Yes." if change.difference < 0 else "Yes, but it is a change for the worse."
        answer = f"{opening} {clause} ({level} interval {info.text(low)} to {info.text(high)})."
    else:
        interval = f"{change.low:+.4f} to {change.high:+.4f}"
        answer = f"No. {clause}. The {level} interval of the change, {interval}, includes 0."
    return answer if infinite_nll is None else f"{answer} NLL cannot be tested: {infinite_nll.note}."


def score_changes(assessment: Assessment) -> list[Difference]:
    """Return the changes of NLL and the Brier score, in this order, that are finite and have a finite interval."""
    rows = [row for row in assessment.changes or () if row.name in ("nll", "brier", "event_brier")]
    return [row for row in rows if all(map(math.isfinite, (row.difference, row.low, row.high)))]


def decomposed_changes(assessment: Assessment) -> list[Difference]:
    """Return the changes that split NLL and the Brier score into refinement and calibration, or [] for Identity.

    The score after calibration is the refinement, and its change is the calibration. If a single event is evaluated,
    the Brier score is that of the event.
    """
    rows = [] if assessment.is_identity else score_changes(assessment)
    has_event_score = any(row.name == "event_brier" for row in rows)
    return [row for row in rows if not (has_event_score and row.name == "brier")]


def score_change_sentence(assessment: Assessment) -> str:
    """Describe how much calibration lowers NLL, or the Brier score if NLL is infinite. At least one must be finite.

    A single map shows what recalibration gains at least. It does not show what recalibration cannot gain, because
    another map may do better.
    """
    change = decomposed_changes(assessment)[0]
    info, reduction = assessment.uncalibrated[change.name].info, -change.difference
    calibration, score = f"Calibration with {assessment.chosen_label}", f"the {info.title} of {info.text(change.first)}"
    if change.low <= 0 <= change.high:
        return f"{calibration} does not significantly change {score}."
    if reduction < 0:
        return f"{calibration} raises {score} by {info.text(-reduction)}."
    sentences = [
        f"{calibration} lowers {score} by {info.text(reduction)} ({format_percent(reduction / change.first, 0)}).",
        f"On average, the remaining {info.text(change.second)} is an upper limit of what the best map leaves.",
    ]
    accuracy = assessment.changes_by_metric.get("accuracy")
    if accuracy is not None and (accuracy.low, accuracy.high) != (0, 0):
        sentences.append("The change includes that of predicted classes.")
    return " ".join(sentences)


# Formats


def capitalize(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]
