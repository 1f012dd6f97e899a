"""Class shares that are not those of the data a calibrator was fitted on: given, or estimated without labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant._solve import Certificate, mixture, worst_status
from calibrant.calibrators._affine import BiasCorrectedTemperature
from calibrant.calibrators._apply import classes_of, its_classes
from calibrant.calibrators._fit import certify, fits, fitting, status_of
from calibrant.catalog import CALIBRATORS
from calibrant.predictions import Predictions, load_unlabeled
from calibrant.predictions import unlabeled as entered
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
    @fits
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
        old = _shares(p)
        new = (
            _given("uniform" if prior is None else prior, p.k)
            if unlabeled is None
            else _estimated(p.double(), old, _examples(unlabeled, p))
        )
        inner = fitting(CALIBRATORS.method(calibrator))(p)
        return certify(cls(inner, (new / old).log()), p, worst_status("closed form", status_of(inner)))

    @its_classes(lambda self: classes_of(self.calibrator) or len(self.shift))
    def __call__(self, logits: Logits) -> Logits:
        """Return the calibrator's logits, each with the log of how much more frequent its class is."""
        return (self.calibrator(logits.double()) + self.shift.to(logits.device)).to(logits.dtype)


def _shares(p: Predictions) -> Tensor:
    """Of the labels and one example that is a little of each, so that none is 0: (k) float64."""
    count = torch.bincount(p.labels, p.weights, minlength=p.k).double() + 1 / p.k
    return (count / count.sum()).cpu()


def _given(prior: Literal["uniform"] | tuple[float, ...], k: int) -> Tensor:
    shares = torch.ones(k, dtype=torch.float64) if prior == "uniform" else torch.tensor(prior, dtype=torch.float64)
    if len(shares) != k or not bool((shares > 0).all() & shares.isfinite().all()):
        raise InputError(f"prior must be {k} positive numbers, one per class, or 'uniform', got {prior}", code="prior")
    return shares / shares.sum()


def _examples(given: str | Path | Tensor | Predictions, p: Predictions) -> Predictions:
    """What was given as examples whose labels are not looked at."""
    if isinstance(given, str | Path):
        given = load_unlabeled(given)[0]
    elif not isinstance(given, Predictions):
        given = entered({"logits": given})[0]
    if given.k != p.k:
        raise InputError(
            f"PriorShift: unlabeled examples of {given.k} classes, the labeled ones have {p.k}", code="num_classes"
        )
    return given.in_order(p.class_names).double()


def _estimated(p: Predictions, old: Tensor, unlabeled: Predictions) -> Tensor:
    """The shares that make the unlabeled examples likeliest, drawn to the old ones as far as luck would do."""
    fitted = BiasCorrectedTemperature.fit(p)
    said = p.mapped(fitted).logits.softmax(-1)
    source = (said.mean(0) if p.weights is None else p.weights @ said / p.mass).cpu()
    after = unlabeled.mapped(fitted).logits.softmax(-1)
    ratios = after / source.to(after)
    found = mixture(ratios, unlabeled.weights)
    each = (ratios @ found.shares.to(after)).log()
    gain = float(each.sum() if unlabeled.weights is None else unlabeled.weights @ each)
    luck = (p.k - 1) * (1 + unlabeled.mass / p.mass)  # both sets are samples
    trust = max(0.0, 1 - luck / (2 * gain)) if gain > 0 else 0.0
    new = trust * found.shares * (old / source) + (1 - trust) * old
    new = unlabeled.mass * new / new.sum() + old  # and one example as before: no class is impossible
    return new / new.sum()
