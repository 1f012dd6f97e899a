"""JSON and TOML of unknown origin: size, depth and types are checked before anything else looks at a value.

Shapes declare types. A shape is `object` for any value, a type or a tuple of types, `[shape]` for a list of values, or
`{key: shape}` for an object. Keys may be missing or null, and an object may have further keys. True is no number.
"""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from calibrant._core.text import cut_middle, shorten_repr, to_one_line
from calibrant._core.types import InputError, prefix_errors

MAX_DEPTH = 64  # of nested lists and objects; Polars takes minutes for hundreds of levels
MAX_TOML_BYTES = 1 << 18
MAX_SHOWN_WHERE = 100  # characters of a place in errors
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
_LONG_KEY = re.compile(  # of more parts than tables may be nested, for which tomllib takes the square of their number
    rf"(?:(?:\"[^\"\n]{{0,200}}\"|'[^'\n]{{0,200}}'|(?<![\w-])[\w-]+)[ \t]*\.[ \t]*){{{MAX_DEPTH}}}"
)
_TYPE_NAMES = {
    str: "a text",
    int: "a number",
    float: "a number",
    dict: "an object",
    list: "a list",
    bool: "true or false",
}


# JSON


def parse_json(text: str | bytes, shape: Any = object) -> Any:
    """Return the JSON value of a text that has a shape.

    Raises:
        InputError: If the value is nested too deeply, is no JSON or has another shape, or if an object holds a key more
            than once, because readers differ on which value counts.
    """
    content = text.encode(errors="replace") if isinstance(text, str) else text
    check_depth(content)
    try:
        value = json.loads(text, object_pairs_hook=_to_dict)
    except InputError:
        raise
    except (ValueError, RecursionError) as error:  # such as of an integer with too many digits
        raise InputError(f"Expected JSON, got another text ({to_one_line(error)}).", code="unreadable") from None
    check_shape(value, shape)
    return value


def check_depth(content: bytes) -> None:
    """Raise `InputError` if JSON, on one line or several, is nested deeper than `MAX_DEPTH` levels."""
    if content.count(b"[") + content.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _TOKEN.finditer(content):
        character = content[match.start()]
        if character in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise InputError(
                    f"Expected at most {MAX_DEPTH} levels of nested lists and objects, got more. Try a file without "
                    "the fields that hold them.",
                    code="too_deep",
                )
        elif character in b"]}":
            depth -= 1


def check_depth_of_lines(content: bytes) -> None:
    """Raise `InputError` if a line of JSON lines is nested deeper than `MAX_DEPTH` levels."""
    for i, line in enumerate(content.splitlines(), 1):
        if len(line) > MAX_DEPTH and line.count(b"[") + line.count(b"{") > MAX_DEPTH:
            with prefix_errors(f"line {i:,}"):
                check_depth(line)


def _to_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs of an object as a dict, or raise `InputError` for a repeated key."""
    values = dict(pairs)
    if len(values) < len(pairs):
        repeated, count = Counter(key for key, _ in pairs).most_common(1)[0]
        raise InputError(
            f"Expected each key once in a JSON object, got {shorten_repr(repeated)} {count} times. Try other names for "
            "the further values.",
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
        except InputError as error:
            if error.code != "unreadable":  # else such as the last line of an evaluation that was interrupted
                raise
    if not isinstance(record, dict):
        raise InputError(
            f"Expected a JSON object per line, got another text in line {number:,}. If the file was cut off there, try "
            "it without this line.",
            code="unreadable",
        )
    return record  # pyright: ignore[reportUnknownVariableType]


def check_shape(value: Any, shape: Any, where: str = "") -> None:
    """Raise `InputError` if a value does not have a shape; the message names its place, which begins with `where`."""
    if shape is object:
        return
    if isinstance(shape, dict):
        _check_type(value, (dict,), where)
        for key, part in shape.items():
            if value.get(key) is not None:
                check_shape(value[key], part, f"{where}.{key}" if where else key)
    elif isinstance(shape, list):
        _check_type(value, (list,), where)
        for i, item in enumerate(value):
            check_shape(item, shape[0], f"{where}[{i}]")
    else:
        _check_type(value, shape if isinstance(shape, tuple) else (shape,), where)


def _check_type(value: Any, types: tuple[type, ...], where: str) -> None:
    """Raise `InputError` unless a value is of one of the types; None among them allows null."""
    is_flag_for_number = isinstance(value, bool) and bool not in types  # True is an int in Python
    if not isinstance(value, types) or is_flag_for_number:
        names = " or ".join(dict.fromkeys(_TYPE_NAMES.get(kind, "null") for kind in types))
        place = f" in {cut_middle(where, MAX_SHOWN_WHERE)}" if where else ""
        raise InputError(f"Expected {names}{place}, got {shorten_repr(value)}.", code="json_type")


# TOML


def read_toml(path: str | Path) -> dict[str, Any]:
    """Return the content of a TOML file. A byte order mark, which some editors write, is skipped.

    Raises:
        InputError: If the file cannot be read, is too large or nested too deeply, or is no TOML.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TOML_BYTES + 1)
        if len(content) > MAX_TOML_BYTES:
            raise InputError(f"{path}: Expected a TOML file of at most 256 KB, got a larger one.", code="toml")
        text = content.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot read {path}: {reason}.", code="unreadable") from None
    try:
        if _LONG_KEY.search(text):
            raise RecursionError
        values = tomllib.loads(text)
        _check_nesting(values)
    except (ValueError, RecursionError) as error:  # RecursionError of thousands of brackets
        reason = to_one_line(error) if isinstance(error, ValueError) else f"more than {MAX_DEPTH} nested levels"
        raise InputError(f"{path}: Expected TOML, got an error: {reason}.", code="toml") from None
    return values


def _check_nesting(values: Any) -> None:
    """Raise `RecursionError` if a value is nested deeper than `MAX_DEPTH` levels."""
    level, depth = [values], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RecursionError
        level = [
            item
            for value in level
            for item in (value.values() if isinstance(value, dict) else value)
            if isinstance(item, dict | list)
        ]
