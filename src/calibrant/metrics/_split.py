"""Refinement and calibration: what a better map could not, and could, take off a proper score."""

from dataclasses import dataclass
from typing import Literal

from calibrant import losses
from calibrant._folds import Fit, cross_fitted
from calibrant._types import Labels, Logits, PerExample
from calibrant.metrics._results import Interval, mean_interval

__all__ = ["Split", "split"]


@dataclass(frozen=True)
class Split:
    """A proper score as refinement + calibration."""

    score: Interval
    refinement: Interval
    calibration: Interval


def split(
    logits: Logits,
    labels: Labels,
    fit: Fit,
    *,
    score: Literal["nll", "brier"] = "nll",
    folds: int = 5,
    seed: int = 0,
    level: float = 0.90,
    weights: PerExample | None = None,
) -> Split:
    """Refinement is the score after recalibration by `fit`, cross-fitted; calibration is the rest (Berta et al. 2025).

    Every example is recalibrated by a map that was fitted on the other folds, so that calibration is, in expectation,
    a lower bound of what calibration costs in this score: neither binning nor overfitting can inflate it. It may come
    out below 0 where there is nothing to repair. The fit sees no weights; the means do.

    >>> halve = lambda logits, labels: lambda z: z / 2
    >>> z = torch.tensor([[0.0, 2.0]]).expand(10, 2)
    >>> round(split(z, torch.ones(10, dtype=torch.int64), halve).refinement.value, 4)  # log(1 + 1/e)
    0.3133
    """
    loss = losses.cross_entropy if score == "nll" else losses.brier
    logits = logits.double()
    told = loss(logits, labels)
    repaired = loss(cross_fitted(fit, logits, labels, folds=folds, seed=seed), labels)
    parts = (mean_interval(values, weights, level) for values in (told, repaired, told - repaired))
    return Split(*parts)
