"""The page of a watch: the verdict, the last periods, and every test."""

import math
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from calibrant import report
from calibrant._text import display_name
from calibrant.metrics import Interval
from calibrant.monitoring._periods import Periods
from calibrant.monitoring._verdict import TestState, WatchVerdict
from calibrant.plots import evidence_timeline, gap_timeline

if TYPE_CHECKING:
    from calibrant.monitoring._watch import Watch

MAX_LISTED_TESTS = 50  # the test of the event included
MAX_SENTENCES = 8  # on alarms
MODEL_QUANTILE = 1.96  # standard deviations within which the gap of a calibrated model lies in 95 % of periods


class _Period(NamedTuple):
    """Statistics of a period."""

    name: str
    predicted: int  # rows, processed or waiting
    rows: int  # processed
    rows_before: int  # processed rows of earlier periods
    outcome: float  # mean
    confidence: float  # mean
    gap: float
    margin: float  # largest gap of a calibrated model in 95 % of periods
    evidence: float  # largest log wealth of any test, as a share of the threshold of an alarm


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
    periods = _processed_periods(watch.periods)[-num_periods:]
    if not periods:
        return report.note("No period has processed rows yet.")
    since = _first_deviating_period(watch.verdict, periods)

    def draw(drawing: Figure) -> None:
        upper, lower = drawing.subplots(2, 1, height_ratios=[3, 2], sharex=True)
        gaps, margins = [period.gap for period in periods], [period.margin for period in periods]
        gap_timeline(gaps, margins, since=since, ax=upper)
        evidence_timeline([period.evidence for period in periods], since=since, ax=lower)
        upper.set(xlabel="")

    gap_texts = [f"{period.name}: gap {_percent(period.gap)}" for period in periods]
    hover_points = [  # periods are counted from 1
        report.HoverPoint(float(i + 1), period.gap, f"{gap_texts[i]}, {period.rows:,} rows")
        for i, period in enumerate(periods)
    ]
    alt_text = f"Gap by period. {'; '.join(gap_texts)}."
    figure = report.figure(draw, alt_text, caption="The last periods", size=(7.0, 3.8), hover_points=hover_points)
    explanation = (
        "The gap is the frequency of the event minus its mean confidence. In 95 % of periods, a calibrated "
        "model has a gap inside the gray range; one period outside it is no alarm. Evidence is the largest "
        "logarithm of wealth of any test in the period, divided by that of an alarm; bars end at 2. The dotted "
        "line is the estimated start of a deviation."
    )
    head = ["period", "rows", "outcome", "confidence", "gap", "calibrated: within", "evidence / alarm"]
    body = [_period_cells(period) for period in periods]
    highlighted = [period.evidence >= 1 for period in periods]
    table = report.table(head, body, caption="periods", highlighted=highlighted)
    return report.join_html([figure, report.note(explanation), table])


def _period_cells(period: _Period) -> list[str]:
    """Return the row of a period."""
    rows = f"{period.rows:,}" + (f" of {period.predicted:,}" if period.rows < period.predicted else "")
    shares = [f"{100 * share:.1f} %" for share in (period.outcome, period.confidence)]
    return [period.name, rows, *shares, _percent(period.gap), f"{100 * period.margin:.2f} %", f"{period.evidence:.2f}"]


def _processed_periods(periods: Periods) -> list[_Period]:
    """Return the statistics of each period that has processed rows."""
    processed: list[_Period] = []
    for i, (rows, outcomes, confidence, variance, _) in enumerate(periods.sums.tolist()):  # as PERIOD_COLUMNS
        if rows:
            processed.append(
                _Period(
                    name=display_name(periods.names[i]),
                    predicted=int(periods.predicted[i]),
                    rows=int(rows),
                    rows_before=int(periods.first_row[i]),
                    outcome=outcomes / rows,
                    confidence=confidence / rows,
                    gap=(outcomes - confidence) / rows,
                    margin=MODEL_QUANTILE * math.sqrt(variance) / rows,
                    evidence=float(periods.peak[i]),
                )
            )
    return processed


def _first_deviating_period(verdict: WatchVerdict, periods: list[_Period]) -> float | None:
    """Return the number of the period, counted from 1, in which the deviation of the strongest alarm starts.

    None if there is no alarm, or the deviation starts before these periods.
    """
    if not verdict.alarm:
        return None
    since = verdict.alarms[0].since_number
    started = sum(period.rows_before < since for period in periods)  # periods that begin no later than the deviation
    return float(started) if started else None


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
    head = ["test", "rows", "gap", "95 % at all times", "Brier score", "evidence", "state"]
    body = [_test_cells(test) for test in listed]
    table = report.table(head, body, caption="tests", highlighted=[test.alarm for test in listed])
    return report.join_html([table, report.note(explanation)])


def _test_cells(test: TestState) -> list[str]:
    """Return the row of a test."""
    state = f"{test.pattern}, since row {test.since_number:,}" if test.alarm else "no alarm"
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
