"""Predictions from files that do not fit into memory, piece by piece, each checked at the door."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._types import InputError
from calibrant.predictions import Predictions

_BYTES = 64 << 20  # of logits in float64 in one piece


def stream(path: str | Path, *, rows: int | None = None, ignore_index: int | None = None) -> Iterator[Predictions]:
    """Read .parquet, .safetensors or .npy in pieces of `rows` examples; names as in `Predictions.load`.

    Pieces hold about 64 MB unless `rows` says otherwise. Pieces in which every position is ignored are left out.
    """
    path = Path(path)
    if path.suffix not in _READERS:
        raise InputError(
            f"{path}: cannot be read in pieces; expected one of {', '.join(_READERS)} (Predictions.load reads it whole)"
        )
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    classes, seen = 0, 0
    for arrays in _READERS[path.suffix](path, rows):
        kind, name = _kind(path, set(arrays))
        labels = arrays[name]
        first, seen = seen, seen + len(labels)
        if ignore_index is not None and bool((np.asarray(labels) == ignore_index).all()):
            continue
        enter: Callable[..., Predictions] = Predictions if kind == "logits" else Predictions.from_probs
        try:
            part = enter(arrays[kind], labels, arrays.get("weights"), ignore_index=ignore_index)
        except InputError as error:
            raise InputError(f"{path}, rows {first} .. {seen - 1}: {error}") from None
        if classes not in (0, part.logits.shape[1]):
            raise InputError(f"{path}: rows of {classes} classes are followed by rows of {part.logits.shape[1]}")
        classes = part.logits.shape[1]
        yield part
    if classes == 0:
        raise InputError(f"{path}: no examples")


def _slices(n: int, width: int, rows: int | None) -> Iterator[slice]:
    size = rows or max(1, _BYTES // (8 * max(1, width)))
    for first in range(0, n, size):
        yield slice(first, min(first + size, n))


def _npy(path: Path, rows: int | None) -> Iterator[Mapping[str, Any]]:
    for kind in "logits", "probs":
        if path.stem.endswith(kind):
            beside = path.with_name(path.stem.removesuffix(kind) + "labels.npy")
            if not beside.is_file():
                raise InputError(f"{path}: expected its labels beside it in {beside.name}")
            values, labels = _mapped(path), _mapped(beside)
            _same(path, len(values), len(labels))
            for piece in _slices(len(values), values[:1].size, rows):
                yield {kind: np.array(values[piece]), "labels": np.array(labels[piece])}
            return
    raise InputError(f"{path}: expected a name that ends in logits.npy or probs.npy, with its labels.npy beside it")


def _mapped(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        raise InputError(f"{path}: not a readable .npy file ({type(error).__name__})") from None


def _safetensors(path: Path, rows: int | None) -> Iterator[Mapping[str, Any]]:
    from safetensors import safe_open

    try:
        file: Any = safe_open(path, framework="pt")
    except Exception as error:
        raise InputError(f"{path}: not a readable .safetensors file ({type(error).__name__})") from None
    with file:
        names = set(file.keys())
        kind, of = _kind(path, names)
        views = {name: file.get_slice(name) for name in (kind, of, "weights") if name in names}
        shape = views[kind].get_shape()
        _same(path, shape[0], views[of].get_shape()[0])
        for piece in _slices(shape[0], int(np.prod(shape[1:])), rows):
            yield {name: view[piece.start : piece.stop] for name, view in views.items()}


def _parquet(path: Path, rows: int | None) -> Iterator[Mapping[str, Any]]:
    import polars

    from calibrant.predictions import table_arrays

    try:
        lazy = polars.scan_parquet(path)
        columns = len(lazy.collect_schema())
        n = int(lazy.select(polars.len()).collect().item())
    except Exception as error:
        raise InputError(f"{path}: not a readable .parquet file ({type(error).__name__})") from None
    for piece in _slices(n, max(columns, 16), rows):
        yield table_arrays(lazy.slice(piece.start, piece.stop - piece.start).collect())


def _kind(path: Path, names: set[str]) -> tuple[str, str]:
    kinds, labels = names & {"logits", "probs"}, names & {"labels", "label"}
    if len(kinds) != 1 or len(labels) != 1:
        raise InputError(f"{path}: expected 'labels' and either 'logits' or 'probs', got {sorted(names) or 'nothing'}")
    return kinds.pop(), labels.pop()


def _same(path: Path, n: int, m: int) -> None:
    if n != m:
        raise InputError(f"{path}: expected one label per row, got {n} rows and {m} labels")


_READERS: dict[str, Callable[[Path, int | None], Iterator[Mapping[str, Any]]]] = {
    ".parquet": _parquet,
    ".safetensors": _safetensors,
    ".npy": _npy,
}
SUFFIXES = tuple(_READERS)
