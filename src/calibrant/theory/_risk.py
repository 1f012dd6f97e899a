"""The risk of focal loss, its proper part, and the entropy bound."""

import torch
from torch import Tensor

from calibrant import losses
from calibrant._core.types import InputError, Labels, Logits, Loss, PerExampleLoss
from calibrant.theory._focal_map import focal_map_inverse

__all__ = ["conditional_risk", "kl_entropy_bound", "proper_part"]


def conditional_risk(logits: Logits, truth: Logits, *, loss: Loss) -> PerExampleLoss:
    r"""Return $R(p, q) = \sum_i p_i L(q, i)$, the expected loss of q = softmax(logits) under p = softmax(truth).

    A loss is proper if q = p minimizes R(p, q) (Komisarenko & Kull 2024, section 3.3). Classes of probability 0 do not
    count, even if their loss is infinite.

    >>> fair = torch.zeros(1, 2)
    >>> conditional_risk(fair, fair, loss=losses.cross_entropy)  # log 2
    tensor([0.6931])
    """
    p = truth.softmax(-1)
    n, k = logits.shape
    class_losses = torch.stack([loss(logits, torch.full((n,), i, device=logits.device)) for i in range(k)], dim=-1)
    return (p * class_losses.masked_fill(p == 0, 0)).sum(-1)  # 0 times an infinite loss would be NaN


def proper_part(logits: Logits, labels: Labels, *, gamma: Tensor | float = 3.0) -> PerExampleLoss:
    r"""Compute the proper part of focal loss, $L^*(p, y) = L(\hat p^{-1}(p), y)$.

    Here L is focal loss and $\hat p$ is `focal_map` (Komisarenko & Kull 2024, propositions 2 and 4).

    Focal loss of q equals L* of `focal_map`(q): training with focal loss is training with L* and omitting the map at
    prediction. L* has no closed form; it is evaluated exactly through `focal_map_inverse`, and differentiable. Equals
    cross-entropy at gamma = 0.

    Raises:
        InputError: If gamma is negative, where focal loss is not convex.

    >>> p, y = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([0])
    >>> proper_part(p, y, gamma=2.0)  # focal loss at 0.6266: 0.3734^2 * 0.4674
    tensor([0.0652])
    """
    if not bool((torch.as_tensor(gamma) >= 0).all()):
        raise InputError(f"Expected gamma >= 0, got {gamma}.", code="gamma_range")
    return losses.focal(focal_map_inverse(logits, gamma=gamma), labels, gamma=gamma)


def kl_entropy_bound(logits: Logits, labels: Labels, *, gamma: float) -> PerExampleLoss:
    r"""Return $-\log p_y - \gamma H(p)$ in nats, a lower bound of focal loss (Wang et al. 2021, eq. 2).

    Lowering focal loss therefore lowers cross-entropy or raises the entropy of the prediction. The usual proof by
    Bernoulli's inequality needs gamma >= 1; the bound holds for all gamma >= 0.

    >>> kl_entropy_bound(torch.zeros(1, 2), torch.tensor([0]), gamma=0.5)  # log 2 - log 2 / 2
    tensor([0.3466])
    """
    return losses.entropy_regularized(logits, labels, strength=gamma)
