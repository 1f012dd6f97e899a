"""Scores: the mean of a proper loss is a metric already."""

from typing import Literal

from torch import Tensor

from calibrant._bins import entropies, judge, log_likelihood, top_label
from calibrant._types import Labels, Logits, PerExample, Scalar

__all__ = [
    "accuracy",
    "brier",
    "confident_accuracy",
    "confident_share",
    "entropy",
    "error",
    "nll",
    "signed_gap",
]

Among = Literal["all", "correct", "wrong"]


def mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean in float64, weighted if there are weights; nan of nothing."""
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


def nll(logits: Logits, labels: Labels, *, among: Among = "all", weights: PerExample | None = None) -> Scalar:
    r"""Mean negative log-likelihood, $-\log p_y$, in nats; of all, correct or wrong predictions.

    Mukhoti et al. (2020, Figures 1 and 3) follow it over the epochs for correct and for wrong ones. nan where there
    are none.

    >>> nll(torch.zeros(1, 4), torch.tensor([2]))
    tensor(1.3863, dtype=torch.float64)
    """
    return _mean_among(0.0 - log_likelihood(logits, labels), logits, labels, among, weights)


def brier(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Scalar:
    r"""Mean Brier score, $\lVert p - e_y \rVert^2$ summed over classes, in [0, 2] (Brier 1950).

    >>> brier(torch.zeros(1, 2), torch.tensor([0]))
    tensor(0.5000, dtype=torch.float64)
    """
    return mean(judge(logits, labels).brier, weights)


def entropy(logits: Logits, labels: Labels, *, among: Among = "all", weights: PerExample | None = None) -> Scalar:
    r"""Mean entropy of the predicted distributions, $-\sum_j p_j \log p_j$, in nats; of all, correct or wrong ones.

    As in Mukhoti et al. (2020, Figure 1). nan where there are none.

    >>> entropy(torch.zeros(1, 4), torch.tensor([2]))
    tensor(1.3863, dtype=torch.float64)
    """
    return _mean_among(entropies(logits), logits, labels, among, weights)


def confident_share(
    logits: Logits, labels: Labels, *, above: float = 0.99, weights: PerExample | None = None
) -> Scalar:
    """Share of predictions with confidence of at least `above` (Mukhoti et al. 2020, Table 7).

    >>> confident_share(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 1]))
    tensor(0.5000, dtype=torch.float64)
    """
    return mean(top_label(logits, labels)[0] >= above, weights)


def confident_accuracy(
    logits: Logits, labels: Labels, *, above: float = 0.99, weights: PerExample | None = None
) -> Scalar:
    """Accuracy of the predictions with confidence of at least `above` (Mukhoti et al. 2020, Table 7); nan of none.

    >>> confident_accuracy(torch.tensor([[0.0, 9.0], [0.0, 1.0]]), torch.tensor([1, 0]))
    tensor(1., dtype=torch.float64)
    """
    confidence, correct = top_label(logits, labels)
    chosen = confidence >= above
    return mean(correct[chosen], None if weights is None else weights[chosen])


def signed_gap(logits: Logits, labels: Labels, *, weights: PerExample | None = None) -> Scalar:
    """Mean confidence minus accuracy: positive if overconfident, negative if underconfident.

    >>> signed_gap(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(-0.2500, dtype=torch.float64)
    """
    confidence, correct = top_label(logits, labels)
    return mean(confidence - correct, weights)


def _mean_among(values: Tensor, logits: Tensor, labels: Tensor, among: Among, weights: Tensor | None) -> Tensor:
    if among == "all":
        return mean(values, weights)
    chosen = (logits.argmax(-1) == labels) == (among == "correct")
    return mean(values[chosen], None if weights is None else weights[chosen])
