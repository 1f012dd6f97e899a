"""One increasing map of log-probabilities for all classes, which preserves predictions."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from calibrant._core.kernels.bins import sorted_copies
from calibrant._core.kernels.lbfgs import Minimum
from calibrant._core.kernels.roots import MAX_OPTIMUM_GAP_NATS, Certificate
from calibrant._core.kernels.solvers import LOG2_E, newton, sum_row_chunks
from calibrant._core.registry import CALIBRATORS
from calibrant._core.tensors import label_tensor, to_numpy, weight_tensor
from calibrant._core.types import Count, FiniteVector, Logits, NonNegativeFloat, PositiveScalar, Range
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Fitted, Solution, example_mean, example_weights, fit_method
from calibrant.calibrators._temperature import FitInput, drop_impossible
from calibrant.predictions import Predictions, row_blocks

__all__ = ["Monotone"]

MIN_PIECE_SLOPE = 1e-3  # keeps the map strictly increasing
MAX_NEG_LOG_PROB = 1e4  # -log p is clipped here in fits; the probability is 0 in floats anyway
MIN_KNOT = 1e-12  # smaller ones are 0 up to rounding, which is the first knot already


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Monotone:
    r"""An increasing piecewise linear map of the log-probabilities, shared by all classes and fitted by convex NLL.

    With $v_k = -\log \mathrm{softmax}(z / T)_k \ge 0$ and knots $0 = e_1 < \dots < e_J$ the new logits are
    $-\sum_j \theta_j [\min(v_k, e_{j+1}) - e_j]_+$, $\theta_j > 0$: piecewise linear, so the NLL is convex in theta,
    and increasing, so the order of the classes never changes. T minimizes the NLL, and the knots are quantiles of the
    two smallest v of every row and of the label's. Minimizes mean NLL $+ \frac{1}{n} \sum_j (\theta_{j+1} -
    \theta_j)^2$. With one piece it is temperature scaling; a convex form of the order-preserving networks of Rahimi et
    al. (2020, "DIAG").

    >>> one = torch.ones((), dtype=torch.float64)
    >>> Monotone(one, torch.zeros(1).double(), torch.tensor([2.0]).double())(torch.zeros(1, 2))
    tensor([[-1.3863, -1.3863]])
    """

    temperature: PositiveScalar  # float64
    knots: FiniteVector  # (J) float64, increasing from 0, in nats
    slopes: Annotated[FiniteVector, Range(gt=0)]  # (J) float64
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
        v = -(logits.double() / self.temperature).log_softmax(-1)
        # With slopes s, summation by parts gives m(v) = s_J v + sum_(j < J) (s_j - s_(j+1)) min(v, e_(j+1))
        mapped = v * self.slopes[-1]
        for knot, change in zip(self.knots[1:], self.slopes[:-1] - self.slopes[1:], strict=True):
            mapped.addcmul_(v.clamp_max(knot), change)
        return -mapped


def fit_monotone(
    data: FitInput, start: Tensor | None = None, *, pieces: int = 8, smoothness: float = 1.0
) -> Solution[Monotone]:
    """Fit `Monotone` without a certificate.

    Args:
        data: The predictions, with the temperature to divide the logits by.
        start: Slopes of a fit to similar data, to start from.
        pieces: As in `Monotone.fit`.
        smoothness: As in `Monotone.fit`.
    """
    p, temperature = drop_impossible(data.p), data.nll_fit.finite_temperature
    v = p.apply(lambda z: -(z.double() / temperature).log_softmax(-1).clamp_min(-MAX_NEG_LOG_PROB))
    knots = _place_knots(v, pieces)
    # The search compares the gain by a quadratic model, which is of the order of the squared gradient
    minimum = _fit_slopes(v, knots, smoothness, start, tolerance=0.01 * data.tolerance**2)
    fitted = Monotone(temperature, knots, minimum.x)
    return slopes_solution(fitted, minimum)


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


def _place_knots(v: Predictions, pieces: int) -> Tensor:
    """Return the knots, (J) increasing from 0: quantiles of each row's two smallest v and its label's v.

    `v` are predictions whose "logits" are -log p.
    """
    label_v = v.logits.gather(1, label_tensor(v)[:, None])
    smallest_v = v.logits.topk(2, largest=False).values
    samples = torch.cat([smallest_v, label_v], 1).flatten()
    weights = None if (w := weight_tensor(v)) is None else w.repeat_interleave(3)  # three samples of each row
    inner_shares = np.linspace(0, 1, pieces + 1)[1:-1]
    quantiles = np.unique(weighted_quantiles(samples, weights, inner_shares))
    positive = quantiles[quantiles > MIN_KNOT]
    return torch.cat([torch.zeros(1, dtype=torch.float64), torch.from_numpy(positive)])


def weighted_quantiles(values: Tensor, weights: Tensor | None, shares: np.ndarray) -> np.ndarray:
    """Return quantiles of values (n) at shares in [0, 1], as numpy's if an integer weight is that many copies."""
    if weights is None:
        return np.quantile(to_numpy(values), shares)
    positions, copies, n = sorted_copies(to_numpy(values), to_numpy(weights))
    return np.interp(shares * (n - 1), positions, copies)  # the first of n copies is at 0, the last at n - 1


def _fit_slopes(v: Predictions, knots: Tensor, smoothness: float, start: Tensor | None, tolerance: float) -> Minimum:
    r"""Minimize the penalized NLL over the slopes, one per piece, by Newton's method.

    Args:
        v: Predictions whose "logits" are -log p.
        knots: Lower ends of the pieces.
        smoothness: Factor of the penalty on differences of neighboring slopes.
        start: Slopes to start from, if there are as many.
        tolerance: Gain by the quadratic model at which the search ends.
    """
    n, pieces, device = v.total_weight, len(knots), v.logits.device
    knots = knots.to(device)
    width = torch.cat([knots.diff(), knots.new_zeros(1)])  # 0 for the last piece, which has no end
    label_v = v.logits.gather(1, label_tensor(v)[:, None])
    upper_ends = torch.cat([knots[1:], knots.new_full((1,), torch.inf)])
    # Mean length of the label's v in each piece; its product with the slopes is the label's part of the NLL
    label_lengths = example_mean(label_v.clamp(knots, upper_ends) - knots, v).cpu()
    piece_index, offset = _locate_pieces(v.logits, knots)
    differences = torch.eye(pieces, dtype=torch.float64).diff(dim=0)
    penalty = smoothness / n * differences.mT @ differences  # theta' penalty theta is their sum of squares

    def penalized_nll(slopes: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the value, gradient and Hessian."""
        sum_moments = partial(_sum_length_moments, slopes.to(device), width)
        sums = sum_row_chunks(sum_moments, offset, piece_index, example_weights(v)).cpu() / n
        log_norm, mean, mean_square, mean_products = sums.split([1, pieces, pieces, pieces * pieces])
        # Mean products of the lengths in two pieces: a v in the higher one spans the whole width of the lower one
        cross = (width.cpu()[:, None] * mean).triu(1)
        # the covariance of the lengths L of the pieces under a row's probabilities, averaged over the rows:
        # E[L_i L_j] (`cross`, or `mean_square` for i = j) - E[L_i] E[L_j]
        hessian = cross + cross.mT + mean_square.diag() - mean_products.view(pieces, pieces)
        value = log_norm + slopes @ label_lengths + slopes @ penalty @ slopes
        return float(value), label_lengths - mean + 2 * penalty @ slopes, hessian + 2 * penalty

    if start is None or len(start) != pieces:
        start = torch.ones(pieces, dtype=torch.float64)
    lower = torch.full((pieces,), MIN_PIECE_SLOPE, dtype=torch.float64)
    return newton(penalized_nll, start, lower=lower, tolerance=tolerance)


def _sum_length_moments(slopes: Tensor, width: Tensor, offset: Tensor, piece_index: Tensor, w: Tensor) -> Tensor:
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
        w: Weight of each row.
    """
    map_at_knots = torch.cat([slopes.new_zeros(1), (slopes * width)[:-1].cumsum(0)])
    index = piece_index.long()
    mapped = torch.addcmul(map_at_knots[index], slopes[index], offset)  # m(v)
    row_min = mapped.amin(1, keepdim=True)
    element_odds = mapped.sub_(row_min).mul_(-LOG2_E).exp2_()  # exp(row_min - m(v)), in place, (rows k)

    def sum_by_piece(elements: Tensor) -> Tensor:
        """Return the sums over the elements of each row in each piece, (rows pieces)."""
        return offset.new_zeros(len(offset), len(width)).scatter_add_(1, index, elements)

    odds = sum_by_piece(element_odds)
    first_moment = sum_by_piece(element_odds.mul_(offset))
    second_moment = sum_by_piece(element_odds.mul_(offset))  # element_odds holds odds times offset by now
    norm = odds.sum(1)
    odds_above = torch.nn.functional.pad(odds[:, 1:].flip(1).cumsum(1).flip(1), (0, 1))  # summed over higher pieces
    mean = (first_moment + width * odds_above) / norm[:, None]
    mean_square = (second_moment + width.square() * odds_above) / norm[:, None]
    products = (w * mean.mT) @ mean
    return torch.cat([w @ (norm.log()[:, None] - row_min), w @ mean, w @ mean_square, products.view(-1)])


def _locate_pieces(v: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
    """Return the piece of each element of v (n k), and its offset above the piece's lower end (n k).

    The offsets overwrite v, in blocks of rows, to save memory.
    """
    piece_index = torch.empty(v.shape, dtype=torch.uint8 if len(knots) < 256 else torch.int64, device=v.device)
    for block, piece in row_blocks(v, piece_index):
        piece.copy_(torch.bucketize(block, knots[1:]))
        block -= knots[piece.long()]
    return piece_index, v
