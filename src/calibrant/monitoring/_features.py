"""Row features whose sums over units are all that comparisons of two sets of predictions need."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

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


@dataclass(frozen=True, eq=False)
class FeatureFrame:
    """The columns of features that two sets of predictions share, and the statistics of their sums."""

    scores: tuple[str, ...]
    cuts: np.ndarray  # of confidence, for its distribution
    bin_edges: np.ndarray | None  # of bins of equal mass, for the calibration error; None without labels
    classes: np.ndarray  # predicted classes whose shares are compared
    labels: np.ndarray  # labels whose shares are compared; empty for paired or unlabeled rows
    class_scale: np.ndarray  # standard deviation of being predicted as each class
    label_scale: np.ndarray
    groups: tuple[str, ...]

    @classmethod
    def from_pair(
        cls, old: Predictions, new: Predictions, *, is_paired: bool, has_labels: bool, by_group: bool
    ) -> "FeatureFrame":
        """Choose cuts, bins, classes and groups from both sets together, so that no permutation changes them."""
        confidence = np.concatenate([confidences(p) for p in (old, new)])
        cuts = np.unique(np.quantile(confidence, np.linspace(0, 1, NUM_CONFIDENCE_CUTS + 1)))
        edges = np.unique(np.quantile(confidence, np.linspace(0, 1, NUM_ERROR_BINS + 1))) if has_labels else None
        scores = UNLABELED_SCORES
        if has_labels:
            is_finite = all(bool(p.log_likelihood.isfinite().all()) for p in (old, new))
            scores = LABELED_SCORES if is_finite else LABELED_SCORES[:-1]
        classes, class_scale = _frequent_classes(old, new, lambda p: p.predicted)
        labels, label_scale = np.zeros(0, np.int64), np.zeros(0)
        if has_labels and not is_paired:
            labels, label_scale = _frequent_classes(old, new, lambda p: p.labels)
        groups = sorted({*used_groups(old)} & {*used_groups(new)})[:MAX_COMPARED_GROUPS] if by_group else ()
        return cls(scores, cuts, edges, classes, labels, class_scale, label_scale, tuple(groups))

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
            place = unit[rows], np.arange(len(features))
            sums += csr_array((np.ones(len(features)), place), shape=(len(sums), len(features))) @ features
        return sums

    def _row_features(self, p: Predictions) -> np.ndarray:
        """Return the features of every row, times its weight, (n, m)."""
        confidence = confidences(p)
        values = np.stack([np.ones(len(p)), *(_score(p, name) for name in self.scores)], 1)
        columns = [values, confidence[:, None] <= self.cuts]
        if self.bin_edges is not None:
            place = np.clip(np.searchsorted(self.bin_edges, confidence) - 1, 0, max(len(self.bin_edges) - 2, 0))
            is_inside = place[:, None] == np.arange(max(len(self.bin_edges) - 1, 1))
            columns.append(is_inside * (confidence - p.events.outcome.cpu().numpy())[:, None])
        columns.append(p.predicted.cpu().numpy()[:, None] == self.classes)
        columns.append(p.labels.cpu().numpy()[:, None] == self.labels)
        columns += [values * _is_in_group(p, group)[:, None] for group in self.groups]
        return np.concatenate(columns, 1) * row_weights(p)[:, None]

    def values(self, sums: np.ndarray) -> list[np.ndarray]:
        """Return the means, distributions and shares of sums (..., m), each over its last axis."""
        return np.split(sums, np.cumsum(self._sizes())[:-1], axis=-1)

    def _sizes(self) -> list[int]:
        bins = [] if self.bin_edges is None else [max(len(self.bin_edges) - 1, 1)]
        fixed = [1 + len(self.scores), len(self.cuts), *bins, len(self.classes), len(self.labels)]
        return fixed + [1 + len(self.scores)] * len(self.groups)

    def statistics(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return how much two sets differ in each test, from their sums (draws, m)."""
        a, b = self.values(old), self.values(new)
        weight_a, weight_b = a[0][:, :1], b[0][:, :1]
        columns = [*np.abs(_means(b[0]) - _means(a[0])).T]
        if self.bin_edges is not None:
            error_a, error_b = (np.abs(x[2]).sum(1) / x[0][:, 0] for x in (a, b))
            columns.append(np.abs(error_b - error_a))
        columns.append(np.abs(b[1] / weight_b - a[1] / weight_a).max(1))
        shares = 3 if self.bin_edges is not None else 2
        columns.append((np.abs(b[shares] / weight_b - a[shares] / weight_a) / self.class_scale).max(1))
        if len(self.labels):
            columns.append((np.abs(b[shares + 1] / weight_b - a[shares + 1] / weight_a) / self.label_scale).max(1))
        for x, y in zip(a[shares + 2 :], b[shares + 2 :], strict=True):
            columns += [*np.abs(_means(y) - _means(x)).T]
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
    weight = sums[:, :1]
    return np.divide(sums[:, 1:], weight, out=np.zeros_like(sums[:, 1:]), where=weight > 0)


def _score(p: Predictions, name: str) -> np.ndarray:
    events = p.events
    values = {
        "accuracy": lambda: p.correct,
        "signed_gap": lambda: events.confidence - events.outcome,
        "event_brier": lambda: (events.confidence - events.outcome).square(),
        "nll": lambda: -p.log_likelihood,
        "confidence": lambda: events.confidence,
    }
    return values[name]().cpu().double().numpy()


def _frequent_classes(
    old: Predictions, new: Predictions, index: Callable[[Predictions], torch.Tensor]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the most frequent classes of both sets, and the standard deviation of belonging to each."""
    counts = np.sum([class_shares(p, index(p)) * p.total_weight for p in (old, new)], axis=0)
    share = counts / counts.sum()
    classes = np.argsort(-share, kind="stable")[:MAX_COMPARED_CLASSES]
    classes = np.sort(classes[share[classes] > 0])
    return classes, np.sqrt(np.maximum(share[classes] * (1 - share[classes]), 1e-12))


def used_groups(p: Predictions) -> list[str]:
    """Return the names of the groups that occur, in the order of their indices."""
    if p.groups is None or p.group_names is None:
        return []
    return [p.group_names[i] for i in p.groups.unique().tolist()]


def _is_in_group(p: Predictions, group: str) -> np.ndarray:
    assert p.groups is not None
    assert p.group_names is not None
    return (p.groups == p.group_names.index(group)).cpu().numpy()
