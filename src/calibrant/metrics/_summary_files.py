"""Files of summaries: the sums as tensors, and everything else as metadata, in one .safetensors file."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant.backend.digests import tensors_digest
from calibrant.io.arrays import read_tensors
from calibrant.io.files import atomic_write
from calibrant.metrics._class_sums import ClassSums
from calibrant.metrics._sums import GroupSums
from calibrant.types import InputError

SUMMARY_FORMAT = "calibrant-summary"
SUMMARY_VERSION = "1"
_CLASSES_OF_PARTS: dict[str, type] = {"groups": GroupSums, "row_groups": GroupSums, "classes": ClassSums}


def write_summary(summary: Any, path: Path) -> None:
    """Write the fields of a `Summary`."""
    from safetensors.torch import save

    tensors: dict[str, Tensor] = {}
    settings = _split_fields(summary, "", tensors)
    metadata = {
        "format": SUMMARY_FORMAT,
        "version": SUMMARY_VERSION,
        "settings": json.dumps(settings),
    }
    with atomic_write(path) as draft:
        draft.write_bytes(save(tensors, metadata | {"sha256": tensors_digest(metadata, tensors)}))


def read_summary(path: Path) -> dict[str, Any]:
    """Return the fields of a `Summary`. Raises `InputError` for another or a damaged file."""
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != SUMMARY_FORMAT:
        raise InputError("Expected a file of Summary.save, got another file.", code="summary_file")
    if metadata.get("version") != SUMMARY_VERSION:
        raise InputError(
            f"Expected a summary of version {SUMMARY_VERSION}, got {metadata.get('version')}. Try upgrading calibrant.",
            code="newer_format",
        )
    if metadata.pop("sha256", "") != tensors_digest(metadata, tensors):
        raise InputError("Expected the summary as it was written, got a damaged or changed file.", code="checksum")
    values = _join_fields(json.loads(metadata["settings"]), "", tensors)
    for name, part in _CLASSES_OF_PARTS.items():
        if values[name] is not None:
            values[name] = part(**_join_fields(values[name], f"{name}.", tensors))
    return values


def _split_fields(value: Any, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the fields that are not tensors, and add the others to `tensors`, with a prefix such as "groups."."""
    settings = dict[str, Any]()
    for field in fields(value):
        part = getattr(value, field.name)
        if isinstance(part, Tensor):
            tensors[prefix + field.name] = part.cpu().contiguous()
        elif is_dataclass(part):
            settings[field.name] = _split_fields(part, f"{field.name}.", tensors)
        else:
            settings[field.name] = part
    return settings


def _join_fields(settings: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the fields that `_split_fields` separated, with tuples in place of JSON's lists."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    names = {key: key.rpartition(".")[2] for key in tensors}
    return values | {names[key]: tensor for key, tensor in tensors.items() if key == prefix + names[key]}
