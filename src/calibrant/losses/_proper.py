"""Proper losses: minimized, in expectation, by the true probabilities."""

import math
from typing import Literal

from calibrant.losses._likelihood import brier_score, smoothed_log_likelihood
from calibrant.registry import LOSSES
from calibrant.types import InputError, Logits, PerExample, Smoothing, Targets

__all__ = ["brier", "cross_entropy"]


@LOSSES.register
def cross_entropy(
    logits: Logits,
    labels: Targets,
    *,
    smoothing: Smoothing = 0.0,
    off_target: Literal["k", "k-1"] = "k",
) -> PerExample:
    r"""Cross-entropy, $-\log p_y$; with label smoothing $\epsilon$ (Szegedy et al. 2016, section 7).

    The smoothed target is $(1-\epsilon) e_y + \epsilon / k$ (Wang et al. 2021, section 3), or with
    `off_target="k-1"` $1-\epsilon$ on the label and $\epsilon / (k-1)$ on every other class, as in the code of
    Mukhoti et al. (2020). Proper for smoothing = 0. Below 0 it rewards confidence (Wang et al. 2021, section 5, who
    find that accuracy suffers or training fails): wrong classes pull with negative weight, and the loss has no lower
    bound. Raises `InputError` unless smoothing < 1.

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
    tensor([1.3863])
    """
    if not -math.inf < smoothing < 1:
        raise InputError(f"smoothing must be finite and below 1, got {smoothing}", code="smoothing_range")
    k = logits.shape[-1]
    epsilon = smoothing if off_target == "k" else smoothing * k / (k - 1)
    return -smoothed_log_likelihood(logits, labels, epsilon)


@LOSSES.register
def brier(logits: Logits, labels: Targets) -> PerExample:
    r"""Brier score, $\lVert p - e_y \rVert^2$, summed over classes (Brier 1950). In [0, 2]; proper.

    >>> brier(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.5000])
    """
    return brier_score(logits, labels)
