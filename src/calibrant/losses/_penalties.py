"""Cross-entropy plus a price on confidence: on sharp probabilities, on large logits, on wide margins.

Classes that are masked out, of logit -inf, have no price.
"""

import torch
from torch import Tensor

from calibrant.losses._likelihood import smoothed_log_likelihood
from calibrant.registry import LOSSES
from calibrant.types import InputError, Logits, NonNegativeFloat, Norm, PerExample, Targets, Width

__all__ = ["acls", "entropy_regularized", "logit_norm", "logit_normalized", "margin_smoothing"]


@LOSSES.register
def entropy_regularized(logits: Logits, labels: Targets, *, strength: float = 0.1) -> PerExample:
    r"""Entropy regularization, $-\log p_y - \alpha H(p)$ (Pereyra et al. 2017).

    $H(p) = -\sum_k p_k \log p_k$, in nats. Also called confidence penalty. Cross-entropy at strength 0; a lower bound
    of focal loss with gamma = strength. The default 0.1 is the smallest value in common use; a negative one rewards
    confidence.

    >>> entropy_regularized(torch.zeros(1, 2), torch.tensor([0]), strength=0.5)  # log 2 - log 2 / 2
    tensor([0.3466])
    """
    log_p = logits.log_softmax(-1)
    lowest = torch.finfo(log_p.dtype).min  # a class of probability 0 adds 0
    entropy = -(log_p.exp() * log_p.clamp_min(lowest)).sum(-1)
    return -smoothed_log_likelihood(logits, labels) - strength * entropy


@LOSSES.register
def logit_norm(logits: Logits, labels: Targets, *, strength: float = 0.01, p: Norm = 1.0) -> PerExample:
    r"""Norm of the logits as a penalty, $-\log p_y + \alpha \lVert z \rVert_p$ (Joo & Chung 2020; Wang et al. 2021).

    The norm sums over classes and is not divided by their number. p = 1 and 0.01 (0.05 on CIFAR-10) are the values
    of Wang et al.; p >= 1. Not invariant to adding a constant to all logits. Cross-entropy at strength 0. A negative
    strength rewards large logits, and the loss has no lower bound (ibid., section 5: training fails soon).

    >>> logit_norm(torch.ones(1, 2), torch.tensor([0]), strength=0.1)
    tensor([0.8931])
    """
    if p < 1:
        raise InputError(f"logit_norm needs p >= 1, got {p}: it is no norm below", code="norm_range")
    return -smoothed_log_likelihood(logits, labels) + strength * torch.linalg.vector_norm(
        _zero_masked_logits(logits), p, -1
    )


@LOSSES.register
def logit_normalized(logits: Logits, labels: Targets, *, temperature: Width = 0.04) -> PerExample:
    r"""LogitNorm, the cross-entropy of normalized logits, $z / (\tau \lVert z \rVert_2)$ (Wei et al. 2022).

    Training cannot lower it by scaling the logits up, so their norm is left free. The network is used with
    unnormalized logits: calibrate with a temperature afterwards. tau = 0.04 is the paper's value for CIFAR-10. As in
    the authors' code 1e-7 is added to the norm.

    >>> logit_normalized(torch.tensor([[3.0, -4.0]]), torch.tensor([0]), temperature=1.0)
    tensor([0.2204])
    """
    possible = _zero_masked_logits(logits)
    norm = torch.linalg.vector_norm(possible, 2, -1, keepdim=True) + 1e-7
    scaled = (possible / (temperature * norm)).masked_fill(logits.isneginf(), -torch.inf)
    return -smoothed_log_likelihood(scaled, labels)


@LOSSES.register
def margin_smoothing(
    logits: Logits, labels: Targets, *, strength: float = 0.1, margin: NonNegativeFloat = 10.0
) -> PerExample:
    r"""Margin-based label smoothing (Liu et al. 2022), with the values of their code.

    $-\log p_y + \frac{\alpha}{k} \sum_k \max(0, \max_j z_j - z_k - m)$; the mean over classes is the code's. Label
    smoothing pulls all logit distances to 0, this one only those above the margin: cross-entropy where there is none.

    >>> margin_smoothing(torch.tensor([[12.0, 0.0]]), torch.tensor([0]))
    tensor([0.1000])
    """
    distance = _distance_to_top(logits, logits.amax(-1, keepdim=True))
    return -smoothed_log_likelihood(logits, labels) + strength * (distance - margin).relu().mean(-1)


@LOSSES.register
def acls(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 0.1,
    top: float = 1.0,
    rest: float = 0.1,
    margin: NonNegativeFloat = 10.0,
) -> PerExample:
    r"""Adaptive and conditional label smoothing (Park et al. 2023), as in the authors' code.

    $-\log p_y + \alpha [\lambda_1 \max(0, z_{max} - m)^2 + \frac{\lambda_2}{k-1} \sum_{k \ne max} \max(0, z_{max} -
    z_k - m)^2]$, without gradient through $z_{max}$ in the second term. `strength`, `top`, `rest` and `margin` are
    alpha, lambda_1, lambda_2 and m, with the code's values for Tiny-ImageNet. Not invariant to adding a constant to
    all logits.

    >>> acls(torch.tensor([[12.0, 0.0]]), torch.tensor([0]))
    tensor([0.4400])
    """
    highest = logits.amax(-1)
    excess = (highest - margin).relu().square()
    below = _distance_to_top(logits, highest.detach()[:, None])
    distances = (below - margin).relu().square().sum(-1) / (logits.shape[-1] - 1)
    return -smoothed_log_likelihood(logits, labels) + strength * (top * excess + rest * distances)


def _zero_masked_logits(logits: Logits) -> Tensor:
    return logits.masked_fill(logits.isneginf(), 0.0)


def _distance_to_top(logits: Logits, highest: Tensor) -> Tensor:
    return (highest - logits).masked_fill(logits.isneginf(), 0.0)
