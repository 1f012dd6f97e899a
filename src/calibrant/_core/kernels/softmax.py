"""Softmax statistics of every row, in float64, for losses, metrics and calibrators.

`reference_stats` has the equations. A compiled kernel of the same statistics, equal to rounding, replaces it where
numba is installed. The numbers of a row depend neither on its neighbors nor on the number of threads, so that summaries
of any sharding agree to the last bit.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from calibrant._core.kernels.dispatch import chunk_elements, kernels
from calibrant._core.kernels.threads import PARALLEL_CHUNK_ELEMENTS, map_chunks
from calibrant._core.types import Labels, Logits, PerExample

LOG2_E = 1 / math.log(2)  # e^x = 2^(x log2 e): torch's exp2 takes half the time of its exp
_CHUNK_ELEMENTS = 1 << 17  # 1 MB in float64, which stays in cache
_SUM_COLUMNS = 16  # torch sums columns in vectors; the rest would be added in another order
_COLUMNS = ("confidence", "predicted", "correct", "log_likelihood", "brier", "entropy", "class_probability")
_OUTCOMES = _COLUMNS[:5]

RowCallback = Callable[[slice, Tensor], None]  # takes rows and their probabilities (rows, k), whose buffer is reused


@dataclass(frozen=True)
class ChunkVisitor:
    """Receives the probabilities of all rows. Each large chunk has its own callback, which is called in one thread."""

    begin_chunk: Callable[[], RowCallback]  # returns the callback of the next large chunk, which takes a few rows
    min_rows: int = 1  # smallest number of rows of a large chunk


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Statistics of every row from one pass over the logits, in float64."""

    confidence: PerExample  # probability of the predicted class
    predicted: Labels  # the argmax, the first one in a tie
    correct: PerExample  # 1 if the label is the predicted class, else 0
    log_likelihood: PerExample  # log p_y
    brier: PerExample  # squared distance of p from the one-hot label
    probability: PerExample | None = None  # of one class, if requested

    def __getitem__(self, rows: Any) -> "Outcomes":
        """Select rows by slice, mask or indices."""
        columns = (getattr(self, f.name) for f in fields(self))
        return Outcomes(*(None if column is None else column[rows] for column in columns))  # pyright: ignore

    def with_labels(self, logits: Logits, labels: Labels, new_labels: Labels) -> "Outcomes":
        """Return the outcomes for `new_labels` in place of `labels`, without another pass over the logits.

        Only the logits of the two labels are read: log p_y changes by their difference.
        """
        old, new = (logits.gather(1, y[:, None]).squeeze(1).double() for y in (labels, new_labels))
        log_likelihood = new - old + self.log_likelihood
        # The Brier score is sum_j p_j^2 - 2 p_y + 1, in which only p_y changes
        brier = self.brier + 2 * (self.log_likelihood.exp() - log_likelihood.exp())
        is_impossible = old.isneginf()
        if bool(is_impossible.any()):  # the difference to the old label is not defined
            rows = outcomes(logits[is_impossible], new_labels[is_impossible])
            log_likelihood[is_impossible], brier[is_impossible] = rows.log_likelihood, rows.brier
        correct = (self.predicted == new_labels).double()
        return Outcomes(self.confidence, self.predicted, correct, log_likelihood, brier, self.probability)

    @classmethod
    def concatenate(cls, parts: Sequence["Outcomes"]) -> "Outcomes":
        """Join the rows of several parts."""
        columns = zip(*([getattr(part, f.name) for f in fields(cls)] for part in parts), strict=True)
        return cls(*(None if column[0] is None else torch.cat(column) for column in columns))  # pyright: ignore


def outcomes(
    logits: Logits,
    labels: Labels,
    *,
    index: int | None = None,
    visitor: ChunkVisitor | None = None,
    first_row: int = 0,
) -> Outcomes:
    """Compute all statistics of `Outcomes` in one pass over the logits.

    Args:
        logits: Logits of any floating type.
        labels: Class indices.
        index: Class whose probability is returned as well.
        visitor: Receives all probabilities on the way.
        first_row: Number from which rows are counted for the visitor.
    """
    columns = _OUTCOMES if index is None else (*_OUTCOMES, "class_probability")
    return Outcomes(*_row_stats(logits, labels, *columns, index=index or 0, visitor=visitor, first_row=first_row))


def runner_up(logits: Logits, predicted: Labels) -> Labels:
    """Return each row's most likely class other than the predicted one."""
    if logits.shape[1] == 2:
        return 1 - predicted
    first, second = logits.topk(2, dim=1).indices.T
    return first.where(first != predicted, second)  # of equal logits, either may come first


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Return the probability of the predicted class, (n), and 1 where it is the label, else 0, (n), both in float64."""
    confidence, is_right = _row_stats(logits, labels, "confidence", "correct")
    return confidence, is_right


def correct(logits: Logits, labels: Labels) -> PerExample:
    """Return 1 where the predicted class is the label, else 0, (n), in half the time of torch's argmax."""
    return _row_stats(logits, labels, "correct")[0]


def log_likelihood(logits: Logits, labels: Labels) -> PerExample:
    """Return log p_y, the log-probability of the true class, in float64."""
    return _row_stats(logits, labels, "log_likelihood")[0]


def error_surprisal(logits: Logits) -> PerExample:
    """Return -log(1 - p), the surprisal of an error of the most likely class of every row, in float64."""
    z = logits.double()
    log_error = z.scatter(1, z.argmax(1, keepdim=True), -torch.inf).logsumexp(1)
    return torch.nn.functional.softplus(z.amax(1) - log_error)


def entropies(logits: Logits) -> PerExample:
    r"""Return $-\sum_j p_j \log p_j$ of every row, in float64."""
    return _row_stats(logits, None, "entropy")[0]


def class_probability(logits: Logits, index: int) -> PerExample:
    """Return the probability of one class, in float64."""
    return _row_stats(logits, None, "class_probability", index=index)[0]


def visit_probabilities(logits: Logits, visitor: ChunkVisitor) -> None:
    """Pass all probabilities, in float64, to a visitor in chunks that stay in cache."""
    _row_stats(logits, None, visitor=visitor)


def _row_stats(
    logits: Logits,
    labels: Labels | None,
    *names: str,
    index: int = 0,
    visitor: ChunkVisitor | None = None,
    first_row: int = 0,
) -> list[Tensor]:
    """Return the named statistics of all rows, each (n), in the order of `names`, in one pass over the logits.

    Args:
        logits: Logits of any floating type.
        labels: Class indices, needed by some statistics.
        names: Members of `_COLUMNS`.
        index: Class of "class_probability".
        visitor: Receives the probabilities of all rows.
        first_row: Number from which rows are counted for the visitor.
    """
    z, (n, k) = logits.detach(), logits.shape
    y = torch.zeros(n, dtype=torch.int64, device=z.device) if labels is None else labels.contiguous()
    stats: dict[str, Tensor] = {}
    for name in _COLUMNS:  # the kernel takes all of them, and skips those of length 0
        dtype = torch.int64 if name == "predicted" else torch.float64
        stats[name] = torch.empty(n if name in names else 0, dtype=dtype, device=z.device)
    compiled = kernels(z)
    chunk_rows = max(1, chunk_elements(z, _CHUNK_ELEMENTS) // k // _SUM_COLUMNS) * _SUM_COLUMNS
    large_chunk_rows = max(chunk_rows, PARALLEL_CHUNK_ELEMENTS // k, visitor.min_rows if visitor else 1)
    # Threads share the work in large chunks; each of these is computed in chunks that stay in cache
    if compiled and not visitor:  # a kernel divides its rows into blocks that stay in cache by itself
        chunk_rows = large_chunk_rows

    def compute(rows: slice, buffer: np.ndarray) -> Tensor:
        """Write the statistics of a chunk. Return its probabilities (rows, k), or (0, k) if the buffer is empty."""
        if not compiled:
            computed = reference_stats(z[rows], y[rows], (*names, "probs") if len(buffer) else names, index)
            for name in names:
                stats[name][rows] = computed[name]
            return computed.get("probs", z[:0])
        columns = (column[rows].numpy() for column in stats.values())
        part = z[rows] if z.dtype in (torch.float32, torch.float64) else z[rows].float()
        p = buffer[: len(part) * k]
        # (k, rows): of many classes the kernel writes row by row, of few class by class
        p = p.reshape(-1, k).T if k >= compiled.MANY_CLASSES else p.reshape(k, -1)
        compiled.row_stats(part.contiguous().numpy(), y[rows].numpy(), index, *columns, p)
        return torch.from_numpy(p.T)

    def process(large_chunk: "tuple[int, RowCallback | None]") -> None:
        """Compute the chunks of a large chunk one after the other, and pass their probabilities to its callback."""
        start, callback = large_chunk
        end = min(start + large_chunk_rows, n)
        buffer = np.empty(min(chunk_rows, end - start) * k if callback else 0)
        for first in range(start, end, chunk_rows):
            last = min(first + chunk_rows, end)
            probs = compute(slice(first, last), buffer)
            if callback:
                callback(slice(first_row + first, first_row + last), probs)

    large_chunks = [(first, visitor.begin_chunk() if visitor else None) for first in range(0, n, large_chunk_rows)]
    # 0 elements: on a GPU, a single thread
    map_chunks(process, large_chunks, large_chunk_rows * k if z.device.type == "cpu" else 0)
    return [stats[name] for name in names]


def reference_stats(logits: Logits, labels: Labels, names: Sequence[str], index: int = 0) -> dict[str, Tensor]:
    """Return the named statistics of a chunk, each (rows). "probs" gives the probabilities of all classes (rows, k).

    The logits are transposed, a row to a column, and padded to a multiple of `_SUM_COLUMNS` columns, so that torch adds
    the classes of every row in the same order. `margin` is z - max z, and `powers` are e^margin, the probabilities
    before division by their total.
    """
    n, k = logits.shape
    missing = -n % _SUM_COLUMNS
    y = pad(labels, (0, missing))
    margin = logits.new_zeros(k, n + missing, dtype=torch.float64)
    margin[:, :n] = logits.T
    margin -= margin.amax(0)
    margin_y = margin.gather(0, y[None])[0]
    powers = margin.clone() if "entropy" in names else margin  # only the entropy needs both
    powers.mul_(LOG2_E).exp2_()  # e^margin, faster than by exp
    total = powers.sum(0)
    equations = {
        "confidence": lambda: 1 / total,
        "predicted": lambda: logits.argmax(1),
        "correct": lambda: is_predicted(logits, labels, margin_y[:n], total[:n]).double(),
        "log_likelihood": lambda: margin_y - total.log(),
        "brier": lambda: (powers.square().sum(0) / total.square() - 2 * margin_y.exp() / total + 1).clamp_min(0),
        # minus the mean of log p = margin - log total; 0 log 0 = 0
        "entropy": lambda: total.log() - (powers * margin.nan_to_num(neginf=0.0)).sum(0) / total,
        "class_probability": lambda: powers[index] / total,
        "probs": lambda: (powers / total).T,
    }
    return {name: equations[name]()[:n] for name in names}


def is_predicted(logits: Tensor, labels: Tensor, margin_y: Tensor, total: Tensor) -> Tensor:
    """Return whether the label is the first largest logit of each row, in a fraction of the time of torch's argmax.

    Only rows in which another logit may equal the largest one need the argmax.

    Args:
        logits: Logits, (n k).
        labels: Labels y, (n).
        margin_y: z_y - max z, (n).
        total: Sums of e^(z - max z), (n). Each largest logit adds 1, so that below 2 there is only one.
    """
    is_right = margin_y == 0
    tied = (is_right & (total >= 2)).nonzero().squeeze(1)
    if len(tied):
        is_right[tied] = logits[tied].argmax(1) == labels[tied]
    return is_right


@torch.no_grad()
def chunked_logits(
    hidden: Tensor, weight: Tensor | None, bias: Tensor | None, max_elements: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of rows and their logits $h W^T + b$ (m, k) in at least float32, without gradients.

    Args:
        hidden: Hidden states (n, d), or logits (n, k) if there is no weight.
        weight: Weight of the last layer (k, d).
        bias: Bias of the last layer (k).
        max_elements: Largest number of logits at a time, unless a single row has more.
    """
    rows = max(1, max_elements // (hidden.shape[1] if weight is None else len(weight)))
    for start in range(0, len(hidden), rows):
        chunk = slice(start, start + rows)
        logits = hidden[chunk] if weight is None else torch.nn.functional.linear(hidden[chunk], weight, bias)
        yield chunk, logits.to(torch.promote_types(logits.dtype, torch.float32))
