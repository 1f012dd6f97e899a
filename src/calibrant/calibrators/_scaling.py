"""Scaling: an affine map of the logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant._fast import kernels
from calibrant._softmax import LOG2_E, is_predicted
from calibrant._solve import Certificate, Curve, Root, Status, increasing_root, summed
from calibrant.calibrators._apply import certified, its_classes, keeping
from calibrant.calibrators._fit import certify, fits, honest, median_of
from calibrant.calibrators._grid import search
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.types import InputError, Logits, MetricText, Positive, PositiveNumber, TemperatureGrid

__all__ = ["Identity", "Temperature"]

GRIDS = {  # temperatures of the papers' searches, in their order
    "mukhoti": np.cumsum(np.full(100, 0.1)),  # 0.1 .. 10.0; their code adds 0.1 in floats
    "wang": np.arange(1, 1001) / 100,  # 0.01 .. 10.00, as their text says
    "komisarenko": np.arange(1, 501) / 100,  # 0.01 .. 5.00, as their text says, for focal temperature scaling too
    "komisarenko_code": np.arange(1, 101) * 0.05,  # 0.05 .. 5.00
}


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Identity:
    """No calibration: leave the logits alone, of whatever classes; the baseline of every table."""

    @classmethod
    @fits
    def fit(cls, p: Predictions) -> "Identity":
        """Learn nothing."""
        return cls()

    def __call__(self, logits: Logits) -> Logits:
        """Return z."""
        return logits


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Temperature:
    r"""Temperature scaling, $z / T$ (Guo et al. 2017, eq. 9). Keeps every prediction.

    A fitted one is for as many classes as it was fitted on, one made by hand for any number.

    >>> Temperature(torch.tensor(2.0))(torch.tensor([[4.0, 0.0]]))
    tensor([[2., 0.]])
    """

    temperature: PositiveNumber  # float64
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(
        cls, p: Predictions, *, criterion: MetricText = "nll", grid: TemperatureGrid | Sequence[Positive] | None = None
    ) -> "Temperature":
        """Find T on validation predictions.

        `criterion="nll"` without a grid is solved exactly: the NLL is convex in 1/T, so Halley's method in log(1/T)
        ends at its one minimum, in 2 to 8 passes; the certificate says "separable" (every example already right,
        T -> 0) or "at bound" (worse than uniform, T -> infinity) where there is none. Any other criterion is the text
        of a metric, such as "ece" or "adaptive_ece(edges='mukhoti')". It, and "nll" with a grid, takes the first
        strict minimum over `grid`: a sequence of temperatures, or the search of a paper by name: "mukhoti" (the
        default), "wang", "komisarenko", "komisarenko_code".
        """
        if criterion == "nll" and grid is None:
            return cls._by_nll(p)
        ts = temperatures("mukhoti" if grid is None else grid)
        t = search(p, criterion, [((0.0,), ts)]).temperature
        status = "at bound" if t in (min(ts), max(ts)) else "grid"
        fitted = cls(torch.tensor(t, dtype=torch.float64))
        return certify(fitted, p, status, criterion=criterion, iterations=len(ts))

    @classmethod
    def _by_nll(cls, p: Predictions) -> "Temperature":
        """Certify by what the search has seen, without another pass."""
        found = nll_temperature(p)
        possible = found.used == len(p)
        before, after = (found.before, found.nll) if possible else (math.inf, math.inf)
        certificate = Certificate(
            criterion="nll",
            before=before,
            after=after,
            status=honest(found.status, before, after),
            gradient=found.gradient,
            iterations=found.iterations,
            nll_before=before,
            nll_after=after,
            accuracy_before=found.right / p.mass,
            accuracy_after=found.right / p.mass,
            standard_error=found.standard_error,
            data=p.digest,
            classes=p.logits.shape[1],
        )
        return cls(torch.tensor(found.temperature, dtype=torch.float64), certificate)

    @its_classes(certified)
    @keeping
    def __call__(self, logits: Logits) -> Logits:
        """Return z / T."""
        return logits / self.temperature


def temperatures(grid: str | Sequence[float]) -> list[float]:
    """Return a grid of temperatures, given or by the name of its paper."""
    if isinstance(grid, str):
        if grid not in GRIDS:
            raise InputError(
                f"no grid {grid!r}; there are {', '.join(GRIDS)}, or give the temperatures themselves",
                code="unknown_grid",
            )
        return GRIDS[grid].tolist()
    if not grid or min(grid) <= 0:
        raise InputError("a grid of temperatures must hold at least one number, all above 0", code="grid_range")
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
    used: int  # rows whose true class was possible at all
    before: float  # NLL of these at T = 1
    right: float  # the mass of those whose true class is the predicted one

    @property
    def scale(self) -> float:
        """The temperature, or the spread of the logits where the optimum lies at infinity."""
        return self.temperature if self.status == "converged" else self.spread

    @property
    def unit(self) -> Tensor:
        """The same as a number of torch."""
        return torch.tensor(self.scale, dtype=torch.float64)


@dataclass(frozen=True)
class Along(Curve):
    """The slope of the NLL of b z in u = log b at one b, whose root is sought, and what one pass yields besides."""

    nll: float
    curvature: float  # second derivative in b, times b^2
    variance: float  # of an example's derivative in b, times b^2
    before: float = math.nan  # NLL of z itself; known in double precision
    right: float = math.nan  # share of right predictions; likewise

    def at_distance(self, s: float) -> float:
        """NLL at u + s, by its Taylor series."""
        return self.nll + self.value * s + self.slope * s**2 / 2 + self.bend * s**3 / 6

    def slope_at_distance(self, s: float) -> float:
        """Slope of the NLL at u + s."""
        return self.value + self.slope * s + self.bend * s**2 / 2


def nll_temperature(p: Predictions, near: "Found | None" = None) -> Found:
    """Solve for the T of least NLL by Halley's method in u = log(1/T), from that of data nearby if there is one.

    Large data are approached by a sixteenth of the rows, then by all rows in single precision, so that one or two
    passes over everything need double precision. Examples whose true class has probability 0 lose infinitely at every
    T and say nothing about it: they are left out.
    """
    p = of_possible(p)
    typical = _spread(p[:: max(1, p.logits.numel() >> 13)])
    center = -math.log(typical)

    def search(p: Predictions, start: float, dtype: torch.dtype, tolerance: float) -> Root[Along]:
        return increasing_root(
            lambda u: _nll_along(p, math.exp(u), dtype), start, center - 25.0, center + 25.0, tolerance
        )

    start, passes = center + 2.0, 0  # logits spread over some seven temperatures
    if near is not None and near.status == "converged":
        start = -math.log(near.temperature)
    elif p.logits.numel() >= 1 << 18:
        start = search(p[::16], start, torch.float32, 0.1).x
        single = search(p, start, torch.float32, 0.06)
        start, passes = single.x, single.iterations
    root = search(p, start, torch.float64, 3e-4)
    last, t = root.last, math.exp(-root.x)
    known = root.inside and last.curvature > 0
    right = last.right * p.mass
    return Found(
        temperature=t,
        nll=last.at_distance(root.step),
        status="converged" if root.inside else ("separable" if root.x > center else "at bound"),
        gradient=abs(last.slope_at_distance(root.step)),
        iterations=passes + root.iterations,
        standard_error=t * math.sqrt(last.variance / p.mass) / last.curvature if known else math.nan,
        spread=typical,
        used=len(p),
        before=last.before,
        right=right if p.weights is not None else float(round(right)),
    )


def of_possible(p: Predictions) -> Predictions:
    """The examples whose true class has a probability above 0. Raises `InputError` if there are none."""
    z_y = p.logits.gather(1, p.labels[:, None]).squeeze(1)
    if z_y.min() > -torch.inf:
        return p
    possible = z_y > -torch.inf
    if not bool(possible.any()):
        raise InputError(
            "every true class has probability 0 (logit -inf): no temperature changes that", code="all_impossible"
        )
    return p[possible]


def _spread(p: Predictions) -> float:
    """Return the median positive distance of a finite logit from the top one of its row; a few outliers cannot own it.

    Weights count as copies. Returns 1 if there are no such distances.
    """
    z = p.logits.double()
    gap = z.amax(-1, keepdim=True) - z
    positive = (gap > 0) & gap.isfinite()
    weights = None if p.weights is None else p.weights[:, None].expand_as(gap)[positive]
    return float(median_of(gap[positive], weights))


def _nll_along(p: Predictions, b: float, dtype: torch.dtype) -> Along:
    """The NLL of b z with its derivatives, the cumulants of b z under softmax(b z), less b z_y in the first."""
    lowest = -1e300 if dtype == torch.float64 else -1e37

    def plain(z: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
        margin = z.to(torch.promote_types(z.dtype, dtype), copy=True)
        margin = margin.sub_(margin.amax(-1, keepdim=True)).clamp_min_(lowest).to(dtype)
        e = margin.mul(b * LOG2_E).exp2_()
        powers = [e.sum(-1), *(e.mul_(margin).sum(-1) for _ in range(3))]
        norm, m1, m2, m3, z_y = torch.stack([*powers, margin.gather(-1, y[:, None]).squeeze(-1)]).double()
        m1, m2, m3 = b * (m1 / norm), b * (b * (m2 / norm)), b * (b * (b * (m3 / norm)))
        first = m1 - b * z_y
        parts = [norm.log() - b * z_y, first, m2 - m1**2, m3 - 3 * m1 * m2 + 2 * m1**3, first**2]
        if dtype == torch.float64:
            total = margin.mul_(LOG2_E).exp2_().sum(-1)
            parts += [total.log() - z_y, is_predicted(z_y, total, z, y).double()]
        each = torch.stack(parts)
        return each @ weights[0] if weights else each.sum(1)

    weights = () if p.weights is None else (p.weights,)
    if fast := kernels(p.logits):
        part, elements = partial(_compiled_along, fast, b, dtype), 1 << 20
    else:
        part, elements = plain, 1 << 17
    sums = summed(part, p.logits, p.labels, *weights, elements=elements)
    nll, first, second, third, square, *rest = (sums / p.mass).tolist()
    return Along(first, first + second, first + 3 * second + third, nll, second, square - first * first, *rest)


def _compiled_along(fast: Any, b: float, dtype: torch.dtype, z: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
    """The same sums by one compiled pass."""
    z = z if z.dtype in (torch.float32, torch.float64) else z.float()
    w = weights[0].double().contiguous().numpy() if weights else np.empty(0)
    rows, labels, out = z.contiguous().numpy(), y.contiguous().numpy(), np.zeros(7)
    if dtype == torch.float64 or not 1e-30 < b < 1e30:  # where single numbers may end
        fast.along(rows, labels, w, b * LOG2_E, out)
    else:
        fast.along_singly(rows, labels, w, rows.dtype.type(b * LOG2_E), out)
    return torch.from_numpy(out if dtype == torch.float64 else out[:5])
