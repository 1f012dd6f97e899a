"""Splits: the result of every data set."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from calibrant._core.types import InputError
from calibrant.nn.collecting import LABEL_KEYS


@dataclass(frozen=True, eq=False)
class Split:
    """Examples in memory."""

    inputs: Any  # images uint8 (n c h w), token ids (n t), features (n d), or anything with len, [rows] and .to(device)
    labels: Tensor  # (n) int64

    @classmethod
    def from_dataset(
        cls,
        dataset: Any,
        *,
        transform: Callable[[Any], Any] | None = None,
        inputs: str | None = None,
        labels: str | None = None,
    ) -> "Split":
        """Read all examples of a torch `Dataset` or a Hugging Face data set into memory.

        Examples are pairs (input, label), or mappings with a key for each. Images of PIL become uint8 (c h w).

        Args:
            dataset: The data set: with `len` and `[i]`, or an iterable.
            transform: Applied once to each input, before the inputs are stacked. Its results must have one shape.
                Random changes belong to `Splits.augment`.
            inputs: Key of the input of a mapping; default: the only key besides that of the label.
            labels: Key of the label; default: label, labels, targets, target or y.

        Raises:
            InputError: If examples have another form, or inputs are no numbers of one shape.

        >>> Split.from_dataset([([0.0, 1.0], 1), ([2.0, 3.0], 0)]).inputs
        tensor([[0., 1.],
                [2., 3.]])
        """
        is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        examples: Iterable[Any] = (dataset[i] for i in range(len(dataset))) if is_indexed else dataset
        pairs = [_read_example(example, inputs, labels) for example in examples]
        if not pairs:
            raise InputError("Expected at least one example, got an empty data set.", code="no_rows")
        tensors = [_to_input(value if transform is None else transform(value)) for value, _ in pairs]
        if len(shapes := {tuple(tensor.shape) for tensor in tensors}) > 1:
            raise InputError(
                f"Expected inputs of one shape, got {sorted(shapes)[:4]}. Try transform= to give them one.",
                code="input_shapes",
            )
        return cls(torch.stack(tensors), torch.tensor([int(label) for _, label in pairs]))

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

    def __post_init__(self) -> None:
        for name in ("train", "val", "test"):
            if not isinstance(part := getattr(self, name), Split):
                raise InputError(
                    f"Expected {name} as a Split, got {type(part).__name__}. Try Split.from_dataset({name}).",
                    code="not_split",
                )


def _read_example(example: Any, input_key: str | None, label_key: str | None) -> tuple[Any, Any]:
    """Return the input and label of an example. Raises `InputError` if it is neither a pair nor such a mapping."""
    if isinstance(example, Mapping):
        keys: list[Any] = list(example)  # pyright: ignore[reportUnknownArgumentType]
        label_key = label_key or next((key for key in LABEL_KEYS if key in keys), None)
        input_keys = [input_key] if input_key else [key for key in keys if key != label_key]
        if len(input_keys) == 1 and {label_key, *input_keys} <= {*keys}:
            return example[input_keys[0]], example[label_key]
        raise InputError(
            f"Expected an input and a label, got the keys {keys}. Try inputs= and labels=, the keys of both.",
            code="example_keys",
        )
    if isinstance(example, tuple | list) and len(example) == 2:  # pyright: ignore[reportUnknownArgumentType]
        return example[0], example[1]
    raise InputError(
        f"Expected pairs (input, label) or mappings as examples, got {type(example).__name__}. Try "
        "[(input, label), ...].",
        code="example",
    )


def _to_input(value: Any) -> Tensor:
    """Return an input as a tensor, an image of PIL as uint8 (c h w)."""
    if hasattr(value, "getbands"):  # of PIL
        pixels = torch.from_numpy(np.array(value))
        return pixels[None] if pixels.ndim == 2 else pixels.movedim(-1, 0)
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"Expected inputs of numbers, got {type(value).__name__}. Try transform= to turn them into tensors.",
            code="not_numbers",
        ) from None


def shuffled_indices(n: int, val: int, seed: int, name: str) -> np.ndarray:
    """Return a permutation of n examples from numpy's legacy generator, as in the code of all papers.

    Callers take `val` of the examples for validation; `name` is the data set, for the error.

    Raises:
        InputError: If `val` leaves an empty split.
    """
    if not 0 < val < n:
        raise InputError(f"{name}: Expected val between 1 and {n - 1}, got {val}.", code="empty_split")
    return np.random.RandomState(seed).permutation(n)
