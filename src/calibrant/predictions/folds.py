"""Cross-fitting: calibrate each sample by a fit to the other folds."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from calibrant.predictions import Predictions, row_blocks
from calibrant.predictions.masks import replace_masks
from calibrant.types import InputError, Map

FitFunction = Callable[[Predictions], Map]


def assign_folds(p: Predictions, folds: int, seed: int = 0) -> Tensor:
    """Return the fold of each sample (n) int64, 0 .. folds-1, stratified by class.

    Samples are sorted by class, and within a class by a random linear combination of their logits. In this order they
    are dealt out to the folds in turn, so that folds are alike. The order of rows and of classes has no effect. All
    samples of a cluster share a fold.

    Raises:
        InputError: If there are fewer samples, or clusters, than folds.
    """
    n = num_units(p)
    if not 2 <= folds <= n:
        divisible = "samples" if p.clusters is None else "clusters"
        message = f"Expected folds in 2 .. {n}, the number of {divisible}, got {folds}. Try folds=2 (--cv 2)."
        raise InputError(message, code="folds_range")
    p, labels = replace_masks(p), p.labels  # logits such as -1e4 would dominate the combination
    rank = _class_ranks(p)
    direction = torch.randn(p.k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    projection = _project(p.logits, direction.to(rank.device)[rank])
    tie_breakers = (column for column in (p.clusters, p.groups, p.weights) if column is not None)
    order = torch.arange(len(p), device=labels.device)
    for key in (*tie_breakers, projection, rank[labels]):  # stable sorts: the last key counts most
        order = order[key[order].argsort(stable=True)]
    turn = order.argsort()  # position of each sample in this order
    if p.clusters is not None:  # clusters are dealt out instead, in the order of their first samples
        cluster_index = p.clusters.unique(return_inverse=True)[1]
        first_turn = torch.full((n,), len(p), device=labels.device).scatter_reduce(0, cluster_index, turn, "amin")
        turn = first_turn.argsort().argsort()[cluster_index]  # twice: the rank of each cluster
    return turn % folds


def _centered_blocks(logits: Tensor) -> Iterator[Tensor]:
    """Yield blocks of float64 logits minus the maximum of their row."""
    for (block,) in row_blocks(logits):
        z = block.double()
        yield z - z.amax(1, keepdim=True)


def _class_ranks(p: Predictions) -> Tensor:
    """Return the rank of each class (k) by a total over all rows, so that the order of the columns has no effect.

    Sorting uses these ranks instead of class indices. The total of a class is the weighted sum of p^1.5 over rows, with
    p its probability, plus the weighted sum of p^1.5 + 1 over the rows with its label.
    """
    totals = torch.zeros(p.k, dtype=torch.float64, device=p.logits.device)
    weights = torch.ones_like(totals[:1]).expand(len(p)) if p.weights is None else p.weights
    for z, y, w in row_blocks(p.logits, p.labels, weights):
        powers = z.double().softmax(1)
        powers *= powers.sqrt()  # p^1.5: its sums rarely tie, unlike those of rounded probabilities themselves
        totals += w @ powers
        totals.index_add_(0, y, w * (powers.gather(1, y[:, None]).squeeze(1) + 1))
    return totals.argsort(stable=True).argsort()  # twice: the rank of each class


def _project(logits: Tensor, direction: Tensor) -> Tensor:
    """Return the dot product of each row's logits, minus their maximum, with a direction (k), as (n).

    Impossible classes, with logit -inf, count as 1 below the lowest finite logit.
    """
    substitute = 0.0
    if bool(logits.isneginf().any()):
        substitute = min(float(z[z.isfinite()].min()) for z in _centered_blocks(logits)) - 1
    # A matrix product would differ in the last bit between equal rows at different positions
    return torch.cat([(z.nan_to_num_(neginf=substitute) * direction).sum(1) for z in _centered_blocks(logits)])


def num_units(p: Predictions) -> int:
    """Return the number of samples, or of clusters if there are any."""
    return len(p) if p.clusters is None else len(p.clusters.unique())


def split_folds(p: Predictions, folds: int, seed: int = 0) -> Iterator[tuple[Predictions, Tensor]]:
    """Yield, for each fold, the predictions outside it, to fit on, and the mask (n) of the rows inside it."""
    fold = assign_folds(p, folds, seed)
    for i in range(folds):
        inside = fold == i
        yield p[~inside], inside


def map_out_of_fold(fit: FitFunction, p: Predictions, *, folds: int = 5, seed: int = 0) -> Predictions:
    """Return the predictions with each fold calibrated by the fit to the other folds."""
    out = torch.empty_like(p.logits)
    for training, inside in split_folds(p, folds, seed):
        out[inside] = p[inside].apply(fit(training)).logits.to(out.dtype)
    return p.with_logits(out)
