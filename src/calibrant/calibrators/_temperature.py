"""Scaling: an affine map of the logits."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.dispatch import kernels
from calibrant.backend.softmax import LOG2_E
from calibrant.backend.solvers import Certificate, PointEvaluation, Root, Status, increasing_root, sum_row_chunks
from calibrant.calibrators._apply import certified_classes, check_num_classes, preserves_argmax
from calibrant.calibrators._fitting import certify, check_status, fit_method, weighted_median
from calibrant.calibrators._grid_search import search_grid
from calibrant.predictions import Predictions
from calibrant.registry import CALIBRATORS
from calibrant.types import InputError, Logits, MetricText, PositiveFloat, PositiveScalar, TemperatureGrid

__all__ = ["Identity", "Temperature"]

TEMPERATURE_GRIDS = {  # temperatures of the papers' searches, in their order
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
    @fit_method
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

    temperature: PositiveScalar  # float64
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        criterion: MetricText = "nll",
        grid: TemperatureGrid | Sequence[PositiveFloat] | None = None,
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
            return cls._fit_by_nll(p)
        ts = temperature_grid("mukhoti" if grid is None else grid)
        t = search_grid(p, criterion, [((0.0,), ts)]).temperature
        status = "at bound" if t in (min(ts), max(ts)) else "grid"
        fitted = cls(torch.tensor(t, dtype=torch.float64))
        return certify(fitted, p, status, criterion=criterion, iterations=len(ts))

    @classmethod
    def _fit_by_nll(cls, p: Predictions) -> "Temperature":
        """Certify by what the search has seen, without another pass."""
        temperature_fit = fit_nll_temperature(p)
        possible = temperature_fit.num_rows == len(p)
        nll_before, nll_after = (temperature_fit.initial_nll, temperature_fit.nll) if possible else (math.inf, math.inf)
        certificate = Certificate(
            criterion="nll",
            before=nll_before,
            after=nll_after,
            status=check_status(temperature_fit.status, nll_before, nll_after),
            gradient=temperature_fit.gradient,
            iterations=temperature_fit.iterations,
            nll_before=nll_before,
            nll_after=nll_after,
            accuracy_before=temperature_fit.correct_weight / p.total_weight,
            accuracy_after=temperature_fit.correct_weight / p.total_weight,
            standard_error=temperature_fit.standard_error,
            data=p.digest,
            classes=p.logits.shape[1],
        )
        return cls(torch.tensor(temperature_fit.temperature, dtype=torch.float64), certificate)

    @check_num_classes(certified_classes)
    @preserves_argmax
    def __call__(self, logits: Logits) -> Logits:
        """Return z / T."""
        return logits / self.temperature


def temperature_grid(grid: str | Sequence[float]) -> list[float]:
    """Return a grid of temperatures, given or by the name of its paper."""
    if isinstance(grid, str):
        if grid not in TEMPERATURE_GRIDS:
            raise InputError(
                f"no grid {grid!r}; there are {', '.join(TEMPERATURE_GRIDS)}, or give the temperatures themselves",
                code="unknown_grid",
            )
        return TEMPERATURE_GRIDS[grid].tolist()
    if not grid or min(grid) <= 0:
        raise InputError("a grid of temperatures must hold at least one number, all above 0", code="grid_range")
    return list(map(float, grid))


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature of least NLL, and how it was found."""

    temperature: float
    nll: float
    status: Status
    gradient: float  # in log(1/T), by the Taylor series of the last pass
    iterations: int  # passes over all the data
    standard_error: float
    logit_spread: float  # of the logits: the scale to fall back on where no temperature is best
    num_rows: int  # rows whose true class was possible at all
    initial_nll: float  # NLL of these at T = 1
    correct_weight: float  # the mass of those whose true class is the predicted one

    @property
    def scale(self) -> float:
        """The temperature, or the spread of the logits where the optimum lies at infinity."""
        return self.temperature if self.status == "converged" else self.logit_spread

    @property
    def unit(self) -> Tensor:
        """The same as a number of torch."""
        return torch.tensor(self.scale, dtype=torch.float64)


@dataclass(frozen=True)
class NllDerivatives(PointEvaluation):
    """The slope of the NLL of b z in u = log b at one b, whose root is sought, and what one pass yields besides."""

    nll: float
    curvature: float  # second derivative in b, times b^2
    variance: float  # of an example's derivative in b, times b^2

    def extrapolate_nll(self, s: float) -> float:
        """NLL at u + s, by its Taylor series."""
        return self.nll + self.value * s + self.slope * s**2 / 2 + self.second_derivative * s**3 / 6

    def extrapolate_slope(self, s: float) -> float:
        """Slope of the NLL at u + s."""
        return self.value + self.slope * s + self.second_derivative * s**2 / 2


def fit_nll_temperature(p: Predictions, warm_start: "TemperatureFit | None" = None) -> TemperatureFit:
    """Solve for the T of least NLL by Halley's method in u = log(1/T), from that of data nearby if there is one.

    The search starts on a sixteenth of large data. Rows whose true class has probability 0 are left out: their loss is
    infinite at every T.
    """
    p = drop_impossible(p)
    typical = _logit_spread(p[:: max(1, p.logits.numel() >> 13)])
    center = -math.log(typical)

    def search(p: Predictions, start: float, tolerance: float) -> Root[NllDerivatives]:
        return increasing_root(
            lambda u: _nll_derivatives(p, math.exp(u)), start, center - 25.0, center + 25.0, tolerance
        )

    start = center + 2.0  # logits spread over some seven temperatures
    if warm_start is not None and warm_start.status == "converged":
        start = -math.log(warm_start.temperature)
    elif p.logits.numel() >= 1 << 18:
        start = search(p[::16], start, 3e-2).x
    root = search(p, start, 3e-4)
    derivatives, t = root.evaluation, math.exp(-root.x)
    is_interior = root.is_interior and derivatives.curvature > 0
    weights = torch.ones_like(p.labels, dtype=torch.float64) if p.weights is None else p.weights.double()
    return TemperatureFit(
        temperature=t,
        nll=derivatives.extrapolate_nll(root.step),
        status="converged" if root.is_interior else ("separable" if root.x > center else "at bound"),
        gradient=abs(derivatives.extrapolate_slope(root.step)),
        iterations=root.iterations,
        standard_error=t * math.sqrt(derivatives.variance / p.total_weight) / derivatives.curvature
        if is_interior
        else math.nan,
        logit_spread=typical,
        num_rows=len(p),
        initial_nll=-float((weights * p.outcomes.log_likelihood).sum()) / p.total_weight,
        correct_weight=float((weights * p.outcomes.correct).sum()),
    )


def drop_impossible(p: Predictions) -> Predictions:
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


def _logit_spread(p: Predictions) -> float:
    """Return the median positive distance of a finite logit from the top one of its row; a few outliers cannot own it.

    Weights count as copies. Returns 1 if there are no such distances.
    """
    z = p.logits.double()
    gap = z.amax(-1, keepdim=True) - z
    positive = (gap > 0) & gap.isfinite()
    weights = None if p.weights is None else p.weights[:, None].expand_as(gap)[positive]
    return float(weighted_median(gap[positive], weights))


def _nll_derivatives(p: Predictions, b: float) -> NllDerivatives:
    """Return the NLL of b z with its derivatives, from the cumulants of b z under softmax(b z)."""
    weights = () if p.weights is None else (p.weights,)
    if fast := kernels(p.logits):
        part, elements = partial(_compiled_nll_derivatives, fast, b), 1 << 20
    else:
        part, elements = partial(_nll_derivatives_of_rows, b), 1 << 17
    sums = sum_row_chunks(part, p.logits, p.labels, *weights, elements=elements)
    nll, first, second, third, square = (sums / p.total_weight).tolist()
    return NllDerivatives(first, first + second, first + 3 * second + third, nll, second, square - first * first)


def _nll_derivatives_of_rows(b: float, z: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
    """Return the sums over rows of the NLL, its derivatives in b times b, b^2 and b^3, and the first one's square."""
    margin = z.double()
    margin = (margin - margin.amax(-1, keepdim=True)).clamp_min_(-1e300)
    e = margin.mul(b * LOG2_E).exp2_()
    norm, m1, m2, m3 = e.sum(-1), *(e.mul_(margin).sum(-1) for _ in range(3))
    m1, m2, m3 = b * (m1 / norm), b * (b * (m2 / norm)), b * (b * (b * (m3 / norm)))
    b_y = b * margin.gather(-1, y[:, None]).squeeze(-1)
    first = m1 - b_y
    terms = torch.stack([norm.log() - b_y, first, m2 - m1**2, m3 - 3 * m1 * m2 + 2 * m1**3, first**2])
    return terms @ weights[0] if weights else terms.sum(1)


def _compiled_nll_derivatives(fast: Any, b: float, z: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
    """Return the same sums from one compiled pass."""
    z = z if z.dtype in (torch.float32, torch.float64) else z.float()
    w, out = weights[0].double().contiguous().numpy() if weights else np.empty(0), torch.zeros(5, dtype=torch.float64)
    fast.nll_derivatives(z.contiguous().numpy(), y.contiguous().numpy(), w, b, out.numpy())
    return out
