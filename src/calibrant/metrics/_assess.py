"""What one should know of a set of predictions, in one table, from one pass over the logits."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from calibrant._bins import Bins, Events, Ties, judge
from calibrant._folds import Fit
from calibrant.metrics._binned import class_cells
from calibrant.metrics._moments import Moments, noise, norm_of
from calibrant.metrics._ranking import aurc_of
from calibrant.metrics._results import Interval, mean_interval
from calibrant.metrics._smooth import smooth_ece_of
from calibrant.metrics._split import split
from calibrant.metrics._summary import Summary
from calibrant.metrics.intervals import rooted, share, wilson
from calibrant.metrics.tests import kuiper_test
from calibrant.predictions import Predictions

TITLES = {
    "accuracy": "accuracy",
    "nll": "negative log-likelihood",
    "refinement": "refinement part of NLL",
    "calibration_loss": "calibration part of NLL",
    "brier": "Brier score",
    "signed_gap": "confidence minus accuracy",
    "ece": "ECE",
    "noise_floor": "noise floor of ECE",
    "adaptive_ece": "adaptive ECE",
    "adaptive_noise_floor": "noise floor of adaptive ECE",
    "debiased_l2": "debiased L2 calibration error",
    "kuiper": "Kuiper calibration error",
    "smooth_ece": "smooth ECE",
    "classwise_ece": "class-wise ECE",
    "confident_share": "confidence of at least 99 %",
    "confident_accuracy": "accuracy of those",
    "aurc": "area under risk-coverage",
}


@dataclass(frozen=True)
class Row:
    """One line of the table; nan where there is no interval or no p-value."""

    name: str  # as in `metrics`, where it is one
    value: float
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    note: str = ""

    @property
    def title(self) -> str:
        """The name in words."""
        return TITLES[self.name]

    @classmethod
    def of(cls, name: str, interval: Interval, note: str = "") -> "Row":
        """Take value and interval."""
        return cls(name, interval.value, interval.low, interval.high, note=note)


@dataclass(frozen=True, eq=False)
class Assessment:
    """The table, in the order in which it should be read, and the sorted examples behind it."""

    n: int
    k: int
    bins: int
    level: float  # of the intervals
    rows: tuple[Row, ...]
    ties: Ties  # examples sorted by confidence: what curves are drawn from
    table: Bins  # the bins behind ECE

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __contains__(self, name: str) -> bool:
        return any(row.name == name for row in self.rows)

    def __getitem__(self, name: str) -> Row:
        """The row of that name.

        Raises KeyError with the names that there are.
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"no row {name!r}; there are {', '.join(row.name for row in self.rows)}")

    def __str__(self) -> str:
        head = f"{self.n:,} examples, {self.k} classes; intervals hold the truth with probability {self.level:g}"
        return "\n".join([head, *(_line(row) for row in self.rows)])


def assess(
    predictions: Predictions | Summary, *, fit: Fit | None = None, bins: int = 15, level: float = 0.90
) -> Assessment:
    """Everything one should print by default: scores, direction, errors with their floors, intervals and p-values.

    `fit` (a calibrator's, such as `Auto.fit`) adds the cross-fitted split of NLL into refinement and calibration. The
    other rows come from one pass over the logits and one sort, plus one pass for the classes if there are more than
    two. The row `noise_floor` holds the mean and the central interval of the ECE of a perfectly calibrated model with
    these confidences: an ECE below its `high` is no sign of miscalibration. Of a `Summary`, which has its own `bins`,
    come all rows but the split and the class-wise error.

    >>> p = Predictions(torch.zeros(100, 2), torch.tensor([0] * 60 + [1] * 40))
    >>> round(assess(p)["ece"].value, 4), round(assess(p)["noise_floor"].value, 4)
    (0.1, 0.0399)
    """
    if isinstance(predictions, Summary):
        return _of_summary(predictions, level)
    logits, labels, w = predictions.logits, predictions.labels, predictions.weights
    judged = judge(logits, labels)
    c, correct = judged.confidence, judged.correct
    events = Events(c, correct, w)
    rows = [
        Row.of("accuracy", share(correct, w, level)),
        Row.of("nll", mean_interval(-judged.log_likelihood, w, level), "nats per example"),
    ]
    if fit is not None:
        parts = split(logits, labels, fit, level=level, weights=w)
        rows.append(Row.of("refinement", parts.refinement, "left after cross-fitted recalibration"))
        rows.append(Row.of("calibration_loss", parts.calibration, "what recalibration takes off"))
    rows.append(Row.of("brier", mean_interval(judged.brier, w, level), "0 best, 2 worst"))
    rows += _errors(mean_interval(c - correct, w, level), Moments.of(events, bins), events.ties, bins, level)
    if logits.shape[1] > 2:
        per_class = class_cells(logits, labels, bins, w)[:, :, 1:].diff(dim=2).abs().sum((1, 2))
        rows.append(Row("classwise_ece", float(per_class.mean()), note=f"worst class {float(per_class.max()):.4f}"))
    sure = c >= 0.99
    rows.append(Row.of("confident_share", share(sure, w, level)))
    if bool(sure.any()):
        rows.append(Row.of("confident_accuracy", share(correct[sure], None if w is None else w[sure], level)))
    rows.append(_aurc(events.ties))
    table = Bins.equal_width(bins, c, correct, w)
    return Assessment(len(labels), logits.shape[1], bins, level, tuple(rows), events.ties, table)


def _of_summary(summary: Summary, level: float) -> Assessment:
    moments, ties = summary.moments, summary.ties
    mass, square, sure = (summary.total(name) for name in ("mass", "square_mass", "confident"))
    effective = mass**2 / square
    rows = [
        Row.of("accuracy", wilson(summary.total("correct") / mass, effective, level)),
        Row.of("nll", summary.mean("nll", level), "nats per example"),
        Row.of("brier", summary.mean("brier", level), "0 best, 2 worst"),
        *_errors(summary.mean("gap", level), moments, ties, summary.bins, level),
        Row.of("confident_share", wilson(sure / mass, effective, level)),
    ]
    if sure > 0:
        effective = sure**2 / summary.total("square_confident")
        rows.append(Row.of("confident_accuracy", wilson(summary.total("confident_correct") / sure, effective, level)))
    rows.append(_aurc(ties))
    return Assessment(len(summary), summary.k, summary.bins, level, tuple(rows), ties, summary.table)


def _aurc(ties: Ties) -> Row:
    return Row("aurc", float(aurc_of(ties)), note="mean error over all coverages")


def _errors(gap: Interval, moments: Moments, ties: Ties, bins: int, level: float) -> list[Row]:
    # The rows that need no logits: direction, binned and bin-free errors.
    ece, floor = float(moments.error(1.0)), moments.floor(level)
    adaptive = Bins.equal_mass_of(bins, ties)
    mass_floor = noise(Bins.spread_of(bins, ties).sqrt() / ties.mass.sum(), level)
    mass_ece, kuiper = float(norm_of(adaptive.weight, adaptive.gap, 1.0)), kuiper_test(ties)
    return [
        Row.of("signed_gap", gap, _direction(gap)),
        Row("ece", ece, note=_against(ece, floor)),
        Row.of("noise_floor", floor, "ECE of a calibrated model with these confidences"),
        Row("adaptive_ece", mass_ece, note=_against(mass_ece, mass_floor)),
        Row.of("adaptive_noise_floor", mass_floor, "the same for adaptive ECE"),
        Row.of("debiased_l2", rooted(moments.squared(level)), "negative: below what noise explains"),
        Row("kuiper", kuiper.statistic, p_value=kuiper.p_value, note="p: chance of as much if calibrated"),
        Row("smooth_ece", float(smooth_ece_of(ties)), note="no bins"),
    ]


def _direction(gap: Interval) -> str:
    if gap.low > 0:
        return "overconfident"
    return "underconfident" if gap.high < 0 else "no direction beyond chance"


def _against(value: float, floor: Interval) -> str:
    return "above its noise floor" if value > floor.high else "within its noise floor"


def _line(row: Row) -> str:
    interval = "" if math.isnan(row.low) else f"[{row.low:.4f}, {row.high:.4f}]"
    p = "" if math.isnan(row.p_value) else f"p = {row.p_value:.3g}"
    return f"{row.title:<30}{row.value:>9.4f}  {interval or p:<19} {row.note}".rstrip()
