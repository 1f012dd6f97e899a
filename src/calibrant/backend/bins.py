"""The one place that bins: events, sorted into ties or bins, hold what was said against what happened."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.dispatch import kernels
from calibrant.backend.threads import map_chunks
from calibrant.types import PerBin, PerExample

_CELL_MANTISSA_BITS = 10  # bits of the mantissa that tell cells apart: 1,024 cells for every factor of two in the odds
FIRST_ODDS_CELL = (1023 - 40) << _CELL_MANTISSA_BITS  # odds of a miss below 2^-40 share the first cell
NUM_ODDS_CELLS = 60 << _CELL_MANTISSA_BITS  # up to odds of 2^20
_MIN_CHUNK_ROWS = 1 << 15  # summed up at a time, at least
TIE_TOLERANCE = 2.0**-48  # share up to which numbers are equal but for rounding
MAX_CLUSTER_SLOTS = 512  # clusters, and places of confidence, that are told apart where their sums are kept together


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """What every cluster adds to every place of confidence: all that is needed to know how dependent events vary.

    More than 512 clusters are joined, evenly, into as many: sums of clusters vary as their clusters do.
    """

    value: Tensor  # (g) float64, mean confidence of a place
    total_weight: Tensor  # (m g) float64
    gap: Tensor  # (m g) float64: what happened minus what was said

    @classmethod
    def from_events(
        cls, clusters: Tensor, slot: Tensor, num_slots: int, weights: Tensor, confidence: Tensor, gap: Tensor
    ) -> "ClusterSums":
        """Of events, each with its cluster and its place; places without mass are left out."""
        num_clusters = min(int(clusters.max()) + 1, MAX_CLUSTER_SLOTS)
        index = (clusters % num_clusters) * num_slots + slot

        def total(values: Tensor) -> Tensor:
            return bin_sums(index, values, num_clusters * num_slots).view(num_clusters, num_slots)

        n = total(weights)
        is_occupied = n.sum(0) > 0
        value = bin_sums(slot, weights * confidence, num_slots)[is_occupied] / n.sum(0)[is_occupied]
        return cls(value, n[:, is_occupied], total(gap)[:, is_occupied])

    def equal_mass(self, bins: int) -> "ClusterSums":
        """The same by bins of equal mass, between whose ends a place is divided."""
        n = self.total_weight.sum(0)
        sums = _cumulative_sums(n, n * self.value, *self.total_weight, *self.gap)
        rows = _sums_between_cuts(_equal_mass_cuts(bins, sums[0, -1], _is_integer(n)), sums)
        rows = rows[:, rows[0] > 0]
        mass, gap = rows[2:].chunk(2)
        return ClusterSums(rows[1] / rows[0], mass, gap)


@dataclass(frozen=True, eq=False)
class GroupedScores:
    """Examples grouped by equal confidence, but for rounding, in increasing order.

    Neighbors are equal that differ by a share of at most `TIE`: sums over classes in another order differ by as much.
    """

    value: Tensor  # (g) float64, distinct confidences
    total_weight: Tensor  # (g) float64, > 0: number of examples, each counted as often as its weight says
    correct: Tensor  # (g) float64, the mass for which the event happened
    clusters: ClusterSums | None = None  # of examples that depend on each other, in 512 places of equal mass

    @classmethod
    def from_scores(
        cls,
        confidence: PerExample,
        outcome: PerExample,
        weights: PerExample | None = None,
        clusters: Tensor | None = None,
    ) -> "GroupedScores":
        """Sort and group; examples of weight 0 are left out."""
        if weights is not None:
            keep = weights > 0
            confidence, outcome, weights = confidence[keep], outcome[keep], weights[keep].to(confidence)
            clusters = None if clusters is None else clusters[keep]
        if weights is None and clusters is None and _is_packable(confidence, outcome):
            return cls._from_sorted(*_sort_scores(confidence, outcome))
        order = confidence.argsort(stable=True)
        outcome, w = outcome[order], None if weights is None else weights[order]
        value, index, mass = _group_ties(confidence[order])
        hits = outcome if w is None else w * outcome
        mass = mass if w is None else w
        if len(value) < len(index):
            zero = torch.zeros_like(value)
            hits = zero.index_add(0, index, hits)
            mass = mass if w is None else zero.index_add(0, index, w)
        if clusters is None:
            return cls(value, mass, hits)
        c, counts = confidence[order], torch.ones_like(outcome) if w is None else w
        slot = cls(value, mass, hits).slot_indices(MAX_CLUSTER_SLOTS)[index]
        sums = ClusterSums.from_events(clusters[order], slot, MAX_CLUSTER_SLOTS, counts, c, counts * (outcome - c))
        return cls(value, mass, hits, sums)

    @classmethod
    def _from_sorted(cls, value: Tensor, outcome: Tensor) -> "GroupedScores":
        """Group what is in order, and counts once each."""
        value, index, mass = _group_ties(value)
        if len(value) == len(outcome):
            return cls(value, mass, outcome)
        return cls(value, mass, torch.zeros_like(value).index_add_(0, index, outcome))

    @cached_property
    def cumulative_sums(self) -> Tensor:
        """Running sums from 0 (3 g+1): the mass, what was said, what happened."""
        return _cumulative_sums(self.total_weight, self.total_weight * self.value, self.correct)

    def equal_mass_cuts(self, bins: int) -> Tensor:
        """Cumulative mass at the ends of bins of equal mass."""
        return _equal_mass_cuts(bins, self.cumulative_sums[0, -1], self._has_integer_weights)

    @cached_property
    def _has_integer_weights(self) -> bool:
        return _is_integer(self.total_weight)

    def slot_indices(self, max_slots: int) -> Tensor:
        """The place of every group among `most` of nearly equal mass, or one for each where there are no more."""
        if len(self.value) <= max_slots:
            return torch.arange(len(self.value), device=self.value.device)
        share = (self.total_weight.cumsum(0) - self.total_weight / 2) / self.total_weight.sum()
        return (share * max_slots).long()

    @property
    def accuracy(self) -> Tensor:
        """Share of every group for which the event happened."""
        return self.correct / self.total_weight

    @cached_property
    def gap(self) -> Tensor:
        """Sum over every group of what happened minus what was said."""
        expected = self.total_weight * self.value
        return torch.sub(self.correct, expected, out=expected)

    @cached_property
    def variance(self) -> Tensor:
        """Variance of `gap` in every group if every confidence is true."""
        return (1 - self.value).mul_(self.value).mul_(self.total_weight)


class EventStatistics:
    """What calibration metrics need of events, whether every one of them is known or only their sums."""

    @cached_property
    def ties(self) -> GroupedScores:
        """Sorted and grouped by confidence."""
        raise NotImplementedError

    def moments(self, bins: int) -> "Moments":
        """Sums over bins of equal width."""
        raise NotImplementedError

    def equal_width(self, bins: int) -> "Bins":
        """Bins of equal width."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Events(EventStatistics):
    """One event per example: the probability it was given, whether it happened, and how often it counts."""

    confidence: PerExample
    outcome: PerExample
    weights: PerExample | None = None
    clusters: Tensor | None = None  # (n) int64, of examples that may depend on each other

    def __len__(self) -> int:
        return len(self.confidence)

    def __getitem__(self, rows: Any) -> "Events":
        """Of some of the rows."""
        optional_fields = (None if part is None else part[rows] for part in (self.weights, self.clusters))
        return Events(self.confidence[rows], self.outcome[rows], *optional_fields)

    @cached_property
    def ties(self) -> GroupedScores:
        """The events, sorted and grouped once for all that needs it."""
        return GroupedScores.from_scores(self.confidence, self.outcome, self.weights, self.clusters)

    def moments(self, bins: int) -> "Moments":
        """Sums over bins of equal width, made once."""
        cache: dict[int, Moments] = self.__dict__.setdefault("_moments", {})
        if bins not in cache:
            cache[bins] = self._compute_moments(bins)
        return cache[bins]

    def _compute_moments(self, bins: int) -> "Moments":
        sums = None
        if self.clusters is not None:
            c, w = self.confidence, self.weights
            weights = torch.ones_like(c) if w is None else w.to(c)
            index = equal_width_index(bins, c)
            sums = ClusterSums.from_events(self.clusters, index, bins, weights, c, weights * (self.outcome - c))
        return Moments.from_bin_totals(self.bin_totals(bins, 6), sums)

    def equal_width(self, bins: int) -> "Bins":
        """Bins of equal width."""
        return Bins.from_bin_totals(self.bin_totals(bins, 3))

    def bin_totals(self, bins: int, num_sums: int) -> Tensor:
        """Per bin of equal width (6 b): mass, sums of c, of what happened, of u = c - happened, u^2 and c (1 - c).

        Of the first parts only, where no more was asked for so far.
        """
        cache: dict[int, Tensor] = self.__dict__.setdefault("_known", {})
        if bins not in cache or len(cache[bins]) < num_sums:
            cache[bins] = self._compute_bin_totals(bins, num_sums)
        return cache[bins][:num_sums]

    def _compute_bin_totals(self, bins: int, num_sums: int) -> Tensor:
        c, a = self.confidence.double(), self.outcome.double()
        w = None if self.weights is None else self.weights.double()
        if fast := kernels(c):
            return _compiled_bin_sums(fast.event_bin_sums, c, a, w, bins, num_sums)
        index, u = equal_width_index(bins, c), c - a
        mass = torch.bincount(index, minlength=bins).double() if w is None else bin_sums(index, w, bins)
        further_terms = () if num_sums == 3 else (u, u.square(), c * (1 - c))
        return torch.stack([mass, *(bin_sums(index, x if w is None else w * x, bins) for x in (c, a, *further_terms))])


@dataclass(frozen=True, eq=False)
class Moments:
    """Per bin of equal width, with u = confidence - happened: the mass, and sums of c, u, u^2 and c (1 - c)."""

    total_weight: PerBin
    confidence_sum: PerBin
    gap: PerBin
    gap_square: PerBin
    variance: PerBin  # of the number of events, if every confidence is true
    clusters: ClusterSums | None = None  # in the bins that are not empty

    @classmethod
    def from_bin_totals(cls, totals: Tensor, clusters: ClusterSums | None = None) -> "Moments":
        """Of `Events.totals`."""
        total_weight, confidence_sum, _, gap, gap_square, variance = totals
        return cls(total_weight, confidence_sum, gap, gap_square, variance, clusters)


def _compiled_bin_sums(kernel: Any, x: Tensor, y: Tensor, w: Tensor | None, bins: int, num_sums: int) -> Tensor:
    """What a compiled pass sums up, bin by bin: many rows at a time, and their sums in order."""
    edges, size = equal_width_edges(bins).numpy(), max(_MIN_CHUNK_ROWS, 64 * bins)
    w = x.new_zeros(0, dtype=torch.float64) if w is None else w
    inputs, targets, weights = (part.contiguous().numpy() for part in (x, y, w))
    chunk_sums = np.zeros((-(-len(x) // size), num_sums, bins))

    def add_chunk(i: int) -> None:
        rows = slice(i * size, (i + 1) * size)
        kernel(inputs[rows], targets[rows], weights[rows], edges, chunk_sums[i])

    map_chunks(add_chunk, range(len(chunk_sums)), size * x[:1].numel())
    return torch.from_numpy(chunk_sums.sum(0))


@dataclass(frozen=True, eq=False)
class Bins:
    """Mean confidence against accuracy, bin by bin; what ECE, diagrams and binning calibrators share.

    Empty bins have weight 0 and nan for confidence and accuracy.
    """

    edges: Tensor  # (b + 1) float64
    weight: PerBin  # share of the examples, each counted as often as its weight says
    confidence: PerBin  # mean confidence
    accuracy: PerBin  # how often the event happened
    count: Tensor  # (b) int64, to the nearest whole number of examples

    @property
    def gap(self) -> PerBin:
        """Accuracy minus confidence, 0 in empty bins: positive where underconfident."""
        return (self.accuracy - self.confidence).nan_to_num(0.0)

    @property
    def worst_bin(self) -> int:
        """Index of the bin with the largest gap in absolute value; see its count before believing it."""
        return int(self.gap.abs().argmax())

    @classmethod
    def from_edges(
        cls,
        edges: Tensor,
        confidence: PerExample,
        correct: PerExample,
        weights: PerExample | None = None,
    ) -> "Bins":
        """Sort examples into (edges[i], edges[i+1]]; what lies outside all bins is left out.

        Left out examples still count in the whole, so that weights may sum to less than 1.
        """
        index = assign_bins(edges, confidence)
        inside = (index >= 0) & (index < len(edges) - 1)
        return cls._from_indices(edges, index.where(inside, len(edges) - 1), confidence, correct, weights)

    @classmethod
    def equal_width(
        cls,
        bins: int,
        confidence: PerExample,
        correct: PerExample,
        weights: PerExample | None = None,
    ) -> "Bins":
        """Bins ((i-1)/b, i/b] with float64 edges; confidence 0 belongs to the first (Guo et al. 2017)."""
        edges = equal_width_edges(bins).to(confidence.device)
        return cls._from_indices(edges, equal_width_index(bins, confidence), confidence, correct, weights)

    @classmethod
    def equal_mass(cls, bins: int, ties: GroupedScores) -> "Bins":
        """Bins of equal numbers of examples, whatever the row order.

        Sizes as numpy's array_split: the first n mod b bins hold one more. Examples of exactly equal confidence share
        what happened, so that a bin edge inside a tie does not depend on the row order. With fewer examples than bins
        the last bins are empty. Where weights are not whole numbers, all bins have the same mass.
        """
        sums, cuts = ties.cumulative_sums, ties.equal_mass_cuts(bins)
        mass, confidence, correct = _sums_between_cuts(cuts, sums)
        last = (torch.searchsorted(sums[0], cuts) - 1).clamp_(0, len(ties.value) - 1)
        return cls(
            edges=ties.value[last],
            weight=mass / sums[0, -1],
            confidence=confidence / mass,
            accuracy=correct / mass,
            count=mass.round().long(),
        )

    @classmethod
    def from_bin_totals(cls, totals: Tensor) -> "Bins":
        """Bins of equal width, of the first three of `Events.totals`."""
        total_weight, confidence_sum, outcome_sum = totals
        edges = equal_width_edges(len(total_weight)).to(total_weight.device)
        return cls(
            edges,
            total_weight / total_weight.sum(),
            confidence_sum / total_weight,
            outcome_sum / total_weight,
            total_weight.round().long(),
        )

    @classmethod
    def from_sums(cls, edges: Tensor, total_weight: PerBin, outcome_sum: PerBin, gap: PerBin) -> "Bins":
        """Bins whose sums are known: the mass, what happened, and what was said minus what happened."""
        return cls(
            edges=edges,
            weight=total_weight / total_weight.sum(),
            confidence=(outcome_sum + gap) / total_weight,
            accuracy=outcome_sum / total_weight,
            count=total_weight.round().long(),
        )

    @staticmethod
    def equal_mass_variance(bins: int, ties: GroupedScores) -> Tensor:
        """Per bin of equal mass, the variance of its number of events if every confidence is true."""
        return _sums_between_cuts(
            ties.equal_mass_cuts(bins), ties.cumulative_sums[:1], _cumulative_sums(ties.variance)
        )[1]

    @classmethod
    def _from_indices(
        cls, edges: Tensor, index: Tensor, confidence: Tensor, correct: Tensor, weights: Tensor | None
    ) -> "Bins":
        b = len(edges) - 1  # one slot more takes what is left out
        w = None if weights is None else weights.to(confidence)

        def total(values: Tensor) -> Tensor:
            return bin_sums(index, values if w is None else w * values, b + 1)[:b]

        mass = torch.bincount(index, minlength=b + 1).double() if w is None else bin_sums(index, w, b + 1)
        return cls(
            edges=edges,
            weight=mass[:b] / mass.sum(),
            confidence=total(confidence) / mass[:b],
            accuracy=total(correct) / mass[:b],
            count=mass[:b].round().long(),
        )


def bin_sums(index: Tensor, values: Tensor, bins: int) -> Tensor:
    """Sums of the values over bins, in blocks of a million: a hundred million addends still agree to 13 digits."""
    blocks = zip(index.split(1 << 20), values.split(1 << 20))
    return torch.stack([torch.bincount(i, v, minlength=bins) for i, v in blocks]).sum(0)


def assign_bins(edges: Tensor, confidence: PerExample) -> Tensor:
    """Index i of the bin (edges[i], edges[i+1]] of every example; -1 below the first, b above the last."""
    return torch.searchsorted(edges, confidence.to(edges).contiguous()) - 1


def equal_width_index(bins: int, confidence: PerExample) -> Tensor:
    """Index of the bin ((i-1)/b, i/b] of every example; 0 belongs to the first. A search only next to an edge.

    >>> equal_width_index(10, torch.tensor([0.0, 0.1, 0.15, 1.0], dtype=torch.float64))
    tensor([0, 0, 1, 9])
    """
    scaled = confidence.double() * bins
    near_edge = (~((scaled - scaled.round()).abs_() > 1e-6)).nonzero().squeeze(1)  # nan too
    index = scaled.ceil_().sub_(1).clamp_(0, bins - 1).long()
    edges = equal_width_edges(bins).to(confidence.device)
    index[near_edge] = assign_bins(edges, confidence[near_edge]).clamp_(0, bins - 1)
    return index


def odds_cell(confidence: PerExample) -> Tensor:
    """Index of one of `CELLS` cells, uniform in the logarithm of the odds of a miss to 1/1024; the surest come first.

    They are the leading bits of the odds.
    """
    odds = (1 / confidence - 1).clamp_min_(0)
    return ((odds.view(torch.int64) >> (52 - _CELL_MANTISSA_BITS)) - FIRST_ODDS_CELL).clamp_(0, NUM_ODDS_CELLS - 1)


def equal_width_edges(bins: int) -> Tensor:
    """The b + 1 float64 edges i/b of numpy's linspace (torch's differs in the last bit)."""
    return torch.from_numpy(np.linspace(0, 1, bins + 1))


def mukhoti_edges(confidence: PerExample, bins: int, weights: PerExample | None = None) -> Tensor:
    """Equal-mass edges as interpolated by the authors of Mukhoti et al. (2020).

    The lowest edge is the smallest confidence itself, so that (lo, hi] leaves that example out: their published
    AdaECE values have this property, and so has AdaFocal (Ghosh et al. 2022).
    """
    c, order = confidence.detach().cpu().double().sort()
    w = np.ones(len(c)) if weights is None else weights.detach().cpu().double()[order].numpy()
    end = w.cumsum()
    n = end[-1]
    position = np.stack([end - w, np.maximum(end - 1, end - w)], 1).ravel()  # of the first copy and of the last
    edges = np.interp(np.linspace(0, n, bins + 1), position, c.numpy().repeat(2))
    return torch.from_numpy(edges).to(confidence.device)


def _is_packable(score: Tensor, outcome: Tensor) -> bool:
    """Whether scores and what happened can be sorted as one 64-bit number each."""
    is_cpu_float64 = score.device.type == "cpu" and score.dtype == torch.float64
    return is_cpu_float64 and all(bool(((chunk == 0) | (chunk == 1)).all()) for chunk in outcome.split(_MIN_CHUNK_ROWS))


def pack_scores(value: Tensor, outcome: Tensor) -> np.ndarray:
    """Numbers without their signs, each with a 0 or 1, as integers in the same order.

    The bits of a positive number order as it does, and leave one free: sorting keys takes a tenth of the time of
    sorting an index and looking up by it.
    """
    keys = value.contiguous().numpy().view(np.uint64) << np.uint64(1)
    return np.bitwise_or(keys, outcome.numpy(), out=keys, dtype=np.uint64, casting="unsafe")


def unpack_scores(keys: np.ndarray) -> tuple[Tensor, Tensor]:
    """What was `packed`, in its place."""
    outcome = np.empty(keys.shape)
    np.bitwise_and(keys, np.uint64(1), out=outcome, casting="unsafe")
    keys >>= np.uint64(1)
    return torch.from_numpy(keys.view(np.float64)), torch.from_numpy(outcome)


def _sort_scores(score: Tensor, outcome: Tensor) -> tuple[Tensor, Tensor]:
    """Scores in increasing order, each with what happened, 0 or 1."""
    keys, is_negative = pack_scores(score, outcome), (score < 0).numpy()
    negative_keys, positive_keys = (keys[is_negative], keys[~is_negative]) if is_negative.any() else (keys[:0], keys)
    negative_keys.sort()
    positive_keys.sort()
    keys = np.concatenate([negative_keys[::-1], positive_keys]) if len(negative_keys) else positive_keys
    value, outcome = unpack_scores(keys)
    value[: len(negative_keys)].neg_()
    return value, outcome


def _group_ties(value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct ones of sorted values, the index of each value among them, and their counts as float64."""
    neighbors = zip(
        value[:-1].split(_MIN_CHUNK_ROWS), value[1:].split(_MIN_CHUNK_ROWS), strict=True
    )  # the smaller one may be finite
    starts_group = [high - low > torch.minimum(low.abs(), high.abs()).mul_(TIE_TOLERANCE) for low, high in neighbors]
    starts_group = torch.cat([torch.ones_like(value[:1], dtype=torch.bool), *starts_group])
    if bool(starts_group.all()):
        return value, torch.arange(len(value), device=value.device), torch.ones_like(value)
    index = starts_group.cumsum(0) - 1
    return value[starts_group], index, torch.bincount(index).double()


def distinct_values(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct numbers, but for rounding, in increasing order, and the index of each number among them."""
    ordered, order = value.sort()
    levels, index, _ = _group_ties(ordered)
    return levels, torch.empty_like(order).scatter_(0, order, index)


def _is_integer(weights: Tensor) -> bool:
    return not any(bool((chunk != chunk.round()).any()) for chunk in weights.split(_MIN_CHUNK_ROWS))


def _equal_mass_cuts(bins: int, total: Tensor, integer_weights: bool) -> Tensor:
    """Cumulative mass at the b + 1 ends of bins of equal mass, whole numbers where all masses are."""
    if not integer_weights:
        return torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=total.device) * total
    base_size, num_larger = divmod(int(total), bins)
    index = torch.arange(bins + 1, device=total.device)
    return (index * base_size + index.clamp_max(num_larger)).double()


def _cumulative_sums(*parts: Tensor) -> Tensor:
    """Running sums of every part, from 0."""
    sums = parts[0].new_empty(len(parts), len(parts[0]) + 1)
    sums[:, 0] = 0
    for row, part in zip(sums, parts, strict=True):
        if part.device.type == "cpu":  # numpy takes half the time for the same additions
            np.cumsum(part.numpy(), out=row[1:].numpy())
        else:
            torch.cumsum(part, 0, out=row[1:])
    return sums


def _sums_between_cuts(cuts: Tensor, *running: Tensor) -> Tensor:
    """Sums of all rows between cuts of the first, the mass; groups are divided where a cut falls."""
    mass = running[0][0]
    right = torch.searchsorted(mass, cuts).clamp_(1, len(mass) - 1)
    low, high = (torch.cat([rows[:, at] for rows in running]) for at in (right - 1, right))
    share = (cuts - low[0]) / (high[0] - low[0])
    return (low + (high - low) * share.clamp(0, 1)).diff(dim=1)
