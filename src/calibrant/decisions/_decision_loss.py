"""The calibration decision loss: what recalibration would gain in the decision that suffers most."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from calibrant._core.kernels.bins import allow_rounding
from calibrant._core.numbers import format_percent, format_percent_range
from calibrant._core.types import OpenFraction, Range, check_arguments
from calibrant.metrics import Interval, share_interval, strict_limits
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.events import evaluated_event
from calibrant.predictions.folds import num_units

_THRESHOLDS = np.arange(1, 1000) / 1000
_MAX_BINS = 100


@dataclass(frozen=True)
class DecisionLoss:
    """The loss of a decision per example because probabilities are not true, as a share of the largest payoff."""

    loss: Interval
    threshold: float  # probability from which on to act, in the decision that loses most
    bins: int  # number of intervals between the points of the soft bins
    event: str = ""  # whose probability decides, such as "the class is “sick”"

    def __str__(self) -> str:
        """Return the result in one sentence."""
        return (
            f"Acting from a probability of {self.threshold:g} on loses {format_percent(self.loss.value)} of the "
            f"largest payoff ({format_percent(self.loss.level, 0)} interval "
            f"{format_percent_range(self.loss.low, self.loss.high)})."
        )


@check_arguments
def decision_loss(
    predictions: Predictions,
    *,
    threshold: OpenFraction | None = None,
    of: str | int | None = None,
    bins: Annotated[int, Range(ge=1, le=_MAX_BINS)] | None = None,
    level: OpenFraction = 0.90,
) -> DecisionLoss:
    r"""Return the calibration decision loss of two-action decisions, with an interval.

    Someone acts if the probability of the event is at least a threshold t, at which acting and waiting are worth the
    same. Among examples of about the same stated probability $v$, the event has the frequency $q$. If t lies between
    $v$ and $q$, the wrong action is taken and loses $|q - t|$; otherwise nothing is lost. The decision loss is the mean
    over the examples, divided by the largest payoff, $\max(t, 1 - t)$, for the threshold where it is largest (Hu & Wu
    2024, for two actions). Among all decisions with payoffs in [0, 1], of any number of actions, none loses more than
    twice as much.

    An example belongs to the two nearest of `bins` + 1 points of [0, 1], in proportion to its nearness: with such soft
    bins the loss can be estimated from samples, and changes continuously with the probabilities (Bairaktari et al.
    2026). Like an ECE, the value is biased upward by noise. The interval is not: it takes all frequencies of the bins
    from simultaneous intervals, which makes it wide rather than too narrow.

    Args:
        predictions: Labeled predictions.
        threshold: Threshold of one decision, in (0, 1). Default: the one that loses most.
        of: Event; by default the positive one of two classes, or that the predicted class is right.
        bins: Number of intervals between the points. Default: the cube root of the number of examples, or clusters, in
            2 .. 20.
        level: Level of the interval.

    Raises:
        InputError: If the threshold is not in (0, 1), or the number of bins is not in 1 .. 100.

    >>> p = Predictions.from_probs([0.6] * 100, [1] * 40 + [0] * 60)
    >>> round(decision_loss(p, threshold=0.5).loss.value, 4)  # acting is right in 40 %, waiting would be in 60 %
    0.2
    """
    with as_predictions(predictions) as predicted:
        p = predicted.with_default_event(of)
        bins = bins or round(min(max(num_units(p) ** (1 / 3), 2), 20))
        c, outcome = p.events.confidence, p.events.outcome
        weights = np.ones_like(c) if p.weights is None else p.weights
        # Nearness of each example to each point j / bins (n, bins + 1): 1 at the point, 0 from the next one on
        nearness = np.maximum(1 - abs(bins * c[:, None] - np.arange(bins + 1)), 0)
        shares = weights @ nearness / weights.sum()  # of all examples in each soft bin
        used = np.flatnonzero(shares > 0)
        bin_level = 1 - (1 - level) / len(used)  # all intervals hold at once (Bonferroni)
        frequencies, confidences = list[Interval](), list[float]()  # of each bin
        for j in used.tolist():
            rows = nearness[:, j] > 0
            w = (weights * nearness[:, j])[rows]
            clusters = None if p.clusters is None else p.clusters[rows]
            with strict_limits():
                frequencies.append(share_interval(outcome[rows], w, bin_level, clusters))
            confidences.append((w @ c[rows]) / w.sum())
    t = _THRESHOLDS if threshold is None else np.array([threshold])
    value, low, high = np.array([(x.value, x.low, x.high) for x in frequencies]).T
    confidence, shares = np.array(confidences), shares[used]
    # The higher the frequency, the less acting loses and the more waiting loses
    loss = _losses(t, shares, confidence, if_acting=value, if_waiting=value)
    smallest_loss = _losses(t, shares, confidence, if_acting=high, if_waiting=low)
    largest_loss = _losses(t, shares, confidence, if_acting=low, if_waiting=high)
    interval = Interval(float(loss.max()), float(smallest_loss.max()), float(largest_loss.max()), level)
    event = evaluated_event(p).title
    return DecisionLoss(interval, threshold=float(t[loss.argmax()]), bins=bins, event=event)


def _losses(
    t: np.ndarray, shares: np.ndarray, confidence: np.ndarray, *, if_acting: np.ndarray, if_waiting: np.ndarray
) -> np.ndarray:
    """Return the loss at each threshold (m).

    Args:
        t: Thresholds (m).
        shares: Share of the examples in each bin (b).
        confidence: Mean probability of each bin (b).
        if_acting: Frequency in each bin (b) where its mean probability is at least the threshold.
        if_waiting: Frequency in each bin (b) where its mean probability is less.
    """
    t = t[:, None]
    # At a frequency q, acting loses t - q if q < t, and waiting q - t if q > t
    losses = np.maximum(np.where(confidence >= allow_rounding(t), t - if_acting, if_waiting - t), 0)
    return (losses @ shares) / np.maximum(t, 1 - t)[:, 0]
