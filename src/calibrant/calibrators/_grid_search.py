r"""Find the minimum of a metric over a grid of temperatures, or of (gamma, T), exactly as a loop over the grid would.

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
from functools import partial

import torch
from torch import Tensor

from calibrant import registry, theory
from calibrant.backend.solvers import first_minimum, map_row_chunks
from calibrant.calibrators._fitting import example_mean
from calibrant.predictions import Predictions

BOUND_ROUNDING = 1e-9  # by which rounding may lift a bound above the value that it bounds
MIN_MONOTONE_GAMMA = -0.75  # log(p_top / p_y) need not fall with T below
BoundParts = Callable[[Predictions, float], tuple[float, float]]  # (predictions, value) -> parts that fall, rise with T


@dataclass(frozen=True)
class GridMinimum:
    """The grid point with the least value of a metric."""

    gamma: float
    temperature: float
    value: float


def search_points(p: Predictions, criterion: str, points: Sequence[tuple[float, float]]) -> GridMinimum:
    """Return the first strict minimum over points (gamma, T), in their order."""
    metric, p = registry.METRICS.method(criterion), p.double()
    (gamma, t), value = first_minimum(lambda point: float(metric(_apply_point(p, *point))), points)
    return GridMinimum(gamma, t, value)


def search_grid(p: Predictions, criterion: str, gammas: Sequence[float], ts: Sequence[float]) -> GridMinimum:
    """Return the first strict minimum over a grid, gamma by gamma and in the order of the temperatures.

    Always takes the interval with the lowest bound and evaluates its middle, until all bounds lie above the minimum.
    """
    points = [(gamma, t) for gamma in gammas for t in ts]
    metric, p = registry.METRICS.method(criterion), p.double()
    parts = _bound_parts(metric, p)
    if parts is None or min(gammas) < MIN_MONOTONE_GAMMA:
        return search_points(p, criterion, points)
    combine = max if parts is _gap_parts else sum
    order = sorted(range(len(ts)), key=ts.__getitem__)
    values: dict[int, float] = {}  # by index into the points
    ends: dict[tuple[int, int], tuple[float, float]] = {}  # by gamma and rank of the temperature

    def evaluate(row: int, rank: int) -> None:
        index = row * len(ts) + order[rank]
        q = _apply_point(p, *points[index])
        values[index] = float(metric(q))
        ends[row, rank] = parts(q, values[index])

    def interval(row: int, left: int, right: int) -> tuple[float, int, int, int]:
        return combine((ends[row, right][0], ends[row, left][1])), row, left, right

    last = len(ts) - 1
    for row in range(len(gammas)):
        evaluate(row, 0)
        evaluate(row, last)
    lowest = min(values.values())
    queue = [interval(row, 0, last) for row in range(len(gammas))]
    heapq.heapify(queue)
    while queue:
        bound, row, left, right = heapq.heappop(queue)
        if bound > lowest + BOUND_ROUNDING:
            break
        if right - left > 1:
            middle = (left + right) // 2
            evaluate(row, middle)
            lowest = min(lowest, values[row * len(ts) + order[middle]])
            heapq.heappush(queue, interval(row, left, middle))
            heapq.heappush(queue, interval(row, middle, right))
    index, value = first_minimum(values.__getitem__, sorted(values))
    return GridMinimum(*points[index], value)


def _apply_point(p: Predictions, gamma: float, t: float) -> Predictions:
    if not gamma:
        return p.apply(lambda z: z / t)
    return p.apply(lambda z: torch.cat(map_row_chunks(partial(_focal_map, gamma, t), z)))


def _focal_map(gamma: float, t: float, z: Tensor) -> Tensor:
    return theory.focal_map(z / t, gamma=gamma)


def _bound_parts(metric: registry.Method, p: Predictions) -> BoundParts | None:
    """Return how a metric is bounded, None if it is evaluated everywhere."""
    settings = registry.hyperparameters(metric.function) | metric.settings
    if metric.canonical == "nll(among='all')":
        return _nll_parts
    # Mukhoti's edges leave out all examples that tie with the lowest confidence
    is_binned = metric.name in ("ece", "adaptive_ece") and settings["edges"] != "mukhoti"
    return _gap_parts if is_binned and p.of == "top" else None


def _gap_parts(p: Predictions, _: float) -> tuple[float, float]:
    gap = float(example_mean(p.events.confidence - p.events.outcome, p))
    return gap, -gap


def _nll_parts(p: Predictions, value: float) -> tuple[float, float]:
    rising = -float(example_mean(p.outcomes.confidence.log(), p))
    return (value - rising if value < math.inf else math.inf), rising
