"""Texts that stand for numbers or missing values, in the columns of a frame."""

import re
from collections.abc import Sequence
from typing import Any

from calibrant._lazy import polars

MISSING_WORDS = (  # in any case; missing only in columns of numbers
    *("na", "n/a", "n.a.", "#na", "#n/a", "<na>", "nan", "null", "none", "nil", "missing"),
    *("-", "--", "?", ".", "#null!", "#div/0!", "#value!", "#ref!", "#name?", "#num!"),
)
INTEGER_PATTERN = r"^[+-]?[0-9]+$"
NUMBER_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity|nan)$"
PERCENT_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)\s*%$"
COMMA_NUMBER_PATTERN = r"^[+-]?([0-9]+(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?(\s*%)?$"
DECIMAL_COMMA_PATTERN = r"^[+-]?0?,|,(\d{0,2}|\d{4,})(\D|$)"  # a comma that cannot separate thousands


def is_number(text: str) -> bool:
    """Whether a text is a number with a decimal point."""
    return re.match(NUMBER_PATTERN, text.strip()) is not None


def replace_missing_words(frame: Any, words: Sequence[str] = ()) -> Any:
    """Set missing values of a polars frame to null.

    Args:
        frame: The frame.
        words: Words and numbers that are missing values in every column. Words such as NA are missing values in
            columns of numbers only.
    """
    missing_numbers = [float(word) for word in words if is_number(word)]
    any_number = f"{NUMBER_PATTERN}|{PERCENT_PATTERN}|{COMMA_NUMBER_PATTERN}"
    columns: list[Any] = []
    for name, kind in frame.schema.items():
        column = frame[name]
        if kind == polars.String:
            if words:
                column = _set_null(column, column.str.strip_chars().is_in([word.strip() for word in words]))
            texts = column.str.strip_chars()
            is_missing = texts.str.to_lowercase().is_in(MISSING_WORDS)
            present = texts.filter(~is_missing.fill_null(True))
            # Only in a column whose other texts are numbers: elsewhere "none" or "?" may be a class
            if is_missing.any() and len(present) and present.str.contains(any_number).all():
                column = _set_null(column, is_missing)
        elif kind.is_numeric() and missing_numbers:
            column = _set_null(column, column.cast(polars.Float64).is_in(missing_numbers))
        columns.append(column)
    return frame.with_columns(columns)


def _set_null(column: Any, is_null: Any) -> Any:
    """Return a column with null where the mask `is_null` is true."""
    return polars.select(polars.when(~is_null.fill_null(False)).then(column)).to_series().alias(column.name)


def parse_number_columns(frame: Any, *, thousands_commas: bool = False) -> tuple[Any, bool]:
    """Convert columns of texts that are all numbers.

    Args:
        frame: A polars frame.
        thousands_commas: Commas may separate thousands: numbers such as 1,234 stay texts.

    Returns:
        The frame, and whether it has decimal commas.
    """
    text_columns = [frame[name] for name, kind in frame.schema.items() if kind == polars.String]
    parsed = [_parse_number_column(column, thousands_commas) for column in text_columns]
    return frame.with_columns(column for column, _ in parsed), any(has_commas for _, has_commas in parsed)


def _parse_number_column(column: Any, thousands_commas: bool) -> tuple[Any, bool]:
    """Convert a column of texts to numbers if all are numbers or missing, and tell whether it has decimal commas.

    Integers that need more than 64 bits stay texts. So do numbers with percent signs, of which only the words for
    missing values and the commas change. A column of other texts is returned as it is.
    """
    texts = column.str.strip_chars()
    texts = _set_null(texts, texts.str.to_lowercase().is_in([*MISSING_WORDS, ""]))
    present = texts.drop_nulls()
    if not len(present):
        return column, False
    are_comma_numbers = present.str.contains(COMMA_NUMBER_PATTERN).all()
    has_commas = bool(are_comma_numbers and present.str.contains(",", literal=True).any())
    if has_commas:
        if thousands_commas and not present.str.contains(DECIMAL_COMMA_PATTERN).any():
            return column, False  # 1,234 may be either number
        texts = texts.str.replace(",", ".", literal=True)
        present = texts.drop_nulls()
    if present.str.contains(INTEGER_PATTERN).all():
        integers = texts.str.strip_prefix("+").cast(polars.Int64, strict=False)
        return (integers if integers.null_count() == texts.null_count() else column), has_commas
    if present.str.contains(NUMBER_PATTERN).all():
        return texts.cast(polars.Float64, strict=False), has_commas
    if present.str.contains(f"{NUMBER_PATTERN}|{PERCENT_PATTERN}").all():
        return texts, has_commas  # percentages are divided by 100 when they are read as probabilities
    return column, False
