"""A hundred million predictions through `metrics.Summary`: time and memory.

    python -m benchmarks.stream [--n 100000000] [--k 10] [--processes 2]

Every process draws its share in batches and summarizes it; the summaries are merged and read. Drawing is timed
separately. Memory is the largest resident set of any process.
"""

import argparse
import time

import torch
from torch import multiprocessing

from benchmarks._harness import resident
from calibrant import measure
from calibrant.metrics import Summary

BATCH = 250_000


def share(rank: int, batches: int, k: int, queue) -> None:
    """Summarize the batches of one process, and put its state into the queue."""
    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(rank)
    summary, drawing, adding = Summary.empty(), 0.0, 0.0
    block = 2 * torch.randn(BATCH, k, generator=g)
    labels = torch.multinomial(block.softmax(-1), 1, generator=g).squeeze(1)
    for i in range(batches):
        start = time.perf_counter()
        logits = block * (1 + 0.01 * (i % 7))  # new numbers in every batch, at low cost
        drawn = time.perf_counter()
        summary = summary.add(logits, labels)
        drawing, adding = drawing + drawn - start, adding + time.perf_counter() - drawn
    queue.put((summary.k, summary.sums, summary.cells, drawing, adding, resident("VmHWM")))


def main() -> None:
    """Run the processes, and print times and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100_000_000)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    start = time.perf_counter()
    batches = options.n // BATCH // options.processes
    workers = [
        context.Process(target=share, args=(rank, batches, options.k, queue)) for rank in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    total, peak = Summary.empty(), 0.0
    for rank in range(options.processes):
        k, sums, cells, drawing, adding, resident_mb = queue.get()
        total += Summary(k, 15, sums, slots=None, cells=cells)
        peak = max(peak, resident_mb)
        print(f"process {rank}: {drawing:.1f} s drawing, {adding:.1f} s summarizing, {resident_mb:.0f} MB resident")
    for worker in workers:
        worker.join()
    read = time.perf_counter()
    print(measure(total))
    print(
        f"read in {time.perf_counter() - read:.2f} s; all in {time.perf_counter() - start:.1f} s; {peak:.0f} MB at most"
    )


if __name__ == "__main__":
    main()
