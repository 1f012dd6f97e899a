"""Files of tables as polars frames, and their delimited text, JSON lines and Excel workbooks."""

import io
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.expansion import check_archive
from calibrant._core.files import format_suffix, is_exception
from calibrant._core.foreign import check_depth_of_lines, parse_json_lines
from calibrant._core.lazy import import_optional, polars
from calibrant._core.text import describe_error, escape_cell, shorten_list, shorten_repr, unescape_column
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.cells import parse_number_columns, replace_missing_words
from calibrant.io.column_roles import Columns, TableOptions
from calibrant.io.delimited import (
    DelimitedText,
    Dialect,
    format_delimited,
    map_texts,
    mark_duplicate_names,
    read_delimited,
)
from calibrant.io.encoding import read_decompressed, to_utf8, write_compressed
from calibrant.io.files import list_table_files
from calibrant.io.formats import BY_SUFFIX

MAX_SHEET_ROWS, MAX_SHEET_COLUMNS, MAX_CELL_CHARACTERS = 1_048_576, 16_384, 32_767  # of Excel
TIME_FORMATS: dict[type, str] = {
    date: "yyyy-mm-dd",
    datetime: "yyyy-mm-dd hh:mm:ss.000",
    time: "hh:mm:ss.000",
    timedelta: "[h]:mm:ss.000",
}
TIME_OF_DAY = date(1899, 12, 31)  # the date of times without one
MAX_EXACT_INTEGER = 2**53  # cells hold float64 numbers
_SEARCHED_BYTES = 1 << 17  # of the header of a text, or the schema at the end of a Parquet file


@dataclass(frozen=True, eq=False)
class LoadedTable:
    """A table that was read, with notes on how, and the text of delimited files."""

    frame: Any
    notes: tuple[str, ...] = ()
    delimited: Sequence[DelimitedText] = ()

    @property
    def dialect(self) -> Dialect | None:
        """Separator and decimal sign of the first file, or None for other formats than delimited text."""
        return self.delimited[0].dialect if self.delimited else None

    def texts(self, columns: Sequence[str] | None = None) -> Any:
        """Return columns of delimited text as spelled, with nulls for empty cells, or None for other formats."""
        if not self.delimited:
            return None
        names = self.frame.columns if columns is None else list(columns)
        return polars.concat([part.texts().select(names) for part in self.delimited])


def read_table(path: str | Path, options: TableOptions | None = None, *, has_missing_words: bool = True) -> LoadedTable:
    """Read a table: a file, or the files of a folder or of a pattern such as `part-*.parquet`, one below the other.

    Words such as NA are missing values, unless `has_missing_words` is false.
    """
    options = options or TableOptions()
    files = list_table_files(path)
    parts = [call_reader(file, partial(_read_file, file, options), path) for file in files]
    frames = [part.frame for part in parts]
    # Relaxed: a column may be integers in one file and fractions in the next
    frame = polars.concat(align_columns(frames), how="vertical_relaxed") if len(frames) > 1 else frames[0]
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    delimited = [text for part in parts for text in part.delimited]
    frame = replace_missing_words(frame, options.na) if has_missing_words else frame
    return LoadedTable(frame, tuple(notes), delimited)


def _read_file(path: Path, options: TableOptions) -> LoadedTable:
    """Read a single file of a table by the reader of its format."""
    part = BY_SUFFIX[format_suffix(path)].read(path, options)
    return part if isinstance(part, LoadedTable) else LoadedTable(part)


def call_reader(path: Path, reader: Callable[[], Any], source: str | Path | None = None) -> Any:
    """Call a reader, and turn every exception of other libraries into an `InputError`.

    Args:
        path: The file that is read.
        reader: A function without arguments.
        source: The folder or pattern that `path` is from; the message names the file then.
    """
    with nullcontext() if source is None or Path(source) == path else prefix_errors(path.name):
        try:
            return reader()
        except InputError:
            raise
        except BaseException as error:
            if not is_exception(error):
                raise
            kind = f"{format_suffix(path)} file".strip() if path.is_file() else "table"
            raise InputError(
                f"Expected a readable {kind}, got an error ({describe_error(error)}).", code="unreadable"
            ) from None


def read_aggregates(path: str | Path, column: str, names: Sequence[str] = ()) -> Any:
    """Return the frame of a table with a certain column, such as aggregates of a database, or None for other files.

    Only the first and the last part of the (first) file are searched for the name of the column before it is read.

    Args:
        path: File, folder or pattern.
        column: Name of the column.
        names: Columns of texts, such as 007.
    """
    try:
        first = list_table_files(path)[0]
    except InputError:  # reading it as predictions says what is wrong
        return None
    with first.open("rb") as file:
        head = file.read(_SEARCHED_BYTES)
        file.seek(max(0, first.stat().st_size - _SEARCHED_BYTES))
        if column.encode() not in head + file.read():
            return None
    table = read_table(path, has_missing_words=False)
    if column not in table.frame.columns:
        return None
    texts = table.texts(names)  # as they are spelled
    return table.frame if texts is None else table.frame.with_columns(texts)


def align_columns(frames: list[Any]) -> list[Any]:
    """Return frames with columns in the order of the first, or raise `InputError` if they have other columns."""
    columns = [frame.collect_schema().names() for frame in frames]  # per file
    columns_in_all = set(columns[0]).intersection(*columns)
    if differing := sorted(set().union(*columns) - columns_in_all):
        raise InputError(
            f"Expected the same columns in all files of a folder or pattern, got {shorten_list(differing)} in some "
            "only. Try one pattern for each kind of table.",
            code="columns_differ",
        )
    return [frame.select(columns[0]) for frame in frames]


def as_frame(table: Any) -> Any:
    """Return a polars frame of a table: polars, pandas, Arrow, a Hugging Face data set, or a mapping of columns."""
    try:
        if isinstance(table, polars.DataFrame | polars.LazyFrame):
            return table.lazy().collect()
        if type(table).__module__.partition(".")[0] == "pandas" and hasattr(table, "columns"):
            names = mark_duplicate_names(list(map(str, table.columns)))
            return polars.DataFrame([_from_pandas(name, table.iloc[:, i]) for i, name in enumerate(names)])
        if hasattr(table, "to_polars"):
            return table.to_polars()
        if isinstance(table, Mapping):
            names = mark_duplicate_names(list(map(str, table)))
            return polars.DataFrame(dict(zip(names, table.values(), strict=True)))
        if hasattr(table, "__arrow_c_stream__"):
            return polars.DataFrame(table)
    except Exception as error:  # other libraries raise anything
        raise InputError(
            f"Expected a readable table, got an error ({describe_error(error)}).", code="unreadable"
        ) from None
    raise InputError(
        f"Expected a polars, pandas or Arrow table, a data set or a path, got {type(table).__name__}.",
        code="table_type",
    )


def _from_pandas(name: str, column: Any) -> Any:
    """Return a column of a pandas frame as a polars series, with nulls for missing values, but NaN among floats.

    It is converted here because polars itself would need pyarrow for it.
    """
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":  # numpy's booleans, integers and floats
        return polars.Series(name, column.to_numpy())
    cells = column.astype(object).where(column.notna(), None).tolist()
    series = polars.Series(name, cells, strict=False)
    if series.dtype == polars.Object:  # such as periods
        return polars.Series(name, [None if cell is None else str(cell) for cell in cells])
    return series


# Spelling of delimited text


def restore_spelling(table: LoadedTable, columns: Columns) -> Any:
    """Return the frame of a table, with labels, groups and ids spelled as in the file where numbers lose the spelling.

    Labels that are names of classes stay texts, such as 1.0 beside a column prob_1.0, and so do groups such as 007.
    Apostrophes that protect from formulas are removed.
    """
    restored = [_restore_column(table, name, None) for name in (columns.group, columns.id) if name is not None]
    if columns.label is not None and columns.names is not None:
        restored.insert(0, _restore_column(table, columns.label, columns.names))
    return table.frame.with_columns(column for column in restored if column is not None)


def _restore_column(table: LoadedTable, name: str, classes: Sequence[str] | None) -> Any:
    """Return a column as its cells are spelled in the file, or None to keep the column as it was read.

    Labels get the first spelling in which all of them are names of classes: without the apostrophes that protect from
    formulas, as in the file, or without blanks around them. Another column is restored, without such apostrophes, if
    they or a conversion to numbers, as of 007 to 7, changed a cell.

    Args:
        table: The table.
        name: The column.
        classes: Names of the classes if the column holds labels, which must be spelled like these.
    """
    column, text_frame = table.frame[name], table.texts([name])
    if text_frame is None or not (column.dtype.is_numeric() or column.dtype in (polars.String, polars.Boolean)):
        return None
    texts = text_frame[name]
    if classes is None:  # words for missing values stay missing, unless they are names of classes
        texts = polars.select(polars.when(column.is_not_null()).then(texts)).to_series()
    spelled = texts.drop_nulls().unique(maintain_order=True).to_list()
    unescaped = unescape_column(spelled)
    if classes is None:  # numbers are spelled otherwise if they lost something, as 007 has
        is_spelled_alike = column.dtype == polars.String or bool((column.cast(polars.String) == texts).all())
        restored = None if is_spelled_alike and unescaped == spelled else unescaped
    else:
        spellings = [unescaped, spelled, [text.strip() for text in spelled]]
        matching = [labels for labels in spellings if set(labels) <= set(classes)]
        if unescaped != spelled and matching[:2] == [unescaped, spelled]:  # both "=a" and "'=a" are classes
            raise InputError(
                f"Expected either {shorten_repr(unescaped[0])} or {shorten_repr(spelled[0])} as a class, got both, "
                "which differ by an apostrophe that protects from formulas. Try a format other than text.",
                code="ambiguous_apostrophe",
            )
        restored = matching[0] if matching else None
    if restored is None:
        return None
    return texts.replace_strict(spelled, restored, return_dtype=polars.String).alias(name)


# Readers


def read_text(path: Path, options: TableOptions, *, prefers_tabs: bool = False) -> LoadedTable:
    """Read delimited text."""
    delimited = read_delimited(path, options.encoding, options.na, prefers_tabs=prefers_tabs)
    return LoadedTable(delimited.frame, delimited.notes, (delimited,))


def read_tab_separated(path: Path, options: TableOptions) -> LoadedTable:
    """Read delimited text, with tabs if they fit."""
    return read_text(path, options, prefers_tabs=True)


def read_jsonl(path: Path, options: TableOptions) -> LoadedTable:
    """Read a JSON object per line."""
    content, notes = to_utf8(read_decompressed(path), options.encoding)
    check_depth_of_lines(content)
    try:
        frame = polars.read_ndjson(io.BytesIO(content), infer_schema_length=None)
    except Exception:
        # The slower parser names the line of an error, and reads the NaN of Python's json, which polars refuses
        frame = polars.DataFrame(parse_json_lines(content), infer_schema_length=None)
    else:
        # Polars ignores all but the first value of a repeated key. As many values as colons rule out such a key
        if content.count(b":") > sum(column.count() for column in frame):
            parse_json_lines(content)  # only raises, if a line repeats a key: colons may also be within texts
    return LoadedTable(frame, notes)


# Writers


def write_text(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write delimited text."""
    dialect = dialect or Dialect()
    # Zstandard is written by Polars, which knows UTF-8 only
    encoding = "utf-8" if path.suffix.lower() == ".zst" else dialect.encoding
    write_compressed(format_delimited(frame, dialect), path, encoding)


def write_tab_separated(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write text with tabs, whatever the separator of the dialect."""
    write_text(frame, path, replace(dialect or Dialect(), separator="\t"))


def write_jsonl(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write a JSON object per line, with infinite numbers as texts, because JSON has none. `dialect` is ignored."""
    infinite_columns = [
        name for name, kind in frame.schema.items() if kind.is_float() and frame[name].is_infinite().any()
    ]
    write_compressed(frame.with_columns(polars.col(infinite_columns).cast(polars.String)).write_ndjson(), path)


def to_safe_csv(frame: Any) -> str:
    """Return a polars frame as CSV whose texts no spreadsheet takes for formulas."""
    return map_texts(frame, escape_cell).write_csv()


# Excel workbooks, with the packages of the extra excel


def read_workbook(path: Path, options: TableOptions) -> LoadedTable:
    """Read the first sheet that has cells, with the last values of its formulas. A note names other sheets.

    Raises:
        InputError: If there is no such sheet, or a package is missing.
    """
    check_archive(path)
    book = import_optional("fastexcel", "excel", "A workbook").read_excel(path)
    sheets = [name for name in book.sheet_names if book.load_sheet(name, header_row=None, n_rows=1).width]
    if not sheets:
        raise InputError("Expected a sheet with cells, got empty sheets only.", code="no_rows")
    log = logging.getLogger("fastexcel")
    level = log.level
    log.setLevel(logging.ERROR)  # hides warnings about empty columns
    try:
        frame = _read_sheet(book, sheets[0])
    finally:
        log.setLevel(level)
    unread_sheets = ", ".join(map(repr, sheets[1:6]))
    notes = (f"Read sheet {sheets[0]!r} only, not {unread_sheets}.",) if unread_sheets else ()
    cells = replace_missing_words(frame, options.na)
    texts = cells.select(polars.col(polars.String))
    codes = [column.name for column in texts if column.str.contains(r"^\s*0\d").any()]  # such as ids 001
    return LoadedTable(cells.with_columns(parse_number_columns(cells.drop(codes))[0]), notes)


def _read_sheet(book: Any, name: str) -> Any:
    """Return a sheet as a frame without empty rows.

    The reader infers the type of each column. A column with words among its numbers is read as text, and the reader
    rounds numbers in texts: they are replaced by the numbers in full. Columns of whole numbers become integers.
    """
    # The sheet is read with inferred types, as texts and as numbers; the header alone, because names may repeat
    load_options = {"header_row": 0, "schema_sample_rows": None}
    typed_frame = book.load_sheet(name, **load_options).to_polars()
    text_frame = book.load_sheet(name, dtypes="string", **load_options).to_polars()
    header = book.load_sheet(name, header_row=None, n_rows=1, dtypes="string").to_polars().row(0)
    number_frame = book.load_sheet(name, dtypes="float", **load_options).to_polars()
    columns: list[Any] = []
    for column, text, number in zip(typed_frame, text_frame, number_frame, strict=True):
        if column.dtype == polars.String or (column.is_null() & text.is_not_null()).any():  # words among numbers
            parsed_text = text.cast(polars.Float64, strict=False)
            is_rounded = number.is_not_null() & (parsed_text != number).fill_null(False)
            column = polars.select(polars.when(is_rounded).then(number.cast(polars.String)).otherwise(text)).to_series()
        elif column.dtype == polars.Float64:
            integers = column.cast(polars.Int64, strict=False)
            is_whole = integers.null_count() == column.null_count() and (integers == column).all()
            column = integers if is_whole else column
        columns.append(column)
    frame = polars.DataFrame([column.alias(str(i)) for i, column in enumerate(columns)])
    frame.columns = mark_duplicate_names(["" if cell is None else str(cell).strip() for cell in header])
    return frame.filter(~polars.all_horizontal(polars.all().is_null()))


def write_workbook(frame: Any, path: Path, dialect: object = None) -> None:
    """Write a frame to the only sheet of a workbook. Texts are never formulas, and `dialect` is ignored.

    Raises:
        InputError: If a sheet cannot hold the frame, or a package is missing.
    """
    xlsxwriter = import_optional("xlsxwriter", "excel", "A workbook")
    if len(frame) >= MAX_SHEET_ROWS or frame.width > MAX_SHEET_COLUMNS:  # the header takes one more row
        raise InputError(
            f"Expected up to {MAX_SHEET_ROWS - 1:,} rows and {MAX_SHEET_COLUMNS:,} columns in a sheet, got "
            f"{len(frame):,} and {frame.width:,}. Try another format, such as Parquet.",
            code="too_large_for_excel",
        )
    book = xlsxwriter.Workbook(path, {"constant_memory": True})  # holds one row in memory at a time
    try:
        sheet = book.add_worksheet("table", worksheet_class=_exact_worksheet_class(xlsxwriter.worksheet.Worksheet))
        formats = {kind: book.add_format({"num_format": text}) for kind, text in TIME_FORMATS.items()}
        for j, name in enumerate(frame.columns):
            _write_cell(sheet, 0, j, name, formats)
        for i, row in enumerate(frame.iter_rows(), 1):
            for j, value in enumerate(row):
                _write_cell(sheet, i, j, value, formats)
    finally:
        book.close()


def _write_cell(sheet: Any, i: int, j: int, value: Any, formats: Mapping[type, Any]) -> None:
    """Write a value to row i and column j of a sheet. None leaves the cell empty.

    Infinite numbers, NaN and integers that float64 does not hold are written as texts, and so are times that a sheet
    cannot hold: before 1900, of a time zone, or with parts of a millisecond. Times of day and durations stay what they
    are.
    """
    if value is None:
        return
    is_time_of_day = isinstance(value, datetime) and value.date() == TIME_OF_DAY
    value = value.timetz() if is_time_of_day else value
    if type(value) in formats and _is_exact_time(value):
        sheet.write_datetime(i, j, value, formats[type(value)])
        return
    if isinstance(value, list | dict | bytes):
        raise InputError(
            f"Expected numbers or texts in a sheet, got {type(value).__name__}. Try another format, such as Parquet.",
            code="nested",
        )
    is_exact_number = isinstance(value, float) or (isinstance(value, int) and abs(value) <= MAX_EXACT_INTEGER)
    if isinstance(value, bool):
        sheet.write_boolean(i, j, value)
    elif is_exact_number and math.isfinite(value):
        sheet.write_number(i, j, value)
    elif len(text := str(value)) > MAX_CELL_CHARACTERS:
        raise InputError(
            f"Expected up to {MAX_CELL_CHARACTERS:,} characters in a cell, got {len(text):,}. Try another format, such "
            "as Parquet.",
            code="too_long",
        )
    else:
        sheet.write_string(i, j, text)


def _is_exact_time(value: Any) -> bool:
    """Whether a sheet holds a date, a time or a duration exactly."""
    if isinstance(value, timedelta):
        return value >= timedelta(0) and value.microseconds % 1000 == 0
    has_time = isinstance(value, datetime | time)
    is_in_range = not isinstance(value, date) or value.year >= 1900
    return is_in_range and not (has_time and (value.tzinfo is not None or value.microsecond % 1000))


def _exact_worksheet_class(worksheet: Any) -> Any:
    """Return a worksheet class that writes numbers with up to 17 digits, which float64 needs to be read back exactly.

    `worksheet` is the class of xlsxwriter, which writes 16 digits.
    """

    class ExactSheet(worksheet):
        def _xml_number_element(self, number: Any, attributes: Any = ()) -> None:
            """Override the method of xlsxwriter that writes a number with 16 digits."""
            text = "".join(f' {key}="{value}"' for key, value in attributes)
            self.fh.write(f"<c{text}><v>{number!r}</v></c>")

    return ExactSheet
