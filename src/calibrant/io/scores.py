"""Read columns of scores as an array, and check that they are the scores that they seem to be."""

from typing import Any

import numpy as np

from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import InputError
from calibrant.io.cells import ROW_SUM_TOLERANCE, is_list, lists_to_matrix, sums_to, to_numbers, to_probabilities
from calibrant.io.columns import Columns, TableOptions

PROBABILITY_RANGE_TOLERANCE = 1e-6  # for rounding
MIN_TOP_CLASS_ROWS = 20  # rows that suffice to doubt a single score that is never below 1/2
MAX_POSITIVE_SHARE = 0.65  # of labels, below which such a score is doubtful


def read_scores(frame: Any, columns: Columns, options: TableOptions) -> np.ndarray:
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
    return normalize_rows(scores) if options.normalize and is_probs else scores


def _to_floats(scores: np.ndarray) -> np.ndarray:
    """Return scores as they are, or in float64 if all are integers."""
    return scores.astype(np.float64) if scores.dtype.kind in "iub" else scores


def normalize_rows(probs: np.ndarray) -> np.ndarray:
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


def check_percent(frame: Any, columns: Columns, options: TableOptions) -> None:
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


def check_not_top_class(probs: np.ndarray, labels: np.ndarray, columns: Columns, options: TableOptions) -> None:
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
