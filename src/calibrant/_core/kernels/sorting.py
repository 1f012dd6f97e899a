"""Sort scores together with their outcomes, and group equal scores."""

import numpy as np
import torch
from torch import Tensor

TIE_TOLERANCE = 2.0**-48  # relative difference up to which two confidences are equal


def is_packable(score: Tensor, outcome: Tensor) -> bool:
    """Return whether every score can be sorted together with its outcome as one 64-bit integer, by `_pack_scores`."""
    is_cpu_float64 = score.device.type == "cpu" and score.dtype == torch.float64
    return is_cpu_float64 and bool(((outcome == 0) | (outcome == 1)).all())


def _pack_scores(value: Tensor, outcome: Tensor) -> np.ndarray:
    """Pack the absolute value of every score and an outcome, 0 or 1, into one integer that sorts by the score.

    The bits of positive float64 numbers, read as integers, have the order of the numbers, and the sign bit is free for
    the outcome. Sorting integers takes a tenth of the time of sorting an index and gathering by it.
    """
    keys = value.contiguous().numpy().view(np.uint64) << np.uint64(1)  # shifts out the sign, and the lowest bit is free
    return np.bitwise_or(keys, outcome.numpy(), out=keys, dtype=np.uint64, casting="unsafe")


def _unpack_scores(keys: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return the scores and outcomes of packed integers, whose memory is reused."""
    outcome = np.empty(keys.shape)
    np.bitwise_and(keys, np.uint64(1), out=outcome, casting="unsafe")
    keys >>= np.uint64(1)
    return torch.from_numpy(keys.view(np.float64)), torch.from_numpy(outcome)


def sort_scores(score: Tensor, outcome: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted float64 scores, and the outcomes, 0 or 1, in the same order."""
    # packed absolute values: negative scores are sorted apart and then reversed
    keys, is_negative = _pack_scores(score, outcome), (score < 0).numpy()
    negative, positive = (keys[is_negative], keys[~is_negative]) if is_negative.any() else (keys[:0], keys)
    negative.sort()
    positive.sort()
    value, outcome = _unpack_scores(np.concatenate([negative[::-1], positive]) if len(negative) else positive)
    value[: len(negative)].neg_()
    return value, outcome


def group_ties(value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Group equal values of a sorted tensor.

    Values are equal if they differ by at most `TIE_TOLERANCE`, relative to the smaller one, from their neighbor.

    Returns:
        The distinct values, (g); the index of each value among them, (n); and the count of each distinct value in
        float64, (g).
    """
    low, high = value[:-1], value[1:]  # each value and the next
    # The smaller absolute value: if no value is negative, this is the lower one. It is finite, as -inf is not inf
    has_negative = bool((value[:1] < 0).any())
    smaller = torch.minimum(low.abs(), high.abs()).clamp_max(torch.finfo(value.dtype).max) if has_negative else low
    starts_group = torch.ones_like(value, dtype=torch.bool)
    starts_group[1:] = high - low > TIE_TOLERANCE * smaller  # the larger one may be infinite
    if bool(starts_group.all()):
        return value, torch.arange(len(value), device=value.device), value.new_ones(1).expand_as(value)
    index = starts_group.cumsum(0) - 1
    return value[starts_group], index, torch.bincount(index).double()


def distinct_values(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values, up to rounding, in increasing order, and the index of each value among them."""
    ordered, order = value.sort()
    levels, index, _ = group_ties(ordered)
    return levels, torch.empty_like(order).scatter_(0, order, index)
