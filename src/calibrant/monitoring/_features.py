"""Row features, whose sums over units suffice to compare two sets of predictions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from calibrant.predictions import Predictions
from calibrant.predictions.events import Evaluated, evaluated_event

NUM_CONFIDENCE_CUTS = 30
MAX_COMPARED_CLASSES = 50  # the most frequent ones
MAX_COMPARED_GROUPS = 50
MAX_UNITS = 2048  # units are joined into sets beyond, which are exchangeable as well
_FEATURE_ROWS = 1 << 16  # rows whose features are computed at once
LABELED_SCORES = ("accuracy", "signed_gap", "event_brier", "nll")
TITLES = {
    "accuracy": "accuracy",
    "signed_gap": "confidence − accuracy",
    "event_brier": "Brier score of the event",
    "nll": "negative log-likelihood",
    "confidence": "mean confidence",
    "ece": "ECE",
    "confidences": "distribution of confidence",
    "predicted classes": "predicted classes",
    "labels": "labels",
}
CLASS_TITLES = TITLES | {  # if the event is a class: its probability is no confidence in a prediction
    "signed_gap": "predicted − observed",
    "confidence": "mean probability",
    "confidences": "probabilities",
}
PERCENT_SCORES = ("accuracy", "signed_gap", "confidence", "ece")


class Feature(NamedTuple):
    """Columns of every row, and the tests that compare their weighted means in two sets of rows."""

    tests: tuple[str, ...]  # "confidence", "confidences", "predicted classes" or "labels"
    width: int  # number of columns
    columns: Callable[[Predictions], np.ndarray]  # of the rows (n, width)
    statistic: Callable[[np.ndarray, np.ndarray], np.ndarray]  # from means (draws, width) of both to (draws, tests)
    group: str | None = None  # whose rows count; None: all


@dataclass(frozen=True, eq=False)
class FeatureFrame:
    """The features that two sets of predictions share, and the statistics of their sums."""

    features: tuple[Feature, ...]
    cuts: np.ndarray  # of confidence, for its distribution

    @classmethod
    def from_pair(
        cls, old: Predictions, new: Predictions, *, is_paired: bool, has_labels: bool, by_group: bool
    ) -> "FeatureFrame":
        """Choose cuts, bins, classes and groups from both sets together, so that no permutation changes them.

        Args:
            old: Predictions of the old model, or of the first sample.
            new: Predictions of the new model, or of the second sample.
            is_paired: Whether both are predictions of the same examples.
            has_labels: Whether means of scores are compared otherwise; without labels, the mean confidence is tested.
            by_group: Whether to compare the mean confidence in each group too, without labels.
        """
        confidence = np.concatenate([confidences(old), confidences(new)])
        cuts = np.unique(np.quantile(confidence, np.linspace(0, 1, NUM_CONFIDENCE_CUTS + 1)))
        features = [] if has_labels else [_confidence_feature()]
        features.append(  # the test of Kolmogorov and Smirnov: the largest change of the distribution function
            Feature(
                tests=("confidences",),
                width=len(cuts),
                columns=lambda p: confidences(p)[:, None] <= cuts,
                statistic=_largest_change,
            )
        )
        features.append(_share_feature("predicted classes", old, new, lambda p: p.predicted))
        if has_labels and not is_paired:  # pairs have equal labels
            features.append(_share_feature("labels", old, new, lambda p: p.labels))
        if by_group and not has_labels:
            features += [_confidence_feature(group) for group in shared_groups(old, new)]
        return cls(tuple(features), cuts)

    @property
    def tests(self) -> list[tuple[str, str | None]]:
        """The name and the group of each test, in the order of the statistics."""
        return [(name, feature.group) for feature in self.features for name in feature.tests]

    def unit_sums(self, p: Predictions, max_units: int = MAX_UNITS) -> np.ndarray:
        """Return the sums of the m `_weighted_columns` over the rows of each of u units, clusters or rows, (u, m).

        More than `max_units` units are joined into so many sets, whose sizes differ by at most one unit.
        """
        from scipy.sparse import csr_array  # slow to import

        unit = np.arange(len(p))  # of each row
        if p.clusters is not None:
            unit = np.unique(p.clusters, return_inverse=True)[1]
        unit = unit % max_units
        sums = np.zeros((unit.max() + 1, sum(1 + feature.width for feature in self.features)))
        for first in range(0, len(p), _FEATURE_ROWS):
            rows = slice(first, min(first + _FEATURE_ROWS, len(p)))
            weighted_columns = self._weighted_columns(p[rows])
            n = len(weighted_columns)
            is_in_unit = csr_array((np.ones(n), (unit[rows], np.arange(n))), shape=(len(sums), n))  # 1 at (unit, row)
            sums += is_in_unit @ weighted_columns
        return sums

    def _weighted_columns(self, p: Predictions) -> np.ndarray:
        """Return one column of weights, 0 outside the group, and the weighted columns of every feature, (n, m)."""
        parts: list[np.ndarray] = []
        for feature in self.features:
            weight = row_weights(p)
            if feature.group is not None:
                weight = weight * group_mask(p, feature.group)
            parts += [weight[:, None], feature.columns(p) * weight[:, None]]
        return np.concatenate(parts, 1)

    def statistics(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        """Return how much two sets differ in each test (draws, tests), from their `unit_sums` in total (draws, m)."""
        ends = np.cumsum([1 + feature.width for feature in self.features])[:-1]  # of the columns of each feature
        old_means, new_means = ([_means(part) for part in np.split(sums, ends, axis=1)] for sums in (old, new))
        means = zip(self.features, old_means, new_means, strict=True)
        return np.concatenate([feature.statistic(old_mean, new_mean) for feature, old_mean, new_mean in means], axis=1)


def _means(sums: np.ndarray) -> np.ndarray:
    """Return means (draws, width) of a feature from the sums of its weight and columns, or 0 without weight."""
    weight, totals = sums[:, :1], sums[:, 1:]
    return np.divide(totals, weight, out=np.zeros_like(totals), where=weight > 0)


def _confidence_feature(group: str | None = None) -> Feature:
    """Return the feature that tests the mean confidence, in all rows or in a group, by its absolute difference."""
    return Feature(
        tests=("confidence",),
        width=1,
        columns=lambda p: confidences(p)[:, None],
        statistic=lambda old, new: np.abs(new - old),
        group=group,
    )


def _share_feature(
    name: str, old: Predictions, new: Predictions, index: Callable[[Predictions], np.ndarray]
) -> Feature:
    """Return the feature that tests the largest change in the shares of the most frequent classes.

    Changes are divided by the standard deviation of belonging to the class, so that changes of rare classes count too.

    Args:
        name: Name of the test.
        old: Predictions of the old model, or of the first sample.
        new: Predictions of the new model, or of the second sample.
        index: Function from predictions to the class of each row (n), its label or the predicted one.
    """
    counts = np.sum([class_shares(p, index(p)) * p.total_weight for p in (old, new)], axis=0)
    share = counts / counts.sum()
    classes = np.argsort(-share, kind="stable")[:MAX_COMPARED_CLASSES]
    classes = np.sort(classes[share[classes] > 0])
    scale = np.sqrt(np.maximum(share[classes] * (1 - share[classes]), 1e-12))  # above 0 even if one class has all
    return Feature(
        tests=(name,),
        width=len(classes),
        columns=lambda p: index(p)[:, None] == classes,
        statistic=lambda old, new: _largest_change(old / scale, new / scale),
    )


def _largest_change(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the largest change of a mean (draws, 1), from the means (draws, m) of both sets."""
    return np.abs(new - old).max(1, keepdims=True)


def confidences(p: Predictions) -> np.ndarray:
    """Return the confidence of each row in the event."""
    return p.events.confidence.astype(float)


def row_weights(p: Predictions) -> np.ndarray:
    """Return the weight of each row, 1 without weights."""
    return np.ones(len(p)) if p.weights is None else p.weights.astype(float)


def class_shares(p: Predictions, index: np.ndarray) -> np.ndarray:
    """Return the weighted share of each class among predicted classes or labels."""
    w = None if p.weights is None else p.weights.astype(float)
    count = np.bincount(index, w, minlength=p.k).astype(float)
    return count / count.sum()


def score_title(name: str, *, is_confidence: bool) -> str:
    """Return the title of a compared score, by whether the event is that the prediction is right."""
    return (TITLES if is_confidence else CLASS_TITLES)[name]


def states_confidence(p: Evaluated) -> bool:
    """Return whether rows are answers with stated confidences, whose accuracy is the share of right answers.

    As predictions of two classes, an answer with a confidence of 0.2 that is wrong would be a right prediction.
    """
    event = evaluated_event(p)
    return event.classes is not None and event.is_confidence


def used_groups(p: Predictions) -> list[str]:
    """Return the names of the groups that occur, by index, or raise `InputError` without groups."""
    groups, names = p.require_groups()
    return [names[i] for i in np.unique(groups).tolist()]


def shared_groups(old: Predictions, new: Predictions) -> list[str]:
    """Return the groups that both sets have, at most `MAX_COMPARED_GROUPS`, or raise `InputError` without groups."""
    return sorted({*used_groups(old)} & {*used_groups(new)})[:MAX_COMPARED_GROUPS]


def group_mask(p: Predictions, group: str) -> np.ndarray:
    """Return whether each row belongs to a group, which `used_groups` has listed."""
    groups, names = p.require_groups()
    return groups == names.index(group)
