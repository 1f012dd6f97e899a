"""Binning: the confidence becomes the accuracy of its bin on validation data.

If one of two classes is evaluated, such as "correct", its probability is binned instead of the confidence.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from calibrant._core.arguments import Count, OpenFraction, Range, check_arguments
from calibrant._core.arrays import to_numpy
from calibrant._core.kernels.bins import Bins, GroupedScores, edges_between, unbounded_bin_index
from calibrant._core.kernels.roots import Certificate, worst_status
from calibrant._core.lazy import special
from calibrant._core.registry import CALIBRATORS
from calibrant._core.types import Allows, FiniteVector, Index, InputError, Logits, PerBinTensor
from calibrant.calibrators import maps
from calibrant.calibrators._binary import Platt
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._confidence import BinnedEvent, binned_event, binned_num_classes
from calibrant.calibrators._fitting import Solution, example_weights, fit_method, status_of
from calibrant.calibrators._temperature import Temperature
from calibrant.calibrators.fields import FittedMap
from calibrant.predictions import Predictions

__all__ = ["BayesianBinning", "HistogramBinning", "ScalingBinning", "TopLabelBinning"]

LogOddsEdges = Annotated[Float[np.ndarray, "g edges"], Allows(math.inf)]
BinSetIndices = Annotated[Int[np.ndarray, " k"], Index("edges")]
BinCounts = Annotated[Int[np.ndarray, "g b"], Range(ge=0)]
MIN_PRIOR_MEAN = 1e-6  # of an accuracy, because Beta(0, b) is no distribution
BINNING_CAPABILITIES = Capabilities(
    num_classes=binned_num_classes, exports=(), treats_classes_alike=lambda fitted: fitted.of == "top"
)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class HistogramBinning(FittedMap):
    """Histogram binning (Zadrozny & Elkan 2001), pooled on the top label (Wang et al. 2021, section 4).

    The confidence becomes the validation accuracy of its bin. The other classes share the rest in proportion, and none
    exceeds the predicted class, which therefore changes only if its accuracy is 1/k or less. If one of two classes is
    evaluated (`of=1`, as in `from_confidence`), its probability is binned from 0 to 1 and becomes its frequency, as in
    the first of these papers. An empty bin keeps the confidence. Returns log p. A bin without errors has probability
    1, so that one later error in it has an infinite NLL.

    >>> z = np.array([[2.0, 0.0]] * 4)
    >>> np.exp(HistogramBinning.fit(z, [0, 0, 0, 1])(z[:1]))
    array([[0.75, 0.25]])
    """

    edges: FiniteVector  # (b + 1)
    accuracy: PerBinTensor  # nan if the bin was empty
    of: BinnedEvent = "top"
    certificate: Certificate | None = None
    capabilities = BINNING_CAPABILITIES

    @classmethod
    @fit_method
    def fit(
        cls, p: Predictions, *, bins: Count = 15, scheme: Literal["equal_width", "equal_mass"] = "equal_width"
    ) -> "HistogramBinning":
        """Compute the accuracy of every bin of the confidence.

        Args:
            p: Validation predictions.
            bins: Number of bins.
            scheme: Whether bins have equal width or equal numbers of examples.
        """
        event = binned_event(p)
        events = p.with_event(event).events
        table = Bins.undivided(bins, events.by_score) if scheme == "equal_mass" else events.equal_width(bins)
        fitted = cls(table.edges, table.accuracy, event)
        # No metric was minimized: the certificate reports the ECE before and after
        return Solution(fitted, "closed form", criterion=f"ece(bins={bins})").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the accuracy of its bin as confidence."""
        return maps.histogram_binning(logits, vars(self))


@CALIBRATORS.register(revision=2)
@dataclass(frozen=True, eq=False)
class TopLabelBinning(FittedMap):
    r"""Histogram binning within each predicted class, with a finite-sample guarantee (Gupta & Ramdas 2022, alg. 8).

    Uniform-mass bins of `points` examples on the log-odds of the top label. The examples that serve as bin edges are
    left out of the bins' means, so that the examples between two edges are an independent sample. Classes predicted
    fewer than `points` times share one set of bins. If one of two classes is evaluated there is one set, on its
    log-odds: uniform-mass binning of a binary event (Gupta & Ramdas 2021).
    """

    group: BinSetIndices  # (k) the row of bins of each predicted class; 0 is the shared one
    edges: LogOddsEdges  # (groups, b - 1) inner edges in log-odds, padded with +inf
    accuracy: PerBinTensor  # (groups, b), nan if there was no example
    count: BinCounts  # (groups, b) examples behind each accuracy
    of: BinnedEvent = "top"
    certificate: Certificate | None = None
    capabilities = Capabilities(num_classes=lambda fitted: len(fitted.group), exports=())

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, points: Annotated[int, Range(ge=2, le=1_000_000)] = 50) -> "TopLabelBinning":
        """Compute the accuracy of every bin of every predicted class.

        Args:
            p: Validation predictions.
            points: Smallest number of examples in a bin.

        Raises:
            InputError: For fractional outcomes, which cannot be left out one by one.
        """
        if p.examples is not None:  # an example of a fractional outcome has two rows
            raise InputError(
                "Expected outcomes 0 or 1 for TopLabelBinning, got fractional ones. Try HistogramBinning.",
                code="fractional_outcomes",
            )
        event = binned_event(p)
        class_index = maps.binned_class(p.logits, event)
        score = to_numpy(maps.class_log_odds(p.logits, class_index))
        class_index, weights = to_numpy(class_index), to_numpy(example_weights(p))
        correct = (class_index == p.labels).astype(float)
        # One of two classes, if it is evaluated, has the shared bins alone
        has_own_bins = (np.bincount(class_index, weights, minlength=p.k) >= points) & (event == "top")
        group = np.where(has_own_bins, has_own_bins.cumsum(), 0)  # (k): 1, 2, ..., or 0 for the shared bins
        masks = [group[class_index] == g for g in range(int(group.max()) + 1)]  # the examples of each set of bins
        bins = [_uniform_mass_bins(score[mask], correct[mask], weights[mask], points) for mask in masks]
        fills = (math.inf, math.nan, 0)  # edges that no score exceeds, and empty bins
        edges, means, counts = (_stack_padded(rows, fill) for rows, fill in zip(zip(*bins), fills, strict=True))
        fitted = cls(group, edges, means, counts, event)
        return Solution(fitted, "closed form", criterion="ece(bins=15)").with_certificate(p)

    @check_arguments
    def guarantee(self, alpha: OpenFraction = 0.1) -> float:
        r"""Return a bound on the error of every bin that holds with probability 1 - alpha over the validation data.

        $\sqrt{\log(2 B / \alpha) / (2 m)}$ for B bins of at least m examples: in all bins at once, the confidence is at
        most this far from the true accuracy given the predicted class and the bin (Gupta & Ramdas 2021, theorem 3;
        2022, theorem 1, with m = points - 1). For classes that share their bins it holds for all of them together, not
        for each. Assumes that new data have the distribution of the validation data and that scores do not tie.

        >>> bins = TopLabelBinning([0, 0], [[0.0]], [[1.0, 1.0]], [[100, 100]])
        >>> round(bins.guarantee(0.1), 6)  # sqrt(log(40) / 200)
        0.13581
        """
        counts = self.count[~np.isnan(self.accuracy)]
        smallest_count = int(counts.min()) if len(counts) else 0
        return math.sqrt(math.log(2 * len(counts) / alpha) / (2 * smallest_count)) if smallest_count else math.inf

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the accuracy of its bin as confidence, unchanged in an empty bin."""
        return maps.top_label_binning(logits, vars(self))


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class ScalingBinning(FittedMap):
    """Scaling-binning (Kumar, Liang & Ma 2019, section 4): temperature, then the mean confidence of its bin.

    If one of two classes is evaluated: Platt scaling, as in the paper, then the mean probability of its bin.

    Binning the output of a smooth map, rather than the labels, needs far fewer examples. A map with few values can be
    verified: its calibration error is measurable. All three steps use the same examples, as the authors' library does.
    """

    scaler: Temperature | Platt
    edges: FiniteVector  # (b + 1) of the scaled confidence
    value: PerBinTensor  # nan if the bin was empty
    of: BinnedEvent = "top"
    certificate: Certificate | None = None
    capabilities = BINNING_CAPABILITIES

    @classmethod
    @fit_method
    def fit(cls, p: Predictions, *, bins: Count = 15) -> "ScalingBinning":
        """Fit a temperature, or Platt scaling for one of two classes, and average the result over equal-mass bins.

        Args:
            p: Validation predictions.
            bins: Number of bins.
        """
        event = binned_event(p)
        scaler = Temperature.fit(p) if event == "top" else Platt.fit(p)
        table = Bins.undivided(bins, p.apply(scaler).with_event(event).events.by_score)
        status = worst_status("closed form", status_of(scaler))
        fitted = cls(scaler, table.edges, table.confidence, event)
        return Solution(fitted, status, criterion=f"ece(bins={bins})").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the mean scaled confidence of its bin as confidence."""
        return maps.scaling_binning(logits, vars(self))


@CALIBRATORS.register(revision=2)
@dataclass(frozen=True, eq=False)
class BayesianBinning(FittedMap):
    r"""Bayesian binning into quantiles (Naeini, Cooper & Hauskrecht 2015), of the top label or one class of two.

    The confidence becomes the average over equal-mass binnings with B bins, B from $n^{1/3}/10$ to $10 n^{1/3}$, of
    the posterior mean of its bin, $(m_b + 2 p_b / B) / (n_b + 2 / B)$ with m_b of n_b examples right and p_b the
    middle of the bin. Binnings are weighted by their marginal likelihood under these Beta priors. The average is
    constant between confidences of the calibration data.
    """

    edges: FiniteVector  # (s + 1): the edges of all binnings
    value: PerBinTensor  # (s): the average in each interval
    of: BinnedEvent = "top"
    certificate: Certificate | None = None
    capabilities = BINNING_CAPABILITIES

    @classmethod
    @fit_method
    def fit(cls, p: Predictions) -> "BayesianBinning":
        r"""Average binnings with $n^{1/3} / 10$ to $10 n^{1/3}$ bins, weighted by their posterior probabilities."""
        event = binned_event(p)
        by_score, n = p.with_event(event).events.by_score, p.total_weight
        min_bins = max(1, math.floor(n ** (1 / 3) / 10))
        max_bins = max(1, min(math.floor(n), math.floor(10 * n ** (1 / 3))))
        binnings = [_beta_binning(b, by_score) for b in range(min_bins, max_bins + 1)]
        posterior = special.softmax([binning.log_evidence for binning in binnings])
        inner_edges = np.unique(np.concatenate([binning.edges[1:-1] for binning in binnings]))
        edges = np.concatenate([[0.0], inner_edges, [1.0]])
        value = np.zeros(len(edges) - 1)
        for probability, binning in zip(posterior, binnings, strict=True):  # no binning changes between two edges
            value += probability * binning.means[unbounded_bin_index(binning.edges, edges[1:])]
        # No metric was minimized: let the certificate report the ECE
        fitted = cls(edges, value, event)
        return Solution(fitted, "closed form", criterion="ece(bins=15)").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the average of its bins over all binnings as confidence."""
        return maps.data_bins(logits, vars(self))


def _stack_padded(rows: Sequence[np.ndarray], fill: float | int) -> np.ndarray:
    """Return rows of different lengths as an array, with their ends filled."""
    length = max(map(len, rows))
    return np.stack([np.pad(row, (0, length - len(row)), constant_values=fill) for row in rows])


def _uniform_mass_bins(
    score: np.ndarray, correct: np.ndarray, weights: np.ndarray, points: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    r"""Place bins of at least `points` examples, with order statistics of the scores as edges.

    For n examples in $B = \lfloor n / points \rfloor$ bins, inner edge b is the score of rank
    $r_b = \lceil b (n + 1) / B \rceil$. Bin b holds the ranks between $r_{b-1}$ and $r_b$, without both (Gupta & Ramdas
    2021). Ranks are counted in units of weight. Equal scores stay together, in the lowest bin that has one of them, and
    share their mean outcome: if the score of rank r_b occurs several times, one of these examples is left out.

    Args:
        score: Log-odds of the binned class, (n).
        correct: 1 where that class is the label, otherwise 0, (n).
        weights: Weight of each example, (n).
        points: Smallest total weight of a bin.

    Returns:
        The inner edges, (b - 1), each halfway to the next score; and the accuracy and number of the examples of each
        bin, both (b).
    """
    groups = GroupedScores.from_scores(score, correct, weights)
    weight_up_to, correct_up_to = (np.append(0.0, x.cumsum()) for x in (groups.total_weight, groups.correct))
    n = float(weight_up_to[-1])
    bins = max(1, math.floor(n) // points)
    ranks = [float(math.ceil(b * (n + 1) / bins)) for b in range(1, bins)]
    index = np.searchsorted(weight_up_to[1:], ranks)  # of the score with each rank
    next_value = np.append(groups.value[1:], math.inf)
    edges = edges_between(groups.value[index], next_value[index])
    # Weight at the ends of each bin, without one example of the upper edge
    ends = weight_up_to[index + 1]
    low = np.append(0.0, ends)
    high = np.maximum(np.append(ends - np.minimum(groups.total_weight[index], 1), weight_up_to[-1]), low)
    num_correct = np.diff(np.interp([low, high], weight_up_to, correct_up_to), axis=0)[0]
    with np.errstate(invalid="ignore"):  # NaN in an empty bin
        means = num_correct / (high - low)
    return edges, means, (high - low).astype(np.int64)


class _BetaBinning(NamedTuple):
    """An equal-mass binning of `BayesianBinning`."""

    edges: np.ndarray  # (bins + 1)
    means: np.ndarray  # (bins) posterior mean of the accuracy in each bin
    log_evidence: float  # logarithm of the marginal likelihood


def _beta_binning(bins: int, by_score: GroupedScores) -> _BetaBinning:
    """Fit an equal-mass binning.

    The prior of the accuracy in a bin is Beta(a, b) with a + b = 2 / bins and its mean at the middle of the bin.

    Args:
        bins: Number of bins.
        by_score: Confidences and outcomes.
    """
    table = Bins.undivided(bins, by_score)
    n = table.weight * by_score.cumulative_weight[-1]  # number of examples in each bin
    m = np.nan_to_num(table.accuracy) * n  # number of right ones, 0 in an empty bin
    middle = np.clip((table.edges[1:] + table.edges[:-1]) / 2, MIN_PRIOR_MEAN, 1 - MIN_PRIOR_MEAN)
    a, b = 2 / bins * middle, 2 / bins * (1 - middle)
    # Logarithms of the Beta functions that normalize prior and posterior; their ratio is the marginal likelihood
    log_prior, log_posterior = special.betaln(a, b), special.betaln(m + a, n - m + b)
    return _BetaBinning(table.edges, (m + a) / (n + a + b), float((log_posterior - log_prior).sum()))
