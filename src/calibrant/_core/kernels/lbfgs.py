"""L-BFGS whose estimate of the curvature can start another search on similar data."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MAX_CURVATURE_PAIRS = 20

# steps s and the changes y of the gradient along them, the latest last, scaled so that s'y = 1
CurvaturePairs = tuple[tuple[np.ndarray, np.ndarray], ...]


@dataclass(frozen=True)
class Minimum:
    """The end of a search for a minimum."""

    x: np.ndarray
    value: float
    gradient: float  # largest absolute entry of the projected gradient
    evaluations: int
    derivatives: tuple[np.ndarray, ...] = ()  # the gradient there and, after Newton's method, the Hessian
    curvature_pairs: CurvaturePairs = ()  # for a search on similar data
    optimality_gap: float = 0.0  # estimated distance of the value from the minimum


def minimize(
    f: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    *,
    steps: int = 1000,
    tolerance: float = 1e-9,
    curvature_pairs: CurvaturePairs = (),
) -> Minimum:
    """Minimize a smooth convex function by L-BFGS, from the last 20 curvature pairs (Nocedal 1980).

    Args:
        f: Returns value and gradient. The Hessian should be near the unit matrix in its coordinates, for few steps.
        start: Float64 vector.
        steps: Largest number of steps.
        tolerance: Largest absolute entry of the gradient at the end.
        curvature_pairs: Result of a search on similar data, to start with its estimate of the curvature.
    """
    x = start
    value, gradient = f(x)
    evaluations = 1
    for _ in range(steps):
        if not float(np.abs(gradient).max()) > tolerance:  # also if NaN
            break
        step = descent_direction(curvature_pairs, gradient)
        slope = float(gradient @ step)
        if not slope < 0:  # no descent direction: forget the curvature
            curvature_pairs, step, slope = (), -gradient, -float(gradient @ gradient)
        # The length is a multiple of the step
        length, value, new_gradient, passes = _line_search(f, x, value, step, slope)
        evaluations += passes
        if length == 0:
            break  # f falls nowhere along the step
        movement, change = length * step, new_gradient - gradient
        product = float(change @ movement)
        if product > 1e-10 * float(change @ change):  # positive curvature; other pairs would spoil the inverse Hessian
            scale = product**-0.5  # the scaled pair has the product 1
            curvature_pairs = (*curvature_pairs, (scale * movement, scale * change))[-MAX_CURVATURE_PAIRS:]
        x, gradient = x + movement, new_gradient
    return Minimum(x, value, float(np.abs(gradient).max()), evaluations, (gradient,), curvature_pairs)


def descent_direction(curvature_pairs: CurvaturePairs, gradient: np.ndarray) -> np.ndarray:
    """Return minus the approximate inverse Hessian times the gradient, by two loops over the pairs (Nocedal 1980).

    The formulas are simple because the product s'y of each step s and its change y of the gradient is 1.
    """
    direction, products = -gradient, list[float]()
    for step, change in reversed(curvature_pairs):
        products.append(float(step @ direction))
        direction = direction - products[-1] * change
    if curvature_pairs:  # between the loops: the inverse Hessian of the last step, s'y / y'y times the unit matrix
        last_change = curvature_pairs[-1][1]
        direction = direction / (last_change @ last_change)
    for (step, change), product in zip(curvature_pairs, reversed(products), strict=True):
        direction = direction + (product - change @ direction) * step
    return direction


def _line_search(
    f: Callable[[np.ndarray], tuple[float, np.ndarray]], x: np.ndarray, value: float, step: np.ndarray, slope: float
) -> tuple[float, float, np.ndarray, int]:
    """Find a step length that satisfies Wolfe's conditions, trying the whole step first.

    The value falls by at least 1e-4 of what the slope promises, and the slope rises to at least 0.9 times its start.

    Args:
        f: Returns value and gradient.
        x: Start of the line.
        value: Value of f at x.
        step: Direction and first length.
        slope: Product of the gradient at x and the step, below 0.

    Returns:
        The length in steps; the value and the gradient there; and the number of evaluations. The length is 0 if f falls
        nowhere, and the gradient then has no meaning.
    """
    length, shortest, longest, evaluations = 1.0, 0.0, math.inf, 0
    while length > 1e-12 and evaluations < 100:
        new_value, gradient = f(x + length * step)
        evaluations += 1
        if not new_value <= value + 1e-4 * length * slope + 1e-14 * (1 + abs(value)):  # too high, also if NaN: shorten
            longest = length
            excess = new_value - value - length * slope  # over the tangent at x
            # Minimizer of the parabola through both values with this slope at x, within 10 % to 50 % of the bracket
            minimizer = -slope * length**2 / (2 * excess) if excess < math.inf else 0.0
            length = min(max(minimizer, shortest + 0.1 * (longest - shortest)), (shortest + longest) / 2)
        elif float(gradient @ step) < 0.9 * slope:  # still steep: lengthen
            shortest, length = length, min(4 * length, (length + longest) / 2)
        else:
            return length, new_value, gradient, evaluations
    return 0.0, value, step, evaluations
