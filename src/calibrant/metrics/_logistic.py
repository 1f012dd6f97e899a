"""Logistic regression by maximum likelihood, for calibration slopes and intercepts."""

from typing import NamedTuple

import numpy as np

from calibrant._core.types import InputError

MAX_NEWTON_STEPS, NEWTON_TOLERANCE = 40, 1e-10
MAX_LINEAR_RATE = 0.1  # of the last decrement to the one before; where outcomes are separated, it is 1 / e


class LogisticFit(NamedTuple):
    """A logistic regression."""

    coefficients: np.ndarray  # (d)
    covariance: np.ndarray  # (d, d) inverse of the information
    log_likelihood: float


def fit_logistic(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray | None = None, offset: np.ndarray | None = None
) -> LogisticFit:
    r"""Fit $\mathrm{logit}\,P(y) = x \beta + \text{offset}$ by Newton's method (McCullagh & Nelder 1989, section 4.4).

    Args:
        x: Design (n, d); a column of ones is the intercept.
        y: Outcomes in [0, 1], (n).
        weights: Weights (n), or None.
        offset: Known part of the logits (n), or None.

    Raises:
        InputError: If the likelihood has no maximum, because outcomes are all alike or separated by x.

    >>> fit_logistic(np.ones((4, 1)), np.array([0, 0, 0, 1.0])).coefficients.round(4)  # log(1 / 3)
    array([-1.0986])
    """
    w = np.ones(len(y)) if weights is None else weights
    fixed = np.zeros(len(y)) if offset is None else offset

    def log_likelihood(beta: np.ndarray) -> float:
        eta = x @ beta + fixed
        return float(w @ (y * eta - np.logaddexp(0, eta)))

    beta = np.zeros(x.shape[1])
    value, previous = log_likelihood(beta), np.inf
    for _ in range(MAX_NEWTON_STEPS):
        p = 0.5 * (1 + np.tanh((x @ beta + fixed) / 2))
        gradient, information = x.T @ (w * (y - p)), (x.T * (w * p * (1 - p))) @ x
        try:
            step = np.linalg.solve(information, gradient)
        except np.linalg.LinAlgError:
            break
        decrement = float(gradient @ step) / float(w.sum())
        if decrement < NEWTON_TOLERANCE and decrement <= MAX_LINEAR_RATE * previous:
            return LogisticFit(beta + step, np.linalg.inv(information), log_likelihood(beta + step))
        previous, scale = decrement, 1.0
        while (new_value := log_likelihood(beta + scale * step)) < value and scale > NEWTON_TOLERANCE:
            scale /= 2
        beta, value = beta + scale * step, new_value
    raise InputError(
        "Expected outcomes that the predictors do not separate, got separated ones or one kind alone. Try more data.",
        code="separation",
    )
