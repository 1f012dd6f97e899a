"""Errors of a flexible calibration curve: a restricted cubic spline of the log-odds, fitted by maximum likelihood."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from calibrant._core.kernels.bins import MAX_CLUSTER_SLOTS, EventStatistics, GroupedScores
from calibrant.metrics._intervals import Evidence, Interval
from calibrant.metrics._logit_fits import (
    MAX_LOGIT_ERROR,
    Array,
    LogitFit,
    check_both_outcomes,
    check_overlap,
    expit,
    fit_logits,
    log_odds,
)
from calibrant.metrics._metric import Metric, metric
from calibrant.metrics._null import NullResiduals, merge_scores

__all__ = ["e50", "e50_noise_floor", "e90", "e90_noise_floor", "emax", "emax_noise_floor", "ici", "ici_noise_floor"]

NumKnots = Literal[3, 4, 5]
KNOT_LEVELS = {  # quantiles of the log-odds at which the knots lie (Harrell 2015, table 2.3)
    3: (0.1, 0.5, 0.9),
    4: (0.05, 0.35, 0.65, 0.95),
    5: (0.05, 0.275, 0.5, 0.725, 0.95),
}
Statistic = Callable[[Array, Array], Array]  # of distances between curve and diagonal (... g), and weights (g)
NUM_DIRECTIONS = 1024  # of the confidence region of a curve in which the largest error is searched


def spline_columns(z: Array, knots: Array) -> Array:
    """Return the columns of a restricted cubic spline, (g m): 1, z, and one for each knot but two (Harrell 2015, 2.25).

    The spline is linear beyond the outermost knots. Fewer than three knots make it a line.
    """
    columns = [np.ones_like(z), z - knots.mean()]
    if len(knots) > 2:
        last, width = knots[-1], knots[-1] - knots[-2]
        cube = [np.maximum(z - knot, 0) ** 3 for knot in knots]
        for i, knot in enumerate(knots[:-2]):
            term = cube[i] - cube[-2] * (last - knot) / width + cube[-1] * (knots[-2] - knot) / width
            columns.append(term / (last - knots[0]) ** 2)
    return np.stack(columns, 1)


def weighted_quantile(values: Array, weights: Array, level: float) -> Array:
    """Return quantiles of rows (... g), with weights as numbers of copies (g), interpolated as numpy and R do."""
    order = values.argsort(-1)
    x, end = np.take_along_axis(values, order, -1), weights[order].cumsum(-1)
    position = level * np.maximum(end[..., -1:] - 1, 0)  # of the sorted copies, from 0
    lower = (end <= np.floor(position) + 1e-9).sum(-1, keepdims=True).clip(0, x.shape[-1] - 1)
    upper = (end <= np.ceil(position) + 1e-9).sum(-1, keepdims=True).clip(0, x.shape[-1] - 1)
    low, high = np.take_along_axis(x, lower, -1), np.take_along_axis(x, upper, -1)
    return (low + (high - low) * (position - np.floor(position)))[..., 0]


CURVE_ERRORS: dict[str, Statistic] = {
    "ici": lambda distance, weight: distance @ weight / weight.sum(),
    "e50": partial(weighted_quantile, level=0.5),
    "e90": partial(weighted_quantile, level=0.9),
    "emax": lambda distance, weight: distance.max(-1),
}


@dataclass(frozen=True, eq=False)
class SplineCurve:
    """The flexible curve of one sample."""

    fit: LogitFit
    places: Array  # log-odds of the knots

    @classmethod
    def of_events(cls, events: EventStatistics, knots: NumKnots = 4) -> "SplineCurve":
        """Fit the curve.

        Raises:
            InputError: If a probability is 0 or 1, all outcomes are alike, or a threshold separates them.
        """
        by_score = events.by_score
        z = log_odds(by_score)
        check_both_outcomes(by_score)
        check_overlap(by_score)
        places = _knot_places(z, by_score.total_weight, knots)
        return cls(LogitFit.of_sample(spline_columns(z, places), by_score, z), places)

    @property
    def is_separated(self) -> bool:
        """Whether the curve reaches 0 or 1 somewhere, so that its precision is unknown."""
        return not self.fit.largest_logit_error() < MAX_LOGIT_ERROR

    def log_odds_at(self, by_score: GroupedScores) -> tuple[Array, Array]:
        """Return the log-odds of the curve at some risks, (g), and the columns there, (g m)."""
        z = log_odds(by_score)
        x = spline_columns(z, self.places)
        return z + x @ self.fit.theta, x

    def error(self, name: str) -> float:
        """Return an error of the curve, by the name of its metric."""
        by_score = self.fit.by_score
        distance = np.abs(self.fit.probability - by_score.value)
        return float(CURVE_ERRORS[name](distance, by_score.total_weight))

    def largest_error(self, name: str, level: float) -> float:
        """Return the largest error of the curves that Wald's test does not reject, searched in fixed directions."""
        from scipy.special import chdtri, fdtri  # slow to import

        fit, m = self.fit, self.fit.x.shape[1]
        if fit.degrees <= m or self.is_separated:  # so few clusters or events exclude no curve
            return 1.0
        radius = chdtri(m, 1 - level)
        if np.isfinite(fit.degrees):  # Hotelling's statistic of clusters
            radius = m * fit.degrees / (fit.degrees - m + 1) * fdtri(m, fit.degrees - m + 1, level)
        values, vectors = np.linalg.eigh(fit.covariance)
        direction = np.random.default_rng(0).normal(size=(NUM_DIRECTIONS, m))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        theta = fit.theta + direction * np.sqrt(radius * values.clip(0)) @ vectors.T
        merged = merge_scores(fit.by_score, MAX_CLUSTER_SLOTS)
        z = log_odds(merged)
        distance = np.abs(expit(z + theta @ spline_columns(z, self.places).T) - merged.value)
        return max(self.error(name), float(CURVE_ERRORS[name](distance, merged.total_weight).max()))


def _knot_places(z: Array, weight: Array, knots: NumKnots) -> Array:
    """Return Harrell's quantiles of the log-odds; equal quantiles share a knot."""
    return np.unique([float(weighted_quantile(z, weight, level)) for level in KNOT_LEVELS[knots]])


def _drawn_distances(by_score: GroupedScores, knots: NumKnots) -> tuple[Array, Array]:
    """Return the distances of curves to the diagonal, (1 + d, g), and the weights of the groups of risk, (g).

    The curves are those of the sample and of 999 simulated calibrated models, all in at most 512 groups.
    """
    cache = by_score.__dict__.setdefault("_spline_draws", {})  # as in `NullResiduals.shared`
    if knots not in cache:
        null = NullResiduals.shared(by_score)
        weight, risk = null.total_weight, null.value
        z = log_odds(GroupedScores(null.value, null.total_weight, null.total_weight))
        x = spline_columns(z, _knot_places(z, weight, knots))
        residuals = np.concatenate([null.observed, null.drawn])
        theta = fit_logits(x, weight, (residuals + weight * risk).clip(0, weight), z)
        cache[knots] = np.abs(expit(z + theta @ x.T) - risk), weight
    return cache[knots]


def _drawn_errors(events: EventStatistics, name: str, knots: NumKnots) -> Array:
    """Return an error of the sample and of the simulated calibrated models, (1 + d)."""
    return CURVE_ERRORS[name](*_drawn_distances(events.by_score, knots))


def _error_interval(name: str, events: EventStatistics, *, level: float, knots: NumKnots = 4) -> Interval:
    """Return an upper limit with 0 as the lower limit: the largest error of the curves that are not rejected."""
    curve = SplineCurve.of_events(events, knots)
    return Interval(curve.error(name), 0.0, curve.largest_error(name, level), level)


def _error_test(name: str, events: EventStatistics, *, knots: NumKnots = 4) -> Evidence:
    """Compare with simulated calibrated models."""
    errors = _drawn_errors(events, name, knots)
    return Evidence(SplineCurve.of_events(events, knots).error(name), float((errors >= errors[0]).mean()))


def _floor_interval(name: str, events: EventStatistics, *, level: float, knots: NumKnots = 4) -> Interval:
    """Return the mean and the central interval of the error of a calibrated model."""
    drawn = _drawn_errors(events, name, knots)[1:]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(drawn.mean()), float(low), float(high), level)


def _declare(name: str, title: str, meaning: str) -> Callable[[Callable[..., Any]], Metric[...]]:
    """Return the declaration of an error of the curve."""
    return metric(
        title,
        unit="share",
        meaning=meaning,
        term=title if title[0].isupper() else "",
        noise_floor=f"{name}_noise_floor",
        interval=partial(_error_interval, name),
        test=partial(_error_test, name),
    )


def _declare_floor(name: str, title: str) -> Callable[[Callable[..., Any]], Metric[...]]:
    """Return the declaration of the noise floor of an error."""
    return metric(
        f"{title} of a calibrated model",
        unit="share",
        higher_is_better=None,
        meaning="its mean and interval by chance alone",
        interval=partial(_floor_interval, name),
    )


@_declare("ici", "ICI", "mean distance of the flexible curve to the diagonal; biased upward, see its noise floor")
def ici(events: EventStatistics, *, knots: NumKnots = 4) -> float:
    r"""Return the integrated calibration index, the mean of $|p - c(p)|$ over the examples (Austin & Steyerberg 2019).

    c is the flexible calibration curve: a restricted cubic spline of logit p with `knots` knots at Harrell's quantiles,
    fitted by maximum likelihood. The paper also uses loess, which gives other numbers. Like ECE it is above 0 for
    calibrated models; `ici_noise_floor` says by how much, and `test` compares with simulated calibrated models. The
    interval is an upper limit, from 0: the largest value of all curves that Wald's test at this level does not reject.
    It covers more often than it says. A percentile bootstrap would never cover the 0 of a calibrated model.

    Raises:
        InputError: If a probability is 0 or 1, all outcomes are alike, or a threshold separates them.

    >>> from calibrant import Predictions
    >>> p = Predictions.from_confidence([0.2] * 3 + [0.8] * 3, [1, 0, 0, 1, 1, 0])
    >>> round(ici(p), 4)  # two probabilities leave a line, through 1/3 and 2/3
    0.1333
    """
    return SplineCurve.of_events(events, knots).error("ici")


@_declare("e50", "E50", "median distance of the flexible curve to the diagonal; biased upward, see its noise floor")
def e50(events: EventStatistics, *, knots: NumKnots = 4) -> float:
    """Return the median of the distances that `ici` averages (Austin & Steyerberg 2019)."""
    return SplineCurve.of_events(events, knots).error("e50")


@_declare("e90", "E90", "90 % quantile of the distance of the flexible curve to the diagonal; biased upward")
def e90(events: EventStatistics, *, knots: NumKnots = 4) -> float:
    """Return the 90 % quantile of the distances that `ici` averages (Austin & Steyerberg 2019)."""
    return SplineCurve.of_events(events, knots).error("e90")


@_declare("emax", "Emax", "largest distance of the flexible curve to the diagonal; biased upward, see its noise floor")
def emax(events: EventStatistics, *, knots: NumKnots = 4) -> float:
    """Return the largest of the distances that `ici` averages, often where examples are few (Harrell 2015)."""
    return SplineCurve.of_events(events, knots).error("emax")


@_declare_floor("ici", "ICI")
def ici_noise_floor(events: EventStatistics, *, knots: NumKnots = 4) -> float:
    """Return the mean `ici` of 999 simulated calibrated models with these probabilities, in at most 512 groups."""
    return float(_drawn_errors(events, "ici", knots)[1:].mean())


@_declare_floor("e50", "E50")
def e50_noise_floor(events: EventStatistics, *, knots: NumKnots = 4) -> float:
    """Return the mean `e50` of simulated calibrated models, as `ici_noise_floor` does."""
    return float(_drawn_errors(events, "e50", knots)[1:].mean())


@_declare_floor("e90", "E90")
def e90_noise_floor(events: EventStatistics, *, knots: NumKnots = 4) -> float:
    """Return the mean `e90` of simulated calibrated models, as `ici_noise_floor` does."""
    return float(_drawn_errors(events, "e90", knots)[1:].mean())


@_declare_floor("emax", "Emax")
def emax_noise_floor(events: EventStatistics, *, knots: NumKnots = 4) -> float:
    """Return the mean `emax` of simulated calibrated models, as `ici_noise_floor` does."""
    return float(_drawn_errors(events, "emax", knots)[1:].mean())
