"""Predictions of a calibrator, computed in blocks of rows to bound memory."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from calibrant._core.arrays import namespace
from calibrant._core.kernels import softmax
from calibrant._core.kernels.softmax import ChunkVisitor, Outcomes
from calibrant._core.types import Array, Map
from calibrant.predictions import BLOCK_ELEMENTS, FIELD_NAMES, Predictions, calibrate_logits


class CalibratedPredictions(Predictions):
    """Predictions of a calibrator in float64, with one block of logits in memory at a time.

    `logits` are computed anew at every access.
    """

    source: Predictions
    calibrator: Map

    def __init__(self, source: Predictions, calibrator: Map) -> None:
        fields = {name: getattr(source, name) for name in FIELD_NAMES if name != "logits"}
        self.__dict__.update(fields, source=source, calibrator=calibrator)  # not by assignment, which is frozen

    @property
    def logits(self) -> Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Logits (n, k) in float64."""
        return namespace(self.source.logits).concat([logits for _, logits in self._blocks()])

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.source.k

    @property
    def predicted(self) -> np.ndarray:
        """Predicted class of each sample."""
        return self.outcomes.predicted

    @property
    def runner_up(self) -> np.ndarray:
        """The most likely class of each sample beside the predicted one, by the logits before calibration."""
        return np.where(self.source.predicted != self.predicted, self.source.predicted, self.source.runner_up)

    @property
    def correct(self) -> np.ndarray:
        """Whether the predicted class is right."""
        return self.outcomes.correct

    def __getitem__(self, rows: Any) -> Predictions:
        """Select rows, as predictions that keep their logits."""
        return self.source[rows].double().apply(self.calibrator)

    def with_event(self, of: str | int) -> Predictions:
        """Return the same samples with another event."""
        if of == self.of:
            return self
        return CalibratedPredictions(self.source.with_event(of), self.calibrator)

    def with_labels(self, labels: np.ndarray) -> Predictions:
        """Return the same samples with other labels, without computing every outcome anew."""
        outcomes = [
            self.outcomes[rows].with_labels(logits, self.labels[rows], labels[rows]) for rows, logits in self._blocks()
        ]
        predictions = CalibratedPredictions(self.source.with_labels(labels), self.calibrator)
        predictions.__dict__["outcomes"] = Outcomes.concatenate(outcomes)  # where `cached_property` keeps its value
        return predictions

    def double(self) -> Predictions:
        """Return the predictions, which are in float64."""
        return self

    def compute_outcomes(self, visitor: ChunkVisitor | None = None) -> Outcomes:
        """Compute and cache the outcomes (predicted class, confidence, ...) block by block.

        A visitor sees the probabilities of each block, so that other statistics need no pass of their own.
        """
        index = self.of if isinstance(self.of, int) else None
        if visitor is not None and BLOCK_ELEMENTS // self.k < visitor.min_rows:
            callback = visitor.begin_chunk()  # blocks have fewer rows than the visitor wants per callback: share one
            visitor = ChunkVisitor(lambda: callback, visitor.min_rows)
        blocks = [
            softmax.outcomes(logits, self.labels[rows], index=index, visitor=visitor, first_row=rows.start)
            for rows, logits in self._blocks()
        ]
        self.__dict__["outcomes"] = outcomes = Outcomes.concatenate(blocks)
        return outcomes

    def _blocks(self) -> Iterator[tuple[slice, Array]]:
        """Yield slices of rows and their logits, which take a bounded amount of memory."""
        size = max(1, BLOCK_ELEMENTS // self.k)
        for first in range(0, len(self), size):
            rows = slice(first, min(first + size, len(self)))
            columns = {name: column[rows] for name, column in self.source.columns.items()}
            yield rows, calibrate_logits(self.calibrator, self.source[rows].double().logits, columns)
