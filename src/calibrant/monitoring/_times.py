"""Times of predictions as seconds."""

from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from calibrant._text import shorten_repr
from calibrant.types import InputError


def to_seconds(times: Any) -> tuple[np.ndarray, bool]:
    """Return times in seconds, and whether they are dates: numbers, numpy or Python dates, or ISO texts.

    >>> to_seconds(["1970-01-01", "1970-01-01T00:01"])
    (array([ 0., 60.]), True)
    """
    values = np.asarray(times.to_numpy() if hasattr(times, "to_numpy") else times)
    if values.dtype == object and all(type(value) in (int, float) for value in values.ravel()):  # of pandas
        values = values.astype(np.float64)
    is_calendar = values.dtype.kind not in "iuf"  # integers or floats
    seconds = _parse_dates(values) if is_calendar else values.astype(np.float64)
    if seconds.ndim != 1 or not np.isfinite(seconds).all():
        raise InputError("Expected a time in every row, got rows without one.", code="time")
    return seconds, is_calendar


def _parse_dates(values: np.ndarray) -> np.ndarray:
    """Return dates or texts in seconds since 1970, with NaN if missing. Raise `InputError` for others."""
    try:
        if values.dtype.kind in "OU":  # Python objects or texts
            values = np.array([_parse_text(value) for value in values.tolist()], dtype="datetime64[us]")
        if values.dtype.kind != "M":  # numpy converts durations and truth values to dates, too
            raise TypeError
        dates = values.astype("datetime64[us]")
    except InputError:  # a ValueError too
        raise
    except (TypeError, ValueError):
        raise _unknown_time(f"an array of {values.dtype}") from None
    return np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / 1e6)


def _parse_text(value: Any) -> Any:
    """Return an ISO text as a time without zone, in UTC if it has one."""
    try:
        time = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        raise _unknown_time(shorten_repr(value)) from None
    if not (time is None or isinstance(time, date | np.datetime64)):  # a number beside dates
        raise _unknown_time(shorten_repr(value))
    if isinstance(time, datetime) and time.tzinfo is not None:
        return time.astimezone(UTC).replace(tzinfo=None)
    return time


def _unknown_time(text: str) -> InputError:
    """Return the error for anything but numbers and dates."""
    return InputError(f"Expected times as numbers or dates such as 2026-03-04T10:00, got {text}.", code="time")


def format_time(seconds: float, is_calendar: bool) -> str:
    """Return a time as text: a date, with hours and minutes unless it is midnight, or a number.

    >>> format_time(0.0, True), format_time(60.0, True), format_time(7.0, False)
    ('1970-01-01', '1970-01-01 00:01', '7')
    """
    if not is_calendar:
        return f"{seconds:.15g}"  # such as 202603041000, or milliseconds since 1970
    text = str(np.datetime64(int(seconds // 60), "m"))  # of any year
    return text.removesuffix("T00:00") if seconds % 86_400 == 0 else text.replace("T", " ")
