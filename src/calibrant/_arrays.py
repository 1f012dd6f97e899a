"""Read the cells of a table's columns, numbers, names, labels and lists, as arrays from which predictions are made."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from calibrant._columns import Columns, TableOptions
from calibrant._delimited import MISSING_WORDS, UNGROUPED
from calibrant._door import as_texts, binary_names, match_names, positive_word, same_name, some, tensor
from calibrant._text import one_line, plain_number
from calibrant.types import InputError

BEYOND = ("Int128", "UInt128")  # kinds of numbers that numpy has not
TEXTS = ("String", "Categorical", "Enum")
TRUTH_WORDS = {
    **dict.fromkeys(("true", "yes", "y", "t", "right", "correct", "1", "1.0", "matched", "pass", "passed"), "1"),
    **dict.fromkeys(("false", "no", "n", "f", "wrong", "incorrect", "0", "0.0", "unmatched", "fail", "failed"), "0"),
}
NEGATIVE_WORDS = ("negative", "neg", "false", "no", "n", "f")
WEIGHT_TOLERANCE = 0.2  # of the number of rows, by which weights that were found by name may sum to something else
ROUNDED_SUMS = (0.97, 1.03)  # of rows of probabilities that are rounded to two decimals
RANGE_TOLERANCE = 1e-6  # by which rounding may take probabilities out of [0, 1]
MIN_TOP_CLASS = 20  # rows from which probabilities that are never below one half raise a doubt
MAX_POSITIVE_SHARE = 0.65  # of labels, below which they do
DATES = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}([./])\d{1,2}\2\d{4}( .*)?", re.ASCII)
Labels = tuple[np.ndarray, tuple[str, ...] | None, tuple[str, ...]]  # labels, names of the classes, notes


@np.errstate(invalid="ignore", over="ignore")  # infinities are refused later
def arrays_of(
    frame: Any, columns: Columns, options: TableOptions | None = None, *, whole: bool = True
) -> dict[str, Any]:
    """Return the arrays of a polars frame, by the names under which predictions enter.

    `whole` is false for a piece of a table: what only all rows show is not checked then.

    Raises `InputError` where values are missing, unless the rows may be left out (`options.drop`), and where labels,
    scores or weights cannot be what they were taken for.
    """
    options = options or TableOptions()
    rows = len(frame)
    if columns.kind != "logits":
        _check_percent(frame, columns, options)
    frame, notes = _usable(frame, columns, options)
    frame, ignored = _without_ignored(frame, columns, options)
    notes += ignored if whole else []
    arrays: dict[str, Any] = {}
    if columns.weight is not None:
        arrays["weights"] = numbers_of(frame[columns.weight]).to_numpy()
        total = float(arrays["weights"].sum())
        notes.insert(0, check_weights(columns, total, len(frame), whole))
    for role in ("group", "cluster"):
        if (name := getattr(columns, role)) is not None:
            arrays[f"{role}s"] = values_of(frame[name])
    if columns.id is not None:
        arrays["ids"] = frame[columns.id]
    notes += _repeated(frame, columns) if whole else []
    if columns.confidence is not None:
        more, noted = _answers(frame, columns, options, whole)
    else:
        more, noted = _scored(frame, columns, options, whole)
    read = f"read {rows:,} rows: {columns.text}"
    return arrays | more | {"notes": ("; ".join([read, *notes, *noted]),)}


def _without_ignored(frame: Any, columns: Columns, options: TableOptions) -> tuple[Any, list[str]]:
    """Drop rows with an ignored label, before labels get names; also return a note with their number."""
    known = columns.label is not None and columns.confidence is None
    if options.ignore_index is None or not known or frame[columns.label].dtype.is_nested():
        return frame, []
    values = _number_texts_as_numbers(values_of(frame[columns.label]))
    if values.dtype.kind not in "iuf" or 0 <= options.ignore_index < max(2, len(columns.scores)):
        return frame, []  # a position of a class is refused later
    ignored = values == options.ignore_index
    if not ignored.any() or ignored.all():  # a piece in which all are ignored is left out as a whole
        return frame, []
    return frame.filter(~ignored), [f"left out {int(ignored.sum()):,} rows with label {options.ignore_index}"]


def _answers(
    frame: Any, columns: Columns, options: TableOptions, whole: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return stated confidences and whether the answers were right."""
    arrays: dict[str, Any] = {"confidence": probabilities_of(frame[columns.confidence], options)}
    if columns.correct is not None:
        if str(columns.correct).lower() == "matched":
            arrays["judged"] = "matched"
        arrays["correct"] = numbers_of(frame[columns.correct], words=True).to_numpy()
    elif columns.label is not None and columns.predicted is not None:
        truth, guess = keys_of(frame[columns.label], frame[columns.predicted])
        if whole:
            _check_predicted(columns, truth, guess)
        arrays["correct"] = (truth == guess).astype(np.int64)
        share = f"true in {arrays['correct'].mean():.1%} of them"
        return arrays, (f"correct is whether {columns.label!r} equals {columns.predicted!r}, {share}",)
    return arrays, ()


def _check_predicted(columns: Columns, truth: np.ndarray, guess: np.ndarray) -> None:
    """Raise `InputError` where labels and predictions are not of the same classes."""
    labels, guesses = np.unique(truth).tolist(), np.unique(guess).tolist()
    _check_missing_words(str(columns.label), labels, guesses)
    _check_missing_words(str(columns.predicted), guesses, labels)
    numbers = [[plain_number(kind) for kind in kinds] for kinds in (labels, guesses)]
    shifted = (
        None not in numbers[0] + numbers[1]
        and len(labels) > 2
        and (
            sorted(n + 1 for n in numbers[0] if n is not None) == sorted(n for n in numbers[1] if n is not None)
            or sorted(n - 1 for n in numbers[0] if n is not None) == sorted(n for n in numbers[1] if n is not None)
        )
    )
    if shifted or not set(labels) & set(guesses):
        raise InputError(
            f"labels in {columns.label!r} ({some(labels)}) and predictions in {columns.predicted!r} ({some(guesses)}) "
            "name other classes. Try the same names in both, or a column of whether the answer was right, --correct",
            code="predicted_labels",
        )


def _check_missing_words(name: str, labels: list[str], others: list[str]) -> None:
    """Raise `InputError` for labels such as "NA" that do not occur among the others: they may be missing values."""
    if hint := _missing_hint([label for label in labels if label not in others]):
        raise InputError(f"expected a class in every row of {name!r}{hint}", code="missing_word")


def _missing_hint(texts: Iterable[str]) -> str:
    """Return how to read words such as "NA" as missing values, or nothing where none of the texts is one."""
    word = next((text for text in texts if text.strip().lower() in ("", *MISSING_WORDS)), None)
    if word is None:
        return ""
    options = f"na=[{word!r}] with drop=True (on the command line, --na {word} --drop)"
    return f". If {word!r} is a missing value, try {options}."


def _scored(frame: Any, columns: Columns, options: TableOptions, whole: bool) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return probabilities or logits with the labels beside them."""
    scores = _matrix(frame, columns, options)
    if scores.ndim == 1 and columns.kind == "probs":
        _check_range(scores, columns.scores[0])
    arrays: dict[str, Any] = {columns.kind: scores}
    names, notes = columns.names, ()
    if columns.labels:
        labels = frame.select([numbers_of(frame[name], words=True) for name in columns.labels]).to_numpy()
        if columns.kind == "probs" and _is_one_hot(labels) and bool((abs(scores.sum(1) - 1) < 0.01).all()):
            arrays |= {"labels": labels.argmax(1), "several": False}
            notes = ("exactly one label holds in every row: they are classes",)
        else:
            arrays |= {"labels": labels, "several": True}
    elif columns.label is not None:
        labels, names, notes = _labels(frame[columns.label], columns, options, scores, whole)
        arrays |= {"labels": labels, "several": labels.ndim > 1}
        if scores.ndim == 1 and whole and columns.kind == "probs":
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


def _matrix(frame: Any, columns: Columns, options: TableOptions) -> np.ndarray:
    def read(column: Any) -> np.ndarray:
        return probabilities_of(column, options) if columns.kind == "probs" else numbers_of(column).to_numpy()

    if len(columns.scores) == 1:
        column = frame[columns.scores[0]]
        if not is_list(column):
            return read(column)
        rows = _rows(column)
        values = rows / 100 if options.percent and columns.kind == "probs" else rows
    elif columns.kind == "probs":
        values = np.stack([read(frame[name]) for name in columns.scores], 1)
    else:
        values = frame.select([numbers_of(frame[name]) for name in columns.scores]).to_numpy()
    _check_no_class_is_missing(values, columns)
    return normalized(values) if options.normalize and columns.kind == "probs" else values


def normalized(probs: np.ndarray) -> np.ndarray:
    """Return rows of probabilities divided by their sum; raises `InputError` where that is no rounding."""
    sums = probs.sum(1)
    low, high = float(sums.min()), float(sums.max())
    if not ROUNDED_SUMS[0] - 1e-9 <= low <= high <= ROUNDED_SUMS[1] + 1e-9:
        raise InputError(
            f"expected rows of probabilities that sum to {ROUNDED_SUMS[0]} .. {ROUNDED_SUMS[1]} to normalize, got sums "
            f"{low:.4g} .. {high:.4g}; is the column of a class missing?",
            code="normalize_range",
        )
    return probs / sums[:, None]


def _check_no_class_is_missing(scores: np.ndarray, columns: Columns) -> None:
    """Raise `InputError` if the numbering of the columns shows that the column of a class is missing.

    No class is missing if the rows sum to 1, or if the caller named the columns.
    """
    numbers = [plain_number(name) for name in columns.names or ()]
    if not numbers or None in numbers or columns.kind in columns.given:
        return
    sums = scores.sum(1)
    if columns.kind == "probs" and bool((abs(sums - 1) < ROUNDED_SUMS[1] - 1).all()):
        return
    there = [int(number) for number in numbers if number is not None]
    missing = sorted(set(range(min(0, *there), max(there))) - set(there))
    first = columns.scores[0][: len(columns.scores[0]) - len((columns.names or ("",))[0])]
    if missing and min(there) in (0, 1) and len(set(missing) - {0}) in range(1, len(there) + 1):
        raise InputError(
            f"expected a column of every class, got {some(columns.scores)} without one such as {first}{missing[-1]}. "
            f"Try a table with all classes, or {columns.kind}= with these columns if there are no others.",
            code="class_missing",
        )


def _check_percent(frame: Any, columns: Columns, options: TableOptions) -> None:
    """Raise `InputError` where probabilities or confidences seem to be percentages, also where rows may be dropped."""
    names = (*columns.scores, *([columns.confidence] if columns.confidence else []))
    if options.percent or not len(frame) or any(is_list(frame[name]) for name in names):
        return
    values = np.stack([probabilities_of(frame[name], options) for name in names]) if names else np.zeros((0, 0))
    values = values[:, ~np.isnan(values).any(0)]
    if not values.size or values.min() < 0 or not 2 < values.max() <= 100:
        return
    if len(names) > 1 and not bool((abs(values.sum(0) - 100) < 3).all()):
        return
    if len(names) == 1 and (values > 1).mean() < 0.5 and options.drop:
        return
    raise InputError(
        f"expected numbers in [0, 1] in {some(names)}, got {values.min():.4g} .. {values.max():.4g}; are they "
        "percentages? Try percent=True (on the command line, --percent).",
        code="percent",
    )


def _check_range(probs: np.ndarray, name: str) -> None:
    """Raise `InputError` where a single score is no probability."""
    low, high = float(probs.min()), float(probs.max())
    if low < -RANGE_TOLERANCE or high > 1 + RANGE_TOLERANCE:
        raise InputError(
            f"expected probabilities in [0, 1] in {name!r}, got {low:.4g} .. {high:.4g}. If these are logits, try "
            f"logits={name!r} (on the command line, --logits {name}).",
            code="probability_range",
        )


def _check_top_class(probs: np.ndarray, labels: np.ndarray, columns: Columns, options: TableOptions) -> None:
    """Raise `InputError` where a number found by name is never below one half, but the labels often are negative."""
    if "probs" in columns.given or options.positive is not None or columns.positive is not None:
        return
    if labels.dtype.kind not in "iufb" or len(probs) < MIN_TOP_CLASS or not 0.5 <= probs.min() <= probs.max() <= 1:
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


def _rows(column: Any) -> np.ndarray:
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
        return _made(column.name, lambda: np.array(column.to_list(), dtype=float))
    return numbers_of(column.explode()).to_numpy().reshape(len(column), -1)


# Cells


def probabilities_of(column: Any, options: TableOptions) -> np.ndarray:
    """Return a column of probabilities; cells with a percent sign, and all with `percent`, are divided by 100."""
    import polars

    column = _as_text_or_number(column)
    signed = column.dtype == polars.String and column.str.contains("%", literal=True).any()
    values = numbers_of(column).to_numpy()
    return values / 100 if options.percent and not signed else values


def _as_text_or_number(column: Any) -> Any:
    import polars

    return column.cast(polars.String) if str(column.dtype.base_type()) in TEXTS else column


def numbers_of(column: Any, *, words: bool = False) -> Any:
    """Return a column as numbers that numpy has; `words` such as yes and wrong count as 1 and 0."""
    import polars

    kind = column.dtype
    if kind == polars.Boolean:
        return column.cast(polars.Int64)
    if kind.is_float() or (kind.is_integer() and str(kind) not in BEYOND):
        return column
    if kind.is_numeric():
        return column.cast(polars.Float64)
    if str(kind.base_type()) not in TEXTS:
        raise InputError(f"column {column.name!r} holds {kind}, expected numbers", code="not_numbers")
    texts = column.cast(polars.String).str.strip_chars()
    plain = texts.str.to_lowercase()
    plain = plain.replace(TRUTH_WORDS) if words else plain.replace({"true": "1", "false": "0"})
    commas = bool(texts.str.contains(UNGROUPED).any())  # which are no separators of thousands
    if commas and not bool(texts.str.contains(".", literal=True).any()):
        plain = plain.str.replace(r"^(-?\d+),(\d+)(\s*%)?$", "$1.$2$3")
    found = _percentages(column.name, plain)
    odd = texts.filter(found.fill_nan(None).is_null() & texts.is_not_null())
    if len(odd):
        raise InputError(
            f"column {column.name!r} must hold numbers, but {len(odd)} entries are none, such as {odd[0][:60]!r}"
            f"{_missing_hint(odd.unique().to_list())}",
            code="not_numbers",
        )
    return found


def _percentages(name: str, texts: Any) -> Any:
    """Return texts as numbers, those with a percent sign divided by 100; all or none must have one."""
    import polars

    signed = texts.str.ends_with("%").fill_null(False)
    found = texts.str.replace(r"\s*%$", "").cast(polars.Float64, strict=False)
    if not bool(signed.any()):
        return found
    if not bool((signed | texts.is_null()).all()):
        raise InputError(
            f"expected a percent sign in every entry of {name!r} or in none, got it in {int(signed.sum())} of "
            f"{len(texts)}. Try one notation.",
            code="percent_mixed",
        )
    return found / 100


def keys_of(*columns: Any) -> Any:
    """Return the entries of columns as texts that are equal where they mean the same class, such as 1, 1.0 and "1".

    Of several columns, an array each: true and false mean 1 and 0 where another column has these, and case does not
    matter where it tells no classes apart.
    """
    keys = [_keys(column) for column in columns]
    if len(keys) == 1:
        return keys[0]
    kinds = [set(np.unique(part).tolist()) for part in keys]
    truth = [{kind.lower() for kind in each} <= {"true", "false"} for each in kinds]
    if any(truth) and not all(truth):
        keys = [
            np.where(np.char.lower(part) == "true", "1", "0") if is_truth else part
            for part, is_truth in zip(keys, truth, strict=True)
        ]
    everything = set().union(*kinds)
    folded = {kind.casefold() for kind in everything}
    if all(len({kind.casefold() for kind in each}) == len(each) for each in kinds) and len(folded) < len(everything):
        keys = [np.char.lower(part) for part in keys]
    return tuple(keys)


def _keys(column: Any) -> np.ndarray:
    """Return the entries of a column as texts, whole numbers without decimals; missing ones are empty."""
    import polars

    if column.dtype.is_nested():
        raise InputError(f"column {column.name!r} holds lists, expected classes", code="label_kind")
    kinds, index = np.unique(
        np.array(column.cast(polars.String).fill_null("").to_list(), dtype=str), return_inverse=True
    )
    keys = [kind.strip() if (n := plain_number(kind)) is None else f"{n:.15g}" for kind in kinds.tolist()]
    return np.array(keys, dtype=str)[index]


def values_of(column: Any) -> np.ndarray:
    """Return a column as numbers, or as texts; texts of whole numbers stay texts."""
    import polars

    if str(column.dtype) in BEYOND:
        small = column.cast(polars.Int64, strict=False)
        column = small if small.null_count() == column.null_count() else column.cast(polars.String)
    if column.dtype.is_numeric():
        return numbers_of(column).to_numpy()
    if column.dtype == polars.Boolean:
        return column.to_numpy()
    return _made(column.name, lambda: np.array(column.cast(polars.String).to_list(), dtype=str))


def _made(name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return what is made of a column; raises `InputError` where its kind has no such thing."""
    try:
        return make()
    except Exception as error:  # of polars or numpy
        reason = one_line(error)
        raise InputError(f"column {name!r} holds neither numbers nor names ({reason})", code="label_kind") from None


# Labels


def _labels(column: Any, columns: Columns, options: TableOptions, scores: np.ndarray, whole: bool) -> Labels:
    """Return labels as numbers or as names of classes, the names of the classes, and notes on how they were read."""
    texts = str(column.dtype.base_type()) in TEXTS
    dates = texts and (columns.names is None or len(columns.scores) == 1) and all(map(DATES.fullmatch, column.unique()))
    if column.dtype.is_temporal() or dates:
        raise InputError(
            f"expected classes in {column.name!r}, got dates or times. Try label= with another column (on the command "
            "line, --label NAME).",
            code="label_kind",
        )
    if column.dtype.is_nested():
        return _rows(column), columns.names, ()
    values = _number_texts_as_numbers(values_of(column))
    if scores.ndim == 1 and options.labels_from is None:
        return _with_ignored(_binary_labels(values, columns, options), values, options)
    k = scores.shape[1] if scores.ndim > 1 else 2
    names = columns.names if scores.ndim > 1 else None
    if options.labels_from is not None:
        return _with_ignored((_counted_from(values, options, names), names, ()), values, options)
    kinds = _kinds(values, options)
    numeric = values.dtype.kind in "iuf"
    counted_from_1 = numeric and bool(kinds) and min(kinds) >= 1 and whole
    if names is None:
        if counted_from_1 and max(kinds) == k:
            raise _from_1(column.name, kinds, k)
        return values.astype(np.int64) if values.dtype.kind == "b" else values, None, ()
    if not numeric:
        return _named_labels(values, names)
    return _with_ignored(_numeric_labels(column.name, values, kinds, names, counted_from_1), values, options)


def _number_texts_as_numbers(values: np.ndarray) -> np.ndarray:
    """Return texts that are all numbers, such as "0" and "1.0", as numbers; other values as they are."""
    if values.dtype.kind != "U" or not len(values):
        return values
    kinds, index = np.unique(values, return_inverse=True)
    numbers = [plain_number(kind) for kind in kinds.tolist()]
    return values if None in numbers else np.array(numbers, dtype=float)[index]


def _kinds(values: np.ndarray, options: TableOptions) -> list[Any]:
    """Return the labels that occur, without the one that is ignored."""
    return [kind for kind in np.unique(values).tolist() if kind != options.ignore_index]


def _with_ignored(labels: Labels, values: np.ndarray, options: TableOptions) -> Labels:
    """Return labels that were read from numeric values with `ignore_index` in ignored rows, and nowhere else.

    Names become positions where rows are ignored. Raises `InputError` where a class has the position `ignore_index`.
    """
    found, names, notes = labels
    if options.ignore_index is None or values.dtype.kind not in "iuf":
        return labels
    ignored = values == options.ignore_index
    if found.dtype.kind == "U":
        if not ignored.any():
            return labels
        kinds, index = np.unique(found[~ignored], return_inverse=True)
        places = [(names or ()).index(name) for name in match_names(kinds.tolist(), names or ())]
        found = np.full(found.shape, options.ignore_index)
        found[~ignored] = np.array(places, dtype=found.dtype)[index]
    if (found[~ignored] == options.ignore_index).any():
        raise InputError(
            f"expected an ignored label that is no position of a class, got {options.ignore_index}. Try "
            "ignore_index=-100 with -100 in the rows to ignore.",
            code="ignore_index",
        )
    return np.where(ignored, options.ignore_index, found), names, notes


def _counted_from(values: np.ndarray, options: TableOptions, names: tuple[str, ...] | None) -> np.ndarray:
    """Return labels that are counted from `labels_from` as positions."""
    first = options.labels_from or 0
    if values.dtype.kind not in "iuf":
        raise InputError(f"expected numbers as labels to count from {first}, got words", code="labels_from")
    ignored = values == options.ignore_index if options.ignore_index is not None else np.zeros(len(values), bool)
    if len(values) and (values[~ignored] < first).any():
        low = values[~ignored].min()
        raise InputError(f"expected labels from {first} on, got {low:g}. Try labels_from={low:g}.", code="labels_from")
    numbers = [plain_number(name) for name in names or ()]
    if numbers and None not in numbers and numbers != [first + i for i in range(len(numbers))]:
        raise InputError(
            f"expected classes counted from {first}, got columns of classes {some(names or ())}. Try without "
            "labels_from: labels are matched to these numbers.",
            code="labels_from",
        )
    return np.where(ignored, values, values - first)


def _named_labels(values: np.ndarray, names: tuple[str, ...]) -> Labels:
    """Return words, or true and false, as names of classes."""
    if values.dtype.kind == "U":
        if hint := _missing_hint([word for word in np.unique(values).tolist() if word not in names]):
            raise InputError(
                f"expected one of the classes {some(names)} in every row of labels{hint}", code="missing_word"
            )
        return values, names, ()
    by_name = {name.lower(): name for name in names}
    word = positive_word(names)
    if {"false", "true"} <= by_name.keys():
        pair = [by_name["false"], by_name["true"]]
    elif word is not None and len(names) == 2:
        pair = [next(name for name in names if name != word), word]
    else:
        raise InputError(
            f"labels are true or false, but the columns' classes are {some(names)}. Try labels of these names.",
            code="unknown_label",
        )
    return np.array(pair)[values.astype(np.int64)], names, ()


def _numeric_labels(
    column: str, values: np.ndarray, kinds: list[Any], names: tuple[str, ...], counted_from_1: bool
) -> Labels:
    """Return numeric labels as names of classes: equal numbers, numbers at the end of names, or else positions."""
    if None not in [plain_number(name) for name in names]:
        return as_texts(tensor(values, "labels")), names, ()
    word = positive_word(names)
    if word is not None and len(names) == 2 and {*kinds} <= {-1, 0, 1} and len(kinds) <= 2:
        other = next(name for name in names if name != word)
        note = f"label 1 is {word!r}"
        return np.where(values > 0, word, other), names, (note,)
    ends = _numbered_names(names)
    if ends is not None and {*kinds} <= ends.keys():
        return np.array([ends.get(value, str(value)) for value in values.tolist()]), names, ()
    if (
        ends is not None
        and {*kinds} - ends.keys()
        and {*kinds} & ends.keys()
        and sorted(ends) != list(range(len(ends)))
    ):
        raise InputError(
            f"labels {some([f'{kind:g}' for kind in kinds])} are not the numbers of the columns {some(names)}. Try "
            f"labels_from={min(kinds):g} if they are positions.",
            code="labels_from",
        )
    if counted_from_1:
        raise _from_1(column, kinds, len(names))
    if kinds and (min(kinds) < 0 or max(kinds) >= len(names)):
        raise InputError(
            f"labels {some([f'{kind:g}' for kind in kinds])} are neither names nor positions, from 0, of the classes "
            f"{some(names)}. Try labels of these names.",
            code="unknown_label",
        )
    places = some([f"{i} is {name}" for i, name in enumerate(names)]).replace("'", "")
    return values, names, (f"labels are numbers: each is taken for the position of its class, {places}",)


def _numbered_names(names: tuple[str, ...]) -> dict[float, str] | None:
    """Return names such as class_1 and class_2 by their numbers; None where they do not differ by a number alone."""
    found = [re.fullmatch(r"(\D*)(\d{1,9})", name, re.ASCII) for name in names]
    if any(match is None or match[1] != (found[0] or match)[1] for match in found):
        return None
    numbers = {float(match[2]): name for match, name in zip(found, names, strict=True) if match is not None}
    return numbers if len(numbers) == len(names) else None


def _from_1(column: str, kinds: list[Any], k: int) -> InputError:
    return InputError(
        f"expected labels 0 .. {k - 1} in {column!r}, the positions of {k} classes, got {min(kinds):g} .. "
        f"{max(kinds):g}; are they counted from 1? Try labels_from=1 (on the command line, --labels-from 1), or "
        "labels_from=0 if class 0 just does not occur.",
        code="labels_from",
    )


def _binary_labels(values: np.ndarray, columns: Columns, options: TableOptions) -> Labels:
    """Return the labels of a single score as 0 and 1, with the names of the two classes where they have any."""
    kinds = _kinds(values, options)
    texts = [str(kind) if values.dtype.kind in "Ub" else f"{kind:.15g}" for kind in kinds]
    positive = options.positive or columns.positive
    named = columns.positive is not None and any(same_name(columns.positive, kind) for kind in texts)
    if options.positive is not None and named and not same_name(options.positive, str(columns.positive)):
        raise InputError(
            f"column {columns.scores[0]!r} is named after class {columns.positive!r}, not {positive!r}. Try "
            f"positive={columns.positive!r}.",
            code="positive_class",
        )
    if len(texts) > 2:
        raise InputError(
            f"expected two classes beside the single score {columns.scores[0]!r}, got {len(texts)} ({some(texts)}). "
            "Try a column of probabilities per class, or confidence= with predicted= if the score is that of the "
            f"predicted class (on the command line, --confidence and --predicted){_missing_hint(texts) or '.'}",
            code="many_classes",
        )
    if values.dtype.kind == "U" or options.positive is not None:
        return _two_names(values, texts, positive, given=options.positive is not None)
    return _two_numbers(values, kinds, columns, options)


def _two_names(values: np.ndarray, texts: list[str], positive: str | None, *, given: bool) -> Labels:
    names = binary_names(texts, positive, given=given)
    if values.dtype.kind in "Ub":
        return (values.astype(str) == names[1]).astype(np.int64), names, (_positive_note(names),)
    return (values == float(plain_number(names[1]) or 0)).astype(np.int64), names, (_positive_note(names),)


def _positive_note(names: tuple[str, str]) -> str:
    return f"the positive class is {names[1]!r}"


def _two_numbers(values: np.ndarray, kinds: list[Any], columns: Columns, options: TableOptions) -> Labels:
    """Return numeric labels of a single score, whose column may be named after one of them or after a word."""
    positive = columns.positive
    number = None if positive is None else plain_number(positive)
    plain = {*kinds} <= {0, 1}
    if number is not None and not (number == 1 and plain):
        texts = [f"{float(kind):.15g}" for kind in kinds]
        names = binary_names(texts, f"{number:.15g}")
        return (values == number).astype(np.int64), names, (_positive_note(names),)
    if positive is not None and plain and positive.lower() in NEGATIVE_WORDS:
        names = (f"not {positive}", positive)
        return np.where(np.isin(values, (0, 1)), 1 - values, values).astype(np.int64), names, ()
    if plain or {*kinds} == {-1, 1}:
        values = values.astype(np.int64) if values.dtype.kind == "b" else values
        return values, None, () if positive is None else (f"label 1 is {positive!r}",)
    shown = some([f"{kind:g}" for kind in kinds])
    top = f"{max(kinds):g}"
    counted = f", or labels_from={min(kinds):g} (--labels-from {min(kinds):g})" if max(kinds) - min(kinds) == 1 else ""
    raise InputError(
        f"expected labels 0 and 1 beside the single score {columns.scores[0]!r}, got {shown}. Try positive={top!r} (on "
        f"the command line, --positive {top}){counted}.",
        code="positive_class",
    )


# Rows and weights


def check_weights(columns: Columns, total: float, rows: int, whole: bool = True) -> str:
    """Return a sentence on the sum of the weights.

    Raises `InputError` where they were found by the name of their column alone, and do not sum to the number of rows
    within 20 %: they may be no weights, but, say, kilograms.
    """
    text = f"weights from {columns.weight!r} sum to {total:,.6g} for {rows:,} rows"
    own = columns.weight == "weights" and columns.kind == "logits" and len(columns.scores) > 1 and not columns.unused
    if whole and not own and "weight" not in columns.given and not abs(total - rows) <= WEIGHT_TOLERANCE * rows:
        raise InputError(
            f"expected weights that sum to about the number of rows, got {total:,.6g} for {rows:,} rows in "
            f"{columns.weight!r}. If they say how often a row counts, try weight={columns.weight!r} (on the command "
            f"line, --weight {columns.weight}); otherwise rename the column.",
            code="weights_sum",
        )
    return text


def _repeated(frame: Any, columns: Columns) -> list[str]:
    """Return a sentence on names of rows that occur more than once, where no column of clusters is given."""
    if columns.cluster is not None:
        return []
    names = [columns.id, *(name for name in columns.unused if re.search(r"(?i)[a-z]_?id$", name))]
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


def _usable(frame: Any, columns: Columns, options: TableOptions) -> tuple[Any, list[str]]:
    """Return the rows in which nothing that is needed is missing, and sentences on those left out."""
    needed = [name for name in columns.used if name != columns.id and name not in columns.labels]
    rows, notes = len(frame), list[str]()
    if not rows:
        raise InputError("no examples", code="no_rows")
    for name in dict.fromkeys(needed):
        column = frame[name]
        bad = column.is_null() | (column.is_nan() if column.dtype.is_float() else False)
        why = "missing"
        if name == columns.confidence and column.dtype.is_numeric() and options.drop:
            bad, why = bad | (column < 0) | (column > (100 if options.percent else 1)), "missing or outside [0, 1]"
        count = int(bad.fill_null(True).sum())
        if not count:
            continue
        if not options.drop:
            way = "leave such rows out with drop=True (on the command line, --drop)"
            raise InputError(f"{count} of {len(frame)} rows have no {name!r}; {way}", code="missing_values")
        notes.append(f"left out {count} rows in which {name!r} is {why}")
        frame = frame.filter(~bad.fill_null(True))
    if len(frame) * 2 < rows:
        raise InputError(
            f"expected to leave out few rows, but {rows - len(frame):,} of {rows:,} would go: {'; '.join(notes)}. "
            "Try another column, or remove these rows first.",
            code="drop_most",
        )
    return frame, notes


def with_options(arrays: Mapping[str, Any], options: TableOptions) -> dict[str, Any]:
    """Return the arrays of a file, which has no columns, as the options of tables say."""
    arrays = dict(arrays)
    kind = next((kind for kind in ("probs", "confidence") if kind in arrays), None)
    if (options.percent or options.normalize) and kind is None:
        raise InputError("expected probabilities or confidences, got logits. Try without percent.", code="option_value")
    if options.percent and kind is not None:
        arrays[kind] = np.asarray(arrays[kind], dtype=float) / 100
    if options.normalize and kind == "probs" and np.ndim(arrays[kind]) == 2:
        arrays[kind] = normalized(np.asarray(arrays[kind], dtype=float))
    label = next((name for name in ("labels", "label") if name in arrays), None)
    if label is None or (options.positive is None and options.labels_from is None):
        return arrays
    values = np.asarray(arrays[label])
    if options.labels_from is not None:
        counted = _with_ignored((_counted_from(values, options, None), None, ()), values, options)
        return arrays | {label: counted[0]}
    scores = next(np.asarray(arrays[name]) for name in ("logits", "probs") if name in arrays)
    columns = Columns(kind="probs", scores=("scores",))
    if scores.ndim > 1 and scores.shape[1] > 1:
        raise InputError("expected a single score for positive=, got a column per class", code="positive_class")
    labels, names, notes = _with_ignored(_binary_labels(values, columns, options), values, options)
    return arrays | {label: labels, "class_names": names, "notes": notes}
