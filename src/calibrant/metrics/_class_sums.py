"""Statistics of every class, from sums that add up over batches."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from calibrant._core.kernels.bins import equal_width_edges, equal_width_index
from calibrant._core.kernels.dispatch import kernels
from calibrant._core.kernels.softmax import ChunkVisitor, RowCallback
from calibrant._core.types import Labels, PerExample, Range
from calibrant.predictions import Predictions

ClassCells = Annotated[Float[Tensor, "k b 3"], Range(ge=0)]
ClassRows = Annotated[Float[Tensor, "5 k"], Range(ge=0)]


class ClassBinSums:
    """Sums for every class in equal-width bins of its probability, added up in one pass over all probabilities.

    Most probabilities lie in the first bin. Only the probabilities above it are summed by bin; the first bin is what
    remains of the totals.
    """

    def __init__(self, p: Predictions, bins: int) -> None:
        """Prepare empty sums, which `visitor` fills when it receives the probabilities."""
        self.labels, self.weights, self._k, self._bins = p.labels, p.weights, p.k, bins
        # each chunk has sums of its own, which are few beside its probabilities: 3 k * bins against 128 k * bins
        self.visitor = ChunkVisitor(self._begin_chunk, min_rows=128 * bins)
        self._edges = equal_width_edges(bins).numpy()
        self._chunk_sums: list[tuple[Tensor, Tensor]] = []  # of probabilities (k), and above the first bin (3 k*b)

    def _begin_chunk(self) -> RowCallback:
        """Return a callback that adds rows of probabilities (rows, k) to sums that no other thread changes."""
        zeros = partial(torch.zeros, dtype=torch.float64, device=self.labels.device)
        sums = zeros(self._k), zeros(3, self._k * self._bins)
        self._chunk_sums.append(sums)
        return partial(self._add, *sums)

    def _add(self, prob_sums: Tensor, bin_sums: Tensor, rows: slice, probs: Tensor) -> None:
        """Add the probabilities of some rows to the sums of one chunk.

        Args:
            prob_sums: Sum of the probabilities of each class (k).
            bin_sums: Sums over the b bins of each class, the first bin left out (3 k*b): weight, probability, and
                weight of the rows with the class as label.
            rows: Rows of the chunk.
            probs: Their probabilities (rows, k).
        """
        y = self.labels[rows]
        w = torch.ones_like(y, dtype=torch.float64) if self.weights is None else self.weights[rows]
        # no matrix product: the last bit of BLAS may differ from thread to thread
        prob_sums += (probs if self.weights is None else probs * w[:, None]).sum(0)
        if compiled := kernels(probs):
            by_row = probs.is_contiguous()  # otherwise the probabilities of a class are contiguous
            contiguous = (probs if by_row else probs.T).numpy()
            compiled.add_class_bins(contiguous, y.numpy(), w.numpy(), self._edges, by_row, bin_sums.numpy())
            return
        row, column = (probs > float(self._edges[1])).nonzero(as_tuple=True)  # above the first bin
        values, weight = probs[row, column], w[row]
        index = column * self._bins + equal_width_index(self._bins, values)
        for total, terms in zip(bin_sums, (weight, weight * values, weight * (y[row] == column))):
            total += torch.bincount(index, terms, minlength=len(total))

    @cached_property
    def sums(self) -> Tensor:
        """Sums over all examples by class and bin of the class's probability, (k, b, 3).

        The three are weight, probability, and weight of the examples with the class as label.
        """
        prob_sums, bin_sums = (torch.stack(parts).sum(0) for parts in zip(*self._chunk_sums, strict=True))
        by_bin = bin_sums.view(3, -1, self._bins)
        label_weights = torch.bincount(self.labels, self.weights, minlength=self._k).double()
        totals = torch.stack([label_weights.sum().expand(self._k), prob_sums, label_weights])
        by_bin[:, :, 0] += totals - by_bin.sum(2)  # the first bin, which is empty so far
        return by_bin.permute(1, 2, 0)


def class_errors(cells: Tensor) -> Tensor:
    """Return the ECE of every class (k) from sums (k, b, 3) of weight, probability, frequency."""
    # frequency minus probability in each bin; all examples count for every class, and class 0 has the total weight
    return cells[:, :, 1:].diff(dim=2).abs().sum((1, 2)) / cells[0, :, 0].sum()


@dataclass(frozen=True, eq=False)
class Classes:
    """One row per class, as tensors of length k, and the bins behind its error."""

    frequency: Tensor  # share of the examples with this label
    forecast: Tensor  # mean probability
    count: Tensor  # examples with this label
    predicted: Tensor  # examples with this prediction
    recall: Tensor  # accuracy among the examples with this label; nan without any
    precision: Tensor  # accuracy among the examples with this prediction; nan without any
    confidence: Tensor  # mean confidence among the examples with this prediction; nan without any
    ece: Tensor  # calibration error of the class's probability as a forecast of the label
    cells: ClassCells  # (k b 3) by bin of that probability, shares of the total weight: weight, probability, frequency

    @property
    def worst_first(self) -> Tensor:
        """Class indices by decreasing calibration error."""
        return self.ece.argsort(descending=True, stable=True)


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The sums behind `Classes`, in float64, which add up over batches to 1e-12."""

    cells: Tensor  # (k b 3) weight, probability and frequency by bins of the class's own probability
    rows: ClassRows  # (5 k) weight and hits by label; weight, hits and confidence by prediction

    @classmethod
    def from_predictions(cls, p: Predictions, bins: int = 15) -> "ClassSums":
        """Sum labeled predictions in one pass over the logits, which also computes and keeps `p.outcomes`."""
        cells = ClassBinSums(p, bins)
        outcomes = p.compute_outcomes(cells.visitor)

        def total(classes: Labels, values: PerExample) -> Tensor:
            """Return the weighted sum of the values of every class, (k)."""
            weighted = values if p.weights is None else p.weights * values
            return torch.bincount(classes, weighted, minlength=p.k).double()

        by_label = cells.sums[:, :, 2].sum(1)  # weight of the examples with each label
        by_prediction = torch.bincount(outcomes.predicted, p.weights, minlength=p.k).double()
        # weight of the right predictions of each class, the same by label and by prediction
        hits = total(p.labels, outcomes.correct)
        confidences = total(outcomes.predicted, outcomes.confidence)
        return cls(cells.sums, torch.stack([by_label, hits, by_prediction, hits, confidences]))

    def __add__(self, addend: "ClassSums") -> "ClassSums":
        """Merge."""
        to = self.cells.device
        return ClassSums(self.cells + addend.cells.to(to), self.rows + addend.rows.to(to))

    @property
    def ece(self) -> Tensor:
        """Calibration error of every class (k)."""
        return class_errors(self.cells)

    @property
    def table(self) -> Classes:
        """The table of classes; a class without examples or without predictions has NaN where it would divide by 0."""
        by_label, hits_by_label, by_prediction, hits, confidences = self.rows
        cells = self.cells / self.cells[0, :, 0].sum()  # the total weight, which is the same for every class
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
