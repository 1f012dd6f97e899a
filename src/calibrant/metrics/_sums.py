"""Exact sums over bins: of all examples, and of every group of them."""

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.bins import (
    Bins,
    ClusterSums,
    EventStatistics,
    GroupedScores,
    Moments,
    equal_width_edges,
    equal_width_index,
)
from calibrant.metrics._intervals import EXPECTED_SHARE, Interval, Sample
from calibrant.metrics._moments import expected_score
from calibrant.predictions import Predictions
from calibrant.registry import METRICS
from calibrant.types import InputError

UNIT_BITS = 52  # numbers are counted in units of 2^-52
COARSE_UNIT_BITS = 40  # and squared log-likelihoods of 2^-40
WORD_BITS = 26  # bits of a word; sums of the integers are kept in three words
CELL_WORD_BITS = 36  # bits of the lower of two words, of a cell
CHUNK_ROWS = 1 << 13  # examples added at a time: sums of words that float64 holds exactly
MAX_WEIGHT = 1 << 20  # weight of an example
HIGH_CONFIDENCE = 0.99

FEATURES = (  # what is summed over the examples of every bin; all but the first count an example by its weight
    *("rows", "mass", "correct", "happened", "gap", "gap_square", "variance", "nll", "nll_square", "infinite"),
    *("brier", "brier_square", "sure", "sure_happened", "gap_square_square"),
)
MEAN_FEATURES = {
    "nll": "nll",
    "brier": "brier",
    "event_brier": "gap_square",
    "signed_gap": "gap",
}  # metrics whose interval is that of a mean
SHARE_FEATURES = {  # metrics that are one sum as a share of another
    "accuracy": ("correct", "mass"),
    "confident_share": ("sure", "mass"),
    "confident_accuracy": ("sure_happened", "sure"),
    "happened": ("happened", "mass"),  # how often what is judged did
}


class BinSums(EventStatistics):
    """What is read from sums over bins of equal width, and over bins of sets of clusters."""

    NUM_SLOTS: ClassVar[int] = 64  # sets that clusters are joined in
    SLOT_FEATURES: ClassVar[tuple[str, ...]] = FEATURES  # what is summed up of each

    k: int  # number of classes
    bins: int
    sums: Tensor  # (3 f b) int64, over bins of equal width, in words of 26 bits, the lowest first
    slots: Tensor | None  # (3 f m b) int64: `sums` of every set of clusters

    @property
    def total_weight(self) -> float:
        """How many examples there are, each counted as often as its weight says."""
        return self.total("mass")

    def interval(self, name: str, level: float = 0.90) -> Interval:
        """A metric by name with the interval that holds the truth with probability `level`."""
        if name in SHARE_FEATURES:
            hits, mass = SHARE_FEATURES[name]
            return self._sample(hits, hits, mass).bounded_interval(EXPECTED_SHARE, level)
        if name in MEAN_FEATURES:
            sample = self._sample(MEAN_FEATURES[name], f"{MEAN_FEATURES[name]}_square")
            return sample.bounded_interval(expected_score(name, self.moments(self.bins), self.k), level)
        settings = self._settings(name)
        return METRICS[name].interval_from_view(self, level=level, **settings)  # pyright: ignore[reportFunctionMemberAccess]

    def _settings(self, name: str) -> dict[str, int]:
        """A metric of bins has as many as the summary."""
        return {"bins": self.bins} if "bins" in inspect.signature(METRICS[name]).parameters else {}

    def _sample(self, name: str, square: str, weight_feature: str = "mass") -> Sample:
        """Sample of one feature, from its sum and that of its squares, over what counts as `mass`."""
        n = self.total(weight_feature)
        mean = self.mean(name, weight_feature)
        parts = None
        if self.slots is not None:
            parts = (self._per_slot(weight_feature).sum(1), self._per_slot(name).sum(1))
        return Sample.from_sums(n, mean, self.total(square) - n * mean**2, parts)

    def mean(self, name: str, weight_feature: str = "mass") -> float:
        """Mean of one feature over all examples, or what counts as `mass`; nan of none."""
        n = self.total(weight_feature)
        return math.inf if name == "nll" and self.total("infinite") > 0 else self.total(name) / n if n else math.nan

    def per_bin(self, name: str) -> Tensor:
        """Sums of one feature over the bins, in float64 on the CPU."""
        return from_fixed_point(self.sums[:, FEATURES.index(name)], name)

    def _per_slot(self, name: str) -> Tensor:
        """The same for every set of clusters (m b)."""
        assert self.slots is not None
        return from_fixed_point(self.slots[:, self.SLOT_FEATURES.index(name)].flatten(1), name).view(
            self.NUM_SLOTS, self.bins
        )

    @cached_property
    def _clusters(self) -> ClusterSums | None:
        """What the sets of clusters add to the bins that are not empty."""
        if self.slots is None:
            return None
        nonempty = self.per_bin("mass") > 0
        mass, outcome, gap = (self.per_bin(name)[nonempty] for name in ("mass", "happened", "gap"))
        return ClusterSums(
            (outcome + gap) / mass, self._per_slot("mass")[:, nonempty], -self._per_slot("gap")[:, nonempty]
        )

    def total(self, name: str) -> float:
        """Sum of one feature over all examples."""
        return float(self.per_bin(name).sum())

    def moments(self, bins: int) -> Moments:
        """The moments of the bins of equal width."""
        self._check_bins(bins)
        names = ("mass", "happened", "gap", "gap_square", "variance")
        mass, outcome, gap, square, variance = map(self.per_bin, names)
        return Moments(mass, outcome + gap, gap, square, variance, self._clusters)

    def equal_width(self, bins: int) -> Bins:
        """The bins of equal width."""
        self._check_bins(bins)
        mass, outcome, gap = (self.per_bin(name) for name in ("mass", "happened", "gap"))
        return Bins.from_sums(equal_width_edges(self.bins), mass, outcome, gap)

    def _check_bins(self, bins: int) -> None:
        if bins != self.bins:
            raise InputError(f"this summary was made with {self.bins} bins, not {bins}", code="num_bins")


@dataclass(frozen=True, eq=False)
class GroupBinSums(BinSums):
    """The sums of one group."""

    SLOT_FEATURES: ClassVar[tuple[str, ...]] = ("mass", "happened", "gap")

    bins: int
    sums: Tensor  # (3 f b)
    slots: Tensor | None  # (3 3 m b)
    k: int = 2

    @cached_property
    def ties(self) -> GroupedScores:
        """Its bins: what is known of the order of its confidences."""
        nonempty = self.per_bin("mass") > 0
        mass, outcome, gap = (self.per_bin(name)[nonempty] for name in ("mass", "happened", "gap"))
        return GroupedScores((outcome + gap) / mass, mass, outcome, self._clusters)


@dataclass(frozen=True, eq=False)
class GroupSums:
    """The sums of every group: 5 KB for each, 75 KB where there are clusters."""

    names: tuple[str, ...] = ()  # in alphabetical order
    sums: Tensor | None = None  # (3 f g b) int64
    slots: Tensor | None = None  # (3 3 g m b) int64

    def add(self, p: Predictions, words: Tensor, index: Tensor, slot: Tensor | None, bins: int) -> "GroupSums":
        """The same with more rows, their features in words, and of each its bin and the set of its cluster."""
        assert p.groups is not None
        assert p.group_names is not None
        codes, code = p.groups.unique(return_inverse=True)
        present = [p.group_names[i] for i in codes.tolist()]
        names, m = tuple(sorted({*self.names, *present})), BinSums.NUM_SLOTS
        index_of = {name: i for i, name in enumerate(names)}
        place = torch.tensor([index_of[name] for name in present], device=code.device)[code]
        expanded = self.expand_to(names)
        sums = _scatter_add(expanded.sums, words, place * bins + index, (3, len(FEATURES), len(names), bins))
        if slot is None:
            return GroupSums(names, sums)
        slot_features = [FEATURES.index(name) for name in GroupBinSums.SLOT_FEATURES]
        slot_words = words.view(3, len(FEATURES), -1)[:, slot_features].flatten(0, 1)
        slot_index = (place * m + slot) * bins + index
        return GroupSums(
            names,
            sums,
            _scatter_add(expanded.slots, slot_words, slot_index, (3, len(slot_features), len(names), m, bins)),
        )

    def expand_to(self, names: tuple[str, ...]) -> "GroupSums":
        """The same with room for more groups."""
        if names == self.names or self.sums is None:
            return GroupSums(names, self.sums, self.slots)
        index_of = {name: i for i, name in enumerate(names)}
        positions = torch.tensor([index_of[name] for name in self.names], device=self.sums.device)

        def wide(part: Tensor | None) -> Tensor | None:
            if part is None:
                return None
            return part.new_zeros(*part.shape[:2], len(names), *part.shape[3:]).index_copy_(2, positions, part)

        return GroupSums(names, wide(self.sums), wide(self.slots))

    def __add__(self, other: "GroupSums") -> "GroupSums":
        """Both together."""
        names = tuple(sorted({*self.names, *other.names}))
        parts = (self.expand_to(names), other.expand_to(names))
        return GroupSums(names, *(add_words(*(getattr(part, x) for part in parts)) for x in ("sums", "slots")))

    def __iter__(self) -> Iterator[tuple[str, GroupBinSums]]:
        assert self.sums is not None
        for i, name in enumerate(self.names):
            yield (
                name,
                GroupBinSums(
                    self.sums.shape[-1], self.sums[:, :, i], None if self.slots is None else self.slots[:, :, i]
                ),
            )


def add_words(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Both sums, or whichever there is, where the first is."""
    if first is None or second is None:
        return second if first is None else first
    return carry(first + second.to(first.device), WORD_BITS)


def _scatter_add(sums: Tensor | None, words: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sums with rows added, each at its index into all but the first two dimensions."""
    sums = torch.zeros(shape, dtype=torch.int64, device=words.device) if sums is None else sums.clone()
    size = math.prod(shape[2:])
    place = torch.arange(len(words), device=index.device)[:, None] * size + index
    sums.view(-1).index_add_(0, place.flatten().to(sums.device), words.flatten().long().to(sums.device))
    return carry(sums, WORD_BITS)


def from_fixed_point(words: Tensor, name: str) -> Tensor:
    """What three words (3 b) say of one feature, in float64 on the CPU."""
    unit = COARSE_UNIT_BITS if name == "nll_square" else UNIT_BITS
    sums = ((w << 2 * WORD_BITS) + (v << WORD_BITS) + u for u, v, w in zip(*words.tolist(), strict=True))
    return torch.tensor([x / 2**unit for x in sums], dtype=torch.float64)


def cluster_slots(p: Predictions) -> Tensor:
    """The set that every row's cluster belongs to: the sum of the hashes of its rows, whatever their order."""
    assert p.clusters is not None
    hashes = torch.from_numpy(p.row_hashes.view(np.int64)).to(p.clusters.device)
    total = torch.zeros(int(p.clusters.max()) + 1, dtype=torch.int64, device=p.clusters.device)
    total.index_add_(0, p.clusters, hashes)
    return ((total >> 16) % BinSums.NUM_SLOTS)[p.clusters]


def to_fixed_point(p: Predictions, bins: int) -> tuple[Tensor, Tensor]:
    """The features of every row in integers, in three words (3 f n), and its bin of equal width."""
    outcomes, events = p.outcomes, p.events
    c, a = events.confidence, events.outcome
    u, nll, brier = c - a, 0.0 - outcomes.log_likelihood, outcomes.brier
    infinite = nll.isinf()
    nll = nll.masked_fill(infinite, 0.0).clamp_max(65536.0)
    coarse = 2.0 ** (COARSE_UNIT_BITS - UNIT_BITS)
    is_confident, ones = (c >= HIGH_CONFIDENCE).double(), torch.ones_like(c)
    rows = [ones, outcomes.correct, a, u, u.square(), c * (1 - c), nll, nll.square() * coarse]
    rows += [infinite.double(), brier, brier.square(), is_confident, is_confident * a, u.square().square()]
    values = torch.stack(rows)
    values = torch.cat([ones[None], values if events.weights is None else values * events.weights])
    units = values.mul_(2.0**UNIT_BITS).round_()
    upper = (units * 2.0 ** (-2 * WORD_BITS)).floor_()
    units = units.sub_(upper * 2.0 ** (2 * WORD_BITS))
    middle = (units * 2.0**-WORD_BITS).floor_()
    words = torch.cat([units.sub_(middle * 2.0**WORD_BITS), middle, upper])  # whose sums float64 holds exactly
    return words, equal_width_index(bins, c)


def sum_words_by_bin(words: Tensor, index: Tensor, bins: int) -> Tensor:
    """Integer sums over bins (3 f b)."""
    place = torch.arange(len(words), device=index.device)[:, None] * bins + index
    return torch.bincount(place.flatten(), words.flatten(), minlength=len(words) * bins).long().view(3, -1, bins)


def carry(words: Tensor, bits: int) -> Tensor:
    """The same sums with every word but the last below 2^bits."""
    words = words.clone()
    for lower, higher in pairwise(words):
        higher += lower >> bits
        lower &= (1 << bits) - 1
    return words
