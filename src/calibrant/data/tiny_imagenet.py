"""Tiny-ImageNet: 200 classes of ImageNet at 64 x 64 pixels, 100,000 + 10,000 images."""

from pathlib import Path

import torch
from torch import Tensor

from calibrant.catalog import DATA_SETS
from calibrant.data._images import IMAGENET, convert_images, image_splits
from calibrant.data._load import Source, load
from calibrant.data._splits import Split, Splits
from calibrant.types import InputError

__all__ = ["tiny_imagenet"]


@DATA_SETS.register
def tiny_imagenet(root: Path | None = None, *, val: float = 0.1) -> Splits:
    """Tiny-ImageNet: 90,000 / 10,000 / 10,000 images, with the official validation set as the test set.

    In every class the images numbered 0 .. 449 train and 450 .. 499 validate (`val` = 0.1; as AdaFocal's code and
    Komisarenko & Kull 2024), by the number in the file's name; where files have no such names, by the order of the
    rows. The code of Mukhoti et al. (2020) instead validates and tests on the same official validation set. ImageNet's
    pixel statistics; training images of 64 pixels are cropped after padding by 4 and mirrored.
    """
    if not 0 < val < 1:
        raise InputError(f"tiny_imagenet: val is the share of every class, between 0 and 1, got {val}")
    source = Source(("tiny-imagenet", "tiny_imagenet"), "zh-plus/tiny-imagenet", (("train",), ("validation", "valid")))
    tensors, facts = load(source, root, convert_images, image=("image",), label=("label",), size=64, classes=200)
    everything = Split(tensors["train.images"], tensors["train.labels"])
    held = held_out(everything.labels, tensors["train.numbers"], val)
    if not 0 < int(held.sum()) < len(held):
        raise InputError(f"tiny_imagenet: val={val} of these {len(held)} training rows leaves an empty split")
    test = Split(tensors["validation.images"], tensors["validation.labels"])
    return image_splits(everything[~held], everything[held], test, facts, IMAGENET, padding=4)


def held_out(labels: Tensor, numbers: Tensor, share: float) -> Tensor:
    """Return which rows validate: the last `share` of 500 file numbers, or of each class's rows if files have none."""
    if bool((numbers >= 0).all()):
        return numbers >= round(500 * (1 - share))
    order = labels.argsort(stable=True)
    counts = labels.bincount()
    starts = counts.cumsum(0) - counts
    rank = torch.empty_like(labels)
    rank[order] = torch.arange(len(labels)) - starts[labels[order]]
    return rank >= (counts * (1 - share)).round()[labels]
