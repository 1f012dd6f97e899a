"""Read files for a watch: predictions whose labels may be missing, or labels that come later."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant import io
from calibrant._text import shorten_list
from calibrant.io.cells import to_numbers
from calibrant.io.column_names import find_role_columns
from calibrant.io.columns import Columns, TableOptions
from calibrant.io.frames import frame_to_arrays
from calibrant.io.labels import label_values
from calibrant.monitoring._watch import Watch
from calibrant.predictions import Predictions, from_unlabeled_arrays
from calibrant.types import InputError, prefix_errors

TIME_COLUMNS = ("time", "timestamp", "datetime", "date")  # in any case; the first one that exists


@dataclass(frozen=True, eq=False)
class PredictionFile:
    """Predictions with their ids and times, and a mask of the rows that have a label."""

    predictions: Predictions
    labeled: np.ndarray
    ids: Any = None
    times: Any = None

    def add_to(self, watch: Watch, name: str | None = None) -> Watch:
        """Return the watch with these predictions."""
        return watch.add(self.predictions, labeled=self.labeled, ids=self.ids, times=self.times, name=name)


@dataclass(frozen=True, eq=False)
class LabelFile:
    """Labels of rows that were predicted before."""

    ids: Any
    labels: Any

    def add_to(self, watch: Watch, name: str | None = None) -> Watch:
        """Return the watch with these labels."""
        return watch.add_labels(self.ids, self.labels)


def add_file(
    watch: Watch,
    path: str | Path,
    *,
    time: str | None = None,
    of: Any = None,
    calibrate: Callable[[Predictions], Predictions] | None = None,
    **options: Any,
) -> Watch:
    """Return the watch with a file of predictions or of labels; errors name the file.

    A table without scores, but with ids and labels, holds labels of rows that were predicted before.

    Args:
        watch: The state.
        path: A file as for `Predictions.load`; labels may be missing in some rows of a table, or in all.
        time: Column of times. Default: time, timestamp, datetime or date, if there is one.
        of: Event of the first batch.
        calibrate: Function that calibrates predictions, if the file has those of the network.
        **options: For tables, as in `Predictions.from_table`.
    """
    with prefix_errors(f"{path}"):
        content = read_watched_file(path, time, of, options)
        if calibrate is not None and isinstance(content, PredictionFile):
            content = replace(content, predictions=calibrate(content.predictions))
        return content.add_to(watch)


def read_watched_file(
    path: str | Path, time: str | None, of: Any, options: Mapping[str, Any]
) -> PredictionFile | LabelFile:
    """Read predictions or labels; see `add_file`."""
    reading = TableOptions.from_keywords(options)
    if not io.is_table(path) and not Path(path).is_dir() and not any(mark in Path(path).name for mark in "*?["):
        arrays = io.read(path, reading, needs_labels=False)
        p, has_labels = from_unlabeled_arrays(arrays, are_logits=reading.are_logits)
        p = p if of is None else p.with_event(of)
        return PredictionFile(p, np.full(len(p), has_labels), arrays.get("ids"))
    frame = io.read_table(path, reading).frame
    time = _find_time_column(frame, time)
    columns = io.infer_columns(frame.drop(time) if time else frame, reading)
    if not columns.scores and columns.confidence is None:
        return _read_labels(frame, columns, reading)
    return _read_predictions(frame, columns, reading, time, of)


def _find_time_column(frame: Any, time: str | None) -> str | None:
    if time is not None and time not in frame.columns:
        raise InputError(
            f"Expected one of the columns {shorten_list(frame.columns)} for time, got {time!r}.", code="no_column"
        )
    by_name = {name.strip().lower(): name for name in frame.columns}
    return time or next((by_name[name] for name in TIME_COLUMNS if name in by_name), None)


def _read_labels(frame: Any, columns: Columns, reading: TableOptions) -> LabelFile:
    explicit = reading.columns.get("label") or reading.columns.get("correct")
    roles = {name: role for role in ("correct", "label") for name in find_role_columns(role, frame.columns)}
    label = explicit or next(reversed(roles), None)
    if columns.id is None or label is None:
        raise InputError(
            "Expected predictions, or the columns id and label for predictions that were given before, got columns "
            f"{shorten_list(frame.columns)}. Try --id and --label.",
            code="no_scores",
        )
    frame = frame.filter(frame[label].is_not_null())
    if roles.get(label) == "correct" or "correct" in reading.columns:
        correct = to_numbers(frame[label], accept_truth_words=True).to_numpy()
        if bool((correct != correct.round()).any()):
            raise _fractions_refused()
        return LabelFile(frame[columns.id], correct.astype(np.int64))
    values = label_values(frame[label])
    return LabelFile(frame[columns.id], values - reading.labels_from if reading.labels_from is not None else values)


def _fractions_refused() -> InputError:
    return InputError(
        "Expected outcomes 0 or 1 to watch, got fractional ones. Try check or compare, which accept them.",
        code="fractional_outcomes",
    )


def _read_predictions(frame: Any, columns: Columns, reading: TableOptions, time: str | None, of: Any) -> PredictionFile:
    """Read predictions; missing labels are filled with one that occurs, and masked."""
    truth = next((name for name in (columns.correct, columns.label) if name is not None), None)
    labeled = np.zeros(len(frame), dtype=bool)
    if truth is not None:
        labeled = frame[truth].is_not_null().to_numpy()
        if labeled.any():
            frame = frame.with_columns(frame[truth].fill_null(frame[truth].drop_nulls()[0]))
        else:
            names = {name: None for name in ("label", "correct", "predicted") if getattr(columns, name) == truth}
            columns = replace(columns, **names)
    arrays = frame_to_arrays(frame, columns, reading)
    p, _ = from_unlabeled_arrays(arrays, are_logits=reading.are_logits)
    if p.examples is not None:
        raise _fractions_refused()
    if len(p) != len(frame):
        raise InputError(
            f"Expected {len(frame):,} complete rows, got {len(p):,}. Try removing the others first, without --drop.",
            code="incomplete_rows",
        )
    p = p if of is None else p.with_event(of)
    return PredictionFile(p, labeled, arrays.get("ids"), None if time is None else frame[time])
