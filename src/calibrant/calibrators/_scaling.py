"""Scaling: an affine map of the logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant._bins import log_likelihood
from calibrant._solve import Certificate, Root, Status, increasing_root, summed
from calibrant._types import InputError, Labels, Logits
from calibrant.calibrators._certify import certify
from calibrant.calibrators._grid import search
from calibrant.predictions import Predictions, digest

__all__ = ["Identity", "Temperature"]

GRIDS = {  # temperatures of the papers' searches, in their order
    "mukhoti": np.cumsum(np.full(100, 0.1)),  # 0.1 .. 10.0; their code adds 0.1 in floats
    "wang": np.arange(1, 1001) / 100,  # 0.01 .. 10.00, as their text says
    "komisarenko": np.arange(1, 101) * 0.05,  # 0.05 .. 5.00
}


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
        minimum, in 3 to 8 passes; the certificate says "separable" (every example already right, T -> 0) or "at
        bound" (worse than uniform, T -> infinity) where there is none. Any other criterion is the text of a metric,
        such as "ece" or "adaptive_ece(edges='mukhoti')", and takes the first strict minimum over `grid`: a sequence
        of temperatures, or the search of a paper by name: "mukhoti", "wang", "komisarenko".
        """
        logits, labels = Predictions(logits, labels)
        if criterion == "nll":
            return cls._by_nll(logits, labels)
        ts = temperatures(grid)
        _, t, _ = search(logits, labels, criterion, [((0.0,), ts)])
        status = "at bound" if t in (min(ts), max(ts)) else "grid"
        fitted = cls(torch.tensor(t, dtype=torch.float64))
        return certify(fitted, logits, labels, status, criterion=criterion, iterations=len(ts))

    @classmethod
    def _by_nll(cls, logits: Tensor, labels: Tensor) -> "Temperature":
        found = nll_temperature(logits, labels)
        before, right = _survey(logits, labels)
        possible = len(labels) == found.used
        certificate = Certificate(
            criterion="nll",
            before=before,
            after=found.nll if possible else math.inf,
            status=found.status,
            gradient=found.gradient,
            iterations=found.iterations,
            nll_before=before,
            nll_after=found.nll if possible else math.inf,
            accuracy_before=right,
            accuracy_after=right,
            standard_error=found.standard_error,
            data=digest(logits, labels),
        )
        return cls(torch.tensor(found.temperature, dtype=torch.float64), certificate)

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


@dataclass(frozen=True)
class Found:
    """The temperature of least NLL, and how it was found."""

    temperature: float
    nll: float
    status: Status
    gradient: float  # in log(1/T), where the NLL was last asked
    iterations: int  # passes over all the data
    standard_error: float
    spread: float  # of the logits: the scale to fall back on where no temperature is best
    used: int  # examples whose true class was possible at all

    @property
    def scale(self) -> float:
        """The temperature, or the spread of the logits where the optimum lies at infinity."""
        return self.temperature if self.status == "converged" else self.spread


def nll_temperature(logits: Tensor, labels: Tensor) -> Found:
    """Solve for the T of least NLL by Newton's method in u = log(1/T).

    Large data are approached by a sixteenth of the rows in double, then by all rows in single precision, so that at
    most two or three passes over everything need double precision. Examples whose true class has probability 0 lose
    infinitely at every T and say nothing about it: they are left out.
    """
    possible = ~logits.gather(1, labels[:, None]).squeeze(1).isneginf()
    if not bool(possible.all()):
        logits, labels = logits[possible], labels[possible]
        if not len(labels):
            raise InputError("every true class has probability 0 (logit -inf): no temperature changes that")
    curve: dict[float, tuple[float, float, float]] = {}  # u -> nll, spread of the slope, curvature
    passes = 0

    def search(z: Tensor, y: Tensor, start: float, dtype: torch.dtype, tolerance: float) -> Root:
        def slope(u: float) -> tuple[float, float]:
            b = math.exp(u)
            value, first, second, spread = _nll_along(z, y, b, dtype)
            curve[u] = value, spread, second
            return b * first, b * first + b * b * second

        return increasing_root(slope, start, center - 25.0, center + 25.0, tolerance)

    typical = _spread(logits[:: max(1, logits.numel() >> 15)])
    center = start = -math.log(typical)
    if logits.numel() >= 1 << 18:
        start = search(logits[::16], labels[::16], start, torch.float64, 1e-2).x
        single = search(logits, labels, start, torch.float32, 1e-3)
        start, passes = single.x, single.iterations
    root = search(logits, labels, start, torch.float64, 1e-6)
    asked = min(curve, key=lambda u: abs(u - root.x)) if root.x not in curve else root.x
    value, spread, second = curve[asked]
    t = math.exp(-root.x)
    return Found(
        temperature=t,
        nll=value,
        status="converged" if root.inside else ("separable" if root.x > center else "at bound"),
        gradient=abs(root.value),
        iterations=passes + root.iterations,
        standard_error=t * t * math.sqrt(spread / len(labels)) / second if root.inside and second > 0 else math.nan,
        spread=typical,
        used=len(labels),
    )


def _spread(logits: Tensor) -> float:
    """Return the root mean square distance of a finite logit from the top one of its row."""
    gap = logits.double() - logits.double().amax(-1, keepdim=True)
    return float(gap[gap.isfinite()].square().mean().sqrt()) or 1.0


def _survey(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Return the NLL and the accuracy of the logits as they are."""

    def part(z: Tensor, y: Tensor) -> Tensor:
        right = (z.argmax(-1) == y).sum().double()
        return torch.stack([-log_likelihood(z.double(), y).sum(), right.to(z.device)])

    nll, right = (summed(part, logits, labels) / len(labels)).tolist()
    return nll, right


def _nll_along(logits: Tensor, labels: Tensor, b: float, dtype: torch.dtype) -> tuple[float, float, float, float]:
    """Return the NLL of b z, its first and second derivative in b, and the variance of the first over examples."""
    lowest = -1e300 if dtype == torch.float64 else -1e37

    def part(z: Tensor, y: Tensor) -> Tensor:
        z = z.to(dtype, copy=True)
        z.sub_(z.amax(-1, keepdim=True)).clamp_min_(lowest)
        e = (b * z).exp_()
        norm = e.sum(-1)
        z_y = z.gather(-1, y[:, None]).squeeze(-1)
        first = e.mul_(z).sum(-1) / norm
        second = e.mul_(z).sum(-1) / norm - first.square()
        slope = first - z_y
        parts = (norm.log() - b * z_y, slope, second, slope.square())
        return torch.stack([part.sum(dtype=torch.float64) for part in parts])

    value, slope, curvature, square = (summed(part, logits, labels) / len(labels)).tolist()
    return value, slope, curvature, square - slope * slope
