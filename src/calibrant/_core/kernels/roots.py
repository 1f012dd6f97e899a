"""Roots by Halley's method, grid search, and the certificate of a fit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Literal, TypeVar

from calibrant._core.types import AnyFloat, Range

GridPoint = TypeVar("GridPoint")
MAX_OPTIMUM_GAP_NATS = 1e-6  # above which a certificate mentions the gap to the optimum
Status = Literal["converged", "at bound", "separable", "not converged", "grid", "closed form"]
STATUS_SEVERITY: dict[Status, int] = {
    "closed form": 0, "grid": 0, "converged": 0, "separable": 1, "at bound": 2, "not converged": 3
}  # fmt: skip


@dataclass(frozen=True)
class Certificate:
    """How a fit ended, what it changed, and on which data. Prints as one line.

    >>> print(Certificate("nll", 0.5, 0.4, "converged", 1e-9, 6, 0.5, 0.4, 0.9, 0.9))
    converged: nll 0.5000 -> 0.4000, accuracy 90.00 % kept, gradient 1e-09, 6 passes
    """

    criterion: str  # what was minimized
    before: AnyFloat  # its value with the identity map
    after: AnyFloat  # its value with the fitted map
    status: Status
    gradient: float = math.nan  # norm of the criterion's gradient at the solution, nan without one
    iterations: int = 0  # passes over the data
    nll_before: float = math.nan
    nll_after: float = math.nan
    accuracy_before: float = math.nan
    accuracy_after: float = math.nan
    standard_error: float = math.nan  # of the main parameter, nan without one
    data: str = ""  # digest of the predictions it was fitted on
    clipped: int = 0  # examples with a probability of 0, replaced by a tiny one because the map needs finite logits
    classes: Annotated[int, Range(ge=0, le=10**7)] = 0  # of the predictions it was fitted on, 0 if unknown
    gap: AnyFloat = 0.0  # estimated distance from the optimum of the family in the criterion, by search and ridge
    absent: Annotated[int, Range(ge=0, le=10**7)] = 0  # classes without a label in the predictions it was fitted on

    @property
    def is_optimal(self) -> bool:
        """Whether the fitted map is the best of its family for these data, up to 1e-6 in its criterion."""
        return STATUS_SEVERITY[self.status] == 0 and self.gap <= MAX_OPTIMUM_GAP_NATS

    @property
    def accuracy_changed(self) -> bool:
        """Whether the map changed the accuracy."""
        return self.accuracy_before != self.accuracy_after

    @property
    def at_bound(self) -> bool:
        """Whether the solution lies on a bound of its range, which may have no optimum inside."""
        return self.status == "at bound"

    @property
    def separable(self) -> bool:
        """Whether every example is right already, so that the likelihood has no finite optimum."""
        return self.status == "separable"

    def __str__(self) -> str:
        parts = [f"{self.status}: {self.criterion} {self.before:.4f} -> {self.after:.4f}"]
        if self.criterion != "nll":
            parts.append(f"nll {self.nll_before:.4f} -> {self.nll_after:.4f}")
        before, after = f"{self.accuracy_before:.2%}", f"{self.accuracy_after:.2%}"  # of the accuracy
        accuracy = f"{before} -> {after}" if self.accuracy_changed else f"{before} kept"
        parts.append(f"accuracy {accuracy}".replace("%", " %"))
        if not math.isnan(self.gradient):
            parts.append(f"gradient {self.gradient:.0e}")
        if not math.isnan(self.standard_error):
            parts.append(f"standard error {self.standard_error:.2g}")
        if self.gap > MAX_OPTIMUM_GAP_NATS:
            parts.append(f"about {self.gap:.1g} above the optimum")
        if self.clipped:
            parts.append(f"probability 0 clipped in {self.clipped} examples")
        if self.absent:
            is_single = self.absent == self.classes - 1
            parts.append(
                "all labels of one class" if is_single else f"no label of {self.absent} of {self.classes} classes"
            )
        return ", ".join([*parts, f"{self.iterations} passes"])


def worst_status(*statuses: Status) -> Status:
    """Return the most severe status, the first of equals."""
    return max(statuses, key=lambda status: STATUS_SEVERITY[status])


@dataclass(frozen=True)
class PointEvaluation:
    """Value and derivatives of a function at one point, for a search for its root."""

    value: float
    slope: float
    second_derivative: float


Point = TypeVar("Point", bound=PointEvaluation)


@dataclass(frozen=True)
class Root(Generic[Point]):
    """Root of an increasing function."""

    x: float
    step: float  # the last step, from the last evaluation to x
    evaluation: Point  # the last
    iterations: int
    is_interior: bool  # False if the function does not change its sign: x is then the nearer bound


def increasing_root(
    f: Callable[[float], Point], start: float, low: float, high: float, tolerance: float = 1e-4
) -> Root[Point]:
    """Find the root of an increasing function by Halley's method inside a shrinking bracket.

    Steps are at most 2 long, because a flat start would give a huge one. A step below the tolerance is the last,
    without another evaluation: cubic convergence leaves an error of about its cube. Convergence is tested before the
    bracket falls back to bisection. Without a sign change the result is a bound, with `is_interior=False`.
    """
    x, lower, upper = start, low, high  # the root is between `lower` and `upper`, which move inside the bounds
    evaluation = f(x)
    for iteration in range(1, 101):
        step = _halley_step(evaluation)
        if abs(step) <= tolerance:
            return Root(x + step, step, evaluation, iteration, is_interior=True)
        is_below_root = evaluation.value < 0  # because the function increases
        if x == (high if is_below_root else low):  # even the bound on the side of the root does not reach it
            return Root(x, 0.0, evaluation, iteration, is_interior=False)
        lower, upper = (x, upper) if is_below_root else (lower, x)
        x = x + max(-2.0, min(2.0, step))
        if not lower < x < upper:
            if x <= lower == low:  # the bound itself was not tried yet
                x = low
            elif x >= upper == high:
                x = high
            else:  # bisection
                x = (lower + upper) / 2
        evaluation = f(x)
    return Root(x, 0.0, evaluation, 100, is_interior=lower > low and upper < high)


def _halley_step(point: PointEvaluation) -> float:
    """Return the step from a point to the estimated root of an increasing function f, by Halley's method.

    It is n / (1 + n f'' / (2 f')) for Newton's step n = -f / f', limited to half or twice Newton's step. Where f does
    not rise, so that Newton's step is undefined, it is 2 toward the root.
    """
    if point.value == 0:
        return 0.0
    if not point.slope > 0:
        return math.copysign(2.0, -point.value)
    newton_step = -point.value / point.slope
    divisor = 1 + newton_step * point.second_derivative / (2 * point.slope)
    return newton_step / max(0.5, min(2.0, divisor))


def first_minimum(f: Callable[[GridPoint], float], grid: Sequence[GridPoint]) -> tuple[GridPoint, float]:
    """Return the first grid point with the smallest value, and this value, ignoring nan.

    Return the first point and infinity if no value is finite.
    """
    best, lowest = grid[0], math.inf
    for x in grid:
        value = f(x)
        if value < lowest:
            best, lowest = x, value
    return best, lowest
