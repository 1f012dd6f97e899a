"""Exact sums of row statistics over bins, for all examples, every group and sets of clusters."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Annotated, TypeVar

import numpy as np
from jaxtyping import Int64

from calibrant._core.kernels.bins import ClusterSums, EventStatistics, GroupedScores, Moments, allow_rounding
from calibrant._core.types import Count, InputError, OpenFraction, Range, Size, check_arguments
from calibrant.metrics._intervals import SHARE, Interval, Sample
from calibrant.predictions import Predictions

UNIT_BITS = 52  # numbers are counted in units of 2^-52
COARSE_UNIT_BITS = 40  # and squared log-likelihoods in units of 2^-40
WORD_BITS = 26  # bits of each of the three words of a sum, the lowest word first
MAX_NLL = 65536.0
MAX_WEIGHT = 1 << 20  # largest weight of an example
CELL_WORD_BITS = 36  # bits of the lower of the two words of a cell of a `Summary`
HIGH_CONFIDENCE = allow_rounding(0.99)
NUM_SLOTS = 64  # sets into which clusters are joined

# Row statistics that are summed over every bin of equal width, times the weight of the row but for the first, in the
# order of the compiled kernel `add_to_summary`. "gap" is u = confidence - outcome; "confident" is 1 for confidences of
# at least `HIGH_CONFIDENCE`.
FEATURES = (
    *("rows", "weight", "correct", "outcome", "gap", "gap_square", "variance", "nll", "nll_square", "infinite"),
    *("brier", "brier_square", "confident", "confident_outcome", "gap_fourth"),
)
NUM_GROUP_SLOT_FEATURES = 5  # first features that are also summed per group and set of clusters
BinWords = Int64[np.ndarray, "3 15 bins"]
SlotWords = Int64[np.ndarray, "3 f 64 bins"]
GroupNames = Annotated[tuple[str, ...], Size("g")]
GroupWords = Int64[np.ndarray, "3 15 g b"]
GroupSlotWords = Int64[np.ndarray, "3 5 g 64 b"]
Sums = TypeVar("Sums")


@dataclass(frozen=True, eq=False)
class BinSums(EventStatistics):
    """Statistics of an event from sums over equal-width bins, in total and for every set of clusters."""

    k: Annotated[int, Range(ge=0)]  # number of classes, 0 before the first batch
    bins: Count
    sums: BinWords  # (3 f b) int64, over bins of equal width, in words of 26 bits, the lowest first
    slots: SlotWords | None = field(repr=False)  # (3 f m b) int64, `sums` of every set; f may be 5 in groups

    @cached_property
    def by_score(self) -> GroupedScores:
        """The bins that are not empty, in place of distinct confidences."""
        moments = self.moments(self.bins)
        is_occupied = moments.total_weight > 0
        columns = moments.total_weight, moments.confidence_sum, moments.outcome_sum
        weight, c, a = (column[is_occupied] for column in columns)
        return GroupedScores(c / weight, weight, a, self._clusters)

    @property
    def total_weight(self) -> float:
        """Total weight of the examples."""
        return self.total("weight")

    def total(self, name: str) -> float:
        """Return the sum of a feature over all examples."""
        return float(self.per_bin(name).sum())

    def mean(self, name: str, weight: str = "weight") -> float:
        """Return the sum of a feature divided by the sum of `weight`, or nan if the divisor is 0.

        The NLL is infinite if any row has an infinite one, which its sum leaves out.
        """
        if name == "nll" and self.total("infinite") > 0:
            return math.inf
        n = self.total(weight)
        return self.total(name) / n if n else math.nan

    def sample(self, name: str, square: str, weight: str) -> Sample:
        """Return the mean of a feature and its precision.

        Args:
            name: Feature, of `FEATURES`, whose sum is divided by the sum of the weight.
            square: Feature that holds its square, such as "nll_square".
            weight: Feature that holds the weight.
        """
        n, mean = self.total(weight), self.mean(name, weight)
        clusters = None if self.slots is None else (self._per_slot(weight).sum(1), self._per_slot(name).sum(1))
        return Sample.from_sums(n, mean, self.total(square) - n * mean**2, clusters)  # sum of (value - mean)^2

    @check_arguments
    def frequency(self, level: OpenFraction = 0.90) -> Interval:
        """Return the frequency of the event with its interval."""
        return self.sample("outcome", "outcome", "weight").bounded_interval(SHARE, level)

    def per_bin(self, name: str) -> np.ndarray:
        """Return the sums of a feature over the bins, in float64."""
        return from_fixed_point(self.sums[:, FEATURES.index(name)], name)

    def _per_slot(self, name: str) -> np.ndarray:
        """Return a feature's sums in every bin and set of clusters, (m b)."""
        assert self.slots is not None  # called only for sums with clusters
        return from_fixed_point(self.slots[:, FEATURES.index(name)].reshape(3, -1), name).reshape(NUM_SLOTS, self.bins)

    @cached_property
    def _clusters(self) -> ClusterSums | None:
        """Sums of the sets of clusters in the bins that are not empty, or None without clusters."""
        if self.slots is None:
            return None
        weight, a, u = (self.per_bin(name) for name in ("weight", "outcome", "gap"))
        occupied = weight > 0
        confidence = (a + u)[occupied] / weight[occupied]  # sums of u = c - a plus sums of a are sums of c
        n, u = self._per_slot("weight"), self._per_slot("gap")
        return ClusterSums(confidence, n[:, occupied], -u[:, occupied])  # residuals are outcomes minus c

    def moments(self, bins: int) -> Moments:
        """Return sums over the summary's bins of equal width. Raises `InputError` for another number of bins."""
        if bins != self.bins:
            raise InputError(
                f"Expected {self.bins} bins, which this summary was made with, got {bins}. Try a new summary.",
                code="num_bins",
            )
        names = "weight", "outcome", "gap", "gap_square", "variance"
        weight, outcome, gap, gap_square, variance = map(self.per_bin, names)
        confidence = outcome + gap  # as gap = confidence - outcome
        return Moments(weight, confidence, outcome, gap, gap_square, variance, self._clusters)


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The sums of every group: 5 KB each, 130 KB with clusters."""

    names: GroupNames  # in alphabetical order
    sums: GroupWords  # (3 f g b) int64
    slots: GroupSlotWords | None  # (3 5 g m b) int64

    def __add__(self, addend: "GroupSums") -> "GroupSums":
        """Merge, group by group."""
        names = tuple(sorted({*self.names, *addend.names}))
        a, b = self._align(names), addend._align(names)
        return GroupSums(names, add_words(a.sums, b.sums), add_optional(a.slots, b.slots, add_words))

    def _align(self, names: tuple[str, ...]) -> "GroupSums":
        """Return the sums for the groups `names`, which include all groups of `self`; new groups have sums of 0."""
        if names == self.names:
            return self
        index_of = {name: i for i, name in enumerate(names)}
        index = np.array([index_of[name] for name in self.names])

        def expand(part: np.ndarray) -> np.ndarray:
            """Return sums (3 f g ...) with the groups, their third dimension, in the order of `names`."""
            expanded = np.zeros((*part.shape[:2], len(names), *part.shape[3:]), dtype=np.int64)
            expanded[:, :, index] = part
            return expanded

        return GroupSums(names, expand(self.sums), None if self.slots is None else expand(self.slots))

    def __iter__(self) -> Iterator[tuple[str, BinSums]]:
        for i, name in enumerate(self.names):
            slots = None if self.slots is None else self.slots[:, :, i]
            yield name, BinSums(2, self.sums.shape[-1], self.sums[:, :, i], slots)  # 2 classes: the event, or not


class SumBuilder:
    """Sums of one batch over bins, in total and by group and set of clusters, added up chunk by chunk."""

    def __init__(self, p: Predictions, bins: int) -> None:
        """Prepare tables of zeros for the batch p: in total, and by group and set of clusters if it has them."""
        self.bins = bins
        # Tables of sums (3 f ... b): three words of each sum, features, groups or sets of clusters if any, and bins.
        # Beside each, the index (n) of every row in the dimensions before the bins, or None if there are none
        self._targets: list[tuple[np.ndarray, np.ndarray | None]] = []
        slot = None if p.clusters is None else cluster_slots(p)
        self.sums = self._target(len(FEATURES), None)
        self.slots = None if slot is None else self._target(len(FEATURES), slot, NUM_SLOTS)
        self.groups = self._group_target(p.groups, p.group_names, slot)
        self.row_groups = self._group_target(p.row_groups, p.row_group_names, slot)

    def _target(self, num_features: int, index: np.ndarray | None, *shape: int) -> np.ndarray:
        """Return a table of zeros (3 f *shape b) for `add`: three words of f features in b bins.

        Args:
            num_features: Number f of features.
            index: Flat index in `shape` at which each row is added, (n), or None if there is no shape.
            *shape: Sizes of the dimensions of groups and sets of clusters, if any.
        """
        sums = np.zeros((3, num_features, *shape, self.bins), dtype=np.int64)
        self._targets.append((sums, index))
        return sums

    def _group_target(
        self, groups: np.ndarray | None, group_names: tuple[str, ...] | None, slot: np.ndarray | None
    ) -> GroupSums | None:
        """Return empty sums of the groups that occur, in the order of their names, or None without groups.

        Args:
            groups: Index of the group of each row (n).
            group_names: Names of the groups, of which some may not occur.
            slot: Set of the cluster of each row (n), or None without clusters.
        """
        if groups is None or group_names is None:
            return None
        # the groups that occur, and the position of each row's group among them
        codes, code = np.unique(groups, return_inverse=True)
        present = [group_names[i] for i in codes.tolist()]
        names = tuple(sorted(present))
        index_of = {name: i for i, name in enumerate(names)}
        index = np.array([index_of[name] for name in present])[code]
        sums, slots = self._target(len(FEATURES), index, len(names)), None
        if slot is not None:
            slots = self._target(NUM_GROUP_SLOT_FEATURES, index * NUM_SLOTS + slot, len(names), NUM_SLOTS)
        return GroupSums(names, sums, slots)

    def add(self, rows: slice, features: np.ndarray, index: np.ndarray) -> None:
        """Add rows to all tables.

        Args:
            rows: Slice of the rows of the batch.
            features: Their `row_features`, (f rows).
            index: Index of the bin of each, (rows).
        """
        words = to_words(features, 3, WORD_BITS)
        for sums, outer_index in self._targets:
            flat_index = index if outer_index is None else outer_index[rows] * self.bins + index
            add_rows(sums, words[:, : sums.shape[1]], flat_index)  # sets of clusters in groups have fewer features

    def carry(self) -> None:
        """Bring the words of all sums into their range, so that equal sums have equal words."""
        for sums, _ in self._targets:
            carry(sums, WORD_BITS)


def row_features(p: Predictions) -> np.ndarray:
    """Return the features of every row (f n), in float64 and in the order of `FEATURES`."""
    outcomes, events = p.outcomes, p.events
    c, a = events.confidence, events.outcome
    unit, _, _, u, square, variance = Moments.terms(c, a)
    nll, brier = 0.0 - outcomes.log_likelihood, outcomes.brier
    infinite, confident = np.isinf(nll).astype(float), (c >= HIGH_CONFIDENCE).astype(float)
    nll = np.minimum(np.where(infinite == 1, 0.0, nll), MAX_NLL)  # "infinite" counts the rows that are 0 here
    features = [unit, unit, outcomes.correct, a, u, square, variance, nll]
    nll_square = np.square(nll) * 2.0 ** (COARSE_UNIT_BITS - UNIT_BITS)  # in coarser units, see `COARSE_UNIT_BITS`
    features += [nll_square, infinite, brier, np.square(brier)]
    values = np.stack([*features, confident, confident * a, np.square(square)])
    if events.weights is not None:
        values[1:] *= events.weights  # "rows", the first feature, counts rows of any weight
    return values


def cluster_slots(p: Predictions) -> np.ndarray:
    """Return the set of every row's cluster, (n).

    It depends only on the sum of the hashes of the cluster's rows, so that neither the order of rows nor the numbers of
    clusters matter.
    """
    assert p.clusters is not None  # called only for predictions with clusters
    total = np.zeros(int(p.clusters.max()) + 1, dtype=np.int64)
    np.add.at(total, p.clusters, p.row_hashes.view(np.int64))  # wraps around at 64 bits
    return ((total >> 16) % NUM_SLOTS)[p.clusters]  # any six bits of the sum would do


# Integers of several words


def to_words(values: np.ndarray, num_words: int, bits: int) -> np.ndarray:
    """Round values (...) to multiples of 2^-52, and split these integers into words, (num_words ...), the lowest first.

    All words but the last have `bits` bits. They are whole numbers in float64.
    """
    rest, words = np.round(values * 2.0**UNIT_BITS), list[np.ndarray]()
    for i in range(num_words - 1, 0, -1):
        word = np.floor(rest * 2.0 ** (-i * bits))
        rest = rest - (word * 2.0 ** (i * bits))
        words.append(word)
    return np.stack([rest, *words[::-1]])


def from_fixed_point(words: np.ndarray, name: str) -> np.ndarray:
    """Return the sums of a feature from their three words (3 b), in float64."""
    unit = COARSE_UNIT_BITS if name == "nll_square" else UNIT_BITS
    low, middle, high = words.tolist()  # integers of Python, which have no largest value
    # integers in units of 2^-unit
    sums = (a + (b << WORD_BITS) + (c << 2 * WORD_BITS) for a, b, c in zip(low, middle, high, strict=True))
    return np.array([x / 2**unit for x in sums])  # exact integers up to this division


def add_rows(sums: np.ndarray, words: np.ndarray, flat_index: np.ndarray) -> None:
    """Add words (w f n) of rows to sums (w f ...) in place, each row at its index (n) in the other dimensions."""
    size = math.prod(sums.shape[2:])
    for word_sums, word in zip(sums, words, strict=True):
        for total, values in zip(word_sums, word, strict=True):
            # exact: whole numbers whose sums over the rows of a chunk are below 2^53
            total += np.bincount(flat_index, values, size).astype(np.int64).reshape(total.shape)


def carry(words: np.ndarray, bits: int) -> np.ndarray:
    """Carry what exceeds `bits` bits of a word to the next word, in place, and return the words.

    Words (w ...) are the digits of integers, the lowest first. The last word takes any size.
    """
    for lower, higher in pairwise(words):
        higher += lower >> bits
        lower &= (1 << bits) - 1
    return words


def add_words(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Add two sums in words of `WORD_BITS` bits, on the device of the first."""
    return carry(first + second, WORD_BITS)


def add_optional(first: Sums | None, second: Sums | None, add: Callable[[Sums, Sums], Sums]) -> Sums | None:
    """Add two sums by `add`, or return the sum that is not None if only one is given."""
    if first is None or second is None:
        return second if first is None else first
    return add(first, second)
