"""Two models on the same examples: is the difference real?"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant import catalog
from calibrant._bins import Bins, Events, judge
from calibrant._types import InputError
from calibrant.metrics._cumulative import ks_of, kuiper_of
from calibrant.metrics._moments import Moments, norm_of
from calibrant.metrics._ranking import aurc_of
from calibrant.metrics._results import mean_interval, quantile
from calibrant.metrics._smooth import smooth_ece_of
from calibrant.predictions import Predictions

NAMES = ("accuracy", "nll", "brier", "signed_gap", "ece", "adaptive_ece", "debiased_l2", "kuiper", "smooth_ece", "aurc")

_OF_EVENTS: dict[str, Callable[[Events], Tensor]] = {
    "ece": lambda events: Moments.of(events, 15).error(1.0),
    "adaptive_ece": lambda events: _adaptive(events),
    "debiased_l2": lambda events: events.confidence.new_tensor(_signed_root(Moments.of(events, 15).squared(0.9).value)),
    "kuiper": lambda events: kuiper_of(events.ties),
    "ks": lambda events: ks_of(events.ties),
    "smooth_ece": lambda events: smooth_ece_of(events.ties),
    "aurc": lambda events: aurc_of(events.ties),
}


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
    names: Sequence[str] = NAMES,
    level: float = 0.90,
    groups: int = 50,
    seed: int = 0,
) -> Comparison:
    """Second model minus first, metric by metric, with the paired interval of the difference.

    Both must have predicted the same examples in the same order, which keeps what is hard about an example out of the
    difference. Means over examples (accuracy, nll, brier, signed_gap) have the normal interval of the paired
    differences; every other metric, `ece(bins=10)` and dotted names included, that of the jackknife which leaves out
    one of `groups` random groups at a time (Student's t with groups - 1 degrees of freedom). A resample with
    repetitions would inflate what is measured: a repeated example agrees with itself. The difference of two biased
    metrics has the difference of their biases in it.

    Raises `InputError` where labels or weights differ.

    >>> z = torch.tensor([[0.0, 1.0], [0.0, -1.0]]).repeat(50, 1)
    >>> p = Predictions(z, torch.tensor([1, 0]).repeat(50))
    >>> compare(p, Predictions(2 * z, p.labels), names=["accuracy"])["accuracy"].difference
    0.0
    """
    _same_examples(first, second)
    n, w = len(first), first.weights
    if not 2 <= groups <= n:
        raise InputError(f"groups must lie in [2, {n}], the number of examples, got {groups}")
    each = [judge(p.logits, p.labels) for p in (first, second)]
    per_example = [
        {"accuracy": j.correct, "nll": -j.log_likelihood, "brier": j.brier, "signed_gap": j.confidence - j.correct}
        for j in each
    ]
    fold = torch.arange(n) % groups
    fold = fold[torch.randperm(n, generator=torch.Generator().manual_seed(seed))].to(first.labels.device)

    def measured(name: str, which: int, keep: Tensor | None) -> float:
        if name in _OF_EVENTS:
            c, a = each[which].confidence, each[which].correct
            kept = (c, a, w) if keep is None else (c[keep], a[keep], None if w is None else w[keep])
            return float(_OF_EVENTS[name](Events(*kept)))
        p = (first, second)[which] if keep is None else (first, second)[which][keep]
        return float(_resolve(name)(p.logits, p.labels, weights=p.weights))

    rows: list[Difference] = []
    for name in names:
        if name in per_example[0]:
            values = [part[name] for part in per_example]
            pair = mean_interval(values[1] - values[0], w, level)
            a, b = (mean_interval(v, w, level).value for v in values)
            error = (pair.high - pair.value) / quantile(level)
            rows.append(Difference(name, a, b, pair.value, pair.low, pair.high, _normal_p(pair.value, error)))
            continue
        a, b = measured(name, 0, None), measured(name, 1, None)
        left = torch.tensor([measured(name, 1, fold != i) - measured(name, 0, fold != i) for i in range(groups)])
        error = math.sqrt((groups - 1) ** 2 / groups * float(left.double().var()))
        rows.append(_student(name, a, b, error, groups - 1, level))
    return Comparison(n, level, tuple(rows))


def _student(name: str, a: float, b: float, error: float, degrees: int, level: float) -> Difference:
    from scipy.stats import t  # slow to import

    half = float(t.ppf((1 + level) / 2, degrees)) * error
    p = 2 * float(t.sf(abs(b - a) / error, degrees)) if error > 0 else float(a == b)
    return Difference(name, a, b, b - a, b - a - half, b - a + half, p)


def _normal_p(value: float, error: float) -> float:
    if error == 0 or math.isnan(error):
        return float(value == 0)
    return math.erfc(abs(value) / error / math.sqrt(2))


def _adaptive(events: Events) -> Tensor:
    table = Bins.equal_mass_of(15, events.ties)
    return norm_of(table.weight, table.gap, 1.0)


def _signed_root(value: float) -> float:
    return math.copysign(math.sqrt(abs(value)), value)


def _resolve(name: str) -> Callable[..., Tensor]:
    from calibrant import metrics

    return catalog.resolve(name, metrics)


def _same_examples(first: Predictions, second: Predictions) -> None:
    if len(first) != len(second) or not bool((first.labels == second.labels).all()):
        raise InputError(
            f"can only compare predictions of the same examples in the same order, got {len(first)} and {len(second)}"
            + (" with different labels" if len(first) == len(second) else "")
        )
    a, b = first.weights, second.weights
    if (a is None) != (b is None) or (a is not None and b is not None and not bool((a == b).all())):
        raise InputError("can only compare predictions with the same weights")
