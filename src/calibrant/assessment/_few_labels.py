"""What few labels can say about calibrators: which can be told apart, and how much each gains."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.assessment._candidates import CandidateCalibrator, Progress
from calibrant.calibrators import learned_fields
from calibrant.metrics import Interval, student_quantile
from calibrant.predictions import Predictions
from calibrant.predictions.folds import assign_folds, num_units

MAX_FEW_UNITS = 100  # rows or clusters up to which cross-fitting is repeated
MIN_FEW_UNITS = 5
FOLDS, NUM_REPEATS = 5, 2
LEVEL = 0.90


@dataclass(frozen=True)
class HeldOutComparison:
    """Differences of NLL on held-out validation data, with intervals over draws of these data.

    Without few labels only `Auto` is listed, whose fit holds out every fold itself.
    """

    gains: dict[str, Interval]  # NLL of the uncalibrated probabilities minus NLL of the calibrator
    deficits: dict[str, Interval]  # NLL minus NLL of the best calibrator; empty unless there are few labels

    @property
    def indistinguishable(self) -> tuple[str, ...]:
        """Calibrators whose NLL differs from the lowest by no more than chance explains, the simplest first."""
        return tuple(name for name, deficit in self.deficits.items() if deficit.low <= 0)

    @property
    def simplest(self) -> str | None:
        """The simplest of the indistinguishable calibrators, or None unless there are few labels.

        `Identity` gives way to the next one if that has a lower NLL: most gains within the noise are real.
        """
        names = self.indistinguishable
        if len(names) > 1 and names[0] == "Identity" and self.gains[names[1]].value > 0:
            return names[1]
        return names[0] if names else None


def has_few_labels(val: Predictions) -> bool:
    """Return whether there are so few labels that repeated cross-fitting is needed, and possible."""
    return MIN_FEW_UNITS <= num_units(val) <= MAX_FEW_UNITS


def compare_held_out(
    val: Predictions, candidates: Sequence[CandidateCalibrator], fits: Mapping[str, Any], on_progress: Progress
) -> HeldOutComparison:
    """Compare calibrators on held-out folds of the validation data.

    With few labels every calibrator is fitted `FOLDS * NUM_REPEATS` times, to other folds each time.
    """
    if not has_few_labels(val):
        stated_gains = {name: _stated_gain(fitted, val) for name, fitted in fits.items()}
        gains = {name: gain for name, gain in stated_gains.items() if gain is not None}
        return HeldOutComparison(gains, deficits={})
    p = val.double()
    folds = [assign_folds(p, FOLDS, seed) for seed in range(NUM_REPEATS)]
    # Loaded calibrators that were fitted on these data have no held-out loss
    eligible = [c for c in candidates if c.fitted is None or not c.overlap_message(val)]
    losses: dict[str, list[Tensor]] = {}
    for c in sorted(eligible, key=lambda c: num_parameters(fits[c.name])):  # the simplest first
        calibrated = [c.out_of_fold(p, fits[c.name], FOLDS, on_progress, seed) for seed in range(NUM_REPEATS)]
        losses[c.name] = [_losses(q, p) for q in calibrated]
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
    """Return the interval of the gain that `Auto` estimates from its own folds, or None for other calibrators."""
    gain = getattr(fitted, "gain", math.nan)
    standard_error = getattr(fitted, "gain_error", math.nan)
    if math.isnan(gain + standard_error):
        return None
    return _student_interval(gain, standard_error, num_units(val) - 1)


def _mean_interval(losses: list[Tensor], folds: list[Tensor], p: Predictions) -> Interval:
    """Return the mean of a loss over repeated cross-fitting, with its interval over draws of the data.

    `losses` and `folds` hold, for each repetition, the loss and the fold of every example, (n).

    The variance has two parts. Means of folds vary with the fit; as fits share most of their data, the mean of J folds
    has the variance of one fold times 1 / J + 1 / (FOLDS - 1), not 1 / J (Nadeau & Bengio 2003). Stratified folds vary
    less than chance, so that the variance of a mean over examples or clusters is added.
    """
    w = torch.ones_like(losses[0]) if p.weights is None else p.weights.to(losses[0])
    means: list[Tensor] = []  # of each fold of each repetition that has weight
    for loss, fold in zip(losses, folds, strict=True):
        weights_by_fold = [w * (fold == i) for i in range(FOLDS)]
        means += [_weighted_mean(loss, weight) for weight in weights_by_fold if float(weight.sum()) > 0]
    fold_means = torch.stack(means)
    mean_losses = torch.stack(losses).mean(0)  # over the repetitions
    mean = float(_weighted_mean(mean_losses, w))
    if not math.isfinite(mean):
        return Interval(mean, mean, mean, LEVEL)
    j = len(fold_means)
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
