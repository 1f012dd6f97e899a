"""The search for the smallest n of a given power: simulations at a few sizes, and a curve through them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from calibrant._core.types import InputError

Trial = Callable[[int, np.random.Generator], bool]  # simulates n units; whether the goal is reached
MIN_UNITS, MAX_UNITS = 2, 10_000_000
REPORT_INTERVAL = 20  # draws between two reports
NUM_BRACKET_DRAWS = 50  # at each n until the power is bracketed
NUM_ROUNDS = 3  # of fits and simulations around the fitted n
MAX_CONFIRMATIONS = 6  # values of n that are simulated with all draws
MAX_DEVIATION = 1.0  # standard errors of the power at n that are accepted
CURVE_FACTORS, MIN_CURVE_DRAWS = (0.25, 0.5, 0.75, 1.25, 1.5, 2.0), 100
FIT_WINDOW = 1.7  # largest ratio of an n to the fitted one that still counts for the fit


@dataclass(frozen=True)
class PowerPoint:
    """The simulated power at one n."""

    n: int
    power: float
    draws: int  # simulated data sets

    @property
    def error(self) -> float:
        """Standard error of the simulated power."""
        share = (self.power * self.draws + 1) / (self.draws + 2)  # not 0 if every draw agrees
        return math.sqrt(share * (1 - share) / self.draws)


@dataclass(eq=False)
class PowerCurve:
    """Simulated powers as counts (successes, draws) by n, to which draws can be added."""

    trial: Trial
    seed: int
    report: Callable[[str], object] = lambda text: None  # is called with the progress
    counts: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def simulate(self, n: int, draws: int) -> float:
        """Add draws at n, and return the power of all draws there."""
        successes, previous = self.counts.get(n, (0, 0))
        rng = np.random.default_rng([self.seed, n, previous])  # so that added draws are new ones
        for i in range(draws):
            if i % REPORT_INTERVAL == 0:
                self.report(f"simulating n = {n:,}: data set {i + 1:,} of {draws:,}")
            successes += self.trial(n, rng)
        self.counts[n] = successes, previous + draws
        return successes / (previous + draws)

    @property
    def points(self) -> tuple[PowerPoint, ...]:
        """The simulated powers in increasing order of n."""
        return tuple(PowerPoint(n, hits / draws, draws) for n, (hits, draws) in sorted(self.counts.items()))


def find_size(curve: PowerCurve, start: float | int, power: float, draws: int) -> int:
    """Return the smallest n whose power is at least `power`, up to the error of `draws` simulations.

    Starts at the n of `estimate_size`. Each n is simulated until it has `draws` draws in total. If their power is not
    close enough, a curve is fitted to all simulations, and the n at which it reaches `power` is next. If no n is close
    enough, the result is the smallest simulated n with enough power, or else the largest simulated n.
    """
    n = estimate_size(curve, start, power, draws)
    confirmed: dict[int, float] = {}  # power by n
    error = MAX_DEVIATION * math.sqrt(power * (1 - power) / draws)
    for _ in range(MAX_CONFIRMATIONS):
        _, previous_draws = curve.counts.get(n, (0, 0))
        confirmed[n] = curve.simulate(n, max(draws - previous_draws, 0))
        if abs(confirmed[n] - power) <= error:
            return n
        fitted = math.ceil(fitted_size(curve.points, power, n))
        min_size = MIN_UNITS if confirmed[n] > power else math.ceil(1.01 * n)  # grow by 1 % after too little power
        n = max(min_size, fitted)
        if n in confirmed:  # the search would repeat itself
            break
    sufficient = [n for n, simulated_power in confirmed.items() if simulated_power >= power - error]
    return min(sufficient, default=max(confirmed))


def estimate_size(curve: PowerCurve, start: float | int, power: float, draws: int) -> int:
    """Return the n at which a fitted curve reaches a power, from about `draws` simulations near it.

    Sizes grow or shrink from `start` until they bracket the power. A monotone curve is fitted to the simulated powers,
    and the simulations continue around the n that it gives.

    Raises:
        InputError: If more than ten million units are needed.
    """
    n = _bracket(curve, start, power)
    for _ in range(NUM_ROUNDS):
        n = max(MIN_UNITS, round(fitted_size(curve.points, power, n)))
        for factor in (0.9, 1.0, 1.1):
            curve.simulate(max(MIN_UNITS, round(factor * n)), math.ceil(draws / (3 * NUM_ROUNDS)))
    return max(MIN_UNITS, math.ceil(fitted_size(curve.points, power, n)))


def _bracket(curve: PowerCurve, start: float | int, power: float) -> int:
    """Simulate at smaller or larger n until the power lies between two successive n, and return the last n."""
    n = min(max(MIN_UNITS, round(start)), MAX_UNITS)
    is_enough = curve.simulate(n, NUM_BRACKET_DRAWS) >= power
    while True:
        following = max(MIN_UNITS, round(n / 1.5)) if is_enough else math.ceil(1.5 * n)
        if following == n:  # MIN_UNITS are enough
            return n
        if following > MAX_UNITS:
            raise InputError(
                f"Expected a goal that {MAX_UNITS:,} examples or clusters can reach, got one that needs more. "
                "Try a larger difference or bound.",
                code="too_many",
            )
        n = following
        if (curve.simulate(n, NUM_BRACKET_DRAWS) >= power) != is_enough:
            return n


def simulate_curve(curve: PowerCurve, n: int, draws: int) -> None:
    """Add draws at round fractions and multiples of n, so that the curve around it is known."""
    for factor in CURVE_FACTORS:
        curve.simulate(max(MIN_UNITS, round(factor * n)), max(MIN_CURVE_DRAWS, draws // 10))


def fitted_size(points: tuple[PowerPoint, ...], power: float, center: int) -> float:
    """Return the n at which the line of `fit_power` around `center` has the given power, at most 1.5 `center`.

    Only simulations with an n near `center` are fitted, as the line is an approximation.
    """
    window = tuple(p for p in points if 1 / FIT_WINDOW <= p.n / center <= FIT_WINDOW)
    intercept, slope = fit_power(window if len(window) > 1 else points, degree=1)  # a line needs two points
    if slope <= 0:  # noise: more units cannot lower the power
        return float(center)
    root_n = (float(ndtri(power)) - intercept) / slope
    return min(max(root_n, 0.0) ** 2, 1.5 * center)  # a line says little far from its points


def fit_power(points: tuple[PowerPoint, ...], degree: int) -> np.ndarray:
    r"""Fit a polynomial f to the probits of the power, $\Phi(f(\sqrt n))$, and return its coefficients, constant first.

    A line is the power of a one-sided test of a mean. Least squares are weighted by the precision of the probits, and
    do not diverge where every draw agrees.
    """
    x = np.sqrt([p.n for p in points])
    draws = np.array([p.draws for p in points])
    share = np.array([(p.power * p.draws + 0.5) / (p.draws + 1) for p in points])  # never 0 or 1
    probit = ndtri(share)
    density = np.exp(-(probit**2) / 2) / math.sqrt(2 * math.pi)
    probit_error = np.sqrt(share * (1 - share) / draws) / density  # standard error, as d share / d probit = density
    max_degree = len(set(x)) - 1  # two points give a line at most
    coefficients = np.polynomial.polynomial.polyfit(x, probit, min(degree, max_degree), w=1 / probit_error)
    return np.append(coefficients, np.zeros(degree + 1 - len(coefficients)))


def power_between(points: tuple[PowerPoint, ...], n: int, degree: Literal[1, 2] = 2) -> float:
    """Return the power at n from a curve of this degree, continued by its tangent outside the simulated sizes."""
    a, b, c = np.append(fit_power(points, degree), 0.0)[:3]  # probit = a + b x + c x^2 with x = sqrt(n)
    x = math.sqrt(min(max(n, points[0].n), points[-1].n))  # the nearest one in the simulated range
    slope = max(b + 2 * c * x, 0.0)  # the power does not fall
    return float(ndtr(a + b * x + c * x**2 + slope * (math.sqrt(n) - x)))
