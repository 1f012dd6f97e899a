"""Bounds of a blockwise calibration error over missing confidences and over all orders of equal ones.

Answers are sorted by confidence and divided into blocks. "Known" answers have a confidence, "missing" answers lack it,
and "hits" are right answers of both kinds.
"""

import math

import numpy as np

MAX_STEPS = 500_000_000  # additions for bounds over missing confidences, a few seconds


def block_error_bounds(
    confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray, *, with_last_block: bool
) -> tuple[float, float]:
    r"""Return bounds of the HLE error over missing confidences and orders of equal ones.

    A block with the sum s of confidences, q hits and the weight w adds w (s - q)^2 to the squared error. The bounds are
    the extremes over all s and q of the blocks, with s between its values if all missing confidences are 0 or 1, and
    with the hits before each boundary within their own range. Dynamic programming runs over the blocks and the number
    of hits so far. The bounds are exact without missing confidences, otherwise outer ones. They are 0 and 1 if many
    are missing in so many answers that more than `MAX_STEPS` additions were needed.

    Args:
        confidence: Confidences (n,), NaN if missing.
        correct: 0 or 1 (n,).
        ends: Ends of the blocks.
        with_last_block: Whether the last block counts.
    """
    starts = np.append(0, ends[:-1])
    fewest_hits, most_hits = _hits_before(confidence, correct, np.append(0, ends))
    if np.isnan(confidence).any() and (ends - starts) @ (most_hits - fewest_hits)[1:] > MAX_STEPS:
        return 0.0, 1.0
    lowest, highest = (np.add.reduceat(np.sort(np.nan_to_num(confidence, nan=end)), starts) for end in (0.0, 1.0))
    weights = 1 / (ends - starts) / len(confidence)  # n_b / n ((s - q) / n_b)^2
    weights[-1] *= with_last_block
    least, greatest = (
        np.zeros(1),
        np.zeros(1),
    )  # squared errors so far, by the hits so far minus the fewest
    for block, weight in enumerate(weights):
        q = np.arange(ends[block] - starts[block] + 1)  # hits in the block
        gaps = lowest[block] - q, q - highest[block]
        shape, shift = most_hits[block + 1] - fewest_hits[block + 1] + 1, fewest_hits[block] - fewest_hits[block + 1]
        least = _add_block(least, weight * np.maximum(0, np.maximum(*gaps)) ** 2, shape, shift)
        greatest = -_add_block(-greatest, -weight * np.minimum(*gaps) ** 2, shape, shift)
    return math.sqrt(least[0]), math.sqrt(greatest[0])


def _hits_before(confidence: np.ndarray, correct: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the fewest and the most hits among the first answers up to each end, over all arrangements."""
    is_missing = np.isnan(confidence)
    c, a = confidence[~is_missing], correct[~is_missing].astype(int)
    fewest_known, most_known = (np.append(0, a[np.lexsort((tie_order, c))].cumsum()) for tie_order in (a, -a))
    num_missing, right = int(is_missing.sum()), int(correct[is_missing].sum())
    fewest_hits, most_hits = np.empty_like(ends), np.empty_like(ends)
    for i, end in enumerate(ends):
        m = np.arange(max(0, end - len(c)), min(num_missing, end) + 1)  # missing answers among the first
        fewest_hits[i] = (fewest_known[end - m] + np.maximum(0, m - (num_missing - right))).min()
        most_hits[i] = (most_known[end - m] + np.minimum(m, right)).max()
    return fewest_hits, most_hits


def _add_block(cost: np.ndarray, block_cost: np.ndarray, size: int, shift: int) -> np.ndarray:
    """Return the least cost of the blocks before and one more block, by the number of hits in them.

    Args:
        cost: Least cost of the blocks before, by their number of hits.
        block_cost: Cost of the block, by its number q of hits.
        size: Number of possible numbers of hits after the block.
        shift: What index 0 of `cost` counts, minus what index 0 of the result counts.
    """
    total = np.full(size, np.inf)
    for q, added in enumerate(block_cost, shift):
        first, last = max(0, -q), min(len(cost), size - q)
        if first < last:
            part = total[first + q : last + q]  # a view
            np.minimum(part, cost[first:last] + added, out=part)
    return total
