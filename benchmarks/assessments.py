"""What `assess` selects and says, where the true change is known.

The worlds are those of the held-out gains. Each draw is assessed without test data (cross-fitted) and with as many test
rows as fitting rows. The harm of the selected calibrator is the expected NLL of new examples after it less that before
it. "Said worse" is the share of draws in which the whole 90 % interval of the change of the NLL lies above 0, and "said
better" below 0; "selected worse" is the share of draws with a harm above .002 nats. To see intervals where the model is
usually kept, StructuredMatrix is also requested, and "holds" is the share of draws in which the interval holds the true
change of the fit to all examples.

    python -m benchmarks.assessments [--draws 60] [--worlds "calibrated, 30"] [--sizes 300] [--out FILE]

The cells of such a run replace those of the file, and all others stay.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np

from benchmarks._harness import Row, Size, markdown, replace_rows, world_parser
from benchmarks.held_out import WORLDS, World, expected_nll
from calibrant import assess

TITLE = "Assessments and true changes"
SIZES = 100, 300, 1000
REQUESTED = "StructuredMatrix"


def measure_draw(world: World, n: int, *, has_test: bool, choose: str | None, seed: int) -> Row:
    """Return the true change of the NLL by the calibrator of one assessment, and what its interval says."""
    p, new, true = world.draw(2 * n, np.random.default_rng([seed, n, WORLDS.index(world)]))
    test = p[n:] if has_test else None
    assessment = assess(p[:n], test, [choose] if choose else None, metrics=["nll"], choose=choose, of="top")
    fitted = assessment.calibrators[assessment.chosen_name]
    change = expected_nll(new.apply(fitted), true) - expected_nll(new, true)
    row: Row = {"harm": change, "kept": assessment.chosen_name == "Identity", "selected_worse": change > 0.002}
    interval = None if assessment.changes is None else assessment.changes["nll"]
    low, high = (0.0, 0.0) if interval is None else (interval.low, interval.high)
    return row | {"said_better": high < 0, "said_worse": low > 0, "holds": low <= change <= high}


def measure_cell(world: World, n: int, *, has_test: bool, choose: str | None, draws: int) -> Row:
    """Return the means over draws, and the standard error of the harm."""
    rows = [measure_draw(world, n, has_test=has_test, choose=choose, seed=seed) for seed in range(draws)]
    cell: Row = {"world": world.name, "n": n, "test_rows": n if has_test else 0, "requested": choose or "none"}
    means = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    error = float(np.std([row["harm"] for row in rows], ddof=1) / np.sqrt(draws))
    return cell | {"draws": draws} | means | {"harm_error": error}


def cells(worlds: str = "", sizes: tuple[int, ...] = SIZES, draws: int = 60) -> Iterator[Row]:
    """Measure every cell of the named worlds, the smallest first."""
    named = [world for world in WORLDS if worlds in world.name]
    for n, world, has_test, choose in product(sizes, named, (False, True), (None, REQUESTED)):
        yield measure_cell(world, n, has_test=has_test, choose=choose, draws=draws)


def run(size: Size) -> Iterator[Row]:
    """Measure every cell: in a draw each of one world if tiny, in 60 if full."""
    yield from cells("2 classes", (100,), 2) if size.name == "tiny" else cells(draws=60 if size.full else 10)


def page(rows: list[Row]) -> str:
    """Return a table with a row per cell."""
    head = ["world", "n", "test rows", "requested", "draws", "harm, nats", *map(_words, SHARES)]
    body = [
        [
            *(row["world"], f"{row['n']:.0f}", f"{row['test_rows']:.0f}", row["requested"], f"{row['draws']:.0f}"),
            f"{row['harm']:+.4f} ± {row['harm_error']:.4f}",
            *(f"{row[key]:.2f}" for key in SHARES),
        ]
        for row in rows
    ]
    return markdown(head, body)


SHARES = "kept", "selected_worse", "said_better", "said_worse", "holds"


def _words(name: str) -> str:
    return name.replace("_", " ")


def main() -> None:
    """Measure the chosen cells, print them, and replace them in the file."""
    options = world_parser(__doc__, SIZES).parse_args()
    rows = cells(options.worlds, tuple(map(int, options.sizes.split(","))), options.draws)
    replace_rows(rows, ("world", "n", "test_rows", "requested"), options.out)


if __name__ == "__main__":
    main()
