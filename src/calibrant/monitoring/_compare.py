"""Compare an old and a new model, or their predictions of two samples: what differs beyond chance."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from calibrant._core.numbers import format_number, format_percent, format_percent_range, format_points
from calibrant._core.registry import METRICS
from calibrant._core.text import display_name, join_names
from calibrant._core.types import Alpha, InputError, NonNegativeInt, OpenFraction, check_arguments
from calibrant.monitoring._bounds import estimate_difference
from calibrant.monitoring._comparison_parts import confidence_section, reliability_section, tests_table
from calibrant.monitoring._features import (
    LABELED_SCORES,
    MAX_UNITS,
    PERCENT_SCORES,
    FeatureFrame,
    class_shares,
    confidences,
    row_weights,
    score_title,
    shared_groups,
)
from calibrant.monitoring._pairing import ModelPair, pair_models
from calibrant.monitoring._permutation import holm, paired_p_values, unpaired_p_values
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.events import evaluated_event
from calibrant.predictions.folds import num_units
from calibrant.reports.document import Document, Section
from calibrant.reports.result import Reportable

DEFAULT_ALPHA = 0.05
MIN_COMPARED_UNITS = 2
ROW_LEVEL = 0.95  # default of the limits of a difference
MAX_LISTED_TITLES = 2
_INFINITE_NLL_NOTE = "The negative log-likelihood is infinite, and is not compared: a true class has probability 0."


@dataclass(frozen=True)
class ComparedRow:
    """The test of a mean, the calibration error or a distribution in a comparison."""

    name: str
    group: str | None
    old: float  # NaN for distributions
    new: float
    difference: float  # new minus old; of distributions the largest difference of shares
    low: float  # limits of the difference; NaN if it has none
    high: float
    p_value: float
    adjusted_p_value: float  # within the family of all rows
    detail: str = ""  # where distributions differ most
    is_confidence: bool = True  # whether the event is that the prediction is right, and not a class

    @property
    def title(self) -> str:
        """The row in words."""
        return self.measure + ("" if self.group is None else f" [{display_name(self.group)}]")

    @property
    def measure(self) -> str:
        """The measure in words, without the group."""
        return score_title(self.name, is_confidence=self.is_confidence)

    @property
    def is_share(self) -> bool:
        """Whether the values are shares, as those of distributions are."""
        return self.name in PERCENT_SCORES or math.isnan(self.old)

    def text(self, value: float) -> str:
        """Return a value of this row in its unit, or an empty text for NaN."""
        if math.isnan(value):
            return ""
        return format_percent(value) if self.is_share else format_number(value, 4)

    def change_text(self, value: float) -> str:
        """Return a difference of this row in its unit with its sign, or an empty text for NaN."""
        if math.isnan(value):
            return ""
        return f"{format_points(value, 2, '+')} points" if self.is_share else format_number(value, 4, "+")


@dataclass(frozen=True, eq=False)
class CompareResult(Reportable):
    """A comparison. Print it, or save it as .html or .json."""

    rows: tuple[ComparedRow, ...]
    alpha: float
    n_old: int
    n_new: int
    notes: tuple[str, ...]
    pair: ModelPair
    level: float = ROW_LEVEL  # of the limits of each difference by itself

    @property
    def differing(self) -> tuple[ComparedRow, ...]:
        """Rows that differ significantly, with a family-wise error rate of at most `alpha`."""
        return tuple(row for row in self.rows if row.adjusted_p_value <= self.alpha)

    @property
    def differs(self) -> bool:
        """Whether anything differs beyond chance."""
        return bool(self.differing)

    @property
    def event(self) -> str:
        """The event whose probability is compared, such as "the class is “sick”"."""
        return evaluated_event(self.pair.new).title

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        if not self.differs:
            return "No difference beyond chance"
        return f"The models differ in {list_titles(self.differing)}"

    def document(self) -> Document:
        """Return the headline, the notes, and the table of tests, of which those that differ are marked."""
        explanation = (
            f"Marked rows differ beyond chance, p ≤ {self.alpha:g}. The p-values are adjusted for the number of rows: "
            f"if the models are exchangeable, any row is marked with a probability of at most {100 * self.alpha:g} %. "
            "The difference of two distributions is the change of the share in the last column."
        )
        table = tests_table(
            self.rows, self.differing, old_name="old", caption="differences", note=explanation, level=self.level
        )
        models = {"old": self.pair.old, "new": self.pair.new}
        return Document(
            kind="Comparison of two models",
            title=self.headline,
            notes=self.notes,
            sections=[Section("Differences", [table]), reliability_section(models), confidence_section(models)],
            facts={"examples": f"{self.n_old:,} old, {self.n_new:,} new"},
        )

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as builtin types."""
        return {
            "differs": self.differs,
            "alpha": self.alpha,
            "level": self.level,
            "event": self.event,
            "n_old": self.n_old,
            "n_new": self.n_new,
            "paired_by": self.pair.paired_by,
            "rows": [asdict(row) for row in self.rows],
            "notes": list(self.notes),
        }


def list_titles(rows: Sequence[ComparedRow]) -> str:
    """Return the titles of the two clearest differences, and how many more there are."""
    names = list(dict.fromkeys(row.measure for row in sorted(rows, key=lambda row: row.adjusted_p_value)))
    hidden = len(names) - MAX_LISTED_TITLES
    if hidden > 0:
        names = [*names[:MAX_LISTED_TITLES], f"{hidden} more measure{'s' * (hidden > 1)}"]
    return join_names(names)


@check_arguments
def compare(
    old: Predictions,
    new: Predictions,
    *,
    old_ids: Any = None,
    new_ids: Any = None,
    of: str | int | None = None,
    by_group: bool = False,
    alpha: Alpha = DEFAULT_ALPHA,
    level: OpenFraction = ROW_LEVEL,
    seed: NonNegativeInt = 0,
) -> CompareResult:
    """Compare the predictions of two models, or of one model on two samples, and test what differs beyond chance.

    Accuracy, gap, Brier score, NLL, ECE, and the distributions of confidence and of predicted classes are compared; of
    two samples also the distribution of labels. A number has the limits and the p-value of `metrics.compare`: the true
    difference is 0. For distributions, paired predictions are swapped at random between the models, example by example
    or cluster by cluster, and predictions of two samples are permuted: the models, or the samples, are exchangeable.
    p-values are adjusted for the number of tests (Holm 1979).

    Args:
        old: Predictions of the old model.
        new: Predictions of the new model. They are paired by ids if there are any, else by order if all labels agree,
            and else taken as another sample.
        old_ids: Id of each row of `old`.
        new_ids: Id of each row of `new`.
        of: Event to evaluate, as in `measure`.
        by_group: Whether to compare the means in each group too.
        alpha: Probability that anything is called different without reason.
        level: Level of the limits of each difference by itself.
        seed: Seed of the swaps.

    Raises:
        InputError: If classes differ, groups are missing, or there are fewer than two examples or clusters.

    >>> p = Predictions.from_confidence([0.9] * 200, [1] * 180 + [0] * 20)
    >>> q = Predictions.from_confidence([0.7] * 200, [1] * 180 + [0] * 20)
    >>> compare(p, q).differs, compare(p, p).differs
    (True, False)
    """
    with as_predictions(old) as first, as_predictions(new) as second:
        pair = pair_models(first.with_default_event(of), second.with_default_event(of), old_ids, new_ids)
        rows = compared_rows(pair, has_labels=True, by_group=by_group, seed=seed, level=level)
    notes = () if any(row.name == "nll" for row in rows) else (_INFINITE_NLL_NOTE,)
    return CompareResult(rows, alpha, pair.old.num_examples, pair.new.num_examples, (pair.note, *notes), pair, level)


def compared_rows(
    pair: ModelPair, *, has_labels: bool, by_group: bool, seed: int, level: float = ROW_LEVEL
) -> tuple[ComparedRow, ...]:
    """Return the rows of all tests of a pair.

    Args:
        pair: Predictions of two models, or of two samples.
        has_labels: Whether to compare scores that need labels. Drift is tested without.
        by_group: Whether to compare the means in each group too.
        seed: Seed of the swaps or permutations.
        level: Level of the limits of each difference of scores.
    """
    _check_units(pair)
    frame = FeatureFrame.from_pair(
        pair.old, pair.new, is_paired=pair.paired_by is not None, has_labels=has_labels, by_group=by_group
    )
    p_values = _test_distributions(frame, pair, seed).tolist()
    rows = [_frame_row(frame, pair, *test, p) for test, p in zip(frame.tests, p_values, strict=True)]
    if has_labels:
        groups = shared_groups(pair.old, pair.new) if by_group else []
        rows = [*_score_rows(pair, level), *rows, *(row for group in groups for row in _score_rows(pair, level, group))]
    adjusted = holm(np.array([row.p_value for row in rows])).tolist()
    is_confidence = evaluated_event(pair.new).is_confidence
    return tuple(
        replace(row, adjusted_p_value=p, is_confidence=is_confidence) for row, p in zip(rows, adjusted, strict=True)
    )


def _check_units(pair: ModelPair) -> None:
    """Raise `InputError` if a side has fewer than two examples or clusters, or paired models different clusters."""
    n_old, n_new = num_units(pair.old), num_units(pair.new)
    if min(n_old, n_new) < MIN_COMPARED_UNITS:
        raise InputError("Expected at least two examples, or clusters, on each side, got one.", code="one_unit")
    if pair.paired_by is not None and n_old != n_new:
        raise InputError("Expected the same clusters of the same examples in both models.", code="different_clusters")


def _test_distributions(frame: FeatureFrame, pair: ModelPair, seed: int) -> np.ndarray:
    """Return the p-values of all tests of a frame, in the order of `frame.tests`."""
    if pair.paired_by is not None:
        return paired_p_values(frame.unit_sums(pair.old), frame.unit_sums(pair.new), frame.statistics, seed)
    # Units are joined into MAX_UNITS sets in total, shared so that the sets are about as large on both sides
    n_old, n_new = num_units(pair.old), num_units(pair.new)
    max_old = max(1, round(MAX_UNITS * n_old / (n_old + n_new)))
    old_sums = frame.unit_sums(pair.old, max_old)
    new_sums = frame.unit_sums(pair.new, max(1, MAX_UNITS - max_old))
    return unpaired_p_values(old_sums, new_sums, frame.statistics, seed)


def _score_rows(pair: ModelPair, level: float, group: str | None = None) -> list[ComparedRow]:
    """Return the rows of scores and, of all examples, the ECE. An infinite NLL has no difference and is left out."""
    pair = pair if group is None else pair.select_group(group)
    rows: list[ComparedRow] = []
    for name in (*LABELED_SCORES, *(("ece",) if group is None else ())):
        estimate = estimate_difference(METRICS.method(name), pair)
        limits, p_value = estimate.interval(level), estimate.p_value
        if math.isfinite(limits.value):
            values = (estimate.first, estimate.second, limits.value, limits.low, limits.high)
            rows.append(ComparedRow(name, group, *values, p_value, p_value))
    return rows


def _frame_row(frame: FeatureFrame, pair: ModelPair, name: str, group: str | None, p_value: float) -> ComparedRow:
    """Return the row of a permutation test, of the mean confidence or of the largest change of a distribution."""
    nan = math.nan
    if name == "confidence":
        pair = pair if group is None else pair.select_group(group)
        old, new = (float(np.average(confidences(p), weights=row_weights(p))) for p in (pair.old, pair.new))
        return ComparedRow(name, group, old, new, new - old, nan, nan, p_value, p_value)
    change, detail = _largest_share_change(frame, pair, name)
    return ComparedRow(name, group, nan, nan, change, nan, nan, p_value, p_value, detail)


def _largest_share_change(frame: FeatureFrame, pair: ModelPair, name: str) -> tuple[float, str]:
    """Return the largest change, new minus old, of the share of a class or of confidences up to a cut.

    `name` is "confidences", "predicted classes" or "labels". The second result is a text with the class or the cut, and
    its shares in both sets.
    """

    def shares(p: Predictions) -> np.ndarray:
        """Return the share of confidences up to each cut, or of each class."""
        if name == "confidences":
            confidence, w = confidences(p), row_weights(p)
            return np.array([np.average(confidence <= cut, weights=w) for cut in frame.cuts])
        return class_shares(p, p.labels if name == "labels" else p.predicted)

    old, new = shares(pair.old), shares(pair.new)
    change = new - old
    j = int(np.abs(change).argmax())
    text = format_percent_range(old[j], new[j])
    if name == "confidences":
        return float(change[j]), f"up to {format_percent(float(frame.cuts[j]), 1)}: {text} of all"
    names = pair.new.class_names
    return float(change[j]), f"{display_name(names[j]) if names else f'class {j}'}: {text}"
