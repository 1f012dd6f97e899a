"""Check predictions against requirements: each holds, is broken, or has too little data."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree

from calibrant._core.foreign import read_toml
from calibrant._core.lazy import special
from calibrant._core.numbers import format_level, format_number, format_percent
from calibrant._core.text import display_name, escape_invisible, join_names, shorten_repr
from calibrant._core.types import HighLevel, InputError, check_arguments
from calibrant.metrics import BinSums, Summary
from calibrant.monitoring._bounds import MetricBounds, calibrated_size_ratio, estimate_difference, metric_bounds
from calibrant.monitoring._constants import passing_constants
from calibrant.monitoring._features import used_groups
from calibrant.monitoring._pairing import ModelPair, pair_models
from calibrant.monitoring._requirement import ABSOLUTE_GAP, BOUNDED_BY_L2, Requirement, parse_requirement
from calibrant.monitoring._summed import (
    Source,
    check_summary,
    has_clusters,
    label_counts,
    num_examples,
    summed_groups,
    with_stated_answers,
)
from calibrant.planning import round_up
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.events import evaluated_event
from calibrant.predictions.folds import num_units
from calibrant.reports.document import Document, Section, Table
from calibrant.reports.result import Reportable

CheckStatus = Literal["holds", "broken", "too_little_data"]
EXIT_STATUSES: dict[CheckStatus, int] = {"holds": 0, "broken": 3, "too_little_data": 4}
STATUS_VERBS: dict[CheckStatus, tuple[str, str]] = {  # of one and of several requirements, the most severe first
    "broken": ("is broken", "are broken"),
    "too_little_data": ("has too little data", "have too little data"),
    "holds": ("holds", "hold"),
}
CHECK_LEVEL = 0.95
MAX_REQUIRED_SIZE = 1e12  # larger sizes are not reported
_POWER_QUANTILE = 0.8416  # normal quantile of a power of 0.8
Bound = Callable[[float], MetricBounds]  # from an error rate


@dataclass(frozen=True)
class Condition:
    """A requirement for all examples or for a group, and whether it holds."""

    requirement: str
    group: str | None
    status: CheckStatus
    value: float  # estimate of `metric`, or of its difference to the old model
    low: float  # bound that errs with probability 1 - level, as does the other one
    high: float
    n: int  # examples
    needed: int | None  # examples, or clusters, that decide it with a power of 0.8; None if decided or unknown
    unit: Literal["example", "cluster"]
    is_percent: bool
    is_upper: bool  # whether the requirement is an upper limit, as in "ece < 0.02"
    metric: str  # that the bound is about: debiased_l2 or abs(signed_gap) for an ECE, else the required one
    is_metric_required: bool  # whether it is the required metric

    @property
    def description(self) -> str:
        """The requirement, the value of its metric, and the bounds that decide it."""
        text = f"{self._title}: {self._value_text}"
        if self.status == "too_little_data":
            text += f", between {self._text(self.low)} and {self._text(self.high)}"
            return text if self.needed is None else f"{text}; {self.needed:,} {self.unit}s would decide"
        # "< limit" holds if `high` is below it and is broken if `low` is above it; "> limit" the other way round
        is_decided_by_high = self.is_upper if self.status == "holds" else not self.is_upper
        bound = f"at most {self._text(self.high)}" if is_decided_by_high else f"at least {self._text(self.low)}"
        return f"{text}, {bound}"

    @property
    def cells(self) -> list[str]:
        """The cells of the table: requirement, status, value, bounds, and how many examples would decide."""
        needed = "" if self.needed is None else f"{self.needed:,} {self.unit}s"
        bounds = f"{self._text(self.low)} to {self._text(self.high)}"
        return [self._title, self._verdict, self._value_text, bounds, needed]

    def __str__(self) -> str:
        return f"{self._verdict.upper():15}  {self.description}"

    @property
    def _title(self) -> str:
        """The requirement, with the group for which it must hold."""
        return self.requirement if self.group is None else f"{self.requirement} [{display_name(self.group)}]"

    @property
    def _verdict(self) -> str:
        """The status in words."""
        return self.status.replace("_", " ")

    @property
    def _value_text(self) -> str:
        """The value, after the name of its metric if that is not the required one."""
        return f"{'' if self.is_metric_required else f'{self.metric} '}{self._text(self.value)}"

    def _text(self, value: float) -> str:
        """Return a value of the metric in its unit."""
        return format_percent(value) if self.is_percent else format_number(value, 4)


@dataclass(frozen=True)
class CheckResult(Reportable):
    """The conditions of a check. Print it, or save it as .html, .json or .xml (JUnit)."""

    conditions: tuple[Condition, ...]
    level: float
    n: int
    event: str  # whose probability the calibration metrics are about, such as "the class is “1”"
    base_rate: float | None  # of the event if it is a class
    passing_constants: tuple[str, ...]  # "base rate" or "0": constant models that meet every requirement
    notes: tuple[str, ...]

    @property
    def status(self) -> CheckStatus:
        """Return "broken" if any condition is broken, "holds" if all hold, otherwise "too_little_data"."""
        return next(status for status in STATUS_VERBS if any(status == x.status for x in self.conditions))

    @property
    def exit_status(self) -> int:
        """Exit status of the command: 0 if all hold, 3 if any is broken, 4 if there is too little data."""
        return EXIT_STATUSES[self.status]

    def document(self) -> Document:
        """Return the status, a row per condition, and the notes."""
        rows = [condition.cells for condition in self.conditions]
        rate = "" if self.base_rate is None else f", base rate {format_percent(self.base_rate)}"
        table = Table(
            "conditions",
            ["requirement", "verdict", "value", "bounds", "would decide"],
            rows,
            marked=[condition.status == "broken" for condition in self.conditions],
            note=f"Each bound holds with probability {format_level(self.level)}. Marked requirements are broken.",
        )
        return Document(
            kind="Check of requirements",
            title=self._title(),
            notes=(f"{self.n:,} examples; event: {self.event}{rate}.", *self.notes),
            sections=[Section("Requirements", [table])],
        )

    def _title(self) -> str:
        """Return how many requirements hold, are broken or have too little data."""
        count, total = Counter(condition.status for condition in self.conditions), len(self.conditions)
        if count["holds"] == total > 1:
            return f"All {total} requirements hold"
        if total == 1:
            return f"The requirement {STATUS_VERBS[self.conditions[0].status][0]}"
        parts = [
            f"{count[status]} {verbs[count[status] > 1]}" for status, verbs in STATUS_VERBS.items() if count[status]
        ]
        return f"Of {total} requirements, {join_names(parts)}"

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as builtin types."""
        return {
            "status": self.status,
            "level": self.level,
            "n": self.n,
            "event": self.event,
            **({} if self.base_rate is None else {"base_rate": self.base_rate}),
            "passing_constants": list(self.passing_constants),
            "conditions": [asdict(condition) for condition in self.conditions],
            "notes": list(self.notes),
        }

    def junit(self) -> str:
        """Return a JUnit XML report: a broken condition is a failure, too little data an error."""
        count = Counter(condition.status for condition in self.conditions)
        totals = {"tests": len(self.conditions), "failures": count["broken"], "errors": count["too_little_data"]}
        attributes = {name: str(total) for name, total in totals.items()}
        root = ElementTree.Element("testsuites", attributes)
        suite = ElementTree.SubElement(root, "testsuite", {"name": "calibrant check", **attributes})
        for condition in self.conditions:
            name = condition.requirement + ("" if condition.group is None else f" [{condition.group}]")
            attributes = {"classname": "calibrant.check", "name": escape_invisible(name)}
            case = ElementTree.SubElement(suite, "testcase", attributes)
            tag = {"holds": "system-out", "broken": "failure", "too_little_data": "error"}[condition.status]
            text = escape_invisible(str(condition), allowed="\n")  # XML has no characters such as U+FFFE
            attributes = {} if condition.status == "holds" else {"type": condition.status, "message": text}
            ElementTree.SubElement(case, tag, attributes).text = text
        ElementTree.indent(root)
        return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"

    def writers(self) -> dict[str, Callable[[], str]]:
        """Return the writers of the page, the numbers and the JUnit report (.xml)."""
        return super().writers() | {".xml": self.junit}


@check_arguments
def check(
    predictions: Predictions | Summary,
    require: str | Sequence[str],
    *,
    old: Predictions | None = None,
    ids: Any = None,
    old_ids: Any = None,
    of: str | int | None = None,
    by_group: bool = False,
    level: HighLevel = CHECK_LEVEL,
) -> CheckResult:
    """Check predictions against requirements such as "ece < 0.02", "accuracy > 90%" or "nll < old + 0.005".

    "ece < 0.02" holds if the upper bound of the metric is below 0.02, and is broken if its lower bound is above 0.02.
    Each verdict is wrong with probability at most 1 - `level`. If neither bound decides, there is too little data. ECE
    and adaptive ECE are biased upward. Their upper bound is the upper bound of the debiased L2 error, which is at least
    as large as the error without bias. Their lower bound is the lower bound of the absolute signed gap, which is at
    most as large.

    With `by_group` a requirement must hold for all examples and in every group. All "broken" verdicts together are
    right with probability at least `level` (Holm 1979). A requirement holds only if it holds in every group, so that
    "holds" needs no correction.

    Args:
        predictions: Predictions to check, or a `Summary`, which has its own event, no `old`, and in groups no NLL or
            Brier score.
        require: One or more requirements: a metric, a comparison (<, <=, >, >=) and a number, a percentage or "old",
            "old + NUMBER" or "old - NUMBER".
        old: Predictions of the model that "old" stands for. They are paired by ids if there are any, else by order if
            all labels agree, and else taken as another sample.
        ids: Id of each row.
        old_ids: Id of each row of `old`.
        of: Event to evaluate, as in `measure`.
        by_group: Whether each requirement must hold in every group too.
        level: Probability that a bound holds.

    Raises:
        InputError: If a requirement cannot be read, or needs groups or an old model that are missing.

    >>> p = Predictions.from_confidence([0.8] * 500, [1] * 400 + [0] * 100)
    >>> print(check(p, ["accuracy > 0.7", "abs(signed_gap) < 0.01", "nll < 0.6"]))
    Of 3 requirements, 1 has too little data and 2 hold
    500 examples; event: the answer is correct.
    A model that gives every example the same probability, the base rate of the
    data, meets every requirement too. Try adding "auroc > 0.7", "accuracy > 90%" or
    "nll < old".
    <BLANKLINE>
      requirement             verdict            value              bounds
      accuracy > 0.7          holds            80.00 %  76.83 % to 82.90 %
      abs(signed_gap) < 0.01  too little data   0.00 %    0.00 % to 3.17 %
      nll < 0.6               holds             0.5004    0.4601 to 0.5444
    <BLANKLINE>
      requirement                would decide
      abs(signed_gap) < 0.01  12,000 examples
    """
    requirements = [parse_requirement(text) for text in ([require] if isinstance(require, str) else require)]
    if not requirements:
        raise InputError('Expected at least one requirement, got none. Try "ece < 0.02".', code="no_requirement")
    if old is None and any(requirement.is_relative for requirement in requirements):
        raise InputError("Expected predictions of an old model for 'old', got none. Try --against.", code="no_old")
    if isinstance(predictions, Summary):
        if old is not None:
            raise InputError("Expected no old model beside a summary, got one. Leave it out.", code="old_and_summary")
        check_summary(predictions, requirements, of, by_group=by_group)
        counts = label_counts(predictions)
        constants = () if counts is None else passing_constants(requirements, counts, by_group=by_group)
        return _conclude(requirements, with_stated_answers(predictions), None, constants, level, by_group=by_group)
    with as_predictions(predictions) as p:
        p = p.with_default_event(of)
        pair = None if old is None else pair_models(old.with_default_event(of), p, old_ids, ids)
        constants = passing_constants(requirements, p, by_group=by_group)
        return _conclude(requirements, p, pair, constants, level, by_group=by_group)


def _conclude(
    requirements: Sequence[Requirement],
    p: Predictions | Summary,
    pair: ModelPair | None,
    constants: tuple[str, ...],
    level: float,
    *,
    by_group: bool,
) -> CheckResult:
    """Return the conditions of all requirements. `constants` are the constant models that meet them."""
    conditions = [
        condition
        for requirement in requirements
        for condition in _check_requirement(requirement, p, pair, 1 - level, by_group=by_group)
    ]
    notes = (*(() if pair is None else (pair.note,)), *_gate_notes(requirements, p, constants))
    event = evaluated_event(p)
    rate = None if event.is_confidence else _base_rate(p)
    return CheckResult(tuple(conditions), level, num_examples(p), event.title, rate, constants, notes)


def _base_rate(p: Predictions | Summary) -> float:
    """Return the weighted frequency of the evaluated event."""
    by_score = p.by_score if isinstance(p, Summary) else p.events.by_score
    return float(by_score.correct.sum() / by_score.total_weight.sum())


def _gate_notes(
    requirements: Sequence[Requirement], p: Predictions | Summary, constants: tuple[str, ...]
) -> Iterator[str]:
    """Yield notes on requirements that a useless model meets."""
    gaps = [x for x in requirements if x.method.name == "signed_gap" and not x.is_relative]
    if len({x.is_upper for x in gaps}) == 1 and not any(x.is_absolute for x in gaps):
        yield f"{gaps[0].text} limits errors in one direction only. Try abs(signed_gap) < {abs(gaps[0].limit):g}."
    if constants:
        names = {"base rate": "the base rate of the data", "0": "0"}
        models = " or ".join(names[name] for name in constants)
        advice = '"accuracy > 90%"'  # a summary has neither ranks nor pairs of rows
        if isinstance(p, Predictions):
            advice = f'"auroc > 0.7", {advice} or "nll < old"'
        yield (
            f"A model that gives every example the same probability, {models}, meets every requirement too. Try adding "
            f"{advice}."
        )


def _check_requirement(
    requirement: Requirement, p: Predictions | Summary, pair: ModelPair | None, error_rate: float, *, by_group: bool
) -> Iterator[Condition]:
    """Yield the condition of all examples and, `by_group`, of every group.

    `pair` holds the old and the new model for a requirement relative to "old". The error rate of all "broken" verdicts
    together, and of each bound by itself, is `error_rate`.
    """
    evaluated: Any = pair if requirement.is_relative else p
    new = evaluated.new if requirement.is_relative else p  # a pair by id leaves out examples without a partner
    if isinstance(new, Summary):
        parts_by_group: dict[str | None, Any] = {None: new} | (summed_groups(new) if by_group else {})
    else:
        groups = [None, *used_groups(new)] if by_group else [None]
        parts_by_group = {group: evaluated if group is None else evaluated.select_group(group) for group in groups}
    parts = list(parts_by_group.values())
    bounds = [_bound(requirement, part) for part in parts]
    broken = _broken_parts(requirement, bounds, error_rate)
    for i, (group, part) in enumerate(parts_by_group.items()):
        examples = part.new if requirement.is_relative else part
        yield _build_condition(requirement, examples, bounds[i], group, error_rate, is_broken=i in broken)


def _bound(requirement: Requirement, part: Any) -> Bound:
    """Return the function from an error rate to the bounds of a metric or of its difference.

    `part` holds predictions, or the pair of models for a requirement relative to "old".
    """
    if not requirement.is_relative:
        return partial(metric_bounds, requirement, part)
    estimate = estimate_difference(requirement.method, part)
    name = requirement.method.name
    return lambda error_rate: MetricBounds.from_interval(estimate.interval(1 - 2 * error_rate), name)


def _broken_parts(requirement: Requirement, bounds: Sequence[Bound], error_rate: float) -> set[int]:
    """Return the indices of the parts that break the requirement, with family-wise error rate `error_rate`.

    This is the step-down procedure of Holm (1979): after each rejection, fewer parts share the error rate, which may
    reject more. `bounds` holds a function for each part that computes its bounds from an error rate.
    """
    broken: set[int] = set()
    while len(broken) < len(bounds):
        rate = error_rate / (len(bounds) - len(broken))  # shared by the parts that may still hold
        new = {i for i in range(len(bounds)) if i not in broken and _is_broken(requirement, bounds[i](rate))}
        if not new:
            break
        broken |= new
    return broken


def _is_broken(requirement: Requirement, bounds: MetricBounds) -> bool:
    """Return whether even the more favorable bound violates the limit. A bound of NaN, or at the limit, does not."""
    bound = bounds.low if requirement.is_upper else bounds.high
    return not math.isnan(bound) and not requirement.is_met(bound) and bound != requirement.limit


def _build_condition(
    requirement: Requirement, p: Source, bound: Bound, group: str | None, error_rate: float, *, is_broken: bool
) -> Condition:
    """Return the condition of a requirement, which holds if even the less favorable bound meets the limit.

    Args:
        requirement: The requirement.
        p: The examples, all or those of a group.
        bound: Function from an error rate to the bounds of the metric.
        group: The group, or None for all examples.
        error_rate: Error rate of each bound.
        is_broken: Whether the requirement is broken, which was decided for all groups together.
    """
    bounds = bound(error_rate)
    holds = requirement.is_met(bounds.high if requirement.is_upper else bounds.low)  # NaN meets no requirement
    status: CheckStatus = "broken" if is_broken else "holds" if holds else "too_little_data"
    # An upper limit is met by the upper bound, and broken by the lower one; the other way round for a lower limit
    uses_high = requirement.is_upper is not is_broken
    value, metric = (bounds.high_value, bounds.high_metric) if uses_high else (bounds.low_value, bounds.low_metric)
    if status == "too_little_data":  # between bounds of two metrics
        value = min(max(value, bounds.low), bounds.high) if math.isfinite(value) else value
    return Condition(
        requirement=requirement.text,
        group=group,
        status=status,
        value=value,
        low=bounds.low,
        high=bounds.high,
        n=num_examples(p),
        needed=_required_size(requirement, p, bounds, error_rate) if status == "too_little_data" else None,
        unit="cluster" if has_clusters(p) else "example",
        is_percent=requirement.metric.about.percent,
        is_upper=requirement.is_upper,
        metric=metric,
        is_metric_required=metric == (ABSOLUTE_GAP if requirement.is_absolute else requirement.method.name),
    )


def _required_size(requirement: Requirement, p: Source, bounds: MetricBounds, error_rate: float) -> int | None:
    r"""Return about how many examples, or clusters, decide a requirement with a power of 80 %.

    The metric is assumed to keep its value, and the width of its interval to shrink as $1 / \sqrt n$. An ECE is biased;
    for it, the result is the size with which a calibrated model meets the requirement.

    Returns:
        The size, or None if no size decides, an ECE has enough examples for a calibrated model already, or a summary
        does not know the number of clusters.
    """
    if isinstance(p, BinSums) and p.slots is not None:  # the number of clusters is unknown
        return None
    units = num_examples(p) if isinstance(p, BinSums) else num_units(p)
    if requirement.method.name in BOUNDED_BY_L2 and not requirement.is_relative:
        ratio = calibrated_size_ratio(requirement, p, error_rate)
        return round_up(units * ratio) if 1 < ratio < math.inf else None
    value = bounds.high_value
    distance = abs(requirement.limit - value)
    half_width = bounds.high - value if value < requirement.limit else value - bounds.low  # toward the limit
    if distance == 0:  # no size shows that the metric is on either side
        return None
    z = float(special.ndtri(1 - error_rate))  # normal quantile
    # A bound is z standard errors from the value, so that the present standard error is half_width / z. A power of
    # 80 % needs a standard error of distance / (z + _POWER_QUANTILE)
    error_ratio = half_width / distance * (1 + _POWER_QUANTILE / z)  # present over needed standard error
    needed = max(units * error_ratio**2, units + 1.0)  # the present number does not decide
    if not needed < MAX_REQUIRED_SIZE:  # or NaN
        return None
    return round_up(needed)


_FILE_KEYS: dict[str, tuple[Any, str]] = {  # types, and their description
    "require": (list, "a list of texts"),
    "level": ((float, int), "a number"),
    "of": ((str, int), "a name or index"),
    "by": (str, "a name"),
}


def read_requirements(path: str | Path) -> dict[str, Any]:
    """Read a TOML file of requirements: `require`, and optionally `level`, `of` and `by`.

    Raises:
        InputError: If the file is no TOML, or a key or type is unknown.
    """
    content = read_toml(path)
    for key, value in content.items():
        if key not in _FILE_KEYS:
            raise InputError(
                f"{path}: Expected keys among {', '.join(_FILE_KEYS)}, got {shorten_repr(key)}.", code="toml_key"
            )
        types, expected = _FILE_KEYS[key]
        if not isinstance(value, types) or (key == "require" and not all(isinstance(text, str) for text in value)):
            raise InputError(f"{path}: Expected {key} as {expected}, got {shorten_repr(value)}.", code="toml_value")
    if "level" in content:
        content["level"] = float(content["level"])
    return content
