"""Refinement and calibration: what a better map could not, and could, take off a proper score."""

from dataclasses import dataclass
from typing import Any, Literal

from calibrant.metrics._intervals import Interval, mean_interval
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


def decompose_score(
    predictions: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    fit: FitFunction,
    score: Literal["nll", "brier"] = "nll",
    folds: int = 5,
    seed: int = 0,
    level: float = 0.90,
) -> ScoreDecomposition:
    """Refinement is the score after recalibration by `fit`, cross-fitted; calibration is the rest (Berta et al. 2025).

    Every example is recalibrated by a map that was fitted on the other folds, so that calibration is, in expectation,
    a lower bound of what calibration costs in this score: neither binning nor overfitting can inflate it. It may come
    out below 0 where there is nothing to repair. `fit` takes predictions, as every calibrator's does.

    >>> halve = lambda predictions: lambda z: z / 2
    >>> z = torch.tensor([[0.0, 2.0]]).expand(10, 2)
    >>> round(decompose_score(z, torch.ones(10, dtype=torch.int64), fit=halve).refinement.value, 4)  # log(1 + 1/e)
    0.3133
    """
    metric = nll if score == "nll" else brier
    assert metric.per_example is not None
    with as_predictions(predictions, labels, weights) as validated:
        p = validated.double()
        repaired = map_out_of_fold(fit, p, folds=folds, seed=seed)
        gain = mean_interval(metric.per_example(p) - metric.per_example(repaired), p.weights, level, p.clusters)
        return ScoreDecomposition(
            metric.interval_from_view(p, level=level), metric.interval_from_view(repaired, level=level), gain
        )
