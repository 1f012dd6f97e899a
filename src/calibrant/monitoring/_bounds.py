"""Bounds on metrics and on differences between two models, each with a small error probability."""

import math

from torch import Tensor

from calibrant.metrics import Interval, Metric, Sample, ScoreRange, debiased_l2, signed_gap, strict_limits
from calibrant.monitoring._features import states_confidence
from calibrant.monitoring._pairing import ModelPair
from calibrant.monitoring._requirement import BOUNDED_BY_L2
from calibrant.predictions import Predictions
from calibrant.registry import Method

_DIFFERENCE_RANGES = {  # of a score between two models; any other score is unbounded
    "accuracy": ScoreRange(-1.0, 1.0),
    "error": ScoreRange(-1.0, 1.0),
    "event_brier": ScoreRange(-1.0, 1.0),
    "brier": ScoreRange(-2.0, 2.0),
}


def metric_bounds(method: Method, p: Predictions, error_rate: float) -> Interval:
    """Return a metric with a lower and an upper bound, each of which errs with probability `error_rate`.

    ECE is biased upward and has no interval of its own. Its upper bound is the upper bound of the debiased L2 error,
    which is not smaller than the true ECE. Its lower bound is the lower bound of the absolute signed gap, which is not
    larger. The limits of the L2 error of clusters rest on the variance of few sums, and are computed at half of the
    error rate.
    """
    metric: Metric[...] = method.target  # pyright: ignore[reportAssignmentType]
    level = 1 - 2 * error_rate
    l2_level = level if p.clusters is None else 1 - error_rate
    answer_scores = _answer_scores(method, p)
    with strict_limits():  # so that each limit errs with at most its probability
        if answer_scores is not None:
            sample = Sample.from_values(answer_scores, p.weights, p.clusters, p.examples)
            return sample.bounded_interval(ScoreRange(0.0, 1.0), level)
        if method.name == debiased_l2.__name__:
            return metric.interval(p, level=l2_level, **method.settings)
        if method.name not in BOUNDED_BY_L2:
            return metric.interval(p, level=level, **method.settings)
        value = float(metric(p, **method.settings))
        high = debiased_l2.interval(p, level=l2_level, **method.settings).high
        # Both ends serve for the bound of |gap|, so that each may err with error_rate / 2
        gap = signed_gap.interval(p, level=1 - error_rate)
    low = max(gap.low, -gap.high, 0.0)  # |gap| is at least `low` if the gap is above 0, and at least -`high` if below
    return Interval(value, low, high, level)


def _answer_scores(method: Method, p: Predictions) -> Tensor | None:
    """Return the outcome (accuracy) or 1 - outcome (error) of each answer with a stated confidence, (n).

    Return None for other metrics and other predictions, which have no such answers.
    """
    if method.name not in ("accuracy", "error") or not states_confidence(p):
        return None
    return p.events.outcome if method.name == "accuracy" else 1 - p.events.outcome


def difference_bounds(method: Method, pair: ModelPair, error_rate: float) -> Interval:
    """Return the difference of a mean score, new minus old, with bounds that each err with probability `error_rate`.

    The interval of paired models is that of the mean of the differences per example, which is narrower.
    """
    metric: Metric[...] = method.target  # pyright: ignore[reportAssignmentType]
    level, old, new = 1 - 2 * error_rate, pair.old, pair.new
    if pair.paired_by is None:  # two independent samples
        return _subtract(metric_bounds(method, new, error_rate), metric_bounds(method, old, error_rate))
    # Accuracy and error of stated confidences score the stated answers, which are not the most likely class
    old_scores, new_scores = _answer_scores(method, old), _answer_scores(method, new)
    if old_scores is None or new_scores is None:
        old_scores, new_scores = metric.values(old), metric.values(new)
    sample = Sample.from_values(new_scores - old_scores, new.weights, new.clusters, new.examples)
    score_range = _DIFFERENCE_RANGES.get(method.name)
    if score_range is None:  # an unbounded score such as the NLL has the interval of Student's t
        return sample.normal_interval(level)
    with strict_limits():
        return sample.bounded_interval(score_range, level)


def _subtract(new: Interval, old: Interval) -> Interval:
    """Return the interval of a difference of independent estimates from their own intervals (Zou & Donner 2008)."""
    difference = new.value - old.value
    low = difference - math.hypot(new.value - new.low, old.high - old.value)
    high = difference + math.hypot(new.high - new.value, old.value - old.low)
    return Interval(difference, low, high, new.level)
