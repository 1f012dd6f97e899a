"""What one should know of a set of predictions, in one table, from one pass over the logits."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from calibrant import calibrators, metrics
from calibrant._folds import units
from calibrant.assessment._event import Event, event, event_of
from calibrant.assessment._judge import mistakes_of
from calibrant.assessment._plain import written
from calibrant.assessment._provenance import data_source
from calibrant.assessment._scaled import scaled
from calibrant.assessment._table import Row, Table, Verdict
from calibrant.assessment._verdict import FLOORS, above_floor, decide, remarks
from calibrant.catalog import METRICS, Method
from calibrant.io import csv_text
from calibrant.metrics import Interval, Metric, Summary, tables
from calibrant.metrics.tables import Classes, ClassSums, class_cells
from calibrant.predictions import PRESENCE, Predictions, entering
from calibrant.types import InputError

BINS = 15
BINNED = ("ece", "noise_floor", "adaptive_ece", "adaptive_noise_floor", "debiased_l2")  # rows with the table's bins


class Measurement(Table):
    """The table, in the order in which it should be read, and what is behind it.

    It prints, shows itself in a notebook, and is saved as .html, .json or .csv; `measurement["ece"]` is a row.
    """

    def html(self, facts: dict[str, str] | None = None) -> str:
        """Return the report, one page that opens offline; `facts` are told at its end."""
        from calibrant.assessment.page import measurement_page

        return measurement_page(self, facts or {})

    def save(self, path: str | Path) -> None:
        """Write the report (.html), the numbers (.json) or the table (.csv)."""
        makers = {".html": self.html, ".json": self.json, ".csv": lambda: csv_text(self.to_polars())}
        written(path, makers)

    def __rich__(self) -> Any:
        from calibrant.assessment._text import measurement_text

        return measurement_text(self)

    def __str__(self) -> str:
        from calibrant.assessment._text import plain_text

        return plain_text(self)

    def _repr_html_(self) -> str:
        from calibrant.assessment.page import measurement_cell

        return measurement_cell(self)


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
    more = [METRICS.method(text) for text in texts(metrics)]
    if isinstance(predictions, Summary):
        if fit is not None:
            raise InputError(
                "a summary cannot be fitted to: measure predictions in memory, or leave out `fit`",
                code="fit_on_summary",
            )
        return _of_summary(predictions, more, of, bins, level)
    with entering(predictions) as p:
        return _of_predictions(p.judging(event_of(p, of)), more, bins or BINS, level, fit)


def summary_of(
    pieces: Iterable[Predictions],
    calibrate: Callable[[Predictions], Predictions] | None = None,
    *,
    of: str | int | None = None,
    bins: int = BINS,
) -> Summary:
    """Sum up predictions that come in pieces, calibrated first if need be, for `measure`; `of` means what it does."""
    summary: Summary | None = None
    for part in pieces:
        made = part if calibrate is None else calibrate(part)
        summary = summary or Summary.empty(of=event_of(part, of), bins=bins, by_class=True)
        made = made.judging(summary.of)
        summary = summary.add(made)
    if summary is None:
        raise InputError(
            "no predictions to measure: the iterable was empty (a generator used twice?)", code="no_predictions"
        )
    return summary


def texts(names: Sequence[str] | None) -> list[str]:
    """Return names as a list; one name may stand alone."""
    return [names] if isinstance(names, str) else list(names or ())


def _of_predictions(p: Predictions, more: list[Method], bins: int, level: float, fit: Any) -> Measurement:
    k = p.k
    cells = class_cells(p, bins)
    p.events.moments(bins)  # of which all sums over bins are a part: one pass makes them
    judged = event(p.of, k, p.class_names)
    judged = replace(judged, cluster="cluster") if _several_rows_in_a_cluster(p) else judged
    rows: list[Row] = []
    for method in _methods(judged, more):
        if method.text == "classwise_ece":
            rows.append(_of_classes(cells().ece))
        else:
            rows.append(_row(method, _metric(method).view(p), bins, level))
        if method.text == "nll" and math.isinf(rows[-1].value):
            rows[-1] = replace(
                rows[-1], note=_impossible(_count(p.log_likelihood.isneginf(), p.weights), p.mass, judged)
            )
        if method.text == "nll" and fit is not None:
            parts = metrics.split(p, fit=partial(calibrators.fit, fit), level=level)
            rows += [_of_interval(name, i) for name, i in zip(PARTS_OF, (parts.refinement, parts.calibration))]
    events, verdict = p.events, decide(rows)
    return Measurement(
        n=len(p),
        k=k,
        bins=bins,
        level=level,
        rows=_finished(rows, judged, more, verdict),
        event=judged,
        names=p.class_names,
        happened=metrics.share_interval(events.happened, p.weights, level, p.clusters),
        ties=events.ties,
        table=events.equal_width(bins),
        classes_=partial(_class_table, p, cells),  # partials, which are pickled
        groups_=partial(tables.groups, p, bins=bins, level=level),
        row_groups_=partial(tables.groups, p, bins=bins, level=level, by="row_groups"),
        scaled_=partial(scaled, p, bins=bins, level=level),
        mistakes_=partial(mistakes_of, p),
        clusters="" if p.clusters is None else f"{units(p):,} {judged.cluster}{'s' * (units(p) != 1)}",
        verdict=verdict,
        remarks=remarks(len(p), rows),
        source_=partial(data_source, "measured", p),
    )


def _class_table(p: Predictions, cells: Callable[[], Any]) -> Classes:
    return ClassSums.of(p, cells()).table


def _several_rows_in_a_cluster(p: Predictions) -> bool:
    """Whether a cluster of several labels per example holds more than one example: it has a label twice."""
    if p.class_names != PRESENCE or p.clusters is None or p.groups is None or p.group_names is None:
        return False
    pairs = p.clusters * len(p.group_names) + p.groups
    return len(pairs.unique()) < len(pairs)


PARTS_OF = ("refinement", "calibration_loss")


def _of_summary(
    summary: Summary, more: list[Method], of: str | int | None, bins: int | None, level: float
) -> Measurement:
    if of not in (None, summary.of) and of != _named(summary):
        raise InputError(
            f"this summary judges {summary.of!r}, not {of!r}: make it with Summary.empty(of={of!r})",
            code="summary_event",
        )
    bins, judged = bins or summary.bins, event(summary.of, summary.k, summary.class_names)
    classes = summary.classes
    known = [name for name in judged.rows if name not in UNKNOWN or (name == "classwise_ece" and classes is not None)]
    rows = [_row_of_summary(m, summary, level) for m in _methods(judged, more) if m.text in known or m in more]
    never = _impossible(summary.total("infinite"), summary.mass, judged)
    rows = [replace(row, note=never) if row.name == "nll" and math.isinf(row.value) else row for row in rows]
    verdict = decide(rows)
    return Measurement(
        n=len(summary),
        k=summary.k,
        bins=bins,
        level=level,
        rows=_finished(rows, judged, more, verdict),
        event=judged,
        names=summary.class_names,
        happened=summary.interval("happened", level),
        ties=summary.ties,
        table=summary.equal_width(bins),
        classes_=None if classes is None else partial(getattr, classes, "table"),
        groups_=partial(tables.groups, summary, bins=bins, level=level),
        row_groups_=partial(tables.groups, summary, bins=bins, level=level, by="row_groups"),
        clusters=f"{judged.cluster}s" if summary.clustered else "",
        verdict=verdict,
        remarks=remarks(len(summary), rows),
        source_=partial(data_source, "measured", n=len(summary)),
    )


def _impossible(count: float, mass: float, judged: Event) -> str:
    """Say of how many rows what was said to be impossible came true."""
    return f"a probability of 0 came true for {count:,.6g} of {mass:,.6g} {judged.one}s"


def _count(rows: Tensor, weights: Tensor | None) -> float:
    return float(rows.sum() if weights is None else weights[rows].sum())


def _named(summary: Summary) -> str | None:
    """The class that is judged, by its name."""
    return summary.class_names[summary.of] if summary.class_names and isinstance(summary.of, int) else None


UNKNOWN = ("classwise_ece", "auroc")  # to a summary, among the rows that are there unless others are asked for


def _methods(judged: Event, more: list[Method]) -> list[Method]:
    """The rows of an event, then what else was asked for."""
    rows = [METRICS.method(name) for name in judged.rows]
    return rows + [m for m in dict.fromkeys(more) if m not in rows]


def _metric(method: Method) -> Metric[...]:
    if not isinstance(method.target, Metric):
        raise InputError(
            f"{method.name} is not declared: put @metrics.metric('its title') above it", code="undeclared_metric"
        )
    return method.target


def _row(method: Method, view: Any, bins: int, level: float) -> Row:
    """The number with all that says how surely it is known."""
    metric = _metric(method)
    settings = method.settings | ({"bins": bins} if method.text in BINNED else {})
    if metric.has_interval and not method.settings:
        return _of_interval(method.text, metric.interval_of(view, level=level, **settings))
    if metric.has_test and not method.settings:
        found = metric.test_of(view, **settings)
        return Row(method.text, found.statistic, p_value=found.p_value)
    return Row(method.text, float(metric.of_view(view, **settings)))


def _row_of_summary(method: Method, summary: Summary, level: float) -> Row:
    metric = _metric(method)
    if method.text == "classwise_ece" and summary.classes is not None:
        return _of_classes(summary.classes.ece)
    if method.settings:
        raise InputError(
            f"{method.text} needs every prediction, not a summary of them; measure them in memory", code="summary_only"
        )
    if metric.has_interval:
        return _of_interval(method.text, summary.interval(method.text, level))
    return Row(
        method.text,
        summary[method.text],
        p_value=metric.test_of(summary).p_value if metric.has_test else math.nan,
    )


def _of_classes(each: Tensor) -> Row:
    return Row("classwise_ece", float(each.mean()), note=f"worst class {100 * float(each.max()):.2f} %")


def _of_interval(name: str, interval: Interval) -> Row:
    return Row(name, interval.value, interval.low, interval.high)


def _finished(rows: list[Row], judged: Event, more: list[Method], verdict: Verdict) -> tuple[Row, ...]:
    """The rows with their titles and what each says here; without those that have no value, unless asked for."""
    asked = {method.text for method in more}
    there = (row for row in rows if row.name in asked or not math.isnan(row.value))
    return tuple(replace(row, about=judged.about(row.name), note=_note(row, rows, judged, verdict)) for row in there)


def _note(row: Row, rows: list[Row], judged: Event, verdict: Verdict) -> str:
    if row.name == "signed_gap":
        return judged.way(verdict.direction).removeprefix("is ") or "no direction beyond chance"
    if row.name in FLOORS:
        return "above its noise floor" if above_floor(rows, row.name) else "within its noise floor"
    return row.note
