"""Columns of a data frame, a mapping, or an array, and the classes that their names tell."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import InputError
from calibrant.predictions.validation.arrays import is_text
from calibrant.predictions.validation.labels import to_texts
from calibrant.predictions.validation.names import is_same_name, to_text, to_unique_names

CLASS_COLUMN_PREFIXES = {  # of columns with the score of one class each
    "probs": (
        *("prob", "probs", "proba", "probas", "probability", "probabilities", "p", "y_prob", "y_proba", "y_probs"),
        *("y_pred_proba", "y_pred_prob", "pred_prob", "pred_probs", "pred_proba", "predicted_prob", "softmax"),
        *("predicted_proba", "predicted_probability", "prediction_prob", "class_prob", "p_class"),
    ),
    "logits": ("logit", "logits", "z", "y_logit", "raw_logit", "log_odds"),
}
CLASS_PREFIXES = tuple(prefix for prefixes in CLASS_COLUMN_PREFIXES.values() for prefix in prefixes)
SINGLE_LETTER_PREFIXES = ("p", "z")  # many other names begin with these letters
POSITIONAL_PREFIXES = ("", "column_")  # of names that only count columns, as in frames that were made of arrays


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
    return to_numpy(values)


# Classes in names


def common_class_names(columns: Sequence[str], prefixes: Iterable[str] = CLASS_PREFIXES) -> tuple[str, ...]:
    """Return the classes of columns after the first prefix that all have, () if there is none."""
    for prefix in prefixes:
        class_by_column = parse_class_suffixes(columns, prefix)
        if len(class_by_column) == len(columns):
            return tuple(class_by_column.values())
    return ()


def parse_class_suffixes(columns: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the class that follows a prefix in the name of a column, by column, for the columns that have one."""
    return {name: class_name for name in columns if (class_name := parse_class_suffix(name, prefix))}


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


# Named columns matched to classes: arrays have no names, frames and mappings do


class NamedScores(NamedTuple):
    """Scores as an array, in the order of the class names, with labels that can be matched to these names."""

    scores: Any  # unchanged without named columns
    labels: Any
    class_names: Any
    notes: tuple[str, ...] = ()


def match_columns(scores: Any, labels: Any, class_names: Any = None) -> NamedScores:
    """Return scores (n, k) of a frame, labels and class names, which are the names of the columns if not given.

    The columns are put in the order of `class_names` if these are the same names; other names rename the columns. A
    prefix of all columns, such as prob_, is no part of the names. Labels that are texts, or numbers if all names are
    numbers, are matched by name; other numbers are positions of columns, and a note says so.

    Raises:
        InputError: If only some of the `class_names` are names of columns.
    """
    columns = column_names(scores)
    if columns is None:
        return NamedScores(scores, labels, class_names)
    names, array = _without_prefix(columns, labels if class_names is None else class_names), _to_matrix(scores)
    if class_names is not None:
        return NamedScores(_reorder(array, names, to_unique_names(class_names, "class_names")), labels, class_names)
    labels, is_matched = _spell_labels(labels, names)
    note = f"labels are positions of the columns {shorten_list(names)}"
    return NamedScores(array, labels, names, () if is_matched else (note,))


def match_targets(scores: Any, targets: Any, names: Any = None, *, argument: str) -> NamedScores:
    """Return scores and targets (n, k), such as soft labels, with the same columns in the same order, and their names.

    Raises:
        InputError: If both have named columns with different names. Errors call the targets `argument`.
    """
    score_names, target_names = column_names(scores), column_names(targets)
    order = next((names for names in (score_names, target_names) if names is not None), None)
    if order is None:
        return NamedScores(scores, targets, names)
    if score_names is not None and target_names is not None:
        order = _without_prefix(score_names, ())
        target_names = _without_prefix(target_names, order)
        if {*order} != {*target_names}:
            raise InputError(
                f"Expected {argument} with the columns of the scores, {shorten_list(order)}, got "
                f"{shorten_list(target_names)}. Try renaming them.",
                code="columns_differ",
            )
        targets = _reorder(_to_matrix(targets), target_names, order)
    scores, targets = (x if column_names(x) is None else _to_matrix(x) for x in (scores, targets))
    if names is None:
        return NamedScores(scores, targets, order)
    names = to_unique_names(names, "names")
    return NamedScores(_reorder(scores, order, names), _reorder(targets, order, names), names)


def column_names(values: Any) -> tuple[str, ...] | None:
    """Return the names of two or more columns of a data frame or mapping, or None for arrays and names that count."""
    keys = _column_keys(values)
    if keys is None or len(keys) < 2:
        return None
    names = to_unique_names([to_text(key) for key in keys], "columns")
    counted = [tuple(f"{prefix}{i}" for i in range(len(names))) for prefix in POSITIONAL_PREFIXES]
    return None if names in counted else names


def score_name(scores: Any) -> str | None:
    """Return the name of single scores, as a series or a frame of one column has, without a prefix such as prob_."""
    keys = _column_keys(scores)
    name = getattr(scores, "name", None) if keys is None else keys[0]
    return _without_prefix((name,), ())[0] if isinstance(name, str) and name else None


def _column_keys(values: Any) -> list[Any] | None:
    """Return the keys of the columns of a data frame or mapping, or None for arrays and series."""
    keys = list(values) if isinstance(values, Mapping) else getattr(values, "column_names", None)
    keys = getattr(values, "columns", None) if keys is None else keys
    return None if keys is None or isinstance(keys, str) or not len(keys) else list(keys)


def _to_matrix(values: Any) -> np.ndarray:
    """Return the columns of a frame or mapping as an array (n, k)."""
    named = {name: values[name] for name in values.column_names} if hasattr(values, "column_names") else values
    columns = split_columns(named).values()
    if len({column.shape for column in columns}) > 1:
        raise InputError("Expected columns of one length, got several. Try dropping incomplete rows.", code="shape")
    return np.stack(list(columns), 1)


def _without_prefix(columns: tuple[str, ...], known_names: Any) -> tuple[str, ...]:
    """Return column names without their common prefix, such as prob_, unless they are among the known names with it."""
    spelled = {*map(str, np.unique(np.asarray(known_names).astype(str)))} if is_text(known_names) else set[str]()
    if spelled and spelled <= {*columns}:
        return columns
    names = common_class_names(columns)
    return names if names and len({*names}) == len(names) else columns


def _reorder(array: Any, columns: Sequence[str], names: tuple[str, ...]) -> Any:
    """Return the columns of an array in the order of the names, or as they are if the names are all new.

    Raises:
        InputError: If some names are columns and others are not.
    """
    shared = {*columns} & {*names}
    if not shared:
        return array
    if len(shared) < len(columns) or len(columns) != len(names):
        raise InputError(
            f"Expected names of all columns {shorten_list(columns)}, or other names for all, got "
            f"{shorten_list(names)}. Try leaving out the names.",
            code="columns_differ",
        )
    return array[:, [list(columns).index(name) for name in names]]


def _spell_labels(labels: Any, names: tuple[str, ...]) -> tuple[Any, bool]:
    """Return labels as texts if they are names of columns, and whether they are; numbers may be positions instead."""
    if is_text(labels):
        return labels, True
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError, RuntimeError):  # refused later
        return labels, False
    if array.dtype.kind == "b" and all(any(is_same_name(name, str(flag)) for name in names) for flag in (True, False)):
        return array.astype(str), True
    if array.dtype.kind not in "iuf" or None in map(parse_number, names):
        return labels, False
    return to_texts(array), True
