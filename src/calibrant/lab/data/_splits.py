"""Splits: the result of every data set."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Generator, Tensor

from calibrant.types import InputError


@dataclass(frozen=True, eq=False)
class Split:
    """Examples in memory."""

    inputs: Any  # images uint8 (n c h w), token ids (n t), features (n d), or anything with len, [rows] and .to(device)
    labels: Tensor  # (n) int64

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> "Split":
        """Select examples by slice, mask or indices."""
        return Split(self.inputs[rows], self.labels[rows])

    def to(self, device: Any) -> "Split":
        """Return a copy on a device."""
        return Split(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set: training, validation and test examples, and how raw inputs become batches."""

    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...]  # names in label order
    prepare: Callable[[Any], Any] = lambda inputs: inputs  # maps a raw batch on the device to the network's input
    augment: Callable[[Tensor, Generator], Tensor] | None = None  # applied to prepared training batches
    targets: Callable[[Any, Tensor], Tensor] | None = None  # maps (raw batch, labels) to labels of training outputs
    word_vectors: Tensor | None = None  # of a text data set: initial embedding (words, dimension), row 0 is padding
    posterior: Callable[[Tensor], Tensor] | None = None  # maps raw inputs to true log-probabilities, if known
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what the record of a run says about the data


def shuffled_indices(n: int, val: int, seed: int, name: str) -> np.ndarray:
    """Return a permutation of n examples from numpy's legacy generator, as in the code of all papers.

    Callers take `val` of the examples for validation; `name` is the data set, for the error.

    Raises:
        InputError: If `val` leaves an empty split.
    """
    if not 0 < val < n:
        raise InputError(f"{name}: Expected val between 1 and {n - 1}, got {val}.", code="empty_split")
    return np.random.RandomState(seed).permutation(n)
