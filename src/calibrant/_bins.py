"""The one place that bins: events, sorted into ties or bins, hold what was said against what happened."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._fast import kernels
from calibrant._threads import map_chunks
from calibrant.types import PerBin, PerExample

_FINE = 10  # bits of the mantissa that tell cells apart: 1,024 cells for every factor of two in the odds
FIRST_CELL = (1023 - 40) << _FINE  # odds of a miss below 2^-40 share the first cell
CELLS = 60 << _FINE  # up to odds of 2^20
_ROWS = 1 << 15  # summed up at a time, at least
TIE = 2.0**-48  # share up to which numbers are equal but for rounding
JOINED = 512  # clusters, and places of confidence, that are told apart where their sums are kept together


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """What every cluster adds to every place of confidence: all that is needed to know how dependent events vary.

    More than 512 clusters are joined, evenly, into as many: sums of clusters vary as their clusters do.
    """

    value: Tensor  # (g) float64, mean confidence of a place
    mass: Tensor  # (m g) float64
    gap: Tensor  # (m g) float64: what happened minus what was said

    @classmethod
    def of(cls, clusters: Tensor, place: Tensor, places: int, mass: Tensor, said: Tensor, gap: Tensor) -> "ClusterSums":
        """Of events, each with its cluster and its place; places without mass are left out."""
        kinds = min(int(clusters.max()) + 1, JOINED)
        index = (clusters % kinds) * places + place

        def total(values: Tensor) -> Tensor:
            return bin_sums(index, values, kinds * places).view(kinds, places)

        n = total(mass)
        there = n.sum(0) > 0
        value = bin_sums(place, mass * said, places)[there] / n.sum(0)[there]
        return cls(value, n[:, there], total(gap)[:, there])

    def equal_mass(self, bins: int) -> "ClusterSums":
        """The same by bins of equal mass, between whose ends a place is divided."""
        n = self.mass.sum(0)
        sums = _running(n, n * self.value, *self.mass, *self.gap)
        rows = _between(_cuts(bins, sums[0, -1], _whole(n)), sums)
        rows = rows[:, rows[0] > 0]
        mass, gap = rows[2:].chunk(2)
        return ClusterSums(rows[1] / rows[0], mass, gap)


@dataclass(frozen=True, eq=False)
class Ties:
    """Examples grouped by equal confidence, but for rounding, in increasing order.

    Neighbors are equal that differ by a share of at most `TIE`: sums over classes in another order differ by as much.
    """

    value: Tensor  # (g) float64, distinct confidences
    mass: Tensor  # (g) float64, > 0: number of examples, each counted as often as its weight says
    correct: Tensor  # (g) float64, the mass for which the event happened
    clusters: ClusterSums | None = None  # of examples that depend on each other, in 512 places of equal mass

    @classmethod
    def of(
        cls,
        confidence: PerExample,
        happened: PerExample,
        weights: PerExample | None = None,
        clusters: Tensor | None = None,
    ) -> "Ties":
        """Sort and group; examples of weight 0 are left out."""
        if weights is not None:
            keep = weights > 0
            confidence, happened, weights = confidence[keep], happened[keep], weights[keep].to(confidence)
            clusters = None if clusters is None else clusters[keep]
        if weights is None and clusters is None and _packs(confidence, happened):
            return cls._of_sorted(*_sorted(confidence, happened))
        order = confidence.argsort(stable=True)
        happened, w = happened[order], None if weights is None else weights[order]
        value, index, mass = _grouped(confidence[order])
        hits = happened if w is None else w * happened
        mass = mass if w is None else w
        if len(value) < len(index):
            zero = torch.zeros_like(value)
            hits = zero.index_add(0, index, hits)
            mass = mass if w is None else zero.index_add(0, index, w)
        if clusters is None:
            return cls(value, mass, hits)
        c, counts = confidence[order], torch.ones_like(happened) if w is None else w
        place = cls(value, mass, hits).places(JOINED)[index]
        sums = ClusterSums.of(clusters[order], place, JOINED, counts, c, counts * (happened - c))
        return cls(value, mass, hits, sums)

    @classmethod
    def _of_sorted(cls, value: Tensor, happened: Tensor) -> "Ties":
        """Group what is in order, and counts once each."""
        value, index, mass = _grouped(value)
        if len(value) == len(happened):
            return cls(value, mass, happened)
        return cls(value, mass, torch.zeros_like(value).index_add_(0, index, happened))

    @cached_property
    def running(self) -> Tensor:
        """Running sums from 0 (3 g+1): the mass, what was said, what happened."""
        return _running(self.mass, self.mass * self.value, self.correct)

    def cuts(self, bins: int) -> Tensor:
        """Cumulative mass at the ends of bins of equal mass."""
        return _cuts(bins, self.running[0, -1], self._whole)

    @cached_property
    def _whole(self) -> bool:
        return _whole(self.mass)

    def places(self, most: int) -> Tensor:
        """The place of every group among `most` of nearly equal mass, or one for each where there are no more."""
        if len(self.value) <= most:
            return torch.arange(len(self.value), device=self.value.device)
        share = (self.mass.cumsum(0) - self.mass / 2) / self.mass.sum()
        return (share * most).long()

    @property
    def accuracy(self) -> Tensor:
        """Share of every group for which the event happened."""
        return self.correct / self.mass

    @cached_property
    def gap(self) -> Tensor:
        """Sum over every group of what happened minus what was said."""
        said = self.mass * self.value
        return torch.sub(self.correct, said, out=said)

    @cached_property
    def variance(self) -> Tensor:
        """Variance of `gap` in every group if every confidence is true."""
        return (1 - self.value).mul_(self.value).mul_(self.mass)


class Judged:
    """What calibration metrics need of events, whether every one of them is known or only their sums."""

    @cached_property
    def ties(self) -> Ties:
        """Sorted and grouped by confidence."""
        raise NotImplementedError

    def moments(self, bins: int) -> "Moments":
        """Sums over bins of equal width."""
        raise NotImplementedError

    def equal_width(self, bins: int) -> "Bins":
        """Bins of equal width."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Events(Judged):
    """One event per example: the probability it was given, whether it happened, and how often it counts."""

    confidence: PerExample
    happened: PerExample
    weights: PerExample | None = None
    clusters: Tensor | None = None  # (n) int64, of examples that may depend on each other

    def __len__(self) -> int:
        return len(self.confidence)

    def __getitem__(self, rows: Any) -> "Events":
        """Of some of the rows."""
        more = (None if part is None else part[rows] for part in (self.weights, self.clusters))
        return Events(self.confidence[rows], self.happened[rows], *more)

    @cached_property
    def ties(self) -> Ties:
        """The events, sorted and grouped once for all that needs it."""
        return Ties.of(self.confidence, self.happened, self.weights, self.clusters)

    def moments(self, bins: int) -> "Moments":
        """Sums over bins of equal width, made once."""
        known: dict[int, Moments] = self.__dict__.setdefault("_moments", {})
        if bins not in known:
            known[bins] = self._sums(bins)
        return known[bins]

    def _sums(self, bins: int) -> "Moments":
        sums = None
        if self.clusters is not None:
            c, w = self.confidence, self.weights
            often = torch.ones_like(c) if w is None else w.to(c)
            index = equal_width_index(bins, c)
            sums = ClusterSums.of(self.clusters, index, bins, often, c, often * (self.happened - c))
        return Moments.of(self.totals(bins, 6), sums)

    def equal_width(self, bins: int) -> "Bins":
        """Bins of equal width."""
        return Bins.of_totals(self.totals(bins, 3))

    def totals(self, bins: int, parts: int) -> Tensor:
        """Per bin of equal width (6 b): mass, sums of c, of what happened, of u = c - happened, u^2 and c (1 - c).

        Of the first parts only, where no more was asked for so far.
        """
        known: dict[int, Tensor] = self.__dict__.setdefault("_known", {})
        if bins not in known or len(known[bins]) < parts:
            known[bins] = self._added_up(bins, parts)
        return known[bins][:parts]

    def _added_up(self, bins: int, parts: int) -> Tensor:
        c, a = self.confidence.double(), self.happened.double()
        w = None if self.weights is None else self.weights.double()
        if fast := kernels(c):
            return _summed(fast.sums, c, a, w, bins, parts)
        index, u = equal_width_index(bins, c), c - a
        mass = torch.bincount(index, minlength=bins).double() if w is None else bin_sums(index, w, bins)
        more = () if parts == 3 else (u, u.square(), c * (1 - c))
        return torch.stack([mass, *(bin_sums(index, x if w is None else w * x, bins) for x in (c, a, *more))])


@dataclass(frozen=True, eq=False)
class Moments:
    """Per bin of equal width, with u = confidence - happened: the mass, and sums of c, u, u^2 and c (1 - c)."""

    mass: PerBin
    said: PerBin
    gap: PerBin
    gap_square: PerBin
    variance: PerBin  # of the number of events, if every confidence is true
    clusters: ClusterSums | None = None  # in the bins that are not empty

    @classmethod
    def of(cls, totals: Tensor, clusters: ClusterSums | None = None) -> "Moments":
        """Of `Events.totals`."""
        mass, said, _, gap, gap_square, variance = totals
        return cls(mass, said, gap, gap_square, variance, clusters)


@dataclass(frozen=True, eq=False)
class Unmade(Judged):
    """Events of the predicted class that are not made while all that is asked for are sums over one number of bins.

    These one pass over the logits adds up, to the last bit as they are of the events.
    """

    logits: Tensor
    labels: Tensor
    weights: PerExample | None
    made: Callable[[], Events]
    known: dict[int, Tensor]  # `Events.totals`

    @staticmethod
    def possible(logits: Tensor) -> bool:
        """Whether there is such a pass."""
        plain = logits.dtype in (torch.float32, torch.float64) and logits.is_contiguous()
        fast = kernels(logits) if plain else None
        return fast is not None and logits.shape[1] < fast.WIDE

    @cached_property
    def ties(self) -> Ties:
        """Sorted and grouped by confidence."""
        return self.made().ties

    def moments(self, bins: int) -> Moments:
        """Sums over bins of equal width."""
        return Moments.of(self._totals(bins, 6))

    def equal_width(self, bins: int) -> "Bins":
        """Bins of equal width."""
        return Bins.of_totals(self._totals(bins, 3))

    def _totals(self, bins: int, parts: int) -> Tensor:
        if not self.known:
            w = None if self.weights is None else self.weights.double()
            z = self.logits.detach()
            self.known[bins] = _summed(kernels(z).top_sums, z, self.labels, w, bins, parts)
        found = self.known.get(bins)
        return self.made().totals(bins, parts) if found is None or len(found) < parts else found[:parts]


def _summed(work: Any, x: Tensor, y: Tensor, w: Tensor | None, bins: int, parts: int) -> Tensor:
    """What a compiled pass sums up, bin by bin: many rows at a time, and their sums in order."""
    edges, size = equal_width_edges(bins).numpy(), max(_ROWS, 64 * bins)
    w = x.new_zeros(0, dtype=torch.float64) if w is None else w
    given, happened, mass = (part.contiguous().numpy() for part in (x, y, w))
    found = np.zeros((-(-len(x) // size), parts, bins))

    def added(i: int) -> None:
        rows = slice(i * size, (i + 1) * size)
        work(given[rows], happened[rows], mass[rows], edges, found[i])

    map_chunks(added, range(len(found)), size * x[:1].numel())
    return torch.from_numpy(found.sum(0))


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
    def worst(self) -> int:
        """Index of the bin with the largest gap in absolute value; see its count before believing it."""
        return int(self.gap.abs().argmax())

    @classmethod
    def between(
        cls,
        edges: Tensor,
        confidence: PerExample,
        correct: PerExample,
        weights: PerExample | None = None,
    ) -> "Bins":
        """Sort examples into (edges[i], edges[i+1]]; what lies outside all bins is left out.

        Left out examples still count in the whole, so that weights may sum to less than 1.
        """
        index = assign(edges, confidence)
        inside = (index >= 0) & (index < len(edges) - 1)
        return cls._of(edges, index.where(inside, len(edges) - 1), confidence, correct, weights)

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
        return cls._of(edges, equal_width_index(bins, confidence), confidence, correct, weights)

    @classmethod
    def equal_mass(cls, bins: int, ties: Ties) -> "Bins":
        """Bins of equal numbers of examples, whatever the row order.

        Sizes as numpy's array_split: the first n mod b bins hold one more. Examples of exactly equal confidence share
        what happened, so that a bin edge inside a tie does not depend on the row order. With fewer examples than bins
        the last bins are empty. Where weights are not whole numbers, all bins have the same mass.
        """
        sums, cuts = ties.running, ties.cuts(bins)
        mass, confidence, correct = _between(cuts, sums)
        last = (torch.searchsorted(sums[0], cuts) - 1).clamp_(0, len(ties.value) - 1)
        return cls(
            edges=ties.value[last],
            weight=mass / sums[0, -1],
            confidence=confidence / mass,
            accuracy=correct / mass,
            count=mass.round().long(),
        )

    @classmethod
    def of_totals(cls, totals: Tensor) -> "Bins":
        """Bins of equal width, of the first three of `Events.totals`."""
        mass, said, came = totals
        edges = equal_width_edges(len(mass)).to(mass.device)
        return cls(edges, mass / mass.sum(), said / mass, came / mass, mass.round().long())

    @classmethod
    def of_sums(cls, edges: Tensor, mass: PerBin, happened: PerBin, gap: PerBin) -> "Bins":
        """Bins whose sums are known: the mass, what happened, and what was said minus what happened."""
        return cls(
            edges=edges,
            weight=mass / mass.sum(),
            confidence=(happened + gap) / mass,
            accuracy=happened / mass,
            count=mass.round().long(),
        )

    @staticmethod
    def equal_mass_variance(bins: int, ties: Ties) -> Tensor:
        """Per bin of equal mass, the variance of its number of events if every confidence is true."""
        return _between(ties.cuts(bins), ties.running[:1], _running(ties.variance))[1]

    @classmethod
    def _of(cls, edges: Tensor, index: Tensor, confidence: Tensor, correct: Tensor, weights: Tensor | None) -> "Bins":
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


def assign(edges: Tensor, confidence: PerExample) -> Tensor:
    """Index i of the bin (edges[i], edges[i+1]] of every example; -1 below the first, b above the last."""
    return torch.searchsorted(edges, confidence.to(edges).contiguous()) - 1


def equal_width_index(bins: int, confidence: PerExample) -> Tensor:
    """Index of the bin ((i-1)/b, i/b] of every example; 0 belongs to the first. A search only next to an edge.

    >>> equal_width_index(10, torch.tensor([0.0, 0.1, 0.15, 1.0], dtype=torch.float64))
    tensor([0, 0, 1, 9])
    """
    place = confidence.double() * bins
    near = (~((place - place.round()).abs_() > 1e-6)).nonzero().squeeze(1)  # nan too
    index = place.ceil_().sub_(1).clamp_(0, bins - 1).long()
    edges = equal_width_edges(bins).to(confidence.device)
    index[near] = assign(edges, confidence[near]).clamp_(0, bins - 1)
    return index


def odds_cell(confidence: PerExample) -> Tensor:
    """Index of one of `CELLS` cells, uniform in the logarithm of the odds of a miss to 1/1024; the surest come first.

    They are the leading bits of the odds.
    """
    odds = (1 / confidence - 1).clamp_min_(0)
    return ((odds.view(torch.int64) >> (52 - _FINE)) - FIRST_CELL).clamp_(0, CELLS - 1)


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
    place = np.stack([end - w, np.maximum(end - 1, end - w)], 1).ravel()  # of the first copy and of the last
    edges = np.interp(np.linspace(0, n, bins + 1), place, c.numpy().repeat(2))
    return torch.from_numpy(edges).to(confidence.device)


def _packs(score: Tensor, happened: Tensor) -> bool:
    """Whether scores and what happened can be sorted as one 64-bit number each."""
    plain = score.device.type == "cpu" and score.dtype == torch.float64
    return plain and all(bool(((some == 0) | (some == 1)).all()) for some in happened.split(_ROWS))


def packed(value: Tensor, happened: Tensor) -> np.ndarray:
    """Numbers without their signs, each with a 0 or 1, as integers in the same order.

    The bits of a positive number order as it does, and leave one free: sorting keys takes a tenth of the time of
    sorting an index and looking up by it.
    """
    keys = value.contiguous().numpy().view(np.uint64) << np.uint64(1)
    return np.bitwise_or(keys, happened.numpy(), out=keys, dtype=np.uint64, casting="unsafe")


def unpacked(keys: np.ndarray) -> tuple[Tensor, Tensor]:
    """What was `packed`, in its place."""
    happened = np.empty(keys.shape)
    np.bitwise_and(keys, np.uint64(1), out=happened, casting="unsafe")
    keys >>= np.uint64(1)
    return torch.from_numpy(keys.view(np.float64)), torch.from_numpy(happened)


def _sorted(score: Tensor, happened: Tensor) -> tuple[Tensor, Tensor]:
    """Scores in increasing order, each with what happened, 0 or 1."""
    keys, below = packed(score, happened), (score < 0).numpy()
    low, high = (keys[below], keys[~below]) if below.any() else (keys[:0], keys)
    low.sort()
    high.sort()
    keys = np.concatenate([low[::-1], high]) if len(low) else high
    value, happened = unpacked(keys)
    value[: len(low)].neg_()
    return value, happened


def _grouped(value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distinct ones of sorted values, the index of each value among them, and their counts as float64."""
    neighbors = zip(value[:-1].split(_ROWS), value[1:].split(_ROWS), strict=True)  # the smaller one may be finite
    apart = [high - low > torch.minimum(low.abs(), high.abs()).mul_(TIE) for low, high in neighbors]
    apart = torch.cat([torch.ones_like(value[:1], dtype=torch.bool), *apart])
    if bool(apart.all()):
        return value, torch.arange(len(value), device=value.device), torch.ones_like(value)
    index = apart.cumsum(0) - 1
    return value[apart], index, torch.bincount(index).double()


def distinct_values(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct numbers, but for rounding, in increasing order, and the index of each number among them."""
    ordered, order = value.sort()
    found, index, _ = _grouped(ordered)
    return found, torch.empty_like(order).scatter_(0, order, index)


def _whole(mass: Tensor) -> bool:
    return not any(bool((some != some.round()).any()) for some in mass.split(_ROWS))


def _cuts(bins: int, total: Tensor, whole: bool) -> Tensor:
    """Cumulative mass at the b + 1 ends of bins of equal mass, whole numbers where all masses are."""
    if not whole:
        return torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=total.device) * total
    small, larger = divmod(int(total), bins)
    index = torch.arange(bins + 1, device=total.device)
    return (index * small + index.clamp_max(larger)).double()


def _running(*parts: Tensor) -> Tensor:
    """Running sums of every part, from 0."""
    sums = parts[0].new_empty(len(parts), len(parts[0]) + 1)
    sums[:, 0] = 0
    for row, part in zip(sums, parts, strict=True):
        if part.device.type == "cpu":  # numpy takes half the time for the same additions
            np.cumsum(part.numpy(), out=row[1:].numpy())
        else:
            torch.cumsum(part, 0, out=row[1:])
    return sums


def _between(cuts: Tensor, *running: Tensor) -> Tensor:
    """Sums of all rows between cuts of the first, the mass; groups are divided where a cut falls."""
    mass = running[0][0]
    right = torch.searchsorted(mass, cuts).clamp_(1, len(mass) - 1)
    low, high = (torch.cat([rows[:, at] for rows in running]) for at in (right - 1, right))
    share = (cuts - low[0]) / (high[0] - low[0])
    return (low + (high - low) * share.clamp(0, 1)).diff(dim=1)
