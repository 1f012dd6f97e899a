"""Files: every reader, whole or in pieces, every writer, and writing so that a kill leaves the old file or the new."""

import fnmatch
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._text import escape_cell, to_one_line, unescape_column
from calibrant.io.cells import apply_options, check_weights, frame_to_arrays
from calibrant.io.columns import Columns, TableOptions
from calibrant.io.delimited import Dialect, replace_missing_words
from calibrant.io.formats import (
    NAME_LIST_KEYS,
    Table,
    find_npy_labels,
    read_arrow,
    read_jsonl,
    read_metadata_texts,
    read_npy,
    read_npz,
    read_parquet,
    read_safetensors,
    read_text,
    read_torch,
    read_workbook,
    select_arrays,
    write_arrow,
    write_jsonl,
    write_npz,
    write_parquet,
    write_safetensors,
    write_text,
    write_workbook,
)
from calibrant.io.roles import infer_columns, require_labels
from calibrant.types import InputError

CHUNK_BYTES = 64 << 20  # of numbers in float64 in one piece
Arrays = Mapping[str, Any]  # by name: logits or probs, labels, weights, clusters, groups, names


# Writing


@contextmanager
def atomic_write(path: str | Path) -> Generator[Path, None, None]:
    """Give a path beside `path` to write to; on leaving without an error it takes the place of `path` at once.

    A kill at any moment leaves the old file or the new one, never half of either. Raises `InputError` if the folder
    cannot be written to.
    """
    path = Path(path)
    ensure_writable(path)
    with _exit_on_signals():
        handle, name = tempfile.mkstemp(prefix=f".{path.stem[:50]}-", suffix=format_suffix(path), dir=path.parent)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            apply_umask(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def _exit_on_signals() -> Generator[None, None, None]:
    """Turn signals that would end the process at once into `SystemExit`, so that drafts are removed first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    exit_signals = [
        signal_number
        for signal_number in (signal.SIGTERM, getattr(signal, "SIGHUP", None))
        if signal_number is not None
    ]
    replaced_signals = [
        signal_number for signal_number in exit_signals if signal.getsignal(signal_number) is signal.SIG_DFL
    ]
    for signal_number in replaced_signals:
        signal.signal(signal_number, _handle_exit_signal)
    try:
        yield
    finally:
        for signal_number in replaced_signals:
            signal.signal(signal_number, signal.SIG_DFL)


def _handle_exit_signal(signal_number: int, _: object) -> None:
    sys.exit(128 + signal_number)


def ensure_writable(path: str | Path) -> Path:
    """Make sure, before any work is done, that a file can be written at `path`; makes its folder.

    Raises `InputError` with the reason otherwise.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give a file name in it", code="is_folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder", code="not_writable") from None
    return path


def check_outputs(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Make sure that no output replaces an input or another output, or would be read with the inputs next time.

    Inputs may be files, folders of tables and patterns. Raises `InputError` otherwise.
    """
    sources = [Path(path) for path in inputs if path is not None]
    input_files = [file for source in sources for file in _list_input_files(source)]
    output_files: list[Path] = []
    for path in map(Path, filter(None, outputs)):
        if any(is_same_file(path, file) for file in input_files):
            raise InputError(f"cannot write {path}: this command reads it; choose another name", code="output_is_input")
        if source := next((source for source in sources if _matches_source(path, source)), None):
            raise InputError(
                f"cannot write {path}: {source} would include it the next time; choose another folder or name",
                code="output_among_inputs",
            )
        if any(is_same_file(path, output_file) for output_file in output_files):
            raise InputError(f"cannot write {path} twice; choose another name for one of them", code="output_twice")
        output_files.append(path)


def _list_input_files(source: Path) -> list[Path]:
    """Return every file that a command reads when it is given `source`: a file, folder, pattern or Python package."""
    if source.is_dir():
        return [file for file in source.iterdir() if format_suffix(file) in TABLE_FORMATS]
    if is_pattern(source):
        return list_matching_files(source)
    return [source, *_label_files(source)]


def _matches_source(path: Path, source: Path) -> bool:
    """Whether a new file at `path` would be one of the tables of a folder or pattern."""
    if source.is_dir():
        return is_same_file(path.parent, source) and is_visible_table(path)
    if not is_pattern(source) or not is_same_file(path.parent, source.parent):
        return False
    name, pattern = path.name, source.name
    if is_case_insensitive(source.parent):
        name, pattern = name.casefold(), pattern.casefold()
    return fnmatch.fnmatchcase(name, pattern) and is_visible(path, source)


def is_same_file(first: Path, second: Path) -> bool:
    """Whether two paths lead to the same file."""
    try:
        return first.samefile(second)
    except OSError:  # one of them does not exist
        first, second = first.resolve(), second.resolve()
        return first == second or (
            str(first).casefold() == str(second).casefold() and is_case_insensitive(first.parent)
        )


def is_case_insensitive(folder: Path) -> bool:
    """Whether names that differ in case only are one file in the nearest folder that exists."""
    folder = next((ancestor for ancestor in (folder, *folder.parents) if ancestor.is_dir()), Path()).resolve()
    while folder.name and folder.name == folder.name.swapcase():  # without letters, as 2024
        folder = folder.parent
    try:
        return folder.with_name(folder.name.swapcase()).samefile(folder)
    except (OSError, ValueError):
        return False


def _label_files(path: Path) -> list[Path]:
    """Return the files of labels that are read with a .npy file of logits or probs."""
    return (
        [find_npy_labels(path)[1]] if format_suffix(path) == ".npy" and path.stem.endswith(("logits", "probs")) else []
    )


def apply_umask(path: Path) -> None:
    """Set the permissions that the umask leaves to a new file or folder; temporary ones are for their owner only."""
    path.chmod((0o777 if path.is_dir() else 0o666) & ~_read_umask())


def _read_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def to_safe_csv(frame: Any) -> str:
    """Return a polars frame as CSV whose texts no spreadsheet takes for formulas."""
    import polars

    def escape_column(column: Any) -> Any:
        texts = [None if text is None else escape_cell(text) for text in column]
        return polars.Series(column.name, texts, polars.String)

    texts = [name for name, kind in frame.schema.items() if kind == polars.String]
    return frame.with_columns(escape_column(frame[name]) for name in texts).write_csv()


def write(
    path: str | Path,
    arrays: Mapping[str, Any],
    names: Mapping[str, Sequence[str]] | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write logits, labels and other arrays as .npz, .safetensors or a table, as `read` finds them.

    `names` are those of classes and groups. `check` is called with the finished draft, before it replaces the file;
    what it raises leaves the old one.
    """
    with _open_draft(path) as (draft, writer):
        file_format = FORMATS[format_suffix(path)]
        if file_format.is_table:
            writer(_arrays_to_frame(arrays, names or {}, as_float64=file_format.has_decimal_text), draft, None)
        else:
            writer(arrays, names or {}, draft)
        if check is not None:
            check(draft)


def write_table(path: str | Path, frame: Any, dialect: Dialect | None = None) -> None:
    """Write a polars frame in the format of the path's suffix; `dialect` says how text is spelled."""
    with _open_draft(path) as (draft, writer):
        writer(frame, draft, dialect)


@contextmanager
def _open_draft(path: str | Path) -> Generator[tuple[Path, Callable[..., None]], None, None]:
    """Give a draft and the writer of its format; errors of libraries become `InputError`, and leave the old file."""
    writer = get_writer(path)
    try:
        with atomic_write(path) as draft:
            yield draft, writer
    except (InputError, OSError):
        raise
    except Exception as error:  # of any library
        reason = to_one_line(error)
        raise InputError(f"cannot write {path} ({type(error).__name__}: {reason})", code="not_writable") from None


def get_writer(path: str | Path) -> Callable[..., None]:
    """Return the writer of a path's format; raises `InputError` where it cannot be written."""
    writers = {suffix: file_format.write for suffix, file_format in FORMATS.items() if file_format.write is not None}
    if (suffix := format_suffix(path)) not in writers:
        raise InputError(
            f"cannot write {path}: expected one of {', '.join(writers)}, got {suffix or 'no suffix'!r}", code="suffix"
        )
    return writers[suffix]


def _arrays_to_frame(arrays: Mapping[str, Any], names: Mapping[str, Sequence[str]], *, as_float64: bool) -> Any:
    """Return arrays as columns; `exact` if text must hold the very numbers that float32 logits stand for."""
    import polars

    logits, classes = arrays["logits"].numpy(), names.get("class_names")
    logits = logits.astype(np.float64) if as_float64 else logits
    class_names = classes or tuple(map(str, range(logits.shape[1])))
    columns: dict[str, Any] = {f"logit_{name}": logits[:, i] for i, name in enumerate(class_names)}
    if "labels" in arrays:
        labels = arrays["labels"].numpy()
        columns["label"] = labels if classes is None else _take_names(labels, classes)
    columns |= {name: arrays[name].numpy() for name in ("weights", "clusters") if name in arrays}
    if "groups" in arrays:
        columns["group"] = _take_names(arrays["groups"].numpy(), names["group_names"])
    if "ids" in arrays:
        columns["id"] = arrays["ids"]
    return polars.DataFrame(columns)


def _take_names(codes: np.ndarray, names: Sequence[str]) -> Any:
    import polars

    return polars.Series(list(names), dtype=polars.String)[codes]


# Reading


def read(path: str | Path, options: TableOptions | None = None, *, needs_labels: bool = True) -> Arrays:
    """Read the arrays of a file whole, or of all tables of a folder or pattern.

    `options` say how tables are read; `labeled` tables must have labels. Raises `InputError` with the reason if there
    is nothing to read.
    """
    options = options or TableOptions()
    if (suffix := format_suffix(path)) in FORMATS and not FORMATS[suffix].is_table and not Path(path).is_dir():
        path = Path(path)
        check_file(path, FORMATS)
        if options.columns:
            raise InputError(
                f"a {suffix} file has arrays, no columns: leave out {', '.join(options.columns)}", code="no_columns"
            )
        return apply_options(call_reader(path, lambda: FORMATS[suffix].read(path)), options)
    loaded = read_table(path, options)
    columns = infer_columns(loaded.frame, options)
    if needs_labels:
        require_labels(columns, loaded.frame)
    arrays = frame_to_arrays(restore_spelling(loaded, columns), columns, options)
    return arrays | {"notes": (*loaded.notes, *arrays.get("notes", ()))}


def is_table(path: str | Path) -> bool:
    """Whether a path is that of a table, or of a folder or pattern of tables."""
    return format_suffix(path) in TABLE_FORMATS or Path(path).is_dir()


def is_delimited(path: str | Path) -> bool:
    """Whether a path is that of delimited text, such as .csv."""
    return FORMATS.get(format_suffix(path)) is _DELIMITED_FORMAT


def read_table(path: str | Path, options: TableOptions | None = None) -> Table:
    """Read a table: a file, or all files of a folder or of a pattern such as `part-*.parquet`."""
    import polars

    options = options or TableOptions()
    parts = [
        call_reader(file, lambda file=file: FORMATS[format_suffix(file)].read(file, options), path)
        for file in list_table_files(path)
    ]
    frames = [part.frame for part in parts]
    frame = polars.concat(align_columns(frames), how="vertical_relaxed") if len(frames) > 1 else frames[0]
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    return Table(
        replace_missing_words(frame, options.na), tuple(notes), [text for part in parts for text in part.delimited]
    )


def restore_spelling(loaded: Table, columns: Columns) -> Any:
    """Return the frame of a table with labels and groups as they are spelled, where reading numbers would change them.

    Labels that are the very names of classes stay texts, such as 1.0 beside a column prob_1.0, and so do groups such
    as 007. Apostrophes that protect from formulas are removed.
    """
    restored: list[Any] = []
    if columns.label is not None and columns.names is not None:
        restored.append(_restore_column_spelling(loaded, columns.label, columns.names))
    restored += [
        _restore_column_spelling(loaded, name, None) for name in (columns.group, columns.id) if name is not None
    ]
    return loaded.frame.with_columns(column for column in restored if column is not None)


def _restore_column_spelling(loaded: Table, name: str, allowed_texts: Sequence[str] | None) -> Any:
    """Return a column as it is spelled where that tells more, else None; `wanted` are the texts it may hold."""
    import polars

    column = loaded.frame[name]
    original = loaded.texts([name])
    if original is None or not (column.dtype.is_numeric() or column.dtype in (polars.String, polars.Boolean)):
        return None
    raw = original[name]
    if allowed_texts is None:  # words for missing values stay missing, unless they are names of classes
        raw = polars.select(polars.when(column.is_not_null()).then(raw)).to_series()
    unique_texts = raw.drop_nulls().unique(maintain_order=True).to_list()
    unescaped = unescape_column(unique_texts)
    if allowed_texts is None:
        is_unchanged = column.dtype == polars.String or bool((column.cast(polars.String) == raw).all())
        replacements = None if is_unchanged and unescaped == unique_texts else unescaped
    else:
        matching_spellings = [
            texts
            for texts in (unescaped, unique_texts, [text.strip() for text in unique_texts])
            if set(texts) <= set(allowed_texts)
        ]
        if unescaped != unique_texts and matching_spellings[:2] == [unescaped, unique_texts]:
            raise InputError(
                f"{name!r} may or may not be protected by apostrophes from being formulas: both "
                f"{unescaped[0][:40]!r} and "
                f"{unique_texts[0][:40]!r} are classes; use a format other than text",
                code="ambiguous_apostrophe",
            )
        replacements = matching_spellings[0] if matching_spellings else None
    return (
        None
        if replacements is None
        else raw.replace_strict(unique_texts, replacements, return_dtype=polars.String).alias(name)
    )


def align_columns(frames: list[Any]) -> list[Any]:
    """Frames with their columns in the order of the first; raises `InputError` where they have others."""
    columns = [frame.collect_schema().names() for frame in frames]
    if len({frozenset(names) for names in columns}) > 1:
        raise InputError("the files of a folder or pattern must have the same columns", code="columns_differ")
    return [frame.select(columns[0]) for frame in frames]


def list_table_files(path: str | Path) -> list[Path]:
    """Return the tables behind a path: itself, those of a folder, or those of a pattern where no such file is."""
    path = Path(path)
    if path.is_dir():
        files = sorted(filter(is_visible_table, path.iterdir()))
        suffixes = {format_suffix(file) for file in files}
        if len(suffixes) > 1:
            raise InputError(
                f"tables of several formats in this folder ({', '.join(sorted(suffixes))}); give a pattern, "
                f"such as '*{min(suffixes)}'",
                code="several_formats",
            )
        if not files:
            raise InputError(f"no table in this folder; expected files {', '.join(TABLE_FORMATS)}", code="no_table")
    elif is_pattern(path):
        files = list_matching_files(path)
        if not files:
            raise InputError("no file matches this pattern", code="no_match")
    else:
        files = [path]
    for file in files:
        check_file(file, FORMATS)
    return files


def is_pattern(path: Path) -> bool:
    """Whether a path stands for all files that match it; a file of that very name comes first."""
    return not path.exists() and any(wildcard in path.name for wildcard in "*?[")


def list_matching_files(pattern: Path) -> list[Path]:
    """Return the visible files that match a pattern."""
    return sorted(file for file in pattern.parent.glob(pattern.name) if is_visible(file, pattern))


def is_visible_table(path: Path) -> bool:
    """Whether a path is a table that is not hidden."""
    return format_suffix(path) in TABLE_FORMATS and path.name[0] not in "._"


def is_visible(path: Path, pattern: Path) -> bool:
    """Whether a file is not hidden, as drafts of interrupted writes are, or hidden ones are asked for."""
    return pattern.name.startswith(".") or not path.name.startswith(".")


def as_frame(table: Any) -> Any:
    """Return a polars frame of a table: polars, pandas, Arrow, a Hugging Face data set, or a mapping of columns."""
    import polars

    if isinstance(table, polars.DataFrame | polars.LazyFrame):
        return table.lazy().collect()
    try:
        if type(table).__module__.startswith("pandas."):
            return polars.DataFrame({str(name): table[name].tolist() for name in table.columns}, strict=False)
        if hasattr(table, "to_polars"):
            return table.to_polars()
        if isinstance(table, Mapping) or hasattr(table, "__arrow_c_stream__"):
            return polars.DataFrame(table)
    except Exception as error:  # of any library
        reason = to_one_line(error)
        raise InputError(f"not a readable table ({type(error).__name__}: {reason})", code="unreadable") from None
    raise InputError(
        f"expected a polars, pandas or Arrow table, a data set or a path, got {type(table).__name__}", code="table_type"
    )


@dataclass(frozen=True)
class ChunkedFile:
    """A file that is read some rows at a time."""

    num_rows: int
    width: int  # numbers in a row
    read: Callable[[slice], Arrays]
    notes: tuple[str, ...] = ()  # which column plays which role


def is_chunkable(path: str | Path) -> bool:
    """Whether a file, or the files of a folder or pattern, can be read some rows at a time."""
    try:
        return format_suffix(path) in CHUNK_OPENERS or format_suffix(list_table_files(path)[0]) in CHUNK_OPENERS
    except InputError:
        return False


def open_chunked(path: str | Path, options: TableOptions | None = None) -> ChunkedFile:
    """Open a .parquet, .arrow, .safetensors or .npy file, or tables of a folder, to read some rows at a time."""
    path, options = Path(path), options or TableOptions()
    files = (
        [path]
        if format_suffix(path) in FORMATS and not FORMATS[format_suffix(path)].is_table
        else list_table_files(path)
    )
    check_file(files[0], CHUNK_OPENERS)
    if FORMATS[format_suffix(files[0])].is_table:
        return call_reader(path, lambda: _open_tables_chunked(files, options))
    chunked_file = call_reader(path, lambda: CHUNK_OPENERS[format_suffix(path)](path))
    return replace(chunked_file, read=lambda rows: apply_options(chunked_file.read(rows), options))


def read_chunks(path: str | Path, rows: int | None = None, options: TableOptions | None = None) -> Iterator[Arrays]:
    """Read the arrays of files in pieces of `rows` examples, or of about 64 MB; the next while one is worked on."""
    file = open_chunked(path, options)
    rows_per_chunk = rows or max(1, CHUNK_BYTES // (8 * max(1, file.width)))
    slices = iter(
        [slice(first, min(first + rows_per_chunk, file.num_rows)) for first in range(0, file.num_rows, rows_per_chunk)]
    )
    with ThreadPoolExecutor(1) as reader:

        def read_next() -> Future[Arrays] | None:
            return next((reader.submit(file.read, rows) for rows in slices), None)

        pending = read_next()
        while pending is not None:
            arrays = call_reader(Path(path), pending.result)
            pending = read_next()  # only now: after a failure nothing more is read
            yield arrays


def find_score_and_label_keys(names: Mapping[str, Any] | set[str]) -> tuple[str, str]:
    """Return what the scores are called, confidence, logits or probs, and what the labels are."""
    if "confidence" in names and "correct" in names and not {"logits", "probs"} & set(names):
        return "confidence", "correct"
    kinds = [kind for kind in ("logits", "probs") if kind in names]
    labels = [name for name in ("labels", "label") if name in names]
    if len(kinds) != 1 or len(labels) != 1:
        got = (
            ", ".join(map(repr, sorted({*names} - {*NAME_LIST_KEYS, "ids", "notes", "several", "judged"}))) or "nothing"
        )
        raise InputError(
            f"expected 'labels' and either 'logits' or 'probs', or 'confidence' and 'correct', got {got}",
            code="no_scores",
        )
    return kinds[0], labels[0]


def format_suffix(path: str | Path) -> str:
    """The suffix that tells the format; a compression's goes along with the one before it."""
    suffixes = Path(path).suffixes[-2:]
    if suffixes and suffixes[-1].lower() in COMPRESSION_SUFFIXES and len(suffixes) == 2:
        return "".join(suffixes).lower()
    return suffixes[-1].lower() if suffixes else ""


def check_file(path: Path, readers: Mapping[str, Any]) -> None:
    """Refuse a file that does not exist or has an unknown suffix."""
    suffix = format_suffix(path)
    if suffix not in readers:
        is_known_format = suffix in FORMATS
        raise InputError(
            f"cannot be read in pieces; expected one of {', '.join(readers)} (Predictions.load reads it whole)"
            if is_known_format
            else f"cannot tell the format from {suffix or 'no suffix'!r}; expected one of {', '.join(readers)}",
            code="pieces" if is_known_format else "suffix",
        )
    if not path.is_file():
        raise InputError("no such file", code="no_file")
    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)", code="empty_file")


def call_reader(path: Path, reader: Callable[[], Any], source: str | Path | None = None) -> Any:
    """Call a reader, and raise `InputError` for whatever goes wrong; names the file if it is one of a `source`."""
    try:
        return reader()
    except InputError as error:
        if source is None or Path(source) == path:
            raise
        raise InputError(f"{path.name}: {error}", code=error.code) from None
    except BaseException as error:  # third-party readers raise anything; the reason matters, their type does not
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of polars, no Exception
            raise
        reason = to_one_line(error)
        kind = f"{format_suffix(path)} file".strip() if path.is_file() else "table"
        raise InputError(f"not a readable {kind} ({type(error).__name__}: {reason})", code="unreadable") from None


# Pieces


def open_npy_chunked(path: Path) -> ChunkedFile:
    """Open NAME_logits.npy or NAME_probs.npy with its labels, to be read in chunks."""
    kind, labels_path = find_npy_labels(path)
    if not labels_path.is_file():
        raise InputError(f"expected its labels beside it in {labels_path.name}", code="no_labels")
    values, labels = (np.load(file, mmap_mode="r", allow_pickle=False) for file in (path, labels_path))
    _check_same_length(len(values), len(labels))
    return ChunkedFile(
        len(values), values[:1].size, lambda rows: {kind: np.array(values[rows]), "labels": np.array(labels[rows])}
    )


def open_safetensors_chunked(path: Path) -> ChunkedFile:
    """Open a .safetensors file, to be read in chunks."""
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt")
    names = set(file.keys())
    score_key, label_key = find_score_and_label_keys(names)
    texts = {name: read_metadata_texts(file)[name] for name in NAME_LIST_KEYS if name in read_metadata_texts(file)}
    views = {
        name: file.get_slice(name) for name in (score_key, label_key, "weights", "clusters", "groups") if name in names
    }
    shape = views[score_key].get_shape()
    _check_same_length(shape[0], views[label_key].get_shape()[0])
    width = int(np.prod(shape[1:]))

    def read_chunk(rows: slice) -> Arrays:
        return select_arrays({name: view[rows.start : rows.stop] for name, view in views.items()} | texts)

    return ChunkedFile(shape[0], width, read_chunk)


def _open_tables_chunked(files: list[Path], options: TableOptions) -> ChunkedFile:
    import polars

    scans = [CHUNK_OPENERS[format_suffix(file)](file) for file in files]
    if len(scans) > 1:
        scans = align_columns(scans)
        schema = polars.concat(scans, how="vertical_relaxed").collect_schema()
        scans = [scan.cast(dict(schema)) for scan in scans]
    row_ends = np.cumsum(
        [int(count.item()) for count in polars.collect_all([scan.select(polars.len()) for scan in scans])]
    )
    n = int(row_ends[-1])
    head = polars.concat(scans).head(1).collect()
    columns = infer_columns(head, options, has_all_rows=False)
    notes = [f"read {n:,} rows in pieces: {columns.description}"]
    if columns.weight is not None:
        weights = polars.concat(scans).select(polars.col(columns.weight).cast(polars.Float64).sum()).collect()
        notes.append(check_weights(columns, float(weights.item()), n))

    def read_chunk(rows: slice) -> Arrays:
        _check_labels_chunkable(columns, head, options)
        first, last = np.searchsorted(row_ends, [rows.start, rows.stop - 1], side="right")  # only files with these rows
        row_offset = int(row_ends[first - 1]) if first else 0
        lazy_rows = polars.concat(scans[first : last + 1]).slice(rows.start - row_offset, rows.stop - rows.start)
        return frame_to_arrays(
            replace_missing_words(lazy_rows.collect(), options.na), columns, options, has_all_rows=False
        )

    lists = [head[name].to_list()[0] for name in columns.scores if n and head[name].dtype.is_nested()]
    return ChunkedFile(
        n, sum(map(len, filter(None, lists))) or max(1, len(columns.scores)), read_chunk, ("; ".join(notes),)
    )


def _check_labels_chunkable(columns: Columns, head: Any, options: TableOptions) -> None:
    """Raise `InputError` where labels need the whole table: words whose columns are not named, or several labels."""
    import polars

    require_labels(columns, head)
    label = None if columns.label is None else head[columns.label].dtype
    has_text_labels = label is not None and not (label.is_numeric() or label.is_nested() or label == polars.Boolean)
    lacks_class_names = columns.names is None and columns.kind and options.positive is None
    if columns.labels or (lacks_class_names and (has_text_labels or columns.positive not in (None, "1"))):
        raise InputError(
            "these labels cannot be read in pieces: make them numbers, from 0, or name all columns, such as "
            "prob_cat, prob_dog",
            code="whole_only",
        )


def scan_parquet(path: Path) -> Any:
    """Scan a .parquet file lazily."""
    import polars

    return polars.scan_parquet(path, glob=False)


def scan_arrow(path: Path) -> Any:
    """Scan an .arrow file lazily."""
    import polars

    return polars.scan_ipc(path, glob=False)


def _check_same_length(num_rows: int, num_labels: int) -> None:
    if num_rows != num_labels:
        raise InputError(f"expected one label per row, got {num_rows} rows and {num_labels} labels", code="shape")


@dataclass(frozen=True)
class Format:
    """How files of a format are read whole, written, and read in pieces; None where they are not."""

    read: Callable[..., Any]  # of arrays: (path) -> arrays by name; of tables: (path, options) -> Table
    write: Callable[..., None] | None = None  # of arrays: (arrays, names, path); of tables: (frame, path, dialect)
    open_chunked: Callable[[Path], Any] | None = None  # of arrays: Pieces; of tables: a lazy frame
    is_table: bool = True
    has_decimal_text: bool = False  # numbers are spelled in decimals


COMPRESSION_SUFFIXES = (".gz", ".zst")
_DELIMITED_FORMAT, _JSON_LINES_FORMAT = (
    Format(read_text, write_text, has_decimal_text=True),
    Format(read_jsonl, write_jsonl, has_decimal_text=True),
)
_ARROW_FORMAT = Format(read_arrow, write_arrow, scan_arrow)
_TEXT_FORMATS = {
    ".csv": _DELIMITED_FORMAT,
    ".tsv": _DELIMITED_FORMAT,
    ".txt": _DELIMITED_FORMAT,
    ".jsonl": _JSON_LINES_FORMAT,
    ".ndjson": _JSON_LINES_FORMAT,
}
FORMATS: dict[str, Format] = {
    ".npz": Format(read_npz, write_npz, is_table=False),
    ".safetensors": Format(read_safetensors, write_safetensors, open_safetensors_chunked, is_table=False),
    ".npy": Format(read_npy, None, open_npy_chunked, is_table=False),
    ".pt": Format(read_torch, is_table=False),
    ".pth": Format(read_torch, is_table=False),
    ".parquet": Format(read_parquet, write_parquet, scan_parquet),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _ARROW_FORMAT),
    **_TEXT_FORMATS,
    ".xlsx": Format(read_workbook, write_workbook, has_decimal_text=True),
    **{text + packed: format for text, format in _TEXT_FORMATS.items() for packed in COMPRESSION_SUFFIXES},
}
TABLE_FORMATS = {suffix: format for suffix, format in FORMATS.items() if format.is_table}
CHUNK_OPENERS = {suffix: format.open_chunked for suffix, format in FORMATS.items() if format.open_chunked is not None}
