"""Where numbers come from: the version that made them, when, from which data, and which saved calibrators."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from calibrant._version import __version__
from calibrant.predictions import Predictions


def provenance(data: Iterable[Mapping[str, Any]], overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the block of a JSON file that says where its numbers come from; `more` replaces what it names."""
    time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    block = {"version": __version__, "time": time, "data": list(data), "calibrators": list[Any]()}
    return block | dict(overrides or {})


def data_source(
    role: str, p: Predictions | None = None, *, path: str | Path | None = None, n: int | None = None
) -> dict[str, Any]:
    """Describe one set of predictions: its role, file, rows, digest, and what was noticed or left out on reading it.

    Without `p`, which was read in pieces, there is no digest.
    """
    return {
        "role": role,
        "path": None if path is None else str(path),
        "n": n if p is None else len(p),
        "digest": None if p is None else p.digest,
        "notes": [] if p is None else list(p.notes),
    }


def calibrator_source(role: str, path: str | Path) -> dict[str, Any]:
    """Describe a saved calibrator: its role, file, and the first sixteen hex digits of the file's SHA-256."""
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
    return {"role": role, "path": str(path), "digest": digest}
