"""Predictions of a map, computed in blocks of rows instead of kept in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant.backend import softmax
from calibrant.backend.softmax import ChunkVisitor, Outcomes, RowCallback, StatelessVisitor
from calibrant.predictions import BLOCK_ELEMENTS, FIELD_NAMES, Predictions, map_logits
from calibrant.types import Map


class CalibratedPredictions(Predictions):
    """Predictions of a map in float64, with one block of logits in memory at a time.

    `logits` are computed anew at every access, except those of two classes.
    """

    source: Predictions
    calibrator: Map

    def __init__(self, source: Predictions, calibrator: Map) -> None:
        self.__dict__.update(
            {name: getattr(source, name) for name in FIELD_NAMES if name != "logits"},
            source=source,
            calibrator=calibrator,
        )

    @cached_property
    def _pairs(self) -> Tensor | None:
        """Logits of two classes, which take no more memory than the outcomes; None for more classes."""
        return torch.cat([self._map_rows(rows) for rows in self._block_rows()]) if self.k == 2 else None

    @property
    def logits(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Logits (n, k) in float64."""
        return torch.cat([logits for _, logits in self._blocks()]) if self._pairs is None else self._pairs

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.source.k

    @property
    def predicted(self) -> Tensor:
        """Predicted class of each sample."""
        return self.outcomes.predicted

    @property
    def runner_up(self) -> Tensor:
        """The most likely class of each sample beside the predicted one, by the logits before the map."""
        return self.source.predicted.where(self.source.predicted != self.predicted, self.source.runner_up)

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class is right."""
        return self.outcomes.correct

    def __getitem__(self, rows: Any) -> Predictions:
        """Select rows, as predictions that keep their logits."""
        return self.source[rows].double().apply(self.calibrator)

    def with_event(self, of: str | int) -> Predictions:
        """Return the same samples with another event."""
        if of == self.of:
            return self
        return self._with_source(self.source.with_event(of))

    def with_labels(self, labels: Tensor) -> Predictions:
        """Return the same samples with other labels."""
        outcomes, parts = self.outcomes, list[Outcomes]()
        for rows, logits in self._blocks():
            parts.append(outcomes[rows].with_labels(logits, self.labels[rows], labels[rows]))
        predictions = self._with_source(self.source.with_labels(labels))
        predictions._cache.outcomes = Outcomes.concatenate(parts)
        return predictions

    def _with_source(self, source: Predictions) -> "CalibratedPredictions":
        """Return the predictions of the same logits with the labels and event of `source`."""
        predictions = CalibratedPredictions(source, self.calibrator)
        predictions.__dict__["_pairs"] = self._pairs
        return predictions

    def double(self) -> Predictions:
        """Return the predictions, which are in float64."""
        return self

    def _pass_over_logits(self, visitor: ChunkVisitor | None) -> Outcomes:
        """Return the outcomes, computed in blocks of rows."""
        index = self.of if isinstance(self.of, int) else None
        outcomes: list[Outcomes] = []
        if visitor is not None and BLOCK_ELEMENTS // self.k < visitor.min_rows:  # a block is smaller than a chunk
            visitor = StatelessVisitor(visitor.begin_chunk(), visitor.min_rows)
        for rows, logits in self._blocks():
            block_visitor = None if visitor is None else _RowOffset(rows.start, visitor)
            outcomes.append(softmax.outcomes(logits, self.labels[rows], index=index, visitor=block_visitor))
        return Outcomes.concatenate(outcomes)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of rows and their logits."""
        pairs = self._pairs
        return ((rows, self._map_rows(rows) if pairs is None else pairs[rows]) for rows in self._block_rows())

    def _block_rows(self) -> Iterator[slice]:
        """Yield slices of rows whose logits take a bounded amount of memory."""
        size = max(1, BLOCK_ELEMENTS // self.k)
        return (slice(first, min(first + size, len(self))) for first in range(0, len(self), size))

    def _map_rows(self, rows: slice) -> Tensor:
        """Compute the logits of some rows."""
        columns = {name: column[rows] for name, column in self.source.columns.items()}
        return map_logits(self.calibrator, self.source.logits[rows].double(), columns)


@dataclass(frozen=True)
class _RowOffset:
    """A visitor of one block that counts rows from the beginning of the predictions."""

    row_offset: int
    visitor: ChunkVisitor

    @property
    def min_rows(self) -> int:
        return self.visitor.min_rows

    def begin_chunk(self) -> RowCallback:
        visit = self.visitor.begin_chunk()
        return lambda rows, probs: visit(slice(self.row_offset + rows.start, self.row_offset + rows.stop), probs)
