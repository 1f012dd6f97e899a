"""The page of a drift."""

from typing import TYPE_CHECKING

from markupsafe import Markup

from calibrant import report
from calibrant._text import format_percent
from calibrant.monitoring._compare_page import confidence_figure, tests_table
from calibrant.monitoring._estimates import Estimate
from calibrant.monitoring._label_shift import LabelShift
from calibrant.monitoring._titles import TITLES

if TYPE_CHECKING:
    from calibrant.monitoring._drift import DriftResult


def drift_page(result: "DriftResult", command: str) -> str:
    """Return the HTML page of a drift."""
    pair, shift = result.pair, result.label_shift
    explanation = (
        f"Marked rows have drifted beyond chance, p ≤ {result.level:g}. The p-values are adjusted for the number of "
        f"rows: without drift, the probability that any row is marked is at most {100 * result.level:g} %."
    )
    sections = [
        report.Section("Estimated without labels", _estimates(result.estimates)),
        report.Section("Tests", tests_table(result.rows, result.drifted, "reference", explanation, "tests")),
        report.Section("Confidence", confidence_figure({"reference": pair.old, "new": pair.new})),
        *([report.Section("Class shares", _shares(result, shift))] if shift is not None else []),
    ]
    facts = {"examples": f"{result.n_reference:,} reference, {result.n_new:,} new", **report.version_facts(command)}
    lead = [text for text in (*result.notes, result.shift_sentence) if text]
    return report.page(result.headline, lead, sections, facts, kicker="Drift")


def _estimates(estimates: tuple[Estimate, ...]) -> Markup:
    """Return the table of estimates without labels, each with its assumption."""
    rows = [
        [TITLES[estimate.name] if i % 2 == 0 else "", estimate.method, *estimate.cells, estimate.assumption]
        for i, estimate in enumerate(estimates)  # two of each score
    ]
    head = ["", "method", "reference", "new", "90 % limits", "assumption"]
    text = (
        "The limits contain the noise of the labels that will come. They hold only under the assumption beside them, "
        "which unlabeled data cannot test: label some of the new rows to be sure."
    )
    return report.join_html([report.table(head, rows, caption="estimates", long_row_names=True), report.note(text)])


def _shares(result: "DriftResult", shift: LabelShift) -> Markup:
    """Return the table of class shares, and a text on what they assume."""
    rows = [list(share.cells) for share in shift.shares]
    body = report.table(["class", "reference", "new", "90 % limits"], rows, caption="class shares", long_row_names=True)
    limits = f"{format_percent(shift.accuracy_low)} to {format_percent(shift.accuracy_high)}"
    text = (
        f"Shares by maximum likelihood, if the distribution of the probabilities within each class has not changed. "
        f"{result.shift_sentence} The accuracy would be {format_percent(shift.accuracy)} ({limits})."
    )
    return report.join_html([body, report.note(text)])
