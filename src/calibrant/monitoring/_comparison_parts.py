"""Tables and pictures that a comparison and a drift share."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from calibrant._core.numbers import format_level, format_p_value
from calibrant.monitoring._estimates import Estimate
from calibrant.monitoring._features import confidences
from calibrant.predictions import Predictions
from calibrant.reports.diagrams import reliability_figure
from calibrant.reports.document import Note, Picture, Section, SideBySide, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant.monitoring._compare import ComparedRow


def tests_table(
    rows: "Sequence[ComparedRow]",
    differing: "Sequence[ComparedRow]",
    *,
    old_name: str,
    caption: str,
    note: str,
    level: float,
) -> Table:
    """Return the table of tests, of which some rows differ."""
    body: list[list[str]] = []
    for row in rows:
        values = [row.text(row.old), row.text(row.new), row.change_text(row.difference), _limits_text(row)]
        body.append([row.title, *values, format_p_value(row.adjusted_p_value).removeprefix("p = "), row.detail])
    head = ["", old_name, "new", "difference", f"{format_level(level)} limits", "p", "where most"]
    return Table(caption, head, body, marked=[row in differing for row in rows], note=note)


def _limits_text(row: "ComparedRow") -> str:
    """Return the limits of the difference, or an empty text without limits."""
    low, high = (row.change_text(limit).removesuffix(" points") for limit in (row.low, row.high))
    return f"{low} to {high}" if low else ""


def estimates_table(estimates: Sequence[Estimate], level: float) -> Table:
    """Return the table of estimates without labels, each with its assumption."""
    rows = [[e.title, *e.cells, e.assumption] for e in estimates]
    head = ["", "reference", "new", f"{format_level(level)} limits", "assuming"]
    note = "The limits contain the noise of the labels that will come. They hold only under the assumption beside them."
    return Table("estimated without labels", head, rows, note=note)


def reliability_section(predictions: dict[str, Predictions]) -> Section:
    """Return the reliability diagrams of models side by side."""
    pictures = [
        reliability_figure(p, f"Reliability diagram of the {name} model.", name) for name, p in predictions.items()
    ]
    text = (
        "Blue: frequency of the event by confidence. Red: the gap to the confidence. Fainter bars have fewer examples."
    )
    return Section("Reliability", [SideBySide(pictures), Note(text)], is_detail=True)


def confidence_section(predictions: dict[str, Predictions]) -> Section:
    """Return the cumulative distributions of confidence in one picture."""
    from calibrant.reports.plots import BAR_COLOR, GAP_COLOR

    def draw(drawing: "Figure") -> None:
        """Draw a curve per set of predictions: the confidence on x, the share of confidences up to it on y."""
        ax = drawing.subplots()
        shares = np.linspace(0, 1, 201)  # heights of the curve, whose points are the quantiles
        for (name, p), color in zip(predictions.items(), (BAR_COLOR, GAP_COLOR), strict=True):
            ax.step(np.quantile(confidences(p), shares), shares, color=color, label=name, where="post")
        ax.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share of predictions up to it")
        ax.legend(frameon=False)
        ax.spines[["top", "right"]].set_visible(False)

    medians = (f"{name}, median {float(np.median(confidences(p))):.3f}" for name, p in predictions.items())
    alt_text = f"Cumulative distributions of confidence: {', '.join(medians)}"
    return Section(
        "Confidence", [Picture(draw, alt_text, "Distribution of confidence", size=(5.0, 3.0))], is_detail=True
    )
