"""Evaluation logs as arrays of predictions, so that every command reads them."""

from pathlib import Path
from typing import Any

from calibrant.io.columns import TableOptions
from calibrant.io.logs import LogOptions, read_logs, rows_to_arrays
from calibrant.types import InputError

OPTION_BY_ROLE = {"correct": "score", "confidence": "confidence", "group": "subject"}  # of `LogOptions`


def read_arrays(path: Path, options: TableOptions | None = None) -> dict[str, Any]:
    """Read the arrays of a log; the roles correct, confidence and group name the score, the confidence and the subject.

    Raises:
        InputError: If another role is given, or the log cannot be read as predictions.
    """
    options = options or TableOptions()
    if other_roles := sorted({*options.columns} - {*OPTION_BY_ROLE}):
        raise InputError(
            f"Expected the roles correct, confidence or group for an evaluation log, got {other_roles[0]}.",
            code="no_columns",
        )
    values = {option: options.columns[role] for role, option in OPTION_BY_ROLE.items() if role in options.columns}
    score = (values.pop("score"),) if "score" in values else ()
    percent = options.percent or None  # False means here that the caller did not say
    log_options = LogOptions(options.task, options.filter, score, percent=percent, encoding=options.encoding, **values)
    rows, notes, _ = read_logs(path, log_options)
    return rows_to_arrays(rows) | {"notes": notes}
