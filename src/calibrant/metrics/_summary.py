"""A summary of any number of predictions in a fixed 1.5 MB: add batches, merge in any order, read at the end."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from calibrant._bins import Bins, Judged, Ties, equal_width_edges, equal_width_index, judge
from calibrant._stream import stream
from calibrant._types import InputError, Labels, Logits, PerExample
from calibrant.metrics._moments import Moments
from calibrant.metrics._results import Interval, quantile
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.metrics._assess import Assessment

_UNIT = 30  # numbers are counted in units of 2^-30
_COARSE = 14  # and squared log-likelihoods of 2^-14
_ROWS = 1 << 13  # examples added at a time: sums of integers that float64 holds exactly
_LOW = 26  # bits of the lower word while adding up
_FINE = 10  # bits of the mantissa that tell cells apart: 1,024 cells for every factor of two in the odds
_FIRST = (1023 - 40) << _FINE  # odds of an error below 2^-40 share the first cell
_CELLS = 60 << _FINE  # up to odds of 2^20

_OWN = (  # sums of w x; spread alone is one of w^2 x
    *("mass", "correct", "gap", "gap_square", "spread", "nll", "nll_square", "infinite", "brier", "brier_square"),
    *("confident", "confident_correct"),
)
_SQUARES = ("mass", "correct", "gap", "gap_square", "nll", "nll_square", "brier", "brier_square", "confident")
_FEATURES = ("count", *_OWN, *(f"square_{name}" for name in _SQUARES))  # sums of w^2 x
_WEIGHTED = list(range(len(_FEATURES)))
_PLAIN = [0, *range(len(_OWN)), *(_OWN.index(name) for name in _SQUARES)]  # without weights many are the same


@dataclass(frozen=True, eq=False)
class Summary:
    r"""What accuracy, NLL, Brier, ECE and its floor, AdaECE, Kuiper, smooth ECE ... need of the predictions.

    Every number is rounded to a multiple of 2^-30 and added up in integers, so that any sharding, any order and any
    merging of batches gives the same state to the last bit (on one kind of device: another one's exponential may
    differ in its last bit, and so may a rounding). ECE over the stated equal-width bins is exact to 2^-31. What
    needs the examples sorted is read from 61,440 cells, uniform in the logarithm of the odds of an error to 1/1024:
    its error is at most the mass of the heaviest cell times the number of bin ends that it can be met at, 2 (b - 1)
    for AdaECE, 2 for Kuiper, and far less as a rule. Weights should be around 1. NLLs above 65,536 count as that.

    >>> summary = Summary.empty(k=2).add(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    >>> summary["ece"], (summary + summary)["ece"]
    (0.25, 0.25)
    """

    k: int  # number of classes, 0 before the first batch
    bins: int
    high: Tensor  # (f b) int64, upper words of the sums over bins of equal width
    low: Tensor  # (f b) int64, lower words, in [0, 2^32)
    cells: Tensor = field(repr=False)  # (3 g) int64: mass, correct, confidence by log-odds

    @classmethod
    def empty(cls, k: int = 0, *, bins: int = 15, device: torch.device | str = "cpu") -> "Summary":
        """Of nothing yet; the state lives on `device`, batches may come from any."""
        zero = torch.zeros(len(_FEATURES), bins, dtype=torch.int64, device=device)
        return cls(k, bins, zero, zero, torch.zeros(3, _CELLS, dtype=torch.int64, device=device))

    @classmethod
    def of(cls, predictions: Predictions, *, bins: int = 15) -> "Summary":
        """Of predictions that are in memory."""
        return cls.empty(bins=bins).add(predictions.logits, predictions.labels, predictions.weights)

    @classmethod
    def of_file(cls, path: str | Path, *, bins: int = 15, ignore_index: int | None = None) -> "Summary":
        """Of a file of any size (.parquet, .safetensors, .npy), read in pieces that are checked like `Predictions`.

        Raises `InputError` as `Predictions.load` does, and for formats that can only be read whole.
        """
        summary = cls.empty(bins=bins)
        for part in stream(path, ignore_index=ignore_index):
            summary = summary.add(part.logits, part.labels, part.weights)
        return summary

    def add(self, logits: Logits, labels: Labels, weights: PerExample | None = None) -> "Summary":
        """The summary with one more batch."""
        if self.k not in (0, logits.shape[1]):
            raise InputError(f"expected logits of {self.k} classes as in the batches before, got {logits.shape[1]}")
        if weights is not None and float(weights.max()) > 100:
            raise InputError(f"weights should be around 1, got up to {float(weights.max()):.4g}; divide by their mean")
        high, low, cells = self.high.clone(), self.low.clone(), self.cells.clone()
        for i in range(0, len(labels), _ROWS):
            rows = slice(i, i + _ROWS)
            judged, w = judge(logits[rows], labels[rows]), None if weights is None else weights[rows]
            sums = _sums(judged, w, self.bins)[:, _PLAIN if w is None else _WEIGHTED].to(high.device)
            high += sums[0] >> (32 - _LOW)
            low += ((sums[0] & ((1 << (32 - _LOW)) - 1)) << _LOW) + sums[1]
            high, low = _carry(high, low)
            _count(cells, judged, w)
        return Summary(logits.shape[1], self.bins, high, low, _whole(cells))

    def __add__(self, other: "Summary") -> "Summary":
        """Both together."""
        if self.bins != other.bins or (self.k != other.k and 0 not in (self.k, other.k)):
            raise InputError(
                f"cannot merge summaries of {self.k} classes in {self.bins} bins and {other.k} in {other.bins}"
            )
        device = self.high.device
        high, low = _carry(self.high + other.high.to(device), self.low + other.low.to(device))
        cells = _whole(self.cells + other.cells.to(device))
        return Summary(max(self.k, other.k), self.bins, high, low, cells)

    def __radd__(self, other: int) -> "Summary":
        """Let `sum(summaries)` start from 0."""
        return self

    def __len__(self) -> int:
        return int(self.total("count"))

    def __getitem__(self, name: str) -> float:
        """The value of a row of the assessment: "nll", "ece", "adaptive_ece", "kuiper", "smooth_ece" ..."""
        return self.assessment[name].value

    @cached_property
    def assessment(self) -> "Assessment":
        """The table of `metrics.assess`, less what needs every class."""
        from calibrant.metrics._assess import assess

        return assess(self)

    def per_bin(self, name: str) -> Tensor:
        """Sums of one feature over the bins, in float64 on the CPU."""
        i = _FEATURES.index(name)
        unit = _COARSE if name.endswith("nll_square") else _UNIT
        sums = [(h << 32) + x for h, x in zip(self.high[i].tolist(), self.low[i].tolist())]
        return torch.tensor([x / 2**unit for x in sums], dtype=torch.float64)

    def total(self, name: str) -> float:
        """Sum of one feature over all examples."""
        return float(self.per_bin(name).sum())

    @property
    def moments(self) -> Moments:
        """The moments of the bins of equal width."""
        names = ("mass", "square_mass", "gap", "gap_square", "square_gap_square", "spread")
        return Moments(*(self.per_bin(name) for name in names))

    @property
    def table(self) -> Bins:
        """The bins of equal width."""
        mass, correct, gap = (self.per_bin(name) for name in ("mass", "correct", "gap"))
        return Bins(
            edges=equal_width_edges(self.bins),
            weight=mass / mass.sum(),
            confidence=(correct + gap) / mass,
            accuracy=correct / mass,
            count=self.per_bin("count").long(),
        )

    @property
    def ties(self) -> Ties:
        """The cells that hold anything, in increasing order of confidence."""
        cells = self.cells.cpu()
        mass, correct, confidence = (cells[:, cells[0] > 0].flip(1).double() / 2**_UNIT).unbind()
        plain = self.total("mass") == self.total("square_mass") == self.total("count")
        square = mass if plain else mass * (self.total("square_mass") / self.total("mass"))
        return Ties(confidence / mass, mass, correct, square, mass.round().long().clamp_min(1), not plain)

    def mean(self, name: str, level: float) -> Interval:
        """Mean of "nll", "brier" or "gap" with its normal interval."""
        n, w, w2 = (self.total(part) for part in ("count", "mass", "square_mass"))
        mean = self.total(name) / w
        if name == "nll" and self.total("infinite") > 0:
            return Interval(math.inf, -math.inf, math.inf, level)
        if n == 1:
            return Interval(mean, -math.inf, math.inf, level)
        first, second = self.total(f"square_{name}"), self.total(f"square_{name}_square")
        variance = max(second - 2 * mean * first + mean**2 * w2, 0.0)
        half = quantile(level) * math.sqrt(variance * n / (n - 1)) / w
        return Interval(mean, mean - half, mean + half, level)


def _sums(judged: Judged, weights: Tensor | None, bins: int) -> Tensor:
    """Integer sums of the features over bins of equal width, in two words (2 f b); of those that differ."""
    c, a = judged.confidence, judged.correct
    u, nll, brier = c - a, -judged.log_likelihood, judged.brier
    infinite = nll.isinf()
    nll = nll.masked_fill(infinite, 0.0).clamp_max(65536.0)
    coarse = nll.square() * 2.0 ** (_COARSE - _UNIT)
    sure, ones = (c >= 0.99).double(), torch.ones_like(c)
    plain = [ones, a, u, u.square(), c * (1 - c), nll, coarse, infinite.double(), brier, brier.square(), sure, sure * a]
    if weights is not None:
        w, v = weights.to(c), weights.to(c).square()
        by_square = [v * x for x in (ones, a, u, u.square(), nll, coarse, brier, brier.square(), sure)]
        plain = [ones, *((v if i == 4 else w) * x for i, x in enumerate(plain)), *by_square]
    units = torch.stack(plain).mul_(2.0**_UNIT).round_()
    upper = (units / 2**_LOW).floor_()
    words = torch.cat([upper, units.sub_(upper * 2**_LOW)])  # integers whose sums float64 holds exactly
    index = equal_width_index(bins, c)
    slots = torch.arange(len(words), device=c.device)[:, None] * bins + index
    return torch.bincount(slots.flatten(), words.flatten(), minlength=len(words) * bins).long().view(2, -1, bins)


def _count(cells: Tensor, judged: Judged, weights: Tensor | None) -> None:
    """Add to the cells, uniform in the logarithm of the odds of an error: the leading bits of the odds."""
    c, a = judged.confidence, judged.correct
    odds = (1 / c - 1).clamp_min_(0)
    place = ((odds.view(torch.int64) >> (52 - _FINE)) - _FIRST).clamp_(0, _CELLS - 1)
    w = torch.ones_like(c) if weights is None else weights.to(c)
    for row, values in zip(cells, (w, w * a, w * c)):
        row.index_add_(0, place.to(row.device), values.mul(2.0**_UNIT).round_().to(row.device, torch.int64))


def _carry(high: Tensor, low: Tensor) -> tuple[Tensor, Tensor]:
    return high + (low >> 32), low & 0xFFFFFFFF


def _whole(cells: Tensor) -> Tensor:
    if bool((cells[0] >= 1 << 62).any()):
        raise InputError("more than 4 billion examples in one cell of confidence: read the summary and start another")
    return cells
