"""Nonconformity scores of all classes: small for classes that fit the example."""

from typing import Literal

import numpy as np

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.overlap import hash_rows
from calibrant._core.kernels.softmax import probabilities
from calibrant._core.types import Array
from calibrant.predictions import Predictions

SetScore = Literal["lac", "aps", "raps", "saps"]
RANK_PENALTY = 0.1  # of RAPS and SAPS, per rank
_BLOCK_ELEMENTS = 1 << 22
_GOLDEN_STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio; odd, so that no two seeds give the same multiple


def class_scores(logits: Array, score: SetScore, penalty: float, seed: int) -> Array:
    """Return the nonconformity score of every class (n, k) in float64.

    - "lac": $1 - p_j$ (Sadinle et al. 2019).
    - "aps": the probability of all likelier classes, and $u p_j$ of the class itself (Romano et al. 2020).
    - "raps": the score of "aps" plus the penalty times the rank of the class, counted from 1 (Angelopoulos et al.
      2021).
    - "saps": $u p_{max}$ for the likeliest class, and for rank r $p_{max} + (r - 2 + u)$ times the penalty (Huang et
      al. 2024).

    Each row has a uniform u that depends on its logits and the seed alone. Equal probabilities have the order of the
    columns.
    """
    size = max(1, _BLOCK_ELEMENTS // logits.shape[1])
    blocks = (logits[first : first + size] for first in range(0, max(len(logits), 1), size))
    return namespace(logits).concat([_block_scores(block, score, penalty, seed) for block in blocks])


def label_scores(p: Predictions, score: SetScore, penalty: float, seed: int) -> np.ndarray:
    """Return the nonconformity score of each label (n)."""
    scores = class_scores(p.logits, score, penalty, seed)
    return to_numpy(namespace(scores).take_along_axis(scores, like(p.labels, scores)[:, None], axis=1))[:, 0]


def _block_scores(logits: Array, score: SetScore, penalty: float, seed: int) -> Array:
    """Return the scores of `class_scores` for a block of rows (n, k). All but "lac" depend on the ranks of classes."""
    xp, p = namespace(logits), probabilities(logits)
    if score == "lac":
        return 1 - p
    order = xp.argsort(p, axis=1, descending=True, stable=True)
    in_order = xp.take_along_axis(p, order, axis=1)
    u = row_uniforms(logits, seed)[:, None]
    ranks = xp.arange(p.shape[1], dtype=xp.float64, device=p.device)  # from 0
    if score == "saps":
        by_rank = xp.where(ranks == 0, u * in_order, in_order[:, :1] + penalty * (ranks - 1 + u))
    else:
        by_rank = (
            xp.cumulative_sum(in_order, axis=1) - (1 - u) * in_order
        )  # u p of the class itself, which the sum holds once
        if score == "raps":
            by_rank += penalty * (ranks + 1)
    # from the order of ranks to the order of classes: the sort of a permutation inverts it
    return xp.take_along_axis(by_rank, xp.argsort(order, axis=1), axis=1)


def row_uniforms(logits: Array, seed: int) -> Array:
    """Return a pseudorandom value in [0, 1) for every row, a hash of its logits: equal rows have equal values."""
    no_labels = np.zeros(len(logits), dtype=np.int64)
    hashes = hash_rows(logits, no_labels) + np.uint64((seed * _GOLDEN_STEP) % 2**64)
    hashes ^= hashes >> np.uint64(31)  # mix high bits into low ones
    hashes *= np.uint64(_GOLDEN_STEP)  # modulo 2^64
    mantissa = (hashes >> np.uint64(11)).astype(np.float64)  # the 53 bits of a float64
    return like(mantissa * 2.0**-53, logits)
