"""Promises of `calibrant.decisions` against simulated truth, and sets on files of predictions.

    python -m benchmarks.decisions [--draws 2000] [--loss-draws 1000] [--files VAL.npz ...] [--splits 200]

How often the true risk above a certified threshold exceeds its limit (at most delta), and the certified share, beside
that of Holm's procedure on the same grid and p-values. Coverage and mean size of prediction sets over random splits of
each file into 2,000 rows to fit and the rest. Coverage of the 90 % interval of the decision loss.
"""

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from scipy.special import bdtr, expit, logit

from benchmarks._harness import markdown
from calibrant import Predictions
from calibrant._core.kernels.bins import allow_rounding
from calibrant.decisions import Sets, certify_threshold, decision_loss
from calibrant.decisions._certified_thresholds import GRID

RISKS, DELTA, SIZES = (0.02, 0.05, 0.1), 0.1, (200, 1000, 5000)
POPULATION, NUM_FIT_ROWS = 1_000_000, 2000
LOSS_SIZES, LOSS_POPULATION = (20, 50, 100, 300, 1000, 5000), 200_000
SLOPES = (1.0, 1.5, 3.0, 0.6)
CONFIDENCES: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "uniform": lambda n, rng: rng.random(n),
    "medium": lambda n, rng: rng.beta(5, 5, n),
    "high": lambda n, rng: rng.beta(20, 2, n),
    "rare": lambda n, rng: rng.beta(1, 20, n),
    "constant": lambda n, rng: np.full(n, 0.9),
}
Population = Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]  # confidences, true probabilities


def calibrated(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences spread over [0.3, 1], all of them true."""
    confidence = expit(2 + 1.5 * rng.standard_normal(n))
    return confidence, confidence


def overconfident(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences whose log-odds are 1.5 times too large."""
    z = 2 + 1.5 * rng.standard_normal(n)
    return expit(1.5 * z), expit(z)


def flat(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Confidences that say nothing, with an error of 5 % everywhere: the risk lies at a limit."""
    return rng.uniform(0.5, 1, n), np.full(n, 0.95)


def tied(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Stated confidences in steps of 5 %, too high by 3 %."""
    confidence = rng.choice(np.arange(10, 21), n) / 20
    return confidence, np.maximum(confidence - 0.03, 0)


POPULATIONS: dict[str, Population] = {
    "calibrated": calibrated,
    "overconfident": overconfident,
    "flat": flat,
    "tied": tied,
}


def threshold_rows(draws: int) -> Iterator[list[Any]]:
    """Yield how often each promise is broken, and the mean certified shares."""
    for name, population in POPULATIONS.items():
        confidence, truth = population(POPULATION, np.random.default_rng(1))
        grid = np.array(sorted(GRID))
        order = np.argsort(confidence)
        start = np.searchsorted(confidence[order], allow_rounding(grid))
        errors = np.append(np.cumsum((1 - truth)[order][::-1])[::-1], 0.0)
        counts = POPULATION - start
        true_risk = dict(zip(grid.tolist(), errors[start] / np.maximum(counts, 1), strict=True))
        for risk in RISKS:
            for n in SIZES:
                rng, broken, share, holm = np.random.default_rng([n, int(1000 * risk)]), 0, 0.0, 0.0
                for _ in range(draws):
                    c, p = population(n, rng)
                    predictions = Predictions.from_confidence(c, (rng.random(n) < p).astype(int))
                    result = certify_threshold(predictions, risk=risk, delta=DELTA)
                    broken += result.is_certified and true_risk[result.threshold] > risk
                    share += result.share / draws
                    holm += holm_share(predictions, grid, risk) / draws
                yield [name, risk, n, 100 * broken / draws, 100 * share, 100 * holm]


def holm_share(p: Predictions, grid: np.ndarray, risk: float) -> float:
    """Return the share above the lowest threshold that Holm's procedure certifies."""
    c, a = p.events.confidence, p.events.outcome
    order = np.argsort(c)
    start = np.searchsorted(c[order], allow_rounding(grid))
    n = len(c) - start
    errors = np.append(np.cumsum((1 - a)[order][::-1])[::-1], 0.0)[start]
    p_values = np.where(n > 0, bdtr(errors, np.maximum(n, 1), risk), 1.0)
    ranks = np.argsort(p_values)
    is_small = p_values[ranks] <= DELTA / (len(grid) - np.arange(len(grid)))
    count = int(np.argmin(is_small)) if not is_small.all() else len(grid)
    return float(n[ranks[:count]].max() / len(c)) if count else 0.0


def set_rows(files: list[str], splits: int) -> Iterator[list[Any]]:
    """Yield coverage with its standard error, and mean size, over random splits of each file."""
    for path in files:
        p = Predictions.load(path)
        for score in ("lac", "aps", "raps", "saps"):
            for alpha in (0.1, 0.05):
                coverage, size = list[float](), list[float]()
                for seed in range(splits):
                    order = torch.randperm(len(p), generator=torch.Generator().manual_seed(seed))
                    sets = Sets.fit(p[order[:NUM_FIT_ROWS]], alpha=alpha, score=score)
                    table = sets.evaluate(p[order[NUM_FIT_ROWS:]])
                    coverage.append(table.coverage.value)
                    size.append(table.mean_size)
                error = np.std(coverage) / np.sqrt(splits)
                yield [path.rpartition("/")[2], score, alpha, np.mean(coverage), error, np.mean(size)]


def loss_rows(draws: int) -> Iterator[list[Any]]:
    """Yield the coverage of the interval of the decision loss, its mean value and its mean width."""
    for name, draw in CONFIDENCES.items():
        for slope in SLOPES:
            for n in LOSS_SIZES:
                rng = np.random.default_rng([n, int(10 * slope)])
                bins = decision_loss(predict(draw, slope, n, rng)).bins
                population = predict(draw, slope, LOSS_POPULATION, rng)
                truth = decision_loss(population, bins=bins).loss.value if slope != 1 else 0.0
                intervals = [decision_loss(predict(draw, slope, n, rng)).loss for _ in range(draws)]
                covered = np.mean([x.low - 1e-9 <= truth <= x.high + 1e-9 for x in intervals])
                value, width = np.mean([x.value for x in intervals]), np.mean([x.high - x.low for x in intervals])
                yield [name, slope, n, 100 * truth, 100 * covered, 100 * value, 100 * width]


def predict(
    draw: Callable[[int, np.random.Generator], np.ndarray], slope: float, n: int, rng: np.random.Generator
) -> Predictions:
    """Draw predictions whose log-odds are `slope` times too large."""
    c = np.clip(draw(n, rng), 1e-9, 1 - 1e-9)
    return Predictions.from_probs(c, (rng.random(n) < expit(logit(c) / slope)).astype(int))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--loss-draws", type=int, default=1000)
    parser.add_argument("--files", nargs="*", default=[])
    parser.add_argument("--splits", type=int, default=200)
    options = parser.parse_args()
    head = ["population", "risk", "n", "broken (%)", "certified share (%)", "Holm (%)"]
    if options.draws:
        print(markdown(head, threshold_rows(options.draws)))
    if options.loss_draws:
        head = ["confidences", "slope", "n", "loss (%)", "coverage (%)", "mean value (%)", "mean width (%)"]
        print(markdown(head, loss_rows(options.loss_draws)))
    if options.files:
        head = ["file", "score", "alpha", "coverage", "standard error", "mean size"]
        print(markdown(head, set_rows(options.files, options.splits)))


if __name__ == "__main__":
    main()
