"""Conformal prediction sets: all classes that fit, with a guaranteed probability to contain the true one."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from calibrant._core.arguments import Alpha, NonNegativeFloat, NonNegativeInt, OpenFraction, check_arguments
from calibrant._core.arrays import like, to_numpy
from calibrant._core.files import atomic_write, check_suffix
from calibrant._core.lazy import LazyModule
from calibrant._core.numbers import format_level, format_percent, format_percent_range
from calibrant._core.text import shorten_list
from calibrant._core.types import AnyFloat, Array, InputError
from calibrant.decisions._scores import RANK_PENALTY, SetScore, class_scores, label_scores
from calibrant.io.formats import CALIBRATOR_SUFFIX
from calibrant.metrics import Interval, share_interval
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.validation.arrays import check_logits, to_array
from calibrant.predictions.validation.names import factorize_samples, group_positions
from calibrant.reports.document import Cell, Document, Section, Table
from calibrant.reports.result import Reportable

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

ALL_ROWS = ""  # name of the threshold of examples whose group is unknown
SCORE_TOLERANCE = 1e-12  # by which rounding may lift a score above a threshold
AnySets = TypeVar("AnySets", bound="PredictionSets")
_RANK_ROUNDING = 1e-9  # by which rounding may lift 1 - alpha


@dataclass(frozen=True)
class SetRow:
    """Coverage and size of the sets of some examples."""

    name: str
    n: int
    coverage: Interval  # share of sets with the true class
    mean_size: float
    empty: float  # share of empty sets
    single: float  # share of sets of one class


@dataclass(frozen=True)
class SetTable(Reportable):
    """Coverage and size of prediction sets, over all examples and for every class or group."""

    alpha: float
    rows: tuple[SetRow, ...]  # all examples first

    def __getitem__(self, name: str) -> SetRow:
        """Return the row of a class or group."""
        return next(row for row in self.rows if row.name == name)

    @property
    def coverage(self) -> Interval:
        """The share of all sets that contain the true class."""
        return self.rows[0].coverage

    @property
    def mean_size(self) -> float:
        """The mean number of classes in a set."""
        return self.rows[0].mean_size

    def document(self) -> Document:
        """Return the coverage, and the table of all examples and of each class or group."""
        coverage = self.coverage
        limits = format_percent_range(coverage.low, coverage.high, 1)
        rows = [
            [
                row.name,
                f"{row.n:,}",
                Cell(
                    format_percent(row.coverage.value), f"({format_percent_range(row.coverage.low, row.coverage.high)})"
                ),
                f"{row.mean_size:.2f}",
                format_percent(row.empty, 1),
                format_percent(row.single, 1),
            ]
            for row in self.rows
        ]
        head = ["", "n", "coverage", "mean size", "empty", "single"]
        note = (
            f"Asked for: {format_percent(1 - self.alpha, 0)}. A set has {self.mean_size:.2f} classes on average. In "
            f"parentheses: {format_level(coverage.level)} intervals."
        )
        return Document(
            kind="Prediction sets",
            title=f"{format_percent(coverage.value, 1)} of the sets contain the true class ({limits})",
            notes=[note],
            sections=[Section("Coverage and size", [Table("coverage and size", head, rows)])],
        )

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of every row."""
        return {"alpha": self.alpha, "rows": [asdict(row) for row in self.rows]}


@dataclass(frozen=True)
class PredictionSets(ABC):
    """Fitted prediction sets, whatever promise they keep: their settings, tables and files."""

    alpha: Alpha
    score: SetScore
    penalty: NonNegativeFloat
    seed: NonNegativeInt
    class_names: tuple[str, ...] | None
    k: int

    @abstractmethod
    def apply(self, predictions: Predictions) -> Array:
        """Return the sets (n, k) of predictions."""

    @check_arguments
    def evaluate(self, predictions: Predictions, *, level: OpenFraction = 0.90) -> SetTable:
        """Return coverage and size of the sets of labeled predictions, by class or group if they were fitted so.

        Args:
            predictions: Labeled predictions that were not used in the fit.
            level: Level of the intervals of coverage.
        """
        with as_predictions(predictions) as p:
            sets, p = to_numpy(self.apply(p)), p.reorder_classes(self.class_names)
            by = getattr(self, "by", None)  # only `Sets` are fitted by class or group
            return set_table(sets, p, alpha=self.alpha, by=by, level=level)

    def save(self, path: str | Path) -> None:
        """Write the sets to a .safetensors file, which has the format of calibrators."""
        save_atomically(self, path, CALIBRATOR_SUFFIX)

    @classmethod
    def load(cls: type[AnySets], path: str | Path) -> AnySets:
        """Read sets that `save` wrote.

        Raises:
            InputError: If the file is another one, or is damaged.
        """
        return calibrators.load_instance(path, cls)


@dataclass(frozen=True)
class Sets(PredictionSets):
    """Split-conformal prediction sets.

    The set of an example holds every class whose nonconformity score is at most a threshold. If the examples to come
    are exchangeable with those of the fit, a set contains the true class with probability at least 1 - `alpha`, and at
    most 1 - alpha + 1 / (n + 1) if no scores are equal (Vovk et al. 2005; Papadopoulos et al. 2002). The probability
    is taken over draws of the fit and of the example together.

    >>> p = Predictions(3 * np.tile(np.eye(3), (40, 1)), np.arange(120) % 3)
    >>> sets = Sets.fit(p, alpha=0.1)
    >>> sets(p.logits[:1])
    array([[ True, False, False]])
    """

    by: Literal["class", "groups"] | None
    names: tuple[str, ...]  # of thresholds: "", or classes, or groups and ""
    thresholds: tuple[AnyFloat, ...]  # inf if there are too few examples: then every class is in the set
    counts: tuple[int, ...]  # independent examples, or clusters, of each threshold

    @classmethod
    @check_arguments
    def fit(
        cls,
        predictions: Predictions,
        *,
        alpha: Alpha = 0.1,
        score: SetScore = "lac",
        by: Literal["class", "groups"] | None = None,
        penalty: NonNegativeFloat = RANK_PENALTY,
        seed: NonNegativeInt = 0,
    ) -> "Sets":
        """Fit the thresholds to labeled predictions that were used neither to train nor to calibrate the model.

        An integer weight counts as so many examples. With clusters, sets of a random example of a new cluster contain
        the true class with the same probability; clusters are counted instead of examples, and the examples of a
        cluster share one count (Lee, Barber & Willett 2023).

        Args:
            predictions: Labeled predictions, with logits as the sets will receive them: calibrated or not. Temperature
                scaling changes the sets and can widen them.
            alpha: Probability that a set misses the true class.
            score: "lac" gives the smallest sets on average. "aps", "raps" and "saps" are randomized, and adapt the
                size to the difficulty of the example.
            by: "class" keeps the promise for the examples of each true class, "groups" for each group. Examples of
                unknown groups have the threshold of all.
            penalty: Penalty per rank of "raps" and "saps".
            seed: Seed of the random numbers, one per example, of randomized scores.

        Raises:
            InputError: If a setting is out of its range, or there are no groups.
        """
        with as_predictions(predictions) as p:
            scores = label_scores(p, score, penalty, seed)
            names, thresholds, counts = zip(*_fit_thresholds(p, scores, alpha, by), strict=True)
        return cls(
            alpha=alpha,
            score=score,
            penalty=penalty,
            seed=seed,
            by=by,
            names=names,
            thresholds=thresholds,
            counts=counts,
            class_names=p.class_names,
            k=p.k,
        )

    def __call__(self, logits: Any, groups: Any = None) -> Array:
        """Return the sets (n, k), True for the classes in the set.

        Args:
            logits: Logits (n, k), calibrated as in the fit.
            groups: Group of each row, as a name or number, if the sets were fitted by groups. Unknown groups have the
                threshold of all.

        Raises:
            InputError: If the number of classes differs, a logit is NaN or infinite, logits are probabilities, or
                groups are missing.
        """
        logits = checked_logits(logits, self.k)
        # Shape (1) for all examples, (k) by class, and below (n, 1) by group, to be compared with scores (n, k)
        thresholds = np.array(self.thresholds)
        if self.by == "groups":
            if groups is None or len(groups) != len(logits):
                raise InputError(
                    f"Expected a group for each of {len(logits)} rows, got {0 if groups is None else len(groups)}.",
                    code="no_groups",
                )
            group, names = factorize_samples(groups, "groups", len(logits))
            # position of the threshold of each name; unknown groups have the threshold of all rows
            of_group = group_positions(names, self.names, self.names.index(ALL_ROWS))
            thresholds = thresholds[np.array(of_group)[group], None]
        limits = like(thresholds + SCORE_TOLERANCE, logits)
        return class_scores(logits, self.score, self.penalty, self.seed) <= limits

    def apply(self, predictions: Predictions) -> Array:
        """Return the sets (n, k) of predictions, by their groups if the sets were fitted by groups."""
        p = predictions.reorder_classes(self.class_names)
        return self(p.logits, _group_names(p) if self.by == "groups" else None)

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence on thresholds that have too few examples, if there are any."""
        unbounded = [name for name, t in zip(self.names, self.thresholds, strict=True) if math.isinf(t)]
        if not unbounded:
            return ()
        names = shorten_list([name or "unknown groups" for name in unbounded])
        effect = {
            "class": f"All sets contain {names}",
            "groups": f"Sets of {names} contain all classes",
            None: "All sets contain all classes",
        }[self.by]
        needed = math.ceil(1 / self.alpha) - 1  # the smallest n with (n + 1) (1 - alpha) <= n
        return (f"{effect}: at alpha {self.alpha:g} a threshold needs at least {needed:,} examples.",)

    def unseen_groups(self, predictions: Predictions) -> tuple[str, ...]:
        """Return the groups that the sets were not fitted on, which have the threshold of all examples."""
        names = list(dict.fromkeys(_group_names(predictions)))
        return tuple(name for name, i in zip(names, group_positions(names, self.names, -1), strict=True) if i < 0)

    @property
    def is_consistent(self) -> bool:
        """Whether the fields fit together, as in a file that is not damaged."""
        num_thresholds = {"class": self.k, "groups": len(self.names), None: 1}[self.by]
        return (
            len(self.names) == len(set(self.names)) == len(self.thresholds) == len(self.counts) == num_thresholds
            and (self.by == "class" or ALL_ROWS in self.names)
            and self.k == len(self.class_names or range(self.k))
            and not any(map(math.isnan, self.thresholds))
        )


def checked_logits(logits: Any, k: int) -> Array:
    """Return logits (n, k) as an array. Raise `InputError` for another shape, and as `check_logits` does."""
    z = to_array(logits, "logits")
    if z.ndim != 2 or z.shape[1] != k:
        raise InputError(f"Expected logits (n, {k}), got {tuple(z.shape)}.", code="num_classes")
    check_logits(z)
    return z


def save_atomically(fitted: object, path: str | Path, suffix: str) -> None:
    """Write sets or a contract to a file with this suffix. An existing file is replaced only if writing succeeds."""
    path = Path(path)
    check_suffix(path, (suffix,))
    with atomic_write(path) as draft:
        calibrators.save(fitted, draft)


def set_table(
    sets: np.ndarray, p: Predictions, *, alpha: float, by: Literal["class", "groups"] | None, level: float
) -> SetTable:
    """Return coverage and size of sets (n, k) for labeled predictions, in total and for every class or group."""
    parts = [("all", np.ones(len(p), dtype=bool)), *_parts(p, by)]
    return SetTable(alpha, tuple(_table_row(name, sets, p, mask, level) for name, mask in parts))


def _fit_thresholds(
    p: Predictions, scores: np.ndarray, alpha: float, by: Literal["class", "groups"] | None
) -> Iterator[tuple[str, float, int]]:
    """Yield the name, the threshold and the number of independent examples or clusters of every part.

    Parts are the classes, the groups and all examples, or all examples alone, by `by`.
    """
    # A group with an empty name is unknown, and has the threshold of all examples
    parts = [part for part in _parts(p, by) if by == "class" or part[0] != ALL_ROWS]
    if by != "class":
        parts.append((ALL_ROWS, np.ones(len(p), dtype=bool)))
    for name, mask in parts:
        weights = None if p.weights is None else p.weights[mask]
        clusters = None if p.clusters is None else p.clusters[mask]
        yield name, *_conformal_quantile(scores[mask], alpha, weights, clusters)


def _parts(p: Predictions, by: Literal["class", "groups"] | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the mask (n) of every class, or of every group with examples, or nothing if `by` is None."""
    if by == "class":
        for j in range(p.k):
            yield p.class_names[j] if p.class_names else str(j), p.labels == j
    elif by == "groups":
        groups, names = p.require_groups()
        for i in np.unique(groups).tolist():
            yield names[i], groups == i


def _conformal_quantile(
    scores: np.ndarray, alpha: float, weights: np.ndarray | None, clusters: np.ndarray | None
) -> tuple[float, int]:
    """Return the conformal quantile of n scores, and n: independent examples by weight, or clusters.

    The quantile is the smallest score such that (n + 1) (1 - alpha) of the n scores are at most as large, or infinity
    if n is too small. A new exchangeable score is at most the quantile with probability at least 1 - alpha.
    """
    w = np.ones(len(scores)) if weights is None else weights
    if clusters is not None:  # the examples of a cluster share one count
        index = np.unique(clusters, return_inverse=True)[1]
        size = np.bincount(index, w)
        w = np.nan_to_num(w / size[index])  # 0 / 0 in a cluster without weight
        n = float((size > 0).sum())
    else:
        n = float(w.sum())
    order = scores.argsort()
    reached = scores[order][w[order].cumsum(0) >= (n + 1) * (1 - alpha - _RANK_ROUNDING)]
    return float(reached[0]) if len(reached) else math.inf, round(n)


def _group_names(p: Predictions) -> list[str]:
    """Return the name of each row's group."""
    groups, names = p.require_groups()
    return [names[i] for i in groups.tolist()]


def _table_row(name: str, sets: np.ndarray, p: Predictions, mask: np.ndarray, level: float) -> SetRow:
    """Return the row of the examples of a mask, with NaN if they have no weight."""
    labels, sets = p.labels[mask], sets[mask]
    weights = None if p.weights is None else p.weights[mask]
    clusters = None if p.clusters is None else p.clusters[mask]
    w = np.ones(len(labels)) if weights is None else weights
    total = float(w.sum())
    if total == 0:
        unknown = Interval(math.nan, 0.0, 1.0, level)
        return SetRow(name, n=0, coverage=unknown, mean_size=math.nan, empty=math.nan, single=math.nan)
    hits = sets[np.arange(len(labels)), labels].astype(float)
    size = sets.sum(1)
    return SetRow(
        name,
        n=len(labels),
        coverage=share_interval(hits, weights, level, clusters),  # exact without weights
        mean_size=float(w @ size) / total,
        empty=float(w[size == 0].sum()) / total,
        single=float(w[size == 1].sum()) / total,
    )
