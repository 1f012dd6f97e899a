"""What stands in the columns of a table: numbers, names, labels and lists, as arrays by which predictions enter."""

from collections.abc import Callable
from typing import Any

import numpy as np

from calibrant._columns import SINGLE, Columns, TableOptions
from calibrant._door import binary_names, some
from calibrant.types import InputError

BEYOND = ("Int128", "UInt128")  # kinds of numbers that numpy has not
TEXTS = ("String", "Categorical", "Enum")


def arrays_of(frame: Any, columns: Columns, options: TableOptions | None = None) -> dict[str, Any]:
    """Return the arrays of a polars frame, by the names under which predictions enter.

    Raises `InputError` where values are missing, unless the rows may be left out (`options.drop`).
    """
    options = options or TableOptions()
    frame, notes = _usable(frame, columns, options.drop)
    arrays: dict[str, Any] = {"notes": notes}
    if not columns.plain:
        arrays["notes"] = (f"columns: {columns.text}", *notes)
    for role in ("weight", "group", "cluster"):
        if (name := getattr(columns, role)) is not None:
            arrays[f"{role}s"] = _numbers(frame[name]).to_numpy() if role == "weight" else _values(frame[name])
    if columns.id is not None:
        arrays["ids"] = frame[columns.id]
    if columns.confidence is not None:
        both = {role: getattr(columns, role) for role in ("confidence", "correct")}
        arrays |= {"judged": "matched"} if str(columns.correct).lower() == "matched" else {}
        return arrays | {role: _numbers(frame[name]).to_numpy() for role, name in both.items() if name is not None}
    arrays[columns.kind] = _matrix(frame, columns)
    names = columns.names
    if columns.labels:
        arrays |= {"labels": frame.select([_numbers(frame[name]) for name in columns.labels]).to_numpy()}
        arrays["several"] = True
    elif columns.label is not None:
        one = arrays[columns.kind].ndim == 1
        arrays["labels"], names, more = _labels(frame[columns.label], columns, one)
        arrays["several"] = arrays["labels"].ndim > 1
        arrays["notes"] += more
    if names is not None:
        arrays["class_names"] = names
    return arrays


def _matrix(frame: Any, columns: Columns) -> np.ndarray:
    if len(columns.scores) == 1:
        column = frame[columns.scores[0]]
        return _rows(column) if column.dtype.is_nested() else _numbers(column).to_numpy()
    return frame.select([_numbers(frame[name]) for name in columns.scores]).to_numpy()


def _rows(column: Any) -> np.ndarray:
    """Lists as rows; of one length, without a detour over Python's lists."""
    import polars

    if isinstance(column.dtype, polars.Array):
        column = column.arr.to_list()
    inner = getattr(column.dtype, "inner", None)
    if inner is None:
        raise InputError(f"column {column.name!r} holds {column.dtype}, expected numbers or lists of numbers")
    low, high = column.list.len().min(), column.list.len().max()
    if low != high or high == 0:
        raise InputError(f"lists in column {column.name!r} have {low} to {high} entries; expected one for every class")
    if inner.is_nested():
        return _made(column.name, lambda: np.array(column.to_list(), dtype=float))
    return _numbers(column.explode()).to_numpy().reshape(len(column), -1)


def _numbers(column: Any) -> Any:
    """A column as numbers that numpy has, whatever it came as."""
    import polars

    kind = column.dtype
    if kind == polars.Boolean:
        return column.cast(polars.Int64)
    if kind.is_float() or (kind.is_integer() and str(kind) not in BEYOND):
        return column
    if kind.is_numeric():
        return column.cast(polars.Float64)
    if str(kind.base_type()) not in TEXTS:
        raise InputError(f"column {column.name!r} holds {kind}, expected numbers")
    texts = column.cast(polars.String).str.strip_chars()
    found = texts.str.to_lowercase().replace({"true": "1", "false": "0"}).cast(polars.Float64, strict=False)
    odd = texts.filter(found.is_null() & texts.is_not_null())
    if len(odd):
        raise InputError(
            f"column {column.name!r} must hold numbers, but {len(odd)} entries are none, such as {odd[0]!r}"
        )
    return found


def _labels(column: Any, columns: Columns, one: bool) -> tuple[np.ndarray, tuple[str, ...] | None, tuple[str, ...]]:
    """Labels as numbers or as names of classes, the classes' names, and what is to be said of them."""
    import polars

    if column.dtype.is_nested():
        return _rows(column), columns.names, ()
    values = _values(column)
    if one:
        return *_yes_or_no(values, columns.positive), ()
    if columns.names is None or values.dtype.kind == "U":
        return values, columns.names, ()
    if column.dtype == polars.Boolean:  # false and true are no positions
        named = {name.lower(): name for name in columns.names}
        if not {"false", "true"} <= named.keys():
            raise InputError(f"labels are true or false, but the columns' classes are {some(columns.names)}")
        return np.array([named["false"], named["true"]])[values], columns.names, ()
    if any(name.isdigit() for name in columns.names):
        return _whole_texts(values), columns.names, ()
    said = "labels are numbers: each is taken for the position of its class among the columns, from 0"
    return values, columns.names, (said,)


def _yes_or_no(values: np.ndarray, positive: str | None) -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Labels of one score, that of the class its column is named after, as 0 and 1, with the names of the two."""
    if values.dtype.kind != "U":
        if positive is None or not positive.isdigit() or (positive == "1" and set(np.unique(values)) <= {0, 1}):
            return values, None
        values = _whole_texts(values)
    names = binary_names(np.unique(values).tolist(), positive)
    return (values == names[1]).astype(np.int64), names


def _whole_texts(values: np.ndarray) -> np.ndarray:
    """Whole numbers as texts; as they are where some are not whole, which is refused later."""
    with np.errstate(invalid="ignore"):
        numbers = values.astype(np.int64)
    return numbers.astype(str) if bool((numbers == values).all()) else values


def _values(column: Any) -> np.ndarray:
    """A column as numbers, or as texts; texts of whole numbers stay texts."""
    import polars

    if str(column.dtype) in BEYOND:
        small = column.cast(polars.Int64, strict=False)
        column = small if small.null_count() == column.null_count() else column.cast(polars.String)
    if column.dtype.is_numeric() or column.dtype == polars.Boolean:
        return _numbers(column).to_numpy()
    return _made(column.name, lambda: np.array(column.cast(polars.String).to_list(), dtype=str))


def _made(name: str, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return what is made of a column; raises `InputError` where its kind has no such thing."""
    try:
        return make()
    except Exception as error:  # of polars or numpy
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"column {name!r} holds neither numbers nor names ({reason})") from None


def _usable(frame: Any, columns: Columns, drop: bool) -> tuple[Any, tuple[str, ...]]:
    """The rows in which nothing that is needed is missing."""
    import polars

    needed = [getattr(columns, role) for role in SINGLE if role not in ("id", "label") or not columns.labels]
    needed = [*filter(None, needed), *columns.scores]
    told: list[str] = []
    for name in dict.fromkeys(needed):
        column = frame[name]
        bad = column.is_null() | (column.is_nan() if column.dtype.is_float() else False)
        why = "missing"
        if name == columns.confidence and column.dtype.is_numeric() and drop:
            bad, why = bad | (column < 0) | (column > 1), "missing or outside [0, 1]"
        count = int(bad.fill_null(True).sum())
        if not count:
            continue
        if not drop:
            way = "leave such rows out with drop=True (on the command line, --drop)"
            raise InputError(f"{count} of {len(frame)} rows have no {name!r}; {way}")
        told.append(f"left out {count} rows in which {name!r} is {why}")
        frame = frame.filter(~bad.fill_null(True))
    if not len(frame):
        raise InputError(f"no rows are left: {polars.Series(told).str.join('; ').item()}" if told else "no examples")
    return frame, tuple(told)
