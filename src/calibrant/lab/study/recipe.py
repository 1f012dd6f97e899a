"""How a network is trained, and the papers' ways by name."""

import math
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Annotated, Any, Literal, get_type_hints

from calibrant import registry
from calibrant._text import shorten_repr
from calibrant.types import Count, HalfOpenFraction, InputError, NonNegativeFloat, PositiveFloat, Range

__all__ = ["RECIPES", "Recipe"]

Precision = Literal["32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true", "64-true"]


@dataclass(frozen=True)
class Recipe:
    """How every network of a study is trained. The defaults are what Mukhoti et al. (2020) say of CIFAR.

    What their code does besides, sums over the batch and clipped gradients, is the recipe "mukhoti_cifar".

    An epoch's learning rate is `learning_rate` times `rate(epoch)`. `choose` keeps the last epoch, that with the best
    validation accuracy, or the one whose validation NLL is least after temperature scaling (refine, then calibrate).
    `reduction="mean"` divides by the examples of a batch, also where one example has many outputs, as a tree has.
    With "bf16-mixed" the validation logits after each epoch, from which AdaFocal takes its gammas and traces their
    numbers, are of bfloat16; those that are kept at the end are of float32.

    `RECIPES` holds the papers' recipes by name.
    """

    epochs: Count = 350
    batch_size: Count = 128
    drop_last: bool = False  # leave out the rest of an epoch that fills no batch
    optimizer: Literal["sgd", "adam", "adamw", "adagrad"] = "sgd"
    learning_rate: PositiveFloat = 0.1
    vectors_learning_rate: PositiveFloat | None = None  # of word vectors, then by SGD without momentum or weight decay
    schedule: Literal["step", "cosine"] = "step"
    milestones: tuple[Count, ...] = (
        150,
        250,
    )  # of "step": epochs after which the rate is multiplied by `decay`
    decay: Annotated[float, Range(gt=0, le=1)] = 0.1
    warmup: Annotated[int, Range(ge=0)] = 0  # epochs over which the learning rate rises to its first value
    momentum: HalfOpenFraction = 0.9  # of sgd
    weight_decay: NonNegativeFloat = 5e-4
    decayed: Literal["all", "weights"] = "all"  # "weights" spares biases and normalization
    reduction: Literal["mean", "sum"] = "mean"  # of the loss over a batch
    averaged: tuple[str, ...] = ()  # losses of which the mean is taken all the same
    clip: PositiveFloat | None = None  # largest norm of the gradient
    choose: Literal["last", "accuracy", "refinement"] = "last"  # which epoch's weights are kept
    precision: Precision = "32-true"  # as Lightning Fabric names it; of validation in training, too
    channels_last: bool = False  # memory layout of convolutions: faster in bfloat16
    compile: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if wanted := registry.describe_mismatch(value, _field_types()[field.name]):
                raise InputError(
                    f"recipe: {field.name} must be {wanted}, got {shorten_repr(value)}", code=f"recipe_{field.name}"
                )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise InputError(
                f"recipe: milestones must increase, got {shorten_repr(self.milestones)}", code="recipe_milestones"
            )
        if self.warmup >= self.epochs:
            raise InputError(
                f"recipe: warmup must be less than epochs, got {self.warmup} of {self.epochs}", code="recipe_warmup"
            )
        for name in self.averaged:
            if name not in registry.LOSSES:
                hint = registry.suggest(name, registry.LOSSES)
                raise InputError(f"recipe: averaged names no loss {shorten_repr(name)}; {hint}", code="recipe_averaged")

    def for_loss(self, loss: str) -> "Recipe":
        """Return the recipe as it trains a loss of this name: with its own reduction.

        >>> [RECIPES["mukhoti_cifar"].for_loss(loss).reduction for loss in ("focal", "brier")]
        ['sum', 'mean']
        """
        return replace(self, reduction="mean" if loss in self.averaged else self.reduction, averaged=())

    def rate_factor(self, epoch: int) -> float:
        """Return the share of the learning rate in an epoch, counted from 0.

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
        """Return the recipe for another number of epochs, milestones and warm-up in proportion.

        >>> RECIPES["wang_cifar"].with_epochs(30).milestones
        (15, 22)
        """
        share = epochs / self.epochs
        milestones = dict.fromkeys(max(1, round(share * milestone)) for milestone in self.milestones)
        return replace(self, epochs=epochs, milestones=tuple(milestones), warmup=round(share * self.warmup))


@cache
def _field_types() -> dict[str, Any]:
    return get_type_hints(Recipe, include_extras=True)


RECIPES = {
    # Mukhoti et al. 2020 by their code: losses summed and clipped at 2, the rate drops one epoch before the paper's
    # 150 and 250, the last epoch counts. Komisarenko & Kull train by the same code. It averages one loss, Brier's.
    "mukhoti_cifar": Recipe(milestones=(149, 249), reduction="sum", averaged=("brier",), clip=2.0),
    "komisarenko_tiny_imagenet": Recipe(
        epochs=100, batch_size=64, milestones=(39, 59), reduction="sum", averaged=("brier",), clip=2.0
    ),
    # its text experiments: the epoch with the best validation accuracy counts; vectors of 20 Newsgroups are frozen by
    # the network (`global_pooling_cnn(frozen=True)`), those of SST follow plain SGD
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
    # Wang et al. 2021 by their code
    "wang_cifar": Recipe(epochs=200, batch_size=512, milestones=(100, 150), weight_decay=1e-4),
    # they say of 20 Newsgroups only that the rate drops at epoch 50; the rest is a reading
    "wang_newsgroups": Recipe(
        epochs=100, batch_size=128, optimizer="adam", learning_rate=1e-3, milestones=(50,), weight_decay=1e-4
    ),
    # ResNet-20 on CIFAR-10 to about 88 % in minutes on a few cores
    "quick_cpu": Recipe(
        epochs=12,
        schedule="cosine",
        warmup=1,
        milestones=(),
        decayed="weights",
        precision="bf16-mixed",
        channels_last=True,
    ),
}
