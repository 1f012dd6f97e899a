"""Decision curves: the net benefit of acting from a threshold on, with intervals and simultaneous bands."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from calibrant._core.kernels.bins import allow_rounding, merge_examples
from calibrant._core.numbers import format_level, format_number
from calibrant._core.types import InputError, OpenFraction, check_arguments
from calibrant.metrics import Sample, ScoreRange, compare, mean_limits
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.events import evaluated_event
from calibrant.predictions.validation.arrays import to_column
from calibrant.reports import Cell, Document, Reportable, Section, Table

DEFAULT_THRESHOLDS = tuple(i / 100 for i in range(1, 100))
NUM_DEVIATE_DRAWS = 5_000  # of the largest of t normal deviates
MAX_CURVE_ROWS = 12


@dataclass(frozen=True, eq=False)
class BenefitDifference:
    """Net benefit of the model minus that of another policy, at every threshold."""

    value: np.ndarray  # (t)
    low: np.ndarray  # (t) limits at every threshold by itself
    high: np.ndarray  # (t)
    band_low: np.ndarray  # (t) limits at all thresholds simultaneously
    band_high: np.ndarray  # (t)


@dataclass(frozen=True, eq=False)
class NetBenefit(Reportable):
    """Net benefit per example of acting at or above each threshold, in units of a true positive.

    Acting on none has the net benefit 0, so that `low`, `high` and the band are also those of the difference to it.
    """

    threshold: np.ndarray  # (t)
    model: np.ndarray  # (t)
    low: np.ndarray  # (t) limits at every threshold by itself
    high: np.ndarray  # (t)
    band_low: np.ndarray  # (t) limits at all thresholds simultaneously
    band_high: np.ndarray  # (t)
    treat_all: np.ndarray  # (t) net benefit of acting on all examples
    over_all: BenefitDifference  # model minus acting on all
    over_second: BenefitDifference | None  # model minus the second model
    prevalence: float  # to which the net benefit applies
    is_standardized: bool  # divided by the prevalence: 1 is the net benefit of a perfect model
    level: float
    event: str  # whose probability is compared with the thresholds, such as "the class is “sick”"

    @property
    def useful(self) -> np.ndarray:
        """Whether the model is better than acting on all and on none (t), for all thresholds at once, at the level."""
        return (self.band_low > 0) & (self.over_all.band_low > 0)

    def document(self) -> Document:
        """Return where the model is better than acting on all and on none, and a table of at most 12 thresholds."""
        policies = [("model", self), ("model - act on all", self.over_all)]
        policies += [("model - second model", self.over_second)] if self.over_second is not None else []
        order = self.threshold.argsort()
        table_rows = order[np.round(np.linspace(0, len(order) - 1, min(len(order), MAX_CURVE_ROWS))).astype(np.int64)]
        rows = list[list[str | Cell]]()
        for i in table_rows.tolist():
            row: list[str | Cell] = [f"{float(self.threshold[i]):g}", format_number(float(self.treat_all[i]), 4)]
            for _, policy in policies:
                value = policy.model if isinstance(policy, NetBenefit) else policy.value
                limits = (format_number(float(x[i]), 4) for x in (policy.band_low, policy.band_high))
                row.append(Cell(format_number(float(value[i]), 4), f"({' to '.join(limits)})"))
            rows.append(row)
        unit = "as a share of the net benefit of a perfect model" if self.is_standardized else "per example, in events"
        note = (
            f"Net benefit {unit}, at a prevalence of {format_number(self.prevalence, 3)}. In parentheses: "
            f"{format_level(self.level)} bands, each of which holds at all {len(order)} thresholds simultaneously."
        )
        table = Table("Net benefit", ["threshold", "act on all", *(name for name, _ in policies)], rows, note=note)
        return Document(kind="Net benefit", title=self._title(), sections=[Section("Net benefit", [table])])

    def _title(self) -> str:
        useful = np.sort(self.threshold[self.useful]).tolist()
        if not useful:
            return "At no threshold is the model shown to be better than acting on all and on none."
        return (
            f"The model is better than acting on all and on none at {len(useful)} of {len(self.threshold)} thresholds, "
            f"from {useful[0]:g} to {useful[-1]:g}."
        )

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as builtin types."""

        def builtin(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: builtin(part) for name, part in value.items()}  # pyright: ignore[reportUnknownVariableType]
            return value.tolist() if isinstance(value, np.ndarray) else value

        return builtin(asdict(self))


@check_arguments
def net_benefit(
    predictions: Predictions,
    second: Predictions | None = None,
    *,
    thresholds: Any = DEFAULT_THRESHOLDS,
    of: str | int | None = None,
    level: OpenFraction = 0.90,
    prevalence: OpenFraction | None = None,
    standardized: bool = False,
) -> NetBenefit:
    r"""Return the net benefit, $TP / n - FP / n \cdot t / (1 - t)$, at every threshold t (Vickers & Elkin 2006).

    The threshold is the probability at which acting and waiting are worth the same: at .1, a false alarm costs a ninth
    of what a true positive gains.

    At another prevalence $\pi$ the net benefit is $\pi\,Se - (1 - \pi)(1 - Sp) \cdot t / (1 - t)$ with the sensitivity
    and the specificity of the data (Vickers & Elkin 2006; Pauker & Kassirer 1975). This suits case-control data, if the
    probabilities are those for the prevalence $\pi$. The standardized net benefit is divided by the prevalence (Kerr et
    al. 2016), whose own error counts unless it is given.

    Every threshold has an interval of its own. A band holds at all thresholds simultaneously: its limits are those of
    intervals of a higher level, $2 \Phi(q) - 1$. Here q is the quantile at `level` of the largest of t normal deviates
    with the correlations of the net benefits (the max-t method of Hothorn et al. 2008). Differences are paired.

    Args:
        predictions: Labeled predictions.
        second: Predictions of a second model for the same examples.
        thresholds: Thresholds in (0, 1), (t), or one.
        of: Event; by default the positive one of two classes, or that the predicted class is right.
        level: Level of the interval at each threshold, and of each band.
        prevalence: Share of the event where the model will be used. Default: that of the data.
        standardized: Whether to divide by the prevalence.

    Raises:
        InputError: If a threshold is not in (0, 1), the examples of two models differ, or, with `prevalence` or
            `standardized`, all examples have the same outcome.

    >>> p = Predictions.from_probs([0.9, 0.2], [1, 0])
    >>> net_benefit(p, thresholds=[0.5, 0.1]).model
    array([0.5       , 0.44444444])
    >>> net_benefit(p, thresholds=[0.5], standardized=True).model  # no model is better
    array([1.])
    """
    cuts = to_column(thresholds, "thresholds").astype(float)
    if cuts.ndim != 1 or not len(cuts) or not bool(((cuts > 0) & (cuts < 1)).all()):
        raise InputError("Expected thresholds in (0, 1). Try [0.1, 0.2, 0.5].", code="threshold_range")
    with as_predictions(predictions) as predicted:
        p = predicted.with_default_event(of)
        models = [p] if second is None else [p, second.with_default_event(p.of)]
        if len(models) > 1:
            compare(*models, names=[], groups=2)  # refuses different examples
        columns = np.stack([p.events.outcome, *(model.events.confidence for model in models)])
        weights, clusters = p.weights, p.clusters
        if p.examples is not None:
            columns, weights, clusters = merge_examples(columns, weights, clusters, p.examples)
        event = evaluated_event(p).title
    outcome, *confidences = columns
    data = _CellData.from_scores(
        outcome,
        confidences,
        np.sort(allow_rounding(cuts)),
        weights=np.ones_like(outcome) if weights is None else weights,
        clusters=clusters,
    )
    if (prevalence is not None or standardized) and not 0 < data.prevalence < 1:
        raise InputError(
            "Expected examples with and without the event, got one kind alone. Try neither prevalence nor "
            "standardized.",
            code="one_outcome",
        )
    acts = [cells[:, None] > np.argsort(np.argsort(cuts, kind="stable")) for cells in data.cells.astype(int).T]
    settings: dict[str, Any] = {"odds": cuts / (1 - cuts), "prevalence": prevalence, "is_standardized": standardized}
    everyone = np.ones_like(acts[0])

    def difference(act: np.ndarray, act_range: tuple[int, int]) -> BenefitDifference:
        return BenefitDifference(*_benefit_limits(data, act, act_range, level, **settings))

    model = difference(1.0 * acts[0], (0, 1))
    return NetBenefit(
        threshold=cuts,
        model=model.value,
        low=model.low,
        high=model.high,
        band_low=model.band_low,
        band_high=model.band_high,
        treat_all=_benefit(data, 1.0 * everyone, **settings)[0],
        over_all=difference(1.0 * acts[0] - everyone, (-1, 0)),
        over_second=difference(1.0 * acts[0] - acts[1], (-1, 1)) if len(acts) > 1 else None,
        prevalence=data.prevalence if prevalence is None else prevalence,
        is_standardized=standardized,
        level=level,
        event=event,
    )


@dataclass(frozen=True, eq=False)
class _CellData:
    """Examples by cell: those whose confidences reach the same number of thresholds are alike for every threshold.

    Outcomes may be fractions, so that cells hold the sums of weights times their powers 0, 1 and 2.
    """

    cells: np.ndarray  # (c, models) number of thresholds that the confidence of each model reaches
    sums: np.ndarray  # (3, c) sums of w, w y and w y^2
    index: np.ndarray  # (n) cell of each example
    outcome: np.ndarray  # (n) y
    weights: np.ndarray  # (n) w
    clusters: np.ndarray | None  # (n)

    @classmethod
    def from_scores(
        cls,
        outcome: np.ndarray,
        confidences: list[np.ndarray],
        cuts: np.ndarray,
        *,
        weights: np.ndarray,
        clusters: np.ndarray | None,
    ) -> "_CellData":
        """Count the sorted thresholds (t) that each confidence (n) of each model reaches."""
        counts = np.zeros(len(outcome), dtype=np.int64)
        for confidence in confidences:
            counts = counts * (len(cuts) + 1) + np.searchsorted(cuts, confidence, side="right")
        codes, index = np.unique(counts, return_inverse=True)
        cells = np.stack(np.unravel_index(codes, [len(cuts) + 1] * len(confidences)), axis=1)
        sums = np.stack([np.bincount(index, weights * outcome**power) for power in range(3)])
        return cls(cells, sums, index, outcome, weights, clusters)

    @property
    def prevalence(self) -> float:
        """Weighted mean of the outcomes."""
        return float(self.sums[1].sum() / self.sums[0].sum())

    def samples(self, if_event: np.ndarray, if_none: np.ndarray) -> tuple[list[Sample], np.ndarray]:
        """Return the mean of values with its precision at each threshold (t), and the correlations of the means (t, t).

        Args:
            if_event: Value of an example of each cell with the outcome 1 (c, t).
            if_none: Value with the outcome 0 (c, t). The value is linear in the outcome.
        """
        slope, (zeroth, first, second), n = if_event - if_none, self.sums, self.sums[0].sum()
        mean = (zeroth @ if_none + first @ slope) / n
        centered = if_none - mean
        mixed = (first[:, None] * centered).T @ slope
        covariance = (zeroth[:, None] * centered).T @ centered + mixed + mixed.T + (second[:, None] * slope).T @ slope
        squares, parts = covariance.diagonal(), [None] * len(mean)
        if self.clusters is not None:
            weight = np.bincount(self.clusters, self.weights)
            totals = np.stack(
                [
                    np.bincount(self.clusters, self.weights * (a[self.index] + b[self.index] * self.outcome))
                    for a, b in zip(if_none.T, slope.T, strict=True)
                ]
            )  # (t, clusters)
            parts = [(weight, total) for total in totals]
            residual = totals - mean[:, None] * weight
            covariance = residual @ residual.T
        spread = np.sqrt(np.maximum(covariance.diagonal(), 1e-300))
        samples = [Sample.from_sums(float(n), *row) for row in zip(mean.tolist(), squares.tolist(), parts, strict=True)]
        return samples, covariance / spread / spread[:, None]


def _benefit(
    data: _CellData, act: np.ndarray, *, odds: np.ndarray, prevalence: float | None, is_standardized: bool
) -> tuple[np.ndarray, Callable[[Any], tuple[Any, Any]]]:
    """Return the net benefit (t), and the function from actions to the values of examples with and without the event.

    The values have the net benefit as their mean. They are exact, or linearized where a share that is estimated divides
    (Vickers et al. 2008 take the bootstrap).

    Args:
        data: The examples.
        act: 1 to act, 0 to wait, or the difference of two policies, for each cell and threshold (c, t).
        odds: Cost of a false positive at each threshold (t).
        prevalence: Prevalence at which the net benefit applies, or None for that of the data.
        is_standardized: Whether to divide by the prevalence.
    """
    n, f = data.sums[0].sum(), data.prevalence
    hits, alarms = data.sums[1] @ act / n, (data.sums[0] - data.sums[1]) @ act / n
    if prevalence is None:
        benefit = hits - odds * alarms
        if not is_standardized:
            return benefit, lambda a: (a + 0 * odds, -odds * a)
        ratio = benefit / f
        return ratio, lambda a: (ratio + (a - ratio) / f, ratio - odds * a / f)
    unit = prevalence if is_standardized else 1.0
    gain, cost = prevalence / unit, odds * (1 - prevalence) / unit  # of a sensitivity and of a false positive rate of 1
    sensitivity, alarm_rate = hits / f, alarms / (1 - f)
    benefit = gain * sensitivity - cost * alarm_rate
    return benefit, lambda a: (
        benefit + gain * (a - sensitivity) / f,
        benefit - cost * (a - alarm_rate) / (1 - f),
    )


def _benefit_limits(
    data: _CellData, act: np.ndarray, act_range: tuple[int, int], level: float, **settings: Any
) -> tuple[np.ndarray, ...]:
    """Return the net benefit, its limits at each threshold, and its simultaneous limits, (t) each.

    An interval is that of a mean in a known range (`mean_limits`): an example that was not drawn may have the best or
    the worst value that its actions, within `act_range`, allow. The other arguments are as in `_benefit`.
    """
    benefit, values = _benefit(data, act, **settings)
    samples, correlation = data.samples(*values(act))
    extremes = np.stack([value for a in act_range for value in values(a)])
    low, high = extremes.min(0), extremes.max(0)
    if samples[0].degrees <= 0:  # a single example or cluster
        return benefit, low, high, low, high
    n, variance = np.array([sample.equivalent_sample for sample in samples]).T
    levels = np.array([[level], [_band_level(correlation, level)]])
    lower, upper = mean_limits(n, benefit, variance, ScoreRange(low, high), levels)
    (low, band_low), (high, band_high) = np.minimum(lower, benefit), np.maximum(upper, benefit)
    return benefit, low, high, band_low, band_high


def _band_level(correlation: np.ndarray, level: float) -> float:
    """Return the level of intervals that hold simultaneously at a level, for means with these correlations (t, t).

    Means without variance, such as at thresholds that nobody reaches, count as one more, independent mean.
    """
    varies = correlation.diagonal() > 0.5
    c = correlation[np.ix_(varies, varies)]
    eigenvalues, vectors = np.linalg.eigh(c)
    used = eigenvalues > 1e-9
    root = vectors[:, used] * np.sqrt(eigenvalues[used])
    rng = np.random.default_rng(0)
    deviates = [np.abs(rng.standard_normal((NUM_DEVIATE_DRAWS, root.shape[1])) @ root.T)]
    if not varies.all():
        deviates.append(np.abs(rng.standard_normal((NUM_DEVIATE_DRAWS, 1))))
    quantile = float(np.quantile(np.concatenate(deviates, axis=1).max(1), level))
    return max(level, math.erf(quantile / math.sqrt(2)))
