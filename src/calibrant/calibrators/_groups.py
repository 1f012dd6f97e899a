"""A calibrator with a correction for each group, shrunk so that small groups stay near the common calibrator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Float

from calibrant._core.arrays import like, to_numpy
from calibrant._core.kernels.roots import Certificate
from calibrant._core.kernels.softmax import exp_in_place
from calibrant._core.kernels.threads import thread_limit
from calibrant._core.lazy import special
from calibrant._core.registry import CALIBRATORS
from calibrant._core.text import shorten_list
from calibrant._core.types import FINITE_RANGE, CalibratorText, Categories, FiniteVector, InputError, Logits, Range
from calibrant.calibrators import maps
from calibrant.calibrators._affine import BiasCorrectedTemperature
from calibrant.calibrators._capabilities import Capabilities, calibrator_call, check_logits, like_logits
from calibrant.calibrators._compose import Chain
from calibrant.calibrators._fitting import (
    Solution,
    example_weights,
    fit_function,
    fit_method,
    status_of,
)
from calibrant.calibrators.fields import FittedMap, move_beside
from calibrant.calibrators.maps import LOG_PROB_FLOOR, TINY_DIVISOR
from calibrant.predictions import Predictions
from calibrant.predictions.folds import map_out_of_fold, num_units
from calibrant.predictions.validation.names import group_positions

__all__ = ["GroupCalibrated"]

PRIOR_DEVIATIONS = (1e-4, 0.1, 0.25, 0.6, 1.5)  # of slopes and biases between groups; the first means no difference
MAX_BIAS_CLASSES = 64  # with more classes, groups have no biases
PRIOR_NO_DIFFERENCE = 0.2  # prior probability that no group differs
PRIOR_COMMON_DEVIATION = 0.2  # prior probability that all groups differ by the same standard deviations
OUTLIER_SHARES = (0.05, 0.1, 0.2, 0.4)  # shares of groups with other deviations; they divide the rest of the prior
MIN_GROUP_SLOPE = 0.01
NUM_FOLDS = 5  # of the predictions to which corrections are fitted
MAX_BLOCK_ELEMENTS = 1 << 22  # probabilities of a group under several priors that are in memory at once
MIN_GAIN = 1e-9  # nats by which a Newton step must raise the log posterior
VALUE_PRECISION = 1e-12  # relative decrease of a log posterior that is rounding

Biases = Annotated[Float[np.ndarray, "m k"], FINITE_RANGE]
Slopes = Annotated[FiniteVector, Range(gt=0)]


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class GroupCalibrated(FittedMap):
    r"""A calibrator with a correction for every group: $a_g \log p + b_g$ of the calibrated p.

    The differences between groups are estimated by hierarchical Bayes (partial pooling). Slopes and biases are normal
    around 1 and 0. Their standard deviations lie on a grid, with one pair for most groups and another for a share of
    outlying groups. All pairs and shares are averaged by their marginal likelihood (Laplace's approximation), with a
    prior probability of 1/5 that no group differs. Every group gets its posterior mean: a small group stays at the
    common calibrator, a clearly different group gets its own correction.

    Needs predictions with groups (`Predictions.apply`, `calibrate`, `assess`, `cross_fit`); logits alone are refused,
    because their group is unknown. `of_group(name)` is the calibrator of one group. A new group gets the common
    calibrator. Fitted without groups, it is the common calibrator. With several labels per example, the label is the
    group.

    >>> from calibrant.calibrators import Identity
    >>> fitted = GroupCalibrated(Identity(), ("a",), [2.0], [[0.0, 1.0]])
    >>> Predictions([[0.0, 1.0], [0.0, 1.0]], [0, 1], groups=["a", "new"]).apply(fitted).logits.tolist()
    [[0.0, 3.0], [0.0, 1.0]]
    """

    pooled: Any  # the common calibrator, fitted to the examples of all groups
    names: tuple[str, ...]  # group names
    slopes: Slopes  # (m)
    biases: Biases  # (m k)
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=lambda fitted: fitted.biases.shape[1], takes_groups=True)

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, calibrator: Literal[""] | CalibratorText = "") -> "GroupCalibrated":
        """Fit the common calibrator, and then the corrections of the groups to its out-of-fold predictions.

        With fewer than 10 examples (or clusters), the corrections are fitted to in-sample predictions.

        Args:
            p: Validation predictions.
            calibrator: The common calibrator, by name (default: Platt for 2 classes, else BiasCorrectedTemperature).
        """
        default = "Platt" if p.k == 2 else "BiasCorrectedTemperature"
        fit = fit_function(CALIBRATORS.method(calibrator or default))
        p = p.double()
        pooled = fit(p)
        names, groups = _nonempty_groups(p)
        slopes, biases = np.ones(len(names)), np.zeros((len(names), p.k))
        if names:
            calibrated = map_out_of_fold(fit, p, folds=NUM_FOLDS) if num_units(p) >= 2 * NUM_FOLDS else p.apply(pooled)
            # One row per group: its slope minus 1 and, for few enough classes, its k biases; all shrunk towards 0
            corrections = _posterior_means(calibrated, [groups == i for i in range(len(names))])
            slopes = np.maximum(1 + corrections[:, 0], MIN_GROUP_SLOPE)
            if corrections.shape[1] > 1:
                biases = corrections[:, 1:]
        # The corrections always converge; the common calibrator may not, and then its certificate says so
        status = "converged" if getattr(pooled, "certificate", None) is None else status_of(pooled)
        slack = 2 / p.total_weight  # the smoothed targets of Platt and the priors of the groups may raise the NLL
        solution = Solution(cls(pooled, names, slopes, biases), status, slack=slack)
        return solution.with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return the logits of the common calibrator. Raises `InputError` if there are groups."""
        if self.names:
            raise InputError(
                f"Expected predictions with groups, got logits alone. Try predictions with groups=, or the "
                f"calibrator of one group, of_group({self.names[0]!r}).",
                code="no_groups",
            )
        return maps.apply(self.pooled, logits)

    def map_columns(self, logits: Logits, columns: Mapping[str, Categories]) -> Logits:
        """Return logits with the correction of each row's group. Without groups, do as `__call__` does."""
        if "groups" not in columns:
            return self(logits)
        check_logits(self, logits)
        groups = columns["groups"]
        # First for each group of the predictions, which may be new, then for each row
        indices = group_positions(groups.names, self.names, len(self.names))
        index = like(np.array(indices, dtype=np.int64)[groups.index], logits)
        common = maps.apply(self.pooled, maps.double(logits))
        corrected = maps.group_calibrated(common, vars(move_beside(self, logits)), index)
        return like_logits(corrected, logits, keeps_argmax=False)

    def of_group(self, name: str) -> Chain:
        """Return the calibrator of one group, for logits alone. Raises `InputError` for an unknown group."""
        if name not in self.names:
            expected = f"one of the groups {shorten_list(self.names)}" if self.names else "no group, for it has none"
            raise InputError(
                f"Expected {expected}, got {name!r}. Try the common calibrator, `pooled`, for a new group.",
                code="unknown_group",
            )
        i = self.names.index(name)
        # A slope is an inverse temperature
        return Chain(self.pooled, BiasCorrectedTemperature(1 / self.slopes[i], self.biases[i]))

    def column_notes(self, columns: Mapping[str, Categories]) -> tuple[str, ...]:
        """Return a note if there are groups that the calibrator was not fitted on."""
        groups = columns.get("groups")
        if groups is None or not self.names:  # fitted without groups, it is the common calibrator anyway
            return ()
        used, new = groups.used_names, len(self.names)
        # the positions of names among the fitted ones, `new` for others
        unknown = [name for name, i in zip(used, group_positions(used, self.names, new), strict=True) if i == new]
        note = f"GroupCalibrated was not fitted on the groups {', '.join(unknown)}: they get the common calibrator"
        return (note,) if unknown else ()


def _nonempty_groups(p: Predictions) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of nonempty groups (none without groups), and the index of each example's group."""
    if p.groups is None or p.group_names is None:
        return (), np.zeros(len(p), dtype=np.int64)
    codes, index = np.unique(p.groups, return_inverse=True)
    return tuple(p.group_names[i] for i in codes.tolist()), index


def _posterior_means(p: Predictions, groups: list[np.ndarray]) -> np.ndarray:
    """Return the posterior mean differences of every group from the common calibrator, (m d).

    The d differences are of the slope from 1 and, with at most 64 classes, of the k biases from 0. Each group is fitted
    under c priors; a prior is a standard deviation of slopes and another of biases. The fits are averaged.

    Args:
        p: Predictions of the common calibrator.
        groups: Mask of the examples of each group.
    """
    num_biases = p.k if p.k <= MAX_BIAS_CLASSES else 0
    bias_deviations = PRIOR_DEVIATIONS if num_biases else PRIOR_DEVIATIONS[:1]  # one, so that no pair occurs twice
    priors = [[slope] + [bias] * num_biases for slope in PRIOR_DEVIATIONS for bias in bias_deviations]
    precision = np.array(priors) ** -2.0  # (c d)
    posteriors = [_group_posterior(p[mask], precision) for mask in groups]
    modes, log_evidence = (np.stack(parts) for parts in zip(*posteriors, strict=True))  # (m c d), (m c)
    # A factor for each group changes no weight
    likelihood = np.exp(log_evidence - log_evidence.max(1, keepdims=True))
    return (_posterior_weights(likelihood)[:, :, None] * modes).sum(1)


@np.errstate(divide="ignore")  # of the logarithm of a likelihood of 0
def _posterior_weights(likelihood: np.ndarray) -> np.ndarray:
    """Return each group's posterior probabilities of the priors, (m c) for m groups and c priors.

    Averages over hypotheses: that all groups have the same prior; or, for every pair of priors and every share of
    outliers, that most groups have the first prior and that share of them the second.

    Args:
        likelihood: Marginal likelihood of each group's data under each prior, (m c), up to a factor for each group.
    """
    c = likelihood.shape[1]
    hypothesis_prior = np.full(c, PRIOR_COMMON_DEVIATION / c)
    hypothesis_prior[0] += PRIOR_NO_DIFFERENCE  # the first prior means no difference
    outlier_prior = (1 - hypothesis_prior.sum()) / (len(OUTLIER_SHARES) * c * c)  # of one share and pair of priors
    # for each share, (m c c): likelihood of group g if most groups have prior i and the share of outliers has prior j
    mixed = [(1 - share) * likelihood[:, :, None] + share * likelihood[:, None] for share in OUTLIER_SHARES]
    log_posteriors = [  # of the hypotheses, up to a constant
        np.log(likelihood).sum(0) + np.log(hypothesis_prior),
        *((np.log(pair_likelihood).sum(0) + np.log(outlier_prior)).ravel() for pair_likelihood in mixed),
    ]
    posterior = special.softmax(np.concatenate(log_posteriors))
    for_all, for_pairs = posterior[:c], posterior[c:].reshape(-1, c, c)
    weights = np.tile(for_all, (len(likelihood), 1))
    # given a pair (i, j), group g has prior i with probability (1 - share) likelihood[g, i] / mixed[g, i, j]
    for share, pair_likelihood, pair_posterior in zip(OUTLIER_SHARES, mixed, for_pairs, strict=True):
        ratio = pair_posterior / np.maximum(pair_likelihood, TINY_DIVISOR)  # (m c c), 0 if the likelihood is
        as_majority, as_outlier = (1 - share) * ratio.sum(2), share * ratio.sum(1)  # summed over j, and over i
        weights += likelihood * (as_majority + as_outlier)
    return weights


def _group_posterior(p: Predictions, precision: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a group's differences from the common calibrator under c priors, and the evidence of its data for each.

    The d differences are of the slope from 1 and, unless d is 1, of the k biases from 0.

    Args:
        p: Predictions of the common calibrator for the examples of the group.
        precision: Inverse variances of the normal priors, (c d).

    Returns:
        The posterior modes, (c d), and the logarithm of the marginal likelihood, (c).
    """
    x = np.maximum(to_numpy(maps.log_softmax(p.logits)).T, LOG_PROB_FLOOR)
    weights = example_weights(p) / _design_effect(x, p)  # examples of a cluster count as fewer independent ones
    size = max(1, MAX_BLOCK_ELEMENTS // x.size)  # priors per block, which bounds the memory
    with thread_limit(x.size * min(size, len(precision))):
        blocks = [
            _posterior_modes(x, p.labels, weights, precision[first : first + size])
            for first in range(0, len(precision), size)
        ]
    modes, log_evidence = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return modes, log_evidence


def _design_effect(log_probs: np.ndarray, p: Predictions) -> float:
    """Return the design effect of clusters, the ratio of examples to independent examples, at least 1.

    It is the variance of the summed residuals 1[y = j] - p_j, estimated as if only clusters were independent, over the
    one estimated as if all examples were.

    Args:
        log_probs: Log-probabilities (k n).
        p: Labels, weights and clusters of the examples.
    """
    if p.clusters is None:
        return 1.0
    is_label = np.arange(p.k)[:, None] == p.labels
    residuals = (is_label - np.exp(log_probs)) * example_weights(p)
    _, index = np.unique(p.clusters, return_inverse=True)
    cluster_sums = np.array([np.bincount(index, row) for row in residuals])
    return max(1.0, float((cluster_sums**2).sum() / max((residuals**2).sum(), TINY_DIVISOR)))


def _posterior_modes(
    x: np.ndarray, y: np.ndarray, w: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Maximize the concave log posterior of a group's d differences for all c priors at once, by Newton's method.

    A step is halved while the log posterior falls.

    Args:
        x: Log-probabilities, (k n).
        y: Labels, (n).
        w: Weights of the examples, (n).
        precision: Inverse variances of the normal priors, (c d).

    Returns:
        The modes, (c d), and Laplace's approximation of the logarithm of the marginal likelihood, (c).
    """
    theta = np.zeros_like(precision)
    value, gradient, hessian = _log_posterior(theta, x, y, w, precision)  # the last one is minus the Hessian
    for _ in range(100):
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        if float((step * gradient).sum(1).max()) < MIN_GAIN:  # twice the gain that the quadratic model predicts
            break
        # halve the steps of the priors whose log posterior falls
        lowest_accepted = value - VALUE_PRECISION * (1 + np.abs(value))
        value, gradient, hessian = _log_posterior(theta + step, x, y, w, precision)
        while (value < lowest_accepted).any():
            step = step * np.where(value < lowest_accepted, 0.5, 1.0)[:, None]
            value, gradient, hessian = _log_posterior(theta + step, x, y, w, precision)
        theta = theta + step
    log_determinant = np.linalg.slogdet(hessian).logabsdet
    return theta, value + (np.log(precision).sum(1) - log_determinant) / 2


def _log_posterior(
    theta: np.ndarray, x: np.ndarray, y: np.ndarray, w: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the log posterior (c), its gradient (c d), and minus its Hessian (c d d), for every row of theta (c d).

    A row of theta has the differences of a slope from 1 and, unless d is 1, of the biases from 0. The others are as in
    `_posterior_modes`. The Hessian has the covariances, under the probabilities p of an example, of its x and of the
    indicators of the classes.
    """
    (k, n), has_biases = x.shape, theta.shape[1] > 1
    z = (1 + theta[:, :1, None]) * x
    if has_biases:
        z += theta[:, 1:, None]
    z -= z.max(1, keepdims=True)  # (c k n)
    label_z = z[:, y, np.arange(n)]
    p = exp_in_place(z)
    total = p.sum(1)
    p /= total[:, None]
    value = (label_z - np.log(total)) @ w - (precision * theta**2).sum(1) / 2
    mean = (p * x).sum(1)
    centered = x - mean[:, None]
    gradient = ((x[y, np.arange(n)] - mean) @ w)[:, None]
    hessian = ((p * centered**2).sum(1) @ w)[:, None, None]
    if has_biases:
        weighted_p = p * w
        class_weights = weighted_p.sum(2)
        gradient = np.concatenate([gradient, np.bincount(y, w, minlength=k) - class_weights], 1)
        covariances = (weighted_p * centered).sum(2)[:, None]  # (c 1 k) of x and each indicator
        bias_hessian = _diagonal(class_weights) - weighted_p @ p.mT
        rows = [np.concatenate([hessian, covariances], 2), np.concatenate([covariances.mT, bias_hessian], 2)]
        hessian = np.concatenate(rows, 1)
    return value, gradient - precision * theta, hessian + _diagonal(precision)


def _diagonal(values: np.ndarray) -> np.ndarray:
    """Return diagonal matrices (c d d) with these values (c d)."""
    return values[:, :, None] * np.eye(values.shape[1])
