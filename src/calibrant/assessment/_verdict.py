"""The verdict on predictions, decided once: titles, answers, notes of rows and JSON all follow it."""

from collections.abc import Iterable

from calibrant.assessment._results import Row, Verdict

MISCALIBRATION_P_VALUE = 0.05  # p-value of the Kuiper test below which predictions are called miscalibrated
MAX_REVERSED_AUROC, MIN_REVERSED_ROWS = 0.1, 20  # AUROC below which, and rows from which, columns may be swapped
NOISE_FLOOR_BY_METRIC = {"ece": "noise_floor", "adaptive_ece": "adaptive_noise_floor"}


def decide_verdict(rows: Iterable[Row]) -> Verdict:
    """Decide from the rows of a table."""
    row_by_name = {row.name: row for row in rows}
    gap = row_by_name["signed_gap"]
    direction = "over" if gap.low > 0 else "under" if gap.high < 0 else None
    if row_by_name["kuiper"].p_value < MISCALIBRATION_P_VALUE:
        return Verdict("miscalibrated", direction)
    if direction or any(exceeds_noise_floor(row_by_name.values(), name) for name in NOISE_FLOOR_BY_METRIC):
        return Verdict("unclear", direction)
    return Verdict("no_evidence")


def exceeds_noise_floor(rows: Iterable[Row], name: str) -> bool:
    """Whether an error is larger than chance makes that of a calibrated model."""
    row_by_name = {row.name: row for row in rows}
    return name in row_by_name and row_by_name[name].value > row_by_name[NOISE_FLOOR_BY_METRIC[name]].high


def find_data_problems(n: int, rows: Iterable[Row]) -> tuple[str, ...]:
    """Return what looks like a mistake in the data."""
    auroc = next((row.value for row in rows if row.name == "auroc"), 1.0)
    if not auroc < MAX_REVERSED_AUROC or n < MIN_REVERSED_ROWS:
        return ()
    return (
        f"AUROC is {auroc:.3f}: the higher the probability, the rarer the event. Are the columns swapped, or is "
        "another class meant?",
    )
