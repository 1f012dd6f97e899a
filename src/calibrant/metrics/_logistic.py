"""Logistic regression by maximum likelihood, for calibration slopes and intercepts."""

from contextlib import suppress
from typing import NamedTuple

import numpy as np

from calibrant._core.types import InputError
from calibrant.metrics._logit_fits import expit, fit_logits

MAX_LAST_CHANGE = 1e-6


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
    beta = fit_logits(x, w, w * y, fixed)
    logit = x @ beta + fixed
    p = expit(logit)
    information = (x.T * (w * p * (1 - p))) @ x
    with suppress(np.linalg.LinAlgError):  # a singular matrix
        covariance = np.linalg.inv(information)
        # of the logits in another step: 0 at a maximum, and about 1 for ever without one
        change = np.abs(x @ (covariance @ (x.T @ (w * (y - p))))).max()
        if change < MAX_LAST_CHANGE:
            return LogisticFit(beta, covariance, float(w @ (y * logit - np.logaddexp(0, logit))))
    raise InputError(
        "Expected outcomes that the predictors do not separate, got separated ones or one kind alone. Try more data.",
        code="separation",
    )
