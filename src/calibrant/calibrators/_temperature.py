"""Temperature scaling, and the identity."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from calibrant._core.arrays import like, namespace
from calibrant._core.kernels.dispatch import kernels
from calibrant._core.kernels.roots import Certificate, PointEvaluation, Root, Status, increasing_root
from calibrant._core.kernels.softmax import class_columns, exp_in_place, is_predicted
from calibrant._core.kernels.solvers import sum_row_chunks
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import InputError, Logits, MetricText, PositiveFloat, PositiveScalar, TemperatureGrid
from calibrant.calibrators import maps
from calibrant.calibrators._affine_solver import FIT_CHUNK_ELEMENTS, GRADIENT_TOLERANCE
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, check_status, fit_method, weighted_median
from calibrant.calibrators._grid_search import search_grid
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions

__all__ = ["Identity", "Temperature"]

LOG_TEMPERATURE_DEVIATION = 0.5  # prior standard deviation of log T, for the robust temperature
MIN_EXPONENT = -1e4  # replaces lower ones, whose exponential is 0, because 0 times -inf is undefined
MAX_ROBUST_PASSES = 100
MAX_LAST_ROBUST_STEP = 1e-7  # in log T, at which the search has converged
MIN_ROBUST_CURVATURE = 1e-3  # limits the first steps where the loss is flat
# Tolerances of log T; a step of Halley's method triples the number of correct digits
SAMPLE_STEP, COARSE_STEP, FINE_STEP = 0.1, 0.06, 3e-4  # in a sixteenth of the rows, in single and in double precision
TEMPERATURE_GRIDS = {  # temperatures that papers search, in their order
    "mukhoti": np.cumsum(np.full(100, 0.1)),  # 0.1 .. 10.0; their code adds 0.1 in floats
    "wang": np.arange(1, 1001) / 100,  # 0.01 .. 10.00, as their text says
    "komisarenko": np.arange(1, 501) / 100,  # 0.01 .. 5.00, as their text says, for focal temperature scaling too
    "komisarenko_code": np.arange(1, 101) * 0.05,  # 0.05 .. 5.00
}


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Identity(FittedMap):
    """No calibration: returns the logits unchanged. The baseline of every table."""

    capabilities = Capabilities(
        preserves_argmax=True, treats_classes_alike=True, num_classes=0, repairs_overconfidence=False
    )

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
class Temperature(FittedMap):
    r"""Temperature scaling, $z / T$ (Guo et al. 2017, eq. 9).

    Never changes a predicted class. Constructed by hand, it accepts any number of classes.

    >>> Temperature(2.0)(np.array([[4.0, 0.0]]))
    array([[2., 0.]])
    """

    temperature: PositiveScalar
    certificate: Certificate | None = None
    capabilities = Capabilities(preserves_argmax=True, treats_classes_alike=True)

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        criterion: MetricText = "nll",
        grid: TemperatureGrid | Sequence[PositiveFloat] | None = None,
    ) -> "Temperature":
        """Fit the temperature on validation predictions.

        Args:
            p: Validation predictions.
            criterion: "nll" (default) without a grid minimizes the negative log-likelihood exactly. It is convex in
                1/T, so Halley's method in log(1/T) reaches the only minimum in 2 to 8 passes. Any other metric, such as
                "ece" or "adaptive_ece(edges='mukhoti')", is minimized over `grid`; ties go to the first temperature.
            grid: Temperatures to search, or the name of a paper's grid: "mukhoti" (default), "wang", "komisarenko",
                "komisarenko_code".

        The certificate's status is "converged", "separable" if every prediction is right already (T -> 0), "at bound"
        if the model is worse than uniform (T -> infinity) or the minimum lies at an end of the grid, or "grid".
        """
        if criterion == "nll" and grid is None:
            return cls._fit_nll(p)
        ts = temperature_grid("mukhoti" if grid is None else grid)
        t = search_grid(p, criterion, [0.0], ts).temperature  # gamma = 0: no focal map
        status = "at bound" if t in (min(ts), max(ts)) else "grid"
        return Solution(cls(t), status, iterations=len(ts), criterion=criterion).with_certificate(p)

    @classmethod
    def _fit_nll(cls, p: Predictions) -> "Temperature":
        """Minimize the NLL, and build the certificate from numbers that the search has computed anyway.

        `Solution.with_certificate`, which maps and evaluates the data, would triple the time. The accuracy stays, as a
        temperature keeps every predicted class.
        """
        result = fit_nll_temperature(p)
        all_labels_possible = result.num_rows == len(p)  # otherwise some label has probability 0 at every T
        nll_before, nll_after = (result.initial_nll, result.nll) if all_labels_possible else (math.inf, math.inf)
        accuracy = result.correct_weight / p.total_weight
        certificate = Certificate(
            criterion="nll",
            before=nll_before,
            after=nll_after,
            status=check_status(result.status, nll_before, nll_after),
            gradient=result.gradient,
            iterations=result.iterations,
            nll_before=nll_before,
            nll_after=nll_after,
            accuracy_before=accuracy,
            accuracy_after=accuracy,
            standard_error=result.standard_error,
            data=p.digest,
            classes=p.k,
            absent=len(p.absent_classes),
        )
        return cls(result.temperature, certificate)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return z / T."""
        return maps.temperature(logits, vars(self))


def temperature_grid(grid: str | Sequence[float]) -> list[float]:
    """Return the temperatures of a grid, given as numbers or by a name of `TEMPERATURE_GRIDS`."""
    if isinstance(grid, str):
        return TEMPERATURE_GRIDS[grid].tolist()
    if not grid or min(grid) <= 0:
        raise InputError(
            f"Expected a grid of positive temperatures, got {list(grid)}. Try numbers such as 0.5, 1, 2.",
            code="grid_range",
        )
    return list(map(float, grid))


@dataclass(frozen=True)
class TemperatureFit:
    """The temperature that minimizes the NLL, and how the search ended."""

    temperature: float
    nll: float
    status: Status
    gradient: float  # in log(1/T), by the Taylor series of the last pass
    iterations: int  # passes over all data
    standard_error: float
    logit_spread: float  # scale of the logits, used where no temperature is best
    num_rows: int  # rows whose true class has a probability above 0
    initial_nll: float  # NLL of these rows at T = 1
    correct_weight: float  # total weight of the rows whose prediction is right

    @property
    def finite_temperature(self) -> float:
        """The temperature, or the spread of the logits if the optimum lies at 0 or infinity."""
        return self.temperature if self.status == "converged" else self.logit_spread


@dataclass(frozen=True)
class NllDerivatives(PointEvaluation):
    """The NLL of logits b z and derivatives in u = log b. The first is the inherited `value`, whose root is sought."""

    nll: float
    curvature: float  # second derivative in b, times b^2
    variance: float  # of an example's derivative in b, times b^2
    uncalibrated_nll: float = math.nan  # NLL of z; the last two fields come with double precision only
    correct_weight: float = math.nan  # total weight of the rows whose prediction is right

    def extrapolate_nll(self, s: float) -> float:
        """Return the NLL at u + s by its Taylor series."""
        return self.nll + self.value * s + self.slope * s**2 / 2 + self.second_derivative * s**3 / 6

    def extrapolate_slope(self, s: float) -> float:
        """Return the slope of the NLL at u + s by its Taylor series."""
        return self.value + self.slope * s + self.second_derivative * s**2 / 2


@dataclass(frozen=True, eq=False)
class FitInput:
    """Predictions with the temperatures that several families start from, computed on first use."""

    p: Predictions
    tolerance: float = GRADIENT_TOLERANCE  # of the fits to these predictions

    @cached_property
    def nll_fit(self) -> TemperatureFit:
        """The temperature that minimizes the NLL."""
        return fit_nll_temperature(self.p)

    @cached_property
    def robust_fit(self) -> TemperatureFit:
        """The temperature that minimizes the NLL of smoothed probabilities. Single errors have little effect on it."""
        return _fit_robust_temperature(self.p, self.nll_fit)

    def temperature(self, robust: bool) -> TemperatureFit:
        """Return `robust_fit` or `nll_fit`."""
        return self.robust_fit if robust else self.nll_fit


def fit_nll_temperature(p: Predictions) -> TemperatureFit:
    """Minimize the NLL over T by Halley's method in u = log(1/T).

    For large data the search starts on a sixteenth of the rows. Examples whose true class has probability 0 have an
    infinite NLL at every T and are left out.
    """
    p = drop_impossible(p)
    spread = _logit_spread(p[:: max(1, math.prod(p.logits.shape) >> 11)])  # of about 2^11 logits
    center = -math.log(spread)
    low, high = center - 25.0, center + 25.0  # beyond, T counts as infinite or 0

    def search(p: Predictions, start: float, tolerance: float, dtype: type) -> Root[NllDerivatives]:
        return increasing_root(lambda u: _nll_derivatives(p, math.exp(u), dtype), start, low, high, tolerance)

    start = center + 2.0  # the T of networks is about e^-2, a seventh, of the spread of their logits
    # The error is about the cube of the last step, whose length is at most the tolerance
    if math.prod(p.logits.shape) >= 1 << 18:
        start = search(p[::16], start, SAMPLE_STEP, np.float32).x
    rough = search(p, start, COARSE_STEP, np.float32)  # 0.06^3 < 3e-4: usually a single pass in float64 is left
    root = search(p, rough.x, FINE_STEP, np.float64)  # 3e-4^3 is an error of about 3e-11 in log T
    derivatives, t = root.evaluation, math.exp(-root.x)
    standard_error, status = math.nan, "converged"
    if not root.is_interior:
        status = "separable" if root.x > center else "at bound"  # the best T is 0, or infinite
    elif derivatives.curvature > 0:  # the sandwich formula: T sqrt(variance / n) / curvature
        standard_error = t * math.sqrt(derivatives.variance / p.total_weight) / derivatives.curvature
    return TemperatureFit(
        temperature=t,
        nll=derivatives.extrapolate_nll(root.step),
        status=status,
        gradient=abs(derivatives.extrapolate_slope(root.step)),
        iterations=rough.iterations + root.iterations,
        standard_error=standard_error,
        logit_spread=spread,
        num_rows=len(p),
        initial_nll=derivatives.uncalibrated_nll,
        correct_weight=derivatives.correct_weight,
    )


def drop_impossible(p: Predictions) -> Predictions:
    """Return the examples whose true class has a probability above 0. Raises `InputError` if there are none."""
    xp = namespace(p.logits)
    z_y = xp.take_along_axis(p.logits, like(p.labels, p.logits)[:, None], axis=1)[:, 0]
    possible = z_y > -xp.inf
    if xp.all(possible):
        return p
    if not xp.any(possible):
        raise InputError(
            "Expected a true class with a probability above 0, got a logit of -inf for every true class. Try checking "
            "the order of the classes.",
            code="all_impossible",
        )
    return p[possible]


def _logit_spread(p: Predictions) -> float:
    """Return the median positive distance of finite logits from the top logit of their row, 1 if there is none.

    A median, because a few outliers can dominate a mean.
    """
    xp = namespace(p.logits)
    z = xp.astype(p.logits, xp.float64)
    top = xp.max(z, axis=-1, keepdims=True)
    is_counted = (z < top) & (z > -xp.inf)
    weights = None if p.weights is None else xp.broadcast_to(like(p.weights, z)[:, None], z.shape)[is_counted]
    return weighted_median((top - z)[is_counted], weights)


def _nll_derivatives(p: Predictions, b: float, dtype: type = np.float64) -> NllDerivatives:
    """Return the mean NLL of logits b z with its derivatives, from the cumulants of b z under softmax(b z).

    Exponentials have the precision `dtype`, or a higher one of the logits: float32 takes a third of the time.
    """
    dtype = np.float64 if "float64" in str(p.logits.dtype) else dtype
    if compiled := kernels(p.logits):
        sum_chunk, elements = partial(_compiled_nll_derivatives, compiled, b, dtype), 1 << 20
    else:
        sum_chunk, elements = partial(_nll_derivatives_of_rows, b, dtype), FIT_CHUNK_ELEMENTS
    sums = sum_row_chunks(sum_chunk, *_row_columns(p), elements=elements)
    # Only double precision has a sixth sum, the NLL of z, and a seventh, the weight of right predictions
    nll, first, second, third, square, *uncalibrated_nll = (sums[:6] / p.total_weight).tolist()
    # From derivatives in b, times powers of b, to derivatives in u = log b by the chain rule. The root of the first one
    # is sought: it is the value of the result, with its own slope and second derivative
    slope, second_in_u = first + second, first + 3 * second + third
    return NllDerivatives(
        first, slope, second_in_u, nll, second, square - first * first, *uncalibrated_nll, *sums[6:].tolist()
    )


def _row_columns(p: Predictions) -> list[Any]:
    """Return the logits, the labels and, if there are any, the weights of predictions, all where the logits lie."""
    return [p.logits, *(like(column, p.logits) for column in (p.labels, p.weights) if column is not None)]


def _nll_derivatives_of_rows(b: float, dtype: type, z: Any, y: Any, *weights: Any) -> Any:
    """Return weighted sums over rows of logits z (n k) with labels y (n), at the inverse temperature b.

    They are the NLL of b z; its first, second and third derivative in b times b, b^2 and b^3; and the square of the
    first. The derivatives are the cumulants of b z under softmax(b z), from its moments m1, m2 and m3. In double
    precision, the NLL of z and the number of right predictions follow.
    """
    xp = namespace(z)
    margin, label_margin, exponent = _margins(b, dtype, z, y)
    powers = exp_in_place(xp.asarray(exponent, copy=True))
    sums = [xp.sum(powers, axis=0)]
    for _ in range(3):  # each pass multiplies the powers by b z, whose moments m1, m2 and m3 are
        powers *= exponent
        sums.append(xp.sum(powers, axis=0))
    norm, *moments = (xp.astype(x, xp.float64) for x in sums)
    m1, m2, m3 = (x / norm for x in moments)
    label_score = b * label_margin
    first = m1 - label_score
    rows = [xp.log(norm) - label_score, first, m2 - m1**2, m3 - 3 * m1 * m2 + 2 * m1**3, first**2]
    if dtype == np.float64:
        total = xp.sum(exp_in_place(margin), axis=0)
        rows += [xp.log(total) - label_margin, xp.astype(is_predicted(z, y, label_margin, total), xp.float64)]
    terms = xp.stack(rows)
    return terms @ weights[0] if weights else xp.sum(terms, axis=1)


def _margins(b: float, dtype: type, z: Any, y: Any) -> tuple[Any, Any, Any]:
    """Return the margins z - max z of logits by class (k n), of the labels (n) in float64, and b times the first."""
    xp, margin = namespace(z), class_columns(z, dtype)
    margin -= xp.max(margin, axis=0)
    label_margin = xp.astype(xp.take_along_axis(margin, y[None, :], axis=0)[0], xp.float64)
    return margin, label_margin, xp.maximum(margin * b, MIN_EXPONENT)


def _compiled_nll_derivatives(
    compiled: Any, b: float, dtype: type, z: np.ndarray, y: np.ndarray, *weights: np.ndarray
) -> np.ndarray:
    """Return the same sums as `_nll_derivatives_of_rows`, from one pass of the compiled kernels."""
    z = z if z.dtype.type in (np.float32, np.float64) else z.astype(np.float32)
    out = np.zeros(7 if dtype == np.float64 else 5)  # two sums need double precision
    # Working memory of the kernel, whose type is the precision of the exponentials
    sums = np.empty((4, compiled.BLOCK_ROWS), dtype)
    w = weights[0] if weights else np.empty(0)
    compiled.nll_derivatives(*map(np.ascontiguousarray, (z, y, w)), b, sums, out)
    return out


def _fit_robust_temperature(p: Predictions, initial_fit: TemperatureFit) -> TemperatureFit:
    r"""Minimize the NLL of $(n p + 1/k) / (n + 1)$ with a normal prior of log T over T, by EM from an initial fit.

    A Newton step in log(1/T) stands for the maximization of each round. An example is weighted by the posterior
    probability that its label comes from p and not from the uniform part. An example that p calls impossible has almost
    no weight and cannot distort T. The prior keeps T from explaining all errors that way.
    """
    p = drop_impossible(p)
    u, step, passes = -math.log(initial_fit.temperature), math.inf, 0  # u = log(1/T)
    prior_log_odds, prior_precision = math.log(p.total_weight * p.k), LOG_TEMPERATURE_DEVIATION**-2
    while abs(step) > MAX_LAST_ROBUST_STEP and passes < MAX_ROBUST_PASSES:
        derivatives = partial(_robust_derivatives, math.exp(u), prior_log_odds)
        slope, curvature, correction = sum_row_chunks(
            derivatives, *_row_columns(p), elements=FIT_CHUNK_ELEMENTS
        ).tolist()
        slope, curvature = slope + u * prior_precision, curvature + prior_precision  # with the normal prior of u
        step = -slope / max(curvature, MIN_ROBUST_CURVATURE)
        # Near the optimum, use the whole second derivative, in which the posteriors vary. It may be negative elsewhere
        if abs(step) < 0.1:
            step = -slope / max(curvature - correction, curvature / 4, MIN_ROBUST_CURVATURE)
        step = max(-1.0, min(1.0, step))
        u, passes = u + step, passes + 1
    return replace(initial_fit, temperature=math.exp(-u), iterations=initial_fit.iterations + passes)


def _robust_derivatives(b: float, prior_log_odds: float, z: Any, y: Any, *weights: Any) -> Any:
    """Return three sums over rows: the slope of the robust loss in log b, and two parts of its second derivative.

    The robust loss of a row is -log(n p_y + 1/k). The first part of the second derivative holds the posteriors fixed.
    The other part, which is subtracted, is due to their change.

    Args:
        b: Inverse temperature.
        prior_log_odds: log(n k), the log-odds that a label with p = 1 comes from p and not from the uniform part.
        z: Logits, (n k).
        y: Labels, (n).
        weights: Weights of the rows, (n), if there are any.
    """
    xp = namespace(z)
    _, label_margin, exponent = _margins(b, np.float64, z, y)
    # Finite, so that a posterior of 0 times the score is 0
    label_score = xp.maximum(b * label_margin, -xp.finfo(xp.float64).max)
    powers = exp_in_place(xp.asarray(exponent, copy=True))
    norm = xp.sum(powers, axis=0)
    powers *= exponent
    mean = xp.sum(powers, axis=0) / norm
    powers *= exponent
    square = xp.sum(powers, axis=0) / norm
    posterior = xp.exp(maps.log_sigmoid(label_score - xp.log(norm) + prior_log_odds))  # that the label comes from p
    counts = posterior * weights[0] if weights else posterior
    first = mean - label_score  # derivatives of -log p_y in log b
    second = first + square - mean**2
    return xp.stack([counts @ first, counts @ second, (counts * (1 - posterior) * first) @ first])
