"""Numbers of one model: accuracy and abstention, accuracy at coverage, policies of answering, and subjects."""

from dataclasses import dataclass

import numpy as np
import torch

from calibrant.backend.bins import allow_rounding
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

    The answers to a question are a cluster, even if there is only one, so that copies of all answers change nothing.

    Raises:
        InputError: If there are several answers, all of them to one question.
    """
    events = p.events.merged  # one row per answer, with its confidence and score
    n = len(events)
    question = torch.arange(n) if events.clusters is None else events.clusters
    num_answers = torch.bincount(question)[question]  # (n), to the question of each answer
    if n > 1 and num_answers[0] == n:
        raise InputError(
            f"Expected answers to at least two questions, got {n:,} to one. Try a file in which the field id "
            "names each question.",
            code="one_question",
        )
    weights = 1 / num_answers.double()
    return Predictions.from_confidence(events.confidence, events.outcome, weights, clusters=question)


def answer_share(hits: np.ndarray, answers: Answers, level: float) -> Interval:
    """Return the mean of `hits`, a value in [0, 1] per answer, with its interval. Questions have equal weight."""
    _, question = np.unique(answers.question, return_inverse=True)  # numbered from 0 without gaps
    arrays = hits.astype(np.float64), answers.question_weights, question
    outcomes, weights, clusters = map(torch.from_numpy, arrays)
    return share_interval(outcomes, weights, level, clusters)


def coverage_rows(p: Predictions, level: float) -> tuple[CoverageRow, ...]:
    """Return the accuracy of the most confident answers, for shares of at least `COVERAGES`.

    Answers of equal confidence belong together, so that a share may be larger than asked for, and one row may stand for
    several shares.
    """
    curve = risk_coverage(p, level=level)
    assert curve.low is not None  # given a level, the curve has both bounds
    assert curve.high is not None
    thresholds = p.events.by_score.value.flip(0)  # distinct confidences, the highest first, as in the curve
    points = torch.searchsorted(curve.x, allow_rounding(curve.x.new_tensor(COVERAGES)))  # first with enough coverage
    points = points.clamp_max(len(curve.x) - 1).unique()
    low, high = 1 - curve.high, 1 - curve.low  # the accuracy is one minus the risk
    columns = [values[points].tolist() for values in (curve.x, thresholds, 1 - curve.y, low, high)]
    return tuple(CoverageRow(*row) for row in zip(*columns, strict=True))


def policy_rows(p: Predictions, level: float) -> tuple[PolicyRow, ...]:
    """Return the score of answering only with a confidence of at least each target.

    It is the net benefit of treating the answer as right above the threshold: the share of right answers minus
    t / (1 - t) times the share of wrong ones.
    """
    curve = net_benefit(p, thresholds=TARGETS, of=1, level=level)
    rows: list[PolicyRow] = []
    for i, target in enumerate(TARGETS):
        answered = _weighted_mean(p, p.events.confidence >= allow_rounding(target))
        score = Interval(float(curve.model[i]), float(curve.low[i]), float(curve.high[i]), level)
        rows.append(PolicyRow(target, answered, score, always=float(curve.treat_all[i])))
    return tuple(rows)


def _weighted_mean(p: Predictions, values: torch.Tensor) -> float:
    """Return the mean of a value per row, weighted as the predictions are."""
    w = p.weights if p.weights is not None else torch.ones(len(p), dtype=torch.float64)
    return float((w * values).sum() / w.sum())


def subject_rows(p: Predictions, source: Predictions, level: float) -> tuple[SubjectRow, ...]:
    """Return the rows of at most `MAX_SUBJECTS` subjects, the largest gap first, or none without subjects.

    Args:
        p: Predictions from the stated confidences.
        source: Predictions of the same answers with the subjects as groups.
        level: Probability that all intervals hold together.
    """
    if source.groups is None or source.group_names is None:
        return ()
    subjects = source.groups.unique().tolist()[:MAX_SUBJECTS]
    rows: list[SubjectRow] = []
    for i in subjects:
        part = p[source.groups == i]
        assert part.clusters is not None  # `stated_predictions` has set them: the questions
        gap = signed_gap.interval(part, level=level ** (1 / len(subjects)))  # all hold together (Sidak 1967)
        confidence = _weighted_mean(part, part.events.confidence)
        name, num_questions = source.group_names[i], len(part.clusters.unique())
        rows.append(SubjectRow(name, num_questions, accuracy=confidence - gap.value, confidence=confidence, gap=gap))
    return tuple(sorted(rows, key=lambda row: (-abs(row.gap.value), row.name)))
