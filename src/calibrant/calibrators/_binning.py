"""Binning: the confidence becomes the accuracy of its bin on validation data.

If one of two classes is evaluated, such as "correct", its probability is binned instead of the confidence.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from calibrant._core.arguments import Count, OpenFraction, Range, check_arguments
from calibrant._core.kernels.bins import Bins, GroupedScores, edges_between, unbounded_bin_index
from calibrant._core.kernels.roots import Certificate, worst_status
from calibrant._core.lazy import special
from calibrant._core.registry import CALIBRATORS
from calibrant._core.tensors import label_tensor, to_numpy
from calibrant._core.types import Allows, FiniteVector, Index, InputError, Logits, PerBinTensor
from calibrant.calibrators._binary import Platt
from calibrant.calibrators._capabilities import Capabilities, calibrator_call
from calibrant.calibrators._confidence import (
    BinnedEvent,
    binned_event,
    binned_num_classes,
    confidence,
    replace_confidence,
)
from calibrant.calibrators._fitting import Solution, example_weights, fit_method, status_of
from calibrant.calibrators._temperature import Temperature
from calibrant.predictions import Predictions

__all__ = ["BayesianBinning", "HistogramBinning", "ScalingBinning", "TopLabelBinning"]

LogOddsEdges = Annotated[Float[Tensor, "g edges"], Allows(math.inf)]
BinSetIndices = Annotated[Int[Tensor, " k"], Index("edges")]
BinCounts = Annotated[Int[Tensor, "g b"], Range(ge=0)]
MIN_PRIOR_MEAN = 1e-6  # of an accuracy, because Beta(0, b) is no distribution
BINNING_CAPABILITIES = Capabilities(
    num_classes=binned_num_classes, exports=(), treats_classes_alike=lambda fitted: fitted.of == "top"
)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class HistogramBinning:
    """Histogram binning (Zadrozny & Elkan 2001), pooled on the top label (Wang et al. 2021, section 4).

    The confidence becomes the validation accuracy of its bin. The other classes share the rest in proportion, and none
    exceeds the predicted class, which therefore changes only if its accuracy is 1/k or less. If one of two classes is
    evaluated (`of=1`, as in `from_confidence`), its probability is binned from 0 to 1 and becomes its frequency, as in
    the first of these papers. An empty bin keeps the confidence. Returns log p. A bin without errors has probability
    1, so that one later error in it has an infinite NLL.

    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> HistogramBinning.fit(z, torch.tensor([0, 0, 0, 1]))(z[:1]).exp()
    tensor([[0.7500, 0.2500]])
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
        fitted = cls(torch.from_numpy(table.edges), torch.from_numpy(table.accuracy), event)
        # No metric was minimized: the certificate reports the ECE before and after
        return Solution(fitted, "closed form", criterion=f"ece(bins={bins})").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the accuracy of its bin as confidence."""
        return replace_confidence(logits, _look_up(self.edges, self.accuracy, confidence(logits, self.of)), self.of)


@CALIBRATORS.register(revision=2)
@dataclass(frozen=True, eq=False)
class TopLabelBinning:
    r"""Histogram binning within each predicted class, with a finite-sample guarantee (Gupta & Ramdas 2022, alg. 8).

    Uniform-mass bins of `points` examples on the log-odds of the top label. The examples that serve as bin edges are
    left out of the bins' means, so that the examples between two edges are an independent sample. Classes predicted
    fewer than `points` times share one set of bins. If one of two classes is evaluated there is one set, on its
    log-odds: uniform-mass binning of a binary event (Gupta & Ramdas 2021).
    """

    group: BinSetIndices  # (k) int64: the row of bins of each predicted class; 0 is the shared one
    edges: LogOddsEdges  # (groups, b - 1) inner edges in log-odds, padded with +inf
    accuracy: PerBinTensor  # (groups, b), nan if there was no example
    count: BinCounts  # (groups, b) int64: examples behind each accuracy
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
        class_index = _binned_class(p.logits, event)
        score = _log_odds(p.logits, class_index)
        correct = (class_index == label_tensor(p)).double()
        weights = example_weights(p)
        # One of two classes, if it is evaluated, has the shared bins alone
        has_own_bins = (torch.bincount(class_index, weights, minlength=p.k) >= points) & (event == "top")
        group = torch.where(has_own_bins, has_own_bins.cumsum(0), 0)  # (k): 1, 2, ..., or 0 for the shared bins
        masks = [group[class_index] == g for g in range(int(group.max()) + 1)]  # the examples of each set of bins
        bins = [_uniform_mass_bins(score[mask], correct[mask], weights[mask], points) for mask in masks]
        edges, means, counts = map(list, zip(*bins, strict=True))
        pad = partial(pad_sequence, batch_first=True)  # with edges that no score exceeds, and empty bins
        fitted = cls(group, pad(edges, padding_value=math.inf), pad(means, padding_value=math.nan), pad(counts), event)
        return Solution(fitted, "closed form", criterion="ece(bins=15)").with_certificate(p)

    @check_arguments
    def guarantee(self, alpha: OpenFraction = 0.1) -> float:
        r"""Return a bound on the error of every bin that holds with probability 1 - alpha over the validation data.

        $\sqrt{\log(2 B / \alpha) / (2 m)}$ for B bins of at least m examples: in all bins at once, the confidence is at
        most this far from the true accuracy given the predicted class and the bin (Gupta & Ramdas 2021, theorem 3;
        2022, theorem 1, with m = points - 1). For classes that share their bins it holds for all of them together, not
        for each. Assumes that new data have the distribution of the validation data and that scores do not tie.

        >>> bins = TopLabelBinning(torch.zeros(2, dtype=torch.int64), torch.zeros(1, 1), torch.ones(1, 2),
        ...                        torch.tensor([[100, 100]]))
        >>> round(bins.guarantee(0.1), 6)  # sqrt(log(40) / 200)
        0.13581
        """
        counts = self.count[~self.accuracy.isnan()]
        smallest_count = int(counts.min()) if len(counts) else 0
        return math.sqrt(math.log(2 * len(counts) / alpha) / (2 * smallest_count)) if smallest_count else math.inf

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the accuracy of its bin as confidence, unchanged in an empty bin."""
        class_index = _binned_class(logits, self.of)
        row = self.group[class_index]
        bin_index = torch.searchsorted(self.edges[row], _log_odds(logits, class_index)[:, None]).squeeze(1)
        accuracy = _fill_nan(self.accuracy[row, bin_index], confidence(logits, self.of))
        return replace_confidence(logits, accuracy, self.of)


@CALIBRATORS.register
@dataclass(frozen=True, eq=False)
class ScalingBinning:
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
        fitted = cls(scaler, torch.from_numpy(table.edges), torch.from_numpy(table.confidence), event)
        return Solution(fitted, status, criterion=f"ece(bins={bins})").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the mean scaled confidence of its bin as confidence."""
        scaled = self.scaler(logits)
        return replace_confidence(scaled, _look_up(self.edges, self.value, confidence(scaled, self.of)), self.of)


@CALIBRATORS.register(revision=2)
@dataclass(frozen=True, eq=False)
class BayesianBinning:
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
        fitted = cls(torch.from_numpy(edges), torch.from_numpy(value), event)
        return Solution(fitted, "closed form", criterion="ece(bins=15)").with_certificate(p)

    @calibrator_call
    def __call__(self, logits: Logits) -> Logits:
        """Return log p, with the average of its bins over all binnings as confidence."""
        return replace_confidence(logits, _look_up(self.edges, self.value, confidence(logits, self.of)), self.of)


def _binned_class(logits: Tensor, event: BinnedEvent) -> Tensor:
    """Return the class of every row whose probability is binned, (n): the predicted class, or always the same one."""
    top = logits.argmax(-1)
    return top if event == "top" else torch.full_like(top, event)


def _log_odds(logits: Tensor, class_index: Tensor) -> Tensor:
    """Return the log-odds log(c / (1 - c)) of one class per row, with probability c, (n).

    Computed from the logits, so that they differ between rows whose probabilities round to 1.
    """
    z, index = logits.double(), class_index[:, None]
    other_logits = z.scatter(-1, index, -torch.inf)
    return z.gather(-1, index).squeeze(-1) - other_logits.logsumexp(-1)


def _look_up(edges: Tensor, value: Tensor, confidence: Tensor) -> Tensor:
    """Return the value of each confidence's bin, or the confidence itself if the bin is empty (nan)."""
    index = torch.searchsorted(edges[1:-1], confidence.contiguous())  # as `unbounded_bin_index`
    return _fill_nan(value[index], confidence)


def _fill_nan(value: Tensor, fallback: Tensor) -> Tensor:
    """Return the values, or the fallback where they are nan."""
    return value.where(~value.isnan(), fallback)


def _uniform_mass_bins(score: Tensor, correct: Tensor, weights: Tensor, points: int) -> tuple[Tensor, Tensor, Tensor]:
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
    groups = GroupedScores.from_scores(*(to_numpy(x) for x in (score, correct, weights)))
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
    counts = (high - low).astype(np.int64)
    return torch.from_numpy(edges), torch.from_numpy(means), torch.from_numpy(counts)


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
