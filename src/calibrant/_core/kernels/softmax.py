"""Softmax statistics of every row, in float64, for losses, metrics and calibrators.

`reference_stats` has the equations. A compiled kernel of the same statistics, equal to rounding, replaces it where
numba is installed. The numbers of a row depend neither on its neighbors nor on the number of threads, so that summaries
of any sharding agree to the last bit.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from calibrant._core.arrays import is_on_cpu, like, namespace, to_numpy
from calibrant._core.kernels.dispatch import chunk_elements, kernels
from calibrant._core.kernels.threads import PARALLEL_CHUNK_ELEMENTS, map_chunks
from calibrant._core.types import ClassIndices, Labels, Logits, PerExample

_MIN_PAIRWISE_TERMS = 8  # from which the order of numpy's sums depends on the layout in memory
_MAX_COLUMN_CLASSES = 256  # up to which numpy is faster by class than by row
_CHUNK_ELEMENTS = 1 << 17  # 1 MB in float64, which stays in cache
_COLUMNS = ("confidence", "predicted", "correct", "log_likelihood", "brier", "entropy", "class_probability")
_OUTCOMES = _COLUMNS[:5]

# Takes rows and their probabilities (rows, k), an array whose memory is reused, or a tensor on a device
RowCallback = Callable[[slice, Any], None]


@dataclass(frozen=True)
class ChunkVisitor:
    """Receives the probabilities of all rows. Each large chunk has its own callback, which is called in one thread."""

    begin_chunk: Callable[[], RowCallback]  # returns the callback of the next large chunk, which takes a few rows
    min_rows: int = 1  # smallest number of rows of a large chunk


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Statistics of every row from one pass over the logits: arrays in float64, and int64 for classes."""

    confidence: PerExample  # probability of the predicted class
    predicted: ClassIndices  # the argmax, the first one in a tie
    correct: PerExample  # 1 if the label is the predicted class, else 0
    log_likelihood: PerExample  # log p_y
    brier: PerExample  # squared distance of p from the one-hot label
    probability: PerExample | None = None  # of one class, if requested

    def __getitem__(self, rows: Any) -> "Outcomes":
        """Select rows by slice, mask or indices."""
        columns = (getattr(self, f.name) for f in fields(self))
        return Outcomes(*(None if column is None else column[rows] for column in columns))  # pyright: ignore

    def with_labels(self, logits: Logits, labels: ClassIndices, new_labels: ClassIndices) -> "Outcomes":
        """Return the outcomes for `new_labels` in place of `labels`, without another pass over the logits.

        Only the logits of the two labels are read: log p_y changes by their difference.
        """
        rows = np.arange(len(labels))
        old, new = (to_numpy(logits[rows, y]).astype(float) for y in (labels, new_labels))
        with np.errstate(invalid="ignore"):  # of two infinite logits, whose rows are computed anew below
            log_likelihood = new - old + self.log_likelihood
        # The Brier score is sum_j p_j^2 - 2 p_y + 1, in which only p_y changes
        brier = self.brier + 2 * (np.exp(self.log_likelihood) - np.exp(log_likelihood))
        is_impossible = np.isneginf(old)
        if is_impossible.any():  # the difference to the old label is not defined
            part = outcomes(logits[like(is_impossible, logits)], new_labels[is_impossible])
            log_likelihood[is_impossible], brier[is_impossible] = part.log_likelihood, part.brier
        correct = (self.predicted == new_labels).astype(float)
        return Outcomes(self.confidence, self.predicted, correct, log_likelihood, brier, self.probability)

    @classmethod
    def concatenate(cls, parts: Sequence["Outcomes"]) -> "Outcomes":
        """Join the rows of several parts."""
        columns = zip(*([getattr(part, f.name) for f in fields(cls)] for part in parts), strict=True)
        return cls(*(None if column[0] is None else np.concatenate(column) for column in columns))  # pyright: ignore


def outcomes(
    logits: Logits,
    labels: ClassIndices | Labels,
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


def runner_up(logits: Logits, predicted: ClassIndices) -> ClassIndices:
    """Return each row's most likely class other than the predicted one."""
    if logits.shape[1] == 2:
        return 1 - predicted
    xp = namespace(logits)
    is_predicted = like(predicted, logits)[:, None] == xp.arange(logits.shape[1], device=logits.device)
    lowest = xp.finfo(logits.dtype).min  # above the masked one, also of impossible classes
    return to_numpy(xp.argmax(xp.where(is_predicted, -xp.inf, xp.clip(logits, min=lowest)), axis=1))


def top_label(logits: Logits, labels: ClassIndices | Labels) -> tuple[PerExample, PerExample]:
    """Return the probability of the predicted class, (n), and 1 where it is the label, else 0, (n), both in float64."""
    confidence, is_right = _row_stats(logits, labels, "confidence", "correct")
    return confidence, is_right


def top_probability(logits: Logits) -> PerExample:
    """Return the probability of the predicted class, (n), in float64."""
    return _row_stats(logits, None, "confidence")[0]


def correct(logits: Logits, labels: ClassIndices | Labels) -> PerExample:
    """Return 1 where the predicted class is the label, else 0, (n), in half the time of an argmax."""
    return _row_stats(logits, labels, "correct")[0]


def log_likelihood(logits: Logits, labels: ClassIndices | Labels) -> PerExample:
    """Return log p_y, the log-probability of the true class, in float64."""
    return _row_stats(logits, labels, "log_likelihood")[0]


def error_surprisal(logits: Logits) -> PerExample:
    """Return -log(1 - p), the surprisal of an error of the most likely class of every row, in float64."""
    z = to_numpy(logits).astype(float)  # of few rows
    without_top = z.copy()
    without_top[np.arange(len(z)), z.argmax(1)] = -math.inf
    return np.logaddexp(0, z.max(1) - log_sum_exp(without_top))


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
    labels: ClassIndices | Labels | None,
    *names: str,
    index: int = 0,
    visitor: ChunkVisitor | None = None,
    first_row: int = 0,
) -> list[np.ndarray]:
    """Return the named statistics of all rows, each (n), in the order of `names`, in one pass over the logits.

    The logits may lie on a GPU; the statistics are arrays in memory.

    Args:
        logits: Logits of any floating type.
        labels: Class indices, needed by some statistics.
        names: Members of `_COLUMNS`.
        index: Class of "class_probability".
        visitor: Receives the probabilities of all rows.
        first_row: Number from which rows are counted for the visitor.
    """
    z, (n, k) = to_numpy(logits) if is_on_cpu(logits) else logits, logits.shape
    y = np.zeros(n, dtype=np.int64) if labels is None else np.ascontiguousarray(to_numpy(labels))
    stats: dict[str, np.ndarray] = {}
    for name in _COLUMNS:  # the kernel takes all of them, and skips those of length 0
        stats[name] = np.empty(n if name in names else 0, dtype=np.int64 if name == "predicted" else np.float64)
    compiled = kernels(z)
    chunk_rows = max(1, chunk_elements(z, _CHUNK_ELEMENTS) // k)
    large_chunk_rows = max(chunk_rows, PARALLEL_CHUNK_ELEMENTS // k, visitor.min_rows if visitor else 1)
    # Threads share the work in large chunks; each of these is computed in chunks that stay in cache
    if compiled and not visitor:  # a kernel divides its rows into blocks that stay in cache by itself
        chunk_rows = large_chunk_rows

    def compute(rows: slice, buffer: np.ndarray) -> Any:
        """Write the statistics of a chunk. Return its probabilities (rows, k), or (0, k) if the buffer is empty."""
        if not compiled:
            computed = reference_stats(z[rows], like(y[rows], z), (*names, "probs") if len(buffer) else names, index)
            for name in names:
                stats[name][rows] = to_numpy(computed[name])
            return computed.get("probs", z[:0])
        columns = (column[rows] for column in stats.values())
        part = to_numpy(z[rows])
        part = part.astype(np.float32) if part.dtype == np.float16 else part
        p = buffer[: len(part) * k]
        # (k, rows): of many classes the kernel writes row by row, of few class by class
        p = p.reshape(-1, k).T if k >= compiled.MANY_CLASSES else p.reshape(k, -1)
        compiled.row_stats(np.ascontiguousarray(part), y[rows], index, *columns, p)
        return p.T

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
    map_chunks(process, large_chunks, large_chunk_rows * k if is_on_cpu(z) else 0)
    return [stats[name] for name in names]


def reference_stats(logits: Logits, labels: Any, names: Sequence[str], index: int = 0) -> dict[str, Any]:
    """Return the named statistics of a chunk, each (rows). "probs" gives the probabilities of all classes (rows, k).

    The logits are transposed, a row to a column, so that the classes of every row are added in the same order.
    `margin` is z - max z, and `powers` are e^margin, the probabilities before division by their total.
    """
    xp = namespace(logits)
    has_few_classes = logits.shape[1] < _MIN_PAIRWISE_TERMS
    z = class_columns(logits, np.float64) if has_few_classes else xp.astype(logits, xp.float64).T
    margin = z - xp.max(z, axis=0)
    margin_y = xp.take_along_axis(margin, labels[None, :], axis=0)[0]
    powers = xp.exp(margin)
    total = xp.sum(powers, axis=0)
    equations = {
        "confidence": lambda: 1 / total,
        "predicted": lambda: xp.argmax(logits, axis=1),
        "correct": lambda: xp.astype(is_predicted(logits, labels, margin_y, total), xp.float64),
        "log_likelihood": lambda: margin_y - xp.log(total),
        "brier": lambda: xp.clip(xp.sum(powers**2, axis=0) / total**2 - 2 * xp.exp(margin_y) / total + 1, min=0.0),
        # minus the mean of log p = margin - log total; 0 log 0 = 0
        "entropy": lambda: xp.log(total) - xp.sum(powers * xp.where(powers == 0, 0.0, margin), axis=0) / total,
        "class_probability": lambda: powers[index, :] / total,
        "probs": lambda: (powers / total).T,
    }
    return {name: equations[name]() for name in names}


def is_predicted(logits: Logits, labels: Any, margin_y: Any, total: Any) -> Any:
    """Return whether the label is the first largest logit of each row, without an argmax of all rows.

    Only rows in which another logit may equal the largest one need the argmax.

    Args:
        logits: Logits, (n k).
        labels: Labels y, (n).
        margin_y: z_y - max z, (n).
        total: Sums of e^(z - max z), (n). Each largest logit adds 1, so that below 2 there is only one.
    """
    xp = namespace(logits)
    is_right = margin_y == 0
    tied = xp.nonzero(is_right & (total >= 2))[0]
    if len(tied):
        is_right[tied] = xp.argmax(logits[tied], axis=1) == labels[tied]
    return is_right


def probabilities(logits: Logits) -> Any:
    """Return the probabilities of all classes (n, k) in float64, on the device of the logits."""
    xp = namespace(logits)
    z = xp.astype(logits, xp.float64)
    powers = xp.exp(z - xp.max(z, axis=-1, keepdims=True))
    return powers / xp.sum(powers, axis=-1, keepdims=True)


def class_columns(logits: Logits, dtype: type) -> Any:
    """Return a copy of logits (n, k) as (k, n) of a type of numpy.

    Of few classes it is stored class by class: numpy is then faster along rows.
    """
    if isinstance(logits, np.ndarray):
        return np.array(logits.T, dtype=dtype, order="C" if logits.shape[1] <= _MAX_COLUMN_CLASSES else "F")
    xp = namespace(logits)
    return xp.astype(logits.T, getattr(xp, np.dtype(dtype).name))


def exp_in_place(x: Any) -> Any:
    """Return e^x of x <= 0, which may overwrite x."""
    if not isinstance(x, np.ndarray):
        return namespace(x).exp(x)
    if x.dtype == np.float64 and x.flags.forc and (compiled := kernels(x)):  # contiguous, so that `ravel` is a view
        compiled.exp_in_place(x.ravel("K"))
        return x
    return np.exp(x, out=x)


def log_sum_exp(z: Any) -> Any:
    """Return log sum e^z over the last axis, on the device of z."""
    xp = namespace(z)
    top = xp.max(z, axis=-1)
    shift = xp.where(xp.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):  # log 0, where all are -inf
        return xp.log(xp.sum(xp.exp(z - shift[..., None]), axis=-1)) + shift
