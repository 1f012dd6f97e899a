"""Digits: 1,797 real images of 8 x 8 pixels from scikit-learn, without download."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.lab.data._splits import Split, Splits
from calibrant.registry import DATA_SETS
from calibrant.types import Count, InputError, Seed


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
    return Splits(*parts, classes=tuple("0123456789"), prepare=_standardize)


def _standardize(inputs: Tensor) -> Tensor:
    return (inputs.float() - 4.884) / 6.017  # mean and standard deviation of all pixels
