"""Convert labels to class indices, and find the positive class of a single score."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

import numpy as np

from calibrant._core.arrays import is_torch_array
from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import InputError
from calibrant.predictions.validation.arrays import is_text, to_column, to_int
from calibrant.predictions.validation.names import is_same_name, match_names, to_unique_names
from calibrant.predictions.validation.words import opposite_of_no

# Words for the positive class, and the words of its negative class, () for any
POSITIVE_WORDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("positive", "pos", "true", "yes"), ()),
    **{"1": ("0", "-1"), "+1": ("0", "-1"), "1.0": ("0.0", "-1.0"), "y": ("n",), "t": ("f",), "+": ("-",)},
}
LabelIndices = tuple[np.ndarray, tuple[str, ...] | None, tuple[str, ...]]  # class indices, class names, notes


class Positions(np.ndarray):
    """Labels that are class indices, even if the names of the classes are numbers."""


def to_class_indices(
    labels: Any, names: tuple[str, ...] | None, k: int, ignore_index: int | None = None
) -> LabelIndices:
    """Return labels as class indices, with the class names, or None, and notes.

    Strings are class names. Without `names`, strings that all spell numbers are read as numbers, and others belong to
    the columns in alphabetical order. Numbers are class indices. Only if all `names` are numbers, such as "3" and "7",
    may they be class names instead; numbers in a tensor or in `Positions` that may be either are class
    indices.

    Args:
        labels: Strings or numbers.
        names: Class names, or None.
        k: Number of columns, that is of classes.
        ignore_index: Label to leave unchanged.

    Raises:
        InputError: For dates, for an unknown or ambiguous label, and if there are not k names.
    """
    if is_torch_array(labels) or not is_text(labels):
        _refuse_dates(labels)
        are_positions = is_torch_array(labels) or isinstance(labels, Positions)
        return _numeric_indices(to_column(labels, "labels"), names, k, ignore_index, prefer_positions=are_positions)
    array = np.asarray(labels)
    try:
        levels, inverse = np.unique(array.astype(str), return_inverse=True)
    except UnicodeDecodeError:
        raise InputError("Expected labels as ASCII bytes or texts, got other bytes.", code="not_text") from None
    index = inverse.reshape(array.shape)
    label_names = tuple(map(str, levels.tolist()))
    numbers = [parse_number(name) for name in label_names]
    if names is None and label_names and None not in numbers:  # such as "0" and "1"
        values = np.array(numbers, dtype=float)[index]
        return _numeric_indices(values, None, k, ignore_index, prefer_positions=False)
    notes: tuple[str, ...] = ()
    if names is None:
        if len(label_names) != k:
            raise InputError(
                f"Expected {k} class names as labels, one per column, got {len(label_names)}: "
                f"{shorten_list(label_names)}. Try class_names=[...] in the order of the columns.",
                code="class_count",
            )
        names = label_names
        columns = shorten_list([f"{name} is column {i}" for i, name in enumerate(names)]).replace("'", "")
        notes = (f"label names were matched to the columns in alphabetical order: {columns}",)
    index_of = {name: i for i, name in enumerate(names)}
    class_index = np.array([index_of[name] for name in match_names(label_names, names)], dtype=np.int64)
    return class_index[index], names, notes


def _refuse_dates(labels: Any) -> None:
    """Raise `InputError` if labels are dates or times."""
    kind = getattr(getattr(labels, "dtype", None), "kind", None)  # of numpy: m and M are times and dates
    # A list has no dtype: its first label tells
    first_label = np.asarray(labels, dtype=object).ravel()[:1] if isinstance(labels, Sequence) else []
    if kind in ("m", "M") or any(isinstance(label, date | timedelta | np.datetime64) for label in first_label):
        raise InputError("Expected classes as labels, got dates or times. Try another column.", code="label_kind")


def _numeric_indices(
    labels: np.ndarray, names: tuple[str, ...] | None, k: int, ignore_index: int | None, *, prefer_positions: bool
) -> LabelIndices:
    """Return numeric labels as class indices: they are class indices already, or class names that are numbers.

    Raises `InputError` if both are possible, unless `prefer_positions`, which takes them for class indices. Labels that
    are neither are returned unchanged, and refused later for their range.

    Args:
        labels: Numbers.
        names: Class names, or None.
        k: Number of classes.
        ignore_index: Label to leave unchanged.
        prefer_positions: Whether labels that may be both are class indices.
    """
    numbers = [parse_number(name) for name in names or ()]
    # Without names that are all numbers, and with names that equal the positions, labels can only be positions
    if not numbers or None in numbers or numbers == list(range(k)) or not labels.size:
        return _signs_to_classes(to_int(labels), names, k, ignore_index)
    used_labels = labels if ignore_index is None else labels[labels != ignore_index]
    levels = np.unique(used_labels).tolist()
    are_positions = all(0 <= level < k and level == int(level) for level in levels)
    if not set(levels) <= set(numbers) or (are_positions and prefer_positions):
        return to_int(labels), names, ()
    if are_positions:
        raise InputError(
            f"Expected labels that are either class names {shorten_list(names or ())} or positions, got "
            f"{shorten_list([f'{level:g}' for level in levels])}, which may be both. Try strings for names, or leave "
            "out class_names for positions.",
            code="ambiguous_labels",
        )
    index_of = {number: i for i, number in enumerate(numbers)}
    flat = [index_of.get(value, value) for value in labels.flatten().tolist()]  # `ignore_index` stays
    return to_int(np.array(flat).reshape(labels.shape)), names, ()


def _signs_to_classes(
    labels: np.ndarray, names: tuple[str, ...] | None, k: int, ignore_index: int | None
) -> LabelIndices:
    """Convert labels -1 and +1 to class indices 0 and 1, with a note, if k is 2. Other labels are unchanged.

    The class `names` are returned as they are, and labels that equal `ignore_index` stay too.
    """
    used_labels = labels if ignore_index is None else labels[labels != ignore_index]
    # Only if the smallest label is -1 can the labels be signs: this test is cheap, and sorting the labels is not
    may_be_signs = k == 2 and ignore_index not in (0, 1) and used_labels.size > 0 and int(used_labels.min()) == -1
    if not may_be_signs or np.unique(used_labels).tolist() != [-1, 1]:
        return labels, names, ()
    indices = np.where(abs(labels) == 1, labels > 0, labels)  # `ignore_index` stays
    return indices, names, ("labels -1 and +1 are read as the first and the second class",)


def binary_names(labels: Sequence[str], positive: str | None = None, *, required: bool = False) -> tuple[str, str]:
    """Return the names of the negative and the positive class of a single score.

    If only the positive class occurs, the negative class is named "not" and the name of the positive class.

    Args:
        labels: The names that occur.
        positive: A candidate for the positive class, such as the name of the score's column. Without a match, a word
            such as "yes" among the labels decides.
        required: Whether `positive` must be among the labels.

    Raises:
        InputError: If the positive class is ambiguous.
    """
    matches = [label for label in labels if positive is not None and is_same_name(label, positive)]
    # A single label may be the negative class, whose counterpart does not occur
    if required and not matches and len(labels) > 1:
        raise InputError(
            f"Expected a positive class among {shorten_list(labels)}, got {positive!r}.", code="positive_class"
        )
    if matches:
        positive = matches[0]
    elif (word := positive_word(labels)) is not None:
        positive = word
    negatives = [label for label in labels if label != positive]
    if len(negatives) > 1 or positive is None:
        raise InputError(
            f"Expected a known positive class for the single score, got the labels {shorten_list(labels)}. Try "
            f"{_positive_hint(labels)} for tables, class_names=[negative, positive] for arrays.",
            code="ambiguous_positive",
        )
    return (negatives or [f"not {positive}"])[0], positive


def _positive_hint(labels: Sequence[str]) -> str:
    """Return the options that name the positive class: each that it may be."""
    candidate = opposite_of_no(labels)
    candidates = labels[-2:][::-1] if candidate is None else [candidate]
    return " or ".join(f'positive="{name}" (on the command line, --positive "{name}")' for name in candidates)


def positive_word(labels: Sequence[str]) -> str | None:
    """Return the label that means yes, such as "positive", or "1" beside "0".

    It is None if no label or several labels mean yes. It is also None if another label is not the "no" that belongs to
    the word, as "cat" beside "1".
    """
    words = [label.strip().lower() for label in labels]
    positives = [i for i, word in enumerate(words) if word in POSITIVE_WORDS]
    if len(positives) != 1:
        return None
    negatives = POSITIVE_WORDS[words[positives[0]]]
    other_words = words[: positives[0]] + words[positives[0] + 1 :]
    is_pair = not negatives or {*other_words} <= {*negatives}
    return labels[positives[0]] if is_pair else None


def binary_labels(
    labels: Any, names: Any, ignore_index: int | None = None, positive: str | None = None
) -> tuple[Any, Any]:
    """Return labels of a single score as class indices if they are strings, and the class names.

    The index of the positive class is 1.

    Args:
        labels: Strings or numbers; numbers are returned unchanged.
        names: Names of the negative and the positive class, or None to find them.
        ignore_index: Label to leave unchanged.
        positive: As for `binary_names`.
    """
    if not is_text(labels):
        return labels, names
    levels = np.unique(np.asarray(labels).astype(str)).tolist()
    class_names = to_unique_names(binary_names(levels, positive) if names is None else names, "class_names")
    indices, class_names, _ = to_class_indices(labels, class_names, 2, ignore_index)
    return indices, class_names


def to_texts(numbers: np.ndarray) -> np.ndarray:
    """Return numbers as strings, without decimals if they are whole."""
    levels, index = np.unique(numbers, return_inverse=True)
    return np.array([f"{level:.15g}" for level in levels.tolist()])[index.reshape(numbers.shape)]
