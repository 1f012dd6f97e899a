"""Shallow trees that split examples by their features where the probabilities are wrong."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64

from calibrant._core.types import Allows, Index
from calibrant.calibrators.fields import FittedMap

LEAF_PRIOR = 4.0  # precision of the normal prior of a leaf's correction, on the scale of logits
_NO_SPLIT = -1
NodeFeatures = Annotated[Int64[np.ndarray, "t nodes"], Index("is_category", lowest=_NO_SPLIT)]
NodeCuts = Annotated[Float64[np.ndarray, "t nodes"], Allows(-math.inf)]
LeafValues = Float64[np.ndarray, "t leaves m"]
FeatureFlags = Bool[np.ndarray, " d"]


class TreeSplit(NamedTuple):
    """One side of the split of a node."""

    feature: int
    cut: float
    is_left: bool  # whether the feature is at most the cut, or equal to it for a category


@dataclass(frozen=True, eq=False)
class SplitGrid:
    """The n examples and, for each of d features, up to b cuts at which a tree may split."""

    bins: np.ndarray  # (n, d) int64: number of cuts of the feature below the value, or the index of the category
    cuts: np.ndarray  # (d, b) float64, padded by NaN
    is_category: np.ndarray  # (d) bool

    @classmethod
    def from_cuts(cls, x: np.ndarray, cuts: list[np.ndarray], is_category: np.ndarray) -> "SplitGrid":
        """Return the grid of features (n, d) and the cuts of each."""
        # at least one column, as a constant feature has no cut; NaN is never split at
        padded_cuts = np.full((len(cuts), max(1, *map(len, cuts))), np.nan)
        for j, points in enumerate(cuts):
            padded_cuts[j, : len(points)] = points
        bins = [np.searchsorted(points, column) for points, column in zip(cuts, x.T, strict=True)]
        return cls(np.stack(bins, 1), padded_cuts, is_category)


@dataclass(frozen=True, eq=False)
class TreeEnsemble(FittedMap):
    """Complete binary trees of one depth. Nodes are numbered as in a heap: i has the children 2 i + 1 and 2 i + 2."""

    features: NodeFeatures  # (t, 2^depth - 1) int64, -1 for a node that is not split: all examples go left
    cuts: NodeCuts  # (t, 2^depth - 1) float64
    values: LeafValues  # (t, 2^depth, m) float64, of the leaves
    is_category: FeatureFlags  # (d) bool

    @property
    def depth(self) -> int:
        """Number of splits from the root to a leaf."""
        return (self.features.shape[1] + 1).bit_length() - 1

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, trees: slice) -> "TreeEnsemble":
        """Select trees by slice."""
        return TreeEnsemble(self.features[trees], self.cuts[trees], self.values[trees], self.is_category)

    def leaves(self, x: np.ndarray) -> np.ndarray:
        """Return the leaf of each example in each tree (n, t), from features (n, d)."""
        node = np.zeros((len(x), len(self)), dtype=np.int64)
        trees = np.arange(len(self))
        for _ in range(self.depth):
            feature, cut = self.features[trees, node], self.cuts[trees, node]
            is_split = feature != _NO_SPLIT
            feature = np.where(is_split, feature, 0)  # any one, for an index that exists
            value = np.take_along_axis(x, feature, axis=1)
            is_left = np.where(self.is_category[feature], value == cut, value <= cut)
            node = 2 * node + np.where(is_left | ~is_split, 1, 2)
        return node - self.features.shape[1]

    def outputs_by_tree(self, x: np.ndarray) -> np.ndarray:
        """Return the leaf values of each example in each tree (n, t, m)."""
        return self.values[np.arange(len(self)), self.leaves(x)]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the sum of the leaves' values (n, m)."""
        return self.outputs_by_tree(x).sum(1)

    def indicate(self, leaf: int) -> "TreeEnsemble":
        """Return the trees with the value 1 in one leaf, and 0 in all others."""
        values = np.zeros((len(self), self.values.shape[1], 1))
        values[:, leaf] = 1.0
        return replace(self, values=values)

    def path(self, tree: int) -> list[TreeSplit]:
        """Return the splits from the root to the leaf of the largest value, in the tree of this index."""
        features, cuts = self.features[tree].tolist(), self.cuts[tree].tolist()
        node = len(features) + int(self.values[tree, :, 0].argmax())  # leaves come after all splits
        splits = list[TreeSplit]()
        while node > 0:
            parent, is_left = (node - 1) // 2, node % 2 == 1  # left children have odd numbers
            if features[parent] != _NO_SPLIT:
                splits.append(TreeSplit(features[parent], cuts[parent], is_left))
            node = parent
        return splits[::-1]

    def is_consistent(self) -> bool:
        """Return whether the shapes belong together, and all features exist."""
        trees, nodes = self.features.shape
        return (
            (nodes + 1).bit_count() == 1  # a power of 2
            and self.values.shape[:2] == (trees, nodes + 1)
        )


def join_trees(parts: list[TreeEnsemble]) -> TreeEnsemble:
    """Return the trees of several ensembles, at least one, in their order."""
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "cuts", "values")}
    return replace(parts[0], **arrays)


def grow_tree(
    grid: SplitGrid,
    gradient: np.ndarray,
    hessian: np.ndarray,
    depth: int,
    *,
    min_rows: int,
    root_feature: int | None = None,
) -> TreeEnsemble:
    r"""Return one tree that reduces the second-order model of a loss most, split by split.

    Leaf values are Newton steps toward the mode under a normal prior, $-G / (H + \lambda)$, and a split gains
    $G_l^2 / (H_l + \lambda) + G_r^2 / (H_r + \lambda) - G^2 / (H + \lambda)$ (Chen & Guestrin 2016, equation 7).

    Args:
        grid: The examples and the splits.
        gradient: Gradient of the loss of each example (n, m).
        hessian: Diagonal of its Hessian (n, m).
        depth: Number of splits from the root to a leaf.
        min_rows: Smallest number of examples on each side of a split.
        root_feature: Feature of the first split; by default the best one.
    """
    num_nodes = 2**depth - 1  # that may be split
    features, cuts = np.full(num_nodes, _NO_SPLIT), np.zeros(num_nodes)
    node = np.zeros(len(grid.bins), dtype=np.int64)  # of each example
    for level in range(depth):
        first, width = 2**level - 1, 2**level  # nodes of this level
        index = node - first  # of each example's node in the level
        gain = _split_gains(grid, index, width, gradient, hessian, min_rows=min_rows)  # (width, d, b)
        if level == 0 and root_feature is not None:
            gain[:, np.arange(gain.shape[1]) != root_feature] = -np.inf
        best = gain.reshape(width, -1).argmax(1)
        feature, cut = best // gain.shape[2], best % gain.shape[2]  # indices of the best split of each node
        is_split = gain.reshape(width, -1).max(1) > 0
        features[first : first + width] = np.where(is_split, feature, _NO_SPLIT)
        cuts[first : first + width] = np.where(is_split, grid.cuts[feature, cut], 0.0)
        # A value is at most the cut if its bin is at most the index of the cut
        row_feature, row_cut = feature[index], cut[index]
        row_bin = grid.bins[np.arange(len(index)), row_feature]
        is_left = np.where(grid.is_category[row_feature], row_bin == row_cut, row_bin <= row_cut)
        node = 2 * node + np.where(is_left | ~is_split[index], 1, 2)
    leaf = node - num_nodes
    gradient_sums, hessian_sums = (
        np.stack([np.bincount(leaf, column, num_nodes + 1) for column in part.T], 1) for part in (gradient, hessian)
    )
    values = -gradient_sums / (hessian_sums + LEAF_PRIOR)
    return TreeEnsemble(features[None], cuts[None], values[None], grid.is_category)


def _split_gains(
    grid: SplitGrid, node: np.ndarray, width: int, gradient: np.ndarray, hessian: np.ndarray, *, min_rows: int
) -> np.ndarray:
    """Return the gain of every split of every node (width, d, b), -inf where a side has too few examples.

    `node` is the index of each example's node (n) among the `width` nodes of a level.
    """
    (d, b), m = grid.cuts.shape, gradient.shape[1]
    shape = width, d, b + 1  # of the sums by node, feature and bin, from b cuts
    flat_index = ((node[:, None] * d + np.arange(d)) * (b + 1) + grid.bins).ravel()  # of example and feature
    columns = np.column_stack([gradient, hessian, np.ones(len(node))])
    flat_sums = [np.bincount(flat_index, column.repeat(d), width * d * (b + 1)) for column in columns.T]
    by_bin = np.stack(flat_sums).reshape(-1, *shape)  # sums of gradients, Hessians and examples
    by_node = by_bin.sum(-1, keepdims=True)
    # Sums left of each cut: the examples of a category, or with at most the value
    left = np.where(grid.is_category[:, None], by_bin[..., :b], by_bin.cumsum(-1)[..., :b])
    right = by_node - left

    def score(sums: np.ndarray) -> np.ndarray:
        """Return G^2 / (H + lambda) of `grow_tree`, summed over the m outputs."""
        return (sums[:m] ** 2 / (sums[m : 2 * m] + LEAF_PRIOR)).sum(0)

    gain = score(left) + score(right) - score(by_node)
    is_allowed = (left[-1] >= min_rows) & (right[-1] >= min_rows) & ~np.isnan(grid.cuts)
    return np.where(is_allowed, gain, -np.inf)
