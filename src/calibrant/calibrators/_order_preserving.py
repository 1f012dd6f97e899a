"""An increasing map of log-probabilities that differs from row to row, so that predicted classes never change."""

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.lbfgs import Minimum
from calibrant._core.kernels.roots import Certificate
from calibrant._core.kernels.softmax import class_columns, exp_in_place
from calibrant._core.kernels.solvers import newton, sum_row_chunks
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import FINITE_RANGE, Count, Logits, PositiveFloat, Range
from calibrant.calibrators import maps
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, example_weights, fit_method
from calibrant.calibrators._monotone import (
    MAX_NEG_LOG_PROB,
    MIN_PIECE_SLOPE,
    Monotone,
    fit_monotone,
    label_values,
    neg_log_probs,
    slopes_solution,
    weighted_quantiles,
)
from calibrant.calibrators._temperature import FitInput, drop_impossible
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions

__all__ = ["IntraOrderPreserving"]

SHRINKAGE = 0.01  # penalty on the squared distance from `Monotone`, as a share of the smoothness
_NO_MONOTONE = Monotone(1.0, np.zeros(1), np.ones(1))  # changes no probability
ContextKnots = Annotated[Float[np.ndarray, "2 j"], FINITE_RANGE]
RankSlopes = Annotated[Float[np.ndarray, "r 2 j"], Range(gt=0)]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class IntraOrderPreserving(FittedMap):
    r"""An order-preserving map whose slopes differ from row to row, with a convex loss (Rahimi et al. 2020, theorem 1).

    Let $p_k$ be the probabilities after `Monotone`, $v_k = -\log p_k$, and $v_{(1)} \le v_{(2)} \le \dots$ the sorted v
    of a row. The new logits are $-\sum_r s_r \,[\min(v_k, v_{(r+1)}) - v_{(r)}]_+$: the distance between the classes of
    ranks r and r + 1 is multiplied by $s_r > 0$, so that the order of the classes never changes. The last $s_r$ applies
    to all higher ranks. $s_r$ is the sum of two positive piecewise linear functions: one of
    $x_1 = v_{(2)} - v_{(1)}$, and one of $x_2$, the mean of v, with v clipped at 100 in both. The paper has a neural
    network in place of these functions. Here the new logits are linear in the values of the functions at their knots,
    which are learned, so the NLL is convex.

    The fit minimizes the mean NLL plus $\frac{\lambda}{n}$ times a penalty: the sum of squared differences between
    neighboring knots and between neighboring ranks, plus .01 times the squared distances of all values from 1/2. For
    large $\lambda$, every value is 1/2 and the map is `Monotone`.

    >>> identity = Monotone(1.0, [0.0], [1.0])
    >>> twice = IntraOrderPreserving(identity, np.zeros((2, 1)), np.ones((1, 2, 1)))  # s = 1 + 1
    >>> np.diff(twice(np.array([[2.0, 0.0]]))).round(4)
    array([[-4.]])
    """

    monotone: Monotone
    knots: ContextKnots  # (2, j) increasing values of x_1 and x_2
    slopes: RankSlopes  # (ranks, 2, j) at these knots
    certificate: Certificate | None = None
    capabilities = Capabilities(preserves_argmax=True, treats_classes_alike=True)

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        ranks: Count = 5,
        knots: Annotated[int, Range(ge=2, le=1000)] = 4,
        smoothness: PositiveFloat = 10.0,
    ) -> "IntraOrderPreserving":
        """Fit `Monotone`, and then the slopes by Newton's method.

        Args:
            p: Validation predictions.
            ranks: Number of slopes of a row, at most k - 1.
            knots: Number of quantiles of $x_1$ and of $x_2$ at which the slopes are learned.
            smoothness: Factor lambda of the penalty, divided by the number of examples.
        """
        data = FitInput(p)
        monotone = fit_monotone(data).calibrator
        residual = FitInput(p.apply(monotone), data.tolerance)
        solution = fit_order_preserving(residual, ranks=ranks, knots=knots, smoothness=smoothness)
        return replace(solution, calibrator=solution.calibrator.after(monotone)).with_certificate(p)

    def after(self, monotone: Monotone) -> "IntraOrderPreserving":
        """Return this map of the output of a `Monotone`, fitted by `fit_order_preserving`, as a map of its input."""
        return replace(self, monotone=monotone)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return the mapped log-probabilities, not normalized.

        The sum over ranks is written by parts: the last slope times v, plus the change of the slope at each rank times
        the part of v below it.
        """
        return maps.intra_order_preserving(logits, vars(self))


def fit_order_preserving(
    data: FitInput, start: np.ndarray | None = None, *, ranks: int = 5, knots: int = 4, smoothness: float = 10.0
) -> Solution[IntraOrderPreserving]:
    """Fit the slopes to the output of a `Monotone`, without a certificate.

    Args:
        data: The predictions after `Monotone`.
        start: Slopes of a fit to similar data, to start from.
        ranks: As in `IntraOrderPreserving.fit`.
        knots: As in `IntraOrderPreserving.fit`.
        smoothness: As in `IntraOrderPreserving.fit`.
    """
    p = drop_impossible(data.p)
    v = neg_log_probs(p)
    lowest, contexts = maps.lowest_and_contexts(v.logits, ranks)  # the contexts are x_1 and x_2
    shares = np.linspace(0, 1, knots)
    positions = np.stack([weighted_quantiles(context, v.weights, shares) for context in to_numpy(contexts).T])
    # Weights of the knots by which their slopes are interpolated at the contexts of each row
    hats = _hat_weights(contexts, like(positions, contexts))
    minimum = _fit_slopes(v, lowest[:, : min(ranks, p.k - 1)], hats, smoothness, start, 0.01 * data.tolerance**2)
    fitted = IntraOrderPreserving(_NO_MONOTONE, positions, minimum.x.reshape(-1, 2, knots))
    return slopes_solution(fitted, minimum)


def _fit_slopes(
    v: Predictions, lowest: Any, hats: Any, smoothness: float, start: np.ndarray | None, tolerance: float
) -> Minimum:
    r"""Minimize the penalized NLL over the slopes at the knots, (ranks 2 j) flat, by Newton's method.

    The new logits are $-\sum_{rc} \theta_{rc} \, l_r h_c$ with the lengths l of `_segments` and the weights h of the
    knots, so that the Hessian of a row is the covariance of l under its probabilities, times $h h^T$.

    Args:
        v: Predictions whose "logits" are -log p.
        lowest: The lowest v of every row, (n ranks).
        hats: Weights of the knots of both contexts, (n 2j).
        smoothness: Factor of the penalty.
        start: Slopes to start from, if there are as many.
        tolerance: Gain by the quadratic model at which the search ends.
    """
    n, ranks, columns = v.total_weight, lowest.shape[1], hats.shape[1]
    size = ranks * columns
    w = like(example_weights(v), hats)
    label_segments = _segments(label_values(v).T, lowest)[:, 0]  # (ranks n)
    # The label's part of the NLL is linear in theta
    label_lengths = to_numpy((label_segments * w) @ hats).ravel() / n
    penalty = smoothness / n * _smoothing_matrix(ranks, columns // 2)

    def penalized_nll(theta: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the value, gradient and Hessian."""
        slopes = like(theta.reshape(ranks, columns), hats)

        def sum_rows(v: Any, lowest: Any, hats: Any, w: Any) -> Any:
            """Return the sums over rows of log norm, its gradient and its Hessian, flat."""
            xp, knot_weights = namespace(v), class_columns(hats, np.float64)  # (2j rows)
            segments = _segments(class_columns(v, np.float64), lowest)  # (ranks k rows)
            row_slopes = slopes @ knot_weights  # (ranks rows)
            z = -xp.sum(segments * row_slopes[:, None, :], axis=0)  # 0 for the lowest v of each row
            odds = exp_in_place(z)
            norm = xp.sum(odds, axis=0)
            weighted_segments = segments * (odds / norm)
            mean = xp.sum(weighted_segments, axis=1)
            covariance = xp.einsum("ikn,jkn->ijn", weighted_segments, segments) - mean[:, None] * mean
            knot_products = knot_weights[:, None] * knot_weights
            hessian = xp.reshape(w * covariance, (ranks**2, -1)) @ xp.reshape(knot_products, (columns**2, -1)).T
            parts = (w[None] @ xp.log(norm), (w * mean) @ hats, hessian)
            return xp.concat([xp.reshape(part, (-1,)) for part in parts])

        sums = sum_row_chunks(sum_rows, v.logits, lowest, hats, w, elements=1 << 15) / n
        log_norm, mean, products = np.split(sums, [1, 1 + size])
        # From (rank rank knot knot) to the order of theta, (rank knot) by (rank knot)
        hessian = products.reshape(ranks, ranks, columns, columns).transpose(0, 2, 1, 3).reshape(size, size)
        distance = theta - 0.5
        value = log_norm[0] + theta @ label_lengths + distance @ penalty @ distance
        return float(value), label_lengths - mean + 2 * penalty @ distance, hessian + 2 * penalty

    first = np.full(size, 0.5) if start is None or len(start) != size else start
    return newton(penalized_nll, first, lower=np.full(size, MIN_PIECE_SLOPE), tolerance=tolerance)


def _hat_weights(contexts: Any, knots: Any) -> Any:
    """Return weights of the knots (n 2j) with which values at the knots are interpolated linearly at the contexts.

    Beyond the end knots the interpolation is constant.

    Args:
        contexts: The two contexts of every row, (n 2).
        knots: Increasing knots of each context, (2 j).
    """
    xp, position = namespace(contexts), maps.position_in_pieces(contexts, knots)
    end = xp.ones_like(position[:, :, :1])
    # A knot gets what the piece below passes on to it, less what the piece above passes on to the next knot
    weights = xp.concat([end, position], axis=2) - xp.concat([position, 0 * end], axis=2)
    return xp.reshape(weights, (len(contexts), -1))


def _segments(v: Any, lowest: Any) -> Any:
    """Return how much of each segment between a row's lowest values (n r) lies below each v (k n), as (r k n)."""
    xp, lower = namespace(v), lowest.T
    upper = xp.concat([lower[1:], xp.full_like(lower[:1], 2 * MAX_NEG_LOG_PROB)])  # the last is above every v
    return xp.maximum(xp.minimum(v, upper[:, None]) - lower[:, None], 0.0)


def _smoothing_matrix(ranks: int, knots: int) -> np.ndarray:
    """Return the matrix P of the penalty x' P x: squared differences between neighboring knots and ranks, shrinkage.

    x holds the distances of the slopes from 1/2, (ranks 2 knots) flat.
    """
    rank_differences, knot_differences = np.diff(np.eye(ranks), axis=0), np.diff(np.eye(knots), axis=0)
    along_knots = np.kron(np.eye(ranks * 2), knot_differences.T @ knot_differences)
    along_ranks = np.kron(rank_differences.T @ rank_differences, np.eye(2 * knots))
    return along_knots + along_ranks + SHRINKAGE * np.eye(ranks * 2 * knots)
