"""A batch of predictions in the order of prediction, and their times in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.softmax import probabilities
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError
from calibrant.monitoring._rows import NO_KEY, UNKNOWN_LABEL, Rows, batch_digest, hash_ids, hash_text
from calibrant.predictions import Predictions


@dataclass(frozen=True, eq=False)
class Batch:
    """A validated batch in the order of prediction."""

    predictions: Predictions  # in the order in which they were given, for the event and the names
    rows: Rows  # groups are indices of the group names, or -1
    times: np.ndarray | None  # (n) seconds, or other numbers, in increasing order; None without times
    is_calendar: bool  # whether times are dates
    has_ids: bool
    digest: int | None  # equal for a batch that is given twice; None without ids and source

    @classmethod
    def from_predictions(
        cls,
        p: Predictions,
        *,
        event: Any,
        class_names: tuple[str, ...] | None,
        labeled: Any,
        ids: Any,
        times: Any,
        source: str | None,
    ) -> "Batch":
        """Validate a batch, and sort its rows by time.

        Args:
            p: The predictions.
            event: Event of the earlier batches, or None before the first.
            class_names: Classes of the earlier batches, in their order, or None.
            labeled: Which rows have a label already (n), or None for all.
            ids: Ids of the rows (n), by which labels may come later, or None.
            times: Times of the predictions (n), or None.
            source: Text that identifies a batch without ids, or None.
        """
        p.require_independent_rows("one row per cluster, without weights")
        p = p.reorder_classes(class_names)
        if event is None:
            event = "top" if p.of == "classes" else p.of  # a watch needs one event per row
        p, n = p.with_event(event), len(p)
        columns: Mapping[str, Any] = {"labeled": labeled, "ids": ids, "times": times}
        for name, column in columns.items():
            if column is not None and len(column) != n:
                raise InputError(f"Expected {name} with one entry per row ({n:,}), got {len(column):,}.", code="shape")
        labeled = np.ones(n, dtype=bool) if labeled is None else np.asarray(labeled)
        if labeled.ndim != 1 or labeled.dtype != bool:  # texts such as "False" would be true
            raise InputError(
                f"Expected labeled as a list of True and False, got {labeled.dtype} {labeled.shape}.",
                code="labeled",
            )
        if ids is None and not labeled.all():
            raise InputError(
                f"Expected ids, by which labels may come later, as {int((~labeled).sum()):,} rows have no label. Try "
                "ids= (--id NAME).",
                code="missing_id",
            )
        seconds, is_calendar = (None, False) if times is None else to_seconds(times)
        # Arrays of the watch: -1 stands for a missing label, group or period
        rows = Rows(
            keys=np.full(n, NO_KEY) if ids is None else hash_ids(ids),
            labels=np.where(labeled, p.labels, UNKNOWN_LABEL),
            probs=to_numpy(probabilities(p.logits)),
            groups=np.full(n, -1) if p.groups is None else p.groups,
            periods=np.full(n, -1),  # numbered by the watch
        )
        if seconds is not None:
            order = np.argsort(seconds, kind="stable")  # rows of the same time keep their order
            rows, seconds = rows[order], seconds[order]
        if ids is not None:
            digest = batch_digest(rows.keys, rows.probs, rows.groups, seconds)
        else:  # equal numbers may be those of other examples, so that they identify no batch
            digest = None if source is None else hash_text(source)
        return cls(p, rows, seconds, is_calendar, ids is not None, digest)


def to_seconds(times: Any) -> tuple[np.ndarray, bool]:
    """Return times in seconds, and whether they are dates: numbers, numpy or Python dates, or ISO texts.

    >>> to_seconds(["1970-01-01", "1970-01-01T00:01"])
    (array([ 0., 60.]), True)
    """
    values = np.asarray(times.to_numpy() if hasattr(times, "to_numpy") else times)
    # Columns of pandas may hold numbers as Python objects
    if values.dtype == object and all(type(value) in (int, float) for value in values.ravel()):
        values = values.astype(np.float64)
    is_calendar = values.dtype.kind not in "iuf"  # integers or floats
    seconds = _parse_dates(values) if is_calendar else values.astype(np.float64)
    if seconds.ndim != 1 or not np.isfinite(seconds).all():
        raise InputError("Expected a time in every row, got rows without one.", code="time")
    return seconds, is_calendar


def _parse_dates(values: np.ndarray) -> np.ndarray:
    """Return dates or texts in seconds since 1970, with NaN if missing. Raise `InputError` for others."""
    if values.dtype.kind in "OU":  # Python objects or texts
        values = np.array([_parse_text(value) for value in values.tolist()], dtype="datetime64[us]")
    if values.dtype.kind != "M":  # numpy converts durations and truth values to dates, too
        raise _unknown_time(f"an array of {values.dtype}")
    dates = values.astype("datetime64[us]")
    return np.where(np.isnat(dates), np.nan, dates.astype(np.int64) / 1e6)


def _parse_text(value: Any) -> Any:
    """Return an ISO text or a date as a time without zone, in UTC if it has one, and None as it is."""
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
