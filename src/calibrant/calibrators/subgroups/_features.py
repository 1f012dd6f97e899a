"""Features of examples as numbers: categories are coded, and missing values are smaller than all others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import InputError
from calibrant.calibrators.subgroups._trees import TreeSplit
from calibrant.predictions.validation.columns import split_columns
from calibrant.predictions.validation.names import to_text

MAX_CUTS = 31  # of a numeric feature
MAX_CATEGORIES = 31  # the most frequent ones; all others count as missing
MISSING = -1.0  # code of a missing or rare category
PROBABILITY_NAME = "probability"  # of the feature that is computed from the predictions


@dataclass(frozen=True)
class FeatureSchema:
    """Names of the features, and the categories of those that are not numbers."""

    names: tuple[str, ...]
    categories: tuple[tuple[str, ...], ...]  # of each feature, by code; empty for numbers

    @classmethod
    def from_columns(cls, columns: Mapping[str, np.ndarray]) -> "FeatureSchema":
        """Return the schema of columns, whose most frequent texts become categories."""
        return cls(tuple(columns), tuple(_frequent_texts(values) for values in columns.values()))

    def encode(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return columns as numbers (n, d) float64, -inf where a number is missing.

        Raises:
            InputError: If a feature is missing, or has texts instead of numbers, or numbers instead of texts.
        """
        if lacking := [name for name in self.names if name not in columns]:
            raise InputError(
                f"Expected the features {shorten_list(self.names)}, got none of the name {shorten_list(lacking)}.",
                code="no_column",
            )
        encoded = [
            _encode_texts(name, columns[name], categories) if categories else _to_numbers(name, columns[name])
            for name, categories in zip(self.names, self.categories, strict=True)
        ]
        return np.stack(encoded, axis=1)

    def describe(self, split: TreeSplit) -> str:
        """Return the side of a split in words, such as "age <= 31"."""
        cut = split.cut  # a number, or the code of a category
        comparison, verb = ("<=", "is") if split.is_left else (">", "is not")
        if split.feature == len(self.names):  # the probability, which follows the features
            return f"{PROBABILITY_NAME} {comparison} {cut:.3g}"
        name, categories = self.names[split.feature], self.categories[split.feature]
        if categories:
            return f"{name} {verb} {'missing' if cut == MISSING else categories[int(cut)]}"
        return f"{name} {verb} missing" if cut == -np.inf else f"{name} {comparison} {cut:.4g}"


def read_columns(features: Any, n: int) -> dict[str, np.ndarray]:
    """Return the columns of a data frame, a mapping, or an array (n, d), by name.

    Raises:
        InputError: If there is not one row per example, or no feature.
    """
    columns = split_columns(features)
    if not columns or any(column.shape != (n,) for column in columns.values()):
        shapes = {column.shape for column in columns.values()}
        raise InputError(
            f"Expected features with one row for each of {n:,} examples, got shapes {shapes or 'of no column'}. Try a "
            "data frame, a dictionary of columns, or an array (n, d).",
            code="features_shape",
        )
    return columns


def cut_points(x: np.ndarray, schema: FeatureSchema) -> Iterator[np.ndarray]:
    """Yield the cuts of each column of x (n, d), at which a tree may split it.

    The cuts of categories are the codes that occur. The cuts of numbers are all values below the maximum, or about
    `MAX_CUTS` quantiles if there are more values. The last column, which the schema does not have, is the probability.
    """
    for j, column in enumerate(x.T):
        values = np.unique(column)
        if j < len(schema.names) and schema.categories[j]:
            yield values
            continue
        if len(values) > MAX_CUTS + 1:
            ranks = np.linspace(0, len(column) - 1, MAX_CUTS + 2)[1:-1].astype(np.int64)
            values = np.unique(np.sort(column)[ranks])
        yield values[values < column.max()]  # "at most the maximum" would not split the examples


def _is_missing(value: Any) -> bool:
    """Whether a value is None, an empty text, NaN, or the NA of pandas, which has no truth value when compared."""
    return value is None or type(value).__name__ == "NAType" or value == "" or bool(value != value)


def _frequent_texts(values: np.ndarray) -> tuple[str, ...]:
    """Return the most frequent texts, the most frequent first, or () for a column of numbers and missing values."""
    if values.dtype.kind not in "OUS":  # neither Python objects nor texts
        return ()
    present = [value for value in values.tolist() if not _is_missing(value)]
    if all(isinstance(value, Number) for value in present):
        return ()
    texts, counts = np.unique(list(map(to_text, present)), return_counts=True)
    return tuple(texts[np.argsort(-counts, kind="stable")][:MAX_CATEGORIES].tolist())


def _encode_texts(name: str, values: np.ndarray, categories: tuple[str, ...]) -> np.ndarray:
    """Return the index of each text among the categories, `MISSING` for all others. The number 2.0 is the text 2.

    Raises:
        InputError: If there are numbers, and no category is a number.
    """
    codes = {category: float(i) for i, category in enumerate(categories)}
    if values.dtype.kind in "OUS":
        return np.array([codes.get(to_text(value), MISSING) for value in values.tolist()])
    numbers = {parse_number(category): code for category, code in codes.items() if parse_number(category) is not None}
    if not numbers and not bool((values != values).all()):  # a column of NaN is missing
        raise InputError(f"Expected texts in the feature {name!r}, as in the fit, got numbers.", code="texts")
    return np.array([numbers.get(value, MISSING) for value in values.tolist()])


def _to_numbers(name: str, values: np.ndarray) -> np.ndarray:
    """Return a column as numbers, with -inf if missing. Raise `InputError` for texts."""
    try:
        numbers = np.array([np.nan if _is_missing(x) else x for x in values.tolist()], dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"Expected numbers in the feature {name!r}, as in the fit, got texts.", code="texts") from None
    return np.where(np.isnan(numbers), -np.inf, numbers)
