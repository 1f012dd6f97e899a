"""Calibration of a risk: published formulas, independent fits, refusals, coverage of intervals, and levels of tests."""

import math

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import code_of
from scipy.optimize import brentq, minimize
from scipy.special import expit, softmax
from scipy.stats import chi2, norm, poisson

import calibrant
from calibrant import Predictions, calibrators, metrics
from calibrant._core.kernels.bins import Events

SLOPE, INTERCEPT = 0.8, 0.3  # of the simulated truth on the predicted log-odds
INTERVALS = (
    *("calibration_intercept", "calibration_slope", "observed_expected"),
    *("event_brier", "scaled_brier", "average_precision"),
)
TESTS = ("cox", "spiegelhalter", "hosmer_lemeshow")


def problem(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return log-odds and outcomes of a random problem; every third has ties."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(100, 1500))
    lp = rng.normal(rng.uniform(-2, 1), rng.uniform(0.5, 2), n)
    lp = lp.round(1) if seed % 3 == 0 else lp
    return lp, (rng.random(n) < expit(rng.normal(0, 0.5) + rng.uniform(0.5, 1.5) * lp)).astype(float)


def to_events(lp, y, **columns) -> Events:
    return Events(expit(lp), np.asarray(y, dtype=float), **columns)


def log_likelihood(theta: np.ndarray, lp: np.ndarray, y: np.ndarray) -> float:
    z = theta[0] + theta[1] * lp
    return float((y * z - np.logaddexp(0, z)).sum())


def test_values_equal_independent_fits_and_written_formulas_on_200_data_sets():
    for seed in range(200):
        lp, y = problem(seed)
        events, p = to_events(lp, y), expit(lp)
        a = brentq(lambda a, lp=lp, y=y: (y - expit(a + lp)).sum(), -20, 20, xtol=1e-13)
        fit = minimize(
            lambda t, lp=lp, y=y: -log_likelihood(t, lp, y) / len(y),
            np.array([0.0, 1.0]),
            jac=lambda t, lp=lp, y=y: -np.array([(y - expit(t[0] + t[1] * lp)) @ x for x in (lp**0, lp)]) / len(y),
            method="BFGS",
            options={"gtol": 1e-10},
        ).x
        gain = 2 * (log_likelihood(fit, lp, y) - log_likelihood(np.array([0.0, 1.0]), lp, y))
        z = ((y - p) * (1 - 2 * p)).sum() / math.sqrt(((1 - 2 * p) ** 2 * p * (1 - p)).sum())
        above = [(p >= t - 1e-12).sum() for t in p[y == 1]]
        hits = [(y[p >= t - 1e-12]).sum() for t in p[y == 1]]
        expected = {
            "calibration_intercept": a,
            "calibration_slope": fit[1],
            "cox": gain,
            "observed_expected": y.sum() / p.sum(),
            "scaled_brier": 1 - ((p - y) ** 2).mean() / (y.mean() * (1 - y.mean())),
            "spiegelhalter": z,
            "average_precision": np.mean(np.divide(hits, above)),
        }
        for name, value in expected.items():
            assert float(getattr(metrics, name)(events)) == pytest.approx(value, rel=1e-6, abs=1e-6), (name, seed)


def test_wald_limits_are_those_of_the_inverse_information():
    lp, y = problem(4)
    a = float(metrics.calibration_intercept(to_events(lp, y)))
    q = expit(a + lp)
    half = norm.ppf(0.975) / math.sqrt((q * (1 - q)).sum())
    interval = metrics.calibration_intercept.interval(to_events(lp, y), level=0.95)
    assert (interval.low, interval.high) == pytest.approx((a - half, a + half), abs=1e-6)
    fit = minimize(lambda t: -log_likelihood(t, lp, y), np.array([0.0, 1.0]), options={"gtol": 1e-9}).x
    q = expit(fit[0] + fit[1] * lp)
    x = np.stack([np.ones_like(lp), lp])
    half = norm.ppf(0.975) * math.sqrt(np.linalg.inv((x * q * (1 - q)) @ x.T)[1, 1])
    interval = metrics.calibration_slope.interval(to_events(lp, y), level=0.95)
    assert (interval.low, interval.high) == pytest.approx((fit[1] - half, fit[1] + half), abs=1e-4)


def test_p_values_are_those_of_the_limiting_distributions():
    rng = np.random.default_rng(0)
    lp = rng.normal(size=3000)
    y = (rng.random(3000) < expit(lp)).astype(float)
    events, p = to_events(lp, y), expit(lp)
    evidence = metrics.cox.test(events)
    assert evidence.p_value == pytest.approx(chi2.sf(evidence.statistic, 2))
    evidence = metrics.spiegelhalter.test(events)
    assert evidence.p_value == pytest.approx(2 * norm.sf(abs(evidence.statistic)))
    order = np.argsort(p)[: len(p) // 10 * 10]  # ten groups of equal size
    p, y = p[order], y[order]
    groups = [(y[g].sum(), p[g].sum(), len(g)) for g in np.array_split(np.arange(len(p)), 10)]
    statistic = sum((o - e) ** 2 / (e * (1 - e / n)) for o, e, n in groups)
    evidence = metrics.hosmer_lemeshow.test(to_events(np.log(p / (1 - p)), y))
    assert evidence.statistic == pytest.approx(statistic)
    assert evidence.p_value == pytest.approx(chi2.sf(statistic, 10))


def garwood(count: int) -> tuple[float, float]:
    """Return the exact 90 % limits of a Poisson mean by its distribution function."""
    low = brentq(lambda m: poisson.sf(count - 1, m) - 0.05, 1e-9, 60) if count else 0.0
    return low, brentq(lambda m: poisson.cdf(count, m) - 0.05, 1e-9, 60)


@pytest.mark.parametrize("count", [0, 3, 994])
def test_few_events_or_others_have_poisson_limits(count):
    lp = np.full(1000, math.log(0.004 / 0.996))
    interval = metrics.observed_expected.interval(to_events(lp, np.arange(1000) < count), level=0.9)
    low, high = garwood(min(count, 1000 - count))
    low, high = (low, high) if count < 500 else (1000 - high, 1000 - low)
    assert (interval.low, interval.high) == pytest.approx((low / 4, high / 4), rel=1e-6)


def test_separation_one_outcome_and_certain_risks_are_refused_in_one_line():
    lp = np.array([-2.0, -1.0, 0.5, 1.0])
    separated, alike = to_events(lp, [0, 0, 1, 1]), to_events(lp, [1, 1, 1, 1])
    certain = Events(np.array([0.0, 0.3, 0.4, 1.0]), np.array([0.0, 1.0, 0.0, 1.0]))
    for name in ("calibration_slope", "cox"):
        assert code_of(getattr(metrics, name), separated) == "separated"
        assert code_of(getattr(metrics, name), to_events(-lp, [0, 0, 1, 1])) == "separated"
        assert code_of(getattr(metrics, name), to_events(np.zeros(4), [0, 1, 0, 1])) == "separated"
    for name in ("calibration_slope", "cox", "calibration_intercept", "scaled_brier", "average_precision"):
        assert code_of(getattr(metrics, name), alike) == "one_outcome"
    for name in ("calibration_slope", "cox", "calibration_intercept"):
        assert code_of(getattr(metrics, name), certain) == "certain_risks"
    zeros = Events(np.zeros(4), np.ones(4))
    assert code_of(metrics.observed_expected, zeros) == "no_expected_events"
    assert math.isfinite(float(metrics.calibration_intercept(separated)))


def test_metrics_stand_in_measure_check_compare_and_summaries():
    lp, y = problem(10)
    p = Predictions.from_binary_logits(lp, y.astype(int), logits=True)
    table = calibrant.measure(p, metrics=[*INTERVALS, *TESTS])
    assert all(table[name].low <= table[name].value <= table[name].high for name in INTERVALS)
    assert all(0 <= table[name].p_value <= 1 for name in TESTS)
    result = calibrant.check(p, ["observed_expected > 0.1", "calibration_slope < 9", "average_precision > 0"], of=1)
    assert result.status == "holds"
    shifted = Predictions.from_binary_logits(2 * lp, y.astype(int), logits=True)
    difference = metrics.compare(
        p.with_event(1), shifted.with_event(1), names=["calibration_slope", "observed_expected"]
    )
    assert difference["calibration_slope"].second == pytest.approx(difference["calibration_slope"].first / 2)
    assert difference["calibration_slope"].high < 0
    summary = metrics.Summary.from_predictions(p.with_event(1))
    for name in (*INTERVALS, *TESTS):
        assert summary[name] == pytest.approx(float(getattr(metrics, name)(p.with_event(1))), rel=2e-3, abs=2e-3), name


def test_one_class_against_the_rest_is_its_event():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((500, 3))
    p = Predictions(logits, drawn_labels(0.7 * logits, rng))
    for name in ("calibration_slope", "observed_expected", "average_precision"):
        by_class = [float(getattr(metrics, name)(p.with_event(j))) for j in range(3)]
        events = [Events(softmax(logits, 1)[:, j], (p.labels == j).astype(float)) for j in range(3)]
        assert by_class == pytest.approx([float(getattr(metrics, name)(e)) for e in events])
        assert float(getattr(metrics, name)(p.with_event("classes"))) == pytest.approx(np.mean(by_class))


def test_clusters_of_copies_have_the_precision_of_their_first_rows():
    lp, y = problem(13)
    once, clusters = to_events(lp, y), np.arange(len(y)).repeat(5)
    copies = to_events(lp.repeat(5), y.repeat(5), clusters=clusters)
    for name in ("calibration_intercept", "calibration_slope", "observed_expected", "scaled_brier"):
        single, of_copies = (getattr(metrics, name).interval(e) for e in (once, copies))
        assert of_copies.value == pytest.approx(single.value)
        assert (of_copies.high - of_copies.low) == pytest.approx(single.high - single.low, rel=0.15)
    assert metrics.cox.test(copies).p_value == pytest.approx(metrics.cox.test(once).p_value, abs=0.15)


@pytest.mark.parametrize("seed", [1, 2, 5, 9])
def test_recalibration_has_the_coefficients_of_the_metrics(seed):
    lp, y = problem(seed)
    p = Predictions.from_binary_logits(lp, y.astype(int), logits=True).with_event(1)
    line, shift = calibrators.Logistic.fit(p), calibrators.Intercept.fit(p)
    assert float(line.slope) == pytest.approx(float(metrics.calibration_slope(p)), abs=1e-6)
    assert float(shift.bias) == pytest.approx(float(metrics.calibration_intercept(p)), abs=1e-6)
    assert float(shift.slope) == 1.0
    for fitted, names in ((line, ("calibration_intercept", "cox")), (shift, ("calibration_intercept",))):
        after = p.apply(fitted)
        assert [float(getattr(metrics, name)(after)) for name in names] == pytest.approx([0.0] * len(names), abs=1e-5)
        assert float(metrics.observed_expected(after)) == pytest.approx(1.0, abs=1e-6)
    assert float(metrics.calibration_slope(p.apply(line))) == pytest.approx(1.0, abs=1e-6)
    assert float(metrics.calibration_slope(p.apply(shift))) == pytest.approx(float(metrics.calibration_slope(p)))


# Simulations


def population(mean: float, tau: float) -> dict[str, float]:
    """Return the true metrics of log-odds N(mean, 1) with the truth A + B lp and cluster effects N(0, tau^2)."""
    x = np.linspace(mean - 7, mean + 7, 4001)
    w = np.exp(-((x - mean) ** 2) / 2)
    w /= w.sum()
    u, v = np.polynomial.hermite_e.hermegauss(31)
    y = expit(INTERCEPT + SLOPE * x[:, None] + tau * u) @ (v / v.sum())
    q, f, theta, columns = expit(x), w @ y, np.zeros(2), np.stack([np.ones_like(x), x])
    for _ in range(30):
        p = expit(theta @ columns)
        theta = theta + np.linalg.solve((columns * w * p * (1 - p)) @ columns.T, columns @ (w * (y - p)))
    above, hits = ((w * part)[::-1].cumsum()[::-1] for part in (1, y))
    brier = w @ (y * (1 - q) ** 2 + (1 - y) * q**2)
    return {
        "frequency": f,
        "calibration_intercept": brentq(lambda a: w @ (expit(a + x) - y), -9, 9),
        "calibration_slope": theta[1],
        "observed_expected": f / (w @ q),
        "event_brier": brier,
        "scaled_brier": 1 - brier / (f * (1 - f)),
        "average_precision": (w * y) @ (hits / above) / f,
    }


def draw_events(rng: np.random.Generator, n: int, mean: float, size: int, tau: float, a: float, b: float) -> Events:
    cluster = np.arange(n) // size
    common, effect = rng.normal(size=(2, n // size))[:, cluster]
    x = mean + (rng.normal(size=n) if size == 1 else math.sqrt(0.3) * common + math.sqrt(0.7) * rng.normal(size=n))
    y = rng.random(n) < expit(a + b * x + tau * effect)
    return to_events(x, y, clusters=None if size == 1 else cluster)


CELLS = [
    (0.5, 50, 1),
    (0.1, 200, 1),
    (0.01, 1500, 1),
    (0.01, 20_000, 1),
    (0.5, 200, 5),
    (0.1, 1000, 10),
    (0.01, 5000, 10),
]


@pytest.mark.slow
@pytest.mark.parametrize(("prevalence", "n", "size"), CELLS)
def test_intervals_cover_the_truth(prevalence, n, size):
    tau, rng = (0.5, 0.0)[size == 1], np.random.default_rng(0)
    mean = brentq(lambda m: population(m, tau)["frequency"] - prevalence, -12, 12, xtol=1e-6)
    truth = population(mean, tau)
    covered = dict.fromkeys(INTERVALS, 0)
    for _ in range(1000):
        events = draw_events(rng, n, mean, size, tau, INTERCEPT, SLOPE)
        for name in INTERVALS:
            covered[name] += truth[name] in getattr(metrics, name).interval(events)
    assert min(covered.values()) >= 880 - 2 * math.sqrt(90), covered


@pytest.mark.slow
@pytest.mark.parametrize(("mean", "n", "size"), [(0, 100, 1), (-2, 300, 1), (-2, 2000, 1), (-5, 2000, 1), (0, 400, 10)])
def test_tests_keep_their_level(mean, n, size):
    rng, rejected = np.random.default_rng(1), dict.fromkeys(TESTS, 0)
    for _ in range(1000):
        events = draw_events(rng, n, mean, size, 0.0, 0.0, 1.0)
        for name in TESTS:
            rejected[name] += getattr(metrics, name).test(events).p_value <= 0.05
    error = 2 * math.sqrt(1000 * 0.05 * 0.95)
    assert max(rejected.values()) <= 60 + error, rejected
    assert min(rejected.values()) >= 30 - error, rejected
