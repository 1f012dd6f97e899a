"""Readers and writers of single files, by format: arrays by name, and tables as polars frames."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.io.columns import TableOptions
from calibrant.io.delimited import (
    DelimitedText,
    Dialect,
    format_delimited,
    parse_number_columns,
    read_decompressed,
    read_delimited,
    replace_missing_words,
    to_utf8,
    write_compressed,
)
from calibrant.io.excel import read_excel, write_excel
from calibrant.types import InputError

SCORE_KEYS = ("logits", "probs", "confidence")
NAME_LIST_KEYS = ("class_names", "group_names")
ROW_ARRAY_KEYS = ("labels", "label", "correct", "weights", "clusters", "groups", "ids")
ARRAY_DTYPE_KINDS = "biufUS"  # kinds of numpy arrays that a file may hold: numbers and texts


@dataclass(frozen=True, eq=False)
class Table:
    """A table that was read, with what there is to report; `text` is what a delimited file was read from."""

    frame: Any
    notes: tuple[str, ...] = ()
    delimited: Sequence[DelimitedText] = ()

    @property
    def dialect(self) -> Dialect | None:
        """Separator and decimal sign of the first file, None if it is no delimited text."""
        return self.delimited[0].dialect if self.delimited else None

    def texts(self, columns: Sequence[str] | None = None) -> Any:
        """Return columns of delimited text as they are spelled; None for other formats. Missing values are null."""
        import polars

        if not self.delimited:
            return None
        names = self.frame.columns if columns is None else list(columns)
        return polars.concat([part.texts().select(names) for part in self.delimited])


# Arrays


def read_npz(path: Path) -> Mapping[str, Any]:
    """Read the arrays of a .npz file."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        return select_arrays({key: file[key] for key in file.files})


def read_npy(path: Path) -> Mapping[str, Any]:
    """Read a .npy file of logits or probabilities, and the labels beside it if there are any."""
    kind, labels_path = find_npy_labels(path)
    labels = {"labels": np.load(labels_path, allow_pickle=False)} if labels_path.is_file() else {}
    return select_arrays({kind: np.load(path, allow_pickle=False)} | labels)


def find_npy_labels(path: Path) -> tuple[str, Path]:
    """Return what NAME_logits.npy or NAME_probs.npy holds, and where its labels are."""
    for kind in "logits", "probs":
        if path.stem.endswith(kind):
            return kind, path.with_name(path.stem.removesuffix(kind) + "labels.npy")
    raise InputError(
        "expected a name that ends in logits.npy or probs.npy, with its labels.npy beside it", code="npy_name"
    )


def read_safetensors(path: Path) -> Mapping[str, Any]:
    """Read the tensors of a .safetensors file, and texts from its metadata."""
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt")
    return select_arrays({key: file.get_tensor(key) for key in file.keys()} | read_metadata_texts(file))  # noqa: SIM118


def read_metadata_texts(file: Any) -> dict[str, Any]:
    """Return the names and ids that the metadata of an opened .safetensors file holds."""
    return {key: json.loads(text) for key, text in (file.metadata() or {}).items() if key in (*NAME_LIST_KEYS, "ids")}


def read_torch(path: Path) -> Mapping[str, Any]:
    """Read a dict of tensors; nothing else is unpickled."""
    value = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(value, Mapping):
        raise InputError(f"expected a dict with 'logits' and 'labels', got {type(value).__name__}", code="not_a_dict")
    return select_arrays(value)  # pyright: ignore[reportUnknownArgumentType]


def select_arrays(contents: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the arrays of a file that predictions are made of; others are ignored.

    Raises `InputError` for values that are no arrays of numbers or texts with one entry per example.
    """
    if not any(name in contents for name in SCORE_KEYS):
        got = ", ".join(repr(str(key)[:40]) for key in list(contents)[:8]) or "nothing"
        raise InputError(
            f"expected 'labels' and either 'logits' or 'probs', or 'confidence' and 'correct', got {got}",
            code="no_scores",
        )
    arrays = {name: _to_array(name, contents[name]) for name in (*SCORE_KEYS, *ROW_ARRAY_KEYS) if name in contents}
    names = {name: _to_names(name, contents[name]) for name in NAME_LIST_KEYS if name in contents}
    if "groups" in arrays and "group_names" in names:
        _check_groups(arrays["groups"], names["group_names"])
    return arrays | names


def _to_array(name: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        if value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_meta:
            raise InputError(f"expected a plain tensor {name!r}, got another layout; convert it", code="odd_tensor")
        value = value.detach()
    elif isinstance(value, np.ndarray | list | tuple):
        try:
            value = np.asarray(value)
        except ValueError:  # lists of different lengths
            raise InputError(f"expected an array {name!r}, got lists of different lengths", code="odd_array") from None
        if value.dtype.kind not in ARRAY_DTYPE_KINDS:
            raise InputError(f"expected numbers or texts in {name!r}, got {value.dtype}", code="odd_array")
    else:
        raise InputError(f"expected an array {name!r}, got {type(value).__name__}", code="odd_array")
    if not value.ndim:
        raise InputError(f"expected an array {name!r} with an entry per example, got a single value", code="scalar")
    return value


def _to_names(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, Tensor):
        value = value.detach().numpy()
    if isinstance(value, np.ndarray):
        texts = value.astype(str) if value.dtype.kind == "S" else value
        value = texts.tolist() if value.ndim == 1 and value.dtype.kind in ARRAY_DTYPE_KINDS else None
    if not isinstance(value, list | tuple) or not all(isinstance(entry, str | int | float) for entry in value):
        raise InputError(f"expected a list of names as {name!r}", code="odd_names")
    return tuple(map(str, value))


def _check_groups(groups: Any, names: Sequence[str]) -> None:
    """Raise `InputError` unless groups are places in the list of their names."""
    numbers = np.asarray(groups)
    if numbers.dtype.kind not in "iu" or (numbers.size and not 0 <= int(numbers.min()) <= numbers.max() < len(names)):
        raise InputError(
            f"expected groups to be whole numbers in [0, {len(names)}), the places of their group_names; without "
            "group_names, groups may be any names or numbers",
            code="group_range",
        )


def write_npz(arrays: Mapping[str, Any], names: Mapping[str, Sequence[str]], path: Path) -> None:
    """Write arrays to a .npz file."""
    values = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in arrays.items()}
    np.savez_compressed(path, **values, **{key: np.array(entries) for key, entries in names.items()})  # pyright: ignore


def write_safetensors(arrays: Mapping[str, Any], names: Mapping[str, Sequence[str]], path: Path) -> None:
    """Write arrays to a .safetensors file, texts into its metadata."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    texts = {key: json.dumps(list(entries)) for key, entries in names.items()}
    for key, value in arrays.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "US":
            texts[key] = json.dumps(value.tolist())
        else:
            tensors[key] = torch.as_tensor(value).contiguous()
    save_file(tensors, path, texts)


# Tables


def read_text(path: Path, options: TableOptions) -> Table:
    """Read delimited text."""
    delimited = read_delimited(path, options.encoding, options.na)
    return Table(delimited.frame, delimited.notes, (delimited,))


def read_jsonl(path: Path, options: TableOptions) -> Table:
    """Read a JSON object per line."""
    import io

    import polars

    content, notes = to_utf8(read_decompressed(path), options.encoding)
    if not content.strip():
        raise InputError("expected a JSON object per line, got blank lines only", code="no_rows")
    return Table(polars.read_ndjson(io.BytesIO(content), infer_schema_length=None), notes)


def read_parquet(path: Path, options: TableOptions) -> Table:
    """Read a Parquet file."""
    import polars

    return Table(polars.read_parquet(path, glob=False))


def read_arrow(path: Path, options: TableOptions) -> Table:
    """Read an Arrow file or stream."""
    import polars

    with path.open("rb", buffering=0) as file:  # polars reads from where the system is, not Python's buffer
        magic_bytes = file.read(6)
        file.seek(0)
        return Table(polars.read_ipc(file) if magic_bytes == b"ARROW1" else polars.read_ipc_stream(file))


def read_workbook(path: Path, options: TableOptions) -> Table:
    """Read the first sheet of an Excel workbook."""
    frame, notes = read_excel(path)
    return Table(parse_number_columns(replace_missing_words(frame, options.na))[0], notes)


def write_text(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write delimited text; .tsv has tabs whatever the dialect is."""
    dialect = dialect or Dialect()
    separator = "\t" if ".tsv" in [suffix.lower() for suffix in path.suffixes] else dialect.separator
    write_compressed(format_delimited(frame, Dialect(separator, dialect.decimal_comma)), path)


def write_jsonl(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write a JSON object per line; infinite numbers, which JSON lacks, as text."""
    import polars

    infinite_columns = [
        name for name, kind in frame.schema.items() if kind.is_float() and frame[name].is_infinite().any()
    ]
    write_compressed(frame.with_columns(polars.col(infinite_columns).cast(polars.String)).write_ndjson(), path)


def write_workbook(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write the only sheet of an Excel workbook."""
    write_excel(frame, path)


def write_parquet(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write a Parquet file."""
    frame.write_parquet(path)


def write_arrow(frame: Any, path: Path, dialect: Dialect | None) -> None:
    """Write an Arrow file."""
    frame.write_ipc(path)


TableReader = Callable[[Path, TableOptions], Table]
TableWriter = Callable[[Any, Path, Dialect | None], None]
