"""Comparison of two models on the same examples, and of two training methods over seeds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from calibrant._core import registry
from calibrant._core.kernels.bins import MAX_CLUSTER_SLOTS
from calibrant._core.types import InputError, NonNegativeInt, OpenFraction, Range, check_arguments
from calibrant.metrics._differences import (
    AnyDifference,
    Difference,
    DifferenceEstimate,
    IndependentDifference,
    difference_row,
)
from calibrant.metrics._error_difference import (
    BinnedGaps,
    ErrorPrecision,
    distinctness,
    paired_precision,
    unpaired_precision,
)
from calibrant.metrics._intervals import Evidence, Sample, ScoreRange, student_quantile
from calibrant.metrics._jackknife import Jackknife
from calibrant.metrics._metric import ErrorBins, Metric, declared_metric
from calibrant.metrics._paired_scores import PairedScores, read_sums
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.folds import num_units

COMPARED_METRICS = "accuracy", "nll", "brier", "signed_gap", "ece", "adaptive_ece", "debiased_l2", "aurc"


@dataclass(frozen=True)
class Comparison:
    """The table of differences."""

    n: int
    level: float
    rows: tuple[Difference, ...]

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Difference:
        """Return the row of a metric."""
        return next(row for row in self.rows if row.name == name)

    def __str__(self) -> str:
        """Return a table with a line per metric: both values, the difference, its interval and p-value."""
        head = f"{self.n:,} examples; intervals of the difference at {self.level:g}"
        lines = (
            f"{r.name:<24}{r.first:>9.4f}{r.second:>9.4f}{r.difference:>+9.4f}  "
            f"[{r.low:+.4f}, {r.high:+.4f}]  p = {r.p_value:.3g}"
            for r in self.rows
        )
        return "\n".join([head, *lines])


@check_arguments
def compare(
    first: Predictions,
    second: Predictions,
    *,
    names: Sequence[str] = COMPARED_METRICS,
    level: OpenFraction = 0.90,
    groups: Annotated[int, Range(ge=2)] = 50,
    seed: NonNegativeInt = 0,
) -> Comparison:
    """Compare two models metric by metric, with the paired interval of the difference, second minus first.

    A metric that is a mean over examples (accuracy, nll, brier, signed_gap) has Student's interval for the mean of the
    paired differences. Two calibrators may differ much on the rare examples with an unlikely label only, which a sample
    may lack: Student's t alone then covers far too little. The interval is therefore at least as wide as the strict one
    of `mean_limits`, which adds an unseen example, or cluster. Its difference is the largest one that any example of
    the sample has with its observed, its most likely other or an arbitrary other label.

    Every other metric, `ece(bins=10)` and your own included, has the interval of the jackknife, which leaves out one
    random group at a time (Student's t with groups - 1 degrees of freedom). A bootstrap would inflate calibration
    errors: a repeated example agrees with itself. Clusters are left out as a whole. ECE and adaptive ECE have wider
    limits, which allow for the difference of their biases, uncertain signs and unseen errors. The difference of other
    biased metrics contains the difference of their biases.

    Kuiper's statistic, KS and smooth ECE are not compared by default: if one model is overconfident and the other one
    underconfident, by about what chance explains, the jackknife's interval is too narrow (docs/metrics_conventions.md).

    Args:
        first: Predictions of the first model.
        second: Predictions of the second model for the same examples in the same order.
        names: Metrics, by name or text.
        level: Probability that each interval holds the true difference.
        groups: Number of groups of the jackknife; with fewer examples or clusters, each one is a group.
        seed: Seed of the division into groups.

    Raises:
        InputError: If labels, weights, clusters or events differ, or the level is not in (0, 1).

    >>> z = np.tile([[0.0, 1.0], [0.0, -1.0]], (50, 1))
    >>> p = Predictions(z, np.tile([1, 0], 50))
    >>> compare(p, Predictions(2 * z, p.labels), names=["accuracy"])["accuracy"].difference
    0.0
    """
    with as_predictions(first):
        _check_same_examples(first, second)
        if num_units(first) < 2:
            # fractional outcomes make each example a cluster of its rows; to the user these are examples
            units = "examples" if first.shared_clusters is None else "clusters"
            raise InputError(f"Expected at least two {units}, which show how they vary, got one.", code="one_cluster")
        differences = ModelDifferences(first, second, groups=groups, seed=seed)
        rows = [difference_row(differences.estimate(method), level) for method in map(registry.METRICS.method, names)]
        return Comparison(first.num_examples, level, tuple(rows))


@dataclass(frozen=True, eq=False)
class ModelDifferences:
    """Two models, on the same examples or on two samples, and the differences of their metrics."""

    first: Predictions
    second: Predictions
    is_paired: bool = True
    groups: int = 50  # of the jackknife; with fewer examples or clusters, each one is a group
    seed: int = 0  # of the division into groups

    def estimate(self, method: registry.Method) -> AnyDifference:
        """Return the difference of a metric, second minus first.

        Of the same examples, a mean has the interval of the paired differences, and every other metric that of the
        jackknife. Of two samples, the interval is combined from those of the samples or, if the metric has none, from
        their jackknives.
        """
        metric, settings = declared_metric(method), method.settings
        is_mean = metric.per_example is not None and not settings  # scores per example are of the default settings
        if not self.is_paired and metric.has_interval and (is_mean or metric.per_example is None):
            return IndependentDifference(method.text, metric, settings, (self.first, self.second))
        if self.is_paired and is_mean:
            first, second = (float(metric(p)) for p in (self.first, self.second))
            return DifferenceEstimate(method.text, first, second, *read_sums(self._scores.sums(metric).tolist()))
        return self._jackknife_estimate(method, metric)

    def _jackknife_estimate(self, method: registry.Method, metric: Metric[...]) -> DifferenceEstimate:
        """Return the difference of a metric by the jackknife, which leaves out one group of units at a time."""

        def measure(view: Any) -> float:
            return float(metric(view, **method.settings))

        sides = self._jackknives
        first, second = (measure(side.predictions) for side in sides)
        parts = [np.array([*map(measure, _remainders(metric, side))]) for side in sides]
        parts = [parts[1] - parts[0]] if self.is_paired else parts  # of independent samples, the variances add up
        error = math.sqrt(sum((len(part) - 1) ** 2 / len(part) * float(part.var(ddof=1)) for part in parts))
        units = float(min(num_units(side.predictions) for side in sides))
        # the quantile of groups - 1 degrees of freedom, relative to that of the units
        error *= student_quantile(0.95, sides[0].groups - 1) / student_quantile(0.95, units - 1)
        unseen_range, bias = None, (0.0, 0.0)
        if metric.is_calibration_error and self.first.of != "classes" and self.first is not self.second:
            # an unseen example moves either error by up to one example, in opposite directions
            width = max(2 * self._distinctness, abs(second - first))
            unseen_range = ScoreRange(-width, width)
            if (bins := metric.error_bins and metric.error_bins(**method.settings)) is not None:
                precision = self._binned_precision(bins)
                error, bias = max(error, precision.error), precision.bias
        sample = Sample(units, second - first, error**2 * (units - 1), error, degrees=units - 1)
        return DifferenceEstimate(method.text, first, second, sample, unseen_range, bias)

    def _binned_precision(self, bins: ErrorBins) -> ErrorPrecision:
        """Return the precision of the difference of two mean absolute errors of bins."""
        first, second = (BinnedGaps.from_events(p.events, bins) for p in (self.first, self.second))
        return (
            paired_precision(first, second, self._distinctness) if self.is_paired else unpaired_precision(first, second)
        )

    @cached_property
    def _distinctness(self) -> float:
        """How distinct the confidences of the models are, 0 to 1."""
        return distinctness(self.first.events, self.second.events) if self.is_paired else 1.0

    @cached_property
    def _scores(self) -> PairedScores:
        return PairedScores(self.first, self.second)

    @cached_property
    def _jackknives(self) -> tuple[Jackknife, Jackknife]:
        """Both models with the groups of the jackknife, which are the same for the same examples."""
        first = _in_groups(self.first, self.groups, self.seed)
        second = replace(first, predictions=self.second) if self.is_paired else None
        return first, second or _in_groups(self.second, self.groups, self.seed)


def _in_groups(p: Predictions, groups: int, seed: int) -> Jackknife:
    """Divide the independent units of predictions, examples or clusters, into groups at random."""
    clusters = p.clusters
    unit = np.arange(len(p)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    size = int(unit.max()) + 1
    groups = min(groups, size, MAX_CLUSTER_SLOTS)  # sums of clusters are kept in so many sets at most
    order = np.random.default_rng(seed).permutation(size)
    return Jackknife(p, (np.arange(size) % groups)[order][unit], groups)


def _remainders(metric: Metric[...], side: Jackknife) -> Iterator[Any]:
    """Yield the input of the metric without one group at a time: the event's statistics, its rows or predictions."""
    if metric.takes == "statistics":
        return iter(side)  # computed from sums, without another pass over the rows
    source = side.events if metric.takes == "events" else side.predictions
    return (source[side.group != i] for i in range(side.groups))


def _check_same_examples(first: Predictions, second: Predictions) -> None:
    """Raise `InputError` unless labels, weights, clusters and events are the same."""
    if not np.array_equal(first.labels, second.labels):
        raise InputError(
            f"Expected the same examples in the same order, got {len(first)} and {len(second)} examples"
            + (" with different labels." if len(first) == len(second) else "."),
            code="different_examples",
        )
    for name in ("weights", "clusters"):
        a, b = getattr(first, name), getattr(second, name)
        if (a is None) != (b is None) or (a is not None and not np.array_equal(a, b)):
            raise InputError(f"Expected predictions with the same {name}.", code=f"different_{name}")
    if first.of != second.of:
        raise InputError(
            f"Expected predictions of the same event, got {first.of!r} and {second.of!r}.", code="different_events"
        )


def two_sample(first: Sequence[float], second: Sequence[float], *, equal_variance: bool = True) -> Evidence:
    """Run Student's two-sided t-test of a metric over seeds, second minus first (as in Wang et al. 2021, Table 2).

    Args:
        first: Value of the metric for each seed of one training method.
        second: Value of the metric for each seed of the other training method.
        equal_variance: False is Welch's test.

    Returns:
        The t statistic and its p-value.

    Raises:
        InputError: If either method has fewer than 2 values.

    >>> print(two_sample([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]))
    3.6742 (p = 0.0213)
    """
    from scipy.stats import ttest_ind  # slow to import

    if min(len(first), len(second)) < 2:
        raise InputError(
            f"Expected at least 2 values on each side of a t-test, got {len(first)} and {len(second)}.",
            code="few_values",
        )
    result: Any = ttest_ind(second, first, equal_var=equal_variance)
    return Evidence(float(result.statistic), float(result.pvalue))
