"""scikit-learn: any classifier, with calibrated probabilities; scorers and a display of calibration."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,  # pyright: ignore[reportPrivateUsage]  scikit-learn's own way for estimators
    check_is_fitted,
    validate_data,
)

from calibrant import calibrators, catalog, metrics
from calibrant.predictions import Predictions

__all__ = ["CalibratedClassifier", "ReliabilityDisplay", "predictions", "scorer"]


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose probabilities are calibrated out of fold: `CalibratedClassifier(model, "Auto", cv=5)`.

    The calibrator, named as in a study file, is fitted on predictions that `cv` folds make of each other; the
    classifier is then fitted on everything. One that is fitted already stays as it is, and the calibrator is fitted on
    its predictions of all that is given: `CalibratedClassifier(FrozenEstimator(model))`. Without an estimator it is a
    logistic regression. A class with fewer examples than folds lowers the number of folds, to no less than 2.

    The logits are log `predict_proba`, or `decision_function` where the classifier has no probabilities. Sample weights
    go to the classifier, and count in the calibrator, divided by their mean.
    """

    def __init__(self, estimator: Any = None, calibrator: Any = "Auto", *, cv: Any = 5) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "CalibratedClassifier":
        """Fit the calibrator on out-of-fold predictions, then the classifier on everything."""
        frozen = isinstance(self.estimator, FrozenEstimator)
        x, y = (X, np.asarray(y)) if frozen else validate_data(self, X, y)
        check_classification_targets(y)
        weights = None if sample_weight is None else _check_sample_weight(sample_weight, x)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if frozen:
            self.classes_ = np.asarray(self.estimator.classes_)
            labels = _indices(y, self.classes_)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        model: Any = LogisticRegression() if self.estimator is None else self.estimator
        model = model if frozen else clone(model)
        given = {} if weights is None else {"sample_weight": weights}
        scores = _scores(model, x) if frozen else self._out_of_fold(model, x, labels, given)
        counted = None if weights is None else weights / weights.mean()
        self.calibrator_ = calibrators.fit(self.calibrator, _entered(scores, labels, counted))
        self.estimator_ = model if frozen else model.fit(x, labels, **given)
        return self

    def _out_of_fold(self, model: Any, x: Any, labels: Any, given: dict[str, Any]) -> tuple[str, np.ndarray]:
        split = self.cv  # folds of one's own, as scikit-learn takes them
        if isinstance(self.cv, int):
            folds = max(2, min(self.cv, int(np.bincount(labels).min())))
            split = StratifiedKFold(folds, shuffle=True, random_state=0)
        method = _method(model)
        return method, np.asarray(cross_val_predict(model, x, labels, cv=split, method=method, params=given or None))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities."""
        check_is_fitted(self)
        x = X if isinstance(self.estimator_, FrozenEstimator) else validate_data(self, X, reset=False)
        scores = _scores(self.estimator_, x)
        logits = _entered(scores, np.zeros(len(scores[1]), dtype=np.int64)).logits
        return self.calibrator_(logits).softmax(-1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def predictions(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> Predictions:
    """Return what a fitted classifier says of examples, with its classes' names; of two, the second is judged.

    Of a classifier without probabilities, its decision function.
    """
    names = [str(name) for name in estimator.classes_]
    return _entered(
        _scores(estimator, X), _indices(np.asarray(y), np.asarray(estimator.classes_)), sample_weight, names
    )


def scorer(metric: str) -> Callable[..., float]:
    """Return a metric, such as "ece" or "nll", as a scorer for `cross_val_score` and `GridSearchCV`.

    The greater the better: what is better when less is given its negative, as scikit-learn does.

        GridSearchCV(model, grid, scoring=scorer("smooth_ece"))
    """
    return _Scorer(catalog.METRICS.method(metric).text)


class _Scorer:
    """A metric of a classifier's predictions, the greater the better."""

    def __init__(self, metric: str) -> None:
        self.metric = metric

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        value = float(catalog.METRICS.method(self.metric)(predictions(estimator, X, y, sample_weight)))
        return value if metrics.about(self.metric).higher_is_better else -value

    def __repr__(self) -> str:
        return f"scorer({self.metric!r})"


class ReliabilityDisplay:
    """A reliability diagram in one line, such as scikit-learn's displays: `from_estimator` or `from_predictions`.

    `predictions` are what is drawn; `ax_` and `figure_` what it is drawn into.
    """

    def __init__(self, predictions: Predictions, name: str = "") -> None:
        self.predictions, self.name = predictions, name

    @classmethod
    def from_estimator(
        cls, estimator: Any, X: Any, y: Any, *, sample_weight: Any = None, name: str = "", ax: Any = None
    ) -> "ReliabilityDisplay":
        """Draw that of a fitted classifier."""
        return cls(predictions(estimator, X, y, sample_weight), name or type(estimator).__name__).plot(ax)

    @classmethod
    def from_predictions(
        cls, y_true: Any, y_prob: Any, *, sample_weight: Any = None, name: str = "", ax: Any = None
    ) -> "ReliabilityDisplay":
        """Draw that of probabilities (n, k), or (n,) of the second class."""
        kinds, labels = np.unique(np.asarray(y_true), return_inverse=True)
        names = [str(kind) for kind in kinds]
        columns = np.shape(y_prob)[1] if np.ndim(y_prob) > 1 else 2
        more: dict[str, Any] = {"class_names": names} if columns == len(names) else {}
        values = torch.from_numpy(labels) if columns == len(names) else y_true
        return cls(Predictions.from_probs(y_prob, values, sample_weight, **more), name).plot(ax)

    def plot(self, ax: Any = None) -> "ReliabilityDisplay":
        """Draw it, into pyplot's current axes if none are given."""
        from calibrant.metrics import ece
        from calibrant.plots import reliability

        title = f"{self.name}, ECE {100 * float(ece(self.predictions)):.2f} %".removeprefix(", ")
        self.ax_ = reliability(self.predictions, ax=ax, title=title)
        self.figure_ = self.ax_.figure
        return self


def _method(model: Any) -> str:
    return "predict_proba" if hasattr(model, "predict_proba") else "decision_function"


def _scores(model: Any, x: Any) -> tuple[str, np.ndarray]:
    return _method(model), np.asarray(getattr(model, _method(model))(x))


def _entered(scores: tuple[str, np.ndarray], labels: Any, weights: Any = None, names: Any = None) -> Predictions:
    """Probabilities as they are; scores of a decision function as logits, one of two classes or one per class.

    Of two classes the second is judged.
    """
    method, values = scores
    labels = torch.as_tensor(labels)  # positions, whatever the classes are called
    if method == "predict_proba":
        p = Predictions.from_probs(values, labels, weights, class_names=names)
    elif values.ndim == 1:
        p = Predictions.from_binary_logits(values, labels, weights, class_names=names)
    else:
        p = Predictions(values, labels, weights, class_names=names)
    return p.judging(1) if p.k == 2 else p


def _indices(y: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Where each label stands among the classes."""
    order = classes.argsort()
    place = np.searchsorted(classes[order], y).clip(max=len(classes) - 1)
    found = order[place]
    if not bool((classes[found] == y).all()):
        unknown = y[classes[found] != y][0]
        raise ValueError(f"label {unknown!r} is none of the classifier's classes {classes.tolist()[:10]}")
    return found
