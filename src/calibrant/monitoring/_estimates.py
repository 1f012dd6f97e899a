"""Estimates of accuracy, gap and Brier score without labels, each with its assumption."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
_MAX_LOG_ODDS = 12.0
_SCORES: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {  # at outcomes 0 and 1, by confidence
    "accuracy": lambda c: (np.zeros_like(c), np.ones_like(c)),
    "signed_gap": lambda c: (c, c - 1),
    "event_brier": lambda c: (c**2, (1 - c) ** 2),
}
CONFIDENCE_BASED = "confidence-based"
DOUBLY_ROBUST = "doubly robust"
_FoldCalibrators = list[tuple[Any, Tensor]]  # a fitted calibrator and the rows outside its fitting data
SAME_PROBABILITIES = "rows with the same probabilities are right as often as in the reference"


@dataclass(frozen=True)
class Estimate:
    """A number of the new predictions that is estimated without labels."""

    name: str  # "accuracy", "signed_gap" or "event_brier"
    method: str  # CONFIDENCE_BASED or DOUBLY_ROBUST
    assumption: str
    reference: float  # the number in the reference, with labels
    value: float
    low: float  # 90 % limits
    high: float

    @property
    def cells(self) -> tuple[str, str, str]:
        """The reference, the value and its limits as texts."""
        digits = "{:.4f}".format if self.name == "event_brier" else format_percent
        return digits(self.reference), digits(self.value), f"{digits(self.low)} to {digits(self.high)}"


@dataclass(frozen=True, eq=False)
class _EventData:
    """Confidences and outcomes of the reference, with confidences and expected outcomes of the new rows."""

    confidence: np.ndarray  # (n) of the reference
    outcome: np.ndarray  # (n)
    expected: np.ndarray  # (n) out-of-fold probability of the event
    new_confidence: np.ndarray  # (m)
    new_expected: np.ndarray  # (m)
    ratio: np.ndarray  # (n) density of the new rows over that of the reference, with mean 1
    weights: np.ndarray  # (n)
    new_weights: np.ndarray  # (m)
    clusters: torch.Tensor | None  # of the reference


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
    ratio, fold_calibrators = density_ratio(reference, new), _fit_folds(reference)
    top = _event_data(reference.with_event("top"), new.with_event("top"), fold_calibrators, ratio)
    data = top if reference.of == "top" else _event_data(reference, new, fold_calibrators, ratio)
    accuracy_data = data if states_confidence(reference) else top
    event_estimates = [estimate for name in ("signed_gap", "event_brier") for estimate in _estimate_score(name, data)]
    return (*_estimate_score("accuracy", accuracy_data), *event_estimates)


def _event_data(
    reference: Predictions, new: Predictions, fold_calibrators: _FoldCalibrators, ratio: np.ndarray
) -> _EventData:
    """Return the events of both sets with their calibrated probabilities, out of fold for the reference."""
    expected, new_expected = np.zeros(len(reference)), np.zeros(len(new))
    for fitted, held_out in fold_calibrators:  # the new rows have the mean over all calibrators
        expected[held_out.cpu().numpy()] = _calibrated_events(reference[held_out], fitted)
        new_expected += _calibrated_events(new, fitted) / len(fold_calibrators)
    return _EventData(
        confidence=confidences(reference),
        outcome=reference.events.outcome.cpu().double().numpy(),
        expected=expected,
        new_confidence=confidences(new),
        new_expected=new_expected,
        ratio=ratio,
        weights=row_weights(reference),
        new_weights=row_weights(new),
        clusters=reference.clusters,
    )


def _fit_folds(reference: Predictions) -> _FoldCalibrators:
    """Return a calibrator for each fold of the reference, fitted to the rest, with the rows of the fold."""
    folds = min(NUM_CALIBRATION_FOLDS, num_units(reference))
    return [(calibrators.fit(REFERENCE_CALIBRATOR, rest), held_out) for rest, held_out in split_folds(reference, folds)]


def _calibrated_events(p: Predictions, fitted: Any) -> np.ndarray:
    """Return the calibrated probability of each row's event, the predicted class or a fixed one."""
    calibrated = p.apply(fitted).logits.double().softmax(1)
    index = p.predicted if p.of == "top" else torch.full_like(p.labels, int(p.of))
    return calibrated.gather(1, index[:, None]).squeeze(1).cpu().numpy()


def _estimate_score(name: str, data: _EventData) -> list[Estimate]:
    """Estimate the mean score of the new rows by both methods of `estimate_without_labels`.

    The score is linear in the outcome a, $s_0 + (s_1 - s_0) a$, so that its expectation has a = g.
    """
    w, new_w = data.weights, data.new_weights
    at_0, at_1 = _SCORES[name](data.confidence)  # s_0 and s_1
    slope = at_1 - at_0
    reference = float(w @ (at_0 + slope * data.outcome) / w.sum())
    residuals = slope * (data.outcome - data.expected)  # observed minus expected score
    new_at_0, new_at_1 = _SCORES[name](data.new_confidence)
    new_slope = new_at_1 - new_at_0
    new_mean = float(new_w @ (new_at_0 + new_slope * data.new_expected) / new_w.sum())
    score_variance = new_slope**2 * data.new_expected * (1 - data.new_expected)
    new_mean_variance = float(new_w**2 @ score_variance) / new_w.sum() ** 2  # for independent outcomes
    estimates: list[Estimate] = []
    for method, ratio in ((CONFIDENCE_BASED, np.ones_like(w)), (DOUBLY_ROBUST, data.ratio)):
        weights = w * ratio
        sample = Sample.from_values(torch.from_numpy(residuals), torch.from_numpy(weights), data.clusters)
        error, design_effect = _residual_error(residuals, weights, sample, has_clusters=data.clusters is not None)
        value = new_mean + (sample.mean if method == DOUBLY_ROBUST else 0.0)  # the mean residual
        # the noise of the reference and of the new outcomes, which are as dependent within clusters as the reference
        total_error = math.sqrt(error**2 + design_effect * new_mean_variance)
        half_width = student_quantile(ESTIMATE_LEVEL, sample.degrees) * total_error
        low, high = value - half_width, value + half_width
        if name != "signed_gap":  # the other scores lie in [0, 1]
            low, high, value = (min(max(x, 0.0), 1.0) for x in (low, high, value))
        estimates.append(Estimate(name, method, SAME_PROBABILITIES, reference, value, low, high))
    return estimates


def _residual_error(
    residuals: np.ndarray, weights: np.ndarray, sample: Sample, *, has_clusters: bool
) -> tuple[float, float]:
    """Return the standard error of the weighted mean residual, and the design effect of clusters."""
    centered = residuals - sample.mean
    row_error = math.sqrt(float(weights**2 @ centered**2)) / weights.sum()  # for independent rows
    if not has_clusters:
        return row_error, 1.0
    return sample.error, max(1.0, (sample.error / max(row_error, 1e-300)) ** 2)  # `row_error` may be 0


def density_ratio(reference: Predictions, new: Predictions) -> np.ndarray:
    """Return the density ratio of new to reference rows at each reference row, with mean 1.

    A logistic regression tells new rows from the reference by the log-odds of the confidence, their square, and the
    predicted class. Ratios beyond 20 are cut.
    """
    x = _discriminating_features(reference, new)
    y = np.repeat([0.0, 1.0], [len(reference), len(new)])  # whether a row is new
    w = np.concatenate([row_weights(p) / row_weights(p).sum() for p in (reference, new)])
    w *= min(len(reference), len(new))  # the ridge penalty counts against so many rows on each side
    coefficients = _fit_logistic(x, y, w)
    log_odds = x[: len(reference)] @ coefficients  # of being new: the log ratio, as both sides weigh the same
    ratio = np.exp(np.clip(log_odds, -_MAX_LOG_ODDS, math.log(MAX_DENSITY_RATIO)))
    weights = row_weights(reference)
    return ratio * weights.sum() / (weights @ ratio)


def _discriminating_features(reference: Predictions, new: Predictions) -> np.ndarray:
    """Return standardized features of the rows of both sets, the first column 1."""
    rows: list[np.ndarray] = []
    for p in (reference.with_event("top"), new.with_event("top")):
        c = np.clip(confidences(p), 1e-6, 1 - 1e-6)
        z = np.log(c / (1 - c))
        one_hot = p.predicted.cpu().numpy()[:, None] == np.arange(1, min(p.k, MAX_INDICATORS))  # class 0 is implied
        rows.append(np.column_stack([z, z**2, one_hot]))
    x = np.concatenate(rows)
    scale = x.std(0)
    x = (x - x.mean(0)) / np.where(scale > 0, scale, 1.0)  # constant columns become 0
    return np.column_stack([np.ones(len(x)), x])


def _fit_logistic(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Fit a ridge logistic regression by Newton's method, without a penalty on the intercept."""
    penalty = np.full(x.shape[1], _RIDGE)
    penalty[0] = 1e-9  # of the intercept; above 0, to keep the Hessian regular
    coefficients = np.zeros(x.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ coefficients, -30, 30)))
        gradient = x.T @ (w * (p - y)) + penalty * coefficients
        hessian = (x.T * (w * p * (1 - p))) @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        coefficients -= step
        if np.abs(step).max() < 1e-10:
            break
    return coefficients
