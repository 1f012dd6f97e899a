"""Losses that use class counts, set up as in training."""

from typing import Any

import torch
from calibrant.registry import LOSSES

from calibrant import losses


def loss_with_counts(text: str, k: int, *, even: bool = False) -> Any:
    """Return a loss for k classes of equal counts, or of counts that double from class to class."""
    counts = torch.full((k,), 5) if even else 2 ** torch.arange(k)
    return losses.for_counts(LOSSES.resolve(text), counts)
