"""Select the epoch of a training run by its loss after calibration."""

from collections.abc import Iterable

import numpy as np

from calibrant._core.arrays import like, to_numpy
from calibrant._core.types import Count, InputError
from calibrant.calibrators import Temperature
from calibrant.metrics import brier, metric, nll
from calibrant.predictions import Predictions
from calibrant.predictions.folds import map_out_of_fold, num_units

__all__ = ["refine_then_calibrate", "refinement_brier", "refinement_nll"]


@metric(
    "NLL after temperature scaling",
    unit="nats",
    short="refinement NLL",
    meaning="NLL after calibration by a temperature that was fitted on other folds; lower is better",
    revision=2,
)
def refinement_nll(p: Predictions, *, folds: Count = 5) -> float:
    r"""Compute the NLL after temperature scaling, cross-fitted (Berta et al. 2025).

    Late in training, a network still separates the classes better while its NLL rises from overconfidence, which a
    temperature repairs: stop training at the minimum of this metric. It does not depend on the scale of the logits.

    Args:
        p: Predictions; equal samples share a fold.
        folds: Each fold is scaled by the temperature of the other folds. With 1, all samples are scaled by their own
            temperature, $\min_T$ NLL$(z / T)$, which is never above the NLL.

    >>> z, y = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0, 0, 1])
    >>> round(refinement_nll(z, y, folds=1), 4)  # T = 2 / log 3: the confidence is 3/4, as the accuracy
    0.5623
    """
    return nll(_scale_cross_fitted(p, folds))


@metric(
    "Brier score after temperature scaling",
    short="refinement Brier",
    meaning="Brier score after calibration by a temperature that was fitted on other folds; lower is better",
    revision=2,
)
def refinement_brier(p: Predictions, *, folds: Count = 5) -> float:
    """Compute the Brier score after temperature scaling by NLL, as in `refinement_nll` (Berta et al. 2025).

    >>> z, y = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0, 0, 1])
    >>> refinement_brier(z, y, folds=1)  # 3/4 (1/16 + 1/16) + 1/4 (9/16 + 9/16)
    0.375
    """
    return brier(_scale_cross_fitted(p, folds))


def _scale_cross_fitted(p: Predictions, folds: int) -> Predictions:
    """Scale each fold by the temperature of the other folds, or all samples by one temperature if folds = 1."""
    p = _merge_equal_examples(p.double())
    folds = min(folds, num_units(p))
    return p.apply(Temperature.fit(p)) if folds == 1 else map_out_of_fold(Temperature.fit, p, folds=folds)


def _merge_equal_examples(p: Predictions) -> Predictions:
    """Merge equal examples, whose weights are added, so that they share a fold, and drop weights of 0.

    They are in the order of their first copies, which does not depend on the order of the classes. With clusters,
    return the predictions unchanged: equal examples may belong to different clusters.
    """
    if p.clusters is not None:
        return p
    weights = np.ones(len(p)) if p.weights is None else p.weights
    counted = weights > 0
    rows = np.column_stack([to_numpy(p.logits), p.labels])[counted]  # logits and label
    unique_rows, first, row_index = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    merged_weights, order = np.bincount(row_index.ravel(), weights[counted]), first.argsort()
    logits, labels = unique_rows[order, :-1], unique_rows[order, -1].astype(np.int64)
    return Predictions(like(logits, p.logits), labels, merged_weights[order])


def refine_then_calibrate(epochs: Iterable[Predictions]) -> tuple[int, Temperature]:
    """Return the first epoch with the lowest `refinement_nll`, and its temperature.

    Inside a training loop, compare `refinement_nll` after each epoch instead, and keep the best weights.

    Args:
        epochs: Validation predictions of each epoch; a generator is read once.

    >>> z = torch.tensor([[3.0, 0.0], [3.0, 0.0], [3.0, 0.0], [3.0, 0.0]])
    >>> refine_then_calibrate([Predictions(z, [0, 0, 1, 1]), Predictions(z, [0, 0, 0, 1])])[0]
    1
    """
    best: tuple[float, int, Predictions] | None = None
    for epoch, val in enumerate(epochs):
        value = float(refinement_nll(val, folds=1))
        if best is None or value < best[0]:
            best = value, epoch, val
    if best is None:
        raise InputError("Expected the predictions of at least one epoch, got an empty iterable.", code="no_epochs")
    _, epoch, val = best
    return epoch, Temperature.fit(val)
