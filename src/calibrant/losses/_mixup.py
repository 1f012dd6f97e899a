"""RegMixup: mixed examples beside the clean ones, as a transform of batches."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from calibrant.types import InputError, Labels, Logits, Loss, PerExample


@dataclass(frozen=True, eq=False)
class Mixed:
    """A batch of n clean examples followed by n mixed ones."""

    inputs: Tensor  # (2n ...)
    first: Tensor  # (2n) labels
    second: Tensor  # (2n) labels of what was mixed in; of the clean examples, their own
    share: float  # of `first` in the mixed examples
    strength: float  # of the mixed examples' loss

    def loss(self, loss: Loss, logits: Logits) -> PerExample:
        """Return any loss of the network's logits (2n k): of the clean examples, then of the mixed ones."""
        if len(logits) != len(self.first):
            raise InputError(f"need the logits of all {len(self.first)} inputs, clean and mixed, got {len(logits)}")
        n = len(logits) // 2
        clean, mixed, first, second = logits[:n], logits[n:], self.first[n:], self.second[n:]
        between = self.share * loss(mixed, first) + (1 - self.share) * loss(mixed, second)
        return torch.cat([loss(clean, self.first[:n]), self.strength * between])


@dataclass(frozen=True)
class RegMixup:
    r"""Train on every batch and on a mixed copy of it, $L(x, y) + \eta L(\tilde x, \tilde y)$ (Pinto et al. 2022).

    $\tilde x = \lambda x + (1 - \lambda) x'$ with x' the batch in another order and one $\lambda \sim Beta(\alpha,
    \alpha)$ per batch; its loss is lambda times that of y plus 1 - lambda times that of y', which for cross-entropy
    is the loss of the mixed target. The large alpha = 20 of the authors' code mixes about half and half; eta is
    `strength`. The mean over the 2n losses is half the paper's sum of two means, as in the authors' code. Unlike
    plain mixup it also trains on clean examples, which keeps their confidence up.

    >>> from calibrant.losses import cross_entropy
    >>> batch = RegMixup()(torch.zeros(2, 3), torch.tensor([0, 1]))
    >>> batch.inputs.shape, batch.loss(cross_entropy, torch.zeros(4, 2))
    (torch.Size([4, 3]), tensor([0.6931, 0.6931, 0.6931, 0.6931]))
    """

    alpha: float = 20.0
    strength: float = 1.0

    def __call__(self, inputs: Tensor, labels: Labels, *, generator: Generator | None = None) -> Mixed:
        """Return the batch with its mixed copy behind it. `generator`, on the CPU, makes it repeatable."""
        if not inputs.is_floating_point():
            raise InputError(f"can only mix floating point inputs, got {inputs.dtype}; mix embeddings, not token ids")
        order = torch.randperm(len(labels), generator=generator).to(labels.device)
        seed = int(torch.randint(2**62, (), generator=generator))
        share = float(np.random.default_rng(seed).beta(self.alpha, self.alpha))
        mixed = share * inputs + (1 - share) * inputs[order]
        both, other = torch.cat([labels, labels]), torch.cat([labels, labels[order]])
        return Mixed(torch.cat([inputs, mixed]), both, other, share, self.strength)
