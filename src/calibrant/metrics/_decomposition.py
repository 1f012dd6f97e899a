"""Refinement and calibration: the part of a proper score that recalibration keeps, and the part that it removes."""

from dataclasses import dataclass
from typing import Any, Literal

from calibrant._core.types import NonNegativeInt, NumFolds, OpenFraction, check_arguments
from calibrant.metrics._intervals import Interval, Sample
from calibrant.metrics._scores import brier, nll
from calibrant.predictions import as_predictions
from calibrant.predictions.folds import FitFunction, map_out_of_fold

__all__ = ["ScoreDecomposition", "decompose_score"]


@dataclass(frozen=True)
class ScoreDecomposition:
    """A proper score as refinement + calibration."""

    score: Interval
    refinement: Interval
    calibration: Interval


@check_arguments
def decompose_score(
    predictions: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    fit: FitFunction,
    score: Literal["nll", "brier"] = "nll",
    folds: NumFolds = 5,
    seed: NonNegativeInt = 0,
    level: OpenFraction = 0.90,
) -> ScoreDecomposition:
    """Divide a score into refinement, left after cross-fitted recalibration, and calibration (Berta et al. 2025).

    Every example is recalibrated by a map that was fitted on the other folds, so that the calibration part is, in
    expectation, a lower bound of the cost of miscalibration in this score: neither binning nor overfitting can inflate
    it. It may be negative for calibrated predictions. Its interval comes from the paired differences of each example's
    scores.

    Args:
        predictions: Predictions, or logits.
        labels: Labels, if logits are given.
        weights: Weights, if logits are given.
        fit: Function of predictions that returns a map, such as `calibrators.Temperature.fit`.
        score: "nll" or "brier".
        folds: Number of folds.
        seed: Seed of the division into folds.
        level: Probability that each interval holds the truth.

    >>> halve = lambda predictions: lambda z: z / 2
    >>> z = np.tile([0.0, 2.0], (10, 1))
    >>> round(decompose_score(z, np.ones(10, dtype=np.int64), fit=halve).refinement.value, 4)  # log(1 + 1/e)
    0.3133
    """
    metric = nll if score == "nll" else brier
    with as_predictions(predictions, labels, weights) as validated:
        p = validated.double()
        recalibrated = map_out_of_fold(fit, p, folds=folds, seed=seed)
        gains = metric.values(p) - metric.values(recalibrated)  # of each example; their mean is the calibration part
        gain = Sample.from_values(gains, p.weights, p.clusters, p.examples)
        refinement = metric.interval(recalibrated, level=level)
        return ScoreDecomposition(metric.interval(p, level=level), refinement, gain.normal_interval(level))
