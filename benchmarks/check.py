"""Hold our own speed to committed ratios: every row against `softmax` and `max` of the same tensor, in one run.

    python -m benchmarks.check [--write] [--only metrics,fits,neighbor] [--rounds 7]

Beside each metric stands what the machine could do: the time in which it reads the logits once and takes as many
exponentials, both measured here. A row fails if its ratio is a third above that of `ratios.json`, which knows two, with
compiled kernels (`calibrant[fast]`) and without; `--write` replaces those of the way that is measured. The last rows
are the time of `calibrant assess`, and of fits, beside a busy process over that alone, the least of three each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch starts its threads

import torch

from benchmarks._problems import draw, workload
from calibrant import Predictions, _fast, measure, metrics
from calibrant.calibrators import FocalTemperature, Temperature

RATIOS = Path(__file__).with_name("ratios.json")
LOSS = 4 / 3
SHAPES = ((1_000_000, 10), (20_000, 1000))
METRICS = ("ece", "adaptive_ece", "sweep_ece", "nll", "brier", "entropy", "auroc", "smooth_ece")
SLOW = ("auroc",)  # a sort for every class: measured with few classes only
BASE = "softmax + max"
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


def limit(z: torch.Tensor) -> float:
    """Seconds in which the logits are read once and as many exponentials taken, of float64 that stay in cache."""
    block = torch.full((1 << 14,), -1.0, dtype=torch.float64)
    out = torch.empty_like(block)

    def exponentials() -> None:
        for _ in range(z.numel() // len(block)):
            torch.exp2(block, out=out)

    return min(seconds(z.sum) for _ in range(3)) + min(seconds(exponentials) for _ in range(3))


def seconds(work: Callable[[], Any]) -> float:
    """Processor time."""
    began = time.process_time()
    work()
    return time.process_time() - began


def of_metrics(rounds: int) -> dict[str, float]:
    """Ratios of metrics and of the whole report; medians of those of each round, in which all run in turn."""
    found: dict[str, float] = {}
    for n, k in SHAPES:
        z, y = draw(n, k)
        tasks: dict[str, Callable[[], Any]] = {BASE: lambda z=z: z.softmax(1).max(1)}
        for name in METRICS:
            if k < 100 or name not in SLOW:
                tasks[name] = lambda z=z, y=y, name=name: getattr(metrics, name)(z, y)
        tasks["measure"] = lambda z=z, y=y: measure(Predictions(z, y))
        tasks["Summary"] = lambda z=z, y=y: metrics.Summary.empty().add(z, y)
        for work in tasks.values():
            work()  # compiled, and warm
        times = [{name: seconds(work) for name, work in tasks.items()} for _ in range(rounds)]
        least = limit(z)
        print(f"\nn = {n:,}, k = {k}: the machine's limit is {1e3 * least:.1f} ms")
        print(f"{'':24}{'ms':>10}{'of ' + BASE:>20}{'of the limit':>14}")
        for name in tasks:
            took = statistics.median(each[name] for each in times)
            ratio = statistics.median(each[name] / each[BASE] for each in times)
            print(f"{name:24}{1e3 * took:>10.1f}{ratio:>20.2f}{took / least:>14.1f}", flush=True)
            if name != BASE:
                found[f"{name} ({n:,}, {k})"] = ratio
    return found


def of_fits(rounds: int) -> dict[str, float]:
    """Ratios of the searches for a temperature: by NLL, by ECE among a thousand, and focal ones by adaptive ECE."""
    few, many = draw(5000, 100, temperature=1.5), draw(50_000, 1000, temperature=1.5)
    mixed = workload(5000, 100)
    tasks: dict[str, tuple[torch.Tensor, Callable[[], Any]]] = {
        "temperature (5,000, 100)": (few[0], lambda: Temperature.fit(*few)),
        "temperature (50,000, 1000)": (many[0], lambda: Temperature.fit(*many)),
        "best of 1000 temperatures (5,000, 100)": (
            mixed[0],
            lambda: Temperature.fit(*mixed, criterion="ece", grid=GRID),
        ),
        "best of 4500 focal temperatures (5,000, 100)": (few[0], lambda: FocalTemperature.fit(*few)),
    }
    found: dict[str, float] = {}
    print(f"\n{'':46}{'of ' + BASE:>20}")
    for name, (z, work) in tasks.items():
        work()
        pairs = [(seconds(lambda z=z: z.softmax(1).max(1)), seconds(work)) for _ in range(rounds)]
        found[name] = statistics.median(took / base for base, took in pairs)
        print(f"{name:46}{found[name]:>20.2f}", flush=True)
    return found


def of_neighbor() -> dict[str, float]:
    """Ratios of the time that work takes beside a busy process to the time alone: a command, and fits in a process."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(Path(folder) / name) for name in ("val.npz", "test.npz")]
        for seed, (file, n) in enumerate(zip(files, (5000, 10_000))):
            Predictions(*draw(n, 100, temperature=1.5, seed=seed)).save(file)
        works = {"assess": ["-m", "calibrant", "assess", *files], "fits": ["-c", FITS, files[0]]}
        return {f"{name} beside a busy process": _beside(name, work) for name, work in works.items()}


def _beside(name: str, work: list[str]) -> float:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}

    def once() -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, *work], check=True, capture_output=True, env=environment)
        return time.perf_counter() - began

    alone, beside = [once()], list[float]()
    for _ in range(3):
        alone.append(once())
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        try:
            beside.append(once())
        finally:
            busy.kill()
            busy.wait()
    ratio = min(beside) / min(alone)
    print(f"\n{name}: {min(alone):.1f} s alone, {ratio:.2f} of it beside a busy process", flush=True)
    return ratio


PARTS = {"metrics": of_metrics, "fits": of_fits, "neighbor": lambda rounds: of_neighbor()}


def lost(found: dict[str, float], known: dict[str, float]) -> list[str]:
    """What became slower by more than a third, in words."""
    worse = {name: ratio for name, ratio in found.items() if name in known and ratio > LOSS * known[name]}
    return [f"{name}: {ratio:.2f}, was {known[name]:.2f}" for name, ratio in worse.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the ratios of this run")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by comma")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    way = "plain" if _fast.kernels(torch.zeros(1)) is None else "compiled"
    found: dict[str, float] = {}
    for part in options.only.split(","):
        found |= PARTS[part](options.rounds)
    known = json.loads(RATIOS.read_text()) if RATIOS.is_file() else {}
    if options.write:
        rounded = {name: round(ratio, 2) for name, ratio in found.items()}
        RATIOS.write_text(json.dumps(known | {way: known.get(way, {}) | rounded}, indent=1) + "\n")
        return
    if slower := lost(found, known.get(way, {})):
        sys.exit("\n".join(["", f"slower by more than a third ({way}):", *slower]))


if __name__ == "__main__":
    main()
