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
from calibrant.study.digests import Damaged, digest

SECONDS = 10.0  # a kill loses at most one epoch, or this much of shorter ones
MAGIC = b"calibrant checkpoint "


@dataclass(eq=False)
class Checkpoint:
    """A file of a training's state, and the rows of its epochs so far, which are kept with it.

    The file begins with the digest of the rest.
    """

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    kept: float = field(default_factory=time.monotonic)  # when it was written last

    def keep(self, state: Mapping[str, Any]) -> None:
        """Write the state and the rows, unless that was done a moment ago."""
        if time.monotonic() - self.kept < SECONDS:
            return
        whole = io.BytesIO()
        torch.save({**state, "rows": json.dumps(self.rows), "calibrant": __version__}, whole)
        with atomic_write(self.path) as draft, draft.open("wb") as file:  # a full disk is an OSError with an open file
            file.write(MAGIC + digest(whole.getvalue()).encode() + b"\n")
            file.write(whole.getvalue())
        self.kept = time.monotonic()

    def read(self) -> Mapping[str, Any] | None:
        """Read the state back, and the rows; None if nothing was kept. Raises `Damaged` if one cannot go on from it."""
        if not self.path.is_file():
            return None
        head, _, rest = self.path.read_bytes().partition(b"\n")
        if head != MAGIC + digest(rest).encode():
            raise Damaged("its checkpoint is not what was written")
        state: dict[str, Any] = torch.load(io.BytesIO(rest), weights_only=True, map_location="cpu")
        if minor(state["calibrant"]) != minor(__version__):
            raise Damaged(f"its checkpoint is of calibrant {state['calibrant']}")
        self.rows[:] = json.loads(state["rows"])
        return state


def minor(version: str) -> str:
    """Return a version without its last number: between others of these, trainings are not mixed unasked.

    >>> minor("0.2.1")
    '0.2'
    """
    return ".".join(version.split(".")[:2])
