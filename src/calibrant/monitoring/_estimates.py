"""Estimates of accuracy, gap and Brier score without labels, each with its assumption."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import expit

from calibrant import calibrators
from calibrant._text import format_percent
from calibrant.metrics import Sample, student_quantile
from calibrant.monitoring._features import confidences, row_weights, states_confidence
from calibrant.predictions import Predictions
from calibrant.predictions.folds import num_units, split_folds

REFERENCE_CALIBRATOR = "Auto"
NUM_CALIBRATION_FOLDS = 5
MIN_REFERENCE_ROWS = 20
MAX_DENSITY_RATIO = 20.0
MAX_INDICATORS = 20  # classes whose prediction is a feature of its own, the first included
ESTIMATE_LEVEL = 0.90
_RIDGE = 1.0
_NEWTON_STEPS = 30
_MIN_LOG_RATIO = -12.0
# Scores at the outcomes 0 and 1, by confidence c
_SCORES: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "accuracy": lambda c: (np.zeros_like(c), np.ones_like(c)),
    "signed_gap": lambda c: (c, c - 1),
    "event_brier": lambda c: (c**2, (1 - c) ** 2),
}
CONFIDENCE_BASED = "confidence-based"
DOUBLY_ROBUST = "doubly robust"
SAME_PROBABILITIES = "rows with the same probabilities are right as often as in the reference"


@dataclass(frozen=True)
class Estimate:
    """A mean score of the new predictions that is estimated without labels."""

    name: str  # "accuracy", "signed_gap" or "event_brier"
    method: str  # CONFIDENCE_BASED or DOUBLY_ROBUST
    assumption: str
    reference: float  # the score of the reference, with labels
    value: float
    low: float  # 90 % limits
    high: float

    @property
    def cells(self) -> tuple[str, str, str]:
        """The reference, the value and its limits as texts."""
        digits = "{:.4f}".format if self.name == "event_brier" else format_percent
        return digits(self.reference), digits(self.value), f"{digits(self.low)} to {digits(self.high)}"


def estimate_without_labels(reference: Predictions, new: Predictions) -> tuple[Estimate, ...]:
    r"""Estimate accuracy, signed gap and Brier score of new predictions without using their labels.

    A calibrator (`Auto`) is fitted to the reference, and its probability g of the event is averaged over the new rows
    ("confidence-based": CBPE; Kivimaki et al. 2024, arXiv 2401.08348). The doubly robust estimate adds the mean
    residual of the reference, out of fold and weighted by the ratio w of the densities of new rows and reference,
    $\frac 1 m \sum_j g(x_j) + \sum_i w_i (a_i - g(x_i)) / \sum_i w_i$, and is right if either g or w is (Robins et al.
    1994). Intervals contain the noise of the new outcomes and of the residuals.

    Args:
        reference: Labeled predictions.
        new: Predictions whose labels are not used.
    """
    ratio = density_ratio(reference, new)
    folds = split_folds(reference, min(NUM_CALIBRATION_FOLDS, num_units(reference)))
    fitted = [(calibrators.fit(REFERENCE_CALIBRATOR, rest), held_out) for rest, held_out in folds]

    def estimate_scores(reference: Predictions, new: Predictions, *names: str) -> Iterator[Estimate]:
        """Yield the estimates of scores of the event `of` that both predictions have."""
        # Calibrated probabilities: out of fold for the reference, the mean over the calibrators for the new rows
        g, new_g = np.zeros(len(reference)), np.zeros(len(new))
        for calibrator, held_out in fitted:
            g[held_out.cpu().numpy()] = _calibrated_events(reference[held_out], calibrator)
            new_g += _calibrated_events(new, calibrator) / len(fitted)
        for name in names:
            yield from _estimate_score(name, reference, new, g=g, new_g=new_g, ratio=ratio)

    if states_confidence(reference):  # the event is that the answer is right, so that its frequency is the accuracy
        accuracy = estimate_scores(reference, new, "accuracy")
    else:
        accuracy = estimate_scores(reference.with_event("top"), new.with_event("top"), "accuracy")
    return (*accuracy, *estimate_scores(reference, new, "signed_gap", "event_brier"))


def _calibrated_events(p: Predictions, calibrator: Any) -> np.ndarray:
    """Return the calibrated probability of each row's event: of the class predicted before, or of a fixed class."""
    calibrated_probs = p.apply(calibrator).logits.double().softmax(1)
    classes = p.predicted if p.of == "top" else torch.full_like(p.labels, int(p.of))
    return calibrated_probs.gather(1, classes[:, None]).squeeze(1).cpu().numpy()


def _estimate_score(
    name: str, reference: Predictions, new: Predictions, *, g: np.ndarray, new_g: np.ndarray, ratio: np.ndarray
) -> Iterator[Estimate]:
    """Yield the estimates of the mean score of the new rows by both methods of `estimate_without_labels`.

    The score is linear in the outcome a, $s_0 + (s_1 - s_0) a$, so that its expectation has a = g.

    Args:
        name: Score.
        reference: Labeled predictions (n).
        new: New predictions (m).
        g: Calibrated probability of the event in each row of the reference, out of fold (n).
        new_g: Calibrated probability of the event in each new row (m).
        ratio: Density of the new rows divided by the density of the reference, at each reference row, with mean 1 (n).
    """
    # Scores at the outcomes 0 and 1
    (s_0, s_1), (new_s_0, new_s_1) = (_SCORES[name](confidences(p)) for p in (reference, new))
    slope, new_slope = s_1 - s_0, new_s_1 - new_s_0
    outcome = reference.events.outcome.cpu().double().numpy()
    reference_weights, new_w = row_weights(reference), row_weights(new)
    reference_mean = float(np.average(s_0 + slope * outcome, weights=reference_weights))
    residuals = slope * (outcome - g)  # observed minus expected score
    new_mean = float(np.average(new_s_0 + new_slope * new_g, weights=new_w))
    outcome_variance = new_g * (1 - new_g)
    # Variance of the new mean score by chance of the outcomes, for independent rows
    new_mean_variance = float(new_w**2 @ (new_slope**2 * outcome_variance)) / new_w.sum() ** 2
    for method in (CONFIDENCE_BASED, DOUBLY_ROBUST):
        weights = reference_weights * ratio if method == DOUBLY_ROBUST else reference_weights
        sample = Sample.from_values(torch.from_numpy(residuals), torch.from_numpy(weights), reference.clusters)
        error, design_effect = _residual_error(residuals, weights, sample, has_clusters=reference.clusters is not None)
        value = new_mean + (sample.mean if method == DOUBLY_ROBUST else 0.0)  # the mean residual
        # Noise of the residuals and of the new outcomes, which are assumed to depend on each other within clusters as
        # much as those of the reference
        total_error = math.sqrt(error**2 + design_effect * new_mean_variance)
        half_width = student_quantile(ESTIMATE_LEVEL, sample.degrees) * total_error
        low, high = value - half_width, value + half_width
        if name != "signed_gap":  # the other scores lie in [0, 1]
            low, high, value = (min(max(x, 0.0), 1.0) for x in (low, high, value))
        yield Estimate(name, method, SAME_PROBABILITIES, reference_mean, value, low, high)


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
        one_hot = p.predicted.cpu().numpy()[:, None] == np.arange(1, min(p.k, MAX_INDICATORS))  # class 0 is implied
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
