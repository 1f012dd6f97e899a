"""Original formats of data sets: pickles, .mat files, and folders of images, trees and messages."""

import io
import json
import pickle
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant.types import InputError

SplitFiles = dict[str, list[Path]]
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class InMemoryTable:
    """A table in memory, with the interface of `datasets.Dataset` that conversions use."""

    columns: Mapping[str, Sequence[Any]]
    classes: Sequence[str] | None = None  # names in label order

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

    def iter(self, batch_size: int) -> Iterator[dict[str, Sequence[Any]]]:
        """Yield batches of rows."""
        for start in range(0, min(map(len, self.columns.values())), batch_size):
            yield {name: values[start : start + batch_size] for name, values in self.columns.items()}


@dataclass(frozen=True)
class OriginalFormat:
    """A form in which authors distribute a data set."""

    description: str  # shown in errors and records
    find: Callable[[Path], SplitFiles]  # returns the files of each split in a folder, or nothing
    read: Callable[[SplitFiles], Mapping[str, Any]]  # returns the table of each split


def first_existing(folder: Path, *names: str) -> Path | None:
    """Return the first of these files or folders that exists."""
    return next((folder / name for name in names if (folder / name).exists()), None)


def files_if_all_exist(files: SplitFiles) -> SplitFiles:
    """Return the files, or nothing if one is missing."""
    return files if all(path.is_file() for paths in files.values() for path in paths) else {}


def classes_by_path(folder: Path) -> dict[Path, str]:
    """Return the class of every image CLASS/NAME.JPEG or CLASS/images/NAME.JPEG, sorted by path."""
    paths = sorted(
        f for pattern in ("*/*", "*/images/*") for f in folder.glob(pattern) if f.suffix.lower() in IMAGE_SUFFIXES
    )
    return {path: path.relative_to(folder).parts[0] for path in paths}


def read_json_lines(paths: Sequence[Path]) -> InMemoryTable:
    """Read files with one JSON object per line."""
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return InMemoryTable({name: [row.get(name) for row in rows] for name in rows[0]} if rows else {})


def read_pickle(path: Path, member: str) -> dict[str, Any]:
    """Read a pickled table of numpy arrays from a folder or a .tar.gz. All other pickled objects are refused."""
    if path.is_dir():
        content = (path / member).read_bytes()
    else:
        with tarfile.open(path) as archive:
            name = next((n for n in archive.getnames() if n.rpartition("/")[2] == member), None)
            file = archive.extractfile(name) if name else None
            if file is None:
                raise InputError(f"{path}: Expected a file {member} in the archive, got none.", code="no_file")
            content = file.read()
    return _ArrayUnpickler(io.BytesIO(content), encoding="latin-1").load()


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler for arrays, lists and text that never runs code."""

    def find_class(self, module: str, name: str, /) -> Any:
        is_array = module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype", "scalar")
        if is_array or (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise InputError(f"Expected a pickle of numbers and text, got {module}.{name}.", code="unsafe_pickle")
