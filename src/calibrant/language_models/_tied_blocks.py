"""The range of a blockwise calibration error over all orders of answers with equal confidences."""

import math
from collections.abc import Iterator

import numpy as np


def range_over_tie_orders(
    confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray, *, with_last_block: bool
) -> tuple[float, float]:
    r"""Return the least and the greatest HLE error over all orders of answers with equal confidences.

    An order decides only how many of the correct answers of a tie fall into each block; any numbers can be reached that
    fit into the slots of the tie in the block and sum to its correct answers. The error is a sum over blocks, and two
    blocks share at most one tie, the one that their boundary cuts. The exact extremes follow by dynamic programming
    over the blocks, whose state is the number of correct answers of that tie that were used so far.

    Args:
        confidence: Confidences (n,).
        correct: 0 or 1 (n,).
        ends: Ends of the blocks.
        with_last_block: Whether the last block counts.
    """
    if len(ends) == 0:
        return math.nan, math.nan
    squares = (_extreme(confidence, correct, ends, with_last_block, sign) for sign in (1, -1))
    low, high = (math.sqrt(max(0.0, square)) for square in squares)
    return low, high


def _extreme(confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray, with_last_block: bool, sign: int) -> float:
    """Return the minimum (sign 1) or maximum (-1) of the squared error."""
    best = np.zeros(1)  # signed cost by number of correct answers used of the tie that the last boundary cuts
    for block in _blocks(confidence, correct, ends):
        is_left_out = block.end == len(confidence) and not with_last_block
        weight = 0.0 if is_left_out else sign / len(confidence) / block.slots
        best = block.advance(best, weight)
    return sign * float(best.min())


class _Block:
    """A block of sorted answers: the tie that enters it, ties inside, and the tie that leaves it."""

    def __init__(self, start: int, end: int, confidence_sum: float, ties: list[tuple[int, int, int]]) -> None:
        """Set up from ties that overlap the block: their first row, end and number of correct answers."""
        self.end, self.slots, self.confidence_sum = end, end - start, confidence_sum
        self.entering = ties[0] if ties[0][0] < start else None
        self.leaving = ties[-1] if ties[-1][1] > end else None
        self.is_inside_one_tie = self.entering is not None and self.entering is self.leaving
        self.entering_slots = 0 if self.entering is None else self.entering[1] - start
        self.leaving_slots = 0 if self.leaving is None else end - self.leaving[0]
        cut = (self.entering, self.leaving)
        self.inner_hits = sum(tie[2] for tie in ties if tie not in cut)

    def advance(self, best: np.ndarray, weight: float) -> np.ndarray:
        """Return the least signed cost after this block, given that before it."""
        if self.is_inside_one_tie:
            extended = np.full(len(best) + self.slots, np.inf)
            for hits in range(self.slots + 1):
                part = extended[hits : hits + len(best)]
                np.minimum(part, best + weight * (self.confidence_sum - hits) ** 2, out=part)
            return extended
        rest = np.zeros(1, dtype=np.int64)
        if self.entering is not None:  # its remaining correct answers must fit here
            rest = self.entering[2] - np.arange(len(best))
            fits = (rest >= 0) & (rest <= self.entering_slots)
            rest, best = rest[fits], best[fits]
        most_hits = 0 if self.leaving is None else min(self.leaving_slots, self.leaving[2])
        hits = rest[:, None] + self.inner_hits + np.arange(most_hits + 1)
        return (best[:, None] + weight * (self.confidence_sum - hits) ** 2).min(axis=0)


def _blocks(confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray) -> Iterator[_Block]:
    values, place, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    hits = np.bincount(place, correct, len(values)).round().astype(int)
    tie_ends = sizes.cumsum()
    ties = list(zip((tie_ends - sizes).tolist(), tie_ends.tolist(), hits.tolist(), strict=True))
    sums = np.concatenate([[0.0], np.repeat(values, sizes).cumsum()])
    start = 0
    for end in ends.tolist():
        first, last = np.searchsorted(tie_ends, [start + 1, end])
        yield _Block(start, end, float(sums[end] - sums[start]), ties[first : last + 1])
        start = end
