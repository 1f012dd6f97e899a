"""Bytes of text files: compression, character encodings and JSON."""

import codecs
import gzip
import json
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

from calibrant._lazy import polars
from calibrant._text import shorten_repr
from calibrant.types import InputError, prefix_errors

SAMPLE_BYTES = 1 << 16  # for detecting the encoding
BYTE_ORDER_MARKS = (  # UTF-32 comes first: its mark begins with the mark of UTF-16
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read_zstandard(source: Path | BytesIO) -> bytes:
    """Decompress a text by Zstandard, which Python itself cannot before 3.14, but Polars can."""
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
        lambda path: gzip.decompress(path.read_bytes()),
        lambda path, content: path.write_bytes(gzip.compress(content, mtime=0)),  # equal texts give equal files
    ),
    ".zst": (read_zstandard, _write_zstandard),
}


def read_decompressed(path: Path) -> bytes:
    """Read a file, and decompress it if its suffix says so."""
    read, _ = COMPRESSIONS.get(path.suffix.lower(), (Path.read_bytes, None))
    return read(path)


def write_compressed(text: str, path: Path) -> None:
    """Write a text in UTF-8, and compress it if the suffix says so."""
    _, write = COMPRESSIONS.get(path.suffix.lower(), (None, Path.write_bytes))
    write(path, text.encode())


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
    used_encoding = encoding or _detect_encoding(content)
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


def _detect_encoding(content: bytes) -> str:
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


# JSON


def parse_json(text: str | bytes) -> Any:
    """Return the JSON value of a text.

    Raises:
        InputError: If an object holds a key more than once, because readers differ on which value counts.
    """
    return json.loads(text, object_pairs_hook=_to_dict)


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of an object as a dict, or raise `InputError` for a repeated key."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in values if keys.count(key) > 1)
        raise InputError(
            f"Expected each key once in a JSON object, got {shorten_repr(repeated)} {keys.count(repeated)} times. "
            "Try other names for the further values.",
            code="repeated_key",
        )
    return values


def parse_json_lines(content: bytes) -> list[dict[str, Any]]:
    """Return the JSON object of each line that is not blank.

    Raises:
        InputError: For a line that is no object or repeats a key, with its number, and if all lines are blank.
    """
    records = [_parse_line(line, i) for i, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not records:
        raise InputError("Expected a JSON object per line, got blank lines only.", code="no_rows")
    return records


def _parse_line(line: bytes, number: int) -> dict[str, Any]:
    """Return the JSON object of a line, or raise `InputError` with the line number for anything else."""
    record = None
    with prefix_errors(f"line {number:,}"):
        try:
            record = parse_json(line)
        except InputError:
            raise
        except (ValueError, RecursionError):  # such as the last line of an evaluation that was interrupted
            pass
    if not isinstance(record, dict):
        raise InputError(
            f"Expected a JSON object per line, got another text in line {number:,}. If the file was cut off there, try "
            "it without this line.",
            code="unreadable",
        )
    return record  # pyright: ignore[reportUnknownVariableType]
