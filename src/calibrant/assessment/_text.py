"""Results as text: tables and answers, in a terminal with its colors, elsewhere plain."""

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from calibrant._text import markup, name_text
from calibrant.assessment import words
from calibrant.assessment._table import Findings
from calibrant.assessment._table import Table as Measured

PLAIN: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "dim"}
SHOWN = 15  # groups before the rest is left to the page
WIDTH = 120  # of lines that no terminal breaks


def measurement_text(table: Measured) -> Group:
    """The table, and in words what it says."""
    return Group(
        _numbers({"value": table}),
        Text(),
        *_groups({"": table}),
        f"[bold]{markup(words.headline(table))}[/bold]",
        *(_answer(*answer) for answer in words.first_answers(table)),
        *map(markup, table.remarks),
        _judged(table),
    )


def assessment_text(found: Findings) -> Group:
    """The table before and after, the calibrators, and in words what was found."""
    tables = {"before": found.before} | ({"after": found.after} if found.chosen != "Identity" else {})
    return Group(
        _numbers(tables),
        Text(),
        *((_ranking(found), Text()) if len(found.tables) > 1 else ()),
        *map(markup, words.fit_cautions(found)),
        *_groups(tables),
        f"[bold]{markup(words.headline(found.before))}[/bold]",
        *(_answer(*answer) for answer in words.answers(found)),
        *map(markup, found.before.remarks),
        f"[dim]{markup(found.how)}[/dim]",
        _judged(found.before),
    )


def plain_text(value: Any) -> str:
    """Write what rich would print, without colors."""
    console = Console(file=io.StringIO(), width=WIDTH, color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(value)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def _numbers(tables: Mapping[str, Measured]) -> Table:
    first = next(iter(tables.values()))
    body = Table(**PLAIN, padding=(0, 1, 0, 0))
    body.add_column(markup(f"{first.n:,} {first.among}"))
    for name, table in tables.items():
        body.add_column(markup(name), justify="right", no_wrap=True)
        body.add_column(f"{words.at(table.level)} interval", style="dim", no_wrap=True)
    notes = len(tables) == 1
    if notes:
        body.add_column("")
    for row in first:
        cells: list[str] = []
        for table in tables.values():
            cells += [table[row.name].text, words.evidence(table[row.name])] if row.name in table else ["–", ""]
        body.add_row(markup(row.title), *map(markup, cells), *([markup(row.note)] if notes else []))
    return body


def _groups(tables: Mapping[str, Measured]) -> list[Any]:
    """The groups, worst first, and what they are together."""
    shown: list[Any] = []
    second = [(name, table.by_row_group()) for name, table in tables.items()]
    for name, table in [*tables.items(), *second]:
        if table is None or table.groups is None:
            continue
        rows = words.group_rows(table)
        if (more := len(rows) - 2 - SHOWN) > 0:
            rows = [*rows[:SHOWN], [f"({more} more)", *[""] * (len(rows[0]) - 1)], *rows[-2:]]
        body = Table(**PLAIN)
        first, *rest = words.group_head(table.event)
        body.add_column(markup(f"{first} {name}".strip()))
        for heading in rest:
            body.add_column(markup(heading), justify="right", no_wrap=True)
        for row in rows:
            body.add_row(*map(markup, row))
        shown += [body, Text()]
    return shown


def _ranking(found: Findings) -> Table:
    tables = list(found.tables.values())
    body = Table(**PLAIN)
    body.add_column("calibrator")
    for heading in words.headings(found.after, found.shown):
        body.add_column(markup(heading), justify="right")
    for (name, table), best in zip(found.tables.items(), words.best(tables, found.shown), strict=True):
        texts = [markup(table[m].text) for m in found.shown]
        cells = [f"[bold]{text}[/bold]" if b else text for text, b in zip(texts, best, strict=True)]
        mark = " (chosen)" if name == found.chosen else ""
        body.add_row(markup(name_text(name)) + mark, *cells)
    return body


def _answer(question: str, answer: str) -> Any:
    return Padding(f"[bold]{markup(question)}[/bold] {markup(answer)}", 0, expand=False)


def _judged(table: Measured) -> str:
    counted = f" {words.dependent(table)}" if table.clusters else ""
    return f"[dim]Judged: {markup(table.event.judged)}{table.event.instead}.{counted}[/dim]"
