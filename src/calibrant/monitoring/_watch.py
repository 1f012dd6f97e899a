"""The class `Watch`: calibration over time, with a limited probability of ever raising a false alarm."""

import math
import os
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt64

from calibrant._core.files import atomic_write, check_suffix, write_by_suffix
from calibrant._core.lazy import LazyModule
from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import Alpha, InputError, NonNegativeInt, OpenFraction, PositiveInt, check_arguments
from calibrant.monitoring._batch import Batch, format_time
from calibrant.monitoring._bets import BETS
from calibrant.monitoring._evidence import LOOK_ROWS, SUM_NAMES, LookSettings, Wealth, compute_looks
from calibrant.monitoring._periods import PERIOD_COLUMNS, Periods
from calibrant.monitoring._rows import UNKNOWN_LABEL, RecentRows, Rows, check_same_labels, hash_ids, locate
from calibrant.monitoring._verdict import SEQUENCE_LEVEL, WatchVerdict, build_verdict
from calibrant.predictions import as_predictions
from calibrant.predictions.events import EventSelector
from calibrant.predictions.validation import resolve_event
from calibrant.predictions.validation.arrays import is_text
from calibrant.predictions.validation.labels import binary_names, to_class_indices

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

Digests = UInt64[np.ndarray, " d"]
MAX_CLASSES = 200  # that have tests of their own


@check_arguments
@dataclass(frozen=True, eq=False, repr=False)
class Watch:
    """The state of a calibration monitor, fed by batches of predictions whose labels may come later.

    `add`, `add_labels`, `reset` and `+` return a new state. Rows count in the order of prediction: the longest prefix
    whose labels are all known is processed, in blocks of ten rows, so that no verdict depends on when labels arrive.
    A calibrated model ever raises an alarm with probability at most `alpha`, however often the verdict is read. It is
    calibrated if, given the rows before, the event of each row has its stated probability; rows that depend on each
    other beyond that (clusters) and weights are refused.

    Args:
        alpha: Probability that a calibrated model ever raises an alarm, in each epoch.
        of: Event to test, as for `Predictions`. Default: the event of the first batch.
        by_class: Whether to test each class too, if there are at most 200.

    >>> from calibrant import Predictions
    >>> watch = Watch().add(Predictions.from_probs([0.9] * 40, [0] * 40), ids=range(40))
    >>> watch.verdict.alarm, watch.verdict.rows, watch.verdict.alarms[0].pattern
    (True, 40, 'too high')
    """

    alpha: Alpha = 0.05
    of: EventSelector | str | None = None
    by_class: bool = True
    epoch: PositiveInt = 1  # since the last `reset`, counted from 1
    k: NonNegativeInt = 0  # classes; 0 before the first batch
    class_names: tuple[str, ...] | None = None
    group_names: tuple[str, ...] | None = None  # in the order of their first prediction; None without groups
    rows: NonNegativeInt = 0  # processed rows
    last_time: float = -math.inf  # of a prediction, in seconds
    evidence: Wealth = field(default_factory=lambda: Wealth.empty(0))
    pending: Rows = field(default_factory=lambda: Rows.empty(0))
    recent: RecentRows = field(default_factory=RecentRows.empty)
    periods: Periods = field(default_factory=Periods.empty)
    batches: Digests = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))  # digests
    given_up: NonNegativeInt = 0  # rows that `give_up` has left out
    contract: str | None = None  # digest of the contract by which predictions are calibrated

    def __repr__(self) -> str:
        counts = f"rows={self.rows:,}, pending={len(self.pending):,}, epoch={self.epoch}"
        return f"Watch({counts}, alarm={self.verdict.alarm})"

    @property
    def settings(self) -> LookSettings:
        """The tests of the event, the classes and the groups."""
        assert self.of is not None  # set by the first batch
        assert not isinstance(self.of, str) or self.of == "top"  # class names have become indices
        classes: tuple[int, ...] = ()
        if self.by_class and self.k == 2:
            classes = (1,) if self.of == "top" else ()  # the other class would repeat the test
        elif self.by_class and self.k <= MAX_CLASSES:
            classes = tuple(j for j in range(self.k) if j != self.of)
        num_groups = None if self.group_names is None else len(self.group_names)
        return LookSettings(self.of, classes, num_groups, self.alpha)

    def add(
        self,
        predictions: Any,
        labels: Any = None,
        *,
        labeled: Any = None,
        ids: Any = None,
        times: Any = None,
        name: str | None = None,
        source: str | None = None,
    ) -> "Watch":
        """Return the state with a batch of predictions.

        Rows whose ids were given before count once. Without ids, every row counts, also one that equals an earlier row.

        Args:
            predictions: Predictions, or logits beside labels.
            labels: Labels beside logits.
            labeled: Which rows have a label already (n); the labels of the others are ignored. Default: all.
            ids: An id per row, by which labels may come later. Rows without a label need one.
            times: Time of each prediction: numbers, dates or ISO texts. Rows are sorted by it. A batch with earlier
                times than the batch before is refused.
            name: Name of the batch as a period on the page. Default: its first time, or its number.
            source: Text that identifies a batch without ids, such as the digest of its file. A source that was given
                before counts once.

        Raises:
            InputError: For weights or clusters; for missing ids; for other classes, groups or events than before; and
                for a row with another prediction or label than before.
        """
        with as_predictions(predictions, labels) as p:
            batch = Batch.from_predictions(
                p,
                event=self.of,
                class_names=self.class_names,
                labeled=labeled,
                ids=ids,
                times=times,
                source=source,
            )
        state = self if self.k else self._with_settings(batch)  # k is 0 before the first batch
        state._check_batch(batch)
        state, is_new = state._merge_known_rows(batch)
        if batch.times is not None and is_new.any() and batch.times[is_new].min() < self.last_time:
            raise InputError(
                "Expected predictions in the order of time, got rows of a time before the batch before. Try the "
                "batches in their order.",
                code="time_order",
            )
        return state._append(batch, is_new, name)._process()

    def add_labels(self, ids: Any, labels: Any, *, positive: str | None = None, skip_unknown: bool = False) -> "Watch":
        """Return the state with labels added to rows that were predicted before. They may be class names.

        Args:
            ids: Ids of the rows.
            labels: Their labels.
            positive: Label of class 1, if single scores were given without labels. Default: 1, yes, true and similar
                names.
            skip_unknown: Whether to leave out ids of rows that were never predicted.

        Raises:
            InputError: If an id is unknown, or its label was another one before; or if labels are names, but the
                predictions came without names.
        """
        keys = hash_ids(ids)
        if not self.k:
            raise InputError("Expected predictions before labels, got none. Try the predictions first.", code="no_rows")
        names = self.class_names
        # predictions without class names: texts must be class indices, or the two names of a binary label
        if names is None and (positive is not None or is_text(labels)):
            labels = np.asarray(labels).astype(str)
            texts = np.unique(labels).tolist()
            if self.k > 2 and None in map(parse_number, texts):
                raise InputError(
                    f"Expected labels 0 .. {self.k - 1}, as the predictions came without class names, got "
                    f"{shorten_list(texts)}.",
                    code="class_names",
                )
            if self.k == 2 and (positive is not None or None in map(parse_number, texts)):
                names = binary_names(texts, positive, required=positive is not None)
        classes = to_class_indices(labels, names, self.k)[0]  # of the labels
        if classes.shape != keys.shape:
            raise InputError(f"Expected one label per id, got {len(classes)} for {len(keys)} ids.", code="labels")
        if len(classes) and not 0 <= classes.min() <= classes.max() < self.k:
            raise InputError(
                f"Expected labels in 0 .. {self.k - 1}, got {classes.min()} .. {classes.max()}. Try to subtract 1 "
                "(--labels-from 1) if they are counted from 1.",
                code="labels",
            )
        pending, recent = self.locate_rows(keys)
        is_pending, is_unknown = pending >= 0, (pending < 0) & (recent < 0)
        if is_unknown.any() and not skip_unknown:
            count = is_unknown.sum()
            raise InputError(
                f"Expected ids of predictions that were given before, got {count:,} others of {len(keys):,}. "
                "Try the predictions first, or skip_unknown=True.",
                code="unknown_id",
            )
        check_same_labels(self.recent.labels[recent[recent >= 0]], classes[recent >= 0])
        return replace(self, pending=self.pending.with_labels(pending[is_pending], classes[is_pending]))._process()

    @check_arguments
    def give_up(self, rows: NonNegativeInt | None = None) -> "Watch":
        """Return the state without the rows that wait for a label, so that later rows can be processed.

        The verdict stays valid only if the labels are missing for reasons unrelated to them.

        Args:
            rows: Number of waiting rows, in the order of prediction, among which unlabeled ones are dropped.
                Default: all.
        """
        is_dropped = self.pending.labels == UNKNOWN_LABEL
        if rows is not None:
            is_dropped[rows:] = False
        recent, given_up = self.recent.extended(self.pending[is_dropped]), self.given_up + int(is_dropped.sum())
        return replace(self, pending=self.pending[~is_dropped], recent=recent, given_up=given_up)._process()

    def reset(self) -> "Watch":
        """Return an empty state with the same alpha, of and by_class: a new epoch, for a new model or corrected labels.

        Waiting rows, and what was given before, are forgotten; the limit on false alarms holds for each epoch.
        """
        return Watch(alpha=self.alpha, of=self.of, by_class=self.by_class, epoch=self.epoch + 1)

    def __add__(self, later: "Watch") -> "Watch":
        """Return the state of these rows and of rows that were predicted later, watched apart from them.

        The wealth of the first state is the stake of the second, so that the limit on false alarms holds.

        Raises:
            InputError: If the settings differ, or rows of the first state wait for labels.
        """
        if not (self.k and later.k):  # one of them has no predictions
            return self if self.k else later
        names = ("alpha", "of", "by_class", "k", "class_names", "contract")
        different = [name for name in names if getattr(self, name) != getattr(later, name)]
        if (self.group_names is None) != (later.group_names is None):
            different.append("groups")
        if different:
            raise InputError(
                f"Expected states with the same settings, got a different {', '.join(different)}.", code="settings"
            )
        if len(self.pending):
            raise InputError(
                f"Expected a first state without waiting rows, got {len(self.pending):,}. Try its labels first, or "
                "rows in a multiple of ten.",
                code="pending_rows",
            )
        return _join(self, later)

    @cached_property
    def verdict(self) -> WatchVerdict:
        """The conclusion from the processed rows."""
        return self.verdict_at(SEQUENCE_LEVEL)

    @check_arguments
    def verdict_at(self, level: OpenFraction) -> WatchVerdict:
        """Return the verdict with confidence sequences of another level. Alarms do not depend on it."""
        return build_verdict(self, level)

    def locate_rows(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the index of each key (n) among the waiting rows, and else among the recent ones, or -1."""
        pending = locate(self.pending.keys, keys)
        return pending, np.where(pending >= 0, -1, locate(self.recent.keys, keys))

    # Files

    def save(self, path: str | Path, *, periods: int = 30, level: OpenFraction = SEQUENCE_LEVEL) -> None:
        """Write the state (.watch), or the verdict as a page (.html), numbers (.json) or Prometheus metrics (.prom).

        Args:
            path: File to write; an existing one is replaced only if writing succeeds.
            periods: Number of periods on the page.
            level: Level of the confidence sequences of the verdict.
        """
        path = Path(path)
        check_suffix(path, (".watch", ".html", ".json", ".prom"))
        if path.suffix != ".watch":
            from calibrant.monitoring._watch_document import watch_document  # slow to import
            from calibrant.reports.page import render_page

            verdict, facts = self.verdict_at(level), {"command": "calibrant watch"}
            writers = {
                ".html": lambda: render_page(watch_document(self, periods, verdict), facts),
                ".json": verdict.json,
            }
            write_by_suffix(path, writers | {".prom": verdict.prometheus})
            return
        with atomic_write(path) as draft:
            calibrators.save(self, draft)
            with draft.open("r+b") as file:
                os.fsync(file.fileno())  # before the rename, so that a power cut cannot leave an empty file

    @classmethod
    def load(cls, path: str | Path) -> "Watch":
        """Read a state.

        Raises:
            InputError: If the file is no state, or a state of another version.
        """
        return calibrators.load_instance(path, cls, [Wealth, Rows, RecentRows, Periods])

    @property
    def is_consistent(self) -> bool:
        """Whether the fields fit together, as in a file that is not damaged."""
        columns = self.evidence.sums.shape[1], self.periods.sums.shape[1]
        if columns != (len(SUM_NAMES), len(PERIOD_COLUMNS)):  # those of an earlier version had a Brier score of classes
            return False
        if not self.k:
            return self.rows == len(self.pending) == len(self.evidence) == 0
        num_groups, num_rows = len(self.group_names or ()), len(self.pending)
        has_classes = self.class_names is None or len(self.class_names) == self.k
        return (
            has_classes
            and self.of == resolve_event(self.of, self.k)
            and self.evidence.log_wealth.shape == (len(self.settings.weights), len(BETS))
            and self.pending.probs.shape == (num_rows, self.k)
            and bool((self.pending.groups < num_groups).all() and (self.pending.periods < self.periods.count).all())
            and bool((self.recent.labels < self.k).all())
        )

    # Steps of `add`

    def _with_settings(self, batch: "Batch") -> "Watch":
        """Return the state with the classes, the event and the groups of the first batch."""
        p, groups = batch.predictions, None if batch.predictions.group_names is None else ()
        state = replace(self, of=p.of, k=p.k, class_names=p.class_names, group_names=groups, pending=Rows.empty(p.k))
        return replace(state, evidence=Wealth.empty(len(state.settings.weights)))

    def _check_batch(self, batch: "Batch") -> None:
        """Raise `InputError` for another number of classes, or groups in some batches only."""
        p = batch.predictions
        if p.k != self.k:
            raise InputError(f"Expected {self.k} classes as in the batches before, got {p.k}.", code="num_classes")
        if (p.group_names is None) != (self.group_names is None):
            raise InputError(
                "Expected groups in all batches or in none, got some with and some without. Try group= (--group NAME).",
                code="partly_missing",
            )

    def _merge_known_rows(self, batch: "Batch") -> tuple["Watch", np.ndarray]:
        """Return the state with the labels that a batch adds to rows given before, and a mask of the new rows (n).

        Raises:
            InputError: If a row was given before with other probabilities or another label.
        """
        rows, is_repeated = batch.rows, batch.digest is not None and batch.digest in self.batches
        if not batch.has_ids:
            return self, np.full(len(rows), not is_repeated)
        pending_index, recent_index = self.locate_rows(rows.keys)
        is_pending, is_recent = pending_index >= 0, recent_index >= 0
        # The probabilities of waiting rows can be compared; recent rows have only their labels left
        if not np.array_equal(self.pending.probs[pending_index[is_pending]], rows.probs[is_pending]):
            raise InputError(
                "Expected the predictions that were given before, got others for the same ids. Try ids that name "
                "one prediction each.",
                code="row_changed",
            )
        check_same_labels(self.recent.labels[recent_index[is_recent]], rows.labels[is_recent])
        pending = self.pending.with_labels(pending_index[is_pending], rows.labels[is_pending])
        state = replace(self, pending=pending)
        is_new = ~is_pending & ~is_recent
        return state, is_new & (not is_repeated)  # the digest still identifies rows that are no longer recent

    def _append(self, batch: "Batch", is_new: np.ndarray, name: str | None) -> "Watch":
        """Return the state with the new rows of a batch waiting, and the batch as a period.

        Args:
            batch: The batch.
            is_new: Mask of its rows that were not given before (n).
            name: Name of the period. Default: the first time of the new rows, or the number of the period.
        """
        if not is_new.any():
            return self
        state, groups = self._with_groups(batch, is_new)
        period = np.full(int(is_new.sum()), self.periods.count)
        added = replace(batch.rows[is_new], groups=groups, periods=period)
        times = None if batch.times is None else batch.times[is_new]
        if name is None:
            name = str(self.periods.count + 1) if times is None else format_time(times[0], batch.is_calendar)
        return replace(
            state,
            pending=state.pending.concatenate(added),
            periods=state.periods.appended(name, len(added)),
            batches=state.batches if batch.digest is None else np.append(state.batches, np.uint64(batch.digest)),
            last_time=state.last_time if times is None else float(times[-1]),
        )

    def _with_groups(self, batch: "Batch", is_new: np.ndarray) -> tuple["Watch", np.ndarray]:
        """Return the state with tests of new groups, and the group of each new row."""
        batch_names = batch.predictions.group_names
        groups = batch.rows.groups[is_new]  # indices of the names of the batch, or -1 without groups
        if batch_names is None or self.group_names is None:
            return self, groups
        used, first_row = np.unique(groups, return_index=True)
        names = [batch_names[i] for i in used[np.argsort(first_row)]]  # by their first row
        group_names = tuple(dict.fromkeys([*self.group_names, *names]))  # without repetition
        index_of = {name: i for i, name in enumerate(group_names)}
        new_index = np.array([index_of.get(name, -1) for name in batch_names])  # -1: a name without rows
        state = replace(self, group_names=group_names, evidence=_arrange_groups(self, group_names))
        return state, new_index[groups]

    def _process(self) -> "Watch":
        """Return the state after processing the waiting rows before the first unlabeled one, in whole blocks of ten."""
        count = self.pending.num_leading_labels // LOOK_ROWS * LOOK_ROWS
        if not count:
            return self
        processed, settings = self.pending[:count], self.settings
        thresholds = settings.thresholds
        evidence, periods, row = self.evidence, self.periods, self.rows
        for part in settings.split(processed):  # to bound memory
            log_factors, sums, period_columns = compute_looks(part, settings)
            evidence, totals = evidence.advance(row, log_factors, sums, thresholds)
            peaks = (totals / thresholds).max(1)  # of each look, over all tests; 1 raises an alarm
            periods = periods.advance(row, part.periods, period_columns, peaks)
            row += len(part)
        return replace(
            self,
            rows=row,
            evidence=evidence,
            periods=periods,
            pending=self.pending[count:],
            recent=self.recent.extended(processed),
        )


def _join(first: Watch, later: Watch) -> Watch:
    """Return the state of a watch after the rows of a later watch with the same settings.

    Groups that only the later watch has seen come last. The first watch has no pending rows.
    """
    group_names, groups = first.group_names, later.pending.groups
    evidence, later_evidence = first.evidence, later.evidence
    if first.group_names is not None and later.group_names is not None:
        group_names = tuple(dict.fromkeys([*first.group_names, *later.group_names]))
        evidence = _arrange_groups(first, group_names)
        later_evidence = _arrange_groups(later, group_names)
        new_index = np.array([group_names.index(name) for name in later.group_names])
        groups = new_index[groups] if len(groups) else groups  # without rows, the later watch may have no group
    joined = replace(first, group_names=group_names)  # its settings have a threshold for every group
    return replace(
        joined,
        rows=first.rows + later.rows,
        last_time=max(first.last_time, later.last_time),
        evidence=evidence.then(later_evidence, first.rows, joined.settings.thresholds),
        periods=first.periods.then(later.periods, first.rows),
        pending=replace(later.pending, groups=groups, periods=later.pending.periods + first.periods.count),
        recent=first.recent.extended(later.recent),
        batches=np.concatenate([first.batches, later.batches]),
        given_up=first.given_up + later.given_up,
    )


def _arrange_groups(watch: Watch, group_names: tuple[str, ...]) -> Wealth:
    """Return the evidence with tests of these groups, in this order.

    New groups copy the spare test, whose bets start at the same times as those of the others, but on no rows.
    """
    assert watch.group_names is not None  # tests of groups are only arranged if there are groups
    spare = len(watch.evidence) - 1  # the last test, to which no rows have been added
    first_group = spare - len(watch.group_names)  # after the tests of the event and of the classes
    index_of = {name: first_group + i for i, name in enumerate(watch.group_names)}
    group_tests = [index_of.get(name, spare) for name in group_names]
    return watch.evidence[np.array([*range(first_group), *group_tests, spare])]
