"""The families that `Auto` mixes, and their fits to the same data."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from calibrant._core.arrays import namespace
from calibrant.calibrators._affine import fit_matrix, fit_vector
from calibrant.calibrators._affine_solver import GRADIENT_TOLERANCE
from calibrant.calibrators._binary import fit_beta, fit_platt, fit_quadratic
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._fitting import Solution
from calibrant.calibrators._isotonic import fit_venn_abers
from calibrant.calibrators._monotone import fit_monotone
from calibrant.calibrators._order_preserving import fit_order_preserving
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
HANDICAP_EXAMPLES = 1000.0  # for which the handicap of unpenalized maps of two classes is 1
MAX_MATRIX_WORK = 2e9  # n k^2 above which a matrix would take minutes
RANKS_AS_CLASSES = 250  # a map by ranks takes as long as a matrix of so many classes, whatever k is
LIGHT_RIDGE = 0.1  # times the penalties of Berta et al. (2025); if that is too weak for the data, the weight is 0
WarmStarts = dict[str, Any]  # searches on similar data by family, which save a fifth of the time of `Auto`


@dataclass(frozen=True)
class CalibratorFamily:
    """A family that `Auto` may mix, and the data it needs."""

    name: str
    fit: Callable[[FitInput, Any], Solution[Any]]  # from a warm start or None
    preserves_argmax: bool = False
    parameters: Literal["constant", "ranks", "vector", "matrix"] = "constant"
    base: str = ""  # name of the family whose output it is fitted to
    join: Callable[[Any, Any], Any] = Chain  # makes one calibrator of the fitted base and the fit to its output
    handicap: Callable[[Predictions], float] = lambda _: 0.0  # penalty in standard errors, for families that overfit
    classes: Literal["any", "two", "more"] = "any"
    fallback_for: str = ""  # name of the family in whose place it is tried where that takes too long

    def supports(self, k: int) -> bool:
        """Return whether the family is used for k classes."""
        return self.classes in ("any", "two" if k == 2 else "more")

    def min_examples(self, k: int) -> int:
        """Return the smallest total weight of examples of k classes for which the family is fitted."""
        by_parameters = {"constant": 0, "ranks": 0, "vector": k, "matrix": k * k // 50}
        return max(MIN_STACKING_EXAMPLES, by_parameters[self.parameters])

    def takes_too_long(self, n: int, k: int) -> bool:
        """Return whether a fit to n rows of k classes takes minutes, or that of its base does."""
        width = {"ranks": RANKS_AS_CLASSES, "matrix": k}.get(self.parameters, 0)
        return n * k * width > MAX_MATRIX_WORK or (bool(self.base) and family_of(self.base).takes_too_long(n, k))


def _fit_identity(data: FitInput, _: Any) -> Solution[SmoothedTemperature]:
    """Return the map to the uncalibrated probabilities, smoothed by one uniform example so that none is 0."""
    return Solution(SmoothedTemperature(1.0, data.p.total_weight), "closed form", slack=smoothing_cost(data.p))


def _few_examples_handicap(p: Predictions) -> float:
    """Return sqrt(1000 / n), for maps of two classes with two or three parameters and no penalty."""
    return math.sqrt(HANDICAP_EXAMPLES / p.total_weight)


def _distinct_scores_handicap(p: Predictions) -> float:
    """Return 3/2 log(d / n) for an isotonic map of d distinct scores, which has at most as many parameters.

    There is none if all scores differ. Stated confidences, of which there are a dozen, make it an advantage.
    """
    distinct = len(namespace(p.logits).unique_values(p.logits[:, 1] - p.logits[:, 0]))
    return 1.5 * math.log(distinct / p.total_weight)


REQUIRED_FAMILIES = (
    CalibratorFamily("as it is", _fit_identity, preserves_argmax=True),
    CalibratorFamily(
        "SmoothedTemperature",
        lambda data, _: fit_smoothed_temperature(data),
        preserves_argmax=True,
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
    _Binary("Platt", lambda data, _: fit_platt(data.p), handicap=_few_examples_handicap),
    _Binary("Beta", lambda data, _: fit_beta(data.p), handicap=_few_examples_handicap),
    _Binary("Quadratic", lambda data, _: fit_quadratic(data.p), handicap=_few_examples_handicap),
    _Binary("VennAbers", lambda data, _: fit_venn_abers(data.p), handicap=_distinct_scores_handicap),
    CalibratorFamily("Monotone", fit_monotone, preserves_argmax=True),
    CalibratorFamily(
        "IntraOrderPreserving",
        fit_order_preserving,
        preserves_argmax=True,
        parameters="ranks",
        base="Monotone",
        join=lambda monotone, fitted: fitted.after(monotone),
    ),
    _Multiclass(
        "IntraOrderPreserving then StructuredMatrix",
        _fit_structured_matrix,
        base="IntraOrderPreserving",
        parameters="matrix",
        handicap=lambda _: 1.0,
    ),
    _Multiclass(
        "Monotone then StructuredMatrix",
        _fit_structured_matrix,
        base="Monotone",
        parameters="matrix",
        handicap=lambda _: 1.0,
        fallback_for="IntraOrderPreserving then StructuredMatrix",
    ),
    _Multiclass(f"Vector(ridge={LIGHT_RIDGE})", _fit_light_vector, parameters="vector", handicap=lambda _: 3.0),
    _Multiclass("Vector", fit_vector, parameters="vector", handicap=lambda _: 3.0),
    _Multiclass(f"Matrix(ridge={LIGHT_RIDGE})", _fit_light_matrix, parameters="matrix", handicap=lambda _: 3.0),
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
        if family.name in self.solutions:  # as the base of another one
            return
        if family.base:
            base = family_of(family.base)
            self._fit_family(base, warm_starts)
            if base.name not in self.inputs:
                data = self.inputs[base.base]
                base_output = data.p.apply(self.solutions[base.name].calibrator)
                self.inputs[base.name] = FitInput(base_output, data.tolerance)
        self.solutions[family.name] = family.fit(self.inputs[family.base], warm_starts.get(family.name))

    @property
    def warm_starts(self) -> WarmStarts:
        """Searches that fits to similar data can start from."""
        return {name: solution.warm_start for name, solution in self.solutions.items()}

    def apply_each(self, families: Sequence[CalibratorFamily], p: Predictions) -> Iterator[Predictions]:
        """Yield p calibrated by each family in turn. p may be other data than the fits', such as a held-out fold."""
        base_outputs = {"": p}
        for name in self.inputs:  # a base comes after its own base
            if name:
                base_outputs[name] = base_outputs[family_of(name).base].apply(self.solutions[name].calibrator)
        for family in families:
            if family.name in base_outputs:  # a base, which was applied already
                yield base_outputs[family.name]
            else:
                yield base_outputs[family.base].apply(self.solutions[family.name].calibrator)

    def slack(self, family: CalibratorFamily) -> float:
        """Return by how much a family may raise the NLL of the data that it is fitted to."""
        return self.solutions[family.name].slack + (self.slack(family_of(family.base)) if family.base else 0.0)

    def certified(self, family: CalibratorFamily) -> Any:
        """Return the calibrator of a family with its certificate, joined with its base if it has one."""
        fitted = self.solutions[family.name].with_certificate(self.inputs[family.base].p)
        return family.join(self.certified(family_of(family.base)), fitted) if family.base else fitted


def family_of(name: str) -> CalibratorFamily:
    """Return the family of a name."""
    return next(family for family in FAMILIES if family.name == name)
