"""Fit calibrators on some predictions, evaluate them on others, and select one without looking at the evaluation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from calibrant._core.kernels.threads import thread_limit
from calibrant._core.types import Fraction, NumFolds, OpenFraction, check_arguments
from calibrant.assessment._candidates import CandidateCalibrator, Progress, apply_calibrator
from calibrant.assessment._choice import Choice, choose_calibrator, held_out_nll
from calibrant.assessment._evaluation import (
    Evaluation,
    InMemoryEvaluation,
    StreamedEvaluation,
    evaluate_fits,
    measure_as_planned,
)
from calibrant.assessment._label_remarks import fitting_remarks
from calibrant.assessment._plan import EvaluationData, Plan, keep_applicable, plan_assessment
from calibrant.assessment._results import Assessment
from calibrant.metrics import Comparison, allow_for_cross_fitting
from calibrant.predictions import Predictions

DEFAULT_FOLDS = 5
LEVEL = 0.90  # default of the intervals
ACCURACY_PRESERVING_AUTO = "Auto(accuracy_preserving=True)"  # shown beside an Auto that loses accuracy


@check_arguments
def assess(
    val: Predictions,
    test: EvaluationData = None,
    calibrators: Sequence[Any] | None = None,
    metrics: Sequence[str] | None = None,
    *,
    choose: str | None = None,
    folds: NumFolds = DEFAULT_FOLDS,
    of: str | int | None = None,
    tolerance: Fraction | None = None,
    level: OpenFraction = LEVEL,
    progress: Progress | None = None,
) -> Assessment:
    """Fit calibrators on `val`, evaluate them on `test`, and select the one with the lowest NLL on held-out folds.

    The selection uses only `val`. If both data sets have class names, these must be the same, in any order. If all
    labels of `val` are of one class, only calibrators that treat all classes alike are assessed.

    Args:
        val: Predictions to fit on.
        test: Predictions to evaluate on. Left out, each example of `val` is evaluated with calibrators fitted on the
            other folds. A path to a .parquet, .safetensors or .npy file, or an iterable of predictions, is read in
            chunks that are only summarized; metrics that need all predictions, such as AUROC, are then left out.
        calibrators: Names such as "Temperature", paths of saved ones (.safetensors), classes with a `fit`, or fitted
            calibrators. Default: Identity, Temperature, StructuredMatrix (StructuredVector beyond 1000 classes),
            HistogramBinning and Auto, and for the event of one of two classes Intercept and Logistic.
        metrics: Metrics that compare the calibrators. Default: by event; for "top" accuracy, nll, brier, ece,
            adaptive_ece and classwise_ece.
        choose: Calibrator to select instead.
        folds: Number of folds.
        of: Event to evaluate: "top" (the predicted class is correct), or a class by index or name. Default: the event
            of the predictions; for two classes, the positive one (`Predictions.with_default_event`) instead of "top".
        tolerance: Largest acceptable L2 error, with the default of `measure`.
        level: Level of the intervals.
        progress: Function that is called with a text before each step.

    Raises:
        InputError: A calibrator would be evaluated on the data it was fitted on, the data sets do not match, or a
            calibrator that learns the frequencies of classes is chosen for labels of one class.

    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(2000, 3))
    >>> p = Predictions(3 * z, (z + rng.gumbel(size=z.shape)).argmax(1))  # logits 3 times too large
    >>> result = assess(p[:1000], p[1000:], ["Identity", "Temperature"])
    >>> result.chosen_name, round(float(result.best.temperature))
    ('Temperature', 3)
    """
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
            level=level,
            on_progress=on_progress,
        )
        fits = {c.name: c.fit(plan.val, plan.on_progress) for c in plan.candidates}
        plan, fits = keep_applicable(plan, fits)
        evaluation = evaluate_fits(plan, fits)
        choice = choose_calibrator(plan, fits, evaluation)
        return _build_assessment(plan, fits, evaluation, choice)


def _build_assessment(plan: Plan, fits: dict[str, Any], evaluation: Evaluation, choice: Choice) -> Assessment:
    """Collect the results.

    If the selected calibrator loses accuracy, the accuracy-preserving `Auto` is shown beside it: the one among the
    candidates, or a new one if `Auto` is selected.
    """
    changes = _compare_with_uncalibrated(plan, evaluation, choice)
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
        protocol=_describe_protocol(plan, evaluation.data) + plan.guard.report,
        fitting_data=plan.val,
        is_cross_fitted=plan.test is None,
        remarks=tuple(dict.fromkeys([*fitting_remarks(plan.val, plan.event), *evaluation.uncalibrated.remarks])),
    )
    # A loss of accuracy counts if the whole interval of the change is below 0; there are no changes for a single row
    if not any(row.name == "accuracy" and row.high < 0 for row in changes or ()):
        return assessment
    if ACCURACY_PRESERVING_AUTO in evaluation.measurements:
        return replace(assessment, accuracy_preserving=ACCURACY_PRESERVING_AUTO)
    if choice.name == "Auto" and isinstance(evaluation.data, InMemoryEvaluation):
        return _add_accuracy_preserving_auto(plan, evaluation.data, assessment)
    return assessment


def _compare_with_uncalibrated(plan: Plan, evaluation: Evaluation, choice: Choice) -> Comparison | None:
    """Test the changes of metrics, uncalibrated to calibrated by the selected calibrator. Return None for one row.

    If the folds that select the calibrator also evaluate it, the intervals hold for all candidates at once
    (Bonferroni), and allow for the data that its fits share.
    """
    data, names = evaluation.data, plan.event.tested_metrics
    if plan.test is not None or not isinstance(data, InMemoryEvaluation):
        return data.compare_metrics(choice.name, names, plan.level)
    num_tests = 1
    if choice.selection == "held_out":
        num_tests = max(1, sum(c.name != "Identity" for c in plan.candidates))
    changes = data.compare_metrics(choice.name, names, level=1 - (1 - plan.level) / num_tests)
    if changes is None:
        return None
    rows = (allow_for_cross_fitting(row, plan.folds, num_tests) for row in changes)
    return replace(changes, level=plan.level, rows=tuple(rows))


def _add_accuracy_preserving_auto(plan: Plan, data: InMemoryEvaluation, assessment: Assessment) -> Assessment:
    """Fit and evaluate `ACCURACY_PRESERVING_AUTO`, and add it to the results."""
    c = CandidateCalibrator.of(ACCURACY_PRESERVING_AUTO)
    fits = assessment.calibrators | {c.name: c.fit(plan.val, plan.on_progress)}
    if plan.test is None:
        calibrated = c.out_of_fold(plan.val.double(), fits[c.name], plan.folds, plan.on_progress)
    else:
        calibrated = apply_calibrator(data.uncalibrated, fits[c.name])
    held_out = assessment.held_out_nll
    if held_out:  # empty if the calibrator was requested, or there are too few rows for folds
        nll, _ = held_out_nll(plan, c, fits[c.name], calibrated if plan.test is None else None)
        held_out = held_out | {c.name: nll}
    return replace(
        assessment,
        measurements=dict(assessment.measurements) | {c.name: measure_as_planned(plan, calibrated)},
        calibrators=fits,
        held_out_nll=held_out,
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
