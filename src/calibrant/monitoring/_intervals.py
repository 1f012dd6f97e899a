r"""Confidence sequences: intervals that hold at all times at once, however often one looks.

For predictable guesses $\hat x_i$ with $x_i - \hat x_i \in [-1, 1]$, the sum of $x_i - E[x_i | past]$ is
sub-exponential with scale 1 and variance process $V_n = \sum (x_i - \hat x_i)^2$ (Howard, Ramdas, McAuliffe and Sekhon
2021, theorem 4), so that the gamma-exponential mixture (their proposition 9) bounds it at all times. The means may
change over time: the interval covers the running average of the conditional means. Only sums are needed, so that
sequences merge exactly.
"""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammainc, gammaln

from calibrant._core.types import OpenFraction, check_arguments
from calibrant.metrics import Interval

TUNING_VARIANCE = 50.0  # the variance process at which the boundary is about tightest


def time_uniform_bound(variance: float, error_rate: float, tuning_variance: float = TUNING_VARIANCE) -> float:
    r"""Return the bound on a sum that is ever exceeded with probability at most `error_rate`.

    For the sum s with the variance process v, the mixture over $\lambda$ of the supermartingales
    $\exp(\lambda s - \psi(\lambda) v)$ with $\psi(\lambda) = -\log(1 - \lambda) - \lambda$ is
    $m(s, v) = \rho^\rho / (\Gamma(\rho) P(\rho, \rho)) \cdot \Gamma(v + \rho) P(v + \rho, s + v + \rho)
    / (s + v + \rho)^{v + \rho} \cdot e^{s + v}$, with the regularized incomplete gamma function P, and the bound
    solves $m(s, v) = 1 / a$ for s, with a = `error_rate` and v = `variance` (Ville's inequality). $\rho$ is chosen so
    that the bound is about tightest at v = `tuning_variance`.
    """
    log_rate = -math.log(error_rate)
    rho = tuning_variance / (2 * log_rate + math.log1p(2 * log_rate))
    constant = rho * math.log(rho) - gammaln(rho) - math.log(gammainc(rho, rho))

    def log_excess(s: float) -> float:
        """Return log(m(s, v) a), whose root is the bound."""
        shape = variance + rho
        mixture = gammaln(shape) + np.log(gammainc(shape, s + shape)) - shape * math.log(s + shape) + s + variance
        return float(constant + mixture) - log_rate

    high = 1.0  # any start
    while log_excess(high) < 0:  # until the root lies in [0, high]
        high *= 2
    return float(brentq(log_excess, 0.0, high, xtol=1e-9))  # pyright: ignore[reportArgumentType]


@check_arguments
def mean_sequence(
    rows: float, total: float, variance: float, *, scale: float = 1.0, limits: tuple[float, float], level: OpenFraction
) -> Interval:
    """Return the mean of the rows so far, with limits that hold at all times at once with probability `level`.

    Args:
        rows: Number of rows.
        total: Sum of the values.
        variance: Sum of squared deviations from the predictable guesses, in units of `scale`.
        scale: Largest deviation from a guess.
        limits: Range of the mean, which the limits do not leave.
        level: Probability that the limits hold at all times.
    """
    if not rows:
        return Interval(math.nan, *limits, level)
    margin = scale * time_uniform_bound(variance, (1 - level) / 2) / rows  # half of the error rate on each side
    value = total / rows
    return Interval(value, max(limits[0], value - margin), min(limits[1], value + margin), level)
