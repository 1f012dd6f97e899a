"""The result of `sample_size`: a number of examples with its simulated power curve."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant._core.files import atomic_write, check_suffix
from calibrant._core.numbers import format_level
from calibrant._core.types import InputError
from calibrant.metrics import metric_info
from calibrant.planning._search import MIN_CURVE_DRAWS, PowerPoint, power_between
from calibrant.reports import Document, Picture, Reportable, Section, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Goal = Literal["detect", "bound", "difference", "slope", "observed_expected", "net_benefit"]
PRECISIONS: dict[str, str] = {  # measure of each goal that is the width of an interval
    "slope": "calibration slope",
    "observed_expected": "ratio of observed to expected events",
    "net_benefit": "standardized net benefit",
}
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
MIN_QUICK_DRAWS = 50  # of a quick estimate, at a point that is drawn
CURVE_RATIOS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2)  # to n, of the sizes in the table of the power


@dataclass(frozen=True)
class SampleSize(Reportable):
    """The number of examples, or clusters, that reach a goal, and the simulated power curve.

    A goal of precision, the width of an interval, has a formula instead: it has neither a power nor a curve. Print the
    result, plot it, or save it as .html, .json, .png, .svg or .pdf.
    """

    n: int  # units to label: examples or clusters
    unit: Literal["example", "cluster"]
    examples: int  # expected number of examples
    goal: Goal
    effect: float  # the error to detect, the bound, the difference of the two models, or the width of the interval
    metric: str  # "" for a goal of precision
    alpha: float  # significance level of the test; an interval has the level 1 - alpha, and 1 - 2 * alpha for a bound
    power: float | None  # probability to reach the goal; None for a goal of precision
    curve: tuple[PowerPoint, ...]  # simulated powers by n
    assumptions: tuple[str, ...]  # sentences
    is_exact: bool = False  # whether the power at n was simulated; else n is good to about 10 %

    @property
    def simulated(self) -> PowerPoint:
        """The simulated power at n, if n is exact."""
        return next(point for point in self.curve if point.n == self.n)

    def power_at(self, n: int) -> float:
        """Return the power with n units, from a curve fitted to the simulated powers.

        Raises:
            InputError: If the goal is a precision, which has no power.
        """
        if not self.curve:
            raise _no_power()
        return power_between(self.curve, n, degree=2 if self.is_exact else 1)  # few draws bend a curve

    @property
    def sentence(self) -> str:
        """The result in one sentence: what to label, for which goal, and how sure its power is."""
        examples = "" if self.unit == "example" else f" (about {self.examples:,} examples)"
        units = f"{self.n:,} {self.unit}s{examples}"
        if self.goal in PRECISIONS:
            return (
                f"Label {units} for a {format_level(1 - self.alpha)} interval of the {PRECISIONS[self.goal]} that is "
                f"{self.effect:g} wide in expectation."
            )
        info = metric_info(self.metric)
        effect = f"{100 * self.effect:g} %" if info.percent else f"{self.effect:g}"
        check = "estimated: the number is good to about 10 %"
        if self.is_exact:
            check = f"simulated: {self.simulated.power:.3f} ± {self.simulated.error:.3f}"
        if self.goal == "detect":
            purpose = (
                f"detect a calibration error of {100 * self.effect:g} % by the {info.title.removesuffix(' error')} test"
            )
        elif self.goal == "bound":
            purpose = f"bound the {info.title} below {effect}"
        else:
            purpose = f"tell apart two models that differ by {effect} in {info.short or info.title}"
        level_text = f"at error rate {self.alpha:g}" if self.goal == "bound" else f"at level {self.alpha:g}"
        return f"Label {units} to {purpose} {level_text} with power {self.power:g} ({check})."

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Draw the power curve, with the chosen n.

        Args:
            ax: Axes to draw on. Default: the current axes of pyplot.
        """
        if self.power is None:
            raise _no_power()
        from calibrant.reports.plots import power_curve

        grid = np.unique(np.round(np.geomspace(self.curve[0].n, self.curve[-1].n, 80))).astype(int)
        # of fewer draws, from the search for n, a power is too noisy to be drawn
        points = [
            point for point in self.curve if point.draws >= (MIN_CURVE_DRAWS if self.is_exact else MIN_QUICK_DRAWS)
        ]
        n, power, error = zip(*((point.n, point.power, point.error) for point in points), strict=True)
        line = grid, [self.power_at(int(size)) for size in grid]
        return power_curve(n, power, error, line=line, selected=self.n, target=self.power, units=f"{self.unit}s", ax=ax)

    def document(self) -> Document:
        """Return the recommendation, the power curve, and what was assumed."""
        if self.power is None:
            return Document(kind="Sample size", title=self.sentence, notes=self.assumptions)
        sizes = [max(2, round(ratio * self.n)) for ratio in CURVE_RATIOS]
        curve = Table("power", [f"{self.unit}s", "power"], [[f"{n:,}", f"{self.power_at(n):.2f}"] for n in sizes])
        rows = [[f"{x.n:,}", f"{x.power:.3f}", f"{x.error:.3f}", f"{x.draws:,}"] for x in self.curve]
        table = Table("simulated power", [f"{self.unit}s", "power", "standard error", "simulations"], rows)
        picture = Picture(lambda drawing: self.plot(drawing.add_subplot()), f"Power by the number of {self.unit}s.")
        return Document(
            kind="Sample size",
            title=self.sentence,
            notes=self.assumptions,
            sections=[Section("Power", [curve, picture]), Section("Simulations", [table], is_detail=True)],
        )

    def numbers(self) -> dict[str, Any]:
        """Return all numbers as builtin types."""
        return asdict(self) | {"curve": [asdict(point) | {"error": point.error} for point in self.curve]}

    def save(self, path: str | Path) -> None:
        """Write the page (.html), the numbers (.json) or the power curve (.png, .svg, .pdf), by the suffix."""
        path = Path(path)
        if path.suffix not in FIGURE_SUFFIXES:
            check_suffix(path, (*self.writers(), *FIGURE_SUFFIXES))
            super().save(path)
            return
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3.4), layout="constrained")
        self.plot(figure.add_subplot())
        with atomic_write(path) as draft:
            figure.savefig(draft, format=path.suffix[1:], dpi=150)


def _no_power() -> InputError:
    """Return the error for the power of a goal of precision."""
    return InputError("Expected a goal with a power, got a precision. Try detect=0.05.", code="no_power")
