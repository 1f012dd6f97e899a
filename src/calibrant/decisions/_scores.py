"""Nonconformity scores of all classes: small for classes that fit the example."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.kernels.overlap import hash_rows
from calibrant.predictions import Predictions

SetScore = Literal["lac", "aps", "raps", "saps"]
RANK_PENALTY = 0.1  # of RAPS and SAPS, per rank
_BLOCK_ELEMENTS = 1 << 22
_GOLDEN_STEP = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio; odd, so that no two seeds give the same multiple


def class_scores(logits: Tensor, score: SetScore, penalty: float, seed: int) -> Tensor:
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
    return torch.cat([_block_scores(block, score, penalty, seed) for block in logits.split(size)])


def label_scores(p: Predictions, score: SetScore, penalty: float, seed: int) -> Tensor:
    """Return the nonconformity score of each label (n)."""
    return class_scores(p.logits, score, penalty, seed).gather(1, p.labels[:, None]).squeeze(1)


def _block_scores(logits: Tensor, score: SetScore, penalty: float, seed: int) -> Tensor:
    """Return the scores of `class_scores` for a block of rows (n, k). All but "lac" depend on the ranks of classes."""
    p = logits.double().softmax(1)
    if score == "lac":
        return 1 - p
    order = p.argsort(dim=1, descending=True, stable=True)
    in_order = p.gather(1, order)
    u = row_uniforms(logits, seed)[:, None]
    ranks = torch.arange(p.shape[1], dtype=torch.float64, device=p.device)  # from 0
    if score == "saps":
        by_rank = torch.where(ranks == 0, u * in_order, in_order[:, :1] + penalty * (ranks - 1 + u))
    else:
        by_rank = in_order.cumsum(1) - (1 - u) * in_order  # u p of the class itself, which the sum holds once
        if score == "raps":
            by_rank += penalty * (ranks + 1)
    return torch.empty_like(p).scatter_(1, order, by_rank)  # from the order of ranks to the order of classes


def row_uniforms(logits: Tensor, seed: int) -> Tensor:
    """Return a pseudorandom value in [0, 1) for every row, a hash of its logits: equal rows have equal values."""
    no_labels = torch.zeros(len(logits), dtype=torch.int64, device=logits.device)
    hashes = hash_rows(logits, no_labels) + np.uint64((seed * _GOLDEN_STEP) % 2**64)
    hashes ^= hashes >> np.uint64(31)  # mix high bits into low ones
    hashes *= np.uint64(_GOLDEN_STEP)  # modulo 2^64
    mantissa = (hashes >> np.uint64(11)).astype(np.float64)  # the 53 bits of a float64
    return torch.from_numpy(mantissa * 2.0**-53).to(logits.device)
