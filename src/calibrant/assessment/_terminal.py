"""Results as text: tables and answers, in a terminal with its colors, elsewhere plain."""

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from calibrant._text import display_name, escape_markup
from calibrant.assessment import expert_text
from calibrant.assessment._results import AssessmentData
from calibrant.assessment._results import MeasurementData as Measured

TABLE_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}
MAX_TERMINAL_GROUPS = 15  # groups before the rest is left to the page
PLAIN_TEXT_COLUMNS = 120  # of lines that no terminal breaks


def measurement_text(measurement: Measured) -> Group:
    """The table, and in words what it says."""
    return Group(
        _metrics_table({"value": measurement}),
        Text(),
        *_group_tables({"": measurement}),
        f"[bold]{escape_markup(expert_text.headline(measurement))}[/bold]",
        *(_answer_line(*answer) for answer in expert_text.measurement_answers(measurement)),
        *map(escape_markup, measurement.remarks),
        _event_line(measurement),
    )


def assessment_text(assessment: AssessmentData) -> Group:
    """The table before and after, the calibrators, and in words what was found."""
    tables = {"before": assessment.uncalibrated} | (
        {"after": assessment.calibrated} if assessment.chosen_name != "Identity" else {}
    )
    return Group(
        _metrics_table(tables),
        Text(),
        *((_calibrators_table(assessment), Text()) if len(assessment.tables) > 1 else ()),
        *map(escape_markup, expert_text.fit_warnings(assessment)),
        *_group_tables(tables),
        f"[bold]{escape_markup(expert_text.headline(assessment.uncalibrated))}[/bold]",
        *(_answer_line(*answer) for answer in expert_text.assessment_answers(assessment)),
        *map(escape_markup, assessment.uncalibrated.remarks),
        f"[dim]{escape_markup(assessment.protocol)}[/dim]",
        _event_line(assessment.uncalibrated),
    )


def render_plain_text(value: Any) -> str:
    """Write what rich would print, without colors."""
    console = Console(file=io.StringIO(), width=PLAIN_TEXT_COLUMNS, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(value)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _metrics_table(measurements: Mapping[str, Measured]) -> Table:
    first_measurement = next(iter(measurements.values()))
    body = Table(**TABLE_STYLE, padding=(0, 1, 0, 0))
    body.add_column(escape_markup(f"{first_measurement.n:,} {first_measurement.population}"))
    for name, table in measurements.items():
        body.add_column(escape_markup(name), justify="right", no_wrap=True)
        body.add_column(f"{expert_text.format_level(table.level)} interval", style="dim", no_wrap=True)
    notes = len(measurements) == 1
    if notes:
        body.add_column("")
    for row in first_measurement:
        cells: list[str] = []
        for table in measurements.values():
            cells += (
                [table[row.name].text, expert_text.interval_or_p_value(table[row.name])]
                if row.name in table
                else ["–", ""]
            )
        body.add_row(
            escape_markup(row.title), *map(escape_markup, cells), *([escape_markup(row.note)] if notes else [])
        )
    return body


def _group_tables(measurements: Mapping[str, Measured]) -> list[Any]:
    """The groups, worst first, and what they are together."""
    renderables: list[Any] = []
    row_grouped = [(name, table.with_row_groups()) for name, table in measurements.items()]
    for name, table in [*measurements.items(), *row_grouped]:
        if table is None or table.groups is None:
            continue
        rows = expert_text.group_rows(table)
        if (num_omitted := len(rows) - 2 - MAX_TERMINAL_GROUPS) > 0:
            rows = [*rows[:MAX_TERMINAL_GROUPS], [f"({num_omitted} more)", *[""] * (len(rows[0]) - 1)], *rows[-2:]]
        body = Table(**TABLE_STYLE)
        first_heading, *headings = expert_text.group_headings(table.event)
        body.add_column(escape_markup(f"{first_heading} {name}".strip()))
        for heading in headings:
            body.add_column(escape_markup(heading), justify="right", no_wrap=True)
        for row in rows:
            body.add_row(*map(escape_markup, row))
        renderables += [body, Text()]
    return renderables


def _calibrators_table(assessment: AssessmentData) -> Table:
    tables = list(assessment.tables.values())
    body = Table(**TABLE_STYLE)
    body.add_column("calibrator")
    for heading in expert_text.metric_headings(assessment.calibrated, assessment.metrics):
        body.add_column(escape_markup(heading), justify="right")
    for (name, table), best in zip(
        assessment.tables.items(), expert_text.best_mask(tables, assessment.metrics), strict=True
    ):
        texts = [escape_markup(table[m].text) for m in assessment.metrics]
        cells = [f"[bold]{text}[/bold]" if b else text for text, b in zip(texts, best, strict=True)]
        mark = " (chosen)" if name == assessment.chosen_name else ""
        body.add_row(escape_markup(display_name(name)) + mark, *cells)
    return body


def _answer_line(question: str, answer: str) -> Any:
    return Padding(f"[bold]{escape_markup(question)}[/bold] {escape_markup(answer)}", 0, expand=False)


def _event_line(measurement: Measured) -> str:
    cluster_note = f" {expert_text.cluster_sentence(measurement)}" if measurement.clusters else ""
    return (
        "[dim]Judged: "
        f"{escape_markup(measurement.event.claim)}{measurement.event.alternative_hint}.{cluster_note}[/dim]"
    )
