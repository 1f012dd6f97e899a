"""Masks: finite logits such as -1e4 or the lowest float32 that mean an impossible class, as -inf does.

Attention code, absent classes and half precision use them. Taken literally, one mask dominates every mean and scale. A
mask lies at least 5000 nats below the top of its row, at least 50 times as far as the next smaller gap in the data, and
farther than every label: an impossible class never occurs. Logits on a large scale, such as those of a network times
1000, have no such jump between gaps, and outliers of the true class are evidence; neither is a mask.
"""

import math

import torch
from torch import Tensor

from calibrant.predictions import Predictions, row_blocks

MIN_MASK_GAP = 5000.0  # nats below the top of the row
MIN_MASK_RATIO = 50.0  # of the smallest mask gap to the next smaller gap


def replace_masks(p: Predictions) -> Predictions:
    """Return the predictions with -inf in place of every mask."""
    min_gap = mask_gap(p)
    if min_gap == math.inf:
        return p
    blocks = [z.masked_fill(_gaps(z) >= min_gap, -torch.inf) for (z,) in row_blocks(p.logits)]
    return p.with_logits(torch.cat(blocks))


def mask_gap(p: Predictions) -> float:
    """Return the smallest gap of a mask to the top of its row, infinity if there are no masks.

    The smallest gap of a mask is the first that follows a jump of `MIN_MASK_RATIO` and exceeds the gap of every label.
    """
    if not len(p):
        return math.inf
    low, high = p.logits.aminmax()
    if not float(high) - float(low) >= MIN_MASK_GAP:
        return math.inf
    max_ordinary_gap, max_label_gap, candidates = 0.0, 0.0, list[Tensor]()
    for z, y in row_blocks(p.logits, p.labels):
        gap = _gaps(z)
        label_gap = gap.gather(1, y[:, None])
        max_label_gap = max(max_label_gap, float(label_gap.where(label_gap.isfinite(), 0.0).max()))
        max_ordinary_gap = max(max_ordinary_gap, float(gap.where(gap < MIN_MASK_GAP, 0.0).max()))
        candidates.append(gap[gap.isfinite() & (gap >= MIN_MASK_GAP)].unique())
    gaps = torch.cat(candidates).unique()
    next_smaller = torch.cat([gaps.new_tensor([max_ordinary_gap]), gaps])[: len(gaps)]
    follows_jump = (next_smaller > 0) & (gaps >= MIN_MASK_RATIO * next_smaller)
    mask_gaps = gaps[follows_jump & (gaps > max_label_gap)]  # in ascending order
    return float(mask_gaps[0]) if len(mask_gaps) else math.inf


def _gaps(logits: Tensor) -> Tensor:
    """Return how far each logit lies below the top of its row; infinite only for -inf."""
    z = logits.double()
    gap = z.amax(1, keepdim=True) - z
    return torch.where(z.isneginf(), torch.inf, gap.clamp_max(torch.finfo(torch.float64).max))
