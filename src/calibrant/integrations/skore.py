"""skore: calibration metrics among those of a report."""

from typing import Any

from calibrant import registry
from calibrant.integrations.sklearn import predictions

__all__ = ["add"]


def add(report: Any, *metrics: str) -> None:
    """Add metrics, by names as in a study file, to a skore report on one estimator, a cross-validation or several.

        report = skore.evaluate(model, X, y, splitter=0.2)
        add(report, "ece", "smooth_ece")
        report.metrics.summarize()

    Without names: ece and smooth_ece, which are 0 at best.
    """
    for text in reversed(metrics or ("ece", "smooth_ece")):  # each comes before those that are there
        method: Any = registry.METRICS.method(text)
        info = method.target.about
        value, better = _UnsignedMetric(method.text), bool(info.higher_is_better)
        report.metrics.add(value, name=method.text, verbose_name=info.title, greater_is_better=better)


class _UnsignedMetric:
    """A metric of a classifier's predictions, as it is: unlike a scorer's, its sign is never turned."""

    def __init__(self, metric: str) -> None:
        self.__name__ = self.metric = metric

    def __call__(self, estimator: Any, X: Any, y_true: Any) -> float:
        return float(registry.METRICS.resolve(self.metric)(predictions(estimator, X, y_true)))
