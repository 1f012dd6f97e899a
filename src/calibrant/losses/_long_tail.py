"""Losses for long tails: weights and offsets of classes follow from their counts in the training set.

`counts` holds one number per class. A study passes it by `for_counts`; elsewhere it stands in the text of the loss or
is a tensor. A class without training samples has the count 0 and must not occur as a label.
"""

import inspect
import math
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant._core.text import shorten_repr
from calibrant._core.types import HalfOpenFraction, InputError, Logits, NonNegativeFloat, PerExampleLoss, Targets
from calibrant.losses._focal import focal
from calibrant.losses._likelihood import check_labels
from calibrant.losses._register import register_loss

__all__ = ["balanced_softmax", "class_balanced", "logit_adjusted"]

AnyLoss = TypeVar("AnyLoss")
Counts = tuple[NonNegativeFloat, ...] | Tensor


@register_loss
def class_balanced(
    logits: Logits,
    labels: Targets,
    *,
    counts: Counts | None = None,
    beta: HalfOpenFraction = 0.9999,
    gamma: NonNegativeFloat = 0.0,
) -> PerExampleLoss:
    r"""Compute the class-balanced loss, $w_y L$ with $w_j \propto (1 - \beta) / (1 - \beta^{n_j})$ (Cui et al. 2019).

    $(1 - \beta^n) / (1 - \beta)$ is the effective number of n samples: the expected number of different prototypes
    among n draws from $1 / (1 - \beta)$ equally likely ones. As in the paper, the weights have mean 1 over the classes
    with samples. The minimizer is the true distribution times w, normalized. For the paper's sigmoid form, use
    `nn.Criterion(..., binary=True)`.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        counts: Training samples per class (k).
        beta: In [0, 1). 0 weights all classes alike, values close to 1 by the inverse count. The paper selects from .9,
            .99, .999 and .9999.
        gamma: L is focal loss with this gamma; the default 0 is cross-entropy.

    >>> class_balanced(torch.zeros(2, 2), torch.tensor([0, 1]), counts=(1.0, 2.0), beta=0.5)  # log 2 times 6/5, 4/5
    tensor([0.8318, 0.5545])
    """
    labels = check_labels(logits, labels)
    n = _class_counts(logits, counts, "class_balanced")
    # effective number without its factor 1 / (1 - beta), which cancels below; xlogy, so that 0^0 = 1 at beta = 0
    effective = -torch.xlogy(n, torch.full_like(n, beta)).expm1()  # 1 - beta^n
    weight = torch.where(n > 0, 1 / effective, 0)
    weight = (weight * (n > 0).sum() / weight.sum()).to(logits)  # mean 1 over the classes with samples
    if labels.is_floating_point():  # soft labels: the loss is linear in the labels
        return focal(logits, labels * weight, gamma=gamma)
    return weight[labels] * focal(logits, labels, gamma=gamma)


@register_loss
def logit_adjusted(
    logits: Logits,
    labels: Targets,
    *,
    counts: Counts | None = None,
    tau: NonNegativeFloat = 1.0,
    gamma: NonNegativeFloat = 0.0,
) -> PerExampleLoss:
    r"""Compute the logit-adjusted loss (Menon et al. 2021, eq. 10).

    $-\log \frac{\pi_y^\tau e^{z_y}}{\sum_k \pi_k^\tau e^{z_k}}$, where $\pi_k$ is the share of class k in the training
    set. At tau = 1, the minimizer of cross-entropy is calibrated for classes of equal frequency, and its argmax has the
    smallest balanced error. For data with the class frequencies of training, $z + \tau \log \pi$ is calibrated. Equals
    cross-entropy, or focal loss, at tau = 0.

    Args:
        logits: Unnormalized log-probabilities (n, k).
        labels: Class indices (n) or soft labels (n, k).
        counts: Training samples per class (k).
        tau: Strength of the adjustment; 1 in the paper.
        gamma: Gamma of the focal loss of the adjusted logits; the default 0 is cross-entropy.

    >>> logit_adjusted(torch.zeros(2, 2), torch.tensor([0, 1]), counts=(3.0, 1.0))  # log 4/3, log 4
    tensor([0.2877, 1.3863])
    """
    n = _class_counts(logits, counts, "logit_adjusted")
    adjustment = torch.xlogy(torch.full_like(n, tau), n / n.sum())  # tau log pi; 0 at tau = 0 even if pi = 0
    return focal(logits + adjustment.to(logits), labels, gamma=gamma)


@register_loss
def balanced_softmax(
    logits: Logits, labels: Targets, *, counts: Counts | None = None, gamma: NonNegativeFloat = 0.0
) -> PerExampleLoss:
    r"""Compute the balanced softmax loss, $-\log \frac{n_y e^{z_y}}{\sum_k n_k e^{z_k}}$ (Ren et al. 2020).

    Equals `logit_adjusted` with tau = 1. A gamma above 0 replaces the cross-entropy of $z_k + \log n_k$ by focal loss.
    `counts` are needed, except in studies, which pass the counts of the training set.

    >>> balanced_softmax(torch.zeros(2, 2), torch.tensor([0, 1]), counts=(3.0, 1.0))  # log 4/3, log 4
    tensor([0.2877, 1.3863])
    """
    return logit_adjusted(logits, labels, counts=_class_counts(logits, counts, "balanced_softmax"), gamma=gamma)


def _class_counts(logits: Logits, counts: Counts | None, name: str) -> Tensor:
    """Return the class counts as a float64 tensor (k). Raise `InputError` unless there is one count per class.

    `name` is the name of the loss, for the message.
    """
    if counts is None:
        raise InputError(
            f"Expected the class counts of the training set for {name}, got none. Try counts=(900, 90, 10) or "
            "counts=torch.bincount(labels); studies pass them.",
            code="no_counts",
        )
    n = torch.as_tensor(counts, dtype=torch.float64, device=logits.device)
    if n.shape != logits.shape[-1:]:
        raise InputError(
            f"Expected counts of {logits.shape[-1]} classes for {name}, got {n.numel()}.", code="num_classes"
        )
    # values are read on the CPU alone, as this would wait for a GPU and interrupt a compiled loss
    if n.is_cpu and not torch.compiler.is_compiling() and not (bool((n >= 0).all()) and 0 < float(n.sum()) < math.inf):
        raise InputError(
            f"Expected finite counts >= 0 for {name}, not all 0, got {shorten_repr(n.tolist())}.", code="counts"
        )
    return n


def for_counts(loss: AnyLoss, counts: Tensor) -> AnyLoss | Any:
    """Return the loss with the class counts of the training set, or unchanged if it does not use them or has its own.

    A loss uses them through a method `for_counts`, or an argument `counts` whose default is None.

    >>> for_counts(balanced_softmax, torch.tensor([3, 1]))(torch.zeros(1, 2), torch.tensor([1]))
    tensor([1.3863])
    """
    set_counts = getattr(loss, "for_counts", None)
    if set_counts is not None:
        return set_counts(counts)
    parameter = inspect.signature(loss).parameters.get("counts")  # pyright: ignore[reportArgumentType]
    if parameter is not None and parameter.default is None:  # counts in the text of a loss are its default
        return partial(loss, counts=counts)  # pyright: ignore
    return loss
