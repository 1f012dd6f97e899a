"""The focal family: cross-entropy weighted by the error of the model."""

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.types import (
    InputError,
    Logits,
    NonNegativeFloat,
    Norm,
    OpenFraction,
    PerExampleLoss,
    PositiveFloat,
    Range,
    Targets,
)
from calibrant.losses._likelihood import (
    check_labels,
    expected_loss,
    one_minus_p,
    probability_error,
    weighted_cross_entropy,
)
from calibrant.losses._proper import brier
from calibrant.losses._register import register_loss

__all__ = ["bsce_gra", "dual_focal", "flsd", "flsd_continuous", "focal", "focal_calibration", "inverse_focal", "poly1"]

INVERSE_GAMMA_LIMIT = 3.591121476668622  # 1 / W_0(1/e)
InverseGamma = Annotated[float, Range(ge=0, lt=INVERSE_GAMMA_LIMIT)]


def power(base: Tensor, gamma: float | Tensor) -> Tensor:
    """Return base ** gamma for base >= 0.

    At base = 0 the gradient is 0, because the base is clamped. Without that it would be infinite for gamma < 1. gamma
    may be one number per sample (n), which then applies to every class of a base (n, k).
    """
    if isinstance(gamma, Tensor) and gamma.ndim < base.ndim:
        gamma = gamma.unsqueeze(-1)
    return base.clamp_min(torch.finfo(base.dtype).tiny) ** gamma


def check_schedule(name: str, limits: Sequence[float], gammas: Sequence[float]) -> None:
    """Raise `InputError` unless the limits at which gamma changes increase, and there is one gamma more.

    `name` is the name of the limits, for the message.
    """
    if len(gammas) != len(limits) + 1 or list(limits) != sorted(limits):
        raise InputError(
            f"Expected increasing {name} and one gamma more, got {name}={limits} and gammas={gammas}.", code="schedule"
        )


@register_loss
def focal(
    logits: Logits, labels: Targets, *, gamma: NonNegativeFloat | PerExampleLoss = 3.0, detach_weight: bool = False
) -> PerExampleLoss:
    r"""Compute the focal loss, $-(1 - p_y)^\gamma \log p_y$ (Lin et al. 2017, eq. 4).

    Equals cross-entropy at gamma = 0. It is not proper: its minimizer is underconfident (Komisarenko & Kull 2024),
    which calibrates a model that overfits. Its gradient is that of cross-entropy times $g(p_y, \gamma) = (1-p_y)^\gamma
    - \gamma p_y (1-p_y)^{\gamma-1} \log p_y$ (Mukhoti et al. 2020, proposition 1). Under soft labels t it is
    $-\sum_k t_k (1 - p_k)^\gamma \log p_k$; quality focal loss (Li et al. 2020) is another loss. For the sigmoid focal
    loss of one logit, use `nn.Criterion("focal", binary=True, alpha=0.25)`.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        gamma: Strength, at least 0, as one number or one per sample. Mukhoti et al. use 3, Lin et al. 2.
        detach_weight: Stop the gradient through $(1 - p_y)^\gamma$, as in the code of Wang et al. (2021). The gradient
            factor is then $(1 - p_y)^\gamma$.

    Raises:
        InputError: If gamma is negative.

    >>> focal(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0)
    tensor([0.1733])
    """
    return weighted_cross_entropy(
        logits, labels, lambda log_p: power(one_minus_p(log_p), gamma), detach_weight=detach_weight
    )


@register_loss
def flsd(
    logits: Logits,
    labels: Targets,
    *,
    thresholds: tuple[OpenFraction, ...] = (0.2,),
    gammas: tuple[NonNegativeFloat, ...] = (5.0, 3.0),
) -> PerExampleLoss:
    """Compute sample-dependent focal loss, FLSD (Mukhoti et al. 2020, section 5).

    Focal loss with gamma chosen by p_y. No gradient flows through the choice. Equals focal loss if all gammas are
    equal.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        thresholds: Probabilities p_y at which gamma changes, increasing. The paper's text and its code for text
            classification use 0.19, its code for images 0.2; both round p_0 = 0.1968, below which focal loss with
            gamma = 5 has a larger gradient than cross-entropy.
        gammas: gammas[i] applies from thresholds[i - 1] up to thresholds[i]. The default (5, 3) is the paper's FLSD-53;
            thresholds (0.2, 0.5) with gammas (5, 3, 2) are its other policy.

    Raises:
        InputError: If thresholds decrease, or there is not one gamma more than thresholds.

    >>> flsd(torch.zeros(1, 10), torch.tensor([0]))
    tensor([1.3597])
    """
    check_schedule("thresholds", thresholds, gammas)

    def weight(log_p: Tensor) -> Tensor:
        """Return the focal weight with gamma by the number of thresholds up to p."""
        p = log_p.detach().exp()
        index = torch.bucketize(p, p.new_tensor(thresholds), right=True)
        return power(one_minus_p(log_p), p.new_tensor(gammas)[index])

    return weighted_cross_entropy(logits, labels, weight)


@register_loss
def flsd_continuous(
    logits: Logits, labels: Targets, *, low: PositiveFloat = 3.0, high: PositiveFloat = 5.0
) -> PerExampleLoss:
    r"""Compute focal loss with optimal gamma, $\gamma^*(p_y)$ clipped to [low, high] (Mukhoti et al. 2020, prop. 2).

    $\gamma^*(p)$ solves $g(p, \gamma) = 1$ for the factor g of the gradient of `focal`, which is then that of
    cross-entropy; the paper's FLSD, `flsd`, rounds it to steps. With the defaults, gamma is 5 below p_y = 0.1968, then
    falls, and is 3 from 0.2526 on. `theory.sample_dependent_gamma` is this policy alone. No gradient flows through the
    choice of gamma. Equals focal loss if low = high.

    >>> flsd_continuous(torch.zeros(1, 5), torch.tensor([0]))  # .8 ** 4.8506 * log 5
    tensor([0.5453])
    """
    if low > high:
        raise InputError(f"Expected low <= high, got low={low} and high={high}.", code="interval_order")

    def weight(log_p: Tensor) -> Tensor:
        """Return the focal weight with the gamma of each sample, which is solved for in float64."""
        gamma = _unit_ratio_gamma(log_p.detach().double().exp(), low, high)
        return power(one_minus_p(log_p), gamma.to(log_p))

    return weighted_cross_entropy(logits, labels, weight)


def _unit_ratio_gamma(p: Tensor, low: float, high: float) -> Tensor:
    r"""Return the gamma in [low, high] at which focal loss has the gradient of cross-entropy, for p = p_y (n).

    It is the root of $\log g = \gamma \log(1-p) + \log(1 + \gamma r)$ with $r = -p \log p / (1-p)$, or the end of
    [low, high] nearer to it. The function is concave in gamma, 0 at 0 and positive up to its root. Newton's method from
    the right therefore converges monotonically, in 8 steps for `high` up to 20.
    """
    log_error = torch.log1p(-p)
    r = torch.where(p < 1, torch.special.entr(p) / (1 - p), 1.0)  # entr(p) is -p log p; the limit at p = 1 is 1

    def log_ratio(gamma: Tensor) -> Tensor:
        """Return log g."""
        return gamma * log_error + torch.log1p(gamma * r)

    lower, upper = torch.full_like(p, low), torch.full_like(p, high)
    gamma = upper
    for _ in range(10):
        slope = log_error + r / (1 + gamma * r)
        gamma = gamma - log_ratio(gamma) / slope
    gamma = torch.where(log_ratio(lower) <= 0, lower, gamma)  # the root is at most `low`
    return torch.where(log_ratio(upper) >= 0, upper, gamma)  # the root is at least `high`


@register_loss
def inverse_focal(
    logits: Logits, labels: Targets, *, gamma: InverseGamma | PerExampleLoss = 2.0, detach_weight: bool = False
) -> PerExampleLoss:
    r"""Compute the inverse focal loss, $-(1 + p_y)^\gamma \log p_y$ (Wang et al. 2021, eq. 4).

    Confident samples weigh more, so that training sharpens; temperature scaling should follow. Equals cross-entropy at
    gamma = 0.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        gamma: Strength in [0, 3.5911), as one number or one per sample. From 1 / W_0(1/e) = 3.5911 on, the gradient
            factor $(1+p)^{\gamma-1} (1 + p + \gamma p \log p)$ is negative around p = 0.28. The paper recommends no
            value; 2 is the largest of AdaFocal.
        detach_weight: Stop the gradient through the weight. The authors' code is not public.

    Raises:
        InputError: If gamma is outside [0, 3.5911).

    >>> inverse_focal(torch.zeros(1, 2), torch.tensor([0]))
    tensor([1.5596])
    """
    return weighted_cross_entropy(
        logits, labels, lambda log_p: power(1 + log_p.exp(), gamma), detach_weight=detach_weight
    )


@register_loss
def dual_focal(logits: Logits, labels: Targets, *, gamma: NonNegativeFloat = 5.0) -> PerExampleLoss:
    r"""Compute the dual focal loss, $-(1 - p_y + p_j)^\gamma \log p_y$ (Tao et al. 2023, eq. 5).

    p_j is the largest probability strictly below p_y, or 0 if there is none. Equals focal loss where p_j = 0. With two
    classes the weight is $2 (1 - p_y)$ if the label leads and 1 - p_y otherwise. The default gamma = 5 is reported for
    CIFAR; it was not checked against the paper's table.

    >>> dual_focal(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0)
    tensor([0.3466])
    """
    labels = check_labels(logits, labels)  # before the labels are used as indices
    p = logits.softmax(-1)
    if labels.is_floating_point():
        p_j = _next_below(p)  # (n, k), as every class may be the true one
    else:
        p_y = p.gather(-1, labels[:, None])  # from the same softmax, so that ties stay exact
        p_j = p.where(p < p_y, 0.0).amax(-1)
    return weighted_cross_entropy(logits, labels, lambda log_p: power(one_minus_p(log_p) + p_j, gamma))


def _next_below(p: Tensor) -> Tensor:
    """Return for every entry the largest entry strictly below it in its row, or 0."""
    ascending = p.sort(-1).values
    num_below = torch.searchsorted(ascending.detach(), p.detach())  # number of entries strictly below, (n, k)
    # after a 0 in front, the largest of m entries below stands at index m, and the 0 at index 0
    return torch.cat([torch.zeros_like(p[:, :1]), ascending], -1).gather(-1, num_below)


@register_loss
def bsce_gra(logits: Logits, labels: Targets, *, gamma: NonNegativeFloat = 1.0, norm: Norm = 1.0) -> PerExampleLoss:
    r"""Compute BSCE-GRA, $-\lVert e_y - p \rVert_q^\gamma \log p_y$ with a detached norm (Lin et al. 2025).

    The gradient is the one of cross-entropy times the uncertainty $\lVert e_y - p \rVert_q^\gamma$. Equals
    cross-entropy at gamma = 0.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        gamma: Exponent of the norm; 1 is the default of the authors' command line.
        norm: q; 1 is the default of the authors' command line. At 2 the weight is a power of the Brier score.

    >>> bsce_gra(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.6931])
    """
    labels = check_labels(logits, labels)  # before the labels are used as indices
    with torch.no_grad():
        if labels.is_floating_point():
            error_norm = _class_error_norms(logits, norm)  # (n, k), as every class may be the true one
        else:
            error_norm = torch.linalg.vector_norm(probability_error(logits, labels), norm, -1)
        weight = error_norm**gamma
    return weighted_cross_entropy(logits, labels, lambda log_p: weight)


def _class_error_norms(logits: Logits, norm: float) -> Tensor:
    r"""Return $\lVert e_i - p \rVert_q = (\sum_{j \ne i} p_j^q + (1 - p_i)^q)^{1/q}$ for every class i, (n, k)."""
    p = logits.double().softmax(-1)  # float64, because the sum over the other classes is a difference
    if norm == math.inf:
        return (1 - p).to(logits)  # the other p_j sum to 1 - p_i, so that none is larger
    powers = p**norm
    other_powers = (powers.sum(-1, keepdim=True) - powers).clamp_min(0)  # rounding may give less than 0
    own_power = (1 - p).clamp_min(0) ** norm
    return ((other_powers + own_power) ** (1 / norm)).to(logits)


@register_loss
def poly1(logits: Logits, labels: Targets, *, epsilon: Annotated[float, Range(ge=-1)] = 2.0) -> PerExampleLoss:
    r"""Compute the Poly-1 loss, $-\log p_y + \epsilon (1 - p_y)$ (Leng et al. 2022).

    Changes the first Taylor coefficient of cross-entropy in 1 - p_y to 1 + epsilon. Equals cross-entropy at epsilon =
    0, and is not proper otherwise. The default 2 is the paper's choice for ImageNet.

    Raises:
        InputError: If epsilon is below -1.

    >>> poly1(torch.zeros(1, 2), torch.tensor([0]), epsilon=1.0)
    tensor([1.1931])
    """
    return expected_loss(logits, labels, lambda log_p: -log_p + epsilon * one_minus_p(log_p))


@register_loss
def focal_calibration(
    logits: Logits, labels: Targets, *, gamma: NonNegativeFloat = 3.0, strength: float = 0.5
) -> PerExampleLoss:
    r"""Compute focal loss plus `strength` times the Brier score (Liang et al. 2024).

    The Brier score $\lVert p - e_y \rVert^2$ is proper and corrects the underconfident minimizer of focal loss. Equals
    focal loss at strength 0. The defaults were not checked against the paper's tables.

    >>> focal_calibration(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0)
    tensor([0.4233])
    """
    return focal(logits, labels, gamma=gamma) + strength * brier(logits, labels)
