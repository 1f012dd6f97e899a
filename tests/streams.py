"""Simulated streams of predictions."""

import numpy as np
import torch

from calibrant import Predictions


def draw(n: int, k: int = 3, *, scale: float = 1.0, seed: int = 0, groups: object = None) -> Predictions:
    """Draw labels from the softmax of normal logits, which are then multiplied by `scale`."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(n, k, generator=g, dtype=torch.float64)
    return Predictions(scale * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1), groups=groups)


def draw_groups(n: int, seed: int = 0) -> np.ndarray:
    """Draw a large and a small group."""
    return np.random.default_rng(seed).choice(["north", "south"], n, p=[0.8, 0.2])
