"""MLflow: calibration metrics and the report for `mlflow.models.evaluate`, or for the active run."""

import math
import re
from pathlib import Path
from typing import Any

import mlflow  # pyright: ignore[reportMissingImports]
import numpy as np
from mlflow.models import make_metric  # pyright: ignore[reportMissingImports]

from calibrant._core.registry import METRICS
from calibrant._core.types import InputError
from calibrant.assessment import Assessment, Measurement, measure
from calibrant.metrics import metric_info
from calibrant.predictions import Predictions


def metric(text: str) -> Any:
    """Return a metric for the `extra_metrics` of MLflow.

        mlflow.models.evaluate(
            data=frame, targets="label", predictions="prob", extra_metrics=[metric("ece")], custom_artifacts=[report]
        )

    The predictions must be probabilities: of class 1, or a list per row with one per class. MLflow's
    `model_type="classifier"` passes predicted classes instead, which are refused. Leave it out, and pass a function
    that returns `model.predict_proba(x)`, or a column.

    Args:
        text: Name of the metric as in a study file, such as "ece" or "nll".
    """
    method, info = METRICS.method(text), metric_info(text)

    def eval_fn(predictions: Any, targets: Any) -> float:
        return float(method(_to_predictions(predictions, targets)))

    name = re.sub(r"\W+", "_", method.text).strip("_")
    higher_is_better = bool(info.higher_is_better)  # MLflow needs a bool also for metrics without a better direction
    return make_metric(eval_fn=eval_fn, greater_is_better=higher_is_better, name=name, long_name=info.title)


def report(eval_df: Any, builtin_metrics: Any, artifacts_dir: str) -> dict[str, str]:
    """Write the numbers to calibration.json for `custom_artifacts`, and log the report as calibration.html."""
    table = measure(_to_predictions(eval_df["prediction"], eval_df["target"]))
    path = Path(artifacts_dir) / "calibration.json"
    table.save(path)
    mlflow.log_text(table.html(), "calibration.html")  # the evaluator accepts no HTML artifact
    return {"calibration": str(path)}


def log(result: Measurement | Assessment, prefix: str = "") -> None:
    """Log the metrics and the report of `measure` or `assess` in the active run, or in a new one.

    For an assessment, log the metrics of the chosen calibrator.
    """
    rows = result.measurements[result.chosen_name].rows if isinstance(result, Assessment) else result.rows
    mlflow.log_metrics({f"{prefix}{row.name}": row.value for row in rows if math.isfinite(row.value)})
    mlflow.log_text(result.html(), f"{prefix}calibration.html")


def _to_predictions(predictions: Any, targets: Any) -> Predictions:
    """Build predictions from probabilities, a number or a list per row.

    Raises:
        InputError: If the values are predicted classes.
    """
    values = np.asarray(predictions)
    if values.dtype == object and len(values):  # a list per row
        values = np.stack([np.asarray(row) for row in values])
    if values.dtype.kind != "f":
        raise InputError(
            f"Expected probabilities, got predicted classes of type {values.dtype}. Try a model that returns "
            "predict_proba, without model_type.",
            code="predicted_labels",
        )
    return Predictions.from_probs(values, np.asarray(targets))
