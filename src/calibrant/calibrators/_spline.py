"""Spline: the accuracy at a confidence is the slope of a smooth curve through the cumulative accuracy."""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from calibrant._solve import Certificate
from calibrant.calibrators._apply import its_classes
from calibrant.calibrators._confidence import Binned, binned, classes_binned, confidence, with_confidence
from calibrant.calibrators._fit import certify, fits
from calibrant.calibrators._isotonic import interpolated
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.types import Logits, Points, Range, Shares

__all__ = ["Spline"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Spline:
    r"""Spline calibration of the top label (Gupta et al. 2021, section 4), or of two classes of the one judged.

    With the examples sorted by confidence, a natural cubic spline h with evenly spaced knots is fitted by least
    squares to the cumulative accuracy $\frac1n \sum_{j \le i} 1[\hat y_j = y_j]$ at i/n; the new confidence is its
    slope $h'$ at the example's rank, kept inside [1/(n+2), 1 - 1/(n+2)] and straight between the ranks of the
    examples. The other classes share the rest, as in `HistogramBinning`. Need not be monotone. Returns log p.
    """

    confidence: Points  # (m) distinct fitted confidences, rising
    value: Shares  # (m) what each becomes
    of: Binned = "top"
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(cls, p: Predictions, *, knots: Annotated[int, Range(least=2, most=1000)] = 6) -> "Spline":
        """Fit the spline to the cumulative accuracy."""
        of = binned(p)
        ties, n = p.judging(of).events.ties, p.mass
        end = ties.mass.cumsum(0) / n  # rank of the last example of every tie
        at = torch.cat([end.new_zeros(1), end])
        curve = torch.cat([end.new_zeros(1), ties.correct.cumsum(0) / n])
        often = torch.cat([end.new_ones(1), ties.mass]).sqrt()[:, None]
        basis, _ = _natural(at, knots)
        weights = torch.linalg.lstsq(often * basis, often * curve[:, None], driver="gelsd").solution
        middle = end - (ties.mass - 1).clamp_min(0) / (2 * n)  # of the tie's ranks
        _, slope = _natural(middle, knots)
        new = (slope @ weights).squeeze(1).clamp(1 / (n + 2), 1 - 1 / (n + 2))
        return certify(cls(ties.value, new, of), p, "closed form", criterion="ece(bins=15)")

    @its_classes(classes_binned)
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        said = confidence(logits, self.of)
        return with_confidence(logits, interpolated(self.confidence, self.value, said), self.of)


def _natural(x: Tensor, knots: int) -> tuple[Tensor, Tensor]:
    r"""Return a basis (m, knots) of the natural cubic splines on [0, 1], at x, and its derivative.

    1, x and $d_j(x) - d_{K-1}(x)$ with $d_j = ((x - t_j)_+^3 - (x - t_K)_+^3) / (t_K - t_j)$
    (Hastie, Tibshirani & Friedman 2009, eq. 5.4).
    """
    t = torch.linspace(0, 1, knots, dtype=x.dtype, device=x.device)
    gap, width = (x[:, None] - t).clamp_min(0), t[-1] - t[:-1]
    cubic = (gap[:, :-1] ** 3 - gap[:, -1:] ** 3) / width
    square = 3 * (gap[:, :-1] ** 2 - gap[:, -1:] ** 2) / width
    line, one = x[:, None], torch.ones_like(x)[:, None]
    return (
        torch.cat([one, line, cubic[:, :-1] - cubic[:, -1:]], dim=1),
        torch.cat([0 * one, one, square[:, :-1] - square[:, -1:]], dim=1),
    )
