"""The report pages and notebook cells of measurements and assessments: their sections in reading order.

To add a section on measurements, write a function that returns it, or None where it does not apply, and add it to
`DETAIL_SECTIONS`. Names of classes and groups may be long or invisible; `display_name` makes them fit for display.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant import plots
from calibrant._text import format_percent
from calibrant.assessment import _tables
from calibrant.assessment._controls import (
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
from calibrant.decisions import decision_loss, net_benefit
from calibrant.events import BINARY_EVENTS
from calibrant.metrics import Curve, Difference, MetricInfo
from calibrant.metrics.curves import risk_coverage_of
from calibrant.predictions import Predictions
from calibrant.report import (
    Section,
    bar_diagram,
    curve_diagram,
    details,
    diagram_explanations,
    figure,
    join_html,
    note,
    page,
    render,
    reveal_hidden_characters,
    switchable_text,
    typeset,
    version_facts,
)

NET_BENEFIT_THRESHOLDS = tuple(i / 50 for i in range(1, 50))
MAX_DECISION_ROWS = 200_000  # of predictions whose decisions the page shows
KICKER = "Calibration report"
UNCALIBRATED = "uncalibrated"


def measurement_page(measurement: MeasurementData, extra_facts: Mapping[str, str]) -> str:
    """Return the HTML report of a measurement."""
    measurements = {UNCALIBRATED: measurement}
    sections = [
        Section("Summary", _answer_list(measurement_answers(measurement))),
        Section("Reliability", _diagrams(measurements) + measurement_temperature_control(measurement)),
        Section("Metrics", _tables.metrics_table({"value": measurement}, {})),
        *_detail_sections(measurements),
    ]
    lead = f"{measurement.n:,} {measurement.population}; no calibrator was fitted. {event_sentence(measurement)}"
    tiles = _tiles(measurement, measurement, measurement["nll"].interval)
    lead_paragraphs = [lead, *measurement.remarks]
    facts = _report_facts(extra_facts)
    return page(headline(measurement), lead_paragraphs, sections, facts, kicker=KICKER, tiles=tiles)


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
    has_cost, changes = bool(decomposed_changes(assessment)), _changes_by_metric(assessment)
    sections = [
        Section("Summary", _answer_list(assessment_answers(assessment))),
        Section("Reliability", _diagrams(measurements) + assessment_temperature_control(assessment)),
        *([Section("Cost of miscalibration", _tables.decomposition_table(assessment))] if has_cost else []),
        Section("Metrics", _tables.metrics_table(measurements, changes)),
        Section("Calibrators", _tables.calibrators_table(assessment)),
        *_detail_sections(measurements),
        *([Section("Most confident errors", _tables.mistakes_table(assessment))] if assessment.mistakes else []),
        Section("Using the calibrator", _usage_instructions(assessment, calibrator_path, "command" in extra_facts)),
    ]
    lead = f"{before.n:,} {before.population}. {assessment.protocol} {event_sentence(before)}"
    tiles = _tiles(before, after, "" if assessment.is_identity else f"with {assessment.chosen_label}")
    lead_paragraphs = [lead, *before.remarks]
    return page(headline(before), lead_paragraphs, sections, _report_facts(extra_facts), kicker=KICKER, tiles=tiles)


def measurement_notebook_html(measurement: MeasurementData) -> str:
    """Return the notebook cell of a measurement."""
    return _notebook_html(measurement, measurement_answers(measurement), {"value": measurement}, {})


def assessment_notebook_html(assessment: AssessmentData) -> str:
    """Return the notebook cell of an assessment."""
    answers, changes = assessment_answers(assessment), _changes_by_metric(assessment)
    return _notebook_html(assessment.uncalibrated, answers, _label_measurements(assessment), changes)


def _notebook_html(
    measurement: MeasurementData,
    answers: Sequence[Answer],
    measurements: LabeledMeasurements,
    changes: Mapping[str, Difference],
) -> str:
    """Return the headline, the answers and the table of metrics for a notebook cell."""
    parts = [
        render("<h3>{}</h3>", typeset(headline(measurement))),
        *(render("<p><b>{}</b> {}</p>", answer.question, typeset(answer.text)) for answer in answers),
        *(render("<p>{}</p>", typeset(remark)) for remark in measurement.remarks),
        _tables.metrics_table(measurements, changes, plain_words=False),
    ]
    return reveal_hidden_characters(join_html(parts))


def _label_measurements(assessment: AssessmentData) -> LabeledMeasurements:
    """Return the measurements before and after calibration, by the labels that tables and figures show."""
    after = {} if assessment.is_identity else {f"after {assessment.chosen_label}": assessment.calibrated}
    return {"before calibration" if after else UNCALIBRATED: assessment.uncalibrated} | after


def _changes_by_metric(assessment: AssessmentData) -> dict[str, Difference]:
    """Return the paired differences of the selected calibrator, by metric."""
    return {row.name: row for row in assessment.changes or ()}


def _report_facts(extra_facts: Mapping[str, str]) -> dict[str, str]:
    """Return the facts at the end of the report: those of the caller, then command, versions and time."""
    automatic_facts = version_facts(extra_facts.get("command", "calibrant, from Python"))
    return {name: text for name, text in extra_facts.items() if name != "command"} | automatic_facts


def _tiles(before: MeasurementData, after: MeasurementData, nll_note: str) -> Markup:
    """Return the key numbers below the lead of the page: mean confidence, frequency, ECE and NLL."""
    event, frequency = before.event, before.observed_frequency
    tiles = {
        f"Mean {event.probability}": (format_percent(before.mean_confidence, 1), ""),
        capitalize(event.frequency): (
            format_percent(frequency.value, 1),
            f"[{100 * frequency.low:.2f}, {100 * frequency.high:.2f}]",
        ),
        "ECE (%)": (
            _change_text(100 * before["ece"].value, 100 * after["ece"].value, 2),
            f"calibrated model: up to {format_percent(after['noise_floor'].high)}",
        ),
        "NLL": (_change_text(before["nll"].value, after["nll"].value, 3), nll_note),
    }
    elements = [
        render("<div><dt>{}</dt><dd>{}</dd></div>", explain_terms(name), two_lines(value, detail))
        for name, (value, detail) in tiles.items()
    ]
    return render('<dl class="tiles">{}</dl>', join_html(elements))


def _change_text(start: float, end: float, digits: int) -> str:
    """Return a number before and after calibration, or once if both look the same."""
    start_text, end_text = (MetricInfo("").text(value, digits) for value in (start, end))
    return start_text if start_text == end_text else f"{start_text} → {end_text}"


def _answer_list(answers: Sequence[Answer]) -> Markup:
    """Return the questions with their answers, for experts and in plain words."""
    parts = [
        render(
            "<dt>{}</dt><dd>{}</dd>",
            answer.question,
            switchable_text(explain_terms(answer.text), typeset(answer.lay_text)),
        )
        for answer in answers
    ]
    return render('<dl class="answers">{}</dl>', join_html(parts))


def _diagrams(measurements: LabeledMeasurements) -> Markup:
    """Return the reliability diagrams of all measurements, with how to read them."""
    event = next(iter(measurements.values())).event
    curve_reading, bar_reading = diagram_explanations(event)
    curves = bars = Markup()
    for name, measurement in measurements.items():
        title, table = capitalize(name), measurement.reliability_bins
        ece, kuiper = format_percent(measurement["ece"].value), format_p_value(measurement["kuiper"].p_value)
        error = f"ECE {ece}, Kuiper {kuiper}"
        level = None if measurement.clusters else measurement.level
        curves += curve_diagram(title, measurement.ties, table, error, event=event)
        bars += bar_diagram(title, table, error, event=event, level=level)
    if len(measurements) == 1:
        return join_html([_place_side_by_side(curves + bars), curve_reading, bar_reading])
    bar_charts = details("Show as bar charts", _place_side_by_side(bars) + bar_reading)
    return join_html([_place_side_by_side(curves), curve_reading, bar_charts])


def _place_side_by_side(figures: Markup) -> Markup:
    """Return figures that stand side by side if the page is wide enough."""
    return render('<div class="pair">{}</div>', figures)


def _group_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the section on groups, or None without groups."""
    first = next(iter(measurements.values()), None)
    if first is None or first.groups is None:
        return None
    return Section(f"{capitalize(first.event.groups)}, worst first", _tables.groups_table(measurements))


def _row_group_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the groups of whole rows of multilabel data, beside the labels."""
    return _group_section(
        {name: grouped for name, m in measurements.items() if (grouped := m.with_row_groups()) is not None}
    )


def _class_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the section on classes, or None if the two classes are one event or there is no table of classes."""
    first = next(iter(measurements.values()))
    if first.names in BINARY_EVENTS or first.classes is None:
        return None
    bins = first.bins
    class_tables = [classes for m in measurements.values() if (classes := m.classes) is not None]
    reading = (
        f"ECE compares the predicted probability of the class with its frequency, in {bins} bins. Precision and mean "
        "confidence are computed over the examples that are predicted to be of this class."
    )
    control = class_control(measurements, class_tables)
    return Section("Classes, worst first", join_html([_tables.classes_table(measurements), control, note(reading)]))


def _coverage_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the error rate among the most confident predictions."""
    first = next(iter(measurements.values()))
    event = first.event
    if not event.is_confidence:
        return None
    curves = {name.partition(" ")[0]: risk_coverage_of(m.ties, m.level) for name, m in measurements.items()}
    risks = next(iter(curves.values()))
    points = ", ".join(
        f"{format_percent(_risk_at_coverage(risks, share))} at {format_percent(share, 0)}"
        for share in (0.5, 0.8, 0.9, 1.0)
    )

    def draw(drawing: Figure) -> None:
        plots.risk_coverage(curves, ax=drawing.add_subplot())

    picture = figure(
        draw, f"Risk-coverage curve. Error rate of uncalibrated predictions by coverage: {points}.", size=(4.6, 2.9)
    )
    text = (
        f"Error rate if only the most confident {event.units} are used, by coverage: {points}. The band around a curve "
        f"holds the true error rates for all coverages simultaneously with probability {format_level(first.level)}."
    )
    if "confident_accuracy" in first:
        share, accuracy = (first[name].value for name in ("confident_share", "confident_accuracy"))
        text += (
            f" {format_percent(share, 1)} of the {event.units} have a confidence of at least 99 %; "
            f"{format_percent(accuracy)} of these are {event.outcome}."
        )
    control, last = threshold_control(_reverse_order(measurements)), list(measurements.items())[-1]
    parts = [
        render("<p>{}</p>", typeset(text)),
        picture,
        _tables.certified_table(*last),
        _decision_loss(*last),
        control,
    ]
    return Section("Selective prediction", join_html(parts))


def _threshold_section(measurements: LabeledMeasurements) -> Section | None:
    """Return the section on thresholds of a class's probability, or None if the top class is evaluated."""
    name, last = list(measurements.items())[-1]
    if last.event.selector == "top":
        return None
    parts = [_tables.thresholds_table(name, last), _net_benefit_figure(measurements)]
    if not last.event.is_confidence:
        parts += [_decision_loss(name, last), threshold_control(_reverse_order(measurements))]
    return Section("Decision thresholds", join_html(parts))


def _net_benefit_figure(measurements: LabeledMeasurements) -> Markup:
    """Return the net benefit of acting above each threshold, where predictions are in memory and not too many."""
    sources = {name.partition(" ")[0]: m.source for name, m in measurements.items()}
    predictions = {name: p for name, p in sources.items() if isinstance(p, Predictions) and len(p) <= MAX_DECISION_ROWS}
    if len(predictions) < len(sources):
        return Markup()
    first = next(iter(measurements.values()))
    curves = {
        name: net_benefit(p, thresholds=NET_BENEFIT_THRESHOLDS, of=first.event.selector, level=first.level)
        for name, p in predictions.items()
    }

    def draw(drawing: Figure) -> None:
        plots.net_benefit(curves, ax=drawing.add_subplot())

    reading = (
        f"Net benefit of acting on all {first.event.units} whose {first.event.probability} is at least the threshold, "
        "in units of a true positive. The threshold is the probability at which acting and waiting are worth the same: "
        "at 10 %, a false positive costs a ninth of what a true positive gains. Bands: "
        f"{format_level(first.level)} intervals, at each threshold by itself."
    )
    picture = figure(draw, "Net benefit by threshold, beside acting on all and on none.", size=(4.6, 2.9))
    return picture + note(reading)


def _decision_loss(name: str, measurement: MeasurementData) -> Markup:
    """Return the loss of the decision that suffers most from miscalibration, where predictions are in memory."""
    p = measurement.source
    if not isinstance(p, Predictions) or len(p) > MAX_DECISION_ROWS:
        return Markup()
    result = decision_loss(p, of=measurement.event.selector, level=measurement.level)
    loss = result.loss
    text = (
        f"Predictions {name}. Of all decisions between acting and waiting, acting from "
        f"{format_percent(result.threshold, 1)} on loses most because probabilities are not true: "
        f"{format_percent(loss.value)} of its largest payoff per decision "
        f"({format_level(loss.level)} interval {format_percent(loss.low)} to {format_percent(loss.high)})."
        f"{'' if loss.low > 0 else ' Chance alone can explain it.'}"
    )
    return render("<p>{}</p>", typeset(text))


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
    """Return the measurements with the calibrated one, which users will act on, first."""
    return dict(list(measurements.items())[::-1])


def _usage_instructions(
    assessment: AssessmentData, calibrator_path: str | Path | None, from_command_line: bool
) -> Markup:
    """Return how to apply the selected calibrator, from its file if it was saved."""
    if assessment.is_identity:
        return render("<p>The selected calibrator, Identity, leaves predictions unchanged. Nothing to apply.</p>")
    path = str(calibrator_path or "calibrator.safetensors")
    code = (
        "from calibrant import calibrators\n"
        f"calibrate = calibrators.load({path!r})\n"
        "probs = calibrate(logits).softmax(-1)"
    )
    save_instruction = (
        render("Add <code>--save {}</code> to the command at the end of this page.", path)
        if from_command_line
        else render("Call <code>result.save({})</code> on the result of <code>assess</code>.", repr(path))
    )
    parts = [] if calibrator_path else [render("<p>The calibrator was not saved. {}</p>", save_instruction)]
    parts += [render("<pre><code>{}</code></pre>", code)]
    file_instruction = "<p>Or calibrate a file: <code>calibrant apply {} new.npz -o calibrated.npz</code></p>"
    return join_html([*parts, render(file_instruction, path)])


def _risk_at_coverage(curve: Curve, share: float) -> float:
    """Return the error rate among the most confident share of predictions."""
    index = int((curve.x < share - 1e-12).sum())
    return float(curve.y[min(index, len(curve.y) - 1)])
