"""Tell probabilities from logits: refuse an evident mistake, and name its likely cause."""

import math
from typing import Any

import numpy as np

from calibrant._core.arrays import namespace
from calibrant._core.types import InputError

MIN_EVIDENT_ROWS = 2  # rows that are not one-hot before logits are taken for probabilities
MIN_EVIDENT_SCORES = 3  # scores strictly between 0 and 1 before single logits are taken for probabilities
MAX_SUM_ERROR = 1e-3  # distance of a row's sum from 1
MAX_HALF_PRECISION_SUM_ERROR = 2e-2
MAX_ROUNDED_SUM_ERROR = 0.03 + 1e-6  # of probabilities with two decimals
MAX_ROUNDED_CLASSES = 50
MAX_ROUNDING_EXCESS = 1e-6  # distance from [0, 1] that rounding explains
PERCENT_HINT = "Try percent=True (on the command line, --percent) for percentages in files, p / 100 for arrays."
SUM_MESSAGES = {  # kinds of probabilities, the most evident first
    "probs": "sum to 1. Try Predictions.from_probs, or the key 'probs' in a file.",
    "percentages": "sum to 100. Try dividing by 100 and Predictions.from_probs.",
    "rounded_probs": "sum to 1 up to two decimals. Try Predictions.from_probs(..., normalize=True).",
}


class SingleScoreEvidence:
    """Evidence, batch by batch, that single logits are probabilities.

    It is conclusive if all scores lie in [0, 1] and at least three lie strictly between 0 and 1.
    """

    def __init__(self) -> None:
        self.num_inside, self.any_outside = 0, False

    def add(self, scores: Any) -> "SingleScoreEvidence":
        """Add the scores of a batch. After a score outside [0, 1], counting stops."""
        self.any_outside = self.any_outside or not bool(((scores >= 0) & (scores <= 1)).all())
        self.num_inside += 0 if self.any_outside else int(((scores > 0) & (scores < 1)).sum())
        return self

    def add_pairs(self, logits: Any) -> "SingleScoreEvidence":
        """Add scores s that were converted to pairs of logits [0, s] (n, 2)."""
        return self.add(logits[:, 1] - logits[:, 0])

    def check(self, alternative: str = "Predictions.from_probs", *, min_scores: int = MIN_EVIDENT_SCORES) -> None:
        """Raise `InputError` if at least `min_scores` lie strictly between 0 and 1, and no score outside [0, 1].

        The error suggests the `alternative`, a way to enter probabilities.
        """
        if not self.any_outside and self.num_inside >= min_scores:
            raise InputError(
                "Expected one logit per label, got scores that all lie in [0, 1], as probabilities do. Try "
                f"{alternative}, or logits=True (for files are_logits=True, --are-logits) if they are logits all the "
                "same.",
                code="probs_as_logits",
            )


class RowScoreEvidence:
    """Evidence, batch by batch, that rows of logits are probabilities.

    It is conclusive if no score is negative, all rows sum to 1, to 100, or to 1 up to two decimals, and at least two
    rows are not one-hot.
    """

    def __init__(self) -> None:
        self.possible_kinds, self.num_rows, self.num_mixed_rows = frozenset(SUM_MESSAGES), 0, 0

    def add(self, logits: Any) -> "RowScoreEvidence":
        """Add the rows of a batch (n, k)."""
        for rows in (logits[:32], logits):  # the first few rows rule out most logits
            self.possible_kinds &= _possible_kinds(rows)
            if not self.possible_kinds:
                return self
        self.num_rows += len(logits)
        xp = namespace(logits)
        self.num_mixed_rows += int(
            xp.count_nonzero(xp.count_nonzero(logits, axis=1) > 1)
        )  # not one-hot: several entries above 0
        return self

    def check(self) -> None:
        """Raise `InputError` if the rows are evidently probabilities, of one of the kinds in `SUM_MESSAGES`."""
        if self.possible_kinds and self.num_mixed_rows >= MIN_EVIDENT_ROWS:
            kind = next(kind for kind in SUM_MESSAGES if kind in self.possible_kinds)
            raise InputError(
                f"Expected logits, got probabilities: all {self.num_rows} rows are non-negative and "
                f"{SUM_MESSAGES[kind]}",
                code=f"{kind}_as_logits",
            )


def _possible_kinds(rows: Any) -> frozenset[str]:
    """Return the kinds of probabilities, keys of `SUM_MESSAGES`, that rows (n, k) may be, judged by their sums."""
    if not bool((rows >= 0).all()):
        return frozenset()
    xp = namespace(rows)
    rows = xp.astype(rows, xp.float64)
    total = xp.sum(rows, axis=1)
    max_error = float(xp.max(abs(total - 1))) if len(rows) else 0.0
    max_percent_error = float(xp.max(abs(total - 100))) / 100 if len(rows) else 0.0  # relative, as `max_error`
    holds = {
        "probs": max_error < MAX_SUM_ERROR,
        "percentages": max_percent_error < MAX_SUM_ERROR,
        # All numbers have two decimals, and classes are few: rounding of many may add up to any sum
        "rounded_probs": max_error < MAX_ROUNDED_SUM_ERROR
        and rows.shape[1] <= MAX_ROUNDED_CLASSES
        and bool(xp.all(abs(100 * rows - xp.round(100 * rows)) < 1e-4)),
    }
    return frozenset(kind for kind in SUM_MESSAGES if holds[kind])


def log_probs(p: Any, *, normalize: bool = False, is_half_precision: bool = False) -> tuple[Any, tuple[str, ...]]:
    """Validate probabilities and return log p in float64, (n, k, ...), with a note if they are rounded.

    Args:
        p: Probabilities (n, k, ...), or of class 1 of 2, (n,) or (n, 1, ...).
        normalize: Divide rows by their sum.
        is_half_precision: Whether p had 16 bits, so that sums may be less exact.

    Raises:
        InputError: For NaN, negative numbers, and rows whose sum differs from 1 by more than rounding explains.
    """
    xp = namespace(p)
    max_error = MAX_HALF_PRECISION_SUM_ERROR if is_half_precision else MAX_SUM_ERROR
    p = xp.astype(p, xp.float64)
    if not math.prod(p.shape):
        raise InputError(
            f"Expected probs (n, k), or (n,) for the probability of class 1 of 2, got {tuple(p.shape)}.", code="shape"
        )
    if bool(xp.any(xp.isnan(p))):
        raise InputError(
            f"Expected probs without NaN, got NaN in {num_nan_rows(p)} of {len(p)} rows. Try dropping these rows.",
            code="nan",
        )
    p = clip_rounding(p)
    if is_single(p):
        _check_single_probs(p)
        p = p[:, None] if p.ndim == 1 else p
        return _log(xp.concat([1 - p, p], axis=1)), ()
    total = xp.sum(p, axis=1)
    error = float(xp.max(abs(total - 1)))
    has_negative = bool(xp.any(p < 0))
    # normalize=True is for rounded rows: it accepts the sums that rounding to two decimals can cause, and no others
    if has_negative or (normalize and error > MAX_ROUNDED_SUM_ERROR):
        raise _row_sum_error(p)
    if normalize:
        return _log(p / total[:, None]), ()
    if error <= max_error:
        return _log(p), ()  # the softmax of these logits divides rows by their sum
    digits = _detect_decimals(p, error)
    if digits is None:
        raise _row_sum_error(p)
    low, high = float(xp.min(total)), float(xp.max(total))
    note = f"probabilities are rounded to {digits} decimals: rows sum to {low:.4g} .. {high:.4g}"
    return _log(p), (f"{note}, and each row is divided by its sum",)


def _log(p: Any) -> Any:
    """Return the logarithms, -inf of 0."""
    with np.errstate(divide="ignore"):
        return namespace(p).log(p)


def clip_rounding(p: Any) -> Any:
    """Clip probabilities to [0, 1] if all of them exceed it by rounding at most, such as 1.0000001."""
    xp = namespace(p)
    low, high = float(xp.min(p)), float(xp.max(p))
    exceeds = low < 0 or high > 1
    return xp.clip(p, 0.0, 1.0) if exceeds and low >= -MAX_ROUNDING_EXCESS and high <= 1 + MAX_ROUNDING_EXCESS else p


def is_single(scores: Any) -> bool:
    """Whether there is one score per label instead of one per class."""
    return scores.ndim == 1 or scores.shape[1] == 1


def num_nan_rows(x: Any) -> int:
    """Return the number of rows that contain NaN."""
    xp = namespace(x)
    return int(xp.count_nonzero(xp.any(xp.isnan(x).reshape(len(x), -1), axis=1)))


def _row_sum_error(p: Any) -> InputError:
    """Return the error for rows p (n, k, ...) that are not probabilities, with a hint on the most likely cause."""
    xp = namespace(p)
    total = xp.sum(p, axis=1)
    low, high, min_prob, max_prob = (float(f(x)) for x in (total, p) for f in (xp.min, xp.max))
    is_rounded = low >= 1 - MAX_ROUNDED_SUM_ERROR and high <= 1 + MAX_ROUNDED_SUM_ERROR
    causes = (  # the first that holds is named
        (min_prob >= 0 and max_prob > 1 and low >= 97 and high <= 103, "percent", PERCENT_HINT),
        (min_prob < 0 or max_prob > 1, "not_probabilities", "Try Predictions(logits, labels) if they are logits."),
        (is_rounded, "rounded_sums", "Try normalize=True (on the command line, --normalize) if they are rounded."),
        (high <= 1 + MAX_SUM_ERROR, "class_missing", "Try adding the column of a missing class."),
        (True, "not_probabilities", "Try Predictions.multilabel(..., probs=True) if each column is a yes or no."),
    )
    code, hint = next((code, hint) for holds, code, hint in causes if holds)
    sums = f"minimum {min_prob:.4g} and sums {low:.4g} .. {high:.4g}"
    return InputError(f"Expected non-negative rows of probs with sum 1, got {sums}. {hint}", code=code)


def _check_single_probs(p: Any) -> None:
    """Raise `InputError` unless single probabilities lie in [0, 1]."""
    low, high = float(p.min()), float(p.max())
    if low >= 0 and high <= 1:
        return
    text = f"Expected probabilities in [0, 1], got {low:.4g} .. {high:.4g}."
    if low >= 0 and 2 < high <= 100:  # percentages that are all below 2 % are unlikely
        raise InputError(f"{text} {PERCENT_HINT}", code="percent")
    raise InputError(f"{text} Try Predictions.from_binary_logits if they are logits.", code="not_probabilities")


def _detect_decimals(p: Any, max_error: float) -> int | None:
    """Return the number of decimals, 3 to 6, to which p is rounded if that explains row sums other than 1, else None.

    `max_error` is the largest difference of a row's sum from 1. Rounding of k numbers explains up to k times half a
    unit of the last decimal.
    """
    xp = namespace(p)
    for digits in range(3, 7):  # the smallest number of decimals that all entries have
        scaled = p * 10**digits
        if bool(xp.all(abs(scaled - xp.round(scaled)) < 1e-3)):
            # Sums far below 1 are refused: if a row has many classes, rounding could change all its numbers to 0
            explained = max_error <= 0.5 * 10**-digits * p.shape[1] + 1e-9 and bool(xp.all(xp.sum(p, axis=1) > 0.5))
            return digits if explained and math.isfinite(max_error) else None
    return None
