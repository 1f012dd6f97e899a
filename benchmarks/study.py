"""Time to measure 200 stored runs, to write their report, and to open it.

    python benchmarks/study.py [FOLDER]     # keeps the runs in FOLDER, else in a temporary folder

The logits are simulated: 5,000 validation and 10,000 test examples of 10 classes, for ten losses that differ in
accuracy and confidence, with 20 seeds each. All default calibrators and metrics of `study` and of `assess` are
measured.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from calibrant import Predictions
from calibrant.lab.study import Grid, Store, Study, measure

LOSSES = tuple(f"focal(gamma={gamma})" for gamma in range(10))
GRIDS = (Grid(("cifar10",), ("resnet50",), LOSSES, seeds=tuple(range(20))),)
STUDY_DEFAULTS = Study("defaults of study", GRIDS)
CALIBRATORS = "Identity", "Temperature", "StructuredMatrix", "HistogramBinning", "Auto"
METRICS = "error", "accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece"
ALL = Study("defaults of assess", GRIDS, CALIBRATORS, METRICS)
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOADED = "onload = () => { document.body.offsetHeight; document.documentElement.dataset.ms = performance.now() }"


def draw(n: int, strength: float, confidence: float, g: torch.Generator) -> Predictions:
    """Draw logits of a network that is sure of most examples, with some classes alike."""
    labels = torch.randint(10, (n,), generator=g)
    z = torch.randn(n, 10, generator=g)
    ease = strength * torch.rand(n, generator=g).sqrt()
    z[torch.arange(n), labels] += ease
    z[torch.arange(n), labels ^ 1] += ease / 3
    return Predictions(confidence * z, labels)


def fill(store: Store) -> None:
    """Store a run for every loss and seed."""
    for run in STUDY_DEFAULTS.runs():
        if run not in store:
            gamma = float(re.findall(r"gamma=(\d+)", run.loss.text)[0])
            g = torch.Generator().manual_seed(1000 * int(gamma) + run.seed)
            parts = {name: draw(n, 8, 3 / (1 + gamma / 3), g) for name, n in (("val", 5000), ("test", 10_000))}
            store.save(run, parts, {"seconds": 1.0}, [{"epoch": 1, "train_loss": 1.0}])


def opened(report: Path) -> tuple[float, float]:
    """Return the seconds until the page is loaded and laid out, and those of the whole browser process."""
    page = report.with_name("timed.html")
    page.write_text(report.read_text().replace("</head>", f"<script>{LOADED}</script></head>"))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={report.parent}/user"]
    began = time.monotonic()
    process = subprocess.run([BROWSER, *flags, "--dump-dom", page.as_uri()], capture_output=True, text=True, check=True)
    return float(re.findall(r'data-ms="([\d.]+)"', process.stdout)[0]) / 1000, time.monotonic() - began


def processor() -> float:
    """Return processor seconds of this process and its finished children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def main(folder: Path) -> None:
    """Measure both studies, and print times."""
    store, cores = Store(folder), len(os.sched_getaffinity(0))
    fill(store)
    for study in STUDY_DEFAULTS, ALL:
        began, used = time.monotonic(), processor()
        result = measure(study, out=folder, jobs=cores)
        took, used = time.monotonic() - began, processor() - used
        description = (
            f"{len(study.calibrators)} calibrators, {len(study.metrics)} metrics, {len(result.rows)} rows of 200 runs"
        )
        print(f"{study.name}: {description}: {took:.1f} s in {cores} processes, {used:.1f} s of processor", flush=True)
        report = folder / "report.html"
        print(f"  with tables and a report of {report.stat().st_size / 1e6:.2f} MB", flush=True)
        if BROWSER is not None:
            loaded, browser_seconds = opened(report)
            print(f"  loaded and laid out in {loaded:.2f} s, the whole visit in {browser_seconds:.2f} s", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
