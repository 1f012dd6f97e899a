"""The table of file formats: suffixes, readers, writers, and the words for help and documentation.

Readers and writers are given by name, so that a help text loads neither torch nor polars.
"""

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPRESSION_SUFFIXES = (".gz", ".zst")


@dataclass(frozen=True)
class Format:
    """A file format: how files are read whole, written, and read in chunks.

    Functions are given as "module.function" in this package.
    """

    title: str
    suffixes: tuple[str, ...]
    reader: str  # of arrays: (path) -> arrays by name; of tables: (path, options) -> LoadedTable
    writer: str | None = None  # of arrays: (arrays, names, path); of tables: (frame, path, dialect)
    chunk_opener: str | None = None  # of arrays: (path) -> ChunkedFile; of tables: (path) -> lazy frame
    companion_finder: str | None = None  # (path) -> other files that are read with it
    is_table: bool = True
    is_delimited: bool = False
    has_decimal_text: bool = False  # numbers are spelled in decimals
    is_compressible: bool = False
    note: str = ""  # for documentation

    def read(self, path: Path, *options: Any) -> Any:
        """Read a file whole."""
        return _load_function(self.reader)(path, *options)

    def open_chunked(self, path: Path) -> Any:
        """Open a file to be read in chunks."""
        assert self.chunk_opener is not None
        return _load_function(self.chunk_opener)(path)

    def companions(self, path: Path) -> list[Path]:
        """Return the other files that are read with a file."""
        return _load_function(self.companion_finder)(path) if self.companion_finder else []

    @property
    def all_suffixes(self) -> tuple[str, ...]:
        """The suffixes, those of compressed files among them."""
        compressions = COMPRESSION_SUFFIXES if self.is_compressible else ()
        return (*self.suffixes, *(suffix + packed for suffix in self.suffixes for packed in compressions))


def _load_function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"calibrant.io.{module}"), function)


FORMATS = (
    Format(
        "NumPy archive", (".npz",), "arrays.read_npz", "arrays.write_npz",
        is_table=False, note="arrays",
    ),
    Format(
        "safetensors", (".safetensors",), "arrays.read_safetensors", "arrays.write_safetensors",
        "arrays.open_safetensors_chunked", is_table=False,
        note="tensors, with names of classes and groups in the metadata",
    ),
    Format(
        "NumPy array", (".npy",), "arrays.read_npy", None, "arrays.open_npy_chunked",
        "arrays.npy_label_files", is_table=False,
        note="`NAME_logits.npy` or `NAME_probs.npy`, with `NAME_labels.npy` beside it",
    ),
    Format("PyTorch", (".pt", ".pth"), "arrays.read_torch", is_table=False, note="a dict of tensors"),
    Format(
        "delimited text", (".csv", ".txt"), "tables.read_text", "tables.write_text",
        is_delimited=True, has_decimal_text=True, is_compressible=True, note="columns; the separator is detected",
    ),
    Format(
        "tab-separated text", (".tsv",), "tables.read_tab_separated", "tables.write_tab_separated",
        is_delimited=True, has_decimal_text=True, is_compressible=True, note="columns",
    ),
    Format(
        "JSON lines", (".jsonl", ".ndjson"), "tables.read_jsonl", "tables.write_jsonl",
        has_decimal_text=True, is_compressible=True, note="a JSON object per row",
    ),
    Format(
        "Parquet", (".parquet",), "tables.read_parquet", "tables.write_parquet", "tables.scan_parquet",
        note="columns, or lists of scores in one column",
    ),
    Format(
        "Arrow", (".arrow", ".feather", ".ipc"), "tables.read_arrow", "tables.write_arrow", "tables.scan_arrow",
        note="columns, or lists of scores in one column; a file or a stream",
    ),
    Format(
        "Excel workbook", (".xlsx",), "excel.read_workbook", "excel.write_workbook",
        has_decimal_text=True, note="columns of the first sheet; needs `calibrant[excel]`",
    ),
)  # fmt: skip
BY_SUFFIX = {suffix: file_format for file_format in FORMATS for suffix in file_format.all_suffixes}
TABLE_SUFFIXES = tuple(suffix for suffix, file_format in BY_SUFFIX.items() if file_format.is_table)
CHUNKED_SUFFIXES = tuple(suffix for suffix, file_format in BY_SUFFIX.items() if file_format.chunk_opener)
WRITABLE_SUFFIXES = tuple(suffix for suffix, file_format in BY_SUFFIX.items() if file_format.writer)
CALIBRATOR_SUFFIX = ".safetensors"


def format_suffix(path: str | Path) -> str:
    """Return the suffix that tells the format, in lower case, such as ".csv" or ".csv.gz"."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes[-2:]]
    return "".join(suffixes if suffixes[-1:] and suffixes[-1] in COMPRESSION_SUFFIXES else suffixes[-1:])


def format_of(path: str | Path) -> Format | None:
    """Return the format of a path by its suffix, or None if it is unknown."""
    return BY_SUFFIX.get(format_suffix(path))


def is_table(path: str | Path) -> bool:
    """Whether a path is that of a table, or a folder or pattern of tables."""
    return format_suffix(path) in TABLE_SUFFIXES or Path(path).is_dir()


def is_delimited(path: str | Path) -> bool:
    """Whether a path is that of delimited text."""
    file_format = format_of(path)
    return file_format is not None and file_format.is_delimited


def get_writer(path: str | Path) -> Callable[..., None]:
    """Return the writer of a path's format; raise `InputError` if it cannot be written."""
    file_format = format_of(path)
    if file_format is None or file_format.writer is None:
        from calibrant.types import InputError  # loads torch

        raise InputError(
            f"Expected a file {list_suffixes(WRITABLE_SUFFIXES)} to write, got {path}. Try another suffix.",
            code="suffix",
        )
    return _load_function(file_format.writer)


def list_suffixes(suffixes: Iterable[str]) -> str:
    """Return suffixes as a text, such as ".csv, .tsv or .txt", without those of compressed files."""
    *first, last = (suffix for suffix in suffixes if suffix.count(".") == 1)
    return f"{', '.join(first)} or {last}" if first else last


def markdown_table() -> str:
    """Return the table of formats for the documentation."""
    lines = ["| format | suffix | contents | written | read in chunks |", "|---|---|---|---|---|"]
    for f in FORMATS:
        suffixes = " ".join(f"`{suffix}`" for suffix in f.suffixes)
        is_written, is_chunked = ("yes" if function else "" for function in (f.writer, f.chunk_opener))
        lines.append(f"| {f.title} | {suffixes} | {f.note} | {is_written} | {is_chunked} |")
    return "\n".join(lines) + "\n"
