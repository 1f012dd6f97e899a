"""Files of a watch: its state, which survives kills and full disks, and a lock against two writers."""

import json
import math
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from calibrant._version import __version__
from calibrant.io import atomic_write
from calibrant.io.arrays import read_tensors
from calibrant.io.results import check_suffix, write_by_suffix
from calibrant.monitoring._evidence import Wealth
from calibrant.monitoring._periods import PERIOD_ARRAYS, Periods
from calibrant.monitoring._rows import RecentRows, Rows
from calibrant.types import InputError

if TYPE_CHECKING:
    from calibrant.monitoring._watch import Watch

STATE_FORMAT = "calibrant-watch"
STATE_VERSION = "1"
STATE_SUFFIX = ".watch"
OUTPUT_SUFFIXES = (STATE_SUFFIX, ".html", ".json", ".prom")
LOCK_SECONDS = 60.0  # before a second writer gives up
_ARRAYS = {  # of the parts of a watch
    "evidence": Wealth.names(),
    "pending": Rows.names(),
    "recent": RecentRows.names(),
    "periods": PERIOD_ARRAYS,
}
_SETTINGS = ("alpha", "of", "by_class", "epoch", "k", "class_names", "group_names", "rows", "contract")


def save_watch(watch: "Watch", path: Path, periods: int) -> None:
    """Write a state or its verdict, by the suffix of the path; see `Watch.save`."""
    check_suffix(path, OUTPUT_SUFFIXES)
    if path.suffix == STATE_SUFFIX:
        with atomic_write(path) as draft:
            _write_state(watch, draft)
        return
    from calibrant.monitoring._page import watch_page

    verdict = watch.verdict
    pages = {".html": lambda: watch_page(watch, periods), ".json": verdict.json, ".prom": verdict.prometheus}
    write_by_suffix(path, pages)


def _write_state(watch: "Watch", draft: Path) -> None:
    from safetensors.numpy import save

    arrays = {
        f"{part}.{name}": np.ascontiguousarray(getattr(getattr(watch, part), name))
        for part, names in _ARRAYS.items()
        for name in names
    }
    arrays["batches"] = watch.batches
    settings: dict[str, Any] = {name: getattr(watch, name) for name in _SETTINGS}
    settings["last_time"] = watch.last_time if math.isfinite(watch.last_time) else None
    settings |= {"periods": watch.periods.names, "first_period": watch.periods.first}
    metadata = {"format": STATE_FORMAT, "version": STATE_VERSION, "written_by": __version__}
    with draft.open("wb") as file:
        file.write(save(arrays, metadata={**metadata, "settings": json.dumps(settings)}))
        file.flush()
        os.fsync(file.fileno())  # before the rename, so that a power cut cannot leave an empty file


def load_fields(path: Path) -> dict[str, Any]:
    """Read the fields of a state; see `Watch.load`."""
    tensors, metadata = read_tensors(path)
    if metadata.get("format") != STATE_FORMAT:
        raise InputError("Expected the state of a watch, got another or a damaged file.", code="state_file")
    if metadata.get("version") != STATE_VERSION:
        raise InputError(
            f"Expected a state of version {STATE_VERSION}, got version {metadata.get('version')!r}, written by "
            f"calibrant {metadata.get('written_by')}. Try that version, or a new state.",
            code="state_version",
        )
    settings = json.loads(metadata["settings"])
    period_names, first_period = tuple(settings.pop("periods")), settings.pop("first_period")
    for name in ("class_names", "group_names"):
        settings[name] = None if settings[name] is None else tuple(settings[name])
    settings["last_time"] = -math.inf if settings["last_time"] is None else settings["last_time"]
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    parts = {part: {name: arrays[f"{part}.{name}"] for name in names} for part, names in _ARRAYS.items()}
    return settings | {
        "evidence": Wealth(**parts["evidence"]),
        "pending": Rows(**parts["pending"]),
        "recent": RecentRows(**parts["recent"]),
        "periods": Periods(first_period, period_names, **parts["periods"]),
        "batches": arrays["batches"],
    }


@contextmanager
def lock_state(path: str | Path, seconds: float = LOCK_SECONDS) -> Generator[None]:
    """Hold the lock of a state while it is read, changed and written; wait for another writer first.

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
    """Lock a file until it is closed, unless another process has."""
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
