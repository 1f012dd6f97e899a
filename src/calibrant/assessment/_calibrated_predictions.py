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


@dataclass
class _BlockCache:
    """Results of the pass over all blocks that take no more memory than the outcomes."""

    predicted: Tensor | None = None
    pairs: Tensor | None = None  # the logits of two classes


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
    def _blocks_cache(self) -> _BlockCache:
        """Results of the pass over all blocks, empty before it."""
        return _BlockCache()

    @property
    def logits(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Logits (n, k) in float64."""
        if self.k == 2:
            self.compute_outcomes()
        pairs = self._blocks_cache.pairs
        return torch.cat([logits for _, logits in self._blocks()]) if pairs is None else pairs

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.source.k

    @property
    def predicted(self) -> Tensor:
        """Predicted class of each sample, noted in the pass of the outcomes."""
        self.compute_outcomes()
        assert self._blocks_cache.predicted is not None
        return self._blocks_cache.predicted

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
        predictions = CalibratedPredictions(self.source.with_event(of), self.calibrator)
        predictions._blocks_cache.pairs = self._blocks_cache.pairs
        return predictions

    def double(self) -> Predictions:
        """Return the predictions, which are in float64."""
        return self

    def _pass_over_logits(self, visitor: ChunkVisitor | None) -> Outcomes:
        """Return the outcomes, computed in blocks of rows, and cache what else the same pass gives.

        The cache holds the predicted classes and, for two classes, the logits.
        """
        index = self.of if isinstance(self.of, int) else None
        outcomes: list[Outcomes] = []
        predicted: list[Tensor] = []
        pairs: list[Tensor] = []
        if visitor is not None and BLOCK_ELEMENTS // self.k < visitor.min_rows:  # a block is smaller than a chunk
            visitor = StatelessVisitor(visitor.begin_chunk(), visitor.min_rows)
        for rows, logits in self._blocks():
            block_visitor = None if visitor is None else _RowOffset(rows.start, visitor)
            outcomes.append(softmax.outcomes(logits, self.labels[rows], index=index, visitor=block_visitor))
            predicted.append(logits.argmax(1))
            if self.k == 2:
                pairs.append(logits)
        self._blocks_cache.predicted = torch.cat(predicted)
        if pairs:
            self._blocks_cache.pairs = torch.cat(pairs)
        return Outcomes.concatenate(outcomes)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of rows and their logits."""
        size, source, pairs = max(1, BLOCK_ELEMENTS // self.k), self.source, self._blocks_cache.pairs
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            if pairs is not None:
                yield rows, pairs[rows]
                continue
            columns = {name: column[rows] for name, column in source.columns.items()}
            yield rows, map_logits(self.calibrator, source.logits[rows].double(), columns)


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
