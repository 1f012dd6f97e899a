"""Assessments of simulated models, and their pages."""

import numpy as np
from drawn import drawn_labels

from calibrant import Predictions, assess
from calibrant.assessment import Assessment

FAST = ("Identity", "Temperature", "HistogramBinning")


def drawn(n: int, seed: int, by: float, k: int = 5) -> Predictions:
    """Return predictions whose logits are `by` times those of the labels' distribution."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(scale=2, size=(n, k))
    return Predictions(by * logits, drawn_labels(logits, rng))


def reported(by: float, n: int = 1500, choose: str | None = None) -> tuple[Assessment, str]:
    """Return the assessment of a model whose logits are `by` times too large, and its page."""
    result = assess(drawn(n, 0, by), drawn(n, 1, by), FAST, choose=choose)
    return result, result.html({"command": "calibrant assess a.npz b.npz", "judged on": "b.npz"})
