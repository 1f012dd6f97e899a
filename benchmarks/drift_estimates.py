"""Coverage of what `calibrant.drift` estimates without labels, and how often its test rejects label shift.

    python -m benchmarks.drift_estimates [--draws 300] [--only label,test,covariate] [--out docs/howto]

Label shift: the logits of each class are normal around its own mean, and those of the model are right for equal class
shares. In the new predictions the first class has another share. Covariate shift: the spread of the logits is another,
but equal logits mean the same, and the model's logits are these times 1.4, so that it is overconfident. The truth is
the number that the new labels show, or the true share. The test of label shift should reject at its level under label
shift, and often if the logits of each class are sharper, or under covariate shift. Parts have a third of the draws if
they take long.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks._draws import draw_cluster_noise, draw_clusters, draw_labels
from benchmarks._harness import write_table
from calibrant import Predictions
from calibrant.metrics import accuracy, event_brier, signed_gap
from calibrant.monitoring._covariate_shift import estimate_covariate_shift
from calibrant.monitoring._estimates import Estimate, build_targets
from calibrant.monitoring._label_shift import estimate_label_shift, label_shift_p_value

SIZES = (300, 100), (300, 300), (300, 1000), (2000, 300)  # reference, new
CLASSES = 2, 3, 10
TEST_SIZES, TEST_CLASSES = ((300, 300),), (2, 3)
SHARES = None, 0.1, 0.3, 0.7  # of the first class in the new predictions; None: as in the reference, equal shares
SEPARATION = 2.0  # of the classes
SPREADS = {"same inputs": 1.5, "harder inputs": 1.0, "easier inputs": 2.0}
SCALE, K = 1.4, 3  # under covariate shift
SHARPER = 1.6  # factor of the logits within each class, which the test should find
ALPHA = 0.05
METRICS = {"accuracy": accuracy, "signed_gap": signed_gap, "event_brier": event_brier}
Draw = Callable[[int, np.random.Generator], Predictions]


def draw_by_class(
    n: int, rng: np.random.Generator, *, k: int, share: float | None = None, scale: float = 1.0
) -> Predictions:
    """Draw labels by their shares, and logits given the label."""
    shares = np.full(k, 1 / k) if share is None else np.array([share, *[(1 - share) / (k - 1)] * (k - 1)])
    labels = rng.choice(k, n, p=shares)
    z = rng.standard_normal((n, k)) + SEPARATION * np.eye(k)[labels]
    return Predictions(torch.from_numpy(scale * SEPARATION * z), labels).with_default_event(None)


def draw_by_row(n: int, rng: np.random.Generator, *, spread: float, with_clusters: bool = False) -> Predictions:
    """Draw logits, and labels given the logits, of n examples, or n clusters of 1 to 9 similar examples."""
    clusters = draw_clusters(n, 9, rng) if with_clusters else None
    z = spread * (rng.standard_normal((n, K)) if clusters is None else draw_cluster_noise(clusters, rng, K))
    return Predictions(torch.from_numpy(SCALE * z), draw_labels(z, rng), clusters=clusters).with_default_event(None)


def coverage(
    estimate: Callable[..., tuple[Estimate, ...]],
    draw_reference: Draw,
    draw_new: Draw,
    size: tuple[int, int],
    draws: int,
    share: float | None = None,
) -> dict[str, float]:
    """Return the share of draws in which the limits of each score, and of the first class's share, hold the truth."""
    covered, rng = dict.fromkeys([*METRICS, *(["share"] if share else [])], 0), np.random.default_rng([*size, draws])
    for _ in range(draws):
        reference, new = (draw(n, rng) for draw, n in zip((draw_reference, draw_new), size, strict=True))
        targets = [target for target in build_targets(reference, new) if target.class_name in (None, "0")]
        truths = {name: float(metric(new)) for name, metric in METRICS.items()} | {"share": share or 0.0}
        for result in estimate(reference, new, targets):
            if result.name in covered:  # rounding may put a truth beside the end of the range that it has reached
                covered[result.name] += result.low - 1e-9 <= truths[result.name] <= result.high + 1e-9
    return {name: count / draws for name, count in covered.items()}


def rejections(draw_reference: Draw, draw_new: Draw, size: tuple[int, int], draws: int) -> dict[str, float]:
    """Return the share of draws in which label shift is rejected."""
    rng = np.random.default_rng([*size, draws])
    pairs = [(draw_reference(size[0], rng), draw_new(size[1], rng)) for _ in range(draws)]
    return {"rejected": sum(label_shift_p_value(*pair) <= ALPHA for pair in pairs) / draws}


def label_shift_rows(draws: int) -> Iterator[list[str]]:
    """Yield the rows of the coverage under label shift."""
    for k in CLASSES:
        for share in SHARES:
            world = partial(draw_by_class, k=k), partial(draw_by_class, k=k, share=share)
            cells = [coverage(estimate_label_shift, *world, size, draws, share or 1 / k) for size in SIZES]
            yield from _rows([f"{k}", _share_text(k, share)], cells)


def test_rows(draws: int) -> Iterator[list[str]]:
    """Yield the rows of how often label shift is rejected."""
    for k in TEST_CLASSES:
        worlds: dict[str, Draw] = {_share_text(k, share): partial(draw_by_class, k=k, share=share) for share in SHARES}
        worlds["first share .3, logits x 1.6"] = partial(draw_by_class, k=k, share=0.3, scale=SHARPER)
        for name, draw_new in worlds.items():
            cells = [rejections(partial(draw_by_class, k=k), draw_new, size, draws // 3) for size in TEST_SIZES]
            yield from _rows([f"{k}", name], cells)
    for name, spread in SPREADS.items():
        world = partial(draw_by_row, spread=SPREADS["same inputs"]), partial(draw_by_row, spread=spread)
        yield from _rows([f"{K}", name], [rejections(*world, size, draws // 3) for size in TEST_SIZES])


def covariate_shift_rows(draws: int) -> Iterator[list[str]]:
    """Yield the rows of the coverage under covariate shift."""
    for with_clusters in (False, True):
        draw = partial(draw_by_row, with_clusters=with_clusters)
        for name, spread in SPREADS.items() if not with_clusters else [("harder inputs, clusters", 1.0)]:
            world = partial(draw, spread=SPREADS["same inputs"]), partial(draw, spread=spread)
            cells = [coverage(estimate_covariate_shift, *world, (300, n), draws // 3) for n in (100, 1000)]
            yield from _rows([f"{K}", name], cells)


def _share_text(k: int, share: float | None) -> str:
    return f"equal shares, 1/{k}" if share is None else f"first share {f'{share:g}'[1:]}"


def _rows(key: list[str], cells: list[Mapping[str, float]]) -> Iterator[list[str]]:
    """Yield a row per number, with a column per size."""
    for name in cells[0]:
        yield [*key, name, *(f"{100 * cell[name]:.1f}" for cell in cells)]


PARTS = {
    "label": ("drift_coverage.csv", label_shift_rows, SIZES),
    "test": ("drift_rejections.csv", test_rows, TEST_SIZES),
    "covariate": ("drift_covariate_shift.csv", covariate_shift_rows, ((300, 100), (300, 1000))),
}


def main() -> None:
    """Measure coverage and levels, print the tables, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=300)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--out", type=Path, help="folder of the tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for part in options.only.split(","):
        name, rows, sizes = PARTS[part]
        head = ["classes", "new predictions", "number", *(f"{n:,} and {m:,}" for n, m in sizes)]
        write_table(head, list(rows(options.draws)), options.out and options.out / name)


if __name__ == "__main__":
    main()
