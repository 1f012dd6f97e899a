"""Focal calibrators, and the grid search against a loop over the grid."""

import math

import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused
from scipy.special import log_softmax, logsumexp

from calibrant import Predictions, registry
from calibrant._core.kernels.roots import first_minimum
from calibrant.calibrators import FocalMap, FocalTemperature, Temperature, _grid_search, maps
from calibrant.calibrators._focal import FOCAL_GRIDS
from calibrant.calibrators._grid_search import MIN_MONOTONE_GAMMA, GridMinimum, search_grid

CRITERIA = ["ece", "ece(bins=10)", "adaptive_ece", "adaptive_ece(edges='mukhoti')", "nll"]
WANG = (np.arange(1, 1001) / 100).tolist()


def problem(n, k, seed, kind="normal") -> Predictions:
    """Draw logits about 1.7 times too large, with ties, saturated rows, -inf or constant rows."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.standard_normal((n, k))
    z[:, 0] += 4 * (rng.random(n) < 0.3)
    y = drawn_labels(z / 1.7, rng)
    if kind == "ties":
        z = z.round()
    if kind == "saturated":
        z = z * rng.choice([30.0, 1.0], (n, 1))
    if kind == "-inf":
        z[rng.random((n, k)) < 0.2] = -math.inf
        z[:, 1] = 0.0
    if kind == "constant":
        z[: n // 3] = 0.0
    return Predictions(z, y)


def focal_map(z, gamma) -> np.ndarray:
    """Return the log of q / g with q = softmax(z), o = 1 - q and g = o^gamma (1 - gamma q log q / o), normalized."""
    log_o = np.stack([logsumexp(np.delete(z, j, 1), 1) for j in range(z.shape[1])], 1) - logsumexp(z, 1)[:, None]
    log_q = np.where(log_o < -0.7, np.log1p(-np.exp(np.minimum(log_o, -0.7))), log_softmax(z, 1))
    r = np.where(log_o < -40, 1.0, -log_q * np.exp(np.maximum(log_q, -1e4) - np.maximum(log_o, -40)))
    return log_softmax(log_q - gamma * log_o - np.log1p(gamma * r), 1)


def loop(data, criterion, gammas, ts) -> GridMinimum:
    """Evaluate the metric everywhere, and take the first strict minimum."""
    metric = registry.METRICS.method(criterion)
    grid = [(gamma, t) for gamma in gammas for t in ts]
    values: list[float] = []
    for gamma, t in grid:
        after = focal_map(data.logits / t, gamma) if gamma else data.logits / t
        values.append(float(metric(after, data.labels, data.weights)))
    best, value = first_minimum(values.__getitem__, range(len(grid)))
    return GridMinimum(*grid[best], value)


@pytest.mark.parametrize("kind", ["normal", "ties", "saturated", "-inf", "constant"])
@pytest.mark.parametrize(("n", "k"), [(250, 2), (201, 10), pytest.param(150, 80, marks=pytest.mark.slow)])
def test_search_agrees_with_the_loop(n, k, kind):
    ts = WANG[3 :: 3 if k == 80 else 30]
    for seed, criterion in enumerate(CRITERIA if k < 80 else CRITERIA[1::2]):
        data = problem(n, k, seed, kind)
        expected = loop(data, criterion, [0.0], ts)
        assert search_grid(data, criterion, [0.0], ts) == expected


@pytest.mark.parametrize("criterion", [*CRITERIA, "ece(norm=2)", "nll(among='wrong')"])
@pytest.mark.parametrize(("n", "k"), [(201, 10), pytest.param(150, 80, marks=pytest.mark.slow)])
def test_search_with_weights_agrees_with_the_loop(n, k, criterion):
    data = problem(n, k, 0)
    weights = 3 * np.random.default_rng(1).random(n)
    data = Predictions(data.logits, data.labels, weights)
    ts = WANG[3 :: 3 if k == 80 else 30]
    expected = loop(data, criterion, [0.0], ts)
    assert search_grid(data, criterion, [0.0], ts) == expected
    assert expected != loop(Predictions(data.logits, data.labels), criterion, [0.0], ts)


def test_search_evaluates_the_event_of_the_predictions():
    """The event is class 1 of two, not the top class."""
    data = problem(300, 2, 5).with_event(1)
    ts = WANG[9::20]
    metric = registry.METRICS.method("ece")
    values = [float(metric(data.apply(lambda z, t=t: z / t))) for t in ts]
    result = search_grid(data, "ece", [0.0], ts)
    assert (result.temperature, result.value) == (ts[int(np.argmin(values))], min(values))


@pytest.mark.slow
@pytest.mark.parametrize("k", [2, 5, 10, 64, 100, 300])
def test_search_agrees_with_the_loop_on_many_problems(k):
    ts = WANG[::3]
    for seed, kind in enumerate(["normal", "saturated", "ties"]):
        data = problem(1000, k, seed, kind)
        for criterion in CRITERIA[:4] if k < 64 else CRITERIA[seed : seed + 1]:
            expected = loop(data, criterion, [0.0], ts)
            assert search_grid(data, criterion, [0.0], ts) == expected


@pytest.mark.parametrize("criterion", ["ece", "adaptive_ece", "nll"])
@pytest.mark.parametrize(("n", "k"), [(1500, 3), (1000, 20)])
def test_bounds_leave_out_most_of_the_grid(monkeypatch, n, k, criterion):
    evaluated: list[float] = []
    apply_point = _grid_search._apply_point
    monkeypatch.setattr(_grid_search, "_apply_point", lambda p, *at: evaluated.append(at[1]) or apply_point(p, *at))
    data, ts = problem(n, k, 2), WANG[::-4]
    assert search_grid(data, criterion, [0.0], ts) == loop(data, criterion, [0.0], ts)
    assert len(evaluated) < len(ts) / 2


@pytest.mark.parametrize("gamma", [MIN_MONOTONE_GAMMA, -0.3, 0.0, 0.37, 5.0, 100.0])
def test_confidence_and_lead_of_the_focal_map_never_rise_with_the_temperature(gamma):
    """The bounds of the search need it: p_top, and p_top / p_j for every class j."""
    for k in 2, 5, 100:
        z = problem(200, k, 1).logits.copy()
        z[:50, 1] = z[:50].max(1) - 0.01 * np.linspace(0, 1, 50)
        log_p = np.stack([maps.focal_map(z / t, gamma) for t in WANG[9::50]])
        top = log_p.max(2, keepdims=True)
        assert np.diff(np.exp(top), axis=0).max() < 1e-12
        assert np.diff(top - log_p, axis=0).max() < 1e-12


@pytest.mark.parametrize(
    "criterion",
    ["ece(norm=2)", "ece(edges='equal_mass')", "mce", "nll(among='wrong')", "nll(among='all')"],
)
def test_search_respects_every_setting_of_a_metric(criterion):
    ts = [i / 10 for i in range(1, 60)]
    for seed in range(3):
        data = problem(300, 4, seed)
        assert search_grid(data, criterion, [0.0], ts) == loop(data, criterion, [0.0], ts)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize(("n", "k"), [(300, 3), pytest.param(100, 64, marks=pytest.mark.slow)])
def test_search_over_gamma_agrees_with_the_loop(n, k, criterion):
    data = problem(n, k, 1, "saturated" if k == 3 else "normal")
    gammas, ts = [-0.75, -0.25, 0.0, 0.37, 3.0], WANG[9 : 500 : (12 if k == 3 else 1)][:301]
    gammas = gammas if k == 3 else [-0.75, 3.0]
    result, expected = search_grid(data, criterion, gammas, ts), loop(data, criterion, gammas, ts)
    assert (result.gamma, result.temperature) == (expected.gamma, expected.temperature)
    assert result.value == pytest.approx(expected.value, rel=1e-12)  # by another implementation of the focal map


def test_focal_temperature_at_gamma_0_is_temperature():
    data = problem(500, 5, 2)
    for criterion in "nll", "ece":
        focal = FocalTemperature.fit(data, criterion=criterion, grid=([0.0], WANG))
        plain_temperature = Temperature.fit(data, criterion=criterion, grid="wang")
        if criterion == "ece":
            assert focal.temperature == plain_temperature.temperature
        else:
            assert focal.temperature == pytest.approx(plain_temperature.temperature, abs=0.006)


@pytest.mark.parametrize("gamma", [-0.5, 1.0])
def test_focal_temperature_finds_the_truth(gamma):
    """Labels drawn from the focal map of z / 1.5: the NLL is least at that (gamma, T)."""
    rng = np.random.default_rng(0)
    z = 3 * rng.standard_normal((20_000, 10))
    data = Predictions(z, drawn_labels(focal_map(z / 1.5, gamma), rng))
    fitted = FocalTemperature.fit(data, criterion="nll", grid=([-0.5, 0.0, 0.5, 1.0, 2.0], WANG[4:400:5]))
    assert (fitted.gamma, fitted.temperature) == (gamma, pytest.approx(1.5, abs=0.051))


def test_grids_are_those_of_the_paper():
    gammas, ts = FOCAL_GRIDS["text"]
    assert (len(gammas), len(ts), ts[0], ts[-1]) == (9, 500, 0.01, 5.0)
    gammas, ts = FOCAL_GRIDS["code"]
    assert (len(ts), ts[0], ts[-1]) == (100, 0.05, 5.0)
    assert min(gammas) > -1


@pytest.mark.parametrize("criterion", ["nll", "adaptive_ece"])
def test_line_search_nearly_reaches_the_minimum_of_the_grid(criterion):
    data = problem(2000, 10, 3)
    full = FocalTemperature.fit(data, criterion=criterion, grid="code")
    line = FocalTemperature.fit(data, criterion=criterion, grid="code", search="line")
    gain = full.certificate.before - full.certificate.after
    assert line.certificate.after - full.certificate.after < 0.1 * gain
    assert line.certificate.iterations == 300
    assert full.certificate.iterations == 1000


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("gamma", [-0.9, -0.5, 0.37, 5.0])
def test_saturated_float32_rows_stay_finite_and_keep_their_order(library, gamma):
    xp = pytest.importorskip(library)
    rows = [[200.0, 0.0, -200.0], [1e4, 1e4, 0.0], [30.0, 29.0, -30.0], [1e-3, 0.0, 0.0]]
    z = xp.asarray(rows, dtype=xp.float32)
    for calibrator in FocalMap(gamma), FocalTemperature(0.5, gamma):
        after = calibrator(z)
        assert after.dtype == xp.float32
        assert xp.isfinite(after).all()
        assert (xp.argsort(after, axis=-1, stable=True) == xp.argsort(z, axis=-1, stable=True)).all()


def test_wrong_grids_are_refused():
    data = problem(20, 3, 0)
    for grid in "komisarenko", ([-1.0], [1.0]), ([0.0], [0.0]):
        with refused("setting_range", "grid"):
            FocalTemperature.fit(data, grid=grid)
    with refused("grid_range"):
        FocalTemperature.fit(data, grid=([], [1.0]))
    with refused("setting_range"):
        FocalMap.fit(data, gamma=-1.0)


def test_fixed_gamma_fits_the_temperature_only(calibrated_predictions):
    z, y = calibrated_predictions.logits * 2, calibrated_predictions.labels
    full = FocalTemperature.fit(z, y, criterion="nll", grid=([-0.5, 0.5, 1.0], WANG[4:400:5]))
    fixed = FocalTemperature.fit(z, y, criterion="nll", grid=([-0.5, 0.5, 1.0], WANG[4:400:5]), gamma=0.5)
    single = FocalTemperature.fit(z, y, criterion="nll", grid=([0.5], WANG[4:400:5]))
    assert (fixed.gamma, fixed.temperature) == (single.gamma, single.temperature)
    assert fixed.gamma == 0.5
    assert fixed.certificate.status == "grid"
    assert full.certificate.after <= fixed.certificate.after
    with refused("setting_range"):
        FocalTemperature.fit(z, y, gamma=-1.5)
