"""Calibrant as a calibrator of CalArena (Berta et al. 2026): use this file as its `custom_calibrators.py`.

    pip install calibrant
    python run_benchmark.py --benchmark tabrepo-binary --calibrator Calibrant-Auto

Probabilities below 1e-7, as from forests and trees, are raised to 1e-7.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from calibrant import Predictions, calibrators

MIN_PROBABILITY = 1e-7


class PostHoc:
    """A calibrator of probabilities: (n,), (n, 1) or (n, 2) for two classes, (n, k) for more."""

    def __init__(self, fit: Callable[[Predictions], Any]) -> None:
        self._fit = fit

    def fit(self, p_cal: np.ndarray, y_cal: np.ndarray) -> "PostHoc":
        """Fit to probabilities and labels (n,)."""
        self._fitted = self._fit(Predictions(_log(p_cal), torch.as_tensor(np.asarray(y_cal).ravel().astype(np.int64))))
        return self

    def predict_proba(self, p_test: np.ndarray) -> np.ndarray:
        """Return calibrated probabilities (n, k)."""
        return self._fitted(_log(p_test)).softmax(-1).numpy()


def _log(probs: np.ndarray) -> torch.Tensor:
    p = np.asarray(probs, dtype=np.float64)
    p = p.reshape(len(p), -1)
    p = np.concatenate([1 - p, p], 1) if p.shape[1] == 1 else p
    p = p.clip(MIN_PROBABILITY, 1)
    return torch.from_numpy(np.log(p / p.sum(1, keepdims=True)))


CUSTOM_CALIBRATORS = {
    "Calibrant-Auto": partial(PostHoc, calibrators.Auto.fit),
    "Calibrant-Auto-same-predictions": partial(PostHoc, partial(calibrators.Auto.fit, accuracy_preserving=True)),
}
