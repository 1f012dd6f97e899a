"""Refinement and calibration: what a better map could not, and could, take off a proper score."""

from dataclasses import dataclass
from typing import Any, Literal

from calibrant._folds import Fit, cross_fitted
from calibrant.metrics._results import Interval, mean_interval
from calibrant.metrics._scores import brier, nll
from calibrant.predictions import entering

__all__ = ["Split", "split"]


@dataclass(frozen=True)
class Split:
    """A proper score as refinement + calibration."""

    score: Interval
    refinement: Interval
    calibration: Interval


def split(
    predictions: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    fit: Fit,
    score: Literal["nll", "brier"] = "nll",
    folds: int = 5,
    seed: int = 0,
    level: float = 0.90,
) -> Split:
    """Refinement is the score after recalibration by `fit`, cross-fitted; calibration is the rest (Berta et al. 2025).

    Every example is recalibrated by a map that was fitted on the other folds, so that calibration is, in expectation,
    a lower bound of what calibration costs in this score: neither binning nor overfitting can inflate it. It may come
    out below 0 where there is nothing to repair. `fit` takes predictions, as every calibrator's does.

    >>> halve = lambda predictions: lambda z: z / 2
    >>> z = torch.tensor([[0.0, 2.0]]).expand(10, 2)
    >>> round(split(z, torch.ones(10, dtype=torch.int64), fit=halve).refinement.value, 4)  # log(1 + 1/e)
    0.3133
    """
    metric = nll if score == "nll" else brier
    assert metric.each is not None
    with entering(predictions, labels, weights) as given:
        p = given.double()
        repaired = cross_fitted(fit, p, folds=folds, seed=seed)
        gained = mean_interval(metric.each(p) - metric.each(repaired), p.weights, level, p.clusters)
        return Split(metric.interval_of(p, level=level), metric.interval_of(repaired, level=level), gained)
