"""Sample sizes by the precision of an external validation (Riley et al. 2021): closed formulas."""

import math

import numpy as np
from scipy.special import ndtri

from calibrant._core.types import InputError
from calibrant.planning._populations import Population

MIN_INFORMATION = 1e-12  # of the slope, relative to that of all logits


def slope_size(population: Population, width: float, alpha: float) -> float:
    r"""Return the n whose interval of the calibration slope has this width (Riley et al. 2021, eq. for the slope).

    With the weights $w = p (1 - p)$ and the logits $\ell$ of a calibrated model, the information of one example on
    intercept and slope is $I_a = E\,w$, $I_{ab} = E\,w \ell$, $I_b = E\,w \ell^2$, and the slope has the squared
    standard error $I_a / (n (I_a I_b - I_{ab}^2))$.
    """
    p, share = population.confidence, population.share
    inside = (p > 0) & (p < 1)  # risks of 0 and 1 have no information
    p, share = p[inside], share[inside]
    logit, w = np.log(p) - np.log1p(-p), share * p * (1 - p)
    i_a, i_ab, i_b = w.sum(), w @ logit, w @ logit**2
    determinant = i_a * i_b - i_ab**2
    if not determinant > MIN_INFORMATION * i_a * i_b:
        raise InputError("Expected different confidences, got equal ones, which show no slope.", code="no_spread")
    return float(i_a / determinant) / _half_width_error(width, alpha) ** 2


def ratio_size(population: Population, width: float, alpha: float) -> float:
    r"""Return the n whose interval of observed/expected has this width, around 1 (Riley et al. 2021).

    Its logarithm has the squared standard error $(1 - f) / (n f)$ for events of the frequency f. The interval from
    $e^{-z SE}$ to $e^{z SE}$ has the width $2 \sinh(z SE)$.
    """
    f = population.mean
    return (1 - f) / f / (math.asinh(width / 2) / _quantile(alpha)) ** 2


def net_benefit_size(population: Population, width: float, alpha: float, threshold: float) -> float:
    r"""Return the n whose interval of the standardized net benefit has this width (Riley et al. 2021).

    With the sensitivity Se and specificity Sp at the threshold t, the frequency f of the event and
    $\omega = (1 - f) / f \cdot t / (1 - t)$, its variance is 1 / n times $Se (1 - Se) / f + \omega^2 Sp (1 - Sp) / (1 -
    f) + \omega^2 (1 - Sp)^2 / (f (1 - f))$ (Marsh et al. 2020).
    """
    p, share, f = population.confidence, population.share, population.mean
    acts = p >= threshold
    sensitivity, alarms = share[acts] @ p[acts] / f, share[acts] @ (1 - p[acts]) / (1 - f)
    omega = (1 - f) / f * threshold / (1 - threshold)
    variance = (
        sensitivity * (1 - sensitivity) / f
        + omega**2 * alarms * (1 - alarms) / (1 - f)
        + omega**2 * alarms**2 / (f * (1 - f))
    )
    if not variance > 0:
        raise InputError(
            f"Expected a threshold that some confidences reach, got {threshold:g}. Try threshold={f:.2g}.",
            code="threshold_reached",
        )
    return float(variance) / _half_width_error(width, alpha) ** 2


def _quantile(alpha: float) -> float:
    """Return the two-sided normal quantile, 1.96 for 0.05."""
    return float(ndtri(1 - alpha / 2))


def _half_width_error(width: float, alpha: float) -> float:
    """Return the standard error of an interval of this width."""
    return width / (2 * _quantile(alpha))
