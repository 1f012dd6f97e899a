"""Refuse files that expand to far more memory than they take on disk, before they are expanded."""

import io
import mmap
import pickletools
import struct
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibrant._core.errors import InputError

MAX_EXPANSION = 100  # decompressed bytes per byte of a file; logs have up to 50
MAX_SMALL_SIZE = 1 << 25  # bytes, which any file may expand to
MIN_REFERENCES = 10_000  # objects that any pickle may hold, counted once for each reference
BYTES_PER_CELL = 8
BYTES_PER_STRUCT = 16  # that describes a column or a buffer in Arrow
PARQUET_MAGIC, ARROW_MAGIC, NEXT_MESSAGE = b"PAR1", b"ARROW1", 0xFFFFFFFF
DICTIONARY_BATCH, RECORD_BATCH = 2, 3


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


# Parquet, whose footer states the values and bytes of each column. https://thrift.apache.org/docs/specs/compact-protocol


def check_parquet(path: Path) -> None:
    """Raise `InputError` for a Parquet file whose columns expand too much. Other files pass."""
    num_compressed = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(0, num_compressed - 8))
        size, magic = int.from_bytes(file.read(4), "little"), file.read(4)
        file.seek(max(0, num_compressed - 8 - size))
        content = file.read()
    if magic != PARQUET_MAGIC:
        return
    try:
        footer, _ = _read_struct(content, 0)
        columns = [chunk[3] for group in footer[4] for chunk in group[1]]
        num_bytes = sum(max(column[5] * BYTES_PER_CELL, column[6]) for column in columns)
    except (LookupError, TypeError, RecursionError):
        raise InputError("Expected Parquet, got a damaged file. Try writing it again.", code="unreadable") from None
    check_expansion(num_compressed, num_bytes)


def _read_struct(content: bytes, position: int) -> tuple[dict[int, Any], int]:
    """Return the values of a struct of Thrift by the numbers of their fields, and the position after it."""
    values, number = dict[int, Any](), 0
    while content[position]:
        step, kind = divmod(content[position], 16)
        position += 1
        if not step:
            number, position = _read_value(content, position, 4)
        number += step
        if kind in (1, 2):  # true and false, which stand in the kind
            values[number] = kind == 1
        else:
            values[number], position = _read_value(content, position, kind)
    return values, position + 1


def _read_value(content: bytes, position: int, kind: int) -> tuple[Any, int]:
    """Return a value of Thrift and the position after it. Texts, maps and floating-point numbers are skipped."""
    if kind == 12:
        return _read_struct(content, position)
    if kind in (1, 2, 3, 7):  # a byte in a list, a byte, and 8 bytes
        return content[position], position + (8 if kind == 7 else 1)
    if kind in (9, 10):
        size, kind = divmod(content[position], 16)
        position += 1
        if size == 15:
            size, position = _read_varint(content, position)
        values: list[Any] = []
        for _ in range(size):
            value, position = _read_value(content, position, kind)
            values.append(value)
        return values, position
    number, position = _read_varint(content, position)
    if kind == 8:
        return None, position + number
    return (number >> 1) ^ -(number & 1), position


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Return an integer of 7 bits a byte, lowest first, and the position after it."""
    value = shift = 0
    while content[position] & 128:
        value |= (content[position] & 127) << shift
        position, shift = position + 1, shift + 7
    return value | content[position] << shift, position + 1


# Arrow, whose batches state the decompressed size of each buffer. https://arrow.apache.org/docs/format/Columnar.html


def check_arrow(path: Path) -> None:
    """Raise `InputError` for an Arrow file or stream whose batches expand too much, or cannot be followed."""
    num_compressed = path.stat().st_size
    num_bytes = 0
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            batches = _stored_batches(content) if content[:6] == ARROW_MAGIC else _streamed_batches(content)
            for message, body in batches:
                for size in _buffer_sizes(content, message, body):
                    num_bytes += max(size, BYTES_PER_STRUCT)
                    check_expansion(num_compressed, num_bytes)
    except (struct.error, IndexError, OverflowError):
        raise InputError("Expected Arrow, got a damaged file. Try writing it again.", code="unreadable") from None


def _streamed_batches(content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield the positions of each message in a stream, and of the buffers after it."""
    position = 0
    while position + 8 <= len(content):
        position += 4 * (_integer(content, "I", position) == NEXT_MESSAGE)  # streams before Arrow 0.15 lack the mark
        size = _integer(content, "I", position)
        if size == 0:
            return
        message, body = _table(content, position + 4), position + 4 + size
        yield message, body
        length = _field(content, message, 3)
        position = body + (_integer(content, "Q", length) if length else 0)


def _stored_batches(content: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield the positions of each message in a file, and of the buffers after it, by the footer."""
    end = len(content) - len(ARROW_MAGIC) - 4
    footer = _table(content, end - _integer(content, "I", end))
    for index in (2, 3):  # of dictionaries, and of rows
        for block in _vector(content, footer, index, 24):
            start = _integer(content, "Q", block)
            message = start + 4 + 4 * (_integer(content, "I", start) == NEXT_MESSAGE)
            yield _table(content, message), start + _integer(content, "I", block + 8)


def _buffer_sizes(content: mmap.mmap, message: int, body: int) -> Iterator[int]:
    """Yield the decompressed bytes of each buffer of a message, and those of the cells of each of its columns."""
    kind, batch = content[_field(content, message, 1)], _table(content, _field(content, message, 2))
    if kind == DICTIONARY_BATCH:
        batch = _table(content, _field(content, batch, 1))
    elif kind != RECORD_BATCH:
        return
    is_compressed = bool(_field(content, batch, 3))
    for node in _vector(content, batch, 1, BYTES_PER_STRUCT):
        yield _integer(content, "Q", node) * BYTES_PER_CELL
    for buffer in _vector(content, batch, 2, BYTES_PER_STRUCT):
        start, length = _integer(content, "Q", buffer), _integer(content, "Q", buffer + 8)
        size = _integer(content, "q", body + start) if is_compressed and length else length
        yield length if size == -1 else size  # -1 stands for a buffer that is not compressed


def _table(content: mmap.mmap, position: int) -> int:
    """Return the position of a table of flatbuffers, to which another position points."""
    return position + _integer(content, "I", position)


def _field(content: mmap.mmap, table: int, index: int) -> int:
    """Return the position of a field of a table, or 0 if the table lacks it."""
    fields = table - _integer(content, "i", table)
    entry = 4 + 2 * index
    offset = _integer(content, "H", fields + entry) if entry < _integer(content, "H", fields) else 0
    return table + offset if offset else 0


def _vector(content: mmap.mmap, table: int, index: int, size: int) -> range:
    """Return the positions of the structs of a vector in a field of a table."""
    position = _field(content, table, index)
    if not position:
        return range(0)
    start = _table(content, position)
    return range(start + 4, start + 4 + size * _integer(content, "I", start), size)


def _integer(content: mmap.mmap, kind: str, position: int) -> int:
    """Return an integer in little-endian order. Raises `struct.error` outside of the file."""
    return int(struct.unpack_from(f"<{kind}", content, position)[0])
