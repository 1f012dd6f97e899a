import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB
from sklearn.utils.estimator_checks import parametrize_with_checks

from calibrant.integrations.sklearn import CalibratedClassifier


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalibratedClassifier(calibrator="Temperature", cv=2)])
def test_it_is_an_estimator_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([CalibratedClassifier(LogisticRegression(), "Auto", cv=5)])
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
