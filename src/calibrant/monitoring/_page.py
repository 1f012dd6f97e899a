"""The page of a watch: the verdict, the last periods, and every test."""

import math
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant._core.text import display_name
from calibrant.monitoring._verdict import TestState, WatchVerdict
from calibrant.reports import elements as report
from calibrant.reports.plots import evidence_timeline, gap_timeline

if TYPE_CHECKING:
    from calibrant.monitoring._watch import Watch

MAX_LISTED_TESTS = 50  # the test of the event included
MAX_SENTENCES = 8  # on alarms
MODEL_QUANTILE = 1.96  # standard deviations within which the gap of a calibrated model lies in 95 % of periods
_PERIODS_NOTE = (
    "The gap is the mean confidence in the event minus its frequency. In 95 % of periods, a calibrated "
    "model has a gap inside the gray range; one period outside it is no alarm. Evidence is the largest "
    "logarithm of wealth of any test in the period, divided by that of an alarm; bars end at 2. The dotted "
    "line is the estimated start of a deviation."
)


def watch_page(watch: "Watch", num_periods: int) -> str:
    """Return the HTML page with the last periods."""
    verdict = watch.verdict
    title = "Alarm: the model is no longer calibrated" if verdict.alarm else "No alarm"
    sections = [report.Section("Periods", _periods_section(watch, num_periods))] if len(watch.periods) else []
    sections.append(report.Section("Tests", _tests_section(verdict)))
    facts = {
        "rows": f"{verdict.rows:,} processed, {verdict.pending:,} waiting ({verdict.unlabeled:,} without a label)",
        "epoch": f"{verdict.epoch}",
        "alpha": f"{verdict.alpha:g}",
        **report.version_facts("calibrant watch"),
    }
    return report.page(title, verdict.sentences[:MAX_SENTENCES], sections, facts, kicker="Calibration watch")


def _periods_section(watch: "Watch", num_periods: int) -> Markup:
    """Return the figure and the table of the last periods that have processed rows."""
    periods = watch.periods
    processed = np.flatnonzero(periods.sums[:, 0])[-num_periods:]  # column 0: number of processed rows
    if not len(processed):
        return report.note("No period has processed rows yet.")
    rows, outcomes, confidence, variance = periods.sums[processed].T  # as PERIOD_COLUMNS
    gap, margin = (confidence - outcomes) / rows, MODEL_QUANTILE * np.sqrt(variance) / rows
    evidence, predicted = periods.peak[processed], periods.predicted[processed]
    names = [display_name(periods.names[i]) for i in processed]
    # Number, from 1, of the period in which the deviation of the strongest alarm starts; None if that is earlier
    since: float | None = None
    if watch.verdict.alarm:
        since = float((periods.first_row[processed] < watch.verdict.alarms[0].since_number).sum()) or None

    def draw(drawing: Figure) -> None:
        """Draw the gap of each period above its evidence, on a common axis of periods."""
        upper, lower = drawing.subplots(2, 1, height_ratios=[3, 2], sharex=True)
        gap_timeline(gap.tolist(), margin.tolist(), since=since, ax=upper)
        evidence_timeline(evidence.tolist(), since=since, ax=lower)
        upper.set(xlabel="")

    gap_texts = [f"{name}: gap {_percent(value)}" for name, value in zip(names, gap, strict=True)]
    hover_points: list[report.HoverPoint] = []
    body: list[list[str]] = []
    for i, name in enumerate(names):
        hover_points.append(report.HoverPoint(i + 1.0, float(gap[i]), f"{gap_texts[i]}, {rows[i]:,.0f} rows"))
        size = f"{rows[i]:,.0f}" + (f" of {predicted[i]:,}" if rows[i] < predicted[i] else "")
        shares = [f"{100 * (total[i] / rows[i]):.1f} %" for total in (confidence, outcomes)]
        body.append([name, size, *shares, _percent(gap[i]), f"{100 * margin[i]:.2f} %", f"{evidence[i]:.2f}"])
    alt_text = f"Gap by period. {'; '.join(gap_texts)}."
    figure = report.figure(draw, alt_text, caption="The last periods", size=(7.0, 3.8), hover_points=hover_points)
    head = ["period", "rows", "confidence", "outcome", "gap", "calibrated: within", "evidence / alarm"]
    table = report.table(head, body, caption="periods", highlighted=(evidence >= 1).tolist())
    return report.join_html([figure, report.note(_PERIODS_NOTE), table])


def _tests_section(verdict: WatchVerdict) -> Markup:
    """Return the table of tests: the test of the event, then the tests with the strongest evidence."""
    if not verdict.tests:
        return report.note("There are no predictions yet.")
    listed = verdict.strongest_tests(MAX_LISTED_TESTS)
    explanation = (
        f"An alarm needs evidence of {1 / verdict.alpha:,.0f} to 1. A calibrated model ever reaches it, in any of the "
        f"tests, with probability at most {100 * verdict.alpha:g} %. The intervals hold at all times at once, each "
        "for its own test, and cover the average over all rows of the epoch."
    )
    if hidden := len(verdict.tests) - len(listed):
        explanation += f" {hidden:,} tests with less evidence are not listed."
    head = ["test", "rows", "gap", "95 % at all times", "Brier score of the event", "evidence", "state"]
    body = [_test_cells(test) for test in listed]
    table = report.table(head, body, caption="tests", highlighted=[test.alarm for test in listed])
    return report.join_html([table, report.note(explanation)])


def _test_cells(test: TestState) -> list[str]:
    """Return the cells of a test in the table, in the order of its columns."""
    score = test.brier
    return [
        test.title,
        f"{test.rows:,}",
        _percent(test.gap.value),
        f"{_percent(test.gap.low)} to {_percent(test.gap.high)}",
        f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})" if test.rows else "",
        test.evidence_text,
        f"{test.pattern}, since row {test.since_number:,}" if test.alarm else "no alarm",
    ]


def _percent(value: float) -> str:
    """Return a gap in percent with its sign, or an empty text for NaN."""
    return "" if math.isnan(value) else f"{100 * value:+.2f} %"
