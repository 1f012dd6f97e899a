"""Read labels as class indices or names of classes, as the columns of scores and the options tell."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import InputError
from calibrant.io.cells import is_text, lists_to_matrix, missing_hint, to_numbers_or_texts
from calibrant.io.column_roles import Columns, TableOptions
from calibrant.predictions.validation.arrays import to_column
from calibrant.predictions.validation.labels import binary_names, positive_word, to_texts
from calibrant.predictions.validation.names import is_same_name, match_names
from calibrant.predictions.validation.words import NO_WORDS

DATE_PATTERN = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}([./])\d{1,2}\2\d{4}( .*)?", re.ASCII)
NamedLabels = tuple[np.ndarray, tuple[str, ...] | None, tuple[str, ...]]  # labels, class names, notes


def read_labels(
    column: Any, columns: Columns, options: TableOptions, scores: np.ndarray, *, has_all_rows: bool
) -> NamedLabels:
    """Read a column of labels.

    Args:
        column: A polars series, without rows of ignored labels; but a chunk that has no other rows comes as it is.
        columns: Roles of the columns of scores, and the class names that they carry.
        options: Options for reading.
        scores: The scores beside the labels, (n) or (n, k).
        has_all_rows: False for a chunk, which may lack classes.

    Returns:
        Labels as class indices or as names of classes, (n), or several labels per row, (n, l); class names; and notes
        for the user. Labels of a chunk of ignored rows are returned unchanged.
    """
    _check_no_dates(column, columns)
    if column.dtype.is_nested():
        return lists_to_matrix(column), columns.names, ()
    values = label_values(column)
    if ignored_mask(values, options).any():  # then all are ignored: a column of some ignored labels comes without them
        return values, columns.names, ()
    names = None if scores.ndim == 1 else columns.names
    notes = ()
    if options.labels_from is not None:
        labels = count_from(options.labels_from, values, names)
    elif scores.ndim == 1:
        labels, names, notes = read_binary_labels(values, columns, options)
    else:
        classes = np.unique(values).tolist()
        # A chunk may lack class 0 by chance
        may_be_one_based = has_all_rows and values.dtype.kind in "iuf" and bool(classes) and min(classes) >= 1
        if names is not None and values.dtype.kind in "iuf":
            labels, notes = _match_numbers(column.name, values, classes, names, may_be_one_based)
        elif names is not None:
            labels = _match_words(values, names)
        elif may_be_one_based and max(classes) == scores.shape[1]:
            raise _one_based_error(column.name, classes, scores.shape[1])
        else:  # class indices
            labels = values.astype(np.int64) if values.dtype.kind == "b" else values
    check_not_ignored(values, labels, names, options)
    return labels, names, notes


def label_values(column: Any) -> np.ndarray:
    """Return a column of labels as numbers if all are numbers or their texts, such as "1.0", and else as texts."""
    values = to_numbers_or_texts(column)
    if values.dtype.kind != "U" or not len(values):
        return values
    unique_texts, index = np.unique(values, return_inverse=True)
    numbers = [parse_number(text) for text in unique_texts.tolist()]
    return values if None in numbers else np.array(numbers, dtype=float)[index]


def ignored_mask(values: np.ndarray, options: TableOptions) -> np.ndarray:
    """Return a mask of the labels that the option `ignore_index`, a number, leaves out. It never matches words."""
    if options.ignore_index is None or values.dtype.kind not in "iuf":
        return np.zeros(values.shape, dtype=bool)
    return values == options.ignore_index


def check_not_ignored(
    values: np.ndarray, labels: np.ndarray, names: Sequence[str] | None, options: TableOptions
) -> None:
    """Raise `InputError` if `ignore_index` is also the index of a class that the labels have.

    After reading, labels are class indices. The rows of the class with this index would then be left out by mistake.
    `ignore_index` only applies to numbers, so labels that are texts in the file are not checked.

    Args:
        values: The labels in the file, without ignored ones.
        labels: The labels after reading: class indices, or names of classes.
        names: Names of the classes, if labels are names.
        options: Options for reading.
    """
    i, class_names = options.ignore_index, names or ()
    if i is None or values.dtype.kind not in "iuf":
        return
    if labels.dtype.kind != "U":
        is_class_index = bool((labels == i).any())
    else:
        present_classes = match_names(np.unique(labels).tolist(), class_names)
        is_class_index = 0 <= i < len(class_names) and class_names[i] in present_classes
    if is_class_index:
        raise InputError(
            f"Expected an ignored label that is not the index of a class, got {i}. Try ignore_index=-100 with -100 in "
            "the rows to ignore.",
            code="ignore_index",
        )


def _check_no_dates(column: Any, columns: Columns) -> None:
    """Raise `InputError` for dates and times.

    Texts that look like dates are accepted if columns of scores are named after classes, because these may be dates.
    """
    are_class_names_known = columns.names is not None and len(columns.scores) > 1
    may_be_dates = is_text(column) and not are_class_names_known
    if column.dtype.is_temporal() or (may_be_dates and all(map(DATE_PATTERN.fullmatch, column.unique()))):
        raise InputError(
            f"Expected classes in {column.name!r}, got dates or times. Try label= with another column (--label NAME).",
            code="label_kind",
        )


def count_from(first_label: int, values: np.ndarray, names: Sequence[str] | None) -> np.ndarray:
    """Return labels that are counted from `first_label` as class indices, counted from 0.

    Raises:
        InputError: For words, for numbers below `first_label`, and if the class `names` are other numbers than
            `first_label`, `first_label` + 1 and so on.
    """
    if values.dtype.kind not in "iuf":
        raise InputError(f"Expected numbers as labels to count from {first_label}, got words.", code="labels_from")
    if len(values) and values.min() < first_label:
        raise InputError(
            f"Expected labels from {first_label} on, got {values.min():g}. Try labels_from={values.min():g} "
            f"(--labels-from {values.min():g}).",
            code="labels_from",
        )
    numbers = [parse_number(name) for name in names or ()]
    if numbers and None not in numbers and numbers != [first_label + i for i in range(len(numbers))]:
        raise InputError(
            f"Expected classes counted from {first_label}, got columns of classes {shorten_list(names or ())}. Try "
            "without labels_from: labels are matched to these numbers.",
            code="labels_from",
        )
    return values - first_label


# Labels beside a score per class


def _match_words(values: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return labels as names of classes: words unchanged, and booleans as the names that mean yes and no.

    Words need not be names of classes: they are checked later.

    Raises:
        InputError: For a word that means a missing value, and for true and false if no names mean yes and no.
    """
    if values.dtype.kind == "U":
        if hint := missing_hint([word for word in np.unique(values).tolist() if word not in names]):
            raise InputError(f"Expected one of the classes {shorten_list(names)} as label.{hint}", code="missing_word")
        return values
    by_word = {name.lower(): name for name in names}
    positive = positive_word(names)
    if {"false", "true"} <= by_word.keys():  # perhaps among other classes
        pair = [by_word["false"], by_word["true"]]
    elif positive is not None and len(names) == 2:
        pair = [next(name for name in names if name != positive), positive]
    else:
        raise InputError(
            f"Expected one of the classes {shorten_list(names)} as label, got true and false. Try labels of these "
            "names.",
            code="unknown_label",
        )
    return np.array(pair)[values.astype(np.int64)]  # false is 0 and true is 1


def _match_numbers(
    column: str, values: np.ndarray, classes: list[Any], names: tuple[str, ...], may_be_one_based: bool
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return numbers as names of classes, or as positions of names, and notes, by the first of these rules that fits.

    1. All names are numbers: labels are these numbers.
    2. The two names mean yes and no: labels are 1 for yes, and 0 or -1 for no.
    3. The names end in numbers, such as class_1: labels are these numbers.
    4. Labels are the positions of the names, from 0.

    Args:
        column: Name of the column, for errors.
        values: The labels.
        classes: The sorted distinct labels.
        names: Names of the classes, from the columns of scores.
        may_be_one_based: Whether positions may be counted from 1 by mistake, since no label is below 1.
    """
    if all(parse_number(name) is not None for name in names):
        return to_texts(to_column(values, "labels")), ()
    positive = positive_word(names)
    # -1, 0 and 1 together are three classes
    if positive is not None and len(names) == 2 and {*classes} <= {-1, 0, 1} and len(classes) <= 2:
        negative = next(name for name in names if name != positive)
        return np.where(values > 0, positive, negative), (f"Label 1 is {positive!r}.",)
    by_number = _names_by_number(names)
    if by_number and {*classes} <= by_number.keys():
        return np.array([by_number[value] for value in values.tolist()]), ()
    labels_text = shorten_list([f"{label:g}" for label in classes])
    numbers_are_positions = sorted(by_number) == list(range(len(by_number)))
    if {*classes} & by_number.keys() and not numbers_are_positions:  # only some labels are numbers of columns
        raise InputError(
            f"Expected labels among the numbers of the columns {shorten_list(names)}, got {labels_text}. Try "
            f"labels_from={min(classes):g} (--labels-from {min(classes):g}) if they are positions.",
            code="labels_from",
        )
    if may_be_one_based:
        raise _one_based_error(column, classes, len(names))
    if classes and not 0 <= min(classes) <= max(classes) < len(names):
        raise InputError(
            f"Expected names or positions, from 0, of the classes {shorten_list(names)} as labels, got {labels_text}. "
            "Try labels of these names.",
            code="unknown_label",
        )
    positions = shorten_list([f"{i} is {name}" for i, name in enumerate(names)]).replace("'", "")
    return values, (f"Labels are numbers, and each is the position of its class: {positions}.",)


def _names_by_number(names: tuple[str, ...]) -> dict[float, str]:
    """Return names by the number they end in, such as class_1 and class_2.

    The mapping is empty if a name does not end in a number, or names differ before it.
    """
    matches = [re.fullmatch(r"(\D*)(\d{1,9})", name, re.ASCII) for name in names]
    stems = {match[1] for match in matches if match is not None}
    numbers = {float(match[2]): match[0] for match in matches if match is not None}
    return numbers if len(stems) == 1 and len(numbers) == len(names) else {}


def _one_based_error(column: str, classes: list[Any], k: int) -> InputError:
    """Return the error for labels that seem to be counted from 1. `classes` are the labels that occur, of k classes."""
    return InputError(
        f"Expected labels 0 .. {k - 1} in {column!r}, the positions of {k} classes, got {min(classes):g} .. "
        f"{max(classes):g}. Try labels_from=1 (--labels-from 1) if they are counted from 1, or labels_from=0 if class "
        "0 does not occur.",
        code="labels_from",
    )


# Labels beside a single score


def read_binary_labels(values: np.ndarray, columns: Columns, options: TableOptions) -> NamedLabels:
    """Return labels beside a single score as 0 and 1, the names of the two classes if they have names, and notes.

    The positive class is the option `positive`, else the class that the column of scores is named after, else a word
    such as "yes", or 1 for numbers.

    Raises:
        InputError: For more than two classes, and if the positive class is ambiguous.
    """
    classes = np.unique(values).tolist()
    are_texts, are_bools = values.dtype.kind == "U", values.dtype.kind == "b"
    texts = [str(label) if are_texts or are_bools else f"{label:.15g}" for label in classes]
    _check_positive(options.positive, columns, texts)
    if len(texts) > 2:
        raise InputError(
            f"Expected two classes beside the single score {columns.scores[0]!r}, got {len(texts)} "
            f"({shorten_list(texts)}). Try a column of probabilities per class, or confidence= with predicted= if the "
            f"score is that of the predicted class (--confidence and --predicted).{missing_hint(texts)}",
            code="many_classes",
        )
    if options.positive is None and not are_texts:
        return _read_binary_numbers(values, classes, columns)
    names = binary_names(texts, options.positive or columns.positive, required=options.positive is not None)
    if are_texts or are_bools:
        is_positive = values.astype(str) == names[1]
    else:  # numbers, which are compared as such: "1" is 1.0
        number = parse_number(names[1])
        is_positive = values == (math.nan if number is None else float(number))  # no number equals NaN
    return is_positive.astype(np.int64), names, (f"The positive class is {names[1]!r}.",)


def _check_positive(positive: str | None, columns: Columns, texts: Sequence[str]) -> None:
    """Refuse another positive class than the label that the column of scores is named after."""
    named_class = columns.positive
    if positive is None or named_class is None or is_same_name(positive, named_class):
        return
    if any(is_same_name(named_class, text) for text in texts):
        raise InputError(
            f"Expected the class of column {columns.scores[0]!r} as positive class, got {positive!r}. Try "
            f"positive={named_class!r} (--positive {named_class}).",
            code="positive_class",
        )


def _read_binary_numbers(values: np.ndarray, classes: list[Any], columns: Columns) -> NamedLabels:
    """Return numbers beside a single score as labels of two classes, by the first of these rules that fits.

    1. The column of scores is named after a number, such as prob_7: this number is the positive class.
    2. It is named after a word for no, and the labels are 0 and 1: label 0 is the positive class.
    3. The labels are 0 and 1, or -1 and 1: label 1 is the positive class.
    """
    positive = columns.positive
    number = None if positive is None else parse_number(positive)
    is_zero_one = {*classes} <= {0, 1}  # or false and true
    if number is not None and not (number == 1 and is_zero_one):  # labels 0 and 1 with positive class 1 need no names
        names = binary_names([f"{float(label):.15g}" for label in classes], f"{number:.15g}")
        return (values == number).astype(np.int64), names, (f"The positive class is {names[1]!r}.",)
    if positive is not None and is_zero_one and positive.lower() in NO_WORDS:
        return 1 - values.astype(np.int64), (f"not {positive}", positive), ()
    if is_zero_one or {*classes} == {-1, 1}:
        labels = values.astype(np.int64) if values.dtype.kind == "b" else values
        return labels, None, () if positive is None else (f"Label 1 is {positive!r}.",)
    low, high = min(classes), max(classes)
    labels_from_hint = f", or labels_from={low:g} (--labels-from {low:g})" if high - low == 1 else ""
    raise InputError(
        f"Expected labels 0 and 1 beside the single score {columns.scores[0]!r}, got "
        f"{shorten_list([f'{label:g}' for label in classes])}. Try positive='{high:g}' (--positive {high:g})"
        f"{labels_from_hint}.",
        code="positive_class",
    )
