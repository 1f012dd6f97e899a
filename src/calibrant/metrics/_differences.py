"""Estimates of a difference between two models: one kind of limits at any level, and the p-value of the same test."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from calibrant._core.types import OpenFraction, check_arguments
from calibrant.metrics._intervals import MIN_DIVISOR, Interval, Sample, ScoreRange, strict_limits
from calibrant.metrics._metric import Metric
from calibrant.metrics._paired_scores import read_sums
from calibrant.predictions import Predictions

MAX_P_VALUE_STEPS = 8
QUANTILE_TOLERANCE = 1e-4  # relative
MIN_QUANTILE, MAX_QUANTILE = 0.01, 7.0  # normal quantiles of p-values of .99 and 3e-12


@dataclass(frozen=True)
class Difference:
    """One metric of two models on the same examples, second minus first."""

    name: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float  # probability of as large a difference between models that do not differ in this metric


@dataclass(frozen=True, eq=False)
class DifferenceEstimate:
    """The difference of one metric between two models, with limits at any level and a p-value of the same test.

    Limits are conservative (`strict_limits`): the truth lies beyond either one with at most the nominal probability.
    """

    name: str
    first: float
    second: float
    sample: Sample  # the difference, second minus first, and its precision
    unseen_range: ScoreRange | None = None  # range of the difference of an unseen unit; None leaves `mean_limits` out
    bias: tuple[float, float] = (0.0, 0.0)  # how far bias may carry the difference above and below the true one

    @property
    def difference(self) -> float:
        """The observed difference, second minus first."""
        return self.second - self.first

    def interval(self, level: float) -> Interval:
        """Return the limits of the true difference: Student's or, if they are wider, those of `mean_limits`."""
        value, (up, down) = self.difference, self.bias
        if not math.isfinite(value):  # such as an infinite NLL, if a model gives a label the probability 0
            return Interval(value, -math.inf, math.inf, level)
        low, high = (self._limits(shift, level) for shift in (-up, down))
        return Interval(value, min(low.low, value), max(high.high, value), level)

    @property
    def p_value(self) -> float:
        """The p-value of no difference: the level at which the interval reaches 0."""
        value, (up, down) = self.difference, self.bias
        if not math.isfinite(value):
            return math.nan
        sample = self._shifted(-min(up, value) if value > 0 else min(down, -value))
        p_value = _allow_for_skewness(sample).normal_p_value()
        if self.unseen_range is None:
            return p_value
        with strict_limits():
            return max(p_value, sample.bounded_p_value(self.unseen_range))

    def _shifted(self, shift: float) -> Sample:
        """Return the sample with another mean."""
        return replace(self.sample, mean=self.sample.mean + shift) if shift else self.sample

    def _limits(self, shift: float, level: float) -> Interval:
        """Return limits of the mean after a shift."""
        sample = self._shifted(shift)
        interval = _allow_for_skewness(sample).normal_interval(level)
        if self.unseen_range is None or sample.degrees <= 0:  # without degrees, the interval is infinite already
            return interval
        with strict_limits():
            bounded = sample.bounded_interval(self.unseen_range, level)
        return Interval(sample.mean, min(interval.low, bounded.low), max(interval.high, bounded.high), level)


def _allow_for_skewness(sample: Sample) -> Sample:
    """Enlarge the standard error by a share of 1 / n, n the number of independent examples or clusters.

    Skewness costs Student's t a coverage of order 1 / n (Hall 1992).
    """
    return replace(sample, error=sample.error * (1 + 1 / (sample.degrees + 1)))


@dataclass(frozen=True, eq=False)
class IndependentDifference:
    """The difference of one metric between two samples, from the conservative interval of either one."""

    name: str
    metric: Metric[...]
    settings: Mapping[str, Any]
    samples: tuple[Predictions, Predictions]

    def interval(self, level: float) -> Interval:
        """Return the limits that two intervals of independent estimates imply (Zou & Donner 2008)."""
        with strict_limits():
            old, new = (self.metric.interval(p, level=level, **self.settings) for p in self.samples)
        difference = new.value - old.value
        if not math.isfinite(difference):
            return Interval(difference, -math.inf, math.inf, level)
        low = difference - math.hypot(new.value - new.low, old.high - old.value)
        high = difference + math.hypot(new.high - new.value, old.value - old.low)
        return Interval(difference, low, high, level)

    @cached_property
    def values(self) -> tuple[float, float]:
        """The metric of both samples."""
        first, second = (float(self.metric(p, **self.settings)) for p in self.samples)
        return first, second

    @property
    def first(self) -> float:
        """The metric of the first sample."""
        return self.values[0]

    @property
    def second(self) -> float:
        """The metric of the second sample."""
        return self.values[1]

    @property
    def difference(self) -> float:
        """The observed difference, second minus first."""
        return self.second - self.first

    @property
    def p_value(self) -> float:
        """The p-value of no difference: the level at which the interval reaches 0.

        The width of an interval toward 0 is nearly proportional to the normal quantile z of its level.
        """
        distance = abs(self.difference)
        if not math.isfinite(distance):
            return math.nan
        z = 1.0
        for _ in range(MAX_P_VALUE_STEPS):
            limits = self.interval(math.erf(z / math.sqrt(2)))
            width = limits.value - limits.low if limits.value > 0 else limits.high - limits.value
            previous, z = z, min(z * distance / max(width, MIN_DIVISOR), MAX_QUANTILE)
            if z < MIN_QUANTILE:
                return 1.0
            if abs(z - previous) < QUANTILE_TOLERANCE * z:
                break
        return math.erfc(z / math.sqrt(2))


AnyDifference = DifferenceEstimate | IndependentDifference


def difference_row(estimate: AnyDifference, level: float) -> Difference:
    """Return the row of a table of differences, with limits at a level."""
    limits, first, second = estimate.interval(level), estimate.first, estimate.second
    return Difference(estimate.name, first, second, second - first, limits.low, limits.high, estimate.p_value)


@check_arguments
def paired_difference(
    name: str, first: float, second: float, sums: Sequence[float], level: OpenFraction = 0.90
) -> Difference:
    """Return the paired difference of two means with its interval and p-value, from sums that add up over batches.

    Args:
        name: Name of the metric.
        first: The mean of the first model.
        second: The mean of the second model.
        sums: The numbers of `PairedScores.sums`.
        level: Probability that the interval holds the true difference.
    """
    return difference_row(DifferenceEstimate(name, first, second, *read_sums(sums)), level)


def paired_p_value(sums: Sequence[float]) -> float:
    """Compute only the p-value of `paired_difference`, from the numbers of `PairedScores.sums`, which is faster."""
    sample, unseen_range = read_sums(sums)
    return DifferenceEstimate("", 0.0, sample.mean, sample, unseen_range).p_value
