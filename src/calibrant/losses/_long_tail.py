"""Losses for long tails: what a class weighs, or where its logit starts, follows from how often training has it.

`counts` says that, for every class in order. A study tells it to a loss by `for_counts`; elsewhere it is said, in the
loss's text or as a tensor. A class that training lacks has the count 0, and never has a label.
"""

import inspect
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant.losses._focal import focal
from calibrant.losses._likelihood import check_labels
from calibrant.registry import LOSSES
from calibrant.types import HalfOpenFraction, InputError, Logits, NonNegativeFloat, PerExample, Targets

__all__ = ["balanced_softmax", "class_balanced", "logit_adjusted"]

AnyLoss = TypeVar("AnyLoss")
Counts = tuple[NonNegativeFloat, ...] | Tensor


@LOSSES.register
def class_balanced(
    logits: Logits,
    labels: Targets,
    *,
    counts: Counts | None = None,
    beta: HalfOpenFraction = 0.9999,
    gamma: NonNegativeFloat = 0.0,
) -> PerExample:
    r"""Class-balanced loss, $w_y L(z, y)$, $w_k \propto (1 - \beta) / (1 - \beta^{n_k})$ (Cui et al. 2019).

    $(1 - \beta^n) / (1 - \beta)$ is the effective number of n examples: how many of $1 / (1 - \beta)$ prototypes n
    draws are expected to see. The weights have the mean 1 over the classes that were seen, as in the paper. beta = 0
    weighs all alike, and towards 1 by the inverse count; the paper chooses beta among .9, .99, .999 and .9999. L is
    cross-entropy, or focal loss of gamma, of the softmax; the paper's sigmoid one is `nn.Criterion(..., binary=True)`.
    Its minimizer is the truth times w, normalized.

    >>> class_balanced(torch.zeros(2, 2), torch.tensor([0, 1]), counts=(1.0, 2.0), beta=0.5)  # log 2 times 6/5, 4/5
    tensor([0.8318, 0.5545])
    """
    check_labels(logits, labels)
    n = _check_counts(logits, counts, "class_balanced")
    effective = -torch.xlogy(n, torch.full_like(n, beta)).expm1()  # up to a factor
    weight = torch.where(n > 0, 1 / effective, 0)
    weight = (weight * (n > 0).sum() / weight.sum()).to(logits)
    if labels.is_floating_point():  # linear in them
        return focal(logits, labels * weight, gamma=gamma)
    return weight[labels] * focal(logits, labels, gamma=gamma)


@LOSSES.register
def logit_adjusted(
    logits: Logits,
    labels: Targets,
    *,
    counts: Counts | None = None,
    tau: NonNegativeFloat = 1.0,
    gamma: NonNegativeFloat = 0.0,
) -> PerExample:
    r"""Logit-adjusted loss, $-\log \frac{\pi_y^\tau e^{z_y}}{\sum_k \pi_k^\tau e^{z_k}}$ (Menon et al. 2021, eq. 10).

    $\pi_k$ is the share of class k in training; with gamma it is the focal loss of these probabilities. At tau = 1, the
    paper's choice, cross-entropy is minimized by logits whose softmax is the truth for classes that are equally
    frequent, $p(y | x) / \pi_y$ normalized, and whose largest class attains the least balanced error. Where classes
    come as in training, $z + \tau \log \pi$ is what is calibrated. Cross-entropy, or focal loss, at tau = 0.

    >>> logit_adjusted(torch.zeros(2, 2), torch.tensor([0, 1]), counts=(3.0, 1.0))  # log 4/3, log 4
    tensor([0.2877, 1.3863])
    """
    n = _check_counts(logits, counts, "logit_adjusted")
    return focal(logits + torch.xlogy(torch.full_like(n, tau), n / n.sum()).to(logits), labels, gamma=gamma)


@LOSSES.register
def balanced_softmax(
    logits: Logits, labels: Targets, *, counts: Counts | None = None, gamma: NonNegativeFloat = 0.0
) -> PerExample:
    r"""Balanced softmax, $-\log \frac{n_y e^{z_y}}{\sum_k n_k e^{z_k}}$ (Ren et al. 2020).

    It is `logit_adjusted` with tau = 1, found independently; with gamma the focal loss of these probabilities.

    >>> balanced_softmax(torch.zeros(2, 2), torch.tensor([0, 1]), counts=(3.0, 1.0))  # log 4/3, log 4
    tensor([0.2877, 1.3863])
    """
    return logit_adjusted(logits, labels, counts=_check_counts(logits, counts, "balanced_softmax"), gamma=gamma)


def _check_counts(logits: Logits, counts: Counts | None, name: str) -> Tensor:
    if counts is None:
        raise InputError(
            f"{name} needs to know how often training has each class: say counts=(900, 90, 10) or "
            "counts=torch.bincount(labels); studies tell it",
            code="no_counts",
        )
    n = torch.as_tensor(counts, dtype=torch.float64, device=logits.device)
    if n.shape != logits.shape[-1:]:
        raise InputError(
            f"{name} has counts of {n.numel()} classes, and logits of {logits.shape[-1]}", code="num_classes"
        )
    return n


def for_counts(loss: AnyLoss, counts: Tensor) -> AnyLoss | Any:
    """Return the loss told how often training has each class, if it asks: by a method `for_counts`, or `counts=None`.

    >>> for_counts(balanced_softmax, torch.tensor([3, 1]))(torch.zeros(1, 2), torch.tensor([1]))
    tensor([1.3863])
    """
    set_counts = getattr(loss, "for_counts", None)
    if set_counts is not None:
        return set_counts(counts)
    parameter = inspect.signature(loss).parameters.get("counts")  # pyright: ignore[reportArgumentType]
    return partial(loss, counts=counts) if parameter is not None and parameter.default is None else loss  # pyright: ignore
