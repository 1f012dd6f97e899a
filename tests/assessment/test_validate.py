"""Internal validation: published formulas, an independent bootstrap, units, centers, refusals, and truth."""

import json
import math

import numpy as np
import pytest
from refusals import code_of
from scipy.special import expit, logit
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from calibrant import validate
from calibrant.assessment._validate import performance, random_effects
from calibrant.metrics import fit_logistic

LOGISTIC = LogisticRegression(C=np.inf, solver="newton-cholesky")


def draw(n, variables, seed, strength=0.5):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, variables))
    y = (rng.random(n) < expit(x[:, :3].sum(1) * strength - 0.5)).astype(int)
    return x, y


# The logistic fit


@pytest.mark.parametrize("seed", range(5))
def test_logistic_fit_equals_that_of_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    x, y = draw(200, 3, seed)
    weights = rng.integers(1, 4, 200).astype(float)
    expected = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(x, y, sample_weight=weights)
    fitted = fit_logistic(np.column_stack([np.ones(200), x]), y, weights)
    assert fitted.coefficients == pytest.approx([*expected.intercept_, *expected.coef_[0]], abs=1e-6)
    p = expected.predict_proba(x)[:, 1]
    assert fitted.log_likelihood == pytest.approx(weights @ np.log(np.where(y == 1, p, 1 - p)), abs=1e-6)


def test_logistic_fit_with_an_offset_solves_its_equation():
    x, y = draw(300, 3, seed=9)
    offset = 2 * x[:, 0]
    fitted = fit_logistic(np.ones((300, 1)), y, offset=offset)
    p = expit(fitted.coefficients[0] + offset)
    assert p.mean() == pytest.approx(y.mean(), abs=1e-9)  # the likelihood equation of the intercept
    assert fitted.covariance[0, 0] == pytest.approx(1 / (p * (1 - p)).sum(), rel=1e-6)


@pytest.mark.parametrize("cut", [-10.0, 0.0, 1.0])
def test_separated_outcomes_are_refused(cut):
    x = np.random.default_rng(0).standard_normal(100)
    assert code_of(fit_logistic, np.column_stack([np.ones(100), x]), (x > cut).astype(float)) == "separation"


# Optimism


def reference_performance(risk, y):
    """Return the four measures by scikit-learn and by bisection of the likelihood equation."""
    lp = logit(risk)
    slope = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-12).fit(lp[:, None], y).coef_[0, 0]
    low, high = -20.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expit(middle + lp).mean() < y.mean() else (low, middle)
    return np.array([slope, low, np.mean((risk - y) ** 2), roc_auc_score(y, risk)])


def test_bootstrap_equals_harrells_formula():
    """Corrected = apparent - mean over resamples of (performance in the resample - in the original data)."""
    x, y = draw(150, 5, seed=1)
    result = validate(LOGISTIC, x, y, repeats=20, seed=4)
    rng, optimism = np.random.default_rng(4), []
    for _ in range(20):
        rows = rng.integers(150, size=150)
        risk = LOGISTIC.fit(x[rows], y[rows]).predict_proba(x)[:, 1]
        optimism.append(reference_performance(risk[rows], y[rows]) - reference_performance(risk, y))
    apparent = reference_performance(LOGISTIC.fit(x, y).predict_proba(x)[:, 1], y)
    for row, value, differences in zip(result.rows, apparent, np.array(optimism).T, strict=True):
        assert row.apparent == pytest.approx(value, abs=1e-6)
        assert row.optimism == pytest.approx(differences.mean(), abs=1e-6)
        assert row.corrected == pytest.approx(value - differences.mean(), abs=1e-6)
    assert result["slope"].apparent == pytest.approx(1, abs=1e-4)  # maximum likelihood
    assert result["slope"].corrected < 0.95


def test_cross_fitting_equals_out_of_fold_performance():
    x, y = draw(120, 4, seed=2)
    result = validate(LOGISTIC, x, y, method="cross-fitting", repeats=3, folds=5, seed=1)
    rng, values = np.random.default_rng(1), []
    for _ in range(3):
        fold, risk = rng.permutation(120) % 5, np.zeros(120)
        for j in range(5):
            risk[fold == j] = LOGISTIC.fit(x[fold != j], y[fold != j]).predict_proba(x[fold == j])[:, 1]
        values.append(reference_performance(risk, y))
    assert [row.corrected for row in result.rows] == pytest.approx(np.mean(values, axis=0), abs=1e-6)


def test_methods_agree_on_much_data():
    x, y = draw(600, 4, seed=3)
    first, second = (
        validate(LOGISTIC, x, y, method=m, repeats=r) for m, r in (("bootstrap", 50), ("cross-fitting", 5))
    )
    assert first["slope"].corrected == pytest.approx(second["slope"].corrected, abs=0.03)
    assert first["auroc"].corrected == pytest.approx(second["auroc"].corrected, abs=0.01)


def test_units_are_drawn_as_a_whole():
    """With every example twice, resampling pairs equals resampling the single examples."""
    x, y = draw(100, 4, seed=5)
    single = validate(LOGISTIC, x, y, repeats=10, seed=2)
    doubled = validate(LOGISTIC, np.tile(x, (2, 1)), np.tile(y, 2), repeats=10, seed=2, clusters=np.tile(range(100), 2))
    assert doubled["slope"].corrected == pytest.approx(single["slope"].corrected, abs=1e-4)
    independent = validate(LOGISTIC, np.tile(x, (2, 1)), np.tile(y, 2), repeats=60)
    alike = validate(LOGISTIC, np.tile(x, (2, 1)), np.tile(y, 2), repeats=60, clusters=np.tile(range(100), 2))
    assert independent["slope"].corrected > alike["slope"].corrected


def test_estimators_are_cloned_and_take_data_frames():
    x, y = draw(200, 3, seed=6)
    pandas = pytest.importorskip("pandas")
    frame, words = pandas.DataFrame(x, columns=list("abc")), np.where(y == 1, "sick", "healthy")
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    texts = []
    result = validate(pipeline, frame, words, repeats=5, progress=texts.append)
    assert not hasattr(pipeline[-1], "coef_")
    assert len(texts) == 6
    assert result["slope"].apparent > 1  # penalized
    assert result["slope"].optimism == pytest.approx(validate(pipeline, x, y, repeats=5)["slope"].optimism, abs=1e-9)
    assert (result.n, result.variables, result.events) == (200, 3, min(y.sum(), 200 - y.sum()))


def test_risks_of_0_and_1_leave_out_slope_and_intercept():
    x, y = draw(150, 3, seed=7)
    result = validate(RandomForestClassifier(5, random_state=0), x, y, repeats=3)
    assert math.isnan(result["slope"].corrected)
    assert 0.5 < result["auroc"].corrected < result["auroc"].apparent
    assert any("between 0 and 1" in note for note in result.notes)
    assert json.loads(result.json())["rows"][0]["corrected"] is None


def test_few_events_per_variable_are_said():
    scarce, ample = (validate(LOGISTIC, *draw(n, 10, seed=8, strength=0.2), repeats=3) for n in (60, 600))
    assert any("do not trust it" in note for note in scarce.notes)
    assert not ample.notes
    assert "Corrected calibration slope" in ample.document().title


def test_auroc_and_intercept_of_known_risks():
    risk, y = np.array([0.1, 0.4, 0.35, 0.8] * 5), np.array([0, 0, 1, 1] * 5)
    measured = performance(risk, y.astype(float))
    assert measured["auroc"][0] == pytest.approx(0.75)
    assert expit(measured["intercept"][0] + logit(risk)).mean() == pytest.approx(0.5, abs=1e-9)


# Centers


def test_random_effects_equal_published_numbers():
    """The trials of BCG vaccines (Colditz et al. 1994): tau^2 = .3132 and mean -.7145, se .1798 (Viechtbauer 2010)."""
    treated = [(4, 119), (6, 300), (3, 228), (62, 13536), (33, 5036), (180, 1361), (8, 2537), (505, 87886), (29, 7470)]
    treated += [(17, 1699), (186, 50448), (5, 2493), (27, 16886)]
    control = [(11, 128), (29, 274), (11, 209), (248, 12619), (47, 5761), (372, 1079), (10, 619), (499, 87892)]
    control += [(45, 7232), (65, 1600), (141, 27197), (3, 2338), (29, 17825)]
    (a, b), (c, d) = np.array(treated).T, np.array(control).T
    ratio = np.log(a / (a + b)) - np.log(c / (c + d))
    error = np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))
    effect = random_effects("ratio", ratio, error, level=0.95)
    assert effect.deviation**2 == pytest.approx(0.3132, abs=1e-4)
    assert effect.mean.value == pytest.approx(-0.7145, abs=1e-4)
    assert (effect.mean.high - effect.mean.value) / 2.1788 == pytest.approx(0.1798, abs=1e-4)  # t of 12 degrees
    half = 2.2010 * math.sqrt(0.3132 + 0.1798**2)  # t of 11 degrees
    assert effect.prediction.high == pytest.approx(-0.7145 + half, abs=1e-3)


def test_equal_centers_do_not_differ():
    effect = random_effects("slope", np.full(4, 0.9), np.array([0.1, 0.2, 0.1, 0.3]), level=0.9)
    assert effect.deviation == 0
    assert effect.mean.value == pytest.approx(0.9)


def test_centers_are_left_out_in_turn():
    x, y = draw(800, 3, seed=10)
    center = np.random.default_rng(0).integers(0, 5, 800)
    y[center == 4] = 1 - y[center == 4]  # where the model is wrong
    result = validate(LOGISTIC, x, y, repeats=3, centers=[f"center {i}" for i in center])
    assert [c.name for c in result.centers] == [f"center {i}" for i in range(5)]
    model = LOGISTIC.fit(x[center != 4], y[center != 4])
    expected = reference_performance(model.predict_proba(x[center == 4])[:, 1], y[center == 4])
    assert result.centers[4].values["slope"][0] == pytest.approx(expected[0], abs=1e-5)
    assert result.centers[4].values["intercept"][0] == pytest.approx(expected[1], abs=1e-5)
    slope = result.heterogeneity[0]
    assert slope.deviation > 0.3
    assert slope.prediction.low < slope.mean.low < slope.mean.high < slope.prediction.high
    assert any("5 centers are few" in note for note in result.notes)
    assert "in a new center" in str(result)


@pytest.mark.slow
def test_prediction_intervals_hold_for_a_new_center():
    rng, hits = np.random.default_rng(0), 0
    for _ in range(1000):
        error = rng.uniform(0.05, 0.2, 8)
        value = 1 + 0.2 * rng.standard_normal(8) + error * rng.standard_normal(8)
        hits += 1 + 0.2 * rng.standard_normal() in random_effects("slope", value, error, level=0.9).prediction
    assert 860 < hits < 950


# Refusals


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"estimator": SVC()}, "no_probabilities"),
        ({"y": np.arange(60) % 3}, "num_outcomes"),
        ({"y": np.ones(60)}, "num_outcomes"),
        ({"method": "jackknife"}, "method"),
        ({"centers": np.arange(60) % 2}, "num_centers"),
        ({"clusters": np.arange(59)}, "shape"),
        ({"clusters": np.arange(60) % 4, "method": "cross-fitting"}, "folds_range"),
        ({"repeats": 1}, "repeats_range"),
    ],
)
def test_validate_refuses(changes, code):
    x, y = draw(60, 2, seed=0)
    settings = {"estimator": LOGISTIC, "X": x, "y": y, "repeats": 2} | changes
    assert (
        code_of(lambda: validate(settings.pop("estimator"), settings.pop("X"), settings.pop("y"), **settings)) == code
    )


@pytest.mark.slow
def test_corrected_slope_is_that_of_new_data():
    """Over 100 data sets of 400 examples and 8 variables, the mean corrected slope is the true one within .03."""
    x_new, _ = draw(20_000, 8, seed=10**6)
    true_logit = x_new[:, :3].sum(1) * 0.5 - 0.5
    differences = []
    for seed in range(100):
        x, y = draw(400, 8, seed)
        risk = LOGISTIC.fit(x, y).predict_proba(x_new)[:, 1]
        truth = fit_logistic(np.column_stack([np.ones(20_000), logit(risk)]), expit(true_logit)).coefficients[1]
        differences.append(validate(LOGISTIC, x, y, repeats=50)["slope"].corrected - truth)
    assert abs(np.mean(differences)) < 0.03 + 2 * np.std(differences) / 10
