"""Softmax kernels: what losses and metrics need of the logits, in float64, in chunks that stay in cache.

Every sum over classes is a fixed tree of additions, and a chunk is filled up to whole vectors (a processor's vector
unit and its scalar one may differ in the last bit of an exponential), so that a row's numbers do not depend on which
rows stand beside it: summaries of any sharding agree to the last bit. Where there are compiled kernels (`_fast`), one
pass of theirs takes the place of the chunks, to rounding.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from calibrant.backend.dispatch import chunk_elements, kernels
from calibrant.backend.threads import PARALLEL_CHUNK_ELEMENTS, map_chunks
from calibrant.types import Labels, Logits, PerExample

_CHUNK_ELEMENTS = 1 << 18  # elements of a chunk in float64: 2 MB, which a core's cache holds
_VISIT_ELEMENTS = 1 << 17  # and of one that a compiled pass shows
ChunkWorker = Callable[[slice, Tensor, int], None]  # works on rows less their maximum, and the dimension of the classes
LOG2_E = 1 / math.log(2)  # e^x = 2^(x log2 e): torch's exp2 takes half the time of its exp


@dataclass(frozen=True, eq=False)
class RowStats:
    """What a compiled pass says of every row, in float64; of length 0 what it was not asked for."""

    confidence: Tensor
    correct: Tensor  # 1 where the label is the first class that attains the maximum, else 0
    log_likelihood: Tensor
    brier: Tensor
    entropy: Tensor
    class_probability: Tensor  # probability of one class

    @classmethod
    def compute(
        cls,
        fast: Any,
        logits: Logits,
        labels: Labels | None,
        *columns: str,
        index: int | None = None,
        visitor: "ChunkVisitor | None" = None,
        as_logs: bool = False,
    ) -> "RowStats":
        """One pass; `show` is shown all probabilities, or their `logs`."""
        z, (n, k) = logits.detach(), logits.shape
        y = torch.zeros(n, dtype=torch.int64) if labels is None else labels.contiguous()
        columns = columns if index is None else (*columns, "class_probability")
        stats = cls(*(torch.empty(n if f.name in columns else 0, dtype=torch.float64) for f in fields(cls)))
        out = [getattr(stats, f.name).numpy() for f in fields(cls)]
        d, kernel = (0, fast.row_stats_blocked) if k < fast.MIN_ROWWISE_CLASSES else (1, fast.row_stats_rowwise)
        is_float = z.dtype in (torch.float32, torch.float64)
        piece_rows = max(1, PARALLEL_CHUNK_ELEMENTS // k, visitor.min_rows if visitor else 0)
        chunk_rows = max(1, _VISIT_ELEMENTS // k) if visitor else piece_rows
        pieces = [(first, visitor.begin_chunk() if visitor else None) for first in range(0, n, piece_rows)]

        def process_piece(piece: "tuple[int, RowCallback | None]") -> None:
            begin, callback = piece
            end = min(begin + piece_rows, n)
            p = torch.empty(min(chunk_rows, end - begin) * k if callback else 0, dtype=torch.float64)
            for first in range(begin, end, chunk_rows):
                rows = slice(first, min(first + chunk_rows, end))
                m = rows.stop - first if callback else 0
                part = (z[rows] if is_float else z[rows].float()).contiguous()
                visible_probs = p[: m * k].view((k, m) if d == 0 else (m, k))
                kernel(
                    part.numpy(), y[rows].numpy(), index or 0, *(x[rows] for x in out), as_logs, visible_probs.numpy()
                )
                if callback:
                    callback(rows, visible_probs if d == 1 else visible_probs.T)

        map_chunks(process_piece, pieces, piece_rows * k)
        return stats


def log_likelihood(logits: Logits, labels: Labels) -> PerExample:
    """log p_y, the log-probability given to the true class, in float64."""
    if fast := kernels(logits):
        return RowStats.compute(fast, logits, labels, "log_likelihood").log_likelihood
    out = torch.empty(len(labels), dtype=torch.float64, device=logits.device)

    def work(rows: slice, margin: Tensor, d: int) -> None:
        m = rows.stop - rows.start
        of_label = margin.narrow(1 - d, 0, m).gather(d, labels[rows].unsqueeze(d)).squeeze(d)
        out[rows] = of_label - _tree_sum(margin.mul_(LOG2_E).exp2_(), d).log()[:m]

    _run_chunks(lambda: work, logits)
    return out


def entropies(logits: Logits) -> PerExample:
    r"""$-\sum_j p_j \log p_j$ of every example, in float64."""
    if fast := kernels(logits):
        return RowStats.compute(fast, logits, None, "entropy").entropy
    out = torch.empty(len(logits), dtype=torch.float64, device=logits.device)

    def work(rows: slice, margin: Tensor, d: int) -> None:
        odds = (margin * LOG2_E).exp2_()
        total = _tree_sum(odds, d)
        entropy = total.log() - _tree_sum(odds.mul_(margin).nan_to_num_(nan=0.0), d) / total  # 0 log 0 = 0
        out[rows] = entropy[: rows.stop - rows.start]

    _run_chunks(lambda: work, logits)
    return out


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What one pass over the logits yields for every example, in float64."""

    confidence: PerExample  # probability of the predicted class
    correct: PerExample  # 1 where the prediction, the lowest index that attains the maximum, is right, else 0
    log_likelihood: PerExample  # log p_y
    brier: PerExample  # squared distance of p from the label's corner
    probability: PerExample | None = None  # of one class, where it was asked for

    def __getitem__(self, rows: Any) -> "Outcomes":
        """Of some of the rows."""
        columns = (part[rows] for part in (self.confidence, self.correct, self.log_likelihood, self.brier))
        return Outcomes(*columns, None if self.probability is None else self.probability[rows])  # pyright: ignore

    @classmethod
    def concatenate(cls, parts: Sequence["Outcomes"]) -> "Outcomes":
        """One after the other."""
        columns = zip(*([getattr(part, f.name) for f in fields(cls)] for part in parts), strict=True)
        return cls(*(None if column[0] is None else torch.cat(column) for column in columns))  # pyright: ignore


_OUTCOME_COLUMNS = ("confidence", "correct", "log_likelihood", "brier")
RowCallback = Callable[[slice, Tensor], None]  # told rows and their probabilities (rows, k), which it may not keep


@runtime_checkable
class ChunkVisitor(Protocol):
    """Somebody to whom all probabilities are shown on the way, in pieces of many rows, each in a thread of its own."""

    @property
    def min_rows(self) -> int:
        """How many a piece has, at least."""
        ...

    def begin_chunk(self) -> RowCallback:
        """Who is told of the next piece, some rows at a time."""
        ...


@dataclass(frozen=True)
class StatelessVisitor:
    """One who is told of all pieces, and keeps nothing in common for them."""

    callback: RowCallback
    min_rows: int = 1

    def begin_chunk(self) -> RowCallback:
        """The same for every piece."""
        return self.callback


def outcomes(
    logits: Logits, labels: Labels, *, index: int | None = None, visitor: ChunkVisitor | None = None
) -> Outcomes:
    """Pass over the logits once; on the way note the probability of class `index`, and show all to `show`."""
    if fast := kernels(logits):
        stats = RowStats.compute(fast, logits, labels, *_OUTCOME_COLUMNS, index=index, visitor=visitor)
        return Outcomes(
            stats.confidence,
            stats.correct,
            stats.log_likelihood,
            stats.brier,
            None if index is None else stats.class_probability,
        )
    out = torch.empty(4, len(labels), dtype=torch.float64, device=logits.device)
    probability = None if index is None else torch.empty_like(out[0])

    def make_worker() -> ChunkWorker:
        callback = visitor.begin_chunk() if visitor else None

        def work(rows: slice, margin: Tensor, d: int) -> None:
            is_correct, of_label, odds, total = _compare_with_labels(logits[rows], labels[rows], margin, d)
            m = rows.stop - rows.start
            p_y = of_label.exp() / total
            if probability is not None:
                probability[rows] = (odds.select(d, index or 0) / total)[:m]
            if callback is not None:
                p = odds / total.unsqueeze(d)
                callback(rows, p[:m] if d == 1 else p.T[:m])
            out[0, rows] = (1 / total)[:m]
            out[1, rows] = is_correct.double()
            out[2, rows] = (of_label - total.log())[:m]
            out[3, rows] = (_tree_sum(odds.square_(), d) / total.square() - 2 * p_y + 1).clamp_min(0)[:m]

        return work

    _run_chunks(make_worker, logits, visitor.min_rows if visitor else 1)
    return Outcomes(*out, probability)  # pyright: ignore[reportCallIssue]


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Lens on the predicted class: its probability, and whether it was right; both in float64, as `outcomes` has them.

    The prediction is the lowest index that attains the maximum.
    """
    if fast := kernels(logits):
        stats = RowStats.compute(fast, logits, labels, "confidence", "correct")
        return stats.confidence, stats.correct
    confidence, correct = torch.empty(2, len(labels), dtype=torch.float64, device=logits.device)

    def work(rows: slice, margin: Tensor, d: int) -> None:
        is_correct, _, _, total = _compare_with_labels(logits[rows], labels[rows], margin, d)
        confidence[rows] = 1 / total[: len(is_correct)]
        correct[rows] = is_correct.double()

    _run_chunks(lambda: work, logits)
    return confidence, correct


def correct(logits: Logits, labels: Labels) -> PerExample:
    """Whether the predicted class is right: 1 or 0, in float64."""
    if fast := kernels(logits):
        return RowStats.compute(fast, logits, labels, "correct").correct
    return (logits.argmax(1) == labels).double()


def _compare_with_labels(
    logits: Logits, labels: Labels, margin: Tensor, d: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A chunk held against its labels: whether the prediction is right, the label's margin, odds, their sum.

    All but the first are those of the chunk as it was filled up.
    """
    m = len(labels)
    padded_labels = labels.new_zeros(margin.shape[1 - d])
    padded_labels[:m] = labels
    of_label = margin.gather(d, padded_labels.unsqueeze(d)).squeeze(d)
    odds = margin.mul_(LOG2_E).exp2_()
    total = _tree_sum(odds, d)
    return is_predicted(of_label[:m], total[:m], logits.detach(), labels), of_label, odds, total


def is_predicted(margin: Tensor, total: Tensor, logits: Logits, labels: Labels) -> Tensor:
    """Whether the label is the first class that attains the maximum, from its margin and the sum of all odds.

    Two classes can share the maximum only if the total is at least 2: then ask which comes first.
    """
    is_correct = margin == 0
    tied_rows = (is_correct & (total >= 2)).nonzero().squeeze(1)
    if len(tied_rows):
        is_correct[tied_rows] = logits[tied_rows].argmax(1) == labels[tied_rows]
    return is_correct


def visit_probabilities(logits: Logits, visitor: ChunkVisitor) -> None:
    """Show all probabilities in float64 by chunks that stay in cache."""
    if fast := kernels(logits):
        RowStats.compute(fast, logits, None, visitor=visitor)
        return

    def make_worker() -> ChunkWorker:
        callback = visitor.begin_chunk()

        def work(rows: slice, margin: Tensor, d: int) -> None:
            odds = margin.mul_(LOG2_E).exp2_()
            p = odds.div_(_tree_sum(odds, d).unsqueeze(d))
            m = rows.stop - rows.start
            callback(rows, p[:m] if d == 1 else p.T[:m])

        return work

    _run_chunks(make_worker, logits, visitor.min_rows)


def _run_chunks(make_worker: Callable[[], ChunkWorker], logits: Logits, min_rows: int = 1) -> None:
    """Work through the chunks of all logits; what is `begun` for a piece, of so many rows at least, works alone."""
    n, k = logits.shape
    row_multiple = _chunk_layout(k)[1]
    piece_rows = (
        -(-max(chunk_elements(logits, PARALLEL_CHUNK_ELEMENTS) // k, min_rows, 1) // row_multiple) * row_multiple
    )

    def process_piece(piece: tuple[int, ChunkWorker]) -> None:
        begin, work = piece
        for rows, margin, d in _centered_chunks(logits[begin : begin + piece_rows].detach()):
            work(slice(begin + rows.start, begin + rows.stop), margin, d)

    elements = piece_rows * k if logits.device.type == "cpu" else 0  # elsewhere nobody shares
    map_chunks(process_piece, [(first, make_worker()) for first in range(0, n, piece_rows)], elements)


def _centered_chunks(logits: Logits) -> Iterator[tuple[slice, Tensor, int]]:
    """Chunks of logits minus their row's maximum, in float64, and the dimension that holds the classes.

    Few classes lie along dimension 0, which keeps the vector units full. A chunk has a multiple of 64 rows, or of 16 of
    many classes; the last is filled up with zeros. The buffer is reused: take what you need.
    """
    n, k = logits.shape
    d, row_multiple = _chunk_layout(k)
    size = max(1, chunk_elements(logits, _CHUNK_ELEMENTS) // k // row_multiple) * row_multiple
    buffer_rows = min(size, -(-n // row_multiple) * row_multiple)
    buffer = torch.empty(buffer_rows * k, dtype=torch.float64, device=logits.device)
    for first in range(0, n, size):
        rows = slice(first, min(first + size, n))
        m = rows.stop - first
        padded_rows = -(-m // row_multiple) * row_multiple
        margin = buffer[: padded_rows * k].view((k, padded_rows) if d == 0 else (padded_rows, k))
        if padded_rows > m:
            margin.narrow(1 - d, m, padded_rows - m).zero_()
        margin.narrow(1 - d, 0, m).copy_(logits[rows] if d == 1 else logits[rows].T)
        yield rows, margin.sub_(margin.amax(d, keepdim=True)), d


def _chunk_layout(k: int) -> tuple[int, int]:
    """The dimension that holds k classes, and of what number of rows a chunk has a multiple."""
    return (0, 64) if k < 128 else (1, 16)


def _tree_sum(x: Tensor, d: int) -> Tensor:
    while (size := x.shape[d]) > 1:
        half = size // 2
        folded = x.narrow(d, 0, half) + x.narrow(d, half, half)
        if size % 2:
            folded.narrow(d, 0, 1).add_(x.narrow(d, size - 1, 1))
        x = folded
    return x.squeeze(d)


def class_probability(logits: Logits, index: int) -> PerExample:
    """Return the probability of one class, in float64, as `outcomes` has it."""
    if fast := kernels(logits):
        return RowStats.compute(fast, logits, None, index=index).class_probability
    out = torch.empty(len(logits), dtype=torch.float64, device=logits.device)

    def work(rows: slice, margin: Tensor, d: int) -> None:
        odds = margin.mul_(LOG2_E).exp2_()
        out[rows] = (odds.select(d, index) / _tree_sum(odds, d))[: rows.stop - rows.start]

    _run_chunks(lambda: work, logits)
    return out
