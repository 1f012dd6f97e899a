"""Time and memory of the default metrics grow with examples and classes by the fitted exponents.

Every size is drawn in batches and summarized, or measured whole where it fits. The exponent is the slope of log time
over log size, for sizes above 5 ms; 1 is proportional.
"""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from benchmarks import _reference as reference
from benchmarks._harness import Row, Size, clock, markdown, peak_mb
from benchmarks._problems import draw
from calibrant import metrics
from calibrant.metrics import Summary

TITLE = "Scale"
NAMES = ("nll", "brier", "accuracy", "ece", "adaptive_ece", "classwise_ece", "smooth_ece", "debiased_l2", "kuiper")
BATCH = 250_000
MAX_UNBATCHED_ROWS = 10_000_000  # of 10 classes, measured without batches


def run(size: Size) -> Iterator[Row]:
    """Measure over examples at 10 classes, then over classes at a constant number of logits."""
    largest = {"tiny": 3, "quick": 7, "full": 8}[size.name]
    for power in range(3 if size.shrink > 1 else 4, largest + 1):
        yield from _examples(10**power)
    for k in (2, 10, 100, 1000, 10_000, 100_000)[: 3 if size.shrink > 1 else None]:
        yield from _classes(k, 10_000_000 // size.shrink)


def _measured(name: str, z: torch.Tensor, y: torch.Tensor, axis: str) -> Row:
    work = partial(getattr(metrics, name), z, y)
    value = float(work())
    took: list[float] = []
    for _ in range(3):
        start = clock()
        work()
        took.append(clock() - start)
    row: Row = {"axis": axis, "metric": name, "n": len(y), "k": z.shape[1], "seconds": min(took), "value": value}
    if hasattr(reference, name) and z.numel() <= 10_000_000 and (name != "classwise_ece" or z.shape[1] <= 1000):
        row["off"] = abs(value - getattr(reference, name)(z, y))
    return row | {"extra_mb": peak_mb(work), "ns_per_logit": 1e9 * min(took) / z.numel()}


def _examples(n: int) -> Iterator[Row]:
    if n <= MAX_UNBATCHED_ROWS:
        z, y = draw(n, 10)
        for name in NAMES:
            yield _measured(name, z, y, "n")
        del z, y
    yield _summarized(n)


def _summarized(n: int) -> Row:
    """Measure a stream of batches through a summary, whose state has a fixed size."""
    z, y = draw(min(n, BATCH), 10)
    summary, took = Summary.empty(), 0.0

    def add() -> None:
        nonlocal summary, took
        for i in range(max(1, n // BATCH)):
            batch = z * (1 + 0.01 * (i % 7))  # new numbers in every batch, at low cost
            start = clock()
            summary = summary.add(batch, y)
            took += clock() - start

    extra = peak_mb(add)
    start = clock()
    value = summary["ece"]
    took += clock() - start
    row: Row = {
        "axis": "n",
        "metric": "Summary, all metrics",
        "n": len(summary),
        "k": 10,
        "seconds": took,
        "value": value,
    }
    return row | {"extra_mb": extra, "ns_per_logit": 1e9 * took / (10 * len(summary))}


def _classes(k: int, logits: int) -> Iterator[Row]:
    z, y = draw(logits // k, k)
    for name in NAMES:
        yield _measured(name, z, y, "k")


def page(rows: list[Row]) -> str:
    """Return times by size, and exponents."""
    text: list[str] = []
    for axis, title in ("n", "examples, at 10 classes"), ("k", "classes, at a constant number of logits"):
        axis_rows = [row for row in rows if row["axis"] == axis]
        sizes = sorted({row[axis] for row in axis_rows})
        lines: list[list[object]] = []
        for name in dict.fromkeys(row["metric"] for row in axis_rows):
            at = {row[axis]: row for row in axis_rows if row["metric"] == name}
            cells = [f"{1e3 * at[s]['seconds']:,.1f}" if s in at else "" for s in sizes]
            max_extra_mb = max((row["extra_mb"] for row in at.values() if "extra_mb" in row), default=math.nan)
            off = max((row["off"] for row in at.values() if "off" in row), default=math.nan)
            lines.append([name, *cells, _exponent(list(at.values()), axis), max_extra_mb, off])
        head = ["processor ms", *(f"{axis} = {s:,.0f}" for s in sizes), "exponent", "max. extra MB", "off"]
        text += [f"### Over {title}", "", markdown(head, lines), ""]
    return "\n".join(text)


def _exponent(rows: list[Row], axis: str) -> str:
    """Return the slope of log time over log size; over classes, that of the time per example."""
    long = [row for row in rows if row["seconds"] > 5e-3]
    if len(long) < 2:
        return ""
    per = [row["seconds"] / (1 if axis == "n" else row["n"]) for row in long]
    return f"{np.polyfit(np.log([row[axis] for row in long]), np.log(per), 1)[0]:.2f}"
