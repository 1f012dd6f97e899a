"""Tables of measurements and assessments: metrics, calibrators, groups, classes, thresholds and errors."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant._core.numbers import format_level, format_p_value, format_percent, format_points
from calibrant._core.registry import CALIBRATORS
from calibrant._core.text import display_name
from calibrant.assessment._results import Assessment, Measurement, Row
from calibrant.assessment._sentences import (
    decomposed_changes,
    few_labels_sentence,
    score_change_sentence,
    selection_reason,
)
from calibrant.decisions import certify_threshold
from calibrant.metrics import Difference, Interval, MetricInfo, is_calibration_error
from calibrant.metrics.tables import thresholds_of
from calibrant.predictions import Predictions
from calibrant.predictions.events import EventKind
from calibrant.reports.diagrams import INFINITE_MEAN_EXPLANATION
from calibrant.reports.document import Cell, Cells, Paragraph, Part, Table

TABLE_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
RATE_MULTIPLES = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)
CERTIFIED_RISKS = (0.01, 0.02, 0.05, 0.1, 0.2)
MAX_OPEN_ROWS = 15  # rows of long tables that a page shows without a click
MAX_TEXT_GROUPS = 15
MAX_TABLE_ROWS = 1000

GROUP_TABLE_COLUMNS = "predicted", "observed", "gap (points)", "interval", "ECE (%)", "noise floor", "NLL"
LabeledMeasurements = Mapping[str, "Measurement"]  # keys such as "before" and "after Temperature"


def metrics_table(measurements: LabeledMeasurements, changes: Mapping[str, Difference]) -> Table:
    """Return all metrics with intervals, and their changes if there is more than one measurement.

    Args:
        measurements: One measurement, or those before and after calibration.
        changes: Paired differences, by metric.
    """
    first, has_change = next(iter(measurements.values())), len(measurements) > 1
    rows: list[Cells] = []
    has_relative = not has_change and bool(first.relative_to_rate(1.0))
    is_class_event = first.event.kind == "class"  # accuracy, which hardly moves for a rare class, comes last
    for row in sorted(first, key=lambda row: is_class_event and row.name == "accuracy"):
        cells = [_row_cell(m[row.name]) if row.name in m else "–" for m in measurements.values()]
        if has_change:
            change = changes.get(row.name)
            cells.append(
                _change_cell(row.info, change.difference, change.low, change.high, show_plus=True) if change else ""
            )
        elif has_relative:
            cells.append(_relative_cell(first, row))
        rows.append([Cell(row.title, row.info.meaning), *cells])
    explanation = "The verdict follows the omnibus test alone."
    if has_change:
        explanation += (
            f" Changes are measured on the same {first.event.units}, which detects smaller differences than comparing "
            "two intervals."
        )
    caption = "metrics before and after" if has_change else "metrics"
    base_rate = "" if first.base_rate is None else f"base rate {format_percent(first.base_rate, 1)}"
    head = [f"{first.n:,} {first.population}", *measurements]
    if has_change:
        head = [", ".join(filter(None, [head[0], base_rate])), *head[1:], "change"]
    elif base_rate:  # in the widest column, so that the table stays narrow
        head[1] += f" ({base_rate})"
    if has_relative:
        head.append("of base rate" if (first.base_rate or 0) < 0.5 else "of 1 - rate")
    return Table(caption, head, rows, note=explanation)


def decomposition(assessment: "Assessment") -> list[Part]:
    """Return NLL and the Brier score as refinement plus calibration."""
    before, after = assessment.uncalibrated, assessment.calibrated
    rows: list[Cells] = []
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
    table = Table("refinement and calibration", head, rows, note=explanation)
    return [Paragraph(score_change_sentence(assessment)), table]


def calibrators_tables(assessment: "Assessment") -> list[Table]:
    """Return the compared metrics of every calibrator, and the held-out NLL, unless the calibrator was requested.

    Notes say why one was selected, and which data the columns are from.
    """
    held_out_nll, measurements = assessment.held_out_nll, list(assessment.measurements.values())
    lowest = min((nll for nll in held_out_nll.values() if not math.isnan(nll)), default=math.nan)
    head = [*(["held-out NLL"] if held_out_nll else []), *metric_headings(assessment.calibrated, assessment.metrics)]
    bold = best_mask(measurements, assessment.metrics)
    rows: list[Cells] = []
    for i, (name, measurement) in enumerate(assessment.measurements.items()):
        cells = [_value_cell(measurement[metric].info, measurement[metric].value) for metric in assessment.metrics]
        if held_out_nll:
            cells.insert(0, _value_cell(measurement["nll"].info, held_out_nll[name]))
            bold[i].insert(0, held_out_nll[name] == lowest)
        rows.append([Cell(display_name(name), CALIBRATORS.title(name)), *cells])
    selection = f"The selected calibrator is marked: it {selection_reason(assessment)}."
    columns = "The other columns" if held_out_nll else "All columns"
    data = "the evaluation data, which was not used for the selection"
    if assessment.is_cross_fitted:
        data = "held-out folds of the same data"
    has_infinity = any(math.isinf(row.value) for measurement in measurements for row in measurement)
    infinity = f" inf: {INFINITE_MEAN_EXPLANATION}." if has_infinity else ""
    marked = [name == assessment.chosen_name for name in assessment.measurements]
    explanation = f"{selection} {columns} are measured on {data}. The best value of each column is bold.{infinity}"
    table = Table("calibrators", ["calibrator", *head], rows, bold=bold, marked=marked, note=explanation)
    return [table, *_held_out_tables(assessment)]


def _held_out_tables(assessment: "Assessment") -> list[Table]:
    """Return what few labels say about the differences between calibrators, or nothing if there are many."""
    held_out, info = assessment.held_out, assessment.uncalibrated["nll"].info
    if not held_out.deficits:
        return []

    def cell(interval: Interval | None) -> str | Cell:
        """Return an interval in nats, or a dash if it is missing (Identity has no gain) or infinite."""
        if interval is None or not math.isfinite(interval.low):
            return "–"
        return _change_cell(info, interval.value, interval.low, interval.high)

    rows: list[Cells] = []
    for name, deficit in held_out.deficits.items():
        rows.append([display_name(name), cell(held_out.gains.get(name)), cell(deficit)])
    head = ["calibrator", "gain over uncalibrated (nats)", "NLL above the best (nats)"]
    level = format_level(next(iter(held_out.deficits.values())).level)
    explanation = (
        f"{few_labels_sentence(assessment)} In brackets: {level} intervals over draws of the fitting data, from "
        "repeated cross-fitting. The simplest calibrator comes first."
    )
    return [Table("gains with few labels", head, rows, note=explanation)]


def classes_table(measurements: LabeledMeasurements) -> Table:
    """Return the table of classes before calibration, worst first, with the ECE after calibration if measured."""
    first = next(iter(measurements.values()))
    class_tables = [m.classes for m in measurements.values() if m.classes is not None]
    classes = class_tables[0]
    columns = classes.frequency, classes.forecast, classes.precision, classes.confidence
    rows = [
        [
            first.class_name(j),
            f"{int(classes.count[j]):,}",
            *(share_text(float(column[j])) for column in columns),
            *(format_points(float(class_table.ece[j]), 2) for class_table in class_tables),
        ]
        for j in classes.worst_first[:MAX_TABLE_ROWS].tolist()
    ]
    head = ["class", "examples", "frequency", "mean probability", "precision", "mean confidence", "ECE (%)"]
    head += ["ECE after (%)"] if len(class_tables) > 1 else []
    note = _truncation_note(len(classes.ece), "classes")
    return Table("classes, worst first", head, rows, max_open_rows=MAX_OPEN_ROWS, note=note)


def groups_tables(measurements: LabeledMeasurements) -> list[Table]:
    """Return a row per group, worst first, before and after calibration, with a note on how to read it."""
    first = next(iter(measurements.values()))
    event = first.event
    explanation = (
        f"Predicted: mean {event.score}. Observed: {event.rate}. Gap: predicted minus observed. The "
        f"{format_level(first.level)} intervals hold for all {event.groups} simultaneously; the most significant gaps "
        f"come first. Noise floor: ECE of a calibrated model with the same {event.scores}, mean and "
        f"{50 * (1 + first.level):g} % quantile."
    )
    tables: list[Table] = []
    for name, measurement in measurements.items():
        *rows, mean_row, total_row = group_rows(measurement)
        suffix = f" {name}" if len(measurements) > 1 else ""
        caption, note = f"{event.groups}{suffix}, worst first", _truncation_note(len(rows), event.groups)
        tables.append(
            Table(
                caption,
                group_headings(event),
                [*rows[:MAX_TABLE_ROWS], mean_row, total_row],
                note=f"{note} {explanation}".strip() if measurement is last_of(measurements) else note,
                max_text_rows=MAX_TEXT_GROUPS,
                max_open_rows=MAX_OPEN_ROWS,
                last_rows=2,
            )
        )
    return tables


def last_of(measurements: LabeledMeasurements) -> "Measurement":
    """Return the last measurement, which is that after calibration if there is one."""
    return list(measurements.values())[-1]


def thresholds_table(name: str, measurement: "Measurement") -> Table:
    """Return precision, recall and specificity of acting above each threshold.

    Args:
        name: What was done to the predictions, such as "after Temperature".
        measurement: The measurement of these predictions.
    """
    event, t = measurement.event, thresholds_of(measurement.by_score, _table_thresholds(measurement))
    head = ["threshold", f"share of {event.units}", f"mean {event.score}", "precision", "recall", "specificity"]
    columns = zip(t.threshold, t.share, t.mean_confidence, t.precision, t.recall, t.specificity, strict=True)
    rows = [[format_percent(float(threshold), 0), *map(share_text, shares)] for threshold, *shares in columns]
    explanation = (
        f"Predictions {name}. Each row selects the {event.units} whose {event.probability} is at least the threshold. "
        f"Precision: share of the selected {event.units} that are {event.outcome}. Recall: share of the {event.units} "
        f"that are {event.outcome} and selected, among all that are {event.outcome}. Specificity: share of the other "
        f"{event.units} that are not selected."
    )
    return Table("thresholds", head, rows, note=explanation)


def _table_thresholds(measurement: "Measurement") -> tuple[float, ...]:
    """Return the thresholds of the table: of a rare class multiples of its base rate, with two digits."""
    rate = measurement.rare_rate
    if not rate:
        return TABLE_THRESHOLDS
    return tuple(float(f"{multiple * rate:.2g}") for multiple in RATE_MULTIPLES if multiple * rate < 0.95)


def certified_tables(name: str, measurement: "Measurement") -> list[Table]:
    """Return the thresholds above which the error rate is certified to be small.

    There are none for predictions that are read in chunks, and for weights and clusters: tests need independent rows.

    Args:
        name: What was done to the predictions, such as "after Temperature".
        measurement: The measurement of these predictions.
    """
    p, event = measurement.source, measurement.event
    if not isinstance(p, Predictions) or p.weights is not None or p.clusters is not None:
        return []
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
    return [Table("certified thresholds", head, rows, note=explanation)]


def mistakes_table(assessment: "Assessment") -> Table:
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
    return Table("most confident errors", head, rows, max_open_rows=MAX_OPEN_ROWS, note=explanation)


def _truncation_note(total: int, row_noun: str) -> str:
    """Return a note if a table does not list all rows, else an empty text."""
    if total <= MAX_TABLE_ROWS:
        return ""
    return f"The table lists the worst {MAX_TABLE_ROWS:,} of {total:,} {row_noun}. The JSON file has all."


# Cells


def share_text(x: float) -> str:
    """Return a share in percent, or a dash for NaN."""
    return "–" if np.isnan(x) else format_percent(float(x), 1)


def confidence_text(p: float) -> str:
    """Return a probability in percent, with enough digits that only certainty reads "100 %"."""
    digits = 2
    if 0.999 <= p < 1:  # show two digits of 1 - p, as in 99.9988 %
        digits = math.ceil(-math.log10(1 - p)) - 1
    return f"{100 * p:.{digits}f} %"


def _row_cell(row: Row) -> Cell:
    """Return a value with its interval or p-value, or else the note of a binned ECE or infinite value."""
    detail = row.interval if math.isnan(row.p_value) else format_p_value(row.p_value)
    if not detail and (row.name in ("ece", "adaptive_ece") or math.isinf(row.value)):
        detail = row.note
    return Cell(row.text, detail)


def _relative_cell(measurement: Measurement, row: Row) -> str:
    """Return an error, its noise floor or average precision as a share or multiple of the base rate, else ""."""
    is_relative = is_calibration_error(row.name) or row.name in ("signed_gap", "noise_floor", "adaptive_noise_floor")
    if row.name == "average_precision":  # which is the base rate without knowledge
        is_relative = (measurement.base_rate or 0) < 0.5
    is_relative = is_relative and row.name != "classwise_ece"  # the mean over all classes
    return measurement.relative_to_rate(row.value, noun=False).removesuffix(" of") if is_relative else ""


def _value_cell(info: MetricInfo, value: float) -> Cell:
    """Return a value in the unit of its metric, or a dash."""
    if math.isnan(value):
        return Cell("–")
    return Cell(info.text(value), hint=INFINITE_MEAN_EXPLANATION if math.isinf(value) else "")


def _change_cell(info: MetricInfo, value: float, low: float, high: float, *, show_plus: bool = False) -> Cell:
    """Return a change of a metric with its interval."""
    plus = "+" if show_plus and value > 0 else ""
    change = Row("", value, low, high, info=info)
    return Cell(plus + change.text, change.interval)


def group_rows(measurement: Measurement) -> list[list[str]]:
    """Return the table rows of groups, worst first, then the mean over groups, then the row "all".

    Each row is a list of texts, in the columns of `group_headings`.
    """
    groups = measurement.groups
    assert groups is not None  # called only for measurements with groups
    gap, floor, nll = measurement["signed_gap"], measurement["noise_floor"], measurement["nll"]
    totals = {  # with the keys of `Groups.records`
        **{"count": measurement.n, "nll": nll.value, "ece": measurement["ece"].value},
        **{"said": measurement.mean_confidence, "happened": measurement.observed_frequency.value},
        **{"gap": gap.value, "low": gap.low, "high": gap.high, "floor": floor.value, "floor_high": floor.high},
    }
    # Macro averages: every group counts the same, whatever its size
    means = {name: groups.macro(name) for name in ("said", "happened", "gap", "ece", "floor", "nll")}
    rows = [(display_name(record["group"]), record) for record in groups.records()]
    rows += [(f"mean over {measurement.event.groups}", means), ("all", totals)]
    return [_group_cells(name, values, nll.info) for name, values in rows]


def _group_cells(name: str, values: Mapping[str, Any], nll_info: MetricInfo) -> list[str]:
    """Return the cells of a row in the table of groups. Means over groups have no count and no intervals.

    The value "said" is the mean confidence, and "happened" the frequency of the event.
    """
    count_text = interval = ""
    floor = format_points(values["floor"], 2)
    if "count" in values:
        count = values["count"]
        count_text = f"{count:,.6g}" if count % 1 else f"{int(count):,}"  # weights may be fractions
        interval = f"[{format_points(values['low'], sign='+')}, {format_points(values['high'], sign='+')}]"
        floor += f", up to {format_points(values['floor_high'], 2)}"
    return [
        name,
        count_text,
        format_percent(values["said"], 1),
        format_percent(values["happened"], 1),
        format_points(values["gap"], sign="+"),
        interval,
        format_points(values["ece"], 2),
        floor,
        nll_info.text(values["nll"]),
    ]


def group_headings(event: EventKind) -> list[str]:
    """Return the column headings of `group_rows`."""
    return [event.group, event.units, *GROUP_TABLE_COLUMNS]


def best_mask(measurements: Sequence[Measurement], metric_names: Sequence[str]) -> list[list[bool]]:
    """Return for every measurement and metric whether its value is the best."""
    best = [measurements[0][name].info.best([m[name].value for m in measurements]) for name in metric_names]
    return [[m[name].value == value for name, value in zip(metric_names, best, strict=True)] for m in measurements]


def metric_headings(measurement: Measurement, metric_names: Sequence[str]) -> list[str]:
    """Return column headings of metrics with their units: abbreviations, or the text of a metric with settings."""
    infos: list[tuple[str, MetricInfo]] = [(name, measurement[name].info) for name in metric_names]
    return [info.heading(name if "(" in name else "") for name, info in infos]
