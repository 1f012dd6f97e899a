"""Tell probabilities from logits: an evident mistake is refused, and the message names its likely cause."""

import math

import torch
from torch import Tensor

from calibrant.types import InputError

MIN_EVIDENT_ROWS = 2  # rows with a share in them from which sums of 1 are no accident
MIN_EVIDENT_SCORES = 3  # scores strictly between 0 and 1 from which single scores in [0, 1] are no accident
MAX_SUM_ERROR = 1e-3  # distance of the sum of a row from 1 up to which it is taken for 1
MAX_ROUNDED_SUM_ERROR = 0.03 + 1e-6  # the same where probabilities are rounded to few decimals
MAX_ROUNDED_CLASSES = 50  # classes


class SingleScoreEvidence:
    """Evidence, batch by batch, that scores of which there is one per label are probabilities and not logits.

    It is evident if all of them lie in [0, 1] and at least three lie strictly between.
    """

    def __init__(self) -> None:
        self.num_inside, self.any_outside = 0, False

    def add(self, scores: Tensor) -> "SingleScoreEvidence":
        """Add the scores of a batch."""
        self.any_outside = self.any_outside or not bool(((scores >= 0) & (scores <= 1)).all())
        self.num_inside += 0 if self.any_outside else int(((scores > 0) & (scores < 1)).sum())
        return self

    def add_pairs(self, logits: Tensor) -> "SingleScoreEvidence":
        """Add scores that entered as pairs of logits (n, 2), whose difference they are."""
        return self.add(logits.diff(dim=1))

    def check(self, alternative: str = "Predictions.from_probs", *, min_scores: int = MIN_EVIDENT_SCORES) -> None:
        """Raise `InputError` if it is evident, from at least so many scores."""
        if not self.any_outside and self.num_inside >= min_scores:
            raise InputError(
                "expected one logit per label, got scores that all lie in [0, 1], as probabilities do. Try "
                f"{alternative}, or logits=True (for files are_logits=True, --are-logits) if they are logits all the "
                "same.",
                code="probs_as_logits",
            )


class RowScoreEvidence:
    """Evidence, batch by batch, that rows with one score per class hold probabilities and not logits.

    It is evident if no score is negative, all rows have a sum that says so, 1 or 100, or 1 but for two decimals, and at
    least two of them are not one-hot.
    """

    def __init__(self) -> None:
        self.possible_kinds, self.num_rows, self.num_mixed_rows = frozenset(SUM_MESSAGES), 0, 0

    def add(self, logits: Tensor) -> "RowScoreEvidence":
        """Add the rows of a batch, (n, k); the first few settle it where they are logits."""
        for rows in (logits[:32], logits):
            self.possible_kinds &= _possible_kinds(rows)
            if not self.possible_kinds:
                return self
        self.num_rows += len(logits)
        self.num_mixed_rows += int((logits != 0).sum(1).gt(1).sum())
        return self

    def check(self) -> None:
        """Raise `InputError` if it is evident."""
        if self.possible_kinds and self.num_mixed_rows >= MIN_EVIDENT_ROWS:
            kind = next(kind for kind in SUM_MESSAGES if kind in self.possible_kinds)
            raise InputError(
                f"logits look like probabilities: all {self.num_rows} rows are non-negative and {SUM_MESSAGES[kind]}",
                code=f"{kind}_as_logits",
            )


SUM_MESSAGES = {  # kinds of probabilities, the evident ones first
    "probs": "sum to 1. Try Predictions.from_probs, or the key 'probs' in a file.",
    "percentages": "sum to 100. Try dividing by 100 and Predictions.from_probs.",
    "rounded_probs": "sum to 1 but for two decimals. Try Predictions.from_probs(..., normalize=True).",
}


def _possible_kinds(rows: Tensor) -> frozenset[str]:
    """Which kinds of probabilities all of some rows may be."""
    if not bool((rows >= 0).all()):
        return frozenset()
    rows = rows.double()
    max_error = float((rows.sum(1) - 1).abs().amax()) if len(rows) else 0.0
    max_percent_error = float((rows.sum(1) - 100).abs().amax()) / 100 if len(rows) else 0.0
    holds = {"probs": max_error < MAX_SUM_ERROR, "percentages": max_percent_error < MAX_SUM_ERROR}
    holds["rounded_probs"] = max_error < MAX_ROUNDED_SUM_ERROR and _is_in_hundredths(rows)
    return frozenset(kind for kind in SUM_MESSAGES if holds[kind])


def _is_in_hundredths(rows: Tensor) -> bool:
    return bool(((100 * rows - (100 * rows).round()).abs() < 1e-4).all()) and rows.shape[1] <= MAX_ROUNDED_CLASSES


def divide_by_row_sums(p: Tensor) -> Tensor:
    """Divide rows of rounded probabilities by their sums, which must lie in .97 .. 1.03.

    Raises `InputError` otherwise.
    """
    total = p.sum(1, keepdim=True)
    if bool((p < 0).any()) or float((total - 1).abs().max()) > MAX_ROUNDED_SUM_ERROR:
        raise row_sum_error(p)
    return p / total


def row_sum_error(p: Tensor) -> InputError:
    """Return the refusal of rows that are no probabilities, with the most likely cause first."""
    total = p.sum(1)
    low, high, min_prob, max_prob = (float(x) for x in (total.min(), total.max(), p.min(), p.max()))
    text = (
        f"rows of probs must be non-negative and sum to 1, got minimum {min_prob:.4g} and sums {low:.4g} .. {high:.4g}"
    )
    if min_prob >= 0 and max_prob > 1 and low >= 97 and high <= 103:
        why = "are they percentages? Try percent=True (on the command line, --percent) for files, p / 100 for arrays"
        return InputError(f"{text}; {why}", code="percent")
    if min_prob < 0 or max_prob > 1:
        return InputError(f"{text}; if these are logits, give them as logits", code="not_probabilities")
    if low >= 1 - MAX_ROUNDED_SUM_ERROR and high <= 1 + MAX_ROUNDED_SUM_ERROR:
        why = "if they are rounded, try normalize=True (on the command line, --normalize)"
        return InputError(f"{text}; {why}", code="rounded_sums")
    if high <= 1 + MAX_SUM_ERROR:
        return InputError(f"{text}; is the column of a class missing?", code="class_missing")
    why = "if each column is a yes or no of its own, try Predictions.multilabel(..., probs=True)"
    return InputError(f"{text}; {why}", code="not_probabilities")


def check_single_probs(p: Tensor) -> None:
    """Raise `InputError` unless single probabilities lie in [0, 1]; the message names the likely cause."""
    low, high = float(p.min()), float(p.max())
    if low >= 0 and high <= 1:
        return
    text = f"probabilities must lie in [0, 1], got {low:.4g} .. {high:.4g}"
    if low >= 0 and 2 < high <= 100:
        why = "are they percentages? Try percent=True (on the command line, --percent) for files, p / 100 for arrays"
        raise InputError(f"{text}; {why}", code="percent")
    why = "if these are logits, give them as logits, arrays by Predictions.from_binary_logits"
    raise InputError(f"{text}; {why}", code="not_probabilities")


def log_prob_pairs(p: Tensor) -> Tensor:
    """Return the log probabilities of both classes, along axis 1, for the probability p of the second one."""
    p = p.squeeze(1) if p.ndim > 1 else p
    return torch.stack([1 - p, p], 1).log()


def detect_decimals(p: Tensor, max_error: float) -> int | None:
    """Return to how many decimals, at least 3, probabilities are rounded, where that explains sums that are not 1."""
    for digits in range(3, 7):
        scaled = p * 10**digits
        if bool(((scaled - scaled.round()).abs() < 1e-3).all()):
            explained = max_error <= 0.5 * 10**-digits * p.shape[1] + 1e-9 and bool((p.sum(1) > 0.5).all())
            return digits if explained and math.isfinite(max_error) else None
    return None
