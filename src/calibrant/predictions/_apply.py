"""Apply calibrators to logits in blocks of rows."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from calibrant._core.arrays import call_with_arrays, is_torch_array, namespace, to_numpy
from calibrant._core.kernels.threads import thread_limit
from calibrant._core.types import Array, Categories, ColumnMap, InputError, Map, prefix_errors
from calibrant.predictions.validation.arrays import check_finite

__all__ = ["BLOCK_ELEMENTS", "apply_calibrator", "calibrate_logits", "check_is_calibrator", "row_blocks"]

BLOCK_ELEMENTS = 1 << 22  # logits mapped at a time: 32 MB in float64


def row_blocks(logits: Array, *columns: Any) -> Iterator[tuple[Any, ...]]:
    """Yield blocks of rows of the logits (n, k) and other columns (n), to bound memory."""
    size = max(1, BLOCK_ELEMENTS // logits.shape[1])
    for first in range(0, len(logits), size):
        yield tuple(part[first : first + size] for part in (logits, *columns))


def check_is_calibrator(calibrator: Any) -> None:
    """Raise `InputError` unless a calibrator can be called, as a function of logits, and is no class."""
    if not callable(calibrator) or isinstance(calibrator, type):
        kind = "the class " + calibrator.__name__ if isinstance(calibrator, type) else type(calibrator).__name__
        raise InputError(
            f"Expected a fitted calibrator of logits, got {kind}. Try the result of "
            "calibrators.fit, or, for a calibrator of features, its own method apply(predictions, features).",
            code="map_kind",
        )


def calibrate_logits(calibrator: Map, logits: Array, columns: Mapping[str, Categories]) -> Array:
    """Calibrate logits in blocks of rows, to bound the memory of intermediate results.

    Args:
        calibrator: Fitted calibrator, or any other function of logits.
        logits: Logits (n, k).
        columns: Columns of the same rows, for a `ColumnMap`.

    Raises:
        InputError: Unless the result has the same shape, and a possible class in every row.
    """
    n, k = logits.shape
    size = max(1, BLOCK_ELEMENTS // max(1, k))
    with thread_limit(n * k):
        if n <= size:
            return _calibrate_block(calibrator, logits, columns)
        out: Any = None
        for first in range(0, n, size):
            rows = slice(first, first + size)
            block = _calibrate_block(calibrator, logits[rows], {name: column[rows] for name, column in columns.items()})
            if first == 0:  # the calibrator decides about precision and device
                out = namespace(block).empty((n, k), dtype=block.dtype, device=block.device)
            out[rows] = block
        return out


def _calibrate_block(calibrator: Map, logits: Array, columns: Mapping[str, Categories]) -> Array:
    """Calibrate a block of logits (n, k), and check the shape and values of the result."""
    output: Any = apply_calibrator(calibrator, logits, columns)
    name = getattr(calibrator, "__name__", type(calibrator).__name__)
    is_array = isinstance(output, np.ndarray) or is_torch_array(output)
    if not is_array or output.shape != logits.shape:
        kind = tuple(output.shape) if is_array else type(output).__name__
        raise InputError(f"Expected {name} to return logits {tuple(logits.shape)}, got {kind}.", code="map_shape")
    with prefix_errors(name):
        check_finite(output)
    tensor: Any = output
    return to_numpy(output) if isinstance(logits, np.ndarray) else tensor.detach()


def apply_calibrator(calibrator: Map, logits: Array, columns: Mapping[str, Categories]) -> Array:
    """Call a calibrator on logits. A `ColumnMap` also receives the columns, if there are any."""
    if columns and isinstance(calibrator, ColumnMap):
        return calibrator.map_columns(logits, columns)
    return call_with_arrays(calibrator, logits)
