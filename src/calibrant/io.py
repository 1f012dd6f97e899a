"""Files: every reader, whole or in pieces, every writer, and writing so that a kill leaves the old file or the new."""

import fnmatch
import gzip
import json
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._arrays import arrays_of, check_weights, with_options
from calibrant._columns import Columns, TableOptions
from calibrant._readings import columns_of, require_labels
from calibrant._text import cell
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
        raise InputError(f"cannot write {path}: it is a folder; give a file name in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder") from None
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
    return [source, *_labels_beside(source)]


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
    try:
        return folder.with_name(folder.name.swapcase()).samefile(folder)
    except (OSError, ValueError):
        return False


def _labels_beside(path: Path) -> list[Path]:
    """Return the files of labels that are read with a .npy file of logits or probs."""
    return [_beside(path)[1]] if _suffix(path) == ".npy" and path.stem.endswith(("logits", "probs")) else []


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


def write(path: str | Path, arrays: Mapping[str, Tensor], names: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """Write logits, labels and what else there is as .npz, .safetensors or a table, as `read` finds them.

    `names` are those of classes and groups.
    """
    suffix = _suffix(path)
    if suffix not in WRITTEN:
        raise InputError(f"{path}: can write {', '.join(WRITTEN)}, not {suffix or 'no suffix'!r}")
    with atomic_write(path) as draft:
        if suffix == ".npz":
            texts = {key: np.array(each) for key, each in (names or {}).items()}
            np.savez_compressed(draft, **{key: value.numpy() for key, value in arrays.items()}, **texts)  # pyright: ignore
        elif suffix == ".safetensors":
            from safetensors.torch import save_file

            save_file(dict(arrays), draft, {key: json.dumps(each) for key, each in (names or {}).items()})
        else:
            write_table(draft, _frame(arrays, names or {}))


def write_table(path: Path, frame: Any) -> None:
    """Write a polars frame in the format of the path's suffix."""
    writer = WRITTEN[_suffix(path)]
    assert writer is not None
    writer(frame, path)


def _frame(arrays: Mapping[str, Tensor], names: Mapping[str, tuple[str, ...]]) -> Any:
    import polars

    logits, classes = arrays["logits"].numpy(), names.get("class_names")
    called = classes or tuple(map(str, range(logits.shape[1])))
    columns: dict[str, Any] = {f"logit_{name}": logits[:, i] for i, name in enumerate(called)}
    if "labels" in arrays:
        labels = arrays["labels"].numpy()
        columns["label"] = labels if classes is None else np.array(classes)[labels]
    columns |= {name: arrays[name].numpy() for name in ("weights", "clusters") if name in arrays}
    if "groups" in arrays:
        columns["group"] = np.array(names["group_names"])[arrays["groups"].numpy()]
    return polars.DataFrame(columns)


def _write_csv(frame: Any, path: Path) -> None:
    text = csv_text(frame)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


WRITTEN: dict[str, Callable[[Any, Path], None] | None] = {
    ".npz": None,
    ".safetensors": None,
    ".csv": _write_csv,
    ".csv.gz": _write_csv,
    ".tsv": lambda frame, path: frame.write_csv(path, separator="\t"),
    ".jsonl": lambda frame, path: frame.write_ndjson(path),
    ".parquet": lambda frame, path: frame.write_parquet(path),
    ".arrow": lambda frame, path: frame.write_ipc(path),
}


# Reading


def read(path: str | Path, options: TableOptions | None = None, *, labeled: bool = True) -> Arrays:
    """Read the arrays of a file whole, or of all tables of a folder or pattern.

    `options` say how tables are read; `labeled` tables must have labels. Raises `InputError` with the reason if there
    is nothing to read.
    """
    options = options or TableOptions()
    if (suffix := _suffix(path)) in ARRAYS:
        path = Path(path)
        _there(path, ARRAYS)
        if options.columns:
            raise InputError(
                f"a {suffix} file has arrays, no columns: leave out {', '.join(options.columns)}", code="no_columns"
            )
        return with_options(_telling(path, lambda: ARRAYS[suffix](path)), options)
    frame = table(path, options)
    columns = columns_of(frame, options)
    if labeled:
        require_labels(columns, frame)
    return arrays_of(frame, columns, options)


def is_table(path: str | Path) -> bool:
    """Whether a path is that of a table, or of a folder or pattern of tables."""
    return _suffix(path) in TABLES or Path(path).is_dir()


def table(path: str | Path, options: TableOptions | None = None) -> Any:
    """Read a table as a polars frame: a file, or all files of a folder or of a pattern such as `part-*.parquet`."""
    import polars

    frames = [_telling(file, lambda file=file: TABLES[_suffix(file)](file)) for file in files_of(path)]
    return polars.concat(_alike(frames), how="vertical_relaxed") if len(frames) > 1 else frames[0]


def _alike(frames: list[Any]) -> list[Any]:
    """Frames with their columns in the order of the first; raises `InputError` where they have others."""
    columns = [frame.collect_schema().names() for frame in frames]
    if len({frozenset(names) for names in columns}) > 1:
        raise InputError("the files of a folder or pattern must have the same columns")
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
        _there(file, ARRAYS | TABLES)
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
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"not a readable table ({type(error).__name__}: {reason})") from None
    raise InputError(f"expected a polars, pandas or Arrow table, a data set or a path, got {type(table).__name__}")


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
        return _suffix(path) in PIECES or _suffix(files_of(path)[0]) in _TABLE_PIECES
    except InputError:
        return False


def pieces_of(path: str | Path, options: TableOptions | None = None) -> Pieces:
    """Open a .parquet, .arrow, .safetensors or .npy file, or tables of a folder, to read some rows at a time."""
    options = options or TableOptions()
    if (suffix := _suffix(path)) in ARRAYS:
        path = Path(path)
        _there(path, PIECES)
        whole = _telling(path, lambda: PIECES[suffix](path))
        return replace(whole, read=lambda rows: with_options(whole.read(rows), options))
    if suffix in ARRAYS:
        _there(Path(path), PIECES | _TABLE_PIECES)
    files = files_of(path)
    if (suffix := _suffix(files[0])) not in _TABLE_PIECES:
        _there(files[0], PIECES | _TABLE_PIECES)
    return _telling(Path(path), lambda: _table_pieces(files, options))


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
        raise InputError(f"expected 'labels' and either 'logits' or 'probs', or 'confidence' and 'correct', got {got}")
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
        whole = suffix in ARRAYS or suffix in TABLES
        raise InputError(
            f"cannot be read in pieces; expected one of {', '.join(readers)} (Predictions.load reads it whole)"
            if whole
            else f"cannot tell the format from {suffix or 'no suffix'!r}; expected one of {', '.join(readers)}"
        )
    if not path.is_file():
        raise InputError("no such file")
    if path.stat().st_size == 0:
        raise InputError("the file is empty (0 bytes)")


def _telling(path: Path, reader: Callable[[], Any]) -> Any:
    try:
        return reader()
    except InputError:
        raise
    except BaseException as error:  # third-party readers raise anything; the reason matters, their type does not
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # of polars, no Exception
            raise
        reason = " ".join(str(error).split())[:200]
        kind = f"{_suffix(path)} file".strip() if path.is_file() else "table"
        raise InputError(f"not a readable {kind} ({type(error).__name__}: {reason})") from None


def _npz(path: Path) -> Arrays:
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def _npy(path: Path) -> Arrays:
    kind, beside = _beside(path)
    labels = {"labels": np.load(beside, allow_pickle=False)} if beside.is_file() else {}
    return {kind: np.load(path, allow_pickle=False)} | labels


def _beside(path: Path) -> tuple[str, Path]:
    """Return what NAME_logits.npy or NAME_probs.npy holds, and where its labels are."""
    for kind in "logits", "probs":
        if path.stem.endswith(kind):
            return kind, path.with_name(path.stem.removesuffix(kind) + "labels.npy")
    raise InputError("expected a name that ends in logits.npy or probs.npy, with its labels.npy beside it")


def _safetensors(path: Path) -> Arrays:
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt")
    names = {key: tuple(json.loads(text)) for key, text in (file.metadata() or {}).items() if key in NAMED}
    return {key: file.get_tensor(key) for key in file.keys()} | names  # noqa: SIM118  no mapping


def _torch(path: Path) -> Arrays:
    value = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(value, Mapping):
        raise InputError(f"expected a dict with 'logits' and 'labels', got {type(value).__name__}")
    return value  # pyright: ignore[reportUnknownVariableType]


# Tables


def _csv(path: Path) -> Any:
    """Text with any separator: the one of , ; tab | that the first line has most often."""
    import polars

    whole_lines: dict[str, Any] = {"separator": "\x01", "quote_char": None, "has_header": False, "n_rows": 1}
    first = str(polars.read_csv(path, glob=False, **whole_lines).item())
    separator = max(",;\t|", key=re.sub('"[^"]*"', "", first).count)
    more: dict[str, Any] = {"separator": separator, "infer_schema_length": None, "glob": False}  # numbers may end late
    frame = polars.read_csv(path, **more)
    commas = separator == ";" and any(
        kind == polars.String and frame[name].str.contains(r"^-?\d+,\d+$").any() for name, kind in frame.schema.items()
    )
    frame = polars.read_csv(path, decimal_comma=True, **more) if commas else frame
    return frame.rename(str.strip) if len({*map(str.strip, frame.columns)}) == frame.width else frame


def _jsonl(path: Path) -> Any:
    import polars

    return polars.read_ndjson(path, infer_schema_length=None)


def _parquet(path: Path) -> Any:
    import polars

    return polars.read_parquet(path, glob=False)


def _arrow(path: Path) -> Any:
    import polars

    with path.open("rb", buffering=0) as file:  # polars reads from where the system is, not Python's buffer
        starts = file.read(6)
        file.seek(0)
        return polars.read_ipc(file) if starts == b"ARROW1" else polars.read_ipc_stream(file)


# Pieces


def _npy_pieces(path: Path) -> Pieces:
    kind, beside = _beside(path)
    if not beside.is_file():
        raise InputError(f"expected its labels beside it in {beside.name}")
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
    views = {name: file.get_slice(name) for name in (kind, of, "weights", "clusters", "groups") if name in names}
    shape = views[kind].get_shape()
    _same_length(shape[0], views[of].get_shape()[0])
    width = int(np.prod(shape[1:]))
    return Pieces(shape[0], width, lambda rows: {name: view[rows.start : rows.stop] for name, view in views.items()})


def _table_pieces(files: list[Path], options: TableOptions) -> Pieces:
    import polars

    scans = [_TABLE_PIECES[_suffix(file)](file) for file in files]
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
        return arrays_of(some.collect(), columns, options, whole=False)

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
        raise InputError(f"expected one label per row, got {n} rows and {m} labels")


NAMED = ("class_names", "group_names")
COMPRESSED = (".gz", ".zst")
ARRAYS: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".pt": _torch,
    ".pth": _torch,
}
TEXTS = {".csv": _csv, ".tsv": _csv, ".txt": _csv, ".jsonl": _jsonl, ".ndjson": _jsonl}
TABLES: dict[str, Callable[[Path], Any]] = {
    ".parquet": _parquet,
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _arrow),
    **TEXTS,
    **{text + packed: reader for text, reader in TEXTS.items() for packed in COMPRESSED},
}
PIECES: dict[str, Callable[[Path], Pieces]] = {
    ".safetensors": _safetensors_pieces,
    ".npy": _npy_pieces,
}
_TABLE_PIECES: dict[str, Callable[[Path], Any]] = {
    ".parquet": _scan_parquet,
    **dict.fromkeys((".arrow", ".feather", ".ipc"), _scan_arrow),
}
