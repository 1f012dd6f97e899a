"""Focal calibrators, and the grid search against a loop over the grid."""

import math

import numpy as np
import pytest
import torch
from refusals import refused

from calibrant import Predictions, registry, theory
from calibrant._core.kernels.roots import first_minimum
from calibrant._core.tensors import logit_tensor
from calibrant.calibrators import FocalMap, FocalTemperature, Temperature, _grid_search
from calibrant.calibrators._focal import FOCAL_GRIDS
from calibrant.calibrators._grid_search import MIN_MONOTONE_GAMMA, GridMinimum, search_grid

CRITERIA = ["ece", "ece(bins=10)", "adaptive_ece", "adaptive_ece(edges='mukhoti')", "nll"]
WANG = (np.arange(1, 1001) / 100).tolist()


def problem(n, k, seed, kind="normal", dtype=torch.float64) -> Predictions:
    """Draw logits about 1.7 times too large, with ties, saturated rows, -inf or constant rows."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, dtype=torch.float64, generator=g)
    z[:, 0] += 4 * (torch.rand(n, dtype=torch.float64, generator=g) < 0.3)
    y = torch.multinomial((z / 1.7).softmax(-1), 1, generator=g).squeeze(1)
    if kind == "ties":
        z = z.round()
    if kind == "saturated":
        z = z * torch.where(torch.rand(n, 1, generator=g) < 0.5, 30.0, 1.0)
    if kind == "-inf":
        z[torch.rand(n, k, generator=g) < 0.2] = -math.inf
        z[:, 1] = 0.0
    if kind == "constant":
        z[: n // 3] = 0.0
    return Predictions(z.to(dtype), y)


def loop(data, criterion, gammas, ts) -> GridMinimum:
    """Evaluate the metric everywhere, and take the first strict minimum."""
    metric = registry.METRICS.method(criterion)
    grid = [(gamma, t) for gamma in gammas for t in ts]
    values: list[float] = []
    for gamma, t in grid:
        z = logit_tensor(data).double() / t
        after = theory.focal_map(z, gamma=gamma) if gamma else z
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
    weights = 3 * torch.rand(n, generator=torch.Generator().manual_seed(1))
    data = Predictions(logit_tensor(data), data.labels, weights)
    ts = WANG[3 :: 3 if k == 80 else 30]
    expected = loop(data, criterion, [0.0], ts)
    assert search_grid(data, criterion, [0.0], ts) == expected
    assert expected != loop(Predictions(logit_tensor(data), data.labels), criterion, [0.0], ts)


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
        z = logit_tensor(problem(200, k, 1))
        z[:50, 1] = z[:50].amax(1) - 0.01 * torch.linspace(0, 1, 50)
        log_p = torch.stack([theory.focal_map(z / t, gamma=gamma) for t in WANG[9::50]])
        top = log_p.amax(2, keepdim=True)
        assert top.exp().diff(dim=0).max() < 1e-12
        assert (top - log_p).diff(dim=0).max() < 1e-12


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
            assert float(focal.temperature) == float(plain_temperature.temperature)
        else:
            assert float(focal.temperature) == pytest.approx(float(plain_temperature.temperature), abs=0.006)


@pytest.mark.parametrize("gamma", [-0.5, 1.0])
def test_focal_temperature_finds_the_truth(gamma):
    """Labels drawn from the focal map of z / 1.5: the NLL is least at that (gamma, T)."""
    g = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(20_000, 10, dtype=torch.float64, generator=g)
    p = theory.focal_map(z / 1.5, gamma=gamma).exp()
    data = Predictions(z, torch.multinomial(p, 1, generator=g).squeeze(1))
    fitted = FocalTemperature.fit(data, criterion="nll", grid=([-0.5, 0.0, 0.5, 1.0, 2.0], WANG[4:400:5]))
    assert (float(fitted.gamma), float(fitted.temperature)) == (gamma, pytest.approx(1.5, abs=0.051))


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


@pytest.mark.parametrize("gamma", [-0.9, -0.5, 0.37, 5.0])
def test_saturated_float32_rows_stay_finite_and_keep_their_order(gamma):
    z = torch.tensor([[200.0, 0.0, -200.0], [1e4, 1e4, 0.0], [30.0, 29.0, -30.0], [1e-3, 0.0, 0.0]])
    for calibrator in FocalMap(gamma), FocalTemperature(torch.tensor(0.5), torch.tensor(gamma)):
        after = calibrator(z)
        assert after.dtype == torch.float32
        assert after.isfinite().all()
        assert np.array_equal(after.argsort(dim=-1, stable=True), z.argsort(dim=-1, stable=True))


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
    z, y = logit_tensor(calibrated_predictions) * 2, calibrated_predictions.labels
    full = FocalTemperature.fit(z, y, criterion="nll", grid=([-0.5, 0.5, 1.0], WANG[4:400:5]))
    fixed = FocalTemperature.fit(z, y, criterion="nll", grid=([-0.5, 0.5, 1.0], WANG[4:400:5]), gamma=0.5)
    single = FocalTemperature.fit(z, y, criterion="nll", grid=([0.5], WANG[4:400:5]))
    assert (fixed.gamma, fixed.temperature) == (single.gamma, single.temperature)
    assert fixed.gamma == 0.5
    assert fixed.certificate.status == "grid"
    assert full.certificate.after <= fixed.certificate.after
    with refused("setting_range"):
        FocalTemperature.fit(z, y, gamma=-1.5)
