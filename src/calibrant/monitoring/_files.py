"""Files of a watch: its state, which survives kills and full disks, and a lock against two writers."""

import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrant import calibrators
from calibrant.io.files import atomic_write, check_suffix, write_by_suffix
from calibrant.types import InputError

if TYPE_CHECKING:
    from calibrant.monitoring._watch import Watch

STATE_SUFFIX = ".watch"
OUTPUT_SUFFIXES = (STATE_SUFFIX, ".html", ".json", ".prom")
LOCK_SECONDS = 60.0  # before a second writer gives up


def save_watch(watch: "Watch", path: Path, periods: int) -> None:
    """Write a state or its verdict, depending on the suffix (see `Watch.save`)."""
    check_suffix(path, OUTPUT_SUFFIXES)
    if path.suffix == STATE_SUFFIX:
        with atomic_write(path) as draft:
            calibrators.save(watch, draft)
            with draft.open("r+b") as file:
                os.fsync(file.fileno())  # before the rename, so that a power cut cannot leave an empty file
        return
    from calibrant.monitoring._page import watch_page

    verdict = watch.verdict
    pages = {".html": lambda: watch_page(watch, periods), ".json": verdict.json, ".prom": verdict.prometheus}
    write_by_suffix(path, pages)


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
