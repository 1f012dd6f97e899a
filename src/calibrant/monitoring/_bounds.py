"""Bounds on metrics and on differences between two models, each with a small error probability."""

from dataclasses import dataclass

import numpy as np

from calibrant._core.registry import Method
from calibrant.metrics import (
    AnyDifference,
    BinSums,
    Interval,
    Metric,
    ModelDifferences,
    debiased_l2,
    ratio_for_bound,
    signed_gap,
    strict_limits,
)
from calibrant.monitoring._features import states_confidence
from calibrant.monitoring._pairing import ModelPair
from calibrant.monitoring._requirement import ABSOLUTE_GAP, BOUNDED_BY_L2, Requirement
from calibrant.monitoring._summed import Source
from calibrant.predictions import Predictions

L2_BINS = 15  # of `debiased_l2`
POWER = 0.8  # with which the sizes in hints decide


@dataclass(frozen=True)
class MetricBounds:
    """Two bounds of a metric, and the estimate that each is about."""

    low: float
    high: float
    low_value: float
    high_value: float
    low_metric: str  # name of the metric that `low` bounds and `low_value` estimates
    high_metric: str

    @classmethod
    def from_interval(cls, interval: Interval, metric: str) -> "MetricBounds":
        """Take both bounds from the interval of one metric."""
        return cls(interval.low, interval.high, interval.value, interval.value, metric, metric)


def metric_bounds(requirement: Requirement, p: Source, error_rate: float) -> MetricBounds:
    """Return a lower and an upper bound of a metric, each of which errs with probability `error_rate`.

    ECE is biased upward and has no interval of its own. Its upper bound is the upper bound of the debiased L2 error,
    which is not smaller than the true ECE. Its lower bound is the lower bound of the absolute signed gap, which is not
    larger. The limits of the L2 error of clusters rest on the variance of few sums, and are computed at half of the
    error rate.
    """
    method = requirement.method
    metric: Metric[...] = method.target  # pyright: ignore[reportAssignmentType]
    level = 1 - 2 * error_rate
    clusters = p.slots if isinstance(p, BinSums) else p.clusters
    l2_level = level if clusters is None else 1 - error_rate
    p = p if isinstance(p, BinSums) else stated_answers(method, p)
    with strict_limits():  # so that each limit errs with at most its probability
        if method.name not in BOUNDED_BY_L2 and not requirement.is_absolute:
            used_level = l2_level if method.name == debiased_l2.__name__ else level
            return MetricBounds.from_interval(metric.interval(p, level=used_level, **method.settings), method.name)
        # Both ends serve for the lower bound of |gap|, so that each may err with error_rate / 2
        one_sided, gap = signed_gap.interval(p, level=level), signed_gap.interval(p, level=1 - error_rate)
        # Only the end on the side of the true sign can err
        high = Interval(abs(gap.value), 0.0, max(one_sided.high, -one_sided.low), level)
        if not requirement.is_absolute:
            high = debiased_l2.interval(p, level=l2_level, **method.settings)
    low = max(gap.low, -gap.high, 0.0)  # |gap| is at least `low` if the gap is above 0, and at least -`high` if below
    high_metric = ABSOLUTE_GAP if requirement.is_absolute else debiased_l2.__name__
    return MetricBounds(low, high.high, abs(gap.value), high.value, ABSOLUTE_GAP, high_metric)


def calibrated_size_ratio(requirement: Requirement, p: Source, error_rate: float) -> float:
    """Return by how much the data must grow to bound the ECE of a calibrated model by the limit, with power `POWER`."""
    level = 1 - 2 * error_rate
    statistics = p if isinstance(p, BinSums) else p.events
    moments = statistics.moments(requirement.method.settings.get("bins", L2_BINS))
    with strict_limits():
        gap = signed_gap.interval(p, level=level)
    return ratio_for_bound(moments, (gap.high - gap.low) / 2, requirement.limit, level, POWER)


def estimate_difference(method: Method, pair: ModelPair) -> AnyDifference:
    """Return the difference of a metric, new minus old, with the limits and the p-value of `metrics.compare`."""
    old, new = (stated_answers(method, p) for p in (pair.old, pair.new))
    return ModelDifferences(old, new, is_paired=pair.paired_by is not None).estimate(method)


def stated_answers(method: Method, p: Predictions) -> Predictions:
    """Return predictions whose accuracy and error are those of the answers, if their confidences are stated.

    Every answer is predicted to be right. As predictions of two classes, a wrong answer with a confidence of 0.2 would
    be a right prediction. Other predictions, and those for other metrics, are returned as they are.
    """
    if method.name not in ("accuracy", "error") or not states_confidence(p):
        return p
    return p.with_logits(np.tile([0.0, 1.0], (len(p), 1)))
