"""L-BFGS with a memory that can start a search on similar data."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Minimum:
    """The end of a search for a minimum."""

    x: Tensor
    value: float
    gradient: float  # largest absolute entry of the projected gradient
    evaluations: int
    derivatives: tuple[Tensor, ...] = ()  # the gradient there and, after Newton's method, the Hessian
    memory: "LBFGSMemory | None" = None  # of the curvature there, for a search on similar data
    gap: float = 0.0  # estimated distance of the value from the minimum


@dataclass(frozen=True, eq=False)
class LBFGSMemory:
    """The last steps of L-BFGS and their changes of the gradient, scaled to a product of 1."""

    steps: np.ndarray  # (m d)
    changes: np.ndarray  # (m d)
    products: np.ndarray  # (m m) of each step with each change
    squares: np.ndarray  # (m m) of the changes among each other

    @classmethod
    def append_pair(
        cls, step: np.ndarray, change: np.ndarray, memory: "LBFGSMemory | None", max_pairs: int = 20
    ) -> "LBFGSMemory":
        """Return a memory (None: an empty one) with another pair of a step and its change of the gradient.

        The oldest of more than `max_pairs` pairs is dropped.
        """
        scale = _dot(step, change) ** -0.5
        s, y = scale * step, scale * change
        if memory is None:
            return cls(s[None], y[None], np.ones((1, 1)), np.full((1, 1), _dot(y, y)))
        recent = slice(1 if len(memory.steps) == max_pairs else 0, None)
        steps = np.concatenate([memory.steps[recent], s[None]])
        changes = np.concatenate([memory.changes[recent], y[None]])
        products, squares = np.empty((2, len(steps), len(steps)))
        products[:-1, :-1] = memory.products[recent, recent]
        squares[:-1, :-1] = memory.squares[recent, recent]
        products[-1], products[:, -1] = _matvec(changes, s), _matvec(steps, y)
        squares[-1] = squares[:, -1] = _matvec(changes, y)
        return cls(steps, changes, products, squares)

    def descent_direction(self, gradient: np.ndarray) -> np.ndarray:
        """Return minus the inverse Hessian times the gradient (Byrd, Nocedal & Schnabel 1994, eq. 3.1)."""
        scale = 1 / float(self.squares[-1, -1])
        upper = np.triu(self.products)
        a = np.linalg.solve(upper, _matvec(self.steps, gradient))
        middle = a + scale * (self.squares @ a - _matvec(self.changes, gradient))
        b = np.linalg.solve(upper.T, middle)
        return scale * (_matvec(self.changes.T, a) - gradient) - _matvec(self.steps.T, b)


def minimize(
    f: Callable[[Tensor], tuple[float, Tensor]],
    start: Tensor,
    *,
    steps: int = 1000,
    tolerance: float = 1e-9,
    memory: LBFGSMemory | None = None,
) -> Minimum:
    """Minimize a smooth convex function by L-BFGS.

    Args:
        f: Returns value and gradient. The Hessian should be near the unit matrix in its coordinates.
        start: Float64 vector.
        steps: Largest number of steps.
        tolerance: Largest absolute entry of the gradient at the end.
        memory: Memory of a search on similar data, to start with its curvature.
    """
    x = start.double().numpy()
    value, gradient, evaluations = *_evaluate(f, x), 1
    for _ in range(steps):
        if not np.abs(gradient).max() > tolerance:  # also if NaN
            break
        step = -gradient if memory is None else memory.descent_direction(gradient)
        slope = _dot(gradient, step)
        if not slope < 0:  # no descent direction: forget the memory
            memory, step, slope = None, -gradient, -_dot(gradient, gradient)
        search = _line_search(f, x, value, step, slope)
        evaluations += search.evaluations
        if search.length == 0:
            break  # f falls nowhere along the step
        movement, change = search.length * step, search.gradient - gradient
        if _dot(change, movement) > 1e-10 * _dot(change, change):  # positive curvature
            memory = LBFGSMemory.append_pair(movement, change, memory)
        x, value, gradient = x + movement, search.value, search.gradient
    derivatives = (torch.from_numpy(gradient),)
    return Minimum(torch.from_numpy(x), value, float(np.abs(gradient).max()), evaluations, derivatives, memory)


@dataclass(frozen=True, eq=False)
class _LineSearchResult:
    """The end of a search along a line."""

    length: float  # in steps, 0 if f falls nowhere
    value: float
    gradient: np.ndarray
    evaluations: int


def _line_search(
    f: Callable[[Tensor], tuple[float, Tensor]], x: np.ndarray, value: float, step: np.ndarray, slope: float
) -> _LineSearchResult:
    """Find a length of the step that fulfills Wolfe's conditions; the whole step is tried first.

    Args:
        f: Returns value and gradient.
        x: Start of the line.
        value: Value of f at x.
        step: Direction and first length.
        slope: Product of the gradient at x and the step, below 0.
    """
    length, shortest, longest, evaluations = 1.0, 0.0, math.inf, 0
    while length > 1e-12 and evaluations < 100:
        new_value, gradient = _evaluate(f, x + length * step)
        evaluations += 1
        if not new_value <= value + 1e-4 * length * slope + 1e-14 * (1 + abs(value)):
            longest, curvature = length, new_value - value - length * slope
            minimizer = -slope * length**2 / (2 * curvature) if curvature < math.inf else 0.0
            length = min(max(minimizer, shortest + 0.1 * (longest - shortest)), (shortest + longest) / 2)
        elif _dot(gradient, step) < 0.9 * slope:
            shortest, length = length, min(4 * length, (length + longest) / 2)
        else:
            return _LineSearchResult(length, new_value, gradient, evaluations)
    return _LineSearchResult(0.0, value, step, evaluations)


def _matvec(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Return a matrix times a vector, by torch, whose threads `thread_limit` controls; numpy would use all cores."""
    return (torch.from_numpy(matrix) @ torch.from_numpy(vector)).numpy()


def _dot(first: np.ndarray, second: np.ndarray) -> float:
    """Return the product of two vectors, by torch for the same reason."""
    return float(torch.dot(torch.from_numpy(first), torch.from_numpy(second)))


def _evaluate(f: Callable[[Tensor], tuple[float, Tensor]], x: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the value and gradient of a function of tensors at a numpy vector."""
    value, gradient = f(torch.from_numpy(x))
    return value, gradient.numpy()
