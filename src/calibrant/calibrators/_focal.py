"""Focal: undo the lack of properness of focal loss, alone or together with a temperature."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from calibrant import theory
from calibrant.backend.solvers import Certificate
from calibrant.calibrators._apply import certified_classes, check_num_classes, preserves_argmax
from calibrant.calibrators._fitting import certify, fit_method
from calibrant.calibrators._grid_search import GridMinimum, search_grid
from calibrant.calibrators._temperature import temperature_grid
from calibrant.predictions import Predictions
from calibrant.registry import CALIBRATORS
from calibrant.types import InputError, Logits, MetricText, PositiveFloat, PositiveScalar, Range, Scalar

__all__ = ["FocalMap", "FocalTemperature"]

Gamma = Annotated[float, Range(gt=-1, le=1000)]
FOCAL_GRIDS: dict[str, tuple[list[float], list[float]]] = {  # gammas and temperatures of Komisarenko & Kull (2024)
    "text": ([-0.5, -0.25, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0], temperature_grid("komisarenko")),
    # their code also lists -1, where the map degenerates, and 100, its sign for plain softmax: gamma = 0
    "code": ([-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75, 1.0, 3.0, 5.0], temperature_grid("komisarenko_code")),
}


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class FocalMap:
    r"""The focal calibration map, $p_j \propto q_j / g(q_j, \gamma)$ (Komisarenko & Kull 2024, eq. 1).

    What turns the minimizer of focal loss with this gamma into the true probabilities, before any validation data
    are seen. Keeps every prediction; sharpens for gamma > 0; the identity at gamma = 0. See `theory.focal_map`.

    >>> FocalMap(2.0)(torch.tensor([[0.626614827, 0.373385173]]).log()).exp()
    tensor([[0.8000, 0.2000]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("gamma",)  # in the brackets of a table

    gamma: Gamma
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, gamma: Gamma = 3.0) -> "FocalMap":
        """Take gamma as given, most often the one trained with; only the certificate looks at the data."""
        return certify(cls(gamma), p, "closed form", criterion="nll")

    @check_num_classes(certified_classes)
    @preserves_argmax
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        return theory.focal_map(logits, gamma=self.gamma)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class FocalTemperature:
    r"""Focal temperature scaling (Komisarenko & Kull 2024, section 4.2): softmax(z / T), then the focal map.

    Temperature scaling at gamma = 0. Keeps every prediction. With two classes and
    gamma >= 0 it is within 0.0012 of a temperature and adds nothing (with gamma = -0.5 within 0.014); with many classes
    it moves the top probability against the others.

    >>> FocalTemperature(torch.tensor(2.0), torch.tensor(0.0))(torch.tensor([[4.0, 0.0]])).softmax(-1)
    tensor([[0.8808, 0.1192]])
    """

    table_fields: ClassVar[tuple[str, ...]] = ("temperature", "gamma")  # in the brackets of a table

    temperature: PositiveScalar  # float64
    gamma: Annotated[Scalar, Range(gt=-1, lt=math.inf)]  # float64
    certificate: Certificate | None = None

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
        """Find (gamma, T) on validation predictions: the first strict minimum of the criterion, gamma by gamma.

        `criterion` is the text of a metric: "nll", "ece", "adaptive_ece" or any other. `grid` is (gammas,
        temperatures), or the lists of the paper: those of its "text" (9 by 500) or of its "code" (10 by 100). Compared
        with `Temperature`, let both search one list: `grid="komisarenko"` there is the text's, "komisarenko_code" the
        code's.
        "full" searches the whole grid. "line" is the paper's cheaper search, with m temperatures 3 m points: the
        best T for the smallest and for the largest gamma, then m points on the straight line between the two. A given
        `gamma` leaves only the temperature to be found (as in their Figure 8).

        Raises `InputError` for an unknown grid, a gamma that a given grid does not have, temperatures not above 0,
        and gammas not above -1 or above 1000.
        """
        gammas, ts = _resolve_grid(grid)
        if gamma is not None and not isinstance(grid, str) and gamma not in gammas:
            message = f"expected gamma={gamma:g} among the gammas of the grid, got {gammas[:5]}; leave one out"
            raise InputError(message, code="conflicting_settings")
        gammas = gammas if gamma is None else [gamma]
        minimum = (
            search_grid(p, criterion, [(gammas, ts)]) if search == "full" else _search_line(p, criterion, gammas, ts)
        )
        t, best_gamma = torch.tensor([minimum.temperature, minimum.gamma], dtype=torch.float64)
        outermost = gamma is None and minimum.gamma in (min(gammas), max(gammas))
        on_edge = search == "full" and (minimum.temperature in (min(ts), max(ts)) or outermost)
        passes = len(gammas) * len(ts) if search == "full" else 3 * len(ts)
        status = "at bound" if on_edge else "grid"
        return certify(cls(t, best_gamma), p, status, criterion=criterion, iterations=passes)

    @check_num_classes(certified_classes)
    @preserves_argmax
    def __call__(self, logits: Logits) -> Logits:
        """Return log p."""
        return theory.focal_map(logits / self.temperature, gamma=self.gamma)


def _search_line(p: Predictions, criterion: str, gammas: Sequence[float], ts: Sequence[float]) -> GridMinimum:
    """Search between the best temperatures of the outermost gammas."""
    first, last = (search_grid(p, criterion, [((gamma,), ts)]) for gamma in (min(gammas), max(gammas)))
    share = np.linspace(0, 1, len(ts))
    gamma = first.gamma + share * (last.gamma - first.gamma)
    t = first.temperature + share * (last.temperature - first.temperature)
    points = zip(gamma.tolist(), t.tolist(), strict=True)
    return search_grid(p, criterion, [((gamma,), (t,)) for gamma, t in points])


def _resolve_grid(grid: str | tuple[Sequence[float], Sequence[float]]) -> tuple[list[float], list[float]]:
    if isinstance(grid, str):
        if grid not in FOCAL_GRIDS:
            raise InputError(
                f"no grid {grid!r}; there are {', '.join(FOCAL_GRIDS)}, or give (gammas, temperatures)",
                code="unknown_grid",
            )
        return FOCAL_GRIDS[grid]
    gammas, ts = ([float(x) for x in values] for values in grid)
    if not gammas or not ts or min(gammas) <= -1 or max(gammas) > 1000 or min(ts) <= 0:
        raise InputError(
            "a grid must hold gammas above -1 and at most 1000 and temperatures above 0, at least one of each",
            code="grid_range",
        )
    return gammas, ts
