"""Two classes: logistic regressions on functions of the one score s = z_1 - z_0."""

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from calibrant.backend.solvers import Certificate, Minimum, newton, newton_decrement
from calibrant.calibrators._affine import LOG_PROB_FLOOR, MIN_RIDGE
from calibrant.calibrators._apply import check_num_classes
from calibrant.calibrators._fitting import Solution, example_mean, fit_method, weighted_median
from calibrant.predictions import Predictions
from calibrant.registry import CALIBRATORS
from calibrant.types import FiniteScalar, FiniteVector, InputError, Logits, PositiveScalar

__all__ = ["Beta", "Platt", "Quadratic"]

C = TypeVar("C")
MAX_FINITE_SCORE = 1e300  # scores beyond are infinite
NO_SCORE_LIMIT = torch.tensor(MAX_FINITE_SCORE, dtype=torch.float64)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Platt:
    r"""Platt scaling, $\sigma(a s + b)$ of the score $s = z_1 - z_0$ (Platt 1999).

    Fitted to Platt's smoothed targets, $(n_1 + 1) / (n_1 + 2)$ for class 1 and $1 / (n_0 + 2)$ for class 0, as
    scikit-learn's sigmoid method is: finite even where a threshold separates the classes, at a cost of at most 2/n
    nats there. a >= 0 unless `monotone=False`. A probability of exactly 0 or 1 counts as the most extreme one that
    is not. Raises `InputError` for other than 2 classes, as do all maps of this family.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Platt(number(2.0), number(1.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-3.5000,  3.5000]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("slope", "bias")  # in the brackets of a table

    slope: FiniteScalar  # float64
    bias: FiniteScalar  # float64
    limit: PositiveScalar = NO_SCORE_LIMIT  # float64, what an infinite score counts as, and the most any score does
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Platt":
        """Find a and b."""
        return fit_platt(p, monotone=monotone).with_certificate(p)

    @check_num_classes(lambda _: 2)
    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        return _score_to_logits(self.slope * _score(logits, "Platt", self.limit) + self.bias, logits)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Beta:
    r"""Beta calibration, $\sigma(a \log p - b \log(1-p) + c)$ (Kull et al. 2017, eq. 4).

    $p = \sigma(s)$ of the score $s = z_1 - z_0$. a, b >= 0 unless `monotone=False`. Platt scaling where a = b. log p
    below -87 counts as -87, and a probability of exactly 0 or 1 as the most extreme one that is not.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Beta(number(1.0), number(1.0), number(0.0))(torch.tensor([[0.0, 3.0]]))
    tensor([[-1.5000,  1.5000]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("a", "b", "c")  # in the brackets of a table

    a: FiniteScalar  # float64
    b: FiniteScalar  # float64
    c: FiniteScalar  # float64
    limit: PositiveScalar = NO_SCORE_LIMIT  # float64, as in `Platt`
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Beta":
        """Find a, b and c of least NLL."""
        return fit_beta(p, monotone=monotone).with_certificate(p)

    @check_num_classes(lambda _: 2)
    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        log_p, minus_log_q = _log_odds_parts(_score(logits, "Beta", self.limit)).unbind(1)
        return _score_to_logits(self.a * log_p + self.b * minus_log_q + self.c, logits)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Quadratic:
    r"""Quadratic scaling, $\sigma(a + b s + c s^2)$ of the score $s = z_1 - z_0$ (probmetrics; Berta et al. 2025).

    Held by its slopes at the two ends of the calibration data, between which the slope of a parabola is linear:
    nonnegative slopes at the ends make it increasing, which is asked for unless `monotone=False`. Beyond the data it
    goes on straight, where the parabola itself would turn around.

    >>> number = lambda x: torch.tensor(x, dtype=torch.float64)
    >>> Quadratic(number([0.0, 2.0]), number([0.0, 2.0]), number(0.0))(torch.tensor([[0.0, 2.0], [0.0, 3.0]]))
    tensor([[-1.,  1.],
            [-2.,  2.]])
    """

    ends: FiniteVector  # (2) float64, least and greatest s
    slopes: FiniteVector  # (2) float64, there
    bias: FiniteScalar  # float64, the value at the lower end
    limit: PositiveScalar = NO_SCORE_LIMIT  # float64, as in `Platt`
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, monotone: bool = True) -> "Quadratic":
        """Find the parabola of least NLL."""
        return fit_quadratic(p, monotone=monotone).with_certificate(p)

    @check_num_classes(lambda _: 2)
    def __call__(self, logits: Logits) -> Logits:
        """Return the two logits, half the new score either way."""
        return _score_to_logits(
            _parabola_basis(_score(logits, "Quadratic", self.limit), self.ends) @ self.slopes + self.bias, logits
        )


def fit_platt(p: Predictions, start: Tensor | None = None, *, monotone: bool = True) -> Solution[Platt]:
    """Find a and b, from a solution to begin with."""
    limit = _score_limit(_score(p.logits, "Platt"))
    s = _score(p.logits, "Platt", limit)
    unit = _median_score(s, p)
    problem = _Logistic.from_features(s[:, None], _platt_targets(p), p, torch.stack([1 / unit, 0 * unit]))
    minimum = problem.solve(monotone, start)
    a, b = minimum.x
    return _solution(Platt(a, b, limit), minimum, monotone, slack=2 / p.total_weight)


def fit_beta(p: Predictions, start: Tensor | None = None, *, monotone: bool = True) -> Solution[Beta]:
    """Find a, b and c of least NLL, from a solution to begin with."""
    limit = _score_limit(_score(p.logits, "Beta"))
    s = _score(p.logits, "Beta", limit)
    unit = _median_score(s, p)
    problem = _Logistic.from_features(
        _log_odds_parts(s), p.labels.double(), p, torch.stack([1 / unit, 1 / unit, 0 * unit])
    )
    minimum = problem.solve(monotone, start)
    a, b, c = minimum.x
    return _solution(Beta(a, b, c, limit), minimum, monotone)


def fit_quadratic(p: Predictions, start: Tensor | None = None, *, monotone: bool = True) -> Solution[Quadratic]:
    """Find the parabola of least NLL, from a solution to begin with."""
    limit = _score_limit(_score(p.logits, "Quadratic"))
    s = _score(p.logits, "Quadratic", limit)
    unit = _median_score(s, p)
    ends = torch.stack([s.min(), s.max()])
    reference = torch.stack([1 / unit, 1 / unit, ends[0] / unit])
    minimum = _Logistic.from_features(_parabola_basis(s, ends), p.labels.double(), p, reference).solve(monotone, start)
    return _solution(Quadratic(ends, minimum.x[:2], minimum.x[2], limit), minimum, monotone)


def _score(logits: Tensor, name: str, limit: Tensor = NO_SCORE_LIMIT) -> Tensor:
    if logits.shape[1] != 2:
        raise InputError(
            f"{name} is for 2 classes, got {logits.shape[1]}; StructuredMatrix is for more", code="num_classes"
        )
    z = logits.double()
    return (z[:, 1] - z[:, 0]).clamp(-limit, limit)


def _score_limit(s: Tensor) -> Tensor:
    """Return the largest finite score where some are infinite, 1 if none is finite, and else no limit.

    A probability of exactly 0 or 1 is taken for the most extreme one that is not: a forest's 0 means that none of its
    trees said so, and one wrong label at infinity would undo any slope.
    """
    finite_scores = s[s.abs() < MAX_FINITE_SCORE].abs()
    if len(finite_scores) == len(s):
        return NO_SCORE_LIMIT.to(s)
    return finite_scores.max() if bool((finite_scores > 0).any()) else torch.ones_like(NO_SCORE_LIMIT).to(s)


def _median_score(s: Tensor, p: Predictions) -> Tensor:
    """Return the median of the positive absolute scores, or 1; a few outliers cannot own it."""
    size = s.abs()
    return weighted_median(size[size > 0], None if p.weights is None else p.weights[size > 0])


def _score_to_logits(s: Tensor, like: Tensor) -> Tensor:
    return torch.stack([-s / 2, s / 2], -1).to(like.dtype)


def _log_odds_parts(s: Tensor) -> Tensor:
    log_p = torch.nn.functional.logsigmoid(s).clamp_min(LOG_PROB_FLOOR)
    log_q = torch.nn.functional.logsigmoid(-s).clamp_min(LOG_PROB_FLOOR)
    return torch.stack([log_p, -log_q], 1)


def _parabola_basis(s: Tensor, ends: Tensor) -> Tensor:
    """Return what the slopes at the ends multiply, straight outside them."""
    low, high = ends
    length = (high - low).where(high > low, 1e-300)
    position = (s.clamp(low, high) - low) / length
    rising = length * position.square() / 2
    return torch.stack([length * position - rising - (low - s).relu(), rising + (s - high).relu()], 1)


def _platt_targets(p: Predictions) -> Tensor:
    ones = example_mean(p.labels.double(), p) * p.total_weight
    return torch.where(p.labels == 1, (ones + 1) / (ones + 2), 1 / (p.total_weight - ones + 2))


@dataclass(frozen=True, eq=False)
class _Logistic:
    r"""The cross-entropy of sigmoid(features @ w + c), in coordinates that suit it, with a ridge.

    The ridge is 1e-6 of the mean square log-odds where the reference is uncertain: it does not depend on coordinates,
    and outliers, of which the reference is certain, have no part in it.
    """

    x: Tensor  # (m+1 n) features less their center, over their scale, and 1
    targets: Tensor
    example_weights: Tensor  # (n) weights that sum to 1
    ridge: Tensor  # (m+1 m+1)
    to_raw: Tensor  # (m+1 m+1), makes (w, c) of the coordinates
    reference: Tensor  # (m+1) in the coordinates

    @classmethod
    def from_features(cls, features: Tensor, targets: Tensor, p: Predictions, reference: Tensor) -> "_Logistic":
        """Center and scale the features by the curvature at a reference (w, c) that is not saturated."""
        n, m = features.shape
        example_weights = (
            features.new_full((n,), 1 / p.total_weight) if p.weights is None else p.weights / p.total_weight
        )
        q = (features @ reference[:m] + reference[m]).sigmoid()
        curvature = example_weights * 4 * q * (1 - q)
        total = curvature.sum().clamp_min(1e-300)
        center = (curvature @ features) / total
        spread = ((curvature @ (features - center).square()) / total).sqrt()
        varies = spread > 1e-12 * center.abs()
        spread = spread.where(varies, 1.0)
        x = torch.cat([((features - center) / spread).where(varies, 0.0), features.new_ones(n, 1)], 1).mT.contiguous()
        to_raw = torch.eye(m + 1, dtype=torch.float64)
        to_raw[:m, :m] = (1 / spread).diag().cpu()
        to_raw[m, :m] = (-center / spread).cpu()
        coordinates = torch.linalg.solve(to_raw, reference.cpu())
        return cls(x, targets, example_weights, (2 * MIN_RIDGE * (x * curvature) @ x.mT).cpu(), to_raw, coordinates)

    def __call__(self, t: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the penalized loss, its gradient and its Hessian."""
        s = t.to(self.x.device) @ self.x
        loss = torch.nn.functional.softplus(s, threshold=40.0) - self.targets * s
        q = s.sigmoid()
        gradient, hessian = (
            self.x @ (self.example_weights * (q - self.targets)),
            (self.x * (self.example_weights * q * (1 - q))) @ self.x.mT,
        )
        ridge_gradient = self.ridge @ t
        return (
            float(self.example_weights @ loss) + float(t @ ridge_gradient) / 2,
            gradient.cpu() + ridge_gradient,
            hessian.cpu() + self.ridge,
        )

    def solve(self, monotone: bool, start: Tensor | None) -> Minimum:
        """Find (w, c); with `monotone` all of w is nonnegative."""
        m = len(self.ridge) - 1
        initial = self.reference if start is None else torch.linalg.solve(self.to_raw, start)
        lower = torch.full((m + 1,), 0.0 if monotone else -torch.inf, dtype=torch.float64)
        lower[m] = -torch.inf
        minimum = newton(self, initial, lower=lower)
        return replace(minimum, x=self.to_raw @ minimum.x, gap=minimum.gap + self._ridge_cost(minimum, lower))

    def _ridge_cost(self, minimum: Minimum, lower: Tensor) -> float:
        """Estimate by how much the ridge keeps the loss above its least value; at most the loss itself."""
        gradient, hessian = minimum.derivatives
        slope = gradient - self.ridge @ minimum.x
        free = (minimum.x > lower) | (slope < 0)
        cost = newton_decrement(slope[free], (hessian - self.ridge)[free][:, free])
        return max(0.0, min(cost, minimum.value))


def _solution(fitted: C, minimum: Minimum, monotone: bool, slack: float = 0.0) -> Solution[C]:
    status = "at bound" if monotone and bool((minimum.x[:-1] <= 0).any()) else "converged"
    facts = minimum.gradient, minimum.evaluations
    return Solution(fitted, status, *facts, slack=slack, clips_zeros=True, warm_start=minimum.x, gap=minimum.gap)
