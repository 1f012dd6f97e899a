"""The page of a watch: the verdict, the last periods, and every test."""

import math
from typing import TYPE_CHECKING

from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant import report
from calibrant._text import display_name
from calibrant.metrics import Interval
from calibrant.monitoring._verdict import TestState, WatchVerdict
from calibrant.plots import evidence_timeline, gap_timeline

if TYPE_CHECKING:
    from calibrant.monitoring._watch import Watch

MAX_LISTED_TESTS = 50  # the test of the event included
MAX_SENTENCES = 8  # on alarms
MODEL_QUANTILE = 1.96  # of the range of a calibrated model in one period


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
    rows, outcomes, confidence, variance, _ = periods.sums.T
    used = [i for i in range(len(periods)) if rows[i] > 0][-num_periods:]
    if not used:
        return report.note("No period has processed rows yet.")
    gap = [(outcomes[i] - confidence[i]) / rows[i] for i in used]
    margin = [MODEL_QUANTILE * math.sqrt(variance[i]) / rows[i] for i in used]
    share = [float(periods.peak[i]) for i in used]
    since = _first_deviating_period(watch, used)

    def draw(drawing: Figure) -> None:
        upper, lower = drawing.subplots(2, 1, height_ratios=[3, 2], sharex=True)
        gap_timeline(gap, margin, since=since, ax=upper)
        evidence_timeline(share, since=since, ax=lower)
        upper.set(xlabel="")

    names = [display_name(periods.names[i]) for i in used]
    gap_texts = [f"{name}: gap {100 * value:+.2f} %" for name, value in zip(names, gap, strict=True)]
    hover_points = [
        report.HoverPoint(float(n), float(value), f"{text}, {int(rows[i]):,} rows")
        for n, (i, value, text) in enumerate(zip(used, gap, gap_texts, strict=True), start=1)
    ]
    body = [
        [
            name,
            f"{int(rows[i]):,}" + (f" of {periods.predicted[i]:,}" if rows[i] < periods.predicted[i] else ""),
            f"{100 * outcomes[i] / rows[i]:.1f} %",
            f"{100 * confidence[i] / rows[i]:.1f} %",
            f"{100 * value:+.2f} %",
            f"{100 * half:.2f} %",
            f"{part:.2f}",
        ]
        for i, name, value, half, part in zip(used, names, gap, margin, share, strict=True)
    ]
    head = ["period", "rows", "outcome", "confidence", "gap", "calibrated: within", "evidence / alarm"]
    description = f"Gap by period. {'; '.join(gap_texts)}."
    return report.join_html(
        [
            report.figure(draw, description, caption="The last periods", size=(7.0, 3.8), hover_points=hover_points),
            report.note(
                "The gap is the frequency of the event minus its mean confidence. In 95 % of periods, a calibrated "
                "model has a gap inside the gray range; one period outside it is no alarm. Evidence is the largest "
                "logarithm of wealth of any test in the period, divided by that of an alarm; bars end at 2. The dotted "
                "line is the estimated start of a deviation."
            ),
            report.table(head, body, caption="periods", highlighted=[part >= 1 for part in share]),
        ]
    )


def _first_deviating_period(watch: "Watch", used: list[int]) -> float | None:
    """Return the period, as a position on the figure from 1, in which the strongest alarm's deviation starts.

    None if there is no alarm, or the deviation starts before the periods of the figure.

    Args:
        watch: The watch, whose alarms begin with the strongest.
        used: Indices of the periods of the figure, in order of time.
    """
    alarms = watch.verdict.alarms
    if not alarms:
        return None
    since_row = alarms[0].since_row or 0  # never None in an alarm
    positions = [n for n, i in enumerate(used, start=1) if watch.periods.first_row[i] <= since_row]
    return float(positions[-1]) if positions else None  # the last period that begins no later than the deviation


def _tests_section(verdict: WatchVerdict) -> Markup:
    """Return the table of tests: first the test of the event, then those with the strongest evidence."""
    if not verdict.tests:
        return report.note("There are no predictions yet.")
    event_test, *further_tests = verdict.tests
    listed = [event_test, *sorted(further_tests, key=lambda test: -test.log10_evidence)[: MAX_LISTED_TESTS - 1]]
    head = ["test", "rows", "gap", "95 % at all times", "Brier score", "evidence", "state"]
    body = [_test_cells(test) for test in listed]
    explanation = (
        f"An alarm needs evidence of {1 / verdict.alpha:,.0f} to 1. A calibrated model ever reaches it, in any of the "
        f"tests, with probability at most {100 * verdict.alpha:g} %. The intervals hold at all times at once, each "
        "for its own test, and cover the average over all rows of the epoch."
    )
    hidden = len(verdict.tests) - len(listed)
    parts = [report.table(head, body, caption="tests", highlighted=[test.alarm for test in listed])]
    parts.append(report.note(explanation + (f" {hidden:,} tests with less evidence are not listed." if hidden else "")))
    return report.join_html(parts)


def _test_cells(test: TestState) -> list[str]:
    """Return the row of a test."""
    state = f"{test.pattern}, since row {(test.since_row or 0) + 1:,}" if test.alarm else "no alarm"
    return [
        test.title,
        f"{test.rows:,}",
        _percent(test.gap.value),
        f"{_percent(test.gap.low)} to {_percent(test.gap.high)}",
        "" if test.brier is None else _score_text(test.brier),
        test.evidence_text,
        state,
    ]


def _score_text(score: Interval) -> str:
    """Return a score with its limits, or an empty text without rows."""
    return "" if math.isnan(score.value) else f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})"


def _percent(value: float) -> str:
    """Return a gap in percent with its sign, or an empty text for NaN."""
    return "" if math.isnan(value) else f"{100 * value:+.2f} %"
