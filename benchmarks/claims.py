"""Effects of losses on calibration, paired over the seeds or networks of studies, with their noise floors.

    python -m benchmarks.claims OUT... [--out docs/results/effects.csv]

OUT are output folders of studies. For every loss, ECE on the test data before and after the temperature that minimizes
the validation ECE, and the NLL's refinement (what remains after the best temperature), minus those of cross-entropy
with the same seed and network. Intervals of 90 % are Student's over these pairs; p-values are corrected by Holm over
the losses of a column. Errors are in percent.
"""

import argparse
import json
from collections import defaultdict
from pathlib import Path

import torch

from benchmarks._harness import write_table
from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature
from calibrant.lab.study.significance import holm
from calibrant.lab.study.stored_files import read_record
from calibrant.metrics import Sample

NUMBERS = "ECE", "ECE after temperature", "refinement of NLL"
Measured = dict[str, float]


def measure_run(folder: Path) -> tuple[str, tuple[str, int], Measured]:
    """Return the loss, the network and seed, and the numbers of a run."""
    run = read_record(folder)["run"]
    val, test = (Predictions.load(folder / f"{part}.safetensors").double() for part in ("val", "test"))
    after = test.apply(Temperature.fit(val, criterion="ece"))
    parts = metrics.decompose_score(test, fit=Temperature.fit)
    values = {
        "noise floor": 100 * float(metrics.noise_floor(test)),
        "floor after temperature": 100 * float(metrics.noise_floor(after)),
        "ECE": 100 * float(metrics.ece(test)),
        "ECE after temperature": 100 * float(metrics.ece(after)),
        "refinement of NLL": float(parts.refinement.value),
    }
    return run["loss"], (run["network"], run["seed"]), values


def effects(folder: Path) -> list[list[str]]:
    """Return a row per loss and number: means of both losses, and the paired difference."""
    runs: dict[str, dict[tuple[str, int], Measured]] = defaultdict(dict)
    networks = {name.partition("-")[0] for name in json.loads((folder / "made_with.json").read_text())["runs"]}
    for path in sorted(path.parent for path in folder.glob("runs/*/run.json")):
        if path.name.partition("-")[0] in networks:  # the folder may hold runs of other studies
            loss, place, values = measure_run(path)
            runs[loss][place] = values
    reference = next(loss for loss in runs if loss.startswith("cross_entropy(smoothing=0,"))
    lines: list[list[str]] = []
    for number in NUMBERS:
        samples: dict[str, Sample] = {}
        for loss in sorted(runs.keys() - {reference}):
            places = runs[loss].keys() & runs[reference].keys()
            pairs = [runs[loss][place][number] - runs[reference][place][number] for place in sorted(places)]
            samples[loss] = Sample.from_values(torch.tensor(pairs, dtype=torch.float64))
        p_values = holm({loss: sample.normal_p_value() for loss, sample in samples.items()})
        for loss, sample in samples.items():
            interval = sample.normal_interval(0.90)
            floor = {"ECE": "noise floor", "ECE after temperature": "floor after temperature"}.get(number)
            means = [mean(runs[name], number) for name in (reference, loss)]
            floors = "" if floor is None else f"{mean(runs[loss], floor):.2f}"
            digits = 4 if floor is None else 2
            lines.append(
                [folder.name, loss.partition("(")[0] + short(loss), number, str(int(sample.n))]
                + [f"{x:.{digits}f}" for x in means]
                + [floors, f"{sample.mean:+.{digits}f}"]
                + [f"{interval.low:+.{digits}f} to {interval.high:+.{digits}f}", f"{p_values[loss]:.2g}"]
            )
    return lines


def mean(runs: dict[tuple[str, int], Measured], number: str) -> float:
    """Return the mean of a number over runs."""
    return sum(values[number] for values in runs.values()) / len(runs)


def short(loss: str) -> str:
    """Return the settings of a loss that tell it from others."""
    settings = loss.partition("(")[2].rstrip(")").split(", ")
    kept_settings = [s for s in settings if s.startswith(("gamma=", "smoothing=", "strength="))]
    return f"({', '.join(kept_settings)})" if kept_settings else ""


def main() -> None:
    """Print the effects, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    head = [
        "study",
        "loss",
        "number",
        "pairs",
        "cross-entropy",
        "this loss",
        "noise floor",
        "difference",
        "interval",
        "p",
    ]
    write_table(head, [line for folder in options.folders for line in effects(folder)], options.out)


if __name__ == "__main__":
    main()
