"""Compare our speed with committed ratios: every row of `benchmarks.limits` in one run.

    python -m benchmarks.check [--write] [--only metrics,fits,neighbor] [--rounds 7]

A row fails if its ratio is a third above that in `ratios.json`, which has one set with compiled kernels
(`calibrant[fast]`) and one without. `--write` replaces the set that is measured.
"""

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch starts its threads

import torch

from benchmarks.limits import PARTS, line
from calibrant._core.kernels import dispatch

RATIOS = Path(__file__).with_name("ratios.json")
LOSS = 4 / 3


def slowdowns(ratios: dict[str, float], committed: dict[str, float]) -> list[str]:
    """Return a line per ratio that is more than a third above the committed one."""
    slow_rows = {name: ratio for name, ratio in ratios.items() if name in committed and ratio > LOSS * committed[name]}
    return [f"{name}: {ratio:.2f}, was {committed[name]:.2f}" for name, ratio in slow_rows.items()]


def main() -> None:
    """Measure, print and compare the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="keep the ratios of this run")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, by comma")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    engine = "plain" if dispatch.kernels(torch.zeros(1)) is None else "compiled"
    ratios: dict[str, float] = {}
    print(f"{'':46}{'ms':>10}{'ratio':>10}{'limit, ms':>12}{'of the limit':>14}")
    for part in options.only.split(","):
        for row in PARTS[part](options.rounds):
            ratios[row["task"]] = row["ratio"]
            task, *numbers = line(row)
            print("{:46}{:>10}{:>10}{:>12}{:>14}".format(task, *numbers), flush=True)
    committed = json.loads(RATIOS.read_text()) if RATIOS.is_file() else {}
    if options.write:
        rounded = {name: round(ratio, 2) for name, ratio in ratios.items()}
        RATIOS.write_text(json.dumps(committed | {engine: committed.get(engine, {}) | rounded}, indent=1) + "\n")
        return
    if slower := slowdowns(ratios, committed.get(engine, {})):
        sys.exit("\n".join(["", f"slower by more than a third ({engine}):", *slower]))


if __name__ == "__main__":
    main()
