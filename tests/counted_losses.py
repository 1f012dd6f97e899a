"""Losses that use class counts, set up as in training."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from calibrant.registry import LOSSES  # noqa: E402

from calibrant import losses  # noqa: E402


def loss_with_counts(text: str, k: int, *, even: bool = False) -> Any:
    """Return a loss for k classes of equal counts, or of counts that double from class to class."""
    counts = torch.full((k,), 5) if even else 2 ** torch.arange(k)
    return losses.for_counts(LOSSES.resolve(text), counts)
