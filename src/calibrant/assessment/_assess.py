"""Fit calibrators on some predictions, evaluate them on others, and select one without looking at the evaluation."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from calibrant import calibrators as calibrators_
from calibrant import metrics as metrics_
from calibrant import registry
from calibrant.assessment._candidates import CandidateCalibrator, Progress, default_calibrators, resolve_candidates
from calibrant.assessment._evaluation import InMemoryEvaluation, StreamedEvaluation, apply_calibrator, evaluate_chunks
from calibrant.assessment._few_labels import HeldOutComparison, compare_held_out, introduces_zeros
from calibrant.assessment._measure import Measurement, as_list, measure, select_event
from calibrant.assessment._overlap import OverlapGuard
from calibrant.assessment._results import AssessmentData, Selection
from calibrant.assessment._verdict import DEFAULT_TOLERANCE, check_tolerance
from calibrant.backend.threads import thread_limit
from calibrant.events import EventKind, describe_event
from calibrant.io.files import atomic_write
from calibrant.io.formats import CALIBRATOR_SUFFIX
from calibrant.io.results import write_by_suffix
from calibrant.metrics import Summary, fits_summary
from calibrant.predictions import Predictions
from calibrant.predictions.folds import num_units

DEFAULT_FOLDS = 5
ACCURACY_PRESERVING_AUTO = "Auto(accuracy_preserving=True)"  # shown beside an Auto that loses accuracy

EvaluationData = Predictions | Iterable[Predictions] | str | Path | None


class Assessment(AssessmentData):
    """The effect of every calibrator on predictions that it was not fitted on.

    Print it, show it in a notebook, or save it as .html, .json or, for the selected calibrator alone, .safetensors.
    """

    uncalibrated: Measurement
    measurements: Mapping[str, Measurement]

    def html(self, facts: Mapping[str, str] | None = None, calibrator_path: str | Path | None = None) -> str:
        """Return a self-contained HTML report.

        Args:
            facts: Names and values to list at the end of the report.
            calibrator_path: File of the selected calibrator, for the instructions in the report.
        """
        from calibrant.assessment.sections import assessment_page

        return assessment_page(self, facts or {}, calibrator_path)

    def save(self, path: str | Path) -> None:
        """Write the report (.html), all numbers (.json), or the selected calibrator (.safetensors)."""
        if Path(path).suffix == CALIBRATOR_SUFFIX:
            with atomic_write(path) as draft:
                calibrators_.save(self.best, draft, fitted_on=self.fitting_data)
        else:  # the writer for calibrators is never called: it lists their suffix in the error for others
            write_by_suffix(path, {".html": self.html, ".json": self.json, CALIBRATOR_SUFFIX: str})

    def __rich__(self) -> Any:
        from calibrant.assessment._terminal import assessment_text

        return assessment_text(self)

    def __str__(self) -> str:
        from calibrant.assessment._terminal import render_plain_text

        return render_plain_text(self)

    def _repr_html_(self) -> str:
        from calibrant.assessment.sections import assessment_notebook_html

        return assessment_notebook_html(self)


def assess(
    val: Predictions,
    test: EvaluationData = None,
    calibrators: Sequence[Any] | None = None,
    metrics: Sequence[str] | None = None,
    *,
    choose: str | None = None,
    folds: int = DEFAULT_FOLDS,
    of: str | int | None = None,
    tolerance: float = DEFAULT_TOLERANCE,
    progress: Progress | None = None,
) -> Assessment:
    """Fit calibrators on `val`, evaluate them on `test`, and select the one with the lowest NLL on held-out folds.

    The selection uses only `val`. If both data sets have class names, these must be the same, in any order.

    Args:
        val: Predictions to fit on.
        test: Predictions to evaluate on. Left out, each example of `val` is evaluated with calibrators fitted on the
            other folds. A path to a .parquet, .safetensors or .npy file, or an iterable of predictions, is read in
            chunks that are only summarized; metrics that need all predictions, such as AUROC, are then left out.
        calibrators: Names such as "Temperature", paths of saved ones (.safetensors), classes with a `fit`, or fitted
            calibrators. Default: Identity, Temperature, StructuredMatrix (StructuredVector beyond 1000 classes),
            HistogramBinning and Auto.
        metrics: Metrics that compare the calibrators. Default: by event; for "top" accuracy, nll, brier, ece,
            adaptive_ece and classwise_ece.
        choose: Calibrator to select instead.
        folds: Number of folds.
        of: Event to evaluate: "top" (the predicted class is correct), or a class by index or name. Default: the event
            of the predictions; for two classes, class 1 instead of "top".
        tolerance: Largest acceptable L2 error, as in `measure`.
        progress: Function that is called with a text before each step.

    Raises:
        InputError: A calibrator would be evaluated on the data it was fitted on, or the data sets do not match.

    >>> g = torch.Generator().manual_seed(0)
    >>> z = torch.randn(2000, 3, generator=g)
    >>> p = Predictions(3 * z, torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1))  # logits 3 times too large
    >>> result = assess(p[:1000], p[1000:], ["Identity", "Temperature"])
    >>> result.chosen_name, round(float(result.best.temperature))
    ('Temperature', 3)
    """
    check_tolerance(tolerance)
    num_elements = sum(len(p) * p.k for p in (val, test) if isinstance(p, Predictions))
    with thread_limit(num_elements):
        on_progress = progress or (lambda _: None)
        plan = plan_assessment(
            val,
            test,
            calibrators=calibrators,
            metrics=metrics,
            choose=choose,
            folds=folds,
            of=of,
            tolerance=tolerance,
            on_progress=on_progress,
        )
        fits = {c.name: c.fit(plan.val, plan.on_progress) for c in plan.candidates}
        evaluation = evaluate_fits(plan, fits)
        choice = choose_calibrator(plan, fits, evaluation)
        return _build_assessment(plan, fits, evaluation, choice)


# 1. Candidates


@dataclass(frozen=True, eq=False)
class Plan:
    """Checked inputs of an assessment."""

    val: Predictions
    test: EvaluationData
    candidates: list[CandidateCalibrator]
    requested_name: str | None  # the calibrator to select, if given
    event: EventKind
    metric_names: list[str]
    folds: int
    tolerance: float
    guard: OverlapGuard
    on_progress: Progress

    def measure(self, predictions: Predictions | Summary) -> Measurement:
        """Measure the event and metrics of this assessment."""
        return measure(predictions, metrics=self.metric_names, of=self.event.selector, tolerance=self.tolerance)


def plan_assessment(
    val: Predictions,
    test: EvaluationData,
    *,
    calibrators: Sequence[Any] | None,
    metrics: Sequence[str] | None,
    choose: str | None,
    folds: int,
    of: str | int | None,
    tolerance: float,
    on_progress: Progress,
) -> Plan:
    """Resolve calibrators, event and metrics, align the classes, and refuse overlapping data before any fit."""
    calibrators = default_calibrators(val.k) if calibrators is None else calibrators
    candidates, requested_name = resolve_candidates(calibrators, choose)
    for candidate in candidates:  # saved calibrators need the order of the classes that they were fitted on
        val = candidate.align_classes(val)
    if isinstance(test, Predictions):
        test = test.reorder_classes(val.class_names)
    selector = select_event(test if isinstance(test, Predictions) else val, of)
    val, event = val.with_event(selector), describe_event(selector, val.k, val.class_names)
    metric_texts = event.compared_metrics if metrics is None else metrics
    metric_names = [registry.METRICS.normalize(text) for text in as_list(metric_texts)]
    guard = OverlapGuard(val, candidates)
    if test is None:
        guard.check_fitted(val)  # loaded calibrators are evaluated on `val` itself
    elif isinstance(test, Predictions):
        guard.inspect(test)
        guard.overlap_report()  # refuses too many common rows
    else:
        by_class = val.k <= Summary.MAX_CLASSES  # whether it has a table of classes
        if metrics is None:  # the default metrics that a summary can compute
            metric_names = [name for name in metric_names if fits_summary(name, by_class=by_class)]
        summary = Summary.empty(of=selector, by_class=True).add(val[:1])
        measure(summary, metrics=metric_names)  # refuses metrics that a summary lacks before the data is read
    return Plan(
        val=val,
        test=test,
        candidates=candidates,
        requested_name=requested_name,
        event=event,
        metric_names=metric_names,
        folds=folds,
        tolerance=tolerance,
        guard=guard,
        on_progress=on_progress,
    )


# 2. Evaluation


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
    measurements = {name: plan.measure(p) for name, p in data.calibrated.items()}
    identity_name = next((name for name, p in data.calibrated.items() if p is data.uncalibrated), None)
    uncalibrated = measurements[identity_name] if identity_name else plan.measure(data.uncalibrated)
    return Evaluation(data, uncalibrated, measurements)


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


# 3. Choice


@dataclass(frozen=True)
class Choice:
    """The selected calibrator."""

    name: str
    selection: Selection
    held_out_nll: dict[str, float]
    held_out: HeldOutComparison


def choose_calibrator(plan: Plan, fits: Mapping[str, Any], evaluation: Evaluation) -> Choice:
    """Select the requested calibrator, or the one with the lowest NLL on held-out folds of the fitting data.

    With few labels, select the simplest calibrator that cannot be told apart from the best. Without any held-out NLL
    to compare, because all are NaN or there are too few rows for folds, select the first candidate.
    """
    held_out = compare_held_out(plan.val, plan.candidates, fits, plan.on_progress)
    if plan.requested_name:
        return Choice(plan.requested_name, "requested", held_out_nll={}, held_out=held_out)
    if plan.test is None:  # the evaluation is cross-fitted: its NLL was measured on held-out folds
        nll = {name: measurement["nll"].value for name, measurement in evaluation.measurements.items()}
    else:
        nll = _held_out_nll(plan, plan.candidates, fits)
    comparable = {name: value for name, value in nll.items() if not math.isnan(value)}
    selection: Selection = "held_out"
    if held_out.simplest:  # None unless labels are few
        name = held_out.simplest
    elif comparable:
        name = min(comparable, key=comparable.__getitem__)
    else:
        name, selection = plan.candidates[0].name, "first"
    return Choice(name, selection, held_out_nll=nll, held_out=held_out)


def _held_out_nll(plan: Plan, candidates: Sequence[CandidateCalibrator], fits: Mapping[str, Any]) -> dict[str, float]:
    """Return the NLL of each candidate on held-out folds of the fitting data, or {} if there are too few rows.

    It is NaN for a loaded calibrator that was fitted on these data, the value of the fit if that held out every fold
    itself (`Auto`), and infinite for a calibrator that introduces zero probabilities, even if no such class occurred.
    """
    max_folds = num_units(plan.val)
    if max_folds < 2:
        return {}
    val, nll = plan.val.double(), dict[str, float]()
    for c in candidates:
        nll_of_fit = getattr(fits[c.name], "out_of_fold", math.nan)
        if c.fitted is not None and c.overlap_message(plan.val):
            nll[c.name] = math.nan
        elif c.fitted is None and math.isfinite(nll_of_fit):
            nll[c.name] = nll_of_fit
        else:
            calibrated = c.out_of_fold(val, fits[c.name], min(plan.folds, max_folds), plan.on_progress)
            nll[c.name] = math.inf if introduces_zeros(calibrated, val) else float(metrics_.nll(calibrated))
    return nll


# Result


def _build_assessment(plan: Plan, fits: dict[str, Any], evaluation: Evaluation, choice: Choice) -> Assessment:
    """Collect the results.

    If the selected calibrator loses accuracy, the accuracy-preserving `Auto` is shown beside it: the one among the
    candidates, or a new one if `Auto` is selected.
    """
    changes = evaluation.data.compare_metrics(choice.name, plan.event.tested_metrics)  # uncalibrated to calibrated
    assessment = Assessment(
        uncalibrated=evaluation.uncalibrated,
        measurements=evaluation.measurements,
        metrics=tuple(plan.metric_names),
        calibrators=fits,
        chosen_name=choice.name,
        selection=choice.selection,
        held_out_nll=choice.held_out_nll,
        held_out=choice.held_out,
        changes=changes,
        mistakes=evaluation.data.mistakes(choice.name),
        protocol=_describe_protocol(plan, evaluation.data) + plan.guard.overlap_report(),
        fitting_data=plan.val,
        is_cross_fitted=plan.test is None,
    )
    if not any(row.name == "accuracy" and row.high < 0 for row in changes or ()):
        return assessment
    if ACCURACY_PRESERVING_AUTO in evaluation.measurements:
        return replace(assessment, accuracy_preserving=ACCURACY_PRESERVING_AUTO)
    if choice.name == "Auto" and isinstance(evaluation.data, InMemoryEvaluation):
        return _add_accuracy_preserving_auto(plan, evaluation.data, assessment)
    return assessment


def _add_accuracy_preserving_auto(plan: Plan, data: InMemoryEvaluation, assessment: Assessment) -> Assessment:
    """Fit and evaluate `ACCURACY_PRESERVING_AUTO`, and add it to the results."""
    c = CandidateCalibrator.of(ACCURACY_PRESERVING_AUTO)
    fits = assessment.calibrators | {c.name: c.fit(plan.val, plan.on_progress)}
    if plan.test is None:
        calibrated = c.out_of_fold(plan.val.double(), fits[c.name], plan.folds, plan.on_progress)
    else:
        calibrated = apply_calibrator(data.uncalibrated, fits[c.name])
    held_out_nll = assessment.held_out_nll
    if held_out_nll:
        held_out_nll = held_out_nll | _held_out_nll(plan, [c], fits)
    return replace(
        assessment,
        measurements=dict(assessment.measurements) | {c.name: plan.measure(calibrated)},
        calibrators=fits,
        held_out_nll=held_out_nll,
        accuracy_preserving=c.name,
    )


def _describe_protocol(plan: Plan, data: InMemoryEvaluation | StreamedEvaluation) -> str:
    """Return sentences on the data that calibrators were fitted and evaluated on."""
    event, num_fitted = plan.event, plan.event.count(len(plan.val))
    if plan.test is None:
        return (
            f"Cross-fitted in {plan.folds} folds: each of the {num_fitted} was evaluated with calibrators fitted on "
            f"the other folds. The saved calibrator is fitted on all {event.units}."
        )
    chunked = ", read in chunks" if isinstance(data, StreamedEvaluation) else ""
    return f"Fitted on {num_fitted}, evaluated on {len(data.uncalibrated):,} others{chunked}."
