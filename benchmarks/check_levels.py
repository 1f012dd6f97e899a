"""How often `calibrant.check` is wrong about a model whose metric lies exactly at the limit.

    python -m benchmarks.check_levels [--draws 1000] [--out docs/howto/check_levels.csv]

Confidences of a binary event have log-odds around 2. The true probability lies .05 below the confidence everywhere, or
above and below it by turns, which leaves no gap on average. Limits are the true values. Weighted examples have weights
from 1 to 10; the examples of a cluster, 1 to 9 of them, share half of the variance of their outcomes' probits. For
clusters, the number is that of clusters. "holds" and "broken" are both wrong at the limit.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from scipy.special import expit, ndtr

from benchmarks._draws import draw_cluster_noise, draw_clusters
from benchmarks._harness import rows_by_size, table_parser, write_table
from calibrant import Predictions
from calibrant.monitoring._bounds import metric_bounds
from calibrant.monitoring._requirement import parse_requirement

SIZES = 20, 50, 100, 300, 1000
STRUCTURES = "independent", "weights", "clusters"
PATTERNS = "overconfident", "alternating"
POPULATION = 2_000_000
SHIFT = 0.05
ERROR_RATE = 0.05  # of each bound
METRICS = {"accuracy": ">", "signed_gap": "<", "ece": "<", "debiased_l2": "<", "event_brier": "<", "nll": "<"}


def draw_rows(n: int, pattern: str, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return confidences and true probabilities."""
    confidence = expit(2 + 0.8 * rng.standard_normal(n))
    sign = -1.0 if pattern == "overconfident" else np.where(np.floor(confidence * 15) % 2 == 0, -1.0, 1.0)
    shift = np.minimum(SHIFT, np.minimum(confidence, 1 - confidence))  # stays within [0, 1]
    return confidence, confidence + sign * shift


def true_values(pattern: str) -> dict[str, float]:
    """Return the metrics of the population."""
    c, p = draw_rows(POPULATION, pattern, np.random.default_rng(1))
    place = np.ceil(15 * c).astype(int)
    share = np.bincount(place) / len(c)
    gap = np.divide(np.bincount(place, c - p), np.bincount(place), where=share > 0, out=np.zeros(len(share)))
    return {
        "accuracy": p.mean(),
        "signed_gap": (c - p).mean(),
        "ece": share @ np.abs(gap),
        "debiased_l2": np.sqrt(share @ gap**2),
        "event_brier": (p * (1 - c) ** 2 + (1 - p) * c**2).mean(),
        "nll": -(p * np.log(c) + (1 - p) * np.log1p(-c)).mean(),
    }


def draw_predictions(n: int, structure: str, pattern: str, rng: np.random.Generator) -> Predictions:
    """Return n examples, or n clusters."""
    clusters = draw_clusters(n, 9, rng) if structure == "clusters" else None
    c, p = draw_rows(n if clusters is None else len(clusters), pattern, rng)
    uniform = rng.random(n) if clusters is None else ndtr(draw_cluster_noise(clusters, rng)[:, 0])
    weights = None
    if structure == "weights":  # each example is a cluster of its own, since its weight is no number of copies
        weights, clusters = rng.uniform(1, 10, n), np.arange(n)
    return Predictions.from_confidence(c, (uniform < p).astype(int), weights, clusters=clusters)


def measure_cell(n: int, structure: str, pattern: str, draws: int) -> list[dict[str, Any]]:
    """Return how often each metric at its true value is said to hold, and to be broken."""
    values, counts = true_values(pattern), {name: Counter[str]() for name in METRICS}
    requirements = {name: parse_requirement(f"{name} {sign} {values[name]:.12f}") for name, sign in METRICS.items()}
    rng = np.random.default_rng([n, STRUCTURES.index(structure), PATTERNS.index(pattern)])
    for _ in range(draws):
        p = draw_predictions(n, structure, pattern, rng)
        for name, requirement in requirements.items():
            bounds = metric_bounds(requirement, p, ERROR_RATE)
            inner, outer = (bounds.high, bounds.low) if requirement.is_upper else (bounds.low, bounds.high)
            counts[name]["holds"] += requirement.is_met(inner)
            counts[name]["broken"] += not requirement.is_met(outer)
    cell = {"n": n, "structure": structure, "pattern": pattern}
    return [
        cell | {"metric": name, "holds": count["holds"] / draws, "broken": count["broken"] / draws}
        for name, count in counts.items()
    ]


def table_cells(rows: list[dict[str, Any]]) -> Iterator[tuple[tuple[str, ...], int, str]]:
    """Yield structure and metric, size, and the larger rates of the two patterns."""
    for structure, metric, n in product(STRUCTURES, METRICS, SIZES):
        same = [row for row in rows if (row["n"], row["structure"], row["metric"]) == (n, structure, metric)]
        holds, broken = (100 * max(row[name] for row in same) for name in ("holds", "broken"))
        yield (structure, metric), n, f"{holds:.1f} / {broken:.1f}"


def main() -> None:
    """Measure all cells, print the table and the largest rate, and write the table."""
    options = table_parser(__doc__, draws=1000).parse_args()
    rows = [row for cell in product(SIZES, STRUCTURES, PATTERNS) for row in measure_cell(*cell, options.draws)]
    head = ["structure", "metric", *(f"n = {n:,}" for n in SIZES)]
    write_table(head, rows_by_size(table_cells(rows), SIZES), options.out)
    for name in ("holds", "broken"):
        print(f"largest rate of {name}:", max(rows, key=lambda row: row[name]))


if __name__ == "__main__":
    main()
