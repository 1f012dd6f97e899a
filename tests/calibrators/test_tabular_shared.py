"""Real binary tables: scikit-learn's calibrators and ours, fitted on the same validation probabilities."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import log_loss

from calibrant.integrations.sklearn import CalibratedClassifier

MODELS = ("lr", "nb", "rf", "et", "lgbm")
SETS = ("haberman", "ionosphere", "phoneme", "pima-indians-diabetes", "wdbc", "synth0-k2", "adult")


class ProbabilityClassifier(ClassifierMixin, BaseEstimator):
    """A fitted classifier that returns its features as probabilities."""

    def fit(self, X, y):
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(1)


def losses_of_file(path) -> dict[str, float]:
    """Return the log loss on the test set by calibrator; probabilities of 0 are clipped for all."""
    z = np.load(path)
    clipped = {name: np.clip(z[f"{name}_probs"].astype(float), 1e-7, 1) for name in ("val", "test")}
    val, test = (p / p.sum(1, keepdims=True) for p in clipped.values())
    y, truth = z["val_labels"].astype(int), z["test_labels"].astype(int)
    model = FrozenEstimator(ProbabilityClassifier().fit(val, y))
    fits = {name: CalibratedClassifierCV(model, method=name) for name in ("sigmoid", "isotonic", "temperature")}
    losses = {name: log_loss(truth, fit.fit(val, y).predict_proba(test)) for name, fit in fits.items()}
    losses["Auto"] = log_loss(truth, CalibratedClassifier(model, "Auto").fit(val, y).predict_proba(test))
    return losses | {"uncalibrated": log_loss(truth, test)}


@pytest.mark.shared
@pytest.mark.large
@pytest.mark.filterwarnings("ignore")  # of scikit-learn
def test_log_loss_is_no_worse_than_the_best_of_scikit_learn(shared):
    rows = {}
    for model in MODELS:
        file_losses = [
            losses_of_file(path) for name in SETS for path in sorted((shared / "tabular").glob(f"{name}.{model}.0.npz"))
        ]
        rows[model] = {
            method: float(np.mean([loss_by_method[method] for loss_by_method in file_losses]))
            for method in file_losses[0]
        }
        print(model, len(file_losses), {method: round(value, 4) for method, value in rows[model].items()})
    mean = {method: np.mean([row[method] for row in rows.values()]) for method in rows["lr"]}
    print("mean", {method: round(float(value), 4) for method, value in mean.items()})
    assert mean["Auto"] <= min(mean[method] for method in ("sigmoid", "isotonic", "temperature"))
