"""Columns of a data frame, a mapping, or an array."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.types import InputError


def split_columns(values: Any, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Return the columns of a data frame or mapping by name, or the columns of an array (n, d) or (n,).

    Args:
        values: The columns; they may differ in length.
        names: Names of the columns of an array, if it has as many. Default: x0, x1 and so on.

    Raises:
        InputError: If two columns have the same name.
    """
    keys: list[Any] | None = list(values) if isinstance(values, Mapping) else getattr(values, "columns", None)
    if keys is not None:
        counts = Counter(map(str, keys))
        if repeated := [name for name, count in counts.items() if count > 1]:
            raise InputError(f"Expected one column {repeated[0]!r}, got two. Try to rename one.", code="column_twice")
        return {str(key): _to_array(values[key]) for key in keys}
    array = np.atleast_1d(_to_array(values))
    array = array[:, None] if array.ndim == 1 else array
    if names is None or len(names) != array.shape[1]:
        names = [f"x{j}" for j in range(array.shape[1])]
    return dict(zip(names, array.swapaxes(0, 1), strict=True))  # not `T`, which reverses further axes


def _to_array(values: Any) -> np.ndarray:
    """Return values as an array. numpy converts no tensors of other devices, with a gradient, or in bfloat16."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    return np.asarray(values)
