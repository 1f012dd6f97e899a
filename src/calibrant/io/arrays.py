"""Files of named arrays: .npz, .npy, .safetensors and dicts of tensors, whole or in chunks."""

import json
import math
import pickle
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from calibrant._core.expansion import check_archive, check_expansion, check_pickle
from calibrant._core.foreign import parse_json
from calibrant._core.tensors import read_tensors
from calibrant._core.text import shorten_list, shorten_repr
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.formats import CALIBRATOR_FORMAT
from calibrant.predictions.validation.arrays import to_tensor

SCORE_KEYS = ("logits", "probs", "confidence")
NAME_LIST_KEYS = ("class_names", "group_names", "evaluated_event", "weights_are")  # the last two have one entry
ROW_ARRAY_KEYS = ("labels", "label", "correct", "weights", "clusters", "groups", "examples", "ids")
Arrays = Mapping[str, Any]  # by name: logits or probs, labels, weights, clusters, groups, names


@dataclass(frozen=True)
class ChunkedFile:
    """A file that is read some rows at a time."""

    num_rows: int
    numbers_per_row: int  # of the scores
    read: Callable[[slice], Arrays]
    notes: tuple[str, ...] = ()  # sentences on the roles of columns
    has_fractional_weights: bool = False  # without clusters or a word on what they are


def find_score_and_label_keys(names: Iterable[str]) -> tuple[str, str]:
    """Return the names of the scores (confidence, logits or probs) and of the labels in a file.

    Raises:
        InputError: Unless there are either one kind of scores with labels, or confidence with correct.
    """
    names = {*names}
    if {"confidence", "correct"} <= names and not {"logits", "probs"} & names:
        return "confidence", "correct"
    score_keys = [key for key in ("logits", "probs") if key in names]
    label_keys = [key for key in ("labels", "label") if key in names]
    if len(score_keys) != 1 or len(label_keys) != 1:
        raise _missing_scores_error(sorted(names - {*NAME_LIST_KEYS, "ids", "notes", "is_multilabel", "event_kind"}))
    return score_keys[0], label_keys[0]


def _missing_scores_error(names: Sequence[str]) -> InputError:
    """Return the error for a file with none of the required arrays, which lists the arrays it has."""
    return InputError(
        "Expected 'labels' and either 'logits' or 'probs', or 'confidence' and 'correct', got "
        f"{shorten_list(names) or 'nothing'}.",
        code="no_scores",
    )


# Reading


def read_npz(path: Path) -> Arrays:
    """Read the arrays of a .npz file."""
    check_archive(path)
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        return select_arrays({key: file[key] for key in file.files})


def read_npy(path: Path) -> Arrays:
    """Read NAME_logits.npy or NAME_probs.npy, and the labels in NAME_labels.npy if this file exists."""
    kind, labels_path = _parse_npy_name(path)
    labels = {"labels": np.load(labels_path, allow_pickle=False)} if labels_path.is_file() else {}
    return select_arrays({kind: np.load(path, allow_pickle=False)} | labels)


def npy_label_files(path: Path) -> list[Path]:
    """Return a list of the one file of labels that is read with a .npy file.

    The list is empty if the name of the .npy file does not end in logits or probs.
    """
    return [_parse_npy_name(path)[1]] if path.stem.endswith(("logits", "probs")) else []


def _parse_npy_name(path: Path) -> tuple[str, Path]:
    """Return the kind of scores that the name of a .npy file tells, "logits" or "probs", and the path of its labels.

    Raises:
        InputError: If the name tells no kind.
    """
    for kind in "logits", "probs":
        if path.stem.endswith(kind):
            return kind, path.with_name(f"{path.stem.removesuffix(kind)}labels{path.suffix.lower()}")
    raise InputError(
        f"Expected a name that ends in logits or probs, got {shorten_repr(path.name)}. Try NAME_logits{path.suffix} "
        f"with NAME_labels{path.suffix} beside it.",
        code="npy_name",
    )


def read_safetensors(path: Path) -> Arrays:
    """Read the tensors of a .safetensors file, and the names in its metadata."""
    tensors, metadata = read_tensors(path)
    if metadata.get("format") == CALIBRATOR_FORMAT:
        raise InputError("Expected predictions, got a calibrator. Try calibrators.load, or apply.", code="calibrator")
    return select_arrays(tensors | _metadata_lists(metadata))


def _metadata_lists(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the names of classes and groups, and the ids, from JSON in the metadata of a .safetensors file."""
    shapes: dict[str, Any] = {key: [str] for key in NAME_LIST_KEYS} | {"ids": [(str, int, float)]}
    lists: dict[str, Any] = {}
    for key in shapes.keys() & metadata.keys():
        with prefix_errors(f"{key} in the metadata"):
            lists[key] = parse_json(metadata[key], shapes[key])
    return lists


def read_torch(path: Path) -> Arrays:
    """Read a dict of tensors, without unpickling anything else."""
    check_archive(path)
    check_pickle(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of protocols of pickle that fail
            value = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # whose message suggests to run what the file says
        raise InputError(
            "Expected a dict of tensors, got a damaged file or other objects, which could run code. Try "
            'torch.save({"logits": logits, "labels": labels}, path).',
            code="unreadable",
        ) from None
    if isinstance(value, Mapping):
        tensors = [x for x in value.values() if isinstance(x, Tensor)]  # pyright: ignore
        num_bytes = sum(x.numel() * x.element_size() for x in tensors)  # of views of few numbers, too
        check_expansion(path.stat().st_size, num_bytes)
    if not isinstance(value, Mapping):
        raise InputError(f"Expected a dict with 'logits' and 'labels', got {type(value).__name__}.", code="not_a_dict")
    return select_arrays(value)  # pyright: ignore[reportUnknownArgumentType]


def select_arrays(contents: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the arrays of a file that are parts of predictions, and ignore others.

    Raises:
        InputError: If scores are missing, or a tensor is not dense.
    """
    # Labels may be missing: only some commands need them
    if not any(name in contents for name in SCORE_KEYS):
        raise _missing_scores_error([str(key) for key in contents])
    arrays: dict[str, Any] = {name: contents[name] for name in NAME_LIST_KEYS if name in contents}
    for name in (*SCORE_KEYS, *ROW_ARRAY_KEYS):
        if name in contents:
            value = contents[name]
            arrays[name] = to_tensor(value, name) if isinstance(value, Tensor) else np.asarray(value)
    if "ids" in arrays:
        arrays["ids"] = arrays["ids"].tolist()  # plain values: str() of an element of a tensor is no id
    return arrays


# Reading in chunks


def open_npy_chunked(path: Path) -> ChunkedFile:
    """Open NAME_logits.npy or NAME_probs.npy with its labels, to be read in chunks."""
    kind, labels_path = _parse_npy_name(path)
    if not labels_path.is_file():
        raise InputError(f"Expected labels in {shorten_repr(labels_path.name)}, got no such file.", code="no_labels")
    values, labels = (np.load(file, mmap_mode="r", allow_pickle=False) for file in (path, labels_path))
    _check_same_length(len(values), len(labels))

    def read_chunk(rows: slice) -> Arrays:
        """Copy some rows from the file, which stays on disk."""
        return {kind: np.array(values[rows]), "labels": np.array(labels[rows])}

    return ChunkedFile(len(values), math.prod(values.shape[1:]), read_chunk)


def open_safetensors_chunked(path: Path) -> ChunkedFile:
    """Open a .safetensors file, to be read in chunks."""
    file = safe_open(path, framework="pt")
    score_key, label_key = find_score_and_label_keys(file.keys())
    name_lists = _metadata_lists(file.metadata() or {})
    name_lists.pop("ids", None)  # of all rows, unlike the arrays of a chunk
    row_arrays = {score_key, label_key, "weights", "clusters", "groups", "examples"} & {*file.keys()}
    views = {name: file.get_slice(name) for name in row_arrays}
    num_rows, *row_shape = views[score_key].get_shape()
    _check_same_length(num_rows, views[label_key].get_shape()[0])

    def read_chunk(rows: slice) -> Arrays:
        """Read some rows of every array, with the names of classes and groups in the file."""
        return select_arrays({name: view[rows.start : rows.stop] for name, view in views.items()} | name_lists)

    is_known = "weights_are" in name_lists or "clusters" in views or "weights" not in views
    has_fractions = not is_known and bool((file.get_tensor("weights") % 1 != 0).any())
    return ChunkedFile(num_rows, math.prod(row_shape), read_chunk, has_fractional_weights=has_fractions)


def _check_same_length(num_rows: int, num_labels: int) -> None:
    """Raise `InputError` unless there are as many labels as rows of scores."""
    if num_rows != num_labels:
        raise InputError(f"Expected one label per row, got {num_rows} rows and {num_labels} labels.", code="shape")


# Writing


def write_npz(arrays: Arrays, names: Mapping[str, Sequence[str]], path: Path) -> None:
    """Write arrays to a .npz file."""
    values = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in arrays.items()}
    np.savez_compressed(path, **values, **{key: np.array(entries) for key, entries in names.items()})  # pyright: ignore


def write_safetensors(arrays: Arrays, names: Mapping[str, Sequence[str]], path: Path) -> None:
    """Write arrays to a .safetensors file, with texts in its metadata."""
    tensors: dict[str, Tensor] = {}
    texts = {key: json.dumps(list(entries)) for key, entries in names.items()}
    for key, value in arrays.items():
        if isinstance(value, np.ndarray) and value.dtype.kind in "US":  # tensors hold no texts
            texts[key] = json.dumps(value.tolist())
        else:
            tensors[key] = torch.as_tensor(value).contiguous()
    save_file(tensors, path, texts)
