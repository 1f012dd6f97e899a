"""The report pages and notebook cells of measurements and assessments: their sections in reading order.

To add a section on measurements, write a function that returns it, or None where it does not apply, and add it to
`DETAIL_SECTIONS`. Names of classes and groups may be long or invisible; `display_name` makes them fit for display.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant._core.text import format_percent, format_percent_range
from calibrant.assessment import _tables
from calibrant.assessment._controls import (
    AS_MEASURED,
    UNCALIBRATED,
    assessment_temperature_control,
    class_control,
    measurement_temperature_control,
    threshold_control,
)
from calibrant.assessment._results import AssessmentData, MeasurementData
from calibrant.assessment._tables import LabeledMeasurements, explain_terms, two_lines
from calibrant.assessment.answers import Answer, assessment_answers, measurement_answers
from calibrant.assessment.expert_text import (
    capitalize,
    decomposed_changes,
    event_sentence,
    format_level,
    format_p_value,
    headline,
)
from calibrant.decisions import NetBenefit, decision_loss, net_benefit
from calibrant.metrics import Curve, Difference, MetricInfo
from calibrant.metrics.curves import risk_coverage_of
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS, PREFERENCE
from calibrant.reports import html as report
from calibrant.reports import plots

NET_BENEFIT_THRESHOLDS = tuple(i / 50 for i in range(1, 50))
MAX_DECISION_ROWS = 200_000  # of predictions whose decisions the page shows
KICKER = "Calibration report"


def measurement_page(measurement: MeasurementData, extra_facts: Mapping[str, str]) -> str:
    """Return the HTML report of a measurement."""
    measurements = {AS_MEASURED: measurement}
    facts = _report_facts(extra_facts)
    sections = [
        report.Section("Summary", _answer_list(measurement_answers(measurement))),
        report.Section("Reliability", _diagrams(measurements) + measurement_temperature_control(measurement)),
        report.Section("Metrics", _tables.metrics_table({"value": measurement}, {})),
        *_detail_sections(measurements),
    ]
    lead = f"{measurement.n:,} {measurement.population}; no calibrator was fitted. {event_sentence(measurement)}"
    leads = [*measurement.remarks, lead]
    tiles = _tiles(measurement, measurement, measurement["nll"].interval)
    return report.page(headline(measurement), leads, sections, facts, kicker=KICKER, tiles=tiles)


def assessment_page(
    assessment: AssessmentData, extra_facts: Mapping[str, str], calibrator_path: str | Path | None = None
) -> str:
    """Return the HTML report of an assessment.

    Args:
        assessment: The assessment.
        extra_facts: Names and values to list at the end of the report.
        calibrator_path: File of the selected calibrator, if it was saved.
    """
    before, after, measurements = assessment.uncalibrated, assessment.calibrated, _label_measurements(assessment)
    facts, changes = _report_facts(extra_facts), assessment.changes_by_metric
    sections = [
        report.Section("Summary", _answer_list(assessment_answers(assessment))),
        report.Section("Reliability", _diagrams(measurements) + assessment_temperature_control(assessment)),
        *_decomposition_sections(assessment),
        report.Section("Metrics", _tables.metrics_table(measurements, changes)),
        report.Section("Calibrators", _tables.calibrators_table(assessment)),
        *_detail_sections(measurements),
        *([report.Section("Most confident errors", _tables.mistakes_table(assessment))] if assessment.mistakes else []),
        report.Section(
            "Using the calibrator",
            _usage_instructions(assessment, calibrator_path, from_command_line="command" in extra_facts),
        ),
    ]
    lead = f"{before.n:,} {before.population}. {assessment.protocol} {event_sentence(before)}"
    leads = [*assessment.remarks, lead]
    tiles = _tiles(before, after, "" if assessment.is_identity else f"with {assessment.chosen_label}")
    return report.page(headline(before), leads, sections, facts, kicker=KICKER, tiles=tiles)


def _decomposition_sections(assessment: AssessmentData) -> list[report.Section]:
    """Return the section that divides scores into refinement and calibration, or no section if none can be tested."""
    if not decomposed_changes(assessment):
        return []
    return [report.Section("Refinement and calibration", _tables.decomposition_table(assessment))]


def measurement_notebook_html(measurement: MeasurementData) -> str:
    """Return the notebook cell of a measurement."""
    answers = measurement_answers(measurement)
    return _notebook_html(measurement, measurement.remarks, answers, {"value": measurement}, {})


def assessment_notebook_html(assessment: AssessmentData) -> str:
    """Return the notebook cell of an assessment."""
    answers, changes = assessment_answers(assessment), assessment.changes_by_metric
    return _notebook_html(
        assessment.uncalibrated, assessment.remarks, answers, _label_measurements(assessment), changes
    )


def _notebook_html(
    measurement: MeasurementData,
    remarks: Sequence[str],
    answers: Sequence[Answer],
    measurements: LabeledMeasurements,
    changes: Mapping[str, Difference],
) -> str:
    """Return the headline, the remarks, the answers and the table of metrics for a notebook cell."""
    parts = [
        report.render("<h3>{}</h3>", report.typeset(headline(measurement))),
        *(report.render("<p>{}</p>", report.typeset(remark)) for remark in remarks),
        *(report.render("<p><b>{}</b> {}</p>", answer.question, report.typeset(answer.text)) for answer in answers),
        _tables.metrics_table(measurements, changes, plain_words=False),
    ]
    return report.reveal_hidden_characters(report.join_html(parts))


def _label_measurements(assessment: AssessmentData) -> LabeledMeasurements:
    """Return the measurements before and after calibration, by the labels that tables and figures show."""
    if assessment.is_identity:
        return {UNCALIBRATED: assessment.uncalibrated}
    return {"before calibration": assessment.uncalibrated, f"after {assessment.chosen_label}": assessment.calibrated}


def _report_facts(extra_facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts at the end of the report, first those of the caller, then command, versions and time."""
    automatic_facts = report.version_facts(extra_facts.get("command", "calibrant, from Python"))
    return {name: text for name, text in extra_facts.items() if name != "command"} | automatic_facts


def _tiles(before: MeasurementData, after: MeasurementData, nll_note: str) -> Markup:
    """Return the tiles below the lead: mean confidence and frequency before, ECE and NLL before and after.

    Without calibration, `after` is `before`. `nll_note` is the small text below the NLL.
    """
    event, frequency = before.event, before.observed_frequency
    ece = _change_text(100 * before["ece"].value, 100 * after["ece"].value, 2)
    floor = f"calibrated model: up to {format_percent(after['noise_floor'].high)}"
    interval = f"[{100 * frequency.low:.2f}, {100 * frequency.high:.2f}]"
    tiles = [
        _tile(f"Mean {event.probability}", format_percent(before.mean_confidence, 1), ""),
        _tile(capitalize(event.frequency), format_percent(frequency.value, 1), interval),
        _tile("ECE (%)", ece, floor),
        _tile("NLL", _change_text(before["nll"].value, after["nll"].value, 3), nll_note),
    ]
    return report.render('<dl class="tiles">{}</dl>', report.join_html(tiles))


def _tile(name: str, value: str, detail: str) -> Markup:
    """Return a tile: a value with its name above and a detail below."""
    return report.render("<div><dt>{}</dt><dd>{}</dd></div>", explain_terms(name), two_lines(value, detail))


def _change_text(start: float, end: float, digits: int) -> str:
    """Return a number before and after calibration, or once if both look the same."""
    start_text, end_text = (MetricInfo("").text(value, digits) for value in (start, end))
    return start_text if start_text == end_text else f"{start_text} → {end_text}"


def _answer_list(answers: Sequence[Answer]) -> Markup:
    """Return the questions with their answers, for experts and in plain words."""
    parts = [
        report.render(
            "<dt>{}</dt><dd>{}</dd>",
            answer.question,
            report.switchable_text(explain_terms(answer.text), report.typeset(answer.lay_text)),
        )
        for answer in answers
    ]
    return report.render('<dl class="answers">{}</dl>', report.join_html(parts))


def _diagrams(measurements: LabeledMeasurements) -> Markup:
    """Return the reliability curves of all measurements, and the bar charts, folded if there are several."""
    event = next(iter(measurements.values())).event
    curve_explanation, bar_explanation = report.diagram_explanations(event)
    curves = bars = Markup()
    for name, measurement in measurements.items():
        title, bins = capitalize(name), measurement.reliability_bins
        ece, p_value = format_percent(measurement["ece"].value), format_p_value(measurement.verdict.p_value)
        error = f"ECE {ece}, {p_value}"
        level = None if measurement.clusters else measurement.level  # intervals of bins assume independent rows
        curves += report.curve_diagram(title, measurement.by_score, bins, error, event=event)
        bars += report.bar_diagram(title, bins, error, event=event, level=level)
    if len(measurements) == 1:
        return report.join_html([_side_by_side(curves + bars), curve_explanation, bar_explanation])
    bar_charts = report.details("Show as bar charts", _side_by_side(bars) + bar_explanation)
    return report.join_html([_side_by_side(curves), curve_explanation, bar_charts])


def _side_by_side(figures: Markup) -> Markup:
    """Return figures that stand side by side if the page is wide enough."""
    return report.render('<div class="pair">{}</div>', figures)


def _group_section(measurements: LabeledMeasurements) -> report.Section | None:
    """Return the section on groups, or None without groups."""
    first = next(iter(measurements.values()), None)
    if first is None or first.groups is None:
        return None
    return report.Section(f"{capitalize(first.event.groups)}, worst first", _tables.groups_table(measurements))


def _row_group_section(measurements: LabeledMeasurements) -> report.Section | None:
    """Return the section on the row groups of multilabel data, or None if there are none."""
    grouped = {name: measurement.with_row_groups() for name, measurement in measurements.items()}
    return _group_section({name: measurement for name, measurement in grouped.items() if measurement is not None})


def _class_section(measurements: LabeledMeasurements) -> report.Section | None:
    """Return the section on classes, or None if the two classes are one event or there is no table of classes."""
    first = next(iter(measurements.values()))
    if first.names in (*BINARY_EVENTS, PREFERENCE.classes) or first.classes is None:
        return None
    class_tables = [m.classes for m in measurements.values() if m.classes is not None]
    explanation = (
        f"ECE compares the predicted probability of the class with its frequency, in {first.bins} bins. Precision and "
        "mean confidence are computed over the examples that are predicted to be of this class."
    )
    parts = [
        _tables.classes_table(measurements),
        class_control(measurements, class_tables),
        report.note(explanation),
    ]
    return report.Section("Classes, worst first", report.join_html(parts))


def _coverage_section(measurements: LabeledMeasurements) -> report.Section | None:
    """Return the section on risk and coverage, or None if a class is evaluated."""
    first = next(iter(measurements.values()))
    event = first.event
    if not event.is_confidence:
        return None
    curves = {_short_label(name): risk_coverage_of(m.by_score, m.level) for name, m in measurements.items()}
    first_curve, subject = next(iter(curves.values())), "Error rate"
    if len(curves) > 1:
        subject += " before calibration"
    points = ", ".join(
        f"{format_percent(_risk_at_coverage(first_curve, share))} at {format_percent(share, 0)}"
        for share in (0.5, 0.8, 0.9, 1.0)
    )

    def draw(drawing: Figure) -> None:
        plots.risk_coverage(curves, ax=drawing.add_subplot())

    picture = report.figure(draw, f"Risk-coverage curve. {subject} by coverage: {points}.", size=(4.6, 2.9))
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
    parts = [
        report.render("<p>{}</p>", report.typeset(text)),
        picture,
        _tables.certified_table(name, last),
        _decision_loss(name, last),
        threshold_control(_reverse_order(measurements)),
    ]
    return report.Section("Selective prediction", report.join_html(parts))


def _threshold_section(measurements: LabeledMeasurements) -> report.Section | None:
    """Return the section on thresholds of a probability, or None if the top class is evaluated."""
    name, last = list(measurements.items())[-1]  # users will act on calibrated predictions
    if last.event.selector == "top":
        return None
    parts = [_tables.thresholds_table(name, last), _net_benefit_figure(measurements)]
    if not last.event.is_confidence:  # `_coverage_section` has these parts for confidences
        parts += [_decision_loss(name, last), threshold_control(_reverse_order(measurements))]
    return report.Section("Decision thresholds", report.join_html(parts))


def _net_benefit_figure(measurements: LabeledMeasurements) -> Markup:
    """Return the net benefit of acting from each threshold on, or nothing without the predictions."""
    first, curves = next(iter(measurements.values())), dict[str, NetBenefit]()
    for name, measurement in measurements.items():
        p = _decision_predictions(measurement)
        if p is None:
            return Markup()
        event = first.event.selector
        curves[_short_label(name)] = net_benefit(p, thresholds=NET_BENEFIT_THRESHOLDS, of=event, level=first.level)

    def draw(drawing: Figure) -> None:
        plots.net_benefit(curves, ax=drawing.add_subplot())

    explanation = (
        f"Net benefit of acting on all {first.event.units} whose {first.event.probability} is at least the threshold, "
        "in units of a true positive. The threshold is the probability at which acting and waiting are worth the same: "
        "at 10 %, a false positive costs a ninth of what a true positive gains. Bands: "
        f"{format_level(first.level)} intervals, at each threshold by itself."
    )
    picture = report.figure(draw, "Net benefit by threshold, beside acting on all and on none.", size=(4.6, 2.9))
    return picture + report.note(explanation)


def _decision_loss(name: str, measurement: MeasurementData) -> Markup:
    """Return a sentence on the decision that loses most by miscalibration, or nothing without predictions in memory.

    A decision is to act if the probability of the event is at least a threshold; `decision_loss` takes the worst one.
    """
    p = _decision_predictions(measurement)
    if p is None:
        return Markup()
    result = decision_loss(p, of=measurement.event.selector, level=measurement.level)
    loss = result.loss
    text = (
        f"Predictions {name}. Of all decisions between acting and waiting, acting from "
        f"{format_percent(result.threshold, 1)} on has the largest estimated loss by miscalibration: "
        f"{format_percent(loss.value)} of its largest payoff per decision "
        f"({format_level(loss.level)} interval {format_percent_range(loss.low, loss.high)})."
        f"{'' if loss.low > 0 else ' Chance alone can explain it.'}"
    )
    return report.render("<p>{}</p>", report.typeset(text))


def _decision_predictions(measurement: MeasurementData) -> Predictions | None:
    """Return the predictions, or None if they were read in chunks or are too many to evaluate decisions."""
    p = measurement.source
    return p if isinstance(p, Predictions) and len(p) <= MAX_DECISION_ROWS else None


def _short_label(name: str) -> str:
    """Return the label of a measurement for a legend: "as measured", "uncalibrated", "before" or "after"."""
    return name if name == AS_MEASURED else name.partition(" ")[0]


DETAIL_SECTIONS: tuple[Callable[[LabeledMeasurements], report.Section | None], ...] = (  # in reading order
    _group_section,
    _row_group_section,
    _class_section,
    _coverage_section,
    _threshold_section,
)


def _detail_sections(measurements: LabeledMeasurements) -> list[report.Section]:
    """Return the sections of `DETAIL_SECTIONS` that apply to the measurements."""
    return [section for build in DETAIL_SECTIONS if (section := build(measurements)) is not None]


def _reverse_order(measurements: LabeledMeasurements) -> LabeledMeasurements:
    """Return the measurements in reverse order, so that controls start with the calibrated ones."""
    return dict(list(measurements.items())[::-1])


def _usage_instructions(
    assessment: AssessmentData, calibrator_path: str | Path | None, *, from_command_line: bool
) -> Markup:
    """Return how to apply the selected calibrator, from its file if it was saved."""
    if assessment.is_identity:
        return report.render(
            "<p>The selected calibrator, Identity, leaves predictions unchanged. Nothing to apply.</p>"
        )
    path = str(calibrator_path or "calibrator.safetensors")
    how_to_save = report.render("Call <code>result.save({!r})</code> on the result of <code>assess</code>.", path)
    if from_command_line:
        how_to_save = report.render("Add <code>--save {}</code> to the command at the end of this page.", path)
    parts = [] if calibrator_path else [report.render("<p>The calibrator was not saved. {}</p>", how_to_save)]
    code = f"from calibrant import calibrators\ncalibrate = calibrators.load({path!r})\n"
    code += "probs = calibrate(logits).softmax(-1)"
    parts.append(report.render("<pre><code>{}</code></pre>", code))
    apply_command = "<p>Or calibrate a file: <code>calibrant apply {} new.npz -o calibrated.npz</code></p>"
    return report.join_html([*parts, report.render(apply_command, path)])


def _risk_at_coverage(curve: Curve, share: float) -> float:
    """Return the error rate of the most confident predictions at the first coverage of at least a share."""
    index = int((curve.x < share - 1e-12).sum())  # apart from rounding of coverages
    return float(curve.y[min(index, len(curve.y) - 1)])
