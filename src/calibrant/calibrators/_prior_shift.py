"""Correction for class shares that differ from the fitting data, given or estimated without labels."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.roots import Certificate, worst_status
from calibrant._core.kernels.solvers import fit_mixture
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import Array, CalibratorText, InputError, Logits, PerClass
from calibrant.calibrators import maps
from calibrant.calibrators._affine import BiasCorrectedTemperature
from calibrant.calibrators._capabilities import Capabilities, calibrator_call, num_classes
from calibrant.calibrators._fitting import Solution, example_mean, example_weights, fit_function, fit_method, status_of
from calibrant.calibrators.fields import FittedMap
from calibrant.io.contents import Contents
from calibrant.io.predictions import read_file
from calibrant.predictions import Predictions

__all__ = ["PriorShift"]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class PriorShift(FittedMap):
    r"""Correction for other class shares (prior shift), $\log p_j + \log(w'_j / w_j)$ (Saerens et al. 2002, eq. 2.4).

    p are the calibrated probabilities and w the shares of the labels of the fitting data; one uniform pseudo-example
    keeps them above 0. They may be given as `source` instead, for a model that saw more of the rare class. The new
    shares w' are given as `prior`, or estimated from `unlabeled` examples by maximum likelihood: EM on the
    probabilities of `BiasCorrectedTemperature` (Alexandari et al. 2020). Both sets are samples. Without a shift the
    likelihood ratio statistic is therefore about $c = (k - 1)(1 + n'/n)$, and an estimate with statistic g is shrunk
    toward w by the share c / g, completely if g < c. Assumes that the distribution of the features within each class
    does not change.

    >>> from calibrant.calibrators import Identity
    >>> PriorShift(Identity(), [0.0, 1.0])(np.array([[0.0, 2.0]]))
    array([[0., 3.]])
    """

    calibrator: Any  # fitted
    shift: PerClass  # log of the new share over the old one
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=lambda fitted: num_classes(fitted.calibrator) or len(fitted.shift))

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        calibrator: CalibratorText = "Auto",
        prior: Literal["uniform"] | tuple[float, ...] | None = None,
        source: tuple[float, ...] | None = None,
        unlabeled: str | Path | np.ndarray | Array | Predictions | None = None,
    ) -> "PriorShift":
        """Fit a calibrator and correct it for other class shares.

        Args:
            p: Validation predictions.
            calibrator: The calibrator to fit, by name.
            prior: "uniform" (default), or one positive number per class; they are divided by their sum.
            source: Class shares that the probabilities assume, one positive number per class, such as (0.5, 0.5) after
                undersampling, in a case-control study or with `scale_pos_weight`. By default those of the labels. With
                calibrator="Identity" nothing is fitted: the log-odds move by the ratio of `prior` and `source`.
            unlabeled: Examples from which to estimate the shares, instead of a `prior`: logits (n, k), predictions, or
                the path of a file of predictions. Their labels are ignored.

        Raises:
            InputError: for a class without a share, and for `unlabeled` together with `prior` or `source`.
        """
        if unlabeled is not None and (prior is not None or source is not None):
            conflict = "a prior" if prior is not None else "a source"
            raise InputError(
                f"Expected {conflict} or unlabeled examples for PriorShift, got both. Try leaving one out.",
                code="conflicting_settings",
            )
        old_shares = _label_shares(p) if source is None else _normalize_shares(source, p.k, "source")
        if unlabeled is None:
            new_shares = _normalize_shares("uniform" if prior is None else prior, p.k, "prior")
        else:
            new_shares = _estimate_shares(p.double(), old_shares, _load_examples(unlabeled, p))
        inner = fit_function(CALIBRATORS.method(calibrator))(p)
        fitted = cls(inner, np.log(new_shares / old_shares))
        return Solution(fitted, worst_status("closed form", status_of(inner))).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return the calibrated logits plus the log ratio of new and old shares."""
        return maps.prior_shift(logits, vars(self))


def _label_shares(p: Predictions) -> np.ndarray:
    """Return the class shares of the labels and one uniform pseudo-example, (k)."""
    counts = np.bincount(p.labels, p.weights, minlength=p.k) + 1 / p.k
    return counts / counts.sum()


def _normalize_shares(
    values: Literal["uniform"] | tuple[float, ...], k: int, name: Literal["prior", "source"]
) -> np.ndarray:
    """Return k class shares, divided by their sum. Raises `InputError`, with the name as code, for invalid ones."""
    shares = np.ones(k) if values == "uniform" else np.array(values, dtype=np.float64)
    if len(shares) != k or not ((shares > 0) & np.isfinite(shares)).all():
        hint = ", or 'uniform'" if name == "prior" else ""
        raise InputError(
            f"Expected a {name} of {k} positive numbers, got {values}. Try one number per class{hint}.", code=name
        )
    return shares / shares.sum()


def _load_examples(examples: str | Path | Array | Predictions, p: Predictions) -> Predictions:
    """Return unlabeled examples as predictions with the classes of p. Their labels mean nothing."""
    if isinstance(examples, str | Path):
        examples = read_file(examples, needs_labels=False).predictions  # whether the file has labels plays no part
    elif not isinstance(examples, Predictions):
        examples = Contents("logits", examples).with_labels().to_predictions()
    if examples.k != p.k:
        raise InputError(
            f"Expected unlabeled examples of {p.k} classes, as the labeled ones have, got {examples.k}. Try the logits "
            "of the same model.",
            code="num_classes",
        )
    return examples.reorder_classes(p.class_names).double()


def _estimate_shares(p: Predictions, old_shares: np.ndarray, unlabeled: Predictions) -> np.ndarray:
    r"""Return estimated class shares of the unlabeled examples, (k).

    EM maximizes their likelihood as a mixture of the k class distributions. An example's density in a class is
    proportional to its calibrated probability over the class's mean probability in the labeled examples.

    The maximum is then shrunk toward the old shares, because chance alone raises the likelihood: without a shift, twice
    the gain in log-likelihood over the old shares has the mean $d = (k - 1)(1 + m / n)$, for m unlabeled and n labeled
    examples. The maximum has weight $1 - d / (2\, \mathrm{gain})$, the old shares the rest.
    """
    fitted = BiasCorrectedTemperature.fit(p)
    source_shares = example_mean(maps.softmax(p.apply(fitted).logits), p)  # mean probabilities, near the old shares
    ratios = to_numpy(maps.softmax(unlabeled.apply(fitted).logits)) / source_shares
    mixture_fit = fit_mixture(ratios, unlabeled.weights)
    log_ratios = np.log(ratios @ mixture_fit.shares)
    gain = float(example_weights(unlabeled) @ log_ratios)  # over the source shares, whose mixture has the ratio 1
    mean_without_shift = (p.k - 1) * (1 + unlabeled.total_weight / p.total_weight)  # both sets are samples
    estimate_weight = max(0.0, 1 - mean_without_shift / (2 * gain)) if gain > 0 else 0.0
    # EM changed the source shares by these factors; the old shares differ from them by a pseudo-example
    estimated_shares = mixture_fit.shares * (old_shares / source_shares)
    new_shares = estimate_weight * estimated_shares + (1 - estimate_weight) * old_shares
    # One pseudo-example with the old shares keeps every class possible
    counts = unlabeled.total_weight * new_shares / new_shares.sum() + old_shares
    return counts / counts.sum()
