"""The table of file formats: suffixes, readers, writers, and the words for help and documentation.

To add a format that takes few lines, write its functions here and add a row to `FORMATS`. Functions of other modules
are given by name, so that a help text loads neither torch nor polars.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibrant._core.errors import InputError
from calibrant._core.expansion import ARROW_MAGIC, check_arrow, check_parquet
from calibrant._core.files import COMPRESSION_SUFFIXES, format_suffix
from calibrant._core.lazy import polars

Function = Callable[..., Any] | str  # "module.function" of this package, or a function


@dataclass(frozen=True)
class Format:
    """A file format: how files are read whole, written, and read in chunks."""

    title: str
    suffixes: tuple[str, ...]
    reader: Function  # of arrays: (path) -> `Contents`; of tables: (path, options) -> frame or LoadedTable
    writer: Function | None = None  # of arrays: (contents, path); of tables: (frame, path, dialect)
    chunk_opener: Function | None = None  # of arrays: (path) -> ChunkedFile; of tables: (path) -> lazy frame
    companion_finder: Function | None = None  # (path) -> other files that are read with it
    is_table: bool = True
    is_log: bool = False  # an evaluation log of a language model
    is_delimited: bool = False
    has_decimal_text: bool = False  # numbers are spelled in decimals
    is_compressible: bool = False
    note: str = ""  # for documentation

    def read(self, path: Path, *options: Any) -> Any:
        """Read a file whole."""
        return _load_function(self.reader)(path, *options)

    def open_chunked(self, path: Path) -> Any:
        """Open a file to be read in chunks."""
        assert self.chunk_opener is not None  # called only for suffixes in `CHUNKED_SUFFIXES`
        return _load_function(self.chunk_opener)(path)

    def companions(self, path: Path) -> list[Path]:
        """Return the other files that are read with a file."""
        return _load_function(self.companion_finder)(path) if self.companion_finder else []

    @property
    def all_suffixes(self) -> tuple[str, ...]:
        """The suffixes, also of compressed files, such as .csv and .csv.gz."""
        compressions = COMPRESSION_SUFFIXES if self.is_compressible else ()
        return (*self.suffixes, *(suffix + compression for suffix in self.suffixes for compression in compressions))


def _load_function(function: Function) -> Callable[..., Any]:
    """Return a function of a format, which is imported if it is given as "module.function"."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(".")
    return getattr(importlib.import_module(f"calibrant.io.{module}"), name)


def read_arrow(path: Path, options: Any) -> Any:
    """Read an Arrow file or stream."""
    check_arrow(path)
    with path.open("rb", buffering=0) as file:  # polars reads from the position in the file, not Python's buffer
        is_file = file.read(len(ARROW_MAGIC)) == ARROW_MAGIC
        file.seek(0)
        return polars.read_ipc(file) if is_file else polars.read_ipc_stream(file)


def read_parquet(path: Path, options: Any) -> Any:
    """Read a Parquet file."""
    check_parquet(path)
    return polars.read_parquet(path, glob=False)


FORMATS = (
    Format(
        "NumPy archive", (".npz",), reader="arrays.read_npz", writer="arrays.write_npz",
        is_table=False, note="arrays",
    ),
    Format(
        "safetensors", (".safetensors",), reader="arrays.read_safetensors", writer="arrays.write_safetensors",
        chunk_opener="arrays.open_safetensors_chunked", is_table=False,
        note="tensors, with names of classes and groups in the metadata",
    ),
    Format(
        "NumPy array", (".npy",), reader="arrays.read_npy", chunk_opener="arrays.open_npy_chunked",
        companion_finder="arrays.npy_label_files", is_table=False,
        note="`NAME_logits.npy` or `NAME_probs.npy`, with `NAME_labels.npy` beside it",
    ),
    Format("PyTorch", (".pt", ".pth"), reader="arrays.read_torch", is_table=False, note="a dict of tensors"),
    Format(
        "delimited text", (".csv", ".txt"), reader="tables.read_text", writer="tables.write_text",
        is_delimited=True, has_decimal_text=True, is_compressible=True, note="columns; the separator is detected",
    ),
    Format(
        "tab-separated text", (".tsv",), reader="tables.read_tab_separated", writer="tables.write_tab_separated",
        is_delimited=True, has_decimal_text=True, is_compressible=True, note="columns",
    ),
    Format(
        "JSON lines", (".jsonl", ".ndjson"), reader="tables.read_jsonl", writer="tables.write_jsonl",
        has_decimal_text=True, is_compressible=True, note="a JSON object per row",
    ),
    Format(
        "Parquet", (".parquet",), reader=read_parquet,
        writer=lambda frame, path, _: frame.write_parquet(path),
        chunk_opener=lambda path: polars.scan_parquet(path, glob=False),
        note="columns, or lists of scores in one column",
    ),
    Format(
        "Arrow", (".arrow", ".feather", ".ipc"), reader=read_arrow,
        writer=lambda frame, path, _: frame.write_ipc(path),
        chunk_opener=lambda path: polars.scan_ipc(path, glob=False),
        note="columns, or lists of scores in one column; a file or a stream",
    ),
    Format(
        "Excel workbook", (".xlsx",), reader="tables.read_workbook", writer="tables.write_workbook",
        has_decimal_text=True, note="columns of the first sheet; needs `calibrant[excel]`",
    ),
    Format(
        "evaluation log", (".eval", ".json"), reader="logs.read_log", is_table=False, is_log=True,
        note="answers of a language model; also `samples_*.jsonl`, and folders of logs",
    ),
)  # fmt: skip
BY_SUFFIX = {suffix: file_format for file_format in FORMATS for suffix in file_format.all_suffixes}
TABLE_SUFFIXES = tuple(suffix for suffix, file_format in BY_SUFFIX.items() if file_format.is_table)
CHUNKED_SUFFIXES = tuple(suffix for suffix, file_format in BY_SUFFIX.items() if file_format.chunk_opener)
WRITABLE_SUFFIXES = tuple(suffix for suffix, file_format in BY_SUFFIX.items() if file_format.writer)
CALIBRATOR_SUFFIX = ".safetensors"
CALIBRATOR_FORMAT = "calibrant.calibrator"  # in the metadata of such a file
CONTRACT_SUFFIX = ".contract"


def format_of(path: str | Path) -> Format | None:
    """Return the format that belongs to the suffix of a path, or None if the suffix is unknown."""
    return BY_SUFFIX.get(format_suffix(path))


def is_table(path: str | Path) -> bool:
    """Whether a path has the suffix of a table, as patterns may have, or is a folder."""
    return format_suffix(path) in TABLE_SUFFIXES or Path(path).is_dir()


def is_delimited(path: str | Path) -> bool:
    """Whether a path has a suffix of delimited text."""
    file_format = format_of(path)
    return file_format is not None and file_format.is_delimited


def get_writer(path: str | Path) -> Callable[..., None]:
    """Return the writer of a path's format, or raise `InputError` if it cannot be written."""
    file_format = format_of(path)
    if file_format is None or file_format.writer is None:
        raise InputError(
            f"Expected a file {list_suffixes(WRITABLE_SUFFIXES)} to write, got {path}. Try another suffix.",
            code="suffix",
        )
    return _load_function(file_format.writer)


def list_suffixes(suffixes: Iterable[str]) -> str:
    """Return suffixes as a text, such as ".csv, .tsv or .txt", without those such as .csv.gz."""
    *all_but_last, last = (suffix for suffix in suffixes if suffix.count(".") == 1)
    return f"{', '.join(all_but_last)} or {last}" if all_but_last else last
