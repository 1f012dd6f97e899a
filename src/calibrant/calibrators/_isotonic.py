"""Isotonic regression: nondecreasing maps of probabilities without a parametric form."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels import minorant
from calibrant._core.kernels.bins import GroupedScores
from calibrant._core.kernels.dispatch import kernels
from calibrant._core.kernels.roots import Certificate
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import FractionVector, Logits, PositiveFloat, Range, StartIndices
from calibrant.calibrators import maps
from calibrant.calibrators._capabilities import Capabilities, calibrator_call, check_logits
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.calibrators.fields import FittedMap, move_beside
from calibrant.predictions import Predictions

__all__ = ["Isotonic", "SharedIsotonic", "VennAbers"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Isotonic(FittedMap):
    """Isotonic regression of every class against the rest (Zadrozny & Elkan 2002), normalized.

    Each p_j becomes the best nondecreasing fit of 1[y = j], linear between fitted points and constant beyond. Rows are
    then divided by their sum; a row of zeros becomes uniform. Can change the predicted class. Overfits below about
    10,000 examples. Probabilities below `floor` are raised to it, which keeps the NLL finite; floor=0 is the original
    method. Returns log p.
    """

    p: FractionVector  # fitted points of all classes, one class after the other
    value: FractionVector  # fitted values at these points
    start: StartIndices  # (k + 1) int64: index of the first point of each class
    floor: Annotated[float, Range(ge=0, lt=1)] = 0.0
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=lambda fitted: len(fitted.start) - 1, exports=())

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, floor: Annotated[float, Range(ge=0, lt=1)] = 1e-6) -> "Isotonic":
        """Fit one curve for every class by pool-adjacent-violators.

        Args:
            p: Validation predictions.
            floor: Smallest fitted probability before rows are divided by their sum.
        """
        curves = [_fit_curve(p_j, y_j, p.weights) for p_j, y_j in _by_class(p)]
        # Points and fitted values, one class after the other
        x, value = (np.concatenate(part) for part in zip(*curves, strict=True))
        fitted = cls(x, value, _class_starts([len(x_j) for x_j, _ in curves]), floor)
        return Solution(fitted, "closed form", criterion="brier").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return the logarithm of the fitted class probabilities, divided by their sum."""
        return maps.isotonic(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class SharedIsotonic(FittedMap):
    r"""One isotonic curve for all classes, IRM (Zhang, Kailkhura & Han 2020), normalized.

    Fitted to all n k pairs (p_ij, 1[y_i = j]); $\epsilon p$ is added so that the curve is strictly increasing and no
    predicted class changes. With two classes the curve treats both alike, as a temperature does: it cannot correct a
    bias toward one of them. Returns log p.
    """

    p: FractionVector  # fitted points
    value: FractionVector
    epsilon: PositiveFloat = 1e-9
    certificate: Certificate | None = None
    capabilities = Capabilities(preserves_argmax=True, is_differentiable=False, treats_classes_alike=True)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, epsilon: PositiveFloat = 1e-9) -> "SharedIsotonic":
        """Fit one curve to the n k probabilities and whether their classes are the labels (pool-adjacent-violators).

        Args:
            p: Validation predictions.
            epsilon: Slope of the line that is added to the curve.
        """
        probs, y = (np.concatenate(part) for part in zip(*_by_class(p), strict=True))
        weights = None if p.weights is None else np.tile(p.weights, p.k)
        fitted = cls(*_fit_curve(probs, y, weights), epsilon)
        return Solution(fitted, "closed form", criterion="brier").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        return maps.shared_isotonic(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class VennAbers(FittedMap):
    r"""Inductive Venn-Abers predictors (Vovk, Petej & Fedorova 2015), one class against the rest, normalized.

    For every class, the isotonic fit is computed with the new example labeled 0 and again with it labeled 1. One of the
    two results p0 and p1 is calibrated for any distribution. They are merged into $p_1 / (1 - p_0 + p_1)$, which is
    never 0, and rows are divided by their sum. Can change the predicted class. Returns log p; `interval` returns p0 and
    p1.
    """

    p: FractionVector  # distinct probabilities of all classes in the data, one class after the other
    low: FractionVector  # p0 at or above each
    high: FractionVector  # p1 at or below each
    start: StartIndices  # (k + 1) int64: index of the first probability of each class
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=lambda fitted: len(fitted.start) - 1, is_differentiable=False)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions) -> "VennAbers":
        """Compute p0 and p1 for every possible new probability, in one sort and two sweeps per class."""
        return fit_venn_abers(p).with_certificate(p)

    def interval(self, logits: Logits) -> tuple[Logits, Logits]:
        """Return p0 and p1 of every example and class, both (n k). Probabilities that differ by rounding are equal.

        The farther they are apart, the less the data determine the probability.
        """
        check_logits(self, logits)
        return maps.venn_abers_interval(logits, vars(move_beside(self, logits)))

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        return maps.venn_abers(logits, vars(self))


def fit_venn_abers(p: Predictions) -> Solution[VennAbers]:
    """Fit `VennAbers` without a certificate."""
    points: list[tuple[np.ndarray, ...]] = []
    for p_j, y_j in _by_class(p):
        by_score = GroupedScores.from_scores(p_j, y_j, p.weights)
        mean, weight = by_score.accuracy, by_score.total_weight
        high = _venn_abers_pass(mean, weight)  # p1 at each x
        # p0, for an added example of label 0, is 1 minus p1 of the problem with reversed order and labels
        low = 1 - _venn_abers_pass(1 - mean[::-1], weight[::-1])[::-1]
        points.append((by_score.value, low, high))
    x, low, high = (np.concatenate(part) for part in zip(*points, strict=True))
    fitted = VennAbers(x, low, high, _class_starts([len(part[0]) for part in points]))
    return Solution(fitted, "closed form", criterion="brier")


def _by_class(p: Predictions) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the probability of each class and whether it is the label, both (n)."""
    for j, p_j in enumerate(maps.softmax(p.logits).T):
        yield to_numpy(p_j), (p.labels == j).astype(float)


def _class_starts(lengths: list[int]) -> np.ndarray:
    """Return where the points of each class start, and their end, (k + 1)."""
    return np.cumsum([0, *lengths])


def _fit_curve(x: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the isotonic fit of y on x: the first and last x of each flat piece, and the fitted values there.

    Points inside a flat piece are not needed for interpolation. x, y and the weights are (n), the results (points).
    """
    from scipy.optimize import isotonic_regression  # slow to import, needed by fits only

    by_score = GroupedScores.from_scores(x, y, weights)
    fit = isotonic_regression(by_score.accuracy, weights=by_score.total_weight).x
    is_end = np.ones(len(fit), dtype=bool)  # of a flat piece; the first and last points are ends
    is_end[1:-1] = (fit[1:-1] != fit[:-2]) | (fit[1:-1] != fit[2:])
    return by_score.value[is_end], fit[is_end]


def _venn_abers_pass(mean: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the isotonic fit at each point after one example labeled 1 is added there.

    These are algorithms 1 and 2 of Vovk, Petej & Fedorova (2015).

    The fit is the slope of the greatest convex minorant of the cumulative sums. Moving the added example up by one
    point changes a single corner of the diagram, so that the whole sweep costs as much as one fit.

    Args:
        mean: Frequency of the class at each distinct probability, in increasing order.
        weight: Total weight of the examples there.
    """
    slopes = np.empty(len(weight))
    if compiled := kernels(weight):
        compiled.venn_abers_pass(np.ascontiguousarray(weight), mean * weight, slopes)
    else:
        minorant.venn_abers_pass(weight.tolist(), (mean * weight).tolist(), slopes)
    return slopes
