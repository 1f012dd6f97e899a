"""skore: calibration metrics in a report."""

from typing import Any

from calibrant import metrics as metrics_
from calibrant._core.registry import METRICS
from calibrant.integrations.sklearn import predictions


def add(report: Any, *metrics: str) -> None:
    """Add metrics to a skore report on one estimator, a cross-validation or several estimators.

        report = skore.evaluate(model, X, y, splitter=0.2)
        add(report, "ece", "smooth_ece")
        report.metrics.summarize()

    Args:
        report: The skore report.
        metrics: Names as in a study file; "ece" and "smooth_ece" by default.
    """
    for name in reversed(metrics or ("ece", "smooth_ece")):  # skore puts a new metric before the others
        metric, info = _UnsignedMetric(METRICS.method(name).text), metrics_.metric_info(name)
        # skore needs a bool: metrics without a better direction, such as the signed gap, count as "lower is better"
        higher_is_better = bool(info.higher_is_better)
        report.metrics.add(metric, name=metric.text, verbose_name=info.title, greater_is_better=higher_is_better)


class _UnsignedMetric:
    """A metric of a classifier's predictions whose sign, unlike a scorer's, never changes."""

    def __init__(self, text: str) -> None:
        self.__name__ = self.text = text

    def __call__(self, estimator: Any, X: Any, y_true: Any) -> float:
        return float(METRICS.resolve(self.text)(predictions(estimator, X, y_true)))
