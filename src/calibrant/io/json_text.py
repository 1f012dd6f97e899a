"""Parse JSON without ambiguity: an object that holds a key twice is refused, because readers differ on which counts."""

import json
from typing import Any

from calibrant._text import shorten_repr
from calibrant.types import InputError, prefix_errors


def parse_json(text: str | bytes) -> Any:
    """Return the JSON value of a text, or raise `InputError` if an object holds a key more than once."""
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
