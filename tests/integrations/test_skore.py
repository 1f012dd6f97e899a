"""Metrics in the reports of skore."""

import pytest

pytest.importorskip("skore", reason="skore is not installed")
import skore
from sklearn.datasets import make_classification
from sklearn.naive_bayes import GaussianNB

from calibrant import metrics
from calibrant.integrations.sklearn import predictions
from calibrant.integrations.skore import add

pytestmark = pytest.mark.filterwarnings("ignore")  # of skore and scikit-learn

x, y = make_classification(300, flip_y=0.3, random_state=0)


def test_report_shows_metrics_in_order_and_unsigned():
    report = skore.EstimatorReport(GaussianNB(), X_train=x[:150], y_train=y[:150], X_test=x[150:], y_test=y[150:])
    add(report, "ece", "nll")
    assert report.metrics.available()[:2] == ["ece", "nll"]
    p = predictions(report.estimator_, x[150:], y[150:])
    summary = report.metrics.summarize(metric=["ece", "nll"]).frame()
    assert summary.to_numpy().ravel().tolist() == pytest.approx([float(metrics.ece(p)), float(metrics.nll(p))])


def test_cross_validation_report_shows_metrics():
    report = skore.CrossValidationReport(GaussianNB(), x, y, splitter=2)
    add(report)
    summary = report.metrics.summarize(metric=["ece", "smooth_ece"]).frame()
    assert summary.shape == (2, 2)
    assert (summary.to_numpy() > 0).all()
