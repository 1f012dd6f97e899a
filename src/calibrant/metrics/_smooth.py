"""Smooth calibration error: gaps seen through a Gaussian window whose width equals the answer."""

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.bins import EventStatistics, GroupedScores
from calibrant.backend.solvers import PointEvaluation, increasing_root
from calibrant.metrics._metric import metric
from calibrant.types import Scalar

__all__ = ["smooth_ece"]

_GRID_CELLS = 1 << 14


@metric(
    "smooth ECE",
    unit="share",
    meaning="smoothed over confidences, no bins",
    takes="events",
    plain="typical gap, without dividing the examples into portions",
)
def smooth_ece(events: EventStatistics) -> Scalar:
    r"""Smooth ECE, the error seen through a window as wide as the error itself (Blasiok & Nakkiran 2024).

    The s with $\int_0^1 |\frac1n \sum_i (a_i - c_i) K_s(t, c_i)| dt = s$, of correctness a and confidence c. K_s is the
    Gaussian of standard deviation s, reflected at 0 and 1. It is the heat kernel of [0, 1], so smoothing is a product
    in the cosine basis of a grid of 16,384 cells; the width is solved for to 1e-9. A consistent measure of the distance
    to calibration, with no bins to choose.

    >>> smooth_ece(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    tensor(0.2500, dtype=torch.float64)
    """
    return smooth_ece_of(events.ties)


def smooth_ece_of(ties: GroupedScores) -> Scalar:
    """Smooth ECE of sorted and grouped examples."""
    from scipy.fft import dct, idct  # slow to import

    wave = np.asarray(dct(deposit(ties, _GRID_CELLS).cpu().numpy(), type=2))
    rate = -0.5 * (np.pi * np.arange(_GRID_CELLS)) ** 2

    def gaps(waves: np.ndarray) -> np.ndarray:
        return np.asarray(idct(waves, type=2))

    def beyond(s: float) -> PointEvaluation:
        """By how much a width is more than the error seen through it, and how fast that grows."""
        num_terms = min(_GRID_CELLS, int(9 / (np.pi * max(s, 1e-9))) + 2)  # beyond, the factor is below e^-40
        damped, derivative = np.zeros((2, _GRID_CELLS))
        damped[:num_terms] = wave[:num_terms] * np.exp(rate[:num_terms] * s * s)
        derivative[:num_terms] = 2 * s * rate[:num_terms] * damped[:num_terms]
        gap = gaps(damped)
        return PointEvaluation(s - float(np.abs(gap).sum()), 1 - float((np.sign(gap) * gaps(derivative)).sum()), 0.0)

    unsmoothed = float(np.abs(gaps(wave)).sum())
    value = increasing_root(beyond, unsmoothed / 8, 0.0, max(1.0, unsmoothed), 1e-9).x if unsmoothed else 0.0
    return torch.tensor(value, dtype=torch.float64, device=ties.value.device)


def deposit(ties: GroupedScores, cells: int) -> Tensor:
    """Spread each group's gap, as a share of the mass, over the two nearest cells of a grid on [0, 1]."""
    gap, mass = ties.gap, ties.total_weight.sum()
    x = ties.value * cells + 0.5
    right_cell = x.long()
    total, right = (torch.bincount(right_cell, part, minlength=cells + 1) for part in (gap, gap * (x - right_cell)))
    grid, left = right[:-1].clone(), total - right
    grid[-1] += right[-1]
    grid[0] += left[0]
    return (grid + left[1:]) / mass
