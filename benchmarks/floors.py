"""How far the noise floors of ECE and adaptive ECE lie from simulations of a calibrated model.

    python -m benchmarks.floors [--draws 10000] [--out docs/benchmarks/floors.csv]

Confidences of a binary event, of rare events, and of the top of four classes; as they are, rounded, with two values or
one; and after every calibrator that bins or steps. Outcomes are drawn with the probability of each confidence. A cell
has the largest relative differences in percent, over events and calibrators: from the mean, and from the 95 % quantile.
The quantile is known up to its standard error, which matters where few values are possible.
"""

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from benchmarks._harness import rows_by_size, table_parser, write_table
from calibrant import Predictions, calibrators, metrics
from calibrant._core.kernels.sorting import TIE_TOLERANCE

SIZES = 30, 100, 1000, 5000
EVENTS = "binary", "rare", "top of 4"
CONFIDENCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "continuous": lambda c: c,
    "rounded to .05": lambda c: np.round(c * 20) / 20,
    "rounded to .1": lambda c: np.round(c, 1),
    "two values": lambda c: np.where(c > np.median(c), np.quantile(c, 0.8), np.quantile(c, 0.3)),
    "constant": lambda c: np.full_like(c, c.mean()),
}
CALIBRATORS = (
    *("HistogramBinning", "HistogramBinning(scheme='equal_mass')", "BayesianBinning", "TopLabelBinning"),
    *("ScalingBinning", "Isotonic", "SharedIsotonic", "VennAbers", "Spline"),
)
CHUNK_ELEMENTS = 1 << 21
MIN_DRAWN_EVENTS = 1000  # variance of the number of events, times the draws


def draw_predictions(event: str, confidences: str, n: int, rng: np.random.Generator) -> Predictions:
    """Return predictions that are too confident."""
    if event != "top of 4":
        c = CONFIDENCES[confidences](rng.beta(1, 1, n) if event == "binary" else rng.beta(0.5, 20, n))
        return Predictions.from_probs(c, (rng.random(n) < 0.8 * c + 0.1 * c.mean()).astype(int))
    top = 1 / (1 + np.exp(-rng.normal(1.5, 1.5, n)))
    top = CONFIDENCES[confidences](0.25 + 0.75 * top).clip(0.3, 1)  # rounding leaves no tie of classes
    labels = np.where(rng.random(n) < 0.9 * top, 0, rng.integers(1, 4, n))
    return Predictions.from_probs(np.column_stack([top, *[(1 - top) / 3] * 3]), labels)


def simulated_errors(c: np.ndarray, draws: int, rng: np.random.Generator, bins: int = 15) -> dict[str, np.ndarray]:
    """Return the ECE and the adaptive ECE of drawn outcomes, from the bins of every row."""
    c = np.sort(c)
    by_width = np.clip(np.searchsorted(np.linspace(0, 1, bins + 1), c) - 1, 0, bins - 1)
    by_mass = np.repeat(np.arange(bins), [len(part) for part in np.array_split(c, bins)])
    return {
        "noise_floor": _draw_errors(c, by_width, np.diff(c, prepend=-1) > 0, draws, rng),
        "adaptive_noise_floor": _draw_errors(c, by_mass, np.diff(c, prepend=-1) > TIE_TOLERANCE * c, draws, rng),
    }


def _draw_errors(
    c: np.ndarray, part: np.ndarray, is_new: np.ndarray, draws: int, rng: np.random.Generator
) -> np.ndarray:
    """Return errors over the bins `part` of sorted rows; rows after the first of a group share its mean outcome."""
    starts = np.flatnonzero(is_new)
    counts, value = np.diff(starts, append=len(c)), c[starts].clip(0, 1)
    rows = np.zeros((len(starts), part.max() + 1))  # number of rows of each group in each bin
    np.add.at(rows, (np.repeat(np.arange(len(starts)), counts), part), 1)
    errors, is_single = list[np.ndarray](), counts == 1
    for size in np.diff(np.r_[np.arange(0, draws, max(1, CHUNK_ELEMENTS // len(c))), draws]):
        hits = np.empty((size, len(starts)))
        hits[:, is_single] = rng.random((size, int(is_single.sum())), dtype=np.float32) < value[is_single]
        hits[:, ~is_single] = rng.binomial(counts[~is_single], value[~is_single], (size, int((~is_single).sum())))
        errors.append(np.abs((hits / counts - value) @ rows).sum(1) / len(c))
    return np.concatenate(errors)


def differences(p: Predictions, draws: int, rng: np.random.Generator) -> Iterator[tuple[str, float, float]]:
    """Return the relative differences of both floors from a simulation: of the mean, and of the 95 % quantile."""
    for name, errors in simulated_errors(p.events.confidence, draws, rng).items():
        floor, mean = getattr(metrics, name).interval(p), errors.mean()
        precision = 2 * (0.95 * 0.05 / draws) ** 0.5
        low, high = np.quantile(errors, [0.95 - precision, 0.95 + precision])
        if draws * float(p.events.moments(1).variance.sum()) > MIN_DRAWN_EVENTS:  # else the simulation is noise
            yield name, floor.value / mean - 1, floor.high / np.clip(floor.high, low, high) - 1


def versions(p: Predictions) -> Iterator[tuple[str, Predictions]]:
    """Return predictions as they are, and after every calibrator fitted on them."""
    yield "none", p
    for text in CALIBRATORS:
        fit, _, settings = text.partition("(")
        scheme = {"scheme": "equal_mass"} if settings else {}
        yield text, p.apply(getattr(calibrators, fit).fit(p, **scheme))


def measure_cell(n: int, confidences: str, draws: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the largest differences of mean and quantile, by floor and by whether a calibrator was applied."""
    by_key: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for event in EVENTS:
        rng = np.random.default_rng([n, list(CONFIDENCES).index(confidences), EVENTS.index(event)])
        p = draw_predictions(event, confidences, n, rng)
        for calibrator, after in versions(p):
            for name, mean, high in differences(after, draws, rng):
                by_key.setdefault((name, "no" if calibrator == "none" else "yes"), []).append((mean, high))
                print(n, confidences, event, calibrator, name, f"{mean:+.4f} {high:+.4f}", flush=True)
    return {key: tuple(max(column, key=abs) for column in zip(*values, strict=True)) for key, values in by_key.items()}


def main() -> None:
    """Measure all cells, and print and write the table."""
    options = table_parser(str(__doc__), draws=10_000).parse_args()
    cells = [
        ((confidences, calibrated, floor), n, f"{100 * mean:+.1f} / {100 * high:+.1f}")
        for confidences, n in product(CONFIDENCES, SIZES)
        for (floor, calibrated), (mean, high) in measure_cell(n, confidences, options.draws).items()
    ]
    head = ["confidences", "calibrated", "floor", *(f"n = {n:,}" for n in SIZES)]
    write_table(head, rows_by_size(cells, SIZES), options.out)


if __name__ == "__main__":
    main()
