"""Bounds of calibration numbers over every treatment of missing confidences.

A missing confidence could be any number in [0, 1]. The bounds are the least and the greatest value over all of them.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.language_models._answers import Answers, check_binary
from calibrant.language_models._block_bounds import block_error_bounds
from calibrant.language_models._conventions import (
    BLOCK_SIZE,
    NUM_BROWSECOMP_BINS,
    block_ends,
    browsecomp_bin,
)
from calibrant.language_models._log import EvaluationLog

MIP_SECONDS = 20.0  # time limit of the integer program, which usually takes milliseconds


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
    the weight 1. Their values depend on the order of equal confidences, so that the bounds cover all orders. If a large
    log has many missing or equal confidences, the bounds of the HLE errors may be too wide (`is_exact` is False).

    Args:
        log: The log of an evaluation.

    Raises:
        InputError: If scores are fractional.
    """
    graded = Answers.from_rows(log.rows)
    graded = graded[graded.is_graded]
    check_binary(graded.correct)
    answered = graded[graded.is_answered]
    weighted_answers = answered.confidence, answered.correct, answered.question_weights
    all_graded = graded.confidence, graded.correct
    return {
        "signed_gap": gap_bounds(*weighted_answers),
        "brier": brier_bounds(*weighted_answers),
        "browsecomp": browsecomp_bounds(*all_graded),
        "hle": hle_bounds(*all_graded),
        "hle_all_blocks": hle_bounds(*all_graded, with_last_block=True),
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
    low, high = (float(w @ (np.nan_to_num(confidence, nan=fill) - correct)) for fill in (0.0, 1.0))
    return Bounds(low, high, is_exact=True)


def brier_bounds(confidence: np.ndarray, correct: np.ndarray, weights: np.ndarray | None = None) -> Bounds:
    """Return the exact bounds of the Brier score, which is a sum over answers.

    A missing confidence adds nothing if it equals the score, and most if it is the end of [0, 1] far from it.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: Scores in [0, 1] (n,).
        weights: How often each answer counts (n,).

    >>> brier_bounds(np.array([0.5, np.nan]), np.array([1, 0]))
    Bounds(low=0.125, high=0.625, is_exact=True)
    """
    w = _normalize(weights, len(confidence))
    nearest, farthest = correct, (correct < 0.5).astype(float)
    filled = [np.where(np.isnan(confidence), fill, confidence) for fill in (nearest, farthest)]
    low, high = (float(w @ (c - correct) ** 2) for c in filled)
    return Bounds(low, high, is_exact=True)


def browsecomp_bounds(confidence: np.ndarray, correct: np.ndarray) -> Bounds:
    r"""Return the exact bounds of `browsecomp_error`, $\sum_b |G_b| / n$ with $G_b$ the sum of c - a over a bin.

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
    gap_sums = np.bincount(browsecomp_bin(stated).clip(0), stated - outcome, NUM_BROWSECOMP_BINS)
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

    A missing confidence moves the boundaries of all later blocks. `block_error_bounds` searches through the
    arrangements of answers in blocks. If the log is too large for an exact search, the bounds are outer ones, tightened
    by simpler numbers: no squared error is above the mean square of c - a over all answers, and, with all blocks, no
    error is below the signed gap.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: 0 or 1 (n,).
        size: Answers per block.
        with_last_block: Whether the last block counts.

    >>> hle_bounds(np.array([0.5, np.nan]), np.array([1, 0]), size=2, with_last_block=True)
    Bounds(low=0.0, high=0.25, is_exact=True)
    """
    ends = block_ends(len(confidence), size)
    if len(ends) == 0:
        return Bounds(math.nan, math.nan, is_exact=True)
    low, high, is_exact = block_error_bounds(confidence, correct, ends, with_last_block=with_last_block)
    if is_exact:
        return Bounds(low, high, is_exact)
    if with_last_block:
        gap = gap_bounds(confidence, correct)
        low = max(low, gap.low, -gap.high)
    return Bounds(low, min(high, math.sqrt(brier_bounds(confidence, correct).high)), is_exact)


def _normalize(weights: np.ndarray | None, n: int) -> np.ndarray:
    """Return weights that sum to 1 (equal ones by default), or no weights without answers."""
    w = np.ones(n) if weights is None else weights
    return w / w.sum() if n else w


def _bin_ends() -> tuple[np.ndarray, np.ndarray]:
    """Return the lower and the upper ends of the bins."""
    edges = np.linspace(0.0, 1.0, NUM_BROWSECOMP_BINS + 1)
    return edges[:-1], edges[1:]


def _greatest_binned_sum(gap_sums: np.ndarray, right: int, wrong: int) -> float:
    """Return the greatest sum of |G_b|, over the bins that the wrong and the right answers without confidence go to.

    Wrong answers at 0 and right ones at 1 add nothing to a sum, so that they may also go to no bin.
    """
    lower, upper = _bin_ends()
    bins = len(gap_sums)
    # Gain if all wrong answers go to the upper end of a bin with sign +, or to none
    wrong_gain = np.append(gap_sums + wrong * upper - np.abs(gap_sums), 0.0)
    # Gain if all right answers go to the lower end of a bin with sign -, or to none
    right_gain = np.append(right * (1 - lower) - gap_sums - np.abs(gap_sums), 0.0)
    gains = wrong_gain[:, None] + right_gain
    gains[range(bins), range(bins)] = -np.inf  # a bin has one sign
    return float(np.abs(gap_sums).sum() + gains.max())


def _least_binned_sum(gap_sums: np.ndarray, right: int, wrong: int) -> tuple[float, bool]:
    """Return the least sum of |G_b|, or a lower bound, and whether the value is proven to be the least sum.

    The variables of the integer program are p, q and |G| of every bin, as in `browsecomp_bounds`, all of them at least
    0. G ranges from g + (p + q) l - p to g + (p + q) u - p, with g the sum over stated confidences. Therefore |G| is at
    least the lower end, and at least minus the upper end.
    """
    import scipy.optimize  # slow to import

    optimize: Any = scipy.optimize  # its stubs do not know arrays of bounds
    lower, upper = _bin_ends()
    bins = len(gap_sums)
    total = np.zeros((2, 3 * bins))
    total[0, :bins] = total[1, bins : 2 * bins] = 1  # sums of p and of q
    above_lower = np.hstack([np.diag(1 - lower), -np.diag(lower), np.eye(bins)])  # |G| + p - (p + q) l
    above_upper = np.hstack([-np.diag(1 - upper), np.diag(upper), np.eye(bins)])  # |G| - p + (p + q) u
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
    lowest, highest = gap_sums + (p + q) * lower - p, gap_sums + (p + q) * upper - p  # range of G
    least_sum = float(np.maximum(0, np.maximum(lowest, -highest)).sum())  # of these whole numbers p and q
    return (least_sum, True) if least_sum - proven_bound <= 1e-6 else (proven_bound, False)
