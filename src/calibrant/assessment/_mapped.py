"""Predictions whose logits nobody keeps: a map makes them anew, a few rows at a time, whenever they are passed over."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant import _softmax
from calibrant._softmax import Outcomes, Show, Told, Visit
from calibrant.predictions import BLOCK, PARTS, Predictions, mapped_logits
from calibrant.types import Map


class Mapped(Predictions):
    """What a map makes of predictions, in float64, with no more than some rows of its logits in memory at a time.

    `logits` are there for whoever asks, and are not kept; of two classes they are, and take no more than the outcomes.
    """

    source: Predictions
    by: Map
    _predicted: Tensor
    _pairs: Tensor | None = None  # the logits of two classes, once they are made

    def __init__(self, source: Predictions, by: Map) -> None:
        self.__dict__.update({name: getattr(source, name) for name in PARTS if name != "logits"}, source=source, by=by)

    @property
    def logits(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All of them, (n k) float64; of many classes made now."""
        if self.k == 2:
            _ = self.outcomes
        return torch.cat([made for _, made in self._blocks()]) if self._pairs is None else self._pairs

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
        return self.source[rows].double().mapped(self.by)

    def judging(self, of: str | int) -> Predictions:
        """The same, with another event to be judged."""
        if of == self.of:
            return self
        other = Mapped(self.source.judging(of), self.by)
        other.__dict__["_pairs"] = self._pairs
        return other

    def double(self) -> Predictions:
        """Itself."""
        return self

    def _passed(self, show: Show | None) -> Outcomes:
        index = self.of if isinstance(self.of, int) else None
        parts: list[Outcomes] = []
        predicted: list[Tensor] = []
        pairs: list[Tensor] = []
        if show is not None and BLOCK // self.k < show.rows:  # a block is less than a piece
            show = Told(show.part(), show.rows)
        for rows, made in self._blocks():
            shown = None if show is None else _Beyond(rows.start, show)
            parts.append(_softmax.outcomes(made, self.labels[rows], index=index, show=shown))
            predicted.append(made.argmax(1))
            if self.k == 2:
                pairs.append(made)
        self.__dict__["_predicted"] = torch.cat(predicted)
        if pairs:
            self.__dict__["_pairs"] = torch.cat(pairs)
        return Outcomes.joined(parts)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        size, source, pairs = max(1, BLOCK // self.k), self.source, self._pairs
        for first in range(0, len(self), size):
            rows = slice(first, min(first + size, len(self)))
            if pairs is not None:
                yield rows, pairs[rows]
                continue
            groups = None if source.groups is None else source.groups[rows]
            yield rows, mapped_logits(self.by, source.logits[rows].double(), groups, source.group_names)


@dataclass(frozen=True)
class _Beyond:
    """Tell of rows counted from the beginning what is told of a block."""

    first: int
    show: Show

    @property
    def rows(self) -> int:
        return self.show.rows

    def part(self) -> Visit:
        visit = self.show.part()
        return lambda rows, probs: visit(slice(self.first + rows.start, self.first + rows.stop), probs)
