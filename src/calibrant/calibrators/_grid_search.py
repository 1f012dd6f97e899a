r"""Minimize a metric over a grid of temperatures, or of (gamma, T), exactly as a loop over the grid would.

Top confidences never rise with T, also after the focal map. A grid point between two evaluated ones therefore has a
lower bound, and most of the grid is never evaluated:

- A binned error is at least |mean confidence - accuracy|, and this gap falls with T.
- The NLL is the mean of -log p_top, which rises with T, and of log(p_top / p_y), which falls.

Other metrics are evaluated everywhere.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrant._core import registry
from calibrant._core.kernels.roots import first_minimum
from calibrant._core.types import Array
from calibrant.calibrators import maps
from calibrant.calibrators._capabilities import in_chunks
from calibrant.metrics import signed_gap
from calibrant.predictions import Predictions

BOUND_ROUNDING = 1e-9  # by which rounding may lift a bound above the value that it bounds
MIN_MONOTONE_GAMMA = -0.75  # log(p_top / p_y) need not fall with T below
BoundParts = Callable[[Predictions, float], tuple[float, float]]  # (predictions at T, metric) -> falling, rising part


@dataclass(frozen=True)
class GridMinimum:
    """The grid point with the least value of a metric."""

    gamma: float
    temperature: float
    value: float


class _Evaluation(NamedTuple):
    """The metric at a grid point, and its parts that fall and rise with T."""

    value: float
    falling: float
    rising: float


def search_points(p: Predictions, criterion: str, points: Sequence[tuple[float, float]]) -> GridMinimum:
    """Return the point (gamma, T) with the smallest value of a metric, the first of equal ones.

    Args:
        p: The predictions that temperature and focal map are applied to.
        criterion: The metric to minimize, such as "ece".
        points: The points to evaluate.
    """
    metric, p = registry.METRICS.method(criterion), p.double()
    (gamma, t), value = first_minimum(lambda point: float(metric(_apply_point(p, *point))), points)
    return GridMinimum(gamma, t, value)


def search_grid(p: Predictions, criterion: str, gammas: Sequence[float], ts: Sequence[float]) -> GridMinimum:
    """Return the grid point with the smallest value, the first of equal ones: gamma by gamma, temperatures as given.

    Branch and bound over intervals of temperatures: in an interval, the part of the metric that falls with T is at
    least that at its right end, and the part that rises at least that at its left end. Always takes the interval with
    the lowest bound and evaluates its middle, until all bounds lie above the lowest value so far.

    Args:
        p: The predictions that temperature and focal map are applied to.
        criterion: The metric to minimize, such as "ece".
        gammas: Gammas of the grid.
        ts: Temperatures of the grid, in any order.
    """
    metric, p = registry.METRICS.method(criterion), p.double()
    bound_parts = _bound_parts(metric, p)
    if bound_parts is None or min(gammas) < MIN_MONOTONE_GAMMA:
        return search_points(p, criterion, [(gamma, t) for gamma in gammas for t in ts])
    parts, combine = bound_parts
    order = sorted(range(len(ts)), key=ts.__getitem__)  # indices of the temperatures, from low to high
    evaluated: dict[tuple[int, int], _Evaluation] = {}  # by index of gamma and rank of the temperature

    def evaluate(i: int, rank: int) -> float:
        """Return the metric at a grid point, and store it with its parts."""
        calibrated = _apply_point(p, gammas[i], ts[order[rank]])
        value = float(metric(calibrated))
        evaluated[i, rank] = _Evaluation(value, *parts(calibrated, value))
        return value

    def interval(i: int, left: int, right: int) -> tuple[float, int, int, int]:
        """Return the lower bound of the metric between two ranks of temperatures, and the interval."""
        return combine((evaluated[i, right].falling, evaluated[i, left].rising)), i, left, right

    last = len(ts) - 1
    lowest = min(evaluate(i, rank) for i in range(len(gammas)) for rank in (0, last))
    queue = [interval(i, 0, last) for i in range(len(gammas))]  # a heap, with the lowest bound first
    heapq.heapify(queue)
    while queue:
        bound, i, left, right = heapq.heappop(queue)
        if bound > lowest + BOUND_ROUNDING:
            break
        if right - left > 1:
            middle = (left + right) // 2
            lowest = min(lowest, evaluate(i, middle))
            heapq.heappush(queue, interval(i, left, middle))
            heapq.heappush(queue, interval(i, middle, right))
    in_given_order = sorted(evaluated, key=lambda point: (point[0], order[point[1]]))  # which decides ties
    (i, rank), value = first_minimum(lambda point: evaluated[point].value, in_given_order)
    return GridMinimum(gammas[i], ts[order[rank]], value)


def _apply_point(p: Predictions, gamma: float, t: float) -> Predictions:
    """Return the predictions after temperature t and the focal map with this gamma, which is the identity at 0."""

    def map_rows(z: Array) -> Array:
        return maps.focal_map(z / t, gamma) if gamma else z / t

    return p.apply(lambda z: in_chunks(map_rows, z))


def _bound_parts(metric: registry.Method, p: Predictions) -> tuple[BoundParts, Callable[..., float]] | None:
    """Return two functions that bound a metric between temperatures, or None if it has no bound.

    The first computes the falling and the rising part of the metric at a temperature. The second combines a falling and
    a rising part to the bound.
    """
    settings = registry.hyperparameters(metric.function) | metric.settings
    if metric.canonical == "nll(among='all')":
        return _nll_parts, sum
    # Mukhoti's edges leave out all examples that tie with the lowest confidence
    is_binned = metric.name in ("ece", "adaptive_ece") and settings["edges"] != "mukhoti"
    # Only the confidence of the top class is sure to fall with T
    return (_gap_parts, max) if is_binned and p.of == "top" else None


def _gap_parts(p: Predictions, _: float) -> tuple[float, float]:
    """Return mean confidence - accuracy and its negative, whose maximum is a lower bound of a binned error."""
    gap = signed_gap(p)
    return gap, -gap


def _nll_parts(p: Predictions, nll: float) -> tuple[float, float]:
    """Return the means of log(p_top / p_y) and of -log p_top, whose sum is the NLL."""
    rising = -float(np.average(np.log(p.outcomes.confidence), weights=p.weights))
    return (nll - rising if nll < math.inf else math.inf), rising
