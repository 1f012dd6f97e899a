"""How often `check` with an old model and `compare` are wrong about models whose metrics are exactly equal.

    python -m benchmarks.difference_levels [--draws 2000] [--out docs/howto/difference_levels.csv]

Confidences of a binary event, from two models with the same expected score. A new model holds the requirement
"metric < old" if the p-value of `metrics.compare` is below 0.10 in its favor, and the models differ if it is at most
0.05. The last two columns are the rates of Student's paired test, or of the jackknife without allowances for the ECE.
With the design "better" the new model is better, and all rates of "new < old" are detections.

The designs: both models add noise of the same distribution ("noise"); one is overconfident and errs so rarely that a
sample may lack the errors ("rare", an accuracy of 98 %; "rarer", 99.5 %), on a tenth of the rows only ("tenth"), with
varying confidences ("spread"), of an event of 1.5 % ("imbalance"), or in clusters of 1 to 9 rows that are all right or
wrong together ("clusters"). For ECE one model is as overconfident as the other one is underconfident, with varying
confidences and near 1 ("99 %"); both are calibrated, one with a single confidence ("sharpness"); or all rows of one
model are off a little and few rows of the other one much ("local").
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from calibrant.registry import METRICS, Method
from scipy.optimize import brentq
from scipy.special import expit

from benchmarks._draws import draw_clusters
from benchmarks._harness import table_parser, write_table
from calibrant import Predictions, metrics
from calibrant.metrics import ModelDifferences, paired_p_value
from calibrant.metrics._paired_scores import read_sums

SIZES = 25, 60, 200, 1000, 5000
HOLDS, DIFFERS = 0.10, 0.05  # two-sided p-values
POPULATION = 400_000
CHUNK_ROWS = 1_000_000
DESIGNS = "noise", "rare", "rarer", "tenth", "spread", "imbalance", "clusters", "better"
BARE_ECE = object.__new__(type(metrics.ece))  # with the jackknife alone; a copy of a metric is the metric itself
BARE_ECE.__dict__ |= metrics.ece.__dict__ | {"is_calibration_error": False}
Rows = tuple[np.ndarray, np.ndarray, np.ndarray]  # confidences of the old and the new model, and true probabilities
Score = Callable[[Any, Any], Any]
SCORES: dict[str, Score] = {  # of confidence and outcome
    "nll": lambda c, a: -np.log(np.where(a > 0, c, 1 - c)),
    "event_brier": lambda c, a: (c - a) ** 2,
    "accuracy": lambda c, a: -1.0 * ((c > 0.5) == (a > 0.5)),  # negative, as lower is better elsewhere
}


def expected(score: Score, c: Any, p: Any) -> Any:
    """Return the mean score of each confidence if the event has the probability p."""
    return p * score(c, np.ones_like(p)) + (1 - p) * score(c, np.zeros_like(p))


def pair_rows(design: str, shape: tuple[int, int], g: np.random.Generator, shift: float) -> Rows:
    """Return confidences and true probabilities, whose log-odds have the given shift or whose rate of errors it is."""
    if design == "noise":
        z = 1.5 * g.standard_normal(shape)
        return expit(z + 0.5 * g.standard_normal(shape)), expit(z + 0.5 * g.standard_normal(shape)), expit(z)
    if design == "better":
        z = 1.5 * g.standard_normal(shape)
        return expit(z + 0.6 * g.standard_normal(shape)), expit(z + 0.3 * g.standard_normal(shape)), expit(z)
    if design == "spread":
        z = 3 + g.standard_normal(shape)
        return expit(z), expit(2 * z), expit(z + shift)
    if design == "imbalance":
        z = -4.6 + 1.2 * g.standard_normal(shape)
        return expit(z + 0.7), expit(z - 0.9), expit(z + shift)
    old, new = {"rarer": (0.98, 0.9995), "tenth": (0.9, 1 - 1e-6)}.get(design, (0.95, 0.995))
    is_extreme = g.random(shape) < (0.1 if design == "tenth" else 1)
    common = g.uniform(0.3, 0.9, shape)
    return tuple(np.where(is_extreme, x, common) for x in (old, new, expit(shift)))  # pyright: ignore[reportReturnType]


def equal_shift(design: str, score: Score) -> float:
    """Return the shift at which both models have the same expected score."""

    def difference(shift: float) -> float:
        old, new, p = pair_rows(design, (1, POPULATION), np.random.default_rng(5), shift)
        return float((expected(score, new, p) - expected(score, old, p)).mean())

    return 0.0 if design in ("noise", "better") else brentq(difference, -12.0, 12.0, xtol=1e-6)


def draw_sums(design: str, score: Score, n: int, draws: int, shift: float, g: np.random.Generator) -> np.ndarray:
    """Return the numbers of `PairedScores.sums` of every draw, (draws, 8)."""
    clusters = draw_clusters(n, 9, g) if design == "clusters" else np.arange(n)
    old, new, p = pair_rows(design, (draws, len(clusters)), g, shift)
    uniform = g.random((draws, n))[:, clusters]
    outcome = (uniform < p) * 1.0
    value, flipped = (score(new, a) - score(old, a) for a in (outcome, 1 - outcome))
    if score is SCORES["accuracy"]:  # any models and labels
        low, high = -np.ones_like(value), np.ones_like(value)
    else:
        low, high = np.minimum(np.minimum(value, flipped), 0), np.maximum(np.maximum(value, flipped), 0)
    size = np.bincount(clusters)
    by_unit = np.zeros((len(clusters), n))
    if design == "clusters":
        by_unit[np.arange(len(clusters)), clusters] = 1
        s, low, high = value @ by_unit, low @ by_unit / size, high @ by_unit / size
    else:
        s = value
    fixed = [np.full(draws, total) for total in (n, size.sum(), (size**2).sum())]
    terms = [*fixed[:2], s.sum(1), fixed[2], (size * s).sum(1), (s**2).sum(1)]
    return np.stack([*terms, low.min(1), high.max(1)], 1)


def mean_p_values(design: str, name: str, n: int, draws: int, shift: float) -> tuple[np.ndarray, ...]:
    """Return the mean differences of all draws, their p-values, and those of Student's test."""
    g, chunk = np.random.default_rng([n, *design.encode(), *name.encode()]), max(1, CHUNK_ROWS // (5 * n))
    sizes = [min(chunk, draws - start) for start in range(0, draws, chunk)]
    sums = np.concatenate([draw_sums(design, SCORES[name], n, size, shift, g) for size in sizes])
    student = [read_sums(row)[0].normal_p_value() for row in sums.tolist()]
    return sums[:, 2] / sums[:, 1], np.array([paired_p_value(row) for row in sums.tolist()]), np.array(student)


def error_rows(design: str, n: int, g: np.random.Generator) -> Rows:
    """Return confidences of two models with the same ECE in 15 bins, and true probabilities."""
    u = g.random(n)
    if design == "noise":
        z = 2 * g.standard_normal(n)
        return expit(z + 0.7 * g.standard_normal(n)), expit(z + 0.7 * g.standard_normal(n)), expit(z)
    if design == "sharpness":
        return np.full(n, 0.75), 0.5 + 0.5 * u, 0.5 + 0.5 * u
    if design == "local":  # of the rows of new, a fifth is off by 0.2
        p = 0.3 + 0.4 * u
        return p + 0.04, p + 0.2 * (u < 0.2), p
    low, width, shift = (0.985, 0.01, 0.003) if design == "99 %" else (0.55, 0.4, 0.04)
    p = low + width * u
    return p + shift, p - shift, p


def error_p_values(design: str, n: int, draws: int) -> tuple[np.ndarray, ...]:
    """Return the differences of ECE of all draws, their p-values, and those of the bare jackknife."""
    g, method = np.random.default_rng([n, *design.encode()]), METRICS.method("ece")
    numbers: list[tuple[float, ...]] = []
    bare = Method(METRICS, "bare", BARE_ECE, {})
    for _ in range(draws):
        old, new, p = error_rows(design, n, g)
        outcome = (g.random(n) < p).astype(int)
        differences = ModelDifferences(*(Predictions.from_confidence(c, outcome) for c in (old, new)))
        estimate = differences.estimate(method)
        numbers.append((estimate.difference, estimate.p_value, differences.estimate(bare).p_value))
    return tuple(np.array(numbers).T)


def rates(difference: np.ndarray, p_value: np.ndarray, plain_p_value: np.ndarray) -> list[str]:
    """Return how often, in percent, new < old and new > old hold and both differ; and two rates of a plain test."""
    holds, plain_holds = p_value < HOLDS, plain_p_value < HOLDS
    shares = (holds & (difference < 0)), (holds & (difference > 0)), p_value <= DIFFERS
    plain_shares = (plain_holds & (difference < 0)), plain_p_value <= DIFFERS
    return [f"{100 * share.mean():.1f}" for share in (*shares, *plain_shares)]


def table_lines(draws: int) -> Iterator[list[Any]]:
    """Yield metric, design, number of examples or clusters, and rates."""
    for name, score in SCORES.items():
        designs = ("noise",) if name == "accuracy" else DESIGNS  # equal accuracies differ in no other design
        for design in designs:
            shift = equal_shift(design, score)
            for n in SIZES:
                yield [name, design, n, *rates(*mean_p_values(design, name, n, draws, shift))]
    for design in ("noise", "over and under", "99 %", "sharpness", "local"):
        for n in SIZES[2:]:
            yield ["ece", design, n, *rates(*error_p_values(design, n, draws))]


def main() -> None:
    """Measure all cells, print them and the largest rates, and write the table."""
    options = table_parser(__doc__, draws=2000).parse_args()
    lines: list[list[Any]] = []
    for line in table_lines(options.draws):
        lines.append(line)
        print(*line, flush=True)
    head = ["metric", "design", "n", "new < old (%)", "new > old (%)", "differs (%)"]
    write_table([*head, "plain new < old (%)", "plain differs (%)"], lines, options.out)
    for i in (3, 4, 5):
        rate, line = max((float(line[i]), line[:3]) for line in lines if line[1] != "better")
        print(f"largest {head[i]}: {rate} {line}")


if __name__ == "__main__":
    main()
