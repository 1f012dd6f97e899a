"""Writing files so that a kill at any moment leaves the old file or the new one, never half of either."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from calibrant._types import InputError


@contextmanager
def written(path: str | Path) -> Generator[Path, None, None]:
    """Give a path beside `path` to write to; on leaving without an error it takes the place of `path` at once.

    Raises `InputError` if the folder cannot be written to.
    """
    path = Path(path)
    writable(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        shared(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def writable(path: str | Path) -> Path:
    """Make sure, before any work is done, that a file can be written at `path`; makes its folder.

    Raises `InputError` with the reason otherwise.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; give a file name in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another folder") from None
    return path


def shared(path: Path) -> None:
    """Let others read a file or folder as far as the process's umask says; temporary ones are for their owner only."""
    path.chmod((0o777 if path.is_dir() else 0o666) & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
