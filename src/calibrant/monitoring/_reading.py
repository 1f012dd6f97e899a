"""Read files for a watch: predictions whose labels may be missing, or labels that come later."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._core.text import parse_number, shorten_list
from calibrant._core.types import InputError, prefix_errors
from calibrant.io.cells import to_numbers
from calibrant.io.column_roles import Columns, TableOptions, find_role_columns
from calibrant.io.contents import Contents
from calibrant.io.files import is_pattern, list_table_files
from calibrant.io.formats import is_table
from calibrant.io.frames import frame_to_contents
from calibrant.io.labels import count_from, label_values
from calibrant.io.predictions import read_contents
from calibrant.io.role_inference import infer_columns, leave_out_empty_labels
from calibrant.io.tables import read_table
from calibrant.monitoring._rows import UNKNOWN_LABEL, hash_ids
from calibrant.monitoring._watch import Watch
from calibrant.predictions import Predictions
from calibrant.predictions.events import BINARY_EVENTS
from calibrant.predictions.validation.words import NO_WORDS

LABEL_ROLES = ("id", "label", "correct")  # of files of labels
TIME_COLUMNS = ("time", "timestamp", "datetime", "date")  # in any case; the first one that exists


def add_file(
    watch: Watch,
    path: str | Path,
    *,
    time: str | None = None,
    of: Any = None,
    calibrate: Callable[[Predictions], Predictions] | None = None,
    on_note: Callable[[str], object] | None = None,
    **options: Any,
) -> Watch:
    """Return the watch with a file of predictions or labels added. Error messages name the file.

    A table without scores, but with ids and labels, holds labels of rows that were predicted before. Its ids that were
    never predicted are left out, and counted in a note. A file without rows changes nothing.

    Args:
        watch: The state.
        path: A file as for `Predictions.load`; labels may be missing in some rows of a table, or in all.
        time: Column of times. Default: time, timestamp, datetime or date, if there is one.
        of: Event of the first batch.
        calibrate: Function that calibrates the predictions, if the file has uncalibrated ones.
        on_note: Function that is called with each note on how the file was read, and on rows that are left out or were
            given before.
        **options: For tables, as in `Predictions.from_table`.
    """
    file = WatchFile.read(path, time=time, **options)
    on_note = on_note or (lambda note: None)
    return file.add_labels(watch, on_note) if file.holds_labels else file.add_rows(watch, of, calibrate, on_note)


@dataclass(frozen=True, eq=False)
class WatchFile:
    """A file for a watch: predictions whose labels may be missing, labels that come later, or no rows."""

    path: Path
    options: TableOptions
    notes: tuple[str, ...] = ()
    frame: Any = None  # of a table with rows
    columns: Columns | None = None
    time: str | None = None
    is_empty: bool = False

    @classmethod
    def read(cls, path: str | Path, *, time: str | None = None, **options: Any) -> "WatchFile":
        """Read a table and find the role of each column. A file of arrays is read later."""
        path = Path(path)
        with prefix_errors(f"{path}"):
            table_options = TableOptions.from_keywords(options)
            if path.is_file() and not path.stat().st_size:
                return cls(path, table_options, is_empty=True)
            if not (is_table(path) or is_pattern(path)):
                if time is not None:
                    raise InputError(
                        f"Expected no column of times for a file without columns, got {time!r}. Try a table.",
                        code="no_columns",
                    )
                return cls(path, table_options)
            try:
                table = read_table(path, table_options)
            except InputError as error:
                if error.code != "no_rows":  # a header only
                    raise
                return cls(path, table_options, is_empty=True)
            frame = table.frame
            if not len(frame):
                return cls(path, table_options, table.notes, is_empty=True)
            # Options such as --group and --time describe predictions; files of labels may lack these columns
            lenient = replace(table_options, columns=_present_roles(frame, table_options.columns))
            columns = infer_columns(frame, lenient)
            if columns.scores or columns.confidence is not None:
                time = _find_time_column(frame, time)
                columns = infer_columns(frame.drop(time) if time else frame, table_options)
            return cls(path, table_options, table.notes, frame, columns, time)

    @property
    def holds_labels(self) -> bool:
        """Whether the file holds labels of rows that were predicted before."""
        return self.columns is not None and not self.columns.scores and self.columns.confidence is None

    def add_labels(self, watch: Watch, on_note: Callable[[str], object]) -> Watch:
        """Return the watch with the labels added to the rows that were predicted before."""
        assert self.columns is not None
        with prefix_errors(f"{self.path}"):
            ids, labels, note = _read_labels(self.frame, self.columns, self.options, watch)
            pending, recent = watch.locate_rows(hash_ids(ids))
            num_unknown = int(((pending < 0) & (recent < 0)).sum())
            num_late = int((watch.recent.labels[recent[recent >= 0]] == UNKNOWN_LABEL).sum())
            has_known = num_unknown < len(pending)  # else the ids are wrong
            result = watch.add_labels(ids, labels, positive=self.options.positive, skip_unknown=has_known)
        for text in (*self.notes, note):
            on_note(text)
        if missing := len(self.frame) - len(ids):
            on_note(f"{missing:,} rows have no label, and were left out.")
        if num_unknown:
            on_note(f"{num_unknown:,} labels have the id of no prediction, and were left out.")
        if num_late:
            on_note(f"{num_late:,} labels are of rows that were given up, and were left out.")
        return result

    def add_rows(
        self,
        watch: Watch,
        of: Any,
        calibrate: Callable[[Predictions], Predictions] | None,
        on_note: Callable[[str], object],
    ) -> Watch:
        """Return the watch with the predictions added. Arguments are as for `add_file`."""
        if self.is_empty:
            on_note("The file has no rows.")
            return watch
        with prefix_errors(f"{self.path}"):
            p, labeled, ids = self._predictions(watch)
            p = p if of is None else p.with_event(of)
            p = p if calibrate is None else calibrate(p)
            times = self.frame[self.time] if self.time else None
            source = None if ids is not None else _source(self.path)
            result = watch.add(p, labeled=labeled, ids=ids, times=times, source=source)
        for note in p.notes:
            on_note(note)
        added = (result.rows + len(result.pending)) - (watch.rows + len(watch.pending))  # rows processed or waiting
        if repeated := len(p) - added:
            on_note(f"{repeated:,} rows were given before, and count once.")
        return result

    def _predictions(self, watch: Watch) -> tuple[Predictions, np.ndarray, Any]:
        """Return the predictions, which rows have a label (n), and their ids or None."""
        labeled = None
        if self.columns is not None:
            contents, labeled = _read_predictions(self.frame, self.columns, self.options, watch.class_names)
            contents = replace(contents, notes=(*self.notes, *contents.notes))
        else:
            contents = read_contents(self.path, self.options, needs_labels=False)
        p = contents.with_labels().to_predictions(are_logits=self.options.are_logits)
        if p.examples is not None:
            raise _fractional_outcomes_error()
        if labeled is None:  # a file without columns, whose rows all have a label or none has
            labeled = np.full(len(p), contents.labels is not None)
        if len(p) != len(labeled):
            raise InputError(
                f"Expected {len(labeled):,} complete rows, got {len(p):,}. Try removing the others first, without "
                "--drop.",
                code="incomplete_rows",
            )
        return p, labeled, contents.ids


def _present_roles(frame: Any, roles: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen roles without those, other than ids and labels, whose column the table lacks."""
    names = {name.strip().lower() for name in frame.columns}

    def is_present(value: Any) -> bool:
        """Return whether each name is that of a column, or a prefix of columns."""
        chosen = [value] if isinstance(value, str) else value
        return all(any(column.startswith(name.strip().lower()) for column in names) for name in chosen)

    return {role: value for role, value in roles.items() if role in LABEL_ROLES or is_present(value)}


def _source(path: Path) -> str:
    """Return a digest of the name and the content of a file, or of the files of a folder or pattern."""
    files = list_table_files(path) if is_pattern(path) or path.is_dir() else [path]
    digest = hashlib.blake2b()
    for file in files:
        digest.update(repr((file.name, file.stat().st_size)).encode())
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


def _find_time_column(frame: Any, time: str | None) -> str | None:
    """Return the column that was asked for, else the first one of TIME_COLUMNS in the table, else None."""
    if time is not None and time not in frame.columns:
        raise InputError(
            f"Expected one of the columns {shorten_list(frame.columns)} for time, got {time!r}.", code="no_column"
        )
    by_name = {name.strip().lower(): name for name in frame.columns}
    return time or next((by_name[name] for name in TIME_COLUMNS if name in by_name), None)


def _read_labels(frame: Any, columns: Columns, options: TableOptions, watch: Watch) -> tuple[Any, np.ndarray, str]:
    """Return ids and labels of rows that were predicted before, and a note on the columns.

    A column of labels is preferred to one that says whether predictions were correct.
    """
    correct_columns = find_role_columns("correct", frame.columns)
    found_columns = [*find_role_columns("label", frame.columns), *correct_columns]  # the most common name first
    label = options.columns.get("label") or options.columns.get("correct") or next(iter(found_columns), None)
    if columns.id is None or label is None:
        raise InputError(
            "Expected predictions, or the columns id and label for predictions that were given before, got columns "
            f"{shorten_list(frame.columns)}. Try --id and --label.",
            code="no_scores",
        )
    frame = frame.filter(frame[label].is_not_null())
    note = f"Read {len(frame):,} labels without predictions: label from {label!r}, id from {columns.id!r}."
    if "correct" in options.columns or (label in correct_columns and "label" not in options.columns):
        if watch.k and watch.class_names not in BINARY_EVENTS:  # 0 and 1 would be read as the first two classes
            raise InputError(
                f"Expected labels, as the predictions have classes, got whether they were correct in {label!r}. Try "
                f"--label {label} if it holds classes.",
                code="correct_with_classes",
            )
        correct = to_numbers(frame[label], accept_truth_words=True).to_numpy()
        if bool((correct != np.round(correct)).any()):
            raise _fractional_outcomes_error()
        return frame[columns.id], correct.astype(np.int64), note
    values = label_values(frame[label])
    if options.labels_from is not None:
        values = count_from(options.labels_from, values, watch.class_names)
    return frame[columns.id], values, note


def _fractional_outcomes_error() -> InputError:
    """Return the error for outcomes between 0 and 1, on which a watch cannot bet."""
    return InputError(
        "Expected outcomes 0 or 1 to watch, got fractional ones. Try check or compare, which accept them.",
        code="fractional_outcomes",
    )


def _read_predictions(
    frame: Any, columns: Columns, options: TableOptions, class_names: tuple[str, ...] | None
) -> tuple[Contents, np.ndarray]:
    """Return the contents of a table, and which rows have a label (n). The other rows get the first label.

    Args:
        frame: A polars frame.
        columns: The roles of its columns.
        options: Options of reading.
        class_names: Classes of earlier batches, or None if they have no names or there are none.
    """
    columns = leave_out_empty_labels(columns, frame)
    truth = columns.label if columns.correct is None else columns.correct
    labeled = np.zeros(len(frame), dtype=bool)
    # `positive` is the class that a single score belongs to. If it is class 0, or "no", labels 0 and 1, or no and yes,
    # that come later would be read the wrong way round
    positive = columns.positive if truth is None and class_names is None else None
    if positive and (parse_number(positive) not in (None, 1) or positive.lower() in NO_WORDS):
        raise InputError(
            f"Expected the probability of class 1 beside later labels, got {columns.scores[0]!r}. Try its labels in "
            "the same file, or the column of the other class.",
            code="positive_class",
        )
    if truth is not None:
        labeled = frame[truth].is_not_null().to_numpy()
        # any label will do for the rows that have none, as `labeled` is False there
        frame = frame.with_columns(frame[truth].fill_null(frame[truth].drop_nulls()[0]))
    return frame_to_contents(frame, columns, options), labeled
