"""How often the tests of calibration, of groups and of differences reject what is true, at the level 5 %.

    python -m benchmarks.levels [--draws 1000] [--only clusters] [--out docs/benchmarks/levels.csv]

Calibrated models with confidences around .6, .9, .95 and .99 (a normal spread of .3 in log-odds), uniform between .5
and 1, or uniform and rounded to tenths. Weighted examples have weights from 1 to 10 and are clusters of their own; the
examples of a cluster, 1 to 20 of them, share half of the variance of their outcomes' probits, and n is the number of
clusters. For "differences", two models see the same logits with independent noise of the same size. For "groups", four
groups are calibrated, and one simultaneous 95 % interval of a gap or more does not hold 0.
"""

import math
from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
from scipy.special import ndtri

from benchmarks._draws import draw_clusters, draw_confidences, draw_labels
from benchmarks._harness import rows_by_size, table_parser, write_table
from calibrant import Predictions, metrics
from calibrant._core.kernels.bins import Events

SIZES = 20, 100
CONFIDENCES = 0.6, 0.9, 0.95, 0.99, "mixed", "rounded"
STRUCTURES = "independent", "weights", "clusters"
PROBLEMS = *STRUCTURES, "differences", "groups"
TESTS = "kuiper", "omnibus", "ks", "skce", "smooth_ece"
NUM_GROUPS, K, SCALES = 4, 3, (1.5, 4.0)  # SCALES: of the logits of compared models
LEVEL = 0.05


def draw_structure(structure: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return weights and clusters of n examples or clusters."""
    if structure == "clusters":
        return None, draw_clusters(n, 20, rng)
    return (rng.uniform(1, 10, n), np.arange(n)) if structure == "weights" else (None, None)


def draw_noise(n: int, clusters: np.ndarray | None, rng: np.random.Generator, columns: int = 1) -> np.ndarray:
    """Draw normal numbers, of which those of a cluster share half of their variance."""
    noise = rng.standard_normal((n, columns))
    if clusters is None or len(clusters) == clusters[-1] + 1:
        return noise
    return math.sqrt(0.5) * (rng.standard_normal((clusters[-1] + 1, columns))[clusters] + noise)


def rejection_rates(structure: str, kind: float | str, n: int, draws: int) -> dict[str, float]:
    """Return how often each test rejects a calibrated model."""
    rng, rejected = np.random.default_rng([n, STRUCTURES.index(structure), CONFIDENCES.index(kind)]), Counter[str]()
    for _ in range(draws):
        weights, clusters = draw_structure(structure, n, rng)
        rows = n if clusters is None else len(clusters)
        c = draw_confidences(kind, rows, rng)
        outcome = (draw_noise(rows, clusters, rng)[:, 0] < ndtri(c)).astype(float)
        events = Events(c, outcome, weights, clusters)
        for name in TESTS:
            rejected[name] += getattr(metrics, name).test(events).p_value <= LEVEL
    return {name: rejected[name] / draws for name in TESTS}


def difference_rates(structure: str, n: int, scale: float, draws: int) -> dict[str, float]:
    """Return how often each metric of two models that are equally good is said to differ."""
    rng, rejected = np.random.default_rng([n, STRUCTURES.index(structure), int(scale)]), Counter[str]()
    for _ in range(draws):
        weights, clusters = draw_structure(structure, n, rng)
        z = scale * draw_noise(n if clusters is None else len(clusters), clusters, rng, K)
        y = draw_labels(z, rng)
        models = [z + 0.3 * scale * rng.standard_normal(z.shape) for _ in range(2)]
        for row in metrics.compare(*(Predictions(m, y, weights, clusters=clusters) for m in models)):
            rejected[row.name] += row.p_value <= LEVEL
    return {name: count / draws for name, count in rejected.items()}


def group_rates(structure: str, kind: float | str, n: int, draws: int) -> dict[str, float]:
    """Return how often the gap of one calibrated group or more is said not to be 0."""
    rng, rejected = np.random.default_rng([n, STRUCTURES.index(structure), CONFIDENCES.index(kind)]), 0
    for _ in range(draws):
        weights, clusters = draw_structure(structure, n * NUM_GROUPS, rng)
        rows = n * NUM_GROUPS if clusters is None else len(clusters)
        c = draw_confidences(kind, rows, rng)
        right = (draw_noise(rows, clusters, rng)[:, 0] < ndtri(c)).astype(int)
        groups = (np.arange(rows) if clusters is None else clusters) % NUM_GROUPS
        p = Predictions.from_confidence(c, right, weights, clusters=clusters, groups=groups)
        table = metrics.tables.groups(p, level=1 - LEVEL)
        assert table is not None
        rejected += bool((table.significant_gap > 0).any())
    return {"simultaneous gaps": rejected / draws}


def measure_problem(problem: str, draws: int) -> Iterator[tuple[str, str, int, dict[str, float]]]:
    """Yield structure, confidences or scale, size and rates of every cell."""
    if problem in STRUCTURES:
        for kind, n in product(CONFIDENCES, SIZES):
            yield problem, str(kind), n, rejection_rates(problem, kind, n, draws)
    elif problem == "groups":
        for structure, kind, n in product(STRUCTURES, CONFIDENCES, SIZES):
            yield f"groups, {structure}", str(kind), n, group_rates(structure, kind, n, draws)
    else:
        for structure, scale, n in product(STRUCTURES, SCALES, SIZES):
            yield f"differences, {structure}", f"logits x {scale:g}", n, difference_rates(structure, n, scale, draws)


def main() -> None:
    """Measure the cells, print the rates in percent, and write them."""
    parser = table_parser(__doc__, draws=1000)
    parser.add_argument("--only", choices=PROBLEMS)
    options = parser.parse_args()
    cells: list[tuple[tuple[str, ...], int, str]] = []
    for problem in (options.only,) if options.only else PROBLEMS:
        for structure, kind, n, rates in measure_problem(problem, options.draws):
            print(structure, kind, n, rates, flush=True)
            cells += [((structure, name, kind), n, f"{100 * rate:.1f}") for name, rate in rates.items()]
    head = ["problem", "test", "confidences", *(f"n = {n}" for n in SIZES)]
    write_table(head, rows_by_size(cells, SIZES), options.out)


if __name__ == "__main__":
    main()
