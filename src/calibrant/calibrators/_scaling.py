"""Scaling: an affine map of the logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant._bins import LOG2_E, is_predicted
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

        `criterion="nll"` is solved exactly: the NLL is convex in 1/T, so Halley's method in log(1/T) ends at its one
        minimum, in 2 to 8 passes; the certificate says "separable" (every example already right, T -> 0) or "at
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
        possible = len(labels) == found.used
        before, right = found.before if possible else math.inf, found.right / len(labels)
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
    gradient: float  # in log(1/T), by the Taylor series of the last pass
    iterations: int  # passes over all the data
    standard_error: float
    spread: float  # of the logits: the scale to fall back on where no temperature is best
    used: int  # examples whose true class was possible at all
    before: float  # NLL of these at T = 1
    right: int  # those whose true class is the predicted one

    @property
    def scale(self) -> float:
        """The temperature, or the spread of the logits where the optimum lies at infinity."""
        return self.temperature if self.status == "converged" else self.spread


def nll_temperature(logits: Tensor, labels: Tensor) -> Found:
    """Solve for the T of least NLL by Halley's method in u = log(1/T).

    Large data are approached by a sixteenth of the rows, then by all rows in single precision, so that one or two
    passes over everything need double precision. Examples whose true class has probability 0 lose infinitely at every
    T and say nothing about it: they are left out.
    """
    possible = ~logits.gather(1, labels[:, None]).squeeze(1).isneginf()
    if not bool(possible.all()):
        logits, labels = logits[possible], labels[possible]
        if not len(labels):
            raise InputError("every true class has probability 0 (logit -inf): no temperature changes that")

    def search(z: Tensor, y: Tensor, start: float, dtype: torch.dtype, tolerance: float) -> Root:
        def slope(u: float) -> tuple[float, ...]:
            b = math.exp(u)
            value, first, second, third, square, *rest = _nll_along(z, y, b, dtype)
            in_u = b * first, b * (first + b * second), b * (first + b * (3 * second + b * third))
            return *in_u, value, second, square - first * first, *rest

        return increasing_root(slope, start, center - 25.0, center + 25.0, tolerance)

    typical = _spread(logits[:: max(1, logits.numel() >> 15)])
    center = -math.log(typical)
    start = center + 2.0  # logits spread over some seven temperatures
    passes = 0
    if logits.numel() >= 1 << 18:
        start = search(logits[::16], labels[::16], start, torch.float32, 0.1).x
        single = search(logits, labels, start, torch.float32, 0.06)
        start, passes = single.x, single.iterations
    root = search(logits, labels, start, torch.float64, 3e-4)
    slope, bend, third, nll, second, spread, before, right = root.last
    t, s = math.exp(-root.x), root.step
    return Found(
        temperature=t,
        nll=nll + slope * s + bend * s**2 / 2 + third * s**3 / 6,
        status="converged" if root.inside else ("separable" if root.x > center else "at bound"),
        gradient=abs(slope + bend * s + third * s**2 / 2),
        iterations=passes + root.iterations,
        standard_error=t * t * math.sqrt(spread / len(labels)) / second if root.inside and second > 0 else math.nan,
        spread=typical,
        used=len(labels),
        before=before,
        right=round(right * len(labels)),
    )


def _spread(logits: Tensor) -> float:
    """Return the root mean square distance of a finite logit from the top one of its row."""
    gap = logits.double() - logits.double().amax(-1, keepdim=True)
    square = gap.nan_to_num(neginf=0.0).square().sum() / gap.isfinite().sum()
    return float(square.sqrt()) or 1.0


def _nll_along(logits: Tensor, labels: Tensor, b: float, dtype: torch.dtype) -> list[float]:
    """Return means over examples: the NLL of b z, its first three derivatives in b, and the square of the first.

    The derivatives are the cumulants of z under softmax(b z), less z_y in the first. In double, the NLL of z itself
    and the share of right predictions follow.
    """
    lowest = -1e300 if dtype == torch.float64 else -1e37

    def part(z: Tensor, y: Tensor) -> Tensor:
        margin = z.to(torch.promote_types(z.dtype, dtype), copy=True)
        margin = margin.sub_(margin.amax(-1, keepdim=True)).clamp_min_(lowest).to(dtype)
        e = margin.mul(b * LOG2_E).exp2_()
        powers = [e.sum(-1), *(e.mul_(margin).sum(-1) for _ in range(3))]
        norm, m1, m2, m3, z_y = torch.stack([*powers, margin.gather(-1, y[:, None]).squeeze(-1)]).double()
        m1, m2, m3 = m1 / norm, m2 / norm, m3 / norm
        first = m1 - z_y
        parts = [norm.log() - b * z_y, first, m2 - m1**2, m3 - 3 * m1 * m2 + 2 * m1**3, first**2]
        if dtype == torch.float64:
            total = margin.mul_(LOG2_E).exp2_().sum(-1)
            parts += [total.log() - z_y, is_predicted(z_y, total, z, y).double()]
        return torch.stack(parts).sum(1)

    return (summed(part, logits, labels) / len(labels)).tolist()
