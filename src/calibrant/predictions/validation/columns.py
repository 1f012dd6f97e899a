"""Columns of a data frame, a mapping, or an array, and their names."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._core.types import InputError

CLASS_COLUMN_PREFIXES = {  # of columns with the score of one class each
    "probs": (
        *("prob", "probs", "proba", "probas", "probability", "probabilities", "p", "y_prob", "y_proba", "y_probs"),
        *("y_pred_proba", "y_pred_prob", "pred_prob", "pred_probs", "pred_proba", "predicted_prob", "softmax"),
        *("predicted_proba", "predicted_probability", "prediction_prob", "class_prob", "p_class"),
    ),
    "logits": ("logit", "logits", "z", "y_logit", "raw_logit", "log_odds"),
}
SINGLE_LETTER_PREFIXES = ("p", "z")  # many other names begin with these letters


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


def parse_class_suffix(name: str, prefix: str) -> str:
    """Return the class after a prefix in a column's name, such as "cat" in prob_cat, p(cat) and prob cat, or ""."""
    remainder = strip_prefix(name, prefix)
    if remainder.startswith("_"):  # prob_cat
        return remainder[1:]
    if remainder.isascii() and remainder.isdigit():  # prob0
        return remainder
    # p(cat), p[cat], p(y=cat), prob (class == cat)
    if match := re.fullmatch(r"\s*[(\[]\s*(?:(?:y|class|label)\s*={1,2}\s*)?(.+?)\s*[)\]]", remainder):
        return match[1]
    # prob cat, prob.cat, prob: cat, prob-cat
    if prefix not in SINGLE_LETTER_PREFIXES and (match := re.fullmatch(r"[\s.:\-]\s*(\S.*)", remainder)):
        return match[1].strip()
    return ""


def strip_prefix(name: str, prefix: str) -> str:
    """Return the rest of a column's name after a prefix in any case, or "" if it has another prefix."""
    name = name.lstrip()
    return name[len(prefix) :] if name.lower().startswith(prefix.lower()) else ""
