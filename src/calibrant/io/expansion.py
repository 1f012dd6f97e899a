"""Refuse files that expand to far more memory than they take on disk, before they are expanded."""

import io
import pickletools
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibrant._lazy import polars
from calibrant._errors import InputError

MIN_EXPANDED_BYTES = 64 << 20  # that any file may expand to
MAX_EXPANSION = 100  # beyond that, relative to the size of the file
MIN_REFERENCES = 10_000  # objects that any pickle may hold, counted once for each reference
BYTES_PER_CELL = 8


def check_expansion(path: Path, num_bytes: int) -> None:
    """Raise `InputError` if a file expands to so many bytes that it was made to fill the memory."""
    if num_bytes > _max_bytes(path):
        raise InputError(
            f"Expected a file that expands to at most {_max_bytes(path) >> 20:,} MB, got {num_bytes >> 20:,} MB from "
            f"{path.stat().st_size:,} bytes. Try saving it without compression.",
            code="expansion",
        )


def check_archive(path: Path) -> None:
    """Raise `InputError` for a zip file that expands too much. Other files pass."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_expansion(path, sum(member.file_size for member in archive.infolist()))


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
    largest, stack, memo = (
        0,
        list[int | None](),
        dict[Any, int | None](),
    )  # number of objects in each object; None is a mark
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
    check_expansion(path, num_rows * len(frame.collect_schema()) * BYTES_PER_CELL)


def _max_bytes(path: Path) -> int:
    """Return the number of bytes that a file may expand to."""
    return MIN_EXPANDED_BYTES + MAX_EXPANSION * path.stat().st_size
