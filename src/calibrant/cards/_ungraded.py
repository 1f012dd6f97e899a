"""What a card says of answers that have a confidence and no grade yet."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from calibrant._text import format_percent, format_percent_range
from calibrant.few_labels import MIN_LABELS, accuracy_interval, gap_interval, rows_to_label
from calibrant.fusion import Fusion, FusionPrior
from calibrant.language_models import Answers, EvaluationLog
from calibrant.metrics import Interval

MIN_PRIOR_MODELS = 3
MAX_PLANNED_ANSWERS = 200
_SIGNAL = "confidence"


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
                "states, not how often it is right. Grade the answers that the card lists, in their order."
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
    by_model = {name: _first_answers(Answers.from_rows(log.rows)) for name, log in logs.items()}
    incomplete = {name: answers for name, answers in by_model.items() if answers.lacks_only_grade.any()}
    if not incomplete:
        return ()
    complete = [a for name, a in by_model.items() if name not in incomplete and len(a) and a.is_binary]
    prior = FusionPrior.from_fits(list(map(_fit, complete))) if len(complete) >= MIN_PRIOR_MODELS else None
    prior_models = 0 if prior is None else len(complete)
    return tuple(_estimate(name, answers, prior, prior_models, level) for name, answers in incomplete.items())


def _first_answers(answers: Answers) -> Answers:
    """Return the first answer with a confidence to each question, so that every question counts once."""
    rows = np.flatnonzero(answers.has_confidence | answers.lacks_only_grade)
    _, first = np.unique(answers.question[rows], return_index=True)
    return answers[rows[first]]


def _fit(answers: Answers) -> Fusion:
    """Fit the probability of being right to the confidences of one completely graded model."""
    return Fusion.fit({_SIGNAL: answers.confidence}, answers.correct, groups=_subjects(answers), scale="probability")


def _subjects(answers: Answers) -> list[str] | None:
    """Return the subject of each answer, or None if any has none."""
    return None if None in answers.subject else [str(name) for name in answers.subject]


def _estimate(
    name: str, answers: Answers, prior: FusionPrior | None, prior_models: int, level: float
) -> UngradedAnswers:
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
        fusion = Fusion.fit({_SIGNAL: np.empty(0)}, np.empty(0), prior=prior)  # the prior alone, without labels
        probability = fusion.apply({_SIGNAL: answers.confidence}, _subjects(answers)).numpy()
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
    # `rows_to_label` prefers uncertain rows, but gives all rows with probabilities up to 0.1 the same chance
    plan = rows_to_label(0.1 * probability[ungraded], count)
    return tuple(answers.question_names[i] for i in answers.question[ungraded[plan.rows]])
