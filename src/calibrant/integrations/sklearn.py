"""scikit-learn: any classifier, with calibrated probabilities."""

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from calibrant import calibrators
from calibrant.predictions import Predictions

__all__ = ["CalibratedClassifier"]


class CalibratedClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """A classifier whose probabilities are calibrated out of fold: `CalibratedClassifier(model, "Auto", cv=5)`.

    The calibrator, named as in a study file, is fitted on predictions that `cv` folds make of each other; the
    classifier is then fitted on everything. Without an estimator it is a logistic regression. A class with fewer
    examples than folds lowers the number of folds, to no less than 2. The logits are log `predict_proba`.
    """

    def __init__(self, estimator: Any = None, calibrator: Any = "Auto", *, cv: Any = 5) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv

    def fit(self, X: Any, y: Any) -> "CalibratedClassifier":
        """Fit the calibrator on out-of-fold predictions, then the classifier on everything."""
        x, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError("Classifier can't train when only one class is present.")
        model: Any = LogisticRegression() if self.estimator is None else clone(self.estimator)
        folds = max(2, min(self.cv, int(np.bincount(labels).min())))
        split = StratifiedKFold(folds, shuffle=True, random_state=0)
        probs = cross_val_predict(model, x, labels, cv=split, method="predict_proba")
        self.calibrator_ = calibrators.fit(self.calibrator, Predictions.from_probs(probs, labels))
        self.estimator_ = model.fit(x, labels)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return calibrated probabilities."""
        check_is_fitted(self)
        probs = self.estimator_.predict_proba(validate_data(self, X, reset=False))
        logits = Predictions.from_probs(probs, np.zeros(len(probs), dtype=np.int64)).logits
        return self.calibrator_(logits).softmax(-1).numpy()

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]
