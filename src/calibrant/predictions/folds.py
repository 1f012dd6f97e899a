"""Cross-fitting: calibrate each sample by a fit to the other folds."""

from collections.abc import Callable, Iterator

import numpy as np

from calibrant._core.arrays import like, namespace, to_numpy
from calibrant._core.kernels.softmax import probabilities
from calibrant._core.types import Array, InputError, Map
from calibrant.predictions import Predictions, row_blocks
from calibrant.predictions.masks import replace_masks

FitFunction = Callable[[Predictions], Map]


def assign_folds(p: Predictions, folds: int, seed: int = 0) -> np.ndarray:
    """Return the fold of each sample (n) int64, 0 .. folds-1, without looking at the labels.

    Samples are sorted by a random linear combination of their logits, in which equal rows lie in random order, and
    dealt out to the folds in turn: each fold has about the same predictions, and its labels are those of random
    samples. Folds that also had the same labels would repeat the chance frequencies of the classes, and reward
    calibrators that learn them. The order of classes has no effect, nor has the order of samples whose logits differ.
    All samples of a cluster share a fold.

    Raises:
        InputError: If there are fewer samples, or clusters, than folds.
    """
    n = num_units(p)
    if not 2 <= folds <= n:
        divisible = "samples" if p.clusters is None else "clusters"
        message = f"Expected folds in 2 .. {n}, the number of {divisible}, got {folds}. Try folds=2 (--cv 2)."
        raise InputError(message, code="folds_range")
    rng, p = np.random.default_rng(seed), replace_masks(p)  # logits such as -1e4 would dominate the combination
    rank = _class_ranks(p)
    direction, shuffled = rng.standard_normal(p.k)[rank], rng.permutation(len(p))
    order = shuffled[_project(p.logits, direction)[shuffled].argsort(kind="stable")]
    turn = order.argsort()  # position of each sample in this order
    if p.clusters is not None:  # clusters are dealt out instead, in the order of their first samples
        cluster_index = np.unique(p.clusters, return_inverse=True)[1]
        first_turn = np.full(n, len(p))
        np.minimum.at(first_turn, cluster_index, turn)
        turn = first_turn.argsort().argsort()[cluster_index]  # twice: the rank of each cluster
    return turn % folds


def _centered_blocks(logits: Array) -> Iterator[Array]:
    """Yield blocks of float64 logits minus the maximum of their row."""
    for (block,) in row_blocks(logits):
        xp = namespace(block)
        z = xp.astype(block, xp.float64)
        yield z - xp.max(z, axis=1, keepdims=True)


def _class_ranks(p: Predictions) -> np.ndarray:
    """Return the rank of each class (k) by the weighted sum over rows of p^1.5, with p its probability.

    The random direction goes by these ranks instead of class indices, so that the order of the columns has no effect.
    """
    totals = np.zeros(p.k)
    weights = np.ones(len(p)) if p.weights is None else p.weights
    for z, w in row_blocks(p.logits, weights):
        powers = probabilities(z) ** 1.5  # their sums rarely tie, unlike those of rounded probabilities
        totals += to_numpy(like(w, z) @ powers)
    return totals.argsort(kind="stable").argsort()  # twice: the rank of each class


def _project(logits: Array, direction: np.ndarray) -> np.ndarray:
    """Return the dot product of each row's logits, minus their maximum, with a direction (k), as (n).

    Impossible classes, with logit -inf, count as 1 below the lowest finite logit.
    """
    xp, substitute = namespace(logits), 0.0
    if bool(xp.any(logits == -xp.inf)):
        substitute = min(float(xp.min(xp.where(z == -xp.inf, 0.0, z))) for z in _centered_blocks(logits)) - 1
    # A matrix product would differ in the last bit between equal rows at different positions
    factors = like(direction, logits)
    blocks = (xp.where(z == -xp.inf, substitute, z) * factors for z in _centered_blocks(logits))
    return np.concatenate([to_numpy(xp.sum(block, axis=1)) for block in blocks])


def num_units(p: Predictions) -> int:
    """Return the number of samples, or of clusters if there are any."""
    return len(p) if p.clusters is None else len(np.unique(p.clusters))


def split_folds(p: Predictions, folds: int, seed: int = 0) -> Iterator[tuple[Predictions, np.ndarray]]:
    """Yield, for each fold, the predictions outside it, to fit on, and the mask (n) of the rows inside it."""
    fold = assign_folds(p, folds, seed)
    for i in range(folds):
        inside = fold == i
        yield p[~inside], inside


def map_out_of_fold(fit: FitFunction, p: Predictions, *, folds: int = 5, seed: int = 0) -> Predictions:
    """Return the predictions with each fold calibrated by the fit to the other folds."""
    xp = namespace(p.logits)
    out = xp.empty_like(p.logits)
    for training, inside in split_folds(p, folds, seed):
        out[like(inside, out)] = xp.astype(p[inside].apply(fit(training)).logits, out.dtype)
    return p.with_logits(out)
