"""Logistic regressions on functions of the score s = z_1 - z_0 of two classes.

A `Solution` is a fitted calibrator before `with_certificate` adds the record of its fit, the `Certificate`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from calibrant._core.kernels.lbfgs import Minimum
from calibrant._core.kernels.roots import Certificate, PointEvaluation, increasing_root
from calibrant._core.kernels.solvers import newton, newton_decrement
from calibrant._core.registry import CALIBRATORS
from calibrant._core.tensors import label_tensor
from calibrant._core.types import FiniteScalar, FiniteVector, InputError, Logits, PositiveScalar
from calibrant.calibrators._affine import LOG_PROB_FLOOR, MIN_RIDGE
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import (
    TINY_DIVISOR,
    Fitted,
    Solution,
    example_mean,
    example_weights,
    fit_method,
    weighted_median,
)
from calibrant.predictions import Predictions

__all__ = ["Beta", "Intercept", "Logistic", "Platt", "Quadratic"]

MAX_FINITE_SCORE = 1e300  # larger scores count as infinite
TINY_RIDGE = 1e-9  # of `Logistic`, whose coefficients are to be those of maximum likelihood
MIN_RELATIVE_SPREAD = 1e-12  # standard deviation below which a feature is constant up to rounding
NO_SCORE_LIMIT = torch.tensor(MAX_FINITE_SCORE, dtype=torch.float64)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Platt:
    r"""Platt scaling, $\sigma(a s + b)$ of the score $s = z_1 - z_0$ (Platt 1999).

    Fitted to Platt's smoothed targets, $(n_1 + 1) / (n_1 + 2)$ for class 1 and $1 / (n_0 + 2)$ for class 0, as in
    scikit-learn's sigmoid method. The fit is finite even if a threshold separates the classes, at a cost of at most 2/n
    nats. a >= 0 unless `monotone=False`. A probability of exactly 0 or 1 is replaced by the most extreme one that is
    not. Like every map of this family it raises `InputError` unless there are 2 classes.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Platt(number(2.0), number(1.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-3.5000,  3.5000]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("slope", "bias")  # shown in brackets in tables

    slope: FiniteScalar  # float64
    bias: FiniteScalar  # float64
    limit: PositiveScalar = NO_SCORE_LIMIT  # float64, to which larger absolute scores are clipped
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
        return _score_to_logits(self.slope * _score(logits, self.limit) + self.bias)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Logistic(Platt):
    r"""Logistic recalibration, $\sigma(a s + b)$ of the score $s = z_1 - z_0$ (Cox 1958; Steyerberg 2019, ch. 15).

    The map of `Platt`, fitted to the labels themselves: the slope is `metrics.calibration_slope`. A ridge of 1e-9 keeps
    it finite where a threshold separates the classes; `Platt` is better there. a may be negative.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Logistic(number(2.0), number(1.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-3.5000,  3.5000]])
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

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Intercept(number(1.0), number(1.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-2.,  2.]])
    """

    capabilities = Capabilities(num_classes=2, repairs_overconfidence=False)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions) -> "Intercept":
        """Fit b by maximum likelihood."""
        return fit_intercept(p).with_certificate(p)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Beta:
    r"""Beta calibration, $\sigma(a \log p - b \log(1-p) + c)$ (Kull et al. 2017, eq. 4).

    $p = \sigma(s)$ of the score $s = z_1 - z_0$. a, b >= 0 unless `monotone=False`. Platt scaling if a = b. log p is at
    least -87. A probability of exactly 0 or 1 is replaced by the most extreme one that is not.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Beta(number(1.0), number(1.0), number(0.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-1.5000,  1.5000]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("a", "b", "c")  # shown in brackets in tables

    a: FiniteScalar  # float64
    b: FiniteScalar  # float64
    c: FiniteScalar  # float64
    limit: PositiveScalar = NO_SCORE_LIMIT  # float64, as in `Platt`
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
        log_p, minus_log_q = _beta_features(_score(logits, self.limit)).unbind(1)
        return _score_to_logits(self.a * log_p + self.b * minus_log_q + self.c)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Quadratic:
    r"""Quadratic scaling, $\sigma(a + b s + c s^2)$ of the score $s = z_1 - z_0$ (probmetrics; Berta et al. 2025).

    Parametrized by its slopes at the two ends of the calibration data, between which the slope is linear:
    nonnegative slopes at the ends make it increasing, as it is unless `monotone=False`. Beyond the data it is
    straight, where the parabola would turn around.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Quadratic(number([0.0, 2.0]), number([0.0, 2.0]), number(0.0))(torch.tensor([[0.0, 2.0], [0.0, 3.0]]))
    tensor([[-1.,  1.],
            [-2.,  2.]])
    """

    ends: FiniteVector  # (2) float64, smallest and largest s
    slopes: FiniteVector  # (2) float64, at the ends
    bias: FiniteScalar  # float64, the value at the lower end
    limit: PositiveScalar = NO_SCORE_LIMIT  # float64, as in `Platt`
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
        return _score_to_logits(_quadratic_features(_score(logits, self.limit), self.ends) @ self.slopes + self.bias)


def fit_platt(p: Predictions, *, monotone: bool = True) -> Solution[Platt]:
    """Fit `Platt` without a certificate: labels 1 and 0 become Platt's targets (n1 + 1) / (n1 + 2) and 1 / (n0 + 2)."""
    s, scale, limit = _fitting_scores(p, "Platt")
    n1 = example_mean(label_tensor(p).double(), p) * p.total_weight  # total weight of label 1
    n0 = p.total_weight - n1
    targets = torch.where(label_tensor(p) == 1, (n1 + 1) / (n1 + 2), 1 / (n0 + 2))
    reference = torch.stack([1 / scale, torch.zeros_like(scale)])  # (w, c) of `_Logistic` for the map s / scale
    problem = _Logistic.from_features(s[:, None], targets, p, reference)
    slack = 2 / p.total_weight  # the targets may raise the NLL of the labels
    return problem.fit(lambda w, c: Platt(w[0], c, limit), monotone=monotone, slack=slack)


def fit_logistic(p: Predictions) -> Solution[Logistic]:
    """Fit `Logistic` without a certificate."""
    s, scale, limit = _fitting_scores(p, "Logistic")
    reference = torch.stack([1 / scale, torch.zeros_like(scale)])  # (w, c) of `_Logistic` for the map s / scale
    problem = _Logistic.from_features(s[:, None], label_tensor(p).double(), p, reference, ridge=TINY_RIDGE)
    return problem.fit(lambda w, c: Logistic(w[0], c, limit), monotone=False)


def fit_intercept(p: Predictions) -> Solution[Intercept]:
    """Fit `Intercept` without a certificate: the b at which as many events are expected as happened."""
    s, _, limit = _fitting_scores(p, "Intercept")
    w, n = example_weights(p), p.total_weight
    num_events = float(w @ label_tensor(p).double())
    events = min(max(num_events, min(0.5, n / 2)), n - min(0.5, n / 2))

    def excess(b: float) -> PointEvaluation:
        """Return the expected minus the observed events, and its derivatives in b."""
        q = (s + b).sigmoid()
        slope = q * (1 - q)
        return PointEvaluation(float(w @ q) - events, float(w @ slope), float(w @ (slope * (1 - 2 * q))))

    bound = float(s.abs().max()) + math.log(2 * n + 2)  # beyond it, hardly an example can change
    root = increasing_root(excess, 0.0, -bound, bound, tolerance=1e-9)
    b = torch.tensor(root.x, dtype=torch.float64)
    gradient = abs(excess(root.x).value) / n
    slack = 0.0 if num_events == events else 1 / n  # the half example may raise the NLL of the labels
    fitted = Intercept(torch.ones_like(b), b, limit.cpu())
    return Solution(fitted, "converged", gradient, root.iterations, slack=slack, clips_zeros=True)


def fit_beta(p: Predictions, *, monotone: bool = True) -> Solution[Beta]:
    """Fit `Beta` without a certificate: a logistic regression on log p and -log(1 - p)."""
    s, scale, limit = _fitting_scores(p, "Beta")
    # (w, c) of `_Logistic` for the map s / scale, as log p - log(1 - p) is s
    reference = torch.stack([1 / scale, 1 / scale, torch.zeros_like(scale)])
    problem = _Logistic.from_features(_beta_features(s), label_tensor(p).double(), p, reference)
    return problem.fit(lambda w, c: Beta(w[0], w[1], c, limit), monotone=monotone)


def fit_quadratic(p: Predictions, *, monotone: bool = True) -> Solution[Quadratic]:
    """Fit `Quadratic` without a certificate: a logistic regression whose weights are the slopes at both ends."""
    s, scale, limit = _fitting_scores(p, "Quadratic")
    low, high = s.min(), s.max()
    ends = torch.stack([low, high])
    # (w, c) of `_Logistic` for the map s / scale: its slopes at both ends, and its value at the lower end
    reference = torch.stack([1 / scale, 1 / scale, low / scale])
    problem = _Logistic.from_features(_quadratic_features(s, ends), label_tensor(p).double(), p, reference)
    return problem.fit(lambda w, c: Quadratic(ends, w, c, limit), monotone=monotone)


def _fitting_scores(p: Predictions, name: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores to fit to and their scale, after checking that there are 2 classes.

    Returns:
        The scores (n), clipped to +-limit; their scale, which is the median of the positive absolute scores, or 1 if
        there is none; and the limit.
    """
    if p.k != 2:
        raise InputError(
            f"Expected predictions of 2 classes for {name}, got {p.k}. Try StructuredMatrix.", code="num_classes"
        )
    s = _score(p.logits)
    limit = _score_limit(s)
    s = s.clamp(-limit, limit)
    magnitude = s.abs()
    positive = magnitude > 0
    scale = weighted_median(magnitude[positive], None if p.weights is None else example_weights(p)[positive])
    return s, scale, limit


def _score(logits: Tensor, limit: Tensor = NO_SCORE_LIMIT) -> Tensor:
    """Return the score z_1 - z_0 of each row, (n), clipped to +-limit."""
    z = logits.double()
    return (z[:, 1] - z[:, 0]).clamp(-limit, limit)


def _score_limit(s: Tensor) -> Tensor:
    """Return no limit if all scores are finite, else the largest finite absolute score, or 1 if that is 0 or missing.

    A probability of exactly 0 is replaced because a forest's 0 means that no tree voted for the class, and a single
    error at infinity would undo any slope.
    """
    finite_scores = s[s.abs() < MAX_FINITE_SCORE].abs()
    if len(finite_scores) == len(s):
        return NO_SCORE_LIMIT.to(s)  # on the device of s
    return finite_scores.max() if bool((finite_scores > 0).any()) else torch.ones_like(NO_SCORE_LIMIT).to(s)


def _score_to_logits(s: Tensor) -> Tensor:
    """Return the logits -s/2 and s/2, (n 2), of scores (n)."""
    return torch.stack([-s / 2, s / 2], -1)


def _beta_features(s: Tensor) -> Tensor:
    """Return log p and -log(1 - p) of p = sigmoid(s), (n 2)."""
    return torch.stack([logsigmoid(s).clamp_min(LOG_PROB_FLOOR), -logsigmoid(-s).clamp_min(LOG_PROB_FLOOR)], 1)


def _quadratic_features(s: Tensor, ends: Tensor) -> Tensor:
    """Return features (n 2) of scores s. Times the slopes at both ends they are the quadratic map, but for a bias.

    At position t from 0 to 1 between the ends, the slope is (1 - t) first + t second, and outside it is constant. Each
    feature is the integral of the share of one slope from the low end to s.
    """
    low, high = ends
    length = (high - low).where(high > low, TINY_DIVISOR)  # if all scores are equal
    position = (s.clamp(low, high) - low) / length  # 0 at the low end, 1 at the high end
    rising = length * position.square() / 2  # integral of t
    falling = length * position - rising  # integral of 1 - t
    return torch.stack([falling - (low - s).relu(), rising + (s - high).relu()], 1)


@dataclass(frozen=True, eq=False)
class _Logistic:
    r"""The cross-entropy of sigmoid(features @ w + c) with a ridge, in well-conditioned coordinates.

    A reference (w, c), roughly the uncalibrated map, states which examples are uncertain. The ridge is 1e-6 of the
    mean square log-odds, weighted by this uncertainty. It does not depend on the coordinates, and outliers have no part
    in it because the reference is certain of them.
    """

    x: Tensor  # (m+1 n) standardized features, and 1
    targets: Tensor  # (n)
    example_shares: Tensor  # (n) of the total weight
    ridge: Tensor  # (m+1 m+1)
    to_parameters: Tensor  # (m+1 m+1), maps coordinates to (w, c)
    reference: Tensor  # (m+1) in the coordinates

    @classmethod
    def from_features(
        cls, features: Tensor, targets: Tensor, p: Predictions, reference: Tensor, ridge: float = MIN_RIDGE
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
        q = (features @ reference[:m] + reference[m]).sigmoid()
        curvature = example_shares * 4 * q * (1 - q)  # q (1 - q) is at most 1/4
        total = curvature.sum().clamp_min(TINY_DIVISOR)  # 0 if the reference is certain of all examples
        center = (curvature @ features) / total
        spread = ((curvature @ (features - center).square()) / total).sqrt()
        varies = spread > MIN_RELATIVE_SPREAD * center.abs()  # a feature that does not vary becomes 0
        spread = spread.where(varies, 1.0)
        x = torch.cat([((features - center) / spread).where(varies, 0.0), features.new_ones(n, 1)], 1).mT.contiguous()
        # From coordinates (t, t_0) to w = t / spread and c = t_0 - w center
        to_parameters = torch.eye(m + 1, dtype=torch.float64)
        to_parameters[:m, :m] = (1 / spread).diag().cpu()
        to_parameters[m, :m] = (-center / spread).cpu()
        coordinates = torch.linalg.solve(to_parameters, reference.cpu())
        # t' penalty t / 2 is the ridge times the sum over examples of the curvature times the squared log-odds
        penalty = (2 * ridge * (x * curvature) @ x.mT).cpu()
        return cls(x, targets, example_shares, penalty, to_parameters, coordinates)

    def __call__(self, t: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the penalized loss, its gradient and its Hessian at coordinates t."""
        s = t.to(self.x.device) @ self.x  # log-odds (n)
        loss = softplus(s, threshold=40.0) - self.targets * s  # torch's threshold of 20 would change float64 values
        q = s.sigmoid()
        gradient = self.x @ (self.example_shares * (q - self.targets))
        hessian = (self.x * (self.example_shares * q * (1 - q))) @ self.x.mT
        ridge_gradient = self.ridge @ t
        value = float(self.example_shares @ loss) + float(t @ ridge_gradient) / 2
        return value, gradient.cpu() + ridge_gradient, hessian.cpu() + self.ridge

    def fit(self, build: Callable[[Tensor, Tensor], Fitted], monotone: bool, slack: float = 0.0) -> Solution[Fitted]:
        """Minimize the loss and build the calibrator from the weights w (m) of the features and the intercept c.

        Args:
            build: Function of w and c that returns the calibrator.
            monotone: Whether all of w must be nonnegative, so that the map increases.
            slack: As in `Solution`: increase of the NLL that the method allows.
        """
        # The coordinates are w times positive spreads, so that they have the same signs
        lower = torch.full_like(self.reference, 0.0 if monotone else -torch.inf)
        lower[-1] = -torch.inf  # c may be negative
        minimum = newton(self, self.reference, lower=lower)
        parameters = self.to_parameters @ minimum.x
        w, c = parameters[:-1], parameters[-1]
        return Solution(
            build(w, c),
            "at bound" if monotone and bool((w <= 0).any()) else "converged",
            minimum.gradient,
            minimum.evaluations,
            slack=slack,
            clips_zeros=True,
            gap=minimum.optimality_gap + self._ridge_cost(minimum, lower),
        )

    def _ridge_cost(self, minimum: Minimum, lower: Tensor) -> float:
        """Estimate by how much the ridge raises the loss, capped at the loss itself.

        It is the Newton decrement of the loss without the ridge, over the parameters that are free to move.
        """
        gradient, hessian = minimum.derivatives
        loss_gradient = gradient - self.ridge @ minimum.x
        free = (minimum.x > lower) | (loss_gradient < 0)  # at a bound, only if the loss falls away from it
        cost = newton_decrement(loss_gradient[free], (hessian - self.ridge)[free][:, free])
        return max(0.0, min(cost, minimum.value))
