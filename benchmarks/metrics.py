"""Every metric and the whole report against softmax and max of the same tensor.

    python benchmarks/metrics.py [--threads 1] [--repeats 5]

Times are processor time, the least of interleaved rounds, so that other programs hardly count.
"""

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch

from calibrant import Predictions, metrics
from calibrant import measure as measure_all
from calibrant.registry import METRICS

SHAPES = [(1_000_000, 10), (50_000, 1000)]
SLOW = {"auroc"}  # one sort per class: only measured with few classes


def draw(n: int, k: int) -> Predictions:
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(n, k, generator=g)
    return Predictions(logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))


def peers(p: Predictions) -> dict[str, Callable[[], Any]]:
    """Return metrics of other packages. Inputs of netcal and relplot are prepared outside the timing."""
    works: dict[str, Callable[[], Any]] = {}
    probs, k = p.logits.softmax(-1), p.logits.shape[1]
    arrays = probs.numpy(), p.labels.numpy()
    c, a = probs.amax(-1).double().numpy(), (probs.argmax(-1) == p.labels).double().numpy()
    if theirs := module("torchmetrics.functional.classification"):
        ece = theirs.multiclass_calibration_error
        works["torchmetrics ECE, of probabilities"] = lambda: ece(probs, p.labels, num_classes=k, n_bins=15)
        works["torchmetrics ECE, of logits"] = lambda: ece(p.logits, p.labels, num_classes=k, n_bins=15)
    if theirs := module("netcal.metrics"):
        measure = theirs.ECE(15).measure
        works["netcal ECE, of probabilities"] = lambda: measure(*arrays)
    if theirs := module("relplot"):
        smooth = theirs.smECE
        works["relplot smooth ECE, of confidences"] = lambda: smooth(c, a)
    return works


def module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        print(f"{name.partition('.')[0]} is not installed and left out")
        return None


def main() -> None:
    """Print a table per shape."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for n, k in SHAPES:
        p = draw(n, k)
        tasks: dict[str, Callable[[], Any]] = {"softmax and max": lambda p=p: p.logits.softmax(-1).max(-1)}
        tasks["measure"] = lambda p=p: measure_all(Predictions(p.logits, p.labels))
        tasks["Summary"] = lambda p=p: metrics.Summary.empty().add(p.logits, p.labels)
        for name in METRICS:
            if k < 100 or name not in SLOW:
                tasks[name] = lambda p=p, name=name: getattr(metrics, name)(p.logits, p.labels)
        tasks |= peers(p)
        took: dict[str, list[float]] = {name: [] for name in tasks}
        for _ in range(options.repeats):
            for name, task in tasks.items():
                start = time.process_time()
                task()
                took[name].append(time.process_time() - start)
        base = min(took["softmax and max"])
        print(f"\nn = {n:,}, k = {k}, {options.threads} thread(s)\n{'':<40}{'CPU ms':>10}{'of softmax + max':>20}")
        for name, times in took.items():
            print(f"{name:<40}{1000 * min(times):>10.1f}{min(times) / base:>19.2f}x")


if __name__ == "__main__":
    main()
