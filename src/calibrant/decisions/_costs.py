"""Actions of least expected cost, their realized costs, and the net benefit of acting above a threshold."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant._core.kernels.bins import allow_rounding
from calibrant._core.types import InputError, OpenFraction, check_arguments
from calibrant.metrics import Interval, Sample, ScoreRange
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.events import evaluated_event
from calibrant.predictions.validation.arrays import check_logits, to_tensor

DEFAULT_THRESHOLDS = tuple(i / 100 for i in range(1, 100))


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


@dataclass(frozen=True, eq=False)
class NetBenefit:
    """Net benefit per example of acting at or above each threshold, in units of a true positive."""

    threshold: Tensor  # (t)
    model: Tensor  # (t)
    low: Tensor  # (t) limits at every threshold by itself
    high: Tensor  # (t)
    treat_all: Tensor  # (t) net benefit of acting on all examples; acting on none has 0
    event: str = ""  # whose probability is compared with the thresholds, such as "the class is “sick”"


def choose_actions(predictions: Any, costs: Any) -> Tensor:
    """Return the action of least expected cost for each example (n). Ties go to the first action.

    Args:
        predictions: Predictions, or logits (n, k).
        costs: Cost of each action in each class (k, actions); benefits are negative costs. For two classes and the
            actions "wait" and "treat": [[0, cost of a false alarm], [cost of a miss, cost of treating in time]].

    Raises:
        InputError: If the logits have another shape, NaN or infinity, or are probabilities, or the costs are not
            finite numbers.

    >>> z = torch.tensor([[0.0, -3.0], [0.0, 0.0]])  # probabilities .05 and .5 of the disease
    >>> choose_actions(z, [[0, 1], [9, 1]])  # treat from .1 on
    tensor([0, 1])
    """
    logits = predictions.logits if isinstance(predictions, Predictions) else to_tensor(predictions, "logits")
    if logits.ndim != 2:
        raise InputError(f"Expected logits (n, k), got {tuple(logits.shape)}.", code="shape")
    check_logits(logits.double())
    costs = _cost_matrix(costs, logits.shape[1]).to(logits.device)
    return (logits.double().softmax(1) @ costs).argmin(1)


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
        expected = p.logits.double().softmax(1) @ matrix.to(p.logits.device)  # cost of each action (n, actions)
        actions = expected.argmin(1)
        realized = matrix.to(p.labels.device)[p.labels]  # (n, actions)
        model = realized.gather(1, actions[:, None]).squeeze(1)  # cost of the action of the model
        w = torch.ones_like(model) if p.weights is None else p.weights.double()
        best_fixed = int((w @ realized).argmin())

        def mean_interval(values: Tensor, possible: Tensor) -> Interval:
            """Return the mean of costs (n) with its interval, within the range of all possible costs."""
            low, high = float(possible.min()), float(possible.max())
            if low == high:  # no interval has a range of width 0
                return Interval(low, low, low, level)
            sample = Sample.from_values(values, p.weights, p.clusters, p.examples)
            return sample.bounded_interval(ScoreRange(low, high), level)

        lowest = matrix.amin(1)  # cost of the best action in each class
        return CostTable(
            model=mean_interval(model, matrix),
            fixed=tuple(map(mean_interval, realized.T, matrix.T)),
            perfect=mean_interval(lowest.to(p.labels.device)[p.labels], lowest),
            stated=float((w * expected.amin(1)).sum() / w.sum()),
            # possible: how much less each action costs than the fixed one, in each class
            saving=mean_interval(realized[:, best_fixed] - model, matrix[:, best_fixed, None] - matrix),
            best_fixed=best_fixed,
            action_shares=tuple((torch.bincount(actions, w, minlength=matrix.shape[1]) / w.sum()).tolist()),
        )


@check_arguments
def net_benefit(
    predictions: Predictions,
    *,
    thresholds: Any = DEFAULT_THRESHOLDS,
    of: str | int | None = None,
    level: OpenFraction = 0.90,
) -> NetBenefit:
    r"""Return the net benefit, $TP / n - FP / n \cdot t / (1 - t)$, at every threshold t (Vickers & Elkin 2006).

    The threshold is the probability at which acting and waiting are worth the same: at .1, a false alarm costs a ninth
    of what a true positive gains.

    Args:
        predictions: Labeled predictions.
        thresholds: Thresholds in (0, 1), (t), or one.
        of: Event; by default the positive one of two classes, or that the predicted class is right.
        level: Level of the interval at each threshold.

    >>> p = Predictions.from_probs([0.9, 0.2], [1, 0])
    >>> net_benefit(p, thresholds=[0.5, 0.1]).model
    tensor([0.5000, 0.4444], dtype=torch.float64)
    """
    cuts = to_tensor(thresholds, "thresholds").double().cpu()
    if cuts.ndim != 1 or not len(cuts) or not bool(((cuts > 0) & (cuts < 1)).all()):
        raise InputError("Expected thresholds in (0, 1). Try [0.1, 0.2, 0.5].", code="threshold_range")
    with as_predictions(predictions) as predicted:
        p = predicted.with_default_event(of)
        confidence, outcome = p.events.confidence.double(), p.events.outcome.double()
        curves = list[tuple[float, float, float, float]]()  # model, low, high, treat_all at each threshold
        for t in cuts.tolist():
            odds = t / (1 - t)  # cost of a false positive
            gain = outcome - odds * (1 - outcome)  # of acting on each example
            model_gain = torch.where(confidence >= allow_rounding(t), gain, 0.0)  # acts at t itself too
            sample = Sample.from_values(model_gain, p.weights, p.clusters, p.examples)
            interval = sample.bounded_interval(ScoreRange(-odds, 1.0), level)
            treat_all = Sample.from_values(gain, p.weights, p.clusters, p.examples).mean
            curves.append((interval.value, interval.low, interval.high, treat_all))
    model, low, high, treat_all = torch.tensor(curves, dtype=torch.float64).T
    event = evaluated_event(p).title
    return NetBenefit(cuts, model=model, low=low, high=high, treat_all=treat_all, event=event)


def _cost_matrix(costs: Any, k: int) -> Tensor:
    """Return the costs in float64 (k, actions). Raise `InputError` for other shapes, texts, NaN and infinity."""
    try:
        matrix = torch.as_tensor(costs, dtype=torch.float64)
    except (TypeError, ValueError):  # texts, or rows of different lengths
        matrix = torch.empty(0)
    if matrix.ndim != 2 or len(matrix) != k or matrix.shape[1] == 0 or not bool(matrix.isfinite().all()):
        raise InputError(
            f"Expected a finite cost of each action in each of {k} classes, ({k}, actions), got shape "
            f"{tuple(matrix.shape)}.",
            code="costs",
        )
    return matrix
