"""Delimited text: detect encoding, separator and decimal commas; read and write tables without loss."""

import codecs
import csv
import gzip
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant._text import escape_formula, unescape_column
from calibrant.types import InputError

SEPARATORS = ",;\t|"
SAMPLE_BYTES, SAMPLE_RECORDS = 1 << 16, 20  # by which the separator is detected
MAX_QUOTED_CHARACTERS = 40  # characters of a cell or reason in a message
MISSING_WORDS = (  # in columns of numbers, in any case
    *("na", "n/a", "n.a.", "#na", "#n/a", "<na>", "nan", "null", "none", "nil", "missing"),
    *("-", "--", "?", ".", "#null!", "#div/0!", "#value!", "#ref!", "#name?", "#num!"),
)
INTEGER_PATTERN = r"^[+-]?[0-9]+$"
NUMBER_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity|nan)$"
PERCENT_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)\s*%$"
COMMA_NUMBER_PATTERN = r"^[+-]?([0-9]+(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?(\s*%)?$"
DECIMAL_COMMA_PATTERN = r"^[+-]?0?,|,(\d{0,2}|\d{4,})(\D|$)"  # a comma that separates no thousands
SEPARATOR_LINE_PATTERN = re.compile(rb'"?sep=(.)"?\s*', re.IGNORECASE)
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


@dataclass(frozen=True)
class Dialect:
    """How a table is spelled in text."""

    separator: str = ","
    decimal_comma: bool = False


@dataclass(frozen=True, eq=False)
class DelimitedText:
    """A table read from text: typed columns, and on demand the cells as they are spelled."""

    frame: Any
    notes: tuple[str, ...]
    dialect: Dialect
    body: bytes

    def texts(self) -> Any:
        """Return all cells as they are spelled, as a polars frame of strings."""
        cells = _parse_cells(self.body, self.dialect.separator, self.frame.width, infer=False)
        cells.columns = self.frame.columns
        return cells.head(len(self.frame))


def read_delimited(path: Path, encoding: str | None = None, na: Sequence[str] = ()) -> DelimitedText:
    """Read a delimited text file, compressed or not; `na` are further words for missing values.

    Raises `InputError` for an unknown encoding, and for lines with more or fewer fields than the header.
    """
    content, notes = to_utf8(read_decompressed(path), encoding)
    if b"\0" in content:
        raise InputError("expected text, got zero bytes; is this another format?", code="zero_bytes")
    if b"\n" not in content:
        content = content.replace(b"\r", b"\n")
    names, separator, body = _parse_header(content, tabs_first=".tsv" in [suffix.lower() for suffix in path.suffixes])
    rows = _drop_blank_lines(body)
    if not rows.strip():
        raise InputError("expected rows below the header, got a header only", code="no_rows")
    frame = _parse_typed_cells(rows, separator, len(names))
    has_expected_fields = frame is not None and frame.width == len(names) and not frame[:, -1].null_count()
    if not has_expected_fields:
        _check_field_counts(body, separator, len(names), content[: len(content) - len(body)].count(b"\n"))
    if frame is None:
        raise InputError("quotes in this text do not match; put cells with quotes in quotes", code="quotes")
    frame.columns = names
    nonempty_rows = _drop_empty_rows_at_end(frame)
    if len(nonempty_rows) < len(frame):
        notes = (*notes, f"left out {len(frame) - len(nonempty_rows)} empty rows at the end")
    frame, has_decimal_commas = parse_number_columns(
        replace_missing_words(unescape_formulas(nonempty_rows), na), thousands_commas=separator == ","
    )
    return DelimitedText(frame, notes, Dialect(separator, has_decimal_commas), rows)


# Bytes


def read_decompressed(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if its suffix is that of a compression."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return gzip.decompress(path.read_bytes())
    if suffix != ".zst":
        return path.read_bytes()
    import polars

    read_options: dict[str, Any] = {"separator": "\x1f", "quote_char": None, "eol_char": "\x1e", "infer_schema": False}
    return str(polars.read_csv(path, has_header=False, glob=False, **read_options).item()).encode()


def write_compressed(text: str, path: Path) -> None:
    """Write a text in UTF-8, packed if the suffix of the path is that of a compression."""
    suffix = path.suffix.lower()
    if suffix == ".zst":
        import polars

        write_options: dict[str, Any] = {"include_header": False, "quote_style": "never", "line_terminator": ""}
        polars.DataFrame({"text": [text]}).write_csv(path, compression="zstd", check_extension=False, **write_options)
    else:
        path.write_bytes(gzip.compress(text.encode(), mtime=0) if suffix == ".gz" else text.encode())


def to_utf8(raw: bytes, encoding: str | None = None) -> tuple[bytes, tuple[str, ...]]:
    """Return text as UTF-8 without a byte order mark, and a note where it was anything else.

    Raises `InputError` where it is not in the given encoding.
    """
    if encoding is not None:
        try:
            return raw.decode(encoding).removeprefix("\ufeff").encode(), ()
        except (LookupError, UnicodeError) as error:
            code = "unknown_encoding" if isinstance(error, LookupError) else "encoding"
            raise InputError(
                f"cannot read this text as {encoding[:MAX_QUOTED_CHARACTERS]!r}; try another encoding, such as utf-8 "
                "or cp1252",
                code=code,
            ) from None
    detected = next((name for mark, name in BYTE_ORDER_MARKS if raw.startswith(mark)), None) or _detect_encoding(raw)
    try:
        return (raw if detected == "utf-8" else raw.decode(detected).removeprefix("\ufeff").encode()), (
            () if detected == "utf-8" else (f"encoding {detected}, as detected; --encoding (encoding=) sets another",)
        )
    except UnicodeError:
        raise InputError(
            f"cannot read this text as {detected}; name its encoding (encoding=, or --encoding)", code="encoding"
        ) from None


def _detect_encoding(raw: bytes) -> str:
    """Detect the encoding of text without a byte order mark."""
    sample = raw[:SAMPLE_BYTES]
    half = max(1, len(sample) // 2)
    for zeros, name in ((sample[1::2], "utf-16-le"), (sample[::2], "utf-16-be")):
        if zeros.count(0) > 0.4 * half and sample.count(0) < 0.6 * len(sample):
            return name
    for name in ("utf-8", "cp1252"):
        try:
            if not raw.isascii():
                raw.decode(name)
            return name
        except UnicodeError:
            continue
    return "latin-1"


# Structure


def _parse_header(content: bytes, *, tabs_first: bool) -> tuple[list[str], str, bytes]:
    """Return the names of the columns, the separator, and what follows the header."""
    declared_separator, comment, remainder = "", b"", content
    if match := SEPARATOR_LINE_PATTERN.fullmatch(remainder.partition(b"\n")[0]):
        declared_separator, remainder = match[1].decode(), remainder.partition(b"\n")[2]
    while remainder[:1] in (b"#", b"\n", b"\r"):
        line, _, remainder = remainder.partition(b"\n")
        comment = line if line.startswith(b"#") else comment
    sample = remainder[:SAMPLE_BYTES].decode(errors="replace")
    separator = declared_separator or _detect_separator(sample, tabs_first)
    end = _find_record_end(remainder, separator)
    header, body = remainder[:end].decode(), remainder[end:]
    cells = _split_fields(header, separator)
    comment_cells = _split_fields(comment.decode().lstrip("# "), separator)
    if len(comment_cells) == len(cells) > 1 and any(map(_is_number, cells)) and not any(map(_is_number, comment_cells)):
        header, cells, body = comment.decode(), comment_cells, remainder  # as numpy.savetxt writes it
    if not any(cell.strip() for cell in cells):
        raise InputError("expected a header with the names of columns, got none", code="no_header")
    quoted_cells = {cell for cell in cells if '"' + cell.replace('"', '""') + '"' in header}
    names = [cell.lstrip() if cell in quoted_cells else cell.strip() for cell in cells]
    names = names if len(set(names)) == len(names) else cells
    return mark_duplicate_names(unescape_column(names)), separator, body


def _find_record_end(content: bytes, separator: str) -> int:
    """Return where the first record ends; line breaks within cells in quotes belong to it."""
    ends = [0]

    def lines() -> Iterator[str]:
        while ends[-1] < len(content):
            ends.append(content.find(b"\n", ends[-1]) + 1 or len(content))
            yield content[ends[-2] : ends[-1]].decode(errors="replace")

    try:
        next(csv.reader(lines(), delimiter=separator, skipinitialspace=True), None)
    except csv.Error:  # beyond the limit of a cell
        return ends[1]
    return ends[-1]


def _detect_separator(sample: str, tabs_first: bool) -> str:
    """Return the separator that divides all records of a sample alike, else the most frequent one of the header."""
    if len(sample) == SAMPLE_BYTES:
        sample = sample[: sample.rfind("\n") + 1] or sample
    field_counts = {separator: _count_fields(sample, separator) for separator in SEPARATORS + " "}
    if tabs_first and field_counts["\t"] > 1:
        return "\t"
    if max(field_counts[separator] for separator in SEPARATORS) > 1:
        return max(SEPARATORS, key=lambda separator: field_counts[separator])
    header = re.sub('"[^"]*"', "", sample.partition("\n")[0])
    return " " if field_counts[" "] > 1 else max(SEPARATORS, key=header.count)


def _count_fields(sample: str, separator: str) -> int:
    """Return the number of fields of every record of a sample, 0 if it differs or quotes do not match."""
    widths: set[int] = set()
    try:
        for row, _ in zip(_strict_csv_reader(sample, separator), range(SAMPLE_RECORDS), strict=False):
            widths |= {len(row)} if row else set()
    except csv.Error as error:
        if str(error) != "unexpected end of data":  # which may be due to where the sample ends
            return 0
    return widths.pop() if len(widths) == 1 else 0


def _strict_csv_reader(text: str, separator: str) -> Iterator[list[str]]:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, skipinitialspace=True)


def _split_fields(line: str, separator: str) -> list[str]:
    text = io.StringIO(line.rstrip("\r\n"), newline="")
    return next(csv.reader(text, delimiter=separator, skipinitialspace=True), [])


def _is_number(cell: str) -> bool:
    return re.match(NUMBER_PATTERN, cell.strip()) is not None


def mark_duplicate_names(names: list[str]) -> list[str]:
    """Return names with a mark at those that occur before, as polars has them."""
    occurrences: dict[str, int] = {}
    marked_names: list[str] = []
    for name in names:
        marked_names.append(f"{name}_duplicated_{occurrences[name] - 1}" if name in occurrences else name)
        occurrences[name] = occurrences.get(name, 0) + 1
    return marked_names


def _drop_blank_lines(body: bytes) -> bytes:
    """Return records without lines of nothing but blanks; those between quotes stay."""
    body = body.rstrip(b"\r\n") + b"\n"
    blank_starts = (b"\n", b"\r", b" ", b"\t")
    if not body.startswith(blank_starts) and not any(b"\n" + start in body for start in blank_starts):
        return body  # found so much sooner than by a pattern
    kept_lines, open_quotes = list[bytes](), 0
    for line in body.split(b"\n"):
        if open_quotes or line.strip(b" \t\r"):
            kept_lines.append(line)
        open_quotes ^= line.count(b'"') & 1
    return b"\n".join(kept_lines) + b"\n"


def _parse_cells(body: bytes, separator: str, width: int, *, infer: bool = True) -> Any:
    """Return records as a polars frame; raises `InputError` where quotes do not match."""
    import polars

    read_options: dict[str, Any] = {"separator": separator, "has_header": False, "glob": False}
    read_options |= {"infer_schema_length": None} if infer else {"infer_schema": False}
    if not _has_inner_quotes(body, separator):
        return polars.read_csv(body, **read_options)
    try:  # polars misreads a quote within a cell, such as 5" pipe
        rows = list(_strict_csv_reader(body.decode(), separator))
    except csv.Error:
        raise InputError("quotes do not match", code="quotes") from None
    if any(len(row) != width for row in rows):
        raise InputError("rows differ in length", code="ragged")
    texts = [[cell or None for cell in column] for column in zip(*rows)]
    return polars.DataFrame({str(i): polars.Series(column, dtype=polars.String) for i, column in enumerate(texts)})


def _parse_typed_cells(body: bytes, separator: str, width: int) -> Any:
    """Return records as a polars frame, of texts where their types cannot be inferred; None if they cannot be read."""
    for infer in (True, False):
        try:
            return _parse_cells(body, separator, width, infer=infer)
        except Exception:  # of polars, such as for digits of other scripts, or quotes that do not match
            continue
    return None


def _has_inner_quotes(body: bytes, separator: str) -> bool:
    """Whether there are quotes other than those around whole cells, and their pairs within."""
    if b'"' not in body:
        return False
    ends = re.escape(separator).encode()
    cells = rb'(?:(?<=[%s\n])|\A)"[^"]*+(?:""[^"]*+)*+"(?=[%s\r\n]|\Z)' % (ends, ends)
    return b'"' in re.sub(cells, b"", body)


def _check_field_counts(body: bytes, separator: str, width: int, lines_above: int) -> None:
    """Raise `InputError` for the first record with more or fewer fields than the header."""
    limit = csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # a C long, of 32 bits on Windows
    try:
        reader = csv.reader(io.StringIO(body.decode(), newline=""), delimiter=separator)
        line = lines_above + 1
        for row in reader:
            if len(row) != width and any(cell.strip() for cell in row):
                raise InputError(
                    f"line {line}: expected {width} fields as in the header, got {len(row)}; put cells that contain "
                    f"{'a tab' if separator == chr(9) else repr(separator)} in quotes",
                    code="ragged",
                )
            line = lines_above + reader.line_num + 1
    finally:
        csv.field_size_limit(limit)


def _drop_empty_rows_at_end(frame: Any) -> Any:
    """Return a frame without the rows at its end that have no value."""
    import polars

    if any(value is not None and str(value).strip() for value in frame.row(-1)):
        return frame
    texts = frame.select(polars.all().cast(polars.String).str.strip_chars())
    filled_rows = texts.select(polars.any_horizontal(polars.all().fill_null("") != "")).to_series().arg_true()
    if not len(filled_rows):
        raise InputError("expected rows below the header, got empty ones only", code="no_rows")
    return frame.head(int(filled_rows[-1]) + 1)


# Cells


def parse_number_columns(frame: Any, *, thousands_commas: bool = False) -> tuple[Any, bool]:
    """Return a frame with numbers in place of texts, in columns where all are, and whether there are decimal commas.

    Words such as NA are missing values of a column of numbers; in other columns they are texts. Where commas may
    separate `thousands`, numbers such as 1,234 stay texts.
    """
    import polars

    has_decimal_commas, columns = False, list[Any]()
    for name, kind in frame.schema.items():
        column = frame[name]
        if kind == polars.String:
            column, column_has_commas = _parse_number_column(column, thousands_commas)
            has_decimal_commas = has_decimal_commas or column_has_commas
        columns.append(column)
    return frame.with_columns(columns), has_decimal_commas


def replace_missing_words(frame: Any, words: Sequence[str] = ()) -> Any:
    """Return a frame in which `words` are missing values, and so are words such as NA among numbers written as text."""
    import polars

    numbers = [float(word) for word in words if _is_number(word)]
    columns: list[Any] = []
    for name, kind in frame.schema.items():
        column = frame[name]
        if kind == polars.String:
            if words:
                column = _set_null(column, column.str.strip_chars().is_in([word.strip() for word in words]))
            texts = column.str.strip_chars()
            is_missing = texts.str.to_lowercase().is_in(MISSING_WORDS)
            present_texts = texts.filter(~is_missing.fill_null(True))
            if (
                is_missing.any()
                and len(present_texts)
                and present_texts.str.contains(f"{NUMBER_PATTERN}|{PERCENT_PATTERN}|{COMMA_NUMBER_PATTERN}").all()
            ):
                column = _set_null(column, is_missing)
        elif kind.is_numeric() and numbers:
            column = _set_null(column, column.cast(polars.Float64).is_in(numbers))
        columns.append(column)
    return frame.with_columns(columns)


def _set_null(column: Any, is_null: Any) -> Any:
    import polars

    return polars.select(polars.when(~is_null.fill_null(False)).then(column)).to_series().alias(column.name)


def _parse_number_column(column: Any, thousands_commas: bool) -> tuple[Any, bool]:
    """Return a column of texts as numbers if all are, missing words aside, and whether they have decimal commas."""
    import polars

    texts = column.str.strip_chars()
    texts = _set_null(texts, texts.str.to_lowercase().is_in([*MISSING_WORDS, ""]))
    present_texts = texts.drop_nulls()
    if not len(present_texts):
        return column, False
    has_decimal_commas = bool(
        present_texts.str.contains(COMMA_NUMBER_PATTERN).all() and present_texts.str.contains(",", literal=True).any()
    )
    if has_decimal_commas and thousands_commas and not present_texts.str.contains(DECIMAL_COMMA_PATTERN).any():
        return column, False
    if has_decimal_commas:
        texts = texts.str.replace(",", ".", literal=True)
        present_texts = texts.drop_nulls()
    if present_texts.str.contains(INTEGER_PATTERN).all():
        integers = texts.str.strip_prefix("+").cast(polars.Int64, strict=False)
        return (integers if integers.null_count() == texts.null_count() else column), has_decimal_commas
    if present_texts.str.contains(NUMBER_PATTERN).all():
        return texts.cast(polars.Float64, strict=False), has_decimal_commas
    if present_texts.str.contains(f"{NUMBER_PATTERN}|{PERCENT_PATTERN}").all():
        return texts, has_decimal_commas
    return column, False


def unescape_formulas(frame: Any) -> Any:
    """Return a frame with its texts without the apostrophes that protect from formulas."""
    import polars

    columns: list[Any] = []
    for name, kind in frame.schema.items():
        if kind == polars.String and frame[name].str.starts_with("'").any():
            kinds = frame[name].drop_nulls().unique().to_list()
            columns.append(frame[name].replace_strict(kinds, unescape_column(kinds), return_dtype=polars.String))
    return frame.with_columns(columns)


# Writing


def format_delimited(frame: Any, dialect: Dialect) -> str:
    """Return a frame as text that reads back as it is, and holds nothing that a spreadsheet takes for a formula."""
    import polars

    columns: list[Any] = []
    for name, kind in frame.schema.items():
        if kind.is_nested() or kind in (polars.Binary, polars.Object):
            raise InputError(
                f"column {name[:MAX_QUOTED_CHARACTERS]!r} holds lists, which text cannot; write .parquet or .jsonl",
                code="nested",
            )
        if kind in (polars.String, polars.Categorical, polars.Enum):
            texts = frame[name].cast(polars.String)
            columns.append(polars.Series(name, [text and escape_formula(text) for text in texts], polars.String))
    header = dialect.separator.join(_quote_column_name(escape_formula(name)) for name in frame.columns)
    write_options: dict[str, Any] = {"separator": dialect.separator, "decimal_comma": dialect.decimal_comma}
    return f"{header}\n{frame.with_columns(columns).write_csv(include_header=False, **write_options)}"


def _quote_column_name(name: str) -> str:
    """Return the name of a column, in quotes where any reader could misread it without."""
    needs_no_quotes = name and not re.search(r"""[,;|"'#=\s]""", name)
    return name if needs_no_quotes else '"' + name.replace('"', '""') + '"'
