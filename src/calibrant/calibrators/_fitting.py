"""Shared parts of every fit: validated predictions, checked hyperparameters, and the certificate."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import numpy as np

from calibrant._core import registry
from calibrant._core.arrays import call_with_arrays, like, namespace, to_numpy
from calibrant._core.kernels.roots import Certificate, Status
from calibrant._core.types import InputError
from calibrant.metrics import accuracy, nll
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.folds import FitFunction
from calibrant.predictions.masks import replace_masks

Fitted = TypeVar("Fitted")
Settings = ParamSpec("Settings")


@dataclass(frozen=True)
class Solution(Generic[Fitted]):
    """A fitted calibrator and how its search ended, before the certificate is computed from the data."""

    calibrator: Fitted
    status: Status
    gradient: float = math.nan
    iterations: int = 1
    standard_error: float = math.nan
    slack: float = 0.0  # by which the criterion may exceed its value for the uncalibrated predictions
    clips_zeros: bool = False  # whether probabilities of 0 are replaced by tiny ones, and counted
    warm_start: Any = None  # start for a search on similar data
    criterion: str = "nll"  # what was minimized
    gap: float = 0.0  # estimated distance from the optimum

    def with_certificate(self, p: Predictions) -> Fitted:
        """Return the calibrator with its certificate for the predictions it was fitted on.

        The status becomes "not converged" if the calibrator makes the predictions worse by more than `slack`.
        """
        fitted: Any = self.calibrator
        compared = (p, p.double().apply(fitted))
        accuracy_before, accuracy_after = (float(accuracy(q)) for q in compared)
        nll_before, nll_after = (0.0 + float(nll(q)) for q in compared)  # the sum turns -0.0 into 0.0
        before, after = nll_before, nll_after
        if self.criterion != "nll":
            metric = registry.METRICS.resolve(self.criterion)
            before, after = (float(metric(q)) for q in compared)
        certificate = Certificate(
            criterion=self.criterion,
            before=before,
            after=after,
            status=check_status(self.status, before, after, self.slack),
            gradient=self.gradient,
            iterations=self.iterations,
            nll_before=nll_before,
            nll_after=nll_after,
            accuracy_before=accuracy_before,
            accuracy_after=accuracy_after,
            standard_error=self.standard_error,
            data=p.digest,
            clipped=_count_impossible(p) if self.clips_zeros else 0,
            classes=p.k,
            gap=self.gap,
            absent=len(p.absent_classes),
        )
        return replace(fitted, certificate=certificate)


def fit_method(method: Callable[Concatenate[Any, Predictions, Settings], Fitted]) -> Callable[..., Fitted]:
    """Decorate a class method that fits to predictions, so that it also takes logits, labels and weights.

    The decorated `fit` checks hyperparameters by name, type and range. It passes on `warm_start`, an earlier fit to
    start from, and `estimate_gain`, leaves out examples of weight 0, scales importance weights to the effective number
    of examples, replaces large negative logits that stand for masked classes by -inf (`predictions.masks`), and adds
    the other order of pairs, so that the fit is antisymmetric.
    """

    @wraps(method)
    def fit(cls: Any, predictions: Any, labels: Any = None, weights: Any = None, **settings: Any) -> Fitted:
        with as_predictions(predictions, labels, weights, in_chunks=False) as validated:
            p = validated
            # Passed on as they are: they do not change what is fitted, and an earlier fit has no type to check
            passed_on = {name: settings.pop(name) for name in ("warm_start", "estimate_gain") if name in settings}
            if p.weights is not None and not (p.weights > 0).all():
                p = p[p.weights > 0]
            p = replace_masks(p.with_effective_weights()).with_both_orders()
            fitted = method(cls, p, **passed_on, **registry.check_settings(method, settings, cls.__name__))  # pyright: ignore
            # The digest of the given rows, not of the changed ones, is what `calibrate` compares
            return fitted if p is validated else _with_data_digest(fitted, validated)

    # By which `fit_function` tells this fit from a user's own, which takes arrays
    fit.takes_predictions = True  # pyright: ignore[reportAttributeAccessIssue]
    fit.__signature__ = _public_signature(method)  # pyright: ignore[reportAttributeAccessIssue]
    return fit


def _with_data_digest(fitted: Any, p: Predictions) -> Any:
    """Return a calibrator whose certificate, if it has one, names these predictions as the data."""
    certificate = getattr(fitted, "certificate", None)
    return fitted if certificate is None else replace(fitted, certificate=replace(certificate, data=p.digest))


def fit_function(calibrator: Any) -> FitFunction:
    """Return the function that fits a calibrator to predictions.

    Args:
        calibrator: A text such as "Temperature", a class, or a function of (logits, labels). A user's own fit without
            a parameter `weights` refuses weighted predictions.

    Raises:
        InputError: For anything else, and for a name that no calibrator has.
    """
    if isinstance(calibrator, str):
        calibrator = registry.CALIBRATORS.method(calibrator)
    # The fit with the settings of the text, the method `fit` of a class, or the function itself
    function = (
        calibrator.bound_function if isinstance(calibrator, registry.Method) else getattr(calibrator, "fit", calibrator)
    )
    # An object without __call__ whose `fit` is a class method: the result of a fit to features, such as a Fusion
    is_result = not callable(calibrator) and getattr(function, "__self__", None) is type(calibrator)
    if is_result or not callable(function):
        kind = type(calibrator).__name__
        raise InputError(
            f"Expected the name of a calibrator, or a class or function that fits one, got {kind}. Try 'Temperature'.",
            code="calibrator_kind",
        )
    inner = function.func if isinstance(function, partial) else function
    if getattr(inner, "takes_predictions", False):  # set by `fit_method`; a user's own fit takes arrays
        return function  # pyright: ignore[reportReturnType]
    name = str(getattr(calibrator, "name", getattr(calibrator, "__name__", type(calibrator).__name__)))
    if isinstance(calibrator, type) and registry.is_built_in(calibrator):  # such as MultiCalibrated or Fusion
        raise InputError(
            f"Expected a calibrator that is fitted to logits and labels, got {name}, which is fitted to other data. "
            f"Try {name}.fit, and apply and evaluate the result by its own methods.",
            code="needs_features",
        )
    return partial(_fit_arrays, function, name)


def fit(calibrator: Any, predictions: Any, labels: Any = None, weights: Any = None) -> Any:
    """Fit a calibrator in float64, and return it.

    Args:
        calibrator: A text such as "Auto", a class, or a function of (logits, labels).
        predictions: Predictions, or logits.
        labels: Labels, if logits are given.
        weights: Weights, if logits are given.

    >>> fit("Temperature", np.eye(2), np.array([0, 1])).certificate.status
    'separable'
    """
    with as_predictions(predictions, labels, weights, in_chunks=False) as p:
        return fit_function(calibrator)(p.double())


def _fit_arrays(function: Callable[..., Any], name: str, p: Predictions, **warm_start: Any) -> Any:
    """Call a user's own fit with logits, labels and, if there are any, weights.

    Args:
        function: The fit.
        name: Name of the calibrator, for the message.
        p: Predictions.
        **warm_start: An earlier fit to start from, as `warm_start`, if the fit takes one.

    Raises:
        InputError: For weighted predictions if the fit takes no weights.
    """
    is_weighted, p = p.weights is not None, p.with_both_orders()
    if not is_weighted:  # both orders of pairs have equal weights then
        return call_with_arrays(function, p.logits, p.labels, **warm_start)
    if not has_parameter(function, "weights"):
        raise InputError(
            f"Expected predictions without weights, because the fit of {name} takes none. Try leaving the weights out, "
            "or give the fit a parameter weights=None.",
            code="weights_refused",
        )
    return call_with_arrays(function, p.logits, p.labels, weights=p.weights, **warm_start)


def has_parameter(function: Callable[..., Any], parameter: str) -> bool:
    """Return whether a function has a parameter of this name."""
    return parameter in inspect.signature(function).parameters


def status_of(fitted: Any) -> Status:
    """Return how the fit of a calibrator ended, "closed form" if it has no certificate."""
    certificate = getattr(fitted, "certificate", None)
    return "closed form" if certificate is None else certificate.status


MAX_ROUNDING_LOSS = 1e-9  # by which rounding may make predictions worse


def check_status(status: Status, value_before: float, value_after: float, slack: float = 0.0) -> Status:
    """Return "not converged" for a search whose result is NaN or worse than the uncalibrated predictions.

    Any other status is returned unchanged. A grid or a closed form need not improve them.

    Args:
        status: How the fit ended.
        value_before: The criterion of the uncalibrated predictions.
        value_after: The criterion of the calibrated predictions.
        slack: Increase that the method allows, beside rounding.
    """
    limit = value_before + slack + MAX_ROUNDING_LOSS * (1 + abs(value_before))
    is_worse = not value_after <= limit  # also if NaN
    return "not converged" if is_worse and status in ("converged", "at bound", "separable") else status


def _count_impossible(p: Predictions) -> int:
    """Return the weighted number of examples in which some class has probability 0."""
    xp = namespace(p.logits)
    rows = xp.any(p.logits == -xp.inf, axis=1)
    return round(float(example_weights(p)[to_numpy(rows)].sum())) if xp.any(rows) else 0


def example_weights(p: Predictions) -> np.ndarray:
    """Return the weight of every example, (n) float64: 1 if predictions have no weights."""
    return np.ones(len(p)) if p.weights is None else p.weights


def example_mean(values: Any, p: Predictions) -> np.ndarray:
    """Return the weighted mean of values (n, ...), an array or a tensor, over examples as an array."""
    mean = values.mean(0) if p.weights is None else like(p.weights, values) @ values / p.total_weight
    return to_numpy(mean)


def weighted_median(values: Any, weights: Any | None) -> float:
    """Return the lower weighted median of values (n), the smallest at which half of the weight is reached.

    It is 1 if there are no values. The weights, if there are any, lie where the values do.
    """
    if not len(values):
        return 1.0
    xp = namespace(values)
    order = xp.argsort(values)
    if weights is None:
        return float(values[order[(len(values) - 1) // 2]])
    cumulative_weight = xp.cumulative_sum(weights[order])
    return float(values[order[int(xp.sum(cumulative_weight < cumulative_weight[-1] / 2))]])


def _public_signature(method: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of the public call: predictions or logits and labels, then the hyperparameters."""
    signature = inspect.signature(method)
    cls, _, *settings = signature.parameters.values()  # the second one, p, becomes three parameters
    return signature.replace(parameters=[cls, *registry.data_parameters(), *settings])
