"""Classifiers whose probabilities are true.

Everything is a function of (logits, labels): a loss returns a number per example, a metric one number, and a
calibrator a function from logits to better logits.
"""

from calibrant import calibrators, catalog, losses, metrics, nn, theory
from calibrant._types import InputError
from calibrant.predictions import Predictions, collect

__version__ = "0.1.0"
__all__ = [
    "InputError",
    "Predictions",
    "__version__",
    "calibrators",
    "catalog",
    "collect",
    "losses",
    "metrics",
    "nn",
    "theory",
]
