"""Class shares that are not those of the data a calibrator was fitted on: given, or estimated without labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.backend.solvers import Certificate, fit_mixture, worst_status
from calibrant.calibrators._affine import BiasCorrectedTemperature
from calibrant.calibrators._apply import check_num_classes, num_classes
from calibrant.calibrators._fitting import certify, fit_function, fit_method, status_of
from calibrant.predictions import Predictions, from_unlabeled_arrays, load_unlabeled
from calibrant.registry import CALIBRATORS
from calibrant.types import CalibratorText, InputError, Logits, PerClass

__all__ = ["PriorShift"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class PriorShift:
    r"""Correction for other class shares (prior shift), $\log p_j + \log(w'_j / w_j)$ (Saerens et al. 2002, eq. 2.4).

    p is what the calibrator makes of the logits and w are the shares of the labels it was fitted on (and of one example
    that is a little of each, so that none is 0). The new shares w'
    are given as `prior`, or estimated from `unlabeled` examples: those of greatest likelihood, by EM on the
    probabilities of `BiasCorrectedTemperature` (Alexandari et al. 2020). Both sets are samples, so that alike sources
    have a likelihood ratio statistic of about $c = (k - 1)(1 + n'/n)$; an estimate with a statistic of g is drawn back
    to w by the share c / g, all the way where g is less. Right as long as the examples of each class are alike before
    and after.

    >>> from calibrant.calibrators import Identity
    >>> shifted = PriorShift(Identity(), torch.tensor([0.0, 1.0]).double())
    >>> shifted(torch.tensor([[0.0, 2.0]]))
    tensor([[0., 3.]])
    """

    calibrator: Any  # fitted
    shift: PerClass  # float64, log of the new share over the old one
    certificate: Certificate | None = None

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        calibrator: CalibratorText = "Auto",
        prior: Literal["uniform"] | tuple[float, ...] | None = None,
        unlabeled: str | Path | Tensor | Predictions | None = None,
    ) -> "PriorShift":
        """Fit a calibrator by name, and take it to other class shares.

        `prior`: "uniform" (the default), or one number per class (they are divided by their sum). `unlabeled`: instead,
        examples to estimate the shares from: logits (n, k), predictions or the path of a file of them, whose labels,
        if it has any, are not looked at.

        Raises `InputError` where a class has no share, and for both `prior` and `unlabeled`.
        """
        if prior is not None and unlabeled is not None:
            message = "PriorShift takes a prior or unlabeled examples to estimate it from, got both; leave one out"
            raise InputError(message, code="conflicting_settings")
        old_shares = _label_shares(p)
        new_shares = (
            _normalize_prior("uniform" if prior is None else prior, p.k)
            if unlabeled is None
            else _estimate_shares(p.double(), old_shares, _load_examples(unlabeled, p))
        )
        inner = fit_function(CALIBRATORS.method(calibrator))(p)
        return certify(cls(inner, (new_shares / old_shares).log()), p, worst_status("closed form", status_of(inner)))

    @check_num_classes(lambda self: num_classes(self.calibrator) or len(self.shift))
    def __call__(self, logits: Logits) -> Logits:
        """Return the calibrator's logits, each with the log of how much more frequent its class is."""
        return (self.calibrator(logits.double()) + self.shift.to(logits.device)).to(logits.dtype)


def _label_shares(p: Predictions) -> Tensor:
    """Of the labels and one example that is a little of each, so that none is 0: (k) float64."""
    count = torch.bincount(p.labels, p.weights, minlength=p.k).double() + 1 / p.k
    return (count / count.sum()).cpu()


def _normalize_prior(prior: Literal["uniform"] | tuple[float, ...], k: int) -> Tensor:
    shares = torch.ones(k, dtype=torch.float64) if prior == "uniform" else torch.tensor(prior, dtype=torch.float64)
    if len(shares) != k or not bool((shares > 0).all() & shares.isfinite().all()):
        raise InputError(f"prior must be {k} positive numbers, one per class, or 'uniform', got {prior}", code="prior")
    return shares / shares.sum()


def _load_examples(examples: str | Path | Tensor | Predictions, p: Predictions) -> Predictions:
    """What was given as examples whose labels are not looked at."""
    if isinstance(examples, str | Path):
        examples = load_unlabeled(examples)[0]
    elif not isinstance(examples, Predictions):
        examples = from_unlabeled_arrays({"logits": examples})[0]
    if examples.k != p.k:
        raise InputError(
            f"PriorShift: unlabeled examples of {examples.k} classes, the labeled ones have {p.k}", code="num_classes"
        )
    return examples.reorder_classes(p.class_names).double()


def _estimate_shares(p: Predictions, old_shares: Tensor, unlabeled: Predictions) -> Tensor:
    """The shares that make the unlabeled examples likeliest, drawn to the old ones as far as luck would do."""
    fitted = BiasCorrectedTemperature.fit(p)
    source_probs = p.apply(fitted).logits.softmax(-1)
    source = (source_probs.mean(0) if p.weights is None else p.weights @ source_probs / p.total_weight).cpu()
    target_probs = unlabeled.apply(fitted).logits.softmax(-1)
    ratios = target_probs / source.to(target_probs)
    mixture_fit = fit_mixture(ratios, unlabeled.weights)
    log_ratios = (ratios @ mixture_fit.shares.to(target_probs)).log()
    gain = float(log_ratios.sum() if unlabeled.weights is None else unlabeled.weights @ log_ratios)
    expected_statistic = (p.k - 1) * (1 + unlabeled.total_weight / p.total_weight)  # both sets are samples
    trust = max(0.0, 1 - expected_statistic / (2 * gain)) if gain > 0 else 0.0
    new_shares = trust * mixture_fit.shares * (old_shares / source) + (1 - trust) * old_shares
    new_shares = (
        unlabeled.total_weight * new_shares / new_shares.sum() + old_shares
    )  # and one example as before: no class is impossible
    return new_shares / new_shares.sum()
