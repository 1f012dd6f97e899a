"""Outer bounds of a blockwise calibration error whose missing confidences may be anywhere in the order."""

import math

import numpy as np


def block_error_bounds(
    confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray, *, with_last_block: bool
) -> tuple[float, float]:
    r"""Return numbers that no HLE error is below or above, for any missing confidences and order of equal ones.

    Let r missing answers lie in the blocks up to one. Then the known answers of these blocks are the first `end` - r
    in the order of confidences, and a block with m further missing answers holds a run of known ones. The sum of c - a
    over the block is that of the run, whose correct answers have a range over the orders of ties at its ends, and of m
    missing answers, whose confidences lie between the neighbors of the run and of which at most all right ones are
    right. Dynamic programming over the blocks, with state r, gives the least and greatest sum of squares. It relaxes
    two conditions: missing answers of neighboring blocks are not kept in order, and the right ones of all blocks need
    not sum to their number. Every possible log is among the relaxed ones, therefore the bounds hold.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: 0 or 1 (n,).
        ends: Ends of the blocks.
        with_last_block: Whether the last block counts.
    """
    is_missing = np.isnan(confidence)
    known_answers = _KnownAnswers(confidence[~is_missing], correct[~is_missing])
    missing = int(is_missing.sum())
    right = int(correct[is_missing].sum())
    low = np.where(np.arange(missing + 1) == 0, 0.0, np.inf)  # by number of missing answers so far
    high = np.where(np.arange(missing + 1) == 0, 0.0, -np.inf)
    start = 0
    for end in ends.tolist():
        weight = 0.0 if end == len(confidence) and not with_last_block else 1 / (end - start) / len(confidence)
        next_low, next_high = np.full(missing + 1, np.inf), np.full(missing + 1, -np.inf)
        for m in range(min(end - start, missing) + 1):
            before = np.arange(max(0, start - known_answers.n), min(start, missing - m) + 1)
            after = before + m
            possible = end - after <= known_answers.n
            before, after = before[possible], after[possible]
            least, greatest = known_answers.gap_range(start - before, end - after, m, right, missing - right)
            square = np.maximum(0, np.maximum(least, -greatest)) ** 2
            next_low[after] = np.minimum(next_low[after], low[before] + weight * square)
            square = np.maximum(np.abs(least), np.abs(greatest)) ** 2
            next_high[after] = np.maximum(next_high[after], high[before] + weight * square)
        low, high, start = next_low, next_high, end
    return math.sqrt(low[missing]), math.sqrt(high[missing])


class _KnownAnswers:
    """Known answers in order of confidence, with their ties."""

    def __init__(self, confidence: np.ndarray, correct: np.ndarray) -> None:
        values, place, self.size = np.unique(confidence, return_inverse=True, return_counts=True)
        self.n = len(confidence)
        self.hits = np.bincount(place, correct, len(values))
        self.tie_end = self.size.cumsum()
        self.tie = np.append(np.repeat(np.arange(len(values)), self.size), len(values))
        in_order = np.repeat(values, self.size)
        self.sum = np.concatenate([[0.0], in_order.cumsum()])
        self.hits_before_tie = np.concatenate([[0.0], self.hits.cumsum()])
        self.edge = np.concatenate([[0.0], in_order, [1.0]])  # confidences, between 0 and 1

    def gap_range(
        self, first: np.ndarray, last: np.ndarray, m: int, right: int, wrong: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the range of the sum of c - a over known answers [first, last) and m missing ones."""
        total = self.sum[last] - self.sum[first]
        fewest_hits, most_hits = self._hits_range(first, last)
        least = total + m * self.edge[first] - most_hits - min(m, right)
        greatest = total + m * self.edge[last + 1] - fewest_hits - max(0, m - wrong)
        return least, greatest

    def _hits_range(self, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the range of the number of correct answers among [first, last), over the orders of ties."""
        if self.n == 0:
            return np.zeros(len(first)), np.zeros(len(first))
        left, right = self.tie[np.minimum(first, self.n - 1)], self.tie[np.maximum(last - 1, 0)]
        is_one_tie = left >= right
        left_slots = np.where(is_one_tie, last - first, self.tie_end[left] - first)
        right_slots = np.where(is_one_tie, 0, last - (self.tie_end[right] - self.size[right]))
        inner = np.where(is_one_tie, 0, self.hits_before_tie[right] - self.hits_before_tie[left + 1])
        fewest_hits, most_hits = inner.copy(), inner.copy()
        for tie, slots in ((left, left_slots), (right, right_slots)):
            fewest_hits += np.maximum(0, self.hits[tie] - (self.size[tie] - slots))
            most_hits += np.minimum(self.hits[tie], slots)
        return fewest_hits, most_hits
