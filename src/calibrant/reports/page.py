"""A document as a page that stands alone, and as the cell of a notebook."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch

from markupsafe import Markup

from calibrant._core.registry import METRICS
from calibrant.metrics import Metric
from calibrant.reports import html
from calibrant.reports.document import (
    Answer,
    Cell,
    Code,
    Control,
    Document,
    Fold,
    Note,
    Paragraph,
    Part,
    Picture,
    Section,
    SideBySide,
    Table,
    Tile,
)
from calibrant.reports.svg import figure


def render_page(document: Document, facts: Mapping[str, str]) -> str:
    """Return the HTML page of a document, with the facts of the caller before the versions and the time."""
    sections = [(section.heading, _section(section)) for section in document.sections]
    automatic = html.version_facts(facts.get("command", "calibrant, from Python"))
    listed = {**document.facts, **{name: text for name, text in facts.items() if name != "command"}, **automatic}
    lead = [
        _answers(document.answers) if document.answers else Markup(),
        _tiles(document.tiles) if document.tiles else Markup(),
        *map(html.note, document.notes),
    ]
    return html.page(document.title, html.join_html(lead), sections, listed, kicker=document.kind)


def render_cell(document: Document) -> str:
    """Return the notebook cell of a document: title, answers, notes and the tables that are no details."""
    parts = [
        html.render("<h3>{}</h3>", html.typeset(document.title)),
        *(html.render("<p><b>{}</b> {}</p>", x.question, html.typeset(x.text)) for x in document.answers),
        *(html.render("<p>{}</p>", html.typeset(note)) for note in document.notes),
        *(_part(part) for s in document.sections if not s.is_detail for part in s.parts if isinstance(part, Table)),
    ]
    return html.reveal_hidden_characters(html.join_html(parts))


def _cell(cell: str | Cell) -> Markup:
    """Return a cell, with its detail below it in small letters, and its hint on hover."""
    if isinstance(cell, str):
        return html.typeset(cell)
    text = html.term(cell.text, cell.hint)
    return html.render("{} <small>{}</small>", text, html.typeset(cell.detail)) if cell.detail else text


def explain_terms(text: str) -> Markup:
    """Return text in which the first use of each abbreviation or name of a metric shows its explanation on hover."""
    metrics = [m for m in METRICS.registered() if isinstance(m, Metric)]
    unexplained = {metric.term: metric.about for metric in metrics if metric.term and metric.about.meaning}
    longest_first = sorted(unexplained, key=len, reverse=True)  # a term may be part of another
    parts: list[Markup] = []
    for part in re.split(rf"\b({'|'.join(map(re.escape, longest_first))})\b", text):  # terms, and texts between them
        info = unexplained.pop(part, None)
        explanation = "" if info is None else f"{info.title}: {info.meaning}"
        parts.append(html.term(part, explanation))
    return html.join_html(parts)


def _answers(answers: Iterable[Answer]) -> Markup:
    parts = [html.render("<dt>{}</dt><dd>{}</dd>", answer.question, explain_terms(answer.text)) for answer in answers]
    return html.render('<dl class="answers">{}</dl>', html.join_html(parts))


def _tiles(tiles: Iterable[Tile]) -> Markup:
    parts = [
        html.render(
            "<div><dt>{}</dt><dd>{} <small>{}</small></dd></div>",
            explain_terms(tile.name),
            html.typeset(tile.value),
            html.typeset(tile.detail),
        )
        for tile in tiles
    ]
    return html.render('<dl class="tiles">{}</dl>', html.join_html(parts))


def _section(section: Section) -> Markup:
    """Return the HTML of a section. Several tables have their captions as headings."""
    legend = html.note(section.legend) if section.legend else Markup()
    has_captions = section.has_captions
    return legend + html.join_html(
        html.render("<h3>{}</h3>{}", html.typeset(part.caption), _part(part))
        if has_captions and isinstance(part, Table)
        else _part(part)
        for part in section.parts
    )


def _parts(parts: Sequence[Part]) -> Markup:
    return html.join_html(map(_part, parts))


@singledispatch
def _part(part: object) -> Markup:
    """Return the HTML of a part."""
    raise TypeError(type(part))


@_part.register
def _(part: Table) -> Markup:
    part = part.without_empty_columns()
    rows, first = range(len(part.rows)), len(part.rows) if part.max_open_rows is None else part.max_open_rows
    folded = rows[first : len(rows) - part.last_rows]
    body = _table(part, [i for i in rows if i not in folded], part.caption)
    if folded:
        rest = html.details(f"{len(folded):,} more", _table(part, folded, f"more {part.caption}"))
        body = html.render('<div class="long">{}{}</div>', body, rest)
    return body + html.note(part.note) if part.note else body


def _table(part: Table, rows: Sequence[int], caption: str) -> Markup:
    """Return the HTML of some rows of a table."""
    return html.table(
        [explain_terms(cell) if isinstance(cell, str) else _cell(cell) for cell in part.head],
        [[_cell(cell) for cell in part.rows[i]] for i in rows],
        bold=[part.bold[i] for i in rows] if part.bold else (),
        highlighted=[part.marked[i] for i in rows] if part.marked else (),
        caption=caption,
        long_row_names=True,
        groups={place: part.headings[i] for place, i in enumerate(rows) if i in part.headings},
    )


@_part.register
def _(part: Picture) -> Markup:
    return figure(part)


@_part.register
def _(part: Paragraph) -> Markup:
    if part.name:
        return html.render("<p><strong>{}</strong> {}</p>", part.name, html.typeset(part.text))
    return html.render("<p>{}</p>", html.typeset(part.text))


@_part.register
def _(part: Note) -> Markup:
    return html.note(part.text)


@_part.register
def _(part: Code) -> Markup:
    return html.render("<pre><code>{}</code></pre>", part.text)


@_part.register
def _(part: Control) -> Markup:
    return html.control_data(part.kind, part.content)


@_part.register
def _(part: Fold) -> Markup:
    return html.details(part.summary, _parts(part.parts))


@_part.register
def _(part: SideBySide) -> Markup:
    return html.render('<div class="pair">{}</div>', _parts(part.parts))
