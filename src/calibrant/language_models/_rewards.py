"""Rewards for training language models to state honest confidences: proper scoring rules between 0 and 1."""

import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, Literal

from calibrant._core.text import shorten_repr
from calibrant._core.types import Fraction, HalfOpenFraction, InputError, check_arguments
from calibrant.io.logs import find_stated_confidence, parse_confidence

RewardScore = Literal["brier", "log", "spherical"]
# The logarithmic score, which is unbounded otherwise, moves confidences into [0.01, 0.99]
MIN_LOG_CONFIDENCE = 0.01


@check_arguments
def score_reward(confidence: Fraction, is_correct: bool, score: RewardScore = "brier") -> float:
    r"""Return a proper score of a stated confidence c in an answer, from 0 (worst) to 1 (best).

    Let $p = c$ if the answer is right and $p = 1 - c$ otherwise. "brier" is $1 - (1 - p)^2$, "log" is
    $1 - \log p / \log 0.01$, and "spherical" is $p / \sqrt{p^2 + (1 - p)^2}$. The expected score is largest if c is the
    probability that the answer is right (Gneiting & Raftery 2007). "log" moves c into [0.01, 0.99], so that this
    probability must be in the same range.

    >>> score_reward(0.8, True), round(score_reward(0.8, False), 2)
    (0.96, 0.36)
    """
    p = confidence if is_correct else 1 - confidence
    if score == "brier":
        return round(1 - (1 - p) ** 2, 12)  # 0.96, not 0.9600000000000001
    if score == "log":
        clipped = min(max(p, MIN_LOG_CONFIDENCE), 1 - MIN_LOG_CONFIDENCE)
        return 1 - math.log(clipped) / math.log(MIN_LOG_CONFIDENCE)
    return p / math.hypot(p, 1 - p)


def read_stated_confidence(text: str) -> float | None:
    r"""Return the confidence that a text states, as by `find_stated_confidence`, or None without a readable one.

    >>> read_stated_confidence("Paris\nConfidence: 8/10")
    0.8
    """
    stated = find_stated_confidence(text)
    return None if stated is None else parse_confidence(stated)


@check_arguments
def confidence_reward(
    is_correct: Callable[..., Any],
    *,
    read_confidence: Callable[[str], float | None] = read_stated_confidence,
    score: RewardScore = "brier",
    accuracy_share: HalfOpenFraction = 0.5,
    unreadable: float = 0.0,
) -> Callable[..., list[float]]:
    r"""Return a reward function of completions, in the form that TRL's trainers call.

    The reward is `accuracy_share` for a right answer, plus 1 - `accuracy_share` times a proper score of the confidence.
    Whatever the answer, the confidence that maximizes the expected reward is the probability that the answer is right:
    training rewards neither false certainty nor doubt. With the Brier score and a share of 1/2 it is the reward of
    Damani et al. (2025), moved into [0, 1].

    Args:
        is_correct: Function of the text of a completion and, by their names, of those columns of the data set that are
            its further parameters. It returns True, False, or a credit in [0, 1], which is rewarded as the probability
            that the answer is right.
        read_confidence: Function from the text of a completion to its confidence in [0, 1], or None. Default: read all
            forms of `find_stated_confidence`, such as "Confidence: 85%" and `<confidence>0.85</confidence>`.
        score: "brier", "log" or "spherical"; see `score_reward`.
        accuracy_share: Share of the reward for right answers, in [0, 1).
        unreadable: Reward of a completion without a readable confidence. The smallest reward of any other is 0. If no
            completion of a batch has one, a warning says so once.

    Raises:
        InputError: If a setting is out of range, and by the reward function if a credit is.

    >>> reward = confidence_reward(lambda text, answer: answer in text)
    >>> reward(completions=["Paris\nConfidence: 90%", "Rome\nConfidence: 90%", "Rome"], answer=["Paris"] * 3)
    [0.995, 0.095, 0.0]
    """
    _, *column_parameters = inspect.signature(is_correct).parameters  # after the text of the completion
    has_warned = False

    def reward(completions: Sequence[Any], **columns: Any) -> list[float]:
        """Return the reward of each completion. Columns have an entry per completion."""
        nonlocal has_warned
        names = [name for name in column_parameters if name in columns]  # other parameters keep their defaults
        rewards: list[float] = []
        texts = list(map(_completion_text, completions))
        confidences = list(map(read_confidence, texts))
        if len(texts) > 1 and not has_warned and all(confidence is None for confidence in confidences):
            has_warned = True
            warnings.warn(
                f"None of {len(texts)} completions states a readable confidence, such as {shorten_repr(texts[0])}, so "
                f"that each has the reward {unreadable:g}. Try read_confidence= with a function that reads them.",
                stacklevel=2,
            )
        for i, (text, confidence) in enumerate(zip(texts, confidences, strict=True)):
            if confidence is None:
                rewards.append(unreadable)
                continue
            credit = _credit(is_correct(text, **{name: columns[name][i] for name in names}))
            score_if_right, score_if_wrong = (score_reward(confidence, outcome, score) for outcome in (True, False))
            expected_score = score_if_right * credit + score_if_wrong * (1 - credit)
            rewards.append(accuracy_share * credit + (1 - accuracy_share) * expected_score)
        return rewards

    reward.__name__ = f"{score}_confidence_reward"  # TRL logs rewards by their names
    return reward


def _credit(grade: Any) -> float:
    """Return a number in [0, 1] as it is, and any other value as 1 if it is true, else 0.

    Raises:
        InputError: If it is a text, or a number outside [0, 1].
    """
    grade = grade.item() if hasattr(grade, "item") else grade  # of an array or tensor with one number
    credit = float(grade) if isinstance(grade, Real) else float(bool(grade))
    if isinstance(grade, str) or not 0 <= credit <= 1:  # the text "no" would be true
        raise InputError(f"Expected is_correct to return True, False or a credit in [0, 1], got {grade}.", code="grade")
    return credit


def _completion_text(completion: Any) -> str:
    """Return a completion's text: the completion itself, or the last message in a list of messages."""
    if isinstance(completion, str):
        return completion
    return str(completion[-1]["content"])
