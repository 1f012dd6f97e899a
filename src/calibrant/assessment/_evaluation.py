"""Evaluate fitted calibrators on predictions in memory, or on chunks that are only summarized."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrant import metrics
from calibrant._core.lazy import LazyModule
from calibrant._core.registry import METRICS
from calibrant._core.types import Map
from calibrant.assessment._calibrated_predictions import CalibratedPredictions
from calibrant.assessment._candidates import apply_calibrator
from calibrant.assessment._measure import Measurement, measure, no_chunks_error
from calibrant.assessment._mistakes import MAX_MISTAKES, Mistake, describe_mistakes, most_confident_errors
from calibrant.assessment._plan import Plan
from calibrant.metrics import Comparison, Metric, Summary, paired_difference
from calibrant.predictions import EventSelector, Predictions
from calibrant.predictions.folds import num_units

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

JACKKNIFE_GROUPS = 50


@dataclass(frozen=True, eq=False)
class InMemoryEvaluation:
    """Evaluation data in memory, uncalibrated and after each calibrator."""

    uncalibrated: Predictions
    calibrated: dict[str, Predictions]
    fits: Mapping[str, Map]  # fitted on all fitting data

    @classmethod
    def from_fits(cls, p: Predictions, fits: Mapping[str, Map]) -> "InMemoryEvaluation":
        """Apply calibrators to the evaluation data `p` in float64, lazily where their logits would take much memory."""

        def calibrate(calibrator: Map) -> Predictions:
            """Return calibrated predictions that keep as little in memory as possible."""
            if isinstance(calibrator, calibrators.Identity):
                return p  # keeps its cached statistics
            # logits of two classes take no more memory than their statistics: keep them
            return p.double().apply(calibrator) if p.k == 2 else CalibratedPredictions(p, calibrator)

        return cls(p, {name: calibrate(calibrator) for name, calibrator in fits.items()}, fits)

    def compare_metrics(self, name: str, metric_names: tuple[str, ...], level: float) -> Comparison | None:
        """Test the change of metrics by a calibrator, on the same rows. Return None for a single row or cluster."""
        n = num_units(self.uncalibrated)  # rows or clusters
        if n < 2:
            return None
        calibrated, groups = self.calibrated[name], min(JACKKNIFE_GROUPS, n)
        comparison = metrics.compare(self.uncalibrated, calibrated, names=metric_names, level=level, groups=groups)
        if not np.array_equal(self.uncalibrated.predicted, calibrated.predicted):
            return comparison  # fits to folds may change predicted classes even if `fits[name]` never does
        return _state_kept_accuracy(comparison, self.fits[name])

    def mistakes(self, name: str) -> tuple[Mistake, ...]:
        """Return the most confident errors, described with one calibrator."""
        return describe_mistakes(self.uncalibrated, self.calibrated[name], most_confident_errors(self.uncalibrated))


class StreamedEvaluation:
    """Summaries of evaluation data that is read in chunks, uncalibrated and after each calibrator."""

    def __init__(self, fits: Mapping[str, Map], event: EventSelector) -> None:
        self.fits, self.event = fits, event
        self.uncalibrated = Summary.empty(of=event, by_class=True)
        self.calibrated = dict.fromkeys(fits, self.uncalibrated)  # summaries are immutable
        self._difference_sums: dict[str, dict[str, np.ndarray]] = {
            name: {} for name in fits
        }  # by calibrator and metric
        self._mistakes: dict[str, list[Mistake]] = {name: [] for name in fits}

    def add(self, chunk: Predictions) -> None:
        """Add a chunk, in one pass over its logits and one per calibrator.

        Besides the summaries, this updates the sums of paired differences and the most confident errors so far.
        """
        chunk = chunk.with_event(self.event).double()
        num_rows = len(self.uncalibrated)  # of earlier chunks
        self.uncalibrated = _add_to_summary(self.uncalibrated, chunk)
        rows = most_confident_errors(chunk)
        for name, calibrator in self.fits.items():
            calibrated = apply_calibrator(chunk, calibrator)
            self.calibrated[name] = _add_to_summary(self.calibrated[name], calibrated)
            totals = self._difference_sums[name]
            for metric_name, sums in _difference_sums(chunk, calibrated).items():
                earlier = totals.get(metric_name)
                totals[metric_name] = sums if earlier is None else metrics.merge_sums(earlier, sums)
            # Rows are counted from the first chunk on
            mistakes = [replace(m, row=m.row + num_rows) for m in describe_mistakes(chunk, calibrated, rows)]
            mistakes = sorted(self._mistakes[name] + mistakes, key=lambda m: -m.probability)
            self._mistakes[name] = mistakes[:MAX_MISTAKES]

    def compare_metrics(self, name: str, metric_names: tuple[str, ...], level: float) -> Comparison | None:
        """Test the change of metrics by a calibrator, on the same rows, for those that are means over rows.

        Return None for a single row.
        """
        if len(self.uncalibrated) < 2:
            return None
        before, after, sums = self.uncalibrated, self.calibrated[name], self._difference_sums[name]
        rows = [paired_difference(m, before[m], after[m], sums[m].tolist(), level) for m in metric_names if m in sums]
        return _state_kept_accuracy(Comparison(len(before), level, tuple(rows)), self.fits[name])

    def mistakes(self, name: str) -> tuple[Mistake, ...]:
        """Return the most confident errors, described with one calibrator."""
        return tuple(self._mistakes[name])


def evaluate_chunks(chunks: Iterable[Predictions], fits: Mapping[str, Map], event: EventSelector) -> StreamedEvaluation:
    """Evaluate data chunk by chunk. Raises `InputError` if there is no chunk."""
    evaluation = StreamedEvaluation(fits, event)
    for chunk in chunks:
        evaluation.add(chunk)
    if len(evaluation.uncalibrated) == 0:
        raise no_chunks_error()
    return evaluation


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Measurements of the evaluation data, uncalibrated and after each calibrator."""

    data: InMemoryEvaluation | StreamedEvaluation
    uncalibrated: Measurement
    measurements: dict[str, Measurement]  # by calibrator


def evaluate_fits(plan: Plan, fits: Mapping[str, Any]) -> Evaluation:
    """Measure the evaluation data, or the out-of-fold predictions if there are none, after each calibrator."""
    data = _apply_fits(plan, fits)
    plan.on_progress("evaluating")
    measurements = {name: measure_as_planned(plan, p) for name, p in data.calibrated.items()}
    # `calibrators.Identity` returns the same object, whose measurement need not be repeated
    identity_name = next((name for name, p in data.calibrated.items() if p is data.uncalibrated), None)
    uncalibrated = measurements[identity_name] if identity_name else measure_as_planned(plan, data.uncalibrated)
    return Evaluation(data, uncalibrated, measurements)


def measure_as_planned(plan: Plan, p: Predictions | Summary) -> Measurement:
    """Measure the event and the metrics of the assessment."""
    return measure(p, metrics=plan.metric_names, of=plan.event.selector, tolerance=plan.tolerance, level=plan.level)


def _apply_fits(plan: Plan, fits: Mapping[str, Any]) -> InMemoryEvaluation | StreamedEvaluation:
    """Calibrate the evaluation data with every fit, or cross-fit the calibrators if there are no such data."""
    test, selector = plan.test, plan.event.selector
    if test is None:
        p = plan.val.double()
        calibrated = {c.name: c.out_of_fold(p, fits[c.name], plan.folds, plan.on_progress) for c in plan.candidates}
        return InMemoryEvaluation(p, calibrated, fits)
    if isinstance(test, Predictions):
        return InMemoryEvaluation.from_fits(test.with_event(selector), fits)
    chunks = Predictions.load_chunks(test) if isinstance(test, str | Path) else test
    return evaluate_chunks(_check_chunks(chunks, plan), fits, selector)


def _check_chunks(chunks: Iterable[Predictions], plan: Plan) -> Iterable[Predictions]:
    """Yield the chunks of evaluation data with the classes of the fitting data, after checking each for overlap."""
    num_examples = 0
    for chunk in chunks:
        plan.on_progress(f"evaluating, {num_examples:,} examples done")
        aligned = chunk.reorder_classes(plan.val.class_names)
        plan.guard.inspect(aligned)
        yield aligned
        num_examples += len(aligned)


def _state_kept_accuracy(comparison: Comparison, calibrator: Map) -> Comparison:
    """Replace the interval of the change of accuracy by [0, 0] if the calibrator never changes a predicted class."""
    if not calibrators.preserves_argmax(calibrator):
        return comparison
    rows = (replace(r, low=0.0, high=0.0, p_value=1.0) if r.name == "accuracy" else r for r in comparison)
    return replace(comparison, rows=tuple(rows))


def _add_to_summary(summary: Summary, chunk: Predictions) -> Summary:
    """Return the summary with a chunk added.

    The table of classes computes the outcomes of the chunk in one pass. A summary of many classes has no such table and
    would compute them slice by slice, so they are computed here.
    """
    if chunk.k > Summary.MAX_CLASSES:
        chunk.outcomes  # noqa: B018  caches them
    return summary.add(chunk)


def _difference_sums(uncalibrated: Predictions, calibrated: Predictions) -> dict[str, np.ndarray]:
    """Return, for every metric that is a mean over rows, the sums that `paired_difference` needs, as (8).

    `merge_sums` joins those of chunks, so that the change of the metric can be tested without keeping the rows.
    """
    scores = metrics.PairedScores(uncalibrated, calibrated)
    return {
        name: scores.sums(metric)
        for name, metric in METRICS.items()
        if isinstance(metric, Metric) and metric.is_summed_mean
    }
