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

from calibrant._arrays import arrays_of, check_weights, with_options
from calibrant._columns import Columns, TableOptions
from calibrant._delimited import Dialect, with_missing
from calibrant._formats import (
    NAMED,
    Table,
    file_arrays,
    labels_beside,
    read_arrow,
    read_jsonl,
    read_npy,
    read_npz,
    read_parquet,
    read_safetensors,
    read_text,
    read_torch,
    read_workbook,
    texts_of,
    write_arrow,
    write_jsonl,
    write_npz,
    write_parquet,
    write_safetensors,
    write_text,
    write_workbook,
)
from calibrant._readings import columns_of, require_labels
from calibrant._text import cell, one_line, unprotected
from calibrant.types import InputError

_BYTES = 64 << 20  # of numbers in float64 in one piece
Arrays = Mapping[str, Any]  # by name: logits or probs, labels, weights, clusters, groups, names


# Writing


@contextmanager
def atomic_write(path: str | Path) -> Generator[Path, None, None]:
    """Give a path beside `path` to write to; on leaving without an error it takes the place of `path` at once.

    A kill at any moment leaves the old file or the new one, never half of either. Raises `InputError` if the folder
    cannot be written to.
    """
    path = Path(path)
    writable(path)
    with _ending_on_signals():
        handle, name = tempfile.mkstemp(prefix=f".{path.stem[:50]}-", suffix=_suffix(path), dir=path.parent)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            readable_by_others(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


@contextmanager
def _ending_on_signals() -> Generator[None, None, None]:
    """Turn signals that would end the process at once into `SystemExit`, so that drafts are removed first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ending = [each for each in (signal.SIGTERM, getattr(signal, "SIGHUP", None)) if each is not None]
    replaced = [each for each in ending if signal.getsignal(each) is signal.SIG_DFL]
    for each in replaced:
        signal.signal(each, _end)
    try:
        yield
    finally:
        for each in replaced:
            signal.signal(each, signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    sys.exit(128 + number)


def writable(path: str | Path) -> Path:
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


def apart(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Make sure that no output replaces an input or another output, or would be read with the inputs next time.

    Inputs may be files, folders of tables and patterns. Raises `InputError` otherwise.
    """
    sources = [Path(path) for path in inputs if path is not None]
    read = [file for source in sources for file in _read_with(source)]
    written: list[Path] = []
    for path in map(Path, filter(None, outputs)):
        if any(_same_file(path, file) for file in read):
            raise InputError(f"cannot write {path}: this command reads it; choose another name", code="output_is_input")
        if source := next((source for source in sources if _would_be_read(path, source)), None):
            raise InputError(
                f"cannot write {path}: {source} would include it the next time; choose another folder or name",
                code="output_among_inputs",
            )
        if any(_same_file(path, other) for other in written):
            raise InputError(f"cannot write {path} twice; choose another name for one of them", code="output_twice")
        written.append(path)


def _read_with(source: Path) -> list[Path]:
    """Return every file that a command reads when it is given `source`: a file, folder, pattern or Python package."""
    if source.is_dir():
        return [file for file in source.iterdir() if _suffix(file) in TABLES]
    if _is_pattern(source):
        return _matches(source)
    return [source, *_label_files(source)]


def _would_be_read(path: Path, source: Path) -> bool:
    """Whether a new file at `path` would be one of the tables of a folder or pattern."""
    if source.is_dir():
        return _same_file(path.parent, source) and _is_visible_table(path)
    if not _is_pattern(source) or not _same_file(path.parent, source.parent):
        return False
    name, pattern = path.name, source.name
    if _ignores_case(source.parent):
        name, pattern = name.casefold(), pattern.casefold()
    return fnmatch.fnmatchcase(name, pattern) and _is_visible(path, source)


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them does not exist
        one, other = one.resolve(), other.resolve()
        return one == other or (str(one).casefold() == str(other).casefold() and _ignores_case(one.parent))


def _ignores_case(folder: Path) -> bool:
    """Whether names that differ in case only are one file in the nearest folder that exists."""
    folder = next((each for each in (folder, *folder.parents) if each.is_dir()), Path()).resolve()
    while folder.name and folder.name == folder.name.swapcase():  # without letters, as 2024
        folder = folder.parent
    try:
        return folder.with_name(folder.name.swapcase()).samefile(folder)
    except (OSError, ValueError):
        return False


def _label_files(path: Path) -> list[Path]:
    """Return the files of labels that are read with a .npy file of logits or probs."""
    return [labels_beside(path)[1]] if _suffix(path) == ".npy" and path.stem.endswith(("logits", "probs")) else []


def readable_by_others(path: Path) -> None:
    """Set the permissions that the umask leaves to a new file or folder; temporary ones are for their owner only."""
    path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def csv_text(frame: Any) -> str:
    """Return a polars frame as CSV whose texts no spreadsheet takes for formulas."""
    import polars

    def safe(column: Any) -> Any:
        texts = [None if text is None else cell(text) for text in column]
        return polars.Series(column.name, texts, polars.String)

    texts = [name for name, kind in frame.schema.items() if kind == polars.String]
    return frame.with_columns(safe(frame[name]) for name in texts).write_csv()


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
    with _drafted(path) as (draft, writer):
        format = FORMATS[_suffix(path)]
        if format.table:
            writer(_frame(arrays, names or {}, exact=format.text), draft, None)
        else:
            writer(arrays, names or {}, draft)
        if check is not None:
            check(draft)


def write_table(path: str | Path, frame: Any, dialect: Dialect | None = None) -> None:
    """Write a polars frame in the format of the path's suffix; `dialect` says how text is spelled."""
    with _drafted(path) as (draft, writer):
        writer(frame, draft, dialect)


@contextmanager
def _drafted(path: str | Path) -> Generator[tuple[Path, Callable[..., None]], None, None]:
    """Give a draft and the writer of its format; errors of libraries become `InputError`, and leave the old file."""
    writer = writer_of(path)
    try:
        with atomic_write(path) as draft:
            yield draft, writer
    except (InputError, OSError):
        raise
    except Exception as error:  # of any library
        reason = one_line(error)
        raise InputError(f"cannot write {path} ({type(error).__name__}: {reason})", code="not_writable") from None


def writer_of(path: str | Path) -> Callable[..., None]:
    """Return the writer of a path's format; raises `InputError` where it cannot be written."""
    writers = {suffix: format.write for suffix, format in FORMATS.items() if format.write is not None}
    if (suffix := _suffix(path)) not in writers:
        raise InputError(
            f"cannot write {path}: expected one of {', '.join(writers)}, got {suffix or 'no suffix'!r}", code="suffix"
        )
    return writers[suffix]


def _frame(arrays: Mapping[str, Any], names: Mapping[str, Sequence[str]], *, exact: bool) -> Any:
    """Return arrays as columns; `exact` if text must hold the very numbers that float32 logits stand for."""
    import polars

    logits, classes = arrays["logits"].numpy(), names.get("class_names")
    logits = logits.astype(np.float64) if exact else logits
    called = classes or tuple(map(str, range(logits.shape[1])))
    columns: dict[str, Any] = {f"logit_{name}": logits[:, i] for i, name in enumerate(called)}
    if "labels" in arrays:
        labels = arrays["labels"].numpy()
        columns["label"] = labels if classes is None else _named(labels, classes)
    columns |= {name: arrays[name].numpy() for name in ("weights", "clusters") if name in arrays}
    if "groups" in arrays:
        columns["group"] = _named(arrays["groups"].numpy(), names["group_names"])
    if "ids" in arrays:
        columns["id"] = arrays["ids"]
    return polars.DataFrame(columns)


def _named(places: np.ndarray, names: Sequence[str]) -> Any:
    import polars

    return polars.Series(list(names), dtype=polars.String)[places]


# Reading


def read(path: str | Path, options: TableOptions | None = None, *, labeled: bool = True) -> Arrays:
    """Read the arrays of a file whole, or of all tables of a folder or pattern.

    `options` say how tables are read; `labeled` tables must have labels. Raises `InputError` with the reason if there
    is nothing to read.
    """
    options = options or TableOptions()
    if (suffix := _suffix(path)) in FORMATS and not FORMATS[suffix].table and not Path(path).is_dir():
        path = Path(path)
        _there(path, FORMATS)
        if options.columns:
            raise InputError(
                f"a {suffix} file has arrays, no columns: leave out {', '.join(options.columns)}", code="no_columns"
            )
        return with_options(_telling(path, lambda: FORMATS[suffix].read(path)), options)
    found = table(path, options)
    columns = columns_of(found.frame, options)
    if labeled:
        require_labels(columns, found.frame)
    arrays = arrays_of(with_exact_texts(found, columns), columns, options)
    return arrays | {"notes": (*found.notes, *arrays.get("notes", ()))}


def is_table(path: str | Path) -> bool:
    """Whether a path is that of a table, or of a folder or pattern of tables."""
    return _suffix(path) in TABLES or Path(path).is_dir()


def is_delimited(path: str | Path) -> bool:
    """Whether a path is that of delimited text, such as .csv."""
    return FORMATS.get(_suffix(path)) is _TEXT


def table(path: str | Path, options: TableOptions | None = None) -> Table:
    """Read a table: a file, or all files of a folder or of a pattern such as `part-*.parquet`."""
    import polars

    options = options or TableOptions()
    parts = [
        _telling(file, lambda file=file: FORMATS[_suffix(file)].read(file, options), path) for file in files_of(path)
    ]
    frames = [part.frame for part in parts]
    frame = polars.concat(_alike(frames), how="vertical_relaxed") if len(frames) > 1 else frames[0]
    notes = dict.fromkeys(note for part in parts for note in part.notes)
    return Table(with_missing(frame, options.na), tuple(notes), [text for part in parts for text in part.text])


def with_exact_texts(found: Table, columns: Columns) -> Any:
    """Return the frame of a table with labels and groups as they are spelled, where reading numbers would change them.

    Labels that are the very names of classes stay texts, such as 1.0 beside a column prob_1.0, and so do groups such
    as 007. Apostrophes that protect from formulas are removed.
    """
    changed: list[Any] = []
    if columns.label is not None and columns.names is not None:
        changed.append(_spelled(found, columns.label, columns.names))
    changed += [_spelled(found, name, None) for name in (columns.group, columns.id) if name is not None]
    return found.frame.with_columns(each for each in changed if each is not None)


def _spelled(found: Table, name: str, wanted: Sequence[str] | None) -> Any:
    """Return a column as it is spelled where that tells more, else None; `wanted` are the texts it may hold."""
    import polars

    column = found.frame[name]
    spelled = found.texts([name])
    if spelled is None or not (column.dtype.is_numeric() or column.dtype in (polars.String, polars.Boolean)):
        return None
    raw = spelled[name]
    if wanted is None:  # words for missing values stay missing, unless they are names of classes
        raw = polars.select(polars.when(column.is_not_null()).then(raw)).to_series()
    kinds = raw.drop_nulls().unique(maintain_order=True).to_list()
    plain = unprotected(kinds)
    if wanted is None:
        same = column.dtype == polars.String or bool((column.cast(polars.String) == raw).all())
        chosen = None if same and plain == kinds else plain
    else:
        ways = [texts for texts in (plain, kinds, [text.strip() for text in kinds]) if set(texts) <= set(wanted)]
        if plain != kinds and ways[:2] == [plain, kinds]:
            raise InputError(
                f"{name!r} may or may not be protected by apostrophes from being formulas: both {plain[0][:40]!r} and "
                f"{kinds[0][:40]!r} are classes; use a format other than text",
                code="ambiguous_apostrophe",
            )
        chosen = ways[0] if ways else None
    return None if chosen is None else raw.replace_strict(kinds, chosen, return_dtype=polars.String).alias(name)


def _alike(frames: list[Any]) -> list[Any]:
    """Frames with their columns in the order of the first; raises `InputError` where they have others."""
    columns = [frame.collect_schema().names() for frame in frames]
    if len({frozenset(names) for names in columns}) > 1:
        raise InputError("the files of a folder or pattern must have the same columns", code="columns_differ")
    return [frame.select(columns[0]) for frame in frames]


def files_of(path: str | Path) -> list[Path]:
    """Return the tables behind a path: itself, those of a folder, or those of a pattern where no such file is."""
    path = Path(path)
    if path.is_dir():
        found = sorted(filter(_is_visible_table, path.iterdir()))
        kinds = {_suffix(file) for file in found}
        if len(kinds) > 1:
            raise InputError(
                f"tables of several formats in this folder ({', '.join(sorted(kinds))}); give a pattern, "
                f"such as '*{min(kinds)}'",
                code="several_formats",
            )
        if not found:
            raise InputError(f"no table in this folder; expected files {', '.join(TABLES)}", code="no_table")
    elif _is_pattern(path):
        found = _matches(path)
        if not found:
            raise InputError("no file matches this pattern", code="no_match")
    else:
        found = [path]
    for file in found:
        _there(file, FORMATS)
    return found


def _is_pattern(path: Path) -> bool:
    """Whether a path stands for all files that match it; a file of that very name comes first."""
    return not path.exists() and any(mark in path.name for mark in "*?[")


def _matches(pattern: Path) -> list[Path]:
    return sorted(file for file in pattern.parent.glob(pattern.name) if _is_visible(file, pattern))


def _is_visible_table(path: Path) -> bool:
    return _suffix(path) in TABLES and path.name[0] not in "._"


def _is_visible(path: Path, pattern: Path) -> bool:
    """Whether a file is not hidden, as drafts of interrupted writes are, or hidden ones are asked for."""
    return pattern.name.startswith(".") or not path.name.startswith(".")


def frame_of(table: Any) -> Any:
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
        reason = one_line(error)
        raise InputError(f"not a readable table ({type(error).__name__}: {reason})", code="unreadable") from None
    raise InputError(
        f"expected a polars, pandas or Arrow table, a data set or a path, got {type(table).__name__}", code="table_type"
    )


@dataclass(frozen=True)
class Pieces:
    """A file that is read some rows at a time."""

    rows: int
    width: int  # numbers in a row
    read: Callable[[slice], Arrays]
    notes: tuple[str, ...] = ()  # which column plays which role


def in_pieces(path: str | Path) -> bool:
    """Whether a file, or the files of a folder or pattern, can be read some rows at a time."""
    try:
        return _suffix(path) in PIECES or _suffix(files_of(path)[0]) in PIECES
    except InputError:
        return False


def pieces_of(path: str | Path, options: TableOptions | None = None) -> Pieces:
    """Open a .parquet, .arrow, .safetensors or .npy file, or tables of a folder, to read some rows at a time."""
    path, options = Path(path), options or TableOptions()
    files = [path] if _suffix(path) in FORMATS and not FORMATS[_suffix(path)].table else files_of(path)
    _there(files[0], PIECES)
    if FORMATS[_suffix(files[0])].table:
        return _telling(path, lambda: _table_pieces(files, options))
    whole = _telling(path, lambda: PIECES[_suffix(path)](path))
    return replace(whole, read=lambda rows: with_options(whole.read(rows), options))


def read_pieces(path: str | Path, rows: int | None = None, options: TableOptions | None = None) -> Iterator[Arrays]:
    """Read the arrays of files in pieces of `rows` examples, or of about 64 MB; the next while one is worked on."""
    file = pieces_of(path, options)
    size = rows or max(1, _BYTES // (8 * max(1, file.width)))
    slices = iter([slice(first, min(first + size, file.rows)) for first in range(0, file.rows, size)])
    with ThreadPoolExecutor(1) as reader:

        def read_next() -> Future[Arrays] | None:
            return next((reader.submit(file.read, rows) for rows in slices), None)

        pending = read_next()
        while pending is not None:
            arrays = _telling(Path(path), pending.result)
            pending = read_next()  # only now: after a failure nothing more is read
            yield arrays


def kind_of(names: Mapping[str, Any] | set[str]) -> tuple[str, str]:
    """Return what the scores are called, confidence, logits or probs, and what the labels are."""
    if "confidence" in names and "correct" in names and not {"logits", "probs"} & set(names):
        return "confidence", "correct"
    kinds = [kind for kind in ("logits", "probs") if kind in names]
    labels = [name for name in ("labels", "label") if name in names]
    if len(kinds) != 1 or len(labels) != 1:
        got = ", ".join(map(repr, sorted({*names} - {*NAMED, "ids", "notes", "several", "judged"}))) or "nothing"
        raise InputError(
            f"expected 'labels' and either 'logits' or 'probs', or 'confidence' and 'correct', got {got}",
            code="no_scores",
        )
    return kinds[0], labels[0]


def _suffix(path: str | Path) -> str:
    """The suffix that tells the format; a compression's goes along with the one before it."""
    suffixes = Path(path).suffixes[-2:]
    if suffixes and suffixes[-1].lower() in COMPRESSED and len(suffixes) == 2:
        return "".join(suffixes).lower()
    return suffixes[-1].lower() if suffixes else ""


def _there(path: Path, readers: Mapping[str, Any]) -> None:
    suffix = _suffix(path)
    if suffix not in readers:
        whole = suffix in FORMATS
        raise InputError(
            f"cannot be read in pieces; expected one of {', '.join(readers)} (Predictions.load reads it whole)"
            if whole
            else f"cannot tell the format from {suffix or 'no suffix'!r}; expected one of {', '.join(readers)}",
            code="pieces" if whole else "suffix",
        )
    if not path.is_file():
        raise InputError("no such file", code="no_file")
    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)", code="empty_file")


def _telling(path: Path, reader: Callable[[], Any], source: str | Path | None = None) -> Any:
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
        reason = one_line(error)
        kind = f"{_suffix(path)} file".strip() if path.is_file() else "table"
        raise InputError(f"not a readable {kind} ({type(error).__name__}: {reason})", code="unreadable") from None


# Pieces


def _npy_pieces(path: Path) -> Pieces:
    kind, beside = labels_beside(path)
    if not beside.is_file():
        raise InputError(f"expected its labels beside it in {beside.name}", code="no_labels")
    values, labels = (np.load(file, mmap_mode="r", allow_pickle=False) for file in (path, beside))
    _same_length(len(values), len(labels))
    return Pieces(
        len(values), values[:1].size, lambda rows: {kind: np.array(values[rows]), "labels": np.array(labels[rows])}
    )


def _safetensors_pieces(path: Path) -> Pieces:
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt")
    names = set(file.keys())
    kind, of = kind_of(names)
    texts = {name: texts_of(file)[name] for name in NAMED if name in texts_of(file)}
    views = {name: file.get_slice(name) for name in (kind, of, "weights", "clusters", "groups") if name in names}
    shape = views[kind].get_shape()
    _same_length(shape[0], views[of].get_shape()[0])
    width = int(np.prod(shape[1:]))

    def piece(rows: slice) -> Arrays:
        return file_arrays({name: view[rows.start : rows.stop] for name, view in views.items()} | texts)

    return Pieces(shape[0], width, piece)


def _table_pieces(files: list[Path], options: TableOptions) -> Pieces:
    import polars

    scans = [PIECES[_suffix(file)](file) for file in files]
    if len(scans) > 1:
        scans = _alike(scans)
        kinds = polars.concat(scans, how="vertical_relaxed").collect_schema()
        scans = [scan.cast(dict(kinds)) for scan in scans]
    ends = np.cumsum([int(count.item()) for count in polars.collect_all([scan.select(polars.len()) for scan in scans])])
    n = int(ends[-1])
    head = polars.concat(scans).head(1).collect()
    columns = columns_of(head, options, whole=False)
    notes = [f"read {n:,} rows in pieces: {columns.text}"]
    if columns.weight is not None:
        weights = polars.concat(scans).select(polars.col(columns.weight).cast(polars.Float64).sum()).collect()
        notes.append(check_weights(columns, float(weights.item()), n))

    def piece(rows: slice) -> Arrays:
        _check_readable_in_pieces(columns, head, options)
        first, last = np.searchsorted(ends, [rows.start, rows.stop - 1], side="right")  # only files with these rows
        before = int(ends[first - 1]) if first else 0
        some = polars.concat(scans[first : last + 1]).slice(rows.start - before, rows.stop - rows.start)
        return arrays_of(with_missing(some.collect(), options.na), columns, options, whole=False)

    lists = [head[name].to_list()[0] for name in columns.scores if n and head[name].dtype.is_nested()]
    return Pieces(n, sum(map(len, filter(None, lists))) or max(1, len(columns.scores)), piece, ("; ".join(notes),))


def _check_readable_in_pieces(columns: Columns, head: Any, options: TableOptions) -> None:
    """Raise `InputError` where labels need the whole table: words whose columns are not named, or several labels."""
    import polars

    require_labels(columns, head)
    label = None if columns.label is None else head[columns.label].dtype
    texts = label is not None and not (label.is_numeric() or label.is_nested() or label == polars.Boolean)
    unnamed = columns.names is None and columns.kind and options.positive is None
    if columns.labels or (unnamed and (texts or columns.positive not in (None, "1"))):
        raise InputError(
            "these labels cannot be read in pieces: make them numbers, from 0, or name all columns, such as "
            "prob_cat, prob_dog",
            code="whole_only",
        )


def _scan_parquet(path: Path) -> Any:
    import polars

    return polars.scan_parquet(path, glob=False)


def _scan_arrow(path: Path) -> Any:
    import polars

    return polars.scan_ipc(path, glob=False)


def _same_length(n: int, m: int) -> None:
    if n != m:
        raise InputError(f"expected one label per row, got {n} rows and {m} labels", code="shape")


@dataclass(frozen=True)
class Format:
    """How files of a format are read whole, written, and read in pieces; None where they are not."""

    read: Callable[..., Any]  # of arrays: (path) -> arrays by name; of tables: (path, options) -> Table
    write: Callable[..., None] | None = None  # of arrays: (arrays, names, path); of tables: (frame, path, dialect)
    pieces: Callable[[Path], Any] | None = None  # of arrays: Pieces; of tables: a lazy frame
    table: bool = True
    text: bool = False  # numbers are spelled in decimals


COMPRESSED = (".gz", ".zst")
_TEXT, _JSON = Format(read_text, write_text, text=True), Format(read_jsonl, write_jsonl, text=True)
_ARROW = Format(read_arrow, write_arrow, _scan_arrow)
_TEXTS = {".csv": _TEXT, ".tsv": _TEXT, ".txt": _TEXT, ".jsonl": _JSON, ".ndjson": _JSON}
FORMATS: dict[str, Format] = {
    ".npz": Format(read_npz, write_npz, table=False),
    ".safetensors": Format(read_safetensors, write_safetensors, _safetensors_pieces, table=False),
    ".npy": Format(read_npy, None, _npy_pieces, table=False),
    ".pt": Format(read_torch, table=False),
    ".pth": Format(read_torch, table=False),
    ".parquet": Format(read_parquet, write_parquet, _scan_parquet),
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _ARROW),
    **_TEXTS,
    ".xlsx": Format(read_workbook, write_workbook, text=True),
    **{text + packed: format for text, format in _TEXTS.items() for packed in COMPRESSED},
}
TABLES = {suffix: format for suffix, format in FORMATS.items() if format.table}
PIECES = {suffix: format.pieces for suffix, format in FORMATS.items() if format.pieces is not None}
