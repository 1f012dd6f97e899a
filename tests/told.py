"""Losses as training has them: told what they ask for."""

from typing import Any

import torch

from calibrant import losses
from calibrant.registry import LOSSES


def told(text: str, k: int, *, even: bool = False) -> Any:
    """Return a loss that knows how often training has each of k classes: alike, or twice as often as the one before."""
    return losses.for_counts(LOSSES.resolve(text), torch.full((k,), 5) if even else 2 ** torch.arange(k))
