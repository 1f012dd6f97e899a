"""Find and read the evaluation logs of a path: one file, a run folder, or a folder with the logs of many tasks."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from calibrant._core.files import COMPRESSION_SUFFIXES, format_suffix
from calibrant._core.foreign import parse_json, parse_json_lines
from calibrant._core.text import shorten_list
from calibrant._core.types import InputError
from calibrant.io.column_roles import TableOptions
from calibrant.io.contents import Contents
from calibrant.io.encoding import read_decompressed, to_utf8
from calibrant.io.files import check_file, is_pattern, is_visible_table, list_matching_files, require_matching_files
from calibrant.io.formats import BY_SUFFIX
from calibrant.io.logs import harness, helm, inspect, json_lines
from calibrant.io.logs.rows import (
    LogContent,
    LogOptions,
    LogRow,
    describe_rows,
    resolve_rows,
    rows_to_contents,
    select_name,
    single_model,
)
from calibrant.io.logs.tokens import has_tokens
from calibrant.io.tables import call_reader

JSON_LINES_SUFFIXES = BY_SUFFIX[".jsonl"].all_suffixes
LOG_SUFFIXES = BY_SUFFIX[".eval"].all_suffixes  # of logs that are not lines
FIRST_LINE_BYTES = 1 << 24  # at most, of the line that shows whether a file is a log: other files may have no lines
LOG_ROLES = ("correct", "confidence", "group")
_INSPECT_JSON = re.compile(r"\d{4}-\d\d-\d\dT[\d:+-]+_.+_\w+\.json")  # name of a log in a folder


def read_log(path: Path, options: TableOptions) -> Contents:
    """Read the contents of a log.

    The roles correct, confidence and group name the score, the confidence and the subject.

    Raises:
        InputError: If another role is given, or the log cannot be read as predictions.
    """
    columns = options.columns
    if other_roles := sorted({*columns} - {*LOG_ROLES}):
        raise InputError(
            f"Expected the roles correct, confidence or group for an evaluation log, got {other_roles[0]}.",
            code="no_columns",
        )
    log_options = LogOptions(
        task=options.task,
        filter=options.filter,
        score=(columns["correct"],) if "correct" in columns else (),
        confidence=columns.get("confidence"),
        subject=columns.get("group"),
        percent=options.percent or None,  # False means here that the caller did not say
        encoding=options.encoding,
    )
    rows, notes, *_ = read_logs(path, log_options)
    return rows_to_contents(rows, notes)


def read_logs(
    path: str | Path | Sequence[str | Path], options: LogOptions
) -> tuple[tuple[LogRow, ...], tuple[str, ...], str | None, bool]:
    """Return the rows of logs, notes on how they were read, the model's name or None, and whether all logs name tasks.

    Args:
        path: A file, a pattern, a run folder of HELM, or a folder with logs of one model; or several files.
        options: Options for reading.

    Raises:
        InputError: If the logs are of several models, a folder holds a task twice, or a score or filter is ambiguous.
    """
    is_list = not isinstance(path, str | Path)
    sources = [source for entry in (path if is_list else [path]) for source in list_logs(Path(entry))]
    if is_list and not (sources and len({source.resolve() for source in sources}) == len(sources)):
        raise InputError(
            f"Expected different logs, got {'the same one twice' if sources else 'none'}. Try each file once.",
            code="repeated_log" if sources else "no_log",
        )
    named_path = Path() if is_list else path  # errors do not name this path, because the caller does
    logs: list[LogContent] = [
        call_reader(source, partial(_read_source, source, options), named_path)
        for source in _sources_of_tasks(sources, options.task)
    ]
    logs = _select_tasks(logs, options.task)
    model = single_model(log.model for log in logs)
    if not is_list:  # the logs of a list may be repeats
        _check_tasks_differ(logs)
    rows, notes = resolve_rows(logs, options)
    formats = ", ".join(dict.fromkeys(log.format for log in logs))
    questions = len({(row.task, row.question) for row in rows})
    num_logs = "1 log" if len(logs) == 1 else f"{len(logs)} logs"
    summary = f"Read {len(rows):,} answers to {questions:,} questions from {num_logs} ({formats})."
    log_notes = dict.fromkeys(note for log in logs for note in log.notes)
    return rows, (summary, *log_notes, *notes, describe_rows(rows)), model, all(log.has_task_name for log in logs)


def _sources_of_tasks(sources: Sequence[Path], tasks: Sequence[str]) -> list[Path]:
    """Return the sources that may hold one of the tasks, or all sources if no task is selected.

    Files of lm-evaluation-harness have the task in their name; any other file may hold any task.

    Raises:
        InputError: If no source is left.
    """
    names = {source: harness.task_name(source) for source in sources}
    selected = [source for source in sources if not tasks or names[source] is None or names[source] in tasks]
    if not selected:  # every source is of another task
        select_name(tasks, [name for name in names.values() if name], "task")  # only raises
    return selected


def list_logs(path: Path) -> list[Path]:
    """Return the logs of a path: the file or run folder itself, or every log of a folder or pattern.

    Raises:
        InputError: If there is none in a folder, or no file matches a pattern.
    """
    if helm.is_run_folder(path):
        return [path]
    if path.is_dir():
        logs = sorted(source for source in path.rglob("*") if _is_log_name(source, path))
        if not logs:
            raise InputError(
                "Expected evaluation logs in this folder, got none. Try a folder with samples_*.jsonl, "
                ".eval or HELM runs.",
                code="no_log",
            )
        return logs
    if is_pattern(path):
        return require_matching_files(path)
    return [path]


def _is_log_name(path: Path, folder: Path) -> bool:
    """Whether a path below a folder is a log by its name, and none of its parts is hidden.

    A name such as samples_1.jsonl, without the task and date that lm-evaluation-harness writes, does not suffice: the
    first line of the file must be a record of a log too.
    """
    if any(part.startswith(".") for part in path.relative_to(folder).parts):
        return False
    if path.is_dir():
        return helm.is_run_folder(path)
    suffix = format_suffix(path)
    is_lines = path.name.startswith("samples_") and suffix in JSON_LINES_SUFFIXES
    is_harness = is_lines and (harness.task_name(path) is not None or _has_log_line(path))
    return suffix == ".eval" or is_harness or _INSPECT_JSON.fullmatch(path.name) is not None


def is_log(path: str | Path) -> bool:
    """Whether a path is an evaluation log, or a folder or pattern of logs.

    A file of JSON lines is a log if its first line shows it. A folder with other tables is no folder of logs.
    """
    path = Path(path)
    if path.is_dir():
        tables = [file for file in path.iterdir() if is_visible_table(file)]
        has_only_logs = all(_is_log_name(file, path) for file in tables)
        return helm.is_run_folder(path) or (has_only_logs and any(_is_log_name(log, path) for log in path.rglob("*")))
    if is_pattern(path):
        files = list_matching_files(path)
        return bool(files) and all(map(is_log, files))
    suffix = format_suffix(path)
    if not path.is_file() or suffix not in (*LOG_SUFFIXES, *JSON_LINES_SUFFIXES):
        return False
    return suffix in LOG_SUFFIXES or _has_log_line(path)


def _has_log_line(path: Path) -> bool:
    """Whether the first line of a file is a record of an evaluation log."""
    try:
        record = parse_json(call_reader(path, partial(_read_first_line, path)))
    except InputError:  # the reader tells what is wrong
        return False
    return isinstance(record, dict) and (harness.is_record(record) or has_tokens(record))


def _read_first_line(path: Path) -> bytes:
    """Return the first line of a file, decompressed."""
    if path.suffix.lower() in COMPRESSION_SUFFIXES:
        return read_decompressed(path).split(b"\n", 1)[0]
    with path.open("rb") as file:
        return file.readline(FIRST_LINE_BYTES)


def _read_source(path: Path, options: LogOptions) -> LogContent:
    """Read a run folder or a file by the format that its suffix and content show.

    Raises:
        InputError: If no log has this suffix, or the content is of no format, or of two.
    """
    if path.is_dir():
        return helm.read_run(path, options)
    check_file(path, BY_SUFFIX)
    if format_suffix(path) == ".eval":
        return inspect.read_archive(path, options)
    content = to_utf8(read_decompressed(path), options.encoding)[0]
    if format_suffix(path) == ".json":
        return _read_json(parse_json(content), path, options)
    if format_suffix(path) not in JSON_LINES_SUFFIXES:
        raise InputError("Expected a log .jsonl, .eval or .json, got another suffix.", code="suffix")
    records = parse_json_lines(content)
    # All lines are checked: a file of one's own may begin like a log, and logs may be joined by mistake
    are_harness_records = list(map(harness.is_record, records))
    if any(are_harness_records) and not all(are_harness_records):
        raise InputError(
            f"Expected lines of lm-evaluation-harness, got {are_harness_records.count(False):,} other lines of "
            f"{len(records):,}. Try one file for each format.",
            code="mixed_lines",
        )
    reader = harness.read_records if all(are_harness_records) else json_lines.read_records
    return reader(records, path, options)


def _read_json(content: Any, path: Path, options: LogOptions) -> LogContent:
    """Read a log of Inspect or a list of records, or raise `InputError` for any other JSON value."""
    if inspect.is_log(content):
        return inspect.read_samples(content, content.get("samples") or [], path, options)
    if isinstance(content, list) and content and all(isinstance(record, dict) for record in content):
        return json_lines.read_records(content, path, options)
    raise InputError(
        "Expected a log of Inspect, or a list of objects, got other JSON. Try the folder of a HELM run.",
        code="unknown_log",
    )


def _select_tasks(logs: Sequence[LogContent], names: Sequence[str]) -> list[LogContent]:
    """Return the logs with the answers of the named tasks alone, or all logs without names.

    Raises:
        InputError: If no log holds one of the tasks.
    """
    if not names:
        return list(logs)
    tasks = list(dict.fromkeys(answer.task for log in logs for answer in log.answers))
    for name in names:
        select_name([name], tasks, "task")  # only raises, if no log holds this task
    selected = [replace(log, answers=[answer for answer in log.answers if answer.task in names]) for log in logs]
    return [log for log in selected if log.answers]


def _check_tasks_differ(logs: Sequence[LogContent]) -> None:
    """Raise `InputError` if two logs have answers of the same task and subject."""
    # A log counts once for each of its tasks and subjects
    runs = Counter(run for log in logs for run in {(answer.task, answer.subject, log.model) for answer in log.answers})
    repeated = sorted({task for (task, _, _), count in runs.items() if count > 1})
    if repeated:
        raise InputError(
            f"Expected one run of each task, got several of {shorten_list(repeated)}. Try a list of files, which are "
            "read as repeats.",
            code="several_runs",
        )
