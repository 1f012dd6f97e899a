"""Read and write delimited text without loss, and detect separators, headers and decimal commas."""

import csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from calibrant._core.lazy import polars
from calibrant._core.text import escape_formula, shorten_repr, unescape_column
from calibrant._core.types import InputError
from calibrant.io.cells import is_number, parse_number_columns, replace_missing_words
from calibrant.io.encoding import detect_encoding, read_decompressed, to_utf8

SEPARATORS = ",;\t|"
SAMPLE_CHARACTERS, SAMPLE_RECORDS = 1 << 16, 20  # for detecting the separator
SEPARATOR_LINE_PATTERN = re.compile(rb'"?sep=(.)"?\s*', re.IGNORECASE)


@dataclass(frozen=True)
class Dialect:
    """Separator, decimal sign and encoding of delimited text."""

    separator: str = ","
    decimal_comma: bool = False
    encoding: str = "utf-8"


@dataclass(frozen=True, eq=False)
class DelimitedText:
    """A table read from text: typed columns, and on demand the cells as they are spelled."""

    frame: Any
    notes: tuple[str, ...]  # sentences for the user on how the text was read
    dialect: Dialect
    body: bytes  # the records below the header, in UTF-8, without blank lines

    def texts(self) -> Any:
        """Return all cells as they are spelled, as a polars frame of strings."""
        cells = _parse_cells(self.body, self.dialect.separator, self.frame.width, infer=False)
        cells.columns = self.frame.columns
        return cells.head(len(self.frame))  # the frame lacks the empty rows at the end


def read_delimited(
    path: Path, encoding: str | None = None, na: Sequence[str] = (), *, prefers_tabs: bool = False
) -> DelimitedText:
    """Read a delimited text file, compressed or not.

    Columns of numbers become numbers, words for missing values become null, and empty rows at the end are dropped.

    Args:
        path: The file.
        encoding: Its encoding; detected if None.
        na: Further words for missing values.
        prefers_tabs: Take tabs for separators if every record has the same number of them.

    Raises:
        InputError: If this is no text, has no rows, or lines with more or fewer fields than the header.
    """
    raw = read_decompressed(path)
    content, notes = to_utf8(raw, encoding)
    used_encoding = encoding or (detect_encoding(raw) if notes else "utf-8")  # a note says that it is another one
    if b"\0" in content:
        raise InputError("Expected text, got zero bytes. Try the suffix of another format.", code="zero_bytes")
    if b"\n" not in content:  # lines end as on old Macintosh computers
        content = content.replace(b"\r", b"\n")
    names, separator, body = _parse_header(content, prefers_tabs)
    rows = _drop_blank_lines(body)
    if not rows.strip():
        raise InputError("Expected rows below the header, got a header only.", code="no_rows")
    frame = _parse_typed_cells(rows, separator, len(names))
    # Polars fills short rows up with nulls, so that the last column shows whether there may be any
    may_have_ragged_rows = frame is None or frame.width != len(names) or frame[:, -1].null_count() > 0
    if may_have_ragged_rows:
        num_header_lines = content[: len(content) - len(body)].count(b"\n")
        _check_field_counts(body, separator, len(names), num_header_lines)
    if frame is None:  # although all records have the right number of fields: only quotes can be the reason
        raise InputError("Expected pairs of quotes, got one without its pair. Try quotes around cells.", code="quotes")
    frame.columns = names
    nonempty_rows = _drop_empty_rows_at_end(frame)
    if dropped := len(frame) - len(nonempty_rows):
        notes = (*notes, f"Left out {dropped} empty {'row' if dropped == 1 else 'rows'} at the end.")
    cells = replace_missing_words(unescape_formulas(nonempty_rows), na)
    # Beside another separator, commas are decimal: programs write ";" where "," is the decimal sign
    frame, has_decimal_commas = parse_number_columns(cells, thousands_commas=separator == ",")
    return DelimitedText(frame, notes, Dialect(separator, has_decimal_commas, used_encoding), rows)


# Header and separator


def _parse_header(content: bytes, prefers_tabs: bool) -> tuple[list[str], str, bytes]:
    """Return the names of the columns, the separator, and the records below the header.

    The first line may declare the separator, as "sep=;" does for Excel. Comments and blank lines before the header are
    skipped, but the last comment is the header if it has as many cells as the first record, which has numbers.

    Raises:
        InputError: If no cell of the header has a name.
    """
    declared_separator, comment, remainder = "", b"", content
    first_line, _, other_lines = content.partition(b"\n")
    if match := SEPARATOR_LINE_PATTERN.fullmatch(first_line):
        declared_separator, remainder = match[1].decode(), other_lines
    while remainder[:1] in (b"#", b"\n", b"\r"):
        line, _, remainder = remainder.partition(b"\n")
        comment = line if line.startswith(b"#") else comment
    sample = remainder[:SAMPLE_CHARACTERS].decode(errors="replace")
    separator = declared_separator or _detect_separator(sample, prefers_tabs)
    end = _find_record_end(remainder, separator)
    header, body = remainder[:end].decode(), remainder[end:]
    cells = _split_fields(header, separator)
    comment_cells = _split_fields(comment.decode().lstrip("# "), separator)
    only_cells_have_numbers = any(map(is_number, cells)) and not any(map(is_number, comment_cells))
    if len(comment_cells) == len(cells) > 1 and only_cells_have_numbers:  # numpy.savetxt writes such headers
        header, cells, body = comment.decode(), comment_cells, remainder
    if not any(cell.strip() for cell in cells):
        raise InputError("Expected a header with the names of columns, got none.", code="no_header")
    quoted_cells = {cell for cell in cells if '"' + cell.replace('"', '""') + '"' in header}
    # A blank at the end of a name in quotes belongs to the name
    names = [cell.lstrip() if cell in quoted_cells else cell.strip() for cell in cells]
    names = names if len(set(names)) == len(names) else cells  # blanks stay where they tell names apart
    return mark_duplicate_names(unescape_column(names)), separator, body


def _find_record_end(content: bytes, separator: str) -> int:
    """Return the length of the first record in bytes, with its line break. A record may have line breaks in quotes."""
    stream = io.BytesIO(content)
    lines = (line.decode(errors="replace") for line in stream)
    try:  # the reader takes as many lines from the stream as the first record has
        next(csv.reader(lines, delimiter=separator, skipinitialspace=True), None)
    except csv.Error:  # a cell is longer than csv accepts: take the first line
        return content.find(b"\n") + 1 or len(content)
    return stream.tell()


def _detect_separator(sample: str, prefers_tabs: bool) -> str:
    """Return the separator that gives all records of a sample the same number of fields, at least two.

    If several do, the one with the most fields is returned, but a preferred tab comes first, and a blank last. If no
    separator does, the most frequent one in the header is returned.
    """
    if len(sample) == SAMPLE_CHARACTERS:  # it may end within a line
        sample = sample[: sample.rfind("\n") + 1] or sample
    field_counts = {separator: _count_fields(sample, separator) for separator in SEPARATORS + " "}  # 0: records differ
    if prefers_tabs and field_counts["\t"] > 1:
        return "\t"
    best = max(SEPARATORS, key=lambda separator: field_counts[separator])
    if field_counts[best] > 1:
        return best
    header = re.sub('"[^"]*"', "", sample.partition("\n")[0])  # without cells in quotes
    return " " if field_counts[" "] > 1 else max(SEPARATORS, key=header.count)


def _count_fields(sample: str, separator: str) -> int:
    """Return the number of fields of the first records in a sample, or 0 if it varies or quotes do not match.

    Blank lines do not count.
    """
    widths: set[int] = set()
    try:
        for row in filter(None, islice(_strict_csv_reader(sample, separator), SAMPLE_RECORDS)):  # without blank lines
            widths.add(len(row))
    except csv.Error as error:
        if str(error) != "unexpected end of data":  # the sample may end within a record
            return 0
    return widths.pop() if len(widths) == 1 else 0


def _strict_csv_reader(text: str, separator: str) -> Iterator[list[str]]:
    """Return a reader of the records of a text that fails if quotes do not match."""
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)


def _split_fields(line: str, separator: str) -> list[str]:
    """Return the fields of a single record, [] for an empty line."""
    text = io.StringIO(line.rstrip("\r\n"), newline="")
    return next(csv.reader(text, delimiter=separator, skipinitialspace=True), [])


def mark_duplicate_names(names: list[str]) -> list[str]:
    """Return unique names: repeats of a name end in _duplicated_0, _duplicated_1 and so on, as in polars."""
    occurrences: dict[str, int] = {}
    marked_names: list[str] = []
    for name in names:
        marked_names.append(f"{name}_duplicated_{occurrences[name] - 1}" if name in occurrences else name)
        occurrences[name] = occurrences.get(name, 0) + 1
    return marked_names


# Records


def _drop_blank_lines(body: bytes) -> bytes:
    """Return records without blank lines, except those within quotes."""
    body = body.rstrip(b"\r\n") + b"\n"
    blank_starts = (b"\n", b"\r", b" ", b"\t")
    if not body.startswith(blank_starts) and not any(b"\n" + start in body for start in blank_starts):
        return body  # most files have no such line
    kept_lines, is_in_quotes = list[bytes](), False
    for line in body.split(b"\n"):
        if is_in_quotes or line.strip(b" \t\r"):
            kept_lines.append(line)
        is_in_quotes ^= line.count(b'"') % 2 == 1  # an odd number of quotes opens or closes a cell
    return b"\n".join(kept_lines) + b"\n"


def _parse_cells(body: bytes, separator: str, width: int, *, infer: bool = True) -> Any:
    """Return records as a polars frame.

    With `infer`, columns get types. If there are quotes within cells, all cells are texts: then Python's csv reads the
    records, and an `InputError` says if quotes do not match or a record does not have `width` fields.
    """
    read_options: dict[str, Any] = {"separator": separator, "has_header": False, "glob": False}
    read_options |= {"infer_schema_length": None} if infer else {"infer_schema": False}  # from all rows, or texts
    if not _has_inner_quotes(body, separator):
        return polars.read_csv(body, **read_options)
    try:  # polars misreads a quote within a cell, such as 5" pipe
        rows = list(_strict_csv_reader(body.decode(), separator))
    except csv.Error:
        raise InputError("Expected pairs of quotes, got one without its pair.", code="quotes") from None
    if any(len(row) != width for row in rows):
        raise InputError("Expected rows of one length.", code="ragged")
    texts = [[cell or None for cell in column] for column in zip(*rows)]  # empty cells are null, as polars reads them
    return polars.DataFrame({str(i): polars.Series(column, dtype=polars.String) for i, column in enumerate(texts)})


def _parse_typed_cells(body: bytes, separator: str, width: int) -> Any:
    """Return records with `width` fields as a polars frame: typed if possible, else of texts, or None if neither works.

    Types cannot be inferred from digits of other scripts. Even texts cannot be read if quotes do not match.
    """
    for infer in (True, False):
        with suppress(Exception):  # polars has no common class of errors
            return _parse_cells(body, separator, width, infer=infer)
    return None


def _has_inner_quotes(body: bytes, separator: str) -> bool:
    """Whether there are quotes within cells, as in 5" pipe, other than quotes around cells and their escaped pairs."""
    if b'"' not in body:
        return False
    escaped_separator = re.escape(separator).encode()
    # After a separator, a line break or nothing: a quote, any text with pairs of quotes, and a quote before the next.
    # *+ gives nothing back, so that the time is linear
    quoted_cell = rb'(?:(?<=[%s\n])|\A)"[^"]*+(?:""[^"]*+)*+"(?=[%s\r\n]|\Z)' % (escaped_separator, escaped_separator)
    return b'"' in re.sub(quoted_cell, b"", body)


def _check_field_counts(body: bytes, separator: str, width: int, lines_above: int) -> None:
    """Raise `InputError` for the first record with more or fewer fields than the header, except records of blanks.

    Args:
        body: The records.
        separator: Separator of the fields.
        width: Number of fields in the header.
        lines_above: Number of lines of the file before `body`.
    """
    # Cells may be longer than the default limit of csv; a C long has 32 bits on Windows
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))
    try:
        reader = csv.reader(io.StringIO(body.decode(), newline=""), delimiter=separator)
        line = lines_above + 1
        for row in reader:
            if len(row) != width and any(cell.strip() for cell in row):
                separator_name = "a tab" if separator == "\t" else repr(separator)
                raise InputError(
                    f"Expected {width} fields in line {line}, as in the header, got {len(row)}. Try quotes around "
                    f"cells that contain {separator_name}.",
                    code="ragged",
                )
            line = lines_above + reader.line_num + 1  # where the next record begins
    finally:
        csv.field_size_limit(limit)


def _drop_empty_rows_at_end(frame: Any) -> Any:
    """Drop the empty rows at the end of a frame, or raise `InputError` if all rows are empty."""
    if any(value is not None and str(value).strip() for value in frame.row(-1)):
        return frame  # most files have no such row
    texts = frame.select(polars.all().cast(polars.String).str.strip_chars())
    filled_rows = texts.select(polars.any_horizontal(polars.all().fill_null("") != "")).to_series().arg_true()
    if not len(filled_rows):
        raise InputError("Expected rows below the header, got empty rows only.", code="no_rows")
    return frame.head(int(filled_rows[-1]) + 1)


# Formulas and writing


def unescape_formulas(frame: Any) -> Any:
    """Return a frame without the apostrophes that keep spreadsheets from taking texts for formulas, as in '=a."""
    columns: list[Any] = []
    for name, kind in frame.schema.items():
        if kind == polars.String and frame[name].str.starts_with("'").any():
            # A column is unescaped as a whole: one bare formula shows that its apostrophes are part of the texts
            texts = frame[name].drop_nulls().unique().to_list()
            columns.append(frame[name].replace_strict(texts, unescape_column(texts), return_dtype=polars.String))
    return frame.with_columns(columns)


def format_delimited(frame: Any, dialect: Dialect) -> str:
    """Return a polars frame as text that reads back as it is.

    Texts that a spreadsheet would take for formulas get an apostrophe, which reading removes.
    """
    for name, kind in frame.schema.items():
        if kind.is_nested() or kind in (polars.Binary, polars.Object):
            raise InputError(
                f"Expected numbers or texts in column {shorten_repr(name)}, got {kind}. Try another format, such as "
                "Parquet.",
                code="nested",
            )
    header = dialect.separator.join(_quote_column_name(escape_formula(name)) for name in frame.columns)
    write_options: dict[str, Any] = {"separator": dialect.separator, "decimal_comma": dialect.decimal_comma}
    frame = frame.with_columns(polars.selectors.duration().dt.to_string("iso"))  # which Polars does not write
    return f"{header}\n{map_texts(frame, escape_formula).write_csv(include_header=False, **write_options)}"


def map_texts(frame: Any, function: Callable[[str], str]) -> Any:
    """Return a polars frame with a function applied to its texts, and categories as texts."""
    texts = polars.col(polars.String, polars.Categorical, polars.Enum).cast(polars.String)
    return frame.with_columns(texts.map_elements(function, return_dtype=polars.String))


def _quote_column_name(name: str) -> str:
    """Return the name of a column, in quotes if a reader could misread it."""
    # Besides separators: a header that begins with # is read as a comment, "sep=;" declares a separator, and blanks
    # around a name are stripped
    is_plain = name and not re.search(r"""[,;|"'#=\s]""", name)
    return name if is_plain else '"' + name.replace('"', '""') + '"'
