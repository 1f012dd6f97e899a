"""Data of the interactive controls on the page: temperature, threshold and classes. All numbers are computed here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from calibrant import metrics
from calibrant._core.files import null_nonfinite
from calibrant._core.kernels.bins import Bins, equal_width_edges
from calibrant._core.numbers import format_level, format_percent, format_percent_range
from calibrant.assessment._calibrated_predictions import CalibratedPredictions
from calibrant.assessment._mistakes import Mistake, mistakes_by_class
from calibrant.assessment._results import Assessment, Measurement, Row
from calibrant.assessment._sentences import capitalize
from calibrant.metrics import Interval
from calibrant.metrics.curves import frequency_limits, precision_limits
from calibrant.metrics.tables import Classes, thresholds_of
from calibrant.predictions import Predictions
from calibrant.reports.document import Control

UNCALIBRATED, AS_MEASURED = "uncalibrated", "as measured"  # before `measure`, a calibrator may have been applied
GRID_LOG2_RANGE = -2, 2  # temperatures from 1/4 to 4
STEPS_PER_OCTAVE = 12, 6, 3  # the finest grid that fits the budget is used
MAX_ASSESSMENT_LOGITS, MAX_MEASUREMENT_LOGITS = 10**9, 3 * 10**7  # logits processed for all temperatures together
SLIDER_THRESHOLDS = (*(i / 100 for i in range(100)), 0.995, 0.999, 0.9999)
MAX_CLASS_CURVES = 200
MAX_CLASS_MISTAKES = 5  # per class


# Temperature


def slider_temperatures(num_elements: int, max_elements: int) -> list[float]:
    """Return 49, 25 or 13 temperatures, evenly spaced in their logarithm and including 1, or none.

    Args:
        num_elements: Logits of one pass.
        max_elements: Budget for all passes together.

    >>> len(slider_temperatures(1000, 100_000)), len(slider_temperatures(1000, 20_000)), slider_temperatures(1000, 10)
    (49, 13, [])
    """
    low, high = GRID_LOG2_RANGE
    for steps in STEPS_PER_OCTAVE:
        if (steps * (high - low) + 1) * num_elements <= max_elements:
            return [2 ** (i / steps) for i in range(low * steps, high * steps + 1)]
    return []


def assessment_temperature_control(assessment: Assessment) -> list[Control]:
    """Return the temperature slider and the menu of calibrators."""
    temperatures = {
        name: float(c.temperature) for name, c in assessment.calibrators.items() if type(c).__name__ == "Temperature"
    }
    measurements = {UNCALIBRATED: assessment.uncalibrated, **assessment.measurements}
    measurements.pop("Identity", None)  # the same as uncalibrated
    return _temperature_control(
        assessment.uncalibrated,
        UNCALIBRATED,
        menu=measurements,
        fitted_temperatures=temperatures,
        max_logits=MAX_ASSESSMENT_LOGITS,
    )


def measurement_temperature_control(measurement: Measurement) -> list[Control]:
    """Return the temperature slider."""
    return _temperature_control(
        measurement, AS_MEASURED, menu={}, fitted_temperatures={}, max_logits=MAX_MEASUREMENT_LOGITS
    )


def _temperature_control(
    uncalibrated: Measurement,
    label: str,
    *,
    menu: Mapping[str, Measurement],
    fitted_temperatures: Mapping[str, float],
    max_logits: int,
) -> list[Control]:
    """Return the slider of temperatures and the menu of calibrators, or nothing without either.

    There is no slider if the predictions are not in memory or too many, and no menu with fewer than two measurements.

    Args:
        uncalibrated: The measurement at T = 1.
        label: Name of this measurement.
        menu: The measurements without calibration and after each calibrator, by name.
        fitted_temperatures: Temperatures with a button that moves the slider there, by calibrator.
        max_logits: Budget of logits to process for all temperatures together.
    """
    p, event = uncalibrated.source, uncalibrated.event
    temperatures: list[float] = []
    if isinstance(p, Predictions):
        temperatures = slider_temperatures(uncalibrated.n * uncalibrated.k, max_logits)
    has_menu = len(menu) > 1
    if not temperatures and not has_menu:
        return []
    start = len(temperatures) // 2  # the grid is symmetric around T = 1
    button_labels = {start: f"{label}: T = 1"}
    for name, t in fitted_temperatures.items():
        if temperatures and temperatures[0] <= t <= temperatures[-1]:
            button_labels[_nearest_index(temperatures, t)] = f"{name}: {t:.2f}"
    content = {
        "heading": "Try a temperature or a calibrator" if has_menu else "Try a temperature",
        "note": _temperature_note(uncalibrated, label, has_slider=bool(temperatures), has_menu=has_menu),
        "reference": label,
        "words": _diagram_labels(uncalibrated),
        "tiles": ["ECE", "NLL", f"Mean {event.probability}", capitalize(event.frequency)],
        "one": start,  # the step of T = 1, at which the slider starts
        "steps": [_temperature_step(uncalibrated, t, button_labels.get(i, "")) for i, t in enumerate(temperatures)],
        "maps": [_calibrator_step(name, measurement) for name, measurement in menu.items()] if has_menu else [],
    }
    return [Control("temperature", content)]


def _nearest_index(temperatures: Sequence[float], t: float) -> int:
    """Return the index of the temperature nearest to t on the logarithmic scale."""
    return min(range(len(temperatures)), key=lambda i: abs(math.log(temperatures[i] / t)))


def _temperature_note(uncalibrated: Measurement, label: str, *, has_slider: bool, has_menu: bool) -> str:
    """Return the text below the control: how to use the slider, or why there is none, and the menu if there is one."""
    event = uncalibrated.event
    sentences: list[str] = []
    if has_slider:
        sentences.append(
            "Logits are divided by the temperature T: above 1 it moves all probabilities toward uniform, below 1 away "
            f"from it. All numbers are computed from {event.count(uncalibrated.n)}. Do not pick a temperature here, "
            f"which would tune it on the evaluated {event.units}. Use a fitted calibrator."
        )
    else:
        sentences.append("There is no temperature slider because the predictions were read in chunks or are too many.")
    if has_menu:
        sentences.append("The menu shows the predictions after each calibrator.")
    reference = "uncalibrated predictions" if label == UNCALIBRATED else f"predictions {label}"
    sentences.append(f"Each dot is a bin; larger dots hold more. The gray line shows the {reference}.")
    if not uncalibrated.clusters:
        sentences.append("Vertical lines are intervals that hold simultaneously for all bins.")
    return " ".join(sentences)


def _diagram_labels(measurement: Measurement) -> dict[str, Any]:
    """Return the words and settings of a diagram that the script of the page draws."""
    event = measurement.event
    return {
        "probability": event.probability,
        "frequency": event.frequency,
        "units": event.units,
        "bins": measurement.bins,
        "level": f"simultaneous {format_level(measurement.level)}",
    }


def _temperature_step(uncalibrated: Measurement, temperature: float, button_label: str) -> dict[str, Any]:
    """Measure predictions at one temperature, in one pass.

    Returns:
        The label, the texts of the tiles, the bins of the reliability diagram, and `button_label` as "stop", the label
        of a button that moves the slider here, unless it is empty.
    """
    p, num_bins, level = uncalibrated.source, uncalibrated.bins, uncalibrated.level
    assert isinstance(p, Predictions)  # there are no temperatures for summaries
    scaled = p if temperature == 1 else CalibratedPredictions(p, lambda logits: logits / temperature)
    scaled.outcomes  # noqa: B018  computes and caches the statistics below in one pass
    events = scaled.events
    bins = events.equal_width(num_bins)
    ece = uncalibrated["ece"].info.text(float(metrics.ece(events, bins=num_bins)))
    nll = uncalibrated["nll"].info.text(float(metrics.nll(scaled)))
    floor = metrics.noise_floor.interval(events, level=level, bins=num_bins)
    mean_confidence = float(np.nansum(bins.weight * bins.confidence))  # the confidence of empty bins is NaN
    frequency = uncalibrated.observed_frequency.value
    tiles = _tiles(ece, nll, mean_confidence=mean_confidence, frequency=frequency, floor=floor)
    step = {"name": f"T = {temperature:.2f}", "tiles": tiles, "cells": _bin_rows(bins, _bin_level(uncalibrated))}
    if button_label:
        step["stop"] = button_label
    return step


def _calibrator_step(name: str, measurement: Measurement) -> dict[str, Any]:
    """Return the data of the diagram after a calibrator, as `_temperature_step` does for a temperature."""
    tiles = _tiles(
        measurement["ece"].text,
        measurement["nll"].text,
        mean_confidence=measurement.mean_confidence,
        frequency=measurement.observed_frequency.value,
        floor=measurement["noise_floor"],
    )
    return {"name": name, "tiles": tiles, "cells": _bin_rows(measurement.reliability_bins, _bin_level(measurement))}


def _tiles(ece: str, nll: str, *, mean_confidence: float, frequency: float, floor: Interval | Row) -> list[list[str]]:
    """Return the texts of four tiles, each a value and a note: ECE, NLL, mean confidence and frequency."""
    floor_text = f"noise floor {format_percent(floor.value)}, up to {format_percent(floor.high)}"
    return [
        [f"{ece} %", floor_text],
        [nll, ""],
        [format_percent(mean_confidence, 1), ""],
        [format_percent(frequency, 1), ""],
    ]


def _bin_level(measurement: Measurement) -> float | None:
    """Return the level of bin intervals, or None for clusters. These intervals assume independent rows."""
    return None if measurement.clusters else measurement.level


def _bin_rows(bins: Bins, level: float | None) -> list[list[int]]:
    """Return, per nonempty bin, its index, count, mean confidence, accuracy, and the limits of the frequency.

    Shares are in millionths. The limits hold for all bins simultaneously. Without a level they are left out.
    """
    limits = () if level is None else frequency_limits(bins, level)
    columns = np.stack([bins.confidence, bins.accuracy, *limits])
    rows: list[list[int]] = []
    for i, count in enumerate(bins.count.tolist()):
        if count:
            rows.append([i, count, *map(_to_millionths, columns[:, i].tolist())])
    return rows


def _to_millionths(share: float) -> int:
    """Return a share as an integer in 0 .. 1,000,000, which is short in JSON."""
    return round(1e6 * min(1.0, max(0.0, share)))


# Thresholds


def threshold_control(measurements: Mapping[str, Measurement]) -> Control:
    """Return the slider of thresholds, with the expected cost of acting where the probability reaches the threshold.

    If the event is that a prediction is right, the costs are those of errors and of abstaining below the threshold.
    For any other event they are those of false positives, and of false negatives below the threshold.
    """
    measurement = next(iter(measurements.values()))
    event = measurement.event
    words = {
        "probability": event.probability,
        "slider": f"Minimum {event.probability}",
        "share": f"of all {event.units}",
        "each": f"per {event.unit}",
        "cheapest": f"Lowest expected cost on these {event.units}: threshold",
    }
    note = "Costs are in any unit."
    errors, costs = "false positives", ["cost of a false positive", "cost of a false negative"]
    if event.is_confidence:
        note += " Abstaining can mean, for example, asking a person."
        errors, costs = "error rate", ["cost of an error", "cost of abstaining"]
    words |= {"tiles": ["acted on", f"{errors} among them", "expected cost"], "costs": costs}
    content = {
        "heading": "Choose a threshold",
        "note": note,
        "words": words,
        # Frequency of the event, from which the share of false negatives follows; None if there are none
        "base": None if event.is_confidence else measurement.observed_frequency.value,
        "tables": [{"name": name, "rows": _threshold_rows(m)} for name, m in measurements.items()],
    }
    return Control("threshold", content)


def _threshold_rows(measurement: Measurement) -> list[list[Any]]:
    """Return a row per threshold, for acting on the predictions whose probability is at least the threshold.

    A row has the threshold; the share of predictions that are acted on, precision and recall; and the texts of three
    tiles: that share, the error rate among them, and its interval.
    """
    t = thresholds_of(measurement.by_score, SLIDER_THRESHOLDS, measurement.level)
    limits = precision_limits(measurement.by_score, t.threshold, measurement.level)  # for all thresholds at once
    columns = [column.tolist() for column in (t.threshold, t.share, t.precision, t.recall, *limits)]
    rows: list[list[Any]] = []
    for threshold, share, precision, recall, low, high in zip(*columns, strict=True):
        shares = null_nonfinite([round(x, 6) for x in (share, precision, recall)])  # JSON lacks NaN
        error, interval = _error_texts(precision, low, high, format_level(measurement.level))
        rows.append([threshold, *shares, format_percent(share), error, interval])
    return rows


def _error_texts(precision: float, low: float, high: float, level: str) -> tuple[str, str]:
    """Return the error rate 1 - precision as text and its interval, or a dash if nothing is acted on."""
    if math.isnan(precision):
        return "\N{EN DASH}", ""
    interval = f"simultaneous {level} interval {format_percent_range(1 - high, 1 - low)}"
    return format_percent(1 - precision), interval


# Classes


def class_control(measurements: Mapping[str, Measurement], class_tables: Sequence[Classes]) -> Control:
    """Return, for the worst classes, the curve before and after calibration and the most confident errors.

    There are no errors for predictions that were read in chunks.
    """
    measurement = next(iter(measurements.values()))
    indices = class_tables[0].worst_first[:MAX_CLASS_CURVES].tolist()
    p = measurement.source
    mistakes = mistakes_by_class(p, indices, MAX_CLASS_MISTAKES) if isinstance(p, Predictions) else None
    rows: list[dict[str, Any]] = []
    for j in indices:
        curves = [_class_bin_rows(class_table.cells[j], measurement) for class_table in class_tables]
        errors = None if mistakes is None else [_mistake_cells(measurement, m) for m in mistakes[j]]
        rows.append({"layers": curves, "mistakes": errors})
    words = _diagram_labels(measurement) | {
        "probability": "probability of the class",
        "frequency": "frequency of the class",
        "mistakes": "Most confident errors",
        "none": "No error involves this class.",
    }
    head = ["row", "true class", "predicted class", "confidence"]
    return Control("classes", {"words": words, "names": list(measurements), "rows": rows, "head": head})


def _mistake_cells(measurement: Measurement, m: Mistake) -> list[str]:
    """Return the cells of a wrong prediction: row, true class, predicted class and confidence."""
    name = measurement.class_name
    return [str(m.row), name(m.label), name(m.predicted), format_percent(m.probability)]


def _class_bin_rows(class_bins: np.ndarray, measurement: Measurement) -> list[list[int]]:
    """Return the bins of the reliability diagram of one class as `_bin_rows` does.

    Args:
        class_bins: Weight, sum of probabilities and sum of outcomes in each bin, divided by the number of examples
            (b 3).
        measurement: The measurement that the class belongs to.
    """
    weights, confidence_sums, outcome_sums = measurement.n * class_bins.T  # limits depend on counts, not on shares
    bins = Bins.from_sums(equal_width_edges(len(weights)), weights, confidence_sums, outcome_sums)
    return _bin_rows(bins, _bin_level(measurement))
