"""Cross-entropy plus a penalty on confidence: on sharp probabilities, large logits or wide margins.

Masked classes, with logit -inf, are not penalized.
"""

import torch
from torch import Tensor

from calibrant._core.types import Logits, NonNegativeFloat, Norm, PerExampleLoss, Targets, Width
from calibrant.losses._likelihood import check_labels, log_likelihood
from calibrant.losses._register import register_loss

__all__ = ["acls", "entropy_regularized", "logit_norm", "logit_normalized", "margin_smoothing"]


@register_loss
def entropy_regularized(logits: Logits, labels: Targets, *, strength: float = 0.1) -> PerExampleLoss:
    r"""Compute the confidence penalty, $-\log p_y - \alpha H(p)$ (Pereyra et al. 2017).

    $H(p) = -\sum_k p_k \log p_k$, in nats. Equals cross-entropy at strength 0, and bounds focal loss with gamma =
    strength from below.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        strength: $\alpha$. The default 0.1 is the smallest value in common use; a negative one rewards confidence.

    >>> entropy_regularized(torch.zeros(1, 2), torch.tensor([0]), strength=0.5)  # log 2 - log 2 / 2
    tensor([0.3466])
    """
    return -log_likelihood(logits, labels) - strength * row_entropies(logits)


def row_entropies(logits: Logits) -> PerExampleLoss:
    """Return the entropy of each sample, in nats, with a finite gradient."""
    log_p = logits.log_softmax(-1)
    finite_log_p = log_p.clamp_min(torch.finfo(log_p.dtype).min)  # so that a class of probability 0 adds 0, not NaN
    return -(log_p.exp() * finite_log_p).sum(-1)


@register_loss
def logit_norm(logits: Logits, labels: Targets, *, strength: float = 0.01, p: Norm = 1.0) -> PerExampleLoss:
    r"""Compute the logit penalty, $-\log p_y + \alpha \lVert z \rVert_p$ (Joo & Chung 2020; Wang et al. 2021).

    The norm is not divided by the number of classes, and changes if a constant is added to all logits. Equals
    cross-entropy at strength 0.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        strength: $\alpha$. Wang et al. use 0.01, and 0.05 on CIFAR-10. A negative value rewards large logits; the loss
            then has no lower bound, and training soon fails (ibid., section 5).
        p: Order of the norm, at least 1, as in Wang et al.

    Raises:
        InputError: If p is below 1.

    >>> logit_norm(torch.ones(1, 2), torch.tensor([0]), strength=0.1)
    tensor([0.8931])
    """
    norm = torch.linalg.vector_norm(_zero_masked_logits(logits), p, -1)
    return -log_likelihood(logits, labels) + strength * norm


@register_loss
def logit_normalized(logits: Logits, labels: Targets, *, temperature: Width = 0.04) -> PerExampleLoss:
    r"""Compute LogitNorm, the cross-entropy of $z / (\tau \lVert z \rVert_2)$ (Wei et al. 2022).

    Training cannot lower it by scaling the logits. The trained network is used with its unnormalized logits, so fit a
    temperature afterwards. The default $\tau$ = 0.04 is the paper's for CIFAR-10. As in the authors' code, 1e-7 is
    added to the norm.

    >>> logit_normalized(torch.tensor([[3.0, -4.0]]), torch.tensor([0]), temperature=1.0)
    tensor([0.2204])
    """
    unmasked = _zero_masked_logits(logits)
    norm = torch.linalg.vector_norm(unmasked, 2, -1, keepdim=True) + 1e-7
    scaled = (unmasked / (temperature * norm)).masked_fill(logits.isneginf(), -torch.inf)
    return -log_likelihood(scaled, labels)


@register_loss
def margin_smoothing(
    logits: Logits, labels: Targets, *, strength: float = 0.1, margin: NonNegativeFloat = 10.0
) -> PerExampleLoss:
    r"""Compute margin-based label smoothing, MbLS (Liu et al. 2022).

    $-\log p_y + \frac{\alpha}{k} \sum_j \max(0, \max_i z_i - z_j - m)$, with the mean over classes of the authors'
    code. Label smoothing pulls all logit distances to 0; this pulls only those above the margin. Equals cross-entropy
    if there are none. The defaults $\alpha$ = 0.1 and m = 10 come from their code.

    >>> margin_smoothing(torch.tensor([[12.0, 0.0]]), torch.tensor([0]))
    tensor([0.1000])
    """
    distance = _distance_to_top(logits, logits.amax(-1, keepdim=True))
    return -log_likelihood(logits, labels) + strength * (distance - margin).relu().mean(-1)


@register_loss
def acls(
    logits: Logits,
    labels: Targets,
    *,
    strength: float = 0.1,
    top: float = 1.0,
    rest: float = 0.1,
    margin: NonNegativeFloat = 10.0,
) -> PerExampleLoss:
    r"""Compute adaptive and conditional label smoothing, ACLS (Park et al. 2023), as in the authors' code.

    $-\log p_y + \alpha [\lambda_1 \max(0, z_{max} - m)^2 + \frac{\lambda_2}{k-1} \sum_{j \ne max} \max(0, z_{max} -
    z_j - m)^2]$, without gradient through $z_{max}$ in the second term. Changes if a constant is added to all logits.
    Equals cross-entropy at strength 0. The defaults are the ones of the code for Tiny-ImageNet.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        strength: $\alpha$.
        top: $\lambda_1$, for the largest logit.
        rest: $\lambda_2$, for the distances of all other logits.
        margin: m.

    >>> acls(torch.tensor([[12.0, 0.0]]), torch.tensor([0]))
    tensor([0.4400])
    """
    labels = check_labels(logits, labels)  # before the classes are counted on axis 1
    highest = logits.amax(-1)
    top_excess = (highest - margin).relu().square()
    distance = _distance_to_top(logits, highest.detach()[:, None])  # 0 for the top class itself
    rest_excess = (distance - margin).relu().square().sum(-1) / (logits.shape[-1] - 1)
    return -log_likelihood(logits, labels) + strength * (top * top_excess + rest * rest_excess)


def _zero_masked_logits(logits: Logits) -> Tensor:
    """Replace the logits -inf of masked classes by 0, which adds nothing to a norm."""
    return logits.masked_fill(logits.isneginf(), 0.0)


def _distance_to_top(logits: Logits, highest: Tensor) -> Tensor:
    """Return how far each logit lies below `highest` (n, 1), or 0 for a masked class."""
    return (highest - logits).masked_fill(logits.isneginf(), 0.0)
