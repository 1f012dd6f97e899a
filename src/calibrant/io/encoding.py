"""Bytes of text files: compression and character encodings."""

import codecs
import gzip
from collections.abc import Callable
from contextlib import nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any

from calibrant._core.expansion import MAX_SMALL_SIZE, check_expansion
from calibrant._core.lazy import polars
from calibrant._core.text import shorten_repr
from calibrant._core.types import InputError

SAMPLE_BYTES = 1 << 16  # for detecting the encoding
MAX_GZIP_RATIO = 1032
ZSTANDARD, SKIPPABLE_ZSTANDARD = 0xFD2FB528, 0x184D2A50  # magic numbers; the last 4 bits of the second are free
MAX_ZSTANDARD_BLOCK = 1 << 17
BYTE_ORDER_MARKS = (  # UTF-32 comes first: its mark begins with the mark of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _read_gzip(path: Path) -> bytes:
    """Decompress a text by gzip. Large ones are decompressed twice, first to learn their size in little memory."""
    num_compressed = path.stat().st_size
    if num_compressed > MAX_SMALL_SIZE / MAX_GZIP_RATIO:
        num_bytes = 0
        with gzip.open(path) as file:
            while chunk := file.read(1 << 20):
                num_bytes += len(chunk)
                check_expansion(num_compressed, num_bytes)
    return gzip.decompress(path.read_bytes())


def max_zstandard_size(file: IO[bytes], num_bytes: int) -> int:
    """Return an upper bound of the decompressed size of the next `num_bytes` of a file, from the headers of blocks.

    A block holds at most 128 KB (RFC 8878, section 3.1.1). Bytes that are no Zstandard count as none.
    """
    end, size = file.tell() + num_bytes, 0
    while file.tell() + 8 < end:
        magic = int.from_bytes(file.read(4), "little")
        if magic & 0xFFFFFFF0 == SKIPPABLE_ZSTANDARD:
            file.seek(int.from_bytes(file.read(4), "little"), 1)
            continue
        if magic != ZSTANDARD:
            break
        descriptor = file.read(1)[0]
        is_single_segment, has_checksum = bool(descriptor & 32), bool(descriptor & 4)
        content_size_bytes = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
        file.seek((0 if is_single_segment else 1) + (0, 1, 2, 4)[descriptor & 3] + content_size_bytes, 1)
        is_last = False
        while not is_last and file.tell() + 3 <= end:
            block = int.from_bytes(file.read(3), "little")
            is_last, kind, length = bool(block & 1), block >> 1 & 3, block >> 3
            size += length if kind == 0 else MAX_ZSTANDARD_BLOCK  # kind 0 is not compressed
            file.seek(1 if kind == 1 else length, 1)  # kind 1 repeats a byte
        file.seek(4 if has_checksum else 0, 1)
    return size


def read_zstandard(source: Path | BytesIO) -> bytes:
    """Decompress a text by Zstandard, which Python itself cannot before 3.14, but Polars can."""
    with source.open("rb") if isinstance(source, Path) else nullcontext(source) as file:
        num_compressed = file.seek(0, 2)
        file.seek(0)
        check_expansion(num_compressed, max_zstandard_size(file, num_compressed))
        file.seek(0)
    # Separators that no text contains keep the whole text in one cell
    read_options: dict[str, Any] = {"separator": "\x1f", "quote_char": None, "eol_char": "\x1e", "infer_schema": False}
    return str(polars.read_csv(source, has_header=False, glob=False, **read_options).item()).encode()


def _write_zstandard(path: Path, content: bytes) -> None:
    """Compress a text by Zstandard.

    Python itself has no Zstandard before 3.14, so Polars writes the whole text as the only cell of a CSV file, without
    header, quotes or a final line break.
    """
    write_options: dict[str, Any] = {"include_header": False, "quote_style": "never", "line_terminator": ""}
    frame = polars.DataFrame({"text": [content.decode()]})
    frame.write_csv(path, compression="zstd", check_extension=False, **write_options)


COMPRESSIONS: dict[str, tuple[Callable[[Path], bytes], Callable[[Path, bytes], object]]] = {  # read and write
    ".gz": (
        _read_gzip,
        lambda path, content: path.write_bytes(gzip.compress(content, mtime=0)),  # equal texts give equal files
    ),
    ".zst": (read_zstandard, _write_zstandard),
}


def read_decompressed(path: Path) -> bytes:
    """Read a file, and decompress it if its suffix says so."""
    read, _ = COMPRESSIONS.get(path.suffix.lower(), (Path.read_bytes, None))
    return read(path)


def write_compressed(text: str, path: Path, encoding: str = "utf-8") -> None:
    """Write a text, and compress it if the suffix says so. UTF-8 replaces an encoding that lacks a character."""
    _, write = COMPRESSIONS.get(path.suffix.lower(), (None, Path.write_bytes))
    try:
        content = text.encode(encoding)
    except UnicodeEncodeError:
        content = text.encode()
    write(path, content)


def to_utf8(content: bytes, encoding: str | None = None) -> tuple[bytes, tuple[str, ...]]:
    """Return a text as UTF-8 without a byte order mark.

    Args:
        content: The text in any encoding.
        encoding: Its encoding; detected if None.

    Returns:
        The text, and a note if another encoding than UTF-8 was detected.

    Raises:
        InputError: If the encoding is unknown, or does not fit.
    """
    used_encoding = encoding or detect_encoding(content)
    if encoding is None and used_encoding == "utf-8":  # with a byte order mark, it is "utf-8-sig"
        return content, ()
    note = f"The encoding {used_encoding} was detected; encoding= (--encoding) sets another one."
    try:
        return content.decode(used_encoding).removeprefix("\ufeff").encode(), (note,) if encoding is None else ()
    except (LookupError, UnicodeError) as error:
        raise InputError(
            f"Expected text in the encoding {shorten_repr(used_encoding)}, got other bytes. Try another encoding= "
            "(--encoding), such as utf-8 or cp1252.",
            code="unknown_encoding" if isinstance(error, LookupError) else "encoding",
        ) from None


def detect_encoding(content: bytes) -> str:
    """Return the encoding that a byte order mark declares, else the first that fits."""
    declared = next((name for mark, name in BYTE_ORDER_MARKS if content.startswith(mark)), None)
    if declared is not None:
        return declared
    sample = content[:SAMPLE_BYTES]
    half = max(1, len(sample) // 2)
    # In UTF-16, the high byte of most characters is 0: every second byte, and few others. In UTF-32, 3 of 4 bytes are 0
    for high_bytes, name in ((sample[1::2], "utf-16-le"), (sample[::2], "utf-16-be")):
        if high_bytes.count(0) > 0.4 * half and sample.count(0) < 0.6 * len(sample):
            return name
    for name in ("utf-8", "cp1252"):
        with suppress(UnicodeError):
            content.decode(name)
            return name
    return "latin-1"  # which has a character for every byte
