"""Training recipes: optimizer, schedule and choice of epoch, and the papers' recipes by name."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Literal, get_type_hints

from calibrant._core import registry
from calibrant._core.text import shorten_repr
from calibrant._core.types import Count, HalfOpenFraction, InputError, NonNegativeFloat, PositiveFloat, Range

Precision = Literal["32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true"]


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of the training, by default those that Mukhoti et al. (2020) state for CIFAR.

    Their code also sums over the batch and clips gradients; that is the recipe "mukhoti_cifar" of `RECIPES`.

    - The learning rate of an epoch is `learning_rate * rate_factor(epoch)`.
    - `choose` keeps the weights of the last epoch, of the epoch with the best validation accuracy, or of the epoch with
      the lowest validation NLL after temperature scaling ("refinement").
    - `reduction="mean"` divides by the number of examples of a batch, even if an example has many outputs, as trees do.
    - With "bf16-mixed", the validation logits after each epoch, which AdaFocal and traces use, are bfloat16. The stored
      predictions are float32.
    """

    epochs: Count = 350
    batch_size: Count = 128
    drop_last: bool = False  # skip the last, incomplete batch of an epoch
    optimizer: Literal["sgd", "adam", "adamw", "adagrad"] = "sgd"
    learning_rate: PositiveFloat = 0.1
    vectors_learning_rate: PositiveFloat | None = None  # word vectors then follow plain SGD
    schedule: Literal["step", "cosine"] = "step"
    milestones: tuple[Count, ...] = (150, 250)  # "step" multiplies the rate by `decay` after these epochs
    decay: Annotated[float, Range(gt=0, le=1)] = 0.1
    warmup: Annotated[int, Range(ge=0)] = 0  # epochs with a linearly rising learning rate
    momentum: HalfOpenFraction = 0.9  # for "sgd"
    weight_decay: NonNegativeFloat = 5e-4
    decayed: Literal["all", "weights"] = "all"  # "weights" excludes biases and normalization layers
    reduction: Literal["mean", "sum"] = "mean"  # of the losses of a batch
    averaged: tuple[str, ...] = ()  # losses that use the mean despite `reduction="sum"`
    clip: PositiveFloat | None = None  # maximum norm of the gradient
    choose: Literal["last", "accuracy", "refinement"] = "last"  # the epoch whose weights are kept
    precision: Precision = "32-true"  # of Lightning Fabric; also used for validation while training
    channels_last: bool = False  # memory layout of convolutions that is faster in bfloat16
    compile: bool = False

    def __post_init__(self) -> None:
        """Raise `InputError` unless every setting has its type and range."""
        for name, hint in _FIELD_TYPES.items():
            value = getattr(self, name)
            self._check(name, registry.describe_mismatch(value, hint), value)  # "" if the value fits
        increasing = list(self.milestones) == sorted(set(self.milestones))
        self._check("milestones", "" if increasing else "increasing epochs", self.milestones)
        self._check("warmup", "" if self.warmup < self.epochs else f"less than {self.epochs} epochs", self.warmup)
        for loss in self.averaged:
            expected = "" if loss in registry.LOSSES else f"losses; {registry.suggest(loss, registry.LOSSES)}"
            self._check("averaged", expected, loss)

    def _check(self, name: str, expected: str, value: object) -> None:
        """Raise `InputError` for the value of a field, unless `expected` is "".

        Callers pass "" for an allowed value, and otherwise a description of the allowed values for the message.
        """
        if expected:
            raise InputError(
                f"Expected {name} of the recipe to be {expected}, got {shorten_repr(value)}.", code=f"recipe_{name}"
            )

    def check_effects(self, keys: Collection[str]) -> None:
        """Raise `InputError` if one of the settings `keys`, which the user gave, has no effect in this recipe.

        For example, momentum has no effect with Adam.
        """
        # the rate changes after the epoch of a milestone, so the last epoch is too late
        late = [milestone for milestone in self.milestones if milestone >= self.epochs]
        if "milestones" in keys:
            self._check("milestones", f"before the last of {self.epochs} epochs" if late else "", self.milestones)
        if "momentum" in keys and self.optimizer != "sgd":
            self._check("momentum", f"left out for the optimizer {self.optimizer}", self.momentum)
        if "decay" in keys and self.schedule == "cosine":
            self._check("decay", "left out for the cosine schedule", self.decay)
        if "milestones" in keys and self.milestones and self.schedule == "cosine":
            self._check("milestones", "left out for the cosine schedule", self.milestones)

    def for_loss(self, loss: str) -> "Recipe":
        """Return the recipe for a loss of this name: its reduction is the mean if `averaged` lists the loss.

        >>> [RECIPES["mukhoti_cifar"].for_loss(loss).reduction for loss in ("focal", "brier")]
        ['sum', 'mean']
        """
        return replace(self, reduction="mean" if loss in self.averaged else self.reduction, averaged=())

    def rate_factor(self, epoch: int) -> float:
        """Return the factor of the learning rate in an epoch, counted from 0.

        It rises linearly during the warm-up. Then it follows half a cosine from 1 toward 0, or is multiplied by `decay`
        at each milestone.

        >>> [round(Recipe(epochs=4, milestones=(1, 3)).rate_factor(e), 3) for e in range(4)]
        [1.0, 0.1, 0.1, 0.01]
        >>> [round(Recipe(epochs=4, warmup=2, schedule="cosine").rate_factor(e), 3) for e in range(4)]
        [0.5, 1.0, 1.0, 0.5]
        """
        if epoch < self.warmup:
            return (epoch + 1) / self.warmup
        if self.schedule == "cosine":
            return (1 + math.cos(math.pi * (epoch - self.warmup) / (self.epochs - self.warmup))) / 2
        return self.decay ** sum(epoch >= milestone for milestone in self.milestones)

    def with_epochs(self, epochs: int) -> "Recipe":
        """Return the recipe for another number of epochs, with milestones and warm-up in proportion.

        >>> RECIPES["wang_cifar"].with_epochs(30).milestones
        (15, 22)
        """
        share = epochs / self.epochs
        milestones = dict.fromkeys(max(1, round(share * milestone)) for milestone in self.milestones)  # once each
        return replace(self, epochs=epochs, milestones=tuple(milestones), warmup=round(share * self.warmup))


_FIELD_TYPES = get_type_hints(Recipe, include_extras=True)  # with their ranges

RECIPES = {
    # The code of Mukhoti et al. (2020), also used by Komisarenko & Kull (2024), sums losses except the Brier score,
    # clips gradients at 2, and drops the rate one epoch before the paper's 150 and 250.
    "mukhoti_cifar": Recipe(milestones=(149, 249), reduction="sum", averaged=("brier",), clip=2.0),
    "komisarenko_tiny_imagenet": Recipe(
        epochs=100, batch_size=64, milestones=(39, 59), reduction="sum", averaged=("brier",), clip=2.0
    ),
    # Its text experiments keep the epoch with the best validation accuracy. Word vectors of 20 Newsgroups are frozen by
    # the network (`global_pooling_cnn(frozen=True)`); word vectors of SST follow plain SGD.
    "mukhoti_newsgroups": Recipe(
        epochs=50,
        optimizer="adam",
        learning_rate=1e-3,
        milestones=(),
        weight_decay=0.0,
        drop_last=True,
        choose="accuracy",
    ),
    "mukhoti_sst": Recipe(
        epochs=25,
        batch_size=25,
        optimizer="adagrad",
        learning_rate=0.05,
        vectors_learning_rate=0.1,
        milestones=(),
        weight_decay=1e-4,
        drop_last=True,
        choose="accuracy",
    ),
    # The code of Wang et al. (2021)
    "wang_cifar": Recipe(epochs=200, batch_size=512, milestones=(100, 150), weight_decay=1e-4),
    # For 20 Newsgroups their paper only says that the rate drops at epoch 50; the rest is assumed.
    "wang_newsgroups": Recipe(
        epochs=100, batch_size=128, optimizer="adam", learning_rate=1e-3, milestones=(50,), weight_decay=1e-4
    ),
    # Trains ResNet-20 on CIFAR-10 to about 88 % accuracy in minutes on a few cores.
    "quick_cpu": Recipe(
        epochs=12,
        schedule="cosine",
        warmup=1,
        milestones=(),
        decayed="weights",
        channels_last=True,
    ),
}
