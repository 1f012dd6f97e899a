"""The pages of a comparison and of a drift."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant.monitoring._estimates import Estimate
from calibrant.monitoring._features import confidences
from calibrant.predictions import Predictions
from calibrant.reports import elements as report
from calibrant.reports.plots import BAR_COLOR, GAP_COLOR

if TYPE_CHECKING:
    from calibrant.monitoring._compare import ComparedRow, CompareResult
    from calibrant.monitoring._drift import DriftResult


def compare_page(result: "CompareResult", command: str) -> str:
    """Return the HTML page of a comparison."""
    pair = result.pair
    explanation = (
        f"Marked rows differ beyond chance, p ≤ {result.alpha:g}. The p-values are adjusted for the number of rows: if "
        f"the models are exchangeable, the probability that any row is marked is at most {100 * result.alpha:g} %. "
        "The difference of two distributions is the change of the share in the last column."
    )
    sections = [
        report.Section(
            "Differences",
            _tests_table(result.rows, result.differing, old_name="old", caption="differences", explanation=explanation),
        ),
        report.Section("Reliability", _reliability_diagrams(pair.old, pair.new)),
        report.Section("Confidence", _confidence_figure({"old": pair.old, "new": pair.new})),
    ]
    facts = {"examples": f"{result.n_old:,} old, {result.n_new:,} new", **report.version_facts(command)}
    return report.page(result.headline, result.notes, sections, facts, kicker="Comparison of two models")


def drift_page(result: "DriftResult", command: str) -> str:
    """Return the HTML page of a drift."""
    pair = result.pair
    explanation = (
        f"Marked rows have drifted beyond chance, p ≤ {result.alpha:g}. The p-values are adjusted for the number of "
        f"rows: without drift, the probability that any row is marked is at most {100 * result.alpha:g} %."
    )
    sections = [
        *([report.Section("Estimated without labels", _estimates_table(result.estimates))] if result.estimates else []),
        report.Section(
            "Tests",
            _tests_table(result.rows, result.drifted, old_name="reference", caption="tests", explanation=explanation),
        ),
        report.Section("Confidence", _confidence_figure({"reference": pair.old, "new": pair.new})),
    ]
    facts = {"examples": f"{result.n_reference:,} reference, {result.n_new:,} new", **report.version_facts(command)}
    lead = (*result.notes, *result.assumption_sentences)
    return report.page(result.headline, lead, sections, facts, kicker="Drift")


def _tests_table(
    rows: "Sequence[ComparedRow]", differing: "Sequence[ComparedRow]", *, old_name: str, caption: str, explanation: str
) -> Markup:
    """Return the table of tests with an explanation below. The column of limits is left out if no row has any.

    Args:
        rows: Rows of the table.
        differing: Rows to mark.
        old_name: Heading of the column of old values.
        caption: Caption of the table.
        explanation: Text below the table.
    """
    has_limits = not all(math.isnan(row.low) for row in rows)
    limits_head = ["95 % of the difference"] if has_limits else []
    head = ["", old_name, "new", "difference", *limits_head, "p", "where most"]
    body: list[list[str]] = []
    for row in rows:
        limits = [_limits_text(row)] if has_limits else []
        values = [row.text(row.old), row.text(row.new), row.text(row.difference, sign="+")]
        body.append([row.title, *values, *limits, f"{row.adjusted_p_value:.3f}", row.detail])
    highlighted = [row in differing for row in rows]
    table = report.table(head, body, caption=caption, highlighted=highlighted, long_row_names=True)
    return report.join_html([table, report.note(explanation)])


def _limits_text(row: "ComparedRow") -> str:
    """Return the limits of the difference, or an empty text without limits."""
    return "" if math.isnan(row.low) else f"{row.text(row.low, sign='+')} to {row.text(row.high, sign='+')}"


def _reliability_diagrams(old: Predictions, new: Predictions) -> Markup:
    """Return the reliability diagrams of both models side by side."""
    figures = [
        report.reliability_figure(p, f"Reliability diagram of the {name} model.", name)
        for name, p in (("old", old), ("new", new))
    ]
    return report.render('<div class="figures">{}</div>', report.join_html(figures)) + report.note(
        "Blue: frequency of the event by confidence. Red: the gap to the confidence. Fainter bars have fewer examples."
    )


def _confidence_figure(predictions: dict[str, Predictions]) -> Markup:
    """Return the cumulative distributions of confidence in one figure."""

    def draw(drawing: Figure) -> None:
        """Draw a curve per set of predictions: the confidence on x, the share of confidences up to it on y."""
        ax = drawing.subplots()
        shares = np.linspace(0, 1, 201)  # heights of the curve, whose points are the quantiles
        for (name, p), color in zip(predictions.items(), (BAR_COLOR, GAP_COLOR), strict=True):
            ax.step(np.quantile(confidences(p), shares), shares, color=color, label=name, where="post")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share of predictions up to it")
        ax.legend(frameon=False)
        ax.spines[["top", "right"]].set_visible(False)

    alt_text = "Cumulative distributions of confidence: " + ", ".join(
        f"{name}, median {float(np.median(confidences(p))):.3f}" for name, p in predictions.items()
    )
    return report.figure(draw, alt_text, caption="Distribution of confidence", size=(5.0, 3.0))


def _estimates_table(estimates: tuple[Estimate, ...]) -> Markup:
    """Return the table of estimates without labels, each with its assumption."""
    rows = [[f"share of {e.title}" if e.name == "share" else e.title, *e.cells, e.assumption] for e in estimates]
    head = ["", "reference", "new", "90 % limits", "assumption"]
    note = report.note(
        "The limits contain the noise of the labels that will come. They hold only under the assumption beside them."
    )
    return report.join_html([report.table(head, rows, caption="estimates", long_row_names=True), note])
