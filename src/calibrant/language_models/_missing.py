"""Bounds of calibration numbers over every treatment of missing confidences.

A missing confidence could be any number in [0, 1]. The bounds are the least and the greatest value over all of them.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.language_models._block_bounds import block_error_bounds
from calibrant.language_models._conventions import BLOCK_SIZE, BROWSECOMP_EDGES, block_ends, browsecomp_bin
from calibrant.language_models._log import Answers, EvaluationLog, check_binary

MIP_SECONDS = 20.0  # time limit of the integer program, which usually takes milliseconds
_LOWER, _UPPER = BROWSECOMP_EDGES[:-1], BROWSECOMP_EDGES[1:]  # ends of each bin


@dataclass(frozen=True)
class Bounds:
    """Bounds of a number over all values of the missing confidences."""

    low: float
    high: float
    is_exact: bool  # otherwise the least and greatest value lie within the bounds

    def __contains__(self, value: float) -> bool:
        return self.low - 1e-12 <= value <= self.high + 1e-12  # apart from rounding


def missing_confidence_bounds(log: EvaluationLog) -> dict[str, Bounds]:
    """Return the bounds of calibration numbers over all values in [0, 1] of the missing confidences.

    "signed_gap" and "brier" use the answered questions, each with the total weight 1 however often it was repeated.
    "browsecomp", "hle" and "hle_all_blocks" are the conventions of these names: they use all graded answers, each with
    the weight 1. Their values depend on the order of equal confidences, so that the bounds cover all orders. The bounds
    of the HLE errors are outer bounds (`is_exact` is False) if confidences are missing.

    Args:
        log: The log of an evaluation.

    Raises:
        InputError: If scores are fractional.
    """
    answers = Answers.from_rows(log.rows)
    graded = answers[answers.is_graded]
    check_binary(graded.correct)
    answered = graded[graded.is_answered]
    weights = answered.question_weights
    return {
        "signed_gap": gap_bounds(answered.confidence, answered.correct, weights),
        "brier": brier_bounds(answered.confidence, answered.correct, weights),
        "browsecomp": browsecomp_bounds(graded.confidence, graded.correct),
        "hle": hle_bounds(graded.confidence, graded.correct),
        "hle_all_blocks": hle_bounds(graded.confidence, graded.correct, with_last_block=True),
    }


def gap_bounds(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None = None) -> Bounds:
    """Return the exact bounds of mean confidence minus accuracy: missing confidences are all 0, or all 1.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: Scores in [0, 1] (n,).
        weights: How often each answer counts (n,).

    >>> gap_bounds(np.array([0.5, np.nan]), np.array([1, 0]))
    Bounds(low=-0.25, high=0.25, is_exact=True)
    """
    w = _normalize(weights, len(confidence))
    filled = [np.nan_to_num(confidence, nan=fill) for fill in (0.0, 1.0)]
    low, high = (float(w @ (c - correct)) for c in filled)
    return Bounds(low, high, is_exact=True)


def brier_bounds(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None = None) -> Bounds:
    """Return the exact bounds of the Brier score, the mean square of confidence minus score.

    A missing confidence adds nothing if it equals the score, and most at the end of [0, 1] that is far from the score.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: Scores in [0, 1] (n,).
        weights: How often each answer counts (n,).

    >>> brier_bounds(np.array([0.5, np.nan]), np.array([1, 0]))
    Bounds(low=0.125, high=0.625, is_exact=True)
    """
    w = _normalize(weights, len(confidence))
    best, worst = correct, np.where(correct < 0.5, 1.0, 0.0)  # of the missing confidences
    filled = [np.where(np.isnan(confidence), fill, confidence) for fill in (best, worst)]
    low, high = (float(w @ (c - correct) ** 2) for c in filled)
    return Bounds(low, high, is_exact=True)


def browsecomp_bounds(confidence: np.ndarray, correct: np.ndarray) -> Bounds:
    r"""Return the exact bounds of `browsecomp_error`, $\sum_b |G_b| / n$ with $G_b = \sum_{i \in b} (c_i - a_i)$.

    $c$ is the confidence of an answer, and $a$ is 1 if it is right and 0 if it is wrong.

    Greatest value: $|G_b|$ is the larger of $G_b$ and $-G_b$, so the maximum is over one sign per bin and the missing
    confidences. For fixed signs, each missing confidence is chosen on its own. A wrong answer adds most at the upper
    end of the highest bin with sign +. A right answer adds most at the lower end of the lowest bin with sign -. Only
    these two bins need to be tried; every other bin has the sign of its sum of stated confidences.

    Least value: if p right and q wrong answers without a confidence are in the bin (l, u], they add to $G_b$ any number
    from (p + q) l - p to (p + q) u - p. The numbers p and q of the ten bins are the integers of a small integer
    program, which is solved to optimality. If that takes longer than `MIP_SECONDS`, its proven lower bound stands in,
    and `is_exact` is False.

    Lower ends of bins are limits: confidences may be as close to them as one likes.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: 0 or 1 (n,).

    >>> bounds = browsecomp_bounds(np.array([0.55, np.nan]), np.array([1, 0]))  # best at .5, worst at 1
    >>> round(bounds.low, 6), round(bounds.high, 6), bounds.is_exact
    (0.025, 0.725, True)
    """
    if len(confidence) == 0:
        return Bounds(math.nan, math.nan, is_exact=True)
    is_missing = np.isnan(confidence)
    stated, outcome = confidence[~is_missing], correct[~is_missing]
    # G_b of the stated confidences; 0, which has the index -1, belongs to the first bin
    gap_sums = np.bincount(browsecomp_bin(stated).clip(0), stated - outcome, len(_LOWER))
    right = int(correct[is_missing].sum())
    wrong = int(is_missing.sum()) - right
    low, is_exact = float(np.abs(gap_sums).sum()), True
    if is_missing.any():
        low, is_exact = _least_binned_sum(gap_sums, right, wrong)
    high = _greatest_binned_sum(gap_sums, right, wrong)
    return Bounds(low / len(confidence), high / len(confidence), is_exact)


def hle_bounds(
    confidence: np.ndarray, correct: np.ndarray, *, size: int = BLOCK_SIZE, with_last_block: bool = False
) -> Bounds:
    r"""Return the bounds of `hle_error` over missing confidences and over all orders of equal ones.

    A missing confidence moves the boundaries of all later blocks. With any, the bounds of `block_error_bounds` are
    outer ones, tightened by two simpler bounds: no squared error is above the Brier score, and, with all blocks, no
    error is below the absolute signed gap.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: 0 or 1 (n,).
        size: Answers per block.
        with_last_block: Whether the last block counts.

    >>> hle_bounds(np.array([0.5, np.nan]), np.array([1, 0]), size=2, with_last_block=True)
    Bounds(low=0.0, high=0.25, is_exact=False)
    """
    ends = block_ends(len(confidence), size)
    if len(ends) == 0:
        return Bounds(math.nan, math.nan, is_exact=True)
    low, high = block_error_bounds(confidence, correct, ends, with_last_block=with_last_block)
    if not np.isnan(confidence).any():
        return Bounds(low, high, is_exact=True)
    if with_last_block:
        gap = gap_bounds(confidence, correct)
        low = max(low, gap.low, -gap.high)
    high = min(high, math.sqrt(brier_bounds(confidence, correct).high))
    return Bounds(low, high, is_exact=False)


def _normalize(weights: np.ndarray | None, n: int) -> np.ndarray:
    """Return weights that sum to 1, equal ones if they are None, or an empty array without answers."""
    w = np.ones(n) if weights is None else weights
    return w / w.sum() if n else w


def _greatest_binned_sum(gap_sums: np.ndarray, right: int, wrong: int) -> float:
    """Return the greatest sum of |G_b| over all bins that the missing confidences may be in, as in `browsecomp_bounds`.

    All wrong answers go to one bin, and all right answers to another. Wrong answers with a confidence of 0, and right
    answers with 1, add nothing to any sum: the last element of each array of gains, 0, stands for this choice.

    Args:
        gap_sums: $G_b$ of the stated confidences, one per bin.
        right: Number of right answers without a confidence.
        wrong: Number of wrong answers without a confidence.
    """
    size = np.abs(gap_sums)
    # If all wrong answers go to the upper end u of a bin with the sign +, |G_b| becomes G_b + wrong * u
    wrong_gain = np.append(gap_sums + wrong * _UPPER - size, 0.0)
    # If all right answers go to the lower end l of a bin with the sign -, |G_b| becomes -G_b + right * (1 - l)
    right_gain = np.append(right * (1 - _LOWER) - gap_sums - size, 0.0)
    gains = wrong_gain[:, None] + right_gain  # (bin of the wrong answers, bin of the right answers)
    np.fill_diagonal(gains[:-1, :-1], -np.inf)  # not the same bin: it would have both signs
    return float(size.sum() + gains.max())


def _least_binned_sum(gap_sums: np.ndarray, right: int, wrong: int) -> tuple[float, bool]:
    """Return the least sum of |G_b|, and True; or a lower bound if the time limit has ended the search, and False.

    The variables of the integer program are p, q and |G| of every bin, as in `browsecomp_bounds`, all of them at least
    0. G ranges from g + (p + q) l - p to g + (p + q) u - p, with g the sum over stated confidences. Therefore |G| is at
    least the lower end, and at least minus the upper end.

    Args:
        gap_sums: g of every bin.
        right: Sum of p over the bins.
        wrong: Sum of q over the bins.
    """
    import scipy.optimize  # slow to import

    optimize: Any = scipy.optimize  # its stubs do not know arrays of bounds
    bins = len(gap_sums)
    # Rows are constraints, columns the variables: p of every bin, q of every bin, |G| of every bin
    total = np.repeat(np.eye(2, 3), bins, axis=1)  # sums of p and of q
    above_lower = np.hstack([np.diag(1 - _LOWER), -np.diag(_LOWER), np.eye(bins)])  # |G| + p - (p + q) l
    above_upper = np.hstack([-np.diag(1 - _UPPER), np.diag(_UPPER), np.eye(bins)])  # |G| - p + (p + q) u
    result = optimize.milp(
        np.repeat([0, 0, 1], bins),  # minimizes the sum of |G|
        integrality=np.repeat([1, 1, 0], bins),
        constraints=[
            optimize.LinearConstraint(total, [right, wrong], [right, wrong]),
            optimize.LinearConstraint(above_lower, gap_sums, np.inf),
            optimize.LinearConstraint(above_upper, -gap_sums, np.inf),
        ],
        options={"time_limit": MIP_SECONDS, "mip_rel_gap": 0.0},
    )
    proven_bound = max(0.0, float(result.mip_dual_bound or 0.0))
    if result.x is None:  # no solution within the time limit
        return proven_bound, False
    p, q = result.x[: 2 * bins].round().reshape(2, bins)
    lowest, highest = gap_sums + (p + q) * _LOWER - p, gap_sums + (p + q) * _UPPER - p  # range of G
    least_sum = float(np.maximum(0, np.maximum(lowest, -highest)).sum())  # of these whole numbers p and q
    is_optimal = least_sum - proven_bound <= 1e-6  # the tolerance of the solver
    return (least_sum if is_optimal else proven_bound), is_optimal
