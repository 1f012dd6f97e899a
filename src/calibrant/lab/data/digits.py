"""Handwritten digits bundled with scikit-learn: 1,797 real images of 8 x 8 pixels, no download."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.lab.data._splits import Split, Splits
from calibrant.registry import DATA_SETS
from calibrant.types import Count, InputError, Seed

__all__ = ["digits"]


@DATA_SETS.register
def digits(root: Path | None = None, *, train: Count = 300, val: Count = 300, seed: Seed = 0) -> Splits:
    """Load the digits of Alpaydin & Kaynak (1998) as scikit-learn bundles them; 10 classes, pixels 0 .. 16.

    `train` and `val` examples are drawn by `seed`, the rest is the test set. `root` is not used: nothing is read
    from disk. Raises `InputError` if nothing is left to test on.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    if not (train > 0 and val > 0 and train + val < len(labels)):
        raise InputError(
            f"digits has {len(labels)} examples, got train={train} and val={val}; leave some for test",
            code="empty_split",
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    x = torch.from_numpy(images[order].astype(np.uint8)).view(-1, 1, 8, 8)
    y = torch.from_numpy(labels[order].astype(np.int64))
    all_examples = Split(x, y)
    return Splits(
        train=all_examples[:train],
        val=all_examples[train : train + val],
        test=all_examples[train + val :],
        classes=tuple("0123456789"),
        prepare=_standardize,
    )


def _standardize(inputs: Tensor) -> Tensor:
    return (inputs.float() - 4.884) / 6.017  # mean and deviation of all pixels
