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
from calibrant.monitoring._evidence import EVIDENCE_FIELDS, Wealth
from calibrant.monitoring._periods import Periods
from calibrant.monitoring._rows import ROWS_FIELDS, RecentRows, Rows
from calibrant.types import InputError

if TYPE_CHECKING:
    from calibrant.monitoring._watch import Watch

STATE_FORMAT = "calibrant-watch"
STATE_VERSION = "1"
STATE_SUFFIX = ".watch"
OUTPUT_SUFFIXES = (STATE_SUFFIX, ".html", ".json", ".prom")
LOCK_SECONDS = 60.0  # before a second writer gives up
_PERIOD_ARRAYS = ("predicted", "first_row", "sums", "peak")
_SETTINGS = ("alpha", "of", "by_class", "epoch", "k", "class_names", "group_names", "rows", "contract")


def save_watch(watch: "Watch", path: Path, periods: int) -> None:
    """Write a state or its verdict, by the suffix of the path; see `Watch.save`."""
    if path.suffix not in OUTPUT_SUFFIXES:
        raise InputError(
            f"Expected a file name that ends in {', '.join(OUTPUT_SUFFIXES)}, got {str(path)!r}. Try "
            f"{path.stem}.watch.",
            code="suffix",
        )
    with atomic_write(path) as draft:
        if path.suffix == STATE_SUFFIX:
            _write_state(watch, draft)
        elif path.suffix == ".html":
            from calibrant.monitoring._page import watch_page

            draft.write_text(watch_page(watch, periods), encoding="utf-8")
        else:
            text = watch.verdict.json() if path.suffix == ".json" else watch.verdict.prometheus()
            draft.write_text(text, encoding="utf-8")


def _write_state(watch: "Watch", draft: Path) -> None:
    from safetensors.numpy import save

    arrays = {f"evidence.{name}": getattr(watch.evidence, name) for name in EVIDENCE_FIELDS}
    arrays |= {f"pending.{name}": getattr(watch.pending, name) for name in ROWS_FIELDS}
    arrays |= {f"recent.{name}": getattr(watch.recent, name) for name in ("keys", "labels")}
    arrays |= {f"periods.{name}": getattr(watch.periods, name) for name in _PERIOD_ARRAYS}
    arrays["batches"] = watch.batches
    settings: dict[str, Any] = {name: getattr(watch, name) for name in _SETTINGS}
    settings["last_time"] = watch.last_time if math.isfinite(watch.last_time) else None
    settings |= {"periods": watch.periods.names, "first_period": watch.periods.first}
    metadata = {"format": STATE_FORMAT, "version": STATE_VERSION, "written_by": __version__}
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with draft.open("wb") as file:
        file.write(save(contiguous, metadata={**metadata, "settings": json.dumps(settings)}))
        file.flush()
        os.fsync(file.fileno())  # before the rename, so that a power cut cannot leave an empty file


def load_fields(path: Path) -> dict[str, Any]:
    """Read the fields of a state; see `Watch.load`."""
    arrays, metadata = _read_state(path)
    if metadata.get("format") != STATE_FORMAT:
        raise InputError(f"{path}: Expected the state of a watch, got another file.", code="state_file")
    if metadata.get("version") != STATE_VERSION:
        raise InputError(
            f"{path}: Expected a state of version {STATE_VERSION}, got version {metadata.get('version')!r}, written by "
            f"calibrant {metadata.get('written_by')}. Try that version, or a new state.",
            code="state_version",
        )
    settings = json.loads(metadata["settings"])
    period_names, first_period = tuple(settings.pop("periods")), settings.pop("first_period")
    for name in ("class_names", "group_names"):
        settings[name] = None if settings[name] is None else tuple(settings[name])
    settings["last_time"] = -math.inf if settings["last_time"] is None else settings["last_time"]
    return settings | {
        "evidence": Wealth(**{name: arrays[f"evidence.{name}"] for name in EVIDENCE_FIELDS}),
        "pending": Rows(**{name: arrays[f"pending.{name}"] for name in ROWS_FIELDS}),
        "recent": RecentRows(arrays["recent.keys"], arrays["recent.labels"]),
        "periods": Periods(first_period, period_names, **{name: arrays[f"periods.{name}"] for name in _PERIOD_ARRAYS}),
        "batches": arrays["batches"],
    }


def _read_state(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"{path}: There is no such file.", code="no_file")
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError:
        raise InputError(
            f"{path}: Expected the state of a watch, got another or a damaged file.", code="state_file"
        ) from None


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
