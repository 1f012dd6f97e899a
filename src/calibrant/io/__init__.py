"""Read and write files of predictions; the table of formats is in `formats`.

Names load on first use, so that the command line reads the table of formats without torch and polars.
"""

# ruff: noqa: F401
# pyright: reportUnusedImport=false

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from calibrant.io.arrays import ChunkedFile, find_score_and_label_keys
    from calibrant.io.chunks import exceeds_memory, is_chunkable, open_chunked, read_chunks
    from calibrant.io.columns import TableOptions
    from calibrant.io.files import apply_umask, atomic_write, check_outputs, ensure_writable
    from calibrant.io.formats import FORMATS, get_writer, is_delimited, is_table
    from calibrant.io.frames import frame_to_arrays
    from calibrant.io.logs import is_log
    from calibrant.io.number_text import replace_missing_words
    from calibrant.io.reading import read, write, write_table
    from calibrant.io.roles import infer_columns, require_labels
    from calibrant.io.tables import LoadedTable, as_frame, read_table, restore_spelling, to_safe_csv

_NAMES_BY_MODULE = {
    "arrays": ("ChunkedFile", "find_score_and_label_keys"),
    "chunks": ("exceeds_memory", "is_chunkable", "open_chunked", "read_chunks"),
    "columns": ("TableOptions",),
    "files": ("apply_umask", "atomic_write", "check_outputs", "ensure_writable"),
    "formats": ("FORMATS", "get_writer", "is_delimited", "is_table"),
    "frames": ("frame_to_arrays",),
    "logs": ("is_log",),
    "number_text": ("replace_missing_words",),
    "reading": ("read", "write", "write_table"),
    "roles": ("infer_columns", "require_labels"),
    "tables": ("LoadedTable", "as_frame", "read_table", "restore_spelling", "to_safe_csv"),
}
_MODULE_BY_NAME = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module 'calibrant.io' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"calibrant.io.{_MODULE_BY_NAME[name]}"), name)
    return value
