"""Files: every reader, whole or in pieces, every writer, and writing so that a kill leaves the old file or the new."""

import os
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._text import cell
from calibrant.types import InputError

_BYTES = 64 << 20  # of numbers in float64 in one piece
Arrays = Mapping[str, Any]  # by name: logits or probs, labels, weights, groups


# Writing


@contextmanager
def atomic_write(path: str | Path) -> Generator[Path, None, None]:
    """Give a path beside `path` to write to; on leaving without an error it takes the place of `path` at once.

    A kill at any moment leaves the old file or the new one, never half of either. Raises `InputError` if the folder
    cannot be written to.
    """
    path = Path(path)
    writable(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        readable_by_others(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


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
    """Make sure that nothing is written over what is read, nor over what else is written.

    Raises `InputError` otherwise.
    """
    read = [place for path in inputs if path is not None for place in (Path(path), *_labels_beside(Path(path)))]
    written: list[Path] = []
    for path in map(Path, filter(None, outputs)):
        if any(_one_file(path, other) for other in read):
            raise InputError(f"cannot write {path}: this command reads it; choose another name")
        if any(_one_file(path, other) for other in written):
            raise InputError(f"cannot write {path} twice; choose another name for one of them")
        written.append(path)


def _one_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return one.resolve() == other.resolve()


def _labels_beside(path: Path) -> list[Path]:
    return [_beside(path)[1]] if path.suffix == ".npy" and path.stem.endswith(("logits", "probs")) else []


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


def write(path: str | Path, arrays: Mapping[str, Tensor]) -> None:
    """Write logits, labels and what else there is as .npz, .safetensors, .csv or .parquet, as `read` finds them."""
    suffix = Path(path).suffix
    if suffix not in WRITTEN:
        raise InputError(f"{path}: can write {', '.join(WRITTEN)}, not {suffix or 'no suffix'!r}")
    with atomic_write(path) as draft:
        _write(draft, arrays)


WRITTEN = (".npz", ".safetensors", ".csv", ".parquet")


def _write(path: Path, arrays: Mapping[str, Tensor]) -> None:
    if path.suffix == ".npz":
        np.savez_compressed(path, **{key: value.numpy() for key, value in arrays.items()})  # pyright: ignore
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(dict(arrays), path)
    else:
        import polars

        logits = arrays["logits"].numpy()
        columns = {f"logit_{i}": logits[:, i] for i in range(logits.shape[1])} | {"label": arrays["labels"].numpy()}
        columns |= {name: arrays[name].numpy() for name in ("weights", "groups") if name in arrays}
        frame = polars.DataFrame(columns)
        frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)


# Reading


def read(path: str | Path) -> Arrays:
    """Read the arrays of a file whole. Raises `InputError` with the reason if there is nothing to read."""
    path = Path(path)
    _there(path, WHOLE)
    return _telling(path, lambda: WHOLE[path.suffix](path))


@dataclass(frozen=True)
class Pieces:
    """A file that is read some rows at a time."""

    rows: int
    width: int  # numbers in a row
    read: Callable[[slice], Arrays]


def pieces_of(path: str | Path) -> Pieces:
    """Open a .parquet, .safetensors or .npy file, to read some rows at a time."""
    path = Path(path)
    _there(path, PIECES)
    return _telling(path, lambda: PIECES[path.suffix](path))


def read_pieces(path: str | Path, rows: int | None = None) -> Iterator[Arrays]:
    """Read the arrays of a .parquet, .safetensors or .npy file in pieces of `rows` examples, or of about 64 MB."""
    file = pieces_of(path)
    size = rows or max(1, _BYTES // (8 * max(1, file.width)))
    for first in range(0, file.rows, size):
        some = slice(first, min(first + size, file.rows))
        yield _telling(Path(path), lambda some=some: file.read(some))


def kind_of(names: Mapping[str, Any] | set[str]) -> tuple[str, str]:
    """Return which of logits and probs there is, and what the labels are called."""
    kinds = [kind for kind in ("logits", "probs") if kind in names]
    labels = [name for name in ("labels", "label") if name in names]
    if len(kinds) != 1 or len(labels) != 1:
        got = ", ".join(map(repr, sorted(names))) or "nothing"
        raise InputError(f"expected 'labels' and either 'logits' or 'probs', got {got}")
    return kinds[0], labels[0]


def _there(path: Path, readers: Mapping[str, Any]) -> None:
    if path.suffix not in readers:
        whole = path.suffix in WHOLE
        raise InputError(
            f"cannot be read in pieces; expected one of {', '.join(readers)} (Predictions.load reads it whole)"
            if whole
            else f"cannot tell the format from {path.suffix or 'no suffix'!r}; expected one of {', '.join(readers)}"
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
        raise InputError(f"not a readable {path.suffix} file ({type(error).__name__}: {reason})") from None


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
    from safetensors.torch import load_file

    return load_file(path)


def _torch(path: Path) -> Arrays:
    value = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(value, Mapping):
        raise InputError(f"expected a dict with 'logits' and 'labels', got {type(value).__name__}")
    return value  # pyright: ignore[reportUnknownVariableType]


def _table(path: Path) -> Arrays:
    import polars

    if path.suffix == ".parquet":
        return table_arrays(polars.read_parquet(path, glob=False))
    return table_arrays(polars.read_csv(path, glob=False, infer_schema_length=None))  # whole numbers may end late


def table_arrays(frame: Any) -> Arrays:
    """Return the arrays of a polars frame: label, logit_0, logit_1, ... or prob_0, ..., or list columns."""
    arrays: dict[str, Any] = {}
    for name in ("label", "labels", "weights", "groups", "logits", "probs"):
        if name in frame.columns:
            column = frame[name]
            arrays[name] = np.array(column.to_list()) if column.dtype.is_nested() else column.to_numpy()
    for kind, prefix in ("logits", "logit_"), ("probs", "prob_"):
        columns = [c for c in frame.columns if c.startswith(prefix) and c.removeprefix(prefix).isdigit()]
        if columns:
            wanted = [f"{prefix}{i}" for i in range(len(columns))]
            if set(columns) != set(wanted):
                raise InputError(f"expected columns {wanted[0]} .. {wanted[-1]}, got {', '.join(sorted(columns))}")
            arrays[kind] = frame.select(wanted).to_numpy()
    if not arrays:
        raise InputError(
            f"expected columns label and logit_0, logit_1, ... (or prob_0, ...), got {', '.join(frame.columns)}"
        )
    return arrays


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
    views = {name: file.get_slice(name) for name in (kind, of, "weights", "groups") if name in names}
    shape = views[kind].get_shape()
    _same_length(shape[0], views[of].get_shape()[0])
    width = int(np.prod(shape[1:]))
    return Pieces(shape[0], width, lambda rows: {name: view[rows.start : rows.stop] for name, view in views.items()})


def _parquet_pieces(path: Path) -> Pieces:
    import polars

    lazy = polars.scan_parquet(path, glob=False)
    n = int(lazy.select(polars.len()).collect().item())
    first = table_arrays(lazy.head(1).collect())
    return Pieces(
        n,
        sum(np.size(part) for part in first.values()),
        lambda rows: table_arrays(lazy.slice(rows.start, rows.stop - rows.start).collect()),
    )


def _same_length(n: int, m: int) -> None:
    if n != m:
        raise InputError(f"expected one label per row, got {n} rows and {m} labels")


WHOLE: dict[str, Callable[[Path], Arrays]] = {
    ".npz": _npz,
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".pt": _torch,
    ".pth": _torch,
    ".csv": _table,
    ".parquet": _table,
}
PIECES: dict[str, Callable[[Path], Pieces]] = {
    ".parquet": _parquet_pieces,
    ".safetensors": _safetensors_pieces,
    ".npy": _npy_pieces,
}
