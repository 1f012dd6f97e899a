"""Arrays of any library: numpy in memory, tensors of torch and others on their device.

Code that must run where the data lie takes its functions from `namespace(x)`, the array API standard. Torch is imported
by none of this.
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_torch_array
from safetensors import SafetensorError, safe_open

from calibrant._core.errors import InputError
from calibrant._core.lazy import import_optional
from calibrant._core.text import to_one_line

__all__ = [
    "call_with_arrays",
    "is_on_cpu",
    "is_torch_array",
    "like",
    "namespace",
    "open_safetensors",
    "read_arrays",
    "read_safetensors",
    "to_numpy",
]

_NUMPY_DTYPES = {"F64", "F32", "F16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"}


def namespace(*arrays: Any) -> Any:
    """Return the functions of the array API standard for arrays of one library: `xp.exp`, `xp.where`, ..."""
    return array_namespace(*arrays)


def is_on_cpu(x: Any) -> bool:
    """Return whether an array or tensor lies in the memory of the CPU."""
    return str(x.device) == "cpu"


def to_numpy(x: Any) -> np.ndarray:
    """Return a tensor, on any device and with or without a gradient, or an array-like as an array.

    An array, and a tensor in memory, share their memory with the result. bfloat16, which numpy lacks, becomes float32.
    """
    if not is_torch_array(x):
        return np.asarray(x)
    return (x.float() if x.dtype == sys.modules["torch"].bfloat16 else x).numpy(force=True)


def like(column: np.ndarray, x: Any) -> Any:
    """Return an array of numbers as one of the library of x, on the device of x."""
    return column if isinstance(x, np.ndarray) else namespace(x).asarray(column, device=x.device)


def call_with_arrays(function: Callable[..., Any], *arrays: Any, **keywords: Any) -> Any:
    """Call a user's function with arrays, or with tensors that share their memory if it takes tensors alone.

    The second call is made if torch is loaded and the first raises `TypeError` or `AttributeError`, or computes with an
    array and a tensor, of which numpy warns.
    """
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "__array_wrap__", DeprecationWarning)
            return function(*arrays, **keywords)
    except (TypeError, AttributeError, DeprecationWarning):
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(arrays[0], np.ndarray):
            raise
        tensors = {k: torch.as_tensor(v) if isinstance(v, np.ndarray) else v for k, v in keywords.items()}
        return function(*map(torch.as_tensor, arrays), **tensors)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Return the arrays and the metadata of a .safetensors file. Raises as `read_safetensors` does."""
    arrays, metadata = read_safetensors(path, "np")
    return {key: to_numpy(value) for key, value in arrays.items()}, metadata


def read_safetensors(path: Path, framework: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the content of a .safetensors file as arrays ("np") or tensors of torch ("pt"), and its metadata.

    Raises:
        InputError: If there is no such file, or it is damaged or of another format.
    """
    if not path.is_file():
        raise InputError("There is no such file.", code="no_file")
    try:
        with open_safetensors(path, framework) as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"Expected a {path.suffix or 'safetensors'} file, got another or a damaged one ({to_one_line(error)}).",
            code="unreadable",
        ) from None


def open_safetensors(path: Path, framework: str = "np") -> Any:
    """Open a .safetensors file for arrays ("np") or tensors ("pt"), which bfloat16 needs."""
    file = safe_open(path, framework=framework)
    if framework == "np" and any(file.get_slice(key).get_dtype() not in _NUMPY_DTYPES for key in file.keys()):  # noqa: SIM118
        import_optional("torch", "torch", "Reading bfloat16 from a .safetensors file")
        return safe_open(path, framework="pt")
    return file
