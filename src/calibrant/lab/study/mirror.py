"""Share finished runs through any URL that fsspec supports: s3://, gs://, abfs://, sftp://, file://, ..."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrant.lab.study.stored_files import DAMAGE_ERRNOS, RECORD_FILE, DamagedError
from calibrant.types import InputError


class MirrorError(InputError):
    """The mirror cannot be reached."""

    def __init__(self, message: str = "", *, code: str = "mirror_unreachable") -> None:
        super().__init__(message, code=code)


@dataclass(frozen=True)
class Mirror:
    """Runs as runs/ID/ below a URL. A run counts as present once its record is there, which is sent last."""

    url: str

    @cached_property
    def _location(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        with self._wrap_errors():
            return url_to_fs(self.url)

    def run_names(self) -> set[str]:
        """Return the names of the runs in the mirror."""
        files, root = self._location
        with self._wrap_errors():
            paths = (path.split("/") for path in files.find(f"{root}/runs", maxdepth=2))
            return {path[-2] for path in paths if path[-1] == RECORD_FILE}

    def send(self, folder: Path) -> None:
        """Copy the folder of a finished run to the mirror."""
        files, root = self._location
        with self._wrap_errors():
            files.makedirs(f"{root}/runs/{folder.name}", exist_ok=True)
            folder_files = [path for path in folder.iterdir() if path.is_file()]
            for path in sorted(folder_files, key=lambda path: path.name == RECORD_FILE):
                files.put_file(str(path), f"{root}/runs/{folder.name}/{path.name}")

    def fetch(self, name: str, folder: Path) -> None:
        """Copy the files of a run into an empty folder. Raises `DamagedError` if a file cannot be read."""
        files, root = self._location
        with self._wrap_errors():
            for path in files.ls(f"{root}/runs/{name}", detail=False):
                file = path.rpartition("/")[2]
                try:
                    if files.isfile(path):
                        files.get_file(path, str(folder / file))
                except OSError as error:
                    if error.errno not in DAMAGE_ERRNOS:
                        raise
                    raise DamagedError(f"{file} cannot be read ({error.strerror})") from None

    @contextmanager
    def _wrap_errors(self) -> Generator[None]:
        try:
            yield
        except DamagedError:
            raise
        except (OSError, ValueError, ImportError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise MirrorError(f"Cannot reach the mirror {self.url}: {reason}. Finished runs are kept here.") from None
