"""Readers of evaluation logs of language models, with a module per format."""

from calibrant.io.logs.confidences import find_stated_confidence, parse_confidence
from calibrant.io.logs.reading import is_log, list_logs, read_log, read_logs
from calibrant.io.logs.rows import LogOptions, LogRow, Outcome, rows_to_contents
from calibrant.io.logs.tokens import choice_probabilities

__all__ = ["LogOptions", "LogRow", "Outcome", "find_stated_confidence", "is_log", "list_logs", "parse_confidence"]
__all__ += ["choice_probabilities", "read_log", "read_logs", "rows_to_contents"]
