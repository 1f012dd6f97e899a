"""Two models on the same examples: is the difference real?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from calibrant import registry
from calibrant.metrics._intervals import Sample, student_quantile
from calibrant.metrics._jackknife import Jackknife
from calibrant.metrics._metric import Metric
from calibrant.predictions import Predictions, as_predictions
from calibrant.types import InputError

COMPARED_METRICS = (
    "accuracy",
    "nll",
    "brier",
    "signed_gap",
    "ece",
    "adaptive_ece",
    "debiased_l2",
    "kuiper",
    "smooth_ece",
    "aurc",
)


@dataclass(frozen=True)
class Difference:
    """One metric of two models on the same examples: second minus first."""

    name: str
    first: float
    second: float
    difference: float
    low: float
    high: float
    p_value: float  # chance of as large a difference between models that do not differ in this metric


@dataclass(frozen=True)
class Comparison:
    """The table of differences."""

    n: int
    level: float
    rows: tuple[Difference, ...]

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.rows)

    def __getitem__(self, name: str) -> Difference:
        """The row of that name."""
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
    """Second model minus first, metric by metric, with the paired interval of the difference.

    Both must have predicted the same examples in the same order, which keeps what is hard about an example out of the
    difference. Means over examples (accuracy, nll, brier, signed_gap) have the normal interval of the paired
    differences; every other metric, `ece(bins=10)` and one's own included, that of the jackknife which leaves out
    one of `groups` random groups at a time (Student's t with groups - 1 degrees of freedom). A resample with
    repetitions would inflate what is measured: a repeated example agrees with itself. Clusters are left out as a whole,
    and the interval of a mean is then theirs, with Student's t. The difference of two biased
    metrics has the difference of their biases in it.

    Raises `InputError` where labels, weights, clusters or what is judged differ.

    >>> z = torch.tensor([[0.0, 1.0], [0.0, -1.0]]).repeat(50, 1)
    >>> p = Predictions(z, torch.tensor([1, 0]).repeat(50))
    >>> compare(p, Predictions(2 * z, p.labels), names=["accuracy"])["accuracy"].difference
    0.0
    """
    with as_predictions(first):
        _check_same_examples(first, second)
        n = len(first)
        unit, num_units = (None, n) if first.clusters is None else _factorize(first.clusters)
        if not 2 <= groups <= n:
            raise InputError(f"groups must lie in [2, {n}], the number of examples, got {groups}", code="num_groups")
        if num_units < 2:
            raise InputError(
                "all examples are of one cluster: what differs by chance between clusters cannot be told",
                code="one_cluster",
            )
        groups = min(groups, num_units)
        methods = [registry.METRICS.method(name) for name in names]
        fold = torch.arange(num_units) % groups
        fold = fold[torch.randperm(num_units, generator=torch.Generator().manual_seed(seed))].to(first.labels.device)
        fold = fold if unit is None else fold[unit]
        return Comparison(n, level, tuple(_compare_metric(m, first, second, fold, groups, level) for m in methods))


def _compare_metric(
    method: registry.Method, first: Predictions, second: Predictions, fold: torch.Tensor, groups: int, level: float
) -> Difference:
    metric = method.target
    assert isinstance(metric, Metric)
    a, b = metric.view(first), metric.view(second)
    if metric.per_example is not None and not method.settings:
        values = [metric.per_example(view) for view in (a, b)]
        first_mean, second_mean = (Sample.from_values(v, first.weights).mean for v in values)
        pair = Sample.from_values(values[1] - values[0], first.weights, first.clusters)
        return _student_difference(method.text, first_mean, second_mean, pair.error, pair.degrees, level)

    def measured(view: Any) -> float:
        return float(metric.compute_from_view(view, **method.settings))

    pairs = zip(
        _leave_one_group_out(metric, a, fold, groups), _leave_one_group_out(metric, b, fold, groups), strict=True
    )
    differences = [measured(q) - measured(p) for p, q in pairs]
    error = math.sqrt((groups - 1) ** 2 / groups * float(torch.tensor(differences, dtype=torch.float64).var()))
    return _student_difference(method.text, measured(a), measured(b), error, float(groups - 1), level)


def _leave_one_group_out(metric: Metric[...], view: Any, fold: torch.Tensor, groups: int) -> Iterator[Any]:
    """Views of what is left without one group at a time: from sums if that is all the metric needs, else its rows."""
    if metric.accepts_sums:
        jackknife = view.__dict__.setdefault("_jackknife", Jackknife(view, fold, groups))
        return (jackknife.leave_out(i) for i in range(groups))
    return (view[fold != i] for i in range(groups))


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


def difference_of_means(
    name: str, first: float, second: float, sums: Sequence[float], level: float = 0.90
) -> Difference:
    """A paired difference of means from sums over the examples: w, w d, w d^2 of their differences d."""
    n, wd, wd2 = sums
    mean = wd / n
    error = math.sqrt(max(wd2 - n * mean**2, 0.0) / (n * (n - 1))) if n > 1 else math.inf
    return _student_difference(name, first, second, error, n - 1, level)


def difference_of_cluster_means(
    name: str, first: float, second: float, sums: Sequence[float], level: float = 0.90
) -> Difference:
    """The same of examples that depend on each other within clusters.

    From sums over the clusters: 1, n, s, n^2, n s, s^2 of their masses n and sums s of differences.
    """
    clusters, n, s, n_square, product, s_square = sums
    mean, degrees = s / n, n**2 / n_square - 1
    if clusters < 2:
        return Difference(name, first, second, mean, -math.inf, math.inf, 1.0)
    square = max(s_square - 2 * mean * product + mean**2 * n_square, 0.0) / n**2
    error = math.sqrt(square * clusters / (clusters - 1))
    half = student_quantile(level, degrees) * error
    return Difference(name, first, second, mean, mean - half, mean + half, _student_p_value(mean, error, degrees))


def _factorize(clusters: torch.Tensor) -> tuple[torch.Tensor, int]:
    kinds, unit = clusters.unique(return_inverse=True)
    return unit, len(kinds)


def _check_same_examples(first: Predictions, second: Predictions) -> None:
    if len(first) != len(second) or not bool((first.labels == second.labels).all()):
        raise InputError(
            f"can only compare predictions of the same examples in the same order, got {len(first)} and {len(second)}"
            + (" with different labels" if len(first) == len(second) else ""),
            code="different_examples",
        )
    a, b = first.weights, second.weights
    if (a is None) != (b is None) or (a is not None and b is not None and not bool((a == b).all())):
        raise InputError("can only compare predictions with the same weights", code="different_weights")
    a, b = first.clusters, second.clusters
    if (a is None) != (b is None) or (a is not None and b is not None and not bool((a == b).all())):
        raise InputError("can only compare predictions with the same clusters", code="different_clusters")
    if first.of != second.of:
        raise InputError(
            f"can only compare what is judged of the same event, got {first.of!r} and {second.of!r}",
            code="different_events",
        )
