"""Drift of predictions without labels: tests, and estimated class shares, accuracy, gap and Brier score."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from calibrant._core.numbers import format_percent, format_percent_range
from calibrant._core.types import Alpha, InputError, NonNegativeInt, OpenFraction, check_arguments
from calibrant.monitoring._compare import DEFAULT_ALPHA, ROW_LEVEL, ComparedRow, compared_rows, list_titles
from calibrant.monitoring._comparison_parts import confidence_section, estimates_table, tests_table
from calibrant.monitoring._covariate_shift import estimate_covariate_shift
from calibrant.monitoring._estimates import (
    ASSUMPTION_SENTENCES,
    COVARIATE_SHIFT,
    ESTIMATE_LEVEL,
    LABEL_SHIFT,
    Assumption,
    Estimate,
    build_targets,
)
from calibrant.monitoring._label_shift import estimate_label_shift, label_shift_obstacle, label_shift_p_value
from calibrant.monitoring._pairing import ModelPair
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.events import evaluated_event
from calibrant.predictions.folds import num_units
from calibrant.reports.document import Document, Section
from calibrant.reports.result import Reportable

MIN_REFERENCE_ROWS = 20
Shift = Literal["label", "covariate"]
SHIFTS: dict[Shift, Assumption] = {"label": LABEL_SHIFT, "covariate": COVARIATE_SHIFT}
_SAMPLE_NOTE = (
    "The new predictions are compared with the reference as two samples; labels of the new ones are not used."
)


@dataclass(frozen=True, eq=False)
class DriftResult(Reportable):
    """The drift of predictions. Print it, or save it as .html or .json."""

    rows: tuple[ComparedRow, ...]  # tests
    estimates: tuple[Estimate, ...]  # all under `assumption`; none if its test rejects it
    assumption: Assumption
    label_shift_p_value: float | None  # of the test of label shift; None if it was not tested
    alpha: float
    n_reference: int
    n_new: int
    notes: tuple[str, ...]
    pair: ModelPair
    level: float = ESTIMATE_LEVEL  # of the limits of each estimate

    @property
    def drifted(self) -> tuple[ComparedRow, ...]:
        """Rows that differ significantly, with a family-wise error rate of at most `alpha`."""
        return tuple(row for row in self.rows if row.adjusted_p_value <= self.alpha)

    @property
    def has_drifted(self) -> bool:
        """Whether the predictions have drifted beyond chance."""
        return bool(self.drifted)

    @property
    def event(self) -> str:
        """The event whose probability has or has not drifted, such as "the class is “sick”"."""
        return evaluated_event(self.pair.new).title

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        drift = f"Drift of {list_titles(self.drifted)}" if self.has_drifted else "No drift beyond chance"
        if not self.estimates:
            return f"{drift}; no estimate, as {self.assumption} does not explain the predictions"
        accuracy = next(e for e in self.estimates if e.name == "accuracy")
        limits = format_percent_range(accuracy.low, accuracy.high, 1)
        return f"{drift}; estimated accuracy under {self.assumption} {format_percent(accuracy.value, 1)} ({limits})"

    @property
    def assumption_sentences(self) -> tuple[str, ...]:
        """What the estimates assume, and the result of the test of label shift."""
        sentences = [ASSUMPTION_SENTENCES[self.assumption]]
        p_value = self.label_shift_p_value
        if p_value is not None and p_value <= self.alpha:
            sentences.insert(0, f"Label shift does not explain the predictions (p = {p_value:.3f}).")
        elif p_value is not None:
            sentences.append(f"New class shares alone can explain the predictions (p = {p_value:.3f}).")
        if self.assumption == COVARIATE_SHIFT:
            sentences.append("No unlabeled data can test this: label some new rows to be sure.")
        return tuple(sentences)

    def document(self) -> Document:
        """Return the headline, the notes, the estimates and the tests, of which those that show drift are marked."""
        explanation = (
            f"Marked rows have drifted beyond chance, p ≤ {self.alpha:g}. The p-values are adjusted for the number of "
            f"rows: without drift, the probability that any row is marked is at most {100 * self.alpha:g} %."
        )
        tests = tests_table(
            self.rows, self.drifted, old_name="reference", caption="tests", note=explanation, level=ROW_LEVEL
        )
        estimates = (
            [Section("Estimated without labels", [estimates_table(self.estimates, self.level)])]
            if self.estimates
            else []
        )
        samples = {"reference": self.pair.old, "new": self.pair.new}
        return Document(
            kind="Drift",
            title=self.headline,
            notes=(*self.notes, *self.assumption_sentences),
            sections=[*estimates, Section("Tests", [tests]), confidence_section(samples)],
            facts={"examples": f"{self.n_reference:,} reference, {self.n_new:,} new"},
        )

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as builtin types."""
        return {
            "has_drifted": self.has_drifted,
            "assumption": self.assumption,
            "label_shift_p_value": self.label_shift_p_value,
            "alpha": self.alpha,
            "level": self.level,
            "event": self.event,
            "n_reference": self.n_reference,
            "n_new": self.n_new,
            "rows": [asdict(row) for row in self.rows],
            "estimates": [asdict(estimate) for estimate in self.estimates],
            "notes": list(self.notes),
        }


@check_arguments
def drift(
    reference: Predictions,
    new: Predictions,
    *,
    of: str | int | None = None,
    by_group: bool = False,
    shift: Shift | None = None,
    alpha: Alpha = DEFAULT_ALPHA,
    level: OpenFraction = ESTIMATE_LEVEL,
    seed: NonNegativeInt = 0,
) -> DriftResult:
    """Test whether predictions have drifted from a labeled reference, and estimate their accuracy without labels.

    The mean and the distribution of confidence and the shares of predicted classes are tested by permutations of rows
    or clusters, with p-values adjusted for the number of tests. Class shares, accuracy, gap and Brier score are all
    estimated under one assumption, which each estimate names:

    * label shift: only the class shares have changed. This is tested; if the test rejects it at `alpha`, nothing is
      estimated under it. It needs independent rows and at most 20 classes.
    * covariate shift: rows with the same probabilities are right as often as in the reference. Nothing in unlabeled
      data can test this.

    Args:
        reference: Labeled predictions of the past.
        new: New predictions of the same model; their labels are not used.
        of: Event to evaluate, as in `measure`.
        by_group: Whether to test the mean confidence in each group too.
        shift: Assumption of the estimates, "label" or "covariate". Default: label shift, or covariate shift if label
            shift is rejected or has no estimates.
        alpha: Probability that anything is called drifted without reason, and of rejecting label shift if it is true.
        level: Level of the limits of each estimate.
        seed: Seed of the permutations, and of the test of label shift.

    Raises:
        InputError: If classes differ, groups are missing, there are fewer than 20 labeled examples or clusters, or
            nothing can be estimated under the given shift.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(600, 2))
    >>> y = (z + rng.gumbel(size=z.shape)).argmax(1)
    >>> result = drift(Predictions(z[:300], y[:300]), Predictions(3 * z[300:], y[300:]))
    >>> result.has_drifted, "confidences" in [row.name for row in result.drifted]
    (True, True)
    """
    with as_predictions(reference) as first, as_predictions(new) as second:
        second = second.reorder_classes(first.class_names)
        if first.k != second.k:
            raise InputError(f"Expected predictions of {first.k} classes, got {second.k}.", code="num_classes")
        if num_units(first) < MIN_REFERENCE_ROWS:
            raise InputError(
                f"Expected at least {MIN_REFERENCE_ROWS} labeled examples, or clusters, got {num_units(first)}.",
                code="few_examples",
            )
        samples = first.with_default_event(of), second.with_default_event(of)
        pair = ModelPair(*samples, paired_by=None, note=_SAMPLE_NOTE)
        rows = compared_rows(pair, has_labels=False, by_group=by_group, seed=seed)
        assumption, p_value, notes = _choose_assumption(pair.old, pair.new, shift, alpha, seed)
        is_rejected = p_value is not None and p_value <= alpha and assumption == LABEL_SHIFT
        estimate = {LABEL_SHIFT: estimate_label_shift, COVARIATE_SHIFT: estimate_covariate_shift}[assumption]
        estimates = () if is_rejected else estimate(pair.old, pair.new, build_targets(pair.old, pair.new, level))
    return DriftResult(
        rows=rows,
        estimates=estimates,
        assumption=assumption,
        label_shift_p_value=p_value,
        alpha=alpha,
        n_reference=first.num_examples,
        n_new=second.num_examples,
        notes=(_SAMPLE_NOTE, *notes),
        pair=pair,
        level=level,
    )


def _choose_assumption(
    reference: Predictions, new: Predictions, shift: Shift | None, alpha: float, seed: int
) -> tuple[Assumption, float | None, list[str]]:
    """Return the assumption of the estimates, the p-value of label shift if it was tested, and notes."""
    if shift == "covariate":
        return COVARIATE_SHIFT, None, []
    if obstacle := label_shift_obstacle(reference, new):
        if shift == "label":
            raise InputError(f"Expected predictions for label shift. {obstacle} Try shift='covariate'.", code="shift")
        return COVARIATE_SHIFT, None, [obstacle]
    p_value = label_shift_p_value(reference, new, seed)
    return SHIFTS[shift or ("covariate" if p_value <= alpha else "label")], p_value, []
