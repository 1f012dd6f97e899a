"""Predictions from files, tables and arrays, and back. `Predictions.load` and its siblings call this module."""

import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.files import atomic_write, format_suffix, is_exception
from calibrant._core.lazy import polars
from calibrant._core.text import describe_error
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.cells import replace_missing_words
from calibrant.io.column_roles import Columns, TableOptions
from calibrant.io.contents import Chunk, ChunkedFile, Contents, missing_scores_error
from calibrant.io.delimited import Dialect
from calibrant.io.files import check_file, list_table_files
from calibrant.io.formats import BY_SUFFIX, CHUNKED_SUFFIXES, format_of, get_writer, is_table
from calibrant.io.frames import (
    apply_options,
    check_incomplete,
    check_weights,
    frame_to_chunk,
    frame_to_contents,
    incomplete_notes,
)
from calibrant.io.logs import is_log, read_log
from calibrant.io.role_inference import infer_columns, leave_out_empty_labels, require_labels
from calibrant.io.tables import align_columns, as_frame, call_reader, restore_spelling
from calibrant.io.tables import read_table as read_table_file
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS
from calibrant.predictions.validation.scores import SingleScoreEvidence
from calibrant.predictions.validation.weights import FRACTIONS_NOTE, IMPORTANCE, resolve_weights_are

AMBIGUOUS_NAMES = "na|nan|null|none|nil|missing|inf|infinity|true|false|.*_duplicated_.*"
PORTABLE_NAME = re.compile(rf"(?!(?i:{AMBIGUOUS_NAMES})$)[^\W\d]\w*([ .-]\w+)*")  # reads back from any format
MIN_SCORES_TO_REFUSE_EARLY = 1000  # single scores in [0, 1] that refuse a chunk before the last one is read
CHUNK_BYTES = 64 << 20  # of float64 numbers


def read_table(table: Any, ignore_index: int | None, of: Any, **options: Any) -> Predictions:
    """Read a table in memory for `Predictions.from_table`."""
    table_options = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    frame = replace_missing_words(as_frame(table), table_options.na)
    columns = infer_columns(frame, table_options)
    require_labels(columns, frame)
    contents = frame_to_contents(frame, columns, table_options)
    return contents.to_predictions(ignore_index, of, are_logits=table_options.are_logits)


class LoadedFile(NamedTuple):
    """The content of a file of predictions."""

    predictions: Predictions
    has_labels: bool  # if not, the labels are 0
    ids: list[Any] | None  # of the rows, None where one is missing; None without an id per row of the predictions


def read_file(
    path: str | Path, ignore_index: int | None = None, of: Any = None, *, needs_labels: bool = True, **options: Any
) -> LoadedFile:
    """Read a file, a folder or a pattern for `Predictions.load`.

    Args:
        path: The file, folder or pattern.
        ignore_index: Label of positions to leave out.
        of: Event to evaluate; None: see `Contents.to_predictions`.
        needs_labels: Whether to refuse a file without labels. Otherwise missing labels become 0.
        **options: Options for tables and logs, as `TableOptions.from_keywords` takes them.
    """
    table_options = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    with prefix_errors(f"{path}"):
        contents = read_contents(path, table_options, needs_labels=needs_labels)
        labeled = contents if needs_labels else contents.with_labels()
        p = labeled.to_predictions(ignore_index, of, are_logits=table_options.are_logits)
    ids = None if contents.ids is None else list(contents.ids)
    return LoadedFile(p, contents.labels is not None, ids if ids is not None and len(ids) == len(p) else None)


def read_contents(path: str | Path, options: TableOptions, *, needs_labels: bool = True) -> Contents:
    """Read the contents of a file, a folder or pattern of tables, or evaluation logs.

    Args:
        path: The file, folder or pattern.
        options: Roles of columns, and the meaning of cells.
        needs_labels: Whether tables must have labels.

    Raises:
        InputError: If the path cannot be read as predictions.
    """
    path = Path(path)
    if is_log(path):
        return read_log(path, options)
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
    table = read_table_file(path, options)
    columns = infer_columns(table.frame, options)
    if needs_labels:
        require_labels(columns, table.frame)
    else:
        columns = leave_out_empty_labels(columns, table.frame)
    contents = frame_to_contents(restore_spelling(table, columns), columns, options)
    return replace(contents, notes=(*table.notes, *contents.notes))


# Reading in chunks


def read_chunks(
    path: str | Path,
    rows: int | None,
    ignore_index: int | None,
    of: Any,
    on_note: Callable[[str], object] | None = None,
    **options: Any,
) -> Iterator[Predictions]:
    """Yield the predictions in each chunk of rows of a file, for `Predictions.load_chunks`."""
    table_options = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
    num_classes, rows_read = 0, 0  # 0 classes before the first chunk
    incomplete = Counter[str]()
    evidence = SingleScoreEvidence()  # that single logits are probabilities by mistake
    for chunk, (contents, incomplete_rows) in read_content_chunks(path, rows, table_options):
        rows_read = chunk.stop
        incomplete += incomplete_rows
        if contents is None:
            continue
        with prefix_errors(f"{path}"):
            if contents.labels is None:
                raise missing_scores_error(contents.keys)
        if ignore_index is not None and bool((np.asarray(contents.labels) == ignore_index).all()):
            continue  # predictions without rows would be refused
        with prefix_errors(describe_chunk(path, chunk)):
            # A chunk alone does not refuse logits that look like probabilities: the evidence of all chunks does
            p = contents.to_predictions(ignore_index, of, are_logits=True)
            if not table_options.are_logits and contents.has_single_logits:
                evidence.add_pairs(p.logits).check("the key 'probs' or --probs", min_scores=MIN_SCORES_TO_REFUSE_EARLY)
        if num_classes not in (0, p.k):
            raise InputError(
                f"{path}: Expected {num_classes} classes in every row, got {p.k} from row {chunk.start} on.",
                code="num_classes",
            )
        num_classes = p.k
        yield p
    with prefix_errors(f"{path}"):
        check_incomplete(incomplete, rows_read)
    if on_note is not None:
        for note in incomplete_notes(incomplete):
            on_note(note)
    if num_classes == 0:  # no chunk, or ignored labels only
        raise InputError(f"{path}: Expected at least one sample, got none.", code="no_rows")
    evidence.check("the key 'probs' or --probs")


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

    def read_chunk(rows: slice) -> Chunk:
        """Return some rows of a file of arrays, read by the options."""
        contents, incomplete = file.read(rows)
        return Chunk(None if contents is None else apply_options(contents, options), incomplete)

    return replace(file, read=read_chunk)


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


def read_content_chunks(path: str | Path, rows: int | None, options: TableOptions) -> Iterator[tuple[slice, Chunk]]:
    """Read contents in chunks of `rows` samples, or of about 64 MB, with a thread that reads one chunk ahead.

    Yields:
        The rows of the file that a chunk was read from, and the chunk, from which incomplete rows may be left out.

    Raises:
        InputError: As `open_chunked`, or for the rows of a chunk. Messages begin with the path.
    """
    with prefix_errors(f"{path}"):
        file = open_chunked(path, options)
    rows_per_chunk = rows or max(1, CHUNK_BYTES // (8 * max(1, file.numbers_per_row)))  # a float64 has 8 bytes
    starts = range(0, file.num_rows, rows_per_chunk)
    chunks = [slice(start, min(start + rows_per_chunk, file.num_rows)) for start in starts]
    with ThreadPoolExecutor(1) as reader:
        pending: Future[Chunk] | None = None
        for chunk, next_chunk in zip_longest(chunks, chunks[1:]):  # None after the last chunk
            pending = pending or reader.submit(file.read, chunk)
            with prefix_errors(describe_chunk(path, chunk)):
                content = call_reader(Path(path), pending.result)
            # Only now, so that nothing is read after a failure
            pending = None if next_chunk is None else reader.submit(file.read, next_chunk)
            yield chunk, content


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
        if is_fractional and options.weights_are is None and columns.cluster is None:
            # In every chunk, whatever its own weights
            options, note = replace(options, weights_are=IMPORTANCE), f"{note} {FRACTIONS_NOTE}"

    def read_chunk(rows: slice) -> Chunk:
        """Return some rows of all tables, of which only those with these rows are opened."""
        # Not when the table is opened: one that turns out to fit in memory is read whole, which explains its labels
        _check_labels(columns, head, options)
        first_file, last_file = np.searchsorted(row_ends, [rows.start, rows.stop - 1], side="right")
        rows_before = int(row_ends[first_file - 1]) if first_file else 0  # in the files before the first
        files_with_rows = polars.concat(scans[first_file : last_file + 1])
        frame = files_with_rows.slice(rows.start - rows_before, rows.stop - rows.start).collect()
        return frame_to_chunk(replace_missing_words(frame, options.na), columns, options)

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


# Writing


def write_file(p: Predictions, path: str | Path, *, with_labels: bool = True, ids: Any = None) -> None:
    """Write predictions for `Predictions.save`.

    Names that a format may change, such as "1.0" or " a", are checked by reading the file back.

    Args:
        p: The predictions.
        path: The file, which is replaced only if writing succeeds.
        with_labels: Whether to write the labels.
        ids: Ids of the rows to write, None without ids.

    Raises:
        InputError: If the format cannot hold the predictions.
    """
    if p.row_groups is not None:
        raise InputError(
            "Expected predictions without row_groups, which files cannot hold. Try saving the scores, targets and "
            "groups as a table with one row per sample.",
            code="row_groups",
        )
    if p.examples is not None and is_table(path):
        raise InputError(
            "Expected labels that are classes in a table, got soft labels or fractional outcomes. Try .npz or "
            ".safetensors.",
            code="soft_labels",
        )
    of, k = p.of, p.k
    if is_table(path) and of != "top" and (of, k) != (1, 2):
        raise InputError(
            f"Expected predictions of the top class in a table, which holds no event, got of={of!r}. Try .npz or "
            '.safetensors, or with_event("top").',
            code="event_in_table",
        )
    portable_names = [*(p.class_names or ()), *(p.group_names or ())]
    is_portable = all(map(PORTABLE_NAME.fullmatch, portable_names))

    def check(draft: Path) -> None:
        """Raise `InputError` unless the written file reads back as it was."""
        try:
            loaded = read_file(draft, needs_labels=False).predictions
            is_exact = _is_read_back_exactly(p, loaded, with_labels=with_labels)
        except InputError:
            is_exact = False
        if not is_exact:
            raise InputError(
                f"{path}: Expected class and group names that this format can hold, got names that read back "
                "differently. Try .safetensors or .npz, or other names.",
                code="not_exact",
            )

    default_event = 1 if p.class_names in BINARY_EVENTS else "top"  # of a file that names none
    contents = Contents(
        "logits",
        to_numpy(p.logits),
        p.labels if with_labels else None,
        weights=p.weights,
        clusters=p.clusters,
        groups=p.groups,
        examples=p.examples,
        ids=ids,
        class_names=p.class_names,
        group_names=p.group_names,
        event=None if of == default_event else str(of),
        weights_are=None if p.weights_are == resolve_weights_are(None, p.weights, p.clusters) else p.weights_are,
    )
    with _open_draft(path) as (draft, writer):
        file_format = BY_SUFFIX[format_suffix(path)]
        if file_format.is_table:
            writer(_contents_to_frame(contents, as_float64=file_format.has_decimal_text), draft, None)
        else:
            writer(contents, draft)
        if not is_portable:
            check(draft)


def _is_read_back_exactly(saved: Predictions, loaded: Predictions, *, with_labels: bool) -> bool:
    """Whether loaded predictions equal the saved ones, except for the order of classes and the dtype of the logits."""
    numbers = tuple(map(str, range(loaded.k)))
    names, loaded_names = saved.class_names or numbers, loaded.class_names or numbers
    if loaded.logits.shape != saved.logits.shape or {*loaded_names} != {*names}:
        return False
    columns = np.array([loaded_names.index(name) for name in names])  # the loaded class of each saved one
    saved_classes = columns.argsort()  # the inverse: the saved class of each loaded one
    has_equal_labels = not with_labels or np.array_equal(saved_classes[loaded.labels], saved.labels)
    has_equal_logits = np.array_equal(loaded.logits[:, columns].astype(float), to_numpy(saved.logits).astype(float))
    return has_equal_labels and has_equal_logits and _group_name_list(saved) == _group_name_list(loaded)


def _group_name_list(p: Predictions) -> list[str]:
    """Return the group name of every sample, [] without groups."""
    return [] if p.groups is None or p.group_names is None else [p.group_names[i] for i in p.groups.tolist()]


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


def _contents_to_frame(contents: Contents, *, as_float64: bool) -> Any:
    """Return contents as a polars frame, with the names of columns that `read_contents` finds.

    With `as_float64`, logits are written in float64, whose decimal text holds the exact values of float32.
    """
    logits, class_names = contents.scores, contents.class_names
    logits = logits.astype(np.float64) if as_float64 else logits
    suffixes = class_names or tuple(map(str, range(logits.shape[1])))
    columns: dict[str, Any] = {f"logit_{suffix}": logits[:, i] for i, suffix in enumerate(suffixes)}
    if contents.labels is not None:
        columns["label"] = contents.labels if class_names is None else _take_names(contents.labels, class_names)
    if contents.weights is not None:
        columns["weights"] = contents.weights
    if contents.clusters is not None:
        columns["clusters"] = contents.clusters
    if contents.groups is not None:
        columns["group"] = _take_names(contents.groups, contents.group_names)
    if contents.ids is not None:
        columns["id"] = contents.ids
    return polars.DataFrame(columns)


def _take_names(indices: np.ndarray, names: Sequence[str]) -> Any:
    """Return the name of each index as a polars series of strings."""
    return polars.Series(list(names), dtype=polars.String)[indices]
