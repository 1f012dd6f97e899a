"""A lock of the file of a watch against two writers."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from calibrant._core.types import InputError

LOCK_SECONDS = 60.0  # before a second writer gives up


@contextmanager
def lock_state(path: str | Path, seconds: float = LOCK_SECONDS) -> Generator[None]:
    """Wait for another writer, then hold the lock of a state while it is read, changed and written.

    The operating system releases the lock of a process that is killed.

    Raises:
        InputError: If another process holds the lock for longer than `seconds`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    # a file of its own, as every writer replaces the file of the state
    with path.with_name(f".{path.name}.lock").open("a+b") as file:
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise InputError(
                    f"{path}: Expected to write this state alone, got another process that writes it. Try again later.",
                    code="locked",
                )
            time.sleep(0.05)
        yield


def _try_lock(file: Any) -> bool:
    """Lock a file until it is closed, and return True, or return False if another process holds the lock."""
    try:
        if os.name == "nt":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # pyright: ignore[reportAttributeAccessIssue]
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
