"""The power at the n of `sample_size`, against simulations that share no code with it.

    python -m benchmarks.sample_size [--repeats 2000]

Each problem has a generator of data, which knows the truth. `sample_size` sees one data set of it, or assumptions. The
test, interval or comparison of the goal is then applied to many new data sets of the recommended size. Writes
docs/howto/sample_sizes.csv.
"""

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import brentq
from scipy.special import betaincinv, expit, log_softmax, softmax
from scipy.stats import norm

from benchmarks._draws import draw_labels
from benchmarks._harness import write_table
from calibrant import Predictions, metrics, sample_size
from calibrant.planning import SampleSize

TABLE = Path(__file__).parent.parent / "docs" / "howto" / "sample_sizes.csv"
HEADER = ["problem", "goal", "n", "promised power", "power of new data", "standard error"]
NUM_POPULATION = 200_000
POWER = 0.8


@dataclass(frozen=True)
class Problem:
    """A question to `sample_size`, and one new data set of n units, of which it returns whether the goal is reached."""

    name: str
    goal: str
    ask: Callable[[], SampleSize]
    succeeds: Callable[[int, np.random.Generator], bool]


def rejects(confidence: np.ndarray, outcome: np.ndarray, clusters: np.ndarray | None = None) -> bool:
    """Whether the omnibus test rejects stated confidences at 0.05."""
    p = Predictions.from_confidence(confidence, outcome.astype(int), clusters=clusters)
    return metrics.omnibus.test(p).p_value < 0.05


def risk_score() -> Problem:
    """A risk score whose true risks are 0.05 higher."""

    def score(n: int, rng: np.random.Generator) -> np.ndarray:
        return expit(rng.normal(-1.8, 1.0, n))

    def succeeds(n: int, rng: np.random.Generator) -> bool:
        c = score(n, rng)
        p = Predictions.from_probs(c, (rng.random(n) < np.minimum(c + 0.05, 1)).astype(int))
        return metrics.omnibus.test(p).p_value < 0.05

    def ask() -> SampleSize:
        c = score(1000, np.random.default_rng(1))
        return sample_size(Predictions.from_probs(c, np.zeros(1000, dtype=int)), detect=0.05, exact=True)

    return Problem("two classes: 1,000 scores without labels", "detect 0.05", ask, succeeds)


def draw_logits(n: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Draw logits with a mean confidence of about 0.55."""
    return 1.6 * rng.standard_normal((n, k))


def top(z: np.ndarray) -> np.ndarray:
    """Return the probability of the class with the largest logit."""
    return 1 / np.exp(z - z.max(1, keepdims=True)).sum(1)


def ten_classes() -> Problem:
    """Logits of ten classes that are too large by a factor, so that the confidences are 0.06 off on average."""
    z = draw_logits(NUM_POPULATION, 10, np.random.default_rng(9))
    scale = brentq(lambda s: np.abs(top(s * z) - top(z)).mean() - 0.06, 0.2, 1)

    def succeeds(n: int, rng: np.random.Generator) -> bool:
        z = draw_logits(n, 10, rng)
        return metrics.omnibus.test(Predictions(z, draw_labels(scale * z, rng))).p_value < 0.05

    def ask() -> SampleSize:
        rng = np.random.default_rng(1)
        z = draw_logits(1000, 10, rng)
        return sample_size(Predictions(z, draw_labels(z, rng)), detect=0.06, pattern="scale", exact=True)

    return Problem("ten classes: 1,000 predictions", "detect 0.06 (scale)", ask, succeeds)


def assumed_confidences() -> Problem:
    """Confidences that nobody has seen yet, beta(18, 2)."""

    def succeeds(n: int, rng: np.random.Generator) -> bool:
        c = rng.beta(18, 2, n)
        return rejects(c, rng.random(n) < np.maximum(c - 0.04, 0))

    return Problem(
        "confidences: assumed beta(18, 2)",
        "detect 0.04",
        lambda: sample_size(confidence="beta(18, 2)", detect=0.04, exact=True),
        succeeds,
    )


def stated_confidences() -> Problem:
    """Confidences of five values, as language models state them."""
    values, share = np.array([0.5, 0.7, 0.8, 0.9, 0.95]), np.array([0.05, 0.1, 0.25, 0.35, 0.25])

    def succeeds(n: int, rng: np.random.Generator) -> bool:
        c = rng.choice(values, n, p=share)
        return rejects(c, rng.random(n) < c - 0.1)

    def ask() -> SampleSize:
        c = np.random.default_rng(1).choice(values, 400, p=share)
        return sample_size(confidence=c, detect=0.1, exact=True)

    return Problem("confidences: 400 of five values", "detect 0.1", ask, succeeds)


def clustered() -> Problem:
    """Clusters of 2 to 12 answers, whose probabilities vary by a beta distribution of correlation 0.2."""
    spread = (1 - 0.2) / 0.2

    def answers(n: int, shift: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        cluster = np.repeat(np.arange(n), rng.integers(2, 13, n))
        c = rng.beta(8, 2, len(cluster))
        p = np.clip(c - shift, 1e-9, 1)
        p = betaincinv(spread * p, spread * (1 - p), rng.random(n)[cluster])
        return c, (rng.random(len(c)) < p).astype(int), cluster

    def ask() -> SampleSize:
        c, a, cluster = answers(300, 0.0, np.random.default_rng(1))
        return sample_size(Predictions.from_confidence(c, a, clusters=cluster), detect=0.08, exact=True)

    return Problem(
        "clusters: 300 of 2 to 12 answers", "detect 0.08", ask, lambda n, rng: rejects(*answers(n, 0.08, rng))
    )


def bounded() -> Problem:
    """A calibrated model of four classes."""

    def predictions(n: int, rng: np.random.Generator) -> Predictions:
        z = draw_logits(n, 4, rng)
        return Predictions(z, draw_labels(z, rng))

    return Problem(
        "four classes: 500 predictions",
        "bound 0.08",
        lambda: sample_size(predictions(500, np.random.default_rng(1)), bound=0.08, exact=True),
        lambda n, rng: metrics.debiased_l2.interval(predictions(n, rng)).high < 0.08,
    )


def two_models() -> Problem:
    """Two models of ten classes, of which the second has larger logits; the difference in NLL is the true one."""

    def logits(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        z = draw_logits(n, 10, rng)
        return z, z + 0.3 * rng.standard_normal(z.shape), 1.4 * z

    def models(n: int, rng: np.random.Generator) -> tuple[Predictions, Predictions]:
        z, first, second = logits(n, rng)
        y = draw_labels(z, rng)
        return Predictions(first, y), Predictions(second, y)

    z, *claimed = logits(NUM_POPULATION, np.random.default_rng(9))
    expected = [-(softmax(z, 1) * log_softmax(x, 1)).sum(1).mean() for x in claimed]  # over the labels, without noise
    truth = float(abs(expected[1] - expected[0]))

    def succeeds(n: int, rng: np.random.Generator) -> bool:
        return metrics.compare(*models(n, rng), names=["nll"])["nll"].p_value < 0.05

    return Problem(
        "two models of ten classes: 2,000 predictions",
        f"difference {truth:.3f} in NLL",
        lambda: sample_size(*models(2000, np.random.default_rng(1)), difference=truth, exact=True),
        succeeds,
    )


def accuracies() -> Problem:
    """Two models of accuracies 0.785 and 0.815 whose correctness has the correlation 0.5."""
    a, b = 0.785, 0.815
    joint = a * b + 0.5 * math.sqrt(a * (1 - a) * b * (1 - b))
    shares = [joint, a - joint, b - joint, 1 - a - b + joint]

    def succeeds(n: int, rng: np.random.Generator) -> bool:
        kind = rng.choice(4, n, p=shares)
        d = (kind == 2).astype(float) - (kind == 1)
        return 2 * norm.sf(abs(d.mean()) / (d.std(ddof=1) / math.sqrt(n))) < 0.05  # n is in the thousands

    return Problem(
        "two models: assumed accuracy 0.8, correlation 0.5",
        "difference 0.03 in accuracy",
        lambda: sample_size(accuracy=0.8, correlation=0.5, difference=0.03, metric="accuracy", exact=True),
        succeeds,
    )


PROBLEMS = (
    *(risk_score, ten_classes, assumed_confidences, stated_confidences),
    *(clustered, bounded, two_models, accuracies),
)


def rows(repeats: int) -> Iterator[list[str]]:
    """Yield a row of the table for each problem."""
    for build in PROBLEMS:
        problem = build()
        result = problem.ask()
        rng = np.random.default_rng(2)
        reached = sum(problem.succeeds(result.n, rng) for _ in range(repeats)) / repeats
        error = math.sqrt(reached * (1 - reached) / repeats)
        size = f"{result.n:,} {result.unit}s"
        yield [problem.name, problem.goal, size, f"{POWER:g}", f"{reached:.3f}", f"{error:.3f}"]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    write_table(HEADER, list(rows(repeats)), TABLE)


if __name__ == "__main__":
    main()
