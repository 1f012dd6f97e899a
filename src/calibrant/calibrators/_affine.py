"""Affine maps of logits or log-probabilities: bias-corrected temperature, vector, matrix and Dirichlet calibration.

All are fitted by `fit_affine`. A `Solution` is a fitted calibrator before `with_certificate` adds the record of its
fit, the `Certificate`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant._core.arrays import namespace
from calibrant._core.kernels.roots import Certificate
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import (
    InputError,
    Logits,
    NonNegativeFloat,
    PerClass,
    PerClassPair,
    PositiveFloat,
    PositiveScalar,
)
from calibrant.calibrators import maps
from calibrant.calibrators._affine_solver import COARSE_GRADIENT_TOLERANCE, GRADIENT_TOLERANCE, AffineFit, fit_affine
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.calibrators._temperature import FitInput, drop_impossible, fit_nll_temperature
from calibrant.calibrators.array_functions import log_softmax
from calibrant.calibrators.fields import FittedMap
from calibrant.calibrators.maps import LOG_PROB_FLOOR
from calibrant.metrics import nll
from calibrant.predictions import Predictions
from calibrant.predictions.folds import num_units, split_folds

__all__ = ["BiasCorrectedTemperature", "Dirichlet", "Matrix", "Vector"]

MIN_RIDGE = 1e-6  # keeps the optimum of an unpenalized map unique and finite, at negligible cost
MIN_ODIR_RIDGE = 1e-9  # the same for a map whose off-diagonal entries and intercepts are penalized anyway
MIN_INVERSE_TEMPERATURE = 1e-6  # replaces a weight that the data make 0 or negative
PENALTY_GRID = tuple(10.0**power for power in range(5, -8, -1))  # tried by cross-validation, until two are worse
MAX_MATRIX_CLASSES = 1000  # up to which a full matrix is fitted

AFFINE_CAPABILITIES = Capabilities(num_classes=lambda fitted: len(fitted.bias))


def structured_ridges(n: float, k: int, strength: float = 1.0) -> tuple[np.ndarray, float]:
    r"""Return the ridge penalties of a matrix, (k, k), and of its intercepts (Berta et al. 2025, SMS).

    They are `strength` times k/n for the diagonal and the intercepts, and `strength` times k(k-1)/n elsewhere, for n
    examples of k classes. They vanish as n grows.
    """
    eye = np.eye(k)
    ridge_bias = strength * k / n
    return ridge_bias * (eye + (k - 1) * (1 - eye)), ridge_bias


def check_matrix_classes(k: int, name: str) -> None:
    """Raise `InputError` for more classes than a matrix is fitted for."""
    if k > MAX_MATRIX_CLASSES:
        raise InputError(
            f"Expected at most {MAX_MATRIX_CLASSES} classes for {name}, which learns k x k numbers, got {k}. Try "
            "StructuredVector.",
            code="many_classes",
        )


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class BiasCorrectedTemperature(FittedMap):
    r"""Bias-corrected temperature scaling, $z / T + c$ (Alexandari et al. 2020, section 3).

    Needed by label-shift estimates such as EM. Convex in (1/T, c); T > 0 if the data support it. A ridge of 1e-6 on c
    and on 1/T makes the optimum unique (only differences of c matter) and finite. Examples whose true class has
    probability 0 are left out.

    >>> BiasCorrectedTemperature(2.0, [0.0, 1.0])(np.array([[4.0, 0.0]]))
    array([[2., 1.]])
    """

    temperature: PositiveScalar
    bias: PerClass
    certificate: Certificate | None = None
    capabilities = AFFINE_CAPABILITIES

    @classmethod
    @fit_method
    def fit(cls, p: Predictions) -> "BiasCorrectedTemperature":
        """Fit T and c by NLL."""
        initial_temperature = fit_nll_temperature(p).finite_temperature
        # x = z / initial T, so that the search starts at temperature scaling with w = 1 and c = 0
        x = drop_impossible(p).apply(lambda z: maps.scale(z, initial_temperature, LOG_PROB_FLOOR))
        identity = np.ones(())  # w is one number, the initial over the final temperature
        fit = fit_affine(x, identity, ridge=0.0, ridge_bias=0.0, min_ridge=MIN_RIDGE)
        fitted = cls(initial_temperature / max(fit.weight, MIN_INVERSE_TEMPERATURE), fit.bias)
        status = fit.status if fit.weight > 0 else "at bound"  # T would be infinite or negative
        gap = fit.remaining_gap + fit.ridge_cost
        return Solution(fitted, status, fit.gradient, fit.iterations, gap=gap).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return z / T + c."""
        return maps.bias_corrected_temperature(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Vector(FittedMap):
    r"""Vector scaling, $v \circ z + c$ (Guo et al. 2017, section 4.2).

    The logits are first scaled to x = z / T with the T that minimizes the NLL, so that the fit does not depend on the
    scale of z. x is raised to at least -87 below the top of its row. If there are probabilities of exactly 0, they are
    replaced by the smallest one that is not. A ridge of 1e-6, on centered columns with a variance of at most 1, makes
    the optimum unique and finite; the certificate states its cost. Overfits with many classes.

    >>> Vector(1.0, [2.0, 1.0], [0.0, 1.0])(np.array([[4.0, 0.0]]))
    array([[8., 1.]])
    """

    temperature: PositiveScalar
    scale: PerClass
    bias: PerClass
    floor: float = LOG_PROB_FLOOR  # lowest x relative to the top of its row
    certificate: Certificate | None = None
    capabilities = AFFINE_CAPABILITIES

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, warm_start: "Vector | None" = None, ridge: NonNegativeFloat = 0.0) -> "Vector":
        r"""Fit v and c by penalized NLL.

        Args:
            p: Validation predictions.
            warm_start: A fit to similar data, to start from.
            ridge: r of the penalty $r \frac{k}{n} (\lVert v - 1 \rVert^2 + \lVert c \rVert^2)$; `StructuredVector` has
                r = 1.
        """
        start = None if warm_start is None else AffineFit(warm_start.scale, warm_start.bias)
        return fit_vector(FitInput(p), start, ridge=ridge).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return v x + c."""
        return maps.vector(logits, vars(self))


@CALIBRATORS.register(revision=2)
@dataclass(frozen=True, eq=False)
class Matrix(FittedMap):
    r"""Matrix scaling, $W x + c$, with a penalty (Guo et al. 2017; Kull et al. 2019, section 3).

    x is z / T, centered per row. Off-diagonal entries and intercepts are penalized by $\lambda / (k(k-1)) \sum_{i \ne
    j} w_{ij}^2 + \mu / k \lVert c \rVert^2$ (ODIR), with lambda = mu. There is no option without a penalty, because a
    matrix then overfits severely.

    >>> Matrix(1.0, np.eye(2), [0.0, 1.0])(np.array([[1.0, -1.0]]))
    array([[1., 0.]])
    """

    temperature: PositiveScalar
    weight: PerClassPair
    bias: PerClass
    penalty: NonNegativeFloat = 0.0  # the penalty or the ridge of the fit
    floor: float = LOG_PROB_FLOOR  # as in `Vector`
    certificate: Certificate | None = None
    capabilities = AFFINE_CAPABILITIES

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "Matrix | None" = None,
        penalty: PositiveFloat | None = None,
        ridge: PositiveFloat | None = None,
    ) -> "Matrix":
        """Fit W and c by penalized NLL.

        Args:
            p: Validation predictions.
            warm_start: A fit to similar data, to start from.
            penalty: lambda; by default chosen from 1e5 .. 1e-7 by cross-validated NLL. Folds keep clusters together;
                copies of a row count as one row of that weight if they share a cluster.
            ridge: Factor of the penalties of Berta et al. (2025), which replace ODIR; `StructuredMatrix` has 1.

        Raises:
            InputError: above 1000 classes, and for both a penalty and a ridge.
        """
        check_matrix_classes(p.k, cls.__name__)
        if penalty is not None and ridge is not None:
            raise InputError(
                f"Expected a penalty or a ridge for Matrix, got {penalty:g} and {ridge:g}. Try leaving one out.",
                code="conflicting_settings",
            )
        start = None if warm_start is None else AffineFit(warm_start.weight, warm_start.bias)
        return fit_matrix(FitInput(p), start, penalty=penalty, ridge=ridge).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return W x + c."""
        return maps.matrix(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Dirichlet(FittedMap):
    r"""Dirichlet calibration, $W \log p + c$, with ODIR (Kull et al. 2019, section 3).

    Minimizes mean NLL $+ \lambda / (k(k-1)) \sum_{i \ne j} w_{ij}^2 + \mu / k \lVert c \rVert^2$ with lambda = mu.
    log p is at least -87, and a probability of exactly 0 is replaced by the smallest one that is not.

    >>> Dirichlet(np.eye(2), [0.0, 1.0])(np.zeros((1, 2))).round(4)
    array([[-0.6931,  0.3069]])
    """

    weight: PerClassPair
    bias: PerClass
    penalty: NonNegativeFloat = 0.0  # of the fit
    floor: float = LOG_PROB_FLOOR  # to which lower log p are raised
    certificate: Certificate | None = None
    capabilities = AFFINE_CAPABILITIES

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, penalty: PositiveFloat | None = None) -> "Dirichlet":
        """Fit W and c by penalized NLL.

        Args:
            p: Validation predictions.
            penalty: lambda, by default chosen as in `Matrix`.

        Raises:
            InputError: above 1000 classes.
        """
        check_matrix_classes(p.k, cls.__name__)
        floor = _log_prob_floor(log_softmax(p.logits))
        fit, penalty = _fit_odir(p.apply(lambda z: maps.raised_log_probs(z, floor)), penalty)
        return fit.solution(cls(fit.weight, fit.bias, penalty, floor)).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return W log p + c."""
        return maps.dirichlet(logits, vars(self))


def _log_prob_floor(values: Any) -> float:
    """Return the floor to which a fit raises these log-probabilities, or logits below the top of their row.

    It is -87, unless there are values of -inf: these are raised to the smallest finite value below 0, if that is above
    -87, and to -1 if there is none. A forest's probability of exactly 0 means that no tree voted for the class. One
    such label at -87 would undo the map for all other examples.
    """
    xp = namespace(values)
    if not xp.any(values == -xp.inf):
        return LOG_PROB_FLOOR
    finite_values = values[(values > -xp.inf) & (values < 0)]  # 0 is a probability of 1, or the top of its row
    return max(LOG_PROB_FLOOR, float(xp.min(finite_values))) if len(finite_values) else -1.0


def _floor_under_top(p: Predictions, temperature: float) -> float:
    """Return `_log_prob_floor` of z / T relative to the top of each row."""
    xp = namespace(p.logits)
    x = xp.astype(p.logits, xp.float64) / temperature
    return _log_prob_floor(x - xp.max(x, axis=-1, keepdims=True))


def fit_vector(data: FitInput, start: AffineFit | None = None, *, ridge: float = 0.0) -> Solution[Vector]:
    """Fit `Vector` without a certificate.

    Args:
        data: The predictions, with the temperature to scale the logits by.
        start: A fit to similar data, to start from.
        ridge: As in `Vector.fit`.
    """
    p, temperature = data.p, data.nll_fit.finite_temperature
    floor = _floor_under_top(p, temperature)
    x = p.apply(lambda z: maps.scale(z, temperature, floor))
    identity, ridge = np.ones(p.k), ridge * p.k / p.total_weight  # r k / n of `Vector.fit`
    fit = fit_affine(x, identity, ridge, ridge_bias=ridge, start=start, tolerance=data.tolerance, min_ridge=MIN_RIDGE)
    return fit.solution(Vector(temperature, fit.weight, fit.bias, floor))


def fit_matrix(
    data: FitInput,
    start: AffineFit | None = None,
    *,
    penalty: float | None = None,
    ridge: float | None = None,
) -> Solution[Matrix]:
    """Fit `Matrix` without a certificate.

    With a ridge, it has the penalties of Berta et al. (2025); otherwise ODIR with the given penalty, or with one chosen
    by cross-validation.

    Args:
        data: The predictions, with the temperature to scale the logits by.
        start: A fit to similar data, to start from.
        penalty: As in `Matrix.fit`.
        ridge: As in `Matrix.fit`.
    """
    p, temperature = data.p, data.nll_fit.finite_temperature
    floor = _floor_under_top(p, temperature)
    x = p.apply(lambda z: maps.center(maps.scale(z, temperature, floor)))
    if ridge is None:
        fit, strength = _fit_odir(x, penalty, start)
    else:
        ridges, strength = structured_ridges(p.total_weight, p.k, ridge), ridge
        fit = fit_affine(x, np.eye(p.k), *ridges, start, data.tolerance)
    return fit.solution(Matrix(temperature, fit.weight, fit.bias, strength, floor))


def _fit_odir(x: Predictions, penalty: float | None, start: AffineFit | None = None) -> tuple[AffineFit, float]:
    """Fit a matrix with off-diagonal and intercept regularization (Kull et al. 2019, section 3).

    Args:
        x: Predictions whose logits the matrix multiplies.
        penalty: Strength of both regularizations, chosen by cross-validation if None.
        start: A fit to start from.

    Returns:
        The fit, and the penalty.
    """
    identity = np.eye(x.k)

    def fit(data: Predictions, strength: float, start: AffineFit | None, tolerance: float) -> AffineFit:
        ridge = strength / (x.k * (x.k - 1)) * (1 - identity)  # on the off-diagonal entries only
        return fit_affine(data, identity, ridge, strength / x.k, start, tolerance, min_ridge=MIN_ODIR_RIDGE)

    if penalty is None:
        penalty, best_fit = _choose_penalty(x, fit)
        start = start or best_fit
    return fit(x, penalty, start, GRADIENT_TOLERANCE), penalty


def _choose_penalty(
    x: Predictions, fit: Callable[[Predictions, float, AffineFit | None, float], AffineFit]
) -> tuple[float, AffineFit | None]:
    """Choose the penalty by cross-validated NLL, from the strongest down, and return it with a fit to start from.

    `fit` takes predictions, a penalty, a fit to start from, and a gradient tolerance. Each fit starts from the previous
    one: of another fold, or of the next stronger penalty. The search ends when two penalties in a row are worse than
    the best, because weaker ones overfit more and take more steps. Without two folds, it is the strongest penalty.
    """
    folds = min(3, num_units(x))  # as many rows or clusters are needed
    if folds < 2:
        return PENALTY_GRID[0], None
    splits = [(training, x[in_fold]) for training, in_fold in split_folds(x, folds)]
    best_penalty, best_fit, last_fit = PENALTY_GRID[0], None, None
    lowest_loss, num_worse = math.inf, 0
    for strength in PENALTY_GRID:
        if last_fit is not None:  # start from its parameters only: its preconditioner belongs to another penalty
            last_fit = AffineFit(last_fit.weight, last_fit.bias)
        loss = 0.0
        for training, validation in splits:
            last_fit = fit(training, strength, last_fit, COARSE_GRADIENT_TOLERANCE)
            loss += nll(validation.apply(last_fit)) * validation.total_weight  # the total NLL over all folds
        if loss < lowest_loss:
            best_penalty, best_fit = strength, last_fit
            lowest_loss, num_worse = loss, 0
        else:
            num_worse += 1
        if num_worse == 2:
            break
    return best_penalty, best_fit
