"""Turn the columns of a frame into the arrays of predictions."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import InputError
from calibrant.io.cells import (
    comparable_class_keys,
    missing_hint,
    missing_mask,
    sums_to,
    to_numbers,
    to_numbers_or_texts,
    to_probabilities,
)
from calibrant.io.columns import Columns, TableOptions
from calibrant.io.labels import (
    check_not_ignored,
    count_from,
    ignored_mask,
    label_values,
    read_binary_labels,
    read_labels,
)
from calibrant.io.scores import check_not_top_class, check_percent, normalize_rows, read_scores
from calibrant.predictions.events import KIND_BY_COLUMN
from calibrant.predictions.validation.arrays import MIN_TOTAL_WEIGHT

MAX_WEIGHT_SUM_DEVIATION = 0.2  # relative to the number of rows, for weights found by name


@np.errstate(invalid="ignore", over="ignore")  # infinities are refused later
def frame_to_arrays(
    frame: Any, columns: Columns, options: TableOptions, *, has_all_rows: bool = True
) -> dict[str, Any]:
    """Return the arrays of a polars frame under the argument names of `Predictions`.

    Args:
        frame: The frame.
        columns: Roles of its columns.
        options: Options for reading.
        has_all_rows: False for a chunk of a table, which is not checked as a whole.

    Returns:
        The arrays, and in "notes" a text for the user on how they were read. For a chunk, "incomplete" counts the rows
        that were left out, by reason; it is the only entry if no row is left.

    Raises:
        InputError: If values are missing and may not be dropped, or cells do not fit the role of their column.
    """
    num_rows = len(frame)
    if columns.kind != "logits":  # first, because percentages are outside [0, 1], and such rows may be dropped
        check_percent(frame, columns, options)
    frame, incomplete = _drop_incomplete_rows(frame, columns, options)
    arrays: dict[str, Any] = {}
    if has_all_rows:
        check_incomplete(incomplete, num_rows)
    else:
        arrays["incomplete"] = incomplete
        if not len(frame):
            return arrays
    notes = incomplete_notes(incomplete)
    frame, ignored_notes = _drop_ignored_rows(frame, columns, options)
    notes += ignored_notes if has_all_rows else []
    if columns.weight is not None:
        arrays["weights"] = to_numbers(frame[columns.weight]).to_numpy()
        weight_sum = float(arrays["weights"].sum())
        notes.append(check_weights(columns, weight_sum, len(frame), has_all_rows=has_all_rows))
    if options.weights_are is not None:
        arrays["weights_are"] = [options.weights_are]
    for role in ("group", "cluster"):
        if (name := getattr(columns, role)) is not None:
            arrays[f"{role}s"] = to_numbers_or_texts(frame[name])
    if columns.id is not None:
        if frame[columns.id].dtype.is_nested():
            raise InputError(f"Expected numbers or names in column {columns.id!r}, got lists.", code="label_kind")
        arrays["ids"] = frame[columns.id]
    notes += _repeated_ids_notes(frame, columns) if has_all_rows else []
    read_columns = _read_scores_and_labels if columns.confidence is None else _read_answers
    score_arrays, score_notes = read_columns(frame, columns, options, has_all_rows=has_all_rows)
    summary = f"Read {count_rows(num_rows)}: {columns.description}"
    return arrays | score_arrays | {"notes": (" ".join([summary, *notes, *score_notes]),)}


def count_rows(n: int) -> str:
    """Return a number of rows as a text, such as "1 row" or "2,000 rows"."""
    return f"{n:,} {'row' if n == 1 else 'rows'}"


def _drop_incomplete_rows(frame: Any, columns: Columns, options: TableOptions) -> tuple[Any, Counter[str]]:
    """Drop rows in which a required value is missing, and count them by reason, such as "'label' is missing".

    With the option `drop`, a confidence outside its range counts as missing.

    Raises:
        InputError: Without rows, and if a value is missing without the option `drop`.
    """
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


def _read_scores_and_labels(
    frame: Any, columns: Columns, options: TableOptions, *, has_all_rows: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arrays of probabilities or logits and of the labels beside them, and notes for the user.

    The arrays are named as the arguments of `Predictions`. A chunk (not `has_all_rows`) may lack some classes.
    """
    scores = read_scores(frame, columns, options)
    arrays: dict[str, Any] = {columns.kind: scores}
    names, notes = columns.names, ()
    if columns.labels:
        labels = frame.select([to_numbers(frame[name], accept_truth_words=True) for name in columns.labels]).to_numpy()
        arrays |= {"labels": labels, "is_multilabel": True}
        is_one_hot = bool(np.isin(labels, (0, 1)).all()) and bool((labels.sum(1) == 1).all())
        # Probabilities of independent labels need not sum to 1
        if columns.kind == "probs" and is_one_hot and sums_to(scores, tolerance=0.01):
            arrays |= {"labels": labels.argmax(1), "is_multilabel": False}
            notes = ("Exactly one label holds in every row, so that they are classes.",)
    elif columns.label is not None:
        labels, names, notes = read_labels(frame[columns.label], columns, options, scores, has_all_rows=has_all_rows)
        arrays |= {"labels": labels, "is_multilabel": labels.ndim > 1}
        if scores.ndim == 1 and has_all_rows and columns.kind == "probs":
            check_not_top_class(scores, labels, columns, options)
    if scores.ndim > 1 and options.positive is not None:
        raise InputError(
            f"Expected a single score for the positive class {options.positive!r}, got {scores.shape[1]} columns. "
            "Try of= (--of) for the class to evaluate.",
            code="positive_class",
        )
    return arrays | ({} if names is None else {"class_names": names}), notes


# Answers with a confidence


def _read_answers(
    frame: Any, columns: Columns, options: TableOptions, *, has_all_rows: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the arrays of stated confidences and, if the columns tell, of correct answers, and notes for the user.

    Correctness is the column of this role, or else whether the label equals the prediction.
    """
    arrays: dict[str, Any] = {"confidence": to_probabilities(frame[columns.confidence], options)}
    if columns.correct is not None:
        if kind := KIND_BY_COLUMN.get(columns.correct.lower()):  # a column such as `matched` tells the kind of event
            arrays["event_kind"] = kind
        arrays["correct"] = to_numbers(frame[columns.correct], accept_truth_words=True).to_numpy()
    elif columns.label is not None and columns.predicted is not None:
        label_keys, predicted_keys = comparable_class_keys(frame[columns.label], frame[columns.predicted])
        if has_all_rows:
            _check_predicted(columns, label_keys, predicted_keys)
        arrays["correct"] = (label_keys == predicted_keys).astype(np.int64)
        share = arrays["correct"].mean()
        rule = f"An answer is correct if {columns.label!r} equals {columns.predicted!r}"
        return arrays, (f"{rule}, as in {share:.1%} of the rows.",)
    return arrays, ()


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


def apply_options(arrays: Mapping[str, Any], options: TableOptions) -> dict[str, Any]:
    """Apply the options for reading to the arrays of a file without columns.

    `percent` and `normalize` change probabilities; `labels_from` and `positive` turn labels into class indices;
    `weights_are` replaces what the file says.

    Raises:
        InputError: If an option does not suit the arrays, such as `percent` for logits.
    """
    arrays = dict(arrays) | ({} if options.weights_are is None else {"weights_are": [options.weights_are]})
    if options.percent or options.normalize:
        kind = next((kind for kind in ("probs", "confidence") if kind in arrays), None)
        if kind is None:
            raise InputError(
                "Expected probabilities or confidences, got logits. Try without percent= and normalize=.",
                code="option_value",
            )
        values = np.asarray(arrays[kind], dtype=float) / (100 if options.percent else 1)
        has_rows = kind == "probs" and values.ndim == 2
        arrays[kind] = normalize_rows(values) if options.normalize and has_rows else values
    label_key = next((name for name in ("labels", "label") if name in arrays), None)
    if label_key is None or (options.positive is None and options.labels_from is None):
        return arrays
    return arrays | _convert_labels(arrays, label_key, options)


def _convert_labels(arrays: Mapping[str, Any], label_key: str, options: TableOptions) -> dict[str, Any]:
    """Return the entries that replace the labels in a file of arrays, for the option `labels_from` or `positive`.

    The labels, under `label_key`, are class indices counted from `labels_from`, or 1 for the positive class. With
    `positive`, there are also "class_names" and "notes".
    """
    values, names_and_notes = np.asarray(arrays[label_key]), dict[str, Any]()
    is_ignored = ignored_mask(values, options)
    if options.labels_from is not None:
        labels = count_from(options.labels_from, values[~is_ignored], None)
    else:
        scores = next((np.asarray(arrays[name]) for name in ("logits", "probs") if name in arrays), None)
        if scores is None or (scores.ndim > 1 and scores.shape[1] > 1):
            actual = "confidences" if scores is None else "a column per class"
            raise InputError(f"Expected a single score for positive=, got {actual}.", code="positive_class")
        columns = Columns(kind="probs", scores=("scores",))  # as for a table with this one column of scores
        labels, names, notes = read_binary_labels(values[~is_ignored], columns, options)
        names_and_notes = {"class_names": names, "notes": notes}
    check_not_ignored(values, labels, None, options)
    # Ignored labels stay as they are. The type must hold both them and the class indices
    fill = options.ignore_index or 0
    all_labels = np.full(values.shape, fill, dtype=np.result_type(labels.dtype, np.min_scalar_type(fill)))
    all_labels[~is_ignored] = labels.ravel()
    return {label_key: all_labels, **names_and_notes}
