"""Wrong predictions, the most confident first."""

from dataclasses import dataclass

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant.predictions import Predictions

MAX_MISTAKES = 20


@dataclass(frozen=True)
class Mistake:
    """A wrong prediction."""

    row: int  # index in the evaluation data
    label: int
    predicted: int
    probability: float  # of the predicted class
    calibrated_probability: float  # of the same class, after the selected calibrator


def most_confident_errors(p: Predictions, limit: int = MAX_MISTAKES) -> np.ndarray:
    """Return the rows of at most `limit` wrong predictions, by decreasing confidence and then by decreasing loss."""
    outcomes = p.outcomes
    is_wrong = outcomes.correct == 0
    if p.examples is not None:  # an example with a soft label has a row per class, and is partly right
        is_wrong &= np.bincount(p.examples)[p.examples] == 1
    wrong = np.flatnonzero(is_wrong)
    loss, confidence = -outcomes.log_likelihood[wrong], outcomes.confidence[wrong]
    order = np.lexsort((-loss, -confidence))[:limit]  # the last key counts first
    return wrong[order]


def mistakes_by_class(p: Predictions, classes: list[int], limit: int) -> dict[int, tuple[Mistake, ...]]:
    """Return, for each of `classes`, the `limit` most confident errors in which it is the label or the prediction."""
    rows = most_confident_errors(p, len(p))  # all of them
    labels, predicted, confidence = p.labels[rows], p.predicted[rows], p.outcomes.confidence[rows]
    calibrated_confidence = confidence  # nothing is calibrated here
    columns = _example_index(p, rows), labels, predicted, confidence, calibrated_confidence
    mistakes: dict[int, tuple[Mistake, ...]] = {}
    for j in classes:
        involved = np.flatnonzero((labels == j) | (predicted == j))[:limit]
        mistakes[j] = _mistakes_from_columns(*(column[involved] for column in columns))
    return mistakes


def describe_mistakes(uncalibrated: Predictions, calibrated: Predictions, rows: np.ndarray) -> tuple[Mistake, ...]:
    """Return the wrong predictions in `rows`, with the probability of the class that is predicted before calibration.

    Args:
        uncalibrated: Predictions before calibration.
        calibrated: The same predictions after calibration.
        rows: Indices of the wrong predictions.
    """
    if not len(rows):
        return ()
    predicted = uncalibrated[rows].predicted
    z = to_numpy(calibrated[rows].double().logits)
    # p_predicted = p_max exp(z_predicted - z_max): exactly the calibrated confidence if both predict the same class
    ratio = np.exp(np.take_along_axis(z, predicted[:, None], 1)[:, 0] - z.max(1))
    calibrated_probability = calibrated.outcomes.confidence[rows] * ratio
    confidence = uncalibrated.outcomes.confidence[rows]
    columns = uncalibrated.labels[rows], predicted, confidence, calibrated_probability
    return _mistakes_from_columns(_example_index(uncalibrated, rows), *columns)


def _example_index(p: Predictions, rows: np.ndarray) -> np.ndarray:
    """Return the index of the example that each of some rows is a part of."""
    return rows if p.examples is None else p.examples[rows]


def _mistakes_from_columns(*columns: np.ndarray) -> tuple[Mistake, ...]:
    """Return the mistakes whose fields are given as columns, in the order of the fields of `Mistake`."""
    return tuple(Mistake(*row) for row in zip(*(column.tolist() for column in columns), strict=True))
