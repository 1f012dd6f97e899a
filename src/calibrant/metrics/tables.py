"""Tables behind the numbers: the bins of an error, and what is known of every class."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._bins import Bins, Events
from calibrant._types import Labels, Logits, PerExample
from calibrant.metrics._binned import Edges, class_cells
from calibrant.metrics._moments import bin_table

__all__ = ["Classes", "bins", "classes"]


@dataclass(frozen=True, eq=False)
class Classes:
    """One row per class, as tensors of length k."""

    frequency: Tensor  # share of the examples whose label it is
    forecast: Tensor  # mean probability it is given
    count: Tensor  # examples whose label it is
    predicted: Tensor  # examples for which it is predicted
    recall: Tensor  # accuracy among the examples whose label it is; nan without any
    precision: Tensor  # accuracy among the examples for which it is predicted; nan without any
    confidence: Tensor  # mean confidence where it is predicted; nan nowhere
    ece: Tensor  # calibration error of its probability as a forecast of the label

    @property
    def worst_first(self) -> Tensor:
        """Class indices by decreasing calibration error."""
        return self.ece.argsort(descending=True, stable=True)


def bins(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    edges: Edges = "equal_width",
    index: int | None = None,
    weights: PerExample | None = None,
) -> Bins:
    """The bins behind `ece`, `adaptive_ece` (edges "equal_mass"), `mce` (at `.worst`), or of class `index`.

    >>> bins(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), bins=2).count
    tensor([4, 0])
    """
    events = Events.top(logits, labels, weights) if index is None else Events.one(logits, labels, index, weights)
    return bin_table(events, bins, edges)


def classes(logits: Logits, labels: Labels, *, bins: int = 15, weights: PerExample | None = None) -> Classes:
    """What is known of every class, by label and by prediction.

    >>> classes(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])).ece
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    k = logits.shape[1]
    events, predicted = Events.top(logits, labels), logits.argmax(1)
    w = torch.ones_like(events.confidence) if weights is None else weights.double()
    cells = class_cells(logits, labels, bins, weights)

    def total(index: Tensor, values: Tensor | None) -> Tensor:
        return torch.bincount(index, values, minlength=k)

    by_prediction = total(predicted, w)
    return Classes(
        frequency=cells[:, :, 2].sum(1),
        forecast=cells[:, :, 1].sum(1),
        count=total(labels, None),
        predicted=total(predicted, None),
        recall=total(labels, w * events.correct) / total(labels, w),
        precision=total(predicted, w * events.correct) / by_prediction,
        confidence=total(predicted, w * events.confidence) / by_prediction,
        ece=cells[:, :, 1:].diff(dim=2).abs().sum((1, 2)),
    )
