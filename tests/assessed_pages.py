"""Assessments of simulated models, and their pages."""

import torch

from calibrant import Predictions, assess
from calibrant.assessment import Assessment

FAST = ("Identity", "Temperature", "HistogramBinning")


def drawn(n: int, seed: int, by: float, k: int = 5) -> Predictions:
    """Return predictions whose logits are `by` times those of the labels' distribution."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return Predictions(by * logits, torch.multinomial(logits.softmax(-1), 1, generator=g).squeeze(1))


def reported(by: float, n: int = 1500, choose: str | None = None) -> tuple[Assessment, str]:
    """Return the assessment of a model whose logits are `by` times too large, and its page."""
    result = assess(drawn(n, 0, by), drawn(n, 1, by), FAST, choose=choose)
    return result, result.html({"command": "calibrant assess a.npz b.npz", "judged on": "b.npz"})
