"""What a classifier said and what was true: the one value that everything consumes, checked once at the door."""

import hashlib
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import io
from calibrant._logit_checks import SingleScoreEvidence
from calibrant._validation import (
    BINARY_EVENTS,
    CORRECTNESS_CLASSES,
    MATCH_CLASSES,
    PRESENCE_CLASSES,
    EventSelector,
    binary_labels,
    check_finite,
    check_unique,
    factorize_per_example,
    group_name_per_example,
    is_single,
    log_probs,
    num_elements,
    resolve_event,
    shorten_list,
    to_int,
    to_tensor,
    validate_inputs,
)
from calibrant.backend import overlap, softmax
from calibrant.backend.bins import Events, EventStatistics, LazyEvents
from calibrant.backend.softmax import ChunkVisitor, Outcomes
from calibrant.backend.threads import thread_limit
from calibrant.io.cells import frame_to_arrays
from calibrant.io.columns import TableOptions
from calibrant.io.roles import infer_columns, require_labels
from calibrant.types import InputError, Map

__all__ = [
    "BINARY_EVENTS",
    "CORRECTNESS_CLASSES",
    "MATCH_CLASSES",
    "PRESENCE_CLASSES",
    "EventSelector",
    "Predictions",
    "as_predictions",
    "load_unlabeled",
    "map_logits",
    "to_predictions",
]


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Predictions:
    """Logits with the labels they should have predicted, and what is known of them; checked once, here.

    Takes anything array-like: torch, numpy, jax, nested lists. Logits are any unnormalized log-probabilities; -inf is
    allowed and means probability 0. Segmentation and token predictions of shape (n, k, d1, ...) with labels
    (n, d1, ...) become one row per position; positions labeled `ignore_index` are left out. Labels may be names, of
    `class_names` or, without them, of the columns in alphabetical order, as scikit-learn has them; labels that are
    numbers are the places of the classes among the columns, from 0, whatever the classes are called.

    What people have instead of logits of classes enters by name: `from_probs`, `from_confidence`,
    `from_binary_logits`, `multilabel`, and by `from_table` and `load` what stands in tables and files.

    - `weights`: how often each example counts; an integer weight is that many copies.
    - `of`: the event that calibration metrics judge. "top": that the predicted class is right; the index or name of a
      class: that it is the true one; "classes": each class's own, of which metrics give the mean.
    - `clusters`: examples that may depend on each other, such as the frames of one film: never divided between folds,
      and counted as one in what intervals and tests call chance. The positions of one image or text are one cluster
      unless others are given.
    - `groups`: whom or what an example belongs to, such as a hospital or a subject, by name: what is judged apart.

    What it holds is its own: what becomes of the given arrays later changes nothing here. The copy takes a tenth of the
    time in which they are measured; logits that go to a metric directly, which keeps none of them, are not copied.

    Raises `InputError` with one line for wrong shapes, types, NaN, labels out of range, or logits that are plainly
    probabilities (use `Predictions.from_probs` for those).

    >>> Predictions([[0.0, 1.0, 2.0]], [3])
    Traceback (most recent call last):
    calibrant.types.InputError: labels must lie in [0, 3), got 3 .. 3; are they 1-based? then subtract 1
    """

    logits: Tensor  # (n k) float
    labels: Tensor  # (n) int64
    weights: Tensor | None  # (n) float64, non-negative
    clusters: Tensor | None  # (n) int64
    groups: Tensor | None  # (n) int64, indices of `group_names`
    of: EventSelector
    class_names: tuple[str, ...] | None
    group_names: tuple[str, ...] | None
    notes: tuple[str, ...]  # what was noticed at the door, such as rounding or the columns of a table
    row_groups: Tensor | None = None  # (n) int64, indices of `row_group_names`: a second grouping, beside the labels
    row_group_names: tuple[str, ...] | None = None

    def __init__(
        self,
        logits: Any,
        labels: Any,
        weights: Any = None,
        *,
        of: str | int = "top",
        clusters: Any = None,
        groups: Any = None,
        class_names: Any = None,
        ignore_index: int | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "clusters": clusters,
            "groups": groups,
            "class_names": class_names,
            "ignore_index": ignore_index,
        }
        self.__dict__.update(validate_inputs(logits, labels, weights, of=of, **options))

    def _replace(self, **changes: Any) -> "Predictions":
        """The same with some parts exchanged, which were checked before."""
        return _construct_unchecked(
            **{name: getattr(self, name) for name in FIELD_NAMES if name not in changes}, **changes
        )

    @classmethod
    def from_probs(
        cls, probs: Any, labels: Any, weights: Any = None, *, normalize: bool = False, **options: Any
    ) -> "Predictions":
        """Enter from probabilities (n, k), rows summing to 1, or (n,) for that of class 1 of 2, which then is judged.

        log p is as good a logit as any; it is taken in float64. Rows that were rounded to 3 decimals or more need not
        sum to 1 beyond that; `normalize` divides rows by sums from .97 to 1.03. Positions: (n, k, d1, ...), or
        (n, 1, d1, ...) for that of class 1 of 2. `more`: `of`, `clusters`, `groups`, `class_names`, `ignore_index`.

        >>> Predictions.from_probs([[0.25, 0.75]], [1]).logits.exp()
        tensor([[0.2500, 0.7500]], dtype=torch.float64)
        """
        with thread_limit(num_elements(probs)):
            p = to_tensor(probs, "probs")
            logits, notes = log_probs(p, normalize=normalize)
            if is_single(p):
                labels, names = binary_labels(
                    labels, options.get("class_names"), ignore_index=options.get("ignore_index")
                )
                labels = _drop_axis(labels) if np.ndim(labels) == p.ndim > 1 else labels
                options = {"of": 1} | options | {"class_names": names}
            return _construct_unchecked(**validate_inputs(logits, labels, weights, notes=notes, **options))

    @classmethod
    def from_confidence(
        cls, confidence: Any, correct: Any, weights: Any = None, *, of: str = "correct", **options: Any
    ) -> "Predictions":
        """Enter from how sure an answer was said to be (n,), in [0, 1], and whether it was right, (n,) 0 or 1.

        As language models, judges, detectors and retrieval have it. Two classes, wrong and correct, of which the
        second is judged: a confidence below a half is what it says, and stays there. Of detections, say `of="matched"`.
        `more`: `clusters`, `groups`.

        >>> p = Predictions.from_confidence([0.9, 0.2], [1, 0])
        >>> p, p.events.confidence
        (Predictions(n=2, k=2, float64, of='correct'), tensor([0.9000, 0.2000], dtype=torch.float64))
        """
        with thread_limit(num_elements(confidence)):
            c, y = to_tensor(confidence, "confidence").double(), to_int(to_tensor(correct, "correct"))
            if c.ndim != 1:
                raise InputError(f"need one confidence per example, (n,), got {tuple(c.shape)}", code="shape")
            if c.isnan().any():
                raise InputError(
                    f"{int(c.isnan().sum())} of {len(c)} confidences are NaN; drop those examples first", code="nan"
                )
            if len(c) and not 0 <= float(c.min()) <= float(c.max()) <= 1:
                hint = (
                    "; are they percentages? then divide by 100" if 1 < float(c.max()) <= 100 and c.min() >= 0 else ""
                )
                raise InputError(
                    f"confidences must lie in [0, 1], got {c.min():.4g} .. {c.max():.4g}{hint}",
                    code="percent" if hint else "probability_range",
                )
            if len(y) and not 0 <= int(y.min()) <= int(y.max()) <= 1:
                raise InputError(f"correct must be 0 or 1, got {int(y.min())} .. {int(y.max())}", code="label_range")
            class_names = next((names for names in (CORRECTNESS_CLASSES, MATCH_CLASSES) if names[1] == of), None)
            if class_names is None:
                raise InputError(
                    f'a confidence is that an answer is "correct" or a detection "matched", got of={of!r}',
                    code="unknown_event",
                )
            return cls.from_probs(c, y, weights, of=1, class_names=class_names, **options)

    @classmethod
    def from_binary_logits(
        cls, scores: Any, labels: Any, weights: Any = None, *, logits: bool = False, **options: Any
    ) -> "Predictions":
        r"""Enter from the single logit $s$ of a binary network, (n,) or (n, 1), with $P(y = 1) = 1 / (1 + e^{-s})$.

        It is the pair [0, s], of which class 1 is judged. With positions: (n, d1, ...) or (n, 1, d1, ...). `more`:
        `of`, `clusters`, `groups`, `class_names`, `ignore_index`.

        Scores that all lie in [0, 1], at least three of them strictly between, are taken for probabilities and refused
        unless `logits` says that they are logits. Fewer may lie there by chance.

        >>> Predictions.from_binary_logits([2.0, -1.0], [1, 0]).logits
        tensor([[ 0.,  2.],
                [ 0., -1.]])
        """
        with thread_limit(num_elements(scores)):
            labels, names = binary_labels(
                labels, options.pop("class_names", None), ignore_index=options.get("ignore_index")
            )
            s, y = to_tensor(scores, "logits"), to_tensor(labels, "labels")
            s = s.float() if s.dtype == torch.float64 and isinstance(scores, list) else s
            s = s.squeeze(1) if s.ndim > 1 and s.shape[1] == 1 and (s.ndim == y.ndim + 1 or s.shape == y.shape) else s
            y = y.squeeze(1) if y.ndim == s.ndim + 1 and y.shape[1] == 1 else y
            if s.ndim < 1 or s.shape != y.shape:
                raise InputError(
                    f"need one logit per label, (n,) or (n, 1), got {tuple(s.shape)} and {tuple(y.shape)}", code="shape"
                )
            if not logits:
                ignored = options.get("ignore_index")
                SingleScoreEvidence().add(s if ignored is None else s[y != ignored]).check()
            if bool(s.isinf().any()):  # certain either way: 0 against -inf
                positive = s.isposinf()
                pair = torch.stack([torch.where(positive, -torch.inf, 0.0).to(s), torch.where(positive, 0.0, s)], 1)
            else:
                pair = torch.stack([torch.zeros_like(s), s], 1)
            return cls(pair, y, weights, class_names=names, **{"of": 1} | options)

    @classmethod
    def multilabel(
        cls,
        scores: Any,
        targets: Any,
        weights: Any = None,
        *,
        names: Any = None,
        clusters: Any = None,
        groups: Any = None,
        probs: bool = False,
        logits: bool = False,
        ignore_index: int | None = None,
    ) -> "Predictions":
        """Enter several labels per example: scores (n, l), one logit per label, and targets (n, l), 0 or 1.

        Every label of every example becomes a row of its own: whether the label holds is judged, its group is the
        label, by `names`, and its cluster the example. Targets that are NaN or `ignore_index` are left out. `probs`
        says that the scores are probabilities; scores that all lie in [0, 1] are refused unless `probs` or `logits`
        says what they are (see `from_binary_logits`).

        - `weights`: how often each example counts, (n,), or each target, (n, l).
        - `clusters`: examples that may depend on each other, (n,), such as those of one patient. A cluster holds all
          labels of its examples.
        - `groups`: a group per example, (n,), such as a hospital. It is measured beside the labels, as `row_groups`.

        >>> p = Predictions.multilabel([[2.0, -1.0], [0.5, 3.0]], [[1, 0], [0, 1]], names=["fever", "cough"])
        >>> p, p.group_names
        (Predictions(n=4, k=2, float64, 2 groups, 2 clusters, of='present'), ('fever', 'cough'))
        """
        if probs and logits:
            raise InputError("expected probs or logits to be True, got both. Try one of them.", code="probs_and_logits")
        with thread_limit(num_elements(scores)):
            s, y = to_tensor(scores, "scores"), to_tensor(targets, "targets")
            if s.ndim != 2 or s.shape != y.shape:
                raise InputError(
                    f"need scores and targets (n, labels), got {tuple(s.shape)} and {tuple(y.shape)}", code="shape"
                )
            n, num_labels = s.shape
            label_names = tuple(map(str, range(num_labels))) if names is None else check_unique(names, "names")
            if len(label_names) != num_labels:
                raise InputError(
                    f"need one name per label, got {len(label_names)} names and {num_labels} columns of scores",
                    code="names",
                )
            is_labeled = ~y.double().isnan() if ignore_index is None else ~(y.double().isnan() | (y == ignore_index))
            row_index, label_index = is_labeled.nonzero(as_tuple=True)
            w = None if weights is None else to_tensor(weights, "weights")
            if w is not None and tuple(w.shape) not in ((n,), (n, num_labels)):
                raise InputError(f"need one weight per example or target, got {tuple(w.shape)}", code="shape")
            w = None if w is None else (w[row_index] if w.ndim == 1 else w[is_labeled])
            cluster_index = (
                row_index
                if clusters is None
                else factorize_per_example(clusters, "clusters", n)[0].to(row_index.device)[row_index]
            )
            row_groups, row_group_names = (None, None) if groups is None else factorize_per_example(groups, "groups", n)
            if not (probs or logits):
                SingleScoreEvidence().add(s[is_labeled]).check("probs=True")
            options: dict[str, Any] = {"of": 1, "clusters": cluster_index, "class_names": PRESENCE_CLASSES}
            if probs:
                predictions = cls.from_probs(s[is_labeled], y[is_labeled], w, **options)
            else:
                predictions = cls.from_binary_logits(s[is_labeled], y[is_labeled], w, logits=True, **options)
            predictions = predictions._replace(groups=label_index, group_names=label_names)
            if row_groups is None:
                return predictions
            return predictions._replace(
                row_groups=row_groups.to(row_index.device)[row_index], row_group_names=row_group_names
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.logits.shape[1]

    def __iter__(self) -> Iterator[Any]:
        """Refuse to be unpacked, which would lose the weights."""
        raise TypeError("predictions do not unpack: pass them whole, as in nll(predictions); they carry their weights")

    def __repr__(self) -> str:
        facts = [f"n={len(self)}", f"k={self.k}", str(self.logits.dtype).removeprefix("torch.")]
        facts += [] if self.weights is None else ["weighted"]
        facts += [] if self.group_names is None else [f"{len(self.group_names)} groups"]
        facts += [] if self.row_group_names is None else [f"{len(self.row_group_names)} groups of rows"]
        facts += [] if self.clusters is None else [f"{len(self.clusters.unique())} clusters"]
        event_name = self.class_names[self.of] if isinstance(self.of, int) and self.class_names else self.of
        facts += [] if self.of == "top" else [f"of={event_name!r}"]
        return f"Predictions({', '.join(facts)})"

    def __getitem__(self, rows: Any) -> "Predictions":
        """Some of the rows, by slice, mask or indices, with what is already known of them."""
        rows = slice(rows, rows + 1 or None) if isinstance(rows, int) else rows
        parts = {name: getattr(self, name) for name in ROW_FIELDS}
        subset = self._replace(**{name: None if part is None else part[rows] for name, part in parts.items()})
        for name in ("outcomes", "events"):
            if name in self.__dict__:
                subset.__dict__[name] = self.__dict__[name][rows]
        if not len(subset):
            raise InputError(f"no examples: none of the {len(self)} rows was chosen", code="no_rows")
        return subset

    def with_event(self, of: str | int) -> "Predictions":
        """The same, with another event to be judged."""
        selector = resolve_event(of, self.k, self.class_names)
        if selector == self.of:
            return self
        result = self._replace(of=selector)
        if "outcomes" in self.__dict__ and not isinstance(result.of, int):
            result.__dict__["outcomes"] = self.outcomes
        return result

    def reorder_classes(self, names: tuple[str, ...] | None) -> "Predictions":
        """The same with the classes in the order of these names; as it is where either has no names.

        Raises `InputError` where the classes are others.
        """
        if names is None or self.class_names is None or names == self.class_names:
            return self
        if {names, self.class_names} <= {*BINARY_EVENTS}:  # a yes or no, whatever it is called
            return self
        if set(names) != set(self.class_names):
            raise InputError(
                f"expected the classes {shorten_list(names)}, got {shorten_list(self.class_names)}", code="class_names"
            )
        index = {name: i for i, name in enumerate(self.class_names)}
        columns = torch.tensor([index[name] for name in names], device=self.labels.device)
        of = names.index(self.class_names[self.of]) if isinstance(self.of, int) else self.of
        return self._replace(
            logits=self.logits[:, columns], labels=columns.argsort()[self.labels], of=of, class_names=names
        )

    def select_group(self, name: str) -> "Predictions":
        """The examples of one group, by its name."""
        if self.groups is None or self.group_names is None:
            raise InputError("these predictions have no groups: give groups=, one name per example", code="no_groups")
        if name not in self.group_names:
            raise InputError(
                f"no group {name!r}; there are {', '.join(map(repr, self.group_names[:20]))}", code="unknown_group"
            )
        return self[self.groups == self.group_names.index(name)]

    def double(self) -> "Predictions":
        """The same in float64, in which everything is fitted and measured."""
        return self if self.logits.dtype == torch.float64 else self._replace(logits=self.logits.double())

    def apply(self, calibrator: Map) -> "Predictions":
        """The same examples with the logits that a map makes of theirs.

        A map that has a method `by_group(logits, groups, group_names)` is given the groups as well, if there are any.

        Raises `InputError` if it makes something else of them than as many logits.
        """
        result = self.with_logits(map_logits(calibrator, self.logits, self.groups, self.group_names))
        unknown = getattr(calibrator, "unknown", None)
        if unknown is None or self.groups is None or self.group_names is None:
            return result
        unknown_groups = unknown(tuple(self.group_names[i] for i in self.groups.unique().tolist()))
        name = type(calibrator).__name__
        group_notes = (
            (f"{name} was not fitted on the groups {', '.join(unknown_groups)}: they get the map of all",)
            if unknown_groups
            else ()
        )
        return result._replace(notes=(*self.notes, *group_notes))

    def with_logits(self, logits: Tensor) -> "Predictions":
        """The same examples with other logits."""
        return self._replace(logits=logits)

    # What everything is a function of: made once, when it is first asked for

    @cached_property
    def outcomes(self) -> Outcomes:
        """Confidence, correctness, log-likelihood and Brier score of every example, by one pass over the logits."""
        return self._pass_over_logits(None)

    def compute_outcomes(self, visitor: ChunkVisitor | None = None) -> Outcomes:
        """The outcomes; all probabilities are shown on the way: one pass for both."""
        if visitor is not None:
            self.__dict__["outcomes"] = self._pass_over_logits(visitor)
        return self.outcomes

    def _pass_over_logits(self, visitor: ChunkVisitor | None) -> Outcomes:
        index = self.of if isinstance(self.of, int) else None
        return softmax.outcomes(self.logits, self.labels, index=index, visitor=visitor)

    @cached_property
    def events(self) -> Events:
        """The event that is judged: how probable it was said to be, whether it happened, how often it counts.

        Raises `InputError` where every class is judged: take one after the other, `judging(j).events`.
        """
        if self.of == "classes":
            raise InputError(
                "each class has its own events: take predictions.judging(j).events", code="event_per_class"
            )
        if isinstance(self.of, int):
            outcomes = self.__dict__.get("outcomes")
            confidence = softmax.class_probability(self.logits, self.of) if outcomes is None else outcomes.probability
            return Events(confidence, (self.labels == self.of).double(), self.weights, self.clusters)
        return Events(*self._top_label, self.weights, self.clusters)

    @property
    def event_stats(self) -> EventStatistics:
        """The events, or what stands for them where no more of them is needed than sums, such as those of bins."""
        if self.of != "top" or self.clusters is not None or {"events", "outcomes"} & self.__dict__.keys():
            return self.events
        if not LazyEvents.is_supported(self.logits):
            return self.events
        cached_totals = self.__dict__.setdefault("_known", {})
        return LazyEvents(self.logits, self.labels, self.weights, lambda: self.events, cached_totals)

    @property
    def _top_label(self) -> tuple[Tensor, Tensor]:
        if "outcomes" in self.__dict__:
            return self.outcomes.confidence, self.outcomes.correct
        return softmax.top_label(self.logits, self.labels)  # less work, where that is all

    @property
    def predicted(self) -> Tensor:
        """The predicted class of every example, the lowest index that attains the maximum: (n) int64."""
        return self.logits.argmax(1)

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class is right: (n) float64, 0 or 1."""
        if "outcomes" in self.__dict__:
            return self.outcomes.correct
        return softmax.correct(self.logits, self.labels)

    @property
    def log_likelihood(self) -> Tensor:
        """log p_y of every example, in float64."""
        if "outcomes" in self.__dict__:
            return self.outcomes.log_likelihood
        return softmax.log_likelihood(self.logits, self.labels)

    @property
    def total_weight(self) -> float:
        """How many examples there are, each counted as often as its weight says."""
        return float(len(self)) if self.weights is None else float(self.weights.sum())

    @cached_property
    def row_hashes(self) -> np.ndarray:
        """A 64-bit hash of every row, logits and label; float64 logits count as their float32 rounding."""
        return overlap.hash_rows(self.logits, self.labels)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that identify these rows, in whatever order and file."""
        return hashlib.sha256(np.sort(self.row_hashes).astype("<u8").data).hexdigest()[:16]

    # Files

    def save(self, path: str | Path) -> None:
        """Write .npz, .safetensors, .csv, .tsv, .jsonl, .parquet, .arrow or .xlsx, which `Predictions.load` reads.

        Text may be packed (.csv.gz, .jsonl.zst). Raises `InputError`, and leaves a file that was there, where a format
        cannot hold a name of a class or group so that it reads back as it is.
        """
        save_predictions(self, path)

    @classmethod
    def from_table(
        cls, table: Any, *, ignore_index: int | None = None, of: Any = None, **options: Any
    ) -> "Predictions":
        """Enter from a table: polars, pandas, Arrow, a Hugging Face data set, a mapping of columns, or a file's path.

        Columns are found by name: `label` or `y_true`; `prob_0`, ... or `prob_cat`, ..., `probs` with a list per row,
        one `prob` or `score` of the positive class; `logit_...` alike; `confidence` with `correct`, or with `y_pred`
        and a label; `weight`, `group`, `cluster`, `id`. Other names are given by role: `label="answer"`,
        `probs=["cat", "dog"]`, `probs="p_"` (what the columns begin with), `confidence="stated"`. A single column such
        as `prob_fraud` is the probability of that class, of whatever labels. `notes` say which column played which
        role. Where columns have more than one reading, the values decide, or the table is refused.

        Args:
            table: The table, or the path of one.
            ignore_index: Label of positions that are left out.
            of: Event to evaluate.
            **options: Roles of columns, and how cells are read: `positive`, the name of the positive class of a single
                score; `labels_from=1` for labels counted from 1; `percent` for numbers 0 .. 100; `normalize` divides
                rows of rounded probabilities, which sum to .97 .. 1.03, by their sum; `drop` leaves out rows with a
                missing value, or a confidence outside [0, 1], but no more than half of all; `na`, further words for a
                missing value; `encoding` of a text file; `are_logits` for single scores that are logits although all
                of them lie in [0, 1].

        Raises:
            InputError: If columns are missing or ambiguous, or their cells cannot be what they were taken for.

        >>> import polars
        >>> frame = polars.DataFrame({"y_true": ["dog", "cat"], "prob_cat": [0.2, 0.9], "prob_dog": [0.8, 0.1]})
        >>> p = Predictions.from_table(frame)
        >>> p.class_names, p.labels, p.notes
        (('cat', 'dog'), tensor([1, 0]), ("read 2 rows: label from 'y_true', probs from 'prob_cat', 'prob_dog'",))
        """
        if isinstance(table, str | Path):
            return cls.load(table, ignore_index=ignore_index, of=of, **options)
        reading = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
        frame = io.replace_missing_words(io.as_frame(table), reading.na)
        columns = infer_columns(frame, reading)
        require_labels(columns, frame)
        return cls._from_arrays(frame_to_arrays(frame, columns, reading), ignore_index, of, logits=reading.are_logits)

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        ignore_index: int | None = None,
        of: str | int | None = None,
        **options: Any,
    ) -> "Predictions":
        """Read predictions from a file, or from the tables of a folder or a pattern such as `part-*.parquet`.

        .npz, .safetensors, .pt (a dict of tensors): keys `logits` or `probs`, and `labels`, or `confidence` and
        `correct`; `weights`, `clusters` and `groups` if there. .npy: NAME_logits.npy or NAME_probs.npy, with
        NAME_labels.npy beside it. Tables (.csv with any separator, .tsv, .jsonl, also .gz and .zst; .parquet, .arrow):
        see `from_table`, which has the same `options`.
        """
        reading = TableOptions.from_keywords({**options, "ignore_index": ignore_index})
        try:
            return cls._from_arrays(io.read(path, reading), ignore_index, of, logits=reading.are_logits)
        except InputError as error:
            raise InputError(f"{path}: {error}", code=error.code) from None

    @classmethod
    def load_pieces(
        cls,
        path: str | Path,
        *,
        rows: int | None = None,
        ignore_index: int | None = None,
        of: str | int | None = None,
        **options: Any,
    ) -> Iterator["Predictions"]:
        """Read .parquet, .arrow, .safetensors or .npy files of any size in pieces, each checked at the door.

        Pieces hold about 64 MB unless `rows` says otherwise; the next is read while one is worked on. Those in which
        every position is ignored are left out. Whether scores of one per label are probabilities and not logits is
        decided on a thousand of them, or at the end.
        """
        classes, rows_read, reading = 0, 0, TableOptions.from_keywords({**options, "ignore_index": ignore_index})
        single, pieces = SingleScoreEvidence(), io.read_chunks(path, rows, reading)
        while True:
            try:
                if (arrays := next(pieces, None)) is None:
                    break
                labels = arrays[io.find_score_and_label_keys(arrays)[1]]
            except InputError as error:
                raise InputError(f"{path}: {error}", code=error.code) from None
            first, rows_read = rows_read, rows_read + len(labels)
            if ignore_index is not None and bool((np.asarray(labels) == ignore_index).all()):
                continue
            try:
                part = cls._from_arrays(arrays, ignore_index, of, logits=True)
                if not reading.are_logits and _single_logits(arrays):
                    single.add_pairs(part.logits).check(
                        "the key 'probs' or --probs", min_scores=MIN_SCORES_TO_REFUSE_EARLY
                    )
            except InputError as error:
                raise InputError(f"{path}, rows {first} .. {rows_read - 1}: {error}", code=error.code) from None
            if classes not in (0, part.logits.shape[1]):
                raise InputError(
                    f"{path}: rows of {classes} classes are followed by rows of {part.logits.shape[1]}",
                    code="num_classes",
                )
            classes = part.logits.shape[1]
            yield part
        if classes == 0:
            raise InputError(f"{path}: no examples", code="no_rows")
        single.check("the key 'probs' or --probs")

    @classmethod
    def _from_arrays(
        cls, arrays: Mapping[str, Any], ignore_index: int | None, of: Any = None, *, logits: bool = False
    ) -> "Predictions":
        """What stands in a file or table, by the way in that it asks for."""
        kind, labels = io.find_score_and_label_keys(arrays)
        scores, targets = arrays[kind], arrays[labels]
        if "class_names" in arrays and np.asarray(targets).dtype.kind in "iu":
            targets = to_tensor(targets, "labels")  # positions, whatever the classes are called
        options: dict[str, Any] = {"weights": arrays.get("weights"), "clusters": arrays.get("clusters")}
        options["groups"] = arrays.get("groups")
        if options["groups"] is not None and "group_names" in arrays:
            options["groups"] = group_name_per_example(options["groups"], arrays["group_names"])
        options |= {"ignore_index": ignore_index} if kind != "confidence" else {}
        shape = np.shape(scores)
        is_multilabel = len(shape) == 2 and np.shape(targets) == shape and shape[1] > 1 and arrays.get("several", False)
        if is_multilabel:
            options |= {"probs": True} if kind == "probs" else {"logits": logits}
            predictions = cls.multilabel(scores, targets, names=arrays.get("class_names"), **options)
        elif kind == "confidence":
            predictions = cls.from_confidence(scores, targets, of=arrays.get("judged", "correct"), **options)
        elif kind == "logits" and (len(shape) == 1 or shape[1:] == (1,)):
            predictions = cls.from_binary_logits(
                scores, targets, logits=logits, class_names=arrays.get("class_names"), **options
            )
        else:
            constructor: Callable[..., Predictions] = cls if kind == "logits" else cls.from_probs
            is_one_column = kind == "probs" and shape[1:] == (1,)
            predictions = constructor(
                scores[:, 0] if is_one_column else scores, targets, class_names=arrays.get("class_names"), **options
            )
        predictions = predictions if of is None else predictions.with_event(of)
        return predictions._replace(notes=(*arrays.get("notes", ()), *predictions.notes))


def _single_logits(arrays: Mapping[str, Any]) -> bool:
    """Whether arrays of a file hold one logit per label."""
    shape = np.shape(arrays.get("logits", np.zeros((0, 2))))
    return len(shape) == 1 or shape[1:] == (1,) or bool(arrays.get("several", False))


def _drop_axis(labels: Any) -> Tensor:
    """Return labels (n, 1, ...) as (n, ...)."""
    y = to_tensor(labels, "labels")
    return y.squeeze(1)


def to_predictions(predictions: Any, labels: Any = None, weights: Any = None) -> Predictions:
    """Return predictions as they are, or enter logits with their labels and weights."""
    if isinstance(predictions, Predictions):
        if labels is not None or weights is not None:
            raise InputError(
                "predictions carry their labels and weights: give them alone, or logits with their labels",
                code="labels_twice",
            )
        return predictions
    if labels is None:
        raise InputError(
            "need predictions, or logits with their labels: give Predictions(logits, labels)", code="no_labels"
        )
    return _construct_unchecked(**validate_inputs(predictions, labels, weights, copy=False))


@contextmanager
def as_predictions(
    predictions: Any, labels: Any = None, weights: Any = None, *, in_chunks: bool = True
) -> Generator[Predictions]:
    """Enter `predictions_of` at the door of a public call, where it is decided in how many threads it works.

    What is measured passes over the rows, in pieces that are shared, and else works on single columns; what multiplies
    large matrices leaves them to torch's threads.
    """
    is_predictions = isinstance(predictions, Predictions)
    elements = len(predictions) * predictions.k if is_predictions else num_elements(predictions)
    with thread_limit(elements, in_chunks=in_chunks):
        yield to_predictions(predictions, labels, weights)


def map_logits(
    calibrator: Map, logits: Tensor, groups: Tensor | None = None, group_names: tuple[str, ...] | None = None
) -> Tensor:
    """What a map makes of logits, some rows at a time: what it needs on the way is so much of a block.

    Raises `InputError` unless they are as many, with some probability in every row.
    """
    n, k = logits.shape
    size = max(1, BLOCK_ELEMENTS // max(1, k))
    with thread_limit(n * k):
        if n <= size:
            return _map_block(calibrator, logits, groups, group_names)
        out: Tensor | None = None
        for first in range(0, n, size):
            rows = slice(first, first + size)
            block = _map_block(calibrator, logits[rows], None if groups is None else groups[rows], group_names)
            out = torch.empty((n, k), dtype=block.dtype, device=block.device) if out is None else out
            out[rows] = block
        assert out is not None
        return out


def _map_block(calibrator: Map, logits: Tensor, groups: Tensor | None, group_names: tuple[str, ...] | None) -> Tensor:
    output = apply_map(calibrator, logits, groups, group_names)
    name = getattr(calibrator, "__name__", type(calibrator).__name__)
    if not isinstance(output, Tensor) or output.shape != logits.shape:  # pyright: ignore
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__  # pyright: ignore
        raise InputError(
            f"{name} must return logits {tuple(logits.shape)}, as it was given, got {got}", code="map_shape"
        )
    try:
        check_finite(output)
    except InputError as error:
        raise InputError(f"{name}: {error}", code=error.code) from None
    return output.detach()


def apply_map(calibrator: Map, logits: Tensor, groups: Tensor | None, group_names: tuple[str, ...] | None) -> Tensor:
    """Apply a map to logits, with their groups if there are any and it asks for them."""
    map_with_groups = getattr(calibrator, "by_group", None)
    return (
        calibrator(logits)
        if map_with_groups is None or groups is None
        else map_with_groups(logits, groups, group_names)
    )


def save_predictions(p: Predictions, path: str | Path, *, labeled: bool = True, ids: Any = None) -> None:
    """Write predictions, with or without their labels and the ids of their rows, as `Predictions.save` does."""
    if p.row_groups is not None:
        raise InputError(
            "expected predictions without groups of rows, which files cannot hold. Try saving the scores, targets and "
            "groups as a table with one row per example.",
            code="row_groups",
        )
    parts = {name: getattr(p, name) for name in SAVED_FIELDS if labeled or name != "labels"}
    arrays = {name: part.cpu().contiguous() for name, part in parts.items() if part is not None}
    names = {"class_names": p.class_names, "group_names": p.group_names}
    names = {name: each for name, each in names.items() if each is not None}
    is_portable = all(PORTABLE_NAME.fullmatch(name) for each in names.values() for name in each)

    def check(draft: Path) -> None:
        try:
            is_exact = _is_read_back_exactly(p, load_unlabeled(draft)[0], labeled=labeled)
        except InputError:
            is_exact = False
        if not is_exact:
            raise InputError(
                f"cannot write {path}: names of classes or groups would not read back as they are; use another format, "
                "such as .safetensors or .npz, or plain names",
                code="not_exact",
            )

    io.write(path, arrays | ({} if ids is None else {"ids": ids}), names, None if is_portable else check)


def _is_read_back_exactly(p: Predictions, loaded: Predictions, *, labeled: bool) -> bool:
    """Whether loaded predictions are the saved ones, with classes in any order: names, numbers and groups."""
    numbers = tuple(map(str, range(loaded.k)))
    if p.class_names is not None and loaded.class_names is None and set(p.class_names) == set(numbers):
        loaded = loaded._replace(class_names=numbers)  # pyright: ignore[reportPrivateUsage]
    if len(loaded) != len(p) or set(loaded.class_names or ()) != set(p.class_names or ()):
        return False
    loaded = loaded.reorder_classes(p.class_names)
    same_groups = _group_names_per_example(p) == _group_names_per_example(loaded)
    same_labels = not labeled or torch.equal(loaded.labels, p.labels.cpu())
    return same_groups and same_labels and torch.equal(loaded.logits.double(), p.logits.cpu().double())


def _group_names_per_example(p: Predictions) -> list[str]:
    return [] if p.groups is None or p.group_names is None else [p.group_names[i] for i in p.groups.tolist()]


def load_unlabeled(path: str | Path, **options: Any) -> tuple[Predictions, bool]:
    """Read a file whose labels may not be known yet, 0 then, and say whether they are. Formats as `load`."""
    reading = TableOptions.from_keywords(options)
    try:
        return from_unlabeled_arrays(io.read(path, reading, needs_labels=False), are_logits=reading.are_logits)
    except InputError as error:
        raise InputError(f"{path}: {error}", code=error.code) from None


def from_unlabeled_arrays(arrays: Mapping[str, Any], *, are_logits: bool = False) -> tuple[Predictions, bool]:
    """Enter arrays whose labels may not be known yet, 0 then, and say whether they are."""
    has_labels = any(name in arrays for name in ("labels", "label", "correct"))
    if not has_labels:
        kind = next((kind for kind in ("logits", "probs", "confidence") if kind in arrays), "probs")
        shape = np.shape(arrays.get(kind, np.zeros((0, 2))))
        labels = np.zeros(shape[:1] + shape[2:], dtype=np.int64)
        arrays = dict(arrays) | {"correct" if kind == "confidence" else "labels": labels}
    return Predictions._from_arrays(arrays, None, logits=are_logits), has_labels  # pyright: ignore[reportPrivateUsage]


SAVED_FIELDS = ("logits", "labels", "weights", "clusters", "groups")
AMBIGUOUS_NAMES = "na|nan|null|none|nil|missing|inf|infinity|true|false|.*_duplicated_.*"
PORTABLE_NAME = re.compile(rf"(?!(?i:{AMBIGUOUS_NAMES})$)[^\W\d]\w*([ .-]\w+)*")  # reads back from any format
MIN_SCORES_TO_REFUSE_EARLY = 1000  # single scores in [0, 1] from which pieces are refused before the last one
BLOCK_ELEMENTS = 1 << 22  # logits that a map is given at a time: 32 MB in float64
FIELD_NAMES = tuple(field.name for field in fields(Predictions))
ROW_FIELDS = (
    "logits",
    "labels",
    "weights",
    "clusters",
    "groups",
    "row_groups",
)  # of the parts, those with one entry per example


def _construct_unchecked(**values: Any) -> Predictions:
    """Predictions of what was checked before."""
    predictions = object.__new__(Predictions)
    predictions.__dict__.update(values)
    return predictions
