"""Measure contenders in turn: medians after a warm-up, peak memory, and rows as CSV."""

import argparse
import contextlib
import csv
import ctypes
import io
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

US = "calibrant"
FLOOR = "bare floor"
Row = dict[str, Any]
Work = Callable[[], Any]


@dataclass(frozen=True)
class Size:
    """Amount of work: "tiny" shows that everything runs, "full" includes the slowest packages."""

    name: str
    shrink: int  # examples are divided by this
    seconds: float  # limit of every contender in a race, after the warm-up

    @property
    def full(self) -> bool:
        """Whether nothing is left out."""
        return self.name == "full"


SIZES = {size.name: size for size in (Size("tiny", 100, 0.0), Size("quick", 1, 2.0), Size("full", 1, 12.0))}


def clock() -> float:
    """Return seconds of processor time in one thread, which other programs do not inflate; else wall-clock time."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


@contextlib.contextmanager
def quiet() -> Generator[None]:
    """Suppress progress bars, warnings and logs of other packages."""
    logging.disable(logging.CRITICAL)
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def reason(error: BaseException) -> str:
    """Return an exception in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:120].replace("|", "/")


def resident(field: str) -> float:
    """Return VmRSS or VmHWM of this process in MB."""
    text = Path("/proc/self/status").read_text()
    return int(text.split(f"{field}:")[1].split()[0]) / 1024


def peak_mb(work: Work) -> float:
    """Return the peak memory of `work` in MB beyond the memory before; nan without /proc."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # freed memory must not hide new memory
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    except (OSError, AttributeError):
        return math.nan
    work()
    return max(0.0, resident("VmHWM") - before)


def race(
    task: str,
    entries: Mapping[str, Work],
    floor: Work,
    seconds: float,
    *,
    value: Callable[[Any], float] = float,
    reference: float | None = None,
    tolerance: float = 1e-6,
    rounds: int = 9,
) -> list[Row]:
    """Time contenders of one task in turn, and check their results.

    After a warm-up, every round runs each contender once, so that disturbances affect all alike. The median counts. A
    contender that fails becomes a row with the reason.

    Args:
        task: Name of the task.
        entries: Work of each contender.
        floor: Work whose time is the unit of the column `of_floor`.
        seconds: Time limit of each contender after the warm-up. One that reaches it in the warm-up is not run again.
        value: Converts a result to a number, outside the timing.
        reference: Correct number.
        tolerance: Largest absolute error of a correct result.
        rounds: Largest number of rounds.
    """
    times: dict[str, list[float]] = {}
    rows: dict[str, Row] = {}
    for contender, work in {FLOOR: floor, **entries}.items():
        row = rows[contender] = {"task": task, "contender": contender}
        try:
            with quiet():
                start = clock()
                result = work()
                times[contender] = [clock() - start]
                row["extra_mb"] = round(peak_mb(work), 1) if times[contender][0] < seconds else math.nan
                if contender != FLOOR:
                    row["value"] = value(result)
        except Exception as error:  # packages fail in many ways
            row["note"] = reason(error)
            times.pop(contender, None)
    warm = {contender: took.pop() if took[0] < seconds else took[0] for contender, took in times.items()}
    for finished_rounds in range(rounds):
        for contender, took in times.items():
            if warm[contender] < seconds and (finished_rounds == 0 or sum(took) + warm[contender] < seconds):
                with quiet():
                    start = clock()
                    (floor if contender == FLOOR else entries[contender])()
                    took.append(clock() - start)
    medians = {contender: statistics.median(took) for contender, took in times.items()}
    for contender, row in rows.items():
        if contender in medians:
            row |= {
                "ms": 1e3 * medians[contender],
                "of_floor": medians[contender] / medians[FLOOR],
                "of_ours": medians[contender] / medians[US] if US in medians else math.nan,
                "runs": len(times[contender]),
            }
        if reference is not None and "value" in row:
            off = abs(row["value"] - reference)
            row |= {"reference": reference, "off": off, "right": off <= tolerance}
    return list(rows.values())


def write(rows: Iterable[Row], path: Path) -> None:
    """Write rows as CSV, with columns in the order of their first appearance."""
    rows = list(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: f"{x:.10g}" if isinstance(x, float) else x for key, x in row.items()} for row in rows)


def read(path: Path) -> list[Row]:
    """Read rows from CSV: numbers as floats, True and False as booleans, empty cells omitted."""

    def parsed(text: str) -> Any:
        if text in ("True", "False"):
            return text == "True"
        try:
            return float(text)
        except ValueError:
            return text

    with path.open(newline="") as file:
        return [{key: parsed(text) for key, text in row.items() if text} for row in csv.DictReader(file)]


def replace_rows(rows: Iterable[Row], keys: Sequence[str], path: Path | None) -> None:
    """Print each row as soon as it is measured, and write it in place of the row of a file with the same keys."""
    by_key = {tuple(row[key] for key in keys): row for row in (read(path) if path and path.is_file() else ())}
    for row in rows:
        numbers = (f"{key} {value:.4f}" for key, value in row.items() if isinstance(value, float))
        print(*(row[key] for key in keys), *numbers, sep="; ", flush=True)
        by_key[tuple(row[key] for key in keys)] = row
        if path:
            write(by_key.values(), path)


def world_parser(doc: str, sizes: Sequence[int]) -> argparse.ArgumentParser:
    """Return a parser of the options --draws, --worlds, --sizes and --out."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--draws", type=int, default=60)
    parser.add_argument("--worlds", default="", help="text that the names of the worlds contain")
    parser.add_argument("--sizes", default=",".join(map(str, sizes)), help="numbers of examples, by comma")
    parser.add_argument("--out", type=Path)
    return parser


def write_table(head: list[str], lines: list[list[Any]], path: Path | None) -> None:
    """Print a table as markdown, and write it as CSV if there is a path."""
    print(markdown(head, lines))
    if path is not None:
        with path.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([head, *lines])


def table_parser(doc: str, draws: int) -> argparse.ArgumentParser:
    """Return a parser of the number of draws and of the path of a table."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--draws", type=int, default=draws)
    parser.add_argument("--out", type=Path)
    return parser


def rows_by_size(cells: Iterable[tuple[tuple[str, ...], int, str]], sizes: Sequence[int]) -> list[list[str]]:
    """Return a row of texts per key, with a column per size; it is empty where there is no cell."""
    texts: dict[tuple[str, ...], dict[int, str]] = {}
    for key, n, text in cells:
        texts.setdefault(key, {})[n] = text
    return [[*key, *(row.get(n, "") for n in sizes)] for key, row in texts.items()]


def markdown(head: list[str], lines: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table with the first column aligned left and the others right."""
    cells = [[shorten(cell) for cell in line] for line in lines]
    assert all(len(line) == len(head) for line in cells), head
    rule = [":--", *["--:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, rule, *cells])


def shorten(cell: object) -> str:
    """Format a cell with three digits; nan and None are empty."""
    if isinstance(cell, float):
        if math.isnan(cell):
            return ""
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return "" if cell is None else str(cell)
