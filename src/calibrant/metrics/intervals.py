"""Metrics with an interval: the same names as the numbers, (logits, labels) -> `Interval`."""

import math

from torch import Tensor

from calibrant import losses
from calibrant._bins import Events
from calibrant._types import Labels, Logits, PerExample
from calibrant.metrics._binned import Edges, floor_of
from calibrant.metrics._moments import Moments
from calibrant.metrics._results import Interval, mean_interval, quantile

__all__ = ["accuracy", "brier", "debiased_l2", "nll", "noise_floor", "signed_gap"]


def accuracy(logits: Logits, labels: Labels, *, level: float = 0.90, weights: PerExample | None = None) -> Interval:
    """Accuracy with Wilson's score interval (1927), which holds near 0 and 1 too.

    >>> print(accuracy(torch.eye(2), torch.tensor([0, 0])))
    0.5000 [0.1209, 0.8791]
    """
    return share(logits.argmax(-1) == labels, weights, level)


def nll(logits: Logits, labels: Labels, *, level: float = 0.90, weights: PerExample | None = None) -> Interval:
    """Mean negative log-likelihood with a normal interval.

    >>> print(nll(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])))
    0.6931 [0.6931, 0.6931]
    """
    return mean_interval(losses.cross_entropy(logits.double(), labels), weights, level)


def brier(logits: Logits, labels: Labels, *, level: float = 0.90, weights: PerExample | None = None) -> Interval:
    """Mean Brier score with a normal interval.

    >>> print(brier(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])))
    0.5000 [0.5000, 0.5000]
    """
    return mean_interval(losses.brier(logits.double(), labels), weights, level)


def signed_gap(logits: Logits, labels: Labels, *, level: float = 0.90, weights: PerExample | None = None) -> Interval:
    """Mean confidence minus accuracy with a normal interval: above 0, the model is overconfident on the whole.

    >>> print(signed_gap(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])))
    -0.2500 [-0.6612, 0.1612]
    """
    events = Events.top(logits, labels, weights)
    return mean_interval(events.confidence - events.correct, weights, level)


def debiased_l2(
    logits: Logits, labels: Labels, *, bins: int = 15, level: float = 0.90, weights: PerExample | None = None
) -> Interval:
    """Calibration error of norm 2, debiased: signed value, and an interval that is valid at 0 and away from it.

    The normal interval of the U-statistic `metrics.debiased_l2(squared=True)`, with Hoeffding's variance in each bin
    plus that of the bins' shares, cut to [0, inf), in roots.

    >>> print(debiased_l2(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1])))
    0.0000 [0.0000, 0.4097]
    """
    return rooted(Moments.of(Events.top(logits, labels, weights), bins).squared(level))


def noise_floor(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    edges: Edges = "equal_width",
    level: float = 0.90,
    weights: PerExample | None = None,
) -> Interval:
    """The ECE that a perfectly calibrated model with these confidences shows: mean and central interval.

    At level 0.90 `high` is the 95 % quantile.

    >>> print(noise_floor(torch.zeros(100, 2), torch.zeros(100, dtype=torch.int64)))
    0.0399 [0.0031, 0.0980]
    """
    return floor_of(Events.top(logits, labels, weights), bins, edges, level)


def share(hits: Tensor, weights: PerExample | None, level: float) -> Interval:
    """A share with Wilson's interval; weights act through the effective number of examples."""
    hits = hits.double()
    w = hits.new_ones(len(hits)) if weights is None else weights.double()
    p = float((w * hits).sum() / w.sum())
    return wilson(p, float(w.sum().square() / w.square().sum()), level)


def wilson(p: float, n: float, level: float) -> Interval:
    """Wilson's score interval of a share p of n."""
    z = quantile(level)
    center, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, (center - half) / (1 + z * z / n)), min(1.0, (center + half) / (1 + z * z / n)), level)


def rooted(squared: Interval) -> Interval:
    """Roots of an interval of a square, the value keeping its sign."""
    value = math.copysign(math.sqrt(abs(squared.value)), squared.value)
    return Interval(value, math.sqrt(squared.low), math.sqrt(squared.high), squared.level)
