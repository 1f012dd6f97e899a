"""Which epoch to keep: refine, then calibrate."""

from collections.abc import Iterable

import torch

from calibrant.calibrators import Temperature
from calibrant.metrics import brier, metric, nll
from calibrant.predictions import Predictions
from calibrant.predictions.folds import map_out_of_fold, num_units
from calibrant.types import Count, InputError, Scalar

__all__ = ["refine_then_calibrate", "refinement_brier", "refinement_nll"]


@metric(
    "NLL after temperature scaling",
    unit="nats",
    short="refinement NLL",
    meaning="NLL that is left when a temperature, fitted on other folds, has put calibration right; lower is better",
    takes="predictions",
)
def refinement_nll(p: Predictions, *, folds: Count = 5) -> Scalar:
    r"""NLL after temperature scaling, cross-fitted: what is left when calibration is put right (Berta et al. 2025).

    They stop training where this is least, not where the NLL is: late in training a network still refines what it knows
    while its NLL rises, because its confidence runs away, and that a temperature repairs. Blind to the scale of the
    logits. Each fold is scaled by the temperature of the others; with `folds=1` all by their own,
    $\min_T$ NLL$(z / T)$, which is never above the NLL. Equal examples share a fold. A few passes over the predictions.

    >>> z, y = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0, 0, 1])
    >>> refinement_nll(z, y, folds=1)  # at T = 2 / log 3 the confidence is the accuracy, 3/4: its entropy is left
    tensor(0.5623, dtype=torch.float64)
    """
    return nll(_scale_cross_fitted(p, folds))


@metric(
    "Brier score after temperature scaling",
    short="refinement Brier",
    meaning="Brier score that is left when a temperature, fitted on other folds, has put calibration right",
    takes="predictions",
)
def refinement_brier(p: Predictions, *, folds: Count = 5) -> Scalar:
    """Brier score after temperature scaling by NLL, cross-fitted as in `refinement_nll` (Berta et al. 2025).

    >>> z, y = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0, 0, 1])
    >>> refinement_brier(z, y, folds=1)  # 3/4 (1/16 + 1/16) + 1/4 (9/16 + 9/16)
    tensor(0.3750, dtype=torch.float64)
    """
    return brier(_scale_cross_fitted(p, folds))


def _scale_cross_fitted(p: Predictions, folds: int) -> Predictions:
    """Scale every example by a temperature that was fitted on other folds, or with one fold on all."""
    p = _merge_equal_examples(p.double())
    folds = min(folds, num_units(p))
    return p.apply(Temperature.fit(p)) if folds == 1 else map_out_of_fold(Temperature.fit, p, folds=folds)


def _merge_equal_examples(p: Predictions) -> Predictions:
    """Return equal examples as one with a weight, as good as copies; those in clusters stay as they are."""
    if p.clusters is not None:
        return p
    weights = torch.ones_like(p.labels, dtype=torch.float64) if p.weights is None else p.weights
    keys = torch.cat([p.logits, p.labels[:, None].double()], 1)[weights > 0]
    unique_rows, row_index = keys.unique(dim=0, return_inverse=True)
    merged_weights = torch.zeros(len(unique_rows), dtype=torch.float64, device=keys.device).index_add_(
        0, row_index, weights[weights > 0]
    )
    return Predictions(unique_rows[:, :-1], unique_rows[:, -1].long(), merged_weights)


def refine_then_calibrate(epochs: Iterable[Predictions]) -> tuple[int, Temperature]:
    """Pick the epoch whose validation predictions have the least NLL after temperature, and that temperature.

    The first of equals. Takes any iterable, such as a generator over saved epochs; inside a training loop compare
    `refinement_nll` epoch by epoch and keep the best weights.

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
        raise InputError("no epochs to choose from: the iterable was empty", code="no_epochs")
    return best[1], Temperature.fit(best[2])
