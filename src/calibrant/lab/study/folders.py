"""Lock, create and move the folders of a store, safely for many writers and for a kill at any moment."""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from uuid import uuid4

from calibrant.io import apply_umask
from calibrant.lab.study.stored_files import find_damage

MAX_DRAFT_AGE_SECONDS = 86400


@contextmanager
def try_lock(path: Path) -> Generator[bool]:
    """Try to take a lock, which ends with this process at the latest; yield whether it was free."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()


@contextmanager
def open_draft(root: Path, name: str) -> Generator[Path]:
    """Yield a folder to fill, which becomes runs/NAME in one step if no error occurs.

    A lock beside the draft shows other processes that its writer is alive.
    """
    draft = root / "drafts" / f"{name}-{uuid4().hex[:12]}"
    try:
        with try_lock(_lock_path(draft)):
            try:
                draft.mkdir()
                yield draft
                for path in draft.iterdir():
                    apply_umask(path)
                    _fsync(path)
                apply_umask(draft)
                _move_into_place(root, draft, root / "runs" / name)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        error.filename = error.filename or str(root)
        raise
    finally:
        with suppress(OSError):
            _lock_path(draft).unlink(missing_ok=True)


def delete_stale_drafts(root: Path, now: float) -> None:
    """Delete drafts that are older than a day and not locked: their writers were killed."""
    for draft in {path.with_name(path.name.removesuffix(".lock")) for path in (root / "drafts").iterdir()}:
        lock = _lock_path(draft)
        with suppress(OSError):
            if now - (draft if draft.exists() else lock).stat().st_mtime > MAX_DRAFT_AGE_SECONDS:
                with try_lock(lock) as is_locked:
                    if is_locked:
                        shutil.rmtree(draft, ignore_errors=True)
                        lock.unlink(missing_ok=True)


def set_aside(root: Path, path: Path) -> Path:
    """Move a damaged file or folder into damaged/, and return its new place."""
    folders = (root / f"damaged{f'-{i}' if i else ''}" for i in count())
    folder = next(f for f in folders if f.is_dir() or not os.path.lexists(f))
    folder.mkdir(exist_ok=True)
    places = (folder / f"{path.name}{f'-{i}' if i else ''}" for i in count())
    place = next(p for p in places if not os.path.lexists(p))
    with suppress(FileNotFoundError):  # another process moved it
        path.rename(place)
    return place


def _move_into_place(root: Path, draft: Path, place: Path) -> None:
    """Rename a draft; a finished run in its place wins, a folder without its record is set aside."""
    try:
        draft.rename(place)
    except OSError:
        if find_damage(place, record_only=True):
            set_aside(root, place)
            draft.rename(place)


def _lock_path(draft: Path) -> Path:
    return draft.with_name(f"{draft.name}.lock")


def _fsync(path: Path) -> None:
    with path.open("r+b") as file:  # some systems only sync files that are open for writing
        os.fsync(file.fileno())
