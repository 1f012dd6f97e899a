"""The page of a comparison."""

import math
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibrant import report
from calibrant.monitoring._features import confidences
from calibrant.plots import BAR_COLOR, GAP_COLOR, reliability
from calibrant.predictions import Predictions

if TYPE_CHECKING:
    from calibrant.monitoring._compare import CompareResult


def compare_page(result: "CompareResult", command: str) -> str:
    """Return the HTML page of a comparison."""
    pair = result.pair
    sections = [
        report.Section("Differences", _differences(result)),
        report.Section("Reliability", _diagrams(pair.old, pair.new)),
        report.Section("Confidence", confidence_figure({"old": pair.old, "new": pair.new})),
    ]
    facts = {"examples": f"{result.n_old:,} old, {result.n_new:,} new", **report.version_facts(command)}
    return report.page(result.headline, result.notes, sections, facts, kicker="Comparison of two models")


def _differences(result: "CompareResult") -> Markup:
    differing = result.differing
    rows = [
        [
            row.title,
            row.text(row.old),
            row.text(row.new),
            row.text(row.difference, "+"),
            "" if math.isnan(row.low) else f"{row.text(row.low, '+')} to {row.text(row.high, '+')}",
            f"{row.adjusted_p_value:.3f}",
            row.detail,
        ]
        for row in result.rows
    ]
    head = ["", "old", "new", "difference", "95 % of the difference", "p", "where most"]
    text = (
        f"Marked rows differ beyond chance, p ≤ {result.level:g}. The p-values are adjusted for the number of rows: if "
        f"the models are exchangeable, the probability that any row is marked is at most {100 * result.level:g} %. "
        "Of distributions, the difference is that of the share in the last column."
    )
    body = report.table(
        head, rows, caption="differences", highlighted=[row in differing for row in result.rows], long_row_names=True
    )
    return report.join_html([body, report.note(text)])


def _diagrams(old: Predictions, new: Predictions) -> Markup:
    parts: list[Markup] = []
    for name, p in (("old", old), ("new", new)):

        def draw(drawing: Figure, p: Predictions = p) -> None:
            reliability(p, ax=drawing.subplots())

        parts.append(report.figure(draw, f"Reliability diagram of the {name} model.", caption=name))
    text = (
        "Blue: frequency of the event by confidence. Red: the gap to the confidence. Fainter bars have fewer examples."
    )
    return report.join_html(
        [report.render('<div class="figures">{}</div>', report.join_html(parts)), report.note(text)]
    )


def confidence_figure(predictions: dict[str, Predictions]) -> Markup:
    """Return the cumulative distributions of confidence in one figure."""

    def draw(drawing: Figure) -> None:
        ax = drawing.subplots()
        for (name, p), color in zip(predictions.items(), (BAR_COLOR, GAP_COLOR), strict=True):
            _draw_distribution(p, name, color, ax)
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share of predictions up to it")
        ax.legend(frameon=False)
        ax.spines[["top", "right"]].set_visible(False)

    alt_text = "Cumulative distributions of confidence: " + ", ".join(
        f"{name}, median {float(np.median(confidences(p))):.3f}" for name, p in predictions.items()
    )
    return report.figure(draw, alt_text, caption="Distribution of confidence", size=(5.0, 3.0))


def _draw_distribution(p: Predictions, name: str, color: str, ax: Axes) -> None:
    points = np.quantile(confidences(p), np.linspace(0, 1, 201))
    ax.step(points, np.linspace(0, 1, 201), color=color, label=name, where="post")
