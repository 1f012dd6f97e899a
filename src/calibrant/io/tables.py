"""Files of tables as polars frames, and their delimited text, JSON lines and Excel workbooks."""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._lazy import polars
from calibrant._text import describe_error, escape_cell, shorten_list, shorten_repr, unescape_column
from calibrant.io.columns import Columns, TableOptions
from calibrant.io.delimited import (
    DelimitedText,
    Dialect,
    format_delimited,
    map_texts,
    mark_duplicate_names,
    read_delimited,
)
from calibrant.io.encoding import parse_json_lines, read_decompressed, to_utf8, write_compressed
from calibrant.io.files import list_table_files
from calibrant.io.formats import BY_SUFFIX, format_suffix
from calibrant.io.number_text import replace_missing_words
from calibrant.types import InputError


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


def read_table(path: str | Path, options: TableOptions | None = None) -> LoadedTable:
    """Read a table: a file, or all files of a folder or of a pattern such as `part-*.parquet`."""
    options = options or TableOptions()
    files = list_table_files(path)
    parts = [call_reader(file, partial(_read_file, file, options), path) for file in files]
    frames = [part.frame for part in parts]
    # Relaxed: a column may be integers in one file and fractions in the next
    frame = polars.concat(align_columns(frames), how="vertical_relaxed") if len(frames) > 1 else frames[0]
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    delimited = [text for part in parts for text in part.delimited]
    return LoadedTable(replace_missing_words(frame, options.na), tuple(notes), delimited)


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
    try:
        return reader()
    except InputError as error:
        if source is None or Path(source) == path:
            raise
        raise InputError(f"{path.name}: {error}", code=error.code) from None
    except BaseException as error:
        # Polars raises PanicException, which is no Exception; others of that kind, such as KeyboardInterrupt, pass
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        kind = f"{format_suffix(path)} file".strip() if path.is_file() else "table"
        raise InputError(
            f"Expected a readable {kind}, got an error ({describe_error(error)}).", code="unreadable"
        ) from None


def align_columns(frames: list[Any]) -> list[Any]:
    """Return frames with columns in the order of the first, or raise `InputError` if they have other columns."""
    columns = [frame.collect_schema().names() for frame in frames]
    if differing := sorted(set().union(*columns) - set(columns[0]).intersection(*columns)):
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
    """Return a column of a pandas frame as a polars series, with nulls for all kinds of missing values.

    Polars itself would need pyarrow.
    """
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "biuf":
        return polars.Series(name, column.to_numpy())
    cells = column.astype(object).where(column.notna(), None).tolist()
    series = polars.Series(name, cells, strict=False)
    if series.dtype == polars.Object:  # such as periods
        return polars.Series(name, [None if cell is None else str(cell) for cell in cells])
    return series


# Spelling of delimited text


def restore_spelling(table: LoadedTable, columns: Columns) -> Any:
    """Return the frame of a table, with labels and groups spelled as in the file where numbers lose the spelling.

    Labels that are names of classes stay texts, such as 1.0 beside a column prob_1.0, and so do groups such as 007.
    Apostrophes that protect from formulas are removed.
    """
    restored = [_restore_column(table, name, None) for name in (columns.group, columns.id) if name is not None]
    if columns.label is not None and columns.names is not None:
        restored.insert(0, _restore_column(table, columns.label, columns.names))
    return table.frame.with_columns(column for column in restored if column is not None)


def _restore_column(table: LoadedTable, name: str, classes: Sequence[str] | None) -> Any:
    """Return a column as its cells are spelled in the file, or None to keep the column as it was read.

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
    if classes is None:
        is_spelled_alike = column.dtype == polars.String or bool((column.cast(polars.String) == texts).all())
        restored = None if is_spelled_alike and unescaped == spelled else unescaped
    else:  # the first spelling in which all labels are names of classes
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
    try:
        frame = polars.read_ndjson(io.BytesIO(content), infer_schema_length=None)
    except Exception:
        # Names the line, unless it is polars alone that cannot read it, such as the NaN that Python's json writes
        frame = polars.DataFrame(parse_json_lines(content), infer_schema_length=None)
    else:
        # Polars reads the first value of a repeated key. With a colon per value, no line can repeat one
        if content.count(b":") > sum(column.count() for column in frame):
            parse_json_lines(content)
    return LoadedTable(frame, notes)


# Writers


def write_text(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write delimited text."""
    write_compressed(format_delimited(frame, dialect or Dialect()), path)


def write_tab_separated(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write text with tabs, whatever the separator of the dialect."""
    write_text(frame, path, Dialect("\t", dialect is not None and dialect.decimal_comma))


def write_jsonl(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write a JSON object per line, with infinite numbers as texts, because JSON has none."""
    infinite_columns = [
        name for name, kind in frame.schema.items() if kind.is_float() and frame[name].is_infinite().any()
    ]
    write_compressed(frame.with_columns(polars.col(infinite_columns).cast(polars.String)).write_ndjson(), path)


def to_safe_csv(frame: Any) -> str:
    """Return a polars frame as CSV whose texts no spreadsheet takes for formulas."""
    return map_texts(frame, escape_cell).write_csv()
