"""What every data set returns."""

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
        """Some of the examples, by slice, mask or indices."""
        return Split(self.inputs[rows], self.labels[rows])

    def to(self, device: Any) -> "Split":
        """The same examples on a device."""
        return Split(self.inputs.to(device), self.labels.to(device))


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set: what to train on, what to calibrate on, what to judge on, and how raw inputs become batches."""

    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...]  # names, in the order of the labels
    prepare: Callable[[Any], Any] = lambda inputs: inputs  # raw batch on the device -> what a network takes
    augment: Callable[[Tensor, Generator], Tensor] | None = None  # training batches only, after prepare
    targets: Callable[[Any, Tensor], Tensor] | None = None  # (raw batch, labels) -> labels of every training output
    vectors: Tensor | None = None  # text: (words d), where a network's embedding starts; row 0 is padding
    posterior: Callable[[Tensor], Tensor] | None = None  # raw inputs -> true log-probabilities, where they are known
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what a record of a run should say of the data


def shuffled_indices(n: int, val: int, seed: int, name: str) -> np.ndarray:
    """Return the rows in numpy's legacy order for a seed, which is what every one of the papers' codes uses."""
    if not 0 < val < n:
        raise InputError(
            f"{name} has {n} training examples here, got val={val}; leave some to train on", code="empty_split"
        )
    return np.random.RandomState(seed).permutation(n)
