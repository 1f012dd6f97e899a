"""A summary of any number of predictions in a fixed 3 MB: add batches, merge in any order, read at the end."""

import json
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float64, Int64

from calibrant._core.arrays import read_arrays
from calibrant._core.files import atomic_write
from calibrant._core.foreign import parse_json
from calibrant._core.kernels.bins import (
    FIRST_ODDS_CELL,
    NUM_ODDS_CELLS,
    GroupedScores,
    equal_width_edges,
    equal_width_index,
    odds_cell,
)
from calibrant._core.kernels.digests import arrays_digest
from calibrant._core.kernels.dispatch import kernels
from calibrant._core.registry import METRICS
from calibrant._core.types import Count, InputError, OpenFraction, Range, check_arguments, prefix_errors
from calibrant.metrics import _sums
from calibrant.metrics._aggregates import summary_fields
from calibrant.metrics._class_sums import ClassSums
from calibrant.metrics._intervals import Interval
from calibrant.metrics._query import build_query
from calibrant.metrics._sums import (
    CELL_WORD_BITS,
    FEATURES,
    HIGH_CONFIDENCE,
    MAX_WEIGHT,
    UNIT_BITS,
    WORD_BITS,
    BinSums,
    GroupSums,
    SumBuilder,
)
from calibrant.predictions import EventSelector, Predictions, as_predictions
from calibrant.predictions.validation import resolve_event
from calibrant.predictions.validation.states import build_state, refuse_malformed

CHUNK_ROWS = 1 << 13  # rows whose features are in memory at a time
COMPILED_CHUNK_ROWS = 1 << 18  # rows of a compiled pass
CELL_ROUNDING = 1e-9  # relative, of the sums of a cell
SUMMARY_FORMAT, SUMMARY_VERSION = "calibrant-summary", "2"
ScoreCells = Annotated[Int64[np.ndarray, "2 3 cells"], Range(ge=0)]
Surprisals = Annotated[Float64[np.ndarray, " 2"], Range(ge=0, le=math.inf)]
NO_SURPRISALS = np.zeros(2)  # of no examples


@dataclass(frozen=True, eq=False)
class Summary(BinSums):
    r"""The sums of predictions from which accuracy, NLL, Brier, ECE and its floor, Kuiper, smooth ECE ... follow.

    Every number is rounded to a multiple of 2^-52 (squared log-likelihoods of 2^-40) and added up in integers, so that
    any sharding, order and merging of batches gives the same state to the last bit (on one kind of device: the
    exponential of another may differ in its last bit, and a rounding with it). Means, ECE over the equal-width bins,
    its floor, and their intervals agree with those of the predictions to 1e-12, whatever the weights.

    Metrics that sort the examples are computed from 61,440 cells, uniform in the log odds of an error to 1/1024. Their
    error is at most the weight of the heaviest cell times the number of bin ends that can fall into it, 2 (b - 1) for
    adaptive ECE and 2 for Kuiper, and far less as a rule. Weights are at most 2^20. NLLs above 65,536 count as that.

    Examples that depend on each other in clusters are also summed in 64 sets of whole clusters (350 KB). The variation
    between sets gives valid intervals and tests, with 63 degrees of freedom. A cluster must come whole in one batch, as
    the positions of an image do; a cluster that is cut counts as two. `Summary.empty(by_class=True)` also sums every
    class, in a third more time. Groups have sums of their own (5 KB each, 130 KB with clusters), from which
    `metrics.tables.groups` makes their table.

    `summary["ece"]` is a value, `summary.interval("nll")` one with its interval, and `calibrant.measure(summary)` the
    whole table.

    >>> summary = Summary.empty(k=2).add(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    >>> summary["ece"], (summary + summary)["ece"]
    (0.25, 0.25)
    """

    MAX_CLASSES: ClassVar[int] = 1000  # most classes that are summed one by one
    NUM_SLOTS: ClassVar[int] = _sums.NUM_SLOTS

    cells: ScoreCells = field(repr=False)  # (2 3 g) int64: weight, outcome, confidence by log odds, words of 36 bits
    of: EventSelector = "top"  # the event
    class_names: tuple[str, ...] | None = None
    groups: GroupSums | None = field(default=None, repr=False)
    classes: ClassSums | None = field(default=None, repr=False)
    by_class: bool = False  # whether the classes, at most 1000, are summed too
    row_groups: GroupSums | None = field(default=None, repr=False)  # the second grouping, of several labels
    max_surprisals: Surprisals = field(
        default_factory=NO_SURPRISALS.copy, repr=False
    )  # (2) float64, as those of `Predictions`

    @classmethod
    @check_arguments
    def empty(
        cls,
        k: int = 0,
        *,
        bins: Count = 15,
        of: EventSelector = "top",
        by_class: bool = False,
    ) -> "Summary":
        """Return the summary of no predictions, to which `add` adds batches.

        Args:
            k: Number of classes, 0 to take it from the first batch.
            bins: Number of bins of equal width.
            of: Event to evaluate: "top", the index of a class, or "classes".
            by_class: Whether to sum every class, of at most 1000.
        """
        sums, cells = (np.zeros(shape, dtype=np.int64) for shape in ((3, len(FEATURES), bins), (2, 3, NUM_ODDS_CELLS)))
        return cls(k, bins, sums, slots=None, cells=cells, of=of, by_class=by_class)

    @classmethod
    def from_predictions(cls, predictions: Predictions, *, bins: Count = 15, by_class: bool = False) -> "Summary":
        """Summarize predictions in memory for their event, and for every class if `by_class`."""
        return cls.empty(bins=bins, of=predictions.of, by_class=by_class).add(predictions)

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        bins: Count = 15,
        of: str | int | None = None,
        by_class: bool = False,
        ignore_index: int | None = None,
        **options: Any,
    ) -> "Summary":
        """Summarize files of any size (.parquet, .arrow, .safetensors, .npy), read and validated in chunks.

        Args:
            path: File, folder or pattern.
            bins: Number of bins of equal width.
            of: Event to evaluate, such as the name of a class; by default the one that the file names, such as the
                confidence of answers.
            by_class: Whether to sum every class, of at most 1000.
            ignore_index: Label of positions that are left out.
            **options: Options of `Predictions.load`.

        Raises:
            InputError: As `Predictions.load` does, and for formats that can only be read whole.
        """
        summary: Summary | None = None
        for part in Predictions.load_chunks(path, ignore_index=ignore_index, **options):
            event = part.of if of is None else part.with_event(of).of
            summary = summary or cls.empty(bins=bins, of=event, by_class=by_class)
            summary = summary.add(part)
        assert summary is not None  # a file without examples is refused
        return summary

    @staticmethod
    def query(table: str | Sequence[str], **options: Any) -> str:
        """Return the text of one SQL query (one GROUP BY), whose answer `from_aggregates` reads.

        A database or a data lake then sums any number of rows, and nothing but a few thousand sums leaves it. A row
        with a NULL in any of the columns is only counted. Of equal probabilities the first class is predicted. A
        probability within a rounding error of the end of a bin may fall into the next one. A group without rows has
        no sums.

        Args:
            table: Name of the table or view, or its parts: `("schema", "table")`. For DuckDB also a file or a pattern.
            **options: One of `probs`, `logits` (a column for each class, a mapping from the label of each class to its
                column, or the one column of class 1 of two) and `confidence` (stated, in [0, 1], with the right answers
                in `label`). `label`: column of the labels, 0 .. k-1 unless `classes` lists their values. `by`: column
                of groups. `weights`: column of weights; `weights_are`, "counts" or "importance", says what fractions
                are. `dialect`: "duckdb" (default), "postgres", "sqlite", "spark", "bigquery" or "snowflake". `of` and
                `bins`: as in `measure`. `clusters`: column of clusters, or of row ids for importance weights, for a
                second query with the sums of 64 sets of whole clusters. `by_class=True`: a query with the sums of every
                class.

        Raises:
            InputError: If an option is unknown or missing, or a name cannot be quoted.

        >>> text = Summary.query("predictions", probs=["p_cat", "p_dog"], label="label")
        >>> text.count("GROUP BY")
        1
        """
        return build_query(table, **options)

    @classmethod
    def from_aggregates(cls, *rows: Any, drop: bool = False) -> "Summary":
        """Read the answer of `query`: a cursor, a frame (Spark, pandas, polars), an Arrow table, or a list of rows.

        Args:
            *rows: The answer, and perhaps those of the same query with `clusters` and with `by_class`.
            drop: Whether to leave out rows of the table with NULL, at most half of all, instead of refusing them.

        Raises:
            InputError: If columns are missing, numbers are impossible, or the table has rows that `Predictions` would
                refuse too. Fractions as weights need `weights_are="counts"`, or a second query with clusters.

        >>> import sqlite3
        >>> database = sqlite3.connect(":memory:")
        >>> _ = database.execute("CREATE TABLE t (p REAL, y INTEGER)")
        >>> _ = database.executemany("INSERT INTO t VALUES (?, ?)", [(0.9, 1), (0.9, 0), (0.2, 0)])
        >>> text = Summary.query("t", probs="p", label="y", dialect="sqlite")
        >>> round(Summary.from_aggregates(database.execute(text))["ece"], 4)
        0.3333
        """
        values = summary_fields(rows, drop=drop)
        summary: Summary = build_state(cls, values)
        if not summary.is_consistent:
            raise InputError(
                "Expected sums that fit together, got others. Try the answer of Summary.query as it is.",
                code="aggregates",
            )
        return summary

    def add(self, predictions: Any, labels: Any = None, weights: Any = None) -> "Summary":
        """Return the summary with one more batch, predictions or logits with labels and perhaps weights.

        Importance weights make clusters. Say what weights are (`Predictions(weights_are=...)`) if some batches have
        fractions and others only integers.

        Raises:
            InputError: If the classes, or the presence of clusters or groups, differ from the batches before, or a
                weight is above 2^20.
        """
        with as_predictions(predictions, labels, weights) as p:
            p = p.reorder_classes(self.class_names).with_event(self.of)
            if self.k not in (0, p.k):  # 0: not known before the first batch
                raise InputError(
                    f"Expected logits of {self.k} classes as in the batches before, got {p.k}.", code="num_classes"
                )
            if p.weights is not None and float(p.weights.max()) > MAX_WEIGHT:
                raise InputError(
                    f"Expected weights of at most {MAX_WEIGHT:,}, got {float(p.weights.max()):.4g}. Try dividing them "
                    "by their mean.",
                    code="weight_range",
                )
            return self + _summarize_batch(p, self.bins, self.by_class)

    def __add__(self, addend: "Summary") -> "Summary":
        """Merge two summaries of the same bins, event and classes. One of k = 0 classes joins any other.

        Raises:
            InputError: If classes, bins, events, or the presence of clusters or groups differ, or rows are too many.
        """
        if not isinstance(addend, Summary):  # pyright: ignore[reportUnnecessaryIsInstance]
            return NotImplemented
        if self.bins != addend.bins or (self.k != addend.k and 0 not in (self.k, addend.k)) or self.of != addend.of:
            raise InputError(
                f"Expected summaries of the same classes, bins and event, got {self.k} classes in {self.bins} bins and "
                f"{addend.k} in {addend.bins}, of {self.of!r} and {addend.of!r}.",
                code="different_summaries",
            )
        titles = {"slots": "clusters", "groups": "groups", "row_groups": "groups of rows", "classes": "classes"}
        for name, title in titles.items() if len(self) and len(addend) else ():  # an empty summary joins any other
            if (getattr(self, name) is None) != (getattr(addend, name) is None):
                hint = ' Try weights_are="importance" for every batch, if weights are given.' if name == "slots" else ""
                raise InputError(
                    f"Expected {title} in all batches or in none, got some with and some without.{hint}",
                    code="partly_missing",
                )
        if self.class_names and addend.class_names and self.class_names != addend.class_names:
            raise InputError(
                f"Expected summaries of the same classes, got {self.class_names} and {addend.class_names}.",
                code="classes_differ",
            )
        cells = self.cells + addend.cells
        if bool((cells[1, 0] >= 1 << 62).any()):  # the upper word of a weight could overflow int64 at the next merge
            raise InputError(
                "Expected at most 7e13 examples in one cell of confidence. Read this summary and start another.",
                code="too_many_rows",
            )
        return replace(
            self,
            k=max(self.k, addend.k),
            sums=_sums.add_words(self.sums, addend.sums),
            cells=_sums.carry(cells, CELL_WORD_BITS),
            class_names=self.class_names or addend.class_names,
            slots=_sums.add_optional(self.slots, addend.slots, _sums.add_words),
            groups=_sums.add_optional(self.groups, addend.groups, operator.add),
            classes=_sums.add_optional(self.classes, addend.classes, operator.add),
            by_class=self.by_class or addend.by_class,
            row_groups=_sums.add_optional(self.row_groups, addend.row_groups, operator.add),
            max_surprisals=np.maximum(self.max_surprisals, addend.max_surprisals),
        )

    def __radd__(self, addend: int) -> "Summary":
        """Let `sum(summaries)` start from 0."""
        return self if isinstance(addend, int) and addend == 0 else NotImplemented  # pyright: ignore

    def save(self, path: str | Path) -> None:
        """Write the summary to a .safetensors file of 3 MB or more."""
        from safetensors.numpy import save

        arrays: dict[str, np.ndarray] = {}
        settings = json.dumps(_split_fields(self, "", arrays))
        metadata = {"format": SUMMARY_FORMAT, "version": SUMMARY_VERSION, "settings": settings}
        with atomic_write(Path(path)) as draft:
            # the digest tells a damaged file
            draft.write_bytes(save(arrays, metadata | {"sha256": arrays_digest(metadata, arrays)}))

    @classmethod
    def load(cls, path: str | Path) -> "Summary":
        """Read a summary that `save` wrote, bit for bit.

        Raises:
            InputError: If the file is no summary, is damaged, or has a later version.
        """
        malformed = "Expected a summary, got a malformed description. Try summarizing the predictions again."
        with prefix_errors(f"{path}"), refuse_malformed(malformed):
            arrays, metadata = read_arrays(Path(path))
            if metadata.get("format") != SUMMARY_FORMAT:
                raise InputError("Expected a file of Summary.save, got another file.", code="summary_file")
            if (version := metadata.get("version")) not in ("1", SUMMARY_VERSION):
                raise InputError(
                    f"Expected a summary of version {SUMMARY_VERSION}, got {version}. Try upgrading calibrant.",
                    code="newer_format",
                )
            if metadata.pop("sha256", "") != arrays_digest(metadata, arrays):
                raise InputError(
                    "Expected the summary as it was written, got a damaged or changed file.", code="checksum"
                )
            values = _join_fields(parse_json(metadata["settings"], dict), "", arrays)
            for name, part in {"groups": GroupSums, "row_groups": GroupSums, "classes": ClassSums}.items():
                if values[name] is not None:
                    values[name] = build_state(part, _join_fields(values[name], f"{name}.", arrays))
            summary: Summary = build_state(cls, values)
            if not summary.is_consistent:
                raise InputError(malformed, code="file_content")
            return summary if version == SUMMARY_VERSION else summary._with_surprisals_of_cells()

    @property
    def is_consistent(self) -> bool:
        """Whether the fields fit together, as in a file that is not damaged."""
        groups = [part for part in (self.groups, self.row_groups) if part is not None]
        parts: list[BinSums | GroupSums] = [self, *groups]
        words = [array for part in parts for array in (part.sums, part.slots) if array is not None]
        low, high = self.cells.astype(float)
        weight, *shares = low + high * 2.0**CELL_WORD_BITS
        total, total_of_cells = self.total_weight, float(weight.sum()) * 2.0**-UNIT_BITS
        return (
            math.isclose(total, total_of_cells, rel_tol=CELL_ROUNDING)
            and self.of == resolve_event(self.of, self.k or Summary.MAX_CLASSES)
            and (self.class_names is None or len(self.class_names) == self.k)
            and self.cells.shape[2] == NUM_ODDS_CELLS
            and all(bool((share <= weight * (1 + CELL_ROUNDING)).all()) for share in shares)
            and len({part.slots is None for part in parts}) == 1
            and (self.slots is None or self.slots.shape[1] == len(FEATURES))
            and all(array.shape[-1] == self.bins for array in words)
            and all(bool((array[:2] >> WORD_BITS == 0).all() and (array[2, :2] >= 0).all()) for array in words)
            and (self.classes is None or self.classes.cells.shape[:2] == (self.k, self.bins))
        )

    def _with_surprisals_of_cells(self) -> "Summary":
        """Return a summary of version 1, which has no surprisals, with those of its most confident cell."""
        if not len(self):
            return self
        c = self.by_score.value[[0, -1]]
        error = np.maximum(np.minimum(c, 1 - c).min(), np.finfo(np.float64).eps)
        return replace(self, max_surprisals=np.stack([-np.log(error), NO_SURPRISALS[1]]))

    def __len__(self) -> int:
        return int(self.total("rows"))

    @property
    def has_clusters(self) -> bool:
        """Whether the examples depend on each other in clusters."""
        return self.slots is not None

    def __getitem__(self, name: str) -> float:
        """Return the value of a metric by name: "nll", "ece", "adaptive_ece", "kuiper", "smooth_ece" ..."""
        return float(METRICS.method(name)(self))

    def interval(self, name: str, level: OpenFraction = 0.90) -> Interval:
        """Return a metric by name with the interval that holds the truth with probability `level`."""
        method = METRICS.method(name)
        return method.target.interval(self, level=level, **method.settings)  # pyright: ignore[reportFunctionMemberAccess]

    @cached_property
    def by_score(self) -> GroupedScores:
        """The cells that are not empty, in increasing order of confidence."""
        low, high = self.cells.astype(float)  # the two words of each sum, an integer in units of 2^-52
        cells = low * 2.0**-UNIT_BITS + high * 2.0 ** (CELL_WORD_BITS - UNIT_BITS)
        weight, outcome, confidence = np.flip(cells[:, cells[0] > 0], 1)  # cells start at the highest confidence
        return GroupedScores(confidence / weight, weight, outcome, self._clusters)


def _summarize_batch(p: Predictions, bins: int, by_class: bool) -> Summary:
    """Summarize one batch, in chunks of rows: sums over bins, sums in cells of log odds, and sums of every class."""
    # First, because this pass over the logits also computes and keeps the outcomes that the chunks need
    classes = ClassSums.from_predictions(p, bins) if by_class and p.k <= Summary.MAX_CLASSES else None
    builder = SumBuilder(p, bins)
    cells = np.zeros((2, 3, NUM_ODDS_CELLS), dtype=np.int64)
    # the compiled pass keeps no sums of groups or clusters
    compiled = kernels(p.logits) if p.groups is None and p.clusters is None else None
    size = CHUNK_ROWS if compiled is None else COMPILED_CHUNK_ROWS
    is_first_row = None if p.examples is None else np.diff(p.examples, prepend=p.examples[:1] - 1) != 0  # of an example
    surprisals = NO_SURPRISALS
    for start in range(0, len(p), size):
        rows = slice(start, start + size)
        part = p[rows]
        if part.total_weight > 0:
            surprisals = np.maximum(surprisals, part.max_surprisals)
        if compiled is not None:
            _add_compiled(compiled, part, builder.sums, cells)
            continue
        c, features = part.events.confidence, _sums.row_features(part)
        if is_first_row is not None:  # an example with a fractional outcome has several rows, and counts once
            features[FEATURES.index("rows")] = is_first_row[rows]
        builder.add(rows, features, equal_width_index(bins, c))
        weight, weighted_outcome = (features[FEATURES.index(name)] for name in ("weight", "outcome"))
        words = _sums.to_words(np.stack([weight, weighted_outcome, weight * c]), 2, CELL_WORD_BITS)
        _sums.add_rows(cells, words, odds_cell(c))
    builder.carry()  # words below 2^bits, so that equal sums have equal states
    return Summary(
        k=p.k,
        bins=bins,
        sums=builder.sums,
        cells=_sums.carry(cells, CELL_WORD_BITS),
        of=p.of,
        class_names=p.class_names,
        slots=builder.slots,
        groups=builder.groups,
        classes=classes,
        by_class=by_class,
        row_groups=builder.row_groups,
        max_surprisals=surprisals,
    )


def _add_compiled(compiled: Any, p: Predictions, sums: np.ndarray, cells: np.ndarray) -> None:
    """Add rows to the `sums` and `cells` of a `Summary` in place, by one compiled pass.

    The sums get the `row_features`, the cells the weight, outcome and confidence of each row.
    """
    outcomes, events = p.outcomes, p.events
    weights = np.empty(0) if p.weights is None else p.weights  # length 0 stands for weights of 1
    rows = (events.confidence, events.outcome, outcomes.correct, outcomes.log_likelihood, outcomes.brier, weights)
    columns = (np.ascontiguousarray(part, dtype=float) for part in (*rows, equal_width_edges(sums.shape[2])))
    compiled.add_to_summary(*columns, HIGH_CONFIDENCE, FIRST_ODDS_CELL, sums, cells)


def _split_fields(value: Any, prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the fields of a dataclass that are not arrays, nested dataclasses as dictionaries of such fields.

    Arrays are added to `arrays` under the prefix and the name of the field, such as "groups.sums".
    """
    settings = dict[str, Any]()
    for item in fields(value):
        part = getattr(value, item.name)
        if isinstance(part, np.ndarray):
            arrays[prefix + item.name] = np.ascontiguousarray(part)
        else:
            settings[item.name] = _split_fields(part, f"{item.name}.", arrays) if is_dataclass(part) else part
    return settings


def _join_fields(settings: dict[str, Any], prefix: str, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the fields that `_split_fields` separated, with tuples in place of JSON's lists."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    names = {key: key.rpartition(".")[2] for key in arrays}  # name of the field in a key such as "groups.sums"
    return values | {names[key]: array for key, array in arrays.items() if key == prefix + names[key]}
