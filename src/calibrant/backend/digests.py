"""Files of tensors, and digests of what they hold."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from calibrant._text import to_one_line
from calibrant.types import InputError


def tensors_digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 digest, as hex digits, of metadata and tensors on the CPU, in the order of their names."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for key in sorted(tensors):
        value = tensors[key]
        digest.update(f"{key} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Return the metadata and tensors of a safetensors file."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"Expected a file, got {path}, which does not exist. Try another path.", code="no_file")
    try:
        with safe_open(path, "pt") as file:
            return dict(file.metadata() or {}), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"Expected a safetensors file, got {path} ({to_one_line(error)}).", code="unreadable"
        ) from None
