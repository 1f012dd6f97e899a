"""The gain that held-out folds promise, beside the gain on new examples.

The true probabilities of every class are known, so that the NLL of a fitted calibrator is an expectation over labels,
without their noise. The held-out gain is that of cross-fitting with five folds; the true gain is that of the fit to all
n examples, and "smaller fits" is the mean true gain of the five fits to four fifths of them. A positive difference
between the held-out and the true gain flatters the calibrator. The gain that Auto states itself and its lower 95 %
limit are compared with the true gain of the same fit in more draws. Errors are standard errors over draws.

    python -m benchmarks.held_out [--draws 60] [--worlds "calibrated, 30"] [--sizes 300] [--calibrators Auto]
        [--out docs/benchmarks/held_out.csv]

The cells of such a run replace those of the file, and all others stay.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from calibrant.registry import CALIBRATORS

from benchmarks._draws import draw_labels
from benchmarks._harness import Row, Size, markdown, replace_rows, world_parser
from calibrant import Predictions
from calibrant.calibrators import Auto
from calibrant.predictions.folds import map_out_of_fold

TITLE = "Held-out gains and true gains"
STATED = "Auto, as stated"
CALIBRATOR_NAMES = "Auto", "StructuredVector", "Vector", "Matrix", "Isotonic", STATED
SIZES = 100, 300, 1000, 5000
FOLDS = 5
TEST_ROWS = 10_000  # new ones in every draw
CLUSTER_SIZE = 10


def _log_softmax(z: np.ndarray) -> np.ndarray:
    z = z - z.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


@dataclass(frozen=True)
class World:
    """True logits of k classes, normal around `center`, and how a model distorts them."""

    name: str
    k: int
    center: tuple[float, ...] = (0.0,)  # mean of the true logits by class, or one for all
    spread: float = 2.0
    scale: float = 1.0  # the model's logits are the true ones times this
    class_error: float = 0.0  # standard deviation of the errors of the model's scale and shift by class
    mixing: float = 0.0  # standard deviation of the entries by which the model mixes logits of different classes
    clustered: bool = False  # examples of a cluster are alike, and share the noise of their labels

    @property
    def calibrated(self) -> bool:
        """Whether no calibrator can gain anything."""
        return self.scale == 1 and self.class_error == self.mixing == 0

    def draw(self, n: int, rng: np.random.Generator) -> tuple[Predictions, Predictions, np.ndarray]:
        """Draw n predictions to fit on, others to test on, and the true log-probabilities of the latter (m, k)."""
        scale = self.scale * np.exp(rng.normal(0, self.class_error, self.k))
        shift = 2 * rng.normal(0, self.class_error, self.k)
        mix = rng.normal(0, self.mixing, (self.k, self.k))
        clusters = np.repeat(np.arange(n), CLUSTER_SIZE)[:n] if self.clustered else None
        true = np.asarray(self.center) + self.spread * rng.standard_normal((n, self.k))
        labels = draw_labels(true, rng)
        if clusters is not None:
            shared = self.spread * rng.standard_normal((n, self.k))[clusters]
            true = np.asarray(self.center) + (shared + true - np.asarray(self.center)) / math.sqrt(2)
            labels = (true + rng.gumbel(size=(n, self.k))[clusters]).argmax(1)
        test = np.asarray(self.center) + self.spread * rng.standard_normal((TEST_ROWS, self.k))
        distorted = [z * scale + z @ mix + shift for z in (true, test)]
        fit = Predictions(distorted[0], labels, clusters=clusters)
        return fit, Predictions(distorted[1], draw_labels(test, rng)), _log_softmax(test)


def _tilt(k: int, ratio: float) -> tuple[float, ...]:
    """Return centers of logits of classes, of which the first is about `ratio` times as frequent as the last."""
    return tuple(np.linspace(math.log(ratio), 0, k))


WORLDS = (
    World("calibrated, 2 classes", 2),
    World("calibrated, 5 classes", 5),
    World("calibrated, 10 classes", 10),
    World("calibrated, 30 classes", 30),
    World("calibrated, 100 classes", 100),
    World("calibrated, 2 % positive", 2, center=(4.6, 0.0), spread=0.8),
    World("calibrated, 10 long-tailed classes", 10, center=_tilt(10, 100)),
    World("calibrated, 5 classes, clusters", 5, clustered=True),
    World("overconfident, 10 classes", 10, scale=2.0),
    World("overconfident, 2 % positive", 2, center=(4.6, 0.0), spread=0.8, scale=2.0),
    World("class-wise bias, 10 classes", 10, class_error=0.2),
    World("class-wise bias, 30 classes", 30, class_error=0.2),
    World("mixed classes, 10 classes", 10, mixing=0.15),
)


def expected_nll(p: Predictions, true: np.ndarray) -> float:
    """Return the NLL expected over labels of the true log-probabilities (m, k), which are finite."""
    return float(-(np.exp(true) * _log_softmax(p.logits.astype(float))).sum(1).mean())


def measure_draw(world: World, n: int, calibrator: str, seed: int) -> Row:
    """Return the held-out and true gains of one calibrator on one draw; all calibrators meet the same draws."""
    p, test, true = world.draw(n, np.random.default_rng([seed, n, WORLDS.index(world)]))
    uncalibrated, fits = expected_nll(test, true), list[Any]()
    if calibrator == STATED:
        auto = Auto.fit(p)
        gain = uncalibrated - expected_nll(test.apply(auto), true)
        holds, low_above_0 = auto.gain_low <= gain, auto.gain_low > 0
        return {"true": gain, "stated": auto.gain, "low": auto.gain_low, "holds": holds, "low_above_0": low_above_0}

    def fit(training: Predictions) -> Callable[..., Any]:
        function = CALIBRATORS.resolve(calibrator)
        fits.append(function(training, estimate_gain=False) if calibrator == "Auto" else function(training))
        return fits[-1]

    held_out = float((map_out_of_fold(fit, p.double(), folds=FOLDS).log_likelihood - p.double().log_likelihood).mean())
    smaller = float(np.mean([uncalibrated - expected_nll(test.apply(fitted), true) for fitted in fits]))
    gain = uncalibrated - expected_nll(test.apply(fit(p)), true)
    return {"held_out": held_out, "true": gain, "smaller_fits": smaller, "difference": held_out - gain}


def measure_cell(world: World, n: int, calibrator: str, draws: int) -> Row:
    """Return the means over draws, and the standard errors of the gains and of their difference."""
    rows = [measure_draw(world, n, calibrator, seed) for seed in range(draws)]
    columns = {key: np.array([row[key] for row in rows], dtype=float) for key in rows[0]}
    cell: Row = {"world": world.name, "k": world.k, "n": n, "calibrator": calibrator, "draws": draws}
    for key, values in columns.items():
        cell |= {key: float(values.mean())} | ({f"{key}_error": _standard_error(values)} if key in GAINS else {})
    return cell


def _standard_error(x: np.ndarray) -> float:
    return float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan


def cells(worlds: str = "", sizes: tuple[int, ...] = SIZES, names: tuple[str, ...] = CALIBRATOR_NAMES) -> Iterator[Any]:
    """Yield the world, number of examples and calibrator of every cell, the smallest first."""
    named = [world for world in WORLDS if worlds in world.name]
    yield from ((world, n, name) for n, world, name in product(sorted(sizes), named, names))


def run(size: Size) -> Iterator[Row]:
    """Measure every cell: in a draw each if tiny, in 200 if full."""
    if size.name == "tiny":
        yield from (measure_cell(*cell, 2) for cell in cells("5 classes", (100,)))
    else:
        yield from (measure_cell(*cell, 200 if size.full else 10) for cell in cells())


# The page


def page(rows: list[Row]) -> str:
    """Return a table of gains in nats, and one of the gain that Auto states."""
    head = ["world", "n", "calibrator", "draws", "held-out gain", "true gain", "smaller fits", "held-out less true"]
    gains = [
        [
            *(row["world"], f"{row['n']:.0f}", row["calibrator"], f"{row['draws']:.0f}"),
            *(f"{row[key]:+.4f} ± {row.get(f'{key}_error', math.nan):.4f}" for key in GAINS),
        ]
        for row in rows
        if row["calibrator"] != STATED
    ]
    stated_head = ["world", "n", "draws", "stated gain", "lower limit", "true gain", "limit holds it", "limit > 0"]
    stated = [
        [
            *(row["world"], f"{row['n']:.0f}", f"{row['draws']:.0f}"),
            *(f"{row[key]:+.4f}" for key in ("stated", "low", "true")),
            *(f"{row[key]:.2f}" for key in ("holds", "low_above_0")),
        ]
        for row in rows
        if row["calibrator"] == STATED
    ]
    return "\n".join([markdown(head, gains), "", "### The gain that Auto states", "", markdown(stated_head, stated)])


GAINS = "held_out", "true", "smaller_fits", "difference"


def main() -> None:
    """Measure the chosen cells, print them, and replace them in the file."""
    parser = world_parser(__doc__, SIZES)
    parser.add_argument("--calibrators", default=";".join(CALIBRATOR_NAMES), help="names, by semicolon")
    options = parser.parse_args()
    chosen = cells(options.worlds, tuple(map(int, options.sizes.split(","))), tuple(options.calibrators.split(";")))
    replace_rows((measure_cell(*cell, options.draws) for cell in chosen), ("world", "n", "calibrator"), options.out)


if __name__ == "__main__":
    main()
