"""Masks: finite logits such as -1e4 or the lowest float32 that mean an impossible class, as -inf does.

Attention code, absent classes and half precision use them. Taken literally, one mask dominates every mean and scale.
The depth of a logit is how far it lies below the top of its row. A mask is at least 5000 nats deep, at least 50 times
as deep as the next less deep logit in the data, and deeper than every label: an impossible class never occurs. Logits
on a large scale, such as those of a network times 1000, have no such jump between depths, and outliers of the true
class are evidence; neither is a mask.
"""

import math

import numpy as np

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.types import Array
from calibrant.predictions import Predictions, row_blocks

MIN_MASK_DEPTH = 5000.0  # nats below the top of the row
MIN_MASK_RATIO = 50.0  # of the smallest depth of a mask to the next smaller depth


def replace_masks(p: Predictions) -> Predictions:
    """Return the predictions with -inf in place of every mask, a finite logit such as -1e4 that means impossible."""
    min_depth = mask_depth(p)
    if min_depth == math.inf:
        return p
    xp = namespace(p.logits)
    blocks = [xp.where(_depths(z) >= min_depth, -xp.inf, z) for (z,) in row_blocks(p.logits)]
    return p.with_logits(xp.concat(blocks))


def mask_depth(p: Predictions) -> float:
    """Return the smallest depth of a mask in nats, infinity if there are no masks.

    Among the sorted depths from `MIN_MASK_DEPTH` on, it is the first that is at least `MIN_MASK_RATIO` times its
    predecessor and exceeds the depth of every label.
    """
    if not len(p):
        return math.inf
    xp = namespace(p.logits)
    if (
        not float(xp.max(p.logits)) - float(xp.min(p.logits)) >= MIN_MASK_DEPTH
    ):  # true for NaN too, the difference of infinities
        return math.inf
    max_ordinary_depth, max_label_depth, candidates = 0.0, 0.0, list[np.ndarray]()
    for z, y in row_blocks(p.logits, p.labels):
        depth = _depths(z)
        label_depth = xp.take_along_axis(depth, like(y, z)[:, None], axis=1)
        max_label_depth = max(max_label_depth, float(xp.max(xp.where(label_depth < xp.inf, label_depth, 0.0))))
        max_ordinary_depth = max(max_ordinary_depth, float(xp.max(xp.where(depth < MIN_MASK_DEPTH, depth, 0.0))))
        candidates.append(to_numpy(xp.unique_values(depth[(depth < xp.inf) & (depth >= MIN_MASK_DEPTH)])))
    depths = np.unique(np.concatenate(candidates))  # in ascending order
    # 0 stands before the first depth if all other logits are tops of their rows, which gives no scale to compare with
    next_smaller = np.concatenate([[max_ordinary_depth], depths])[: len(depths)]
    follows_jump = (next_smaller > 0) & (depths >= MIN_MASK_RATIO * next_smaller)
    mask_depths = depths[follows_jump & (depths > max_label_depth)]
    return float(mask_depths[0]) if len(mask_depths) else math.inf


def _depths(logits: Array) -> Array:
    """Return how far each logit lies below the top of its row. Only -inf has an infinite distance."""
    xp = namespace(logits)
    z = xp.astype(logits, xp.float64)
    with np.errstate(over="ignore"):  # for masks such as the lowest float64
        depth = xp.max(z, axis=1, keepdims=True) - z
    return xp.where(z == -xp.inf, xp.inf, xp.clip(depth, max=xp.finfo(xp.float64).max))
