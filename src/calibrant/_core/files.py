"""Files: atomic writes, outputs that replace no input, folders and patterns, and results with their provenance."""

import fnmatch
import json
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibrant._core.version import __version__
from calibrant.io.formats import BY_SUFFIX, TABLE_SUFFIXES, format_of, format_suffix, list_suffixes
from calibrant._core.types import InputError, prefix_errors

# Writing


@contextmanager
def atomic_write(path: str | Path) -> Generator[Path, None, None]:
    """Yield the path of a draft, which replaces `path` when the block ends without an error.

    A process killed at any moment leaves the old file or the new one, never half of either.

    Raises:
        InputError: If the folder is not writable.
    """
    path = Path(path)
    ensure_writable(path)
    with _exit_on_signals():
        # Only 50 characters of the name, because names of files have a maximal length
        handle, name = tempfile.mkstemp(prefix=f".{path.stem[:50]}-", suffix=format_suffix(path), dir=path.parent)
        os.close(handle)
        draft = Path(name)
        try:
            yield draft
            apply_umask(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file in UTF-8 at once, or not at all."""
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")


@contextmanager
def _exit_on_signals() -> Generator[None, None, None]:
    """Turn signals that end the process at once into `SystemExit`, so that drafts are removed first."""
    exit_signals = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # by platform
    is_main_thread = threading.current_thread() is threading.main_thread()  # others may not set handlers
    replaced = [number for number in exit_signals if is_main_thread and signal.getsignal(number) is signal.SIG_DFL]
    for number in replaced:
        signal.signal(number, lambda caught, _: sys.exit(128 + caught))  # the status that a shell reports
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, signal.SIG_DFL)


def ensure_writable(path: str | Path) -> Path:
    """Create the folder of a file, and raise `InputError` if the file cannot be written."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"Expected a file to write, got the folder {path}. Try a file name in it.", code="is_folder")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):  # only trying tells: a file system may be read-only
            pass
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}. Try another folder.", code="not_writable") from None
    return path


def apply_umask(path: Path) -> None:
    """Give a temporary file or folder, which only its owner can read, the permissions of an ordinary new one."""
    mask = os.umask(0)  # it can only be read by setting it
    os.umask(mask)
    path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)


# Outputs beside inputs


def check_outputs(outputs: Iterable[str | Path | None], inputs: Iterable[str | Path | None]) -> None:
    """Raise `InputError` if an output would replace an input or another output, or be an input of the next call.

    Args:
        outputs: Files to be written; None is skipped.
        inputs: Files, folders of tables, and patterns; None is skipped.
    """
    sources = [Path(path) for path in inputs if path is not None]
    input_files = [file for source in sources for file in _list_input_files(source)]
    output_files: list[Path] = []
    for path in map(Path, filter(None, outputs)):
        if any(is_same_file(path, file) for file in input_files):
            raise InputError(f"Cannot write {path}: this command reads it. Try another name.", code="output_is_input")
        if source := next((source for source in sources if _matches_source(path, source)), None):
            raise InputError(
                f"Cannot write {path}: {source} would include it the next time. Try another folder or name.",
                code="output_among_inputs",
            )
        if any(is_same_file(path, file) for file in output_files):
            raise InputError(f"Cannot write {path} twice. Try another name for one of them.", code="output_twice")
        output_files.append(path)


def _list_input_files(source: Path) -> list[Path]:
    """Return every file that a command reads for a file, folder or pattern, including companion files."""
    if source.is_dir():
        return [file for file in source.iterdir() if format_suffix(file) in TABLE_SUFFIXES]
    if is_pattern(source):
        return list_matching_files(source)
    file_format = format_of(source)
    return [source, *(file_format.companions(source) if file_format else [])]


def _matches_source(path: Path, source: Path) -> bool:
    """Return whether a new file at `path` would be read as a table of the folder or pattern `source`."""
    if source.is_dir():
        return is_same_file(path.parent, source) and is_visible_table(path)
    if not is_pattern(source) or not is_same_file(path.parent, source.parent):
        return False
    name, pattern = path.name, source.name
    if is_case_insensitive(source.parent):
        name, pattern = name.casefold(), pattern.casefold()
    return fnmatch.fnmatchcase(name, pattern) and is_visible(path, source)


def is_same_file(first: Path, second: Path) -> bool:
    """Whether two paths lead to the same file, which need not exist yet."""
    try:
        return first.samefile(second)
    except OSError:  # one of them does not exist
        first, second = first.resolve(), second.resolve()
        differ_by_case = str(first).casefold() == str(second).casefold()
        return first == second or (differ_by_case and is_case_insensitive(first.parent))


def is_case_insensitive(folder: Path) -> bool:
    """Whether names that differ only in case are the same file, in a folder or its nearest existing ancestor."""
    folder = next((ancestor for ancestor in (folder, *folder.parents) if ancestor.is_dir()), Path()).resolve()
    while folder.name and folder.name == folder.name.swapcase():  # a name without letters, such as 2024
        folder = folder.parent
    try:
        return folder.with_name(folder.name.swapcase()).samefile(folder)
    except (OSError, ValueError):  # no such folder, or only the root is left, which has no name
        return False


# Folders and patterns


def list_table_files(path: str | Path) -> list[Path]:
    """Return the tables of a path: the file itself, the tables of a folder, or the files that match a pattern.

    Raises:
        InputError: If there is no file, one is empty or of an unknown format, or a folder has several formats.
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(filter(is_visible_table, path.iterdir()))
        suffixes = sorted({format_suffix(file) for file in files})
        if len(suffixes) > 1:
            raise InputError(
                f"Expected tables of one format in this folder, got {', '.join(suffixes)}. Try a pattern such as "
                f"'*{suffixes[0]}'.",
                code="several_formats",
            )
        if not files:
            raise InputError(
                f"Expected tables in this folder, got none. Try files {list_suffixes(TABLE_SUFFIXES)}.", code="no_table"
            )
    elif is_pattern(path):
        files = require_matching_files(path)
    else:
        files = [path]
    for file in files:
        with prefix_errors(file.name) if file != path else nullcontext():
            check_file(file, BY_SUFFIX)
    return files


def is_pattern(path: Path) -> bool:
    """Whether a path is a pattern of files, such as *.csv, and not the name of a file."""
    return not path.exists() and any(wildcard in path.name for wildcard in "*?[")


def list_matching_files(pattern: Path) -> list[Path]:
    """Return the visible files that match a pattern."""
    return sorted(file for file in pattern.parent.glob(pattern.name) if is_visible(file, pattern))


def require_matching_files(pattern: Path) -> list[Path]:
    """Return the visible files that match a pattern, or raise `InputError` if there are none."""
    files = list_matching_files(pattern)
    if not files:
        raise InputError("Expected files that match this pattern, got none.", code="no_match")
    return files


def is_visible_table(path: Path) -> bool:
    """Whether a path has the suffix of a table, and a name that does not begin with a point or underscore."""
    return format_suffix(path) in TABLE_SUFFIXES and path.name[0] not in "._"


def is_visible(path: Path, pattern: Path) -> bool:
    """Whether a file is not hidden, as the drafts of interrupted writes are, or the pattern asks for hidden files."""
    return pattern.name.startswith(".") or not path.name.startswith(".")


def check_file(path: Path, suffixes: Collection[str]) -> None:
    """Raise `InputError` unless a file exists, is not empty, and has one of the suffixes."""
    suffix = format_suffix(path)
    if suffix not in suffixes:
        if suffix in BY_SUFFIX:  # only callers that read in chunks leave out known suffixes
            raise InputError(
                f"Expected a file {list_suffixes(suffixes)} to read in chunks, got {suffix}. Try to read it whole.",
                code="pieces",
            )
        raise InputError(
            f"Expected a file {list_suffixes(suffixes)}, got {suffix or 'no suffix'}. Try another suffix.",
            code="suffix",
        )
    if not path.is_file():
        raise InputError("There is no such file.", code="no_file")
    if path.stat().st_size == 0:
        raise InputError("The file is empty (0 bytes).", code="empty_file")


# Results and their provenance


def result_json(content: Mapping[str, Any], source: Mapping[str, Any] | None = None) -> str:
    """Return JSON of builtin types with the block "provenance", version and time, last.

    Args:
        content: The result, without NaN or infinity.
        source: Entries that are added to the block "provenance", or replace its own.
    """
    return json.dumps(dict(content) | {"provenance": provenance(source)}, indent=1, allow_nan=False) + "\n"


def provenance(source: Mapping[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """Return the version, the time and other parts. Entries of `source` are added or replace these."""
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"version": __version__, "time": time} | parts | dict(source or {})


def null_nonfinite(value: Any) -> Any:
    """Replace NaN and infinities by None in numbers, dictionaries, lists and tuples."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: null_nonfinite(item) for key, item in value.items()}
    return [null_nonfinite(item) for item in value] if isinstance(value, list | tuple) else value


def is_exception(error: BaseException) -> bool:
    """Whether this is an exception of a library, also polars' PanicException, but not such as KeyboardInterrupt."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def check_suffix(path: Path, suffixes: Collection[str]) -> None:
    """Raise `InputError`, which suggests the first suffix, unless a file name ends in one of the suffixes."""
    if path.suffix not in suffixes:
        raise InputError(
            f"Expected a file name that ends in {', '.join(suffixes)}, got {str(path)!r}. Try "
            f"{path.stem}{next(iter(suffixes))}.",
            code="suffix",
        )


def write_by_suffix(path: str | Path, writers: Mapping[str, Callable[[], str]]) -> None:
    """Write the text of the writer that belongs to the suffix of `path`."""
    path = Path(path)
    check_suffix(path, writers)
    write_text(path, writers[path.suffix]())
