"""Estimates without labels under covariate shift: equal probabilities mean the same, in other rows."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.softmax import probabilities
from calibrant._core.lazy import LazyModule
from calibrant.metrics import Sample
from calibrant.monitoring._estimates import COVARIATE_SHIFT, Estimate, Precision, Target
from calibrant.monitoring._features import confidences, row_weights
from calibrant.predictions import Predictions
from calibrant.predictions.folds import num_units, split_folds

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

NUM_CALIBRATION_FOLDS = 5
MAX_DENSITY_RATIO = 20.0
MAX_INDICATORS = 20  # classes whose prediction is a feature of its own, the first included
_RIDGE = 1.0
_NEWTON_STEPS = 30
_MIN_LOG_RATIO = -12.0


def estimate_covariate_shift(
    reference: Predictions, new: Predictions, targets: Sequence[Target]
) -> tuple[Estimate, ...]:
    r"""Estimate means of the new predictions, if the probability of each class given the row has not changed.

    A calibrator (`Auto`) is fitted to the reference, and its probability g of the event is averaged over the new rows
    (CBPE; Kivimaki et al. 2024, arXiv 2401.08348). The mean residual of the reference is added, out of fold and
    weighted by the ratio w of the densities of new rows and reference:
    $\frac 1 m \sum_j g(x_j) + \sum_i w_i (a_i - g(x_i)) / \sum_i w_i$. This doubly robust estimate is right if either g
    or w is (Robins et al. 1994). Limits contain the noise of the new outcomes and of the residuals.

    Args:
        reference: Labeled predictions.
        new: Predictions whose labels are not used.
        targets: Means to estimate.
    """
    ratio, new_weights = density_ratio(reference, new), row_weights(new)
    folds = split_folds(reference, min(NUM_CALIBRATION_FOLDS, num_units(reference)))
    fitted = [(calibrators.Auto.fit(rest, estimate_gain=False), held_out) for rest, held_out in folds]
    # Calibrated probabilities: out of fold for the reference, the mean over the calibrators for the new rows
    probs, new_probs = np.zeros((len(reference), reference.k)), np.zeros((len(new), new.k))
    for calibrator, held_out in fitted:
        probs[held_out] = _calibrated_probs(reference[held_out], calibrator)
        new_probs += _calibrated_probs(new, calibrator) / len(fitted)
    return tuple(
        _estimate_target(
            target,
            _event_probs(reference, target, probs),
            _event_probs(new, target, new_probs),
            ratio * target.weights,
            new_weights,
            reference.clusters,
        )
        for target in targets
    )


def _calibrated_probs(p: Predictions, calibrator: Any) -> np.ndarray:
    """Return the calibrated probability of each class (n, k)."""
    return to_numpy(probabilities(p.apply(calibrator).logits))


def _event_probs(p: Predictions, target: Target, probs: np.ndarray) -> np.ndarray:
    """Return the probability (n) of the target's event, given that of each class (n, k)."""
    return probs[np.arange(len(p)), p.predicted] if target.event == "top" else probs[:, int(target.event)]


def _estimate_target(
    target: Target,
    g: np.ndarray,
    new_g: np.ndarray,
    weights: np.ndarray,
    new_weights: np.ndarray,
    clusters: np.ndarray | None,
) -> Estimate:
    """Return the doubly robust estimate of a target.

    Its score is linear in the outcome, so that the expected score is the score at the probability g of the event.

    Args:
        target: Mean score to estimate.
        g: Calibrated probability of the event in each row of the reference, out of fold (n).
        new_g: Calibrated probability of the event in each new row (m).
        weights: Weight of each row of the reference times the density ratio (n).
        new_weights: Weight of each new row (m).
        clusters: Cluster of each row of the reference (n), or None.
    """
    residuals = target.slope * (target.outcome - g)  # observed minus expected score
    sample = Sample.from_values(residuals, weights, clusters)
    error, design_effect = _residual_error(residuals, weights, sample, has_clusters=clusters is not None)
    expected = target.new_base + target.new_slope * new_g
    value = float(np.average(expected, weights=new_weights)) + sample.mean
    # Variance of the new mean by the new outcomes, for independent rows, or of the estimated frequency by the new rows
    frequency = new_g if target.is_frequency else np.zeros_like(new_g)
    squares = target.new_slope**2 * new_g * (1 - new_g), (frequency - np.average(frequency, weights=new_weights)) ** 2
    new_variance = max(float(new_weights**2 @ square) for square in squares) / new_weights.sum() ** 2
    scores = target.slope * target.outcome
    mean_score = float(np.average(scores, weights=weights))
    precision = Precision(
        center=value,
        # New outcomes are assumed to depend on each other within clusters as much as those of the reference
        error=math.sqrt(error**2 + design_effect * new_variance),
        degrees=sample.degrees,
        size=1 / (1 / (sample.degrees + 1) + design_effect * float(new_weights @ new_weights) / new_weights.sum() ** 2),
        variance=float(np.average((scores - mean_score) ** 2, weights=weights)),
    )
    minimum, maximum = (-1.0, 1.0) if target.name == "signed_gap" else (0.0, 1.0)
    return target.estimate(COVARIATE_SHIFT, min(max(value, minimum), maximum), precision)


def _residual_error(
    residuals: np.ndarray, weights: np.ndarray, sample: Sample, *, has_clusters: bool
) -> tuple[float, float]:
    """Return the standard error of the weighted mean residual, and the design effect of clusters.

    The design effect is the variance of the mean relative to independent rows, at least 1, and 1 without clusters.
    `sample` is the mean of these residuals with these weights, and its standard error with clusters.
    """
    centered = residuals - sample.mean
    row_error = math.sqrt(float(weights**2 @ centered**2)) / weights.sum()  # for independent rows
    if not has_clusters or row_error == 0:  # equal residuals have no error, with clusters or without
        return row_error, 1.0
    return sample.error, max(1.0, (sample.error / row_error) ** 2)


def density_ratio(reference: Predictions, new: Predictions) -> np.ndarray:
    """Return the density ratio of new to reference rows at each reference row, with mean 1.

    A logistic regression tells new rows from the reference by the log-odds of the confidence, their square, and the
    predicted class. Ratios beyond 20 are cut.
    """
    x = _discriminating_features(reference, new)
    is_new = np.repeat([0.0, 1.0], [len(reference), len(new)])
    weights, new_weights = row_weights(reference), row_weights(new)
    balanced = np.concatenate([weights / weights.sum(), new_weights / new_weights.sum()])
    balanced *= min(len(reference), len(new))  # total weight of either side, against which the ridge penalty counts
    coefficients = _fit_logistic(x, is_new, balanced)
    log_ratio = x[: len(reference)] @ coefficients  # the log-odds of being new, as both sides have the same weight
    ratio = np.exp(np.clip(log_ratio, _MIN_LOG_RATIO, math.log(MAX_DENSITY_RATIO)))
    return ratio / np.average(ratio, weights=weights)


def _discriminating_features(reference: Predictions, new: Predictions) -> np.ndarray:
    """Return standardized features of the rows of the reference and then of the new rows, (n + m, features).

    The first column is 1, for the intercept.
    """
    rows: list[np.ndarray] = []
    for p in (reference.with_event("top"), new.with_event("top")):
        c = np.clip(confidences(p), 1e-6, 1 - 1e-6)  # for finite log-odds
        log_odds = np.log(c / (1 - c))
        one_hot = p.predicted[:, None] == np.arange(1, min(p.k, MAX_INDICATORS))  # class 0 is implied
        rows.append(np.column_stack([log_odds, log_odds**2, one_hot]))
    x = np.concatenate(rows)
    scale = x.std(0)
    x = (x - x.mean(0)) / np.where(scale > 0, scale, 1.0)  # constant columns become 0
    return np.column_stack([np.ones(len(x)), x])


def _fit_logistic(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the coefficients of a ridge logistic regression, fitted by Newton's method.

    Args:
        x: Features of each row (n, d), the first of which is 1 and has no penalty.
        y: Outcomes 0 or 1 (n).
        w: Weights (n).
    """
    penalty = np.full(x.shape[1], _RIDGE)
    penalty[0] = 1e-9  # of the intercept; above 0, to keep the Hessian regular
    coefficients = np.zeros(x.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = expit(x @ coefficients)
        gradient = x.T @ (w * (p - y)) + penalty * coefficients
        hessian = (x.T * (w * p * (1 - p))) @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        coefficients -= step
        if np.abs(step).max() < 1e-10:  # Newton's method doubles the digits in every step: no more to gain
            break
    return coefficients
