"""Calibration of language models, from the logs of their evaluations."""

from calibrant.io.logs import LogRow as LogRow
from calibrant.io.logs import Outcome as Outcome
from calibrant.io.logs import find_stated_confidence as find_stated_confidence
from calibrant.io.logs import parse_confidence as parse_confidence
from calibrant.language_models._answers import Answers as Answers
from calibrant.language_models._conventions import CONVENTIONS as CONVENTIONS
from calibrant.language_models._conventions import Convention as Convention
from calibrant.language_models._conventions import PublishedValue as PublishedValue
from calibrant.language_models._conventions import browsecomp_error as browsecomp_error
from calibrant.language_models._conventions import conventions as conventions
from calibrant.language_models._conventions import hle_error as hle_error
from calibrant.language_models._conventions import simpleqa_f as simpleqa_f
from calibrant.language_models._log import EvaluationLog as EvaluationLog
from calibrant.language_models._missing import Bounds as Bounds
from calibrant.language_models._missing import missing_confidence_bounds as missing_confidence_bounds
from calibrant.language_models._rewards import confidence_reward as confidence_reward
from calibrant.language_models._rewards import score_reward as score_reward

__all__ = ["CONVENTIONS", "Answers", "Bounds", "Convention", "EvaluationLog", "LogRow", "Outcome", "PublishedValue"]
__all__ += [
    "browsecomp_error",
    "confidence_reward",
    "conventions",
    "find_stated_confidence",
    "hle_error",
    "missing_confidence_bounds",
]
__all__ += ["parse_confidence", "score_reward", "simpleqa_f"]
