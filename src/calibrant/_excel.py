"""Excel workbooks (.xlsx) as polars frames; needs the packages of the extra `excel`."""

import importlib
import logging
import math
from pathlib import Path
from typing import Any

from calibrant._delimited import numbered
from calibrant.types import InputError

MAX_ROWS, MAX_COLUMNS, MAX_TEXT = 1_048_576, 16_384, 32_767  # of a sheet, and characters of a cell
EXACT_INTEGER = 2**53  # a cell holds no larger whole number exactly


def read_excel(path: Path) -> tuple[Any, tuple[str, ...]]:
    """Return the first sheet with cells as a frame, and a note where there are other sheets.

    Formula cells have the value that was last computed. Raises `InputError` if the package is missing.
    """
    book = _package("fastexcel").read_excel(path)
    sheets = [name for name in book.sheet_names if book.load_sheet(name, header_row=None, n_rows=1).width]
    if not sheets:
        raise InputError("the workbook has no sheet with cells", code="no_rows")
    log = logging.getLogger("fastexcel")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of columns without values
    try:
        frame = _sheet(book, sheets[0])
    finally:
        log.setLevel(level)
    others = ", ".join(map(repr, sheets[1:6]))
    notes = (f"read sheet {sheets[0]!r}; not read: {others}",) if others else ()
    return frame, notes


def _sheet(book: Any, name: str) -> Any:
    import polars

    every = {"header_row": 0, "schema_sample_rows": None}
    typed = book.load_sheet(name, **every).to_polars()
    texts = book.load_sheet(name, dtypes="string", **every).to_polars()
    header = book.load_sheet(name, header_row=None, n_rows=1, dtypes="string").to_polars().row(0)
    numbers = book.load_sheet(name, dtypes="float", **every).to_polars()
    columns: list[Any] = []
    for column, text, number in zip(typed, texts, numbers, strict=True):
        if column.dtype == polars.String or (column.is_null() & text.is_not_null()).any():  # numbers and words
            rounded = number.is_not_null() & (text.cast(polars.Float64, strict=False) != number).fill_null(False)
            column = polars.select(polars.when(rounded).then(number.cast(polars.String)).otherwise(text)).to_series()
        elif column.dtype == polars.Float64:
            whole = column.cast(polars.Int64, strict=False)
            column = whole if whole.null_count() == column.null_count() and (whole == column).all() else column
        columns.append(column)
    frame = polars.DataFrame([column.alias(str(i)) for i, column in enumerate(columns)])
    frame.columns = numbered(["" if cell is None else str(cell).strip() for cell in header])
    return frame.filter(~polars.all_horizontal(polars.all().is_null()))


def write_excel(frame: Any, path: Path) -> None:
    """Write a frame to the only sheet of a workbook; texts are never formulas.

    Raises `InputError` if the package is missing, or where a sheet cannot hold the frame.
    """
    xlsxwriter = _package("xlsxwriter")
    if len(frame) >= MAX_ROWS or frame.width > MAX_COLUMNS:
        raise InputError(
            f"a sheet holds {MAX_ROWS - 1:,} rows and {MAX_COLUMNS:,} columns, got {len(frame):,} and {frame.width:,}; "
            "write .csv or .parquet",
            code="too_large_for_excel",
        )
    book = xlsxwriter.Workbook(path, {"constant_memory": True})
    try:
        sheet = book.add_worksheet("table", worksheet_class=_exact(xlsxwriter.worksheet.Worksheet))
        for j, name in enumerate(frame.columns):
            _write_cell(sheet, 0, j, name)
        for i, row in enumerate(frame.iter_rows(), 1):
            for j, value in enumerate(row):
                _write_cell(sheet, i, j, value)
    finally:
        book.close()


def _write_cell(sheet: Any, i: int, j: int, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        sheet.write_boolean(i, j, value)
    elif (
        isinstance(value, int | float)
        and math.isfinite(value)
        and (isinstance(value, float) or abs(value) <= EXACT_INTEGER)
    ):
        sheet.write_number(i, j, value)
    elif isinstance(value, list | dict | bytes):
        raise InputError("a cell holds no lists; write .parquet or .jsonl", code="nested")
    elif len(text := str(value)) > MAX_TEXT:
        raise InputError(f"a cell holds {MAX_TEXT:,} characters, got {len(text):,}; write .csv", code="too_long")
    else:
        sheet.write_string(i, j, text)


def _exact(worksheet: Any) -> Any:
    """Return a class of sheets that write all digits of a number, not 16 of 17."""

    class ExactSheet(worksheet):
        def _xml_number_element(self, number: Any, attributes: Any = ()) -> None:
            text = "".join(f' {key}="{value}"' for key, value in attributes)
            self.fh.write(f"<c{text}><v>{number!r}</v></c>")

    return ExactSheet


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(
            f".xlsx needs the package {name}: pip install 'calibrant[excel]', or use .csv", code="missing_package"
        ) from None
