"""Probabilities of exactly 0 and 1, as forests give them, and the status of certificates."""

import math
from dataclasses import replace

import numpy as np
import pytest
from calibrant.registry import CALIBRATORS
from scipy.special import expit, softmax

from calibrant import Predictions, calibrators, metrics
from calibrant._core.kernels.lbfgs import Minimum
from calibrant.calibrators import Beta, Dirichlet, Matrix, Platt, Quadratic, Temperature, Vector, _temperature
from calibrant.calibrators._fitting import check_status

FINITE = ["Beta", "Dirichlet", "Matrix", "Platt", "Quadratic", "Vector"]  # maps that need finite logits


def forest(n=600, wrong=5, seed=0) -> tuple[Predictions, Predictions]:
    """Return calibrated probabilities with a few certain errors, and as many calibrated ones."""
    rng = np.random.default_rng(seed)
    p = expit(2 * rng.standard_normal(2 * n))
    y = (rng.random(2 * n) < p).astype(int)
    p[:wrong] = 1 - y[:wrong]
    return Predictions.from_probs(p[:n], y[:n]), Predictions.from_probs(p[n:], y[n:])


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_a_few_certain_errors_hardly_change_a_map(name):
    data, fresh = forest()
    fitted = calibrators.fit("FocalTemperature(grid='code')" if name == "FocalTemperature" else name, data)
    after = fresh.apply(fitted)
    lost = 0.05 if name == "HistogramBinning" else 0.03  # a single bin around one half
    assert metrics.accuracy(after) > metrics.accuracy(fresh) - lost
    if name != "FocalMap":  # which learns nothing
        assert metrics.brier(after) < metrics.brier(fresh) + 0.02
    if name in FINITE:
        assert metrics.nll(after) < metrics.nll(fresh) + 0.06
        assert metrics.nll(data.apply(fitted)) < metrics.nll(forest(wrong=0)[0]) + 0.06
        assert fitted.certificate.clipped == 5
        assert "5 examples" in str(fitted.certificate)


@pytest.mark.parametrize("name", ["Platt", "Quadratic", "Beta", "Vector", "Matrix", "Dirichlet"])
def test_certain_answers_get_the_frequency_of_each(name):
    """A single tree gives 0 and 1 only."""
    answers = np.arange(400) % 2
    y = np.where(np.arange(400) % 10 > 0, answers, 1 - answers)  # the answer 0 is wrong in one of five
    data = Predictions.from_probs(answers.astype(float), y)
    settings = "(ridge=1e-9)" if name == "Matrix" else "(penalty=1e-6)" if name == "Dirichlet" else ""
    p = softmax(calibrators.fit(name + settings, data)(data.logits), 1)[:, 1]
    np.testing.assert_allclose(p, np.where(answers == 0, 0.2, 1.0), rtol=0, atol=0.03)


@pytest.mark.parametrize("cls", [Platt, Beta, Quadratic, Vector, Matrix, Dirichlet])
def test_finite_logits_are_not_clipped(cls):
    data, fresh = forest(wrong=0)
    fitted = cls.fit(data)
    assert fitted.certificate.clipped == 0
    limit = getattr(fitted, "limit", None)
    assert float(fitted.floor) == -87 if limit is None else float(limit) == 1e300
    assert np.isfinite(fresh.apply(fitted).logits).all()


@pytest.mark.shared
@pytest.mark.parametrize("model", ["rf", "et"])
def test_real_forests_are_repaired(shared, model):
    if not (shared / "tabular").is_dir():
        pytest.skip("no tabular predictions")
    result = np.load(shared / f"tabular/adult.{model}.0.npz")
    val = Predictions.from_probs(result["val_probs"], result["val_labels"])
    test = Predictions.from_probs(result["test_probs"], result["test_labels"])
    least = {"rf": 0.325, "et": 0.367}[model]
    for name in FINITE:
        after = test.apply(calibrators.fit(name, val))
        assert metrics.nll(after) < least, name
        assert metrics.accuracy(after) > metrics.accuracy(test) - 0.003, name


# Certificates


@pytest.mark.parametrize("status", ["converged", "at bound", "separable"])
def test_status_of_a_map_worse_than_the_identity_is_not_converged(status):
    assert check_status(status, 0.5, 0.4) == check_status(status, 0.5, 0.5) == status
    assert check_status(status, 0.5, 0.5 + 1e-7) == "not converged"
    assert check_status(status, 0.5, 0.51, slack=0.02) == status
    assert check_status(status, 0.5, math.nan) == check_status(status, 0.5, math.inf) == "not converged"
    assert check_status(status, math.inf, math.inf) == status
    assert check_status("grid", 0.5, 0.6) == "grid"


def test_temperature_worse_than_the_identity_is_not_converged(monkeypatch):
    data, _ = forest(wrong=0)
    result = _temperature.fit_nll_temperature(data)
    monkeypatch.setattr(_temperature, "fit_nll_temperature", lambda p: replace(result, nll=result.initial_nll + 0.1))
    assert Temperature.fit(data).certificate.status == "not converged"


@pytest.mark.parametrize(
    ("name", "search"), [("_affine_solver", "minimize"), ("_binary", "newton"), ("_monotone", "newton")]
)
def test_broken_search_is_not_certified(monkeypatch, name, search):
    """The search ends far from any optimum with a gradient of 0."""
    data, _ = forest(wrong=0)
    family = getattr(calibrators, name)

    def broken(f, x, **_):
        return Minimum(np.linspace(-9, 9, len(x)), 0.0, 0.0, 1, (np.zeros(len(x)), np.eye(len(x))))

    monkeypatch.setattr(family, search, broken)
    cls = {"_affine_solver": "Vector", "_binary": "Platt", "_monotone": "Monotone"}[name]
    assert calibrators.fit(cls, data).certificate.status == "not converged"
