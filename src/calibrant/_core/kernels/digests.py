"""Digests of JSON and of tensors."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def json_digest(content: Any) -> str:
    """Return the SHA-256 hex digest of JSON content with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def tensors_digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 hex digest of metadata, and of the names, types, shapes and bytes of CPU tensors by name."""
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for key in sorted(tensors):
        value = tensors[key]
        digest.update(f"{key} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
