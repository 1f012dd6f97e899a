"""Processor time and peak memory of the default `assess`, by number of examples and classes.

    python -m benchmarks.assess [--sizes 10000x10,1000000x10,2000x1000]

Fits on at most 10,000 examples and evaluates n others, each size in its own process with one thread. Prints a table.
"""

import argparse
import os
import subprocess
import sys
import time

from benchmarks._harness import resident

SIZES = "10000x10,100000x10,1000000x10,5000000x10,2000x100,2000x1000,2000x10000,2000x50000"


def assess_draw(n: int, k: int) -> None:
    """Assess simulated predictions; print seconds, memory of the data, and peak memory."""
    import torch

    from calibrant import Predictions, assess

    torch.set_num_threads(1)
    g = torch.Generator().manual_seed(0)

    def draw(rows: int) -> Predictions:
        z, y = torch.empty(rows, k), torch.empty(rows, dtype=torch.int64)
        for part in torch.arange(rows).split(max(1, 10_000_000 // k)):
            logits = 2 * torch.randn(len(part), k, generator=g)
            z[part], y[part] = 1.5 * logits, torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)
        return Predictions(z, y)

    val, test = draw(min(n, 10_000)), draw(n)
    before, began = resident("VmHWM"), time.process_time()
    assessment = assess(val, test)
    print(time.process_time() - began, before, resident("VmHWM"), assessment.chosen_name)


def main() -> None:
    """Print a row per size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", default=SIZES)
    print("| n | k | seconds | peak, MB | of it data and imports | chosen |\n|---:|---:|---:|---:|---:|---|")
    for size in parser.parse_args().sizes.split(","):
        n, k = map(int, size.split("x"))
        code = f"from benchmarks.assess import assess_draw; assess_draw({n}, {k})"
        process = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        if process.returncode:
            print(
                f"| {n:,} | {k:,} | {process.stderr.strip().splitlines()[-1] if process.stderr else 'killed'} | | | |",
                flush=True,
            )
            continue
        seconds, before, peak, calibrator = process.stdout.split()
        print(
            f"| {n:,} | {k:,} | {float(seconds):.1f} | {float(peak):,.0f} | {float(before):,.0f} | {calibrator} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
