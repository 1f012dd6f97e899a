"""Stored files and folders: digests that detect damage, checkpoints, locks, and safe moves."""

import errno
import hashlib
import io
import json
import os
import shutil
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch

from calibrant._core.files import apply_umask, atomic_write
from calibrant._core.foreign import parse_json
from calibrant._core.kernels.digests import json_digest
from calibrant._core.types import InputError
from calibrant._core.version import __version__

RECORD_FILE = "run.json"
RUN_RECORD_SHAPE = {"id": str, "run": dict, "data": dict, "learned": str, "facts": dict, "files": dict}
NETWORK_FILE = "network.safetensors"
# A file is missing, not a file, or unreadable. Other errors, such as of permissions or the network, are not damage.
DAMAGE_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP}
MIN_SAVE_INTERVAL_SECONDS = 10.0  # a kill loses at most one epoch, or this much of shorter ones
MAX_DRAFT_AGE_SECONDS = 86400
MAGIC_BYTES = b"calibrant checkpoint "


class DamagedError(InputError):
    """A stored file differs from what was written, or cannot be read."""

    def __init__(self, message: str = "", *, code: str = "damaged") -> None:
        super().__init__(message, code=code)


def sha256_hex(content: bytes) -> str:
    """Return the SHA-256 digest of bytes as hex digits. Takes about a second per gigabyte."""
    return hashlib.sha256(content).hexdigest()


def minor_version(version: str) -> str:
    """Return a version without its last number. Trainings of different minor versions are not mixed by default.

    >>> minor_version("0.2.1")
    '0.2'
    """
    return ".".join(version.split(".")[:2])


# Records of finished runs


def serialize_record(record: Mapping[str, Any]) -> str:
    """Return a record as JSON with its own digest under "seal"."""
    return json.dumps({**record, "seal": _record_digest(record)}, indent=1)


def read_record(folder: Path, name: str = "") -> dict[str, Any]:
    """Read the record of a run's folder.

    Args:
        folder: Folder of the run.
        name: Expected name of the run; the name of the folder by default.

    Raises:
        DamagedError: If the record is missing, changed, or belongs to another run.
    """
    content = _read_bytes(folder / RECORD_FILE)
    try:
        record: dict[str, Any] = parse_json(content, RUN_RECORD_SHAPE)
    except InputError as error:
        raise DamagedError(f"{RECORD_FILE} is no record: {error}") from None
    if record.pop("seal", "") != _record_digest(record):
        raise DamagedError(f"{RECORD_FILE} is not what was written")
    if missing := [key for key in RUN_RECORD_SHAPE if record.get(key) is None]:
        raise DamagedError(f"{RECORD_FILE} has no {missing[0]!r}")
    if record["id"] != (name or folder.name):
        raise DamagedError(f"it is run {record['id']}")
    return record


def read_run_file(folder: Path, record: Mapping[str, Any], name: str) -> bytes:
    """Read a file of a run's folder. Raises `DamagedError` if its digest differs from the record's."""
    content = _read_bytes(folder / name)
    if sha256_hex(content) != record["files"].get(name):
        raise DamagedError(f"{name} is not what was written")
    return content


def find_damage(folder: Path, name: str = "", *, record_only: bool = False) -> str:
    """Return what is wrong with the record of a run or with its files, or "" if they are intact.

    The network is left out, as it is large, not needed for tables, and verified when it is used. With `record_only`,
    only the record is read. `name` is the expected name of the run, by default that of the folder.
    """
    try:
        record = read_record(folder, name)
        if not record_only:
            for file in record["files"].keys() - {NETWORK_FILE}:
                read_run_file(folder, record, file)  # raises if it is damaged
    except DamagedError as error:
        return str(error)
    return ""


def read_run_files(folder: Path) -> dict[str, bytes]:
    """Return the content of every file in a run's folder. Raises `DamagedError` if one cannot be read."""
    return {path.name: _read_bytes(path) for path in folder.iterdir() if path.is_file()}  # a run has no folders


def _read_bytes(path: Path) -> bytes:
    """Read a file. Raises `DamagedError` for the errors in `DAMAGE_ERRNOS` or if it is not a regular file."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait forever
            raise DamagedError(f"{path.name} is not a file")
        return path.read_bytes()
    except OSError as error:
        if error.errno not in DAMAGE_ERRNOS:
            raise
        raise DamagedError(f"{path.name} cannot be read ({error.strerror})") from None


def _record_digest(record: Any) -> str:
    """Return the digest of a record, in the form in which JSON returns it: with texts as keys, lists for tuples."""
    return json_digest(json.loads(json.dumps(record)))


# Checkpoints


@dataclass(eq=False)
class Checkpoint:
    """A file with a training's state and the rows of its epochs. Its first line is the digest of the rest."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    saved_at: float = field(default_factory=time.monotonic)  # time of the last write

    def save(self, state: Mapping[str, Any], *, at_once: bool = False) -> None:
        """Write the state and the rows, unless the last write was `MIN_SAVE_INTERVAL_SECONDS` ago or less.

        If `at_once`, they are always written.
        """
        if not at_once and time.monotonic() - self.saved_at < MIN_SAVE_INTERVAL_SECONDS:
            return
        buffer = io.BytesIO()  # in memory, as torch.save hides the OSError of a full disk
        torch.save({**state, "rows": json.dumps(self.rows), "calibrant": __version__}, buffer)
        content = buffer.getvalue()
        with atomic_write(self.path) as draft, draft.open("wb") as file:
            file.write(MAGIC_BYTES + sha256_hex(content).encode() + b"\n")
            file.write(content)
        self.saved_at = time.monotonic()

    def read(self) -> Mapping[str, Any] | None:
        """Return the state that was saved, or None if there is no file. The rows are restored to `rows`.

        Raises:
            DamagedError: If the file was changed, or another minor version wrote it.
        """
        if not self.path.is_file():
            return None
        head, _, body = self.path.read_bytes().partition(b"\n")
        if head != MAGIC_BYTES + sha256_hex(body).encode():
            raise DamagedError("its checkpoint is not what was written")
        state: dict[str, Any] = torch.load(io.BytesIO(body), weights_only=True, map_location="cpu")
        if minor_version(state["calibrant"]) != minor_version(__version__):
            raise DamagedError(f"its checkpoint is of calibrant {state['calibrant']}")
        self.rows = parse_json(state["rows"], [dict])
        return state


# Folders of a store, which many processes write, and which survive a kill at any moment


@contextmanager
def name_in_errors(folder: Path) -> Generator[None]:
    """Name a folder in an `OSError` without a file, such as of a full disk."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(folder)
        raise


@contextmanager
def try_lock(path: Path) -> Generator[bool]:
    """Try to take a lock for the block, and yield whether it was free. The end of the process releases it, too."""
    from filelock import FileLock, Timeout

    try:
        with FileLock(path, timeout=0):
            yield True
    except Timeout:  # another process holds it
        yield False


@contextmanager
def open_draft(root: Path, name: str) -> Generator[Path]:
    """Yield an empty folder to fill, the draft, which becomes runs/NAME in one step if no error occurs.

    A lock beside the draft shows other processes that its writer is alive, so that they do not delete it as stale.
    """
    draft = root / "drafts" / f"{name}-{uuid4().hex[:12]}"
    try:
        with name_in_errors(root), try_lock(_lock_path(draft)):
            try:
                draft.mkdir()
                yield draft
                for path in draft.iterdir():
                    apply_umask(path)
                    _fsync(path)  # before the folder is renamed, so that a crash cannot leave empty files in runs/
                apply_umask(draft)
                _move_draft(root, draft, root / "runs" / name)
            finally:
                shutil.rmtree(draft, ignore_errors=True)  # still there after an error
    finally:
        with suppress(OSError):
            _lock_path(draft).unlink(missing_ok=True)


def delete_stale_drafts(root: Path, now: float) -> None:
    """Delete drafts that are older than a day and not locked: their writers were killed.

    `now` is the time by the clock of the file system, which may differ from this machine's on a shared disk.
    """
    paths = (root / "drafts").iterdir()  # drafts and their locks; either may be missing
    for draft in {path.with_name(path.name.removesuffix(".lock")) for path in paths}:
        lock = _lock_path(draft)
        with suppress(OSError):  # another process may delete them at the same time
            written_at = (draft if draft.exists() else lock).stat().st_mtime
            if now - written_at > MAX_DRAFT_AGE_SECONDS:
                with try_lock(lock) as is_locked:
                    if is_locked:  # by this process, so its writer is dead
                        shutil.rmtree(draft, ignore_errors=True)
                        lock.unlink(missing_ok=True)


def move_to_damaged(root: Path, path: Path) -> Path:
    """Move a damaged file or folder into damaged/, and return its new path.

    Names that are taken get a number: damaged-1/ if damaged is a file, NAME-1 if damaged/ has a NAME.
    """
    folder = next(f for f in _numbered_paths(root / "damaged") if f.is_dir() or not os.path.lexists(f))
    folder.mkdir(exist_ok=True)
    new_path = next(p for p in _numbered_paths(folder / path.name) if not os.path.lexists(p))
    with suppress(FileNotFoundError):  # another process moved it
        path.rename(new_path)
    return new_path


def _numbered_paths(path: Path) -> Iterator[Path]:
    """Yield NAME, NAME-1, NAME-2, ..."""
    yield path
    yield from (path.with_name(f"{path.name}-{i}") for i in count(1))


def _move_draft(root: Path, draft: Path, run_folder: Path) -> None:
    """Rename a draft to the folder of its run, or leave it in place if another process has stored the run.

    A damaged folder of the run is moved to damaged/ first.
    """
    try:
        draft.rename(run_folder)
    except OSError:  # the folder exists
        if find_damage(run_folder, record_only=True):
            move_to_damaged(root, run_folder)
            draft.rename(run_folder)


def _lock_path(draft: Path) -> Path:
    """Return the path of the lock beside a draft."""
    return draft.with_name(f"{draft.name}.lock")


def _fsync(path: Path) -> None:
    """Wait until the disk holds a file."""
    with path.open("r+b") as file:  # some systems only sync files that are open for writing
        os.fsync(file.fileno())
