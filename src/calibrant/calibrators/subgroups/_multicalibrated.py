"""Multicalibration: probabilities that are right in all subgroups that shallow trees can find."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from calibrant import calibrators
from calibrant._core.arrays import like, to_numpy
from calibrant._core.numbers import format_level, format_percent, format_percent_range
from calibrant._core.text import cut_middle
from calibrant._core.types import Array, InputError, NonNegativeInt, NumFolds, OpenFraction, Range, check_arguments
from calibrant.calibrators import maps
from calibrant.calibrators.subgroups._features import FeatureSchema, cut_points, read_columns
from calibrant.calibrators.subgroups._trees import SplitGrid, TreeEnsemble, grow_tree, join_trees
from calibrant.metrics import Interval, Sample, nll, signed_gap
from calibrant.predictions import Predictions, as_predictions
from calibrant.predictions.folds import num_units, split_folds

DEPTH = 2
MAX_TREES = 200
CROSS_FIT_FOLDS = 5
LEARNING_RATE = 0.3
PATIENCE = 20  # trees without a lower loss on the held-out fold before a fit ends
MIN_ROWS = 20  # on each side of a split
GAIN_LEVEL = 0.95  # of the interval of the held-out gain, which must lie above 0
TIE_LEVEL = 0.68  # of the interval of the gain by more trees: one standard error
MAX_SUBGROUPS = 10
MAX_OVERLAP = 0.8  # of two subgroups in the table, as the share of the examples of either that are in both


@dataclass(frozen=True)
class SubgroupRow:
    """A subgroup, and confidence minus frequency of the event in it."""

    name: str
    n: int
    before: Interval
    after: Interval


@dataclass(frozen=True)
class SubgroupTable:
    """The worst subgroups that the fit found, measured on new examples, the worst of the fit first."""

    rows: tuple[SubgroupRow, ...]
    nll_before: float
    nll_after: float
    nll_gain: Interval  # nll_before - nll_after
    num_trees: int = 1  # corrections that the fit kept; 0: no subgroup was corrected

    def __str__(self) -> str:
        """Return a line per subgroup with its gap before and after, and the NLL below."""
        gain = self.nll_gain
        title = f"{format_level(gain.level)} interval"
        lines = [f"{'subgroup':48} {'n':>8} {'before':>8} {'':>18} {'after':>8} {title:>18}"]
        for row in self.rows:
            texts = [_percent_texts(interval) for interval in (row.before, row.after)]
            numbers = " ".join(f"{value:>8} {limits:>18}" for value, limits in texts)
            lines.append(f"{cut_middle(row.name, 48):48} {row.n:8,} {numbers}")
        nlls = f"NLL {self.nll_before:.4f} before, {self.nll_after:.4f} after"
        lines.append(f"{nlls}: a gain of {gain.value:.4f} ({gain.low:.4f} to {gain.high:.4f}).")
        if not self.num_trees:
            lines.append("No subgroup was corrected: corrections did not clearly lower the NLL of held-out examples.")
        return "\n".join(lines)


def _percent_texts(interval: Interval) -> tuple[str, str]:
    """Return the value and the limits of an interval in percent."""
    return format_percent(interval.value, 1, "+"), format_percent_range(interval.low, interval.high, 1, "+")


@dataclass(frozen=True, eq=False)
class MultiCalibrated:
    r"""A calibrator for all, and corrections of subgroups that shallow trees find in the features of the examples.

    Trees of depth 2 split the examples by features, and by the probability itself, where the calibrated probabilities
    are wrong, and correct the logits in each leaf by a damped Newton step: multicalibration (Hébert-Johnson et al.
    2018) by gradient boosting (Tax et al. 2025). How many trees are kept is chosen by cross-fitting, calibrator
    included. No trees are kept unless they clearly lower the NLL of held-out examples (95 % interval of the gain above
    0), so that the common calibrator stays as it is where subgroups do not differ.

    >>> rng = np.random.default_rng(0)
    >>> age = rng.random(2000)
    >>> z = np.zeros((2000, 2))  # 50 % for all, but it is 80 % and 20 % in truth
    >>> labels = rng.random(2000) < np.where(age < 0.5, 0.8, 0.2)
    >>> fitted = MultiCalibrated.fit(Predictions(z, labels), {"age": age})
    >>> bool(fitted.apply(Predictions(z[:1], [1]), {"age": [0.2]}).events.confidence[0] > 0.7)
    True
    """

    pooled: Any  # the common calibrator, fitted
    schema: FeatureSchema
    trees: TreeEnsemble
    subgroups: TreeEnsemble  # one path per tree: the leaves of the worst subgroups, whose value is 1
    k: int
    class_names: tuple[str, ...] | None

    @classmethod
    @check_arguments
    def fit(
        cls,
        predictions: Predictions,
        features: Any,
        *,
        calibrator: str = "",
        depth: Annotated[int, Range(ge=1, le=4)] = DEPTH,
        folds: NumFolds = CROSS_FIT_FOLDS,
        seed: NonNegativeInt = 0,
    ) -> "MultiCalibrated":
        """Fit to labeled predictions that the model was not trained on.

        Args:
            predictions: Validation predictions, with at least 100 examples or clusters. Weights count.
            features: One row per example: a data frame, a mapping of columns, or an array (n, d). Texts are categories,
                of which the 31 most frequent are told apart. Missing values are allowed.
            calibrator: The common calibrator, by name. Default: Platt for 2 classes, BiasCorrectedTemperature for more.
            depth: Number of conditions that describe a subgroup.
            folds: Number of folds of the cross-fitting.
            seed: Seed of the folds.

        Raises:
            InputError: If there is not one row of features per example, or there are too few examples.
        """
        with as_predictions(predictions) as p:
            p = p.double()
            if num_units(p) < folds * MIN_ROWS:
                raise InputError(
                    f"Expected at least {folds * MIN_ROWS} examples, or clusters, got {num_units(p):,}.",
                    code="few_examples",
                )
            columns = read_columns(features, len(p))
            schema = FeatureSchema.from_columns(columns)
            x = schema.encode(columns)
            calibrator = calibrator or ("Platt" if p.k == 2 else "BiasCorrectedTemperature")
            log_likelihood = np.zeros((len(p), MAX_TREES + 1))  # held-out, by number of trees
            for training, is_held_out in split_folds(p, folds, seed):
                common = calibrators.fit(calibrator, training)
                trees = _boost(training.apply(common), x[~is_held_out], schema, depth)
                held_out = p[is_held_out].apply(common)
                log_likelihood[is_held_out] = _held_out_curve(trees, held_out, x[is_held_out])
            num_trees = _number_of_trees(log_likelihood, p)
            common = calibrators.fit(calibrator, p)
            calibrated = p.apply(common)
            # At least one tree is grown, as an ensemble without trees needs the shapes of one
            trees = join_trees([*islice(_boost(calibrated, x, schema, depth), max(num_trees, 1))])[:num_trees]
            subgroups = _worst_subgroups(calibrated, x, schema, depth)
            return cls(common, schema, trees, subgroups, k=p.k, class_names=p.class_names)

    def apply(self, predictions: Predictions, features: Any) -> Predictions:
        """Return calibrated predictions.

        Args:
            predictions: Predictions, with or without meaningful labels; named classes may come in any order.
            features: Their features, as in the fit; columns may come in any order.

        Raises:
            InputError: If the classes or the features differ from the fit.
        """
        p = self._apply_common(predictions)
        return p.with_logits(_correct(p.logits, self.trees, self._features(p, features)))

    @check_arguments
    def evaluate(self, predictions: Predictions, features: Any, *, level: OpenFraction = 0.90) -> SubgroupTable:
        """Return confidence minus frequency in the worst subgroups of the fit, before and after, on new examples.

        "Before" is after the common calibrator alone. The event is class 1 of two, and else that the predicted class
        is right.

        Args:
            predictions: Labeled predictions that were not used in the fit.
            features: Their features.
            level: Level of the intervals.
        """
        with as_predictions(predictions) as p:
            before = self._apply_common(p)
            before = before.with_event(_evaluated_event(before))
            x = self._features(before, features)
            after = before.with_logits(_correct(before.logits, self.trees, x))
            # Each subgroup is a tree with the value 1 in one leaf: (n, subgroups)
            members = self.subgroups.outputs_by_tree(_with_probability(x, before))[:, :, 0] == 1
            rows = list[SubgroupRow]()
            for tree, is_member in enumerate(members.T):
                if is_member.any():
                    gaps = [signed_gap.interval(part[is_member], level=level) for part in (before, after)]
                    name = " and ".join(map(self.schema.describe, self.subgroups.path(tree))) or "all"
                    rows.append(SubgroupRow(name, int(is_member.sum()), *gaps))
            gains = nll.values(before) - nll.values(after)
            sample = Sample.from_values(gains, before.weights, before.clusters, before.examples)
            gain = sample.normal_interval(level)
            return SubgroupTable(tuple(rows), float(nll(before)), float(nll(after)), gain, len(self.trees))

    def save(self, path: str | Path) -> None:
        """Write to a .safetensors file."""
        calibrators.save(self, path)

    @classmethod
    def load(cls, path: str | Path) -> "MultiCalibrated":
        """Read what `save` wrote.

        Raises:
            InputError: If the file is another one, is damaged, or its parts do not fit together.
        """
        return calibrators.load_instance(path, cls, [FeatureSchema, TreeEnsemble])

    @property
    def is_consistent(self) -> bool:
        """Whether the fields fit together, as in a file that is not damaged."""
        is_category = [*map(bool, self.schema.categories), False]  # the last feature is the probability
        return len(self.schema.categories) == len(self.schema.names) and all(
            trees.is_consistent() and trees.is_category.tolist() == is_category
            for trees in (self.trees, self.subgroups)
        )

    def _apply_common(self, predictions: Predictions) -> Predictions:
        """Return predictions in float64, with the classes in the order of the fit, after the common calibrator.

        Raises:
            InputError: If the number of classes differs from the fit.
        """
        p = predictions.reorder_classes(self.class_names)
        if p.k != self.k:
            raise InputError(f"Expected predictions of {self.k} classes, got {p.k}.", code="num_classes")
        return p.double().apply(self.pooled)

    def _features(self, p: Predictions, features: Any) -> np.ndarray:
        """Return the features as numbers (n, d)."""
        return self.schema.encode(read_columns(features, len(p)))


def _evaluated_event(p: Predictions) -> int | str:
    """Return the event whose probability must be right: class 1 of two, else that the predicted class is right."""
    return 1 if p.k == 2 else "top"


def _with_probability(x: np.ndarray, p: Predictions) -> np.ndarray:
    """Return features and, as the last one, the calibrated probability of the event."""
    return np.column_stack([x, p.with_event(_evaluated_event(p)).events.confidence])


def _correct(logits: Array, trees: TreeEnsemble, x: np.ndarray) -> Array:
    """Return logits corrected by trees, which may also split by the uncorrected probabilities."""
    p = Predictions(logits, np.zeros(len(logits), dtype=np.int64))  # probabilities do not depend on labels
    return logits + like(_to_logits(trees(_with_probability(x, p)), logits.shape[1]), logits)


def _to_logits(values: np.ndarray, k: int) -> np.ndarray:
    """Return corrections of logits (n, k), where a value shifts the difference of two classes."""
    return np.concatenate([-values / 2, values / 2], 1) if k == 2 else values


def _split_grid(x: np.ndarray, schema: FeatureSchema) -> SplitGrid:
    """Return all splits of the features and, last, of the probability."""
    is_category = np.array([*map(bool, schema.categories), False])
    return SplitGrid.from_cuts(x, list(cut_points(x, schema)), is_category)


def _boost(p: Predictions, x: np.ndarray, schema: FeatureSchema, depth: int) -> Iterator[TreeEnsemble]:
    """Yield boosted trees without end, each fitted to lower the NLL of the predictions p corrected by all before it.

    The trees split by the features x (n, d) and by the probability of p, which the corrections do not change.
    """
    x = _with_probability(x, p)
    grid, z = _split_grid(x, schema), to_numpy(p.logits)
    truth = p.labels[:, None] == np.arange(p.k)
    w = _weights(p)[:, None]
    columns = slice(1, 2) if p.k == 2 else slice(None)  # for two classes, one value shifts their difference
    while True:
        q = maps.softmax(z)
        gradient, hessian = w * (q - truth)[:, columns], w * (q * (1 - q))[:, columns]  # of the NLL
        tree = grow_tree(grid, gradient, hessian, depth, min_rows=MIN_ROWS)
        tree = replace(tree, values=LEARNING_RATE * tree.values)
        z = z + _to_logits(tree(x), p.k)
        yield tree


def _weights(p: Predictions) -> np.ndarray:
    """Return the weights (n) float64, 1 by default."""
    return np.ones(len(p)) if p.weights is None else p.weights


def _held_out_curve(trees: Iterator[TreeEnsemble], p: Predictions, x: np.ndarray) -> np.ndarray:
    """Return the log-likelihood of held-out examples after 0, 1, ... `MAX_TREES` trees (n, MAX_TREES + 1).

    If its sum has not risen for `PATIENCE` trees, no more trees are grown, and the last column is repeated.
    """
    x, z, w = _with_probability(x, p), to_numpy(p.logits), _weights(p)
    log_likelihood = p.log_likelihood
    curve, sums = [log_likelihood], [float(w @ log_likelihood)]
    for tree in islice(trees, MAX_TREES):
        z = z + _to_logits(tree(x), p.k)
        log_likelihood = maps.log_softmax(z)[np.arange(len(p)), p.labels]
        curve.append(log_likelihood)
        sums.append(float(w @ log_likelihood))
        if max(sums[-PATIENCE:]) < max(sums):  # the best sum is older
            break
    num_missing = MAX_TREES + 1 - len(curve)
    return np.stack(curve + curve[-1:] * num_missing, 1)


def _number_of_trees(log_likelihood: np.ndarray, p: Predictions) -> int:
    """Return the smallest number of trees that is not clearly worse on held-out examples than the best number.

    It is 0 if no number is clearly better than no tree. Columns of `log_likelihood` are numbers of trees.
    """
    best = int((_weights(p) @ log_likelihood).argmax())

    def best_is_clearly_better(num_trees: int, level: float) -> bool:
        """Return whether the interval of the mean gain from this to the best number of trees lies above 0."""
        gains = log_likelihood[:, best] - log_likelihood[:, num_trees]
        return Sample.from_values(gains, p.weights, p.clusters, p.examples).normal_interval(level).low > 0

    if best == 0 or not best_is_clearly_better(0, GAIN_LEVEL):
        return 0
    num_trees = 1
    while num_trees < best and best_is_clearly_better(num_trees, TIE_LEVEL):
        num_trees += 1
    return num_trees


def _worst_subgroups(p: Predictions, x: np.ndarray, schema: FeatureSchema, depth: int) -> TreeEnsemble:
    """Return paths to the subgroups with the most significant gaps, as trees whose value is 1 in one leaf alone.

    Candidates are the leaves of one tree per feature, which begins with a split by this feature. If two candidates have
    nearly the same examples, the less significant one is left out.
    """
    events, w = p.with_event(_evaluated_event(p)).events, _weights(p)
    c, outcome = events.confidence, events.outcome
    gradient, hessian = w * (c - outcome), w * c * (1 - c)  # of the NLL of the event, by its logit
    x = _with_probability(x, p)
    grid, min_rows = _split_grid(x, schema), max(MIN_ROWS, len(p) // 50)  # 2 % of the examples
    candidates = list[tuple[float, np.ndarray, TreeEnsemble]]()  # squared z-statistic of the gap, members (n), path
    for feature in range(x.shape[1]):
        tree = grow_tree(grid, gradient[:, None], hessian[:, None], depth, min_rows=min_rows, root_feature=feature)
        leaf = tree.leaves(x)[:, 0]
        for i in np.unique(leaf).tolist():
            is_member = leaf == i
            variance = max(hessian[is_member].sum(), 1e-12)  # if the probabilities are right; above 0, to divide
            z_squared = float(gradient[is_member].sum() ** 2 / variance)
            candidates.append((z_squared, is_member, tree.indicate(i)))
    selected = list[tuple[np.ndarray, TreeEnsemble]]()
    for _, is_member, path in sorted(candidates, key=lambda candidate: -candidate[0]):
        overlaps = [
            float((is_member & selected_member).sum() / (is_member | selected_member).sum())
            for selected_member, _ in selected
        ]
        if max(overlaps, default=0.0) <= MAX_OVERLAP and len(selected) < MAX_SUBGROUPS:
            selected.append((is_member, path))
    return join_trees([path for _, path in selected])
