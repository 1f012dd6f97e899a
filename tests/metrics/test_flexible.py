"""The flexible curve: an independent spline, its bands, its errors with noise floors, levels and upper limits."""

import numpy as np
import pytest
from refusals import code_of
from scipy.interpolate import CubicSpline
from scipy.special import expit

import calibrant
from calibrant import Predictions, metrics
from calibrant._core.kernels.bins import Events
from calibrant.metrics import curves
from calibrant.metrics._flexible import KNOT_LEVELS, weighted_quantile

ERRORS = ("ici", "e50", "e90", "emax")


def to_events(lp, y, **columns) -> Events:
    return Events(expit(lp), np.asarray(y, dtype=float), **columns)


def draw(rng: np.random.Generator, n: int, mean: float, a: float = 0.0, b: float = 1.0, size: int = 1) -> Events:
    lp = mean + rng.normal(size=n)
    columns = {} if size == 1 else {"clusters": np.arange(n) // size}
    return to_events(lp, rng.random(n) < expit(a + b * lp), **columns)


def natural_spline_fit(lp: np.ndarray, y: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """Return the fitted probabilities of a natural spline in its cardinal basis, by iterated least squares."""
    splines = [CubicSpline(knots, unit, bc_type="natural") for unit in np.eye(len(knots))]
    inside = np.clip(lp, knots[0], knots[-1])  # and straight beyond
    x = np.stack([s(inside) + s(inside, 1) * (lp - inside) for s in splines], 1)
    z = np.zeros(len(y))
    for _ in range(60):
        p = expit(z)
        root = np.sqrt(p * (1 - p))
        beta = np.linalg.lstsq(x * root[:, None], root * (z + (y - p) / root**2), rcond=None)[0]
        z = x @ beta
    return expit(z)


@pytest.mark.parametrize("knots", [3, 4, 5])
def test_errors_equal_those_of_an_independent_natural_spline(knots):
    for seed in range(70):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(400, 1500))
        lp = rng.normal(rng.uniform(-1, 1), rng.uniform(0.7, 1.5), n)
        y = (rng.random(n) < expit(rng.normal(0, 0.3) + 0.9 * lp + 0.1 * np.sin(3 * lp))).astype(float)
        fitted = natural_spline_fit(lp, y, np.quantile(lp, KNOT_LEVELS[knots]))
        distance, events = np.abs(expit(lp) - fitted), to_events(lp, y)
        expected = distance.mean(), *np.quantile(distance, [0.5, 0.9]), distance.max()
        values = [float(getattr(metrics, name)(events, knots=knots)) for name in ERRORS]
        assert values == pytest.approx(expected, abs=1e-6), seed


def test_weighted_quantiles_are_those_of_copies():
    rng = np.random.default_rng(0)
    values, weights = rng.random((3, 50)), rng.integers(1, 5, 50)
    for level in (0.0, 0.1, 0.5, 0.9, 1.0):
        expected = np.quantile(values.repeat(weights, axis=1), level, axis=1)
        np.testing.assert_allclose(weighted_quantile(values, weights.astype(float), level), expected, rtol=1e-12)


def test_curve_has_nested_bands_and_names_its_smoother():
    curve = curves.flexible(Predictions.from_binary_logits(*sample(2000), logits=True).with_event(1))
    assert curve.method == "restricted cubic spline of the log-odds with 4 knots"
    assert len(curve.x) == 512
    for lower, upper in ((curve.simultaneous_low, curve.low), (curve.low, curve.y), (curve.y, curve.high)):
        assert (lower <= upper + 1e-12).all()
    assert (curve.high <= curve.simultaneous_high).all()
    line = curves.flexible(to_predictions([0.2] * 30 + [0.8] * 30, [1, 0, 0] * 10 + [1, 1, 0] * 10))
    assert line.method == "logistic line"
    assert line.y.tolist() == pytest.approx([1 / 3, 2 / 3])


def sample(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    lp = rng.normal(-1, 1, n)
    return lp, (rng.random(n) < expit(0.4 + 0.7 * lp)).astype(int)


def to_predictions(risks, outcomes) -> Predictions:
    return Predictions.from_probs(np.array(risks), np.array(outcomes)).with_event(1)


def test_measure_shows_the_noise_floor_beside_the_error():
    table = calibrant.measure(Predictions.from_binary_logits(*sample(800), logits=True), metrics=["ici"])
    assert table["ici"].low == 0
    assert table["ici"].value < table["ici"].high
    assert table["ici_noise_floor"].low < table["ici_noise_floor"].value < table["ici_noise_floor"].high
    assert table["ici"].note


def test_curves_that_separate_are_refused():
    lp = np.linspace(-2, 2, 60)
    y = (lp > 0).astype(float)
    assert code_of(metrics.ici, to_events(lp, y)) == "separated"
    y = (np.abs(lp) > 1).astype(float)  # a line does not separate them, a spline does
    assert metrics.ici.interval(to_events(lp, y)).high == 1
    p = Predictions.from_binary_logits(lp, y.astype(int), logits=True).with_event(1)
    assert code_of(curves.flexible, p) == "separated"
    assert code_of(metrics.emax, to_events(lp, np.ones(60))) == "one_outcome"


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "n", "size"), [(-1, 300, 1), (-2, 1000, 1), (-1, 400, 10)])
def test_tests_keep_their_level_and_upper_limits_cover(mean, n, size):
    rng, rejected, covered = np.random.default_rng(1), dict.fromkeys(ERRORS, 0), 0
    grid = np.linspace(mean - 5, mean + 5, 2001)
    density = np.exp(-((grid - mean) ** 2) / 2)
    true_ici = float(np.average(np.abs(expit(grid) - expit(0.3 + 0.8 * grid)), weights=density))
    for _ in range(100):
        calibrated = draw(rng, n, mean, size=size)
        for name in ERRORS:
            rejected[name] += getattr(metrics, name).test(calibrated).p_value <= 0.05
        covered += metrics.ici.interval(draw(rng, n, mean, 0.3, 0.8, size)).high >= true_ici
    assert max(rejected.values()) <= 0.06 * 100 + 2 * 2.2, rejected
    assert covered >= 0.88 * 100


@pytest.mark.slow
def test_bands_hold_the_true_curve():
    rng, at_center, everywhere = np.random.default_rng(2), 0, 0
    for _ in range(400):
        lp = rng.normal(-0.5, 1, 600)
        p = Predictions.from_binary_logits(lp, (rng.random(600) < expit(0.3 + 0.8 * lp)).astype(int), logits=True)
        curve = curves.flexible(p.with_event(1))
        truth = expit(0.3 + 0.8 * np.log(curve.x / (1 - curve.x)))
        middle = len(truth) // 2
        at_center += bool(curve.low[middle] <= truth[middle] <= curve.high[middle])
        everywhere += bool(((curve.simultaneous_low <= truth) & (truth <= curve.simultaneous_high)).all())
    assert at_center >= 0.86 * 400
    assert everywhere >= 0.86 * 400
