"""What is known of every class, from sums that add up over batches."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from calibrant.metrics._binned import ClassBinSums
from calibrant.predictions import Predictions


@dataclass(frozen=True, eq=False)
class Classes:
    """One row per class, as tensors of length k, and the bins behind its error."""

    frequency: Tensor  # share of the examples whose label it is
    forecast: Tensor  # mean probability it is given
    count: Tensor  # examples whose label it is
    predicted: Tensor  # examples for which it is predicted
    recall: Tensor  # accuracy among the examples whose label it is; nan without any
    precision: Tensor  # accuracy among the examples for which it is predicted; nan without any
    confidence: Tensor  # mean confidence where it is predicted; nan nowhere
    ece: Tensor  # calibration error of its probability as a forecast of the label
    cells: Tensor  # (k b 3) by bin of that probability, shares of all: how many, what was said, what happened

    @property
    def worst_first(self) -> Tensor:
        """Class indices by decreasing calibration error."""
        return self.ece.argsort(descending=True, stable=True)


@dataclass(frozen=True, eq=False)
class ClassSums:
    """What the table of classes is made of, in float64: sums of batches agree with those of the whole to 1e-12."""

    cells: Tensor  # (k b 3) mass, what was said and what happened, by bins of the class's own probability
    rows: Tensor  # (5 k) mass and hits by label; mass, hits and confidence by prediction

    @classmethod
    def from_predictions(cls, p: Predictions, cells: ClassBinSums) -> "ClassSums":
        """Of predictions and the cells that were shown them."""
        predicted, outcomes = p.predicted, p.outcomes
        w = torch.ones_like(outcomes.confidence) if p.weights is None else p.weights
        hits, confidences = w * outcomes.correct, w * outcomes.confidence
        pairs = ((p.labels, w), (p.labels, hits), (predicted, w), (predicted, hits), (predicted, confidences))
        rows = torch.stack([torch.bincount(index, values, minlength=p.k) for index, values in pairs])
        return cls(cells.sums, rows)

    def __add__(self, other: "ClassSums") -> "ClassSums":
        """Both together."""
        to = self.cells.device
        return ClassSums(self.cells + other.cells.to(to), self.rows + other.rows.to(to))

    @property
    def ece(self) -> Tensor:
        """Calibration error of every class (k)."""
        return (self.cells[:, :, 1] - self.cells[:, :, 2]).abs().sum(1) / self.cells[0, :, 0].sum()

    @property
    def table(self) -> Classes:
        """The table."""
        by_label, hits_by_label, by_prediction, hits, confidences = self.rows
        cells = self.cells / self.cells[0, :, 0].sum()
        shares = cells.sum(1)
        return Classes(
            frequency=shares[:, 2],
            forecast=shares[:, 1],
            count=by_label.round().long(),
            predicted=by_prediction.round().long(),
            recall=hits_by_label / by_label,
            precision=hits / by_prediction,
            confidence=confidences / by_prediction,
            ece=self.ece,
            cells=cells,
        )


def collect_class_bins(p: Predictions, bins: int) -> Callable[[], ClassBinSums]:
    """Make the outcomes by one pass, and on it the classes' cells; those of two follow from one, if they are wanted."""
    cells = ClassBinSums(p, bins)
    if p.k > 2:
        p.compute_outcomes(cells)
        return partial(_return_sums, cells)
    p.compute_outcomes()
    return partial(_binary_bin_sums, p, bins)


def _return_sums(cells: ClassBinSums) -> ClassBinSums:
    return cells


def _binary_bin_sums(p: Predictions, bins: int) -> ClassBinSums:
    cells, confidence = ClassBinSums(p, bins), p.with_event(1).events.confidence
    cells.begin_chunk()(slice(None), torch.stack([1 - confidence, confidence], 1))
    return cells
