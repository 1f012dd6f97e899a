"""Write tables as programs and people do, with their separators, encodings and formats."""

import csv
import gzip
import importlib.util
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import polars
from evaluation_logs import compress_zstandard

Columns = Mapping[str, Sequence[Any]]
HAS_EXCEL = all(importlib.util.find_spec(name) for name in ("xlsxwriter", "fastexcel"))
TYPED = (".parquet", ".arrow", ".feather", ".jsonl", ".ndjson", ".jsonl.gz") + ((".xlsx",) if HAS_EXCEL else ())
MISSING = ("", "", "NA", "N/A", "#N/A", "null", "nan", "NaN", "NULL", "?", "-")
COMMENTS = ("# exported by evaluate.py", "# model: resnet50, threshold 0.5", "# run 12; seed 3", "#")
HAS_ARROW = all(importlib.util.find_spec(name) for name in ("pandas", "pyarrow"))
IN_MEMORY = ("polars", "mapping") + (("pandas", "arrow table") if HAS_ARROW else ())


class NumberText(str):
    """A number as text whose decimal sign is the table's, such as 85.3%."""

    __slots__ = ()


@dataclass(frozen=True)
class Dialect:
    """How a table is written. `leading` are lines before the header, `parts` the number of files in a folder."""

    suffix: str = ".csv"
    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    newline: str = "\n"
    quoting: int = csv.QUOTE_MINIMAL
    leading: tuple[str, ...] = ()
    missing: str = ""
    booleans: tuple[str, str] = ("False", "True")
    parts: int = 1
    padded: bool = False  # blanks after separators
    trailing: str = ""  # what stands after the last row
    categories: bool = False  # texts as categories

    @property
    def typed(self) -> bool:
        """Whether the format keeps the types of cells."""
        return self.suffix in (*TYPED, *IN_MEMORY)


def draw_dialect(r: Random, *, ascii_only: bool, latin: bool, lists: bool) -> Dialect:
    """Draw a dialect that can hold such text and cells."""
    kinds = ["plain"] * 6 + [
        "european",
        "european",
        "tab",
        "tab comma",
        "pipe",
        "semicolon",
        "packed",
        "typed",
        "typed",
    ]
    kinds += [
        "sep line",
        "comments",
        "quoted",
        "windows",
        "mark",
        "utf-16",
        "folder",
        "padded",
        "trailing",
        "old",
        "memory",
    ]
    kinds += ["western", "western"] if latin and not ascii_only else []
    frame_parts = Dialect(booleans=r.choice([("False", "True"), ("FALSE", "TRUE"), ("false", "true")]))
    frame_parts = replace(frame_parts, missing=r.choice(MISSING))
    kind = r.choice(["typed", "lines"] if lists else kinds)
    european = {"separator": ";", "decimal": ","}
    packed = r.choice([".csv.gz", ".tsv.gz", ".csv.zst"])
    changes: dict[str, dict[str, Any]] = {
        "european": european,
        "tab": {"separator": "\t", "suffix": r.choice([".tsv", ".txt", ".csv"])},
        "tab comma": {"separator": "\t", "decimal": ",", "suffix": ".txt"},
        "pipe": {"separator": "|", "suffix": r.choice([".csv", ".txt"])},
        "semicolon": {"separator": ";"},
        "packed": {"suffix": packed, "separator": "\t" if packed == ".tsv.gz" else ","},
        "typed": {
            "suffix": r.choice([".parquet", ".arrow", ".feather"] if lists else TYPED),
            "categories": r.random() < 0.3,
        },
        "lines": {"suffix": ".jsonl"},
        "sep line": r.choice([{"separator": ";"}, {"separator": ","}, {"separator": "\t"}, european]),
        "comments": {"leading": tuple(r.choices(COMMENTS, k=r.randint(1, 3)))},
        "quoted": {"quoting": r.choice([csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])},
        "windows": {"newline": "\r\n"},
        "mark": {"encoding": "utf-8-sig"},
        "utf-16": {"encoding": "utf-16", "separator": r.choice([",", "\t", ";"])},
        "folder": {"parts": r.randint(2, 4), "suffix": r.choice([".csv", ".tsv", ".parquet"])},
        "memory": {"suffix": r.choice(IN_MEMORY), "categories": r.random() < 0.2},
        "padded": {"padded": True},
        "trailing": {"trailing": r.choice(["\n", "\n\n\n", "\r\n"])},
        "old": r.choice([{"newline": "\r"}, {"encoding": "utf-16-le"}, {"encoding": "utf-16-be"}]),
        "western": {"encoding": r.choice(["cp1252", "latin-1"]), **r.choice([{}, european])},
    }
    frame_parts = replace(frame_parts, **changes.get(kind, {}))
    if kind == "folder" and frame_parts.suffix == ".tsv":
        frame_parts = replace(frame_parts, separator="\t")
    if kind == "sep line":
        frame_parts = replace(frame_parts, leading=(f"sep={frame_parts.separator}",))
    if r.random() < 0.15 and not frame_parts.typed and frame_parts.newline == "\n":
        frame_parts = replace(frame_parts, newline="\r\n")
    return frame_parts


def cell(value: Any, dialect: Dialect) -> Any:
    """Return a cell as the writer of the csv module takes it."""
    if value is None:
        return dialect.missing
    if isinstance(value, bool):
        return dialect.booleans[value]
    if isinstance(value, float | NumberText) and dialect.decimal != ".":
        return str(value).replace(".", dialect.decimal)
    return value


def text_of(columns: Columns, dialect: Dialect) -> bytes:
    """Return a text table, encoded."""
    out = io.StringIO()
    for line in dialect.leading:
        out.write(line + dialect.newline)
    rows = [list(columns), *([cell(v, dialect) for v in row] for row in zip(*columns.values(), strict=True))]
    if dialect.padded:
        rows = [[row[0], *(f" {v}" if v != "" else v for v in row[1:])] for row in rows]
    if dialect.quoting == csv.QUOTE_NONE:  # separators in cells stay as they are
        out.writelines(dialect.separator.join(map(str, row)) + dialect.newline for row in rows)
    else:
        how: dict[str, Any] = {"delimiter": dialect.separator, "lineterminator": dialect.newline}
        csv.writer(out, quoting=dialect.quoting, **how).writerows(rows)  # type: ignore[arg-type]
    return (out.getvalue() + dialect.trailing).encode(dialect.encoding)


def frame_of(columns: Columns, dialect: Dialect) -> polars.DataFrame:
    """Return a typed table."""
    plain_columns = {
        name: [str(v) if isinstance(v, NumberText) else v for v in values] for name, values in columns.items()
    }
    frame = polars.DataFrame(plain_columns, strict=False)
    return frame.with_columns(polars.col(polars.String).cast(polars.Categorical)) if dialect.categories else frame


def in_memory(columns: Columns, dialect: Dialect) -> Any:
    """Return a table as programs hold it."""
    frame = frame_of(columns, dialect)
    frame_parts: dict[str, Callable[[], Any]] = {
        "polars": lambda: frame,
        "pandas": frame.to_pandas,
        "arrow table": frame.to_arrow,
        "mapping": lambda: {name: column.to_list() for name, column in frame.to_dict().items()},
    }
    return frame_parts[dialect.suffix]()


def write_one(columns: Columns, path: Path, dialect: Dialect) -> None:
    """Write one file."""
    if dialect.typed and "json" not in dialect.suffix:
        frame = frame_of(columns, dialect)
        writers = {".parquet": frame.write_parquet, ".xlsx": frame.write_excel}
        writers.get(dialect.suffix, frame.write_ipc)(path)
    elif "json" in dialect.suffix:
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        data = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(data) if dialect.suffix.endswith(".gz") else data)
    else:
        data = text_of(columns, dialect)
        if dialect.suffix.endswith(".gz"):
            data = gzip.compress(data)
        elif dialect.suffix.endswith(".zst"):
            data = compress_zstandard(data)
        path.write_bytes(data)


def write(columns: Columns, folder: Path, dialect: Dialect) -> Any:
    """Write a table into a folder and return the path to read, or return the table in memory."""
    if dialect.suffix in IN_MEMORY:
        return in_memory(columns, dialect)
    if dialect.parts == 1:
        path = folder / f"table{dialect.suffix}"
        write_one(columns, path, dialect)
        return path
    n = len(next(iter(columns.values())))
    (folder / "tables").mkdir(exist_ok=True)
    for i in range(dialect.parts):
        rows = slice(n * i // dialect.parts, n * (i + 1) // dialect.parts)
        part = {name: values[rows] for name, values in columns.items()}
        write_one(part, folder / "tables" / f"part-{i}{dialect.suffix}", dialect)
    return folder / "tables"
