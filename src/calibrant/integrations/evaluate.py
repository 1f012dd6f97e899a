"""Hugging Face evaluate: calibration metrics as one of its modules."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import datasets
import evaluate  # pyright: ignore[reportMissingImports]
import numpy as np

from calibrant.predictions import EventSelector, Predictions
from calibrant.registry import METRICS

__all__ = ["Calibration"]


class Calibration(evaluate.Metric):  # pyright: ignore[reportUntypedBaseClass]
    """Metrics of calibration, by names as in a study file: `Calibration().compute(predictions=..., references=...)`.

    Predictions are probabilities: a list per example with one for each class, or one number, that of class 1. They
    are logits where `compute` is told `logits=True`. `compute` also takes `metrics`, such as ("ece(bins=10)", "nll"),
    `sample_weight`, and `of`, the event that is judged. Combined with other modules, or loaded by its path:

        evaluate.load(calibrant.integrations.evaluate.__file__)
    """

    def _info(self) -> Any:
        label = {"references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description=Calibration.__doc__ or "",
            citation="",
            inputs_description="predictions: a list of probabilities each, or that of class 1; references: classes",
            features=[
                datasets.Features({"predictions": datasets.Sequence(datasets.Value("float64"))} | label),
                datasets.Features({"predictions": datasets.Value("float64")} | label),
            ],
        )

    def _compute(
        self,
        *,
        predictions: Any,
        references: Any,
        metrics: Sequence[str] = ("accuracy", "nll", "ece"),
        logits: bool = False,
        sample_weight: Any = None,
        of: EventSelector | None = None,
    ) -> dict[str, float]:
        scores = np.asarray(predictions)
        make_predictions: Any = Predictions.from_probs
        if logits:
            make_predictions = partial(Predictions.from_binary_logits, logits=True) if scores.ndim == 1 else Predictions
        p = make_predictions(scores, np.asarray(references), sample_weight)
        p = p if of is None else p.with_event(of)
        return {str(method): float(method(p)) for method in map(METRICS.method, metrics)}
