"""Excel workbooks (.xlsx) as polars frames, with the packages of the extra `excel`."""

import logging
import math
from pathlib import Path
from typing import Any

from calibrant._lazy import import_optional, polars
from calibrant.io.columns import TableOptions
from calibrant.io.delimited import mark_duplicate_names
from calibrant.io.number_text import parse_number_columns, replace_missing_words
from calibrant.io.tables import LoadedTable
from calibrant.types import InputError

MAX_SHEET_ROWS, MAX_SHEET_COLUMNS, MAX_CELL_CHARACTERS = 1_048_576, 16_384, 32_767
MAX_EXACT_INTEGER = 2**53  # cells hold float64 numbers


def read_workbook(path: Path, options: TableOptions) -> LoadedTable:
    """Read the first sheet that has cells, with the last values of its formulas. A note names other sheets.

    Raises:
        InputError: If there is no such sheet, or a package is missing.
    """
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
    return LoadedTable(parse_number_columns(replace_missing_words(frame, options.na))[0], notes)


def _read_sheet(book: Any, name: str) -> Any:
    """Return a sheet as a frame.

    The reader infers the type of each column. A column with words among its numbers is read as text, in which rounded
    numbers are replaced by the full ones. Columns of whole numbers become integers. Empty rows are left out.
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
    if len(frame) >= MAX_SHEET_ROWS or frame.width > MAX_SHEET_COLUMNS:
        raise InputError(
            f"Expected up to {MAX_SHEET_ROWS - 1:,} rows and {MAX_SHEET_COLUMNS:,} columns in a sheet, got "
            f"{len(frame):,} and {frame.width:,}. Try another format, such as Parquet.",
            code="too_large_for_excel",
        )
    book = xlsxwriter.Workbook(path, {"constant_memory": True})
    try:
        sheet = book.add_worksheet("table", worksheet_class=_exact_worksheet_class(xlsxwriter.worksheet.Worksheet))
        for j, name in enumerate(frame.columns):
            _write_cell(sheet, 0, j, name)
        for i, row in enumerate(frame.iter_rows(), 1):
            for j, value in enumerate(row):
                _write_cell(sheet, i, j, value)
    finally:
        book.close()


def _write_cell(sheet: Any, i: int, j: int, value: Any) -> None:
    """Write a value to row i and column j of a sheet. None leaves the cell empty.

    Infinite numbers, NaN and integers that float64 does not hold are written as texts.
    """
    if value is None:
        return
    if isinstance(value, list | dict | bytes):
        raise InputError(
            "Expected numbers or texts in a sheet, got lists. Try another format, such as Parquet.", code="nested"
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


def _exact_worksheet_class(worksheet: Any) -> Any:
    """Return a worksheet class that writes all 17 digits of numbers instead of 16."""

    class ExactSheet(worksheet):
        def _xml_number_element(self, number: Any, attributes: Any = ()) -> None:
            """Override the method of xlsxwriter that writes a number with 16 digits."""
            text = "".join(f' {key}="{value}"' for key, value in attributes)
            self.fh.write(f"<c{text}><v>{number!r}</v></c>")

    return ExactSheet
