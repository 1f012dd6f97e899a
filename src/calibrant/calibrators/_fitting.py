"""The one door of every fit: predictions in, checked hyperparameters, a certificate out."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from calibrant import registry
from calibrant.backend.solvers import Certificate, Status
from calibrant.calibrators._apply import to_device
from calibrant.metrics import nll
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.folds import FitFunction
from calibrant.predictions.masks import replace_masks
from calibrant.types import InputError

C = TypeVar("C")
P = ParamSpec("P")


@dataclass(frozen=True)
class Solution(Generic[C]):
    """A fitted map and how its search ended: a fit, all but the look back at the data."""

    map: C
    status: Status
    gradient: float = math.nan
    iterations: int = 1
    standard_error: float = math.nan
    slack: float = 0.0  # by which it may be worse than the identity
    clips_zeros: bool = False  # whether probabilities of 0 are taken for tiny ones, and counted
    warm_start: Any = None  # what a search nearby may begin with
    criterion: str = "nll"  # what it made least
    gap: float = 0.0  # estimate of what is left to the optimum

    def with_certificate(self, p: Predictions) -> C:
        """The map with its certificate."""
        return certify(
            self.map,
            p,
            self.status,
            criterion=self.criterion,
            gradient=self.gradient,
            iterations=self.iterations,
            standard_error=self.standard_error,
            slack=self.slack,
            clipped=count_impossible(p) if self.clips_zeros else 0,
            gap=self.gap,
        )


def fit_method(method: Callable[Concatenate[Any, Predictions, P], C]) -> Callable[..., C]:
    """Make a fit to predictions one to predictions, or to logits with labels and, if there are any, weights.

    Hyperparameters are keywords, checked by name, type and range; `warm_start` is a fit to begin from, where there is
    such a thing. Examples of weight 0 are left out, and masks become -inf (`_masks`), here, once for all.
    """

    @wraps(method)
    def fit(cls: Any, predictions: Any, labels: Any = None, weights: Any = None, **settings: Any) -> C:
        with as_predictions(predictions, labels, weights, in_chunks=False) as validated:
            p = validated
            warm_start = {key: settings.pop(key) for key in ("warm_start",) if key in settings}
            if validated.weights is not None and not bool((validated.weights > 0).all()):
                p = validated[validated.weights > 0]
            p = replace_masks(p)
            fitted = method(cls, p, **warm_start, **registry.check_settings(method, settings, cls.__name__))  # pyright: ignore
            fitted = fitted if validated.logits.device.type == "cpu" else to_device(fitted, "cpu")
            return fitted if p is validated else _with_data_digest(fitted, validated)

    fit.takes_predictions = True  # pyright: ignore[reportAttributeAccessIssue]
    fit.__signature__ = _signature(method)  # pyright: ignore[reportAttributeAccessIssue]
    return fit


def _with_data_digest(fitted: Any, p: Predictions) -> Any:
    """Return a fitted map whose certificate names these predictions as the data."""
    certificate = getattr(fitted, "certificate", None)
    return fitted if certificate is None else replace(fitted, certificate=replace(certificate, data=p.digest))


def fit_function(calibrator: Any) -> FitFunction:
    """Return how to fit a calibrator to predictions: given as text, as class, or as a function of (logits, labels).

    A fit of one's own that takes no weights refuses predictions that have some.
    """
    if isinstance(calibrator, str):
        calibrator = registry.CALIBRATORS.method(calibrator)
    function = (
        calibrator.bound_function if isinstance(calibrator, registry.Method) else getattr(calibrator, "fit", calibrator)
    )
    inner = function.func if isinstance(function, partial) else function
    if getattr(inner, "takes_predictions", False):
        return function
    name = str(getattr(calibrator, "name", getattr(calibrator, "__name__", type(calibrator).__name__)))
    return partial(_fit_arrays, function, name)


def fit(calibrator: Any, predictions: Any, labels: Any = None, weights: Any = None) -> Any:
    """Fit a calibrator, given as text such as "Auto" or as a class, in float64.

    >>> fit("Temperature", torch.eye(2), torch.tensor([0, 1])).certificate.status
    'separable'
    """
    with as_predictions(predictions, labels, weights, in_chunks=False) as p:
        return fit_function(calibrator)(p.double())


def _fit_arrays(function: Callable[..., Any], name: str, p: Predictions, **begin: Any) -> Any:
    if p.weights is None:
        return function(p.logits, p.labels, **begin)
    if not has_parameter(function, "weights"):
        raise InputError(
            f"{name} takes no weights, but these predictions have some; leave them out, or give its fit a parameter "
            "weights=None",
            code="weights_refused",
        )
    return function(p.logits, p.labels, weights=p.weights, **begin)


def has_parameter(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a fit has a parameter of this name."""
    return parameter in inspect.signature(function).parameters


def certify(
    fitted: C,
    p: Predictions,
    status: Status,
    *,
    criterion: str = "nll",
    gradient: float = math.nan,
    iterations: int = 1,
    standard_error: float = math.nan,
    clipped: int = 0,
    slack: float = 0.0,
    gap: float = 0.0,
) -> C:
    """Return the fitted map with its certificate: what it changed, and the digest of the data.

    A map that ends worse than the identity by more than `slack`, in its own criterion, did not converge, whatever its
    search says.
    """
    apply: Any = fitted
    metric = registry.METRICS.resolve(criterion)
    calibrated = p.double().apply(apply)
    outcomes = p.outcomes, calibrated.outcomes
    likelihood = [0.0 + float(nll(part)) for part in (p, calibrated)]
    accuracy = [_scalar_mean(part.correct, p.weights) for part in outcomes]
    value_before, value_after = likelihood if criterion == "nll" else [float(metric(part)) for part in (p, calibrated)]
    certificate = Certificate(
        criterion=criterion,
        before=value_before,
        after=value_after,
        status=check_status(status, value_before, value_after, slack),
        gradient=gradient,
        iterations=iterations,
        nll_before=likelihood[0],
        nll_after=likelihood[1],
        accuracy_before=accuracy[0],
        accuracy_after=accuracy[1],
        standard_error=standard_error,
        data=p.digest,
        clipped=clipped,
        classes=p.logits.shape[1],
        gap=gap,
    )
    return replace(apply, certificate=certificate)


def status_of(fitted: Any) -> Status:
    """Return how the fit of a calibrator ended, "closed form" if it has no certificate."""
    certificate = getattr(fitted, "certificate", None)
    return "closed form" if certificate is None else certificate.status


MAX_ROUNDING_LOSS = 1e-9  # by which rounding may leave a map worse than the identity


def check_status(status: Status, value_before: float, value_after: float, slack: float = 0.0) -> Status:
    """Take back that a search converged where its end is worse than the identity, or not a number."""
    worse = not value_after <= value_before + slack + MAX_ROUNDING_LOSS * (1 + abs(value_before))
    return "not converged" if worse and status in ("converged", "at bound", "separable") else status


def count_impossible(p: Predictions) -> int:
    """How many examples have a class of probability exactly 0, each counted as often as its weight says."""
    rows = p.logits.isneginf().any(1)
    return int(rows.sum()) if p.weights is None else round(float(p.weights[rows].sum()))


def example_mean(values: Tensor, p: Predictions) -> Tensor:
    """Mean of values (n, ...) over examples, each counted as often as its weight says."""
    return values.mean(0) if p.weights is None else p.weights @ values / p.total_weight


def weighted_median(values: Tensor, weights: Tensor | None) -> Tensor:
    """Lower median of values (n), each counted as often as its weight says; 1 if there are none."""
    if not len(values):
        return values.new_ones(())
    if weights is None:
        return values.median()
    values, order = values.sort()
    total = weights[order].cumsum(0)
    return values[torch.searchsorted(total, total[-1] / 2)]


def _scalar_mean(values: Tensor, weights: Tensor | None) -> float:
    return float(values.mean() if weights is None else (weights * values).sum() / weights.sum())


def _signature(method: Callable[..., Any]) -> inspect.Signature:
    """Of the public call: predictions or logits and labels, then the hyperparameters."""
    signature = inspect.signature(method)
    cls, _, *settings = signature.parameters.values()
    data = [inspect.Parameter("predictions", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    data += [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None) for name in ("labels", "weights")
    ]
    return signature.replace(parameters=[cls, *data, *settings])
