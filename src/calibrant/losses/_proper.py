"""Proper losses: the true probabilities minimize their expectation."""

from typing import Literal

from calibrant._core.types import Logits, PerExampleLoss, Smoothing, Targets
from calibrant.losses._likelihood import brier_score, log_likelihood
from calibrant.losses._register import register_loss

__all__ = ["brier", "cross_entropy"]


@register_loss
def cross_entropy(
    logits: Logits, labels: Targets, *, smoothing: Smoothing = 0.0, off_target: Literal["k", "k-1"] = "k"
) -> PerExampleLoss:
    r"""Compute cross-entropy, $-\log p_y$, optionally with label smoothing (Szegedy et al. 2016, section 7).

    Proper without smoothing.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        smoothing: $\epsilon$, below 1. A negative value rewards confidence: wrong classes get a negative weight and the
            loss has no lower bound. Wang et al. (2021, section 5) find that accuracy suffers or training fails.
        off_target: "k" for the target $(1-\epsilon) e_y + \epsilon / k$ (Wang et al. 2021, section 3), or "k-1" for
            $1-\epsilon$ on the label and $\epsilon / (k-1)$ on every other class, as in the code of Mukhoti et al.
            (2020).

    Raises:
        InputError: If smoothing is 1 or more.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
    tensor([1.3863])
    """
    k = logits.shape[-1]
    # a "k" target with e k / (k - 1) in place of e has 1 - e on the label and e / (k - 1) elsewhere: "k-1" with e
    epsilon = smoothing if off_target == "k" else smoothing * k / (k - 1)
    return -log_likelihood(logits, labels, epsilon)


@register_loss
def brier(logits: Logits, labels: Targets) -> PerExampleLoss:
    r"""Compute the Brier score, $\lVert p - e_y \rVert^2$, summed over classes (Brier 1950).

    Proper, and in [0, 2].

    >>> brier(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.5000])
    """
    return brier_score(logits, labels)
