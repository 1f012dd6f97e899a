"""The precision of means over held-out folds, whose fits share most of their data."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from calibrant.metrics._compare import Difference
from calibrant.metrics._intervals import Interval, Sample
from calibrant.predictions import Predictions


def shared_training_factor(folds: int) -> float:
    r"""Return the factor $\sqrt{1 + K / (K - 1)}$ of the standard error of a mean over K held-out folds.

    The fits to K - 1 of K folds share most of their data, so that the mean score of their folds varies more than that
    of independent samples, and less in favor of the truth: examples that flatter one fold spoil the fit to it. The
    corrected variance of a fold, times 1 / K + 1 / (K - 1) instead of 1 / K, is that of Nadeau & Bengio (2003).
    """
    return math.sqrt(1 + folds / (folds - 1))


def cross_validated_mean(values: np.ndarray, folds: int, p: Predictions, level: float = 0.90) -> Interval:
    """Return the mean of a score over held-out folds, with its interval over draws of the data.

    The standard error is that of independent examples or clusters and of one more, unseen example, which may change the
    mean by 1 / n, times `shared_training_factor`.

    Args:
        values: Score of every row by a fit to the other folds, (n); the mean over repetitions, if there are several.
        folds: Number of folds.
        p: The predictions, for their weights and clusters.
        level: Probability that the interval holds the mean score over new examples.
    """
    sample = Sample.from_values(values, p.weights, p.clusters, p.examples)
    if not math.isfinite(sample.mean):  # such as the NLL of an impossible class
        return Interval(sample.mean, sample.mean, sample.mean, level)
    error = math.hypot(sample.error, 1 / (sample.degrees + 1)) * shared_training_factor(folds)
    return replace(sample, error=error).normal_interval(level)


def allow_for_cross_fitting(difference: Difference, folds: int, num_tests: int = 1) -> Difference:
    """Return a difference of held-out folds with the interval and p-value that allow for the data that fits share.

    Args:
        difference: The difference as if its rows were predicted by one map, at the level 1 - alpha / `num_tests`.
        folds: Number of folds.
        num_tests: Number of maps that the tested one was selected from; the p-value is adjusted for it (Bonferroni).
    """
    factor, normal = shared_training_factor(folds), NormalDist()
    low, high = (
        difference.difference + factor * (end - difference.difference) for end in (difference.low, difference.high)
    )
    p_value = difference.p_value
    if 0 < p_value < 1:
        p_value = 2 * normal.cdf(normal.inv_cdf(p_value / 2) / factor)
    return replace(difference, low=low, high=high, p_value=min(1.0, num_tests * p_value))
