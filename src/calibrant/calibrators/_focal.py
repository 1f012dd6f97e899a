"""The focal calibration map, alone or after a temperature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np

from calibrant._core.kernels.roots import Certificate
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import InputError, Logits, MetricText, PositiveFloat, PositiveScalar, Range, Scalar
from calibrant.calibrators import maps
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._fitting import Solution, fit_method
from calibrant.calibrators._grid_search import GridMinimum, search_grid, search_points
from calibrant.calibrators._temperature import temperature_grid
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions

__all__ = ["FocalMap", "FocalTemperature"]

Gamma = Annotated[float, Range(gt=-1, le=1000)]
FOCAL_GRIDS: dict[str, tuple[list[float], list[float]]] = {  # gammas and temperatures of Komisarenko & Kull (2024)
    "text": ([-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0], temperature_grid("komisarenko")),
    # Their code also lists -1, where the map degenerates, and 100, its sign for plain softmax: gamma = 0
    "code": ([-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 3.0, 5.0], temperature_grid("komisarenko_code")),
}


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class FocalMap(FittedMap):
    r"""The focal calibration map, $p_j \propto q_j / g(q_j, \gamma)$ (Komisarenko & Kull 2024, eq. 1).

    Maps the minimizer of focal loss with this gamma to the true probabilities, without validation data. Never changes
    a predicted class. Sharpens predictions above `theory.confidence_threshold` for gamma > 0; identity at gamma = 0.

    >>> np.exp(FocalMap(2.0)(np.log([[0.626614827, 0.373385173]]))).round(4)
    array([[0.8, 0.2]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("gamma",)  # shown in brackets in tables

    gamma: Gamma
    certificate: Certificate | None = None
    capabilities = Capabilities(preserves_argmax=True, treats_classes_alike=True, repairs_overconfidence=False)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, gamma: Gamma = 3.0) -> "FocalMap":
        """Use a given gamma, usually that of the training loss. Only the certificate needs the data."""
        return Solution(cls(gamma), "closed form").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p after the focal calibration map."""
        return maps.fixed_focal_map(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class FocalTemperature(FittedMap):
    r"""Focal temperature scaling, softmax(z / T) and then the focal map (Komisarenko & Kull 2024, section 4.2).

    Never changes a predicted class. Temperature scaling at gamma = 0. With two classes it is nearly a temperature:
    within 0.0012 in probability for gamma >= 0, within 0.014 for gamma = -0.5. With many classes it moves the top
    probability against the others.

    >>> np.exp(FocalTemperature(2.0, 0.0)(np.array([[4.0, 0.0]]))).round(4)
    array([[0.8808, 0.1192]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("temperature", "gamma")  # shown in brackets in tables

    temperature: PositiveScalar
    gamma: Annotated[Scalar, Range(gt=-1, lt=math.inf)]
    certificate: Certificate | None = None
    capabilities = Capabilities(preserves_argmax=True, treats_classes_alike=True)

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        criterion: MetricText = "adaptive_ece",
        grid: Literal["text", "code"] | tuple[Sequence[Gamma], Sequence[PositiveFloat]] = "text",
        search: Literal["full", "line"] = "full",
        gamma: Gamma | None = None,
    ) -> "FocalTemperature":
        """Fit (gamma, T) on validation predictions: the first smallest value over a grid, gamma by gamma.

        Args:
            p: Validation predictions.
            criterion: The metric to minimize, such as "nll", "ece" or "adaptive_ece".
            grid: (gammas, temperatures), or the lists of the paper: those of its "text" (9 by 500) or its "code" (10 by
                100). To compare with `Temperature`, give both the same temperatures: those of "text" are
                `Temperature(grid="komisarenko")`, and those of "code" `Temperature(grid="komisarenko_code")`.
            search: "full" searches the whole grid. "line" is the paper's cheaper search with 3 m points for m
                temperatures: the best T for the smallest and for the largest gamma, then m points on the straight line
                between the two.
            gamma: Fix gamma and search the temperature only (as in their Figure 8).

        Raises:
            InputError: for an unknown grid, a gamma outside the given grid, a temperature that is not positive, and a
                gamma outside (-1, 1000].
        """
        gammas, ts = _resolve_grid(grid)
        if gamma is not None and not isinstance(grid, str) and gamma not in gammas:
            raise InputError(
                f"Expected gamma={gamma:g} among the gammas of the grid, got {gammas[:5]}. Try leaving one out.",
                code="conflicting_settings",
            )
        gammas = gammas if gamma is None else [gamma]
        if search == "line":
            minimum, passes, on_edge = _search_line(p, criterion, gammas, ts), 3 * len(ts), False
        else:
            minimum, passes = search_grid(p, criterion, gammas, ts), len(gammas) * len(ts)
            gamma_on_edge = gamma is None and minimum.gamma in (min(gammas), max(gammas))
            on_edge = gamma_on_edge or minimum.temperature in (min(ts), max(ts))
        status = "at bound" if on_edge else "grid"
        fitted = cls(minimum.temperature, minimum.gamma)
        return Solution(fitted, status, iterations=passes, criterion=criterion).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p after the temperature and the focal calibration map."""
        return maps.focal_temperature(logits, vars(self))


def _search_line(p: Predictions, criterion: str, gammas: Sequence[float], ts: Sequence[float]) -> GridMinimum:
    """Minimize a metric over m points on a line in the (gamma, T) plane, for m temperatures `ts`.

    The line connects the smallest gamma with its best temperature and the largest gamma with its best temperature.
    """
    first, last = (search_grid(p, criterion, [gamma], ts) for gamma in (min(gammas), max(gammas)))
    share = np.linspace(0, 1, len(ts))
    gamma = first.gamma + share * (last.gamma - first.gamma)
    t = first.temperature + share * (last.temperature - first.temperature)
    return search_points(p, criterion, list(zip(gamma.tolist(), t.tolist(), strict=True)))


def _resolve_grid(grid: str | tuple[Sequence[float], Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the gammas and temperatures of a grid, which is given by name or as lists."""
    if isinstance(grid, str):
        return FOCAL_GRIDS[grid]
    gammas, ts = ([float(x) for x in values] for values in grid)
    if not gammas or not ts or min(gammas) <= -1 or max(gammas) > 1000 or min(ts) <= 0:
        raise InputError(
            f"Expected gammas in (-1, 1000] and positive temperatures, got {gammas[:5]} and {ts[:5]}. Try at least one "
            "of each.",
            code="grid_range",
        )
    return gammas, ts
