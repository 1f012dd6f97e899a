"""How often Kuiper's and the omnibus test reject, for calibrated models and for errors of several forms.

    python -m benchmarks.power [--draws 2000] [--only bands] [--out docs/benchmarks/power.csv]

The confidences are uniform between 0 and 1 unless the design says otherwise. "Bands" divide them into ranges of equal
width, in which the frequency is .08 above and below the confidence in turn. A bump is Gaussian and .18 high. "Logits"
are multiplied, and "log-odds" shifted, to get the frequencies. A cluster has 1 to 5 examples, which share a quarter of
the variance of their outcomes' probits. Weights are lognormal, with a cluster for every row.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.special import expit, logit, ndtri

from benchmarks._draws import draw_clusters
from benchmarks._harness import write_table
from calibrant import metrics
from calibrant._core.kernels.bins import Events
from calibrant.planning._populations import to_events

Map = Callable[[np.ndarray], np.ndarray]
Confidences = Callable[[int, np.random.Generator], np.ndarray]
OUT = Path(__file__).parent.parent / "docs" / "benchmarks" / "power.csv"
LEVEL = 0.05
CLUSTER_SHARE = 0.25  # of the variance of the probits of a cluster
CLUSTERED_DRAWS = 8  # times fewer, as tests of clusters are simulated and slow


def uniform(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw uniform confidences."""
    return rng.random(n)


def rounded(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw uniform confidences, rounded to tenths."""
    return np.round(rng.random(n), 1)


def two_values(n: int, rng: np.random.Generator) -> np.ndarray:
    """Draw one of two confidences."""
    return rng.choice([0.6, 0.9], n)


def around(rate: float) -> Confidences:
    """Return a function that draws confidences with a spread of 1 in log-odds around a rate."""
    return lambda n, rng: expit(math.log(rate / (1 - rate)) + rng.standard_normal(n))


def bands(number: int) -> Map:
    """Return the frequency at each confidence, .08 above and below it in turn."""
    return lambda c: np.clip(c + 0.08 * np.where(np.floor(c * number) % 2 == 0, 1, -1), 0, 1)


def bump(center: float, width: float) -> Map:
    """Return the frequency at each confidence, which is higher only near a center."""
    return lambda c: np.clip(c + 0.18 * np.exp(-0.5 * ((c - center) / width) ** 2), 0, 1)


def identity(c: np.ndarray) -> np.ndarray:
    """Return the confidences, which are true."""
    return c


@dataclass(frozen=True)
class Design:
    """Confidences, true frequencies, and whether rows are weighted or in clusters."""

    name: str
    n: int
    confidences: Confidences = uniform
    frequency: Map = identity
    structure: str = ""

    def draw(self, rng: np.random.Generator) -> Events:
        """Draw the events of n examples or clusters."""
        clusters, weights = None, None
        if self.structure == "clusters":
            clusters = draw_clusters(self.n, 5, rng)
        elif self.structure == "weights":
            clusters, weights = np.arange(self.n), rng.lognormal(0, 0.7, self.n)
        c = self.confidences(self.n if clusters is None else len(clusters), rng)
        noise = rng.standard_normal(len(c))
        if self.structure == "clusters" and clusters is not None:
            shared = rng.standard_normal(self.n)[clusters]
            noise = math.sqrt(CLUSTER_SHARE) * shared + math.sqrt(1 - CLUSTER_SHARE) * noise
        with np.errstate(divide="ignore"):
            return to_events(c, noise < ndtri(self.frequency(c)), weights, clusters)


DESIGNS = (
    *(Design("calibrated", n) for n in (20, 100, 1000)),
    *(Design("calibrated, rounded to tenths", n, rounded) for n in (100, 1000)),
    *(Design("calibrated, .6 or .9", n, two_values) for n in (20, 200)),
    *(Design("calibrated, around .01", n, around(0.01)) for n in (100, 2000)),
    *(Design("calibrated, around .02", n, around(0.02)) for n in (100, 2000)),
    *(Design("calibrated, around .99", n, around(0.99)) for n in (100, 2000)),
    *(Design("calibrated, clusters of 1 to 5", n, structure="clusters") for n in (20, 100)),
    *(Design("calibrated, around .02, clusters of 1 to 5", n, around(0.02), structure="clusters") for n in (300,)),
    *(Design("calibrated, importance weights", n, structure="weights") for n in (20, 100)),
    *(Design("calibrated, around .02, importance weights", n, around(0.02), structure="weights") for n in (500,)),
    *(Design(f"{number} bands", 1000, frequency=bands(number)) for number in (2, 3, 5, 8, 10)),
    Design("5 bands, rounded to tenths", 1000, rounded, bands(5)),
    Design("5 bands, clusters of 1 to 5", 400, uniform, bands(5), "clusters"),
    Design("5 bands, importance weights", 1000, uniform, bands(5), "weights"),
    Design("bump at .5", 1000, frequency=bump(0.5, 0.05)),
    Design("bump at .8", 1000, frequency=bump(0.8, 0.05)),
    Design("logits x .8", 1500, frequency=lambda c: expit(0.8 * logit(c))),
    Design("logits x 1.25", 1500, frequency=lambda c: expit(1.25 * logit(c))),
    Design("log-odds + .2", 1000, frequency=lambda c: expit(logit(c) + 0.2)),
    Design("log-odds - .2", 1000, frequency=lambda c: expit(logit(c) - 0.2)),
    Design("log-odds + .5, around .02", 2000, around(0.02), lambda c: expit(logit(c) + 0.5)),
    Design("logits x .8, around .9", 1500, around(0.9), lambda c: expit(0.8 * logit(c))),
    Design("log-odds - .2, clusters of 1 to 5", 400, uniform, lambda c: expit(logit(c) - 0.2), "clusters"),
)


def reject_rates(design: Design, draws: int) -> tuple[float, float]:
    """Return how often Kuiper's and the omnibus test reject."""
    rng, rejected = np.random.default_rng([design.n, sum(design.name.encode())]), np.zeros(2)
    for _ in range(draws):
        events = design.draw(rng)
        rejected += [test(events).p_value <= LEVEL for test in (metrics.kuiper.test, metrics.omnibus.test)]
    kuiper, omnibus = rejected / draws
    return float(kuiper), float(omnibus)


def main() -> None:
    """Measure every design, print the rates in percent, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--only", default="", help="part of the names of the designs to measure")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows: list[list[str]] = []
    for design in DESIGNS:
        if options.only not in design.name:
            continue
        draws = options.draws // CLUSTERED_DRAWS if design.structure else options.draws
        rates = reject_rates(design, draws)
        rows.append([design.name, f"{design.n:,}", *(f"{100 * rate:.1f}" for rate in rates), f"{draws:,}"])
        print(*rows[-1], flush=True)
    if not options.only:
        write_table(["design", "n", "Kuiper", "omnibus", "draws"], rows, options.out)


if __name__ == "__main__":
    main()
