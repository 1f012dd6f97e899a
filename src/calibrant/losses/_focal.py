"""The focal family: cross-entropy, weighted by how wrong the model still is."""

import torch

from calibrant._bins import log_likelihood
from calibrant._types import Labels, Logits, PerExample

__all__ = ["flsd", "focal"]


def focal(
    logits: Logits, labels: Labels, *, gamma: float | PerExample = 3.0, detach_weight: bool = False
) -> PerExample:
    r"""Focal loss, $-(1 - p_y)^\gamma \log p_y$ (Lin et al. 2017, eq. 4).

    Cross-entropy at gamma = 0. Not proper: its minimizer is underconfident (Komisarenko & Kull 2024), which is why
    it calibrates a model that overfits. `detach_weight` keeps the gradient from flowing through $(1 - p_y)^\gamma$,
    as in the code of Wang et al. (2021).

    >>> focal(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0)
    tensor([0.1733])
    """
    log_p = log_likelihood(logits, labels)
    weight = (-log_p.expm1()) ** gamma
    return -(weight.detach() if detach_weight else weight) * log_p


def flsd(
    logits: Logits,
    labels: Labels,
    *,
    thresholds: tuple[float, ...] = (0.2,),
    gammas: tuple[float, ...] = (5.0, 3.0),
) -> PerExample:
    r"""Sample-dependent focal loss: gamma = gammas[i] where p_y lies below thresholds[i] and above the one before.

    The defaults are FLSD-53 (Mukhoti et al. 2020, section 4): 5 where p_y < 0.2, else 3. Thresholds (0.2, 0.5) with
    gammas (5, 3, 2) are the other policy of the paper. No gradient flows through the choice of gamma.

    >>> flsd(torch.zeros(1, 10), torch.tensor([0]))
    tensor([1.3597])
    """
    p = log_likelihood(logits.detach(), labels).exp()
    index = torch.bucketize(p, p.new_tensor(thresholds), right=True)
    return focal(logits, labels, gamma=p.new_tensor(gammas)[index])
