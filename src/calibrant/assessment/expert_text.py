"""The answers in words, each with its evidence; the report, the notebook and the command line say the same."""

import math
from collections.abc import Callable, Sequence
from itertools import starmap

from calibrant._text import display_name
from calibrant.assessment._events import EventDescription, quote
from calibrant.assessment._results import AssessmentData, MeasurementData, Row
from calibrant.backend.solvers import Certificate
from calibrant.metrics import Difference, MetricInfo
from calibrant.metrics.tables import Groups

STRONG_EVIDENCE_P_VALUE = 0.01  # p-value below which a calibrated model is ruled out
MAX_NAMED_GROUPS = 3  # that a sentence names
MAX_UNDETECTED_ERROR = 0.1  # error that cannot be ruled out, above which the examples are too few

Answer = tuple[str, str]  # question, answer


def headline(measurement: MeasurementData) -> str:
    """Say in a few words whether, and which way, the predictions are off."""
    if measurement.verdict.status == "no_evidence":
        num_miscalibrated = 0 if measurement.groups is None else int((measurement.groups.significant_gap > 0).sum())
        if measurement.groups is not None and num_miscalibrated:
            count_phrase = f"{len(measurement.groups.names)} {measurement.event.group}s"
            return f"No evidence of miscalibration on the whole, but in {num_miscalibrated} of {count_phrase}"
        few_examples_note = f", but too few {measurement.event.unit}s to tell"
        return "No evidence of miscalibration" + (
            few_examples_note if undetected_error_bound(measurement) > MAX_UNDETECTED_ERROR else ""
        )
    direction_phrase = measurement.event.direction_phrase(measurement.verdict.direction).removeprefix("is ")
    deviation_phrase = (
        f"{direction_phrase} by {gap_points(measurement)} points"
        if direction_phrase
        else "miscalibrated, in no certain direction"
    )
    return (
        f"{deviation_phrase[0].upper()}{deviation_phrase[1:]}"
        if measurement.verdict.is_miscalibrated
        else f"Possibly {deviation_phrase}"
    )


def verdict_paragraph(assessment: AssessmentData) -> str:
    """Say in one paragraph which way the predictions are off, what repairs them, and how sure that is."""
    return " ".join(text for _, text in assessment_answers(assessment))


def measurement_answers(measurement: MeasurementData) -> list[Answer]:
    """Answer what one wants to know first of a model's probabilities."""
    question_answers = [
        ("Is it calibrated?", calibration_answer(measurement)),
        ("Which way is it off?", direction_answer(measurement)),
    ]
    if measurement.groups is None:
        return question_answers
    return [
        *question_answers,
        (f"And in every {measurement.event.group}?", group_answer(measurement, measurement.groups)),
    ]


def assessment_answers(assessment: AssessmentData) -> list[Answer]:
    """Answer, in this order, what one wants to know of a model's probabilities, and of what was done to them."""
    question_answers = [*measurement_answers(assessment.uncalibrated), ("What fixes it?", remedy_answer(assessment))]
    if assessment.chosen_name == "Identity":
        return question_answers
    calibrated_measurement = assessment.calibrated
    question_answers += [
        ("Is the difference real?", significance_answer(assessment)),
        ("Is it calibrated then?", calibration_answer(calibrated_measurement, assessment.uncalibrated)),
    ]
    if calibrated_measurement.groups is None:
        return question_answers
    return [
        *question_answers,
        (
            f"And in every {calibrated_measurement.event.group} then?",
            group_answer(calibrated_measurement, calibrated_measurement.groups),
        ),
    ]


def calibration_answer(measurement: MeasurementData, uncalibrated: MeasurementData | None = None) -> str:
    """Weigh the bin-free test first, then ECE against its noise floor, then what could have been missed."""
    p, ece, floor = measurement["kuiper"].p_value, measurement["ece"], measurement["noise_floor"]
    above_floor = ece.value > floor.high
    ece_phrase = (
        f"its ECE of {ece.text} % is {'above' if above_floor else 'within'} what a calibrated model shows by chance "
        f"({floor.text} % on average, {format_percent(floor.high)} at the {50 * (1 + measurement.level):g} % quantile)"
    )
    if measurement.verdict.is_miscalibrated:
        opening = "No" if p < STRONG_EVIDENCE_P_VALUE else "Probably not"
        if uncalibrated is not None and ece.value < uncalibrated["ece"].value:
            opening = (
                "Better, but not perfectly" if p < STRONG_EVIDENCE_P_VALUE else "Better, but probably not perfectly"
            )
        return (
            f"{opening}: the Kuiper test rejects it ({format_p_value(p)}), {'and' if above_floor else 'but'} "
            f"{ece_phrase}."
        )
    count_phrase = f"{measurement.n:,} {measurement.event.unit}{'s' * (measurement.n != 1)}"
    undetected_error_sentence = (
        f"With {count_phrase}, an error of up to {format_percent(undetected_error_bound(measurement), 1)} cannot be "
        "ruled out."
    )
    if measurement.verdict.status == "unclear":
        deviation_phrase = "" if above_floor else f", but {_significant_deviation(measurement)}"
        conjunction = "but" if above_floor else "and"
        return (
            f"Unclear: the Kuiper test finds no error ({format_p_value(p)}), {conjunction} "
            f"{ece_phrase}{deviation_phrase}. {undetected_error_sentence}"
        )
    return (
        f"No evidence that it is not: the Kuiper test finds no error ({format_p_value(p)}), and {ece_phrase}. "
        f"{undetected_error_sentence}"
    )


def _significant_deviation(measurement: MeasurementData) -> str:
    """Say what is beyond chance where neither the Kuiper test nor ECE is."""
    if not measurement.verdict.direction:
        return f"its adaptive ECE of {measurement['adaptive_ece'].text} % is above"
    low, high = sorted(abs(100 * end) for end in (measurement["signed_gap"].low, measurement["signed_gap"].high))
    gap_phrase = f"the mean {measurement.event.probability_label} is off by {gap_points(measurement)} points"
    return f"{gap_phrase} ({low:.1f} to {high:.1f} with {format_level(measurement.level)})"


def gap_points(measurement: MeasurementData) -> str:
    """Write how far what is said on average is from what happens, without its sign."""
    return f"{100 * abs(measurement['signed_gap'].value):.1f}"


def undetected_error_bound(measurement: MeasurementData) -> float:
    """Return the largest error that the intervals leave room for: of debiased L2, or of all predictions together."""
    observed_frequency = measurement.observed_frequency
    return max(
        measurement["debiased_l2"].high,
        measurement.mean_confidence - observed_frequency.low,
        observed_frequency.high - measurement.mean_confidence,
    )


def direction_answer(measurement: MeasurementData) -> str:
    """Compare what is said on average with what happens, and name the range of probabilities that costs most."""
    gap, direction_phrase = measurement["signed_gap"], measurement.event.direction_phrase(measurement.verdict.direction)
    frequency_text = format_percent(measurement.observed_frequency.value, 1)
    comparison = (
        f"it says {format_percent(measurement.mean_confidence, 1)} on average and "
        f"{measurement.event.occurrence_phrase} {frequency_text} of the time"
    )
    low, high = 100 * gap.low, 100 * gap.high
    if measurement.verdict.status == "no_evidence":
        return f"No direction beyond chance: {comparison}."
    if direction_phrase:
        low, high = sorted((abs(low), abs(high)))
        gap_phrase = (
            f"{gap_points(measurement)} points apart ({low:.1f} to {high:.1f} with {format_level(measurement.level)})"
        )
        text = (
            f"{'It' if measurement.verdict.is_miscalibrated else 'Perhaps it'} {direction_phrase}: {comparison}, "
            f"{gap_phrase}."
        )
    else:
        interval_phrase = (
            f"{format_level(measurement.level)} interval of the difference: {low:.1f} to {high:.1f} points"
        )
        text = f"No certain direction: {comparison}{f' ({interval_phrase})' if math.isfinite(low) else ''}."
    shares = measurement.reliability_bins.weight * measurement.reliability_bins.gap.abs()
    worst_bin = int(shares.argmax())
    low, high = (100 * float(edge) for edge in measurement.reliability_bins.edges[worst_bin : worst_bin + 2])
    bin_share = (
        f"{format_percent(float(measurement.reliability_bins.weight[worst_bin]), 0)} of the {measurement.event.unit}s"
    )
    return (
        f"{text} {measurement.event.probabilities_label.capitalize()} of {low:.0f} to {high:.0f} % ({bin_share}) "
        f"account for {100 * float(shares[worst_bin]):.1f} of the {100 * float(shares.sum()):.1f} points of ECE."
    )


def group_answer(measurement: MeasurementData, groups: Groups) -> str:
    """Say in how many groups the gap is beyond chance, and in which most."""
    count_phrase = f"{len(groups.names)} {measurement.event.group}s"
    interval_phrase = f"{format_level(groups.level)} intervals that hold for all of them together"

    def describe_group(i: int) -> str:
        way = measurement.event.interval_phrase(float(groups.low[i]), float(groups.high[i]))
        return f"{quote(groups.names[i])} ({way} by {100 * abs(float(groups.gap[i])):.1f} points)"

    num_miscalibrated, group_list = list_miscalibrated_groups(groups, describe_group)
    if not num_miscalibrated:
        return f"In none of {count_phrase} is the gap beyond chance ({interval_phrase})."
    return f"In {num_miscalibrated} of {count_phrase} the gap is beyond chance: {group_list} ({interval_phrase})."


def list_miscalibrated_groups(groups: Groups, describe_group: Callable[[int], str]) -> tuple[int, str]:
    """In how many groups the gap is beyond chance, and the worst of them, each as `said` has it."""
    miscalibrated = [i for i in groups.worst_first if float(groups.significant_gap[i]) > 0]
    omission_note = [f"{len(miscalibrated) - MAX_NAMED_GROUPS} more"] if len(miscalibrated) > MAX_NAMED_GROUPS else []
    return len(miscalibrated), join_names(
        [*map(describe_group, miscalibrated[:MAX_NAMED_GROUPS]), *omission_note]
    ) if miscalibrated else ""


def group_rows(measurement: MeasurementData) -> list[list[str]]:
    """Write a row per group, worst first, then the mean over groups and what all examples together give."""
    groups = measurement.groups
    assert groups is not None

    def row(name: str, count: str, values: Sequence[float], room: str, floor: str) -> list[str]:
        said, happened, gap, ece, nll = values
        return [
            name,
            count,
            *(format_percent(share, 1) for share in (said, happened)),
            f"{100 * gap:+z.1f}",
            room,
            f"{100 * ece:.2f}",
            floor,
            measurement["nll"].info.text(nll),
        ]

    rows = [
        row(
            display_name(r["group"]),
            f"{r['count']:,.6g}" if r["count"] % 1 else f"{int(r['count']):,}",
            [r[name] for name in ("said", "happened", "gap", "ece", "nll")],
            f"[{100 * r['low']:+z.1f}, {100 * r['high']:+z.1f}]",
            f"{100 * r['floor']:.2f}, up to {100 * r['floor_high']:.2f}",
        )
        for r in groups.records()
    ]
    means = [groups.macro(name) for name in ("said", "happened", "gap", "ece", "nll")]
    gap, ece, floor = measurement["signed_gap"], measurement["ece"], measurement["noise_floor"]
    pooled = [
        measurement.mean_confidence,
        measurement.observed_frequency.value,
        gap.value,
        ece.value,
        measurement["nll"].value,
    ]
    return [
        *rows,
        row(f"mean over {measurement.event.group}s", "", means, "", f"{100 * groups.macro('floor'):.2f}"),
        row(
            "all together",
            f"{measurement.n:,}",
            pooled,
            f"[{100 * gap.low:+z.1f}, {100 * gap.high:+z.1f}]",
            f"{100 * floor.value:.2f}, up to {100 * floor.high:.2f}",
        ),
    ]


def group_headings(event: EventDescription) -> list[str]:
    """Name the columns of these rows."""
    numbers = ["said", "happened", "gap (points)", "interval", "ECE (%)", "by chance", "NLL"]
    return [event.group, "examples" if event.group == event.unit else f"{event.unit}s", *numbers]


def cluster_sentence(measurement: MeasurementData) -> str:
    """Say what the clusters are for."""
    cluster = measurement.event.cluster
    a = "an" if cluster[0] in "aeiou" else "a"
    return f"Intervals and tests let the {measurement.event.unit}s of {a} {cluster} depend on each other in any way."


def remedy_answer(assessment: AssessmentData) -> str:
    """Name the calibrator that was chosen, why, and what it changes."""
    if assessment.chosen_name == "Identity":
        others = [name for name in assessment.tables if name != "Identity"]
        if not others:
            return "No calibrator was fitted."
        return f"Nothing that was fitted ({join_names(list(map(display_name, others)))}) does better on held-out data."
    reason = ", which has the lowest NLL on held-out folds of the fitting data" if assessment.held_out_nll else ""
    nll, ece = (
        tuple(table[m].text for table in (assessment.uncalibrated, assessment.calibrated)) for m in ("nll", "ece")
    )
    change_phrase = f"NLL from {nll[0]} to {nll[1]} and ECE from {ece[0]} % to {ece[1]} %"
    accuracy = next((row for row in assessment.changes or () if row.name == "accuracy"), None)
    accuracy_phrase = (
        "" if accuracy is None and assessment.changes is not None else f", and {_accuracy_phrase(accuracy)}"
    )
    parts = [
        f"{assessment.chosen_label}{reason}. It takes "
        f"{change_phrase}{accuracy_phrase}.{_accuracy_preserving_sentence(assessment)}"
    ]
    return " ".join([*parts, *direction_change_sentences(assessment), *worsened_metric_sentences(assessment)])


def direction_change_sentences(assessment: AssessmentData) -> list[str]:
    """Say which way the predictions are off before and after, where either is beyond chance."""
    uncalibrated_measurement, calibrated_measurement = assessment.uncalibrated, assessment.calibrated
    start_phrase, end_phrase = (
        table.event.direction_phrase(table.verdict.direction)
        for table in (uncalibrated_measurement, calibrated_measurement)
    )
    if not (start_phrase or end_phrase):
        return []
    end_gap_phrase = f"{gap_points(calibrated_measurement)} points after"
    if start_phrase == end_phrase:
        return [f"It {start_phrase} by {gap_points(uncalibrated_measurement)} points before, and by {end_gap_phrase}."]
    no_direction_phrase = "is off in no certain direction"
    opening = "The direction turns: it" if start_phrase and end_phrase else "It"
    start_clause = (
        f"{start_phrase} by {gap_points(uncalibrated_measurement)} points" if start_phrase else no_direction_phrase
    )
    return [
        f"{opening} {start_clause} before, and "
        f"{f'{end_phrase} by {end_gap_phrase}' if end_phrase else f'{no_direction_phrase} after'}."
    ]


def worsened_metric_sentences(assessment: AssessmentData) -> list[str]:
    """Say of ECE and the Brier score that they get worse, where they do, and whether beyond chance."""
    changes = {row.name: row for row in assessment.changes or ()}
    sentences: list[str] = []
    brier = "event_brier" if "event_brier" in assessment.uncalibrated else "brier"
    for name, title in (("ece", "ECE"), (brier, "the Brier score")):
        start_row, end_row = assessment.uncalibrated[name], assessment.calibrated[name]
        if end_row.value > start_row.value and end_row.text != start_row.text:
            unit = " %" if start_row.info.percent else ""
            significance = _significance_phrase(changes.get(name))
            sentences.append(
                f"But {title} gets worse, from {start_row.text}{unit} to {end_row.text}{unit}{significance}."
            )
    return sentences


def _significance_phrase(change: Difference | None) -> str:
    """Say whether a change is beyond chance, where that is known."""
    if change is None or not (math.isfinite(change.low) and math.isfinite(change.high)):
        return ""
    return ", beyond chance" if change.low > 0 or change.high < 0 else ", perhaps by chance"


def fit_warnings(assessment: AssessmentData) -> list[str]:
    """Write a sentence for each fit whose certificate does not show that it is the optimum of its family."""
    return [
        _fit_warning(name, certificate)
        for name, certificate in assessment.certificates.items()
        if not certificate.is_optimal
    ]


def _fit_warning(name: str, certificate: Certificate) -> str:
    match certificate.status:
        case "at bound":
            return f"The fit of {name} ended at a bound of its range."
        case "separable":
            return f"The fit of {name} has no finite optimum: every example it was fitted on is already right."
        case "not converged":
            return f"The fit of {name} did not converge."
        case _:
            unit = " nats" if certificate.criterion == "nll" else ""
            return f"The fit of {name} is about {certificate.gap:.1g}{unit} above the optimum of its family."


def _accuracy_preserving_sentence(assessment: AssessmentData) -> str:
    """Name what keeps every prediction, where the chosen one costs accuracy beyond chance."""
    if assessment.accuracy_preserving is None:
        return ""
    table = assessment.tables[assessment.accuracy_preserving]
    performance_phrase = f"with an NLL of {table['nll'].text} and an ECE of {table['ece'].text} %"
    return (
        f" That is a loss beyond chance: {display_name(assessment.accuracy_preserving)} keeps every prediction, "
        f"{performance_phrase}."
    )


def significance_answer(assessment: AssessmentData) -> str:
    """Test the change of NLL on the same examples, of Brier where NLL is infinite."""
    unit, changes = assessment.calibrated.event.unit, score_changes(assessment)
    if not changes or assessment.changes is None:
        return f"It cannot be tested on these {unit}s."
    change, level = changes[0], format_level(assessment.changes.level)
    info = assessment.uncalibrated[change.name].info
    zero_probability_note = next(
        (
            table["nll"].note
            for table in (assessment.uncalibrated, assessment.calibrated)
            if math.isinf(table["nll"].value)
        ),
        "",
    )
    name = f"the {info.title}" if zero_probability_note else "NLL"
    change_verb = "falls" if change.difference < 0 else "rises"
    low, high = sorted((abs(change.low), abs(change.high)))
    change_clause = f"on the same {unit}s {name} {change_verb} by {info.text(abs(change.difference))}"
    if change.low > 0 or change.high < 0:
        opening = "Yes" if change.difference < 0 else "Yes, but for the worse"
        answer = (
            f"{opening}: {change_clause} ({info.text(low)} to {info.text(high)} with {level}; "
            f"{format_p_value(change.p_value)})."
        )
    else:
        interval_clause = f"{change.low:+.4f} to {change.high:+.4f}, holds 0 ({format_p_value(change.p_value)})"
        answer = f"Not beyond chance: {change_clause}, and the {level} interval of the change, {interval_clause}."
    return f"{answer} NLL cannot be tested: {zero_probability_note}." if zero_probability_note else answer


def score_changes(assessment: AssessmentData) -> list[Difference]:
    """Return the changes of NLL and Brier that are known."""
    rows = [row for row in assessment.changes or () if row.name in ("nll", "brier", "event_brier")]
    return [row for row in rows if all(map(math.isfinite, (row.difference, row.low, row.high)))]


def decomposed_changes(assessment: AssessmentData) -> list[Difference]:
    """Return the changes of NLL and Brier that divide them into refinement and calibration; none without a map.

    Where one event is evaluated, the Brier score is that of the event.
    """
    rows = [] if assessment.chosen_name == "Identity" else score_changes(assessment)
    of_event = any(row.name == "event_brier" for row in rows)
    return [row for row in rows if not (of_event and row.name == "brier")]


def miscalibration_cost_sentence(assessment: AssessmentData) -> str:
    """Say how much of NLL, or of Brier where NLL is infinite, recalibration takes off, and who could lower the rest."""
    part = decomposed_changes(assessment)[0]
    info, reduction = assessment.uncalibrated[part.name].info, -part.difference
    name, total_text = info.title, info.text(part.first)
    if part.low <= 0 <= part.high:
        return f"Recalibration takes nothing beyond chance off the {name} of {total_text}."
    if reduction < 0:
        return f"Recalibration only adds to the {name} of {total_text}: here it learned what does not hold."
    return (
        f"Of the {name} of {total_text}, {info.text(reduction)} ({format_percent(reduction / part.first, 0)}) is the "
        "price of "
        f"miscalibration, which {assessment.chosen_label} takes off. Only a more accurate model could lower the "
        f"remaining {info.text(part.second)}."
    )


# Pieces


def interval_or_p_value(row: Row) -> str:
    """Write what says how surely a row is known: its interval, or its p-value."""
    return row.interval if math.isnan(row.p_value) else format_p_value(row.p_value)


def best_mask(measurements: Sequence[MeasurementData], metric_names: Sequence[str]) -> list[list[bool]]:
    """Say of every table and metric whether no other table's value is better."""

    def column(name: str) -> list[bool]:
        values = [table[name].value for table in measurements]
        least = measurements[0][name].info.best(values)
        return [value == least for value in values]

    return (
        [list(row) for row in zip(*map(column, metric_names), strict=True)]
        if metric_names
        else [[] for _ in measurements]
    )


def metric_headings(measurement: MeasurementData, metric_names: Sequence[str]) -> list[str]:
    """Name columns of metrics in few words, with their units."""

    def heading(name: str, info: MetricInfo) -> str:
        return info.heading(name if "(" in name else "")

    return list(starmap(heading, ((name, measurement[name].info) for name in metric_names)))


def format_percent(share: float, digits: int = 2) -> str:
    """Write a share in percent."""
    return f"{100 * share:.{digits}f} %"


def format_level(level: float) -> str:
    """Write the level of an interval."""
    return f"{100 * level:g} %"


def format_p_value(p: float) -> str:
    """Write a p-value."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def join_names(names: Sequence[str]) -> str:
    """Write 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _accuracy_phrase(change: Difference | None) -> str:
    if change is None:
        return "may change predictions"
    if change.low == change.high == 0:
        return "keeps the accuracy"
    interval_phrase = f" ({100 * change.low:+.2f} to {100 * change.high:+.2f})" if math.isfinite(change.low) else ""
    worsening_phrase = f", which is worse{_significance_phrase(change)}" if change.difference < 0 else ""
    return f"changes accuracy by {100 * change.difference:+.2f} points{interval_phrase}{worsening_phrase}"
