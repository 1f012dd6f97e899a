"""Focal temperature scaling against temperature scaling, fitted on validation and evaluated on test predictions.

    python -m benchmarks.focal_temperature FOLDER... [--out docs/results/komisarenko_2024/networks.csv]

A FOLDER holds NAME.val.npz and NAME.test.npz, or is the output folder of a study. Both calibrators minimize the ECE
with bins of equal mass over temperatures .01 to 5.00 and the gammas of Komisarenko & Kull (2024). Errors are those of
the test data, in percent: of temperature scaling, of focal temperature scaling, and their paired difference with its
90 % interval by the jackknife.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks._harness import write_table
from calibrant import Predictions, metrics
from calibrant.calibrators import FocalTemperature, Temperature
from calibrant.calibrators._focal import FOCAL_GRIDS
from calibrant.lab.study.stored_files import read_record
from calibrant.metrics import Sample

CRITERION = "adaptive_ece(edges='mukhoti')"
HEAD = ["network", "noise floor", "uncalibrated", "temperature", "focal temperature", "gamma", "difference", "interval"]


def read_networks(folder: Path) -> Iterator[tuple[str, Predictions, Predictions]]:
    """Yield the name, the validation and the test predictions of every network of a folder."""
    for path in sorted(folder.glob("*.val.npz")):
        name = path.name.removesuffix(".val.npz")
        yield name, Predictions.load(path), Predictions.load(folder / f"{name}.test.npz")
    for path in sorted(folder.glob("runs/*/run.json")):
        run = read_record(path.parent)["run"]
        network = run["network"].partition("(")[0]
        name = f"{network}, {run['loss']}, seed {run['seed']}"
        yield name, *(Predictions.load(path.parent / f"{part}.safetensors") for part in ("val", "test"))


def compare_calibrators(val: Predictions, test: Predictions) -> list[float]:
    """Return errors, gamma, and the difference with the ends of its interval, in percent but for gamma."""
    temperature = Temperature.fit(val, criterion=CRITERION, grid=FOCAL_GRIDS["text"][1])
    focal = FocalTemperature.fit(val, criterion=CRITERION)
    maps = temperature, focal
    row = metrics.compare(*(test.double().apply(m) for m in maps), names=[CRITERION])[CRITERION]
    floor, before = float(metrics.adaptive_noise_floor(test)), float(metrics.adaptive_ece(test, edges="mukhoti"))
    errors = (floor, before, row.first, row.second, row.difference, row.low, row.high)
    return [100 * x for x in errors] + [float(focal.gamma)]


def main() -> None:
    """Print a row per network, the mean difference with its interval by Student's t, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines: list[list[str]] = []
    differences: list[float] = []
    for name, val, test in (network for folder in options.folders for network in read_networks(folder)):
        *errors, difference, low, high, gamma = compare_calibrators(val, test)
        differences.append(difference)
        cells = [*(f"{x:.2f}" for x in errors), f"{gamma:g}", f"{difference:+.2f}", f"{low:+.2f} to {high:+.2f}"]
        lines.append([name, *cells])
        print(*lines[-1], sep=" | ", flush=True)
    interval = Sample.from_values(np.array(differences)).normal_interval(0.90)
    print(f"{len(differences)} networks, {sum(x < 0 for x in differences)} lower; mean difference {interval} points")
    write_table(HEAD, lines, options.out)


if __name__ == "__main__":
    main()
