"""What the maps of calibrators need beside the array API standard, for arrays of numpy and for tensors.

Exported files have the same functions in plain numpy, from `deployment/_numpy_functions.py`.
"""

import sys
from typing import Any

import numpy as np

from calibrant._core.arrays import call_with_arrays, is_torch_array, like, namespace, to_numpy
from calibrant._core.kernels.softmax import class_columns, class_probability, top_probability
from calibrant.calibrators.fields import FittedMap

__all__ = [
    "apply",
    "class_indices",
    "confidence",
    "descending_order",
    "double",
    "in_column_order",
    "log_softmax",
    "log_sum_exp",
    "namespace",
    "numbers_like",
    "rank",
    "single",
    "smallest",
    "softmax",
]


def apply(calibrator: Any, z: Any) -> Any:
    """Return the logits (n, k) of another fitted calibrator, which may be a user's own and take tensors alone."""
    if issubclass(type(calibrator), FittedMap) or not isinstance(z, np.ndarray):
        return calibrator(z)
    return to_numpy(call_with_arrays(calibrator, z))


def single(z: Any) -> Any:
    """Return logits of half precision in single precision, and others unchanged."""
    if isinstance(z, np.ndarray):
        return z.astype(np.float32) if z.dtype == np.float16 else z
    return z if z.dtype.itemsize >= 4 else z.float()


def double(z: Any) -> Any:
    """Return logits in double precision."""
    return z.double() if is_torch_array(z) else np.asarray(z, dtype=np.float64)


def softmax(z: Any) -> Any:
    """Return probabilities (n, k) in double precision."""
    if is_torch_array(z):
        return z.double().softmax(-1)
    x = class_columns(z, np.float64)
    np.exp(np.subtract(x, x.max(0), out=x), out=x)
    return np.divide(x, x.sum(0), out=x).T


def log_softmax(z: Any) -> Any:
    """Return log-probabilities (n, k) in double precision."""
    if is_torch_array(z):
        return z.double().log_softmax(-1)
    x = class_columns(z, np.float64)
    np.subtract(x, x.max(0), out=x)
    return np.subtract(x, np.log(np.exp(x).sum(0)), out=x).T


def log_sum_exp(x: Any, axis: int) -> Any:
    """Return log sum e^x over an axis."""
    if is_torch_array(x):
        return x.logsumexp(axis)
    top = x.max(axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)  # as -inf - (-inf) is NaN
    return (top + np.log(np.exp(x - top).sum(axis, keepdims=True))).squeeze(axis)


def confidence(z: Any, event: Any) -> Any:
    """Return the probability of the predicted class, or of one class, (n), rounded as in `Predictions.events`."""
    return like(top_probability(z) if event == "top" else class_probability(z, event), z)


def rank(x: Any, values: Any, side: str = "left") -> Any:
    """Return the number of sorted x below each value, or with side "right" at or below it.

    ONNX has no search in sorted numbers: an export counts instead.
    """
    if is_torch_array(values):
        if sys.modules["torch"].onnx.is_in_onnx_export():
            return (x <= values[..., None] if side == "right" else x < values[..., None]).sum(-1)
        values = values.contiguous()
    return namespace(values).searchsorted(x, values, side=side)


def descending_order(p: Any) -> Any:
    """Return the indices that sort each row from its largest value down, equal values in the order of the columns."""
    return p.argsort(dim=1, descending=True, stable=True) if is_torch_array(p) else np.argsort(-p, 1, kind="stable")


def in_column_order(x: Any, order: Any) -> Any:
    """Undo the sorting of x (n, k) by `descending_order`, whose result is `order`."""
    if is_torch_array(x):
        return x.scatter(1, order, x)
    result = np.empty_like(x)
    np.put_along_axis(result, order, x, 1)
    return result


def smallest(v: Any, count: int) -> Any:
    """Return the smallest values of each row in increasing order, (n, count)."""
    if is_torch_array(v):
        return v.topk(count, largest=False).values
    return np.sort(np.partition(v, count - 1)[:, :count])


def class_indices(z: Any) -> Any:
    """Return the indices 0 .. k-1 of the classes of logits (n, k)."""
    return namespace(z).arange(z.shape[-1], device=z.device)


def numbers_like(values: Any, z: Any) -> Any:
    """Return Python's numbers as an array of the type of z, on its device."""
    return namespace(z).asarray(values, dtype=z.dtype, device=z.device)
