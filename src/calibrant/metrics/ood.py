"""Out-of-distribution detection: how well a score of the logits separates familiar inputs from others.

Scores are larger for familiar inputs, which are the positive class. Pass logits before or after any calibrator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant._core.arrays import call_with_arrays, namespace, to_numpy
from calibrant._core.kernels.bins import GroupedScores
from calibrant._core.kernels.softmax import entropies, log_sum_exp
from calibrant._core.registry import OOD_SCORES
from calibrant._core.types import InputError, Logits, PerExample, PositiveFloat
from calibrant.metrics._intervals import Curve
from calibrant.metrics._metric import MetricInfo
from calibrant.metrics._ranking import auroc_of
from calibrant.predictions import Predictions
from calibrant.predictions.validation.arrays import to_array

__all__ = ["OOD_INFO", "Detection", "detection", "energy", "entropy", "max_logit", "max_probability", "register"]

register = OOD_SCORES.register

OOD_INFO = {  # words for the fields of a `Detection`, as studies name them
    "ood_auroc": MetricInfo("OOD AUROC", "share", True),
    "ood_aupr_in": MetricInfo("OOD AUPR, in-distribution positive", "share", True),
    "ood_aupr_out": MetricInfo("OOD AUPR, out-of-distribution positive", "share", True),
    "ood_fpr95": MetricInfo("OOD false positive rate at 95 % recall", "share", False),
}


@dataclass(frozen=True)
class Detection:
    """How well a score separates inside from outside examples."""

    auroc: float  # probability that an inside example scores above an outside one, ties counting half
    aupr_in: float  # average precision with inside as the positive class
    aupr_out: float  # average precision with outside as the positive class
    fpr95: float  # share of outside examples at or above the threshold that 95 % of the inside ones reach


def _to_float64(logits: Any) -> tuple[Any, Any]:
    """Return logits (n k) in float64, and the functions for arrays of their library."""
    z = to_array(logits, "logits")
    xp = namespace(z)
    return xp.astype(z, xp.float64), xp


@OOD_SCORES.register
def max_probability(logits: Logits) -> PerExample:
    """Return the largest log-probability (Hendrycks & Gimpel 2017).

    It orders as the probability does, without saturating.

    >>> max_probability(np.zeros((1, 2)))
    array([-0.69314718])
    """
    z, xp = _to_float64(logits)
    return to_numpy(xp.max(z, axis=-1) - log_sum_exp(z))


@OOD_SCORES.register
def entropy(logits: Logits) -> PerExample:
    """Return the negative entropy of the predicted distribution.

    >>> entropy(np.zeros((1, 2)))
    array([-0.69314718])
    """
    return -entropies(to_array(logits, "logits"))


@OOD_SCORES.register
def max_logit(logits: Logits) -> PerExample:
    """Return the largest logit (Hendrycks et al. 2022).

    >>> max_logit(np.array([[1.0, 3.0]]))
    array([3.])
    """
    z, xp = _to_float64(logits)
    return to_numpy(xp.max(z, axis=-1))


@OOD_SCORES.register
def energy(logits: Logits, *, temperature: PositiveFloat = 1.0) -> PerExample:
    r"""Return the negative free energy, $T \log \sum_j e^{z_j / T}$ (Liu et al. 2020, eq. 4).

    >>> energy(np.zeros((1, 2)))
    array([0.69314718])
    """
    return to_numpy(temperature * log_sum_exp(_to_float64(logits)[0] / temperature))


def detection(
    inside: Predictions | Any,
    outside: Predictions | Any,
    *,
    score: Callable[[Any], Any] = max_probability,
) -> Detection:
    """Return AUROC, AUPR both ways, and the false positive rate at 95 % true positives (Hendrycks & Gimpel 2017).

    Args:
        inside: Familiar examples, as predictions or logits.
        outside: Foreign examples.
        score: Function of logits, larger for familiar inputs. Tied scores are accepted or rejected together.

    >>> detection(np.array([[0.0, 4.0], [0.0, 2.0]]), np.array([[0.0, 1.0], [0.0, 3.0]]))
    Detection(auroc=0.75, aupr_in=0.8333333333333333, aupr_out=0.8333333333333333, fpr95=0.5)
    """
    passing_in, passing_out, by_score = _pass_rates(inside, outside, score)
    outside_mass = by_score.total_weight - by_score.correct  # number of outside examples at each score
    # index of the highest score that 95 % of the inside examples reach, up to rounding
    threshold = int((passing_in >= 0.95 - 1e-12).argmax())
    return Detection(
        auroc=float(auroc_of(by_score)),
        aupr_in=float(_average_precision(np.flip(by_score.correct, 0), np.flip(outside_mass, 0))),
        aupr_out=float(_average_precision(outside_mass, by_score.correct)),  # the lowest score is the most foreign
        fpr95=float(passing_out[threshold]),
    )


def roc(
    inside: Predictions | Any,
    outside: Predictions | Any,
    *,
    score: Callable[[Any], Any] = max_probability,
) -> Curve:
    """Return the ROC curve: the shares of inside (y) and outside (x) examples that score above a threshold.

    >>> curve = roc(np.array([[0.0, 4.0], [0.0, 2.0]]), np.array([[0.0, 1.0], [0.0, 3.0]]))
    >>> curve.x.tolist(), curve.y.tolist()
    ([0.0, 0.0, 0.5, 0.5, 1.0], [0.0, 0.5, 0.5, 1.0, 1.0])
    """
    passing_in, passing_out, _ = _pass_rates(inside, outside, score)
    zero = np.zeros(1)
    return Curve(np.concatenate([zero, passing_out]), np.concatenate([zero, passing_in]))


def _pass_rates(
    inside: Predictions | Any, outside: Predictions | Any, score: Callable[[Any], Any]
) -> tuple[np.ndarray, np.ndarray, GroupedScores]:
    """Return the shares of inside and of outside examples at or above each score, from the highest score down (g).

    The third result holds the g distinct scores in increasing order, with the inside examples as `correct`.
    """
    logits = (p.logits if isinstance(p, Predictions) else to_array(p, "logits") for p in (inside, outside))
    scores = [to_numpy(call_with_arrays(score, z)) for z in logits]
    if not all(len(s) and bool((~np.isnan(s)).all()) for s in scores):
        raise InputError(
            "Expected at least one example inside and one outside, and scores that are not NaN.", code="one_sided"
        )
    value = np.concatenate(scores)
    is_inside = np.concatenate([np.ones_like(scores[0]), np.zeros_like(scores[1])])
    by_score = GroupedScores.from_scores(value, is_inside)
    passing_in = np.flip(by_score.correct, 0).cumsum(0) / by_score.correct.sum()
    outside_mass = by_score.total_weight - by_score.correct
    return passing_in, np.flip(outside_mass, 0).cumsum(0) / outside_mass.sum(), by_score


def _average_precision(positive: np.ndarray, negative: np.ndarray) -> float:
    """Return the average precision: the mean, over the positives, of the precision among all examples ranked as high.

    `positive` and `negative` are numbers of examples at each distinct score, best score first.
    """
    true_positives = positive.cumsum(0)
    return (positive * true_positives / (true_positives + negative.cumsum(0))).sum() / true_positives[-1]
