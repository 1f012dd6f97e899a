"""Readers of evaluation logs of language models; each format is a module."""

from calibrant.io.logs.reading import is_log as is_log
from calibrant.io.logs.reading import list_logs as list_logs
from calibrant.io.logs.reading import read_logs as read_logs
from calibrant.io.logs.rows import LogOptions as LogOptions
from calibrant.io.logs.rows import LogRow as LogRow
from calibrant.io.logs.rows import Outcome as Outcome
from calibrant.io.logs.rows import rows_to_arrays as rows_to_arrays
from calibrant.io.logs.stated import find_stated_confidence as find_stated_confidence
from calibrant.io.logs.stated import parse_confidence as parse_confidence
