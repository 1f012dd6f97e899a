"""Scaling: an affine map of the logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant import catalog, metrics
from calibrant._solve import Certificate, first_minimum, increasing_root
from calibrant._types import InputError, Labels, Logits, Metric

__all__ = ["Identity", "Temperature"]

GRIDS = {  # temperatures of the papers' searches, in their order
    "mukhoti": np.cumsum(np.full(100, 0.1)),  # 0.1 .. 10.0; their code adds 0.1 in floats
    "wang": np.arange(1, 1001) / 100,  # 0.01 .. 10.00, as their text says
    "komisarenko": np.arange(1, 101) * 0.05,  # 0.05 .. 5.00
}
CHUNK = 1 << 17  # elements worked on at a time, to stay in cache


@dataclass(frozen=True, eq=False)
class Identity:
    """Leave the logits alone: the baseline of every table."""

    @classmethod
    def fit(cls, logits: Logits, labels: Labels) -> "Identity":
        """Learn nothing."""
        return cls()

    def __call__(self, logits: Logits) -> Logits:
        """Return z."""
        return logits


@dataclass(frozen=True, eq=False)
class Temperature:
    r"""Temperature scaling, $z / T$ (Guo et al. 2017, eq. 9). Keeps every prediction.

    >>> Temperature(torch.tensor(2.0))(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 0.]])
    """

    temperature: Tensor  # () float64, > 0
    certificate: Certificate | None = None

    @classmethod
    def fit(
        cls, logits: Logits, labels: Labels, *, criterion: str = "nll", grid: str | Sequence[float] = "mukhoti"
    ) -> "Temperature":
        """Find T on validation predictions.

        `criterion="nll"` is solved exactly: the NLL is convex in 1/T, so Newton's method in log(1/T) ends at its one
        minimum, in 5 to 8 passes; the certificate says "separable" (every example already right, T -> 0) or "at
        bound" (worse than uniform, T -> infinity) where there is none. Any other criterion is the text of a metric,
        such as "ece" or "adaptive_ece(edges='mukhoti')", and takes the first strict minimum over `grid`: a sequence
        of temperatures, or the search of a paper by name: "mukhoti", "wang", "komisarenko".
        """
        if criterion == "nll":
            return cls._by_nll(logits, labels)
        return cls._by_grid(logits, labels, criterion, temperatures(grid))

    @classmethod
    def _by_nll(cls, logits: Tensor, labels: Tensor) -> "Temperature":
        curve: dict[float, tuple[float, float, float]] = {}  # log(1/T) -> nll, spread of the slope, curvature

        def slope(u: float) -> tuple[float, float]:
            b = math.exp(u)
            value, first, second, spread = _nll_along(logits, labels, b)
            curve[u] = value, spread, second
            return b * first, b * first + b * b * second

        typical = _spread(logits)
        bound = 25.0
        center = -math.log(typical)
        root = increasing_root(slope, 0.0, min(0.0, center - bound), max(0.0, center + bound))
        value, spread, second = curve[root.x]
        t = math.exp(-root.x)
        right = float(metrics.accuracy(logits, labels))
        certificate = Certificate(
            criterion="nll",
            before=curve[0.0][0],
            after=value,
            status="converged" if root.inside else ("separable" if root.x > 0 else "at bound"),
            gradient=abs(root.value),
            iterations=root.iterations,
            accuracy_before=right,
            accuracy_after=right,
            standard_error=t * t * math.sqrt(spread / len(labels)) / second if root.inside else math.nan,
        )
        return cls(torch.tensor(t, dtype=torch.float64), certificate)

    @classmethod
    def _by_grid(cls, logits: Tensor, labels: Tensor, criterion: str, grid: Sequence[float]) -> "Temperature":
        metric: Metric = catalog.resolve(criterion, metrics)
        z = logits.double()
        t, value = first_minimum(lambda t: float(metric(z / t, labels)), grid)
        right = float(metrics.accuracy(logits, labels))
        certificate = Certificate(
            criterion=criterion,
            before=float(metric(z, labels)),
            after=value,
            status="at bound" if t in (min(grid), max(grid)) else "grid",
            iterations=len(grid),
            accuracy_before=right,
            accuracy_after=right,
        )
        return cls(torch.tensor(t, dtype=torch.float64), certificate)

    def __call__(self, logits: Logits) -> Logits:
        """Return z / T."""
        return logits / self.temperature


def temperatures(grid: str | Sequence[float]) -> list[float]:
    """Return a grid of temperatures, given or by the name of its paper."""
    if isinstance(grid, str):
        if grid not in GRIDS:
            raise InputError(f"no grid {grid!r}; there are {', '.join(GRIDS)}, or give the temperatures themselves")
        return GRIDS[grid].tolist()
    if not grid or min(grid) <= 0:
        raise InputError("a grid of temperatures must hold at least one number, all above 0")
    return list(map(float, grid))


def _spread(logits: Tensor) -> float:
    """Return the root mean square distance of a finite logit from the top one of its row."""
    gap = (logits.double() - logits.double().amax(-1, keepdim=True)).clamp_min(-1e30)
    return float(gap.square().mean().sqrt()) or 1.0


def _nll_along(logits: Tensor, labels: Tensor, b: float) -> tuple[float, float, float, float]:
    """Return the NLL of b z, its first and second derivative in b, and the variance of the first over examples."""
    rows = max(1, CHUNK // logits.shape[1])
    total = torch.zeros(4, dtype=torch.float64)
    for z, y in zip(logits.split(rows), labels.split(rows), strict=True):
        z = z.double()
        z = (z - z.amax(-1, keepdim=True)).clamp_min(-1e300)
        e = (b * z).exp()
        norm = e.sum(-1)
        e /= norm[:, None]
        z_y = z.gather(-1, y[:, None]).squeeze(-1)
        first = (e * z).sum(-1)
        second = (e * z * z).sum(-1) - first.square()
        slope = first - z_y
        total += torch.stack([(norm.log() - b * z_y).sum(), slope.sum(), second.sum(), slope.square().sum()]).cpu()
    value, slope, curvature, square = (total / len(labels)).tolist()
    return value, slope, curvature, square - slope * slope
