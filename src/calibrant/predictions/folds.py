"""Cross-fitting: every example is mapped by what was fitted on others. The one fold loop."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from calibrant.predictions import BLOCK_ELEMENTS, Predictions
from calibrant.predictions.masks import replace_masks
from calibrant.types import InputError, Map

FitFunction = Callable[[Predictions], Map]


def assign_folds(p: Predictions, folds: int, seed: int = 0) -> Tensor:
    """Assign every example to a fold 0 .. folds-1: evenly within every class, whatever the order of rows and classes.

    Examples of a class are dealt out in the order of a random combination of their logits, drawn by the seed, so that
    each fold holds similar ones. An example goes into a fold with its whole weight, and a cluster with all of its
    examples. Raises `InputError` if there are fewer examples, or clusters, than folds.
    """
    n = num_units(p)
    if not 2 <= folds <= n:
        unit = "examples" if p.clusters is None else "clusters"
        raise InputError(f"folds must lie in 2 .. {n}, the number of {unit}, got {folds}", code="folds_range")
    p, labels = replace_masks(p), p.labels
    rank = _class_ranks(p)
    directions = torch.randn(p.k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = torch.arange(len(p), device=labels.device)
    position = _project(p.logits, directions.to(rank.device)[rank])
    ties = (part for part in (p.clusters, p.groups, p.weights) if part is not None)  # between equal rows
    for key in (*ties, position, rank[labels]):
        order = order[key[order].argsort(stable=True)]
    place = torch.empty_like(labels)
    place[order] = torch.arange(len(labels), device=labels.device)
    if p.clusters is not None:  # a cluster stands where its first example does
        index = p.clusters.unique(return_inverse=True)[1]
        first = torch.full((n,), len(p), device=labels.device).scatter_reduce(0, index, place, "amin")
        place = first.argsort().argsort()[index]
    return place % folds


def _centered_blocks(logits: Tensor) -> Iterator[Tensor]:
    """Yield float64 logits less the maximum of their row, in blocks of rows."""
    for block in logits.split(max(1, BLOCK_ELEMENTS // logits.shape[1])):
        z = block.double()
        yield z - z.amax(1, keepdim=True)


def _class_ranks(p: Predictions) -> Tensor:
    """Rank the classes by their probabilities and labels, so that their order among the columns does not matter."""
    totals = torch.zeros(p.k, dtype=torch.float64, device=p.logits.device)
    rows, weights = (
        max(1, BLOCK_ELEMENTS // p.k),
        torch.ones_like(totals[:1]).expand(len(p)) if p.weights is None else p.weights,
    )
    for z, y, w in zip(p.logits.split(rows), p.labels.split(rows), weights.split(rows), strict=True):
        share = z.double().softmax(1)
        share *= share.sqrt()  # a power that sums of rounded probabilities rarely tie in
        totals += w @ share
        totals.index_add_(0, y, w * (share.gather(1, y[:, None]).squeeze(1) + 1))
    return totals.argsort(stable=True).argsort()


def _project(logits: Tensor, direction: Tensor) -> Tensor:
    """Combine the logits of every row; impossible classes lie just below all others."""
    lowest = 0.0
    if bool(logits.isneginf().any()):
        lowest = min(float(z[z.isfinite()].min()) for z in _centered_blocks(logits)) - 1
    # Not a matrix product, in which equal rows differ in the last bit by their place
    return torch.cat([(z.nan_to_num_(neginf=lowest) * direction).sum(1) for z in _centered_blocks(logits)])


def num_units(p: Predictions) -> int:
    """How many examples, or clusters of them, there are that folds can hold."""
    return len(p) if p.clusters is None else len(p.clusters.unique())


def split_folds(p: Predictions, folds: int, seed: int = 0) -> Iterator[tuple[Predictions, Tensor]]:
    """Yield for every fold the predictions outside it, and which rows lie inside."""
    fold = assign_folds(p, folds, seed)
    for i in range(folds):
        inside = fold == i
        yield p[~inside], inside


def map_out_of_fold(fit: FitFunction, p: Predictions, *, folds: int = 5, seed: int = 0) -> Predictions:
    """Map each fold by the fit of the others. Raises `InputError` where there are fewer examples than folds."""
    out = torch.empty_like(p.logits)
    for training, inside in split_folds(p, folds, seed):
        out[inside] = p[inside].apply(fit(training)).logits.to(out.dtype)
    return p.with_logits(out)
