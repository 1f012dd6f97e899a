"""Isotonic regression: nondecreasing maps of probabilities without a parametric form."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from calibrant._core.kernels import minorant
from calibrant._core.kernels.bins import GroupedScores
from calibrant._core.kernels.dispatch import kernels
from calibrant._core.kernels.roots import Certificate
from calibrant._core.kernels.sorting import TIE_TOLERANCE
from calibrant._core.registry import CALIBRATORS
from calibrant._core.tensors import label_tensor, to_numpy, weight_tensor
from calibrant._core.types import FractionVector, Logits, PositiveFloat, Range, StartIndices
from calibrant.calibrators._capabilities import Capabilities, calibrator_call, prepare, takes_arrays
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.predictions import Predictions

__all__ = ["Isotonic", "SharedIsotonic", "VennAbers"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Isotonic:
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
        probs = p.logits.double().softmax(-1)
        curves = [_fit_curve(p_j, (label_tensor(p) == j).double(), weight_tensor(p)) for j, p_j in enumerate(probs.T)]
        # Points and fitted values, one class after the other
        x, value = (torch.cat(part) for part in zip(*curves, strict=True))
        fitted = cls(x, value, _class_starts([len(x_j) for x_j, _ in curves], x), floor)
        return Solution(fitted, "closed form", criterion="brier").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return the logarithm of the fitted class probabilities, divided by their sum."""
        probs = logits.double().softmax(-1)
        bounds = pairwise(self.start.tolist())  # of the points of each class in `self.p`
        fitted = [interpolate(self.p[a:b], self.value[a:b], p_j) for (a, b), p_j in zip(bounds, probs.T, strict=True)]
        return _log_shares(torch.stack(fitted, 1).clamp_min(self.floor))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class SharedIsotonic:
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
        probs = p.logits.double().softmax(-1)
        y = torch.zeros_like(probs).scatter_(1, label_tensor(p)[:, None], 1.0)
        weights = None if (w := weight_tensor(p)) is None else w.repeat_interleave(probs.shape[1])
        fitted = cls(*_fit_curve(probs.flatten(), y.flatten(), weights), epsilon)
        return Solution(fitted, "closed form", criterion="brier").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        p = logits.double().softmax(-1)
        return _log_shares(interpolate(self.p, self.value, p) + self.epsilon * p)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class VennAbers:
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

    @takes_arrays
    def interval(self, logits: Logits) -> tuple[Logits, Logits]:
        """Return p0 and p1 of every example and class, both (n k). Probabilities that differ by rounding are equal.

        The farther they are apart, the less the data determine the probability.
        """
        fitted: VennAbers = prepare(self, logits)
        lows, highs = list[Tensor](), list[Tensor]()
        bounds = pairwise(fitted.start.tolist())
        for (start, end), p_j in zip(bounds, logits.double().softmax(-1).T.contiguous(), strict=True):
            x = fitted.p[start:end]
            # p0 is the value of the largest x at or below p_j, p1 the value of the smallest x at or above it
            low_values = torch.cat([x.new_zeros(1), fitted.low[start:end]])  # 0 below all x
            high_values = torch.cat([fitted.high[start:end], x.new_ones(1)])  # 1 above all x
            lows.append(low_values[_rank(x, p_j * (1 + TIE_TOLERANCE), right=True)])
            highs.append(high_values[_rank(x, p_j * (1 - TIE_TOLERANCE))])
        return torch.stack(lows, 1), torch.stack(highs, 1)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        low, high = self.interval(logits)
        return _log_shares(high / (1 - low + high))


def fit_venn_abers(p: Predictions) -> Solution[VennAbers]:
    """Fit `VennAbers` without a certificate."""
    points: list[tuple[Tensor, ...]] = []
    for j, p_j in enumerate(p.logits.double().softmax(-1).T):
        x, mean, weight = _group_ties(p_j, (label_tensor(p) == j).double(), weight_tensor(p))
        high = _venn_abers_pass(mean, weight)  # p1 at each x
        # p0, for an added example of label 0, is 1 minus p1 of the problem with reversed order and labels
        low = 1 - _venn_abers_pass(1 - mean[::-1], weight[::-1])[::-1]
        points.append(tuple(torch.from_numpy(v.copy()).to(p_j) for v in (x, low, high)))  # torch cannot view a reversal
    x, low, high = (torch.cat(part) for part in zip(*points, strict=True))
    fitted = VennAbers(x, low, high, _class_starts([len(part[0]) for part in points], x))
    return Solution(fitted, "closed form", criterion="brier")


def _rank(x: Tensor, values: Tensor, *, right: bool = False) -> Tensor:
    """Return the number of sorted x below each value, or with `right` at or below it.

    ONNX has no `searchsorted`: an export counts instead.
    """
    if torch.onnx.is_in_onnx_export():
        return (x <= values[..., None] if right else x < values[..., None]).sum(-1)
    return torch.searchsorted(x, values, right=right)


def interpolate(x: Tensor, value: Tensor, query: Tensor) -> Tensor:
    """Interpolate linearly between the points (x, value) with strictly increasing x, and constantly beyond them.

    A query that differs from a point by rounding has its value: points may lie as close as `TIE_TOLERANCE`.
    """
    if len(x) == 1:
        return value.expand_as(query)
    upper = _rank(x, query.contiguous()).clamp(1, len(x) - 1)  # index of the point above the query
    low, high = x[upper - 1], x[upper]
    position = ((query - low) / (high - low)).clamp(0, 1)  # 0 at the point below, 1 at the one above
    nearest = torch.where(position < 0.5, low, high)
    is_equal = (query - nearest).abs() <= TIE_TOLERANCE * nearest.abs()
    position = torch.where(is_equal, position.round(), position)
    return torch.lerp(value[upper - 1], value[upper], position)


def _log_shares(p: Tensor) -> Tensor:
    """Divide each row of p (n k) by its sum and return the logarithm. A row of zeros becomes uniform."""
    total = p.sum(-1, keepdim=True)
    return torch.where(total > 0, p / total, 1 / p.shape[-1]).log()


def _class_starts(lengths: list[int], points: Tensor) -> Tensor:
    """Return where the points of each class start, and their end, (k + 1), on the device of the points."""
    return torch.tensor([0, *lengths], device=points.device).cumsum(0)


def _group_ties(x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct x in increasing order, with the weighted mean of y and the total weight at each."""
    by_score = GroupedScores.from_scores(to_numpy(x), to_numpy(y), None if weights is None else to_numpy(weights))
    return by_score.value, by_score.accuracy, by_score.total_weight


def _fit_curve(x: Tensor, y: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the isotonic fit of y on x: the first and last x of each flat piece, and the fitted values there.

    Points inside a flat piece are not needed for interpolation. x, y and the weights are (n), the results (points).
    """
    from scipy.optimize import isotonic_regression  # slow to import, needed by fits only

    points, mean, weight = _group_ties(x, y, weights)
    fit = isotonic_regression(mean, weights=weight).x
    is_end = np.ones(len(fit), dtype=bool)  # of a flat piece; the first and last points are ends
    is_end[1:-1] = (fit[1:-1] != fit[:-2]) | (fit[1:-1] != fit[2:])
    return torch.from_numpy(points[is_end]).to(x), torch.from_numpy(fit[is_end]).to(x)


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
    if compiled := kernels(torch.empty(0)):  # the kernels for the CPU, if there are any
        compiled.venn_abers_pass(np.ascontiguousarray(weight), mean * weight, slopes)
    else:
        minorant.venn_abers_pass(weight.tolist(), (mean * weight).tolist(), slopes)
    return slopes
