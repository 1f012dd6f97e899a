"""Bounds on metrics and on differences between two models, each with a small error probability."""

import torch

from calibrant.metrics import AnyDifference, Interval, Metric, ModelDifferences, debiased_l2, signed_gap, strict_limits
from calibrant.monitoring._features import states_confidence
from calibrant.monitoring._pairing import ModelPair
from calibrant.monitoring._requirement import BOUNDED_BY_L2
from calibrant.predictions import Predictions
from calibrant.registry import Method


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
    p = stated_answers(method, p)
    with strict_limits():  # so that each limit errs with at most its probability
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
    return p.with_logits(torch.tensor([0.0, 1.0], dtype=torch.float64).to(p.labels.device).expand(len(p), 2))
