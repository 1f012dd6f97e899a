"""Select a calibrator on held-out folds, and say which ones few labels cannot tell apart."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant import metrics
from calibrant.assessment._candidates import CandidateCalibrator, Progress
from calibrant.assessment._evaluation import Evaluation
from calibrant.assessment._plan import Plan
from calibrant.assessment._results import HeldOutComparison, Selection
from calibrant.calibrators import learned_fields
from calibrant.metrics import Interval, student_quantile
from calibrant.predictions import Predictions
from calibrant.predictions.folds import assign_folds, num_units

MAX_FEW_UNITS = 100  # rows or clusters up to which cross-fitting is repeated
MIN_FEW_UNITS = 5  # as many as folds
FOLDS, NUM_REPEATS = 5, 2
LEVEL = 0.90


@dataclass(frozen=True)
class Choice:
    """The selected calibrator."""

    name: str
    selection: Selection  # why it was selected
    held_out_nll: dict[str, float]  # by calibrator; empty if there is none to compare
    held_out: HeldOutComparison


def choose_calibrator(plan: Plan, fits: Mapping[str, Any], evaluation: Evaluation) -> Choice:
    """Select the requested calibrator, or the one with the lowest NLL on held-out folds of the fitting data.

    With few labels, select the simplest calibrator that cannot be told apart from the best. Without any held-out NLL
    to compare, because all are NaN or there are too few rows for folds, select the first candidate.

    Args:
        plan: Inputs of the assessment.
        fits: The calibrators by name, fitted on all fitting data.
        evaluation: Their measurements, which are used only if they are out of fold.
    """
    held_out = compare_held_out(plan.val, plan.held_out_candidates, fits, plan.on_progress)
    if plan.requested_name:
        return Choice(plan.requested_name, "requested", held_out_nll={}, held_out=held_out)
    if plan.test is None:  # the evaluation is cross-fitted: its NLL was measured on held-out folds
        nll = {name: measurement["nll"].value for name, measurement in evaluation.measurements.items()}
    elif num_units(plan.val) < 2:  # too few for folds
        nll = {}
    else:
        nll = {c.name: held_out_nll(plan, c, fits[c.name]) for c in plan.candidates}
    comparable = {name: value for name, value in nll.items() if not math.isnan(value)}
    selection: Selection = "held_out"
    if held_out.simplest:  # None unless labels are few
        name = held_out.simplest
    elif comparable:
        name = min(comparable, key=comparable.__getitem__)
    else:
        name, selection = plan.candidates[0].name, "first"
    return Choice(name, selection, held_out_nll=nll, held_out=held_out)


def held_out_nll(plan: Plan, candidate: CandidateCalibrator, fitted: Any) -> float:
    """Return the NLL of a calibrator on held-out folds of the fitting data.

    It is NaN for a loaded calibrator that was fitted on these data: there are no folds that it has not seen. It is
    infinite for a calibrator that introduces zero probabilities, even if no such class occurred.
    """
    if candidate.fitted is not None and candidate not in plan.held_out_candidates:
        return math.nan
    nll_of_fit = getattr(fitted, "out_of_fold", math.nan)  # from the folds that the fit of `Auto` held out itself
    if candidate.fitted is None and math.isfinite(nll_of_fit):
        return nll_of_fit
    val, folds = plan.val.double(), min(plan.folds, num_units(plan.val))
    calibrated = candidate.out_of_fold(val, fitted, folds, plan.on_progress)
    return math.inf if introduces_zeros(calibrated, val) else float(metrics.nll(calibrated))


def has_few_labels(val: Predictions) -> bool:
    """Return whether there are so few labels that repeated cross-fitting is needed, and possible."""
    return MIN_FEW_UNITS <= num_units(val) <= MAX_FEW_UNITS


def compare_held_out(
    val: Predictions, candidates: Sequence[CandidateCalibrator], fits: Mapping[str, Any], on_progress: Progress
) -> HeldOutComparison:
    """Compare calibrators, none of which saw the validation data before, on held-out folds of these data.

    With few labels every calibrator is fitted `FOLDS * NUM_REPEATS` times, to other folds each time. With more labels
    that would be slow: the gain of `Auto`, whose fit holds out folds itself, is then the only result.

    Args:
        val: The fitting data.
        candidates: The calibrators to compare.
        fits: The same calibrators and possibly others by name, fitted on all of `val`.
        on_progress: Function that is called with a text before each step.

    Returns:
        Intervals of the gain of each calibrator over no calibration, and of its deficit to the best, in nats.
    """
    if not has_few_labels(val):
        stated_gains = {name: _stated_gain(fitted, val) for name, fitted in fits.items()}
        gains = {name: gain for name, gain in stated_gains.items() if gain is not None}
        return HeldOutComparison(gains, deficits={})
    p = val.double()
    folds = [assign_folds(p, FOLDS, seed) for seed in range(NUM_REPEATS)]
    losses: dict[str, list[Tensor]] = {}  # by calibrator: for each repetition, the loss of every example
    for c in sorted(candidates, key=lambda c: num_parameters(fits[c.name])):  # the simplest first
        calibrated = [c.out_of_fold(p, fits[c.name], FOLDS, on_progress, seed) for seed in range(NUM_REPEATS)]
        losses[c.name] = [_losses(repetition, p) for repetition in calibrated]
    means = {name: _mean_interval(values, folds, p) for name, values in losses.items()}
    best = min(means, key=lambda name: means[name].value)
    uncalibrated = [_losses(p, p)] * NUM_REPEATS  # the same in every repetition

    def difference(first: list[Tensor], second: list[Tensor]) -> Interval:
        """Return the mean of the first losses minus the second ones, repetition by repetition."""
        return _mean_interval([a - b for a, b in zip(first, second, strict=True)], folds, p)  # paired by example

    return HeldOutComparison(
        gains={name: difference(uncalibrated, values) for name, values in losses.items() if name != "Identity"},
        deficits={name: difference(values, losses[best]) for name, values in losses.items()},
    )


def num_parameters(fitted: Any) -> int:
    """Return the number of parameters that a calibrator, or one of its parts, learned: the fewer, the simpler."""
    if isinstance(fitted, Tensor):
        return fitted.numel()
    if isinstance(fitted, tuple | list):
        return sum(map(num_parameters, fitted))
    return sum(num_parameters(value) for name, value in learned_fields(fitted).items() if name != "certificate")


def _stated_gain(fitted: Any, val: Predictions) -> Interval | None:
    """Return the interval of the NLL gain that `Auto` estimates from its own folds, or None for other calibrators."""
    gain = getattr(fitted, "gain", math.nan)
    standard_error = getattr(fitted, "gain_error", math.nan)
    if math.isnan(gain + standard_error):
        return None
    return _student_interval(gain, standard_error, num_units(val) - 1)


def _mean_interval(losses: list[Tensor], folds: list[Tensor], p: Predictions) -> Interval:
    """Return the mean of a loss over repeated cross-fitting, with its interval over draws of the data.

    `losses` and `folds` hold, for each repetition, the loss and the fold of every example, (n).

    The variance has two parts. The first comes from the fits. As they share most of their data, the mean over J folds
    has the variance of one fold times 1 / J + n_test / n_train, where n_test / n_train = 1 / (FOLDS - 1), instead of
    1 / J (corrected resampled t-test, Nadeau & Bengio 2003). The second comes from the examples or clusters: stratified
    folds are more alike than random ones, so that their means miss it.
    """
    w = torch.ones_like(losses[0]) if p.weights is None else p.weights.to(losses[0])
    means: list[Tensor] = []  # of each fold of each repetition; a fold may have no weight
    for loss, fold in zip(losses, folds, strict=True):
        weights_by_fold = [w * (fold == i) for i in range(FOLDS)]
        means += [_weighted_mean(loss, weight) for weight in weights_by_fold if float(weight.sum()) > 0]
    fold_means = torch.stack(means)
    mean_losses = torch.stack(losses).mean(0)  # over the repetitions
    mean = float(_weighted_mean(mean_losses, w))
    if not math.isfinite(mean):
        return Interval(mean, mean, mean, LEVEL)
    j = len(fold_means)  # FOLDS * NUM_REPEATS, unless folds have no weight
    fold_error = math.sqrt(float(fold_means.var()) * (1 / j + 1 / (FOLDS - 1)))
    residuals = w * (mean_losses - mean)
    unit_residuals = residuals if p.clusters is None else torch.bincount(p.clusters, residuals)
    n = num_units(p)  # of examples or clusters
    sampling_error = math.sqrt(float(unit_residuals.square().sum()) * n / (n - 1)) / float(w.sum())
    return _student_interval(mean, math.hypot(fold_error, sampling_error), j - 1)


def _weighted_mean(x: Tensor, w: Tensor) -> Tensor:
    """Return the mean of x with weights w."""
    return (x * w).sum() / w.sum()


def _student_interval(value: float, error: float, degrees: int) -> Interval:
    """Return the interval of a mean with this standard error by Student's t distribution with `degrees` of freedom."""
    half_width = student_quantile(LEVEL, degrees) * error
    return Interval(value, value - half_width, value + half_width, LEVEL)


def _losses(calibrated: Predictions, uncalibrated: Predictions) -> Tensor:
    """Return the NLL per example (n), infinite for all if the calibrator introduces a probability of 0."""
    losses = -calibrated.log_likelihood
    return losses + math.inf if introduces_zeros(calibrated, uncalibrated) else losses


def introduces_zeros(calibrated: Predictions, uncalibrated: Predictions) -> bool:
    """Return whether a class has probability 0 after calibration and not before."""
    return bool((calibrated.logits.isneginf() & ~uncalibrated.logits.isneginf()).any())
