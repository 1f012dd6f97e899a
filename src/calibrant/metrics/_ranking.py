"""Ranking: does higher confidence go with being right?"""

from typing import Literal

import torch
from torch import Tensor

from calibrant._bins import Judged, Ties
from calibrant.metrics._metric import metric
from calibrant.predictions import Predictions
from calibrant.types import Scalar

__all__ = ["aurc", "auroc"]


@metric("AUROC", higher_is_better=True, meaning="how often a positive outranks a negative", takes="predictions")
def auroc(p: Predictions, *, of: Literal["classes", "correctness"] = "classes") -> Scalar:
    """Area under the ROC curve: how often a positive outranks a negative, ties counting half.

    "classes": of class 1 for two classes, else the mean over classes of one against the rest; classes that are never
    or always true have none and are left out. "correctness": of the confidence, for telling right from wrong
    predictions. nan where nothing is left.

    >>> auroc(torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0, 1]))
    tensor(1., dtype=torch.float64)
    """
    if of == "correctness":
        return auroc_of(p.judging("top").events.ties)
    labels, weights = p.labels, p.weights
    if p.logits.shape[1] == 2:
        margin = p.logits.double().diff(dim=1).squeeze(1)  # orders as p_1 does, and is not saturated
        return auroc_of(Ties.of(margin, (labels == 1).double(), weights))
    log_p = p.logits.double().log_softmax(-1)
    present = labels.unique().tolist()
    each = [auroc_of(Ties.of(log_p[:, j], (labels == j).double(), weights)) for j in present]
    return torch.stack(each).nanmean()


@metric(
    "area under risk-coverage",
    unit="share",
    short="AURC",
    meaning="mean error of the most confident over all coverages; lower is better",
    takes="events",
)
def aurc(events: Judged) -> Scalar:
    r"""Area under the risk-coverage curve, the mean over k of the error of the k most confident (Geifman et al. 2019).

    Lower is better. Within ties correctness is averaged, so that the row order does not matter.

    >>> aurc(torch.tensor([[0.0, 2.0], [0.0, 1.0]]), torch.tensor([1, 0]))  # risks 0 and 1/2
    tensor(0.2500, dtype=torch.float64)
    """
    return aurc_of(events.ties)


def auroc_of(ties: Ties) -> Scalar:
    """Area under the ROC curve of a score for what is marked correct."""
    positive, negative = ties.correct, ties.mass - ties.correct
    below = negative.cumsum(0) - negative / 2
    return (positive * below).sum() / (positive.sum() * negative.sum())


def aurc_of(ties: Ties) -> Scalar:
    """Area under the risk-coverage curve of sorted examples."""
    mass, wrong = ties.mass.flip(0), (ties.mass - ties.correct).flip(0)
    if bool((mass == 1).all()):
        return (wrong.cumsum(0) / mass.cumsum(0)).mean()
    # One by one, a tie's m examples alike: sum over j of (E + j e) / (N + j), in closed form by digamma.
    before, error = mass.cumsum(0) - mass, wrong / mass
    harmonic = torch.digamma(before + mass + 1) - torch.digamma(before + 1)
    risks = wrong + (wrong.cumsum(0) - wrong - error * before) * harmonic
    return risks.sum() / mass.sum()


def risk_coverage(ties: Ties) -> tuple[Tensor, Tensor]:
    """Coverage and the error among the covered, at every distinct confidence from the highest down."""
    mass, wrong = ties.mass.flip(0).cumsum(0), (ties.mass - ties.correct).flip(0).cumsum(0)
    return mass / mass[-1], wrong / mass
