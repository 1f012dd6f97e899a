"""One increasing map of log-probabilities for all classes, which preserves predictions."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.bins import sorted_copies
from calibrant._core.kernels.lbfgs import Minimum
from calibrant._core.kernels.roots import MAX_OPTIMUM_GAP_NATS, Certificate
from calibrant._core.kernels.softmax import exp_in_place
from calibrant._core.kernels.solvers import newton, sum_row_chunks
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import Count, FiniteVector, Logits, NonNegativeFloat, PositiveScalar, Range
from calibrant.calibrators import maps
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Fitted, Solution, example_mean, example_weights, fit_method
from calibrant.calibrators._temperature import FitInput, drop_impossible
from calibrant.calibrators.array_functions import rank, smallest
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions, row_blocks

__all__ = ["Monotone"]

MIN_PIECE_SLOPE = 1e-3  # keeps the map strictly increasing
MAX_NEG_LOG_PROB = 1e4  # -log p is clipped here in fits; the probability is 0 in floats anyway
MIN_KNOT = 1e-12  # smaller ones are 0 up to rounding, which is the first knot already


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Monotone(FittedMap):
    r"""An increasing piecewise linear map of the log-probabilities, shared by all classes and fitted by convex NLL.

    With $v_k = -\log \mathrm{softmax}(z / T)_k \ge 0$ and knots $0 = e_1 < \dots < e_J$ the new logits are
    $-\sum_j \theta_j [\min(v_k, e_{j+1}) - e_j]_+$, $\theta_j > 0$: piecewise linear, so the NLL is convex in theta,
    and increasing, so the order of the classes never changes. T minimizes the NLL, and the knots are quantiles of the
    two smallest v of every row and of the label's. Minimizes mean NLL $+ \frac{1}{n} \sum_j (\theta_{j+1} -
    \theta_j)^2$. With one piece it is temperature scaling; a convex form of the order-preserving networks of Rahimi et
    al. (2020, "DIAG").

    >>> Monotone(1.0, [0.0], [2.0])(np.zeros((1, 2))).round(4)
    array([[-1.3863, -1.3863]])
    """

    temperature: PositiveScalar
    knots: FiniteVector  # (J) increasing from 0, in nats
    slopes: Annotated[FiniteVector, Range(gt=0)]  # (J)
    certificate: Certificate | None = None
    capabilities = Capabilities(preserves_argmax=True, treats_classes_alike=True)

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "Monotone | None" = None,
        pieces: Count = 8,
        smoothness: NonNegativeFloat = 1.0,
    ) -> "Monotone":
        """Fit the slopes.

        Args:
            p: Validation predictions.
            warm_start: A fit to similar data, to start from.
            pieces: Number of linear pieces, at most; equal quantiles count once.
            smoothness: Factor of the penalty.
        """
        guess = None if warm_start is None else warm_start.slopes
        solution = fit_monotone(FitInput(p), guess, pieces=pieces, smoothness=smoothness)
        return solution.with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return -m(v), with v = -log softmax(z / T) and m the increasing piecewise linear map."""
        return maps.monotone(logits, vars(self))


def fit_monotone(
    data: FitInput, start: np.ndarray | None = None, *, pieces: int = 8, smoothness: float = 1.0
) -> Solution[Monotone]:
    """Fit `Monotone` without a certificate.

    Args:
        data: The predictions, with the temperature to divide the logits by.
        start: Slopes of a fit to similar data, to start from.
        pieces: As in `Monotone.fit`.
        smoothness: As in `Monotone.fit`.
    """
    p, temperature = drop_impossible(data.p), data.nll_fit.finite_temperature
    v = neg_log_probs(p, temperature)
    samples = to_numpy(namespace(v.logits).concat([smallest(v.logits, 2), label_values(v)], axis=1))
    knots = _place_knots(samples, v.weights, pieces)
    # The search compares the gain by a quadratic model, which is of the order of the squared gradient
    minimum = _fit_slopes(v, samples[:, 2:], knots, smoothness, start, tolerance=0.01 * data.tolerance**2)
    fitted = Monotone(temperature, knots, minimum.x)
    return slopes_solution(fitted, minimum)


def neg_log_probs(p: Predictions, temperature: float = 1.0) -> Predictions:
    """Return predictions whose "logits" are v = -log softmax(z / T), at most `MAX_NEG_LOG_PROB`."""

    @np.errstate(over="ignore")  # of log-probabilities that are clipped
    def clipped(z: Any) -> Any:
        v = -maps.log_softmax(maps.double(z) / temperature)
        return namespace(v).minimum(v, MAX_NEG_LOG_PROB)

    return p.apply(clipped)


def label_values(v: Predictions) -> Any:
    """Return the "logit" of each label, (n 1)."""
    return namespace(v.logits).take_along_axis(v.logits, like(v.labels, v.logits)[:, None], axis=1)


def slopes_solution(fitted: Fitted, minimum: Minimum) -> Solution[Fitted]:
    """Return the solution of a search for positive slopes, which searches on similar data can start from.

    The status is "not converged" far above the minimum, "at bound" if a slope is the smallest allowed, or "converged".
    """
    is_at_bound = bool((minimum.x <= MIN_PIECE_SLOPE).any())
    status = "at bound" if is_at_bound else "converged"
    if minimum.optimality_gap > MAX_OPTIMUM_GAP_NATS:
        status = "not converged"
    return Solution(
        fitted, status, minimum.gradient, minimum.evaluations, warm_start=minimum.x, gap=minimum.optimality_gap
    )


def _place_knots(samples: np.ndarray, weights: np.ndarray | None, pieces: int) -> np.ndarray:
    """Return the knots, (J) increasing from 0: quantiles of each row's two smallest v and its label's v, (n 3)."""
    if weights is not None:
        weights = weights.repeat(3)  # three samples of each row
    inner_shares = np.linspace(0, 1, pieces + 1)[1:-1]
    quantiles = np.unique(weighted_quantiles(samples.ravel(), weights, inner_shares))
    return np.append(0.0, quantiles[quantiles > MIN_KNOT])


def weighted_quantiles(values: np.ndarray, weights: np.ndarray | None, shares: np.ndarray) -> np.ndarray:
    """Return quantiles of values (n) at shares in [0, 1], as numpy's if an integer weight is that many copies."""
    if weights is None:
        return np.quantile(values, shares)
    positions, copies, n = sorted_copies(values, weights)
    return np.interp(shares * (n - 1), positions, copies)  # the first of n copies is at 0, the last at n - 1


def _fit_slopes(
    v: Predictions,
    label_v: np.ndarray,
    knots: np.ndarray,
    smoothness: float,
    start: np.ndarray | None,
    tolerance: float,
) -> Minimum:
    r"""Minimize the penalized NLL over the slopes, one per piece, by Newton's method.

    Args:
        v: Predictions whose "logits" are -log p.
        label_v: -log p of each label, (n 1).
        knots: Lower ends of the pieces.
        smoothness: Factor of the penalty on differences of neighboring slopes.
        start: Slopes to start from, if there are as many.
        tolerance: Gain by the quadratic model at which the search ends.
    """
    n, pieces = v.total_weight, len(knots)
    width = np.append(np.diff(knots), 0.0)  # 0 for the last piece, which has no end
    # Mean length of the label's v in each piece; its product with the slopes is the label's part of the NLL
    label_lengths = example_mean(np.clip(label_v, knots, np.append(knots[1:], np.inf)) - knots, v)
    w = like(example_weights(v), v.logits)
    lowest = namespace(v.logits).argmin(v.logits, axis=1)
    piece_index, offset = _locate_pieces(v.logits, like(knots, v.logits))
    differences = np.diff(np.eye(pieces), axis=0)
    penalty = smoothness / n * differences.T @ differences  # theta' penalty theta is their sum of squares

    def penalized_nll(slopes: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the value, gradient and Hessian."""
        sum_moments = partial(_sum_length_moments, like(slopes, offset), like(width, offset))
        sums = sum_row_chunks(sum_moments, offset, piece_index, lowest, w, elements=1 << 16) / n
        log_norm, mean, mean_square, mean_products = np.split(sums, np.cumsum([1, pieces, pieces]))
        # Mean products of the lengths in two pieces: a v in the higher one spans the whole width of the lower one
        cross = np.triu(width[:, None] * mean, 1)
        # the covariance of the lengths L of the pieces under a row's probabilities, averaged over the rows:
        # E[L_i L_j] (`cross`, or `mean_square` for i = j) - E[L_i] E[L_j]
        hessian = cross + cross.T + np.diag(mean_square) - mean_products.reshape(pieces, pieces)
        value = log_norm[0] + slopes @ label_lengths + slopes @ penalty @ slopes
        return float(value), label_lengths - mean + 2 * penalty @ slopes, hessian + 2 * penalty

    if start is None or len(start) != pieces:
        start = np.ones(pieces)
    return newton(penalized_nll, start, lower=np.full(pieces, MIN_PIECE_SLOPE), tolerance=tolerance)


def _sum_length_moments(slopes: Any, width: Any, offset: Any, piece_index: Any, lowest: Any, w: Any) -> Any:
    """Return weighted sums over rows, flat: log norm, then moments of the length of v in each piece.

    The length of an element v in a piece is the part of the piece that lies below v. Under the softmax of -m(v) over a
    row, whose norm is the sum of the odds exp(-m(v)), the moments are the mean length in every piece, the mean squared
    length, and the products of the mean lengths in two pieces. An element of a higher piece spans the whole width of
    this one, so that only the piece that contains it needs a look-up.

    Args:
        slopes: Slope of each piece.
        width: Width of each piece, 0 for the last.
        offset: Distance of each v from the lower end of its piece, (rows k).
        piece_index: Piece of each v, (rows k).
        lowest: Class of the lowest v of each row.
        w: Weight of each row.
    """
    xp, pieces = namespace(offset), len(width)
    index = xp.astype(piece_index, xp.int64)
    map_at_knots = xp.cumulative_sum(slopes * width) - slopes * width
    mapped = slopes.take(index)
    mapped *= offset
    mapped += map_at_knots.take(index)  # m(v)
    row_min = xp.take_along_axis(mapped, lowest[:, None], axis=1)  # as m increases
    element_odds = exp_in_place(row_min - mapped)  # (rows k)
    odds = _sum_by_piece(element_odds, index, pieces)
    element_odds *= offset
    first_moment = _sum_by_piece(element_odds, index, pieces)
    element_odds *= offset
    second_moment = _sum_by_piece(element_odds, index, pieces)
    norm = odds @ xp.ones_like(width)
    odds_above = odds @ xp.tril(xp.ones_like(width)[:, None] + 0 * width, k=-1)  # summed over higher pieces
    mean = (first_moment + width * odds_above) / norm[:, None]
    mean_square = (second_moment + width**2 * odds_above) / norm[:, None]
    products = (w * mean.T) @ mean
    return xp.concat([w @ (xp.log(norm)[:, None] - row_min), w @ mean, w @ mean_square, xp.reshape(products, (-1,))])


def _sum_by_piece(elements: Any, index: Any, pieces: int) -> Any:
    """Return the sums over the elements of each row (rows k) in each piece, (rows pieces)."""
    rows, xp = len(elements), namespace(elements)
    if isinstance(elements, np.ndarray):
        slot = index + pieces * np.arange(rows)[:, None]
        return np.bincount(slot.ravel(), elements.ravel(), rows * pieces).reshape(rows, pieces)
    return xp.stack([xp.sum(xp.where(index == j, elements, 0.0), axis=1) for j in range(pieces)], axis=1)


def _locate_pieces(v: Any, knots: Any) -> tuple[Any, Any]:
    """Return the piece of each element of v (n k), and its offset above the piece's lower end (n k).

    The offsets overwrite v, in blocks of rows, to save memory.
    """
    xp = namespace(v)
    piece_index = xp.empty(v.shape, dtype=xp.uint8 if len(knots) < 256 else xp.int64, device=v.device)
    for block, piece in row_blocks(v, piece_index):
        index = rank(knots[1:], block)
        piece[...] = xp.astype(index, piece.dtype)
        block -= knots[index]
    return piece_index, v
