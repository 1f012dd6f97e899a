"""Calibration of language models, from the logs of their evaluations."""

from calibrant.io.logs import LogRow as LogRow
from calibrant.io.logs import Outcome as Outcome
from calibrant.io.logs import find_stated_confidence as find_stated_confidence
from calibrant.io.logs import parse_confidence as parse_confidence
from calibrant.language_models._log import EvaluationLog as EvaluationLog

__all__ = ["EvaluationLog", "LogRow", "Outcome", "find_stated_confidence", "parse_confidence"]
