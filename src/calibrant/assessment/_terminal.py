"""Results as text: tables and answers, with colors in a terminal and plain elsewhere."""

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from calibrant._core.text import display_name, escape_markup
from calibrant.assessment import expert_text
from calibrant.assessment._cells import best_mask, group_headings, group_rows, interval_or_p_value, metric_headings
from calibrant.assessment._results import AssessmentData, MeasurementData
from calibrant.assessment.answers import Answer, assessment_answers, measurement_answers

TABLE_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}
MAX_TERMINAL_GROUPS = 15
PLAIN_TEXT_COLUMNS = 120


def measurement_text(measurement: MeasurementData) -> Group:
    """Return the table of metrics, the tables of groups and the answers, for rich to print."""
    return Group(
        *map(escape_markup, measurement.remarks),
        _metrics_table({"value": measurement}),
        Text(),
        *_group_tables({"": measurement}),
        f"[bold]{escape_markup(expert_text.headline(measurement))}[/bold]",
        *map(_answer_line, measurement_answers(measurement)),
        f"[dim]{escape_markup(expert_text.event_sentence(measurement))}[/dim]",
    )


def assessment_text(assessment: AssessmentData) -> Group:
    """Return the metrics before and after calibration, the calibrators and the answers, for rich to print."""
    before = assessment.uncalibrated
    measurements = {"before": before} | ({} if assessment.is_identity else {"after": assessment.calibrated})
    return Group(
        *map(escape_markup, assessment.remarks),
        _metrics_table(measurements),
        Text(),
        *([_calibrators_table(assessment), Text()] if len(assessment.measurements) > 1 else []),
        *map(escape_markup, expert_text.fit_warnings(assessment)),
        *_group_tables(measurements),
        f"[bold]{escape_markup(expert_text.headline(before))}[/bold]",
        *map(_answer_line, assessment_answers(assessment)),
        f"[dim]{escape_markup(assessment.protocol)}[/dim]",
        f"[dim]{escape_markup(expert_text.event_sentence(before))}[/dim]",
    )


def render_plain_text(value: Any) -> str:
    """Return what rich prints for a value, without colors."""
    console = Console(file=io.StringIO(), width=PLAIN_TEXT_COLUMNS, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(value)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _metrics_table(measurements: Mapping[str, MeasurementData]) -> Table:
    """Return a table with a row per metric, and two columns per measurement: value and interval."""
    first = next(iter(measurements.values()))
    body = Table(**TABLE_STYLE, padding=(0, 1, 0, 0))
    body.add_column(escape_markup(f"{first.n:,} {first.population}"))
    for name, measurement in measurements.items():
        body.add_column(escape_markup(name), justify="right", no_wrap=True)
        body.add_column(f"{expert_text.format_level(measurement.level)} interval", style="dim", no_wrap=True)
    has_notes = len(measurements) == 1  # two measurements leave no room for notes
    if has_notes:
        body.add_column("")
    for first_row in first:
        cells = [first_row.title]
        for measurement in measurements.values():
            if first_row.name in measurement:
                row = measurement[first_row.name]
                cells += [row.text, interval_or_p_value(row)]
            else:
                cells += ["–", ""]
        cells += [first_row.note] if has_notes else []
        body.add_row(*map(escape_markup, cells))
    return body


def _group_tables(measurements: Mapping[str, MeasurementData]) -> list[Any]:
    """Return a table of groups, worst first, per measurement, each followed by an empty line.

    In multilabel data the groups are the labels. If examples have a group too, further tables list these row groups.
    """
    renderables: list[Any] = []
    row_grouped = [(name, measurement.with_row_groups()) for name, measurement in measurements.items()]
    for name, measurement in [*measurements.items(), *row_grouped]:
        if measurement is None or measurement.groups is None:
            continue
        *rows, mean_row, total_row = group_rows(measurement)
        num_omitted = len(rows) - MAX_TERMINAL_GROUPS
        if num_omitted > 0:
            rows = [*rows[:MAX_TERMINAL_GROUPS], [f"({num_omitted} more)"]]  # rich fills up the row
        body = Table(**TABLE_STYLE)
        first_heading, *headings = group_headings(measurement.event)
        body.add_column(escape_markup(f"{first_heading} {name}".strip()))
        for heading in headings:
            body.add_column(escape_markup(heading), justify="right", no_wrap=True)
        for row in [*rows, mean_row, total_row]:
            body.add_row(*map(escape_markup, row))
        renderables += [body, Text()]
    return renderables


def _calibrators_table(assessment: AssessmentData) -> Table:
    """Return a table with a row per calibrator, and the best value of each metric in bold."""
    body = Table(**TABLE_STYLE)
    body.add_column("calibrator")
    for heading in metric_headings(assessment.calibrated, assessment.metrics):
        body.add_column(escape_markup(heading), justify="right")
    masks = best_mask(list(assessment.measurements.values()), assessment.metrics)
    for (name, measurement), mask in zip(assessment.measurements.items(), masks, strict=True):
        texts = [escape_markup(measurement[metric].text) for metric in assessment.metrics]
        cells = [f"[bold]{text}[/bold]" if is_best else text for text, is_best in zip(texts, mask, strict=True)]
        mark = " (selected)" if name == assessment.chosen_name else ""
        body.add_row(escape_markup(display_name(name)) + mark, *cells)
    return body


def _answer_line(answer: Answer) -> Any:
    """Return a question in bold and its answer, as a line of the terminal."""
    return Padding(f"[bold]{escape_markup(answer.question)}[/bold] {escape_markup(answer.text)}", 0, expand=False)
