"""Spline: the accuracy at a confidence is the slope of a smooth curve through the cumulative accuracy."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._bins import top_label
from calibrant._solve import Certificate
from calibrant._types import InputError, Labels, Logits
from calibrant.calibrators._binning import with_confidence
from calibrant.calibrators._certify import certify
from calibrant.calibrators._isotonic import interpolated

__all__ = ["Spline"]


@dataclass(frozen=True, eq=False)
class Spline:
    r"""Spline calibration of the top label (Gupta et al. 2021, section 4).

    With the examples sorted by confidence, a natural cubic spline h with evenly spaced knots is fitted by least
    squares to the cumulative accuracy $\frac1n \sum_{j \le i} 1[\hat y_j = y_j]$ at i/n; the new confidence is its
    slope $h'$ at the example's rank, kept inside [1/(n+2), 1 - 1/(n+2)] and straight between the ranks of the
    examples. The other classes share the rest, as in `HistogramBinning`. Need not be monotone. Returns log p.
    """

    confidence: Tensor  # (m) distinct fitted confidences, rising
    value: Tensor  # (m) what each becomes
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels, *, knots: int = 6) -> "Spline":
        """Fit the spline to the cumulative accuracy.

        Raises `InputError` for fewer than 2 knots.
        """
        if knots < 2:
            raise InputError(f"a spline needs at least 2 knots, got {knots}")
        confidence, correct = top_label(logits, labels)
        n = len(confidence)
        value, tie, count = confidence.unique(return_inverse=True, return_counts=True)
        right = torch.bincount(tie, correct, minlength=len(value))
        end = count.cumsum(0).double() / n  # rank of the last example of every tie
        at = torch.cat([end.new_zeros(1), end])
        curve = torch.cat([end.new_zeros(1), right.cumsum(0) / n])
        mass = torch.cat([end.new_ones(1), count.double()]).sqrt()[:, None]
        basis, _ = _natural(at, knots)
        weights = torch.linalg.lstsq(mass * basis, mass * curve[:, None], driver="gelsd").solution
        _, slope = _natural(end - (count - 1) / (2 * n), knots)  # the middle of the tie's ranks
        new = (slope @ weights).squeeze(1).clamp(1 / (n + 2), 1 - 1 / (n + 2))
        return certify(cls(value, new), logits, labels, "closed form", criterion="ece(bins=15)")

    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        confidence, _ = top_label(logits, logits.argmax(-1))
        return with_confidence(logits, interpolated(self.confidence, self.value, confidence))


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
