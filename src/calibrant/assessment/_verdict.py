"""The verdict on predictions, decided once: titles, answers, notes of rows and JSON all follow it."""

from collections.abc import Iterable

from calibrant.assessment._table import Row, Verdict

LIKELY = 0.05  # p-value of the Kuiper test below which predictions are called miscalibrated
REVERSED_AUROC, MIN_REVERSED = 0.1, 20  # AUROC below which, and rows from which, columns may be swapped
FLOORS = {"ece": "noise_floor", "adaptive_ece": "adaptive_noise_floor"}


def decide(rows: Iterable[Row]) -> Verdict:
    """Decide from the rows of a table."""
    known = {row.name: row for row in rows}
    gap = known["signed_gap"]
    direction = "over" if gap.low > 0 else "under" if gap.high < 0 else None
    if known["kuiper"].p_value < LIKELY:
        return Verdict("miscalibrated", direction)
    if direction or any(above_floor(known.values(), name) for name in FLOORS):
        return Verdict("unclear", direction)
    return Verdict("no_evidence")


def above_floor(rows: Iterable[Row], name: str) -> bool:
    """Whether an error is larger than chance makes that of a calibrated model."""
    known = {row.name: row for row in rows}
    return name in known and known[name].value > known[FLOORS[name]].high


def remarks(n: int, rows: Iterable[Row]) -> tuple[str, ...]:
    """Return what looks like a mistake in the data."""
    auroc = next((row.value for row in rows if row.name == "auroc"), 1.0)
    if not auroc < REVERSED_AUROC or n < MIN_REVERSED:
        return ()
    return (
        f"AUROC is {auroc:.3f}: the higher the probability, the rarer the event. Are the columns swapped, or is "
        "another class meant?",
    )
