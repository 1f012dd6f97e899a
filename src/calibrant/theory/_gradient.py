"""Mukhoti et al. (2020), section 4: how focal loss scales the gradient of cross-entropy, and where it stops helping."""

import math
from typing import Any

import torch
from torch import Tensor

from calibrant.types import InputError

__all__ = ["confidence_threshold", "gamma_for", "gradient_ratio", "sample_dependent_gamma"]


def gradient_ratio(p: Tensor | float, gamma: Tensor | float) -> Tensor:
    r"""Return $g(p, \gamma) = (1-p)^\gamma - \gamma p (1-p)^{\gamma-1} \log p$ (Mukhoti et al. 2020, prop. 1).

    The gradient of focal loss is that of cross-entropy times g at p = p_y, the probability of the true class.
    Written $(1-p)^\gamma (1 + \gamma r)$ with $r = -p \log p / (1-p)$, which rises from 0 at p = 0 to 1 at p = 1, so
    that both ends are exact. Elementwise; 1 at p = 0 and for gamma = 0. Plain numbers are taken in float64.

    >>> gradient_ratio(0.5, 2.0)  # (1 + 2 log 2) / 4
    tensor(0.5966, dtype=torch.float64)
    """
    p = _to_double(p)
    o = 1 - p
    r = torch.where(o > 0, torch.special.entr(p) / o.where(o > 0, 1), 1)
    return o**gamma * (1 + gamma * r)


def gamma_for(p0: Tensor | float) -> Tensor:
    r"""Return $\gamma^*(p_0)$, the gamma other than 0 with $g(p_0, \gamma) = 1$ (Mukhoti et al. 2020, prop. 2).

    Focal loss of this gamma pulls harder than cross-entropy on examples with p_y < p0, and more gently above. With
    $a = 1 - p_0$ and $b = p_0 \log p_0$ it is $a/b + W(-(a^{1-a/b}/b) \log a) / \log a$. Both real branches of
    Lambert's W solve g = 1, and one of the two solutions is always gamma = 0, since g(p, 0) = 1. The other one comes
    from $W_{-1}$ for p0 < 1/2, where it is positive, and from $W_0$ for p0 > 1/2, where it lies in (-1, 0); at
    p0 = 1/2 the branches meet. (The paper discards $W_0$ as negative; below 1/2 it is exactly 0.)

    A decreasing map of (0, 1) onto (-1, infinity), with inverse `confidence_threshold`; good to 1e-7 next to 1/2,
    where the root is double, and to 1e-12 elsewhere. Elementwise; raises `InputError` outside (0, 1).

    >>> gamma_for(0.2)
    tensor(4.8506, dtype=torch.float64)
    """
    from scipy.special import lambertw

    p0 = _to_double(p0)
    p = p0.detach().cpu().double()
    if not bool(((p > 0) & (p < 1)).all()):
        raise InputError(
            "p0 must lie in (0, 1): there is no gamma with g(p0, gamma) = 1 at the ends", code="probability_range"
        )
    log_a, b = torch.log1p(-p), torch.xlogy(p, p)
    ratio = log_a.exp() / b
    argument = -((1 - ratio) * log_a).exp() / b * log_a
    branch: Any = torch.where(p < 0.5, -1, 0).numpy()
    w = lambertw(argument.numpy(), branch).real
    return (ratio + torch.as_tensor(w) / log_a).to(p0)


def confidence_threshold(gamma: float) -> float:
    r"""Return $p_0(\gamma)$, where $g(p_0, \gamma) = 1$: the inverse of `gamma_for`, for gamma > -1.

    For gamma > 0 it lies below 1/2, g > 1 below it and g < 1 above. Proposition 5 of Komisarenko & Kull (2024), that
    the focal map never lowers the top probability, holds as long as that probability is at least $p_0(\gamma)$, and
    fails for some predictions below, if there are more than 3 classes. For gamma < 0 it lies above 1/2; there the map
    never raises a top probability of at least $p_0(\gamma)$. At gamma = 0, where g = 1 everywhere, the limit 1/2.

    >>> round(confidence_threshold(1.0), 9)  # 1 / e
    0.367879441
    """
    from scipy.optimize import brentq

    if not gamma > -1:
        raise InputError(f"a confidence threshold needs gamma > -1, got {gamma}", code="gamma_range")
    if gamma == 0:
        return 0.5
    low, high = (0.1 / (1 + gamma), 0.5) if gamma > 0 else (0.5, -math.expm1(-math.log1p(gamma) / gamma))

    def excess(p: float) -> float:
        return float(gradient_ratio(p, gamma).log()) / gamma

    root: Any = brentq(excess, low, high, xtol=1e-15)
    return root


def sample_dependent_gamma(p: Tensor | float, *, low: float = 3.0, high: float = 5.0) -> Tensor:
    r"""Return $\gamma^*(p)$ kept in [low, high]: the principle of Mukhoti et al. (2020), without its rounding.

    The gamma of every example is the one whose gradient ratio is 1 at its present p_y, but never outside [low, high].
    FLSD-53 is its rounding to a step: 5 below p_y = 0.2 and 3 above, where this is 5 up to 0.1968, falls, and is 3
    from 0.2526 on. `losses.flsd_continuous` trains with it, which is `losses.focal(..., gamma=this(p_y))`; no gradient
    flows through the choice. Elementwise; needs 0 < low <= high.

    >>> sample_dependent_gamma(torch.tensor([0.1, 0.2, 0.9]))
    tensor([5.0000, 4.8506, 3.0000])
    """
    if not 0 < low <= high:
        raise InputError(f"a policy needs 0 < low <= high, got {low} and {high}", code="interval_order")
    p = _to_double(p).detach()
    return gamma_for(p.double().clamp(confidence_threshold(high), confidence_threshold(low))).to(p.dtype)


def _to_double(x: Tensor | float) -> Tensor:
    """Return a tensor as it is, and a number in float64."""
    return x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64)
