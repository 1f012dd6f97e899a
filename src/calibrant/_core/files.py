"""Files: atomic writes, suffixes, and results with their provenance."""

import json
import math
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibrant._core.errors import InputError
from calibrant._core.version import __version__

COMPRESSION_SUFFIXES = (".gz", ".zst")


def format_suffix(path: str | Path) -> str:
    """Return the suffix that tells the format, in lower case, such as ".csv" or ".csv.gz"."""
    path = Path(path)
    is_compressed = path.suffix.lower() in COMPRESSION_SUFFIXES
    return "".join(path.suffixes[-2:]).lower() if is_compressed else path.suffix.lower()


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


def encode_nonfinite(value: Any) -> Any:
    """Replace NaN by None and infinities by "inf" and "-inf", which JSON has no numbers for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Mapping):
        return {key: encode_nonfinite(item) for key, item in value.items()}
    return [encode_nonfinite(item) for item in value] if isinstance(value, list | tuple) else value


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
