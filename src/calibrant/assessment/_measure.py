"""Measure predictions: every metric with its interval, test and noise floor, from one pass over the logits."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from calibrant import metrics
from calibrant._core.lazy import LazyModule
from calibrant._core.numbers import format_percent
from calibrant._core.registry import METRICS, Method
from calibrant._core.types import Count, Fraction, InputError, OpenFraction, check_arguments
from calibrant.assessment._label_remarks import find_only_class, only_class_remark
from calibrant.assessment._results import Measurement, Row, metric_info
from calibrant.assessment._verdict import Verdict, default_tolerance
from calibrant.metrics import Interval, Summary, declared_metric, fits_summary, noise_floor_name
from calibrant.metrics.tables import ClassSums
from calibrant.predictions import EventSelector, Predictions, as_predictions
from calibrant.predictions.events import PRESENCE, EventKind, evaluated_event

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

DEFAULT_BINS = 15
NO_NLL_INTERVAL = "no interval: one error at probability 1 would make it infinite"
MAX_REVERSED_AUROC, MIN_REVERSED_ROWS = 0.1, 20  # an AUROC below, from this many rows, suggests swapped columns


@check_arguments
def measure(
    predictions: Predictions | Summary,
    *,
    metrics: Sequence[str] | None = None,
    of: str | int | None = None,
    bins: Count | None = None,
    level: OpenFraction = 0.90,
    tolerance: Fraction | None = None,
    fit: Any = None,
) -> Measurement:
    """Measure predictions: scores, direction, calibration errors with noise floors, intervals and p-values.

    The row `noise_floor` holds the mean and central interval of the ECE of a perfectly calibrated model with the same
    confidences. An ECE below its `high` is no sign of miscalibration. Predictions with groups get a table of groups.

    Args:
        predictions: Predictions, or a `Summary` of predictions read in chunks. A summary has its own bins and event,
            and knows the class-wise error only if it was made with `by_class`.
        metrics: Additional metrics, by name or text, such as "ece(bins=10)".
        of: Event to evaluate: "top" (the predicted class is correct), or a class by index or name. Default: the event
            of the predictions; for two classes, the positive one (`Predictions.with_default_event`) instead of "top".
        bins: Number of bins (default 15).
        level: Level of the intervals.
        tolerance: Largest acceptable L2 error. If its upper bound is larger and calibration is not rejected, there is
            too little data to tell. Default: 0.05; for a class whose base rate is below 10 %, half of the base rate,
            and above 90 %, half of the rate of the other labels.
        fit: Calibrator, such as "Auto", whose cross-fit splits NLL into refinement and calibration.

    Raises:
        InputError: The level, tolerance, event or a metric is unknown, or the summary lacks what a metric needs.

    >>> p = Predictions(np.zeros((100, 2)), np.array([0] * 60 + [1] * 40))
    >>> table = measure(p)
    >>> round(table["ece"].value, 4), round(table["noise_floor"].value, 4), table.verdict.status
    (0.1, 0.0398, 'too_little_data')
    """
    extra_methods = [METRICS.method(text) for text in as_list(metrics)]
    if isinstance(predictions, Summary):
        if fit is not None:
            raise InputError("Expected predictions to fit to, got a summary. Leave out `fit`.", code="fit_on_summary")
        return _measure_summary(predictions, extra_methods, of=of, bins=bins, level=level, tolerance=tolerance)
    with as_predictions(predictions) as p:
        p = p.with_event(select_event(p, of))
        return _measure_in_memory(
            p, extra_methods, bins=bins or DEFAULT_BINS, level=level, tolerance=tolerance, fit=fit
        )


@check_arguments
def summarize(
    chunks: Iterable[Predictions],
    calibrate: Callable[[Predictions], Predictions] | None = None,
    *,
    of: str | int | None = None,
    bins: Count = DEFAULT_BINS,
) -> Summary:
    """Summarize predictions that come in chunks, for `measure`.

    Args:
        chunks: Parts of the predictions.
        calibrate: Function to apply to each chunk first.
        of: Event to evaluate, as in `measure`.
        bins: Number of bins.
    """
    summary: Summary | None = None
    for chunk in chunks:
        calibrated = chunk if calibrate is None else calibrate(chunk)
        if summary is None:  # the first chunk decides the event
            summary = Summary.empty(of=select_event(chunk, of), bins=bins, by_class=True)
        summary = summary.add(calibrated.with_event(summary.of))
    if summary is None:
        raise no_chunks_error()
    return summary


def select_event(p: Predictions, of: str | int | None) -> EventSelector:
    """Return the event to evaluate: `of`, or the event that is the default of `measure`."""
    selector = p.with_default_event(of).of
    if selector == "classes":
        raise InputError(
            f'Expected one event, got of="classes". Try of="top" or a class, 0 to {p.k - 1}.', code="several_events"
        )
    return selector


def as_list(names: Sequence[str] | None) -> list[str]:
    """Return names as a list. A single name may be given alone."""
    return [names] if isinstance(names, str) else list(names or ())


def _measure_in_memory(
    p: Predictions, extra_methods: list[Method], *, bins: int, level: float, tolerance: float | None, fit: Any
) -> Measurement:
    """Measure the event of predictions in memory.

    `extra_methods` are metrics beside those of the event. The other parameters are as in `measure`.
    """
    class_sums = ClassSums.from_predictions(p, bins)  # in the pass over the logits that computes the outcomes
    p.events.moments(bins)  # fills a cache that all metrics of these bins read
    event = evaluated_event(p)
    if _has_repeated_labels(p):  # a cluster of multilabel data holds several examples, so it is not called an example
        event = replace(event, cluster="cluster")
    rows: list[Row] = []
    for method in _row_methods(event, extra_methods):
        # the class-wise error is known from the pass above, unless with other settings
        if declared_metric(method).by_class and not method.settings:
            rows.append(_classwise_row(method.text, class_sums.ece))
        else:
            rows.append(_measure_row(method, p, bins, level))
        if method.text == "nll" and fit is not None:
            parts = metrics.decompose_score(p, fit=partial(calibrators.fit, fit), level=level)
            rows.append(_interval_row("refinement", parts.refinement))
            rows.append(_interval_row("calibration_loss", parts.calibration))
    impossible = np.isneginf(p.log_likelihood)
    num_impossible = float(impossible.sum() if p.weights is None else p.weights[impossible].sum())
    return _build_measurement(
        p,
        rows,
        event,
        extra_methods,
        bins=bins,
        level=level,
        tolerance=tolerance,
        num_impossible=num_impossible,
        observed_frequency=metrics.share_interval(p.events.outcome, p.weights, level, p.clusters, p.examples),
        compute_classes=partial(getattr, class_sums, "table"),  # when asked for; a lambda could not be pickled
    )


def _has_repeated_labels(p: Predictions) -> bool:
    """Return whether a cluster of multilabel data has a label twice, and therefore holds more than one example.

    Multilabel data has a row per label of each example. Rows of an example share a cluster; the label is the group.
    """
    if p.class_names != PRESENCE.classes or p.clusters is None or p.groups is None or p.group_names is None:
        return False
    pairs = p.clusters * len(p.group_names) + p.groups  # one number per pair of cluster and label (the group)
    return len(np.unique(pairs)) < len(pairs)


def _measure_summary(
    summary: Summary,
    extra_methods: list[Method],
    *,
    of: str | int | None,
    bins: int | None,
    level: float,
    tolerance: float | None,
) -> Measurement:
    """Measure a summary with the metrics of its event that it can compute, and the `extra_methods`.

    The other parameters are as in `measure`.

    Raises:
        InputError: The event or the number of bins differs from the summary, or it lacks what a metric needs.
    """
    if not len(summary):
        raise no_chunks_error()
    accepted_events: list[Any] = [None, summary.of]
    if summary.class_names and isinstance(summary.of, int):
        accepted_events.append(summary.class_names[summary.of])
    if of not in accepted_events:
        raise InputError(
            f"Expected of={summary.of!r}, the event of this summary, got {of!r}. Try Summary.empty(of={of!r}).",
            code="summary_event",
        )
    bins = bins or summary.bins
    summary.equal_width(bins)  # refuses a number of bins that the summary cannot merge to
    event, classes = evaluated_event(summary), summary.classes
    rows = [
        _summary_row(method, summary, level)
        for method in _row_methods(event, extra_methods)
        if method in extra_methods or fits_summary(method.name, by_class=classes is not None)
    ]
    return _build_measurement(
        summary,
        rows,
        event,
        extra_methods,
        bins=bins,
        level=level,
        tolerance=tolerance,
        num_impossible=summary.total("infinite"),
        observed_frequency=summary.frequency(level),
        compute_classes=partial(getattr, classes, "table", None),  # None without a table of classes
    )


def _build_measurement(
    source: Predictions | Summary,
    rows: list[Row],
    event: EventKind,
    extra_methods: list[Method],
    *,
    tolerance: float | None,
    num_impossible: float,
    observed_frequency: Interval,
    **data: Any,
) -> Measurement:
    """Decide the verdict, add notes and texts to the rows, and leave out NaN rows that were not requested.

    `num_impossible` is the weight of the examples whose true class has probability 0. `data` are further fields of the
    measurement.
    """
    by_name, requested = {row.name: row for row in rows}, {method.text for method in extra_methods}
    signed_gap = by_name["signed_gap"]
    if tolerance is None:
        tolerance = default_tolerance(None if event.is_confidence else observed_frequency.value)
    verdict = Verdict.decide(
        p_value=by_name["omnibus"].p_value,
        gap=(signed_gap.low, signed_gap.high),
        error_high=by_name["debiased_l2"].high,
        tolerance=tolerance,
    )
    impossible_note = (
        f"the true class has probability 0 in {num_impossible:,.6g} of {source.total_weight:,.6g} {event.units}"
    )

    def note(row: Row) -> str:
        """Return the interpretation of a value, or the note that the row has already."""
        if row.name == "signed_gap":
            return event.headline(verdict.direction)
        if floor_name := noise_floor_name(row.name):
            return f"calibrated: up to {format_percent(by_name[floor_name].high)}"
        if row.name == "nll" and math.isinf(row.value):
            return impossible_note
        return NO_NLL_INTERVAL if row.name == "nll" and math.isinf(row.high) else row.note

    visible = [row for row in rows if row.name in requested or not math.isnan(row.value)]
    only_class, remarks = find_only_class(source, event, observed_frequency), find_data_problems(len(source), rows)
    if only_class is not None:
        n = source.num_examples if isinstance(source, Predictions) else len(source)
        remarks = (only_class_remark(only_class, source.class_names, event, n, source.k), *remarks)
    return Measurement(
        source=source,
        rows=tuple(replace(row, info=metric_info(event, row.name), note=note(row)) for row in visible),
        event=event,
        verdict=verdict,
        observed_frequency=observed_frequency,
        remarks=remarks,
        only_class=only_class,
        **data,
    )


# Rows


def _row_methods(event: EventKind, extra_methods: list[Method]) -> list[Method]:
    """Return the metrics of an event, then the requested ones with their noise floors, each once."""
    methods = [*map(METRICS.method, event.rows)]
    for method in extra_methods:
        methods += [method, *map(METRICS.method, filter(None, [noise_floor_name(method.text)]))]
    return list(dict.fromkeys(methods))


def _measure_row(method: Method, p: Predictions | Summary, bins: int, level: float) -> Row:
    """Compute a metric with its interval, or else with its test if that is fast.

    A metric with settings of its own, such as "ece(bins=10)", gets neither.
    """
    metric = declared_metric(method)
    if method.settings:
        return Row(method.text, float(metric(p, **method.settings)))
    settings = {"bins": bins} if metric.is_binned else {}
    if metric.has_interval:
        return _interval_row(method.text, metric.interval(p, level=level, **settings))
    if metric.has_test and not metric.has_slow_test:
        test = metric.test(p)
        return Row(method.text, test.statistic, p_value=test.p_value)
    return Row(method.text, float(metric(p, **settings)))


def _summary_row(method: Method, summary: Summary, level: float) -> Row:
    """Compute a metric of a summary. Raises `InputError` for a metric with settings, which needs all predictions."""
    if declared_metric(method).by_class and summary.classes is not None:
        return _classwise_row(method.text, summary.classes.ece)
    if method.settings:
        raise InputError(
            f"{method.text} needs all predictions, got a summary. Try measuring them in memory.", code="summary_only"
        )
    return _measure_row(method, summary, summary.bins, level)


def _classwise_row(name: str, class_errors: np.ndarray) -> Row:
    """Return the row of the class-wise ECE, the mean of the ECE of the classes, (k). Its note states the largest."""
    return Row(name, float(class_errors.mean()), note=f"worst class {format_percent(float(class_errors.max()))}")


def _interval_row(name: str, interval: Interval) -> Row:
    """Return the row of a metric with an interval."""
    return Row(name, interval.value, interval.low, interval.high)


# Remarks


def find_data_problems(n: int, rows: Iterable[Row]) -> tuple[str, ...]:
    """Return sentences about likely mistakes in the data: an AUROC far below one half."""
    auroc = next((row.value for row in rows if row.name == "auroc"), math.nan)
    if math.isnan(auroc) or auroc >= MAX_REVERSED_AUROC or n < MIN_REVERSED_ROWS:
        return ()
    return (
        f"AUROC is {auroc:.3f}: higher probabilities go with fewer events. Are the columns swapped, or does the "
        "probability belong to another class?",
    )


def no_chunks_error() -> InputError:
    """Return the error for an iterable without predictions."""
    return InputError(
        "Expected at least one chunk of predictions, got none. Was a generator used twice?", code="no_predictions"
    )
