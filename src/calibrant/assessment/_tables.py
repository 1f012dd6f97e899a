"""Tables of the page: metrics, calibrators, groups, classes, thresholds and errors."""

import math
import re
from collections.abc import Mapping

from markupsafe import Markup
from torch import Tensor

from calibrant._core.registry import CALIBRATORS, METRICS
from calibrant._core.text import display_name, format_percent
from calibrant.assessment._cells import best_mask, group_headings, group_rows, interval_or_p_value, metric_headings
from calibrant.assessment._results import AssessmentData, MeasurementData, Row
from calibrant.assessment.expert_text import (
    capitalize,
    decomposed_changes,
    few_labels_sentence,
    fit_warnings,
    format_level,
    score_change_sentence,
    selection_reason,
)
from calibrant.decisions import certify_threshold
from calibrant.metrics import Difference, Interval, Metric, MetricInfo
from calibrant.metrics.tables import thresholds_of
from calibrant.predictions import Predictions
from calibrant.reports import html as report

TABLE_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
CERTIFIED_RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
MAX_UNFOLDED_ROWS = 15  # rows of long tables that are shown without a click
MAX_TABLE_ROWS = 1000

LabeledMeasurements = Mapping[str, MeasurementData]  # keys such as "before" and "after Temperature"


def metrics_table(
    measurements: LabeledMeasurements, changes: Mapping[str, Difference], *, plain_words: bool = True
) -> Markup:
    """Return all metrics with intervals, and their changes if there is more than one measurement.

    Args:
        measurements: One measurement, or those before and after calibration.
        changes: Paired differences, by metric.
        plain_words: Whether the page can switch to plain words.
    """
    first, has_change = next(iter(measurements.values())), len(measurements) > 1
    rows: list[list[str]] = []
    for row in first:
        cells: list[str] = [_row_cell(m[row.name]) if row.name in m else "–" for m in measurements.values()]
        if change := changes.get(row.name):
            cells.append(_change_cell(row.info, change.difference, change.low, change.high, show_plus=True))
        elif has_change:
            cells.append("")
        rows.append([_name_cell(row, plain_words=plain_words), *cells])
    explanation = f"In brackets: {format_level(first.level)} intervals. The verdict follows the omnibus test alone."
    if has_change:
        explanation += (
            f" Changes are measured on the same {first.event.units}, which detects smaller differences than comparing "
            "two intervals."
        )
    head = ["", *measurements, *(["change"] if has_change else [])]
    return report.table(head, rows, caption="metrics before and after" if has_change else "metrics") + report.note(
        explanation
    )


def decomposition_table(assessment: AssessmentData) -> Markup:
    """Return NLL and the Brier score as refinement plus calibration."""
    before, after = assessment.uncalibrated, assessment.calibrated
    rows: list[list[str]] = []
    for change in decomposed_changes(assessment):
        score, refinement = before[change.name], after[change.name]
        # score minus refinement: the change with the opposite sign, which swaps its limits
        calibration = _change_cell(score.info, -change.difference, low=-change.high, high=-change.low)
        share = format_percent(-change.difference / change.first, 1)
        rows.append([score.info.heading(), _row_cell(score), _row_cell(refinement), calibration, share])
    head = ["", "score", "refinement", "calibration", "calibration / score"]
    explanation = (
        f"Score = refinement + calibration. Refinement is the score after calibration with {assessment.chosen_label}, "
        f"which was not fitted on these {before.event.units}. Calibration is the difference, on average a lower bound "
        f"of the calibration loss (Berta et al. 2025). In brackets: {format_level(before.level)} intervals."
    )
    summary = report.render("<p>{}</p>", report.typeset(score_change_sentence(assessment)))
    body = report.table(head, rows, caption="refinement and calibration")
    return report.join_html([summary, body, report.note(explanation)])


def calibrators_table(assessment: AssessmentData) -> Markup:
    """Return the compared metrics of every calibrator, and the held-out NLL, unless the calibrator was requested.

    Notes below the table say why one was selected, which data the columns are from, and which fits are not optimal.
    """
    held_out_nll, measurements = assessment.held_out_nll, list(assessment.measurements.values())
    lowest = min((nll for nll in held_out_nll.values() if not math.isnan(nll)), default=math.nan)
    head = [*(["held-out NLL"] if held_out_nll else []), *metric_headings(assessment.calibrated, assessment.metrics)]
    bold = best_mask(measurements, assessment.metrics)
    rows: list[list[str]] = []
    for i, (name, measurement) in enumerate(assessment.measurements.items()):
        cells = [_value_cell(measurement[metric].info, measurement[metric].value) for metric in assessment.metrics]
        if held_out_nll:
            cells.insert(0, _value_cell(measurement["nll"].info, held_out_nll[name]))
            bold[i].insert(0, held_out_nll[name] == lowest)
        rows.append([report.method_label(CALIBRATORS.title(name), display_name(name)), *cells])
    selection = f"The selected calibrator is highlighted: it {selection_reason(assessment)}."
    columns = "The other columns" if held_out_nll else "All columns"
    data = "the evaluation data, which was not used for the selection"
    if assessment.is_cross_fitted:
        data = "held-out folds of the same data"
    has_infinity = any(math.isinf(row.value) for measurement in measurements for row in measurement)
    infinity = f" inf: {report.INFINITE_MEAN_EXPLANATION}." if has_infinity else ""
    highlighted = [name == assessment.chosen_name for name in assessment.measurements]
    head = ["calibrator", *map(explain_terms, head)]
    body = report.table(head, rows, bold=bold, highlighted=highlighted, caption="calibrators")
    explanation = f"{selection} {columns} are measured on {data}. The best value of each column is bold.{infinity}"
    notes = [report.note(sentence) for sentence in (explanation, *fit_warnings(assessment))]
    return report.join_html([body, *notes, _held_out_table(assessment)])


def _held_out_table(assessment: AssessmentData) -> Markup:
    """Return what few labels say about the differences between calibrators, or nothing if there are many."""
    held_out, info = assessment.held_out, assessment.uncalibrated["nll"].info
    if not held_out.deficits:
        return Markup()

    def cell(interval: Interval | None) -> str:
        """Return an interval in nats, or a dash if it is missing (Identity has no gain) or infinite."""
        if interval is None or not math.isfinite(interval.low):
            return "–"
        return _change_cell(info, interval.value, interval.low, interval.high)

    rows: list[list[str]] = []
    for name, deficit in held_out.deficits.items():
        rows.append([display_name(name), cell(held_out.gains.get(name)), cell(deficit)])
    head = ["calibrator", "gain over uncalibrated (nats)", "NLL above the best (nats)"]
    level = format_level(next(iter(held_out.deficits.values())).level)
    explanation = (
        f"{few_labels_sentence(assessment)} In brackets: {level} intervals over draws of the fitting data, from "
        "repeated cross-fitting. The simplest calibrator comes first."
    )
    return report.table(head, rows, caption="gains with few labels") + report.note(explanation)


def classes_table(measurements: LabeledMeasurements) -> Markup:
    """Return the table of classes before calibration, worst first, with the ECE after calibration if measured."""
    first = next(iter(measurements.values()))
    class_tables = [m.classes for m in measurements.values() if m.classes is not None]
    classes = class_tables[0]
    columns = classes.frequency, classes.forecast, classes.precision, classes.confidence
    rows = [
        [
            first.class_name(j),
            f"{int(classes.count[j]):,}",
            *(share_text(column[j]) for column in columns),
            *(f"{100 * float(class_table.ece[j]):.2f}" for class_table in class_tables),
        ]
        for j in classes.worst_first[:MAX_TABLE_ROWS].tolist()
    ]
    head = ["class", "examples", "frequency", "mean probability", "precision", "mean confidence", "ECE (%)"]
    head += ["ECE after (%)"] if len(class_tables) > 1 else []
    body = _foldable_table(head, rows, "classes, worst first", "classes")
    return body + _truncation_note(len(classes.ece), "classes")


def groups_table(measurements: LabeledMeasurements) -> Markup:
    """Return a row per group, worst first, before and after calibration, with a note on how to read it."""
    first = next(iter(measurements.values()))
    event, body = first.event, Markup()
    head, suffix = group_headings(event), ""
    for name, measurement in measurements.items():
        *rows, mean_row, total_row = group_rows(measurement)
        if len(measurements) > 1:
            suffix = f" {name}"
            body += report.render("<h3>{}</h3>", report.typeset(capitalize(name)))
        body += _foldable_table(head, rows[:MAX_TABLE_ROWS], f"{event.groups}{suffix}, worst first", event.groups)
        body += _truncation_note(len(rows), event.groups, "The JSON file has all.")
        body += report.table(head, [mean_row, total_row], caption=f"{event.groups}{suffix}, together")
    explanation = (
        f"Predicted: mean {event.score}. Observed: {event.rate}. Gap: predicted minus observed. The "
        f"{format_level(first.level)} intervals hold for all {event.groups} simultaneously; the most significant gaps "
        f"come first. Noise floor: ECE of a calibrated model with the same {event.scores}, mean and "
        f"{50 * (1 + first.level):g} % quantile."
    )
    return body + report.note(explanation)


def thresholds_table(name: str, measurement: MeasurementData) -> Markup:
    """Return precision, recall and specificity of acting above each threshold.

    Args:
        name: What was done to the predictions, such as "after Temperature".
        measurement: The measurement of these predictions.
    """
    event, t = measurement.event, thresholds_of(measurement.by_score, TABLE_THRESHOLDS)
    head = ["threshold", f"share of {event.units}", f"mean {event.score}", "precision", "recall", "specificity"]
    columns = zip(t.threshold, t.share, t.mean_confidence, t.precision, t.recall, t.specificity, strict=True)
    rows = [[format_percent(float(threshold), 0), *map(share_text, shares)] for threshold, *shares in columns]
    explanation = (
        f"Predictions {name}. Each row selects the {event.units} whose {event.probability} is at least the threshold. "
        f"Precision: share of the selected {event.units} that are {event.outcome}. Recall: share of the {event.units} "
        f"that are {event.outcome} and selected, among all that are {event.outcome}. Specificity: share of the other "
        f"{event.units} that are not selected."
    )
    return report.table(head, rows, caption="thresholds") + report.note(explanation)


def certified_table(name: str, measurement: MeasurementData) -> Markup:
    """Return the thresholds above which the error rate is certified to be small.

    There are none for predictions that are read in chunks, and for weights and clusters: tests need independent rows.

    Args:
        name: What was done to the predictions, such as "after Temperature".
        measurement: The measurement of these predictions.
    """
    p, event = measurement.source, measurement.event
    if not isinstance(p, Predictions) or p.weights is not None or p.clusters is not None:
        return Markup()
    rows = list[list[str]]()
    for risk in CERTIFIED_RISKS:
        certified = certify_threshold(p, risk=risk)
        cells = ["not certified", "", ""]
        if certified.is_certified:
            error = format_percent(certified.errors / certified.n)
            cells = [format_percent(certified.threshold, 1), format_percent(certified.share, 1), error]
        rows.append([format_percent(risk, 0), *cells])
    head = ["error rate at most", f"{event.score} at least", f"share of {event.units}", "error rate here"]
    explanation = (
        f"Predictions {name}. Of future {event.units} with at least this {event.score}, at most the share in the first "
        f"column are not {event.outcome}. Each row holds with probability 90 %, by exact tests of thresholds in a "
        "fixed order (Learn then Test)."
    )
    return report.table(head, rows, caption="certified thresholds") + report.note(explanation)


def mistakes_table(assessment: AssessmentData) -> Markup:
    """Return the wrong predictions with the highest confidence."""
    class_name = assessment.uncalibrated.class_name
    head = ["row", "true class", "predicted class", "confidence"]
    rows = [
        [str(m.row), class_name(m.label), class_name(m.predicted), confidence_text(m.probability)]
        for m in assessment.mistakes
    ]
    if not assessment.is_identity:
        head.append(f"confidence after {assessment.chosen_label}")
        for row, m in zip(rows, assessment.mistakes, strict=True):
            row.append(confidence_text(m.calibrated_probability))
    explanation = "Rows of the evaluation data are counted from 0. In some of them, the label may be wrong."
    return _foldable_table(head, rows, "most confident errors", "errors") + report.note(explanation)


def _foldable_table(head: list[str], rows: list[list[str]], caption: str, row_noun: str) -> Markup:
    """Return a table whose rows after the first 15 are folded under a heading that calls them `row_noun`."""
    body = report.table(head, rows[:MAX_UNFOLDED_ROWS], caption=caption)
    if len(rows) <= MAX_UNFOLDED_ROWS:
        return body
    folded_rows = report.table(head, rows[MAX_UNFOLDED_ROWS:], caption=f"more {caption}")
    folded = report.details(f"{len(rows) - MAX_UNFOLDED_ROWS} more {row_noun}", folded_rows)
    return report.render('<div class="long">{}{}</div>', body, folded)


def _truncation_note(total: int, row_noun: str, full_list_hint: str = "") -> Markup:
    """Return a note, with a hint where to find all rows, if the table does not list them all, else nothing."""
    if total <= MAX_TABLE_ROWS:
        return Markup()
    return report.note(f"The table lists the worst {MAX_TABLE_ROWS:,} of {total:,} {row_noun}. {full_list_hint}")


# Cells


def explain_terms(text: str) -> Markup:
    """Return text in which the first use of each abbreviation or name of a metric shows its explanation on hover."""
    unexplained = {m.term: m.about for m in METRICS.values() if isinstance(m, Metric) and m.term and m.about.lay_phrase}
    longest_first = sorted(unexplained, key=len, reverse=True)  # a term may be part of another
    parts: list[Markup] = []
    for part in re.split(rf"\b({'|'.join(map(re.escape, longest_first))})\b", text):  # terms, and texts between them
        info = unexplained.pop(part, None)
        explanation = "" if info is None else f"{info.title}: {info.lay_phrase}; {info.meaning}"
        parts.append(report.term(part, explanation))
    return report.join_html(parts)


def two_lines(value: str, detail: str) -> Markup:
    """Return a text with another below it in small letters."""
    return report.render("{} <small>{}</small>", report.typeset(value), report.typeset(detail))


def share_text(x: Tensor) -> str:
    """Return a share in percent, or a dash for NaN."""
    return "–" if x.isnan() else format_percent(float(x), 1)


def confidence_text(p: float) -> str:
    """Return a probability in percent, with enough digits that only certainty reads "100 %"."""
    digits = 2
    if 0.999 <= p < 1:  # show two digits of 1 - p, as in 99.9988 %
        digits = math.ceil(-math.log10(1 - p)) - 1
    return f"{100 * p:.{digits}f} %"


def _name_cell(row: Row, *, plain_words: bool) -> Markup:
    """Return the name of a metric with its meaning, and a lay phrase if it has one and the page can switch to it."""
    expert_cell, info = two_lines(row.title, row.info.meaning), row.info
    if not (info.lay_phrase and plain_words):
        return expert_cell
    return report.switchable_text(expert_cell, two_lines(info.heading(capitalize(info.lay_phrase)), row.title))


def _row_cell(row: Row) -> Markup:
    """Return a value with its interval or p-value below it, or else the note of a binned ECE or infinite value."""
    detail = interval_or_p_value(row)
    if not detail and (row.name in ("ece", "adaptive_ece") or math.isinf(row.value)):
        detail = row.note
    return two_lines(row.text, detail)


def _value_cell(info: MetricInfo, value: float) -> Markup:
    """Return a value in the unit of its metric, or a dash."""
    if math.isnan(value):
        return report.typeset("–")
    return report.term(info.text(value), report.INFINITE_MEAN_EXPLANATION if math.isinf(value) else "")


def _change_cell(info: MetricInfo, value: float, low: float, high: float, *, show_plus: bool = False) -> Markup:
    """Return a change of a metric with its interval below it."""
    plus = "+" if show_plus and value > 0 else ""
    change = Row("", value, low, high, info=info)
    return two_lines(plus + change.text, change.interval)
