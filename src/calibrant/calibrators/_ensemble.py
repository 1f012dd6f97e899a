"""A mixture of the temperature-scaled, the original and the uniform prediction."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.backend.solvers import Certificate, Mixture, fit_mixture, worst_status
from calibrant.calibrators._apply import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.calibrators._temperature import fit_nll_temperature
from calibrant.predictions import Predictions
from calibrant.registry import CALIBRATORS
from calibrant.types import FractionVector, Logits, PositiveScalar

__all__ = ["EnsembleTemperature"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class EnsembleTemperature:
    r"""Ensemble temperature scaling, $w_1 p^{(T)} + w_2 p^{(1)} + w_3 / k$ (Zhang, Kailkhura & Han 2020).

    $p^{(T)} = \mathrm{softmax}(z / T)$ and w lies on the simplex. Never changes a predicted class. Weights 1, 0, 0 are
    temperature scaling.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> EnsembleTemperature(number(1.0), number([0.5, 0.0, 0.5]))(torch.tensor([[0.0, -torch.inf]])).exp()
    tensor([[0.7500, 0.2500]])
    """

    temperature: PositiveScalar  # float64
    weights: FractionVector  # (3) float64, on the simplex: temperature-scaled, original, uniform
    certificate: Certificate | None = None
    capabilities = Capabilities(preserves_argmax=True)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, criterion: Literal["nll", "brier"] = "nll") -> "EnsembleTemperature":
        """Fit T, then the weights.

        Args:
            p: Validation predictions.
            criterion: "nll" minimizes the NLL over T and then, by EM, over the weights. "brier", the authors' choice,
                minimizes the Brier score over T and then, exactly, over the weights.
        """
        temperature_fit = fit_nll_temperature(p)
        t, steps, status = temperature_fit.temperature, temperature_fit.iterations, temperature_fit.status
        if criterion == "brier":
            t, steps, status = _brier_temperature(p.double(), temperature_fit.logit_spread)
        parts = _mixture_members(p.logits.double(), torch.tensor(t, dtype=torch.float64))
        if criterion == "nll":
            index = p.labels[:, None]
            mixture_fit = fit_mixture(torch.cat([part.gather(1, index) for part in parts], 1), p.weights)
        else:
            mixture_fit = _brier_weights(parts, p)
        status = worst_status(status, mixture_fit.status)
        fitted = cls(torch.tensor(t, dtype=torch.float64), mixture_fit.shares)
        passes = steps + mixture_fit.steps
        solution = Solution(fitted, status, mixture_fit.gap, passes, criterion=criterion)
        return solution.with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p of the mixture."""
        z = logits.double()
        log_w = self.weights.log()
        uniform = torch.zeros_like(z) - math.log(z.shape[-1])
        members = torch.stack([(z / self.temperature).log_softmax(-1), z.log_softmax(-1), uniform])
        return (members + log_w[:, None, None]).logsumexp(0)


def _mixture_members(z: Tensor, t: Tensor) -> list[Tensor]:
    """Return the three probabilities that are mixed, each (n k): temperature-scaled, original and uniform."""
    return [(z / t).softmax(-1), z.softmax(-1), torch.full_like(z, 1 / z.shape[1])]


def _brier_temperature(p: Predictions, spread: float) -> tuple[float, int, Literal["converged", "at bound"]]:
    """Minimize the Brier score over T: a grid in log T around the spread of the logits, then Brent's method.

    Returns:
        The temperature, the number of evaluations, and the status.
    """
    from scipy.optimize import minimize_scalar

    z, index = p.logits, p.labels[:, None]

    def brier(u: float) -> float:
        q = (z * math.exp(-u)).softmax(-1)
        scores = q.square().sum(-1) - 2 * q.gather(1, index)[:, 0]
        return float(scores.mean() if p.weights is None else (scores * p.weights).sum() / p.total_weight) + 1

    center = math.log(spread)
    grid = [center + 0.5 * i for i in range(-16, 17)]
    values = [brier(u) for u in grid]
    best = min(range(len(grid)), key=values.__getitem__)
    if best in (0, len(grid) - 1):
        return math.exp(grid[best]), len(grid), "at bound"
    minimum = minimize_scalar(brier, bounds=(grid[best - 1], grid[best + 1]), method="bounded", options={"xatol": 1e-8})
    return math.exp(minimum.x), len(grid) + int(minimum.nfev), "converged"


def _brier_weights(parts: list[Tensor], p: Predictions) -> Mixture:
    r"""Minimize the Brier score of a mixture over its three weights w on the simplex.

    The score is $w^\top Q w - 2 l^\top w$ plus a constant, a convex quadratic.
    """
    from scipy.optimize import minimize  # slow to import

    truth = torch.nn.functional.one_hot(p.labels, parts[0].shape[1]).double()
    weights = parts[0].new_ones(1) if p.weights is None else p.weights
    weighted_parts, n = [part * weights[:, None] for part in parts], p.total_weight
    quadratic = torch.stack([torch.stack([(a * b).sum() / n for b in parts]) for a in weighted_parts]).cpu()
    linear = torch.stack([(a * truth).sum() / n for a in weighted_parts]).cpu()

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        return float(w @ q @ w - 2 * b @ w), 2 * (q @ w - b)

    q, b, uniform = quadratic.numpy(), linear.numpy(), np.full(len(parts), 1 / len(parts))
    simplex = {"type": "eq", "fun": lambda w: w.sum() - 1}
    options = {"ftol": 1e-16, "maxiter": 1000}
    end: Any = minimize(
        objective, uniform, jac=True, method="SLSQP", bounds=[(0, 1)] * len(parts), constraints=simplex, options=options
    )
    best = torch.from_numpy(end.x).clamp_min(0)
    slope = 2 * (quadratic @ best - linear)
    gap = float((slope @ best - slope.min()).clamp_min(0))
    return Mixture(best / best.sum(), gap, 1)
