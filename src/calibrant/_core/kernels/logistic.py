"""The logistic function of arrays in memory, from one exponential that cannot overflow."""

import numpy as np

from calibrant._core.kernels.softmax import exp_in_place


def sigmoid(s: np.ndarray) -> np.ndarray:
    """Return the probabilities 1 / (1 + e^-s) of log-odds.

    >>> sigmoid(np.array([-np.inf, 0.0]))
    array([0. , 0.5])
    """
    odds = exp_in_place(-np.abs(s))  # of the less probable outcome
    return np.where(s < 0, odds, 1.0) / (1 + odds)


def sigmoid_and_softplus(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities 1 / (1 + e^-s) of log-odds, and log(1 + e^s).

    >>> sigmoid_and_softplus(np.array([0.0, 4.0]))
    (array([0.5       , 0.98201379]), array([0.69314718, 4.01814993]))
    """
    odds = exp_in_place(-np.abs(s))
    return np.where(s < 0, odds, 1.0) / (1 + odds), np.maximum(s, 0.0) + np.log1p(odds)
