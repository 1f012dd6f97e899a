"""Scores: means of numbers per example, such as proper losses."""

import math
from typing import Literal

import numpy as np

from calibrant._core.kernels.bins import Events, allow_rounding
from calibrant._core.kernels.softmax import entropies
from calibrant._core.types import OpenFraction, PerExample
from calibrant.metrics._intervals import SHARE, Extremes, Interval, ScoreRange, share_interval
from calibrant.metrics._metric import metric
from calibrant.predictions import Predictions

__all__ = [
    "accuracy",
    "brier",
    "confident_accuracy",
    "confident_share",
    "entropy",
    "error",
    "event_brier",
    "nll",
    "signed_gap",
]

PredictionSubset = Literal["all", "correct", "wrong"]


def weighted_mean(values: np.ndarray, weights: np.ndarray | None) -> float:
    """Return the mean, weighted if there are weights, or nan without values."""
    weighted, total = (values, len(values)) if weights is None else (values * weights, weights.sum())
    return weighted.sum() / total


# Ranges of the score of an example that was not drawn. Its prediction is one of the most extreme ones of the sample,
# and its outcome any. Of k classes, the remaining probability 1 - c may belong to a single class or be spread over all
# others.


def _signed_gap_range(extremes: Extremes) -> ScoreRange:
    """Return the lowest c - 1, if the event happens, and the highest c, if it does not."""
    return ScoreRange(extremes.low - 1, extremes.high)


def _nll_range(extremes: Extremes) -> ScoreRange:
    """Return the NLL of the most confident prediction if it is right, and if it is wrong, or the largest in the sample.

    The k - 1 other classes have equal shares of the remaining probability. An error of probability 0 has no bound.
    """
    with np.errstate(divide="ignore"):  # of a summary without examples
        low = -np.log1p(-np.exp(-extremes.error_surprisal))
    return ScoreRange(low, np.maximum(extremes.error_surprisal + math.log(extremes.k - 1), extremes.label_surprisal))


def _event_brier_range(extremes: Extremes) -> ScoreRange:
    """Return (1 - b)^2 and b^2 of the largest probability b of the likelier outcome."""
    b = np.maximum(extremes.high, 1 - extremes.low)
    return ScoreRange((1 - b) ** 2, b**2)


def _brier_range(extremes: Extremes) -> ScoreRange:
    """Return the range of the Brier score over classes, from that of an event of probability c.

    For two classes it is twice the event's range. For more, the smallest score spreads the remaining 1 - c evenly over
    the other classes. The largest, 2 (1 - c (1 - c)), gives it to a single class, which is wrong.
    """
    low, high = _event_brier_range(extremes)
    k, worst = extremes.k, np.maximum(*(1 - c * (1 - c) for c in (extremes.low, extremes.high)))
    # (1 - c)^2, and k - 1 other classes with the square of (1 - c) / (k - 1) each: k / (k - 1) times (1 - c)^2
    return ScoreRange(k / (k - 1) * low, 2 * (high if k == 2 else worst))


@metric(
    "accuracy",
    unit="share",
    higher_is_better=True,
    meaning="share of predictions that are correct",
    per_example=lambda p: p.correct,
    score_range=SHARE,
    sums=("correct", "correct", "weight"),
)
def accuracy(p: Predictions) -> float:
    """Return the share of examples whose predicted class is right.

    The predicted class is the lowest index that attains the maximum. The interval is the mid-p interval of a share.

    >>> accuracy(np.eye(2), np.array([0, 0]))
    0.5
    >>> print(accuracy.interval(np.eye(2), np.array([0, 0])))
    0.5000 [0.0253, 0.9747]
    """
    return weighted_mean(p.correct, p.weights)


@metric(
    "error",
    unit="share",
    meaning="share of predictions that are wrong",
    per_example=lambda p: 1 - p.correct,
    score_range=SHARE,
)
def error(p: Predictions) -> float:
    """Return the share of examples whose predicted class is wrong: 1 - accuracy.

    >>> error(np.eye(2), np.array([0, 0]))
    0.5
    """
    return 1 - weighted_mean(p.correct, p.weights)


def _nll(p: Predictions) -> PerExample:
    return 0.0 - p.log_likelihood


@metric(
    "negative log-likelihood",
    unit="nats",
    short="NLL",
    meaning="mean −log p of the true class, in nats",
    per_example=_nll,
    score_range=_nll_range,
    sums=("nll", "nll_square", "weight"),
)
def nll(p: Predictions, *, among: PredictionSubset = "all") -> float:
    r"""Return the mean negative log-likelihood, $-\log p_y$, in nats.

    Mukhoti et al. (2020, Figures 1 and 3) follow it over the epochs for correct and for wrong predictions.

    Args:
        p: Predictions, or logits and labels.
        among: "all", "correct" or "wrong" predictions; nan if there are none.

    >>> round(nll(np.zeros((1, 4)), np.array([2])), 4)
    1.3863
    >>> print(nll.interval(np.zeros((4, 2)), np.array([0, 0, 0, 1])))
    0.6931 [0.6931, 0.6931]
    """
    return _mean_among(_nll(p), p, among)


@metric(
    "Brier score (sum over classes)",
    short="Brier",
    meaning="squared error of the probabilities, summed over the classes, 0 to 2",
    per_example=lambda p: p.outcomes.brier,
    score_range=_brier_range,
    sums=("brier", "brier_square", "weight"),
)
def brier(p: Predictions) -> float:
    r"""Return the mean Brier score, $\lVert p - e_y \rVert^2$ summed over classes, in [0, 2] (Brier 1950).

    >>> brier(np.zeros((1, 2)), np.array([0]))
    0.5
    """
    return weighted_mean(p.outcomes.brier, p.weights)


def _event_brier(events: Events) -> PerExample:
    c, a = events.confidence, events.outcome
    # an outcome a between 0 and 1 stands for outcomes that are 1 with probability a: the mean of their scores
    return np.square(c - a) + a * (1 - a)


@metric(
    "Brier score of the event",
    short="event Brier",
    meaning="squared error of the probability of the event, 0 to 1",
    per_example=_event_brier,
    score_range=_event_brier_range,
    sums=("gap_square", "gap_fourth", "weight"),
)
def event_brier(events: Events) -> float:
    r"""Return the mean Brier score of the event, $(c - a)^2$, in [0, 1], as of binary forecasts (Brier 1950).

    c is the confidence, and a the outcome. For two classes it is half of `brier`, and scikit-learn's
    `brier_score_loss`.

    >>> round(event_brier(Predictions.from_confidence([0.9, 0.2], [1, 1])), 4)
    0.325
    """
    return weighted_mean(_event_brier(events), events.weights)


@metric(
    "entropy",
    unit="nats",
    higher_is_better=None,
    meaning="mean entropy of the predicted distributions, in nats",
)
def entropy(p: Predictions, *, among: PredictionSubset = "all") -> float:
    r"""Return the mean entropy of the predicted distributions, $-\sum_j p_j \log p_j$, in nats.

    As in Mukhoti et al. (2020, Figure 1).

    Args:
        p: Predictions, or logits and labels.
        among: "all", "correct" or "wrong" predictions; nan if there are none.

    >>> round(entropy(np.zeros((1, 4)), np.array([2])), 4)
    1.3863
    """
    return _mean_among(entropies(p.logits), p, among)


def _confident_interval(events: Events, *, level: float, above: OpenFraction = 0.99) -> Interval:
    return share_interval(events.confidence >= allow_rounding(above), events.weights, level, events.clusters)


@metric(
    "highly confident predictions",
    unit="share",
    higher_is_better=None,
    short="at least 99 % confident",
    meaning="share of predictions with a confidence of at least 99 %",
    interval=_confident_interval,
    score_range=SHARE,
    sums=("confident", "confident", "weight"),
)
def confident_share(events: Events, *, above: OpenFraction = 0.99) -> float:
    """Return the share of predictions with a confidence of at least `above` (Mukhoti et al. 2020, Table 7).

    >>> confident_share(np.array([[0.0, 9.0], [0.0, 1.0]]), np.array([1, 1]))
    0.5
    """
    return weighted_mean(events.confidence >= allow_rounding(above), events.weights)


def _confident_accuracy_interval(events: Events, *, level: float, above: OpenFraction = 0.99) -> Interval:
    confident = events[events.confidence >= allow_rounding(above)]
    return share_interval(confident.outcome, confident.weights, level, confident.clusters)


@metric(
    "accuracy of highly confident predictions",
    unit="share",
    higher_is_better=True,
    meaning="accuracy among confidences of at least 99 %",
    interval=_confident_accuracy_interval,
    score_range=SHARE,
    sums=("confident_outcome", "confident_outcome", "confident"),
)
def confident_accuracy(events: Events, *, above: OpenFraction = 0.99) -> float:
    """Return the accuracy of predictions with a confidence of at least `above` (Mukhoti et al. 2020, Table 7).

    nan if no prediction is that confident.

    >>> confident_accuracy(np.array([[0.0, 9.0], [0.0, 1.0]]), np.array([1, 0]))
    1.0
    """
    confident = events[events.confidence >= allow_rounding(above)]
    return weighted_mean(confident.outcome, confident.weights)


def _confidence_minus_outcome(events: Events) -> PerExample:
    return events.confidence - events.outcome


@metric(
    "confidence minus accuracy",
    unit="share",
    higher_is_better=None,
    meaning="above 0: overconfident on average",
    per_example=_confidence_minus_outcome,
    score_range=_signed_gap_range,
    sums=("gap", "gap_square", "weight"),
)
def signed_gap(events: Events) -> float:
    """Return the mean confidence minus the accuracy: positive if overconfident, negative if underconfident.

    The interval is that of a mean in a known range, which does not collapse when all examples are right.

    >>> signed_gap(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    -0.25
    >>> print(signed_gap.interval(np.zeros((4, 2)), np.array([0, 0, 0, 1])))
    -0.2500 [-0.4873, 0.2514]
    """
    return weighted_mean(_confidence_minus_outcome(events), events.weights)


def _mean_among(values: np.ndarray, p: Predictions, among: PredictionSubset) -> float:
    """Return the mean of values (n) over all, the correct or the wrong predictions, or nan if there are none."""
    if among == "all":
        return weighted_mean(values, p.weights)
    selected = (p.correct == 1) == (among == "correct")
    return weighted_mean(values[selected], None if p.weights is None else p.weights[selected])
