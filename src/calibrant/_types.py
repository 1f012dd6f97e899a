"""The vocabulary: shapes (n examples, k classes, b bins), protocols, and the one error for bad input."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

Logits = Float[Tensor, "n k"]  # any unnormalized log-probabilities, log p included
Labels = Int[Tensor, "n"]  # true classes, 0 .. k-1
PerExample = Float[Tensor, "n"]
PerBin = Float[Tensor, "b"]
Scalar = Float[Tensor, ""]

Loss = Callable[[Tensor, Tensor], Tensor]  # (n k), (n) -> (n)
Metric = Callable[[Tensor, Tensor], Tensor]  # (n k), (n) -> ()


class InputError(ValueError):
    """Input that cannot be used. The message is one line: got, expected, way out."""


@runtime_checkable
class Calibrator(Protocol):
    """A fitted map from logits to better logits: a frozen dataclass whose fields are what it learned."""

    @classmethod
    def fit(cls, logits: Logits, labels: Labels) -> "Calibrator":
        """Learn the map; hyperparameters are keyword-only."""
        ...

    def __call__(self, logits: Logits) -> Logits:
        """Return better logits for any number of examples."""
        ...


@runtime_checkable
class Adaptive(Protocol):
    """A loss with state: it returns its successor after every epoch."""

    def __call__(self, logits: Logits, labels: Labels) -> PerExample:
        """Return the loss of every example."""
        ...

    def after_epoch(self, epoch: int, val: Any) -> "Adaptive":
        """Return the loss of the next epoch, given validation `Predictions` (epochs count from 0)."""
        ...
