"""Statistics of every class, from sums that add up over batches."""

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.bins import equal_width_edges, equal_width_index
from calibrant._core.kernels.dispatch import kernels
from calibrant._core.kernels.softmax import ChunkVisitor, RowCallback
from calibrant._core.types import ClassIndices, PerExample, Range
from calibrant.predictions import Predictions

ClassCells = Annotated[Float[np.ndarray, "k b 3"], Range(ge=0)]
ClassRows = Annotated[Float[np.ndarray, "5 k"], Range(ge=0)]


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
        self._edges = equal_width_edges(bins)
        # of probabilities (k), and above the first bin (3 k*b)
        self._chunk_sums: list[tuple[np.ndarray, np.ndarray]] = []

    def _begin_chunk(self) -> RowCallback:
        """Return a callback that adds rows of probabilities (rows, k) to sums that no other thread changes."""
        sums = np.zeros(self._k), np.zeros((3, self._k * self._bins))
        self._chunk_sums.append(sums)
        return partial(self._add, *sums)

    def _add(self, prob_sums: np.ndarray, bin_sums: np.ndarray, rows: slice, probs: Any) -> None:
        """Add the probabilities of some rows to the sums of one chunk.

        Args:
            prob_sums: Sum of the probabilities of each class (k).
            bin_sums: Sums over the b bins of each class, the first bin left out (3 k*b): weight, probability, and
                weight of the rows with the class as label.
            rows: Rows of the chunk.
            probs: Their probabilities (rows, k), an array or a tensor on a device.
        """
        y = self.labels[rows]
        w = np.ones_like(y, dtype=float) if self.weights is None else self.weights[rows]
        if not isinstance(probs, np.ndarray):
            self._add_on_device(prob_sums, bin_sums, probs, y, w)
            return
        # no matrix product: the last bit of BLAS may differ from thread to thread
        prob_sums += (probs if self.weights is None else probs * w[:, None]).sum(0)
        if compiled := kernels(probs):
            by_row = probs.flags.c_contiguous  # otherwise the probabilities of a class are contiguous
            contiguous = probs if by_row else probs.T
            compiled.add_class_bins(contiguous, y, w, self._edges, by_row, bin_sums)
            return
        row, column = np.nonzero(probs > float(self._edges[1]))  # above the first bin
        values, weight = probs[row, column], w[row]
        index = column * self._bins + equal_width_index(self._bins, values)
        for total, terms in zip(bin_sums, (weight, weight * values, weight * (y[row] == column))):
            total += np.bincount(index, terms, minlength=len(total))

    def _add_on_device(
        self, prob_sums: np.ndarray, bin_sums: np.ndarray, probs: Any, labels: np.ndarray, weights: np.ndarray
    ) -> None:
        """Add what `_add` adds, computed where the probabilities lie: bin by bin, from the sums above each edge."""
        xp, y, w = namespace(probs), like(labels, probs)[:, None], like(weights, probs)[:, None]
        is_label = y == xp.arange(self._k, device=probs.device)
        prob_sums += to_numpy(xp.sum(probs * w, axis=0))
        above = np.zeros((self._bins + 1, 3, self._k))  # sums of the probabilities above each edge
        for i in range(1, self._bins):
            part = w * xp.astype(probs > float(self._edges[i]), xp.float64)
            for row, terms in zip(above[i], (part, part * probs, part * is_label), strict=True):
                row[:] = to_numpy(xp.sum(terms, axis=0))
        by_bin = above[1:-1] - above[2:]  # of all bins but the first
        bin_sums.reshape(3, self._k, self._bins)[:, :, 1:] += by_bin.transpose(1, 2, 0)

    @cached_property
    def sums(self) -> np.ndarray:
        """Sums over all examples by class and bin of the class's probability, (k, b, 3).

        The three are weight, probability, and weight of the examples with the class as label.
        """
        prob_sums, bin_sums = (np.stack(parts).sum(0) for parts in zip(*self._chunk_sums, strict=True))
        by_bin = bin_sums.reshape(3, -1, self._bins)
        label_weights = np.bincount(self.labels, self.weights, minlength=self._k).astype(float)
        totals = np.stack([np.broadcast_to(label_weights.sum(), self._k), prob_sums, label_weights])
        by_bin[:, :, 0] += totals - by_bin.sum(2)  # the first bin, which is empty so far
        return by_bin.transpose(1, 2, 0)


def class_errors(cells: np.ndarray) -> np.ndarray:
    """Return the ECE of every class (k) from sums (k, b, 3) of weight, probability, frequency."""
    # frequency minus probability in each bin; all examples count for every class, and class 0 has the total weight
    return abs(np.diff(cells[:, :, 1:], axis=2)).sum((1, 2)) / cells[0, :, 0].sum()


@dataclass(frozen=True, eq=False)
class Classes:
    """One row per class, as tensors of length k, and the bins behind its error."""

    frequency: np.ndarray  # share of the examples with this label
    forecast: np.ndarray  # mean probability
    count: np.ndarray  # examples with this label
    predicted: np.ndarray  # examples with this prediction
    recall: np.ndarray  # accuracy among the examples with this label; nan without any
    precision: np.ndarray  # accuracy among the examples with this prediction; nan without any
    confidence: np.ndarray  # mean confidence among the examples with this prediction; nan without any
    ece: np.ndarray  # calibration error of the class's probability as a forecast of the label
    cells: ClassCells  # (k b 3) by bin of that probability, shares of the total weight: weight, probability, frequency

    @property
    def worst_first(self) -> np.ndarray:
        """Class indices by decreasing calibration error."""
        return (-self.ece).argsort(kind="stable")


@dataclass(frozen=True, eq=False)
class ClassSums:
    """The sums behind `Classes`, in float64, which add up over batches to 1e-12."""

    cells: np.ndarray  # (k b 3) weight, probability and frequency by bins of the class's own probability
    rows: ClassRows  # (5 k) weight and hits by label; weight, hits and confidence by prediction

    @classmethod
    def from_predictions(cls, p: Predictions, bins: int = 15) -> "ClassSums":
        """Sum labeled predictions in one pass over the logits, which also computes and keeps `p.outcomes`."""
        cells = ClassBinSums(p, bins)
        outcomes = p.compute_outcomes(cells.visitor)

        def total(classes: ClassIndices, values: PerExample) -> np.ndarray:
            """Return the weighted sum of the values of every class, (k)."""
            weighted = values if p.weights is None else p.weights * values
            return np.bincount(classes, weighted, minlength=p.k).astype(float)

        by_label = cells.sums[:, :, 2].sum(1)  # weight of the examples with each label
        by_prediction = np.bincount(outcomes.predicted, p.weights, minlength=p.k).astype(float)
        # weight of the right predictions of each class, the same by label and by prediction
        hits = total(p.labels, outcomes.correct)
        confidences = total(outcomes.predicted, outcomes.confidence)
        return cls(cells.sums, np.stack([by_label, hits, by_prediction, hits, confidences]))

    def __add__(self, addend: "ClassSums") -> "ClassSums":
        """Merge."""
        return ClassSums(self.cells + addend.cells, self.rows + addend.rows)

    @property
    def ece(self) -> np.ndarray:
        """Calibration error of every class (k)."""
        return class_errors(self.cells)

    @property
    def table(self) -> Classes:
        """The table of classes; a class without examples or without predictions has NaN where it would divide by 0."""
        by_label, hits_by_label, by_prediction, hits, confidences = self.rows
        cells = self.cells / self.cells[0, :, 0].sum()  # the total weight, which is the same for every class
        shares = cells.sum(1)
        with np.errstate(invalid="ignore"):
            recall, precision, confidence = hits_by_label / by_label, hits / by_prediction, confidences / by_prediction
        return Classes(
            frequency=shares[:, 2],
            forecast=shares[:, 1],
            count=np.round(by_label).astype(np.int64),
            predicted=np.round(by_prediction).astype(np.int64),
            recall=recall,
            precision=precision,
            confidence=confidence,
            ece=self.ece,
            cells=cells,
        )
