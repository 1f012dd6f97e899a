"""The focal family: cross-entropy, weighted by how wrong the model still is."""

import math
from typing import Any

import torch
from torch import Tensor

from calibrant.losses._likelihood import check_labels, expected_loss, probability_error
from calibrant.losses._proper import brier
from calibrant.registry import LOSSES, check_settings
from calibrant.types import InputError, Logits, Norm, PerExample, PositiveFloat, Targets

__all__ = ["bsce_gra", "dual_focal", "flsd", "flsd_continuous", "focal", "focal_calibration", "inverse_focal", "poly1"]

INVERSE_GAMMA_LIMIT = 3.591121476668622  # 1 / W_0(1/e)


def power(base: Tensor, gamma: float | Tensor) -> Tensor:
    """Return base ** gamma for base >= 0, with a finite gradient at base = 0 for gamma < 1 as well.

    One gamma per example serves every class of a base (n k).
    """
    if isinstance(gamma, Tensor) and gamma.ndim < base.ndim:
        gamma = gamma.unsqueeze(-1)
    return base.clamp_min(torch.finfo(base.dtype).tiny) ** gamma


@LOSSES.register
def focal(
    logits: Logits, labels: Targets, *, gamma: float | PerExample = 3.0, detach_weight: bool = False, **elsewhere: Any
) -> PerExample:
    r"""Focal loss, $-(1 - p_y)^\gamma \log p_y$ (Lin et al. 2017, eq. 4).

    Cross-entropy at gamma = 0. Not proper: its minimizer is underconfident (Komisarenko & Kull 2024), which is why
    it calibrates a model that overfits. Its gradient is $g(p_y, \gamma) = (1-p_y)^\gamma - \gamma p_y
    (1-p_y)^{\gamma-1} \log p_y$ times that of cross-entropy (Mukhoti et al. 2020, proposition 1). gamma is a number
    or one number per example, not negative. `detach_weight` keeps the gradient from flowing through
    $(1 - p_y)^\gamma$, as in the code of Wang et al. (2021): the factor is then $(1 - p_y)^\gamma$ alone. Of a soft
    label it is the expectation, $-\sum_k t_k (1 - p_k)^\gamma \log p_k$, whose minimizer is that of the hard labels
    it stands for; quality focal loss (Li et al. 2020), minimized by t, is another loss.

    The sigmoid focal loss of one logit, with alpha, is `nn.Criterion("focal", binary=True, alpha=0.25)`.

    >>> focal(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0)
    tensor([0.1733])
    """
    check_settings(focal, elsewhere, parameter_hints=LOSSES.parameter_hints)  # says of alpha where it belongs
    if isinstance(gamma, float | int) and not 0 <= gamma < math.inf:
        raise InputError(
            f"focal needs gamma >= 0, got {gamma}; the opposite weighting is inverse_focal", code="gamma_range"
        )

    def of(log_p: Tensor) -> Tensor:
        weight = power(-log_p.expm1(), gamma)
        return -(weight.detach() if detach_weight else weight) * log_p

    return expected_loss(logits, labels, of)


@LOSSES.register
def flsd(
    logits: Logits,
    labels: Targets,
    *,
    thresholds: tuple[float, ...] = (0.2,),
    gammas: tuple[float, ...] = (5.0, 3.0),
) -> PerExample:
    r"""Sample-dependent focal loss, FLSD (Mukhoti et al. 2020, section 5).

    gamma = gammas[i] where p_y lies below thresholds[i] and not below the one before. The defaults are FLSD-53: 5 where
    p_y < 0.2, else 3. Thresholds (0.2, 0.5) with gammas (5, 3, 2) are the other policy of the paper. Its text and its
    text-classification code say 0.19 where its image code says 0.2; both round p_0 = 0.1968, where g(p_0, 5) = 1. No
    gradient flows through the choice of gamma.

    >>> flsd(torch.zeros(1, 10), torch.tensor([0]))
    tensor([1.3597])
    """
    if len(gammas) != len(thresholds) + 1 or list(thresholds) != sorted(thresholds):
        raise InputError(
            f"flsd needs increasing thresholds and one gamma more than thresholds, got {thresholds} and {gammas}",
            code="schedule",
        )

    def of(log_p: Tensor) -> Tensor:
        p = log_p.detach().exp()
        index = torch.bucketize(p, p.new_tensor(thresholds), right=True)
        return -power(-log_p.expm1(), p.new_tensor(gammas)[index]) * log_p

    return expected_loss(logits, labels, of)


@LOSSES.register
def flsd_continuous(
    logits: Logits, labels: Targets, *, low: PositiveFloat = 3.0, high: PositiveFloat = 5.0
) -> PerExample:
    r"""FLSD without its rounding: focal loss with $\gamma^*(p_y)$ kept in [low, high] (Mukhoti et al. 2020, prop. 2).

    $\gamma^*(p)$ is where $g(p, \gamma) = 1$; the paper rounds it to steps, `flsd`. 5 below p_y = 0.1968, then falling,
    3 from 0.2526 on; `theory.sample_dependent_gamma` is the policy alone. Focal loss where low = high. No gradient
    flows through the choice of gamma.

    >>> flsd_continuous(torch.zeros(1, 5), torch.tensor([0]))  # .8 ** 4.8506 * log 5
    tensor([0.5453])
    """
    if low > high:
        raise InputError(f"flsd_continuous needs low <= high, got {low} and {high}", code="interval_order")

    def of(log_p: Tensor) -> Tensor:
        gamma = _unit_ratio_gamma(log_p.detach().double().exp(), low, high).to(log_p)
        return -power(-log_p.expm1(), gamma) * log_p

    return expected_loss(logits, labels, of)


def _unit_ratio_gamma(p: Tensor, low: float, high: float) -> Tensor:
    r"""Return the root in [low, high] of $\log g = \gamma \log(1-p) + \log(1 + \gamma r)$, or the nearer end.

    r is $-p \log p / (1-p)$. The function is concave in gamma, 0 at 0 and positive up to its root: from the right of it
    Newton's steps only come closer, in 8 to the last digits if `high` is at most 20.
    """
    slope = torch.log1p(-p)
    r = torch.where(p < 1, torch.special.entr(p) / (1 - p), 1.0)

    def log_ratio(gamma: Tensor) -> Tensor:
        return gamma * slope + torch.log1p(gamma * r)

    lower, upper = torch.full_like(p, low), torch.full_like(p, high)
    gamma = upper
    for _ in range(10):
        gamma = gamma - log_ratio(gamma) / (slope + r / (1 + gamma * r))
    return torch.where(log_ratio(upper) >= 0, upper, torch.where(log_ratio(lower) <= 0, lower, gamma))


@LOSSES.register
def inverse_focal(
    logits: Logits, labels: Targets, *, gamma: float | PerExample = 2.0, detach_weight: bool = False
) -> PerExample:
    r"""Inverse focal loss, $-(1 + p_y)^\gamma \log p_y$ (Wang et al. 2021, eq. 4).

    Cross-entropy at gamma = 0. Confident examples weigh more, so it sharpens; meant to be followed by temperature
    scaling. The gradient factor $(1+p)^{\gamma-1} (1 + p + \gamma p \log p)$ is positive for all p only below
    gamma = 1 / W_0(1/e) = 3.5911: from there on the loss would reward lowering p_y around 0.28, and raises
    `InputError`. The paper tries several gammas and recommends none; 2 is the largest of AdaFocal's range. Whether
    the authors detach the weight is not public; `detach_weight` does.

    >>> inverse_focal(torch.zeros(1, 2), torch.tensor([0]))
    tensor([1.5596])
    """
    if isinstance(gamma, float | int) and not 0 <= gamma < INVERSE_GAMMA_LIMIT:
        raise InputError(
            f"inverse_focal needs 0 <= gamma < 3.5911 (1 / W(1/e)), got {gamma}; at larger ones lowering the true "
            "class's probability around 0.28 lowers the loss",
            code="gamma_range",
        )

    def of(log_p: Tensor) -> Tensor:
        weight = power(1 + log_p.exp(), gamma)
        return -(weight.detach() if detach_weight else weight) * log_p

    return expected_loss(logits, labels, of)


@LOSSES.register
def dual_focal(logits: Logits, labels: Targets, *, gamma: float = 5.0) -> PerExample:
    r"""Dual focal loss, $-(1 - p_y + p_j)^\gamma \log p_y$ (Tao et al. 2023, eq. 5).

    p_j is the largest probability strictly below p_y, 0 if there is none; with p_j = 0 this is focal loss, and with
    two classes it weighs by $2 (1 - p_y)$ where the label leads and by 1 - p_y where it does not. gamma = 5 is
    reported for CIFAR; that default was not checked against the paper's table.

    >>> dual_focal(torch.zeros(1, 2), torch.tensor([0]), gamma=1.0)
    tensor([0.3466])
    """
    check_labels(logits, labels)
    p = logits.softmax(-1)
    if labels.is_floating_point():
        runner_up = _next_below(p)
    else:
        p_y = p.gather(-1, labels[:, None])  # from the softmax it is compared with, so that a tie is a tie
        runner_up = p.where(p < p_y, 0.0).amax(-1)
    return expected_loss(logits, labels, lambda log_p: -power(-log_p.expm1() + runner_up, gamma) * log_p)


def _next_below(p: Tensor) -> Tensor:
    """Return for every number the largest strictly below it in its row, 0 where there is none."""
    ranked = p.sort(-1).values
    equal_from = torch.searchsorted(ranked.detach(), p.detach())
    return torch.cat([torch.zeros_like(p[:, :1]), ranked], -1).gather(-1, equal_from)


@LOSSES.register
def bsce_gra(logits: Logits, labels: Targets, *, gamma: float = 1.0, norm: Norm = 1.0) -> PerExample:
    r"""BSCE-GRA, cross-entropy weighted by uncertainty, $-\lVert e_y - p \rVert_q^\gamma \log p_y$ (Lin et al. 2025).

    No gradient flows through the weight, so the gradient of cross-entropy is multiplied by the uncertainty
    $\lVert e_y - p \rVert$ and by nothing else. The defaults gamma = 1 and norm q = 1 are those of the authors'
    command line; a norm of 2 makes the weight a power of the Brier score. Cross-entropy at gamma = 0.

    >>> bsce_gra(torch.zeros(1, 2), torch.tensor([0]))
    tensor([0.6931])
    """
    check_labels(logits, labels)
    with torch.no_grad():
        if labels.is_floating_point():
            weight = _class_error_norms(logits, norm) ** gamma
        else:
            weight = torch.linalg.vector_norm(probability_error(logits, labels), norm, -1) ** gamma
    return expected_loss(logits, labels, lambda log_p: -weight * log_p)


def _class_error_norms(logits: Logits, norm: float) -> Tensor:
    r"""Return $\lVert e_k - p \rVert_q$ of every class; by the largest difference, $1 - p_k$, at q = infinity."""
    p = logits.double().softmax(-1)
    if norm == math.inf:
        return (1 - p).to(logits)
    powers = p**norm
    other_powers = (powers.sum(-1, keepdim=True) - powers).clamp_min(0)
    return ((other_powers + (1 - p).clamp_min(0) ** norm) ** (1 / norm)).to(logits)


@LOSSES.register
def poly1(logits: Logits, labels: Targets, *, epsilon: float = 2.0) -> PerExample:
    r"""Poly-1 loss, $-\log p_y + \epsilon (1 - p_y)$ (Leng et al. 2022), epsilon >= -1.

    Cross-entropy whose first Taylor coefficient in 1 - p_y is 1 + epsilon; 2 is the paper's choice for ImageNet
    classification. Cross-entropy at epsilon = 0; not proper otherwise.

    >>> poly1(torch.zeros(1, 2), torch.tensor([0]), epsilon=1.0)
    tensor([1.1931])
    """
    if not -1 <= epsilon < math.inf:
        raise InputError(
            f"poly1 needs epsilon >= -1, got {epsilon}; below, a small error lowers the loss", code="epsilon_range"
        )
    return expected_loss(logits, labels, lambda log_p: -log_p - epsilon * log_p.expm1())


@LOSSES.register
def focal_calibration(logits: Logits, labels: Targets, *, gamma: float = 3.0, strength: float = 0.5) -> PerExample:
    r"""Focal calibration loss, focal loss plus `strength` times the Brier score (Liang et al. 2024).

    The Brier score $\lVert p - e_y \rVert^2$ is proper and pulls the underconfident minimizer of focal loss back. Focal
    loss at strength 0. The defaults were not checked against the paper's tables.

    >>> focal_calibration(torch.zeros(1, 2), torch.tensor([0]), gamma=2.0)
    tensor([0.4233])
    """
    return focal(logits, labels, gamma=gamma) + strength * brier(logits, labels)
