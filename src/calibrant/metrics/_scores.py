"""Scores: the mean of a proper loss is a metric already."""

from torch import Tensor

from calibrant import losses
from calibrant._types import Labels, Logits, PerExample, Scalar

__all__ = ["accuracy", "brier", "error", "nll"]


def mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean in float64, weighted if there are weights."""
    values = values.double()
    return values.mean() if weights is None else (values * weights).sum() / weights.sum()


def accuracy(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Scalar:
    """Share of examples whose predicted class, the lowest index that attains the maximum, is right.

    >>> accuracy(torch.eye(2), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    """
    return mean(logits.argmax(-1) == labels, weights)


def error(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Scalar:
    """Share of examples whose predicted class is wrong: 1 - accuracy.

    >>> error(torch.eye(2), torch.tensor([0, 0]))
    tensor(0.5000, dtype=torch.float64)
    """
    return 1 - accuracy(logits, labels, weights=weights)


def nll(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Scalar:
    r"""Mean negative log-likelihood, $-\log p_y$, in nats.

    >>> nll(torch.zeros(1, 4), torch.tensor([2]))
    tensor(1.3863, dtype=torch.float64)
    """
    return mean(losses.cross_entropy(logits.double(), labels), weights)


def brier(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Scalar:
    r"""Mean Brier score, $\lVert p - e_y \rVert^2$ summed over classes, in [0, 2] (Brier 1950).

    >>> brier(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.5000, dtype=torch.float64)
    """
    return mean(losses.brier(logits.double(), labels), weights)
