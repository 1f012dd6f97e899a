"""An increasing map of log-probabilities that differs from row to row, so that predicted classes never change."""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from calibrant._core.kernels.lbfgs import Minimum
from calibrant._core.kernels.roots import Certificate
from calibrant._core.kernels.solvers import newton, sum_row_chunks
from calibrant._core.registry import CALIBRATORS
from calibrant._core.tensors import label_tensor, weight_tensor
from calibrant._core.types import FINITE_RANGE, Count, Logits, PositiveFloat, Range
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, example_mean, example_weights, fit_method
from calibrant.calibrators._monotone import (
    MAX_NEG_LOG_PROB,
    MIN_PIECE_SLOPE,
    Monotone,
    fit_monotone,
    slopes_solution,
    weighted_quantiles,
)
from calibrant.calibrators._temperature import FitInput, drop_impossible
from calibrant.predictions import Predictions

__all__ = ["IntraOrderPreserving"]

SHRINKAGE = 0.01  # penalty on the squared distance from `Monotone`, as a share of the smoothness
MIN_KNOT_DISTANCE = 1e-9  # replaces the distance 0 of equal quantiles as a divisor
_NO_MONOTONE = Monotone(  # changes no probability
    torch.tensor(1.0, dtype=torch.float64),
    torch.zeros(1, dtype=torch.float64),
    torch.ones(1, dtype=torch.float64),
)
MAX_CONTEXT = 100.0  # -log p is clipped here in the contexts, where impossible classes are all alike
ContextKnots = Annotated[Float[Tensor, "2 j"], FINITE_RANGE]
RankSlopes = Annotated[Float[Tensor, "r 2 j"], Range(gt=0)]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class IntraOrderPreserving:
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

    >>> one = torch.ones(()).double()
    >>> identity = Monotone(one, torch.zeros(1).double(), one[None])
    >>> twice = IntraOrderPreserving(identity, torch.zeros(2, 1).double(), torch.ones(1, 2, 1).double())  # s = 1 + 1
    >>> twice(torch.tensor([[2.0, 0.0]])).diff()
    tensor([[-4.]])
    """

    monotone: Monotone
    knots: ContextKnots  # (2, j) float64, increasing values of x_1 and x_2
    slopes: RankSlopes  # (ranks, 2, j) float64, at these knots
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
        v = _neg_log_probs(self.monotone, logits)
        lowest, contexts = _lowest_and_contexts(v, len(self.slopes))
        slopes = _hat_weights(contexts, self.knots).flatten(1) @ self.slopes.flatten(1).mT  # (n ranks)
        changes = -slopes.diff(dim=1)
        mapped = v * slopes[:, -1:]
        for r in range(min(len(self.slopes), v.shape[1]) - 1):
            mapped = mapped + changes[:, r, None] * v.minimum(lowest[:, r + 1, None])
        return -mapped


def fit_order_preserving(
    data: FitInput, start: Tensor | None = None, *, ranks: int = 5, knots: int = 4, smoothness: float = 10.0
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
    v = p.apply(lambda z: _neg_log_probs(_NO_MONOTONE, z).clamp_max(MAX_NEG_LOG_PROB))
    lowest, contexts = _lowest_and_contexts(v.logits, ranks)  # the contexts are x_1 and x_2
    quantiles = [weighted_quantiles(context, weight_tensor(v), np.linspace(0, 1, knots)) for context in contexts.T]
    positions = torch.from_numpy(np.stack(quantiles))  # of the knots
    # Weights of the knots by which their slopes are interpolated at the contexts of each row
    hats = _hat_weights(contexts, positions.to(contexts.device)).flatten(1)
    minimum = _fit_slopes(v, lowest[:, : min(ranks, p.k - 1)], hats, smoothness, start, 0.01 * data.tolerance**2)
    fitted = IntraOrderPreserving(_NO_MONOTONE, positions, minimum.x.view(-1, 2, knots))
    return slopes_solution(fitted, minimum)


def _fit_slopes(
    v: Predictions, lowest: Tensor, hats: Tensor, smoothness: float, start: Tensor | None, tolerance: float
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
    label_segments = _segments(v.logits.gather(1, label_tensor(v)[:, None]), lowest).mT * hats[:, None, :]
    label_lengths = example_mean(label_segments.flatten(1), v).cpu()  # the label's part of the NLL is linear in theta
    penalty = smoothness / n * _smoothing_matrix(ranks, columns // 2)

    def penalized_nll(theta: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the value, gradient and Hessian."""
        slopes = theta.view(ranks, columns).to(hats.device)

        def sum_rows(v: Tensor, lowest: Tensor, hats: Tensor, w: Tensor) -> Tensor:
            """Return the sums over rows of log norm, its gradient and its Hessian, flat."""
            segments = _segments(v, lowest)  # (rows k ranks)
            row_slopes = hats @ slopes.mT  # (rows ranks)
            z = -(segments @ row_slopes[:, :, None]).squeeze(2)
            log_norm = z.logsumexp(1)
            weighted_segments = (z - log_norm[:, None]).exp()[:, :, None] * segments
            mean = weighted_segments.sum(1)
            covariance = weighted_segments.mT @ segments - mean[:, :, None] * mean[:, None, :]
            hessian = (w[:, None] * covariance.flatten(1)).mT @ (hats[:, :, None] * hats[:, None, :]).flatten(1)
            return torch.cat([(w @ log_norm)[None], ((w[:, None] * mean).mT @ hats).flatten(), hessian.flatten()])

        sums = sum_row_chunks(sum_rows, v.logits, lowest, hats, example_weights(v)).cpu() / n
        log_norm, mean, products = sums.split([1, size, size * size])
        # From (rank rank knot knot) to the order of theta, (rank knot) by (rank knot)
        hessian = products.view(ranks, ranks, columns, columns).transpose(1, 2).reshape(size, size)
        distance = theta - 0.5
        value = log_norm + theta @ label_lengths + distance @ penalty @ distance
        return float(value), label_lengths - mean + 2 * penalty @ distance, hessian + 2 * penalty

    lower = torch.full((size,), MIN_PIECE_SLOPE, dtype=torch.float64)
    if start is None or len(start) != size:
        start = torch.full_like(lower, 0.5)
    return newton(penalized_nll, start, lower=lower, tolerance=tolerance)


def _neg_log_probs(monotone: Monotone, logits: Tensor) -> Tensor:
    """Return -log p of `Monotone`, (n k) float64."""
    return -monotone(logits.double()).log_softmax(-1)


def _lowest_and_contexts(v: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Return the max(ranks, 2) lowest v of every row in increasing order, and the contexts x_1 and x_2, (n 2)."""
    lowest = v.clamp_max(MAX_NEG_LOG_PROB).topk(min(max(ranks, 2), v.shape[1]), largest=False).values
    lead = lowest[:, :2].clamp_max(MAX_CONTEXT).diff(dim=1)
    return lowest, torch.cat([lead, v.clamp_max(MAX_CONTEXT).mean(1, keepdim=True)], 1)


def _hat_weights(contexts: Tensor, knots: Tensor) -> Tensor:
    """Return weights of the knots (n 2 j) with which values at the knots are interpolated linearly at the contexts.

    Beyond the end knots the interpolation is constant.

    Args:
        contexts: The two contexts of every row, (n 2).
        knots: Increasing knots of each context, (2 j).
    """
    width = knots.diff().clamp_min(MIN_KNOT_DISTANCE)
    position = ((contexts[:, :, None] - knots[:, :-1]) / width).clamp(0, 1)  # 0 at or below a piece, 1 above, (n 2 j-1)
    # A knot gets what the piece below passes on to it, less what the piece above passes on to the next knot
    return torch.nn.functional.pad(position, (1, 0), value=1.0) - torch.nn.functional.pad(position, (0, 1))


def _segments(v: Tensor, lowest: Tensor) -> Tensor:
    """Return how much of each segment between a row's lowest values (n r) lies below each v (n k), as (n k r)."""
    upper = torch.nn.functional.pad(lowest[:, 1:], (0, 1), value=2 * MAX_NEG_LOG_PROB)  # above every v
    return (v[:, :, None].minimum(upper[:, None, :]) - lowest[:, None, :]).clamp_min(0)


def _smoothing_matrix(ranks: int, knots: int) -> Tensor:
    """Return the matrix P of the penalty x' P x: squared differences between neighboring knots and ranks, shrinkage.

    x holds the distances of the slopes from 1/2, (ranks 2 knots) flat.
    """

    def eye(size: int) -> Tensor:
        return torch.eye(size, dtype=torch.float64)

    rank_differences, knot_differences = eye(ranks).diff(dim=0), eye(knots).diff(dim=0)
    along_knots = torch.kron(eye(ranks * 2), knot_differences.mT @ knot_differences)
    along_ranks = torch.kron(rank_differences.mT @ rank_differences, eye(2 * knots))
    return along_knots + along_ranks + SHRINKAGE * eye(ranks * 2 * knots)
