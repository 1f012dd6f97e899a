"""A document as text of at most 80 columns."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from calibrant._core.text import cut_middle, escape_invisible
from calibrant.reports.document import Cell, Cells, Document, Part, SideBySide, Table

COLUMNS = 80
MAX_NAME = 32  # characters of the name of a row, unless its line has room for more
GAP = "  "


class Line(NamedTuple):
    """A line with its style in a terminal: "bold", "dim" or plain."""

    text: str
    style: str = ""


def render_text(document: Document) -> str:
    """Return a document as plain text."""
    return "\n".join(line.text for line in text_lines(document))


def text_lines(document: Document) -> list[Line]:
    """Return the lines of a document: title, answers, notes, then the tables that are no details."""
    blocks = [[Line(text, "bold") for text in _wrap(document.title)]]
    blocks += [_answer_lines(answer.question, answer.text) for answer in document.answers]
    blocks += [[Line(text, "dim") for text in _wrap(note)] for note in document.notes]
    lines = [line for block in blocks for line in block]
    for section in document.sections:
        if section.is_detail:
            continue
        lines += [Line(""), *(Line(text, "dim") for text in _wrap(section.legend))] if section.legend else []
        for table in _tables(section.parts):
            caption = [Line(f"  {table.caption}", "bold")] if section.has_captions else []
            lines += [Line(""), *caption, *table_lines(table)]
    return [Line(escape_invisible(line.text).rstrip(), line.style) for line in lines]


def _wrap(text: str, indent: str = "") -> list[str]:
    unbroken = text.replace(" %", "\N{NO-BREAK SPACE}%")  # a number and its unit stay on one line
    lines = textwrap.wrap(unbroken, COLUMNS, subsequent_indent=indent, break_long_words=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines] or [""]


def _answer_lines(question: str, text: str) -> list[Line]:
    """Return a question and its answer, which begins on the same line."""
    return [Line(line) for line in _wrap(f"{question} {text}", indent=GAP)]


def _tables(parts: Sequence[Part]) -> Iterator[Table]:
    """Yield the tables among parts, also those beside each other, but not folded ones."""
    for part in parts:
        if isinstance(part, Table):
            yield part
        elif isinstance(part, SideBySide):
            yield from _tables(part.parts)


def table_lines(table: Table) -> list[Line]:
    """Return the lines of a table. One that is too wide goes on below, with the names of its rows again."""
    table = table.without_empty_columns()
    rows = [_row_texts(row, bold) for row, bold in _shown_rows(table)]
    head = [cell if isinstance(cell, str) else cell.text for cell in table.head]
    blocks = _blocks(head, rows, COLUMNS - len(GAP) - min(MAX_NAME, _width(head, rows, 0)))
    widest = max(sum(len(GAP) + _width(head, rows, j) for j in block) for block in blocks)
    rows = [[cut_middle(row[0], max(MAX_NAME, COLUMNS - len(GAP) - widest)), *row[1:]] for row in rows]
    name_width = _width(head, rows, 0)
    lines: list[Line] = []
    for columns in blocks:
        block = _block_lines(table, head, rows, columns, name_width, is_continued=bool(lines))
        if len(block) > 1:  # the head and a row
            lines += [*([Line("")] if lines else []), *block]
    if (hidden := len(table.rows) - len(rows)) > 0:
        lines.append(Line(f"  ({hidden:,} more)", "dim"))
    return lines


def _shown_rows(table: Table) -> list[tuple[Cells, Sequence[bool]]]:
    """Return the rows that fit into text, and which of their cells are bold: the first ones and the last, as totals."""
    first = len(table.rows) - table.last_rows
    limit = first if table.max_text_rows is None else min(first, table.max_text_rows)
    rows = list(zip(table.rows, table.bold or [()] * len(table.rows), strict=True))
    return [*rows[:limit], *rows[first:]]


def _row_texts(row: Cells, bold: Sequence[bool]) -> list[str]:
    """Return the cells of a row as texts: bold ones between stars, details behind, but not of the name of the row."""
    name, *values = (Cell(cell) if isinstance(cell, str) else cell for cell in row)
    is_bold = dict(enumerate(bold))
    texts = [f"*{x.text}*" if is_bold.get(j) else x.text for j, x in enumerate(values)]
    return [name.text, *(f"{t} {x.detail}".strip() for t, x in zip(texts, values, strict=True))]


def _blocks(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Divide the columns after the first into blocks that fit into a width."""
    blocks: list[list[int]] = [[]]
    used = 0
    for j in range(1, len(head)):
        column = len(GAP) + _width(head, rows, j)
        if used + column > width and blocks[-1]:
            blocks.append([])
            used = 0
        blocks[-1].append(j)
        used += column
    return blocks


def _width(head: Sequence[str], rows: Sequence[Sequence[str]], j: int) -> int:
    return max(len(head[j]), *(len(row[j]) for row in rows if j < len(row)), 0)


def _is_words(cell: str) -> bool:
    """Whether a cell holds words and no number."""
    return cell[:1].isalpha() and cell not in ("inf", "nan")


def _block_lines(
    table: Table,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    columns: Sequence[int],
    name_width: int,
    *,
    is_continued: bool,
) -> list[Line]:
    """Return the head and the rows of some columns; marked rows begin with a star.

    Where a table goes on, rows without any content are left out.
    """
    widths = {j: _width(head, rows, j) for j in columns}
    words = {j for j in columns if any(_is_words(row[j]) for row in rows if j < len(row))}  # such columns align left

    def line(cells: Sequence[str], mark: str) -> str:
        texts = [f"{cells[j] if j < len(cells) else '':{'<' if j in words else '>'}{widths[j]}}" for j in columns]
        return f"{mark} {cells[0]:{name_width}}" + "".join(GAP + text for text in texts)

    lines = [Line(line(head, " "), "dim")]
    for i, row in enumerate(rows):
        if is_continued and not any(row[j] for j in columns if j < len(row)):
            continue
        if i in table.headings:
            lines.append(Line(f"  {table.headings[i]}", "dim"))
        is_marked = bool(table.marked) and table.marked[i]
        lines.append(Line(line(row, "*" if is_marked else " "), "bold" if is_marked else ""))
    return lines
