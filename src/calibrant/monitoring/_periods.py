"""Periods: the rows that were predicted in one batch, for the page."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from jaxtyping import Float, Int64

from calibrant._core.types import Range, Size
from calibrant.monitoring._evidence import LOOK_ROWS

MAX_PERIODS = 400  # the last ones are kept
PERIOD_COLUMNS = ("rows", "outcomes", "confidence", "variance")  # sums; variance of a calibrated model
PeriodNames = Annotated[tuple[str, ...], Size("p")]
PeriodCounts = Annotated[Int64[np.ndarray, " p"], Range(ge=0)]
PeriodRows = Annotated[Int64[np.ndarray, " p"], Range(ge=-1)]
PeriodSums = Float[np.ndarray, "p c"]
PeriodPeaks = Float[np.ndarray, " p"]
PERIOD_ARRAYS = ("predicted", "first_row", "sums", "peak")  # fields of `Periods`


@dataclass(frozen=True, eq=False)
class Periods:
    """Sums over the processed rows of each of the last periods."""

    first: Annotated[int, Range(ge=0)]  # number of periods before those that are kept
    names: PeriodNames
    predicted: PeriodCounts  # (p) int64, number of predictions of each of the p periods
    first_row: PeriodRows  # (p) int64, processed rows before the first one of the period, or -1
    sums: PeriodSums  # (p 4) as PERIOD_COLUMNS
    peak: PeriodPeaks  # (p) largest share of the alarm threshold that the log wealth of any test reached

    @classmethod
    def empty(cls) -> "Periods":
        """Return no periods."""
        integers = np.zeros(0, dtype=np.int64)
        sums = np.zeros((0, len(PERIOD_COLUMNS)))
        return cls(first=0, names=(), predicted=integers, first_row=integers, sums=sums, peak=np.zeros(0))

    def __len__(self) -> int:
        return len(self.names)

    @property
    def count(self) -> int:
        """Number of periods so far, those that are no longer kept included."""
        return self.first + len(self)

    def appended(self, name: str, predicted: int) -> "Periods":
        """Return the periods and a new one with this number of predictions, none of them processed."""
        sums = np.zeros((1, len(PERIOD_COLUMNS)))
        size, first_row = np.array([predicted]), np.array([-1])
        added = Periods(first=0, names=(name,), predicted=size, first_row=first_row, sums=sums, peak=np.zeros(1))
        return self.then(added, row=0)

    def advance(self, row: int, periods: np.ndarray, columns: np.ndarray, peaks: np.ndarray) -> "Periods":
        """Return the periods after further rows.

        Args:
            row: Number of rows before.
            periods: Period of each row (n).
            columns: Values of each row (n 4) as PERIOD_COLUMNS.
            peaks: Largest share of the threshold at each look (n / LOOK_ROWS).
        """
        index = periods - self.first
        is_kept = index >= 0  # rows of a period that was dropped may still wait for labels
        sums, peak, first_row = self.sums.copy(), self.peak.copy(), self.first_row.copy()
        np.add.at(sums, index[is_kept], columns[is_kept])
        looks = index[LOOK_ROWS - 1 :: LOOK_ROWS]  # a look belongs to the period of its last row
        np.maximum.at(peak, looks[looks >= 0], peaks[looks >= 0])
        for period in np.unique(index[is_kept]):
            if first_row[period] < 0:
                first_row[period] = row + int(np.argmax(index == period))  # argmax: the first match
        return replace(self, sums=sums, peak=peak, first_row=first_row)

    def then(self, later: "Periods", row: int) -> "Periods":
        """Return the last `MAX_PERIODS` of these and later periods, before whose rows `row` others were processed."""
        has_no_row = later.first_row < 0
        later = replace(later, first_row=np.where(has_no_row, -1, later.first_row + row))
        if later.first > 0:  # so many later periods that their own first ones were dropped
            return replace(later, first=self.count + later.first)
        surplus = max(0, len(self) + len(later) - MAX_PERIODS)
        arrays = {name: np.concatenate([getattr(self, name), getattr(later, name)])[surplus:] for name in PERIOD_ARRAYS}
        return Periods(self.first + surplus, (self.names + later.names)[surplus:], **arrays)

    def name_at(self, row: int) -> str | None:
        """Return the name of the period of a processed row, or None if it is no longer kept."""
        started = np.flatnonzero((self.first_row >= 0) & (self.first_row <= row))
        return self.names[started[-1]] if len(started) else None
