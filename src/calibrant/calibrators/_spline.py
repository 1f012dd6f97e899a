"""Spline calibration: the accuracy at a confidence is the slope of a smooth cumulative accuracy."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from calibrant._core.kernels.roots import Certificate
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import FiniteVector, FractionVector, Logits, Range
from calibrant.calibrators import maps
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._confidence import BinnedEvent, binned_event, binned_num_classes
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions

__all__ = ["Spline"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Spline(FittedMap):
    r"""Spline calibration of the top label (Gupta et al. 2021, section 4), or of the evaluated class if there are two.

    With the examples sorted by confidence, a natural cubic spline h with evenly spaced knots is fitted by least
    squares to the cumulative accuracy $\frac1n \sum_{j \le i} 1[\hat y_j = y_j]$ at i/n. The new confidence is its
    slope $h'$ at the example's rank, clipped to [1/(n+2), 1 - 1/(n+2)] and linear between examples. The other classes
    share the rest, as in `HistogramBinning`. Need not be monotone. Returns log p.
    """

    confidence: FiniteVector  # (m) distinct confidences of the calibration data, increasing
    value: FractionVector  # (m) new confidences
    of: BinnedEvent = "top"
    certificate: Certificate | None = None
    capabilities = Capabilities(
        num_classes=binned_num_classes, exports=(), treats_classes_alike=lambda fitted: fitted.of == "top"
    )

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, knots: Annotated[int, Range(ge=2, le=1000)] = 6) -> "Spline":
        """Fit the spline to the cumulative accuracy.

        Args:
            p: Validation predictions.
            knots: Number of knots of the spline, evenly spaced from 0 to 1.
        """
        event = binned_event(p)
        by_score, n = p.with_event(event).events.by_score, p.total_weight
        weight = by_score.total_weight
        end = weight.cumsum() / n  # rank of the last example of each tie
        ranks = np.append(0.0, end)  # the curve starts at (0, 0), which counts as one example
        curve = np.append(0.0, by_score.correct.cumsum() / n)
        # Least squares with a tie's weight on its squared residual: both sides are multiplied by the root
        sqrt_weight = np.sqrt(np.append(1.0, weight))
        basis, _ = _natural_spline_basis(ranks, knots)
        weights = np.linalg.lstsq(sqrt_weight[:, None] * basis, sqrt_weight * curve)[0]
        middle = end - np.maximum(weight - 1, 0) / (2 * n)  # mean rank of each tie
        _, slope = _natural_spline_basis(middle, knots)
        fitted = cls(by_score.value, np.clip(slope @ weights, 1 / (n + 2), 1 - 1 / (n + 2)), event)
        return Solution(fitted, "closed form", criterion="ece(bins=15)").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the slope of the spline as confidence."""
        return maps.spline(logits, vars(self))


def _natural_spline_basis(x: np.ndarray, knots: int) -> tuple[np.ndarray, np.ndarray]:
    r"""Return a basis (m, knots) of the natural cubic splines on [0, 1] at x (m), and its derivative (m, knots).

    For K knots t, evenly spaced from 0 to 1, the basis functions are 1, x and $d_j(x) - d_{K-1}(x)$ with
    $d_j = ((x - t_j)_+^3 - (x - t_K)_+^3) / (t_K - t_j)$ (Hastie, Tibshirani & Friedman 2009, eq. 5.4).
    """
    t = np.linspace(0, 1, knots)
    excess = np.maximum(x[:, None] - t, 0)  # (x - t_j)_+
    width = t[-1] - t[:-1]
    d = (excess[:, :-1] ** 3 - excess[:, -1:] ** 3) / width
    d_slope = 3 * (excess[:, :-1] ** 2 - excess[:, -1:] ** 2) / width
    constant = np.ones_like(x)
    return (
        np.column_stack([constant, x, d[:, :-1] - d[:, -1:]]),
        np.column_stack([0 * constant, constant, d_slope[:, :-1] - d_slope[:, -1:]]),
    )
