"""Drift of predictions without labels: tests, new class shares, and estimated accuracy."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibrant._text import cut_middle, format_percent, format_percent_range
from calibrant.io.files import null_nonfinite, result_json, write_by_suffix
from calibrant.monitoring._compare import DEFAULT_ALPHA, ComparedRow, check_test_options, compared_rows, list_titles
from calibrant.monitoring._estimates import DOUBLY_ROBUST, MIN_REFERENCE_ROWS, Estimate, estimate_without_labels
from calibrant.monitoring._features import TITLES
from calibrant.monitoring._label_shift import LabelShift, estimate_label_shift
from calibrant.monitoring._pairing import ModelPair
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.folds import num_units
from calibrant.types import InputError

_SAMPLE_NOTE = (
    "The new predictions are compared with the reference as two samples; labels of the new ones are not used."
)


@dataclass(frozen=True, eq=False)
class DriftResult:
    """The drift of predictions. Print it, or save it as .html or .json."""

    rows: tuple[ComparedRow, ...]  # tests
    label_shift: LabelShift | None
    estimates: tuple[Estimate, ...]
    alpha: float
    n_reference: int
    n_new: int
    notes: tuple[str, ...]
    pair: ModelPair

    @property
    def drifted(self) -> tuple[ComparedRow, ...]:
        """Rows that differ significantly, with a family-wise error rate of at most `alpha`."""
        return tuple(row for row in self.rows if row.adjusted_p_value <= self.alpha)

    @property
    def has_drifted(self) -> bool:
        """Whether the predictions have drifted beyond chance."""
        return bool(self.drifted)

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        accuracy = next(e for e in self.estimates if e.name == "accuracy")
        limits = format_percent_range(accuracy.low, accuracy.high, 1)
        estimate = f"estimated accuracy {format_percent(accuracy.value, 1)} ({limits})"
        if not self.has_drifted:
            return f"No drift beyond chance; {estimate}"
        return f"Drift of {list_titles(self.drifted)}; {estimate}"

    @property
    def shift_sentence(self) -> str:
        """Whether new class shares alone explain the change, in a sentence, or "" if none were estimated."""
        if self.label_shift is None:
            return ""
        p_value = self.label_shift.p_value
        if p_value <= self.alpha:
            return f"New class shares alone do not explain the predictions (p = {p_value:.3f}): do not rely on them."
        return f"New class shares alone can explain the predictions (p = {p_value:.3f})."

    def __str__(self) -> str:
        """Return the headline, the notes, the tests ("*" marks drift), the estimates and the class shares as text."""
        lines = [f"{self.headline}.", *self.notes, "", f"  {'':32}{'reference':>10}{'new':>10}{'p':>9}"]
        for row in self.rows:
            mark = "*" if row in self.drifted else " "
            numbers = f"{row.text(row.old):>10}{row.text(row.new):>10}{row.adjusted_p_value:9.3f}"
            lines.append(f"{mark} {cut_middle(row.title, 31):32}{numbers}")
        head = "reference", "new", "90 % limits"
        lines += ["", _table_line("estimated without labels", *head)]
        for estimate in self.estimates:
            title = f"  {DOUBLY_ROBUST}" if estimate.method == DOUBLY_ROBUST else TITLES[estimate.name]
            lines.append(_table_line(title, *estimate.cells))
        if self.label_shift is not None:
            lines += ["", _table_line("class shares", *head)]
            lines += [_table_line(*share.cells) for share in self.label_shift.shares]
            lines += ["", self.shift_sentence]
        return "\n".join(line.rstrip() for line in lines)

    def json(self, source: Mapping[str, Any] | None = None) -> str:
        """Return all numbers as JSON.

        Args:
            source: Entries that replace the ones of the same name in the block "provenance" (version, time).
        """
        return result_json(
            {
                "has_drifted": self.has_drifted,
                "alpha": self.alpha,
                "n_reference": self.n_reference,
                "n_new": self.n_new,
                "rows": null_nonfinite([asdict(row) for row in self.rows]),
                "estimates": null_nonfinite([asdict(estimate) for estimate in self.estimates]),
                "label_shift": None if self.label_shift is None else asdict(self.label_shift),
                "notes": list(self.notes),
            },
            source,
        )

    def html(self, command: str = "calibrant drift") -> str:
        """Return the HTML page of the drift; `command` is the command that it names."""
        from calibrant.monitoring._comparison_pages import drift_page

        return drift_page(self, command)

    def save(self, path: str | Path) -> None:
        """Write the page (.html) or the numbers (.json)."""
        write_by_suffix(path, {".html": self.html, ".json": self.json})


def drift(
    reference: Predictions,
    new: Predictions,
    *,
    of: str | int | None = None,
    by_group: bool = False,
    alpha: float = DEFAULT_ALPHA,
    seed: int = 0,
) -> DriftResult:
    """Test whether predictions have drifted from a labeled reference, and estimate their accuracy without labels.

    The mean and the distribution of confidence and the shares of predicted classes are tested by permutations of rows
    or clusters, with p-values adjusted for the number of tests. Accuracy, gap and Brier score are estimated twice: from
    calibrated confidences alone, and doubly robust, with the mean residual of the reference added, weighted by the
    ratio of the densities of new rows and reference. The new class shares are estimated by maximum
    likelihood, with a test of whether they alone explain the change. Estimates hold only under the assumption that
    stands beside each: nothing in unlabeled data reveals that equal probabilities have come to mean something else.

    Args:
        reference: Labeled predictions of the past.
        new: New predictions of the same model; their labels are not used.
        of: Event to evaluate, as in `measure`.
        by_group: Whether to test the mean confidence in each group too.
        alpha: Probability that anything is called drifted without reason.
        seed: Seed of the permutations.

    Raises:
        InputError: If classes differ, groups are missing, or there are fewer than 20 labeled examples or clusters.

    >>> g = torch.Generator().manual_seed(0)
    >>> z = torch.randn(600, 2, generator=g)
    >>> y = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    >>> result = drift(Predictions(z[:300], y[:300]), Predictions(3 * z[300:], y[300:]))
    >>> result.has_drifted, "confidences" in [row.name for row in result.drifted]
    (True, True)
    """
    check_test_options(alpha, seed)
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
        estimates = estimate_without_labels(pair.old, pair.new)
        shift = estimate_label_shift(first, second, seed)
    is_estimated = isinstance(shift, LabelShift)  # else a sentence on why there are no class shares
    return DriftResult(
        rows=rows,
        label_shift=shift if is_estimated else None,
        estimates=estimates,
        alpha=alpha,
        n_reference=first.num_examples,
        n_new=second.num_examples,
        notes=(_SAMPLE_NOTE,) if is_estimated else (_SAMPLE_NOTE, shift),
        pair=pair,
    )


def _table_line(title: str, reference: str, value: str, limits: str) -> str:
    """Return a line of a table in four columns."""
    return f"  {cut_middle(title, 31):32}{reference:>10}{value:>10}{limits:>22}"
