"""Simulated streams of predictions."""

import numpy as np
from drawn import drawn_labels

from calibrant import Predictions


def draw(n: int, k: int = 3, *, scale: float = 1.0, seed: int = 0, groups: object = None) -> Predictions:
    """Draw labels from the softmax of normal logits, which are then multiplied by `scale`."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, k))
    return Predictions(scale * logits, drawn_labels(logits, rng), groups=groups)


def draw_groups(n: int, seed: int = 0) -> np.ndarray:
    """Draw a large and a small group."""
    return np.random.default_rng(seed).choice(["north", "south"], n, p=[0.8, 0.2])
