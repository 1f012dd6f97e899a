"""Binned calibration errors: a norm of accuracy minus confidence over bins."""

from typing import Literal

from calibrant._bins import Bins, mukhoti_edges, top_label
from calibrant._types import Labels, Logits, PerExample, Scalar

__all__ = ["adaptive_ece", "classwise_ece", "ece", "mce"]


def ece(logits: Logits, labels: Labels, *, bins: int = 15, weights: PerExample | None = None) -> Scalar:
    r"""Expected calibration error, $\sum_b w_b |acc_b - conf_b|$ over equal-width bins (Guo et al. 2017, eq. 3).

    Bins are (lo, hi] with float64 edges; confidence 0 belongs to the first. Biased upward: a perfectly calibrated
    model shows about 0.9 % on 5,000 examples with 15 bins.

    >>> ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    return _mean_gap(Bins.equal_width(bins, *top_label(logits, labels), weights))


def adaptive_ece(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    edges: Literal["equal_mass", "mukhoti"] = "equal_mass",
    weights: PerExample | None = None,
) -> Scalar:
    """ECE over bins that hold equal numbers of examples (Nguyen & O'Connor 2015; Mukhoti et al. 2020, eq. 3).

    "equal_mass" averages correctness over ties first, so that the value does not depend on the row order. "mukhoti"
    takes the authors' interpolated edges, which leave out the least confident example and reproduce their tables.

    >>> adaptive_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), bins=2)
    tensor(0.2500, dtype=torch.float64)
    """
    confidence, correct = top_label(logits, labels)
    if edges == "mukhoti":
        return _mean_gap(Bins.between(mukhoti_edges(confidence, bins), confidence, correct, weights))
    return _mean_gap(Bins.equal_mass(bins, confidence, correct, weights))


def mce(logits: Logits, labels: Labels, *, bins: int = 15, weights: PerExample | None = None) -> Scalar:
    r"""Maximum calibration error, $\max_b |acc_b - conf_b|$ over non-empty bins (Guo et al. 2017, eq. 5).

    Often decided by a bin that holds a single example: look at the bin's count before believing it.

    >>> mce(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    return Bins.equal_width(bins, *top_label(logits, labels), weights).gap.abs().max()


def classwise_ece(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    reduction: Literal["mean", "sum"] = "mean",
    weights: PerExample | None = None,
) -> Scalar:
    """Mean over classes j of the ECE of p_j as a forecast of y = j (Kull et al. 2019, eq. 3).

    The mean is what Mukhoti et al. (2020) print; Kull et al. print the sum. A class without examples counts.

    >>> classwise_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    probs = logits.detach().double().softmax(-1)
    total = probs.new_zeros(())
    for j, p in enumerate(probs.T):
        total += _mean_gap(Bins.equal_width(bins, p, (labels == j).double(), weights))
    return total / (probs.shape[1] if reduction == "mean" else 1)


def _mean_gap(bins: Bins) -> Scalar:
    return (bins.weight * bins.gap.abs()).sum()
