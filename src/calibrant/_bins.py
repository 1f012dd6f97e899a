"""The one place that bins. Lenses pick the event whose probability is judged; bins compare it with reality."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from calibrant._types import Labels, Logits, PerBin, PerExample

_CHUNK = 1 << 18  # elements of a chunk in float64: 2 MB, which a core's cache holds
LOG2_E = 1 / math.log(2)  # e^x = 2^(x log2 e): torch's exp2 takes half the time of its exp


def log_likelihood(logits: Logits, labels: Labels) -> PerExample:
    """log p_y, the log-probability given to the true class, in float64."""
    out = torch.empty(len(labels), dtype=torch.float64, device=logits.device)
    for rows, margin, d in _centered(logits.detach()):
        of_label = margin.gather(d, labels[rows].unsqueeze(d)).squeeze(d)
        out[rows] = of_label - _tree_sum(margin.mul_(LOG2_E).exp2_(), d).log()
    return out


def entropies(logits: Logits) -> PerExample:
    r"""$-\sum_j p_j \log p_j$ of every example, in float64."""
    out = torch.empty(len(logits), dtype=torch.float64, device=logits.device)
    for rows, margin, d in _centered(logits.detach()):
        odds = (margin * LOG2_E).exp2_()
        total = _tree_sum(odds, d)
        out[rows] = total.log() - _tree_sum(odds.mul_(margin).nan_to_num_(nan=0.0), d) / total  # 0 log 0 = 0
    return out


@dataclass(frozen=True, eq=False)
class Judged:
    """What one pass over the logits yields for every example, in float64."""

    confidence: PerExample  # probability of the predicted class
    correct: PerExample  # 1 where the prediction, the lowest index that attains the maximum, is right, else 0
    log_likelihood: PerExample  # log p_y
    brier: PerExample  # squared distance of p from the label's corner


def judge(logits: Logits, labels: Labels) -> Judged:
    """Pass over the logits once, in chunks that stay in cache.

    Every sum over classes is a fixed tree of additions, so that a row's numbers do not depend on which rows stand
    beside it: summaries of any sharding agree to the last bit.
    """
    out = torch.empty(4, len(labels), dtype=torch.float64, device=logits.device)
    for rows, right, of_label, odds, total, d in _against(logits, labels):
        p_y = of_label.exp() / total
        out[0, rows] = 1 / total
        out[1, rows] = right.double()
        out[2, rows] = of_label - total.log()
        out[3, rows] = (_tree_sum(odds.square_(), d) / total.square() - 2 * p_y + 1).clamp_min(0)
    return Judged(*out)


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Lens on the predicted class: its probability, and whether it was right; both in float64, as `judge` has them.

    The prediction is the lowest index that attains the maximum.
    """
    confidence, correct = torch.empty(2, len(labels), dtype=torch.float64, device=logits.device)
    for rows, right, _, _, total, _ in _against(logits, labels):
        confidence[rows] = 1 / total
        correct[rows] = right.double()
    return confidence, correct


def _against(logits: Logits, labels: Labels) -> Iterator[tuple[slice, Tensor, Tensor, Tensor, Tensor, int]]:
    """Chunks held against their labels: rows, whether the prediction is right, the label's margin, odds, their sum."""
    logits = logits.detach()
    for rows, margin, d in _centered(logits):
        y = labels[rows]
        of_label = margin.gather(d, y.unsqueeze(d)).squeeze(d)
        odds = margin.mul_(LOG2_E).exp2_()
        total = _tree_sum(odds, d)
        right = is_predicted(of_label, total, logits[rows], y)
        yield rows, right, of_label, odds, total, d


def is_predicted(margin: Tensor, total: Tensor, logits: Logits, labels: Labels) -> Tensor:
    """Whether the label is the first class that attains the maximum, from its margin and the sum of all odds.

    Two classes can share the maximum only if the total is at least 2: then ask which comes first.
    """
    right = margin == 0
    tied = (right & (total >= 2)).nonzero().squeeze(1)
    if len(tied):
        right[tied] = logits[tied].argmax(1) == labels[tied]
    return right


def softmax_chunks(logits: Logits) -> Iterator[tuple[slice, Tensor]]:
    """Probabilities in float64 by chunks that stay in cache: (rows, (rows, k) probabilities)."""
    for rows, margin, d in _centered(logits.detach()):
        odds = margin.mul_(LOG2_E).exp2_()
        p = odds.div_(_tree_sum(odds, d).unsqueeze(d))
        yield rows, (p if d == 1 else p.T)


def _centered(logits: Logits) -> Iterator[tuple[slice, Tensor, int]]:
    """Chunks of logits minus their row's maximum, in float64, and the dimension that holds the classes.

    Few classes lie along dimension 0, which keeps the vector units full. The buffer is reused: take what you need.
    """
    n, k = logits.shape
    size = max(1, (_CHUNK if logits.device.type == "cpu" else 1 << 24) // k)
    buffer = torch.empty(min(size, n) * k, dtype=torch.float64, device=logits.device)
    d = 0 if k < 128 else 1
    for first in range(0, n, size):
        rows = slice(first, min(first + size, n))
        chunk = logits[rows] if d == 1 else logits[rows].T
        margin = buffer[: chunk.numel()].view(chunk.shape).copy_(chunk)
        yield rows, margin.sub_(margin.amax(d, keepdim=True)), d


def _tree_sum(x: Tensor, d: int) -> Tensor:
    while (size := x.shape[d]) > 1:
        half = size // 2
        folded = x.narrow(d, 0, half) + x.narrow(d, half, half)
        if size % 2:
            folded.narrow(d, 0, 1).add_(x.narrow(d, size - 1, 1))
        x = folded
    return x.squeeze(d)


def one_class(logits: Logits, labels: Labels, index: int) -> tuple[PerExample, PerExample]:
    """Lens on one class: its probability, and whether it was the true one; both in float64."""
    p = torch.cat([p[:, index].clone() for _, p in softmax_chunks(logits)])
    return p, (labels == index).double()


@dataclass(frozen=True, eq=False)
class Ties:
    """Examples grouped by exactly equal confidence, in increasing order: all that any row order has in common."""

    value: Tensor  # (g) float64, distinct confidences
    mass: Tensor  # (g) float64, number of examples, or sum of their weights
    correct: Tensor  # (g) float64, the mass that was right
    square: Tensor  # (g) float64, sum of the squared weights
    count: Tensor  # (g) int64
    weighted: bool

    @classmethod
    def of(cls, confidence: PerExample, correct: PerExample, weights: PerExample | None = None) -> "Ties":
        """Sort and group; examples of weight 0 are left out, and equal weights are none."""
        if weights is not None:
            keep = weights > 0
            confidence, correct, weights = confidence[keep], correct[keep], weights[keep].to(confidence)
            weights = None if bool((weights == weights[0]).all()) else weights
        order = confidence.argsort(stable=True)
        value, index, count = confidence[order].unique_consecutive(return_inverse=True, return_counts=True)
        correct = correct[order]
        if len(value) < len(index):
            zero = torch.zeros_like(value)
            if weights is None:
                right = zero.index_add(0, index, correct)
                return cls(value, count.double(), right, count.double(), count, False)
            w = weights[order]
            mass, right, square = (zero.index_add(0, index, part) for part in (w, w * correct, w.square()))
            return cls(value, mass, right, square, count, True)
        w = torch.ones_like(value) if weights is None else weights[order]
        return cls(value, w, w * correct, w.square(), count, weights is not None)

    @property
    def accuracy(self) -> Tensor:
        """Share of correct predictions in every group."""
        return self.correct / self.mass

    @property
    def spread(self) -> Tensor:
        """Variance of the sum of all correctness if every confidence is true."""
        return (self.square * self.value * (1 - self.value)).sum()


@dataclass(frozen=True, eq=False)
class Events:
    """One event per example: the probability it was given, whether it happened, and what it weighs."""

    confidence: PerExample
    correct: PerExample
    weights: PerExample | None = None

    @classmethod
    def top(cls, logits: Logits, labels: Labels, weights: PerExample | None = None) -> "Events":
        """That the predicted class is right."""
        return cls(*top_label(logits, labels), weights)

    @classmethod
    def one(cls, logits: Logits, labels: Labels, index: int, weights: PerExample | None = None) -> "Events":
        """That one class is the true one."""
        return cls(*one_class(logits, labels, index), weights)

    @cached_property
    def ties(self) -> Ties:
        """The events, sorted and grouped once for all that needs it."""
        return Ties.of(self.confidence, self.correct, self.weights)


@dataclass(frozen=True, eq=False)
class Bins:
    """Mean confidence against accuracy, bin by bin; what ECE, diagrams and binning calibrators share.

    Empty bins have weight 0 and nan for confidence and accuracy.
    """

    edges: Tensor  # (b + 1) float64
    weight: PerBin  # share of the examples, or of their weights
    confidence: PerBin  # mean confidence
    accuracy: PerBin  # share of correct predictions
    count: Tensor  # (b) int64

    @property
    def gap(self) -> PerBin:
        """Accuracy minus confidence, 0 in empty bins: positive where underconfident."""
        return (self.accuracy - self.confidence).nan_to_num(0.0)

    @property
    def worst(self) -> int:
        """Index of the bin with the largest gap in absolute value; see its count before believing it."""
        return int(self.gap.abs().argmax())

    @classmethod
    def between(
        cls,
        edges: Tensor,
        confidence: PerExample,
        correct: PerExample,
        weights: PerExample | None = None,
    ) -> "Bins":
        """Sort examples into (edges[i], edges[i+1]]; what lies outside all bins is left out.

        Left out examples still count in the whole, so that weights may sum to less than 1.
        """
        index = assign(edges, confidence)
        inside = (index >= 0) & (index < len(edges) - 1)
        return cls._of(edges, index.where(inside, len(edges) - 1), confidence, correct, weights)

    @classmethod
    def equal_width(
        cls,
        bins: int,
        confidence: PerExample,
        correct: PerExample,
        weights: PerExample | None = None,
    ) -> "Bins":
        """Bins ((i-1)/b, i/b] with float64 edges; confidence 0 belongs to the first (Guo et al. 2017)."""
        edges = equal_width_edges(bins).to(confidence.device)
        return cls._of(edges, equal_width_index(bins, confidence), confidence, correct, weights)

    @classmethod
    def equal_mass(
        cls,
        bins: int,
        confidence: PerExample,
        correct: PerExample,
        weights: PerExample | None = None,
    ) -> "Bins":
        """Bins of equal numbers of examples (of equal weight, if weighted), whatever the row order.

        Sizes as numpy's array_split: the first n mod b bins hold one more. Examples of exactly equal confidence share
        their correctness, so that a bin edge inside a tie does not depend on the row order; weighted ones are split
        where the weight of a bin ends. With fewer examples than bins the last bins are empty.
        """
        return cls.equal_mass_of(bins, Ties.of(confidence, correct, weights))

    @classmethod
    def equal_mass_of(cls, bins: int, ties: Ties) -> "Bins":
        """Bins of equal mass of sorted and grouped examples."""
        heap = torch.stack([ties.mass, ties.mass * ties.value, ties.correct, ties.count.double()])
        cuts = _cuts(bins, heap[0], ties.weighted)
        mass, confidence, correct, count = _between(heap, cuts)
        cumulative = heap[0].cumsum(0)
        last = torch.searchsorted(cumulative, cuts).clamp_max_(len(cumulative) - 1)
        return cls(
            edges=ties.value[last],
            weight=mass / cumulative[-1],
            confidence=confidence / mass,
            accuracy=correct / mass,
            count=count.round().long(),
        )

    @staticmethod
    def spread_of(bins: int, ties: Ties) -> Tensor:
        """Per bin of equal mass, the variance of its sum of correctness if every confidence is true."""
        heap = torch.stack([ties.mass, ties.square * ties.value * (1 - ties.value)])
        return _between(heap, _cuts(bins, heap[0], ties.weighted))[1]

    @classmethod
    def _of(cls, edges: Tensor, index: Tensor, confidence: Tensor, correct: Tensor, weights: Tensor | None) -> "Bins":
        b = len(edges) - 1  # one slot more takes what is left out
        w = None if weights is None else weights.to(confidence)

        def total(values: Tensor) -> Tensor:
            return bin_sums(index, values if w is None else w * values, b + 1)[:b]

        count = torch.bincount(index, minlength=b + 1)
        mass = count.double() if w is None else bin_sums(index, w, b + 1)
        return cls(
            edges=edges,
            weight=mass[:b] / mass.sum(),
            confidence=total(confidence) / mass[:b],
            accuracy=total(correct) / mass[:b],
            count=count[:b],
        )


def bin_sums(index: Tensor, values: Tensor, bins: int) -> Tensor:
    """Sums of the values over bins, in blocks of a million: a hundred million addends still agree to 13 digits."""
    blocks = zip(index.split(1 << 20), values.split(1 << 20))
    return torch.stack([torch.bincount(i, v, minlength=bins) for i, v in blocks]).sum(0)


def assign(edges: Tensor, confidence: PerExample) -> Tensor:
    """Index i of the bin (edges[i], edges[i+1]] of every example; -1 below the first, b above the last."""
    return torch.searchsorted(edges, confidence.to(edges).contiguous()) - 1


def equal_width_index(bins: int, confidence: PerExample) -> Tensor:
    """Index of the bin ((i-1)/b, i/b] of every example; 0 belongs to the first. A search only next to an edge.

    >>> equal_width_index(10, torch.tensor([0.0, 0.1, 0.15, 1.0], dtype=torch.float64))
    tensor([0, 0, 1, 9])
    """
    place = confidence.double() * bins
    near = (~((place - place.round()).abs_() > 1e-6)).nonzero().squeeze(1)  # nan too
    index = place.ceil_().sub_(1).clamp_(0, bins - 1).long()
    edges = equal_width_edges(bins).to(confidence.device)
    index[near] = assign(edges, confidence[near]).clamp_(0, bins - 1)
    return index


def equal_width_edges(bins: int) -> Tensor:
    """The b + 1 float64 edges i/b of numpy's linspace (torch's differs in the last bit)."""
    return torch.from_numpy(np.linspace(0, 1, bins + 1))


def mukhoti_edges(confidence: PerExample, bins: int) -> Tensor:
    """Equal-mass edges as interpolated by the authors of Mukhoti et al. (2020).

    The lowest edge is the smallest confidence itself, so that (lo, hi] leaves that example out: their published
    AdaECE values have this property, and so has AdaFocal (Ghosh et al. 2022).
    """
    n = len(confidence)
    c = confidence.detach().cpu().double().sort().values.numpy()
    return torch.from_numpy(np.interp(np.linspace(0, n, bins + 1), np.arange(n), c)).to(confidence.device)


def _cuts(bins: int, mass: Tensor, weighted: bool) -> Tensor:
    """Cumulative mass at the b + 1 ends of bins of equal mass."""
    total = mass.sum()
    if weighted:
        return torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=mass.device) * total
    small, larger = divmod(int(total), bins)
    index = torch.arange(bins + 1, device=mass.device)
    return (index * small + index.clamp_max(larger)).double()


def _between(heap: Tensor, cuts: Tensor) -> Tensor:
    """Sums of the rows of `heap` between cuts of its first row, the mass; groups are divided where a cut falls."""
    cumulative = torch.cat([heap.new_zeros(len(heap), 1), heap.cumsum(1)], 1)
    right = torch.searchsorted(cumulative[0].contiguous(), cuts).clamp_(1, heap.shape[1])
    low, high = cumulative[:, right - 1], cumulative[:, right]
    share = (cuts - low[0]) / (high[0] - low[0])
    return (low + (high - low) * share.clamp(0, 1)).diff(dim=1)
