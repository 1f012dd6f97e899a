"""Proper losses: minimized, in expectation, by the true probabilities."""

from typing import Literal

from torch.nn.functional import one_hot

from calibrant._bins import log_likelihood
from calibrant._types import Labels, Logits, PerExample

__all__ = ["brier", "cross_entropy"]


def cross_entropy(
    logits: Logits,
    labels: Labels,
    *,
    smoothing: float = 0.0,
    off_target: Literal["k", "k-1"] = "k",
) -> PerExample:
    r"""Cross-entropy, $-\log p_y$; with label smoothing $\epsilon$ (Szegedy et al. 2016, section 7).

    The smoothed target is $(1-\epsilon) e_y + \epsilon / k$ (Wang et al. 2021, section 3), or with
    `off_target="k-1"` $1-\epsilon$ on the label and $\epsilon / (k-1)$ on every other class, as in the code of
    Mukhoti et al. (2020). Proper for smoothing = 0.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
    tensor([1.3863])
    """
    likelihood = log_likelihood(logits, labels)
    if smoothing == 0:
        return -likelihood
    k = logits.shape[-1]
    epsilon = smoothing if off_target == "k" else smoothing * k / (k - 1)
    return -(1 - epsilon) * likelihood - epsilon * logits.log_softmax(-1).mean(-1)


def brier(logits: Logits, labels: Labels) -> PerExample:
    r"""Brier score, $\lVert p - e_y \rVert^2$, summed over classes (Brier 1950). In [0, 2]; proper.

    >>> brier(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.5000])
    """
    truth = one_hot(labels, logits.shape[-1]).to(logits.dtype)
    return (logits.softmax(-1) - truth).square().sum(-1)
