"""Means of new predictions that are estimated without labels, each with its assumption."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from calibrant._core.numbers import format_percent
from calibrant._core.text import display_name
from calibrant.metrics import Sample, ScoreRange, student_quantile
from calibrant.monitoring._features import (
    confidences,
    row_weights,
    score_title,
    states_confidence,
)
from calibrant.predictions import Predictions
from calibrant.predictions.events import evaluated_event

ESTIMATE_LEVEL = 0.90
MAX_SHARE_CLASSES = 20  # more classes have no estimated shares

Assumption = Literal["label shift", "covariate shift"]
LABEL_SHIFT: Assumption = "label shift"
COVARIATE_SHIFT: Assumption = "covariate shift"
ASSUMPTION_SENTENCES: dict[Assumption, str] = {
    LABEL_SHIFT: "Label shift: only the class shares have changed; within each class, predictions are as before.",
    COVARIATE_SHIFT: "Covariate shift: rows with the same probabilities are right as often as in the reference.",
}
# Scores at the outcomes 0 and 1, by confidence c
_SCORES: dict[str, Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]] = {
    "accuracy": lambda c: (np.zeros_like(c), np.ones_like(c)),
    "signed_gap": lambda c: (c, c - 1),
    "event_brier": lambda c: (c**2, (1 - c) ** 2),
    "share": lambda c: (np.zeros_like(c), np.ones_like(c)),
}


@dataclass(frozen=True)
class Estimate:
    """A mean of the new predictions that is estimated without labels."""

    name: str  # "accuracy", "signed_gap", "event_brier" or "share"
    class_name: str | None  # of a share
    assumption: Assumption
    reference: float  # the mean of the reference, with labels
    value: float
    low: float
    high: float
    is_confidence: bool = True  # whether the event is that the prediction is right, and not a class

    @property
    def title(self) -> str:
        """The title of a score, or the class of a share."""
        if self.class_name is not None:
            is_number = self.class_name.isdecimal()
            return f"share of class {self.class_name}" if is_number else f"share of {display_name(self.class_name)}"
        return score_title(self.name, is_confidence=self.is_confidence)

    @property
    def cells(self) -> tuple[str, str, str]:
        """The reference, the value and its limits as texts."""
        digits = "{:.4f}".format if self.name == "event_brier" else format_percent
        return digits(self.reference), digits(self.value), f"{digits(self.low)} to {digits(self.high)}"


@dataclass(frozen=True, eq=False)
class Target:
    """A mean score to estimate: that of base + slope * outcome over the new rows, whose outcomes are unknown."""

    name: str
    class_name: str | None
    event: str | int  # whose outcome counts: "top", or the index of a class
    outcome: np.ndarray  # of the event in the reference (n)
    weights: np.ndarray  # of the rows of the reference (n)
    base: np.ndarray  # score of the reference at the outcome 0 (n)
    slope: np.ndarray  # score at the outcome 1, less the base (n)
    new_base: np.ndarray  # of the new rows (m)
    new_slope: np.ndarray  # (m)
    new_weights: np.ndarray  # (m)
    is_confidence: bool  # whether the event is that the prediction is right
    level: float  # of the limits

    @property
    def is_frequency(self) -> bool:
        """Whether the score is the frequency of the event, or a number minus it."""
        return self.name != "event_brier"

    def estimate(self, assumption: Assumption, value: float, precision: "Precision") -> Estimate:
        """Return the estimate, with the wider of two limits: by Student's t, and of a bounded mean, for rare outcomes.

        Both hold the value, and stay in the range that the score can have in the new rows.
        """
        ends = self.new_base, self.new_base + self.new_slope
        score_range = ScoreRange(
            *(float(np.average(f(*ends), weights=self.new_weights)) for f in (np.minimum, np.maximum))
        )
        center, error = precision.center, precision.error
        margin = student_quantile(self.level, precision.degrees) * error if error > 0 else 0.0
        mean = min(max(center, score_range.low), score_range.high)
        sample = Sample(precision.size, mean, precision.variance, error, precision.size - 1)
        bounded = sample.bounded_interval(score_range, self.level)
        low, high = min(bounded.low, center - margin, value), max(bounded.high, center + margin, value)
        return Estimate(
            name=self.name,
            class_name=self.class_name,
            assumption=assumption,
            reference=float(np.average(self.base + self.slope * self.outcome, weights=self.weights)),
            value=value,
            low=max(low, score_range.low),
            high=min(high, score_range.high),
            is_confidence=self.is_confidence,
        )


@dataclass(frozen=True)
class Precision:
    """The precision of an estimated mean."""

    center: float  # the unbiased estimate, which may leave the range of the mean
    error: float  # its standard error
    degrees: float  # of freedom of the standard error
    size: float  # number of independent rows that determine the mean
    variance: float  # of slope * outcome among rows


def build_targets(reference: Predictions, new: Predictions, level: float = ESTIMATE_LEVEL) -> tuple[Target, ...]:
    """Return accuracy, signed gap and Brier score of the event that both predictions have, and the class shares.

    The share of a class is the frequency of the event that a row has this label, and the accuracy that of a right
    prediction. In stated confidences, the event is that the answer is right, so that its frequency is the accuracy.
    """
    event = reference.of
    names = reference.class_names or tuple(map(str, range(reference.k)))
    scores: list[tuple[str, str | int, str | None]] = [
        ("accuracy", event if states_confidence(reference) else "top", None),
        ("signed_gap", event, None),
        ("event_brier", event, None),
        *(("share", j, name) for j, name in enumerate(names) if reference.k <= MAX_SHARE_CLASSES),
    ]
    return tuple(_build_target(*score, reference, new, level) for score in scores)


def _build_target(
    name: str, event: str | int, class_name: str | None, reference: Predictions, new: Predictions, level: float
) -> Target:
    """Return the target of a score of an event."""
    reference, new = reference.with_event(event), new.with_event(event)
    (at_0, at_1), (new_at_0, new_at_1) = (_SCORES[name](confidences(p)) for p in (reference, new))
    return Target(
        name=name,
        class_name=class_name,
        event=event,
        outcome=reference.events.outcome.astype(float),
        weights=row_weights(reference),
        base=at_0,
        slope=at_1 - at_0,
        new_base=new_at_0,
        new_slope=new_at_1 - new_at_0,
        new_weights=row_weights(new),
        is_confidence=evaluated_event(reference).is_confidence,
        level=level,
    )
