"""Logistic regressions on functions of the score s = z_1 - z_0 of two classes.

A `Solution` is a fitted calibrator before `with_certificate` adds the record of its fit, the `Certificate`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.lbfgs import Minimum
from calibrant._core.kernels.logistic import sigmoid, sigmoid_and_softplus
from calibrant._core.kernels.roots import Certificate, PointEvaluation, increasing_root
from calibrant._core.kernels.solvers import newton, newton_decrement
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import FiniteScalar, FiniteVector, InputError, Logits, PositiveScalar
from calibrant.calibrators import maps
from calibrant.calibrators._affine import MIN_RIDGE
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import (
    Fitted,
    Solution,
    example_weights,
    fit_method,
    weighted_median,
)
from calibrant.calibrators.fields import FittedMap
from calibrant.calibrators.maps import TINY_DIVISOR
from calibrant.predictions import Predictions

__all__ = ["Beta", "Intercept", "Logistic", "Platt", "Quadratic"]

MAX_FINITE_SCORE = 1e300  # larger scores count as infinite, and no limit clips them
TINY_RIDGE = 1e-9  # of `Logistic`, whose coefficients are to be those of maximum likelihood
MIN_RELATIVE_SPREAD = 1e-12  # standard deviation below which a feature is constant up to rounding


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Platt(FittedMap):
    r"""Platt scaling, $\sigma(a s + b)$ of the score $s = z_1 - z_0$ (Platt 1999).

    Fitted to Platt's smoothed targets, $(n_1 + 1) / (n_1 + 2)$ for class 1 and $1 / (n_0 + 2)$ for class 0, as in
    scikit-learn's sigmoid method. The fit is finite even if a threshold separates the classes, at a cost of at most 2/n
    nats. a >= 0 unless `monotone=False`. A probability of exactly 0 or 1 is replaced by the most extreme one that is
    not. Like every map of this family it raises `InputError` unless there are 2 classes.

    >>> Platt(2.0, 1.0)(np.array([[0.0, 3.0]]))
    array([[-3.5,  3.5]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("slope", "bias")  # shown in brackets in tables

    slope: FiniteScalar
    bias: FiniteScalar
    limit: PositiveScalar = MAX_FINITE_SCORE  # to which larger absolute scores are clipped
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=2)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Platt":
        """Fit a and b."""
        return fit_platt(p, monotone=monotone).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return the logits -s/2 and s/2 of the new score s."""
        return maps.logistic_line(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Logistic(Platt):
    r"""Logistic recalibration, $\sigma(a s + b)$ of the score $s = z_1 - z_0$ (Cox 1958; Steyerberg 2019, ch. 15).

    The map of `Platt`, fitted to the labels themselves: the slope is `metrics.calibration_slope`. A ridge of 1e-9 keeps
    it finite where a threshold separates the classes; `Platt` is better there. a may be negative.

    >>> Logistic(2.0, 1.0)(np.array([[0.0, 3.0]]))
    array([[-3.5,  3.5]])
    """

    @classmethod
    @fit_method
    def fit(cls, p: Predictions) -> "Logistic":
        """Fit a and b by maximum likelihood."""
        return fit_logistic(p).with_certificate(p)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Intercept(Platt):
    r"""Recalibration in the large, $\sigma(s + b)$ of the score $s = z_1 - z_0$ (Steyerberg 2019, ch. 15).

    The map of `Platt` with a = 1: a new intercept, `metrics.calibration_intercept`, and the same order and spread of
    the log-odds. After it, the mean probability is the frequency of the event. A class without labels counts as half
    an example.

    >>> Intercept(1.0, 1.0)(np.array([[0.0, 3.0]]))
    array([[-2.,  2.]])
    """

    capabilities = Capabilities(num_classes=2, repairs_overconfidence=False)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions) -> "Intercept":
        """Fit b by maximum likelihood."""
        return fit_intercept(p).with_certificate(p)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Beta(FittedMap):
    r"""Beta calibration, $\sigma(a \log p - b \log(1-p) + c)$ (Kull et al. 2017, eq. 4).

    $p = \sigma(s)$ of the score $s = z_1 - z_0$. a, b >= 0 unless `monotone=False`. Platt scaling if a = b. log p is at
    least -87. A probability of exactly 0 or 1 is replaced by the most extreme one that is not.

    >>> Beta(1.0, 1.0, 0.0)(np.array([[0.0, 3.0]]))
    array([[-1.5,  1.5]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("a", "b", "c")  # shown in brackets in tables

    a: FiniteScalar
    b: FiniteScalar
    c: FiniteScalar
    limit: PositiveScalar = MAX_FINITE_SCORE  # as in `Platt`
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=2)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Beta":
        """Fit a, b and c by NLL."""
        return fit_beta(p, monotone=monotone).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return the logits -s/2 and s/2 of the new score s."""
        return maps.beta(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Quadratic(FittedMap):
    r"""Quadratic scaling, $\sigma(a + b s + c s^2)$ of the score $s = z_1 - z_0$ (probmetrics; Berta et al. 2025).

    Parametrized by its slopes at the two ends of the calibration data, between which the slope is linear:
    nonnegative slopes at the ends make it increasing, as it is unless `monotone=False`. Beyond the data it is
    straight, where the parabola would turn around.

    >>> Quadratic([0.0, 2.0], [0.0, 2.0], 0.0)(np.array([[0.0, 2.0], [0.0, 3.0]]))
    array([[-1.,  1.],
           [-2.,  2.]])
    """

    ends: FiniteVector  # (2) smallest and largest s
    slopes: FiniteVector  # (2) at the ends
    bias: FiniteScalar  # the value at the lower end
    limit: PositiveScalar = MAX_FINITE_SCORE  # as in `Platt`
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=2)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Quadratic":
        """Fit the parabola by NLL."""
        return fit_quadratic(p, monotone=monotone).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return the logits -s/2 and s/2 of the new score s."""
        return maps.quadratic(logits, vars(self))


def fit_platt(p: Predictions, *, monotone: bool = True) -> Solution[Platt]:
    """Fit `Platt` without a certificate: labels 1 and 0 become Platt's targets (n1 + 1) / (n1 + 2) and 1 / (n0 + 2)."""
    s, scale, limit = _fitting_scores(p, "Platt")
    n1 = float(example_weights(p) @ p.labels)  # total weight of label 1
    n0 = p.total_weight - n1
    targets = np.where(p.labels == 1, (n1 + 1) / (n1 + 2), 1 / (n0 + 2))
    reference = np.array([1 / scale, 0.0])  # (w, c) of `_Logistic` for the map s / scale
    problem = _Logistic.from_features(s[:, None], targets, p, reference)
    slack = 2 / p.total_weight  # the targets may raise the NLL of the labels
    return problem.fit(lambda w, c: Platt(w[0], c, limit), monotone=monotone, slack=slack)


def fit_logistic(p: Predictions) -> Solution[Logistic]:
    """Fit `Logistic` without a certificate."""
    s, scale, limit = _fitting_scores(p, "Logistic")
    reference = np.array([1 / scale, 0.0])  # (w, c) of `_Logistic` for the map s / scale
    problem = _Logistic.from_features(s[:, None], p.labels.astype(float), p, reference, ridge=TINY_RIDGE)
    return problem.fit(lambda w, c: Logistic(w[0], c, limit), monotone=False)


def fit_intercept(p: Predictions) -> Solution[Intercept]:
    """Fit `Intercept` without a certificate: the b at which as many events are expected as happened."""
    s, _, limit = _fitting_scores(p, "Intercept")
    w, n = example_weights(p), p.total_weight
    num_events = float(w @ p.labels)
    events = min(max(num_events, min(0.5, n / 2)), n - min(0.5, n / 2))

    def excess(b: float) -> PointEvaluation:
        """Return the expected minus the observed events, and its derivatives in b."""
        q = sigmoid(s + b)
        slope = q * (1 - q)
        return PointEvaluation(float(w @ q) - events, float(w @ slope), float(w @ (slope * (1 - 2 * q))))

    bound = float(np.abs(s).max()) + math.log(2 * n + 2)  # beyond it, hardly an example can change
    root = increasing_root(excess, 0.0, -bound, bound, tolerance=1e-9)
    gradient = abs(excess(root.x).value) / n
    slack = 0.0 if num_events == events else 1 / n  # the half example may raise the NLL of the labels
    fitted = Intercept(1.0, root.x, limit)
    return Solution(fitted, "converged", gradient, root.iterations, slack=slack, clips_zeros=True)


def fit_beta(p: Predictions, *, monotone: bool = True) -> Solution[Beta]:
    """Fit `Beta` without a certificate: a logistic regression on log p and -log(1 - p)."""
    s, scale, limit = _fitting_scores(p, "Beta")
    # (w, c) of `_Logistic` for the map s / scale, as log p - log(1 - p) is s
    reference = np.array([1 / scale, 1 / scale, 0.0])
    problem = _Logistic.from_features(maps.beta_features(s), p.labels.astype(float), p, reference)
    return problem.fit(lambda w, c: Beta(w[0], w[1], c, limit), monotone=monotone)


def fit_quadratic(p: Predictions, *, monotone: bool = True) -> Solution[Quadratic]:
    """Fit `Quadratic` without a certificate: a logistic regression whose weights are the slopes at both ends."""
    s, scale, limit = _fitting_scores(p, "Quadratic")
    low, high = float(s.min()), float(s.max())
    ends = np.array([low, high])
    # (w, c) of `_Logistic` for the map s / scale: its slopes at both ends, and its value at the lower end
    reference = np.array([1 / scale, 1 / scale, low / scale])
    problem = _Logistic.from_features(maps.quadratic_features(s, ends), p.labels.astype(float), p, reference)
    return problem.fit(lambda w, c: Quadratic(ends, w, c, limit), monotone=monotone)


def _fitting_scores(p: Predictions, name: str) -> tuple[np.ndarray, float, float]:
    """Return the scores to fit to and their scale, after checking that there are 2 classes.

    Returns:
        The scores (n), clipped to +-limit; their scale, which is the median of the positive absolute scores, or 1 if
        there is none; and the limit.
    """
    if p.k != 2:
        raise InputError(
            f"Expected predictions of 2 classes for {name}, got {p.k}. Try StructuredMatrix.", code="num_classes"
        )
    with np.errstate(over="ignore"):  # of differences beyond the limit
        s = to_numpy(maps.binary_score(p.logits, MAX_FINITE_SCORE))
    limit = _score_limit(s)
    s = np.clip(s, -limit, limit)
    magnitude = np.abs(s)
    positive = magnitude > 0
    scale = weighted_median(magnitude[positive], None if p.weights is None else p.weights[positive])
    return s, scale, limit


def _score_limit(s: np.ndarray) -> float:
    """Return no limit if all scores are finite, else the largest finite absolute score, or 1 if that is 0 or missing.

    A probability of exactly 0 is replaced because a forest's 0 means that no tree voted for the class, and a single
    error at infinity would undo any slope.
    """
    magnitude = np.abs(s)
    finite = magnitude[magnitude < MAX_FINITE_SCORE]
    return MAX_FINITE_SCORE if len(finite) == len(s) else float(finite.max(initial=0.0)) or 1.0


@dataclass(frozen=True, eq=False)
class _Logistic:
    r"""The cross-entropy of sigmoid(features @ w + c) with a ridge, in well-conditioned coordinates.

    A reference (w, c), roughly the uncalibrated map, states which examples are uncertain. The ridge is 1e-6 of the
    mean square log-odds, weighted by this uncertainty. It does not depend on the coordinates, and outliers have no part
    in it because the reference is certain of them.
    """

    x: np.ndarray  # (m+1 n) standardized features, and 1
    targets: np.ndarray  # (n)
    example_shares: np.ndarray  # (n) of the total weight
    ridge: np.ndarray  # (m+1 m+1)
    to_parameters: np.ndarray  # (m+1 m+1), maps coordinates to (w, c)
    reference: np.ndarray  # (m+1) in the coordinates

    @classmethod
    def from_features(
        cls,
        features: np.ndarray,
        targets: np.ndarray,
        p: Predictions,
        reference: np.ndarray,
        ridge: float = MIN_RIDGE,
    ) -> "_Logistic":
        """Build the problem in the weights and the intercept of standardized features, which are its coordinates.

        Means and standard deviations are weighted by the curvature of the loss at the reference.

        Args:
            features: Features, (n m).
            targets: Label of each example, or the probability of label 1, (n).
            p: Predictions, for the weights of the examples.
            reference: Weights w and intercept c of the reference, (m+1).
            ridge: Ridge, as a share of the mean square log-odds.
        """
        n, m = features.shape
        example_shares = example_weights(p) / p.total_weight
        q = sigmoid(features @ reference[:m] + reference[m])
        curvature = example_shares * 4 * q * (1 - q)  # q (1 - q) is at most 1/4
        total = max(curvature.sum(), TINY_DIVISOR)  # 0 if the reference is certain of all examples
        center = (curvature @ features) / total
        deviation = features - center
        with np.errstate(over="ignore", invalid="ignore"):  # of outliers, with which the spread is NaN
            spread = np.sqrt(curvature @ deviation**2 / total)
        varies = spread > MIN_RELATIVE_SPREAD * np.abs(center)  # a feature that does not vary becomes 0
        spread = np.where(varies, spread, 1.0)
        x = np.vstack([np.where(varies, deviation / spread, 0.0).T, np.ones(n)])
        # From coordinates (t, t_0) to w = t / spread and c = t_0 - w center
        to_parameters = np.eye(m + 1)
        to_parameters[:m, :m] = np.diag(1 / spread)
        to_parameters[m, :m] = -center / spread
        coordinates = np.linalg.solve(to_parameters, reference)
        # t' penalty t / 2 is the ridge times the sum over examples of the curvature times the squared log-odds
        penalty = 2 * ridge * (x * curvature) @ x.T
        return cls(x, targets, example_shares, penalty, to_parameters, coordinates)

    def __call__(self, t: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the penalized loss, its gradient and its Hessian at coordinates t."""
        s = t @ self.x  # log-odds (n)
        q, softplus = sigmoid_and_softplus(s)
        loss = softplus - self.targets * s
        gradient = self.x @ (self.example_shares * (q - self.targets))
        hessian = (self.x * (self.example_shares * q * (1 - q))) @ self.x.T
        ridge_gradient = self.ridge @ t
        value = float(self.example_shares @ loss) + float(t @ ridge_gradient) / 2
        return value, gradient + ridge_gradient, hessian + self.ridge

    def fit(self, build: Callable[[np.ndarray, float], Fitted], monotone: bool, slack: float = 0.0) -> Solution[Fitted]:
        """Minimize the loss and build the calibrator from the weights w (m) of the features and the intercept c.

        Args:
            build: Function of w and c that returns the calibrator.
            monotone: Whether all of w must be nonnegative, so that the map increases.
            slack: As in `Solution`: increase of the NLL that the method allows.
        """
        # The coordinates are w times positive spreads, so that they have the same signs
        lower = np.full_like(self.reference, 0.0 if monotone else -np.inf)
        lower[-1] = -np.inf  # c may be negative
        minimum = newton(self, self.reference, lower=lower)
        parameters = self.to_parameters @ minimum.x
        w, c = parameters[:-1], float(parameters[-1])
        return Solution(
            build(w, c),
            "at bound" if monotone and bool((w <= 0).any()) else "converged",
            minimum.gradient,
            minimum.evaluations,
            slack=slack,
            clips_zeros=True,
            gap=minimum.optimality_gap + self._ridge_cost(minimum, lower),
        )

    def _ridge_cost(self, minimum: Minimum, lower: np.ndarray) -> float:
        """Estimate by how much the ridge raises the loss, capped at the loss itself.

        It is the Newton decrement of the loss without the ridge, over the parameters that are free to move.
        """
        gradient, hessian = minimum.derivatives
        loss_gradient = gradient - self.ridge @ minimum.x
        free = (minimum.x > lower) | (loss_gradient < 0)  # at a bound, only if the loss falls away from it
        cost = newton_decrement(loss_gradient[free], (hessian - self.ridge)[free][:, free])
        return max(0.0, min(cost, minimum.value))
