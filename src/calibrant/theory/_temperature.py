"""The distance of the focal map from a temperature (Komisarenko & Kull 2024, section 3)."""

import math
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import torch

from calibrant._core.types import InputError
from calibrant.theory._focal_map import focal_map
from calibrant.theory._gradient import check_gamma

__all__ = ["NearestTemperature", "TemperatureBounds", "nearest_temperature", "temperature_bounds"]

MAX_GRID_ROWS = 20_000


class TemperatureBounds(NamedTuple):
    """Temperatures between which the focal map of two classes lies at every logit."""

    sharpest: float  # 1 / (gamma + 1), approached as the logit grows
    mildest: float  # the best bound on the other side
    at_zero: float  # 1 / k(gamma), the temperature at logit 0; `mildest` itself up to gamma = 5.635
    paper: float  # 1 / (gamma + 1 - log(gamma + 1) / 2), the published bound, beyond `mildest`


class NearestTemperature(NamedTuple):
    """The temperature whose map is closest to a focal map."""

    temperature: float
    deviation: float  # the largest difference of two probabilities


def temperature_bounds(gamma: float) -> TemperatureBounds:
    r"""Return the temperatures between which the focal map of two classes lies (Komisarenko & Kull 2024, prop. 3).

    The map of q = sigmoid(s) is sigmoid(s / T(s)). 1 / T(s) is $k(\gamma) = \gamma + \frac{1 + \gamma (1 - \log 2)}{1 +
    \gamma \log 2}$ at s = 0 and approaches $\gamma + 1$ as s grows. Up to gamma = 5.635 it is monotone, and these two
    values are the best bounds. For a larger gamma it falls below k (by 0.005 at gamma = 10) before it rises, and
    `mildest` is the reciprocal of its minimum. For gamma < 0 the order is reversed: `sharpest` is the largest T.

    The paper proves a weaker bound, $\gamma + 1 - \log(\gamma + 1) / 2$. It prints $s / (\gamma + 1)$ where $s
    (\gamma + 1)$ is meant.

    Raises:
        InputError: If gamma is -1 or less.

    >>> bounds = temperature_bounds(1.0)
    >>> bounds.sharpest, round(1 / bounds.mildest, 4), round(1 / bounds.paper, 4)
    (0.5, 1.7718, 1.6534)
    """
    check_gamma(gamma)

    def inverse_temperature(s: float) -> float:
        """Return the logit after the map divided by the logit s before it, 1 / T(s)."""
        mapped = focal_map(torch.tensor([[s, 0.0]], dtype=torch.float64), gamma=gamma)[0]
        return float(mapped[0] - mapped[1]) / s

    inverse_at_zero = gamma + (1 + gamma * (1 - math.log(2))) / (1 + gamma * math.log(2))
    lowest_inverse = inverse_at_zero
    if gamma > 5.5:  # up to 5.635 the search finds nothing lower
        from scipy.optimize import minimize_scalar

        # the map is s / T(s), 0 / 0 at s = 0; beyond s = 20 it is close to its limit
        minimum: Any = minimize_scalar(inverse_temperature, bounds=(1e-2, 20.0), method="bounded")
        lowest_inverse = min(inverse_at_zero, float(minimum.fun))
    return TemperatureBounds(
        sharpest=1 / (gamma + 1),
        mildest=1 / lowest_inverse,
        at_zero=1 / inverse_at_zero,
        paper=1 / (gamma + 1 - math.log(gamma + 1) / 2),
    )


def nearest_temperature(gamma: float, classes: int = 2, *, reach: float | None = None) -> NearestTemperature:
    r"""Return the T that minimizes the largest $|\text{focal map}(q) - \text{softmax}(z / T)|$, q = softmax(z).

    The maximum is over classes and a grid of about 20,000 predictions. For two and three classes the result hardly
    depends on the grid; from four classes on it does, and the deviation grows with `reach`.

    Args:
        gamma: Gamma of the focal loss.
        classes: Number of classes, at least 2.
        reach: Largest difference between logits of the grid. Default: 60 for two classes, and 10 for more, as in
            Komisarenko & Kull (2024), where each logit is in (-5, 5).

    >>> t, deviation = nearest_temperature(3.0)
    >>> round(1 / t, 4), round(deviation, 6)
    (3.6252, 6.6e-05)
    """
    from scipy.optimize import minimize_scalar

    if classes < 2:
        raise InputError(f"Expected at least 2 classes, got {classes}.", code="one_class")
    z = _logit_grid(classes, reach or (60.0 if classes == 2 else 10.0))
    mapped = focal_map(z, gamma=gamma).exp()

    def deviation(slope: float) -> float:
        """Return the largest difference of probabilities between the focal map and the temperature T = 1 / slope."""
        return float((mapped - (slope * z).softmax(-1)).abs().max())

    bounds = 0.0, max(gamma, 0.0) + 1.5  # 1 / T(s) is at most gamma + 1, and below 1.3 for gamma < 0
    minimum: Any = minimize_scalar(deviation, bounds=bounds, method="bounded", options={"xatol": 1e-8})
    return NearestTemperature(1 / float(minimum.x), float(minimum.fun))


def _logit_grid(classes: int, reach: float) -> torch.Tensor:
    """Return logits 0 = z_1 >= z_2 >= ... >= z_k >= -reach on the finest grid of up to 20,000 rows, (rows k).

    Sorted rows suffice, because both maps treat all classes alike. A grid of m values per logit has
    comb(m + k - 2, k - 1) sorted rows.
    """
    points = 1  # values per logit; the loop asks for the rows of one more
    while math.comb(points + classes - 1, classes - 1) <= MAX_GRID_ROWS:
        points += 1
    steps = torch.tensor(list(combinations_with_replacement(range(points), classes - 1)), dtype=torch.float64)
    return torch.cat([torch.zeros(len(steps), 1, dtype=torch.float64), -steps * (reach / (points - 1))], dim=-1)
