"""What can be tried on the page: a temperature, another calibrator, a threshold, a class; all numbers are made here."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor

from calibrant.assessment._evaluation import Mistake
from calibrant.assessment._results import AssessmentData, MeasurementData
from calibrant.assessment._temperature_grid import TemperatureMeasurement
from calibrant.assessment.expert_text import format_level, format_percent
from calibrant.backend.bins import Bins
from calibrant.metrics.tables import Classes, thresholds_of
from calibrant.report import control_data

SLIDER_THRESHOLDS = (*(i / 100 for i in range(100)), 0.995, 0.999, 0.9999)
MAX_CLASS_CURVES = 200  # whose curves the page holds
MAX_CLASS_MISTAKES = 5  # of a class
MAX_ASSESSMENT_LOGITS, MAX_MEASUREMENT_LOGITS = (
    10**9,
    3 * 10**7,
)  # logits that are passed over for the temperatures, beside fits and alone


def assessment_temperature_control(assessment: AssessmentData) -> Markup:
    """A slider for the temperature, and a switch for the calibrator."""
    fitted = {
        name: float(c.temperature) for name, c in assessment.calibrators.items() if type(c).__name__ == "Temperature"
    }
    maps = {"as they came": assessment.uncalibrated} | {
        name: t for name, t in assessment.tables.items() if name != "Identity"
    }
    return _temperature_control(assessment.uncalibrated, maps, fitted, MAX_ASSESSMENT_LOGITS)


def measurement_temperature_control(measurement: MeasurementData) -> Markup:
    """A slider for the temperature."""
    return _temperature_control(measurement, {}, {}, MAX_MEASUREMENT_LOGITS)


def _temperature_control(
    uncalibrated: MeasurementData, maps: Mapping[str, MeasurementData], fitted: Mapping[str, float], max_logits: int
) -> Markup:
    steps = uncalibrated.at_temperatures(max_logits)
    if not steps and len(maps) < 2:
        return Markup()
    temperatures = [step.temperature for step in steps]
    fitted_in_range = {
        name: t for name, t in fitted.items() if temperatures and temperatures[0] <= t <= temperatures[-1]
    }
    stops = {_nearest_index(temperatures, t): f"{name}: {t:.2f}" for name, t in fitted_in_range.items()}
    unit_index = _nearest_index(temperatures, 1.0) if temperatures else 0
    stops = {unit_index: "as they came: T = 1"} | stops
    content = {
        "heading": "What if it were more, or less, sure?",
        "note": _temperature_note(uncalibrated, bool(steps), len(maps) > 1),
        "words": _diagram_labels(uncalibrated),
        "tiles": [
            "ECE",
            "NLL",
            "Says, on average",
            uncalibrated.event.occurrence_phrase[0].upper() + uncalibrated.event.occurrence_phrase[1:],
        ],
        "one": unit_index,
        "steps": [_temperature_step(uncalibrated, step, stops.get(i, "")) for i, step in enumerate(steps)],
        "maps": [_calibrator_step(name, table) for name, table in maps.items()] if len(maps) > 1 else [],
    }
    return control_data("temperature", content)


def _nearest_index(temperatures: Sequence[float], t: float) -> int:
    return min(range(len(temperatures)), key=lambda i: abs(math.log(temperatures[i] / t)))


def _temperature_note(uncalibrated: MeasurementData, has_slider: bool, has_switch: bool) -> str:
    units = f"{uncalibrated.event.unit}s"
    parts = [
        "Dividing the logits by a temperature T above 1 makes every probability more modest, below 1 bolder. Every "
        f"number is that of all {uncalibrated.n:,} judged {units} at that T."
        if has_slider
        else "A temperature by hand would need the predictions again: these were read in pieces, or are too many."
    ]
    parts += ["Or look at what a calibrator makes of them."] if has_switch else []
    parts += [f"What looks best here was chosen on the {units} that judge it: trust the calibrators, fitted on others."]
    return " ".join(parts) + " Dots are bins, as large as they are full; the gray line is what came in."


def _diagram_labels(measurement: MeasurementData) -> dict[str, Any]:
    z = (
        None
        if measurement.clusters
        else float(torch.special.ndtri(torch.tensor((1 + measurement.level) / 2, dtype=torch.float64)))
    )
    event = measurement.event
    return {
        "said": event.probability_label,
        "happened": event.frequency_label,
        "many": f"{event.unit}s",
        "bins": measurement.bins,
        "z": z,
        "level": format_level(measurement.level),
    }


def _temperature_step(uncalibrated: MeasurementData, step: TemperatureMeasurement, stop_label: str) -> dict[str, Any]:
    infos = {name: uncalibrated[name].info for name in ("ece", "nll")}
    tiles = [
        [f"{infos['ece'].text(step.ece)} %", _noise_floor_text(step.noise_floor.value, step.noise_floor.high)],
        [infos["nll"].text(step.nll), ""],
        [format_percent(step.mean_confidence, 1), ""],
        [format_percent(uncalibrated.observed_frequency.value, 1), ""],
    ]
    content = {"name": f"T = {step.temperature:.2f}", "tiles": tiles, "cells": _bin_cells(step.reliability_bins)}
    return content | ({"stop": stop_label} if stop_label else {})


def _calibrator_step(name: str, measurement: MeasurementData) -> dict[str, Any]:
    floor = measurement["noise_floor"]
    tiles = [
        [f"{measurement['ece'].text} %", _noise_floor_text(floor.value, floor.high)],
        [measurement["nll"].text, ""],
        [format_percent(measurement.mean_confidence, 1), ""],
        [format_percent(measurement.observed_frequency.value, 1), ""],
    ]
    return {"name": name, "tiles": tiles, "cells": _bin_cells(measurement.reliability_bins)}


def _noise_floor_text(mean: float, high: float) -> str:
    return f"by chance {format_percent(mean)}, up to {format_percent(high)}"


def _bin_cells(bins: Bins) -> list[list[int]]:
    """The bins that hold anything: which, how many, what was said and what happened, in millionths."""
    columns = bins.count.tolist(), bins.confidence.tolist(), bins.accuracy.tolist()
    return [
        [i, n, _to_millionths(confidence), _to_millionths(accuracy)]
        for i, (n, confidence, accuracy) in enumerate(zip(*columns, strict=True))
        if n
    ]


def threshold_control(measurements: Mapping[str, MeasurementData]) -> Markup:
    """A slider for the threshold from which on one acts, and what that costs."""
    measurement = next(iter(measurements.values()))
    event, top = measurement.event, "aurc" in measurement.event.rows
    probability_label = event.probability_label
    words = {
        "said": probability_label,
        "slider": f"Act on a {probability_label} of at least",
        "tiles": ["acted on", "error among them" if top else "false alarms among them", "expected cost"],
        "share": f"of all {event.unit}s",
        "each": f"per {event.unit}",
        "costs": ["cost of a mistake", "cost of not acting"] if top else ["cost of a false alarm", "cost of a miss"],
        "cheapest": f"On these {event.unit}s it is cheapest to act from",
    }
    note = (
        "Costs are in any unit: what acting wrongly costs, and what it costs not to act, such as asking a person."
        if top
        else "Costs are in any unit: what a false alarm costs, and what it costs to miss a true one."
    )
    base = None if top else measurement.observed_frequency.value
    content = {
        "heading": "Where to draw the line",
        "note": note,
        "words": words,
        "base": base,
        "tables": [{"name": name, "rows": _threshold_rows(table)} for name, table in measurements.items()],
    }
    return control_data("threshold", content)


def _threshold_rows(measurement: MeasurementData) -> list[list[Any]]:
    """Per threshold: itself, the shares acted on and found, how often that is right, and the same as it is shown."""
    thresholds = thresholds_of(measurement.ties, SLIDER_THRESHOLDS, measurement.level)
    columns = (
        thresholds.threshold,
        thresholds.share,
        thresholds.precision,
        thresholds.recall,
        thresholds.low,
        thresholds.high,
    )
    return [
        [
            c,
            *map(_round_or_none, (share, precision, recall)),
            format_percent(share),
            *_error_text(precision, low, high, measurement),
        ]
        for c, share, precision, recall, low, high in zip(*(column.tolist() for column in columns), strict=True)
    ]


def _error_text(precision: float, low: float, high: float, measurement: MeasurementData) -> tuple[str, str]:
    if math.isnan(precision):
        return "\N{EN DASH}", ""
    return format_percent(
        1 - precision
    ), f"{100 * (1 - high):.2f} to {format_percent(1 - low)} with {format_level(measurement.level)}"


def _round_or_none(x: float) -> float | None:
    return None if math.isnan(x) else round(x, 6)


def class_control(measurements: Mapping[str, MeasurementData], class_tables: Sequence[Classes]) -> Markup:
    """What a class shows when it is opened: its curve, before and after, and its most confident mistakes."""
    measurement = next(iter(measurements.values()))
    class_indices = class_tables[0].worst_first[:MAX_CLASS_CURVES].tolist()
    mistakes = measurement.mistakes_by_class(class_indices, MAX_CLASS_MISTAKES)
    rows = [
        {
            "layers": [_class_cells(class_table.cells[j], measurement.n) for class_table in class_tables],
            "mistakes": None if mistakes is None else [_mistake_cells(measurement, m) for m in mistakes.get(j, ())],
        }
        for j in class_indices
    ]
    words = _diagram_labels(measurement) | {
        "said": "probability of the class",
        "happened": "its frequency",
        "mistakes": "Its most confident mistakes",
        "none": f"No {measurement.event.unit} of it, or predicted to be of it, is mistaken.",
    }
    head = ["row", "true class", "predicted", "said"]
    return control_data("classes", {"words": words, "names": list(measurements), "rows": rows, "head": head})


def _mistake_cells(measurement: MeasurementData, m: Mistake) -> list[str]:
    return [
        str(m.row),
        measurement.class_name(m.label),
        measurement.class_name(m.predicted),
        format_percent(m.probability),
    ]


def _class_cells(cells: Tensor, n: int) -> list[list[int]]:
    """The same of a class, by bin of its probability; rounding errors of sums must not leave what is a share."""
    share, confidence_sums, outcome_sums = cells.T
    parts = zip(
        (n * share).round().tolist(), (confidence_sums / share).tolist(), (outcome_sums / share).tolist(), strict=True
    )
    return [[i, int(count), _to_millionths(c), _to_millionths(a)] for i, (count, c, a) in enumerate(parts) if count > 0]


def _to_millionths(share: float) -> int:
    return round(1e6 * min(1.0, max(0.0, share)))
