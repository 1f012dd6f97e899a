"""Our time is compared with that of `softmax` and `max` of the same tensor, and with a limit of the machine.

The limit is the time to read the logits once and to compute as many float64 exponentials in cache, measured in the same
run. The last rows compare work next to a busy process with the same work alone, the least of three each: a command, and
fits and measurements in a process that may use all threads.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks._harness import Row, Size, clock, markdown
from benchmarks._problems import draw, workload
from calibrant import Predictions, measure, metrics
from calibrant.calibrators import FocalTemperature, Temperature

TITLE = "Limits"
SHAPES = ((1_000_000, 10), (20_000, 1000))
METRICS = ("ece", "adaptive_ece", "sweep_ece", "nll", "brier", "entropy", "auroc", "smooth_ece")
SLOW = ("auroc",)  # one sort per class: only measured with few classes
GRID = [i / 100 for i in range(1, 1001)]
FITS = """
import sys
from calibrant import Predictions
from calibrant.calibrators import HistogramBinning, Isotonic, Spline, StructuredMatrix, Temperature
p = Predictions.load(sys.argv[1])
for _ in range(10):
    for calibrator in HistogramBinning, Isotonic, Spline, StructuredMatrix, Temperature:
        calibrator.fit(p.logits, p.labels)
"""
MEASURES = """
import sys
from calibrant import Predictions, measure
p = Predictions.load(sys.argv[1])
for _ in range(30):
    measure(Predictions(p.logits, p.labels))
"""


def run(size: Size) -> Iterator[Row]:
    """Yield the rows of all parts."""
    rounds = 1 if size.shrink > 1 else 7
    for part in PARTS.values():
        yield from part(rounds, size.shrink)


def of_metrics(rounds: int, shrink: int = 1) -> Iterator[Row]:
    """Yield rows of metrics, reports and summaries."""
    for n, k in SHAPES:
        z, y = draw(n // shrink, k)
        names = [name for name in METRICS if k < 100 or name not in SLOW]
        works: dict[str, Callable[[], Any]] = {name: partial(getattr(metrics, name), z, y) for name in names}
        works["measure"] = lambda z=z, y=y: measure(Predictions(z, y))
        works["Summary"] = lambda z=z, y=y: metrics.Summary.empty().add(z, y)
        yield from _ratios(z, {f"{name} ({n:,}, {k})": work for name, work in works.items()}, rounds)


def of_fits(rounds: int, shrink: int = 1) -> Iterator[Row]:
    """Yield rows of temperature searches: by NLL, by ECE over a thousand, and focal ones by adaptive ECE."""
    small_draw, large_draw = (draw(n // shrink, k, temperature=1.5) for n, k in ((5000, 100), (50_000, 1000)))
    mixed = workload(5000 // shrink, 100)
    by_ece = partial(Temperature.fit, *mixed, criterion="ece", grid=GRID)
    yield from _ratios(small_draw[0], {"temperature (5,000, 100)": lambda: Temperature.fit(*small_draw)}, rounds)
    yield from _ratios(large_draw[0], {"temperature (50,000, 1000)": lambda: Temperature.fit(*large_draw)}, rounds)
    yield from _ratios(mixed[0], {"best of 1000 temperatures (5,000, 100)": by_ece}, rounds)
    focal = {"best of 4500 focal temperatures (5,000, 100)": lambda: FocalTemperature.fit(*small_draw)}
    yield from _ratios(small_draw[0], focal, rounds)


def of_neighbor(rounds: int, shrink: int = 1) -> Iterator[Row]:
    """Yield rows of work next to a busy process."""
    repeats = min(3, rounds)
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("val.npz", "test.npz")]
        for seed, (file, n) in enumerate(zip(files, (5000, 10_000), strict=True)):
            Predictions(*draw(n // shrink, 100, temperature=1.5, seed=seed)).save(file)
        yield _beside_busy_process("assess", ["-m", "calibrant", "assess", *files], repeats)
        yield _beside_busy_process("fits", ["-c", FITS, files[0]], repeats)
        Predictions(*draw(1_000_000 // shrink, 10)).save(files[0])
        yield _beside_busy_process("measure (1,000,000, 10)", ["-c", MEASURES, files[0]], repeats)


PARTS = {"metrics": of_metrics, "fits": of_fits, "neighbor": of_neighbor}


def _ratios(z: Tensor, works: dict[str, Callable[[], Any]], rounds: int) -> Iterator[Row]:
    """Yield medians of the ratios of each round, in which all tasks run in turn."""
    base, least = (lambda: z.softmax(1).max(1)), _limit(z)
    for work in (base, *works.values()):
        work()  # compile and warm up
    times = [(_seconds(base), {task: _seconds(work) for task, work in works.items()}) for _ in range(rounds)]
    for task in works:
        took = statistics.median(tasks[task] for _, tasks in times)
        ratio = statistics.median(tasks[task] / of for of, tasks in times)
        yield {"task": task, "ms": 1e3 * took, "ratio": ratio, "limit_ms": 1e3 * least, "of_limit": took / least}


def _limit(z: Tensor) -> float:
    block = torch.full((1 << 14,), -1.0, dtype=torch.float64)
    out = torch.empty_like(block)

    def exponentials() -> None:
        for _ in range(max(1, z.numel() // len(block))):
            torch.exp2(block, out=out)

    return min(_seconds(z.sum) for _ in range(3)) + min(_seconds(exponentials) for _ in range(3))


def _seconds(work: Callable[[], Any]) -> float:
    began = clock()
    work()
    return clock() - began


def _beside_busy_process(name: str, work: list[str], repeats: int) -> Row:
    """Return the time of a command next to a busy process over its time alone."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}

    def once() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *work], check=True, capture_output=True, env=environment)
        return time.perf_counter() - began

    quiet_times, busy_times = [once()], list[float]()
    for _ in range(repeats):
        quiet_times.append(once())
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            busy_times.append(once())
        finally:
            busy.kill()
            busy.wait()
    return {
        "task": f"{name} beside a busy process",
        "ms": 1e3 * min(busy_times),
        "ratio": min(busy_times) / min(quiet_times),
    }


def line(row: Row) -> list[str]:
    """Return the cells of a row."""
    limit = (f"{row['limit_ms']:,.1f}", f"{row['of_limit']:.1f}") if "limit_ms" in row else ("", "")
    return [row["task"], f"{row['ms']:,.1f}", f"{row['ratio']:.2f}", *limit]


def page(rows: list[Row]) -> str:
    """Return the table."""
    return markdown(["", "ms", "ratio", "limit, ms", "of the limit"], [line(row) for row in rows])
