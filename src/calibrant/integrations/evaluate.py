"""Hugging Face evaluate: calibration metrics as a module."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate  # pyright: ignore[reportMissingImports]
import numpy as np

from calibrant.integrations._common import DEFAULT_METRICS, named_metrics, predictions_from_scores
from calibrant.predictions import EventSelector, Predictions
from calibrant.predictions.validation.arrays import to_tensor


class CalibrationModule(evaluate.Metric):  # pyright: ignore[reportUntypedBaseClass]
    """Calibration metrics: `CalibrationModule().compute(predictions=..., references=...)`.

    Predictions are probabilities: a list with one per class for every example, or the probability of class 1. Further
    arguments of `compute`:

    - metrics: names as in a study file, such as ("ece(bins=10)", "nll")
    - logits: True if the predictions are logits
    - sample_weight: weights of the examples
    - of: the event to evaluate

    It combines with other modules, and loads by its path:

        evaluate.load(calibrant.integrations.evaluate.__file__)
    """

    def _info(self) -> Any:
        """Return the description, and the types of inputs: lists or single numbers."""
        label = {"references": datasets.Value("int64")}
        return evaluate.MetricInfo(
            description=CalibrationModule.__doc__ or "",
            citation="",
            inputs_description="predictions: probabilities of all classes, or of class 1; references: class indices",
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
        metrics: Sequence[str] = DEFAULT_METRICS,
        logits: bool = False,
        sample_weight: Any = None,
        of: EventSelector | None = None,
    ) -> dict[str, float]:
        """Return the metrics by name."""
        scores, labels = to_tensor(predictions, "predictions"), np.asarray(references)
        if logits:
            p = predictions_from_scores(scores, labels, sample_weight, binary=scores.ndim == 1, logits=True)
        else:
            p = Predictions.from_probs(scores, labels, sample_weight)
        p = p if of is None else p.with_event(of)
        return {name: float(metric(p)) for name, metric in named_metrics(metrics).items()}
