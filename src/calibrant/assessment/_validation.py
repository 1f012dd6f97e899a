"""The results of `validate`."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from calibrant._core.numbers import format_level, format_number
from calibrant.metrics import Interval
from calibrant.reports import Cell, Document, Reportable, Section, Table

Method = Literal["bootstrap", "cross-fitting"]
MEASURES = {
    "slope": "calibration slope",
    "intercept": "calibration intercept",
    "brier": "Brier score",
    "auroc": "AUROC",
}
MIN_EVENTS_PER_VARIABLE = (
    8  # with fewer, Harrell's bootstrap misses the slope by more than 0.03 (docs/howto/optimism.csv)
)
FEW_CENTERS = 10
Measures = dict[str, tuple[float, float]]  # value and standard error; nan if it cannot be computed


@dataclass(frozen=True)
class Optimism:
    """A measure of performance, corrected for having fitted and evaluated on the same examples."""

    name: str  # "slope", "intercept", "brier" or "auroc"
    apparent: float  # of the model, on the examples that it was fitted to
    optimism: float  # mean difference between apparent performance and performance on other examples
    corrected: float  # apparent - optimism; nan if the risks do not allow the measure
    error: float  # standard error of the optimism from the finite number of resamples
    fits: int  # resamples or repeats that count


@dataclass(frozen=True)
class Center:
    """Performance in a center of the model that was fitted without this center."""

    name: str
    n: int
    events: int
    values: Measures  # nan for both numbers if there is no estimate


@dataclass(frozen=True)
class Heterogeneity:
    """Random effects of a measure over centers."""

    name: str
    mean: Interval  # over all centers like these
    deviation: float  # standard deviation between centers, tau
    prediction: Interval  # of the value in a new center
    centers: int  # that count


@dataclass(frozen=True)
class Validation(Reportable):
    """Internal validation of an estimator. Print it, or save it as .html or .json."""

    rows: tuple[Optimism, ...]
    method: Method
    n: int
    events: int  # examples of the rarer outcome
    variables: int | None  # columns of X
    failed: int  # resamples without a model or without both outcomes
    centers: tuple[Center, ...]  # empty without centers
    heterogeneity: tuple[Heterogeneity, ...]

    def __getitem__(self, name: str) -> Optimism:
        """Return the row of a measure, such as "slope"."""
        return next(row for row in self.rows if row.name == name)

    @property
    def notes(self) -> tuple[str, ...]:
        """When not to trust the numbers."""
        notes = list[str]()
        ratio = math.inf if not self.variables else self.events / self.variables
        if ratio < MIN_EVENTS_PER_VARIABLE:
            notes.append(
                f"There are {ratio:.2g} examples of the rarer outcome per variable. With fewer than "
                f"{MIN_EVENTS_PER_VARIABLE}, the corrected slope of an unpenalized model can be wrong by more than "
                "0.03: do not trust it."
            )
        if self.method == "cross-fitting":
            notes.append(
                "Cross-fitting makes the slope too low (by 0.04 to 0.3 in simulations): use the bootstrap for it."
            )
        if any(math.isnan(row.corrected) for row in self.rows):
            notes.append("Slope and intercept need risks between 0 and 1, and outcomes that the risks do not separate.")
        if self.failed:
            notes.append(f"{self.failed} resamples gave no model of both outcomes, and are left out.")
        if 0 < len(self.centers) < FEW_CENTERS:
            notes.append(f"{len(self.centers)} centers are few: how much centers differ is hardly known.")
        return tuple(notes)

    def document(self) -> Document:
        """Return the corrected slope, the table of measures, and the centers."""
        rows = [
            [MEASURES[row.name], *(format_number(x, 3) for x in (row.apparent, row.optimism, row.corrected, row.error))]
            for row in self.rows
        ]
        resamples = "bootstrap samples" if self.method == "bootstrap" else "repeats of cross-fitting"
        note = f"From {self.rows[0].fits} {resamples}. Error: standard error from the finite number of them."
        head = ["", "apparent", "optimism", "corrected", "error"]
        sections = [Section("Performance", [Table("Performance", head, rows, note=note)])]
        if self.centers:
            sections += [Section("A new center", [self._heterogeneity_table()]), self._center_section()]
        slope = self["slope"].corrected
        title = f"Corrected calibration slope {format_number(slope, 2)}"
        title += ": new risks will be too extreme" if slope < 1 else ""
        return Document(kind="Internal validation", title=title, notes=self.notes, sections=sections)

    def _heterogeneity_table(self) -> Table:
        rows = [
            [
                MEASURES[effect.name],
                Cell(_format(effect.mean.value), f"({_format(effect.mean.low)} to {_format(effect.mean.high)})"),
                _format(effect.deviation),
                f"{_format(effect.prediction.low)} to {_format(effect.prediction.high)}",
            ]
            for effect in self.heterogeneity
        ]
        level = format_level(self.heterogeneity[0].mean.level)
        note = f"In parentheses and in the last column: {level} intervals of the mean and of a new center."
        return Table("A new center", ["", "mean", "deviation between centers", "in a new center"], rows, note=note)

    def _center_section(self) -> Section:
        rows = [
            [
                center.name,
                f"{center.n:,}",
                f"{center.events:,}",
                *(f"{_format(value)} ± {_format(error)}" for value, error in center.values.values()),
            ]
            for center in self.centers
        ]
        head = ["center", "n", "events", *(MEASURES[effect.name] for effect in self.heterogeneity)]
        return Section("Centers", [Table("Centers, each left out of the fit", head, rows)], is_detail=True)

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as builtin types."""
        return asdict(self) | {"notes": list(self.notes)}


def _format(value: float) -> str:
    return "n/a" if math.isnan(value) else format_number(value, 2)
