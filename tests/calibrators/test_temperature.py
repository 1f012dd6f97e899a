import numpy as np
import pytest
from drawn import drawn_labels
from refusals import refused
from scipy.optimize import brentq

from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature


def problem(k, n=3000, temperature=1.7, seed=0):
    """Draw logits, and labels at a temperature."""
    rng = np.random.default_rng(seed)
    logits = 2 * rng.standard_normal((n, k))
    return logits, drawn_labels(logits / temperature, rng)


def root_of_the_slope(z, y):
    """Solve mean(z_y) = mean(E_p z) for 1/T in numpy."""

    def slope(b):
        e = np.exp(b * (z - z.max(1, keepdims=True)))
        return np.mean((e / e.sum(1, keepdims=True) * z).sum(1) - z[np.arange(len(y)), y])

    return 1 / brentq(slope, 1e-3, 1e3, xtol=1e-15, rtol=1e-14)


@pytest.mark.parametrize("k", [2, 10, 100])
def test_agrees_with_an_independent_root_find(k):
    logits, labels = problem(k)
    fitted = Temperature.fit(logits, labels)
    assert fitted.temperature == pytest.approx(root_of_the_slope(logits, labels), rel=1e-8)
    assert fitted.certificate.status == "converged"
    assert fitted.certificate.iterations <= 8
    assert fitted.certificate.gradient < 1e-6  # by the series of the last pass
    assert fitted.certificate.after == pytest.approx(float(metrics.nll(fitted(logits), labels)), rel=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_large_data_agree_with_an_independent_root_find(dtype):
    logits, labels = problem(10, n=40_000)
    logits = logits.astype(dtype)
    logits[::7, 3] = logits[::7].max(1)  # ties
    logits[1::2, 4] = -np.inf
    logits, labels = logits[labels != 4], labels[labels != 4]
    fitted = Temperature.fit(logits, labels)
    finite = np.maximum(logits.astype(float), -1e4)
    assert fitted.temperature == pytest.approx(root_of_the_slope(finite, labels), rel=1e-9)
    certificate = fitted.certificate
    assert certificate.iterations <= 4
    assert certificate.nll_before == pytest.approx(float(metrics.nll(logits, labels)), rel=1e-12)
    assert certificate.nll_after == pytest.approx(float(metrics.nll(fitted(logits.astype(float)), labels)), rel=1e-12)
    assert certificate.accuracy_before == float(metrics.accuracy(logits, labels))


@pytest.mark.parametrize(("n", "k"), [(500, 5), (30_000, 10)])
def test_integer_weights_equal_copies(n, k):
    """Also for data so large that the search starts on a sample."""
    logits, labels = problem(k, n=n)
    weights = np.arange(n) % 3
    rows = np.arange(n).repeat(weights)
    first, second = Temperature.fit(logits, labels, weights), Temperature.fit(logits[rows], labels[rows])
    assert float(first.temperature) == pytest.approx(float(second.temperature), rel=1e-9)
    for name in ("nll_before", "nll_after", "accuracy_before"):
        assert getattr(first.certificate, name) == pytest.approx(getattr(second.certificate, name), rel=1e-9), name
    # evaluated up to 3e-4 from the end
    assert first.certificate.standard_error == pytest.approx(second.certificate.standard_error, rel=1e-3)
    assert first.certificate.data == Predictions(logits, labels).digest


def test_a_sample_without_errors_does_not_hide_those_of_the_rest():
    logits, _ = problem(10, n=40_000)
    labels = logits.argmax(-1)
    labels[[1, 5, 777, 1003]] = logits[[1, 5, 777, 1003]].argmin(-1)  # no multiple of 16
    fitted = Temperature.fit(logits, labels)
    assert fitted.certificate.status == "converged"
    assert fitted.temperature == pytest.approx(root_of_the_slope(logits, labels), rel=1e-8)


@pytest.mark.shared
def test_agrees_on_real_predictions(shared):
    names = sorted(path.name for path in (shared / "logits").glob("*.val.npz"))
    assert names
    for name in names:
        data = Predictions.load(shared / "logits" / name).double()
        fitted = Temperature.fit(data)
        assert fitted.temperature == pytest.approx(root_of_the_slope(data.logits, data.labels), rel=1e-8), name
        assert fitted.certificate.iterations <= 8, name


def test_agrees_with_scikit_learn_to_its_own_tolerance():
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.frozen import FrozenEstimator

    logits, labels = problem(10)

    class LogitClassifier(ClassifierMixin, BaseEstimator):
        classes_ = np.arange(10)

        def __sklearn_is_fitted__(self):
            return True

        def fit(self, x, y):
            return self

        def predict(self, x):
            return x.argmax(1)

        def decision_function(self, x):
            return x

    theirs = CalibratedClassifierCV(FrozenEstimator(LogitClassifier()), method="temperature")
    theirs.fit(logits, labels)
    beta = theirs.calibrated_classifiers_[0].calibrators[0].beta_
    assert 1 / float(Temperature.fit(logits, labels).temperature) == pytest.approx(float(beta), rel=1e-3)


@pytest.mark.slow
def test_standard_error_agrees_with_the_bootstrap():
    logits, labels = problem(5, n=2000)
    rng, again = np.random.default_rng(0), []
    for _ in range(100):
        rows = rng.integers(2000, size=2000)
        again.append(float(Temperature.fit(logits[rows], labels[rows]).temperature))
    assert Temperature.fit(logits, labels).certificate.standard_error == pytest.approx(np.std(again), rel=0.2)


@pytest.mark.parametrize(("labels", "status", "nll"), [("argmax", "separable", 0.0), ("argmin", "at bound", np.log(5))])
def test_status_tells_that_there_is_no_optimum(labels, status, nll):
    logits, _ = problem(5, n=200)
    fitted = Temperature.fit(logits, getattr(logits, labels)(-1))
    assert fitted.certificate.status == status
    assert fitted.certificate.after == pytest.approx(nll, abs=1e-12 if nll == 0 else 1e-6)
    assert (fitted.certificate.separable, fitted.certificate.at_bound) == (nll == 0, nll > 0)
    assert np.isfinite(fitted(logits)).all()
    assert fitted.temperature > 0


def test_grid_search_takes_the_first_strict_minimum():
    logits, labels = problem(5, n=500)
    grid = [0.5, 1.0, 1.5, 2.0, 2.5]
    values = [float(metrics.ece(logits / t, labels)) for t in grid]
    fitted = Temperature.fit(logits, labels, criterion="ece", grid=grid)
    assert fitted.temperature == grid[int(np.argmin(values))]
    assert fitted.certificate.after == pytest.approx(min(values), abs=1e-12)
    flat = Temperature.fit(np.zeros((4, 2)), [0, 0, 0, 1], criterion="ece", grid=grid)
    assert float(flat.temperature) == 0.5  # all are equal: the first


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("mukhoti", 100, 0.1, 10.0),
        ("wang", 1000, 0.01, 10.0),
        ("komisarenko", 500, 0.01, 5.0),
        ("komisarenko_code", 100, 0.05, 5.0),
    ],
)
def test_grids_of_the_papers(name, count, first, last):
    from calibrant.calibrators._temperature import temperature_grid

    grid = temperature_grid(name)
    assert len(grid) == count
    assert (grid[0], grid[-1]) == pytest.approx((first, last))


def test_unusable_grids_are_refused():
    logits, labels = problem(3, n=50)
    for grid in "guo", [0.0, 1.0], [1.0, float("inf")]:
        with refused("setting_range", "grid"):
            Temperature.fit(logits, labels, criterion="ece", grid=grid)
    with refused("grid_range"):
        Temperature.fit(logits, labels, criterion="ece", grid=[])
