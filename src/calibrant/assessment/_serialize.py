"""Results as plain numbers, lists and texts, with their provenance, and as files."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.arrays import is_torch_array
from calibrant.predictions import Predictions


def serialize_fitted(calibrator: Any) -> dict[str, Any]:
    """Return the fields of a fitted calibrator, or its attributes if it is no dataclass, as builtin types."""
    if is_dataclass(calibrator):
        names = [field.name for field in fields(calibrator)]
        return {name: to_builtin(getattr(calibrator, name)) for name in names}
    return {name: to_builtin(value) for name, value in getattr(calibrator, "__dict__", {}).items()}


def to_builtin(value: Any) -> Any:
    """Convert a value to numbers, texts, lists and dictionaries.

    Classes and functions become {"name": NAME}; any other object becomes its class's name and its fields.
    """
    if isinstance(value, np.ndarray | np.generic) or is_torch_array(value):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_builtin(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_builtin(item) for key, item in value.items()}
    if callable(value) and hasattr(value, "__qualname__"):
        return {"name": value.__qualname__}
    return {"name": type(value).__name__} | serialize_fitted(value)


def encode_nonfinite(value: Any) -> Any:
    """Replace NaN by None and infinities by "inf" and "-inf", which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {key: encode_nonfinite(item) for key, item in value.items()}
    return [encode_nonfinite(item) for item in value] if isinstance(value, list) else value


def data_source(
    role: str, p: Predictions | None = None, *, path: str | Path | None = None, n: int | None = None
) -> dict[str, Any]:
    """Describe one set of predictions for the provenance.

    Args:
        role: What the data was used for: "measured", "fitted", "judged" or "cross-fitted".
        p: The predictions. Leave them out for data read in chunks, which has no digest.
        path: The file that they were read from.
        n: Number of rows, if `p` is left out.
    """
    return {
        "role": role,
        "path": None if path is None else str(path),
        "n": n if p is None else p.num_examples,
        "digest": None if p is None else p.digest,
        "notes": [] if p is None else list(p.notes),
    }


def calibrator_source(role: str, path: str | Path) -> dict[str, Any]:
    """Describe a saved calibrator for the provenance: role, file, first 16 hex digits of the file's SHA-256."""
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    return {"role": role, "path": str(path), "digest": digest}
