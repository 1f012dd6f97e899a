"""Structured scaling: affine maps of smoothed log-probabilities whose penalties shrink as the data grow."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant.backend.softmax import LOG2_E
from calibrant.backend.solvers import Certificate, sum_row_chunks
from calibrant.calibrators._affine import (
    GRADIENT_TOLERANCE,
    AffineFit,
    apply_affine,
    check_matrix_classes,
    fit_affine,
    shrinkage,
)
from calibrant.calibrators._apply import certified_classes, check_num_classes, preserves_argmax
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.calibrators._temperature import TemperatureFit, drop_impossible, fit_nll_temperature
from calibrant.predictions import Predictions
from calibrant.predictions.folds import map_out_of_fold, num_units
from calibrant.registry import CALIBRATORS
from calibrant.types import Logits, PerClass, PerClassPair, PositiveScalar

__all__ = ["SmoothedTemperature", "StructuredMatrix", "StructuredVector"]

S = TypeVar("S", "StructuredVector", "StructuredMatrix")
LOG_TEMPERATURE_DEVIATION = 0.5  # standard deviation of log T, of networks and models as they come


def smoothed_log_probs(logits: Tensor, temperature: Tensor, count: Tensor) -> Tensor:
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

    temperature: PositiveScalar  # float64
    count: PositiveScalar  # float64, number of examples it was fitted on
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, robust: bool = False) -> "SmoothedTemperature":
        """Find T by NLL.

        `robust`: by the NLL of the smoothed p, to which one error adds no more than log(k (n + 1)), and a normal prior
        of log T around 0 with a standard deviation of 1/2.
        """
        return fit_smoothed_temperature(TemperatureCache(p), robust=robust).with_certificate(p)

    @check_num_classes(certified_classes)
    @preserves_argmax
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        return smoothed_log_probs(logits, self.temperature, self.count).to(logits.dtype)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class StructuredVector:
    r"""Structured vector scaling, $u' + v \circ u' + c$ with ridge penalties (Berta et al. 2025, SVS).

    u' is the log-probability after `SmoothedTemperature`. Minimizes mean NLL $+ \frac{k}{n} (\lVert c \rVert^2 +
    \lVert v \rVert^2)$: with few examples per class it falls back on temperature scaling. `refit_temperature` adds
    one temperature on top, found on 5-fold out-of-fold predictions: shrinking towards a temperature that was fitted
    to the wrong family leaves confidence too low. Convex, solved by L-BFGS.
    """

    temperature: PositiveScalar  # float64
    count: PositiveScalar  # float64, number of examples it was fitted on
    scale: PerClass  # float64, v
    bias: PerClass  # float64
    final: PositiveScalar  # float64, the temperature on top; 1 if there is none
    certificate: Certificate | None = None

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
        """Find v and c; `warm_start` is a fit to begin from, such as one on nearly the same data.

        `robust` as in `SmoothedTemperature`. The folds of `refit_temperature` keep rows of one group together; copies
        of a row count as one row of that weight where they share a group.
        """
        guess = None if warm_start is None else AffineFit(1 + warm_start.scale, warm_start.bias)
        return _fit_and_refit_temperature(fit_structured_vector, p, guess, refit_temperature, robust)

    @check_num_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return u' + v u' + c, over the final temperature."""
        u = smoothed_log_probs(logits, self.temperature, self.count)
        return (apply_affine(u, 1 + self.scale, self.bias) / self.final).to(logits.dtype)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class StructuredMatrix:
    r"""Structured matrix scaling, $u' + M u' + c$ with ridge penalties (Berta et al. 2025, SMS).

    u' is the log-probability after `SmoothedTemperature`. Minimizes mean NLL $+ \frac{k}{n} (\lVert c \rVert^2 +
    \lVert \mathrm{diag} M \rVert^2) + \frac{k(k-1)}{n} \lVert M_{off} \rVert^2$. `refit_temperature` as in
    `StructuredVector`. Convex, solved by L-BFGS.
    """

    temperature: PositiveScalar  # float64
    count: PositiveScalar  # float64, number of examples it was fitted on
    weight: PerClassPair  # float64, M
    bias: PerClass  # float64
    final: PositiveScalar  # float64, the temperature on top; 1 if there is none
    certificate: Certificate | None = None

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
        """Find M and c; `warm_start` is a fit to begin from, `robust` as in `SmoothedTemperature`.

        Raises `InputError` above 1000 classes.
        """
        check_matrix_classes(p.k, cls.__name__)
        eye = torch.eye(p.k, dtype=torch.float64)
        guess = None if warm_start is None else AffineFit(eye + warm_start.weight, warm_start.bias)
        return _fit_and_refit_temperature(fit_structured_matrix, p, guess, refit_temperature, robust)

    @check_num_classes(lambda self: len(self.bias))
    def __call__(self, logits: Logits) -> Logits:
        """Return u' + M u' + c, over the final temperature."""
        u = smoothed_log_probs(logits, self.temperature, self.count)
        return ((u + apply_affine(u, self.weight, self.bias)) / self.final).to(logits.dtype)


def _scalar(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def smoothing_cost(p: Predictions) -> float:
    r"""Most nats by which smoothing can make a prediction worse: $\log(1 + 1/n)$."""
    return math.log1p(1 / p.total_weight)


@dataclass(frozen=True, eq=False)
class TemperatureCache:
    """Predictions with what several families begin from, found once, when it is first asked for."""

    p: Predictions
    warm_starts: Mapping[str, TemperatureFit] = field(
        default_factory=dict[str, TemperatureFit]
    )  # temperatures of data nearby, to begin from
    tolerance: float = GRADIENT_TOLERANCE  # at which fits to them end

    @cached_property
    def nll_fit(self) -> TemperatureFit:
        """The temperature of least NLL."""
        return fit_nll_temperature(self.p, self.warm_starts.get("nll_fit"))

    @cached_property
    def robust_fit(self) -> TemperatureFit:
        """The robust one."""
        return _fit_robust_temperature(self.p, self.nll_fit, self.warm_starts.get("robust_fit", self.nll_fit))

    @property
    def temperatures(self) -> dict[str, TemperatureFit]:
        """Those that were found so far, by name."""
        return {name: fit for name, fit in vars(self).items() if isinstance(fit, TemperatureFit)}

    def temperature(self, robust: bool) -> TemperatureFit:
        """Either of them."""
        return self.robust_fit if robust else self.nll_fit


def fit_smoothed_temperature(x: TemperatureCache, *, robust: bool) -> Solution[SmoothedTemperature]:
    """Find T by NLL."""
    temperature_fit, p = x.temperature(robust), x.p
    fitted = SmoothedTemperature(_scalar(temperature_fit.temperature), _scalar(p.total_weight))
    facts = temperature_fit.status, temperature_fit.gradient, temperature_fit.iterations, temperature_fit.standard_error
    return Solution(fitted, *facts, slack=smoothing_cost(p))


def fit_structured_vector(
    x: TemperatureCache, start: AffineFit | None = None, *, robust: bool
) -> Solution[StructuredVector]:
    """Find v and c."""
    ridge, ones = x.p.k / x.p.total_weight, torch.ones(x.p.k, dtype=torch.float64)
    return _fit_structured(StructuredVector, x, ones, ridge, ridge, start, robust)


def fit_structured_matrix(
    x: TemperatureCache, start: AffineFit | None = None, *, robust: bool
) -> Solution[StructuredMatrix]:
    """Find M and c."""
    eye, shrinking = torch.eye(x.p.k, dtype=torch.float64), shrinkage(x.p.total_weight, x.p.k)
    return _fit_structured(StructuredMatrix, x, eye, *shrinking, start, robust)


def _fit_structured(
    cls: type[S],
    x: TemperatureCache,
    identity: Tensor,
    ridge: Tensor | float,
    ridge_bias: float,
    start: AffineFit | None,
    robust: bool,
) -> Solution[S]:
    """Smooth, and find the change of the identity and the intercepts."""
    base = _scalar(x.temperature(robust).temperature), _scalar(x.p.total_weight)
    affine_fit = fit_affine(
        x.p.apply(lambda z: smoothed_log_probs(z, *base)), identity, ridge, ridge_bias, start, x.tolerance
    )
    fitted = cls(*base, affine_fit.weight - identity, affine_fit.bias, _scalar(1.0))
    facts = affine_fit.status, affine_fit.gradient, affine_fit.iterations
    return Solution(fitted, *facts, slack=smoothing_cost(x.p), warm_start=affine_fit, gap=affine_fit.gap)


def _fit_robust_temperature(p: Predictions, initial_fit: TemperatureFit, warm_start: TemperatureFit) -> TemperatureFit:
    r"""Go on to the T of least NLL of $(n p + 1/k) / (n + 1)$ and of a normal prior of log T, by EM.

    Each example counts as far as its label is p's and not the uniform part's: one that p calls impossible hardly does,
    and cannot carry T away. The prior keeps T from calling all errors such. Begins at the temperature that is near.
    """
    p = drop_impossible(p)
    u, smoothing, step, passes = -math.log(warm_start.temperature), math.log(p.total_weight * p.k), math.inf, 0
    weights = () if p.weights is None else (p.weights,)
    while abs(step) > 1e-7 and passes < 100:
        slope, curvature, falls = sum_row_chunks(
            partial(_robust_derivatives, math.exp(u), smoothing), p.logits, p.labels, *weights
        ).tolist()
        slope, curvature = slope + u / LOG_TEMPERATURE_DEVIATION**2, curvature + 1 / LOG_TEMPERATURE_DEVIATION**2
        step = -slope / max(curvature, 1e-3)
        if abs(step) < 0.1:  # so near, by the whole second derivative, in which the counts fall too
            step = -slope / max(curvature - falls, curvature / 4, 1e-3)
        step = max(-1.0, min(1.0, step))
        u, passes = u + step, passes + 1
    return replace(initial_fit, temperature=math.exp(-u), iterations=initial_fit.iterations + passes)


def _robust_derivatives(b: float, smoothing: float, z: Tensor, y: Tensor, *weights: Tensor) -> Tensor:
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


def _fit_and_refit_temperature(
    find: Callable[..., Solution[S]], p: Predictions, guess: AffineFit | None, refit_temperature: bool, robust: bool
) -> S:
    """Fit, and put a temperature on top if asked."""
    solution = find(TemperatureCache(p), guess, robust=robust)
    if refit_temperature:
        solution = replace(solution, map=replace(solution.map, final=_out_of_fold_temperature(solution.map, p, robust)))
    return solution.with_certificate(p)


def _out_of_fold_temperature(start: Any, p: Predictions, robust: bool) -> Tensor:
    """Find the temperature that the map still needs on examples it was not fitted on."""
    if num_units(p) < 2:
        return _scalar(1.0)
    fit = partial(type(start).fit, warm_start=start, robust=robust)
    temperature_fit = fit_nll_temperature(map_out_of_fold(fit, p.double(), folds=min(5, num_units(p))))
    return _scalar(temperature_fit.temperature if temperature_fit.status == "converged" else 1.0)
