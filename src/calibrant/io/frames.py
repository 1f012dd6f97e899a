"""Turn the columns of a frame into contents."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import InputError
from calibrant.io.cells import (
    ROW_SUM_TOLERANCE,
    comparable_class_keys,
    is_list,
    lists_to_matrix,
    missing_hint,
    missing_mask,
    sums_to,
    to_numbers,
    to_numbers_or_texts,
    to_probabilities,
)
from calibrant.io.column_roles import Columns, TableOptions
from calibrant.io.contents import Chunk, Contents
from calibrant.io.labels import (
    check_not_ignored,
    count_from,
    ignored_mask,
    label_values,
    read_binary_labels,
    read_labels,
)
from calibrant.io.score_columns import MIN_TOP_CLASS_ROWS
from calibrant.predictions.events import KIND_BY_COLUMN
from calibrant.predictions.validation.arrays import MIN_TOTAL_WEIGHT

PROBABILITY_RANGE_TOLERANCE = 1e-6  # for rounding
MAX_POSITIVE_SHARE = 0.65  # of labels, below which a single score that is never below 1/2 is doubtful
MAX_WEIGHT_SUM_DEVIATION = 0.2  # relative to the number of rows, for weights found by name


@np.errstate(invalid="ignore", over="ignore")  # infinities are refused later
def frame_to_contents(frame: Any, columns: Columns, options: TableOptions) -> Contents:
    """Return the contents of a polars frame, with a note for the user on how they were read.

    Args:
        frame: The frame.
        columns: Roles of its columns.
        options: Options for reading.

    Raises:
        InputError: If values are missing and may not be dropped, or cells do not fit the role of their column.
    """
    complete, incomplete = _drop_incomplete_rows(frame, columns, options)
    check_incomplete(incomplete, len(frame))
    complete, ignored_notes = _drop_ignored_rows(complete, columns, options)
    notes = [*incomplete_notes(incomplete), *ignored_notes]
    return _read_rows(complete, columns, options, len(frame), notes, has_all_rows=True)


@np.errstate(invalid="ignore", over="ignore")  # infinities are refused later
def frame_to_chunk(frame: Any, columns: Columns, options: TableOptions) -> Chunk:
    """Return the contents of some rows of a table, which are not checked as a whole."""
    complete, incomplete = _drop_incomplete_rows(frame, columns, options)
    if not len(complete):
        return Chunk(None, incomplete)
    complete, _ = _drop_ignored_rows(complete, columns, options)
    notes = incomplete_notes(incomplete)
    return Chunk(_read_rows(complete, columns, options, len(frame), notes, has_all_rows=False), incomplete)


def _read_rows(
    frame: Any, columns: Columns, options: TableOptions, num_rows: int, notes: list[str], *, has_all_rows: bool
) -> Contents:
    """Return the contents of the complete rows of a frame that had `num_rows` rows. `notes` tell why some lack."""
    weights = None
    if columns.weight is not None:
        weights = to_numbers(frame[columns.weight]).to_numpy()
        notes = [*notes, check_weights(columns, float(weights.sum()), len(frame), has_all_rows=has_all_rows)]
    if columns.id is not None and frame[columns.id].dtype.is_nested():
        raise InputError(f"Expected numbers or names in column {columns.id!r}, got lists.", code="label_kind")
    repeated = _repeated_ids_notes(frame, columns) if has_all_rows else []
    read_columns = _read_scores_and_labels if columns.confidence is None else _read_answers
    contents = read_columns(frame, columns, options, has_all_rows=has_all_rows)
    summary = f"Read {count_rows(num_rows)}: {columns.description}"
    return replace(
        contents,
        weights=weights,
        weights_are=options.weights_are,
        groups=None if columns.group is None else to_numbers_or_texts(frame[columns.group]),
        clusters=None if columns.cluster is None else to_numbers_or_texts(frame[columns.cluster]),
        ids=None if columns.id is None else frame[columns.id],
        notes=(" ".join([summary, *notes, *repeated, *contents.notes]),),
    )


def count_rows(n: int) -> str:
    """Return a number of rows as a text, such as "1 row" or "2,000 rows"."""
    return f"{n:,} {'row' if n == 1 else 'rows'}"


def _drop_incomplete_rows(frame: Any, columns: Columns, options: TableOptions) -> tuple[Any, Counter[str]]:
    """Drop rows in which a required value is missing, and count them by reason, such as "'label' is missing".

    With the option `drop`, a confidence outside its range counts as missing.

    Raises:
        InputError: Without rows, and if a value is missing without the option `drop`.
    """
    if columns.kind != "logits":  # first, because percentages are outside [0, 1], and such rows may be dropped
        _check_percent(frame, columns, options)
    incomplete = Counter[str]()
    if not len(frame):
        raise InputError("Expected samples, got no rows.", code="no_rows")
    for name in dict.fromkeys(columns.used_columns):
        if name == columns.id or name in columns.labels:  # ids may be missing, and so may some of several labels
            continue
        column = frame[name]
        is_unusable = missing_mask(column)
        reason = f"{name!r} is missing"
        if name == columns.confidence and column.dtype.is_numeric() and options.drop:
            limit = 100 if options.percent else 1
            is_unusable |= ~column.is_between(0, limit).fill_null(False)
            reason += f" or outside [0, {limit}]"
        count = int(is_unusable.sum())
        if count and not options.drop:
            raise InputError(
                f"Expected a value of {name!r} in every row, got none in {count} of {len(frame)} rows. Try drop=True "
                "(--drop) to leave out such rows.",
                code="missing_values",
            )
        if count:
            incomplete[reason] = count
            frame = frame.filter(~is_unusable)
    return frame, incomplete


def incomplete_notes(incomplete: Counter[str]) -> list[str]:
    """Return a sentence for each reason why rows were left out."""
    return [f"Left out {count_rows(count)} in which {reason}." for reason, count in incomplete.items()]


def check_incomplete(incomplete: Counter[str], num_rows: int) -> None:
    """Raise `InputError` if over half of the rows of a table are left out because a value is missing."""
    if incomplete.total() * 2 > num_rows:
        hint = " ".join([*incomplete_notes(incomplete), "Try another column, or remove these rows first."])
        raise InputError(
            f"Expected to leave out few rows, got {incomplete.total():,} of {num_rows:,} to leave out. {hint}",
            code="drop_most",
        )


def _drop_ignored_rows(frame: Any, columns: Columns, options: TableOptions) -> tuple[Any, list[str]]:
    """Drop rows with the ignored label, unless all rows have it, and return notes on them."""
    has_class_labels = columns.label is not None and columns.confidence is None
    if options.ignore_index is None or not has_class_labels or frame[columns.label].dtype.is_nested():
        return frame, []
    is_ignored = ignored_mask(label_values(frame[columns.label]), options)
    if not is_ignored.any() or is_ignored.all():  # a chunk of ignored rows stays: arrays need a row
        return frame, []
    note = f"Left out {count_rows(int(is_ignored.sum()))} with label {options.ignore_index}."
    return frame.filter(~is_ignored), [note]


def _read_scores_and_labels(frame: Any, columns: Columns, options: TableOptions, *, has_all_rows: bool) -> Contents:
    """Return probabilities or logits, the labels beside them, and notes. A chunk may lack some classes."""
    scores = _read_scores(frame, columns, options)
    contents = Contents(columns.kind, scores, class_names=columns.names)
    if columns.labels:
        labels = frame.select([to_numbers(frame[name], accept_truth_words=True) for name in columns.labels]).to_numpy()
        contents = replace(contents, labels=labels, is_multilabel=True)
        is_one_hot = bool(np.isin(labels, (0, 1)).all()) and bool((labels.sum(1) == 1).all())
        # Probabilities of independent labels need not sum to 1
        if columns.kind == "probs" and is_one_hot and sums_to(scores, tolerance=0.01):
            note = "Exactly one label holds in every row, so that they are classes."
            contents = replace(contents, labels=labels.argmax(1), is_multilabel=False, notes=(note,))
    elif columns.label is not None:
        labels, names, notes = read_labels(frame[columns.label], columns, options, scores, has_all_rows=has_all_rows)
        contents = replace(contents, labels=labels, class_names=names, notes=notes, is_multilabel=labels.ndim > 1)
        if scores.ndim == 1 and has_all_rows and columns.kind == "probs":
            _check_not_top_class(scores, labels, columns, options)
    if scores.ndim > 1 and options.positive is not None:
        raise InputError(
            f"Expected a single score for the positive class {options.positive!r}, got {scores.shape[1]} columns. "
            "Try of= (--of) for the class to evaluate.",
            code="positive_class",
        )
    return contents


# Scores


def _read_scores(frame: Any, columns: Columns, options: TableOptions) -> np.ndarray:
    """Return the scores of n rows as probabilities or logits: (n) if there is a single score, or (n, k) of k classes.

    Cells with k lists of t numbers, one for each of t positions such as tokens, give (n, k, t).
    """
    is_probs = columns.kind == "probs"

    def read_column(name: str) -> np.ndarray:
        """Return a column of numbers, divided by 100 if they are percentages."""
        return to_probabilities(frame[name], options) if is_probs else _to_floats(to_numbers(frame[name]).to_numpy())

    if len(columns.scores) == 1 and not is_list(frame[columns.scores[0]]):
        scores = read_column(columns.scores[0])
        if is_probs:
            _check_range(scores, columns.scores[0])
        return scores
    if len(columns.scores) == 1:
        scores = _to_floats(lists_to_matrix(frame[columns.scores[0]]))
        scores = scores / 100 if options.percent and is_probs else scores
    else:
        scores = np.stack([read_column(name) for name in columns.scores], 1)
    _check_no_class_missing(scores, columns)
    return _normalize_rows(scores) if options.normalize and is_probs else scores


def _to_floats(scores: np.ndarray) -> np.ndarray:
    """Return scores as they are, or in float64 if all are integers."""
    return scores.astype(np.float64) if scores.dtype.kind in "iub" else scores


def _normalize_rows(probs: np.ndarray) -> np.ndarray:
    """Divide rows of probabilities by their sum, or raise `InputError` if that is more than rounding."""
    if not sums_to(probs):
        sums = probs.sum(1)
        raise InputError(
            f"Expected rows of probabilities that sum to {1 - ROW_SUM_TOLERANCE} .. {1 + ROW_SUM_TOLERANCE} to "
            f"normalize, got sums {sums.min():.4g} .. {sums.max():.4g}. Try a table with the columns of all classes.",
            code="normalize_range",
        )
    return probs / probs.sum(1)[:, None]


def _check_no_class_missing(scores: np.ndarray, columns: Columns) -> None:
    """Raise `InputError` if the numbers in column names leave out a class, as prob_0 and prob_2 do.

    No class is missing if the rows sum to 1, or if the caller named the columns.
    """
    numbers = [parse_number(name) for name in columns.names or ()]
    if not numbers or None in numbers or columns.kind in columns.explicit_roles:
        return
    if columns.kind == "probs" and sums_to(scores):
        return
    present = {int(number) for number in numbers if number is not None}
    missing = sorted({*range(max(present))} - present)
    # Classes may be counted from 1. With more missing than present, the numbers are names, such as 200 and 404
    num_missing = len({*missing} - {0})
    if missing and min(present) in (0, 1) and 1 <= num_missing <= len(numbers):
        prefix = columns.scores[0].removesuffix((columns.names or ("",))[0])
        raise InputError(
            f"Expected a column for every class, got {shorten_list(columns.scores)} without one such as "
            f"{prefix}{missing[-1]}. Try a table with all classes, or {columns.kind}= with these columns if there are "
            "no others.",
            code="class_missing",
        )


def _check_percent(frame: Any, columns: Columns, options: TableOptions) -> None:
    """Raise `InputError` if probabilities or confidences seem to be percentages.

    They do if all are in [0, 100], one is above 2, and the rows of several columns sum to 100. With the option `drop`,
    few numbers above 1 in a single column count as outliers. Lists are not checked.
    """
    names = (*columns.scores, *([columns.confidence] if columns.confidence else []))
    if options.percent or not names or not len(frame) or any(is_list(frame[name]) for name in names):
        return
    values = np.stack([to_probabilities(frame[name], options) for name in names], 1)
    values = values[~np.isnan(values).any(1)]
    if not values.size or values.min() < 0 or not 2 < values.max() <= 100:  # percentages up to 2 % only are unlikely
        return
    if len(names) > 1 and not sums_to(values, 100.0):
        return
    if len(names) == 1 and (values > 1).mean() < 0.5 and options.drop:
        return  # rows outside [0, 1] are dropped
    raise InputError(
        f"Expected probabilities in [0, 1] in {shorten_list(names)}, got {values.min():.4g} .. {values.max():.4g}. Try "
        "percent=True (--percent) if they are percentages.",
        code="percent",
    )


def _check_range(probs: np.ndarray, name: str) -> None:
    """Raise `InputError` if a single score is not a probability."""
    low, high = float(probs.min()), float(probs.max())
    if low < -PROBABILITY_RANGE_TOLERANCE or high > 1 + PROBABILITY_RANGE_TOLERANCE:
        raise InputError(
            f"Expected probabilities in [0, 1] in {name!r}, got {low:.4g} .. {high:.4g}. Try logits={name!r} "
            f"(--logits {name}) if they are logits.",
            code="probability_range",
        )


def _check_not_top_class(probs: np.ndarray, labels: np.ndarray, columns: Columns, options: TableOptions) -> None:
    """Raise `InputError` if a single score, found by name, may be the confidence of the predicted class.

    The probability of a class that is often absent should be low for some rows. So a score that is never below 1/2,
    although many labels are negative, is doubtful, unless the caller chose the column or the positive class, or the
    column is named after a class.
    """
    if "probs" in columns.explicit_roles or options.positive is not None or columns.positive is not None:
        return
    if labels.dtype.kind not in "iufb" or len(probs) < MIN_TOP_CLASS_ROWS or not 0.5 <= probs.min() <= probs.max() <= 1:
        return
    if not set(np.unique(labels).tolist()) <= {0, 1, -1} or (labels > 0).mean() >= MAX_POSITIVE_SHARE:
        return
    name = columns.scores[0]
    raise InputError(
        f"Expected probabilities of class 1 in {name!r}, got none below 1/2 although class 1 is rare. Try "
        f"confidence={name!r} with predicted= or correct= (--confidence {name}) if this is the confidence of the "
        f"predicted class, or probs={name!r} (--probs {name}) if it is the probability of class 1.",
        code="ambiguous_reading",
    )


# Answers with a confidence


def _read_answers(frame: Any, columns: Columns, options: TableOptions, *, has_all_rows: bool) -> Contents:
    """Return stated confidences and, if the columns tell, which answers were correct.

    Correctness is the column of this role, or else whether the label equals the prediction.
    """
    contents = Contents("confidence", to_probabilities(frame[columns.confidence], options))
    if columns.correct is not None:
        correct = to_numbers(frame[columns.correct], accept_truth_words=True).to_numpy()
        kind = KIND_BY_COLUMN.get(columns.correct.lower())  # a column such as `matched` tells the kind of event
        return replace(contents, labels=correct, event_kind=kind or contents.event_kind)
    if columns.label is None or columns.predicted is None:
        return contents
    label_keys, predicted_keys = comparable_class_keys(frame[columns.label], frame[columns.predicted])
    if has_all_rows:
        _check_predicted(columns, label_keys, predicted_keys)
    correct = (label_keys == predicted_keys).astype(np.int64)
    rule = f"An answer is correct if {columns.label!r} equals {columns.predicted!r}"
    return replace(contents, labels=correct, notes=(f"{rule}, as in {correct.mean():.1%} of the rows.",))


def _check_predicted(columns: Columns, label_keys: np.ndarray, predicted_keys: np.ndarray) -> None:
    """Raise `InputError` if labels and predictions seem to name their classes differently.

    They do if they have no class in common, if their numbers differ by 1 throughout, or if a class of one column alone
    is a word such as "NA".

    Args:
        columns: Roles of the columns, for errors.
        label_keys: Class of the label in each row, as text (n).
        predicted_keys: Predicted class in each row, as text (n).
    """
    labels, predicted = np.unique(label_keys).tolist(), np.unique(predicted_keys).tolist()
    for name, classes, compared_classes in ((columns.label, labels, predicted), (columns.predicted, predicted, labels)):
        if hint := missing_hint([word for word in classes if word not in compared_classes]):
            raise InputError(f"Expected a class in every row of {name!r}.{hint}", code="missing_word")
    label_numbers, predicted_numbers = ({*map(parse_number, classes)} for classes in (labels, predicted))
    labels_plus_1, labels_minus_1 = ({n + step for n in label_numbers if n is not None} for step in (1, -1))
    # One or two classes may differ by 1 by chance, if few of several classes occur
    is_shifted = predicted_numbers in (labels_plus_1, labels_minus_1) and len(labels) > 2 and None not in label_numbers
    if is_shifted or not {*labels} & {*predicted}:
        raise InputError(
            f"Expected the same classes in {columns.label!r} and {columns.predicted!r}, got {shorten_list(labels)} and "
            f"{shorten_list(predicted)}. Try the same names in both, or correct= (--correct) with a column that tells "
            "whether the answer was correct.",
            code="predicted_labels",
        )


# Weights and ids


def check_weights(columns: Columns, weight_sum: float, num_rows: int, *, has_all_rows: bool) -> str:
    """Return a sentence on the sum of the weights.

    Args:
        columns: Roles of the columns.
        weight_sum: Sum of the column of weights.
        num_rows: Number of rows that it is summed over.
        has_all_rows: False for a chunk of a table, whose sum is not checked.

    Raises:
        InputError: If weights of a whole table, found by name, do not sum to the number of rows within 20 %, because
            they may be something else, such as kilograms.
    """
    has_saved_columns = columns.weight == "weights" and columns.kind == "logits" and len(columns.scores) > 1
    is_saved_file = has_saved_columns and not columns.unused_columns  # as `Predictions.save` writes it
    # For chunks, the sum over the whole table has been checked before
    is_trusted = not has_all_rows or is_saved_file or "weight" in columns.explicit_roles
    is_near_num_rows = abs(weight_sum - num_rows) <= MAX_WEIGHT_SUM_DEVIATION * num_rows  # False for NaN
    if not is_trusted and not is_near_num_rows:
        hint = f"weight={columns.weight!r} (--weight {columns.weight}) if this is how often a row counts"
        if weight_sum < MIN_TOTAL_WEIGHT:  # refused with the role, too
            hint = "multiplying normalized weights by the number of rows"
        raise InputError(
            f"Expected weights that sum to about the number of rows, got {weight_sum:,.6g} for {count_rows(num_rows)} "
            f"in {columns.weight!r}. Try {hint}, or another name for the column.",
            code="weights_sum",
        )
    return f"The weights in {columns.weight!r} sum to {weight_sum:,.6g} for {count_rows(num_rows)}."


def _repeated_ids_notes(frame: Any, columns: Columns) -> list[str]:
    """Return a list of one sentence on the first column of ids that repeat, [] without such a column.

    Rows with the same id may depend on each other, which intervals and tests take into account only for clusters. So
    the list is empty if there is a column of clusters. Columns without a role count if their names end in id, as in
    patient_id.
    """
    if columns.cluster is not None:
        return []
    names = [columns.id, *(name for name in columns.unused_columns if re.search(r"(?i)[a-z]_?id$", name))]
    for name in names:
        if name is None or name not in frame.columns or frame[name].dtype.is_nested():
            continue
        if 1 < (n := frame[name].n_unique()) < len(frame):  # a single value, or one per row, tells no dependence
            return [
                f"{count_rows(len(frame))} have {n:,} values of {name!r}; if rows with the same value depend on each "
                f"other, add cluster={name!r} (--cluster {name})."
            ]
    return []


# Options for files of arrays


def apply_options(contents: Contents, options: TableOptions) -> Contents:
    """Apply the options for reading to the contents of a file without columns.

    `percent` and `normalize` change probabilities; `labels_from` and `positive` turn labels into class indices;
    `weights_are` replaces what the file says.

    Raises:
        InputError: If an option does not suit the contents, such as `percent` for logits.
    """
    if options.weights_are is not None:
        contents = replace(contents, weights_are=options.weights_are)
    if options.percent or options.normalize:
        if contents.kind == "logits":
            raise InputError(
                "Expected probabilities or confidences, got logits. Try without percent= and normalize=.",
                code="option_value",
            )
        values = np.asarray(contents.scores, dtype=float) / (100 if options.percent else 1)
        has_rows = contents.kind == "probs" and values.ndim == 2
        contents = replace(contents, scores=_normalize_rows(values) if options.normalize and has_rows else values)
    has_positive = options.positive is not None
    has_class_labels = contents.labels is not None and contents.kind != "confidence"
    if contents.kind == "confidence" and has_positive:
        raise InputError("Expected a single score for positive=, got confidences.", code="positive_class")
    if has_class_labels and (has_positive or options.labels_from is not None):
        return _convert_labels(contents, options)
    return contents


def _convert_labels(contents: Contents, options: TableOptions) -> Contents:
    """Return contents with class indices as labels, for the option `labels_from` or `positive`.

    They are counted from `labels_from`, or 1 for the positive class, whose name and opposite are the class names.
    """
    values = np.asarray(contents.labels)
    is_ignored = ignored_mask(values, options)
    if options.labels_from is not None:
        labels = count_from(options.labels_from, values[~is_ignored], None)
    else:
        if np.shape(contents.scores)[1:] > (1,):
            raise InputError("Expected a single score for positive=, got a column per class.", code="positive_class")
        columns = Columns(kind="probs", scores=("scores",))  # as for a table with this one column of scores
        labels, names, notes = read_binary_labels(values[~is_ignored], columns, options)
        contents = replace(contents, class_names=names, notes=notes)
    check_not_ignored(values, labels, None, options)
    # Ignored labels stay as they are. The type must hold both them and the class indices
    fill = options.ignore_index or 0
    all_labels = np.full(values.shape, fill, dtype=np.result_type(labels.dtype, np.min_scalar_type(fill)))
    all_labels[~is_ignored] = labels.ravel()
    return replace(contents, labels=all_labels)
