"""The one place that bins. Lenses pick the event whose probability is judged; bins compare it with reality."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant._types import Labels, Logits, PerBin, PerExample


def log_likelihood(logits: Logits, labels: Labels) -> PerExample:
    """log p_y, the log-probability given to the true class."""
    return logits.log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)


def top_label(logits: Logits, labels: Labels) -> tuple[PerExample, PerExample]:
    """Lens on the predicted class: its probability, and whether it was right; both in float64.

    The prediction is the lowest index that attains the maximum.
    """
    top, predicted = logits.detach().max(-1)
    z = logits.detach().double()
    confidence = 1 / (z - top.double()[:, None]).exp().sum(-1)
    return confidence, (predicted == labels).double()


def one_class(logits: Logits, labels: Labels, index: int) -> tuple[PerExample, PerExample]:
    """Lens on one class: its probability, and whether it was the true one; both in float64."""
    return logits.detach().double().softmax(-1)[:, index], (labels == index).double()


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
        index = assign(edges, confidence).clamp(0, bins - 1)
        return cls._of(edges, index, confidence, correct, weights)

    @classmethod
    def equal_mass(
        cls,
        bins: int,
        confidence: PerExample,
        correct: PerExample,
        weights: PerExample | None = None,
    ) -> "Bins":
        """Bins of equal numbers of examples (of equal weight, if weighted), whatever the row order.

        Sizes as numpy's array_split: the first n mod b bins hold one more. Correctness is first averaged over
        examples of exactly equal confidence, so that a bin edge inside a tie does not depend on the row order.
        With fewer examples than bins the last bins are empty.
        """
        n = len(confidence)
        order = confidence.argsort(stable=True)
        value, tie = confidence[order].unique_consecutive(return_inverse=True)
        mass = torch.ones_like(confidence) if weights is None else weights[order].to(confidence)
        tie_mass = torch.zeros_like(value).index_add_(0, tie, mass)
        tie_correct = torch.zeros_like(value).index_add_(0, tie, mass * correct[order])
        smooth = (tie_correct / tie_mass.clamp_min(torch.finfo(value.dtype).tiny))[tie]
        if weights is None:
            small, larger = divmod(n, bins)
            sizes = torch.full((bins,), small, device=order.device)
            sizes[:larger] += 1
            index = torch.arange(bins, device=order.device).repeat_interleave(sizes)
        else:
            # Equal weight: an example belongs where the middle of its tie's share falls.
            before = tie_mass.cumsum(0) - tie_mass
            middle = (before + tie_mass / 2)[tie] / tie_mass.sum()
            index = (middle * bins).long().clamp(0, bins - 1)
        last = torch.searchsorted(index, torch.arange(bins, device=order.device), right=True)
        inner = confidence[order][(last - 1).clamp_min(0)]
        edges = torch.cat([confidence[order][:1], inner])
        return cls._of(edges, index, confidence[order], smooth, None if weights is None else mass)

    @classmethod
    def _of(cls, edges: Tensor, index: Tensor, confidence: Tensor, correct: Tensor, weights: Tensor | None) -> "Bins":
        b = len(edges) - 1  # one slot more takes what is left out
        mass = torch.ones_like(confidence) if weights is None else weights.to(confidence)

        def total(values: Tensor) -> Tensor:
            return torch.bincount(index, values, minlength=b + 1)[:b]

        weight = total(mass)
        return cls(
            edges=edges,
            weight=weight / mass.sum(),
            confidence=total(mass * confidence) / weight,
            accuracy=total(mass * correct) / weight,
            count=torch.bincount(index, minlength=b + 1)[:b],
        )


def assign(edges: Tensor, confidence: PerExample) -> Tensor:
    """Index i of the bin (edges[i], edges[i+1]] of every example; -1 below the first, b above the last."""
    return torch.searchsorted(edges, confidence.to(edges).contiguous()) - 1


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
