"""A second home for finished runs, at any URL that fsspec knows: s3://, gs://, abfs://, sftp://, file://, ..."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from calibrant.study.digests import LOST, RECORD, Damaged
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
    def _home(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        with self._telling():
            return url_to_fs(self.url)

    def names(self) -> set[str]:
        """Return the ids of the runs that are there."""
        files, root = self._home
        with self._telling():
            found = (path.split("/") for path in files.find(f"{root}/runs", maxdepth=2))
            return {path[-2] for path in found if path[-1] == RECORD}

    def send(self, folder: Path) -> None:
        """Copy the folder of a finished run there."""
        files, root = self._home
        with self._telling():
            files.makedirs(f"{root}/runs/{folder.name}", exist_ok=True)
            inside = [path for path in folder.iterdir() if path.is_file()]
            for path in sorted(inside, key=lambda path: path.name == RECORD):
                files.put_file(str(path), f"{root}/runs/{folder.name}/{path.name}")

    def fetch(self, name: str, folder: Path) -> None:
        """Copy the files of a run from there into an empty folder. Raises `Damaged` if one of them cannot be read."""
        files, root = self._home
        with self._telling():
            for path in files.ls(f"{root}/runs/{name}", detail=False):
                try:
                    if files.isfile(path):
                        files.get_file(path, str(folder / path.rpartition("/")[2]))
                except OSError as error:
                    if error.errno not in LOST:
                        raise
                    raise Damaged(f"{path.rpartition('/')[2]} cannot be read ({error.strerror})") from None

    @contextmanager
    def _telling(self) -> Generator[None]:
        try:
            yield
        except Damaged:
            raise
        except (OSError, ValueError, ImportError) as error:
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise MirrorError(f"cannot reach the mirror {self.url}: {said}; finished runs are kept here") from None
