"""Spline calibration: the accuracy at a confidence is the slope of a smooth cumulative accuracy."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from calibrant._core.kernels.roots import Certificate
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import FiniteVector, FractionVector, Logits, Range
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._confidence import (
    BinnedEvent,
    binned_event,
    binned_num_classes,
    confidence,
    replace_confidence,
)
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.calibrators._isotonic import interpolate
from calibrant.predictions import Predictions

__all__ = ["Spline"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Spline:
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
        value, weight, correct = map(torch.from_numpy, (by_score.value, by_score.total_weight, by_score.correct))
        end = weight.cumsum(0) / n  # rank of the last example of each tie
        ranks = torch.cat([end.new_zeros(1), end])  # the curve starts at (0, 0), which counts as one example
        curve = torch.cat([end.new_zeros(1), correct.cumsum(0) / n])
        # Least squares with a tie's weight on its squared residual: both sides are multiplied by the root
        sqrt_weight = torch.cat([end.new_ones(1), weight]).sqrt()[:, None]
        basis, _ = _natural_spline_basis(ranks, knots)
        # "gelsd" allows fewer distinct ranks than knots
        weights = torch.linalg.lstsq(sqrt_weight * basis, sqrt_weight * curve[:, None], driver="gelsd").solution
        middle = end - (weight - 1).clamp_min(0) / (2 * n)  # mean rank of each tie
        _, slope = _natural_spline_basis(middle, knots)
        calibrated = (slope @ weights).squeeze(1).clamp(1 / (n + 2), 1 - 1 / (n + 2))
        fitted = cls(value, calibrated, event)
        return Solution(fitted, "closed form", criterion="ece(bins=15)").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the slope of the spline as confidence."""
        original = confidence(logits, self.of)
        return replace_confidence(logits, interpolate(self.confidence, self.value, original), self.of)


def _natural_spline_basis(x: Tensor, knots: int) -> tuple[Tensor, Tensor]:
    r"""Return a basis (m, knots) of the natural cubic splines on [0, 1] at x (m), and its derivative (m, knots).

    For K knots t, evenly spaced from 0 to 1, the basis functions are 1, x and $d_j(x) - d_{K-1}(x)$ with
    $d_j = ((x - t_j)_+^3 - (x - t_K)_+^3) / (t_K - t_j)$ (Hastie, Tibshirani & Friedman 2009, eq. 5.4).
    """
    t = torch.linspace(0, 1, knots, dtype=x.dtype, device=x.device)
    excess = (x[:, None] - t).clamp_min(0)  # (x - t_j)_+
    width = t[-1] - t[:-1]
    d = (excess[:, :-1] ** 3 - excess[:, -1:] ** 3) / width
    d_slope = 3 * (excess[:, :-1] ** 2 - excess[:, -1:] ** 2) / width
    line, constant = x[:, None], torch.ones_like(x)[:, None]
    return (
        torch.cat([constant, line, d[:, :-1] - d[:, -1:]], dim=1),
        torch.cat([0 * constant, constant, d_slope[:, :-1] - d_slope[:, -1:]], dim=1),
    )
