"""How many events an evaluation of a rare event needs, and which intervals hold with few of them.

    python -m benchmarks.rare_events [--repeats 500]

Log-odds of the risk are normal with deviation 1. Writes docs/howto/rare_event_sizes.csv (`sample_size`, as expected
events) and docs/howto/rare_event_coverage.csv: how often 90 % intervals hold the value of the population, for a
calibrated model and for one whose odds are twice too high.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks._harness import write_table
from calibrant import InputError, Predictions, metrics, sample_size

FOLDER = Path(__file__).parent.parent / "docs" / "howto"
NUM_POPULATION = 100_000
BASE_RATES = (0.001, 0.005, 0.02, 0.08)
GOALS = {
    "detect an error of half the base rate": lambda rate: {"detect": rate / 2},
    "bound the L2 error below half the base rate": lambda rate: {"bound": rate / 2},
    "interval of observed/expected from .8 to 1.2": lambda rate: {"observed_expected": 0.4},
    "interval of the slope from .8 to 1.2": lambda rate: {"slope": 0.4},
}
COVERAGE_RATE, EXPECTED_EVENTS, LEVEL = 0.003, (3, 10, 30, 100), 0.90
METRICS = (
    *("observed_expected", "signed_gap", "calibration_intercept", "calibration_slope", "event_brier", "scaled_brier"),
    *("nll", "auroc", "average_precision"),
)


def risks(rate: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return true log-odds of n examples with this base rate."""
    grid = np.random.default_rng(0).normal(size=NUM_POPULATION)
    return rng.normal(size=n) + brentq(lambda shift: expit(grid + shift).mean() - rate, -20, 20)


def sizes() -> Iterator[list[object]]:
    """Yield expected events by goal and base rate."""
    for goal, settings in GOALS.items():
        cells: list[object] = [goal]
        for rate in BASE_RATES:
            confidence = expit(risks(rate, NUM_POPULATION, np.random.default_rng(1)))
            result = sample_size(confidence=confidence, **settings(rate))
            cells.append(f"{float(f'{result.n * confidence.mean():.2g}'):g}")
        print(*cells)
        yield cells


def coverage(num_events: int, shift: float, repeats: int) -> dict[str, float]:
    """Return the share of intervals that hold the value of the population, or NaN where more than half are refused."""
    rng, n = np.random.default_rng(num_events), round(num_events / COVERAGE_RATE)
    z = risks(COVERAGE_RATE, NUM_POPULATION, rng)
    truth = expit(z)  # each example of the population with both outcomes, weighted by their probabilities
    population = Predictions.from_binary_logits(
        np.tile(z + shift, 2),
        np.repeat([1, 0], len(z)),
        weights=np.concatenate([truth, 1 - truth]),
        weights_are="importance",
    )
    covered: dict[str, list[bool]] = {name: [] for name in METRICS}
    true_values = {name: float(getattr(metrics, name)(population.with_event(1))) for name in METRICS}
    for _ in range(repeats):
        z = risks(COVERAGE_RATE, n, rng)
        p = Predictions.from_binary_logits(z + shift, (rng.random(n) < expit(z)).astype(int)).with_event(1)
        for name in METRICS:
            try:
                interval = getattr(metrics, name).interval(p, level=LEVEL)
            except InputError:  # too few events for a number
                continue
            if not math.isnan(interval.low):
                covered[name].append(interval.low <= true_values[name] <= interval.high)
    return {name: float(np.mean(values)) if len(values) > repeats / 2 else math.nan for name, values in covered.items()}


def coverages(repeats: int) -> Iterator[list[object]]:
    """Yield a row per metric: its coverage by expected events, for a calibrated model and for too high odds."""
    columns = [coverage(num_events, shift, repeats) for shift in (0.0, math.log(2)) for num_events in EXPECTED_EVENTS]
    for name in METRICS:
        yield [name, *("refused" if math.isnan(column[name]) else f"{column[name]:.2f}" for column in columns)]


def main() -> None:
    """Write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=500)
    repeats = parser.parse_args().repeats
    heads = [f"{100 * rate:g} %" for rate in BASE_RATES]
    write_table(["goal", *heads], list(sizes()), FOLDER / "rare_event_sizes.csv")
    heads = [f"{kind}: {events} events" for kind in ("calibrated", "odds doubled") for events in EXPECTED_EVENTS]
    write_table(["interval of", *heads], list(coverages(repeats)), FOLDER / "rare_event_coverage.csv")


if __name__ == "__main__":
    main()
