"""Validate class names, groups and clusters."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from calibrant._core.arrays import is_torch_array
from calibrant._core.text import parse_number, shorten_list, to_one_line
from calibrant._core.types import InputError
from calibrant.predictions.validation.arrays import to_column


def to_unique_names(names: Any, argument: str) -> tuple[str, ...]:
    """Return a list of names as strings. Errors call it `argument`.

    Raises:
        InputError: For duplicates, and for anything but a list of names.
    """
    if is_torch_array(names):
        names = to_column(names, argument)
    if isinstance(names, np.ndarray):
        names = names.tolist() if names.ndim == 1 else None
    # Texts and sets are iterable too, but letters are no names, and sets have no order
    is_list = isinstance(names, Iterable) and not isinstance(names, str | bytes | set | frozenset | Mapping)
    items: list[Any] = list(names) if is_list else []  # pyright: ignore[reportUnknownArgumentType]
    if not is_list or any(np.ndim(name) or name is None or name != name for name in items):  # NaN differs from itself
        raise InputError(
            f"Expected {argument} as a list of names, got {type(names).__name__}. Try ['cat', 'dog'].", code="names"
        )
    texts = tuple(map(to_text, items))
    if len(set(texts)) < len(texts):
        duplicate = next(text for text, count in Counter(texts).items() if count > 1)
        raise InputError(f"Expected different {argument}, got {duplicate[:50]!r} twice.", code="names_differ")
    return texts


def to_text(name: Any) -> str:
    """Return a name as a string, without the b'' of bytes."""
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def factorize(values: Any, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the index of each value (a group or cluster) among the sorted distinct values, and their names.

    Raises:
        InputError: For NaN, complex numbers, and values that cannot be sorted.
    """
    if is_torch_array(values):
        values = to_column(values, name)
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise InputError(f"Expected {name} without NaN. Try dropping such rows.", code="nan")
    if isinstance(values, list | tuple) and all(type(value) is str for value in values):
        names = sorted(set(values))  # numpy would pad every string to the longest
        index_of = {text: i for i, text in enumerate(names)}
        return np.array([index_of[text] for text in values], dtype=np.int64), tuple(names)
    try:
        array = np.asarray(values)
        levels, index = np.unique(array, return_inverse=True)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Expected {name} as an array of names or numbers: {to_one_line(error)}.", code="not_names"
        ) from None
    if levels.dtype.kind == "c" or bool((levels != levels).any()):  # NaN and NaT differ from themselves
        raise InputError(f"Expected {name} as names or numbers, got NaN or complex numbers.", code="not_names")
    index = index.reshape(array.shape)  # versions of numpy differ in its shape
    return index if index.ndim else index.reshape(1), tuple(map(to_text, levels.tolist()))


def factorize_samples(values: Any, name: str, n: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Factorize the groups or clusters of n samples. Raise `InputError` unless there is one value per sample."""
    index, names = factorize(values, name)
    if tuple(index.shape) != (n,):
        raise InputError(f"Expected {name} with one value per sample ({n},), got {tuple(index.shape)}.", code="shape")
    return index, names


def group_positions(groups: Sequence[str], names: Sequence[str], default: int) -> list[int]:
    """Return the position of each group among the names, or the default for a group that has none of these names.

    Names that are the same number match, such as "2.0" and "2".
    """
    position = {name: i for i, name in enumerate(names)}
    # None is the number of any name that is not a number, so that such groups do not match each other
    by_number = {parse_number(name): i for name, i in position.items()} | {None: default}
    return [position.get(group, by_number.get(parse_number(group), default)) for group in groups]


def group_name_per_sample(groups: Any, names: Any) -> np.ndarray:
    """Return each sample's group name, given its index in `names`. Raise `InputError` for an invalid index."""
    name_array, index = np.array(to_unique_names(names, "group_names")), to_column(groups, "groups")
    if index.dtype.kind not in "iu":
        raise InputError(
            f"Expected groups as indices of group_names, got {index.dtype}. Try whole numbers, or names as groups "
            "without group_names.",
            code="group_index",
        )
    low, high = (int(index.min()), int(index.max())) if index.size else (0, -1)  # in range without samples
    if low < 0 or high >= len(name_array):
        raise InputError(
            f"Expected groups as indices of {len(name_array)} group_names, got {low} .. {high}.", code="group_index"
        )
    return name_array[index]


def match_names(labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the class name of every label.

    It is the first of these that exists: the name that is the same string; the only name that is the same number; the
    only name that is equal except for case and punctuation, unless another label is equal to it in this way too.

    Raises:
        InputError: If a label matches no name.
    """
    by_number = _unique_keys(names, parse_number)
    by_word = _unique_keys(names, _normalize_name)
    unique_words = _unique_keys(labels, _normalize_name)
    name_set, matched = set(names), dict[str, str]()
    for label in labels:
        word = _normalize_name(label)
        name_of_word = by_word.get(word) if word in unique_words else None
        name = label if label in name_set else by_number.get(parse_number(label), name_of_word)
        if name is not None:
            matched[label] = name
    if missing := [label for label in labels if label not in matched]:
        raise InputError(
            f"Expected labels among the classes {shorten_list(names)}, got {shorten_list(missing)}. Try adding the "
            "columns of missing classes.",
            code="unknown_label",
        )
    return [matched[label] for label in labels]


def _unique_keys(names: Sequence[str], key: Callable[[str], Any]) -> dict[Any, str]:
    """Return names by `key(name)`, without names that share a key or whose key is None."""
    counts = Counter(map(key, names))
    return {key(name): name for name in names if key(name) is not None and counts[key(name)] == 1}


def _normalize_name(name: str) -> str:
    """Return a name's letters and digits without case, or the name itself if it has none."""
    return "".join(mark for mark in name.casefold() if mark.isalnum()) or name


def is_same_name(first: str, second: str) -> bool:
    """Whether two class names are equal: as numbers if both are numbers, and else except for case and punctuation."""
    first_number, second_number = parse_number(first), parse_number(second)
    if first == second or first_number is None or second_number is None:
        return _normalize_name(first) == _normalize_name(second)
    return first_number == second_number
