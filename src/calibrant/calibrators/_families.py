"""The families that `Auto` mixes, and their fits to the same data."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from calibrant.calibrators._affine import fit_matrix, fit_vector
from calibrant.calibrators._affine_solver import GRADIENT_TOLERANCE
from calibrant.calibrators._binary import fit_beta, fit_platt, fit_quadratic
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._fitting import Solution
from calibrant.calibrators._isotonic import fit_venn_abers
from calibrant.calibrators._monotone import fit_monotone
from calibrant.calibrators._structured import (
    SmoothedTemperature,
    StructuredMatrix,
    StructuredVector,
    fit_smoothed_temperature,
    fit_structured,
    smoothing_cost,
)
from calibrant.calibrators._temperature import FitInput
from calibrant.predictions import Predictions

MIN_STACKING_EXAMPLES = 20  # with fewer, no out-of-fold predictions are made
MAX_MATRIX_WORK = 2e9  # n k^2 above which a matrix would take minutes
LIGHT_RIDGE = 0.1  # times the penalties of Berta et al. (2025); if that is too weak for the data, the weight is 0
WarmStarts = dict[str, Any]  # searches on similar data by family, which save a fifth of the time of `Auto`


@dataclass(frozen=True)
class CalibratorFamily:
    """A family that `Auto` may mix, and the data it needs."""

    name: str
    fit: Callable[[FitInput, Any], Solution[Any]]  # from a warm start or None
    preserves_argmax: bool = False
    treats_classes_alike: bool = False  # as in `Capabilities`
    parameters: Literal["constant", "vector", "matrix"] = "constant"
    base: str = ""  # name of the family whose output it is fitted to
    handicap: float = 0.0  # penalty in standard errors, for families that overfit
    classes: Literal["any", "two", "more"] = "any"

    def supports(self, k: int) -> bool:
        """Return whether the family is used for k classes."""
        return self.classes in ("any", "two" if k == 2 else "more")

    def min_examples(self, k: int) -> int:
        """Return the smallest total weight of examples of k classes for which the family is fitted."""
        by_parameters = {"constant": 0, "vector": k, "matrix": k * k // 50}
        return max(MIN_STACKING_EXAMPLES, by_parameters[self.parameters])

    def takes_too_long(self, n: int, k: int) -> bool:
        """Return whether a fit to n rows of k classes takes minutes."""
        return self.parameters == "matrix" and n * k * k > MAX_MATRIX_WORK


def _fit_identity(data: FitInput, _: Any) -> Solution[SmoothedTemperature]:
    """Return the map to the uncalibrated probabilities, smoothed by one uniform example so that none is 0."""
    temperature, count = torch.tensor([1.0, data.p.total_weight], dtype=torch.float64)
    return Solution(SmoothedTemperature(temperature, count), "closed form", slack=smoothing_cost(data.p))


REQUIRED_FAMILIES = (
    CalibratorFamily("as it is", _fit_identity, preserves_argmax=True, treats_classes_alike=True),
    CalibratorFamily(
        "SmoothedTemperature",
        lambda data, _: fit_smoothed_temperature(data),
        preserves_argmax=True,
        treats_classes_alike=True,
    ),
)
_Binary = partial(CalibratorFamily, classes="two")
_Multiclass = partial(CalibratorFamily, classes="more")
_fit_structured_matrix = partial(fit_structured, StructuredMatrix)
_fit_light_vector, _fit_light_matrix = partial(fit_vector, ridge=LIGHT_RIDGE), partial(fit_matrix, ridge=LIGHT_RIDGE)
FAMILIES = (
    *REQUIRED_FAMILIES,
    _Binary("StructuredVector", partial(fit_structured, StructuredVector), parameters="vector"),
    _Binary("StructuredMatrix", _fit_structured_matrix, parameters="matrix"),
    _Binary("Platt", lambda data, _: fit_platt(data.p), handicap=1.0),
    _Binary("Beta", lambda data, _: fit_beta(data.p), handicap=1.0),
    _Binary("Quadratic", lambda data, _: fit_quadratic(data.p), handicap=1.0),
    _Binary("VennAbers", lambda data, _: fit_venn_abers(data.p), handicap=math.inf),
    _Multiclass("Monotone", fit_monotone, preserves_argmax=True, treats_classes_alike=True),
    _Multiclass(
        "Monotone then StructuredMatrix",
        _fit_structured_matrix,
        base="Monotone",
        parameters="matrix",
        handicap=1.0,
    ),
    _Multiclass(f"Vector(ridge={LIGHT_RIDGE})", _fit_light_vector, parameters="vector", handicap=3.0),
    _Multiclass("Vector", fit_vector, parameters="vector", handicap=3.0),
    _Multiclass(f"Matrix(ridge={LIGHT_RIDGE})", _fit_light_matrix, parameters="matrix", handicap=3.0),
)


@dataclass(frozen=True, eq=False)
class FittedFamilies:
    """Families of `Auto` fitted to the same data. Some are fitted to the output of another family, their base."""

    inputs: dict[str, FitInput]  # what families are fitted to: the data under "", a base's output by its name
    solutions: dict[str, Solution[Any]]  # by name of the family

    @classmethod
    def fit_all(
        cls,
        families: Sequence[CalibratorFamily],
        p: Predictions,
        warm_starts: WarmStarts,
        tolerance: float = GRADIENT_TOLERANCE,
    ) -> "FittedFamilies":
        """Fit every family, and the base of each, to predictions.

        Args:
            families: The families to fit.
            p: Predictions.
            warm_starts: Searches on similar data that the fits start from, by name of the family.
            tolerance: Tolerance of the searches.
        """
        fitted = cls({"": FitInput(p, tolerance)}, {})
        for family in families:
            fitted._fit_family(family, warm_starts)
        return fitted

    def _fit_family(self, family: CalibratorFamily, warm_starts: WarmStarts) -> None:
        """Fit one family, after its base if that is not fitted yet, and store the solution.

        The output of a base is computed and cached when the first family needs it.
        """
        if family.base not in ("", *self.solutions):  # "" stands for the data
            self._fit_family(next(base for base in FAMILIES if base.name == family.base), warm_starts)
        if family.base not in self.inputs:
            data = self.inputs[""]
            base_output = data.p.apply(self.solutions[family.base].calibrator)
            self.inputs[family.base] = FitInput(base_output, data.tolerance)
        self.solutions[family.name] = family.fit(self.inputs[family.base], warm_starts.get(family.name))

    @property
    def warm_starts(self) -> WarmStarts:
        """Searches that fits to similar data can start from."""
        return {name: solution.warm_start for name, solution in self.solutions.items()}

    def apply_each(self, families: Sequence[CalibratorFamily], p: Predictions) -> Iterator[Predictions]:
        """Yield p calibrated by each family in turn. p may be other data than the fits', such as a held-out fold."""
        base_outputs = {name: p.apply(self.solutions[name].calibrator) if name else p for name in self.inputs}
        for family in families:
            if family.name in base_outputs:  # a base, which was applied already
                yield base_outputs[family.name]
            else:
                yield base_outputs[family.base].apply(self.solutions[family.name].calibrator)

    def certified(self, family: CalibratorFamily) -> Any:
        """Return the calibrator of a family with its certificate, in a `Chain` after its base if it has one."""
        fitted = self.solutions[family.name].with_certificate(self.inputs[family.base].p)
        if not family.base:
            return fitted
        return Chain(self.solutions[family.base].with_certificate(self.inputs[""].p), fitted)
