"""Shared by the adapters: predictions from the outputs of a framework, and metrics by name."""

from collections.abc import Sequence
from typing import Any

from calibrant.predictions import Predictions
from calibrant.registry import METRICS, Method

DEFAULT_METRICS = ("accuracy", "nll", "ece")


def predictions_from_scores(
    scores: Any, labels: Any, weights: Any = None, *, binary: bool, logits: bool, **options: Any
) -> Predictions:
    """Build predictions from the logits of classes, or with `binary` from one logit per event.

    `logits` accepts single scores that all lie in [0, 1]; otherwise they are refused as probabilities.
    """
    if binary:
        return Predictions.from_binary_logits(scores, labels, weights, logits=logits, **options)
    return Predictions(scores, labels, weights, **options)


def named_metrics(names: Sequence[str], prefix: str = "") -> dict[str, Method]:
    """Return metrics by their texts, such as "ece(bins=10)", after the prefix. One text is one metric."""
    names = [names] if isinstance(names, str) else names
    return {f"{prefix}{method}": method for method in map(METRICS.method, names)}
