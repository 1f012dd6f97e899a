"""CORP: a score splits exactly into miscalibration, discrimination and uncertainty by isotonic regression."""

from typing import Literal

import torch
from torch import Tensor

from calibrant._bins import Events, Ties
from calibrant._types import Labels, Logits, PerExample, Scalar

__all__ = ["discrimination", "miscalibration", "uncertainty"]

Score = Literal["brier", "log"]


def miscalibration(
    logits: Logits, labels: Labels, *, score: Score = "brier", weights: PerExample | None = None
) -> Scalar:
    r"""MCB of the CORP split S = MCB - DSC + UNC of the top label's score (Dimitriadis et al. 2021).

    What isotonic recalibration, fitted on the same examples, takes off the score: `brier`, $(c - a)^2$, or `log`. Never
    negative, and biased upward.

    >>> miscalibration(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))  # 1/4 - 3/16
    tensor(0.0625, dtype=torch.float64)
    """
    return corp(Events.top(logits, labels, weights).ties, score)[0]


def discrimination(
    logits: Logits, labels: Labels, *, score: Score = "brier", weights: PerExample | None = None
) -> Scalar:
    """DSC of the CORP split: what the recalibrated confidence knows beyond the accuracy. See `miscalibration`.

    >>> discrimination(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0., dtype=torch.float64)
    """
    return corp(Events.top(logits, labels, weights).ties, score)[1]


def uncertainty(logits: Logits, labels: Labels, *, score: Score = "brier", weights: PerExample | None = None) -> Scalar:
    """UNC of the CORP split: the score of the accuracy itself as a constant forecast. See `miscalibration`.

    >>> uncertainty(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.1875, dtype=torch.float64)
    """
    return corp(Events.top(logits, labels, weights).ties, score)[2]


def corp(ties: Ties, score: Score) -> tuple[Scalar, Scalar, Scalar]:
    """MCB, DSC and UNC of sorted examples."""
    base = ties.correct.sum() / ties.mass.sum()
    told, fitted, constant = (
        _score(ties, p, score) for p in (ties.value, isotonic(ties), base.expand(len(ties.value)))
    )
    return told - fitted, constant - fitted, constant


def isotonic(ties: Ties) -> Tensor:
    """The increasing map from confidence to probability that fits best, at every distinct confidence."""
    from scipy.optimize import isotonic_regression  # slow to import

    fit = isotonic_regression(ties.accuracy.cpu().numpy(), weights=ties.mass.cpu().numpy())
    return torch.from_numpy(fit.x).to(ties.value).clamp(0, 1)


def _score(ties: Ties, p: Tensor, score: Score) -> Scalar:
    hit, miss = ties.correct, ties.mass - ties.correct
    if score == "brier":
        parts = hit * (1 - p).square() + miss * p.square()
    else:
        parts = -torch.xlogy(hit, p) - torch.special.xlog1py(miss, -p)
    return parts.sum() / ties.mass.sum()
