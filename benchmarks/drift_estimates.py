"""Coverage of what `calibrant.drift` estimates without labels, where its assumptions are simulated to be true.

    python -m benchmarks.drift_estimates [--draws 1000] [--out docs/howto/drift_coverage.csv]

Three classes with normal logits; the model's logits are these times 1.4, so that it is overconfident. In the new
predictions the spread of the logits is another, but equal logits mean the same: the assumption of the estimates of
accuracy, gap and Brier score. Or the class shares are others, and the logits of each class are as before: the
assumption of the class shares. The truth is the number that the new labels show, or the true share.
"""

from collections import Counter

import numpy as np
import torch

from benchmarks._draws import draw_cluster_noise, draw_clusters, draw_labels
from benchmarks._harness import rows_by_size, table_parser, write_table
from calibrant import Predictions
from calibrant.metrics import accuracy, event_brier, signed_gap
from calibrant.monitoring._estimates import estimate_without_labels
from calibrant.monitoring._label_shift import LabelShift, estimate_label_shift

SIZES = 100, 300, 1000
SPREADS = {"same inputs": 1.5, "harder inputs": 1.0, "easier inputs": 2.0}
SHARES = {"same shares": (1, 1, 1), "other shares": (4, 1, 1)}
SCALE, K = 1.4, 3
METRICS = {"accuracy": accuracy, "signed_gap": signed_gap, "event_brier": event_brier}
POWER_SCALE = 1.6  # of logits within each class, which the test of the shares should find


def draw(n: int, spread: float, rng: np.random.Generator, *, with_clusters: bool = False) -> Predictions:
    """Draw predictions of n examples, or of n clusters of 1 to 9 examples with similar logits and outcomes."""
    clusters = draw_clusters(n, 9, rng) if with_clusters else None
    z = spread * (rng.standard_normal((n, K)) if clusters is None else draw_cluster_noise(clusters, rng, K))
    return Predictions(torch.from_numpy(SCALE * z), draw_labels(z, rng), clusters=clusters)


def draw_by_class(n: int, shares: tuple[int, ...], rng: np.random.Generator, scale: float = 1.0) -> Predictions:
    """Draw labels by their shares, and logits given the label."""
    labels = rng.choice(K, n, p=np.array(shares) / sum(shares))
    z = rng.standard_normal((n, K)) + 1.5 * np.eye(K)[labels]
    return Predictions(torch.from_numpy(scale * z), labels)


def estimate_coverage(n: int, spread: float, draws: int, *, with_clusters: bool) -> dict[str, float]:
    """Return how often each estimate's 90 % limits hold the number that the labels show."""
    covered, rng = Counter[str](), np.random.default_rng([n, int(10 * spread), with_clusters])
    for _ in range(draws):
        reference, new = (draw(n, s, rng, with_clusters=with_clusters) for s in (1.5, spread))
        for estimate in estimate_without_labels(reference, new):
            truth = float(METRICS[estimate.name](new))
            covered[f"{estimate.name}, {estimate.method}"] += estimate.low <= truth <= estimate.high
    return {name: count / draws for name, count in covered.items()}


def share_coverage(n: int, shares: tuple[int, ...], draws: int) -> dict[str, float]:
    """Return how often the limits of shares and accuracy hold, and how often the test rejects, rightly and wrongly."""
    counts, rng = Counter[str](), np.random.default_rng([n, shares[0]])
    for _ in range(draws):
        reference, new = draw_by_class(n, (1, 1, 1), rng), draw_by_class(n, shares, rng)
        sharper = draw_by_class(n, shares, rng, POWER_SCALE)
        shift, wrong = estimate_label_shift(reference, new), estimate_label_shift(reference, sharper)
        assert isinstance(shift, LabelShift)
        assert isinstance(wrong, LabelShift)
        truth = shares[0] / sum(shares)
        counts["class share"] += shift.shares[0].low <= truth <= shift.shares[0].high
        counts["accuracy"] += shift.accuracy_low <= float(accuracy(new)) <= shift.accuracy_high
        counts["wrongly rejected"] += shift.p_value <= 0.05
        counts["rejected at logits x 1.6"] += wrong.p_value <= 0.05
    return {name: count / draws for name, count in counts.items()}


def main() -> None:
    """Measure coverage and levels, print the table, and write it."""
    options = table_parser(__doc__, draws=1000).parse_args()
    cells: list[tuple[tuple[str, ...], int, str]] = []
    for n in SIZES:
        for with_clusters in (False, True):
            for name, spread in SPREADS.items():
                kind = name + (", clusters" if with_clusters else "")
                for number, rate in estimate_coverage(n, spread, options.draws, with_clusters=with_clusters).items():
                    cells.append(((number, kind), n, f"{100 * rate:.1f}"))
        for name, shares in SHARES.items():
            for number, rate in share_coverage(n, shares, options.draws).items():
                cells.append(((number, name), n, f"{100 * rate:.1f}"))
    head = ["number", "new predictions", *(f"n = {n:,}" for n in SIZES)]
    write_table(head, rows_by_size(cells, SIZES), options.out)


if __name__ == "__main__":
    main()
