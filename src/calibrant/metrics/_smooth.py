"""Smooth calibration error: residuals smoothed by a Gaussian window whose width equals the error."""

import numpy as np

from calibrant._core.kernels.bins import EventStatistics
from calibrant._core.kernels.roots import PointEvaluation, increasing_root
from calibrant._core.types import Count
from calibrant.metrics._intervals import Evidence
from calibrant.metrics._metric import metric
from calibrant.metrics._null import NUM_NULL_DRAWS, NullResiduals

__all__ = ["smooth_ece"]

NUM_GRID_CELLS = 1 << 14
WIDTH_TOLERANCE = 1e-9  # to which the width is solved for
NUM_TEST_CELLS = 1 << 11  # a coarser grid for all simulations
CHUNK_DRAWS = 128  # draws that are smoothed at once


def _smooth_test(events: EventStatistics, *, draws: Count = NUM_NULL_DRAWS, seed: int = 0) -> Evidence:
    """Test the smooth ECE s by simulating calibrated models.

    The smooth ECE is the width of the window at which the error in the window equals the width, and the error falls
    with the width. So a simulation has a smooth ECE above s exactly if its error at width s exceeds s. That is one
    smoothing for each simulation, and no equation to solve.
    """
    from scipy.fft import dct, idct  # slow to import

    width = float(smooth_ece(events))
    null = NullResiduals.draw(events.by_score, draws, seed)
    # factors of the window in the cosine basis, in which smoothing is a product (see `smooth_ece`)
    gaussian = np.exp(-0.5 * (np.pi * width * np.arange(NUM_TEST_CELLS)) ** 2)

    def errors_in_window(residuals: np.ndarray) -> np.ndarray:
        """Return the error (r), seen through the window, of each row of residuals (r g)."""
        grid = deposit(null.value, residuals, NUM_TEST_CELLS)
        smoothed = np.asarray(idct(gaussian * dct(grid, type=2), type=2))  # without division by n
        return np.abs(smoothed).sum(1)

    def errors(residuals: np.ndarray) -> np.ndarray:
        chunks = (residuals[first : first + CHUNK_DRAWS] for first in range(0, len(residuals), CHUNK_DRAWS))
        return np.concatenate([errors_in_window(chunk) for chunk in chunks])

    return Evidence(width, null.p_value(errors))


@metric(
    "smooth ECE",
    unit="share",
    meaning="smoothed over confidences, without bins",
    is_calibration_error=True,
    test=_smooth_test,
    has_slow_test=True,
)
def smooth_ece(events: EventStatistics) -> float:
    r"""Return the smooth ECE: the error seen through a window as wide as the error itself (Blasiok & Nakkiran 2024).

    It is the s with $\int_0^1 |\frac1n \sum_i (a_i - c_i) K_s(t, c_i)| dt = s$, of correctness a and confidence c: a
    consistent measure of the distance to calibration, without bins to choose. K_s is the Gaussian of standard deviation
    s, reflected at 0 and 1. It is the heat kernel of [0, 1], so that smoothing is a product in the cosine basis of a
    grid of 16,384 cells; s is solved for to 1e-9. The test simulates calibrated models, `draws` times with `seed`; see
    `skce`.

    >>> smooth_ece(np.zeros((4, 2)), np.array([0, 0, 0, 1]))
    0.25
    """
    from scipy.fft import dct, idct  # slow to import

    by_score = events.by_score
    grid = deposit(by_score.value, by_score.residual, NUM_GRID_CELLS) / by_score.total_weight.sum()
    coefficients = np.asarray(dct(grid, type=2))  # of the unsmoothed residuals
    rate = -0.5 * (np.pi * np.arange(NUM_GRID_CELLS)) ** 2  # smoothing multiplies coefficient j by exp(rate_j s^2)

    def to_grid(coefficients: np.ndarray) -> np.ndarray:
        return np.asarray(idct(coefficients, type=2))

    def width_minus_error(s: float) -> PointEvaluation:
        """Evaluate the width s minus the error seen through it, and the derivative. The second derivative is unused."""
        num_terms = min(NUM_GRID_CELLS, int(9 / (np.pi * max(s, WIDTH_TOLERANCE))) + 2)  # later factors are below e^-40
        damped, derivative = np.zeros((2, NUM_GRID_CELLS))
        damped[:num_terms] = coefficients[:num_terms] * np.exp(rate[:num_terms] * s * s)
        derivative[:num_terms] = 2 * s * rate[:num_terms] * damped[:num_terms]
        smoothed = to_grid(damped)
        slope = 1 - float((np.sign(smoothed) * to_grid(derivative)).sum())
        return PointEvaluation(s - float(np.abs(smoothed).sum()), slope, 0.0)

    unsmoothed = float(np.abs(to_grid(coefficients)).sum())  # no window shows a larger error
    width = 0.0
    if unsmoothed:  # otherwise the error is 0 at every width; the search starts at 1/8 of the largest error
        width = increasing_root(width_minus_error, unsmoothed / 8, 0.0, max(1.0, unsmoothed), WIDTH_TOLERANCE).x
    return width


def deposit(confidences: np.ndarray, residuals: np.ndarray, cells: int) -> np.ndarray:
    """Return the residuals spread over a grid of [0, 1], (cells) or (r cells): each over the two nearest cells.

    Cell i has its center at (i + 0.5) / cells. The nearer center gets the larger part, linearly. Beyond the outermost
    centers, the first or last cell gets all.

    Args:
        confidences: Distinct confidences, (g).
        residuals: Sums of outcomes minus confidences at each, (g) or in rows (r g).
        cells: Number of cells.
    """
    # total[i]: sum of the residuals at confidences between the centers i - 1 and i; right[i]: the part of it for cell i
    position = confidences * cells + 0.5
    right_cell = position.astype(np.int64)
    rows = residuals.reshape(-1, len(confidences))
    parts = [[np.bincount(right_cell, values, cells + 1) for values in (row, row * (position % 1))] for row in rows]
    total, right = np.moveaxis(np.array(parts), 1, 0).reshape(2, *residuals.shape[:-1], cells + 1)
    left = total - right  # the parts for cell i - 1
    grid = left[..., 1:] + right[..., :-1]
    # a confidence beyond the outermost centers has a single cell, which gets both parts
    grid[..., 0] += left[..., 0]
    grid[..., -1] += right[..., -1]
    return grid
