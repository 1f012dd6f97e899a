"""Cross-fitting: every example is mapped by what was fitted on others."""

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant._types import InputError, Labels, Logits

Fit = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]  # (logits, labels) -> map of logits to logits


def folds_of(logits: Tensor, labels: Tensor, folds: int, seed: int = 0) -> Tensor:
    """Assign every example to a fold 0 .. folds-1: evenly within every class, whatever the order of the examples.

    Those of a class are dealt out in the order of a random combination of their logits, drawn by the seed, so that
    each fold holds the like of every other.
    """
    along = torch.randn(logits.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    z = logits.double()
    below = z - z.amax(1, keepdim=True)
    below = below.nan_to_num(neginf=float(below[below.isfinite()].min()) - 1)  # of impossible classes
    order = (below @ along.to(logits.device)).argsort(stable=True)
    order = order[labels[order].argsort(stable=True)]
    fold = torch.empty_like(labels, dtype=torch.int64)
    fold[order] = torch.arange(len(labels), device=labels.device) % folds
    return fold


def cross_fitted(fit: Fit, logits: Logits, labels: Labels, *, folds: int = 5, seed: int = 0) -> Logits:
    """Map each fold by the fit of the others. Raises `InputError` where there are fewer examples than folds."""
    n = len(labels)
    if not 2 <= folds <= n:
        raise InputError(f"folds must lie in 2 .. {n}, the number of examples, got {folds}")
    fold = folds_of(logits, labels, folds, seed)
    out = torch.empty_like(logits)
    for i in range(folds):
        held = fold == i
        out[held] = fit(logits[~held], labels[~held])(logits[held]).to(logits.dtype)
    return out
