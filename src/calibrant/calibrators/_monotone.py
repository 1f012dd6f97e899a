"""One increasing map shared by all classes: better probabilities, the same predictions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant._solve import Certificate, few_threads, minimize, summed
from calibrant._types import InputError, Labels, Logits
from calibrant.calibrators._certify import certify
from calibrant.calibrators._scaling import nll_temperature
from calibrant.predictions import Predictions

__all__ = ["Monotone"]

STEEPEST = 1e-3  # the least slope, so that the map stays strictly increasing
DEEPEST = 1e4  # -log p is cut here while fitting; what lies deeper has probability 0 anyway


@dataclass(frozen=True, eq=False)
class Monotone:
    r"""A convex increasing-by-construction map of the log-probabilities, shared by all classes.

    With $v_k = -\log \mathrm{softmax}(z / T)_k \ge 0$ and knots $0 = e_1 < \dots < e_J$ the new logits are
    $-\sum_j \theta_j [\min(v_k, e_{j+1}) - e_j]_+$, $\theta_j > 0$: piecewise linear, so the NLL is convex in theta,
    and increasing, so the order of the classes never changes. T is the temperature of least NLL and the knots are
    quantiles of the two smallest v of every row and of the label's. Minimizes mean NLL $+ \frac{1}{n} \sum_j
    (\theta_{j+1} - \theta_j)^2$. Temperature scaling with one piece; a convex form of the order-preserving
    networks of Rahimi et al. (2020, "DIAG").

    >>> one = torch.ones((), dtype=torch.float64)
    >>> Monotone(one, torch.zeros(1).double(), torch.tensor([2.0]).double())(torch.zeros(1, 2))
    tensor([[-1.3863, -1.3863]])
    """

    temperature: Tensor  # () float64, > 0
    knots: Tensor  # (J) float64, increasing from 0, in nats
    slopes: Tensor  # (J) float64, > 0
    certificate: Certificate | None = None

    @classmethod
    def fit(
        cls,
        logits: Logits,
        labels: Labels,
        start: "Monotone | None" = None,
        *,
        pieces: int = 8,
        smoothness: float = 1.0,
    ) -> "Monotone":
        """Find the slopes; `start` is a fit to begin from. `smoothness` multiplies the penalty on their differences."""
        if pieces < 1 or smoothness < 0:
            raise InputError(f"need pieces >= 1 and smoothness >= 0, got {pieces} and {smoothness}")
        logits, labels = Predictions(logits, labels)
        unit = torch.tensor(nll_temperature(logits, labels).scale, dtype=torch.float64)
        v = -(logits.double() / unit).log_softmax(-1).clamp_min(-DEEPEST)
        possible = ~logits.gather(1, labels[:, None]).squeeze(1).isneginf()
        v_fit, y_fit = v[possible], labels[possible]
        knots = _knots(v_fit, y_fit, pieces)
        slopes, gradient, evaluations = _slopes(v_fit, y_fit, knots, smoothness, start)
        status = "at bound" if bool((slopes <= STEEPEST).any()) else "converged"
        fitted = cls(unit, knots, slopes)
        return certify(fitted, logits, labels, status, gradient=gradient, iterations=evaluations)

    def __call__(self, logits: Logits) -> Logits:
        """Return -m(v), with m the increasing piecewise linear map."""
        v = -(logits.double() / self.temperature).log_softmax(-1)
        total = v * self.slopes[-1]  # linear beyond the last knot; below it, what the pieces differ by is added
        for knot, change in zip(self.knots[1:], self.slopes[:-1] - self.slopes[1:], strict=True):
            total = total + change * v.clamp_max(knot)
        return (-total).to(logits.dtype)


def _knots(v: Tensor, labels: Tensor, pieces: int) -> Tensor:
    """Quantiles of where the data are: the two smallest v of every row, and the label's."""
    where = torch.cat([v.topk(2, largest=False).values.reshape(-1), v.gather(1, labels[:, None]).reshape(-1)])
    import numpy as np

    inner = np.unique(np.quantile(where.cpu().numpy(), np.linspace(0, 1, pieces + 1)[1:-1]))
    inner = inner[inner > 1e-12]
    return torch.cat([torch.zeros(1, dtype=torch.float64), torch.from_numpy(inner)])


def _slopes(
    v: Tensor, labels: Tensor, knots: Tensor, smoothness: float, start: Monotone | None
) -> tuple[Tensor, float, int]:
    n, pieces = len(v), len(knots)
    ends = [*knots[1:].tolist(), torch.inf]
    spans = list(zip(knots.tolist(), ends, strict=True))
    v_y = v.gather(1, labels[:, None]).squeeze(1)
    label_part = torch.stack([(v_y.clamp(a, b) - a).mean() for a, b in spans])

    def f(theta: Tensor) -> tuple[float, Tensor]:
        th = theta.tolist()

        def part(v: Tensor) -> Tensor:
            lengths = [v.clamp(a, b).sub_(a) for a, b in spans]
            s = lengths[0] * -th[0]
            for length, slope in zip(lengths[1:], th[1:], strict=True):
                s.add_(length, alpha=-slope)
            top = s.amax(-1, keepdim=True)
            e = s.sub_(top).exp_()
            norm = e.sum(-1, keepdim=True)
            e.div_(norm)
            pull = [torch.dot(e.view(-1), length.view(-1)) for length in lengths]
            return torch.stack([norm.log_().sum() + top.sum(), *pull])

        sums = summed(part, v) / n
        difference = theta.diff()
        value = sums[0] + theta @ label_part + smoothness / n * difference.square().sum()
        bend = torch.zeros_like(theta)
        bend[1:] += difference
        bend[:-1] -= difference
        return float(value), label_part - sums[1:] + 2 * smoothness / n * bend

    at = torch.ones(pieces, dtype=torch.float64)
    if start is not None and len(start.slopes) == pieces:
        at = start.slopes
    lower = torch.full((pieces,), STEEPEST, dtype=torch.float64)
    with few_threads(v.numel()):
        theta, _, gradient, evaluations = minimize(f, at, lower=lower, tolerance=1e-8)
    return theta, gradient, evaluations
