"""Comparison of two models on the same examples."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from calibrant import registry
from calibrant.backend.bins import MAX_CLUSTER_SLOTS
from calibrant.metrics._intervals import Sample, student_quantile
from calibrant.metrics._jackknife import Jackknife
from calibrant.metrics._metric import Metric
from calibrant.predictions import Predictions, as_predictions
from calibrant.types import InputError

COMPARED_METRICS = (
    *("accuracy", "nll", "brier", "signed_gap", "ece", "adaptive_ece", "debiased_l2", "kuiper", "smooth_ece", "aurc"),
)


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

    Means over examples (accuracy, nll, brier, signed_gap) have the interval of the paired differences by Student's t.
    Every other metric, `ece(bins=10)` and your own included, has that of the jackknife, which leaves out one random
    group at a time (Student's t with groups - 1 degrees of freedom). A bootstrap would inflate calibration errors: a
    repeated example agrees with itself. Clusters are left out as a whole. The difference of two biased metrics contains
    the difference of their biases.

    Args:
        first: Predictions of the first model.
        second: Predictions of the second model for the same examples in the same order.
        names: Metrics, by name or text.
        level: Probability that each interval holds the true difference.
        groups: Number of groups of the jackknife; of fewer examples or clusters, each is a group.
        seed: Seed of the division into groups.

    Raises:
        InputError: If labels, weights, clusters or events differ.

    >>> z = torch.tensor([[0.0, 1.0], [0.0, -1.0]]).repeat(50, 1)
    >>> p = Predictions(z, torch.tensor([1, 0]).repeat(50))
    >>> compare(p, Predictions(2 * z, p.labels), names=["accuracy"])["accuracy"].difference
    0.0
    """
    with as_predictions(first):
        _check_same_examples(first, second)
        n = len(first)
        unit = torch.arange(n) if first.clusters is None else first.clusters.unique(return_inverse=True)[1].cpu()
        num_units = int(unit.max()) + 1
        if groups < 2:
            raise InputError(f"Expected at least 2 groups, got {groups}.", code="num_groups")
        if num_units < 2:
            units = "examples" if first.clusters is None else "clusters"
            raise InputError(f"Expected at least two {units}, which show how they vary, got one.", code="one_cluster")
        groups = min(groups, num_units, MAX_CLUSTER_SLOTS)
        order = torch.randperm(num_units, generator=torch.Generator().manual_seed(seed))
        group = (torch.arange(num_units) % groups)[order][unit].to(first.labels.device)
        a, b = (Jackknife(p, group, groups) for p in (first, second))
        methods = [registry.METRICS.method(name) for name in names]
        return Comparison(n, level, tuple(_compare_metric(method, a, b, level) for method in methods))


def _compare_metric(method: registry.Method, first: Jackknife, second: Jackknife, level: float) -> Difference:
    metric, a, b = method.target, first.predictions, second.predictions
    assert isinstance(metric, Metric)
    if metric.per_example is not None and not method.settings:
        values = metric.values(a), metric.values(b)
        mean_a, mean_b = (Sample.from_values(v, a.weights).mean for v in values)
        pair = Sample.from_values(values[1] - values[0], a.weights, a.clusters)
        return _student_difference(method.text, mean_a, mean_b, pair.error, pair.degrees, level)

    def measured(view: Any) -> float:
        return float(metric(view, **method.settings))

    pairs = zip(_remainders(metric, first), _remainders(metric, second), strict=True)
    differences = torch.tensor([measured(q) - measured(p) for p, q in pairs], dtype=torch.float64)
    error = math.sqrt((first.groups - 1) ** 2 / first.groups * float(differences.var()))
    return _student_difference(method.text, measured(a), measured(b), error, float(first.groups - 1), level)


def _remainders(metric: Metric[...], side: Jackknife) -> Iterator[Any]:
    """Yield the statistics without one group at a time if the metric needs no more, or else the rows."""
    if metric.takes == "statistics":
        return iter(side)
    source = side.events if metric.takes == "events" else side.predictions
    return (source[side.group != i] for i in range(side.groups))


def _student_difference(name: str, a: float, b: float, error: float, degrees: float, level: float) -> Difference:
    half = student_quantile(level, degrees) * error
    low, high = (b - a - half, b - a + half) if math.isfinite(b - a + half) else (-math.inf, math.inf)
    return Difference(name, a, b, b - a, low, high, _student_p_value(b - a, error, degrees))


def _student_p_value(value: float, error: float, degrees: float) -> float:
    if not math.isfinite(value):
        return math.nan
    if error == 0 or math.isnan(error):
        return float(value == 0)
    if math.isinf(error):
        return 1.0
    from scipy.special import stdtr  # slow to import

    return 2 * float(stdtr(degrees, -abs(value) / error))


def paired_difference(name: str, first: float, second: float, sums: Sequence[float], level: float = 0.90) -> Difference:
    """Compute the paired difference of two means from sums that add up over batches.

    Args:
        name: Name of the metric.
        first: The mean of the first model.
        second: The mean of the second model.
        sums: Number of clusters, and sums over the clusters of n, s, n^2, n s, s^2, with n their weight and s their
            sum of differences. Of independent examples with weight w and difference d the sums of w, w, w d, w, w d,
            w d^2: an integer weight counts as so many examples.
        level: Probability that the interval holds the true difference.
    """
    clusters, n, s, n_square, product, s_square = sums
    if clusters < 2:
        return _student_difference(name, first, second, math.inf, 0.0, level)
    mean = s / n
    square = max(s_square - 2 * mean * product + mean**2 * n_square, 0.0) / n**2
    error = math.sqrt(square * clusters / (clusters - 1))
    return _student_difference(name, first, second, error, n**2 / n_square - 1, level)


def _check_same_examples(first: Predictions, second: Predictions) -> None:
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
