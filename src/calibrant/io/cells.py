"""Read the columns of a frame as arrays of numbers, names and lists, and find texts that stand for them."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from calibrant._core.lazy import polars
from calibrant._core.text import parse_number, shorten_repr, to_one_line
from calibrant._core.types import InputError
from calibrant.io.column_roles import TableOptions
from calibrant.predictions.validation.words import outcome_scores

NON_NUMPY_INTEGER_DTYPES = ("Int128", "UInt128")  # by name: older versions of polars lack them
TEXT_DTYPES = ("String", "Categorical", "Enum")
ROW_SUM_TOLERANCE = 0.03  # relative; for probabilities rounded to two decimals
MISSING_WORDS = (  # in any case; missing only in columns of numbers
    *("na", "n/a", "n.a.", "#na", "#n/a", "<na>", "nan", "null", "none", "nil", "missing"),
    *("-", "--", "?", ".", "#null!", "#div/0!", "#value!", "#ref!", "#name?", "#num!"),
)
INTEGER_PATTERN = r"^[+-]?[0-9]+$"
NUMBER_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity|nan)$"
PERCENT_PATTERN = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)\s*%$"
COMMA_NUMBER_PATTERN = r"^[+-]?([0-9]+(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?(\s*%)?$"
DECIMAL_COMMA_PATTERN = r"^[+-]?0?,|,(\d{0,2}|\d{4,})(\D|$)"  # a comma that cannot separate thousands


# Numbers


def to_numbers(column: Any, *, accept_truth_words: bool = False) -> Any:
    """Return a column as a polars series of a numeric type that numpy has. Missing cells stay null.

    Texts may have decimal commas, and percentages are divided by 100.

    Args:
        column: A polars series of numbers, booleans or texts.
        accept_truth_words: Read words such as yes and wrong as 1 and 0, instead of true and false alone.

    Raises:
        InputError: If a cell is not a number.
    """
    dtype = column.dtype
    if dtype == polars.Boolean:
        return column.cast(polars.Int64)
    if dtype.is_float() or (dtype.is_integer() and str(dtype) not in NON_NUMPY_INTEGER_DTYPES):
        return column
    if dtype.is_numeric():  # decimals, and integers of 128 bits
        return column.cast(polars.Float64)
    if not is_text(column):
        raise InputError(f"Expected numbers in column {column.name!r}, got {dtype}.", code="not_numbers")
    texts = column.cast(polars.String).str.strip_chars()
    words = {"true": "1", "false": "0"}
    unanswered: list[str] = []
    normalized = texts.str.to_lowercase()
    if accept_truth_words:
        scores = outcome_scores(normalized.drop_nulls().unique().to_list())
        words = {word: f"{score:g}" for word, score in scores.items() if score is not None}
        unanswered = [word for word, score in scores.items() if score is None]
    normalized = normalized.replace(words)
    has_decimal_commas = bool(texts.str.contains(DECIMAL_COMMA_PATTERN).any())
    has_points = bool(texts.str.contains(".", literal=True).any())
    if has_decimal_commas and not has_points:  # beside points, commas may separate thousands: these are refused below
        normalized = normalized.str.replace(r"^(-?\d+),(\d+)(\s*%)?$", "$1.$2$3")  # 0,5 % as 0.5 %
    numbers = _parse_percentages(column.name, normalized)
    invalid = texts.filter(numbers.fill_nan(None).is_null() & texts.is_not_null())  # a text "nan" is no number either
    if len(invalid):
        count = f"{len(invalid)} {'entry' if len(invalid) == 1 else 'entries'}"
        raise InputError(
            f"Expected numbers in column {column.name!r}, got {count} of text, such as {shorten_repr(invalid[0], 60)}."
            f"{missing_hint(invalid.unique().to_list(), unanswered)}",
            code="not_numbers",
        )
    return numbers


def _parse_percentages(name: str, texts: Any) -> Any:
    """Return texts as numbers, with percentages divided by 100 and other texts as null.

    Raises `InputError` if some texts of the column `name` have a percent sign and others do not.
    """
    has_sign = texts.str.ends_with("%").fill_null(False)
    numbers = texts.str.replace(r"\s*%$", "").cast(polars.Float64, strict=False)
    if not bool(has_sign.any()):
        return numbers
    if not bool((has_sign | texts.is_null()).all()):
        raise InputError(
            f"Expected a percent sign in every cell of {name!r} or in none, got it in {int(has_sign.sum())} of "
            f"{len(texts)}. Try one notation.",
            code="percent_mixed",
        )
    return numbers / 100


def missing_hint(texts: Iterable[str], words: Sequence[str] = ()) -> str:
    """Return a sentence on options that read a word such as "NA" as a missing value, or "" if no text is one.

    Further words, in lower case, count as missing too.
    """
    word = next((text for text in texts if text.strip().lower() in ("", *MISSING_WORDS, *words)), None)
    if word is None:
        return ""
    return f" If {word!r} is a missing value, try na=[{word!r}] with drop=True (--na {word} --drop)."


def to_probabilities(column: Any, options: TableOptions) -> np.ndarray:
    """Return a column of probabilities, divided by 100 in cells with "%" or with the option `percent`."""
    column = column.cast(polars.String) if is_text(column) else column
    has_percent_signs = column.dtype == polars.String and column.str.contains("%", literal=True).any()
    values = to_numbers(column).to_numpy()
    return values / 100 if options.percent and not has_percent_signs else values


def sums_to(rows: np.ndarray, total: float = 1.0, tolerance: float = ROW_SUM_TOLERANCE) -> bool:
    """Whether all rows sum to `total` within a relative tolerance."""
    return bool((abs(rows.sum(1) - total) <= tolerance * total + 1e-9).all())  # 1e-9 for rounding in float64


def is_text(column: Any) -> bool:
    """Whether a column holds texts or categories."""
    return str(column.dtype.base_type()) in TEXT_DTYPES


# Lists


def is_list(column: Any) -> bool:
    """Whether a column holds lists, or texts of lists such as "[0.1, 0.9]"."""
    if column.dtype.is_nested():
        return True
    return str(column.dtype) == "String" and len(column) > 0 and bool(column.str.contains(r"^\s*\[").all())


def missing_mask(column: Any) -> Any:
    """Return a boolean series: whether each cell is null or NaN, or a list of numbers with such an entry."""
    if column.dtype.is_float():
        return column.is_null() | column.is_nan()
    if isinstance(column.dtype, polars.Array):
        column = column.arr.to_list()
    if not isinstance(column.dtype, polars.List) or not column.dtype.inner.is_numeric():
        return column.is_null()
    is_missing_entry = polars.element().cast(polars.Float64).fill_nan(None).is_null()
    has_missing_entry = column.list.eval(is_missing_entry.any()).list.first()  # a list of one value for each list
    return column.is_null() | has_missing_entry.fill_null(False)


def lists_to_matrix(column: Any) -> np.ndarray:
    """Return a column of n lists, given as lists or as texts, as an array (n, k), with k entries in each list.

    Lists of k lists with t numbers give (n, k, t).

    Raises:
        InputError: For lists of different lengths, empty lists, and cells that hold no lists of numbers.
    """
    if isinstance(column.dtype, polars.Array):  # lists of a fixed length
        column = column.arr.to_list()
    elif not column.dtype.is_nested():  # texts such as "[0.1, 0.9]"
        column = column.str.extract_all(r"[^\[\]\s,;]+")
    inner = getattr(column.dtype, "inner", None)
    if inner is None:  # a column of records, which are nested but no lists
        raise InputError(
            f"Expected numbers or lists of numbers in column {column.name!r}, got {column.dtype}.", code="not_numbers"
        )
    low, high = column.list.len().min(), column.list.len().max()
    if low != high or high == 0:
        raise InputError(
            f"Expected lists with an entry per class in column {column.name!r}, got {low} to {high} entries.",
            code="list_length",
        )
    if inner.is_nested():  # lists of lists: one score per class and position
        return _convert(column.name, lambda: np.array(column.to_list(), dtype=float))
    return to_numbers(column.explode()).to_numpy().reshape(len(column), -1)


# Names


def to_numbers_or_texts(column: Any) -> np.ndarray:
    """Return a column as numbers, or as texts if it has texts, even those that spell numbers."""
    if str(column.dtype) in NON_NUMPY_INTEGER_DTYPES:
        as_int64 = column.cast(polars.Int64, strict=False)  # null for integers that need more bits: these are names
        column = as_int64 if as_int64.null_count() == column.null_count() else column.cast(polars.String)
    if column.dtype.is_numeric():
        return to_numbers(column).to_numpy()
    if column.dtype == polars.Boolean:
        return column.to_numpy()
    return _convert(column.name, lambda: np.array(column.cast(polars.String).to_list(), dtype=str))


def _convert(name: str, convert: Callable[[], np.ndarray]) -> np.ndarray:
    """Call a conversion, and turn exceptions of other libraries into `InputError`."""
    try:
        return convert()
    except Exception as error:
        raise InputError(
            f"Expected numbers or names in column {name!r}, got other cells ({to_one_line(error)}).", code="label_kind"
        ) from None


def class_keys(column: Any) -> np.ndarray:
    """Return cells as texts that are equal for the same class, such as 1, 1.0 and "1". Missing cells give ""."""
    if column.dtype.is_nested():
        raise InputError(f"Expected classes in column {column.name!r}, got lists.", code="label_kind")
    texts = np.array(column.cast(polars.String).fill_null("").to_list(), dtype=str)
    unique_texts, index = np.unique(texts, return_inverse=True)
    unique_keys = [_class_key(text) for text in unique_texts.tolist()]
    return np.array(unique_keys, dtype=str)[index]


def _class_key(text: str) -> str:
    """Return a number in its shortest form, such as 1 for "1.0", and any other text without blanks around it."""
    number = parse_number(text)
    return text.strip() if number is None else f"{number:.15g}"  # float64 holds up to 15 digits without rounding


def comparable_class_keys(*columns: Any) -> list[np.ndarray]:
    """Return the class keys of columns that may spell classes differently.

    True and false become 1 and 0 if another column has other words or numbers. Case is ignored if no two classes of a
    column differ by case alone, and two columns spell a class in different case.
    """
    keys = [class_keys(column) for column in columns]
    classes = [set(np.unique(column_keys).tolist()) for column_keys in keys]
    lower_classes = [{name.casefold() for name in names} for names in classes]
    are_boolean = [names <= {"true", "false"} for names in lower_classes]
    if any(are_boolean) and not all(are_boolean):
        keys = [
            np.where(np.char.lower(column_keys) == "true", "1", "0") if is_boolean else column_keys
            for column_keys, is_boolean in zip(keys, are_boolean, strict=True)
        ]
    # Without case, a column has fewer classes, as with "a" and "A"; or the columns together have fewer
    case_tells_classes_apart = list(map(len, lower_classes)) != list(map(len, classes))
    case_differs_between_columns = len(set().union(*lower_classes)) < len(set().union(*classes))
    if case_differs_between_columns and not case_tells_classes_apart:
        keys = [np.char.lower(column_keys) for column_keys in keys]
    return keys


# Texts that stand for numbers or missing values


def is_number(text: str) -> bool:
    """Whether a text is a number with a decimal point."""
    return re.match(NUMBER_PATTERN, text.strip()) is not None


def replace_missing_words(frame: Any, words: Sequence[str] = ()) -> Any:
    """Set missing values of a polars frame to null.

    In every column, these are the given words. In columns of numbers, they are also words such as NA.

    Args:
        frame: The frame.
        words: Words and numbers that are missing values.
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
    """Return a column of texts as numbers if all are numbers or missing, and whether it has decimal commas.

    A column with other texts, or with integers of more than 64 bits, is returned as it is. Percentages stay texts, but
    with null for words such as NA, and with decimal points.
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
            return column, False  # 1,234 may be 1234 or 1.234
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
