"""Passes over logits, counted on either way: by compiled kernels, or by torch."""

from collections.abc import Callable

import pytest

from calibrant.backend import softmax


def tell_of_passes(monkeypatch: pytest.MonkeyPatch, tell: Callable[[int], object]) -> None:
    """Call `tell` with the number of rows of every pass of softmax, exponentials or maxima over logits."""
    centered, kernels = softmax._centered_chunks, softmax.kernels

    def by_torch(logits):
        tell(len(logits))
        return centered(logits)

    def compiled(logits):
        found = kernels(logits)
        if found is not None:
            tell(len(logits))
        return found

    monkeypatch.setattr(softmax, "_centered_chunks", by_torch)
    monkeypatch.setattr(softmax, "kernels", compiled)
