"""Logistic regressions of an event on its own log-odds: the fits behind intercept, slope and flexible curves."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from calibrant._core.kernels.bins import ClusterSums, GroupedScores
from calibrant._core.types import InputError

Array = np.ndarray
MAX_FIT_STEPS = 100
MAX_LOGIT_CHANGE = 1.0  # of any example in a step, within which Newton's method for logistic regression descends
STEP_TOLERANCE = 1e-10  # change of the log-odds below which a step is the last
MIN_EIGENVALUE = 1e-12  # relative, that is added to the information, so that simulated draws may be separated
MAX_LOGIT_ERROR = 100.0  # standard error of fitted log-odds above which a curve separates events from others


@dataclass(frozen=True, eq=False)
class LogitFit:
    r"""Maximum likelihood fit of $\mathrm{logit}\, P(y = 1) = \mathrm{logit}\, p + x' \theta$ to predicted risks p."""

    by_score: GroupedScores
    x: Array  # (g m) of the groups of equal risk
    offset: Array  # (g) their log-odds at theta = 0
    theta: Array  # (m), 0 for a calibrated model
    likelihood_ratio: float  # twice the gain in log-likelihood over theta = 0

    @classmethod
    def of_sample(cls, x: Array, by_score: GroupedScores, offset: Array) -> "LogitFit":
        """Fit the columns x to one sample."""
        weight, hits = by_score.total_weight, by_score.correct
        theta = fit_logits(x, weight, hits, offset)
        change = x @ theta
        gain = hits @ change - weight @ (np.logaddexp(0, offset + change) - np.logaddexp(0, offset))
        return cls(by_score, x, offset, theta, 2 * float(gain))

    @property
    def probability(self) -> Array:
        """The fitted probabilities, (g)."""
        return expit(self.offset + self.x @ self.theta)

    @property
    def covariance(self) -> Array:
        """Covariance of theta, (m m): the inverse information, or of clusters that of the jackknife."""
        return self._precision[0]

    @property
    def degrees(self) -> float:
        """Degrees of freedom of the covariance, infinite without clusters."""
        return self._precision[1]

    @cached_property
    def _precision(self) -> tuple[Array, float]:
        if self.by_score.clusters is not None:
            return _cluster_covariance(
                self.x, self.by_score.clusters, self.by_score.value, self.probability, self._information
            )
        return self.by_score.dispersion * np.linalg.pinv(self._information, hermitian=True), math.inf

    @property
    def _information(self) -> Array:
        p = self.probability
        return (self.x.T * (self.by_score.total_weight * p * (1 - p))) @ self.x

    def largest_logit_error(self) -> float:
        """Return the largest standard error of the fitted log-odds for independent examples."""
        covariance = np.linalg.pinv(self._information, hermitian=True)
        return math.sqrt(float(np.einsum("gi,ij,gj->g", self.x, covariance, self.x).max()))


def log_odds(by_score: GroupedScores) -> Array:
    """Return the log-odds of the risks, (g). Raises `InputError` for risks of 0 or 1, which have none."""
    value = by_score.value
    certain = float(by_score.total_weight[(value <= 0) | (value >= 1)].sum())
    if certain:
        raise InputError(
            f"Expected probabilities above 0 and below 1, got {certain:,.6g} examples at 0 or 1, which have no "
            "log-odds. Try the model's own log-odds, or clip the probabilities and say so.",
            code="certain_risks",
        )
    return np.log(value) - np.log1p(-value)


def check_both_outcomes(by_score: GroupedScores) -> None:
    """Raise `InputError` unless the event happened to some examples and not to others."""
    events, n = (float(x.sum()) for x in (by_score.correct, by_score.total_weight))
    if not 0 < events < n:
        raise InputError(
            f"Expected examples with the event and without it, got {events:,.6g} events among {n:,.6g} examples. Try "
            "more examples, or observed_expected.",
            code="one_outcome",
        )


def check_overlap(by_score: GroupedScores) -> None:
    """Raise `InputError` if a threshold separates events from others, so that no slope has the largest likelihood."""
    hits, misses = by_score.correct, by_score.total_weight - by_score.correct
    with_event, without = np.flatnonzero(hits > 0), np.flatnonzero(misses > 0)
    if with_event.min() >= without.max() or without.min() >= with_event.max():
        raise InputError(
            "Expected probabilities of events and of others that overlap, got a threshold that separates them, so that "
            "the slope has no finite estimate. Try more examples, or calibration_intercept.",
            code="separated",
        )


def fit_logits(x: Array, weight: Array, hits: Array, offset: Array) -> Array:
    """Maximize the likelihood of one or many samples by damped Newton steps, and return theta, (... m).

    Args:
        x: Columns of the regression, (g m).
        weight: Number of examples in each group, (g).
        hits: Number of events in each group, (... g).
        offset: Log-odds at theta = 0, (g).
    """
    m = x.shape[1]
    products = (x[:, :, None] * x[:, None, :]).reshape(len(x), m * m)
    shape, hits = hits.shape[:-1], hits.reshape(-1, len(x))
    theta, active = np.zeros((len(hits), m)), np.arange(len(hits))  # samples whose search has not ended
    for _ in range(MAX_FIT_STEPS):
        p = expit(offset + theta[active] @ x.T)
        information = ((weight * p * (1 - p)) @ products).reshape(-1, m, m)
        step = solve_information(information, (hits[active] - weight * p) @ x)
        change = np.abs(step @ x.T).max(1)
        theta[active] += step / np.maximum(change / MAX_LOGIT_CHANGE, 1.0)[:, None]
        active = active[change >= STEP_TOLERANCE]
        if not len(active):
            break
    return theta.reshape(*shape, m)


def _cluster_covariance(x: Array, sums: ClusterSums, risk: Array, p: Array, information: Array) -> tuple[Array, float]:
    r"""Return the covariance of theta by the jackknife over clusters, and its degrees of freedom.

    Without cluster c, theta moves by $(I - I_c)^{-1} s_c$ in one step, with its score $s_c$ and information $I_c$ (Bell
    & McCaffrey 2002). A single cluster has an infinite covariance.
    """
    value, weight = sums.value, sums.total_weight
    size = weight.sum(1)
    if len(size) < 2:
        return np.full_like(information, math.inf), 0.0
    columns = np.stack([np.interp(value, risk, column) for column in x.T], 1)
    fitted = np.interp(value, risk, p)
    score = (weight * (value - fitted) + sums.residual) @ columns
    score -= size[:, None] / size.sum() * score.sum(0)  # sums over bins leave a small rest
    variance = weight * fitted * (1 - fitted)
    of_cluster = np.einsum("cb,bi,bj->cij", variance, columns, columns)
    moved = solve_information(information - of_cluster, score)
    covariance = (len(size) - 1) / len(size) * moved.T @ moved
    return covariance, float(size.sum() ** 2 / np.square(size).sum()) - 1


def solve_information(information: Array, gradient: Array) -> Array:
    """Solve I s = g for one or many information matrices, (... m m) and (... m), of any scale and nearly singular."""
    scale = 1 / np.sqrt(np.maximum(np.einsum("...ii->...i", information), 1e-300))
    scaled = scale[..., None] * information * scale[..., None, :] + MIN_EIGENVALUE * np.eye(gradient.shape[-1])
    return scale * np.linalg.solve(scaled, (scale * gradient)[..., None])[..., 0]


def expit(z: Any) -> Array:
    """Return the probabilities of log-odds."""
    from scipy.special import expit as logistic  # slow to import

    return np.asarray(logistic(z))
