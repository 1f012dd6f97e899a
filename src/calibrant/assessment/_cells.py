"""Cells and headings of tables that the terminal and the page share."""

import math
from collections.abc import Sequence

from calibrant._text import display_name, format_percent
from calibrant.assessment._results import MeasurementData, Row
from calibrant.assessment.expert_text import format_p_value
from calibrant.events import EventKind
from calibrant.metrics import MetricInfo

GROUP_TABLE_COLUMNS = "predicted", "observed", "gap (points)", "interval", "ECE (%)", "noise floor", "NLL"


def group_rows(measurement: MeasurementData) -> list[list[str]]:
    """Return the cells of a row per group, worst first, then of the mean over groups and of all rows together."""
    groups, event = measurement.groups, measurement.event
    assert groups is not None

    def row(name: str, count: str, values: Sequence[float], interval: str, floor: str) -> list[str]:
        mean_confidence, frequency, gap, ece, nll = values
        return [
            *(name, count, format_percent(mean_confidence, 1), format_percent(frequency, 1), f"{100 * gap:+z.1f}"),
            *(interval, f"{100 * ece:.2f}", floor, measurement["nll"].info.text(nll)),
        ]

    def interval_text(low: float, high: float) -> str:
        return f"[{100 * low:+z.1f}, {100 * high:+z.1f}]"

    def floor_text(mean: float, high: float) -> str:
        return f"{100 * mean:.2f}, up to {100 * high:.2f}"

    columns = ("said", "happened", "gap", "ece", "nll")
    rows = [
        row(
            display_name(r["group"]),
            f"{r['count']:,.6g}" if r["count"] % 1 else f"{int(r['count']):,}",
            [r[name] for name in columns],
            interval_text(r["low"], r["high"]),
            floor_text(r["floor"], r["floor_high"]),
        )
        for r in groups.records()
    ]
    means = [groups.macro(name) for name in columns]
    gap, ece, floor = measurement["signed_gap"], measurement["ece"], measurement["noise_floor"]
    frequency = measurement.observed_frequency.value
    pooled = [measurement.mean_confidence, frequency, gap.value, ece.value, measurement["nll"].value]
    return [
        *rows,
        row(f"mean over {event.groups}", "", means, "", f"{100 * groups.macro('floor'):.2f}"),
        row(
            "all",
            f"{measurement.n:,}",
            pooled,
            interval_text(gap.low, gap.high),
            floor_text(floor.value, floor.high),
        ),
    ]


def group_headings(event: EventKind) -> list[str]:
    """Return the column headings of `group_rows`."""
    units = "examples" if event.group == event.unit else event.units
    return [event.group, units, *GROUP_TABLE_COLUMNS]


def interval_or_p_value(row: Row) -> str:
    """Return the interval of a row, or its p-value."""
    return row.interval if math.isnan(row.p_value) else format_p_value(row.p_value)


def best_mask(measurements: Sequence[MeasurementData], metric_names: Sequence[str]) -> list[list[bool]]:
    """Return for every measurement and metric whether its value is the best."""
    best = [measurements[0][name].info.best([table[name].value for table in measurements]) for name in metric_names]
    return [
        [table[name].value == value for name, value in zip(metric_names, best, strict=True)] for table in measurements
    ]


def metric_headings(measurement: MeasurementData, metric_names: Sequence[str]) -> list[str]:
    """Return short column headings of metrics, with their units."""
    infos: list[tuple[str, MetricInfo]] = [(name, measurement[name].info) for name in metric_names]
    return [info.heading(name if "(" in name else "") for name, info in infos]
