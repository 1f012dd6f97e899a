"""The result of `sample_size`: a number of examples with its simulated power curve."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from calibrant._core.files import atomic_write, check_suffix
from calibrant.metrics import metric_info
from calibrant.planning._search import MIN_CURVE_DRAWS, PowerPoint, power_between
from calibrant.reports import Document, Picture, Reportable, Section, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Goal = Literal["detect", "bound", "difference"]
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
CURVE_RATIOS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2)  # to n, of the sizes in the table of the power


@dataclass(frozen=True)
class SampleSize(Reportable):
    """The number of examples, or clusters, that reach a goal with a given power, and the simulated power curve.

    Print it, plot it, or save it as .html, .json, .png, .svg or .pdf.
    """

    n: int  # units to label: examples or clusters
    unit: Literal["example", "cluster"]
    examples: int  # expected number of examples
    goal: Goal
    effect: float  # the error to detect, the bound, or the difference of the two models
    metric: str
    alpha: float  # significance level of the test; an interval has the level 1 - 2 * alpha
    power: float  # probability to reach the goal
    curve: tuple[PowerPoint, ...]  # simulated powers by n
    assumptions: tuple[str, ...]  # sentences

    @property
    def simulated(self) -> PowerPoint:
        """The simulated power at n."""
        return next(point for point in self.curve if point.n == self.n)

    def power_at(self, n: int) -> float:
        """Return the power with n units, from a curve fitted to the simulated powers."""
        return power_between(self.curve, n)

    @property
    def sentence(self) -> str:
        """The result in one sentence: what to label, for which goal, and the simulated power."""
        examples = "" if self.unit == "example" else f" (about {self.examples:,} examples)"
        units = f"{self.n:,} {self.unit}s{examples}"
        info, at_n = metric_info(self.metric), self.simulated
        effect = f"{100 * self.effect:g} %" if info.percent else f"{self.effect:g}"
        check = f"simulated: {at_n.power:.3f} ± {at_n.error:.3f}"
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
        from calibrant.reports.plots import power_curve

        grid = np.unique(np.geomspace(self.curve[0].n, self.curve[-1].n, 80).round()).astype(int)
        # of fewer draws, from the search for n, a power is too noisy to be drawn
        points = [point for point in self.curve if point.draws >= MIN_CURVE_DRAWS]
        n, power, error = zip(*((point.n, point.power, point.error) for point in points), strict=True)
        line = grid, [self.power_at(int(size)) for size in grid]
        return power_curve(n, power, error, line=line, selected=self.n, target=self.power, units=f"{self.unit}s", ax=ax)

    def document(self) -> Document:
        """Return the recommendation, the power curve, and what was assumed."""
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
