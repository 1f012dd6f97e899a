"""All that an interrupted training needs to go on, in one file that is whole or told to be damaged."""

import io
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from calibrant import __version__
from calibrant.io import atomic_write
from calibrant.lab.study.digests import DamagedError, sha256_hex

MIN_SAVE_INTERVAL_SECONDS = 10.0  # a kill loses at most one epoch, or this much of shorter ones
MAGIC_BYTES = b"calibrant checkpoint "


@dataclass(eq=False)
class Checkpoint:
    """A file of a training's state, and the rows of its epochs so far, which are kept with it.

    The file begins with the digest of the rest.
    """

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    saved_at: float = field(default_factory=time.monotonic)  # when it was written last

    def save(self, state: Mapping[str, Any]) -> None:
        """Write the state and the rows, unless that was done a moment ago."""
        if time.monotonic() - self.saved_at < MIN_SAVE_INTERVAL_SECONDS:
            return
        buffer = io.BytesIO()
        torch.save({**state, "rows": json.dumps(self.rows), "calibrant": __version__}, buffer)
        with atomic_write(self.path) as draft, draft.open("wb") as file:  # a full disk is an OSError with an open file
            file.write(MAGIC_BYTES + sha256_hex(buffer.getvalue()).encode() + b"\n")
            file.write(buffer.getvalue())
        self.saved_at = time.monotonic()

    def read(self) -> Mapping[str, Any] | None:
        """Read the state back, and the rows; None if nothing was kept. Raises `Damaged` if one cannot go on from it."""
        if not self.path.is_file():
            return None
        head, _, body = self.path.read_bytes().partition(b"\n")
        if head != MAGIC_BYTES + sha256_hex(body).encode():
            raise DamagedError("its checkpoint is not what was written")
        state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True, map_location="cpu")
        if minor_version(state["calibrant"]) != minor_version(__version__):
            raise DamagedError(f"its checkpoint is of calibrant {state['calibrant']}")
        self.rows[:] = json.loads(state["rows"])
        return state


def minor_version(version: str) -> str:
    """Return a version without its last number: between others of these, trainings are not mixed unasked.

    >>> minor_version("0.2.1")
    '0.2'
    """
    return ".".join(version.split(".")[:2])
