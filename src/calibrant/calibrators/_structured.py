"""Structured scaling: affine maps of smoothed log-probabilities whose penalties shrink as the data grow."""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from calibrant._folds import folds_of
from calibrant._solve import Certificate
from calibrant._types import InputError, Labels, Logits
from calibrant.calibrators._affine import WIDEST, Affine, affine, fit_affine, shrinkage
from calibrant.calibrators._certify import certify
from calibrant.calibrators._scaling import nll_temperature
from calibrant.predictions import Predictions

__all__ = ["SmoothedTemperature", "StructuredMatrix", "StructuredVector"]


def smoothed(logits: Tensor, temperature: Tensor, count: Tensor) -> Tensor:
    """Return log((n p + 1/k) / (n + 1)) with p = softmax(z / T), in float64; finite whatever the logits."""
    log_p = (logits.double() / temperature).log_softmax(-1)
    one = -torch.log1p(count) - math.log(logits.shape[-1])
    return torch.logaddexp(log_p - torch.log1p(1 / count), one.expand_as(log_p))


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

    temperature: Tensor  # () float64, > 0
    count: Tensor  # () float64, number of examples it was fitted on
    certificate: Certificate | None = None

    @classmethod
    def fit(cls, logits: Logits, labels: Labels) -> "SmoothedTemperature":
        """Find T by NLL."""
        logits, labels = Predictions(logits, labels)
        found = nll_temperature(logits, labels)
        fitted = cls(_number(found.temperature), _number(float(len(labels))))
        return certify(
            fitted, logits, labels, found.status, gradient=found.gradient, iterations=found.iterations,
            standard_error=found.standard_error,
        )  # fmt: skip

    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        return smoothed(logits, self.temperature, self.count).to(logits.dtype)


@dataclass(frozen=True, eq=False)
class StructuredVector:
    r"""Structured vector scaling, $u' + v \circ u' + c$ with ridge penalties (Berta et al. 2025, SVS).

    u' is the log-probability after `SmoothedTemperature`. Minimizes mean NLL $+ \frac{k}{n} (\lVert c \rVert^2 +
    \lVert v \rVert^2)$: with few examples per class it falls back on temperature scaling. `refit_temperature` adds
    one temperature on top, found on 5-fold out-of-fold predictions: shrinking towards a temperature that was fitted
    to the wrong family leaves confidence too low. Convex, solved by L-BFGS.
    """

    temperature: Tensor  # () float64, > 0
    count: Tensor  # () float64, number of examples it was fitted on
    scale: Tensor  # (k) float64, v
    bias: Tensor  # (k) float64
    final: Tensor  # () float64, the temperature on top; 1 if there is none
    certificate: Certificate | None = None

    @classmethod
    def fit(
        cls,
        logits: Logits,
        labels: Labels,
        start: "StructuredVector | None" = None,
        *,
        refit_temperature: bool = False,
    ) -> "StructuredVector":
        """Find v and c; `start` is a fit to begin from, such as one on nearly the same data."""
        logits, labels = Predictions(logits, labels)
        n, k = logits.shape
        ones = torch.ones(k, dtype=torch.float64)
        base = _base(logits, labels)
        guess = None if start is None else Affine(1 + start.scale, start.bias, 0.0, 0)
        found = fit_affine(smoothed(logits, *base), labels, ones, k / n, k / n, guess)
        fitted = cls(*base, found.weight - 1, found.bias, _number(1.0))
        if refit_temperature:
            fitted = replace(fitted, final=_out_of_fold_temperature(cls, fitted, logits, labels))
        return certify(fitted, logits, labels, found.status, gradient=found.gradient, iterations=found.iterations)

    def __call__(self, logits: Logits) -> Logits:
        """Return u' + v u' + c, over the final temperature."""
        u = smoothed(logits, self.temperature, self.count)
        return (affine(u, 1 + self.scale, self.bias) / self.final).to(logits.dtype)


@dataclass(frozen=True, eq=False)
class StructuredMatrix:
    r"""Structured matrix scaling, $u' + M u' + c$ with ridge penalties (Berta et al. 2025, SMS).

    u' is the log-probability after `SmoothedTemperature`. Minimizes mean NLL $+ \frac{k}{n} (\lVert c \rVert^2 +
    \lVert \mathrm{diag} M \rVert^2) + \frac{k(k-1)}{n} \lVert M_{off} \rVert^2$. `refit_temperature` as in
    `StructuredVector`. Convex, solved by L-BFGS.
    """

    temperature: Tensor  # () float64, > 0
    count: Tensor  # () float64, number of examples it was fitted on
    weight: Tensor  # (k, k) float64, M
    bias: Tensor  # (k) float64
    final: Tensor  # () float64, the temperature on top; 1 if there is none
    certificate: Certificate | None = None

    @classmethod
    def fit(
        cls,
        logits: Logits,
        labels: Labels,
        start: "StructuredMatrix | None" = None,
        *,
        refit_temperature: bool = False,
    ) -> "StructuredMatrix":
        """Find M and c; `start` is a fit to begin from. Raises `InputError` above 1000 classes."""
        logits, labels = Predictions(logits, labels)
        n, k = logits.shape
        if k > WIDEST:
            raise InputError(
                f"StructuredMatrix learns {k} x {k} numbers, at most {WIDEST} classes; use StructuredVector"
            )
        eye = torch.eye(k, dtype=torch.float64)
        base = _base(logits, labels)
        guess = None if start is None else Affine(eye + start.weight, start.bias, 0.0, 0)
        found = fit_affine(smoothed(logits, *base), labels, eye, *shrinkage(n, k), guess)
        fitted = cls(*base, found.weight - eye, found.bias, _number(1.0))
        if refit_temperature:
            fitted = replace(fitted, final=_out_of_fold_temperature(cls, fitted, logits, labels))
        return certify(fitted, logits, labels, found.status, gradient=found.gradient, iterations=found.iterations)

    def __call__(self, logits: Logits) -> Logits:
        """Return u' + M u' + c, over the final temperature."""
        u = smoothed(logits, self.temperature, self.count)
        return ((u + affine(u, self.weight, self.bias)) / self.final).to(logits.dtype)


def _number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def _base(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return _number(nll_temperature(logits, labels).temperature), _number(float(len(labels)))


def _out_of_fold_temperature(
    cls: type[StructuredVector] | type[StructuredMatrix],
    start: StructuredVector | StructuredMatrix,
    logits: Tensor,
    labels: Tensor,
) -> Tensor:
    """Find the temperature that the map still needs on examples it was not fitted on."""
    if len(labels) < 2:
        return _number(1.0)
    fold = folds_of(logits, labels, min(5, len(labels)))
    held = torch.empty_like(logits, dtype=torch.float64)
    for i in range(int(fold.max()) + 1):
        rest = fold != i
        held[~rest] = cls.fit(logits[rest], labels[rest], start)(logits[~rest].double())  # pyright: ignore
    found = nll_temperature(held, labels)
    return _number(found.temperature if found.status == "converged" else 1.0)
