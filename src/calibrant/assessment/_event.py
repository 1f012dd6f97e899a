"""What is judged, in words: that the predicted class, or an answer, is right, a label holds, or a class is true."""

from dataclasses import dataclass, field, replace

from calibrant import metrics
from calibrant._text import name_text
from calibrant.metrics import About
from calibrant.predictions import CORRECTNESS, MATCHES, PRESENCE, Of, Predictions
from calibrant.types import InputError

SCORES = ("accuracy", "nll", "brier")
ERRORS = ("signed_gap", "ece", "noise_floor", "adaptive_ece", "adaptive_noise_floor", "debiased_l2", "kuiper")
PAIRED = ("accuracy", "nll", "brier", "signed_gap", "ece", "adaptive_ece", "debiased_l2", "kuiper")


@dataclass(frozen=True)
class Event:
    """An event, the words that speak of it, and the metrics by which it is judged unless others are asked for."""

    of: Of
    judged: str  # what a probability is of
    over: str  # what a model does that says too much,
    under: str  # and one that says too little
    verb: str  # it says 90 % on average and ... 80 % of the time
    said: str  # what the axes of a diagram, and the tiles of a report, are called
    happened: str
    outcome: str  # what predictions then were
    probabilities: str
    against: str  # heading of the diagrams
    among: str  # what there are many of
    rows: tuple[str, ...]  # of the table, in the order in which they should be read
    paired: tuple[str, ...]  # metrics whose change is tested; quick to measure again and again
    shown: tuple[str, ...] = (*SCORES, "ece", "adaptive_ece", "classwise_ece")  # by which calibrators are compared
    one: str = "example"  # what a row is,
    cluster: str = "cluster"  # what rows that depend on each other are of,
    group: str = "group"  # and what they are told apart by
    instead: str = ""  # what else could be judged
    own: dict[str, About] = field(default_factory=dict[str, About])  # where a metric's own words do not fit

    def about(self, name: str) -> About:
        """What to say of a row of the table."""
        return self.own.get(name) or PARTS.get(name) or metrics.about(name)

    def direction(self, low: float, high: float) -> str:
        """Say which way an interval of what is said minus what happens lies; nothing where it holds 0."""
        return self.over if low > 0 else self.under if high < 0 else ""

    def way(self, direction: str | None) -> str:
        """Say what a model does that says too much ("over") or too little ("under"); nothing of None."""
        return {"over": self.over, "under": self.under}.get(direction or "", "")


PARTS = {  # of the negative log-likelihood
    "refinement": About(
        "refinement part of NLL", "nats", meaning="what is left of NLL after cross-fitted recalibration"
    ),
    "calibration_loss": About(
        "calibration part of NLL", "nats", meaning="what cross-fitted recalibration takes off NLL"
    ),
}

TOP = Event(
    of="top",
    judged="that the predicted class is right",
    over="is overconfident",
    under="is underconfident",
    verb="is right",
    said="confidence",
    happened="accuracy",
    outcome="right",
    probabilities="confidences",
    against="Confidence against accuracy",
    among="examples",
    rows=(*SCORES, *ERRORS, "smooth_ece", "classwise_ece", "confident_share", "confident_accuracy", "aurc"),
    paired=(*PAIRED, "aurc"),
)


CONFIDENCE = replace(  # of answers, without classes
    TOP,
    of=1,
    judged="that the answer is right",
    outcome="right",
    among="answers",
    one="answer",
    rows=("nll", "event_brier", *ERRORS, "smooth_ece", "confident_share", "confident_accuracy", "auroc", "aurc"),
    paired=("nll", "event_brier", *PAIRED[3:], "auroc", "aurc"),
    shown=("nll", "event_brier", "ece", "adaptive_ece", "auroc"),
)


DETECTION = replace(
    CONFIDENCE,
    judged="that a detection is matched",
    verb="is matched",
    happened="precision",
    outcome="matched",
    against="Confidence against precision",
    among="detections",
    one="detection",
)


def event(of: Of, k: int, names: tuple[str, ...] | None = None) -> Event:
    """The words for what predictions of k classes, of these names, are judged by."""
    if of == 1 and names in (CORRECTNESS, MATCHES):
        return CONFIDENCE if names == CORRECTNESS else DETECTION
    if of == 1 and names == PRESENCE:
        return _of_labels()
    if of == "top":
        rows = TOP.rows if k > 2 else _without(TOP.rows, "classwise_ece")
        return replace(TOP, among=f"examples of {k} classes", rows=rows)
    return _of_class(of, k, quoted(names[of]) if names and isinstance(of, int) else f"class {of}")


def quoted(name: str) -> str:
    """Return the name of a class or group as it stands in a sentence."""
    return f"\N{LEFT DOUBLE QUOTATION MARK}{name_text(name)}\N{RIGHT DOUBLE QUOTATION MARK}"


def _of_class(of: Of, k: int, name: str) -> Event:
    gap = metrics.about("signed_gap")
    return Event(
        of=of,
        judged=f"the probability of {name}",
        over=f"overestimates {name}",
        under=f"underestimates {name}",
        verb=f"{name} is true",
        said=f"probability of {name}",
        happened=f"frequency of {name}",
        outcome=name,
        probabilities="probabilities",
        against="Probability against frequency",
        among=f"examples of {k} classes",
        rows=("accuracy", "nll", "event_brier", "brier", *ERRORS, "smooth_ece", "auroc" if k == 2 else "classwise_ece"),
        paired=("accuracy", "nll", "event_brier", *PAIRED[2:], *(("auroc",) if k == 2 else ())),
        shown=("accuracy", "nll", "event_brier", "ece", "adaptive_ece", "classwise_ece"),
        instead='; of="top" (--of top) judges whether the predicted class is right' if k == 2 else "",
        own={
            "signed_gap": replace(
                gap, title="probability minus frequency", meaning=f"above 0: {name} is overestimated"
            ),
            **{row: _of_probabilities(row) for row in ("noise_floor", "kuiper", "smooth_ece")},
        },
    )


def _of_labels() -> Event:
    """Of several labels per example, each of which holds or not."""
    return replace(
        _of_class(1, 2, "labels"),
        judged="that a label holds",
        verb="a label holds",
        said="probability",
        happened="frequency",
        outcome="true",
        among="label decisions",
        one="label decision",
        cluster="example",
        group="label",
        shown=("accuracy", "nll", "event_brier", "ece", "adaptive_ece"),
        instead="",
    )


def event_of(p: Predictions, of: str | int | None) -> Of:
    """Decide what is judged: as asked, else as the predictions say, else of two classes the probability of class 1."""
    k = p.k
    chosen = p.judging(of).of if of is not None else 1 if p.of == "top" and k == 2 else p.of
    if chosen == "classes":
        raise InputError(
            f'one event is judged at a time: give of="top" or a class, 0 .. {k - 1}', code="several_events"
        )
    return chosen


def _of_probabilities(name: str) -> About:
    about = metrics.about(name)
    return replace(about, meaning=about.meaning.replace("confidences", "probabilities"))


def _without(names: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(other for other in names if other != name)
