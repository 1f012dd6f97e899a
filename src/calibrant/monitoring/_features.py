"""Row features whose sums over units are all that comparisons of two sets of predictions need."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from calibrant.events import describe_event
from calibrant.predictions import Predictions

NUM_CONFIDENCE_CUTS = 30
NUM_ERROR_BINS = 15
MAX_COMPARED_CLASSES = 50  # the most frequent ones
MAX_COMPARED_GROUPS = 50
MAX_UNITS = 2048  # units are joined into sets beyond, which are exchangeable as well
_FEATURE_ROWS = 1 << 16  # rows whose features are computed at once
LABELED_SCORES = ("accuracy", "signed_gap", "event_brier", "nll")
UNLABELED_SCORES = ("confidence",)


@dataclass(frozen=True)
class TestKey:
    """A test: of the mean of a score, in all rows or in a group, or of a distribution."""

    __test__ = False  # no test for pytest

    name: str  # a score, "ece", "confidences", "predicted classes" or "labels"
    group: str | None = None


class FeatureMeans(NamedTuple):
    """Weighted means of features, of one set of rows or of several draws: arrays (..., features)."""

    scores: np.ndarray
    cdf: np.ndarray  # share of confidences up to each cut
    errors: np.ndarray  # confidence minus outcome, within each bin, of all rows; empty without labels
    predicted: np.ndarray  # share of predictions of each class
    labels: np.ndarray
    groups: list[np.ndarray]  # scores of each group


@dataclass(frozen=True, eq=False)
class FeatureFrame:
    """The columns of features that two sets of predictions share, and the statistics of their sums."""

    scores: tuple[str, ...]
    cuts: np.ndarray  # of confidence, for its distribution
    bin_edges: np.ndarray | None  # of bins of equal mass, for the calibration error; None without labels
    classes: np.ndarray  # predicted classes whose shares are compared
    class_scale: np.ndarray  # standard deviation of being predicted as each class
    labels: np.ndarray  # labels whose shares are compared; empty for paired or unlabeled rows
    label_scale: np.ndarray
    groups: tuple[str, ...]

    @classmethod
    def from_pair(
        cls, old: Predictions, new: Predictions, *, is_paired: bool, has_labels: bool, by_group: bool
    ) -> "FeatureFrame":
        """Choose cuts, bins, classes and groups from both sets together, so that no permutation changes them."""
        confidence = np.concatenate([confidences(p) for p in (old, new)])
        cuts = np.unique(np.quantile(confidence, np.linspace(0, 1, NUM_CONFIDENCE_CUTS + 1)))
        scores, bin_edges = UNLABELED_SCORES, None
        if has_labels:
            bin_edges = np.unique(np.quantile(confidence, np.linspace(0, 1, NUM_ERROR_BINS + 1)))
            is_finite = all(bool(p.log_likelihood.isfinite().all()) for p in (old, new))
            scores = LABELED_SCORES if is_finite else LABELED_SCORES[:-1]  # without the NLL
        classes, class_scale = _frequent_classes(old, new, lambda p: p.predicted)
        labels, label_scale = np.zeros(0, np.int64), np.zeros(0)
        if has_labels and not is_paired:
            labels, label_scale = _frequent_classes(old, new, lambda p: p.labels)
        groups = sorted({*used_groups(old)} & {*used_groups(new)})[:MAX_COMPARED_GROUPS] if by_group else ()
        return cls(scores, cuts, bin_edges, classes, class_scale, labels, label_scale, tuple(groups))

    @property
    def tests(self) -> list[TestKey]:
        """The tests, in the order of the statistics."""
        tests = [TestKey(name) for name in self.scores]
        tests += [TestKey("ece")] if self.bin_edges is not None else []
        tests += [TestKey("confidences"), TestKey("predicted classes")]
        tests += [TestKey("labels")] if len(self.labels) else []
        return tests + [TestKey(name, group) for group in self.groups for name in self.scores]

    def unit_sums(self, p: Predictions, max_units: int = MAX_UNITS) -> np.ndarray:
        """Return the sums of all features over the rows of each unit, a cluster or a single row, (u, m).

        More than `max_units` units are joined into so many sets, whose sizes differ by at most one unit.
        """
        from scipy.sparse import csr_array  # slow to import

        unit = np.arange(len(p)) if p.clusters is None else np.unique(p.clusters.cpu().numpy(), return_inverse=True)[1]
        unit = unit % max_units
        sums = np.zeros((unit.max() + 1, sum(self._sizes())))
        for first in range(0, len(p), _FEATURE_ROWS):
            rows = slice(first, min(first + _FEATURE_ROWS, len(p)))
            features = self._row_features(p[rows])
            entries = np.ones(len(features)), (unit[rows], np.arange(len(features)))
            sums += csr_array(entries, shape=(len(sums), len(features))) @ features  # adds each row to its unit
        return sums

    def _row_features(self, p: Predictions) -> np.ndarray:
        """Return the features of every row, times its weight, (n, m)."""
        confidence = confidences(p)
        values = np.stack(
            [np.ones(len(p)), *(_row_scores(p, name) for name in self.scores)], 1
        )  # ones sum to the weight
        columns = [values, confidence[:, None] <= self.cuts]
        if self.bin_edges is not None:
            index = np.clip(np.searchsorted(self.bin_edges, confidence) - 1, 0, self._num_bins - 1)
            is_inside = index[:, None] == np.arange(self._num_bins)
            columns.append(is_inside * (confidence - p.events.outcome.cpu().numpy())[:, None])
        columns.append(p.predicted.cpu().numpy()[:, None] == self.classes)
        columns.append(p.labels.cpu().numpy()[:, None] == self.labels)
        columns += [values * group_mask(p, group).cpu().numpy()[:, None] for group in self.groups]
        return np.concatenate(columns, 1) * row_weights(p)[:, None]

    def means(self, sums: np.ndarray) -> FeatureMeans:
        """Return the means of features from their sums (..., m)."""
        scores, *shares, groups = np.split(sums, np.cumsum(self._sizes())[:-1], axis=-1)
        by_group = np.split(groups, len(self.groups), axis=-1) if self.groups else []
        cdf, errors, predicted, labels = (x / scores[..., :1] for x in shares)  # by the weight
        return FeatureMeans(_means(scores), cdf, errors, predicted, labels, [_means(x) for x in by_group])

    @property
    def _num_bins(self) -> int:
        """Number of bins of the calibration error, 0 without labels; a single edge is one bin."""
        return 0 if self.bin_edges is None else max(len(self.bin_edges) - 1, 1)

    def _sizes(self) -> list[int]:
        """Return the number of features of each kind, in the order of `FeatureMeans`; scores follow the weight."""
        scores = 1 + len(self.scores)
        return [scores, len(self.cuts), self._num_bins, len(self.classes), len(self.labels), scores * len(self.groups)]

    def statistics(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return how much two sets differ in each test, from their sums (draws, m)."""
        a, b = self.means(old), self.means(new)
        columns = [*np.abs(b.scores - a.scores).T]
        if self.bin_edges is not None:
            columns.append(np.abs(np.abs(b.errors).sum(1) - np.abs(a.errors).sum(1)))
        columns.append(np.abs(b.cdf - a.cdf).max(1))
        columns.append((np.abs(b.predicted - a.predicted) / self.class_scale).max(1))
        if len(self.labels):
            columns.append((np.abs(b.labels - a.labels) / self.label_scale).max(1))
        for group_a, group_b in zip(a.groups, b.groups, strict=True):
            columns += [*np.abs(group_b - group_a).T]
        return np.stack(columns, 1)


def confidences(p: Predictions) -> np.ndarray:
    """Return the confidence of each row in the event."""
    return p.events.confidence.cpu().double().numpy()


def row_weights(p: Predictions) -> np.ndarray:
    """Return the weight of each row, 1 without weights."""
    return np.ones(len(p)) if p.weights is None else p.weights.cpu().double().numpy()


def class_shares(p: Predictions, index: torch.Tensor) -> np.ndarray:
    """Return the weighted share of each class among predicted classes or labels."""
    w = None if p.weights is None else p.weights.cpu().double()
    count = torch.bincount(index.cpu(), w, minlength=p.k).double()
    return (count / count.sum()).numpy()


def _means(sums: np.ndarray) -> np.ndarray:
    """Return means from sums of weights and of values; 0 without weight."""
    weight, totals = sums[..., :1], sums[..., 1:]
    return np.divide(totals, weight, out=np.zeros_like(totals), where=weight > 0)


def states_confidence(p: Predictions) -> bool:
    """Return whether rows are answers with stated confidences, whose accuracy is the share of right answers.

    As predictions of two classes, an answer with a confidence of 0.2 that is wrong would be a right prediction.
    """
    event = describe_event(p.of, p.k, p.class_names)
    return event.classes is not None and event.is_confidence


def _row_scores(p: Predictions, name: str) -> np.ndarray:
    """Return the score of each row."""
    events = p.events
    values = {
        "accuracy": lambda: events.outcome if states_confidence(p) else p.correct,
        "signed_gap": lambda: events.confidence - events.outcome,
        "event_brier": lambda: (events.confidence - events.outcome).square(),
        "nll": lambda: -p.log_likelihood,
        "confidence": lambda: events.confidence,
    }  # functions, as only one is computed
    return values[name]().cpu().double().numpy()


def mean_score(p: Predictions, name: str) -> float:
    """Return the weighted mean of a score."""
    return float(np.average(_row_scores(p, name), weights=row_weights(p)))


def _frequent_classes(
    old: Predictions, new: Predictions, index: Callable[[Predictions], torch.Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the most frequent classes of both sets, and the standard deviation of belonging to each."""
    counts = np.sum([class_shares(p, index(p)) * p.total_weight for p in (old, new)], axis=0)
    share = counts / counts.sum()
    classes = np.argsort(-share, kind="stable")[:MAX_COMPARED_CLASSES]
    classes = np.sort(classes[share[classes] > 0])
    return classes, np.sqrt(np.maximum(share[classes] * (1 - share[classes]), 1e-12))  # above 0, to divide by


def used_groups(p: Predictions) -> list[str]:
    """Return the names of the groups that occur, in the order of their indices."""
    if p.groups is None or p.group_names is None:
        return []
    return [p.group_names[i] for i in p.groups.unique().tolist()]


def group_mask(p: Predictions, group: str) -> torch.Tensor:
    """Return whether each row belongs to a group, which `used_groups` has listed."""
    assert p.groups is not None
    assert p.group_names is not None
    return p.groups == p.group_names.index(group)
