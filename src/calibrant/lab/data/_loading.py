"""Reading: parquet or JSON lines of a local folder or of the hub, or an original archive; decoded once and cached."""

import glob
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from calibrant._text import to_one_line
from calibrant.io import atomic_write
from calibrant.lab.data import _original_formats
from calibrant.lab.data._original_formats import OriginalFormat, SplitFiles, read_json_lines
from calibrant.lab.hub import is_hub_reachable
from calibrant.types import InputError

CACHE_VERSION = 3  # of what the cache holds; raise it when a conversion changes

Tables = Mapping[str, Any]  # split -> datasets.Dataset or IterableDataset
ConvertedData = tuple[dict[str, Tensor], dict[str, Any]]  # tensors and what a record should say


@dataclass(frozen=True)
class Source:
    """Where a data set lives: folders under a root, with its tables or its original, or a name on the hub."""

    folders: tuple[str, ...]
    hub: str
    splits: tuple[tuple[str, ...], ...] = (("train",), ("test",))  # each with the names it goes by
    config: str | None = None
    revision: str | None = None  # a commit of the hub that was asked for
    original_formats: tuple[OriginalFormat, ...] = ()  # looked for in the folders and in the root itself
    default_revision: str | None = None  # the branch of the hub to read where no commit was asked for

    @property
    def key(self) -> list[Any]:
        """What tells its tables from another's."""
        return [self.folders, self.hub, self.splits, self.config, self.revision or self.default_revision]


def load(source: Source, root: Path | None, convert: Callable[..., ConvertedData], **settings: Any) -> ConvertedData:
    """Convert a data set's tables to tensors, or take what the same conversion of the same files left in the cache.

    `root` defaults to the environment's CALIBRANT_DATA; with neither, the hub's copy is taken. The key is made of the
    files' names, sizes and times, the conversion and its settings. Raises `InputError` if nothing can be read.
    """
    root = data_root(root)
    if root is not None and source.revision is not None:
        raise InputError(
            f"revision={source.revision!r} is of the hub's {source.hub}, but {root} is read; leave one out",
            code="revision_with_folder",
        )
    original, files = (None, None) if root is None else _find_files(source, root)
    stamps = files and {
        key: [(str(f.resolve()), f.stat().st_size, f.stat().st_mtime_ns) for f in files[key]] for key in files
    }
    key_parts = [CACHE_VERSION, source.key, stamps, convert.__module__, convert.__qualname__, settings]
    key = hashlib.sha256(json.dumps(key_parts, sort_keys=True).encode()).hexdigest()[:24]

    def build() -> ConvertedData:
        tables = _open_tables(source, original, files)
        tensors, facts = convert(tables, **settings)
        where = _describe_hub_source(source, tables) if root is None else f"folder {root.name}"
        where += f", {original.description}" if original else ""
        return tensors, {"source": where} | facts

    return load_or_build(f"{source.folders[0]}-{key}", build)


def data_root(root: Path | None) -> Path | None:
    """Return the folder of data sets: the one given, or the environment's CALIBRANT_DATA."""
    folder = root or os.environ.get("CALIBRANT_DATA")
    return Path(folder) if folder else None


def load_or_build(name: str, build: Callable[[], ConvertedData]) -> ConvertedData:
    """Build once per machine: written aside and renamed, so a kill at any moment leaves nothing half-written.

    Lives in CALIBRANT_CACHE, by default ~/.cache/calibrant. An unreadable file is built again; a folder that cannot be
    written to costs the cache, not the data.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file

    cache_folder = Path(os.environ.get("CALIBRANT_CACHE") or Path.home() / ".cache" / "calibrant") / "data"
    path = cache_folder / f"{name}.safetensors"
    try:
        with safe_open(path, "pt") as file:  # mapped, not read: pages come in as they are used
            return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["facts"])  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        pass  # not there, or not whole
    tensors, facts = build()
    try:
        with atomic_write(path) as draft:
            save_file(tensors, draft, metadata={"facts": json.dumps(facts)})
        for stale_draft in cache_folder.glob(".*.safetensors"):  # by a kill, more than a day ago
            if time.time() - stale_draft.stat().st_mtime > 86_400:
                stale_draft.unlink(missing_ok=True)
    except (OSError, InputError):
        pass
    return tensors, facts


def find_column(table: Any, location: str, *names: str) -> str:
    """Return the first of `names` that the table has."""
    for name in names:
        if name in table.column_names:
            return name
    raise InputError(
        f"{location}: expected a column {' or '.join(names)}, got {', '.join(table.column_names)}", code="no_column"
    )


def check_labels(values: Sequence[Any], location: str, classes: int) -> np.ndarray:
    """Check labels: whole numbers in [0, classes)."""
    bad_rows = [
        row for row, v in enumerate(values) if not isinstance(v, int) or isinstance(v, bool) or not 0 <= v < classes
    ]
    if bad_rows:
        raise InputError(
            f"{location}: labels must be whole and in [0, {classes}), got {values[bad_rows[0]]!r} in row {bad_rows[0]}",
            code="label_range",
        )
    return np.asarray(values, dtype=np.int64)


@contextmanager
def wrap_read_errors(location: str) -> Generator[None]:
    """Turn whatever a reader raises into one line."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # third-party readers raise anything; the reason matters, their type does not
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = to_one_line(cause)
        raise InputError(
            f"{location}: cannot be read ({type(cause).__name__}: {reason}); fetch it again?", code="unreadable"
        ) from None


def _find_files(source: Source, root: Path) -> tuple[OriginalFormat | None, SplitFiles]:
    """Return the files of each split: tables in a data set's own folder, or its original there or in the root."""
    folder = next((root / name for name in source.folders if (root / name).is_dir()), None)
    tables = {names[0]: _table_files(source, folder, names) for names in source.splits}
    if all(tables.values()):
        return None, tables
    if (
        found_format := _original_formats.find_original(source.original_formats, [*([folder] if folder else []), root])
    ) is not None:
        return found_format
    forms = "".join(f", or {original.description}" for original in source.original_formats)
    if folder is None:
        raise InputError(
            f"no folder {root / source.folders[0]}; put the parquet files of {source.hub} there{forms}, "
            "or give no data folder to load them from the hub",
            code="no_folder",
        )
    missing = next(name for name, files in tables.items() if not files)
    listing = ", ".join(sorted(f.name for f in folder.iterdir())[:8]) or "nothing"
    raise InputError(
        f"{folder}: expected {missing}.parquet or {missing}-*.parquet{forms}, found {listing}", code="missing_split"
    )


def _table_files(source: Source, folder: Path | None, names: Sequence[str]) -> list[Path]:
    """Return a split's files: one, or several as in a clone of the hub, there in the folder of its configuration."""
    if folder is None:
        return []
    if source.config and (folder / source.config).is_dir():
        folder /= source.config
    for kind, form in product(("parquet", "jsonl"), ("{}.", "**/{}-*.", "**/{}/*.")):
        if paths := [path for name in names for path in folder.glob(form.format(name) + kind)]:
            return sorted(paths)
    return []


def _open_tables(source: Source, original: OriginalFormat | None, files: SplitFiles | None) -> Tables:
    import datasets

    if files is not None:
        with wrap_read_errors(str(next(part for parts in files.values() for part in parts).parent)):
            if original is not None:
                return original.read(files)
            tables = {}
            for key, parts in files.items():  # each on its own: their other columns may differ
                if parts[0].suffix == ".jsonl":
                    tables[key] = read_json_lines(parts)
                    continue
                data_files = {"train": [glob.escape(str(part)) for part in parts]}
                tables[key] = datasets.load_dataset("parquet", data_files=data_files, streaming=True)["train"]
            return tables
    try:
        with _offline_if_unreachable():
            tables = datasets.load_dataset(
                source.hub, source.config, revision=source.revision or source.default_revision
            )
    except Exception as error:
        reason = to_one_line(error)
        raise InputError(
            f"cannot load {source.hub} from the hub ({type(error).__name__}: {reason}); without a network give a "
            f"folder that holds {source.folders[0]}/{source.splits[0][0]}.parquet: --data DIR or CALIBRANT_DATA",
            code="hub_unavailable",
        ) from None
    return {names[0]: next(tables[name] for name in names if name in tables) for names in source.splits}


def _describe_hub_source(source: Source, tables: Tables) -> str:
    """Say where on the hub tables lie, at which commit, where they tell, and whether that is the one asked for."""
    infos = [getattr(table, "info", None) for table in tables.values()]
    urls = [url for info in infos for url in getattr(info, "download_checksums", None) or ()]
    commit = next((match[1] for url in urls if (match := re.search("@([0-9a-f]{40})/", str(url)))), "")
    commit_text = f" at {commit}" if commit else ""
    if source.revision is None:
        return f"hub {source.hub}{commit_text}, the newest then" + (
            f"; revision={commit!r} is it for good" if commit else ""
        )
    return f"hub {source.hub}{commit_text}" + ("" if source.revision == commit else f", revision {source.revision}")


@contextmanager
def _offline_if_unreachable() -> Generator[None]:
    """If the hub does not answer, use only what is cached."""
    from datasets import config
    from huggingface_hub import constants

    unreachable = not is_hub_reachable()
    homes = (constants, "HF_HUB_OFFLINE"), (config, "HF_HUB_OFFLINE")
    previous_values = [getattr(home, name) for home, name in homes]
    for (home, name), value in zip(homes, previous_values, strict=True):
        setattr(home, name, value or unreachable)
    try:
        yield
    finally:
        for (home, name), value in zip(homes, previous_values, strict=True):
            setattr(home, name, value)
