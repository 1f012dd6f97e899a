"""Statistics of events: confidences and outcomes, sorted, grouped by equal confidence, or summed over bins.

The file is long because these forms need each other: groups are cut into bins, and events have both.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from calibrant._core.kernels.dispatch import kernels
from calibrant._core.kernels.sorting import TIE_TOLERANCE, group_ties, is_packable, sort_scores
from calibrant._core.kernels.threads import map_chunks
from calibrant._core.types import PerBin, PerExample, Sums

_CELL_MANTISSA_BITS = 10  # 1,024 cells for every factor of two in the odds
FIRST_ODDS_CELL = (1023 - 40) << _CELL_MANTISSA_BITS  # odds of an error below 2^-40 share the first cell
NUM_ODDS_CELLS = 60 << _CELL_MANTISSA_BITS  # up to odds of 2^20
_MIN_CHUNK_ROWS = 1 << 15
_SUM_BLOCK_ROWS = 1 << 20  # values that are summed before their sum is added to the total
_NEAR_EDGE = 1e-6  # distance from an edge, in widths of a bin, below which rounding may choose the wrong bin
MIN_DISPERSION = 1e-12  # smallest dispersion of fractional outcomes; smaller gaps are rounding errors
WEIGHT_ROUNDING = 1e-9  # largest rounding error of the sum of the weights of the parts of an example
MAX_CLUSTER_SLOTS = 512  # most clusters, and most bins of confidence, whose sums are kept apart


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """Sums of m clusters in g bins of confidence, from which metrics estimate the variance between clusters.

    More than 512 clusters are joined into 512 sets of whole clusters. A bin may hold a single confidence. Empty bins
    are left out.
    """

    value: np.ndarray  # (g) float64, mean confidence of a bin
    total_weight: np.ndarray  # (m g) float64
    residual: np.ndarray  # (m g) float64, sum of outcomes minus confidences

    @classmethod
    def from_events(
        cls, clusters: np.ndarray, bin_index: np.ndarray, bins: int, weights: np.ndarray, c: np.ndarray, a: np.ndarray
    ) -> "ClusterSums":
        """Sum the weights and the residuals, outcome minus confidence, of events by cluster and bin.

        Args:
            clusters: Index of the cluster of each event, (n) int64.
            bin_index: Index of the bin of each event, (n) int64 below `bins`.
            bins: Number of bins.
            weights: Weights, (n).
            c: Confidences, (n).
            a: Outcomes, 0 or 1 or fractional, (n).
        """
        num_clusters = min(int(clusters.max()) + 1, MAX_CLUSTER_SLOTS)  # more are joined by their index modulo 512
        index = (clusters % num_clusters) * bins + bin_index

        def total(values: np.ndarray) -> np.ndarray:
            """Return the sum of the values (n) in every cluster and bin, (m bins)."""
            return bin_sums(index, values, num_clusters * bins).reshape(num_clusters, bins)

        n = total(weights)
        occupied = n.sum(0) > 0
        # the mean is the minimum plus the mean excess over it: exact in a bin of equal confidences
        least = np.full(bins, math.inf)
        np.minimum.at(least, bin_index, c)
        excess = bin_sums(bin_index, weights * (c - least[bin_index]), bins)
        value = least[occupied] + excess[occupied] / n.sum(0)[occupied]
        return cls(value, n[:, occupied], total(weights * (a - c))[:, occupied])

    def equal_mass(self, bins: int) -> "ClusterSums":
        """Return the sums over `bins` bins of equal mass, merged from the finer bins of this object.

        If an edge lies inside one of the finer bins, its sums are divided between both sides by weight.
        """
        n = self.total_weight.sum(0)
        # rows: weight, weighted confidence, then the weights and the residuals of the m clusters
        running = _cumulative_sums(n, n * self.value, *self.total_weight, *self.residual)
        sums = _sums_between_cuts(_equal_mass_cuts(bins, running[0, -1], _is_integer(n)), running)
        sums = sums[:, sums[0] > 0]  # without empty bins
        weight_sum, confidence_sum = sums[:2]
        weight, residual = np.split(sums[2:], 2)
        return ClusterSums(confidence_sum / weight_sum, weight, residual)


@dataclass(frozen=True, eq=False)
class GroupedScores:
    """Examples sorted and grouped by equal confidence.

    Neighbors whose confidences differ by at most `TIE_TOLERANCE` are equal: sums over the classes in another order
    differ by as much.
    """

    value: np.ndarray  # (g) float64, distinct confidences in increasing order
    total_weight: np.ndarray  # (g) float64, > 0
    correct: np.ndarray  # (g) float64, weight of the examples for which the event happened
    clusters: ClusterSums | None = None  # in no more than 512 bins of equal mass
    fraction_variance: float = 0.0  # weighted sum of a (1 - a) over the outcomes a; 0 unless some are fractional
    dispersion: float = 1.0  # variance of outcomes divided by that of outcomes of 0 or 1; 1 unless some are fractional

    @classmethod
    def from_scores(
        cls,
        confidence: PerExample,
        outcome: PerExample,
        weights: PerExample | None = None,
        clusters: np.ndarray | None = None,
    ) -> "GroupedScores":
        """Sort examples by confidence and group equal ones. Examples of weight 0 are left out.

        Args:
            confidence: Probability of the event, (n).
            outcome: 1 if the event happened, else 0, or a mean of such outcomes, (n).
            weights: Weights, (n); 1 by default.
            clusters: Index of the cluster of each example, (n), if examples may depend on each other.
        """
        # Integers that hold confidence and outcome sort much faster
        if weights is None and clusters is None and is_packable(confidence, outcome):
            return cls._from_sorted(*sort_scores(confidence, outcome), None)[0]
        if weights is not None:
            positive = weights > 0
            confidence, outcome, weights = confidence[positive], outcome[positive], weights[positive]
            clusters = None if clusters is None else clusters[positive]
        order = confidence.argsort(kind="stable")
        c, a, w = confidence[order], outcome[order], None if weights is None else weights[order]
        grouped, index = cls._from_sorted(c, a, w)
        if clusters is None:
            return grouped
        # At most 512 bins of confidence, to bound the memory of the sums by cluster and bin
        bin_index = grouped.slot_indices(MAX_CLUSTER_SLOTS)[index]
        w = np.ones_like(a) if w is None else w
        sums = ClusterSums.from_events(clusters[order], bin_index, MAX_CLUSTER_SLOTS, w, c, a)
        return replace(grouped, clusters=sums)

    @classmethod
    def _from_sorted(cls, c: np.ndarray, a: np.ndarray, w: np.ndarray | None) -> tuple["GroupedScores", np.ndarray]:
        """Group examples by their sorted confidences c, with outcomes a and weights w, each (n).

        Returns:
            The groups, and the index of every example's group, (n).
        """
        value, index, count = group_ties(c)
        correct = a if w is None else w * a
        total_weight = count if w is None else w
        if len(value) < len(index):  # some confidences are equal
            correct = np.bincount(index, correct)
            total_weight = count if w is None else np.bincount(index, w)
        return cls(value, total_weight, correct), index

    @cached_property
    def cumulative_sums(self) -> np.ndarray:
        """Rows of running sums, each from 0 (4, g + 1): weight, weighted confidence, weighted outcome, `variance`."""
        return _cumulative_sums(self.total_weight, self.total_weight * self.value, self.correct, self.variance)

    @property
    def cumulative_weight(self) -> np.ndarray:
        """Running sum of the weights from 0, (g + 1)."""
        return self.cumulative_sums[0]

    def equal_mass_cuts(self, bins: int) -> np.ndarray:
        """Return the cumulative weight at the b + 1 ends of b bins of equal mass, from 0 to the total."""
        return _equal_mass_cuts(bins, self.cumulative_weight[-1], self._has_integer_weights)

    @cached_property
    def _has_integer_weights(self) -> bool:
        """Whether all weights are integers, that is numbers of copies, which bins of equal mass do not divide."""
        return _is_integer(self.total_weight)

    def slot_indices(self, max_slots: int) -> np.ndarray:
        """Return an index below `max_slots` for each group of equal confidence, (g), in increasing order.

        It is the group's own index if there are few enough groups. Otherwise neighboring groups share slots, which have
        nearly equal mass.
        """
        if len(self.value) <= max_slots:
            return np.arange(len(self.value))
        share_below = (self.total_weight.cumsum(0) - self.total_weight / 2) / self.total_weight.sum()  # mid-rank
        return (share_below * max_slots).astype(np.int64)

    @property
    def accuracy(self) -> np.ndarray:
        """Frequency of the event in every group."""
        return self.correct / self.total_weight

    @property
    def residual(self) -> np.ndarray:
        """Sum of outcomes minus confidences of every group."""
        return -(self.total_weight * self.value) + self.correct

    @property
    def variance(self) -> np.ndarray:
        """Variance of `residual` in every group if every confidence is true."""
        return (1 - self.value) * self.value * self.total_weight * self.dispersion

    @cached_property
    def residual_square(self) -> float:
        """Weighted sum over the examples of the squared difference between outcome and confidence.

        The groups hold a fractional outcome a like outcomes of 0 and 1 with the mean a, whose squares add a (1 - a) too
        much. The sum of these excesses is `fraction_variance`.
        """
        misses = self.total_weight - self.correct
        return (
            self.correct * np.square(1 - self.value) + misses * np.square(self.value)
        ).sum() - self.fraction_variance


@dataclass(frozen=True, eq=False)
class Moments:
    """Sums of confidence c, outcome a and u = c - a in every bin of equal width."""

    total_weight: PerBin
    confidence_sum: PerBin
    outcome_sum: PerBin
    u_sum: PerBin
    u_square_sum: PerBin
    variance: PerBin  # sum of c (1 - c): variance of the number of events if every confidence is true
    clusters: ClusterSums | None = None  # in the bins that are not empty
    dispersion: float = 1.0  # variance of outcomes divided by that of outcomes of 0 or 1; 1 unless some are fractional

    @property
    def noise(self) -> PerBin:
        """Variance of the sum of u if every confidence is true."""
        return self.variance * self.dispersion

    @staticmethod
    def terms(c: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return six numbers per row, (n) each, whose sums over a bin are the first six fields.

        Args:
            c: Confidences, (n).
            a: Outcomes, (n).
        """
        u = c - a
        return np.ones_like(c), c, a, u, np.square(u), c * (1 - c)


class EventStatistics:
    """Statistics of one event: sorted confidences and sums over bins, all that most calibration metrics need.

    `Events` computes them from rows, `metrics.Summary` from sums that were added up batch by batch.
    """

    @cached_property
    def by_score(self) -> GroupedScores:
        """The events, sorted and grouped by equal confidence."""
        raise NotImplementedError

    def moments(self, bins: int) -> Moments:
        """Return sums over `bins` bins of equal width."""
        raise NotImplementedError

    def equal_width(self, bins: int) -> "Bins":
        """Return the bins of equal width."""
        return Bins.from_moments(self.moments(bins))


@dataclass(frozen=True, eq=False)
class Events(EventStatistics):
    """One event per row: its confidence, outcome and weight. Rows with equal `examples` are parts of one example."""

    confidence: PerExample
    outcome: PerExample
    weights: PerExample | None = None
    clusters: np.ndarray | None = None  # (n) int64, of examples that may depend on each other
    examples: np.ndarray | None = None  # (n) int64, index of the example of each row; None if every row is an example
    fraction_variance: float = 0.0  # as in `GroupedScores`
    dispersion: float = 1.0  # as in `GroupedScores`

    def __len__(self) -> int:
        return len(self.confidence)

    def __getitem__(self, rows: Any) -> "Events":
        """Select rows by slice, mask or indices."""
        columns = (self.weights, self.clusters, self.examples)
        weights, clusters, examples = (None if column is None else column[rows] for column in columns)
        return Events(self.confidence[rows], self.outcome[rows], weights, clusters, examples)

    @cached_property
    def merged(self) -> "Events":
        """Events with one row per example, whose confidence and outcome are weighted means over its parts.

        A mean outcome may be fractional.
        """
        if self.examples is None:  # every row is an example
            return self
        columns = np.stack([self.confidence.astype(float), self.outcome.astype(float)])
        (c, a), weights, clusters = merge_examples(columns, self.weights, self.clusters, self.examples)
        w = np.ones_like(c) if weights is None else weights
        variance = float((w * a * (1 - a)).sum())
        return Events(c, a, weights, clusters, None, variance, outcome_dispersion(c, a, w, clusters))

    @cached_property
    def by_score(self) -> GroupedScores:
        """The events, sorted and grouped by equal confidence."""
        if self.examples is not None:  # several events per example
            return self.merged.by_score
        by_score = GroupedScores.from_scores(self.confidence, self.outcome, self.weights, self.clusters)
        # These two numbers come from single events, which the groups no longer hold
        return replace(by_score, fraction_variance=self.fraction_variance, dispersion=self.dispersion)

    def moments(self, bins: int) -> Moments:
        """Return sums over bins of equal width, computed once for every number of bins."""
        if self.examples is not None:  # several rows per example
            return self.merged.moments(bins)
        cache: dict[int, Moments] = self.__dict__.setdefault("_moments", {})  # fields of the class are frozen
        if bins not in cache:
            cache[bins] = replace(self._compute_moments(bins), dispersion=self.dispersion)
        return cache[bins]

    def _compute_moments(self, bins: int) -> Moments:
        """Sum the rows of each of `bins` bins, by the compiled kernel if there is one, otherwise by numpy."""
        c, a = self.confidence.astype(float), self.outcome.astype(float)
        w = None if self.weights is None else self.weights.astype(float)
        compiled, clusters = kernels(c), None
        needs_index = compiled is None or self.clusters is not None  # the kernel finds the bins itself
        index = equal_width_index(bins, c) if needs_index else np.empty(0)
        if self.clusters is not None:
            weights = np.ones_like(c) if w is None else w
            clusters = ClusterSums.from_events(self.clusters, index, bins, weights, c, a)
        if compiled is not None:
            return Moments(*_compiled_bin_sums(compiled.event_bin_sums, c, a, w, bins), clusters=clusters)
        sums = (bin_sums(index, x if w is None else w * x, bins) for x in Moments.terms(c, a))
        return Moments(*sums, clusters=clusters)


def outcome_dispersion(c: np.ndarray, a: np.ndarray, w: np.ndarray, clusters: np.ndarray | None = None) -> float:
    r"""Return the dispersion of outcomes a in [0, 1] with means c: their variance relative to outcomes 0 or 1.

    It is $\sum u^2 / \sum c (1 - c)$ with the gaps u = a - c, each term weighted by w, and at most 1, because no
    outcome in [0, 1] varies more than one of 0 or 1 with the same mean. As few large gaps may determine it, it is
    multiplied by (m + 1) / (m - 1), in which $m = (\sum u^2)^2 / \sum u^4$ is the effective number of examples (Kish
    1965). A cluster counts as one example.
    """
    square = np.square(a - c)
    observed, binary = float((w * square).sum()), float((w * c * (1 - c)).sum())  # sum of u^2, and if all a were 0 or 1
    if binary == 0:  # all confidences are 0 or 1
        return 1.0
    if observed <= MIN_DISPERSION * binary:  # all gaps are rounding errors
        return MIN_DISPERSION
    fourth = (w * np.square(square)).sum() if clusters is None else np.square(np.bincount(clusters, w * square)).sum()
    m = observed**2 / float(fourth)
    if m <= 1 + 1e-9:  # one effective example: the factor is infinite, and the limit of 1 applies
        return 1.0
    return min(1.0, observed / binary * (m + 1) / (m - 1))


def merge_examples(
    values: np.ndarray, weights: np.ndarray | None, clusters: np.ndarray | None, examples: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Average rows over the parts of every example.

    Args:
        values: Sums to average, (..., n).
        weights: Weights of the rows, (n); 1 if None.
        clusters: Index of the cluster of each row, (n), or None without clusters.
        examples: Index of the example of each row, (n).

    Returns:
        The means (..., m) of the m examples; their weights, or None if all are 1; and their clusters, or None if every
        example is a cluster.
    """
    _, index = np.unique(examples, return_inverse=True)
    w = np.ones_like(index, dtype=float) if weights is None else weights.astype(float)
    total = np.bincount(index, w)
    rows = (w * values.astype(float)).reshape(-1, len(index))
    # 1e-300: the mean of an example of weight 0 is 0
    means = np.stack([np.bincount(index, row, minlength=len(total)) for row in rows]) / np.maximum(total, 1e-300)
    merged_clusters = None
    if clusters is not None and not np.array_equal(clusters, examples):
        # The parts of an example belong to one cluster
        merged_clusters = np.zeros(len(total), dtype=np.int64)
        merged_clusters[index] = clusters
    is_unweighted = bool((abs(total - 1) < WEIGHT_ROUNDING).all())  # the parts of every example weigh 1 together
    return means.reshape(*values.shape[:-1], -1), None if is_unweighted else total, merged_clusters


def _compiled_bin_sums(kernel: Any, c: np.ndarray, a: np.ndarray, w: np.ndarray | None, bins: int) -> np.ndarray:
    """Return the sums (6, b) of `Moments` by the kernel `compiled.event_bin_sums`.

    Chunks of rows are summed on their own and then added in order, so that the number of threads changes no bit. c, a
    and w are the confidences, outcomes and weights, (n) float64.
    """
    # A chunk has many more rows than sums, which therefore take little memory
    edges, chunk_rows = equal_width_edges(bins), max(_MIN_CHUNK_ROWS, 64 * bins)
    w = np.zeros(0) if w is None else w  # an empty array means no weights to the kernel
    confidences, outcomes, weights = (np.ascontiguousarray(part) for part in (c, a, w))
    chunk_sums = np.zeros((math.ceil(len(c) / chunk_rows), 6, bins))

    def add_chunk(i: int) -> None:
        """Add the rows of chunk i to its own sums."""
        rows = slice(i * chunk_rows, (i + 1) * chunk_rows)
        kernel(confidences[rows], outcomes[rows], weights[rows], edges, chunk_sums[i])

    map_chunks(add_chunk, range(len(chunk_sums)), chunk_rows)
    return chunk_sums.sum(0)


@dataclass(frozen=True, eq=False)
class Bins:
    """Mean confidence and accuracy of every bin, for ECE, reliability diagrams and binning calibrators.

    Empty bins have weight 0 and nan for confidence and accuracy.
    """

    edges: np.ndarray  # (b + 1) float64
    weight: PerBin  # share of the total weight
    confidence: PerBin  # mean confidence
    accuracy: PerBin  # frequency of the event
    count: np.ndarray  # (b) int64, total weight rounded to a whole number of examples

    @property
    def gap(self) -> PerBin:
        """Accuracy minus confidence, 0 in empty bins: positive if underconfident."""
        return np.nan_to_num(self.accuracy - self.confidence, nan=0.0)

    @property
    def worst_bin(self) -> int:
        """Index of the bin with the largest absolute gap. Check its count, because the gap of few examples is noisy."""
        return int(abs(self.gap).argmax())

    @classmethod
    def from_sums(
        cls, edges: np.ndarray, n: PerBin, confidence_sum: PerBin, outcome_sum: PerBin, total: Sums | None = None
    ) -> "Bins":
        """Build bins from the sums of their examples.

        Args:
            edges: Edges of the bins, (b + 1).
            n: Total weight in every bin.
            confidence_sum: Weighted sum of confidences in every bin.
            outcome_sum: Weighted sum of outcomes in every bin.
            total: Weight of all examples; by default the total weight of the bins.
        """
        with np.errstate(invalid="ignore"):  # 0 / 0 without examples
            weight = n / (n.sum() if total is None else total)
        size = np.where(n > 0, n, np.nan)  # not 0, beside which rounding may leave sums that are not 0
        return cls(edges, weight, confidence_sum / size, outcome_sum / size, np.round(n).astype(np.int64))

    @classmethod
    def from_moments(cls, moments: Moments) -> "Bins":
        """Build bins of equal width from sums over their examples."""
        n = moments.total_weight
        edges = equal_width_edges(len(n))
        return cls.from_sums(edges, n, moments.confidence_sum, moments.outcome_sum)

    @classmethod
    def from_edges(
        cls, edges: np.ndarray, confidence: PerExample, correct: PerExample, weights: PerExample | None = None
    ) -> "Bins":
        """Sort examples into bins (edges[i], edges[i+1]].

        Examples outside all bins are left out but still count in the total, so that `weight` may sum to less than 1.

        Args:
            edges: Increasing edges, (b + 1).
            confidence: Confidences, (n).
            correct: Outcomes, 0 or 1 or fractional, (n).
            weights: Weights, (n); 1 by default.
        """
        b, index = len(edges) - 1, assign_bins(edges, confidence)
        index = np.where((index >= 0) & (index < b), index, b)  # an additional bin, b, collects the examples outside
        w = np.ones_like(confidence, dtype=float) if weights is None else weights
        n, c, a = (bin_sums(index, x, b + 1) for x in (w, w * confidence, w * correct))
        return cls.from_sums(edges, n[:b], c[:b], a[:b], n.sum())

    @classmethod
    def equal_mass(cls, bins: int, by_score: GroupedScores) -> "Bins":
        """Divide sorted examples into bins of equal numbers of examples, whatever the row order.

        Of n examples, the first n mod b bins hold one more than the others, as in numpy's array_split. Examples of
        equal confidence share their mean outcome, so that an edge inside a tie does not depend on the row order. With
        fewer examples than bins the last bins are empty. If weights are not whole numbers, all bins have the same mass.
        """
        cuts = by_score.equal_mass_cuts(bins)
        # index of the group that ends at each cut or is divided by it, whose confidence is the edge
        last = np.clip(np.searchsorted(by_score.cumulative_weight, cuts) - 1, 0, len(by_score.value) - 1)
        weight, confidence_sum, outcome_sum = _sums_between_cuts(cuts, by_score.cumulative_sums[:3])
        total = by_score.cumulative_weight[-1]
        return cls.from_sums(by_score.value[last], weight, confidence_sum, outcome_sum, total)

    @classmethod
    def undivided(cls, bins: int, by_score: GroupedScores) -> "Bins":
        """Divide sorted examples into bins of about equal mass that keep examples of equal confidence together.

        They belong to the bin in which `equal_mass` puts the first of them, so that bins may be empty. The outer edges
        are 0 and 1; each inner edge lies halfway between two distinct confidences. `unbounded_bin_index` finds them.
        """
        ends = np.searchsorted(by_score.cumulative_weight, by_score.equal_mass_cuts(bins))  # groups below each end
        ends[-1] = len(by_score.value)
        below, value = ends[1:-1], np.concatenate([by_score.value, np.ones(1)])
        edges = np.concatenate([np.zeros(1), edges_between(value[below - 1], value[below]), value[-1:]])
        return cls.from_sums(edges, *np.diff(by_score.cumulative_sums[:3, ends]))


def bin_sums(index: np.ndarray, values: np.ndarray, bins: int) -> np.ndarray:
    """Return the sum of the values (n) in every bin, (bins), given the index (n) of each value's bin.

    Sums a million values at a time, so that the sum of a hundred million numbers keeps 13 digits.
    """
    blocks = (slice(first, first + _SUM_BLOCK_ROWS) for first in range(0, len(index) or 1, _SUM_BLOCK_ROWS))
    return np.sum([np.bincount(index[rows], values[rows], bins) for rows in blocks], axis=0)


def edges_between(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the midpoint of each pair of neighbors, or `low` if no number lies between them.

    The bin (..., edge] then ends at `low`, and `high` is above it. Beside an infinite neighbor, the edge lies 1 from
    the other one.

    >>> edges_between(np.array([0.0, -np.inf]), np.array([0.5, 2.0]))
    array([0.25, 1.  ])
    """
    low = np.where(np.isneginf(low), np.nan_to_num(high, posinf=2.0) - 2, low)
    high = np.where(np.isposinf(high), low + 2, high)
    middle = low + (high - low) / 2
    return np.where(middle < high, middle, low)


def assign_bins(edges: np.ndarray, confidence: PerExample) -> np.ndarray:
    """Return the index i of each example's bin (edges[i], edges[i+1]], from -1 (no edge is lower) to b (all are)."""
    return np.searchsorted(edges, confidence) - 1


def unbounded_bin_index(edges: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """Return the index of each example's bin, of which the first and the last have no outer end: 0 to b - 1."""
    return np.searchsorted(edges[1:-1], confidence)


def equal_width_index(bins: int, confidence: PerExample) -> np.ndarray:
    """Return the index i of each example's bin (i/b, (i+1)/b], where a confidence of 0 belongs to the first bin.

    Only confidences next to an edge (or nan) need a search among the edges: rounding may carry c b across an integer.

    >>> equal_width_index(10, np.array([0.0, 0.1, 0.15, 1.0], dtype=float))
    array([0, 0, 1, 9])
    """
    scaled = confidence.astype(float) * bins
    is_clear = abs(scaled - np.round(scaled)) > _NEAR_EDGE  # far enough from every edge; False for nan
    near_edge = np.flatnonzero(~is_clear)
    with np.errstate(invalid="ignore"):  # nan, which the search below replaces
        index = np.clip(np.ceil(scaled) - 1, 0, bins - 1).astype(np.int64)
    edges = equal_width_edges(bins)
    index[near_edge] = np.clip(assign_bins(edges, confidence[near_edge]), 0, bins - 1)
    return index


def odds_cell(confidence: PerExample) -> np.ndarray:
    """Return the index of the cell of every confidence, (n) int64 below `NUM_ODDS_CELLS`, the most confident first.

    Every factor of 2 in the odds of an error, 1/confidence - 1, has 1024 cells. The index is the exponent and the
    leading bits of the mantissa of the odds, read as an integer and counted from odds of 2^-40. Lower odds, and odds
    above 2^20, fall into the first and the last cell.
    """
    with np.errstate(divide="ignore"):
        odds = np.maximum(1 / confidence - 1, 0)
    # A float64 has 52 bits of mantissa below its exponent: the shift leaves the exponent and the 10 leading bits
    return np.clip((odds.view(np.int64) >> (52 - _CELL_MANTISSA_BITS)) - FIRST_ODDS_CELL, 0, NUM_ODDS_CELLS - 1)


def equal_width_edges(bins: int) -> np.ndarray:
    """Return the b + 1 float64 edges i/b."""
    return np.linspace(0, 1, bins + 1)


def mukhoti_edges(confidence: PerExample, bins: int, weights: PerExample | None = None) -> np.ndarray:
    """Return equal-mass edges as the authors of Mukhoti et al. (2020) interpolate them.

    The lowest edge is the smallest confidence itself, so that (lo, hi] leaves that example out: their published
    AdaECE values have this property, and so has AdaFocal (Ghosh et al. 2022).
    """
    positions, copies, n = sorted_copies(confidence, weights)
    # the sorted confidences, interpolated at b + 1 evenly spaced ranks from 0 to n
    return np.interp(np.linspace(0, n, bins + 1), positions, copies)


def sorted_copies(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray, float]:
    """Describe the sorted list that has as many copies of each value as its weight, without building the list.

    `np.interp` can then interpolate the list between positions.

    Returns:
        The positions in the list of the first and the last copy of each value, (2n) in increasing order; the values
        there, (2n); and the length of the list, which is the total weight.
    """
    order = np.argsort(values, kind="stable")
    x = values[order].astype(float)
    w = np.ones(len(x)) if weights is None else weights[order]
    end = w.cumsum()
    first_copy = end - w  # a weight below 1 gets this position twice
    positions = np.stack([first_copy, np.maximum(end - 1, first_copy)], 1).ravel()
    return positions, x.repeat(2), float(end[-1])


# Bins of equal mass


def _is_integer(weights: np.ndarray) -> bool:
    """Return whether all weights are whole numbers."""
    return bool((weights == np.round(weights)).all())


def _equal_mass_cuts(bins: int, total: float | Sums, integer_weights: bool) -> np.ndarray:
    """Return the cumulative mass at the b + 1 ends of b bins of equal mass that divide a total.

    With integer weights the masses are whole numbers, and the first bins have one more than the last ones.
    """
    if not integer_weights:
        return np.linspace(0, 1, bins + 1) * total
    base_size, num_larger = divmod(int(total), bins)  # the first `num_larger` bins hold one more
    index = np.arange(bins + 1)
    return (index * base_size + np.minimum(index, num_larger)).astype(float)


def allow_rounding(threshold: Any) -> Any:
    """Return the threshold, number or array, lowered by a rounding error: 0.9 may be 0.8999... after a logarithm."""
    return threshold * (1 - TIE_TOLERANCE)


def _cumulative_sums(*parts: np.ndarray) -> np.ndarray:
    """Return the running sums (r, g + 1) of r tensors (g), each from 0 to its total."""
    sums = np.empty((len(parts), len(parts[0]) + 1))
    sums[:, 0] = 0
    for row, part in zip(sums, parts, strict=True):
        np.cumsum(part, 0, out=row[1:])
    return sums


def _sums_between_cuts(cuts: np.ndarray, running: np.ndarray) -> np.ndarray:
    """Return the sums (r, b) between b + 1 cuts of the weight, given running sums (r, g + 1) with the weight first.

    The running sums are interpolated at each cut: a group that it divides adds to both sides by its weight there.
    """
    cumulative_weight = running[0]
    # index of the end of the group that each cut divides
    right = np.clip(np.searchsorted(cumulative_weight, cuts), 1, len(cumulative_weight) - 1)
    low, high = running[:, right - 1], running[:, right]  # running sums before and after this group
    share = (cuts - low[0]) / (high[0] - low[0])  # of the group's weight below the cut
    return np.diff(low + (high - low) * np.clip(share, 0, 1), axis=1)
