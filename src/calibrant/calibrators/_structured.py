"""Structured scaling: affine maps of smoothed log-probabilities with penalties that shrink as the data grow.

A `Solution` is a fitted calibrator before `with_certificate` adds the record of its fit, the `Certificate`.
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np

from calibrant._core.kernels.roots import Certificate
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import Logits, PerClass, PerClassPair, PositiveScalar
from calibrant.calibrators import maps
from calibrant.calibrators._affine import check_matrix_classes, structured_ridges
from calibrant.calibrators._affine_solver import AffineFit, fit_affine
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.calibrators._temperature import FitInput, fit_nll_temperature
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions
from calibrant.predictions.folds import map_out_of_fold, num_units

__all__ = ["SmoothedTemperature", "StructuredMatrix", "StructuredVector"]

S = TypeVar("S", "StructuredVector", "StructuredMatrix")


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class SmoothedTemperature(FittedMap):
    r"""Temperature scaling mixed with one uniform pseudo-example, $(n p + 1/k) / (n + 1)$ (Berta et al. 2025).

    p = softmax(z / T), with the T that minimizes the NLL on n examples (ts-mix of probmetrics). Never changes a
    predicted class, and no error costs more than $\log(k (n+1))$. If every example was right, T -> 0 and this adds
    1/k to the count of every class, as Krichevsky & Trofimov (1981) do for two classes.

    >>> np.exp(SmoothedTemperature(1.0, 1.0)(np.array([[0.0, -np.inf]])))
    array([[0.75, 0.25]])
    """

    temperature: PositiveScalar
    count: PositiveScalar  # number of examples it was fitted on
    certificate: Certificate | None = None
    capabilities = Capabilities(preserves_argmax=True, treats_classes_alike=True)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, robust: bool = False) -> "SmoothedTemperature":
        """Fit T by NLL.

        Args:
            p: Validation predictions.
            robust: Minimize the NLL of the smoothed p instead, to which one error adds at most log(k (n + 1)), with a
                normal prior of log T around 0 with standard deviation 1/2.
        """
        return fit_smoothed_temperature(FitInput(p), robust=robust).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        return maps.smoothed_temperature(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class StructuredVector(FittedMap):
    r"""Structured vector scaling, $u' + v \circ u' + c$ with ridge penalties (Berta et al. 2025, SVS).

    u' is the log-probability after `SmoothedTemperature`. Minimizes mean NLL $+ \frac{k}{n} (\lVert c \rVert^2 +
    \lVert v \rVert^2)$, and with few examples per class approaches temperature scaling. Convex, solved by L-BFGS.
    """

    temperature: PositiveScalar
    count: PositiveScalar  # number of examples it was fitted on
    scale: PerClass  # v
    bias: PerClass
    final: PositiveScalar  # the temperature on top; 1 if there is none
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=lambda fitted: len(fitted.bias))

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "StructuredVector | None" = None,
        refit_temperature: bool = False,
        robust: bool = False,
    ) -> "StructuredVector":
        """Fit v and c.

        Args:
            p: Validation predictions.
            warm_start: A fit to similar data, to start from.
            refit_temperature: Add a temperature on top, fitted to 5-fold out-of-fold predictions. Shrinking toward a
                temperature of the wrong family leaves the confidence too low. Folds keep clusters together; copies of a
                row count as one row of that weight if they share a cluster.
            robust: As in `SmoothedTemperature`.
        """
        start = None if warm_start is None else AffineFit(1 + warm_start.scale, warm_start.bias)
        return _fit_and_refit_temperature(cls, p, start, refit_temperature, robust)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return u' + v u' + c, over the final temperature."""
        return maps.structured_vector(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class StructuredMatrix(FittedMap):
    r"""Structured matrix scaling, $u' + M u' + c$ with ridge penalties (Berta et al. 2025, SMS).

    u' is the log-probability after `SmoothedTemperature`. Minimizes mean NLL $+ \frac{k}{n} (\lVert c \rVert^2 +
    \lVert \mathrm{diag} M \rVert^2) + \frac{k(k-1)}{n} \lVert M_{off} \rVert^2$. Convex, solved by L-BFGS.
    """

    temperature: PositiveScalar
    count: PositiveScalar  # number of examples it was fitted on
    weight: PerClassPair  # M
    bias: PerClass
    final: PositiveScalar  # the temperature on top; 1 if there is none
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=lambda fitted: len(fitted.bias))

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "StructuredMatrix | None" = None,
        refit_temperature: bool = False,
        robust: bool = False,
    ) -> "StructuredMatrix":
        """Fit M and c.

        Args:
            p: Validation predictions.
            warm_start: A fit to similar data, to start from.
            refit_temperature: As in `StructuredVector`.
            robust: As in `SmoothedTemperature`.

        Raises:
            InputError: above 1000 classes.
        """
        check_matrix_classes(p.k, cls.__name__)
        start = None
        if warm_start is not None:
            start = AffineFit(np.eye(p.k) + warm_start.weight, warm_start.bias)
        return _fit_and_refit_temperature(cls, p, start, refit_temperature, robust)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return u' + M u' + c, over the final temperature."""
        return maps.structured_matrix(logits, vars(self))


def smoothing_cost(p: Predictions) -> float:
    r"""Return the largest increase of the NLL by smoothing, $\log(1 + 1/n)$ nats."""
    return math.log1p(1 / p.total_weight)


def fit_smoothed_temperature(data: FitInput, *, robust: bool = True) -> Solution[SmoothedTemperature]:
    """Fit `SmoothedTemperature` without a certificate, with the robust temperature or the one of the smallest NLL."""
    fit = data.temperature(robust)
    fitted = SmoothedTemperature(fit.temperature, data.p.total_weight)
    return Solution(fitted, fit.status, fit.gradient, fit.iterations, fit.standard_error, slack=smoothing_cost(data.p))


def fit_structured(cls: type[S], data: FitInput, start: AffineFit | None = None, *, robust: bool = True) -> Solution[S]:
    """Fit a structured calibrator without a certificate: smooth p, then fit an affine map of log p.

    Args:
        cls: Class of the calibrator, which stores the difference of its weights from the identity.
        data: Predictions, with the temperature by which their logits are divided before smoothing.
        start: A fit to similar data, to start from.
        robust: Whether the temperature is the robust one.
    """
    p, temperature, count = data.p, data.temperature(robust).temperature, data.p.total_weight
    if cls is StructuredMatrix:
        identity = np.eye(p.k)
        ridge, ridge_bias = structured_ridges(p.total_weight, p.k)
    else:
        identity = np.ones(p.k)
        ridge = ridge_bias = p.k / p.total_weight
    u = p.apply(lambda z: maps.smooth(z, temperature, count))
    fit = fit_affine(u, identity, ridge, ridge_bias, start, data.tolerance)
    fitted = cls(temperature, count, fit.weight - identity, fit.bias, 1.0)
    # Smoothing leaves no probability of 0 to clip
    return replace(fit.solution(fitted), slack=smoothing_cost(p), clips_zeros=False)


def _fit_and_refit_temperature(
    cls: type[S], p: Predictions, start: AffineFit | None, refit_temperature: bool, robust: bool
) -> S:
    """Fit a calibrator with its certificate, and with `refit_temperature` also its final temperature.

    The final temperature divides the calibrated logits. It corrects a confidence that shrinkage leaves too low or too
    high, as seen on out-of-fold predictions.
    """
    solution = fit_structured(cls, FitInput(p), start, robust=robust)
    if refit_temperature:
        final = _out_of_fold_temperature(solution.calibrator, p, robust)
        solution = replace(solution, calibrator=replace(solution.calibrator, final=final))
    return solution.with_certificate(p)


def _out_of_fold_temperature(fitted: Any, p: Predictions, robust: bool) -> float:
    """Fit a temperature to out-of-fold predictions of a calibrator that is fitted to all examples.

    It is 1 if there is only one example (or cluster), or if no finite temperature is best.
    """
    if num_units(p) < 2:
        return 1.0
    fit = partial(type(fitted).fit, warm_start=fitted, robust=robust)
    temperature_fit = fit_nll_temperature(map_out_of_fold(fit, p.double(), folds=min(5, num_units(p))))
    return temperature_fit.temperature if temperature_fit.status == "converged" else 1.0
