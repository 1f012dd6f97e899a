"""Cells and headings of tables that the terminal and the page share."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from calibrant._core.text import display_name, format_percent
from calibrant.assessment._results import MeasurementData, Row
from calibrant.assessment.expert_text import format_p_value
from calibrant.metrics import MetricInfo
from calibrant.predictions.events import EventKind

GROUP_TABLE_COLUMNS = "predicted", "observed", "gap (points)", "interval", "ECE (%)", "noise floor", "NLL"


def group_rows(measurement: MeasurementData) -> list[list[str]]:
    """Return the table rows of groups, worst first, then the mean over groups, then the row "all".

    Each row is a list of texts, in the columns of `group_headings`.
    """
    groups = measurement.groups
    assert groups is not None  # called only for measurements with groups
    gap, floor, nll = measurement["signed_gap"], measurement["noise_floor"], measurement["nll"]
    totals = {  # with the keys of `Groups.records`
        **{"count": measurement.n, "nll": nll.value, "ece": measurement["ece"].value},
        **{"said": measurement.mean_confidence, "happened": measurement.observed_frequency.value},
        **{"gap": gap.value, "low": gap.low, "high": gap.high, "floor": floor.value, "floor_high": floor.high},
    }
    # Macro averages: every group counts the same, whatever its size
    means = {name: groups.macro(name) for name in ("said", "happened", "gap", "ece", "floor", "nll")}
    rows = [(display_name(record["group"]), record) for record in groups.records()]
    rows += [(f"mean over {measurement.event.groups}", means), ("all", totals)]
    return [_group_cells(name, values, nll.info) for name, values in rows]


def _group_cells(name: str, values: Mapping[str, Any], nll_info: MetricInfo) -> list[str]:
    """Return the cells of a row in the table of groups. Means over groups have no count and no intervals.

    The value "said" is the mean confidence, and "happened" the frequency of the event.
    """
    count_text = interval = ""
    floor = f"{100 * values['floor']:.2f}"
    if "count" in values:
        count = values["count"]
        count_text = f"{count:,.6g}" if count % 1 else f"{int(count):,}"  # weights may be fractions
        interval = f"[{100 * values['low']:+z.1f}, {100 * values['high']:+z.1f}]"
        floor += f", up to {100 * values['floor_high']:.2f}"
    return [
        name,
        count_text,
        format_percent(values["said"], 1),
        format_percent(values["happened"], 1),
        f"{100 * values['gap']:+z.1f}",
        interval,
        f"{100 * values['ece']:.2f}",
        floor,
        nll_info.text(values["nll"]),
    ]


def group_headings(event: EventKind) -> list[str]:
    """Return the column headings of `group_rows`."""
    return [event.group, event.units, *GROUP_TABLE_COLUMNS]


def interval_or_p_value(row: Row) -> str:
    """Return the interval of a row, or its p-value."""
    return row.interval if math.isnan(row.p_value) else format_p_value(row.p_value)


def best_mask(measurements: Sequence[MeasurementData], metric_names: Sequence[str]) -> list[list[bool]]:
    """Return for every measurement and metric whether its value is the best."""
    best = [measurements[0][name].info.best([m[name].value for m in measurements]) for name in metric_names]
    return [[m[name].value == value for name, value in zip(metric_names, best, strict=True)] for m in measurements]


def metric_headings(measurement: MeasurementData, metric_names: Sequence[str]) -> list[str]:
    """Return column headings of metrics with their units: abbreviations, or the text of a metric with settings."""
    infos: list[tuple[str, MetricInfo]] = [(name, measurement[name].info) for name in metric_names]
    return [info.heading(name if "(" in name else "") for name, info in infos]
