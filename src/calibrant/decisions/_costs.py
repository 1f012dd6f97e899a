"""Actions of least expected cost, and their realized costs."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant._core.arrays import like, to_numpy
from calibrant._core.kernels.softmax import probabilities
from calibrant._core.types import InputError, OpenFraction, check_arguments
from calibrant.metrics import Interval, Sample, ScoreRange
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.validation.arrays import check_logits, to_array


@dataclass(frozen=True)
class CostTable:
    """Mean costs per example of acting on the probabilities, and of simpler policies."""

    model: Interval  # of the action of least expected cost
    fixed: tuple[Interval, ...]  # of always taking the same action
    perfect: Interval  # of the best action if the class were known
    stated: float  # mean cost that the probabilities promise
    saving: Interval  # of the model, below the fixed action of least mean cost
    best_fixed: int
    action_shares: tuple[float, ...]


def choose_actions(predictions: Any, costs: Any) -> np.ndarray:
    """Return the action of least expected cost for each example (n). Ties go to the first action.

    Args:
        predictions: Predictions, or logits (n, k).
        costs: Cost of each action in each class (k, actions); benefits are negative costs. For two classes and the
            actions "wait" and "treat": [[0, cost of a false alarm], [cost of a miss, cost of treating in time]].

    Raises:
        InputError: If the logits have another shape, NaN or infinity, or are probabilities, or the costs are not
            finite numbers.

    >>> z = np.array([[0.0, -3.0], [0.0, 0.0]])  # probabilities .05 and .5 of the disease
    >>> choose_actions(z, [[0, 1], [9, 1]])  # treat from .1 on
    array([0, 1])
    """
    logits = predictions.logits if isinstance(predictions, Predictions) else to_array(predictions, "logits")
    if logits.ndim != 2:
        raise InputError(f"Expected logits (n, k), got {tuple(logits.shape)}.", code="shape")
    check_logits(logits)
    return _expected_costs(logits, _cost_matrix(costs, logits.shape[1])).argmin(1)


@check_arguments
def expected_costs(predictions: Predictions, costs: Any, *, level: OpenFraction = 0.90) -> CostTable:
    """Return the realized cost per example of choosing the least expected cost, and of simpler policies.

    Args:
        predictions: Labeled predictions.
        costs: Cost of each action in each class (k, actions).
        level: Level of the intervals.

    Raises:
        InputError: If the costs are not finite numbers for every class.
    """
    with as_predictions(predictions) as p:
        matrix = _cost_matrix(costs, p.k)
        expected = _expected_costs(p.logits, matrix)
        actions = expected.argmin(1)
        realized = matrix[p.labels]  # (n, actions)
        model = realized[np.arange(len(p)), actions]  # cost of the action of the model
        w = np.ones(len(p)) if p.weights is None else p.weights
        best_fixed = int((w @ realized).argmin())

        def mean_interval(values: np.ndarray, possible: np.ndarray) -> Interval:
            """Return the mean of costs (n) with its interval, within the range of all possible costs."""
            low, high = float(possible.min()), float(possible.max())
            if low == high:  # no interval has a range of width 0
                return Interval(low, low, low, level)
            sample = Sample.from_values(values, p.weights, p.clusters, p.examples)
            return sample.bounded_interval(ScoreRange(low, high), level)

        lowest = matrix.min(1)  # cost of the best action in each class
        return CostTable(
            model=mean_interval(model, matrix),
            fixed=tuple(map(mean_interval, realized.T, matrix.T)),
            perfect=mean_interval(lowest[p.labels], lowest),
            stated=float((w * expected.min(1)).sum() / w.sum()),
            # possible: how much less each action costs than the fixed one, in each class
            saving=mean_interval(realized[:, best_fixed] - model, matrix[:, best_fixed, None] - matrix),
            best_fixed=best_fixed,
            action_shares=tuple((np.bincount(actions, w, minlength=matrix.shape[1]) / w.sum()).tolist()),
        )


def _expected_costs(logits: Any, matrix: np.ndarray) -> np.ndarray:
    """Return the expected cost of each action (n, actions)."""
    probs = probabilities(logits)
    return to_numpy(probs @ like(matrix, probs))


def _cost_matrix(costs: Any, k: int) -> np.ndarray:
    """Return the costs in float64 (k, actions). Raise `InputError` for other shapes, texts, NaN and infinity."""
    try:
        matrix = to_numpy(costs).astype(float)
    except (TypeError, ValueError):  # texts, or rows of different lengths
        matrix = np.zeros((0, 0))
    if matrix.ndim != 2 or len(matrix) != k or matrix.shape[1] == 0 or not np.isfinite(matrix).all():
        raise InputError(
            f"Expected a finite cost of each action in each of {k} classes, ({k}, actions), got shape "
            f"{tuple(matrix.shape)}.",
            code="costs",
        )
    return matrix
