import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.datasets import make_classification
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant import Predictions, metrics
from calibrant.calibrators import Temperature
from calibrant.integrations.sklearn import CalibratedClassifier, ReliabilityDisplay, scorer


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalibratedClassifier(calibrator="Temperature", cv=2)])
def test_it_is_an_estimator_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [CalibratedClassifier(LogisticRegression(), "Auto", cv=5)],
    expected_failed_checks=lambda _: {
        "check_sample_weight_equivalence_on_dense_data": "copies of a row fall into several folds, a weight into one",
        "check_sample_weight_equivalence_on_sparse_data": "the same",
    },
)
def test_so_it_is_with_the_best_calibrator(estimator, check):
    check(estimator)


def test_probabilities_become_better():
    X, y = make_classification(2000, 20, n_informative=6, n_redundant=10, n_classes=3, random_state=0)
    names = np.array(["a", "b", "c"])[y]
    raw = GaussianNB().fit(X[:1000], names[:1000])
    better = CalibratedClassifier(GaussianNB(), "StructuredMatrix", cv=3).fit(X[:1000], names[:1000])
    assert log_loss(names[1000:], better.predict_proba(X[1000:])) < 0.9 * log_loss(
        names[1000:], raw.predict_proba(X[1000:])
    )
    assert set(better.predict(X)) <= set("abc")


@pytest.fixture(scope="module")
def problem():
    X, y = make_classification(1500, 12, n_informative=5, n_redundant=5, n_classes=3, random_state=1)
    return X, np.array(["ant", "bee", "cow"])[y]


def test_a_fitted_model_stays_as_it_is(problem):
    X, y = problem
    model = GaussianNB().fit(X[:500], y[:500])
    better = CalibratedClassifier(FrozenEstimator(model), "Temperature").fit(X[500:1000], y[500:1000])
    p = Predictions.from_probs(model.predict_proba(X[500:1000]), np.searchsorted(model.classes_, y[500:1000]))
    expected = Temperature.fit(p)(Predictions.from_probs(model.predict_proba(X), np.zeros(len(X), int)).logits)
    np.testing.assert_allclose(better.predict_proba(X), expected.softmax(1).numpy(), atol=1e-9)
    assert log_loss(y[1000:], better.predict_proba(X[1000:])) < log_loss(y[1000:], model.predict_proba(X[1000:]))
    few = CalibratedClassifier(FrozenEstimator(model), "Temperature").fit(
        X[500:1000][y[500:1000] != "cow"], y[500:1000][y[500:1000] != "cow"]
    )
    assert few.predict_proba(X[:5]).shape == (5, 3)  # a class without examples is still one


@pytest.mark.parametrize("classes", [2, 3])
def test_scores_without_probabilities_are_calibrated(classes):
    X, y = make_classification(1200, 12, n_informative=6, n_classes=classes, random_state=2)
    made = CalibratedClassifier(LinearSVC(), "StructuredMatrix", cv=3).fit(X[:600], y[:600])
    probs = made.predict_proba(X[600:])
    assert probs.shape == (600, classes)
    prior = np.bincount(y[:600]) / 600
    assert log_loss(y[600:], probs) < 0.9 * log_loss(y[600:], np.tile(prior, (600, 1)))


def test_weights_count(problem):
    X, y = problem
    weights = np.random.default_rng(0).integers(1, 4, 600)
    model = FrozenEstimator(GaussianNB().fit(X[600:], y[600:]))
    rows = np.repeat(np.arange(600), weights)
    one = CalibratedClassifier(model, "Temperature").fit(X[:600], y[:600], sample_weight=weights / 7)
    other = CalibratedClassifier(model, "Temperature").fit(X[rows], y[rows])
    assert float(one.calibrator_.temperature) == pytest.approx(float(other.calibrator_.temperature), rel=1e-6)


def test_scorers_choose_models(problem):
    X, y = problem
    scores = cross_val_score(GaussianNB(), X, y, scoring=scorer("nll"), cv=3)
    expected = cross_val_score(GaussianNB(), X, y, scoring="neg_log_loss", cv=3)
    np.testing.assert_allclose(scores, expected, atol=1e-6)
    np.testing.assert_allclose(
        cross_val_score(GaussianNB(), X, y, scoring=scorer("accuracy"), cv=3), cross_val_score(GaussianNB(), X, y, cv=3)
    )
    found = GridSearchCV(GaussianNB(), {"var_smoothing": [1e-9, 1.0]}, scoring=scorer("smooth_ece"), cv=3).fit(X, y)
    assert found.best_score_ == max(found.cv_results_["mean_test_score"])


def test_a_display_in_one_line(problem):
    X, y = problem
    model = GaussianNB().fit(X, y)
    shown = ReliabilityDisplay.from_estimator(model, X, y, ax=Figure().add_subplot())
    bins = metrics.tables.bins(shown.predictions)
    assert len(shown.ax_.patches) == 2 * int((bins.count > 0).sum())
    two = ReliabilityDisplay.from_predictions(["no", "yes", "yes"], [0.2, 0.9, 0.4], ax=Figure().add_subplot())
    assert two.ax_.get_xlabel() == "probability of yes"
    assert shown.predictions.class_names == ("ant", "bee", "cow")
