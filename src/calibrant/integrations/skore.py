"""skore: calibration metrics among those of a report."""

from typing import Any

from calibrant import catalog
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
        method: Any = catalog.METRICS.method(text)
        about = method.target.about
        value, better = _Value(method.text), bool(about.higher_is_better)
        report.metrics.add(value, name=method.text, verbose_name=about.title, greater_is_better=better)


class _Value:
    """A metric of a classifier's predictions, as it is: unlike a scorer's, its sign is never turned."""

    def __init__(self, metric: str) -> None:
        self.__name__ = self.metric = metric

    def __call__(self, estimator: Any, X: Any, y_true: Any) -> float:
        return float(catalog.METRICS.resolve(self.metric)(predictions(estimator, X, y_true)))
