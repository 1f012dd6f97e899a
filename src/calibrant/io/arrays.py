"""Files of named arrays: .npz, .npy, .safetensors and dicts of tensors, whole or in chunks."""

import json
import math
import pickle
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from calibrant._core.arrays import is_torch_array, open_safetensors, read_arrays, to_numpy
from calibrant._core.expansion import check_archive, check_expansion, check_pickle
from calibrant._core.foreign import parse_json
from calibrant._core.lazy import import_optional
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.contents import Chunk, ChunkedFile, Contents, missing_scores_error
from calibrant.io.formats import CALIBRATOR_FORMAT
from calibrant.predictions.validation.arrays import to_array
from calibrant.predictions.validation.names import to_unique_names

LABEL_ARRAY_KEYS = ("labels", "label", "correct")
ROW_KEYS = ("weights", "clusters", "groups", "examples", "ids")  # as the fields of `Contents`
TEXT_KEYS = {  # of lists of texts: the field of `Contents`, and whether the list is a single text
    "class_names": ("class_names", False),
    "group_names": ("group_names", False),
    "evaluated_event": ("event", True),
    "weights_are": ("weights_are", True),
}


def find_score_and_label_keys(names: Iterable[str]) -> tuple[str, str | None]:
    """Return the names of the scores (confidence, logits or probs) and of the labels, if there are any, in a file.

    Raises:
        InputError: If there is no kind of scores, if there are several, or if labels do not suit them.
    """
    names = {*names}
    has_confidences_alone = "confidence" in names and not {"logits", "probs"} & names
    if has_confidences_alone and ("correct" in names or not {*LABEL_ARRAY_KEYS} & names):
        return "confidence", "correct" if "correct" in names else None
    score_keys = [key for key in ("logits", "probs") if key in names]
    label_keys = [key for key in ("labels", "label") if key in names]
    # Labels may be missing, since only some commands need them
    if len(score_keys) != 1 or len(label_keys) > 1 or (not label_keys and "correct" in names):
        raise missing_scores_error(sorted(names - {*TEXT_KEYS, "ids"}))
    return score_keys[0], next(iter(label_keys), None)


# Reading


def read_npz(path: Path) -> Contents:
    """Read the arrays of a .npz file."""
    check_archive(path)
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
        return arrays_to_contents({key: file[key] for key in file.files})


def read_npy(path: Path) -> Contents:
    """Read NAME_logits.npy or NAME_probs.npy, and the labels in NAME_labels.npy if this file exists."""
    kind, labels_path = _parse_npy_name(path)
    labels = {"labels": np.load(labels_path, allow_pickle=False)} if labels_path.is_file() else {}
    return arrays_to_contents({kind: np.load(path, allow_pickle=False)} | labels)


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


def read_safetensors(path: Path) -> Contents:
    """Read the tensors of a .safetensors file, and the names in its metadata."""
    arrays, metadata = read_arrays(path)
    if metadata.get("format") == CALIBRATOR_FORMAT:
        raise InputError("Expected predictions, got a calibrator. Try calibrators.load, or apply.", code="calibrator")
    return arrays_to_contents(arrays | _metadata_lists(metadata))


def _metadata_lists(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Return the names of classes and groups, and the ids, from JSON in the metadata of a .safetensors file."""
    shapes: dict[str, Any] = {key: [str] for key in TEXT_KEYS} | {"ids": [(str, int, float)]}
    lists: dict[str, Any] = {}
    for key in shapes.keys() & metadata.keys():
        with prefix_errors(f"{key} in the metadata"):
            lists[key] = parse_json(metadata[key], shapes[key])
    return lists


def read_torch(path: Path) -> Contents:
    """Read a dict of tensors, without unpickling anything else."""
    check_archive(path)
    check_pickle(path)
    torch = import_optional("torch", "torch", "Reading a file of tensors")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about protocols of pickle that it may not support
            value = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # whose message suggests to run what the file says
        raise InputError(
            "Expected a dict of tensors, got a damaged file or other objects, which could run code. Try "
            'torch.save({"logits": logits, "labels": labels}, path).',
            code="unreadable",
        ) from None
    if not isinstance(value, Mapping):
        raise InputError(f"Expected a dict with 'logits' and 'labels', got {type(value).__name__}.", code="not_a_dict")
    tensors = [x for x in value.values() if is_torch_array(x)]  # pyright: ignore
    num_bytes = sum(x.numel() * x.element_size() for x in tensors)  # of views of few numbers, too
    check_expansion(path.stat().st_size, num_bytes)
    return arrays_to_contents(value)  # pyright: ignore[reportUnknownArgumentType]


def arrays_to_contents(arrays: Mapping[Any, Any]) -> Contents:
    """Return the arrays of a file that are parts of predictions, and ignore others.

    Raises:
        InputError: If scores are missing, a tensor is not dense, or names are no list of texts.
    """
    kind, label_key = find_score_and_label_keys(map(str, arrays))
    used_keys = [name for name in (kind, label_key, *ROW_KEYS) if name is not None and name in arrays]
    values: dict[Any, Any] = {}
    for name in used_keys:
        value = arrays[name]
        values[name] = to_array(value, name) if is_torch_array(value) else np.asarray(value)
    if "ids" in values:
        values["ids"] = np.atleast_1d(values["ids"]).tolist()  # plain values: str() of an element of a tensor is no id
    for name, (field, is_single) in TEXT_KEYS.items():
        if name in arrays:
            values[field] = ", ".join(to_unique_names(arrays[name], name)) if is_single else arrays[name]
    return Contents(kind, values.pop(kind), values.pop(label_key, None), **values)


# Reading in chunks


def open_npy_chunked(path: Path) -> ChunkedFile:
    """Open NAME_logits.npy or NAME_probs.npy with its labels, to be read in chunks."""
    kind, labels_path = _parse_npy_name(path)
    if not labels_path.is_file():
        raise InputError(f"Expected labels in {shorten_repr(labels_path.name)}, got no such file.", code="no_labels")
    values, labels = (np.load(file, mmap_mode="r", allow_pickle=False) for file in (path, labels_path))
    _check_same_length(len(values), len(labels))

    def read_chunk(rows: slice) -> Chunk:
        """Copy some rows from the file, which stays on disk."""
        return Chunk(Contents(kind, np.array(values[rows]), np.array(labels[rows])), Counter())

    return ChunkedFile(len(values), math.prod(values.shape[1:]), read_chunk)


def open_safetensors_chunked(path: Path) -> ChunkedFile:
    """Open a .safetensors file, to be read in chunks."""
    file = open_safetensors(path)
    score_key, label_key = find_score_and_label_keys(file.keys())
    name_lists = _metadata_lists(file.metadata() or {})
    name_lists.pop("ids", None)  # of all rows, unlike the arrays of a chunk
    if label_key is None:
        raise missing_scores_error(list(file.keys()))
    row_arrays = {score_key, label_key, "weights", "clusters", "groups", "examples"} & {*file.keys()}
    views = {name: file.get_slice(name) for name in row_arrays}
    num_rows, *row_shape = views[score_key].get_shape()
    _check_same_length(num_rows, views[label_key].get_shape()[0])

    def read_chunk(rows: slice) -> Chunk:
        """Read some rows of every array, with the names of classes and groups in the file."""
        return Chunk(
            arrays_to_contents(
                {name: to_numpy(view[rows.start : rows.stop]) for name, view in views.items()} | name_lists
            ),
            Counter(),
        )

    is_known = "weights_are" in name_lists or "clusters" in views or "weights" not in views
    has_fractions = not is_known and bool((to_numpy(file.get_tensor("weights")) % 1 != 0).any())
    return ChunkedFile(num_rows, math.prod(row_shape), read_chunk, has_fractional_weights=has_fractions)


def _check_same_length(num_rows: int, num_labels: int) -> None:
    """Raise `InputError` unless there are as many labels as rows of scores."""
    if num_rows != num_labels:
        raise InputError(f"Expected one label per row, got {num_rows} rows and {num_labels} labels.", code="shape")


# Writing


def write_npz(contents: Contents, path: Path) -> None:
    """Write arrays to a .npz file."""
    arrays, texts = _split_contents(contents)
    np.savez_compressed(path, **arrays, **{key: np.array(entries) for key, entries in texts.items()})  # pyright: ignore


def write_safetensors(contents: Contents, path: Path) -> None:
    """Write arrays to a .safetensors file, with texts in its metadata."""
    arrays, texts = _split_contents(contents)
    if (ids := arrays.get("ids")) is not None and np.asarray(ids).dtype.kind in "US":  # tensors hold no texts
        texts["ids"] = arrays.pop("ids").tolist()
    values = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
    save_file(values, path, {key: json.dumps(list(entries)) for key, entries in texts.items()})


def _split_contents(contents: Contents) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arrays of a file, and its lists of texts, by their keys."""
    arrays = {contents.kind: contents.scores, "labels": contents.labels}
    arrays |= {key: getattr(contents, key) for key in ROW_KEYS}
    texts: dict[str, Any] = {}
    for key, (field, is_single) in TEXT_KEYS.items():
        if (value := getattr(contents, field)) is not None:
            texts[key] = [value] if is_single else value
    return {key: value for key, value in arrays.items() if value is not None}, texts
