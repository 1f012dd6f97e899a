"""RegMixup: mixed examples beside the clean ones."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from calibrant.losses._adaptive import for_epochs, restore_state, state
from calibrant.losses._long_tail import for_counts
from calibrant.predictions import Predictions
from calibrant.registry import LOSSES
from calibrant.types import (
    InputError,
    Labels,
    Logits,
    Loss,
    LossText,
    NonNegativeFloat,
    PerExample,
    PositiveFloat,
    StatefulLoss,
    Targets,
    UpdatedLoss,
)


@dataclass(frozen=True, eq=False)
class MixedBatch:
    """A batch of n clean examples followed by n mixed ones."""

    inputs: Tensor  # (2n ...)
    first: Tensor  # (2n) labels
    second: Tensor  # (2n) labels of what was mixed in; of the clean examples, their own
    share: float  # of `first` in the mixed examples
    strength: float  # of the mixed examples' loss

    def loss(self, loss: Loss, logits: Logits) -> PerExample:
        """Return any loss of the network's logits (2n k): of the clean examples, then of the mixed ones."""
        if len(logits) != len(self.first):
            raise InputError(
                f"need the logits of all {len(self.first)} inputs, clean and mixed, got {len(logits)}",
                code="num_logits",
            )
        n = len(logits) // 2
        clean, mixed, first, second = logits[:n], logits[n:], self.first[n:], self.second[n:]
        mixed_loss = self.share * loss(mixed, first) + (1 - self.share) * loss(mixed, second)
        return torch.cat([loss(clean, self.first[:n]), self.strength * mixed_loss])


@LOSSES.register
@dataclass(frozen=True, eq=False)
class RegMixup:
    r"""Train on every batch and on a mixed copy of it, $L(x, y) + \eta L(\tilde x, \tilde y)$ (Pinto et al. 2022).

    $\tilde x = \lambda x + (1 - \lambda) x'$ with x' the batch in another order and one $\lambda \sim Beta(\alpha,
    \alpha)$ per batch; its loss is lambda times that of y plus 1 - lambda times that of y', which for cross-entropy
    is the loss of the mixed target. L is any `loss`, by name or as a function. The large alpha = 20 of the authors'
    code mixes about half and half; eta is `strength`. The mean over the 2n losses is half the paper's sum of two means,
    as in the authors' code. Unlike plain mixup it also trains on clean examples, which keeps their confidence up.

    A study mixes the batches of a run with this loss. Elsewhere `mixed` does; of logits and labels alone, which nobody
    has mixed, this is L.

    >>> from calibrant.losses import cross_entropy
    >>> batch = RegMixup().mix(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> batch.inputs.shape, batch.loss(cross_entropy, torch.zeros(4, 2))
    (torch.Size([4, 3]), tensor([0.6931, 0.6931, 0.6931, 0.6931]))
    """

    _: KW_ONLY
    loss: LossText | Loss = "cross_entropy"
    alpha: PositiveFloat = 20.0
    strength: NonNegativeFloat = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.loss, str):
            object.__setattr__(self, "loss", LOSSES.resolve(self.loss))

    def __call__(self, logits: Logits, labels: Targets) -> PerExample:
        """Return the loss of examples as they are."""
        return self._inner(logits, labels)

    @property
    def _inner(self) -> Loss:
        assert not isinstance(self.loss, str)  # it was resolved
        return self.loss

    def mix(self, inputs: Tensor, labels: Labels, *, generator: Generator | None = None) -> MixedBatch:
        """Return the batch with its mixed copy behind it. `generator`, on the CPU, makes it repeatable."""
        if not inputs.is_floating_point():
            raise InputError(
                f"can only mix floating point inputs, got {inputs.dtype}; mix embeddings, not token ids",
                code="token_ids",
            )
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        seed = int(torch.randint(2**62, (), generator=generator))
        share = float(np.random.default_rng(seed).beta(self.alpha, self.alpha))
        mixed = share * inputs + (1 - share) * inputs[order]
        first_labels, second_labels = torch.cat([labels, labels]), torch.cat([labels, labels[order]])
        return MixedBatch(torch.cat([inputs, mixed]), first_labels, second_labels, share, self.strength)

    def after_epoch(self, epoch: int, val: Predictions | None = None) -> "RegMixup":
        """Return the same with the next epoch's L, if that changes."""
        inner = self._inner
        return replace(self, loss=inner.after_epoch(epoch, val)) if isinstance(inner, StatefulLoss) else self

    def is_due(self, batch: int) -> bool:
        """Say whether L changes after a batch of an epoch, counted from 0."""
        inner = self._inner
        return isinstance(inner, UpdatedLoss) and inner.is_due(batch)

    def update(self, val: Predictions) -> "RegMixup":
        """Return the same with L changed by validation."""
        inner = self._inner
        return replace(self, loss=inner.update(val)) if isinstance(inner, UpdatedLoss) else self

    def for_epochs(self, epochs: int) -> "RegMixup":
        """Return the same with L told how many epochs there will be."""
        return replace(self, loss=for_epochs(self._inner, epochs))

    def for_counts(self, counts: Tensor) -> "RegMixup":
        """Return the same with L told how often training has each class."""
        return replace(self, loss=for_counts(self._inner, counts))

    def state_dict(self) -> dict[str, Any]:
        """Return what L has learned so far."""
        return state(self._inner)

    def with_state_dict(self, saved: Mapping[str, Any]) -> "RegMixup":
        """Return the same with what L had learned."""
        return replace(self, loss=restore_state(self._inner, saved))
