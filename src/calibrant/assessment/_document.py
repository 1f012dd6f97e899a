"""What measurements and assessments say: answers, tables, pictures and controls, in reading order.

To add a section on measurements, write a function that returns it, or None where it does not apply, and add it to
`DETAIL_SECTIONS`. Names of classes and groups may be long or invisible; `display_name` makes them fit for display.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from calibrant._core.numbers import format_level, format_p_value, format_percent, format_percent_range
from calibrant.assessment import _tables
from calibrant.assessment._controls import (
    AS_MEASURED,
    UNCALIBRATED,
    assessment_temperature_control,
    class_control,
    measurement_temperature_control,
    threshold_control,
)
from calibrant.assessment._results import Assessment, Measurement
from calibrant.assessment._sentences import (
    MAX_BIN_SHARE,
    base_rate_sentence,
    calibration_answer,
    capitalize,
    decomposed_changes,
    direction_answer,
    event_sentence,
    fit_warnings,
    group_answer,
    headline,
    remedy_answer,
    significance_answer,
)
from calibrant.assessment._tables import LabeledMeasurements
from calibrant.decisions import NetBenefit, decision_loss, net_benefit
from calibrant.metrics import Curve, MetricInfo
from calibrant.metrics.curves import risk_coverage_of
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS, PREFERENCE
from calibrant.reports.diagrams import bar_diagram, curve_diagram, diagram_explanations
from calibrant.reports.document import (
    Answer,
    Code,
    Deferred,
    Document,
    Fold,
    Note,
    Paragraph,
    Part,
    Picture,
    Section,
    SideBySide,
    Tile,
)
from calibrant.reports.result import describe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NET_BENEFIT_THRESHOLDS = tuple(i / 50 for i in range(1, 50))
RATE_RANGE = 10  # multiple of the base rate of a rare class at which its curve of net benefit ends
MAX_DECISION_ROWS = 200_000  # of predictions whose decisions the page shows
KIND = "Calibration report"


@describe.register
def _(measurement: Measurement) -> Document:
    """Return the verdict, its evidence, and the tables and pictures of metrics, groups, classes and thresholds."""
    measurements = {AS_MEASURED: measurement}
    lead = f"{measurement.n:,} {measurement.population}; no calibrator was fitted. {event_sentence(measurement)}"
    return Document(
        kind=KIND,
        title=headline(measurement),
        answers=_measurement_answers(measurement),
        notes=[*measurement.remarks, lead, *filter(None, [base_rate_sentence(measurement)])],
        tiles=_tiles(measurement, measurement, measurement["nll"].interval),
        sections=[
            Section(
                "Metrics", [_tables.metrics_table({"value": measurement}, {})], legend=_interval_legend(measurement)
            ),
            Section(
                "Reliability",
                Deferred(
                    lambda: (
                        _diagrams(measurements)
                        + ([] if measurement.is_rare else measurement_temperature_control(measurement))
                    )
                ),
                is_detail=True,
            ),
            *_detail_sections(measurements),
        ],
    )


@describe.register
def _(assessment: Assessment, *, calibrator_path: str | Path | None, from_command_line: bool) -> Document:
    """Return the answers before and after calibration, the calibrators, and how to apply the selected one.

    Args:
        assessment: The assessment.
        calibrator_path: File of the selected calibrator, if it was saved.
        from_command_line: Whether instructions are for the command line.
    """
    before, after, measurements = assessment.uncalibrated, assessment.calibrated, _label_measurements(assessment)
    table = _tables.metrics_table(measurements, assessment.changes_by_metric)
    decomposition = _tables.decomposition(assessment) if decomposed_changes(assessment) else []
    mistakes = [_tables.mistakes_table(assessment)] if assessment.mistakes else []
    usage = _usage_instructions(assessment, calibrator_path, from_command_line=from_command_line)

    def reliability() -> list[Part]:
        """Return the diagrams, and the control of the temperature, whose axes would not show a rare class."""
        return _diagrams(measurements) + ([] if before.is_rare else assessment_temperature_control(assessment))

    sections = [
        Section("Metrics", [table], legend=_interval_legend(before)),
        Section("Calibrators", _tables.calibrators_tables(assessment)),
        Section("Reliability", Deferred(reliability), is_detail=True),
        Section("Refinement and calibration", decomposition, is_detail=True),
        *_detail_sections(measurements),
        Section("Most confident errors", mistakes, is_detail=True),
        Section("Using the calibrator", usage, is_detail=True),
    ]
    return Document(
        kind=KIND,
        title=headline(before),
        answers=_assessment_answers(assessment),
        notes=[
            *assessment.remarks,
            *fit_warnings(assessment),
            f"{before.n:,} {before.population}. {assessment.protocol} {event_sentence(before)}",
            *filter(None, [base_rate_sentence(before)]),
        ],
        tiles=_tiles(before, after, "" if assessment.is_identity else f"with {assessment.chosen_label}"),
        sections=[section for section in sections if section.parts],
    )


def _interval_legend(measurement: Measurement) -> str:
    """Return what the brackets of the table of metrics hold."""
    return f"In brackets: {format_level(measurement.level)} intervals."


def _measurement_answers(measurement: Measurement) -> list[Answer]:
    """Return the questions and answers about predictions as they are."""
    event = measurement.event
    return [
        Answer("Is it calibrated?", calibration_answer(measurement)),
        Answer(f"Are the {event.scores} too high or too low?", direction_answer(measurement)),
        *_group_answers(f"Which {event.groups} deviate?", measurement),
    ]


def _assessment_answers(assessment: Assessment) -> list[Answer]:
    """Return the questions and answers about predictions before and after calibration."""
    after = assessment.calibrated
    answers = [
        *_measurement_answers(assessment.uncalibrated),
        Answer("Which calibrator helps?", remedy_answer(assessment)),
    ]
    if assessment.is_identity:  # there is no change to describe
        return answers
    return [
        *answers,
        Answer("Is the change significant?", significance_answer(assessment)),
        Answer("Is it calibrated afterwards?", calibration_answer(after)),
        *_group_answers(f"Which {after.event.groups} deviate afterwards?", after),
    ]


def _group_answers(question: str, measurement: Measurement) -> list[Answer]:
    """Return the answer about the groups, if there are any."""
    return [] if measurement.groups is None else [Answer(question, group_answer(measurement))]


def _label_measurements(assessment: Assessment) -> LabeledMeasurements:
    """Return the measurements before and after calibration, by the labels that tables and figures show."""
    if assessment.is_identity:
        return {UNCALIBRATED: assessment.uncalibrated}
    return {"before calibration": assessment.uncalibrated, f"after {assessment.chosen_label}": assessment.calibrated}


def _tiles(before: Measurement, after: Measurement, nll_note: str) -> list[Tile]:
    """Return the tiles: mean confidence and frequency before, ECE and NLL before and after.

    Without calibration, `after` is `before`. `nll_note` is the small text below the NLL.
    """
    event, frequency = before.event, before.observed_frequency
    ece = _change_text(100 * before["ece"].value, 100 * after["ece"].value, 2)
    floor = f"calibrated: up to {format_percent(after['noise_floor'].high)}"
    interval = format_percent_range(frequency.low, frequency.high)
    return [
        Tile(f"Mean {event.probability}", format_percent(before.mean_confidence, 1)),
        Tile(capitalize(event.frequency), format_percent(frequency.value, 1), interval),
        Tile("ECE (%)", ece, floor),
        Tile("NLL", _change_text(before["nll"].value, after["nll"].value, 3), nll_note),
    ]


def _change_text(start: float, end: float, digits: int) -> str:
    """Return a number before and after calibration, or once if both look the same."""
    start_text, end_text = (MetricInfo("").text(value, digits) for value in (start, end))
    return start_text if start_text == end_text else f"{start_text} → {end_text}"


def _diagrams(measurements: LabeledMeasurements) -> list[Part]:
    """Return the reliability curves of all measurements, and the bar charts, folded if there are several."""
    event = next(iter(measurements.values())).event
    curve_explanation, bar_explanation = map(Note, diagram_explanations(event))
    curves, bars = list[Part](), list[Part]()
    for name, measurement in measurements.items():
        title, bins = capitalize(name), measurement.reliability_bins
        ece, p_value = format_percent(measurement["ece"].value), format_p_value(measurement.verdict.p_value)
        error = f"ECE {ece}, {p_value}"
        level = None if measurement.clusters else measurement.level  # intervals of bins assume independent rows
        curves.append(curve_diagram(title, measurement.by_score, bins, error, event=event))
        if float(bins.weight.max()) < MAX_BIN_SHARE:  # else a bar chart says no more than the mean
            bars.append(bar_diagram(title, bins, error, event=event, level=level))
    if not bars:
        return [SideBySide(curves), curve_explanation]
    if len(measurements) == 1:
        return [SideBySide(curves + bars), curve_explanation, bar_explanation]
    return [SideBySide(curves), curve_explanation, Fold("Show as bar charts", [SideBySide(bars), bar_explanation])]


def _group_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the section on groups, or None without groups."""
    first = next(iter(measurements.values()), None)
    if first is None or first.groups is None:
        return None
    return Section(f"{capitalize(first.event.groups)}, worst first", _tables.groups_tables(measurements))


def _row_group_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the section on the row groups of multilabel data, or None if there are none."""
    grouped = {name: measurement.with_row_groups() for name, measurement in measurements.items()}
    return _group_section({name: measurement for name, measurement in grouped.items() if measurement is not None})


def _class_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the section on classes, or None if the two classes are one event or there is no table of classes."""
    first = next(iter(measurements.values()))
    if first.names in (*BINARY_EVENTS, PREFERENCE.classes) or first.classes is None:
        return None
    return Section("Classes, worst first", Deferred(partial(_class_parts, measurements)), is_detail=True)


def _class_parts(measurements: LabeledMeasurements) -> list[Part]:
    """Return the table of classes, with a diagram of each."""
    first = next(iter(measurements.values()))
    class_tables = [m.classes for m in measurements.values() if m.classes is not None]
    explanation = (
        f"ECE compares the predicted probability of the class with its frequency, in {first.bins} bins. Precision and "
        "mean confidence are computed over the examples that are predicted to be of this class."
    )
    return [_tables.classes_table(measurements), class_control(measurements, class_tables), Note(explanation)]


def _coverage_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the section on risk and coverage, or None if a class is evaluated."""
    if not next(iter(measurements.values())).event.is_confidence:
        return None
    return Section("Selective prediction", Deferred(partial(_coverage_parts, measurements)), is_detail=True)


def _coverage_parts(measurements: LabeledMeasurements) -> list[Part]:
    """Return the curve of risk and coverage, certified thresholds, and decisions."""
    first = next(iter(measurements.values()))
    event = first.event
    curves = {_short_label(name): risk_coverage_of(m.by_score, m.level) for name, m in measurements.items()}
    first_curve, subject = next(iter(curves.values())), "Error rate"
    if len(curves) > 1:
        subject += " before calibration"
    points = ", ".join(
        f"{format_percent(_risk_at_coverage(first_curve, share))} at {format_percent(share, 0)}"
        for share in (0.5, 0.8, 0.9, 1.0)
    )

    def draw(drawing: "Figure") -> None:
        from calibrant.reports import plots

        plots.risk_coverage(curves, ax=drawing.add_subplot())

    picture = Picture(draw, f"Risk-coverage curve. {subject} by coverage: {points}.", size=(4.6, 2.9))
    text = (
        f"{subject} if only the most confident {event.units} are used, by coverage: {points}. The band around a curve "
        f"holds the true error rates for all coverages simultaneously with probability {format_level(first.level)}."
    )
    if "confident_accuracy" in first:
        share, accuracy = (first[name].value for name in ("confident_share", "confident_accuracy"))
        text += (
            f" {format_percent(share, 1)} of the {event.units} have a confidence of at least 99 %; "
            f"{format_percent(accuracy)} of these are {event.outcome}."
        )
    name, last = list(measurements.items())[-1]  # users will act on calibrated predictions
    return [
        Paragraph(text),
        picture,
        *_tables.certified_tables(name, last),
        *_decision_loss(name, last),
        threshold_control(_reverse_order(measurements)),
    ]


def _threshold_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the section on thresholds of a probability, or None if the top class is evaluated."""
    if next(iter(measurements.values())).event.selector == "top":
        return None
    return Section("Decision thresholds", Deferred(partial(_threshold_parts, measurements)), is_detail=True)


def _threshold_parts(measurements: LabeledMeasurements) -> list[Part]:
    """Return the table of thresholds, net benefit, and decisions."""
    name, last = list(measurements.items())[-1]  # users will act on calibrated predictions
    parts = [_tables.thresholds_table(name, last), *_net_benefit_figure(measurements)]
    if not last.event.is_confidence:  # `_coverage_section` has these parts for confidences
        parts += _decision_loss(name, last)
        if not last.is_rare:  # all thresholds of a rare class would be at the first position of the slider
            parts.append(threshold_control(_reverse_order(measurements)))
    return parts


def _net_benefit_figure(measurements: LabeledMeasurements) -> list[Part]:
    """Return the net benefit of acting from each threshold on, or nothing without the predictions."""
    first, curves = next(iter(measurements.values())), dict[str, NetBenefit]()
    rate, thresholds = first.rare_rate, NET_BENEFIT_THRESHOLDS
    if rate:
        thresholds = tuple(RATE_RANGE * rate * threshold for threshold in thresholds)
    for name, measurement in measurements.items():
        p = _decision_predictions(measurement)
        if p is None:
            return []
        event = first.event.selector
        curves[_short_label(name)] = net_benefit(p, thresholds=thresholds, of=event, level=first.level)

    def draw(drawing: "Figure") -> None:
        from calibrant.reports import plots

        plots.net_benefit(curves, ax=drawing.add_subplot())

    explanation = (
        f"Net benefit of acting on all {first.event.units} whose {first.event.probability} is at least the threshold, "
        "in units of a true positive. The threshold is the probability at which acting and waiting are worth the same: "
        "at 10 %, a false positive costs a ninth of what a true positive gains. Bands: "
        f"{format_level(first.level)} intervals, at each threshold by itself."
    )
    alt_text = "Net benefit by threshold, beside acting on all and on none."
    return [Picture(draw, alt_text, size=(4.6, 2.9)), Note(explanation)]


def _decision_loss(name: str, measurement: Measurement) -> list[Part]:
    """Return a sentence on the decision that loses most by miscalibration, or nothing without predictions in memory.

    A decision is to act if the probability of the event is at least a threshold; `decision_loss` takes the worst one.
    """
    p = _decision_predictions(measurement)
    if p is None:
        return []
    result = decision_loss(p, of=measurement.event.selector, level=measurement.level)
    loss = result.loss
    text = (
        f"Predictions {name}. Of all decisions between acting and waiting, acting from "
        f"{format_percent(result.threshold, 1)} on has the largest estimated loss by miscalibration: "
        f"{format_percent(loss.value)} of its largest payoff per decision "
        f"({format_level(loss.level)} interval {format_percent_range(loss.low, loss.high)})."
        f"{'' if loss.low > 0 else ' Chance alone can explain it.'}"
    )
    return [Paragraph(text)]


def _decision_predictions(measurement: Measurement) -> Predictions | None:
    """Return the predictions, or None if they were read in chunks or are too many to evaluate decisions."""
    p = measurement.source
    return p if isinstance(p, Predictions) and len(p) <= MAX_DECISION_ROWS else None


def _short_label(name: str) -> str:
    """Return the label of a measurement for a legend: "as measured", "uncalibrated", "before" or "after"."""
    return name if name == AS_MEASURED else name.partition(" ")[0]


DETAIL_SECTIONS: tuple[Callable[[LabeledMeasurements], Section | None], ...] = (  # in reading order
    _group_section,
    _row_group_section,
    _class_section,
    _coverage_section,
    _threshold_section,
)


def _detail_sections(measurements: LabeledMeasurements) -> list[Section]:
    """Return the sections of `DETAIL_SECTIONS` that apply to the measurements."""
    return [section for build in DETAIL_SECTIONS if (section := build(measurements)) is not None]


def _reverse_order(measurements: LabeledMeasurements) -> LabeledMeasurements:
    """Return the measurements in reverse order, so that controls start with the calibrated ones."""
    return dict(list(measurements.items())[::-1])


def _usage_instructions(
    assessment: Assessment, calibrator_path: str | Path | None, *, from_command_line: bool
) -> Sequence[Part]:
    """Return how to apply the selected calibrator, from its file if it was saved."""
    if assessment.is_identity:
        return [Paragraph("The selected calibrator, Identity, leaves predictions unchanged. Nothing to apply.")]
    path = str(calibrator_path or "calibrator.safetensors")
    how_to_save = f"Call result.save({path!r}) on the result of assess."
    if from_command_line:
        how_to_save = f"Add --save {path} to the command at the end of this page."
    saving = [] if calibrator_path else [Paragraph(f"The calibrator was not saved. {how_to_save}")]
    code = "from calibrant import calibrators\nfrom scipy.special import softmax\n"
    code += f"calibrate = calibrators.load({path!r})\nprobs = softmax(calibrate(logits), axis=-1)"
    command = f"calibrant apply {path} new.npz -o calibrated.npz"
    return [*saving, Code(code), Paragraph("Or calibrate a file:"), Code(command)]


def _risk_at_coverage(curve: Curve, share: float) -> float:
    """Return the error rate of the most confident predictions at the first coverage of at least a share."""
    index = int((curve.x < share - 1e-12).sum())  # apart from rounding of coverages
    return float(curve.y[min(index, len(curve.y) - 1)])
