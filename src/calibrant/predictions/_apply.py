"""Apply calibrators to logits in blocks of rows."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from calibrant._core.kernels.threads import thread_limit
from calibrant._core.types import Categories, ColumnMap, InputError, Map, prefix_errors
from calibrant.predictions.validation.arrays import check_finite

__all__ = ["BLOCK_ELEMENTS", "apply_calibrator", "calibrate_logits", "check_is_calibrator", "row_blocks"]

BLOCK_ELEMENTS = 1 << 22  # logits mapped at a time: 32 MB in float64


def row_blocks(logits: Tensor, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return an iterator over blocks of rows of the logits (n, k) and other columns (n), to bound memory."""
    rows = max(1, BLOCK_ELEMENTS // logits.shape[1])
    return zip(*(part.split(rows) for part in (logits, *columns)), strict=True)


def check_is_calibrator(calibrator: Any) -> None:
    """Raise `InputError` unless a calibrator can be called, as a function of logits, and is no class."""
    if not callable(calibrator) or isinstance(calibrator, type):
        kind = "the class " + calibrator.__name__ if isinstance(calibrator, type) else type(calibrator).__name__
        raise InputError(
            f"Expected a fitted calibrator of logits, got {kind}. Try the result of "
            "calibrators.fit, or, for a calibrator of features, its own method apply(predictions, features).",
            code="map_kind",
        )


def calibrate_logits(calibrator: Map, logits: Tensor, columns: Mapping[str, Categories]) -> Tensor:
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
        out = logits.new_empty(0)
        for first in range(0, n, size):
            rows = slice(first, first + size)
            block = _calibrate_block(calibrator, logits[rows], {name: column[rows] for name, column in columns.items()})
            if first == 0:  # the calibrator decides about precision and device
                out = block.new_empty((n, k))
            out[rows] = block
        return out


def _calibrate_block(calibrator: Map, logits: Tensor, columns: Mapping[str, Categories]) -> Tensor:
    """Calibrate a block of logits (n, k), and check the shape and values of the result."""
    output = apply_calibrator(calibrator, logits, columns)
    name = getattr(calibrator, "__name__", type(calibrator).__name__)
    if not isinstance(output, Tensor) or output.shape != logits.shape:  # pyright: ignore[reportUnnecessaryIsInstance]
        kind = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__  # pyright: ignore
        raise InputError(f"Expected {name} to return logits {tuple(logits.shape)}, got {kind}.", code="map_shape")
    with prefix_errors(name):
        check_finite(output)
    return output.detach()


def apply_calibrator(calibrator: Map, logits: Tensor, columns: Mapping[str, Categories]) -> Tensor:
    """Call a calibrator on logits. A `ColumnMap` also receives the columns, if there are any."""
    if columns and isinstance(calibrator, ColumnMap):
        return calibrator.map_columns(logits, columns)
    return calibrator(logits)
