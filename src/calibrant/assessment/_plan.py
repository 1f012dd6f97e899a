"""Check and resolve the inputs of an assessment before anything is fitted."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrant._core import registry
from calibrant._core.lazy import LazyModule
from calibrant._core.types import InputError
from calibrant.assessment._candidates import CandidateCalibrator, Progress, default_calibrators, resolve_candidates
from calibrant.assessment._measure import as_list, measure, select_event
from calibrant.assessment._overlap import OverlapGuard
from calibrant.metrics import Summary, fits_summary, nll
from calibrant.predictions import Predictions
from calibrant.predictions.events import EventKind, evaluated_event

calibrators_: Any = LazyModule("calibrant.calibrators")  # which takes long to load

MIN_OTHER_LABELS = 0.1  # expected by a fit to labels of one class
EvaluationData = Predictions | Iterable[Predictions] | str | Path | None


@dataclass(frozen=True, eq=False)
class Plan:
    """Checked inputs of an assessment."""

    val: Predictions
    test: EvaluationData
    candidates: list[CandidateCalibrator]
    held_out_candidates: list[CandidateCalibrator]  # without those that were fitted on `val` before
    requested_name: str | None  # the calibrator to select, if given
    event: EventKind
    metric_names: list[str]
    folds: int
    tolerance: float | None
    level: float  # of the intervals
    guard: OverlapGuard
    on_progress: Progress


def plan_assessment(
    val: Predictions,
    test: EvaluationData,
    *,
    calibrators: Sequence[Any] | None,
    metrics: Sequence[str] | None,
    choose: str | None,
    folds: int,
    of: str | int | None,
    tolerance: float | None,
    level: float,
    on_progress: Progress,
) -> Plan:
    """Resolve calibrators, event and metrics, align the classes, and refuse overlapping data before any fit.

    Parameters are as in `assess`, whose `progress` is `on_progress`.

    Raises:
        InputError: Evaluation data share rows with fitting data, or an input is unknown or does not fit the others.
    """
    if calibrators is None:
        calibrators = default_calibrators(val.k, select_event(test if isinstance(test, Predictions) else val, of))
    candidates, requested_name = resolve_candidates(calibrators, choose)
    for candidate in candidates:  # saved calibrators need the order of the classes that they were fitted on
        val = candidate.align_classes(val)
    if isinstance(test, Predictions):
        test = test.reorder_classes(val.class_names)
    selector = select_event(test if isinstance(test, Predictions) else val, of)
    val = val.with_event(selector)
    event = evaluated_event(val)
    metric_texts = event.compared_metrics if metrics is None else metrics
    metric_names = [registry.METRICS.normalize(text) for text in as_list(metric_texts)]
    guard = OverlapGuard(val, [candidate.record for candidate in candidates])
    if test is None:
        for candidate in candidates:  # loaded calibrators are evaluated on `val` itself
            candidate.record.check_overlap(val)
    elif isinstance(test, Predictions):
        guard.inspect(test)
        guard.report  # noqa: B018  refuses too many common rows
    else:
        # Data read in chunks are only summarized, and the summary of many classes has no table of classes
        has_class_table = val.k <= Summary.MAX_CLASSES
        if metrics is None:  # keep the default metrics that a summary can compute
            metric_names = [name for name in metric_names if fits_summary(name, by_class=has_class_table)]
        one_row_summary = Summary.empty(of=selector, by_class=True).add(val[:1])
        measure(one_row_summary, metrics=metric_names)  # refuses metrics that a summary lacks before the data is read
    return Plan(
        val=val,
        test=test,
        candidates=candidates,
        held_out_candidates=[c for c in candidates if not c.record.overlap_message(val)],
        requested_name=requested_name,
        event=event,
        metric_names=metric_names,
        folds=folds,
        tolerance=tolerance,
        level=level,
        guard=guard,
        on_progress=on_progress,
    )


def keep_applicable(plan: Plan, fits: Mapping[str, Any]) -> tuple[Plan, dict[str, Any]]:
    """Return the plan and the fits without calibrators that labels of one class cannot be fitted to.

    These are calibrators that learn the frequencies of classes, which they would make 0 and 1, and, unless requested,
    those that call other labels impossible because no prediction is wrong. Calibrators that were fitted before, to
    other data, stay.

    Raises:
        InputError: If the requested calibrator is among them, or no other is left.
    """
    if not plan.val.has_one_class:
        return plan, dict(fits)
    val = plan.val.double()

    def is_applicable(name: str, is_loaded: bool) -> bool:
        """Return whether a calibrator stays."""
        if is_loaded or not calibrators_.treats_classes_alike(fits[name]):
            return is_loaded
        # The total NLL is about the number of other labels that a model expects among so many examples
        before, after = (float(nll(q)) * val.total_weight for q in (val, val.apply(fits[name])))
        return name == plan.requested_name or after >= min(MIN_OTHER_LABELS, before)

    candidates = [c for c in plan.candidates if is_applicable(c.name, c.fitted is not None)]
    names = {c.name for c in candidates}
    if not names or plan.requested_name not in (None, *names):
        refused = plan.requested_name or ", ".join(fits)
        raise InputError(
            f"Expected labels of several classes to fit {refused}, got one class. Try Auto or SmoothedTemperature, "
            "which treat all classes alike.",
            code="one_class",
        )
    held_out = [c for c in plan.held_out_candidates if c.name in names]
    applicable = {name: fitted for name, fitted in fits.items() if name in names}
    return replace(plan, candidates=candidates, held_out_candidates=held_out), applicable
