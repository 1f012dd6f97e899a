"""A second home for finished runs, at any URL that fsspec knows: s3://, gs://, abfs://, sftp://, file://, ..."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrant.lab.study.digests import RECORD_FILE, UNREADABLE_ERRNOS, DamagedError
from calibrant.types import InputError


class MirrorError(InputError):
    """A mirror that cannot be reached."""

    def __init__(self, message: str = "", *, code: str = "mirror_unreachable") -> None:
        super().__init__(message, code=code)


@dataclass(frozen=True)
class Mirror:
    """Runs as runs/ID/ below a URL. A run is there if and only if its record is, which is sent last."""

    url: str

    @cached_property
    def _location(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        with self._wrap_errors():
            return url_to_fs(self.url)

    def run_names(self) -> set[str]:
        """Return the ids of the runs that are there."""
        files, root = self._location
        with self._wrap_errors():
            paths = (path.split("/") for path in files.find(f"{root}/runs", maxdepth=2))
            return {path[-2] for path in paths if path[-1] == RECORD_FILE}

    def send(self, folder: Path) -> None:
        """Copy the folder of a finished run there."""
        files, root = self._location
        with self._wrap_errors():
            files.makedirs(f"{root}/runs/{folder.name}", exist_ok=True)
            folder_files = [path for path in folder.iterdir() if path.is_file()]
            for path in sorted(folder_files, key=lambda path: path.name == RECORD_FILE):
                files.put_file(str(path), f"{root}/runs/{folder.name}/{path.name}")

    def fetch(self, name: str, folder: Path) -> None:
        """Copy the files of a run from there into an empty folder. Raises `Damaged` if one of them cannot be read."""
        files, root = self._location
        with self._wrap_errors():
            for path in files.ls(f"{root}/runs/{name}", detail=False):
                try:
                    if files.isfile(path):
                        files.get_file(path, str(folder / path.rpartition("/")[2]))
                except OSError as error:
                    if error.errno not in UNREADABLE_ERRNOS:
                        raise
                    raise DamagedError(f"{path.rpartition('/')[2]} cannot be read ({error.strerror})") from None

    @contextmanager
    def _wrap_errors(self) -> Generator[None]:
        try:
            yield
        except DamagedError:
            raise
        except (OSError, ValueError, ImportError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise MirrorError(f"cannot reach the mirror {self.url}: {reason}; finished runs are kept here") from None
