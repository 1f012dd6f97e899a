"""How focal loss scales the gradient of cross-entropy (Mukhoti et al. 2020, section 4)."""

import math
from typing import Any

import torch
from torch import Tensor

from calibrant._core.types import InputError

__all__ = ["confidence_threshold", "gamma_for", "gradient_ratio", "sample_dependent_gamma"]


def gradient_ratio(p: Tensor | float, gamma: Tensor | float) -> Tensor:
    r"""Return $g(p, \gamma) = (1-p)^\gamma - \gamma p (1-p)^{\gamma-1} \log p$ (Mukhoti et al. 2020, prop. 1).

    The gradient of focal loss is that of cross-entropy times g at p = p_y. Computed as $(1-p)^\gamma (1 + \gamma r)$
    with $r = -p \log p / (1-p)$, which is exact at p = 0 and p = 1. Elementwise; 1 at p = 0 and for gamma = 0.

    Args:
        p: Probability of the true class. A plain number is taken in float64.
        gamma: Gamma of the focal loss.

    >>> gradient_ratio(0.5, 2.0)  # (1 + 2 log 2) / 4
    tensor(0.5966, dtype=torch.float64)
    """
    p = _as_tensor(p)
    o = 1 - p
    r = torch.where(o > 0, torch.special.entr(p) / o.where(o > 0, 1), 1)  # entr(p) is -p log p; the limit at 1 is 1
    return o**gamma * (1 + gamma * r)


def gamma_for(p0: Tensor | float) -> Tensor:
    r"""Return $\gamma^*(p_0)$, the nonzero gamma with $g(p_0, \gamma) = 1$ for the `gradient_ratio` g.

    Focal loss with this gamma has a larger gradient than cross-entropy for p_y < p0, and a smaller one above. With
    $a = 1 - p_0$ and $b = p_0 \log p_0$ it is $a/b + W(-(a^{1-a/b}/b) \log a) / \log a$ (Mukhoti et al. 2020, prop. 2).
    One real branch of Lambert's W gives the trivial solution gamma = 0. The other solution is on $W_{-1}$ for p0 < 1/2,
    where it is positive, and on $W_0$ for p0 > 1/2, where it lies in (-1, 0). (The paper discards $W_0$ as negative;
    below 1/2 it is exactly 0.)

    A decreasing map of (0, 1) onto (-1, infinity), the inverse of `confidence_threshold`. Accurate to 1e-7 near the
    double root 1/2, and to 1e-12 elsewhere. Elementwise.

    Raises:
        InputError: If p0 is outside (0, 1).

    >>> gamma_for(0.2)
    tensor(4.8506, dtype=torch.float64)
    """
    from scipy.special import lambertw

    p0 = _as_tensor(p0)
    p = p0.detach().cpu().double()  # for scipy
    if not bool(((p > 0) & (p < 1)).all()):
        raise InputError(
            f"Expected p0 in (0, 1), got values from {float(p.min()):.4g} to {float(p.max()):.4g}.",
            code="probability_range",
        )
    log_a, b = torch.log1p(-p), torch.xlogy(p, p)
    ratio = log_a.exp() / b  # a / b
    argument = -((1 - ratio) * log_a).exp() / b * log_a  # of W
    branch: Any = torch.where(p < 0.5, -1, 0).numpy()
    w = lambertw(argument.numpy(), branch).real
    return (ratio + torch.as_tensor(w) / log_a).to(p0)


def confidence_threshold(gamma: float) -> float:
    r"""Return $p_0(\gamma)$ with $g(p_0, \gamma) = 1$ for the `gradient_ratio` g, the inverse of `gamma_for`.

    For gamma > 0 it is below 1/2, with g > 1 below it and g < 1 above. The focal map does not lower a top probability
    of at least $p_0(\gamma)$; below, proposition 5 of Komisarenko & Kull (2024) fails for some predictions of more than
    3 classes. For gamma < 0 it is above 1/2, and the map does not raise a top probability of at least $p_0(\gamma)$. At
    gamma = 0 it is the limit 1/2.

    Raises:
        InputError: If gamma is -1 or less.

    >>> round(confidence_threshold(1.0), 9)  # 1 / e
    0.367879441
    """
    from scipy.optimize import brentq

    check_gamma(gamma)
    if gamma == 0:
        return 0.5
    # Log g has different signs at these two ends. At 1/2, g < 1. At the other end g > 1: for gamma < 0, (1 - p)^gamma
    # is 1 / (1 + gamma) there, so that g = (1 + gamma r) / (1 + gamma), with the r < 1 of `gradient_ratio`
    low, high = (0.1 / (1 + gamma), 0.5) if gamma > 0 else (0.5, -math.expm1(-math.log1p(gamma) / gamma))

    def scaled_log_ratio(p: float) -> float:
        """Return log g(p, gamma) / gamma, which is 0 at the threshold and changes its sign there."""
        return float(gradient_ratio(p, gamma).log()) / gamma

    root: Any = brentq(scaled_log_ratio, low, high, xtol=1e-15)
    return root


def sample_dependent_gamma(p: Tensor | float, *, low: float = 3.0, high: float = 5.0) -> Tensor:
    r"""Return $\gamma^*(p)$ clipped to [low, high], the principle behind FLSD (Mukhoti et al. 2020, section 5).

    Every sample gets the gamma whose gradient ratio is 1 at its p_y. FLSD-53 rounds this to a step, 5 below p_y = 0.2
    and 3 above; this function is 5 up to 0.1968, then falls, and is 3 from 0.2526 on. `losses.flsd_continuous` trains
    with it. No gradient flows through the result. Elementwise.

    Args:
        p: Probability of the true class.
        low: Smallest gamma, above 0.
        high: Largest gamma.

    Raises:
        InputError: Unless 0 < low <= high.

    >>> sample_dependent_gamma(torch.tensor([0.1, 0.2, 0.9]))
    tensor([5.0000, 4.8506, 3.0000])
    """
    if not 0 < low <= high:
        raise InputError(f"Expected 0 < low <= high, got low={low} and high={high}.", code="interval_order")
    p = _as_tensor(p).detach()
    clipped_p = p.double().clamp(confidence_threshold(high), confidence_threshold(low))  # gamma* falls as p rises
    return gamma_for(clipped_p).to(p.dtype)


def check_gamma(gamma: Tensor | float) -> None:
    """Raise `InputError` unless gamma is above -1. Check nothing while torch compiles and hides the values."""
    if not torch.compiler.is_compiling() and not bool((torch.as_tensor(gamma) > -1).all()):
        raise InputError(
            f"Expected gamma > -1, got {gamma}. Other weights of the focal map are not positive.", code="gamma_range"
        )


def _as_tensor(x: Tensor | float) -> Tensor:
    """Return a tensor unchanged, and a number as float64 tensor."""
    return x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64)
