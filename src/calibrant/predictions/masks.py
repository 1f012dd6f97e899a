"""Masks: finite logits such as -1e4 or the lowest float32 that mean an impossible class, as -inf does.

Attention code, absent classes and half precision use them. Taken literally, one mask dominates every mean and scale.
The depth of a logit is how far it lies below the top of its row. A mask is at least 5000 nats deep, at least 50 times
as deep as the next less deep logit in the data, and deeper than every label: an impossible class never occurs. Logits
on a large scale, such as those of a network times 1000, have no such jump between depths, and outliers of the true
class are evidence; neither is a mask.
"""

import math

import torch
from torch import Tensor

from calibrant.predictions import Predictions, row_blocks

MIN_MASK_DEPTH = 5000.0  # nats below the top of the row
MIN_MASK_RATIO = 50.0  # of the smallest depth of a mask to the next smaller depth


def replace_masks(p: Predictions) -> Predictions:
    """Return the predictions with -inf in place of every mask, a finite logit such as -1e4 that means impossible."""
    min_depth = mask_depth(p)
    if min_depth == math.inf:
        return p
    blocks = [z.masked_fill(_depths(z) >= min_depth, -torch.inf) for (z,) in row_blocks(p.logits)]
    return p.with_logits(torch.cat(blocks))


def mask_depth(p: Predictions) -> float:
    """Return the smallest depth of a mask in nats, infinity if there are no masks.

    Among the sorted depths from `MIN_MASK_DEPTH` on, it is the first that is at least `MIN_MASK_RATIO` times its
    predecessor and exceeds the depth of every label.
    """
    if not len(p):
        return math.inf
    low, high = p.logits.aminmax()
    if not float(high) - float(low) >= MIN_MASK_DEPTH:  # true for NaN too, the difference of infinities
        return math.inf
    max_ordinary_depth, max_label_depth, candidates = 0.0, 0.0, list[Tensor]()
    for z, y in row_blocks(p.logits, p.labels):
        depth = _depths(z)
        label_depth = depth.gather(1, y[:, None])
        max_label_depth = max(max_label_depth, float(label_depth.where(label_depth.isfinite(), 0.0).max()))
        max_ordinary_depth = max(max_ordinary_depth, float(depth.where(depth < MIN_MASK_DEPTH, 0.0).max()))
        candidates.append(depth[depth.isfinite() & (depth >= MIN_MASK_DEPTH)].unique())
    depths = torch.cat(candidates).unique()  # in ascending order
    # 0 stands before the first depth if all other logits are tops of their rows, which gives no scale to compare with
    next_smaller = torch.cat([depths.new_tensor([max_ordinary_depth]), depths])[: len(depths)]
    follows_jump = (next_smaller > 0) & (depths >= MIN_MASK_RATIO * next_smaller)
    mask_depths = depths[follows_jump & (depths > max_label_depth)]
    return float(mask_depths[0]) if len(mask_depths) else math.inf


def _depths(logits: Tensor) -> Tensor:
    """Return how far each logit lies below the top of its row. Only -inf has an infinite distance."""
    z = logits.double()
    depth = z.amax(1, keepdim=True) - z  # which overflows for masks such as the lowest float64
    return torch.where(z.isneginf(), torch.inf, depth.clamp_max(torch.finfo(torch.float64).max))
