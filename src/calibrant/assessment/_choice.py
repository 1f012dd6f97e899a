"""Select a calibrator on held-out folds, and say which ones few labels cannot tell apart."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant import metrics
from calibrant._core.lazy import LazyModule
from calibrant.assessment._candidates import CandidateCalibrator
from calibrant.assessment._evaluation import Evaluation
from calibrant.assessment._plan import Plan
from calibrant.assessment._results import HeldOutComparison, Selection
from calibrant.metrics import Interval
from calibrant.predictions import Predictions
from calibrant.predictions.folds import num_units

calibrators: Any = LazyModule("calibrant.calibrators")  # which takes long to load

MAX_FEW_UNITS = 100  # rows or clusters up to which cross-fitting is repeated
MIN_FEW_UNITS = 5  # as many as folds
FOLDS, NUM_REPEATS = 5, 2


@dataclass(frozen=True)
class Choice:
    """The selected calibrator."""

    name: str
    selection: Selection  # why it was selected
    held_out_nll: dict[str, float]  # by calibrator; empty if there is none to compare
    held_out: HeldOutComparison


def choose_calibrator(plan: Plan, fits: Mapping[str, Any], evaluation: Evaluation) -> Choice:
    """Select the requested calibrator, or the one with the lowest NLL on held-out folds of the fitting data.

    With few labels, select the simplest calibrator that cannot be told apart from the best. Either gives way to
    `Identity`, if that is a candidate, unless it is better by more than one standard error. Without any held-out NLL to
    compare, because all are NaN or there are too few rows for folds, select the first candidate.

    Args:
        plan: Inputs of the assessment.
        fits: The calibrators by name, fitted on all fitting data.
        evaluation: Their measurements, which are used only if they are out of fold.
    """
    held_out, nll = compare_held_out(plan, fits, evaluation)
    if plan.requested_name:
        return Choice(plan.requested_name, "requested", held_out_nll={}, held_out=held_out)
    comparable = {name: value for name, value in nll.items() if not math.isnan(value)}
    if not comparable:
        return Choice(plan.candidates[0].name, "first", held_out_nll=nll, held_out=held_out)
    name = held_out.simplest or min(comparable, key=comparable.__getitem__)  # no simplest one unless labels are few
    if "Identity" in comparable and not held_out.is_better(name):
        name = "Identity"
    return Choice(name, "held_out", held_out_nll=nll, held_out=held_out)


def has_few_labels(val: Predictions) -> bool:
    """Return whether there are so few labels that repeated cross-fitting is needed, and possible."""
    return MIN_FEW_UNITS <= num_units(val) <= MAX_FEW_UNITS


def compare_held_out(
    plan: Plan, fits: Mapping[str, Any], evaluation: Evaluation
) -> tuple[HeldOutComparison, dict[str, float]]:
    """Compare calibrators, none of which saw the validation data before, on held-out folds of these data.

    With few labels every calibrator is fitted `FOLDS * NUM_REPEATS` times, to other folds each time, and also compared
    with the best one. Otherwise folds that are at hand are used: those of a cross-fitted evaluation, and those that the
    fit of `Auto` holds out itself. No others are fitted if a calibrator is requested.

    Args:
        plan: The fitting data and the calibrators to compare.
        fits: The same calibrators and possibly others by name, fitted on all fitting data.
        evaluation: Their measurements, which are used only if they are out of fold.

    Returns:
        Intervals of the gain of each calibrator over no calibration, and of its deficit to the best, in nats; and the
        NLL of every candidate, NaN if it was fitted on these data before. Both are empty with too few rows for folds.
    """
    p, nll = plan.val.double(), dict.fromkeys((c.name for c in plan.candidates), math.nan)
    if num_units(p) < 2:
        return HeldOutComparison({}, {}), {}
    if not has_few_labels(p):
        gains: dict[str, Interval] = {}
        for c in plan.held_out_candidates:
            at_hand = evaluation.data.calibrated[c.name] if plan.test is None else None
            if plan.requested_name is None or at_hand is not None or states_gain(fits[c.name]):
                nll[c.name], gains[c.name] = held_out_nll(plan, c, fits[c.name], at_hand)
        return HeldOutComparison(gains, {}), nll
    losses: dict[str, np.ndarray] = {}  # by calibrator: the loss of every example, the mean over repetitions
    for c in sorted(plan.held_out_candidates, key=lambda c: num_parameters(fits[c.name])):  # the simplest first
        repetitions = (c.out_of_fold(p, fits[c.name], FOLDS, plan.on_progress, seed) for seed in range(NUM_REPEATS))
        losses[c.name] = np.stack([_losses(calibrated, p) for calibrated in repetitions]).mean(0)
        nll[c.name] = _mean(losses[c.name], p).value
    best, before = min(losses, key=nll.__getitem__, default=""), -p.log_likelihood
    with np.errstate(invalid="ignore"):  # of equal infinities
        gains = {name: _mean(before - loss, p) for name, loss in losses.items()}
        deficits = {name: _mean(loss - losses[best], p) for name, loss in losses.items()}
    return HeldOutComparison(gains, deficits), nll


def held_out_nll(
    plan: Plan, candidate: CandidateCalibrator, fitted: Any, calibrated: Any = None
) -> tuple[float, Interval]:
    """Return the NLL of a calibrator on held-out folds of the fitting data, and its gain over no calibration, in nats.

    The NLL is infinite for a calibrator that introduces zero probabilities, even if no such class occurred.

    Args:
        plan: The fitting data.
        candidate: The calibrator.
        fitted: The same, fitted on all fitting data.
        calibrated: Its out-of-fold predictions, if they are at hand.
    """
    p, folds = plan.val.double(), min(plan.folds, num_units(plan.val))
    if calibrated is None and candidate.fitted is None and states_gain(fitted):
        return fitted.out_of_fold, Interval(fitted.gain, fitted.gain_low, 2 * fitted.gain - fitted.gain_low)
    if calibrated is None:
        calibrated = candidate.out_of_fold(p, fitted, folds, plan.on_progress)
    losses = _losses(calibrated, p)
    with np.errstate(invalid="ignore"):  # of equal infinities
        return _mean(losses, p, folds).value, _mean(-p.log_likelihood - losses, p, folds)


def states_gain(fitted: Any) -> bool:
    """Return whether a calibrator states its gain, which `Auto` estimates on folds that its fit holds out."""
    return math.isfinite(getattr(fitted, "gain_low", math.nan))


def _mean(values: np.ndarray, p: Predictions, folds: int = FOLDS) -> Interval:
    """Return the mean over held-out folds with its interval."""
    return metrics.cross_validated_mean(values, folds, p)


def num_parameters(fitted: Any) -> int:
    """Return the number of parameters that a calibrator, or one of its parts, learned: the fewer, the simpler."""
    if hasattr(fitted, "shape"):
        return math.prod(fitted.shape)
    if isinstance(fitted, tuple | list):
        return sum(map(num_parameters, fitted))
    learned = calibrators.learned_fields(fitted) | calibrators.learned_arrays(fitted)
    return sum(num_parameters(value) for name, value in learned.items() if name != "certificate")


def _losses(calibrated: Predictions, uncalibrated: Predictions) -> np.ndarray:
    """Return the NLL per example (n), infinite for all if the calibrator introduces a probability of 0."""
    losses = -calibrated.log_likelihood
    return losses + math.inf if introduces_zeros(calibrated, uncalibrated) else losses


def introduces_zeros(calibrated: Predictions, uncalibrated: Predictions) -> bool:
    """Return whether a class has probability 0 after calibration and not before."""
    new, old = calibrated.logits, uncalibrated.logits
    return bool(((new == -math.inf) & (old > -math.inf)).any())
