"""Read and write the arrays of predictions, in any format, whole or some rows at a time."""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.files import atomic_write, format_suffix, is_exception
from calibrant._core.lazy import polars
from calibrant._core.text import describe_error
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.arrays import Arrays, ChunkedFile
from calibrant.io.cells import replace_missing_words
from calibrant.io.columns import Columns, TableOptions
from calibrant.io.delimited import Dialect
from calibrant.io.files import check_file, list_table_files
from calibrant.io.formats import BY_SUFFIX, CHUNKED_SUFFIXES, format_of, get_writer
from calibrant.io.frames import apply_options, check_weights, frame_to_arrays
from calibrant.io.logs import is_log, read_arrays
from calibrant.io.roles import infer_columns, leave_out_empty_labels, require_labels
from calibrant.io.tables import align_columns, call_reader, read_table, restore_spelling
from calibrant.predictions.validation.weights import FRACTIONS_NOTE, IMPORTANCE

CHUNK_BYTES = 64 << 20  # of float64 numbers


def read(path: str | Path, options: TableOptions | None = None, *, needs_labels: bool = True) -> Arrays:
    """Read the arrays of a file, a folder or pattern of tables, or evaluation logs.

    Args:
        path: The file, folder or pattern.
        options: Roles of columns, and the meaning of cells.
        needs_labels: Whether tables must have labels.

    Raises:
        InputError: If the path cannot be read as predictions.
    """
    path, options = Path(path), options or TableOptions()
    if is_log(path):
        return read_arrays(path, options)
    file_format = format_of(path)
    if file_format is not None and not file_format.is_table and not path.is_dir():  # a file of arrays
        check_file(path, BY_SUFFIX)
        if options.columns:
            raise InputError(
                f"Expected no roles of columns for the arrays of a {format_suffix(path)} file, got "
                f"{', '.join(options.columns)}. Try without.",
                code="no_columns",
            )
        return apply_options(call_reader(path, lambda: file_format.read(path)), options)
    table = read_table(path, options)
    columns = infer_columns(table.frame, options)
    if needs_labels:
        require_labels(columns, table.frame)
    else:
        columns = leave_out_empty_labels(columns, table.frame)
    arrays = frame_to_arrays(restore_spelling(table, columns), columns, options)
    return arrays | {"notes": (*table.notes, *arrays["notes"])}


def write(
    path: str | Path,
    arrays: Mapping[str, Any],
    names: Mapping[str, Sequence[str]] | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write logits, labels and other arrays as `read` finds them.

    Args:
        path: The file, which is replaced at once, or not at all.
        arrays: Tensors by name.
        names: Names of classes and groups.
        check: Called with the finished draft before it replaces the file; an exception leaves the old file.
    """
    with _open_draft(path) as (draft, writer):
        file_format = BY_SUFFIX[format_suffix(path)]
        if file_format.is_table:
            writer(_arrays_to_frame(arrays, names or {}, as_float64=file_format.has_decimal_text), draft, None)
        else:
            writer(arrays, names or {}, draft)
        if check is not None:
            check(draft)


def write_table(path: str | Path, frame: Any, dialect: Dialect | None = None) -> None:
    """Write a polars frame in the format of the path's suffix. Only delimited text has a `dialect`."""
    with _open_draft(path) as (draft, writer):
        writer(frame, draft, dialect)


@contextmanager
def _open_draft(path: str | Path) -> Generator[tuple[Path, Callable[..., None]], None, None]:
    """Yield the path of a draft that replaces `path` at the end, and the writer of its format.

    Exceptions of other libraries become `InputError`.
    """
    writer = get_writer(path)
    try:
        with atomic_write(path) as draft:
            yield draft, writer
    except (InputError, OSError):
        raise
    except BaseException as error:
        if not is_exception(error):
            raise
        raise InputError(
            f"Cannot write {path} ({describe_error(error)}). Try another format.", code="not_writable"
        ) from None


def _arrays_to_frame(arrays: Mapping[str, Any], names: Mapping[str, Sequence[str]], *, as_float64: bool) -> Any:
    """Return the arrays of predictions as a polars frame, with the names of columns that `read` finds.

    Args:
        arrays: Tensors by name.
        names: Names of classes and groups.
        as_float64: Write logits in float64, whose decimal text holds the exact values of float32.
    """
    logits, class_names = arrays["logits"].numpy(), names.get("class_names")
    logits = logits.astype(np.float64) if as_float64 else logits
    suffixes = class_names or tuple(map(str, range(logits.shape[1])))
    columns: dict[str, Any] = {f"logit_{suffix}": logits[:, i] for i, suffix in enumerate(suffixes)}
    if "labels" in arrays:
        labels = arrays["labels"].numpy()
        columns["label"] = labels if class_names is None else _take_names(labels, class_names)
    columns |= {name: arrays[name].numpy() for name in ("weights", "clusters") if name in arrays}
    if "groups" in arrays:
        columns["group"] = _take_names(arrays["groups"].numpy(), names["group_names"])
    if "ids" in arrays:
        columns["id"] = arrays["ids"]
    return polars.DataFrame(columns)


def _take_names(indices: np.ndarray, names: Sequence[str]) -> Any:
    """Return the name of each index as a polars series of strings."""
    return polars.Series(list(names), dtype=polars.String)[indices]


# Reading in chunks


def open_chunked(path: str | Path, options: TableOptions) -> ChunkedFile:
    """Open a file, or the tables of a folder or pattern, to be read in chunks."""
    path = Path(path)
    file_format = format_of(path)
    files = [path] if file_format is not None and not file_format.is_table else list_table_files(path)
    check_file(files[0], CHUNKED_SUFFIXES)
    file_format = BY_SUFFIX[format_suffix(files[0])]
    if file_format.is_table:
        return call_reader(path, lambda: _open_tables(files, options))
    file: ChunkedFile = call_reader(path, lambda: file_format.open_chunked(path))
    if file.has_fractional_weights and options.weights_are is None:  # in every chunk, whatever its own weights
        options = replace(options, weights_are=IMPORTANCE)
    return replace(file, read=lambda rows: apply_options(file.read(rows), options))


def exceeds_memory(file: ChunkedFile, floats_per_row: int, max_bytes: float | None = None) -> bool:
    """Whether a file, with `floats_per_row` float64 numbers per row, exceeds `max_bytes` in memory.

    By default, `max_bytes` is a quarter of the free memory.
    """
    limit = _available_memory() / 4 if max_bytes is None else max_bytes
    return 8 * file.num_rows * floats_per_row > limit


def _available_memory() -> float:
    """Return the free memory in bytes, or infinity if the system does not tell."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return 1024.0 * int(lines["MemAvailable"].split()[0])  # from a line such as MemAvailable: 8000 kB
    except (OSError, KeyError, ValueError):
        return math.inf


def read_chunks(path: str | Path, rows: int | None, options: TableOptions) -> Iterator[tuple[slice, Arrays]]:
    """Read arrays in chunks of `rows` samples, or of about 64 MB, with a thread that reads one chunk ahead.

    Yields:
        The rows of the file that a chunk was read from, and its arrays, from which incomplete rows may be left out.

    Raises:
        InputError: As `open_chunked`, or for the rows of a chunk. Messages begin with the path.
    """
    with prefix_errors(f"{path}"):
        file = open_chunked(path, options)
    rows_per_chunk = rows or max(1, CHUNK_BYTES // (8 * max(1, file.numbers_per_row)))  # a float64 has 8 bytes
    starts = range(0, file.num_rows, rows_per_chunk)
    chunks = [slice(start, min(start + rows_per_chunk, file.num_rows)) for start in starts]
    with ThreadPoolExecutor(1) as reader:
        pending: Future[Arrays] | None = None
        for chunk, next_chunk in zip_longest(chunks, chunks[1:]):  # None after the last chunk
            pending = pending or reader.submit(file.read, chunk)
            with prefix_errors(describe_chunk(path, chunk)):
                arrays = call_reader(Path(path), pending.result)
            # Only now, so that nothing is read after a failure
            pending = None if next_chunk is None else reader.submit(file.read, next_chunk)
            yield chunk, arrays


def describe_chunk(path: str | Path, chunk: slice) -> str:
    """Return the path and the rows of a chunk, counted from 0 in the whole file, as the beginning of errors."""
    return f"{path}: rows {chunk.start} .. {chunk.stop - 1}"


def _open_tables(files: list[Path], options: TableOptions) -> ChunkedFile:
    """Open tables with the same columns, to be read in chunks as one table, one file after the other."""
    scans = [BY_SUFFIX[format_suffix(file)].open_chunked(file) for file in files]
    if len(scans) > 1:
        scans = align_columns(scans)
        # A column may be integers in one file and fractions in the next
        common_types = dict(polars.concat(scans, how="vertical_relaxed").collect_schema())
        scans = [scan.cast(common_types) for scan in scans]
    lengths = polars.collect_all([scan.select(polars.len()) for scan in scans])
    row_ends = np.cumsum([int(length.item()) for length in lengths])  # number of rows up to the end of each file
    n = int(row_ends[-1])
    head = polars.concat(scans).head(1).collect()  # one row shows the types of columns and the length of lists
    columns = infer_columns(head, options, has_all_rows=False)
    note = f"Read {n:,} rows in chunks: {columns.description}"
    if columns.weight is not None:
        weights = polars.col(columns.weight).cast(polars.Float64).fill_nan(None)  # a missing weight is refused later
        statistics = weights.sum().alias("sum"), weights.count(), (weights % 1 != 0).any().alias("fractional")
        total, count, is_fractional = polars.concat(scans).select(*statistics).collect().row(0)
        note += f" {check_weights(columns, float(total), count, has_all_rows=True)}"
        if (
            is_fractional and options.weights_are is None and columns.cluster is None
        ):  # in every chunk, whatever its own weights
            options, note = replace(options, weights_are=IMPORTANCE), f"{note} {FRACTIONS_NOTE}"

    def read_chunk(rows: slice) -> Arrays:
        """Return the arrays of some rows of all tables, of which only those with these rows are opened."""
        # Not when the table is opened: one that turns out to fit in memory is read whole, which explains its labels
        _check_labels(columns, head, options)
        first_file, last_file = np.searchsorted(row_ends, [rows.start, rows.stop - 1], side="right")
        rows_before = int(row_ends[first_file - 1]) if first_file else 0  # in the files before the first
        files_with_rows = polars.concat(scans[first_file : last_file + 1])
        frame = files_with_rows.slice(rows.start - rows_before, rows.stop - rows.start).collect()
        return frame_to_arrays(replace_missing_words(frame, options.na), columns, options, has_all_rows=False)

    # A column of lists has as many numbers per row as the list in the first row, which may be missing
    lists = [head[name].to_list()[0] for name in columns.scores if n and head[name].dtype.is_nested()]
    numbers_per_row = sum(map(len, filter(None, lists))) or max(1, len(columns.scores))
    return ChunkedFile(n, numbers_per_row, read_chunk, (note,))


def _check_labels(columns: Columns, head: Any, options: TableOptions) -> None:
    """Raise `InputError` for labels that cannot be read from a chunk alone, because it may lack some classes.

    These are several labels per row; words without class names in the columns; and labels beside a single score that is
    named after a class other than 1. The last two can be read if the caller chose the positive class.
    """
    require_labels(columns, head)
    dtype = None if columns.label is None else head[columns.label].dtype
    has_text_labels = dtype is not None and not (dtype.is_numeric() or dtype.is_nested() or dtype == polars.Boolean)
    has_named_score = columns.positive not in (None, "1")
    # Without a kind of scores, there are confidences of answers
    are_classes_known = columns.names is not None or not columns.kind or options.positive is not None
    if columns.labels or (not are_classes_known and (has_text_labels or has_named_score)):
        raise InputError(
            "Expected labels that a single chunk explains, got words or several labels. Try numbers from 0, or columns "
            "with class names, such as prob_cat and prob_dog.",
            code="whole_only",
        )
