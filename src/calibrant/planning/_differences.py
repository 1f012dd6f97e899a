"""Pairs of models to simulate: the difference of a score per example, summed over each unit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from calibrant import metrics
from calibrant._core.types import InputError
from calibrant.metrics import Metric
from calibrant.planning._populations import MAX_CLUSTER_CORRELATION, Clusters, Population, find_root
from calibrant.predictions import Predictions

NUM_PAIRS = 20_000  # pairs of scores drawn from an assumption
MAX_TILT = 200.0  # strength at which almost only the units of the largest residual are drawn
MIN_LABEL_PROBABILITY = 1e-300  # above 0, for a finite NLL
ASSUMED_SCORES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {  # of confidence c and outcome a
    "accuracy": lambda c, a: a,
    "error": lambda c, a: 1 - a,
    "nll": lambda c, a: -np.log(np.maximum(np.where(a > 0, c, 1 - c), MIN_LABEL_PROBABILITY)),
    "event_brier": lambda c, a: (c - a) ** 2,
    "brier": lambda c, a: 2 * (c - a) ** 2,
    "signed_gap": lambda c, a: c - a,
}


@dataclass(frozen=True, eq=False)
class PairedUnits:
    """Units that future ones are drawn from: examples, or clusters."""

    weight: np.ndarray  # (m) examples of a unit
    difference: np.ndarray  # (m) sum of the differences of a unit, second model minus first
    share: np.ndarray  # (m) probability to draw a unit
    extremes: np.ndarray  # (2, m) smallest and largest mean difference of a unit over its labels, as far as beyond 0

    @classmethod
    def from_examples(cls, values: np.ndarray, weight: np.ndarray, unit: np.ndarray | None) -> "PairedUnits":
        """Add up the differences of examples by unit, or draw examples by weight if there are no units.

        Args:
            values: Smallest difference of each example over its possible labels, actual one, and largest one, (3, n).
            weight: Weight of each example (n).
            unit: Index of the unit of each example (n), or None.
        """
        low, difference, high = values
        extremes = np.stack([np.minimum(low, 0), np.maximum(high, 0)])  # they bound an unseen example
        if unit is None:
            return cls(np.ones(len(weight)), difference, share=weight / weight.sum(), extremes=extremes)
        columns = np.ones(len(unit)), difference, *extremes  # each is summed by unit, times the weights
        size, difference_sum, *extreme_sums = (np.bincount(unit, weight * column) for column in columns)
        share = np.full(len(size), 1 / len(size))
        return cls(size, difference_sum, share, extremes=np.stack(extreme_sums) / size)

    @property
    def mean(self) -> float:
        """Mean difference per example."""
        return float(self.share @ self.difference) / self.unit_size

    @property
    def unit_size(self) -> float:
        """Mean number of examples of a unit."""
        return float(self.share @ self.weight)

    @property
    def error(self) -> float:
        """Standard error of the mean difference of a single unit."""
        residual = self.difference - self.mean * self.weight
        return math.sqrt(float(self.share @ residual**2)) / self.unit_size

    @cached_property
    def _cumulative_share(self) -> np.ndarray:
        return self.share.cumsum()

    def tilt(self, mean: float) -> "PairedUnits":
        r"""Return units drawn with probabilities proportional to $e^{\lambda r}$, whose mean difference is `mean`.

        r is the difference of a unit minus `mean` times its examples. Among all probabilities with this mean, these are
        closest to the given ones (Efron 1981), and only differences that occurred are drawn.

        Raises:
            InputError: If the mean is at least the mean absolute difference of the scores.
        """
        residual = self.difference - mean * self.weight
        # With a mean as large as the mean absolute difference, about all differences would have the same sign
        largest = float(self.share @ np.abs(self.difference)) / self.unit_size
        if not abs(mean) < largest:
            raise InputError(
                f"Expected a difference below {largest:.4g}, by which the scores of the two models differ per example "
                f"on average, got {abs(mean):g}. Try {largest / 2:.2g}.",
                code="unreachable",
            )
        scaled = residual / np.abs(residual).max()  # so that MAX_TILT suits any score

        def shares(strength: float) -> np.ndarray:
            """Return the probability to draw each unit at a strength of the tilt, lambda times the largest |r|."""
            exponent = strength * scaled
            weights = self.share * np.exp(exponent - exponent.max())
            return weights / weights.sum()

        strength = find_root(lambda s: float(shares(s) @ scaled), -MAX_TILT, MAX_TILT)
        return replace(self, share=shares(strength))

    def p_value(self, n: int, rng: np.random.Generator) -> float:
        """Draw n units and return the p-value of the paired test of `metrics.compare`, from the sums that it needs."""
        if n < len(self.weight):  # few draws: faster than a count for every unit
            index = np.searchsorted(self._cumulative_share, rng.random(n), side="right")
            index = np.minimum(index, len(self.share) - 1)  # the last sum may be below 1 by rounding
            count = np.ones(n)
        else:  # count how often each unit is drawn
            index, count = slice(None), rng.multinomial(n, self.share)
        w, d = self.weight[index], self.difference[index]
        low, high = self.extremes[:, index][:, count > 0]
        columns = [np.ones(len(w)), w, d, w**2, w * d, d**2]  # as in `PairedScores.sums`
        return metrics.paired_p_value([*(np.stack(columns) @ count).tolist(), float(low.min()), float(high.max())])


def observed_pairs(first: Predictions, second: Predictions, metric: Metric[...]) -> PairedUnits:
    """Return the differences of a metric between two models on the same examples, by example or by cluster.

    Raises:
        InputError: If a score is infinite, or there is only one cluster.
    """
    values = to_finite_array(metrics.PairedScores(first, second).values(metric))
    w = np.ones(len(first)) if first.weights is None else first.weights
    if first.clusters is None:
        return PairedUnits.from_examples(values, w, unit=None)
    cluster = np.unique(first.clusters, return_inverse=True)[1]
    if cluster.max() == 0:
        raise InputError("Expected at least two clusters, got one. Try predictions of several.", code="one_cluster")
    return PairedUnits.from_examples(values, w, cluster)


def to_finite_array(scores: Sequence[np.ndarray]) -> np.ndarray:
    """Return the smallest, actual and largest scores (3, n). Raise `InputError` if any is infinite."""
    array = np.stack([*scores])
    if not np.isfinite(array).all():
        raise InputError("Expected finite scores, got probabilities of 0 for true classes. Try brier.", code="infinite")
    return array


def assumed_pairs(scores: np.ndarray, correlation: float, clusters: Clusters | None, seed: int) -> PairedUnits:
    """Return differences of two models whose scores have the given distribution and correlation.

    The differences are drawn at random, and their mean is about 0. The second score equals the first with probability
    `correlation` and is drawn anew otherwise. In a cluster, an example has the difference of the cluster with
    probability sqrt(icc), and one of its own otherwise: two examples then have the correlation icc.

    Args:
        scores: Smallest score of each example over its possible labels, actual one, and largest one, (3, n).
        correlation: Correlation of the scores of the two models.
        clusters: Clusters of future examples.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng([seed, 0])

    def draw(n: int) -> np.ndarray:
        """Draw the smallest, actual and largest difference (3, n)."""
        first_index, second_index = rng.integers(scores.shape[1], size=(2, n))
        # The rows are second minus first: smallest - largest, actual - actual, largest - smallest
        difference = scores[:, second_index] - scores[::-1, first_index]
        return difference * (rng.random(n) >= correlation)  # 0 if the second score equals the first

    if clusters is None:
        return PairedUnits.from_examples(draw(NUM_PAIRS), np.ones(NUM_PAIRS), unit=None)
    num_clusters = NUM_PAIRS // 4  # fewer draws, as a cluster has several examples
    cluster = np.repeat(np.arange(num_clusters), rng.choice(clusters.sizes, num_clusters))
    is_common = rng.random(len(cluster)) < math.sqrt(min(clusters.icc, MAX_CLUSTER_CORRELATION))
    values = np.where(is_common, draw(num_clusters)[:, cluster], draw(len(cluster)))
    return PairedUnits.from_examples(values, np.ones(len(cluster)), cluster)


def population_scores(population: Population, name: str, seed: int) -> np.ndarray:
    """Return the smallest, actual and largest score (3, n) of examples drawn from a population of a calibrated model.

    `name` is a key of `ASSUMED_SCORES`. An outcome is drawn with the probability that the confidence states.
    """
    if name not in ASSUMED_SCORES:
        raise InputError(
            f"Expected a metric among {', '.join(ASSUMED_SCORES)} without predictions, got {name!r}. Try accuracy.",
            code="metric_from_assumption",
        )
    rng = np.random.default_rng([seed, 1])
    c = rng.choice(population.confidence, NUM_PAIRS, p=population.share)
    score = ASSUMED_SCORES[name]
    wrong, right = score(c, np.zeros(NUM_PAIRS)), score(c, np.ones(NUM_PAIRS))
    value = np.where(rng.random(NUM_PAIRS) < c, right, wrong)
    return np.stack([np.minimum(wrong, right), value, np.maximum(wrong, right)])
