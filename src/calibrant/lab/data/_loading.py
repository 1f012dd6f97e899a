"""Load data sets from local tables, the Hugging Face hub or original files, and cache the decoded tensors."""

import glob
import io
import json
import os
import pickle
import re
import tarfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from calibrant._core.files import atomic_write
from calibrant._core.foreign import parse_json, parse_json_lines
from calibrant._core.kernels.digests import json_digest
from calibrant._core.text import describe_error
from calibrant._core.types import InputError, prefix_errors
from calibrant.lab.hub import is_hub_reachable, wrap_hub_errors

CACHE_VERSION = 3  # increase it when a conversion changes
MAX_CACHE_DRAFT_AGE_SECONDS = 86_400  # older drafts in the cache were left behind by a killed process

Tables = Mapping[str, Any]  # a datasets.Dataset, an IterableDataset or an InMemoryTable for each split
ConvertedData = tuple[dict[str, Tensor], dict[str, Any]]  # tensors, and entries of the record of a run
SplitFiles = dict[str, list[Path]]  # files of each split
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
        """Yield batches of rows, by column."""
        for start in range(0, min(map(len, self.columns.values())), batch_size):
            yield {name: values[start : start + batch_size] for name, values in self.columns.items()}


@dataclass(frozen=True)
class OriginalFormat:
    """A form in which authors distribute a data set."""

    description: str  # shown in errors and records
    find: Callable[[Path], SplitFiles]  # returns the files of each split in a folder, or nothing
    read: Callable[[SplitFiles], Mapping[str, Any]]  # returns the table of each split


@dataclass(frozen=True)
class Source:
    """Where to find a data set: in local folders with tables or original files, or on the Hugging Face hub."""

    folders: tuple[str, ...]  # names in the data folder, the usual one first
    hub: str  # name on the Hugging Face hub
    splits: tuple[tuple[str, ...], ...] = (("train",), ("test",))  # names of each split; tables have the first as key
    config: str | None = None
    original_formats: tuple[OriginalFormat, ...] = ()  # searched in the folders and in the data folder
    default_revision: str | None = None  # branch on the Hugging Face hub


def load(
    source: Source, root: Path | None, revision: str | None, convert: Callable[..., ConvertedData], **settings: Any
) -> ConvertedData:
    """Convert the tables of a data set to tensors, or read them from the cache.

    The cache key consists of names, sizes and times of the files, or the name and revision on the Hugging Face hub, and
    of the conversion and its settings.

    Args:
        source: Where the data set is found.
        root: Data folder; by default CALIBRANT_DATA, or the Hugging Face hub if that is not set.
        revision: Commit on the Hugging Face hub.
        convert: Maps the tables and `settings` to tensors and entries of the record.
        **settings: Settings of the conversion.

    Raises:
        InputError: If nothing can be read.
    """
    root = data_root(root)
    if root is not None and revision is not None:
        raise InputError(
            f"revision={revision!r} refers to {source.hub} on the Hugging Face hub, but the data folder is {root}. "
            "Remove one.",
            code="revision_with_folder",
        )
    # `original` is the format of original files, or None for tables; without a data folder, the hub has the files
    original, files = (None, None) if root is None else _find_files(source, root)
    stamps = None if files is None else {split: file_stamps(paths) for split, paths in files.items()}
    source_key = [source.folders, source.hub, source.splits, source.config, revision or source.default_revision]
    depends_on = [CACHE_VERSION, source_key, stamps, convert.__module__, convert.__qualname__, settings]

    def build() -> ConvertedData:
        """Read and convert the tables, and add their origin to the record."""
        tables = _open_hub(source, revision) if files is None else _open_files(original, files)
        tensors, record = convert(tables, **settings)
        origin = _describe_hub_source(source, revision, tables) if root is None else f"folder {root.name}"
        if original is not None:
            origin += f", {original.description}"
        return tensors, {"source": origin} | record

    return load_or_build(source.folders[0], depends_on, build)


def data_root(root: Path | None) -> Path | None:
    """Return the data folder: the given one, or CALIBRANT_DATA of the environment."""
    folder = root or os.environ.get("CALIBRANT_DATA")
    return Path(folder) if folder else None


def find_in_root(name: str, root: Path | None) -> Path:
    """Return a file or folder as given if it exists, otherwise in the data folder."""
    folder = data_root(root)
    return Path(name) if Path(name).exists() or folder is None else folder / name


def file_stamps(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Return path, size and modification time of files."""
    return [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]


def load_or_build(name: str, depends_on: Any, build: Callable[[], ConvertedData]) -> ConvertedData:
    """Read an entry of the cache, or build and write it.

    The cache is in CALIBRANT_CACHE, by default ~/.cache/calibrant. Entries are written atomically, unreadable ones are
    built again, and without write access nothing is cached.

    Args:
        name: Start of the name of the entry, which ends in a digest of `depends_on`.
        depends_on: All that changes the result of `build`, as values of JSON.
        build: Returns the tensors, and entries of the record of a run.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file

    cache_folder = Path(os.environ.get("CALIBRANT_CACHE") or Path.home() / ".cache" / "calibrant") / "data"
    path = cache_folder / f"{name}-{json_digest(depends_on)[:24]}.safetensors"
    with (
        suppress(OSError, SafetensorError, KeyError, TypeError, ValueError),  # of a missing or damaged file
        safe_open(path, "pt") as file,  # memory-mapped, so pages are read on first use
    ):
        return {key: file.get_tensor(key) for key in file.keys()}, parse_json(file.metadata()["facts"], dict)  # noqa: SIM118
    tensors, record = build()  # reached if the entry could not be read
    with suppress(OSError, InputError):  # without write access
        with atomic_write(path) as draft:
            save_file(tensors, draft, metadata={"facts": json.dumps(record)})
        # processes that were killed while they wrote leave drafts behind
        for stale_draft in cache_folder.glob(".*.safetensors"):
            if time.time() - stale_draft.stat().st_mtime > MAX_CACHE_DRAFT_AGE_SECONDS:
                stale_draft.unlink(missing_ok=True)
    return tensors, record


def find_column(table: Any, location: str, *names: str) -> str:
    """Return the first of `names` that is a column of a table. Raises `InputError`, with `location`, if none is."""
    for name in names:
        if name in table.column_names:
            return name
    raise InputError(
        f"{location}: Expected a column {' or '.join(names)}, got {', '.join(table.column_names)}.", code="no_column"
    )


def check_labels(values: Sequence[Any], location: str, classes: int) -> np.ndarray:
    """Return labels as an array (n). Raises `InputError`, with `location`, unless all are integers in [0, classes)."""
    for row, label in enumerate(values):
        if type(label) is not int or not 0 <= label < classes:
            raise InputError(
                f"{location}: Expected integer labels in [0, {classes}), got {label!r} in row {row}.",
                code="label_range",
            )
    return np.asarray(values, dtype=np.int64)


@contextmanager
def wrap_read_errors(location: str) -> Generator[None]:
    """Turn any exception of a reader into an `InputError` that names the file or row at `location`."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # third-party readers raise exceptions of any type
        cause: BaseException = error
        while cause.__cause__ is not None:  # the first exception of the chain says most
            cause = cause.__cause__
        raise InputError(
            f"{location}: Cannot be read ({describe_error(cause)}). Fetch it again.", code="unreadable"
        ) from None


def _find_files(source: Source, root: Path) -> tuple[OriginalFormat | None, SplitFiles]:
    """Return the format of the files, or None for tables, and the files of each split.

    Tables in the folder of the data set come first, then original files there, then original files in the root.

    Raises:
        InputError: If none of them is complete.
    """
    folder = next((root / name for name in source.folders if (root / name).is_dir()), None)
    tables = {names[0]: _table_files(source, folder, names) for names in source.splits}
    if all(tables.values()):
        return None, tables
    searched_folders = [path for path in (folder, root) if path is not None and path.is_dir()]
    for searched_folder, original in product(searched_folders, source.original_formats):
        if files := original.find(searched_folder):
            return original, files
    alternatives = "".join(f", or {original.description}" for original in source.original_formats)
    if folder is None:
        raise InputError(
            f"Expected a folder {root / source.folders[0]} with the parquet files of {source.hub}{alternatives}, got "
            "none. Without a data folder, the Hugging Face hub is used.",
            code="no_folder",
        )
    missing = next(name for name, files in tables.items() if not files)
    listing = ", ".join(sorted(f.name for f in folder.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{folder}: Expected {missing}.parquet or {missing}-*.parquet{alternatives}, got {listing}.",
        code="missing_split",
    )


def _table_files(source: Source, folder: Path | None, names: Sequence[str]) -> list[Path]:
    """Return the table files of a split with these possible names, or an empty list.

    Patterns are tried in order, and the first one that matches any file counts: it finds, for example,
    train.parquet, data/train-00000-of-00002.parquet or train/0.jsonl. In a clone of the repository on the Hugging Face
    hub, the files may be in a folder named after the configuration.
    """
    if folder is None:
        return []
    if source.config and (folder / source.config).is_dir():
        folder /= source.config
    for suffix, pattern in product(("parquet", "jsonl"), ("{}.", "**/{}-*.", "**/{}/*.")):
        if paths := [path for name in names for path in folder.glob(pattern.format(name) + suffix)]:
            return sorted(paths)
    return []


def _open_files(original: OriginalFormat | None, files: SplitFiles) -> Tables:
    """Read the files of each split: with their original format, or as tables if `original` is None."""
    first_file, *_ = (path for paths in files.values() for path in paths)  # its folder stands in errors
    with wrap_read_errors(str(first_file.parent)):
        if original is not None:
            return original.read(files)
        return {split: _open_table(paths) for split, paths in files.items()}  # apart, as their columns may differ


def _open_table(paths: list[Path]) -> Any:
    """Read files with JSON lines, or open parquet files as one table that is read on iteration."""
    import datasets

    if paths[0].suffix == ".jsonl":
        return read_json_lines(paths)
    data_files = {"train": [glob.escape(str(path)) for path in paths]}  # datasets takes patterns, and names a split
    return datasets.load_dataset("parquet", data_files=data_files, streaming=True)["train"]


def _open_hub(source: Source, revision: str | None) -> Tables:
    """Return the splits of a data set on the Hugging Face hub, or in its local cache if it does not answer.

    Raises:
        InputError: If the data set cannot be loaded, or lacks a split.
    """
    import datasets

    local_copy = f"a folder with {source.folders[0]}/{source.splits[0][0]}.parquet: --data DIR or CALIBRANT_DATA"
    with wrap_hub_errors(f"{source.hub} from the Hugging Face hub", local_copy), _offline_if_unreachable():
        tables = datasets.load_dataset(source.hub, source.config, revision=revision or source.default_revision)
    found_tables: dict[str, Any] = {}
    for names in source.splits:  # possible names of one split
        name = next((name for name in names if name in tables), None)
        if name is None:
            raise InputError(
                f"Expected a split {' or '.join(names)} in {source.hub} on the Hugging Face hub, got "
                f"{', '.join(map(str, tables)) or 'none'}. Try another revision=.",
                code="missing_split",
            )
        found_tables[names[0]] = tables[name]
    return found_tables


def _describe_hub_source(source: Source, revision: str | None, tables: Tables) -> str:
    """Describe the origin of tables: the name on the Hugging Face hub, and the commit if it is known.

    The text ends with advice to pin the commit if no revision was given, else with the revision if that is another one.
    """
    infos = [getattr(table, "info", None) for table in tables.values()]
    urls = [str(url) for info in infos for url in getattr(info, "download_checksums", None) or ()]
    match = re.search("@([0-9a-f]{40})/", " ".join(urls))  # such as hf://datasets/NAME@COMMIT/train.parquet
    commit = match[1] if match else ""
    text = f"hub {source.hub}" + (f" at {commit}" if commit else "")
    if revision is None:
        advice = f"; pin it with revision={commit!r}" if commit else ""
        return f"{text}, latest{advice}"
    return text if revision == commit else f"{text}, revision {revision}"


@contextmanager
def _offline_if_unreachable() -> Generator[None]:
    """Use only cached data in the block if the Hugging Face hub does not answer."""
    from datasets import config
    from huggingface_hub import constants

    previous = constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE  # datasets keeps a copy of its own
    if not is_hub_reachable():
        constants.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = True  # pyright: ignore[reportConstantRedefinition]
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = previous  # pyright: ignore[reportConstantRedefinition]


# Original formats: pickles, .mat files, and folders of images, trees and messages


def first_existing(folder: Path, *names: str) -> Path | None:
    """Return the first of these files or folders that exists, or None."""
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
    rows: list[dict[str, Any]] = []
    for path in paths:
        with prefix_errors(str(path)):
            rows += parse_json_lines(path.read_bytes())
    return InMemoryTable({name: [row.get(name) for row in rows] for name in rows[0]} if rows else {})


def read_pickle(path: Path, member: str) -> dict[str, Any]:
    """Read a pickled table of numpy arrays: the file `member` of a folder or of a .tar.gz archive.

    Pickles can run code, so objects other than arrays, lists and texts are refused.
    """
    if path.is_dir():
        content = (path / member).read_bytes()
    else:
        with tarfile.open(path) as archive:
            # such as FOLDER/MEMBER
            member_paths = [name for name in archive.getnames() if name.rpartition("/")[2] == member]
            file = archive.extractfile(member_paths[0]) if member_paths else None
            if file is None:
                raise InputError(f"{path}: Expected a file {member} in the archive, got none.", code="no_file")
            content = file.read()
    # the encoding in which arrays that Python 2 pickled can be read
    return _ArrayUnpickler(io.BytesIO(content), encoding="latin-1").load()


class _ArrayUnpickler(pickle.Unpickler):
    """An unpickler for arrays, lists and text that never runs code."""

    def find_class(self, module: str, name: str, /) -> Any:
        """Return a constructor of arrays or of text, and raise `InputError` for any other function or class."""
        is_array = module.startswith("numpy") and name in ("_reconstruct", "ndarray", "dtype", "scalar")
        if is_array or (module, name) == ("_codecs", "encode"):
            return super().find_class(module, name)
        raise InputError(f"Expected a pickle of numbers and text, got {module}.{name}.", code="unsafe_pickle")
