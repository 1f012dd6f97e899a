"""The last periods of a watch, for its page."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from calibrant._core.numbers import format_percent
from calibrant._core.text import display_name
from calibrant.monitoring._verdict import WatchVerdict, format_gap
from calibrant.reports.document import Document, HoverPoint, Note, Picture, Section, Table
from calibrant.reports.plots import evidence_timeline, gap_timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from calibrant.monitoring._watch import Watch

MODEL_QUANTILE = 1.96  # standard deviations within which the gap of a calibrated model lies in 95 % of periods
_PERIODS_NOTE = (
    "The gap is the mean confidence in the event minus its frequency. In 95 % of periods, a calibrated "
    "model has a gap inside the gray range; one period outside it is no alarm. Evidence is the largest "
    "logarithm of wealth of any test in the period, divided by that of an alarm; bars end at 2. The dotted "
    "line is the estimated start of a deviation."
)


def watch_document(watch: "Watch", num_periods: int, verdict: WatchVerdict) -> Document:
    """Return what the verdict of a watch says, and the last periods."""
    document = verdict.document()
    periods = [_periods_section(watch, num_periods)] if len(watch.periods) else []
    return replace(document, sections=[*periods, *document.sections])


def _periods_section(watch: "Watch", num_periods: int) -> Section:
    """Return the picture and the table of the last periods that have processed rows."""
    periods = watch.periods
    processed = np.flatnonzero(periods.sums[:, 0])[-num_periods:]  # column 0: number of processed rows
    if not len(processed):
        return Section("Periods", [Note("No period has processed rows yet.")], is_detail=True)
    rows, outcomes, confidence, variance = periods.sums[processed].T  # as PERIOD_COLUMNS
    gap, margin = (confidence - outcomes) / rows, MODEL_QUANTILE * np.sqrt(variance) / rows
    evidence, predicted = periods.peak[processed], periods.predicted[processed]
    names = [display_name(periods.names[i]) for i in processed]
    # Number, from 1, of the period in which the deviation of the strongest alarm starts; None if that is earlier
    since: float | None = None
    if watch.verdict.alarm:
        since = float((periods.first_row[processed] < watch.verdict.alarms[0].since_number).sum()) or None

    def draw(drawing: "Figure") -> None:
        """Draw the gap of each period above its evidence, on a common axis of periods."""
        upper, lower = drawing.subplots(2, 1, height_ratios=[3, 2], sharex=True)
        gap_timeline(gap.tolist(), margin.tolist(), since=since, ax=upper)
        evidence_timeline(evidence.tolist(), since=since, ax=lower)
        upper.set(xlabel="")

    gap_texts = [f"{name}: gap {format_gap(value)}" for name, value in zip(names, gap, strict=True)]
    hover_points: list[HoverPoint] = []
    body: list[list[str]] = []
    for i, name in enumerate(names):
        hover_points.append(HoverPoint(i + 1.0, float(gap[i]), f"{gap_texts[i]}, {rows[i]:,.0f} rows"))
        size = f"{rows[i]:,.0f}" + (f" of {predicted[i]:,}" if rows[i] < predicted[i] else "")
        shares = [format_percent(total[i] / rows[i], 1) for total in (confidence, outcomes)]
        body.append([name, size, *shares, format_gap(gap[i]), format_percent(margin[i]), f"{evidence[i]:.2f}"])
    alt_text = f"Gap by period. {'; '.join(gap_texts)}."
    picture = Picture(draw, alt_text, "The last periods", size=(7.0, 3.8), hover_points=hover_points)
    head = ["period", "rows", "confidence", "outcome", "gap", "calibrated: within", "evidence / alarm"]
    table = Table("periods", head, body, marked=(evidence >= 1).tolist())
    return Section("Periods", [picture, Note(_PERIODS_NOTE), table], is_detail=True)
