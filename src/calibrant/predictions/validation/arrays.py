"""Convert array-likes to tensors, and validate logits, labels and weights."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant._core.arrays import is_on_cpu, is_torch_array, namespace, to_numpy
from calibrant._core.lazy import import_optional
from calibrant._core.text import to_one_line
from calibrant._core.types import InputError
from calibrant.predictions.validation.scores import RowScoreEvidence, num_nan_rows

FLOAT_DTYPES = ("float64", "float32", "float16", "bfloat16")
DLPACK_CPU = 1  # the type of a device in the DLPack standard
MAX_TOTAL_WEIGHT = 2.0**53  # the largest count that float64 holds exactly
MIN_TOTAL_WEIGHT = 1 + 1e-3  # of several rows; below it, weights were normalized to a sum of 1


def num_elements(array: Any) -> int:
    """Return the number of elements of an array, or 0 for values without a shape, such as nested lists."""
    try:
        return int(math.prod(array.shape))
    except (AttributeError, TypeError, RuntimeError):
        return 0


def to_array(value: Any, name: str) -> Any:
    """Convert an array-like to an array with at least one dimension. Errors call it `name`.

    Tensors of a GPU stay there, without their gradient. Arrays that lie in memory become arrays of numpy, which may
    share memory with them, and bfloat16 becomes float32; those that numpy cannot read are exchanged by DLPack.
    """
    if not is_torch_array(value) and _needs_dlpack(value):
        value = import_optional("torch", "torch", "An array of this kind").from_dlpack(value).clone()
    if is_torch_array(value):
        return _read_tensor(value, name)
    try:
        array = np.asarray(value)
        array = _convert_objects(array, name) if array.dtype == object else array
        if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
            raise TypeError(f"can't convert np.ndarray of type {array.dtype}")
        return np.array(array, order="C", ndmin=1, dtype=array.dtype.newbyteorder("="))
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        kind = "strings" if is_text(value) else f"{type(value).__name__} ({to_one_line(error)})"
        raise InputError(f"Expected {name} as an array of numbers, got {kind}.", code="not_numbers") from None


def to_column(value: Any, name: str) -> np.ndarray:
    """Convert an array-like to an array of numpy with at least one dimension. Errors call it `name`."""
    return to_numpy(to_array(value, name))


def _read_tensor(tensor: Any, name: str) -> Any:
    """Return a tensor as an array if it lies in memory, else without its gradient. Raise `InputError` unless dense."""
    is_dense = not (tensor.is_sparse or tensor.is_nested or tensor.is_meta or tensor.is_quantized)
    is_dense = is_dense and str(tensor.layout) == "torch.strided"
    dtype = str(tensor.dtype).removeprefix("torch.")
    is_unsupported = (tensor.is_floating_point() and dtype not in FLOAT_DTYPES) or tensor.is_complex()
    if not is_dense or is_unsupported:
        layout = "meta" if tensor.is_meta else str(tensor.layout).removeprefix("torch.")
        raise InputError(
            f"Expected {name} as a dense tensor of numbers, got {dtype if is_dense else layout}. Try converting it "
            "first.",
            code="tensor_kind",
        )
    array = to_numpy(tensor) if is_on_cpu(tensor) else tensor.detach()
    return array if array.ndim else array.reshape(1)


def _needs_dlpack(value: Any) -> bool:
    """Return whether an array lies on another device, or has no conversion to numpy."""
    if not hasattr(value, "__dlpack__"):
        return False
    return not hasattr(value, "__array__") or value.__dlpack_device__()[0] != DLPACK_CPU


def _convert_objects(array: np.ndarray, name: str) -> np.ndarray:
    """Return an array of objects as one of numbers. Raise `InputError` for missing values and other objects."""
    present = [item for item in array.ravel() if item is not None and str(item) not in ("nan", "<NA>", "NaT")]
    missing = array.size - len(present)
    kinds = (str, (int, float, np.number))  # of labels, or of numbers
    if missing and array.ndim and any(all(isinstance(item, kind) for item in present) for kind in kinds):
        raise InputError(
            f"Expected {name} without missing values, got {missing:,} of {array.size:,} missing. Try dropping these "
            "rows.",
            code="missing",
        )
    numbers = np.array(array.tolist())
    if numbers.dtype.kind not in "biuf" or numbers.shape != array.shape:
        names = sorted({type(item).__name__ for item in array.ravel()})
        raise InputError(
            f"Expected {name} as an array of numbers, got {', '.join(names[:3]) or 'nothing'}. Try converting them.",
            code="not_numbers",
        )
    return numbers


def to_int(labels: np.ndarray) -> np.ndarray:
    """Convert labels to int64. Raise `InputError` for fractions and NaN."""
    if labels.dtype.kind == "f" and not (labels == np.round(labels)).all():
        missing = int(np.isnan(labels).sum())
        actual = f"{labels.dtype} with fractions"
        if missing:
            actual = f"{missing:,} of {labels.size:,} missing. Try dropping these rows"
        raise InputError(f"Expected labels as whole numbers (class indices), got {actual}.", code="label_fractions")
    with np.errstate(invalid="ignore"):  # infinity becomes a label out of range
        return labels.astype(np.int64)


def is_text(values: Any) -> bool:
    """Return whether an array-like holds strings. An empty array of objects does not."""
    if is_torch_array(values):
        return False
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):  # lists of different lengths
        return False
    if array.dtype.kind == "O":
        return bool(array.size) and all(isinstance(value, str) for value in array.ravel())
    return array.dtype.kind in "US"


def copy_if_aliased(x: Any, original: Any) -> Any:
    """Copy an array that may share memory with the caller's. Return any other array unchanged."""
    if not is_torch_array(original):  # other originals were copied by `to_array`
        return x
    if is_torch_array(x):
        is_aliased = x.untyped_storage().data_ptr() == original.untyped_storage().data_ptr()
        return x.clone() if is_aliased else x
    return x.copy() if is_on_cpu(original) and np.may_share_memory(x, to_numpy(original)) else x


def flatten_positions(
    logits: Any, labels: np.ndarray, columns: Mapping[str, np.ndarray | None]
) -> tuple[Any, np.ndarray, dict[str, np.ndarray | None]]:
    """Reshape logits (n, k, d1, ...) and labels (n, d1, ...) to one row per label.

    The axes d1, ... are positions in an image or text, as in segmentation.

    Args:
        logits: Logits.
        labels: Labels.
        columns: Other arrays by name, with a value per label or per image.

    Returns:
        Logits (rows, k), labels (rows), and the columns (rows). The positions of one image or text become one cluster
        if there were no clusters.

    Raises:
        InputError: Unless logits have one row of k per label.
    """
    if labels.ndim == logits.ndim == 2 and labels.shape[1] == 1 < logits.shape[1]:  # a column of labels
        labels = labels[:, 0]
    label_shape = (logits.shape[0], *logits.shape[2:])
    shapes = f"got {tuple(logits.shape)} and {tuple(labels.shape)}"
    if logits.ndim < 2:
        raise InputError(
            f"Expected logits (n, k) and labels (n,), {shapes}. {_single_score_hint(logits)}",
            code="single_logit",
        )
    if labels.shape == logits.shape and logits.ndim == 2:
        raise InputError(
            f"Expected class indices as labels (n,), {shapes}. Try labels.argmax(-1) for one-hot labels, "
            "Predictions.from_soft_labels for probabilities, Predictions.multilabel for several labels per sample.",
            code="one_hot_labels",
        )
    if tuple(labels.shape) != label_shape:
        raise InputError(f"Expected logits (n, k) and labels (n,), {shapes}.", code="shape")
    flat = {name: _broadcast_to_positions(name, column, label_shape) for name, column in columns.items()}
    if logits.ndim > 2:
        if flat["clusters"] is None:
            flat["clusters"] = _broadcast_to_positions("clusters", np.arange(len(logits)), label_shape)
        xp = namespace(logits)
        logits = xp.moveaxis(logits, 1, -1).reshape(-1, logits.shape[1])  # classes last, then one row per label
        labels = labels.flatten()
        flat = {name: None if column is None else column.flatten() for name, column in flat.items()}
    return logits, labels, flat


def _broadcast_to_positions(name: str, values: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return one value per label, or None for None. A value per image is repeated at every position.

    Raises `InputError`, with the `name` of the values, if they have another shape.
    """
    if values is None or tuple(values.shape) == shape:
        return values
    if tuple(values.shape) == (*shape, 1):
        return values[..., 0]
    if len(shape) > 1 and tuple(values.shape) == shape[:1]:
        return np.broadcast_to(values.reshape(-1, *[1] * (len(shape) - 1)), shape)  # from (n, 1, 1, ...)
    raise InputError(f"Expected {name} with one value per label {shape}, got {tuple(values.shape)}.", code="shape")


def check_rows(logits: Any, labels: np.ndarray, weights: np.ndarray | None) -> None:
    """Raise `InputError` unless logits (n, k), labels (n) and weights (n) have valid values.

    Logits must be finite numbers or -inf, and not evidently probabilities; labels class indices; weights counts.
    """
    n, k = logits.shape
    if n == 0:
        raise InputError("Expected at least one sample, got empty logits and labels.", code="no_rows")
    if k < 2:
        raise InputError(
            f"Expected at least 2 classes, got 1. {_single_score_hint(logits)}",
            code="one_class",
        )
    xp = namespace(logits)
    if not xp.isdtype(logits.dtype, "real floating"):
        raise InputError(
            f"Expected floating point logits, got {logits.dtype}. Try swapping logits and labels.", code="not_floating"
        )
    lowest, highest = int(labels.min()), int(labels.max())
    if lowest < 0 or highest >= k:
        raise _label_range_error(lowest, highest, k)
    check_logits(logits)
    if weights is not None:
        _check_weights(weights)


def _single_score_hint(scores: Any) -> str:
    """Return the way to enter one score per label: as probabilities if all lie in [0, 1]."""
    if bool(((scores >= 0) & (scores <= 1)).all()):
        return "Try Predictions.from_probs for probabilities of class 1, Predictions.from_binary_logits for logits."
    return "Try Predictions.from_binary_logits for the single logit of a binary classifier."


UNLABELED_PIXEL = 255  # in data sets of segmentation


def _label_range_error(low: int, high: int, k: int) -> InputError:
    """Return the error for labels from `low` to `high` with k classes, and its most likely remedy."""
    text = f"Expected labels in 0 .. {k - 1}, got {low} .. {high}."
    if low < 0:
        return InputError(f"{text} Try ignore_index={low} to leave out a negative label.", code="negative_labels")
    if low >= 1 and high == k:
        return InputError(f"{text} Try labels - 1 if they are counted from 1.", code="labels_from")
    if high == UNLABELED_PIXEL:
        return InputError(f"{text} Try ignore_index={high} to leave out pixels without a label.", code="label_range")
    return InputError(f"{text} Try adding the columns of missing classes to the logits.", code="label_range")


def check_logits(logits: Any) -> None:
    """Raise `InputError` for logits (n, k) that `check_finite` refuses, or that are evidently probabilities."""
    check_finite(logits)
    RowScoreEvidence().add(logits).check()


def check_finite(logits: Any) -> None:
    """Raise `InputError` for NaN, +inf, and rows without any probability.

    The sum of all logits is finite unless there is one of these or a -inf: one cheap pass settles most inputs.
    """
    # In half precision the sum of finite logits may overflow
    xp = namespace(logits)
    with np.errstate(invalid="ignore", over="ignore"):
        total = xp.sum(logits, dtype=xp.float64 if logits.dtype == xp.float64 else xp.float32)
    if bool(xp.isfinite(total)):
        return
    if num_rows := num_nan_rows(logits):
        raise InputError(
            f"Expected logits without NaN, got NaN in {num_rows} of {len(logits)} rows. Try dropping these rows.",
            code="nan",
        )
    if num_rows := int(xp.sum(xp.any(logits == xp.inf, axis=1))):
        raise InputError(
            f"Expected logits below infinity, got +inf in {num_rows} of {len(logits)} rows. Try large finite numbers; "
            "-inf means probability 0.",
            code="infinite",
        )
    if bool(xp.any(xp.all(logits == -xp.inf, axis=1))):
        raise InputError("Expected a possible class in every row, got a row of -inf only.", code="impossible_row")


def _check_weights(weights: np.ndarray) -> None:
    """Raise `InputError` for weights that are negative, that sum to 0 or too much, or that are normalized."""
    with np.errstate(over="ignore", invalid="ignore"):
        total = float(weights.sum())
    if not bool((weights >= 0).all()) or not 0 < total <= MAX_TOTAL_WEIGHT:
        raise InputError(
            f"Expected weights that are non-negative, finite and sum to more than 0 and at most {MAX_TOTAL_WEIGHT:.0e},"
            f" got {float(weights.min()):.4g} .. {float(weights.max()):.4g} with sum {total:.4g}.",
            code="weight_range",
        )
    if total < MIN_TOTAL_WEIGHT and int((weights > 0).sum()) > 1:
        raise InputError(
            f"Expected weights that count samples, got {len(weights)} weights with sum {total:.4g}. Try multiplying "
            "normalized weights by the number of samples.",
            code="weights_sum",
        )
