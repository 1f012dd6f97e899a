"""Evaluation logs as arrays of predictions, so that every command reads them."""

from pathlib import Path
from typing import Any

from calibrant.io.columns import TableOptions
from calibrant.io.logs import LogOptions, read_logs, rows_to_arrays
from calibrant.types import InputError

OPTION_BY_ROLE = {"correct": "score", "confidence": "confidence", "group": "subject"}


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
    roles = {option: options.columns[role] for role, option in OPTION_BY_ROLE.items() if role in options.columns}
    score = (roles.pop("score"),) if "score" in roles else ()
    log_options = LogOptions(
        options.task, options.filter, score, percent=options.percent or None, encoding=options.encoding, **roles
    )
    rows, notes, _ = read_logs(path, log_options)
    return rows_to_arrays(rows) | {"notes": notes}
