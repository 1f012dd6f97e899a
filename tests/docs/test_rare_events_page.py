"""The sentences on the page about rare events agree with its tables."""

import csv
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "howto"


def read_rows(name: str) -> dict[str, list[float]]:
    """Return the numbers of each row, by the text in its first column."""
    with (FOLDER / name).open(newline="") as file:
        _, *rows = csv.reader(file)
    return {label: [float(cell) for cell in cells] for label, *cells in rows}


def test_events_that_are_needed_are_those_of_the_table():
    detect, bound, ratio, slope = read_rows("rare_event_sizes.csv").values()
    assert all(30 <= n <= 50 for n in detect)
    assert 150 < max(bound) < 1000
    assert all(80 <= n <= 150 for n in ratio + slope)


def test_intervals_hold_but_for_the_scaled_brier_score():
    shares = read_rows("rare_event_coverage.csv")
    scaled = shares.pop("scaled_brier")
    assert min(min(row) for row in shares.values()) >= 0.88
    assert (min(scaled[:4]), max(scaled[:4])) == (0.86, 0.91)
    assert min(shares["auroc"]) > 0.92
