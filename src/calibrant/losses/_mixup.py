"""Mixup: samples mixed of two, in place of the clean ones or in addition to them (RegMixup)."""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from calibrant._core.registry import LOSSES, check_settings, hyperparameters
from calibrant._core.types import (
    InputError,
    Labels,
    Logits,
    Loss,
    LossText,
    NonNegativeFloat,
    PerExampleLoss,
    PositiveFloat,
    StatefulLoss,
    Targets,
    UpdatedLoss,
)
from calibrant.losses._adaptive import for_epochs, restore_state, state
from calibrant.losses._long_tail import for_counts
from calibrant.predictions import Predictions


@dataclass(frozen=True, eq=False)
class MixedBatch:
    """A batch of m clean samples, which may be none, followed by n mixed ones."""

    inputs: Tensor  # (m+n ...)
    first: Tensor  # (m+n) labels
    second: Tensor  # (m+n) labels of the samples mixed in; for clean samples their own
    share: float  # weight of `first` in the mixed samples
    strength: float  # weight of the mixed samples' loss
    num_clean: int  # m

    def loss(self, loss: Loss, logits: Logits) -> PerExampleLoss:
        """Return the losses of the clean samples, then of the mixed ones.

        Args:
            loss: A loss of logits and labels.
            logits: Logits of the network (m+n, k) for all `inputs`.
        """
        if len(logits) != len(self.first):
            raise InputError(
                f"Expected logits of all {len(self.first)} inputs, clean and mixed, got {len(logits)}.",
                code="num_logits",
            )
        m = self.num_clean
        mixed, first, second = logits[m:], self.first[m:], self.second[m:]
        mixed_loss = self.share * loss(mixed, first) + (1 - self.share) * loss(mixed, second)
        clean_loss = [loss(logits[:m], self.first[:m])] if m else []
        return torch.cat([*clean_loss, self.strength * mixed_loss])


@LOSSES.register
@dataclass(frozen=True, eq=False)
class Mixup:
    r"""Train on mixed samples alone, $L(\tilde x, \tilde y)$ (Zhang et al. 2018; Thulasidasan et al. 2019).

    $\tilde x = \lambda x + (1 - \lambda) x'$, where x' is the shuffled batch and $\lambda \sim Beta(\alpha, \alpha)$ is
    drawn once per batch. The loss is lambda times the loss of y plus 1 - lambda times the loss of y'.

    A study mixes the batches of a run with this loss. Elsewhere, call `mix`. Called with logits and labels, it is L.

    Args:
        loss: L, by name or as a function.
        alpha: $\alpha$; 1, a uniform $\lambda$, in the code of Zhang et al. for CIFAR-10.

    >>> from calibrant.losses import cross_entropy
    >>> batch = Mixup().mix(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> batch.inputs.shape, batch.loss(cross_entropy, torch.zeros(2, 2))
    (torch.Size([2, 3]), tensor([0.6931, 0.6931]))
    """

    _: KW_ONLY
    loss: LossText | Loss = "cross_entropy"
    alpha: PositiveFloat = 1.0

    def __post_init__(self) -> None:
        """Validate the settings, and replace the text of a loss by its function."""
        names = hyperparameters(type(self)).keys() - {"loss"}
        check_settings(type(self), {name: getattr(self, name) for name in names})
        if isinstance(self.loss, str):
            object.__setattr__(self, "loss", LOSSES.resolve(self.loss))  # a frozen dataclass refuses assignment

    def __call__(self, logits: Logits, labels: Targets) -> PerExampleLoss:
        """Return the loss L of samples that are not mixed."""
        return self._inner(logits, labels)

    @property
    def _inner(self) -> Loss:
        """L as a function."""
        assert not isinstance(self.loss, str)  # resolved by __post_init__
        return self.loss

    def mix(self, inputs: Tensor, labels: Labels, *, generator: Generator | None = None) -> MixedBatch:
        """Return the mixed batch.

        Args:
            inputs: Floating point inputs (n, ...).
            labels: Class indices (n).
            generator: Random generator on the CPU, for reproducible mixing.
        """
        if not inputs.is_floating_point():
            raise InputError(
                f"Expected floating point inputs, got {inputs.dtype}. Try mixing embeddings instead of token ids.",
                code="token_ids",
            )
        order = torch.randperm(len(labels), generator=generator).to(labels.device)  # of the shuffled batch x'
        seed = int(torch.randint(2**62, (), generator=generator))
        share = float(np.random.default_rng(seed).beta(self.alpha, self.alpha))  # torch's Beta takes no generator
        mixed = share * inputs + (1 - share) * inputs[order]
        return MixedBatch(mixed, first=labels, second=labels[order], share=share, strength=1.0, num_clean=0)

    def after_epoch(self, epoch: int, val: Predictions | None = None) -> "Mixup":
        """Return a copy with L of the next epoch."""
        inner = self._inner
        return replace(self, loss=inner.after_epoch(epoch, val)) if isinstance(inner, StatefulLoss) else self

    def is_due(self, batch: int) -> bool:
        """Return whether L changes after this batch of an epoch, counted from 0."""
        inner = self._inner
        return isinstance(inner, UpdatedLoss) and inner.is_due(batch)

    def update(self, val: Predictions) -> "Mixup":
        """Return a copy with L updated by validation predictions."""
        inner = self._inner
        return replace(self, loss=inner.update(val)) if isinstance(inner, UpdatedLoss) else self

    def for_epochs(self, epochs: int) -> "Mixup":
        """Return a copy whose L knows the number of epochs."""
        return replace(self, loss=for_epochs(self._inner, epochs))

    def for_counts(self, counts: Tensor) -> "Mixup":
        """Return a copy whose L knows the class counts of the training set."""
        return replace(self, loss=for_counts(self._inner, counts))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of L."""
        return state(self._inner)

    def with_state_dict(self, saved: Mapping[str, Any]) -> "Mixup":
        """Return a copy with this state of L."""
        return replace(self, loss=restore_state(self._inner, saved))


@LOSSES.register
@dataclass(frozen=True, eq=False)
class RegMixup(Mixup):
    r"""Train on every batch and on a mixed copy of it, $L(x, y) + \eta L(\tilde x, \tilde y)$ (Pinto et al. 2022).

    See `Mixup` for the second term. Training on clean samples as well keeps their confidence up, unlike mixup alone.

    Args:
        loss: L, by name or as a function.
        alpha: $\alpha$. The authors' code uses 20, which mixes about half and half.
        strength: $\eta$. The mean over the 2n losses is half the paper's sum of two means, as in the authors' code.

    >>> from calibrant.losses import cross_entropy
    >>> batch = RegMixup().mix(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> batch.inputs.shape, batch.loss(cross_entropy, torch.zeros(4, 2))
    (torch.Size([4, 3]), tensor([0.6931, 0.6931, 0.6931, 0.6931]))
    """

    _: KW_ONLY
    alpha: PositiveFloat = 20.0
    strength: NonNegativeFloat = 1.0

    def mix(self, inputs: Tensor, labels: Labels, *, generator: Generator | None = None) -> MixedBatch:
        """Return the batch followed by its mixed copy. The arguments are as for `Mixup.mix`."""
        mixed = super().mix(inputs, labels, generator=generator)
        return replace(
            mixed,
            inputs=torch.cat([inputs, mixed.inputs]),
            first=torch.cat([labels, mixed.first]),
            second=torch.cat([labels, mixed.second]),
            strength=self.strength,
            num_clean=len(labels),
        )
