"""Calibration of language models, from the logs of their evaluations. It never runs a language model."""

from calibrant.io.logs import LogRow, Outcome, choice_probabilities, find_stated_confidence, parse_confidence
from calibrant.language_models._conventions import (
    CONVENTIONS,
    Convention,
    PublishedValue,
    browsecomp_error,
    conventions,
    hle_error,
    simpleqa_f,
)
from calibrant.language_models._log import Answers, EvaluationLog
from calibrant.language_models._missing import Bounds, missing_confidence_bounds
from calibrant.language_models._rewards import confidence_reward, score_reward

__all__ = ["CONVENTIONS", "Answers", "Bounds", "Convention", "EvaluationLog", "LogRow", "Outcome", "PublishedValue"]
__all__ += [
    "browsecomp_error",
    "choice_probabilities",
    "confidence_reward",
    "conventions",
    "find_stated_confidence",
    "hle_error",
]
__all__ += ["missing_confidence_bounds", "parse_confidence", "score_reward", "simpleqa_f"]
