"""Numbers of a card.

Of one model: accuracy and abstention, accuracy at coverage, policies of answering, subjects, and estimates from answers
without a grade. Of several models: their ranks on the questions that they share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant._core.grouping import group_pairs
from calibrant._core.kernels.bins import allow_rounding
from calibrant._core.lazy import LazyModule
from calibrant._core.numbers import format_percent, format_percent_range
from calibrant._core.types import InputError
from calibrant.decisions import net_benefit
from calibrant.language_models import Answers, EvaluationLog
from calibrant.metrics import Interval, share_interval, signed_gap
from calibrant.metrics.curves import risk_coverage
from calibrant.planning.few_labels import MIN_LABELS, accuracy_interval, gap_interval, rows_to_label
from calibrant.predictions import Predictions

fusion: Any = LazyModule("calibrant.language_models.fusion")  # slow to import

COVERAGES = (0.25, 0.5, 0.75, 0.9, 1.0)
TARGETS = (0.5, 0.75, 0.9)  # confidences at which an answer and "I do not know" are worth the same
MAX_SUBJECTS = 200
MIN_TIE_RANGE = 5e-5  # least range over orders of equal confidences that is shown: half a unit of the last digit
NUM_MULTIPLIER_DRAWS = 4000
MAX_DRAWN_ELEMENTS = 20_000_000  # in memory at once
_MIN_VARIANCE = 1e-24  # of the difference of two models' scores; less is rounding
NO_RANKS = "There are no ranks: the models do not share two graded questions of a task."
MIN_PRIOR_MODELS = 3
MAX_PLANNED_ANSWERS = 200
_SIGNAL = "confidence"


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
    """Return the event of predictions as stated confidences, in which every question has the total weight 1.

    The answers to a question are a cluster, even if there is only one, so that copies of all answers change nothing.

    Raises:
        InputError: If there are several answers, all of them to one question.
    """
    events = p.events.merged  # one row per answer, with its confidence and score
    n = len(events)
    question = np.arange(n) if events.clusters is None else events.clusters
    num_answers = np.bincount(question)[question]  # (n), to the question of each answer
    if n > 1 and num_answers[0] == n:
        raise InputError(
            f"Expected answers to at least two questions, got {n:,} to one. Try a file in which the field id "
            "names each question.",
            code="one_question",
        )
    weights = 1 / num_answers
    return Predictions.from_confidence(events.confidence, events.outcome, weights, clusters=question)


def answer_share(hits: np.ndarray, answers: Answers, level: float) -> Interval:
    """Return the mean of `hits` (n), a value in [0, 1] for each of the answers, with its interval at `level`.

    Every question has the same weight and is a cluster, however many answers it has.
    """
    _, question = np.unique(answers.question, return_inverse=True)  # numbered from 0 without gaps
    return share_interval(hits.astype(np.float64), answers.question_weights, level, question)


def coverage_rows(p: Predictions, level: float) -> tuple[CoverageRow, ...]:
    """Return the accuracy of the most confident answers, for shares of all answers of at least `COVERAGES`.

    Answers of equal confidence belong together, so that a share may be larger than asked for, and one row may stand for
    several shares. The limits of the accuracy hold with probability `level` for all shares at once.
    """
    curve = risk_coverage(p, level=level)
    assert curve.low is not None  # given a level, the curve has both bounds
    assert curve.high is not None
    thresholds = np.flip(p.events.by_score.value)  # distinct confidences, the highest first, as in the curve
    points = np.searchsorted(curve.x, allow_rounding(np.array(COVERAGES)))  # first with enough coverage
    points = np.unique(np.minimum(points, len(curve.x) - 1))  # rounding may leave the last share short of 1
    low, high = 1 - curve.high, 1 - curve.low  # the accuracy is one minus the risk
    columns = [values[points].tolist() for values in (curve.x, thresholds, 1 - curve.y, low, high)]
    return tuple(CoverageRow(*row) for row in zip(*columns, strict=True))


def policy_rows(p: Predictions, level: float) -> tuple[PolicyRow, ...]:
    """Return the score of answering only with a confidence of at least each target.

    For a target t, it is the net benefit of treating answers as right from the confidence t on: the share of those that
    are right, minus t / (1 - t) times the share of those that are wrong. Weights are those of the predictions.
    """
    curve = net_benefit(p, thresholds=TARGETS, of=1, level=level)  # class 1 is a right answer
    rows: list[PolicyRow] = []
    for i, target in enumerate(TARGETS):
        answered = _weighted_mean(p, p.events.confidence >= allow_rounding(target))
        score = Interval(float(curve.model[i]), float(curve.low[i]), float(curve.high[i]), level)
        rows.append(PolicyRow(target, answered, score, always=float(curve.treat_all[i])))
    return tuple(rows)


def _weighted_mean(p: Predictions, values: np.ndarray) -> float:
    """Return the mean of a value per row, weighted as the predictions are."""
    w = p.weights if p.weights is not None else np.ones(len(p))
    return float((w * values).sum() / w.sum())


def subject_rows(p: Predictions, source: Predictions, level: float) -> tuple[SubjectRow, ...]:
    """Return the rows of the `MAX_SUBJECTS` subjects with the most answers, the largest gap first, () without subjects.

    Args:
        p: Predictions from the stated confidences.
        source: Predictions of the same answers with the subjects as groups.
        level: Probability that all intervals hold together.
    """
    if source.groups is None or source.group_names is None:
        return ()
    counts = np.bincount(source.groups)
    subjects = [i for i in (-counts).argsort(kind="stable").tolist() if counts[i]][:MAX_SUBJECTS]
    rows: list[SubjectRow] = []
    for i in subjects:
        part = p[source.groups == i]
        assert part.clusters is not None  # `stated_predictions` has set them: the questions
        gap = signed_gap.interval(part, level=level ** (1 / len(subjects)))  # all hold together (Sidak 1967)
        confidence = _weighted_mean(part, part.events.confidence)  # the gap is this minus the accuracy
        name, num_questions = source.group_names[i], len(np.unique(part.clusters))
        rows.append(SubjectRow(name, num_questions, accuracy=confidence - gap.value, confidence=confidence, gap=gap))
    return tuple(sorted(rows, key=lambda row: (-abs(row.gap.value), row.name)))


def subjects_note(source: Predictions) -> tuple[str, ...]:
    """Return a sentence on the subjects that `subject_rows` leaves out, if there are any."""
    num_subjects = 0 if source.groups is None else len(np.unique(source.groups))
    if num_subjects <= MAX_SUBJECTS:
        return ()
    return (f"The {MAX_SUBJECTS} subjects with the most answers, of {num_subjects:,}, are listed.",)


# Ranks


@dataclass(frozen=True)
class RankInterval:
    """A model's mean score and the ranks that it may have."""

    model: str
    score: float
    best: int  # smallest rank in the interval
    worst: int

    @property
    def ranks_text(self) -> str:
        """The interval of ranks, or the single rank in it."""
        return f"{self.best}" if self.best == self.worst else f"{self.best} to {self.worst}"


@dataclass(frozen=True)
class Ranking:
    """Models in the order of a score, with simultaneous intervals of their ranks."""

    title: str
    questions: int  # that all models answered
    level: float
    rows: tuple[RankInterval, ...]  # the best first


def rank_models(
    title: str, scores: Mapping[str, Mapping[tuple[str, str], float]], *, higher_is_better: bool, level: float
) -> Ranking | None:
    r"""Return the ranking of models by mean score per question, or None below two shared questions.

    A model ranks below every model that is significantly better. The paired differences of all pairs are tested
    together by the multiplier bootstrap (Mogstad et al. 2024). Each draw gives every question a normal random weight;
    $Z_i$ is the weighted mean of model i's deviations from its mean score, and $s_{ij}$ the standard error of the
    difference of models i and j. The critical value is the quantile of $\max_{i<j} |Z_i - Z_j| / s_{ij}$ over draws.

    Args:
        title: Name of the score.
        scores: For each model, the score of each question.
        higher_is_better: Whether the best model has the highest score.
        level: Probability that all intervals hold.
    """
    names = list(scores)
    shared = sorted(set.intersection(*(set(scores[name]) for name in names)))
    if len(shared) < 2:
        return None
    x = np.array([[scores[name][question] for question in shared] for name in names])  # (models, questions)
    mean, sign = x.mean(1), 1.0 if higher_is_better else -1.0
    is_better = _significant_differences(sign * x, level)  # (i, j): i is better than j
    best_ranks = 1 + is_better.sum(0)  # after all models that are better
    worst_ranks = len(names) - is_better.sum(1)  # before all models that are worse
    order = sorted(range(len(names)), key=lambda i: (-sign * mean[i], names[i]))
    rows = [RankInterval(names[i], float(mean[i]), int(best_ranks[i]), int(worst_ranks[i])) for i in order]
    return Ranking(title, questions=len(shared), level=level, rows=tuple(rows))


def _significant_differences(x: np.ndarray, level: float) -> np.ndarray:
    """Return a matrix (models, models) bool: whether model i has a significantly higher mean than model j.

    The test is the multiplier bootstrap of `rank_models`.

    Args:
        x: Scores (models, questions).
        level: Probability that no difference is significant by chance.
    """
    num_models, n = x.shape
    mean = x.mean(1)
    deviations = x - mean[:, None]
    covariance = deviations @ deviations.T / (n - 1)
    variances = covariance.diagonal()
    difference_variance = variances[:, None] + variances - 2 * covariance  # Var(x_i - x_j)
    differs = difference_variance > _MIN_VARIANCE  # else the models have the same scores up to a constant
    error = np.sqrt(np.where(differs, difference_variance, 1.0) / n)  # standard errors; 1 avoids 0 / 0
    rng = np.random.default_rng(0)
    block = max(1, MAX_DRAWN_ELEMENTS // max(n, num_models**2))  # draws at a time
    max_differences: list[np.ndarray] = []  # of each draw, over all pairs, in standard errors
    for first in range(0, NUM_MULTIPLIER_DRAWS, block):
        num_draws = min(block, NUM_MULTIPLIER_DRAWS - first)
        z = rng.standard_normal((num_draws, n)) @ deviations.T / n  # (draws, models) deviations with random weights
        differences = np.abs(z[:, :, None] - z[:, None, :]) / error * differs
        max_differences.append(differences.max((1, 2)))
    critical_value = np.quantile(np.concatenate(max_differences), level)
    return differs & ((mean[:, None] - mean) / error > critical_value)


def question_means(questions: Sequence[tuple[str, str]], values: np.ndarray) -> dict[tuple[str, str], float]:
    """Return the mean of each question's values except NaN, by task and id. Questions with only NaN are left out.

    Args:
        questions: Task and id of the question of each answer, (n).
        values: A value for each answer (n).
    """
    pairs = zip(questions, values.tolist(), strict=True)
    grouped = group_pairs((question, value) for question, value in pairs if not math.isnan(value))
    return {question: sum(items) / len(items) for question, items in grouped.items()}


# Answers without a grade


@dataclass(frozen=True)
class UngradedAnswers:
    """Accuracy over all questions whose answer has a confidence, although only some are graded."""

    name: str
    graded: int
    ungraded: int
    confidence: float  # mean over all of them
    accuracy: Interval
    gap: Interval  # mean confidence minus accuracy
    prior_models: int  # from which the probabilities of being right are learned; 0: they are the confidences
    grade_next: tuple[tuple[str, str], ...]  # task and question, at most 200 in random order, of the ungraded answers

    @property
    def sentence(self) -> str:
        """The accuracy of all answers and what it is based on, or that fewer than `MIN_LABELS` grades tell nothing."""
        total, mean = f"{self.graded + self.ungraded:,}", format_percent(self.confidence)
        if self.graded < MIN_LABELS:
            count = "No answer is" if self.graded == 0 else f"Only {self.graded} of {total} answers are"
            return (
                f"{count} graded: nothing reveals the accuracy. The mean confidence of {mean} is what the model "
                "states, not how often it is right."
            )
        source = f"{self.prior_models} models of this card" if self.prior_models else "the confidences"
        return (
            f"{self.graded:,} of {total} answers with a confidence are graded. If they are a random sample, the "
            f"accuracy of all is {format_percent_range(self.accuracy.low, self.accuracy.high)}, by the grades and what "
            f"{source} tell of the rest."
        )


def ungraded_answers(logs: Mapping[str, EvaluationLog], level: float) -> tuple[UngradedAnswers, ...]:
    """Return the estimates of all models with answers that only lack a grade.

    Probabilities that answers are right are learned by a fusion from the completely graded models with scores 0 or 1,
    if there are at least `MIN_PRIOR_MODELS` of them. Else they are the confidences.

    Args:
        logs: Logs by name.
        level: Level of the intervals.
    """
    by_model = {name: _first_answers(Answers.from_rows(log.rows)) for name, log in logs.items()}  # one per question
    incomplete = {name: answers for name, answers in by_model.items() if answers.lacks_only_grade.any()}
    if not incomplete:
        return ()
    complete = [a for name, a in by_model.items() if name not in incomplete and len(a) and a.is_binary]
    prior = fusion.FusionPrior.from_fits(list(map(_fit, complete))) if len(complete) >= MIN_PRIOR_MODELS else None
    prior_models = 0 if prior is None else len(complete)
    return tuple(_estimate(name, answers, prior, prior_models, level) for name, answers in incomplete.items())


def _first_answers(answers: Answers) -> Answers:
    """Return the first answer with a confidence to each question, so that every question counts once.

    Answers that the log counts as not answered are left out, unless they only lack a grade.
    """
    rows = np.flatnonzero(answers.has_confidence | answers.lacks_only_grade)
    _, first = np.unique(answers.question[rows], return_index=True)
    return answers[rows[first]]


def _fit(answers: Answers) -> Any:
    """Fit the probability of being right to the confidences of one completely graded model."""
    return fusion.Fusion.fit(
        {_SIGNAL: answers.confidence}, answers.correct, groups=_subjects(answers), scale="probability"
    )


def _subjects(answers: Answers) -> list[str] | None:
    """Return the subject of each answer, or None if any has none."""
    return None if None in answers.subject else [str(name) for name in answers.subject]


def _estimate(name: str, answers: Answers, prior: Any, prior_models: int, level: float) -> UngradedAnswers:
    """Estimate accuracy and gap from the grades and each answer's probability of being right, and plan the grading.

    Args:
        name: Name of the model.
        answers: Its answers.
        prior: Learned from `prior_models` other models. None: the confidences are the probabilities.
        prior_models: Number of these models.
        level: Level of the intervals.
    """
    probability = answers.confidence
    if prior is not None:
        fitted = fusion.Fusion.fit({_SIGNAL: np.empty(0)}, np.empty(0), prior=prior)  # the prior alone, without labels
        probability = fitted.apply({_SIGNAL: answers.confidence}, _subjects(answers))
    rows = np.flatnonzero(answers.is_graded)
    accuracy = accuracy_interval(probability, rows, answers.correct[rows], level=level)
    return UngradedAnswers(
        name=name,
        graded=len(rows),
        ungraded=len(answers) - len(rows),
        confidence=float(answers.confidence.mean()),
        accuracy=accuracy,
        gap=gap_interval(answers.confidence, accuracy),
        prior_models=prior_models,
        grade_next=_answers_to_grade(answers, probability),
    )


def _answers_to_grade(answers: Answers, probability: np.ndarray) -> tuple[tuple[str, str], ...]:
    """Return task and question of the answers to grade next, given the probability (n) that each answer is right.

    They are spread evenly over the probabilities, and each answer has the same chance. Thus the first of them are a
    random sample, also together with earlier graded answers if those were drawn at random.
    """
    ungraded = np.flatnonzero(~answers.is_graded)
    count = min(len(ungraded), MAX_PLANNED_ANSWERS)
    # `rows_to_label` prefers uncertain rows, but gives all rows with probabilities up to 0.1 the same chance. A tenth
    # of the probabilities has the same order, along which it spreads the rows
    plan = rows_to_label(0.1 * probability[ungraded], count)
    return tuple(answers.question_names[i] for i in answers.question[ungraded[plan.rows]])
