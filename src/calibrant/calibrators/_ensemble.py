"""A mixture of the temperature-scaled, the original and the uniform prediction."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.roots import Certificate, worst_status
from calibrant._core.kernels.softmax import class_columns, exp_in_place
from calibrant._core.kernels.solvers import Mixture, fit_mixture
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import FractionVector, Logits, PositiveScalar
from calibrant.calibrators import maps
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, example_mean, fit_method
from calibrant.calibrators._temperature import fit_nll_temperature
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions

__all__ = ["EnsembleTemperature"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class EnsembleTemperature(FittedMap):
    r"""Ensemble temperature scaling, $w_1 p^{(T)} + w_2 p^{(1)} + w_3 / k$ (Zhang, Kailkhura & Han 2020).

    $p^{(T)} = \mathrm{softmax}(z / T)$ and w lies on the simplex. Never changes a predicted class. Weights 1, 0, 0 are
    temperature scaling.

    >>> np.exp(EnsembleTemperature(1.0, [0.5, 0.0, 0.5])(np.array([[0.0, -np.inf]])))
    array([[0.75, 0.25]])
    """

    temperature: PositiveScalar
    weights: FractionVector  # (3) on the simplex: temperature-scaled, original, uniform
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
        scaled, original = maps.softmax(maps.double(p.logits) / t), maps.softmax(p.logits)
        members = [scaled, original, 0 * original + 1 / p.k]  # (n k) each
        label_probs = np.column_stack([_label_columns(probs, p) for probs in members])  # (n 3)
        mixture_fit = (
            fit_mixture(label_probs, p.weights) if criterion == "nll" else _brier_weights(members, label_probs, p)
        )
        fitted, status = cls(t, mixture_fit.shares), worst_status(status, mixture_fit.status)
        solution = Solution(fitted, status, mixture_fit.optimality_gap, steps + mixture_fit.steps, criterion=criterion)
        return solution.with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p of the mixture."""
        return maps.ensemble_temperature(logits, vars(self))


def _label_columns(probs: Any, p: Predictions) -> np.ndarray:
    """Return the probability of each label, (n), from those of all classes, (n k)."""
    return to_numpy(namespace(probs).take_along_axis(probs, like(p.labels, probs)[:, None], axis=1))[:, 0]


def _brier_temperature(p: Predictions, spread: float) -> tuple[float, int, Literal["converged", "at bound"]]:
    """Minimize the Brier score over T: a grid in log T around the spread of the logits, then Brent's method.

    Args:
        p: The predictions.
        spread: Typical distance of a logit from the top one of its row, the scale of T.

    Returns:
        The temperature, the number of evaluations, and the status.
    """
    from scipy.optimize import minimize_scalar  # slow to import

    xp, margin, index = namespace(p.logits), class_columns(p.logits, np.float64), like(p.labels, p.logits)[None]
    margin -= xp.max(margin, axis=0)

    def brier(u: float) -> float:
        """Return the Brier score at T = exp(u), the mean of sum_j q_j^2 - 2 q_y + 1."""
        powers = exp_in_place(margin * math.exp(-u))
        total = xp.sum(powers, axis=0)
        square = xp.sum(powers**2, axis=0) / total**2
        return 1 + float(example_mean(square - 2 * xp.take_along_axis(powers, index, axis=0)[0] / total, p))

    # The score need not be convex; the grid spans the spread times e^-8 to e^8
    grid = [math.log(spread) + 0.5 * i for i in range(-16, 17)]
    values = [brier(u) for u in grid]
    best = values.index(min(values))
    if best in (0, len(grid) - 1):
        return math.exp(grid[best]), len(grid), "at bound"
    bounds = (grid[best - 1], grid[best + 1])
    minimum: Any = minimize_scalar(brier, bounds=bounds, method="bounded", options={"xatol": 1e-8})
    return math.exp(minimum.x), len(grid) + int(minimum.nfev), "converged"


def _brier_weights(members: list[Any], label_probs: np.ndarray, p: Predictions) -> Mixture:
    r"""Minimize the Brier score of a mixture of m members, each (n k), over its weights w on the simplex.

    The score is $w^\top Q w - 2 l^\top w$ plus a constant, a convex quadratic: Q has the mean products of the
    probabilities of two members, and l the mean probability that each member gives the label, from (n m).
    """
    from scipy.optimize import minimize  # slow to import

    m, linear = len(members), example_mean(label_probs, p)
    quadratic = np.array([example_mean((a * b).sum(1), p) for a in members for b in members]).reshape(m, m)

    def slope(w: np.ndarray) -> np.ndarray:
        """Return the gradient of the score."""
        return 2 * (quadratic @ w - linear)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the score, up to its constant, and its gradient."""
        return float(w @ (quadratic @ w - 2 * linear)), slope(w)

    end: Any = minimize(
        objective,
        np.full(m, 1 / m),
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-16, "maxiter": 1000},
    )
    weights = np.maximum(end.x, 0)
    shares = weights / weights.sum()
    gradient = slope(shares)
    # No weights on the simplex are better by more than this, because the score is convex
    gap = max(0.0, float(gradient @ shares - gradient.min()))
    return Mixture(shares, gap, 1)
