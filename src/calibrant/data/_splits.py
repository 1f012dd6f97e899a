"""What every data set returns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Generator, Tensor


@dataclass(frozen=True, eq=False)
class Split:
    """Examples in memory."""

    inputs: Tensor  # images uint8 (n c h w), token ids (n t), or features (n d)
    labels: Tensor  # (n) int64

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, rows: Any) -> "Split":
        """Some of the examples, by slice, mask or indices."""
        return Split(self.inputs[rows], self.labels[rows])


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set: what to train on, what to calibrate on, what to judge on, and how raw inputs become batches."""

    train: Split
    val: Split
    test: Split
    classes: tuple[str, ...]  # names, in the order of the labels
    prepare: Callable[[Tensor], Tensor] = lambda inputs: inputs  # raw batch on the device -> what a network takes
    augment: Callable[[Tensor, Generator], Tensor] | None = None  # training batches only, after prepare
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])  # what a record of a run should say of the data
