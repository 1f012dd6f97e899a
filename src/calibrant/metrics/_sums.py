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

from calibrant._bins import Bins, ClusterSums, Judged, Moments, Ties, equal_width_edges, equal_width_index
from calibrant.catalog import METRICS
from calibrant.metrics._moments import expected
from calibrant.metrics._results import SHARE, Interval, Sample
from calibrant.predictions import Predictions
from calibrant.types import InputError

UNIT = 52  # numbers are counted in units of 2^-52
COARSE = 40  # and squared log-likelihoods of 2^-40
WORD = 26  # bits of a word; sums of the integers are kept in three words
HALF = 36  # bits of the lower of two words, of a cell
ROWS = 1 << 13  # examples added at a time: sums of words that float64 holds exactly
HEAVIEST = 1 << 20  # weight of an example
SURE = 0.99

FEATURES = (  # what is summed over the examples of every bin; all but the first count an example by its weight
    *("rows", "mass", "correct", "happened", "gap", "gap_square", "variance", "nll", "nll_square", "infinite"),
    *("brier", "brier_square", "sure", "sure_happened", "gap_square_square"),
)
MEANS = {
    "nll": "nll",
    "brier": "brier",
    "event_brier": "gap_square",
    "signed_gap": "gap",
}  # metrics whose interval is that of a mean
SHARES = {  # metrics that are one sum as a share of another
    "accuracy": ("correct", "mass"),
    "confident_share": ("sure", "mass"),
    "confident_accuracy": ("sure_happened", "sure"),
    "happened": ("happened", "mass"),  # how often what is judged did
}


class Sums(Judged):
    """What is read from sums over bins of equal width, and over bins of sets of clusters."""

    SLOTS: ClassVar[int] = 64  # sets that clusters are joined in
    IN_SLOTS: ClassVar[tuple[str, ...]] = FEATURES  # what is summed up of each

    k: int  # number of classes
    bins: int
    sums: Tensor  # (3 f b) int64, over bins of equal width, in words of 26 bits, the lowest first
    slots: Tensor | None  # (3 f m b) int64: `sums` of every set of clusters

    @property
    def mass(self) -> float:
        """How many examples there are, each counted as often as its weight says."""
        return self.total("mass")

    def interval(self, name: str, level: float = 0.90) -> Interval:
        """A metric by name with the interval that holds the truth with probability `level`."""
        if name in SHARES:
            hits, mass = SHARES[name]
            return self._sample(hits, hits, mass).bounded(SHARE, level)
        if name in MEANS:
            sample = self._sample(MEANS[name], f"{MEANS[name]}_square")
            return sample.bounded(expected(name, self.moments(self.bins), self.k), level)
        settings = self._settings(name)
        return METRICS[name].interval_of(self, level=level, **settings)  # pyright: ignore[reportFunctionMemberAccess]

    def _settings(self, name: str) -> dict[str, int]:
        """A metric of bins has as many as the summary."""
        return {"bins": self.bins} if "bins" in inspect.signature(METRICS[name]).parameters else {}

    def _sample(self, name: str, square: str, mass: str = "mass") -> Sample:
        """Sample of one feature, from its sum and that of its squares, over what counts as `mass`."""
        n = self.total(mass)
        mean = self.mean(name, mass)
        parts = None
        if self.slots is not None:
            parts = (self._per_slot(mass).sum(1), self._per_slot(name).sum(1))
        return Sample.of_sums(n, mean, self.total(square) - n * mean**2, parts)

    def mean(self, name: str, mass: str = "mass") -> float:
        """Mean of one feature over all examples, or what counts as `mass`; nan of none."""
        n = self.total(mass)
        return math.inf if name == "nll" and self.total("infinite") > 0 else self.total(name) / n if n else math.nan

    def per_bin(self, name: str) -> Tensor:
        """Sums of one feature over the bins, in float64 on the CPU."""
        return number(self.sums[:, FEATURES.index(name)], name)

    def _per_slot(self, name: str) -> Tensor:
        """The same for every set of clusters (m b)."""
        assert self.slots is not None
        return number(self.slots[:, self.IN_SLOTS.index(name)].flatten(1), name).view(self.SLOTS, self.bins)

    @cached_property
    def _clusters(self) -> ClusterSums | None:
        """What the sets of clusters add to the bins that are not empty."""
        if self.slots is None:
            return None
        some = self.per_bin("mass") > 0
        mass, happened, gap = (self.per_bin(name)[some] for name in ("mass", "happened", "gap"))
        return ClusterSums((happened + gap) / mass, self._per_slot("mass")[:, some], -self._per_slot("gap")[:, some])

    def total(self, name: str) -> float:
        """Sum of one feature over all examples."""
        return float(self.per_bin(name).sum())

    def moments(self, bins: int) -> Moments:
        """The moments of the bins of equal width."""
        self._has(bins)
        names = ("mass", "happened", "gap", "gap_square", "variance")
        mass, happened, gap, square, variance = map(self.per_bin, names)
        return Moments(mass, happened + gap, gap, square, variance, self._clusters)

    def equal_width(self, bins: int) -> Bins:
        """The bins of equal width."""
        self._has(bins)
        mass, happened, gap = (self.per_bin(name) for name in ("mass", "happened", "gap"))
        return Bins.of_sums(equal_width_edges(self.bins), mass, happened, gap)

    def _has(self, bins: int) -> None:
        if bins != self.bins:
            raise InputError(f"this summary was made with {self.bins} bins, not {bins}", code="num_bins")


@dataclass(frozen=True, eq=False)
class Group(Sums):
    """The sums of one group."""

    IN_SLOTS: ClassVar[tuple[str, ...]] = ("mass", "happened", "gap")

    bins: int
    sums: Tensor  # (3 f b)
    slots: Tensor | None  # (3 3 m b)
    k: int = 2

    @cached_property
    def ties(self) -> Ties:
        """Its bins: what is known of the order of its confidences."""
        some = self.per_bin("mass") > 0
        mass, happened, gap = (self.per_bin(name)[some] for name in ("mass", "happened", "gap"))
        return Ties((happened + gap) / mass, mass, happened, self._clusters)


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
        kinds, code = p.groups.unique(return_inverse=True)
        there = [p.group_names[i] for i in kinds.tolist()]
        names, m = tuple(sorted({*self.names, *there})), Sums.SLOTS
        index_of = {name: i for i, name in enumerate(names)}
        place = torch.tensor([index_of[name] for name in there], device=code.device)[code]
        mine = self.among(names)
        sums = _scattered(mine.sums, words, place * bins + index, (3, len(FEATURES), len(names), bins))
        if slot is None:
            return GroupSums(names, sums)
        some = [FEATURES.index(name) for name in Group.IN_SLOTS]
        kept = words.view(3, len(FEATURES), -1)[:, some].flatten(0, 1)
        where = (place * m + slot) * bins + index
        return GroupSums(names, sums, _scattered(mine.slots, kept, where, (3, len(some), len(names), m, bins)))

    def among(self, names: tuple[str, ...]) -> "GroupSums":
        """The same with room for more groups."""
        if names == self.names or self.sums is None:
            return GroupSums(names, self.sums, self.slots)
        index_of = {name: i for i, name in enumerate(names)}
        at = torch.tensor([index_of[name] for name in self.names], device=self.sums.device)

        def wide(part: Tensor | None) -> Tensor | None:
            if part is None:
                return None
            return part.new_zeros(*part.shape[:2], len(names), *part.shape[3:]).index_copy_(2, at, part)

        return GroupSums(names, wide(self.sums), wide(self.slots))

    def __add__(self, other: "GroupSums") -> "GroupSums":
        """Both together."""
        names = tuple(sorted({*self.names, *other.names}))
        parts = (self.among(names), other.among(names))
        return GroupSums(names, *(merged(*(getattr(part, x) for part in parts)) for x in ("sums", "slots")))

    def __iter__(self) -> Iterator[tuple[str, Group]]:
        assert self.sums is not None
        for i, name in enumerate(self.names):
            yield (
                name,
                Group(self.sums.shape[-1], self.sums[:, :, i], None if self.slots is None else self.slots[:, :, i]),
            )


def merged(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Both sums, or whichever there is, where the first is."""
    if one is None or other is None:
        return other if one is None else one
    return carry(one + other.to(one.device), WORD)


def _scattered(sums: Tensor | None, words: Tensor, index: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sums with rows added, each at its index into all but the first two dimensions."""
    sums = torch.zeros(shape, dtype=torch.int64, device=words.device) if sums is None else sums.clone()
    size = math.prod(shape[2:])
    place = torch.arange(len(words), device=index.device)[:, None] * size + index
    sums.view(-1).index_add_(0, place.flatten().to(sums.device), words.flatten().long().to(sums.device))
    return carry(sums, WORD)


def number(words: Tensor, name: str) -> Tensor:
    """What three words (3 b) say of one feature, in float64 on the CPU."""
    unit = COARSE if name == "nll_square" else UNIT
    sums = ((w << 2 * WORD) + (v << WORD) + u for u, v, w in zip(*words.tolist(), strict=True))
    return torch.tensor([x / 2**unit for x in sums], dtype=torch.float64)


def slot_of(p: Predictions) -> Tensor:
    """The set that every row's cluster belongs to: the sum of the hashes of its rows, whatever their order."""
    assert p.clusters is not None
    hashes = torch.from_numpy(p.row_hashes.view(np.int64)).to(p.clusters.device)
    total = torch.zeros(int(p.clusters.max()) + 1, dtype=torch.int64, device=p.clusters.device)
    total.index_add_(0, p.clusters, hashes)
    return ((total >> 16) % Sums.SLOTS)[p.clusters]


def words_of(p: Predictions, bins: int) -> tuple[Tensor, Tensor]:
    """The features of every row in integers, in three words (3 f n), and its bin of equal width."""
    outcomes, events = p.outcomes, p.events
    c, a = events.confidence, events.happened
    u, nll, brier = c - a, 0.0 - outcomes.log_likelihood, outcomes.brier
    infinite = nll.isinf()
    nll = nll.masked_fill(infinite, 0.0).clamp_max(65536.0)
    coarse = 2.0 ** (COARSE - UNIT)
    sure, ones = (c >= SURE).double(), torch.ones_like(c)
    rows = [ones, outcomes.correct, a, u, u.square(), c * (1 - c), nll, nll.square() * coarse]
    rows += [infinite.double(), brier, brier.square(), sure, sure * a, u.square().square()]
    values = torch.stack(rows)
    values = torch.cat([ones[None], values if events.weights is None else values * events.weights])
    units = values.mul_(2.0**UNIT).round_()
    upper = (units * 2.0 ** (-2 * WORD)).floor_()
    units = units.sub_(upper * 2.0 ** (2 * WORD))
    middle = (units * 2.0**-WORD).floor_()
    words = torch.cat([units.sub_(middle * 2.0**WORD), middle, upper])  # whose sums float64 holds exactly
    return words, equal_width_index(bins, c)


def binned(words: Tensor, index: Tensor, bins: int) -> Tensor:
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
