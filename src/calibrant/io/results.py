"""Results as JSON with their provenance, and as files whose format is told by the suffix."""

import json
import math
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibrant._version import __version__
from calibrant.io.files import write_text
from calibrant.types import InputError


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
