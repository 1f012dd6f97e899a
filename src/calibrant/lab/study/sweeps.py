"""Plot metrics against a parameter of the loss, the data set or the calibrator, as the papers' sweeps do."""

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from calibrant import metrics, plots
from calibrant._grouping import group_pairs
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing, slug
from calibrant.lab.study.grids import Setup
from calibrant.lab.study.tables import best_keys, main_calibration_error
from calibrant.registry import Method, hyperparameters

MetricRows = Sequence[Mapping[str, Any]]
MIN_LINE_POINTS = 3  # values of the parameter
NEGATED_LOSSES = {"inverse_focal": "focal"}  # inverse focal loss continues focal loss below gamma = 0


@dataclass(frozen=True)
class MethodFamily:
    """Methods that differ in one number."""

    name: str  # with the shared settings
    parameter: str
    values: Mapping[str, float]  # by the label of each method


def sweep_drawings(study: Study, result_rows: Iterable[Mapping[str, Any]]) -> Iterator[Drawing]:
    """Yield a figure for every metric and every family of losses, data sets or calibrators.

    - Families of losses (Wang et al. 2021, Figures 1a to 1c and 6b to 6f): a line per data set and network.
    - Families of data sets (their Figure 3): a line per loss, and the best parameter of each family of losses at every
      size (their Figure 1d).
    - Families of calibrators (Komisarenko & Kull 2024, Figure 8): a line per loss, also of the temperature.

    Lines are means over seeds, shaded from minimum to maximum.
    """
    unshifted_rows: list[dict[str, Any]] = [
        dict(row) | {"setup": str(Setup(row["dataset"], row["network"]))}
        for row in result_rows
        if not row["shift"] and not row.get("reason")
    ]
    temperature_rows = [
        row | {"metric": "temperature", "value": row["temperature"]}
        for row in unshifted_rows
        if row["metric"] == unshifted_rows[0]["metric"]  # every metric repeats the temperature
        and not math.isnan(row["temperature"])
    ]
    rows = unshifted_rows + temperature_rows
    main_metrics = {main_calibration_error(metric.text for metric in study.metrics), "temperature"}
    runs = list(study.runs())
    loss_families = _find_families({study.label(run.loss): run.loss for run in runs})
    for family in loss_families:
        yield from _family_drawings(rows, "loss", family, ("calibrator",), "setup", main_metrics)
    for family in _find_families({study.label(run.dataset): run.dataset for run in runs}):
        yield from _family_drawings(rows, "dataset", family, ("network", "calibrator"), "loss", main_metrics)
        for loss_family in loss_families:
            yield from _best_parameter_drawings(rows, family, loss_family)
    for family in _find_families({c.text: c for c in study.calibrators}):
        yield from _family_drawings(rows, "calibrator", family, ("dataset", "network"), "loss", main_metrics)


def _find_families(methods: Mapping[str, Method]) -> list[MethodFamily]:
    """Return the families of methods, given by label, whose parameter has at least `MIN_LINE_POINTS` values.

    Every number among the settings is the parameter of a family of methods whose other settings are equal.
    """
    values_by_family: dict[tuple[str, str], dict[str, float]] = {}  # by name and parameter
    for label, method in methods.items():
        sign = -1 if method.name in NEGATED_LOSSES else 1
        name = NEGATED_LOSSES.get(method.name, method.name)
        for parameter, value in (hyperparameters(method.function) | method.settings).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                fixed = ", ".join(f"{k}={v!r}" for k, v in sorted(method.settings.items()) if k != parameter)
                family_name = f"{name}({fixed})" if fixed else name
                values_by_family.setdefault((family_name, parameter), {})[label] = sign * float(value)
    if "cross_entropy" in methods:  # focal loss with gamma = 0
        for (name, parameter), values in values_by_family.items():
            if parameter == "gamma" and name.partition("(")[0] == "focal":
                values["cross_entropy"] = 0.0
    return [
        MethodFamily(name, parameter, values)
        for (name, parameter), values in values_by_family.items()
        if len(set(values.values())) >= MIN_LINE_POINTS
    ]


def _family_drawings(
    rows: MetricRows,
    axis: str,
    family: MethodFamily,
    group_columns: tuple[str, ...],
    line_column: str,
    main_metrics: Collection[str],
) -> Iterator[Drawing]:
    """Yield figures of metrics against the parameter of a method family, one per metric and group.

    Args:
        rows: The results.
        axis: Column of the methods.
        family: The methods, with the value of their parameter.
        group_columns: Columns of the groups.
        line_column: Column of the names of the lines.
        main_metrics: Metrics that are shown without unfolding.
    """
    family_rows = [row for row in rows if row[axis] in family.values and not math.isnan(row["value"])]
    groups = group_pairs(((row["metric"], *(row[key] for key in group_columns)), row) for row in family_rows)
    for (metric, *group_names), group_rows in groups.items():
        points = group_pairs((row[line_column], (family.values[row[axis]], float(row["value"]))) for row in group_rows)
        values_by_x = {name: group_pairs(line_points) for name, line_points in points.items()}  # values over seeds
        lines = {name: values for name, values in values_by_x.items() if len(values) >= MIN_LINE_POINTS}
        if lines:
            drawing = _sweep_drawing(metric, metrics.describe_metric(metric), family, ", ".join(group_names), lines)
            yield replace(drawing, is_main=metric in main_metrics)


def _best_parameter_drawings(rows: MetricRows, sizes: MethodFamily, losses: MethodFamily) -> Iterator[Drawing]:
    """Yield a figure per metric that shows a loss's best parameter against the data set size."""
    groups = group_pairs(
        ((row["metric"], row["network"], row["calibrator"]), row)
        for row in rows
        if row["dataset"] in sizes.values
        and row["loss"] in losses.values
        and row["metric"] != "temperature"  # of which no value is best
    )
    for (metric, network, calibrator), group_rows in groups.items():
        best_by_size: dict[float, list[float]] = {}
        for size, size_rows in group_pairs((sizes.values[row["dataset"]], row) for row in group_rows).items():
            values = group_pairs((losses.values[row["loss"]], float(row["value"])) for row in size_rows)
            means = {parameter: float(np.mean(over_seeds)) for parameter, over_seeds in values.items()}
            best_by_size[size] = best_keys(metrics.metric_info(metric), means)[:1]  # the first of equally good ones
        if all(best_by_size.values()) and len(best_by_size) >= MIN_LINE_POINTS:
            best = f"best {losses.parameter} of {losses.name} by "
            description = best + metrics.describe_metric(metric).removesuffix(" in %")
            lines = {losses.name: best_by_size}
            yield _sweep_drawing(best + metric, description, sizes, f"{network}, {calibrator}", lines)


def _sweep_drawing(
    metric: str,
    description: str,
    family: MethodFamily,
    group_name: str,
    lines: Mapping[str, Mapping[float, Sequence[float]]],
) -> Drawing:
    """Return a figure of a metric against the parameter of a family.

    Args:
        metric: The metric, for the name of the figure and the unit.
        description: The metric in words.
        family: The methods with the parameter.
        group_name: Further names for the title.
        lines: Values over seeds by the parameter, for each line.
    """
    about = metrics.metric_info(metric)
    unit = 100 if about.percent else 1
    xs = sorted({x for points in lines.values() for x in points})
    max_runs = max(len(values) for points in lines.values() for values in points.values())
    arrays = {name: np.full((max_runs, len(xs)), math.nan) for name in lines}  # nan where a line has fewer runs
    for name, points in lines.items():
        for x, values in points.items():
            arrays[name][: len(values), xs.index(x)] = unit * np.array(values)
    title = f"{description} against {family.parameter} of {family.name}, {group_name}"
    numbers = [
        {"line": name, family.parameter: x, "run": run, "value": value}
        for name, points in lines.items()
        for x in sorted(points)
        for run, value in enumerate(points[x])
    ]
    ranges = "; ".join(f"{name} {_range_text(points, about.text)}" for name, points in lines.items())
    has_inverse = family.name in NEGATED_LOSSES.values() and family.parameter == "gamma" and xs[0] < 0
    xlabel = "gamma of focal loss, below 0 of inverse focal loss" if has_inverse else family.parameter
    draw_sweep = _draw_reversed if has_inverse else plots.curves
    draw = partial(draw_sweep, arrays, x=xs, xlabel=xlabel, ylabel=textwrap.fill(description, 32))
    name = slug(f"sweep_{metric}_{family.name}_{family.parameter}_{group_name}")
    return Drawing(name, title, f"{title}: {ranges}.", draw, numbers)


def _draw_reversed(*lines: Any, ax: Axes, **labels: Any) -> Axes:
    """Draw curves from focal loss on the left to inverse focal loss on the right (Wang et al. 2021, Figure 6)."""
    plots.curves(*lines, ax=ax, **labels)
    ax.invert_xaxis()
    return ax


def _range_text(points: Mapping[float, Sequence[float]], text: Callable[[float], str]) -> str:
    """Return the means over seeds at the smallest and the largest parameter."""
    return " to ".join(f"{text(float(np.mean(points[x])))} at {x:g}" for x in (min(points), max(points)))
