"""Nonconformity scores of all classes: small for classes that fit the example."""

from typing import Literal

import numpy as np

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.bits import uniforms_of
from calibrant._core.kernels.overlap import hash_rows
from calibrant._core.kernels.softmax import probabilities
from calibrant._core.kernels.threads import map_row_chunks
from calibrant._core.types import Array
from calibrant.decisions.score_map import scores_of
from calibrant.predictions import Predictions

SetScore = Literal["lac", "aps", "raps", "saps"]
RANK_PENALTY = 0.1  # of RAPS and SAPS, per rank


def class_scores(logits: Array, score: SetScore, penalty: float, seed: int) -> Array:
    """Return the nonconformity score of every class (n, k) in float64, as `scores_of` defines it.

    Each row has a uniform u that depends on its logits and the seed alone.
    """
    blocks = map_row_chunks(lambda rows: _block_scores(rows, score, penalty, seed), logits)
    return namespace(logits).concat(blocks)


def label_scores(p: Predictions, score: SetScore, penalty: float, seed: int) -> np.ndarray:
    """Return the nonconformity score of each label (n)."""
    scores = class_scores(p.logits, score, penalty, seed)
    return to_numpy(namespace(scores).take_along_axis(scores, like(p.labels, scores)[:, None], axis=1))[:, 0]


def _block_scores(logits: Array, score: SetScore, penalty: float, seed: int) -> Array:
    """Return the scores of `class_scores` for a block of rows (n, k)."""
    u = None if score == "lac" else row_uniforms(logits, seed)
    return scores_of(probabilities(logits), u, score, penalty)


def row_uniforms(logits: Array, seed: int) -> Array:
    """Return a pseudorandom value in [0, 1) for every row, a hash of its logits: equal rows have equal values."""
    no_labels = np.zeros(len(logits), dtype=np.int64)
    return like(uniforms_of(hash_rows(logits, no_labels), seed), logits)
