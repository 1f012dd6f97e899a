"""Refuse files that expand to far more memory than they take on disk, before they are expanded."""

import io
import pickletools
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibrant._errors import InputError
from calibrant._lazy import polars

MAX_EXPANSION = 100  # decompressed bytes per byte of a file; logs have up to 50
MAX_SMALL_SIZE = 1 << 25  # bytes, which any file may expand to
MIN_REFERENCES = 10_000  # objects that any pickle may hold, counted once for each reference
BYTES_PER_CELL = 8


def check_expansion(num_compressed: int, num_bytes: int) -> None:
    """Raise `InputError` if the content of a file, decompressed, is too many times as large as the file."""
    if num_bytes > max(MAX_SMALL_SIZE, MAX_EXPANSION * num_compressed):
        raise InputError(
            f"Expected at most {MAX_EXPANSION} times the size of the compressed file as content, got more. Try the "
            "file decompressed, if you trust it.",
            code="expansion",
        )


def check_archive(path: Path) -> None:
    """Raise `InputError` for a zip file that expands too much. Other files pass."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_expansion(path.stat().st_size, sum(member.file_size for member in archive.infolist()))


def check_pickle(path: Path) -> None:
    """Raise `InputError` if objects in a file of torch refer to each other so often that hashing them never ends."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            streams = [archive.read(member) for member in archive.infolist() if member.filename.endswith(".pkl")]
    else:  # several pickles, one after the other, and numbers
        streams = [path.read_bytes()]
    is_bounded = True
    for stream in streams:
        file = io.BytesIO(stream)
        limit = MIN_REFERENCES + MAX_EXPANSION * len(stream)
        with suppress(LookupError, TypeError, ValueError):  # no pickle: torch says so
            while file.tell() < len(stream) and is_bounded:
                is_bounded = _count_references(pickletools.genops(file), limit) <= limit
    if not is_bounded:
        raise InputError("Expected a dict of tensors, got nested objects. Try tensors only.", code="expansion")


def _count_references(operations: Iterable[Any], limit: int) -> int:
    """Return how many objects the largest object of a pickle holds, counting each reference, up to a limit."""
    largest = 0
    stack, memo = list[int | None](), dict[Any, int | None]()  # number of objects in each object; None is a mark
    for operation, argument, _ in operations:
        if "PUT" in operation.name or operation.name == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = stack[-1]
        elif "GET" in operation.name:
            stack.append(memo[argument])
        elif operation.name == "MARK":
            stack.append(None)
        else:
            before = [kind.name for kind in operation.stack_before]
            count = 1
            if "mark" in before:
                while (size := stack.pop()) is not None:
                    count += size
                before = before[: before.index("mark")]
            for _ in before:
                count += stack.pop() or 0
            stack += [count] * len(operation.stack_after)
            largest = max(largest, count)
            if largest > limit:
                break
    return largest


def check_columns(path: Path, frame: Any) -> None:
    """Raise `InputError` for a lazy frame of a file that has too many cells, which its metadata tell."""
    num_rows = int(frame.select(polars.len()).collect().item())
    check_expansion(path.stat().st_size, num_rows * len(frame.collect_schema()) * BYTES_PER_CELL)
