"""Learned fields of calibrators: arrays of numpy and Python's numbers, which follow the logits to their library."""

from copy import copy
from dataclasses import fields
from functools import cache
from typing import Any, get_args

import numpy as np

from calibrant._core.arrays import is_torch_array, like, to_numpy
from calibrant._core.types import Scalar


class FittedMap:
    """Base of the calibrators of this package: a frozen dataclass that takes its fields as tensors, arrays or lists.

    They are stored as arrays of numpy in float64, of integers or truth values, and as Python's numbers if they have no
    dimension.
    """

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray | np.generic | list) or is_torch_array(value):
                object.__setattr__(self, name, _to_field(value))  # the dataclass is frozen


def _to_field(value: Any) -> Any:
    """Return an array, tensor, list or number as an array in float64, int64 or bool, or as a number of Python."""
    array = to_numpy(value)
    array = array.astype({"f": np.float64, "b": bool}.get(array.dtype.kind, np.int64), copy=False)
    return array if array.ndim else array.item()


def learned_arrays(calibrator: object) -> dict[str, np.ndarray]:
    """Return the learned arrays and scalars of a calibrator of this package as arrays, {} for any other object."""
    if not isinstance(calibrator, FittedMap):
        return {}
    scalars = _scalar_fields(type(calibrator))
    return {
        name: np.asarray(value, dtype=np.float64 if name in scalars else None)
        for name, value in vars(calibrator).items()
        if name in scalars or isinstance(value, np.ndarray)
    }


@cache
def _scalar_fields(cls: Any) -> frozenset[str]:
    """Return the names of the fields that are declared as learned scalars."""
    return frozenset(field.name for field in fields(cls) if get_args(field.type)[:1] == (Scalar,))


def move_beside(calibrator: Any, logits: Any) -> Any:
    """Return the calibrator with its arrays in the library and on the device of the logits.

    Calibrators inside it stay as they are: their own calls move them.
    """
    if isinstance(logits, np.ndarray):
        return calibrator
    arrays = {name: value for name, value in vars(calibrator).items() if isinstance(value, np.ndarray)}
    return with_fields(calibrator, {name: like(value, logits) for name, value in arrays.items()})


def with_fields(value: Any, new_fields: dict[str, Any]) -> Any:
    """Return a copy of a calibrator with other fields, which its constructor would check or convert."""
    copied = copy(value)
    for name, part in new_fields.items():
        object.__setattr__(copied, name, part)
    return copied
