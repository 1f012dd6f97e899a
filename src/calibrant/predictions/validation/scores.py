"""Tell probabilities from logits: refuse an evident mistake, and name its likely cause."""

import math

import torch
from torch import Tensor

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

    def add(self, scores: Tensor) -> "SingleScoreEvidence":
        """Add the scores of a batch. After a score outside [0, 1], counting stops."""
        self.any_outside = self.any_outside or not bool(((scores >= 0) & (scores <= 1)).all())
        self.num_inside += 0 if self.any_outside else int(((scores > 0) & (scores < 1)).sum())
        return self

    def add_pairs(self, logits: Tensor) -> "SingleScoreEvidence":
        """Add scores s that were converted to pairs of logits [0, s] (n, 2)."""
        return self.add(logits.diff(dim=1))

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

    def add(self, logits: Tensor) -> "RowScoreEvidence":
        """Add the rows of a batch (n, k)."""
        for rows in (logits[:32], logits):  # the first few rows rule out most logits
            self.possible_kinds &= _possible_kinds(rows)
            if not self.possible_kinds:
                return self
        self.num_rows += len(logits)
        self.num_mixed_rows += int((logits != 0).sum(1).gt(1).sum())  # not one-hot: several entries above 0
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


def _possible_kinds(rows: Tensor) -> frozenset[str]:
    """Return the kinds of probabilities, keys of `SUM_MESSAGES`, that rows (n, k) may be, judged by their sums."""
    if not bool((rows >= 0).all()):
        return frozenset()
    rows = rows.double()
    total = rows.sum(1)
    max_error = float((total - 1).abs().amax()) if len(rows) else 0.0
    max_percent_error = float((total - 100).abs().amax()) / 100 if len(rows) else 0.0  # relative, as `max_error`
    holds = {
        "probs": max_error < MAX_SUM_ERROR,
        "percentages": max_percent_error < MAX_SUM_ERROR,
        # All numbers have two decimals, and classes are few: rounding of many may add up to any sum
        "rounded_probs": max_error < MAX_ROUNDED_SUM_ERROR
        and rows.shape[1] <= MAX_ROUNDED_CLASSES
        and bool(((100 * rows - (100 * rows).round()).abs() < 1e-4).all()),
    }
    return frozenset(kind for kind in SUM_MESSAGES if holds[kind])


def log_probs(p: Tensor, *, normalize: bool = False) -> tuple[Tensor, tuple[str, ...]]:
    """Validate probabilities and return log p in float64, (n, k, ...), with a note if they are rounded.

    Args:
        p: Probabilities (n, k, ...), or of class 1 of 2, (n,) or (n, 1, ...).
        normalize: Divide rows by their sum.

    Raises:
        InputError: For NaN, negative numbers, and rows whose sum differs from 1 by more than rounding explains.
    """
    max_error = MAX_HALF_PRECISION_SUM_ERROR if p.dtype in (torch.float16, torch.bfloat16) else MAX_SUM_ERROR
    p = p.double()
    if not p.numel():
        raise InputError(
            f"Expected probs (n, k), or (n,) for the probability of class 1 of 2, got {tuple(p.shape)}.", code="shape"
        )
    if p.isnan().any():
        raise InputError(
            f"Expected probs without NaN, got NaN in {num_nan_rows(p)} of {len(p)} rows. Try dropping these rows.",
            code="nan",
        )
    p = clip_rounding(p)
    if is_single(p):
        _check_single_probs(p)
        p = p.unsqueeze(1) if p.ndim == 1 else p
        return torch.cat([1 - p, p], 1).log(), ()
    total = p.sum(1)
    error = float((total - 1).abs().max())
    has_negative = bool((p < 0).any())
    # normalize=True is for rounded rows: it accepts the sums that rounding to two decimals can cause, and no others
    if has_negative or (normalize and error > MAX_ROUNDED_SUM_ERROR):
        raise _row_sum_error(p)
    if normalize:
        return (p / total.unsqueeze(1)).log(), ()
    if error <= max_error:
        return p.log(), ()  # the softmax of these logits divides rows by their sum
    digits = _detect_decimals(p, error)
    if digits is None:
        raise _row_sum_error(p)
    note = f"probabilities are rounded to {digits} decimals: rows sum to {total.min():.4g} .. {total.max():.4g}"
    return p.log(), (f"{note}, and each row is divided by its sum",)


def clip_rounding(p: Tensor) -> Tensor:
    """Clip probabilities to [0, 1] if all of them exceed it by rounding at most, such as 1.0000001."""
    low, high = (float(end) for end in p.aminmax())
    exceeds = low < 0 or high > 1
    return p.clamp(0, 1) if exceeds and low >= -MAX_ROUNDING_EXCESS and high <= 1 + MAX_ROUNDING_EXCESS else p


def is_single(scores: Tensor) -> bool:
    """Whether there is one score per label instead of one per class."""
    return scores.ndim == 1 or scores.shape[1] == 1


def num_nan_rows(x: Tensor) -> int:
    """Return the number of rows that contain NaN."""
    return int(x.isnan().reshape(len(x), -1).any(1).sum())


def _row_sum_error(p: Tensor) -> InputError:
    """Return the error for rows p (n, k, ...) that are not probabilities, with a hint on the most likely cause."""
    total = p.sum(1)
    low, high, min_prob, max_prob = (float(x) for x in (total.min(), total.max(), p.min(), p.max()))
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


def _check_single_probs(p: Tensor) -> None:
    """Raise `InputError` unless single probabilities lie in [0, 1]."""
    low, high = float(p.min()), float(p.max())
    if low >= 0 and high <= 1:
        return
    text = f"Expected probabilities in [0, 1], got {low:.4g} .. {high:.4g}."
    if low >= 0 and 2 < high <= 100:  # percentages that are all below 2 % are unlikely
        raise InputError(f"{text} {PERCENT_HINT}", code="percent")
    raise InputError(f"{text} Try Predictions.from_binary_logits if they are logits.", code="not_probabilities")


def _detect_decimals(p: Tensor, max_error: float) -> int | None:
    """Return the number of decimals, 3 to 6, to which p is rounded if that explains row sums other than 1, else None.

    `max_error` is the largest difference of a row's sum from 1. Rounding of k numbers explains up to k times half a
    unit of the last decimal.
    """
    for digits in range(3, 7):  # the smallest number of decimals that all entries have
        scaled = p * 10**digits
        if bool(((scaled - scaled.round()).abs() < 1e-3).all()):
            # Sums far below 1 are refused: if a row has many classes, rounding could change all its numbers to 0
            explained = max_error <= 0.5 * 10**-digits * p.shape[1] + 1e-9 and bool((p.sum(1) > 0.5).all())
            return digits if explained and math.isfinite(max_error) else None
    return None
