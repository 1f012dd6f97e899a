"""Structured scaling: affine maps of smoothed log-probabilities whose penalties shrink as the data grow."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant._folds import cross_fitted, units
from calibrant._solve import Certificate, summed
from calibrant.calibrators._affine import Affine, affine, fit_affine, narrow_enough, shrinkage
from calibrant.calibrators._apply import its_classes, keeping
from calibrant.calibrators._fit import certify, fits
from calibrant.calibrators._scaling import Found, nll_temperature
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.types import ByClass, Logits, PerClass, PositiveNumber

__all__ = ["SmoothedTemperature", "StructuredMatrix", "StructuredVector"]

S = TypeVar("S")
SPREAD = 0.5  # standard deviation of log T, of networks and models as they come


def smoothed(logits: Tensor, temperature: Tensor, count: Tensor) -> Tensor:
    """Return log((n p + 1/k) / (n + 1)) with p = softmax(z / T), in float64; finite whatever the logits."""
    log_p = (logits.double() / temperature).log_softmax(-1)
    one = -torch.log1p(count) - math.log(logits.shape[-1])
    return torch.logaddexp(log_p - torch.log1p(1 / count), one.expand_as(log_p))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class SmoothedTemperature:
    r"""Temperature scaling mixed with one uniform pseudo-example, $(n p + 1/k) / (n + 1)$ (Berta et al. 2025).

    p = softmax(z / T), with the T of least NLL on n examples (ts-mix of probmetrics). Keeps every prediction, and no
    error costs more than $\log(k (n+1))$: where every example was right, T -> 0 and this adds 1/k to the count of
    every class, as Krichevsky & Trofimov (1981) do for two. Goes to any number of classes.

    >>> one = torch.ones((), dtype=torch.float64)
    >>> SmoothedTemperature(one, one)(torch.tensor([[0.0, -torch.inf]])).exp()
    tensor([[0.7500, 0.2500]])
    """

    temperature: PositiveNumber  # float64
    count: PositiveNumber  # float64, number of examples it was fitted on
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(cls, p: Predictions, *, robust: bool = False) -> "SmoothedTemperature":
        """Find T by NLL.

        `robust`: by the NLL of the smoothed p, to which one error adds no more than log(k (n + 1)), and a normal prior
        of log T around 0 with a standard deviation of 1/2.
        """
        found = _temperature(p, robust)
        fitted = cls(_number(found.temperature), _number(p.mass))
        return certify(fitted, p, found.status, gradient=found.gradient, iterations=found.iterations,
            standard_error=found.standard_error, slack=least_cost(p),
        )  # fmt: skip

    @keeping
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        return smoothed(logits, self.temperature, self.count).to(logits.dtype)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class StructuredVector:
    r"""Structured vector scaling, $u' + v \circ u' + c$ with ridge penalties (Berta et al. 2025, SVS).

    u' is the log-probability after `SmoothedTemperature`. Minimizes mean NLL $+ \frac{k}{n} (\lVert c \rVert^2 +
    \lVert v \rVert^2)$: with few examples per class it falls back on temperature scaling. `refit_temperature` adds
    one temperature on top, found on 5-fold out-of-fold predictions: shrinking towards a temperature that was fitted
    to the wrong family leaves confidence too low. Convex, solved by L-BFGS.
    """

    temperature: PositiveNumber  # float64
    count: PositiveNumber  # float64, number of examples it was fitted on
    scale: PerClass  # float64, v
    bias: PerClass  # float64
    final: PositiveNumber  # float64, the temperature on top; 1 if there is none
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "StructuredVector | None" = None,
        refit_temperature: bool = False,
        robust: bool = False,
    ) -> "StructuredVector":
        """Find v and c; `warm_start` is a fit to begin from, such as one on nearly the same data.

        `robust` as in `SmoothedTemperature`. The folds of `refit_temperature` keep rows of one group together; copies
        of a row count as one row of that weight where they share a group.
        """
        k = p.logits.shape[1]
        guess = None if warm_start is None else Affine(1 + warm_start.scale, warm_start.bias)
        ridge = k / p.mass
        return _fit(cls, p, torch.ones(k, dtype=torch.float64), ridge, ridge, guess, refit_temperature, robust)

    @its_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return u' + v u' + c, over the final temperature."""
        u = smoothed(logits, self.temperature, self.count)
        return (affine(u, 1 + self.scale, self.bias) / self.final).to(logits.dtype)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class StructuredMatrix:
    r"""Structured matrix scaling, $u' + M u' + c$ with ridge penalties (Berta et al. 2025, SMS).

    u' is the log-probability after `SmoothedTemperature`. Minimizes mean NLL $+ \frac{k}{n} (\lVert c \rVert^2 +
    \lVert \mathrm{diag} M \rVert^2) + \frac{k(k-1)}{n} \lVert M_{off} \rVert^2$. `refit_temperature` as in
    `StructuredVector`. Convex, solved by L-BFGS.
    """

    temperature: PositiveNumber  # float64
    count: PositiveNumber  # float64, number of examples it was fitted on
    weight: ByClass  # float64, M
    bias: PerClass  # float64
    final: PositiveNumber  # float64, the temperature on top; 1 if there is none
    certificate: Certificate | None = None

    @classmethod
    @fits
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "StructuredMatrix | None" = None,
        refit_temperature: bool = False,
        robust: bool = False,
    ) -> "StructuredMatrix":
        """Find M and c; `warm_start` is a fit to begin from, `robust` as in `SmoothedTemperature`.

        Raises `InputError` above 1000 classes.
        """
        k = p.logits.shape[1]
        narrow_enough(k, cls.__name__)
        eye = torch.eye(k, dtype=torch.float64)
        guess = None if warm_start is None else Affine(eye + warm_start.weight, warm_start.bias)
        return _fit(cls, p, eye, *shrinkage(p.mass, k), guess, refit_temperature, robust)

    @its_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return u' + M u' + c, over the final temperature."""
        u = smoothed(logits, self.temperature, self.count)
        return ((u + affine(u, self.weight, self.bias)) / self.final).to(logits.dtype)


def _number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def least_cost(p: Predictions) -> float:
    r"""Most nats by which smoothing can make a prediction worse: $\log(1 + 1/n)$."""
    return math.log1p(1 / p.mass)


def _temperature(p: Predictions, robust: bool) -> Found:
    """Return the temperature of least NLL, of the smoothed probabilities if it is to be robust."""
    found = nll_temperature(p)
    return _robust(p, found) if robust else found


def _robust(p: Predictions, found: Found) -> Found:
    r"""Go on to the T of least NLL of $(n p + 1/k) / (n + 1)$ and of a normal prior of log T, by EM.

    Each example counts as far as its label is p's and not the uniform part's: one that p calls impossible hardly does,
    and cannot carry T away. The prior keeps T from calling all errors such.
    """
    u, smoothing, step, passes = -math.log(found.temperature), math.log(p.mass * p.k), math.inf, 0
    weights = () if p.weights is None else (p.weights,)

    def part(z: Tensor, y: Tensor, *often: Tensor) -> Tensor:
        z = z.double() - z.amax(1, keepdim=True)
        z.clamp_min_(-1e300)
        log_p = (math.exp(u) * z).log_softmax(1)
        likely = (log_p.gather(1, y[:, None]).squeeze(1) + smoothing).sigmoid()
        counts = likely * often[0] if often else likely
        moment = log_p.exp_().mul_(z)
        mean = moment.sum(1)
        z_y = z.gather(1, y[:, None]).squeeze(1)
        return torch.stack([counts @ (mean - z_y), counts @ (moment.mul_(z).sum(1) - mean.square())])

    while abs(step) > 1e-7 and passes < 100:
        b = math.exp(u)
        first, second = summed(part, p.logits, p.labels, *weights).tolist()
        slope = b * first
        bend = slope + b * b * second
        step = -(slope + u / SPREAD**2) / max(bend + 1 / SPREAD**2, 1e-3)
        step = max(-1.0, min(1.0, step))
        u, passes = u + step, passes + 1
    return replace(found, temperature=math.exp(-u), iterations=found.iterations + passes)


def _fit(
    cls: Callable[..., S],
    p: Predictions,
    identity: Tensor,
    ridge: Tensor | float,
    ridge_bias: float,
    guess: Affine | None,
    refit_temperature: bool,
    robust: bool,
) -> S:
    """Smooth, find the change of the identity and the intercepts, and put a temperature on top if asked."""
    base = _number(_temperature(p, robust).temperature), _number(p.mass)
    found = fit_affine(p.mapped(lambda z: smoothed(z, *base)), identity, ridge, ridge_bias, guess)
    fitted: Any = cls(*base, found.weight - identity, found.bias, _number(1.0))
    if refit_temperature:
        fitted = replace(fitted, final=_out_of_fold_temperature(fitted, p))
    return certify(fitted, p, found.status, gradient=found.gradient, iterations=found.iterations, slack=least_cost(p))


def _out_of_fold_temperature(start: Any, p: Predictions) -> Tensor:
    """Find the temperature that the map still needs on examples it was not fitted on."""
    if units(p) < 2:
        return _number(1.0)
    fit = partial(type(start).fit, warm_start=start)
    found = nll_temperature(cross_fitted(fit, p.double(), folds=min(5, units(p))))
    return _number(found.temperature if found.status == "converged" else 1.0)
