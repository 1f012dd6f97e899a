"""Curves: predictions, or logits and labels -> `Curve`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibrant._core.kernels.bins import (
    MAX_CLUSTER_SLOTS,
    Bins,
    ClusterSums,
    EventStatistics,
    GroupedScores,
    allow_rounding,
)
from calibrant._core.lazy import special
from calibrant._core.types import InputError, NonNegativeInt, OpenFraction, check_arguments
from calibrant.metrics import _corp, _flexible, _ranking
from calibrant.metrics._intervals import Curve, cluster_share_interval, share_limits, student_quantile
from calibrant.metrics._logit_fits import expit
from calibrant.metrics._moments import draw_signs
from calibrant.metrics._null import draw_outcomes, merge_scores
from calibrant.predictions import as_predictions

__all__ = ["FlexibleCurve", "corp", "flexible", "risk_coverage"]

MAX_BAND_GROUPS = 4096  # groups of confidence from which a band is computed
MAX_WALK_STOPS = 512  # groups of confidence at which a walk is read
NUM_WALKS = 2000
NUM_CURVE_DRAWS = 4000  # of the coefficients of a flexible curve
MIN_BAND_WIDTH = 1e-9  # of a side of a band, as an angle
MIN_CLUSTER_DEVIATION = 1e-12  # replaces 0 as a divisor, where all clusters are alike


@dataclass(frozen=True, eq=False)
class FlexibleCurve(Curve):
    """A flexible calibration curve. `low` and `high` are the pointwise band of the curve itself."""

    simultaneous_low: np.ndarray | None = None  # (g) of the band that holds the whole curve
    simultaneous_high: np.ndarray | None = None
    method: str = ""  # of the smoother, in words


@check_arguments
def flexible(
    predictions: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    level: OpenFraction = 0.90,
    knots: Literal[3, 4, 5] = 4,
) -> FlexibleCurve:
    """Return a flexible calibration curve, a restricted cubic spline of the log-odds (Harrell 2015, section 2.4.5).

    Fitted by maximum likelihood, with knots at Harrell's quantiles. More than 512 distinct confidences are drawn as as
    many groups. Both bands are about the curve itself: the pointwise one holds the curve at a given confidence, the
    simultaneous one holds it everywhere, each with probability `level` if the spline is flexible enough. The band of
    `corp` answers another question: where the curve of a calibrated model would lie. `ici`, `e50`, `e90` and `emax` are
    distances of this curve to the diagonal.

    Args:
        predictions: Predictions, or logits.
        labels: Labels, if logits are given.
        weights: Weights, if logits are given.
        level: Probability that a band holds the curve.
        knots: Number of knots.

    Raises:
        InputError: If a probability is 0 or 1, all outcomes are alike, or the curve separates them.

    >>> from calibrant import Predictions
    >>> z = np.tile([[0.0, -1.0], [0.0, 1.0]], (40, 1))
    >>> curve = flexible(Predictions(z, np.tile([0, 1, 0, 1, 0, 1, 1, 0], 10), of=1))
    >>> curve.y  # two probabilities leave a line through both frequencies
    array([0.25, 0.75])
    """
    with as_predictions(predictions, labels, weights) as p:
        return flexible_of(p.events, level, knots)


def flexible_of(events: EventStatistics, level: float, knots: Literal[3, 4, 5]) -> FlexibleCurve:
    """Return the flexible curve of an event with its bands (see `flexible`)."""
    curve = _flexible.SplineCurve.of_events(events, knots)
    fit, merged = curve.fit, merge_scores(events.by_score, MAX_CLUSTER_SLOTS)
    if fit.degrees <= 0:
        raise InputError("Expected at least two clusters, which show how they vary, got one.", code="one_cluster")
    if curve.is_separated:
        raise InputError(
            f"Expected enough events for a curve with {knots} knots, got one that separates events from the rest. Try "
            "knots=3, or calibration_slope.",
            code="separated",
        )
    center, x = curve.log_odds_at(merged)
    error, rng = np.sqrt(np.einsum("gi,ij,gj->g", x, fit.covariance, x)), np.random.default_rng(0)
    values, vectors = np.linalg.eigh(fit.covariance)
    draws = rng.normal(size=(NUM_CURVE_DRAWS, x.shape[1])) * np.sqrt(values.clip(0)) @ vectors.T
    if np.isfinite(fit.degrees):  # the variance of clusters is uncertain
        draws /= np.sqrt(rng.chisquare(fit.degrees, (NUM_CURVE_DRAWS, 1)) / fit.degrees)
    largest = np.abs(draws @ x.T / np.maximum(error, MIN_CLUSTER_DEVIATION)).max(1)  # in standard errors
    quantiles = student_quantile(level, fit.degrees), float(np.quantile(largest, level))
    ends = [expit(center + sign * z * error) for z in quantiles for sign in (-1, 1)]
    y, low, high, all_low, all_high = expit(center), *ends
    weight = merged.total_weight / merged.total_weight.sum()
    num_knots = len(curve.places)
    method = f"restricted cubic spline of the log-odds with {num_knots} knots" if num_knots > 2 else "logistic line"
    return FlexibleCurve(merged.value, y, low, high, weight, all_low, all_high, method)


@check_arguments
def corp(
    predictions: Any,
    labels: Any = None,
    weights: Any = None,
    *,
    level: OpenFraction = 0.90,
    draws: NonNegativeInt = 300,
    seed: NonNegativeInt = 0,
) -> Curve:
    """Return the CORP reliability curve: confidence against its isotonic recalibration (Dimitriadis et al. 2021).

    The band contains the whole curve of a perfectly calibrated model with probability `level`.

    Args:
        predictions: Predictions, or logits.
        labels: Labels, if logits are given.
        weights: Weights, if logits are given.
        level: Probability that the band holds all points of a calibrated curve.
        draws: Draws of outcomes from the confidences, or of signs of the clusters' gaps; 0 leaves the band out.
        seed: Seed of the draws.

    Raises:
        InputError: If `draws` is negative, or the level not between 0 and 1.

    >>> curve = corp(np.zeros((4, 2)), np.array([0, 0, 0, 1]), draws=0)
    >>> curve.x, curve.y
    (array([0.5]), array([0.75]))
    """
    with as_predictions(predictions, labels, weights) as p:
        return corp_of(p.events.by_score, level, draws, seed)


@check_arguments
def risk_coverage(predictions: Any, labels: Any = None, weights: Any = None, *, level: OpenFraction = 0.90) -> Curve:
    """Return the error rate of the most confident predictions (y) against their share of all predictions (x).

    More than 4,096 distinct confidences are first merged into as many groups. The band holds the true error rates of
    all points at once.

    Args:
        predictions: Predictions, or logits.
        labels: Labels, if logits are given.
        weights: Weights, if logits are given.
        level: Probability that the band holds the whole true curve.

    >>> curve = risk_coverage(np.array([[0.0, 2.0], [0.0, 1.0]]), np.array([1, 0]))
    >>> curve.x, curve.y
    (array([0.5, 1. ]), array([0. , 0.5]))
    """
    with as_predictions(predictions, labels, weights) as p:
        return risk_coverage_of(p.events.by_score, level)


def risk_coverage_of(by_score: GroupedScores, level: float = 0.90) -> Curve:
    """Return the risk-coverage curve of sorted examples with its band (see `risk_coverage`)."""
    by_score = merge_scores(by_score, MAX_BAND_GROUPS)
    low, high = precision_limits(by_score, np.flip(by_score.value, 0), level)  # the error rate is 1 - precision
    return Curve(*_ranking.risk_coverage(by_score), 1 - high, 1 - low)


def precision_limits(by_score: GroupedScores, cuts: np.ndarray, level: float = 0.90) -> tuple[np.ndarray, np.ndarray]:
    """Return limits of the frequency of the event above each threshold that hold for all thresholds at once.

    Each share has its own limits, at the `simultaneous_level`; 0 and 1 if no confidence is as large.

    Args:
        by_score: Sorted examples.
        cuts: Thresholds, (t).
        level: Probability that all limits hold.

    Returns:
        The lower and the upper limits, (t) each.
    """
    pointwise = simultaneous_level(by_score, level)
    first = np.searchsorted(by_score.value, allow_rounding(cuts))  # index of the first confidence to reach each
    if by_score.clusters is not None:
        return cluster_precision_limits(by_score.clusters, cuts, pointwise)
    n, hits = (_ranking.sums_from(x)[first] for x in (by_score.total_weight, by_score.correct))
    return share_limits(hits / np.where(n > 0, n, 1), n, pointwise)


def frequency_limits(bins: Bins, level: float = 0.90) -> tuple[np.ndarray, np.ndarray]:
    r"""Return limits of the frequency in every bin that hold for all bins at once, or 0 and 1 in empty bins.

    Bins are independent: limits of level $l^{1/b}$ in b bins with examples hold together with probability l (Sidak
    1967).
    """
    num_bins = max(1, int((bins.count > 0).sum()))
    return share_limits(bins.accuracy, bins.count.astype(float), level ** (1 / num_bins))


def simultaneous_level(by_score: GroupedScores, level: float) -> float:
    r"""Return the level at which intervals of the frequency above each confidence hold for all confidences at once.

    The number of events among the m most confident examples deviates from its mean as a random walk W does. The largest
    $|W_m| / \sqrt m$ over the groups of confidence stays below its quantile z with probability `level`. The result is
    the level $2 \Phi(z) - 1$ of a single interval of z standard errors. `NUM_WALKS` normal walks are drawn with a fixed
    seed. For examples in clusters, the signs of the clusters' deviations are drawn.
    """
    generator = np.random.default_rng(0)
    if by_score.clusters is None:
        covered_weight = np.flip(by_score.total_weight, 0).cumsum(0)  # m after each group
        # groups at which the walk is read, denser at the start, where |W_m| / sqrt(m) changes fastest
        stops = np.logspace(0, math.log2(len(covered_weight)), MAX_WALK_STOPS, base=2.0).round().astype(np.int64)
        covered_weight = covered_weight[np.unique(np.clip(stops - 1, 0, len(covered_weight) - 1))]
        steps = generator.standard_normal((NUM_WALKS, len(covered_weight)))
        step_weight = np.diff(covered_weight, prepend=0.0)
        walks = (steps * np.sqrt(step_weight)).cumsum(1) / np.sqrt(covered_weight)
    else:
        # without the last column, the empty range above all bins
        weight, outcome = (x[:, :-1] for x in _cluster_sums_above(by_score.clusters))
        # of each cluster's number of events above a confidence from its expectation at the frequency of all clusters
        deviation = outcome - weight * (outcome.sum(0) / weight.sum(0))
        walks = draw_signs(NUM_WALKS, len(weight), generator) @ deviation
        walks = walks / np.maximum(np.sqrt(np.square(deviation).sum(0)), MIN_CLUSTER_DEVIATION)
    z = np.quantile(abs(walks).max(1), level)  # in standard errors
    return 2 * float(special.ndtr(z)) - 1


def _cluster_sums_above(sums: ClusterSums) -> tuple[np.ndarray, np.ndarray]:
    """Return the weight and the events of every cluster in each bin and above, and 0 above all bins, (m g+1) each."""
    outcome = sums.total_weight * sums.value + sums.residual
    return _ranking.sums_from(sums.total_weight), _ranking.sums_from(outcome)


def cluster_precision_limits(sums: ClusterSums, cuts: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return limits of the frequency of the event above each threshold, each at the level, for examples in clusters.

    They are 0 and 1 if no confidence is as large.

    Args:
        sums: Sums of the clusters.
        cuts: Thresholds, (t).
        level: Probability that the limits of a threshold hold.

    Returns:
        The lower and the upper limits, (t) each.
    """
    weight, outcome = _cluster_sums_above(sums)
    first = np.searchsorted(sums.value, allow_rounding(cuts))
    bins, index = np.unique(first, return_inverse=True)  # an interval takes long: one for all thresholds in a bin
    intervals = [cluster_share_interval(weight[:, i], outcome[:, i], level) for i in bins]
    low, high = np.array([(interval.low, interval.high) for interval in intervals])[index].T
    return low, high


def corp_of(by_score: GroupedScores, level: float, draws: int, seed: int) -> Curve:
    """Return the CORP curve of sorted examples with its band (see `corp`).

    Examples are first merged into at most 4,096 groups of confidence. The band is a `simultaneous_band` from curves of
    a calibrated model, drawn with `seed`; without draws there is none.
    """
    by_score = merge_scores(by_score, MAX_BAND_GROUPS)
    weight = by_score.total_weight / by_score.total_weight.sum()
    y = _corp.isotonic_fit(by_score)
    if draws == 0:
        return Curve(by_score.value, y, weight=weight)
    generator = np.random.default_rng(seed)
    if by_score.clusters is None:
        fits = [_corp.isotonic_fit(draw_outcomes(by_score, generator)) for _ in range(draws)]
    else:
        fits = list(_draw_cluster_curves(by_score, by_score.clusters, draws, generator))
    return Curve(by_score.value, y, *simultaneous_band(np.stack(fits), level), weight)


def simultaneous_band(fits: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    r"""Return a band that holds a further curve everywhere with probability `level`, from drawn curves (draws, points).

    The pointwise quantiles of half of the curves are moved away from their mean by one factor, so that they hold
    `level` of the other half as a whole (directional quantile envelope; Myllymaki et al. 2017). As the halves are
    independent, the probability is at least `level` for any number of draws from 18 on.

    Frequencies are compared as $\arcsin \sqrt y$, whose variance is about the same everywhere. Before it is moved, no
    side of the band is narrower than the median over points and sides. Otherwise, where nearly all curves are 0 or 1, a
    rare curve that is not would move the whole band.
    """
    angles = np.arcsin(np.sqrt(np.clip(fits, 0, 1)))
    # every other curve; a single one is both halves
    first_half, second_half = (angles[::2], angles[1::2]) if len(angles) > 1 else (angles, angles)
    mean, (low, high) = first_half.mean(0), np.quantile(first_half, [(1 - level) / 2, (1 + level) / 2], axis=0)
    min_width = max(float(np.quantile(np.concatenate([mean - low, high - mean]), 0.5, method="lower")), MIN_BAND_WIDTH)
    below, above = np.maximum(mean - low, min_width), np.maximum(high - mean, min_width)
    # the factor that a band needs to hold each curve; of the sorted factors, the rank-th holds a further curve
    needed = np.maximum((mean - second_half) / below, (second_half - mean) / above).max(1)  # (curves)
    rank = min(len(needed), math.ceil(level * (len(needed) + 1)))
    factor = max(float(np.sort(needed)[rank - 1]), 1.0)
    lower, upper = np.maximum(mean - factor * below, 0), np.minimum(mean + factor * above, math.pi / 2)
    return np.square(np.sin(lower)), np.square(np.sin(upper))


def _draw_cluster_curves(
    by_score: GroupedScores, sums: ClusterSums, draws: int, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yield CORP curves of a calibrated model whose clusters vary as these do: their residuals get random signs.

    Args:
        by_score: Confidences at which the curves are returned.
        sums: Sums of m clusters in g bins, to which the curves are fitted.
        draws: Number of curves.
        generator: Random numbers of the signs.
    """
    weight = sums.total_weight.sum(0)  # (g)
    residuals = sums.residual - sums.total_weight * (sums.residual.sum(0) / weight)  # (m g), which add up to 0 in a bin
    bin_index = np.minimum(np.searchsorted(sums.value, by_score.value), len(weight) - 1)
    for signs in draw_signs(draws, len(residuals), generator):
        frequency = np.clip(sums.value + signs @ residuals / weight, 0, 1)  # of the event: confidence plus noise
        yield _corp.isotonic_fit(GroupedScores(sums.value, weight, frequency * weight))[bin_index]
