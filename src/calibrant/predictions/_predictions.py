"""The class `Predictions`. The documentation of its constructors makes the file long."""

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.arrays import is_on_cpu, like, namespace, to_numpy
from calibrant._core.kernels import overlap, softmax
from calibrant._core.kernels.bins import Events
from calibrant._core.kernels.softmax import ChunkVisitor, Outcomes
from calibrant._core.kernels.threads import thread_limit
from calibrant._core.lazy import LazyModule
from calibrant._core.text import join_names, shorten_list
from calibrant._core.types import Array, Categories, ColumnMap, InputError, Map
from calibrant.predictions._apply import calibrate_logits, check_is_calibrator
from calibrant.predictions._cell import render_cell
from calibrant.predictions._constructors import (
    fields_from_binary_logits,
    fields_from_confidence,
    fields_from_labels,
    fields_from_logits,
    fields_from_pairs,
    fields_from_probs,
    fields_from_soft_labels,
)
from calibrant.predictions.events import BINARY_EVENTS, PREFERENCE, default_selector
from calibrant.predictions.validation import Fields, resolve_event
from calibrant.predictions.validation.arrays import num_elements
from calibrant.predictions.validation.labels import positive_word
from calibrant.predictions.validation.weights import COUNTS, IMPORTANCE
from calibrant.predictions.validation.words import are_yes_and_no

EXACT_CONFIDENCE = 1 - 2.0**-20  # up to which 1 - confidence has ten digits
MAX_SURPRISAL_LOGITS = 1 << 22  # logits of which surprisals are computed at a time

__all__ = ["FIELD_NAMES", "Predictions", "as_predictions", "to_predictions"]

_files: Any = LazyModule("calibrant.io.predictions")  # the readers, which stand above predictions


@dataclass(frozen=True, eq=False, repr=False, init=False)
class Predictions(Fields):
    """Validated, immutable logits and labels of samples, with optional weights, clusters and groups.

    Logits are any unnormalized log-probabilities; -inf means probability 0. Arrays may be torch, numpy, jax or nested
    lists; they are copied, so later changes to them have no effect. Other sources have their own constructors:
    `from_probs`, `from_confidence`, `from_binary_logits`, `from_pairs`, `multilabel`, `from_table` and `load`.

    Segmentation and token predictions, logits (n, k, d1, ...) with labels (n, d1, ...), become one row per position;
    the positions of one image or text form one cluster unless `clusters` are given.

    Args:
        logits: Logits (n, k).
        labels: Class indices (n,), counted from 0, or class names. Without `class_names`, names are matched to the
            columns in alphabetical order, as in scikit-learn. For probabilities of classes see `from_soft_labels`.
        weights: Weight of each sample (n,).
        weights_are: What the weights are. "counts": a weight equals that many copies. "importance": importance or
            survey weights; each sample counts once in intervals and tests, whatever its weight, as a cluster of its own
            unless `clusters` are given. By default, integers are counts; fractions are importance, and a note says so,
            unless clusters are given.
        of: The event that calibration metrics evaluate. "top": the predicted class is right; an index or name: the
            sample belongs to this class; "classes": the mean over the events of all classes.
        clusters: Names or numbers of clusters of dependent samples (n,), such as the frames of one film. A cluster is
            never split between folds, and intervals and tests treat it as one unit.
        groups: Name of the group of each sample (n,), such as a hospital. Each group is measured separately.
        class_names: Names of the k classes, in the order of the columns.
        ignore_index: Label of positions to leave out.

    Raises:
        InputError: For wrong shapes or types, NaN, labels out of range, or logits that are evidently probabilities.

    >>> Predictions([[0.0, 1.0, 2.0]], [3])
    Traceback (most recent call last):
    calibrant.types.InputError: Expected labels in 0 .. 2, got 3 .. 3. Try labels - 1 if they are counted from 1.
    """

    def __init__(
        self,
        logits: Any,
        labels: Any,
        weights: Any = None,
        *,
        weights_are: str | None = None,
        of: str | int = "top",
        clusters: Any = None,
        groups: Any = None,
        class_names: Any = None,
        ignore_index: int | None = None,
    ) -> None:
        columns: dict[str, Any] = {"weights_are": weights_are, "clusters": clusters, "groups": groups}
        options: dict[str, Any] = {"of": of, "class_names": class_names, "ignore_index": ignore_index}
        # The fields of a frozen dataclass cannot be assigned
        self.__dict__.update(vars(fields_from_logits(logits, labels, weights, **columns, **options)))

    @staticmethod
    def _construct(validated: Fields, **changes: Any) -> "Predictions":
        """Return predictions with fields that were validated before, some of which are replaced."""
        predictions = object.__new__(Predictions)
        values = {name: getattr(validated, name) for name in FIELD_NAMES if name not in changes}
        predictions.__dict__.update(values | changes)
        return predictions

    def _replace(self, **changes: Any) -> "Predictions":
        """Return predictions with some fields replaced by validated values.

        Cached statistics, which depend on the fields, are dropped unless they are among the changes.
        """
        return self._construct(self, **changes)

    @classmethod
    def from_probs(
        cls, probs: Any, labels: Any, weights: Any = None, *, normalize: bool = False, **options: Any
    ) -> "Predictions":
        """Build from probabilities. Their logarithms in float64 are the logits.

        Args:
            probs: Probabilities (n, k) with rows that sum to 1, or of class 1 of 2, (n,), which is the event then.
                Rows rounded to 3 decimals or more may deviate as far as rounding explains. Positions: (n, k, d1, ...),
                or (n, 1, d1, ...) of class 1 of 2.
            labels: As for `Predictions`.
            weights: As for `Predictions`.
            normalize: Divide rows by their sums, which must lie in 0.97 .. 1.03.
            **options: `weights_are`, `of`, `clusters`, `groups`, `class_names` and `ignore_index`, as for
                `Predictions`.

        >>> np.exp(Predictions.from_probs([[0.25, 0.75]], [1]).logits)
        array([[0.25, 0.75]])
        """
        return cls._construct(fields_from_probs(probs, labels, weights, normalize=normalize, **options))

    @classmethod
    def from_confidence(
        cls, confidence: Any, correct: Any, weights: Any = None, *, of: str = "correct", **options: Any
    ) -> "Predictions":
        """Build from stated confidences, such as those of language models, judges, detectors and retrieval.

        The event is the second of two classes, "wrong" and "correct". Confidences below 0.5 are not flipped.

        Args:
            confidence: Stated probability that the answer is right (n,), in [0, 1].
            correct: Whether the answer was right (n,), 0 or 1, or its credit in [0, 1], such as the share of judges who
                call it right. An answer with a credit between is divided into two rows; see `from_soft_labels`.
            weights: As for `Predictions`.
            of: Kind of the event in `events.BINARY_KINDS`, such as "matched" for detections.
            **options: `weights_are`, `clusters` and `groups`, as for `Predictions`.

        >>> p = Predictions.from_confidence([0.9, 0.2], [1, 0])
        >>> p, p.events.confidence
        (Predictions(n=2, k=2, float64, of='correct'), array([0.9, 0.2]))
        """
        return cls._construct(fields_from_confidence(confidence, correct, weights, of=of, **options))

    @classmethod
    def from_soft_labels(
        cls, scores: Any, soft_labels: Any, weights: Any = None, *, probs: bool = False, **options: Any
    ) -> "Predictions":
        """Build from labels that are probabilities, such as the votes of several raters.

        Each example becomes a row for every class with a positive probability, and this probability is the row's
        weight. Scores and fits that are linear in the labels are then exactly those of soft labels: the NLL is the
        cross-entropy. `examples` tells which rows belong together: intervals, noise floors and tests count examples,
        and folds never divide one. Each example is a cluster unless `clusters` are given.

        Args:
            scores: Logits (n, k).
            soft_labels: Probabilities of the classes (n, k), with rows that sum to 1.
            weights: As for `Predictions`.
            probs: Whether the scores are probabilities.
            **options: `weights_are`, `of`, `clusters`, `groups` and `class_names`, as for `Predictions`.

        Raises:
            InputError: If the soft labels are no probabilities, or have another shape.

        >>> p = Predictions.from_soft_labels([[2.0, 0.0], [0.0, 1.0]], [[0.8, 0.2], [0.0, 1.0]])
        >>> p, p.labels
        (Predictions(n=2, 3 rows, k=2, float32), array([0, 1, 1]))
        >>> p.weights
        array([0.8, 0.2, 1. ])
        """
        return cls._construct(fields_from_soft_labels(scores, soft_labels, weights, probs=probs, **options))

    @classmethod
    def from_binary_logits(
        cls, scores: Any, labels: Any, weights: Any = None, *, logits: bool = False, **options: Any
    ) -> "Predictions":
        r"""Build from the single logit $s$ of a binary network, $P(y = 1) = 1 / (1 + e^{-s})$.

        The logits are the pair [0, s], and the event is class 1.

        Args:
            scores: Logits (n,) or (n, 1). Positions: (n, d1, ...) or (n, 1, d1, ...).
            labels: 0 or 1, or class names, of the same shape.
            weights: As for `Predictions`.
            logits: Accept scores that look like probabilities. Otherwise scores that all lie in [0, 1], at least three
                of them strictly between, are refused.
            **options: `weights_are`, `of`, `clusters`, `groups`, `class_names` and `ignore_index`, as for
                `Predictions`.

        >>> Predictions.from_binary_logits([2.0, -1.0], [1, 0]).logits
        array([[ 0.,  2.],
               [ 0., -1.]])
        """
        return cls._construct(fields_from_binary_logits(scores, labels, weights, logits=logits, **options))

    @classmethod
    def from_pairs(cls, chosen: Any, rejected: Any, weights: Any = None, **options: Any) -> "Predictions":
        r"""Build from the scores of preference pairs, such as those of a reward model.

        The probability that people prefer a to b is $1 / (1 + e^{s_b - s_a})$ (Bradley & Terry 1952). The event
        is that the higher score of a pair is that of the chosen one; a tie is half right. The chosen one always stands
        second, which says nothing about new pairs. Every calibrator is therefore fitted to both orders of each pair,
        with half of the weight each: it learns no bias, and $p(a \succ b) = 1 - p(b \succ a)$. A pair counts as one
        example.

        Args:
            chosen: Score of the preferred one of each pair (n,).
            rejected: Score of the other one (n,).
            weights: As for `Predictions`.
            **options: `clusters`, such as the prompt of each pair, and `groups`, as for `Predictions`.

        Raises:
            InputError: If the scores have different shapes, or are NaN.

        >>> p = Predictions.from_pairs([2.0, 0.5, 1.0], [0.0, 1.5, 1.0])
        >>> p, p.predicted.tolist()
        (Predictions(n=3, 4 rows, k=2, float64), [1, 0, 0, 0])
        >>> from calibrant.metrics import accuracy
        >>> float(accuracy(p))
        0.5
        """
        return cls._construct(fields_from_pairs(chosen, rejected, weights, **options))

    @classmethod
    def multilabel(
        cls,
        scores: Any,
        targets: Any,
        weights: Any = None,
        *,
        weights_are: str | None = None,
        names: Any = None,
        clusters: Any = None,
        groups: Any = None,
        probs: bool = False,
        logits: bool = False,
        ignore_index: int | None = None,
    ) -> "Predictions":
        """Build from several labels per sample.

        Each label of each sample becomes a row: the event is that the label is present, the group is the label, and
        the cluster is the sample.

        Args:
            scores: One logit per label (n, l).
            targets: 0 or 1 (n, l); NaN and `ignore_index` are left out.
            weights: Weight of each sample (n,) or each target (n, l).
            weights_are: As for `Predictions`.
            names: Names of the l labels.
            clusters: Clusters of dependent samples (n,), such as those of one patient.
            groups: Group of each sample (n,), such as a hospital; it becomes `row_groups`, measured beside the labels.
            probs: Whether the scores are probabilities.
            logits: Accept logits that all lie in [0, 1], as in `from_binary_logits`.
            ignore_index: Target to leave out.

        >>> p = Predictions.multilabel([[2.0, -1.0], [0.5, 3.0]], [[1, 0], [0, 1]], names=["fever", "cough"])
        >>> p, p.group_names
        (Predictions(n=4, k=2, float64, 2 groups, 2 clusters, of='present'), ('fever', 'cough'))
        """
        options: dict[str, Any] = {"weights_are": weights_are, "clusters": clusters, "groups": groups}
        options["ignore_index"] = ignore_index
        values = fields_from_labels(scores, targets, weights, names=names, probs=probs, logits=logits, **options)
        return cls._construct(values)

    @classmethod
    def from_table(
        cls, table: Any, *, ignore_index: int | None = None, of: Any = None, **options: Any
    ) -> "Predictions":
        """Build from a table: polars, pandas, Arrow, a Hugging Face data set, a mapping of columns, or a file's path.

        Columns are found by name: `label` or `y_true`; `prob_0`, ... or `prob_cat`, ..., `probs` with a list per row,
        one `prob` or `score` of the positive class; `logit_...` alike; `confidence` with `correct`, or with `y_pred`
        and a label; `weight`, `group`, `cluster`, `id`. A single column such as `prob_fraud` is the probability of
        that class. If a column has several readings, the values decide, or the table is refused. `notes` say which
        column played which role.

        Args:
            table: The table, or the path of one.
            ignore_index: Label of positions to leave out.
            of: Event to evaluate: "top" (the predicted class is correct), or a class by index or name.
            **options: Columns by role: `label="answer"`, `probs=["cat", "dog"]`, `probs="p_"` (a prefix),
                `confidence="stated"`. How to read cells: `positive`, the name of the positive class of a single score;
                `labels_from=1` for labels counted from 1; `percent` for numbers 0 .. 100; `normalize` divides rows of
                rounded probabilities, with sums in 0.97 .. 1.03, by their sum; `drop` leaves out rows with a missing
                value, or a confidence outside [0, 1], but no more than half of all; `na`, further words for a missing
                value; `encoding` of a text file; `are_logits` for single logits that all lie in [0, 1];
                `weights_are`, as for `Predictions`.

        Raises:
            InputError: If columns are missing or ambiguous, or cells cannot be read in their role.

        >>> import polars
        >>> frame = polars.DataFrame({"y_true": ["dog", "cat"], "prob_cat": [0.2, 0.9], "prob_dog": [0.8, 0.1]})
        >>> p = Predictions.from_table(frame)
        >>> p.class_names, p.labels, p.notes
        (('cat', 'dog'), array([1, 0]), ("Read 2 rows: label from 'y_true', probs from 'prob_cat', 'prob_dog'.",))
        """
        if isinstance(table, str | Path):
            return cls.load(table, ignore_index=ignore_index, of=of, **options)
        return _files.read_table(table, ignore_index, of, **options)

    @classmethod
    def load(
        cls, path: str | Path, *, ignore_index: int | None = None, of: str | int | None = None, **options: Any
    ) -> "Predictions":
        """Read predictions from a file, or from the tables of a folder or a pattern such as `part-*.parquet`.

        Args:
            path: .npz, .safetensors or .pt (a dict of tensors) with the keys `logits` or `probs`, and `labels`, or
                `confidence` and `correct`, and optionally `weights`, `clusters` and `groups`. .npy: NAME_logits.npy or
                NAME_probs.npy, with NAME_labels.npy beside it. Tables, such as .csv with any separator or .parquet;
                text may be compressed, as .csv.gz. Evaluation logs of language models. `calibrant measure --help`
                lists all suffixes.
            ignore_index: Label of positions to leave out.
            of: Event to evaluate: "top" (the predicted class is correct), or a class by index or name.
            **options: For tables, as in `from_table`.
        """
        return _files.read_file(path, ignore_index, of, **options).predictions

    @classmethod
    def load_chunks(
        cls,
        path: str | Path,
        *,
        rows: int | None = None,
        ignore_index: int | None = None,
        of: str | int | None = None,
        on_note: Callable[[str], object] | None = None,
        **options: Any,
    ) -> Iterator["Predictions"]:
        """Read a .parquet, .arrow, .safetensors or .npy file of any size in chunks.

        The next chunk is read while the current one is used. Chunks in which every label is ignored are left out.
        Logits with one number per row are refused if all numbers are in [0, 1], as probabilities are: after 1,000
        rows, or at the end of a shorter file.

        Args:
            path: The file, or a folder or pattern of files.
            rows: Rows per chunk; default: about 64 MB.
            ignore_index: Label of positions to leave out.
            of: Event to evaluate: "top" (the predicted class is correct), or a class by index or name.
            on_note: Called after the last chunk with a sentence on rows that `drop` left out of the whole table.
            **options: For tables, as in `from_table`.
        """
        yield from _files.read_chunks(path, rows, ignore_index, of, on_note, **options)

    def save(self, path: str | Path, *, with_labels: bool = True, ids: Any = None) -> None:
        """Write a file that `Predictions.load` reads. An existing file is replaced only if writing succeeds.

        Tables hold no event. Loaded from one, the positive one of two classes is the event of `measure`, but not of
        metrics, unless the classes are those of `from_confidence` or `multilabel`: name it by `load(path, of=1)`. Nor
        do they hold what weights are: fractions that are counts are read by `load(path, weights_are="counts")`.

        Args:
            path: A file of arrays, such as .npz, or a table, such as .csv or .parquet; text may be compressed, as
                .csv.gz. The suffix decides the format.
            with_labels: Whether to write the labels.
            ids: A column of row ids to write to a table.

        Raises:
            InputError: If the format cannot hold the name of a class or group exactly, or the event.
        """
        _files.write_file(self, path, with_labels=with_labels, ids=ids)

    # Rows, classes and logits

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_examples(self) -> int:
        """Number of examples. It is the number of rows unless soft labels divide an example into several rows."""
        return len(self) if self.examples is None else len(np.unique(self.examples))

    @property
    def absent_classes(self) -> tuple[int, ...]:
        """Classes that no sample with a positive weight belongs to. Pairs have none, as their order is arbitrary."""
        if self.is_pairs:
            return ()
        labels = self.labels if self.weights is None else self.labels[self.weights > 0]
        counts = np.bincount(labels, minlength=self.k)
        return tuple(np.flatnonzero(counts == 0).tolist())

    @property
    def has_one_class(self) -> bool:
        """Whether all samples belong to one class, so that they show nothing about the frequencies of classes."""
        return len(self.absent_classes) == self.k - 1

    @property
    def is_pairs(self) -> bool:
        """Whether these are pairs of `from_pairs`, whose label 1 says nothing about new pairs."""
        if self.class_names != PREFERENCE.classes:
            return False
        is_tie = to_numpy(self.logits[:, 0] == self.logits[:, 1])
        return bool(((self.labels == 1) | is_tie).all())

    def with_both_orders(self) -> "Predictions":
        """Return each pair in both orders, with half of its weight each, as one cluster. Others stay as they are."""
        if not self.is_pairs:
            return self
        n = len(self)
        rows = np.tile(np.arange(n), 2)
        weights = np.ones(n) if self.weights is None else self.weights
        names = ("clusters", "groups", "row_groups", "examples")
        columns = {name: None if (column := getattr(self, name)) is None else column[rows] for name in names}
        if self.clusters is None:
            columns["clusters"] = rows
        xp = namespace(self.logits)
        swapped: dict[str, Any] = {"logits": xp.concat([self.logits, xp.flip(self.logits, axis=1)])}
        swapped |= {"labels": np.concatenate([self.labels, 1 - self.labels]), "weights": weights[rows] / 2}
        swapped |= {"weights_are": COUNTS}  # the halves sum to the weight of the pair, which fits have scaled
        return self._replace(**swapped, **columns)

    @property
    def shared_clusters(self) -> np.ndarray | None:
        """The clusters (n) int64, or None if each example is one, as soft labels and importance weights make it."""
        if self.clusters is None:
            return None
        if self.examples is not None:
            return None if np.array_equal(self.clusters, self.examples) else self.clusters
        is_importance = self.weights_are == IMPORTANCE
        return None if is_importance and len(np.unique(self.clusters)) == len(self) else self.clusters

    @property
    def k(self) -> int:
        """Number of classes."""
        return self.logits.shape[1]

    def __iter__(self) -> Iterator[Any]:
        """Refuse unpacking, which would lose the weights."""
        raise TypeError("Expected predictions as one argument, as in nll(predictions), got an attempt to unpack them.")

    def __repr__(self) -> str:
        parts = [f"n={self.num_examples}"]
        if self.examples is not None:
            parts.append(f"{len(self)} rows")
        parts += [f"k={self.k}", str(self.logits.dtype).removeprefix("torch.")]
        if self.weights is not None and self.examples is None:  # several rows of an example always have weights
            parts.append("weighted")
        if self.group_names is not None:
            parts.append(f"{len(self.group_names)} groups")
        if self.row_group_names is not None:
            parts.append(f"{len(self.row_group_names)} groups of rows")
        if self.shared_clusters is not None:
            parts.append(f"{len(np.unique(self.shared_clusters))} clusters")
        if self.of != "top":
            event_name = self.class_names[self.of] if isinstance(self.of, int) and self.class_names else self.of
            parts.append(f"of={event_name!r}")
        return f"Predictions({', '.join(parts)})"

    def _repr_html_(self) -> str:
        return render_cell(self)

    def __getitem__(self, rows: Any) -> "Predictions":
        """Return the rows of a slice, mask or indices, or a single row by its index. Cached statistics are kept.

        Raises:
            InputError: If no row is selected.
        """
        # One row is a slice of length 1; the slice of row -1 has no end, because its end would be 0
        rows = slice(rows, rows + 1 or None) if isinstance(rows, int) else rows
        rows = rows if isinstance(rows, slice) else to_numpy(rows)
        values = {name: getattr(self, name) for name in ROW_FIELDS if name != "logits"}
        selected: dict[str, Any] = {name: None if value is None else value[rows] for name, value in values.items()}
        selected["logits"] = self.logits[rows if isinstance(rows, slice) else like(rows, self.logits)]
        statistics = {name: self.__dict__[name][rows] for name in STATISTICS if name in self.__dict__}
        subset = self._replace(**selected, **statistics)
        if not len(subset):
            raise InputError(f"Expected a selection of the {len(self)} rows, got no row.", code="no_rows")
        return subset

    def with_event(self, of: str | int) -> "Predictions":
        """Return the same samples with another event: "top", "classes", or the index or name of a class."""
        selector = resolve_event(of, self.k, self.class_names)
        if selector == self.of:
            return self
        # Cached outcomes are kept, except for a class, because they lack its probability
        if isinstance(selector, int) or self._cached_outcomes is None:
            return self._replace(of=selector)
        return self._replace(of=selector, outcomes=self._cached_outcomes)

    def with_default_event(self, of: str | int | None = None) -> "Predictions":
        """Return the same samples with the event `of`.

        By default, that is the present event, but one class instead of "top" if there are two classes and no pairs:
        class 0 if its name is the known positive word, as in yes and no or ja and nein, else class 1.
        """
        names = self.class_names
        positive = 0 if names and (positive_word(names) == names[0] or are_yes_and_no(names)) else 1
        return self.with_event(default_selector(self.of, self.k, names, positive=positive) if of is None else of)

    def reorder_classes(self, names: Sequence[str] | None) -> "Predictions":
        """Return the same samples with the columns of the logits in the order of `names`, and labels to match.

        Predictions are returned unchanged if `names` is None or they have no class names.

        Raises:
            InputError: If the classes have other names.
        """
        if names is None or self.class_names is None or (names := tuple(names)) == self.class_names:
            return self
        if names in BINARY_EVENTS and self.class_names in BINARY_EVENTS:  # two names for the same pair of classes
            return self
        if sorted(names) != sorted(self.class_names):
            raise InputError(
                f"Expected the classes {shorten_list(names)}, got {shorten_list(self.class_names)}.", code="class_names"
            )
        index = {name: i for i, name in enumerate(self.class_names)}
        columns = np.array([index[name] for name in names])
        of = names.index(self.class_names[self.of]) if isinstance(self.of, int) else self.of  # follow the event's class
        labels = columns.argsort()[self.labels]  # argsort inverts a permutation
        return self._replace(logits=self.logits[:, like(columns, self.logits)], labels=labels, of=of, class_names=names)

    def select_group(self, name: str) -> "Predictions":
        """Return the samples of one group. Raise `InputError` without groups, and for an unknown name."""
        groups, names = self.require_groups()
        if name not in names:
            raise InputError(f"Expected a group among {shorten_list(names, 20)}, got {name!r}.", code="unknown_group")
        return self[groups == names.index(name)]

    def require_groups(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Return the group index of each sample, (n), and the group names. Raise `InputError` without groups."""
        if self.groups is None or self.group_names is None:
            raise InputError("Expected predictions with groups. Try groups=, one name per sample.", code="no_groups")
        return self.groups, self.group_names

    def require_independent_rows(self, remedy: str) -> None:
        """Raise `InputError` if there are weights, clusters or groups of rows. The error suggests `remedy`."""
        names = {"weights": self.weights, "clusters": self.clusters, "groups of rows": self.row_groups}
        if refused := [name for name, column in names.items() if column is not None]:
            raise InputError(
                f"Expected independent examples that count once, got {join_names(refused)}. Try {remedy}.",
                code="dependent_rows",
            )

    def double(self) -> "Predictions":
        """Return the same samples in float64, the precision of all fits and measurements."""
        xp = namespace(self.logits)
        return self if self.logits.dtype == xp.float64 else self._replace(logits=xp.astype(self.logits, xp.float64))

    @property
    def columns(self) -> dict[str, Categories]:
        """The columns that a `types.ColumnMap` receives: `groups` and `row_groups`, if there are any."""
        names = {"groups": self.group_names, "row_groups": self.row_group_names}
        return {column: Categories(getattr(self, column), levels) for column, levels in names.items() if levels}

    def apply(self, calibrator: Map) -> "Predictions":
        """Return the same samples with calibrated logits.

        Any function of logits can be a calibrator. A `types.ColumnMap` receives the `columns`, and may add notes.

        Raises:
            InputError: If the calibrator is no function, or does not return logits of the same shape.
        """
        check_is_calibrator(calibrator)
        result = self.with_logits(calibrate_logits(calibrator, self.logits, self.columns))
        if not self.columns or not isinstance(calibrator, ColumnMap):
            return result
        return result._replace(notes=(*self.notes, *calibrator.column_notes(self.columns)))

    def with_logits(self, logits: Array) -> "Predictions":
        """Return the same samples with other logits."""
        return self._replace(logits=to_numpy(logits) if is_on_cpu(logits) else logits)

    def with_array_kind(self, logits: Array) -> "Predictions":
        """Return the same samples with the same logits as an array of another library, which share their statistics."""
        twin = self._replace(logits=logits)
        twin.__dict__["_origin"] = self
        return twin

    def with_labels(self, labels: np.ndarray) -> "Predictions":
        """Return the same samples with other labels (n) int64, which are not checked."""
        return self._replace(labels=labels, outcomes=self.outcomes.with_labels(self.logits, self.labels, labels))

    # Statistics, computed on first use

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to pickle, without statistics, which can be computed again."""
        return {name: value for name, value in self.__dict__.items() if name not in (*STATISTICS, "_origin")}

    @cached_property
    def outcomes(self) -> Outcomes:
        """Confidence, correctness, log-likelihood and Brier score of each sample, from one pass over the logits."""
        return self.compute_outcomes() if self._origin is None else self._origin.outcomes

    @property
    def _origin(self) -> "Predictions | None":
        """The predictions that these are a twin of, by `with_array_kind`."""
        return self.__dict__.get("_origin")

    @property
    def _cached_outcomes(self) -> Outcomes | None:
        """The outcomes if they were computed before."""
        return (self._origin or self).__dict__.get("outcomes")

    def compute_outcomes(self, visitor: ChunkVisitor | None = None) -> Outcomes:
        """Compute and cache the outcomes in one pass over the logits.

        Args:
            visitor: Receives the probabilities of all rows in the same pass, for statistics that need them.
        """
        index = self.of if isinstance(self.of, int) else None
        outcomes = softmax.outcomes(self.logits, self.labels, index=index, visitor=visitor)
        self.__dict__["outcomes"] = outcomes
        return outcomes

    @cached_property
    def events(self) -> Events:
        """The probability of the event, called confidence, and its outcome, 0 or 1, for each sample.

        Raises:
            InputError: If `of` is "classes": take `with_event(j).events` for each class j.
        """
        return Events(*self._event_columns(), self.weights, self.clusters, self.examples)

    def _event_columns(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the probability and the outcome, 0 or 1, of the event for each sample, each (n) float64.

        They are taken from `outcomes` if these were computed before, which saves a pass over the logits.
        """
        outcomes = self._cached_outcomes
        if self.of == "classes":
            raise InputError(
                "Expected one event, got one per class. Try predictions.with_event(j).events for class j.",
                code="event_per_class",
            )
        if self.of == "top" and outcomes is not None:
            return outcomes.confidence, outcomes.correct
        if self.of == "top":
            return softmax.top_label(self.logits, self.labels)
        probability = None if outcomes is None else outcomes.probability  # of the class `self.of`
        if probability is None:
            probability = softmax.class_probability(self.logits, self.of)
        return probability, (self.labels == self.of).astype(float)

    @property
    def predicted(self) -> np.ndarray:
        """Predicted class of each sample (n) int64. Ties go to the lowest index."""
        outcomes = self._cached_outcomes
        return to_numpy(namespace(self.logits).argmax(self.logits, axis=1)) if outcomes is None else outcomes.predicted

    @property
    def runner_up(self) -> np.ndarray:
        """The most likely class of each sample other than the predicted one (n) int64."""
        return softmax.runner_up(self.logits, self.predicted)

    @property
    def correct(self) -> np.ndarray:
        """Whether the predicted class is right: (n) float64, 0 or 1."""
        outcomes = self._cached_outcomes
        return softmax.correct(self.logits, self.labels) if outcomes is None else outcomes.correct

    @property
    def log_likelihood(self) -> np.ndarray:
        """The log-likelihood of the label of each sample, in float64."""
        outcomes = self._cached_outcomes
        return softmax.log_likelihood(self.logits, self.labels) if outcomes is None else outcomes.log_likelihood

    @cached_property
    def max_surprisals(self) -> np.ndarray:
        """Largest surprisal, -log p, of an error of the predicted class, and of a label: (2) float64.

        Samples of weight 0 do not count. Where 1 - p rounds, the probability of an error is computed from the logits.
        """
        is_counted = np.ones(len(self), dtype=bool) if self.weights is None else self.weights > 0
        confidence = np.where(is_counted, self.outcomes.confidence, 0.0)
        highest = confidence.max()
        if highest > EXACT_CONFIDENCE:
            rows, size = np.flatnonzero(confidence == highest), max(1, MAX_SURPRISAL_LOGITS // self.k)
            chunks = (rows[first : first + size] for first in range(0, len(rows), size))
            error = max(softmax.error_surprisal(self[chunk].logits).max() for chunk in chunks)
        else:
            error = -np.log1p(-highest)
        return np.array([error, -self.outcomes.log_likelihood[is_counted].min()])

    @property
    def total_weight(self) -> float:
        """Sum of the weights, or the number of samples without weights."""
        return float(len(self)) if self.weights is None else float(self.weights.sum())

    def with_effective_weights(self) -> "Predictions":
        r"""Return the same samples with importance weights scaled to a sum of the effective number of samples.

        That is $(\sum w)^2 / \sum w^2$ (Kish 1965): as many samples of equal weight would be as precise. Fits, which
        take the sum of the weights for the number of samples, are then as cautious as that number demands.
        """
        if self.weights is None or self.weights_are != IMPORTANCE:
            return self
        w = self.weights if self.examples is None else np.bincount(self.examples, self.weights)
        return self._replace(weights=self.weights * (w.sum() / np.square(w).sum()))

    @cached_property
    def row_hashes(self) -> np.ndarray:
        """64-bit hash of each row's logits and label. Float64 logits are rounded to float32."""
        return overlap.hash_rows(self.logits, self.labels)

    @cached_property
    def digest(self) -> str:
        """Sixteen hex digits that identify these rows, in any order and file."""
        # Sorted, for any order of rows
        return hashlib.sha256(np.sort(self.row_hashes).astype("<u8").data).hexdigest()[:16]


Predictions.__module__ = "calibrant.predictions"  # where it is imported from, and where pickles look for it
FIELD_NAMES = tuple(field.name for field in fields(Predictions))
STATISTICS = ("outcomes", "events")  # that are cached beside the fields
ROW_FIELDS = ("logits", "labels", "weights", "clusters", "groups", "row_groups", "examples")


def to_predictions(predictions: Any, labels: Any = None, weights: Any = None) -> Predictions:
    """Return predictions unchanged, or build them from logits, labels and weights without copying."""
    if isinstance(predictions, Predictions):
        if labels is not None or weights is not None:
            raise InputError(
                "Expected predictions alone, got labels or weights beside them. Try Predictions(logits, labels, "
                "weights).",
                code="labels_twice",
            )
        return predictions
    if labels is None:
        raise InputError("Expected labels beside the logits. Try Predictions(logits, labels).", code="no_labels")
    return Predictions._construct(fields_from_logits(predictions, labels, weights, copy=False))  # pyright: ignore[reportPrivateUsage]


@contextmanager
def as_predictions(
    predictions: Any, labels: Any = None, weights: Any = None, *, in_chunks: bool = True
) -> Generator[Predictions]:
    """Yield the predictions that a public function was called with, and limit its threads inside the block.

    Work on few logits is faster in one thread; see `thread_limit`. A number that is not defined, such as the accuracy
    of an empty bin, is NaN there without a warning.

    Args:
        predictions: Predictions, or logits, of which predictions are built.
        labels: Labels beside logits.
        weights: Weights beside logits.
        in_chunks: Whether threads share the work by chunks of rows. If not, torch uses its own threads, as for products
            of large matrices.
    """
    is_predictions = isinstance(predictions, Predictions)
    elements = len(predictions) * predictions.k if is_predictions else num_elements(predictions)
    with thread_limit(elements, in_chunks=in_chunks), np.errstate(divide="ignore", invalid="ignore"):
        yield to_predictions(predictions, labels, weights)
