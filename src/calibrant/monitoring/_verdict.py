"""What a watch shows so far: alarms, confidence sequences, and texts about them."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from calibrant._core.numbers import format_level, format_percent
from calibrant._core.text import display_name
from calibrant.metrics import Interval
from calibrant.monitoring._bets import BETS
from calibrant.monitoring._intervals import mean_sequence
from calibrant.monitoring._rows import UNKNOWN_LABEL
from calibrant.reports.document import Document, Section, Table
from calibrant.reports.result import Reportable

if TYPE_CHECKING:
    from calibrant.monitoring._watch import Watch

SEQUENCE_LEVEL = 0.95
MAX_LISTED_TESTS = 50  # the test of the event included
MAX_PRINTED_TESTS = 10
MAX_SENTENCES = 8  # on alarms
MAX_LOG10_PLAIN = 6.0  # that is written without an exponent


@dataclass(frozen=True)
class TestState:
    """The state of a test of the event in all rows, a class or a group."""

    __test__ = False  # no test for pytest

    kind: Literal["event", "class", "group"]
    name: str
    rows: int
    weight: float  # share of alpha
    log10_evidence: float  # largest wealth so far times the weight; an alarm needs log10(1 / alpha)
    gap: Interval  # mean confidence minus mean outcome, predicted minus observed; limits at all times
    brier: Interval  # of the event, class or group: mean squared difference of confidence and outcome
    alarm_row: int | None  # number of rows when the alarm was raised
    since_row: int | None  # estimated first row of the deviation, counted from 0, if there is an alarm
    since: str | None  # the period of that row, if it is still known
    pattern: str | None  # how confidences deviate, such as "too high"

    @property
    def alarm(self) -> bool:
        """Whether the test has raised an alarm."""
        return self.alarm_row is not None

    @property
    def since_number(self) -> int:
        """Number of the row since which confidences deviate, counted from 1, of a test with an alarm."""
        assert self.since_row is not None  # set with the alarm
        return self.since_row + 1

    @property
    def evidence_text(self) -> str:
        """The evidence as a factor, such as "0.56", "135" or "10^22.2"."""
        if self.log10_evidence > MAX_LOG10_PLAIN:
            return f"10^{self.log10_evidence:.1f}"
        evidence = 10**self.log10_evidence
        return f"{evidence:,.0f}" if evidence >= 10 else f"{evidence:.2g}"

    @property
    def cells(self) -> list[str]:
        """The cells of the table of tests."""
        score = self.brier
        return [
            self.title,
            f"{self.rows:,}",
            format_gap(self.gap.value),
            f"{format_gap(self.gap.low)} to {format_gap(self.gap.high)}",
            f"{score.value:.3f} ({score.low:.3f} to {score.high:.3f})" if self.rows else "",
            self.evidence_text,
            f"{self.pattern}, since row {self.since_number:,}" if self.alarm else "no alarm",
        ]

    @property
    def title(self) -> str:
        """The rows and event that are tested, for display."""
        return display_name(self.name) if self.kind == "event" else f"{self.kind} {display_name(self.name)}"


@dataclass(frozen=True)
class WatchVerdict(Reportable):
    """The result of a watch after the processed rows."""

    alarm: bool
    alpha: float  # probability that a calibrated model ever raises an alarm
    epoch: int
    rows: int  # processed
    pending: int  # rows that wait for labels of their own or of earlier rows, or for a block of ten
    unlabeled: int  # of these, rows without a label
    given_up: int  # rows that were left out as their labels did not come
    tests: tuple[TestState, ...]  # the event first
    level: float = SEQUENCE_LEVEL  # of the confidence sequences

    @property
    def alarms(self) -> tuple[TestState, ...]:
        """The tests that have raised an alarm, the strongest evidence first."""
        return tuple(sorted((test for test in self.tests if test.alarm), key=lambda test: -test.log10_evidence))

    @property
    def event(self) -> TestState:
        """The test of all rows."""
        return self.tests[0]

    def strongest_tests(self, limit: int) -> list[TestState]:
        """Return the test of all rows, and then the tests with the strongest evidence, `limit` in total."""
        event_test, *further_tests = self.tests
        return [event_test, *sorted(further_tests, key=lambda test: -test.log10_evidence)[: limit - 1]]

    @property
    def sentences(self) -> tuple[str, ...]:
        """The verdict in sentences."""
        if not self.rows:
            return ("No rows processed yet.",)
        if not self.alarm:
            return (
                f"No alarm after {self.rows:,} rows.",
                f"A calibrated model ever raises one with probability at most {self.alpha:g}.",
            )
        return tuple(map(describe_alarm, self.alarms))

    def document(self) -> Document:
        """Return whether there is an alarm, the sentences on it, and the table of tests if any row was processed."""
        waiting = f"{self.pending:,} rows wait, {self.unlabeled:,} of them for their label."
        needed = f"Evidence of {1 / self.alpha:,.0f} raises an alarm."
        return Document(
            kind="Calibration watch",
            title="Alarm: the model is no longer calibrated" if self.alarm else "No alarm",
            notes=[*self.sentences[:MAX_SENTENCES], *([waiting] if self.pending else [])],
            sections=[Section("Tests", [self._tests_table()], legend=needed)] if self.rows else [],
            facts={
                "rows": f"{self.rows:,} processed, {self.pending:,} waiting ({self.unlabeled:,} without a label)",
                "epoch": f"{self.epoch}",
                "alpha": f"{self.alpha:g}",
            },
        )

    def numbers(self) -> dict[str, Any]:
        """Return the fields as builtin types, without limits of tests without rows."""
        content = asdict(self)
        for test in content["tests"]:
            test["alarm"] = test["alarm_row"] is not None
            if not test["rows"]:  # limits of NaN
                test["gap"] = test["brier"] = None
        return content

    def _tests_table(self) -> Table:
        """Return the table of tests: the test of the event, then the tests with the strongest evidence."""
        listed = self.strongest_tests(MAX_LISTED_TESTS)
        explanation = (
            "A calibrated model ever raises an alarm, in any of the tests, with probability at most "
            f"{100 * self.alpha:g} %. The intervals hold at all times at once, each for its own test, and cover the "
            "average over all rows of the epoch."
        )
        if hidden := len(self.tests) - len(listed):
            explanation += f" {hidden:,} tests with less evidence are not listed."
        head = [
            "test",
            "rows",
            "gap",
            f"{format_level(self.level)} at all times",
            "Brier score of the event",
            "evidence",
            "state",
        ]
        rows, marked = [test.cells for test in listed], [test.alarm for test in listed]
        return Table("tests", head, rows, marked=marked, note=explanation, max_text_rows=MAX_PRINTED_TESTS)

    def prometheus(self) -> str:
        """Return metrics in the text format of Prometheus, for the textfile collector."""
        lines: list[str] = []
        for name, text, kind, value in (
            ("alarm", "Whether any test has raised an alarm", "gauge", int(self.alarm)),
            ("epoch", "Number of resets plus 1", "gauge", self.epoch),
            ("rows_total", "Processed rows in this epoch", "counter", self.rows),
            ("pending_rows", "Rows that wait for labels", "gauge", self.pending),
            ("given_up_rows_total", "Rows left out as their labels did not come", "counter", self.given_up),
        ):
            lines += [*_prometheus_head(name, text, kind), f"calibrant_watch_{name} {value}"]
        for name, text, value_of in _PROMETHEUS_GAUGES:
            lines += _prometheus_head(name, text, "gauge")
            for test in self.tests:
                labels = f'kind="{test.kind}",name="{_escape_label(test.name)}"'
                lines.append(f"calibrant_watch_{name}{{{labels}}} {_prometheus_number(value_of(test))}")
        return "\n".join(lines) + "\n"


_PROMETHEUS_GAUGES: tuple[tuple[str, str, Callable[[TestState], float]], ...] = (  # of each test
    ("test_alarm", "Whether the test has raised an alarm", lambda test: float(test.alarm)),
    ("log10_evidence", "Evidence against calibration", lambda test: test.log10_evidence),
    ("gap", "Mean confidence minus mean outcome, predicted minus observed", lambda test: test.gap.value),
    ("gap_low", "Lower limit of the gap at all times", lambda test: test.gap.low),
    ("gap_high", "Upper limit of the gap at all times", lambda test: test.gap.high),
    ("event_brier", "Brier score of the event of the test", lambda test: test.brier.value),
)


def describe_alarm(test: TestState) -> str:
    """Return a sentence on an alarm."""
    rows = {"event": "all rows", "class": f"class {test.name}", "group": f"group {test.name}"}[test.kind]
    since = f"row {test.since_number:,}" + (f" ({test.since})" if test.since else "")
    return f"ALARM: confidences of {rows} are {test.pattern}, since about {since}; evidence {test.evidence_text} to 1."


def build_verdict(watch: "Watch", level: float) -> WatchVerdict:
    """Return the verdict of a watch, with confidence sequences of this level."""
    tests: list[TestState] = []
    if watch.k:  # after the first batch
        weights = watch.settings.weights.tolist()
        for i, (kind, name) in enumerate(_test_kinds(watch)):
            tests.append(_test_state(watch, i, kind=kind, name=name, weight=weights[i], level=level))
    return WatchVerdict(
        alarm=any(test.alarm for test in tests),
        alpha=watch.alpha,
        epoch=watch.epoch,
        rows=watch.rows,
        pending=len(watch.pending),
        unlabeled=int((watch.pending.labels == UNKNOWN_LABEL).sum()),
        given_up=watch.given_up,
        tests=tuple(tests),
        level=level,
    )


def _test_kinds(watch: "Watch") -> list[tuple[Any, str]]:
    """Return the kind and name of each test: the event, classes, groups.

    The event of a binary problem with class names is called by its class name alone.
    """
    names = watch.class_names or tuple(map(str, range(watch.k)))
    if not isinstance(watch.of, int):
        event = "top class"
    elif watch.k == 2 and watch.class_names:
        event = names[watch.of]
    else:
        event = f"class {names[watch.of]}"
    classes = [("class", names[j]) for j in watch.settings.classes]
    return [("event", event), *classes, *(("group", name) for name in watch.group_names or ())]


def _test_state(watch: "Watch", i: int, *, kind: Any, name: str, weight: float, level: float) -> TestState:
    """Return the state of test i of the evidence, whose kind, name and weight are as in `TestState`."""
    evidence = watch.evidence
    rows, residual, squared_residual, squared_brier = evidence.sums[i].tolist()  # as SUM_NAMES
    gap = mean_sequence(rows, residual, squared_residual, limits=(-1.0, 1.0), level=level)
    brier = mean_sequence(rows, squared_residual, squared_brier, limits=(0.0, 1.0), level=level)
    alarm_row = int(evidence.alarm_row[i]) if evidence.alarm_row[i] >= 0 else None
    since_row = None if alarm_row is None else int(evidence.peak_since[i])
    return TestState(
        kind=kind,
        name=name,
        rows=int(rows),
        weight=weight,
        log10_evidence=(float(evidence.peak[i]) + math.log(weight)) / math.log(10),  # from natural logarithms
        gap=gap,
        brier=brier,
        alarm_row=alarm_row,
        since_row=since_row,
        since=None if since_row is None else watch.periods.name_at(since_row),
        pattern=None if alarm_row is None else BETS[int(evidence.peak_bet[i])].description,
    )


def _prometheus_head(name: str, text: str, kind: str) -> list[str]:
    """Return the two comment lines of a metric: its meaning and its kind."""
    return [f"# HELP calibrant_watch_{name} {text}.", f"# TYPE calibrant_watch_{name} {kind}"]


def _escape_label(text: str) -> str:
    """Escape the three characters that Prometheus reads otherwise in the value of a label."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _prometheus_number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    return "NaN" if math.isnan(value) else f"{value:.9g}"


def format_gap(value: float) -> str:
    """Return a gap in percent with its sign, or an empty text for NaN."""
    return "" if math.isnan(value) else format_percent(value, sign="+")
