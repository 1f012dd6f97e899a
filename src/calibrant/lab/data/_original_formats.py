"""Data sets as their authors hand them out: pickles, .mat files, folders of images, trees and messages."""

import io
import json
import pickle
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibrant.types import InputError

SplitFiles = dict[str, list[Path]]
IMAGE_SUFFIXES = (".jpeg", ".jpg", ".png")


@dataclass(frozen=True)
class InMemoryTable:
    """A table in memory, with what conversions ask of one."""

    columns: Mapping[str, Sequence[Any]]
    features: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        return list(self.columns)

    def iter(self, batch_size: int) -> Iterator[dict[str, Sequence[Any]]]:
        """Yield so many rows at a time."""
        for start in range(0, min(map(len, self.columns.values())), batch_size):
            yield {name: values[start : start + batch_size] for name, values in self.columns.items()}


@dataclass(frozen=True)
class ClassNames:
    """What a table knows of its labels: the names of the classes."""

    names: list[str]


@dataclass(frozen=True)
class OriginalFormat:
    """One form in which a data set is handed out."""

    description: str  # what it looks like, for who has none
    find: Callable[[Path], SplitFiles]  # folder -> split -> files, nothing if it is not there
    read: Callable[[SplitFiles], Mapping[str, Any]]  # split -> table


def find_original(
    originals: Sequence[OriginalFormat], places: Sequence[Path]
) -> tuple[OriginalFormat, SplitFiles] | None:
    """Return the first form that lies in one of the places, with its files."""
    for place in places:
        for original in originals:
            if place.is_dir() and (files := original.find(place)):
                return original, files
    return None


def first_existing(place: Path, *names: str) -> Path | None:
    """Return the first of these files or folders that is there."""
    return next((place / name for name in names if (place / name).exists()), None)


def classes_by_path(folder: Path) -> dict[Path, str]:
    """Return the class of every image of CLASS/NAME.JPEG or CLASS/images/NAME.JPEG, in the order of their paths."""
    paths = sorted(
        f for pattern in ("*/*", "*/images/*") for f in folder.glob(pattern) if f.suffix.lower() in IMAGE_SUFFIXES
    )
    return {path: path.relative_to(folder).parts[0] for path in paths}


def read_json_lines(paths: Sequence[Path]) -> InMemoryTable:
    """Read files of a JSON object per line."""
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    return InMemoryTable({name: [row.get(name) for row in rows] for name in rows[0]} if rows else {})


def read_pickle(path: Path, member: str) -> dict[str, Any]:
    """Read a pickled table of numpy arrays, of a folder or a .tar.gz; whatever else a pickle could run is refused."""
    if path.is_dir():
        return _ArrayUnpickler(io.BytesIO((path / member).read_bytes()), encoding="latin-1").load()
    with tarfile.open(path) as archive:
        name = next((n for n in archive.getnames() if n.rpartition("/")[2] == member), None)
        file = archive.extractfile(name) if name else None
        if file is None:
            raise InputError(f"{path}: holds no file {member}", code="no_file")
        return _ArrayUnpickler(io.BytesIO(file.read()), encoding="latin-1").load()


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays, lists and texts, and nothing that runs."""

    def find_class(self, module: str, name: str, /) -> Any:
        if module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype", "scalar"):
            return super().find_class(module, name)
        if (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise InputError(f"a pickle that wants {module}.{name} is no table of numbers", code="unsafe_pickle")
