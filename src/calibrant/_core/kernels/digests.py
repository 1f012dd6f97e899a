"""Digests of JSON and of arrays."""

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant._core.arrays import is_torch_array


def json_digest(content: Any) -> str:
    """Return the SHA-256 hex digest of JSON content with sorted keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def arrays_digest(metadata: Mapping[str, str], arrays: Mapping[str, Any]) -> str:
    """Return the SHA-256 hex digest of metadata, and of the names, types, shapes and bytes of arrays by name.

    Tensors have the digest of equal arrays. Files of earlier versions name the types as torch does.
    """
    digest = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for key in sorted(arrays):
        dtype, shape, content = _describe(arrays[key])
        digest.update(f"{key} {dtype} {shape} ".encode())
        digest.update(content)
    return digest.hexdigest()


def _describe(array: Any) -> tuple[str, tuple[int, ...], bytes]:
    """Return the type in the words of torch, the shape and the bytes of an array or tensor."""
    if is_torch_array(array):  # also of bfloat16, which numpy lacks
        flat = array.detach().cpu().contiguous().reshape(-1)
        return str(array.dtype), tuple(array.shape), flat.view(sys.modules["torch"].uint8).numpy().tobytes()
    return f"torch.{array.dtype}", array.shape, np.ascontiguousarray(array).tobytes()
