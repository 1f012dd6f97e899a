"""One increasing map shared by all classes: better probabilities, the same predictions."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from calibrant._solve import Certificate, Minimum, few_threads, newton, summed
from calibrant.calibrators._apply import certified, its_classes, keeping
from calibrant.calibrators._fit import certify, fits
from calibrant.calibrators._scaling import nll_temperature
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
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
        unit = nll_temperature(p).unit
        possible = ~p.logits.gather(1, p.labels[:, None]).squeeze(1).isneginf()
        v = p.mapped(lambda z: -(z.double() / unit).log_softmax(-1).clamp_min(-DEEPEST))
        v = v if bool(possible.all()) else v[possible]
        knots = _knots(v, pieces)
        found = _slopes(v, knots, smoothness, warm_start)
        status = "at bound" if bool((found.x <= STEEPEST).any()) else "converged"
        fitted = cls(unit, knots, found.x)
        return certify(fitted, p, status, gradient=found.gradient, iterations=found.evaluations)

    @its_classes(certified)
    @keeping
    def __call__(self, logits: Logits) -> Logits:
        """Return -m(v), with m the increasing piecewise linear map."""
        v = -(logits.double() / self.temperature).log_softmax(-1)
        total = v * self.slopes[-1]  # linear beyond the last knot; below it, what the pieces differ by is added
        for knot, change in zip(self.knots[1:], self.slopes[:-1] - self.slopes[1:], strict=True):
            total.addcmul_(v.clamp_max(knot), change)
        return (-total).to(logits.dtype)


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


def _slopes(v: Predictions, knots: Tensor, smoothness: float, start: Monotone | None) -> Minimum:
    n, pieces = v.mass, len(knots)
    ends = [*knots[1:].tolist(), torch.inf]
    spans = list(zip(knots.tolist(), ends, strict=True))
    v_y = v.logits.gather(1, v.labels[:, None]).squeeze(1)
    parts = [v_y.clamp(a, b) - a for a, b in spans]
    label_part = torch.stack([x.mean() if v.weights is None else (x * v.weights).sum() / n for x in parts])
    weights = () if v.weights is None else (v.weights,)
    steps = torch.eye(pieces, dtype=torch.float64).diff(dim=0)
    rough = steps.mT @ steps  # theta' rough theta is the sum of squared differences

    def f(theta: Tensor) -> tuple[float, Tensor, Tensor]:
        def part(v: Tensor, *weights: Tensor) -> Tensor:
            lengths = torch.stack([v.clamp(a, b).sub_(a) for a, b in spans])  # (J rows k)
            flat = lengths.view(pieces, -1)
            s = (theta @ flat).view_as(v).neg_()
            norm = s.logsumexp(1)
            e = s.sub_(norm[:, None]).exp_()
            mean = (lengths * e).sum(2)  # (J rows)
            often = weights[0] if weights else torch.ones_like(norm)
            square = (flat * e.mul_(often[:, None]).view(-1)) @ flat.mT
            return torch.cat([often @ norm[:, None], mean @ often, (square - (often * mean) @ mean.mT).view(-1)])

        sums = summed(part, v.logits, *weights) / n
        mean, bend = sums[1 : pieces + 1], sums[pieces + 1 :].view(pieces, pieces)
        penalty = smoothness / n * rough
        value = sums[0] + theta @ label_part + theta @ penalty @ theta
        return float(value), label_part - mean + 2 * penalty @ theta, bend + 2 * penalty

    at = torch.ones(pieces, dtype=torch.float64)
    if start is not None and len(start.slopes) == pieces:
        at = start.slopes
    lower = torch.full((pieces,), STEEPEST, dtype=torch.float64)
    with few_threads(v.logits.numel()):
        return newton(f, at, lower=lower, tolerance=1e-8)
