"""Forward and backward pass of every loss against `torch.nn.functional.cross_entropy`: ratios of time and peak memory.

    python benchmarks/losses.py [--threads N] [--repeats N]

Times are medians of interleaved repeats. Peak memory is that of tensors allocated by torch, without the inputs: from
its own statistics on CUDA, from the profiler's records on the CPU.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from calibrant.registry import LOSSES
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from calibrant import losses
from calibrant.nn import Criterion

SHAPES = (8192, 10), (8192, 1000), (2048, 32000)
BASELINES = {
    "torch cross_entropy": lambda z, y: F.cross_entropy(z, y),
    "torch cross_entropy, smoothed": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.05),
    "plain torch focal": lambda z, y: _plain_focal(z, y).mean(),
}
GOAL = {"focal", "flsd", "inverse_focal", "cross_entropy", "cross_entropy(smoothing=0.05)"}


def _plain_focal(logits: Tensor, labels: Tensor) -> Tensor:
    log_p = logits.log_softmax(-1).gather(-1, labels[:, None]).squeeze(-1)
    return -((-log_p.expm1()) ** 3) * log_p


def peak(step: Callable[[], None], device: str) -> int:
    """Return the peak of bytes allocated in a step."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    allocated = peak_bytes = 0
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        allocated += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]  torch's stubs lack it
        peak_bytes = max(peak_bytes, allocated)
    return peak_bytes


def seconds(step: Callable[[], None], device: str) -> float:
    """Return the time of a step."""
    began = time.perf_counter()
    step()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def table(n: int, k: int, repeats: int, device: str) -> list[tuple[str, float, float]]:
    """Return name, time ratio and memory ratio of every loss."""
    g = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(n, k, generator=g)).to(device).requires_grad_()
    labels = torch.randint(k, (n,), generator=g).to(device)
    names = [*LOSSES, "cross_entropy(smoothing=0.05)"]
    criteria: dict[str, Callable[[Tensor, Tensor], Tensor]] = BASELINES | {
        name: Criterion(losses.for_counts(LOSSES.resolve(name), labels.bincount(minlength=k))) for name in names
    }

    def step(criterion: Callable[[Tensor, Tensor], Tensor]) -> None:
        logits.grad = None
        criterion(logits, labels).backward()

    times: dict[str, list[float]] = {name: [] for name in criteria}
    memory = {}
    for repeat in range(repeats + 1):  # the first warms up
        for name, criterion in criteria.items():
            took = seconds(lambda criterion=criterion: step(criterion), device)
            if repeat:
                times[name].append(took)
    for name, criterion in criteria.items():
        logits.grad = None
        memory[name] = peak(lambda criterion=criterion: step(criterion), device)
    base = "torch cross_entropy"
    middle = {name: statistics.median(values) for name, values in times.items()}
    print(f"\n{n} x {k} on {device}: {1e3 * middle[base]:.2f} ms, {memory[base] / 2**20:.1f} MiB for {base}")
    return [(name, middle[name] / middle[base], memory[name] / memory[base]) for name in criteria]


def main() -> None:
    """Print a table per shape."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for n, k in SHAPES:
        rows = table(n, k, options.repeats, device)
        print(f"{'':32}{'time':>8}{'peak':>8}   goal at k >= 1000: 1.5, 1.25")
        for name, slower, larger in rows:
            has_goal = name in GOAL and k >= 1000
            verdict = ("met" if slower <= 1.5 and larger <= 1.25 else "MISSED") if has_goal else ""
            print(f"{name:32}{slower:8.2f}{larger:8.2f}   {verdict}")


if __name__ == "__main__":
    main()
