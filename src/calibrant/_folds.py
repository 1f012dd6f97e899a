"""Cross-fitting: every example is mapped by what was fitted on others."""

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant._types import InputError, Labels, Logits

Fit = Callable[[Tensor, Tensor], Callable[[Tensor], Tensor]]  # (logits, labels) -> map of logits to logits


def folds_of(labels: Tensor, folds: int, seed: int = 0) -> Tensor:
    """Assign every example to a fold 0 .. folds-1, at random and evenly within every class."""
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    order = order[labels.cpu()[order].argsort(stable=True)]
    fold = torch.empty(len(labels), dtype=torch.int64)
    fold[order] = torch.arange(len(labels)) % folds
    return fold.to(labels.device)


def cross_fitted(fit: Fit, logits: Logits, labels: Labels, *, folds: int = 5, seed: int = 0) -> Logits:
    """Map each fold by the fit of the others. Raises `InputError` where there are fewer examples than folds."""
    n = len(labels)
    if not 2 <= folds <= n:
        raise InputError(f"folds must lie in 2 .. {n}, the number of examples, got {folds}")
    fold = folds_of(labels, folds, seed)
    out = torch.empty_like(logits)
    for i in range(folds):
        held = fold == i
        out[held] = fit(logits[~held], labels[~held])(logits[held]).to(logits.dtype)
    return out
