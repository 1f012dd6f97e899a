"""MLflow: calibration metrics and the report for `mlflow.models.evaluate`, or for the run that is active."""

import math
import re
from pathlib import Path
from typing import Any

import mlflow  # pyright: ignore[reportMissingImports]
import numpy as np
from mlflow.models import make_metric  # pyright: ignore[reportMissingImports]

from calibrant.assessment import Assessment, Measurement, measure
from calibrant.predictions import Predictions
from calibrant.registry import METRICS
from calibrant.types import InputError

__all__ = ["log", "metric", "report"]


def metric(text: str) -> Any:
    """Return a metric, such as "ece" or "nll", for `extra_metrics`.

        mlflow.models.evaluate(
            data=frame, targets="label", predictions="prob", extra_metrics=[metric("ece")], custom_artifacts=[report]
        )

    The predictions are probabilities: of class 1, or a list per row with one for each class. MLflow's own
    `model_type="classifier"` hands over classes instead, which are refused: leave it out, and give a function that
    returns `model.predict_proba(x)`, or a column.
    """
    method: Any = METRICS.method(text)

    def eval_fn(predictions: Any, targets: Any) -> float:
        return float(method(_to_predictions(predictions, targets)))

    info = method.target.about
    name = re.sub(r"\W+", "_", method.text).strip("_")
    better = bool(info.higher_is_better)
    return make_metric(eval_fn=eval_fn, greater_is_better=better, name=name, long_name=info.title)


def report(eval_df: Any, builtin_metrics: Any, artifacts_dir: str) -> dict[str, str]:
    """Give `custom_artifacts` the numbers, calibration.json, and log the report beside them, calibration.html."""
    table = measure(_to_predictions(eval_df["prediction"], eval_df["target"]))
    path = Path(artifacts_dir) / "calibration.json"
    table.save(path)
    mlflow.log_text(table.html(), "calibration.html")  # no page is among the artifacts that the evaluator takes
    return {"calibration": str(path)}


def log(result: Measurement | Assessment, prefix: str = "") -> None:
    """Log the numbers and the report of `measure` or `assess` in the active run, or in a new one.

    Of an assessment, the numbers are those of the chosen calibrator.
    """
    rows = result.tables[result.chosen_name].rows if isinstance(result, Assessment) else result.rows
    mlflow.log_metrics({f"{prefix}{row.name}": row.value for row in rows if math.isfinite(row.value)})
    mlflow.log_text(result.html(), f"{prefix}calibration.html")


def _to_predictions(predictions: Any, targets: Any) -> Predictions:
    """Probabilities, one or a list per row, with their labels; classes are refused."""
    values = np.asarray(predictions)
    values = np.stack([np.asarray(row) for row in values]) if values.dtype == object and len(values) else values
    if values.dtype.kind not in "f":
        raise InputError(
            f"need probabilities as predictions, got {values.dtype}: predicted classes; leave out model_type, and let "
            "the model return predict_proba",
            code="predicted_labels",
        )
    return Predictions.from_probs(values, np.asarray(targets))
