"""Chance by simulation: outcomes of a calibrated model, for independent examples or for clusters."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from calibrant._core.kernels.bins import MAX_CLUSTER_SLOTS, ClusterSums, GroupedScores
from calibrant._core.types import Sums
from calibrant.metrics._intervals import SUM_ROUNDING

NUM_NULL_DRAWS = 999  # p-values are multiples of 1/1000
MIN_EVENT_VARIANCE = 20.0  # of the number of events; below it, tests of independent examples are simulated
MAX_CLUSTERED_BINS = 64  # bins of confidence in which sums of clusters are drawn
MAX_CHUNK_ELEMENTS = 1 << 20  # residuals of unanimous clusters that are drawn at once
PRIOR_EVENTS = 0.25  # expected events of unanimous clusters that are added to the expected events of the sample
MIN_EXCESS_VARIANCE = 1e-12  # of unanimous clusters over independent examples, relative; less is rounding


@dataclass(frozen=True, eq=False)
class NullResiduals:
    """Sums of outcomes minus confidences in g confidence bins: observed, and in d draws of a calibrated model."""

    value: np.ndarray  # (g) float64, mean confidence of a bin
    total_weight: np.ndarray  # (g)
    observed: np.ndarray  # (1 g)
    drawn: np.ndarray  # (d g)
    dispersion: float = 1.0  # as in `GroupedScores`

    @classmethod
    def draw(cls, by_score: GroupedScores, draws: int = NUM_NULL_DRAWS, seed: int = 0) -> "NullResiduals":
        """Draw residuals of a calibrated model, in which events happen with the probability of their confidence.

        Examples in clusters are drawn by `_draw_clustered_residuals`. Residuals of fractional outcomes are smaller by
        the square root of the dispersion.

        Args:
            by_score: Sorted examples; many distinct confidences are merged into 512 groups (64 with clusters).
            draws: Number of draws, d.
            seed: Seed of the draws.
        """
        generator = np.random.default_rng(seed)
        if (sums := by_score.clusters) is not None:
            sums = ClusterSums(sums.value, sums.total_weight, sums.residual)
            if len(sums.value) > MAX_CLUSTERED_BINS:
                sums = sums.equal_mass(MAX_CLUSTERED_BINS)
            drawn = _draw_clustered_residuals(sums, draws, generator, by_score.dispersion)
            weight, observed = sums.total_weight.sum(0), sums.residual.sum(0, keepdims=True)
            return cls(sums.value, weight, observed, drawn, by_score.dispersion)
        by_score = merge_scores(by_score, MAX_CLUSTER_SLOTS)
        value, weight, residual = by_score.value, by_score.total_weight, by_score.residual
        drawn = draw_hits(np.broadcast_to(weight, (draws, len(weight))), value, generator) - weight * value
        return cls(value, weight, residual[None], drawn * math.sqrt(by_score.dispersion), by_score.dispersion)

    @classmethod
    def shared(cls, by_score: GroupedScores) -> "NullResiduals":
        """Return the default draws, which the tests of the same examples share.

        The seed follows from the outcomes: with the same draws for all data, a test would reject a little more or less
        often than its level.
        """
        cache = by_score.__dict__  # as for a cached property, which this module cannot add to the class
        if "_null" not in cache:
            rank = np.arange(len(by_score.value))
            cache["_null"] = cls.draw(by_score, seed=round(float(rank @ by_score.correct)))
        return cache["_null"]

    def p_value(self, statistic: Callable[[np.ndarray], np.ndarray]) -> float:
        """Return the share of draws with as large a statistic as observed, counting the observation as a draw.

        The statistic takes rows of residuals (r g) and returns (r).
        """
        observed, drawn = float(statistic(self.observed)[0]), statistic(self.drawn)
        exceeded = int((drawn >= observed - SUM_ROUNDING * abs(observed)).sum())  # equal up to rounding counts
        return (exceeded + 1) / (len(drawn) + 1)


def draw_hits(weight: np.ndarray, value: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw the total weight of the events in groups of examples, with the shape of `weight` (... g).

    Args:
        weight: Total weight of each group, (... g). It counts as ceil(weight) examples.
        value: Confidence of each group, (g), the probability of every event.
        generator: Random generator.
    """
    count = np.ceil(weight)
    if (count <= 1).all():  # a single example per group: a tenth of the time of binomial numbers
        hits = count * (generator.random(count.shape) < value)
    else:
        hits = generator.binomial(count.astype(np.int64), value)
    return hits * weight / np.maximum(count, 1)  # from ceil(weight) examples to the weight


def draw_outcomes(by_score: GroupedScores, generator: np.random.Generator) -> GroupedScores:
    """Draw the outcomes of a calibrated model: in a group of equal confidence c, events happen with probability c."""
    hits = draw_hits(by_score.total_weight, by_score.value, generator)
    if by_score.dispersion < 1:  # fractional outcomes vary less around their mean than events
        expected = by_score.total_weight * by_score.value
        hits = expected + (hits - expected) * math.sqrt(by_score.dispersion)
    return GroupedScores(by_score.value, by_score.total_weight, hits)


def merge_scores(by_score: GroupedScores, max_groups: int) -> GroupedScores:
    """Merge groups of neighboring confidences into at most `max_groups` groups of nearly equal weight.

    The confidence of a merged group is the mean. A `GroupedScores` with fewer groups is returned as it is.
    """
    if len(by_score.value) <= max_groups:
        return by_score
    cumulative_weight = by_score.cumulative_weight
    inner_cuts = np.linspace(0, 1, max_groups + 1)[1:-1]
    ends = np.searchsorted(cumulative_weight, inner_cuts * cumulative_weight[-1])
    # a heavy group may hold several cuts, which then count once
    index = np.unique(np.concatenate([[0, len(cumulative_weight) - 1], ends]))
    weight, confidence, correct, _ = np.diff(by_score.cumulative_sums[:, index])
    value = np.minimum(confidence / weight, 1)  # a mean of ones may round up
    return GroupedScores(value, weight, correct, by_score.clusters, by_score.fraction_variance, by_score.dispersion)


def _draw_clustered_residuals(
    sums: ClusterSums, draws: int, generator: np.random.Generator, dispersion: float
) -> np.ndarray:
    """Draw residuals of a calibrated model with clusters, (d g) for d draws in g bins, scaled by their relative spread.

    In every draw, each cluster is unanimous with probability `ClusterModel.unanimous_share`: a single uniform number
    decides the outcomes of all its examples. The examples of the other clusters are independent.

    Each draw is then divided by the square root of the ratio of its standard deviation to that of the sample. Without
    this, tests of 20 calibrated clusters would reject too rarely: if a few of them have large residuals by chance,
    their examples also seem to depend on each other strongly. The ratio itself, as in Student's t test, is too much for
    100 clusters, because real clusters are rarely unanimous and their squared residuals vary less. The square root
    gives levels of 3 to 6 % in simulations of both. The standard deviation of a draw is estimated from its unanimous
    clusters and the expectation of the others.
    """
    value, weight = sums.value, sums.total_weight
    model = ClusterModel.from_sums(sums, dispersion)
    u = sums.residual.sum(1)  # (m)
    share = model.unanimous_share(np.square(u).sum(), u @ model.imbalance)
    is_unanimous = generator.random((draws, len(weight))) < share
    uniform = generator.random((draws, len(weight)))
    remaining_weight = (~is_unanimous).astype(float) @ weight
    residuals = math.sqrt(dispersion) * (draw_hits(remaining_weight, value, generator) - remaining_weight * value)
    squares, products = (~is_unanimous).astype(float) @ model.independent, np.zeros(draws)
    draws_and_clusters = is_unanimous.nonzero()  # indices of a draw and of a cluster that is unanimous there
    size = max(1, MAX_CHUNK_ELEMENTS // len(value))
    for first in range(0, len(draws_and_clusters[0]), size):
        draw, cluster = (index[first : first + size] for index in draws_and_clusters)
        is_event = uniform[draw, cluster, None] < value  # (pairs g)
        of_cluster = math.sqrt(dispersion) * weight[cluster] * (is_event.astype(float) - value)
        np.add.at(residuals, draw, of_cluster)
        drawn_u = of_cluster.sum(1)
        squares += np.bincount(draw, np.square(drawn_u), draws)
        products += np.bincount(draw, drawn_u * model.imbalance[cluster], draws)
    drawn_variance = model.variance(model.unanimous_share(squares, products))
    ratio = np.asarray(model.variance(share) / drawn_variance)
    ratio = np.nan_to_num(ratio, nan=1.0)  # 0 / 0 if every confidence is 0 or 1
    return residuals * ratio[:, None] ** (1 / 4)  # the root of the ratio of standard deviations


@dataclass(frozen=True, eq=False)
class ClusterModel:
    r"""Model in which each cluster is unanimous with probability $\lambda$, or else has independent examples.

    In a cluster of weight N, S events are expected and S + u happen. The variance of u is $V_1$ if the cluster is
    unanimous and $V_0$ if its examples are independent, both times the dispersion of fractional outcomes.
    """

    independent: np.ndarray  # (m) V_0 of every cluster
    unanimous: float  # sum of V_1
    imbalance: np.ndarray  # (m) N - 2 S
    num_events: float  # expected events, or expected non-events where these are rarer

    @classmethod
    def from_sums(cls, sums: ClusterSums, dispersion: float) -> "ClusterModel":
        """Return the model of the clusters whose weights and confidences the sums hold.

        Args:
            sums: Sums of m clusters in g bins of confidence.
            dispersion: Variance of fractional outcomes relative to outcomes of 0 or 1.
        """
        value, weight = sums.value, sums.total_weight
        n, expected = weight.sum(1), weight @ value
        # A unanimous cluster draws one uniform number; its events are the examples whose confidence is above. Column j
        # has the events if the number falls between bins j - 1 and j, whose distance is the probability of this.
        events = n[:, None] - np.pad(weight.cumsum(1), ((0, 0), (1, 0)))
        width = np.diff(value, prepend=0.0, append=1.0)
        unanimous = float((np.square(events - expected[:, None]) @ width).sum())
        independent = weight @ (value * (1 - value))
        num_events = float((weight * np.minimum(value, 1 - value)).sum())
        return cls(independent * dispersion, unanimous * dispersion, n - 2 * expected, num_events)

    def variance(self, share: Sums) -> Sums:
        r"""Return the variance of the sum of all residuals if the share $\lambda$ of the clusters is unanimous."""
        return share * self.unanimous + (1 - share) * self.independent.sum()

    def unanimous_share(self, squares: Sums, products: Sums) -> Sums:
        r"""Estimate $\lambda$, the share of unanimous clusters, from how far the clusters deviate from expectation.

        The symbols are those of the class: u is the number of events minus the expected number S in a cluster of weight
        N, with the variance $V_1$ if the cluster is unanimous and $V_0$ if not. Sums are over clusters.

        The method of moments would solve $\sum u^2 = \sum \lambda V_1 + (1 - \lambda) V_0$. But whenever rare events
        did not happen, $u^2$ and with it $\lambda$ would be small, and a test would take their absence for strong
        evidence. The estimate therefore uses $u^2 - \rho (N - 2S) u$ in place of $u^2$. It is uncorrelated with u if a
        cluster's frequency has a beta distribution and $\rho = 2 \lambda / (1 + \lambda)$. The equation is then
        quadratic: $\lambda^2 - 2 h \lambda - q = 0$ with q the solution of the simple equation and
        $2 h = q - 1 - 2 \sum (N - 2S) u / \sum (V_1 - V_0)$.

        A single cluster counts as unanimous. If every cluster is a single example, the share is 0.

        Args:
            squares: Sum of $u^2$ over the clusters, of one or more samples.
            products: Sum of $(N - 2S) u$.
        """
        independent = float(self.independent.sum())
        excess = self.unanimous - independent  # sum of V_1 - V_0
        if len(self.independent) == 1:
            return np.ones_like(squares)
        if excess <= MIN_EXCESS_VARIANCE * self.unanimous:  # every cluster is a single example
            return np.zeros_like(squares)
        q = (squares - independent) / excess
        h = (q - 2 * products / excess - 1) / 2
        share = np.clip(h + np.sqrt(np.maximum(np.square(h) + q, 0)), 0, 1)
        # A prior: as if `PRIOR_EVENTS` more events had happened, all in unanimous clusters
        return (share * self.num_events + PRIOR_EVENTS) / (self.num_events + PRIOR_EVENTS)
