"""What is judged, in words: that the predicted class, or an answer, is right, a label holds, or a class is true."""

from dataclasses import dataclass, field, replace

from calibrant import metrics
from calibrant._text import display_name
from calibrant.metrics import MetricInfo
from calibrant.predictions import CORRECTNESS_CLASSES, MATCH_CLASSES, PRESENCE_CLASSES, EventSelector, Predictions
from calibrant.types import InputError

SCORE_METRICS = ("accuracy", "nll", "brier")
CALIBRATION_METRICS = (
    "signed_gap",
    "ece",
    "noise_floor",
    "adaptive_ece",
    "adaptive_noise_floor",
    "debiased_l2",
    "kuiper",
)
TESTED_METRICS = ("accuracy", "nll", "brier", "signed_gap", "ece", "adaptive_ece", "debiased_l2", "kuiper")


@dataclass(frozen=True)
class EventDescription:
    """An event, the words that speak of it, and the metrics by which it is judged unless others are asked for."""

    selector: EventSelector
    claim: str  # what a probability is of
    overestimation_phrase: str  # what a model does that says too much,
    underestimation_phrase: str  # and one that says too little
    occurrence_phrase: str  # it says 90 % on average and ... 80 % of the time
    probability_label: str  # what the axes of a diagram, and the tiles of a report, are called
    frequency_label: str
    outcome_phrase: str  # what predictions then were
    probabilities_label: str
    diagram_heading: str  # heading of the diagrams
    population: str  # what there are many of
    rows: tuple[str, ...]  # of the table, in the order in which they should be read
    tested_metrics: tuple[str, ...]  # metrics whose change is tested; quick to measure again and again
    compared_metrics: tuple[str, ...] = (
        *SCORE_METRICS,
        "ece",
        "adaptive_ece",
        "classwise_ece",
    )  # by which calibrators are compared
    unit: str = "example"  # what a row is,
    cluster: str = "cluster"  # what rows that depend on each other are of,
    group: str = "group"  # and what they are told apart by
    alternative_hint: str = ""  # what else could be judged
    metric_info_overrides: dict[str, MetricInfo] = field(
        default_factory=dict[str, MetricInfo]
    )  # where a metric's own words do not fit

    def metric_info(self, name: str) -> MetricInfo:
        """What to say of a row of the table."""
        return self.metric_info_overrides.get(name) or NLL_PARTS.get(name) or metrics.metric_info(name)

    def interval_phrase(self, low: float, high: float) -> str:
        """Say which way an interval of what is said minus what happens lies; nothing where it holds 0."""
        return self.overestimation_phrase if low > 0 else self.underestimation_phrase if high < 0 else ""

    def direction_phrase(self, direction: str | None) -> str:
        """Say what a model does that says too much ("over") or too little ("under"); nothing of None."""
        return {"over": self.overestimation_phrase, "under": self.underestimation_phrase}.get(direction or "", "")


NLL_PARTS = {  # of the negative log-likelihood
    "refinement": MetricInfo(
        "refinement part of NLL", "nats", meaning="what is left of NLL after cross-fitted recalibration"
    ),
    "calibration_loss": MetricInfo(
        "calibration part of NLL", "nats", meaning="what cross-fitted recalibration takes off NLL"
    ),
}

TOP_CLASS_EVENT = EventDescription(
    selector="top",
    claim="that the predicted class is right",
    overestimation_phrase="is overconfident",
    underestimation_phrase="is underconfident",
    occurrence_phrase="is right",
    probability_label="confidence",
    frequency_label="accuracy",
    outcome_phrase="right",
    probabilities_label="confidences",
    diagram_heading="Confidence against accuracy",
    population="examples",
    rows=(
        *SCORE_METRICS,
        *CALIBRATION_METRICS,
        "smooth_ece",
        "classwise_ece",
        "confident_share",
        "confident_accuracy",
        "aurc",
    ),
    tested_metrics=(*TESTED_METRICS, "aurc"),
)


CORRECTNESS_EVENT = replace(  # of answers, without classes
    TOP_CLASS_EVENT,
    selector=1,
    claim="that the answer is right",
    outcome_phrase="right",
    population="answers",
    unit="answer",
    rows=(
        "nll",
        "event_brier",
        *CALIBRATION_METRICS,
        "smooth_ece",
        "confident_share",
        "confident_accuracy",
        "auroc",
        "aurc",
    ),
    tested_metrics=("nll", "event_brier", *TESTED_METRICS[3:], "auroc", "aurc"),
    compared_metrics=("nll", "event_brier", "ece", "adaptive_ece", "auroc"),
)


MATCH_EVENT = replace(
    CORRECTNESS_EVENT,
    claim="that a detection is matched",
    occurrence_phrase="is matched",
    frequency_label="precision",
    outcome_phrase="matched",
    diagram_heading="Confidence against precision",
    population="detections",
    unit="detection",
)


def describe_event(of: EventSelector, k: int, names: tuple[str, ...] | None = None) -> EventDescription:
    """The words for what predictions of k classes, of these names, are judged by."""
    if of == 1 and names in (CORRECTNESS_CLASSES, MATCH_CLASSES):
        return CORRECTNESS_EVENT if names == CORRECTNESS_CLASSES else MATCH_EVENT
    if of == 1 and names == PRESENCE_CLASSES:
        return _multilabel_event()
    if of == "top":
        rows = TOP_CLASS_EVENT.rows if k > 2 else _remove(TOP_CLASS_EVENT.rows, "classwise_ece")
        return replace(TOP_CLASS_EVENT, population=f"examples of {k} classes", rows=rows)
    return _class_event(of, k, quote(names[of]) if names and isinstance(of, int) else f"class {of}")


def quote(name: str) -> str:
    """Return the name of a class or group as it stands in a sentence."""
    return f"\N{LEFT DOUBLE QUOTATION MARK}{display_name(name)}\N{RIGHT DOUBLE QUOTATION MARK}"


def _class_event(of: EventSelector, k: int, name: str) -> EventDescription:
    gap = metrics.metric_info("signed_gap")
    return EventDescription(
        selector=of,
        claim=f"the probability of {name}",
        overestimation_phrase=f"overestimates {name}",
        underestimation_phrase=f"underestimates {name}",
        occurrence_phrase=f"{name} is true",
        probability_label=f"probability of {name}",
        frequency_label=f"frequency of {name}",
        outcome_phrase=name,
        probabilities_label="probabilities",
        diagram_heading="Probability against frequency",
        population=f"examples of {k} classes",
        rows=(
            "accuracy",
            "nll",
            "event_brier",
            "brier",
            *CALIBRATION_METRICS,
            "smooth_ece",
            "auroc" if k == 2 else "classwise_ece",
        ),
        tested_metrics=("accuracy", "nll", "event_brier", *TESTED_METRICS[2:], *(("auroc",) if k == 2 else ())),
        compared_metrics=("accuracy", "nll", "event_brier", "ece", "adaptive_ece", "classwise_ece"),
        alternative_hint='; of="top" (--of top) judges whether the predicted class is right' if k == 2 else "",
        metric_info_overrides={
            "signed_gap": replace(
                gap, title="probability minus frequency", meaning=f"above 0: {name} is overestimated"
            ),
            **{row: _about_probabilities(row) for row in ("noise_floor", "kuiper", "smooth_ece")},
        },
    )


def _multilabel_event() -> EventDescription:
    """Of several labels per example, each of which holds or not."""
    return replace(
        _class_event(1, 2, "labels"),
        claim="that a label holds",
        occurrence_phrase="a label holds",
        probability_label="probability",
        frequency_label="frequency",
        outcome_phrase="true",
        population="label decisions",
        unit="label decision",
        cluster="example",
        group="label",
        compared_metrics=("accuracy", "nll", "event_brier", "ece", "adaptive_ece"),
        alternative_hint="",
    )


def select_event(p: Predictions, of: str | int | None) -> EventSelector:
    """Decide what is judged: as asked, else as the predictions say, else of two classes the probability of class 1."""
    k = p.k
    selector = p.with_event(of).of if of is not None else 1 if p.of == "top" and k == 2 else p.of
    if selector == "classes":
        raise InputError(
            f'one event is judged at a time: give of="top" or a class, 0 .. {k - 1}', code="several_events"
        )
    return selector


def _about_probabilities(name: str) -> MetricInfo:
    info = metrics.metric_info(name)
    return replace(info, meaning=info.meaning.replace("confidences", "probabilities"))


def _remove(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(item for item in names if item != name)
