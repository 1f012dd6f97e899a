"""A summary of any number of predictions in a fixed 3 MB: add batches, merge in any order, read at the end."""

from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from calibrant.backend.bins import FIRST_ODDS_CELL, NUM_ODDS_CELLS, GroupedScores, equal_width_edges, odds_cell
from calibrant.backend.dispatch import kernels
from calibrant.metrics._class_sums import ClassSums, collect_class_bins
from calibrant.metrics._sums import (
    CELL_WORD_BITS,
    CHUNK_ROWS,
    FEATURES,
    HIGH_CONFIDENCE,
    MAX_WEIGHT,
    MEAN_FEATURES,
    SHARE_FEATURES,
    UNIT_BITS,
    WORD_BITS,
    BinSums,
    GroupSums,
    add_words,
    carry,
    cluster_slots,
    sum_words_by_bin,
    to_fixed_point,
)
from calibrant.predictions import EventSelector, Predictions, as_predictions
from calibrant.registry import METRICS
from calibrant.types import InputError

COMPILED_CHUNK_ROWS = 1 << 18  # rows that a compiled pass adds at a time


@dataclass(frozen=True, eq=False)
class Summary(BinSums):
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

    MAX_CLASSES: ClassVar[int] = 1000  # beyond which they are not summed up one by one

    k: int  # number of classes, 0 before the first batch
    bins: int
    sums: Tensor  # (3 f b) int64, over bins of equal width, in words of 26 bits, the lowest first
    cells: Tensor = field(repr=False)  # (2 3 g) int64: mass, what happened, confidence by log-odds, words of 36 bits
    of: EventSelector = "top"  # the event that is judged
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
        of: EventSelector = "top",
        device: torch.device | str = "cpu",
        by_class: bool = False,
    ) -> "Summary":
        """Of nothing yet; the state lives on `device`, batches may come from any."""
        zeros = partial(torch.zeros, dtype=torch.int64, device=device)
        return cls(k, bins, zeros(3, len(FEATURES), bins), zeros(2, 3, NUM_ODDS_CELLS), of, by_class=by_class)

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
        of: EventSelector | None = None,
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
        for part in Predictions.load_chunks(path, ignore_index=ignore_index, **options):
            summary = summary or cls.empty(bins=bins, of=part.of if of is None else of, by_class=by_class)
            summary = summary.add(part)
        assert summary is not None  # a file without examples is refused
        return summary

    def add(self, predictions: Any, labels: Any = None, weights: Any = None) -> "Summary":
        """The summary with one more batch."""
        with as_predictions(predictions, labels, weights) as p:
            return self._add_predictions(p.reorder_classes(self.class_names).with_event(self.of))

    def _add_predictions(self, p: Predictions) -> "Summary":
        k = p.k
        if self.k not in (0, k):
            raise InputError(
                f"expected logits of {self.k} classes as in the batches before, got {k}", code="num_classes"
            )
        if p.weights is not None and float(p.weights.max()) > MAX_WEIGHT:
            raise InputError(
                f"weights are at most {MAX_WEIGHT:,}, got {float(p.weights.max()):.4g}; divide them by their mean",
                code="weight_range",
            )
        for kind, mine, theirs in (
            ("clusters", self.slots, p.clusters),
            ("groups", self.groups, p.groups),
            ("groups of rows", self.row_groups, p.row_groups),
        ):
            if len(self) and (mine is None) != (theirs is None):
                raise InputError(
                    f"some batches have {kind} and some have none: give {kind} with all of them, or none",
                    code="partly_missing",
                )
        sums, cells, slots = self.sums.clone(), self.cells.clone(), self.slots
        groups, row_groups = self.groups, self.row_groups
        slot, classes = None if p.clusters is None else cluster_slots(p), self.classes
        if self.by_class and k <= self.MAX_CLASSES:
            added = ClassSums.from_predictions(p, collect_class_bins(p, self.bins)())
            classes = added if classes is None else classes + added
        is_ungrouped = p.groups is None and p.clusters is None
        fast = kernels(p.logits) if is_ungrouped and self.sums.device.type == "cpu" else None
        size = CHUNK_ROWS if fast is None else COMPILED_CHUNK_ROWS
        for i in range(0, len(p), size):
            part = p[i : i + size]
            if fast is not None:
                _compiled_add(fast, part, sums, cells)
                sums, cells = carry(sums, WORD_BITS), carry(cells, CELL_WORD_BITS)
                continue
            words, index = to_fixed_point(part, self.bins)
            sums = carry(sums + sum_words_by_bin(words, index, self.bins).to(sums.device), WORD_BITS)
            if p.groups is not None:
                mine = None if slot is None else slot[i : i + CHUNK_ROWS]
                groups = (groups or GroupSums()).add(part, words, index, mine, self.bins)
                if p.row_groups is not None:
                    row_grouped = part._replace(groups=part.row_groups, group_names=part.row_group_names)  # pyright: ignore[reportPrivateUsage]
                    row_groups = (row_groups or GroupSums()).add(row_grouped, words, index, mine, self.bins)
            if slot is not None:
                index = index + slot[i : i + CHUNK_ROWS] * self.bins
                added = (
                    sum_words_by_bin(words, index, self.NUM_SLOTS * self.bins)
                    .view(3, -1, self.NUM_SLOTS, self.bins)
                    .to(sums.device)
                )
                slots = add_words(slots, carry(added, WORD_BITS))
            _add_to_cells(cells, part)
        names = self.class_names or p.class_names
        optional_fields = (names, slots, groups, classes, self.by_class, row_groups)
        return Summary(k, self.bins, sums, _carry_cells(cells), self.of, *optional_fields)

    def __add__(self, other: "Summary") -> "Summary":
        """Both together."""
        if self.bins != other.bins or (self.k != other.k and 0 not in (self.k, other.k)) or self.of != other.of:
            raise InputError(
                f"cannot merge summaries of {self.k} classes in {self.bins} bins and {other.k} in {other.bins}, of "
                f"{self.of!r} and {other.of!r}",
                code="different_summaries",
            )
        field_titles = {"slots": "clusters", "groups": "groups", "row_groups": "groups of rows", "classes": "classes"}
        for field_name in field_titles if len(self) and len(other) else ():
            if (getattr(self, field_name) is None) != (getattr(other, field_name) is None):
                raise InputError(
                    f"cannot merge a summary of predictions in {field_titles[field_name]} with one of predictions "
                    "without",
                    code="partly_missing",
                )
        if self.class_names and other.class_names and self.class_names != other.class_names:
            raise InputError(
                f"cannot merge summaries of classes {self.class_names} and {other.class_names}", code="classes_differ"
            )
        sums, slots = add_words(self.sums, other.sums), add_words(self.slots, other.slots)
        assert sums is not None
        groups, row_groups = _merge_groups(self.groups, other.groups), _merge_groups(self.row_groups, other.row_groups)
        classes = self.classes + other.classes if self.classes and other.classes else self.classes or other.classes
        by_class = self.by_class or other.by_class
        cells = _carry_cells(self.cells + other.cells.to(self.sums.device))
        names = self.class_names or other.class_names
        optional_fields = (names, slots, groups, classes, by_class, row_groups)
        return Summary(max(self.k, other.k), self.bins, sums, cells, self.of, *optional_fields)

    def __radd__(self, other: int) -> "Summary":
        """Let `sum(summaries)` start from 0."""
        return self

    def __len__(self) -> int:
        return int(self.total("rows"))

    @property
    def has_clusters(self) -> bool:
        """Whether the examples depend on each other in clusters."""
        return self.slots is not None

    def __getitem__(self, name: str) -> float:
        """The value of a metric by name: "nll", "ece", "adaptive_ece", "kuiper", "smooth_ece" ..."""
        if name in MEAN_FEATURES or name in SHARE_FEATURES:
            return self.interval(name).value
        metric: Any = METRICS[name]
        if metric.accepts_sums:
            return float(metric.function(self, **self._settings(name)))
        raise InputError(
            f"{name} needs every prediction, not a summary of them; measure them in memory", code="summary_only"
        )

    # The events, as metrics see them

    @cached_property
    def ties(self) -> GroupedScores:
        """The cells that hold anything, in increasing order of confidence."""
        low, high = self.cells.cpu().double()
        cells = low * 2.0**-UNIT_BITS + high * 2.0 ** (CELL_WORD_BITS - UNIT_BITS)
        mass, outcome, confidence = cells[:, cells[0] > 0].flip(1)
        return GroupedScores(confidence / mass, mass, outcome, self._clusters)


def _merge_groups(first: GroupSums | None, second: GroupSums | None) -> GroupSums | None:
    return first + second if first and second else first or second


def _compiled_add(fast: Any, p: Predictions, sums: Tensor, cells: Tensor) -> None:
    """Add what `words_of` and `_count` say of rows, by one compiled pass."""
    outcomes, events = p.outcomes, p.events
    weights = torch.empty(0) if p.weights is None else p.weights
    rows = (events.confidence, events.outcome, outcomes.correct, outcomes.log_likelihood, outcomes.brier, weights)
    edges = equal_width_edges(sums.shape[2])
    columns = (part.double().contiguous().numpy() for part in (*rows, edges))
    fast.add_to_summary(*columns, HIGH_CONFIDENCE, FIRST_ODDS_CELL, sums.numpy(), cells.numpy())


def _add_to_cells(cells: Tensor, p: Predictions) -> None:
    """Add to the cells, uniform in the logarithm of the odds of a miss."""
    c, a = p.events.confidence, p.events.outcome
    place = odds_cell(c).to(cells.device)
    w = torch.ones_like(c) if p.weights is None else p.weights.to(c)
    for i, values in enumerate((w, w * a, w * c)):
        units = values.mul(2.0**UNIT_BITS).round_()
        upper = (units * 2.0**-CELL_WORD_BITS).floor_()
        for word, part in zip(cells[:, i], (units - upper * 2.0**CELL_WORD_BITS, upper)):
            word.index_add_(0, place, part.to(cells.device, torch.int64))
    cells.copy_(carry(cells, CELL_WORD_BITS))


def _carry_cells(cells: Tensor) -> Tensor:
    if bool((cells[1, 0] >= 1 << 62).any()):
        raise InputError(
            "more than 7e13 examples in one cell of confidence: read the summary and start another",
            code="too_many_rows",
        )
    return carry(cells, CELL_WORD_BITS)
