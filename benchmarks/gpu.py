"""The same work on CPU and GPU: seconds of both, and the speed-up.

    python -m benchmarks.gpu [--device cuda] [--shapes 1000000x10,1000000x1000,100000x128000] [--rounds 3]

Times are medians after a warm-up, with synchronization. Logits are bfloat16 from 32,000 classes on. A row says by how
much results differ, if they do, or why a device failed. `--device cpu` is a rehearsal.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from calibrant import Predictions, calibrators, measure, metrics

SHAPES = "1000000x10,1000000x1000,100000x128000"
MIN_VOCABULARY_CLASSES = 32_000  # logits in half precision, and no calibrators with parameters per class
MAX_MATRIX_CLASSES = 1000


def tasks(k: int) -> dict[str, Callable[[Predictions], float]]:
    """Return the tasks for k classes, each of which returns one number."""
    results: dict[str, Callable[[Predictions], float]] = {
        "nll": lambda p: float(metrics.nll(p)),
        "ece": lambda p: float(metrics.ece(p)),
        "sweep_ece": lambda p: float(metrics.sweep_ece(p)),
        "measure": lambda p: measure(p)["ece"].value,
        "Summary": lambda p: metrics.Summary.empty().add(p)["nll"],
        "Temperature": lambda p: float(calibrators.Temperature.fit(p).temperature),
        "SmoothedTemperature": lambda p: float(calibrators.SmoothedTemperature.fit(p, robust=True).temperature),
    }
    if k < MIN_VOCABULARY_CLASSES:
        results["StructuredVector"] = lambda p: calibrators.StructuredVector.fit(p).certificate.after  # pyright: ignore
    if k < MAX_MATRIX_CLASSES:
        results["auroc"] = lambda p: float(metrics.auroc(p))
        results["Auto"] = lambda p: calibrators.Auto.fit(p).certificate.after  # pyright: ignore
    return results


def draw(n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw overconfident logits and labels on the CPU."""
    g = torch.Generator().manual_seed(0)
    z = torch.empty(n, k, dtype=torch.bfloat16 if k >= MIN_VOCABULARY_CLASSES else torch.float32)
    y = torch.randint(0, k, (n,), generator=g)
    for part, part_labels in zip(z.split(max(1, (1 << 24) // k)), y.split(max(1, (1 << 24) // k)), strict=True):
        part.copy_(2 * torch.randn(part.shape, generator=g))
        part[torch.arange(len(part_labels)), part_labels] += 6
    return z, y


def seconds(work: Callable[[], float], device: str, rounds: int) -> tuple[float, float]:
    """Return the median time and the result."""
    took, value = list[float](), work()
    for _ in range(rounds):
        began = time.perf_counter()
        value = work()
        if device != "cpu":
            torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return statistics.median(took), value


def row(n: int, k: int, name: str, device: str, rounds: int) -> str:
    """Return a row of the table."""
    z, y = draw(n, k)
    results = list[tuple[float, float]]()
    for where in ("cpu", device):
        arrays = z.to(where), y.to(where)
        try:
            results.append(seconds(lambda arrays=arrays: tasks(k)[name](Predictions(*arrays)), where, rounds))
        except RuntimeError as error:  # out of memory
            return f"| {n:,} x {k:,} | {name} | {where}: {' '.join(str(error).split())[:80]} | | |"
    (slow, expected), (fast, value) = results
    off = abs(value - expected) / max(abs(expected), 1e-12)
    agrees = "" if off < 1e-6 else f" (off by {off:.0e})"
    return f"| {n:,} x {k:,} | {name}{agrees} | {slow:.3f} | {fast:.3f} | {slow / fast:.1f} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.device != "cpu" and not torch.cuda.is_available():
        parser.error("There is no GPU. Try --device cpu for a rehearsal.")
    print(f"| examples x classes | task | CPU s | {options.device} s | speed-up |")
    print("| :-- | :-- | --: | --: | --: |")
    for shape in options.shapes.split(","):
        n, k = map(int, shape.split("x"))
        for name in tasks(k):
            print(row(n, k, name, options.device, options.rounds), flush=True)


if __name__ == "__main__":
    main()
