"""False alarms and power of `calibrant.compare` and `calibrant.drift`, on simulated data with known truth.

    python -m benchmarks.comparison_levels [--draws 2000] [--out docs/howto/comparison_levels.csv]

Each draw has three classes with normal logits and labels from their softmax. In the null, a pair of models adds noise
of the same distribution to these logits, and two samples have the same distribution. Alternatives multiply the logits
of the new model by 1.3. Weights are whole numbers from 1 to 9, clusters have 1 to 9 examples that share half of the
variance of their logits, and there are four groups.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks._draws import draw_cluster_noise, draw_clusters, draw_labels
from benchmarks._harness import table_parser, write_table
from calibrant import Predictions
from calibrant.monitoring._compare import compared_rows
from calibrant.monitoring._pairing import ModelPair

SIZES = 20, 50, 300, 1000
STRUCTURES = "independent", "weights", "clusters", "groups"
LEVEL, K = 0.05, 3


def draw_logits(n: int, structure: str, rng: np.random.Generator) -> tuple[np.ndarray, dict[str, Any]]:
    """Return logits of n examples, or of n clusters, and the options of their predictions."""
    if structure != "clusters":
        options = {"weights": {"weights": rng.integers(1, 10, n)}, "groups": {"groups": rng.integers(0, 4, n)}}
        return 1.5 * rng.standard_normal((n, K)), options.get(structure, {})
    clusters = draw_clusters(n, 9, rng)
    return 1.5 * draw_cluster_noise(clusters, rng, K), {"clusters": clusters}


def differs(old: Predictions, new: Predictions, *, is_paired: bool, has_labels: bool) -> bool:
    """Return whether any adjusted p-value is at most the level, by the tests of `compare` and `drift` alone."""
    pair = ModelPair(old, new, "order" if is_paired else None, "")
    rows = compared_rows(pair, has_labels=has_labels, by_group=old.groups is not None, seed=0)
    return any(row.adjusted_p_value <= LEVEL for row in rows)


def paired_models(n: int, structure: str, rng: np.random.Generator, scale: float) -> bool:
    """Return whether two models differ on the same examples."""
    z, options = draw_logits(n, structure, rng)
    labels = draw_labels(z, rng)
    old, new = (torch.from_numpy(z + 0.5 * rng.standard_normal(z.shape)) for _ in range(2))
    models = Predictions(old, labels, **options), Predictions(scale * new, labels, **options)
    return differs(*models, is_paired=True, has_labels=True)


def two_samples(n: int, structure: str, rng: np.random.Generator, scale: float, *, has_labels: bool = True) -> bool:
    """Return whether two samples of predictions differ."""
    samples: list[Predictions] = []
    for factor in (1.0, scale):
        z, options = draw_logits(n, structure, rng)
        samples.append(Predictions(torch.from_numpy(factor * z), draw_labels(z, rng), **options))
    return differs(*samples, is_paired=False, has_labels=has_labels)


TESTS: dict[str, Callable[[int, str, np.random.Generator, float], bool]] = {
    "compare, pairs": paired_models,
    "compare, two samples": two_samples,
    "drift": partial(two_samples, has_labels=False),
}


def main() -> None:
    """Count false alarms and detections, print the table, and write it."""
    parser = table_parser(__doc__, draws=2000)
    parser.add_argument("--detections", type=int, default=200)
    parser.add_argument("--tests", nargs="*", default=list(TESTS))
    options = parser.parse_args()
    head = ["test", "structure", "n", "false alarms (%)", "found at logits x 1.3 (%)"]
    lines: list[list[Any]] = []
    for name in options.tests:
        for structure in STRUCTURES:
            for n in SIZES:
                seeds = [list(TESTS).index(name), STRUCTURES.index(structure), n]
                rates: list[float] = []
                for scale, draws in ((1.0, options.draws), (1.3, options.detections)):
                    alarms = sum(
                        TESTS[name](n, structure, np.random.default_rng([*seeds, int(10 * scale), i]), scale)
                        for i in range(draws)
                    )
                    rates.append(100 * alarms / draws)
                lines.append([name, structure, n, f"{rates[0]:.1f}", f"{rates[1]:.0f}"])
                print(*lines[-1], flush=True)
    write_table(head, lines, options.out)


if __name__ == "__main__":
    main()
