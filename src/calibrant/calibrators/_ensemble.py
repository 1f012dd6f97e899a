"""A mixture of the temperature-scaled, the original and the uniform prediction."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant._core.kernels.roots import Certificate, worst_status
from calibrant._core.kernels.solvers import Mixture, fit_mixture
from calibrant._core.registry import CALIBRATORS
from calibrant._core.tensors import label_tensor, weight_tensor
from calibrant._core.types import FractionVector, Logits, PositiveScalar
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, example_mean, fit_method
from calibrant.calibrators._temperature import fit_nll_temperature
from calibrant.predictions import Predictions

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
    capabilities = Capabilities(preserves_argmax=True, treats_classes_alike=True)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, criterion: Literal["nll", "brier"] = "nll") -> "EnsembleTemperature":
        """Fit T, then the weights.

        Args:
            p: Validation predictions.
            criterion: "nll" minimizes the NLL over T and then, by EM, over the weights. "brier", the authors' choice,
                minimizes the Brier score over T and then, exactly, over the weights.
        """
        nll_fit = fit_nll_temperature(p)
        t, steps, status = nll_fit.temperature, nll_fit.iterations, nll_fit.status
        if criterion == "brier":
            t, steps, status = _brier_temperature(p.double(), nll_fit.logit_spread)
        temperature = torch.tensor(t, dtype=torch.float64)
        z = p.logits.double()
        members = [(z / temperature).softmax(-1), z.softmax(-1), torch.full_like(z, 1 / p.k)]  # (n k) each
        if criterion == "nll":
            index = label_tensor(p)[:, None]
            mixture_fit = fit_mixture(torch.cat([probs.gather(1, index) for probs in members], 1), weight_tensor(p))
        else:
            mixture_fit = _brier_weights(members, p)
        fitted, status = cls(temperature, mixture_fit.shares), worst_status(status, mixture_fit.status)
        solution = Solution(fitted, status, mixture_fit.optimality_gap, steps + mixture_fit.steps, criterion=criterion)
        return solution.with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p of the mixture."""
        z = logits.double()
        log_w = self.weights.log()
        uniform = torch.zeros_like(z) - math.log(z.shape[-1])
        members = torch.stack([(z / self.temperature).log_softmax(-1), z.log_softmax(-1), uniform])
        return (members + log_w[:, None, None]).logsumexp(0)


def _brier_temperature(p: Predictions, spread: float) -> tuple[float, int, Literal["converged", "at bound"]]:
    """Minimize the Brier score over T: a grid in log T around the spread of the logits, then Brent's method.

    Args:
        p: The predictions.
        spread: Typical distance of a logit from the top one of its row, the scale of T.

    Returns:
        The temperature, the number of evaluations, and the status.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    z, index = p.logits, label_tensor(p)[:, None]

    def brier(u: float) -> float:
        """Return the Brier score at T = exp(u), the mean of sum_j q_j^2 - 2 q_y + 1."""
        q = (z * math.exp(-u)).softmax(-1)
        return 1 + float(example_mean(q.square().sum(-1) - 2 * q.gather(1, index)[:, 0], p))

    # The score need not be convex; the grid spans the spread times e^-8 to e^8
    grid = [math.log(spread) + 0.5 * i for i in range(-16, 17)]
    values = [brier(u) for u in grid]
    best = values.index(min(values))
    if best in (0, len(grid) - 1):
        return math.exp(grid[best]), len(grid), "at bound"
    bounds = (grid[best - 1], grid[best + 1])
    minimum: Any = minimize_scalar(brier, bounds=bounds, method="bounded", options={"xatol": 1e-8})
    return math.exp(minimum.x), len(grid) + int(minimum.nfev), "converged"


def _brier_weights(members: list[Tensor], p: Predictions) -> Mixture:
    r"""Minimize the Brier score of a mixture of members, each (n k), over its weights w on the simplex.

    The score is $w^\top Q w - 2 l^\top w$ plus a constant, a convex quadratic: Q has the mean products of the
    probabilities of two members, and l the mean probability that each member gives the label.
    """
    from scipy.optimize import minimize  # slow to import

    index, m = label_tensor(p)[:, None], len(members)
    products = [example_mean((a * b).sum(1), p) for a in members for b in members]
    quadratic = torch.stack(products).view(m, m).cpu()
    linear = torch.stack([example_mean(probs.gather(1, index)[:, 0], p) for probs in members]).cpu()

    def slope(w: Tensor) -> Tensor:
        """Return the gradient of the score."""
        return 2 * (quadratic @ w - linear)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the score, up to its constant, and its gradient."""
        weights = torch.from_numpy(w)
        return float(weights @ (quadratic @ weights - 2 * linear)), slope(weights).numpy()

    end: Any = minimize(
        objective,
        np.full(m, 1 / m),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    weights = torch.from_numpy(end.x).clamp_min(0)
    shares = weights / weights.sum()
    gradient = slope(shares)
    # No weights on the simplex are better by more than this, because the score is convex
    gap = float((gradient @ shares - gradient.min()).clamp_min(0))
    return Mixture(shares, gap, 1)
