"""Calibration of a risk as clinicians and actuaries state it: observed over expected, intercept, slope, and tests."""

import math
from dataclasses import dataclass

import numpy as np

from calibrant._core.kernels.bins import EventStatistics, GroupedScores
from calibrant._core.types import Count, InputError, Sums
from calibrant.metrics._intervals import MIN_DIVISOR, Evidence, Interval, Sample, student_quantile
from calibrant.metrics._logit_fits import (
    LogitFit,
    check_both_outcomes,
    check_overlap,
    log_odds,
)
from calibrant.metrics._metric import metric
from calibrant.metrics._null import MIN_EVENT_VARIANCE, NullResiduals

__all__ = [
    "calibration_intercept",
    "calibration_slope",
    "cox",
    "hosmer_lemeshow",
    "observed_expected",
    "scaled_brier",
    "spiegelhalter",
]

MIN_GROUP_VARIANCE = 5.0  # of the events of a Hosmer-Lemeshow group; below it, the test is simulated
MIN_COUNT = 10.0  # events, or examples without, below which observed over expected has Poisson limits


def _fit_intercept(events: EventStatistics) -> LogitFit:
    """Fit an intercept to the log-odds with slope 1."""
    by_score = events.by_score
    offset = log_odds(by_score)
    check_both_outcomes(by_score)
    return LogitFit.of_sample(np.ones((len(offset), 1)), by_score, offset)


def _fit_line(events: EventStatistics) -> LogitFit:
    """Fit intercept and slope, as theta = (a + (b - 1) m, b - 1) with the mean m of the log-odds."""
    by_score = events.by_score
    offset = log_odds(by_score)
    check_both_outcomes(by_score)
    check_overlap(by_score)
    center = float(np.average(offset, weights=by_score.total_weight))
    return LogitFit.of_sample(np.stack([np.ones_like(offset), offset - center], 1), by_score, offset)


def _wald_interval(fit: LogitFit, index: int, null: float, level: float) -> Interval:
    """Return the estimate null + theta with normal limits, or Student's if the examples are in clusters."""
    value = null + float(fit.theta[index])
    half = student_quantile(level, fit.degrees) * math.sqrt(fit.covariance[index, index])
    return Interval(value, value - half, value + half, level)


def _intercept_interval(events: EventStatistics, *, level: float) -> Interval:
    return _wald_interval(_fit_intercept(events), 0, 0.0, level)


def _slope_interval(events: EventStatistics, *, level: float) -> Interval:
    return _wald_interval(_fit_line(events), 1, 1.0, level)


@metric(
    "calibration intercept",
    higher_is_better=None,
    meaning="calibration in the large on the log-odds, slope fixed at 1: below 0, risks are too high",
    interval=_intercept_interval,
)
def calibration_intercept(events: EventStatistics) -> float:
    r"""Return the calibration intercept, a of $\mathrm{logit}\, P(y = 1) = a + \mathrm{logit}\, p$ (Cox 1958).

    The slope is fixed at 1, so that a is calibration in the large; 0 is right. Papers also call the intercept of the
    fit with a free slope by this name; that number depends on the slope and says nothing by itself. Fitted by maximum
    likelihood. The interval is Wald's; of clusters, that of the jackknife over clusters with Student's t.

    Raises:
        InputError: If a probability is 0 or 1, or all outcomes are alike.

    >>> round(calibration_intercept(np.zeros((4, 2)), np.array([0, 0, 0, 1])), 4)  # the log-odds of 3 in 4
    1.0986
    """
    return _fit_intercept(events).theta[0]


@metric(
    "calibration slope",
    higher_is_better=None,
    meaning="1 is right; below 1, risks are too extreme, above 1 not extreme enough",
    interval=_slope_interval,
)
def calibration_slope(events: EventStatistics) -> float:
    r"""Return the calibration slope, b of $\mathrm{logit}\, P(y = 1) = a + b\, \mathrm{logit}\, p$ (Cox 1958).

    1 is right. A model that was fitted to too few examples has a slope below 1. Fitted by maximum likelihood together
    with a; intervals are those of `calibration_intercept`.

    Raises:
        InputError: If a probability is 0 or 1, all outcomes are alike, or a threshold separates them.

    >>> from calibrant import Predictions
    >>> p = Predictions.from_confidence([0.2] * 3 + [0.8] * 3, [1, 0, 0, 1, 1, 0])
    >>> calibration_slope(p)  # from log-odds of +-log 4 to +-log 2
    0.5
    """
    return 1 + _fit_line(events).theta[1]


def _cox_test(events: EventStatistics) -> Evidence:
    """Compare the likelihood ratio with chi-squared of 2 degrees, or of clusters Wald's statistic with Hotelling's."""
    from scipy.special import chdtrc, fdtrc  # slow to import

    fit = _fit_line(events)
    if math.isinf(fit.degrees):
        ratio = fit.likelihood_ratio / events.by_score.dispersion
        return Evidence(fit.likelihood_ratio, float(chdtrc(2, ratio)))
    if fit.degrees <= 1:  # two clusters at most reject nothing
        return Evidence(fit.likelihood_ratio, 1.0)
    square = float(fit.theta @ np.linalg.solve(fit.covariance, fit.theta))
    p_value = float(fdtrc(2, fit.degrees - 1, square * (fit.degrees - 1) / (2 * fit.degrees)))
    return Evidence(fit.likelihood_ratio, p_value)


@metric(
    "Cox statistic",
    meaning="likelihood ratio of intercept and slope against 0 and 1; about 2 if calibrated",
    term="Cox",
    test=_cox_test,
)
def cox(events: EventStatistics) -> float:
    r"""Return the likelihood ratio of intercept and slope, fitted jointly, against 0 and 1 (Miller et al. 1991).

    Twice the gain in log-likelihood, chi-squared with 2 degrees of freedom for a calibrated model. It sees errors of
    the mean and of the spread of the risks, and no others. The test of clusters uses Wald's statistic with the
    jackknife over clusters.

    Raises:
        InputError: As for `calibration_slope`.

    >>> from calibrant import Predictions
    >>> p = Predictions.from_confidence([0.2] * 30 + [0.8] * 30, ([1, 0, 0] * 10) + ([1, 1, 0] * 10))
    >>> print(cox.test(p))
    5.8473 (p = 0.0537)
    """
    return _fit_line(events).likelihood_ratio


@dataclass(frozen=True)
class Ratio:
    """A ratio of two sums over examples, and the precision of its logarithm."""

    numerator: float
    denominator: float
    residual: Sample  # numerator minus ratio times denominator of an example, whose mean is 0

    @classmethod
    def of_outcomes(cls, by_score: GroupedScores, numerator: np.ndarray, denominator: np.ndarray) -> "Ratio":
        """Sum numbers that depend on the risk and the outcome.

        Args:
            by_score: Sorted examples.
            numerator: The number at each risk without the event and with it, (2 g).
            denominator: The same of the divisor.
        """
        weight = np.stack([by_score.total_weight - by_score.correct, by_score.correct])  # (2 g)
        over, under, n = float((weight * numerator).sum()), float((weight * denominator).sum()), float(weight.sum())
        residual = numerator - over / under * denominator
        square = by_score.dispersion * float((weight * np.square(residual)).sum())
        clusters = None
        if (sums := by_score.clusters) is not None:
            index = np.minimum(np.searchsorted(by_score.value, sums.value), len(by_score.value) - 1)
            hits = sums.total_weight * sums.value + sums.residual
            total = (sums.total_weight - hits) @ residual[0, index] + hits @ residual[1, index]
            size = sums.total_weight.sum(1)
            clusters = size, total - size / n * total.sum()  # sums over bins leave a small rest
        return cls(over, under, Sample.from_sums(n, 0.0, square, clusters))

    @property
    def value(self) -> float:
        """The ratio."""
        return self.numerator / self.denominator

    def interval(self, level: float, max_degrees: float = math.inf) -> Interval:
        """Return the interval that is symmetric on the log scale, by Student's t of at most so many degrees."""
        sample = self.residual
        half = student_quantile(level, min(sample.degrees, max_degrees)) * sample.error * sample.n / self.numerator
        return Interval(self.value, self.value * math.exp(-half), self.value * math.exp(half), level)


def _outcome_ratio(by_score: GroupedScores) -> Ratio:
    """Return observed over expected events. Raises `InputError` if no event is expected."""
    risk = by_score.value
    if not float(risk.max()) > 0:
        raise InputError(
            "Expected some probability above 0, got only zeros, so that no event is expected. Try signed_gap.",
            code="no_expected_events",
        )
    outcome = np.stack([np.zeros_like(risk), np.ones_like(risk)])
    return Ratio.of_outcomes(by_score, outcome, np.broadcast_to(risk, (2, len(risk))))


def _observed_expected_interval(events: EventStatistics, *, level: float) -> Interval:
    """Return limits on the log scale, or Poisson's if fewer than 10 examples have the event or lack it."""
    by_score = events.by_score
    ratio = _outcome_ratio(by_score)
    n, events_seen = ratio.residual.n, ratio.numerator
    rarer = min(events_seen, n - events_seen)
    if rarer >= MIN_COUNT:
        return ratio.interval(level)
    low, high = _poisson_limits(rarer, n / ratio.residual.equivalent_sample[0], level)
    if rarer < events_seen:  # counted are the examples without the event
        low, high = n - high, n - low
    return Interval(ratio.value, max(low, 0.0) / ratio.denominator, high / ratio.denominator, level)


def _poisson_limits(count: float, size: float, level: float) -> tuple[float, float]:
    """Return exact limits of a Poisson mean (Garwood 1936), of a count in which events come `size` at a time."""
    from scipy.special import gammaincinv  # slow to import

    tail, groups = (1 - level) / 2, count / size
    low = float(gammaincinv(groups, tail)) if groups > 0 else 0.0
    return size * low, size * float(gammaincinv(groups + 1, 1 - tail))


@metric(
    "observed over expected",
    higher_is_better=None,
    short="O/E",
    meaning="events over the sum of the risks: 1 is right, below 1 risks are too high",
    interval=_observed_expected_interval,
)
def observed_expected(events: EventStatistics) -> float:
    r"""Return observed over expected events, $\sum_i y_i / \sum_i p_i$; 1 is right, and E/O is its inverse.

    The interval is symmetric on the log scale, with the variance of the ratio of two means, $\sum_i (y_i - R p_i)^2$:
    the risks are a sample, too. The usual one, which takes E for fixed, is wider. With fewer than 10 events, or fewer
    than 10 examples without, the limits of this count are Poisson's (Garwood 1936), divided by E. Clusters count as
    the jackknife over clusters says.

    Raises:
        InputError: If every probability is 0.

    >>> observed_expected(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    1.5
    """
    return _outcome_ratio(events.by_score).value


def _brier_ratio(by_score: GroupedScores) -> Ratio:
    """Return the Brier score over that of the event's frequency, the same for all examples."""
    check_both_outcomes(by_score)
    outcome = np.array([[0.0], [1.0]])
    frequency = by_score.correct.sum() / by_score.total_weight.sum()
    constant = np.broadcast_to(np.square(outcome - frequency), (2, len(by_score.value)))
    return Ratio.of_outcomes(by_score, np.square(outcome - by_score.value), constant)


def _scaled_brier_interval(events: EventStatistics, *, level: float) -> Interval:
    by_score = events.by_score
    rarer = float(np.minimum(by_score.correct.sum(), (by_score.total_weight - by_score.correct).sum()))
    ratio = _brier_ratio(by_score).interval(level, max(rarer - 1, 1.0))
    return Interval(1 - ratio.value, 1 - ratio.high, 1 - ratio.low, level)


@metric(
    "scaled Brier score",
    higher_is_better=True,
    meaning="1 - Brier / f (1 - f) with the frequency f: 0 is as good as f for all; depends on f",
    interval=_scaled_brier_interval,
)
def scaled_brier(events: EventStatistics) -> float:
    r"""Return the scaled Brier score of the event, $1 - \sum (p - y)^2 / (n f (1 - f))$ (Steyerberg et al. 2010).

    Also the index of prediction accuracy (Kattan & Gerds 2018). f is the frequency of the event: 0 is as good as f for
    everyone. It depends on f, so that it does not compare populations. The interval is that of the ratio, on the log
    scale, by Student's t with one degree less than there are events, or examples without if these are fewer.

    Raises:
        InputError: If all outcomes are alike.

    >>> from calibrant import Predictions
    >>> round(scaled_brier(Predictions.from_confidence([0.8, 0.8, 0.2, 0.2], [1, 1, 0, 0])), 4)  # 1 - .04 / .25
    0.84
    """
    return 1 - _brier_ratio(events.by_score).value


def _spiegelhalter_z(by_score: GroupedScores) -> float:
    """Return z, or 0 if no deviation is possible or observed. Fractional outcomes count like outcomes of 0 or 1."""
    slope = 1 - 2 * by_score.value
    deviation = float((by_score.residual * slope).sum())
    variance = float((by_score.variance * np.square(slope)).sum()) / by_score.dispersion
    return deviation / math.sqrt(variance) if variance else math.copysign(math.inf, deviation) if deviation else 0.0


def _spiegelhalter_test(events: EventStatistics) -> Evidence:
    """Compare with the normal distribution, or with simulated models if events are few or in clusters."""
    from scipy.special import erfc  # slow to import

    by_score = events.by_score
    z = _spiegelhalter_z(by_score)
    if _is_simple(by_score):
        return Evidence(z, float(erfc(abs(z) / math.sqrt(2 * by_score.dispersion))))
    null = NullResiduals.shared(by_score)
    return Evidence(z, null.p_value(lambda residuals: abs(residuals @ (1 - 2 * null.value))))


def _is_simple(by_score: GroupedScores) -> bool:
    """Return whether examples are independent, and events many enough for limiting distributions."""
    return by_score.clusters is None and float(by_score.variance.sum()) >= MIN_EVENT_VARIANCE


@metric(
    "Spiegelhalter's z",
    higher_is_better=None,
    meaning="Brier score against its expectation, in standard errors; blind to errors of risks near one half",
    term="Spiegelhalter",
    test=_spiegelhalter_test,
)
def spiegelhalter(events: EventStatistics) -> float:
    r"""Return Spiegelhalter's z, $\sum (y - p)(1 - 2p) / \sqrt{\sum (1 - 2p)^2 p (1 - p)}$ (Spiegelhalter 1986).

    The Brier score minus its expectation if every risk is true, in standard errors; above 0, it is worse than the risks
    promise. Errors of risks near 1/2 have no weight. The test is two-sided; it simulates calibrated models if the
    variance of the number of events is below 20, and with clusters.

    >>> from calibrant import Predictions
    >>> round(spiegelhalter(Predictions.from_confidence([0.2] * 4, [1, 1, 0, 0])), 4)  # 1.2 * .6 / sqrt(4 * .36 * .16)
    1.5
    """
    return _spiegelhalter_z(events.by_score)


def _group_sums(by_score: GroupedScores, groups: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the group of every risk, (g), and the sums of residuals and of variances of the groups, (b) each."""
    index, weight = by_score.slot_indices(groups), by_score.total_weight
    columns = weight, weight * by_score.value, by_score.residual
    size, expected, residual = (np.bincount(index, column, groups) for column in columns)
    mean = expected / np.maximum(size, MIN_DIVISOR)
    return index, residual, size * mean * (1 - mean)  # the variance at the mean risk of the group, as in the paper


def _chi_square(residual: np.ndarray, variance: np.ndarray) -> Sums:
    """Return the sum of squared residuals over variances, (...), with 0 / 0 = 0."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(residual == 0, 0.0, np.square(residual) / variance).sum(-1)


def _hosmer_lemeshow_test(events: EventStatistics, *, groups: Count = 10) -> Evidence:
    """Compare with chi-squared of as many degrees as groups, or with simulated models if events are few."""
    from scipy.special import chdtrc  # slow to import

    by_score = events.by_score
    index, residual, variance = _group_sums(by_score, groups)
    statistic = float(_chi_square(residual, variance))
    occupied = variance[variance > 0]
    if _is_simple(by_score) and len(occupied) and float(occupied.min()) >= MIN_GROUP_VARIANCE:
        return Evidence(statistic, float(chdtrc(len(np.unique(index)), statistic / by_score.dispersion)))
    null = NullResiduals.shared(by_score)
    merged = GroupedScores(null.value, null.total_weight, null.total_weight * null.value)
    index, _, variance = _group_sums(merged, groups)

    def chi_square(residuals: np.ndarray) -> np.ndarray:
        return np.asarray(_chi_square(np.array([np.bincount(index, row, groups) for row in residuals]), variance))

    return Evidence(statistic, null.p_value(chi_square))


@metric(
    "Hosmer-Lemeshow statistic",
    meaning="depends on the number of groups, grows with n, says neither size nor direction; prefer omnibus",
    term="Hosmer-Lemeshow",
    test=_hosmer_lemeshow_test,
)
def hosmer_lemeshow(events: EventStatistics, *, groups: Count = 10) -> float:
    r"""Return the Hosmer-Lemeshow statistic, $\sum_g (O_g - E_g)^2 / (n_g \bar p_g (1 - \bar p_g))$ (1980).

    g groups of nearly equal size in the order of the risk; equal risks share a group. For a model that was fitted to
    other data it is chi-squared with g degrees of freedom; for the data of its own fit the field takes g - 2. It is
    here because reviewers ask for it: another number of groups gives another answer, every model is rejected once n is
    large, and it states neither the size nor the direction of an error. `omnibus` tests, and `calibration_slope` and
    `observed_expected` say how large. The test simulates calibrated models as `spiegelhalter` does, and also if the
    variance of the events of a group is below 5.

    >>> from calibrant import Predictions
    >>> round(hosmer_lemeshow(Predictions.from_confidence([0.2] * 4, [1, 1, 0, 0])), 4)  # 1.2^2 / (4 * .16)
    2.25
    """
    _, residual, variance = _group_sums(events.by_score, groups)
    return float(_chi_square(residual, variance))
