"""Results in plain numbers, lists and texts, and as files."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from calibrant import io
from calibrant.types import InputError


def serialize_fitted(calibrator: Any) -> dict[str, Any]:
    """What a fitted calibrator learned, field by field or attribute by attribute."""
    return {name: to_builtin(value) for name, value in _attributes(calibrator).items()}


def to_builtin(value: Any) -> Any:
    """The same in numbers, lists, dictionaries and texts; of what is none of these, its name."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_builtin(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): to_builtin(item) for key, item in value.items()}
    name = getattr(value, "__qualname__", type(value).__name__)
    return {"name": name} | ({} if callable(value) and hasattr(value, "__qualname__") else serialize_fitted(value))


def _attributes(value: Any) -> dict[str, Any]:
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    return dict(getattr(value, "__dict__", {}))


def encode_nonfinite(value: Any) -> Any:
    """The same for JSON, which has no nan and no infinity: null, "inf" and "-inf" stand for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, dict):
        return {key: encode_nonfinite(item) for key, item in value.items()}
    return [encode_nonfinite(item) for item in value] if isinstance(value, list) else value


def write_by_suffix(path: str | Path, makers: Mapping[str, Callable[[], str]]) -> None:
    """Write the text that belongs to a path's suffix."""
    path = Path(path)
    if path.suffix not in makers:
        raise InputError(f"{path}: can write {', '.join(makers)}, not {path.suffix or 'no suffix'!r}", code="suffix")
    with io.atomic_write(path) as draft:
        draft.write_text(makers[path.suffix](), encoding="utf-8")
