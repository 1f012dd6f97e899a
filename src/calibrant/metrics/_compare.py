"""Comparison of two models on the same examples, and of two training methods over seeds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant import registry
from calibrant._validation import check_level
from calibrant.backend.bins import MAX_CLUSTER_SLOTS
from calibrant.metrics._intervals import Evidence, Interval, Sample, ScoreRange
from calibrant.metrics._jackknife import Jackknife
from calibrant.metrics._metric import Metric, declared_metric
from calibrant.predictions import Predictions, as_predictions
from calibrant.types import InputError

COMPARED_METRICS = "accuracy", "nll", "brier", "signed_gap", "ece", "adaptive_ece", "debiased_l2", "aurc"


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


def compare(
    first: Predictions,
    second: Predictions,
    *,
    names: Sequence[str] = COMPARED_METRICS,
    level: float = 0.90,
    groups: int = 50,
    seed: int = 0,
) -> Comparison:
    """Compare two models metric by metric, with the paired interval of the difference, second minus first.

    A metric that is a mean over examples (accuracy, nll, brier, signed_gap) has Student's interval for the mean of the
    paired differences. Two calibrators may differ much on the rare examples with an unlikely label only, which a sample
    may lack: Student's t alone then covers far too little. The interval is therefore at least as wide as that of
    `mean_limits`, which adds one unseen example. Its difference is as large as the differences of the examples with
    their observed or most likely other labels (root mean square).

    Every other metric, `ece(bins=10)` and your own included, has the interval of the jackknife, which leaves out one
    random group at a time (Student's t with groups - 1 degrees of freedom). A bootstrap would inflate calibration
    errors: a repeated example agrees with itself. Clusters are left out as a whole. The difference of two biased
    metrics contains the difference of their biases.

    Kuiper's statistic, KS and smooth ECE are not compared by default: if one model is overconfident and the other one
    underconfident, by about what chance explains, the jackknife's interval is too narrow (docs/metrics.md).

    Args:
        first: Predictions of the first model.
        second: Predictions of the second model for the same examples in the same order.
        names: Metrics, by name or text.
        level: Probability that each interval holds the true difference.
        groups: Number of groups of the jackknife; with fewer examples or clusters, each one is a group.
        seed: Seed of the division into groups.

    Raises:
        InputError: If labels, weights, clusters or events differ, or the level is not in (0, 1).

    >>> z = torch.tensor([[0.0, 1.0], [0.0, -1.0]]).repeat(50, 1)
    >>> p = Predictions(z, torch.tensor([1, 0]).repeat(50))
    >>> compare(p, Predictions(2 * z, p.labels), names=["accuracy"])["accuracy"].difference
    0.0
    """
    check_level(level)
    with as_predictions(first):
        _check_same_examples(first, second)
        clusters = first.clusters
        # the independent unit, example or cluster, that each row belongs to
        unit = torch.arange(len(first)) if clusters is None else clusters.unique(return_inverse=True)[1].cpu()
        num_units = int(unit.max()) + 1
        if groups < 2:
            raise InputError(f"Expected at least 2 groups, got {groups}.", code="num_groups")
        if num_units < 2:
            # fractional outcomes make each example a cluster of its rows; to the user these are examples
            units = "examples" if first.shared_clusters is None else "clusters"
            raise InputError(f"Expected at least two {units}, which show how they vary, got one.", code="one_cluster")
        groups = min(groups, num_units, MAX_CLUSTER_SLOTS)  # sums of clusters are kept in so many sets at most
        order = torch.randperm(num_units, generator=torch.Generator().manual_seed(seed))
        group = (torch.arange(num_units) % groups)[order][unit].to(first.labels.device)  # of each example
        a, b = (Jackknife(p, group, groups) for p in (first, second))
        methods, scores = map(registry.METRICS.method, names), PairedScores(first, second)
        return Comparison(
            first.num_examples, level, tuple(_compare_metric(method, scores, a, b, level) for method in methods)
        )


def _compare_metric(
    method: registry.Method, scores: "PairedScores", first: Jackknife, second: Jackknife, level: float
) -> Difference:
    """Return the difference in one metric, by pairs of examples if it is a mean, otherwise by the jackknife.

    Args:
        method: The metric with its settings.
        scores: Both models, for the scores of each example.
        first: Groups of the first model's examples, for the jackknife.
        second: The same groups of the second model.
        level: Probability that the interval holds the true difference.
    """
    metric, a, b = declared_metric(method), first.predictions, second.predictions
    if metric.per_example is not None and not method.settings:  # scores per example are of the default settings
        low, value, high = scores.values(metric)  # smallest, observed and largest difference of each example's scores
        pair = Sample.from_values(value, a.weights, a.clusters, a.examples)
        extremes = low.clamp_max(0), high.clamp_min(0)
        unseen_range = _range_from_squares(*(Sample.from_values(x.square(), a.weights).mean for x in extremes))
        mean_a, mean_b = (Sample.from_values(metric.values(p), a.weights).mean for p in (a, b))
        return _mean_difference(method.text, mean_a, mean_b, pair, unseen_range, level)

    def measure(view: Any) -> float:
        return float(metric(view, **method.settings))

    remainders = zip(_remainders(metric, first), _remainders(metric, second), strict=True)
    differences = torch.tensor([measure(q) - measure(p) for p, q in remainders], dtype=torch.float64)
    value_a, value_b, groups = measure(a), measure(b), float(first.groups)
    error = math.sqrt((groups - 1) ** 2 / groups * float(differences.var()))  # standard error of the jackknife
    # as if the difference were a mean over the groups, whose error is the root of variance / (groups - 1)
    pair = Sample(groups, value_b - value_a, error**2 * (groups - 1), error, degrees=groups - 1)
    return _mean_difference(method.text, value_a, value_b, pair, unseen_range=None, level=level)


@dataclass(frozen=True, eq=False)
class PairedScores:
    """Scores of two models on the same examples, for their labels and for the most likely other ones."""

    first: Predictions
    second: Predictions

    def values(self, metric: Metric[...]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the smallest, the observed and the largest difference of every example's score, second minus first.

        The extremes are over two labels, the observed and the most likely other one. If the range of the score is
        known, such as 0 to 1 for a correct prediction, they are the extremes over any labels and models.
        """
        if self.first is self.second:  # a model does not differ from itself, whatever the labels
            zero = torch.zeros(len(self.first), dtype=torch.float64, device=self.first.labels.device)
            return zero, zero, zero
        if isinstance(metric.score_range, ScoreRange):
            difference = metric.values(self.second).double() - metric.values(self.first)
            width = torch.full_like(difference, metric.score_range.high - metric.score_range.low)
            return -width, difference, width
        return _extremes([metric.values(b).double() - metric.values(a) for a, b in self._relabeled])

    def sums(self, metric: Metric[...]) -> Tensor:
        """Return the sums (9) from which `paired_difference` computes an interval, and which add up over batches.

        A cluster has the weight n and the sum of differences s; independent examples of weight w count as w clusters.

        1. The number of clusters.
        2. to 6. Sums over clusters of n, s, n^2, n s and s^2.
        7. to 9. Sums over examples of squares: of the difference, of the smallest difference if it is below 0, and of
           the largest difference if it is above 0.
        """
        low, value, high = self.values(metric)
        w = torch.ones_like(value) if self.first.weights is None else self.first.weights
        if self.first.clusters is None:
            terms = [w, w, w * value, w, w * value, w * value.square()]
        else:
            n, s = (torch.bincount(self.first.clusters, v) for v in (w, w * value))
            terms = [n > 0, n, s, n.square(), n * s, s.square()]
        ends = (w * end.square() for end in (low.clamp_max(0), high.clamp_min(0)))
        return torch.stack([term.double().sum() for term in (*terms, w * value.square(), *ends)])

    @cached_property
    def _relabeled(self) -> list[tuple[Predictions, Predictions]]:
        """Both models with the observed labels, and both with the most likely other ones."""
        first, second = self.first, self.second
        labels = _other_labels(first, second)
        return [(first, second), (first.with_labels(labels), second.with_labels(labels))]


def score_values(metric: Metric[...], p: Predictions) -> tuple[Tensor, Tensor, Tensor]:
    """Return the smallest, the observed and the largest score of each example of one model.

    The extremes are over two labels, the observed and the most likely other one, or the ends of the score's range if it
    is known.
    """
    if isinstance(metric.score_range, ScoreRange):
        value = metric.values(p).double()
        return torch.full_like(value, metric.score_range.low), value, torch.full_like(value, metric.score_range.high)
    return _extremes([metric.values(x).double() for x in (p, p.with_labels(_other_labels(p, p)))])


def _extremes(values: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return the smallest, first and largest of several values per example, ignoring infinite later values."""
    value = low = high = values[0]
    for relabeled in values[1:]:
        finite = relabeled.where(relabeled.isfinite(), value)  # infinite if a model gives the label the probability 0
        low, high = torch.minimum(low, finite), torch.maximum(high, finite)
    return low, value, high


def _other_labels(first: Predictions, second: Predictions) -> Tensor:
    """Return for each example the class other than its label that the models find most likely.

    If they evaluate the event of one class, it is that class for all examples with another label.
    """
    y, a, b = first.labels, first.predicted, second.predicted
    # If the models suggest two classes, take the one of lower index: the order of the models must not matter
    runner_up = torch.minimum(first.runner_up, second.runner_up)
    # A model suggests its prediction if that is not the label, otherwise the other model's; if both are right, the
    # second most likely class
    alternative = torch.minimum(a.where(a != y, b), b.where(b != y, a))
    alternative = runner_up.where((a == y) & (b == y), alternative)
    return alternative.where(y == first.of, first.of) if isinstance(first.of, int) else alternative


def _remainders(metric: Metric[...], side: Jackknife) -> Iterator[Any]:
    """Yield the input of the metric without one group at a time: the event's statistics, its rows or predictions."""
    if metric.takes == "statistics":
        return iter(side)  # computed from sums, without another pass over the rows
    source = side.events if metric.takes == "events" else side.predictions
    return (source[side.group != i] for i in range(side.groups))


def _mean_difference(
    name: str, a: float, b: float, pair: Sample, unseen_range: ScoreRange | None, level: float
) -> Difference:
    """Return the difference of means by Student's t or, if that is wider, by `mean_limits`.

    Args:
        name: Name of the metric.
        a: Mean of the first model.
        b: Mean of the second model.
        pair: The difference of both and its precision.
        unseen_range: Range of the difference of an unseen example; None leaves `mean_limits` out.
        level: Probability that the interval holds the true difference.
    """
    if not math.isfinite(b - a):  # such as an infinite NLL, if a model gives a label the probability 0
        return Difference(name, a, b, b - a, -math.inf, math.inf, math.nan)
    interval = _allow_for_skewness(pair).normal_interval(level)
    if unseen_range is not None and pair.degrees > 0:  # without degrees, the interval is infinite already
        bounded = pair.bounded_interval(unseen_range, level)
        interval = Interval(b - a, min(interval.low, bounded.low), max(interval.high, bounded.high), level)
    return Difference(name, a, b, b - a, interval.low, interval.high, _p_value(pair, unseen_range))


def _p_value(pair: Sample, unseen_range: ScoreRange | None) -> float:
    """Return the p-value of no difference: the larger one of Student's t and `mean_limits` (see `_mean_difference`)."""
    p_value = _allow_for_skewness(pair).normal_p_value()
    return p_value if unseen_range is None else max(p_value, pair.bounded_p_value(unseen_range))


def _allow_for_skewness(pair: Sample) -> Sample:
    """Enlarge the standard error by a share of 1 / n, n the number of independent examples or clusters.

    Skewness costs Student's t a coverage of order 1 / n (Hall 1992).
    """
    return replace(pair, error=pair.error * (1 + 1 / (pair.degrees + 1)))


def paired_difference(name: str, first: float, second: float, sums: Sequence[float], level: float = 0.90) -> Difference:
    """Return the paired difference of two means with its interval and p-value, from sums that add up over batches.

    Args:
        name: Name of the metric.
        first: The mean of the first model.
        second: The mean of the second model.
        sums: The sums of `PairedScores.sums`.
        level: Probability that the interval holds the true difference.
    """
    return _mean_difference(name, first, second, *_read_sums(sums), level)


def paired_p_value(sums: Sequence[float]) -> float:
    """Compute only the p-value of `paired_difference`, from the sums of `PairedScores.sums`, which is faster."""
    return _p_value(*_read_sums(sums))


def _read_sums(sums: Sequence[float]) -> tuple[Sample, ScoreRange]:
    """Return the mean difference with its precision, and its range, from the sums of `PairedScores.sums`."""
    # for clusters of weight n and summed difference s, n_s is the sum of n * s, and so on
    num_clusters, n, s, n_n, n_s, s_s, square, low_square, high_square = sums
    mean = s / n
    variance = max(square / n - mean**2, 0.0)
    pair = Sample(n, mean, variance, error=math.inf, degrees=0.0)  # a single cluster does not show its precision
    if num_clusters >= 2:
        mean_variance = max(s_s - 2 * mean * n_s + mean**2 * n_n, 0.0) / n**2  # sum of (s - mean n)^2 over clusters
        error = math.sqrt(mean_variance * num_clusters / (num_clusters - 1))
        # n^2 / n_n clusters of equal weight would be as precise (Kish 1965)
        pair = replace(pair, error=error, degrees=n**2 / n_n - 1)
    return pair, _range_from_squares(low_square / n, high_square / n)


def _range_from_squares(low: float, high: float) -> ScoreRange:
    """Return the range of an unseen example's difference, from mean squares of each example's extreme differences.

    The fewer examples make up a given mean difference, the larger is the root mean square, and the more may an unseen
    example change the mean.

    Args:
        low: Mean square of the smallest differences, as far as they are below 0.
        high: Mean square of the largest differences, as far as they are above 0.
    """
    return ScoreRange(-math.sqrt(low), math.sqrt(high))


def _check_same_examples(first: Predictions, second: Predictions) -> None:
    """Raise `InputError` unless labels, weights, clusters and events are the same."""
    if not torch.equal(first.labels, second.labels):
        raise InputError(
            f"Expected the same examples in the same order, got {len(first)} and {len(second)} examples"
            + (" with different labels." if len(first) == len(second) else "."),
            code="different_examples",
        )
    for name in ("weights", "clusters"):
        a, b = getattr(first, name), getattr(second, name)
        if (a is None) != (b is None) or (a is not None and not torch.equal(a, b)):
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
