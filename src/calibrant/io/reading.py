"""Read and write the arrays of predictions, in any format."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from calibrant._lazy import polars
from calibrant._text import describe_error
from calibrant.io.arrays import Arrays
from calibrant.io.columns import TableOptions
from calibrant.io.delimited import Dialect
from calibrant.io.files import atomic_write, check_file
from calibrant.io.formats import BY_SUFFIX, format_of, format_suffix, get_writer
from calibrant.io.frames import apply_options, frame_to_arrays
from calibrant.io.logs import is_log, read_arrays
from calibrant.io.roles import infer_columns, leave_out_empty_labels, require_labels
from calibrant.io.tables import call_reader, read_table, restore_spelling
from calibrant.types import InputError


def read(path: str | Path, options: TableOptions | None = None, *, needs_labels: bool = True) -> Arrays:
    """Read the arrays of a file, a folder or pattern of tables, or evaluation logs.

    Args:
        path: The file, folder or pattern.
        options: Roles of columns, and the meaning of cells.
        needs_labels: Whether tables must have labels.

    Raises:
        InputError: If the path cannot be read as predictions.
    """
    path, options = Path(path), options or TableOptions()
    if is_log(path):
        return read_arrays(path, options)
    file_format = format_of(path)
    if file_format is not None and not file_format.is_table and not path.is_dir():  # a file of arrays
        check_file(path, BY_SUFFIX)
        if options.columns:
            raise InputError(
                f"Expected no roles of columns for the arrays of a {format_suffix(path)} file, got "
                f"{', '.join(options.columns)}. Try without.",
                code="no_columns",
            )
        return apply_options(call_reader(path, lambda: file_format.read(path)), options)
    table = read_table(path, options)
    columns = infer_columns(table.frame, options)
    if needs_labels:
        require_labels(columns, table.frame)
    else:
        columns = leave_out_empty_labels(columns, table.frame)
    arrays = frame_to_arrays(restore_spelling(table, columns), columns, options)
    return arrays | {"notes": (*table.notes, *arrays["notes"])}


def write(
    path: str | Path,
    arrays: Mapping[str, Any],
    names: Mapping[str, Sequence[str]] | None = None,
    check: Callable[[Path], None] | None = None,
) -> None:
    """Write logits, labels and other arrays as `read` finds them.

    Args:
        path: The file, which is replaced at once, or not at all.
        arrays: Tensors by name.
        names: Names of classes and groups.
        check: Called with the finished draft before it replaces the file; an exception leaves the old file.
    """
    with _open_draft(path) as (draft, writer):
        file_format = BY_SUFFIX[format_suffix(path)]
        if file_format.is_table:
            writer(_arrays_to_frame(arrays, names or {}, as_float64=file_format.has_decimal_text), draft, None)
        else:
            writer(arrays, names or {}, draft)
        if check is not None:
            check(draft)


def write_table(path: str | Path, frame: Any, dialect: Dialect | None = None) -> None:
    """Write a polars frame in the format of the path's suffix. Only delimited text has a `dialect`."""
    with _open_draft(path) as (draft, writer):
        writer(frame, draft, dialect)


@contextmanager
def _open_draft(path: str | Path) -> Generator[tuple[Path, Callable[..., None]], None, None]:
    """Yield the path of a draft that replaces `path` at the end, and the writer of its format.

    Exceptions of other libraries become `InputError`.
    """
    writer = get_writer(path)
    try:
        with atomic_write(path) as draft:
            yield draft, writer
    except (InputError, OSError):
        raise
    except Exception as error:
        raise InputError(
            f"Cannot write {path} ({describe_error(error)}). Try another format.", code="not_writable"
        ) from None


def _arrays_to_frame(arrays: Mapping[str, Any], names: Mapping[str, Sequence[str]], *, as_float64: bool) -> Any:
    """Return the arrays of predictions as a polars frame, with the names of columns that `read` finds.

    Args:
        arrays: Tensors by name.
        names: Names of classes and groups.
        as_float64: Write logits in float64, whose decimal text holds the exact values of float32.
    """
    logits, class_names = arrays["logits"].numpy(), names.get("class_names")
    logits = logits.astype(np.float64) if as_float64 else logits
    suffixes = class_names or tuple(map(str, range(logits.shape[1])))
    columns: dict[str, Any] = {f"logit_{suffix}": logits[:, i] for i, suffix in enumerate(suffixes)}
    if "labels" in arrays:
        labels = arrays["labels"].numpy()
        columns["label"] = labels if class_names is None else _take_names(labels, class_names)
    columns |= {name: arrays[name].numpy() for name in ("weights", "clusters") if name in arrays}
    if "groups" in arrays:
        columns["group"] = _take_names(arrays["groups"].numpy(), names["group_names"])
    if "ids" in arrays:
        columns["id"] = arrays["ids"]
    return polars.DataFrame(columns)


def _take_names(indices: np.ndarray, names: Sequence[str]) -> Any:
    """Return the name of each index as a polars series of strings."""
    return polars.Series(list(names), dtype=polars.String)[indices]
