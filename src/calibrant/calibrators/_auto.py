"""`Auto`: a stack of calibrators, weighted by out-of-fold predictions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.logistic import sigmoid_and_softplus
from calibrant._core.kernels.roots import Certificate
from calibrant._core.kernels.softmax import log_sum_exp
from calibrant._core.kernels.solvers import fit_mixture, newton
from calibrant._core.lazy import special
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import AnyFloat, Logits, Range
from calibrant.calibrators import maps
from calibrant.calibrators._affine_solver import COARSE_GRADIENT_TOLERANCE
from calibrant.calibrators._capabilities import Capabilities, calibrator_call, preserves_argmax, treats_classes_alike
from calibrant.calibrators._families import (
    FAMILIES,
    MIN_STACKING_EXAMPLES,
    REQUIRED_FAMILIES,
    CalibratorFamily,
    FittedFamilies,
    WarmStarts,
    family_of,
)
from calibrant.calibrators._fitting import Solution, example_mean, example_weights, fit_method
from calibrant.calibrators.fields import FittedMap
from calibrant.calibrators.maps import MAX_LOG_ODDS
from calibrant.metrics import Interval, Sample, cross_validated_mean
from calibrant.predictions import Predictions
from calibrant.predictions.folds import assign_folds, num_units

__all__ = ["Auto"]

WEIGHT_TOLERANCE = 1e-5  # distance from the minimum in nats at which the search for the weights has converged
MIN_MEMBER_WEIGHT = 1e-3  # members below are dropped
PRIOR_EXAMPLES = 5.0  # strength of the prior weights in pseudo-examples
BINARY_PRIOR_EXAMPLES = 10.0  # the same per family for two classes, of the squared distance from the prior weights
UNSEEN_EXAMPLE_NATS = 1.0  # gain of one unseen example in n, the smallest standard error of a gain
MAX_PRIOR_ERRORS = 50.0  # standard errors by which a family counts as ahead; the prior has nearly all weight there
MIN_NESTED_FOLDS = 3  # one to fit maps on, one to fit their weights on, and one to evaluate both
STATED_GAIN_LEVEL = 0.90  # of the interval of the gain, whose lower end is a limit of 95 %
_UNKNOWN_GAIN = Interval(math.nan, math.nan, math.nan, STATED_GAIN_LEVEL)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A family of calibrators with its weight in the stack and its out-of-fold NLL."""

    name: str
    weight: float
    held_out: AnyFloat  # out-of-fold NLL, nan without folds
    fitted: Any = None  # calibrator that was fitted to all examples; None without a weight


@CALIBRATORS.register(revision=2)
@dataclass(frozen=True, eq=False)
class Auto(FittedMap):
    r"""Stack of calibrators with out-of-fold weights, with safeguards against small data.

    Candidates are the uncalibrated probabilities ("as it is"), SmoothedTemperature, Monotone and IntraOrderPreserving;
    for two classes also StructuredVector, StructuredMatrix, Platt, Beta, Quadratic and VennAbers; for more classes
    IntraOrderPreserving then StructuredMatrix, Vector and Matrix with a light ridge, and Vector without one. Each
    predicts every example from a fit to the other folds, which do not know the labels, and is then fitted to all.

    The weights w minimize the out-of-fold NLL of a mixture, a convex problem, and are drawn to prior weights,
    $w^0_m \propto \exp(-d_m / s_m - h_m)$. $d_m$ is the mean out-of-fold NLL by which a family is behind the best one
    without a handicap, and $s_m^2$ its squared standard error plus $1/n^2$. A family that is statistically as good as
    the best, perhaps the uncalibrated probabilities, has a share. The handicap $h_m$ is 1 for IntraOrderPreserving then
    StructuredMatrix, 3 for Vector and Matrix, $\sqrt{1000 / n}$ for Platt, Beta and Quadratic, and
    $3/2 \, \log(d / n)$ for VennAbers, with d distinct scores.

    - For two classes the mixture has the log-odds $\sum_m w_m s_m$ with $w \ge 0$, and the prior adds
      $10 M \lVert w - w^0 \rVert^2$ to the total NLL of M families. Beyond the range of the fitting data, log-odds are
      extrapolated with a slope of at most 1.
    - For more classes the mixture is $\sum_m w_m p_m$ with w on the simplex, and the prior adds
      $-5 \sum_m w^0_m \log w_m$.

    The stated gain is nested: maps that are fitted without a fold predict it, with weights from the two neighboring
    folds, which are predicted by maps that saw neither. Its lower limit allows for the data that these fits share.
    Temperatures are robust and near 1 if the data say little: one example that was called impossible does not distort
    them.

    Labels of one class are fitted by a smoothed temperature alone: other members would learn that the class is certain.

    Candidates for which the data are too few are left out, and so are those that would take minutes (a matrix always
    above 562 classes); `left_out` has the reasons. Where IntraOrderPreserving takes too long, the matrix follows
    Monotone. Members with a weight below 0.001 are dropped. `print` shows the weights, the out-of-fold NLL and the
    stated gain. (Stacking: Wolpert 1992, van der Laan et al. 2007; weights by standard errors: cf. Yao et al. 2018;
    mixtures of log-odds: Genest & Zidek 1986; nested cross-validation: Bates et al. 2023; penalties of the members:
    Berta et al. 2025.)
    """

    candidates: tuple[Candidate, ...]
    gain: float = math.nan  # NLL of the uncalibrated probabilities less that of the mixture, by nested cross-validation
    gain_error: float = math.nan  # not computed any more; files of earlier versions have it
    left_out: tuple[str, ...] = ()  # families that were not tried, and why
    ends: tuple[float, float] = (-MAX_LOG_ODDS, MAX_LOG_ODDS)  # range of log-odds of the fitting data and 0
    certificate: Certificate | None = None
    gain_low: float = math.nan  # lower limit of the gain, above which it lies with a probability of 95 %
    capabilities = Capabilities(
        preserves_argmax=lambda stack: all(map(preserves_argmax, stack.members)),
        treats_classes_alike=lambda stack: (
            all(map(treats_classes_alike, stack.members)) and stack.ends[0] == -stack.ends[1]
        ),
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the members: the candidates with a weight."""
        return tuple(candidate.name for candidate in self.candidates if candidate.weight > 0)

    @property
    def members(self) -> tuple[Any, ...]:
        """Fitted calibrators in the mixture."""
        return tuple(candidate.fitted for candidate in self.candidates if candidate.weight > 0)

    @property
    def weights(self) -> np.ndarray:
        """Weights of the members, (members). They sum to 1 if there are more than two classes."""
        return np.array([candidate.weight for candidate in self.candidates if candidate.weight > 0])

    @property
    def held_out(self) -> tuple[float, ...]:
        """Out-of-fold NLL of every candidate."""
        return tuple(candidate.held_out for candidate in self.candidates)

    @property
    def out_of_fold(self) -> float:
        """NLL of the mixture by nested cross-validation, nan without folds."""
        return math.nan if self.certificate is None else self.certificate.nll_before - self.gain

    @classmethod
    @fit_method
    def fit(
        cls,
        p: Predictions,
        *,
        estimate_gain: bool = True,
        folds: Annotated[int, Range(ge=2)] = 5,
        accuracy_preserving: bool = False,
    ) -> "Auto":
        """Find the weights on out-of-fold predictions, then fit the members to all examples.

        Args:
            p: Validation predictions.
            estimate_gain: Whether to estimate the gain, which takes half of the time and changes no member or weight.
            folds: Number of folds. They keep clusters together; copies of a row count as one row of that weight if
                they share a cluster.
            accuracy_preserving: Use only families that never change a predicted class.
        """
        p = p.double()
        families, left_out = _eligible_families(p, folds, accuracy_preserving)
        if num_units(p) >= folds and p.total_weight >= MIN_STACKING_EXAMPLES:
            fold, handicaps = assign_folds(p, folds), [family.handicap(p) for family in families]
            scores, warm_starts = _out_of_fold_scores(families, p, fold)
            held_out = (-example_mean(_log_likelihoods(scores, p.k), p)).tolist()
            weights, gap = _fit_weights(scores, handicaps, p)
            gain = _UNKNOWN_GAIN
            if estimate_gain:
                gain = _nested_gain(families, handicaps, p, fold, scores, warm_starts)
        else:  # too few examples or clusters for out-of-fold predictions: equal weights, without a search
            weights, gap = np.full(len(families), 1 / len(families)), 0.0
            warm_starts, held_out, gain = WarmStarts(), [math.nan] * len(families), _UNKNOWN_GAIN
        members = [family for family, weight in zip(families, weights.tolist(), strict=True) if weight > 0]
        fitted = FittedFamilies.fit_all(members, p, warm_starts)
        candidates = tuple(
            Candidate(family.name, weight, nll, fitted.certified(family) if weight > 0 else None)
            for family, weight, nll in zip(families, weights.tolist(), held_out, strict=True)
        )
        ends = _log_odds_range(p) if p.k == 2 else cls.ends
        stack = cls(candidates, gain.value, left_out=tuple(left_out), ends=ends, gain_low=gain.low)
        # The NLL of a mixture is at most the mean of its members' NLL, because the logarithm is concave. The weights
        # (1, 0, ...) of log-odds have a squared distance of at most 2 from the prior
        slack = max(map(fitted.slack, members))
        slack += 2 * BINARY_PRIOR_EXAMPLES * len(families) / p.total_weight if p.k == 2 else 0.0
        status = "converged" if gap <= WEIGHT_TOLERANCE else "not converged"
        return Solution(stack, status, slack=slack, gap=gap).with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p of the mixture, or minus and plus half its log-odds if there are two classes."""
        # Not from the array `weights`, whose numbers torch cannot compile
        weights = [candidate.weight for candidate in self.candidates if candidate.weight > 0]
        return maps.auto(logits, {"members": self.members, "weights": weights, "ends": self.ends})

    def __str__(self) -> str:
        candidates = [
            f"{candidate.weight:5.3f}  {candidate.held_out:.4f}  {candidate.name}" for candidate in self.candidates
        ]
        reasons = [f"left out: {reason}" for reason in self.left_out]
        lines = ["Auto: weight, out-of-fold NLL", *candidates, *self._report_lines, *reasons, str(self.certificate)]
        return "\n  ".join(lines)

    @property
    def _report_lines(self) -> list[str]:
        """Lines of `print` on the member with the largest weight, candidates without a weight, and the gain."""
        if math.isnan(self.candidates[0].held_out):
            return ["too few examples or clusters for out-of-fold predictions: all have the same weight"]
        heaviest = max(self.candidates, key=lambda candidate: candidate.weight)
        best = min(self.candidates, key=lambda candidate: candidate.held_out)
        behind = f"{heaviest.held_out - best.held_out:.4f} behind {best.name}, " if heaviest is not best else ""
        refused = ", ".join(candidate.name for candidate in self.candidates if candidate.weight == 0)
        limit = "" if not math.isfinite(self.gain_low) else f", at least {self.gain_low:.4f} with a probability of 95 %"
        return [
            f"largest weight: {heaviest.name}, {behind}the best single family",
            *([f"no weight, which would not improve the mixture: {refused}"] if refused else []),
            f"gain over the uncalibrated probabilities: {self.gain:.4f} nats{limit}",
        ]


def _eligible_families(
    p: Predictions, folds: int, accuracy_preserving: bool
) -> tuple[list[CalibratorFamily], list[str]]:
    """Return the families to try, and the reasons for leaving out others.

    A family of another number of classes, or one that may change predicted classes although `accuracy_preserving`
    forbids it, is left out without a reason. Required families are always tried, and no others with labels of one
    class: they would learn the frequency of that class, or that no prediction is ever wrong.
    """
    n, k = p.logits.shape
    has_one_class = p.has_one_class
    tried, left_out = list[CalibratorFamily](), list[str]()
    for family in FAMILIES:
        description = f"{family.name}: {p.total_weight:.6g} examples of {k} classes"
        if not family.supports(k) or (accuracy_preserving and not family.preserves_argmax):
            continue
        if family.fallback_for and not family_of(family.fallback_for).takes_too_long(n, k):
            continue
        if family in REQUIRED_FAMILIES:
            tried.append(family)
        elif has_one_class:
            left_out.append(f"{family.name}: all labels are of one class, which it would learn to be certain")
        elif p.total_weight < family.min_examples(k):
            left_out.append(f"{description}, needs {family.min_examples(k)}")
        elif num_units(p) < folds:
            left_out.append(f"{family.name}: {folds} folds need as many rows or clusters, there are {num_units(p)}")
        elif family.takes_too_long(n, k):
            left_out.append(f"{description} take too long")
        else:
            tried.append(family)
    return tried, left_out


def _out_of_fold_scores(
    families: Sequence[CalibratorFamily], p: Predictions, fold: np.ndarray
) -> tuple[np.ndarray, WarmStarts]:
    """Return out-of-fold scores of the labels by m families, (n m), and warm starts for a fit to all data.

    A score is log p of the label; for two classes, its log-odds. The fits are coarse, because they are only compared.
    """
    scores, warm_starts = np.empty((len(p), len(families))), WarmStarts()
    for i in range(int(fold.max()) + 1):  # each fold starts from the fits of the previous one
        scores[fold == i], warm_starts = _score(families, p[fold != i], p[fold == i], warm_starts)
    return scores, warm_starts


def _score(
    families: Sequence[CalibratorFamily], training: Predictions, p: Predictions, warm_starts: WarmStarts
) -> tuple[np.ndarray, WarmStarts]:
    """Return the scores of the labels of p, (n m), by coarse fits of m families to other data, and warm starts."""
    fitted = FittedFamilies.fit_all(families, training, warm_starts, COARSE_GRADIENT_TOLERANCE)
    return np.stack([_label_scores(q) for q in fitted.apply_each(families, p)], 1), fitted.warm_starts


def _nested_gain(
    families: Sequence[CalibratorFamily],
    handicaps: Sequence[float],
    p: Predictions,
    fold: np.ndarray,
    scores: np.ndarray,
    warm_starts: WarmStarts,
) -> Interval:
    """Estimate the gain of the mixture on data that neither its maps nor their weights have seen.

    The maps of a fold are those that `scores`, (n m), come from. Its weights are fitted to the two neighboring folds,
    scored by maps that saw neither this fold nor the neighbor. The gain is unknown for fewer than three folds.

    Args:
        families: The m families.
        handicaps: Their handicaps on all data, (m).
        p: The predictions.
        fold: Fold of every row, (n).
        scores: Out-of-fold scores of the labels, (n m).
        warm_starts: Searches on similar data.
    """
    num_folds = int(fold.max()) + 1
    if num_folds < MIN_NESTED_FOLDS:
        return _UNKNOWN_GAIN
    nested: list[dict[int, np.ndarray]] = [{} for _ in range(num_folds)]  # by fold and neighbor, the neighbor's scores
    for i in range(num_folds):
        j = (i + 1) % num_folds
        in_pair = (fold == i) | (fold == j)
        pair_scores, warm_starts = _score(families, p[~in_pair], p[in_pair], warm_starts)
        nested[i][j], nested[j][i] = (pair_scores[fold[in_pair] == side] for side in (j, i))
    mixed = np.empty(len(p))  # log p of each label by the mixture
    for i, neighbors in enumerate(nested):
        weighing = np.concatenate([np.flatnonzero(fold == j) for j in neighbors])
        weights, _ = _fit_weights(np.concatenate([*neighbors.values()]), handicaps, p[weighing])
        mixed[fold == i] = _mix_scores(scores[fold == i], weights, p.k)
    # infinite if the uncalibrated probability of a label is 0
    return cross_validated_mean(mixed - p.log_likelihood, num_folds, p, STATED_GAIN_LEVEL)


def _label_scores(p: Predictions) -> np.ndarray:
    """Return log p of each label (n), or its log-odds if there are two classes."""
    if p.k == 2:
        return to_numpy(maps.log_odds(p.logits)) * (2 * p.labels - 1)  # the sign is reversed for label 0
    return np.maximum(p.log_likelihood, -MAX_LOG_ODDS)


def _log_odds_range(p: Predictions) -> tuple[float, float]:
    """Return the smallest and the largest log-odds of class 1 in the data, extended to include 0.

    With labels of one class they are extended to a symmetric range, so that the classes are treated alike.
    """
    log_odds = maps.log_odds(p.logits)
    low, high = min(float(log_odds.min()), 0.0), max(float(log_odds.max()), 0.0)
    return (min(low, -high), max(high, -low)) if p.has_one_class else (low, high)


def _log_likelihoods(scores: np.ndarray, k: int) -> np.ndarray:
    """Return log p of the label from scores of k classes (...)."""
    return maps.log_sigmoid(scores) if k == 2 else scores


@np.errstate(divide="ignore")  # of the logarithm of a weight of 0
def _mix_scores(scores: np.ndarray, weights: np.ndarray, k: int) -> np.ndarray:
    """Return log p that a mixture with weights (m) gives the label, (n), from the scores of its members, (n m)."""
    return maps.log_sigmoid(scores @ weights) if k == 2 else log_sum_exp(scores + np.log(weights))


def _fit_weights(scores: np.ndarray, handicaps: Sequence[float], p: Predictions) -> tuple[np.ndarray, float]:
    """Return the weights of m families, (m), and their distance from the optimum in nats.

    Args:
        scores: Scores of the labels by fits to other data, (n m); the first family is the uncalibrated probabilities.
        handicaps: Penalties in standard errors, (m).
        p: The predictions, for the weights, clusters and classes of the examples.
    """
    prior = _prior_weights(_log_likelihoods(scores, p.k), handicaps, p)
    if p.k == 2:
        weights, gap = _fit_log_odds_weights(scores, prior, p)
        return np.where(weights >= MIN_MEMBER_WEIGHT, weights, 0.0), gap
    likelihoods = np.exp(scores - scores.max(1, keepdims=True))  # up to a factor for each row, which changes no weight
    # The prior adds pseudo-examples to which only one family gives a probability above 0
    rows = np.vstack([likelihoods, np.eye(len(prior))])
    mixture = fit_mixture(rows, np.append(example_weights(p), PRIOR_EXAMPLES * prior))
    weights = np.where(mixture.shares >= MIN_MEMBER_WEIGHT, mixture.shares, 0.0)
    return weights / weights.sum(), mixture.optimality_gap


def _fit_log_odds_weights(scores: np.ndarray, prior: np.ndarray, p: Predictions) -> tuple[np.ndarray, float]:
    """Minimize the penalized NLL of mixed log-odds, a logistic regression with nonnegative weights.

    Args:
        scores: Out-of-fold log-odds that each member gives the label, (n m).
        prior: Prior weights, (m), which the penalty draws the weights to.
        p: The predictions, for the weights of the examples.

    Returns:
        The weights (m), and their distance from the optimum in nats.
    """
    shares, penalty = example_weights(p) / p.total_weight, BINARY_PRIOR_EXAMPLES * len(prior) / p.total_weight

    def penalized_nll(w: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the value, gradient and Hessian at w."""
        deviation, (wrong, nll) = w - prior, sigmoid_and_softplus(scores @ -w)  # probability of the wrong class, -log p
        error = wrong * shares
        value = float(shares @ nll) + penalty * float(deviation @ deviation)
        hessian = (scores * (error * (1 - wrong))[:, None]).T @ scores + 2 * penalty * np.eye(len(w))
        return value, 2 * penalty * deviation - error @ scores, hessian

    minimum = newton(penalized_nll, prior, lower=np.zeros_like(prior))
    return minimum.x, minimum.optimality_gap


def _prior_weights(log_p: np.ndarray, handicaps: Sequence[float], p: Predictions) -> np.ndarray:
    """Return weights (m) that fall with the number of standard errors by which a family is behind the best one.

    As in `Auto`, they are the softmax of gains less handicaps. A gain is the mean log p less that of the best family
    without a handicap, usually negative, in standard errors. A handicap is a penalty in the same unit.

    Args:
        log_p: Log-probability that each family, fitted to other data, gives the label, (n m).
        handicaps: Penalties for families that overfit, (m).
        p: The predictions, for their weights and clusters.
    """
    handicap = np.array(handicaps)
    best = np.where(handicap == 0, example_mean(log_p, p), -np.inf).argmax()
    gains = [Sample.from_values(gain, p.weights, p.clusters, p.examples) for gain in (log_p - log_p[:, best, None]).T]
    # One more example, unseen, may change a mean gain by about 1 nat / n
    errors = [math.hypot(x.error, UNSEEN_EXAMPLE_NATS / (x.degrees + 1)) for x in gains]
    ahead = np.array([x.mean / error for x, error in zip(gains, errors, strict=True)])
    # A family with a handicap may be far ahead of the best one without
    return special.softmax(np.minimum(ahead - handicap, MAX_PRIOR_ERRORS))
