"""Binning: the confidence becomes the accuracy that its bin had on validation."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from calibrant import metrics
from calibrant._bins import Bins, assign, top_label
from calibrant._solve import Certificate
from calibrant._types import Labels, Logits

__all__ = ["HistogramBinning"]


@dataclass(frozen=True, eq=False)
class HistogramBinning:
    """Histogram binning (Zadrozny & Elkan 2001), pooled on the top label (Wang et al. 2021, section 4).

    The confidence becomes the validation accuracy of its bin; the other classes keep their proportions and share
    the rest. A bin that was empty keeps the confidence. Returns log p; a bin that was always right says probability
    1, so that one later mistake in it costs an infinite NLL.
    """

    edges: Tensor  # (b + 1)
    accuracy: Tensor  # (b), nan where the bin was empty
    certificate: Certificate | None = None

    @classmethod
    def fit(
        cls,
        logits: Logits,
        labels: Labels,
        *,
        bins: int = 15,
        scheme: Literal["equal_width", "equal_mass"] = "equal_width",
    ) -> "HistogramBinning":
        """Measure the accuracy of every bin of the confidence."""
        confidence, correct = top_label(logits, labels)
        if scheme == "equal_mass":
            found = Bins.equal_mass(bins, confidence, correct)
            edges = torch.cat([found.edges.new_zeros(1), found.edges[1:-1], found.edges.new_ones(1)])
            found = Bins.between(edges, confidence, correct)  # an edge falls between ties, never inside
        else:
            found = Bins.equal_width(bins, confidence, correct)
        fitted = cls(found.edges, found.accuracy)
        after = fitted(logits)
        certificate = Certificate(
            criterion=f"ece(bins={bins})",
            before=float(metrics.ece(logits, labels, bins=bins)),
            after=float(metrics.ece(after, labels, bins=bins)),
            status="closed form",
            iterations=1,
            accuracy_before=float(metrics.accuracy(logits, labels)),
            accuracy_after=float(metrics.accuracy(after, labels)),
        )
        return cls(found.edges, found.accuracy, certificate)

    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        log_p = logits.double().log_softmax(-1)
        top, predicted = log_p.max(-1)
        index = assign(self.edges, top.exp()).clamp(0, len(self.accuracy) - 1)
        new = self.accuracy[index]
        new = new.where(~new.isnan(), top.exp())
        is_top = torch.nn.functional.one_hot(predicted, log_p.shape[-1]).bool()
        rest = log_p.masked_fill(is_top, -torch.inf)
        log_rest = rest.logsumexp(-1, keepdim=True)  # log(1 - confidence), accurate near 1
        spread = torch.full_like(rest, -torch.log(torch.tensor(log_p.shape[-1] - 1.0)).item())
        share = torch.where(log_rest.isneginf(), spread, rest - log_rest)
        others = (-new).log1p()[:, None] + share
        return torch.where(is_top, new.log()[:, None], others).to(logits.dtype)
