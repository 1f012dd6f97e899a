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

from calibrant._fast import at_a_time, kernels
from calibrant._threads import PIECE, map_chunks
from calibrant.types import Labels, Logits, PerExample

_CHUNK = 1 << 18  # elements of a chunk in float64: 2 MB, which a core's cache holds
_SHOWN = 1 << 17  # and of one that a compiled pass shows
Chunk = Callable[[slice, Tensor, int], None]  # works on rows less their maximum, and the dimension of the classes
LOG2_E = 1 / math.log(2)  # e^x = 2^(x log2 e): torch's exp2 takes half the time of its exp


@dataclass(frozen=True, eq=False)
class Rows:
    """What a compiled pass says of every row, in float64; of length 0 what it was not asked for."""

    confidence: Tensor
    right: Tensor  # 1 where the label is the first class that attains the maximum, else 0
    log_likelihood: Tensor
    brier: Tensor
    entropy: Tensor
    chosen: Tensor  # probability of one class

    @classmethod
    def of(
        cls,
        fast: Any,
        logits: Logits,
        labels: Labels | None,
        *wanted: str,
        index: int | None = None,
        show: "Show | None" = None,
        logs: bool = False,
    ) -> "Rows":
        """One pass; `show` is shown all probabilities, or their `logs`."""
        z, (n, k) = logits.detach(), logits.shape
        y = torch.zeros(n, dtype=torch.int64) if labels is None else labels.contiguous()
        wanted = wanted if index is None else (*wanted, "chosen")
        made = cls(*(torch.empty(n if f.name in wanted else 0, dtype=torch.float64) for f in fields(cls)))
        out = [getattr(made, f.name).numpy() for f in fields(cls)]
        d, work = (0, fast.narrow) if k < fast.WIDE else (1, fast.wide)
        plain = z.dtype in (torch.float32, torch.float64)
        each = max(1, PIECE // k, show.rows if show else 0)
        size = max(1, _SHOWN // k) if show else each
        pieces = [(first, show.part() if show else None) for first in range(0, n, each)]

        def passed(piece: "tuple[int, Visit | None]") -> None:
            begin, visit = piece
            end = min(begin + each, n)
            p = torch.empty(min(size, end - begin) * k if visit else 0, dtype=torch.float64)
            for first in range(begin, end, size):
                rows = slice(first, min(first + size, end))
                m = rows.stop - first if visit else 0
                part = (z[rows] if plain else z[rows].float()).contiguous()
                shown = p[: m * k].view((k, m) if d == 0 else (m, k))
                work(part.numpy(), y[rows].numpy(), index or 0, *(x[rows] for x in out), logs, shown.numpy())
                if visit:
                    visit(rows, shown if d == 1 else shown.T)

        map_chunks(passed, pieces, each * k)
        return made


def log_likelihood(logits: Logits, labels: Labels) -> PerExample:
    """log p_y, the log-probability given to the true class, in float64."""
    if fast := kernels(logits):
        return Rows.of(fast, logits, labels, "log_likelihood").log_likelihood
    out = torch.empty(len(labels), dtype=torch.float64, device=logits.device)

    def work(rows: slice, margin: Tensor, d: int) -> None:
        m = rows.stop - rows.start
        of_label = margin.narrow(1 - d, 0, m).gather(d, labels[rows].unsqueeze(d)).squeeze(d)
        out[rows] = of_label - _tree_sum(margin.mul_(LOG2_E).exp2_(), d).log()[:m]

    _by_chunks(lambda: work, logits)
    return out


def entropies(logits: Logits) -> PerExample:
    r"""$-\sum_j p_j \log p_j$ of every example, in float64."""
    if fast := kernels(logits):
        return Rows.of(fast, logits, None, "entropy").entropy
    out = torch.empty(len(logits), dtype=torch.float64, device=logits.device)

    def work(rows: slice, margin: Tensor, d: int) -> None:
        odds = (margin * LOG2_E).exp2_()
        total = _tree_sum(odds, d)
        entropy = total.log() - _tree_sum(odds.mul_(margin).nan_to_num_(nan=0.0), d) / total  # 0 log 0 = 0
        out[rows] = entropy[: rows.stop - rows.start]

    _by_chunks(lambda: work, logits)
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
        some = (part[rows] for part in (self.confidence, self.correct, self.log_likelihood, self.brier))
        return Outcomes(*some, None if self.probability is None else self.probability[rows])  # pyright: ignore

    @classmethod
    def joined(cls, parts: Sequence["Outcomes"]) -> "Outcomes":
        """One after the other."""
        columns = zip(*([getattr(part, f.name) for f in fields(cls)] for part in parts), strict=True)
        return cls(*(None if column[0] is None else torch.cat(column) for column in columns))  # pyright: ignore


_OUTCOMES = ("confidence", "right", "log_likelihood", "brier")
Visit = Callable[[slice, Tensor], None]  # told rows and their probabilities (rows, k), which it may not keep


@runtime_checkable
class Show(Protocol):
    """Somebody to whom all probabilities are shown on the way, in pieces of many rows, each in a thread of its own."""

    @property
    def rows(self) -> int:
        """How many a piece has, at least."""
        ...

    def part(self) -> Visit:
        """Who is told of the next piece, some rows at a time."""
        ...


@dataclass(frozen=True)
class Told:
    """One who is told of all pieces, and keeps nothing in common for them."""

    visit: Visit
    rows: int = 1

    def part(self) -> Visit:
        """The same for every piece."""
        return self.visit


def outcomes(logits: Logits, labels: Labels, *, index: int | None = None, show: Show | None = None) -> Outcomes:
    """Pass over the logits once; on the way note the probability of class `index`, and show all to `show`."""
    if fast := kernels(logits):
        found = Rows.of(fast, logits, labels, *_OUTCOMES, index=index, show=show)
        return Outcomes(
            found.confidence, found.right, found.log_likelihood, found.brier, None if index is None else found.chosen
        )
    out = torch.empty(4, len(labels), dtype=torch.float64, device=logits.device)
    chosen = None if index is None else torch.empty_like(out[0])

    def begun() -> Chunk:
        visit = show.part() if show else None

        def work(rows: slice, margin: Tensor, d: int) -> None:
            right, of_label, odds, total = _against(logits[rows], labels[rows], margin, d)
            m = rows.stop - rows.start
            p_y = of_label.exp() / total
            if chosen is not None:
                chosen[rows] = (odds.select(d, index or 0) / total)[:m]
            if visit is not None:
                p = odds / total.unsqueeze(d)
                visit(rows, p[:m] if d == 1 else p.T[:m])
            out[0, rows] = (1 / total)[:m]
            out[1, rows] = right.double()
            out[2, rows] = (of_label - total.log())[:m]
            out[3, rows] = (_tree_sum(odds.square_(), d) / total.square() - 2 * p_y + 1).clamp_min(0)[:m]

        return work

    _by_chunks(begun, logits, show.rows if show else 1)
    return Outcomes(*out, chosen)  # pyright: ignore[reportCallIssue]


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Lens on the predicted class: its probability, and whether it was right; both in float64, as `outcomes` has them.

    The prediction is the lowest index that attains the maximum.
    """
    if fast := kernels(logits):
        found = Rows.of(fast, logits, labels, "confidence", "right")
        return found.confidence, found.right
    confidence, correct = torch.empty(2, len(labels), dtype=torch.float64, device=logits.device)

    def work(rows: slice, margin: Tensor, d: int) -> None:
        right, _, _, total = _against(logits[rows], labels[rows], margin, d)
        confidence[rows] = 1 / total[: len(right)]
        correct[rows] = right.double()

    _by_chunks(lambda: work, logits)
    return confidence, correct


def correct(logits: Logits, labels: Labels) -> PerExample:
    """Whether the predicted class is right: 1 or 0, in float64."""
    if fast := kernels(logits):
        return Rows.of(fast, logits, labels, "right").right
    return (logits.argmax(1) == labels).double()


def _against(logits: Logits, labels: Labels, margin: Tensor, d: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A chunk held against its labels: whether the prediction is right, the label's margin, odds, their sum.

    All but the first are those of the chunk as it was filled up.
    """
    m = len(labels)
    filled = labels.new_zeros(margin.shape[1 - d])
    filled[:m] = labels
    of_label = margin.gather(d, filled.unsqueeze(d)).squeeze(d)
    odds = margin.mul_(LOG2_E).exp2_()
    total = _tree_sum(odds, d)
    return is_predicted(of_label[:m], total[:m], logits.detach(), labels), of_label, odds, total


def is_predicted(margin: Tensor, total: Tensor, logits: Logits, labels: Labels) -> Tensor:
    """Whether the label is the first class that attains the maximum, from its margin and the sum of all odds.

    Two classes can share the maximum only if the total is at least 2: then ask which comes first.
    """
    right = margin == 0
    tied = (right & (total >= 2)).nonzero().squeeze(1)
    if len(tied):
        right[tied] = logits[tied].argmax(1) == labels[tied]
    return right


def show_probabilities(logits: Logits, show: Show) -> None:
    """Show all probabilities in float64 by chunks that stay in cache."""
    if fast := kernels(logits):
        Rows.of(fast, logits, None, show=show)
        return

    def begun() -> Chunk:
        visit = show.part()

        def work(rows: slice, margin: Tensor, d: int) -> None:
            odds = margin.mul_(LOG2_E).exp2_()
            p = odds.div_(_tree_sum(odds, d).unsqueeze(d))
            m = rows.stop - rows.start
            visit(rows, p[:m] if d == 1 else p.T[:m])

        return work

    _by_chunks(begun, logits, show.rows)


def _by_chunks(begun: Callable[[], Chunk], logits: Logits, least: int = 1) -> None:
    """Work through the chunks of all logits; what is `begun` for a piece, of so many rows at least, works alone."""
    n, k = logits.shape
    whole = _layout(k)[1]
    each = -(-max(at_a_time(logits, PIECE) // k, least, 1) // whole) * whole

    def passed(piece: tuple[int, Chunk]) -> None:
        begin, work = piece
        for rows, margin, d in _centered(logits[begin : begin + each].detach()):
            work(slice(begin + rows.start, begin + rows.stop), margin, d)

    elements = each * k if logits.device.type == "cpu" else 0  # elsewhere nobody shares
    map_chunks(passed, [(first, begun()) for first in range(0, n, each)], elements)


def _centered(logits: Logits) -> Iterator[tuple[slice, Tensor, int]]:
    """Chunks of logits minus their row's maximum, in float64, and the dimension that holds the classes.

    Few classes lie along dimension 0, which keeps the vector units full. A chunk has a multiple of 64 rows, or of 16 of
    many classes; the last is filled up with zeros. The buffer is reused: take what you need.
    """
    n, k = logits.shape
    d, whole = _layout(k)
    size = max(1, at_a_time(logits, _CHUNK) // k // whole) * whole
    rows_of = min(size, -(-n // whole) * whole)
    buffer = torch.empty(rows_of * k, dtype=torch.float64, device=logits.device)
    for first in range(0, n, size):
        rows = slice(first, min(first + size, n))
        m = rows.stop - first
        filled = -(-m // whole) * whole
        margin = buffer[: filled * k].view((k, filled) if d == 0 else (filled, k))
        if filled > m:
            margin.narrow(1 - d, m, filled - m).zero_()
        margin.narrow(1 - d, 0, m).copy_(logits[rows] if d == 1 else logits[rows].T)
        yield rows, margin.sub_(margin.amax(d, keepdim=True)), d


def _layout(k: int) -> tuple[int, int]:
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


def one_class(logits: Logits, index: int) -> PerExample:
    """Return the probability of one class, in float64, as `outcomes` has it."""
    if fast := kernels(logits):
        return Rows.of(fast, logits, None, index=index).chosen
    out = torch.empty(len(logits), dtype=torch.float64, device=logits.device)

    def work(rows: slice, margin: Tensor, d: int) -> None:
        odds = margin.mul_(LOG2_E).exp2_()
        out[rows] = (odds.select(d, index) / _tree_sum(odds, d))[: rows.stop - rows.start]

    _by_chunks(lambda: work, logits)
    return out
