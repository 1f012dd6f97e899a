"""Which epoch to keep: refine, then calibrate."""

from collections.abc import Iterable
from typing import Any

from calibrant.calibrators import Temperature
from calibrant.metrics import nll
from calibrant.predictions import Predictions, predictions_of
from calibrant.types import InputError, Scalar

__all__ = ["refine_then_calibrate", "refinement_nll"]


def refinement_nll(predictions: Any, labels: Any = None, weights: Any = None) -> Scalar:
    r"""Validation NLL after temperature scaling, $\min_T$ NLL$(z / T)$: what is left when calibration is put right.

    Berta et al. (2025) stop training where this is least, not where the NLL is: late in training a network still
    refines what it knows while its NLL rises, because its confidence runs away, and that a temperature repairs.
    Never above the NLL, and blind to the scale of the logits. A few passes over the predictions.

    >>> z, y = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 0, 0, 1])
    >>> refinement_nll(z, y)  # at T = 2 / log 3 the confidence is the accuracy, 3/4: its entropy is left
    tensor(0.5623, dtype=torch.float64)
    """
    p = predictions_of(predictions, labels, weights).double()
    return nll(p.mapped(Temperature.fit(p)))


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
        value = float(refinement_nll(val))
        if best is None or value < best[0]:
            best = value, epoch, val
    if best is None:
        raise InputError("no epochs to choose from: the iterable was empty")
    return best[1], Temperature.fit(best[2])
