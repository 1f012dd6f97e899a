"""Cross-fitting: every example is mapped by what was fitted on others. The one fold loop."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from calibrant.predictions import BLOCK, Predictions
from calibrant.types import InputError, Map

Fit = Callable[[Predictions], Map]


def folds_of(p: Predictions, folds: int, seed: int = 0) -> Tensor:
    """Assign every example to a fold 0 .. folds-1: evenly within every class, whatever the order of the examples.

    Those of a class are dealt out in the order of a random combination of their logits, drawn by the seed, so that
    each fold holds the like of every other. An example goes into a fold with its whole weight, and a cluster with all
    of its examples. Raises `InputError` where there are fewer examples, or clusters, than folds.
    """
    n = units(p)
    if not 2 <= folds <= n:
        what = "examples" if p.clusters is None else "clusters"
        raise InputError(f"folds must lie in 2 .. {n}, the number of {what}, got {folds}")
    logits, labels = p.logits, p.labels
    along = torch.randn(logits.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = _along(logits, along.to(logits.device)).argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]
    place = torch.empty_like(labels)
    place[order] = torch.arange(len(labels), device=labels.device)
    if p.clusters is not None:  # a cluster stands where its first example does
        first = torch.full((n,), len(p), device=labels.device)
        first = first.scatter_reduce(0, p.clusters.unique(return_inverse=True)[1], place, "amin")
        place = first.argsort().argsort()[p.clusters.unique(return_inverse=True)[1]]
    return place % folds


def _along(logits: Tensor, direction: Tensor) -> Tensor:
    """Combine logits less the top of their row, some rows at a time; impossible classes lie just below all others."""
    blocks = logits.split(max(1, BLOCK // logits.shape[1]))

    def below(z: Tensor) -> Tensor:
        return z.double() - z.double().amax(1, keepdim=True)

    lowest = min(float(part[part.isfinite()].min()) for part in map(below, blocks)) - 1
    return torch.cat([part.nan_to_num_(neginf=lowest) @ direction for part in map(below, blocks)])


def units(p: Predictions) -> int:
    """How many examples, or clusters of them, there are that folds can hold."""
    return len(p) if p.clusters is None else len(p.clusters.unique())


def split_folds(p: Predictions, folds: int, seed: int = 0) -> Iterator[tuple[Predictions, Tensor]]:
    """Yield for every fold the predictions outside it, and which rows lie inside."""
    fold = folds_of(p, folds, seed)
    for i in range(folds):
        inside = fold == i
        yield p[~inside], inside


def cross_fitted(fit: Fit, p: Predictions, *, folds: int = 5, seed: int = 0) -> Predictions:
    """Map each fold by the fit of the others. Raises `InputError` where there are fewer examples than folds."""
    out = torch.empty_like(p.logits)
    for rest, inside in split_folds(p, folds, seed):
        out[inside] = p[inside].mapped(fit(rest)).logits.to(out.dtype)
    return p.having(out)
