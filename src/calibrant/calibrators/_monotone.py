"""One increasing map shared by all classes: better probabilities, the same predictions."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from calibrant._softmax import LOG2_E
from calibrant._solve import LARGEST_GAP, Certificate, Minimum, newton, summed
from calibrant.calibrators._apply import certified, its_classes, keeping
from calibrant.calibrators._fit import Solution, fits, mean_of
from calibrant.calibrators._scaling import Found, nll_temperature, of_possible
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import BLOCK, Predictions
from calibrant.types import Count, Logits, NonNegative, Points, PositiveNumber, Range

__all__ = ["Monotone"]

STEEPEST = 1e-3  # the least slope, so that the map stays strictly increasing
DEEPEST = 1e4  # -log p is cut here while fitting; what lies deeper has probability 0 anyway


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Monotone:
    r"""A convex increasing-by-construction map of the log-probabilities, shared by all classes.

    With $v_k = -\log \mathrm{softmax}(z / T)_k \ge 0$ and knots $0 = e_1 < \dots < e_J$ the new logits are
    $-\sum_j \theta_j [\min(v_k, e_{j+1}) - e_j]_+$, $\theta_j > 0$: piecewise linear, so the NLL is convex in theta,
    and increasing, so the order of the classes never changes. T is the temperature of least NLL and the knots are
    quantiles of the two smallest v of every row and of the label's. Minimizes mean NLL $+ \frac{1}{n} \sum_j
    (\theta_{j+1} - \theta_j)^2$. Temperature scaling with one piece; a convex form of the order-preserving
    networks of Rahimi et al. (2020, "DIAG"). For the number of classes it was fitted on.

    >>> one = torch.ones((), dtype=torch.float64)
    >>> Monotone(one, torch.zeros(1).double(), torch.tensor([2.0]).double())(torch.zeros(1, 2))
    tensor([[-1.3863, -1.3863]])
    """

    temperature: PositiveNumber  # float64
    knots: Points  # (J) float64, increasing from 0, in nats
    slopes: Annotated[Points, Range(above=0)]  # (J) float64
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "Monotone | None" = None,
        pieces: Count = 8,
        smoothness: NonNegative = 1.0,
    ) -> "Monotone":
        """Find the slopes; `warm_start` is a fit to begin from, `smoothness` multiplies the penalty."""
        guess = None if warm_start is None else warm_start.slopes
        return monotone(p, nll_temperature(p), guess, pieces=pieces, smoothness=smoothness).certified(p)

    @its_classes(certified)
    @keeping
    def __call__(self, logits: Logits) -> Logits:
        """Return -m(v), with m the increasing piecewise linear map."""
        v = -(logits.double() / self.temperature).log_softmax(-1)
        total = v * self.slopes[-1]  # linear beyond the last knot; below it, what the pieces differ by is added
        for knot, change in zip(self.knots[1:], self.slopes[:-1] - self.slopes[1:], strict=True):
            total.addcmul_(v.clamp_max(knot), change)
        return (-total).to(logits.dtype)


def monotone(
    p: Predictions,
    at: Found,
    start: Tensor | None = None,
    *,
    pieces: int = 8,
    smoothness: float = 1.0,
    tolerance: float = 1e-14,
) -> Solution[Monotone]:
    """Find the map, given the temperature of least NLL and slopes to begin from."""
    unit = at.unit
    v = of_possible(p).mapped(lambda z: -(z.double() / unit).log_softmax(-1).clamp_min(-DEEPEST))
    knots = _knots(v, pieces)
    found = _slopes(v, knots, smoothness, start, tolerance)
    status = "at bound" if bool((found.x <= STEEPEST).any()) else "converged"
    status = "not converged" if found.gap > LARGEST_GAP else status
    fitted = Monotone(unit, knots, found.x)
    return Solution(fitted, status, found.gradient, found.evaluations, search=found.x, gap=found.gap)


def _knots(v: Predictions, pieces: int) -> Tensor:
    """Quantiles of where the data are: the two smallest v of every row, and the label's."""
    of_label = v.logits.gather(1, v.labels[:, None])
    where = torch.cat([v.logits.topk(2, largest=False).values.reshape(-1), of_label.reshape(-1)])
    often = None if v.weights is None else torch.cat([v.weights.repeat_interleave(2), v.weights])
    inner = np.unique(_quantiles(where, often, np.linspace(0, 1, pieces + 1)[1:-1]))
    inner = inner[inner > 1e-12]
    return torch.cat([torch.zeros(1, dtype=torch.float64), torch.from_numpy(inner)])


def _quantiles(values: Tensor, often: Tensor | None, shares: np.ndarray) -> np.ndarray:
    """Return numpy's quantiles of values of which each is there as often as its weight says."""
    if often is None:
        return np.quantile(values.cpu().numpy(), shares)
    x, order = values.cpu().sort()
    w = often.cpu()[order].numpy()
    end = w.cumsum()
    place = np.stack([end - w, np.maximum(end - 1, end - w)], 1).ravel()  # of the first copy and of the last
    return np.interp(shares * (end[-1] - 1), place, x.numpy().repeat(2))


def _slopes(v: Predictions, knots: Tensor, smoothness: float, start: Tensor | None, tolerance: float) -> Minimum:
    r"""Newton's method; a pass adds up, of every row and piece, odds that lie there and how far they lie in it.

    The part of a v in piece l is its whole width where v lies in a higher one, and 0 where it lies in a lower one: of
    every element only the piece that it lies in is looked at.
    """
    n, pieces, where = v.mass, len(knots), v.logits.device
    knots = knots.to(where)
    width = torch.cat([knots.diff(), knots.new_zeros(1)])
    label_part = mean_of(_parts(v.logits.gather(1, v.labels[:, None]).squeeze(1), knots), v).cpu()
    inside, past = _placed(v.logits, knots)
    weights = () if v.weights is None else (v.weights,)
    steps = torch.eye(pieces, dtype=torch.float64).diff(dim=0)
    penalty = smoothness / n * steps.mT @ steps  # theta' penalty theta is that of the squared differences

    def f(slopes: Tensor) -> tuple[float, Tensor, Tensor]:
        theta = slopes.to(where)
        below = torch.cat([theta.new_zeros(1), (theta * width)[:-1].cumsum(0)])

        def part(past: Tensor, inside: Tensor, *weights: Tensor) -> Tensor:
            index = inside.long()
            flat = index.view(-1)
            s = torch.addcmul(below[flat].view_as(past), theta[flat].view_as(past), past)
            least = s.amin(1, keepdim=True)
            e = s.sub_(least).mul_(-LOG2_E).exp2_()

            def added() -> Tensor:
                return past.new_zeros(len(past), pieces).scatter_add_(1, index, e)

            here = added()
            e.mul_(past)
            far = added()
            e.mul_(past)
            farther = added()
            norm = here.sum(1)
            higher = torch.nn.functional.pad(here[:, 1:].flip(1).cumsum(1).flip(1), (0, 1))
            mean = (far + width * higher) / norm[:, None]
            own = (farther + width.square() * higher) / norm[:, None]
            often = weights[0] if weights else torch.ones_like(norm)
            return torch.cat(
                [often @ (norm.log()[:, None] - least), often @ mean, often @ own, ((often * mean.mT) @ mean).view(-1)]
            )

        sums = summed(part, past, inside, *weights).cpu() / n
        mean, own, mixed = sums[1 : pieces + 1], sums[pieces + 1 : 2 * pieces + 1], sums[2 * pieces + 1 :]
        square = (width.cpu()[:, None] * mean).triu(1)
        square = square + square.mT + own.diag() - mixed.view(pieces, pieces)
        value = sums[0] + slopes @ label_part + slopes @ penalty @ slopes
        return float(value), label_part - mean + 2 * penalty @ slopes, square + 2 * penalty

    at = torch.ones(pieces, dtype=torch.float64)
    if start is not None and len(start) == pieces:
        at = start
    lower = torch.full((pieces,), STEEPEST, dtype=torch.float64)
    return newton(f, at, lower=lower, tolerance=tolerance)


def _placed(v: Tensor, knots: Tensor) -> tuple[Tensor, Tensor]:
    """Which piece each element lies in, and how far: v itself, overwritten some rows at a time."""
    inside = torch.empty(v.shape, dtype=torch.uint8 if len(knots) < 256 else torch.int64, device=v.device)
    rows = max(1, BLOCK // v.shape[1])
    for far, piece in zip(v.split(rows), inside.split(rows), strict=True):
        piece.copy_(torch.bucketize(far, knots[1:]))
        far -= knots[piece.long()]
    return inside, v


def _parts(v: Tensor, knots: Tensor) -> Tensor:
    """Return how much of every v lies in each piece, (n J)."""
    ends = torch.cat([knots[1:], knots.new_full((1,), torch.inf)])
    return v[:, None].clamp(knots, ends) - knots
