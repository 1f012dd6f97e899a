"""A metric against a parameter of the loss, the data set or the calibrator: the papers' sweeps, from a study's rows."""

import math
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from calibrant import metrics, plots
from calibrant.catalog import Method, hyperparameters
from calibrant.study.config import Study
from calibrant.study.drawing import Drawing, legend, slug
from calibrant.study.tables import central

__all__ = ["sweeps"]

Rows = Sequence[Mapping[str, Any]]
FEWEST = 3  # values of a parameter that make a line
MIRRORED = {"inverse_focal": "focal"}  # inverse focal loss goes on where focal loss ends: gamma below 0


@dataclass(frozen=True)
class Family:
    """Methods that differ in one number."""

    name: str  # with what they share
    parameter: str
    values: Mapping[str, float]  # of each method, by its text in the study


def sweeps(study: Study, rows: Iterable[Mapping[str, Any]]) -> Iterator[Drawing]:
    """Yield a drawing for every family of losses, data sets or calibrators, metric by metric.

    Losses (Wang et al. 2021, Figures 1a to 1c and 6b to 6f): a line per data set and network. Sizes of data sets (their
    Figure 3): a line per loss; and which strength of a loss is best at each size (their Figure 1d). Parameters of a
    calibrator (Komisarenko & Kull 2024, Figure 8): a line per loss, with the temperature, too. Lines are means over
    seeds, shaded from least to most.
    """
    known = [dict(row) for row in rows if not row["shift"] and not row.get("reason")]
    known += [
        row | {"metric": "temperature", "value": row["temperature"]}
        for row in known
        if row["metric"] == known[0]["metric"] and not math.isnan(row["temperature"])
    ]
    main = {central(metric.text for metric in study.metrics), "temperature"}
    runs = list(study.runs())
    losses = _families({study.label(run.loss): run.loss for run in runs})
    sets = _families({study.label(run.dataset): run.dataset for run in runs})
    for family in losses:
        yield from _drawn(known, "loss", family, ("calibrator",), _place, main)
    for family in sets:
        yield from _drawn(known, "dataset", family, ("network", "calibrator"), lambda row: row["loss"], main)
        for loss in losses:
            yield from _best(known, family, loss)
    for family in _families({c.text: c for c in study.calibrators}):
        yield from _drawn(known, "calibrator", family, ("dataset", "network"), lambda row: row["loss"], main)


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['network']} on {row['dataset']}"


def _families(methods: Mapping[str, Method]) -> list[Family]:
    """Return the families of at least `FEWEST` methods."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for text, method in methods.items():
        settings, sign = hyperparameters(method.function) | method.settings, 1
        name = MIRRORED.get(method.name, method.name)
        if name != method.name:
            sign = -1
        for key, value in settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = ", ".join(f"{k}={v!r}" for k, v in sorted(settings.items()) if k != key and k in method.settings)
                found.setdefault((f"{name}({rest})" if rest else name, key), {})[text] = sign * float(value)
    if "cross_entropy" in methods:  # focal loss of gamma 0
        for (name, key), values in found.items():
            if key == "gamma" and name.partition("(")[0] == "focal":
                values["cross_entropy"] = 0.0
    return [Family(name, key, values) for (name, key), values in found.items() if len(set(values.values())) >= FEWEST]


def _drawn(
    rows: Rows,
    axis: str,
    family: Family,
    apart: tuple[str, ...],
    line_of: Callable[[Mapping[str, Any]], str],
    main: Collection[str],
) -> Iterator[Drawing]:
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row[axis] in family.values:
            groups.setdefault((row["metric"], *(row[key] for key in apart)), []).append(row)
    for (metric, *where), found in groups.items():
        lines: dict[str, dict[float, list[float]]] = {}
        for row in found:
            x = family.values[row[axis]]
            if not math.isnan(row["value"]):
                lines.setdefault(line_of(row), {}).setdefault(x, []).append(float(row["value"]))
        lines = {name: points for name, points in lines.items() if len(points) >= FEWEST}
        if lines:
            made = _drawing(metric, metrics.in_words(metric), family, ", ".join(where), lines)
            yield replace(made, main=metric in main)


def _best(rows: Rows, sizes: Family, losses: Family) -> Iterator[Drawing]:
    """Draw the parameter of a loss at which a metric is best, for every size of a data set."""
    means: dict[tuple[str, str, str], dict[float, dict[float, list[float]]]] = {}
    for row in rows:
        if row["dataset"] in sizes.values and row["loss"] in losses.values and row["metric"] != "temperature":
            key = row["metric"], row["network"], row["calibrator"]
            at = means.setdefault(key, {}).setdefault(sizes.values[row["dataset"]], {})
            at.setdefault(losses.values[row["loss"]], []).append(float(row["value"]))
    for (metric, network, calibrator), by_size in means.items():
        points: dict[float, list[float]] = {}
        for size, values in by_size.items():
            mean = {x: float(np.mean(found)) for x, found in values.items()}
            best = metrics.about(metric).best(list(mean.values()))
            points[size] = [x for x, value in mean.items() if value == best][:1]
        if all(points.values()) and len(points) >= FEWEST:
            family = Family(sizes.name, sizes.parameter, {})
            what = f"best {losses.parameter} of {losses.name} by {metric}"
            words = f"best {losses.parameter} of {losses.name} by {metrics.in_words(metric).removesuffix(' in %')}"
            yield _drawing(what, words, family, f"{network}, {calibrator}", {losses.name: points})


def _drawing(
    metric: str, words: str, family: Family, where: str, lines: Mapping[str, Mapping[float, Sequence[float]]]
) -> Drawing:
    about = metrics.about(metric)
    unit = 100 if about.percent else 1
    xs = sorted({x for points in lines.values() for x in points})
    most = max(len(values) for points in lines.values() for values in points.values())
    arrays = {
        name: unit * np.array([[*points.get(x, []), *[math.nan] * most][:most] for x in xs]).T
        for name, points in lines.items()
    }
    title = f"{words} against {family.parameter} of {family.name}, {where}"
    numbers = [
        {"line": name, family.parameter: x, "run": run, "value": value}
        for name, points in lines.items()
        for x in sorted(points)
        for run, value in enumerate(points[x])
    ]
    ends = "; ".join(f"{name} {_range(points, about.text)}" for name, points in lines.items())
    ink = partial(_ink, arrays, xs, family.parameter, words)
    name = slug(f"sweep_{metric}_{family.name}_{family.parameter}_{where}")
    return Drawing(name, title, f"{title}: {ends}.", ink, numbers)


def _range(points: Mapping[float, Sequence[float]], text: Callable[[float], str]) -> str:
    ends = min(points), max(points)
    return " to ".join(f"{text(float(np.mean(points[x])))} at {x:g}" for x in ends)


def _ink(arrays: Mapping[str, np.ndarray], xs: Sequence[float], xlabel: str, ylabel: str, ax: Axes) -> None:
    plots.curves(arrays, ax=ax, x=xs, xlabel=xlabel, ylabel=textwrap.fill(ylabel, 32))
    legend(ax)
