"""Read the cells of a table's columns, numbers, names, labels and lists, as arrays from which predictions are made."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from calibrant._text import parse_number, shorten_list, to_one_line
from calibrant._validation.arrays import to_tensor
from calibrant._validation.labels import binary_names, positive_word, to_texts
from calibrant._validation.names import is_same_name, match_names
from calibrant.io.columns import Columns, TableOptions
from calibrant.io.delimited import DECIMAL_COMMA_PATTERN, MISSING_WORDS
from calibrant.types import InputError

NON_NUMPY_INTEGER_DTYPES = ("Int128", "UInt128")  # kinds of numbers that numpy has not
TEXT_DTYPES = ("String", "Categorical", "Enum")
TRUTH_WORDS = {
    **dict.fromkeys(("true", "yes", "y", "t", "right", "correct", "1", "1.0", "matched", "pass", "passed"), "1"),
    **dict.fromkeys(("false", "no", "n", "f", "wrong", "incorrect", "0", "0.0", "unmatched", "fail", "failed"), "0"),
}
NEGATIVE_WORDS = ("negative", "neg", "false", "no", "n", "f")
MAX_WEIGHT_SUM_DEVIATION = (
    0.2  # of the number of rows, by which weights that were found by name may sum to something else
)
ROUNDED_SUM_RANGE = (0.97, 1.03)  # of rows of probabilities that are rounded to two decimals
PROBABILITY_RANGE_TOLERANCE = 1e-6  # by which rounding may take probabilities out of [0, 1]
MIN_TOP_CLASS_ROWS = 20  # rows from which probabilities that are never below one half raise a doubt
MAX_POSITIVE_SHARE = 0.65  # of labels, below which they do
DATE_PATTERN = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}([./])\d{1,2}\2\d{4}( .*)?", re.ASCII)
LabelReading = tuple[np.ndarray, tuple[str, ...] | None, tuple[str, ...]]  # labels, names of the classes, notes


@np.errstate(invalid="ignore", over="ignore")  # infinities are refused later
def frame_to_arrays(
    frame: Any, columns: Columns, options: TableOptions | None = None, *, has_all_rows: bool = True
) -> dict[str, Any]:
    """Return the arrays of a polars frame, by the names under which predictions enter.

    `whole` is false for a piece of a table: what only all rows show is not checked then.

    Raises `InputError` where values are missing, unless the rows may be left out (`options.drop`), and where labels,
    scores or weights cannot be what they were taken for.
    """
    options = options or TableOptions()
    num_rows = len(frame)
    if columns.kind != "logits":
        _check_percent(frame, columns, options)
    frame, notes = _drop_incomplete_rows(frame, columns, options)
    frame, ignored_notes = _drop_ignored_rows(frame, columns, options)
    notes += ignored_notes if has_all_rows else []
    arrays: dict[str, Any] = {}
    if columns.weight is not None:
        arrays["weights"] = to_numbers(frame[columns.weight]).to_numpy()
        weight_sum = float(arrays["weights"].sum())
        notes.insert(0, check_weights(columns, weight_sum, len(frame), has_all_rows))
    for role in ("group", "cluster"):
        if (name := getattr(columns, role)) is not None:
            arrays[f"{role}s"] = to_numbers_or_texts(frame[name])
    if columns.id is not None:
        arrays["ids"] = frame[columns.id]
    notes += _repeated_ids_note(frame, columns) if has_all_rows else []
    if columns.confidence is not None:
        score_arrays, score_notes = _read_answers(frame, columns, options, has_all_rows)
    else:
        score_arrays, score_notes = _read_scores(frame, columns, options, has_all_rows)
    summary = f"read {num_rows:,} rows: {columns.description}"
    return arrays | score_arrays | {"notes": ("; ".join([summary, *notes, *score_notes]),)}


def _drop_ignored_rows(frame: Any, columns: Columns, options: TableOptions) -> tuple[Any, list[str]]:
    """Drop rows with an ignored label, before labels get names; also return a note with their number."""
    has_label = columns.label is not None and columns.confidence is None
    if options.ignore_index is None or not has_label or frame[columns.label].dtype.is_nested():
        return frame, []
    values = _parse_number_texts(to_numbers_or_texts(frame[columns.label]))
    if values.dtype.kind not in "iuf" or 0 <= options.ignore_index < max(2, len(columns.scores)):
        return frame, []  # a position of a class is refused later
    is_ignored = values == options.ignore_index
    if not is_ignored.any() or is_ignored.all():  # a piece in which all are ignored is left out as a whole
        return frame, []
    return frame.filter(~is_ignored), [f"left out {int(is_ignored.sum()):,} rows with label {options.ignore_index}"]


def _read_answers(
    frame: Any, columns: Columns, options: TableOptions, has_all_rows: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return stated confidences and whether the answers were right."""
    arrays: dict[str, Any] = {"confidence": to_probabilities(frame[columns.confidence], options)}
    if columns.correct is not None:
        if str(columns.correct).lower() == "matched":
            arrays["judged"] = "matched"
        arrays["correct"] = to_numbers(frame[columns.correct], accept_truth_words=True).to_numpy()
    elif columns.label is not None and columns.predicted is not None:
        label_keys, predicted_keys = class_keys(frame[columns.label], frame[columns.predicted])
        if has_all_rows:
            _check_predicted(columns, label_keys, predicted_keys)
        arrays["correct"] = (label_keys == predicted_keys).astype(np.int64)
        share = f"true in {arrays['correct'].mean():.1%} of them"
        return arrays, (f"correct is whether {columns.label!r} equals {columns.predicted!r}, {share}",)
    return arrays, ()


def _check_predicted(columns: Columns, label_keys: np.ndarray, predicted_keys: np.ndarray) -> None:
    """Raise `InputError` where labels and predictions are not of the same classes."""
    labels, guesses = np.unique(label_keys).tolist(), np.unique(predicted_keys).tolist()
    _check_missing_words(str(columns.label), labels, guesses)
    _check_missing_words(str(columns.predicted), guesses, labels)
    numbers = [[parse_number(kind) for kind in kinds] for kinds in (labels, guesses)]
    is_shifted = (
        None not in numbers[0] + numbers[1]
        and len(labels) > 2
        and (
            sorted(n + 1 for n in numbers[0] if n is not None) == sorted(n for n in numbers[1] if n is not None)
            or sorted(n - 1 for n in numbers[0] if n is not None) == sorted(n for n in numbers[1] if n is not None)
        )
    )
    if is_shifted or not set(labels) & set(guesses):
        raise InputError(
            f"labels in {columns.label!r} ({shorten_list(labels)}) and predictions in {columns.predicted!r} "
            f"({shorten_list(guesses)}) "
            "name other classes. Try the same names in both, or a column of whether the answer was right, --correct",
            code="predicted_labels",
        )


def _check_missing_words(name: str, labels: list[str], other_labels: list[str]) -> None:
    """Raise `InputError` for labels such as "NA" that do not occur among the others: they may be missing values."""
    if hint := _missing_hint([label for label in labels if label not in other_labels]):
        raise InputError(f"expected a class in every row of {name!r}{hint}", code="missing_word")


def _missing_hint(texts: Iterable[str]) -> str:
    """Return how to read words such as "NA" as missing values, or nothing where none of the texts is one."""
    word = next((text for text in texts if text.strip().lower() in ("", *MISSING_WORDS)), None)
    if word is None:
        return ""
    options = f"na=[{word!r}] with drop=True (on the command line, --na {word} --drop)"
    return f". If {word!r} is a missing value, try {options}."


def _read_scores(
    frame: Any, columns: Columns, options: TableOptions, has_all_rows: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return probabilities or logits with the labels beside them."""
    scores = _read_score_matrix(frame, columns, options)
    if scores.ndim == 1 and columns.kind == "probs":
        _check_range(scores, columns.scores[0])
    arrays: dict[str, Any] = {columns.kind: scores}
    names, notes = columns.names, ()
    if columns.labels:
        labels = frame.select([to_numbers(frame[name], accept_truth_words=True) for name in columns.labels]).to_numpy()
        if columns.kind == "probs" and _is_one_hot(labels) and bool((abs(scores.sum(1) - 1) < 0.01).all()):
            arrays |= {"labels": labels.argmax(1), "several": False}
            notes = ("exactly one label holds in every row: they are classes",)
        else:
            arrays |= {"labels": labels, "several": True}
    elif columns.label is not None:
        labels, names, notes = _read_labels(frame[columns.label], columns, options, scores, has_all_rows)
        arrays |= {"labels": labels, "several": labels.ndim > 1}
        if scores.ndim == 1 and has_all_rows and columns.kind == "probs":
            _check_top_class(scores, labels, columns, options)
    if scores.ndim > 1 and options.positive is not None:
        raise InputError(
            f"expected a single score for the positive class {options.positive!r}, got {scores.shape[1]} columns. "
            "Try of= (on the command line, --of) for the class to evaluate.",
            code="positive_class",
        )
    if names is not None:
        arrays["class_names"] = names
    return arrays, notes


def _is_one_hot(labels: np.ndarray) -> bool:
    return bool(np.isin(labels, (0, 1)).all()) and bool((labels.sum(1) == 1).all())


# Scores


def is_list(column: Any) -> bool:
    """Whether a column holds lists, or texts of lists such as "[0.1, 0.9]"."""
    if column.dtype.is_nested():
        return True
    return str(column.dtype) == "String" and len(column) > 0 and bool(column.str.contains(r"^\s*\[").all())


def _read_score_matrix(frame: Any, columns: Columns, options: TableOptions) -> np.ndarray:
    def read_column(column: Any) -> np.ndarray:
        return to_probabilities(column, options) if columns.kind == "probs" else to_numbers(column).to_numpy()

    if len(columns.scores) == 1:
        column = frame[columns.scores[0]]
        if not is_list(column):
            return read_column(column)
        rows = _lists_to_matrix(column)
        values = rows / 100 if options.percent and columns.kind == "probs" else rows
    elif columns.kind == "probs":
        values = np.stack([read_column(frame[name]) for name in columns.scores], 1)
    else:
        values = frame.select([to_numbers(frame[name]) for name in columns.scores]).to_numpy()
    _check_class_columns_complete(values, columns)
    return normalize_rows(values) if options.normalize and columns.kind == "probs" else values


def normalize_rows(probs: np.ndarray) -> np.ndarray:
    """Return rows of probabilities divided by their sum; raises `InputError` where that is no rounding."""
    sums = probs.sum(1)
    low, high = float(sums.min()), float(sums.max())
    if not ROUNDED_SUM_RANGE[0] - 1e-9 <= low <= high <= ROUNDED_SUM_RANGE[1] + 1e-9:
        raise InputError(
            f"expected rows of probabilities that sum to {ROUNDED_SUM_RANGE[0]} .. {ROUNDED_SUM_RANGE[1]} to "
            "normalize, got sums "
            f"{low:.4g} .. {high:.4g}; is the column of a class missing?",
            code="normalize_range",
        )
    return probs / sums[:, None]


def _check_class_columns_complete(scores: np.ndarray, columns: Columns) -> None:
    """Raise `InputError` if the numbering of the columns shows that the column of a class is missing.

    No class is missing if the rows sum to 1, or if the caller named the columns.
    """
    numbers = [parse_number(name) for name in columns.names or ()]
    if not numbers or None in numbers or columns.kind in columns.explicit_roles:
        return
    sums = scores.sum(1)
    if columns.kind == "probs" and bool((abs(sums - 1) < ROUNDED_SUM_RANGE[1] - 1).all()):
        return
    present_numbers = [int(number) for number in numbers if number is not None]
    missing_numbers = sorted(set(range(min(0, *present_numbers), max(present_numbers))) - set(present_numbers))
    prefix = columns.scores[0][: len(columns.scores[0]) - len((columns.names or ("",))[0])]
    if (
        missing_numbers
        and min(present_numbers) in (0, 1)
        and len(set(missing_numbers) - {0}) in range(1, len(present_numbers) + 1)
    ):
        raise InputError(
            f"expected a column of every class, got {shorten_list(columns.scores)} without one such as "
            f"{prefix}{missing_numbers[-1]}. "
            f"Try a table with all classes, or {columns.kind}= with these columns if there are no others.",
            code="class_missing",
        )


def _check_percent(frame: Any, columns: Columns, options: TableOptions) -> None:
    """Raise `InputError` where probabilities or confidences seem to be percentages, also where rows may be dropped."""
    names = (*columns.scores, *([columns.confidence] if columns.confidence else []))
    if options.percent or not len(frame) or any(is_list(frame[name]) for name in names):
        return
    values = np.stack([to_probabilities(frame[name], options) for name in names]) if names else np.zeros((0, 0))
    values = values[:, ~np.isnan(values).any(0)]
    if not values.size or values.min() < 0 or not 2 < values.max() <= 100:
        return
    if len(names) > 1 and not bool((abs(values.sum(0) - 100) < 3).all()):
        return
    if len(names) == 1 and (values > 1).mean() < 0.5 and options.drop:
        return
    raise InputError(
        f"expected numbers in [0, 1] in {shorten_list(names)}, got {values.min():.4g} .. {values.max():.4g}; are they "
        "percentages? Try percent=True (on the command line, --percent).",
        code="percent",
    )


def _check_range(probs: np.ndarray, name: str) -> None:
    """Raise `InputError` where a single score is no probability."""
    low, high = float(probs.min()), float(probs.max())
    if low < -PROBABILITY_RANGE_TOLERANCE or high > 1 + PROBABILITY_RANGE_TOLERANCE:
        raise InputError(
            f"expected probabilities in [0, 1] in {name!r}, got {low:.4g} .. {high:.4g}. If these are logits, try "
            f"logits={name!r} (on the command line, --logits {name}).",
            code="probability_range",
        )


def _check_top_class(probs: np.ndarray, labels: np.ndarray, columns: Columns, options: TableOptions) -> None:
    """Raise `InputError` where a number found by name is never below one half, but the labels often are negative."""
    if "probs" in columns.explicit_roles or options.positive is not None or columns.positive is not None:
        return
    if labels.dtype.kind not in "iufb" or len(probs) < MIN_TOP_CLASS_ROWS or not 0.5 <= probs.min() <= probs.max() <= 1:
        return
    if not set(np.unique(labels).tolist()) <= {0, 1, -1} or (labels > 0).mean() >= MAX_POSITIVE_SHARE:
        return
    name = columns.scores[0]
    raise InputError(
        f"column {name!r} is never below 1/2, though the positive class is rare: is it the confidence of the "
        f"predicted class? Try confidence={name!r} with predicted= or correct= (on the command line, --confidence "
        f"{name}), or probs={name!r} (--probs {name}) if it is the probability of class 1.",
        code="ambiguous_reading",
    )


def _lists_to_matrix(column: Any) -> np.ndarray:
    """Return lists as rows of an array; they must be of one length."""
    import polars

    if isinstance(column.dtype, polars.Array):
        column = column.arr.to_list()
    elif not column.dtype.is_nested():
        column = column.str.extract_all(r"[^\[\]\s,;]+")
    inner = getattr(column.dtype, "inner", None)
    if inner is None:
        raise InputError(
            f"column {column.name!r} holds {column.dtype}, expected numbers or lists of numbers", code="not_numbers"
        )
    low, high = column.list.len().min(), column.list.len().max()
    if low != high or high == 0:
        raise InputError(
            f"lists in column {column.name!r} have {low} to {high} entries; expected one for every class",
            code="list_length",
        )
    if inner.is_nested():
        return _convert_column(column.name, lambda: np.array(column.to_list(), dtype=float))
    return to_numbers(column.explode()).to_numpy().reshape(len(column), -1)


# Cells


def to_probabilities(column: Any, options: TableOptions) -> np.ndarray:
    """Return a column of probabilities; cells with a percent sign, and all with `percent`, are divided by 100."""
    import polars

    column = _cast_categories_to_text(column)
    has_percent_signs = column.dtype == polars.String and column.str.contains("%", literal=True).any()
    values = to_numbers(column).to_numpy()
    return values / 100 if options.percent and not has_percent_signs else values


def _cast_categories_to_text(column: Any) -> Any:
    import polars

    return column.cast(polars.String) if str(column.dtype.base_type()) in TEXT_DTYPES else column


def to_numbers(column: Any, *, accept_truth_words: bool = False) -> Any:
    """Return a column as numbers that numpy has; `words` such as yes and wrong count as 1 and 0."""
    import polars

    dtype = column.dtype
    if dtype == polars.Boolean:
        return column.cast(polars.Int64)
    if dtype.is_float() or (dtype.is_integer() and str(dtype) not in NON_NUMPY_INTEGER_DTYPES):
        return column
    if dtype.is_numeric():
        return column.cast(polars.Float64)
    if str(dtype.base_type()) not in TEXT_DTYPES:
        raise InputError(f"column {column.name!r} holds {dtype}, expected numbers", code="not_numbers")
    texts = column.cast(polars.String).str.strip_chars()
    normalized_texts = texts.str.to_lowercase()
    normalized_texts = (
        normalized_texts.replace(TRUTH_WORDS)
        if accept_truth_words
        else normalized_texts.replace({"true": "1", "false": "0"})
    )
    has_decimal_commas = bool(texts.str.contains(DECIMAL_COMMA_PATTERN).any())  # which are no separators of thousands
    if has_decimal_commas and not bool(texts.str.contains(".", literal=True).any()):
        normalized_texts = normalized_texts.str.replace(r"^(-?\d+),(\d+)(\s*%)?$", "$1.$2$3")
    numbers = _parse_percentages(column.name, normalized_texts)
    invalid_texts = texts.filter(numbers.fill_nan(None).is_null() & texts.is_not_null())
    if len(invalid_texts):
        raise InputError(
            f"column {column.name!r} must hold numbers, but {len(invalid_texts)} entries are none, such as "
            f"{invalid_texts[0][:60]!r}"
            f"{_missing_hint(invalid_texts.unique().to_list())}",
            code="not_numbers",
        )
    return numbers


def _parse_percentages(name: str, texts: Any) -> Any:
    """Return texts as numbers, those with a percent sign divided by 100; all or none must have one."""
    import polars

    has_percent_sign = texts.str.ends_with("%").fill_null(False)
    numbers = texts.str.replace(r"\s*%$", "").cast(polars.Float64, strict=False)
    if not bool(has_percent_sign.any()):
        return numbers
    if not bool((has_percent_sign | texts.is_null()).all()):
        raise InputError(
            f"expected a percent sign in every entry of {name!r} or in none, got it in {int(has_percent_sign.sum())} "
            "of "
            f"{len(texts)}. Try one notation.",
            code="percent_mixed",
        )
    return numbers / 100


def class_keys(*columns: Any) -> Any:
    """Return the entries of columns as texts that are equal where they mean the same class, such as 1, 1.0 and "1".

    Of several columns, an array each: true and false mean 1 and 0 where another column has these, and case does not
    matter where it tells no classes apart.
    """
    keys = [_column_class_keys(column) for column in columns]
    if len(keys) == 1:
        return keys[0]
    unique_keys = [set(np.unique(column_keys).tolist()) for column_keys in keys]
    is_boolean = [
        {key.lower() for key in column_unique_keys} <= {"true", "false"} for column_unique_keys in unique_keys
    ]
    if any(is_boolean) and not all(is_boolean):
        keys = [
            np.where(np.char.lower(column_keys) == "true", "1", "0") if is_boolean_column else column_keys
            for column_keys, is_boolean_column in zip(keys, is_boolean, strict=True)
        ]
    all_keys = set().union(*unique_keys)
    casefolded_keys = {key.casefold() for key in all_keys}
    if all(
        len({key.casefold() for key in column_unique_keys}) == len(column_unique_keys)
        for column_unique_keys in unique_keys
    ) and len(casefolded_keys) < len(all_keys):
        keys = [np.char.lower(column_keys) for column_keys in keys]
    return tuple(keys)


def _column_class_keys(column: Any) -> np.ndarray:
    """Return the entries of a column as texts, whole numbers without decimals; missing ones are empty."""
    import polars

    if column.dtype.is_nested():
        raise InputError(f"column {column.name!r} holds lists, expected classes", code="label_kind")
    unique_texts, index = np.unique(
        np.array(column.cast(polars.String).fill_null("").to_list(), dtype=str), return_inverse=True
    )
    keys = [text.strip() if (n := parse_number(text)) is None else f"{n:.15g}" for text in unique_texts.tolist()]
    return np.array(keys, dtype=str)[index]


def to_numbers_or_texts(column: Any) -> np.ndarray:
    """Return a column as numbers, or as texts; texts of whole numbers stay texts."""
    import polars

    if str(column.dtype) in NON_NUMPY_INTEGER_DTYPES:
        as_int64 = column.cast(polars.Int64, strict=False)
        column = as_int64 if as_int64.null_count() == column.null_count() else column.cast(polars.String)
    if column.dtype.is_numeric():
        return to_numbers(column).to_numpy()
    if column.dtype == polars.Boolean:
        return column.to_numpy()
    return _convert_column(column.name, lambda: np.array(column.cast(polars.String).to_list(), dtype=str))


def _convert_column(name: str, convert: Callable[[], np.ndarray]) -> np.ndarray:
    """Return what is made of a column; raises `InputError` where its kind has no such thing."""
    try:
        return convert()
    except Exception as error:  # of polars or numpy
        reason = to_one_line(error)
        raise InputError(f"column {name!r} holds neither numbers nor names ({reason})", code="label_kind") from None


# Labels


def _read_labels(
    column: Any, columns: Columns, options: TableOptions, scores: np.ndarray, has_all_rows: bool
) -> LabelReading:
    """Return labels as numbers or as names of classes, the names of the classes, and notes on how they were read."""
    is_text = str(column.dtype.base_type()) in TEXT_DTYPES
    is_date = (
        is_text
        and (columns.names is None or len(columns.scores) == 1)
        and all(map(DATE_PATTERN.fullmatch, column.unique()))
    )
    if column.dtype.is_temporal() or is_date:
        raise InputError(
            f"expected classes in {column.name!r}, got dates or times. Try label= with another column (on the command "
            "line, --label NAME).",
            code="label_kind",
        )
    if column.dtype.is_nested():
        return _lists_to_matrix(column), columns.names, ()
    values = _parse_number_texts(to_numbers_or_texts(column))
    if scores.ndim == 1 and options.labels_from is None:
        return _restore_ignored_labels(_read_binary_labels(values, columns, options), values, options)
    k = scores.shape[1] if scores.ndim > 1 else 2
    names = columns.names if scores.ndim > 1 else None
    if options.labels_from is not None:
        return _restore_ignored_labels((_labels_to_positions(values, options, names), names, ()), values, options)
    unique_labels = _unique_labels(values, options)
    is_numeric = values.dtype.kind in "iuf"
    is_one_based = is_numeric and bool(unique_labels) and min(unique_labels) >= 1 and has_all_rows
    if names is None:
        if is_one_based and max(unique_labels) == k:
            raise _one_based_labels_error(column.name, unique_labels, k)
        return values.astype(np.int64) if values.dtype.kind == "b" else values, None, ()
    if not is_numeric:
        return _match_word_labels(values, names)
    return _restore_ignored_labels(
        _match_numeric_labels(column.name, values, unique_labels, names, is_one_based), values, options
    )


def _parse_number_texts(values: np.ndarray) -> np.ndarray:
    """Return texts that are all numbers, such as "0" and "1.0", as numbers; other values as they are."""
    if values.dtype.kind != "U" or not len(values):
        return values
    unique_texts, index = np.unique(values, return_inverse=True)
    numbers = [parse_number(text) for text in unique_texts.tolist()]
    return values if None in numbers else np.array(numbers, dtype=float)[index]


def _unique_labels(values: np.ndarray, options: TableOptions) -> list[Any]:
    """Return the labels that occur, without the one that is ignored."""
    return [label for label in np.unique(values).tolist() if label != options.ignore_index]


def _restore_ignored_labels(labels: LabelReading, values: np.ndarray, options: TableOptions) -> LabelReading:
    """Return labels that were read from numeric values with `ignore_index` in ignored rows, and nowhere else.

    Names become positions where rows are ignored. Raises `InputError` where a class has the position `ignore_index`.
    """
    label_values, names, notes = labels
    if options.ignore_index is None or values.dtype.kind not in "iuf":
        return labels
    is_ignored = values == options.ignore_index
    if label_values.dtype.kind == "U":
        if not is_ignored.any():
            return labels
        unique_names, index = np.unique(label_values[~is_ignored], return_inverse=True)
        positions = [(names or ()).index(name) for name in match_names(unique_names.tolist(), names or ())]
        label_values = np.full(label_values.shape, options.ignore_index)
        label_values[~is_ignored] = np.array(positions, dtype=label_values.dtype)[index]
    if (label_values[~is_ignored] == options.ignore_index).any():
        raise InputError(
            f"expected an ignored label that is no position of a class, got {options.ignore_index}. Try "
            "ignore_index=-100 with -100 in the rows to ignore.",
            code="ignore_index",
        )
    return np.where(is_ignored, options.ignore_index, label_values), names, notes


def _labels_to_positions(values: np.ndarray, options: TableOptions, names: tuple[str, ...] | None) -> np.ndarray:
    """Return labels that are counted from `labels_from` as positions."""
    first_label = options.labels_from or 0
    if values.dtype.kind not in "iuf":
        raise InputError(f"expected numbers as labels to count from {first_label}, got words", code="labels_from")
    is_ignored = values == options.ignore_index if options.ignore_index is not None else np.zeros(len(values), bool)
    if len(values) and (values[~is_ignored] < first_label).any():
        lowest_label = values[~is_ignored].min()
        raise InputError(
            f"expected labels from {first_label} on, got {lowest_label:g}. Try labels_from={lowest_label:g}.",
            code="labels_from",
        )
    numbers = [parse_number(name) for name in names or ()]
    if numbers and None not in numbers and numbers != [first_label + i for i in range(len(numbers))]:
        raise InputError(
            f"expected classes counted from {first_label}, got columns of classes {shorten_list(names or ())}. Try "
            "without "
            "labels_from: labels are matched to these numbers.",
            code="labels_from",
        )
    return np.where(is_ignored, values, values - first_label)


def _match_word_labels(values: np.ndarray, names: tuple[str, ...]) -> LabelReading:
    """Return words, or true and false, as names of classes."""
    if values.dtype.kind == "U":
        if hint := _missing_hint(
            [positive_name for positive_name in np.unique(values).tolist() if positive_name not in names]
        ):
            raise InputError(
                f"expected one of the classes {shorten_list(names)} in every row of labels{hint}", code="missing_word"
            )
        return values, names, ()
    by_name = {name.lower(): name for name in names}
    positive_name = positive_word(names)
    if {"false", "true"} <= by_name.keys():
        negative_and_positive = [by_name["false"], by_name["true"]]
    elif positive_name is not None and len(names) == 2:
        negative_and_positive = [next(name for name in names if name != positive_name), positive_name]
    else:
        raise InputError(
            f"labels are true or false, but the columns' classes are {shorten_list(names)}. Try labels of these names.",
            code="unknown_label",
        )
    return np.array(negative_and_positive)[values.astype(np.int64)], names, ()


def _match_numeric_labels(
    column: str, values: np.ndarray, unique_labels: list[Any], names: tuple[str, ...], is_one_based: bool
) -> LabelReading:
    """Return numeric labels as names of classes: equal numbers, numbers at the end of names, or else positions."""
    if None not in [parse_number(name) for name in names]:
        return to_texts(to_tensor(values, "labels")), names, ()
    positive_name = positive_word(names)
    if positive_name is not None and len(names) == 2 and {*unique_labels} <= {-1, 0, 1} and len(unique_labels) <= 2:
        negative_name = next(name for name in names if name != positive_name)
        note = f"label 1 is {positive_name!r}"
        return np.where(values > 0, positive_name, negative_name), names, (note,)
    numbered_names = _names_by_number(names)
    if numbered_names is not None and {*unique_labels} <= numbered_names.keys():
        return np.array([numbered_names.get(value, str(value)) for value in values.tolist()]), names, ()
    if (
        numbered_names is not None
        and {*unique_labels} - numbered_names.keys()
        and {*unique_labels} & numbered_names.keys()
        and sorted(numbered_names) != list(range(len(numbered_names)))
    ):
        raise InputError(
            f"labels {shorten_list([f'{label:g}' for label in unique_labels])} are not the numbers of the columns "
            f"{shorten_list(names)}. Try "
            f"labels_from={min(unique_labels):g} if they are positions.",
            code="labels_from",
        )
    if is_one_based:
        raise _one_based_labels_error(column, unique_labels, len(names))
    if unique_labels and (min(unique_labels) < 0 or max(unique_labels) >= len(names)):
        raise InputError(
            f"labels {shorten_list([f'{label:g}' for label in unique_labels])} are neither names nor positions, from "
            "0, of the classes "
            f"{shorten_list(names)}. Try labels of these names.",
            code="unknown_label",
        )
    positions_text = shorten_list([f"{i} is {name}" for i, name in enumerate(names)]).replace("'", "")
    return values, names, (f"labels are numbers: each is taken for the position of its class, {positions_text}",)


def _names_by_number(names: tuple[str, ...]) -> dict[float, str] | None:
    """Return names such as class_1 and class_2 by their numbers; None where they do not differ by a number alone."""
    matches = [re.fullmatch(r"(\D*)(\d{1,9})", name, re.ASCII) for name in names]
    if any(match is None or match[1] != (matches[0] or match)[1] for match in matches):
        return None
    numbers = {float(match[2]): name for match, name in zip(matches, names, strict=True) if match is not None}
    return numbers if len(numbers) == len(names) else None


def _one_based_labels_error(column: str, unique_labels: list[Any], num_classes: int) -> InputError:
    return InputError(
        f"expected labels 0 .. {num_classes - 1} in {column!r}, the positions of {num_classes} classes, got "
        f"{min(unique_labels):g} .. "
        f"{max(unique_labels):g}; are they counted from 1? Try labels_from=1 (on the command line, --labels-from 1), "
        "or "
        "labels_from=0 if class 0 just does not occur.",
        code="labels_from",
    )


def _read_binary_labels(values: np.ndarray, columns: Columns, options: TableOptions) -> LabelReading:
    """Return the labels of a single score as 0 and 1, with the names of the two classes where they have any."""
    unique_labels = _unique_labels(values, options)
    texts = [str(kind) if values.dtype.kind in "Ub" else f"{kind:.15g}" for kind in unique_labels]
    positive = options.positive or columns.positive
    is_column_named_after_label = columns.positive is not None and any(
        is_same_name(columns.positive, kind) for kind in texts
    )
    if (
        options.positive is not None
        and is_column_named_after_label
        and not is_same_name(options.positive, str(columns.positive))
    ):
        raise InputError(
            f"column {columns.scores[0]!r} is named after class {columns.positive!r}, not {positive!r}. Try "
            f"positive={columns.positive!r}.",
            code="positive_class",
        )
    if len(texts) > 2:
        raise InputError(
            f"expected two classes beside the single score {columns.scores[0]!r}, got {len(texts)} "
            f"({shorten_list(texts)}). "
            "Try a column of probabilities per class, or confidence= with predicted= if the score is that of the "
            f"predicted class (on the command line, --confidence and --predicted){_missing_hint(texts) or '.'}",
            code="many_classes",
        )
    if values.dtype.kind == "U" or options.positive is not None:
        return _encode_named_binary_labels(values, texts, positive, is_explicit=options.positive is not None)
    return _encode_numeric_binary_labels(values, unique_labels, columns, options)


def _encode_named_binary_labels(
    values: np.ndarray, texts: list[str], positive: str | None, *, is_explicit: bool
) -> LabelReading:
    names = binary_names(texts, positive, required=is_explicit)
    if values.dtype.kind in "Ub":
        return (values.astype(str) == names[1]).astype(np.int64), names, (_positive_note(names),)
    return (values == float(parse_number(names[1]) or 0)).astype(np.int64), names, (_positive_note(names),)


def _positive_note(names: tuple[str, str]) -> str:
    return f"the positive class is {names[1]!r}"


def _encode_numeric_binary_labels(
    values: np.ndarray, unique_labels: list[Any], columns: Columns, options: TableOptions
) -> LabelReading:
    """Return numeric labels of a single score, whose column may be named after one of them or after a word."""
    positive = columns.positive
    number = None if positive is None else parse_number(positive)
    is_zero_one = {*unique_labels} <= {0, 1}
    if number is not None and not (number == 1 and is_zero_one):
        texts = [f"{float(label):.15g}" for label in unique_labels]
        names = binary_names(texts, f"{number:.15g}")
        return (values == number).astype(np.int64), names, (_positive_note(names),)
    if positive is not None and is_zero_one and positive.lower() in NEGATIVE_WORDS:
        names = (f"not {positive}", positive)
        return np.where(np.isin(values, (0, 1)), 1 - values, values).astype(np.int64), names, ()
    if is_zero_one or {*unique_labels} == {-1, 1}:
        values = values.astype(np.int64) if values.dtype.kind == "b" else values
        return values, None, () if positive is None else (f"label 1 is {positive!r}",)
    labels_text = shorten_list([f"{label:g}" for label in unique_labels])
    highest_label = f"{max(unique_labels):g}"
    labels_from_hint = (
        f", or labels_from={min(unique_labels):g} (--labels-from {min(unique_labels):g})"
        if max(unique_labels) - min(unique_labels) == 1
        else ""
    )
    raise InputError(
        f"expected labels 0 and 1 beside the single score {columns.scores[0]!r}, got {labels_text}. Try "
        f"positive={highest_label!r} (on "
        f"the command line, --positive {highest_label}){labels_from_hint}.",
        code="positive_class",
    )


# Rows and weights


def check_weights(columns: Columns, weight_sum: float, num_rows: int, has_all_rows: bool = True) -> str:
    """Return a sentence on the sum of the weights.

    Raises `InputError` where they were found by the name of their column alone, and do not sum to the number of rows
    within 20 %: they may be no weights, but, say, kilograms.
    """
    text = f"weights from {columns.weight!r} sum to {weight_sum:,.6g} for {num_rows:,} rows"
    is_calibrant_file = (
        columns.weight == "weights"
        and columns.kind == "logits"
        and len(columns.scores) > 1
        and not columns.unused_columns
    )
    if (
        has_all_rows
        and not is_calibrant_file
        and "weight" not in columns.explicit_roles
        and not abs(weight_sum - num_rows) <= MAX_WEIGHT_SUM_DEVIATION * num_rows
    ):
        raise InputError(
            f"expected weights that sum to about the number of rows, got {weight_sum:,.6g} for {num_rows:,} rows in "
            f"{columns.weight!r}. If they say how often a row counts, try weight={columns.weight!r} (on the command "
            f"line, --weight {columns.weight}); otherwise rename the column.",
            code="weights_sum",
        )
    return text


def _repeated_ids_note(frame: Any, columns: Columns) -> list[str]:
    """Return a sentence on names of rows that occur more than once, where no column of clusters is given."""
    if columns.cluster is not None:
        return []
    names = [columns.id, *(name for name in columns.unused_columns if re.search(r"(?i)[a-z]_?id$", name))]
    for name in filter(None, names):
        if (
            name in frame.columns
            and not frame[name].dtype.is_nested()
            and 1 < (n := frame[name].n_unique()) < len(frame)
        ):
            return [
                f"{len(frame):,} rows have {n:,} values of {name!r}: if rows of one value depend on each other, say "
                f"cluster={name!r} (on the command line, --cluster {name})"
            ]
    return []


def _drop_incomplete_rows(frame: Any, columns: Columns, options: TableOptions) -> tuple[Any, list[str]]:
    """Return the rows in which nothing that is needed is missing, and sentences on those left out."""
    required_columns = [name for name in columns.used_columns if name != columns.id and name not in columns.labels]
    num_rows, notes = len(frame), list[str]()
    if not num_rows:
        raise InputError("no examples", code="no_rows")
    for name in dict.fromkeys(required_columns):
        column = frame[name]
        is_unusable = column.is_null() | (column.is_nan() if column.dtype.is_float() else False)
        reason = "missing"
        if name == columns.confidence and column.dtype.is_numeric() and options.drop:
            is_unusable, reason = (
                is_unusable | (column < 0) | (column > (100 if options.percent else 1)),
                "missing or outside [0, 1]",
            )
        count = int(is_unusable.fill_null(True).sum())
        if not count:
            continue
        if not options.drop:
            hint = "leave such rows out with drop=True (on the command line, --drop)"
            raise InputError(f"{count} of {len(frame)} rows have no {name!r}; {hint}", code="missing_values")
        notes.append(f"left out {count} rows in which {name!r} is {reason}")
        frame = frame.filter(~is_unusable.fill_null(True))
    if len(frame) * 2 < num_rows:
        raise InputError(
            f"expected to leave out few rows, but {num_rows - len(frame):,} of {num_rows:,} would go: "
            f"{'; '.join(notes)}. "
            "Try another column, or remove these rows first.",
            code="drop_most",
        )
    return frame, notes


def apply_options(arrays: Mapping[str, Any], options: TableOptions) -> dict[str, Any]:
    """Return the arrays of a file, which has no columns, as the options of tables say."""
    arrays = dict(arrays)
    kind = next((kind for kind in ("probs", "confidence") if kind in arrays), None)
    if (options.percent or options.normalize) and kind is None:
        raise InputError("expected probabilities or confidences, got logits. Try without percent.", code="option_value")
    if options.percent and kind is not None:
        arrays[kind] = np.asarray(arrays[kind], dtype=float) / 100
    if options.normalize and kind == "probs" and np.ndim(arrays[kind]) == 2:
        arrays[kind] = normalize_rows(np.asarray(arrays[kind], dtype=float))
    label = next((name for name in ("labels", "label") if name in arrays), None)
    if label is None or (options.positive is None and options.labels_from is None):
        return arrays
    values = np.asarray(arrays[label])
    if options.labels_from is not None:
        label_reading = _restore_ignored_labels(
            (_labels_to_positions(values, options, None), None, ()), values, options
        )
        return arrays | {label: label_reading[0]}
    scores = next(np.asarray(arrays[name]) for name in ("logits", "probs") if name in arrays)
    columns = Columns(kind="probs", scores=("scores",))
    if scores.ndim > 1 and scores.shape[1] > 1:
        raise InputError("expected a single score for positive=, got a column per class", code="positive_class")
    labels, names, notes = _restore_ignored_labels(_read_binary_labels(values, columns, options), values, options)
    return arrays | {label: labels, "class_names": names, "notes": notes}
