"""Calibrators of calibrators, and the guard against evaluating one on its fitting data."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np

from calibrant._core.arguments import NonNegativeInt, NumFolds, check_arguments
from calibrant._core.arrays import namespace, to_numpy
from calibrant._core.kernels.roots import Certificate, worst_status
from calibrant._core.kernels.softmax import log_sum_exp
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import Calibrator, CalibratorText, Categories, ColumnMap, InputError, Logits
from calibrant.calibrators import maps
from calibrant.calibrators._capabilities import (
    Capabilities,
    calibrator_call,
    like_logits,
    num_classes,
    preserves_argmax,
    treats_classes_alike,
)
from calibrant.calibrators._fitting import Solution, fit_function, fit_method, has_parameter, status_of
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions, apply_calibrator
from calibrant.predictions.folds import map_out_of_fold

__all__ = ["Chain"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class Chain(FittedMap):
    """Two calibrators in sequence: `Chain(first, second)(logits)` is `second(first(logits))`.

    >>> from calibrant.calibrators import Temperature
    >>> half = Temperature(2.0)
    >>> Chain(half, half)(np.array([[4.0, 0.0]]))
    array([[1., 0.]])
    """

    first: Any  # fitted
    second: Any  # fitted
    certificate: Certificate | None = None
    capabilities = Capabilities(
        preserves_argmax=lambda chain: preserves_argmax(chain.first) and preserves_argmax(chain.second),
        num_classes=lambda chain: num_classes(chain.first) or num_classes(chain.second),
        treats_classes_alike=lambda chain: treats_classes_alike(chain.first) and treats_classes_alike(chain.second),
    )

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        warm_start: "Chain | None" = None,
        first: CalibratorText = "Monotone",
        second: CalibratorText = "StructuredMatrix",
    ) -> "Chain":
        """Fit the first calibrator, and the second to its output.

        Args:
            p: Validation predictions.
            warm_start: A fit to similar data, to start from.
            first: Name of the first calibrator.
            second: Name of the second calibrator.
        """
        fitted_first = _fit_by_name(first, p, None if warm_start is None else warm_start.first)
        first_output = p.double().apply(fitted_first)
        fitted_second = _fit_by_name(second, first_output, None if warm_start is None else warm_start.second)
        status = worst_status(status_of(fitted_second), status_of(fitted_first))
        # The end of the second search is that of the chain; `Identity` and users' own calibrators have no certificate
        certificate = getattr(fitted_second, "certificate", None) or Certificate("nll", math.nan, math.nan, status)
        solution = Solution(cls(fitted_first, fitted_second), status, certificate.gradient, certificate.iterations)
        return solution.with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return second(first(z))."""
        return maps.chain(logits, vars(self))

    def map_columns(self, logits: Logits, columns: Mapping[str, Categories]) -> Logits:
        """Return second(first(z)) as a call does, with the columns for calibrators that need them, such as groups."""
        calibrated = maps.double(logits)
        for part in (self.first, self.second):
            mapped = apply_calibrator(part, calibrated, columns)
            # A user's own calibrator may have returned a tensor for an array
            calibrated = to_numpy(mapped) if isinstance(logits, np.ndarray) else mapped
        return like_logits(calibrated, logits, keeps_argmax=preserves_argmax(self))

    def column_notes(self, columns: Mapping[str, Categories]) -> tuple[str, ...]:
        """Return the notes of both calibrators to the user, such as one on groups that they were not fitted on."""
        parts = [part for part in (self.first, self.second) if isinstance(part, ColumnMap)]
        return tuple(note for part in parts for note in part.column_notes(columns))


def _fit_by_name(calibrator: str, p: Predictions, start: Any) -> Any:
    """Fit the named calibrator, from an earlier fit if one is given and the calibrator takes it."""
    method = CALIBRATORS.method(calibrator)
    fit: Callable[..., Any] = fit_function(method)
    return fit(p) if start is None or not has_parameter(method.function, "warm_start") else fit(p, warm_start=start)


@check_arguments
def cross_fit(
    calibrator: str | type[Calibrator] | Callable[..., Any],
    predictions: Predictions,
    *,
    folds: NumFolds = 5,
    seed: NonNegativeInt = 0,
) -> Predictions:
    """Calibrate every example by a calibrator that was fitted on the other folds.

    The result gives honest estimates without setting data aside. Folds do not know the labels.

    Args:
        calibrator: A class, a text such as "StructuredVector(refit_temperature=True)", or a fit function.
        predictions: The predictions to calibrate.
        folds: Number of folds.
        seed: Seed that draws the folds.

    Raises:
        InputError: for fewer examples than folds.

    >>> from calibrant.calibrators import Temperature
    >>> cross_fit(Temperature, Predictions(3 * np.tile(np.eye(2), (5, 1)), [0, 1, 0, 1, 0, 1, 1, 0, 1, 0]), folds=2)
    Predictions(n=10, k=2, float64)
    """
    fit: Any = fit_function(calibrator)
    if has_parameter(fit, "estimate_gain"):  # of a fit that is thrown away
        fit = partial(fit, estimate_gain=False)
    return map_out_of_fold(fit, predictions, folds=folds, seed=seed)


def pool(*members: Predictions) -> Predictions:
    """Average the probabilities of an ensemble's members on the same examples.

    Pool first and then fit the calibrator: the average of calibrated members is underconfident (Rahaman & Thiery 2021).

    Raises:
        InputError: if the members' labels or shapes differ.

    >>> a, b = Predictions([[0.0, -np.inf]], [0]), Predictions([[-np.inf, 0.0]], [0])
    >>> np.exp(pool(a, b).logits)
    array([[0.5, 0.5]])
    """
    if not members:
        raise InputError("Expected at least one member, got none. Try pool(first, second).", code="no_members")
    first = members[0]
    members = tuple(member.reorder_classes(first.class_names) for member in members)
    for member in members:
        shape, first_shape = tuple(member.logits.shape), tuple(first.logits.shape)
        if shape != first_shape or not np.array_equal(member.labels, first.labels):
            difference = "different labels" if shape == first_shape else f"logits of shapes {first_shape} and {shape}"
            raise InputError(
                f"Expected members that predict the same examples in the same order, got {difference}. Try sorting the "
                "examples of each member alike.",
                code="different_examples",
            )
    logits = [member.double().logits for member in members]
    stack = namespace(*logits).stack([z - log_sum_exp(z)[:, None] for z in logits], axis=-1)
    return first.with_logits(log_sum_exp(stack) - math.log(len(members)))  # the log of the mean probabilities


def fitting_digests(calibrator: object) -> set[str]:
    """Return the digests of all predictions that a calibrator, or a calibrator inside it, was fitted on.

    A `Certificate`, the record of a fit, holds the digest of its data. All fields are searched for certificates.
    """
    if isinstance(calibrator, Certificate):
        return {calibrator.data} - {""}  # "" if the data are unknown
    parts: Iterable[object] = calibrator if isinstance(calibrator, tuple) else learned_fields(calibrator).values()
    return set[str]().union(*map(fitting_digests, parts))


def learned_fields(calibrator: object) -> dict[str, Any]:
    """Return what a calibrator has learned, by name, or {} for any object that holds nothing learned.

    These are the fields of a dataclass, except those that `compare=False` excludes from its identity, or all attributes
    of another class.
    """
    if is_dataclass(calibrator) and not isinstance(calibrator, type):
        return {field.name: getattr(calibrator, field.name) for field in fields(calibrator) if field.compare}
    return dict(vars(calibrator)) if is_custom_calibrator(calibrator) else {}


def is_custom_calibrator(value: object) -> bool:
    """Return whether this is a user's own calibrator that is not a dataclass."""
    is_calibrator = isinstance(value, Calibrator) and not isinstance(value, type) and not is_dataclass(value)
    return is_calibrator and hasattr(value, "__dict__")


def calibrate(calibrator: Calibrator, predictions: Predictions, *, in_sample: bool = False) -> Predictions:
    """Apply a fitted calibrator to predictions for evaluation.

    Args:
        calibrator: The fitted calibrator.
        predictions: Predictions that it was not fitted on.
        in_sample: Allow the predictions that it was fitted on, whose scores are too good. `cross_fit` gives unbiased
            scores on the same data.

    Raises:
        InputError: for predictions that the calibrator was fitted on, from whichever file they came.
    """
    if not in_sample and predictions.digest in fitting_digests(calibrator):
        raise InputError(
            f"Expected predictions that {type(calibrator).__name__} was not fitted on, got its fitting data "
            f"({predictions.digest}). Try other predictions, cross_fit, or in_sample=True.",
            code="fitted_on_same",
        )
    return predictions.apply(calibrator)
