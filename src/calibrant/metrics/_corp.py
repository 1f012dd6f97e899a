"""CORP: the exact decomposition of a score into miscalibration, discrimination and uncertainty."""

from typing import Literal

import numpy as np

from calibrant._core.kernels.bins import EventStatistics, GroupedScores
from calibrant._core.lazy import special
from calibrant.metrics._metric import metric

__all__ = ["discrimination", "miscalibration", "uncertainty"]

Score = Literal["brier", "log"]


@metric("CORP miscalibration", meaning="reduction of the score by isotonic recalibration")
def miscalibration(events: EventStatistics, *, score: Score = "brier") -> float:
    r"""Return MCB of the CORP decomposition S = MCB - DSC + UNC of the event's score (Dimitriadis et al. 2021).

    It is the amount by which isotonic recalibration, fitted on the same examples, lowers the score. With confidence c
    and outcome a, "brier" is $(c - a)^2$, and "log" is $-\log c$ if a is 1, else $-\log(1 - c)$. Never negative, and
    biased upward.

    >>> miscalibration(np.zeros((4, 2)), np.array([0, 0, 0, 1]))  # 1/4 - 3/16
    0.0625
    """
    by_score = events.by_score
    return _score(by_score, by_score.value, score) - _score(by_score, isotonic_fit(by_score), score)


@metric(
    "CORP discrimination",
    higher_is_better=True,
    meaning="score of the constant accuracy minus score after recalibration",
)
def discrimination(events: EventStatistics, *, score: Score = "brier") -> float:
    """Return DSC of the CORP decomposition: how much better the recalibrated confidence is than the accuracy alone.

    See `miscalibration`.

    >>> discrimination(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.0
    """
    return uncertainty(events, score=score) - _score(events.by_score, isotonic_fit(events.by_score), score)


@metric(
    "CORP uncertainty",
    higher_is_better=None,
    meaning="score of predicting the accuracy for every example",
)
def uncertainty(events: EventStatistics, *, score: Score = "brier") -> float:
    """Return UNC of the CORP decomposition: the score of the accuracy as a constant forecast. See `miscalibration`.

    >>> uncertainty(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.1875
    """
    by_score = events.by_score
    accuracy = by_score.correct.sum() / by_score.total_weight.sum()
    return _score(by_score, np.full(len(by_score.value), accuracy), score)


def isotonic_fit(by_score: GroupedScores) -> np.ndarray:
    """Return the isotonic regression of outcomes on confidence, (g), at each of the g distinct confidences."""
    from scipy.optimize import isotonic_regression  # slow to import

    fit = isotonic_regression(by_score.accuracy, weights=by_score.total_weight)
    return np.clip(fit.x, 0, 1)  # rounding may leave [0, 1]


def _score(by_score: GroupedScores, p: np.ndarray, score: Score) -> float:
    """Return the mean score of forecasts p (g), one for each group of equal confidence.

    "brier" is the mean of (p - a)^2 over outcomes a, "log" the mean of -log p if a is 1 and of -log(1 - p) if a is 0.
    """
    hit, miss = by_score.correct, by_score.total_weight - by_score.correct  # weights of outcomes 1 and 0
    if score == "brier":
        parts = hit * np.square(1 - p) + miss * np.square(p)
    else:
        # xlogy, as 0 log 0 counts as 0
        parts = -special.xlogy(hit, p) - special.xlog1py(miss, -p)
    return parts.sum() / by_score.total_weight.sum()
