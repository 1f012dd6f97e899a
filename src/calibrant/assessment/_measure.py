"""What one should know of a set of predictions, in one table, from one pass over the logits."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant import calibrators, metrics
from calibrant.assessment._evaluation import mistakes_by_class
from calibrant.assessment._events import EventDescription, describe_event, select_event
from calibrant.assessment._provenance import data_source
from calibrant.assessment._results import MeasurementData, Row, Verdict
from calibrant.assessment._serialize import write_by_suffix
from calibrant.assessment._temperature_grid import measure_temperatures
from calibrant.assessment._verdict import NOISE_FLOOR_BY_METRIC, decide_verdict, exceeds_noise_floor, find_data_problems
from calibrant.io import to_safe_csv
from calibrant.metrics import Interval, Metric, Summary, tables
from calibrant.metrics.tables import Classes, ClassSums, collect_class_bins
from calibrant.predictions import PRESENCE_CLASSES, Predictions, as_predictions
from calibrant.predictions.folds import num_units
from calibrant.registry import METRICS, Method
from calibrant.types import InputError

DEFAULT_BINS = 15
BINNED_METRICS = (
    "ece",
    "noise_floor",
    "adaptive_ece",
    "adaptive_noise_floor",
    "debiased_l2",
)  # rows with the table's bins


class Measurement(MeasurementData):
    """The table, in the order in which it should be read, and what is behind it.

    It prints, shows itself in a notebook, and is saved as .html, .json or .csv; `measurement["ece"]` is a row.
    """

    def html(self, facts: dict[str, str] | None = None) -> str:
        """Return the report, one page that opens offline; `facts` are told at its end."""
        from calibrant.assessment.sections import measurement_page

        return measurement_page(self, facts or {})

    def save(self, path: str | Path) -> None:
        """Write the report (.html), the numbers (.json) or the table (.csv)."""
        makers = {".html": self.html, ".json": self.json, ".csv": lambda: to_safe_csv(self.to_polars())}
        write_by_suffix(path, makers)

    def __rich__(self) -> Any:
        from calibrant.assessment._terminal import measurement_text

        return measurement_text(self)

    def __str__(self) -> str:
        from calibrant.assessment._terminal import render_plain_text

        return render_plain_text(self)

    def _repr_html_(self) -> str:
        from calibrant.assessment.sections import measurement_notebook_html

        return measurement_notebook_html(self)


def measure(
    predictions: Predictions | Summary,
    *,
    metrics: Sequence[str] | None = None,
    of: str | int | None = None,
    bins: int | None = None,
    level: float = 0.90,
    fit: Any = None,
) -> Measurement:
    """Everything one should know of some predictions: scores, direction, errors with floors, intervals and p-values.

    `metrics` are added to the rows of the table, by name or text such as "ece(bins=10)". `of` says what is judged:
    "top", that the predicted class is right, or a class, by index or name; if left out, what the predictions say, and
    of two classes the probability of class 1. `fit` (a calibrator, such as "Auto") adds the cross-fitted division of
    NLL into refinement and calibration. All else comes from one pass over the logits and one sort.

    The row `noise_floor` holds the mean and the central interval of the ECE of a perfectly calibrated model with
    these confidences: an ECE below its `high` is no sign of miscalibration. A `Summary` knows all rows but the
    class-wise error, unless it was made `by_class`, and has bins and event of its own. Predictions with groups have a
    table of them.

    >>> p = Predictions(torch.zeros(100, 2), torch.tensor([0] * 60 + [1] * 40))
    >>> table = measure(p)
    >>> round(table["ece"].value, 4), round(table["noise_floor"].value, 4), table["signed_gap"].note
    (0.1, 0.0399, 'overestimates class 1')
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie in (0, 1), got {level}", code="level_range")
    extra_methods = [METRICS.method(text) for text in as_list(metrics)]
    if isinstance(predictions, Summary):
        if fit is not None:
            raise InputError(
                "a summary cannot be fitted to: measure predictions in memory, or leave out `fit`",
                code="fit_on_summary",
            )
        return _measure_summary(predictions, extra_methods, of, bins, level)
    with as_predictions(predictions) as p:
        return _measure_in_memory(p.with_event(select_event(p, of)), extra_methods, bins or DEFAULT_BINS, level, fit)


def summarize(
    pieces: Iterable[Predictions],
    calibrate: Callable[[Predictions], Predictions] | None = None,
    *,
    of: str | int | None = None,
    bins: int = DEFAULT_BINS,
) -> Summary:
    """Sum up predictions that come in pieces, calibrated first if need be, for `measure`; `of` means what it does."""
    summary: Summary | None = None
    for part in pieces:
        calibrated = part if calibrate is None else calibrate(part)
        summary = summary or Summary.empty(of=select_event(part, of), bins=bins, by_class=True)
        calibrated = calibrated.with_event(summary.of)
        summary = summary.add(calibrated)
    if summary is None:
        raise InputError(
            "no predictions to measure: the iterable was empty (a generator used twice?)", code="no_predictions"
        )
    return summary


def as_list(names: Sequence[str] | None) -> list[str]:
    """Return names as a list; one name may stand alone."""
    return [names] if isinstance(names, str) else list(names or ())


def _measure_in_memory(p: Predictions, extra_methods: list[Method], bins: int, level: float, fit: Any) -> Measurement:
    k = p.k
    cells = collect_class_bins(p, bins)
    p.events.moments(bins)  # of which all sums over bins are a part: one pass makes them
    description = describe_event(p.of, k, p.class_names)
    description = replace(description, cluster="cluster") if _has_repeated_labels(p) else description
    rows: list[Row] = []
    for method in _row_methods(description, extra_methods):
        if method.text == "classwise_ece":
            rows.append(_classwise_row(cells().ece))
        else:
            rows.append(_measure_row(method, _require_metric(method).view(p), bins, level))
        if method.text == "nll" and math.isinf(rows[-1].value):
            rows[-1] = replace(
                rows[-1],
                note=_zero_probability_note(
                    _weighted_count(p.log_likelihood.isneginf(), p.weights), p.total_weight, description
                ),
            )
        if method.text == "nll" and fit is not None:
            parts = metrics.decompose_score(p, fit=partial(calibrators.fit, fit), level=level)
            rows += [_interval_row(name, i) for name, i in zip(NLL_PART_NAMES, (parts.refinement, parts.calibration))]
    events, verdict = p.events, decide_verdict(rows)
    return Measurement(
        n=len(p),
        k=k,
        bins=bins,
        level=level,
        rows=_annotate_rows(rows, description, extra_methods, verdict),
        event=description,
        names=p.class_names,
        observed_frequency=metrics.share_interval(events.outcome, p.weights, level, p.clusters),
        ties=events.ties,
        reliability_bins=events.equal_width(bins),
        compute_classes=partial(_class_table, p, cells),  # partials, which are pickled
        compute_groups=partial(tables.groups, p, bins=bins, level=level),
        compute_row_groups=partial(tables.groups, p, bins=bins, level=level, by="row_groups"),
        compute_temperatures=partial(measure_temperatures, p, bins=bins, level=level),
        compute_mistakes=partial(mistakes_by_class, p),
        clusters="" if p.clusters is None else f"{num_units(p):,} {description.cluster}{'s' * (num_units(p) != 1)}",
        verdict=verdict,
        remarks=find_data_problems(len(p), rows),
        compute_source=partial(data_source, "measured", p),
    )


def _class_table(p: Predictions, cells: Callable[[], Any]) -> Classes:
    return ClassSums.from_predictions(p, cells()).table


def _has_repeated_labels(p: Predictions) -> bool:
    """Whether a cluster of several labels per example holds more than one example: it has a label twice."""
    if p.class_names != PRESENCE_CLASSES or p.clusters is None or p.groups is None or p.group_names is None:
        return False
    pairs = p.clusters * len(p.group_names) + p.groups
    return len(pairs.unique()) < len(pairs)


NLL_PART_NAMES = ("refinement", "calibration_loss")


def _measure_summary(
    summary: Summary, extra_methods: list[Method], of: str | int | None, bins: int | None, level: float
) -> Measurement:
    if of not in (None, summary.of) and of != _event_class_name(summary):
        raise InputError(
            f"this summary judges {summary.of!r}, not {of!r}: make it with Summary.empty(of={of!r})",
            code="summary_event",
        )
    bins, description = bins or summary.bins, describe_event(summary.of, summary.k, summary.class_names)
    classes = summary.classes
    available_rows = [
        name
        for name in description.rows
        if name not in METRICS_MISSING_IN_SUMMARY or (name == "classwise_ece" and classes is not None)
    ]
    rows = [
        _summary_row(m, summary, level)
        for m in _row_methods(description, extra_methods)
        if m.text in available_rows or m in extra_methods
    ]
    zero_probability_note = _zero_probability_note(summary.total("infinite"), summary.total_weight, description)
    rows = [
        replace(row, note=zero_probability_note) if row.name == "nll" and math.isinf(row.value) else row for row in rows
    ]
    verdict = decide_verdict(rows)
    return Measurement(
        n=len(summary),
        k=summary.k,
        bins=bins,
        level=level,
        rows=_annotate_rows(rows, description, extra_methods, verdict),
        event=description,
        names=summary.class_names,
        observed_frequency=summary.interval("happened", level),
        ties=summary.ties,
        reliability_bins=summary.equal_width(bins),
        compute_classes=None if classes is None else partial(getattr, classes, "table"),
        compute_groups=partial(tables.groups, summary, bins=bins, level=level),
        compute_row_groups=partial(tables.groups, summary, bins=bins, level=level, by="row_groups"),
        clusters=f"{description.cluster}s" if summary.has_clusters else "",
        verdict=verdict,
        remarks=find_data_problems(len(summary), rows),
        compute_source=partial(data_source, "measured", n=len(summary)),
    )


def _zero_probability_note(count: float, total_weight: float, description: EventDescription) -> str:
    """Say of how many rows what was said to be impossible came true."""
    return f"a probability of 0 came true for {count:,.6g} of {total_weight:,.6g} {description.unit}s"


def _weighted_count(rows: Tensor, weights: Tensor | None) -> float:
    return float(rows.sum() if weights is None else weights[rows].sum())


def _event_class_name(summary: Summary) -> str | None:
    """The class that is judged, by its name."""
    return summary.class_names[summary.of] if summary.class_names and isinstance(summary.of, int) else None


METRICS_MISSING_IN_SUMMARY = (
    "classwise_ece",
    "auroc",
)  # to a summary, among the rows that are there unless others are asked for


def _row_methods(description: EventDescription, extra_methods: list[Method]) -> list[Method]:
    """The rows of an event, then what else was asked for."""
    rows = [METRICS.method(name) for name in description.rows]
    return rows + [m for m in dict.fromkeys(extra_methods) if m not in rows]


def _require_metric(method: Method) -> Metric[...]:
    if not isinstance(method.target, Metric):
        raise InputError(
            f"{method.name} is not declared: put @metrics.metric('its title') above it", code="undeclared_metric"
        )
    return method.target


def _measure_row(method: Method, view: Any, bins: int, level: float) -> Row:
    """The number with all that says how surely it is known."""
    metric = _require_metric(method)
    settings = method.settings | ({"bins": bins} if method.text in BINNED_METRICS else {})
    if metric.has_interval and not method.settings:
        return _interval_row(method.text, metric.interval_from_view(view, level=level, **settings))
    if metric.has_test and not method.settings:
        test = metric.test_from_view(view, **settings)
        return Row(method.text, test.statistic, p_value=test.p_value)
    return Row(method.text, float(metric.compute_from_view(view, **settings)))


def _summary_row(method: Method, summary: Summary, level: float) -> Row:
    metric = _require_metric(method)
    if method.text == "classwise_ece" and summary.classes is not None:
        return _classwise_row(summary.classes.ece)
    if method.settings:
        raise InputError(
            f"{method.text} needs every prediction, not a summary of them; measure them in memory", code="summary_only"
        )
    if metric.has_interval:
        return _interval_row(method.text, summary.interval(method.text, level))
    return Row(
        method.text,
        summary[method.text],
        p_value=metric.test_from_view(summary).p_value if metric.has_test else math.nan,
    )


def _classwise_row(class_errors: Tensor) -> Row:
    return Row("classwise_ece", float(class_errors.mean()), note=f"worst class {100 * float(class_errors.max()):.2f} %")


def _interval_row(name: str, interval: Interval) -> Row:
    return Row(name, interval.value, interval.low, interval.high)


def _annotate_rows(
    rows: list[Row], description: EventDescription, extra_methods: list[Method], verdict: Verdict
) -> tuple[Row, ...]:
    """The rows with their titles and what each says here; without those that have no value, unless asked for."""
    requested = {method.text for method in extra_methods}
    visible_rows = (row for row in rows if row.name in requested or not math.isnan(row.value))
    return tuple(
        replace(row, info=description.metric_info(row.name), note=_row_note(row, rows, description, verdict))
        for row in visible_rows
    )


def _row_note(row: Row, rows: list[Row], description: EventDescription, verdict: Verdict) -> str:
    if row.name == "signed_gap":
        return description.direction_phrase(verdict.direction).removeprefix("is ") or "no direction beyond chance"
    if row.name in NOISE_FLOOR_BY_METRIC:
        return "above its noise floor" if exceeds_noise_floor(rows, row.name) else "within its noise floor"
    return row.note
