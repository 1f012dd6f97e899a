"""Evidently: calibration metrics with tests, for reports on current and reference data."""

import math
from typing import Any

from evidently.core.datasets import Dataset  # pyright: ignore[reportMissingImports]
from evidently.core.metric_types import (  # pyright: ignore[reportMissingImports]
    SingleValue,
    SingleValueCalculation,
    SingleValueMetric,
)

from calibrant._core.registry import METRICS
from calibrant._core.types import InputError
from calibrant.predictions import Predictions


class Calibration(SingleValueMetric):  # pyright: ignore[reportUntypedBaseClass]
    """A metric of Calibrant, computed from the columns of a data set as `Predictions.from_table` reads them.

    Report([Calibration(name="ece", tests=[lt(0.05)])]).run(current, reference)
    """

    name: str = "ece"
    """Metric as in a study file, such as "ece" or "ece(bins=10)"."""
    label: str | None = None
    """Column of labels. Default: found by its name."""
    probs: str | list[str] | None = None
    """Columns of probabilities: a name, several, or a prefix. Default: found by their names."""
    confidence: str | None = None
    """Column of stated confidences. Default: found by its name."""
    correct: str | None = None
    """Column that tells whether an answer was correct. Default: found by its name."""
    of: str | int | None = None
    """Event to evaluate, as in `measure`."""


class CalibrationCalculation(SingleValueCalculation[Calibration]):  # pyright: ignore[reportUntypedBaseClass]
    """The calculation of `Calibration`, which Evidently creates."""

    def calculate(
        self, context: Any, current_data: Dataset, reference_data: Dataset | None
    ) -> SingleValue | tuple[SingleValue, SingleValue | None]:
        """Return the value of the current data, and of the reference if there is one."""
        current = self.result(self._value(current_data))
        return current, None if reference_data is None else self.result(self._value(reference_data))

    def display_name(self) -> str:
        """Return the title of the metric."""
        return METRICS.method(self.metric.name).target.about.title  # pyright: ignore

    def _value(self, data: Dataset) -> float:
        """Return the metric of a data set, or raise `InputError` if it is NaN."""
        names = ("label", "probs", "confidence", "correct")
        options = {name: column for name in names if (column := getattr(self.metric, name)) is not None}
        p = Predictions.from_table(data.as_dataframe(), **options).with_default_event(self.metric.of)
        value = float(METRICS.method(self.metric.name)(p))
        if math.isnan(value):
            raise InputError(f"{self.metric.name} is not defined for these predictions.", code="undefined_metric")
        return value
