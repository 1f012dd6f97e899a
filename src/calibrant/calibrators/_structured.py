"""Structured scaling: affine maps of smoothed log-probabilities whose penalties shrink as the data grow."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant._folds import cross_fitted, units
from calibrant._softmax import LOG2_E
from calibrant._solve import Certificate, summed
from calibrant.calibrators._affine import EXACT, Affine, affine, fit_affine, narrow_enough, shrinkage
from calibrant.calibrators._apply import certified, its_classes, keeping
from calibrant.calibrators._fit import Solution, fits
from calibrant.calibrators._scaling import Found, nll_temperature, of_possible
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions
from calibrant.types import ByClass, Logits, PerClass, PositiveNumber

__all__ = ["SmoothedTemperature", "StructuredMatrix", "StructuredVector"]

S = TypeVar("S", "StructuredVector", "StructuredMatrix")
SPREAD = 0.5  # standard deviation of log T, of networks and models as they come


def smoothed(logits: Tensor, temperature: Tensor, count: Tensor) -> Tensor:
    """Return log((n p + 1/k) / (n + 1)) with p = softmax(z / T), in float64; finite whatever the logits."""
    p = (logits.double() / temperature).softmax(-1)
    one = 1 / (count + 1).to(p.device)
    return (p * (1 - one)).add_(one / logits.shape[-1]).log()  # a softmax or a logarithm in place has no gradient


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class SmoothedTemperature:
    r"""Temperature scaling mixed with one uniform pseudo-example, $(n p + 1/k) / (n + 1)$ (Berta et al. 2025).

    p = softmax(z / T), with the T of least NLL on n examples (ts-mix of probmetrics). Keeps every prediction, and no
    error costs more than $\log(k (n+1))$: where every example was right, T -> 0 and this adds 1/k to the count of
    every class, as Krichevsky & Trofimov (1981) do for two.

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
        return smoothed_temperature(Scaled(p), robust=robust).certified(p)

    @its_classes(certified)
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
        guess = None if warm_start is None else Affine(1 + warm_start.scale, warm_start.bias)
        return _fit(structured_vector, p, guess, refit_temperature, robust)

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
        narrow_enough(p.k, cls.__name__)
        eye = torch.eye(p.k, dtype=torch.float64)
        guess = None if warm_start is None else Affine(eye + warm_start.weight, warm_start.bias)
        return _fit(structured_matrix, p, guess, refit_temperature, robust)

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


@dataclass(frozen=True, eq=False)
class Scaled:
    """Predictions with what several families begin from, found once, when it is first asked for."""

    p: Predictions
    near: Mapping[str, Found] = field(default_factory=dict[str, Found])  # temperatures of data nearby, to begin from
    tolerance: float = EXACT  # at which fits to them end

    @cached_property
    def plain(self) -> Found:
        """The temperature of least NLL."""
        return nll_temperature(self.p, self.near.get("plain"))

    @cached_property
    def robust(self) -> Found:
        """The robust one."""
        return _robust(self.p, self.plain, self.near.get("robust", self.plain))

    @property
    def temperatures(self) -> dict[str, Found]:
        """Those that were found so far, by name."""
        return {name: found for name, found in vars(self).items() if isinstance(found, Found)}

    def temperature(self, robust: bool) -> Found:
        """Either of them."""
        return self.robust if robust else self.plain


def smoothed_temperature(x: Scaled, *, robust: bool) -> Solution[SmoothedTemperature]:
    """Find T by NLL."""
    found, p = x.temperature(robust), x.p
    fitted = SmoothedTemperature(_number(found.temperature), _number(p.mass))
    facts = found.status, found.gradient, found.iterations, found.standard_error
    return Solution(fitted, *facts, slack=least_cost(p))


def structured_vector(x: Scaled, start: Affine | None = None, *, robust: bool) -> Solution[StructuredVector]:
    """Find v and c."""
    ridge, ones = x.p.k / x.p.mass, torch.ones(x.p.k, dtype=torch.float64)
    return _structured(StructuredVector, x, ones, ridge, ridge, start, robust)


def structured_matrix(x: Scaled, start: Affine | None = None, *, robust: bool) -> Solution[StructuredMatrix]:
    """Find M and c."""
    eye, shrinking = torch.eye(x.p.k, dtype=torch.float64), shrinkage(x.p.mass, x.p.k)
    return _structured(StructuredMatrix, x, eye, *shrinking, start, robust)


def _structured(
    cls: type[S],
    x: Scaled,
    identity: Tensor,
    ridge: Tensor | float,
    ridge_bias: float,
    start: Affine | None,
    robust: bool,
) -> Solution[S]:
    """Smooth, and find the change of the identity and the intercepts."""
    base = _number(x.temperature(robust).temperature), _number(x.p.mass)
    found = fit_affine(x.p.mapped(lambda z: smoothed(z, *base)), identity, ridge, ridge_bias, start, x.tolerance)
    fitted = cls(*base, found.weight - identity, found.bias, _number(1.0))
    facts = found.status, found.gradient, found.iterations
    return Solution(fitted, *facts, slack=least_cost(x.p), search=found, gap=found.gap)


def _robust(p: Predictions, found: Found, near: Found) -> Found:
    r"""Go on to the T of least NLL of $(n p + 1/k) / (n + 1)$ and of a normal prior of log T, by EM.

    Each example counts as far as its label is p's and not the uniform part's: one that p calls impossible hardly does,
    and cannot carry T away. The prior keeps T from calling all errors such. Begins at the temperature that is near.
    """
    p = of_possible(p)
    u, smoothing, step, passes = -math.log(near.temperature), math.log(p.mass * p.k), math.inf, 0
    weights = () if p.weights is None else (p.weights,)
    while abs(step) > 1e-7 and passes < 100:
        slope, bend, falls = summed(partial(_along, math.exp(u), smoothing), p.logits, p.labels, *weights).tolist()
        slope, bend = slope + u / SPREAD**2, bend + 1 / SPREAD**2
        step = -slope / max(bend, 1e-3)
        if abs(step) < 0.1:  # so near, by the whole second derivative, in which the counts fall too
            step = -slope / max(bend - falls, bend / 4, 1e-3)
        step = max(-1.0, min(1.0, step))
        u, passes = u + step, passes + 1
    return replace(found, temperature=math.exp(-u), iterations=found.iterations + passes)


def _along(b: float, smoothing: float, z: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
    """First derivative in log b of what every example loses, the part of the second by p, and that by the counts."""
    margin = z.double()
    margin = (margin - margin.amax(1, keepdim=True)).clamp_min_(-1e300)
    of_label = b * margin.gather(1, y[:, None]).squeeze(1)
    e = margin.mul(b * LOG2_E).exp2_()
    norm, mean, square = e.sum(1), e.mul_(margin).sum(1), e.mul_(margin).sum(1)
    mean, square = mean / norm, square / norm
    share = (of_label - norm.log() + smoothing).sigmoid()
    counts = share * weights[0] if weights else share
    first = b * mean - of_label
    second = first + b * b * (square - mean.square())
    return torch.stack([counts @ first, counts @ second, (counts * (1 - share)) @ first.square()])


def _fit(
    find: Callable[..., Solution[S]], p: Predictions, guess: Affine | None, refit_temperature: bool, robust: bool
) -> S:
    """Fit, and put a temperature on top if asked."""
    found = find(Scaled(p), guess, robust=robust)
    if refit_temperature:
        found = replace(found, map=replace(found.map, final=_out_of_fold_temperature(found.map, p, robust)))
    return found.certified(p)


def _out_of_fold_temperature(start: Any, p: Predictions, robust: bool) -> Tensor:
    """Find the temperature that the map still needs on examples it was not fitted on."""
    if units(p) < 2:
        return _number(1.0)
    fit = partial(type(start).fit, warm_start=start, robust=robust)
    found = nll_temperature(cross_fitted(fit, p.double(), folds=min(5, units(p))))
    return _number(found.temperature if found.status == "converged" else 1.0)
