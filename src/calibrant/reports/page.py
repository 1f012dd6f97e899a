"""A document as a page that stands alone, and as the cell of a notebook."""

from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch

from markupsafe import Markup

from calibrant.reports import html
from calibrant.reports.document import (
    Answer,
    Code,
    Control,
    Document,
    Fold,
    Note,
    Paragraph,
    Part,
    Picture,
    SideBySide,
    Table,
    Tile,
)
from calibrant.reports.svg import figure


def render_page(document: Document, facts: Mapping[str, str]) -> str:
    """Return the HTML page of a document, with the facts of the caller before the versions and the time."""
    answers = [html.Section("Summary", _answers(document.answers))] if document.answers else []
    sections = [html.Section(section.heading, _parts(section.parts)) for section in document.sections]
    automatic = html.version_facts(facts.get("command", "calibrant, from Python"))
    listed = {**document.facts, **{name: text for name, text in facts.items() if name != "command"}, **automatic}
    tiles = _tiles(document.tiles) if document.tiles else Markup()
    return html.page(document.title, document.notes, [*answers, *sections], listed, kicker=document.kind, tiles=tiles)


def render_cell(document: Document) -> str:
    """Return the notebook cell of a document: title, answers, notes and the tables that are no details."""
    parts = [
        html.render("<h3>{}</h3>", html.typeset(document.title)),
        *(html.render("<p>{}</p>", html.typeset(note)) for note in document.notes),
        *(html.render("<p><b>{}</b> {}</p>", x.question, html.typeset(x.text)) for x in document.answers),
        *(_part(part) for s in document.sections if not s.is_detail for part in s.parts if isinstance(part, Table)),
    ]
    return html.reveal_hidden_characters(html.join_html(parts))


def _answers(answers: Iterable[Answer]) -> Markup:
    parts = [html.render("<dt>{}</dt><dd>{}</dd>", answer.question, html.typeset(answer.text)) for answer in answers]
    return html.render('<dl class="answers">{}</dl>', html.join_html(parts))


def _tiles(tiles: Iterable[Tile]) -> Markup:
    parts = [
        html.render(
            '<div><dt>{}</dt><dd>{}<span class="detail">{}</span></dd></div>',
            html.typeset(tile.name),
            html.typeset(tile.value),
            html.typeset(tile.detail),
        )
        for tile in tiles
    ]
    return html.render('<dl class="tiles">{}</dl>', html.join_html(parts))


def _parts(parts: Sequence[Part]) -> Markup:
    return html.join_html(map(_part, parts))


@singledispatch
def _part(part: object) -> Markup:
    """Return the HTML of a part."""
    raise TypeError(type(part))


@_part.register
def _(part: Table) -> Markup:
    body = html.table(
        part.head,
        part.rows,
        bold=part.bold,
        highlighted=part.marked,
        caption=part.caption,
        long_row_names=True,
        groups=part.headings,
    )
    return body + html.note(part.note) if part.note else body


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
