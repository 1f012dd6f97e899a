"""Predictions whose logits nobody keeps: a map makes them anew, a few rows at a time, whenever they are passed over."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.backend import softmax
from calibrant.backend.softmax import ChunkVisitor, Outcomes, RowCallback, StatelessVisitor
from calibrant.predictions import BLOCK_ELEMENTS, FIELD_NAMES, Predictions, map_logits
from calibrant.types import Map


class CalibratedPredictions(Predictions):
    """What a map makes of predictions, in float64, with no more than some rows of its logits in memory at a time.

    `logits` are there for whoever asks, and are not kept; of two classes they are, and take no more than the outcomes.
    """

    source: Predictions
    calibrator: Map
    _predicted: Tensor
    _pairs: Tensor | None = None  # the logits of two classes, once they are made

    def __init__(self, source: Predictions, calibrator: Map) -> None:
        self.__dict__.update(
            {name: getattr(source, name) for name in FIELD_NAMES if name != "logits"},
            source=source,
            calibrator=calibrator,
        )

    @property
    def logits(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All of them, (n k) float64; of many classes made now."""
        if self.k == 2:
            _ = self.outcomes
        return torch.cat([logits for _, logits in self._blocks()]) if self._pairs is None else self._pairs

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.source.k

    @property
    def predicted(self) -> Tensor:
        """The predicted class of every example, noted when the outcomes are made."""
        _ = self.outcomes
        return self._predicted

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class is right."""
        return self.outcomes.correct

    def __getitem__(self, rows: Any) -> Predictions:
        """Some of the rows, as predictions that keep their logits."""
        return self.source[rows].double().apply(self.calibrator)

    def with_event(self, of: str | int) -> Predictions:
        """The same, with another event to be judged."""
        if of == self.of:
            return self
        predictions = CalibratedPredictions(self.source.with_event(of), self.calibrator)
        predictions.__dict__["_pairs"] = self._pairs
        return predictions

    def double(self) -> Predictions:
        """Itself."""
        return self

    def _pass_over_logits(self, visitor: ChunkVisitor | None) -> Outcomes:
        index = self.of if isinstance(self.of, int) else None
        parts: list[Outcomes] = []
        predicted: list[Tensor] = []
        pairs: list[Tensor] = []
        if visitor is not None and BLOCK_ELEMENTS // self.k < visitor.min_rows:  # a block is less than a piece
            visitor = StatelessVisitor(visitor.begin_chunk(), visitor.min_rows)
        for rows, logits in self._blocks():
            offset_show = None if visitor is None else _RowOffset(rows.start, visitor)
            parts.append(softmax.outcomes(logits, self.labels[rows], index=index, visitor=offset_show))
            predicted.append(logits.argmax(1))
            if self.k == 2:
                pairs.append(logits)
        self.__dict__["_predicted"] = torch.cat(predicted)
        if pairs:
            self.__dict__["_pairs"] = torch.cat(pairs)
        return Outcomes.concatenate(parts)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        size, source, pairs = max(1, BLOCK_ELEMENTS // self.k), self.source, self._pairs
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            if pairs is not None:
                yield rows, pairs[rows]
                continue
            groups = None if source.groups is None else source.groups[rows]
            yield rows, map_logits(self.calibrator, source.logits[rows].double(), groups, source.group_names)


@dataclass(frozen=True)
class _RowOffset:
    """Tell of rows counted from the beginning what is told of a block."""

    row_offset: int
    show: ChunkVisitor

    @property
    def min_rows(self) -> int:
        return self.show.min_rows

    def begin_chunk(self) -> RowCallback:
        visit = self.show.begin_chunk()
        return lambda rows, probs: visit(slice(self.row_offset + rows.start, self.row_offset + rows.stop), probs)
