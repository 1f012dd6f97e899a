"""Gaussian blobs: a mixture with known class probabilities, so that true calibration errors can be computed."""

import math
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from calibrant.lab.data._splits import Split, Splits
from calibrant.registry import DATA_SETS
from calibrant.types import Count, InputError, PositiveFloat, Range, Seed


@DATA_SETS.register
def blobs(
    root: Path | None = None,
    *,
    classes: Annotated[Count, Range(ge=2)] = 3,
    features: Count = 2,
    spread: PositiveFloat = 1.0,
    train: Count = 2000,
    val: Count = 1000,
    test: Count = 10_000,
    seed: Seed = 0,
) -> Splits:
    r"""Simulate uniform labels y and x ~ N(mu_y, spread^2 I), with centers mu_k ~ N(0, I).

    `posterior(x)` of the result is the true log p(k | x) = log softmax_k(-|x - mu_k|^2 / (2 spread^2)).

    Args:
        root: Not used.
        classes: Number of classes.
        features: Number of features.
        spread: Standard deviation within a class.
        train: Number of training examples.
        val: Number of validation examples.
        test: Number of test examples.
        seed: Seed of the centers and the examples.

    >>> data = blobs(train=10, val=10, test=10)
    >>> data.posterior(data.test.inputs).exp().sum().round(decimals=9)
    tensor(10., dtype=torch.float64)
    """
    if not (classes >= 2 and features >= 1 and 0 < spread < math.inf and min(train, val, test) > 0):
        raise InputError(
            "blobs: Expected classes >= 2, features >= 1, spread > 0 and at least one example in every split, got "
            f"classes={classes}, features={features}, spread={spread}, train={train}, val={val}, test={test}.",
            code="setting_range",
        )
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, features, generator=generator)

    def draw(n: int) -> Split:
        labels = torch.randint(classes, (n,), generator=generator)
        return Split(centers[labels] + spread * torch.randn(n, features, generator=generator), labels)

    return Splits(
        *(draw(n) for n in (train, val, test)),
        classes=tuple(str(k) for k in range(classes)),
        posterior=partial(_posterior, centers=centers, spread=spread),
        facts={"source": f"drawn with seed {seed}"},
    )


def _posterior(inputs: Tensor, *, centers: Tensor, spread: float) -> Tensor:
    distance = (inputs.double()[:, None] - centers.double()).square().sum(-1)
    return (-distance / (2 * spread**2)).log_softmax(-1)
