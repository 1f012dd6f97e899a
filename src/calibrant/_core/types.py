"""Array shapes, the protocols of user-defined methods, and the error for bad input.

Shapes use n samples, k classes and b bins. Any function or class with a signature below can be registered, for example
by the decorator `losses.register`; commands, studies and tables then accept its name. `metrics.metric` declares and
registers a metric.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from calibrant._core.arguments import *
from calibrant._core.arguments import Range
from calibrant._core.errors import InputError as InputError
from calibrant._core.errors import prefix_errors as prefix_errors

Array = Any  # of numpy, or a tensor of torch
Logits = Float[Array, "n k"]  # any unnormalized log-probabilities, log p included
Labels = Int[Array, "n"]  # true classes, 0 .. k-1
ClassIndices = Int[np.ndarray, "n"]  # classes, 0 .. k-1, of predictions
SoftLabels = Float[Array, "n k"]  # probabilities
Targets = Labels | SoftLabels
PerExample = Float[np.ndarray, "n"]
Sums = np.ndarray | np.floating  # over the last axis: an array, or a number from one row
PerExampleLoss = Float[Array, "n"]  # a tensor, differentiable
Scalar = Float[Array, ""] | float  # learned; stored as a float

Loss = Callable[[Array, Array], Array]  # (n k), (n) or soft (n k) -> (n), differentiable; may take weights=, counts=
Map = Callable[[Array], Array]  # a fitted calibrator, or any function (n k) -> (n k) of logits


@runtime_checkable
class Calibrator(Protocol):
    """A fitted calibrator: a function from logits to better logits.

    `fit` may have keyword-only hyperparameters, and a parameter `weights=None` after the labels; without it, weighted
    predictions are refused. A `certificate` is optional. The fields of a dataclass, or the attributes of another class,
    are saved: tensors, numbers, strings, tuples, other calibrators.
    """

    @classmethod
    def fit(cls, logits: Logits, labels: Labels, /) -> Any:
        """Return the calibrator fitted to labeled logits."""
        ...

    def __call__(self, logits: Logits, /) -> Logits:
        """Return better logits for any number of samples."""
        ...


@dataclass(frozen=True, eq=False)
class Categories:
    """A column of names, one per sample."""

    index: ClassIndices  # of `names`
    names: tuple[str, ...]

    def __getitem__(self, rows: Any) -> "Categories":
        """Select rows."""
        return Categories(self.index[rows], self.names)

    @property
    def used_names(self) -> tuple[str, ...]:
        """The names of at least one sample."""
        return tuple(self.names[i] for i in np.unique(self.index))


@runtime_checkable
class ColumnMap(Protocol):
    """A fitted calibrator that needs columns of the predictions beside the logits, such as the group of each sample.

    Predictions with columns are calibrated by `map_columns` instead of a call.
    """

    def map_columns(self, logits: Logits, columns: Mapping[str, Categories], /) -> Logits:
        """Return better logits, given `groups` and `row_groups` if the predictions have them."""
        ...

    def column_notes(self, columns: Mapping[str, Categories], /) -> tuple[str, ...]:
        """Return remarks for the notes of the predictions, such as groups that the calibrator was not fitted on."""
        ...


@runtime_checkable
class LossObject(Protocol):
    """A loss that is an object with further methods."""

    def __call__(self, logits: Logits, labels: Labels, /) -> PerExampleLoss:
        """Return the loss of each sample."""
        ...


@runtime_checkable
class StatefulLoss(LossObject, Protocol):
    """A loss that changes between epochs.

    An optional method `for_epochs(epochs)` returns the loss for a training run of this length.
    """

    def after_epoch(self, epoch: int, val: Any, /) -> "StatefulLoss":
        """Return the loss of the epoch after `epoch` (counted from 0), given the validation `Predictions` or None."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state: tensors and numbers by name."""
        ...

    def with_state_dict(self, state: Mapping[str, Any], /) -> "StatefulLoss":
        """Return the same loss with a state of `state_dict`."""
        ...


@runtime_checkable
class UpdatedLoss(LossObject, Protocol):
    """A loss that may use validation predictions within an epoch."""

    def is_due(self, batch: int, /) -> bool:
        """Whether to call `update` after a batch, counted from 0 in each epoch."""
        ...

    def update(self, val: Any, /) -> "UpdatedLoss":
        """Return the loss of the next batch, given the validation `Predictions`."""
        ...


@runtime_checkable
class MixingLoss(LossObject, Protocol):
    """A loss that mixes training batches before the network sees them. A call itself mixes nothing."""

    def mix(self, inputs: Array, labels: Labels, /, *, generator: Any = None) -> Any:
        """Return a batch with network `inputs` and a method `loss(loss, logits)` for the loss per input."""
        ...


@dataclass(frozen=True)
class MethodName:
    """Annotation of a string as the text of a method: `Annotated[str, MethodName("calibrators")]`."""

    kind: str  # of a registry


@dataclass(frozen=True)
class Allows:
    """Annotation of numbers that a saved field may hold although they are not finite: `Allows(math.nan)`."""

    numbers: tuple[float, ...]

    def __init__(self, *numbers: float) -> None:
        object.__setattr__(self, "numbers", numbers)


@dataclass(frozen=True)
class Size:
    """Annotation of a tuple whose length is the size of a dimension in the shapes of other fields: `Size("d")`."""

    dimension: str


@dataclass(frozen=True)
class Index:
    """Annotation of an array of indices: from `lowest` up to the length of another field, along an axis."""

    field: str
    axis: int = 0
    lowest: int = 0


# Hyperparameters

CalibratorText = Annotated[str, MethodName("calibrators")]
LossText = Annotated[str, MethodName("losses")]
MetricText = Annotated[str, MethodName("metrics")]
TemperatureGrid = Literal["mukhoti", "wang", "komisarenko", "komisarenko_code"]

# Fields of saved states, validated when a file is loaded

AnyFloat = Annotated[float, Allows(math.nan, math.inf, -math.inf)]
FINITE_RANGE = Range(gt=-math.inf, lt=math.inf)
FiniteScalar = Annotated[Scalar, FINITE_RANGE]
PositiveScalar = Annotated[Scalar, Range(gt=0, lt=math.inf)]
PerClass = Annotated[Float[Array, " k"], FINITE_RANGE]
PerClassPair = Annotated[Float[Array, "k k"], FINITE_RANGE]
FiniteVector = Annotated[Float[Array, " m"], FINITE_RANGE]
FractionVector = Annotated[Float[Array, " m"], Range(ge=0, le=1)]
PerBin = Float[np.ndarray, "*sets b"]  # NaN in an empty bin
PerBinTensor = Annotated[Float[Array, "*sets b"], Allows(math.nan)]
StartIndices = Annotated[Int[Array, " s"], Range(ge=0)]
