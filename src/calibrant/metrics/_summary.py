"""A summary of any number of predictions in a fixed 3 MB: add batches, merge in any order, read at the end."""

from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant._bins import CELLS, FIRST_CELL, Ties, equal_width_edges, odds_cell
from calibrant._fast import kernels
from calibrant.catalog import METRICS
from calibrant.metrics._class_sums import ClassSums, class_cells
from calibrant.metrics._sums import (
    FEATURES,
    HALF,
    HEAVIEST,
    MEANS,
    ROWS,
    SHARES,
    SURE,
    UNIT,
    WORD,
    GroupSums,
    Sums,
    binned,
    carry,
    merged,
    slot_of,
    words_of,
)
from calibrant.predictions import Of, Predictions, entering
from calibrant.types import InputError

PIECE = 1 << 18  # rows that a compiled pass adds at a time


@dataclass(frozen=True, eq=False)
class Summary(Sums):
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
    With `Summary.empty(by_class=True)` every class has sums, too, which costs a third of the time.
    Groups have sums of their own (5 KB each, with clusters 75), of which `metrics.tables.groups` makes their table.

    It is read like predictions: `summary["ece"]` is a value, `summary.interval("nll")` one with its interval, and
    `calibrant.measure(summary)` the whole table.

    >>> summary = Summary.empty(k=2).add(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    >>> summary["ece"], (summary + summary)["ece"]
    (0.25, 0.25)
    """

    CLASSES: ClassVar[int] = 1000  # beyond which they are not summed up one by one

    k: int  # number of classes, 0 before the first batch
    bins: int
    sums: Tensor  # (3 f b) int64, over bins of equal width, in words of 26 bits, the lowest first
    cells: Tensor = field(repr=False)  # (2 3 g) int64: mass, what happened, confidence by log-odds, words of 36 bits
    of: Of = "top"  # the event that is judged
    class_names: tuple[str, ...] | None = None
    slots: Tensor | None = field(default=None, repr=False)  # (3 f m b) int64: `sums` of every set of clusters
    groups: GroupSums | None = field(default=None, repr=False)
    classes: ClassSums | None = field(default=None, repr=False)
    by_class: bool = False  # whether the classes, at most 1000, are summed up too
    row_groups: GroupSums | None = field(default=None, repr=False)  # the second grouping, of several labels

    @classmethod
    def empty(
        cls,
        k: int = 0,
        *,
        bins: int = 15,
        of: Of = "top",
        device: torch.device | str = "cpu",
        by_class: bool = False,
    ) -> "Summary":
        """Of nothing yet; the state lives on `device`, batches may come from any."""
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        return cls(k, bins, zeros(3, len(FEATURES), bins), zeros(2, 3, CELLS), of, by_class=by_class)

    @classmethod
    def from_predictions(cls, predictions: Predictions, *, bins: int = 15, by_class: bool = False) -> "Summary":
        """Of predictions that are in memory, of the event that they say is judged, and `by_class` of every class too,
        of at most 1000.
        """
        return cls.empty(bins=bins, of=predictions.of, by_class=by_class).add(predictions)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        bins: int = 15,
        of: Of | None = None,
        by_class: bool = False,
        ignore_index: int | None = None,
        **options: Any,
    ) -> "Summary":
        """Of files of any size (.parquet, .arrow, .safetensors, .npy), read in pieces checked like `Predictions`.

        Judged is what they say, such as the confidence of answers, unless `of` says otherwise; `by_class` sums up every
        class too, of at most 1000; `options` are those of `Predictions.load`. Raises `InputError` as it does, and for
        formats that can only be read whole.
        """
        summary: Summary | None = None
        for part in Predictions.load_pieces(path, ignore_index=ignore_index, **options):
            summary = summary or cls.empty(bins=bins, of=part.of if of is None else of, by_class=by_class)
            summary = summary.add(part)
        assert summary is not None  # a file without examples is refused
        return summary

    def add(self, predictions: Any, labels: Any = None, weights: Any = None) -> "Summary":
        """The summary with one more batch."""
        with entering(predictions, labels, weights) as p:
            return self._with(p.in_order(self.class_names).judging(self.of))

    def _with(self, p: Predictions) -> "Summary":
        k = p.k
        if self.k not in (0, k):
            raise InputError(
                f"expected logits of {self.k} classes as in the batches before, got {k}", code="num_classes"
            )
        if p.weights is not None and float(p.weights.max()) > HEAVIEST:
            raise InputError(
                f"weights are at most {HEAVIEST:,}, got {float(p.weights.max()):.4g}; divide them by their mean",
                code="weight_range",
            )
        for what, mine, theirs in (
            ("clusters", self.slots, p.clusters),
            ("groups", self.groups, p.groups),
            ("groups of rows", self.row_groups, p.row_groups),
        ):
            if len(self) and (mine is None) != (theirs is None):
                raise InputError(
                    f"some batches have {what} and some have none: give {what} with all of them, or none",
                    code="partly_missing",
                )
        sums, cells, slots = self.sums.clone(), self.cells.clone(), self.slots
        groups, row_groups = self.groups, self.row_groups
        slot, classes = None if p.clusters is None else slot_of(p), self.classes
        if self.by_class and k <= self.CLASSES:
            new = ClassSums.of(p, class_cells(p, self.bins)())
            classes = new if classes is None else classes + new
        plain = p.groups is None and p.clusters is None
        fast = kernels(p.logits) if plain and self.sums.device.type == "cpu" else None
        size = ROWS if fast is None else PIECE
        for i in range(0, len(p), size):
            part = p[i : i + size]
            if fast is not None:
                _compiled_add(fast, part, sums, cells)
                sums, cells = carry(sums, WORD), carry(cells, HALF)
                continue
            words, index = words_of(part, self.bins)
            sums = carry(sums + binned(words, index, self.bins).to(sums.device), WORD)
            if p.groups is not None:
                mine = None if slot is None else slot[i : i + ROWS]
                groups = (groups or GroupSums()).add(part, words, index, mine, self.bins)
                if p.row_groups is not None:
                    second = part._with(groups=part.row_groups, group_names=part.row_group_names)  # pyright: ignore[reportPrivateUsage]
                    row_groups = (row_groups or GroupSums()).add(second, words, index, mine, self.bins)
            if slot is not None:
                index = index + slot[i : i + ROWS] * self.bins
                new = binned(words, index, self.SLOTS * self.bins).view(3, -1, self.SLOTS, self.bins).to(sums.device)
                slots = merged(slots, carry(new, WORD))
            _count(cells, part)
        names = self.class_names or p.class_names
        kept = (names, slots, groups, classes, self.by_class, row_groups)
        return Summary(k, self.bins, sums, _countable(cells), self.of, *kept)

    def __add__(self, other: "Summary") -> "Summary":
        """Both together."""
        if self.bins != other.bins or (self.k != other.k and 0 not in (self.k, other.k)) or self.of != other.of:
            raise InputError(
                f"cannot merge summaries of {self.k} classes in {self.bins} bins and {other.k} in {other.bins}, of "
                f"{self.of!r} and {other.of!r}",
                code="different_summaries",
            )
        called = {"slots": "clusters", "groups": "groups", "row_groups": "groups of rows", "classes": "classes"}
        for what in called if len(self) and len(other) else ():
            if (getattr(self, what) is None) != (getattr(other, what) is None):
                raise InputError(
                    f"cannot merge a summary of predictions in {called[what]} with one of predictions without",
                    code="partly_missing",
                )
        if self.class_names and other.class_names and self.class_names != other.class_names:
            raise InputError(
                f"cannot merge summaries of classes {self.class_names} and {other.class_names}", code="classes_differ"
            )
        sums, slots = merged(self.sums, other.sums), merged(self.slots, other.slots)
        assert sums is not None
        groups, row_groups = _both(self.groups, other.groups), _both(self.row_groups, other.row_groups)
        classes = self.classes + other.classes if self.classes and other.classes else self.classes or other.classes
        by_class = self.by_class or other.by_class
        cells = _countable(self.cells + other.cells.to(self.sums.device))
        names = self.class_names or other.class_names
        kept = (names, slots, groups, classes, by_class, row_groups)
        return Summary(max(self.k, other.k), self.bins, sums, cells, self.of, *kept)

    def __radd__(self, other: int) -> "Summary":
        """Let `sum(summaries)` start from 0."""
        return self

    def __len__(self) -> int:
        return int(self.total("rows"))

    @property
    def clustered(self) -> bool:
        """Whether the examples depend on each other in clusters."""
        return self.slots is not None

    def __getitem__(self, name: str) -> float:
        """The value of a metric by name: "nll", "ece", "adaptive_ece", "kuiper", "smooth_ece" ..."""
        if name in MEANS or name in SHARES:
            return self.interval(name).value
        metric: Any = METRICS[name]
        if metric.of_sums:
            return float(metric.function(self, **self._settings(name)))
        raise InputError(
            f"{name} needs every prediction, not a summary of them; measure them in memory", code="summary_only"
        )

    # The events, as metrics see them

    @cached_property
    def ties(self) -> Ties:
        """The cells that hold anything, in increasing order of confidence."""
        low, high = self.cells.cpu().double()
        cells = low * 2.0**-UNIT + high * 2.0 ** (HALF - UNIT)
        mass, happened, confidence = cells[:, cells[0] > 0].flip(1)
        return Ties(confidence / mass, mass, happened, self._clusters)


def _both(one: GroupSums | None, other: GroupSums | None) -> GroupSums | None:
    return one + other if one and other else one or other


def _compiled_add(fast: Any, p: Predictions, sums: Tensor, cells: Tensor) -> None:
    """Add what `words_of` and `_count` say of rows, by one compiled pass."""
    outcomes, events = p.outcomes, p.events
    weights = torch.empty(0) if p.weights is None else p.weights
    rows = (events.confidence, events.happened, outcomes.correct, outcomes.log_likelihood, outcomes.brier, weights)
    edges = equal_width_edges(sums.shape[2])
    columns = (part.double().contiguous().numpy() for part in (*rows, edges))
    fast.summed(*columns, SURE, FIRST_CELL, sums.numpy(), cells.numpy())


def _count(cells: Tensor, p: Predictions) -> None:
    """Add to the cells, uniform in the logarithm of the odds of a miss."""
    c, a = p.events.confidence, p.events.happened
    place = odds_cell(c).to(cells.device)
    w = torch.ones_like(c) if p.weights is None else p.weights.to(c)
    for i, values in enumerate((w, w * a, w * c)):
        units = values.mul(2.0**UNIT).round_()
        upper = (units * 2.0**-HALF).floor_()
        for word, part in zip(cells[:, i], (units - upper * 2.0**HALF, upper)):
            word.index_add_(0, place, part.to(cells.device, torch.int64))
    cells.copy_(carry(cells, HALF))


def _countable(cells: Tensor) -> Tensor:
    if bool((cells[1, 0] >= 1 << 62).any()):
        raise InputError(
            "more than 7e13 examples in one cell of confidence: read the summary and start another",
            code="too_many_rows",
        )
    return carry(cells, HALF)
