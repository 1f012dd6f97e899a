"""Plot metrics against a parameter of the loss, the data set or the calibrator, as the papers' sweeps do."""

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from calibrant import metrics
from calibrant._core.grouping import group_pairs
from calibrant._core.registry import Method, hyperparameters
from calibrant.lab.study.config import Study
from calibrant.lab.study.drawing import Drawing, slug
from calibrant.lab.study.grids import Setup
from calibrant.lab.study.tables import best_keys, main_calibration_error
from calibrant.reports import plots

MetricRows = Sequence[Mapping[str, Any]]
MIN_LINE_POINTS = 3  # values of the parameter
NEGATED_LOSSES = {"inverse_focal": "focal"}  # inverse focal loss continues focal loss below gamma = 0
ZERO_IS_CROSS_ENTROPY = {("focal", "gamma"), ("logit_norm", "strength")}  # losses with this parameter at 0


@dataclass(frozen=True)
class MethodFamily:
    """Methods that differ in the value of one parameter."""

    name: str  # with the shared settings
    parameter: str
    values: Mapping[str, float]  # of the parameter, by the label of each method


def sweep_drawings(study: Study, result_rows: Iterable[Mapping[str, Any]]) -> Iterator[Drawing]:
    """Yield a figure for every metric and every family of losses, data sets or calibrators.

    A family has methods that differ in one parameter, which is the x axis.

    - Families of losses (Wang et al. 2021, Figures 1a to 1c and 6b to 6f): a line per data set and network.
    - Families of data sets (their Figure 3): a line per loss, and the best parameter of each family of losses at every
      size (their Figure 1d).
    - Families of calibrators (Komisarenko & Kull 2024, Figure 8): a line per loss.

    The fitted temperature is drawn as if it were a metric.

    Lines are means over seeds, shaded from minimum to maximum.
    """
    unshifted_rows: list[dict[str, Any]] = [
        dict(row) | {"setup": str(Setup(row["dataset"], row["network"]))}
        for row in result_rows
        if not row["shift"] and not row.get("reason")  # the reason why a run has no value
    ]
    temperature_rows = [
        row | {"metric": "temperature", "value": row["temperature"]}
        for row in unshifted_rows
        if row["metric"] == unshifted_rows[0]["metric"]  # the rows of other metrics repeat the temperature
        and not math.isnan(row["temperature"])
    ]
    rows = unshifted_rows + temperature_rows
    main_metrics = {main_calibration_error(metric.text for metric in study.metrics), "temperature"}
    runs = list(study.runs())
    draw = partial(_family_drawings, rows, main_metrics=main_metrics)
    loss_families = _find_families({study.label(run.loss): run.loss for run in runs})
    for family in loss_families:
        yield from draw(family, "loss", group_columns=("calibrator",), line_column="setup")
    for family in _find_families({study.label(run.dataset): run.dataset for run in runs}):
        yield from draw(family, "dataset", group_columns=("network", "calibrator"), line_column="loss")
        for loss_family in loss_families:
            yield from _best_parameter_drawings(rows, sizes=family, losses=loss_family)
    for family in _find_families({calibrator.text: calibrator for calibrator in study.calibrators}):
        yield from draw(family, "calibrator", group_columns=("dataset", "network"), line_column="loss")


def _find_families(methods: Mapping[str, Method]) -> list[MethodFamily]:
    """Return the families of methods, given by label, whose parameter has at least `MIN_LINE_POINTS` values.

    Every numeric setting, such as gamma in focal(gamma=3), is the parameter of one family. The other settings of its
    methods are equal.
    """
    values_by_family: dict[tuple[str, str], dict[str, float]] = {}  # values by label, by name and parameter
    for label, method in methods.items():
        # inverse focal loss joins the family of focal loss, with a negative gamma
        sign = -1 if method.name in NEGATED_LOSSES else 1
        name = NEGATED_LOSSES.get(method.name, method.name)
        for parameter, value in (hyperparameters(method.function) | method.settings).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                other_settings = sorted((key, v) for key, v in method.settings.items() if key != parameter)
                shared = ", ".join(f"{key}={v!r}" for key, v in other_settings)
                family_name = f"{name}({shared})" if shared else name
                values_by_family.setdefault((family_name, parameter), {})[label] = sign * float(value)
    if "cross_entropy" in methods:
        for (name, parameter), values in values_by_family.items():
            if (name.partition("(")[0], parameter) in ZERO_IS_CROSS_ENTROPY:
                values["cross_entropy"] = 0.0
    return [
        MethodFamily(name, parameter, values)
        for (name, parameter), values in values_by_family.items()
        if len(set(values.values())) >= MIN_LINE_POINTS
    ]


def _family_drawings(
    rows: MetricRows,
    family: MethodFamily,
    method_column: str,
    *,
    group_columns: tuple[str, ...],
    line_column: str,
    main_metrics: Collection[str],
) -> Iterator[Drawing]:
    """Yield figures of metrics against the parameter of a method family, one per metric and group.

    Args:
        rows: The results.
        family: The methods, with the value of their parameter.
        method_column: Column with the labels of the methods, such as "loss".
        group_columns: Columns whose values make up a group, such as "calibrator".
        line_column: Column with the names of the lines, such as "setup".
        main_metrics: Metrics that are shown without unfolding.
    """
    family_rows = [row for row in rows if row[method_column] in family.values and not math.isnan(row["value"])]
    groups = group_pairs(((row["metric"], *(row[key] for key in group_columns)), row) for row in family_rows)
    for (metric, *group_names), group_rows in groups.items():
        points_by_line = group_pairs(
            (row[line_column], (family.values[row[method_column]], float(row["value"]))) for row in group_rows
        )
        # for each line, the values over seeds by parameter
        lines = {name: group_pairs(points) for name, points in points_by_line.items()}
        if long_lines := {name: points for name, points in lines.items() if len(points) >= MIN_LINE_POINTS}:
            description = metrics.describe_metric(metric)
            drawing = _sweep_drawing(metric, description, family, group_name=", ".join(group_names), lines=long_lines)
            yield replace(drawing, is_main=metric in main_metrics)


def _best_parameter_drawings(rows: MetricRows, sizes: MethodFamily, losses: MethodFamily) -> Iterator[Drawing]:
    """Yield a figure per metric, network and calibrator: the best parameter of a loss against the data set size.

    `sizes` is a family of data sets, and `losses` a family of losses. The best parameter has the best mean over seeds.
    """
    groups = group_pairs(
        ((row["metric"], row["network"], row["calibrator"]), row)
        for row in rows
        if row["dataset"] in sizes.values
        and row["loss"] in losses.values
        and row["metric"] != "temperature"  # no temperature is the best
    )
    for (metric, network, calibrator), group_rows in groups.items():
        best_by_size: dict[float, list[float]] = {}
        for size, size_rows in group_pairs((sizes.values[row["dataset"]], row) for row in group_rows).items():
            values = group_pairs((losses.values[row["loss"]], float(row["value"])) for row in size_rows)
            means = {parameter: float(np.mean(over_seeds)) for parameter, over_seeds in values.items()}
            # a list of one parameter, the first of equally good ones, or empty if none is the best
            best_by_size[size] = best_keys(metrics.metric_info(metric), means)[:1]
        if all(best_by_size.values()) and len(best_by_size) >= MIN_LINE_POINTS:
            prefix = f"best {losses.parameter} of {losses.name} by "
            description = prefix + metrics.describe_metric(metric).removesuffix(" in %")
            lines, group_name = {losses.name: best_by_size}, f"{network}, {calibrator}"
            yield _sweep_drawing(prefix + metric, description, sizes, group_name=group_name, lines=lines)


def _sweep_drawing(
    metric: str,
    description: str,
    family: MethodFamily,
    *,
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
    metric_info = metrics.metric_info(metric)
    scale = 100 if metric_info.percent else 1
    xs = sorted({x for points in lines.values() for x in points})
    max_runs = max(len(values) for points in lines.values() for values in points.values())
    arrays = {name: np.full((max_runs, len(xs)), math.nan) for name in lines}  # (runs, x); nan where runs are missing
    for name, points in lines.items():
        for x, values in points.items():
            arrays[name][: len(values), xs.index(x)] = scale * np.array(values)
    title = f"{description} against {family.parameter} of {family.name}, {group_name}"
    data = [
        {"line": name, family.parameter: x, "run": run, "value": value}
        for name, points in lines.items()
        for x in sorted(points)
        for run, value in enumerate(points[x])
    ]
    ranges = "; ".join(f"{name} {_range_text(points, metric_info.text)}" for name, points in lines.items())
    has_inverse = family.name.partition("(")[0] in NEGATED_LOSSES.values() and family.parameter == "gamma" and xs[0] < 0
    xlabel = "gamma of focal loss, below 0 of inverse focal loss" if has_inverse else family.parameter
    draw_sweep = _draw_reversed if has_inverse else plots.curves
    draw = partial(draw_sweep, arrays, x=xs, xlabel=xlabel, ylabel=textwrap.fill(description, width=32))
    name = slug(f"sweep_{metric}_{family.name}_{family.parameter}_{group_name}")
    return Drawing(name, title, f"{title}: {ranges}.", draw, data)


def _draw_reversed(*lines: Any, ax: Axes, **labels: Any) -> Axes:
    """Draw curves from focal loss on the left to inverse focal loss on the right (Wang et al. 2021, Figure 6)."""
    plots.curves(*lines, ax=ax, **labels)
    ax.invert_xaxis()
    return ax


def _range_text(points: Mapping[float, Sequence[float]], format_value: Callable[[float], str]) -> str:
    """Return the means over seeds at the smallest and the largest parameter, such as "4.20 at 0 to 1.30 at 5"."""
    return " to ".join(f"{format_value(float(np.mean(points[x])))} at {x:g}" for x in (min(points), max(points)))
