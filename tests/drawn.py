"""Labels of chance for the logits of a test."""

import numpy as np
from numpy.typing import ArrayLike


def drawn_labels(logits: ArrayLike, rng: np.random.Generator) -> np.ndarray:
    """Return one label per row, (n,), each drawn from the softmax of its row of logits, (n, k)."""
    return np.argmax(logits + rng.gumbel(size=np.shape(logits)), -1)  # the Gumbel-max trick
