"""The few ways anything is fitted: a safeguarded Newton root, L-BFGS, a grid. Everything in float64."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Status = Literal["converged", "at bound", "separable", "not converged", "grid", "closed form"]


@dataclass(frozen=True)
class Certificate:
    """What a fit says of itself: how it ended, and what it changed on the data it was fitted on."""

    criterion: str  # what was minimized
    before: float  # its value with the identity map
    after: float  # its value with the fitted map
    status: Status
    gradient: float = math.nan  # norm of the criterion's gradient at the solution, nan where there is none
    iterations: int = 0  # passes over the data
    accuracy_before: float = math.nan
    accuracy_after: float = math.nan
    standard_error: float = math.nan  # of the main parameter, where it has one

    @property
    def accuracy_changed(self) -> bool:
        """Whether the map changed which class is predicted often enough to change accuracy."""
        return self.accuracy_before != self.accuracy_after


@dataclass(frozen=True)
class Root:
    """Where an increasing function crosses zero."""

    x: float
    value: float  # of the function there
    slope: float
    iterations: int
    inside: bool  # False when the function keeps its sign: x is then the nearer bound


def increasing_root(
    f: Callable[[float], tuple[float, float]], start: float, low: float, high: float, tolerance: float = 1e-11
) -> Root:
    """Root of an increasing f, which returns (value, slope), by Newton kept inside a shrinking bracket.

    Steps are at most 2 long, so that a flat start cannot throw it away. Convergence is tested before the bracket
    falls back to bisection. Without a sign change the bound is returned with `inside=False`.
    """
    x, lower, upper = start, low, high
    value = slope = math.nan
    for iteration in range(1, 101):
        value, slope = f(x)
        step = -value / slope if slope > 0 else math.copysign(2.0, -value)
        if abs(step) <= tolerance * max(1.0, abs(x)) or value == 0:
            return Root(x, value, slope, iteration, inside=True)
        lower, upper = (x, upper) if value < 0 else (lower, x)
        if x in (low, high):
            return Root(x, value, slope, iteration, inside=False)
        x = x + max(-2.0, min(2.0, step))
        if not lower < x < upper:
            at_bound = (x <= low and lower == low) or (x >= high and upper == high)
            x = (low if x <= low else high) if at_bound else (lower + upper) / 2
    return Root(x, value, slope, 100, inside=lower > low and upper < high)


def first_minimum(f: Callable[[float], float], grid: Iterable[float]) -> tuple[float, float]:
    """The first strict minimum over a grid, and its value; values that are nan are passed over."""
    best, lowest = math.nan, math.inf
    for x in grid:
        value = f(x)
        if value < lowest:
            best, lowest = x, value
    return best, lowest


def minimize(
    f: Callable[[Tensor], tuple[float, Tensor]], start: Tensor, *, steps: int = 1000, tolerance: float = 1e-9
) -> tuple[Tensor, float, float, int]:
    """Minimize a smooth f, which returns (value, gradient), by L-BFGS; float64 vectors in and out.

    Returns the solution, its value, the largest absolute gradient entry there, and the number of evaluations.
    """

    from scipy.optimize import minimize as scipy_minimize  # slow to import, and only fits need it

    def numpy(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = f(torch.from_numpy(x))
        return value, gradient.numpy()

    result = scipy_minimize(
        numpy,
        start.double().numpy(),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-15, "gtol": tolerance, "maxcor": 20},
    )
    return torch.from_numpy(result.x), float(result.fun), float(np.abs(result.jac).max()), int(result.nfev)
