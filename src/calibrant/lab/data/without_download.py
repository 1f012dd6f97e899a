"""Data sets without download: the digits of scikit-learn, and Gaussian blobs with known class probabilities."""

from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from calibrant._core.registry import DATA_SETS
from calibrant._core.types import Count, InputError, PositiveFloat, Range, Seed
from calibrant.lab.data._splits import Split, Splits


@DATA_SETS.register
def digits(root: Path | None = None, *, train: Count = 300, val: Count = 300, seed: Seed = 0) -> Splits:
    """Load the digits of Alpaydin & Kaynak (1998) from scikit-learn: 10 classes, pixels 0 .. 16.

    Args:
        root: Not used.
        train: Number of training examples.
        val: Number of validation examples; all others are test examples.
        seed: Seed of the split.

    Raises:
        InputError: If no test example is left.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    n = len(labels)
    if not (train > 0 and val > 0 and train + val < n):
        raise InputError(
            f"digits: Expected train + val between 2 and {n - 1}, got {train} + {val}.", code="empty_split"
        )
    order = np.random.default_rng(seed).permutation(n)
    x = torch.from_numpy(images[order].astype(np.uint8)).view(-1, 1, 8, 8)
    examples = Split(x, torch.from_numpy(labels[order].astype(np.int64)))
    parts = examples[:train], examples[train : train + val], examples[train + val :]
    mean, deviation = 4.884, 6.017  # of all pixels
    return Splits(*parts, classes=tuple("0123456789"), prepare=lambda inputs: (inputs.float() - mean) / deviation)


@DATA_SETS.register
def blobs(
    root: Path | None = None,
    *,
    classes: Annotated[int, Range(ge=2, le=1_000_000)] = 3,
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
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(classes, features, generator=generator)

    def draw(n: int) -> Split:
        """Draw labels, then inputs, from the one generator."""
        labels = torch.randint(classes, (n,), generator=generator)
        return Split(centers[labels] + spread * torch.randn(n, features, generator=generator), labels)

    return Splits(
        *map(draw, (train, val, test)),
        classes=tuple(str(k) for k in range(classes)),
        posterior=partial(_posterior, centers=centers, spread=spread),
        facts={"source": f"drawn with seed {seed}"},
    )


def _posterior(inputs: Tensor, *, centers: Tensor, spread: float) -> Tensor:
    """Return the true log-probabilities (n, k), with the formula of `blobs`, in float64."""
    squared_distance = (inputs.double()[:, None] - centers.double()).square().sum(-1)
    return (-squared_distance / (2 * spread**2)).log_softmax(-1)
