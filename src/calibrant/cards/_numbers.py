"""Numbers of one model: accuracy and abstention, accuracy at coverage, policies of answering, and subjects."""

import math
from dataclasses import dataclass

import numpy as np
import torch

from calibrant.backend.bins import PROBABILITY_ROUNDING
from calibrant.decisions import net_benefit
from calibrant.language_models import Answers
from calibrant.metrics import Interval, share_interval, signed_gap
from calibrant.metrics.curves import risk_coverage
from calibrant.predictions import Predictions
from calibrant.types import InputError

COVERAGES = (0.25, 0.5, 0.75, 0.9, 1.0)
TARGETS = (0.5, 0.75, 0.9)  # confidences at which an answer and "I do not know" are worth the same
MAX_SUBJECTS = 200
MIN_TIE_RANGE = 5e-5  # range over orders of ties that is shown


@dataclass(frozen=True)
class CoverageRow:
    """Accuracy of the most confident answers."""

    coverage: float  # share of the answers with a confidence
    threshold: float  # smallest confidence among them
    accuracy: float
    low: float  # limits that hold for all coverages at once
    high: float


@dataclass(frozen=True)
class PolicyRow:
    """Mean score per question if the model answers when its confidence is at least the target.

    A right answer counts 1, no answer 0, and a wrong answer -t / (1 - t) for the target t.
    """

    target: float
    answered: float  # share of questions
    score: Interval
    always: float  # score of answering always


@dataclass(frozen=True)
class SubjectRow:
    """Accuracy and confidence in one subject."""

    name: str
    questions: int
    accuracy: float
    confidence: float
    gap: Interval  # confidence minus accuracy, at a level at which all subjects' intervals hold together


def stated_predictions(p: Predictions) -> Predictions:
    """Return the event of predictions as stated confidences, in which every question counts once.

    The repeats of a question are a cluster, even of a single answer, so that copies of all answers change nothing.
    """
    events = p.events.merged
    clusters = torch.arange(len(events)) if events.clusters is None else events.clusters
    counts = torch.bincount(clusters)[clusters].double()
    if 1 < len(counts) == counts[0]:
        raise InputError(
            f"Expected answers to at least two questions, got {len(counts):,} to one. Try a file in which the field id "
            "names each question.",
            code="one_question",
        )
    return Predictions.from_confidence(events.confidence, events.outcome, 1 / counts, clusters=clusters)


def answer_share(hits: np.ndarray, answers: Answers, level: float) -> Interval:
    """Return the share of hits with its interval; questions count once and are clusters."""
    tensors = torch.from_numpy(hits.astype(np.float64)), torch.from_numpy(answers.question_weights)
    clusters = torch.from_numpy(np.unique(answers.question, return_inverse=True)[1])
    return share_interval(tensors[0], tensors[1], level, clusters)


def coverage_rows(p: Predictions, level: float) -> tuple[CoverageRow, ...]:
    """Return the accuracy of the most confident answers, for shares of at least `COVERAGES`.

    Answers of equal confidence belong together, so that a share may be larger than asked for.
    """
    curve, thresholds = risk_coverage(p, level=level), p.events.ties.value.flip(0)
    assert curve.low is not None
    assert curve.high is not None
    steps = torch.searchsorted(curve.x, curve.x.new_tensor(COVERAGES) * PROBABILITY_ROUNDING)
    columns = curve.x, thresholds, 1 - curve.y, 1 - curve.high, 1 - curve.low
    used_steps = steps.clamp_max(len(curve.x) - 1).unique()
    return tuple(CoverageRow(*row) for row in zip(*(column[used_steps].tolist() for column in columns), strict=True))


def policy_rows(p: Predictions, level: float) -> tuple[PolicyRow, ...]:
    """Return the score of answering from each target on."""
    curve = net_benefit(p, thresholds=TARGETS, of=1, level=level)
    w = p.weights if p.weights is not None else torch.ones(len(p), dtype=torch.float64)
    rows: list[PolicyRow] = []
    for i, target in enumerate(TARGETS):
        is_answered = p.events.confidence >= target * PROBABILITY_ROUNDING
        score = Interval(float(curve.model[i]), float(curve.low[i]), float(curve.high[i]), level)
        rows.append(PolicyRow(target, float((w * is_answered).sum() / w.sum()), score, float(curve.treat_all[i])))
    return tuple(rows)


def subject_rows(p: Predictions, source: Predictions, level: float) -> tuple[SubjectRow, ...]:
    """Return the rows of subjects, the largest gap first; intervals hold together (Sidak 1967).

    Args:
        p: Predictions from the stated confidences.
        source: Predictions of the same answers with the subjects as groups.
        level: Probability that all intervals hold together.
    """
    if source.groups is None or source.group_names is None:
        return ()
    names = [(i, source.group_names[i]) for i in source.groups.unique().tolist()][:MAX_SUBJECTS]
    rows: list[SubjectRow] = []
    for i, name in names:
        part = p[source.groups == i]
        assert part.clusters is not None
        gap = signed_gap.interval(part, level=level ** (1 / len(names)))
        w = part.weights if part.weights is not None else torch.ones(len(part), dtype=torch.float64)
        confidence = float((w * part.events.confidence).sum() / w.sum())
        rows.append(SubjectRow(name, len(part.clusters.unique()), confidence - gap.value, confidence, gap))
    return tuple(sorted(rows, key=lambda row: (-abs(row.gap.value), row.name)))


def finite_or_none(value: float) -> float | None:
    """Return a number for JSON, which has no NaN or infinity."""
    return value if math.isfinite(value) else None
