"""Kinds of events whose probability is evaluated: their classes, units, metrics and sentences.

To add a kind of event, such as "the claim is supported by its source" or "it rains", add an `EventKind` with its two
`classes` to `BINARY_KINDS`. Constructors, tables, reports and plots find it there, and cells of tables may spell its
classes.
"""

from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol, runtime_checkable

from calibrant._core.text import display_name

SCORE_METRICS = ("accuracy", "nll", "brier")
CALIBRATION_METRICS = (
    *("signed_gap", "ece", "noise_floor", "adaptive_ece"),
    *("adaptive_noise_floor", "debiased_l2", "kuiper", "omnibus"),
)
TESTED_METRICS = ("signed_gap", "ece", "adaptive_ece", "debiased_l2", "kuiper")
# The event to evaluate: "top" (the predicted class is right), the index of a class, or "classes" (all of them)
EventSelector = Literal["top", "classes"] | int


@dataclass(frozen=True)
class EventKind:
    """An event whose probability is evaluated, with the words and metrics of its reports.

    Texts may contain `{name}`, the quoted name of the class, and `{k}`, the number of classes; `describe_event` fills
    them in. All other sentences of a report are templates that these words fit into.
    """

    kind: str
    title: str  # completes "Evaluated event: ..."
    over: str  # headline for probabilities that are too high; after "It " and `copula` it makes a sentence
    under: str  # the same for probabilities that are too low
    score: str  # noun of the predicted number, such as "confidence"
    scores: str  # its plural
    rate: str  # noun of the observed number, such as "accuracy"
    probability: str  # the predicted number in full: labels of axes and columns
    frequency: str  # the observed number in full
    outcome: str  # completes "65.9 % of the examples are ..."
    rows: tuple[str, ...]  # metrics of the table, in reading order
    tested_metrics: tuple[str, ...]  # metrics whose change is tested
    compared_metrics: tuple[str, ...]  # metrics that compare calibrators
    copula: str = ""  # "is " if `over` and `under` are adjectives
    population: str = "examples of {k} classes"
    unit: str = "example"
    plural: str = ""  # of the unit, if it is not the unit with an s
    cluster: str = "cluster"
    group: str = "group"
    hint: str = ""  # how to evaluate another event
    gap_title: str = "confidence minus accuracy"
    gap_meaning: str = "above 0: overconfident"
    is_confidence: bool = True  # whether the event is "the prediction is right", so that abstaining makes sense
    classes: tuple[str, str] | None = None  # names of the two classes without and with the event
    table_columns: tuple[str, ...] = ()  # columns of a table, in lower case, that hold this event's outcomes
    selector: EventSelector = "top"

    @property
    def units(self) -> str:
        """Plural of the unit."""
        return self.plural or f"{self.unit}s"

    @property
    def groups(self) -> str:
        """Plural of the group."""
        return f"{self.group}s"

    def count(self, n: int) -> str:
        """Return a number of rows, such as "1 example" or "2,000 examples"."""
        return f"{n:,} {self.unit if n == 1 else self.units}"

    def headline(self, direction: str | None) -> str:
        """Return the note or headline of a direction "over" or "under", or an empty text."""
        return {"over": self.over, "under": self.under}.get(direction or "", "")

    def predicate(self, direction: str | None) -> str:
        """Return the rest of a sentence that begins with "It ", or an empty text without a direction."""
        return f"{self.copula}{self.headline(direction)}" if direction else ""


TOP_CLASS = EventKind(
    kind="top",
    title="the predicted class is correct",
    over="overconfident",
    under="underconfident",
    copula="is ",
    score="confidence",
    scores="confidences",
    rate="accuracy",
    probability="confidence",
    frequency="accuracy",
    outcome="correct",
    rows=(
        *(*SCORE_METRICS, *CALIBRATION_METRICS, "smooth_ece", "classwise_ece"),
        *("confident_share", "confident_accuracy", "aurc"),
    ),
    tested_metrics=(*SCORE_METRICS, *TESTED_METRICS, "aurc"),
    compared_metrics=(*SCORE_METRICS, "ece", "adaptive_ece", "classwise_ece"),
)

ONE_CLASS = EventKind(
    kind="class",
    title="the class is {name}",
    over="overestimates the probability of {name}",
    under="underestimates the probability of {name}",
    score="probability",
    scores="probabilities",
    rate="frequency",
    probability="probability of {name}",
    frequency="frequency of {name}",
    outcome="{name}",
    rows=(
        *("accuracy", "nll", "event_brier", "brier"),
        *(*CALIBRATION_METRICS, "smooth_ece", "classwise_ece", "auroc"),
    ),
    tested_metrics=("accuracy", "nll", "event_brier", "brier", *TESTED_METRICS, "auroc"),
    compared_metrics=("accuracy", "nll", "event_brier", "ece", "adaptive_ece", "classwise_ece"),
    hint='To evaluate the predicted class instead, use of="top" (--of top).',
    gap_title="predicted minus observed",
    gap_meaning="above 0: the probability of {name} is overestimated",
    is_confidence=False,
    selector=1,
)

CORRECTNESS = replace(
    TOP_CLASS,
    kind="correct",
    title="the answer is correct",
    population="answers",
    unit="answer",
    rows=(
        *("nll", "event_brier", *CALIBRATION_METRICS, "smooth_ece"),
        *("confident_share", "confident_accuracy", "auroc", "aurc"),
    ),
    tested_metrics=("nll", "event_brier", *TESTED_METRICS, "auroc", "aurc"),
    compared_metrics=("nll", "event_brier", "ece", "adaptive_ece", "auroc"),
    classes=("wrong", "correct"),
    selector=1,
)

MATCH = replace(
    CORRECTNESS,
    kind="matched",
    title="the detection is matched",
    rate="precision",
    frequency="precision",
    outcome="matched",
    gap_title="confidence minus precision",
    population="detections",
    unit="detection",
    classes=("unmatched", "matched"),
    table_columns=("matched",),
)

PRESENCE = replace(
    ONE_CLASS,
    kind="present",
    title="the label is present",
    over="overestimates label probabilities",
    under="underestimates label probabilities",
    probability="label probability",
    frequency="label frequency",
    outcome="present",
    population="label decisions",
    unit="label decision",
    cluster="example",
    group="label",
    compared_metrics=("accuracy", "nll", "event_brier", "ece", "adaptive_ece"),
    hint="",
    gap_meaning="above 0: label probabilities are overestimated",
    classes=("absent", "present"),
)

# Of pairs in one order. A fit sees both orders, so that it learns no preference for either
PREFERENCE = replace(
    TOP_CLASS,
    kind="preferred",
    title="the chosen one of a pair has the higher score",
    outcome="ranked correctly",
    population="pairs",
    unit="pair",
    compared_metrics=(*SCORE_METRICS, "ece", "adaptive_ece"),
    classes=("rejected", "chosen"),
)

BINARY_KINDS = (CORRECTNESS, MATCH, PRESENCE)
KIND_BY_COLUMN = {column: event.kind for event in BINARY_KINDS for column in event.table_columns}
BINARY_EVENTS = tuple(event.classes for event in BINARY_KINDS if event.classes is not None)


@runtime_checkable
class Evaluated(Protocol):
    """Predictions or a summary: classes, their names, and the event to evaluate."""

    @property
    def of(self) -> EventSelector:
        """The event to evaluate."""
        ...

    @property
    def k(self) -> int:
        """Number of classes."""
        ...

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """Names of the classes."""
        ...


def evaluated_event(p: Evaluated) -> EventKind:
    """Return the event that predictions are evaluated by, with its words."""
    return describe_event(p.of, p.k, p.class_names)


def describe_event(selector: EventSelector, k: int, names: tuple[str, ...] | None = None) -> EventKind:
    """Return the event that predictions of `k` classes are evaluated by, with its texts filled in.

    With two classes, its metrics lack the class-wise ECE. With more, they lack the AUROC of a class, and there is no
    hint how to evaluate the predicted class instead, as it is the default.

    Args:
        selector: The event to evaluate.
        k: Number of classes.
        names: Class names, by which the events of `BINARY_KINDS` and pairs are recognized.
    """
    kinds = (event for event in (*BINARY_KINDS, PREFERENCE) if (event.selector, event.classes) == (selector, names))
    binary_kind = next(kinds, None)
    event = binary_kind or (TOP_CLASS if selector == "top" else ONE_CLASS)
    name = quote(names[selector]) if names and isinstance(selector, int) else f"class {selector}"
    templates = {field.name: getattr(event, field.name) for field in fields(event) if field.type is str}  # all texts
    texts = {field: template.format(name=name, k=k) for field, template in templates.items()}
    described = replace(event, selector=selector, **texts)
    if k == 2:
        return _without_metric(described, "classwise_ece")  # which is the ECE of both classes alike
    described = replace(described, hint="")
    return _without_metric(described, "auroc") if event is ONE_CLASS else described


def default_selector(
    selector: EventSelector, k: int, names: tuple[str, ...] | None = None, *, positive: int = 1
) -> EventSelector:
    """Return the event of reports: the positive one of two classes instead of "top", except for pairs."""
    return positive if selector == "top" and k == 2 and names != PREFERENCE.classes else selector


def _without_metric(event: EventKind, name: str) -> EventKind:
    """Return an event whose table and tests leave out a metric."""
    rows = tuple(metric for metric in event.rows if metric != name)
    tested_metrics = tuple(metric for metric in event.tested_metrics if metric != name)
    return replace(event, rows=rows, tested_metrics=tested_metrics)


def quote(name: str) -> str:
    """Return the name of a class or group as it appears in a sentence, in quotation marks."""
    return f"\N{LEFT DOUBLE QUOTATION MARK}{display_name(name)}\N{RIGHT DOUBLE QUOTATION MARK}"
