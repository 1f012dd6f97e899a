"""A summary of any number of predictions in a fixed 3 MB: add batches, merge in any order, read at the end."""

import inspect
import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from calibrant._bins import CELLS, Bins, ClusterSums, Moments, Ties, equal_width_edges, equal_width_index, odds_cell
from calibrant.catalog import METRICS
from calibrant.metrics._results import Interval, mean_of_clusters, quantile, share_of_clusters, wilson
from calibrant.predictions import Of, Predictions, predictions_of
from calibrant.types import InputError

_UNIT = 52  # numbers are counted in units of 2^-52
_COARSE = 40  # and squared log-likelihoods of 2^-40
_WORD = 26  # bits of a word; sums of the integers are kept in three words
_HALF = 36  # bits of the lower of two words, of a cell
_ROWS = 1 << 13  # examples added at a time: sums of words that float64 holds exactly
HEAVIEST = 1 << 20  # weight of an example
SURE = 0.99

_FEATURES = (  # what is summed over the examples of every bin; all but the first count an example by its weight
    *("rows", "mass", "correct", "happened", "gap", "gap_square", "variance", "nll", "nll_square", "infinite"),
    *("brier", "brier_square", "sure", "sure_happened", "gap_square_square"),
)
_MEANS = {
    "nll": "nll",
    "brier": "brier",
    "event_brier": "gap_square",
    "signed_gap": "gap",
}  # metrics whose interval is that of a mean
_SHARES = {  # metrics that are one sum as a share of another
    "accuracy": ("correct", "mass"),
    "confident_share": ("sure", "mass"),
    "confident_accuracy": ("sure_happened", "sure"),
    "happened": ("happened", "mass"),  # how often what is judged did
}


@dataclass(frozen=True, eq=False)
class Summary:
    r"""What accuracy, NLL, Brier, ECE and its floor, AdaECE, Kuiper, smooth ECE ... need of the predictions.

    Every number is rounded to a multiple of 2^-52 (squared log-likelihoods of 2^-40) and added up in integers, so that
    any sharding, any order and any merging of batches gives the same state to the last bit (on one kind of device: the
    exponential of another may differ in its last bit, and a rounding with it). Means, ECE over the equal-width bins,
    its floor, and their intervals are those of the predictions to 1e-12, whatever the weights. What needs the examples
    sorted is read from 61,440 cells, uniform in the logarithm of the odds of an error to 1/1024: its error is at most
    the mass of the heaviest cell times the number of bin ends that it can be met at, 2 (b - 1) for AdaECE, 2 for
    Kuiper, and far less as a rule. Weights are at most 2^20. NLLs above 65,536 count as that.

    Examples that depend on each other in clusters are summed up in 64 sets of whole clusters as well (350 KB), drawn by
    the clusters' own rows: what varies between these sets gives intervals and tests that hold, with 63 degrees of
    freedom. A cluster must come whole in one batch, as the positions of an image do; one that is cut counts as two.

    It is read like predictions: `summary["ece"]` is a value, `summary.interval("nll")` one with its interval, and
    `calibrant.measure(summary)` the whole table.

    >>> summary = Summary.empty(k=2).add(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    >>> summary["ece"], (summary + summary)["ece"]
    (0.25, 0.25)
    """

    SLOTS: ClassVar[int] = 64  # sets that clusters are joined in

    k: int  # number of classes, 0 before the first batch
    bins: int
    sums: Tensor  # (3 f b) int64, over bins of equal width, in words of 26 bits, the lowest first
    cells: Tensor = field(repr=False)  # (2 3 g) int64: mass, what happened, confidence by log-odds, words of 36 bits
    of: Of = "top"  # the event that is judged
    class_names: tuple[str, ...] | None = None
    slots: Tensor | None = field(default=None, repr=False)  # (3 f m b) int64: `sums` of every set of clusters

    @classmethod
    def empty(cls, k: int = 0, *, bins: int = 15, of: Of = "top", device: torch.device | str = "cpu") -> "Summary":
        """Of nothing yet; the state lives on `device`, batches may come from any."""
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        return cls(k, bins, zeros(3, len(_FEATURES), bins), zeros(2, 3, CELLS), of)

    @classmethod
    def from_predictions(cls, predictions: Predictions, *, bins: int = 15) -> "Summary":
        """Of predictions that are in memory, and of the event that they say is judged."""
        return cls.empty(bins=bins, of=predictions.of).add(predictions)

    @classmethod
    def from_file(
        cls, path: str | Path, *, bins: int = 15, of: Of | None = None, ignore_index: int | None = None, **columns: Any
    ) -> "Summary":
        """Of files of any size (.parquet, .arrow, .safetensors, .npy), read in pieces checked like `Predictions`.

        Judged is what they say, such as the confidence of answers, unless `of` says otherwise; `columns` are those of
        `Predictions.load`. Raises `InputError` as it does, and for formats that can only be read whole.
        """
        summary: Summary | None = None
        for part in Predictions.load_pieces(path, ignore_index=ignore_index, **columns):
            summary = (summary or cls.empty(bins=bins, of=part.of if of is None else of)).add(part)
        assert summary is not None  # a file without examples is refused
        return summary

    def add(self, predictions: Any, labels: Any = None, weights: Any = None) -> "Summary":
        """The summary with one more batch."""
        p = predictions_of(predictions, labels, weights).in_order(self.class_names).judging(self.of)
        k = p.k
        if self.k not in (0, k):
            raise InputError(f"expected logits of {self.k} classes as in the batches before, got {k}")
        if p.weights is not None and float(p.weights.max()) > HEAVIEST:
            raise InputError(
                f"weights are at most {HEAVIEST:,}, got {float(p.weights.max()):.4g}; divide them by their mean"
            )
        if len(self) and (self.slots is None) != (p.clusters is None):
            raise InputError("some batches have clusters and some have none: give clusters with all of them, or none")
        sums, cells, slots = self.sums.clone(), self.cells.clone(), self.slots
        slot = None if p.clusters is None else _slot(p)
        for i in range(0, len(p), _ROWS):
            part = p[i : i + _ROWS]
            words, index = _words(part, self.bins)
            sums = _carry(sums + _binned(words, index, self.bins).to(sums.device), _WORD)
            if slot is not None:
                index = index + slot[i : i + _ROWS] * self.bins
                new = _binned(words, index, self.SLOTS * self.bins).view(3, -1, self.SLOTS, self.bins).to(sums.device)
                slots = _carry(new if slots is None else slots + new, _WORD)
            _count(cells, part)
        return Summary(k, self.bins, sums, _countable(cells), self.of, self.class_names or p.class_names, slots)

    def __add__(self, other: "Summary") -> "Summary":
        """Both together."""
        if self.bins != other.bins or (self.k != other.k and 0 not in (self.k, other.k)) or self.of != other.of:
            raise InputError(
                f"cannot merge summaries of {self.k} classes in {self.bins} bins and {other.k} in {other.bins}, of "
                f"{self.of!r} and {other.of!r}"
            )
        slots = self.slots if other.slots is None else other.slots.to(self.sums.device)
        if self.slots is not None and other.slots is not None:
            slots = _carry(self.slots + other.slots.to(self.sums.device), _WORD)
        elif len(self) and len(other) and slots is not None:
            raise InputError("cannot merge a summary of predictions in clusters with one of predictions without")
        if self.class_names and other.class_names and self.class_names != other.class_names:
            raise InputError(f"cannot merge summaries of classes {self.class_names} and {other.class_names}")
        sums = _carry(self.sums + other.sums.to(self.sums.device), _WORD)
        cells = _countable(self.cells + other.cells.to(self.sums.device))
        names = self.class_names or other.class_names
        return Summary(max(self.k, other.k), self.bins, sums, cells, self.of, names, slots)

    def __radd__(self, other: int) -> "Summary":
        """Let `sum(summaries)` start from 0."""
        return self

    def __len__(self) -> int:
        return int(self.total("rows"))

    @property
    def mass(self) -> float:
        """How many examples there are, each counted as often as its weight says."""
        return self.total("mass")

    @property
    def clustered(self) -> bool:
        """Whether the examples depend on each other in clusters."""
        return self.slots is not None

    def __getitem__(self, name: str) -> float:
        """The value of a metric by name: "nll", "ece", "adaptive_ece", "kuiper", "smooth_ece" ..."""
        if name in _MEANS or name in _SHARES:
            return self.interval(name).value
        metric: Any = METRICS[name]
        if metric.of_sums:
            return float(metric.function(self, **self._settings(name)))
        raise InputError(f"{name} needs every prediction, not a summary of them; measure them in memory")

    def interval(self, name: str, level: float = 0.90) -> Interval:
        """A metric by name with the interval that holds the truth with probability `level`."""
        if name in _SHARES:
            hits, n = map(self.total, _SHARES[name])
            if self.slots is not None and n:
                hit, mass = (self._per_slot(part).sum(1) for part in _SHARES[name])
                return share_of_clusters(mass, hit, level)
            return wilson(hits / n, n, level) if n else Interval(math.nan, 0.0, 1.0, level)
        if name in _MEANS:
            return self._mean(_MEANS[name], level)
        settings = self._settings(name)
        return METRICS[name].interval_of(self, level=level, **settings)  # pyright: ignore[reportFunctionMemberAccess]

    def _settings(self, name: str) -> dict[str, int]:
        """A metric of bins has as many as the summary."""
        return {"bins": self.bins} if "bins" in inspect.signature(METRICS[name]).parameters else {}

    def _mean(self, name: str, level: float) -> Interval:
        n = self.mass
        mean = self.total(name) / n
        if name == "nll" and self.total("infinite") > 0:
            return Interval(math.inf, -math.inf, math.inf, level)
        if self.slots is not None:
            return mean_of_clusters(self._per_slot("mass").sum(1), self._per_slot(name).sum(1), level)
        if n <= 1:
            return Interval(mean, -math.inf, math.inf, level)
        variance = max(self.total(f"{name}_square") - n * mean**2, 0.0) / (n - 1)
        half = quantile(level) * math.sqrt(variance / n)
        return Interval(mean, mean - half, mean + half, level)

    def per_bin(self, name: str) -> Tensor:
        """Sums of one feature over the bins, in float64 on the CPU."""
        return _number(self.sums[:, _FEATURES.index(name)], name)

    def _per_slot(self, name: str) -> Tensor:
        """The same for every set of clusters (m b)."""
        assert self.slots is not None
        return _number(self.slots[:, _FEATURES.index(name)].flatten(1), name).view(self.SLOTS, self.bins)

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

    # The events, as metrics see them

    @cached_property
    def ties(self) -> Ties:
        """The cells that hold anything, in increasing order of confidence."""
        low, high = self.cells.cpu().double()
        cells = low * 2.0**-_UNIT + high * 2.0 ** (_HALF - _UNIT)
        mass, happened, confidence = cells[:, cells[0] > 0].flip(1)
        return Ties(confidence / mass, mass, happened, self._clusters)

    def moments(self, bins: int) -> Moments:
        """The moments of the bins of equal width."""
        self._has(bins)
        mass, gap, square, variance = (self.per_bin(name) for name in ("mass", "gap", "gap_square", "variance"))
        return Moments(mass, gap, square, variance, self._clusters)

    def equal_width(self, bins: int) -> Bins:
        """The bins of equal width."""
        self._has(bins)
        mass, happened, gap = (self.per_bin(name) for name in ("mass", "happened", "gap"))
        return Bins.of_sums(equal_width_edges(self.bins), mass, happened, gap)

    def _has(self, bins: int) -> None:
        if bins != self.bins:
            raise InputError(f"this summary was made with {self.bins} bins, not {bins}")


def _number(words: Tensor, name: str) -> Tensor:
    """What three words (3 b) say of one feature, in float64 on the CPU."""
    unit = _COARSE if name == "nll_square" else _UNIT
    sums = ((w << 2 * _WORD) + (v << _WORD) + u for u, v, w in zip(*words.tolist(), strict=True))
    return torch.tensor([x / 2**unit for x in sums], dtype=torch.float64)


def _slot(p: Predictions) -> Tensor:
    """The set that every row's cluster belongs to: the sum of the hashes of its rows, whatever their order."""
    assert p.clusters is not None
    hashes = torch.from_numpy(p.row_hashes.view(np.int64)).to(p.clusters.device)
    total = torch.zeros(int(p.clusters.max()) + 1, dtype=torch.int64, device=p.clusters.device)
    total.index_add_(0, p.clusters, hashes)
    return ((total >> 16) % Summary.SLOTS)[p.clusters]


def _words(p: Predictions, bins: int) -> tuple[Tensor, Tensor]:
    """The features of every row in integers, in three words (3 f n), and its bin of equal width."""
    outcomes, events = p.outcomes, p.events
    c, a = events.confidence, events.happened
    u, nll, brier = c - a, 0.0 - outcomes.log_likelihood, outcomes.brier
    infinite = nll.isinf()
    nll = nll.masked_fill(infinite, 0.0).clamp_max(65536.0)
    coarse = 2.0 ** (_COARSE - _UNIT)
    sure, ones = (c >= SURE).double(), torch.ones_like(c)
    rows = [ones, outcomes.correct, a, u, u.square(), c * (1 - c), nll, nll.square() * coarse]
    rows += [infinite.double(), brier, brier.square(), sure, sure * a, u.square().square()]
    values = torch.stack(rows)
    values = torch.cat([ones[None], values if events.weights is None else values * events.weights])
    units = values.mul_(2.0**_UNIT).round_()
    upper = (units * 2.0 ** (-2 * _WORD)).floor_()
    units = units.sub_(upper * 2.0 ** (2 * _WORD))
    middle = (units * 2.0**-_WORD).floor_()
    words = torch.cat([units.sub_(middle * 2.0**_WORD), middle, upper])  # whose sums float64 holds exactly
    return words, equal_width_index(bins, c)


def _binned(words: Tensor, index: Tensor, bins: int) -> Tensor:
    """Integer sums over bins (3 f b)."""
    place = torch.arange(len(words), device=index.device)[:, None] * bins + index
    return torch.bincount(place.flatten(), words.flatten(), minlength=len(words) * bins).long().view(3, -1, bins)


def _count(cells: Tensor, p: Predictions) -> None:
    """Add to the cells, uniform in the logarithm of the odds of a miss."""
    c, a = p.events.confidence, p.events.happened
    place = odds_cell(c).to(cells.device)
    w = torch.ones_like(c) if p.weights is None else p.weights.to(c)
    for i, values in enumerate((w, w * a, w * c)):
        units = values.mul(2.0**_UNIT).round_()
        upper = (units * 2.0**-_HALF).floor_()
        for word, part in zip(cells[:, i], (units - upper * 2.0**_HALF, upper)):
            word.index_add_(0, place, part.to(cells.device, torch.int64))
    cells.copy_(_carry(cells, _HALF))


def _carry(words: Tensor, bits: int) -> Tensor:
    """The same sums with every word but the last below 2^bits."""
    words = words.clone()
    for lower, higher in pairwise(words):
        higher += lower >> bits
        lower &= (1 << bits) - 1
    return words


def _countable(cells: Tensor) -> Tensor:
    if bool((cells[1, 0] >= 1 << 62).any()):
        raise InputError("more than 7e13 examples in one cell of confidence: read the summary and start another")
    return _carry(cells, _HALF)
