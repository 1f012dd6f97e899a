r"""Precision of the difference of two binned calibration errors, whose absolute values make it biased and not smooth.

An ECE is the mean over examples of $s_b (c - a)$, with s_b the sign of the gap of the example's bin, c the confidence
and a the outcome. Three things make its difference less certain than this mean looks:

- **Bias.** The error of a bin is the absolute value of a gap with noise, which raises a gap near 0 only. The more bins
  a model uses, the more noise it adds up. With r the absolute gap over its standard error $\sigma$, about
  $\beta \sigma e^{-r^2/2}$ is the noise of a bin, $\beta$ from .6 to .85.
- **Signs.** If one model is overconfident and the other one is underconfident, both errors move in opposite directions.
  By chance both gaps may have the same sign, and seem to move together.
- **Unseen errors.** Twenty right predictions do not show how the outcomes vary: the variance of a bin is at least that
  of a calibrated model.
"""

import math
from dataclasses import dataclass

import numpy as np

from calibrant._core.kernels.bins import Events, equal_width_index
from calibrant.metrics._intervals import MIN_DIVISOR, Sample
from calibrant.metrics._metric import ErrorBins

MAX_UNCERTAIN_GAP = 2.0  # gaps in standard errors, below which the sign of a bin is uncertain
_NOISE_CENTER, _NOISE_SPREAD = 0.725, 0.125  # of the factor beta, which is between .6 and .85


@dataclass(frozen=True, eq=False)
class BinnedGaps:
    """The gaps of a model's bins, and their standard errors."""

    events: Events  # one row per example
    gap: np.ndarray  # (n) confidence minus outcome, times the sign of the bin's gap: their mean is the ECE
    index: np.ndarray  # (n) bin of each row
    ratio: np.ndarray  # (b) absolute gap over its standard error
    error: np.ndarray  # (b) standard error of the bin's part of the ECE

    @classmethod
    def from_events(cls, events: Events, error_bins: ErrorBins) -> "BinnedGaps":
        """Compute the gaps in bins of equal width or mass, where equal confidences share one bin."""
        events, (bins, is_equal_mass) = events.merged, error_bins
        c, a = (x.astype(float) for x in (events.confidence, events.outcome))
        w = _weights(events)
        index = _mass_index(c, w, bins) if is_equal_mass else equal_width_index(bins, events.confidence)
        bin_weight = np.maximum(np.bincount(index, w, bins), MIN_DIVISOR)
        gap_sum = np.bincount(index, w * (c - a), bins)
        deviation = c - a - (gap_sum / bin_weight)[index]  # of each gap from the mean of its bin
        # Variance of `gap_sum`, as observed and as it would be if the model were calibrated
        if events.clusters is None:  # examples of weight w are w copies
            variance = np.bincount(index, w * deviation**2, bins)
            calibrated_variance = np.bincount(index, w * c * (1 - c), bins)
        else:
            cell_key = events.clusters * bins + index  # one cell per cluster and bin
            cells, cell = np.unique(cell_key, return_inverse=True)
            variance = np.bincount(cells % bins, np.bincount(cell, w * deviation) ** 2, bins)
            calibrated_variance = np.bincount(index, w**2 * c * (1 - c), bins)
        error = np.sqrt(np.maximum(variance, calibrated_variance))
        ratio = np.abs(gap_sum) / np.maximum(error, MIN_DIVISOR)
        bin_sign = np.where(gap_sum < 0, -1.0, 1.0)
        return cls(events, (c - a) * bin_sign[index], index, ratio, error / w.sum())

    @property
    def noise(self) -> float:
        """What noise adds to the ECE, apart from a factor between .6 and .85."""
        return float(self.error @ np.exp(-(np.minimum(self.ratio, 40.0) ** 2) / 2))  # e^-800 is 0


def _mass_index(c: np.ndarray, w: np.ndarray, bins: int) -> np.ndarray:
    """Return the bin of equal mass of each confidence, by the middle of the weights of equal confidences."""
    _, place = np.unique(c, return_inverse=True)
    weight = np.bincount(place, w)
    middle = (weight.cumsum() - weight / 2) / weight.sum()
    return np.minimum(middle * bins, bins - 1).astype(np.int64)[place]


@dataclass(frozen=True)
class ErrorPrecision:
    """The precision of the difference of two binned errors, second minus first."""

    error: float  # standard error
    bias: tuple[float, float]  # how far bias may carry the difference above and below the true one


def paired_precision(first: BinnedGaps, second: BinnedGaps, distinctness: float) -> ErrorPrecision:
    """Return the precision of the difference of two models on the same examples.

    The standard error is the largest one over the signs of the uncertain bins of either model. A bin in which both
    models have nearly the same confidences has the same sign in both: there, the sign costs their difference at most.
    """
    distance, weights = _confidence_distance(first.events, second.events)
    errors, costs = [_error(second, second.gap - first.gap)], [0.0]
    for model, partner in ((first, second), (second, first)):
        moved = np.bincount(model.index, weights * distance, len(model.error)) / weights.sum()
        is_uncertain = model.ratio < MAX_UNCERTAIN_GAP
        is_flipped = (is_uncertain & (moved > model.error))[model.index]
        errors.append(_error(model, np.where(is_flipped, -model.gap, model.gap) - partner.gap))
        costs.append(float(moved[is_uncertain & (moved <= model.error)].sum()))
    up, down = _bias(first, second, distinctness)
    return ErrorPrecision(max(errors), (up + max(costs), down + max(costs)))


def unpaired_precision(first: BinnedGaps, second: BinnedGaps) -> ErrorPrecision:
    """Return the precision of the difference of the errors of two samples."""
    return ErrorPrecision(
        math.hypot(*(_error(model, model.gap) for model in (first, second))), _bias(first, second, 1.0)
    )


def distinctness(first: Events, second: Events) -> float:
    """Return how distinct the confidences of two models on the same examples are, from 0 if they are equal to 1.

    It is 1 if they differ on average by a standard error of the mean outcome.
    """
    distance, weights = _confidence_distance(first.merged, second.merged)
    c = np.stack([events.merged.confidence.astype(float) for events in (first, second)])
    variance = float(weights @ (c * (1 - c)).mean(0))  # of the sum of outcomes
    return float(min(1.0, weights @ distance / max(math.sqrt(variance), MIN_DIVISOR)))


def _confidence_distance(first: Events, second: Events) -> tuple[np.ndarray, np.ndarray]:
    """Return the absolute differences of the confidences (n), and the weights (n)."""
    a, b = (events.confidence.astype(float) for events in (first, second))
    return np.abs(b - a), _weights(second)


def _weights(events: Events) -> np.ndarray:
    """Return the weight of each row (n), 1 without weights."""
    return np.ones(len(events.outcome)) if events.weights is None else events.weights.astype(float)


def _error(model: BinnedGaps, values: np.ndarray) -> float:
    """Return the standard error of a mean over the examples of a model, or over its clusters."""
    return Sample.from_values(values, model.events.weights, model.events.clusters).error


def _bias(first: BinnedGaps, second: BinnedGaps, distinctness: float) -> tuple[float, float]:
    """Return the largest bias of the difference upward and downward, at least 0. Equal models have the same bias."""
    center = _NOISE_CENTER * (second.noise - first.noise)
    spread = _NOISE_SPREAD * (second.noise + first.noise) * distinctness
    return max(center + spread, 0.0), max(spread - center, 0.0)
