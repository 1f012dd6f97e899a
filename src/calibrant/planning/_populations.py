"""Future examples to simulate: confidences, true probabilities and clusters, from predictions or from assumptions."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from scipy.special import betaincinv, expit, logit, ndtr, ndtri

from calibrant._core.kernels.bins import ClusterSums, Events, GroupedScores
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError

Pattern = Literal["shift", "scale"]
MAX_CONFIDENCES = 4096  # most distinct confidences of independent examples
MIN_CONTINUOUS = 10  # distinct values that show a continuous distribution, if they are most of all values
BETA_CONCENTRATION = 10.0  # a + b of the Beta distribution that a mean alone stands for
MAX_CLUSTER_CORRELATION = 0.9
NUM_ROOT_STEPS = 60
NUM_QUADRATURE_NODES = 64
BETA_TEXT = re.compile(r"\s*beta\(\s*([0-9.eE+-]+)\s*,\s*([0-9.eE+-]+)\s*\)\s*")


@dataclass(frozen=True, eq=False)
class Clusters:
    """The clusters that future ones are drawn from, and how alike the outcomes of a cluster are."""

    sizes: np.ndarray  # (m) examples of each cluster
    icc: float  # correlation of two outcomes of a cluster, given their probabilities
    start: np.ndarray | None = None  # (m) first row of each cluster; None: its confidences are drawn at random
    weights: np.ndarray | None = None  # (rows)


@dataclass(frozen=True, eq=False)
class Population:
    """The distribution of future examples: confidence, true probability and, if they depend on each other, clusters."""

    confidence: np.ndarray  # (m) values, sorted unless they are the rows of clusters
    share: np.ndarray  # (m) probability of each value
    truth: np.ndarray  # (m) true probability of the event at each value
    clusters: Clusters | None = None
    chance: float = 0.5  # probability of the event for a model that knows nothing

    @property
    def mean(self) -> float:
        """Mean confidence."""
        return float(self.share @ self.confidence)

    @property
    def variance(self) -> float:
        """Mean variance of an outcome if the confidences are true."""
        return float(self.share @ (self.confidence * (1 - self.confidence)))

    @property
    def design_effect(self) -> float:
        """Factor by which clusters multiply the number of examples of equal precision (Kish 1965)."""
        if self.clusters is None:
            return 1.0
        sizes = self.clusters.sizes
        return 1 + (float((sizes**2).mean() / sizes.mean()) - 1) * self.clusters.icc

    @property
    def unit_size(self) -> float:
        """Mean number of examples in a cluster, or 1 without clusters."""
        return 1.0 if self.clusters is None else float(self.clusters.sizes.mean())

    @cached_property
    def _latent_correlation(self) -> float:
        """Correlation of the normal variables of a cluster, 0 without clusters."""
        return 0.0 if self.clusters is None else latent_correlation(self.truth, self.share, self.clusters.icc)

    def draw(self, n: int, rng: np.random.Generator) -> Events:
        """Draw the events of n units: examples, or clusters.

        If there are more examples than distinct confidences, the events of each confidence are counted instead of
        listed. Their weights are these counts, as an integer weight equals that many copies.
        """
        if self.clusters is not None:
            return self._draw_clusters(self.clusters, n, rng)
        if n < len(self.confidence):
            index = rng.choice(len(self.share), n, p=self.share)
            return to_events(self.confidence[index], rng.random(n) < self.truth[index])
        count = rng.multinomial(n, self.share)
        hits = rng.binomial(count, self.truth)  # events that happen
        weights = np.concatenate([hits, count - hits])  # counts with outcome 1, then with outcome 0
        outcome = np.repeat([True, False], len(self.confidence))
        is_drawn = weights > 0
        return to_events(np.tile(self.confidence, 2)[is_drawn], outcome[is_drawn], weights[is_drawn])

    def _draw_clusters(self, clusters: Clusters, n: int, rng: np.random.Generator) -> Events:
        """Draw the events of n clusters, whose outcomes share a normal random effect on the probit scale.

        An event of true probability p happens if a standard normal variable is below the normal quantile of p. The
        variables of a cluster have the correlation `_latent_correlation`.
        """
        drawn = rng.integers(len(clusters.sizes), size=n)
        sizes = clusters.sizes[drawn]
        cluster = np.repeat(np.arange(n), sizes)  # of each row
        if clusters.start is None:  # clusters of assumed sizes, whose rows are any values of the population
            index = rng.choice(len(self.share), len(cluster), p=self.share)
        else:
            first_row = sizes.cumsum() - sizes  # of each drawn cluster
            index_in_cluster = np.arange(len(cluster)) - first_row[cluster]
            index = clusters.start[drawn][cluster] + index_in_cluster
        latent = self._latent_correlation
        effect = math.sqrt(latent) * rng.standard_normal(n)[cluster]
        residual = math.sqrt(1 - latent) * rng.standard_normal(len(cluster))
        outcome = effect + residual < ndtri(self.truth[index])
        weights = None if clusters.weights is None else clusters.weights[index]
        return to_events(self.confidence[index], outcome, weights, cluster)


def to_events(confidence: Any, outcome: Any, weights: Any = None, clusters: Any = None) -> Events:
    """Return events from numpy arrays."""
    return Events(
        confidence,
        outcome.astype(float),
        None if weights is None else weights.astype(float),
        clusters,
    )


def latent_correlation(p: np.ndarray, share: np.ndarray, icc: float) -> float:
    r"""Return the correlation of normal variables whose events with probabilities p have the correlation `icc`.

    Given the random effect z of its cluster, an event has the probability $\Phi((t - \sqrt\tau z) / \sqrt{1 - \tau})$,
    $t = \Phi^{-1}(p)$, with the mean m(z). The mean covariance of two events is the variance of m(z), and $\tau$ solves
    $\mathrm{Var}\,m(z) = \mathrm{icc}\;(\mathrm{mean} \sqrt{p (1 - p)})^2$, by Gauss-Hermite quadrature.
    """
    if icc <= 0:
        return 0.0
    step = max(1, len(p) // 500)  # 500 to 1,000 probabilities are precise enough
    p, share = p[::step], share[::step] / share[::step].sum()
    t = ndtri(p)
    required_covariance = icc * float(share @ np.sqrt(p * (1 - p))) ** 2
    z, weight = np.polynomial.hermite_e.hermegauss(NUM_QUADRATURE_NODES)
    weight /= weight.sum()

    def covariance(tau: float) -> float:
        """Return the variance of m(z), the mean covariance of two events in a cluster."""
        mean = share @ ndtr((t[:, None] - math.sqrt(tau) * z) / math.sqrt(1 - tau))
        return float(weight @ mean**2) - float(weight @ mean) ** 2

    return find_root(lambda tau: covariance(tau) - required_covariance, 0.0, 1.0)


def find_root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of an increasing function in [low, high] by bisection, or the nearer end without a root there."""
    for _ in range(NUM_ROOT_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < 0 else (low, middle)
    return (low + high) / 2


# Populations of calibrated models


def observed_population(by_score: GroupedScores, chance: float) -> Population:
    """Return the population of independent examples with these confidences, which are their true probabilities.

    Quantiles stand for the confidences if there are too many of them, or if their distribution is continuous.

    Args:
        by_score: The confidences in increasing order, with their weights.
        chance: Probability of the event for a model that knows nothing.
    """
    value, weight = by_score.value, by_score.total_weight
    is_continuous = len(value) > weight.sum() / 2 > MIN_CONTINUOUS  # most examples have a value of their own
    if is_continuous or len(value) > MAX_CONFIDENCES:
        levels = (np.arange(MAX_CONFIDENCES) + 0.5) / MAX_CONFIDENCES
        level_of_value = (weight.cumsum() - weight / 2) / weight.sum()  # each value is the quantile of its mean rank
        value = np.interp(levels, level_of_value, value)
        weight = np.ones(MAX_CONFIDENCES)
    return Population(confidence=value, share=weight / weight.sum(), truth=value, chance=chance)


def clustered_population(events: Events, chance: float, icc: float | None) -> Population:
    """Return the population that draws whole clusters of these events, whose confidences are true probabilities.

    Args:
        events: Events with clusters.
        chance: Probability of the event for a model that knows nothing.
        icc: Correlation of the outcomes within a cluster, or None to estimate it from the outcomes.
    """
    assert events.clusters is not None  # called only for events with clusters
    order, start, sizes = group_rows(events.clusters)
    confidence, outcome = (x[order] for x in (events.confidence, events.outcome))
    weights = None if events.weights is None else events.weights[order]
    w = np.ones(len(order)) if weights is None else weights
    if icc is None:
        icc = cluster_correlation(outcome - confidence, confidence * (1 - confidence), w, start)
    clusters = Clusters(sizes, icc, start, weights)
    return Population(confidence=confidence, share=w / w.sum(), truth=confidence, clusters=clusters, chance=chance)


def score_clusters(scores: np.ndarray, w: np.ndarray, clusters: np.ndarray, icc: float | None) -> Clusters:
    """Return the clusters by size, with the correlation of the scores within them.

    Args:
        scores: Score of each example (n).
        w: Weights (n).
        clusters: Cluster of each example (n).
        icc: The correlation, or None to estimate it from the scores.
    """
    order, start, sizes = group_rows(clusters)
    if icc is None:  # nothing is known of the variance of a single score: all have the same
        icc = cluster_correlation(scores[order], np.full(len(scores), scores.var()), w[order], start)
    return Clusters(sizes, icc)


def group_rows(clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the order of rows by cluster, and the first position and the size of each cluster."""
    order = np.argsort(clusters, kind="stable")
    start, sizes = np.unique(clusters[order], return_index=True, return_counts=True)[1:]
    if len(sizes) < 2:
        raise InputError("Expected at least two clusters, got one. Try predictions of several.", code="one_cluster")
    return order, start, sizes


def observed_design_effect(sums: ClusterSums, variance: np.ndarray) -> float:
    """Return the variance of the signed gap of these clusters relative to independent examples, at least 1.

    Args:
        sums: Sums of m clusters in bins.
        variance: Variance of the number of events at each confidence, if they are independent.
    """
    residual_sum = sums.residual.sum(1)  # (m)
    n = sums.total_weight.sum(1)
    deviation = residual_sum - n * residual_sum.sum() / n.sum()  # from the mean miscalibration
    independent_variance = float(variance.sum())
    if independent_variance <= 0:
        return 1.0
    return max(1.0, float(np.square(deviation).sum()) / independent_variance)


def cluster_correlation(values: np.ndarray, variance: np.ndarray, w: np.ndarray, start: np.ndarray) -> float:
    """Return the correlation of values within clusters, from 0 to `MAX_CLUSTER_CORRELATION`.

    It is the sum of the products of residuals over all pairs of rows in a cluster, divided by the sum of the products
    of their standard deviations. Without any variance it is 0.

    Args:
        values: Values of the rows (n), cluster after cluster.
        variance: Variance of each value if rows are independent (n).
        w: Weights (n).
        start: First row of each cluster.
    """

    def pair_products(x: np.ndarray) -> float:
        """Return the sum of x_i x_j over all pairs in a cluster: the square of its sum, without the squares x_i^2."""
        return float((np.add.reduceat(x, start) ** 2).sum() - (x**2).sum())

    covariance = pair_products(w * (values - np.average(values, weights=w)))
    scale = pair_products(w * np.sqrt(variance))
    return min(max(covariance / scale, 0.0), MAX_CLUSTER_CORRELATION) if scale > 0 else 0.0


def assumed_population(confidence: Any) -> Population:
    """Return the population of assumed confidences, given as a mean, as "beta(a, b)" or as an array."""
    if isinstance(confidence, str) and (match := BETA_TEXT.fullmatch(confidence)):
        return _beta_population(*map(float, match.groups()))
    if isinstance(confidence, float | int):
        if not 0 < confidence < 1:
            text = f"Expected a mean confidence in (0, 1), got {confidence}. Try 0.9."
            raise InputError(text, code="confidence_range")
        return _beta_population(BETA_CONCENTRATION * confidence, BETA_CONCENTRATION * (1 - confidence))
    try:
        values = np.sort(np.asarray(confidence, dtype=float).ravel())
    except (TypeError, ValueError):
        values = np.zeros(0)
    if not len(values) or not 0 <= values[0] <= values[-1] <= 1:
        text = shorten_repr(confidence)
        raise InputError(
            f"Expected a mean confidence, 'beta(a, b)' or confidences in [0, 1], got {text}. Try 'beta(9, 1)'.",
            code="confidence",
        )
    outcomes = np.zeros(len(values))  # any: only the confidences are used
    return observed_population(to_events(values, outcomes).by_score, chance=0.5)


def _beta_population(a: float, b: float) -> Population:
    """Return a calibrated population whose confidences are the quantiles of Beta(a, b) at `MAX_CONFIDENCES` levels."""
    if not (0 < a < math.inf and 0 < b < math.inf):
        raise InputError(
            f"Expected beta(a, b) with positive a and b, got beta({a:g}, {b:g}). Try beta(9, 1).", code="confidence"
        )
    values = betaincinv(a, b, (np.arange(MAX_CONFIDENCES) + 0.5) / MAX_CONFIDENCES)
    return Population(values, np.full(MAX_CONFIDENCES, 1 / MAX_CONFIDENCES), values)


# Miscalibration


def miscalibrate(population: Population, error: float, pattern: Pattern) -> Population:
    r"""Return the population whose true probabilities p differ from the confidences c by `error` on average.

    The calibration error is the mean of $|p - c|$. "shift": $p = c - \delta$, cut to [0, 1]; the true probabilities lie
    above the confidences instead if those are below 1/2 on average. "scale": the model is overconfident, as after
    multiplying logits by a number above 1: $\mathrm{logit}\,p = s\,\mathrm{logit}\,c - (1 - s) \log(k - 1)$ with s < 1
    for k classes, so that chance, 1/k, stays where it is.

    Raises:
        InputError: If no such true probabilities have an error as large.
    """
    c, share = population.confidence, population.share

    def truth(strength: float) -> np.ndarray:
        """Return true probabilities whose distance from the confidences grows with the strength in [0, 1]."""
        if pattern == "scale":
            return scale_odds(c, 1 - strength, population.chance)
        sign = -1 if population.mean >= 0.5 else 1
        return np.clip(c + sign * strength, 0.0, 1.0)

    def mean_error(strength: float) -> float:
        """Return the calibration error, the mean of |p - c|."""
        return float(share @ np.abs(truth(strength) - c))

    largest = mean_error(1.0)
    if not 0 < error < largest:
        raise InputError(
            f"Expected a calibration error above 0 and below {largest:.4g}, the largest that these confidences allow "
            f"with pattern={pattern!r}, got {error:g}. Try {min(0.05, largest / 2):.2g}.",
            code="unreachable",
        )
    return replace(population, truth=truth(find_root(lambda strength: mean_error(strength) - error, 0.0, 1.0)))


def scale_odds(c: np.ndarray, exponent: float, chance: float) -> np.ndarray:
    """Return p with logit p = logit chance + exponent * (logit c - logit chance), for probabilities c."""
    base = float(logit(chance))
    z = logit(np.clip(c, 1e-12, 1 - 1e-12))  # finite, so that the exponent 0 gives chance
    return expit(base + exponent * (z - base))
