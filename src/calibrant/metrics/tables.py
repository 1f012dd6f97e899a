"""Tables behind the numbers: the bins of an error, and what is known of every class."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant._bins import Bins, Ties
from calibrant.metrics._binned import ClassCells
from calibrant.metrics._moments import Edges, bin_table
from calibrant.predictions import Predictions, predictions_of

__all__ = ["ClassCells", "Classes", "Thresholds", "bins", "classes", "classes_of", "thresholds", "thresholds_of"]


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
    predictions: Any, labels: Any = None, weights: Any = None, *, bins: int = 15, edges: Edges = "equal_width"
) -> Bins:
    """The bins behind `ece`, `adaptive_ece` (edges "equal_mass") and `mce` (at `.worst`).

    >>> bins(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), bins=2).count
    tensor([4, 0])
    """
    return bin_table(predictions_of(predictions, labels, weights).events, bins, edges)


def classes(predictions: Any, labels: Any = None, weights: Any = None, *, bins: int = 15) -> Classes:
    """What is known of every class, by label and by prediction.

    >>> classes(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])).ece
    tensor([0.2500, 0.2500], dtype=torch.float64)
    """
    p = predictions_of(predictions, labels, weights)
    cells = ClassCells(p, bins)
    p.survey(cells.add)
    return classes_of(p, cells)


@dataclass(frozen=True, eq=False)
class Thresholds:
    """What acting on probabilities from a threshold on amounts to, as tensors with one entry per threshold."""

    threshold: Tensor
    share: Tensor  # of the examples whose probability is at least the threshold
    precision: Tensor  # how often the event happened among them; nan of none
    recall: Tensor  # share of the events that are among them; nan where none happened
    specificity: Tensor  # share of the others that are below; nan where all happened
    said: Tensor  # how often it should have happened among them, by what was said; nan of none


def thresholds(
    predictions: Any, labels: Any = None, weights: Any = None, *, at: Sequence[float] = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)
) -> Thresholds:
    """Return what becomes of the judged event where one acts on probabilities of at least a threshold.

    >>> found = thresholds(Predictions.from_confidence([0.9, 0.6, 0.2], [1, 0, 0]), at=[0.5])
    >>> [round(float(x), 2) for x in (found.share, found.precision, found.recall, found.specificity)]
    [0.67, 0.5, 1.0, 0.5]
    """
    return thresholds_of(predictions_of(predictions, labels, weights).events.ties, at)


def thresholds_of(ties: Ties, at: Sequence[float]) -> Thresholds:
    """The same from sorted events."""
    cut = torch.tensor(list(at), dtype=torch.float64, device=ties.value.device)
    first = torch.searchsorted(ties.value, cut)

    def above(values: Tensor) -> Tensor:
        return torch.cat([values.flip(0).cumsum(0).flip(0), values.new_zeros(1)])[first]

    mass, hits, said = above(ties.mass), above(ties.correct), above(ties.mass * ties.value)
    total, positive = ties.mass.sum(), ties.correct.sum()
    return Thresholds(
        threshold=cut,
        share=mass / total,
        precision=hits / mass,
        recall=hits / positive,
        specificity=1 - (mass - hits) / (total - positive),
        said=said / mass,
    )


def classes_of(p: Predictions, cells: ClassCells) -> Classes:
    """The same from cells that were shown all rows."""
    k, predicted, outcomes = p.k, p.predicted, p.outcomes
    w = torch.ones_like(outcomes.confidence) if p.weights is None else p.weights
    shares = cells.shares

    def total(index: Tensor, values: Tensor | None) -> Tensor:
        return torch.bincount(index, values, minlength=k)

    by_label, by_prediction = total(p.labels, w), total(predicted, w)
    return Classes(
        frequency=shares[:, :, 2].sum(1),
        forecast=shares[:, :, 1].sum(1),
        count=by_label.round().long(),
        predicted=by_prediction.round().long(),
        recall=total(p.labels, w * outcomes.correct) / by_label,
        precision=total(predicted, w * outcomes.correct) / by_prediction,
        confidence=total(predicted, w * outcomes.confidence) / by_prediction,
        ece=cells.ece,
    )
