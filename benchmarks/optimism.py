"""The corrected calibration slope of `calibrant.validate`, against the true slope of the same model.

    python -m benchmarks.optimism [--repeats 40]

Outcomes follow a logistic model of independent normal variables, of which every second one has an effect; the logits
have the standard deviation 1. A model without penalty is fitted to each data set, and its slope for new examples of the
same population is computed without simulation of outcomes. Writes docs/howto/optimism.csv.
"""

import argparse
import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, ndtri
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression

from benchmarks._harness import write_table
from calibrant import InputError, validate
from calibrant.metrics import fit_logistic

TABLE = Path(__file__).parent.parent / "docs" / "howto" / "optimism.csv"
HEADER = [
    "examples",
    "variables",
    "events per variable",
    "true slope",
    "bias, bootstrap",
    "bias, cross-fitting",
    "error",
]
DESIGNS = (  # examples, variables, prevalence
    *((100, 30, 0.5), (100, 10, 0.5), (100, 5, 0.2), (100, 5, 0.5)),
    *((200, 20, 0.5), (200, 5, 0.2), (400, 20, 0.2), (400, 30, 0.5)),
    *((400, 8, 0.2), (1000, 30, 0.1), (1000, 30, 0.3), (1000, 10, 0.1)),
)
NUM_FITS, FOLDS = 40, 10  # of each method
GRID = ndtri((np.arange(64) + 0.5) / 64)  # a normal variable in 64 equally probable steps


class Logistic(ClassifierMixin, BaseEstimator):
    """Logistic regression without penalty, without the overhead of scikit-learn's checks."""

    def fit(self, x: np.ndarray, y: np.ndarray) -> "Logistic":
        """Fit by Newton's method, or by scikit-learn, which stops somewhere, if the outcomes are separated."""
        self.classes_ = np.array([0, 1])
        try:
            self.intercept_, *coefficients = fit_logistic(np.column_stack([np.ones(len(y)), x]), y).coefficients
            self.coef_ = np.array(coefficients)
        except InputError:
            fitted = LogisticRegression(C=np.inf, solver="newton-cholesky").fit(x, y)
            self.intercept_, self.coef_ = fitted.intercept_[0], fitted.coef_[0]
        return self

    def predict_proba(self, x: np.ndarray) -> np.ndarray:
        """Return the probabilities of both outcomes (n, 2)."""
        logit = self.intercept_ + x @ self.coef_
        return np.column_stack([expit(-logit), expit(logit)])


def true_slope(model: Logistic, effects: np.ndarray, intercept: float) -> float:
    """Return the slope of a model for new examples, whose true and predicted logits are normal and correlated."""
    predicted = model.coef_
    shared = predicted @ effects / (effects @ effects)  # of the true logit in the predicted one
    rest = math.sqrt(max(float(((predicted - shared * effects) ** 2).sum()), 0.0))
    truth, noise = (axis.ravel() for axis in np.meshgrid(GRID * np.linalg.norm(effects), GRID))
    logit = model.intercept_ + shared * truth + rest * noise
    return float(fit_logistic(np.column_stack([np.ones_like(logit), logit]), expit(intercept + truth)).coefficients[1])


def rows(repeats: int) -> Iterator[list[str]]:
    """Yield a row of the table for each design."""
    for n, variables, prevalence in DESIGNS:
        effects = np.where(np.arange(variables) % 2 == 0, 1.0, 0.0)
        effects /= np.linalg.norm(effects)
        intercept = float(brentq(lambda a, f=prevalence: expit(a + GRID).mean() - f, -9, 9))  # pyright: ignore
        slopes = list[tuple[float, float, float]]()
        for seed in range(repeats):
            rng = np.random.default_rng([n, variables, seed])
            x = rng.standard_normal((n, variables))
            y = (rng.random(n) < expit(intercept + x @ effects)).astype(int)
            bootstrap = validate(Logistic(), x, y, repeats=NUM_FITS, seed=seed)
            crossed = validate(
                Logistic(), x, y, method="cross-fitting", repeats=NUM_FITS // FOLDS, folds=FOLDS, seed=seed
            )
            truth = true_slope(Logistic().fit(x, y), effects, intercept)
            slopes.append((truth, bootstrap["slope"].corrected - truth, crossed["slope"].corrected - truth))
        truth, *biases = np.nanmean(slopes, axis=0)
        error = max(np.nanstd(slopes, axis=0)[1:]) / math.sqrt(repeats)
        unanswered = np.isnan(slopes).any(axis=1).mean()  # most resamples separate the outcomes
        yield [
            *(f"{n:,}", str(variables), f"{n * prevalence / variables:.2g}", f"{truth:.2f}"),
            *(f"{bias:+.3f}" for bias in biases),
            *(f"{error:.3f}", f"{100 * unanswered:.0f} %"),
        ]


def main() -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=40)
    warnings.simplefilter("ignore")  # of fits that separate the outcomes of a resample
    write_table(HEADER, list(rows(parser.parse_args().repeats)), TABLE)


if __name__ == "__main__":
    main()
